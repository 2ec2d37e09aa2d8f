//! Connections with the settings that Stepwell needs, their pool, and transactions of a tenant in as few round trips as
//! possible.

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

/// The first PostgreSQL version that supports the statements and policies used here.
pub(crate) const NEEDED: (i32, &str) = (140_000, "14");

/// Query plans must not depend on the statistics of a new table. Every statement is written for an index, so a generic
/// plan is always right.
const SETTINGS: &str = "-c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off";

/// Propagates the settings of a transaction to the workers of a Citus cluster.
pub(crate) const PROPAGATE: &str = "set local citus.propagate_set_commands = 'local'";

/// Maximum time to establish a connection, and to detect one on which nothing arrives any more.
pub(crate) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time of a statement that spans tenants. With Citus it needs every node, and one of them may be silent.
pub(crate) const SPANNING_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of new connections.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Config,
    tls: Tls,
}

/// The encryption of connections.
#[derive(Clone, Default)]
pub(crate) enum Tls {
    #[default]
    None,
    #[cfg(feature = "tls")]
    Rustls(std::sync::Arc<rustls::ClientConfig>),
}

/// The task that transfers a connection's bytes and receives its notifications.
pub(crate) type Driver = BoxFuture<'static, ()>;
/// A callback for notifications, with their payload and the sender's process id.
pub(crate) type NotificationCallback = Box<dyn Fn(&str, i32) + Send + Sync>;

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
            config.connect_timeout(CONNECTION_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(CONNECTION_TIMEOUT);
        }
        config
            .keepalives_idle(CONNECTION_TIMEOUT)
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
        Connector { config, tls }
    }

    /// Returns a connector for a database with Citus. Citus finds the node by a parameter's value, which a generic plan
    /// does not know.
    pub(crate) fn spread(mut self) -> Self {
        let given = self.config.get_options().unwrap_or_default();
        let options = format!("{given} -c plan_cache_mode=auto");
        self.config.options(options);
        self
    }

    /// Returns a connector that waits at most two seconds for a locked row. One open transaction must not block all
    /// commits.
    pub(crate) fn with_lock_timeout(mut self) -> Self {
        let given = self.config.get_options().unwrap_or_default();
        let options = format!("{given} -c lock_timeout=2s");
        self.config.options(options);
        self
    }

    /// Opens a new connection. `on_notification` is called for each notification.
    pub(crate) async fn connect(
        &self,
        on_notification: Option<NotificationCallback>,
    ) -> Result<(Client, Driver), OpenError> {
        let timeout = self.config.get_connect_timeout().map_or(CONNECTION_TIMEOUT, |timeout| *timeout);
        match tokio::time::timeout(timeout, self.dial(on_notification)).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(OpenError::Unreachable(self.explained(&error))),
            Err(_) => {
                let why = format!("no connection within {} ms", timeout.as_millis());
                Err(OpenError::Unreachable(why))
            }
        }
    }

    /// Describes an error, and names the parameter to change if it is one of TLS.
    fn explained(&self, error: &tokio_postgres::Error) -> String {
        let why = described(error);
        #[cfg(feature = "tls")]
        if let Some(advice) = crate::tls::advice(error) {
            return format!("{why}: {advice}");
        }
        why
    }

    async fn dial(
        &self,
        on_notification: Option<NotificationCallback>,
    ) -> Result<(Client, Driver), tokio_postgres::Error> {
        match &self.tls {
            Tls::None => {
                let (client, connection) = self.config.connect(tokio_postgres::NoTls).await?;
                Ok((client, drive(connection, on_notification)))
            }
            #[cfg(feature = "tls")]
            Tls::Rustls(tls) => {
                let tls = tokio_postgres_rustls::MakeRustlsConnect::new((**tls).clone());
                let (client, connection) = self.config.connect(tls).await?;
                Ok((client, drive(connection, on_notification)))
            }
        }
    }
}

/// Converts an identifier to a value in the `options` of a connection: quoted for SQL, and escaped for a command line.
fn escaped(schema: &str) -> String {
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    quoted.replace('\\', "\\\\").replace(' ', "\\ ")
}

fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    on_notification: Option<NotificationCallback>,
) -> Driver
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(tokio_postgres::AsyncMessage::Notification(note))) => {
                    if let Some(on_notification) = &on_notification {
                        on_notification(note.payload(), note.process_id());
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

/// A server process of a connection. Its start time distinguishes it from a later process with the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    pub(crate) began: String,
}

/// A connection and its prepared statements.
pub(crate) struct Connection {
    client: Client,
    pub(crate) backend: Backend,
    statements: Mutex<HashMap<usize, Statement>>,
    /// Maximum time to wait for an answer, until the connection returns to the pool.
    timeout: Duration,
    /// An answer did not come in time. The connection is not used again, and a late answer is ignored.
    is_given_up: AtomicBool,
    plans: Mutex<Plans>,
}

/// The age of the server's plans for a connection's statements.
///
/// The server plans a statement once, for the current size of its tables. A plan for empty tables would later scan full
/// ones. So plans are discarded again and again: soon at first, then at growing intervals, before tables have grown
/// many times over.
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

    /// Returns true if the plans must be discarded. They count as new from then on.
    fn are_old(&mut self) -> bool {
        if self.made.elapsed() < self.lasts {
            return false;
        }
        *self = Plans { made: Instant::now(), lasts: (self.lasts * 2).min(Plans::LONGEST) };
        true
    }
}

/// The reason that there is no answer.
pub(crate) enum Unanswered {
    /// No answer came within this time.
    Silence(Duration),
    /// The server or the network reported an error.
    Error(tokio_postgres::Error),
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Silence(waited) => {
                Failure::Unknown(format!("no answer within {} ms", waited.as_millis()))
            }
            Unanswered::Error(error) => error.into(),
        }
    }
}

/// A parameter of a statement.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

impl Connection {
    /// Returns a prepared statement, and prepares it on first use. The key is the address of its text, which is a
    /// constant.
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

    /// Runs a statement without waiting for the answers to earlier ones; answers come in the order of sending.
    pub(crate) async fn ask(&self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        Ok(self.try_ask(statement, params).await?)
    }

    /// Runs a statement like [`Connection::ask`], but returns the original error.
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

    /// Begins a transaction. All its commands are sent in one write, before any later statement.
    pub(crate) async fn begin(&self, begin: &Begin) -> Result<(), Failure> {
        let sent = begin.0.iter().map(|command| self.command(command));
        futures_util::future::join_all(sent).await.into_iter().collect()
    }

    /// Waits for an answer up to the maximum time. Otherwise a peer that has vanished silently might never be noticed.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Unanswered> {
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(answer) => answer.map_err(Unanswered::Error),
            Err(_) => {
                self.is_given_up.store(true, Ordering::Relaxed);
                Err(Unanswered::Silence(self.timeout))
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.is_given_up.load(Ordering::Relaxed)
    }
}

/// The rows that a transaction may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visibility {
    /// The rows of one tenant.
    Tenant(TenantId),
    /// All tenants, and the due times and owners of their runs.
    DueTenant,
    /// No rows of tenants.
    None,
}

/// Opens connections for the pool, and discards closed ones.
// `deadpool` itself and not `deadpool-postgres`: a connection must know its server process (`Backend`), so
// that a commit with a lost answer can be resolved.
pub(crate) struct Maker {
    connector: Connector,
    timeout: Duration,
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
            timeout: self.timeout,
            is_given_up,
            plans: Mutex::new(Plans::new()),
        })
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<OpenError> {
        if connection.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        connection.timeout = self.timeout;
        let are_old = connection.plans.get_mut().unwrap_or_else(PoisonError::into_inner).are_old();
        if are_old && connection.command("discard plans").await.is_err() {
            return Err(RecycleError::message("the connection does not answer"));
        }
        Ok(())
    }
}

/// The current use of a store's connection pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Maximum number of connections.
    pub most: usize,
    /// Number of open connections.
    pub open: usize,
    /// Number of connections in use.
    pub busy: usize,
    /// Number of callers that wait for a connection.
    pub waiting: usize,
}

/// The connection pool of a store.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool<Maker>,
    has_citus: bool,
}

/// A connection that returns to the pool when it is dropped.
pub(crate) type Lent = Object<Maker>;

impl Connections {
    pub(crate) fn new(
        connector: Connector,
        most: usize,
        timeout: Duration,
        has_citus: bool,
    ) -> Result<Self, OpenError> {
        let timeouts =
            Timeouts { wait: Some(CONNECTION_TIMEOUT), create: Some(CONNECTION_TIMEOUT), recycle: None };
        let pool = Pool::builder(Maker { connector, timeout })
            .max_size(most.max(1))
            // Prefer the connection that was used last: the caches of its server process are warm.
            .queue_mode(QueueMode::Lifo)
            .timeouts(timeouts)
            .runtime(deadpool::Runtime::Tokio1)
            .build()
            .map_err(|error| OpenError::Config(error.to_string()))?;
        Ok(Connections { pool, has_citus })
    }

