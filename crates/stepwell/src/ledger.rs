//! The ledger: data stored with a run's snapshot, without a version. It contains attempts, errors, the deadline and
//! pending notices to relatives.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::dispatch::RetryRequest;
use stepwell_core::snapshot::{ActivationId, ActivationStatus, Snapshot};
use stepwell_core::{Cause, Failure, Name, RunId, Timestamp};
use stepwell_store::Status;
use stepwell_store::run::stored_error;

use crate::admission::Admission;
use crate::admission::gate::GateState;

/// Number of failed attempts of a run that stay readable.
pub const MAX_RECORDED_FAILURES: usize = 10;

/// The data stored with a run's snapshot, without a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// The fence of the run's owner, or of the next owner if no process crashes meanwhile. A higher fence on the row
    /// means that owners have crashed. This counts an attempt before it starts without a separate write.
    #[serde(skip_serializing_if = "is_one")]
    pub(crate) fence: u64,
    /// Transitions that have failed or that a signal has started, at most one per activation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempts>,
    /// Number of process crashes during a possible attempt, per activation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub crashes: BTreeMap<ActivationId, u32>,
    /// The last failed attempts, oldest first; at most [`MAX_RECORDED_FAILURES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailedAttempt>,
    /// The error that stopped the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// Time at which the run is cancelled if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The state of notices to the parent run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<ChildNote>,
    /// Parents in the tree of this cancelled run whose children have not been notified yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancelling: Vec<PendingCancellation>,
    /// Time at which each wait last fetched earlier events.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) events_fetched_at: BTreeMap<ActivationId, Timestamp>,
    /// Time of the last heartbeat of each wait. It restarts the timers of the snapshot, which stays unchanged.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) heartbeats: BTreeMap<ActivationId, Timestamp>,
    /// The waits that a person has claimed. A claim lapses by time alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) claims: BTreeMap<ActivationId, WaitClaim>,
    /// The admission by the limits of the workflow; `None` if the workflow has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Box<Admission>>,
    /// The state of a gate. Only runs of the engine's own workflow of gates have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<Box<GateState>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            fence: 1,
            attempts: Vec::new(),
            crashes: BTreeMap::new(),
            failures: Vec::new(),
            stopped: None,
            deadline: None,
            child: None,
            cancelling: Vec::new(),
            events_fetched_at: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            claims: BTreeMap::new(),
            admission: None,
            gate: None,
        }
    }
}

/// The claim of a person on a wait. Until it lapses, only that person may answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitClaim {
    /// Id of the actor.
    pub(crate) by: String,
    /// The user that the actor is, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    pub(crate) at: Timestamp,
    pub(crate) until: Timestamp,
}

/// The attempts of one transition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempts {
    pub activation: ActivationId,
    pub transition: Name,
    /// The cause that triggered the transition.
    pub cause: Cause,
    /// The message that triggered it. It stays in the inbox until the transition is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// The payload of the trigger. Null for an inbox message, which carries its own payload.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub payload: serde_json::Value,
    /// Id of the sender of the signal that triggered it. An inbox message carries its own sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The wait that the signal named, if it was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<ActivationId>,
    /// Number of failed attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
    /// Number of retries made or planned under the current policy. A manual retry resets it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// Start of the first attempt. Only recorded if the policy has a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Timestamp>,
    /// Time of the next attempt; `None` = no automatic retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The next attempt is the transition itself, even if its policy sends retries elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// Set if a remote worker executes the action; the task is queued or leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Box<QueuedTask>>,
}

/// An action queued for a remote worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedTask {
    pub action: Name,
    /// Time at which the task was queued.
    pub at: Timestamp,
    /// The lease of the worker that has the task; `None` = queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<TaskLease>,
}

/// The lease of a worker on a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskLease {
    /// The revision of the run at which the task was leased. A later lease has a higher one.
    pub fence: u64,
    /// The name that the worker gave itself.
    pub worker: String,
    /// Time at which the lease was granted.
    pub since: Timestamp,
    /// Expiry of the lease unless the worker sends a heartbeat.
    pub until: Timestamp,
    /// Time at which the task times out, regardless of heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Id of the actor whose credential the worker used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Progress note of the worker, as arbitrary JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<serde_json::Value>,
    /// The names of the secrets in its input. Their values are masked in the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) secrets: Vec<String>,
}

impl TaskLease {
    /// Returns the earlier of lease expiry and deadline.
    pub(crate) fn ends(&self) -> Timestamp {
        self.deadline.map_or(self.until, |deadline| deadline.min(self.until))
    }
}

/// A failed attempt of a transition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempt {
    pub at: Timestamp,
    pub transition: Name,
    pub activation: ActivationId,
    pub error: Failure,
}

/// The error that stopped a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    pub at: Timestamp,
    pub error: Failure,
    /// The activation whose transition failed; `None` if no transition did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<ActivationId>,
}

/// The state of notices from a child to its parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ChildNote {
    /// The parent gets no notice of a failure, because the child will be retried.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) waits_on_failure: bool,
    /// The parent was notified that the child failed; it gets no further notice.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) parent_notified: bool,
}

