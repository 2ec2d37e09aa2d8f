//! The effect of an input on a run: the transition that fires, or the reason of the refusal, and nothing else.

use serde_json::{Map, Value, json};
use stepwell_core::guard::GuardView;
use stepwell_core::patch::Patch;
use stepwell_core::refusal::GuardRejection;
use stepwell_core::retry::{Backoff, Retry};
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, RunEnd};
use stepwell_core::spec::{
    ActionSpec, ChildRule, Firing, Guard, LoopStep, Place, Transition, TransitionTrigger, Wait,
};
use stepwell_core::{
    ActionResult, Answers, Cause, DecideError, Decision, Failure, Guards, Input, Instance, Limits, Name,
    PlaceStatus, Question, Refusal, Rejected, RunId, Spec, dispatch, questions, start,
};

use crate::driver::{Driver, at, build, bytes, texts};

fn patch(before: &Value, after: &Value) -> Patch {
    Patch::between(before, after)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is not an object"),
    }
}

fn auto(id: &str, from: &str, to: &str) -> Transition {
    Transition::new(id, from, to)
}

/// `draft`, which GO leaves to `review`, which OK leaves to `done`.
fn review() -> Spec {
    Spec::new("review")
        .step("draft")
        .step("review")
        .end("done")
        .signal_with("GO", json!({"type": "object", "required": ["by"]}))
        .signal("OK")
        .on_signal("submit", "draft", "GO", "review")
        .on_signal("approve", "review", "OK", "done")
}

// ---- versions (A3) ----

#[test]
fn version_starts_at_0_and_grows_by_1_per_change() {
    let mut run = Driver::start(review());
    assert_eq!(run.snapshot.version(), 0);
    assert_eq!((run.snapshot.created_at(), run.snapshot.updated_at()), (at(0), at(0)));
    run.now = at(5);
    assert_eq!(run.signal("GO", json!({"by": "ann"})).snapshot.version(), 1);
    assert_eq!((run.snapshot.created_at(), run.snapshot.updated_at()), (at(0), at(5)));
    let fix = Input::Patched { patch: Patch::set("note", json!("x")) };
    assert_eq!(run.go(&fix).snapshot.version(), 2);
    assert_eq!(run.signal("OK", Value::Null).snapshot.version(), 3);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn a_refused_signal_leaves_the_snapshot_byte_identical() {
    let run = Driver::start(review());
    let before = bytes(&run.snapshot);
    let refused = [
        Input::signal("NEVER", json!({})),
        Input::signal("GO", json!({})),
        Input::signal("OK", json!({})),
        Input::advance(),
        Input::TimerFired { activation: 1 },
        Input::WaitResolved { activation: 1, payload: json!(1) },
        Input::ChildDone { activation: 1, child: 0, end: ChildEnd::Cancelled },
    ];
    for event in refused {
        run.refused(&event);
        assert_eq!(bytes(&run.snapshot), before, "{event:?}");
    }
}

#[test]
fn updated_at_never_goes_back() {
    let mut run = Driver::start(review());
    run.now = at(50);
    run.signal("GO", json!({"by": "ann"}));
    run.now = at(20);
    run.signal("OK", Value::Null);
    assert_eq!(run.snapshot.updated_at(), at(50));
}

#[test]
fn snapshot_of_another_definition_is_undecidable() {
    let run = Driver::start(review());
    let other = build(review().version(2));
    let decision =
        dispatch(&other, &run.snapshot, &Input::signal("OK", Value::Null), &Answers::none(), at(0));
    let Err(Rejected::Undecidable(DecideError::OtherDefinition { expected, found })) = decision else {
        panic!("{decision:?}")
    };
    assert_eq!(expected, format!("review {}", other.hash().short()));
    assert_eq!(found, format!("review {}", run.definition.hash().short()));
}

// ---- refusals (A7) ----

#[test]
fn refusal_reasons_have_a_fixed_order() {
    // LATER has no active source, an invalid payload and a guard that blocks. PAY has an active source.
    let spec = Spec::new("order")
        .step("cart")
        .step("paid")
        .end("done")
        .signal_with("PAY", json!({"type": "object", "required": ["amount"]}))
        .signal_with("LATER", json!({"type": "object", "required": ["why"]}))
        .transition(auto("pay", "cart", "done").on_signal("PAY").when("context.open"))
        .transition(auto("later", "paid", "done").on_signal("LATER").when("context.open"))
        .auto("skip", "cart", "paid");
    let spec = Spec {
        transitions: spec
            .transitions
            .into_iter()
            .map(|t| if t.id == "skip" { t.when("false") } else { t })
            .collect(),
        ..spec
    };
    let mut run = Driver::start_with(spec, json!({"open": false}));

    // An unknown signal comes before an invalid payload.
    assert!(matches!(run.refused(&Input::signal("PAI", json!(1))), Refusal::UnknownSignal { .. }));
    // An invalid payload comes before a missing source and the guard.
    assert!(matches!(run.refused(&Input::signal("LATER", json!({}))), Refusal::InvalidPayload { .. }));
    assert!(matches!(run.refused(&Input::signal("PAY", json!({}))), Refusal::InvalidPayload { .. }));
    // A missing source comes before the guard.
    let later = Input::signal("LATER", json!({"why": "x"}));
    assert!(matches!(run.refused(&later), Refusal::NoActiveSource { .. }));
    // Only the guard blocks.
    let pay = Input::signal("PAY", json!({"amount": 1}));
    assert!(matches!(run.refused(&pay), Refusal::GuardRejected { .. }));
    // The end of the run comes before every other reason.
    run.go(&Input::Cancelled);
    for event in [Input::signal("PAI", json!(1)), Input::signal("LATER", json!({})), later, pay] {
        assert_eq!(run.refused(&event), Refusal::Terminal);
    }
}

#[test]
fn each_refusal_has_a_readable_message() {
    let spec =
        review().transition(auto("stop", "draft", "done").on_signal("OK").when("context.amount > 100"));
    let mut run = Driver::start_with(spec, json!({"amount": 5}));
    let said = |run: &Driver, event: &Input| run.refused(event).to_string();
    assert_eq!(
        said(&run, &Input::signal("OKK", Value::Null)),
        "workflow `review` has no signal `OKK` (did you mean `OK`?)"
    );
    let unfit = said(&run, &Input::signal("GO", json!({})));
    assert!(
        unfit.starts_with("the payload of signal `GO` does not match its schema: ") && unfit.contains("by"),
        "{unfit}"
    );
    assert_eq!(
        said(&run, &Input::signal("OK", Value::Null)),
        "transition `stop` is blocked by its guard `context.amount > 100`"
    );
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(
        said(&run, &Input::signal("GO", json!({"by": "ann"}))),
        "`GO` is not accepted now: it is accepted in `draft`, and the run is in `review`"
    );
    run.signal("OK", Value::Null);
    assert_eq!(said(&run, &Input::advance()), "the run has already ended");
}

#[test]
fn payload_schema_applies_wherever_its_signal_is_taken() {
    let spec = Spec::new("both")
        .step("a")
        .wait("b", "GO")
        .end("done")
        .signal_with("GO", json!({"type": "object", "required": ["by"]}))
        .on_signal("first", "a", "GO", "b")
        .auto("second", "b", "done");
    let mut run = Driver::start(spec);
    assert!(matches!(run.refused(&Input::signal("GO", json!({}))), Refusal::InvalidPayload { .. }));
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(run.places(), ["b"]);
    assert!(matches!(run.refused(&Input::signal("GO", json!({}))), Refusal::InvalidPayload { .. }));
    run.signal("GO", json!({"by": "bob"}));
}

#[test]
fn too_large_or_too_deep_payload_names_the_limit() {
    let limits = Limits { payload_bytes: 20, value_depth: 3, ..Limits::default() };
    let definition = review().build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({}), at(0)).unwrap();
    let run = Driver::from_snapshot(&definition, created.snapshot);
    let limit = |payload: Value| match run.undecidable(&Input::signal("OK", payload)) {
        DecideError::Limit(exceeded) => (exceeded.limit, exceeded.actual, exceeded.max),
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(json!("x".repeat(19))), ("payload_bytes".to_owned(), 21, 20));
    assert_eq!(limit(json!([[[[]]]])), ("value_depth".to_owned(), 4, 3));
    assert!(matches!(run.refused(&Input::signal("OK", json!([[[]]]))), Refusal::NoActiveSource { .. }));
}

