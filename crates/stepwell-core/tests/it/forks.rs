//! Forks and joins: a join counts each branch once and per fork instance, and absorbs late branches.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ActivationStatus, RunEnd};
use stepwell_core::spec::{Completion, Firing, Join, LoopStep, Place, Quorum, Transition, TransitionTrigger};
use stepwell_core::{
    ActionResult, Answers, Decision, Input, PlaceStatus, ProblemCode, Refusal, Rejected, RunId, Spec,
    dispatch, start,
};

use crate::driver::{Driver, at, build, texts};

/// A fork of the steps `a`, `b` and `c`. The signals A, B and C lead to the join `j`. ON leads from there to `done`.
fn abc(quorum: Quorum, cancel_rest: bool) -> Spec {
    let of = ["a", "b", "c"].map(Into::into).to_vec();
    Spec::new("abc")
        .fork("f", ["a", "b", "c"])
        .step("a")
        .step("b")
        .step("c")
        .place("j", Place::Join(Join { of, quorum, cancel_rest, ..Join::default() }))
        .end("done")
        .signal("A")
        .signal("B")
        .signal("C")
        .signal("ON")
        .on_signal("aj", "a", "A", "j")
        .on_signal("bj", "b", "B", "j")
        .on_signal("cj", "c", "C", "j")
        .on_signal("on", "j", "ON", "done")
}

fn go(run: &mut Driver, signal: &str) {
    run.signal(signal, Value::Null);
}

fn finished_in(run: &Driver) -> Option<&str> {
    match run.snapshot.finished()? {
        RunEnd::Completed { place, .. } => Some(place.as_str()),
        RunEnd::Cancelled => None,
    }
}

#[test]
fn a_fork_opens_all_its_branches_in_one_version() {
    let created = start(&build(abc(Quorum::All, false)), RunId::nil(), json!({}), at(0)).unwrap();
    let run = Driver::from_snapshot(&build(abc(Quorum::All, false)), created.snapshot);
    assert_eq!(run.snapshot.version(), 0);
    assert_eq!(run.places(), ["a", "b", "c"]);
    assert_eq!(run.snapshot.status_of("f"), PlaceStatus::Completed);
    assert_eq!(texts(&created.entry.entered), ["f", "a", "b", "c"]);
    assert_eq!(texts(&created.entry.exited), ["f"]);
    let branches: Vec<_> = run.snapshot.activations().iter().map(|a| a.branch.unwrap().index).collect();
    assert_eq!(branches, [0, 1, 2]);
    assert_eq!(run.snapshot.fork_instances().len(), 1);
}

#[test]
fn a_join_of_all_fires_with_the_last_branch() {
    let mut run = Driver::start(abc(Quorum::All, false));
    go(&mut run, "B");
    go(&mut run, "A");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Waiting);
    assert!(matches!(run.refused(&Input::signal("ON", Value::Null)), Refusal::NoActiveSource { .. }));
    go(&mut run, "C");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    assert_eq!(run.places(), ["j"]);
    assert_eq!(run.snapshot.activations().len(), 1, "the branches are joined");
    assert_eq!(run.snapshot.activations()[0].branch, None);
    assert_eq!(run.snapshot.fork_instances(), []);
    go(&mut run, "ON");
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn join_of_any_fires_once_and_absorbs_late_branches() {
    let mut run = Driver::start(abc(Quorum::Any, false));
    go(&mut run, "C");
    assert_eq!(run.places(), ["a", "b", "j"]);
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    let before = run.id_in("j");
    let change = run.signal("A", Value::Null);
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["a"], vec![]));
    assert_eq!(run.places(), ["b", "j"]);
    assert_eq!(run.id_in("j"), before, "it fired once");
    go(&mut run, "B");
    assert_eq!(run.places(), ["j"]);
    assert_eq!(run.snapshot.fork_instances(), [], "the last branch closes the fork instance");
    go(&mut run, "ON");
    assert!(run.snapshot.is_terminal());
}

