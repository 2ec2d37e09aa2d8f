//! The only write: everything a decision changes, as one value that a store applies atomically.
//!
//! A store destructures a [`Commit`] without `..`, so that a new field does not compile until every backend writes it.
//! The order of the checks is part of the contract: text, size, keys, the run, its inbox, new runs, handles, cells,
//! links, result bindings, documents, messages. The first failed check refuses the whole commit.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, LimitExceeded, Limits, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{CellError, CellKey, CellWrite, OpResult};
use crate::document::{DocumentError, DocumentOp, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleWrite};
use crate::link::{LinkError, LinkWrite};
use crate::run::{Head, Parent, ProcessId, Status, StoredWait};
use crate::shadow::ShadowWrite;
use crate::store::StoreError;

/// A commit's own id, stored with the rows it wrote. A commit whose answer was lost is looked up by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommitId(pub Uuid);

/// Retention of the record of a commit that left no other trace, in milliseconds.
/// [`Store::outcome`](crate::Store::outcome) reads it.
pub const RECORD_TTL_MS: u64 = 24 * 60 * 60 * 1_000;
/// The operation under which such records are stored.
pub const RECORD_OPERATION: &str = "commit";

/// Everything that a decision changes. All parts are optional.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    pub id: CommitId,
    /// The engine's clock at the decision.
    pub at: Timestamp,
    /// The step of an existing run.
    pub step: Option<RunUpdate>,
    /// New runs: a start, or children.
    pub create: Vec<NewRun>,
    pub send: Vec<SendMessage>,
    /// Handle writes, in order: put, reserve, deliver or use up.
    pub handles: Vec<HandleWrite>,
    /// Operations on cells, in order. Each change is recorded in the audit trail.
    pub cells: Vec<CellWrite>,
    /// Operations on links, in order, after those on cells. Each changed edge is recorded in the audit trail.
    pub links: Vec<LinkWrite>,
    /// The actor recorded for those operations, if not the run alone.
    pub actor: Option<String>,
    /// Results of those operations to put into the next state.
    pub bindings: Vec<ResultBinding>,
    /// Documents of the runs that get a version, in order. With several versions, the first one shows them.
    pub documents: Vec<DocumentWrite>,
    /// Idempotency keys under which a repetition of this commit is recognized.
    pub keys: Vec<KeyWrite>,
    /// Definitions that its runs are pinned to. Known ones are not overwritten.
    pub definitions: Vec<StoredDefinition>,
    /// Additional rows of the audit trail.
    pub audit: Vec<AuditRow>,
}

/// A change to an existing run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunUpdate {
    /// The head it was decided on. The commit is refused if the run has changed since.
    pub head: Head,
    /// The fence under which its action ran; `None` for a decision that needs no owner.
    pub fence: Option<u64>,
    /// The decision saw every message in the inbox. A newer message refuses the commit as [`Refused::Moved`].
    pub in_order: bool,
    /// The snapshots that follow, one version each. Empty if only the row changes (a failed attempt, a suspension).
    pub next: Vec<NextState>,
    /// The run's status after the step.
    pub status: Status,
    /// The code of the error that stops the run, as [`stored_error`](crate::run::stored_error) returns it. Kept only with
    /// the status [`Status::Failed`].
    pub error: Option<String>,
    /// The next wake-up time. If a message arrived that the decision did not see, the row keeps its own time if that is
    /// earlier.
    pub wake: Option<Timestamp>,
    /// The run's owner after the step.
    pub owner: Ownership,
    /// Ledger of attempts: last errors and the time of the next attempt, as the engine wrote them.
    pub ledger: Option<Bytes>,
    /// The definition it is pinned to from now on, if that changes.
    pub definition: Option<DefinitionHash>,
    /// Sequence numbers of messages to remove from its inbox.
    pub take: Vec<u64>,
    pub open: Vec<StoredWait>,
    /// Activations whose waits close.
    pub close: Vec<u64>,
    /// Shadow columns that change. The last of several writes to one column wins.
    pub shadows: Vec<ShadowWrite>,
}

