//! Admission of runs: concurrency and rate limits of a workflow.
//!
//! A limit has one *gate* per key: a durable run of the engine's own workflow `stepwell.gate` (`gate.rs`). A new run joins
//! the queue of its gate in the commit that creates it, as a row in the table of waits (`queue.rs`), and sends the gate a
//! message. The gate admits runs in the order of the queue. A run that ends, fails or is cancelled tells its gate so in
//! the commit that ends it. Only the gate counts, and every message is part of a commit, so no crash loses or doubles
//! one.

pub(crate) mod gate;
mod listing;
pub(crate) mod queue;

use serde::{Deserialize, Serialize};
use stepwell_core::admission::LimitKind;
use stepwell_core::{Name, RunId, Snapshot, Timestamp};
use stepwell_store::SendMessage;

pub use listing::{GateRow, GateRun, RunLimit};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::ledger::Ledger;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::registry::Workflow;
use crate::start::Start;

/// The admission of a run by the limits of its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// The limits that the run passes, in order.
    pub limits: Vec<KeyedLimit>,
    pub state: AdmissionState,
    /// Number of requests so far. The answer of a gate names the request, so that a late one is recognized.
    pub request: u32,
}

/// A limit of a workflow for one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyedLimit {
    pub kind: LimitKind,
    /// The key of the run; `None` = one limit for the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The progress of an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum AdmissionState {
    /// The start time lies in the future: the run is in no queue yet.
    Scheduled,
    /// The run is in the queue of a limit.
    Queued {
        /// Index of the limit.
        limit: usize,
        since: Timestamp,
    },
    /// The run has begun and counts as active.
    Admitted { since: Timestamp },
    /// The run has ended or failed and no longer counts.
    Left,
}

/// The answer of a gate to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    Admitted,
    /// The limit is reached and the workflow refuses further runs.
    Refused,
    /// A newer run takes its turn.
    Superseded,
}

impl Admission {
    /// Returns true if the run waits for its turn.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, AdmissionState::Scheduled | AdmissionState::Queued { .. })
    }

    /// Returns true if this is the answer to the current request: of the limit in whose queue the run is, or the end of
    /// a run that has begun.
    pub(crate) fn awaits(&self, kind: LimitKind, request: u32, verdict: Verdict) -> bool {
        let is_current = match self.state {
            AdmissionState::Queued { limit, .. } => {
                let is_of = |limit: &KeyedLimit| limit.kind == kind;
                self.limits.get(limit).is_some_and(is_of) || verdict == Verdict::Superseded
            }
            AdmissionState::Admitted { .. } => verdict == Verdict::Superseded,
            AdmissionState::Scheduled | AdmissionState::Left => false,
        };
        is_current && self.request == request
    }

    /// Returns true if the run counts for a gate under this request, or waits in its queue.
    fn holds(&self, request: u32) -> bool {
        let is_in = matches!(self.state, AdmissionState::Queued { .. } | AdmissionState::Admitted { .. });
        is_in && self.request == request
    }

    /// Returns the limit in whose queue the run is, and the time since it is in a queue.
    fn queued(&self) -> Option<(&KeyedLimit, Timestamp)> {
        let AdmissionState::Queued { limit, since } = self.state else { return None };
        Some((self.limits.get(limit)?, since))
    }
}

impl Inner {
    /// Returns the admission of a new run; `None` if its workflow has no limits, or the run ended at its start.
    pub(crate) fn admission_of(
        &self,
        workflow: &Workflow,
        snapshot: &Snapshot,
        (starts_at, now): (Timestamp, Timestamp),
        is_limited: bool,
    ) -> Result<Option<Box<Admission>>, EngineError> {
        let definition = &workflow.definition;
        if !is_limited || !definition.has_limits() || self.is_stateless || snapshot.is_terminal() {
            return Ok(None);
        }
        let keys = definition.limit_keys(snapshot, starts_at)?;
        let limits = keys.into_iter().map(|(kind, key)| KeyedLimit { kind, key }).collect();
        let state = match starts_at > now {
            true => AdmissionState::Scheduled,
            false => AdmissionState::Queued { limit: 0, since: now },
        };
        Ok(Some(Box::new(Admission { limits, state, request: 1 })))
    }

