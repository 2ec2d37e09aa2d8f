//! Action timeouts: the action is dropped, and nothing it does later can be written.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Definition;
use stepwell::core::retry::Retry;
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{Cx, Signal, Start};

use crate::kit::{self, context, error_code, history_actions, places, runs_of, status, version};
use crate::world::{Gate, cell, desk, job, job_spec, put};

const SECOND: Duration = Duration::from_secs(1);

async fn gated(definition: Definition, gate: &Gate) -> TestEngine {
    kit::start(|engine| engine.workflow(definition).action("work", gate.action())).await.unwrap()
}

#[tokio::test]
async fn action_past_its_timeout_is_dropped_and_fails() {
    let gate = Gate::new();
    let engine = gated(job(|work| work.timeout_ms(2_000)), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(1_999)).await;
    assert_eq!((gate.inside(), gate.dropped(), status(&run).await), (1, 0, Status::Running));
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!((gate.inside(), gate.dropped()), (0, 1), "its future is dropped");
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("timeout")));
    let stopped = run.view().await.unwrap().ledger.stopped.unwrap();
    assert!(stopped.error.message.contains("2000 ms"), "{}", stopped.error);
    assert_eq!((version(&run).await, places(&run).await), (0, vec!["todo".into()]));
}

#[tokio::test]
async fn default_action_timeout_is_five_minutes() {
    let gate = Gate::new();
    let engine = gated(job(|work| work), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(5 * 60 * 1_000 - 1)).await;
    assert_eq!((gate.dropped(), status(&run).await), (0, Status::Running));
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!((gate.dropped(), error_code(&run).await.as_deref()), (1, Some("timeout")));
}

#[tokio::test]
async fn default_action_timeout_can_be_set_or_switched_off() {
    for (timeout_ms, dropped) in [(700, 1), (0, 0)] {
        let gate = Gate::new();
        let build = |engine: stepwell::Builder| {
            let engine = engine.workflow(job(|work| work)).action("work", gate.action());
            engine.with(|options| options.action_timeout_ms = timeout_ms)
        };
        let engine = kit::start(build).await.unwrap();
        let run = engine.start(Start::new("job")).await.unwrap();
        engine.advance(Duration::from_millis(699)).await;
        assert_eq!(gate.dropped(), 0);
        engine.advance(Duration::from_secs(3_600)).await;
        assert_eq!(gate.dropped(), dropped, "{timeout_ms}");
        let status = status(&run).await;
        assert_eq!(status, if dropped == 1 { Status::Failed } else { Status::Running });
    }
}

#[tokio::test]
async fn zero_timeout_means_no_limit() {
    let gate = Gate::new();
    let engine = gated(job(|work| work.timeout_ms(0)), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(30 * 24 * 3_600)).await;
    assert_eq!((gate.inside(), gate.dropped(), status(&run).await), (1, 0, Status::Running));
    gate.open(1);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn timeout_is_retried_like_other_failures() {
    let gate = Gate::new();
    let retry = Retry { attempts: 1, retry_on: Some(vec!["timeout".into()]), ..Retry::default() };
    let engine = gated(job(|work| work.timeout_ms(2_000).retry(retry)), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(2 * SECOND).await;
    assert_eq!((gate.began(), gate.dropped(), status(&run).await), (1, 1, Status::Running));
    engine.advance(SECOND).await;
    assert_eq!((gate.began(), gate.inside()), (2, 1), "the retry delay starts after the timeout");
    engine.advance(SECOND).await;
    gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, gate.dropped()), (Status::Completed, 1));
}

#[tokio::test]
async fn every_attempt_has_the_full_timeout() {
    let gate = Gate::new();
    let retry = Retry { attempts: 2, delay_ms: 500, ..Retry::default() };
    let engine = gated(job(|work| work.timeout_ms(2_000).retry(retry)), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(2_000 + 500 + 1_999)).await;
    assert_eq!((gate.began(), gate.dropped()), (2, 1));
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!((gate.began(), gate.dropped()), (2, 2));
    engine.advance(Duration::from_millis(1_000 + 2_000)).await;
    assert_eq!((gate.dropped(), error_code(&run).await.as_deref()), (3, Some("timeout")));
}