// ---- guards (A6) ----

/// A run with one signal transition that has this guard. `seen` is completed, `draft` is active, `also` is waiting.
fn guarded(guard: Guard) -> Driver {
    let spec = Spec::new("guarded")
        .step("seen")
        .fork("fork", ["draft", "also"])
        .step("draft")
        .wait("also", "LATER")
        .end("done")
        .signal("GO")
        .signal("LATER")
        .auto("first", "seen", "fork")
        .auto("never", "also", "done")
        .transition(auto("go", "draft", "done").on_signal("GO").guard(guard));
    let mut run = Driver::start_with(spec, json!({"amount": 5, "late": null}));
    run.advance();
    run
}

/// Returns the guard that blocks GO, or `None` if GO changes the run.
fn blocking_guard(run: &Driver, payload: Value) -> Option<String> {
    match run.decide(&Input::signal("GO", payload)) {
        Ok(Decision::Change(_)) => None,
        Err(Rejected::Refused(Refusal::GuardRejected { verdicts })) => Some(verdicts[0].guard.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_guard_passes_and_blocks() {
    let place = |name: &str| Name::from(name);
    let (yes, no) = (|| Guard::expr("context.amount = 5"), || Guard::expr("amount > 5"));
    let rows: Vec<(Guard, Option<&str>)> = vec![
        (yes(), None),
        (no(), Some("`amount > 5`")),
        (Guard::expr("context.missing"), Some("`context.missing`")),
        (Guard::expr("context.late"), Some("`context.late`")),
        (Guard::expr("event.ok"), None),
        (Guard::expr("meta.workflow = 'guarded' and meta.version = 1"), None),
        (Guard::Completed(place("seen")), None),
        (Guard::Completed(place("fork")), None),
        (Guard::Completed(place("draft")), Some("completed(`draft`)")),
        (Guard::Active(place("draft")), None),
        (Guard::Active(place("also")), None),
        (Guard::Active(place("seen")), Some("active(`seen`)")),
        (Guard::Not(Box::new(no())), None),
        (Guard::Not(Box::new(yes())), Some("not `context.amount = 5`")),
        (Guard::And(vec![]), None),
        (Guard::And(vec![yes(), yes()]), None),
        (Guard::And(vec![yes(), no(), Guard::Completed(place("draft"))]), Some("`amount > 5`")),
        (Guard::Or(vec![]), Some("()")),
        (Guard::Or(vec![no(), yes()]), None),
        (Guard::Or(vec![no(), Guard::Active(place("seen"))]), Some("(`amount > 5` or active(`seen`))")),
    ];
    for (guard, expected) in rows {
        let run = guarded(guard.clone());
        assert_eq!(blocking_guard(&run, json!({"ok": true})).as_deref(), expected, "{guard:?}");
    }
}

#[test]
fn failing_guard_error_names_its_transition() {
    let run = guarded(Guard::expr("context.amount + 'x' > 1"));
    let error = run.undecidable(&Input::signal("GO", Value::Null));
    assert!(matches!(error, DecideError::Expression { .. }), "{error:?}");
    assert!(error.to_string().starts_with("guard of transition `go`: "), "{error}");
}

#[test]
fn unresolved_guard_error_names_guard_and_transition() {
    let mut run = guarded(Guard::And(vec![Guard::named("manager"), Guard::named("open")]));
    let unresolved =
        |guard: &str| DecideError::UnresolvedGuard { guard: guard.into(), transition: "go".into() };
    let go = Input::signal("GO", Value::Null);
    assert_eq!(run.undecidable(&go), unresolved("manager"));
    assert!(unresolved("manager").to_string().contains("`manager`"));
    run.answers = Answers::none().with("manager", true);
    assert_eq!(run.undecidable(&go), unresolved("open"));
    run.answers = Answers::none().with("manager", false);
    assert_eq!(blocking_guard(&run, Value::Null).as_deref(), Some("`manager`"));
    run.answers = Answers::none().with("manager", true).with("open", true);
    assert_eq!(blocking_guard(&run, Value::Null), None);
}

#[test]
fn questions_list_exactly_the_named_guards_needed() {
    let named = Guard::named;
    let spec = Spec::new("asking")
        .step("here")
        .step("there")
        .end("done")
        .signal("GO")
        .signal("STOP")
        .transition(auto("a", "here", "there").on_signal("GO").guard(Guard::Or(vec![named("x"), named("y")])))
        .transition(auto("b", "here", "there").on_signal("GO").guard(Guard::Not(Box::new(named("x")))))
        .transition(auto("c", "here", "done").on_signal("STOP").guard(named("z")))
        .transition(auto("d", "here", "done").guard(named("by itself")))
        .transition(auto("e", "here", "done").after_ms(5).guard(named("late")))
        .transition(auto("f", "there", "done").on_signal("GO").guard(named("elsewhere")));
    let run = Driver::start(spec);
    let asked = |event: &Input| -> Vec<String> {
        let questions = questions(&run.definition, &run.snapshot, event);
        assert!(questions.iter().all(|question| question.activation == run.id_in("here")));
        questions.into_iter().map(|question| question.guard.to_string()).collect()
    };
    assert_eq!(asked(&Input::signal("GO", Value::Null)), ["x", "y"]);
    assert_eq!(asked(&Input::signal("STOP", Value::Null)), ["z"]);
    assert_eq!(asked(&Input::advance()), ["by itself"]);
    assert_eq!(asked(&Input::TimerFired { activation: run.id_in("here") }), ["late"]);
    assert_eq!(asked(&Input::Cancelled), [""; 0]);
    assert_eq!(asked(&Input::signal("UNKNOWN", Value::Null)), [""; 0]);
}

#[test]
fn named_guards_are_answered_per_activation() {
    let spec = Spec::new("two")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .end("l")
        .end("r")
        .transition(auto("to l", "left", "l").guard(Guard::named("turn")))
        .transition(auto("to r", "right", "r").guard(Guard::named("turn")));
    let mut run = Driver::start(spec);
    let asked = questions(&run.definition, &run.snapshot, &Input::advance());
    assert_eq!(asked.len(), 2);
    let question = |place: &str| Question { guard: "turn".into(), activation: run.id_in(place) };
    let mut answers = Answers::none().with("turn", false);
    answers.put(question("right"), true);
    run.answers = answers;
    assert_eq!(texts(&run.advance().entry.transitions), ["to r"]);
}

#[test]
fn guard_functions_must_be_injected_again_after_restore() {
    let spec = Spec::new("limit")
        .step("draft")
        .end("done")
        .signal("GO")
        .transition(auto("go", "draft", "done").on_signal("GO").guard(Guard::named("enough")));
    let definition = build(spec);
    let enough = |view: GuardView<'_>| {
        view.activation.place == "draft"
            && view.payload["amount"].as_i64() >= view.snapshot.context()["least"].as_i64()
    };
    let (mut run, _) = Instance::start(&definition, RunId::nil(), json!({"least": 10}), at(0)).unwrap();
    let unanswered = run.signal("GO", json!({"amount": 10}), at(1)).unwrap_err();
    assert!(matches!(unanswered, Rejected::Undecidable(DecideError::UnresolvedGuard { .. })));
    run.inject_guard("enough", enough);
    assert!(matches!(
        run.signal("GO", json!({"amount": 9}), at(1)).unwrap_err().refusal(),
        Some(Refusal::GuardRejected { .. })
    ));
    let saved = bytes(run.snapshot());
    let mut again = Instance::restore(&definition, &saved).unwrap();
    let forgotten = again.signal("GO", json!({"amount": 10}), at(1)).unwrap_err();
    assert!(matches!(forgotten, Rejected::Undecidable(DecideError::UnresolvedGuard { .. })));
    again.inject_guard("enough", enough);
    again.signal("GO", json!({"amount": 10}), at(1)).unwrap();
    assert!(again.snapshot().is_terminal());
    assert_eq!(bytes(run.snapshot()), saved, "the other copy has not changed");
}

#[test]
fn hash_covers_guard_names_but_not_their_code() {
    let definition = build(guarded(Guard::named("x")).definition.spec().clone());
    let snapshot = guarded(Guard::named("x")).snapshot;
    let go = Input::signal("GO", Value::Null);
    let yes = Guards::new().with("x", |_| true).answer(&definition, &snapshot, &go);
    let no = Guards::new().with("x", |_| false).answer(&definition, &snapshot, &go);
    assert!(dispatch(&definition, &snapshot, &go, &yes, at(0)).is_ok());
    assert!(dispatch(&definition, &snapshot, &go, &no, at(0)).is_err());
}

// ---- which transition fires (A8) ----

#[test]
fn first_passing_transition_fires_by_priority_then_order() {
    let chosen = |spec: Spec, context: Value| {
        let mut run = Driver::start_with(spec, context);
        let entry = run.advance().entry;
        assert_eq!(entry.transitions.len(), 1);
        entry.transitions[0].to_string()
    };
    let spec = || {
        Spec::new("choice")
            .step("a")
            .end("z")
            .transition(auto("plain", "a", "z"))
            .transition(auto("also plain", "a", "z"))
            .transition(auto("low", "a", "z").priority(-1))
            .transition(auto("high", "a", "z").priority(7).when("context.high"))
            .transition(auto("as high", "a", "z").priority(7).when("context.high or context.as"))
    };
    assert_eq!(chosen(spec(), json!({})), "plain");
    assert_eq!(chosen(spec(), json!({"as": true})), "as high");
    assert_eq!(chosen(spec(), json!({"high": true})), "high");
}

#[test]
fn firing_all_fires_all_passing_transitions_in_one_version() {
    let spec = Spec::new("graph")
        .firing(Firing::All)
        .step("a")
        .step("b")
        .step("c")
        .step("d")
        .end("z")
        .signal("GO")
        .on_signal("ab", "a", "GO", "b")
        .on_signal("ac", "a", "GO", "c")
        .transition(auto("ad", "a", "d").on_signal("GO").when("false"))
        .on_signal("bz", "b", "END", "z")
        .on_signal("cz", "c", "END", "z")
        .on_signal("dz", "d", "END", "z")
        .signal("END");
    let mut run = Driver::start(spec);
    let change = run.signal("GO", Value::Null);
    assert_eq!(run.snapshot.version(), 1);
    assert_eq!(run.places(), ["b", "c"]);
    assert_eq!(texts(&change.entry.transitions), ["ab", "ac"]);
    assert_eq!(texts(&change.entry.exited), ["a"]);
    assert_eq!(texts(&change.entry.entered), ["b", "c"]);
    assert_eq!(change.entry.action, "GO");
    assert_eq!(run.snapshot.status_of("a"), PlaceStatus::Completed);
}

#[test]
fn firing_all_refusal_names_every_blocking_guard() {
    let spec = Spec::new("graph")
        .firing(Firing::All)
        .step("a")
        .end("z")
        .transition(auto("one", "a", "z").when("false"))
        .transition(auto("two", "a", "z").when("1 = 2"));
    let run = Driver::start(spec);
    let no = |transition: &str, guard: &str| GuardRejection {
        transition: transition.into(),
        guard: guard.to_owned(),
    };
    let verdicts = vec![no("one", "`false`"), no("two", "`1 = 2`")];
    assert_eq!(run.refused(&Input::advance()), Refusal::GuardRejected { verdicts });
}

#[test]
fn firing_all_also_resolves_the_waits_of_a_signal() {
    let spec = Spec::new("graph")
        .firing(Firing::All)
        .fork("fork", ["w1", "w2", "s"])
        .wait("w1", "GO")
        .wait("w2", "GO")
        .step("s")
        .step("t")
        .end("z")
        .signal("GO")
        .on_signal("go", "s", "GO", "t")
        .auto("a", "w1", "z")
        .auto("b", "w2", "z")
        .transition(auto("c", "t", "z").when("false"));
    let mut run = Driver::start(spec);
    run.signal("GO", json!(5));
    assert_eq!(run.snapshot.version(), 1);
    assert_eq!(run.places(), ["t", "w1", "w2"]);
    for place in ["w1", "w2"] {
        let resolved = run.snapshot.activation(run.id_in(place)).unwrap();
        assert_eq!((resolved.status, resolved.received.clone()), (ActivationStatus::Active, Some(json!(5))));
    }
}

#[test]
fn firing_all_into_an_end_completes_the_run_once() {
    let spec = Spec::new("graph")
        .firing(Firing::All)
        .step("a")
        .step("b")
        .end_with("y", json!("y"))
        .end_with("z", json!("z"))
        .auto("ay", "a", "y")
        .auto("az", "a", "z")
        .auto("ab", "a", "b")
        .auto("bz", "b", "z");
    let mut run = Driver::start(spec);
    run.advance();
    let finished = RunEnd::Completed { place: "y".into(), output: Some(json!("y")) };
    assert_eq!(run.snapshot.finished(), Some(&finished));
    assert_eq!(run.places(), [""; 0]);
}

#[test]
fn older_activation_takes_a_signal_first() {
    let spec = Spec::new("twice")
        .fork("fork", ["ask", "ask"])
        .wait("ask", "ANSWER")
        .join("both", stepwell_core::spec::Quorum::All, ["ask"])
        .end("done")
        .signal("ANSWER")
        .auto("in", "ask", "both")
        .auto("out", "both", "done");
    let mut run = Driver::start(spec);
    let ids: Vec<_> = run.snapshot.activations().iter().map(|activation| activation.id).collect();
    run.signal("ANSWER", json!("first"));
    let received = |run: &Driver, id| run.snapshot.activation(id).and_then(|a| a.received.clone());
    assert_eq!((received(&run, ids[0]), received(&run, ids[1])), (Some(json!("first")), None));
    run.signal("ANSWER", json!("second"));
    assert_eq!(received(&run, ids[1]), Some(json!("second")));
}

// ---- automatic transitions (B1) ----

#[test]
fn each_automatic_transition_is_one_version() {
    let spec = Spec::new("chain")
        .step("a")
        .step("b")
        .wait("c", "GO")
        .end("d")
        .signal("GO")
        .auto("ab", "a", "b")
        .auto("bc", "b", "c")
        .auto("cd", "c", "d");
    let mut run = Driver::start(spec);
    assert_eq!(run.advance().entry.action, "__auto:ab");
    assert_eq!(run.run_until_idle(), 1);
    assert_eq!((run.snapshot.version(), run.places()), (2, vec!["c".to_owned()]));
    assert_eq!(run.refused(&Input::advance()), Refusal::Idle);
    run.signal("GO", Value::Null);
    assert_eq!(run.run_until_idle(), 1);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn only_the_named_activation_advances() {
    let spec = Spec::new("two")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .end("l")
        .end("r")
        .auto("to l", "left", "l")
        .auto("to r", "right", "r");
    let run = Driver::start(spec);
    let advance = |place: &str| Input::Advanced { activation: Some(run.id_in(place)) };
    let Ok(Decision::Change(change)) = run.decide(&advance("right")) else { panic!("it can go on") };
    assert_eq!(texts(&change.entry.transitions), ["to r"]);
    assert_eq!(run.refused(&Input::Advanced { activation: Some(99) }), Refusal::Idle);
}

// ---- timers ----

/// A wait for ANSWER with a reminder after 10 ms. It expires at `context.deadline`.
fn reminding() -> Spec {
    Spec::new("patient")
        .wait("ask", "ANSWER")
        .step("reminded")
        .end("expired")
        .end("answered")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(auto("remind", "ask", "reminded").after_ms(10).when("$not(context.silent)"))
        .transition(auto("expire", "ask", "expired").on(TransitionTrigger::Until("context.deadline".into())))
        .auto("on", "reminded", "ask")
}

fn deadline(ms: u64) -> Value {
    json!({"deadline": at(ms), "silent": false})
}

#[test]
fn a_timer_fires_when_it_is_due_and_not_before() {
    let mut run = Driver::start_with(reminding(), deadline(100));
    let ask = Input::TimerFired { activation: run.id_in("ask") };
    run.now = at(9);
    assert_eq!(run.refused(&ask), Refusal::NotDue { due: at(10), now: at(9) });
    assert_eq!(run.snapshot.next_due(at(9)), Some(at(10)));
    let change = run.timer("ask", at(10));
    assert_eq!(change.entry.action, "__timer:ask");
    assert_eq!(texts(&change.entry.transitions), ["remind"]);
    assert_eq!(run.places(), ["reminded"]);
}

#[test]
fn earliest_due_timer_fires_first() {
    let mut late = Driver::start_with(reminding(), deadline(100));
    assert_eq!(texts(&late.timer("ask", at(500)).entry.transitions), ["remind"]);
    let mut early = Driver::start_with(reminding(), deadline(5));
    assert_eq!(texts(&early.timer("ask", at(500)).entry.transitions), ["expire"]);
}

#[test]
fn timer_blocked_by_its_guard_lets_the_next_one_fire() {
    let silent = json!({"deadline": at(100), "silent": true});
    let mut run = Driver::start_with(reminding(), silent);
    let ask = Input::TimerFired { activation: run.id_in("ask") };
    run.now = at(10);
    assert!(matches!(run.refused(&ask), Refusal::GuardRejected { .. }));
    assert_eq!(
        run.snapshot.next_due(at(10)),
        Some(at(100)),
        "the blocked timer does not wake the host again"
    );
    assert_eq!(texts(&run.timer("ask", at(100)).entry.transitions), ["expire"]);
}

#[test]
fn until_is_evaluated_when_the_place_is_entered() {
    let mut run = Driver::start_with(reminding(), deadline(100));
    run.go(&Input::Patched { patch: Patch::set("deadline", json!(at(7))) });
    assert_eq!(
        run.snapshot.activation(run.id_in("ask")).unwrap().due(),
        Some(at(10)),
        "it was read on entry"
    );
    let definition = build(reminding());
    for (deadline, found) in [(json!("tomorrow"), "\"tomorrow\""), (json!(5), "5")] {
        let error = start(&definition, RunId::nil(), json!({"deadline": deadline}), at(0)).unwrap_err();
        let expected = DecideError::InvalidTimestamp {
            transition: "expire".into(),
            word: "until",
            found: found.to_owned(),
        };
        assert_eq!(error, expected);
    }
    let error = start(&definition, RunId::nil(), json!({}), at(0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "transition `expire`: `until` gave nothing; expected an RFC 3339 timestamp"
    );
    let offset = json!({"deadline": "2023-11-14T23:13:21+01:00"});
    let created = start(&definition, RunId::nil(), offset, at(0)).unwrap();
    assert_eq!(created.snapshot.activations()[0].timers[1].at, at(1_000));
}

#[test]
fn resolving_a_wait_ends_its_timers() {
    let mut run = Driver::start_with(reminding(), deadline(100));
    run.signal("ANSWER", Value::Null);
    assert_eq!(run.snapshot.next_due(at(0)), None);
    run.now = at(500);
    let timer = Input::TimerFired { activation: run.id_in("ask") };
    assert!(matches!(run.refused(&timer), Refusal::NoActiveSource { .. }));
}

#[test]
fn reentering_a_place_restarts_its_timers() {
    let mut run = Driver::start_with(reminding(), deadline(10_000));
    run.timer("ask", at(10));
    run.now = at(50);
    run.advance();
    assert_eq!(run.snapshot.activation(run.id_in("ask")).unwrap().due(), Some(at(60)));
}

#[test]
fn signal_overtakes_a_due_timer_on_a_step() {
    let spec = Spec::new("step")
        .step("a")
        .end("late")
        .end("early")
        .signal("GO")
        .transition(auto("late", "a", "late").after_ms(10))
        .on_signal("early", "a", "GO", "early");
    let mut run = Driver::start(spec);
    let timer = Input::TimerFired { activation: run.id_in("a") };
    run.now = at(10);
    run.signal("GO", Value::Null);
    assert_eq!(run.refused(&timer), Refusal::Terminal);
}

#[test]
fn longest_timer_can_be_stored_and_restored() {
    let spec = Spec::new("forever").step("a").end("z").transition(auto("never", "a", "z").after_ms(u64::MAX));
    let run = Driver::start(spec);
    let again = stepwell_core::Snapshot::restore(&run.definition, &bytes(&run.snapshot)).unwrap();
    assert_eq!(again, run.snapshot);
}

// ---- waits ----

/// A wait for ANSWER, whose payload is used by guards and by the input of an action.
fn asking() -> Spec {
    let action = ActionSpec {
        name: "file".into(),
        input: json!({"by": {"$expr": "event.by"}, "case": {"$expr": "context.case"}}),
        save_as: None,
        version: None,
    };
    Spec::new("asking")
        .wait("ask", "ANSWER")
        .end("yes")
        .end("no")
        .signal("ANSWER")
        .transition(auto("accept", "ask", "yes").when("event.ok").action_with(action))
        .transition(auto("decline", "ask", "no").when("event.ok = false"))
}

#[test]
fn a_wait_is_waiting_until_it_is_resolved_then_active() {
    let mut run = Driver::start(asking());
    assert_eq!(run.snapshot.status_of("ask"), PlaceStatus::Waiting);
    assert_eq!(run.refused(&Input::advance()), Refusal::Idle);
    let change = run.signal("ANSWER", json!({"ok": false}));
    assert_eq!(change.entry.action, "__resolve_wait:ask");
    assert_eq!((run.snapshot.version(), run.snapshot.status_of("ask")), (1, PlaceStatus::Active));
    assert_eq!(run.id_in("ask"), 1, "it is still the same activation");
    run.advance();
    assert_eq!(run.snapshot.status_of("ask"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("no"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("yes"), PlaceStatus::Idle);
}

#[test]
fn wait_payload_reaches_the_next_guard_and_action() {
    let payload = json!({"ok": true, "by": "ann"});
    let mut signalled = Driver::start_with(asking(), json!({"case": 7}));
    signalled.signal("ANSWER", payload.clone());
    let mut direct = Driver::start_with(asking(), json!({"case": 7}));
    let activation = direct.id_in("ask");
    let change = direct.go(&Input::WaitResolved { activation, payload: payload.clone() });
    assert_eq!(change.entry.action, "__resolve_wait:ask");
    assert_eq!(change.entry.payload, Some(payload.clone()));
    for run in [signalled, direct] {
        let call = run.act(&Input::advance());
        assert_eq!(call.input, json!({"by": "ann", "case": 7}));
        assert_eq!((call.payload, call.cause), (payload.clone(), Cause::Auto));
    }
}

#[test]
fn only_an_open_wait_can_be_resolved() {
    let mut run = Driver::start(asking());
    let resolve = |activation| Input::WaitResolved { activation, payload: json!({"ok": false}) };
    assert!(matches!(run.refused(&resolve(99)), Refusal::NoActiveSource { .. }));
    run.go(&resolve(1));
    assert!(matches!(run.refused(&resolve(1)), Refusal::NoActiveSource { .. }), "not a second time");
    assert!(matches!(run.refused(&Input::signal("ANSWER", json!({}))), Refusal::NoActiveSource { .. }));
    let step = Driver::start(review());
    assert!(matches!(step.refused(&resolve(1)), Refusal::NoActiveSource { .. }));
}

/// A10: a direct answer to a wait is checked against the same schema as its signal.
#[test]
fn direct_answer_must_match_the_signals_payload_schema() {
    let wanted = json!({"type": "object", "required": ["by"]});
    let spec = Spec::new("asking").wait("ask", "ANSWER").end("done").signal_with("ANSWER", wanted);
    let mut run = Driver::start(spec.auto("go_on", "ask", "done"));
    let resolve = |payload| Input::WaitResolved { activation: 1, payload };
    assert!(matches!(run.refused(&resolve(json!({}))), Refusal::InvalidPayload { .. }));
    run.go(&resolve(json!({"by": "ann"})));
}

#[test]
fn step_is_active_until_a_transition_leaves_it() {
    let mut run = Driver::start(review());
    assert_eq!(run.snapshot.status_of("draft"), PlaceStatus::Active);
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(run.snapshot.status_of("draft"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("review"), PlaceStatus::Active);
}

// ---- actions (B1, B15) ----

/// PAY leads from `order` to `billed` with the action `bill`.
fn billing(retry: Retry) -> Spec {
    let action = ActionSpec {
        name: "bill".into(),
        input: json!({"amount": {"$expr": "context.amount"}, "key": {"$secret": "KEY"}}),
        save_as: Some("bill".to_owned()),
        version: None,
    };
    Spec::new("billing")
        .step("order")
        .step("billed")
        .end("sorry")
        .end("done")
        .signal("PAY")
        .transition(auto("bill", "order", "billed").on_signal("PAY").action_with(action).retry(retry))
        .auto("apologise", "order", "sorry")
        .on_signal("close", "billed", "PAY", "done")
}

fn only_bill(retry: Retry) -> Driver {
    let mut spec = billing(retry);
    for transition in &mut spec.transitions {
        if transition.id == "apologise" {
            transition.guard = Some(Guard::expr("false"));
        }
    }
    Driver::start_with(spec, json!({"amount": 5, "kept": {"a": 1, "b": 2}}))
}

#[test]
fn requesting_an_action_does_not_change_the_snapshot() {
    let run = only_bill(Retry::default());
    let before = bytes(&run.snapshot);
    let call = run.act(&Input::signal("PAY", json!({"with": "card"})));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!((call.activation, call.transition.as_str(), call.action.as_str()), (1, "bill", "bill"));
    assert_eq!(call.input, json!({"amount": 5, "key": {"$secret": "KEY"}}));
    assert_eq!(call.payload, json!({"with": "card"}));
    assert_eq!(call.cause, Cause::Signal("PAY".into()));
    assert_eq!(call.timeout_ms, None);
    let kept = serde_json::to_string(&call).unwrap();
    assert_eq!(serde_json::from_str::<stepwell_core::ActionCall>(&kept).unwrap(), call);
}

#[test]
fn action_without_a_timeout_leaves_it_to_the_engine() {
    let call = |t: Transition| {
        let spec = Spec::new("t").step("a").end("z").transition(t.action("x"));
        Driver::start(spec).act(&Input::advance()).timeout_ms
    };
    assert_eq!(call(auto("go", "a", "z")), None);
    assert_eq!(call(auto("go", "a", "z").timeout_ms(7)), Some(7));
    assert_eq!(call(auto("go", "a", "z").timeout_ms(0)), Some(0));
}

#[test]
fn action_result_is_applied_in_one_version() {
    let mut run = only_bill(Retry::default());
    let call = run.act(&Input::signal("PAY", json!({"with": "card"})));
    let outcome = ActionResult {
        whole: None,
        context: patch(&json!({"kept": {"a": 1}}), &json!({"kept": {"a": 9}, "new": true})),
        session: Patch::set("tries", json!(3)),
        locals: object(json!({"item": "x"})),
        output: json!({"number": 17}),
        children: 0,
        duration_us: 42,
    };
    let change = run.done(&call, outcome);
    assert_eq!(run.snapshot.version(), 1);
    let context = json!({"amount": 5, "kept": {"a": 9, "b": 2}, "new": true, "bill": {"number": 17}});
    assert_eq!(run.snapshot.context(), &context);
    assert_eq!(run.snapshot.session(), &object(json!({"tries": 3})));
    let billed = run.snapshot.activation(run.id_in("billed")).unwrap();
    assert_eq!(billed.locals, object(json!({"item": "x"})));
    assert_eq!(change.entry.action, "PAY");
    assert_eq!(change.ended, [0; 0]);
}

#[test]
fn late_action_result_is_superseded() {
    let mut run = only_bill(Retry::default());
    let call = run.act(&Input::signal("PAY", Value::Null));
    run.done(&call, ActionResult::default());
    let superseded = Refusal::Superseded { activation: call.activation, what: "bill".into() };
    let done = Input::ActionDone { call: call.clone(), outcome: ActionResult::default() };
    assert_eq!(run.refused(&done), superseded, "not a second time");
    let failed =
        Input::ActionFailed { call: call.clone(), failure: Failure::new("x", "y"), retries: 0, first: None };
    assert_eq!(run.refused(&failed), superseded);
    let mut odd = only_bill(Retry::default());
    let elsewhere = stepwell_core::ActionCall { transition: "close".into(), ..call.clone() };
    let event = Input::ActionDone { call: elsewhere, outcome: ActionResult::default() };
    assert!(matches!(odd.refused(&event), Refusal::Superseded { .. }), "a transition without an action");
    let both = Driver::start(two_actions());
    let left = both.act(&Input::Advanced { activation: Some(both.id_in("left")) });
    let wrong = stepwell_core::ActionCall { transition: "right".into(), ..left };
    let event = Input::ActionDone { call: wrong, outcome: ActionResult::default() };
    assert!(matches!(both.refused(&event), Refusal::Superseded { .. }), "another place's transition");
    odd.go(&Input::Cancelled);
    assert_eq!(odd.refused(&done), Refusal::Terminal);
}

#[test]
fn timer_action_is_superseded_once_the_wait_is_resolved() {
    let spec = Spec::new("race")
        .wait("ask", "ANSWER")
        .end("answered")
        .end("escalated")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(auto("escalate", "ask", "escalated").after_ms(10).action("tell boss"));
    let mut run = Driver::start(spec);
    run.now = at(10);
    let call = run.act(&Input::TimerFired { activation: run.id_in("ask") });
    assert_eq!(call.cause, Cause::Timer);
    let mut unanswered = Driver::from_snapshot(&run.definition, run.snapshot.clone());
    assert_eq!(unanswered.done(&call, ActionResult::default()).entry.action, "__timer:ask");
    run.signal("ANSWER", json!("yes"));
    let done = Input::ActionDone { call: call.clone(), outcome: ActionResult::default() };
    assert_eq!(run.refused(&done), Refusal::Superseded { activation: 1, what: "escalate".into() });
    let failed = Input::ActionFailed { call, failure: Failure::new("x", "y"), retries: 0, first: None };
    assert!(matches!(run.refused(&failed), Refusal::Superseded { .. }));
}

/// A fork of two branches with one action each.
fn two_actions() -> Spec {
    Spec::new("two")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .step("l")
        .step("r")
        .end("done")
        .signal("END")
        .transition(auto("left", "left", "l").action("x"))
        .transition(auto("right", "right", "r").action("x"))
        .on_signal("end l", "l", "END", "done")
        .on_signal("end r", "r", "END", "done")
}

#[test]
fn results_of_concurrent_branches_are_merged() {
    let mut run = Driver::start_with(two_actions(), json!({"shared": {"a": 0, "b": 0}, "list": []}));
    let given = run.snapshot.context().clone();
    let advance = |place: &str, run: &Driver| Input::Advanced { activation: Some(run.id_in(place)) };
    let (left, right) = (run.act(&advance("left", &run)), run.act(&advance("right", &run)));
    let outcome = |after: Value| ActionResult { context: patch(&given, &after), ..ActionResult::default() };
    run.done(&right, outcome(json!({"shared": {"a": 0, "b": 2}, "list": [1]})));
    run.done(&left, outcome(json!({"shared": {"a": 1, "b": 0}, "list": [], "new": true})));
    assert_eq!(run.snapshot.version(), 2);
    let merged = json!({"shared": {"a": 1, "b": 2}, "list": [1], "new": true});
    assert_eq!(run.snapshot.context(), &merged);
}

#[test]
fn result_violating_the_context_schema_changes_nothing() {
    let schema =
        json!({"type": "object", "properties": {"bill": {"type": "object"}, "n": {"type": "integer"}}});
    let spec = billing(Retry::default()).context_schema(schema);
    let definition = build(spec);
    let error = start(&definition, RunId::nil(), json!({"n": "one"}), at(0)).unwrap_err();
    assert!(error.to_string().contains("/n"), "{error}");
    let created = start(&definition, RunId::nil(), json!({"amount": 1}), at(0)).unwrap();
    let run = Driver::from_snapshot(&definition, created.snapshot);
    let call = run.act(&Input::signal("PAY", Value::Null));
    let done = |outcome| Input::ActionDone { call: call.clone(), outcome };
    let unfit = [
        ActionResult { output: json!("a string"), ..ActionResult::default() },
        ActionResult { context: Patch::set("n", json!(1.5)), output: json!({}), ..ActionResult::default() },
    ];
    for outcome in unfit {
        let error = run.undecidable(&done(outcome));
        assert!(
            matches!(error, DecideError::InvalidContext(ref violations) if violations.len() == 1),
            "{error:?}"
        );
    }
    let patched = Input::Patched { patch: Patch::set("n", json!("one")) };
    assert!(matches!(run.undecidable(&patched), DecideError::InvalidContext(_)));
}

#[test]
fn schema_applies_to_the_whole_result_not_its_parts() {
    // `paid` requires `bill`, which `saveAs` writes after the action's patch is applied.
    let schema = json!({"type": "object", "dependentRequired": {"paid": ["bill"]}});
    let mut run = Driver::start_with(billing(Retry::default()).context_schema(schema), json!({"amount": 5}));
    let call = run.act(&Input::signal("PAY", Value::Null));
    let outcome = ActionResult {
        context: Patch::set("paid", json!(true)),
        output: json!(1),
        ..ActionResult::default()
    };
    run.done(&call, outcome);
    assert_eq!(run.snapshot.context(), &json!({"amount": 5, "paid": true, "bill": 1}));
}

#[test]
fn context_without_a_schema_must_be_an_object() {
    let definition = build(review());
    let error = start(&definition, RunId::nil(), json!([1]), at(0)).unwrap_err();
    assert!(error.to_string().contains("the context must be an object"), "{error}");
    let empty = start(&definition, RunId::nil(), Value::Null, at(0)).unwrap();
    assert_eq!(empty.snapshot.context(), &json!({}));
    let run = Driver::start_with(review(), json!({"a": 1}));
    let whole = Input::Patched { patch: patch(&json!({"a": 1}), &json!("text")) };
    assert!(matches!(run.undecidable(&whole), DecideError::InvalidContext(_)));
}

#[test]
fn session_slots_are_limited_in_number_and_size() {
    let limits = Limits { session_keys: 2, session_bytes: 30, ..Limits::default() };
    let definition = only_bill(Retry::default()).definition.spec().clone().build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({"amount": 1}), at(0)).unwrap();
    let mut run = Driver::from_snapshot(&definition, created.snapshot);
    let call = run.act(&Input::signal("PAY", Value::Null));
    let with = |session: Patch| Input::ActionDone {
        call: call.clone(),
        outcome: ActionResult { session, ..ActionResult::default() },
    };
    let limit = |event: &Input| match run.undecidable(event) {
        DecideError::Limit(exceeded) => exceeded.limit,
        other => panic!("{other:?}"),
    };
    let slots = |slots: Value| patch(&json!({}), &slots);
    assert_eq!(limit(&with(slots(json!({"a": 1, "b": 2, "c": 3})))), "session_keys");
    assert_eq!(limit(&with(slots(json!({"a": "x".repeat(40)})))), "session_bytes");
    let not_slots = with(patch(&json!({}), &json!([1])));
    assert!(
        matches!(run.undecidable(&not_slots), DecideError::InvalidSession),
        "nothing is dropped silently"
    );
    run.go(&with(slots(json!({"a": 1, "b": 2}))));
    assert_eq!(run.snapshot.session(), &object(json!({"a": 1, "b": 2})));
}

#[test]
fn action_input_error_names_the_transition() {
    let action = ActionSpec {
        name: "x".into(),
        input: json!([{"$expr": "context.missing"}]),
        save_as: None,
        version: None,
    };
    let spec = Spec::new("t").step("a").end("z").transition(auto("go", "a", "z").action_with(action));
    let error = Driver::start(spec).undecidable(&Input::advance());
    assert!(error.to_string().starts_with("input of transition `go`: "), "{error}");
}

// ---- failures (B5, B6, B7) ----

fn broken() -> Failure {
    Failure::new("timeout", "it took too long")
}

#[test]
fn retries_follow_the_count_and_delays_of_the_policy() {
    let retry = Retry { attempts: 3, delay_ms: 100, max_delay_ms: 250, ..Retry::default() };
    let run = only_bill(retry.clone());
    let call = run.act(&Input::signal("PAY", Value::Null));
    let again = |run: &Driver, retries| match run.failed(&call, broken(), retries) {
        Ok(Decision::Retry { retry, at: when }) => (retry, when.ms_since(at(0))),
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 1, 2].map(|retries| again(&run, retries)), [(1, 100), (2, 200), (3, 250)]);
    assert_eq!(run.failed(&call, broken(), 3), Ok(Decision::Stop(broken())));
    assert_eq!(run.failed(&call, broken(), u32::MAX), Ok(Decision::Stop(broken())));
    let fixed = only_bill(Retry { backoff: Backoff::Fixed, ..retry });
    assert_eq!([0, 1, 2].map(|retries| again(&fixed, retries)), [(1, 100), (2, 100), (3, 100)]);
}

#[test]
fn failure_without_a_policy_stops_the_run_in_place() {
    let run = only_bill(Retry::default());
    let before = bytes(&run.snapshot);
    let call = run.act(&Input::signal("PAY", Value::Null));
    assert_eq!(run.failed(&call, broken(), 0), Ok(Decision::Stop(broken())));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!(run.act(&Input::signal("PAY", Value::Null)), call, "a manual retry requests the same");
}

#[test]
fn final_and_unlisted_failures_are_not_retried() {
    let listed = Retry { attempts: 9, retry_on: Some(vec!["timeout".into()]), ..Retry::default() };
    let run = only_bill(listed);
    let call = run.act(&Input::signal("PAY", Value::Null));
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 1, .. })));
    let other = Failure::new("declined", "no");
    assert_eq!(run.failed(&call, other.clone(), 0), Ok(Decision::Stop(other)));
    assert_eq!(run.failed(&call, broken().non_retryable(), 0), Ok(Decision::Stop(broken().non_retryable())));
    let all = only_bill(Retry { attempts: 9, ..Retry::default() });
    assert!(matches!(all.failed(&call, Failure::new("any", ""), 0), Ok(Decision::Retry { .. })));
    assert!(matches!(all.failed(&call, broken().non_retryable(), 0), Ok(Decision::Stop(_))));
}

#[test]
fn run_goes_to_the_error_place_after_its_last_retry() {
    let retry = Retry { attempts: 1, place: Some("failed".into()), ..Retry::default() };
    let spec = billing(retry)
        .step("failed")
        .transition(auto("tell", "failed", "sorry").when("error.code = 'timeout' and $not(error.final)"));
    let spec =
        Spec { transitions: spec.transitions.into_iter().filter(|t| t.id != "apologise").collect(), ..spec };
    let mut run = Driver::start_with(spec, json!({"amount": 5}));
    let call = run.act(&Input::signal("PAY", json!({"with": "card"})));
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { .. })));
    let spent = Input::ActionFailed { call: call.clone(), failure: broken(), retries: 1, first: None };
    let change = run.go(&spent);
    assert_eq!(change.entry.action, "__error:bill");
    assert_eq!(change.entry.payload, Some(json!({"with": "card"})));
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["order"], vec!["failed"]));
    assert_eq!(change.stopped, None);
    let failed = run.snapshot.activation(run.id_in("failed")).unwrap();
    assert_eq!(
        failed.locals["error"],
        json!({"code": "timeout", "message": "it took too long", "final": false})
    );
    assert_eq!(run.run_until_idle(), 1, "automatic transitions out of it run");
    assert!(run.snapshot.is_terminal());
}

