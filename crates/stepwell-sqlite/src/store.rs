//! The store itself: opens the file, hands commits to the writer and questions to the readers.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use async_trait::async_trait;
use rusqlite::Connection;
use stepwell_core::{Limits, RunId};
use stepwell_store::{
    BatchMeter, Beat, Beaten, Cell, CellQuery, Claim, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, Due, HintSender, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded, Page,
    ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Store, StoreError, Sweep,
    Swept, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::sync::oneshot;

use crate::apply::Prepared;
use crate::aside::Aside;
use crate::error::{Failed, OpenError, WithError, store_error};
use crate::jobs::{CallJob, CommitJob, Job};
use crate::lock::Lock;
use crate::own::OwnJob;
use crate::reader::{ReadError, Readers};
use crate::wal::Pace;
use crate::writer::{self, Jobs, Meter};
use crate::{connection, links, migrate, names, query, restore, sum, sweep};

/// How a database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Threads that read.
    pub readers: usize,
    /// Commits in one transaction at most.
    pub batch: usize,
    /// Commits that may wait for the writer; more wait at the door.
    pub queue: usize,
    /// Page cache of each connection. A large one costs a scan at each commit.
    pub cache_kib: u32,
    /// Pages of 4 KiB in the write-ahead log from which on it is copied into the database, beside the commits.
    pub wal_pages: u32,
    /// The limits in force.
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
    // Closed in this order: who reads, for long or not, then the writer, which leaves no log behind, and the lock last.
    jobs: Option<Jobs>,
    writer: Option<JoinHandle<()>>,
    readers: Readers,
    pub(crate) aside: Aside,
    /// From the root, in case the process goes to another folder.
    pub(crate) path: PathBuf,
    failed: Failed,
    hints: HintSender,
    limits: Limits,
    schema: SchemaVersion,
    meter: Meter,
    _lock: Lock,
}

impl SqliteStore {
    /// Opens a database, creating it if it is not there, and brings its schema up to date. Every process that is known
    /// to it counts as dead from then on, until it beats again.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Options::default())
    }

    /// [`SqliteStore::open`] with options of one's own.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let path = &names::real(path.as_ref());
        connection::check_library()?;
        let lock = Lock::take(path)?;
        if let Some(kept) = restore::finish(path)? {
            let kept = kept.display();
            tracing::warn!(%kept, "a restore that was interrupted is finished; the old database is kept");
        }
        sum::strip(path)?;
        let mut connection = connection::writing(path, options.cache_kib)?;
        let schema = migrate::migrate(&mut connection)?;
        // The lock is ours, so whoever had it is dead: nobody has to wait until its lease is over.
        query::bury(&connection).map_err(|error| store_error(&error))?;
        let readers = Readers::open(path, options.readers, options.cache_kib)?;
        let (hints, pace, failed) = (HintSender::default(), Pace::new(options.wal_pages), Failed::default());
        let meter = Meter::default();
        let noted = (pace.clone(), failed.clone(), meter.clone());
        let (jobs, writer) = writer::start(path, connection, &options, hints.clone(), noted)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(SqliteStore {
            jobs: Some(jobs),
            writer: Some(writer),
            readers,
            aside: Aside::new(&path, pace, failed.clone()),
            path,
            failed,
            hints,
            limits: options.limits,
            schema,
            meter,
            _lock: lock,
        })
    }

    /// Applies a commit and the caller's own writes in one transaction: both are there afterwards, or neither.
    ///
    /// The commit is applied first; if it is refused, `own` is not called. Then `own` gets the connection and the
    /// answer, and writes to tables of its own in the same file, which it may make as well. If it gives an error, does
    /// what it may not, or panics, nothing is there of either, and other commits are not touched. It may read Stepwell's
    /// tables and not change them; transactions, savepoints, pragmas, attached databases and temporary tables are not
    /// for it either. Give the tables a prefix of your own, so that none of Stepwell's ever has the same name.
    ///
    /// All commits wait for `own` while it runs on the writer's thread: a few statements and nothing slow. It may be
    /// called more than once, each time as if for the first time, because a transaction may be tried again; so it
    /// changes nothing but the database. Whoever drops the future gives up the answer: both may still be there, or
    /// neither.
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
            Err(_) => Err(CommitError::Unknown { reference, why: "the writer is gone".to_owned() }.into()),
        }
    }

    /// Counts its batches from here on, for the first who asks.
    pub fn measured_by(&self, meter: BatchMeter) {
        let _ = self.meter.set(meter);
    }

    /// How many writes wait for the writer.
    pub fn waiting(&self) -> usize {
        self.jobs.as_ref().map_or(0, |jobs| jobs.max_capacity() - jobs.capacity())
    }

    /// Bytes of the database's file, and of the log beside it.
    pub fn bytes(&self) -> (u64, u64) {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        (size(&self.path), size(&names::beside(&self.path, "-wal")))
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

    /// After a failed fsync nothing is answered any more, not even a read: it could show what is not on disk.
    pub(crate) fn trusted(&self) -> Result<(), StoreError> {
        match self.failed.get() {
            Some(reason) => Err(StoreError::Fatal(reason.clone())),
            None => Ok(()),
        }
    }

    /// Runs a function inside the writer's transaction, answered when it is on disk.
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
        answer.await.unwrap_or_else(|_| Err(StoreError::Fatal("the writer is gone".to_owned())))
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
        self.aside.close();
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
            Err(_) => Err(CommitError::Unknown { reference, why: "the writer is gone".to_owned() }),
        }
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.read(move |connection| query::outcome(connection, scope.tenant(), &commit)).await
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.read(move |connection| query::load(connection, scope.tenant(), run)).await
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        // Also where nothing is written: the writer's pages are still in memory, a reader's are not after every commit.
        self.call(move |connection| query::claim(connection, scope.tenant(), &claim)).await
    }

    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError> {
        self.read(move |connection| query::due(connection, &dead)).await
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.read(move |connection| query::tenants(connection, after, limit)).await
    }

    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        self.call(move |connection| query::beat(connection, &beat)).await
    }

    fn hints(&self) -> Hints {
        self.hints.listen()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.read(move |connection| query::cells(connection, scope.tenant(), &query)).await
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.read(move |connection| links::links(connection, scope.tenant(), &query)).await
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.read(move |connection| query::runs(connection, scope.tenant(), &query)).await
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

    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError> {
        self.call(move |connection| Ok(sweep::sweep(connection, scope.tenant(), &sweep)?)).await
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        Ok(self.schema)
    }
}
