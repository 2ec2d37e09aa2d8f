//! The second wall: whatever a statement forgets, PostgreSQL itself shows nobody another tenant's rows.

use std::collections::BTreeSet;

use stepwell_postgres::ground::Ground;
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{OpenError, PostgresStore};
use stepwell_store::suite::make;
use stepwell_store::{Commit, NewRun, Store, Sweep, SweepWhat};

use crate::raw::{client, forbidden, number, soon, texts};

/// Every table that begins with the tenant.
const TABLES: [&str; 15] = [
    "audit",
    "cells",
    "checkpoints",
    "definitions",
    "documents",
    "handles",
    "idempotency",
    "inbox",
    "links",
    "runs",
    "seals",
    "shadows",
    "tenants",
    "unsealed",
    "waits",
];

/// A schema in which two tenants have a row in every table.
async fn filled() -> (Ground, PostgresStore) {
    let ground = crate::ground().await;
    let store = ground.open().await.unwrap();
    let make = make::Make::new();
    for number in 1..=2 {
        let (open, shadows) = (vec![make::wait(1)], vec![make::shade("email", "ann")]);
        let new = NewRun { open, shadows, ..make::due_run(make::run(number), 0) };
        let start = Commit {
            documents: vec![make::put(new.run, "note", "hello")],
            definitions: vec![make::stored("orders")],
            audit: vec![make::audit("orders")],
            keys: vec![make::key("once", 1)],
            handles: vec![make::rest(make::leading(1, new.run))],
            cells: vec![make::set("stock", 7)],
            links: vec![make::upsert(1, make::edge("order/1", "of", "person/1"))],
            send: vec![make::to(new.run, "PAID")],
            create: vec![new],
            ..make.commit()
        };
        let scope = make::tenant(number);
        store.commit(scope, start).await.unwrap();
        let seal = Sweep { now: make::at(0), limit: 10, what: SweepWhat::Seal };
        assert_eq!(store.sweep(scope, seal).await.unwrap().count, 3);
        let later = Commit { audit: vec![make::audit("later")], ..make.commit() };
        store.commit(scope, later).await.unwrap();
    }
    (ground, store)
}

fn tenant(number: u128) -> String {
    make::tenant(number).tenant().uuid().to_string()
}

/// How many rows of a table a connection sees.
async fn seen(client: &Client, table: &str) -> i64 {
    number(client, &format!("select count(*) from {table}")).await
}

/// A tenant's row of a table, as whoever sees everything reads it.
async fn row(admin: &Client, table: &str, whose: u128) -> String {
    let sql = format!("select to_json(t)::text from {table} t where tenant = '{}'", tenant(whose));
    texts(admin, &sql).await.remove(0)
}

/// Puts a row into a table.
async fn insert(client: &Client, table: &str, row: &str) -> String {
    // But for what the server makes of the others.
    let columns =
        "select attname::text from pg_attribute where attnum > 0 and not attisdropped and attgenerated = ''";
    let columns = texts(client, &format!("{columns} and attrelid = '{table}'::regclass")).await.join(", ");
    let values = format!("select {columns} from json_populate_record(null::{table}, '{row}')");
    let sql = format!("insert into {table} ({columns}) {values}");
    let said = forbidden(client.execute(&sql, &[]).await, table);
    assert!(said.contains("row-level security policy"), "{table}: {said}");
    said
}