#[test]
fn a_final_failure_goes_to_the_error_place_at_once() {
    let retry = Retry { attempts: 5, place: Some("sorry".into()), ..Retry::default() };
    let mut run = only_bill(retry);
    let call = run.act(&Input::signal("PAY", Value::Null));
    run.go(&Input::ActionFailed { call, failure: broken().non_retryable(), retries: 0, first: None });
    assert!(matches!(run.snapshot.finished(), Some(RunEnd::Completed { place, .. }) if *place == "sorry"));
}

// ---- children (B11) ----

/// `order` starts children and waits for them in `parts`.
fn parts(rule: ChildRule, error_place: Option<&str>) -> Spec {
    let wait = Wait { children: Some(rule), error_place: error_place.map(Name::from), ..Wait::default() };
    Spec::new("parts")
        .step("order")
        .place("parts", Place::Wait(wait))
        .end("done")
        .step("sorry")
        .transition(auto("begin", "order", "parts").action("start children"))
        .auto("on", "parts", "done")
        .auto("give up", "sorry", "done")
        .transition(auto("no", "order", "sorry").when("false"))
}

fn with_children(rule: ChildRule, error_place: Option<&str>, children: u32) -> Driver {
    let mut run = Driver::start(parts(rule, error_place));
    let call = run.act(&Input::advance());
    run.done(&call, ActionResult { children, ..ActionResult::default() });
    run
}

