//! Stores a flow at a pause or at its end. One commit uses up the token that resumed the flow, writes everything that
//! the steps have staged, and stores the new state. If there is nothing to write, there is no commit.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::schema::SchemaViolation;
use stepwell_core::snapshot::RunEnd;
use stepwell_core::{Failure, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    CellError, HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite, KeyLifetime, KeyWrite, NewRun,
    RecordQuery, Refused, Status, TenantId,
};

use super::answer::{Answer, FlowError};
use super::execution::{ExecutionError, FlowExecution};
use super::flows::Flows;
use super::links::AnswerLink;
use super::outbox;
use super::outlet::{Message, Outgoing, QueuedMessage};
use super::resume::{FLOW, HandleReservation, IdempotentRequest};
use super::strategy::{Strategy, WATCH};
use super::token::{self, Bound, Claims, Purpose, Secret};
use crate::commit_cycle::{CommitFailure, open_waits_of};
use crate::error::EngineError;
use crate::lists;
use crate::loaded_run::CommitExtras;

/// Operation under which the use of a sealed token is recorded.
const SEALED: &str = "sealed";
/// Maximum number of attempts at sending a sealed flow's message while the caller waits.
const SENDS_AT_ONCE: u32 = 3;

/// The source of a flow's state.
pub(crate) enum Origin {
    /// The flow was just started.
    Begun,
    /// The state was in a sealed token.
    Sealed { claims: Claims, flow: RunId, version: u64, is_once: bool },
    /// The state was in a row behind a handle.
    Handle { row: Box<HandleRow>, before: Arc<Snapshot> },
}

impl Origin {
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        match self {
            Origin::Begun => None,
            Origin::Sealed { claims, .. } => Some(claims.expires_at),
            Origin::Handle { row, .. } => row.expires_at,
        }
    }

    /// Returns the origin with the handle's row as it is after its reservation.
    pub(crate) fn taken_by(&self, reservation: Option<&HandleReservation>) -> Origin {
        match self {
            Origin::Begun => Origin::Begun,
            Origin::Sealed { claims, flow, version, is_once } => {
                Origin::Sealed { claims: claims.clone(), flow: *flow, version: *version, is_once: *is_once }
            }
            Origin::Handle { row, before } => Origin::Handle {
                row: reservation.map_or_else(|| row.clone(), |reservation| Box::new(reservation.row.clone())),
                before: before.clone(),
            },
        }
    }

    /// Returns the start time of the flow and the actor who started it.
    fn created(&self) -> Option<(Timestamp, Option<String>)> {
        match self {
            Origin::Begun => None,
            Origin::Sealed { claims, .. } => Some((claims.created_at, claims.created_by.clone())),
            Origin::Handle { row, .. } => Some((row.created_at, row.created_by.clone())),
        }
    }
}

/// The reason why a flow was not stored. Its state is unchanged.
pub(crate) enum FlowCommitError {
    /// The input failed validation.
    InvalidOutcome(Vec<SchemaViolation>),
    /// Data that was read has changed since. Run the flow again.
    Again,
    /// The same request was already answered.
    Answered(Box<Answer>),
    /// The flow reported an error.
    Flow(FlowError),
}

impl<E: Into<FlowError>> From<E> for FlowCommitError {
    fn from(error: E) -> Self {
        FlowCommitError::Flow(error.into())
    }
}

impl From<ExecutionError> for FlowCommitError {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::InvalidOutcome(errors) => FlowCommitError::InvalidOutcome(errors),
            ExecutionError::Again => FlowCommitError::Again,
            ExecutionError::Failed(failure) => FlowCommitError::Flow(FlowError::Failed(failure)),
            ExecutionError::Refused(refusal) => FlowCommitError::Flow(FlowError::Refused(refusal)),
            ExecutionError::Engine(error) => FlowCommitError::Flow(FlowError::Engine(error)),
        }
    }
}

/// The content of a token that only shows that a flow waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Watching {
    pub(crate) strategy: String,
    pub(crate) flow: RunId,
    pub(crate) place: Option<Name>,
    /// Hash of the handle that the flow waits behind.
    pub(crate) handle: Option<String>,
    pub(crate) outlet: Option<String>,
}

