//! Failed actions: they are retried by policy, lead to the error place, or stop the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::retry::{Backoff, Retry};
use stepwell::core::spec::{Guard, Transition};
use stepwell::core::{Definition, Failure, Limits, Spec};
use stepwell::ledger::FailedAttempt;
use stepwell::store::{Precondition, Status};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{
    ActionError, Command, Cx, EngineError, ManualClock, Operator, Run, RunError, Signal, Signalled, Start,
};

use crate::kit::{
    self, context, error_code, history, history_actions, places, soon, status, store_within, version,
};
use crate::world::{Gate, Given, Script, desk, desk_spec, job, job_spec, put, row, saved};

const SECOND: Duration = Duration::from_secs(1);

async fn with(definition: Definition, script: &Script) -> TestEngine {
    kit::start(|engine| engine.workflow(definition).action("work", script.action())).await.unwrap()
}

fn attempts(attempts: u32) -> Retry {
    Retry { attempts, ..Retry::default() }
}

async fn failures(run: &Run) -> Vec<FailedAttempt> {
    run.view().await.unwrap().ledger.failures
}

async fn retry(engine: &TestEngine, run: &Run) {
    engine.operate(run.id(), Command::Retry, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
}

// No retry by default.

#[tokio::test]
async fn failed_run_without_retry_policy_keeps_place_and_error() {
    let script = Script::bad();
    let engine = with(job(|work| work), &script).await;
    let run = engine.start(Start::new("job").input(&json!({"kept": 1}))).await.unwrap();
    engine.settle().await;
    let before = row(&engine, run.id()).await;
    engine.advance(Duration::from_secs(24 * 3_600)).await;
    assert_eq!(script.calls().len(), 1, "it is not retried automatically");
    assert_eq!(row(&engine, run.id()).await, before);
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.has_error(), view.wake, view.owner), (Status::Failed, true, None, None));
    assert_eq!((version(&run).await, places(&run).await), (0, vec!["todo".into()]));
    assert_eq!(context(&run).await, json!({"kept": 1}));
    let stopped = view.ledger.stopped.unwrap();
    assert_eq!((stopped.at, stopped.error), (BEGINS, Failure::new("busy", "the line is engaged")));
    assert!(matches!(soon(run.result()).await, Err(RunError::Failed { error, .. }) if error.code == "busy"));
}

#[tokio::test]
async fn manual_retry_repeats_the_transition_with_its_payload() {
    let script = Script::failing(2);
    let engine = with(desk(|work| work), &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    let payload = json!({"order": 7});
    assert_eq!(run.signal(Signal::new("GO").with(&payload)).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Failed);
    retry(&engine, &run).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 2));
    retry(&engine, &run).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!("done"));
    let calls = script.calls();
    assert!(calls.iter().all(|call| call.payload == payload && call.at == BEGINS), "{calls:?}");
    assert!(calls.iter().all(|call| call.key == calls[0].key), "every attempt has the same key: {calls:?}");
    let entry = history(&engine, run.id()).await[1].0.clone();
    assert_eq!((entry.action.as_str(), entry.payload), ("GO", Some(payload)));
}

#[tokio::test]
async fn attempt_numbers_continue_after_a_manual_retry() {
    let script = Script::failing(2);
    let engine = with(job(|work| work.retry(attempts(1))), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!(status(&run).await, Status::Failed);
    retry(&engine, &run).await;
    let numbers: Vec<_> = script.calls().iter().map(|call| call.attempt).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[tokio::test]
async fn manual_retry_resets_the_retry_budget() {
    let script = Script::bad();
    let engine = with(job(|work| work.retry(attempts(2))), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 3));
    retry(&engine, &run).await;
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 6));
}

#[tokio::test]
async fn signals_to_a_failed_run_are_buffered_until_retry() {
    let definition = Spec::new("two")
        .step("a")
        .step("b")
        .end("c")
        .signal("GO")
        .transition(Transition::new("ab", "a", "b").on_signal("GO").action("work"))
        .transition(Transition::new("bc", "b", "c").on_signal("GO").action_with(saved("work", "worked")))
        .build()
        .unwrap();
    let script = Script::failing(1);
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("two")).await.unwrap();
    run.signal(Signal::new("GO").with(&1)).await.unwrap();
    engine.settle().await;
    assert_eq!(run.signal(Signal::new("GO").with(&2)).await.unwrap(), Signalled::Buffered);
    engine.settle().await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 1));
    retry(&engine, &run).await;
    assert_eq!(status(&run).await, Status::Completed);
    let payloads: Vec<_> = script.calls().iter().map(|call| call.payload.clone()).collect();
    assert_eq!(payloads, [json!(1), json!(1), json!(2)]);
}