impl ChildNote {
    /// The note of a child whose failure is not reported, because an operator may retry it.
    pub(crate) fn after_retries() -> Self {
        ChildNote { waits_on_failure: true, parent_notified: false }
    }
}

/// Children that have not been notified of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingCancellation {
    /// The run whose children these are.
    pub(crate) parent: RunId,
    /// The position in the list of children at which to continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
}

impl Ledger {
    /// Marks the run as cancelled: its children must be notified.
    pub(crate) fn cancel(&mut self, run: RunId) {
        self.stopped = None;
        self.cancelling = vec![PendingCancellation { parent: run, from: None }];
    }

    /// Returns the code of the error that stopped the run, to be stored with the run's status.
    pub(crate) fn error_code(&self, status: Status) -> Option<String> {
        let stopped = self.stopped.as_ref().filter(|_| status == Status::Failed)?;
        Some(stored_error(&stopped.error.code))
    }

    /// Called when the failure that stopped the run is resolved. If another transition has failed for good, the run
    /// stops for that one.
    pub(crate) fn stop_for_next_failure(&mut self) {
        let failed = self.attempts.iter().find(|attempts| attempts.failed > 0 && !attempts.is_under_way());
        if let (None, Some(attempts)) = (&self.stopped, failed) {
            let last = self.failures.iter().rev().find(|tried| tried.activation == attempts.activation);
            let stopped = |tried: &FailedAttempt| Stopped {
                at: tried.at,
                error: tried.error.clone(),
                activation: Some(tried.activation),
            };
            self.stopped = last.map(stopped);
        }
    }

    /// Parses the ledger column of a run's row. A missing value is the default ledger.
    pub(crate) fn read(bytes: Option<&Bytes>) -> Result<Self, serde_json::Error> {
        bytes.map_or_else(|| Ok(Ledger::default()), |bytes| serde_json::from_slice(bytes))
    }

    /// Serializes the ledger for a run's row. `None` if it equals the default.
    pub(crate) fn write(&self) -> Option<Bytes> {
        if *self == Ledger::default() {
            return None;
        }
        Some(serde_json::to_vec(self).expect("a ledger is plain data").into())
    }

    pub(crate) fn of(&self, activation: ActivationId) -> Option<&Attempts> {
        self.attempts.iter().find(|attempts| attempts.activation == activation)
    }

    /// Returns true if any action is queued for or leased to a remote worker.
    pub(crate) fn has_queued_tasks(&self) -> bool {
        self.attempts.iter().any(|attempts| attempts.queued.is_some())
    }

    /// Removes the entries of activations that no longer exist.
    pub(crate) fn prune(&mut self, snapshot: &Snapshot) {
        self.attempts.retain(|attempts| snapshot.activation(attempts.activation).is_some());
        self.crashes.retain(|activation, _| snapshot.activation(*activation).is_some());
        self.events_fetched_at.retain(|activation, _| snapshot.activation(*activation).is_some());
        let waits = |id| snapshot.activation(id).is_some_and(|one| one.status == ActivationStatus::Waiting);
        self.claims.retain(|activation, _| waits(*activation));
        self.heartbeats.retain(|activation, _| waits(*activation));
    }

    /// Returns the claim on a wait that has not lapsed.
    pub(crate) fn claim_of(&self, activation: ActivationId, now: Timestamp) -> Option<&WaitClaim> {
        self.claims.get(&activation).filter(|claim| claim.until > now)
    }

    /// Records a failed attempt.
    pub(crate) fn failed(
        &mut self,
        retry: &RetryRequest,
        message: Option<u64>,
        at: Timestamp,
        error: Failure,
    ) -> &mut Attempts {
        let (transition, activation) = (retry.transition.clone(), retry.activation);
        self.failures.push(FailedAttempt { at, transition, activation, error });
        let over = self.failures.len().saturating_sub(MAX_RECORDED_FAILURES);
        self.failures.drain(..over);
        let attempts = self.tried(retry, message);
        attempts.failed = attempts.failed.saturating_add(1);
        attempts.queued = None;
        attempts
    }

    /// Returns the attempts of a transition and sets the message that triggered it. Replaces the attempts of another
    /// transition of the same activation.
    pub(crate) fn tried(&mut self, retry: &RetryRequest, message: Option<u64>) -> &mut Attempts {
        let known = self.attempts.iter().position(|attempts| attempts.activation == retry.activation);
        let index = known.unwrap_or_else(|| {
            self.attempts.push(Attempts::new(retry, message));
            self.attempts.len() - 1
        });
        let attempts = &mut self.attempts[index];
        if attempts.transition != retry.transition {
            *attempts = Attempts::new(retry, message);
        }
        attempts.message = message;
        attempts
    }
}