fn completed(output: i64) -> ChildEnd {
    ChildEnd::Completed { output: json!(output) }
}

fn failed() -> ChildEnd {
    ChildEnd::Failed { error: broken() }
}

/// Ends the children in order. Returns the status of the wait after each.
fn statuses(rule: ChildRule, children: u32, ends: &[ChildEnd]) -> Vec<PlaceStatus> {
    let mut run = with_children(rule, None, children);
    let each = ends.iter().enumerate();
    each.map(|(child, end)| {
        run.child("parts", child as u32, end.clone());
        run.snapshot.status_of("parts")
    })
    .collect()
}

#[test]
fn wait_for_children_follows_its_rule() {
    use PlaceStatus::{Active, Waiting};
    let ends = [completed(1), failed(), completed(3)];
    let good = [completed(1), completed(2), completed(3)];
    assert_eq!(statuses(ChildRule::All, 3, &good), [Waiting, Waiting, Active]);
    assert_eq!(statuses(ChildRule::AllSettled, 3, &ends), [Waiting, Waiting, Active]);
    assert_eq!(statuses(ChildRule::Any, 3, &ends[1..2]), [Waiting]);
    assert_eq!(statuses(ChildRule::Any, 3, &ends[..1]), [Active]);
    assert_eq!(statuses(ChildRule::N(2), 3, &ends), [Waiting, Waiting, Active]);
    assert_eq!(statuses(ChildRule::N(2), 3, &good[..2]), [Waiting, Active]);
}

