//! Workflows written as documents, run by the engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::{Definition, WorkflowSource};
use stepwell::data::NewLink;
use stepwell::host::BoxFuture;
use stepwell::store::{DocumentQuery, Entity, HistoryQuery, Status, TenantScope};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Changes, Command, Cx, Operator, Secrets, Signal, Start};
use tokio::sync::Notify;

use crate::kit::{
    self, LEASE_MS, Watched, context, error_code, ground, history, places, settle, start_killable, status,
};

/// Reads a document as a workflow of this name.
fn written(name: &str, text: &str) -> Definition {
    let document = WorkflowSource::read(text, Some(name)).unwrap_or_else(|problems| panic!("{problems}"));
    document.definition().clone()
}

/// Copies the changes of a task to its linked tasks. Names its actions with `config.actionId`.
const MIRROR: &str = r#"
trigger: { type: event, eventName: PROJECT_TASK_UPDATED }
steps:
  - id: lookup
    type: action.call
    config: { actionId: links.lookup }
    input: { namespace: "project-task-mirror",
             from: { type: "project_task", id: { $expr: "payload.task_id" } },
             direction: "forward" }
  - id: fan-out
    type: control.forEach
    items: { $expr: "vars.lookup.matches" }
    itemVar: m
    body:
      - id: update
        type: action.call
        config: { actionId: projects.update_task }
        input: { task_id: { $expr: "m.id" },
                 name:    { $expr: "payload.changes.name" },
                 description: { $expr: "payload.changes.description" } }
"#;

#[tokio::test]
async fn task_mirror_runs_from_its_document() {
    let tasks: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
    let seen = tasks.clone();
    let update = move |_: Cx, input: Value| {
        let seen = seen.clone();
        async move {
            let id = input["task_id"].as_str().unwrap_or_default().to_owned();
            seen.lock().unwrap().insert(id, input);
            Ok::<_, ActionError>(json!({"updated": true}))
        }
    };
    let engine = kit::start(|engine| {
        engine.workflow(written("mirror", MIRROR)).action("projects.update_task", update)
    })
    .await
    .unwrap();
    let task = |id: &str| Entity::new("project_task", id);
    let mut links = Changes::new();
    for copy in ["b-1", "b-2"] {
        links = links.link("project-task-mirror", NewLink::new(task("a"), task(copy)));
    }
    engine.write(links).await.unwrap();
    let payload = json!({"task_id": "a", "changes": {"name": "Dig"}});
    let run = engine.start(Start::new("mirror").input(&payload)).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let seen = std::mem::take(&mut *tasks.lock().unwrap());
    // Fields missing in the event are left out, not set to null.
    let expected = |id: &str| json!({"task_id": id, "name": "Dig"});
    assert_eq!(seen, BTreeMap::from(["b-1", "b-2"].map(|id| (id.to_owned(), expected(id)))));
    let nobody =
        engine.start(Start::new("mirror").input(&json!({"task_id": "z", "changes": {}}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&nobody).await, tasks.lock().unwrap().len()), (Status::Completed, 0));
}

const LOOP: &str = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.items }
    body:
      - id: count
        type: action.call
        action: store.increment
        input: { namespace: counts, key: all }
      - { id: gate, type: wait.signal, signal: GO, condition: { $expr: 'item = \"stop\"' } }
  - { id: done, type: control.return, value: { $expr: vars.count.value } }
";

fn items(count: usize, stop: Option<usize>) -> Value {
    let item = |at: usize| if Some(at) == stop { "stop".to_owned() } else { format!("item number {at}") };
    json!({"items": (0..count).map(item).collect::<Vec<_>>()})
}

