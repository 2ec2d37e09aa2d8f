//! Shadow columns of runs: correct after every commit by any process, searchable, and healed.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join;
use serde_json::{Value, json};
use stepwell::core::migrate::Mapping;
use stepwell::core::shadow::{MAX_TEXT_BYTES, Shadow, ShadowValue};
use stepwell::core::spec::{ActionSpec, ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::data::{Changes, Increment};
use stepwell::engine::Builder;
use stepwell::store::{
    Commit, CommitId, Fault, Faulty, NewRun, NextState, Record, RecordQuery, ResultPart, RunFilter, RunQuery,
    ShadowFilter, ShadowWrite, Status, Store,
};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Actor, Clock, Command, Cx, Engine, EngineError, Heal, ManualClock, Operator, Permission,
    Run, Signal, Start, new_run_id,
};
use tokio::sync::oneshot;
use tracing::field::{Field, Visit};

use crate::kit::{
    self, Fate, LEASE_MS, Watched, children_of, context, error_code, ground, other_tenant, soon,
    start_killable, status,
};
use crate::world::{Gate, pair, saved};

const DAY: Duration = Duration::from_secs(86_400);
const SECOND: Duration = Duration::from_secs(1);

/// An order whose data is replaced by the payload of `SET`, until it is closed.
fn order() -> Spec {
    Spec::new("order")
        .step("open")
        .end("closed")
        .signal("SET")
        .signal("CLOSE")
        .transition(Transition::new("set", "open", "open").on_signal("SET").action("set"))
        .on_signal("close", "open", "CLOSE", "closed")
}

/// An order with two optional columns and two with defaults.
fn shaded() -> Definition {
    order()
        .shadow("city", Shadow::string("customer.city").or("unknown"))
        .shadow("email", Shadow::string("customer.email"))
        .shadow("paid", Shadow::boolean("paid").or(false))
        .shadow("total", Shadow::number("total"))
        .build()
        .unwrap()
}

/// A workflow version with only a column of totals.
fn totals(edition: u32) -> Definition {
    order().version(edition).shadow("total", Shadow::number("total")).build().unwrap()
}

/// A workflow version without columns.
fn plain(edition: u32) -> Definition {
    order().version(edition).build().unwrap()
}

async fn set(cx: Cx) -> Result<(), ActionError> {
    cx.set_state(cx.payload())
}

fn selling(definition: Definition) -> impl FnOnce(Builder) -> Builder {
    move |builder| builder.workflow(definition).action("set", set)
}

/// An engine with this workflow on a watched store.
async fn watched(definition: Definition) -> (TestEngine, Arc<Watched>) {
    let (store, clock) = ground().await;
    let store = Watched::new(store);
    (TestEngine::start_on(store.clone(), clock, selling(definition)).await.unwrap(), store)
}

/// An order whose id is greater than those of the orders before it.
async fn ordered(engine: &TestEngine, data: &Value) -> Run {
    let start = Start::new("order").input(data).id(new_run_id());
    let run = engine.start(start).await.unwrap();
    engine.settle().await;
    run
}

async fn becomes(engine: &TestEngine, run: &Run, data: &Value) {
    run.signal(Signal::new("SET").with(data)).await.unwrap();
    engine.settle().await;
    assert_eq!((context(run).await, error_code(run).await), (data.clone(), None));
}

async fn close(engine: &TestEngine, run: &Run) {
    run.signal(Signal::new("CLOSE")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(run).await, Status::Completed);
}

type Held = Vec<(String, ShadowValue)>;

/// The columns of a run by name.
async fn held(engine: &Engine, run: RunId) -> Held {
    let page = engine.store().records(engine.scope(), RecordQuery::Shadows(run)).await.unwrap();
    let column = |record| match record {
        Record::Shadow(row) => (row.name.to_string(), row.value),
        other => panic!("{other:?} is not a shadow column"),
    };
    page.items.into_iter().map(column).collect()
}

fn are<const N: usize>(columns: [(&str, ShadowValue); N]) -> Held {
    columns.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// The column values that the steps of some commits write.
fn written(commits: &[Commit]) -> Vec<(String, Option<ShadowValue>)> {
    let steps = commits.iter().filter_map(|commit| commit.step.as_ref());
    let writes = steps.flat_map(|step| step.shadows.clone());
    writes.map(|write| (write.name.to_string(), write.value)).collect()
}

fn by<const N: usize>(columns: [(&str, ShadowValue); N]) -> RunQuery {
    let shadows = columns.map(|(name, value)| ShadowFilter::equals(name, value)).to_vec();
    RunQuery {
        filter: RunFilter { workflow: Some("order".into()), shadows, ..RunFilter::default() },
        limit: 2,
        ..RunQuery::default()
    }
}

/// The runs that a query finds, page by page, oldest first.
/// Changes the filter of a query.
fn with(mut query: RunQuery, change: impl FnOnce(&mut RunFilter)) -> RunQuery {
    change(&mut query.filter);
    query
}

async fn found(engine: &Engine, query: RunQuery) -> Vec<RunId> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = engine.runs(RunQuery { cursor, ..query.clone() }).await.unwrap();
        assert!(page.items.len() <= 2, "no page exceeds its limit");
        found.extend(page.items.iter().map(|row| row.run));
        cursor = page.next;
        if cursor.is_none() {
            found.reverse();
            return found;
        }
    }
}

/// Heals everything the request selects; returns the number of checked runs and of changed columns.
async fn healed(engine: &Engine, mut heal: Heal) -> (u64, u64) {
    while engine.heal(&mut heal).await.unwrap() {}
    assert!(heal.is_over() && heal.place().is_none());
    (heal.runs(), heal.changed())
}

/// Advances the clock in small steps until a future that sleeps is done.
async fn as_time_passes<T>(clock: &ManualClock, what: impl Future<Output = T>) -> T {
    let mut what = pin!(what);
    let passing = async {
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = tokio::time::sleep(Duration::from_millis(1)) => clock.set(clock.now().plus_ms(100)),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), passing).await.expect("it takes too long")
}

// Columns written by a commit.

