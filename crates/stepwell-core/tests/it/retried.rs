//! A failed action is tried again: where the run is, or from an earlier place; and never without end.

use serde_json::{Value, json};
use stepwell_core::retry::{Backoff, Retry};
use stepwell_core::snapshot::ActivationStatus;
use stepwell_core::spec::{Action, Guard, LoopStep, Quorum, Transition};
use stepwell_core::{
    ActionCall, Answers, Cause, DecideError, Decision, Event, Failure, Outcome, Refusal, RestoreError,
    Retrial, Snapshot, Spec, questions,
};

use crate::driver::{Driver, at, bytes, texts};

fn broken() -> Failure {
    Failure::new("broken", "it broke")
}

/// So many retries, each of which begins again in this place.
fn back_to(place: &str, attempts: u32) -> Retry {
    Retry { attempts, target: Some(place.into()), ..Retry::default() }
}

fn retried(call: &ActionCall, by_hand: bool) -> Event {
    Event::Retried { retrial: Retrial::of(call), by_hand }
}

/// `pay` leads from `order` to `paid` with an action that is given the amount.
fn paying(change: impl FnOnce(Transition) -> Transition) -> Spec {
    let input = json!({"amount": {"$expr": "context.amount"}, "by": {"$expr": "event.by"}});
    let action = Action { name: "charge".into(), input, save_as: None, version: None };
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

/// `check` leads to `charge`, whose action begins again in `check` when it is retried.
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

// ---- where the run is ----

#[test]
fn a_retry_gives_out_the_action_with_its_cause_and_payload_and_an_input_made_afresh() {
    let mut run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let first = run.act(&Event::signal("PAY", json!({"by": "card"})));
    run.go(&Event::Patched { patch: stepwell_core::patch::Patch::set("amount", json!(7)) });
    let before = bytes(&run.snapshot);
    for by_hand in [false, true] {
        let again = run.act(&retried(&first, by_hand));
        assert_eq!(again, ActionCall { input: json!({"amount": 7, "by": "card"}), ..first.clone() });
        assert_eq!(again.cause, Cause::Signal("PAY".into()));
    }
    assert_eq!(bytes(&run.snapshot), before, "nothing has changed yet");
    let change = run.done(&run.act(&retried(&first, true)), Outcome::default());
    assert_eq!((change.entry.action.as_str(), change.entry.payload), ("PAY", Some(json!({"by": "card"}))));
    assert_eq!(run.places(), ["paid"]);
}

#[test]
fn what_a_wait_was_resolved_with_is_there_for_the_retry_too() {
    let input = json!({"$expr": "event.answer"});
    let action = Action { name: "tell".into(), input, save_as: None, version: None };
    let spec = Spec::new("asking")
        .wait("ask", "ANSWER")
        .end("done")
        .signal("ANSWER")
        .transition(Transition::new("tell", "ask", "done").action_with(action));
    let mut run = Driver::start(spec);
    run.signal("ANSWER", json!({"answer": "yes"}));
    let call = run.act(&Event::advance());
    assert_eq!(run.act(&retried(&call, false)), call);
    assert_eq!((call.cause, call.input), (Cause::Auto, json!("yes")));
}

#[test]
fn the_guard_is_not_asked_again() {
    let guard = Guard::And(vec![Guard::named("open"), Guard::expr("context.amount < 10")]);
    let mut run = Driver::start_with(paying(|t| t.guard(guard)), json!({"amount": 5}));
    let pay = Event::signal("PAY", json!({"by": "card"}));
    run.answers = Answers::none().with("open", true);
    let call = run.act(&pay);
    run.answers = Answers::none();
    run.go(&Event::Patched { patch: stepwell_core::patch::Patch::set("amount", json!(50)) });
    assert!(matches!(run.undecidable(&pay), DecideError::UnresolvedGuard { .. }));
    assert_eq!(questions(&run.definition, &run.snapshot, &retried(&call, false)), []);
    assert_eq!(run.act(&retried(&call, false)).input["amount"], json!(50));
}

#[test]
fn a_retry_is_superseded_when_the_run_is_no_longer_there_for_it() {
    let mut run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let call = run.act(&Event::signal("PAY", json!({"by": "card"})));
    let superseded = |activation, what: &str| Refusal::Superseded { activation, what: what.into() };
    let with = |change: fn(&mut Retrial)| {
        let mut retrial = Retrial::of(&call);
        change(&mut retrial);
        Event::Retried { retrial, by_hand: true }
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
    let mut closed = Driver::holding(&run.definition, run.snapshot.clone());
    closed.signal("CLOSE", Value::Null);
    assert_eq!(closed.refused(&retried(&call, true)), Refusal::Terminal);
    run.done(&call, Outcome::default());
    for by_hand in [false, true] {
        assert_eq!(run.refused(&retried(&call, by_hand)), superseded(1, "pay"));
    }
}

#[test]
fn a_time_limits_action_is_retried_until_the_wait_is_resolved() {
    let spec = Spec::new("race")
        .wait("ask", "ANSWER")
        .end("answered")
        .end("escalated")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(Transition::new("escalate", "ask", "escalated").after_ms(10).action("tell boss"));
    let mut run = Driver::start(spec);
    run.now = at(10);
    let call = run.act(&Event::TimerFired { activation: 1 });
    run.now = at(20);
    assert_eq!(run.act(&retried(&call, false)), call);
    run.signal("ANSWER", json!("yes"));
    let superseded = Refusal::Superseded { activation: 1, what: "escalate".into() };
    assert_eq!(run.refused(&retried(&call, false)), superseded);
}

#[test]
fn an_input_that_can_no_longer_be_made_is_an_error_that_names_the_transition() {
    let listed = paying(|t| t.input(json!([{"$expr": "context.amount"}])));
    let mut run = Driver::start_with(listed, json!({"amount": 5}));
    let retrial = Retrial::of(&run.act(&Event::signal("PAY", json!({"by": "card"}))));
    let missing = stepwell_core::patch::Patch::between(&json!({"amount": 5}), &json!({}));
    run.go(&Event::Patched { patch: missing });
    let error = run.undecidable(&Event::Retried { retrial, by_hand: true });
    assert!(error.to_string().starts_with("input of transition `pay`: "), "{error}");
}

#[test]
fn a_retrial_is_kept_as_json() {
    let run = Driver::start_with(paying(|t| t), json!({"amount": 5}));
    let retrial = Retrial::of(&run.act(&Event::signal("PAY", json!({"by": "card"}))));
    let stored = serde_json::to_value(&retrial).unwrap();
    let expected = json!({
        "activation": 1, "transition": "pay", "cause": {"signal": "PAY"}, "payload": {"by": "card"}
    });
    assert_eq!(stored, expected);
    assert_eq!(serde_json::from_value::<Retrial>(stored).unwrap(), retrial);
    assert_eq!(Event::Retried { retrial, by_hand: false }.payload(), &json!({"by": "card"}));
}

// ---- from an earlier place ----

#[test]
fn a_retry_with_a_target_goes_back_with_branch_position_and_locals() {
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
    let pick = run.act(&Event::signal("GO", Value::Null));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    run.done(&pick, Outcome { locals: locals.clone(), ..Outcome::default() });
    run.advance();
    let call = run.act(&Event::signal("GO", json!({"by": "card"})));
    let left = run.here("charge");
    run.now = at(50);
    let change = run.go(&retried(&call, false));
    assert_eq!(change.entry.action, "__retry:pay");
    assert_eq!(change.entry.payload, Some(json!({"by": "card"})));
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["charge"], vec!["check"]));
    assert_eq!(texts(&change.entry.transitions), [""; 0], "no transition has fired");
    assert_eq!((change.ended, change.stopped), (vec![], None));
    let back = run.here("check");
    assert_eq!(back.status, ActivationStatus::Active);
    assert_eq!((back.branch, &back.position, &back.locals), (left.branch, &vec![0], &locals));
    assert!(back.branch.is_some() && back.id > left.id && back.since == at(50));
    assert_eq!(back.retried, [("pay".into(), 1)].into());
    assert_eq!(run.here("other").retried, [].into(), "the other branch has not been retried");
    let done = Event::ActionDone { call: call.clone(), outcome: Outcome::default() };
    let superseded = Refusal::Superseded { activation: left.id, what: "pay".into() };
    assert_eq!(run.refused(&done), superseded, "a late result of the failed try");
    assert_eq!(run.refused(&retried(&call, false)), superseded, "a retry happens once");
}