/// The wait and the outcomes that an answer link is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnswerLinkState {
    pub(crate) activation: u64,
    /// Outcomes that are accepted. Empty: all that the place accepts.
    pub(crate) outcomes: Vec<Name>,
    /// The answerer that the link was created for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answerer: Option<String>,
    /// A step of the workflow sent the link, or the embedding program created it. It may answer a wait with answerers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_trusted: bool,
}

impl AnswerLinkState {
    /// Creates the state of a link that the workflow itself hands out.
    pub(crate) fn trusted(activation: u64, outcomes: Vec<Name>) -> Self {
        AnswerLinkState { activation, outcomes, answerer: None, is_trusted: true }
    }

    pub(crate) fn written(&self) -> Bytes {
        serde_json::to_vec(self).expect("a link is plain data").into()
    }
}

/// The next stored state of a flow, being built.
pub(crate) struct NextPause<'p> {
    pub(crate) name: &'p str,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: Option<String>,
    pub(crate) now: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// Time at which all tokens for this pause have expired.
    pub(crate) latest: Option<Timestamp>,
    pub(crate) outgoing: Option<&'p Outgoing>,
}

impl NextPause<'_> {
    /// Builds the row of a handle without its state. `by` is the actor who writes it.
    pub(crate) fn row(
        &self,
        handle: HandleHash,
        kind: HandleKind,
        loaded_run: &crate::loaded_run::LoadedRun,
        by: Option<String>,
    ) -> HandleRow {
        HandleRow {
            handle,
            kind,
            run: loaded_run.run(),
            workflow: loaded_run.definition().name().clone(),
            definition: loaded_run.definition().hash(),
            state: Bytes::new(),
            expires_at: self.expires_at,
            owner: None,
            fence: 0,
            deliver_at: None,
            delivery: None,
            created_at: self.created_at,
            created_by: self.created_by.clone(),
            updated_at: self.now,
            updated_by: by,
            commit: stepwell_store::CommitId(uuid::Uuid::nil()),
        }
    }

    /// Returns a copy for a token that only shows that the flow waits.
    fn watch(&self) -> NextPause<'_> {
        NextPause { outgoing: None, latest: None, created_by: self.created_by.clone(), ..*self }
    }
}

