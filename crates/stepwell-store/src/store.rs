//! The storage interface that every backend implements: the [`Store`] trait, its queries and its errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};

use crate::bad::BadRow;
use crate::cell::{Cell, OpResult, Space};
use crate::commit::{Commit, CommitError, CommitId, CommitRef, Committed, StoredDefinition};
use crate::document::{Document, DocumentQuery};
use crate::handle::{HandleHash, HandleQuery, HandleRow};
use crate::hints::Hints;
use crate::link::{Link, LinkQuery};
use crate::run::{Loaded, ProcessId, RunSummary, StoredWait};
use crate::run_query::{RunCount, RunFilter, RunQuery};
use crate::scope::{TenantId, TenantScope};
use crate::seal::Seal;
use crate::shadow::{ShadowRefill, ShadowRow};

/// Durable storage for runs, data and definitions.
///
/// [`Store::commit`] writes everything that the engine decides. Claims, heartbeats and maintenance have their own
/// methods.
///
/// Five methods take no [`TenantScope`]: `due`, `tenants`, `heartbeat`, `hints` and `migrate`. They name tenants, runs
/// and cells, but reveal nothing of their content. Every other method sees only the rows of the tenant it is given.
#[async_trait]
pub trait Store: Send + Sync {
    /// Applies a commit atomically and returns once it is durable.
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError>;

    /// Looks up a commit whose acknowledgement was lost. `None` means it was not applied.
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;

    /// Loads a run with its snapshot and its inbox, consistent with one another. `None` means it does not exist.
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError>;

    /// Claims due runs that have no owner, and all runs whose owner is an expired process.
    ///
    /// Runs of expired processes come first, then the others by due time, then by id. With [`Claim::by`] `None` the
    /// runs are only read; their rows do not change.
    ///
    /// A run whose state or inbox cannot be read is claimed too, with [`Loaded::damage`] set. A run whose row cannot be
    /// read is not claimed; it is reported in [`Page::bad`].
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;

    /// Returns the tenants that have work, each with the time at which its earliest run is due, past or future.
    ///
    /// A run that is owned by one of the `expired` processes is due since [`Timestamp::MIN`]. So a tenant whose
    /// only work is such a run is found too.
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError>;

    /// Lists the tenants that have any data, in the order of their ids, starting after `after`.
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;

    /// Renews this process's lease. Returns the expired processes that still own runs.
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError>;

    /// Subscribes to the hints that are sent from now on.
    fn hints(&self) -> Hints;

    /// Lists the cells of one owner in the order of their keys, compared by bytes.
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;

    /// Lists links: those of a namespace in the order of their edges, or those of one entity in the order of the other
    /// end.
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;

    /// Lists runs, newest first by default. A page that has read [`MAX_ROWS_READ`](crate::MAX_ROWS_READ) rows ends early,
    /// so that a short or empty page can have a cursor.
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;

    /// Lists open waits of all runs in the order of run and activation. [`WaitFilter::FirstTopic`] returns one wait, and
    /// [`WaitFilter::Due`] lists by due time.
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;

    /// Lists a run's history, oldest first. [`Page::next`] is the version at which the next page begins.
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;

    /// Lists a run's documents in the order in which they were written.
    async fn documents(&self, scope: TenantScope, query: DocumentQuery)
    -> Result<Page<Document>, StoreError>;

    /// Looks up or lists auxiliary records: definitions, keys, the audit trail, shadow columns, handles, processes,
    /// counts.
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;

    /// Runs one batch of maintenance: at most [`Cleanup::limit`] rows, oldest first.
    ///
    /// No answer about cells or idempotency keys depends on it: an expired one counts as absent before it is removed.
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError>;

    /// Brings the schema up to date. Repeating it changes nothing.
    async fn migrate(&self) -> Result<SchemaVersion, StoreError>;
}

/// The stored trace of a commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Results of its operations: cells, then links.
    pub results: Vec<OpResult>,
    /// The answer stored with its idempotency key; `None` if the trace is not in a key's record.
    pub answer: Option<Bytes>,
    /// The request hash stored with the key. Set by [`RecordQuery::Key`] and [`RecordQuery::Keys`] only.
    pub request: Option<[u8; 32]>,
}

