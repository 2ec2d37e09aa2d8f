//! The seam: what Stepwell asks of a database, counted against the promises.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};

use crate::bad::BadRow;
use crate::cell::{Cell, OpResult, Space};
use crate::commit::{Commit, CommitError, CommitId, CommitRef, Committed, StoredDefinition};
use crate::document::{Document, DocumentQuery};
use crate::handle::{HandleHash, HandleQuery, HandleRow};
use crate::hints::Hints;
use crate::link::{Link, LinkQuery};
use crate::run::{Loaded, OpenWait, ProcessId, RunSummary, Status};
use crate::scope::{TenantId, TenantScope};
use crate::seal::Seal;
use crate::shadow::{Refill, ShadowRow};

/// A database that keeps runs and what outlives them. All writes go through [`Store::commit`].
///
/// Every call but four takes a [`TenantScope`]; the four show no tenant's data: who has work due, who is there, the
/// process heartbeat, and migration.
#[async_trait]
pub trait Store: Send + Sync {
    /// Applies a commit whole or not at all; returns when it is on disk.
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError>;

    /// What became of a commit whose answer was lost; `None` = it was not applied.
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;

    /// A run as it stands, for a turn.
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError>;

    /// Takes runs that are due and that nobody, or a dead process, owns: the dead's first, then by the time they are
    /// due, then by id. Whoever is alone need not take what can be decided without an owner, and only reads it.
    /// A run of which only the row can be read is given too ([`Loaded::damage`]); one whose row cannot be read is told
    /// of beside the others, and is not taken.
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;

    /// Which tenants have work, and since or from when. Runs owned by one of the dead have been due since ever.
    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError>;

    /// Tenants that have anything at all, in the order of their ids, from after one on.
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;

    /// I live; who else does, and who does not.
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError>;

    /// Wake-ups from now on.
    fn hints(&self) -> Hints;

    /// Cells, in the order of their names.
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;

    /// Links: a namespace's in the order of their edges, or a thing's in the order of what is at the other end.
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;

    /// Runs, newest first.
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;

    /// Open waits over all runs, in the order of run and activation. The first of a range of topics is given alone.
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;

    /// A run's history, oldest first.
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;

    /// A run's documents, in the order in which they were written.
    async fn documents(&self, scope: TenantScope, query: DocumentQuery)
    -> Result<Page<Document>, StoreError>;

    /// Small things by key.
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;

    /// Tidies up what has expired, the oldest first, a bounded number of rows at a time.
    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError>;

    /// Brings the schema up to date.
    async fn migrate(&self) -> Result<SchemaVersion, StoreError>;
}

/// What a commit left behind.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The results of its operations.
    pub results: Vec<OpResult>,
    /// The answer kept with its key.
    pub answer: Option<Bytes>,
    /// The hash of what was asked under its key, where the key was asked for.
    pub request: Option<[u8; 32]>,
}

/// Which runs a process takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who takes them; `None` = nobody does, they are only read.
    pub by: Option<ProcessId>,
    /// The engine's time.
    pub now: Timestamp,
    /// How many at most.
    pub limit: u32,
    /// Only runs pinned to these definitions; `None` = any.
    pub definitions: Option<Vec<DefinitionHash>>,
    /// Processes known to be dead: their runs are free, due or not.
    pub dead: Vec<ProcessId>,
}

/// A tenant with work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due {
    /// The tenant.
    pub tenant: TenantId,
    /// When its earliest run is due.
    pub at: Timestamp,
}

/// A process's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The process.
    pub process: ProcessId,
    /// The engine's time.
    pub now: Timestamp,
    /// How long it counts as living without another beat.
    pub lease_ms: u64,
}

/// What a heartbeat is answered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beaten {
    /// Processes that are dead and still own runs.
    pub dead: Vec<ProcessId>,
    /// How many live, this one among them.
    pub living: u64,
    /// The database's own clock, where several processes share it.
    pub clock: Option<Reading>,
}

/// A look at another clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// When it was looked at.
    pub at: std::time::Instant,
    /// What it showed.
    pub showed: Timestamp,
    /// By how much either may be wrong, because the look took a while.
    pub within: std::time::Duration,
}

/// Rows in a page when a caller asks for none or for too many.
pub const MAX_PAGE: u32 = 1_000;

/// How many rows to read for a page: what was asked for, between 1 and [`MAX_PAGE`].
pub fn page_rows(limit: u32) -> usize {
    limit.clamp(1, MAX_PAGE) as usize
}

/// A part of a listing, and where the next part begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; `None` = this was the last.
    pub next: Option<String>,
    /// Rows of this part that cannot be read.
    pub bad: Vec<BadRow>,
}

