//! Decides who may answer a wait, and records the answer.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stepwell_core::snapshot::{ActivationId, ActivationStatus};
use stepwell_core::spec::{Place, Wait};
use stepwell_core::{Change, Definition, Failure, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{AuditRow, HandleHash, KeyLifetime, KeyWrite};

use crate::actor::{Actor, Permission};
use crate::error::EngineError;
use crate::loaded_run::{LoadedRun, PendingCommit, activations_moved_by};
use crate::signal::FirstAnswer;
use crate::waits::WaitId;

/// Operation of the audit rows about signals, answers and starts.
pub(crate) const SIGNAL: &str = "run.signal";
pub(crate) const ANSWER: &str = "run.answer";
pub(crate) const STARTED: &str = "run.start";
/// Operation of the audit row about a wait that failed.
const FAILED: &str = "wait.fail";
/// Operation of the audit row about a signal of a run that may not answer the wait it reached.
pub(crate) const REFUSED: &str = "signal.refused";

/// The sender of a signal or an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The embedding program, which may do everything.
    #[default]
    Program,
    /// An authenticated caller. With `workflow:admin` and a reason, the caller answers for others.
    Caller { actor: Arc<Actor>, reason: Option<String>, bulk: Option<RunId> },
    /// An answer link, used by the person who has its token.
    Link(LinkSender),
}

/// The answer link that an answer came through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkSender {
    handle: HandleHash,
    /// The answerer that the link was created for.
    answerer: Option<String>,
    /// A step of the workflow sent the link, or the embedding program created it.
    is_trusted: bool,
}

impl LinkSender {
    pub(crate) fn new(handle: HandleHash, answerer: Option<String>, is_trusted: bool) -> Self {
        LinkSender { handle, answerer, is_trusted }
    }

    fn id(&self) -> String {
        let hash: String = self.handle.to_string().chars().take(16).collect();
        match &self.answerer {
            Some(answerer) => format!("link:{hash}:{answerer}"),
            None => format!("link:{hash}"),
        }
    }
}

impl Sender {
    /// Returns the sender for a caller; `bulk` is the bulk command that the signal is a part of.
    pub(crate) fn of(actor: Option<&Arc<Actor>>, reason: Option<String>, bulk: Option<RunId>) -> Self {
        actor.map_or(Sender::Program, |actor| Sender::Caller { actor: actor.clone(), reason, bulk })
    }

    /// Returns the bulk command that the signal is a part of.
    fn bulk(&self) -> Option<RunId> {
        match self {
            Sender::Caller { bulk, .. } => *bulk,
            Sender::Program | Sender::Link(_) => None,
        }
    }

    /// Returns the id that the history and the audit trail record; `None` for the embedding program.
    pub(crate) fn id(&self) -> Option<String> {
        match self {
            Sender::Program => None,
            Sender::Caller { actor, .. } => Some(actor.id.clone()),
            Sender::Link(link) => Some(link.id()),
        }
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Sender::Caller { reason, .. } => reason.as_deref().filter(|reason| !reason.trim().is_empty()),
            Sender::Program | Sender::Link(_) => None,
        }
    }

    /// Returns true if one of the answerers names the sender.
    fn is_named_by(&self, answerers: &[String]) -> bool {
        match self {
            Sender::Program => true,
            Sender::Caller { actor, .. } => names(actor, answerers),
            Sender::Link(link) => {
                link.is_trusted || link.answerer.as_ref().is_some_and(|answerer| answerers.contains(answerer))
            }
        }
    }

    /// Returns true if the sender is an administrator who gives a reason for answering.
    fn overrides(&self) -> bool {
        let is_admin = matches!(self, Sender::Caller { actor, .. } if actor.may(Permission::Admin));
        is_admin && self.reason().is_some()
    }

    /// Returns true if the sender made this claim.
    fn has_claimed(&self, claim: &crate::ledger::WaitClaim) -> bool {
        match self {
            Sender::Program => true,
            Sender::Caller { actor, .. } => actor.id == claim.by,
            Sender::Link(link) => {
                let user = claim.user.as_ref().map(|user| format!("user:{user}"));
                link.answerer.is_some() && link.answerer == user
            }
        }
    }
}

/// Returns true if one of the answerers is the actor's user or one of the actor's roles.
pub(crate) fn names(actor: &Actor, answerers: &[String]) -> bool {
    actor.answerers().iter().any(|own| answerers.contains(&own.to_string()))
}

/// Returns the wait place of an activation that waits there.
pub(crate) fn wait_of<'d>(
    definition: &'d Definition,
    snapshot: &Snapshot,
    activation: ActivationId,
) -> Option<&'d Wait> {
    let activation = snapshot.activation(activation)?;
    if activation.status != ActivationStatus::Waiting {
        return None;
    }
    match definition.spec().places.get(&activation.place)? {
        Place::Wait(wait) => Some(wait),
        _ => None,
    }
}

/// Returns true if a wait with answerers anywhere in the workflow accepts this signal. Such a signal is never buffered
/// for a caller, because it would reach a wait that the caller has not seen.
pub(crate) fn is_restricted(definition: &Definition, signal: &Name) -> bool {
    definition.spec().places.values().any(|place| {
        matches!(place, Place::Wait(wait) if wait.signal.as_ref() == Some(signal) && !wait.answerers.is_empty())
    })
}

