//! An operator moves a run or one activation to a place: what ends, what is kept, and which moves are refused.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::retry::Retry;
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, RunEnd};
use stepwell_core::spec::{
    ChildRule, Completion, Guard, Join, LoopStep, Place, Quorum, Transition, TransitionTrigger, Wait,
};
use stepwell_core::{
    ActionResult, Answers, DecideError, Input, Refusal, RetryRequest, RunId, Spec, dispatch, questions,
};

use crate::driver::{Driver, at, texts};

fn move_run(place: &str) -> Input {
    Input::Moved { activation: None, to: place.into() }
}

fn move_one(activation: u64, place: &str) -> Input {
    Input::Moved { activation: Some(activation), to: place.into() }
}

fn finished_in(run: &Driver) -> Option<&str> {
    match run.snapshot.finished() {
        Some(RunEnd::Completed { place, .. }) => Some(place),
        _ => None,
    }
}

/// `draft` leads to a fork. `left` leads to `left2`, both branches are joined in `both`, and `next` follows.
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
fn moving_a_run_ends_its_activations_and_forks() {
    let mut run = opened(split(Quorum::All, false));
    run.signal("R", Value::Null);
    let call = run.act(&Input::signal("L", Value::Null));
    let ids: Vec<_> = run.snapshot.activations().iter().map(|activation| activation.id).collect();
    run.now = at(7);
    let change = run.go(&move_run("draft"));
    assert_eq!(change.entry.action, "__operator:move");
    assert_eq!(texts(&change.entry.exited), ["both", "left"]);
    assert_eq!(texts(&change.entry.entered), ["draft"]);
    assert_eq!((change.entry.payload, change.stopped), (None, None));
    assert_eq!(change.ended, ids, "their actions are fenced off");
    assert_eq!((run.places(), run.snapshot.fork_instances().len()), (vec!["draft".to_owned()], 0));
    let draft = run.activation_in("draft");
    assert_eq!((draft.branch, draft.since, draft.status), (None, at(7), ActivationStatus::Active));
    assert!(!run.snapshot.completed().contains("left"), "a place left by a move is not completed");
    let done = Input::ActionDone { call, outcome: ActionResult::default() };
    assert!(matches!(run.refused(&done), Refusal::Superseded { .. }));
    run.signal("GO", Value::Null);
    assert_eq!(run.places(), ["left", "right"], "the run continues from there");
}

#[test]
fn moving_a_run_drops_locals_and_keeps_the_context() {
    let spec = Spec::new("loop")
        .step("begin")
        .step("body")
        .end("done")
        .signal("STOP")
        .transition(Transition::new("in", "begin", "body").action("pick").loop_step(LoopStep::Enter))
        .on_signal("stop", "body", "STOP", "done");
    let mut run = Driver::start_with(spec, json!({"n": 1}));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    let outcome = ActionResult { locals, session: Patch::set("slot", json!(2)), ..ActionResult::default() };
    run.done(&run.act(&Input::advance()), outcome);
    assert_eq!((run.activation_in("body").position, run.activation_in("body").locals.len()), (vec![0], 1));
    run.go(&move_run("body"));
    assert_eq!((run.activation_in("body").position, run.activation_in("body").locals.len()), (vec![], 0));
    assert_eq!((run.snapshot.context(), run.snapshot.session().len()), (&json!({"n": 1}), 1));
    assert!(run.snapshot.completed().contains("begin"), "completed places stay completed");
}

