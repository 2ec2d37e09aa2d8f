//! Of any number of concurrent resumes of one handle exactly one runs the step, despite crashes, failures and
//! disconnects.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::engine::Builder;
use stepwell::flow::{Answer, FlowError, Flows, Resume};
use stepwell::store::{HandleChange, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx};

use super::{add, as_time_passes, begun, flows, go, handles, next, nothing, sum, walk};
use crate::kit::{self, Fate, LEASE_MS, Watched, eventually, ground, soon, start_killable};
use crate::world::{Gate, Script};

const BUSY: FlowError = FlowError::Busy { retry_after_ms: 1_000 };

/// A flow whose first step waits at a gate and then counts.
fn gated(gate: &Gate) -> impl Fn(Builder) -> Builder + use<> {
    let gate = gate.clone();
    move |builder| {
        let counts = gate.and(|cx: &Cx| cx.kv("test").increment("sum", 1).map(|()| Value::Null));
        let builder = builder.action("counts", counts).action("nothing", nothing).action("add", add);
        builder.workflow(walk("slow", &["counts", "nothing"]).build().unwrap())
    }
}

/// Resumes the flow in a separate task.
fn apart(flows: &Flows, token: &str) -> tokio::task::JoinHandle<Result<Answer, FlowError>> {
    let (flows, token) = (flows.clone(), token.to_owned());
    tokio::spawn(async move { flows.resume(Resume::new(token)).await })
}

/// E6: while one caller runs the step, the others are told to retry; afterwards the token is invalid.
#[tokio::test]
async fn one_caller_runs_the_step_while_the_others_are_told_to_retry() {
    let gate = Gate::new();
    let engine = kit::start(gated(&gate)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "slow").await;
    let first = apart(&flows, &token);
    eventually(async || gate.inside() == 1).await;
    assert!(handles(&flows).await[0].owner.is_some(), "the handle is reserved");
    let all =
        as_time_passes(engine.clock(), join_all((0..8).map(|_| flows.resume(Resume::new(&token))))).await;
    assert!(all.iter().all(|answer| *answer == Err(BUSY)), "{all:?}");
    assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0", "viewing needs no reservation");
    gate.open(10);
    assert_eq!(soon(first).await.unwrap().unwrap().waits[0].place, "p1");
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
    assert_eq!((gate.began(), sum(&engine).await), (1, json!(1)));
}

/// E6: concurrent resumes from two processes: one success, and the action runs once.
#[tokio::test]
async fn concurrent_resumes_from_two_processes_succeed_once() {
    let gate = Gate::new();
    gate.open(100);
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), gated(&gate)).await.unwrap();
    let two = TestEngine::start_on(store, clock.clone(), gated(&gate)).await.unwrap();
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let all: Vec<_> = (0..20).map(|at| apart(if at % 2 == 0 { &here } else { &there }, &token)).collect();
    let all: Vec<_> = as_time_passes(&clock, join_all(all)).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|answer| answer.is_ok()).count(), 1, "{all:?}");
    let is_told =
        |answer: &Result<Answer, FlowError>| *answer == Err(BUSY) || *answer == Err(FlowError::Gone);
    assert!(all.iter().all(|answer| answer.is_ok() || is_told(answer)), "{all:?}");
    assert_eq!((gate.began(), sum(&one).await), (1, json!(1)));
}

/// E6: a step without an action has no reservation, and still exactly one success.
#[tokio::test]
async fn concurrent_resumes_without_an_action_succeed_once() {
    let spec = stepwell::core::Spec::new("plain").signal("GO").step("a").step("b").end("c");
    let spec = spec.on_signal("ab", "a", "GO", "b").on_signal("bc", "b", "GO", "c").build().unwrap();
    let engine = kit::start(|builder| builder.workflow(spec)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "plain").await;
    let all: Vec<_> = (0..20).map(|_| apart(&flows, &token)).collect();
    let all: Vec<_> =
        as_time_passes(engine.clock(), join_all(all)).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|answer| answer.is_ok()).count(), 1, "{all:?}");
    assert!(all.iter().all(|answer| answer.is_ok() || *answer == Err(FlowError::Gone)), "{all:?}");
    assert_eq!(handles(&flows).await.len(), 1);
}