#[tokio::test]
async fn new_run_gets_columns_for_falsy_values_too() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let full = json!({"customer": {"email": "ann@example.com", "city": "Oslo"}, "total": -1.5, "paid": true});
    let falsy = json!({"customer": {"email": "", "city": ""}, "total": 0, "paid": false});
    let nulls = json!({"customer": {"email": null, "city": null}, "total": null, "paid": null});
    let defaults = || are([("city", "unknown".into()), ("paid", false.into())]);
    let cases = [
        (
            full,
            are([
                ("city", "Oslo".into()),
                ("email", "ann@example.com".into()),
                ("paid", true.into()),
                ("total", (-1.5).into()),
            ]),
        ),
        (
            falsy,
            are([("city", "".into()), ("email", "".into()), ("paid", false.into()), ("total", 0.into())]),
        ),
        (nulls, defaults()),
        (json!({}), defaults()),
        (json!({"customer": [{"email": "ann@example.com"}], "customer.email": "ann"}), defaults()),
    ];
    for (data, expected) in cases {
        let run = ordered(&engine, &data).await;
        assert_eq!(held(&engine, run.id()).await, expected, "{data}");
    }
    let later = engine.start(Start::new("order").input(&json!({"total": 3})).after(DAY)).await.unwrap();
    assert_eq!(status(&later).await, Status::Pending);
    assert_eq!(found(&engine, by([("total", 3.into())])).await, [later.id()], "pending runs have columns");
}

#[tokio::test]
async fn commit_writes_only_changed_columns() {
    let (engine, store) = watched(shaded()).await;
    let run = ordered(&engine, &json!({"customer": {"email": "ann@example.com"}, "total": 1})).await;
    assert_eq!(written(&store.commits()), []);
    let steps = [
        (json!({"customer": {"email": "ann@example.com"}, "total": 2}), vec![("total", Some(2.into()))]),
        (json!({"customer": {"email": "ann@example.com"}, "total": 2.0, "note": "x"}), vec![]),
        (json!({"customer": {"email": "ann@example.com", "city": "unknown"}, "total": 2}), {
            vec![("city", Some("unknown".into()))]
        }),
        (json!({"total": 2, "paid": false}), vec![("email", None), ("paid", Some(false.into()))]),
        (json!({"total": 2}), vec![]),
        (json!({}), vec![("total", None)]),
        (json!({"total": null, "customer": {}}), vec![]),
    ];
    for (data, expected) in steps {
        becomes(&engine, &run, &data).await;
        let expected: Vec<_> = expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(written(&store.commits()), expected, "{data}");
    }
    close(&engine, &run).await;
    assert_eq!(written(&store.commits()), []);
    let left = are([("city", "unknown".into()), ("paid", false.into())]);
    assert_eq!(held(&engine, run.id()).await, left, "an end changes nothing");
}

#[tokio::test]
async fn missing_value_clears_only_optional_columns() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let data = json!({"customer": {"email": "ann@example.com", "city": "Oslo"}, "total": 12.5, "paid": true});
    let run = ordered(&engine, &data).await;
    let full = held(&engine, run.id()).await;
    becomes(&engine, &run, &json!({})).await;
    let left = are([("city", "Oslo".into()), ("paid", true.into())]);
    assert_eq!(held(&engine, run.id()).await, left);
    assert_eq!(found(&engine, by([("email", "ann@example.com".into())])).await, []);
    assert_eq!(found(&engine, by([("city", "Oslo".into()), ("paid", true.into())])).await, [run.id()]);
    becomes(&engine, &run, &data).await;
    assert_eq!(held(&engine, run.id()).await, full);
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 0), "there is nothing to heal");
}

/// Records the columns it is warned about.
#[derive(Clone, Default)]
struct Warned(Arc<Mutex<Vec<String>>>);

impl Warned {
    fn columns(&self) -> Vec<String> {
        let mut columns = self.0.lock().unwrap().clone();
        columns.sort();
        columns
    }
}