impl Flows {
    /// Stores the flow after its execution, or returns the reason why the execution failed.
    pub(crate) async fn commit_pause(
        &self,
        came: Result<(), ExecutionError>,
        execution: &mut FlowExecution<'_>,
        origin: &Origin,
        current: &str,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowCommitError> {
        came?;
        let inner = &self.engine.inner;
        let scope = self.engine.scope;
        let now = inner.host.now();
        let mut extras = execution.staged();
        let mut is_written = !is_nothing(&extras);
        let mut answer = Answer::of(
            execution.loaded_run.definition(),
            &execution.loaded_run.snapshot,
            status_of(&execution.loaded_run.snapshot),
        );
        let mut queued = None;
        if let Origin::Handle { row, .. } = origin {
            let take =
                HandleWrite { handle: row.handle, expected: Some(row.fence), then: HandleChange::Take };
            extras.handles.push(take);
            is_written = true;
        }
        if let (true, Some(outgoing)) = (execution.loaded_run.snapshot.is_terminal(), &execution.outgoing) {
            let why =
                format!("outlet `{}` cannot send a token: the flow ends without a pause", outgoing.outlet);
            return Err(FlowError::Failed(Failure::new("cannotSend", why).non_retryable()).into());
        }
        if !execution.loaded_run.snapshot.is_terminal() {
            execution.sort_waits(&mut answer.waits);
            let name = execution.swap.clone().unwrap_or_else(|| current.to_owned());
            if !matches!(self.shared.strategies.get(&name)?, Strategy::Sealed(_)) {
                inner.load_columns(scope, &execution.loaded_run.workflow).await;
            }
            let put = self.put(execution, origin, &name, &mut extras, &mut answer, now)?;
            is_written |= put.is_written;
            queued = put.queued;
        }
        if let Origin::Sealed { claims, flow, version, is_once } = origin
            && (is_written || *is_once)
        {
            extras.keys.insert(0, consumed(*flow, *version, claims.all_over_at()));
            is_written = true;
        }
        if is_written {
            let by = self.engine.actor_id();
            extras.actor = extras.actor.take().or(by);
            if let Some(asked) = asked {
                let kept = self.kept(asked, &answer, now)?;
                extras.keys.insert(0, kept);
            }
            if let Err(failure) = inner.apply(scope, inner.commit_of(scope, extras, now)).await {
                return self.commit_failed(failure, asked).await;
            }
        }
        match queued {
            Some(OutboxMessage::Sealed(queued)) => self.send_now(&queued).await?,
            // The commit has queued the message.
            Some(OutboxMessage::StoredAnswer) | None => {}
        }
        Ok(answer)
    }

    /// Adds the next state of the flow to the commit, in the form of its strategy.
    fn put(
        &self,
        execution: &mut FlowExecution<'_>,
        origin: &Origin,
        name: &str,
        extras: &mut CommitExtras,
        answer: &mut Answer,
        now: Timestamp,
    ) -> Result<Put, FlowCommitError> {
        let strategy = self.shared.strategies.get(name)?;
        if let Some(error) = strategy.refuses(name, execution.loaded_run.definition()) {
            return Err(error.into());
        }
        let by = self.engine.actor_id();
        let (created_at, created_by) = origin.created().unwrap_or((now, by));
        let outgoing = execution.outgoing.take();
        if let Some(outgoing) = &outgoing {
            self.outlet(&outgoing.outlet)?;
            let is_link = matches!(strategy, Strategy::Durable(_));
            if !is_link && !outgoing.outcomes.is_empty() {
                let why =
                    "only links to a durable run can be restricted to outcomes: use the strategy `durable`";
                return Err(FlowError::Failed(Failure::new("outcomesNeedRun", why).non_retryable()).into());
            }
        }
        let addressed = answer.waits.iter().find(|pause| !pause.answerers.is_empty());
        if let (None, Some(pause), false) = (&outgoing, addressed, matches!(strategy, Strategy::Durable(_))) {
            // The starter must not answer for others, and no other token could ever resume this flow.
            let why = format!(
                "`{}` names who may answer, so only a message may carry its token: send it with `flow.sendOut`, or use the strategy `durable`",
                pause.place
            );
            return Err(FlowError::Failed(Failure::new("answerersNeedMessage", why).non_retryable()).into());
        }
        let ttl_ms = outgoing.as_ref().and_then(|outgoing| outgoing.ttl_ms).or(strategy.ttl_ms());
        let expires_at = ttl_ms.map(|ttl| now.plus_ms(ttl));
        let latest = match origin {
            // The token is not single-use. Until it expires, it can make further tokens for this pause.
            Origin::Sealed { claims, is_once: false, .. } if is_nothing(extras) => {
                ttl_ms.map(|ttl| claims.all_over_at().plus_ms(ttl))
            }
            Origin::Begun | Origin::Sealed { .. } | Origin::Handle { .. } => None,
        };
        let outgoing = outgoing.as_ref();
        let next_pause = NextPause { name, created_at, created_by, now, expires_at, latest, outgoing };
        answer.strategy = Some(name.to_owned());
        answer.expires_at = expires_at;
        match strategy {
            Strategy::Sealed(sealed) => {
                let state = self.state_of(&execution.loaded_run.snapshot)?;
                let token = self.token_of(&next_pause, answer, &state, Purpose::Resume, sealed.compresses)?;
                let is_once = matches!(origin, Origin::Sealed { is_once: true, .. });
                if next_pause.outgoing.is_some() && (is_once || !is_nothing(extras)) {
                    return self.put_message(execution, &next_pause, token, extras, answer);
                }
                return self.issue_token(&next_pause, token, answer, None);
            }
            Strategy::Handle(_) | Strategy::Durable(_) => {}
        }
        if let Origin::Sealed { claims, flow, .. } = origin {
            let sealed_until = now.plus_ms(self.shared.longest_sealed_ms().unwrap_or(0).saturating_mul(2));
            extras.keys.push(left(*flow, claims.all_over_at().max(sealed_until)));
        }
        match strategy {
            Strategy::Durable(_) => self.put_durable(execution, origin, &next_pause, extras, answer),
            _ => self.put_behind(execution, origin, &next_pause, extras, answer),
        }
    }

    /// Stores the message with a sealed token in a row. The commit uses up the previous token, so the message must
    /// survive until it is sent. Nothing else leads to this row.
    fn put_message(
        &self,
        execution: &FlowExecution<'_>,
        next_pause: &NextPause<'_>,
        token: String,
        extras: &mut CommitExtras,
        answer: &mut Answer,
    ) -> Result<Put, FlowCommitError> {
        let handle = Secret::new(self.engine.scope.tenant())?.hash(next_pause.name);
        let mut row = next_pause.row(handle, HandleKind::Link, &execution.loaded_run, self.engine.actor_id());
        let activation = answer.waits.first().map_or(0, |pause| pause.activation);
        row.state = AnswerLinkState::trusted(activation, Vec::new()).written();
        let put = self.issue_token(next_pause, token, answer, Some(&mut row))?;
        let then = HandleChange::Put(Box::new(row), Vec::new());
        extras.handles.push(HandleWrite { handle, expected: None, then });
        Ok(put)
    }

    /// Stores the flow behind a handle. Each pause has a new secret.
    fn put_behind(
        &self,
        execution: &FlowExecution<'_>,
        origin: &Origin,
        next_pause: &NextPause<'_>,
        extras: &mut CommitExtras,
        answer: &mut Answer,
    ) -> Result<Put, FlowCommitError> {
        let inner = &self.engine.inner;
        let loaded_run = &execution.loaded_run;
        let secret = Secret::new(self.engine.scope.tenant())?;
        let hash = secret.hash(next_pause.name);
        let mut row = next_pause.row(hash, HandleKind::Flow, loaded_run, self.engine.actor_id());
        row.state = self.state_of(&loaded_run.snapshot)?;
        let before = match origin {
            Origin::Handle { before, .. } => Some((&loaded_run.workflow, before.context())),
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        let after = (&loaded_run.workflow, loaded_run.snapshot.context());
        let shadows = inner.shadows(self.engine.scope.tenant(), before, after);
        extras.definitions.push(loaded_run.workflow.clone());
        let put = self.issue_token(next_pause, secret.token(next_pause.name), answer, Some(&mut row))?;
        let then = HandleChange::Put(Box::new(row), shadows);
        extras.handles.push(HandleWrite { handle: hash, expected: None, then });
        Ok(put)
    }

    /// Stores the flow as a durable run, with the flow's id and its current version.
    fn put_durable(
        &self,
        execution: &mut FlowExecution<'_>,
        origin: &Origin,
        next_pause: &NextPause<'_>,
        extras: &mut CommitExtras,
        answer: &mut Answer,
    ) -> Result<Put, FlowCommitError> {
        let inner = &self.engine.inner;
        let entry = execution.entry.take();
        let loaded_run = &execution.loaded_run;
        let entry =
            entry.ok_or_else(|| EngineError::Invalid("the flow has made no transition".to_owned()))?;
        let first = inner.checkpoint(&loaded_run.snapshot, &entry).map_err(EngineError::from)?;
        let before = match origin {
            Origin::Handle { before, .. } => Some((&loaded_run.workflow, before.context())),
            Origin::Begun | Origin::Sealed { .. } => None,
        };
        let after = (&loaded_run.workflow, loaded_run.snapshot.context());
        extras.definitions.push(loaded_run.workflow.clone());
        extras.documents.extend(lists::kept(loaded_run.run(), None, &loaded_run.snapshot));
        extras.create.push(NewRun {
            run: loaded_run.run(),
            workflow: loaded_run.definition().name().clone(),
            definition: loaded_run.definition().hash(),
            version: loaded_run.snapshot.version(),
            first,
            status: Status::Waiting,
            error: None,
            // A wait for an event queries events that arrived before it, so wake the run at once.
            wake: match loaded_run.workflow.has_events {
                true => Some(next_pause.now),
                false => loaded_run.snapshot.next_due(next_pause.now),
            },
            owner: None,
            parent: None,
            root: loaded_run.run(),
            ledger: None,
            open: open_waits_of(loaded_run.definition(), &loaded_run.snapshot),
            shadows: inner.shadows(self.engine.scope.tenant(), before, after),
        });
        let Some(pause) = answer.waits.first().cloned() else {
            return Ok(Put { is_written: true, queued: None });
        };
        if next_pause.outgoing.is_none() && !pause.answerers.is_empty() {
            // The answer is expected from another person, so the caller gets a token that only shows the wait.
            answer.token = Some(self.watch(&next_pause.watch(), answer, None, None)?);
            answer.watch_only = true;
            return Ok(Put { is_written: true, queued: None });
        }
        let only = next_pause.outgoing.map(|outgoing| outgoing.outcomes.clone()).unwrap_or_default();
        let secret = Secret::new(self.engine.scope.tenant())?;
        let mut row = next_pause.row(
            secret.hash(next_pause.name),
            HandleKind::Link,
            loaded_run,
            self.engine.actor_id(),
        );
        row.state = AnswerLinkState::trusted(pause.activation, only).written();
        let put = self.issue_token(next_pause, secret.token(next_pause.name), answer, Some(&mut row))?;
        let handle = row.handle;
        let then = HandleChange::Put(Box::new(row), Vec::new());
        extras.handles.push(HandleWrite { handle, expected: None, then });
        Ok(put)
    }

    /// Gives the next token to the caller. If the token is sent to another person, the caller gets one that only shows
    /// the wait.
    fn issue_token(
        &self,
        next_pause: &NextPause<'_>,
        token: String,
        answer: &mut Answer,
        row: Option<&mut HandleRow>,
    ) -> Result<Put, FlowCommitError> {
        let is_written = row.is_some();
        let Some(outgoing) = next_pause.outgoing else {
            answer.token = Some(token);
            return Ok(Put { is_written, queued: None });
        };
        let message = message_of(self.engine.scope.tenant(), outgoing, answer, token, next_pause.expires_at);
        let queued = QueuedMessage { outlet: outgoing.outlet.clone(), message, attempts: 0 };
        let handle = row.as_ref().map(|row| row.handle);
        answer.token = Some(self.watch(&next_pause.watch(), answer, handle, Some(&outgoing.outlet))?);
        answer.watch_only = true;
        answer.sent = Some(outgoing.outlet.clone());
        let queued = match row {
            None => OutboxMessage::Sealed(Box::new(queued)),
            Some(row) => {
                // This process sends it right after the commit. If that fails, another process sends it after the
                // lease.
                row.deliver_at = Some(self.shared.deliver_at(next_pause.now));
                row.delivery = Some(outbox::sealed(&self.shared, self.engine.scope, &row.handle, &queued));
                OutboxMessage::StoredAnswer
            }
        };
        Ok(Put { is_written, queued: Some(queued) })
    }

    /// Creates a token that only shows that the flow waits.
    pub(crate) fn watch(
        &self,
        next_pause: &NextPause<'_>,
        answer: &Answer,
        handle: Option<HandleHash>,
        outlet: Option<&str>,
    ) -> Result<String, EngineError> {
        let watching = Watching {
            strategy: next_pause.name.to_owned(),
            flow: answer.flow,
            place: answer.waits.first().map(|pause| pause.place.clone()),
            handle: handle.map(|handle| handle.to_string()),
            outlet: outlet.map(str::to_owned),
        };
        let watching = serde_json::to_vec(&watching).expect("the content of a watch token is plain data");
        self.token_of(next_pause, answer, &watching, Purpose::Watch, false)
    }

    fn token_of(
        &self,
        next_pause: &NextPause<'_>,
        answer: &Answer,
        state: &[u8],
        purpose: Purpose,
        compress: bool,
    ) -> Result<String, EngineError> {
        let inner = &self.engine.inner;
        let name = if purpose == Purpose::Watch { WATCH } else { next_pause.name };
        let bound = Bound { name, tenant: self.engine.scope.tenant(), workflow: &answer.workflow, purpose };
        let claims = Claims {
            issued_at: next_pause.now,
            expires_at: next_pause.expires_at.unwrap_or(Timestamp::MAX),
            latest: next_pause.latest.map(Timestamp::micros),
            created_at: next_pause.created_at,
            created_by: next_pause.created_by.clone(),
            is_compressed: false,
        };
        Ok(token::seal(&self.shared.ring, bound, claims, state, compress, inner.limits())?)
    }

    /// Seals the state of a snapshot that the caller provides.
    pub(crate) fn sealed(
        &self,
        name: &str,
        sealed: &super::strategy::Sealed,
        snapshot: &Snapshot,
    ) -> Result<String, FlowError> {
        let inner = &self.engine.inner;
        let now = inner.host.now();
        let bound = Bound {
            name,
            tenant: self.engine.scope.tenant(),
            workflow: snapshot.workflow(),
            purpose: Purpose::Resume,
        };
        let claims = Claims {
            issued_at: now,
            expires_at: now.plus_ms(sealed.ttl_ms),
            latest: None,
            created_at: snapshot.created_at(),
            created_by: self.engine.actor_id(),
            is_compressed: false,
        };
        let state = snapshot.encode(inner.limits()).map_err(EngineError::from)?;
        let token = token::seal(&self.shared.ring, bound, claims, &state, sealed.compresses, inner.limits());
        Ok(token.map_err(EngineError::from)?)
    }

    fn state_of(&self, snapshot: &Snapshot) -> Result<Bytes, EngineError> {
        Ok(snapshot.encode(self.engine.inner.limits())?.into())
    }
}

/// The effects of storing a flow.
pub(crate) struct Put {
    is_written: bool,
    queued: Option<OutboxMessage>,
}

/// A message to be sent.
enum OutboxMessage {
    /// The caller must send it: it is stored nowhere.
    Sealed(Box<QueuedMessage>),
    /// It is stored with its handle until it is sent.
    StoredAnswer,
}

/// The record under a request's idempotency key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StoredAnswer {
    /// The answer to the request.
    Answer(Box<Answer>),
    /// A durable run has accepted the request. Its next link has this token.
    Link { run: RunId, token: String },
    /// An answer link was created.
    Created(Box<AnswerLink>),
}

impl Flows {
    /// Builds the record of an answer. It is sealed, because it contains the next token.
    pub(crate) fn kept(
        &self,
        asked: &IdempotentRequest,
        answer: &Answer,
        now: Timestamp,
    ) -> Result<KeyWrite, EngineError> {
        self.keep(asked, &StoredAnswer::Answer(Box::new(answer.clone())), answer.flow, now)
    }