/// E6: when the step fails, the handle is valid again at once.
#[tokio::test]
async fn a_failing_step_releases_the_handle_at_once() {
    let work = |cx: Cx| async move {
        cx.kv("test").increment("sum", 1)?;
        match cx.payload().as_str() {
            Some("panic") => panic!("requested by the test"),
            Some("error") => Err(ActionError::new("broken", "it is broken")),
            _ => Ok(()),
        }
    };
    let workflow = walk("work", &["work", "work"]).build().unwrap();
    let engine = kit::start(|builder| builder.workflow(workflow).action("work", work)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "work").await;
    for (how, code) in [("error", "broken"), ("panic", "panic"), ("error", "broken")] {
        let answer = soon(flows.resume(Resume::new(&token).input(how))).await;
        let Err(FlowError::Failed(failure)) = answer else { panic!("{answer:?}") };
        assert_eq!((failure.code.as_str(), handles(&flows).await[0].owner), (code, None));
    }
    assert_eq!(sum(&engine).await, Value::Null);
    next(&flows, &token).await;
    assert_eq!(sum(&engine).await, json!(1));
}

/// E6: when the process crashes during the action, the handle becomes valid after the lease expires, and advances once.
#[tokio::test]
async fn a_handle_of_a_crashed_process_is_released_with_its_lease() {
    let gate = Gate::new();
    let (store, clock) = ground().await;
    let (one, tasks) = start_killable(store.clone(), &clock, gated(&gate)).await;
    let (two, _tasks) = start_killable(store, &clock, gated(&gate)).await;
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let first = apart(&here, &token);
    eventually(async || gate.inside() == 1).await;
    tasks.kill().await;
    assert!(soon(first).await.unwrap().is_err());
    assert_eq!(go(&there, &token).await, Err(BUSY), "the lease has not expired yet");
    gate.open(10);
    two.advance(Duration::from_millis(LEASE_MS + 1_000)).await;
    let answer = go(&there, &token).await.unwrap();
    assert_eq!((answer.waits[0].place.as_str(), gate.began()), ("p1", 2));
    assert_eq!(go(&there, &token).await, Err(FlowError::Gone));
    assert_eq!(sum(&two).await, json!(1));
    assert_eq!(go(&there, &answer.token.unwrap()).await.unwrap().status, Status::Completed);
}

/// E6: a process that was only presumed dead returns too late: its result is discarded.
#[tokio::test]
async fn a_process_that_returns_too_late_advances_nothing() {
    let gate = Gate::new();
    let (store, clock) = ground().await;
    let (one, ice) = crate::world::freezable(store.clone(), &clock, gated(&gate)).await;
    let (two, _tasks) = start_killable(store, &clock, gated(&gate)).await;
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let first = apart(&here, &token);
    eventually(async || gate.inside() == 1).await;
    ice.freeze();
    two.advance(Duration::from_millis(LEASE_MS + 1_000)).await;
    gate.open(10);
    go(&there, &token).await.unwrap();
    ice.thaw();
    let late = as_time_passes(&clock, first).await.unwrap();
    assert_eq!(late, Err(FlowError::Gone));
    assert_eq!((sum(&two).await, handles(&there).await.len()), (json!(1), 1));
}

/// E6: an engine stopped during the action leaves a handle that other processes can use.
#[tokio::test]
async fn a_stopped_process_leaves_its_handles_usable() {
    let gate = Gate::new();
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), gated(&gate)).await.unwrap();
    let two = TestEngine::start_on(store, clock, gated(&gate)).await.unwrap();
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let first = apart(&here, &token);
    eventually(async || gate.inside() == 1).await;
    soon(one.stop(Duration::ZERO)).await;
    gate.open(10);
    let answers = [soon(first).await.unwrap(), go(&there, &token).await];
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    assert_eq!(sum(&two).await, json!(1));
}

/// E6: when the caller disconnects, the step still completes, and nothing stays reserved.
#[tokio::test]
async fn a_disconnect_leaves_nothing_reserved() {
    let gate = Gate::new();
    let engine = kit::start(gated(&gate)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "slow").await;
    let client = apart(&flows, &token);
    eventually(async || gate.inside() == 1).await;
    client.abort();
    let _ = client.await;
    assert_eq!(gate.dropped(), 0, "the step continues");
    gate.open(1);
    eventually(async || sum(&engine).await == json!(1)).await;
    let rows = handles(&flows).await;
    assert_eq!((rows.len(), rows[0].owner), (1, None));
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
}

/// E6: the same with a step that fails after the caller has disconnected.
#[tokio::test]
async fn a_disconnect_from_a_failing_step_releases_the_handle() {
    let gate = Gate::new();
    let fails = gate.and(|_: &Cx| Err(ActionError::new("broken", "it is broken")));
    let workflow = walk("fails", &["fails", "fails"]).build().unwrap();
    let engine = kit::start(|builder| builder.workflow(workflow).action("fails", fails)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "fails").await;
    let client = apart(&flows, &token);
    eventually(async || gate.inside() == 1).await;
    client.abort();
    gate.open(1);
    eventually(async || handles(&flows).await[0].owner.is_none()).await;
    assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0");
}

