//! A run as loaded into memory between two commits, and the change to commit next.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwell_core::dispatch::RetryRequest;
use stepwell_core::snapshot::{Activation, ActivationId, ActivationStatus};
use stepwell_core::spec::TransitionTrigger;
use stepwell_core::{Cause, Change, Definition, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    AuditRow, CellWrite, DocumentWrite, HandleWrite, Head, KeyWrite, LinkWrite, Loaded, NewRun, Parent,
    ResultBinding, SendMessage, ShadowWrite, Status, TenantId,
};

use crate::error::EngineError;
use crate::inbox::{InboxMessage, MessageBody};
use crate::ledger::{Attempts, Ledger};
use crate::registry::{Registry, Workflow};

/// A run as loaded into memory.
#[derive(Clone)]
pub(crate) struct LoadedRun {
    pub(crate) head: Head,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ledger: Ledger,
    pub(crate) inbox: Vec<InboxMessage>,
    pub(crate) parent: Option<Parent>,
    pub(crate) root: RunId,
    pub(crate) suspended: bool,
}

impl LoadedRun {
    pub(crate) fn new(registry: &Registry, tenant: TenantId, loaded: Loaded) -> Result<Self, EngineError> {
        let run = loaded.head.run;
        if let Some(damage) = loaded.damage {
            return Err(EngineError::Unreadable { run, why: damage.to_string() });
        }
        let workflow = registry.by_hash(tenant, loaded.definition);
        let workflow = workflow.ok_or_else(|| EngineError::UnknownDefinition {
            workflow: loaded.workflow.clone(),
            hash: loaded.definition,
        })?;
        let snapshot = Snapshot::restore(&workflow.definition, &loaded.head.state)?;
        let unreadable = |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
        let ledger = Ledger::read(loaded.ledger.as_ref()).map_err(unreadable)?;
        let inbox =
            loaded.inbox.iter().map(InboxMessage::read).collect::<Result<_, _>>().map_err(unreadable)?;
        let mut loaded_run = LoadedRun {
            suspended: loaded.head.status == Status::Suspended,
            head: loaded.head,
            workflow,
            snapshot: Arc::new(snapshot),
            ledger,
            inbox,
            parent: loaded.parent,
            root: loaded.root,
        };
        loaded_run.count_crashes();
        loaded_run.apply_heartbeats();
        Ok(loaded_run)
    }

    /// Restarts the timers of the waits that had a heartbeat. The stored snapshot keeps the times at which its places
    /// were entered, so that a heartbeat is no new version.
    pub(crate) fn apply_heartbeats(&mut self) {
        if self.ledger.heartbeats.is_empty() {
            return;
        }
        let snapshot = Arc::make_mut(&mut self.snapshot);
        for (wait, at) in &self.ledger.heartbeats {
            snapshot.restart_heartbeat(&self.workflow.definition, *wait, *at);
        }
    }

    /// Decodes the state that the commit has written, including the results that were filled into it.
    pub(crate) fn read_back(&mut self) -> Result<(), EngineError> {
        let mut state = Snapshot::restore(self.definition(), &self.head.state)?;
        for (id, list) in self.snapshot.long_lists() {
            state.restore_list(id.clone(), list.clone());
        }
        self.snapshot = Arc::new(state);
        self.apply_heartbeats();
        Ok(())
    }

    /// Counts crashed owners. A fence higher than the ledger expects means that owners have crashed. Each crash is
    /// counted for every activation for which an action may have been running.
    fn count_crashes(&mut self) {
        let owned = u64::from(self.head.owner.is_some());
        // While the run has no owner, no process has used the expected fence yet.
        let fence = self.head.fence + 1 - owned;
        let died = u32::try_from(fence.saturating_sub(self.ledger.fence)).unwrap_or(u32::MAX);
        if died == 0 {
            return;
        }
        self.ledger.fence = fence;
        let tried: Vec<_> = self.snapshot.activations().iter().filter(|one| self.may_act(one)).collect();
        let tried: Vec<_> = tried.iter().map(|activation| activation.id).collect();
        for activation in tried {
            let crashes = self.ledger.crashes.entry(activation).or_default();
            *crashes = crashes.saturating_add(died);
        }
    }