/// A request to claim due runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The new owner; `None` = the runs are only read.
    pub by: Option<ProcessId>,
    /// The engine's clock: runs are due up to this time.
    pub now: Timestamp,
    /// Maximum number of runs.
    pub limit: u32,
    /// Only runs pinned to these definitions; `None` = no restriction.
    pub definitions: Option<Vec<DefinitionHash>>,
    /// Expired processes. Their runs can be claimed whether they are due or not.
    pub expired: Vec<ProcessId>,
}

/// A tenant that has work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueTenant {
    pub tenant: TenantId,
    /// The time at which its earliest run is due.
    pub at: Timestamp,
}

/// A process and how long its lease lasts from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    pub process: ProcessId,
    /// The engine's clock, from which the lease is counted.
    pub now: Timestamp,
    /// Length of the lease in milliseconds, counted from `now`.
    pub lease_ms: u64,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// Processes whose lease has expired and that still own runs.
    pub expired: Vec<ProcessId>,
    /// Number of processes with a valid lease, including this one.
    pub alive: u64,
    /// A reading of the database's clock; `None` if the store has no clock that other processes share.
    pub clock: Option<ClockReading>,
}

/// A reading of another clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// The local time of the reading: the middle of the round trip.
    pub at: std::time::Instant,
    /// The time that the other clock showed.
    pub remote_time: Timestamp,
    /// Maximum error of `at`: half of the round trip.
    pub max_error: std::time::Duration,
}

/// Maximum number of rows in a page.
pub const MAX_PAGE: u32 = 1_000;

/// Returns the number of rows to read for a page: `limit`, but at least 1 and at most [`MAX_PAGE`].
pub fn page_rows(limit: u32) -> usize {
    limit.clamp(1, MAX_PAGE) as usize
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The cursor of the next page; `None` = this is the last page.
    pub next: Option<String>,
    /// Rows of this page that cannot be read.
    pub bad: Vec<BadRow>,
}

impl<T> Page<T> {
    /// Builds a page of at most `limit` rows from up to one row more. The extra row shows that another page follows.
    pub fn cut(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Self {
        let rows = page_rows(limit);
        let more = items.len() > rows;
        items.truncate(rows);
        let next = items.last().filter(|_| more).map(cursor);
        Page { items, next, bad: Vec::new() }
    }

    /// Builds a page that holds all items; no page follows.
    pub fn of(items: impl IntoIterator<Item = T>) -> Self {
        Page { items: items.into_iter().collect(), next: None, bad: Vec::new() }
    }

    /// Converts every item of the page.
    pub fn map<U>(self, to: impl FnMut(T) -> U) -> Page<U> {
        self.over(|items| items.into_iter().map(to).collect())
    }

    /// Converts the items and drops those for which `to` returns `None`.
    pub fn filter_map<U>(self, to: impl FnMut(T) -> Option<U>) -> Page<U> {
        self.over(|items| items.into_iter().filter_map(to).collect())
    }

    /// Replaces the items and keeps the cursor and the unreadable rows.
    pub fn over<U>(self, to: impl FnOnce(Vec<T>) -> Vec<U>) -> Page<U> {
        Page { items: to(self.items), next: self.next, bad: self.bad }
    }
}

/// Returns the smallest text that is greater than every text with this prefix; `None` if there is no such text.
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

/// Reports a cursor that this listing did not return.
pub fn bad_cursor(cursor: &str) -> StoreError {
    StoreError::Invalid(format!(
        "`{cursor}` is not a cursor of this listing: use the one that the previous page returned"
    ))
}

/// Parses a cursor that consists of an id and a number.
pub fn read_cursor(cursor: Option<&str>) -> Result<Option<(uuid::Uuid, u64)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (id, number) = cursor.split_once(':')?;
        Some((id.parse().ok()?, number.parse().ok()?))
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// Returns the cursor after this key in a listing of keys. Both texts may contain any character.
pub fn key_cursor(operation: &str, key: &str) -> String {
    format!("{}:{operation}{key}", operation.len())
}

/// Parses a cursor of [`key_cursor`]. Without a cursor it returns a position before every key.
pub fn read_key_cursor(cursor: Option<&str>) -> Result<(String, String), StoreError> {
    let Some(cursor) = cursor else { return Ok(Default::default()) };
    let read = || {
        let (length, texts) = cursor.split_once(':')?;
        let (operation, key) = texts.split_at_checked(length.parse().ok()?)?;
        Some((operation.to_owned(), key.to_owned()))
    };
    read().ok_or_else(|| bad_cursor(cursor))
}

/// Parses a cursor that is a commit's id.
pub fn read_commit_cursor(cursor: Option<&str>) -> Result<Option<CommitId>, StoreError> {
    let read = |cursor: &str| cursor.parse().map(CommitId).map_err(|_| bad_cursor(cursor));
    cursor.map(read).transpose()
}

/// Returns the cursor after this definition in a listing of definitions.
pub fn definition_cursor(definition: &StoredDefinition) -> String {
    definition_place(&definition.workflow, definition.version, definition.hash)
}

/// Returns the same cursor from the columns that the listing is ordered by.
pub fn definition_place(workflow: &str, version: u32, hash: DefinitionHash) -> String {
    format!("{version}:{hash}:{workflow}")
}

/// Parses a cursor of [`definition_cursor`]. Returns workflow, version and hash, the order of the listing.
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

/// A query for cells of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellQuery {
    pub space: Space,
    /// A namespace, a root run's id or a workflow's name, depending on `space`.
    pub owner: String,
    pub filter: CellFilter,
    /// The engine's clock: cells that have expired by then count as absent.
    pub now: Timestamp,
    /// Includes deleted and expired cells.
    pub include_deleted: bool,
    /// Maximum number of cells; see [`page_rows`].
    pub limit: u32,
    /// [`Page::next`] of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

/// A restriction on the keys of an owner's cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellFilter {
    /// The cell with exactly this key.
    Key(String),
    /// Cells whose key begins with this text. No character is a wildcard.
    Prefix(String),
}

