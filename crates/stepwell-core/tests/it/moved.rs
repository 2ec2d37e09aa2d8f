//! An operator moves a run, or one activation of it, to a place: what ends, what goes along, and where it cannot go.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::retry::Retry;
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, Finished};
use stepwell_core::spec::{
    ChildRule, Completion, Guard, Join, LoopStep, Place, Quorum, Transition, Trigger, Wait,
};
use stepwell_core::{
    Answers, DecideError, Event, Outcome, Refusal, Retrial, RunId, Spec, dispatch, questions,
};

use crate::driver::{Driver, at, texts};

fn to(place: &str) -> Event {
    Event::Moved { activation: None, to: place.into() }
}

fn one_to(activation: u64, place: &str) -> Event {
    Event::Moved { activation: Some(activation), to: place.into() }
}

fn finished_in(run: &Driver) -> Option<&str> {
    match run.snapshot.finished() {
        Some(Finished::Completed { place, .. }) => Some(place),
        _ => None,
    }
}

/// `draft` leads to a fork; `left` goes on to `left2`, both branches meet in `both`, and `next` follows.
fn split(quorum: Quorum, cancel_rest: bool) -> Spec {
    let join = Join { of: vec!["left2".into(), "right".into()], quorum, cancel_rest, ..Join::default() };
    Spec::new("split")
        .step("draft")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("left2")
        .step("right")
        .place("both", Place::Join(join))
        .step("next")
        .end("done")
        .end("sorry")
        .signal("GO")
        .signal("L")
        .signal("R")
        .signal("STOP")
        .on_signal("open", "draft", "GO", "fork")
        .transition(Transition::new("l", "left", "left2").on_signal("L").action("work"))
        .on_signal("l2", "left2", "L", "both")
        .on_signal("r", "right", "R", "both")
        .auto("on", "both", "next")
        .on_signal("end", "next", "GO", "done")
        .on_signal("stop", "right", "STOP", "sorry")
}

fn opened(spec: Spec) -> Driver {
    let mut run = Driver::start(spec);
    run.signal("GO", Value::Null);
    run
}

// ---- the run as a whole ----

#[test]
fn moving_a_run_ends_what_goes_on_in_it_and_enters_the_place_afresh() {
    let mut run = opened(split(Quorum::All, false));
    run.signal("R", Value::Null);
    let call = run.act(&Event::signal("L", Value::Null));
    let ids: Vec<_> = run.snapshot.activations().iter().map(|activation| activation.id).collect();
    run.now = at(7);
    let change = run.go(&to("draft"));
    assert_eq!(change.entry.action, "__operator:move");
    assert_eq!(texts(&change.entry.exited), ["both", "left"]);
    assert_eq!(texts(&change.entry.entered), ["draft"]);
    assert_eq!((change.entry.payload, change.stopped), (None, None));
    assert_eq!(change.ended, ids, "whatever runs for them is fenced off");
    assert_eq!((run.places(), run.snapshot.passings().len()), (vec!["draft".to_owned()], 0));
    let draft = run.here("draft");
    assert_eq!((draft.branch, draft.since, draft.status), (None, at(7), ActivationStatus::Active));
    assert!(!run.snapshot.completed().contains("left"), "a place that is left by force is not completed");
    let done = Event::ActionDone { call, outcome: Outcome::default() };
    assert!(matches!(run.refused(&done), Refusal::Superseded { .. }));
    run.signal("GO", Value::Null);
    assert_eq!(run.places(), ["left", "right"], "and from there the run goes on");
}

#[test]
fn moving_a_run_leaves_loops_and_locals_behind_and_keeps_the_data() {
    let spec = Spec::new("loop")
        .step("begin")
        .step("body")
        .end("done")
        .signal("STOP")
        .transition(Transition::new("in", "begin", "body").action("pick").loop_step(LoopStep::Enter))
        .on_signal("stop", "body", "STOP", "done");
    let mut run = Driver::start_with(spec, json!({"n": 1}));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    let outcome = Outcome { locals, session: Patch::set("slot", json!(2)), ..Outcome::default() };
    run.done(&run.act(&Event::advance()), outcome);
    assert_eq!((run.here("body").position, run.here("body").locals.len()), (vec![0], 1));
    run.go(&to("body"));
    assert_eq!((run.here("body").position, run.here("body").locals.len()), (vec![], 0));
    assert_eq!((run.snapshot.context(), run.snapshot.session().len()), (&json!({"n": 1}), 1));
    assert!(run.snapshot.completed().contains("begin"), "what was completed stays so");
}