impl tracing::Subscriber for Warned {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.target() == "stepwell::shadows"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

impl Visit for Warned {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "column" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

#[tokio::test]
async fn unfit_value_counts_as_missing_and_warns_once() {
    let warned = Warned::default();
    let _guard = tracing::subscriber::set_default(warned.clone());
    let definition = order()
        .shadow("kept", Shadow::number("code").or(7))
        .shadow("number", Shadow::number("code"))
        .shadow("text", Shadow::string("code"));
    let engine = kit::start(selling(definition.build().unwrap())).await.unwrap();
    let run = ordered(&engine, &json!({"code": "x"})).await;
    assert_eq!(held(&engine, run.id()).await, are([("kept", 7.into()), ("text", "x".into())]));
    assert_eq!(warned.columns(), ["kept", "number"]);
    becomes(&engine, &run, &json!({"code": 5})).await;
    assert_eq!(held(&engine, run.id()).await, are([("kept", 5.into()), ("number", 5.into())]));
    assert_eq!(warned.columns(), ["kept", "number", "text"]);
    let unfit = [
        json!("x".repeat(MAX_TEXT_BYTES + 1)),
        json!("a\0b"),
        json!(9_007_199_254_740_993_u64),
        json!([1]),
        json!({"number": 1}),
    ];
    for code in unfit {
        becomes(&engine, &run, &json!({"code": 5})).await;
        becomes(&engine, &run, &json!({"code": code})).await;
        assert_eq!(held(&engine, run.id()).await, are([("kept", 5.into())]), "{code}");
        ordered(&engine, &json!({"code": code})).await;
    }
    assert_eq!(healed(&engine, Heal::of("order")).await, (6, 0));
    assert_eq!(warned.columns(), ["kept", "number", "text"], "each column is warned about once");
}

#[tokio::test]
async fn saved_result_updates_columns_in_the_same_commit() {
    let definition = Spec::new("order")
        .step("a")
        .step("b")
        .step("c")
        .end_with("done", json!({"$expr": "context.checked.score"}))
        .shadow("score", Shadow::number("checked.score"))
        .shadow("passed", Shadow::boolean("checked.passed").or(false))
        .transition(Transition::new("check", "a", "b").action_with(saved("check", "checked")))
        .auto("on", "b", "c")
        .auto("end", "c", "done")
        .build()
        .unwrap();
    let check = |_: Cx| async { Ok::<_, ActionError>(json!({"score": 4.5, "passed": true})) };
    let (store, clock) = ground().await;
    let store = Watched::new(store);
    let build = |builder: Builder| builder.workflow(definition).action("check", check);
    let engine = TestEngine::start_on(store.clone(), clock, build).await.unwrap();
    let run = engine.start(Start::new("order")).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!(4.5));
    let commits = store.commits();
    let moved: Vec<_> = commits.iter().filter_map(|commit| commit.step.as_ref()).collect();
    let last = moved.last().unwrap();
    assert_eq!((last.next.len(), last.shadows.len()), (3, 2), "three transitions share the commit");
    assert_eq!(held(&engine, run.id()).await, are([("passed", true.into()), ("score", 4.5.into())]));
    let completed = |status| with(by([("score", 4.5.into())]), |filter| filter.status = vec![status]);
    assert_eq!(found(&engine, completed(Status::Completed)).await, [run.id()]);
    assert_eq!(found(&engine, completed(Status::Running)).await, []);
}

/// An order that counts itself and then waits or ends. Its number is in a column, if the version declares one.
fn numbered(edition: u32, ends: bool) -> Definition {
    let count = ActionSpec {
        name: "count".into(),
        input: Value::Null,
        save_as: Some("visit".to_owned()),
        version: None,
    };
    let spec = Spec::new("order").version(edition).step("a").signal("CLOSE").end("closed");
    let spec = if ends {
        spec.transition(Transition::new("count", "a", "closed").action_with(count))
    } else {
        let spec = spec.wait("b", "CLOSE").initial("a").auto("close", "b", "closed");
        spec.transition(Transition::new("count", "a", "b").action_with(count))
    };
    let spec = if edition == 1 { spec } else { spec.shadow("number", Shadow::number("visit.value")) };
    spec.build().unwrap()
}

/// Before the first commit that counts one, another writer adds ten.
#[tokio::test]
async fn column_shows_the_committed_counter_not_the_predicted_one() {
    for (pinned, ends) in [(1, false), (2, false), (2, true)] {
        let (inner, clock) = ground().await;
        let store = Watched::new(inner.clone());
        let other = TestEngine::start_on(inner, clock.clone(), |builder| builder).await.unwrap();
        let (seen, theirs) = (store.clone(), other.engine().clone());
        let count = move |cx: Cx| {
            let (store, other) = (seen.clone(), theirs.clone());
            async move {
                let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
                cx.bind_result(ops[0], ResultPart::Value, "/value")?;
                if other.kv("n").get("sum").await?.is_none() {
                    store.first(async move { _ = other.kv("n").increment("sum", 10).await.unwrap() });
                }
                Ok::<_, ActionError>(json!({"value": 0}))
            }
        };
        let build = |builder: Builder| builder.workflow(numbered(pinned, ends)).action("count", count);
        let engine = TestEngine::start_on(store, clock, build).await.unwrap();
        let run = engine.start(Start::new("order").after(SECOND)).await.unwrap();
        engine.register(numbered(2, ends)).unwrap();
        engine.advance(2 * SECOND).await;
        assert_eq!((context(&run).await, error_code(&run).await), (json!({"visit": {"value": 11}}), None));
        assert_eq!(held(&engine, run.id()).await, are([("number", 11.into())]), "{pinned} {ends}");
        assert_eq!(found(&engine, by([("number", 11.into())])).await, [run.id()]);
        let next = engine.start(Start::new("order")).await.unwrap();
        engine.advance(SECOND).await;
        assert_eq!(held(&engine, next.id()).await, are([("number", 12.into())]));
    }
}

#[tokio::test]
async fn store_increment_result_shows_in_columns() {
    let input = json!({"namespace": "n", "key": {"$expr": "context.key"}});
    let count = ActionSpec {
        name: "store.increment".into(),
        input,
        save_as: Some("visit".to_owned()),
        version: None,
    };
    let definition = Spec::new("order")
        .step("a")
        .step("b")
        .end("c")
        .shadow("number", Shadow::number("visit.value"))
        .shadow("revision", Shadow::number("visit.revision"))
        .transition(Transition::new("add", "a", "b").action_with(count))
        .transition(Transition::new("again", "b", "a").when("context.visit.value < 5"))
        .transition(Transition::new("enough", "b", "c").when("context.visit.value >= 5"))
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    engine.kv("n").set("five", 2).await.unwrap();
    let run = engine.start(Start::new("order").input(&json!({"key": "five"}))).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(held(&engine, run.id()).await, are([("number", 5.into()), ("revision", 4.into())]));
}

#[tokio::test]
async fn operator_commands_update_columns() {
    let (engine, store) = watched(shaded()).await;
    let data = json!({"customer": {"email": "ann@example.com"}, "total": 1, "paid": true});
    let run = ordered(&engine, &data).await;
    let operate = async |command: Command, by: &Operator| engine.operate(run.id(), command, by).await;
    let by = Operator::named("ada");
    let patch = |fields: Value| Command::Patch { fields };
    operate(patch(json!({"total": 2, "customer": {"email": null}, "paid": null})), &by).await.unwrap();
    let patched = are([("city", "unknown".into()), ("paid", true.into()), ("total", 2.into())]);
    assert_eq!(held(&engine, run.id()).await, patched);
    operate(patch(json!({"total": 99})), &by.clone().seen(0)).await.unwrap_err();
    store.commits();
    for command in [Command::Suspend, patch(json!({"note": 1})), Command::Resume] {
        operate(command, &by).await.unwrap();
    }
    operate(Command::Move { activation: None, to: "open".into() }, &by).await.unwrap();
    engine.settle().await;
    assert_eq!((written(&store.commits()), held(&engine, run.id()).await), (vec![], patched.clone()));
    let fork = engine.fork(run.id(), 0, &by).await.unwrap();
    engine.settle().await;
    let first = are([
        ("city", "unknown".into()),
        ("email", "ann@example.com".into()),
        ("paid", true.into()),
        ("total", 1.into()),
    ]);
    assert_eq!((held(&engine, fork.id()).await, held(&engine, run.id()).await), (first, patched));
    becomes(&engine, &fork, &json!({"total": 7})).await;
    engine.cancel(fork.id()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&fork).await, Status::Cancelled);
    assert_eq!(found(&engine, self::by([("total", 7.into())])).await, [fork.id()]);
    assert_eq!(found(&engine, self::by([("total", 2.into())])).await, [run.id()]);
}

#[tokio::test]
async fn migrated_run_has_columns_of_its_new_data() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let run = ordered(&engine, &json!({"customer": {"email": "ann@example.com"}, "total": 1})).await;
    let before = held(&engine, run.id()).await;
    let second = order()
        .version(2)
        .shadow("email", Shadow::string("email"))
        .shadow("total", Shadow::number("total"))
        .shadow("urgent", Shadow::boolean("urgent").or(false));
    engine.register(second.build().unwrap()).unwrap();
    let mapping =
        Mapping { context: Some(json!({"email": "bob@example.com", "urgent": true})), ..Mapping::default() };
    let by = Operator::named("ada");
    engine.migrate(run.id(), 2, &mapping, &by, true).await.unwrap();
    assert_eq!(held(&engine, run.id()).await, before, "a dry run changes nothing");
    engine.migrate(run.id(), 2, &mapping, &by, false).await.unwrap();
    engine.settle().await;
    let mut expected = are([("email", "bob@example.com".into()), ("urgent", true.into())]);
    assert_eq!(held(&engine, run.id()).await, expected, "columns that are no longer declared are gone");
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 0));
    becomes(&engine, &run, &json!({"urgent": false})).await;
    expected = are([("urgent", false.into())]);
    assert_eq!(held(&engine, run.id()).await, expected);
}