#[test]
fn join_of_n_fires_with_the_nth_branch() {
    let mut run = Driver::start(abc(Quorum::N(2), false));
    go(&mut run, "A");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Waiting);
    go(&mut run, "C");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    assert_eq!(run.places(), ["b", "j"]);
    go(&mut run, "B");
    assert_eq!(run.places(), ["j"]);
}

#[test]
fn late_branches_are_absorbed_after_the_run_left_the_join() {
    let spec = abc(Quorum::Any, false)
        .step("beyond")
        .on_signal("go", "j", "A", "beyond")
        .on_signal("end", "beyond", "ON", "done");
    let mut run = Driver::start(spec);
    go(&mut run, "B");
    // Both the branch in `a` and the join accept A. The first A moves the branch, whose transition is declared first.
    go(&mut run, "A");
    go(&mut run, "A");
    assert_eq!(run.places(), ["beyond", "c"]);
    go(&mut run, "C");
    assert_eq!(run.places(), ["beyond"]);
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Completed, "it did not fire again");
}

#[test]
fn cancel_rest_ends_and_reports_the_other_branches() {
    let mut run = Driver::start(abc(Quorum::N(2), true));
    go(&mut run, "A");
    let (b, c) = (run.id_in("b"), run.id_in("c"));
    let change = run.signal("B", Value::Null);
    assert_ne!(b, c);
    assert_eq!(change.ended, [c]);
    assert_eq!(texts(&change.entry.exited), ["b", "c"]);
    assert_eq!(run.places(), ["j"]);
    assert_eq!(run.snapshot.status_of("c"), PlaceStatus::Idle, "it was ended, not completed");
    assert_eq!(run.snapshot.fork_instances(), []);
    assert!(matches!(run.refused(&Input::signal("C", Value::Null)), Refusal::NoActiveSource { .. }));
}

#[test]
fn action_result_in_a_cancelled_branch_is_superseded() {
    let mut spec = abc(Quorum::Any, true);
    spec.transitions[1].action = Some(stepwell_core::spec::ActionSpec {
        name: "slow".into(),
        input: Value::Null,
        save_as: None,
        version: None,
    });
    let mut run = Driver::start(spec);
    let call = run.act(&Input::signal("B", Value::Null));
    let change = run.signal("A", Value::Null);
    assert!(change.ended.contains(&call.activation));
    let done = Input::ActionDone { call: call.clone(), outcome: ActionResult::default() };
    assert_eq!(run.refused(&done), Refusal::Superseded { activation: call.activation, what: "bj".into() });
}

/// The fork `outer` of `x` and the fork `inner` of `p` and `q`. P and Q lead to `in`, X and IN to `out`, OUT to `done`.
fn nested(inner: Join, outer: Join) -> Spec {
    Spec::new("nested")
        .fork("outer", ["x", "inner"])
        .fork("inner", ["p", "q"])
        .step("x")
        .step("p")
        .step("q")
        .place("in", Place::Join(inner))
        .place("out", Place::Join(outer))
        .end("done")
        .signal("P")
        .signal("Q")
        .signal("X")
        .signal("IN")
        .signal("OUT")
        .on_signal("p in", "p", "P", "in")
        .on_signal("q in", "q", "Q", "in")
        .on_signal("in out", "in", "IN", "out")
        .on_signal("x out", "x", "X", "out")
        .on_signal("end", "out", "OUT", "done")
}

fn inner(quorum: Quorum) -> Join {
    Join { of: vec!["p".into(), "q".into()], quorum, cancel_rest: false, ..Join::default() }
}

fn outer(quorum: Quorum, cancel_rest: bool) -> Join {
    Join { of: vec!["x".into(), "in".into()], quorum, cancel_rest, ..Join::default() }
}

