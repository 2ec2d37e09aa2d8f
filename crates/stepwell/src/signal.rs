//! Signals: a signal moves the run, starts an action, is buffered for later, or is refused.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::dispatch::RetryRequest;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, Change, Decision, Definition, Failure, Input, Name, Refusal, Rejected, RunId, Timestamp,
    dispatch,
};
use stepwell_store::{KeyLifetime, KeyWrite, Record, RecordQuery, Recorded, Refused, TenantScope};

use crate::actor::Actor;
use crate::answering::{Accepted, Sender, failed_wait_audit, is_restricted, may_answer, signal_audit};
use crate::bulk::BulkPart;
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::engine::{Inner, Run};
use crate::error::EngineError;
use crate::idempotent::Idempotent;
use crate::inbox::MessageBody;
use crate::ledger::{Attempts, Stopped};
use crate::loaded_run::{CommitExtras, LoadedRun, PendingCommit, activations_moved_by};
use crate::registry::refuse_own;
use crate::start::{self, START, Start, Started};

/// The reason for refusing a signal that the run could otherwise consume.
const EARLIER_INPUT_FIRST: &str =
    "an earlier input is still being processed, and this signal must not be buffered";

/// Name under which the failure of a wait is recorded as its answer.
pub(crate) const FAIL: &str = "__fail";

/// A signal to a run.
#[derive(Debug, Clone)]
pub struct Signal {
    pub(crate) name: Name,
    payload: Result<Value, String>,
    id: Option<String>,
    strict: bool,
    ttl_ms: Option<u64>,
    /// Sent by the engine to one of its own runs.
    own: bool,
    /// The wait that the signal answers.
    wait: Option<ActivationId>,
    sender: Sender,
    /// The reason for answering in place of the answerers.
    reason: Option<String>,
    /// The error with which the wait fails, instead of being answered.
    failure: Option<Failure>,
    /// The bulk command that the signal is a part of. Its record takes the place of the id.
    bulk: Option<BulkPart>,
}

/// The first answer to a wait, as shown to a caller who answers later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAnswer {
    /// Name of the signal; `__fail` if the wait has failed.
    pub signal: Name,
    /// Id of the sender, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Time of the answer.
    pub at: Timestamp,
}

impl FirstAnswer {
    /// Returns what happened to the wait, as part of a sentence.
    pub(crate) fn verb(&self) -> String {
        match self.signal.as_str() {
            FAIL => "has already failed".to_owned(),
            signal => format!("was already answered with `{signal}`"),
        }
    }
}

/// The outcome of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signalled {
    /// It moved the run, or started the action that will move it.
    Consumed,
    /// No transition consumes it now: it is buffered, and offered again whenever the run is idle.
    Buffered,
}

impl Signal {
    /// Creates a signal without a payload.
    pub fn new(name: impl Into<Name>) -> Self {
        Signal {
            name: name.into(),
            payload: Ok(Value::Null),
            id: None,
            strict: false,
            ttl_ms: None,
            own: false,
            wait: None,
            sender: Sender::Program,
            reason: None,
            failure: None,
            bulk: None,
        }
    }

    /// Creates the input that fails a wait.
    pub(crate) fn failing(wait: ActivationId, failure: Failure) -> Self {
        let payload = serde_json::to_value(&failure).map_err(|error| error.to_string());
        let (wait, failure) = (Some(wait), Some(failure));
        Signal { payload, wait, failure, ..Signal::new(FAIL) }
    }

    /// Creates a signal from the engine to one of its own runs.
    pub(crate) fn own(name: &'static str) -> Self {
        Signal { own: true, ..Signal::new(name) }
    }