#[tokio::test]
async fn runs_started_by_an_action_have_columns() {
    let house = Spec::new("house")
        .step("a")
        .place("b", Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() }))
        .end("c")
        .transition(Transition::new("split", "a", "b").action("split"))
        .auto("end", "b", "c")
        .build()
        .unwrap();
    let split = |cx: Cx| async move {
        for total in [1, 2] {
            cx.start_child(Start::new("order").id(new_run_id()).input(&json!({"total": total})))?;
        }
        cx.start(Start::new("order").input(&json!({"total": 1, "paid": true}))).map(drop)
    };
    let build = |builder: Builder| selling(shaded())(builder).workflow(house).action("split", split);
    let engine = kit::start(build).await.unwrap();
    let parent = engine.start(Start::new("house")).await.unwrap();
    engine.settle().await;
    assert_eq!(held(&engine, parent.id()).await, []);
    let mut children = children_of(&engine, parent.id()).await;
    assert_eq!(children.len(), 2);
    let below = |total: i32| with(by([("total", total.into())]), |filter| filter.parent = Some(parent.id()));
    let first = found(&engine, below(1)).await;
    children.sort_by_key(|child| child.run != first[0]);
    assert_eq!(first, [children[0].run]);
    assert_eq!(found(&engine, by([("total", 1.into())])).await.len(), 2);
    becomes(&engine, &engine.run(children[1].run), &json!({"total": 1})).await;
    assert_eq!(found(&engine, below(1)).await.len(), 2);
    for child in &children {
        close(&engine, &engine.run(child.run)).await;
    }
    assert_eq!(status(&parent).await, Status::Completed);
    assert_eq!(found(&engine, below(1)).await.len(), 2);
}

#[tokio::test]
async fn retried_commit_writes_columns_of_the_newer_state() {
    let (engine, store) = watched(shaded()).await;
    let run = ordered(&engine, &json!({"total": 1, "paid": true})).await;
    let (other, id, mut is_done) = (engine.engine().clone(), run.id(), false);
    let watched = store.clone();
    store.rule(move |commit| {
        let other = other.clone();
        if !is_done && commit.step.as_ref().is_some_and(|step| !step.next.is_empty()) {
            is_done = true;
            let fields = json!({"total": 5, "customer": {"email": "ann@example.com"}});
            let patch = Command::Patch { fields };
            watched.first(async move {
                _ = other.operate(id, patch, &Operator::named("ada")).await.unwrap();
            });
        }
        Fate::Arrives
    });
    run.signal(Signal::new("SET").with(&json!({"total": 2}))).await.unwrap();
    engine.advance(SECOND).await;
    let now = context(&run).await;
    assert_eq!(now["customer"]["email"], json!("ann@example.com"), "{now}");
    let expected = are([
        ("city", "unknown".into()),
        ("email", "ann@example.com".into()),
        ("paid", true.into()),
        ("total", now["total"].as_f64().unwrap().into()),
    ]);
    assert_eq!(held(&engine, run.id()).await, expected);
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 0));
}

#[tokio::test]
async fn signal_and_concurrent_action_both_update_columns() {
    let gate = Gate::new();
    let work = gate.and(|cx: &Cx| {
        cx.set_state(&json!({"left": "done", "both": "left"}))?;
        Ok(Value::Null)
    });
    let next = |cx: Cx| async move { cx.set_state(cx.payload()) };
    let mut spec = pair()
        .shadow("left", Shadow::string("left"))
        .shadow("right", Shadow::number("right"))
        .shadow("both", Shadow::string("both").or("nobody"));
    let transition = spec.transitions.iter_mut().find(|one| one.id.as_str() == "next").unwrap();
    *transition = transition.clone().action("next");
    let build =
        |builder: Builder| builder.workflow(spec.build().unwrap()).action("work", work).action("next", next);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), held(&engine, run.id()).await), (1, are([("both", "nobody".into())])));
    run.signal(Signal::new("NEXT").with(&json!({"right": 3, "both": "right"}))).await.unwrap();
    engine.settle().await;
    assert_eq!(held(&engine, run.id()).await, are([("both", "right".into()), ("right", 3.into())]));
    gate.open(1);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let both = context(&run).await["both"].as_str().unwrap().to_owned();
    let expected = are([("both", both.into()), ("left", "done".into()), ("right", 3.into())]);
    assert_eq!(held(&engine, run.id()).await, expected);
}

#[tokio::test]
async fn refused_start_leaves_no_columns() {
    let (engine, store) = watched(shaded()).await;
    let start = |total: i32| Start::new("order").input(&json!({"total": total})).key("k");
    let first = engine.start_once(start(1)).await.unwrap();
    assert!(first.is_new && !engine.start_once(start(1)).await.unwrap().is_new);
    let reused = engine.start_once(start(2)).await.unwrap_err();
    assert!(matches!(reused, EngineError::KeyReused { .. }), "{reused}");
    let taken = Start::new("order").input(&json!({"total": 3})).id(first.run.id());
    engine.start(taken).await.unwrap_err();
    engine.settle().await;
    let expected = are([("city", "unknown".into()), ("paid", false.into()), ("total", 1.into())]);
    assert_eq!(held(&engine, first.run.id()).await, expected);
    let created: Vec<_> = store.commits().iter().flat_map(|commit| commit.create.clone()).collect();
    assert_eq!(created.len(), 4);
    for new in created.iter().filter(|new| new.run != first.run.id()) {
        assert_eq!(held(&engine, new.run).await, []);
    }
    let signal = |total: i32| Signal::new("SET").with(&json!({"total": total}));
    let begun = engine.start_or_signal(start(4).key("other"), signal(5)).await.unwrap();
    assert!(begun.is_new);
    engine.settle().await;
    assert_eq!(found(&engine, by([("total", 5.into())])).await, [begun.run.id()]);
    assert!(!engine.start_or_signal(start(4).key("other"), signal(6)).await.unwrap().is_new);
    engine.settle().await;
    assert_eq!(found(&engine, by([("total", 6.into())])).await, [begun.run.id()]);
    for total in [2, 3, 4, 5] {
        assert_eq!(found(&engine, by([("total", total.into())])).await, [], "{total}");
    }
}