#[test]
fn nested_forks_are_joined_from_the_inside_out() {
    let mut run = Driver::start(nested(inner(Quorum::All), outer(Quorum::All, false)));
    assert_eq!(run.places(), ["p", "q", "x"]);
    let fork_instances = run.snapshot.fork_instances();
    assert_eq!(
        fork_instances.iter().map(|fork_instance| fork_instance.fork.as_str()).collect::<Vec<_>>(),
        ["outer", "inner"]
    );
    assert_eq!(fork_instances[1].outer.unwrap().fork_instance, fork_instances[0].id);
    for signal in ["P", "X", "Q"] {
        go(&mut run, signal);
    }
    assert_eq!(run.places(), ["in", "out"]);
    assert_eq!(run.snapshot.fork_instances().len(), 1, "the inner fork instance is closed");
    let back = run.snapshot.activation(run.id_in("in")).unwrap().branch.unwrap();
    assert_eq!(
        (back.fork_instance, back.index),
        (run.snapshot.fork_instances()[0].id, 1),
        "it is the outer branch again"
    );
    go(&mut run, "IN");
    assert_eq!(run.snapshot.status_of("out"), PlaceStatus::Active);
    go(&mut run, "OUT");
    assert!(run.snapshot.is_terminal());
}

#[test]
fn late_inner_branch_is_absorbed_after_the_outer_join() {
    let mut run = Driver::start(nested(inner(Quorum::Any), outer(Quorum::All, false)));
    for signal in ["P", "IN", "X"] {
        go(&mut run, signal);
    }
    assert_eq!(run.places(), ["out", "q"]);
    assert_eq!(run.snapshot.fork_instances().len(), 2);
    go(&mut run, "Q");
    assert_eq!(run.places(), ["out"]);
    assert_eq!(run.snapshot.fork_instances(), []);
}

#[test]
fn cancel_rest_ends_forks_nested_in_a_branch() {
    let mut run = Driver::start(nested(inner(Quorum::All), outer(Quorum::Any, true)));
    go(&mut run, "P");
    let mut inside = vec![run.id_in("q"), run.id_in("in")];
    inside.sort_unstable();
    let change = run.signal("X", Value::Null);
    assert_eq!(change.ended, inside);
    assert_eq!(texts(&change.entry.exited), ["x", "in", "q"]);
    assert_eq!(run.places(), ["out"]);
    assert_eq!(run.snapshot.fork_instances(), []);
}

#[test]
fn each_fork_instance_of_a_loop_counts_separately() {
    let again = abc(Quorum::N(2), false).signal("AGAIN").on_signal("again", "j", "AGAIN", "f");
    let mut run = Driver::start(again);
    go(&mut run, "A");
    go(&mut run, "B");
    go(&mut run, "AGAIN");
    assert_eq!(run.snapshot.fork_instances().len(), 2, "a branch of the first instance is still active");
    assert_eq!(run.snapshot.activations().iter().filter(|a| a.place == "c").count(), 2);
    go(&mut run, "A");
    assert_eq!(
        run.snapshot.status_of("j"),
        PlaceStatus::Waiting,
        "branches of the first instance do not count"
    );
    // The older activation in `c` belongs to the first fork instance and is absorbed.
    go(&mut run, "C");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Waiting);
    assert_eq!(run.snapshot.fork_instances().len(), 1);
    go(&mut run, "C");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    assert_eq!(run.places(), ["b", "j"]);
}

#[test]
fn loop_can_pass_a_join_of_all_repeatedly() {
    let again = abc(Quorum::All, false).signal("AGAIN").on_signal("again", "j", "AGAIN", "f");
    let mut run = Driver::start(again);
    for _ in 0..3 {
        for signal in ["C", "A", "B"] {
            go(&mut run, signal);
        }
        assert_eq!(run.places(), ["j"]);
        go(&mut run, "AGAIN");
    }
    assert_eq!(run.places(), ["a", "b", "c"]);
    assert_eq!(run.snapshot.fork_instances().len(), 1);
}