/// A query for open waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitQuery {
    pub of: WaitFilter,
    /// Maximum number of waits; see [`page_rows`].
    pub limit: u32,
    /// [`Page::next`] of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

/// A restriction on open waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WaitFilter {
    #[default]
    All,
    Run(RunId),
    /// Waits for exactly this topic.
    Topic(String),
    /// The first wait in the order of topics, within a range of topics. If it cannot be read, it is in [`Page::bad`],
    /// and [`Page::next`] is its topic instead of a cursor, so that the caller can search beyond it.
    FirstTopic {
        /// Lower bound of the topics, inclusive.
        from: String,
        /// Upper bound of the topics, exclusive.
        before: String,
    },
    /// Waits within a range of topics, in the order of topics, run and activation. There are no cursors: the next page
    /// begins after the topic of the last wait.
    Topics {
        /// Lower bound of the topics, inclusive.
        from: String,
        /// Upper bound of the topics, exclusive.
        before: String,
    },
    /// Waits with a due time, in the order of due time, run and activation.
    Due,
}

/// Returns the cursor after this wait in a listing by due time.
pub fn due_cursor(due: Timestamp, run: RunId, activation: u64) -> String {
    format!("{}:{run}:{activation}", due.micros())
}

/// Parses a cursor of [`due_cursor`]. Without a cursor it returns a position before every wait.
pub fn read_due_cursor(cursor: Option<&str>) -> Result<(Timestamp, RunId, i64), StoreError> {
    let Some(cursor) = cursor else {
        return Ok((Timestamp::MIN, RunId::new(uuid::Uuid::nil()), -1));
    };
    let read = || {
        let (due, rest) = cursor.split_once(':')?;
        let (run, activation) = rest.split_once(':')?;
        let activation = activation.parse().ok().filter(|activation| *activation >= 0)?;
        Some((Timestamp::from_micros(due.parse().ok()?), run.parse().ok()?, activation))
    };
    read().ok_or_else(|| bad_cursor(cursor))
}

impl WaitFilter {
    /// Returns true if the wait matches.
    pub fn has(&self, run: RunId, wait: &StoredWait) -> bool {
        match self {
            WaitFilter::All => true,
            WaitFilter::Run(of) => *of == run,
            WaitFilter::Topic(topic) => wait.topic.as_ref() == Some(topic),
            WaitFilter::FirstTopic { from, before } | WaitFilter::Topics { from, before } => {
                wait.topic.as_ref().is_some_and(|topic| topic >= from && topic < before)
            }
            WaitFilter::Due => wait.due.is_some(),
        }
    }
}

/// An open wait and its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitRow {
    pub run: RunId,
    pub wait: StoredWait,
}

/// A query for a part of a run's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    pub run: RunId,
    /// The first version, inclusive.
    pub from: u64,
    /// Includes the snapshots, which costs additional reads.
    pub with_state: bool,
    /// Maximum number of versions; see [`page_rows`].
    pub limit: u32,
}