#[tokio::test]
async fn columns_are_removed_with_their_run() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let run = ordered(&engine, &json!({"customer": {"email": "ann@example.com"}, "total": 1})).await;
    let open = ordered(&engine, &json!({"total": 1})).await;
    close(&engine, &run).await;
    engine.advance(29 * DAY).await;
    assert_eq!(found(&engine, by([("total", 1.into())])).await, [run.id(), open.id()]);
    engine.advance(3 * DAY).await;
    assert_eq!(found(&engine, by([("total", 1.into())])).await, [open.id()]);
    assert_eq!(held(&engine, run.id()).await, []);
    // Another run can have the same id afterwards.
    engine.start(Start::new("order").id(run.id()).input(&json!({"total": 2}))).await.unwrap();
    let expected = are([("city", "unknown".into()), ("paid", false.into()), ("total", 2.into())]);
    assert_eq!(held(&engine, run.id()).await, expected);
}

#[tokio::test]
async fn tenant_neither_finds_nor_heals_foreign_runs() {
    let engine = kit::start(selling(plain(1))).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let mine = ordered(&engine, &json!({"total": 1})).await;
    // Run ids are scoped to a tenant.
    let start = Start::new("order").input(&json!({"total": 2})).id(mine.id());
    theirs.start(start).await.unwrap();
    engine.register(totals(2)).unwrap();
    assert_eq!(healed(&theirs, Heal::of("order")).await, (1, 1));
    assert_eq!((held(&engine, mine.id()).await, held(&theirs, mine.id()).await.len()), (vec![], 1));
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 1));
    for (who, total, found_by_them) in [(engine.engine(), 1, 1), (&theirs, 1, 0), (&theirs, 2, 1)] {
        assert_eq!(found(who, by([("total", total.into())])).await.len(), found_by_them, "{total}");
    }
    let run = theirs.run(mine.id());
    becomes(&engine, &run, &json!({"total": 1})).await;
    assert_eq!(held(&theirs, mine.id()).await, are([("total", 1.into())]));
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 0));
}

#[tokio::test]
async fn newest_version_decides_the_columns_of_older_runs() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let data = json!({"customer": {"email": "ann@example.com"}, "total": 1});
    let run = ordered(&engine, &data).await;
    let second = order()
        .version(2)
        .shadow("mail", Shadow::string("customer.email"))
        .shadow("total", Shadow::string("total"));
    engine.register(second.build().unwrap()).unwrap();
    engine.register(totals(1)).unwrap();
    let data = json!({"customer": {"email": "bob@example.com"}, "total": "two"});
    becomes(&engine, &run, &data).await;
    let unhealed = are([
        ("city", "unknown".into()),
        ("email", "ann@example.com".into()),
        ("mail", "bob@example.com".into()),
        ("paid", false.into()),
        ("total", "two".into()),
    ]);
    assert_eq!(held(&engine, run.id()).await, unhealed);
    let gone = engine.runs(by([("email", "ann@example.com".into())])).await.unwrap_err();
    assert!(gone.to_string().contains("no shadow column `email`"), "{gone}");
    assert_eq!(found(&engine, by([("total", "two".into())])).await, [run.id()]);
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 3));
    let left = are([("mail", "bob@example.com".into()), ("total", "two".into())]);
    assert_eq!(held(&engine, run.id()).await, left);
    engine.register(plain(3)).unwrap();
    becomes(&engine, &run, &json!({})).await;
    assert_eq!(held(&engine, run.id()).await, left, "undeclared columns are not updated");
    assert_eq!(healed(&engine, Heal::of("order")).await, (1, 2));
    assert_eq!(held(&engine, run.id()).await, []);
}

#[tokio::test]
async fn columns_are_written_after_a_takeover() {
    for fate in [Fate::Hangs, Fate::AnswerLost] {
        let (inner, clock) = ground().await;
        let store = Watched::new(inner.clone());
        let (first, tasks) = start_killable(store.clone(), &clock, selling(shaded())).await;
        let run = ordered(&first, &json!({"total": 1})).await.id();
        let mut is_dead = false;
        store.rule(move |commit| {
            let changes = commit.step.as_ref().is_some_and(|step| !step.shadows.is_empty());
            let fates = if is_dead { Fate::Hangs } else { Fate::Arrives };
            is_dead |= changes;
            if changes { fate } else { fates }
        });
        first.signal(run, Signal::new("SET").with(&json!({"total": 2, "paid": true}))).await.unwrap();
        first.settle().await;
        tasks.kill().await;
        let arrived = fate == Fate::AnswerLost;
        let total = |total: i32| by([("total", total.into()), ("paid", (total == 2).into())]);
        let (second, _tasks) = start_killable(inner, &clock, selling(shaded())).await;
        assert_eq!(found(&second, total(2)).await.len(), usize::from(arrived), "{fate:?}");
        assert_eq!(found(&second, total(1)).await.len(), usize::from(!arrived), "{fate:?}");
        second.advance(Duration::from_millis(2 * LEASE_MS)).await;
        assert_eq!(context(&second.run(run)).await, json!({"total": 2, "paid": true}), "{fate:?}");
        assert_eq!((found(&second, total(2)).await, found(&second, total(1)).await), (vec![run], vec![]));
        assert_eq!(healed(&second, Heal::of("order")).await, (1, 0));
    }
}

// Runs are found by their columns.

#[tokio::test]
async fn runs_are_found_by_string_number_and_boolean_columns() {
    let engine = kit::start(selling(shaded())).await.unwrap();
    let mut runs = Vec::new();
    for number in 0..7 {
        let email = if number % 2 == 0 { "ann@example.com" } else { "bob@example.com" };
        let data = json!({"customer": {"email": email}, "total": number / 3, "paid": number % 3 == 0});
        runs.push(ordered(&engine, &data).await.id());
    }
    let at = |numbers: &[usize]| numbers.iter().map(|number| runs[*number]).collect::<Vec<_>>();
    let ann = || ("email", ShadowValue::from("ann@example.com"));
    assert_eq!(found(&engine, by([ann()])).await, at(&[0, 2, 4, 6]));
    assert_eq!(found(&engine, by([("total", 1.into())])).await, at(&[3, 4, 5]));
    assert_eq!(found(&engine, by([("total", ShadowValue::Number(-0.0))])).await, at(&[0, 1, 2]));
    assert_eq!(found(&engine, by([("paid", true.into())])).await, at(&[0, 3, 6]));
    assert_eq!(found(&engine, by([ann(), ("paid", false.into())])).await, at(&[2, 4]));
    assert_eq!(found(&engine, by([ann(), ("paid", false.into()), ("total", 1.into())])).await, at(&[4]));
    assert_eq!(found(&engine, by([ann(), ("email", "bob@example.com".into())])).await, []);
    assert_eq!(found(&engine, by([ann(), ann()])).await.len(), 4);
    for nobody in ["Ann@example.com", "ann@example.co", "ann@example.com ", "", "%", "a\0b"] {
        assert_eq!(found(&engine, by([("email", nobody.into())])).await, [], "{nobody}");
    }
    assert_eq!(found(&engine, by([("total", f64::NAN.into())])).await, []);
    // A run that changes between two pages is shown once or not at all.
    let first = engine.runs(by([ann()])).await.unwrap();
    assert_eq!(first.items.iter().map(|row| row.run).collect::<Vec<_>>(), [runs[6], runs[4]]);
    let data = json!({"customer": {"email": "bob@example.com"}, "total": 0});
    becomes(&engine, &engine.run(runs[4]), &data).await;
    becomes(&engine, &engine.run(runs[2]), &data).await;
    let next = engine.runs(RunQuery { cursor: first.next, ..by([ann()]) }).await.unwrap();
    assert_eq!(next.items.iter().map(|row| row.run).collect::<Vec<_>>(), [runs[0]]);
    assert_eq!(next.next, None);
}

