//! The PostgreSQL store: opens the database, passes commits to the committers and runs queries on pooled connections.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use stepwell_core::{Limits, RunId, Timestamp};
use stepwell_store::store::page_rows;
use stepwell_store::{
    BatchMeter, Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed,
    Document, DocumentQuery, DueTenant, Heartbeat, HintSender, Hints, HistoryQuery, HistoryRow, Link,
    LinkQuery, Loaded, Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary,
    SchemaVersion, Store, StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::sync::{Semaphore, oneshot};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config};

use crate::apply::{Applier, Known, Prepared};
use crate::connection::{Backend, Connections, Connector, Mode, NEEDED, PoolUse, Tls, Visibility};
use crate::error::{Failure, OpenError, described};
use crate::heartbeats::Heartbeats;
use crate::jobs::{CommitJob, Queue};
use crate::outbox::Outbox;
use crate::rows::{self, Read};
use crate::session::Session;
use crate::status::{self, DatabaseStatus};
#[cfg(not(feature = "tls"))]
use crate::target::Ssl;
use crate::target::Target;
use crate::writer::{self, Shared};
use crate::{cleanup, links, listing, migrate, query, statements as sql};

/// Options for opening a database.
#[derive(Clone)]
pub struct Options {
    /// Schema of the tables; `None` = the role's `search_path`. Default: `None`.
    pub schema: Option<String>,
    /// Connection string of the role that owns the tables. If set, the schema is created or brought up to date on open.
    /// Default: `None`.
    pub migrate_as: Option<String>,
    /// Maximum number of pooled connections. The session and the heartbeats use one more each. Default: 16.
    pub connections: usize,
    /// Maximum number of concurrent transactions that write commits. Default: 8.
    pub committers: usize,
    /// Maximum number of commits in one transaction. Default: 256.
    pub batch: usize,
    /// Maximum number of queued commits. Further callers wait until there is room. Default: 4,096.
    pub queue: usize,
    /// Maximum time for an answer of the server. After that the connection counts as lost. Statements are short: they
    /// wait at most two seconds for a row that another transaction has locked. Default: 30 s.
    pub response_timeout: Duration,
    /// Notifies other processes at once of changed runs and cells. Without it they find out by polling. Default: true.
    pub notify: bool,
    /// Keeps a separate session open, which shows other processes that this one is alive. Behind a transaction pooler a
    /// session shows nothing: set this and `notify` to false there. Default: true.
    pub session: bool,
    /// Uses the statements for tenants that are spread over nodes, even without Citus. For tests of those statements.
    #[doc(hidden)]
    pub spread: bool,
    /// TLS configuration of encrypted connections; `None` = as `sslmode`, `sslrootcert`, `sslcert` and `sslkey` in the
    /// connection string say. Default: `None`.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Limits that every commit is checked against.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            schema: None,
            migrate_as: None,
            connections: 16,
            committers: 8,
            batch: 256,
            queue: 4_096,
            response_timeout: Duration::from_secs(30),
            notify: true,
            session: true,
            spread: false,
            #[cfg(feature = "tls")]
            tls: None,
            limits: Limits::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The owner's connection string is left out, because it may contain a password.
        f.debug_struct("Options")
            .field("schema", &self.schema)
            .field("connections", &self.connections)
            .field("committers", &self.committers)
            .field("notify", &self.notify)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Returns the encryption of connections to a target.
    #[cfg(feature = "tls")]
    fn tls(&self, target: &Target) -> Result<Tls, OpenError> {
        if target.config.get_ssl_mode() == SslMode::Disable {
            return Ok(Tls::None);
        }
        Ok(Tls::Rustls(match &self.tls {
            Some(tls) => tls.clone(),
            None => Arc::new(crate::tls::config(&target.ssl)?),
        }))
    }