impl<T> Page<T> {
    /// A page of at most `limit` rows out of one row more than that: the row too many says that there is more.
    pub fn cut(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Self {
        let rows = page_rows(limit);
        let more = items.len() > rows;
        items.truncate(rows);
        let next = items.last().filter(|_| more).map(cursor);
        Page { items, next, bad: Vec::new() }
    }

    /// A page that is the only one.
    pub fn of(items: impl IntoIterator<Item = T>) -> Self {
        Page { items: items.into_iter().collect(), next: None, bad: Vec::new() }
    }

    /// The same page of something else.
    pub fn map<U>(self, to: impl FnMut(T) -> U) -> Page<U> {
        self.over(|items| items.into_iter().map(to).collect())
    }

    /// The same page of something else, without what is nothing there.
    pub fn filter_map<U>(self, to: impl FnMut(T) -> Option<U>) -> Page<U> {
        self.over(|items| items.into_iter().filter_map(to).collect())
    }

    /// The same page with other items.
    pub fn over<U>(self, to: impl FnOnce(Vec<T>) -> Vec<U>) -> Page<U> {
        Page { items: to(self.items), next: self.next, bad: self.bad }
    }
}

/// The first text after all that begin with a prefix; `None` if there is none.
pub fn after_prefix(prefix: &str) -> Option<String> {
    let mut text: Vec<char> = prefix.chars().collect();
    while let Some(last) = text.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            text.push(next);
            return Some(text.into_iter().collect());
        }
    }
    None
}

/// A cursor that was not made by this listing.
pub fn bad_cursor(cursor: &str) -> StoreError {
    StoreError::Invalid(format!(
        "`{cursor}` is not a cursor of this listing: use the one the page before gave"
    ))
}

/// Reads a cursor made of an id and a number.
pub fn read_cursor(cursor: Option<&str>) -> Result<Option<(uuid::Uuid, u64)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (id, number) = cursor.split_once(':')?;
        Some((id.parse().ok()?, number.parse().ok()?))
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// The cursor of a listing of keys that has come to this one. Both may hold any character.
pub fn key_cursor(operation: &str, key: &str) -> String {
    format!("{}:{operation}{key}", operation.len())
}

/// Reads what [`key_cursor`] wrote; without a cursor it is before every key.
pub fn read_key_cursor(cursor: Option<&str>) -> Result<(String, String), StoreError> {
    let Some(cursor) = cursor else { return Ok(Default::default()) };
    let read = || {
        let (length, texts) = cursor.split_once(':')?;
        let (operation, key) = texts.split_at_checked(length.parse().ok()?)?;
        Some((operation.to_owned(), key.to_owned()))
    };
    read().ok_or_else(|| bad_cursor(cursor))
}

/// Reads a cursor that is a commit's id.
pub fn read_commit_cursor(cursor: Option<&str>) -> Result<Option<CommitId>, StoreError> {
    let read = |cursor: &str| cursor.parse().map(CommitId).map_err(|_| bad_cursor(cursor));
    cursor.map(read).transpose()
}

/// The cursor of a listing of definitions that has come to this one.
pub fn definition_cursor(definition: &StoredDefinition) -> String {
    definition_place(&definition.workflow, definition.version, definition.hash)
}

/// The same by what the listing is ordered by.
pub fn definition_place(workflow: &str, version: u32, hash: DefinitionHash) -> String {
    format!("{version}:{hash}:{workflow}")
}

/// Reads what [`definition_cursor`] wrote: workflow, version and hash, the order of the listing.
pub fn read_definition_cursor(
    cursor: Option<&str>,
) -> Result<Option<(Name, u32, DefinitionHash)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (version, rest) = cursor.split_once(':')?;
        let (hash, workflow) = rest.split_once(':')?;
        Some((Name::from(workflow), version.parse().ok()?, hash.parse().ok()?))
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// Which cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellQuery {
    /// What they belong to.
    pub space: Space,
    /// Whose they are there.
    pub owner: String,
    /// Which of those.
    pub filter: CellFilter,
    /// The engine's time: what has expired by then counts as absent.
    pub now: Timestamp,
    /// Deleted and expired ones too.
    pub with_dead: bool,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

/// Which of an owner's cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellFilter {
    /// This one.
    Key(String),
    /// Those whose key begins with this text, taken literally.
    Prefix(String),
}

/// Which runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunQuery {
    /// Of this workflow.
    pub workflow: Option<Name>,
    /// Where no workflow is named: not of those whose name begins with this text, taken literally.
    pub without: Option<String>,
    /// Doing so.
    pub status: Option<Status>,
    /// Children of this run.
    pub parent: Option<RunId>,
    /// Whose shadow columns hold these values; the workflow has to be named with them.
    pub shadows: Vec<(Name, ShadowValue)>,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