    /// Counts the calls that are made at most once and may have begun under a lost driver like calls that a crash
    /// interrupted.
    pub(crate) fn count_begun_calls(&mut self) {
        let transitions = &self.definition().spec().transitions;
        let is_once = |place: &Name| {
            transitions.iter().any(|one| one.from == *place && self.definition().is_at_most_once(&one.id))
        };
        let begun = self.snapshot.activations().iter().filter(|one| is_once(&one.place) && self.may_act(one));
        let begun: Vec<_> = begun.map(|activation| activation.id).collect();
        for activation in begun {
            self.ledger.crashes.entry(activation).or_insert(1);
        }
    }

    /// Returns true if an action may be running for this activation: an automatic one, or one whose trigger has
    /// arrived.
    fn may_act(&self, activation: &Activation) -> bool {
        match self.ledger.of(activation.id) {
            // A remote worker executes it, so the crash of a process does not affect it.
            Some(attempts) if attempts.queued.is_some() => return false,
            Some(attempts) if attempts.next.is_some() => return true,
            _ => {}
        }
        let came = |name: &Name| {
            self.inbox.iter().any(
                |message| matches!(&message.body, MessageBody::Signal { name: came, .. } if came == name),
            )
        };
        let out = self.definition().spec().transitions.iter().filter(|one| one.from == activation.place);
        out.filter(|transition| transition.action.is_some()).any(|transition| match &transition.on {
            TransitionTrigger::Auto => activation.status == ActivationStatus::Active,
            TransitionTrigger::Signal(name) => came(name),
            TransitionTrigger::AfterMs(_)
            | TransitionTrigger::Until(_)
            | TransitionTrigger::After(_)
            | TransitionTrigger::Backoff(_) => {
                activation.timers.iter().any(|timer| timer.transition == transition.id)
            }
        })
    }

    /// Returns true if this activation is busy with a signal or a timer. Later ones must wait.
    pub(crate) fn is_engaged(&self, id: ActivationId, now: Timestamp) -> bool {
        let due = || self.snapshot.activation(id).and_then(Activation::due).is_some_and(|due| due <= now);
        self.is_retry_pending(id) || due()
    }

    /// Returns true if a signal, timer or event for this activation waits for a retry or for a remote worker.
    pub(crate) fn is_retry_pending(&self, id: ActivationId) -> bool {
        self.ledger.of(id).is_some_and(|attempts| attempts.is_under_way() && attempts.cause != Cause::Auto)
    }

    /// Returns true if nothing starts without an operator: the run has ended, is suspended or has failed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.snapshot.is_terminal() || self.suspended || self.ledger.stopped.is_some()
    }

    /// Returns the id of the sender of the signal that triggers this transition of an activation: of its inbox message,
    /// or of the signal that started its first attempt.
    pub(crate) fn sender_of(&self, activation: ActivationId, message: Option<u64>) -> Option<&str> {
        let message = self.inbox.iter().find(|one| Some(one.seq) == message).map(|one| &one.body);
        match message {
            Some(MessageBody::Signal { by, .. }) => by.as_deref(),
            Some(_) => None,
            None => self.ledger.of(activation)?.by.as_deref(),
        }
    }

    /// Returns the retry of a transition, with the payload of its trigger.
    pub(crate) fn retry(&self, attempts: &Attempts) -> RetryRequest {
        let message = self.inbox.iter().find(|message| Some(message.seq) == attempts.message);
        let payload = match message.map(|message| &message.body) {
            Some(MessageBody::Signal { payload, .. }) => payload.clone(),
            _ => attempts.payload.clone(),
        };
        let Attempts { activation, transition, cause, .. } = attempts;
        RetryRequest {
            activation: *activation,
            transition: transition.clone(),
            cause: cause.clone(),
            payload,
        }
    }

    pub(crate) fn run(&self) -> RunId {
        self.head.run
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.workflow.definition
    }

    /// Returns true if the start time of the run lies in the future, or if the run waits for its turn.
    pub(crate) fn is_pending(&self, now: Timestamp) -> bool {
        let is_waiting = self.ledger.admission.as_ref().is_some_and(|admission| admission.is_waiting());
        self.snapshot.created_at() > now || is_waiting
    }
}

