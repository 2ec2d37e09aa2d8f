//! The store itself: opens the database, hands commits to the committers and asks questions through the pool.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stepwell_core::{Limits, RunId, Timestamp};
use stepwell_store::store::page_rows;
use stepwell_store::{
    BatchMeter, Beat, Beaten, Cell, CellQuery, Claim, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, Due, HintSender, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded, Page,
    ProcessId, Reading, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Store,
    StoreError, Sweep, Swept, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::sync::{Semaphore, oneshot};
use tokio_postgres::{Client, Config};
use uuid::Uuid;

use crate::apply::{Applier, Known, Prepared};
use crate::connection::{Backend, Connections, Connector, Mode, NEEDED, PoolUse, Sees, Tls};
use crate::error::{Failure, OpenError, described};
use crate::jobs::{CommitJob, Queue};
use crate::outbox::Outbox;
use crate::rows::{self, Read};
use crate::session::Session;
use crate::status::{self, Status};
use crate::writer::{self, Shared};
use crate::{links, migrate, query, statements as sql, sweep};

/// How a database is opened.
#[derive(Clone)]
pub struct Options {
    /// The schema the tables are in; `None` = where the role's `search_path` points.
    pub schema: Option<String>,
    /// The owner's connection string. With it, the schema is made and brought up to date first.
    pub migrate_as: Option<String>,
    /// Connections at most, beside one for the session.
    pub connections: usize,
    /// Transactions that write commits at a time.
    pub committers: usize,
    /// Commits in one transaction at most.
    pub batch: usize,
    /// Commits that may wait for their turn; more wait at the door.
    pub queue: usize,
    /// How long an answer of the server may take before the connection counts as lost. Nothing here takes long: a row that
    /// somebody else holds is waited for for two seconds at most.
    pub patience: Duration,
    /// Other processes are told at once of what concerns them. Without it they find out by looking.
    pub notify: bool,
    /// A session of its own tells others that this process lives. Behind a transaction pooler sessions tell nothing:
    /// switch this and `notify` off there.
    pub session: bool,
    /// Speaks as it does where tenants are spread over nodes, also where they are not: the statements for that are
    /// tried so without a cluster.
    #[doc(hidden)]
    pub spread: bool,
    /// Encrypts the connections.
    #[cfg(feature = "tls")]
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The limits in force.
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
            patience: Duration::from_secs(30),
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
        // Not the owner's connection string: it may have a password in it.
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
    fn tls(&self) -> Tls {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Tls::Rustls(tls.clone());
        }
        Tls::None
    }
}

/// A store in a PostgreSQL database, shared with any number of other processes.
pub struct PostgresStore {
    pub(crate) on: Connections,
    pub(crate) shared: Arc<Shared>,
    room: Arc<Semaphore>,
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
    /// Opens a database whose schema is there and up to date.
    pub async fn open(connection: &str) -> Result<Self, OpenError> {
        Self::open_with(connection, Options::default()).await
    }

    /// [`PostgresStore::open`] with options of one's own.
    pub async fn open_with(connection: &str, options: Options) -> Result<Self, OpenError> {
        let config = read(connection)?;
        let connector = Connector::new(&config, options.schema.as_deref(), options.tls());
        let mut looked = match (look(&connector).await, &options.migrate_as) {
            // Where there is nothing to migrate nothing is changed, and the engine's own rights are enough.
            (Err(OpenError::Store(_)), Some(owner)) => {
                let role = config.get_user().unwrap_or_default();
                Self::migrate_as(owner, role, &options).await?;
                look(&connector).await?
            }
            (looked, _) => looked?,
        };
        looked.has_citus |= options.spread;
        let connector = if looked.has_citus { connector.spread() } else { connector };
        let impatient = connector.clone().impatient();
        let on = Connections::new(impatient, options.connections, options.patience, looked.has_citus)?;
        let (hints, outbox) = (HintSender::default(), Outbox::new(options.notify && options.session));
        let session =
            options.session.then(|| Session::start(connector, &looked.schema, hints.clone(), outbox.clone()));
        let applier = Applier { on: on.clone(), known: Known::default(), limits: options.limits.clone() };
        let shared = Arc::new(Shared {
            applier,
            queue: Queue::new(!looked.has_citus),
            hints,
            outbox,
            ghosts: Mutex::default(),
            batch: options.batch.max(1),
            meter: OnceLock::new(),
        });
        writer::start(&shared, options.committers.min(options.connections));
        let room = Arc::new(Semaphore::new(options.queue.max(1)));
        Ok(PostgresStore { on, shared, room, session, schema: looked.version, in_schema: options.schema })
    }

    /// Makes the schema or brings it up to date, as the owner of the tables, and lets `role` use it. Any number of
    /// processes may do so at the same time.
    pub async fn migrate_as(owner: &str, role: &str, options: &Options) -> Result<SchemaVersion, OpenError> {
        if role.is_empty() {
            return Err(OpenError::Config("it names no user, whom the tables are for".to_owned()));
        }
        let connector = Connector::new(&read(owner)?, options.schema.as_deref(), options.tls());
        let (mut client, driver) = connector.connect(None).await?;
        let driver = tokio::spawn(driver);
        check_version(&client).await?;
        let migrated = migrate::migrate(&mut client, options.schema.as_deref(), role).await;
        drop(client);
        let _ = driver.await;
        Ok(migrated?)
    }

