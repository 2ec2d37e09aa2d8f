//! The statements that the store really sends, as recorded by the server.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, OnceLock, PoisonError};

use stepwell_core::shadow::ShadowValue;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::{ENGINE, TestSchema};
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{Fresh, ask, make, script};
use stepwell_store::{
    Cleanup, CleanupKind, Direction, HandleQuery, Heartbeat, RecordQuery, ShadowFilter, Store,
};
use tokio_postgres::NoTls;

use crate::citus_rules::{TABLES, refused};
use crate::memory_store;

/// A server that records every statement that it executes.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track_utility", "on"),
        ("fsync", "off"),
    ];
    CLUSTER.get_or_init(|| Cluster::own(&settings).unwrap())
}

async fn fresh_with(spread: bool) -> Fresh {
    let cluster = tokio::task::spawn_blocking(cluster).await.unwrap();
    let test_schema = TestSchema::new(cluster).await.unwrap();
    let options = Options { spread, ..test_schema.options() };
    Fresh::new(PostgresStore::open_with(test_schema.engine(), options).await.unwrap())
}

async fn plain() -> Fresh {
    fresh_with(false).await
}

async fn spread() -> Fresh {
    fresh_with(true).await
}

/// Runs the operations that the random scripts may not reach.
async fn other_operations(store: &dyn Store) {
    let make = make::Make::new();
    let head = ask::started(store, make.create(make::new_run(make::run(1)))).await;
    ask::moved(store, make.step(make::step(&head, "on"))).await;
    store
        .heartbeat(Heartbeat { process: make::process(1), now: make::at(0), lease_ms: 10_000 })
        .await
        .unwrap();
    store.due(vec![make::process(2)]).await.unwrap();
    store.tenants(None, 10).await.unwrap();
    let history = CleanupKind::History { run: make::run(1), keep: 1 };
    let old = CleanupKind::Tombstones { namespace: make::NAMESPACE.to_owned(), before: make::at(9) };
    let runs = CleanupKind::Runs(stepwell_store::EndedBefore::all(make::at(9)));
    ask::apply(store, make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))])).await;
    for direction in [Direction::Forward, Direction::Reverse, Direction::Either] {
        ask::all_links(store, make::ME, ask::links_of("a/1", direction)).await;
    }
    let delete = |from, to| make.link([make::unlink(from, None, to)]);
    ask::apply(store, delete(Some("a/1"), None)).await;
    ask::apply(store, delete(None, Some("b/1"))).await;
    handled(store, &make).await;
    let handles = CleanupKind::Handles { expired_by: make::at(9) };
    for what in [
        CleanupKind::Cells,
        old,
        CleanupKind::Keys,
        handles,
        runs,
        CleanupKind::Seal,
        history,
        CleanupKind::Audit { through: 1 },
    ] {
        store.cleanup(make::ME, Cleanup { now: make::at(9), limit: 10, what }).await.unwrap();
    }
}

/// Writes and queries handles in every way.
async fn handled(store: &dyn Store, make: &make::Make) {
    for write in [make::put_handle(make::flow(1)), make::own(1, 1, make::process(1)), make::deliver(1, 2, 0)]
    {
        let commit = make.handle([write]);
        ask::apply(store, commit.clone()).await;
        store.outcome(make::ME, commit.reference()).await.unwrap();
    }
    let all = HandleQuery { limit: 10, ..HandleQuery::default() };
    let of_run = HandleQuery { run: Some(make::run(1)), ..all.clone() };
    let of_workflow = HandleQuery { workflow: Some("orders".into()), ..all.clone() };
    let held = [ShadowValue::from("ann"), 1.into(), true.into()];
    let ranges = [
        ShadowFilter::prefix("email", "a"),
        ShadowFilter::numbers("email", Bound::Included(1.0), Bound::Unbounded),
    ];
    let by = held.map(|value| ShadowFilter::equals("email", value)).into_iter().chain(ranges);
    let by = by.map(|filter| HandleQuery { shadows: vec![filter], ..of_workflow.clone() });
    for query in [all, of_run, of_workflow.clone()].into_iter().chain(by) {
        ask::all_handles(store, make::ME, query).await;
    }
    let (now, process) = (make::at(0), make::process(1));
    let due = RecordQuery::Undelivered { now, limit: 10 };
    for query in [RecordQuery::Handle(make::hash(1)), due, RecordQuery::AliveProcess { process, now }] {
        store.records(make::ME, query).await.unwrap();
    }
    ask::apply(store, make.handle([make::delete_handle(1, 3)])).await;
}