#[tokio::test]
async fn exhausted_timeouts_lead_to_the_error_place() {
    let gate = Gate::new();
    let definition = job_spec(|work| work.timeout_ms(2_000).error_place("late")).end("late").build().unwrap();
    let engine = gated(definition, &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(2 * SECOND).await;
    assert_eq!((gate.dropped(), status(&run).await), (1, Status::Completed));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__error:work"]);
}

/// An action that spawns a task that outlives it: the task waits at a gate and then tries to stage every kind of
/// change.
fn outlives(
    gate: &Gate,
    told: &Arc<Mutex<Vec<bool>>>,
) -> impl Fn(Cx) -> stepwell::host::BoxFuture<crate::world::Given> + Send + Sync + use<> {
    let (gate, told) = (gate.clone(), told.clone());
    move |cx: Cx| {
        let (gate, told, spawned) = (gate.clone(), told.clone(), cx.clone());
        tokio::spawn(async move {
            spawned.over().await;
            assert!(spawned.is_over());
            gate.pass().await;
            let staged = [
                spawned.set_state(&json!({"late": true})).is_ok(),
                spawned.write(put("cell", json!("late"))).is_ok(),
                spawned.put_document("late", "late", &Value::Null, &[]).is_ok(),
                spawned.start(Start::new("job")).is_ok(),
                spawned.signal(spawned.run(), "GO", &Value::Null).is_ok(),
            ];
            told.lock().unwrap().extend(staged);
        });
        Box::pin(async move {
            cx.set_state(&json!({"early": true}))?;
            cx.write(put("early", json!(1)))?;
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn changes_staged_after_a_timeout_are_discarded() {
    let (gate, told) = (Gate::new(), Arc::default());
    let act = outlives(&gate, &told);
    let definition = desk(|work| work.timeout_ms(1_000));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("desk").input(&json!({"as it was": 1}))).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!((status(&run).await, gate.inside()), (Status::Failed, 1));
    gate.open(1);
    engine.advance(60 * SECOND).await;
    assert_eq!(*told.lock().unwrap(), [false; 5], "staging after the timeout is refused");
    assert_eq!(context(&run).await, json!({"as it was": 1}));
    assert_eq!((cell(&engine, "cell").await, cell(&engine, "early").await), (None, None));
    assert_eq!((version(&run).await, runs_of(&engine, "job").await.len()), (0, 0));
    assert_eq!((status(&run).await, run.view().await.unwrap().buffered_signals), (Status::Failed, 0));
}

#[tokio::test]
async fn task_outliving_its_action_cannot_stage_changes() {
    let (gate, told): (_, Arc<Mutex<Vec<bool>>>) = (Gate::new(), Arc::default());
    let act = {
        let (gate, told) = (gate.clone(), told.clone());
        move |cx: Cx| {
            let (gate, told) = (gate.clone(), told.clone());
            async move {
                tokio::spawn(async move {
                    gate.pass().await;
                    told.lock().unwrap().push(cx.write(put("cell", json!("late"))).is_ok());
                });
                Ok::<_, stepwell::ActionError>(())
            }
        }
    };
    let engine = kit::start(|engine| engine.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    gate.open(1);
    engine.settle().await;
    assert_eq!(*told.lock().unwrap(), [false]);
    assert_eq!(cell(&engine, "cell").await, None);
}

#[tokio::test]
async fn timeout_does_not_affect_an_action_that_ended() {
    let gate = Gate::new();
    let engine = gated(job(|work| work.timeout_ms(2_000)), &gate).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(1_999)).await;
    gate.open(1);
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, gate.dropped()), (Status::Completed, 0));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__auto:work"]);
}

#[tokio::test]
async fn timeout_in_one_branch_does_not_end_the_other() {
    let (slow, slower) = (Gate::new(), Gate::new());
    use stepwell::core::spec::{Quorum, Transition};
    let definition = stepwell::core::Spec::new("race")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .step("late")
        .join("both", Quorum::All, ["late", "right"])
        .end("done")
        .transition(Transition::new("l", "left", "late").action("slow").timeout_ms(1_000).error_place("late"))
        .transition(Transition::new("r", "right", "both").action("slower").timeout_ms(5_000))
        .auto("on", "late", "both")
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let engine = kit::start(|engine| {
        engine.workflow(definition).action("slow", slow.action()).action("slower", slower.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("race")).await.unwrap();
    engine.advance(4 * SECOND).await;
    assert_eq!((slow.dropped(), slower.inside(), slower.dropped()), (1, 1, 0));
    slower.open(1);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}
