//! Applies the outcome of an action: decides on it and commits it, on the newest state of the run.

use std::sync::Arc;

use serde_json::json;
use stepwell_core::dispatch::{INTERRUPTED, RetryRequest};
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, ActionResult, Cause, Change, DecideError, Decision, Failure, Input, Rejected, RunId,
    Snapshot, Timestamp, dispatch,
};
use stepwell_store::{
    AuditRow, CellError, CellWrite, KeyWrite, NewRun, Parent, Refused, StoreError, TenantScope,
};

use crate::answering::{self, Accepted, SIGNAL, STARTED, run_actor};
use crate::commit_cycle::{CommitFailure, CommittedBy, CycleResult, MAX_ATTEMPTS};
use crate::cx::Staged;
use crate::data::changes::WRITE;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::flow::sent_mark;
use crate::inbox::MessageBody;
use crate::ledger::Stopped;
use crate::loaded_run::{CommitExtras, LoadedRun, PendingCommit};
use crate::predictions::number;
use crate::run_driver::{ActionOutcome, DriverStep, RunDriver};
use crate::start::{OWN_START, START};

/// The reason why a result cannot be applied.
pub(crate) enum InvalidOutcome {
    /// The result can never be applied; the action counts as failed.
    Failed(Failure),
    /// An operation that the action staged cannot be executed.
    Refused(Refused),
    /// The store failed or is unavailable.
    Store(StoreError),
}

impl From<Failure> for InvalidOutcome {
    fn from(failure: Failure) -> Self {
        InvalidOutcome::Failed(failure)
    }
}

impl From<StoreError> for InvalidOutcome {
    fn from(error: StoreError) -> Self {
        InvalidOutcome::Store(error)
    }
}

impl RunDriver {
    /// Decides on an action's result and commits it. If the run has changed meanwhile, decides again on the newer
    /// state. Discards the result if the transition is no longer current there.
    pub(crate) async fn apply_outcome(&mut self, outcome: ActionOutcome) -> DriverStep {
        self.arrived(outcome.call.activation);
        let pinned = self.loaded_run.definition().hash();
        let mut failure = outcome.result.as_ref().err().cloned();
        for attempt in 0..MAX_ATTEMPTS {
            if self.loaded_run.definition().hash() != pinned {
                return DriverStep::Plan;
            }
            let next = match self.applier().commit_for(&outcome, failure.as_ref()).await {
                Ok(Some(next)) => next,
                Ok(None) => return DriverStep::Plan,
                Err(InvalidOutcome::Failed(invalid)) => {
                    failure = Some(invalid);
                    continue;
                }
                Err(InvalidOutcome::Refused(refused)) => {
                    if self.should_rerun(&outcome, &refused).await {
                        return DriverStep::Plan;
                    }
                    failure = Some(refusal(&refused));
                    continue;
                }
                Err(InvalidOutcome::Store(error)) => {
                    match self.commit_failed(CommitFailure::Store(error)).await {
                        DriverStep::Plan => continue,
                        other => return other,
                    }
                }
            };
            let staged = outcome.result.as_ref().ok().filter(|_| failure.is_none());
            let is_predicted = staged.is_some_and(|(_, staged)| next.extras.cells != staged.cells);
            let by = CommittedBy::Owner;
            match self.inner.commit_cycle(self.scope, &self.loaded_run, next, &self.in_flight(), by).await {
                Ok(cycle) => return self.adopt_outcome(&outcome, cycle),
                // Another caller has used the idempotency key meanwhile. Discard this attempt; the next one finds the
                // recorded result.
                Err(CommitFailure::Refused(Refused::Done { operation, .. }))
                    if !self.is_at_most_once(&outcome.call)
                        && (operation == START || operation == OWN_START || operation == WRITE) =>
                {
                    return DriverStep::Plan;
                }
                // A predicted result no longer matches the stored values: predict again.
                Err(CommitFailure::Refused(Refused::Cell { error: CellError::Conflict { .. }, .. }))
                    if is_predicted =>
                {
                    self.inner.pause_after(attempt).await;
                }
                // The update was computed from an outdated value. Discard this attempt; the next one reads the value
                // again.
                Err(CommitFailure::Refused(refused)) if self.should_rerun(&outcome, &refused).await => {
                    return DriverStep::Plan;
                }
                Err(CommitFailure::Refused(refused)) if failure.is_none() => {
                    failure = Some(refusal(&refused));
                }
                Err(CommitFailure::Undecidable(error)) if failure.is_none() => {
                    failure = Some(invalid(&error));
                }
                Err(failure) => match self.commit_failed(failure).await {
                    DriverStep::Plan => {}
                    other => return other,
                },
            }
        }
        tracing::warn!(run = %self.loaded_run.run(), "an action's result was not committed: the run changed every time");
        DriverStep::Plan
    }