/// A checkpoint in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRow {
    pub version: u64,
    /// The time of the commit.
    pub at: Timestamp,
    pub commit: CommitId,
    /// The history entry (JSON).
    pub entry: Bytes,
    /// The snapshot (JSON); `None` unless [`HistoryQuery::with_state`] is set.
    pub state: Option<Bytes>,
}

/// A query for auxiliary records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordQuery {
    /// The definition with this hash.
    Definition(DefinitionHash),
    /// Definitions in the order of workflow, version and hash.
    Definitions {
        /// Only definitions of this workflow.
        workflow: Option<Name>,
        limit: u32,
        cursor: Option<String>,
    },
    /// The record of an idempotency key.
    Key {
        operation: String,
        key: String,
        /// The engine's clock: a key that has expired by then counts as absent.
        now: Timestamp,
    },
    /// The records of all idempotency keys, including expired ones, in the order of operation and key.
    Keys { limit: u32, cursor: Option<String> },
    /// The audit trail in the order of commit ids, and of `ordinal` within a commit.
    Audit { limit: u32, cursor: Option<String> },
    /// The rows of the audit trail that name this run, in the same order.
    AuditOfRun { run: RunId, limit: u32, cursor: Option<String> },
    /// The seals of the audit trail, oldest first.
    Seals {
        /// The number of the first seal, inclusive.
        from: u64,
        limit: u32,
    },
    /// Commits whose audit rows are not sealed yet, in the order of their ids.
    Unsealed { limit: u32, cursor: Option<String> },
    /// The shadow columns of a run that have a value, by name.
    Shadows(RunId),
    /// The shadow columns of several runs that have a value, by run and name. The result is a single page.
    ShadowsOf(Vec<RunId>),
    /// The handle with this hash.
    Handle(HandleHash),
    /// Handles in the order of flow or run, then of hash.
    Handles(HandleQuery),
    /// The process, if its lease is valid.
    AliveProcess {
        process: ProcessId,
        /// The engine's clock: the lease must be valid at this time.
        now: Timestamp,
    },
    /// All known processes in the order of their ids. The answer is the same for every tenant.
    Processes { limit: u32 },
    /// Handles whose delivery is due, earliest first.
    Undelivered {
        /// The engine's clock: deliveries are due up to this time.
        now: Timestamp,
        limit: u32,
    },
    /// The number of runs that match a filter, by status. The result is a single page.
    RunCounts(Box<RunFilter>),
    /// Names in use with their counts, in the order of the names.
    Count { of: CountQuery, limit: u32, cursor: Option<String> },
}

/// A kind of count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountQuery {
    /// Namespaces of the key-value store, with the number of their keys that have a value.
    Keys {
        /// The engine's clock: expired values are not counted.
        now: Timestamp,
    },
    /// Namespaces of links, with the number of their links.
    Links,
    /// Entity types in a namespace, with the number of link ends of that type.
    Types { namespace: String },
    /// Relations in a namespace, with the number of their links.
    Relations { namespace: String },
    /// The number of live runs, under the name `live`; no entry if there are none.
    ///
    /// A run is live if it has an owner, a wake-up time or an open wait, or if it is pending, suspended or failed.
    Runs {
        /// Counting stops at this number.
        max: u32,
    },
}

/// An auxiliary record; see [`RecordQuery`].
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    Definition(StoredDefinition),
    /// The stored trace of the commit that wrote the key.
    Key(Recorded),
    /// A row of the audit trail.
    Audit {
        /// The commit that wrote it.
        commit: CommitId,
        /// Index of the row within that commit.
        ordinal: u64,
        /// The time of the commit.
        at: Timestamp,
        row: crate::commit::AuditRow,
    },
    Seal(Seal),
    /// A commit whose audit rows are not sealed yet.
    Unsealed(CommitId),
    Shadow(ShadowRow),
    Handle(Box<HandleRow>),
    /// A process whose lease is valid.
    AliveProcess(ProcessId),
    /// A process that the store knows, alive or expired.
    Process {
        process: ProcessId,
        /// The time at which the lease of its last heartbeat expires.
        lease_until: Timestamp,
    },
    RunCount(RunCount),
    /// A name in use.
    Count {
        name: String,
        count: u64,
    },
}

/// One batch of maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleanup {
    /// The engine's clock: cells and keys that have expired by then are taken.
    pub now: Timestamp,
    /// Maximum number of rows.
    pub limit: u32,
    pub what: CleanupKind,
}

