//! Policies of steps in the engine: calls made at most once, retries with a budget, forks that are complete early,
//! failed waits and heartbeats.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::document::WorkflowSource;
use stepwell::core::retry::{Backoff, Factor, Jitter, Retry};
use stepwell::core::snapshot::RunEnd;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Failure};
use stepwell::engine::Builder;
use stepwell::flow::{CreateAnswerLink, FlowError, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{
    Actor, AnswerWait, Command, EngineError, FailWait, ListWaits, Operator, Permission, Poll, RemoteAction,
    Run, Simulation, Start, WaitId,
};

use crate::flows::flows;
use crate::kit::{
    self, LEASE_MS, audit, error_code, ground, history_actions, places, soon, start_killable, status, version,
};
use crate::world::{Gate, Script, job};

const SECOND: Duration = Duration::from_secs(1);
/// The time after which a crashed process has certainly been detected.
const NOTICED: Duration = Duration::from_millis(LEASE_MS + LEASE_MS / 3);

fn document(text: &str) -> Definition {
    WorkflowSource::read(text, Some("test")).unwrap_or_else(|wrong| panic!("{wrong}")).definition().clone()
}

async fn begun(engine: &TestEngine, workflow: &str) -> Run {
    let run = engine.start(Start::new(workflow).input(&json!({}))).await.unwrap();
    engine.settle().await;
    run
}

async fn output(run: &Run) -> Value {
    match run.view().await.unwrap().snapshot.finished() {
        Some(RunEnd::Completed { output, .. }) => output.clone().unwrap_or_default(),
        other => panic!("the run has not completed: {other:?}"),
    }
}

fn gated(definition: Definition, gate: &Gate) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = gate.action();
    move |engine| engine.workflow(definition).action("work", action)
}

fn scripted(definition: Definition, script: &Script) -> impl FnOnce(Builder) -> Builder + use<> {
    let action = script.action();
    move |engine| engine.workflow(definition).action("work", action)
}

/// A call that is made at most once, whose error is the result of the run.
fn charge(retry: &str) -> Definition {
    document(&format!(
        "
steps:
  - id: charge
    type: action.call
    action: work
    delivery: atMostOnce
    retry: {retry}
    onError: [{{ id: failed, type: control.return, value: {{ $expr: error.code }} }}]
  - {{ id: done, type: control.return, value: charged }}
"
    ))
}

// Calls made at most once.

/// A process crashes while the call runs: another process does not make it again.
#[tokio::test]
async fn interrupted_call_is_not_made_again() {
    let (store, clock) = ground().await;
    let gate = Gate::new();
    let (first, tasks) = start_killable(store.clone(), &clock, gated(charge("3"), &gate)).await;
    let run = begun(&first, "test").await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    let script = Script::good();
    let (second, _tasks) = start_killable(store, &clock, scripted(charge("3"), &script)).await;
    second.advance(NOTICED).await;
    let run = second.run(run.id());
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("interrupted")));
    assert_eq!(script.calls().len(), 0);
    let failures = run.view().await.unwrap().ledger.failures;
    assert!(failures.is_empty() || failures[0].error.message.contains("at most once"), "{failures:?}");
}

/// A policy that lists `interrupted` allows another attempt, which is counted.
#[tokio::test]
async fn interrupted_call_is_retried_if_the_policy_lists_it() {
    let (store, clock) = ground().await;
    let policy = "{ attempts: 1, delay: 1s, retryOn: [interrupted] }";
    for crashes in [1, 2] {
        let mut run = None;
        for _ in 0..crashes {
            let gate = Gate::new();
            let (engine, tasks) = start_killable(store.clone(), &clock, gated(charge(policy), &gate)).await;
            match run {
                None => run = Some(begun(&engine, "test").await.id()),
                Some(_) => engine.advance(NOTICED + SECOND).await,
            }
            assert_eq!(gate.inside(), 1, "an attempt is made");
            tasks.kill().await;
        }
        let script = Script::good();
        let (engine, tasks) = start_killable(store.clone(), &clock, scripted(charge(policy), &script)).await;
        engine.advance(NOTICED + SECOND).await;
        let (run, expected) =
            (engine.run(run.unwrap()), if crashes == 1 { "charged" } else { "interrupted" });
        assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!(expected)));
        let attempts: Vec<_> = script.calls().iter().map(|call| call.attempt).collect();
        assert_eq!(attempts, if crashes == 1 { vec![2] } else { vec![] });
        tasks.kill().await;
    }
}

