//! Events: accepted once, delivered once to every matching run, and kept for later waits until they expire.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::{Definition, RunId, WorkflowSource};
use stepwell::events::{Fired, TriggerLog};
use stepwell::store::{Status, TenantId, TenantScope};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{EngineError, Event, EventType, Run, Signal, Start};

use crate::kit::{self, LEASE_MS, ground, places, start_killable, status};

const HOUR: Duration = Duration::from_secs(3_600);

fn document(name: &str, text: &str) -> Definition {
    let read = WorkflowSource::read(text, Some(name)).unwrap_or_else(|problems| panic!("{problems}"));
    read.definition().clone()
}

/// A workflow that waits up to an hour until an order is paid.
fn order() -> Definition {
    document(
        "order",
        "
steps:
  - id: paid
    type: wait.event
    eventName: PAID
    correlation: { event: event.order, run: payload.order }
    timeout: 1h
    onTimeout: [{ id: late, type: control.return, value: late }]
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
",
    )
}

/// A workflow that counts the payments for an order, one after the other.
fn counter() -> Definition {
    document(
        "counter",
        "
steps:
  - id: each
    type: control.while
    condition: '$count(vars.seen) < 3'
    body:
      - { id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: payload.order } }
      - { id: note, type: vars.set, values: { seen: { $expr: '$append(vars.seen, [vars.paid.cents])' } } }
  - { id: done, type: control.return, value: { $expr: 'vars.seen[]' } }
",
    )
}

/// A workflow that a payment starts if the filter accepts it.
fn receipt(name: &str, filter: &str) -> Definition {
    let text = format!(
        "
trigger: {{ id: paid, type: event, eventName: PAID, filter: '{filter}' }}
input: {{ type: object, required: [order] }}
steps: [{{ id: done, type: control.return, value: {{ $expr: payload.order }} }}]
"
    );
    document(name, &text)
}

fn paid(order: impl Into<Value>, cents: u32) -> Event {
    Event::new("PAID").with(&json!({"order": order.into(), "cents": cents}))
}

async fn start(engine: &TestEngine, workflow: &str, order: impl Into<Value>) -> Run {
    let run = engine.start(Start::new(workflow).input(&json!({"order": order.into()}))).await.unwrap();
    engine.settle().await;
    run
}

async fn emit(engine: &TestEngine, event: Event) -> RunId {
    let emitted = engine.emit(event).await.unwrap();
    engine.settle().await;
    emitted.event
}

async fn runs_of(engine: &TestEngine, workflow: &str) -> usize {
    kit::runs_of(engine, workflow).await.len()
}

async fn log(engine: &TestEngine, workflow: &str) -> Vec<(String, Fired)> {
    let query = TriggerLog { limit: 100, ..TriggerLog::default() };
    let page = engine.trigger_log(workflow, "paid", query).await.unwrap();
    page.items.into_iter().map(|entry| (entry.id, entry.result)).collect()
}

#[tokio::test]
async fn event_wakes_only_correlated_runs() {
    let engine = kit::start(|engine| engine.workflow(order())).await.unwrap();
    let (one, other) = (start(&engine, "order", "o-1").await, start(&engine, "order", "o-2").await);
    let again = start(&engine, "order", "o-1").await;
    let event = emit(&engine, paid("o-1", 500)).await;
    assert_eq!(one.result().await.unwrap(), json!(500));
    assert_eq!(again.result().await.unwrap(), json!(500));
    assert_eq!(status(&other).await, Status::Waiting);
    let view = engine.event(event).await.unwrap().unwrap();
    assert_eq!((view.is_delivered, view.sent, view.filtered_out), (true, 2, 0));
    engine.advance(HOUR).await;
    assert_eq!(other.result().await.unwrap(), json!("late"));
}