#[test]
fn run_can_be_moved_to_steps_waits_and_forks() {
    let spec = split(Quorum::All, false)
        .wait("ask", "GO")
        .transition(Transition::new("late", "ask", "sorry").after_ms(10))
        .auto("asked", "ask", "draft")
        .on_signal("ask", "draft", "STOP", "ask");
    let mut run = Driver::start(spec);
    run.go(&move_run("ask"));
    let ask = run.activation_in("ask");
    assert_eq!((ask.status, ask.due()), (ActivationStatus::Waiting, Some(at(10))));
    run.now = at(50);
    run.go(&move_run("ask"));
    assert_eq!(run.activation_in("ask").due(), Some(at(60)), "entering it again restarts its timers");
    let change = run.go(&move_run("fork"));
    assert_eq!(run.places(), ["left", "right"]);
    assert_eq!(texts(&change.entry.entered), ["fork", "left", "right"]);
    assert_eq!(run.snapshot.fork_instances().len(), 1);
    run.go(&move_run("fork"));
    assert_eq!(
        (run.places().len(), run.snapshot.fork_instances().len()),
        (2, 1),
        "the first instance is closed"
    );
    run.go(&move_run("next"));
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn moving_a_run_to_an_end_completes_it() {
    for completion in [Completion::FirstEnd, Completion::AllBranches] {
        let spec = split(Quorum::All, false).completion(completion).end_with("done", json!({"$expr": "n"}));
        let mut run = Driver::start_with(spec, json!({"n": 3}));
        run.signal("GO", Value::Null);
        run.go(&move_run("done"));
        let expected = RunEnd::Completed { place: "done".into(), output: Some(json!(3)) };
        assert_eq!(run.snapshot.finished(), Some(&expected));
        assert!(run.snapshot.is_terminal() && run.snapshot.activations().is_empty());
        assert_eq!(run.refused(&move_run("draft")), Refusal::Terminal);
    }
}

#[test]
fn moving_to_an_end_with_an_invalid_output_is_an_error() {
    let spec = split(Quorum::All, false)
        .end_with("done", json!({"$expr": "context.n"}))
        .output_schema(json!({"type": "integer"}));
    let run = Driver::start_with(spec, json!({"n": "three"}));
    assert!(matches!(run.undecidable(&move_run("done")), DecideError::InvalidOutput { .. }));
}

#[test]
fn moving_a_run_clears_the_last_end_of_a_branch() {
    let mut run = opened(split(Quorum::Any, false).completion(Completion::AllBranches));
    run.signal("STOP", Value::Null);
    let last_end = |run: &Driver| serde_json::to_value(&run.snapshot).unwrap().get("lastEnd").cloned();
    assert!(last_end(&run).is_some());
    run.go(&move_run("next"));
    assert_eq!(last_end(&run), None);
}

#[test]
fn stopped_run_can_be_moved() {
    let mut run = opened(split(Quorum::All, false).completion(Completion::AllBranches));
    run.done(&run.act(&Input::signal("L", Value::Null)), ActionResult::default());
    run.signal("L", Value::Null);
    let stopped = run.signal("STOP", Value::Null).stopped.expect("the join cannot fire any more");
    assert_eq!(stopped.code, "joinUnreached");
    let change = run.go(&move_run("next"));
    assert_eq!(change.stopped, None);
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

// ---- one activation ----

#[test]
fn moved_activation_keeps_branch_position_and_locals() {
    let spec = split(Quorum::All, false);
    let mut run = opened(spec);
    let call = run.act(&Input::signal("L", Value::Null));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    run.done(&call, ActionResult { locals, ..ActionResult::default() });
    let (before, other) = (run.activation_in("left2"), run.activation_in("right"));
    let change = run.go(&move_one(before.id, "left"));
    assert_eq!(change.entry.action, "__operator:move");
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["left2"], vec!["left"]));
    assert_eq!(change.ended, [before.id]);
    let after = run.activation_in("left");
    assert_eq!(
        (after.branch, &after.locals, &after.position),
        (before.branch, &before.locals, &before.position)
    );
    assert!(after.id > before.id, "each entry is a new activation");
    assert_eq!(run.activation_in("right"), other);
    assert!(!run.snapshot.completed().contains("left2"));
}

#[test]
fn result_of_a_moved_activation_is_superseded() {
    let mut run = opened(split(Quorum::All, false));
    let call = run.act(&Input::signal("L", Value::Null));
    run.go(&move_one(call.activation, "left"));
    let superseded = Refusal::Superseded { activation: call.activation, what: "l".into() };
    let done = Input::ActionDone { call: call.clone(), outcome: ActionResult::default() };
    assert_eq!(run.refused(&done), superseded);
    assert_eq!(run.refused(&Input::Retried { retry: RetryRequest::of(&call), manual: true }), superseded);
}

#[test]
fn branch_moved_to_its_join_is_counted() {
    let mut run = opened(split(Quorum::All, false));
    run.go(&move_one(run.id_in("left"), "both"));
    assert_eq!(run.activation_in("both").status, ActivationStatus::Waiting);
    assert_eq!(run.places(), ["both", "right"]);
    let change = run.go(&move_one(run.id_in("right"), "both"));
    assert_eq!(texts(&change.entry.entered), ["both"]);
    assert_eq!(run.activation_in("both").status, ActivationStatus::Active);
    run.advance();
    assert_eq!(run.places(), ["next"]);
}

#[test]
fn branch_can_be_moved_out_of_its_join() {
    let mut run = opened(split(Quorum::All, false));
    run.signal("R", Value::Null);
    run.go(&move_one(run.id_in("both"), "right"));
    assert_eq!(run.places(), ["left", "right"]);
    run.signal("R", Value::Null);
    assert_eq!(run.activation_in("both").status, ActivationStatus::Waiting, "it arrives and is counted once");
}

#[test]
fn late_branch_moved_to_its_join_is_absorbed() {
    let mut run = opened(split(Quorum::Any, false));
    run.signal("R", Value::Null);
    let change = run.go(&move_one(run.id_in("left"), "both"));
    assert_eq!((texts(&change.entry.exited), change.entry.entered.len()), (vec!["left"], 0));
    assert_eq!((run.places(), run.snapshot.fork_instances().len()), (vec!["both".to_owned()], 0));
}