    /// Makes sure that no server process is still at a commit whose connection was lost: what is not there after that
    /// will not be there later.
    async fn lay_ghosts(&self) -> Result<(), StoreError> {
        let ghosts = self.shared.ghosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ghost in ghosts {
            self.lay(&ghost).await?;
            self.shared.ghosts.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != ghost);
        }
        Ok(())
    }

    async fn lay(&self, ghost: &Backend) -> Result<(), StoreError> {
        let Backend { pid, began } = ghost;
        // Behind a pooler the server process is somebody else's by now.
        let statement = if self.session.is_some() { sql::backend_end } else { sql::backend_busy };
        for _ in 0..200 {
            let gone = self.on.one(Sees::None, Mode::Writes, statement, &[pid, began]).await;
            if gone.map_err(StoreError::from)?.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let what = format!("server process {pid} may still be at a commit, and cannot be ended");
        Err(StoreError::Unavailable(what))
    }

    async fn beaten(&self, beat: &Beat) -> Read<Beaten> {
        let until = beat.now.plus_ms(beat.lease_ms);
        let session = match &self.session {
            Some(session) => session.vouch(beat.process, beat.now, until).await,
            None => None,
        };
        let id = beat.process.0;
        let which: [crate::connection::Param<'_>; 3] = [&id, &until.micros(), &session];
        self.on.one(Sees::None, Mode::Writes, sql::process_beat, &which).await?;
        let (living, clock) = self.living(beat).await?;
        self.shared.outbox.has_readers(living.len() > 1);
        // This process lives, also if a node that is away cannot say whose runs are free.
        let dues = query::due(&self.on, &[], Some(&living)).await.unwrap_or_else(|failure| {
            let error = StoreError::from(failure);
            tracing::warn!(%error, "what dead processes own could not be read");
            Vec::new()
        });
        let mut dead = BTreeSet::new();
        for due in dues.iter().filter(|due| due.at == Timestamp::MIN) {
            let tenant = due.tenant;
            let which: [crate::connection::Param<'_>; 2] = [&tenant.uuid(), &living];
            let owners = self.on.one(Sees::Tenant(tenant), Mode::Reads, sql::owners, &which).await;
            let owners = owners.unwrap_or_else(|failure| {
                let error = StoreError::from(failure);
                tracing::warn!(%tenant, %error, "what dead processes own of a tenant's could not be read");
                Vec::new()
            });
            for row in &owners {
                dead.insert(ProcessId(rows::get(row, 0)?));
            }
        }
        if !dead.is_empty() {
            // Who has come since, and owned a run before this one looked, lives.
            let (living, _) = self.living(beat).await?;
            dead.retain(|process| !living.contains(&process.0));
        }
        let owners: Vec<Uuid> = dead.iter().map(|process| process.0).collect();
        let forgotten = beat.now.micros().saturating_sub(REMEMBERED.as_micros() as i64);
        let which: [crate::connection::Param<'_>; 2] = [&forgotten, &owners];
        self.on.one(Sees::None, Mode::Writes, sql::process_forget, &which).await?;
        Ok(Beaten { dead: dead.into_iter().collect(), living: living.len() as u64, clock })
    }

    /// Whether a process's lease goes on and its session stands, as far as a beat would say.
    async fn lives(&self, process: ProcessId, now: Timestamp) -> Read<bool> {
        let which: [crate::connection::Param<'_>; 2] = [&process.0, &now.micros()];
        let leased = self.on.one(Sees::None, Mode::Reads, sql::process_lives, &which).await?;
        let is_gone = self.session.as_ref().is_some_and(|session| session.has_lost(process));
        Ok(!leased.is_empty() && !is_gone)
    }

    /// The processes that are known; the lease of one whose session is gone is over.
    async fn processes(&self, limit: u32) -> Read<Page<Record>> {
        let gone = self.session.as_ref().map(Session::gone).unwrap_or_default();
        let rows = self.on.one(Sees::None, Mode::Reads, sql::process_list, &[]).await?;
        let mut items = Vec::new();
        for row in &rows {
            let (process, lives_until) = (ProcessId(rows::get(row, 0)?), rows::at(row, 1)?);
            let lives_until = if gone.contains(&process) { Timestamp::MIN } else { lives_until };
            items.push((process, lives_until));
        }
        items.sort_unstable();
        items.truncate(page_rows(limit));
        let shown = items.into_iter().map(|(process, lives_until)| Record::Process { process, lives_until });
        Ok(Page::of(shown))
    }

    /// Processes whose lease goes on and whose session stands; and what time it is there.
    async fn living(&self, beat: &Beat) -> Read<(Vec<Uuid>, Option<Reading>)> {
        let gone = self.session.as_ref().map(Session::gone).unwrap_or_default();
        let asked = std::time::Instant::now();
        let rows = self.on.one(Sees::None, Mode::Reads, sql::process_list, &[]).await?;
        let within = asked.elapsed() / 2;
        let (mut living, mut clock) = (Vec::new(), None);
        for row in &rows {
            clock = Some(Reading { at: asked + within, showed: rows::at(row, 2)?, within });
            let (id, until): (Uuid, Timestamp) = (rows::get(row, 0)?, rows::at(row, 1)?);
            if until > beat.now && !gone.contains(&ProcessId(id)) {
                living.push(id);
            }
        }
        Ok((living, clock))
    }
}

/// A commit of a process that is not known any more could not be under way for longer.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

fn read(connection: &str) -> Result<Config, OpenError> {
    Config::from_str(connection).map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        OpenError::Config(format!("{error} {why}"))
    })
}

// By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn unreachable(error: tokio_postgres::Error) -> OpenError {
    OpenError::Unreachable(described(&error))
}

/// What a database is found to be.
struct Looked {
    version: SchemaVersion,
    schema: String,
    has_citus: bool,
}

async fn look(connector: &Connector) -> Result<Looked, OpenError> {
    let (client, driver) = connector.connect(None).await?;
    tokio::spawn(driver);
    check_version(&client).await?;
    let version = migrate::check(&client).await?;
    let row = client.query_one(sql::database_look, &[]).await.map_err(unreachable)?;
    let (role, schema): (String, String) = (row.get(0), row.get(1));
    let sees_all = |why| OpenError::SeesAll { role: role.clone(), why };
    if row.get(2) {
        return Err(sees_all("is a superuser or bypasses row-level security"));
    }
    if row.get(3) {
        return Err(sees_all("owns the tables"));
    }
    Ok(Looked { version, schema, has_citus: row.get(4) })
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
        // What waits is still done, by tasks of their own.
        self.shared.queue.close();
    }
}

