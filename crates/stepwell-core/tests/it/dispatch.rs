//! What an event does to a run: which transition fires, what is refused and why, and that nothing else happens.

use serde_json::{Map, Value, json};
use stepwell_core::guard::GuardView;
use stepwell_core::patch::Patch;
use stepwell_core::refusal::GuardNo;
use stepwell_core::retry::{Backoff, DEFAULT_TIMEOUT_MS, Retry};
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, Finished};
use stepwell_core::spec::{Action, ChildRule, Firing, Guard, LoopStep, Place, Transition, Trigger, Wait};
use stepwell_core::{
    Answers, Cause, DecideError, Decision, Event, Failure, Guards, Instance, Limits, Name, Outcome,
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

/// `draft` is left by GO to `review`, `review` by OK to `done`.
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
fn a_run_starts_at_version_0_and_every_change_is_exactly_one_more() {
    let mut run = Driver::start(review());
    assert_eq!(run.snapshot.version(), 0);
    assert_eq!((run.snapshot.created_at(), run.snapshot.updated_at()), (at(0), at(0)));
    run.now = at(5);
    assert_eq!(run.signal("GO", json!({"by": "ann"})).snapshot.version(), 1);
    assert_eq!((run.snapshot.created_at(), run.snapshot.updated_at()), (at(0), at(5)));
    let fix = Event::Patched { patch: Patch::set("note", json!("x")) };
    assert_eq!(run.go(&fix).snapshot.version(), 2);
    assert_eq!(run.signal("OK", Value::Null).snapshot.version(), 3);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn a_refused_signal_leaves_the_snapshot_byte_identical() {
    let run = Driver::start(review());
    let before = bytes(&run.snapshot);
    let refused = [
        Event::signal("NEVER", json!({})),
        Event::signal("GO", json!({})),
        Event::signal("OK", json!({})),
        Event::advance(),
        Event::TimerFired { activation: 1 },
        Event::WaitResolved { activation: 1, payload: json!(1) },
        Event::ChildDone { activation: 1, child: 0, end: ChildEnd::Cancelled },
    ];
    for event in refused {
        run.refused(&event);
        assert_eq!(bytes(&run.snapshot), before, "{event:?}");
    }
}

#[test]
fn the_clock_going_back_does_not_make_a_run_older() {
    let mut run = Driver::start(review());
    run.now = at(50);
    run.signal("GO", json!({"by": "ann"}));
    run.now = at(20);
    run.signal("OK", Value::Null);
    assert_eq!(run.snapshot.updated_at(), at(50));
}

#[test]
fn a_snapshot_of_another_definition_is_not_decided_on() {
    let run = Driver::start(review());
    let other = build(review().version(2));
    let decision =
        dispatch(&other, &run.snapshot, &Event::signal("OK", Value::Null), &Answers::none(), at(0));
    let Err(Rejected::Undecidable(DecideError::OtherDefinition { expected, found })) = decision else {
        panic!("{decision:?}")
    };
    assert_eq!(expected, format!("review {}", other.hash().short()));
    assert_eq!(found, format!("review {}", run.definition.hash().short()));
}

// ---- refusals (A7) ----

#[test]
fn reasons_to_refuse_are_checked_in_their_order_when_several_hold() {
    // Nothing takes LATER now, its payload does not fit, and its guard would say no; PAY has an active source.
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

    // Unknown wins over a payload that fits nothing.
    assert!(matches!(run.refused(&Event::signal("PAI", json!(1))), Refusal::UnknownSignal { .. }));
    // The payload wins over the missing source and the guard.
    assert!(matches!(run.refused(&Event::signal("LATER", json!({}))), Refusal::PayloadUnfit { .. }));
    assert!(matches!(run.refused(&Event::signal("PAY", json!({}))), Refusal::PayloadUnfit { .. }));
    // The missing source wins over the guard.
    let later = Event::signal("LATER", json!({"why": "x"}));
    assert!(matches!(run.refused(&later), Refusal::NoActiveSource { .. }));
    // Only the guard is left.
    let pay = Event::signal("PAY", json!({"amount": 1}));
    assert!(matches!(run.refused(&pay), Refusal::GuardSaidNo { .. }));
    // Once the run has ended, that is the reason, whatever else is wrong.
    run.go(&Event::Cancelled);
    for event in [Event::signal("PAI", json!(1)), Event::signal("LATER", json!({})), later, pay] {
        assert_eq!(run.refused(&event), Refusal::Terminal);
    }
}

#[test]
fn each_refusal_says_why_in_words() {
    let spec =
        review().transition(auto("stop", "draft", "done").on_signal("OK").when("context.amount > 100"));
    let mut run = Driver::start_with(spec, json!({"amount": 5}));
    let said = |run: &Driver, event: &Event| run.refused(event).to_string();
    assert_eq!(
        said(&run, &Event::signal("OKK", Value::Null)),
        "workflow `review` knows no signal `OKK` (did you mean `OK`?)"
    );
    let unfit = said(&run, &Event::signal("GO", json!({})));
    assert!(unfit.starts_with("the payload of `GO` does not fit: ") && unfit.contains("by"), "{unfit}");
    assert_eq!(
        said(&run, &Event::signal("OK", Value::Null)),
        "transition `stop` is held back by its guard `context.amount > 100`"
    );
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(
        said(&run, &Event::signal("GO", json!({"by": "ann"}))),
        "nothing takes `GO` now: it is taken in `draft`, and the run is in `review`"
    );
    run.signal("OK", Value::Null);
    assert_eq!(said(&run, &Event::advance()), "the run has ended; nothing more can happen to it");
}

#[test]
fn a_payload_schema_belongs_to_the_signals_name_not_to_a_transition() {
    let spec = Spec::new("both")
        .step("a")
        .wait("b", "GO")
        .end("done")
        .signal_with("GO", json!({"type": "object", "required": ["by"]}))
        .on_signal("first", "a", "GO", "b")
        .auto("second", "b", "done");
    let mut run = Driver::start(spec);
    assert!(matches!(run.refused(&Event::signal("GO", json!({}))), Refusal::PayloadUnfit { .. }));
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(run.places(), ["b"]);
    assert!(matches!(run.refused(&Event::signal("GO", json!({}))), Refusal::PayloadUnfit { .. }));
    run.signal("GO", json!({"by": "bob"}));
}

#[test]
fn a_payload_that_is_too_large_or_too_deep_is_an_error_with_the_limit() {
    let limits = Limits { payload_bytes: 20, value_depth: 3, ..Limits::default() };
    let definition = review().build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({}), at(0)).unwrap();
    let run = Driver::holding(&definition, created.snapshot);
    let limit = |payload: Value| match run.undecidable(&Event::signal("OK", payload)) {
        DecideError::Limit(exceeded) => (exceeded.limit, exceeded.actual, exceeded.max),
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(json!("x".repeat(19))), ("payload_bytes".to_owned(), 21, 20));
    assert_eq!(limit(json!([[[[]]]])), ("value_depth".to_owned(), 4, 3));
    assert!(matches!(run.refused(&Event::signal("OK", json!([[[]]]))), Refusal::NoActiveSource { .. }));
}

// ---- guards (A6) ----

/// One signal transition with this guard; `seen` is completed, `draft` and the wait `also` are active.
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

/// The guard that says no, or nothing.
fn said_no(run: &Driver, payload: Value) -> Option<String> {
    match run.decide(&Event::signal("GO", payload)) {
        Ok(Decision::Change(_)) => None,
        Err(Rejected::Refused(Refusal::GuardSaidNo { verdicts })) => Some(verdicts[0].guard.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn guards_of_every_kind_say_yes_and_no() {
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
        assert_eq!(said_no(&run, json!({"ok": true})).as_deref(), expected, "{guard:?}");
    }
}

#[test]
fn a_guard_that_fails_is_an_error_that_names_its_transition() {
    let run = guarded(Guard::expr("context.amount + 'x' > 1"));
    let error = run.undecidable(&Event::signal("GO", Value::Null));
    assert!(matches!(error, DecideError::Expression { .. }), "{error:?}");
    assert!(error.to_string().starts_with("guard of transition `go`: "), "{error}");
}

#[test]
fn an_unanswered_named_guard_is_an_error_that_names_it_and_its_transition() {
    let mut run = guarded(Guard::And(vec![Guard::named("manager"), Guard::named("open")]));
    let unresolved =
        |guard: &str| DecideError::UnresolvedGuard { guard: guard.into(), transition: "go".into() };
    let go = Event::signal("GO", Value::Null);
    assert_eq!(run.undecidable(&go), unresolved("manager"));
    assert!(unresolved("manager").to_string().contains("`manager`"));
    run.answers = Answers::none().with("manager", true);
    assert_eq!(run.undecidable(&go), unresolved("open"));
    run.answers = Answers::none().with("manager", false);
    assert_eq!(said_no(&run, Value::Null).as_deref(), Some("`manager`"));
    run.answers = Answers::none().with("manager", true).with("open", true);
    assert_eq!(said_no(&run, Value::Null), None);
}

#[test]
fn the_questions_are_exactly_the_named_guards_the_event_may_ask() {
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
    let asked = |event: &Event| -> Vec<String> {
        let questions = questions(&run.definition, &run.snapshot, event);
        assert!(questions.iter().all(|question| question.activation == run.id_in("here")));
        questions.into_iter().map(|question| question.guard.to_string()).collect()
    };
    assert_eq!(asked(&Event::signal("GO", Value::Null)), ["x", "y"]);
    assert_eq!(asked(&Event::signal("STOP", Value::Null)), ["z"]);
    assert_eq!(asked(&Event::advance()), ["by itself"]);
    assert_eq!(asked(&Event::TimerFired { activation: run.id_in("here") }), ["late"]);
    assert_eq!(asked(&Event::Cancelled), [""; 0]);
    assert_eq!(asked(&Event::signal("UNKNOWN", Value::Null)), [""; 0]);
}

#[test]
fn named_guards_are_answered_for_each_activation_by_itself() {
    let spec = Spec::new("two")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .end("l")
        .end("r")
        .transition(auto("to l", "left", "l").guard(Guard::named("turn")))
        .transition(auto("to r", "right", "r").guard(Guard::named("turn")));
    let mut run = Driver::start(spec);
    let asked = questions(&run.definition, &run.snapshot, &Event::advance());
    assert_eq!(asked.len(), 2);
    let question = |place: &str| Question { guard: "turn".into(), activation: run.id_in(place) };
    let mut answers = Answers::none().with("turn", false);
    answers.put(question("right"), true);
    run.answers = answers;
    assert_eq!(texts(&run.advance().entry.transitions), ["to r"]);
}

#[test]
fn guards_written_as_functions_see_state_activation_and_payload_and_are_injected_again_after_restoring() {
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
        Some(Refusal::GuardSaidNo { .. })
    ));
    let saved = bytes(run.snapshot());
    let mut again = Instance::restore(&definition, &saved).unwrap();
    let forgotten = again.signal("GO", json!({"amount": 10}), at(1)).unwrap_err();
    assert!(matches!(forgotten, Rejected::Undecidable(DecideError::UnresolvedGuard { .. })));
    again.inject_guard("enough", enough);
    again.signal("GO", json!({"amount": 10}), at(1)).unwrap();
    assert!(again.snapshot().is_terminal());
    assert_eq!(bytes(run.snapshot()), saved, "the other copy is where it was");
}

#[test]
fn the_hash_covers_the_names_of_guards_and_not_their_code() {
    let definition = build(guarded(Guard::named("x")).definition.spec().clone());
    let snapshot = guarded(Guard::named("x")).snapshot;
    let go = Event::signal("GO", Value::Null);
    let yes = Guards::new().with("x", |_| true).answer(&definition, &snapshot, &go);
    let no = Guards::new().with("x", |_| false).answer(&definition, &snapshot, &go);
    assert!(dispatch(&definition, &snapshot, &go, &yes, at(0)).is_ok());
    assert!(dispatch(&definition, &snapshot, &go, &no, at(0)).is_err());
}

// ---- which transition fires (A8) ----

#[test]
fn the_first_that_passes_fires_by_priority_then_by_order() {
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
fn firing_all_fires_every_transition_that_passes_in_one_version() {
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
fn firing_all_refuses_only_when_every_guard_says_no_and_names_each() {
    let spec = Spec::new("graph")
        .firing(Firing::All)
        .step("a")
        .end("z")
        .transition(auto("one", "a", "z").when("false"))
        .transition(auto("two", "a", "z").when("1 = 2"));
    let run = Driver::start(spec);
    let no =
        |transition: &str, guard: &str| GuardNo { transition: transition.into(), guard: guard.to_owned() };
    let verdicts = vec![no("one", "`false`"), no("two", "`1 = 2`")];
    assert_eq!(run.refused(&Event::advance()), Refusal::GuardSaidNo { verdicts });
}

#[test]
fn firing_all_resolves_the_waits_of_a_signal_together_with_the_transitions_it_fires() {
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
    let finished = Finished::Completed { place: "y".into(), output: Some(json!("y")) };
    assert_eq!(run.snapshot.finished(), Some(&finished));
    assert_eq!(run.places(), [""; 0]);
}

#[test]
fn of_two_runs_of_a_place_the_older_takes_a_signal_first() {
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
fn automatic_transitions_go_on_one_version_each_until_the_run_rests() {
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
    assert_eq!(run.rest(), 1);
    assert_eq!((run.snapshot.version(), run.places()), (2, vec!["c".to_owned()]));
    assert_eq!(run.refused(&Event::advance()), Refusal::AtRest);
    run.signal("GO", Value::Null);
    assert_eq!(run.rest(), 1);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn only_the_activation_that_is_named_advances() {
    let spec = Spec::new("two")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .end("l")
        .end("r")
        .auto("to l", "left", "l")
        .auto("to r", "right", "r");
    let run = Driver::start(spec);
    let advance = |place: &str| Event::Advanced { activation: Some(run.id_in(place)) };
    let Ok(Decision::Change(change)) = run.decide(&advance("right")) else { panic!("it can go on") };
    assert_eq!(texts(&change.entry.transitions), ["to r"]);
    assert_eq!(run.refused(&Event::Advanced { activation: Some(99) }), Refusal::AtRest);
}

// ---- timers ----

/// A wait for ANSWER with a reminder after 10 ms, and the end of all patience at `context.deadline`.
fn patient() -> Spec {
    Spec::new("patient")
        .wait("ask", "ANSWER")
        .step("reminded")
        .end("expired")
        .end("answered")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(auto("remind", "ask", "reminded").after_ms(10).when("$not(context.silent)"))
        .transition(auto("expire", "ask", "expired").on(Trigger::Until("context.deadline".into())))
        .auto("on", "reminded", "ask")
}

fn deadline(ms: u64) -> Value {
    json!({"deadline": at(ms), "silent": false})
}

#[test]
fn a_timer_fires_when_it_is_due_and_not_before() {
    let mut run = Driver::start_with(patient(), deadline(100));
    let ask = Event::TimerFired { activation: run.id_in("ask") };
    run.now = at(9);
    assert_eq!(run.refused(&ask), Refusal::NotDue { due: at(10), now: at(9) });
    assert_eq!(run.snapshot.next_due(at(9)), Some(at(10)));
    let change = run.timer("ask", at(10));
    assert_eq!(change.entry.action, "__timer:ask");
    assert_eq!(texts(&change.entry.transitions), ["remind"]);
    assert_eq!(run.places(), ["reminded"]);
}

#[test]
fn of_several_timers_the_earliest_due_fires_first() {
    let mut late = Driver::start_with(patient(), deadline(100));
    assert_eq!(texts(&late.timer("ask", at(500)).entry.transitions), ["remind"]);
    let mut early = Driver::start_with(patient(), deadline(5));
    assert_eq!(texts(&early.timer("ask", at(500)).entry.transitions), ["expire"]);
}

#[test]
fn a_timer_whose_guard_says_no_gives_way_to_the_next_that_is_due() {
    let silent = json!({"deadline": at(100), "silent": true});
    let mut run = Driver::start_with(patient(), silent);
    let ask = Event::TimerFired { activation: run.id_in("ask") };
    run.now = at(10);
    assert!(matches!(run.refused(&ask), Refusal::GuardSaidNo { .. }));
    assert_eq!(
        run.snapshot.next_due(at(10)),
        Some(at(100)),
        "the host is not woken for the refused one again"
    );
    assert_eq!(texts(&run.timer("ask", at(100)).entry.transitions), ["expire"]);
}

#[test]
fn until_takes_an_instant_from_the_state_as_it_is_on_entering() {
    let mut run = Driver::start_with(patient(), deadline(100));
    run.go(&Event::Patched { patch: Patch::set("deadline", json!(at(7))) });
    assert_eq!(run.snapshot.activation(run.id_in("ask")).unwrap().due(), Some(at(10)), "it was read before");
    let definition = build(patient());
    for (deadline, found) in [(json!("tomorrow"), "\"tomorrow\""), (json!(5), "5")] {
        let error = start(&definition, RunId::nil(), json!({"deadline": deadline}), at(0)).unwrap_err();
        let expected =
            DecideError::NotAnInstant { transition: "expire".into(), word: "until", found: found.to_owned() };
        assert_eq!(error, expected);
    }
    let error = start(&definition, RunId::nil(), json!({}), at(0)).unwrap_err();
    assert_eq!(error.to_string(), "transition `expire`: `until` gave nothing, not an RFC 3339 instant");
    let offset = json!({"deadline": "2023-11-14T23:13:21+01:00"});
    let created = start(&definition, RunId::nil(), offset, at(0)).unwrap();
    assert_eq!(created.snapshot.activations()[0].timers[1].at, at(1_000));
}

#[test]
fn resolving_a_wait_ends_its_timers() {
    let mut run = Driver::start_with(patient(), deadline(100));
    run.signal("ANSWER", Value::Null);
    assert_eq!(run.snapshot.next_due(at(0)), None);
    run.now = at(500);
    let timer = Event::TimerFired { activation: run.id_in("ask") };
    assert!(matches!(run.refused(&timer), Refusal::NoActiveSource { .. }));
}

#[test]
fn entering_a_place_again_starts_its_timers_again() {
    let mut run = Driver::start_with(patient(), deadline(10_000));
    run.timer("ask", at(10));
    run.now = at(50);
    run.advance();
    assert_eq!(run.snapshot.activation(run.id_in("ask")).unwrap().due(), Some(at(60)));
}

#[test]
fn a_timer_on_a_step_is_overtaken_by_a_signal() {
    let spec = Spec::new("step")
        .step("a")
        .end("late")
        .end("early")
        .signal("GO")
        .transition(auto("late", "a", "late").after_ms(10))
        .on_signal("early", "a", "GO", "early");
    let mut run = Driver::start(spec);
    let timer = Event::TimerFired { activation: run.id_in("a") };
    run.now = at(10);
    run.signal("GO", Value::Null);
    assert_eq!(run.refused(&timer), Refusal::Terminal);
}

#[test]
fn the_longest_timer_is_an_instant_that_can_be_written_down() {
    let spec = Spec::new("forever").step("a").end("z").transition(auto("never", "a", "z").after_ms(u64::MAX));
    let run = Driver::start(spec);
    let again = stepwell_core::Snapshot::restore(&run.definition, &bytes(&run.snapshot)).unwrap();
    assert_eq!(again, run.snapshot);
}

// ---- waits ----

/// Waits for ANSWER; what it is given reaches a guard and an action's input.
fn asking() -> Spec {
    let action = Action {
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
    assert_eq!(run.refused(&Event::advance()), Refusal::AtRest);
    let change = run.signal("ANSWER", json!({"ok": false}));
    assert_eq!(change.entry.action, "__resolve_wait:ask");
    assert_eq!((run.snapshot.version(), run.snapshot.status_of("ask")), (1, PlaceStatus::Active));
    assert_eq!(run.id_in("ask"), 1, "it is still the same being there");
    run.advance();
    assert_eq!(run.snapshot.status_of("ask"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("no"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("yes"), PlaceStatus::Idle);
}

#[test]
fn what_a_wait_is_resolved_with_reaches_the_next_guard_and_action() {
    let payload = json!({"ok": true, "by": "ann"});
    let mut signalled = Driver::start_with(asking(), json!({"case": 7}));
    signalled.signal("ANSWER", payload.clone());
    let mut direct = Driver::start_with(asking(), json!({"case": 7}));
    let activation = direct.id_in("ask");
    let change = direct.go(&Event::WaitResolved { activation, payload: payload.clone() });
    assert_eq!(change.entry.action, "__resolve_wait:ask");
    assert_eq!(change.entry.payload, Some(payload.clone()));
    for run in [signalled, direct] {
        let call = run.act(&Event::advance());
        assert_eq!(call.input, json!({"by": "ann", "case": 7}));
        assert_eq!((call.payload, call.cause), (payload.clone(), Cause::Auto));
    }
}

#[test]
fn only_a_wait_that_waits_can_be_resolved() {
    let mut run = Driver::start(asking());
    let resolve = |activation| Event::WaitResolved { activation, payload: json!({"ok": false}) };
    assert!(matches!(run.refused(&resolve(99)), Refusal::NoActiveSource { .. }));
    run.go(&resolve(1));
    assert!(matches!(run.refused(&resolve(1)), Refusal::NoActiveSource { .. }), "not a second time");
    assert!(matches!(run.refused(&Event::signal("ANSWER", json!({}))), Refusal::NoActiveSource { .. }));
    let step = Driver::start(review());
    assert!(matches!(step.refused(&resolve(1)), Refusal::NoActiveSource { .. }));
}

/// A10: whoever answers a wait directly is asked the same as whoever sends its signal.
#[test]
fn a_wait_that_is_resolved_directly_takes_what_its_signal_would() {
    let wanted = json!({"type": "object", "required": ["by"]});
    let spec = Spec::new("asking").wait("ask", "ANSWER").end("done").signal_with("ANSWER", wanted);
    let mut run = Driver::start(spec.auto("go_on", "ask", "done"));
    let resolve = |payload| Event::WaitResolved { activation: 1, payload };
    assert!(matches!(run.refused(&resolve(json!({}))), Refusal::PayloadUnfit { .. }));
    run.go(&resolve(json!({"by": "ann"})));
}

#[test]
fn a_step_is_active_until_a_transition_leaves_it_also_one_that_needs_a_signal() {
    let mut run = Driver::start(review());
    assert_eq!(run.snapshot.status_of("draft"), PlaceStatus::Active);
    run.signal("GO", json!({"by": "ann"}));
    assert_eq!(run.snapshot.status_of("draft"), PlaceStatus::Completed);
    assert_eq!(run.snapshot.status_of("review"), PlaceStatus::Active);
}

// ---- actions (B1, B15) ----

/// `bill` runs between `order` and `billed`.
fn billing(retry: Retry) -> Spec {
    let action = Action {
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
fn an_action_is_given_out_and_the_snapshot_stays_as_it_is() {
    let run = only_bill(Retry::default());
    let before = bytes(&run.snapshot);
    let call = run.act(&Event::signal("PAY", json!({"with": "card"})));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!((call.activation, call.transition.as_str(), call.action.as_str()), (1, "bill", "bill"));
    assert_eq!(call.input, json!({"amount": 5, "key": {"$secret": "KEY"}}));
    assert_eq!(call.payload, json!({"with": "card"}));
    assert_eq!(call.cause, Cause::Signal("PAY".into()));
    assert_eq!(call.timeout_ms, DEFAULT_TIMEOUT_MS);
    let kept = serde_json::to_string(&call).unwrap();
    assert_eq!(serde_json::from_str::<stepwell_core::ActionCall>(&kept).unwrap(), call);
}

#[test]
fn a_timeout_is_five_minutes_unless_the_transition_says_otherwise() {
    let call = |t: Transition| {
        let spec = Spec::new("t").step("a").end("z").transition(t.action("x"));
        Driver::start(spec).act(&Event::advance()).timeout_ms
    };
    assert_eq!(call(auto("go", "a", "z")), 300_000);
    assert_eq!(call(auto("go", "a", "z").timeout_ms(7)), 7);
    assert_eq!(call(auto("go", "a", "z").timeout_ms(0)), 0);
}

#[test]
fn a_done_action_applies_context_output_session_and_locals_in_one_version() {
    let mut run = only_bill(Retry::default());
    let call = run.act(&Event::signal("PAY", json!({"with": "card"})));
    let outcome = Outcome {
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
fn a_done_action_is_superseded_when_its_branch_has_ended_or_moved() {
    let mut run = only_bill(Retry::default());
    let call = run.act(&Event::signal("PAY", Value::Null));
    run.done(&call, Outcome::default());
    let superseded = Refusal::Superseded { activation: call.activation, what: "bill".into() };
    let done = Event::ActionDone { call: call.clone(), outcome: Outcome::default() };
    assert_eq!(run.refused(&done), superseded, "not a second time");
    let failed = Event::ActionFailed { call: call.clone(), failure: Failure::new("x", "y"), retries: 0 };
    assert_eq!(run.refused(&failed), superseded);
    let mut odd = only_bill(Retry::default());
    let elsewhere = stepwell_core::ActionCall { transition: "close".into(), ..call.clone() };
    let event = Event::ActionDone { call: elsewhere, outcome: Outcome::default() };
    assert!(matches!(odd.refused(&event), Refusal::Superseded { .. }), "a transition without an action");
    let both = Driver::start(two_actions());
    let left = both.act(&Event::Advanced { activation: Some(both.id_in("left")) });
    let wrong = stepwell_core::ActionCall { transition: "right".into(), ..left };
    let event = Event::ActionDone { call: wrong, outcome: Outcome::default() };
    assert!(matches!(both.refused(&event), Refusal::Superseded { .. }), "another place's transition");
    odd.go(&Event::Cancelled);
    assert_eq!(odd.refused(&done), Refusal::Terminal);
}

#[test]
fn the_result_of_a_time_limit_is_superseded_when_the_wait_was_resolved_meanwhile() {
    let spec = Spec::new("race")
        .wait("ask", "ANSWER")
        .end("answered")
        .end("escalated")
        .signal("ANSWER")
        .auto("ok", "ask", "answered")
        .transition(auto("escalate", "ask", "escalated").after_ms(10).action("tell boss"));
    let mut run = Driver::start(spec);
    run.now = at(10);
    let call = run.act(&Event::TimerFired { activation: run.id_in("ask") });
    assert_eq!(call.cause, Cause::Timer);
    let mut unanswered = Driver::holding(&run.definition, run.snapshot.clone());
    assert_eq!(unanswered.done(&call, Outcome::default()).entry.action, "__timer:ask");
    run.signal("ANSWER", json!("yes"));
    let done = Event::ActionDone { call: call.clone(), outcome: Outcome::default() };
    assert_eq!(run.refused(&done), Refusal::Superseded { activation: 1, what: "escalate".into() });
    let failed = Event::ActionFailed { call, failure: Failure::new("x", "y"), retries: 0 };
    assert!(matches!(run.refused(&failed), Refusal::Superseded { .. }));
}

/// Two branches with an action each.
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
fn a_result_is_not_lost_when_another_branch_has_moved_the_run_meanwhile() {
    let mut run = Driver::start_with(two_actions(), json!({"shared": {"a": 0, "b": 0}, "list": []}));
    let given = run.snapshot.context().clone();
    let advance = |place: &str, run: &Driver| Event::Advanced { activation: Some(run.id_in(place)) };
    let (left, right) = (run.act(&advance("left", &run)), run.act(&advance("right", &run)));
    let outcome = |after: Value| Outcome { context: patch(&given, &after), ..Outcome::default() };
    run.done(&right, outcome(json!({"shared": {"a": 0, "b": 2}, "list": [1]})));
    run.done(&left, outcome(json!({"shared": {"a": 1, "b": 0}, "list": [], "new": true})));
    assert_eq!(run.snapshot.version(), 2);
    let merged = json!({"shared": {"a": 1, "b": 2}, "list": [1], "new": true});
    assert_eq!(run.snapshot.context(), &merged);
}

#[test]
fn a_result_that_does_not_fit_the_context_schema_changes_nothing() {
    let schema =
        json!({"type": "object", "properties": {"bill": {"type": "object"}, "n": {"type": "integer"}}});
    let spec = billing(Retry::default()).context_schema(schema);
    let definition = build(spec);
    let error = start(&definition, RunId::nil(), json!({"n": "one"}), at(0)).unwrap_err();
    assert!(error.to_string().contains("/n"), "{error}");
    let created = start(&definition, RunId::nil(), json!({"amount": 1}), at(0)).unwrap();
    let run = Driver::holding(&definition, created.snapshot);
    let call = run.act(&Event::signal("PAY", Value::Null));
    let done = |outcome| Event::ActionDone { call: call.clone(), outcome };
    let unfit = [
        Outcome { output: json!("a string"), ..Outcome::default() },
        Outcome { context: Patch::set("n", json!(1.5)), output: json!({}), ..Outcome::default() },
    ];
    for outcome in unfit {
        let error = run.undecidable(&done(outcome));
        assert!(matches!(error, DecideError::ContextUnfit(ref misfits) if misfits.len() == 1), "{error:?}");
    }
    let patched = Event::Patched { patch: Patch::set("n", json!("one")) };
    assert!(matches!(run.undecidable(&patched), DecideError::ContextUnfit(_)));
}

#[test]
fn only_the_whole_result_has_to_fit_the_schema_not_its_parts() {
    // `paid` asks for `bill`, which `saveAs` writes after the action's own change.
    let schema = json!({"type": "object", "dependentRequired": {"paid": ["bill"]}});
    let mut run = Driver::start_with(billing(Retry::default()).context_schema(schema), json!({"amount": 5}));
    let call = run.act(&Event::signal("PAY", Value::Null));
    let outcome =
        Outcome { context: Patch::set("paid", json!(true)), output: json!(1), ..Outcome::default() };
    run.done(&call, outcome);
    assert_eq!(run.snapshot.context(), &json!({"amount": 5, "paid": true, "bill": 1}));
}

#[test]
fn without_a_schema_a_context_is_an_object() {
    let definition = build(review());
    let error = start(&definition, RunId::nil(), json!([1]), at(0)).unwrap_err();
    assert!(error.to_string().contains("a context is an object"), "{error}");
    let empty = start(&definition, RunId::nil(), Value::Null, at(0)).unwrap();
    assert_eq!(empty.snapshot.context(), &json!({}));
    let run = Driver::start_with(review(), json!({"a": 1}));
    let whole = Event::Patched { patch: patch(&json!({"a": 1}), &json!("text")) };
    assert!(matches!(run.undecidable(&whole), DecideError::ContextUnfit(_)));
}

#[test]
fn session_slots_are_limited_in_number_and_size_and_stay_an_object() {
    let limits = Limits { session_keys: 2, session_bytes: 30, ..Limits::default() };
    let definition = only_bill(Retry::default()).definition.spec().clone().build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({"amount": 1}), at(0)).unwrap();
    let mut run = Driver::holding(&definition, created.snapshot);
    let call = run.act(&Event::signal("PAY", Value::Null));
    let with = |session: Patch| Event::ActionDone {
        call: call.clone(),
        outcome: Outcome { session, ..Outcome::default() },
    };
    let limit = |event: &Event| match run.undecidable(event) {
        DecideError::Limit(exceeded) => exceeded.limit,
        other => panic!("{other:?}"),
    };
    let slots = |slots: Value| patch(&json!({}), &slots);
    assert_eq!(limit(&with(slots(json!({"a": 1, "b": 2, "c": 3})))), "session_keys");
    assert_eq!(limit(&with(slots(json!({"a": "x".repeat(40)})))), "session_bytes");
    let not_slots = with(patch(&json!({}), &json!([1])));
    assert!(
        matches!(run.undecidable(&not_slots), DecideError::SessionUnfit),
        "nothing is dropped in silence"
    );
    run.go(&with(slots(json!({"a": 1, "b": 2}))));
    assert_eq!(run.snapshot.session(), &object(json!({"a": 1, "b": 2})));
}

#[test]
fn an_input_that_cannot_be_made_is_an_error_that_names_the_transition() {
    let action = Action {
        name: "x".into(),
        input: json!([{"$expr": "context.missing"}]),
        save_as: None,
        version: None,
    };
    let spec = Spec::new("t").step("a").end("z").transition(auto("go", "a", "z").action_with(action));
    let error = Driver::start(spec).undecidable(&Event::advance());
    assert!(error.to_string().starts_with("input of transition `go`: "), "{error}");
}

// ---- failures (B5, B6, B7) ----

fn broken() -> Failure {
    Failure::new("timeout", "it took too long")
}

#[test]
fn a_failure_is_retried_as_often_and_as_late_as_the_policy_says() {
    let retry = Retry { attempts: 3, delay_ms: 100, max_delay_ms: 250, ..Retry::default() };
    let run = only_bill(retry.clone());
    let call = run.act(&Event::signal("PAY", Value::Null));
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
fn without_a_policy_a_failure_stops_the_run_where_it_is() {
    let run = only_bill(Retry::default());
    let before = bytes(&run.snapshot);
    let call = run.act(&Event::signal("PAY", Value::Null));
    assert_eq!(run.failed(&call, broken(), 0), Ok(Decision::Stop(broken())));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!(run.act(&Event::signal("PAY", Value::Null)), call, "a retry by hand does the same again");
}

#[test]
fn final_failures_and_those_not_listed_are_not_retried() {
    let listed = Retry { attempts: 9, retry_on: Some(vec!["timeout".into()]), ..Retry::default() };
    let run = only_bill(listed);
    let call = run.act(&Event::signal("PAY", Value::Null));
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { retry: 1, .. })));
    let other = Failure::new("declined", "no");
    assert_eq!(run.failed(&call, other.clone(), 0), Ok(Decision::Stop(other)));
    assert_eq!(run.failed(&call, broken().finally(), 0), Ok(Decision::Stop(broken().finally())));
    let all = only_bill(Retry { attempts: 9, ..Retry::default() });
    assert!(matches!(all.failed(&call, Failure::new("any", ""), 0), Ok(Decision::Retry { .. })));
    assert!(matches!(all.failed(&call, broken().finally(), 0), Ok(Decision::Stop(_))));
}

#[test]
fn when_the_retries_are_spent_the_run_goes_to_the_error_place_with_the_error() {
    let retry = Retry { attempts: 1, place: Some("failed".into()), ..Retry::default() };
    let spec = billing(retry)
        .step("failed")
        .transition(auto("tell", "failed", "sorry").when("error.code = 'timeout' and $not(error.final)"));
    let spec =
        Spec { transitions: spec.transitions.into_iter().filter(|t| t.id != "apologise").collect(), ..spec };
    let mut run = Driver::start_with(spec, json!({"amount": 5}));
    let call = run.act(&Event::signal("PAY", json!({"with": "card"})));
    assert!(matches!(run.failed(&call, broken(), 0), Ok(Decision::Retry { .. })));
    let spent = Event::ActionFailed { call: call.clone(), failure: broken(), retries: 1 };
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
    assert_eq!(run.rest(), 1, "automatic transitions out of it run");
    assert!(run.snapshot.is_terminal());
}

#[test]
fn a_final_failure_goes_to_the_error_place_at_once() {
    let retry = Retry { attempts: 5, place: Some("sorry".into()), ..Retry::default() };
    let mut run = only_bill(retry);
    let call = run.act(&Event::signal("PAY", Value::Null));
    run.go(&Event::ActionFailed { call, failure: broken().finally(), retries: 0 });
    assert!(matches!(run.snapshot.finished(), Some(Finished::Completed { place, .. }) if *place == "sorry"));
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
    let call = run.act(&Event::advance());
    run.done(&call, Outcome { children, ..Outcome::default() });
    run
}

fn completed(output: i64) -> ChildEnd {
    ChildEnd::Completed { output: json!(output) }
}

fn failed() -> ChildEnd {
    ChildEnd::Failed { error: broken() }
}

/// Ends the children in turn; the status of the wait after each.
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
fn a_wait_for_children_is_resolved_as_its_rule_says() {
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
fn how_the_children_ended_is_what_the_wait_is_resolved_with() {
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
fn no_children_resolve_a_wait_for_all_at_once_and_make_one_for_any_impossible() {
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
fn a_child_counts_once_and_strangers_not_at_all() {
    let mut run = with_children(ChildRule::N(2), None, 3);
    let activation = run.id_in("parts");
    run.child("parts", 1, completed(1));
    let done = |activation, child| Event::ChildDone { activation, child, end: completed(1) };
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
fn children_that_can_no_longer_do_it_lead_to_the_error_place_or_stop_the_run() {
    let rows =
        [(ChildRule::All, 3, 1), (ChildRule::Any, 2, 2), (ChildRule::N(2), 3, 2), (ChildRule::N(4), 3, 0)];
    for (rule, children, needed) in rows {
        let mut run = Driver::start(parts(rule, Some("sorry")));
        let call = run.act(&Event::advance());
        run.done(&call, Outcome { children, ..Outcome::default() });
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
fn an_action_starts_no_more_children_than_allowed() {
    let run = Driver::start(parts(ChildRule::All, None));
    let call = run.act(&Event::advance());
    let done = |children| Event::ActionDone {
        call: call.clone(),
        outcome: Outcome { children, ..Outcome::default() },
    };
    assert!(matches!(run.decide(&done(1_000)), Ok(Decision::Change(_))));
    let DecideError::Limit(exceeded) = run.undecidable(&done(1_001)) else { panic!("it is a limit") };
    assert_eq!(exceeded.limit, "children");
}

// ---- loops (A2) ----

#[test]
fn a_loop_counts_its_iterations_and_nests() {
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
fn each_iteration_is_another_activation_so_a_late_result_of_the_last_one_is_superseded() {
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
        let call = run.act(&Event::advance());
        run.done(&call, Outcome { context: Patch::set("n", json!(n)), ..Outcome::default() });
        calls.push(call);
    }
    assert_ne!(calls[0].activation, calls[1].activation);
    assert_eq!(run.snapshot.activations()[0].position, [2]);
    let late = Event::ActionDone { call: calls[0].clone(), outcome: Outcome::default() };
    assert!(matches!(run.refused(&late), Refusal::Superseded { .. }));
    run.advance();
    assert!(run.snapshot.is_terminal());
}

#[test]
fn locals_go_along_to_the_next_places_and_come_before_the_context() {
    let spec = Spec::new("locals")
        .step("a")
        .step("b")
        .end_with("z", json!({"item": {"$expr": "item"}, "same": {"$expr": "locals.item"}}))
        .transition(auto("ab", "a", "b").action("x"))
        .auto("bz", "b", "z");
    let mut run = Driver::start_with(spec, json!({"item": "the context's"}));
    let call = run.act(&Event::advance());
    run.done(&call, Outcome { locals: object(json!({"item": 5})), ..Outcome::default() });
    run.advance();
    let output = Some(json!({"item": 5, "same": 5}));
    assert_eq!(run.snapshot.finished(), Some(&Finished::Completed { place: "z".into(), output }));
}

// ---- the end (B19) ----

#[test]
fn a_run_completes_when_an_end_is_entered_and_what_else_is_active_ends_with_it() {
    let mut run = Driver::start(two_actions());
    let advance = |place: &str, run: &Driver| Event::Advanced { activation: Some(run.id_in(place)) };
    let (left, right) = (run.act(&advance("left", &run)), run.act(&advance("right", &run)));
    run.done(&left, Outcome::default());
    let change = run.signal("END", Value::Null);
    assert!(run.snapshot.is_terminal());
    assert_eq!(change.ended, [right.activation]);
    assert_eq!(texts(&change.entry.exited), ["l", "right"]);
    assert_eq!(texts(&change.entry.entered), ["done"]);
    assert_eq!(run.snapshot.activations(), []);
    assert_eq!(run.snapshot.passings(), []);
    assert_eq!(run.snapshot.status_of("right"), PlaceStatus::Idle, "it was ended, not completed");
    let late = Event::ActionDone { call: right, outcome: Outcome::default() };
    assert_eq!(run.refused(&late), Refusal::Terminal);
}

#[test]
fn cancelling_ends_everything_and_says_what() {
    let mut run = Driver::start(two_actions());
    let change = run.go(&Event::Cancelled);
    assert_eq!(run.snapshot.finished(), Some(&Finished::Cancelled));
    assert!(run.snapshot.is_terminal());
    assert_eq!(change.entry.action, "__operator:cancel");
    assert_eq!(texts(&change.entry.exited), ["left", "right"]);
    assert_eq!(change.ended.len(), 2);
    assert_eq!(run.refused(&Event::Cancelled), Refusal::Terminal);
}

#[test]
fn an_operators_patch_is_one_version_and_moves_nothing() {
    let mut run = Driver::start_with(review(), json!({"a": {"b": 1, "c": 2}, "d": 1}));
    let before = run.snapshot.activations().to_vec();
    let fix = patch(&json!({"a": {"b": 1}, "d": 1}), &json!({"a": {"b": null}}));
    let change = run.go(&Event::Patched { patch: fix });
    assert_eq!(change.entry.action, "__operator:patch");
    assert_eq!(run.snapshot.context(), &json!({"a": {"b": null, "c": 2}}));
    assert_eq!(run.snapshot.activations(), before);
}

#[test]
fn the_result_is_what_the_end_place_gives_checked_against_the_output_schema() {
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
    assert_eq!(run.snapshot.finished(), Some(&Finished::Completed { place: "z".into(), output }));

    let unfit = json!({"type": "object", "properties": {"total": {"type": "string"}}});
    let run = Driver::start_with(spec(unfit), json!({"n": 21}));
    let error = run.undecidable(&Event::signal("GO", json!({"by": "ann"})));
    assert!(matches!(&error, DecideError::OutputUnfit { place, .. } if *place == "z"), "{error:?}");
    assert!(error.to_string().contains("/total"), "{error}");

    let broken = Driver::start_with(spec(json!({})), json!({"n": "many"}));
    let error = broken.undecidable(&Event::signal("GO", Value::Null));
    assert!(error.to_string().starts_with("output of place `z`: "), "{error}");
}

#[test]
fn too_many_activations_are_an_error_and_not_a_larger_run() {
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
    let run = Driver::holding(&definition, created.snapshot);
    let DecideError::Limit(exceeded) = run.undecidable(&Event::advance()) else { panic!("it is a limit") };
    assert_eq!((exceeded.limit.as_str(), exceeded.actual), ("activations", 3));
}
