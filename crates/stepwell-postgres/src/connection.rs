//! A connection as Stepwell needs it, the pool of them, and a tenant's transaction in as few writes as can be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{
    Manager, Metrics, Object, Pool, PoolError, QueueMode, RecycleError, RecycleResult, Timeouts,
};
use futures_util::future::BoxFuture;
use stepwell_store::{StoreError, TenantId};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement};

use crate::error::{Failure, OpenError, described};

/// The first version whose statements and policies are those used here.
pub(crate) const NEEDED: (i32, &str) = (140_000, "14");

/// Plans must not depend on what the statistics say of a table that has just been made: every statement is meant to go
/// by an index, and one plan is as good as another.
const SETTINGS: &str = "-c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off";

/// Lets the settings of a transaction reach the workers of a Citus cluster.
pub(crate) const PROPAGATE: &str = "set local citus.propagate_set_commands = 'local'";

/// How long a connection may take to be made, and one on which nothing arrives any more to be noticed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How to get a connection.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Config,
    tls: Tls,
}

/// How connections are encrypted.
#[derive(Clone, Default)]
pub(crate) enum Tls {
    /// They are not.
    #[default]
    None,
    /// By rustls.
    #[cfg(feature = "tls")]
    Rustls(std::sync::Arc<rustls::ClientConfig>),
}

/// The task that carries a connection's bytes, and the notifications that come with them.
pub(crate) type Driver = BoxFuture<'static, ()>;
/// Who is told of notifications.
pub(crate) type Told = Box<dyn Fn(&str, i32) + Send + Sync>;

impl Connector {
    pub(crate) fn new(config: &Config, schema: Option<&str>, tls: Tls) -> Self {
        let mut config = config.clone();
        let given = config.get_options().map(|options| format!("{options} ")).unwrap_or_default();
        let path = schema.map(|schema| format!(" -c search_path={}", escaped(schema))).unwrap_or_default();
        config.options(format!("{given}{SETTINGS}{path}"));
        if config.get_application_name().is_none() {
            config.application_name("stepwell");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(PATIENCE);
        }
        config.keepalives_idle(PATIENCE).keepalives_interval(Duration::from_secs(2)).keepalives_retries(3);
        Connector { config, tls }
    }

    /// One for a database that is spread over nodes: Citus finds the node by a parameter's value, which a generic plan does not
    /// know.
    pub(crate) fn spread(mut self) -> Self {
        let given = self.config.get_options().unwrap_or_default();
        let options = format!("{given} -c plan_cache_mode=auto");
        self.config.options(options);
        self
    }

    /// One that does not wait for a row for long: somebody else's open transaction must not hold up everybody.
    pub(crate) fn impatient(mut self) -> Self {
        let given = self.config.get_options().unwrap_or_default();
        let options = format!("{given} -c lock_timeout=2s");
        self.config.options(options);
        self
    }

    /// A new connection; whoever listens is told of notifications.
    pub(crate) async fn connect(&self, told: Option<Told>) -> Result<(Client, Driver), OpenError> {
        let patience = self.config.get_connect_timeout().map_or(PATIENCE, |patience| *patience);
        match tokio::time::timeout(patience, self.dial(told)).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(OpenError::Unreachable(described(&error))),
            Err(_) => {
                let why = format!("nobody answered for {} ms", patience.as_millis());
                Err(OpenError::Unreachable(why))
            }
        }
    }

    async fn dial(&self, told: Option<Told>) -> Result<(Client, Driver), tokio_postgres::Error> {
        match &self.tls {
            Tls::None => {
                let (client, connection) = self.config.connect(tokio_postgres::NoTls).await?;
                Ok((client, drive(connection, told)))
            }
            #[cfg(feature = "tls")]
            Tls::Rustls(tls) => {
                let tls = tokio_postgres_rustls::MakeRustlsConnect::new((**tls).clone());
                let (client, connection) = self.config.connect(tls).await?;
                Ok((client, drive(connection, told)))
            }
        }
    }
}

/// An identifier as a value of the `options` of a connection: quoted for SQL, and escaped for the command line it is.
fn escaped(schema: &str) -> String {
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    quoted.replace('\\', "\\\\").replace(' ', "\\ ")
}

fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, told: Option<Told>) -> Driver
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(tokio_postgres::AsyncMessage::Notification(note))) => {
                    if let Some(told) = &told {
                        told(note.payload(), note.process_id());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(error = described(&error), "a connection has ended");
                    return;
                }
                None => return,
            }
        }
    })
}

