//! Retries of a failed action, in place or from an earlier place. Their number is always bounded.

use serde_json::{Value, json};
use stepwell_core::retry::{Backoff, Retry};
use stepwell_core::snapshot::ActivationStatus;
use stepwell_core::spec::{ActionSpec, Guard, LoopStep, Quorum, Transition};
use stepwell_core::{
    ActionCall, ActionResult, Answers, Cause, DecideError, Decision, Failure, Input, Refusal, RestoreError,
    RetryRequest, Snapshot, Spec, questions,
};

use crate::driver::{Driver, at, bytes, texts};

fn broken() -> Failure {
    Failure::new("broken", "it broke")
}

/// A policy with `attempts` retries, each of which goes back to this place.
fn back_to(place: &str, attempts: u32) -> Retry {
    Retry { attempts, target: Some(place.into()), ..Retry::default() }
}

fn retried(call: &ActionCall, manual: bool) -> Input {
    Input::Retried { retry: RetryRequest::of(call), manual }
}

/// `pay` leads from `order` to `paid` with an action whose input has the amount.
fn paying(change: impl FnOnce(Transition) -> Transition) -> Spec {
    let input = json!({"amount": {"$expr": "context.amount"}, "by": {"$expr": "event.by"}});
    let action = ActionSpec { name: "charge".into(), input, save_as: None, version: None };
    let pay = Transition::new("pay", "order", "paid").on_signal("PAY").action_with(action);
    Spec::new("paying")
        .step("order")
        .step("paid")
        .end("done")
        .end("sorry")
        .signal("PAY")
        .signal("CLOSE")
        .transition(change(pay))
        .on_signal("give up", "order", "CLOSE", "sorry")
        .on_signal("close", "paid", "CLOSE", "done")
}

/// `check` leads to `charge`. With a target, a retry of its action goes back to `check`.
fn checking(retry: Retry) -> Spec {
    Spec::new("checking")
        .step("check")
        .step("charge")
        .end("done")
        .end("sorry")
        .signal("STOP")
        .auto("checked", "check", "charge")
        .transition(Transition::new("pay", "charge", "done").action("charge").retry(retry))
        .on_signal("stop", "charge", "STOP", "sorry")
}

// ---- in place ----

#[test]
fn retry_keeps_cause_and_payload_and_rebuilds_the_input() {
    let mut run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let first = run.act(&Input::signal("PAY", json!({"by": "card"})));
    run.go(&Input::Patched { patch: stepwell_core::patch::Patch::set("amount", json!(7)) });
    let before = bytes(&run.snapshot);
    for manual in [false, true] {
        let again = run.act(&retried(&first, manual));
        assert_eq!(again, ActionCall { input: json!({"amount": 7, "by": "card"}), ..first.clone() });
        assert_eq!(again.cause, Cause::Signal("PAY".into()));
    }
    assert_eq!(bytes(&run.snapshot), before, "nothing has changed yet");
    let change = run.done(&run.act(&retried(&first, true)), ActionResult::default());
    assert_eq!((change.entry.action.as_str(), change.entry.payload), ("PAY", Some(json!({"by": "card"}))));
    assert_eq!(run.places(), ["paid"]);
}

#[test]
fn retry_sees_the_payload_of_its_wait() {
    let input = json!({"$expr": "event.answer"});
    let action = ActionSpec { name: "tell".into(), input, save_as: None, version: None };
    let spec = Spec::new("asking")
        .wait("ask", "ANSWER")
        .end("done")
        .signal("ANSWER")
        .transition(Transition::new("tell", "ask", "done").action_with(action));
    let mut run = Driver::start(spec);
    run.signal("ANSWER", json!({"answer": "yes"}));
    let call = run.act(&Input::advance());
    assert_eq!(run.act(&retried(&call, false)), call);
    assert_eq!((call.cause, call.input), (Cause::Auto, json!("yes")));
}

