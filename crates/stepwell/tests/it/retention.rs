//! Retention: ended runs are removed with all their rows after a time; the audit trail and the data never expire.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{ChildRule, Place, Retention, Transition, Wait};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::data::Set;
use stepwell::engine::{Builder, DEFAULT_RETENTION_MS};
use stepwell::store::{
    CellFilter, CellKey, CellOp, CellQuery, CellWrite, Cleanup, CleanupKind, DocumentQuery, HistoryQuery,
    Precondition, RecordQuery, RunQuery, Space, Status, Store, TenantScope, Ttl, ValueType,
};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Actor, Command, Cx, DeleteRun, Engine, EngineError, MaintenanceTotals, Operator, Options,
    Permission, Run, Signal, Start,
};

use crate::kit::{self, Watched, audit, children_of, ground, other_tenant, runs, status, version, waits_of};

const DAY: Duration = Duration::from_secs(86_400);

/// A loan ends when `BACK` arrives, or after 20 days.
fn loan() -> Definition {
    Spec::new("loan")
        .wait("out", "BACK")
        .end("back")
        .end("over")
        .signal("BACK")
        .signal("ASK")
        .auto("end", "out", "back")
        .transition(Transition::new("over", "out", "over").after_ms(20 * 86_400_000))
        .transition(Transition::new("ask", "out", "out").on_signal("ASK").when("false"))
        .build()
        .unwrap()
}

/// A workflow whose action fails.
fn bad() -> Definition {
    let work = Transition::new("work", "todo", "done").action("work");
    Spec::new("bad").step("todo").end("done").transition(work).build().unwrap()
}

fn library(builder: Builder) -> Builder {
    let fails = |_: Cx| async { Err::<(), _>(ActionError::new("broken", "it is broken")) };
    builder.workflow(loan()).workflow(bad()).action("work", fails)
}

async fn is_there(engine: &Engine, run: RunId) -> bool {
    engine.store().load(engine.scope(), run).await.unwrap().is_some()
}

async fn back(engine: &TestEngine, run: &Run) {
    run.signal(Signal::new("BACK")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(run).await, Status::Completed);
}

#[test]
fn default_retention_is_thirty_days() {
    assert_eq!(Options::default().retention_ms, Some(30 * 86_400_000));
    assert_eq!(DEFAULT_RETENTION_MS, 30 * 86_400_000);
}

#[tokio::test]
async fn ended_run_is_kept_for_thirty_days() {
    let engine = kit::start(library).await.unwrap();
    let at_once = engine.start(Start::new("loan")).await.unwrap();
    back(&engine, &at_once).await;
    let cancelled = engine.start(Start::new("loan")).await.unwrap();
    engine.cancel(cancelled.id()).await.unwrap();
    // This run ends by itself on day 20: retention counts from the end, not from the start.
    let later = engine.start(Start::new("loan")).await.unwrap();
    engine.advance(29 * DAY).await;
    assert_eq!(runs(&engine, RunQuery::default()).await.len(), 3);
    engine.advance(2 * DAY).await;
    assert_eq!(
        (is_there(&engine, at_once.id()).await, is_there(&engine, cancelled.id()).await),
        (false, false)
    );
    assert_eq!(status(&later).await, Status::Completed);
    engine.advance(18 * DAY).await;
    assert!(is_there(&engine, later.id()).await, "on day 49");
    engine.advance(2 * DAY).await;
    assert!(!is_there(&engine, later.id()).await, "on day 51");
    assert_eq!(later.view().await.unwrap_err(), EngineError::NoRun(later.id()));
}

#[tokio::test]
async fn retention_period_is_configurable() {
    let build =
        |builder: Builder| library(builder).with(|options| options.retention_ms = Some(2 * 86_400_000));
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("loan")).await.unwrap();
    back(&engine, &run).await;
    engine.advance(DAY).await;
    assert!(is_there(&engine, run.id()).await);
    engine.advance(2 * DAY).await;
    assert!(!is_there(&engine, run.id()).await);
}