/// A server process of ours, told apart from a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) began: String,
}

/// A connection and the statements that were prepared on it.
pub(crate) struct Connection {
    client: Client,
    pub(crate) backend: Backend,
    statements: Mutex<HashMap<usize, Statement>>,
    /// How long it waits for an answer.
    patience: Duration,
    /// An answer did not come: whatever comes on it now is nobody's.
    is_given_up: AtomicBool,
    plans: Mutex<Plans>,
}

/// The server's plans of a connection's statements. They are made once, for tables as full as they are then; those that were
/// made while the tables were empty would walk them later. So they are made again: soon at first, then ever more rarely,
/// so that tables have not grown many times over meanwhile.
struct Plans {
    made: Instant,
    lasts: Duration,
}

impl Plans {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(600);

    fn new() -> Self {
        Plans { made: Instant::now(), lasts: Plans::FIRST }
    }

    /// Whether they are to be made again; then they count as made now.
    fn are_old(&mut self) -> bool {
        if self.made.elapsed() < self.lasts {
            return false;
        }
        *self = Plans { made: Instant::now(), lasts: (self.lasts * 2).min(Plans::LONGEST) };
        true
    }
}

/// Why there is no answer.
pub(crate) enum Unanswered {
    /// None came in time.
    Silence(Duration),
    /// The server, or the way to it, gives an error.
    Error(tokio_postgres::Error),
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Silence(waited) => {
                Failure::Unknown(format!("no answer came for {} ms", waited.as_millis()))
            }
            Unanswered::Error(error) => error.into(),
        }
    }
}

/// A parameter.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

impl Connection {
    /// A statement, prepared once. It is known by the address of its text: the texts are constants.
    pub(crate) async fn statement(&self, sql: &'static str) -> Result<Statement, Failure> {
        let address = sql.as_ptr() as usize;
        let known = self.lock().get(&address).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.in_time(self.client.prepare(sql)).await?;
        self.lock().insert(address, statement.clone());
        Ok(statement)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks without waiting for what was asked before: the answer comes in the same order.
    pub(crate) async fn ask(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        Ok(self.try_ask(statement, params).await?)
    }

    /// The same with the error as it is.
    pub(crate) async fn try_ask(
        &self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Unanswered> {
        self.in_time(self.client.query(statement, params)).await
    }

    /// Sends a command without parameters.
    pub(crate) async fn command(&self, command: &str) -> Result<(), Failure> {
        Ok(self.in_time(self.client.batch_execute(command)).await?)
    }

    /// Begins a transaction. All its commands go out in one write, before anything that is sent after this.
    pub(crate) async fn begin(&self, begin: &Begin) -> Result<(), Failure> {
        let sent = begin.0.iter().map(|command| self.command(command));
        futures_util::future::join_all(sent).await.into_iter().collect()
    }

    /// Waits for an answer, but not for ever: a peer that is gone without a word may never be noticed otherwise.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Unanswered> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(Unanswered::Error),
            Err(_) => {
                self.is_given_up.store(true, Ordering::Relaxed);
                Err(Unanswered::Silence(self.patience))
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.is_given_up.load(Ordering::Relaxed)
    }
}

/// Who may see what in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// One tenant's rows.
    Tenant(TenantId),
    /// Which tenants have work, and who is there.
    Due,
    /// No tenant's rows.
    None,
}

/// Makes connections, and throws away those that are closed.
pub(crate) struct Maker {
    connector: Connector,
    patience: Duration,
}

impl Manager for Maker {
    type Type = Connection;
    type Error = OpenError;

    async fn create(&self) -> Result<Connection, OpenError> {
        let unreachable = |error: tokio_postgres::Error| OpenError::Unreachable(described(&error));
        let (client, driver) = self.connector.connect(None).await?;
        tokio::spawn(driver);
        let whoami = "select pid, backend_start::text from pg_stat_activity where pid = pg_backend_pid()";
        let row = client.query_one(whoami, &[]).await.map_err(unreachable)?;
        let backend = Backend { pid: row.get(0), began: row.get(1) };
        let is_given_up = AtomicBool::new(false);
        Ok(Connection {
            client,
            backend,
            statements: Mutex::default(),
            patience: self.patience,
            is_given_up,
            plans: Mutex::new(Plans::new()),
        })
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<OpenError> {
        if connection.is_closed() {
            return Err(RecycleError::message("it is closed"));
        }
        let are_old = connection.plans.get_mut().unwrap_or_else(PoisonError::into_inner).are_old();
        if are_old && connection.command("discard plans").await.is_err() {
            return Err(RecycleError::message("it does not answer"));
        }
        Ok(())
    }
}

/// How the connections of a store are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Connections at most.
    pub most: usize,
    /// Connections there are.
    pub open: usize,
    /// Those that somebody uses.
    pub busy: usize,
    /// How many wait for one.
    pub waiting: usize,
}

/// The connections of a store.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool<Maker>,
    has_citus: bool,
}