    /// Returns the encryption of connections to a target. Without the feature `tls` there is none.
    #[cfg(not(feature = "tls"))]
    fn tls(&self, target: &Target) -> Result<Tls, OpenError> {
        if target.ssl == Ssl::default() && target.config.get_ssl_mode() != SslMode::Require {
            return Ok(Tls::None);
        }
        let why = "the connection string asks for TLS, but this program is built without the feature `tls`";
        Err(OpenError::Config(why.to_owned()))
    }

    /// Reads a connection string.
    fn connector(&self, connection: &str) -> Result<(Config, Connector), OpenError> {
        let target = Target::read(connection)?;
        let tls = self.tls(&target)?;
        let connector = Connector::new(&target.config, self.schema.as_deref(), tls);
        Ok((target.config, connector))
    }
}

/// A store in a PostgreSQL database, shared with any number of other processes.
pub struct PostgresStore {
    pub(crate) on: Connections,
    pub(crate) shared: Arc<Shared>,
    queue_permits: Arc<Semaphore>,
    heartbeats: Heartbeats,
    session: Option<Session>,
    schema: SchemaVersion,
    pub(crate) in_schema: Option<String>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens a database whose schema exists and is up to date.
    pub async fn open(connection: &str) -> Result<Self, OpenError> {
        Self::open_with(connection, Options::default()).await
    }

    /// Opens a database like [`PostgresStore::open`], with the given options.
    pub async fn open_with(connection: &str, options: Options) -> Result<Self, OpenError> {
        let (config, connector) = options.connector(connection)?;
        let mut database = match (inspect(&connector).await, &options.migrate_as) {
            // Migrate only if the schema is missing or out of date. Otherwise the engine's role is enough.
            (Err(OpenError::Store(_)), Some(owner)) => {
                let role = config.get_user().unwrap_or_default();
                Self::migrate_as(owner, role, &options).await?;
                inspect(&connector).await?
            }
            (database, _) => database?,
        };
        database.has_citus |= options.spread;
        let connector = if database.has_citus { connector.spread() } else { connector };
        let pool = |most| {
            let connector = connector.clone().with_lock_timeout();
            Connections::new(connector, most, options.response_timeout, database.has_citus)
        };
        let on = pool(options.connections)?;
        // Heartbeats have their own: queries to a node that does not answer can occupy the whole pool.
        let heartbeats = Heartbeats::new(pool(1)?, on.clone());
        let (hints, outbox) = (HintSender::default(), Outbox::new(options.notify && options.session));
        let session = options
            .session
            .then(|| Session::start(connector, &database.schema, hints.clone(), outbox.clone()));
        let applier = Applier { on: on.clone(), known: Known::default(), limits: options.limits.clone() };
        let shared = Arc::new(Shared {
            applier,
            queue: Queue::new(!database.has_citus),
            hints,
            outbox,
            lost_backends: Mutex::default(),
            batch: options.batch.max(1),
            meter: OnceLock::new(),
        });
        writer::start(&shared, options.committers.min(options.connections));
        let queue_permits = Arc::new(Semaphore::new(options.queue.max(1)));
        Ok(PostgresStore {
            on,
            shared,
            queue_permits,
            heartbeats,
            session,
            schema: database.version,
            in_schema: options.schema,
        })
    }

    /// Creates the schema or brings it up to date, as the owner of the tables, and grants `role` the rights to use it.
    /// Any number of processes may do so at the same time. Changes nothing if row-level security would not apply to
    /// `role`.
    pub async fn migrate_as(owner: &str, role: &str, options: &Options) -> Result<SchemaVersion, OpenError> {
        if role.is_empty() {
            return Err(OpenError::Config("it names no user: add the role that uses the tables".to_owned()));
        }
        let (_, connector) = options.connector(owner)?;
        let (mut client, driver) = connector.connect(None).await?;
        let driver = tokio::spawn(driver);
        check_version(&client).await?;
        let migrated = migrate::migrate(&mut client, options.schema.as_deref(), role).await;
        drop(client);
        let _ = driver.await;
        migrated
    }

