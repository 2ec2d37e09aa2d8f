//! The schema: created once by concurrent processes, equal to `schema.sql`, and refused if it is not ours.

use std::time::{Duration, Instant};

use stepwell_postgres::test_schema::{ENGINE, OWNER, TestSchema};
use stepwell_postgres::{OpenError, Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{SchemaVersion, StoreError};

use crate::raw::{client, number, soon, texts};

const SCHEMA: &str = include_str!("../../schema.sql");
const MIGRATIONS: [(&str, &str); 1] = [("foundation", include_str!("../../migrations/0001_foundation.sql"))];

/// Returns options that do not migrate.
fn looks(test_schema: &TestSchema) -> Options {
    Options { migrate_as: None, ..test_schema.options() }
}

async fn schema_error(open: impl Future<Output = Result<PostgresStore, OpenError>>) -> String {
    match soon(open).await {
        Err(OpenError::Store(StoreError::Schema(said))) => said,
        other => panic!("the schema should be refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_migrations_all_succeed() {
    let test_schema = crate::test_schema().await;
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let test_schema = test_schema.clone();
            tokio::spawn(async move {
                PostgresStore::migrate_as(test_schema.owner(), ENGINE, &test_schema.options()).await
            })
        })
        .collect();
    for task in tasks {
        let version = soon(task).await.unwrap().unwrap();
        assert_eq!(version, SchemaVersion(MIGRATIONS.len() as u32));
    }
    let engine = client(&test_schema, test_schema.engine()).await;
    let ledger = "select version || ' ' || name from stepwell_migrations order by version";
    let wanted: Vec<_> = (1..).zip(MIGRATIONS).map(|(n, (name, _))| format!("{n} {name}")).collect();
    assert_eq!(texts(&engine, ledger).await, wanted);
    let store = PostgresStore::open_with(test_schema.engine(), looks(&test_schema)).await.unwrap();
    ask::started(&store, make::Make::new().create(make::new_run(make::run(1)))).await;
}

/// Describes a schema from the system catalogue, without its name and without the migrations table.
async fn catalogue(test_schema: &TestSchema) -> Vec<String> {
    let ask = "
        with mine as (select c.* from pg_class c where c.relnamespace = 'SCHEMA'::regnamespace
                         and c.relname not like 'stepwell_migrations%')
        select concat_ws(' ', 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                         a.attnotnull, a.attstorage, a.attcompression, a.attcollation::regcollation,
                         a.attidentity, pg_get_expr(d.adbin, d.adrelid))
          from mine c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum where c.relkind in ('r', 'c')
        union all
        select concat_ws(' ', 'relation', c.relname, c.relkind, c.relpersistence, c.reloptions::text,
                         c.relrowsecurity, c.relforcerowsecurity) from mine c
        union all
        select 'index ' || pg_get_indexdef(c.oid) from mine c where c.relkind = 'i'
        union all
        select concat_ws(' ', 'constraint', c.relname, o.conname, pg_get_constraintdef(o.oid))
          from mine c join pg_constraint o on o.conrelid = c.oid
        union all
        select concat_ws(' ', 'trigger', c.relname, t.tgname)
          from mine c join pg_trigger t on t.tgrelid = c.oid
        union all
        select concat_ws(' ', 'policy', tablename, policyname, permissive, roles::text, cmd, qual, with_check)
          from pg_policies where schemaname = 'SCHEMA'
        union all
        select concat_ws(' ', 'type', t.typname, t.typtype)
          from pg_type t where t.typnamespace = 'SCHEMA'::regnamespace
                           and t.typname not in ('stepwell_migrations', '_stepwell_migrations')
        union all
        select 'function ' || pg_get_functiondef(p.oid)
          from pg_proc p where p.pronamespace = 'SCHEMA'::regnamespace";
    let admin = client(test_schema, test_schema.admin()).await;
    let found = texts(&admin, &ask.replace("SCHEMA", test_schema.schema())).await;
    let mut found: Vec<_> = found.into_iter().map(|line| line.replace(test_schema.schema(), "it")).collect();
    found.sort();
    found
}

/// A change must be made both in a migration and in `schema.sql`.
#[tokio::test]
async fn migrations_produce_the_schema() {
    let (migrated, written) = (crate::test_schema().await, crate::test_schema().await);
    PostgresStore::migrate_as(migrated.owner(), ENGINE, &migrated.options()).await.unwrap();
    let owner = client(&written, written.owner()).await;
    owner.batch_execute(&format!("create schema {}", written.schema())).await.unwrap();
    owner.batch_execute(SCHEMA).await.unwrap();
    let (migrated, written) = (catalogue(&migrated).await, catalogue(&written).await);
    for kind in ["column runs ", "index ", "constraint ", "policy ", "type run_record", "relation "] {
        assert!(written.iter().any(|line| line.starts_with(kind)), "no {kind}: {written:#?}");
    }
    let missing = |from: &[String], other: &[String]| -> Vec<String> {
        from.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    assert_eq!(missing(&migrated, &written), Vec::<String>::new(), "only by the migrations");
    assert_eq!(missing(&written, &migrated), Vec::<String>::new(), "only in schema.sql");
    assert_eq!(migrated, written);
}

#[tokio::test]
async fn unmigrated_database_is_refused_with_advice() {
    let test_schema = crate::test_schema().await;
    let said = schema_error(PostgresStore::open_with(test_schema.engine(), looks(&test_schema))).await;
    assert!(said.contains("no Stepwell schema") && said.contains("migrate it as the owner"), "{said}");
    let owner = client(&test_schema, test_schema.owner()).await;
    let exists = format!("select count(*) from pg_namespace where nspname = '{}'", test_schema.schema());
    assert_eq!(number(&owner, &exists).await, 0, "looking makes nothing");
    // A role without the right to create cannot create the schema either, and the error says so.
    let options = Options { migrate_as: Some(test_schema.engine().to_owned()), ..test_schema.options() };
    let error = soon(PostgresStore::migrate_as(test_schema.engine(), OWNER, &options)).await.unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
}

/// A past bug: PostgreSQL checks the right to create before `if not exists`.
#[tokio::test]
async fn existing_schema_needs_no_right_to_create_schemas() {
    let cluster = crate::cluster().await;
    let test_schema = TestSchema::new(cluster).await.unwrap();
    let (schema, role) = (test_schema.schema(), format!("poor_{}", test_schema.schema()));
    let admin = client(&test_schema, test_schema.admin()).await;
    let create = format!("create role {role} login; create schema {schema} authorization {role}");
    admin.batch_execute(&create).await.unwrap();
    let options =
        Options { migrate_as: Some(cluster.config_string(&role, "postgres")), ..test_schema.options() };
    let store = PostgresStore::open_with(test_schema.engine(), options).await.unwrap();
    ask::started(&store, make::Make::new().create(make::new_run(make::run(1)))).await;
    drop(store);
    admin.batch_execute(&format!("drop schema {schema} cascade; drop role {role}")).await.unwrap();
}

/// Tables must not be created for a role that the store refuses afterwards.
#[tokio::test]
async fn role_that_would_bypass_row_security_gets_no_tables() {
    let test_schema = crate::test_schema().await;
    let owner = client(&test_schema, test_schema.owner()).await;
    let exists = format!("select count(*) from pg_namespace where nspname = '{}'", test_schema.schema());
    for (engine, owned_by) in
        [(test_schema.owner(), test_schema.owner()), (test_schema.admin(), test_schema.owner())]
    {
        let options = Options { migrate_as: Some(owned_by.to_owned()), ..test_schema.options() };
        let error = soon(PostgresStore::open_with(engine, options)).await.unwrap_err();
        assert!(matches!(&error, OpenError::SeesAll { .. }), "{error}");
        assert_eq!(number(&owner, &exists).await, 0, "{error}");
    }
    let error = soon(PostgresStore::migrate_as(test_schema.owner(), "stranger", &test_schema.options()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("role \"stranger\" does not exist"), "{error}");
    assert_eq!(number(&owner, &exists).await, 0);
}

/// On a migrated schema the owner's credentials are not needed, so they are not even read.
#[tokio::test]
async fn migrated_schema_opens_with_an_unusable_owner() {
    let test_schema = crate::test_schema().await;
    drop(test_schema.open().await.unwrap());
    for owner in ["port=many", "host=127.0.0.1 port=1 user=stepwell_owner dbname=postgres"] {
        let options = Options { migrate_as: Some(owner.to_owned()), ..test_schema.options() };
        soon(PostgresStore::open_with(test_schema.engine(), options)).await.unwrap();
    }
}

/// An old program must not start on a database that a newer one has migrated.
#[tokio::test]
async fn database_of_a_newer_or_different_stepwell_is_refused() {
    let test_schema = crate::test_schema().await;
    drop(test_schema.open().await.unwrap());
    let owner = client(&test_schema, test_schema.owner()).await;
    let newer = MIGRATIONS.len() + 1;
    let tampers = [
        (
            format!("insert into stepwell_migrations values ({newer}, 'later', '')"),
            format!("delete from stepwell_migrations where version = {newer}"),
            "use a newer Stepwell",
        ),
        (
            "update stepwell_migrations set checksum = checksum || 'x' where version = 1".to_owned(),
            "select 1".to_owned(),
            "differs from the one the database was created with",
        ),
    ];
    for (tamper, undo, wanted) in tampers {
        assert_eq!(owner.execute(&tamper, &[]).await.unwrap(), 1);
        for options in [looks(&test_schema), test_schema.options()] {
            let said = schema_error(PostgresStore::open_with(test_schema.engine(), options)).await;
            assert!(said.contains(wanted), "{said}");
        }
        owner.batch_execute(&undo).await.unwrap();
    }
}

#[tokio::test]
async fn unreachable_server_is_reported_clearly_and_soon() {
    let begun = Instant::now();
    for wrong in ["port=many", "host", "user=a color=blue"] {
        let error = soon(PostgresStore::open(wrong)).await.unwrap_err();
        assert!(matches!(&error, OpenError::Config(_)), "{wrong}: {error:?}");
        assert!(error.to_string().starts_with("the connection string cannot be used: "), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("host={} user=stepwell_engine dbname=postgres", folder.path().display());
    let test_schema = crate::test_schema().await;
    let stranger = test_schema.engine().replace(ENGINE, "stranger");
    let nowhere = test_schema.engine().replace("dbname=postgres", "dbname=nowhere");
    let refused = "host=127.0.0.1 port=1 user=stepwell_engine dbname=postgres".to_owned();
    let tries = [
        (nobody, "No such file"),
        (stranger, "role \"stranger\" does not exist"),
        (nowhere, "database \"nowhere\" does not exist"),
        (refused, "refused"),
    ];
    for (config, why) in tries {
        let error = soon(PostgresStore::open(&config)).await.unwrap_err();
        assert!(matches!(&error, OpenError::Unreachable(_)), "{config}: {error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Without a user it is unknown which role gets the rights.
#[tokio::test]
async fn migrating_for_an_empty_role_is_refused() {
    let test_schema = crate::test_schema().await;
    let error =
        soon(PostgresStore::migrate_as(test_schema.owner(), "", &test_schema.options())).await.unwrap_err();
    assert!(matches!(&error, OpenError::Config(said) if said.contains("names no user")), "{error}");
}
