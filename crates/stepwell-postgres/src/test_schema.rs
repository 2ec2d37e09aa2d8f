//! A separate schema for each test or measurement, in a throwaway cluster or on an external server.

use std::collections::BTreeSet;
use std::env;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stepwell_core::Limits;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

use crate::cluster::{Cluster, quoted};
use crate::error::described;
use crate::{OpenError, Options, PostgresStore};

/// The environment variable that names an external server to test on.
pub const DATABASE_URL: &str = "STEPWELL_TEST_DATABASE_URL";

/// The role that owns the tables.
pub const OWNER: &str = "stepwell_owner";
/// The role the engine connects as: neither superuser nor owner.
pub const ENGINE: &str = "stepwell_engine";

const DATABASE: &str = "postgres";

/// Creates the two roles. Several processes may do this to a new server at the same time.
const ROLES: &str = "begin; select pg_advisory_xact_lock(7);
do $$ begin
    if not exists (select 1 from pg_roles where rolname = 'stepwell_owner') then create role stepwell_owner login; end if;
    if not exists (select 1 from pg_roles where rolname = 'stepwell_engine') then create role stepwell_engine login; end if;
    if not has_database_privilege('stepwell_owner', current_database(), 'create') then
        execute format('grant create on database %I to stepwell_owner', current_database());
    end if;
end $$;
commit;";

/// Schemas of earlier processes on an external server are dropped when they are older than this.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// Maximum number of recycled schemas.
const RECYCLED: i32 = 256;

/// A schema, and the connection strings of the roles that use it.
#[derive(Debug, Clone)]
pub struct TestSchema {
    owner: String,
    engine: String,
    admin: String,
    schema: String,
}

/// An exclusive lease on a recycled schema, released when this is dropped.
#[derive(Debug)]
pub struct SchemaLease(
    /// Number of the recycled schema; `None` for a new schema.
    Option<i32>,
);

impl Drop for SchemaLease {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            recycler().lock().unwrap_or_else(PoisonError::into_inner).used.remove(&number);
        }
    }
}

/// The state that the tests of this process share: one session, which holds the locks of the schemas they use. A lock
/// is held until the process ends, so that the next test of the process takes the same schema.
#[derive(Default)]
struct Recycler {
    session: Option<Arc<Client>>,
    used: BTreeSet<i32>,
    locked: BTreeSet<i32>,
}

fn recycler() -> &'static Mutex<Recycler> {
    static RECYCLER: OnceLock<Mutex<Recycler>> = OnceLock::new();
    RECYCLER.get_or_init(Mutex::default)
}

/// Returns the session that holds the locks. It runs on a separate thread, because it outlives the runtimes of tests.
async fn session(admin: &str) -> Result<Arc<Client>, String> {
    let known = |session: &Arc<Client>| !session.is_closed();
    let locked = || recycler().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(session) = locked().session.clone().filter(known) {
        return Ok(session);
    }
    let (tell, told) = tokio::sync::oneshot::channel();
    let admin = admin.to_owned();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        runtime.block_on(async {
            match tokio_postgres::connect(&admin, NoTls).await {
                Ok((client, connection)) => {
                    let _ = tell.send(Ok(client));
                    let _ = connection.await;
                }
                Err(error) => drop(tell.send(Err(described(&error)))),
            }
        });
    });
    let client = told.await.map_err(|error| error.to_string())??;
    execute(&client, ROLES).await?;
    let mut shared = locked();
    // Two tests may have connected at the same time. One session is enough.
    if let Some(session) = shared.session.clone().filter(known) {
        return Ok(session);
    }
    let session = Arc::new(client);
    shared.session = Some(session.clone());
    // The locks of the previous session were released when it ended.
    shared.locked.clear();
    Ok(session)
}

impl TestSchema {
    /// Reserves a schema on the server that [`DATABASE_URL`] names or, without it, in the cluster that all test
    /// processes share.
    pub async fn shared() -> Result<TestSchema, String> {
        match external_url() {
            Some(url) => TestSchema::external(&url).await,
            None => TestSchema::new(shared_cluster().await?).await,
        }
    }

    /// Opens a store in an emptied schema of earlier tests. That takes a tenth of the time of creating the tables. Not
    /// for tests that change tables or read the server's statistics of them.
    pub async fn open_recycled(
        change: impl FnOnce(Options) -> Options,
    ) -> Result<(PostgresStore, SchemaLease), String> {
        let (test_schema, lease) = match external_url() {
            Some(url) => (TestSchema::external(&url).await?, SchemaLease(None)),
            None => TestSchema::recycled(shared_cluster().await?).await?,
        };
        let options = change(test_schema.options());
        let store = PostgresStore::open_with(&test_schema.engine, options)
            .await
            .map_err(|error| error.to_string())?;
        Ok((store, lease))
    }