/// A connection that goes back to the others when it is dropped.
pub(crate) type Lent = Object<Maker>;

impl Connections {
    pub(crate) fn new(
        connector: Connector,
        most: usize,
        patience: Duration,
        has_citus: bool,
    ) -> Result<Self, OpenError> {
        let timeouts = Timeouts { wait: Some(PATIENCE), create: Some(PATIENCE), recycle: None };
        let pool = Pool::builder(Maker { connector, patience })
            .max_size(most.max(1))
            // The one used last: its server process has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .timeouts(timeouts)
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(|error| OpenError::Config(error.to_string()))?;
        Ok(Connections { pool, has_citus })
    }

    /// How the connections are used now.
    pub(crate) fn used(&self) -> PoolUse {
        let status = self.pool.status();
        let busy = status.size.saturating_sub(status.available);
        PoolUse { most: status.max_size, open: status.size, busy, waiting: status.waiting }
    }

    /// A connection; while the server is away, it is tried again for a while.
    pub(crate) async fn get(&self) -> Result<Lent, StoreError> {
        let until = tokio::time::Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(20);
        loop {
            match self.pool.get().await {
                Ok(connection) => return Ok(connection),
                Err(PoolError::Backend(error)) if tokio::time::Instant::now() + pause < until => {
                    tracing::debug!(%error, "no connection yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Err(PoolError::Backend(error)) => return Err(StoreError::Unavailable(error.to_string())),
                Err(error) => {
                    return Err(StoreError::Unavailable(format!("no connection is free: {error}")));
                }
            }
        }
    }

    pub(crate) fn has_citus(&self) -> bool {
        self.has_citus
    }

    /// Returns the commands that begin a transaction which may see this much. Citus repeats a query string on its
    /// workers as a whole, so that a `begin` in front of a setting would begin a second transaction there: with Citus each
    /// command is a message of its own.
    pub(crate) fn begin(&self, sees: Sees, mode: Mode) -> Begin {
        let begin = match mode {
            Mode::Writes => "begin",
            Mode::Reads => "begin read only",
            Mode::ReadsOnce => "begin isolation level repeatable read read only",
        };
        let set = match sees {
            Sees::Tenant(tenant) => format!("set local app.current_tenant = '{}'", tenant.uuid()),
            Sees::Due => "set local stepwell.sees = 'due'".to_owned(),
            Sees::None => return Begin(vec![begin.to_owned()]),
        };
        match self.has_citus {
            true => Begin(vec![begin.to_owned(), PROPAGATE.to_owned(), set]),
            false => Begin(vec![format!("{begin}; {set}")]),
        }
    }

    /// One statement in a transaction of its own, in one write.
    pub(crate) async fn one(
        &self,
        sees: Sees,
        mode: Mode,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let connection = self.get().await?;
        let statement = connection.statement(sql).await?;
        let begin = self.begin(sees, mode);
        let (begun, rows, ended) = tokio::join!(
            connection.begin(&begin),
            connection.ask(&statement, params),
            connection.command("commit")
        );
        begun?;
        let rows = rows?;
        ended?;
        Ok(rows)
    }
}

/// The commands that begin a transaction, each sent as a message of its own.
pub(crate) struct Begin(Vec<String>);

/// What a transaction is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It writes.
    Writes,
    /// One statement reads.
    Reads,
    /// Several statements read, and see the same.
    ReadsOnce,
}

/// A transaction of several writes and reads that wait for each other. If it is dropped before its end, so is its
/// connection: nobody else gets one in the middle of a transaction.
pub(crate) struct Transaction {
    connection: Option<Lent>,
}

impl Transaction {
    pub(crate) fn new(connection: Lent) -> Self {
        Transaction { connection: Some(connection) }
    }

    pub(crate) fn on(&self) -> &Connection {
        self.connection.as_ref().expect("it is there until the end")
    }

    /// It is over: committed, or rolled back by the server.
    pub(crate) fn over(mut self) {
        drop(self.connection.take());
    }

    /// Takes it back.
    pub(crate) async fn roll_back(self) -> Result<(), Failure> {
        self.on().command("rollback").await?;
        self.over();
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}