#[tokio::test]
async fn nothing_is_removed_without_a_retention_period() {
    let build = |builder: Builder| library(builder).with(|options| options.retention_ms = None);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("loan")).await.unwrap();
    back(&engine, &run).await;
    engine.advance(200 * DAY).await;
    assert!(is_there(&engine, run.id()).await);
}

#[tokio::test]
async fn run_that_has_not_ended_is_never_removed() {
    let waits =
        Spec::new("waits").wait("a", "GO").end("b").signal("GO").auto("ab", "a", "b").build().unwrap();
    let engine = kit::start(|builder| library(builder).workflow(waits)).await.unwrap();
    let waiting = engine.start(Start::new("waits")).await.unwrap();
    let failed = engine.start(Start::new("bad")).await.unwrap();
    let suspended = engine.start(Start::new("waits")).await.unwrap();
    engine.operate(suspended.id(), Command::Suspend, &Operator::default()).await.unwrap();
    let pending = engine.start(Start::new("waits").after(300 * DAY)).await.unwrap();
    engine.advance(200 * DAY).await;
    let expected = [
        (waiting, Status::Waiting),
        (failed, Status::Failed),
        (suspended, Status::Suspended),
        (pending, Status::Pending),
    ];
    for (run, expected) in expected {
        assert_eq!(status(&run).await, expected);
    }
}

fn cell(space: Space, owner: &str) -> CellWrite {
    CellWrite {
        key: CellKey { space, owner: owner.to_owned(), key: "x".to_owned() },
        op: CellOp::Set { value: json!(1), value_type: ValueType::Json, ttl: Ttl::Forever },
        expect: Precondition::Anything,
        initial: None,
        by: None,
    }
}

async fn cells(engine: &Engine, space: Space, owner: &str) -> usize {
    let query = CellQuery {
        space,
        owner: owner.to_owned(),
        filter: CellFilter::Prefix(String::new()),
        now: engine.now(),
        include_deleted: true,
        limit: 10,
        cursor: None,
    };
    engine.store().cells(engine.scope(), query).await.unwrap().items.len()
}

async fn rows_of(engine: &Engine, run: RunId) -> [usize; 6] {
    let (store, scope) = (engine.store(), engine.scope());
    let query = HistoryQuery { run, from: 0, with_state: false, limit: 100 };
    let history = store.history(scope, query).await.unwrap().items.len();
    let query = DocumentQuery { run, at: Some(1), key: None, kind: None, tag: None, limit: 10, cursor: None };
    let documents = store.documents(scope, query).await.unwrap().items.len();
    let key =
        |operation: String, key: &str| RecordQuery::Key { operation, key: key.to_owned(), now: engine.now() };
    let start = store.records(scope, key("start".to_owned(), "k")).await.unwrap().items.len();
    let signal = store.records(scope, key(format!("signal:{run}"), "s")).await.unwrap().items.len();
    let waits = waits_of(engine, run).await.len();
    [history, documents, start, signal, waits, cells(engine, Space::Execution, &run.to_string()).await]
}