#[tokio::test]
async fn dismiss_drops_the_failed_signal_and_takes_the_next() {
    let script = Script::failing(1);
    let engine = with(desk(|work| work), &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO").with(&"first")).await.unwrap();
    engine.settle().await;
    run.signal(Signal::new("GO").with(&"second")).await.unwrap();
    engine.operate(run.id(), Command::Dismiss, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let payloads: Vec<_> = script.calls().iter().map(|call| call.payload.clone()).collect();
    assert_eq!(payloads, [json!("first"), json!("second")]);
}

#[tokio::test]
async fn dismissed_buffered_signal_leaves_the_inbox() {
    let script = Script::failing(1);
    let definition = desk_spec(|work| work).step("before").initial("before").signal("OPEN");
    let definition = definition.on_signal("begin", "before", "OPEN", "open").build().unwrap();
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    assert_eq!(run.signal(Signal::new("GO").with(&"kept")).await.unwrap(), Signalled::Buffered);
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, row(&engine, run.id()).await.inbox.len()), (Status::Failed, 1));
    engine.operate(run.id(), Command::Dismiss, &Operator::named("ada")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, row(&engine, run.id()).await.inbox.len()), (Status::Waiting, 0));
    assert_eq!(script.calls().len(), 1);
    assert_eq!(run.signal(Signal::new("GO")).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn signal_of_a_failed_transition_does_not_expire() {
    let script = Script::failing(1);
    let definition = desk_spec(|work| work).step("before").initial("before").signal("OPEN");
    let definition = definition.on_signal("begin", "before", "OPEN", "open").build().unwrap();
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO").with(&7).ttl(10 * SECOND)).await.unwrap();
    run.signal(Signal::new("OPEN")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!(status(&run).await, Status::Failed);
    retry(&engine, &run).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(script.calls()[1].payload, json!(7));
}

#[tokio::test]
async fn run_that_has_not_failed_cannot_be_retried_or_dismissed() {
    let engine = with(desk(|work| work), &Script::good()).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    for command in [Command::Retry, Command::Dismiss] {
        let before = row(&engine, run.id()).await;
        assert!(engine.operate(run.id(), command, &Operator::named("ada")).await.is_err());
        assert_eq!(row(&engine, run.id()).await, before);
    }
    run.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    let refused = engine.operate(run.id(), Command::Retry, &Operator::named("ada")).await;
    assert!(matches!(refused, Err(EngineError::WrongStatus { .. })), "{refused:?}");
}

#[tokio::test]
async fn result_returns_the_failure_and_after_a_retry_the_output() {
    let script = Script::failing(1);
    let engine = with(desk(|work| work), &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    assert!(matches!(soon(run.result()).await, Err(RunError::Failed { .. })));
    engine.operate(run.id(), Command::Retry, &Operator::default()).await.unwrap();
    assert_eq!(soon(run.result()).await.unwrap(), json!("done"));
}

// Retries by policy.

/// The delays between the attempts of an action that always fails, in milliseconds.
async fn pauses(retry: Retry) -> Vec<u64> {
    let script = Script::bad();
    let engine = with(job(|work| work.retry(retry)), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!(status(&run).await, Status::Failed);
    let last = script.calls().last().unwrap().at;
    assert_eq!(run.view().await.unwrap().ledger.stopped.unwrap().at, last);
    script.pauses()
}

#[tokio::test]
async fn default_backoff_doubles_from_one_to_thirty_seconds() {
    let expected = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
    assert_eq!(pauses(attempts(7)).await, expected);
}

#[tokio::test]
async fn fixed_backoff_keeps_the_delay() {
    let retry = Retry { delay_ms: 700, backoff: Backoff::Fixed, ..attempts(3) };
    assert_eq!(pauses(retry).await, [700, 700, 700]);
}

#[tokio::test]
async fn retry_delay_is_capped_at_its_maximum() {
    let fixed = Retry { delay_ms: 5_000, max_delay_ms: 3_000, backoff: Backoff::Fixed, ..attempts(2) };
    assert_eq!(pauses(fixed).await, [3_000, 3_000]);
    let growing = Retry { delay_ms: 2_000, max_delay_ms: 5_000, ..attempts(4) };
    assert_eq!(pauses(growing).await, [2_000, 4_000, 5_000, 5_000]);
}

#[tokio::test]
async fn attempts_count_retries_after_the_first_attempt() {
    for number in [0, 1, 3] {
        assert_eq!(pauses(attempts(number)).await.len(), number as usize);
    }
}

#[tokio::test]
async fn retry_starts_exactly_when_its_delay_ends() {
    let script = Script::failing(1);
    let engine = with(job(|work| work.retry(attempts(1))), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(999)).await;
    assert_eq!(script.calls().len(), 1);
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.has_error()), (Status::Running, false));
    assert_eq!((view.wake, view.owner), (Some(BEGINS.plus_ms(1_000)), None), "a retry delay needs no owner");
    assert_eq!(
        (version(&run).await, history_actions(&engine, run.id()).await),
        (0, vec!["__start".to_owned()])
    );
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!((script.calls().len(), status(&run).await), (2, Status::Completed));
}

#[tokio::test]
async fn attempts_are_numbered_and_share_an_idempotency_key() {
    let script = Script::failing(3);
    let engine = with(job(|work| work.retry(attempts(3))), &script).await;
    engine.start(Start::new("job")).await.unwrap();
    engine.advance(10 * SECOND).await;
    let calls = script.calls();
    assert_eq!(calls.iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(calls.iter().all(|call| call.key == calls[0].key), "{calls:?}");
}

#[tokio::test]
async fn only_listed_error_codes_are_retried() {
    let listed = Retry { retry_on: Some(vec!["busy".into(), "timeout".into()]), ..attempts(5) };
    let failure = |code: &str| Err(ActionError::new(code, "no"));
    let script = Script::new([failure("busy"), failure("timeout"), failure("closed")]);
    let engine = with(job(|work| work.retry(listed)), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((script.calls().len(), status(&run).await), (3, Status::Failed));
    assert_eq!(error_code(&run).await.as_deref(), Some("closed"));
}

#[tokio::test]
async fn final_failure_is_not_retried() {
    let script = Script::new([Err(ActionError::new("busy", "gone for good").non_retryable())]);
    let engine = with(job(|work| work.retry(attempts(5))), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((script.calls().len(), status(&run).await), (1, Status::Failed));
    assert!(run.view().await.unwrap().ledger.stopped.unwrap().error.is_final);
}

#[tokio::test]
async fn conflict_on_an_explicit_revision_is_final() {
    for expect in [Precondition::Exactly(3), Precondition::Live(1)] {
        let act = move |cx: Cx| async move {
            cx.write(stepwell::store::CellWrite { expect, ..put("cell", json!(1)) })
        };
        let definition = job(|work| work.retry(attempts(5)));
        let engine = kit::start(|engine| engine.workflow(definition).action("work", act)).await.unwrap();
        let run = engine.start(Start::new("job")).await.unwrap();
        engine.advance(60 * SECOND).await;
        let view = run.view().await.unwrap();
        let error = view.ledger.stopped.unwrap().error;
        assert_eq!((error.code.as_str(), error.is_final), ("conflict", true), "{error}");
        assert_eq!(view.ledger.failures.len(), 1);
    }
}

#[tokio::test]
async fn last_ten_failed_attempts_are_recorded() {
    let script = Script::failing(12);
    let policy = Retry { delay_ms: 1_000, backoff: Backoff::Fixed, ..attempts(11) };
    let engine = with(job(|work| work.retry(policy)), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(4 * SECOND).await;
    let so_far: Vec<_> = failures(&run).await.iter().map(|tried| tried.error.message.clone()).collect();
    assert_eq!(so_far, ["failure 1", "failure 2", "failure 3", "failure 4", "failure 5"]);
    engine.advance(60 * SECOND).await;
    assert_eq!(status(&run).await, Status::Failed);
    let failures = failures(&run).await;
    let expected: Vec<_> = (3..=12_u64)
        .map(|number| {
            (BEGINS.plus_ms((number - 1) * 1_000), Failure::new("busy", format!("failure {number}")))
        })
        .collect();
    assert_eq!(failures.into_iter().map(|tried| (tried.at, tried.error)).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn failed_attempts_are_kept_across_manual_retries() {
    let engine = with(job(|work| work), &Script::bad()).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    retry(&engine, &run).await;
    retry(&engine, &run).await;
    assert_eq!(failures(&run).await.len(), 3);
}

#[tokio::test]
async fn other_runs_continue_during_a_retry_delay() {
    let (script, good) = (Script::bad(), Script::good());
    let other = Spec::new("other").step("a").end("b");
    let other = other.transition(Transition::new("ab", "a", "b").action("good")).build().unwrap();
    let policy = Retry { delay_ms: 20_000, ..attempts(1) };
    let definition = job(|work| work.retry(policy));
    let engine = kit::start(|engine| {
        let engine = engine.workflow(definition).workflow(other).with(|options| options.max_runs = 1);
        engine.action("work", script.action()).action("good", good.action())
    });
    let engine = engine.await.unwrap();
    let failing = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let run = engine.start(Start::new("other")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&failing).await, status(&run).await), (Status::Running, Status::Completed));
    assert_eq!(engine.now(), BEGINS);
}

#[tokio::test]
async fn other_branches_continue_during_a_retry_delay() {
    let script = Script::failing(1);
    let policy = Retry { delay_ms: 10_000, ..attempts(1) };
    let definition = Spec::new("pair")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .step("later")
        .join("both", stepwell::core::spec::Quorum::All, ["left", "later"])
        .end("done")
        .signal("NEXT")
        .transition(Transition::new("work", "left", "both").action("work").retry(policy))
        .on_signal("next", "right", "NEXT", "later")
        .transition(Transition::new("later", "later", "both").action("good"))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let good = Script::good();
    let engine = kit::start(|engine| {
        engine.workflow(definition).action("work", script.action()).action("good", good.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!(run.signal(Signal::new("NEXT")).await.unwrap(), Signalled::Consumed);
    engine.settle().await;
    assert_eq!((good.calls().len(), places(&run).await), (1, vec!["both".into(), "left".into()]));
    assert_eq!(script.calls().len(), 1, "the retry delay of the other branch is not shortened");
    engine.advance(9 * SECOND).await;
    assert_eq!((script.pauses(), status(&run).await), (vec![10_000], Status::Completed));
}

#[tokio::test]
async fn failed_branch_keeps_the_results_of_other_branches() {
    let (gate, fails) = (Gate::new(), Gate::new());
    let definition = Spec::new("pair")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", stepwell::core::spec::Quorum::All, ["left", "right"])
        .end("done")
        .transition(Transition::new("l", "left", "both").action("work"))
        .transition(Transition::new("r", "right", "both").action_with(saved("slow", "slow")))
        .auto("finish", "both", "done")
        .build()
        .unwrap();
    let slow = gate.and(|_| Ok(json!("done")));
    let work = fails.and(|cx| match cx.attempt() {
        1 => Err(ActionError::new("busy", "not yet")),
        _ => Ok(Value::Null),
    });
    let engine = kit::start(|engine| engine.workflow(definition).action("work", work).action("slow", slow));
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("pair")).await.unwrap();
    engine.settle().await;
    fails.open(2);
    engine.settle().await;
    assert_eq!((status(&run).await, gate.inside()), (Status::Failed, 1));
    gate.open(1);
    engine.settle().await;
    assert_eq!((status(&run).await, context(&run).await), (Status::Failed, json!({"slow": "done"})));
    assert_eq!(error_code(&run).await.as_deref(), Some("busy"));
    retry(&engine, &run).await;
    assert_eq!((status(&run).await, gate.began()), (Status::Completed, 1));
}

#[tokio::test]
async fn manual_retry_cuts_the_retry_delay_short() {
    let script = Script::failing(1);
    let policy = Retry { delay_ms: 30_000, ..attempts(1) };
    let engine = with(job(|work| work.retry(policy)), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    retry(&engine, &run).await;
    assert_eq!((status(&run).await, script.pauses()), (Status::Completed, vec![0]));
}

// Retries are exhausted.

#[tokio::test]
async fn exhausted_retries_lead_to_the_error_place() {
    let script = Script::bad();
    let seen: Arc<std::sync::Mutex<Vec<Value>>> = Arc::default();
    let comfort = {
        let seen = seen.clone();
        move |cx: Cx| {
            let locals = cx.snapshot().activation(cx.activation()).unwrap().locals.clone();
            seen.lock().unwrap().push(locals["error"].clone());
            async { Ok::<_, ActionError>(()) }
        }
    };
    let definition = job_spec(|work| work.retry(attempts(2)).error_place("broken"))
        .step("broken")
        .step("comforted")
        .transition(Transition::new("comfort", "broken", "comforted").action("comfort"))
        .auto("give up", "comforted", "done")
        .build()
        .unwrap();
    let engine = kit::start(|engine| {
        engine.workflow(definition).action("work", script.action()).action("comfort", comfort)
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_millis(2_999)).await;
    assert_eq!((script.calls().len(), seen.lock().unwrap().len()), (2, 0));
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!((script.calls().len(), status(&run).await), (3, Status::Completed));
    assert!(!run.view().await.unwrap().has_error());
    let names = history_actions(&engine, run.id()).await;
    assert_eq!(names, ["__start", "__error:work", "__auto:comfort", "__auto:give up"]);
    assert_eq!(failures(&run).await.len(), 3, "the last attempt is recorded too");
    let error = json!({"code": "busy", "message": "the line is engaged", "final": false});
    assert_eq!(*seen.lock().unwrap(), [error]);
}

#[tokio::test]
async fn a_final_failure_goes_to_the_error_place_at_once() {
    let script = Script::new([Err(ActionError::new("gone", "for good").non_retryable())]);
    let definition =
        job_spec(|work| work.retry(attempts(5)).error_place("broken")).end("broken").build().unwrap();
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!((script.calls().len(), status(&run).await), (1, Status::Completed));
    assert_eq!(history_actions(&engine, run.id()).await, ["__start", "__error:work"]);
}

#[tokio::test]
async fn signal_that_led_to_the_error_place_is_consumed() {
    let script = Script::bad();
    let definition = desk_spec(|work| work.error_place("again"))
        .step("again")
        .transition(Transition::new("back", "again", "open").after_ms(1_000))
        .build()
        .unwrap();
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("desk")).await.unwrap();
    run.signal(Signal::new("GO").with(&1)).await.unwrap();
    engine.settle().await;
    assert_eq!(places(&run).await, ["again"]);
    assert_eq!(run.signal(Signal::new("GO").with(&2)).await.unwrap(), Signalled::Buffered);
    engine.advance(60 * SECOND).await;
    let payloads: Vec<_> = script.calls().iter().map(|call| call.payload.clone()).collect();
    assert_eq!(payloads, [json!(1), json!(2)], "each signal is attempted once");
    assert_eq!((status(&run).await, run.view().await.unwrap().buffered_signals), (Status::Waiting, 0));
}

/// A call with a preparation step, which a retry repeats.
fn prepared(call: impl FnOnce(Transition) -> Transition) -> Spec {
    let work =
        Transition::new("call", "ready", "done").action("work").retry(attempts(2)).retry_target("unready");
    Spec::new("call")
        .step("unready")
        .step("ready")
        .end("done")
        .transition(Transition::new("prepare", "unready", "ready").action("prepare"))
        .transition(call(work))
}

#[tokio::test]
async fn retry_can_return_to_an_earlier_place() {
    let (script, prepare) = (Script::failing(2), Script::good());
    let engine = kit::start(|engine| {
        let engine = engine.workflow(prepared(|call| call).build().unwrap());
        engine.action("work", script.action()).action("prepare", prepare.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("call")).await.unwrap();
    engine.advance(10 * SECOND).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!((script.pauses(), prepare.pauses()), (vec![1_000, 2_000], vec![1_000, 2_000]));
    let (retry, again) = ("__retry:call", "__auto:prepare");
    let expected = ["__start", again, retry, again, retry, again, "__auto:call"];
    assert_eq!(history_actions(&engine, run.id()).await, expected);
}

#[tokio::test]
async fn retries_from_an_earlier_place_are_counted() {
    let (script, prepare) = (Script::bad(), Script::good());
    let engine = kit::start(|engine| {
        let engine = engine.workflow(prepared(|call| call).build().unwrap());
        engine.action("work", script.action()).action("prepare", prepare.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("call")).await.unwrap();
    engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!((script.calls().len(), prepare.calls().len()), (3, 3));
    assert_eq!((status(&run).await, places(&run).await), (Status::Failed, vec!["ready".into()]));
    assert_eq!(script.calls().iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(failures(&run).await.len(), 3, "failures before the return are recorded too");
}

#[tokio::test]
async fn manual_retry_ignores_the_retry_target() {
    let (script, prepare) = (Script::failing(3), Script::good());
    let engine = kit::start(|engine| {
        let engine = engine.workflow(prepared(|call| call).build().unwrap());
        engine.action("work", script.action()).action("prepare", prepare.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("call")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!(status(&run).await, Status::Failed);
    retry(&engine, &run).await;
    assert_eq!((status(&run).await, prepare.calls().len()), (Status::Completed, 3));
}

#[tokio::test]
async fn signal_survives_a_retry_from_an_earlier_place() {
    let (script, prepare) = (Script::failing(1), Script::good());
    let definition = prepared(|call| call.on_signal("GO")).signal("GO").build().unwrap();
    let engine = kit::start(|engine| {
        engine.workflow(definition).action("work", script.action()).action("prepare", prepare.action())
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("call")).await.unwrap();
    engine.settle().await;
    run.signal(Signal::new("GO").with(&json!({"order": 7}))).await.unwrap();
    engine.advance(10 * SECOND).await;
    assert_eq!((prepare.calls().len(), status(&run).await), (2, Status::Completed));
    assert_eq!(script.calls()[1].payload, json!({"order": 7}));
}

// Errors in actions.

#[tokio::test]
async fn panic_in_an_action_is_a_failure_with_its_message() {
    type Falls = fn() -> Given;
    let cases: [(&str, Falls); 3] = [
        ("a plain text", || panic!("a plain text")),
        ("text number 7", || panic!("text number {}", 7)),
        ("no message", || std::panic::panic_any(7)),
    ];
    for (text, act) in cases {
        let act = move |_: Cx| async move { act() };
        let engine =
            kit::start(|engine| engine.workflow(job(|work| work)).action("work", act)).await.unwrap();
        let run = engine.start(Start::new("job")).await.unwrap();
        engine.settle().await;
        let stopped = run.view().await.unwrap().ledger.stopped.unwrap();
        assert_eq!(stopped.error.code, "panic");
        assert!(stopped.error.message.contains(text), "{}", stopped.error);
        assert_eq!((status(&run).await, run.view().await.unwrap().owner), (Status::Failed, None));
    }
}

#[tokio::test]
async fn panic_is_retried_and_harms_no_other_run() {
    let gate = Gate::new();
    let act =
        |cx: Cx| async move { if cx.attempt() == 1 { panic!("not yet") } else { Ok::<_, ActionError>(()) } };
    let other = Spec::new("other").step("a").end("b");
    let other = other.transition(Transition::new("ab", "a", "b").action("slow")).build().unwrap();
    let engine = kit::start(|engine| {
        let engine = engine.workflow(job(|work| work.retry(attempts(1)))).workflow(other);
        engine.action("work", act).action("slow", gate.action())
    });
    let engine = engine.await.unwrap();
    let slow = engine.start(Start::new("other")).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!((status(&run).await, gate.inside()), (Status::Completed, 1));
    gate.open(1);
    engine.settle().await;
    assert_eq!(status(&slow).await, Status::Completed);
}

#[tokio::test]
async fn undecodable_input_is_a_final_failure() {
    let takes = |_: Cx, number: u32| async move { Ok::<_, ActionError>(number) };
    let action = stepwell::core::spec::ActionSpec {
        name: "work".into(),
        input: json!({"$expr": "context.number"}),
        save_as: None,
        version: None,
    };
    let definition = job(|work| work.action_with(action).retry(attempts(5)));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", takes)).await.unwrap();
    let run = engine.start(Start::new("job").input(&json!({"number": "seven"}))).await.unwrap();
    engine.advance(60 * SECOND).await;
    let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
    assert_eq!((error.code.as_str(), error.is_final), ("invalidInput", true));
    assert!(error.message.contains("seven"), "{error}");
    let patch = Command::Patch { fields: json!({"number": 7}) };
    engine.operate(run.id(), patch, &Operator::default()).await.unwrap();
    retry(&engine, &run).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn unserializable_output_is_a_final_failure() {
    let gives = |_: Cx| async move { Ok::<_, ActionError>(BTreeMap::from([((1, 2), "a pair is no key")])) };
    let definition = job(|work| work.retry(attempts(5)));
    let engine = kit::start(|engine| engine.workflow(definition).action("work", gives)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    let view = run.view().await.unwrap();
    let error = view.ledger.stopped.unwrap().error;
    assert_eq!((error.code.as_str(), error.is_final), ("invalidOutput", true));
    assert_eq!(view.ledger.failures.len(), 1);
}

#[tokio::test]
async fn output_violating_the_context_schema_is_a_final_failure() {
    let schema = json!({"type": "object", "properties": {"worked": {"type": "integer"}}});
    let definition = job_spec(|work| work.action_with(saved("work", "worked")).retry(attempts(5)));
    let definition = definition.context_schema(schema).build().unwrap();
    let script = Script::new([Ok(json!("a text"))]);
    let engine = with(definition, &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 1));
    assert_eq!((error_code(&run).await.as_deref(), context(&run).await), (Some("invalidResult"), json!({})));
}

#[tokio::test]
async fn oversized_output_is_a_final_failure() {
    let limits = Limits { snapshot_bytes: 2_000, ..Limits::default() };
    let definition = job(|work| work.action_with(saved("work", "worked")).retry(attempts(5)));
    let script = Script::new([Ok(json!("x".repeat(3_000)))]);
    let engine = kit::start(|engine| {
        let engine = engine.workflow(definition).action("work", script.action());
        engine.with(|options| options.limits = limits)
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 1));
    assert_eq!((error_code(&run).await.as_deref(), version(&run).await), (Some("invalidResult"), 0));
}

/// Regression: with such a limit, a stored value of more than 16 MiB could not be returned by any expression.
#[tokio::test]
async fn snapshot_limit_above_the_copy_budget_is_refused() {
    let limits = Limits { snapshot_bytes: 16 * 1024 * 1024, ..Limits::default() };
    let started = kit::start(|engine| engine.with(|options| options.limits = limits)).await;
    let why = started.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why.contains("`snapshot_bytes` (16777216)") && why.contains("at most 16777216 bytes"), "{why}");
}

#[tokio::test]
async fn oversized_commit_is_a_final_failure() {
    let store = store_within(Limits { cell_bytes: 100, ..Limits::default() }).await;
    let act = |cx: Cx| async move { cx.write(put("cell", json!("x".repeat(200)))) };
    let definition = job(|work| work.retry(attempts(5)));
    let engine = TestEngine::start_on(store, ManualClock::new(BEGINS), |engine| {
        engine.workflow(definition).action("work", act)
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(60 * SECOND).await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.ledger.failures.len()), (Status::Failed, 1));
    assert_eq!(error_code(&run).await.as_deref(), Some("invalid"));
}

#[tokio::test]
async fn failed_input_expression_stops_the_run_until_retry() {
    let action = stepwell::core::spec::ActionSpec {
        name: "work".into(),
        input: json!({"$expr": "context.missing + 1"}),
        save_as: None,
        version: None,
    };
    let script = Script::good();
    let engine = with(job(|work| work.action_with(action)), &script).await;
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, script.calls().len()), (Status::Failed, 0));
    assert_eq!(error_code(&run).await.as_deref(), Some("expression"));
    let patch = Command::Patch { fields: json!({"missing": 1}) };
    engine.operate(run.id(), patch, &Operator::default()).await.unwrap();
    retry(&engine, &run).await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn error_is_recorded_with_all_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("the order could not be read")]
    struct Outer(#[source] std::num::ParseIntError);
    let act = |_: Cx| async move { "seven".parse::<u32>().map_err(Outer) };
    let engine = kit::start(|engine| engine.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let error = run.view().await.unwrap().ledger.stopped.unwrap().error;
    let text = "the order could not be read: invalid digit found in string";
    assert_eq!(error, Failure::new("error", text));
}

#[tokio::test]
async fn panicking_guard_stops_the_run_with_its_message() {
    let definition = Spec::new("guarded")
        .step("a")
        .end("b")
        .transition(Transition::new("ab", "a", "b").guard(Guard::named("shaky")))
        .build()
        .unwrap();
    let engine = kit::start(|engine| {
        engine.workflow(definition).guard("shaky", |_| async { panic!("the guard fell over") })
    });
    let engine = engine.await.unwrap();
    let run = engine.start(Start::new("guarded")).await.unwrap();
    engine.settle().await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.owner), (Status::Failed, None));
    assert!(view.ledger.stopped.unwrap().error.message.contains("the guard fell over"));
}
