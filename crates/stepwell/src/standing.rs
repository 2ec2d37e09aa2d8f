//! A run as a process has it in hand between two commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwell_core::dispatch::Retrial;
use stepwell_core::snapshot::{Activation, ActivationId, ActivationStatus};
use stepwell_core::spec::Trigger;
use stepwell_core::{Cause, Change, Definition, Name, RunId, Snapshot, Timestamp};
use stepwell_store::{
    AuditRow, CellWrite, DocumentWrite, Fill, HandleWrite, Head, KeyWrite, LinkWrite, Loaded, NewRun, Parent,
    Send, ShadowWrite, Status, TenantId,
};

use crate::error::EngineError;
use crate::ledger::{Ledger, Tries};
use crate::post::{Letter, Says};
use crate::registry::{Registry, Workflow};

/// A run as a process has it in hand.
#[derive(Clone)]
pub(crate) struct Standing {
    pub(crate) head: Head,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ledger: Ledger,
    pub(crate) inbox: Vec<Letter>,
    pub(crate) parent: Option<Parent>,
    pub(crate) root: RunId,
    pub(crate) suspended: bool,
}

impl Standing {
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
        let ledger = Ledger::read(loaded.attempt.as_ref()).map_err(unreadable)?;
        let inbox = loaded.inbox.iter().map(Letter::read).collect::<Result<_, _>>().map_err(unreadable)?;
        let mut standing = Standing {
            suspended: loaded.head.status == Status::Suspended,
            head: loaded.head,
            workflow,
            snapshot: Arc::new(snapshot),
            ledger,
            inbox,
            parent: loaded.parent,
            root: loaded.root,
        };
        standing.count_deaths();
        Ok(standing)
    }

    /// Takes the state as the commit has written it, with what it has filled in.
    pub(crate) fn read_back(&mut self) -> Result<(), EngineError> {
        let mut state = Snapshot::restore(self.definition(), &self.head.state)?;
        for (id, list) in self.snapshot.long_lists() {
            state.put_list(id.clone(), list.clone());
        }
        self.snapshot = Arc::new(state);
        Ok(())
    }

    /// A fence that is higher than the ledger expects says that owners have died: each death is counted for every
    /// activation for which an action may have run.
    fn count_deaths(&mut self) {
        let owned = u64::from(self.head.owner.is_some());
        // Nobody has the fence that is expected as long as the run is free.
        let fence = self.head.fence + 1 - owned;
        let died = u32::try_from(fence.saturating_sub(self.ledger.fence)).unwrap_or(u32::MAX);
        if died == 0 {
            return;
        }
        self.ledger.fence = fence;
        let tried: Vec<_> = self.snapshot.activations().iter().filter(|one| self.may_act(one)).collect();
        let tried: Vec<_> = tried.iter().map(|activation| activation.id).collect();
        for activation in tried {
            let deaths = self.ledger.deaths.entry(activation).or_default();
            *deaths = deaths.saturating_add(died);
        }
    }

    /// An action may run for this activation: one that begins by itself, or whose trigger is there.
    fn may_act(&self, activation: &Activation) -> bool {
        match self.ledger.of(activation.id) {
            // A worker elsewhere does it: no process's death is its.
            Some(tries) if tries.posted.is_some() => return false,
            Some(tries) if tries.next.is_some() => return true,
            _ => {}
        }
        let came = |name: &Name| {
            self.inbox
                .iter()
                .any(|letter| matches!(&letter.says, Says::Signal { name: came, .. } if came == name))
        };
        let out = self.definition().spec().transitions.iter().filter(|one| one.from == activation.place);
        out.filter(|transition| transition.action.is_some()).any(|transition| match &transition.on {
            Trigger::Auto => activation.status == ActivationStatus::Active,
            Trigger::Signal(name) => came(name),
            Trigger::AfterMs(_) | Trigger::Until(_) | Trigger::After(_) => {
                activation.timers.iter().any(|timer| timer.transition == transition.id)
            }
        })
    }

    /// Something from outside, a signal or a timer, is being dealt with for this activation: what comes later waits.
    pub(crate) fn is_engaged(&self, id: ActivationId, now: Timestamp) -> bool {
        let due = || self.snapshot.activation(id).and_then(Activation::due).is_some_and(|due| due <= now);
        self.is_tried_again(id) || due()
    }

    /// What came from outside for this activation is tried again, or done by a worker elsewhere.
    pub(crate) fn is_tried_again(&self, id: ActivationId) -> bool {
        self.ledger.of(id).is_some_and(|tries| tries.is_under_way() && tries.cause != Cause::Auto)
    }

    /// Nothing begins until an operator has done something.
    pub(crate) fn stands_still(&self) -> bool {
        self.snapshot.is_terminal() || self.suspended || self.ledger.stopped.is_some()
    }

    /// What is to be tried again, with what its trigger brought.
    pub(crate) fn retrial(&self, tries: &Tries) -> Retrial {
        let letter = self.inbox.iter().find(|letter| Some(letter.seq) == tries.message);
        let payload = match letter.map(|letter| &letter.says) {
            Some(Says::Signal { payload, .. }) => payload.clone(),
            _ => tries.payload.clone(),
        };
        let Tries { activation, transition, cause, .. } = tries;
        Retrial { activation: *activation, transition: transition.clone(), cause: cause.clone(), payload }
    }

    pub(crate) fn run(&self) -> RunId {
        self.head.run
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.workflow.definition
    }

    /// Its time has not come.
    pub(crate) fn is_pending(&self, now: Timestamp) -> bool {
        self.snapshot.created_at() > now
    }
}