/// A change that is ready to be committed: a new snapshot, or only changes to the data stored with it.
pub(crate) struct PendingCommit {
    pub(crate) change: Option<Box<Change>>,
    pub(crate) ledger: Ledger,
    /// Sequence numbers of the inbox messages that the change consumes.
    pub(crate) takes: Vec<u64>,
    /// Suspends (`true`) or resumes (`false`) the run.
    pub(crate) suspend: Option<bool>,
    /// The definition that the run is pinned to from now on.
    pub(crate) repin: Option<Arc<Workflow>>,
    /// The change must come after every message in the inbox. Messages that arrive before the commit are handled
    /// first.
    pub(crate) in_order: bool,
    /// A command of an operator, which is committed alone.
    pub(crate) is_command: bool,
    pub(crate) extras: CommitExtras,
}

impl PendingCommit {
    /// Creates a commit of a new snapshot.
    pub(crate) fn change(change: Box<Change>, loaded_run: &LoadedRun) -> Self {
        let mut ledger = loaded_run.ledger.clone();
        ledger.prune(&change.snapshot);
        PendingCommit { change: Some(change), ..PendingCommit::note(ledger) }
    }

    /// Creates a commit that leaves the snapshot unchanged.
    pub(crate) fn note(ledger: Ledger) -> Self {
        PendingCommit {
            change: None,
            ledger,
            takes: Vec::new(),
            suspend: None,
            repin: None,
            in_order: false,
            is_command: false,
            extras: CommitExtras::default(),
        }
    }

    pub(crate) fn consuming(mut self, seq: Option<u64>) -> Self {
        self.takes.extend(seq);
        self
    }
}

/// The extras of a commit: everything except the step of the run.
#[derive(Default)]
pub(crate) struct CommitExtras {
    pub(crate) create: Vec<NewRun>,
    pub(crate) send: Vec<SendMessage>,
    pub(crate) handles: Vec<HandleWrite>,
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Results of operations that are written into the state. A commit with results contains only one change.
    pub(crate) bindings: Vec<ResultBinding>,
    /// The actor that the operations are attributed to; `None` = the run alone.
    pub(crate) actor: Option<String>,
    pub(crate) documents: Vec<DocumentWrite>,
    pub(crate) keys: Vec<KeyWrite>,
    pub(crate) audit: Vec<AuditRow>,
    pub(crate) definitions: Vec<Arc<Workflow>>,
    /// The lowest registry revision of shadow columns that the new runs were written with.
    pub(crate) shadow_revision: Option<u64>,
    /// Shadow columns of the run that are not derived from its data.
    pub(crate) shadows: Vec<ShadowWrite>,
}

impl CommitExtras {
    /// Adds the extras of another commit.
    pub(crate) fn extend(&mut self, more: CommitExtras) {
        let CommitExtras {
            create,
            send,
            handles,
            cells,
            links,
            bindings,
            actor,
            documents,
            keys,
            audit,
            definitions,
            shadow_revision,
            shadows,
        } = more;
        self.create.extend(create);
        self.send.extend(send);
        self.handles.extend(handles);
        self.cells.extend(cells);
        self.links.extend(links);
        self.bindings.extend(bindings);
        self.actor = self.actor.take().or(actor);
        self.documents.extend(documents);
        self.keys.extend(keys);
        self.audit.extend(audit);
        self.definitions.extend(definitions);
        self.shadows.extend(shadows);
        self.shadow_revision = [self.shadow_revision, shadow_revision].into_iter().flatten().min();
    }
}

/// The actions in flight of a run, by activation.
pub(crate) type InFlightActions = BTreeMap<ActivationId, InFlightAction>;

/// An action in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlightAction {
    /// Sequence number of the inbox message that triggered it.
    pub(crate) message: Option<u64>,
    /// An automatic transition runs it: no signal, timer or event triggered it.
    pub(crate) is_automatic: bool,
}

/// Returns the activations that a change modifies, without those that it ends.
pub(crate) fn activations_moved_by<'a>(
    before: &'a Snapshot,
    change: &'a Change,
) -> impl Iterator<Item = ActivationId> + 'a {
    let moved = |one: &&Activation| change.snapshot.activation(one.id) != Some(*one);
    let moved = before.activations().iter().filter(moved).map(|one| one.id);
    moved.filter(|id| !change.ended.contains(id))
}