#[test]
fn a_run_is_moved_into_places_of_every_kind_that_it_can_be_in() {
    let spec = split(Quorum::All, false)
        .wait("ask", "GO")
        .transition(Transition::new("late", "ask", "sorry").after_ms(10))
        .auto("asked", "ask", "draft")
        .on_signal("ask", "draft", "STOP", "ask");
    let mut run = Driver::start(spec);
    run.go(&to("ask"));
    let ask = run.here("ask");
    assert_eq!((ask.status, ask.due()), (ActivationStatus::Waiting, Some(at(10))));
    run.now = at(50);
    run.go(&to("ask"));
    assert_eq!(run.here("ask").due(), Some(at(60)), "entering it again starts its timers again");
    let change = run.go(&to("fork"));
    assert_eq!(run.places(), ["left", "right"]);
    assert_eq!(texts(&change.entry.entered), ["fork", "left", "right"]);
    assert_eq!(run.snapshot.passings().len(), 1);
    run.go(&to("fork"));
    assert_eq!((run.places().len(), run.snapshot.passings().len()), (2, 1), "the first passing is closed");
    run.go(&to("next"));
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn moving_a_run_to_an_end_completes_it() {
    for completion in [Completion::FirstEnd, Completion::AllBranches] {
        let spec = split(Quorum::All, false).completion(completion).end_with("done", json!({"$expr": "n"}));
        let mut run = Driver::start_with(spec, json!({"n": 3}));
        run.signal("GO", Value::Null);
        run.go(&to("done"));
        let expected = Finished::Completed { place: "done".into(), output: Some(json!(3)) };
        assert_eq!(run.snapshot.finished(), Some(&expected));
        assert!(run.snapshot.is_terminal() && run.snapshot.activations().is_empty());
        assert_eq!(run.refused(&to("draft")), Refusal::Terminal);
    }
}

#[test]
fn a_result_that_does_not_fit_is_an_error_and_the_run_stays() {
    let spec = split(Quorum::All, false)
        .end_with("done", json!({"$expr": "context.n"}))
        .output_schema(json!({"type": "integer"}));
    let run = Driver::start_with(spec, json!({"n": "three"}));
    assert!(matches!(run.undecidable(&to("done")), DecideError::OutputUnfit { .. }));
}

#[test]
fn moving_a_run_forgets_the_end_that_a_branch_came_to() {
    let mut run = opened(split(Quorum::Any, false).completion(Completion::AllBranches));
    run.signal("STOP", Value::Null);
    let last_end = |run: &Driver| serde_json::to_value(&run.snapshot).unwrap().get("lastEnd").cloned();
    assert!(last_end(&run).is_some());
    run.go(&to("next"));
    assert_eq!(last_end(&run), None);
}

#[test]
fn a_run_that_has_stopped_can_be_moved_on() {
    let mut run = opened(split(Quorum::All, false).completion(Completion::AllBranches));
    run.done(&run.act(&Event::signal("L", Value::Null)), Outcome::default());
    run.signal("L", Value::Null);
    let stopped = run.signal("STOP", Value::Null).stopped.expect("the join cannot fire any more");
    assert_eq!(stopped.code, "joinUnreached");
    let change = run.go(&to("next"));
    assert_eq!(change.stopped, None);
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

// ---- one activation ----

#[test]
fn moving_an_activation_takes_its_branch_position_and_locals_along_and_nothing_else_moves() {
    let spec = split(Quorum::All, false);
    let mut run = opened(spec);
    let call = run.act(&Event::signal("L", Value::Null));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    run.done(&call, Outcome { locals, ..Outcome::default() });
    let (before, other) = (run.here("left2"), run.here("right"));
    let change = run.go(&one_to(before.id, "left"));
    assert_eq!(change.entry.action, "__operator:move");
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["left2"], vec!["left"]));
    assert_eq!(change.ended, [before.id]);
    let after = run.here("left");
    assert_eq!(
        (after.branch, &after.locals, &after.position),
        (before.branch, &before.locals, &before.position)
    );
    assert!(after.id > before.id, "an activation is one being-in-a-place");
    assert_eq!(run.here("right"), other);
    assert!(!run.snapshot.completed().contains("left2"));
}