#[test]
fn retry_does_not_evaluate_the_guard_again() {
    let guard = Guard::And(vec![Guard::named("open"), Guard::expr("context.amount < 10")]);
    let mut run = Driver::start_with(paying(|t| t.guard(guard)), json!({"amount": 5}));
    let pay = Input::signal("PAY", json!({"by": "card"}));
    run.answers = Answers::none().with("open", true);
    let call = run.act(&pay);
    run.answers = Answers::none();
    run.go(&Input::Patched { patch: stepwell_core::patch::Patch::set("amount", json!(50)) });
    assert!(matches!(run.undecidable(&pay), DecideError::UnresolvedGuard { .. }));
    assert_eq!(questions(&run.definition, &run.snapshot, &retried(&call, false)), []);
    assert_eq!(run.act(&retried(&call, false)).input["amount"], json!(50));
}

#[test]
fn retry_is_superseded_once_its_activation_is_gone() {
    let mut run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let call = run.act(&Input::signal("PAY", json!({"by": "card"})));
    let superseded = |activation, what: &str| Refusal::Superseded { activation, what: what.into() };
    let with = |change: fn(&mut RetryRequest)| {
        let mut retry = RetryRequest::of(&call);
        change(&mut retry);
        Input::Retried { retry, manual: true }
    };
    let strange = [
        (with(|r| r.activation = 99), superseded(99, "pay")),
        (with(|r| r.transition = "pai".into()), superseded(1, "pai")),
        (with(|r| r.transition = "give up".into()), superseded(1, "give up")),
        (with(|r| r.transition = "close".into()), superseded(1, "close")),
    ];
    for (event, expected) in strange {
        assert_eq!(run.refused(&event), expected);
    }
    let mut closed = Driver::from_snapshot(&run.definition, run.snapshot.clone());
    closed.signal("CLOSE", Value::Null);
    assert_eq!(closed.refused(&retried(&call, true)), Refusal::Terminal);
    run.done(&call, ActionResult::default());
    for manual in [false, true] {
        assert_eq!(run.refused(&retried(&call, manual)), superseded(1, "pay"));
    }
}

#[test]
fn timer_action_is_retried_until_its_wait_is_resolved() {
    let spec = Spec::new("race")
        .wait("ask", "ANSWER")
        .end("answered")
        .end("escalated")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(Transition::new("escalate", "ask", "escalated").after_ms(10).action("tell boss"));
    let mut run = Driver::start(spec);
    run.now = at(10);
    let call = run.act(&Input::TimerFired { activation: 1 });
    run.now = at(20);
    assert_eq!(run.act(&retried(&call, false)), call);
    run.signal("ANSWER", json!("yes"));
    let superseded = Refusal::Superseded { activation: 1, what: "escalate".into() };
    assert_eq!(run.refused(&retried(&call, false)), superseded);
}

#[test]
fn retry_input_error_names_the_transition() {
    let listed = paying(|t| t.input(json!([{"$expr": "context.amount"}])));
    let mut run = Driver::start_with(listed, json!({"amount": 5}));
    let retry = RetryRequest::of(&run.act(&Input::signal("PAY", json!({"by": "card"}))));
    let missing = stepwell_core::patch::Patch::between(&json!({"amount": 5}), &json!({}));
    run.go(&Input::Patched { patch: missing });
    let error = run.undecidable(&Input::Retried { retry, manual: true });
    assert!(error.to_string().starts_with("input of transition `pay`: "), "{error}");
}

#[test]
fn retry_request_round_trips_through_json() {
    let run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let retry = RetryRequest::of(&run.act(&Input::signal("PAY", json!({"by": "card"}))));
    let stored = serde_json::to_value(&retry).unwrap();
    let expected = json!({
        "activation": 1, "transition": "pay", "cause": {"signal": "PAY"}, "payload": {"by": "card"}
    });
    assert_eq!(stored, expected);
    assert_eq!(serde_json::from_value::<RetryRequest>(stored).unwrap(), retry);
    assert_eq!(Input::Retried { retry, manual: false }.payload(), &json!({"by": "card"}));
}

// ---- from an earlier place ----

