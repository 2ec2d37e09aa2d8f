//! The SQLite store: opens the file, passes commits to the writer and queries to the readers.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use async_trait::async_trait;
use rusqlite::Connection;
use stepwell_core::{Limits, RunId};
use stepwell_store::{
    BatchMeter, Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed,
    Document, DocumentQuery, DueTenant, Heartbeat, HintSender, Hints, HistoryQuery, HistoryRow, Link,
    LinkQuery, Loaded, Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary,
    SchemaVersion, Store, StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::sync::oneshot;

use crate::apply::Prepared;
use crate::background::BackgroundJobs;
use crate::error::{Failed, OpenError, WithError, store_error};
use crate::jobs::{CallJob, CommitJob, Job};
use crate::lock::Lock;
use crate::own::OwnJob;
use crate::reader::{ReadError, Readers};
use crate::wal::CheckpointPolicy;
use crate::writer::{self, Jobs, Meter};
use crate::{cleanup, connection, links, listing, migrate, names, query, restore, sum};

/// Options for opening a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number of reader threads, at least one. Default: 2.
    pub readers: usize,
    /// Maximum number of commits in one transaction. Default: 256.
    pub batch: usize,
    /// Maximum number of commits in the writer's queue. Further callers wait until there is room. Default: 4,096.
    pub queue: usize,
    /// Page cache of each connection, in KiB. A large cache costs a scan at each commit. Default: 8 MiB.
    pub cache_kib: u32,
    /// Length of the write-ahead log, in pages of 4 KiB, above which it is copied into the database in the background.
    /// Default: 4,000.
    pub wal_pages: u32,
    /// Limits that every commit is checked against.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            readers: 2,
            batch: 256,
            queue: 4_096,
            cache_kib: 8 * 1024,
            wal_pages: 4_000,
            limits: Limits::default(),
        }
    }
}

/// A store in one SQLite file, owned by this process while it is open.
#[derive(Debug)]
pub struct SqliteStore {
    // Closed in this order: readers and background work, then the writer, then the lock. The writer's connection is the
    // last one, so that closing it removes the write-ahead log.
    jobs: Option<Jobs>,
    writer: Option<JoinHandle<()>>,
    readers: Readers,
    pub(crate) background: BackgroundJobs,
    /// Absolute, so that it stays valid if the process changes its working directory.
    pub(crate) path: PathBuf,
    failed: Failed,
    hints: HintSender,
    limits: Limits,
    schema: SchemaVersion,
    meter: Meter,
    lock: Lock,
}