#[test]
fn a_result_for_an_activation_that_was_moved_is_superseded_also_where_it_was_moved_to_itself() {
    let mut run = opened(split(Quorum::All, false));
    let call = run.act(&Event::signal("L", Value::Null));
    run.go(&one_to(call.activation, "left"));
    let superseded = Refusal::Superseded { activation: call.activation, what: "l".into() };
    let done = Event::ActionDone { call: call.clone(), outcome: Outcome::default() };
    assert_eq!(run.refused(&done), superseded);
    assert_eq!(run.refused(&Event::Retried { retrial: Retrial::of(&call), by_hand: true }), superseded);
}

#[test]
fn a_branch_that_is_moved_to_its_join_is_counted_as_if_it_had_come() {
    let mut run = opened(split(Quorum::All, false));
    run.go(&one_to(run.id_in("left"), "both"));
    assert_eq!(run.here("both").status, ActivationStatus::Waiting);
    assert_eq!(run.places(), ["both", "right"]);
    let change = run.go(&one_to(run.id_in("right"), "both"));
    assert_eq!(texts(&change.entry.entered), ["both"]);
    assert_eq!(run.here("both").status, ActivationStatus::Active);
    run.advance();
    assert_eq!(run.places(), ["next"]);
}

#[test]
fn a_branch_can_be_taken_out_of_its_join_again() {
    let mut run = opened(split(Quorum::All, false));
    run.signal("R", Value::Null);
    run.go(&one_to(run.id_in("both"), "right"));
    assert_eq!(run.places(), ["left", "right"]);
    run.signal("R", Value::Null);
    assert_eq!(run.here("both").status, ActivationStatus::Waiting, "it comes and is counted once");
}

#[test]
fn a_late_branch_that_is_moved_to_its_join_is_absorbed() {
    let mut run = opened(split(Quorum::Any, false));
    run.signal("R", Value::Null);
    let change = run.go(&one_to(run.id_in("left"), "both"));
    assert_eq!((texts(&change.entry.exited), change.entry.entered.len()), (vec!["left"], 0));
    assert_eq!((run.places(), run.snapshot.passings().len()), (vec!["both".to_owned()], 0));
}

#[test]
fn a_branch_that_is_moved_to_a_join_that_ends_the_rest_ends_it() {
    let mut run = opened(split(Quorum::Any, true));
    let (left, right) = (run.id_in("left"), run.id_in("right"));
    let change = run.go(&one_to(right, "both"));
    assert_eq!(change.ended, [right, left]);
    assert_eq!(run.places(), ["both"]);
}

#[test]
fn moving_an_activation_to_an_end_completes_the_run_or_its_branch() {
    let mut run = opened(split(Quorum::Any, false));
    let (left, right) = (run.id_in("left"), run.id_in("right"));
    let change = run.go(&one_to(right, "sorry"));
    assert_eq!((finished_in(&run), change.ended), (Some("sorry"), vec![right, left]));

    let mut run = opened(split(Quorum::Any, false).completion(Completion::AllBranches));
    let change = run.go(&one_to(run.id_in("right"), "sorry"));
    assert_eq!((change.ended.len(), run.places()), (1, vec!["left".to_owned()]));
    assert!(!run.snapshot.is_terminal());
}

#[test]
fn when_the_last_branch_is_moved_away_the_run_stops_with_an_error_that_names_the_join() {
    let mut run = opened(split(Quorum::All, false).completion(Completion::AllBranches));
    run.signal("R", Value::Null);
    let change = run.go(&one_to(run.id_in("left"), "sorry"));
    assert!(change.stopped.unwrap().message.contains("`both`"));
}

#[test]
fn whoever_is_moved_by_hand_has_all_its_retries_again() {
    let retry = Retry { attempts: 1, target: Some("begin".into()), ..Retry::default() };
    let spec = Spec::new("again")
        .step("begin")
        .step("work")
        .end("done")
        .auto("go", "begin", "work")
        .transition(Transition::new("work", "work", "done").action("work").retry(retry));
    let mut run = Driver::start(spec);
    run.advance();
    let retrial = Retrial::of(&run.act(&Event::advance()));
    run.go(&Event::Retried { retrial, by_hand: false });
    assert_eq!(run.here("begin").retried, [("work".into(), 1)].into());
    let mut alone = Driver::holding(&run.definition, run.snapshot.clone());
    alone.go(&one_to(alone.id_in("begin"), "work"));
    assert_eq!(alone.here("work").retried, [].into());
    run.go(&to("work"));
    assert_eq!(run.here("work").retried, [].into());
}