#[test]
fn a_retry_by_hand_stays_where_the_run_is_whatever_the_target() {
    let mut run = Driver::start(checking(back_to("check", 2)));
    run.advance();
    let call = run.act(&Event::advance());
    assert_eq!(run.act(&retried(&call, true)), call);
    run.go(&retried(&call, false));
    assert_eq!(run.places(), ["check"]);
}

/// Fails the action as often as it is given out; the pauses before the retries, and what came last.
fn fail_until_it_is_over(run: &mut Driver) -> (Vec<u64>, Decision) {
    let mut pauses = Vec::new();
    for _ in 0..50 {
        run.rest();
        let call = run.act(&Event::advance());
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
fn retries_that_go_back_are_as_many_and_as_late_as_the_policy_says() {
    let mut run = Driver::start(checking(back_to("check", 3)));
    assert_eq!(fail_until_it_is_over(&mut run), (vec![1_000, 2_000, 4_000], Decision::Stop(broken())));
    assert_eq!(run.here("charge").retried, [("pay".into(), 3)].into());
    let fixed = Retry { backoff: Backoff::Fixed, delay_ms: 7, ..back_to("check", 4) };
    let mut run = Driver::start(checking(fixed));
    assert_eq!(fail_until_it_is_over(&mut run), (vec![7; 4], Decision::Stop(broken())));
}

#[test]
fn retries_made_where_the_run_is_and_those_that_went_back_are_counted_together() {
    let mut run = Driver::start(checking(back_to("check", 3)));
    run.advance();
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    let call = run.act(&Event::advance());
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 2, .. })));
    assert!(matches!(run.failed(&call, broken(), 1), Ok(Decision::Retry { retry: 3, .. })));
    assert_eq!(run.failed(&call, broken(), 2), Ok(Decision::Stop(broken())));
    assert_eq!(run.failed(&call, broken(), u32::MAX), Ok(Decision::Stop(broken())));
}