/// The end of the grace period aborts the call: it counts as begun, and nothing handles the error.
#[tokio::test]
async fn call_aborted_at_shutdown_counts_as_begun() {
    let (store, clock) = ground().await;
    let once = || job(Transition::at_most_once);
    let gate = Gate::new();
    let (first, _first) = start_killable(store.clone(), &clock, gated(once(), &gate)).await;
    let run = begun(&first, "job").await;
    let stopping = first.engine().clone();
    let stopped = tokio::spawn(async move { stopping.stop(SECOND).await });
    first.advance(SECOND).await;
    soon(stopped).await.unwrap();
    assert_eq!(gate.dropped(), 1);
    let script = Script::good();
    let (second, _second) = start_killable(store, &clock, scripted(once(), &script)).await;
    second.advance(NOTICED).await;
    let run = second.run(run.id());
    assert_eq!(
        (status(&run).await, error_code(&run).await.as_deref()),
        (Status::Failed, Some("interrupted"))
    );
    assert_eq!(script.calls().len(), 0);
    second.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    second.settle().await;
    assert_eq!(
        (status(&run).await, script.calls().len()),
        (Status::Completed, 1),
        "an operator may repeat it"
    );
}

/// A call that has not begun when its process crashes is made by another process.
#[tokio::test]
async fn call_that_has_not_begun_is_made_after_a_crash() {
    let (store, clock) = ground().await;
    let text = "
steps:
  - { id: before, type: wait.sleep, for: 5s }
  - { id: charge, type: action.call, action: work, delivery: atMostOnce }
";
    let (first, tasks) =
        start_killable(store.clone(), &clock, scripted(document(text), &Script::good())).await;
    let run = begun(&first, "test").await;
    tasks.kill().await;
    let script = Script::good();
    let (second, _tasks) = start_killable(store, &clock, scripted(document(text), &script)).await;
    second.advance(NOTICED + 5 * SECOND).await;
    assert_eq!((status(&second.run(run.id())).await, script.calls().len()), (Status::Completed, 1));
}

/// A worker whose lease expires may have made the call, so no other worker gets it.
#[tokio::test]
async fn expired_lease_of_a_call_made_at_most_once_interrupts_it() {
    let engine = kit::start(|builder| builder).await.unwrap();
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    engine.register(charge("3")).unwrap();
    let run = begun(&engine, "test").await;
    let asks = || Poll::new("ann", ["work"]).lease(Duration::from_secs(10));
    let released = engine.tasks().poll(asks()).await.unwrap().remove(0);
    engine.tasks().release(released.id, released.fence).await.unwrap();
    assert_eq!(engine.tasks().poll(asks()).await.unwrap().len(), 1, "a released task has not begun");
    engine.advance(11 * SECOND).await;
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("interrupted")));
    assert_eq!(engine.tasks().poll(asks()).await.unwrap(), []);
}

/// A flow in a token or behind a handle has no record of a call that has begun.
#[tokio::test]
async fn call_made_at_most_once_needs_a_durable_run() {
    let text =
        "strategy: sealed\nsteps: [{ id: charge, type: action.call, action: work, delivery: atMostOnce }]";
    let problems = WorkflowSource::read(text, Some("test")).unwrap_err().to_string();
    assert!(problems.contains("made at most once") && problems.contains("charge"), "{problems}");
}

// Retries.