impl RunUpdate {
    /// Returns the error code that the run's row has after the step.
    pub fn stored_error(&self) -> Option<&str> {
        self.error.as_deref().filter(|_| self.status == Status::Failed)
    }
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

/// The owner of a run after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The owner stays the same.
    Keep,
    /// This process becomes the owner. The fence is raised if it was not the owner already.
    Take(ProcessId),
    /// The run has no owner.
    Release,
}

/// A run that starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    pub run: RunId,
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// The version it starts with: 0, or the version that the flow had when it became a durable run.
    pub version: u64,
    pub first: NextState,
    pub status: Status,
    /// Code of the error with which the run stops at once, as in [`RunUpdate::error`].
    pub error: Option<String>,
    /// The first wake-up time.
    pub wake: Option<Timestamp>,
    /// The process that owns it from the start.
    pub owner: Option<ProcessId>,
    pub parent: Option<Parent>,
    /// The root of its tree; itself if it has no parent.
    pub root: RunId,
    /// Ledger, as in [`RunUpdate::ledger`].
    pub ledger: Option<Bytes>,
    /// Waits that are open from the start.
    pub open: Vec<StoredWait>,
    /// Initial values of its shadow columns.
    pub shadows: Vec<ShadowWrite>,
}

/// A message for a run of the same tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendMessage {
    pub to: RunId,
    pub message: NewMessage,
    /// The effect if the run does not exist or has ended.
    pub missing: OnMissingRun,
}

impl SendMessage {
    /// Returns the run that the message creates if it does not exist.
    pub fn creates(&self) -> Option<&NewRun> {
        match &self.missing {
            OnMissingRun::Create(new) => Some(new),
            OnMissingRun::Refuse | OnMissingRun::Drop => None,
        }
    }
}

/// The effect of a message whose run does not exist or has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnMissingRun {
    /// Refuses the whole commit.
    Refuse,
    /// Drops the message and applies the rest of the commit.
    Drop,
    /// Creates this run for the message. A run of this id that has ended gets its status and wake-up time instead, and
    /// keeps everything else.
    Create(Box<NewRun>),
}

/// A message to be put into an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// The topic, as the engine named it.
    pub topic: String,
    /// The content, as the engine wrote it.
    pub body: Bytes,
    /// The message expires at this time; `None` = it never expires.
    pub expires_at: Option<Timestamp>,
    /// The message counts against the inbox's limit. The engine's own messages do not.
    pub counts: bool,
}

/// Puts the result of an operation into the next state. A commit with result bindings has exactly one next state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultBinding {
    /// Index of the operation in [`Commit::cells`] followed by [`Commit::links`].
    pub operation: usize,
    pub part: ResultPart,
    /// JSON pointer into the next state. The parent must be an existing object.
    pub pointer: String,
}

/// A part of an operation's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultPart {
    /// The sum of an increment or the item of a removal; a link's id, or the number of deleted links.
    Value,
    Revision,
    /// True if the key or link was absent before.
    Created,
    /// True if the key had a value before, or a link was deleted.
    Existed,
    /// True if the operation returned a value, such as the item of a removal.
    Found,
}

impl ResultPart {
    /// Extracts this part of a result.
    pub fn of(self, result: &OpResult) -> serde_json::Value {
        match self {
            ResultPart::Value => result.value.clone().unwrap_or_default(),
            ResultPart::Revision => result.revision.into(),
            ResultPart::Created => result.created.into(),
            ResultPart::Existed => result.existed.into(),
            ResultPart::Found => result.value.is_some().into(),
        }
    }
}