#[test]
fn retry_target_keeps_branch_position_and_locals() {
    let spec = Spec::new("items")
        .fork("split", ["prepare", "other"])
        .step("prepare")
        .step("check")
        .step("charge")
        .step("other")
        .join("both", Quorum::All, ["charge", "other"])
        .end("done")
        .signal("GO")
        .transition(
            Transition::new("next", "prepare", "check")
                .on_signal("GO")
                .action("pick")
                .loop_step(LoopStep::Enter),
        )
        .auto("checked", "check", "charge")
        .transition(
            Transition::new("pay", "charge", "both")
                .on_signal("GO")
                .action("charge")
                .retry(back_to("check", 1)),
        )
        .transition(Transition::new("wait", "other", "both").on_signal("GO").priority(-1))
        .auto("all", "both", "done");
    let mut run = Driver::start(spec);
    let pick = run.act(&Input::signal("GO", Value::Null));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    run.done(&pick, ActionResult { locals: locals.clone(), ..ActionResult::default() });
    run.advance();
    let call = run.act(&Input::signal("GO", json!({"by": "card"})));
    let left = run.activation_in("charge");
    run.now = at(50);
    let change = run.go(&retried(&call, false));
    assert_eq!(change.entry.action, "__retry:pay");
    assert_eq!(change.entry.payload, Some(json!({"by": "card"})));
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["charge"], vec!["check"]));
    assert_eq!(texts(&change.entry.transitions), [""; 0], "no transition has fired");
    assert_eq!((change.ended, change.stopped), (vec![], None));
    let back = run.activation_in("check");
    assert_eq!(back.status, ActivationStatus::Active);
    assert_eq!((back.branch, &back.position, &back.locals), (left.branch, &vec![0], &locals));
    assert!(back.branch.is_some() && back.id > left.id && back.since == at(50));
    assert_eq!(back.retried, [("pay".into(), 1)].into());
    assert_eq!(run.activation_in("other").retried, [].into(), "the other branch has not been retried");
    let done = Input::ActionDone { call: call.clone(), outcome: ActionResult::default() };
    let superseded = Refusal::Superseded { activation: left.id, what: "pay".into() };
    assert_eq!(run.refused(&done), superseded, "a late result of the failed attempt");
    assert_eq!(run.refused(&retried(&call, false)), superseded, "a retry happens once");
}

#[test]
fn manual_retry_ignores_the_retry_target() {
    let mut run = Driver::start(checking(back_to("check", 2)));
    run.advance();
    let call = run.act(&Input::advance());
    assert_eq!(run.act(&retried(&call, true)), call);
    run.go(&retried(&call, false));
    assert_eq!(run.places(), ["check"]);
}

/// Fails the action each time it is requested. Returns the delays before the retries (in ms) and the last decision.
fn fail_until_retries_end(run: &mut Driver) -> (Vec<u64>, Decision) {
    let mut pauses = Vec::new();
    for _ in 0..50 {
        run.run_until_idle();
        let call = run.act(&Input::advance());
        match run.failed(&call, broken(), 0).expect("the run is there") {
            Decision::Retry { retry, at } => {
                assert_eq!(retry as usize, pauses.len() + 1);
                pauses.push(at.ms_since(run.now));
                run.now = at;
                run.go(&retried(&call, false));
            }
            other => return (pauses, other),
        }
    }
    panic!("it is retried without end");
}

#[test]
fn retries_with_a_target_follow_the_policy() {
    let mut run = Driver::start(checking(back_to("check", 3)));
    assert_eq!(fail_until_retries_end(&mut run), (vec![1_000, 2_000, 4_000], Decision::Stop(broken())));
    assert_eq!(run.activation_in("charge").retried, [("pay".into(), 3)].into());
    let fixed = Retry { backoff: Backoff::Fixed, delay_ms: 7, ..back_to("check", 4) };
    let mut run = Driver::start(checking(fixed));
    assert_eq!(fail_until_retries_end(&mut run), (vec![7; 4], Decision::Stop(broken())));
}

#[test]
fn retries_with_and_without_target_are_counted_together() {
    let mut run = Driver::start(checking(back_to("check", 3)));
    run.advance();
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    let call = run.act(&Input::advance());
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 2, .. })));
    assert!(matches!(run.failed(&call, broken(), 1), Ok(Decision::Retry { retry: 3, .. })));
    assert_eq!(run.failed(&call, broken(), 2), Ok(Decision::Stop(broken())));
    assert_eq!(run.failed(&call, broken(), u32::MAX), Ok(Decision::Stop(broken())));
}