    /// Ensures that no server process still runs a commit whose connection was lost. A commit that is not stored after
    /// this will never be stored.
    async fn end_lost_backends(&self) -> Result<(), StoreError> {
        let lost_backends = self.shared.lost_backends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for backend in lost_backends {
            self.end_backend(&backend).await?;
            self.shared
                .lost_backends
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|other| *other != backend);
        }
        Ok(())
    }

    async fn end_backend(&self, backend: &Backend) -> Result<(), StoreError> {
        let Backend { pid, began } = backend;
        // Without a session there may be a pooler, and another client may use the server process by now: do not end it.
        let statement = if self.session.is_some() { sql::backend_end } else { sql::backend_busy };
        for _ in 0..200 {
            let lost = self.on.one(Visibility::None, Mode::Writes, statement, &[pid, began]).await;
            if lost.map_err(StoreError::from)?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let what = format!("server process {pid} may still be running a commit and cannot be ended");
        Err(StoreError::Unavailable(what))
    }

    /// Returns true if the lease of a process is valid and its session is not lost, as a heartbeat would judge.
    async fn is_alive(&self, process: ProcessId, now: Timestamp) -> Read<bool> {
        let which: [crate::connection::Param<'_>; 2] = [&process.0, &now.micros()];
        let leased = self.on.one(Visibility::None, Mode::Reads, sql::process_is_alive, &which).await?;
        let is_lost = self.session.as_ref().is_some_and(|session| session.is_lost(process));
        Ok(!leased.is_empty() && !is_lost)
    }

    /// Lists the recorded processes. A process whose session is lost counts as expired.
    async fn processes(&self, limit: u32) -> Read<Page<Record>> {
        let lost = self.session.as_ref().map(Session::lost).unwrap_or_default();
        let rows = self.on.one(Visibility::None, Mode::Reads, sql::process_list, &[]).await?;
        let mut items = Vec::new();
        for row in &rows {
            let (process, lease_until) = (ProcessId(rows::get(row, 0)?), rows::at(row, 1)?);
            let lease_until = if lost.contains(&process) { Timestamp::MIN } else { lease_until };
            items.push((process, lease_until));
        }
        items.sort_unstable();
        items.truncate(page_rows(limit));
        let shown = items.into_iter().map(|(process, lease_until)| Record::Process { process, lease_until });
        Ok(Page::of(shown))
    }
}

// By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn unreachable(error: tokio_postgres::Error) -> OpenError {
    OpenError::Unreachable(described(&error))
}

/// The properties of a database that are read when it is opened.
struct DatabaseInfo {
    version: SchemaVersion,
    schema: String,
    has_citus: bool,
}

async fn inspect(connector: &Connector) -> Result<DatabaseInfo, OpenError> {
    let (client, driver) = connector.connect(None).await?;
    tokio::spawn(driver);
    check_version(&client).await?;
    let row = client.query_one(sql::database_info, &[]).await.map_err(unreachable)?;
    let (role, schema): (String, String) = (row.get(0), row.get(1));
    let sees_all = |why| OpenError::SeesAll { role: role.clone(), why };
    // The role first: tables must not be created for a role that is refused afterwards.
    if row.get(2) {
        return Err(sees_all(migrate::BYPASSES));
    }
    if row.get(3) {
        return Err(sees_all("owns the tables or inherits the rights of their owner"));
    }
    let version = migrate::check(&client).await?;
    Ok(DatabaseInfo { version, schema, has_citus: row.get(4) })
}

async fn check_version(client: &Client) -> Result<(), OpenError> {
    let row = client.query_one(sql::database_version, &[]).await.map_err(unreachable)?;
    if row.get::<_, i32>(0) >= NEEDED.0 {
        return Ok(());
    }
    Err(OpenError::TooOld { found: row.get(1), needed: NEEDED.1.to_owned() })
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // The committer tasks still apply the queued commits.
        self.shared.queue.close();
    }
}