/// With `firing: all`, the branch in `a` splits in two, and both parts reach the join.
fn splitting(quorum: Quorum, cancel_rest: bool) -> Spec {
    let of = ["a", "a2", "b"].map(Into::into).to_vec();
    Spec::new("split")
        .firing(Firing::All)
        .fork("f", ["a", "b"])
        .step("a")
        .step("a2")
        .step("b")
        .place("j", Place::Join(Join { of, quorum, cancel_rest, ..Join::default() }))
        .end("done")
        .signal("A")
        .signal("A2")
        .signal("B")
        .signal("ON")
        .on_signal("aj", "a", "A", "j")
        .on_signal("aa2", "a", "A", "a2")
        .on_signal("a2j", "a2", "A2", "j")
        .on_signal("bj", "b", "B", "j")
        .on_signal("on", "j", "ON", "done")
}

#[test]
fn join_counts_each_branch_once() {
    let mut run = Driver::start(splitting(Quorum::All, false));
    go(&mut run, "A");
    assert_eq!(run.places(), ["a2", "b", "j"]);
    go(&mut run, "A2");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Waiting, "the same branch arrived twice");
    assert_eq!(run.places(), ["b", "j"]);
    go(&mut run, "B");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    assert_eq!(run.snapshot.activations().len(), 1);
}

#[test]
fn cancel_rest_ends_branches_moved_by_the_same_signal() {
    // One signal moves `a` to the join. That ends `b` and the other half of `a`, in any order of the transitions.
    let all = |reversed: bool| {
        let mut spec = splitting(Quorum::Any, true).on_signal("b2", "b", "A", "a2");
        if reversed {
            spec.transitions.reverse();
        }
        let mut run = Driver::start(spec);
        let change = run.signal("A", Value::Null);
        let fired = texts(&change.entry.transitions).contains(&"b2");
        assert_eq!(fired, reversed, "it fires only if it is before the one that ends it");
        assert_eq!(run.places(), ["j"], "reversed: {reversed}");
        assert_eq!(run.snapshot.fork_instances(), []);
    };
    all(false);
    all(true);
}

#[test]
fn a_branch_may_lead_straight_to_the_join() {
    let spec = |cancel_rest| {
        let of = ["f", "b"].map(Into::into).to_vec();
        Spec::new("straight")
            .fork("f", ["j", "b"])
            .step("b")
            .place("j", Place::Join(Join { of, quorum: Quorum::Any, cancel_rest, ..Join::default() }))
            .end("done")
            .signal("B")
            .signal("ON")
            .on_signal("bj", "b", "B", "j")
            .on_signal("on", "j", "ON", "done")
    };
    let mut run = Driver::start(spec(false));
    assert_eq!(run.places(), ["b", "j"]);
    go(&mut run, "B");
    assert_eq!(run.places(), ["j"]);
    let run = Driver::start(spec(true));
    assert_eq!(run.places(), ["j"], "the other branch does not start");
    assert_eq!(run.snapshot.fork_instances(), []);
}

/// `a`, `b` and `c` can each reach the join or end without it.
fn unreliable(quorum: Quorum) -> Spec {
    let of = ["a", "b", "c"].map(Into::into).to_vec();
    Spec::new("unreliable")
        .completion(Completion::AllBranches)
        .fork("f", ["a", "b", "c"])
        .step("a")
        .step("b")
        .step("c")
        .place("j", Place::Join(Join { of, quorum, cancel_rest: false, ..Join::default() }))
        .end_with("alone", json!("alone"))
        .end_with("done", json!("done"))
        .signal("JOIN")
        .signal("END")
        .signal("ON")
        .on_signal("aj", "a", "JOIN", "j")
        .on_signal("bj", "b", "JOIN", "j")
        .on_signal("cj", "c", "JOIN", "j")
        .on_signal("ae", "a", "END", "alone")
        .on_signal("be", "b", "END", "alone")
        .on_signal("ce", "c", "END", "alone")
        .on_signal("on", "j", "ON", "done")
}