/// Checks that the sender may answer the wait of this activation: one of the answerers names the sender, and no other
/// person has claimed the wait.
pub(crate) fn may_answer(
    loaded_run: &LoadedRun,
    activation: ActivationId,
    sender: &Sender,
    now: Timestamp,
) -> Result<(), EngineError> {
    let Some(wait) = wait_of(loaded_run.definition(), &loaded_run.snapshot, activation) else {
        return Ok(());
    };
    let id = WaitId { run: loaded_run.run(), activation };
    if !wait.answerers.is_empty() && !sender.is_named_by(&wait.answerers) && !sender.overrides() {
        let actor = sender.id().unwrap_or_default();
        return Err(EngineError::NotAnAnswerer { actor, wait: id, answerers: wait.answerers.clone() });
    }
    match loaded_run.ledger.claim_of(activation, now) {
        Some(claim) if !sender.has_claimed(claim) && !sender.overrides() => {
            Err(EngineError::Claimed { wait: id, by: claim.by.clone(), until: claim.until })
        }
        _ => Ok(()),
    }
}

/// Returns the waits for people that a change resolves: wait places with a form, a prompt or answerers.
fn answered_waits<'a>(
    loaded_run: &'a LoadedRun,
    change: &'a Change,
) -> impl Iterator<Item = (ActivationId, &'a Wait)> + 'a {
    let moved = activations_moved_by(&loaded_run.snapshot, change);
    moved.filter_map(|id| {
        let wait = wait_of(loaded_run.definition(), &loaded_run.snapshot, id)?;
        Some((id, wait)).filter(|_| is_for_people(wait))
    })
}

fn is_for_people(wait: &Wait) -> bool {
    wait.form.is_some() || wait.prompt.is_some() || !wait.answerers.is_empty()
}

/// An accepted signal or answer, as it is recorded with the change that it causes.
pub(crate) struct Accepted<'a> {
    pub(crate) signal: &'a Name,
    pub(crate) payload: &'a Value,
    /// The wait that the sender named.
    pub(crate) wait: Option<ActivationId>,
    pub(crate) by: Option<&'a str>,
    pub(crate) at: Timestamp,
}

impl Accepted<'_> {
    /// Adds the actor to the history entry of a change, and the record of each answered wait to its commit. Every path
    /// by which an answer arrives calls this, so that a second answer always finds the first.
    pub(crate) fn record_in(&self, loaded_run: &LoadedRun, next: &mut PendingCommit) {
        let Some(change) = &mut next.change else { return };
        change.entry.actor = self.by.map(str::to_owned);
        let mut answered: Vec<_> = answered_waits(loaded_run, change).map(|(id, _)| id).collect();
        answered.extend(self.wait.filter(|wait| !answered.contains(wait)));
        next.extras.keys.extend(answered.into_iter().map(|wait| self.key(loaded_run.run(), wait)));
    }

    /// Returns the record of the first answer to a wait.
    pub(crate) fn key(&self, run: RunId, wait: ActivationId) -> KeyWrite {
        let first = FirstAnswer { signal: self.signal.clone(), by: self.by.map(str::to_owned), at: self.at };
        let request = json!([self.by, self.signal, self.payload]).to_string();
        KeyWrite {
            operation: format!("{ANSWER_OF}{run}"),
            key: wait.to_string(),
            request: Sha256::digest(request.as_bytes()).into(),
            answer: serde_json::to_vec(&first).map(Bytes::from).expect("an answer is plain data"),
            lifetime: KeyLifetime::WithRun(run),
        }
    }
}

/// Returns the audit row of a signal or an answer; `None` for the embedding program.
pub(crate) fn signal_audit(
    loaded_run: &LoadedRun,
    change: Option<&Change>,
    signal: &Name,
    sender: &Sender,
) -> Option<AuditRow> {
    let actor = sender.id()?;
    let answered = change.and_then(|change| answered_waits(loaded_run, change).next());
    let mut detail = json!({"signal": signal});
    if let Some((wait, place)) = answered {
        detail["wait"] = WaitId { run: loaded_run.run(), activation: wait }.to_string().into();
        if !place.answerers.is_empty() && !sender.is_named_by(&place.answerers) {
            detail["for"] = json!(place.answerers);
        }
    }
    if let Some(reason) = sender.reason() {
        detail["reason"] = reason.into();
    }
    if let Some(bulk) = sender.bulk() {
        detail["bulk"] = bulk.to_string().into();
    }
    let operation = if answered.is_some() { ANSWER } else { SIGNAL };
    Some(row(operation, loaded_run.run(), actor, &detail))
}

/// Returns the audit row of a wait that failed; `None` for the embedding program.
pub(crate) fn failed_wait_audit(
    loaded_run: &LoadedRun,
    activation: ActivationId,
    failure: &Failure,
    sender: &Sender,
) -> Option<AuditRow> {
    let actor = sender.id()?;
    let wait = WaitId { run: loaded_run.run(), activation };
    let mut detail = json!({"wait": wait, "code": failure.code});
    if let Some(reason) = sender.reason() {
        detail["reason"] = reason.into();
    }
    Some(row(FAILED, loaded_run.run(), actor, &detail))
}

/// Beginning of the operation under which the first answer to a wait is recorded. The id of the run follows.
const ANSWER_OF: &str = "answer:";

/// Returns true if the first answers to the waits of a run are recorded under this operation.
pub(crate) fn is_answer(operation: &str) -> bool {
    operation.starts_with(ANSWER_OF)
}

/// Returns an audit row about a run.
pub(crate) fn row(operation: &str, run: RunId, actor: String, detail: &Value) -> AuditRow {
    AuditRow {
        operation: operation.to_owned(),
        subject: run.to_string(),
        actor: Some(actor),
        run: Some(run),
        detail: detail.to_string().into(),
    }
}

/// Returns the actor that stands for a run: the parent of a child, or the sender of a signal between runs.
pub(crate) fn run_actor(run: RunId) -> String {
    format!("run:{run}")
}
