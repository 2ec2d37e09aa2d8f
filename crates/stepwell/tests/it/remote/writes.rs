//! Changes that a worker commits with the result of its task.

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Spec};
use stepwell::data::Changes;
use stepwell::remote::{MAX_WRITES, TaskWrite};
use stepwell::store::{DocumentQuery, Status};
use stepwell::testing::TestEngine;
use stepwell::{Command, Engine, EngineError, Operator, Run, Task};

use super::{begun, office, one};
use crate::kit::{children_of, context, error_code, soon, status};
use crate::world::{desk, job, saved};

/// A run whose step `work` is done by workers, who also report the field `worked` of its context.
fn worked(more: impl FnOnce(Transition) -> Transition) -> Definition {
    let work = more(Transition::new("work", "todo", "kept").action_with(saved("work", "worked")));
    let spec = Spec::new("worked").step("todo").wait("kept", "GO").end("done").signal("GO").transition(work);
    spec.auto("end", "kept", "done").initial("todo").build().unwrap()
}

/// Completes a task with changes, and returns the error code of the attempt, if it failed.
async fn completed(engine: &TestEngine, task: &Task, writes: Vec<TaskWrite>) -> Option<String> {
    let done = engine.tasks().complete_with(task.id, task.fence, Value::Null, writes).await.unwrap();
    engine.settle().await;
    done.value.error.map(|error| error.code)
}

fn set(key: &str, value: &Value) -> TaskWrite {
    TaskWrite::new("store.set", json!({"namespace": "n", "key": key, "value": value}))
}

async fn stored(engine: &Engine, key: &str) -> Option<Value> {
    engine.kv("n").get(key).await.unwrap().map(|entry| entry.value)
}