#[tokio::test]
async fn removed_run_leaves_only_audit_trail_and_shared_data() {
    let definition = Spec::new("case")
        .step("open")
        .end("closed")
        .signal("CLOSE")
        .transition(Transition::new("close", "open", "closed").on_signal("CLOSE").action("close"))
        .build()
        .unwrap();
    let close = |cx: Cx| async move {
        cx.put_document("a", "note", &1, &[])?;
        cx.write(cell(Space::Execution, &cx.root().to_string()))?;
        cx.write(cell(Space::Workflow, cx.workflow()))?;
        cx.write(cell(Space::Kv, "stock"))
    };
    let engine = kit::start(|b| b.workflow(definition).action("close", close)).await.unwrap();
    let run = engine.start(Start::new("case").key("k")).await.unwrap();
    let patch = Command::Patch { fields: json!({"note": 1}) };
    engine.operate(run.id(), patch, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    run.signal(Signal::new("CLOSE").id("s")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let query =
        DocumentQuery { run: run.id(), at: None, key: None, kind: None, tag: None, limit: 10, cursor: None };
    assert_eq!(engine.store().documents(engine.scope(), query.clone()).await.unwrap().items.len(), 1);
    assert_eq!(rows_of(&engine, run.id()).await, [3, 0, 1, 1, 0, 1]);
    engine.advance(32 * DAY).await;
    assert_eq!(rows_of(&engine, run.id()).await, [0; 6]);
    assert_eq!(engine.store().documents(engine.scope(), query).await.unwrap().items.len(), 0);
    assert_eq!(
        (cells(&engine, Space::Workflow, "case").await, cells(&engine, Space::Kv, "stock").await),
        (1, 1)
    );
    let trail = audit(&engine).await;
    let patch = trail.iter().find(|(_, row)| row.operation == "run.patch" && row.run == Some(run.id()));
    let detail: Value = serde_json::from_slice(&patch.unwrap().1.detail).unwrap();
    assert!(detail["detail"]["fields"].as_array().unwrap().iter().all(Value::is_string), "{detail}");
    // The key can be used again.
    let again = engine.start_once(Start::new("case").key("k")).await.unwrap();
    assert!(again.is_new && again.run.id() != run.id());
}

#[tokio::test]
async fn many_ended_runs_are_removed_in_small_batches() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let quick = Spec::new("quick").step("a").end("b").auto("ab", "a", "b").build().unwrap();
    let build = |builder: Builder| builder.workflow(quick);
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    for _ in 0..350 {
        engine.start(Start::new("quick")).await.unwrap();
    }
    engine.settle().await;
    engine.advance(29 * DAY).await;
    watched.cleanups();
    engine.advance(2 * DAY).await;
    let cleanups = watched.cleanups();
    let of_runs = cleanups.iter().filter(|(cleanup, _)| matches!(cleanup.what, CleanupKind::Runs { .. }));
    let counts: Vec<_> = of_runs.map(|(_, cleaned)| cleaned.count).filter(|count| *count > 0).collect();
    assert_eq!(counts.iter().sum::<u64>(), 350);
    assert!(counts.len() > 1 && counts.iter().all(|count| *count <= 100), "{counts:?}");
    assert_eq!(runs(&engine, RunQuery::default()).await, []);
}

/// G6: an interrupted deletion leaves the run, cancelled, and can be repeated.
#[tokio::test]
async fn interrupted_deletion_can_be_repeated() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    let first = TestEngine::start_on(watched.clone(), clock.clone(), library).await.unwrap();
    let run = first.start(Start::new("loan")).await.unwrap().id();
    first.settle().await;
    watched.fail_cleanups_of(first.scope());
    let wanted = DeleteRun::new(run).force(true).by(Operator::named("ann"));
    first.delete(&wanted).await.unwrap_err();
    assert_eq!(first.store().load(first.scope(), run).await.unwrap().unwrap().head.status, Status::Cancelled);
    drop(first);
    let second = TestEngine::start_on(store, clock, library).await.unwrap();
    let deleted = second.delete(&DeleteRun::new(run).by(Operator::named("ann"))).await.unwrap();
    assert_eq!((deleted.runs.len(), deleted.is_dry), (1, false));
    assert_eq!(rows_of(&second, run).await, [0; 6]);
    assert_eq!(second.delete(&wanted).await.unwrap_err(), EngineError::NoRun(run));
    let named = audit(&second).await.iter().filter(|(_, row)| row.operation == "run.delete").count();
    assert_eq!(named, 2, "each attempt is audited");
}