    /// Refuses a start at once if its concurrency limit is reached and the workflow refuses runs then. A start that
    /// passes may still be refused by the gate, if another one was faster.
    pub(crate) async fn refuse_if_full(
        &self,
        scope: stepwell_store::TenantScope,
        wanted: &Start,
        loaded_run: &LoadedRun,
    ) -> Result<(), EngineError> {
        let Some(admission) = &loaded_run.ledger.admission else { return Ok(()) };
        let Some(limit) = admission.limits.iter().find(|limit| limit.kind == LimitKind::Concurrency) else {
            return Ok(());
        };
        let key = limit.key.clone();
        match self.full_limit(scope, loaded_run.definition(), limit).await? {
            Some(limit) if !wanted.is_own() => {
                Err(EngineError::LimitReached { workflow: wanted.workflow.clone(), key, limit })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the message with which a new run joins the queue of its first limit. It is part of the commit that creates
/// the run.
pub(crate) fn join(workflow: &Workflow, ledger: &Ledger, now: Timestamp) -> Option<SendMessage> {
    let (limit, _) = ledger.admission.as_ref()?.queued()?;
    Some(gate::joined(workflow, limit, now))
}

/// Keeps the admission of a run in step with a change: a run that ends or fails leaves its gate, and one that continues
/// after a failure joins the queue again.
pub(crate) fn follow(after: &mut LoadedRun, extras: &mut CommitExtras, now: Timestamp) {
    let (is_active, run) = (!after.snapshot.is_terminal() && after.ledger.stopped.is_none(), after.run());
    let Some(admission) = &mut after.ledger.admission else { return };
    match (admission.state, is_active) {
        (AdmissionState::Queued { .. } | AdmissionState::Admitted { .. }, false) => {
            let name = after.workflow.definition.name();
            extras.send.extend(left(admission, name, run));
            admission.state = AdmissionState::Left;
        }
        (AdmissionState::Scheduled, false) => admission.state = AdmissionState::Left,
        (AdmissionState::Left, true) => {
            admission.request += 1;
            admission.state = AdmissionState::Queued { limit: 0, since: now };
            extras.send.extend(join(&after.workflow, &after.ledger, now));
        }
        _ => {}
    }
}

/// Returns the messages to the gates that know the run.
fn left(admission: &Admission, workflow: &Name, run: RunId) -> Vec<SendMessage> {
    let knows = |index: usize, limit: &KeyedLimit| match admission.state {
        AdmissionState::Queued { limit: at, .. } => index <= at && (index == at || limit.is_held()),
        AdmissionState::Admitted { .. } => limit.is_held(),
        AdmissionState::Scheduled | AdmissionState::Left => false,
    };
    let known = admission.limits.iter().enumerate().filter(|(index, limit)| knows(*index, limit));
    known.map(|(_, limit)| limit.left(workflow, run, admission.request)).collect()
}

impl KeyedLimit {
    /// Returns true if a run counts until it ends. A rate limit counts only that it has begun.
    fn is_held(&self) -> bool {
        self.kind == LimitKind::Concurrency
    }

    fn left(&self, workflow: &Name, run: RunId, request: u32) -> SendMessage {
        MessageBody::LeftGate { run, request }.to(gate::id(workflow, self))
    }
}

/// Returns the ledger and the messages of a run that a gate has admitted: it passes to its next limit, or begins.
pub(crate) fn admitted(loaded_run: &LoadedRun, now: Timestamp) -> Option<(Box<Admission>, Vec<SendMessage>)> {
    let mut admission = loaded_run.ledger.admission.clone()?;
    let AdmissionState::Queued { limit: at, since } = admission.state else { return None };
    let passed = admission.limits.get(at)?;
    let mut send = Vec::new();
    if !passed.is_held() {
        let name = loaded_run.definition().name();
        send.push(passed.left(name, loaded_run.run(), admission.request));
    }
    match admission.limits.get(at + 1) {
        Some(next) => {
            send.push(gate::joined(&loaded_run.workflow, next, now));
            admission.state = AdmissionState::Queued { limit: at + 1, since };
        }
        None => admission.state = AdmissionState::Admitted { since: now },
    }
    Some((admission, send))
}

/// Returns the first place of a run that has not begun, if a timer of it is running.
pub(crate) fn first_place_with_timer(loaded_run: &LoadedRun) -> Option<Name> {
    let is_new = loaded_run.snapshot.version() == 0
        && loaded_run.ledger.admission.as_ref().is_some_and(|admission| admission.request == 1);
    let has_timer = loaded_run.snapshot.activations().iter().any(|activation| activation.due().is_some());
    loaded_run.definition().spec().initial.clone().filter(|_| is_new && has_timer)
}