/// Attempts for a read whose connection is lost.
const READS: usize = 3;
/// Time within which a failed read across tenants is repeated. After that a node may be silent.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// Runs a read, and repeats it if the connection was lost. That is safe because a read changes nothing. With a time,
/// the read is repeated only until then, so that silence is not waited for several times.
macro_rules! again {
    ($read:expr) => {
        again!($read, Duration::MAX)
    };
    ($read:expr, $within:expr) => {{
        let (began, mut attempts) = (Instant::now(), 1);
        loop {
            let read = $read.await;
            let may_repeat = attempts < READS && began.elapsed() < $within;
            match read {
                Err(Failure::Unknown(_) | Failure::Again(_)) if may_repeat => attempts += 1,
                other => break other.map_err(StoreError::from),
            }
        }
    }};
}

impl PostgresStore {
    /// Returns the server version, the schema version, the size of the database and the estimated number of rows.
    pub async fn status(&self) -> Result<DatabaseStatus, StoreError> {
        again!(status::status(&self.on, self.schema))
    }

    /// Reports every batch to `meter` from now on. Only the first call has an effect.
    pub fn set_meter(&self, meter: BatchMeter) {
        let _ = self.shared.meter.set(meter);
    }

    /// Returns the current use of the connection pool.
    pub fn pool(&self) -> PoolUse {
        self.on.used()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        commit.check(&self.shared.applier.limits)?;
        let closed = || StoreError::Unavailable("the database is closed".to_owned());
        let place = self.queue_permits.clone().acquire_owned().await.map_err(|_| closed())?;
        let reference = commit.reference();
        let (reply, answer) = oneshot::channel();
        let job =
            CommitJob { prepared: Prepared::new(commit), reference: reference.clone(), reply, _place: place };
        if self.shared.queue.push(scope.tenant(), job).is_some() {
            return Err(closed().into());
        }
        match answer.await {
            Ok((result, _)) => result,
            Err(_) => Err(CommitError::Unknown { reference, why: "the committer task has ended".to_owned() }),
        }
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.end_lost_backends().await?;
        again!(query::outcome(&self.on, scope.tenant(), &commit))
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        again!(query::load(&self.on, scope.tenant(), run))
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        // The caller may drop the future. A separate task ensures that a claim is not left half done.
        let on = self.on.clone();
        let claiming = tokio::spawn(async move { query::claim(&on, scope.tenant(), &claim).await });
        let claimed = claiming.await.map_err(|error| StoreError::Fatal(error.to_string()))?;
        Ok(claimed?)
    }

    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        again!(query::due(&self.on, &expired, None), REPEATED_WITHIN)
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        again!(query::tenants(&self.on, after, limit), REPEATED_WITHIN)
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<Membership, StoreError> {
        let (membership, has_others) = self.heartbeats.beat(self.session.as_ref(), &heartbeat).await?;
        self.shared.outbox.has_readers(has_others);
        Ok(membership)
    }

    fn hints(&self) -> Hints {
        self.shared.hints.subscribe()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        again!(query::cells(&self.on, scope.tenant(), &query))
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        again!(links::links(&self.on, scope.tenant(), &query))
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        again!(listing::runs(&self.on, scope.tenant(), &query))
    }

    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        again!(query::waits(&self.on, scope.tenant(), &query))
    }

    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        again!(query::history(&self.on, scope.tenant(), &query))
    }

    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        again!(query::documents(&self.on, scope.tenant(), &query))
    }

    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        if let RecordQuery::AliveProcess { process, now } = query {
            let is_alive = again!(self.is_alive(process, now))?;
            return Ok(Page::of(is_alive.then_some(Record::AliveProcess(process))));
        }
        if let RecordQuery::Processes { limit } = query {
            return again!(self.processes(limit));
        }
        again!(query::records(&self.on, scope.tenant(), &query))
    }

    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        Ok(cleanup::cleanup(&self.on, scope.tenant(), &cleanup).await?)
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        Ok(self.schema)
    }
}
