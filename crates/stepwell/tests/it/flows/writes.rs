//! Writes of the steps between two pauses: each step sees the earlier ones, and all of them are one commit or none.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::cx::Once;
use stepwell::data::{Changes, Increment};
use stepwell::engine::Builder;
use stepwell::flow::{FlowError, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

use super::{add, as_time_passes, begun, flows, go, handles, nothing, sum};
use crate::kit::{self, Watched, ground, runs_of, soon};

/// A workflow that runs all of these actions in order on `GO`, and then waits for `GO` again.
fn row(name: &str, actions: Vec<ActionSpec>) -> Definition {
    let last = actions.len();
    let mut spec = Spec::new(name).signal("GO").end_with("done", json!({"$expr": "context"})).initial("p0");
    for (at, action) in actions.into_iter().enumerate() {
        let mut step =
            Transition::new(format!("t{at}"), format!("p{at}"), format!("p{}", at + 1)).action_with(action);
        if at == 0 {
            step = step.on_signal("GO");
        }
        spec = spec.step(format!("p{at}")).transition(step);
    }
    spec.step(format!("p{last}")).on_signal("end", format!("p{last}"), "GO", "done").build().unwrap()
}

fn call(name: &str, input: Value, field: &str) -> ActionSpec {
    ActionSpec { name: name.into(), input, save_as: Some(field.to_owned()), version: None }
}

fn plain(name: &str) -> ActionSpec {
    ActionSpec { name: name.into(), input: Value::Null, save_as: None, version: None }
}

const WHERE: [&str; 2] = ["sealed", "handle"];

/// E1, E6: later steps read staged writes of earlier ones, results included, and all of it is one commit.
#[tokio::test]
async fn steps_read_the_writes_of_earlier_steps() {
    let key = json!({"namespace": "test", "key": "sum"});
    let more = |by: i64| json!({"namespace": "test", "key": "sum", "by": by});
    let actions = vec![
        call("store.increment", more(1), "a"),
        call("store.get", key.clone(), "b"),
        call("store.increment", more(10), "c"),
        plain("add"),
        call("store.get", key.clone(), "d"),
        call(
            "store.set",
            json!({"namespace": "test", "key": "copy", "value": {"$expr": "context.d.value"}}),
            "e",
        ),
        call("store.delete", key.clone(), "f"),
        call("store.get", key, "g"),
    ];
    let workflow = row("sums", actions);
    for strategy in WHERE {
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let build = |builder: Builder| builder.workflow(workflow.clone()).action("add", add);
        let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
        engine.kv("test").set("sum", 100).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "sums").await;
        watched.commits();
        let answer = go(&flows, &token).await.unwrap();
        let writing: Vec<_> =
            watched.commits().into_iter().filter(|commit| !commit.cells.is_empty()).collect();
        assert_eq!((writing.len(), writing[0].cells.len()), (1, 5), "{strategy}");
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!(ended["a"], json!({"value": 101, "revision": 2}), "{strategy}");
        assert_eq!((&ended["b"]["value"], &ended["b"]["revision"]), (&json!(101), &json!(2)));
        assert_eq!(ended["c"], json!({"value": 111, "revision": 3}));
        assert_eq!((&ended["d"]["value"], &ended["d"]["revision"]), (&json!(112), &json!(4)));
        assert_eq!((&ended["f"], &ended["g"]["found"]), (&json!({"deleted": true}), &json!(false)));
        let copy = engine.kv("test").get("copy").await.unwrap().unwrap();
        assert_eq!((copy.value, sum(&engine).await), (json!(112), Value::Null), "{strategy}");
    }
}

/// E6: when a later step fails, no write of the earlier ones is stored.
#[tokio::test]
async fn nothing_is_written_if_a_later_step_fails() {
    let fails = |_: Cx| async { Err::<(), _>(ActionError::new("broken", "it is broken")) };
    let workflow = row("fails", vec![plain("add"), plain("fails")]);
    for strategy in WHERE {
        let build =
            |builder: Builder| builder.workflow(workflow.clone()).action("add", add).action("fails", fails);
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "fails").await;
        let answer = go(&flows, &token).await;
        assert!(matches!(&answer, Err(FlowError::Failed(failure)) if failure.code == "broken"), "{answer:?}");
        assert_eq!(sum(&engine).await, Value::Null);
        assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0");
    }
}