    /// Reserves a schema in a cluster.
    pub async fn new(cluster: &Cluster) -> Result<TestSchema, String> {
        let test_schema = TestSchema::named(cluster, schema_name(SystemTime::now()));
        connected(&test_schema.admin, async |client| execute(client, ROLES).await).await?;
        Ok(test_schema)
    }

    /// Reserves a schema that was used before, or a new one if all of those are in use.
    async fn recycled(cluster: &Cluster) -> Result<(TestSchema, SchemaLease), String> {
        let mut test_schema = TestSchema::named(cluster, schema_name(SystemTime::now()));
        let session = session(&test_schema.admin).await?;
        let Some((schema, lease)) = free_schema(&session).await? else {
            return Ok((test_schema, SchemaLease(None)));
        };
        for config in [&mut test_schema.owner, &mut test_schema.engine] {
            *config = format!("{config} application_name={schema}");
        }
        test_schema.schema = schema;
        Ok((test_schema, lease))
    }

    fn named(cluster: &Cluster, schema: String) -> TestSchema {
        TestSchema {
            owner: cluster.config_string(OWNER, DATABASE),
            engine: cluster.config_string(ENGINE, DATABASE),
            admin: cluster.admin_config_string(DATABASE),
            schema,
        }
    }

    /// Reserves a schema on an external server. The user of the URL must be allowed to create roles and schemas; the
    /// server must accept connections without TLS.
    pub async fn external(url: &str) -> Result<TestSchema, String> {
        let config = Config::from_str(url)
            .map_err(|error| format!("{DATABASE_URL} is not a PostgreSQL connection string: {error}"))?;
        // Derived from the URL, so that all processes with this URL agree and others cannot guess it.
        let password = stepwell_core::topic::digest(format!("stepwell test role {url}").as_bytes());
        let test_schema = TestSchema {
            owner: as_role(&config, OWNER, &password)?,
            engine: as_role(&config, ENGINE, &password)?,
            admin: url.to_owned(),
            schema: schema_name(SystemTime::now()),
        };
        connected(url, async |client| {
            execute(client, ROLES).await?;
            static ONCE: AtomicU32 = AtomicU32::new(0);
            if ONCE.fetch_add(1, Ordering::Relaxed) > 0 {
                return Ok(());
            }
            let alter = |role| format!("alter role {role} password '{password}';");
            let passwords = format!("select pg_advisory_lock(7); {} {}", alter(OWNER), alter(ENGINE));
            execute(client, &passwords).await?;
            drop_abandoned(client).await
        })
        .await?;
        Ok(test_schema)
    }

    /// Restores a test schema in another process from the text of [`TestSchema::text`].
    pub fn from_text(text: &str) -> Option<TestSchema> {
        let parts: Vec<&str> = text.split('\n').collect();
        let [owner, engine, admin, schema] = parts[..] else { return None };
        let own = str::to_owned;
        Some(TestSchema { owner: own(owner), engine: own(engine), admin: own(admin), schema: own(schema) })
    }

    /// Encodes the test schema as text for another process.
    pub fn text(&self) -> String {
        [&self.owner[..], &self.engine, &self.admin, &self.schema].join("\n")
    }

    /// Returns the name of the schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Returns the connection string of the role that owns the tables.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the connection string of the engine's role.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Returns the connection string of the cluster's superuser.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// Returns the options to open the schema. They create it if it does not exist.
    pub fn options(&self) -> Options {
        Options {
            schema: Some(self.schema.clone()),
            migrate_as: Some(self.owner.clone()),
            limits: Limits::default(),
            ..Options::default()
        }
    }

    /// Opens a store in the schema.
    pub async fn open(&self) -> Result<PostgresStore, OpenError> {
        PostgresStore::open_with(&self.engine, self.options()).await
    }
}

fn external_url() -> Option<String> {
    env::var(DATABASE_URL).ok().filter(|url| !url.is_empty())
}

/// Returns the cluster that all test processes share. Its lock is held until the process ends.
async fn shared_cluster() -> Result<&'static Cluster, String> {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let start = || CLUSTER.get_or_init(Cluster::shared).as_ref();
    let cluster = tokio::task::spawn_blocking(start).await.map_err(|error| error.to_string())?;
    cluster.map_err(Clone::clone)
}

/// Returns a unique name that contains the time of its creation.
fn schema_name(now: SystemTime) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let process = Uuid::from_u128(std::process::id().into()).simple().to_string();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("s{}_{count}_{nanos}", &process[process.len() - 8..])
}