/// A kind of maintenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CleanupKind {
    /// Turns expired cells into tombstones.
    Cells,
    /// Removes old tombstones of a namespace. Their keys then count as never written, and revisions restart at 1.
    Tombstones {
        namespace: String,
        /// Removes tombstones that were last written before this time.
        before: Timestamp,
    },
    /// Writes one seal over audit rows that are not sealed yet. The limit counts commits.
    Seal,
    /// Removes expired idempotency keys.
    Keys,
    /// Removes expired handles, and the shadow columns of flows whose state was there.
    Handles {
        /// Removes handles that expire at or before this time.
        expired_by: Timestamp,
    },
    /// Removes completed and cancelled runs with everything they own except their audit rows.
    ///
    /// A run that has a wake-up time still has work to do and stays.
    Runs(EndedBefore),
    /// Removes old checkpoints of a run, and the documents that only those versions showed.
    ///
    /// The newest checkpoints stay, and the checkpoints that their states are built on. A batch ends where a chain of
    /// deltas ends. It takes one whole chain even if that exceeds the limit. [`Store::outcome`] no longer finds a
    /// commit whose checkpoint is removed.
    History {
        run: RunId,
        /// Number of newest checkpoints to keep. The newest one always stays.
        keep: u64,
    },
    /// Corrects shadow columns of runs. The limit does not apply.
    Shadows(Vec<ShadowRefill>),
    /// Removes a run with everything it owns except its audit rows, ended or not, readable or not.
    Run(RunId),
    /// Cuts the audit trail at a seal: removes the rows of this seal and of all earlier ones, and the earlier seals. This
    /// seal stays, as the beginning of the trail. The newest seal cannot be cut. The limit counts rows, but a batch ends
    /// with a whole seal.
    Audit {
        /// Number of the seal.
        through: u64,
    },
    /// Marks a run whose row cannot be read as failed. It has no owner and no wake-up time afterwards.
    MarkFailed(RunId),
}

/// The times by which ended runs are removed, by workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndedBefore {
    /// Removes runs that were last written before this time; `None` = they stay. For workflows that are not named.
    pub usual: Option<Timestamp>,
    /// The times for single workflows.
    pub workflows: BTreeMap<Name, Option<Timestamp>>,
}

impl EndedBefore {
    /// Removes the runs of all workflows that were last written before this time.
    pub fn all(before: Timestamp) -> Self {
        EndedBefore { usual: Some(before), workflows: BTreeMap::new() }
    }

    /// Returns the time for a workflow; `None` = its runs stay.
    pub fn of(&self, workflow: &Name) -> Option<Timestamp> {
        self.workflows.get(workflow).copied().unwrap_or(self.usual)
    }

    /// Returns the next workflow after this name whose runs may be removed, if only named workflows are concerned.
    pub fn next_named(&self, after: &str) -> Option<&Name> {
        let named = self.workflows.iter().filter(|(_, before)| before.is_some());
        named.map(|(name, _)| name).find(|name| name.as_str() > after)
    }

    /// Returns true if no run is removed.
    pub fn is_empty(&self) -> bool {
        self.usual.is_none() && self.next_named("").is_none()
    }
}

/// The result of one batch of maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupResult {
    /// Number of removed or converted cells, keys, handles or runs.
    ///
    /// For a seal: rows that were sealed. For a history: removed checkpoints and documents. For shadow columns: rows
    /// that were written or removed.
    pub count: u64,
    /// True if the limit was reached, so that more rows may be left. For shadow columns: a run has changed since it was
    /// read.
    pub more: bool,
}

/// The number of the newest migration that a database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaVersion(pub u32);

/// A failure of the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot answer now. The same call may succeed later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The disk or database is full. Nothing was lost, and the call may succeed once there is space.
    #[error("the store has no space left: {0}")]
    Full(String),
    /// The store can no longer be trusted with writes and must be opened again.
    #[error("the store has failed and must be opened again: {0}")]
    Fatal(String),
    /// Stored data cannot be read.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
    /// A row that the call needs cannot be read.
    #[error("a stored row cannot be read: {0}")]
    Bad(BadRow),
    /// This version cannot use the database's schema.
    #[error("{0}")]
    Schema(String),
    /// The call has an invalid argument.
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
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        (**self).due(expired).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        (**self).tenants(after, limit).await
    }
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        (**self).heartbeat(beat).await
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
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        (**self).cleanup(scope, cleanup).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        (**self).migrate().await
    }
}