impl RunQuery {
    /// A column belongs to a workflow: without one, what it is called says nothing.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.shadows.is_empty() || self.workflow.is_some() {
            return Ok(());
        }
        let why = "runs are found by shadow columns of one workflow: name it";
        Err(StoreError::Invalid(why.to_owned()))
    }

    /// What the name of a run's workflow must not begin with.
    pub fn barred(&self) -> Option<&str> {
        self.without.as_deref().filter(|_| self.workflow.is_none())
    }
}

/// Which open waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitQuery {
    /// Which.
    pub of: WaitsOf,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

/// Which open waits, by what they have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WaitsOf {
    /// All of them.
    #[default]
    All,
    /// Those of this run.
    Run(RunId),
    /// Those for this topic.
    Topic(String),
    /// The first in the order of topics, from one on and before another. There is no page after it.
    FirstTopic {
        /// From this one on.
        from: String,
        /// Before this one.
        before: String,
    },
}

impl WaitsOf {
    /// A wait is one of them.
    pub fn has(&self, run: RunId, wait: &OpenWait) -> bool {
        match self {
            WaitsOf::All => true,
            WaitsOf::Run(of) => *of == run,
            WaitsOf::Topic(topic) => wait.topic.as_ref() == Some(topic),
            WaitsOf::FirstTopic { from, before } => {
                wait.topic.as_ref().is_some_and(|topic| topic >= from && topic < before)
            }
        }
    }
}

/// An open wait and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitRow {
    /// The run.
    pub run: RunId,
    /// The wait.
    pub wait: OpenWait,
}

/// Which part of a run's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The run.
    pub run: RunId,
    /// From this version on.
    pub from: u64,
    /// The snapshots too.
    pub with_state: bool,
    /// How many at most.
    pub limit: u32,
}

/// A checkpoint in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    /// The version.
    pub version: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The commit.
    pub commit: CommitId,
    /// The history entry.
    pub entry: Bytes,
    /// The snapshot, if it was asked for.
    pub state: Option<Bytes>,
}

/// Which small things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordQuery {
    /// A definition.
    Definition(DefinitionHash),
    /// The definitions, in the order of workflow, version and hash.
    Definitions {
        /// Of this workflow.
        workflow: Option<Name>,
        /// How many at most.
        limit: u32,
        /// Where to begin.
        cursor: Option<String>,
    },
    /// The record of a key.
    Key {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
        /// The engine's time: a key that has expired by then is not there.
        now: Timestamp,
    },
    /// The records of all keys, expired ones too, in the order of operation and key.
    Keys {
        /// How many at most.
        limit: u32,
        /// Where to begin.
        cursor: Option<String>,
    },
    /// The audit trail, in the order of its commits' ids.
    Audit {
        /// How many at most.
        limit: u32,
        /// Where to begin.
        cursor: Option<String>,
    },
    /// The seals of the audit trail, oldest first.
    Seals {
        /// From this one on.
        from: u64,
        /// How many at most.
        limit: u32,
    },
    /// Commits whose rows in the audit trail are not sealed yet, in the order of their ids.
    Unsealed {
        /// How many at most.
        limit: u32,
        /// Where to begin.
        cursor: Option<String>,
    },
    /// The shadow columns of a run that hold something, by name.
    Shadows(RunId),
    /// A handle.
    Handle(HandleHash),
    /// Handles, in the order of flow or run, and handle.
    Handles(HandleQuery),
    /// Whether a process lives: it is given if it does.
    Living {
        /// The process.
        process: ProcessId,
        /// The engine's time.
        now: Timestamp,
    },
    /// The processes that are known, in the order of their ids. Nobody's own: every tenant is told the same.
    Processes {
        /// How many at most.
        limit: u32,
    },
    /// Handles whose delivery is due, in the order in which they are.
    Undelivered {
        /// Due by then.
        now: Timestamp,
        /// How many at most.
        limit: u32,
    },
    /// What is in use and how often, in the order of the names.
    Tally {
        /// What.
        of: Tally,
        /// How many at most.
        limit: u32,
        /// Where to begin.
        cursor: Option<String>,
    },
}

/// What can be counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tally {
    /// Namespaces of the key-value store, by their keys that have a value.
    Keys {
        /// The engine's time: what has expired by then is not counted.
        now: Timestamp,
    },
    /// Namespaces of links, by their links.
    Links,
    /// Types at the ends of a namespace's links, by those ends.
    Types {
        /// The namespace.
        namespace: String,
    },
    /// Relations of a namespace's links, by those links.
    Relations {
        /// The namespace.
        namespace: String,
    },
    /// Runs that somebody owns, whose time comes, that are pending, suspended or failed, or that wait for something: all of them under the
    /// name `live`, which is not there if there are none.
    Runs {
        /// Counted up to so many, and no further.
        max: u32,
    },
}