/// G6: the options for a workflow override the workflow's own retention, which overrides the usual one.
#[tokio::test]
async fn retention_is_set_per_workflow() {
    let quick = |name: &str| Spec::new(name).step("a").end("b").auto("ab", "a", "b");
    let day = Retention::Ms(86_400_000);
    let workflows = [
        quick("usual"),
        quick("brief").retention(day),
        quick("kept").retention(Retention::Never),
        quick("configured").retention(day),
        quick("longer").retention(day),
    ];
    let build = |builder: Builder| {
        let add = |builder: Builder, spec: Spec| builder.workflow(spec.build().unwrap());
        workflows.into_iter().fold(builder, add).with(|options| {
            options.retention_ms = Some(10 * 86_400_000);
            options.workflow_retention_ms.insert("configured".into(), None);
            options.workflow_retention_ms.insert("longer".into(), Some(20 * 86_400_000));
        })
    };
    let engine = kit::start(build).await.unwrap();
    for name in ["usual", "brief", "kept", "configured", "longer"] {
        engine.start(Start::new(name)).await.unwrap();
    }
    engine.settle().await;
    let left = async || {
        let left = runs(&engine, RunQuery::default()).await;
        let mut left: Vec<_> = left.iter().map(|run| run.workflow.to_string()).collect();
        left.sort();
        left
    };
    engine.advance(DAY / 2).await;
    assert_eq!(left().await.len(), 5);
    engine.advance(2 * DAY).await;
    assert_eq!(left().await, ["configured", "kept", "longer", "usual"]);
    engine.advance(10 * DAY).await;
    assert_eq!(left().await, ["configured", "kept", "longer"]);
    engine.advance(100 * DAY).await;
    assert_eq!(left().await, ["configured", "kept"]);
}

/// G6: without the usual retention, a workflow's own one still applies.
#[tokio::test]
async fn own_retention_applies_without_a_usual_one() {
    let brief = Spec::new("brief").retention(Retention::Ms(1_000)).step("a").end("b").auto("ab", "a", "b");
    let build = |builder: Builder| {
        library(builder).workflow(brief.build().unwrap()).with(|options| options.retention_ms = None)
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("loan")).await.unwrap();
    back(&engine, &run).await;
    engine.start(Start::new("brief")).await.unwrap();
    engine.advance(DAY).await;
    let left = runs(&engine, RunQuery::default()).await;
    assert!(left.iter().all(|row| row.run == run.id()) && left.len() == 1, "{left:?}");
}

/// B18: the audit trail is cut at a seal after its own retention. It stays sound and says where it begins.
#[tokio::test]
async fn audit_trail_is_cut_after_its_retention() {
    let build = |builder: Builder| builder.with(|options| options.audit_retention_ms = Some(10 * 86_400_000));
    let engine = kit::start(build).await.unwrap();
    for day in 0..30 {
        engine.kv("stock").set(&format!("day{day}"), &day).await.unwrap();
        engine.advance(DAY).await;
        let verified = engine.verify_audit().await.unwrap();
        assert!(verified.is_sound(), "day {day}: {verified:?}");
        assert_eq!(verified.begins.is_some(), day >= 12, "day {day}: {verified:?}");
    }
    let trail = audit(&engine).await;
    let has = |subject: &str| trail.iter().any(|(_, row)| row.subject.contains(subject));
    assert!(!has("day10") && !has("day15") && has("day25"), "{trail:?}");
    let cuts = trail.iter().filter(|(_, row)| row.operation == "audit.cut").count();
    assert!((1..=12).contains(&cuts), "{cuts} cuts");
    let begins = engine.verify_audit().await.unwrap().begins.unwrap();
    assert!(begins.number > 10 && begins.at < engine.now(), "{begins:?}");
    assert!(engine.maintenance().audit > 15);
}

