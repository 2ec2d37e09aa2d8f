//! The only write: everything a decision changes, as one value that a store applies whole or not at all.
//!
//! A store takes a [`Commit`] apart without `..`, so that a field added here does not compile until every backend
//! writes it. What is checked, and in which order, is part of the contract: text, size, keys, the run, its inbox, new runs,
//! handles, cells, links, fills, documents, messages. The first thing that cannot be done refuses the whole commit.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, LimitExceeded, Limits, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{CellError, CellKey, CellWrite, OpResult};
use crate::document::{DocumentError, DocumentOp, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleWrite};
use crate::link::{LinkError, LinkWrite};
use crate::run::{Head, OpenWait, Parent, ProcessId, Status};
use crate::shadow::ShadowWrite;
use crate::store::StoreError;

/// A commit's own id, kept with what it wrote: a lost answer is looked up by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommitId(pub Uuid);

/// How long the record of a commit that left no checkpoint and no key is kept for [`Store::outcome`](crate::Store::outcome).
pub const RECORD_KEPT_MS: u64 = 24 * 60 * 60 * 1_000;
/// The operation under which such records are kept.
pub const RECORD_OPERATION: &str = "commit";

/// Everything a decision changes. A run is optional in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// Its id.
    pub id: CommitId,
    /// The engine's time.
    pub at: Timestamp,
    /// The run it moves.
    pub step: Option<Step>,
    /// New runs: a start, or children.
    pub create: Vec<NewRun>,
    /// Messages into inboxes.
    pub send: Vec<Send>,
    /// Handles that are put, reserved, sent out or used up, in order.
    pub handles: Vec<HandleWrite>,
    /// Operations on cells, in order. Each that changes something is on record in the audit trail.
    pub cells: Vec<CellWrite>,
    /// Operations on links, in order, after those on cells. Each edge that changes is on record in the audit trail.
    pub links: Vec<LinkWrite>,
    /// Who is behind those operations, if not the run alone.
    pub actor: Option<String>,
    /// Results of those operations that belong into the next state.
    pub fills: Vec<Fill>,
    /// Documents of the runs it gives a version, in order; of several versions the first shows them.
    pub documents: Vec<DocumentWrite>,
    /// Keys that make it happen once.
    pub keys: Vec<KeyWrite>,
    /// Definitions that its runs are pinned to; known ones stay as they are.
    pub definitions: Vec<StoredDefinition>,
    /// The audit trail's rows.
    pub audit: Vec<AuditRow>,
}

/// What happens to a run that exists.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What it was decided on; if the run has moved since, the commit is refused.
    pub head: Head,
    /// The fence under which its action ran; `None` for a decision that anyone may make.
    pub fence: Option<u64>,
    /// It was decided with every message in the inbox; if one has come since, the run has moved.
    pub in_order: bool,
    /// The snapshots that follow, one version each; none when only the row changes (an attempt, a suspension).
    pub next: Vec<NextState>,
    /// How the run is doing now.
    pub status: Status,
    /// When it is to be looked at next. A message it does not know of yet makes that now.
    pub wake: Option<Timestamp>,
    /// Who works on it from here on.
    pub owner: Ownership,
    /// Tries, last errors and the time of the next try.
    pub attempt: Option<Bytes>,
    /// The definition it is pinned to from here on, if that changes.
    pub definition: Option<DefinitionHash>,
    /// Messages it takes out of its inbox.
    pub take: Vec<u64>,
    /// Waits that open.
    pub open: Vec<OpenWait>,
    /// Waits that close, by activation.
    pub close: Vec<u64>,
    /// Shadow columns that change; of several writes to one the last counts.
    pub shadows: Vec<ShadowWrite>,
}

/// A snapshot and its history entry: a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextState {
    /// The snapshot's bytes (JSON).
    pub state: Bytes,
    /// The history entry (JSON).
    pub entry: Bytes,
    /// The places the run is in.
    pub places: Vec<Name>,
}

/// Who works on a run after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Whoever does now.
    Keep,
    /// This process; the fence is raised if it was not the owner already.
    Take(ProcessId),
    /// Nobody.
    Release,
}