#[tokio::test]
async fn same_source_and_id_are_accepted_once() {
    let engine = kit::start(|engine| engine.workflow(receipt("receipt", "true"))).await.unwrap();
    let event = || paid("o-1", 500).source("shop").id("e-1");
    let first = engine.emit(event()).await.unwrap();
    assert!(first.is_new);
    for other in [event(), paid("o-2", 1).source("shop").id("e-1")] {
        let again = engine.emit(other).await.unwrap();
        assert_eq!((again.event, again.is_new), (first.event, false));
    }
    assert!(engine.emit(event().source("till")).await.unwrap().is_new);
    engine.settle().await;
    assert_eq!(runs_of(&engine, "receipt").await, 2);
    let view = engine.event(first.event).await.unwrap().unwrap();
    assert_eq!((view.duplicates, view.kept.data["order"].clone()), (2, json!("o-1")));
}

#[tokio::test]
async fn event_starts_matching_workflows_and_logs_refusals() {
    let build = |engine: stepwell::Builder| {
        let engine = engine.workflow(receipt("all", "true")).workflow(receipt("large", "event.cents > 100"));
        engine.workflow(receipt("odd", "event.nothing.there > 1"))
    };
    let engine = kit::start(build).await.unwrap();
    emit(&engine, paid("o-1", 500).source("shop").id("large")).await;
    emit(&engine, paid("o-2", 50).source("shop").id("small")).await;
    emit(&engine, Event::new("PAID").with(&json!({"cents": 500})).source("shop").id("bare")).await;
    assert_eq!((runs_of(&engine, "all").await, runs_of(&engine, "large").await), (2, 1));
    let seen = log(&engine, "large").await;
    let ids: Vec<_> = seen.iter().map(|(id, fired)| (id.as_str(), fired.word())).collect();
    assert_eq!(ids, [("bare", "refused"), ("small", "filtered"), ("large", "started")]);
    let Fired::Filtered(filtered) = &seen[1].1 else { panic!("{:?}", seen[1]) };
    assert_eq!(
        (filtered.filter.as_str(), filtered.values["cents"].clone()),
        ("event.cents > 100", json!(50))
    );
    let Fired::Refused { error } = &seen[0].1 else { panic!("{:?}", seen[0]) };
    assert!(error.contains("order"), "{error}");
    let odd = log(&engine, "odd").await;
    assert!(
        odd.iter().all(|(_, fired)| matches!(fired, Fired::Filtered(filtered) if filtered.error.is_some()))
    );
    let Fired::Started { run } = &seen[2].1 else { panic!("{:?}", seen[2]) };
    assert_eq!(engine.run(*run).result().await.unwrap(), json!("o-1"));
}