    /// Sets the payload. Default: null.
    #[must_use]
    pub fn with<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.payload = serde_json::to_value(payload).map_err(|error| error.to_string());
        self
    }

    /// Sets the id of the signal. For the life of the run, a repeated signal with this id returns the first outcome.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Refuses the signal, instead of buffering it, if no transition consumes it now.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Sets the time to live in the buffer if no transition consumes the signal now.
    #[must_use]
    pub fn ttl(mut self, time: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Answers only this wait, which is identified by its activation. If the wait is no longer open, the signal is
    /// refused, and the error names the first answer. It is never buffered for a later wait.
    #[must_use]
    pub fn answering(mut self, wait: ActivationId) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the reason for answering a wait in place of its answerers or of the person who has claimed it. Only callers
    /// with `workflow:admin` may do that, and the audit trail records the reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    pub(crate) fn by(mut self, actor: Option<&Arc<Actor>>) -> Self {
        self.sender = Sender::of(actor, self.reason.clone(), self.bulk.as_ref().map(BulkPart::id));
        self
    }

    /// Makes the signal a part of a bulk command.
    pub(crate) fn part_of(self, bulk: BulkPart) -> Self {
        Signal { bulk: Some(bulk), ..self }
    }

    /// Returns the body of the message that buffers the signal.
    pub(crate) fn message(&self, payload: &Value) -> MessageBody {
        MessageBody::Signal { name: self.name.clone(), payload: payload.clone(), by: self.sender.id() }
    }

    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns true if the signal answers one named wait.
    pub(crate) fn is_answer(&self) -> bool {
        self.wait.is_some()
    }

    /// Returns true if the signal must not be buffered.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict || self.wait.is_some()
    }

    pub(crate) fn event(&self, payload: &Value) -> Input {
        if let (Some(activation), Some(failure)) = (self.wait, &self.failure) {
            return Input::WaitFailed { activation, failure: failure.clone() };
        }
        let (signal, payload) = (self.name.clone(), payload.clone());
        match self.wait {
            Some(activation) => Input::Answered { activation, signal, payload },
            None => Input::Signalled { signal, payload },
        }
    }

    /// Returns the record of the answer to the wait that the signal names.
    fn answer(&self, run: RunId, payload: &Value, at: Timestamp) -> Option<KeyWrite> {
        let by = self.sender.id();
        let accepted = Accepted { signal: &self.name, payload, wait: self.wait, by: by.as_deref(), at };
        Some(accepted.key(run, self.wait?))
    }

    pub(crate) fn payload(&self) -> Result<Value, EngineError> {
        self.payload.clone().map_err(|why| {
            EngineError::Invalid(format!(
                "the payload of `{}` cannot be serialized as JSON: {why}",
                self.name
            ))
        })
    }

    /// Returns the payload. Fails if the signal contradicts itself.
    pub(crate) fn checked_payload(&self) -> Result<Value, EngineError> {
        if self.wait.is_some() && self.ttl_ms.is_some() {
            let why = "an answer to a wait is never buffered: remove its time to live";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        self.payload()
    }

    pub(crate) fn key(&self, run: RunId, payload: &Value, value: Signalled) -> Option<KeyWrite> {
        let answer = serde_json::to_vec(&value).map(Bytes::from).expect("a word is plain data");
        if let Some(bulk) = &self.bulk {
            return Some(bulk.record(run, answer));
        }
        let id = self.id.as_ref()?;
        let request = json!([self.name, payload]).to_string();
        Some(KeyWrite {
            operation: operation(run),
            key: id.clone(),
            request: Sha256::digest(request.as_bytes()).into(),
            answer,
            lifetime: KeyLifetime::WithRun(run),
        })
    }
}

/// A signal or an answer to decide on.
pub(crate) struct AskedSignal<'a> {
    /// The input of the decision: [`Input::Signalled`], [`Input::Answered`] or [`Input::WaitFailed`].
    pub(crate) event: &'a Input,
    pub(crate) signal: &'a Name,
    pub(crate) payload: &'a Value,
    /// The signal must not be buffered.
    pub(crate) is_strict: bool,
    pub(crate) sender: &'a Sender,
}

impl<'a> AskedSignal<'a> {
    pub(crate) fn new(event: &'a Input, signal: &'a Signal, payload: &'a Value) -> Self {
        let (is_strict, sender) = (signal.is_strict(), &signal.sender);
        AskedSignal { event, signal: &signal.name, payload, is_strict, sender }
    }

    /// Returns the name, the payload and the wait of the signal.
    fn parts(&self) -> (&Name, &Value, Option<ActivationId>) {
        let wait = match self.event {
            Input::Answered { activation, .. } | Input::WaitFailed { activation, .. } => Some(*activation),
            _ => None,
        };
        (self.signal, self.payload, wait)
    }

    /// Returns true if the signal must not be buffered. A caller's signal for a wait with answerers never is.
    fn is_strict_for(&self, definition: &Definition) -> bool {
        let is_caller = *self.sender != Sender::Program;
        self.is_strict || (is_caller && is_restricted(definition, self.parts().0))
    }