/// E6: an impossible write refuses all of them and gives the reason.
#[tokio::test]
async fn an_invalid_write_discards_all_writes() {
    let text = |cx: Cx| async move { cx.kv("test").set("word", "hello") };
    let bad = |cx: Cx| async move { cx.kv("test").increment("word", 1) };
    let workflow = row("bad", vec![plain("add"), plain("text"), plain("bad")]);
    for strategy in WHERE {
        let build = |builder: Builder| {
            builder.workflow(workflow.clone()).action("add", add).action("text", text).action("bad", bad)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "bad").await;
        let answer = as_time_passes(engine.clock(), flows.resume(Resume::new(&token))).await;
        assert!(matches!(answer, Err(FlowError::Failed(_))), "{strategy}: {answer:?}");
        assert_eq!(sum(&engine).await, Value::Null);
        flows.show(&token).await.unwrap();
    }
}

/// E6: when another writer commits meanwhile, the steps run again, and sums are exact.
#[tokio::test]
async fn a_conflicting_write_reruns_the_steps() {
    let workflow =
        row("count", vec![call("store.increment", json!({"namespace": "test", "key": "sum"}), "n")]);
    for strategy in WHERE {
        let (store, clock) = ground().await;
        let watched = Watched::new(store.clone());
        let build = |builder: Builder| builder.workflow(workflow.clone());
        let engine = TestEngine::start_on(watched.clone(), clock.clone(), build).await.unwrap();
        let other = Arc::new(TestEngine::start_on(store, clock.clone(), |builder| builder).await.unwrap());
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "count").await;
        let theirs = other.clone();
        let meanwhile = async move {
            theirs.kv("test").increment("sum", 5).await.unwrap();
        };
        // A handle is reserved by a separate commit before the first action.
        match strategy {
            "handle" => {
                let watch = watched.clone();
                watched.first(async move { watch.first(meanwhile) });
            }
            _ => watched.first(meanwhile),
        }
        let answer = as_time_passes(&clock, flows.resume(Resume::new(&token))).await.unwrap();
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!((&ended["n"]["value"], sum(&engine).await), (&json!(6), json!(6)), "{strategy}");
    }
}

/// E6: many concurrent flows add to one key: the sum is exact, and each gets its own number.
#[tokio::test]
async fn concurrent_flows_on_one_key_add_up() {
    let workflow = row(
        "count",
        vec![call("store.increment", json!({"namespace": "test", "key": "sum"}), "n"), plain("add")],
    );
    for strategy in WHERE {
        let build = |builder: Builder| builder.workflow(workflow.clone()).action("add", add);
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let mut tokens = Vec::new();
        for _ in 0..6 {
            tokens.push(begun(&flows, "count").await);
        }
        let here = &flows;
        let all = join_all(tokens.iter().map(|token| async move {
            loop {
                match here.resume(Resume::new(token)).await {
                    Err(FlowError::Busy { .. }) => {}
                    answer => return answer.unwrap(),
                }
            }
        }));
        let all = as_time_passes(engine.clock(), all).await;
        let mut numbers = Vec::new();
        for answer in all {
            let ended = go(&flows, &answer.token.unwrap()).await.unwrap();
            numbers.push(ended.result.unwrap()["n"]["value"].as_u64().unwrap());
        }
        numbers.sort_unstable();
        assert_eq!((numbers, sum(&engine).await), (vec![1, 3, 5, 7, 9, 11], json!(12)), "{strategy}");
    }
}

fn once() -> Changes {
    Changes::new().once("receipt").increment("test", "sum", Increment::by(1))
}

async fn once_only(cx: Cx) -> Result<Value, ActionError> {
    Ok(match cx.write_once(once()).await? {
        Once::Staged(ops) => json!({"staged": ops.len()}),
        Once::Before(results) => json!({"before": results[0].value}),
    })
}