#[tokio::test]
async fn trigger_log_is_paged_and_filtered_by_outcome() {
    let engine = kit::start(|engine| engine.workflow(receipt("large", "event.cents > 100"))).await.unwrap();
    for number in 0..7_u32 {
        emit(&engine, paid("o", number * 50).source("shop").id(format!("e-{number}"))).await;
    }
    let mut ids = Vec::new();
    let mut cursor = None;
    loop {
        let query = TriggerLog { limit: 2, cursor, ..TriggerLog::default() };
        let page = engine.trigger_log("large", "paid", query).await.unwrap();
        assert!(page.items.len() <= 2);
        ids.extend(page.items.into_iter().map(|entry| entry.id));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(ids, ["e-6", "e-5", "e-4", "e-3", "e-2", "e-1", "e-0"]);
    let query = TriggerLog { outcome: Some("filtered".to_owned()), limit: 9, cursor: None };
    assert_eq!(engine.trigger_log("large", "paid", query).await.unwrap().items.len(), 3);
    let query = TriggerLog { outcome: Some("lost".to_owned()), ..TriggerLog::default() };
    let wrong = engine.trigger_log("large", "paid", query).await.unwrap_err();
    assert!(wrong.to_string().contains("started"), "{wrong}");
}

#[tokio::test]
async fn earlier_event_resolves_a_wait_until_it_expires() {
    let engine = kit::start(|engine| engine.workflow(order())).await.unwrap();
    emit(&engine, paid("o-1", 500).ttl(HOUR / 2)).await;
    emit(&engine, paid("o-2", 600)).await;
    engine.advance(HOUR / 2).await;
    let (over, alive) = (start(&engine, "order", "o-1").await, start(&engine, "order", "o-2").await);
    assert_eq!(alive.result().await.unwrap(), json!(600));
    assert_eq!(status(&over).await, Status::Waiting);
    let second = start(&engine, "order", "o-2").await;
    assert_eq!(second.result().await.unwrap(), json!(600), "another run gets it too");
}

#[tokio::test]
async fn wait_in_a_loop_consumes_each_event_once_in_order() {
    let engine = kit::start(|engine| engine.workflow(counter())).await.unwrap();
    emit(&engine, paid("o-1", 1)).await;
    engine.advance(Duration::from_secs(1)).await;
    emit(&engine, paid("o-1", 2)).await;
    let run = start(&engine, "counter", "o-1").await;
    assert_eq!(places(&run).await, ["paid"], "each event is consumed once");
    emit(&engine, paid("o-1", 3)).await;
    assert_eq!(run.result().await.unwrap(), json!([1, 2, 3]));
}

#[tokio::test]
async fn event_accepted_before_the_timeout_wins_if_delivered_late() {
    for (accepted_ms, expected) in
        [(3_599_999, json!(500)), (3_600_000, json!("late")), (3_600_001, json!("late"))]
    {
        let (store, clock) = ground().await;
        let build = |engine: stepwell::Builder| engine.workflow(order());
        let worker = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
        let run = start(&worker, "order", "o-1").await.id();
        drop(worker);
        // This engine accepts events and runs nothing.
        let front = |engine: stepwell::Builder| build(engine).with(|options| options.max_runs = 0);
        let front = TestEngine::start_on(store.clone(), clock.clone(), front).await.unwrap();
        clock.set(BEGINS.plus_ms(accepted_ms));
        front.emit(paid("o-1", 500)).await.unwrap();
        drop(front);
        clock.set(BEGINS.plus_ms(7_200_000));
        let worker = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
        worker.settle().await;
        assert_eq!(worker.run(run).result().await.unwrap(), expected, "accepted after {accepted_ms} ms");
    }
}

#[tokio::test]
async fn event_wakes_many_runs_once_each_despite_a_crash() {
    let (store, clock) = ground().await;
    let build = |engine: stepwell::Builder| engine.workflow(counter()).workflow(receipt("receipt", "true"));
    let (first, tasks) = start_killable(store.clone(), &clock, build).await;
    let mut runs = Vec::new();
    for _ in 0..230 {
        let run = first.start(Start::new("counter").input(&json!({"order": "o"}))).await.unwrap();
        runs.push(run.id());
    }
    first.settle().await;
    first.emit(paid("o", 1)).await.unwrap();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    tasks.kill().await;
    drop(first);
    clock.set(BEGINS.plus_ms(LEASE_MS * 2));
    let second = TestEngine::start_on(store, clock, build).await.unwrap();
    second.settle().await;
    second.advance(Duration::from_secs(60)).await;
    assert_eq!(runs_of(&second, "receipt").await, 1);
    for run in &runs {
        let view = second.run(*run).view().await.unwrap();
        assert_eq!(view.snapshot.context()["vars"]["seen"], json!([1]), "{run}");
    }
    second.emit(paid("o", 2)).await.unwrap();
    second.emit(paid("o", 3)).await.unwrap();
    second.settle().await;
    for run in &runs {
        assert_eq!(second.run(*run).result().await.unwrap().as_array().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn different_correlation_expressions_all_match() {
    let ask = |name: &str, of: &str| {
        let text = format!(
            "
steps:
  - {{ id: paid, type: wait.event, eventName: PAID, correlation: {{ event: '{of}', run: payload.order }} }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.paid.cents }} }}
"
        );
        document(name, &text)
    };
    let all = [("a", "event.order"), ("b", "$uppercase(event.order)"), ("c", "event.order & event.order")];
    let known = [("a", "o"), ("b", "O"), ("c", "oo")];
    let build = |engine: stepwell::Builder| {
        all.iter().fold(engine, |engine, (name, of)| engine.workflow(ask(name, of)))
    };
    let engine = kit::start(build).await.unwrap();
    emit(&engine, paid("o", 1)).await;
    // No run waits yet: the event is evaluated when a wait opens.
    for (workflow, order) in known {
        let run = start(&engine, workflow, order).await;
        assert_eq!(run.result().await.unwrap(), json!(1), "{workflow}");
        engine.advance(Duration::from_secs(2)).await;
        emit(&engine, paid("x", 7)).await;
        let other = start(&engine, workflow, "nobody's").await;
        assert_eq!(status(&other).await, Status::Waiting);
    }
    let mut waiting = Vec::new();
    for (workflow, order) in [("a", "z"), ("b", "Z"), ("c", "zz")] {
        waiting.push(start(&engine, workflow, order).await);
    }
    let event = emit(&engine, paid("z", 9)).await;
    for run in waiting {
        assert_eq!(run.result().await.unwrap(), json!(9));
    }
    assert_eq!(engine.event(event).await.unwrap().unwrap().sent, 3);
}

#[tokio::test]
async fn filter_without_correlation_checks_every_event() {
    let large = document(
        "large",
        "
steps:
  - { id: paid, type: wait.event, eventName: PAID, filter: event.cents > payload.least }
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
",
    );
    let engine = kit::start(|engine| engine.workflow(large)).await.unwrap();
    emit(&engine, paid("o", 10)).await;
    let begin = async |least: u32| {
        let run = engine.start(Start::new("large").input(&json!({"least": least}))).await.unwrap();
        engine.settle().await;
        run
    };
    let (early, waits) = (begin(5).await, begin(50).await);
    assert_eq!(early.result().await.unwrap(), json!(10));
    let small = emit(&engine, paid("o", 20)).await;
    let view = engine.event(small).await.unwrap().unwrap();
    assert_eq!((view.sent, view.filtered_out), (0, 1));
    assert_eq!(status(&waits).await, Status::Waiting);
    emit(&engine, paid("o", 60)).await;
    assert_eq!(waits.result().await.unwrap(), json!(60));
}

#[tokio::test]
async fn trigger_correlation_starts_one_run_per_key() {
    let text = "
trigger: { id: paid, type: event, eventName: PAID, correlation: event.order }
steps: [{ id: go, type: wait.signal, signal: GO }]
";
    let engine = kit::start(|engine| engine.workflow(document("case", text))).await.unwrap();
    for (number, order) in ["a", "b", "a", "a"].into_iter().enumerate() {
        emit(&engine, paid(order, number as u32).source("shop").id(number.to_string())).await;
    }
    assert_eq!(runs_of(&engine, "case").await, 2);
    let words: Vec<_> = log(&engine, "case").await.iter().map(|(_, fired)| fired.word()).collect();
    assert_eq!(words, ["deduplicated", "deduplicated", "started", "started"]);
}

#[tokio::test]
async fn event_type_sets_schema_and_correlation() {
    let text = "
steps:
  - { id: paid, type: wait.event, eventName: PAID, correlation: { run: payload.order } }
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
";
    let kind = EventType::new("PAID")
        .schema(
            json!({"type": "object", "required": ["order"], "properties": {"cents": {"type": "integer"}}}),
        )
        .correlation("event.order");
    let engine = kit::start(|engine| engine.workflow(document("own", text))).await.unwrap();
    engine.put_event_type(kind.clone()).await.unwrap();
    assert_eq!(engine.event_type("PAID").await.unwrap(), Some(kind));
    let wrong = engine.emit(Event::new("PAID").with(&json!({"cents": "many"}))).await.unwrap_err();
    let said = wrong.to_string();
    assert!(said.contains("event `PAID`") && said.contains("order") && said.contains("cents"), "{said}");
    let waits = start(&engine, "own", "o-1").await;
    emit(&engine, paid("o-2", 2)).await;
    assert_eq!(status(&waits).await, Status::Waiting);
    emit(&engine, paid("o-1", 1)).await;
    assert_eq!(waits.result().await.unwrap(), json!(1));
    let early = start(&engine, "own", "o-2").await;
    assert_eq!(early.result().await.unwrap(), json!(2));
    let given = start(&engine, "own", 7).await;
    emit(&engine, paid("o-3", 3).key(&7)).await;
    assert_eq!(given.result().await.unwrap(), json!(3), "a key in the event takes precedence");
    for bad in [
        EventType::new(""),
        EventType::new("X").schema(json!({"type": "objet"})),
        EventType::new("X").correlation("event.("),
    ] {
        let refused = engine.put_event_type(bad).await.unwrap_err();
        assert!(matches!(refused, EngineError::Invalid(_)), "{refused}");
    }
}

#[tokio::test]
async fn event_types_are_listed_and_removed() {
    let own = EventType::new("OWN").about("What this program knows itself.");
    let engine = kit::start(|engine| engine.event_type(own)).await.unwrap();
    for name in ["PAID", "LOST", "OWN"] {
        let kind = EventType::new(name).schema(json!({"type": "object"}));
        engine.put_event_type(kind).await.unwrap();
    }
    let first = engine.event_types(1, None).await.unwrap();
    let mut names: Vec<_> = first.items.iter().map(|kind| kind.name.to_string()).collect();
    let mut next = first.next;
    while let Some(cursor) = next {
        let page = engine.event_types(1, Some(cursor)).await.unwrap();
        names.extend(page.items.iter().map(|kind| kind.name.to_string()));
        next = page.next;
    }
    assert_eq!(names, ["OWN", "LOST", "PAID"]);
    assert!(first.items[0].about.contains("itself"), "a type registered by the process takes precedence");
    assert!(engine.emit(Event::new("PAID").with(&1)).await.is_err());
    assert!(engine.remove_event_type("PAID").await.unwrap());
    assert!(!engine.remove_event_type("PAID").await.unwrap());
    assert_eq!(engine.event_type("PAID").await.unwrap(), None);
    engine.emit(Event::new("PAID").with(&1)).await.unwrap();
    let others = engine.for_tenant(kit::other_tenant());
    assert_eq!(others.event_types(9, None).await.unwrap().items.len(), 1, "the program's type");
    assert!(!others.remove_event_type("LOST").await.unwrap());
}

#[tokio::test]
async fn step_emits_an_event_with_its_commit_or_not_at_all() {
    let text = "
steps:
  - { id: say, type: action.call, action: event.emit, input: { name: PAID, data: { order: o-1, cents: 5 } } }
  - { id: fail, type: action.call, action: event.emit, input: { name: '', data: 1 }, onError: continue }
  - { id: twice, type: action.call, action: event.emit, input: { name: PAID, id: e, data: { order: o-1 } } }
  - { id: again, type: action.call, action: event.emit, input: { name: PAID, id: e, data: { order: o-1 } } }
  - { id: done, type: control.return, value: { code: { $expr: vars.fail.error.code }, same: { $expr: vars.twice.event = vars.again.event } } }
";
    let build = |engine: stepwell::Builder| {
        let engine = engine.workflow(document("says", text));
        engine.workflow(order()).workflow(receipt("receipt", "true"))
    };
    let engine = kit::start(build).await.unwrap();
    let waits = start(&engine, "order", "o-1").await;
    let says = engine.start(Start::new("says").input(&json!({}))).await.unwrap();
    engine.settle().await;
    assert_eq!(says.result().await.unwrap(), json!({"code": "invalidInput", "same": true}));
    assert_eq!(waits.result().await.unwrap(), json!(5));
    assert_eq!(runs_of(&engine, "receipt").await, 2);
}

#[tokio::test]
async fn events_are_isolated_by_tenant() {
    let other = TenantScope::trusted(TenantId::new(uuid::Uuid::from_u128(9)));
    let build = |engine: stepwell::Builder| engine.workflow(order()).workflow(receipt("receipt", "true"));
    let engine = kit::start(build).await.unwrap();
    let run = start(&engine, "order", "o-1").await;
    let emitted = engine.for_tenant(other).emit(paid("o-1", 1).source("shop").id("1")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, runs_of(&engine, "receipt").await), (Status::Waiting, 0));
    assert_eq!(engine.event(emitted.event).await.unwrap(), None);
    assert!(engine.emit(paid("o-1", 2).source("shop").id("1")).await.unwrap().is_new);
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(2));
}