    /// Returns the current use of the pool.
    pub(crate) fn used(&self) -> PoolUse {
        let status = self.pool.status();
        let busy = status.size.saturating_sub(status.available);
        PoolUse { most: status.max_size, open: status.size, busy, waiting: status.waiting }
    }

    /// Returns a connection. While the server is down, retries for up to [`CONNECTION_TIMEOUT`].
    pub(crate) async fn get(&self) -> Result<Lent, StoreError> {
        let until = tokio::time::Instant::now() + CONNECTION_TIMEOUT;
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

    /// Returns the commands that begin a transaction with this visibility and mode.
    ///
    /// Citus repeats a whole query string on its workers, so a `begin` before a setting would begin a second
    /// transaction there. Therefore, with Citus, each command is a separate message.
    pub(crate) fn begin(&self, visibility: Visibility, mode: Mode) -> Begin {
        let begin = match mode {
            Mode::Writes => "begin",
            Mode::Reads => "begin read only",
            Mode::ReadsOnce => "begin isolation level repeatable read read only",
        };
        let set = match visibility {
            Visibility::Tenant(tenant) => format!("set local app.current_tenant = '{}'", tenant.uuid()),
            Visibility::DueTenant => "set local stepwell.sees = 'due'".to_owned(),
            Visibility::None => return Begin(vec![begin.to_owned()]),
        };
        match self.has_citus {
            true => Begin(vec![begin.to_owned(), PROPAGATE.to_owned(), set]),
            false => Begin(vec![format!("{begin}; {set}")]),
        }
    }

    /// Runs one statement that spans tenants, for at most [`SPANNING_TIMEOUT`]. The server cancels it then. If the
    /// server does not even do that, the connection counts as lost.
    pub(crate) async fn spanning(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let mut connection = self.get().await?;
        let limit = connection.timeout.min(SPANNING_TIMEOUT);
        connection.timeout = limit;
        let mut begin = self.begin(Visibility::DueTenant, Mode::Reads);
        // Before the settings that Citus passes on: the coordinator cancels the statement on the workers by itself.
        begin.0.insert(1, format!("set local statement_timeout = {}", (limit.as_millis() * 9 / 10).max(1)));
        one(connection, &begin, sql, params).await
    }

    /// Runs one statement in its own transaction, in one round trip.
    pub(crate) async fn one(
        &self,
        visibility: Visibility,
        mode: Mode,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Failure> {
        one(self.get().await?, &self.begin(visibility, mode), sql, params).await
    }
}

/// Runs one statement in its own transaction, in one round trip, and returns the connection to the pool.
async fn one(
    connection: Lent,
    begin: &Begin,
    sql: &'static str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, Failure> {
    let statement = connection.statement(sql).await?;
    let (begun, rows, ended) = tokio::join!(
        connection.begin(begin),
        connection.ask(&statement, params),
        connection.command("commit")
    );
    begun?;
    let rows = rows?;
    ended?;
    Ok(rows)
}

/// The commands that begin a transaction, each sent as a separate message.
pub(crate) struct Begin(Vec<String>);

/// The access mode of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Writes,
    /// Read only, with one statement.
    Reads,
    /// Read only, with several statements that see the same state.
    ReadsOnce,
}

/// A transaction of several dependent statements. If it is dropped before its end, its connection is closed, so that
/// the pool never returns a connection inside a transaction.
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

    /// Returns the connection to the pool after a commit, or after a rollback by the server.
    pub(crate) fn over(mut self) {
        drop(self.connection.take());
    }

    /// Rolls the transaction back and returns the connection to the pool.
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn commands(has_citus: bool, visibility: Visibility) -> Vec<String> {
        let connector = Connector::new(&Config::new(), None, Tls::None);
        let connections = Connections::new(connector, 1, CONNECTION_TIMEOUT, has_citus).unwrap();
        connections.begin(visibility, Mode::Writes).0
    }

    /// A past bug: Citus repeated `begin; set local …` on its workers, each time as a transaction in a transaction.
    #[test]
    fn commands_of_a_transaction_are_separate_messages_on_citus() {
        let tenant = TenantId::new(Uuid::from_u128(7));
        let set = format!("set local app.current_tenant = '{}'", tenant.uuid());
        assert_eq!(commands(true, Visibility::Tenant(tenant)), ["begin", PROPAGATE, &set]);
        let due = "set local stepwell.sees = 'due'";
        assert_eq!(commands(true, Visibility::DueTenant), ["begin", PROPAGATE, due]);
        assert_eq!(commands(true, Visibility::None), ["begin"]);
        assert_eq!(commands(false, Visibility::Tenant(tenant)), [format!("begin; {set}")]);
    }
}