impl SqliteStore {
    /// Opens a database and brings its schema up to date. Creates the file if it does not exist.
    ///
    /// Every process recorded in the database counts as expired until its next heartbeat.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Options::default())
    }

    /// Opens a database like [`SqliteStore::open`], with the given options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let path = &names::real(path.as_ref());
        connection::check_library()?;
        let lock = Lock::take(path)?;
        if let Some(previous) = restore::finish(path)? {
            let previous = previous.display();
            tracing::warn!(%previous, "finished an interrupted restore; the old database is kept");
        }
        sum::strip(path)?;
        let mut connection = connection::writing(path, options.cache_kib)?;
        let schema = migrate::migrate(&mut connection)?;
        // This process has the lock, so its previous owner has ended: its runs are free without waiting for its lease.
        query::expire_processes(&connection).map_err(|error| store_error(&error))?;
        let readers = Readers::open(path, options.readers, options.cache_kib)?;
        let (hints, policy, failed) =
            (HintSender::default(), CheckpointPolicy::new(options.wal_pages), Failed::default());
        let meter = Meter::default();
        let noted = (policy.clone(), failed.clone(), meter.clone());
        let (jobs, writer) = writer::start(path, connection, &options, hints.clone(), noted)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(SqliteStore {
            jobs: Some(jobs),
            writer: Some(writer),
            readers,
            background: BackgroundJobs::new(&path, policy, failed.clone()),
            path,
            failed,
            hints,
            limits: options.limits,
            schema,
            meter,
            lock,
        })
    }

    /// Writes the address under which this process serves requests into the lock file. A process that finds the database
    /// in use names it in its error.
    pub fn publish_address(&self, address: &str) -> std::io::Result<()> {
        self.lock.publish_address(address)
    }

    /// Applies a commit and the caller's own writes in one transaction: both are stored, or neither.
    ///
    /// The commit is applied first; if it is refused, `own` is not called. Then `own` gets the connection and the
    /// result of the commit. It may create tables in the same file and write to them. It may read Stepwell's tables but
    /// not change them. Transactions, savepoints, pragmas, attached databases and temporary tables are forbidden. If
    /// `own` returns an error, does something forbidden or panics, its writes and the commit are rolled back; other
    /// commits are not affected. Give your tables a prefix, so that no future table of Stepwell has the same name.
    ///
    /// `own` runs on the writer's thread, and all commits wait for it: run a few fast statements only. A transaction
    /// may be retried, so `own` may be called more than once, and must change nothing but the database. Dropping the
    /// future gives up the answer only: the commit and the writes are still stored together, or neither is.
    ///
    /// ```
    /// # use stepwell_sqlite::{SqliteStore, WithError};
    /// # use stepwell_store::{Commit, TenantScope};
    /// # async fn example(store: &SqliteStore, scope: TenantScope, start: Commit) -> Result<(), WithError> {
    /// let (committed, order) = store
    ///     .commit_with(scope, start, |connection, committed| {
    ///         let run = committed.created.first().map(|head| head.run.to_string());
    ///         connection.execute("insert into shop_orders (run) values (?1)", [run])?;
    ///         Ok(connection.last_insert_rowid())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit_with<T, F>(
        &self,
        scope: TenantScope,
        commit: Commit,
        own: F,
    ) -> Result<(Committed, T), WithError>
    where
        F: FnMut(&Connection, &Committed) -> rusqlite::Result<T> + Send + 'static,
        T: Send + 'static,
    {
        commit.check(&self.limits).map_err(CommitError::from)?;
        let reference = commit.reference();
        let (reply, answer) = oneshot::channel();
        let prepared = Prepared::new(commit, &self.limits);
        let job = OwnJob {
            scope,
            prepared,
            reference: reference.clone(),
            own,
            result: None,
            hints: Vec::new(),
            reply,
        };
        self.send(Box::new(job)).await.map_err(CommitError::from)?;
        match answer.await {
            Ok((result, _)) => result,
            Err(_) => {
                Err(CommitError::Unknown { reference, why: "the writer thread has ended".to_owned() }.into())
            }
        }
    }

    /// Reports every batch to `meter` from now on. Only the first call has an effect.
    pub fn set_meter(&self, meter: BatchMeter) {
        let _ = self.meter.set(meter);
    }

    /// Returns the number of writes in the writer's queue.
    pub fn waiting(&self) -> usize {
        self.jobs.as_ref().map_or(0, |jobs| jobs.max_capacity() - jobs.capacity())
    }

    /// Returns the sizes in bytes of the database file and of its write-ahead log. A missing file counts as 0.
    pub fn bytes(&self) -> (u64, u64) {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        (size(&self.path), size(&names::sibling(&self.path, "-wal")))
    }

    async fn send(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.trusted()?;
        let closed = || StoreError::Unavailable("the database is closed".to_owned());
        self.jobs
            .as_ref()
            .ok_or_else(closed)?
            .send(job)
            .await
            .map_err(|_| self.trusted().err().unwrap_or_else(closed))
    }

    /// Fails if the store has closed itself, for example after a failed fsync. Even reads are refused then, because
    /// they could show data that is not on disk.
    pub(crate) fn trusted(&self) -> Result<(), StoreError> {
        match self.failed.get() {
            Some(reason) => Err(StoreError::Fatal(reason.clone())),
            None => Ok(()),
        }
    }

    /// Runs a function inside the writer's transaction and returns its result once the transaction is on disk.
    async fn call<T: Send + 'static>(
        &self,
        mut call: impl FnMut(&Connection) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let call = move |connection: &Connection| match call(connection) {
            Ok(value) => Ok(Ok(value)),
            Err(ReadError::Store(error)) => Ok(Err(error)),
            Err(ReadError::Sql(error)) => Err(error),
        };
        self.send(Box::new(CallJob { call, result: None, reply })).await?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Fatal("the writer thread has ended".to_owned())))
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.trusted()?;
        self.readers.read(read).await
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.readers.close();
        self.background.close();
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        commit.check(&self.limits)?;
        let reference = commit.reference();
        let (reply, answer) = oneshot::channel();
        let prepared = Prepared::new(commit, &self.limits);
        let job = CommitJob {
            scope,
            prepared,
            reference: reference.clone(),
            result: None,
            hints: Vec::new(),
            reply,
        };
        self.send(Box::new(job)).await?;
        match answer.await {
            Ok((result, _)) => result,
            Err(_) => Err(CommitError::Unknown { reference, why: "the writer thread has ended".to_owned() }),
        }
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.read(move |connection| query::outcome(connection, scope.tenant(), &commit)).await
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.read(move |connection| query::load(connection, scope.tenant(), run)).await
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        // A claim that writes nothing runs on the writer too: its pages are still in memory. A reader's are not, after
        // every commit.
        self.call(move |connection| query::claim(connection, scope.tenant(), &claim)).await
    }

    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        self.read(move |connection| query::due(connection, &expired)).await
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.read(move |connection| query::tenants(connection, after, limit)).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<Membership, StoreError> {
        self.call(move |connection| query::heartbeat(connection, &heartbeat)).await
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.read(move |connection| query::cells(connection, scope.tenant(), &query)).await
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.read(move |connection| links::links(connection, scope.tenant(), &query)).await
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.read(move |connection| listing::runs(connection, scope.tenant(), &query)).await
    }

    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        self.read(move |connection| query::waits(connection, scope.tenant(), &query)).await
    }

    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        self.read(move |connection| query::history(connection, scope.tenant(), &query)).await
    }

    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        self.read(move |connection| query::documents(connection, scope.tenant(), &query)).await
    }

    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        self.read(move |connection| query::records(connection, scope.tenant(), &query)).await
    }

    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        self.call(move |connection| Ok(cleanup::cleanup(connection, scope.tenant(), &cleanup)?)).await
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        Ok(self.schema)
    }
}
