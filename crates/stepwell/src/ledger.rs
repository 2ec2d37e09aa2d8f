//! What is recorded beside a run's snapshot and has no version: tries, errors, the deadline, what was told.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::dispatch::Retrial;
use stepwell_core::snapshot::{ActivationId, Snapshot};
use stepwell_core::{Cause, Failure, Name, RunId, Timestamp};

/// How many failed tries of a run stay readable.
pub const KEPT_FAILURES: usize = 10;

/// What is recorded beside a run's snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// The fence that whoever works on the run has, or gets, if nobody dies meanwhile. A higher one means that
    /// owners have died: so a try is counted before it starts without a write of its own.
    #[serde(skip_serializing_if = "is_one")]
    pub(crate) fence: u64,
    /// Transitions that have failed, or that a signal has begun, one for an activation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Tries>,
    /// How often a process has died while it may have tried a transition of an activation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub deaths: BTreeMap<ActivationId, u32>,
    /// The last failed tries, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Tried>,
    /// Why the run stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// When the run is cancelled if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What its parent is to hear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<ChildNote>,
    /// The run is cancelled, and what is below it has not been told yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancelling: Vec<Untold>,
    /// When waits for events have last asked for them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) asked: BTreeMap<ActivationId, Timestamp>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            fence: 1,
            tries: Vec::new(),
            deaths: BTreeMap::new(),
            failures: Vec::new(),
            stopped: None,
            deadline: None,
            child: None,
            cancelling: Vec::new(),
            asked: BTreeMap::new(),
        }
    }
}

/// The tries of one transition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tries {
    /// The activation.
    pub activation: ActivationId,
    /// The transition.
    pub transition: Name,
    /// What triggered it.
    pub cause: Cause,
    /// The message that triggered it; it stays in the inbox until the transition is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// What triggered it brought this; a message in the inbox brings its own.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub payload: serde_json::Value,
    /// Tries that have failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
    /// Retries made or planned under the policy as it stands; a retry by hand begins it anew.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// When it is tried again; `None` = not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The next try is the transition itself, wherever its policy would send a retry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
    /// Its action is done by a worker elsewhere, which has it or is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posted: Option<Box<Posted>>,
}

/// An action that a worker elsewhere is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Posted {
    /// The action.
    pub action: Name,
    /// Since when it is to be done.
    pub at: Timestamp,
    /// The worker that has it; nobody = it waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

/// A worker has a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The revision of the run with which it was given away: whoever is given it later has a higher one.
    pub fence: u64,
    /// What the worker calls itself.
    pub worker: String,
    /// Since when.
    pub since: Timestamp,
    /// When it is given to somebody else unless the worker is heard of.
    pub until: Timestamp,
    /// When it has taken too long, however often the worker is heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// How far it has come, in the worker's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<serde_json::Value>,
    /// The names of the secrets that it was given: what they stand for is hidden in what comes back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) secrets: Vec<String>,
}

impl Lease {
    /// When somebody has to look after it.
    pub(crate) fn ends(&self) -> Timestamp {
        self.deadline.map_or(self.until, |deadline| deadline.min(self.until))
    }
}

/// A try that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// When.
    pub at: Timestamp,
    /// Which transition.
    pub transition: Name,
    /// For which activation.
    pub activation: ActivationId,
    /// Why.
    pub error: Failure,
}

/// Why a run stands still.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    /// When it stopped.
    pub at: Timestamp,
    /// The error.
    pub error: Failure,
    /// The activation whose transition failed, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<ActivationId>,
}

/// What a child's parent is to hear.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ChildNote {
    /// Not that it has failed: somebody will retry it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) waits_on_failure: bool,
    /// It has been told that the child failed; it hears nothing more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) told: bool,
}

/// Children that have not been told of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Untold {
    /// Whose children.
    pub(crate) parent: RunId,
    /// From this place in their list on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
}

impl Ledger {
    /// The run is cancelled: what is below it has to hear of that.
    pub(crate) fn cancel(&mut self, run: RunId) {
        self.stopped = None;
        self.cancelling = vec![Untold { parent: run, from: None }];
    }

