//! Forking a run from a state of another run: the new run has that state and its own id, and continues independently.

use proptest::prelude::{prop_assert, prop_assert_eq, prop_assume, proptest};
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};
use stepwell_core::snapshot::{ActivationStatus, ChildEnd};
use stepwell_core::spec::{ChildRule, Completion, Place, Quorum, Transition, Wait};
use stepwell_core::{ActionResult, ForkError, History, Input, RestoreError, RunId, Snapshot, Spec, fork_run};

use crate::driver::{Driver, at, build, bytes, texts};
use crate::properties::{Run, begun, check_sound};
use crate::random::{happenings, plan};

fn other_run() -> RunId {
    "11111111-2222-3333-4444-555555555555".parse().expect("it is a UUID")
}

/// `draft`, then a fork whose branches are joined.
fn split() -> Spec {
    Spec::new("split")
        .step("draft")
        .fork("fork", ["left", "right"])
        .step("left")
        .wait("right", "R")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .end("late")
        .signal("GO")
        .signal("L")
        .signal("R")
        .on_signal("open", "draft", "GO", "fork")
        .on_signal("l", "left", "L", "both")
        .auto("r", "right", "both")
        .transition(Transition::new("late", "right", "late").after_ms(100))
        .auto("on", "both", "done")
}

/// Returns the snapshot as JSON without the id and the times, which differ between the two runs.
fn common(snapshot: &Snapshot) -> Value {
    let mut saved = serde_json::to_value(snapshot).expect("a snapshot is plain data");
    for own in ["instanceId", "createdAt", "updatedAt"] {
        saved[own] = Value::Null;
    }
    saved
}

#[test]
fn forked_run_has_the_same_state_and_version_and_its_own_id() {
    let mut run = Driver::start_with(split(), json!({"n": 1}));
    run.now = at(10);
    run.signal("GO", Value::Null);
    run.signal("L", Value::Null);
    let before = bytes(&run.snapshot);
    let change = fork_run(&run.definition, &run.snapshot, other_run(), at(500)).unwrap();
    assert_eq!(bytes(&run.snapshot), before);
    let snapshot = &change.snapshot;
    assert_eq!((snapshot.instance_id(), snapshot.version()), (other_run(), 2));
    assert_eq!((snapshot.created_at(), snapshot.updated_at()), (at(500), at(500)));
    assert_eq!(common(snapshot), common(&run.snapshot), "everything else is the same, also the timers");
    assert_eq!(snapshot.next_due(at(0)), Some(at(110)));
    assert_eq!(snapshot.verify(&run.definition), Ok(()));
    let entry = &change.entry;
    assert_eq!((entry.version, entry.action.as_str(), entry.at), (2, "__operator:fork", at(500)));
    assert_eq!((texts(&entry.entered), entry.exited.len()), (vec!["both", "right"], 0));
    assert_eq!((entry.payload.clone(), change.ended, change.stopped), (None, vec![], None));
}

#[test]
fn original_and_forked_run_are_independent() {
    let mut run = Driver::start(split());
    run.signal("GO", Value::Null);
    let change = fork_run(&run.definition, &run.snapshot, other_run(), at(5)).unwrap();
    let mut other = Driver::from_snapshot(&run.definition, change.snapshot);
    let mut history = History::new(other.snapshot.clone());
    other.now = at(5);
    let left = other.signal("L", Value::Null);
    history.push(left.entry, &other.snapshot).unwrap();
    assert_eq!(
        (run.places(), other.places()),
        (vec!["left".to_owned(), "right".into()], vec!["both".to_owned(), "right".into()])
    );
    run.go(&Input::Cancelled);
    other.signal("R", json!("yes"));
    assert_eq!(other.run_until_idle(), 2);
    assert!(other.snapshot.is_terminal());
    assert_eq!(other.snapshot.version(), 5, "its versions continue");
}

#[test]
fn run_can_be_forked_from_any_state_of_its_history() {
    let mut run = Driver::start(split());
    let mut history = History::new(run.snapshot.clone());
    for signal in ["GO", "L", "R"] {
        let change = run.signal(signal, Value::Null);
        history.push(change.entry, &run.snapshot).unwrap();
    }
    run.run_until_idle();
    assert!(run.snapshot.is_terminal());
    for version in 0..=3 {
        let state = history.rewind(version).unwrap();
        let change = fork_run(&run.definition, &state, other_run(), at(9)).unwrap();
        assert_eq!((change.snapshot.version(), common(&change.snapshot)), (version, common(&state)));
    }
}

#[test]
fn forked_run_is_consistent_when_the_clock_went_back() {
    let mut run = Driver::start(split());
    run.now = at(50);
    run.signal("GO", Value::Null);
    let change = fork_run(&run.definition, &run.snapshot, other_run(), at(20)).unwrap();
    assert_eq!((change.snapshot.created_at(), change.snapshot.updated_at()), (at(20), at(20)));
    assert_eq!(change.snapshot.contradictions(&run.definition), [""; 0]);
}