/// A run that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Its id.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// The version it begins with: 0, or the one it had where it rested before.
    pub version: u64,
    /// The first checkpoint.
    pub first: NextState,
    /// How it is doing.
    pub status: Status,
    /// When it is to be looked at.
    pub wake: Option<Timestamp>,
    /// The process that works on it at once.
    pub owner: Option<ProcessId>,
    /// Its parent.
    pub parent: Option<Parent>,
    /// The root of its tree.
    pub root: RunId,
    /// Tries, as in [`Step::attempt`].
    pub attempt: Option<Bytes>,
    /// Waits that are open from the beginning.
    pub open: Vec<OpenWait>,
    /// What its shadow columns hold from the beginning.
    pub shadows: Vec<ShadowWrite>,
}

/// A message for a run of the same tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// To whom.
    pub to: RunId,
    /// What.
    pub message: NewMessage,
    /// What to do when there is no such run, or it has ended.
    pub missing: Missing,
}

/// When a message finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The whole commit is refused.
    Refuse,
    /// The message is dropped.
    Drop,
}

/// A message that is put into an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// What it is about.
    pub topic: String,
    /// The rest.
    pub body: Bytes,
    /// When it is no longer wanted.
    pub expires_at: Option<Timestamp>,
    /// It counts against the inbox's limit; the engine's own messages do not.
    pub counts: bool,
}

/// Puts a result of an operation into the next state; a commit with results to put has only one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    /// Which operation, by its place in [`Commit::cells`], and from there on in [`Commit::links`].
    pub operation: usize,
    /// Which part of its result.
    pub part: FillPart,
    /// JSON pointer into the next state; the parent must be an object that is there.
    pub pointer: String,
}

/// A part of an operation's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillPart {
    /// The number an increment gave, or the item a removal took; a link's id, or how many links were deleted.
    Value,
    /// The new revision.
    Revision,
    /// Whether the key or link was absent before.
    Created,
    /// Whether the key had a value before, or any link was deleted.
    Existed,
}

impl FillPart {
    /// This part of a result.
    pub fn of(self, result: &OpResult) -> serde_json::Value {
        match self {
            FillPart::Value => result.value.clone().unwrap_or_default(),
            FillPart::Revision => result.revision.into(),
            FillPart::Created => result.created.into(),
            FillPart::Existed => result.existed.into(),
        }
    }
}

/// A key that makes a commit happen once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWrite {
    /// What the key is for; keys of different operations do not meet.
    pub operation: String,
    /// The key.
    pub key: String,
    /// A hash of what was asked: the same key with another request is an error.
    pub request: [u8; 32],
    /// What the same request is answered with later.
    pub answer: Bytes,
    /// How long the key holds.
    pub lives: Lives,
}

/// How long a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lives {
    /// Until then.
    Until(Timestamp),
    /// As long as this run.
    WithRun(RunId),
}

/// A definition as stored: immutable, by content hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDefinition {
    /// Its hash.
    pub hash: DefinitionHash,
    /// The workflow's name.
    pub workflow: Name,
    /// The author's number.
    pub version: u32,
    /// The canonical bytes.
    pub body: Bytes,
    /// Who made it known and what they may do (JSON), if it was not the embedding program itself.
    pub publisher: Option<String>,
}

/// A row of the audit trail. Never changed once written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// What was done.
    pub operation: String,
    /// To what.
    pub subject: String,
    /// By whom.
    pub actor: Option<String>,
    /// In which run.
    pub run: Option<RunId>,
    /// The rest (JSON).
    pub detail: Bytes,
}

/// Where the trace of a commit is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRef {
    /// The commit.
    pub id: CommitId,
    /// Where to look.
    pub at: Whereabouts,
}

/// Where the trace of a commit is found: no commit writes a row just to be found again if it leaves another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// In this checkpoint.
    Checkpoint {
        /// The run.
        run: RunId,
        /// The version.
        version: u64,
    },
    /// In this handle's row.
    Handle(HandleHash),
    /// In this key's record.
    Key {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
    },
    /// In the audit trail. One that has changed nothing is not found there: asked for again, it changes nothing again.
    Audit,
}

/// What a commit that was applied gives back.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Where the run stands now.
    pub head: Option<Head>,
    /// Where the new runs stand, in the commit's order.
    pub created: Vec<Head>,
    /// The results of the operations, in the commit's order: on cells, then on links.
    pub results: Vec<OpResult>,
    /// What became of the messages, in the commit's order.
    pub sent: Vec<Delivery>,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the inbox, at this place in the order of arrival.
    Kept(u64),
    /// There was nobody to keep it for.
    Dropped,
}