/// The accident: a table is added, and its rows are not walled in.
#[tokio::test]
async fn every_table_with_a_tenant_is_walled_in_and_its_keys_begin_with_the_tenant() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    let schema = ground.schema();
    let of = format!("c.relkind = 'r' and c.relnamespace = '{schema}'::regnamespace");
    let has = "exists (select 1 from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant')";
    let select = "select c.relname::text from pg_class c where";
    let walled = format!("{select} {of} and {has} and c.relrowsecurity and c.relforcerowsecurity order by 1");
    assert_eq!(texts(&admin, &walled).await, TABLES);
    let others = format!("{select} {of} and not ({has} and c.relrowsecurity) order by 1");
    assert_eq!(texts(&admin, &others).await, ["processes", "stepwell_migrations"]);
    let first = "(select a.attname from pg_attribute a where a.attrelid = c.oid and a.attnum = i.indkey[0])";
    let index = format!(
        "select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indrelid where {of}"
    );
    let bad = format!("{index} and {has} and {first} is distinct from 'tenant'");
    assert_eq!(texts(&admin, &bad).await, Vec::<String>::new());
    let keys = format!("{index} and {has} and i.indisprimary");
    assert_eq!(texts(&admin, &keys).await.len(), TABLES.len(), "every table has a primary key");
}

/// The accident: a function or a view of the schema does for everybody what only its owner may.
#[tokio::test]
async fn nothing_in_the_schema_is_done_with_somebody_elses_rights() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    let here = format!("'{}'::regnamespace", ground.schema());
    let doors = format!(
        "select proname::text from pg_proc where pronamespace = {here} and prosecdef
         union all select relname::text from pg_class where relnamespace = {here} and relkind in ('v', 'm')
         union all select t.tgname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where c.relnamespace = {here}"
    );
    assert_eq!(texts(&admin, &doors).await, Vec::<String>::new());
}

#[tokio::test]
async fn whoever_says_no_tenant_sees_and_writes_nothing() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    for role in [ground.engine(), ground.owner()] {
        let raw = client(&ground, role).await;
        for said in ["", "set app.current_tenant = ''"] {
            raw.batch_execute(said).await.unwrap();
            for table in TABLES {
                assert!(seen(&admin, table).await >= 2, "{table} is empty: nothing is shown by this");
                assert_eq!(seen(&raw, table).await, 0, "{role}: {table}");
                insert(&raw, table, &row(&admin, table, 1).await).await;
            }
            let moved = raw.execute("update runs set fence = fence + 1", &[]).await.unwrap();
            let gone = raw.execute("delete from cells", &[]).await.unwrap();
            assert_eq!((moved, gone), (0, 0), "{role}");
        }
    }
}

#[tokio::test]
async fn whoever_says_a_tenant_sees_and_writes_that_tenants_rows_only() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    for role in [ground.engine(), ground.owner()] {
        let mut raw = client(&ground, role).await;
        for (me, other) in [(1, 2), (2, 1)] {
            for table in TABLES {
                let local = raw.transaction().await.unwrap();
                let set = format!("set local app.current_tenant = '{}'", tenant(me));
                local.batch_execute(&set).await.unwrap();
                let whose =
                    texts(local.client(), &format!("select distinct tenant::text from {table}")).await;
                assert_eq!(whose, [tenant(me)], "{role}: {table}");
                insert(local.client(), table, &row(&admin, table, other).await).await;
                local.rollback().await.unwrap();
                assert_eq!(seen(&raw, table).await, 0, "{role}: {table} after the transaction");
            }
        }
    }
    // What is one's own cannot be made somebody else's.
    let raw = client(&ground, ground.engine()).await;
    raw.batch_execute(&format!("set app.current_tenant = '{}'", tenant(1))).await.unwrap();
    let give = format!("update runs set tenant = '{}'", tenant(2));
    let said = forbidden(raw.execute(&give, &[]).await, "a run is given away");
    assert!(said.contains("row-level security policy"), "{said}");
}

/// The list is the test: there is one read across tenants, and no other.
#[tokio::test]
async fn the_one_policy_that_spans_tenants_is_for_reading_what_is_due() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    let sql = format!(
        "select concat_ws(' ', tablename, policyname, permissive, cmd, roles::text, with_check)
           from pg_policies where schemaname = '{}' order by 1",
        ground.schema()
    );
    let mut wanted: BTreeSet<String> =
        TABLES.iter().map(|table| format!("{table} own PERMISSIVE ALL {{public}}")).collect();
    wanted.extend(["runs", "tenants"].map(|table| format!("{table} due PERMISSIVE SELECT {{public}}")));
    assert_eq!(texts(&admin, &sql).await.into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(texts(&admin, &sql).await.len(), wanted.len());
}