#[tokio::test]
async fn engine_removes_runs_of_tenants_it_never_served() {
    let (store, clock) = ground().await;
    let a = TestEngine::start_on(store.clone(), clock.clone(), library).await.unwrap();
    let theirs = a.for_tenant(other_tenant());
    let run = theirs.start(Start::new("loan")).await.unwrap();
    back(&a, &run).await;
    let run = run.id();
    a.settle().await;
    drop((a, theirs));
    let b = TestEngine::start_on(store.clone(), clock, library).await.unwrap();
    b.advance(40 * DAY).await;
    assert_eq!(store.load(other_tenant(), run).await.unwrap(), None);
}

#[tokio::test]
async fn child_outlives_its_removed_parent() {
    let parent = Spec::new("parent")
        .step("todo")
        .place("below", Place::Wait(Wait { children: Some(ChildRule::Any), ..Wait::default() }))
        .end("done")
        .transition(Transition::new("begin", "todo", "below").action("begin"))
        .auto("on", "below", "done")
        .build()
        .unwrap();
    let waits =
        Spec::new("waits").wait("a", "GO").end("b").signal("GO").auto("ab", "a", "b").build().unwrap();
    let begin = |cx: Cx| async move { (0..2).try_for_each(|_| cx.start_child(Start::new("waits"))) };
    let build = |builder: Builder| builder.workflow(parent).workflow(waits).action("begin", begin);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("parent")).await.unwrap();
    engine.settle().await;
    let children = children_of(&engine, run.id()).await;
    engine.signal(children[0].run, Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    engine.advance(40 * DAY).await;
    assert!(!is_there(&engine, run.id()).await);
    let left = engine.run(children[1].run);
    assert_eq!(status(&left).await, Status::Waiting);
    left.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&left).await, Status::Completed);
}

async fn checkpoints(engine: &Engine, run: RunId) -> Vec<u64> {
    let query = HistoryQuery { run, from: 0, with_state: true, limit: 1_000 };
    let page = engine.store().history(engine.scope(), query).await.unwrap();
    page.items.iter().map(|row| row.version).collect()
}

#[tokio::test]
async fn run_continues_after_its_history_is_trimmed() {
    let definition = Spec::new("count")
        .step("open")
        .end_with("done", json!({"count": {"$expr": "context.count"}}))
        .signal("UP")
        .signal("STOP")
        .transition(Transition::new("up", "open", "open").on_signal("UP").action("up"))
        .on_signal("stop", "open", "STOP", "done")
        .build()
        .unwrap();
    let up = |cx: Cx| async move {
        cx.put_document("count", "number", &cx.snapshot().version(), &[])?;
        cx.update_state(|state: &mut Value| {
            state["count"] = json!(state["count"].as_u64().unwrap_or_default() + 1);
        })
    };
    let (store, clock) = ground().await;
    let build = |builder: Builder| builder.workflow(definition).action("up", up);
    let engine = TestEngine::start_on(store as Arc<dyn Store>, clock, build).await.unwrap();
    let run = engine.start(Start::new("count").input(&json!({"count": 0}))).await.unwrap();
    let raise = async |times: u32| {
        for _ in 0..times {
            run.signal(Signal::new("UP")).await.unwrap();
            engine.settle().await;
        }
    };
    raise(200).await;
    assert_eq!(checkpoints(&engine, run.id()).await.len(), 201);
    let cleanup =
        Cleanup { now: engine.now(), limit: 1_000, what: CleanupKind::History { run: run.id(), keep: 10 } };
    let cleaned = engine.store().cleanup(engine.scope(), cleanup).await.unwrap();
    assert!(cleaned.count > 100, "{cleaned:?}");
    let left = checkpoints(&engine, run.id()).await;
    assert_eq!((left.last(), left.contains(&191)), (Some(&200), true));
    raise(3).await;
    assert_eq!(version(&run).await, 203);
    run.signal(Signal::new("STOP")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!({"count": 203}));
    assert!(engine.fork(run.id(), 0, &Operator::default()).await.is_err(), "that checkpoint is gone");
    assert!(engine.fork(run.id(), 199, &Operator::default()).await.is_ok());
}