impl Attempts {
    /// Returns true if a retry is planned or the task is queued for or leased to a remote worker.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next.is_some() || self.queued.is_some()
    }

    /// Returns the lease of the remote worker that has the task.
    pub(crate) fn lease(&self) -> Option<&TaskLease> {
        self.queued.as_ref()?.lease.as_ref()
    }

    /// Sets the payload of the trigger.
    pub(crate) fn with_payload(mut self, payload: &serde_json::Value) -> Self {
        self.payload = payload.clone();
        self
    }

    pub(crate) fn new(retry: &RetryRequest, message: Option<u64>) -> Self {
        Attempts {
            activation: retry.activation,
            transition: retry.transition.clone(),
            cause: retry.cause.clone(),
            message,
            payload: serde_json::Value::Null,
            by: None,
            answers: None,
            failed: 0,
            retries: 0,
            first: None,
            next: None,
            manual: false,
            queued: None,
        }
    }
}

fn is_one(fence: &u64) -> bool {
    *fence == 1
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stepwell_core::admission::{LimitKind, WhenFull};

    use super::*;
    use crate::admission::gate::{EntryState, GateEntry, Rule};
    use crate::admission::{AdmissionState, KeyedLimit};

    const FORMAT: &str = include_str!("../tests/formats/ledger.json");

    fn lease(at: Timestamp) -> TaskLease {
        TaskLease {
            fence: 12,
            worker: "python".to_owned(),
            since: at,
            until: at.plus_ms(30_000),
            deadline: Some(at.plus_ms(60_000)),
            by: Some("apikey:worker".to_owned()),
            note: Some(json!({"done": 0.5})),
            secrets: vec!["KEY".to_owned()],
        }
    }

    fn attempts(activation: ActivationId, cause: Cause, queued: Option<Box<QueuedTask>>) -> Attempts {
        let at = Timestamp::from_millis(1_700_000_000_000);
        Attempts {
            activation,
            transition: "charge".into(),
            cause,
            message: Some(7),
            payload: json!({"by": "ann"}),
            by: Some("apikey:ann".to_owned()),
            answers: Some(activation),
            failed: 2,
            retries: 1,
            first: Some(at),
            next: Some(at.plus_ms(5_000)),
            manual: true,
            queued,
        }
    }

    fn limited(at: Timestamp) -> (Admission, GateState) {
        let limit = |kind, key: Option<&str>| KeyedLimit { kind, key: key.map(str::to_owned) };
        let limits = vec![limit(LimitKind::Concurrency, Some("ann")), limit(LimitKind::Rate, None)];
        let state = AdmissionState::Queued { limit: 1, since: at };
        let entry = GateEntry { run: RunId::nil(), request: 1, since: at, is: EntryState::Ending };
        let gate = GateState {
            workflow: "order".into(),
            limit: limit(LimitKind::Rate, Some("ann")),
            rule: Rule { limit: Some(3), window_ms: 60_000, when_full: WhenFull::CancelOldest },
            runs: vec![entry],
            begun: vec![at],
            full_since: Some(at),
            wake: Some(at),
        };
        (Admission { limits, state, request: 2 }, gate)
    }

    /// Databases contain this format. It has every field, and every variant of the values in it.
    #[test]
    fn every_field_of_the_format_is_fixed() {
        let at = Timestamp::from_millis(1_700_000_000_000);
        let error = Failure::new("smtp", "try again");
        let queued = QueuedTask { action: "pay".into(), at, lease: Some(lease(at)) };
        let (by, user, until) = ("apikey:ann".to_owned(), Some("ann".to_owned()), at.plus_ms(3_600_000));
        let claim = WaitClaim { by, user, at, until };
        let (admission, gate) = limited(at);
        let ledger = Ledger {
            fence: 3,
            attempts: vec![
                attempts(4, Cause::Auto, Some(Box::new(queued))),
                attempts(5, Cause::Signal("PAY".into()), None),
                attempts(6, Cause::Timer, None),
            ],
            crashes: [(4, 2)].into(),
            failures: vec![FailedAttempt {
                at,
                transition: "charge".into(),
                activation: 4,
                error: error.clone(),
            }],
            stopped: Some(Stopped { at, error, activation: Some(4) }),
            deadline: Some(at.plus_ms(86_400_000)),
            child: Some(ChildNote { waits_on_failure: true, parent_notified: true }),
            cancelling: vec![PendingCancellation { parent: RunId::nil(), from: Some("cursor".to_owned()) }],
            events_fetched_at: [(5, at)].into(),
            heartbeats: [(6, at)].into(),
            claims: [(6, claim)].into(),
            admission: Some(Box::new(admission)),
            gate: Some(Box::new(gate)),
        };
        let written = ledger.write().expect("it differs from the default");
        let written: serde_json::Value = serde_json::from_slice(&written).expect("it is JSON");
        let fixed: serde_json::Value = serde_json::from_str(FORMAT).expect("the file is JSON");
        let shown = serde_json::to_string_pretty(&written).expect("plain data");
        assert_eq!(written, fixed, "{shown}");
        let read = Ledger::read(Some(&Bytes::from_static(FORMAT.as_bytes()))).expect("the file is a ledger");
        assert_eq!(read, ledger);
    }
}