#[tokio::test]
async fn invalid_event_is_refused() {
    let engine = kit::start(|engine| engine).await.unwrap();
    let long = "x".repeat(257);
    for (event, said) in [
        (Event::new(""), "name"),
        (Event::new("X").id(""), "id"),
        (Event::new("X").source(long.as_str()), "source"),
        (Event::new("X").subject("a\nb"), "subject"),
        (Event::new("X").with(&"x".repeat(300_000)), "payload_bytes"),
    ] {
        let refused = engine.emit(event).await.unwrap_err().to_string();
        assert!(refused.contains(said), "{said}: {refused}");
    }
}

/// A signal with the event's name also resolves the wait, and an ended run receives nothing.
#[tokio::test]
async fn event_wait_can_be_resolved_by_a_signal() {
    let engine = kit::start(|engine| engine.workflow(order())).await.unwrap();
    let run = start(&engine, "order", "o-1").await;
    run.signal(Signal::new("PAID").with(&json!({"order": "o-1", "cents": 4}))).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(4));
    let event = emit(&engine, paid("o-1", 5)).await;
    assert_eq!(engine.event(event).await.unwrap().unwrap().sent, 0);
}

/// Regression: two events emitted at once had the same id, and one of them was lost.
#[tokio::test]
async fn events_emitted_concurrently_are_all_accepted() {
    let spec = stepwell::core::Spec::new("many")
        .step("a")
        .end("b")
        .transition(stepwell::core::spec::Transition::new("go", "a", "b").action("emit.many"));
    let many = async |cx: stepwell::Cx| {
        let emit = |cents: u32| cx.emit(paid("o", cents));
        let (a, b, c) = tokio::join!(emit(1), emit(2), emit(3));
        let all = std::collections::BTreeSet::from([a?, b?, c?]);
        Ok::<_, stepwell::ActionError>(all.len())
    };
    let build = |engine: stepwell::Builder| {
        let engine = engine.workflow(spec.build().unwrap()).action("emit.many", many);
        engine.workflow(receipt("receipt", "true"))
    };
    let engine = kit::start(build).await.unwrap();
    engine.start(Start::new("many")).await.unwrap();
    engine.settle().await;
    assert_eq!(runs_of(&engine, "receipt").await, 3);
}