    /// Returns the commit of the change that the signal causes, with its sender and the answer.
    fn changing(&self, change: Box<Change>, loaded_run: &LoadedRun, now: Timestamp) -> PendingCommit {
        let (signal, payload, wait) = self.parts();
        let stopped = change.stopped.clone();
        let audit = match self.event {
            Input::WaitFailed { activation, failure } => {
                failed_wait_audit(loaded_run, *activation, failure, self.sender)
            }
            _ => signal_audit(loaded_run, Some(&change), signal, self.sender),
        };
        let mut next = PendingCommit::change(change, loaded_run);
        next.ledger.stopped = stopped.map(|error| Stopped { at: now, error, activation: None });
        let by = self.sender.id();
        Accepted { signal, payload, wait, by: by.as_deref(), at: now }.record_in(loaded_run, &mut next);
        next.extras.audit.extend(audit);
        next
    }

    /// Returns the commit of a failed wait that nothing handles: the run stops with the error. The wait stays open, so
    /// that it can be answered after an operator has retried the run.
    fn stopping(&self, error: &Failure, loaded_run: &LoadedRun, now: Timestamp) -> PendingCommit {
        let (_, _, wait) = self.parts();
        let mut ledger = loaded_run.ledger.clone();
        ledger.stopped = Some(Stopped { at: now, error: error.clone(), activation: None });
        let mut next = PendingCommit::note(ledger);
        next.extras
            .audit
            .extend(wait.and_then(|wait| failed_wait_audit(loaded_run, wait, error, self.sender)));
        next
    }

    /// Returns the commit that starts the action of the transition that the signal fires.
    fn starting(&self, call: &ActionCall, loaded_run: &LoadedRun, now: Timestamp) -> PendingCommit {
        let (signal, payload, wait) = self.parts();
        let mut ledger = loaded_run.ledger.clone();
        ledger.attempts.retain(|attempts| attempts.activation != call.activation);
        let first = Attempts {
            next: Some(now),
            manual: true,
            by: self.sender.id(),
            answers: wait,
            ..Attempts::new(&RetryRequest::of(call), None)
        };
        ledger.attempts.push(first.with_payload(payload));
        let mut next = PendingCommit::note(ledger);
        next.extras.audit.extend(signal_audit(loaded_run, None, signal, self.sender));
        next
    }
}

/// Returns the refusal of an answer to a wait, which is never buffered.
pub(crate) fn earlier_input_first(loaded_run: &LoadedRun) -> EngineError {
    let (run, status) = (loaded_run.run(), loaded_run.head.status);
    EngineError::WrongStatus { run, status, why: EARLIER_INPUT_FIRST.to_owned() }
}

/// Returns the operation under which the ids of a run's signals are recorded.
fn operation(run: RunId) -> String {
    format!("signal:{run}")
}

impl Inner {
    pub(crate) async fn signal(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
    ) -> Result<Idempotent<Signalled>, EngineError> {
        self.signalled(scope, run, signal).await.inspect_err(|_| self.observe_refused_signal())
    }

    async fn signalled(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
    ) -> Result<Idempotent<Signalled>, EngineError> {
        let payload = signal.checked_payload()?;
        let key = signal.key(run, &payload, Signalled::Consumed);
        for _ in 0..MAX_ATTEMPTS {
            // Cached state is safe only for commits, which compare revisions. Reload before any other outcome.
            let left = self.recent.take(scope.run(run));
            let is_left = left.is_some();
            let loaded_run = match left {
                Some(loaded_run) => loaded_run,
                None => self.load(scope, run).await?,
            };
            if !signal.own {
                refuse_own(loaded_run.definition().name(), run)?;
            }
            let event = signal.event(&payload);
            let asked = AskedSignal::new(&event, signal, &payload);
            let value = match self.decide_signal(&loaded_run, &asked).await {
                Ok(Some(next)) => self.take(scope, &loaded_run, next, signal, &payload).await,
                _ if is_left => continue,
                Ok(None) if signal.wait.is_some() => return Err(earlier_input_first(&loaded_run)),
                Ok(None) => self.buffer_signal(scope, &loaded_run, signal, &payload).await,
                Err(refused) => {
                    return self.resolve_refusal(scope, run, signal, &payload, key.as_ref(), refused).await;
                }
            };
            match value {
                Ok(value) => {
                    self.observe_signal(scope, &loaded_run, value);
                    return Ok(Idempotent::now(value));
                }
                Err(CommitFailure::Moved | CommitFailure::Refused(Refused::NoRun { .. })) => {}
                Err(CommitFailure::Refused(Refused::NoTarget { .. })) => return Err(Refusal::Terminal.into()),
                Err(failure) => {
                    return self
                        .resolve_refusal(scope, run, signal, &payload, key.as_ref(), failure.into())
                        .await;
                }
            }
        }
        Err(EngineError::Contended { run, attempts: MAX_ATTEMPTS })
    }