    /// Adopts the result of the commit that has stored an outcome.
    fn adopt_outcome(&mut self, outcome: &ActionOutcome, cycle: CycleResult) -> DriverStep {
        self.begun.remove(&(outcome.call.activation, outcome.call.transition.clone()));
        self.adopt(cycle)
    }

    fn applier(&self) -> OutcomeApplier<'_> {
        OutcomeApplier { inner: &self.inner, scope: self.scope, loaded_run: &self.loaded_run, before: None }
    }

    /// Returns true, after a pause, if an update lost to a concurrent write and the action may run again.
    async fn should_rerun(&mut self, outcome: &ActionOutcome, refused: &Refused) -> bool {
        let Ok((_, staged)) = &outcome.result else { return false };
        let Refused::Cell { operation, error: CellError::Conflict { .. }, .. } = refused else {
            return false;
        };
        let Some(most) = staged.updates.get(operation) else { return false };
        if self.is_at_most_once(&outcome.call) {
            return false;
        }
        let lost = self.lost_updates.entry(outcome.call.activation).or_default();
        *lost += 1;
        let attempt = *lost;
        if attempt >= *most {
            self.lost_updates.remove(&outcome.call.activation);
            return false;
        }
        self.inner.pause_after(attempt).await;
        true
    }
}

/// Applies an action's result to one state of the run.
#[derive(Clone, Copy)]
pub(crate) struct OutcomeApplier<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) scope: TenantScope,
    pub(crate) loaded_run: &'a LoadedRun,
    /// Writes of earlier steps that share the commit; `None` = the result has a separate commit.
    pub(crate) before: Option<&'a [CellWrite]>,
}