#[test]
fn retry_count_saturates() {
    let mut run = Driver::start(checking(back_to("check", u32::MAX)));
    run.advance();
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    let mut saved = serde_json::to_value(&run.snapshot).unwrap();
    saved["activations"][0]["retried"]["pay"] = json!(u32::MAX);
    run.snapshot = Snapshot::restore(&run.definition, saved.to_string().as_bytes()).unwrap();
    let call = run.act(&Input::advance());
    let last = run.failed(&call, broken(), u32::MAX);
    assert!(matches!(last, Ok(Decision::Retry { retry: u32::MAX, .. })), "{last:?}");
    run.go(&retried(&call, false));
    assert_eq!(run.activation_in("check").retried, [("pay".into(), u32::MAX)].into());
}

/// The retries of `one` and `two` go back to `begin`. AGAIN starts over after both.
fn two_retry_targets(place: Option<&str>) -> Spec {
    let retry = || Retry { place: place.map(Into::into), ..back_to("begin", 2) };
    Spec::new("two")
        .step("begin")
        .step("first")
        .step("second")
        .step("rest")
        .end("done")
        .signal("AGAIN")
        .signal("STOP")
        .auto("go", "begin", "first")
        .transition(Transition::new("one", "first", "second").action("work").retry(retry()))
        .transition(Transition::new("two", "second", "rest").action("work").retry(retry()))
        .on_signal("again", "rest", "AGAIN", "begin")
        .on_signal("stop", "rest", "STOP", "done")
}

#[test]
fn each_transition_counts_its_retries_until_it_succeeds() {
    let mut run = Driver::start(two_retry_targets(None));
    run.advance();
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    run.done(&run.act(&Input::advance()), ActionResult::default());
    assert_eq!(run.activation_in("second").retried, [].into(), "`one` has succeeded");
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    assert_eq!(run.activation_in("first").retried, [("two".into(), 1)].into());
    run.go(&retried(&run.act(&Input::advance()), false));
    assert_eq!(run.activation_in("begin").retried, [("one".into(), 1), ("two".into(), 1)].into());
    run.advance();
    run.done(&run.act(&Input::advance()), ActionResult::default());
    assert_eq!(run.activation_in("second").retried, [("two".into(), 1)].into());
    run.done(&run.act(&Input::advance()), ActionResult::default());
    run.signal("AGAIN", Value::Null);
    run.advance();
    let call = run.act(&Input::advance());
    assert!(
        matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 1, .. })),
        "the count restarts"
    );
}

#[test]
fn entering_the_error_place_resets_the_retry_count() {
    let mut run = Driver::start(two_retry_targets(Some("rest")));
    run.advance();
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    let call = run.act(&Input::advance());
    let spent = Input::ActionFailed { call, failure: broken(), retries: 1, first: None };
    assert_eq!(run.go(&spent).entry.action, "__error:one");
    assert_eq!(run.activation_in("rest").retried, [].into());
    assert_eq!(run.activation_in("rest").locals["error"]["code"], "broken");
}

/// A fork and its join. The retries of the action after the join go back to `begin`, before the fork.
fn retry_around_a_fork() -> Spec {
    Spec::new("round")
        .step("begin")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .auto("open", "begin", "split")
        .transition(Transition::new("work", "left", "both").action("work").retry(back_to("left", 2)))
        .auto("skip", "right", "both")
        .transition(Transition::new("pay", "both", "done").action("charge").retry(back_to("begin", 2)))
}

#[test]
fn retry_count_survives_forks_and_joins() {
    let mut run = Driver::start(retry_around_a_fork());
    let mut tries = 0;
    let stopped = loop {
        run.advance();
        let advance = |place: &str, run: &Driver| Input::Advanced { activation: Some(run.id_in(place)) };
        // In each fork instance the action of the branch is retried once.
        run.go(&retried(&run.act(&advance("left", &run)), false));
        let left = run.activation_in("left").retried;
        assert_eq!(left.get("work"), Some(&1));
        run.done(&run.act(&advance("left", &run)), ActionResult::default());
        run.go(&advance("right", &run));
        let call = run.act(&Input::advance());
        assert_eq!(run.activation_in("both").retried.get("work"), None);
        match run.failed(&call, broken(), 0).unwrap() {
            Decision::Retry { .. } => run.go(&retried(&call, false)),
            other => break other,
        };
        tries += 1;
        assert_eq!(run.activation_in("begin").retried, [("pay".into(), tries)].into());
        assert!(tries < 10);
    };
    assert_eq!((tries, stopped), (2, Decision::Stop(broken())));
}

