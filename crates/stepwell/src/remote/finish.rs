//! Results of tasks: the run applies the result of a worker like that of a local action, exactly once.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use stepwell_core::{Failure, Name, RunId};
use stepwell_store::{KeyLifetime, KeyWrite, Record, RecordQuery, Refused, StoreError, TenantScope};

use super::claim::checked_lease;
use super::staging::{Attempted, Report};
use super::{Asker, TaskId, call_of};
use crate::answering;
use crate::apply_outcome::{InvalidOutcome, OutcomeApplier, invalid, refusal};
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::cx::{Cx, StateLocation};
use crate::engine::{Inner, permit_work};
use crate::error::EngineError;
use crate::idempotent::{Idempotent, answer_of};
use crate::ledger::{Attempts, TaskLease};
use crate::loaded_run::{LoadedRun, PendingCommit};
use crate::observe::ObservedAction;
use crate::planner::attempt_of;
use crate::run_driver::{ActionOutcome, elapsed};

/// Time in milliseconds for which the result of a task is remembered, for workers that retry because they got no
/// response.
const RESULT_TTL_MS: u64 = 24 * 3_600_000;

/// The result of finishing a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// The failure that the worker reported, or the reason why its output was rejected. `None`: the task succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// Records the caller as the actor of a result, unless the sender of a signal caused the transition.
fn name_worker(next: &mut PendingCommit, by: Asker<'_>, task: TaskId, error: Option<&Failure>) {
    let Some(actor) = by.actor else { return };
    next.extras.actor = Some(actor.id.clone());
    if let Some(change) = &mut next.change {
        change.entry.actor.get_or_insert_with(|| actor.id.clone());
    }
    let operation = if error.is_some() { "task.fail" } else { "task.complete" };
    let detail = json!({"task": task, "error": error.map(|error| &error.code)});
    next.extras.audit.push(answering::row(operation, task.run, actor.id.clone(), &detail));
}

/// The stored result of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedResult {
    /// The action of the task: only its workers may read the result.
    action: Name,
    #[serde(flatten)]
    result: TaskResult,
}

impl RecordedResult {
    /// Adds the result to a commit, so that a worker that asks again gets the same answer.
    fn record(&self, next: &mut PendingCommit, key: &KeyWrite) {
        let answer = serde_json::to_vec(self).expect("the result of a task is plain data").into();
        next.extras.keys.push(KeyWrite { answer, ..key.clone() });
    }
}

/// Returns the operation under which the results of a run's tasks are recorded.
pub(super) fn operation_of(task: TaskId) -> String {
    format!("task:{}", task.run)
}

impl Inner {
    /// Applies the result that a worker reports.
    pub(super) async fn finish_task(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        mut reported: Result<Report, Failure>,
    ) -> Result<Idempotent<TaskResult>, EngineError> {
        let loaded_run = self.load_task(by, id, fence).await?;
        if let Ok((_, lease)) = checked_lease(&loaded_run, id, fence, self.host.now()) {
            let given = self.secrets_of_lease(by.scope, id, lease).await?;
            match &mut reported {
                Ok(report) => {
                    given.hide(&mut report.output);
                    report.writes.iter_mut().for_each(|write| given.hide(&mut write.input));
                }
                Err(failure) => given.hide_failure(failure),
            }
        }
        let key = self.key_of_result(id, fence, &reported);
        let tried = self.finish_now(by, id, fence, &reported, &key, loaded_run).await;
        let done: Result<Idempotent<RecordedResult>, _> = self.or_recorded(by.scope, Some(&key), tried).await;
        // The task may no longer be queued, so only the record knows its action.
        let action = match &done {
            Ok(done) => Some(done.value.action.clone()),
            Err(EngineError::KeyReused { .. }) => self.action_of_record(by.scope, &key).await?,
            Err(_) => None,
        };
        action.map_or(Ok(()), |action| permit_work(by.actor, &action))?;
        if done.is_ok() {
            self.leased_secrets.forget((by.scope.tenant(), id, fence));
        }
        done.map(|done| done.map(|recorded| recorded.result))
    }

    /// Returns the action of the task whose result is recorded under this key.
    async fn action_of_record(
        &self,
        scope: TenantScope,
        key: &KeyWrite,
    ) -> Result<Option<Name>, EngineError> {
        let KeyWrite { operation, key: name, .. } = key.clone();
        let query = RecordQuery::Key { operation, key: name, now: self.host.now() };
        let Some(Record::Key(record)) = self.store.records(scope, query).await?.items.pop() else {
            return Ok(None);
        };
        let recorded: RecordedResult = answer_of(key, &record.answer.unwrap_or_default())?;
        Ok(Some(recorded.action))
    }