    /// Handles a refusal. The signal may have succeeded earlier under the same id, or the wait may already have an
    /// answer.
    pub(crate) async fn resolve_refusal(
        &self,
        scope: TenantScope,
        run: RunId,
        signal: &Signal,
        payload: &Value,
        key: Option<&KeyWrite>,
        refused: EngineError,
    ) -> Result<Idempotent<Signalled>, EngineError> {
        let done = self.or_recorded(scope, key, Err(refused)).await;
        let answer = signal.wait.zip(signal.answer(run, payload, self.host.now()));
        let (Err(refused), Some((wait, answer))) = (&done, answer) else { return done };
        let KeyWrite { operation, key, request, .. } = answer;
        let query = RecordQuery::Key { operation, key, now: self.host.now() };
        match self.store.records(scope, query).await?.items.pop() {
            Some(Record::Key(record)) if record.request == Some(request) => {
                Ok(Idempotent::before(Signalled::Consumed))
            }
            Some(Record::Key(Recorded { answer: Some(first), .. })) => {
                let unreadable =
                    |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
                let first = serde_json::from_slice(&first).map_err(unreadable)?;
                Err(EngineError::AlreadyAnswered { run, wait, first })
            }
            _ => Err(refused.clone()),
        }
    }

    /// Signals the run with this key, or starts it with the signal.
    pub(crate) async fn start_or_signal(
        self: &Arc<Self>,
        scope: TenantScope,
        start: &Start,
        signal: &Signal,
    ) -> Result<Started, EngineError> {
        let Some(key) = &start.key else {
            let why = "start_or_signal needs an idempotency key, which identifies the run";
            return Err(EngineError::Invalid(why.to_owned()));
        };
        if signal.wait.is_some() {
            let why = "an answer to a wait cannot start a run: signal the run that waits";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        for _ in 0..MAX_ATTEMPTS {
            let query =
                RecordQuery::Key { operation: START.to_owned(), key: key.clone(), now: self.host.now() };
            let known = self.store.records(scope, query).await?.items.into_iter().next();
            let Some(Record::Key(record)) = known else {
                match self.start(scope, start, Some(signal)).await {
                    Ok(started) if started.is_new => return Ok(started),
                    // Another caller has started it meanwhile: signal it.
                    Ok(_) => continue,
                    Err(error) => return Err(error),
                }
            };
            let run = start::run_of(record.answer.as_ref())?;
            self.signal(scope, run, signal).await?;
            return Ok(Started { run: Run::new(self.clone(), scope, run, false), is_new: false });
        }
        Err(EngineError::Invalid(format!("the run with key `{key}` vanished {MAX_ATTEMPTS} times: retry")))
    }

    /// Returns the commit that a signal or an answer leads to in the current state. `None` means that it must be
    /// buffered. A strict signal is refused instead.
    pub(crate) async fn decide_signal(
        &self,
        loaded_run: &LoadedRun,
        asked: &AskedSignal<'_>,
    ) -> Result<Option<PendingCommit>, EngineError> {
        let (event, sender) = (asked.event, asked.sender);
        let strict = asked.is_strict_for(loaded_run.definition());
        let answers = self.registry.answer(&loaded_run.workflow, &loaded_run.snapshot, event).await?;
        let now = self.host.now();
        let decided = dispatch(loaded_run.definition(), &loaded_run.snapshot, event, &answers, now);
        let stands =
            loaded_run.suspended || loaded_run.ledger.stopped.is_some() || loaded_run.is_pending(now);
        // Earlier messages and due timers are handled first.
        let unseen = loaded_run.head.owner.is_none() && loaded_run.head.wake.is_some_and(|wake| wake <= now);
        let waits = self.would_consume_buffered_signal(loaded_run).await?;
        let later = |why: &str| match strict {
            true => Err(EngineError::WrongStatus {
                run: loaded_run.run(),
                status: loaded_run.head.status,
                why: why.to_owned(),
            }),
            false => Ok(None),
        };
        let answered: Vec<ActivationId> = match &decided {
            Ok(Decision::Change(change)) => activations_moved_by(&loaded_run.snapshot, change).collect(),
            Ok(Decision::Act(call)) => vec![call.activation],
            Ok(Decision::Stop(_)) => asked.parts().2.into_iter().collect(),
            _ => Vec::new(),
        };
        answered.into_iter().try_for_each(|wait| may_answer(loaded_run, wait, sender, now))?;
        match decided {
            Ok(_) if stands => {
                later("it consumes no signals in this status, and this signal must not be buffered")
            }
            Ok(_) if unseen && !strict => Ok(None),
            Ok(_) if waits => later(EARLIER_INPUT_FIRST),
            Ok(Decision::Change(change))
                if activations_moved_by(&loaded_run.snapshot, &change)
                    .any(|id| loaded_run.is_engaged(id, now)) =>
            {
                later(EARLIER_INPUT_FIRST)
            }
            Ok(Decision::Change(change)) => Ok(Some(asked.changing(change, loaded_run, now))),
            // Only the owner knows whether the activation is free.
            Ok(Decision::Act(_)) if loaded_run.head.owner.is_some() => {
                later("a process is driving it, and this signal must not be buffered")
            }
            // The signal and its payload go into the ledger, not into the inbox first: one commit, not two.
            Ok(Decision::Act(call)) => {
                if loaded_run.ledger.of(call.activation).is_some_and(Attempts::is_under_way) {
                    return later(
                        "its transition is busy or waits for a retry, and this signal must not be buffered",
                    );
                }
                Ok(Some(asked.starting(&call, loaded_run, now)))
            }
            Ok(Decision::Stop(_)) if asked.parts().2.is_some_and(|wait| loaded_run.is_engaged(wait, now)) => {
                later(EARLIER_INPUT_FIRST)
            }
            Ok(Decision::Stop(error)) => Ok(Some(asked.stopping(&error, loaded_run, now))),
            Ok(Decision::Retry { .. }) => Ok(None),
            Err(Rejected::Refused(Refusal::NoActiveSource { .. })) if !strict => Ok(None),
            Err(rejected) => Err(rejected.into()),
        }
    }

    async fn take(
        self: &Arc<Self>,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        mut next: PendingCommit,
        signal: &Signal,
        payload: &Value,
    ) -> Result<Signalled, CommitFailure> {
        next.extras.keys.extend(signal.key(loaded_run.run(), payload, Signalled::Consumed));
        next.in_order = true;
        self.commit_and_drive(scope, loaded_run, next).await?;
        Ok(Signalled::Consumed)
    }

    /// Returns true if the run in its current state would consume a signal that is already buffered.
    async fn would_consume_buffered_signal(&self, loaded_run: &LoadedRun) -> Result<bool, EngineError> {
        for message in &loaded_run.inbox {
            let MessageBody::Signal { name, payload, .. } = &message.body else { continue };
            let event = Input::Signalled { signal: name.clone(), payload: payload.clone() };
            let answers = self.registry.answer(&loaded_run.workflow, &loaded_run.snapshot, &event).await?;
            if dispatch(loaded_run.definition(), &loaded_run.snapshot, &event, &answers, self.host.now())
                .is_ok()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Rejects a signal to one of the engine's own runs. A run that does not exist is not the engine's.
    pub(crate) async fn refuse_engine_run(&self, scope: TenantScope, run: RunId) -> Result<(), EngineError> {
        match self.store.load(scope, run).await? {
            Some(loaded) => refuse_own(&loaded.workflow, run),
            None => Ok(()),
        }
    }

    /// Returns the time to live of a buffered signal, in milliseconds.
    pub(crate) fn ttl_ms(&self, signal: &Signal) -> u64 {
        signal.ttl_ms.unwrap_or(self.options.signal_ttl_ms)
    }

    async fn buffer_signal(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        signal: &Signal,
        payload: &Value,
    ) -> Result<Signalled, CommitFailure> {
        let (now, run) = (self.host.now(), loaded_run.run());
        let until = now.plus_ms(self.ttl_ms(signal));
        let send = vec![signal.message(payload).buffered(run, until)];
        let mut extras = CommitExtras { send, ..CommitExtras::default() };
        extras.audit.extend(signal_audit(loaded_run, None, &signal.name, &signal.sender));
        extras.keys.extend(signal.key(run, payload, Signalled::Buffered));
        self.apply(scope, self.commit_of(scope, extras, now)).await?;
        self.notify_driver(scope.run(run));
        self.wake_at(Some(now));
        Ok(Signalled::Buffered)
    }
}