/// Returns true if the name has the format of [`schema_name`] and was created before `limit`.
fn is_older(schema: &str, limit: SystemTime) -> bool {
    let parts: Vec<&str> = schema.split('_').collect();
    let [process, count, nanos] = parts[..] else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = process.len() == 9 && process.starts_with('s') && digits(count) && digits(nanos);
    let limit = limit.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    is_ours && nanos.parse::<u128>().is_ok_and(|nanos| nanos < limit)
}

/// Drops the schemas that earlier processes left on an external server.
async fn drop_abandoned(client: &Client) -> Result<(), String> {
    let limit = SystemTime::now() - ABANDONED;
    let owned = "select nspname from pg_namespace where nspowner = 'stepwell_owner'::regrole";
    let rows = client.query(owned, &[]).await.map_err(|error| described(&error))?;
    let names = rows.iter().map(|row| row.get::<_, String>(0));
    for schema in names.filter(|schema| is_older(schema, limit)) {
        execute(client, &format!("drop schema if exists {schema} cascade")).await?;
    }
    Ok(())
}

/// Returns the connection string for another role on the same server and database.
fn as_role(config: &Config, role: &str, password: &str) -> Result<String, String> {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        })
        .collect();
    if hosts.is_empty() {
        return Err(format!("{DATABASE_URL} names no host"));
    }
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or(DATABASE);
    let mut words = vec![format!("host={}", quoted(&hosts.join(",")))];
    words.extend((!ports.is_empty()).then(|| format!("port={}", ports.join(","))));
    words.push(format!("user={role} password={password} dbname={}", quoted(database)));
    Ok(words.join(" "))
}

/// Reserves the first unused schema and empties it. Returns `None` when all are in use.
async fn free_schema(client: &Client) -> Result<Option<(String, SchemaLease)>, String> {
    // Schemas of another version of the tables have other names.
    let version = stepwell_core::topic::digest(crate::migrate::text().as_bytes());
    let lock = i32::from_str_radix(&version[..7], 16).unwrap_or_default();
    let Some(lease) = lease(client, lock).await? else { return Ok(None) };
    let schema = format!("again_{}_{}", &version[..8], lease.0.unwrap_or_default());
    // The previous test may have ended while its connections were still busy.
    let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = $1";
    while client.query_one(others, &[&schema]).await.map_err(|error| described(&error))?.get::<_, i64>(0) > 0
    {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let tables = "select coalesce(string_agg(format('delete from %I.%I', schemaname, tablename), ';'), '')
        from pg_tables where schemaname = $1 and tablename <> 'stepwell_migrations'";
    let row = client.query_one(tables, &[&schema]).await.map_err(|error| described(&error))?;
    execute(client, row.get(0)).await?;
    Ok(Some((schema, lease)))
}

/// Reserves a schema that this process has locked and does not use, or locks another.
async fn lease(client: &Client, lock: i32) -> Result<Option<SchemaLease>, String> {
    let all = || recycler().lock().unwrap_or_else(PoisonError::into_inner);
    for number in 0..RECYCLED {
        let is_locked = {
            let mut all = all();
            if !all.used.insert(number) {
                continue;
            }
            all.locked.contains(&number)
        };
        let lease = SchemaLease(Some(number));
        if is_locked {
            return Ok(Some(lease));
        }
        let locks = "select pg_try_advisory_lock($1, $2)";
        if client.query_one(locks, &[&lock, &number]).await.map_err(|error| described(&error))?.get(0) {
            all().locked.insert(number);
            return Ok(Some(lease));
        }
    }
    Ok(None)
}

async fn execute(client: &Client, sql: &str) -> Result<(), String> {
    client.batch_execute(sql).await.map_err(|error| described(&error))
}

/// Runs `work` in a new session.
async fn connected(
    config: &str,
    work: impl AsyncFnOnce(&Client) -> Result<(), String>,
) -> Result<(), String> {
    let (client, connection) =
        tokio_postgres::connect(config, NoTls).await.map_err(|error| described(&error))?;
    let driver = tokio::spawn(connection);
    let done = work(&client).await;
    drop(client);
    let _ = driver.await;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_schemas_of_tests_are_dropped() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let name = schema_name(now);
        assert!(is_older(&name, now + Duration::from_secs(1)));
        assert!(!is_older(&name, now));
        for other in ["public", "s_1_2", "shop_1_2", "s0000000a_x_1", "s0000000a_1_"] {
            assert!(!is_older(other, now + Duration::from_secs(1)), "{other}");
        }
    }

    #[test]
    fn roles_connect_to_the_same_database() {
        let config = Config::from_str("postgres://ann:pw@db.example.com:5433/shop").unwrap();
        let role = as_role(&config, ENGINE, "secret").unwrap();
        assert_eq!(role, "host=db.example.com port=5433 user=stepwell_engine password=secret dbname=shop");
        assert!(as_role(&Config::new(), ENGINE, "secret").unwrap_err().contains("names no host"));
    }
}