/// One change of every kind.
fn every_kind(desk: &Run) -> Vec<TaskWrite> {
    let slot = |scope: &str, more: Value| {
        let mut input = json!({"scope": scope, "key": "s"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    let ends = json!({"namespace": "n", "from": {"type": "a", "id": "1"}, "to": {"type": "b", "id": "2"}});
    vec![
        set("k", &json!("v")),
        TaskWrite::new("store.increment", json!({"namespace": "n", "key": "count", "by": 2}))
            .save_as("count"),
        TaskWrite::new("links.upsert", ends).save_as("link"),
        TaskWrite::new("state.set", slot("session", json!({"value": 1}))),
        TaskWrite::new("state.append", slot("execution", json!({"item": 2}))).save_as("appended/it"),
        TaskWrite::new("state.update", slot("workflow", json!({"expression": "value + 3", "initial": 0}))),
        TaskWrite::new("document.put", json!({"key": "d", "kind": "note", "body": 4})),
        TaskWrite::new("event.emit", json!({"name": "HAPPENED", "data": {}})),
        TaskWrite::new("workflow.signal", json!({"run": desk.id(), "signal": "GO", "payload": {}})),
        TaskWrite::new("workflow.start", json!({"workflow": "job", "input": {}})).save_as("started"),
    ]
}

#[tokio::test]
async fn changes_of_a_worker_are_committed_with_its_result() {
    let engine = office(worked(|work| work)).await;
    engine.register(desk(|work| work)).unwrap();
    engine.register(job(|work| work)).unwrap();
    let desk = begun(&engine, "desk").await;
    let run = begun(&engine, "worked").await;
    let task = one(&engine).await;
    assert_eq!(stored(&engine, "k").await, None);
    assert_eq!(completed(&engine, &task, every_kind(&desk)).await, None);

    assert_eq!(
        (stored(&engine, "k").await, stored(&engine, "count").await),
        (Some(json!("v")), Some(json!(2)))
    );
    let links = engine.links("n").list(Default::default(), None, None).await.unwrap().items;
    assert_eq!(links.len(), 1);
    let view = run.view().await.unwrap();
    assert_eq!(view.snapshot.session()["s"], 1);
    let state = engine.state();
    assert_eq!(state.execution::<Value>(run.id(), "s").get().await.unwrap(), Some(json!([2])));
    assert_eq!(state.workflow::<Value>("worked", "s").get().await.unwrap(), Some(json!(3)));
    let all =
        DocumentQuery { run: run.id(), at: None, key: None, kind: None, tag: None, limit: 9, cursor: None };
    assert_eq!(engine.store().documents(engine.scope(), all).await.unwrap().items[0].key, "d");
    let queued = engine.tasks().list(None, 10, None).await.unwrap().items;
    assert_eq!(queued.len(), 2, "the signalled run and the started one have tasks: {queued:?}");
    let output = context(&run).await["worked"].clone();
    assert_eq!(output["count"], json!({"value": 2, "revision": 1}));
    assert_eq!(output["link"], json!({"link_id": links[0].id.to_string(), "created": true}));
    assert_eq!(output["appended/it"], json!({"revision": 1, "created": true}));
    assert!(queued.iter().any(|task| json!(task.id.run) == output["started"]["run"]), "{output}");
}

#[tokio::test]
async fn a_repeated_completion_makes_its_changes_once() {
    let engine = office(job(|work| work)).await;
    begun(&engine, "job").await;
    let task = one(&engine).await;
    let add = TaskWrite::new("store.increment", json!({"namespace": "n", "key": "count"}));
    for is_new in [true, false, false] {
        let writes = vec![add.clone()];
        let done = engine.tasks().complete_with(task.id, task.fence, Value::Null, writes).await.unwrap();
        assert_eq!((done.is_new, done.value.error), (is_new, None));
    }
    assert_eq!(stored(&engine, "count").await, Some(json!(1)));
}

#[tokio::test]
async fn a_refused_change_fails_the_attempt_and_none_is_made() {
    let retry = Retry { attempts: 3, ..Retry::default() };
    let engine = office(job(|work| work.retry(retry))).await;
    let run = begun(&engine, "job").await;
    engine.write(Changes::new().set("n", "old", 1)).await.unwrap();
    let stale = json!({"namespace": "n", "key": "old", "value": 2, "if_revision": 7});
    let bad = [
        (TaskWrite::new("store.set", stale), "conflict"),
        (TaskWrite::new("store.set", json!({"namespace": "n"})), "invalidInput"),
        (TaskWrite::new("document.put", json!({"key": "", "kind": "note", "body": 1})), "invalid"),
    ];
    for (number, (write, code)) in bad.into_iter().enumerate() {
        let task = one(&engine).await;
        let done = engine.tasks();
        let writes = vec![set("k", &json!(number)), write.clone()];
        let done = done.complete_with(task.id, task.fence, Value::Null, writes).await.unwrap();
        let error = done.value.error.unwrap();
        assert_eq!((error.code.as_str(), stored(&engine, "k").await), (code, None), "{write:?}: {error}");
        if error.is_final {
            engine.operate(run.id(), Command::Retry, &Operator::named("ann")).await.unwrap();
        }
        engine.advance(60 * super::SECOND).await;
    }
    assert_eq!(stored(&engine, "old").await, Some(json!(1)));
}

#[tokio::test]
async fn a_completion_with_impossible_changes_is_refused() {
    let engine = office(job(|work| work)).await;
    let run = begun(&engine, "job").await;
    let task = one(&engine).await;
    let secret = json!({"namespace": "n", "key": "k", "value": {"$secret": "TOKEN"}});
    let refused = [
        (vec![TaskWrite::new("store.sett", json!({}))], "cannot stage the action `store.sett`; it can stage"),
        (vec![TaskWrite::new("store.get", json!({}))], "`store.set`"),
        (vec![TaskWrite::new("log", json!({}))], "cannot stage the action `log`"),
        (
            vec![set("k", &json!(1)), TaskWrite::new("store.set", secret)],
            "write 2: `/value` names the secret",
        ),
        (vec![set("k", &json!(1)); MAX_WRITES + 1], "at most 100"),
    ];
    for (writes, part) in refused {
        let error = engine.tasks().complete_with(task.id, task.fence, Value::Null, writes).await.unwrap_err();
        assert!(matches!(error, EngineError::Invalid(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let saved = vec![set("k", &json!(1)).save_as("set")];
    let error = engine.tasks().complete_with(task.id, task.fence, json!("text"), saved).await.unwrap_err();
    assert!(error.to_string().contains("needs an output that is an object"), "{error}");
    assert_eq!(stored(&engine, "k").await, None);
    assert_eq!(completed(&engine, &task, vec![set("k", &json!(1))]).await, None, "the lease is still valid");
    assert_eq!((status(&run).await, stored(&engine, "k").await), (Status::Completed, Some(json!(1))));
}

#[tokio::test]
async fn a_late_completion_makes_no_changes() {
    let engine = office(job(|work| work)).await;
    begun(&engine, "job").await;
    let late = one(&engine).await;
    engine.advance(31 * super::SECOND).await;
    let current = one(&engine).await;
    let writes = vec![set("k", &json!("late"))];
    let error = engine.tasks().complete_with(late.id, late.fence, Value::Null, writes).await.unwrap_err();
    assert!(matches!(error, EngineError::TaskGone { .. }), "{error}");
    assert_eq!(completed(&engine, &current, vec![set("k", &json!("now"))]).await, None);
    assert_eq!(stored(&engine, "k").await, Some(json!("now")));
}

#[tokio::test]
async fn updates_of_concurrent_workers_are_all_applied() {
    let engine = office(worked(|work| work)).await;
    for _ in 0..8 {
        begun(&engine, "worked").await;
    }
    let tasks = engine.tasks().poll(super::asks().max(10)).await.unwrap();
    assert_eq!(tasks.len(), 8);
    let update = json!({"scope": "workflow", "key": "n", "expression": "value + 1", "initial": 0,
        "max_retries": 50});
    let both = vec![
        TaskWrite::new("state.update", update),
        TaskWrite::new("store.increment", json!({"namespace": "n", "key": "count"})).save_as("count"),
    ];
    let all = tasks.iter().map(|task| completed(&engine, task, both.clone()));
    let ticks = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            engine.clock().set(engine.now().plus_ms(20));
        }
    };
    let all = futures_util::future::join_all(all);
    let errors = soon(async {
        tokio::select! { errors = all => errors, () = ticks => unreachable!() }
    })
    .await;
    assert_eq!(errors, vec![None; 8]);
    assert_eq!(engine.state().workflow::<i64>("worked", "n").get().await.unwrap(), Some(8));
    assert_eq!(stored(&engine, "count").await, Some(json!(8)));
}

#[tokio::test]
async fn a_worker_can_start_the_child_that_its_run_waits_for() {
    let below = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let parent = Spec::new("parent")
        .step("todo")
        .place("below", Place::Wait(below))
        .end("done")
        .initial("todo")
        .transition(Transition::new("work", "todo", "below").action("work"))
        .auto("end", "below", "done");
    let engine = office(parent.build().unwrap()).await;
    engine.register(job(|work| work)).unwrap();
    let run = begun(&engine, "parent").await;
    let task = one(&engine).await;
    let call = TaskWrite::new("workflow.call", json!({"workflow": "job", "input": {}}));
    assert_eq!(completed(&engine, &task, vec![call]).await, None);
    let children = children_of(&engine, run.id()).await;
    assert_eq!((children.len(), status(&run).await), (1, Status::Waiting));
    let task = one(&engine).await;
    assert_eq!(completed(&engine, &task, Vec::new()).await, None);
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
}

#[tokio::test]
async fn keyed_changes_of_two_workers_are_made_once() {
    let engine = office(worked(|work| work)).await;
    let add = json!({"namespace": "n", "key": "count", "idempotency_key": "once"});
    for expected in [json!({"value": 1, "revision": 1}), json!({"value": 1, "revision": 1})] {
        let run = begun(&engine, "worked").await;
        let task = one(&engine).await;
        let add = TaskWrite::new("store.increment", add.clone()).save_as("count");
        assert_eq!(completed(&engine, &task, vec![add]).await, None);
        assert_eq!(context(&run).await["worked"]["count"], expected);
    }
    assert_eq!(stored(&engine, "count").await, Some(json!(1)));
}

/// C7: the step after a result that is known at the commit starts at once, not when the lease would have ended.
#[tokio::test]
async fn the_next_step_starts_at_once_after_a_staged_result() {
    let work = Transition::new("work", "todo", "next").action("work").save_as("worked");
    let copy = Transition::new("copy", "next", "done").action("transform");
    let copy = copy
        .input(json!({"input": {"$expr": "context.worked"}, "expression": "count.value"}))
        .save_as("copy");
    let spec = Spec::new("worked").step("todo").step("next").transition(work).transition(copy);
    let engine =
        office(spec.end_with("done", json!({"$expr": "context.copy"})).initial("todo").build().unwrap())
            .await;
    let run = begun(&engine, "worked").await;
    let task = one(&engine).await;
    let count = TaskWrite::new("store.increment", json!({"namespace": "n", "key": "count"})).save_as("count");
    assert_eq!(completed(&engine, &task, vec![count]).await, None);
    assert_eq!(status(&run).await, Status::Completed);
}