#[tokio::test]
async fn invalid_column_query_is_refused_with_the_reason() {
    let other = Spec::new("bare").step("a").end("b").auto("ab", "a", "b").build().unwrap();
    let engine = kit::start(|builder| selling(shaded())(builder).workflow(other)).await.unwrap();
    ordered(&engine, &json!({"total": 1})).await;
    let of = |workflow: &str, query: RunQuery| with(query, |filter| filter.workflow = Some(workflow.into()));
    let one = || by([("total", 1.into())]);
    let cases = [
        (by([("totals", 1.into())]), "`totals`; it has `city`, `email`, `paid`, `total`"),
        (by([("Total", 1.into())]), "no shadow column `Total`"),
        (by([("total", "1".into())]), "holds a number, not a string"),
        (by([("paid", 1.into())]), "holds a boolean, not a number"),
        (by([("total", 1.into()), ("email", true.into())]), "holds a string, not a boolean"),
        (of("bare", one()), "no shadow column `total`; it has none"),
        (of("ordr", one()), "no workflow `ordr` is registered"),
        (with(one(), |filter| filter.workflow = None), "name the workflow"),
        (RunQuery { cursor: Some("nonsense".to_owned()), ..one() }, "is not a cursor"),
    ];
    for (query, says) in cases {
        let error = engine.runs(query.clone()).await.unwrap_err().to_string();
        assert!(error.contains(says), "{query:?}: {error}");
    }
    let cases = [
        (Heal::those(RunFilter::default()), "set `workflow`"),
        (Heal::of("ordr"), "no workflow `ordr` is registered"),
        (Heal::of("order").from("nonsense"), "is not a cursor"),
    ];
    for (mut heal, says) in cases {
        let error = engine.heal(&mut heal).await.unwrap_err().to_string();
        assert!(error.contains(says) && !heal.is_over(), "{heal:?}: {error}");
    }
}

#[tokio::test]
async fn search_needs_view_and_heal_needs_admin_permission() {
    let engine = kit::start(selling(plain(1))).await.unwrap();
    let run = ordered(&engine, &json!({"total": 1})).await;
    engine.register(totals(2)).unwrap();
    let all_but = |permission| Permission::ALL.into_iter().filter(move |other| *other != permission);
    let denied = |permission| EngineError::Denied { actor: "eve".to_owned(), permission };
    let blind = engine.acting(Actor::new("eve", all_but(Permission::View)));
    for query in [by([("total", 1.into())]), RunQuery::default(), by([("nothing", 1.into())])] {
        assert_eq!(blind.runs(query).await.unwrap_err(), denied(Permission::View));
    }
    let clerk = engine.acting(Actor::new("eve", all_but(Permission::Admin)));
    for mut heal in [Heal::of("order"), Heal::of("nothing"), Heal::those(RunFilter::default())] {
        assert_eq!(clerk.heal(&mut heal).await.unwrap_err(), denied(Permission::Admin));
    }
    assert_eq!(held(&engine, run.id()).await, []);
    let admin = engine.acting(Actor::new("ada", [Permission::Admin]));
    assert_eq!(healed(&admin, Heal::of("order")).await, (1, 1));
    let viewer = engine.acting(Actor::new("vera", [Permission::View]));
    assert_eq!(found(&viewer, by([("total", 1.into())])).await, [run.id()]);
}

// Columns declared later are healed.

#[tokio::test]
async fn heal_fills_columns_declared_later() {
    let engine = kit::start(selling(plain(1))).await.unwrap();
    let data = json!({"customer": {"email": "ann@example.com"}, "total": 0});
    let full = ordered(&engine, &data).await;
    let empty = ordered(&engine, &json!({})).await;
    let ended = ordered(&engine, &json!({"total": 2, "paid": true})).await;
    close(&engine, &ended).await;
    let declared = |edition| {
        let mut spec = shaded().spec().clone();
        spec.version = edition;
        spec.build().unwrap()
    };
    engine.register(declared(2)).unwrap();
    for run in [&full, &empty, &ended] {
        assert_eq!(held(&engine, run.id()).await, [], "it is not healed yet");
    }
    assert_eq!(healed(&engine, Heal::of("order").batch(2)).await, (3, 4 + 2 + 3));
    assert_eq!(healed(&engine, Heal::of("order").batch(0)).await, (3, 0), "the second time");
    let (city, unpaid) = (("city", "unknown".into()), ("paid", false.into()));
    let email = ("email", "ann@example.com".into());
    assert_eq!(
        held(&engine, full.id()).await,
        are([city.clone(), email, unpaid.clone(), ("total", 0.into())])
    );
    assert_eq!(held(&engine, empty.id()).await, are([city.clone(), unpaid]));
    let of_ended = are([city, ("paid", true.into()), ("total", 2.into())]);
    assert_eq!(held(&engine, ended.id()).await, of_ended);
    assert_eq!(status(&ended).await, Status::Completed);
    engine.register(totals(3)).unwrap();
    let completed = with(by([]), |filter| filter.status = vec![Status::Completed]);
    assert_eq!(healed(&engine, Heal::those(completed.filter)).await, (1, 2));
    assert_eq!(held(&engine, ended.id()).await, are([("total", 2.into())]));
    assert_eq!(held(&engine, full.id()).await.len(), 4, "it was not selected");
    assert_eq!(healed(&engine, Heal::of("order")).await, (3, 3 + 2));
    assert_eq!(held(&engine, empty.id()).await, []);
    engine.register(declared(4)).unwrap();
    assert_eq!(healed(&engine, Heal::of("order")).await, (3, 3 + 2 + 2));
}

