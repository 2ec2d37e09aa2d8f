//! A schema of one's own in a throwaway cluster, for tests and measurements.

use stepwell_core::Limits;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::{OpenError, Options, PostgresStore};

/// The role that owns the tables.
pub const OWNER: &str = "stepwell_owner";
/// The role the engine connects as: neither superuser nor owner.
pub const ENGINE: &str = "stepwell_engine";

const DATABASE: &str = "postgres";

/// Several processes may come to a new cluster at the same time.
const ROLES: &str = "begin; select pg_advisory_xact_lock(7);
do $$ begin
    if not exists (select 1 from pg_roles where rolname = 'stepwell_owner') then create role stepwell_owner login; end if;
    if not exists (select 1 from pg_roles where rolname = 'stepwell_engine') then create role stepwell_engine login; end if;
    if not has_database_privilege('stepwell_owner', 'postgres', 'create') then grant create on database postgres to stepwell_owner; end if;
end $$;
commit;";

/// A schema of one's own, and who may use it.
#[derive(Debug, Clone)]
pub struct Ground {
    owner: String,
    engine: String,
    admin: String,
    schema: String,
}

impl Ground {
    /// An empty place for a schema.
    pub async fn new(cluster: &Cluster) -> Result<Ground, String> {
        let name = Uuid::from_u128(std::process::id().into()).simple().to_string();
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let schema = format!("s{}_{count}_{}", &name[name.len() - 8..], time.as_nanos());
        let admin = cluster.admin_config_string(DATABASE);
        let (client, connection) = tokio_postgres::connect(&admin, NoTls).await.map_err(|e| e.to_string())?;
        let driver = tokio::spawn(connection);
        client.batch_execute(ROLES).await.map_err(|error| crate::error::described(&error))?;
        drop(client);
        let _ = driver.await;
        let (owner, engine) =
            (cluster.config_string(OWNER, DATABASE), cluster.config_string(ENGINE, DATABASE));
        Ok(Ground { owner, engine, admin, schema })
    }

    /// The same in another process, from what [`Ground::text`] gave.
    pub fn from_text(text: &str) -> Option<Ground> {
        let parts: Vec<&str> = text.split('\n').collect();
        let [owner, engine, admin, schema] = parts[..] else { return None };
        let own = str::to_owned;
        Some(Ground { owner: own(owner), engine: own(engine), admin: own(admin), schema: own(schema) })
    }

    /// A text that says it all to another process.
    pub fn text(&self) -> String {
        [&self.owner[..], &self.engine, &self.admin, &self.schema].join("\n")
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The connection string of the role that owns the tables.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The connection string of the engine's role.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The connection string of the cluster's superuser.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The options that open the schema, making it if it is not there.
    pub fn options(&self) -> Options {
        Options {
            schema: Some(self.schema.clone()),
            migrate_as: Some(self.owner.clone()),
            limits: Limits::default(),
            ..Options::default()
        }
    }

    /// A store in the schema.
    pub async fn open(&self) -> Result<PostgresStore, OpenError> {
        PostgresStore::open_with(&self.engine, self.options()).await
    }
}