#[test]
fn children_of_a_wait_that_was_left_by_force_are_strangers() {
    let wait = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let spec = Spec::new("parts")
        .step("begin")
        .place("parts", Place::Wait(wait))
        .end("done")
        .transition(Transition::new("start", "begin", "parts").action("start"))
        .auto("on", "parts", "done");
    let mut run = Driver::start(spec);
    run.done(&run.act(&Event::advance()), Outcome { children: 2, ..Outcome::default() });
    let parts = run.id_in("parts");
    assert_eq!(run.go(&to("begin")).ended, [parts]);
    let child = Event::ChildDone { activation: parts, child: 0, end: ChildEnd::Cancelled };
    assert!(matches!(run.refused(&child), Refusal::Superseded { .. }));
    let refusal = Refusal::CannotEnter {
        place: "parts".into(),
        why: "it waits for children, and a move starts none".to_owned(),
    };
    assert_eq!(run.refused(&to("parts")), refusal);
    assert_eq!(run.refused(&one_to(run.id_in("begin"), "parts")), refusal);
}

// ---- where nothing can be moved ----

/// Why the place cannot be moved to.
fn why(run: &Driver, event: &Event) -> String {
    match run.refused(event) {
        Refusal::CannotEnter { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_place_and_an_activation_that_is_not_there_are_refused_by_name() {
    let run = opened(split(Quorum::All, false));
    let said = |event: &Event| run.refused(event).to_string();
    assert_eq!(said(&to("rigth")), "workflow `split` has no place `rigth` (did you mean `right`?)");
    assert_eq!(said(&to("somewhere else")), "workflow `split` has no place `somewhere else`");
    assert_eq!(said(&to("")), "workflow `split` has no place ``");
    assert_eq!(said(&one_to(99, "next")), "the run has no activation 99; it is in `left`, `right`");
    assert!(matches!(run.refused(&one_to(99, "nxt")), Refusal::UnknownPlace { .. }), "the place comes first");
    let refusal = serde_json::to_value(run.refused(&to("rigth"))).unwrap();
    assert_eq!(refusal["reason"], "unknownPlace");
    let refusal = serde_json::to_value(run.refused(&one_to(99, "next"))).unwrap();
    assert_eq!(refusal, json!({"reason": "noActivation", "activation": 99, "active": ["left", "right"]}));
}

#[test]
fn a_run_as_a_whole_cannot_be_moved_to_a_join_or_into_a_branch_that_leads_to_one() {
    let run = opened(split(Quorum::All, false));
    let outside = "it would come to the join `both` outside its fork";
    for place in ["both", "left", "left2", "right"] {
        assert_eq!(why(&run, &to(place)), outside, "{place}");
    }
    assert_eq!(run.refused(&to("both")).to_string(), format!("`both` cannot be moved to: {outside}"));
}

#[test]
fn a_run_can_be_moved_into_a_branch_that_leads_to_no_join() {
    let spec = Spec::new("apart")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .end("l")
        .end("r")
        .completion(Completion::AllBranches)
        .auto("to l", "left", "l")
        .auto("to r", "right", "r");
    let mut run = Driver::start(spec);
    run.go(&to("right"));
    assert_eq!((run.places(), run.rest()), (vec!["right".to_owned()], 1));
    assert_eq!(finished_in(&run), Some("r"));
}

#[test]
fn an_activation_outside_a_fork_cannot_be_moved_into_a_branch_of_it() {
    let run = Driver::start(split(Quorum::All, false));
    let outside = "it would come to the join `both` outside its fork";
    assert_eq!(why(&run, &one_to(run.id_in("draft"), "right")), outside);
}

#[test]
fn an_activation_cannot_be_moved_to_where_its_fork_would_be_entered_inside_itself() {
    let run = opened(split(Quorum::All, false));
    let inside = "it would enter the fork `fork` inside one of its own branches";
    for place in ["draft", "fork"] {
        assert_eq!(why(&run, &one_to(run.id_in("left"), place)), inside, "{place}");
    }
}

#[test]
fn an_activation_can_be_moved_past_its_join_when_nothing_there_needs_the_fork() {
    let mut run = opened(split(Quorum::All, false));
    run.go(&one_to(run.id_in("left"), "next"));
    assert_eq!(run.places(), ["next", "right"]);
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn an_activation_in_an_inner_fork_cannot_be_moved_to_the_join_of_the_outer_one() {
    let spec = Spec::new("nested")
        .fork("outer", ["inner", "c"])
        .fork("inner", ["a", "b"])
        .step("a")
        .step("b")
        .step("c")
        .join("ab", Quorum::All, ["a", "b"])
        .join("all", Quorum::All, ["ab", "c"])
        .end("done")
        .signal("GO")
        .on_signal("a", "a", "GO", "ab")
        .on_signal("b", "b", "GO", "ab")
        .on_signal("ab", "ab", "GO", "all")
        .on_signal("c", "c", "GO", "all")
        .auto("on", "all", "done");
    let mut run = Driver::start(spec);
    let wrong = "it would come to the join `all` from a branch of `inner`";
    assert_eq!(why(&run, &one_to(run.id_in("a"), "all")), wrong);
    assert_eq!(why(&run, &one_to(run.id_in("a"), "c")), wrong);
    let wrong = "it would come to the join `ab` from a branch of `outer`";
    assert_eq!(why(&run, &one_to(run.id_in("c"), "b")), wrong);
    run.go(&one_to(run.id_in("a"), "b"));
    run.go(&one_to(run.id_in("c"), "inner"));
    assert_eq!(run.snapshot.passings().len(), 3, "a fork may be open in each branch");
    assert_eq!(run.places(), ["a", "b"]);
}

#[test]
fn ways_after_a_failure_and_of_retries_are_followed_too() {
    // From `aside` only the failure of its action, the children's failure or its retry leads into the branch.
    let wait = Wait {
        signal: Some("GO".into()),
        children: Some(ChildRule::All),
        error_place: Some("left".into()),
        ..Wait::default()
    };
    let risky = |retry: Retry| {
        let work = Transition::new("work", "aside", "sorry").on_signal("GO").action("work").retry(retry);
        split(Quorum::All, false).step("aside").on_signal("aside", "left", "GO", "aside").transition(work)
    };
    let failing = risky(Retry { place: Some("left".into()), ..Retry::default() });
    let retrying = risky(Retry { attempts: 1, target: Some("left".into()), ..Retry::default() });
    let children = risky(Retry::default())
        .place("parts", Place::Wait(wait))
        .transition(Transition::new("start", "aside", "parts").on_signal("R").action("start"))
        .auto("parts", "parts", "sorry");
    for spec in [failing, retrying, children] {
        let run = Driver::start(spec);
        assert_eq!(why(&run, &to("aside")), "it would come to the join `both` outside its fork");
    }
    let run = Driver::start(risky(Retry::default()));
    assert!(run.decide(&to("aside")).is_ok());
}

#[test]
fn a_place_whose_timer_cannot_be_set_is_an_error_and_the_run_stays() {
    let late = Transition::new("late", "next", "sorry").on(Trigger::Until("context.until".into()));
    let run = Driver::start(split(Quorum::All, false).transition(late));
    let error = run.undecidable(&to("next"));
    assert!(matches!(error, DecideError::NotAnInstant { .. } | DecideError::Expression { .. }), "{error:?}");
}

#[test]
fn a_move_asks_no_guard_and_brings_no_payload() {
    let guard = Guard::named("manager");
    let spec = split(Quorum::All, false)
        .transition(Transition::new("skip", "draft", "done").guard(guard.clone()))
        .transition(Transition::new("halt", "next", "done").guard(guard));
    let mut run = Driver::start(spec);
    assert_eq!(questions(&run.definition, &run.snapshot, &to("next")), []);
    assert_eq!(to("next").payload(), &Value::Null);
    run.go(&to("next"));
    assert_eq!(run.places(), ["next"]);
}

#[test]
fn a_run_is_not_moved_into_the_middle_of_a_loop() {
    let text = "
steps:
  - { id: before, type: wait.signal, signal: GO }
  - { id: each, type: control.forEach, items: [1], body: [{ id: inner, type: wait.signal, signal: NEXT }] }
";
    let document = stepwell_core::Document::read(text, Some("loop")).expect("it is sound");
    let definition = document.definition();
    let begun = stepwell_core::start(definition, RunId::nil(), Value::Null, at(0)).expect("it begins");
    let moved = |to: &str| {
        let event = Event::Moved { activation: None, to: to.into() };
        dispatch(definition, &begun.snapshot, &event, &Answers::none(), at(1))
    };
    assert!(moved("each").is_ok());
    let refused = moved("inner").expect_err("it would have no item").to_string();
    assert!(refused.contains("`each`"), "{refused}");
}