/// E6: an idempotent change happens once, even when two steps request it before one pause.
#[tokio::test]
async fn an_idempotent_change_of_two_steps_happens_once() {
    let save = |field: &str| ActionSpec { save_as: Some(field.to_owned()), ..plain("once") };
    let workflow = row("twice", vec![plain("add"), save("a"), save("b")]);
    for strategy in WHERE {
        let build = |builder: Builder| {
            builder.workflow(workflow.clone()).action("add", add).action("once", once_only)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "twice").await;
        let answer = as_time_passes(engine.clock(), flows.resume(Resume::new(&token))).await.unwrap();
        assert_eq!(sum(&engine).await, json!(2), "{strategy}");
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!(ended["a"], json!({"staged": 1}), "{strategy}");
        // A later request gets the result of the change itself, not of another one in the commit.
        let again = go(&flows, &begun(&flows, "twice").await).await.unwrap();
        let ended = go(&flows, &again.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!(ended["a"], json!({"before": 2}), "{strategy}");
    }
}

/// E6: a run with a key is started once, even when two steps start it before one pause.
#[tokio::test]
async fn a_run_that_two_steps_start_with_a_key_is_started_once() {
    let waits =
        Spec::new("waits").signal("HEY").step("a").end("b").on_signal("ab", "a", "HEY", "b").build().unwrap();
    let starts = |cx: Cx| async move { cx.start_once(Start::new("waits").key("order-7")).await };
    let save = |field: &str| ActionSpec { save_as: Some(field.to_owned()), ..plain("starts") };
    for strategy in WHERE {
        let build = |builder: Builder| {
            builder
                .workflow(row("starts", vec![save("a"), save("b")]))
                .workflow(waits.clone())
                .action("starts", starts)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let answer = go(&flows, &begun(&flows, "starts").await).await.unwrap();
            let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
            seen.extend([ended["a"].clone(), ended["b"].clone()]);
        }
        seen.dedup();
        assert_eq!((seen.len(), runs_of(&engine, "waits").await.len()), (1, 1), "{strategy}");
    }
}

/// E6: when the steps run again, they find an idempotent change that another writer made meanwhile.
#[tokio::test]
async fn a_rerun_finds_an_idempotent_change_of_another_writer() {
    let workflow = row("once", vec![ActionSpec { save_as: Some("a".to_owned()), ..plain("once") }]);
    for strategy in WHERE {
        let (store, clock) = ground().await;
        let watched = Watched::new(store.clone());
        let build = |builder: Builder| builder.workflow(workflow.clone()).action("once", once_only);
        let engine = TestEngine::start_on(watched.clone(), clock.clone(), build).await.unwrap();
        let other = Arc::new(TestEngine::start_on(store, clock.clone(), |builder| builder).await.unwrap());
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "once").await;
        let theirs = async move { drop(other.write(once()).await.unwrap()) };
        match strategy {
            "handle" => {
                let watch = watched.clone();
                watched.first(async move { watch.first(theirs) });
            }
            _ => watched.first(theirs),
        }
        let answer = as_time_passes(&clock, flows.resume(Resume::new(&token))).await.unwrap();
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!((&ended["a"], sum(&engine).await), (&json!({"before": 1}), json!(1)), "{strategy}");
    }
}

/// E1: workflow slots are written like other data.
#[tokio::test]
async fn workflow_slots_are_written_with_the_steps() {
    let counts = |cx: Cx| async move {
        let slot = cx.workflow_scope::<u64>("visits");
        slot.update(|visits| visits.unwrap_or(0) + 1).await
    };
    let save = |field: &str| ActionSpec { save_as: Some(field.to_owned()), ..plain("counts") };
    let workflow = row("slots", vec![save("a"), save("b")]);
    for strategy in WHERE {
        let engine =
            kit::start(|builder| builder.workflow(workflow.clone()).action("counts", counts)).await.unwrap();
        let flows = flows(&engine, strategy);
        let answer = as_time_passes(engine.clock(), flows.resume(Resume::new(begun(&flows, "slots").await)))
            .await
            .unwrap();
        let ended = go(&flows, &answer.token.unwrap()).await.unwrap().result.unwrap();
        assert_eq!((&ended["a"], &ended["b"]), (&json!(1), &json!(2)), "{strategy}");
        let slot = engine.state().workflow::<u64>("slots", "visits").get().await.unwrap();
        assert_eq!(slot, Some(2), "{strategy}");
    }
}

/// E4: a run that a step of a flow starts begins by itself, once.
#[tokio::test]
async fn a_run_started_by_a_step_begins_by_itself() {
    let quick =
        Spec::new("quick").step("a").end("b").transition(Transition::new("ab", "a", "b").action("add"));
    let starts = |cx: Cx| async move { cx.start(Start::new("quick")).map(drop) };
    let workflow = row("starts", vec![plain("starts"), plain("starts")]);
    for strategy in WHERE {
        let build = |builder: Builder| {
            let builder = builder.workflow(workflow.clone()).workflow(quick.clone().build().unwrap());
            builder.action("starts", starts).action("add", add)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "starts").await;
        assert_eq!(runs_of(&engine, "quick").await.len(), 0);
        go(&flows, &token).await.unwrap();
        assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
        engine.settle().await;
        let all: Vec<_> = runs_of(&engine, "quick").await.into_iter().map(|run| run.status).collect();
        assert_eq!((all, sum(&engine).await), (vec![Status::Completed; 2], json!(2)), "{strategy}");
    }
}