/// An idempotency key: a commit with a key that is in use is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWrite {
    /// Scope of the key: the same key under another operation is a different key.
    pub operation: String,
    pub key: String,
    /// A hash of the request. The same key with another hash is refused as [`Refused::KeyReused`].
    pub request: [u8; 32],
    /// The answer to a repeated request.
    pub answer: Bytes,
    pub lifetime: KeyLifetime,
}

/// The lifetime of an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLifetime {
    Until(Timestamp),
    /// As long as this run exists.
    WithRun(RunId),
    /// Until a time, but not longer than this run exists.
    UntilWithRun(Timestamp, RunId),
}

impl KeyLifetime {
    /// Returns the time at which the key expires; `None` if it has no such time.
    pub fn until(self) -> Option<Timestamp> {
        match self {
            KeyLifetime::Until(until) | KeyLifetime::UntilWithRun(until, _) => Some(until),
            KeyLifetime::WithRun(_) => None,
        }
    }

    /// Returns the run with which the key is removed; `None` if it belongs to no run.
    pub fn run(self) -> Option<RunId> {
        match self {
            KeyLifetime::WithRun(run) | KeyLifetime::UntilWithRun(_, run) => Some(run),
            KeyLifetime::Until(_) => None,
        }
    }
}

/// A definition as stored: immutable, identified by its content hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDefinition {
    pub hash: DefinitionHash,
    pub workflow: Name,
    /// The version number that the author gave.
    pub version: u32,
    /// Canonical form of the definition; `hash` is computed over it.
    pub body: Bytes,
    /// The publisher and their permissions (JSON); `None` = the embedding program.
    pub publisher: Option<String>,
}

/// A row of the audit trail. It never changes once written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    pub operation: String,
    /// The address of the changed object.
    pub subject: String,
    pub actor: Option<String>,
    pub run: Option<RunId>,
    /// Further details (JSON). Rows about cells and links contain no values.
    pub detail: Bytes,
}

/// The id of a commit and the place of its trace, to look up its outcome. Because the place is known,
/// checkpoints, handles and keys need no index on commit ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRef {
    pub id: CommitId,
    pub at: CommitTrace,
}

/// The place of a commit's trace. A commit writes a separate record only if it leaves no other trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitTrace {
    Checkpoint {
        run: RunId,
        version: u64,
    },
    /// In this handle's row.
    Handle(HandleHash),
    /// In this key's record.
    Key {
        operation: String,
        key: String,
    },
    /// In the audit trail. A commit that changed nothing is not found there; repeating it changes nothing again.
    Audit,
}

/// The result of an applied commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// The run's head after the step.
    pub head: Option<Head>,
    /// Heads of the new runs, in the commit's order.
    pub created: Vec<Head>,
    /// Results of the operations in the commit's order: cells, then links.
    pub results: Vec<OpResult>,
    /// Delivery of each message, in the commit's order.
    pub sent: Vec<Delivery>,
}

/// The delivery of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the inbox under this sequence number.
    Enqueued(u64),
    /// It was dropped because its run does not exist or has ended.
    Dropped,
}