#[test]
fn wait_for_children_receives_how_each_child_ended() {
    let mut run = with_children(ChildRule::AllSettled, None, 3);
    assert_eq!(run.child("parts", 2, ChildEnd::Cancelled).entry.action, "__child:parts");
    run.child("parts", 0, completed(7));
    let change = run.child("parts", 1, failed());
    assert_eq!(change.entry.action, "__resolve_wait:parts");
    let received = run.snapshot.activation(run.id_in("parts")).unwrap().received.clone().unwrap();
    let expected = json!({"children": [
        {"child": 0, "end": {"status": "completed", "output": 7}},
        {"child": 1, "end": {"status": "failed", "error": {"code": "timeout", "message": "it took too long", "final": false}}},
        {"child": 2, "end": {"status": "cancelled"}},
    ]});
    assert_eq!(received, expected);
}

#[test]
fn zero_children_resolve_all_and_fail_any() {
    for rule in [ChildRule::All, ChildRule::AllSettled] {
        let run = with_children(rule, None, 0);
        assert_eq!(run.snapshot.status_of("parts"), PlaceStatus::Active, "{rule:?}");
        assert_eq!(run.snapshot.version(), 1);
    }
    for rule in [ChildRule::Any, ChildRule::N(1)] {
        let run = with_children(rule, Some("sorry"), 0);
        assert_eq!(run.places(), ["sorry"], "{rule:?}");
    }
}