#[tokio::test]
async fn heal_continues_in_another_process() {
    let (store, clock) = ground().await;
    let first = TestEngine::start_on(store.clone(), clock.clone(), selling(plain(1))).await.unwrap();
    let mut runs = Vec::new();
    for total in 0..7 {
        runs.push(ordered(&first, &json!({"total": total})).await.id());
    }
    first.register(totals(2)).unwrap();
    let mut heal = Heal::of("order").batch(3);
    assert_eq!((heal.place(), heal.is_over()), (None, false));
    assert!(first.heal(&mut heal).await.unwrap());
    assert_eq!((heal.runs(), heal.changed(), heal.is_over()), (3, 3, false));
    let healed_already: Vec<_> = found(&first, by([("total", 6.into())])).await;
    assert_eq!(healed_already, [runs[6]], "the newest runs are healed first");
    assert_eq!(held(&first, runs[3]).await, []);
    let place = heal.place().unwrap().to_owned();
    drop((first, heal));
    let second = TestEngine::start_on(store, clock, selling(totals(2))).await.unwrap();
    // Runs that start meanwhile need no healing.
    let late = ordered(&second, &json!({"total": 99})).await;
    let mut heal = Heal::of("order").batch(3).from(place);
    assert!(second.heal(&mut heal).await.unwrap());
    assert!(!second.heal(&mut heal).await.unwrap());
    assert_eq!((heal.runs(), heal.changed(), heal.place()), (4, 4, None));
    assert!(heal.is_over() && !second.heal(&mut heal).await.unwrap());
    assert_eq!(heal.runs(), 4, "a finished heal does nothing");
    for (total, run) in (0..).zip(&runs) {
        assert_eq!(held(&second, *run).await, are([("total", ShadowValue::from(total))]));
    }
    assert_eq!(held(&second, late.id()).await, are([("total", 99.into())]));
    assert_eq!(healed(&second, Heal::of("order").batch(8)).await, (8, 0), "exactly a batch");
}

#[tokio::test]
async fn columns_stay_correct_when_runs_advance_during_heal() {
    let (store, clock) = ground().await;
    let here = TestEngine::start_on(store.clone(), clock.clone(), selling(totals(2))).await.unwrap();
    let there = TestEngine::start_on(store, clock.clone(), selling(totals(2))).await.unwrap();
    let mut runs = Vec::new();
    for total in 0..5 {
        runs.push(ordered(&here, &json!({"total": total, "other": -total})).await);
    }
    let other = |edition| {
        let spec = order().version(edition).shadow("other", Shadow::number("other"));
        spec.shadow("total", Shadow::number(if edition % 2 == 0 { "total" } else { "other" }))
            .build()
            .unwrap()
    };
    let signals = async {
        for round in 1..=20 {
            for run in &runs {
                let data = json!({"total": round % 3, "other": round});
                here.signal(run.id(), Signal::new("SET").with(&data)).await.unwrap();
            }
        }
    };
    let heals = async {
        for edition in 3..=6 {
            for engine in [&here, &there] {
                engine.register(other(edition)).unwrap();
            }
            healed(&there, Heal::of("order").batch(2)).await;
        }
    };
    as_time_passes(&clock, join(signals, heals)).await;
    for _ in 0..5 {
        kit::settle(&[&here, &there]).await;
        here.advance(SECOND).await;
    }
    for run in &runs {
        assert_eq!(context(run).await, json!({"total": 2, "other": 20}));
        assert_eq!(held(&here, run.id()).await, are([("other", 20.into()), ("total", 2.into())]));
    }
    assert_eq!(healed(&here, Heal::of("order")).await, (5, 0));
}

#[tokio::test]
async fn run_changed_during_heal_is_read_again() {
    let (store, clock) = ground().await;
    let slow = Arc::new(Faulty::new(store.clone(), []));
    let here = TestEngine::start_on(slow.clone(), clock.clone(), selling(plain(1))).await.unwrap();
    let there = TestEngine::start_on(store, clock.clone(), selling(plain(1))).await.unwrap();
    let runs = [
        ordered(&there, &json!({"total": 1})).await.id(),
        ordered(&there, &json!({"total": 2})).await.id(),
        ordered(&there, &json!({"total": 3})).await.id(),
    ];
    here.register(totals(2)).unwrap();
    there.register(totals(2)).unwrap();
    kit::settle(&[&here, &there]).await;
    // The list and three loads are fast; then the runs have time to move.
    for fault in [Fault::None, Fault::None, Fault::None, Fault::None, Fault::Delay(SECOND)] {
        slow.then(fault);
    }
    let moves = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (run, data) in [(runs[0], json!({"total": 1, "note": "x"})), (runs[1], json!({"total": 20}))] {
            there.signal(run, Signal::new("SET").with(&data)).await.unwrap();
        }
    };
    let (healed, ()) = as_time_passes(&clock, join(healed(&here, Heal::of("order")), moves)).await;
    assert_eq!(healed, (3, 2), "one column was written by its step");
    for (run, total) in runs.into_iter().zip([1, 20, 3]) {
        assert_eq!(held(&here, run).await, are([("total", total.into())]));
    }
}

#[tokio::test]
async fn unreadable_run_is_counted_and_keeps_its_columns() {
    let engine = kit::start(selling(plain(1))).await.unwrap();
    let run = ordered(&engine, &json!({"total": 1})).await;
    let broken = new_run_id();
    let email =
        ShadowWrite { workflow: "order".into(), name: "email".into(), value: Some("ann@example.com".into()) };
    let mut commit = Commit::new(CommitId(new_run_id().uuid()), engine.now());
    commit.create.push(NewRun {
        run: broken,
        workflow: "order".into(),
        definition: plain(1).hash(),
        version: 0,
        first: NextState { state: r#"{"no": "state"}"#.into(), entry: "{}".into(), places: vec![] },
        status: Status::Waiting,
        error: None,
        wake: None,
        owner: None,
        parent: None,
        root: broken,
        ledger: None,
        open: vec![],
        shadows: vec![email],
    });
    engine.store().commit(engine.scope(), commit).await.unwrap();
    engine.register(totals(2)).unwrap();
    for changed in [1, 0] {
        let mut heal = Heal::of("order");
        assert!(!engine.heal(&mut heal).await.unwrap());
        assert_eq!((heal.runs(), heal.changed(), heal.unreadable()), (2, changed, 1));
    }
    assert_eq!(held(&engine, run.id()).await, are([("total", 1.into())]));
    assert_eq!(held(&engine, broken).await, are([("email", "ann@example.com".into())]));
}

/// The step is decided before the column is declared, and arrives after the column was healed.
#[tokio::test]
async fn in_flight_step_writes_a_column_declared_meanwhile() {
    let (engine, store) = watched(plain(1)).await;
    let run = ordered(&engine, &json!({"total": 1})).await;
    let ((on_its_way, sent), (declared, arrives)) = (oneshot::channel(), oneshot::channel());
    store.first(async move {
        on_its_way.send(()).unwrap();
        arrives.await.unwrap();
    });
    let patch = Command::Patch { fields: json!({"total": 2}) };
    let by = Operator::named("ada");
    let heals = async {
        sent.await.unwrap();
        engine.register(totals(2)).unwrap();
        assert_eq!(healed(&engine, Heal::of("order")).await, (1, 1));
        declared.send(()).unwrap();
    };
    soon(join(engine.operate(run.id(), patch, &by), heals)).await.0.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await, json!({"total": 2}));
    assert_eq!(held(&engine, run.id()).await, are([("total", 2.into())]));
}