/// The reason a commit was not applied. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The commit exceeds a limit.
    #[error(transparent)]
    TooLarge(#[from] LimitExceeded),
    /// A text contains a NUL character, which some databases cannot store.
    #[error("the {what} {text:?} contains a NUL character, which some databases cannot store; remove it")]
    Nul {
        /// The kind of text, for example `key` or `workflow`.
        what: &'static str,
        text: String,
    },
    /// The same request was committed earlier under this key; `answer` is its answer.
    #[error("`{operation}` with key `{key}` was already done")]
    Done { operation: String, key: String, answer: Bytes },
    /// The key was used for another request.
    #[error(
        "key `{key}` was already used for another `{operation}` request: use a new key for a new request"
    )]
    KeyReused { operation: String, key: String },
    /// The run has changed since the decision, or an unseen message arrived. Decide again.
    #[error(
        "run {run} has changed since it was loaded at revision {expected} (now {actual}): load it again and retry"
    )]
    Moved {
        run: RunId,
        /// The revision the commit was decided on.
        expected: u64,
        /// The revision the run is at.
        actual: u64,
    },
    /// The run has another owner now, so the action's result is void.
    #[error("run {run} has another owner: expected fence {expected}, found {actual}")]
    Fenced {
        run: RunId,
        /// The fence the action ran under.
        expected: u64,
        actual: u64,
    },
    /// The run does not exist.
    #[error("run {run} does not exist")]
    NoRun { run: RunId },
    /// A new run's id is taken.
    #[error("run {run} already exists")]
    RunExists { run: RunId },
    /// A handle has changed since it was read: it was used up, reserved or put.
    #[error("the handle has changed since it was read: expected fence {expected:?}, found {actual:?}")]
    Handle {
        handle: HandleHash,
        /// The fence the commit was decided on; `None` = the handle was expected to be absent.
        expected: Option<u64>,
        /// The current fence; `None` = the handle does not exist.
        actual: Option<u64>,
    },
    /// A message to be taken is not in the inbox.
    #[error("message {seq} is not in the inbox of run {run}")]
    NoMessage { run: RunId, seq: u64 },
    /// A message's run does not exist or has ended.
    #[error("run {run} does not exist or has ended: it accepts no messages")]
    NoTarget { run: RunId },
    /// The run's inbox is full.
    #[error("the inbox of run {run} is full ({max} messages)")]
    InboxFull { run: RunId, max: u64 },
    /// An operation on a cell failed.
    #[error("operation {operation} on {key}: {error}")]
    Cell {
        /// Index of the operation in the commit.
        operation: usize,
        key: CellKey,
        error: CellError,
    },
    /// An operation on links failed.
    #[error("operation {operation} on links: {error}")]
    Link {
        /// Index of the operation in the commit: cells first, then links.
        operation: usize,
        error: LinkError,
    },
    /// A result cannot be put into the next state.
    #[error("the result of operation {operation} cannot be put at `{pointer}`: {reason}")]
    ResultBinding {
        operation: usize,
        /// The JSON pointer it was meant for.
        pointer: String,
        reason: String,
    },
    /// A document's run gets no version from this commit.
    #[error("document `{key}` of run {run}: the commit creates no version of that run that could show it")]
    NoCheckpoint { run: RunId, key: String },
    /// A document cannot be written.
    #[error("document `{key}` of run {run}: {error}")]
    Document { run: RunId, key: String, error: DocumentError },
}