/// The budget begins with the first attempt, also for a transition that a signal fires.
#[tokio::test]
async fn retries_end_with_the_budget_of_their_policy() {
    let retry = || Retry {
        attempts: 9,
        delay_ms: 1_000,
        factor: Factor::new(3.0).unwrap(),
        budget_ms: Some(5_000),
        ..Retry::default()
    };
    let script = Script::bad();
    let definition = crate::world::desk(|work| work.retry(retry()));
    let engine = kit::start(scripted(definition, &script)).await.unwrap();
    let run = begun(&engine, "desk").await;
    engine.advance(60 * SECOND).await;
    run.signal(stepwell::Signal::new("GO")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("busy")));
    assert_eq!(script.pauses(), [1_000, 3_000], "the next attempt would start after 13 s");
    engine.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!(script.calls().len(), 6, "a manual retry has a budget of its own");
}

/// Two runs wait for different times, and each time follows from its run.
#[tokio::test]
async fn jitter_spreads_the_retries_of_different_runs() {
    let retry = || Retry {
        attempts: 1,
        delay_ms: 30_000,
        backoff: Backoff::Fixed,
        jitter: Jitter::Full,
        ..Retry::default()
    };
    let script = Script::bad();
    let engine = kit::start(scripted(job(|work| work.retry(retry())), &script)).await.unwrap();
    let mut planned = Vec::new();
    for _ in 0..4 {
        let run = begun(&engine, "job").await;
        let view = run.view().await.unwrap();
        let activation = view.ledger.attempts[0].activation;
        let delay = retry().jittered_delay(1, run.id(), activation).unwrap();
        assert_eq!(view.ledger.attempts[0].next, Some(engine.now().plus_ms(delay)));
        planned.push(delay);
    }
    planned.dedup();
    assert!(planned.len() > 1, "{planned:?}");
}

// Forks.

/// The first success ends the other branch, and what its action does later is discarded.
#[tokio::test]
async fn first_success_ends_the_actions_of_the_other_branches() {
    let text = "
steps:
  - id: race
    type: control.parallel
    complete: first
    saveAs: all
    branches:
      - [{ id: slow, type: action.call, action: work }]
      - [{ id: fast, type: wait.signal, signal: GO }]
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    let gate = Gate::new();
    let engine = kit::start(gated(document(text), &gate)).await.unwrap();
    let run = begun(&engine, "test").await;
    assert_eq!(gate.inside(), 1);
    run.signal(stepwell::Signal::new("GO").with(&json!(7))).await.unwrap();
    engine.settle().await;
    assert_eq!((gate.inside(), gate.dropped()), (0, 1), "the action is dropped");
    let expected = json!([{"status": "ended"}, {"status": "completed", "output": 7}]);
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, expected));
}

// Waits.

const ASK: &str = "
steps:
  - id: ask
    type: human.task
    title: Go?
    answerers: [user:ann]
    heartbeat: 1m
    timeout: 10m
    onError: [{ id: failed, type: control.return, value: { $expr: error.code } }]
  - { id: done, type: control.return, value: { $expr: vars.ask } }
";

async fn open(engine: &TestEngine, run: &Run) -> WaitId {
    let page = engine.list_waits(ListWaits { run: Some(run.id()), limit: 10, ..ListWaits::default() }).await;
    page.unwrap().items[0].id
}

fn ann() -> Actor {
    Actor::new("apikey:ann", [Permission::Answer]).with_user("ann")
}

fn rejected() -> FailWait {
    FailWait::new(Failure::new("rejected", "the supplier declined"))
}