    /// What the run stood still for is dealt with. If something else has failed for good too, it stands still for that.
    pub(crate) fn stands_for_another(&mut self) {
        let failed = self.tries.iter().find(|tries| tries.failed > 0 && !tries.is_under_way());
        if let (None, Some(tries)) = (&self.stopped, failed) {
            let last = self.failures.iter().rev().find(|tried| tried.activation == tries.activation);
            let stopped = |tried: &Tried| Stopped {
                at: tried.at,
                error: tried.error.clone(),
                activation: Some(tried.activation),
            };
            self.stopped = last.map(stopped);
        }
    }

    /// Reads what a run's row has.
    pub(crate) fn read(bytes: Option<&Bytes>) -> Result<Self, serde_json::Error> {
        bytes.map_or_else(|| Ok(Ledger::default()), |bytes| serde_json::from_slice(bytes))
    }

    /// What a run's row gets: nothing when there is nothing to record.
    pub(crate) fn write(&self) -> Option<Bytes> {
        if *self == Ledger::default() {
            return None;
        }
        Some(serde_json::to_vec(self).expect("a ledger is plain data").into())
    }

    pub(crate) fn of(&self, activation: ActivationId) -> Option<&Tries> {
        self.tries.iter().find(|tries| tries.activation == activation)
    }

    /// Some action is done by a worker elsewhere.
    pub(crate) fn has_posted(&self) -> bool {
        self.tries.iter().any(|tries| tries.posted.is_some())
    }

    /// Forgets the tries of activations that are gone.
    pub(crate) fn prune(&mut self, snapshot: &Snapshot) {
        self.tries.retain(|tries| snapshot.activation(tries.activation).is_some());
        self.deaths.retain(|activation, _| snapshot.activation(*activation).is_some());
        self.asked.retain(|activation, _| snapshot.activation(*activation).is_some());
    }

    /// Notes a failed try.
    pub(crate) fn failed(
        &mut self,
        retrial: &Retrial,
        message: Option<u64>,
        at: Timestamp,
        error: Failure,
    ) -> &mut Tries {
        let (transition, activation) = (retrial.transition.clone(), retrial.activation);
        self.failures.push(Tried { at, transition, activation, error });
        let over = self.failures.len().saturating_sub(KEPT_FAILURES);
        self.failures.drain(..over);
        let tries = self.tried(retrial, message);
        tries.failed = tries.failed.saturating_add(1);
        tries.posted = None;
        tries
    }

    /// The tries of a transition, which a message has triggered, in place of those of another that it follows.
    pub(crate) fn tried(&mut self, retrial: &Retrial, message: Option<u64>) -> &mut Tries {
        let known = self.tries.iter().position(|tries| tries.activation == retrial.activation);
        let index = known.unwrap_or_else(|| {
            self.tries.push(Tries::new(retrial, message));
            self.tries.len() - 1
        });
        let tries = &mut self.tries[index];
        if tries.transition != retrial.transition {
            *tries = Tries::new(retrial, message);
        }
        tries.message = message;
        tries
    }
}

impl Tries {
    /// It is tried again at some time, or a worker elsewhere has it or is waited for.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next.is_some() || self.posted.is_some()
    }

    /// The worker that has it.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.posted.as_ref()?.lease.as_ref()
    }

    /// The same with what its trigger brought.
    pub(crate) fn bringing(mut self, payload: &serde_json::Value) -> Self {
        self.payload = payload.clone();
        self
    }

    pub(crate) fn new(retrial: &Retrial, message: Option<u64>) -> Self {
        Tries {
            activation: retrial.activation,
            transition: retrial.transition.clone(),
            cause: retrial.cause.clone(),
            message,
            payload: serde_json::Value::Null,
            failed: 0,
            retries: 0,
            next: None,
            by_hand: false,
            posted: None,
        }
    }
}

fn is_one(fence: &u64) -> bool {
    *fence == 1
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