/// The reason a commit gave no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommitError {
    /// It was not applied: an ordinary refusal.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It may or may not have been applied. Look it up with [`Store::outcome`](crate::Store::outcome).
    #[error("the outcome of the commit is unknown ({why}): look it up before you retry")]
    Unknown { reference: CommitRef, why: String },
    /// It was not applied because the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Commit {
    /// Creates a commit that changes nothing yet.
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
            bindings: Vec::new(),
            documents: Vec::new(),
            keys: Vec::new(),
            definitions: Vec::new(),
            audit: Vec::new(),
        }
    }

    /// Returns the reference by which this commit can be looked up.
    pub fn reference(&self) -> CommitRef {
        let by_step = self.step.as_ref().filter(|step| !step.next.is_empty());
        let at = if let Some(step) = by_step {
            CommitTrace::Checkpoint { run: step.head.run, version: step.head.version.saturating_add(1) }
        } else if let Some(new) = self.create.first() {
            CommitTrace::Checkpoint { run: new.run, version: new.version }
        } else if let Some(key) = self.keys.first() {
            CommitTrace::Key { operation: key.operation.clone(), key: key.key.clone() }
        } else if let Some(handle) = self.trace_handle() {
            CommitTrace::Handle(handle)
        } else if self.is_audited() {
            CommitTrace::Audit
        } else {
            CommitTrace::Key { operation: RECORD_OPERATION.to_owned(), key: self.id.0.to_string() }
        };
        CommitRef { id: self.id, at }
    }

    /// Returns the key under which a store records this commit, or `None` if the commit leaves another trace.
    pub fn record(&self) -> Option<KeyWrite> {
        let leaves_trace = self.step.as_ref().is_some_and(|step| !step.next.is_empty())
            || !self.create.is_empty()
            || !self.keys.is_empty()
            || self.trace_handle().is_some()
            || self.is_audited();
        (!leaves_trace).then(|| KeyWrite {
            operation: RECORD_OPERATION.to_owned(),
            key: self.id.0.to_string(),
            request: [0; 32],
            answer: Bytes::new(),
            lifetime: KeyLifetime::Until(self.at.plus_ms(RECORD_TTL_MS)),
        })
    }

    /// Returns the handle whose row holds the commit's trace: the last one written, if it stays. A row cannot store
    /// results of operations.
    fn trace_handle(&self) -> Option<HandleHash> {
        let last = self.handles.last().filter(|_| self.cells.is_empty() && self.links.is_empty())?;
        matches!(last.then, HandleChange::Put(..) | HandleChange::SetOwner(_)).then_some(last.handle)
    }

    /// Returns true if the audit trail records every change of this commit.
    fn is_audited(&self) -> bool {
        self.step.is_none()
            && self.send.is_empty()
            && self.handles.is_empty()
            && !(self.cells.is_empty() && self.links.is_empty())
    }

    /// Returns true if nothing can fail once the run's compare-and-set has succeeded. A backend needs no savepoint
    /// then.
    pub fn is_plain(&self) -> bool {
        self.step.as_ref().is_none_or(|step| step.take.is_empty() && step.definition.is_none())
            && (self.step.is_none() || self.create.is_empty())
            && self.create.len() <= 1
            && self.send.is_empty()
            && self.handles.is_empty()
            && self.cells.is_empty()
            && self.links.is_empty()
            && self.bindings.is_empty()
            && self.documents.is_empty()
            && self.keys.is_empty()
            && self.record().is_none()
    }

    /// Refuses a commit that exceeds a limit or contains text that some databases cannot store. Reads no rows.
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

    /// Visits every value of the commit that is stored as text.
    fn each_text(&self, mut see: impl FnMut(&'static str, &str)) {
        let state = |next: &NextState, see: &mut dyn FnMut(&'static str, &str)| {
            next.places.iter().for_each(|place| see("place", place.as_str()));
        };
        if let Some(step) = &self.step {
            step.next.iter().for_each(|next| state(next, &mut see));
            step.open.iter().flat_map(StoredWait::texts).for_each(|(what, text)| see(what, text));
            step.shadows.iter().flat_map(ShadowWrite::texts).for_each(|(what, text)| see(what, text));
        }
        for new in self.create.iter().chain(self.send.iter().filter_map(SendMessage::creates)) {
            see("workflow", new.workflow.as_str());
            state(&new.first, &mut see);
            new.open.iter().flat_map(StoredWait::texts).for_each(|(what, text)| see(what, text));
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
        let waits = |open: &[StoredWait]| open.iter().map(|wait| wait.detail.len()).sum::<usize>();
        let state = |next: &NextState| next.state.len() + next.entry.len();
        let ledger_bytes = |ledger: &Option<Bytes>| ledger.as_ref().map_or(0, Bytes::len);
        let steps = self.step.iter().map(|step| {
            let extra_rows = step.open.len() + step.close.len() + step.shadows.len();
            let rows = 1 + step.next.len().max(1) + step.take.len() + extra_rows;
            (
                rows,
                step.next.iter().map(state).sum::<usize>() + ledger_bytes(&step.ledger) + waits(&step.open),
            )
        });
        let created = self.create.iter().map(|new| {
            let rows = 2 + new.open.len() + new.shadows.len();
            (rows, state(&new.first) + ledger_bytes(&new.ledger) + waits(&new.open))
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