#[tokio::test]
async fn loop_list_is_stored_once_and_each_item_runs_once() {
    let (store, clock) = ground().await;
    let (engine, tasks) =
        start_killable(store.clone(), &clock, |engine| engine.workflow(written("loop", LOOP))).await;
    let run = engine.start(Start::new("loop").input(&items(200, Some(100)))).await.unwrap();
    settle(&[&engine]).await;
    assert_eq!(places(&run).await, ["gate"]);
    let list =
        |at| DocumentQuery { run: run.id(), at, key: None, kind: None, tag: None, limit: 100, cursor: None };
    let kept = store.documents(engine.scope(), list(None)).await.unwrap().items;
    assert_eq!(kept.len(), 1, "the list is kept once");
    // The process crashes, and another one continues from the last checkpoint.
    let id = run.id();
    tasks.kill().await;
    drop(engine);
    let (engine, _tasks) =
        start_killable(store.clone(), &clock, |engine| engine.workflow(written("loop", LOOP))).await;
    engine.advance(Duration::from_millis(2 * LEASE_MS)).await;
    engine.signal(id, Signal::new("GO")).await.unwrap();
    settle(&[&engine]).await;
    let run = engine.run(id);
    assert_eq!(run.result().await.unwrap(), json!(200));
    let value = engine.kv("counts").get("all").await.unwrap().unwrap().value;
    assert_eq!(value, json!(200));
}

#[tokio::test]
async fn fork_inside_a_loop_continues_with_the_rest_of_its_list() {
    let engine = kit::start(|engine| engine.workflow(written("loop", LOOP))).await.unwrap();
    let run = engine.start(Start::new("loop").input(&items(120, Some(60)))).await.unwrap();
    engine.settle().await;
    let version = kit::version(&run).await;
    let forked = engine.fork(run.id(), version, &Operator::default()).await.unwrap();
    for one in [&run, &forked] {
        engine.signal(one.id(), Signal::new("GO")).await.unwrap();
    }
    engine.settle().await;
    assert_eq!(engine.kv("counts").get("all").await.unwrap().unwrap().value, json!(120 + 59));
    assert_eq!(status(&forked).await, Status::Completed);
}

#[tokio::test]
async fn parallel_items_keep_their_results_in_order() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.keys }
    parallel: 4
    saveAs: results
    result: { $expr: vars.count.value }
    body:
      - { id: count, type: action.call, action: store.increment, input: { namespace: n, key: { $expr: item } } }
      - { id: again, type: action.call, action: store.increment, input: { namespace: n, key: total, by: { $expr: vars.count.value } } }
  - { id: done, type: control.return, value: { $expr: vars.results } }
";
    let engine = kit::start(|engine| engine.workflow(written("each", text))).await.unwrap();
    let keys = json!({"keys": ["a", "b", "a", "c", "a", "b"]});
    let run = engine.start(Start::new("each").input(&keys)).await.unwrap();
    engine.settle().await;
    let result = run.result().await.unwrap();
    let mut counts: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (key, value) in ["a", "b", "a", "c", "a", "b"].iter().zip(result.as_array().unwrap()) {
        counts.entry(key).or_default().push(value.as_i64().unwrap());
    }
    counts.values_mut().for_each(|values| values.sort_unstable());
    assert_eq!(counts, BTreeMap::from([("a", vec![1, 2, 3]), ("b", vec![1, 2]), ("c", vec![1])]));
    assert_eq!(engine.kv("n").get("total").await.unwrap().unwrap().value, json!(1 + 2 + 3 + 1 + 2 + 1));
}

#[tokio::test]
async fn workflow_calls_and_starts_other_workflows() {
    let child = "
steps:
  - { id: fail, type: control.fail, condition: { $expr: payload.bad ?? false }, code: broken, message: no }
  - { id: done, type: control.return, value: { $expr: payload.n * 2 } }
";
    let parent = "
steps:
  - { id: good, type: workflow.call, workflow: child, input: { n: 4 } }
  - { id: bad, type: workflow.call, workflow: child, input: { bad: true, n: 1 }, onError: continue }
  - { id: other, type: workflow.start, workflow: child, input: { n: 5 }, key: once }
  - { id: done, type: control.return, value: { good: { $expr: vars.good }, bad: { $expr: vars.bad.error.code }, other: { $expr: vars.other.run } } }
";
    let build = |engine: stepwell::engine::Builder| {
        engine.workflow(written("child", child)).workflow(written("parent", parent))
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("parent")).await.unwrap();
    engine.settle().await;
    let result = run.result().await.unwrap();
    assert_eq!((&result["good"], &result["bad"]), (&json!(8), &json!("childrenFailed")));
    let other = engine.run(result["other"].as_str().unwrap().parse().unwrap());
    assert_eq!(other.result().await.unwrap(), json!(10));
}