#[tokio::test]
async fn expired_keys_are_cleaned_up() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, library).await.unwrap();
    let run = engine.start(Start::new("bad")).await.unwrap();
    engine.settle().await;
    // A commit without another trace is recorded for a day.
    engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    watched.cleanups();
    engine.advance(3 * DAY).await;
    let keys = watched.cleanups().into_iter().filter(|(cleanup, _)| cleanup.what == CleanupKind::Keys);
    assert!(keys.map(|(_, cleaned)| cleaned.count).sum::<u64>() >= 1);
    assert_eq!(engine.scope(), TenantScope::single());
}

#[tokio::test]
async fn cleanup_is_counted() {
    let engine = kit::start(library).await.unwrap();
    assert_eq!(engine.maintenance(), MaintenanceTotals::default());
    let run = engine.start(Start::new("loan")).await.unwrap();
    back(&engine, &run).await;
    let hour = Duration::from_secs(3_600);
    engine.kv("shelf").set_with("a", Set::new(1).ttl(hour)).await.unwrap();
    engine.advance(DAY).await;
    let first = engine.maintenance();
    assert_eq!((first.expired_cells, first.sealed, first.runs, first.failures), (1, 1, 0, 0));
    engine.advance(31 * DAY).await;
    let all = engine.maintenance();
    assert_eq!((all.expired_cells, all.sealed, all.runs, all.failures), (1, 1, 1, 0));
    assert!(all.rounds > first.rounds && first.rounds > 0, "{all:?}");
}

#[tokio::test]
async fn maintain_cleans_one_batch_of_the_callers_tenant() {
    let (store, clock) = ground().await;
    let idle = |builder: Builder| library(builder).with(|options| options.maintenance_interval_ms = u64::MAX);
    let engine = TestEngine::start_on(store, clock, idle).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    for engine in [engine.for_tenant(TenantScope::single()), theirs.clone()] {
        for number in 0..150 {
            let brief = Set::new(1).ttl(Duration::from_secs(1));
            engine.kv("shelf").set_with(&number.to_string(), brief).await.unwrap();
        }
    }
    engine.advance(DAY).await;
    let first = engine.maintain().await.unwrap();
    assert_eq!((first.what.expired_cells, first.has_more), (100, true));
    let second = engine.maintain().await.unwrap();
    assert_eq!((second.what.expired_cells, second.has_more), (50, false), "{second:?}");
    assert_eq!(engine.maintenance().expired_cells, 150);
    assert_eq!(theirs.maintain().await.unwrap().what.expired_cells, 100);
    let who = Actor::new("eve", [Permission::Manage]);
    assert!(matches!(engine.acting(who).maintain().await, Err(EngineError::Denied { .. })));
}

/// Regression: when cleanup failed for one tenant, the tenants after it were never cleaned up.
#[tokio::test]
async fn failed_cleanup_of_one_tenant_does_not_stop_others() {
    let (store, clock) = ground().await;
    let store = Watched::new(store);
    let engine = TestEngine::start_on(store.clone(), clock, library).await.unwrap();
    let hour = Duration::from_secs(3_600);
    for engine in [engine.for_tenant(TenantScope::single()), engine.for_tenant(other_tenant())] {
        engine.kv("shelf").set_with("a", Set::new(1).ttl(hour)).await.unwrap();
    }
    assert!(TenantScope::single().tenant() < other_tenant().tenant(), "the failing tenant is first");
    store.fail_cleanups_of(TenantScope::single());
    engine.advance(DAY).await;
    let tidied = engine.maintenance();
    assert_eq!((tidied.expired_cells, tidied.sealed), (1, 1));
    assert!(tidied.failures > 0 && tidied.failures == tidied.rounds, "{tidied:?}");
}
