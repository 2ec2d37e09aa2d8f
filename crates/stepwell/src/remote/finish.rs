//! A worker says what came of its task: the run takes it like the result of any action, and once.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use stepwell_core::Failure;
use stepwell_store::{KeyWrite, Lives, Refused, TenantScope};

use super::claim::held;
use super::{Asker, TaskId, call_of};
use crate::cx::{Cx, Rests, Staged};
use crate::engine::Inner;
use crate::error::EngineError;
use crate::hold::{Landed, elapsed};
use crate::landing::{Landing, Unfit, invalid, refusal};
use crate::ledger::{Lease, Tries};
use crate::look::attempt_of;
use crate::observe::Flight;
use crate::once::Done;
use crate::standing::Standing;
use crate::turn::{MAX_TRIES, Turnless};

/// How long it is remembered what somebody has said of a task: long enough for whoever had no answer.
const SAID_KEPT_MS: u64 = 24 * 3_600_000;

/// What a task has come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Why it has failed: what the worker said, or what is wrong with its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl Inner {
    /// Takes what a worker says has come of its task.
    pub(super) async fn finish_task(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        mut said: Result<Value, Failure>,
    ) -> Result<Done<Finished>, EngineError> {
        let standing = self.load_task(by, id, fence).await?;
        if let Ok((_, lease)) = held(&standing, id, fence, self.host.now()) {
            let given = self.given_with(by.scope, lease).await?;
            match &mut said {
                Ok(output) => given.hide(output),
                Err(failure) => given.hide_failure(failure),
            }
        }
        let key = self.said(id, fence, &said);
        let tried = self.finish_now(by, id, fence, &said, &key, standing).await;
        self.unless_done(by.scope, Some(&key), tried).await
    }

    async fn finish_now(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        said: &Result<Value, Failure>,
        key: &KeyWrite,
        mut standing: Standing,
    ) -> Result<Finished, EngineError> {
        let scope = by.scope;
        let mut error = self.unfit(scope, &standing, id, said);
        for _ in 0..MAX_TRIES {
            let (tries, lease) = held(&standing, id, fence, self.host.now())?;
            let landed = self.landed(scope, &standing, tries, lease, said);
            let landing = Landing { inner: self, scope, standing: &standing, before: None };
            let next = match &error {
                None => landing.succeeded(&landed).await,
                Some(error) => landing.failed(&landed, error).map_err(Unfit::Failed),
            };
            let mut next = match next {
                Ok(Some(next)) => next,
                Ok(None) => {
                    let why = "its run has gone on without it".to_owned();
                    return Err(EngineError::TaskGone { task: id, fence, why });
                }
                Err(Unfit::Failed(unfit)) => {
                    error = Some(unfit);
                    continue;
                }
                Err(Unfit::Refused(refused)) => {
                    error = Some(refusal(&refused));
                    continue;
                }
                Err(Unfit::Store(error)) => return Err(error.into()),
            };
            let finished = Finished { error: error.clone() };
            let answer = serde_json::to_vec(&finished).expect("what a task has come to is plain data").into();
            next.along.keys.push(KeyWrite { answer, ..key.clone() });
            match self.anyone(scope, &standing, next).await {
                Ok(()) => {
                    // What a worker did elsewhere is told when it is over: whether it would be was known to nobody before.
                    let result = error.map_or(Ok(()), Err);
                    Flight::begin(&landed.cx, lease.since).end(&result, landed.duration_us);
                    return Ok(finished);
                }
                Err(Turnless::Moved) => standing = self.load_task(by, id, fence).await?,
                Err(done @ Turnless::Refused(Refused::Done { .. })) => return Err(done.into()),
                Err(Turnless::Refused(refused)) if error.is_none() => error = Some(refusal(&refused)),
                Err(Turnless::Undecidable(why)) if error.is_none() => error = Some(invalid(&why)),
                Err(turnless) => return Err(turnless.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, tries: MAX_TRIES })
    }

    /// Why a result is a failure: the worker says so, or it is not what the action gives.
    fn unfit(
        &self,
        scope: TenantScope,
        standing: &Standing,
        id: TaskId,
        said: &Result<Value, Failure>,
    ) -> Option<Failure> {
        let output = match said {
            Ok(output) => output,
            Err(failure) => return Some(failure.clone()),
        };
        let posted = standing.ledger.of(id.activation)?.posted.as_ref()?;
        self.catalogues.held(scope.tenant()).action(&posted.action)?.gives(output).err()
    }

    /// The result, as if the action had run here.
    fn landed(
        self: &Arc<Self>,
        scope: TenantScope,
        standing: &Standing,
        tries: &Tries,
        lease: &Lease,
        said: &Result<Value, Failure>,
    ) -> Landed {
        let now = self.host.now();
        let call = call_of(standing, tries, now);
        let attempt = attempt_of(standing, &call);
        let cx = Cx::new(self, scope, standing, call.clone(), attempt, Rests::Durable);
        cx.close();
        let result = said.clone().map(|output| (output, Staged::default()));
        let duration_us = elapsed(lease.since, now);
        Landed { call, message: tries.message, result, cx, duration_us, children: Vec::new() }
    }

    /// The record of what was said of a task: the same said again is known by it. A fence is good for one word, so that
    /// nothing of what was said need be kept, which may have secrets in it.
    fn said(&self, id: TaskId, fence: u64, said: &Result<Value, Failure>) -> KeyWrite {
        let word = if said.is_ok() { "done" } else { "failed" };
        KeyWrite {
            operation: format!("task:{}", id.run),
            key: format!("{}.{fence}", id.activation),
            request: Sha256::digest(word.as_bytes()).into(),
            answer: Bytes::new(),
            lives: Lives::Until(self.host.now().plus_ms(SAID_KEPT_MS)),
        }
    }
}