#[test]
fn repeated_or_unknown_children_are_superseded() {
    let mut run = with_children(ChildRule::N(2), None, 3);
    let activation = run.id_in("parts");
    run.child("parts", 1, completed(1));
    let done = |activation, child| Input::ChildDone { activation, child, end: completed(1) };
    for event in [done(activation, 1), done(activation, 3), done(99, 0)] {
        assert!(matches!(run.refused(&event), Refusal::Superseded { .. }), "{event:?}");
    }
    run.child("parts", 0, completed(1));
    assert!(
        matches!(run.refused(&done(activation, 2)), Refusal::Superseded { .. }),
        "it is resolved already"
    );
}

#[test]
fn impossible_child_rule_leads_to_error_place_or_stops_run() {
    let rows =
        [(ChildRule::All, 3, 1), (ChildRule::Any, 2, 2), (ChildRule::N(2), 3, 2), (ChildRule::N(4), 3, 0)];
    for (rule, children, needed) in rows {
        let mut run = Driver::start(parts(rule, Some("sorry")));
        let call = run.act(&Input::advance());
        run.done(&call, ActionResult { children, ..ActionResult::default() });
        for child in 0..needed {
            assert_eq!(run.places(), ["parts"], "{rule:?}");
            run.child("parts", child, ChildEnd::Cancelled);
        }
        assert_eq!(run.places(), ["sorry"], "{rule:?}");
        let sorry = run.snapshot.activation(run.id_in("sorry")).unwrap();
        assert_eq!(sorry.locals["error"]["code"], "childrenFailed");
        assert_eq!(sorry.locals["error"]["final"], false);
    }
    let mut run = with_children(ChildRule::All, None, 2);
    let change = run.child("parts", 1, failed());
    let stopped = change.stopped.unwrap();
    assert_eq!((stopped.code.as_str(), stopped.is_final), ("childrenFailed", false));
    assert!(stopped.message.contains("`parts`"), "{}", stopped.message);
    assert_eq!(run.snapshot.status_of("parts"), PlaceStatus::Waiting);
}