/// Why a commit was not applied. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    /// It is larger than a commit may be.
    #[error(transparent)]
    TooLarge(#[from] LimitExceeded),
    /// A text has a NUL character in it.
    #[error("the {what} {text:?} has a NUL character in it, which not every database keeps")]
    Nul {
        /// What the text is for.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The same request was committed before under this key; this was the answer.
    #[error("`{operation}` with key `{key}` has been done before")]
    Done {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
        /// The recorded answer.
        answer: Bytes,
    },
    /// The key was used for another request.
    #[error("key `{key}` was used for another `{operation}`: use a new key for a new request")]
    KeyReused {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
    },
    /// The run has moved since the decision, or a message has come that was to be known; decide again.
    #[error("run {run} has moved: decided on revision {expected}, it is at {actual}")]
    Moved {
        /// The run.
        run: RunId,
        /// The revision the commit was decided on.
        expected: u64,
        /// The revision the run is at.
        actual: u64,
    },
    /// The run has another owner now: the action's result is void.
    #[error("run {run} has another owner: fence {expected} is over, it is {actual}")]
    Fenced {
        /// The run.
        run: RunId,
        /// The fence the action ran under.
        expected: u64,
        /// The fence now.
        actual: u64,
    },
    /// There is no such run.
    #[error("there is no run {run}")]
    NoRun {
        /// The run.
        run: RunId,
    },
    /// A new run's id is taken.
    #[error("run {run} exists already")]
    RunExists {
        /// The run.
        run: RunId,
    },
    /// A handle is not as it was read: it was used up, reserved or put meanwhile.
    #[error("the handle is not as it was read: decided on fence {expected:?}, it is {actual:?}")]
    Handle {
        /// The handle.
        handle: HandleHash,
        /// The fence the commit was decided on; `None` = it was not to be there.
        expected: Option<u64>,
        /// The fence now; `None` = it is not there.
        actual: Option<u64>,
    },
    /// A message to be taken is not in the inbox.
    #[error("message {seq} is not in the inbox of run {run}")]
    NoMessage {
        /// The run.
        run: RunId,
        /// The message.
        seq: u64,
    },
    /// A message's run does not exist or has ended.
    #[error("run {run} does not exist or has ended; it takes no messages")]
    NoTarget {
        /// The run.
        run: RunId,
    },
    /// The run's inbox is full.
    #[error("the inbox of run {run} is full ({max} messages)")]
    InboxFull {
        /// The run.
        run: RunId,
        /// The limit.
        max: u64,
    },
    /// An operation on a cell cannot be done.
    #[error("operation {operation} on {key}: {error}")]
    Cell {
        /// Which operation, by its place in the commit.
        operation: usize,
        /// The cell.
        key: CellKey,
        /// Why not.
        error: CellError,
    },
    /// An operation on links cannot be done.
    #[error("operation {operation} on links: {error}")]
    Link {
        /// Which operation, by its place in the commit.
        operation: usize,
        /// Why not.
        error: LinkError,
    },
    /// A result has no place in the next state.
    #[error("the result of operation {operation} cannot be put at `{pointer}`: {reason}")]
    Fill {
        /// Which operation.
        operation: usize,
        /// Where it was to go.
        pointer: String,
        /// Why it cannot.
        reason: String,
    },
    /// A document's run gets no version from this commit.
    #[error("document `{key}` of run {run}: the commit gives that run no version, so nothing could show it")]
    NoCheckpoint {
        /// The run.
        run: RunId,
        /// The document's key.
        key: String,
    },
    /// A document cannot be written.
    #[error("document `{key}` of run {run}: {error}")]
    Document {
        /// The run.
        run: RunId,
        /// The document's key.
        key: String,
        /// Why not.
        error: DocumentError,
    },
}

/// Why a commit gave no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommitError {
    /// It was not applied, for a reason that is an ordinary answer.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It may or may not have been applied: look it up with [`Store::outcome`](crate::Store::outcome), never guess.
    #[error("it is not known whether the commit was applied ({why}); look it up")]
    Unknown {
        /// Where to look.
        reference: CommitRef,
        /// What happened.
        why: String,
    },
    /// It was not applied: the store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Commit {
    /// A commit that changes nothing yet.
    pub fn new(id: CommitId, at: Timestamp) -> Self {
        Commit {
            id,
            at,
            step: None,
            create: Vec::new(),
            send: Vec::new(),
            handles: Vec::new(),
            cells: Vec::new(),
            links: Vec::new(),
            actor: None,
            fills: Vec::new(),
            documents: Vec::new(),
            keys: Vec::new(),
            definitions: Vec::new(),
            audit: Vec::new(),
        }
    }

    /// Where the trace of this commit will be found.
    pub fn reference(&self) -> CommitRef {
        let by_step = self.step.as_ref().filter(|step| !step.next.is_empty());
        let at = if let Some(step) = by_step {
            Whereabouts::Checkpoint { run: step.head.run, version: step.head.version.saturating_add(1) }
        } else if let Some(new) = self.create.first() {
            Whereabouts::Checkpoint { run: new.run, version: new.version }
        } else if let Some(key) = self.keys.first() {
            Whereabouts::Key { operation: key.operation.clone(), key: key.key.clone() }
        } else if let Some(handle) = self.left_in() {
            Whereabouts::Handle(handle)
        } else if self.is_audited() {
            Whereabouts::Audit
        } else {
            Whereabouts::Key { operation: RECORD_OPERATION.to_owned(), key: self.id.0.to_string() }
        };
        CommitRef { id: self.id, at }
    }

    /// The key under which a store records a commit that leaves no other trace.
    pub fn record(&self) -> Option<KeyWrite> {
        let leaves_trace = self.step.as_ref().is_some_and(|step| !step.next.is_empty())
            || !self.create.is_empty()
            || !self.keys.is_empty()
            || self.left_in().is_some()
            || self.is_audited();
        (!leaves_trace).then(|| KeyWrite {
            operation: RECORD_OPERATION.to_owned(),
            key: self.id.0.to_string(),
            request: [0; 32],
            answer: Bytes::new(),
            lives: Lives::Until(self.at.plus_ms(RECORD_KEPT_MS)),
        })
    }

    /// The handle in whose row it leaves its trace: the last, if that stays. A row has no room for results of operations.
    fn left_in(&self) -> Option<HandleHash> {
        let last = self.handles.last().filter(|_| self.cells.is_empty() && self.links.is_empty())?;
        matches!(last.then, HandleChange::Put(..) | HandleChange::Own(_)).then_some(last.handle)
    }

    /// Whatever it changes is on record in the audit trail.
    fn is_audited(&self) -> bool {
        self.step.is_none()
            && self.send.is_empty()
            && self.handles.is_empty()
            && !(self.cells.is_empty() && self.links.is_empty())
    }

    /// Nothing in it can fail once the run's compare-and-set has succeeded, so a backend needs no savepoint for it.
    pub fn is_plain(&self) -> bool {
        self.step.as_ref().is_none_or(|step| step.take.is_empty() && step.definition.is_none())
            && (self.step.is_none() || self.create.is_empty())
            && self.create.len() <= 1
            && self.send.is_empty()
            && self.handles.is_empty()
            && self.cells.is_empty()
            && self.links.is_empty()
            && self.fills.is_empty()
            && self.documents.is_empty()
            && self.keys.is_empty()
            && self.record().is_none()
    }

    /// Refuses what is larger than a commit may be, and text that not every database keeps; no backend is asked for that.
    pub fn check(&self, limits: &Limits) -> Result<(), Refused> {
        self.check_text()?;
        self.check_size(limits)
    }

    fn check_text(&self) -> Result<(), Refused> {
        let mut found = None;
        self.each_text(|what, text| {
            if text.contains('\0') {
                found.get_or_insert_with(|| Refused::Nul { what, text: text.to_owned() });
            }
        });
        found.map_or(Ok(()), Err)
    }

    /// Everything in it that is kept as text.
    fn each_text(&self, mut see: impl FnMut(&'static str, &str)) {
        let state = |next: &NextState, see: &mut dyn FnMut(&'static str, &str)| {
            next.places.iter().for_each(|place| see("place", place.as_str()));
        };
        if let Some(step) = &self.step {
            step.next.iter().for_each(|next| state(next, &mut see));
            step.open.iter().flat_map(OpenWait::texts).for_each(|(what, text)| see(what, text));
            step.shadows.iter().flat_map(ShadowWrite::texts).for_each(|(what, text)| see(what, text));
        }
        for new in &self.create {
            see("workflow", new.workflow.as_str());
            state(&new.first, &mut see);
            new.open.iter().flat_map(OpenWait::texts).for_each(|(what, text)| see(what, text));
            new.shadows.iter().flat_map(ShadowWrite::texts).for_each(|(what, text)| see(what, text));
        }
        self.send.iter().for_each(|send| see("topic", &send.message.topic));
        self.handles.iter().flat_map(HandleWrite::texts).for_each(|(what, text)| see(what, text));
        for cell in &self.cells {
            see("owner", &cell.key.owner);
            see("key", &cell.key.key);
        }
        self.links.iter().flat_map(LinkWrite::texts).for_each(|(what, text)| see(what, text));
        self.actor.iter().for_each(|actor| see("actor", actor));
        for document in &self.documents {
            see("key", &document.key);
            if let DocumentOp::Put { kind, tags, .. } = &document.op {
                see("type", kind.as_str());
                tags.iter().for_each(|tag| see("tag", tag));
            }
        }
        for key in &self.keys {
            see("operation", &key.operation);
            see("key", &key.key);
        }
        for definition in &self.definitions {
            see("workflow", definition.workflow.as_str());
            definition.publisher.iter().for_each(|publisher| see("publisher", publisher));
        }
        for row in &self.audit {
            see("operation", &row.operation);
            see("subject", &row.subject);
            row.actor.iter().for_each(|actor| see("actor", actor));
        }
    }

    fn check_size(&self, limits: &Limits) -> Result<(), Refused> {
        let waits = |open: &[OpenWait]| open.iter().map(|wait| wait.detail.len()).sum::<usize>();
        let state = |next: &NextState| next.state.len() + next.entry.len();
        let tries = |attempt: &Option<Bytes>| attempt.as_ref().map_or(0, Bytes::len);
        let steps = self.step.iter().map(|step| {
            let beside = step.open.len() + step.close.len() + step.shadows.len();
            let rows = 1 + step.next.len().max(1) + step.take.len() + beside;
            (rows, step.next.iter().map(state).sum::<usize>() + tries(&step.attempt) + waits(&step.open))
        });
        let created = self.create.iter().map(|new| {
            let rows = 2 + new.open.len() + new.shadows.len();
            (rows, state(&new.first) + tries(&new.attempt) + waits(&new.open))
        });
        let sent = self.send.iter().map(|send| (2, send.message.body.len()));
        let handles = self.handles.iter().map(HandleWrite::size_hint);
        let cells = self.cells.iter().map(|write| (2, write.op.size_hint()));
        let links = self.links.iter().map(LinkWrite::size_hint);
        let documents = self.documents.iter().map(DocumentWrite::size_hint);
        let keys = self.keys.iter().map(|key| (1, key.answer.len()));
        let definitions = self.definitions.iter().map(|definition| (1, definition.body.len()));
        let audit = self.audit.iter().map(|row| (1, row.detail.len()));
        let all = steps
            .chain(created)
            .chain(sent)
            .chain(handles)
            .chain(cells)
            .chain(links)
            .chain(documents)
            .chain(keys);
        let all = all.chain(definitions).chain(audit);
        let (rows, bytes) = all.fold((0, 0), |(rows, bytes), (r, b)| (rows + r, bytes + b));
        limits.commit_rows("the commit", rows)?;
        limits.commit_bytes("the commit", bytes)?;
        let state = |bytes: usize| limits.snapshot_bytes("the snapshot", bytes);
        self.create.iter().try_for_each(|new| state(new.first.state.len()))?;
        let shadows = self.step.iter().flat_map(|step| &step.shadows);
        let shadows = shadows.chain(self.handles.iter().flat_map(HandleWrite::shadows));
        shadows.chain(self.create.iter().flat_map(|new| &new.shadows)).try_for_each(ShadowWrite::check)?;
        self.step.iter().flat_map(|step| &step.next).try_for_each(|next| state(next.state.len()))?;
        Ok(())
    }
}