#[test]
fn wait_as_retry_target_waits_again_with_its_timers() {
    let spec = Spec::new("asking")
        .wait("ask", "ANSWER")
        .end("done")
        .end("late")
        .signal("ANSWER")
        .transition(Transition::new("tell", "ask", "done").action("tell").retry(back_to("ask", 1)))
        .transition(Transition::new("late", "ask", "late").after_ms(10));
    let mut run = Driver::start(spec);
    run.now = at(5);
    run.signal("ANSWER", json!("maybe"));
    let call = run.act(&Input::advance());
    run.now = at(100);
    run.go(&retried(&call, false));
    let asked = run.activation_in("ask");
    assert_eq!(
        (asked.status, asked.received.clone(), asked.due()),
        (ActivationStatus::Waiting, None, Some(at(110)))
    );
    run.signal("ANSWER", json!("yes"));
    assert_eq!(run.act(&Input::advance()).payload, json!("yes"));
}

#[test]
fn retry_target_with_an_invalid_timer_is_an_error() {
    let spec = checking(back_to("check", 1)).transition(
        Transition::new("late", "check", "sorry")
            .on(stepwell_core::spec::TransitionTrigger::Until("context.until".into())),
    );
    let mut run = Driver::start_with(spec, json!({"until": at(1_000)}));
    run.advance();
    let call = run.act(&Input::advance());
    run.go(&Input::Patched { patch: stepwell_core::patch::Patch::set("until", json!("soon")) });
    let error = run.undecidable(&retried(&call, false));
    assert!(matches!(error, DecideError::InvalidTimestamp { .. }), "{error:?}");
}

// ---- in the snapshot ----

#[test]
fn snapshot_omits_empty_retry_counts() {
    let mut run = Driver::start(retry_around_a_fork());
    run.advance();
    let plain = serde_json::to_value(&run.snapshot).unwrap();
    assert_eq!(
        (plain["activations"][0].get("retried"), plain["forkInstances"][0].get("retried")),
        (None, None)
    );
    let advance = |place: &str, run: &Driver| Input::Advanced { activation: Some(run.id_in(place)) };
    run.done(&run.act(&advance("left", &run)), ActionResult::default());
    run.go(&advance("right", &run));
    run.go(&retried(&run.act(&Input::advance()), false));
    run.advance();
    let counted = serde_json::to_value(&run.snapshot).unwrap();
    assert_eq!(counted["activations"][0]["retried"], json!({"pay": 1}));
    assert_eq!(counted["forkInstances"][0]["retried"], json!({"pay": 1}));
    let restored = Snapshot::restore(&run.definition, counted.to_string().as_bytes());
    assert_eq!(restored, Ok(run.snapshot.clone()));
}

#[test]
fn retry_count_without_a_target_is_a_contradiction() {
    let mut run = Driver::start(retry_around_a_fork());
    run.advance();
    let saved = serde_json::to_value(&run.snapshot).unwrap();
    for (pointer, whose) in [("/activations/0", "activation"), ("/forkInstances/0", "fork instance")] {
        for transition in ["open", "nobody"] {
            let mut tampered = saved.clone();
            tampered.pointer_mut(pointer).unwrap()["retried"] = json!({transition: 1});
            let error = Snapshot::restore(&run.definition, tampered.to_string().as_bytes()).unwrap_err();
            let RestoreError::Contradiction(found) = error else { panic!("{error:?}") };
            assert_eq!(found.len(), 1);
            assert!(
                found[0].starts_with(whose) && found[0].contains(&format!("`{transition}`")),
                "{found:?}"
            );
        }
    }
}