/// The process learns the newer version from the run that it drives.
#[tokio::test]
async fn process_with_older_version_keeps_newer_columns_correct() {
    let (store, clock) = ground().await;
    let new = TestEngine::start_on(store.clone(), clock.clone(), selling(totals(2))).await.unwrap();
    let run = ordered(&new, &json!({"total": 1})).await.id();
    let old = TestEngine::start_on(store, clock, selling(plain(1))).await.unwrap();
    becomes(&old, &old.run(run), &json!({"total": 2})).await;
    assert_eq!(held(&new, run).await, are([("total", 2.into())]));
    assert_eq!(healed(&old, Heal::of("order")).await, (1, 0), "heal does not remove newer columns");
    assert_eq!(held(&new, run).await, are([("total", 2.into())]));
}

#[tokio::test]
async fn heal_resets_a_column_of_changed_type_to_its_default() {
    let text = order().version(1).shadow("code", Shadow::string("code").or("none")).build().unwrap();
    let number = order().version(2).shadow("code", Shadow::number("number").or(0)).build().unwrap();
    let engine = kit::start(selling(text)).await.unwrap();
    let run = ordered(&engine, &json!({"code": "x"})).await;
    engine.register(number).unwrap();
    healed(&engine, Heal::of("order")).await;
    assert_eq!(found(&engine, by([("code", 0.into())])).await, [run.id()]);
    assert_eq!(held(&engine, run.id()).await, are([("code", 0.into())]));
}

/// Registers the version with a column, and heals everything, while the next start or fork is in flight.
async fn declared_beside<T>(engine: &TestEngine, store: &Watched, what: impl Future<Output = T>) -> T {
    let ((on_its_way, sent), (declared, arrives)) = (oneshot::channel(), oneshot::channel());
    store.first(async move {
        on_its_way.send(()).unwrap();
        arrives.await.unwrap();
    });
    let declares = async {
        sent.await.unwrap();
        engine.register(totals(2)).unwrap();
        healed(engine, Heal::of("order")).await;
        declared.send(()).unwrap();
    };
    soon(join(what, declares)).await.0
}

#[tokio::test]
async fn in_flight_start_writes_a_column_declared_meanwhile() {
    let (engine, store) = watched(plain(1)).await;
    let start = engine.start(Start::new("order").input(&json!({"total": 1})));
    let run = declared_beside(&engine, &store, start).await.unwrap();
    assert_eq!(held(&engine, run.id()).await, are([("total", 1.into())]));
}

#[tokio::test]
async fn in_flight_fork_writes_a_column_declared_meanwhile() {
    let (engine, store) = watched(plain(1)).await;
    let run = ordered(&engine, &json!({"total": 1})).await;
    let by = Operator::named("ada");
    let fork = declared_beside(&engine, &store, engine.fork(run.id(), 0, &by)).await.unwrap();
    assert_eq!(held(&engine, run.id()).await, are([("total", 1.into())]));
    assert_eq!(held(&engine, fork.id()).await, are([("total", 1.into())]));
}

#[tokio::test]
async fn run_started_by_action_gets_a_column_declared_meanwhile() {
    let gate = Gate::new();
    let begin = gate.and(|cx: &Cx| {
        cx.start(Start::new("order").input(&json!({"total": 1})))?;
        Ok(Value::Null)
    });
    let house = Spec::new("house").step("a").end("b");
    let house = house.transition(Transition::new("begin", "a", "b").action("begin")).build().unwrap();
    let (store, clock) = ground().await;
    let store = Watched::new(store);
    let build = |builder: Builder| selling(plain(1))(builder).workflow(house).action("begin", begin);
    let engine = TestEngine::start_on(store.clone(), clock, build).await.unwrap();
    engine.start(Start::new("house")).await.unwrap();
    engine.settle().await;
    declared_beside(&engine, &store, async { gate.open(1) }).await;
    engine.settle().await;
    assert_eq!(found(&engine, by([("total", 1.into())])).await.len(), 1);
}

#[tokio::test]
async fn version_of_another_tenant_changes_no_columns() {
    let (store, clock) = ground().await;
    let theirs = TestEngine::start_on(store.clone(), clock.clone(), selling(totals(9))).await.unwrap();
    let their_run = theirs.for_tenant(other_tenant()).start(Start::new("order")).await.unwrap().id();
    theirs.settle().await;
    drop(theirs);
    let engine = TestEngine::start_on(store, clock, selling(shaded())).await.unwrap();
    let run = ordered(&engine, &json!({"paid": true})).await;
    becomes(&engine, &engine.for_tenant(other_tenant()).run(their_run), &json!({"total": 1})).await;
    becomes(&engine, &run, &json!({"paid": false})).await;
    assert_eq!(held(&engine, run.id()).await, are([("city", "unknown".into()), ("paid", false.into())]));
    assert_eq!(found(&engine, by([("paid", false.into())])).await, [run.id()]);
}

#[tokio::test]
async fn default_page_has_fifty_runs() {
    let engine = kit::start(selling(plain(1))).await.unwrap();
    for _ in 0..51 {
        engine.start(Start::new("order")).await.unwrap();
    }
    let page = engine.runs(RunQuery::default()).await.unwrap();
    assert!(page.items.len() == 50 && page.next.is_some());
}

/// Callers can spawn these futures only if they are `Send`.
#[test]
fn heal_and_search_futures_are_send() {
    fn is_send(_: impl Future + Send) {}
    fn check(engine: &Engine, heal: &mut Heal) {
        is_send(engine.heal(heal));
        is_send(engine.runs(RunQuery::default()));
    }
    let _ = check;
}