impl OutcomeApplier<'_> {
    /// Returns the commit for an outcome: that of the failure if there is one, else that of the result.
    async fn commit_for(
        self,
        outcome: &ActionOutcome,
        failure: Option<&Failure>,
    ) -> Result<Option<PendingCommit>, InvalidOutcome> {
        match failure {
            None => self.succeeded(outcome).await,
            Some(failure) => self.failed(outcome, failure).map_err(InvalidOutcome::Failed),
        }
    }

    /// Builds the commit of a result. `None` means that the transition is no longer current. Fails if the result
    /// cannot be applied.
    pub(crate) async fn succeeded(
        self,
        outcome: &ActionOutcome,
    ) -> Result<Option<PendingCommit>, InvalidOutcome> {
        let Ok((output, staged)) = &outcome.result else { return Ok(None) };
        let has_moved = outcome.cx.snapshot().version() != self.loaded_run.snapshot.version();
        let (context, session) = outcome.cx.patches(staged, has_moved);
        let result = ActionResult {
            context,
            whole: staged.context.clone().filter(|_| !has_moved),
            session,
            locals: staged.locals.clone(),
            output: output.clone(),
            children: staged.children.len() as u32,
            duration_us: outcome.duration_us,
        };
        let mut event = Input::ActionDone { call: outcome.call.clone(), outcome: result };
        let mut predicted = None;
        if self.is_predicted(&event, staged, outcome) {
            let before = self.before.unwrap_or_default();
            let (output, cells) = self.inner.predict(self.scope, output, staged, before).await?;
            if let Input::ActionDone { outcome: result, .. } = &mut event {
                result.output = output;
            }
            predicted = Some(cells);
        }
        self.mark_sent(&mut event, staged);
        let change = match self.decide(&event) {
            Ok(Decision::Change(change)) => change,
            Ok(_) | Err(Rejected::Refused(_)) => return Ok(None),
            Err(Rejected::Undecidable(error)) => {
                return Err(invalid(&error).into());
            }
        };
        let mut extras = self.extras(staged, outcome, &change).await?;
        match predicted {
            Some(cells) => extras.cells = cells,
            None => extras.bindings = self.bindings(staged, outcome),
        }
        let stopped = change.stopped.clone();
        let mut next = PendingCommit::change(change, self.loaded_run).consuming(outcome.message);
        next.ledger.stopped = stop_reason(self.loaded_run, stopped, None, self.inner.host.now());
        next.extras = extras;
        self.record_sender(outcome, &mut next);
        Ok(Some(next))
    }

    /// Adds the sender of the signal that triggered the action to the history entry. If the signal answered a wait,
    /// records that answer: it counts only now, because a started action may be dismissed.
    fn record_sender(&self, outcome: &ActionOutcome, next: &mut PendingCommit) {
        let Cause::Signal(signal) = &outcome.call.cause else { return };
        let activation = outcome.call.activation;
        let by = self.loaded_run.sender_of(activation, outcome.message);
        let wait = self.loaded_run.ledger.of(activation).and_then(|attempts| attempts.answers);
        let (payload, at) = (&outcome.call.payload, self.inner.host.now());
        Accepted { signal, payload, wait, by, at }.record_in(self.loaded_run, next);
    }

    /// Marks the wait that the transition opens as sent, if the action has sent an answer link to it.
    fn mark_sent(&self, event: &mut Input, staged: &Staged) {
        if staged.outgoing.is_none() || self.before.is_some() {
            return;
        }
        let Ok(Decision::Change(change)) = self.decide(event) else { return };
        if let (Some((key, mark)), Input::ActionDone { outcome, .. }) =
            (sent_mark(self.loaded_run, &change.snapshot), event)
        {
            outcome.locals.insert(key.to_owned(), mark);
        }
    }

    /// Builds the commit of a failed attempt.
    pub(crate) fn failed(
        self,
        outcome: &ActionOutcome,
        failure: &Failure,
    ) -> Result<Option<PendingCommit>, Failure> {
        let now = self.inner.host.now();
        let began = Timestamp::from_micros(
            now.micros().saturating_sub(i64::try_from(outcome.duration_us).unwrap_or(i64::MAX)),
        );
        Ok(failed_since(self.loaded_run, &outcome.call, outcome.message, failure, (Some(began), now)))
    }

    pub(crate) fn decide(&self, event: &Input) -> Result<Decision, Rejected> {
        let answers = stepwell_core::Answers::none();
        dispatch(
            self.loaded_run.definition(),
            &self.loaded_run.snapshot,
            event,
            &answers,
            self.inner.host.now(),
        )
    }

    /// Builds the extras of the commit from the operations that the action has staged.
    async fn extras(
        self,
        staged: &Staged,
        outcome: &ActionOutcome,
        change: &Change,
    ) -> Result<CommitExtras, InvalidOutcome> {
        let expires = self.inner.host.now().plus_ms(self.inner.options.signal_ttl_ms);
        let publisher = self.loaded_run.workflow.publisher();
        let mut extras = CommitExtras {
            cells: staged.cells.clone(),
            links: staged.links.clone(),
            actor: publisher.map(|actor| actor.id.clone()),
            keys: staged.keys.iter().map(|(key, ops)| with_numbers(key, ops, staged)).collect(),
            documents: staged.documents.clone(),
            send: staged.messages.clone(),
            shadows: staged.shadows.clone(),
            ..CommitExtras::default()
        };
        for (run, name, payload) in &staged.signals {
            self.inner.refuse_engine_run(self.scope, *run).await.map_err(cannot_signal)?;
            let by = run_actor(self.loaded_run.run());
            extras.audit.push(answering::row(SIGNAL, *run, by.clone(), &json!({"signal": name})));
            let body = MessageBody::Signal { name: name.clone(), payload: payload.clone(), by: Some(by) };
            let mut send = body.to(*run);
            send.message.expires_at = Some(expires);
            extras.send.push(send);
        }
        let waits = waits_for_children(&self.loaded_run.snapshot, &change.snapshot);
        let by = run_actor(self.loaded_run.run());
        for (number, (start, id)) in staged.children.iter().zip(&outcome.children).enumerate() {
            let parent = Parent { run: self.loaded_run.run(), activation: waits, child: number as u32 };
            let id = start.id.unwrap_or(*id);
            let start = start.clone().by_default(&by);
            let fresh = self.inner.fresh(self.scope, &start, id, Some((parent, self.loaded_run.root))).await;
            fresh.map_err(cannot_start)?.add_to_commit(&mut extras);
        }
        for (id, start) in &staged.starts {
            let start = start.clone().by_default(&by);
            extras.keys.extend(start.key_for(*id));
            let fresh = self.inner.fresh(self.scope, &start, *id, None).await;
            fresh.map_err(cannot_start)?.add_to_commit(&mut extras);
        }
        extras.audit.extend(started_audit(self.loaded_run.run(), staged, &extras.create, by));
        extras.definitions.dedup_by(|a, b| Arc::ptr_eq(a, b));
        // A flow sends the link later, when it pauses and its state is stored.
        if let (Some(outgoing), None) = (&staged.outgoing, self.before) {
            let flows = self.inner.flows.get().ok_or_else(|| {
                Failure::new("cannotSend", "no outlets are registered: build the engine's flows")
                    .non_retryable()
            })?;
            let now = self.inner.host.now();
            let sent = flows.sent_out(self.scope, outgoing, self.loaded_run, &change.snapshot, now)?;
            extras.handles.push(sent);
        }
        Ok(extras)
    }
}

