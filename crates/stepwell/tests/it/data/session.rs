//! Session slots: part of the run's own state, read without a store call, and committed with the step.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, Spec};
use stepwell::engine::Builder;
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Run, Signal, Start};

use crate::kit::{self, audit, children_of, context, error_code, ground, status, version};
use crate::world::{Gate, job, saved};

async fn session(run: &Run) -> Value {
    Value::Object(run.view().await.unwrap().snapshot.session().clone())
}

/// Runs `act` as the only step of a run; returns the run's status, error and slots.
async fn doing(act: fn(&Cx) -> Result<(), ActionError>) -> (Status, Option<String>, Value) {
    let act = move |cx: Cx| async move { act(&cx) };
    let engine = kit::start(|builder| builder.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    (status(&run).await, error_code(&run).await, session(&run).await)
}

#[tokio::test]
async fn every_method_works_on_a_session_slot() {
    let (status, error, slots) = doing(|cx| {
        let number = cx.session::<i64>("number");
        assert_eq!(number.get()?, None);
        number.set(&40)?;
        assert_eq!((number.increment(3)?, number.decrement(1)?), (43, 42));
        assert_eq!(number.update(|value| value.unwrap() * 2)?, 84);
        assert_eq!(cx.session::<i64>("number").get()?, Some(84), "every handle sees it");
        let object = cx.session::<Value>("object");
        object.merge(json!({"a": {"x": 1}, "b": 1}))?;
        object.merge(json!({"a": {"y": 2}}))?;
        assert_eq!(object.get()?, Some(json!({"a": {"y": 2}, "b": 1})), "a merge is shallow");
        let list = cx.session::<Vec<String>>("list");
        for item in ["one", "two", "three"] {
            list.append(item)?;
        }
        assert_eq!(list.remove_first::<String>()?.as_deref(), Some("one"));
        assert_eq!(list.remove_last::<String>()?.as_deref(), Some("three"));
        let empty = cx.session::<Vec<String>>("empty").initial(Vec::new())?;
        assert_eq!(empty.remove_last::<String>()?, None);
        let gone = cx.session::<i64>("gone");
        gone.set(&1)?;
        gone.delete()?;
        gone.delete()?;
        assert_eq!(gone.get()?, None);
        Ok(())
    })
    .await;
    assert_eq!((status, error), (Status::Completed, None));
    assert_eq!(slots, json!({"number": 84, "object": {"a": {"y": 2}, "b": 1}, "list": ["two"], "empty": []}));
}

#[tokio::test]
async fn a_deleted_session_slot_has_its_initial_value_again() {
    let (status, error, slots) = doing(|cx| {
        let slot = cx.session::<i64>("slot").initial(10)?;
        assert_eq!(slot.get()?, Some(10));
        assert_eq!(slot.increment(5)?, 15);
        slot.delete()?;
        assert_eq!(slot.get()?, Some(10));
        assert_eq!(slot.update(|value| value.unwrap() + 1)?, 11);
        slot.delete()?;
        assert_eq!(slot.increment(-1)?, 9);
        slot.delete()?;
        assert_eq!(cx.session::<i64>("slot").increment(1)?, 1, "without an initial value it starts at 0");
        cx.session::<i64>("slot").delete()
    })
    .await;
    assert_eq!((status, error, slots), (Status::Completed, None, json!({})));
}

#[tokio::test]
async fn an_invalid_session_operation_changes_nothing() {
    let (status, error, slots) = doing(|cx| {
        let text = cx.session::<Value>("text");
        text.set(&json!("text"))?;
        let code = |error: ActionError| error.failure().code.clone();
        assert_eq!(text.increment(1).map_err(code), Err("invalid".to_owned()));
        assert!(text.merge(json!({"a": 1})).is_err());
        assert!(text.append(1).is_err());
        assert!(text.remove_first::<Value>().is_err());
        assert!(cx.session::<i64>("text").get().is_err());
        let number = cx.session::<u64>("number");
        number.set(&u64::MAX)?;
        assert!(number.increment(1).is_err());
        assert!(number.increment(f64::NAN).is_err());
        assert!(number.merge([1]).is_err());
        assert_eq!(number.get()?, Some(u64::MAX));
        assert!(cx.session::<i64>("").set(&1).is_err());
        assert!(cx.session::<i64>("é".repeat(257)).set(&1).is_err());
        Ok(())
    })
    .await;
    assert_eq!((status, error), (Status::Completed, None));
    assert_eq!(slots, json!({"text": "text", "number": u64::MAX}));
}

fn fill(cx: &Cx, many: usize) -> Result<(), ActionError> {
    (0..many).try_for_each(|at| cx.session::<usize>(format!("key {at}")).set(&at))
}

#[tokio::test]
async fn a_step_with_more_than_256_session_keys_is_refused() {
    let (status, error, slots) = doing(|cx| fill(cx, 256)).await;
    assert_eq!((status, error, slots.as_object().unwrap().len()), (Status::Completed, None, 256));
    let (status, error, slots) = doing(|cx| {
        cx.kv("test").set("a", 1)?;
        fill(cx, 257)
    })
    .await;
    assert_eq!((status, slots), (Status::Failed, json!({})));
    assert_eq!(error.as_deref(), Some("invalidResult"));
}

#[tokio::test]
async fn a_step_with_more_than_32_kib_of_session_is_refused() {
    let (status, error, _) = doing(|cx| cx.session::<String>("k").set(&"x".repeat(32_000))).await;
    assert_eq!((status, error), (Status::Completed, None));
    let two = |cx: &Cx| {
        cx.session::<String>("a").set(&"x".repeat(20_000))?;
        cx.session::<String>("b").set(&"x".repeat(20_000))
    };
    let (status, error, slots) = doing(two).await;
    assert_eq!((status, slots), (Status::Failed, json!({})));
    assert_eq!(error.as_deref(), Some("invalidResult"));
}

/// Counts its calls in the session and returns the count from before this call.
async fn note(cx: Cx) -> Result<Value, ActionError> {
    let slot = cx.session::<i64>("count");
    let before = slot.get()?;
    slot.increment(1)?;
    cx.session::<String>("by").set(&cx.transition().to_string())?;
    Ok(json!(before))
}

fn twice() -> Definition {
    let step = |id, from, to, field| Transition::new(id, from, to).action_with(saved("note", field));
    Spec::new("twice")
        .step("a")
        .wait("b", "GO")
        .end("c")
        .signal("GO")
        .transition(step("first", "a", "b", "first"))
        .transition(step("second", "b", "c", "second"))
        .build()
        .unwrap()
}

fn noting(builder: Builder) -> Builder {
    builder.workflow(twice()).action("note", note)
}

#[tokio::test]
async fn session_slots_are_durable_with_the_next_checkpoint() {
    let (store, clock) = ground().await;
    let first = TestEngine::start_on(store.clone(), clock.clone(), noting).await.unwrap();
    let run = first.start(Start::new("twice")).await.unwrap().id();
    first.settle().await;
    assert_eq!(session(&first.run(run)).await, json!({"count": 1, "by": "first"}));
    first.stop(Duration::ZERO).await;
    drop(first);
    let second = TestEngine::start_on(store, clock, noting).await.unwrap();
    let run = second.run(run);
    run.signal(Signal::new("GO")).await.unwrap();
    second.settle().await;
    assert_eq!(context(&run).await, json!({"first": null, "second": 1}));
    assert_eq!(session(&run).await, json!({"count": 2, "by": "second"}));
    assert_eq!(audit(&second).await, [], "session slots are part of the run and are not audited");
}

#[tokio::test]
async fn session_slots_are_private_to_the_run() {
    let engine = kit::start(noting).await.unwrap();
    let (one, two) =
        (engine.start(Start::new("twice")).await.unwrap(), engine.start(Start::new("twice")).await.unwrap());
    engine.settle().await;
    one.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&one).await, json!({"first": null, "second": 1}));
    assert_eq!(context(&two).await, json!({"first": null}));
    assert_eq!(session(&two).await, json!({"count": 1, "by": "first"}));
}