#[tokio::test]
async fn nested_loop_returns_its_list() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2]
    saveAs: outer
    body:
      - { id: inner, type: control.forEach, items: [a, b], itemVar: letter, saveAs: inner, body: [{ id: t, type: action.call, action: transform, input: { $expr: '$string(item) & letter' } }] }
  - id: both
    type: control.forEach
    items: [1, 2]
    saveAs: both
    body:
      - id: fan
        type: control.parallel
        saveAs: fan
        branches:
          x: [{ id: x1, type: action.call, action: transform, input: x }]
          y: [{ id: y1, type: control.forEach, items: [7], saveAs: seven, body: [{ id: y2, type: action.call, action: transform, input: { $expr: item } }] }]
  - { id: done, type: control.return, value: { outer: { $expr: vars.outer }, both: { $expr: vars.both } } }
";
    let engine = kit::start(|engine| engine.workflow(written("nested", text))).await.unwrap();
    let run = engine.start(Start::new("nested")).await.unwrap();
    engine.settle().await;
    let fan = json!(["x", [7]]);
    let outer = json!([["1a", "1b"], ["2a", "2b"]]);
    assert_eq!(run.result().await.unwrap(), json!({"outer": outer, "both": [fan, fan]}));
}

/// Regression: the outer loop returned null for each round.
#[tokio::test]
async fn last_step_of_any_kind_returns_its_list_to_the_loop() {
    let inner = "items: [a, b], itemVar: letter, saveAs: inner, body: [{ id: t, type: action.call, action: transform, input: { $expr: '$string(item) & letter' } }]";
    let count = "body: [{ id: more, type: vars.set, values: { n: { $expr: 'vars.n + 1' } } }]";
    let (first, second) = (json!(["1a", "1b"]), json!(["2a", "2b"]));
    let both = json!([first, second]);
    let cases = [
        (
            format!("{{ id: inner, type: control.while, condition: 'vars.n < item * 2', saveAs: inner, {count} }}"),
            json!([[1, 2], [3, 4]]),
        ),
        (format!("{{ id: inner, type: control.forEach, parallel: 2, {inner} }}"), both.clone()),
        (
            "{ id: inner, type: control.forEach, items: [], saveAs: inner, body: [{ id: t, type: action.call, action: transform, input: 1 }] }".to_owned(),
            json!([[], []]),
        ),
        (
            format!("{{ id: pick, type: control.if, condition: 'item = 1', then: [{{ id: inner, type: control.forEach, {inner} }}], else: [{{ id: other, type: control.forEach, {} }}] }}", inner.replace("id: t,", "id: u,")),
            both.clone(),
        ),
        (
            format!("{{ id: careful, type: control.try, body: [{{ id: inner, type: control.forEach, {inner} }}], catch: [] }}"),
            both,
        ),
    ];
    for (number, (last, expected)) in cases.into_iter().enumerate() {
        let text = format!(
            "steps:
  - {{ id: zero, type: vars.set, values: {{ n: 0 }} }}
  - {{ id: outer, type: control.forEach, items: [1, 2], saveAs: outer, body: [{last}] }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.outer }} }}
"
        );
        let name = format!("nested{number}");
        let engine = kit::start(|engine| engine.workflow(written(&name, &text))).await.unwrap();
        let run = engine.start(Start::new(name.as_str())).await.unwrap();
        engine.settle().await;
        assert_eq!(run.result().await.unwrap(), expected, "{last}");
    }
}