/// The log contains only the fields that the filter has read, not the whole event.
#[tokio::test]
async fn trigger_log_omits_large_event_fields() {
    let engine =
        kit::start(|engine| engine.workflow(receipt("large", "$length(event.text) < 5"))).await.unwrap();
    let text = "x".repeat(100_000);
    emit(&engine, Event::new("PAID").with(&json!({"order": "o", "text": text})).source("s").id("1")).await;
    let seen = log(&engine, "large").await;
    let Fired::Filtered(filtered) = &seen[0].1 else { panic!("{:?}", seen[0]) };
    assert_eq!(filtered.values["text"], json!("(100002 bytes)"));
}

/// An event that expired before the wait opened does not match it, however late it is delivered.
#[tokio::test]
async fn event_that_expired_before_the_wait_opened_does_not_match() {
    let (store, clock) = ground().await;
    let build = |engine: stepwell::Builder| engine.workflow(order());
    let front = |engine: stepwell::Builder| build(engine).with(|options| options.max_runs = 0);
    let front = TestEngine::start_on(store.clone(), clock.clone(), front).await.unwrap();
    front.emit(paid("o-1", 1).ttl(Duration::from_secs(60))).await.unwrap();
    clock.set(BEGINS.plus_ms(59_000));
    let in_time = front.start(Start::new("order").input(&json!({"order": "o-1"}))).await.unwrap().id();
    clock.set(BEGINS.plus_ms(61_000));
    let late = front.start(Start::new("order").input(&json!({"order": "o-1"}))).await.unwrap().id();
    drop(front);
    clock.set(BEGINS.plus_ms(120_000));
    let worker = TestEngine::start_on(store, clock, build).await.unwrap();
    worker.settle().await;
    assert_eq!(worker.run(in_time).result().await.unwrap(), json!(1));
    assert_eq!(status(&worker.run(late)).await, Status::Waiting);
}