/// G2, G3: failing a wait needs the permission to answer it, counts as the answer, and is audited.
#[tokio::test]
async fn failed_wait_is_answered_once_by_its_answerers() {
    let engine = kit::start(|builder| builder.workflow(document(ASK))).await.unwrap();
    let run = begun(&engine, "test").await;
    let wait = open(&engine, &run).await;
    let joe = engine.acting(Actor::new("apikey:joe", [Permission::Manage]).with_user("joe"));
    assert!(matches!(joe.fail_wait(wait, rejected()).await, Err(EngineError::NotAnAnswerer { .. })));
    assert!(matches!(joe.heartbeat_wait(wait, None).await, Err(EngineError::NotAnAnswerer { .. })));
    let empty = FailWait::new(Failure::new("", "no code"));
    assert!(matches!(engine.fail_wait(wait, empty).await, Err(EngineError::Invalid(_))));
    let ann = engine.acting(ann());
    let keyed = || FailWait { key: Some("k".to_owned()), ..rejected() };
    assert!(soon(ann.fail_wait(wait, keyed())).await.unwrap().is_new);
    assert!(!soon(ann.fail_wait(wait, keyed())).await.unwrap().is_new, "the same request is repeated");
    engine.settle().await;
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("rejected")));
    assert_eq!(history_actions(&engine, run.id()).await[1], "__fail_wait:ask");
    for late in [
        ann.answer_wait(wait, AnswerWait::default()).await.map(drop),
        ann.fail_wait(wait, FailWait::new(Failure::new("other", ""))).await.map(drop),
        ann.heartbeat_wait(wait, None).await.map(drop),
    ] {
        match late {
            Err(EngineError::AlreadyAnswered { first, .. }) => {
                assert_eq!(first.by.as_deref(), Some("apikey:ann"));
            }
            other => panic!("{other:?}"),
        }
    }
    let rows = audit(&engine).await;
    let failed: Vec<_> = rows.iter().filter(|(_, row)| row.operation == "wait.fail").collect();
    assert_eq!((failed.len(), failed[0].1.actor.as_deref()), (1, Some("apikey:ann")));
}

/// If nothing handles the error, the run stops with it; after a retry the wait can be answered.
#[tokio::test]
async fn unhandled_failure_of_a_wait_stops_the_run() {
    let text = "steps: [{ id: ask, type: wait.signal, signal: GO }]";
    let engine = kit::start(|builder| builder.workflow(document(text))).await.unwrap();
    let run = begun(&engine, "test").await;
    let wait = open(&engine, &run).await;
    engine.fail_wait(wait, rejected()).await.unwrap();
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("rejected")));
    let again = engine.fail_wait(wait, rejected()).await;
    assert!(matches!(again, Err(EngineError::WrongStatus { .. })), "{again:?}");
    assert!(matches!(engine.heartbeat_wait(wait, None).await, Err(EngineError::Invalid(_))));
    engine.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.answer_wait(wait, AnswerWait::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

/// A heartbeat extends the wait without a new version, also across processes; the timeout of the wait stays.
#[tokio::test]
async fn heartbeats_extend_a_wait_until_its_timeout() {
    let (store, clock) = ground().await;
    let build = |builder: Builder| builder.workflow(document(ASK));
    let (first, tasks) = start_killable(store.clone(), &clock, build).await;
    let run = begun(&first, "test").await;
    let (wait, before) = (open(&first, &run).await, version(&run).await);
    first.advance(50 * SECOND).await;
    let due = first.heartbeat_wait(wait, None).await.unwrap();
    assert_eq!(due, first.now().plus_ms(60_000));
    assert_eq!(first.show_wait(wait).await.unwrap().due, Some(due));
    tasks.kill().await;
    let (second, _tasks) = start_killable(store, &clock, build).await;
    let run = second.run(run.id());
    for _ in 0..11 {
        second.advance(49 * SECOND).await;
        assert_eq!((status(&run).await, version(&run).await), (Status::Waiting, before));
        second.heartbeat_wait(wait, None).await.unwrap();
    }
    assert_eq!(history_actions(&second, run.id()).await, ["__start"]);
    second.advance(30 * SECOND).await;
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("timeout")));
}

#[tokio::test]
async fn wait_without_heartbeats_fails() {
    let engine = kit::start(|builder| builder.workflow(document(ASK))).await.unwrap();
    let run = begun(&engine, "test").await;
    let wait = open(&engine, &run).await;
    engine.advance(59 * SECOND).await;
    engine.heartbeat_wait(wait, None).await.unwrap();
    engine.advance(59 * SECOND).await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["ask".into()]));
    engine.advance(SECOND).await;
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("heartbeatTimeout")));
}