#[test]
fn moving_a_branch_to_a_join_applies_cancel_rest() {
    let mut run = opened(split(Quorum::Any, true));
    let (left, right) = (run.id_in("left"), run.id_in("right"));
    let change = run.go(&move_one(right, "both"));
    assert_eq!(change.ended, [right, left]);
    assert_eq!(run.places(), ["both"]);
}

#[test]
fn moving_an_activation_to_an_end_completes_run_or_branch() {
    let mut run = opened(split(Quorum::Any, false));
    let (left, right) = (run.id_in("left"), run.id_in("right"));
    let change = run.go(&move_one(right, "sorry"));
    assert_eq!((finished_in(&run), change.ended), (Some("sorry"), vec![right, left]));

    let mut run = opened(split(Quorum::Any, false).completion(Completion::AllBranches));
    let change = run.go(&move_one(run.id_in("right"), "sorry"));
    assert_eq!((change.ended.len(), run.places()), (1, vec!["left".to_owned()]));
    assert!(!run.snapshot.is_terminal());
}

#[test]
fn moving_the_last_branch_away_stops_the_run() {
    let mut run = opened(split(Quorum::All, false).completion(Completion::AllBranches));
    run.signal("R", Value::Null);
    let change = run.go(&move_one(run.id_in("left"), "sorry"));
    assert!(change.stopped.unwrap().message.contains("`both`"));
}

#[test]
fn moving_resets_the_retry_counts() {
    let retry = Retry { attempts: 1, target: Some("begin".into()), ..Retry::default() };
    let spec = Spec::new("again")
        .step("begin")
        .step("work")
        .end("done")
        .auto("go", "begin", "work")
        .transition(Transition::new("work", "work", "done").action("work").retry(retry));
    let mut run = Driver::start(spec);
    run.advance();
    let retry = RetryRequest::of(&run.act(&Input::advance()));
    run.go(&Input::Retried { retry, manual: false });
    assert_eq!(run.activation_in("begin").retried, [("work".into(), 1)].into());
    let mut alone = Driver::from_snapshot(&run.definition, run.snapshot.clone());
    alone.go(&move_one(alone.id_in("begin"), "work"));
    assert_eq!(alone.activation_in("work").retried, [].into());
    run.go(&move_run("work"));
    assert_eq!(run.activation_in("work").retried, [].into());
}

#[test]
fn children_of_a_moved_wait_are_superseded() {
    let wait = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let spec = Spec::new("parts")
        .step("begin")
        .place("parts", Place::Wait(wait))
        .end("done")
        .transition(Transition::new("start", "begin", "parts").action("start"))
        .auto("on", "parts", "done");
    let mut run = Driver::start(spec);
    run.done(&run.act(&Input::advance()), ActionResult { children: 2, ..ActionResult::default() });
    let parts = run.id_in("parts");
    assert_eq!(run.go(&move_run("begin")).ended, [parts]);
    let child = Input::ChildDone { activation: parts, child: 0, end: ChildEnd::Cancelled };
    assert!(matches!(run.refused(&child), Refusal::Superseded { .. }));
    let refusal = Refusal::CannotEnter {
        place: "parts".into(),
        why: "it waits for children, and a move does not start any".to_owned(),
    };
    assert_eq!(run.refused(&move_run("parts")), refusal);
    assert_eq!(run.refused(&move_one(run.id_in("begin"), "parts")), refusal);
}

// ---- refused moves ----