/// E4: a signal that a step of a flow sends moves its target run without another call.
#[tokio::test]
async fn a_signal_sent_by_a_step_is_delivered() {
    let waits =
        Spec::new("waits").signal("HEY").step("a").end("b").on_signal("ab", "a", "HEY", "b").build().unwrap();
    let tells = |cx: Cx| async move {
        let run = serde_json::from_value(cx.payload().clone())?;
        cx.signal(run, "HEY", &json!({}))
    };
    for strategy in WHERE {
        let build = |builder: Builder| {
            builder
                .workflow(row("tells", vec![plain("tells")]))
                .workflow(waits.clone())
                .action("tells", tells)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let run = engine.start(Start::new("waits")).await.unwrap();
        engine.settle().await;
        let token = begun(&flows, "tells").await;
        soon(flows.resume(Resume::new(&token).input(&run.id()))).await.unwrap();
        engine.settle().await;
        assert_eq!(run.view().await.unwrap().status, Status::Completed, "{strategy}");
    }
}

/// E1: operations that need a stored run are refused by name in flows without one, and nothing is written.
#[tokio::test]
async fn operations_that_need_a_run_are_refused_without_one() {
    let reach = |cx: Cx| async move {
        cx.kv("test").increment("sum", 1)?;
        match cx.payload().as_str() {
            Some("child") => cx.start_child(Start::new("reach")),
            Some("slot") => cx.execution::<u64>("x").set(&1),
            _ => cx.put_document("draft", "letter", &json!({}), &["new"]),
        }
    };
    for strategy in WHERE {
        let build =
            |builder: Builder| builder.workflow(row("reach", vec![plain("reach")])).action("reach", reach);
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "reach").await;
        for what in ["child", "slot", "document"] {
            let answer = soon(flows.resume(Resume::new(&token).input(what))).await;
            let Err(FlowError::Failed(failure)) = answer else { panic!("{what}: {answer:?}") };
            assert_eq!(failure.code, "notDurable", "{what}: {failure:?}");
        }
        assert_eq!(sum(&engine).await, Value::Null);
    }
}

/// E6: steps before the first pause also write once, and a conflict runs them again.
#[tokio::test]
async fn steps_before_the_first_pause_write_once() {
    let spec = Spec::new("early").signal("GO").step("a").step("b").end("c");
    let count = call("store.increment", json!({"namespace": "test", "key": "sum"}), "n");
    let spec = spec.transition(Transition::new("ab", "a", "b").action_with(count));
    let early = spec.on_signal("bc", "b", "GO", "c").build().unwrap();
    for strategy in WHERE {
        let (store, clock) = ground().await;
        let watched = Watched::new(store.clone());
        let build = |builder: Builder| builder.workflow(early.clone());
        let engine = TestEngine::start_on(watched.clone(), clock.clone(), build).await.unwrap();
        let other = Arc::new(TestEngine::start_on(store, clock.clone(), |builder| builder).await.unwrap());
        let flows = flows(&engine, strategy);
        watched.first(
            async move { assert_eq!(other.kv("test").increment("sum", 5).await.unwrap().revision, 1) },
        );
        let asks = || Start::new("early").input(&json!({})).key("k");
        let begun = as_time_passes(&clock, flows.start(asks())).await.unwrap();
        assert_eq!(sum(&engine).await, json!(6), "{strategy}");
        let again = soon(flows.start(asks())).await.unwrap();
        assert_eq!((again.token, again.is_replayed), (begun.token, true), "{strategy}");
        assert_eq!(
            (sum(&engine).await, handles(&flows).await.len()),
            (json!(6), usize::from(strategy == "handle"))
        );
    }
}

/// E6: resuming a handle takes two commits for any number of steps.
#[tokio::test]
async fn resuming_a_handle_takes_two_commits() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let build = |builder: Builder| {
        builder.workflow(row("still", vec![plain("nothing"); 3])).action("nothing", nothing)
    };
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "still").await;
    watched.commits();
    go(&flows, &token).await.unwrap();
    let sizes: Vec<_> = watched.commits().iter().map(|commit| commit.handles.len()).collect();
    assert_eq!(sizes, [1, 2], "one commit reserves the handle, one replaces it");
}