#[test]
fn number_of_children_per_action_is_limited() {
    let run = Driver::start(parts(ChildRule::All, None));
    let call = run.act(&Input::advance());
    let done = |children| Input::ActionDone {
        call: call.clone(),
        outcome: ActionResult { children, ..ActionResult::default() },
    };
    assert!(matches!(run.decide(&done(1_000)), Ok(Decision::Change(_))));
    let DecideError::Limit(exceeded) = run.undecidable(&done(1_001)) else { panic!("it is a limit") };
    assert_eq!(exceeded.limit, "children");
}

// ---- loops (A2) ----

#[test]
fn nested_loops_count_their_iterations() {
    let spec = Spec::new("loops")
        .step("before")
        .step("outer")
        .step("inner")
        .end("after")
        .signal("IN")
        .signal("NEXT")
        .signal("OUT")
        .transition(auto("enter outer", "before", "outer").loop_step(LoopStep::Enter))
        .transition(auto("enter inner", "outer", "inner").on_signal("IN").loop_step(LoopStep::Enter))
        .transition(auto("next inner", "inner", "inner").on_signal("NEXT").loop_step(LoopStep::Next))
        .transition(auto("leave inner", "inner", "outer").on_signal("OUT").loop_step(LoopStep::Leave))
        .transition(auto("next outer", "outer", "outer").on_signal("NEXT").loop_step(LoopStep::Next))
        .transition(auto("leave outer", "outer", "after").on_signal("OUT").loop_step(LoopStep::Leave));
    let mut run = Driver::start(spec);
    let position = |run: &Driver| run.snapshot.activations()[0].position.clone();
    assert_eq!(position(&run), [0; 0]);
    run.advance();
    assert_eq!(position(&run), [0]);
    run.signal("NEXT", Value::Null);
    run.signal("IN", Value::Null);
    assert_eq!(position(&run), [1, 0]);
    run.signal("NEXT", Value::Null);
    run.signal("NEXT", Value::Null);
    assert_eq!(position(&run), [1, 2]);
    run.signal("OUT", Value::Null);
    assert_eq!(position(&run), [1]);
    run.signal("OUT", Value::Null);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn late_result_of_an_earlier_iteration_is_superseded() {
    let spec = Spec::new("loop")
        .step("begin")
        .step("body")
        .end("after")
        .transition(auto("enter", "begin", "body").loop_step(LoopStep::Enter))
        .transition(auto("next", "body", "body").when("context.n < 2").action("x").loop_step(LoopStep::Next))
        .transition(auto("leave", "body", "after").when("context.n = 2").loop_step(LoopStep::Leave));
    let mut run = Driver::start_with(spec, json!({"n": 0}));
    run.advance();
    let mut calls = Vec::new();
    for n in 1..=2 {
        let call = run.act(&Input::advance());
        run.done(&call, ActionResult { context: Patch::set("n", json!(n)), ..ActionResult::default() });
        calls.push(call);
    }
    assert_ne!(calls[0].activation, calls[1].activation);
    assert_eq!(run.snapshot.activations()[0].position, [2]);
    let late = Input::ActionDone { call: calls[0].clone(), outcome: ActionResult::default() };
    assert!(matches!(run.refused(&late), Refusal::Superseded { .. }));
    run.advance();
    assert!(run.snapshot.is_terminal());
}

#[test]
fn locals_follow_the_run_and_shadow_the_context() {
    let spec = Spec::new("locals")
        .step("a")
        .step("b")
        .end_with("z", json!({"item": {"$expr": "item"}, "same": {"$expr": "locals.item"}}))
        .transition(auto("ab", "a", "b").action("x"))
        .auto("bz", "b", "z");
    let mut run = Driver::start_with(spec, json!({"item": "the context's"}));
    let call = run.act(&Input::advance());
    run.done(&call, ActionResult { locals: object(json!({"item": 5})), ..ActionResult::default() });
    run.advance();
    let output = Some(json!({"item": 5, "same": 5}));
    assert_eq!(run.snapshot.finished(), Some(&RunEnd::Completed { place: "z".into(), output }));
}

// ---- the end (B19) ----

#[test]
fn entering_an_end_completes_the_run_and_ends_the_rest() {
    let mut run = Driver::start(two_actions());
    let advance = |place: &str, run: &Driver| Input::Advanced { activation: Some(run.id_in(place)) };
    let (left, right) = (run.act(&advance("left", &run)), run.act(&advance("right", &run)));
    run.done(&left, ActionResult::default());
    let change = run.signal("END", Value::Null);
    assert!(run.snapshot.is_terminal());
    assert_eq!(change.ended, [right.activation]);
    assert_eq!(texts(&change.entry.exited), ["l", "right"]);
    assert_eq!(texts(&change.entry.entered), ["done"]);
    assert_eq!(run.snapshot.activations(), []);
    assert_eq!(run.snapshot.fork_instances(), []);
    assert_eq!(run.snapshot.status_of("right"), PlaceStatus::Idle, "it was ended, not completed");
    let late = Input::ActionDone { call: right, outcome: ActionResult::default() };
    assert_eq!(run.refused(&late), Refusal::Terminal);
}

#[test]
fn cancelling_ends_and_reports_all_activations() {
    let mut run = Driver::start(two_actions());
    let change = run.go(&Input::Cancelled);
    assert_eq!(run.snapshot.finished(), Some(&RunEnd::Cancelled));
    assert!(run.snapshot.is_terminal());
    assert_eq!(change.entry.action, "__operator:cancel");
    assert_eq!(texts(&change.entry.exited), ["left", "right"]);
    assert_eq!(change.ended.len(), 2);
    assert_eq!(run.refused(&Input::Cancelled), Refusal::Terminal);
}

#[test]
fn operator_patch_is_one_version_and_moves_nothing() {
    let mut run = Driver::start_with(review(), json!({"a": {"b": 1, "c": 2}, "d": 1}));
    let before = run.snapshot.activations().to_vec();
    let fix = patch(&json!({"a": {"b": 1}, "d": 1}), &json!({"a": {"b": null}}));
    let change = run.go(&Input::Patched { patch: fix });
    assert_eq!(change.entry.action, "__operator:patch");
    assert_eq!(run.snapshot.context(), &json!({"a": {"b": null, "c": 2}}));
    assert_eq!(run.snapshot.activations(), before);
}

#[test]
fn end_output_is_checked_against_the_output_schema() {
    let spec = |schema: Value| {
        Spec::new("out")
            .step("a")
            .end_with("z", json!({"total": {"$expr": "context.n * 2"}, "by": {"$expr": "event.by"}}))
            .signal("GO")
            .output_schema(schema)
            .on_signal("go", "a", "GO", "z")
    };
    let fits = json!({"type": "object", "properties": {"total": {"type": "integer"}}});
    let mut run = Driver::start_with(spec(fits), json!({"n": 21}));
    run.signal("GO", json!({"by": "ann"}));
    let output = Some(json!({"total": 42, "by": "ann"}));
    assert_eq!(run.snapshot.finished(), Some(&RunEnd::Completed { place: "z".into(), output }));

    let unfit = json!({"type": "object", "properties": {"total": {"type": "string"}}});
    let run = Driver::start_with(spec(unfit), json!({"n": 21}));
    let error = run.undecidable(&Input::signal("GO", json!({"by": "ann"})));
    assert!(matches!(&error, DecideError::InvalidOutput { place, .. } if *place == "z"), "{error:?}");
    assert!(error.to_string().contains("/total"), "{error}");

    let broken = Driver::start_with(spec(json!({})), json!({"n": "many"}));
    let error = broken.undecidable(&Input::signal("GO", Value::Null));
    assert!(error.to_string().starts_with("output of place `z`: "), "{error}");
}

#[test]
fn number_of_activations_is_limited() {
    let limits = Limits { activations: 2, ..Limits::default() };
    let spec = Spec::new("wide")
        .step("a")
        .fork("fork", ["b", "b", "b"])
        .step("b")
        .end("z")
        .auto("split", "a", "fork")
        .auto("bz", "b", "z");
    let definition = spec.build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({}), at(0)).unwrap();
    let run = Driver::from_snapshot(&definition, created.snapshot);
    let DecideError::Limit(exceeded) = run.undecidable(&Input::advance()) else { panic!("it is a limit") };
    assert_eq!((exceeded.limit.as_str(), exceeded.actual), ("activations", 3));
}