#[test]
fn a_count_that_cannot_grow_any_more_stays() {
    let mut run = Driver::start(checking(back_to("check", u32::MAX)));
    run.advance();
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    let mut saved = serde_json::to_value(&run.snapshot).unwrap();
    saved["activations"][0]["retried"]["pay"] = json!(u32::MAX);
    run.snapshot = Snapshot::restore(&run.definition, saved.to_string().as_bytes()).unwrap();
    let call = run.act(&Event::advance());
    let last = run.failed(&call, broken(), u32::MAX);
    assert!(matches!(last, Ok(Decision::Retry { retry: u32::MAX, .. })), "{last:?}");
    run.go(&retried(&call, false));
    assert_eq!(run.here("check").retried, [("pay".into(), u32::MAX)].into());
}

/// `one` and `two` both go back to `begin`; a loop leads through them as often as AGAIN comes.
fn two_that_go_back(place: Option<&str>) -> Spec {
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
fn each_transition_has_a_count_of_its_own_which_its_success_ends() {
    let mut run = Driver::start(two_that_go_back(None));
    run.advance();
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    run.done(&run.act(&Event::advance()), Outcome::default());
    assert_eq!(run.here("second").retried, [].into(), "`one` has succeeded");
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    assert_eq!(run.here("first").retried, [("two".into(), 1)].into());
    run.go(&retried(&run.act(&Event::advance()), false));
    assert_eq!(run.here("begin").retried, [("one".into(), 1), ("two".into(), 1)].into());
    run.advance();
    run.done(&run.act(&Event::advance()), Outcome::default());
    assert_eq!(run.here("second").retried, [("two".into(), 1)].into());
    run.done(&run.act(&Event::advance()), Outcome::default());
    run.signal("AGAIN", Value::Null);
    run.advance();
    let call = run.act(&Event::advance());
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 1, .. })), "counted afresh");
}