async fn recorder() -> Client {
    let admin = cluster().admin_config_string("postgres");
    let (client, driver) = tokio_postgres::connect(&admin, NoTls).await.unwrap();
    tokio::spawn(driver);
    client.batch_execute("create extension if not exists pg_stat_statements").await.unwrap();
    client
}

/// Returns every statement that the engine's role has executed since the last call, without comments.
async fn asked() -> BTreeSet<String> {
    let client = recorder().await;
    let sql =
        "select query from pg_stat_statements s join pg_roles r on r.oid = s.userid where r.rolname = $1";
    let rows = client.query(sql, &[&ENGINE]).await.unwrap();
    client.batch_execute("select pg_stat_statements_reset()").await.unwrap();
    let code = |query: &str| {
        let lines = query.lines().filter(|line| !line.trim_start().starts_with("--"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ").to_lowercase()
    };
    rows.iter().map(|row| code(row.get(0))).collect()
}

/// One test at a time: the server records the statements of all.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs random scripts, then all other operations, on stores of one kind. Returns the statements that they have sent.
fn all_statements(scripts: u32, fresh: impl AsyncFn() -> Fresh) -> BTreeSet<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    cluster();
    runtime.block_on(asked());
    script::differential(scripts, memory_store, &fresh);
    runtime.block_on(async {
        other_operations(&**fresh().await.store()).await;
        asked().await
    })
}

/// Returns true for the queries across all tenants: the due work, and the list of tenants.
fn spans(query: &str) -> bool {
    query.starts_with("select t.tenant, case when exists")
        || query.starts_with("select tenant, min(")
        || query.starts_with("select tenant from tenants where $1::uuid is null")
}

/// Returns true for statements without tenant data: heartbeat, session, system catalogue, begin and end of
/// transactions.
fn is_nobodys(query: &str) -> bool {
    let words: BTreeSet<&str> = query.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    !TABLES.iter().any(|table| words.contains(table))
}

/// Catches a statement that is built outside of the statement files and names no tenant.
#[test]
fn every_executed_statement_on_tenant_data_names_a_tenant() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = all_statements(25, plain);
    // The statement that examines a database names a table, to find its owner.
    let looks = |query: &str| query.contains("from pg_roles u");
    let with_tenant = |query: &str| {
        query.contains("commit_runs($1, ")
            || query.contains("tenant = $1")
            || query.contains("select $1, ")
            || query.contains("(tenant) values ($1)")
            || (query.contains(" (tenant, ") && query.contains(") values ($1, "))
    };
    let (named, others): (Vec<_>, Vec<_>) = asked.iter().partition(|query| with_tenant(query));
    let (spanning, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|query| spans(query));
    let (nobodys, tenantless): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|query| is_nobodys(query) || looks(query));
    println!(
        "{{\"statements\":{},\"name_the_tenant\":{},\"span_tenants\":{},\"nobodys\":{},\"tenantless\":{}}}",
        asked.len(),
        named.len(),
        spanning.len(),
        nobodys.len(),
        tenantless.len()
    );
    assert_eq!(tenantless, Vec::<&String>::new());
    assert_eq!(spanning.len(), 2, "{spanning:#?}");
    assert!(named.len() > 40, "{named:#?}");
}

/// The statements that are sent where tenants are on several nodes obey the rules of such a cluster. None of them uses
/// the function of the schema, which exists on one node.
#[test]
fn executed_statements_for_several_nodes_obey_the_rules() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = all_statements(4, spread);
    let sets_path = |query: &str| query.contains("set_config('search_path'");
    for query in asked.iter().filter(|query| !sets_path(query)) {
        assert_eq!(refused(query, spans(query)), None, "{query}");
        assert!(!query.contains("commit_runs"), "{query}");
    }
    for sent in ["select tenant, min(", "set local citus.propagate_set_commands", "with moved as ("] {
        assert!(asked.iter().any(|query| query.starts_with(sent)), "{sent}: {asked:#?}");
    }
}
