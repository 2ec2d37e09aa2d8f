//! What the store really asks of a server, by the server's own account.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use stepwell_core::shadow::ShadowValue;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::ground::{ENGINE, Ground};
use stepwell_store::suite::{Fresh, ask, make, script};
use stepwell_store::{Beat, Direction, HandleQuery, RecordQuery, Store, Sweep, SweepWhat};
use tokio_postgres::NoTls;

use crate::memory_store;

/// A server that keeps every statement it was asked, and its cost.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let settings = [
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track_utility", "on"),
        ("fsync", "off"),
    ];
    CLUSTER.get_or_init(|| Cluster::own(&settings).unwrap())
}

async fn fresh() -> Fresh {
    let cluster = tokio::task::spawn_blocking(cluster).await.unwrap();
    Fresh::new(Ground::new(cluster).await.unwrap().open().await.unwrap())
}

/// What the scripts may not come to.
async fn rest(store: &dyn Store) {
    let make = make::Make::new();
    let head = ask::started(store, make.create(make::new_run(make::run(1)))).await;
    ask::moved(store, make.step(make::step(&head, "on"))).await;
    store.beat(Beat { process: make::process(1), now: make::at(0), lease_ms: 10_000 }).await.unwrap();
    store.due(vec![make::process(2)]).await.unwrap();
    store.tenants(None, 10).await.unwrap();
    let history = SweepWhat::History { run: make::run(1), keep: 1 };
    let old = SweepWhat::Tombstones { namespace: make::NAMESPACE.to_owned(), before: make::at(9) };
    let runs = SweepWhat::Runs { ended_before: make::at(9) };
    ask::apply(store, make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))])).await;
    for direction in [Direction::Forward, Direction::Reverse, Direction::Either] {
        ask::all_links(store, make::ME, ask::links_of("a/1", direction)).await;
    }
    let delete = |from, to| make.link([make::unlink(from, None, to)]);
    ask::apply(store, delete(Some("a/1"), None)).await;
    ask::apply(store, delete(None, Some("b/1"))).await;
    handled(store, &make).await;
    let handles = SweepWhat::Handles { expired_by: make::at(9) };
    for what in [SweepWhat::Cells, old, SweepWhat::Keys, handles, runs, SweepWhat::Seal, history] {
        store.sweep(make::ME, Sweep { now: make::at(9), limit: 10, what }).await.unwrap();
    }
}

/// Handles, in every way they are written and looked for.
async fn handled(store: &dyn Store, make: &make::Make) {
    for write in [make::rest(make::flow(1)), make::own(1, 1, make::process(1)), make::deliver(1, 2, 0)] {
        let commit = make.handle([write]);
        ask::apply(store, commit.clone()).await;
        store.outcome(make::ME, commit.reference()).await.unwrap();
    }
    let all = HandleQuery { limit: 10, ..HandleQuery::default() };
    let of_run = HandleQuery { run: Some(make::run(1)), ..all.clone() };
    let of_workflow = HandleQuery { workflow: Some("orders".into()), ..all.clone() };
    let held = [ShadowValue::from("ann"), 1.into(), true.into()];
    let by = held.map(|value| HandleQuery { shadows: vec![("email".into(), value)], ..of_workflow.clone() });
    for query in [all, of_run, of_workflow].into_iter().chain(by) {
        ask::all_handles(store, make::ME, query).await;
    }
    let (now, process) = (make::at(0), make::process(1));
    let due = RecordQuery::Undelivered { now, limit: 10 };
    for query in [RecordQuery::Handle(make::hash(1)), due, RecordQuery::Living { process, now }] {
        store.records(make::ME, query).await.unwrap();
    }
    ask::apply(store, make.handle([make::use_up(1, 3)])).await;
}

/// Everything that was asked as the engine's role, without comments.
async fn asked() -> BTreeSet<String> {
    let admin = cluster().admin_config_string("postgres");
    let (client, driver) = tokio_postgres::connect(&admin, NoTls).await.unwrap();
    tokio::spawn(driver);
    client.batch_execute("create extension if not exists pg_stat_statements").await.unwrap();
    let sql =
        "select query from pg_stat_statements s join pg_roles r on r.oid = s.userid where r.rolname = $1";
    let rows = client.query(sql, &[&ENGINE]).await.unwrap();
    let code = |query: &str| {
        let lines = query.lines().filter(|line| !line.trim_start().starts_with("--"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ").to_lowercase()
    };
    rows.iter().map(|row| code(row.get(0))).collect()
}

/// Asks who has work or who is there, for everybody.
fn spans(query: &str) -> bool {
    query.starts_with("select t.tenant, case when exists") || query.starts_with("select tenant from tenants")
}

/// Touches no tenant's rows: the heartbeat, the session, the catalogue, and the frame of a transaction.
fn is_nobodys(query: &str) -> bool {
    let tables = [
        "runs",
        "checkpoints",
        "documents",
        "inbox",
        "waits",
        "shadows",
        "handles",
        "cells",
        "links",
        "idempotency",
        "definitions",
    ];
    let words: BTreeSet<&str> = query.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    !tables.iter().chain(&["audit", "unsealed", "seals", "tenants"]).any(|table| words.contains(table))
}

/// The accident: a statement that was put together elsewhere than in its file, and named no tenant.
#[test]
fn every_statement_the_server_was_asked_names_a_tenant_or_is_nobodys() {
    script::differential(25, memory_store, fresh);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let asked = runtime.block_on(async {
        rest(&**fresh().await.store()).await;
        asked().await
    });
    // The look at a database names a table, to see whose it is.
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