    async fn finish_now(
        self: &Arc<Self>,
        by: Asker<'_>,
        id: TaskId,
        fence: u64,
        reported: &Result<Report, Failure>,
        key: &KeyWrite,
        mut loaded_run: LoadedRun,
    ) -> Result<RecordedResult, EngineError> {
        let scope = by.scope;
        let (mut failure, mut children) = (None, Vec::new());
        for number in 0..MAX_ATTEMPTS {
            let (attempts, lease) = checked_lease(&loaded_run, id, fence, self.host.now())?;
            let outcome =
                self.outcome(scope, &loaded_run, (attempts, lease), reported, &mut children).await?;
            let error = failure.clone().or_else(|| self.error_of(scope, &loaded_run, id, &outcome));
            let staged = outcome.result.as_ref().ok().map(|(_, staged)| staged);
            let applier = OutcomeApplier { inner: self, scope, loaded_run: &loaded_run, before: None };
            let next = match &error {
                None => applier.succeeded(&outcome).await,
                Some(error) => applier.failed(&outcome, error).map_err(InvalidOutcome::Failed),
            };
            let mut next = match next {
                Ok(Some(next)) => next,
                Ok(None) => {
                    let why = "the run has continued without it".to_owned();
                    return Err(EngineError::TaskGone { task: id, fence, why });
                }
                Err(InvalidOutcome::Failed(invalid)) => {
                    failure = Some(invalid);
                    continue;
                }
                Err(InvalidOutcome::Refused(refused)) => {
                    let tried = Attempted { is_predicted: false, number };
                    if tried.may_stage_again(staged, &refused, id) {
                        self.pause_after(number).await;
                        loaded_run = self.load_task(by, id, fence).await?;
                    } else {
                        failure = Some(refusal(&refused));
                    }
                    continue;
                }
                Err(InvalidOutcome::Store(error)) => return Err(error.into()),
            };
            let action = outcome.call.action.clone();
            let finished = RecordedResult { action, result: TaskResult { error: error.clone() } };
            finished.record(&mut next, key);
            name_worker(&mut next, by, id, error.as_ref());
            let is_predicted = staged.is_some_and(|staged| next.extras.cells != staged.cells);
            let tried = Attempted { is_predicted, number };
            match self.commit_and_drive(scope, &loaded_run, next).await {
                Ok(()) => {
                    // Observers are notified only now, because a worker may never finish its task.
                    let result = error.map_or(Ok(()), Err);
                    ObservedAction::begin(&outcome.cx, lease.since).end(&result, outcome.duration_us);
                    return Ok(finished);
                }
                Err(CommitFailure::Moved) => loaded_run = self.load_task(by, id, fence).await?,
                Err(CommitFailure::Refused(refused)) if tried.may_stage_again(staged, &refused, id) => {
                    self.pause_after(number).await;
                    loaded_run = self.load_task(by, id, fence).await?;
                }
                Err(done @ CommitFailure::Refused(Refused::Done { .. })) => return Err(done.into()),
                Err(CommitFailure::Refused(refused)) if error.is_none() => failure = Some(refusal(&refused)),
                Err(CommitFailure::Undecidable(why)) if error.is_none() => failure = Some(invalid(&why)),
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(EngineError::Contended { run: id.run, attempts: MAX_ATTEMPTS })
    }

    /// Returns the failure of a task: the one that the worker reported, that of a change that could not be staged, or an
    /// output that does not match the schema.
    fn error_of(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        id: TaskId,
        outcome: &ActionOutcome,
    ) -> Option<Failure> {
        let output = match &outcome.result {
            Ok((output, _)) => output,
            Err(failure) => return Some(failure.clone()),
        };
        let queued = loaded_run.ledger.of(id.activation)?.queued.as_ref()?;
        self.catalogues.cached(scope.tenant()).action(&queued.action)?.gives(output).err()
    }

    /// Builds the outcome as if the action had run in this process and staged its changes here.
    async fn outcome(
        self: &Arc<Self>,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        (attempts, lease): (&Attempts, &TaskLease),
        reported: &Result<Report, Failure>,
        children: &mut Vec<RunId>,
    ) -> Result<ActionOutcome, StoreError> {
        let now = self.host.now();
        let call = call_of(loaded_run, attempts, now);
        let attempt = attempt_of(loaded_run, &call);
        let cx = Cx::new(self, scope, loaded_run, call.clone(), attempt, StateLocation::Durable);
        let output = match reported {
            Ok(report) => self.stage(&cx, report).await?,
            Err(failure) => Err(failure.clone()),
        };
        let staged = cx.close().unwrap_or_default();
        self.name_children(children, &staged);
        let result = output.map(|output| (output, staged));
        let (duration_us, children) = (elapsed(lease.since, now), children.clone());
        Ok(ActionOutcome { call, message: attempts.message, result, cx, duration_us, children })
    }

    /// Builds the idempotency record of a result. A fence is used for one result only. So the record needs no copy of
    /// the result, which might contain secrets.
    fn key_of_result(&self, id: TaskId, fence: u64, reported: &Result<Report, Failure>) -> KeyWrite {
        let word = if reported.is_ok() { "done" } else { "failed" };
        KeyWrite {
            operation: operation_of(id),
            key: format!("{}.{fence}", id.activation),
            request: Sha256::digest(word.as_bytes()).into(),
            answer: Bytes::new(),
            lifetime: KeyLifetime::UntilWithRun(self.host.now().plus_ms(RESULT_TTL_MS), id.run),
        }
    }
}