#[test]
fn run_stops_and_names_the_join_that_cannot_fire() {
    let mut run = Driver::start(unreliable(Quorum::N(2)));
    go(&mut run, "JOIN");
    assert_eq!(run.signal("END", Value::Null).stopped, None, "another branch is still active");
    let change = run.signal("END", Value::Null);
    let stopped = change.stopped.expect("the quorum is not reached");
    assert_eq!((stopped.code.as_str(), stopped.is_final), ("joinUnreached", true));
    assert_eq!(
        stopped.message,
        "join `j` needs 2 branches, but only 1 arrived and no other branch is active"
    );
    assert!(!run.snapshot.is_terminal());
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Waiting);
    let patched = run.go(&Input::Patched { patch: Patch::set("x", json!(1)) });
    assert_eq!(patched.stopped, Some(stopped), "the error stays after the next change");
}

#[test]
fn run_stops_when_no_branch_reached_the_join() {
    let mut run = Driver::start(unreliable(Quorum::Any));
    go(&mut run, "END");
    go(&mut run, "END");
    let stopped = run.signal("END", Value::Null).stopped.unwrap();
    assert_eq!(
        stopped.message,
        "join `j` needs 1 branches, but only 0 arrived and no other branch is active"
    );
    assert_eq!(run.places(), [""; 0]);
    assert!(!run.snapshot.is_terminal());
    run.go(&Input::Cancelled);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn ended_branches_do_not_block_a_join_with_its_quorum() {
    let mut run = Driver::start(unreliable(Quorum::N(2)));
    assert_eq!(run.signal("END", Value::Null).stopped, None);
    go(&mut run, "JOIN");
    go(&mut run, "JOIN");
    assert_eq!(run.snapshot.status_of("j"), PlaceStatus::Active);
    assert_eq!(run.snapshot.fork_instances(), []);
    go(&mut run, "ON");
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn all_branches_completion_happens_at_the_last_end() {
    let spec = Spec::new("all")
        .completion(Completion::AllBranches)
        .fork("f", ["a", "b"])
        .step("a")
        .step("b")
        .end_with("left", json!("left"))
        .end_with("right", json!("right"))
        .signal("A")
        .signal("B")
        .on_signal("a", "a", "A", "left")
        .on_signal("b", "b", "B", "right");
    let mut run = Driver::start(spec);
    let change = run.signal("B", Value::Null);
    assert_eq!(change.ended, [0; 0]);
    assert!(!run.snapshot.is_terminal());
    assert_eq!(run.places(), ["a"]);
    assert_eq!(run.snapshot.status_of("right"), PlaceStatus::Completed);
    go(&mut run, "A");
    let expected = RunEnd::Completed { place: "left".into(), output: Some(json!("left")) };
    assert_eq!(run.snapshot.finished(), Some(&expected));
    assert_eq!(run.snapshot.fork_instances(), []);
}

#[test]
fn all_branches_completion_waits_for_late_branches() {
    let spec = abc(Quorum::Any, false).completion(Completion::AllBranches);
    let mut run = Driver::start(spec);
    go(&mut run, "A");
    go(&mut run, "ON");
    assert!(!run.snapshot.is_terminal());
    go(&mut run, "B");
    assert!(!run.snapshot.is_terminal());
    go(&mut run, "C");
    assert_eq!(finished_in(&run), Some("done"));
}

#[test]
fn first_end_completion_ends_the_other_branches() {
    let spec = abc(Quorum::All, false).signal("QUIT").on_signal("quit", "b", "QUIT", "done");
    let mut run = Driver::start(spec);
    go(&mut run, "A");
    let mut rest = vec![run.id_in("c"), run.id_in("j")];
    rest.sort_unstable();
    let change = run.signal("QUIT", Value::Null);
    assert_eq!(change.ended, rest);
    assert_eq!(change.stopped, None);
    assert_eq!(finished_in(&run), Some("done"));
}

// ---- initial places ----

/// Returns the state of a run that starts in the initial place, and of a run that enters the same place by a
/// transition. Leaves out versions and activation ids, which differ.
fn started_and_entered(spec: &Spec) -> [Value; 2] {
    let begun = Driver::start(spec.clone());
    let initial = spec.initial.clone().expect("it has one");
    let mut entered =
        Driver::start(spec.clone().step("before").initial("before").auto("enter", "before", initial));
    entered.advance();
    [begun, entered].map(|run| {
        let shown = |a: &stepwell_core::Activation| {
            json!([
                a.place,
                a.status,
                a.branch.map(|branch| branch.index),
                a.timers.len(),
                a.received,
                a.children
            ])
        };
        json!({
            "activations": run.snapshot.activations().iter().map(shown).collect::<Vec<_>>(),
            "forkInstances": run.snapshot.fork_instances().iter().map(|p| json!([p.fork, p.fired])).collect::<Vec<_>>(),
            "finished": run.snapshot.finished(),
            "terminal": run.snapshot.is_terminal(),
        })
    })
}

#[test]
fn initial_place_is_entered_like_any_other() {
    let timer = Transition::new("late", "w", "z").after_ms(5);
    let specs = [
        Spec::new("step").step("s").end("z").auto("sz", "s", "z"),
        Spec::new("wait").wait("w", "GO").end("z").signal("GO").auto("wz", "w", "z").transition(timer),
        abc(Quorum::All, false),
        nested(inner(Quorum::Any), outer(Quorum::N(1), true)),
        Spec::new("end").end_with("z", json!({"ok": true})),
    ];
    for spec in specs {
        let [begun, entered] = started_and_entered(&spec);
        assert_eq!(begun, entered, "{}", spec.name);
    }
}

#[test]
fn run_that_starts_in_an_end_completes_at_version_0() {
    let run = Driver::start(Spec::new("end").end_with("z", json!({"ok": true})));
    assert_eq!(run.snapshot.version(), 0);
    assert!(run.snapshot.is_terminal());
    assert_eq!(finished_in(&run), Some("z"));
    assert_eq!(run.refused(&Input::advance()), Refusal::Terminal);
}

#[test]
fn run_that_starts_in_a_wait_is_waiting() {
    let spec = Spec::new("wait").wait("w", "GO").end("z").signal("GO").auto("wz", "w", "z");
    let run = Driver::start(spec);
    assert_eq!(run.snapshot.activations()[0].status, ActivationStatus::Waiting);
}

#[test]
fn quorum_of_zero_or_above_the_branch_count_is_refused() {
    for quorum in [0, 4, u32::MAX] {
        let problems = abc(Quorum::N(quorum), false).build().unwrap_err().0;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(
            (problems[0].code, problems[0].at.to_string()),
            (ProblemCode::BadQuorum, "place `j`".to_owned())
        );
    }
    // A fork may name a place twice, which gives two branches.
    let twice = |quorum| {
        Spec::new("twice")
            .fork("f", ["a", "a"])
            .step("a")
            .join("j", Quorum::N(quorum), ["a"])
            .end("z")
            .auto("aj", "a", "j")
            .auto("jz", "j", "z")
            .build()
    };
    twice(2).unwrap();
    assert_eq!(twice(3).unwrap_err().0[0].code, ProblemCode::BadQuorum);
}

// ---- position, locals and timers of a join ----

#[test]
fn join_restores_the_loop_position_and_locals_of_its_fork() {
    let spec = Spec::new("loop")
        .step("begin")
        .fork("f", ["a", "b"])
        .step("a")
        .step("b")
        .join("j", Quorum::All, ["a", "b"])
        .end("z")
        .transition(Transition::new("in", "begin", "f").action("x").loop_step(LoopStep::Enter))
        .transition(Transition::new("aj", "a", "j").action("x").loop_step(LoopStep::Enter))
        .auto("bj", "b", "j")
        .transition(Transition::new("jz", "j", "z").when("false"));
    let mut run = Driver::start(spec);
    let call = run.act(&Input::advance());
    let locals = |value: Value| value.as_object().cloned().unwrap();
    run.done(&call, ActionResult { locals: locals(json!({"item": 1})), ..ActionResult::default() });
    for place in ["a", "b"] {
        let branch = run.snapshot.activation(run.id_in(place)).unwrap();
        assert_eq!((branch.position.as_slice(), &branch.locals["item"]), (&[0][..], &json!(1)), "{place}");
    }
    let call = run.act(&Input::Advanced { activation: Some(run.id_in("a")) });
    run.go(&Input::Advanced { activation: Some(run.id_in("b")) });
    run.done(
        &call,
        ActionResult { locals: locals(json!({"item": 2, "mine": true})), ..ActionResult::default() },
    );
    let joined = run.snapshot.activation(run.id_in("j")).unwrap();
    assert_eq!(joined.position, [0]);
    assert_eq!(joined.locals, locals(json!({"item": 1})));
}

#[test]
fn timers_of_a_join_start_when_it_fires() {
    let spec = Spec::new("timed")
        .fork("f", ["a", "b"])
        .step("a")
        .step("b")
        .join("j", Quorum::All, ["a", "b"])
        .end("z")
        .signal("A")
        .on_signal("aj", "a", "A", "j")
        .transition(Transition::new("bj", "b", "j").action("set the deadline"))
        .transition(Transition::new("after", "j", "z").after_ms(10))
        .transition(
            Transition::new("until", "j", "z").on(TransitionTrigger::Until("context.deadline".into())),
        );
    let mut run = Driver::start(spec);
    run.signal("A", Value::Null);
    assert_eq!(run.snapshot.next_due(at(0)), None, "the deadline is not known yet");
    run.now = at(100);
    let call = run.act(&Input::advance());
    run.done(
        &call,
        ActionResult { context: Patch::set("deadline", json!(at(500))), ..ActionResult::default() },
    );
    let timers: Vec<_> = run.snapshot.activations()[0].timers.iter().map(|timer| timer.at).collect();
    assert_eq!(timers, [at(110), at(500)]);
}

/// An answer moves its own activation, even if another activation that accepts the signal comes first.
#[test]
fn answer_moves_only_the_activation_it_is_for() {
    let definition = Spec::new("two")
        .fork("ask", ["left", "right"])
        .wait("left", "OK")
        .step("right")
        .join("asked", Quorum::All, ["left", "right"])
        .end("done")
        .signal_with("OK", json!({"type": "object"}))
        .auto("l", "left", "asked")
        .on_signal("r", "right", "OK", "asked")
        .auto("end", "asked", "done")
        .build()
        .unwrap();
    let now = at(0);
    let run = RunId::new(uuid::Uuid::from_u128(1));
    let begun = start(&definition, run, json!({}), now).unwrap().snapshot;
    let of = |place: &str| begun.activations().iter().find(|one| one.place == place).unwrap().id;
    let answer = |activation, payload| Input::Answered { activation, signal: "OK".into(), payload };
    let decide = |event: &Input| dispatch(&definition, &begun, event, &Answers::none(), now);
    for (place, other) in [("left", "right"), ("right", "left")] {
        let Ok(Decision::Change(change)) = decide(&answer(of(place), json!({}))) else { panic!("{place}") };
        assert_eq!(
            change.snapshot.activation(of(other)),
            begun.activation(of(other)),
            "{other} has not moved"
        );
        assert_ne!(change.snapshot.activation(of(place)), begun.activation(of(place)));
    }
    let unfit = decide(&answer(of("left"), json!(1)));
    assert!(matches!(unfit, Err(Rejected::Refused(Refusal::InvalidPayload { .. }))));
    let nobody = decide(&answer(99, json!({})));
    assert!(matches!(nobody, Err(Rejected::Refused(Refusal::NoActiveSource { .. }))));
}
