//! A run as a process has it in hand between two commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Change, Definition, RunId, Snapshot, Timestamp};
use stepwell_store::{AuditRow, CellWrite, DocumentWrite, Head, KeyWrite, Loaded, NewRun, Parent, Send, Status};

use crate::error::EngineError;
use crate::ledger::Ledger;
use crate::post::Letter;
use crate::registry::{Registry, Workflow};

/// A run as a process has it in hand.
#[derive(Clone)]
pub(crate) struct Standing {
    pub(crate) head: Head,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ledger: Ledger,
    /// Owners that have died since the ledger was written.
    pub(crate) crashes: u32,
    pub(crate) inbox: Vec<Letter>,
    pub(crate) parent: Option<Parent>,
    pub(crate) root: RunId,
    pub(crate) suspended: bool,
}

impl Standing {
    pub(crate) fn new(registry: &Registry, loaded: Loaded) -> Result<Self, EngineError> {
        let run = loaded.head.run;
        let workflow = registry.by_hash(loaded.definition).ok_or_else(|| EngineError::UnknownDefinition {
            workflow: loaded.workflow.clone(),
            hash: loaded.definition,
        })?;
        let snapshot = Snapshot::restore(&workflow.definition, &loaded.head.state)?;
        let unreadable = |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
        let ledger = Ledger::read(loaded.attempt.as_ref()).map_err(unreadable)?;
        let inbox = loaded.inbox.iter().map(Letter::read).collect::<Result<_, _>>().map_err(unreadable)?;
        let owned = u64::from(loaded.head.owner.is_some());
        // Nobody has the fence the ledger expects yet as long as the run is free.
        let crashes = (loaded.head.fence + 1 - owned).saturating_sub(ledger.fence);
        Ok(Standing {
            suspended: loaded.head.status == Status::Suspended,
            head: loaded.head,
            workflow,
            snapshot: Arc::new(snapshot),
            ledger,
            crashes: u32::try_from(crashes).unwrap_or(u32::MAX),
            inbox,
            parent: loaded.parent,
            root: loaded.root,
        })
    }

    pub(crate) fn run(&self) -> RunId {
        self.head.run
    }

    pub(crate) fn definition(&self) -> &Definition {
        &self.workflow.definition
    }

    /// Its time has not come.
    pub(crate) fn is_pending(&self, now: Timestamp) -> bool {
        self.snapshot.version() == 0 && self.snapshot.created_at() > now
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
    pub(crate) along: Along,
}

impl Move {
    /// A change of the snapshot.
    pub(crate) fn change(change: Box<Change>, standing: &Standing) -> Self {
        let mut ledger = standing.ledger.clone();
        ledger.prune(&change.snapshot);
        Move { change: Some(change), ledger, takes: Vec::new(), suspend: None, repin: None, along: Along::default() }
    }

    /// A change only of what is beside the snapshot.
    pub(crate) fn note(ledger: Ledger) -> Self {
        Move { change: None, ledger, takes: Vec::new(), suspend: None, repin: None, along: Along::default() }
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
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) documents: Vec<DocumentWrite>,
    pub(crate) keys: Vec<KeyWrite>,
    pub(crate) audit: Vec<AuditRow>,
    /// Definitions that the new runs are pinned to.
    pub(crate) definitions: Vec<Arc<Workflow>>,
}

/// The actions that run for a run: by activation, with the message that triggered each.
pub(crate) type Flying = BTreeMap<ActivationId, Option<u64>>;