    /// Builds the record of an answer about a flow or run. It is deleted with that run.
    pub(crate) fn keep(
        &self,
        asked: &IdempotentRequest,
        kept: &StoredAnswer,
        of: RunId,
        now: Timestamp,
    ) -> Result<KeyWrite, EngineError> {
        let text = serde_json::to_string(kept).expect("an answer is plain data");
        let sealed = self.shared.ring.seal(&text, "", &self.bound_answer(&asked.key));
        let until = now.plus_ms(self.engine.inner.options.idempotency_key_ttl_ms);
        Ok(KeyWrite {
            operation: FLOW.to_owned(),
            key: asked.key.clone(),
            request: asked.request,
            answer: sealed.into(),
            lifetime: KeyLifetime::UntilWithRun(until, of),
        })
    }

    fn bound_answer(&self, key: &str) -> Vec<u8> {
        format!("stepwell answer\0{}\0{key}", self.engine.scope.tenant()).into_bytes()
    }

    /// Returns the recorded answer of a request.
    pub(crate) async fn replayed(&self, key: &str, sealed: &[u8]) -> Result<Answer, FlowError> {
        let answer = match self.unsealed(key, sealed)? {
            StoredAnswer::Answer(answer) => *answer,
            StoredAnswer::Link { run, token } => self.answered_by_run(key, run, &token).await?,
            StoredAnswer::Created(_) => return Err(FlowError::KeyReused { key: key.to_owned() }),
        };
        Ok(Answer { is_replayed: true, ..answer })
    }

