//! A database that looks like one with Citus: the migration distributes the tables, and the store uses the statements
//! for tenants on several nodes. The rows are all on one server.

use std::sync::atomic::{AtomicU32, Ordering};

use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::{ENGINE, OWNER, TestSchema};
use stepwell_postgres::tokio_postgres::{Client, NoTls, connect};
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};

use crate::raw::{number, soon, texts};

/// Enters the extension into the catalogue, and records the calls of its function.
const LOOKS: &str = "
    set allow_system_table_mods = on;
    insert into pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
         values (4000000001, 'citus', 10, 11, false, '13.2-1');
    create table public.distributed (name text, by text, colocated_with text);
    grant insert on public.distributed to public;
    create function pg_catalog.create_distributed_table(name regclass, by text, colocate_with text) returns void
        language sql as 'insert into public.distributed values ($1::text, $2, $3)';
    create schema stepwell authorization stepwell_owner;";

/// A database of the shared server.
struct Database {
    cluster: &'static Cluster,
    name: String,
}

impl Database {
    async fn create() -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = crate::cluster().await;
        // Creates the roles.
        TestSchema::new(cluster).await.unwrap();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let database = Database { cluster, name: format!("citus_{}_{count}", std::process::id()) };
        let admin = client(&cluster.admin_config_string("postgres")).await;
        let create = |verb: &str| format!("{verb} {}", database.name);
        admin.batch_execute(&create("drop database if exists")).await.unwrap();
        admin.batch_execute(&create("create database")).await.unwrap();
        database.admin().await.batch_execute(LOOKS).await.unwrap();
        PostgresStore::migrate_as(&database.config(OWNER), ENGINE, &database.options()).await.unwrap();
        database
    }

    fn config(&self, role: &str) -> String {
        self.cluster.config_string(role, &self.name)
    }

    async fn admin(&self) -> Client {
        client(&self.cluster.admin_config_string(&self.name)).await
    }

    fn options(&self) -> Options {
        Options { schema: Some("stepwell".to_owned()), ..Options::default() }
    }

    async fn open(&self) -> PostgresStore {
        PostgresStore::open_with(&self.config(ENGINE), self.options()).await.unwrap()
    }

    async fn drop(self) {
        let admin = client(&self.cluster.admin_config_string("postgres")).await;
        admin.batch_execute(&format!("drop database {} with (force)", self.name)).await.unwrap();
    }
}

async fn client(config: &str) -> Client {
    let (client, connection) = connect(config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn migration_distributes_tables_without_forced_row_security() {
    let database = Database::create().await;
    let admin = database.admin().await;
    let tables =
        "select name || ' by ' || by || ' with ' || colocated_with from public.distributed order by 1";
    let distributed = texts(&admin, tables).await;
    assert_eq!(distributed.len(), 15, "{distributed:#?}");
    for line in &distributed {
        let with = if line.starts_with("runs ") { "none" } else { "runs" };
        assert!(line.ends_with(&format!(" by tenant with {with}")), "{line}");
    }
    let secured =
        "select count(*) from pg_class where relnamespace = 'stepwell'::regnamespace and relrowsecurity";
    assert_eq!(number(&admin, secured).await, 15);
    assert_eq!(number(&admin, &format!("{secured} and relforcerowsecurity")).await, 0);
    let policies = "select qual from pg_policies where schemaname = 'stepwell'";
    let policies = texts(&admin, policies).await;
    assert_eq!(policies.len(), 17);
    assert!(policies.iter().all(|policy| !policy.to_lowercase().contains("select")), "{policies:#?}");

    let store = soon(database.open()).await;
    assert!(store.status().await.unwrap().has_citus);
    let head = ask::started(&store, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    assert_eq!(ask::load(&store, head.run).await.head, head);
    let engine = client(&database.config(ENGINE)).await;
    assert_eq!(
        number(&engine, "select count(*) from stepwell.runs").await,
        0,
        "the policies apply to the role"
    );
    drop((store, engine, admin));
    database.drop().await;
}

/// A generic plan does not know the tenant, so Citus could not find its node.
#[tokio::test]
async fn statements_are_planned_with_their_values_on_citus() {
    let database = Database::create().await;
    let admin = database.admin().await;
    let record = "
        create table public.modes (mode text);
        grant insert on public.modes to public;
        create function public.record() returns trigger language plpgsql as
            $$ begin insert into public.modes values (current_setting('plan_cache_mode')); return new; end $$;
        create trigger record before insert on stepwell.cells for each row execute function public.record()";
    admin.batch_execute(record).await.unwrap();
    let make = make::Make::new();
    let store = database.open().await;
    ask::apply(&store, make.write([make::set("stock", 1)])).await;
    let modes = "select mode from public.modes";
    assert_eq!(texts(&admin, modes).await, ["auto"]);
    drop(store);
    // Without Citus the same statement has a generic plan.
    admin
        .batch_execute("delete from pg_extension where extname = 'citus'; delete from public.modes")
        .await
        .unwrap();
    let store = database.open().await;
    ask::apply(&store, make.write([make::set("bolts", 1)])).await;
    assert_eq!(texts(&admin, modes).await, ["force_generic_plan"]);
    drop((store, admin));
    database.drop().await;
}