#[test]
fn fork_of_a_stopped_run_is_stopped_with_the_same_error() {
    let spec = split().completion(Completion::AllBranches).on_signal("quit", "left", "GO", "done");
    let mut run = Driver::start(spec);
    run.signal("GO", Value::Null);
    run.signal("R", Value::Null);
    run.advance();
    let stopped = run.signal("GO", Value::Null).stopped;
    assert!(stopped.is_some());
    let change = fork_run(&run.definition, &run.snapshot, other_run(), at(5)).unwrap();
    assert_eq!(change.stopped, stopped);
}

#[test]
fn fork_of_an_ended_run_or_under_the_same_id_is_refused() {
    let mut run = Driver::start(split());
    let itself = fork_run(&run.definition, &run.snapshot, RunId::nil(), at(0));
    assert_eq!(itself, Err(ForkError::SameRun));
    run.go(&Input::Cancelled);
    let ended = fork_run(&run.definition, &run.snapshot, other_run(), at(0));
    assert_eq!(ended, Err(ForkError::Terminal));
}

#[test]
fn fork_with_another_definition_is_refused() {
    let run = Driver::start(split());
    let newer = build(split().version(2));
    let refused = fork_run(&newer, &run.snapshot, other_run(), at(0)).unwrap_err();
    assert!(matches!(refused, ForkError::InvalidSnapshot(RestoreError::OtherDefinition { .. })), "{refused}");
    let other = build(Spec { name: "other".into(), ..split() });
    let refused = fork_run(&other, &run.snapshot, other_run(), at(0)).unwrap_err();
    assert!(matches!(refused, ForkError::InvalidSnapshot(RestoreError::OtherWorkflow { .. })), "{refused}");
}

#[test]
fn fork_is_refused_while_the_run_waits_for_children() {
    let wait = |rule| Place::Wait(Wait { children: Some(rule), ..Wait::default() });
    let spec = Spec::new("parts")
        .fork("fork", ["a", "b"])
        .step("a")
        .step("b")
        .place("many", wait(ChildRule::All))
        .place("few", wait(ChildRule::Any))
        .step("rest")
        .end("done")
        .signal("END")
        .transition(Transition::new("start a", "a", "many").action("start"))
        .transition(Transition::new("start b", "b", "few").action("start"))
        .on_signal("many", "many", "END", "rest")
        .on_signal("few", "few", "END", "rest")
        .on_signal("end", "rest", "END", "done");
    let mut run = Driver::start(spec);
    let attempt = |run: &Driver| fork_run(&run.definition, &run.snapshot, other_run(), at(0));
    assert!(attempt(&run).is_ok(), "no children yet");
    for _ in 0..2 {
        let call = run.act(&Input::advance());
        run.done(&call, ActionResult { children: 1, ..ActionResult::default() });
    }
    let refused = attempt(&run).unwrap_err();
    assert_eq!(refused, ForkError::WaitsForChildren(vec!["few".into(), "many".into()]));
    assert!(refused.to_string().contains("in `few`, `many`"), "{refused}");
    run.child("few", 0, ChildEnd::Completed { output: Value::Null });
    assert_eq!(attempt(&run), Err(ForkError::WaitsForChildren(vec!["many".into()])));
    run.child("many", 0, ChildEnd::Completed { output: Value::Null });
    let change = attempt(&run).expect("all have answered");
    assert!(change.snapshot.activations().iter().all(|a| a.status == ActivationStatus::Active));
}

proptest! {
    #[test]
    fn forked_run_decides_like_the_original(
        plan in plan(),
        past in happenings(),
        future in happenings(),
    ) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        run.live(&past);
        let waits = run.snapshot.activations().iter();
        let waits = waits.filter(|a| a.children.is_some() && a.status == ActivationStatus::Waiting).count();
        let snapshot = match fork_run(&run.definition, &run.snapshot, other_run(), run.now) {
            Ok(change) => change.snapshot,
            Err(refused) => {
                prop_assert!(matches!(refused, ForkError::WaitsForChildren(_)) && waits > 0, "{}", refused);
                return Ok(());
            }
        };
        prop_assert_eq!(waits, 0);
        let mut other = Run { snapshot, ..run.clone() };
        for happening in &future {
            run.go(happening);
            other.go(happening);
            check_sound(&other)?;
            prop_assert_eq!(common(&run.snapshot), common(&other.snapshot));
        }
        prop_assert_eq!(other.snapshot.instance_id(), other_run());
        let restored = Snapshot::restore(&other.definition, &bytes(&other.snapshot));
        restored.map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}