    /// Opens the record of a request.
    pub(crate) fn unsealed(&self, key: &str, sealed: &[u8]) -> Result<StoredAnswer, FlowError> {
        let bound = self.bound_answer(key);
        let opened =
            std::str::from_utf8(sealed).ok().and_then(|text| self.shared.ring.open(text, |_| Some(bound)));
        // The sealing key is revoked, so its content must not be disclosed any more.
        let opened = opened.ok_or(FlowError::Gone)?;
        serde_json::from_str(&opened).map_err(|error| {
            FlowError::Engine(EngineError::Invalid(format!(
                "the recorded answer of idempotency key `{key}` is unreadable: {error}"
            )))
        })
    }

    /// Maps a commit that was not applied to an answer or an error.
    async fn commit_failed(
        &self,
        failure: CommitFailure,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowCommitError> {
        match failure {
            CommitFailure::Moved => Err(FlowCommitError::Again),
            CommitFailure::Refused(refused) => self.refused(refused, asked).await,
            failure => Err(EngineError::from(failure).into()),
        }
    }

    pub(crate) async fn refused(
        &self,
        refused: Refused,
        asked: Option<&IdempotentRequest>,
    ) -> Result<Answer, FlowCommitError> {
        match (refused, asked) {
            (Refused::Done { operation, answer, .. }, Some(asked)) if operation == FLOW => {
                Ok(self.replayed(&asked.key, &answer).await?)
            }
            (Refused::KeyReused { operation, key }, _) if operation == FLOW => {
                Err(FlowError::KeyReused { key }.into())
            }
            (Refused::Done { operation, .. }, _) if operation == SEALED => Err(FlowError::Gone.into()),
            // Another single-use write was committed meanwhile. The next execution finds its result.
            (Refused::Done { .. }, _) => Err(FlowCommitError::Again),
            (Refused::Handle { actual: None, .. } | Refused::RunExists { .. }, _) => {
                Err(FlowError::Gone.into())
            }
            (Refused::Handle { .. } | Refused::Cell { error: CellError::Conflict { .. }, .. }, _) => {
                Err(FlowCommitError::Again)
            }
            (refused, _) => {
                let failure = Failure::new("refused", refused.to_string()).non_retryable();
                Err(FlowError::Failed(failure).into())
            }
        }
    }

    /// Sends the message of a sealed flow while the caller waits, because no row can keep it.
    async fn send_now(&self, queued: &QueuedMessage) -> Result<(), FlowError> {
        let outlet = self.outlet(&queued.outlet)?;
        let mut attempts = 0;
        loop {
            let Err(error) = outlet.send(queued.message.clone()).await else { return Ok(()) };
            attempts += 1;
            if error.is_final() || attempts >= SENDS_AT_ONCE {
                return Err(FlowError::NotSent { outlet: queued.outlet.clone(), why: error.to_string() });
            }
        }
    }
}

/// Returns the status of a flow at a pause or at its end.
fn status_of(snapshot: &Snapshot) -> Status {
    match snapshot.finished() {
        Some(RunEnd::Completed { .. }) => Status::Completed,
        Some(RunEnd::Cancelled) => Status::Cancelled,
        None => Status::Waiting,
    }
}

/// Returns `true` if there is nothing to write.
fn is_nothing(extras: &CommitExtras) -> bool {
    let CommitExtras {
        create,
        send,
        handles,
        cells,
        links,
        bindings,
        actor: _,
        documents,
        keys,
        audit,
        definitions: _,
        shadow_revision: _,
        shadows,
    } = extras;
    create.is_empty()
        && send.is_empty()
        && handles.is_empty()
        && cells.is_empty()
        && links.is_empty()
        && bindings.is_empty()
        && documents.is_empty()
        && keys.is_empty()
        && audit.is_empty()
        && shadows.is_empty()
}

/// Builds the record that a sealed token was used. A pause is answered once, whichever of its tokens is used.
fn consumed(flow: RunId, version: u64, until: Timestamp) -> KeyWrite {
    KeyWrite { key: format!("{flow}:{version}"), ..left(flow, until) }
}

/// Builds the record that a flow is no longer sealed, so that it gets a row only once.
fn left(flow: RunId, until: Timestamp) -> KeyWrite {
    KeyWrite {
        operation: SEALED.to_owned(),
        key: flow.to_string(),
        request: [0; 32],
        answer: Bytes::new(),
        lifetime: KeyLifetime::Until(until),
    }
}

/// Builds the queries for both records of [`consumed`] and [`left`].
pub(crate) fn consumed_queries(flow: RunId, version: u64, now: Timestamp) -> [RecordQuery; 2] {
    [format!("{flow}:{version}"), flow.to_string()].map(|key| RecordQuery::Key {
        operation: SEALED.to_owned(),
        key,
        now,
    })
}

/// Builds the message for a flow that waits.
pub(crate) fn message_of(
    tenant: TenantId,
    outgoing: &Outgoing,
    answer: &Answer,
    token: String,
    expires_at: Option<Timestamp>,
) -> Message {
    let pause = answer.waits.first();
    let may = |name: &&Name| outgoing.outcomes.is_empty() || outgoing.outcomes.contains(name);
    let outcomes = pause.into_iter().flat_map(|pause| &pause.outcomes).filter(may).cloned().collect();
    let activation = pause.map_or(0, |pause| pause.activation);
    Message {
        id: format!("{}-{activation}", answer.flow),
        tenant,
        flow: answer.flow,
        workflow: answer.workflow.clone(),
        place: pause.map_or_else(|| Name::from(""), |pause| pause.place.clone()),
        outcomes,
        to: outgoing.to.clone(),
        template: outgoing.template.clone(),
        data: outgoing.data.clone(),
        token,
        expires_at,
    }
}