#[tokio::test]
async fn whoever_looks_for_what_is_due_changes_nothing_and_sees_nothing_else() {
    let (ground, _store) = soon(filled()).await;
    let admin = client(&ground, ground.admin()).await;
    for role in [ground.engine(), ground.owner()] {
        let mut raw = client(&ground, role).await;
        for table in TABLES {
            let due = raw.transaction().await.unwrap();
            due.batch_execute("set local stepwell.sees = 'due'").await.unwrap();
            let shown = if ["runs", "tenants"].contains(&table) { 2 } else { 0 };
            assert_eq!(seen(due.client(), table).await, shown, "{role}: {table}");
            let locked = due.query("select 1 from runs for update", &[]).await.unwrap();
            assert!(locked.is_empty(), "a row is locked");
            let moved = due.execute("update runs set fence = fence + 1", &[]).await.unwrap();
            let gone = due.execute("delete from runs", &[]).await.unwrap();
            assert_eq!((moved, gone), (0, 0), "{role}");
            insert(due.client(), table, &row(&admin, table, 1).await).await;
        }
    }
    let any = client(&ground, ground.engine()).await;
    any.batch_execute("set stepwell.sees = 'everything'").await.unwrap();
    assert_eq!((seen(&any, "runs").await, seen(&any, "tenants").await), (0, 0));
}

/// The accident: the engine connects as the one who made the tables, and the wall is not there for it.
#[tokio::test]
async fn a_role_for_which_the_wall_does_not_stand_is_refused_and_told_what_to_do() {
    let (ground, _store) = soon(filled()).await;
    for (config, why) in [(ground.admin(), "is a superuser"), (ground.owner(), "owns the tables")] {
        let error = soon(PostgresStore::open_with(config, ground.options())).await.unwrap_err();
        assert!(matches!(&error, OpenError::SeesAll { why: said, .. } if said.contains(why)), "{error}");
        let said = error.to_string();
        assert!(said.contains("connect as a role that is neither superuser nor owner"), "{said}");
        assert!(said.contains("migrate as the owner"), "{said}");
    }
}

#[tokio::test]
async fn the_engines_role_cannot_change_what_is_only_appended_to() {
    let (ground, _store) = soon(filled()).await;
    let raw = client(&ground, ground.engine()).await;
    raw.batch_execute(&format!("set app.current_tenant = '{}'", tenant(1))).await.unwrap();
    let tries = [
        ("audit", "update audit set actor = 'nobody'"),
        ("audit", "delete from audit"),
        ("seals", "update seals set hash = before"),
        ("seals", "delete from seals"),
        ("unsealed", "update unsealed set commit_id = commit_id"),
        ("definitions", "update definitions set version = 9"),
        ("definitions", "delete from definitions"),
        ("checkpoints", "update checkpoints set entry = ''"),
        ("tenants", "delete from tenants"),
        ("tenants", "update tenants set tenant = tenant"),
        ("stepwell_migrations", "delete from stepwell_migrations"),
        ("stepwell_migrations", "insert into stepwell_migrations values (9, 'mine', '')"),
        ("audit", "truncate audit"),
        ("seals", "truncate seals"),
        ("runs", "truncate runs"),
    ];
    for (table, sql) in tries {
        let said = forbidden(raw.execute(sql, &[]).await, sql);
        assert_eq!(said, format!("permission denied for table {table}"), "{sql}");
    }
    for sql in ["alter table runs disable row level security", "drop policy own on runs"] {
        let said = forbidden(raw.execute(sql, &[]).await, sql);
        assert!(said.starts_with("must be owner of"), "{sql}: {said}");
    }
}