#[test]
fn going_to_the_error_place_ends_the_count() {
    let mut run = Driver::start(two_that_go_back(Some("rest")));
    run.advance();
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    let call = run.act(&Event::advance());
    let spent = Event::ActionFailed { call, failure: broken(), retries: 1 };
    assert_eq!(run.go(&spent).entry.action, "__error:one");
    assert_eq!(run.here("rest").retried, [].into());
    assert_eq!(run.here("rest").locals["error"]["code"], "broken");
}

/// `begin` forks, the branches meet, and the action behind their join goes back before the fork.
fn round_a_fork() -> Spec {
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
fn the_count_goes_through_forks_and_joins_and_that_of_a_branch_stays_in_it() {
    let mut run = Driver::start(round_a_fork());
    let mut tries = 0;
    let stopped = loop {
        run.advance();
        let advance = |place: &str, run: &Driver| Event::Advanced { activation: Some(run.id_in(place)) };
        // In each passing the branch's own action is retried once.
        run.go(&retried(&run.act(&advance("left", &run)), false));
        let left = run.here("left").retried;
        assert_eq!(left.get("work"), Some(&1));
        run.done(&run.act(&advance("left", &run)), Outcome::default());
        run.go(&advance("right", &run));
        let call = run.act(&Event::advance());
        assert_eq!(run.here("both").retried.get("work"), None);
        match run.failed(&call, broken(), 0).unwrap() {
            Decision::Retry { .. } => run.go(&retried(&call, false)),
            other => break other,
        };
        tries += 1;
        assert_eq!(run.here("begin").retried, [("pay".into(), tries)].into());
        assert!(tries < 10);
    };
    assert_eq!((tries, stopped), (2, Decision::Stop(broken())));
}

#[test]
fn a_wait_that_is_gone_back_to_waits_again_with_its_timers() {
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
    let call = run.act(&Event::advance());
    run.now = at(100);
    run.go(&retried(&call, false));
    let asked = run.here("ask");
    assert_eq!(
        (asked.status, asked.received.clone(), asked.due()),
        (ActivationStatus::Waiting, None, Some(at(110)))
    );
    run.signal("ANSWER", json!("yes"));
    assert_eq!(run.act(&Event::advance()).payload, json!("yes"));
}

#[test]
fn a_target_whose_timer_cannot_be_set_is_an_error_and_the_run_stays() {
    let spec = checking(back_to("check", 1)).transition(
        Transition::new("late", "check", "sorry")
            .on(stepwell_core::spec::Trigger::Until("context.until".into())),
    );
    let mut run = Driver::start_with(spec, json!({"until": at(1_000)}));
    run.advance();
    let call = run.act(&Event::advance());
    run.go(&Event::Patched { patch: stepwell_core::patch::Patch::set("until", json!("soon")) });
    let error = run.undecidable(&retried(&call, false));
    assert!(matches!(error, DecideError::NotAnInstant { .. }), "{error:?}");
}

// ---- in the snapshot ----

#[test]
fn the_count_is_in_the_snapshot_only_where_there_is_one() {
    let mut run = Driver::start(round_a_fork());
    run.advance();
    let plain = serde_json::to_value(&run.snapshot).unwrap();
    assert_eq!((plain["activations"][0].get("retried"), plain["passings"][0].get("retried")), (None, None));
    let advance = |place: &str, run: &Driver| Event::Advanced { activation: Some(run.id_in(place)) };
    run.done(&run.act(&advance("left", &run)), Outcome::default());
    run.go(&advance("right", &run));
    run.go(&retried(&run.act(&Event::advance()), false));
    run.advance();
    let counted = serde_json::to_value(&run.snapshot).unwrap();
    assert_eq!(counted["activations"][0]["retried"], json!({"pay": 1}));
    assert_eq!(counted["passings"][0]["retried"], json!({"pay": 1}));
    let restored = Snapshot::restore(&run.definition, counted.to_string().as_bytes());
    assert_eq!(restored, Ok(run.snapshot.clone()));
}

#[test]
fn a_count_of_what_does_not_go_back_is_a_contradiction() {
    let mut run = Driver::start(round_a_fork());
    run.advance();
    let saved = serde_json::to_value(&run.snapshot).unwrap();
    for (pointer, whose) in [("/activations/0", "activation"), ("/passings/0", "passing")] {
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