/// A small thing.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A definition.
    Definition(StoredDefinition),
    /// What was recorded for a key.
    Key(Recorded),
    /// A row of the audit trail.
    Audit {
        /// The commit that wrote it.
        commit: CommitId,
        /// Its place among the rows of that commit.
        ordinal: u64,
        /// When.
        at: Timestamp,
        /// The row.
        row: crate::commit::AuditRow,
    },
    /// A seal of the audit trail.
    Seal(Seal),
    /// A commit whose rows in the audit trail are not sealed yet.
    Unsealed(CommitId),
    /// A shadow column of a run.
    Shadow(ShadowRow),
    /// A handle.
    Handle(Box<HandleRow>),
    /// A process that lives.
    Living(ProcessId),
    /// A process that is known.
    Process {
        /// The process.
        process: ProcessId,
        /// Until when it counts as living by its last heartbeat.
        lives_until: Timestamp,
    },
    /// Something that is in use.
    Tally {
        /// Its name.
        name: String,
        /// How often.
        count: u64,
    },
}

/// What to tidy up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// The engine's time.
    pub now: Timestamp,
    /// How many rows at most.
    pub limit: u32,
    /// What.
    pub what: SweepWhat,
}

/// What can be tidied up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepWhat {
    /// Expired cells become tombstones.
    Cells,
    /// What is left of deleted and expired cells of a namespace goes, where it is this old: those keys count as never
    /// written from then on.
    Tombstones {
        /// The namespace.
        namespace: String,
        /// Last written before.
        before: Timestamp,
    },
    /// Rows of the audit trail that are not sealed yet get a seal, all of them one. The limit is in commits.
    Seal,
    /// Expired keys go.
    Keys,
    /// Handles that were over by then go, and the shadow columns of the flows that rested there.
    Handles {
        /// Over by then.
        expired_by: Timestamp,
    },
    /// Runs that ended before this go, with everything that is theirs but the audit trail. One that has ended and is
    /// still to be looked at (it has a wake time) stays.
    Runs {
        /// Ended before.
        ended_before: Timestamp,
    },
    /// A run's old checkpoints go, and the documents that only they showed. The newest stay, and what their states are
    /// built on. A batch ends where a chain of deltas does, so that it is one whole chain even if that is longer than
    /// the limit. [`Store::outcome`] no longer finds a commit whose checkpoint is gone.
    History {
        /// The run.
        run: RunId,
        /// How many of the newest checkpoints are kept; the newest is, in any case.
        keep: u64,
    },
    /// Shadow columns of runs become what they should be; the limit does not matter.
    Shadows(Vec<Refill>),
    /// A run goes, with everything that is its own but the audit trail, whether it has ended or not and whatever of it
    /// can be read.
    Run(RunId),
    /// A run whose row cannot be read fails and is not looked at again by itself.
    Aside(RunId),
}

/// What was tidied up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// How many cells, keys, handles or runs; or rows that were sealed; of a history, how many checkpoints and documents; of shadow
    /// columns, how many rows were written or removed.
    pub count: u64,
    /// The limit was reached: there may be more. Of shadow columns: a run has moved since it was read.
    pub more: bool,
}

/// The number of the newest migration a database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaVersion(pub u32);

/// The store could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Not now; the same call may succeed later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// There is no room; nothing was lost, and it may succeed when there is.
    #[error("the store has no room left: {0}")]
    Full(String),
    /// The store can no longer be trusted with writes and must be opened again.
    #[error("the store has failed and must be opened again: {0}")]
    Fatal(String),
    /// What is stored cannot be read.
    #[error("what is stored cannot be read: {0}")]
    Corrupt(String),
    /// A row that was asked for, or that has to be read for what was asked, cannot be read.
    #[error("a stored row cannot be read: {0}")]
    Bad(BadRow),
    /// The schema is not one this version can use.
    #[error("{0}")]
    Schema(String),
    /// The call itself is wrong.
    #[error("{0}")]
    Invalid(String),
}

impl From<crate::delta::Unreadable> for StoreError {
    fn from(error: crate::delta::Unreadable) -> Self {
        StoreError::Corrupt(error.to_string())
    }
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        (**self).commit(scope, commit).await
    }
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        (**self).outcome(scope, commit).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        (**self).load(scope, run).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        (**self).claim(scope, claim).await
    }
    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError> {
        (**self).due(dead).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        (**self).tenants(after, limit).await
    }
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        (**self).beat(beat).await
    }
    fn hints(&self) -> Hints {
        (**self).hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        (**self).cells(scope, query).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        (**self).links(scope, query).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        (**self).runs(scope, query).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        (**self).waits(scope, query).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        (**self).history(scope, query).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        (**self).documents(scope, query).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        (**self).records(scope, query).await
    }
    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError> {
        (**self).sweep(scope, sweep).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        (**self).migrate().await
    }
}
