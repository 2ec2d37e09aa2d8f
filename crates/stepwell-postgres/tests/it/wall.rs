//! Row-level security as the second line of defence: PostgreSQL hides the rows of other tenants even if a statement
//! forgets the tenant.

use std::collections::BTreeSet;

use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{OpenError, PostgresStore};
use stepwell_store::suite::make;
use stepwell_store::{Cleanup, CleanupKind, Commit, NewRun, Store};

use crate::raw::{client, forbidden, number, soon, texts};

/// Every table whose first column is the tenant.
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

/// Creates a schema in which two tenants have a row in every table.
async fn filled() -> (TestSchema, PostgresStore) {
    let test_schema = crate::test_schema().await;
    let store = test_schema.open().await.unwrap();
    let make = make::Make::new();
    for number in 1..=2 {
        let (open, shadows) = (vec![make::wait(1)], vec![make::set_shadow("email", "ann")]);
        let new = NewRun { open, shadows, ..make::due_run(make::run(number), 0) };
        let start = Commit {
            documents: vec![make::put(new.run, "note", "hello")],
            definitions: vec![make::stored("orders")],
            audit: vec![make::audit("orders")],
            keys: vec![make::key("once", 1)],
            handles: vec![make::put_handle(make::answer_link(1, new.run))],
            cells: vec![make::set("stock", 7)],
            links: vec![make::upsert(1, make::edge("order/1", "of", "person/1"))],
            send: vec![make::to(new.run, "PAID")],
            create: vec![new],
            ..make.commit()
        };
        let scope = make::tenant(number);
        store.commit(scope, start).await.unwrap();
        let seal = Cleanup { now: make::at(0), limit: 10, what: CleanupKind::Seal };
        assert_eq!(store.cleanup(scope, seal).await.unwrap().count, 3);
        let later = Commit { audit: vec![make::audit("later")], ..make.commit() };
        store.commit(scope, later).await.unwrap();
    }
    (test_schema, store)
}

fn tenant(number: u128) -> String {
    make::tenant(number).tenant().uuid().to_string()
}

/// Returns the number of rows of a table that a connection sees.
async fn seen(client: &Client, table: &str) -> i64 {
    number(client, &format!("select count(*) from {table}")).await
}

/// Returns a tenant's row of a table as JSON, read by a role that sees all rows.
async fn row(admin: &Client, table: &str, whose: u128) -> String {
    let sql = format!("select to_json(t)::text from {table} t where tenant = '{}'", tenant(whose));
    texts(admin, &sql).await.remove(0)
}

/// Tries to insert a row and checks that row-level security refuses it. Returns the server's message.
async fn insert(client: &Client, table: &str, row: &str) -> String {
    // All columns except those that the server generates.
    let columns =
        "select attname::text from pg_attribute where attnum > 0 and not attisdropped and attgenerated = ''";
    let columns = texts(client, &format!("{columns} and attrelid = '{table}'::regclass")).await.join(", ");
    let values = format!("select {columns} from json_populate_record(null::{table}, '{row}')");
    let sql = format!("insert into {table} ({columns}) {values}");
    let said = forbidden(client.execute(&sql, &[]).await, table);
    assert!(said.contains("row-level security policy"), "{table}: {said}");
    said
}

/// A new table must not be added without row-level security.
#[tokio::test]
async fn every_tenant_table_has_row_security_and_tenant_keys() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    let schema = test_schema.schema();
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

/// No function, view or trigger of the schema may run with the rights of its owner, except the function that cuts the
/// audit trail. Row-level security is forced on the owner too, so it reaches the rows of the session's tenant only.
#[tokio::test]
async fn schema_has_no_security_definer_views_or_triggers() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    let here = format!("'{}'::regnamespace", test_schema.schema());
    let doors = format!(
        "select proname::text from pg_proc where pronamespace = {here} and prosecdef
         union all select relname::text from pg_class where relnamespace = {here} and relkind in ('v', 'm')
         union all select t.tgname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where c.relnamespace = {here}"
    );
    assert_eq!(texts(&admin, &doors).await, ["cut_audit"]);
}

#[tokio::test]
async fn without_a_tenant_no_row_is_visible_or_writable() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    for role in [test_schema.engine(), test_schema.owner()] {
        let raw = client(&test_schema, role).await;
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
async fn with_a_tenant_only_its_rows_are_visible_and_writable() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    for role in [test_schema.engine(), test_schema.owner()] {
        let mut raw = client(&test_schema, role).await;
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
    // A row cannot be moved to another tenant.
    let raw = client(&test_schema, test_schema.engine()).await;
    raw.batch_execute(&format!("set app.current_tenant = '{}'", tenant(1))).await.unwrap();
    let give = format!("update runs set tenant = '{}'", tenant(2));
    let said = forbidden(raw.execute(&give, &[]).await, "a run is moved to another tenant");
    assert!(said.contains("row-level security policy"), "{said}");
}

/// Compares the complete list of policies: only one policy allows reads across tenants.
#[tokio::test]
async fn only_the_due_policy_spans_tenants() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    let sql = format!(
        "select concat_ws(' ', tablename, policyname, permissive, cmd, roles::text, with_check)
           from pg_policies where schemaname = '{}' order by 1",
        test_schema.schema()
    );
    let mut wanted: BTreeSet<String> =
        TABLES.iter().map(|table| format!("{table} own PERMISSIVE ALL {{public}}")).collect();
    wanted.extend(["runs", "tenants"].map(|table| format!("{table} due PERMISSIVE SELECT {{public}}")));
    assert_eq!(texts(&admin, &sql).await.into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(texts(&admin, &sql).await.len(), wanted.len());
}

#[tokio::test]
async fn due_policy_allows_only_reading_runs_and_tenants() {
    let (test_schema, _store) = soon(filled()).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    for role in [test_schema.engine(), test_schema.owner()] {
        let mut raw = client(&test_schema, role).await;
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
    let any = client(&test_schema, test_schema.engine()).await;
    any.batch_execute("set stepwell.sees = 'everything'").await.unwrap();
    assert_eq!((seen(&any, "runs").await, seen(&any, "tenants").await), (0, 0));
}

/// If the engine connected as the owner of the tables or as a superuser, row-level security would not apply.
#[tokio::test]
async fn role_that_bypasses_row_security_is_refused() {
    let (test_schema, _store) = soon(filled()).await;
    for (config, why) in [(test_schema.admin(), "is a superuser"), (test_schema.owner(), "owns the tables")] {
        let error = soon(PostgresStore::open_with(config, test_schema.options())).await.unwrap_err();
        assert!(matches!(&error, OpenError::SeesAll { why: said, .. } if said.contains(why)), "{error}");
        let said = error.to_string();
        assert!(said.contains("connect as a role that is neither superuser nor owner"), "{said}");
        assert!(said.contains("migrate as the owner"), "{said}");
    }
}

#[tokio::test]
async fn engine_role_cannot_change_append_only_tables() {
    let (test_schema, _store) = soon(filled()).await;
    let raw = client(&test_schema, test_schema.engine()).await;
    raw.batch_execute(&format!("set app.current_tenant = '{}'", tenant(1))).await.unwrap();
    let tries = [
        ("audit", "update audit set actor = 'nobody'"),
        ("audit", "delete from audit"),
        ("seals", "update seals set hash = previous_hash"),
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