/// Regression: an action next in line for a store connection was not polled while its run was read or committed, which
/// also waited for a connection. Sixteen such runs stopped the whole process.
#[tokio::test]
async fn action_continues_while_its_run_waits_for_the_store() {
    let text = "
steps:
  - id: fan
    type: control.parallel
    branches:
      x: [{ id: x1, type: action.call, action: first }]
      y: [{ id: y1, type: action.call, action: second }]
";
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let go: [Arc<Notify>; 3] = std::array::from_fn(|_| Arc::new(Notify::new()));
    let [first, second, passed] = go.clone();
    let build = |engine: stepwell::engine::Builder| {
        let waits = move |_: Cx| {
            let first = first.clone();
            async move {
                first.notified().await;
                Ok::<_, ActionError>(())
            }
        };
        let passes = move |_: Cx| {
            let (second, passed) = (second.clone(), passed.clone());
            async move {
                second.notified().await;
                passed.notify_one();
                Ok::<_, ActionError>(())
            }
        };
        engine.workflow(written("fan", text)).action("first", waits).action("second", passes)
    };
    let engine = TestEngine::start_on(store.clone(), clock, build).await.unwrap();
    let run = engine.start(Start::new("fan")).await.unwrap();
    engine.settle().await;
    let [first, second, passed] = go;
    store.first(async move {
        second.notify_one();
        passed.notified().await;
    });
    first.notify_one();
    let result = tokio::time::timeout(Duration::from_secs(60), run.result()).await;
    assert!(
        matches!(result, Ok(Ok(_))),
        "the second action was blocked while the result of the first was written"
    );
}

#[tokio::test]
async fn large_value_is_copied_passed_on_and_returned() {
    let text = "
steps:
  - { id: keep, type: vars.set, values: { copy: { $expr: payload.big } } }
  - { id: call, type: workflow.call, workflow: back, input: { $expr: vars.copy } }
  - { id: done, type: control.return, value: { $expr: '{ \"a\": vars.call, \"b\": payload.big }' } }
";
    let back = "steps: [{ id: done, type: control.return, value: { $expr: payload } }]";
    let engine = kit::start(|engine| engine.workflow(written("large", text)).workflow(written("back", back)));
    let engine = engine.await.unwrap();
    let big: Vec<_> = (0..9_000).map(|number| json!({"n": number, "x": "0123456789"})).collect();
    let run = engine.start(Start::new("large").input(&json!({"big": big}))).await.unwrap();
    engine.settle().await;
    let result = run.result().await.unwrap();
    assert!(result["a"] == json!(big) && result["b"] == json!(big));
}

#[tokio::test]
async fn null_input_differs_from_missing_input() {
    let back = "steps: [{ id: done, type: control.return, value: { given: { $expr: payload } } }]";
    let parent = "
steps:
  - { id: null1, type: workflow.call, workflow: back, input: null }
  - { id: none, type: workflow.call, workflow: back }
  - { id: done, type: control.return, value: { $expr: '[vars.null1.given, vars.none.given]' } }
";
    let build = |engine: stepwell::engine::Builder| {
        engine.workflow(written("back", back)).workflow(written("parent", parent))
    };
    let engine = kit::start(build).await.unwrap();
    for (start, given) in [
        (Start::new("back"), json!({"given": {}})),
        (Start::new("back").input(&json!(null)), json!({"given": null})),
        (Start::new("back").input(&json!([1])), json!({"given": [1]})),
        (Start::new("parent"), json!([null, {}])),
    ] {
        let run = engine.start(start).await.unwrap();
        engine.settle().await;
        assert_eq!(run.result().await.unwrap(), given);
    }
}

/// Secrets of these tests.
struct Known;

impl Secrets for Known {
    fn secret(&self, _: TenantScope, name: &str) -> BoxFuture<Result<Option<String>, String>> {
        let found = (name == "KEY").then(|| "hunter2-hunter2".to_owned());
        Box::pin(async move { Ok(found) })
    }
}

