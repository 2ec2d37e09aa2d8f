//! Of any number of resumes of one handle exactly one runs the step, whoever dies, fails or goes away.

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
use crate::kit::{self, Fate, LEASE_MS, Watched, eventually, ground, mortal, soon};
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

/// A resume in a task of its own.
fn apart(flows: &Flows, token: &str) -> tokio::task::JoinHandle<Result<Answer, FlowError>> {
    let (flows, token) = (flows.clone(), token.to_owned());
    tokio::spawn(async move { flows.resume(Resume::new(token)).await })
}

/// E6: while one runs the step, the others are told to come back; then the token is gone.
#[tokio::test]
async fn one_of_many_runs_the_step_and_the_others_are_told_to_come_back() {
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
    assert_eq!(flows.show(&token).await.unwrap().waits[0].place, "p0", "looking is free");
    gate.open(10);
    assert_eq!(soon(first).await.unwrap().unwrap().waits[0].place, "p1");
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
    assert_eq!((gate.began(), sum(&engine).await), (1, json!(1)));
}

/// E6: all at once, from two processes: one success, one run of the action.
#[tokio::test]
async fn many_at_once_from_two_processes_are_one_success() {
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

/// E6: a step without an action has no reservation, and one success all the same.
#[tokio::test]
async fn many_at_once_on_a_step_without_an_action_are_one_success() {
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

/// E6: if the step fails, however, the handle is good again at once.
#[tokio::test]
async fn a_step_that_fails_leaves_the_handle_good_at_once() {
    let work = |cx: Cx| async move {
        cx.kv("test").increment("sum", 1)?;
        match cx.payload().as_str() {
            Some("panic") => panic!("it was told to"),
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

/// E6: if the process dies while the action runs, the handle is good again once that is noticed, and is advanced once.
#[tokio::test]
async fn a_handle_of_a_dead_process_is_good_again_once_that_is_noticed() {
    let gate = Gate::new();
    let (store, clock) = ground().await;
    let (one, tasks) = mortal(store.clone(), &clock, gated(&gate)).await;
    let (two, _tasks) = mortal(store, &clock, gated(&gate)).await;
    let (here, there) = (flows(&one, "handle"), flows(&two, "handle"));
    let token = begun(&here, "slow").await;
    let first = apart(&here, &token);
    eventually(async || gate.inside() == 1).await;
    tasks.kill().await;
    assert!(soon(first).await.unwrap().is_err());
    assert_eq!(go(&there, &token).await, Err(BUSY), "nobody has noticed yet");
    gate.open(10);
    two.advance(Duration::from_millis(LEASE_MS + 1_000)).await;
    let answer = go(&there, &token).await.unwrap();
    assert_eq!((answer.waits[0].place.as_str(), gate.began()), ("p1", 2));
    assert_eq!(go(&there, &token).await, Err(FlowError::Gone));
    assert_eq!(sum(&two).await, json!(1));
    assert_eq!(go(&there, &answer.token.unwrap()).await.unwrap().status, Status::Completed);
}

/// E6: a process that only seemed dead comes back too late: what it did is void.
#[tokio::test]
async fn a_process_that_comes_back_too_late_advances_nothing() {
    let gate = Gate::new();
    let (store, clock) = ground().await;
    let (one, ice) = crate::world::freezable(store.clone(), &clock, gated(&gate)).await;
    let (two, _tasks) = mortal(store, &clock, gated(&gate)).await;
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

/// E6: an engine that is stopped while the action runs leaves a handle that others can use.
#[tokio::test]
async fn a_handle_of_a_process_that_was_stopped_is_good_for_others() {
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

/// E6: whoever asked may go away: what they began is brought to its end, and nothing stays reserved.
#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_reserved() {
    let gate = Gate::new();
    let engine = kit::start(gated(&gate)).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "slow").await;
    let client = apart(&flows, &token);
    eventually(async || gate.inside() == 1).await;
    client.abort();
    let _ = client.await;
    assert_eq!(gate.dropped(), 0, "the step goes on");
    gate.open(1);
    eventually(async || sum(&engine).await == json!(1)).await;
    let rows = handles(&flows).await;
    assert_eq!((rows.len(), rows[0].owner), (1, None));
    assert_eq!(go(&flows, &token).await, Err(FlowError::Gone));
}

/// E6: the same with a step that fails when nobody is there any more.
#[tokio::test]
async fn a_client_that_goes_away_from_a_step_that_fails_leaves_the_handle_good() {
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

/// E6: an answer of the store that is lost is looked up, whichever it is: the flow goes its way once.
#[tokio::test]
async fn lost_answers_of_the_store_are_looked_up() {
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

/// E6: the lost answer of a commit that gives a handle back leaves it good.
#[tokio::test]
async fn a_lost_answer_while_a_handle_is_given_back_leaves_it_good() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let script = Script::failing(1);
    let workflow = walk("work", &["work", "work"]).build().unwrap();
    let build = |builder: Builder| builder.workflow(workflow).action("work", script.action());
    let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "work").await;
    watched.rule(|commit| match commit.handles.first().map(|write| &write.then) {
        Some(HandleChange::Own(None)) => Fate::AnswerLost,
        _ => Fate::Arrives,
    });
    assert!(matches!(go(&flows, &token).await, Err(FlowError::Failed(_))));
    assert_eq!(handles(&flows).await[0].owner, None);
    next(&flows, &token).await;
    assert_eq!(script.calls().len(), 2);
}

/// E6: a store that is out of reach for a while when a handle is to be given back gets it back later.
#[tokio::test]
async fn a_handle_is_given_back_as_soon_as_the_store_is_there() {
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
        Some(HandleChange::Own(None)) if left > 0 => {
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

/// E6: if what a step did cannot be written because the store is out of reach, nothing has happened.
#[tokio::test]
async fn a_step_that_cannot_be_written_has_not_happened() {
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

/// E6: somebody uses the handle up between the reading and the reserving: whoever comes too late runs nothing.
#[tokio::test]
async fn whoever_reserves_too_late_runs_nothing() {
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