/// Maximum number of run ids in the audit row about the runs that one commit starts.
const NAMED_RUNS: usize = 20;

/// Returns the audit row about the runs that a commit starts: one row, however many they are.
fn started_audit(run: RunId, staged: &Staged, created: &[NewRun], by: String) -> Option<AuditRow> {
    let first = created.first()?;
    let actor = staged.starts.first().and_then(|(_, start)| start.by.clone()).unwrap_or(by);
    let named: Vec<_> = created.iter().take(NAMED_RUNS).map(|new| new.run).collect();
    let detail = json!({"workflow": first.workflow, "started": created.len(), "runs": named});
    Some(answering::row(STARTED, run, actor, &detail))
}

/// Builds the commit of a failed attempt; `None` means that the transition is no longer current.
pub(crate) fn failed(
    loaded_run: &LoadedRun,
    call: &ActionCall,
    message: Option<u64>,
    failure: &Failure,
    now: Timestamp,
) -> Option<PendingCommit> {
    failed_since(loaded_run, call, message, failure, (None, now))
}

/// Builds the commit of an attempt that a crash interrupted and that must not be made again.
pub(crate) fn interrupted(
    loaded_run: &LoadedRun,
    call: &ActionCall,
    message: Option<u64>,
    why: &str,
    now: Timestamp,
) -> Option<PendingCommit> {
    let text = format!("{why} after the call of `{}` may have begun; it is made at most once", call.action);
    let mut next = failed(loaded_run, call, message, &Failure::new(INTERRUPTED, text), now)?;
    // The interruption is on record as a failed attempt.
    next.ledger.crashes.remove(&call.activation);
    Some(next)
}