#[tokio::test]
async fn session_slots_are_empty_in_children() {
    let below = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let parent = Spec::new("parent")
        .step("open")
        .place("below", Place::Wait(below))
        .end("done")
        .transition(Transition::new("begin", "open", "below").action("begin"))
        .auto("end", "below", "done")
        .build()
        .unwrap();
    let begin = |cx: Cx| async move {
        cx.session::<i64>("count").set(&41)?;
        cx.start_child(Start::new("twice"))
    };
    let engine = kit::start(|builder| noting(builder).workflow(parent).action("begin", begin)).await.unwrap();
    let run = engine.start(Start::new("parent")).await.unwrap();
    engine.settle().await;
    let child = engine.run(children_of(&engine, run.id()).await[0].run);
    assert_eq!(context(&child).await, json!({"first": null}));
    child.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, session(&run).await), (Status::Completed, json!({"count": 41})));
}

#[tokio::test]
async fn session_writes_of_a_failed_attempt_are_discarded() {
    let seen: Arc<Mutex<Vec<Option<i64>>>> = Arc::default();
    let act = {
        let seen = seen.clone();
        move |cx: Cx| {
            let seen = seen.clone();
            async move {
                let slot = cx.session::<i64>("slot");
                seen.lock().unwrap().push(slot.get()?);
                slot.increment(1)?;
                if cx.attempt() < 3 { Err(ActionError::new("busy", "again")) } else { Ok(()) }
            }
        }
    };
    let definition = job(|work| work.retry(Retry { attempts: 3, ..Retry::default() }));
    let engine = kit::start(|builder| builder.workflow(definition).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(10)).await;
    assert_eq!(*seen.lock().unwrap(), [None; 3]);
    assert_eq!((session(&run).await, version(&run).await), (json!({"slot": 1}), 1));
}

#[tokio::test]
async fn parallel_branches_keep_each_others_session_slots() {
    let (left, right) = (Gate::new(), Gate::new());
    let sets = |gate: &Gate, key: &'static str| {
        gate.and(move |cx| {
            cx.session::<bool>(key).set(&true)?;
            Ok(Value::Null)
        })
    };
    let definition = Spec::new("fields")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .transition(Transition::new("l", "left", "both").action("left"))
        .transition(Transition::new("r", "right", "both").action("right"))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let build = |builder: Builder| {
        builder.workflow(definition).action("left", sets(&left, "l")).action("right", sets(&right, "r"))
    };
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("fields")).await.unwrap();
    engine.settle().await;
    assert_eq!((left.inside(), right.inside()), (1, 1));
    right.open(1);
    engine.settle().await;
    left.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, session(&run).await), (Status::Completed, json!({"l": true, "r": true})));
}