/// E6: a lost answer of the store is looked up, at every call: the flow advances once.
#[tokio::test]
async fn lost_store_answers_are_looked_up() {
    for strategy in ["sealed", "handle", "durable"] {
        let gate = Gate::new();
        gate.open(100);
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let engine = TestEngine::start_on(watched.clone(), clock, gated(&gate)).await.unwrap();
        let flows = flows(&engine, strategy);
        watched.rule(|_| Fate::AnswerLost);
        let token = begun(&flows, "slow").await;
        let second = as_time_passes(engine.clock(), flows.resume(Resume::new(&token))).await.unwrap();
        assert_eq!(second.waits[0].place, "p1", "{strategy}");
        let last = second.token.unwrap();
        let ended = as_time_passes(engine.clock(), flows.resume(Resume::new(&last))).await.unwrap();
        assert_eq!((ended.status, gate.began()), (Status::Completed, 1), "{strategy}");
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
        watched.rule(|_| Fate::Arrives);
        let again = as_time_passes(engine.clock(), flows.resume(Resume::new(&token))).await;
        assert_eq!(again, Err(FlowError::Gone), "{strategy}");
    }
}

/// E6: the lost answer to the commit that releases a handle leaves it valid.
#[tokio::test]
async fn a_lost_answer_to_a_release_keeps_the_handle_valid() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let script = Script::failing(1);
    let workflow = walk("work", &["work", "work"]).build().unwrap();
    let build = |builder: Builder| builder.workflow(workflow).action("work", script.action());
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "work").await;
    watched.rule(|commit| match commit.handles.first().map(|write| &write.then) {
        Some(HandleChange::SetOwner(None)) => Fate::AnswerLost,
        _ => Fate::Arrives,
    });
    assert!(matches!(go(&flows, &token).await, Err(FlowError::Failed(_))));
    assert_eq!(handles(&flows).await[0].owner, None);
    next(&flows, &token).await;
    assert_eq!(script.calls().len(), 2);
}

/// E6: if the store is unavailable when a handle is to be released, it is released later.
#[tokio::test]
async fn a_handle_is_released_once_the_store_is_available() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let script = Script::failing(1);
    let workflow = walk("work", &["work", "work"]).build().unwrap();
    let build = |builder: Builder| builder.workflow(workflow).action("work", script.action());
    let engine = TestEngine::start_on(watched.clone(), clock.clone(), build).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "work").await;
    let mut left = 3;
    watched.rule(move |commit| match commit.handles.first().map(|write| &write.then) {
        Some(HandleChange::SetOwner(None)) if left > 0 => {
            left -= 1;
            Fate::Fails
        }
        _ => Fate::Arrives,
    });
    let failed = as_time_passes(&clock, flows.resume(Resume::new(&token))).await;
    assert!(matches!(failed, Err(FlowError::Failed(_))), "{failed:?}");
    assert_eq!(handles(&flows).await[0].owner, None);
    next(&flows, &token).await;
}

/// E6: if the result of a step cannot be written because the store is unavailable, nothing has happened.
#[tokio::test]
async fn a_step_that_cannot_be_stored_has_not_happened() {
    for strategy in ["sealed", "handle"] {
        let gate = Gate::new();
        gate.open(100);
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let engine = TestEngine::start_on(watched.clone(), clock.clone(), gated(&gate)).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "slow").await;
        watched.rule(|commit| if commit.cells.is_empty() { Fate::Arrives } else { Fate::Fails });
        let failed = as_time_passes(&clock, flows.resume(Resume::new(&token))).await;
        assert!(matches!(failed, Err(FlowError::Engine(_))), "{strategy}: {failed:?}");
        watched.rule(|_| Fate::Arrives);
        assert_eq!(sum(&engine).await, Value::Null, "{strategy}");
        assert_eq!(go(&flows, &token).await.unwrap().waits[0].place, "p1", "{strategy}");
        assert_eq!(sum(&engine).await, json!(1), "{strategy}");
    }
}

/// E6: another caller consumes the handle between the read and the reservation: the late one runs nothing.
#[tokio::test]
async fn a_late_reservation_runs_nothing() {
    let gate = Gate::new();
    gate.open(100);
    let (store, clock) = ground().await;
    let watched = Watched::new(store.clone());
    let one = TestEngine::start_on(watched.clone(), clock.clone(), gated(&gate)).await.unwrap();
    let two = Arc::new(TestEngine::start_on(store, clock.clone(), gated(&gate)).await.unwrap());
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let faster = Resume::new(&token);
    watched.first(async move { drop(there.resume(faster).await.unwrap()) });
    let late = as_time_passes(&clock, here.resume(Resume::new(&token))).await;
    assert_eq!(late, Err(FlowError::Gone));
    assert_eq!((gate.began(), sum(&one).await), (1, json!(1)));
}