/// How often a read is tried whose connection was lost.
const READS: usize = 3;

/// Reads, again if the connection was lost: a read changes nothing.
macro_rules! again {
    ($read:expr) => {{
        let mut tries = 1;
        loop {
            match $read.await {
                Err(Failure::Unknown(_) | Failure::Again(_)) if tries < READS => tries += 1,
                other => break other.map_err(StoreError::from),
            }
        }
    }};
}

impl PostgresStore {
    /// What the database is: its server, its schema, how large it is and about how many rows it has.
    pub async fn status(&self) -> Result<Status, StoreError> {
        again!(status::status(&self.on, self.schema))
    }

    /// Counts its batches from here on, for the first who asks.
    pub fn measured_by(&self, meter: BatchMeter) {
        let _ = self.shared.meter.set(meter);
    }

    /// How its connections are used.
    pub fn pool(&self) -> PoolUse {
        self.on.used()
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        commit.check(&self.shared.applier.limits)?;
        let closed = || StoreError::Unavailable("the database is closed".to_owned());
        let place = self.room.clone().acquire_owned().await.map_err(|_| closed())?;
        let reference = commit.reference();
        let (reply, answer) = oneshot::channel();
        let job =
            CommitJob { prepared: Prepared::new(commit), reference: reference.clone(), reply, _place: place };
        if self.shared.queue.push(scope.tenant(), job).is_some() {
            return Err(closed().into());
        }
        match answer.await {
            Ok((result, _)) => result,
            Err(_) => Err(CommitError::Unknown { reference, why: "the committer is gone".to_owned() }),
        }
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.lay_ghosts().await?;
        again!(query::outcome(&self.on, scope.tenant(), &commit))
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        again!(query::load(&self.on, scope.tenant(), run))
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        // Whoever asked may go away: what was taken must not be taken by a half.
        let on = self.on.clone();
        let claiming = tokio::spawn(async move { query::claim(&on, scope.tenant(), &claim).await });
        let claimed = claiming.await.map_err(|error| StoreError::Fatal(error.to_string()))?;
        Ok(claimed?)
    }

    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError> {
        again!(query::due(&self.on, &dead, None))
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        again!(query::tenants(&self.on, after, limit))
    }

    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        Ok(self.beaten(&beat).await?)
    }

    fn hints(&self) -> Hints {
        self.shared.hints.listen()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        again!(query::cells(&self.on, scope.tenant(), &query))
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        again!(links::links(&self.on, scope.tenant(), &query))
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        again!(query::runs(&self.on, scope.tenant(), &query))
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
        if let RecordQuery::Living { process, now } = query {
            let lives = again!(self.lives(process, now))?;
            return Ok(Page::of(lives.then_some(Record::Living(process))));
        }
        if let RecordQuery::Processes { limit } = query {
            return again!(self.processes(limit));
        }
        again!(query::records(&self.on, scope.tenant(), &query))
    }

    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError> {
        Ok(sweep::sweep(&self.on, scope.tenant(), &sweep).await?)
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        Ok(self.schema)
    }
}