#[tokio::test]
async fn secret_reaches_its_action_and_is_never_stored() {
    let text = "
steps:
  - { id: call, type: action.call, action: outside, input: { key: { $secret: KEY }, say: { $expr: payload.say } } }
  - { id: fail, type: action.call, action: angry, input: { key: { $secret: KEY } }, onError: continue }
  - { id: none, type: action.call, action: outside, input: { key: { $secret: OTHER } }, onError: continue }
  - { id: panic, type: action.call, action: clumsy, input: { key: { $secret: KEY } }, onError: continue }
  - { id: name, type: action.call, action: naming, input: { key: { $secret: KEY } } }
";
    let heard: Arc<Mutex<Vec<Value>>> = Arc::default();
    let hears = heard.clone();
    let outside = move |_: Cx, input: Value| {
        hears.lock().unwrap().push(input.clone());
        async move { Ok::<_, ActionError>(input) }
    };
    let angry = |_: Cx, input: Value| async move {
        Err::<Value, _>(ActionError::new("angry", format!("no such key: {}", input["key"])).non_retryable())
    };
    let clumsy = |_: Cx, input: Value| async move {
        if input["key"].is_string() {
            panic!("with {}", input["key"]);
        }
        Ok::<Value, ActionError>(input)
    };
    let naming = |_: Cx, input: Value| async move {
        let key = input["key"].as_str().unwrap_or_default().to_owned();
        Ok::<_, ActionError>(BTreeMap::from([(key, 1)]))
    };
    let engine = kit::start(|engine| {
        engine
            .workflow(written("secret", text))
            .action("outside", outside)
            .action("angry", angry)
            .action("clumsy", clumsy)
            .action("naming", naming)
            .secret_fields("outside", ["/key"])
            .secret_fields("angry", [""])
            .secret_fields("clumsy", ["/other", "/key"])
            .secret_fields("naming", ["/key"])
            .secrets(Known)
    })
    .await
    .unwrap();
    let run = engine.start(Start::new("secret").input(&json!({"say": "hi"}))).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(*heard.lock().unwrap(), [json!({"key": "hunter2-hunter2", "say": "hi"})]);
    let vars = context(&run).await["vars"].clone();
    assert_eq!(vars["call"], json!({"key": "***", "say": "hi"}));
    assert_eq!(vars["fail"]["error"]["message"], json!("no such key: \"***\""));
    assert_eq!(vars["panic"]["error"]["message"], json!("the action panicked: with \"***\""));
    assert_eq!(vars["name"], json!({"***": 1}));
    assert_eq!(vars["none"]["error"]["code"], json!("secret"));
    let misplaced = [
        ("store.set", "{ namespace: n, key: k, value: { $secret: KEY } }", "`store.set` takes no secrets"),
        ("event.emit", "{ name: PAID, data: { key: { $secret: KEY } } }", "`event.emit` takes no secrets"),
        ("log", "{ message: { $secret: KEY } }", "`log` takes no secrets"),
        ("outside", "{ say: { $secret: KEY } }", "`outside` takes secrets in /key, not in `/say`"),
    ];
    for (action, input, why) in misplaced {
        let text = format!("steps: [{{ id: keep, type: action.call, action: {action}, input: {input} }}]");
        let refused = engine.register(written("misplaced", &text)).unwrap_err().to_string();
        assert!(refused.contains(why), "{action}: {refused}");
    }
    let query = HistoryQuery { run: run.id(), from: 0, with_state: true, limit: 100 };
    for row in engine.store().history(engine.scope(), query).await.unwrap().items {
        let kept = [row.state.as_deref().unwrap_or_default(), &row.entry[..]].concat();
        assert!(!String::from_utf8_lossy(&kept).contains("hunter2"));
    }
    assert!(!history(&engine, run.id()).await.is_empty());
}

#[tokio::test]
async fn start_input_must_match_the_schema() {
    let text = "
input: { type: object, required: [n], properties: { n: { type: integer } } }
steps: [{ id: done, type: control.return, value: { $expr: payload.n } }]
";
    let engine = kit::start(|engine| engine.workflow(written("typed", text))).await.unwrap();
    let refused = engine.start(Start::new("typed").input(&json!({"n": "one"}))).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("input")));
    let run = engine.start(Start::new("typed").input(&json!({"n": 1}))).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(1));
}