/// Returns the reason why the place cannot be entered.
fn reason(run: &Driver, event: &Input) -> String {
    match run.refused(event) {
        Refusal::CannotEnter { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unknown_move_targets_are_refused_by_name() {
    let run = opened(split(Quorum::All, false));
    let said = |event: &Input| run.refused(event).to_string();
    assert_eq!(said(&move_run("rigth")), "workflow `split` has no place `rigth` (did you mean `right`?)");
    assert_eq!(said(&move_run("somewhere else")), "workflow `split` has no place `somewhere else`");
    assert_eq!(said(&move_run("")), "workflow `split` has no place ``");
    assert_eq!(said(&move_one(99, "next")), "the run has no activation 99; it is in `left`, `right`");
    assert!(
        matches!(run.refused(&move_one(99, "nxt")), Refusal::UnknownPlace { .. }),
        "the place is checked first"
    );
    let refusal = serde_json::to_value(run.refused(&move_run("rigth"))).unwrap();
    assert_eq!(refusal["reason"], "unknownPlace");
    let refusal = serde_json::to_value(run.refused(&move_one(99, "next"))).unwrap();
    assert_eq!(refusal, json!({"reason": "noActivation", "activation": 99, "active": ["left", "right"]}));
}

#[test]
fn whole_run_cannot_be_moved_into_a_fork_with_a_join() {
    let run = opened(split(Quorum::All, false));
    let outside = "the run would reach join `both` outside its fork";
    for place in ["both", "left", "left2", "right"] {
        assert_eq!(reason(&run, &move_run(place)), outside, "{place}");
    }
    assert_eq!(run.refused(&move_run("both")).to_string(), format!("cannot move to `both`: {outside}"));
}

#[test]
fn run_can_be_moved_into_a_branch_without_a_join() {
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
    run.go(&move_run("right"));
    assert_eq!((run.places(), run.run_until_idle()), (vec!["right".to_owned()], 1));
    assert_eq!(finished_in(&run), Some("r"));
}

#[test]
fn activation_cannot_be_moved_into_a_fork_from_outside() {
    let run = Driver::start(split(Quorum::All, false));
    let outside = "the run would reach join `both` outside its fork";
    assert_eq!(reason(&run, &move_one(run.id_in("draft"), "right")), outside);
}

#[test]
fn activation_cannot_be_moved_before_its_own_fork() {
    let run = opened(split(Quorum::All, false));
    let inside = "the run would enter fork `fork` inside one of its own branches";
    for place in ["draft", "fork"] {
        assert_eq!(reason(&run, &move_one(run.id_in("left"), place)), inside, "{place}");
    }
}

#[test]
fn activation_can_be_moved_past_its_join() {
    let mut run = opened(split(Quorum::All, false));
    run.go(&move_one(run.id_in("left"), "next"));
    assert_eq!(run.places(), ["next", "right"]);
    run.signal("GO", Value::Null);
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn inner_branch_cannot_be_moved_to_the_outer_join() {
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
    let wrong = "the run would reach join `all` from a branch of fork `inner`";
    assert_eq!(reason(&run, &move_one(run.id_in("a"), "all")), wrong);
    assert_eq!(reason(&run, &move_one(run.id_in("a"), "c")), wrong);
    let wrong = "the run would reach join `ab` from a branch of fork `outer`";
    assert_eq!(reason(&run, &move_one(run.id_in("c"), "b")), wrong);
    run.go(&move_one(run.id_in("a"), "b"));
    run.go(&move_one(run.id_in("c"), "inner"));
    assert_eq!(run.snapshot.fork_instances().len(), 3, "a fork may be open in each branch");
    assert_eq!(run.places(), ["a", "b"]);
}

#[test]
fn move_check_follows_error_places_and_retry_targets() {
    // Only three edges lead from `aside` into the branch: an action failure, a failure of children, and a retry target.
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
        assert_eq!(reason(&run, &move_run("aside")), "the run would reach join `both` outside its fork");
    }
    let run = Driver::start(risky(Retry::default()));
    assert!(run.decide(&move_run("aside")).is_ok());
}

#[test]
fn moving_to_a_place_with_an_invalid_timer_is_an_error() {
    let late = Transition::new("late", "next", "sorry").on(TransitionTrigger::Until("context.until".into()));
    let run = Driver::start(split(Quorum::All, false).transition(late));
    let error = run.undecidable(&move_run("next"));
    assert!(
        matches!(error, DecideError::InvalidTimestamp { .. } | DecideError::Expression { .. }),
        "{error:?}"
    );
}

#[test]
fn move_evaluates_no_guard_and_has_no_payload() {
    let guard = Guard::named("manager");
    let spec = split(Quorum::All, false)
        .transition(Transition::new("skip", "draft", "done").guard(guard.clone()))
        .transition(Transition::new("halt", "next", "done").guard(guard));
    let mut run = Driver::start(spec);
    assert_eq!(questions(&run.definition, &run.snapshot, &move_run("next")), []);
    assert_eq!(move_run("next").payload(), &Value::Null);
    run.go(&move_run("next"));
    assert_eq!(run.places(), ["next"]);
}

#[test]
fn run_cannot_be_moved_into_a_loop_body() {
    let text = "
steps:
  - { id: before, type: wait.signal, signal: GO }
  - { id: each, type: control.forEach, items: [1], body: [{ id: inner, type: wait.signal, signal: NEXT }] }
";
    let document = stepwell_core::WorkflowSource::read(text, Some("loop")).expect("it is sound");
    let definition = document.definition();
    let begun = stepwell_core::start(definition, RunId::nil(), Value::Null, at(0)).expect("it begins");
    let moved = |to: &str| {
        let event = Input::Moved { activation: None, to: to.into() };
        dispatch(definition, &begun.snapshot, &event, &Answers::none(), at(1))
    };
    assert!(moved("each").is_ok());
    let refused = moved("inner").expect_err("it would have no item").to_string();
    assert!(refused.contains("`each`"), "{refused}");
}
