//! The schema: made once however many make it, the same however it is made, and refused when it is not ours.

use std::time::{Duration, Instant};

use stepwell_postgres::ground::{ENGINE, Ground};
use stepwell_postgres::{OpenError, Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{SchemaVersion, StoreError};

use crate::raw::{client, number, soon, texts};

const SCHEMA: &str = include_str!("../../schema.sql");
const MIGRATIONS: [(&str, &str); 1] = [("foundation", include_str!("../../migrations/0001_foundation.sql"))];

/// The options of somebody who does not migrate.
fn looks(ground: &Ground) -> Options {
    Options { migrate_as: None, ..ground.options() }
}

async fn schema_error(open: impl Future<Output = Result<PostgresStore, OpenError>>) -> String {
    match soon(open).await {
        Err(OpenError::Store(StoreError::Schema(said))) => said,
        other => panic!("a schema was to be refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_that_migrate_at_once_all_succeed_and_each_migration_is_made_once() {
    let ground = crate::ground().await;
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let ground = ground.clone();
            tokio::spawn(
                async move { PostgresStore::migrate_as(ground.owner(), ENGINE, &ground.options()).await },
            )
        })
        .collect();
    for task in tasks {
        let version = soon(task).await.unwrap().unwrap();
        assert_eq!(version, SchemaVersion(MIGRATIONS.len() as u32));
    }
    let engine = client(&ground, ground.engine()).await;
    let ledger = "select version || ' ' || name from stepwell_migrations order by version";
    let wanted: Vec<_> = (1..).zip(MIGRATIONS).map(|(n, (name, _))| format!("{n} {name}")).collect();
    assert_eq!(texts(&engine, ledger).await, wanted);
    let store = PostgresStore::open_with(ground.engine(), looks(&ground)).await.unwrap();
    ask::started(&store, make::Make::new().create(make::new_run(make::run(1)))).await;
}

/// What the catalogue says of a schema, without its name and without the ledger.
async fn catalogue(ground: &Ground) -> Vec<String> {
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
    let admin = client(ground, ground.admin()).await;
    let found = texts(&admin, &ask.replace("SCHEMA", ground.schema())).await;
    let mut found: Vec<_> = found.into_iter().map(|line| line.replace(ground.schema(), "it")).collect();
    found.sort();
    found
}

/// The accident: a migration is written and the schema for readers is not, or the other way round.
#[tokio::test]
async fn the_migrations_add_up_to_the_schema() {
    let (migrated, written) = (crate::ground().await, crate::ground().await);
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
async fn a_database_that_nobody_has_migrated_is_refused_with_the_advice_to_do_so() {
    let ground = crate::ground().await;
    let said = schema_error(PostgresStore::open_with(ground.engine(), looks(&ground))).await;
    assert!(said.contains("no Stepwell schema") && said.contains("migrate it as the owner"), "{said}");
    let owner = client(&ground, ground.owner()).await;
    let exists = format!("select count(*) from pg_namespace where nspname = '{}'", ground.schema());
    assert_eq!(number(&owner, &exists).await, 0, "looking makes nothing");
    // The engine's own role cannot make it either, and says so.
    let options = Options { migrate_as: Some(ground.engine().to_owned()), ..ground.options() };
    let said = schema_error(PostgresStore::open_with(ground.engine(), options)).await;
    assert!(said.contains("permission denied"), "{said}");
}

/// The accident: an old program is started again on a database that a newer one has changed.
#[tokio::test]
async fn a_database_of_a_newer_stepwell_or_of_another_one_is_refused() {
    let ground = crate::ground().await;
    drop(ground.open().await.unwrap());
    let owner = client(&ground, ground.owner()).await;
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
            "is not the one the database was made with",
        ),
    ];
    for (tamper, undo, wanted) in tampers {
        assert_eq!(owner.execute(&tamper, &[]).await.unwrap(), 1);
        for options in [looks(&ground), ground.options()] {
            let said = schema_error(PostgresStore::open_with(ground.engine(), options)).await;
            assert!(said.contains(wanted), "{said}");
        }
        owner.batch_execute(&undo).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_told_clearly_and_soon() {
    let begun = Instant::now();
    for wrong in ["port=many", "host", "user=a color=blue"] {
        let error = soon(PostgresStore::open(wrong)).await.unwrap_err();
        assert!(matches!(&error, OpenError::Config(_)), "{wrong}: {error:?}");
        assert!(error.to_string().starts_with("the connection string cannot be used: "), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let nobody = format!("host={} user=stepwell_engine dbname=postgres", folder.path().display());
    let ground = crate::ground().await;
    let stranger = ground.engine().replace(ENGINE, "stranger");
    let nowhere = ground.engine().replace("dbname=postgres", "dbname=nowhere");
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

/// Whoever gives no user cannot say whom the tables are for.
#[tokio::test]
async fn a_connection_string_without_a_user_is_not_migrated_for() {
    let ground = crate::ground().await;
    let error = soon(PostgresStore::migrate_as(ground.owner(), "", &ground.options())).await.unwrap_err();
    assert!(matches!(&error, OpenError::Config(said) if said.contains("names no user")), "{error}");
}