#[tokio::test]
async fn expression_error_stops_the_run_and_names_its_step() {
    let text = "steps: [{ id: sum, type: vars.set, values: { x: { $expr: 1 + payload.text } } }]";
    let engine = kit::start(|engine| engine.workflow(written("broken", text))).await.unwrap();
    let run = engine.start(Start::new("broken").input(&json!({"text": "no"}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("expression")));
    let view = run.view().await.unwrap();
    let error = view.ledger.stopped.unwrap().error.message;
    assert!(error.contains("`sum`") && error.contains("payload.text"), "{error}");
}

/// A completed step keeps its result when the next step cannot start, so that it does not run again.
#[tokio::test]
async fn step_that_cannot_start_keeps_the_previous_result() {
    let text = "
steps:
  - { id: pay, type: action.call, action: pay, onError: continue }
  - { id: nap, type: wait.sleep, for: { $expr: payload.pause } }
  - { id: done, type: control.return, value: { $expr: vars.pay } }
";
    let paid = Arc::new(Mutex::new(0));
    let count = paid.clone();
    let pay = move |_: Cx, _: Value| {
        let count = count.clone();
        async move {
            *count.lock().unwrap() += 1;
            Ok::<_, ActionError>("paid")
        }
    };
    let engine = kit::start(|engine| engine.workflow(written("pay", text)).action("pay", pay)).await.unwrap();
    let run = engine.start(Start::new("pay").input(&json!({"pause": "soon"}))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Failed, vec!["nap".into()]));
    assert_eq!(error_code(&run).await.as_deref(), Some("expression"));
    assert_eq!(context(&run).await["vars"]["pay"], json!("paid"));
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Failed, "the step cannot start yet");
    let fields = json!({"payload": {"pause": "1s"}});
    engine.operate(run.id(), Command::Patch { fields }, &Operator::default()).await.unwrap();
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    engine.settle().await;
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((run.result().await.unwrap(), *paid.lock().unwrap()), (json!("paid"), 1));
}

#[tokio::test]
async fn requested_action_version_must_be_registered() {
    let text = |version: u32| {
        format!("steps: [{{ id: a, type: action.call, config: {{ actionId: greet, version: {version} }} }}]")
    };
    let greet = |_: Cx, _: BTreeMap<String, String>| async { Ok::<_, ActionError>("hello".to_owned()) };
    let start = async |version: u32| {
        kit::start(|engine| {
            let engine =
                engine.described("greet", "Greets.", greet).describe("greet", |info| info.version(2));
            engine.workflow(written("greeting", &text(version)))
        })
        .await
    };
    let engine = start(2).await.unwrap();
    let run = engine.start(Start::new("greeting")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let refused = start(3).await.err().expect("version 3 is not registered").to_string();
    assert!(refused.contains("version 3 is requested, but version 2 is registered"), "{refused}");
}

/// The result of an operation is known at its commit. A place entered by that commit still reads it.
#[tokio::test]
async fn next_step_sees_the_result_of_an_operation() {
    let text = "
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: n, key: k } }
  - { id: ask, type: human.task, title: { $expr: '\"Number \" & (vars.count.value + 0)' } }
  - id: try
    type: control.try
    body:
      - { id: again, type: action.call, action: store.increment, input: { namespace: n, key: k } }
      - { id: done, type: control.return, value: { $expr: vars.again.value * 10 } }
    catch: [{ id: wrong, type: control.return, value: wrong }]
";
    let engine = kit::start(|engine| engine.workflow(written("counted", text))).await.unwrap();
    let run = engine.start(Start::new("counted")).await.unwrap();
    engine.settle().await;
    let asked = run.view().await.unwrap().snapshot.activations()[0].locals["prompt"].clone();
    assert_eq!(asked, json!({"title": "Number 1"}));
    run.signal(Signal::new("ask")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.result().await.unwrap(), json!(20));
}