/// What is to be committed on a run: a change of its snapshot, or only of what is beside it.
pub(crate) struct Move {
    pub(crate) change: Option<Box<Change>>,
    pub(crate) ledger: Ledger,
    /// Messages it uses up.
    pub(crate) takes: Vec<u64>,
    /// An operator puts the run aside or takes it up again.
    pub(crate) suspend: Option<bool>,
    /// It is pinned to another definition from here on.
    pub(crate) repin: Option<Arc<Workflow>>,
    /// It comes after everything in the inbox: what has come there since is looked at first.
    pub(crate) in_order: bool,
    pub(crate) along: Along,
}

impl Move {
    /// A change of the snapshot.
    pub(crate) fn change(change: Box<Change>, standing: &Standing) -> Self {
        let mut ledger = standing.ledger.clone();
        ledger.prune(&change.snapshot);
        Move { change: Some(change), ..Move::note(ledger) }
    }

    /// A change only of what is beside the snapshot.
    pub(crate) fn note(ledger: Ledger) -> Self {
        Move {
            change: None,
            ledger,
            takes: Vec::new(),
            suspend: None,
            repin: None,
            in_order: false,
            along: Along::default(),
        }
    }

    pub(crate) fn taking(mut self, seq: Option<u64>) -> Self {
        self.takes.extend(seq);
        self
    }
}

/// What goes along with a commit.
#[derive(Default)]
pub(crate) struct Along {
    pub(crate) create: Vec<NewRun>,
    pub(crate) send: Vec<Send>,
    pub(crate) handles: Vec<HandleWrite>,
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Results of those operations that belong into the state; a commit with any has no other change.
    pub(crate) fills: Vec<Fill>,
    /// Who is behind the operations, if not the run alone.
    pub(crate) actor: Option<String>,
    pub(crate) documents: Vec<DocumentWrite>,
    pub(crate) keys: Vec<KeyWrite>,
    pub(crate) audit: Vec<AuditRow>,
    /// Definitions that the new runs are pinned to.
    pub(crate) definitions: Vec<Arc<Workflow>>,
    /// The registry's number by which the new runs have their shadow columns.
    pub(crate) shadings: Option<u64>,
    /// Shadow columns of the run itself that are not read from its data.
    pub(crate) shadows: Vec<ShadowWrite>,
}

impl Along {
    /// What goes along with two.
    pub(crate) fn extend(&mut self, more: Along) {
        let Along {
            create,
            send,
            handles,
            cells,
            links,
            fills,
            actor,
            documents,
            keys,
            audit,
            definitions,
            shadings,
            shadows,
        } = more;
        self.create.extend(create);
        self.send.extend(send);
        self.handles.extend(handles);
        self.cells.extend(cells);
        self.links.extend(links);
        self.fills.extend(fills);
        self.actor = self.actor.take().or(actor);
        self.documents.extend(documents);
        self.keys.extend(keys);
        self.audit.extend(audit);
        self.definitions.extend(definitions);
        self.shadows.extend(shadows);
        self.shadings = [self.shadings, shadings].into_iter().flatten().min();
    }
}

/// The actions that run for a run, by activation.
pub(crate) type Flying = BTreeMap<ActivationId, Flight>;

/// What is known of an action that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    /// The message that triggered it.
    pub(crate) message: Option<u64>,
    /// Nothing from outside did.
    pub(crate) is_automatic: bool,
}

/// The activations that a change itself moves; what ends with them is not among them.
pub(crate) fn moved_by<'a>(
    before: &'a Snapshot,
    change: &'a Change,
) -> impl Iterator<Item = ActivationId> + 'a {
    let moved = |one: &&Activation| change.snapshot.activation(one.id) != Some(*one);
    let moved = before.activations().iter().filter(moved).map(|one| one.id);
    moved.filter(|id| !change.ended.contains(id))
}