/// An answer link is a callback: it can extend and fail its wait; a link to some outcomes cannot fail it.
#[tokio::test]
async fn answer_link_fails_and_extends_its_wait() {
    let text = ASK.replace("    answerers: [user:ann]\n", "");
    let engine = kit::start(|builder| builder.workflow(document(&text))).await.unwrap();
    let flows = flows(&engine, "durable");
    let run = begun(&engine, "test").await;
    let link =
        async |link: CreateAnswerLink| soon(flows.create_answer_link(link)).await.unwrap().token.unwrap();
    let only = link(CreateAnswerLink::new(run.id()).outcome("ask")).await;
    let refused = flows.fail_link(&only, Failure::new("rejected", "")).await;
    assert!(matches!(refused, Err(FlowError::Outcome { .. })), "{refused:?}");
    let token = link(CreateAnswerLink::new(run.id())).await;
    engine.advance(40 * SECOND).await;
    assert_eq!(flows.heartbeat_link(&token).await.unwrap(), engine.now().plus_ms(60_000));
    engine.advance(40 * SECOND).await;
    soon(flows.fail_link(&token, Failure::new("rejected", "no"))).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, output(&run).await), (Status::Completed, json!("rejected")));
    for gone in [
        flows.fail_link(&token, Failure::new("rejected", "no")).await,
        flows.heartbeat_link(&token).await.map(drop),
        flows.resume(Resume::new(&token)).await.map(drop),
    ] {
        assert_eq!(gone, Err(FlowError::Gone));
    }
}

/// A test case of a document can fail a wait and send heartbeats; a run with a failed wait is exported as such a case.
#[tokio::test]
async fn test_cases_fail_waits_and_send_heartbeats() {
    let cases = "
tests:
  - name: a heartbeat keeps the task open
    happens: [{ after: 50s }, { heartbeat: ask }, { after: 50s }, { fail: ask, error: { code: rejected } }]
    expect: { result: rejected }
  - name: without one it fails
    happens: [{ after: 70s }]
    expect: { result: heartbeatTimeout }
";
    let source = WorkflowSource::read(&format!("{}\n{cases}", ASK.trim_end()), Some("test")).unwrap();
    let report = Simulation::of(&source).test_all(source.cases()).await;
    assert!(report.passed(), "{report:?}");
    let wrong = cases.replace("heartbeat: ask", "heartbeat: asks");
    let problems = WorkflowSource::read(&format!("{}\n{wrong}", ASK.trim_end()), Some("test")).unwrap_err();
    assert!(problems.to_string().contains("there is no step `asks` (did you mean `ask`?)"), "{problems}");

    let engine = kit::start(|builder| builder.workflow(document(ASK))).await.unwrap();
    let run = begun(&engine, "test").await;
    engine.advance(20 * SECOND).await;
    engine.fail_wait(open(&engine, &run).await, rejected()).await.unwrap();
    engine.settle().await;
    let case = run.as_test_case("it was declined").await.unwrap();
    let report = Simulation::of(&source).test_all(&[case]).await;
    assert!(report.passed(), "{report:?}");
    let run = begun(&engine, "test").await;
    let wait = open(&engine, &run).await;
    engine.advance(50 * SECOND).await;
    engine.heartbeat_wait(wait, None).await.unwrap();
    engine.advance(20 * SECOND).await;
    engine.fail_wait(wait, rejected()).await.unwrap();
    engine.settle().await;
    let refused = run.as_test_case("it was extended").await.unwrap_err().to_string();
    assert!(refused.contains("heartbeats are not in the history"), "{refused}");
}

/// A process that has lost the driver of a run does not know whether the call has begun.
#[tokio::test]
async fn lost_driver_counts_as_an_interruption() {
    let script = Script::good();
    let build = scripted(job(Transition::at_most_once), &script);
    let limits = |options: &mut stepwell::Options| {
        (options.lease_ms, options.maintenance_interval_ms) = (10_000, 600_000);
    };
    let engine = kit::start(|builder| build(builder).with(limits)).await.unwrap();
    let theirs = engine.for_tenant(kit::other_tenant());
    let run = crate::isolation::undriven(&engine, &theirs).await;
    engine.advance(720 * SECOND).await;
    assert_eq!(
        (status(&run).await, error_code(&run).await.as_deref()),
        (Status::Failed, Some("interrupted"))
    );
    assert_eq!(script.calls().len(), 0);
}