/// Builds the commit of a failed attempt that began at this time, if it is known.
fn failed_since(
    loaded_run: &LoadedRun,
    call: &ActionCall,
    message: Option<u64>,
    failure: &Failure,
    (began, now): (Option<Timestamp>, Timestamp),
) -> Option<PendingCommit> {
    let attempts =
        loaded_run.ledger.of(call.activation).filter(|attempts| attempts.transition == call.transition);
    let retries = attempts.map_or(0, |attempts| attempts.retries);
    let lease = attempts.and_then(|attempts| attempts.lease()).map(|lease| lease.since);
    let first = attempts.and_then(|attempts| attempts.first).or(lease).or(began);
    let first = first.filter(|_| loaded_run.definition().has_retry_budget(&call.transition));
    let event = Input::ActionFailed { call: call.clone(), failure: failure.clone(), retries, first };
    let answers = stepwell_core::Answers::none();
    let decision = match dispatch(loaded_run.definition(), &loaded_run.snapshot, &event, &answers, now) {
        Ok(decision) => decision,
        Err(Rejected::Refused(_)) => return None,
        Err(Rejected::Undecidable(error)) => Decision::Stop(Failure::new("undecidable", error.to_string())),
    };
    let mut ledger = loaded_run.ledger.clone();
    let attempts = ledger.failed(&RetryRequest::of(call), message, now, failure.clone());
    attempts.manual = false;
    attempts.next = None;
    attempts.first = first;
    match decision {
        Decision::Change(change) => {
            let stopped = change.stopped.clone();
            ledger.prune(&change.snapshot);
            ledger.stopped = stop_reason(loaded_run, stopped, None, now);
            Some(PendingCommit { ledger, ..PendingCommit::change(change, loaded_run) }.consuming(message))
        }
        Decision::Retry { retry, at } => {
            attempts.retries = retry;
            attempts.next = Some(at);
            Some(PendingCommit::note(ledger))
        }
        Decision::Stop(error) => {
            ledger.stopped = stop_reason(loaded_run, Some(error), Some(call.activation), now);
            Some(PendingCommit::note(ledger))
        }
        Decision::Act(_) => None,
    }
}

/// Returns the error that stops the run; an existing one takes precedence.
fn stop_reason(
    loaded_run: &LoadedRun,
    error: Option<Failure>,
    activation: Option<ActivationId>,
    at: Timestamp,
) -> Option<Stopped> {
    let known = loaded_run.ledger.stopped.clone();
    known.or_else(|| error.map(|error| Stopped { at, error, activation }))
}

/// Adds to a key's record the indexes of the commit's results that belong to the changes made under the key.
fn with_numbers(key: &KeyWrite, ops: &[crate::cx::Op], staged: &Staged) -> KeyWrite {
    let numbers: Vec<_> = ops.iter().map(|op| number(*op, staged)).collect();
    let answer = serde_json::to_vec(&numbers).expect("numbers are plain data").into();
    KeyWrite { answer, ..key.clone() }
}

/// Returns the failure of an action whose result cannot be applied. A failure raised by the workflow keeps its code.
pub(crate) fn invalid(error: &DecideError) -> Failure {
    match error {
        DecideError::Raised(failure) => failure.clone(),
        other => Failure::new("invalidResult", other.to_string()).non_retryable(),
    }
}

fn cannot_signal(error: EngineError) -> InvalidOutcome {
    match error {
        EngineError::Store(error) => InvalidOutcome::Store(error),
        other => Failure::new("cannotSignal", other.to_string()).non_retryable().into(),
    }
}

fn cannot_start(error: EngineError) -> InvalidOutcome {
    match error {
        // The workflow name could not be resolved because the store failed: the action is not at fault.
        EngineError::Store(error) => InvalidOutcome::Store(error),
        other => Failure::new("cannotStart", other.to_string()).non_retryable().into(),
    }
}

/// Returns the activation that waits for the children that a change starts; 0 = none.
fn waits_for_children(before: &Snapshot, after: &Snapshot) -> ActivationId {
    let new = after.activations().iter().filter(|activation| before.activation(activation.id).is_none());
    new.filter(|activation| activation.children.is_some()).map(|activation| activation.id).next().unwrap_or(0)
}

/// Returns the failure of an action whose commit was refused. Only a full inbox and a missing target can be retried.
pub(crate) fn refusal(refused: &Refused) -> Failure {
    let code = match refused {
        Refused::Cell { error: CellError::Conflict { .. }, .. } => "conflict",
        Refused::Cell { .. } | Refused::Link { .. } | Refused::Document { .. } | Refused::Nul { .. } => {
            "invalid"
        }
        _ => "refused",
    };
    let failure = Failure::new(code, refused.to_string());
    match refused {
        Refused::InboxFull { .. } | Refused::NoTarget { .. } => failure,
        _ => failure.non_retryable(),
    }
}
