//! Migration of a run to another definition of its workflow: what it keeps, what it changes, and the obstacles.

use std::collections::BTreeMap;

use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_assume, proptest};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::retry::Retry;
use stepwell_core::snapshot::{Activation, ActivationStatus, ChildEnd, RunEnd};
use stepwell_core::spec::{
    ChildRule, Completion, Guard, Join, Place, Quorum, Transition, TransitionTrigger, Wait,
};
use stepwell_core::{
    ActionResult, Change, Decision, Definition, History, Input, Limits, Mapping, MigrationError, Name,
    Obstacle, RetryRequest, Snapshot, Spec, migrate,
};

use crate::driver::{Driver, at, build, bytes, texts};
use crate::properties::{Run, begun, check_decision, check_sound, limits};
use crate::random::{happenings, plan};

fn mapping(places: &[(&str, &str)]) -> Mapping {
    let places = places.iter().map(|(from, to)| (Name::from(*from), Name::from(*to))).collect();
    Mapping { places, context: None }
}

/// Migrates a run, checks the change, and returns the run on the new definition.
fn migrated(run: &Driver, spec: Spec, mapping: &Mapping) -> (Driver, Change) {
    let to = build(spec);
    let before = bytes(&run.snapshot);
    let change = migrate(&run.definition, &to, &run.snapshot, mapping, run.now)
        .unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!(change.snapshot.version(), run.snapshot.version() + 1);
    assert_eq!(change.entry.version, change.snapshot.version());
    assert_eq!(change.entry.action, "__operator:migrate");
    assert_eq!(change.snapshot.verify(&to), Ok(()));
    let driver = Driver { now: run.now, ..Driver::from_snapshot(&to, change.snapshot.clone()) };
    (driver, change)
}

/// Returns the obstacles of a migration that must be refused.
fn obstacles(run: &Driver, spec: Spec, mapping: &Mapping) -> Vec<Obstacle> {
    match migrate(&run.definition, &build(spec), &run.snapshot, mapping, run.now) {
        Err(MigrationError(obstacles)) => obstacles,
        Ok(change) => panic!("it can be migrated: {change:?}"),
    }
}

/// `draft`, which GO leaves to `review`, which OK leaves to `done`.
fn review(version: u32) -> Spec {
    Spec::new("review")
        .version(version)
        .step("draft")
        .step("review")
        .end("done")
        .signal("GO")
        .signal("OK")
        .on_signal("submit", "draft", "GO", "review")
        .on_signal("approve", "review", "OK", "done")
}

/// The workflow of [`review`] with `review` renamed to `check`, and the step `triage` before it.
fn longer() -> Spec {
    Spec::new("review")
        .version(2)
        .step("draft")
        .step("triage")
        .step("check")
        .end("done")
        .signal("GO")
        .signal("OK")
        .on_signal("submit", "draft", "GO", "triage")
        .auto("sort", "triage", "check")
        .on_signal("approve", "check", "OK", "done")
}

// ---- kept and changed state ----

#[test]
fn mapping_migrates_a_run_in_one_version() {
    let mut run = Driver::start_with(review(1), json!({"n": 1}));
    run.signal("GO", Value::Null);
    let before = run.activation_in("review");
    run.now = at(9);
    let (mut run, change) = migrated(&run, longer(), &mapping(&[("review", "check")]));
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["review"], vec!["check"]));
    assert_eq!((change.entry.at, change.entry.payload, change.ended), (at(9), None, vec![]));
    assert_eq!(
        run.activation_in("check"),
        Activation { place: "check".into(), ..before },
        "only the name is new"
    );
    let snapshot = &run.snapshot;
    assert_eq!((snapshot.definition_version(), snapshot.definition_hash()), (2, run.definition.hash()));
    assert_eq!((snapshot.created_at(), snapshot.updated_at()), (at(0), at(9)));
    assert_eq!(snapshot.context(), &json!({"n": 1}));
    run.signal("OK", Value::Null);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn unmapped_places_keep_their_name() {
    let run = Driver::start(review(1));
    let (run, change) = migrated(&run, longer(), &Mapping::default());
    assert_eq!(run.places(), ["draft"]);
    assert_eq!((change.entry.entered, change.entry.exited), (vec![], vec![]));
}

#[test]
fn mapping_may_swap_and_merge_places() {
    let two = |left: &str, right: &str| {
        Spec::new("two")
            .fork("fork", [left, right])
            .step(left)
            .step(right)
            .end("done")
            .signal("GO")
            .on_signal("l", left, "GO", "done")
            .on_signal("r", right, "GO", "done")
    };
    let run = Driver::start(two("a", "b"));
    let (a, b) = (run.id_in("a"), run.id_in("b"));
    let (swapped, change) = migrated(&run, two("b", "a").version(2), &mapping(&[("a", "b"), ("b", "a")]));
    assert_eq!((swapped.id_in("b"), swapped.id_in("a")), (a, b));
    assert_eq!((texts(&change.entry.exited), texts(&change.entry.entered)), (vec!["a", "b"], vec!["b", "a"]));
    let one = Spec::new("two")
        .fork("fork", ["c", "c"])
        .step("c")
        .end("done")
        .signal("GO")
        .on_signal("c", "c", "GO", "done");
    let (run, _) = migrated(&run, one, &mapping(&[("a", "c"), ("b", "c")]));
    assert_eq!((run.places(), run.snapshot.activations().len()), (vec!["c".to_owned()], 2));
}

#[test]
fn completed_places_are_renamed_or_dropped() {
    let asking = |spec: Spec| {
        let guard = Guard::Completed("written".into());
        spec.transition(Transition::new("skip", "check", "done").guard(guard))
    };
    let mut run = Driver::start(
        review(1)
            .step("draft2")
            .auto("next", "draft", "draft2")
            .on_signal("submit2", "draft2", "GO", "review"),
    );
    run.advance();
    run.signal("GO", Value::Null);
    let completed: Vec<_> = run.snapshot.completed().iter().map(Name::as_str).collect();
    assert_eq!(completed, ["draft", "draft2"]);
    let spec = Spec::new("review")
        .step("written")
        .step("check")
        .end("done")
        .signal("OK")
        .auto("go", "written", "check")
        .on_signal("approve", "check", "OK", "done");
    let (mut run, _) = migrated(&run, asking(spec), &mapping(&[("review", "check"), ("draft", "written")]));
    let completed: Vec<_> = run.snapshot.completed().iter().map(Name::as_str).collect();
    assert_eq!(completed, ["written"]);
    run.advance();
    assert!(run.snapshot.is_terminal(), "guards find it under its new name");
}

#[test]
fn mapping_may_replace_the_context() {
    let run = Driver::start_with(review(1), json!({"first": "a", "last": "b"}));
    let schema = json!({"type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}}});
    let unfit = obstacles(&run, review(2).context_schema(schema.clone()), &Mapping::default());
    assert!(
        matches!(&unfit[..], [Obstacle::InvalidContext { violations }] if violations.len() == 3),
        "{unfit:?}"
    );
    let transformed = Mapping { context: Some(json!({"name": "a b"})), ..Mapping::default() };
    let (run, _) = migrated(&run, review(2).context_schema(schema), &transformed);
    assert_eq!(run.snapshot.context(), &json!({"name": "a b"}));
}

#[test]
fn invalid_context_in_a_mapping_is_an_obstacle() {
    let run = Driver::start(review(1));
    let with = |context: Value| Mapping { context: Some(context), ..Mapping::default() };
    for context in [Value::Null, json!([1]), json!("text")] {
        let found = obstacles(&run, review(2), &with(context));
        assert!(matches!(&found[..], [Obstacle::InvalidContext { .. }]), "{found:?}");
    }
    let narrow = review(2).build_within(&Limits { value_depth: 1, ..Limits::default() }).unwrap();
    let refused =
        migrate(&run.definition, &narrow, &run.snapshot, &with(json!({"a": {}})), at(0)).unwrap_err();
    assert!(refused.to_string().contains("value_depth"), "{refused}");
}

#[test]
fn migration_keeps_locals_position_session_and_payloads() {
    let asking = |version| {
        Spec::new("asking")
            .version(version)
            .step("begin")
            .wait("ask", "ANSWER")
            .end("done")
            .signal("ANSWER")
            .signal("OK")
            .transition(
                Transition::new("in", "begin", "ask")
                    .action("pick")
                    .loop_step(stepwell_core::spec::LoopStep::Enter),
            )
            .on_signal("on", "ask", "OK", "done")
    };
    let mut run = Driver::start(asking(1));
    let Value::Object(locals) = json!({"item": "x"}) else { unreachable!() };
    let outcome = ActionResult { locals, session: Patch::set("slot", json!(2)), ..ActionResult::default() };
    run.done(&run.act(&Input::advance()), outcome);
    run.signal("ANSWER", json!({"by": "ann"}));
    let before = run.snapshot.clone();
    let (run, _) = migrated(&run, asking(2), &Mapping::default());
    assert_eq!(run.snapshot.activations(), before.activations());
    assert_eq!(run.snapshot.session(), before.session());
    let ask = run.activation_in("ask");
    assert_eq!((ask.position.len(), ask.locals.len(), ask.received.is_some()), (1, 1, true));
}

#[test]
fn history_continues_across_a_migration() {
    let mut run = Driver::start(review(1));
    let mut history = History::new(run.snapshot.clone());
    let submitted = run.signal("GO", Value::Null);
    history.push(submitted.entry, &run.snapshot).unwrap();
    let old = run.snapshot.clone();
    let (run, change) = migrated(&run, longer(), &mapping(&[("review", "check")]));
    history.push(change.entry, &run.snapshot).unwrap();
    assert_eq!((history.rewind(1), history.rewind(2)), (Ok(old), Ok(run.snapshot)));
}

// ---- timers ----

/// A wait with these transitions out of it, most of them timers.
fn limited(version: u32, limits: &[(&str, TransitionTrigger)]) -> Spec {
    let spec = Spec::new("limited")
        .version(version)
        .wait("ask", "ANSWER")
        .step("later")
        .end("done")
        .signal("ANSWER")
        .auto("on", "ask", "later")
        .on_signal("end", "later", "ANSWER", "done");
    limits
        .iter()
        .fold(spec, |spec, (id, on)| spec.transition(Transition::new(*id, "ask", "later").on(on.clone())))
}

fn timers(run: &Driver, place: &str) -> Vec<(String, u64)> {
    let timers = run.activation_in(place).timers;
    timers.iter().map(|timer| (timer.transition.to_string(), timer.at.ms_since(at(0)))).collect()
}

#[test]
fn migration_keeps_adds_and_drops_timers() {
    let after = TransitionTrigger::AfterMs;
    let old = [("keep", after(100)), ("turn", after(100)), ("gone", after(100)), ("far", after(100))];
    let mut run = Driver::start_with(limited(1, &old), json!({"until": at(70)}));
    run.now = at(40);
    let new = [
        ("keep", after(5)),
        ("turn", TransitionTrigger::Until("context.until".into())),
        ("far", TransitionTrigger::Signal("ANSWER".into())),
        ("new", after(30)),
        ("fixed", TransitionTrigger::Until("context.until".into())),
    ];
    let spec = limited(2, &new).transition(Transition::new("gone", "later", "done").after_ms(1));
    let (mut run, _) = migrated(&run, spec, &Mapping::default());
    let timer = |name: &str, ms: u64| (name.to_owned(), ms);
    assert_eq!(
        timers(&run, "ask"),
        [timer("keep", 100), timer("turn", 100), timer("new", 70), timer("fixed", 70)]
    );
    run.timer("ask", at(70));
    assert_eq!(run.places(), ["later"]);
}

#[test]
fn timer_follows_its_transition_to_a_mapped_place() {
    let run = Driver::start(limited(1, &[("late", TransitionTrigger::AfterMs(100))]));
    let spec = limited(2, &[]).wait("other", "ANSWER").auto("also", "ask", "other");
    let spec =
        spec.transition(Transition::new("late", "other", "done").after_ms(7)).auto("x", "other", "later");
    let run = Driver { now: at(50), ..run };
    let (stays, _) = migrated(&run, spec.clone(), &Mapping::default());
    assert_eq!(timers(&stays, "ask"), []);
    let (moves, _) = migrated(&run, spec, &mapping(&[("ask", "other")]));
    assert_eq!(
        timers(&moves, "other"),
        [("late".to_owned(), 100)],
        "its place was mapped, so it still leaves it"
    );
}

#[test]
fn migration_does_not_restart_timers_of_resolved_waits() {
    let mut run = Driver::start(limited(1, &[("late", TransitionTrigger::AfterMs(100))]));
    run.signal("ANSWER", json!("yes"));
    let spec =
        limited(2, &[("late", TransitionTrigger::AfterMs(100)), ("new", TransitionTrigger::AfterMs(5))]);
    let (run, _) = migrated(&run, spec, &Mapping::default());
    assert_eq!(timers(&run, "ask"), []);
}

#[test]
fn each_timer_that_cannot_be_set_is_an_obstacle() {
    let run = Driver::start(limited(1, &[]));
    let until = |text: &str| TransitionTrigger::Until(text.into());
    let spec = limited(2, &[("odd", until("'soon'")), ("missing", until("context.a.b"))]);
    let found = obstacles(&run, spec, &Mapping::default());
    let [Obstacle::Inconsistent { why: odd }, Obstacle::Inconsistent { why: missing }] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(odd.contains("`odd`") && missing.contains("`missing`"), "{found:?}");
}

#[test]
fn invalid_context_is_reported_without_timer_obstacles() {
    let run = Driver::start_with(limited(1, &[]), json!({"until": "soon"}));
    let schema = json!({"type": "object", "properties": {"until": {"type": "string", "minLength": 20}}});
    let spec =
        limited(2, &[("late", TransitionTrigger::Until("context.until".into()))]).context_schema(schema);
    let found = obstacles(&run, spec.clone(), &Mapping::default());
    assert!(matches!(&found[..], [Obstacle::InvalidContext { .. }]), "{found:?}");
    let (run, _) =
        migrated(&run, spec, &Mapping { context: Some(json!({"until": at(9)})), ..Mapping::default() });
    assert_eq!(timers(&run, "ask"), [("late".to_owned(), 9)], "timers are set from the new context");
}

// ---- forks and joins ----

fn forked(version: u32, join: Join) -> Spec {
    Spec::new("forked")
        .version(version)
        .fork("fork", ["a", "b", "c"])
        .step("a")
        .step("b")
        .step("c")
        .place("both", Place::Join(join))
        .end("done")
        .end("sorry")
        .signal("A")
        .signal("B")
        .signal("C")
        .signal("STOP")
        .signal("ON")
        .on_signal("a", "a", "A", "both")
        .on_signal("b", "b", "B", "both")
        .on_signal("c", "c", "C", "both")
        .on_signal("stop", "c", "STOP", "sorry")
        .on_signal("on", "both", "ON", "done")
        .completion(Completion::AllBranches)
}

fn join(quorum: Quorum, cancel_rest: bool) -> Join {
    Join { of: ["a", "b", "c"].map(Name::from).to_vec(), quorum, cancel_rest, ..Join::default() }
}

#[test]
fn open_forks_migrate_with_their_branches() {
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.signal("A", Value::Null);
    let before = run.snapshot.clone();
    let (mut run, _) = migrated(&run, forked(2, join(Quorum::All, false)), &Mapping::default());
    assert_eq!(run.snapshot.activations(), before.activations());
    assert_eq!(run.snapshot.fork_instances(), before.fork_instances());
    run.signal("B", Value::Null);
    run.signal("C", Value::Null);
    run.signal("ON", Value::Null);
    assert!(run.snapshot.is_terminal());
}

#[test]
fn forks_branches_and_joins_can_be_renamed() {
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.signal("A", Value::Null);
    let names = [("fork", "split"), ("a", "x"), ("both", "all")];
    let (mut run, _) =
        migrated(&run, renamed(&forked(2, join(Quorum::All, false)), &names), &mapping(&names));
    assert_eq!(run.places(), ["all", "b", "c"]);
    assert_eq!(run.snapshot.fork_instances()[0].fork, "split");
    run.signal("B", Value::Null);
    run.signal("C", Value::Null);
    assert_eq!(run.activation_in("all").status, ActivationStatus::Active);
}

#[test]
fn join_fires_when_migration_lowers_its_quorum() {
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.signal("A", Value::Null);
    run.signal("B", Value::Null);
    let (fired, change) = migrated(&run, forked(2, join(Quorum::N(2), false)), &Mapping::default());
    assert_eq!(fired.activation_in("both").status, ActivationStatus::Active);
    assert_eq!(
        (fired.places(), texts(&change.entry.entered)),
        (vec!["both".to_owned(), "c".into()], vec!["both"])
    );
    assert_eq!(change.ended, [0; 0]);
    let (ended, change) = migrated(&run, forked(2, join(Quorum::Any, true)), &Mapping::default());
    assert_eq!((ended.places(), change.ended), (vec!["both".to_owned()], vec![run.id_in("c")]));
    assert_eq!(ended.snapshot.fork_instances(), []);
}

#[test]
fn migration_to_cancel_rest_ends_the_other_branches() {
    let mut run = Driver::start(forked(1, join(Quorum::Any, false)));
    run.signal("A", Value::Null);
    let (b, c) = (run.id_in("b"), run.id_in("c"));
    let (run, change) = migrated(&run, forked(2, join(Quorum::Any, true)), &Mapping::default());
    assert_eq!((run.places(), change.ended), (vec!["both".to_owned()], vec![b, c]));
}

#[test]
fn lower_quorum_lets_a_stopped_run_continue() {
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.signal("A", Value::Null);
    run.signal("B", Value::Null);
    assert!(run.signal("STOP", Value::Null).stopped.is_some());
    let (_, still) = migrated(&run, forked(2, join(Quorum::All, false)), &Mapping::default());
    assert!(still.stopped.is_some(), "it still cannot continue");
    let (mut run, change) = migrated(&run, forked(2, join(Quorum::N(2), false)), &Mapping::default());
    assert_eq!((change.stopped, run.places()), (None, vec!["both".to_owned()]));
    run.signal("ON", Value::Null);
    assert!(matches!(run.snapshot.finished(), Some(RunEnd::Completed { place, .. }) if *place == "done"));
}

#[test]
fn changed_branches_of_an_open_fork_are_an_obstacle() {
    let other = |branches: [&str; 3], of: &[&str]| {
        let mut spec = forked(2, join(Quorum::Any, false));
        let branches = branches.map(Name::from).to_vec();
        spec.places.insert("fork".into(), Place::Fork(stepwell_core::spec::Fork { branches, each: None }));
        let of = of.iter().map(|name| Name::from(*name)).collect();
        spec.places.insert("both".into(), Place::Join(Join { of, ..join(Quorum::Any, false) }));
        spec
    };
    let run = Driver::start(forked(1, join(Quorum::All, false)));
    let differs = |to_branches: &[&str]| Obstacle::BranchesDiffer {
        fork: "fork".into(),
        branches: ["a", "b", "c"].map(Name::from).to_vec(),
        to: "fork".into(),
        to_branches: to_branches.iter().map(|name| Name::from(*name)).collect(),
    };
    let reordered = other(["b", "a", "c"], &["a", "b", "c"]);
    assert_eq!(obstacles(&run, reordered.clone(), &Mapping::default()), [differs(&["b", "a", "c"])]);
    let mut more = forked(2, join(Quorum::Any, false));
    let branches = ["a", "b", "c", "a"].map(Name::from).to_vec();
    more.places.insert("fork".into(), Place::Fork(stepwell_core::spec::Fork { branches, each: None }));
    assert_eq!(obstacles(&run, more.clone(), &Mapping::default()), [differs(&["a", "b", "c", "a"])]);
    let mut passed = run;
    for signal in ["A", "B", "C"] {
        passed.signal(signal, Value::Null);
    }
    migrated(&passed, reordered, &Mapping::default());
    migrated(&passed, more, &Mapping::default());
}

fn no_way(place: &str, to: &str, why: &str) -> Obstacle {
    Obstacle::CannotContinue { place: place.into(), to: to.into(), why: why.to_owned() }
}

#[test]
fn mapping_to_a_place_of_another_fork_is_an_obstacle() {
    let new = || {
        let spec = forked(2, join(Quorum::All, false)).step("before").initial("before");
        spec.auto("in", "before", "fork")
    };
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.go(&Input::Moved { activation: Some(run.id_in("a")), to: "b".into() });
    let found = obstacles(&run, new(), &mapping(&[("c", "before")]));
    let inside = no_way("c", "before", "the run would enter fork `fork` inside one of its own branches");
    assert!(matches!(found[0], Obstacle::BranchesDiffer { .. }), "{found:?}");
    assert_eq!(found[1..], [inside]);

    let flat = Spec { name: "forked".into(), ..review(1) };
    let found = obstacles(&Driver::start(flat), new(), &mapping(&[("draft", "a")]));
    assert_eq!(found, [no_way("draft", "a", "the run would reach join `both` outside its fork")]);
}

#[test]
fn waiting_branch_must_stay_in_the_join_of_its_fork() {
    let mut run = Driver::start(forked(1, join(Quorum::All, false)));
    run.signal("A", Value::Null);
    // The fork has no join now; the join belongs to another fork.
    let spec = Spec::new("forked")
        .fork("fork", ["a", "b", "c"])
        .step("a")
        .step("b")
        .fork("c", ["c2"])
        .step("c2")
        .join("both", Quorum::All, ["c2"])
        .end("done")
        .signal("GO")
        .on_signal("a", "a", "GO", "done")
        .on_signal("b", "b", "GO", "done")
        .on_signal("c", "c2", "GO", "both")
        .on_signal("on", "both", "GO", "done");
    let found = obstacles(&run, spec, &mapping(&[("c", "c2")]));
    let why = "the run would reach join `both` from a branch of fork `fork`";
    assert!(found.contains(&no_way("both", "both", why)), "{found:?}");
    assert!(found.contains(&no_way("c", "c2", why)), "{found:?}");
}

#[test]
fn a_fork_cannot_be_mapped_into_itself() {
    let nested = |inner: &str| {
        let spec = Spec::new("nested").fork("outer", [inner, "c"]).step("a").step("b").step("c").end("done");
        let spec = spec.signal("GO").on_signal("c", "c", "GO", "done").on_signal("a", "a", "GO", "done");
        spec.on_signal("b", "b", "GO", "done")
    };
    let run = Driver::start(nested("inner").fork("inner", ["a", "b"]));
    let flat = nested("a").auto("a2", "c", "b");
    let found = obstacles(&run, flat, &mapping(&[("inner", "outer")]));
    let why = "the fork would be open inside one of its own branches";
    assert!(found.contains(&no_way("inner", "outer", why)), "{found:?}");
}

#[test]
fn stopped_run_completes_when_its_join_is_removed() {
    // All branches ended without reaching the join. In the new definition the fork has no join, so the run is complete.
    let mut spec = forked(1, join(Quorum::All, false));
    spec.transitions.retain(|t| t.id != "stop");
    for (from, signal) in [("a", "A"), ("b", "B"), ("c", "C")] {
        let id = format!("quit {from}");
        spec = spec.transition(Transition::new(id, from, "sorry").on_signal(signal).priority(1));
    }
    let mut run = Driver::start(spec.clone());
    for signal in ["A", "B", "C"] {
        run.signal(signal, Value::Null);
    }
    assert_eq!(run.snapshot.activations(), []);
    let mut unjoined = spec.version(2);
    unjoined.places.remove("both");
    unjoined.transitions.retain(|t| t.from != "both" && t.to != "both");
    unjoined.places.remove("done");
    let (done, _) = migrated(&run, unjoined, &Mapping::default());
    assert!(matches!(done.snapshot.finished(), Some(RunEnd::Completed { place, .. }) if *place == "sorry"));
}

// ---- children and retries ----

fn parts(version: u32, rule: Option<ChildRule>) -> Spec {
    let wait = Wait { signal: Some("GO".into()), children: rule, ..Wait::default() };
    Spec::new("parts")
        .version(version)
        .step("begin")
        .place("parts", Place::Wait(wait))
        .end("done")
        .signal("GO")
        .transition(Transition::new("start", "begin", "parts").action("start"))
        .on_signal("on", "parts", "GO", "done")
}

#[test]
fn migrated_wait_for_children_uses_its_new_rule() {
    let mut run = Driver::start(parts(1, Some(ChildRule::All)));
    run.done(&run.act(&Input::advance()), ActionResult { children: 3, ..ActionResult::default() });
    run.child("parts", 1, ChildEnd::Completed { output: json!("b") });
    let id = run.id_in("parts");
    let (mut still, _) = migrated(&run, parts(2, Some(ChildRule::N(2))), &Mapping::default());
    assert_eq!((still.activation_in("parts").status, still.id_in("parts")), (ActivationStatus::Waiting, id));
    still.child("parts", 0, ChildEnd::Completed { output: json!("a") });
    assert_eq!(still.activation_in("parts").status, ActivationStatus::Active, "its children still count");
    let (any, _) = migrated(&run, parts(2, Some(ChildRule::Any)), &Mapping::default());
    assert_eq!(any.activation_in("parts").status, ActivationStatus::Active);
    assert_eq!(any.activation_in("parts").received.unwrap()["children"][0]["child"], 1);
    let (_, never) = migrated(&run, parts(2, Some(ChildRule::N(4))), &Mapping::default());
    assert_eq!(never.stopped.unwrap().code, "childrenFailed");
}

#[test]
fn waits_with_and_without_children_differ_in_kind() {
    let mut run = Driver::start(parts(1, Some(ChildRule::All)));
    run.done(&run.act(&Input::advance()), ActionResult { children: 1, ..ActionResult::default() });
    let differs = |kind: &str, to_kind: &str| Obstacle::KindDiffers {
        place: "parts".into(),
        kind: kind.to_owned(),
        to: "parts".into(),
        to_kind: to_kind.to_owned(),
    };
    let found = obstacles(&run, parts(2, None), &Mapping::default());
    assert_eq!(found, [differs("wait for children", "wait")]);
    let mut plain = Driver::start(parts(1, None));
    plain.done(&plain.act(&Input::advance()), ActionResult::default());
    let found = obstacles(&plain, parts(2, Some(ChildRule::All)), &Mapping::default());
    assert_eq!(found, [differs("wait", "wait for children")]);
}

#[test]
fn migration_keeps_retry_counts_that_still_apply() {
    let working = |version, retry: Retry| {
        Spec::new("working")
            .version(version)
            .step("begin")
            .fork("fork", ["work"])
            .step("work")
            .join("all", Quorum::All, ["work"])
            .end("done")
            .auto("go", "begin", "fork")
            .auto("come", "work", "all")
            .transition(Transition::new("pay", "all", "done").action("pay").retry(retry))
    };
    let back = || Retry { attempts: 2, target: Some("begin".into()), ..Retry::default() };
    let mut run = Driver::start(working(1, back()));
    run.run_until_idle();
    let retry = RetryRequest::of(&run.act(&Input::advance()));
    run.go(&Input::Retried { retry, manual: false });
    run.advance();
    let (same, _) = migrated(&run, working(2, back()), &Mapping::default());
    assert_eq!(same.activation_in("work").retried, [("pay".into(), 1)].into());
    assert_eq!(same.snapshot.fork_instances()[0].retried, [("pay".into(), 1)].into());
    let (other, _) = migrated(&run, working(2, Retry { target: None, ..back() }), &Mapping::default());
    assert_eq!(
        (other.activation_in("work").retried, &other.snapshot.fork_instances()[0].retried),
        ([].into(), &[].into())
    );
}

// ---- obstacles ----

#[test]
fn all_obstacles_are_reported() {
    let mut run = Driver::start_with(review(1), json!({"n": "one"}));
    run.signal("GO", Value::Null);
    let spec = Spec::new("audit")
        .version(2)
        .step("draft")
        .end("done")
        .auto("on", "draft", "done")
        .context_schema(json!({"type": "object", "properties": {"n": {"type": "integer"}}}));
    let found = obstacles(&run, spec, &mapping(&[("drft", "done"), ("draft", "dne")]));
    let expected = [
        Obstacle::OtherWorkflow { from: "review".into(), to: "audit".into() },
        Obstacle::UnknownDestination {
            place: "draft".into(),
            to: "dne".into(),
            hint: " (did you mean `done`?)".to_owned(),
        },
        Obstacle::UnknownSource { place: "drft".into(), hint: " (did you mean `draft`?)".to_owned() },
    ];
    assert_eq!(found[..3], expected);
    assert!(matches!(found[3], Obstacle::InvalidContext { .. }));
    assert_eq!(found[4], Obstacle::PlaceRemoved { place: "review".into(), hint: String::new() });
    assert_eq!(found.len(), 5);
    let told = MigrationError(found).to_string();
    assert!(
        told.starts_with("the run cannot be migrated: `review` and `audit` are different workflows"),
        "{told}"
    );
    assert!(
        told.ends_with(
            "the run is in `review`, which the new definition does not have: map it to a new place"
        ),
        "{told}"
    );
}

#[test]
fn mapping_to_an_unknown_place_is_reported_once() {
    let run = Driver::start(review(1));
    let found = obstacles(&run, review(2), &mapping(&[("draft", "nowhere at all")]));
    let (place, to) = (Name::from("draft"), Name::from("nowhere at all"));
    assert_eq!(found, [Obstacle::UnknownDestination { place, to, hint: String::new() }]);
}

#[test]
fn missing_place_hints_at_a_similar_name() {
    let mut run = Driver::start(review(1));
    run.signal("GO", Value::Null);
    let spec = renamed(&review(2), &[("review", "reviews")]);
    let found = obstacles(&run, spec, &Mapping::default());
    let hint = " (did you mean `reviews`?)".to_owned();
    assert_eq!(found, [Obstacle::PlaceRemoved { place: "review".into(), hint }]);
}

#[test]
fn changed_place_kind_matters_only_where_the_run_is() {
    let waiting =
        review(2).place("review", Place::Wait(Wait { signal: Some("OK".into()), ..Wait::default() }));
    let mut run = Driver::start(review(1));
    migrated(&run, waiting.clone(), &Mapping::default());
    run.signal("GO", Value::Null);
    let differs = |place: &str, kind: &str, to: &str, to_kind: &str| Obstacle::KindDiffers {
        place: place.into(),
        kind: kind.to_owned(),
        to: to.into(),
        to_kind: to_kind.to_owned(),
    };
    let found = obstacles(&run, waiting, &Mapping::default());
    assert_eq!(found, [differs("review", "step", "review", "wait")]);
    let found = obstacles(&run, review(2), &mapping(&[("review", "done")]));
    assert_eq!(found, [differs("review", "step", "done", "end")]);
    assert_eq!(
        found[0].to_string(),
        "the run is in `review` (step), but `done` is of another kind (end): map it to a place of the same kind"
    );
    let open = Driver::start(forked(1, join(Quorum::All, false)));
    let spec = forked(2, join(Quorum::All, false));
    let found = obstacles(&open, spec, &mapping(&[("fork", "a"), ("a", "both")]));
    assert_eq!(found, [differs("a", "step", "both", "join"), differs("fork", "fork", "a", "step")]);
}

#[test]
fn ended_run_is_not_migrated() {
    let mut run = Driver::start(review(1));
    run.go(&Input::Cancelled);
    assert_eq!(obstacles(&run, review(2), &Mapping::default()), [Obstacle::Terminal]);
}

#[test]
fn same_or_wrong_source_definition_is_refused() {
    let run = Driver::start(review(1));
    assert_eq!(obstacles(&run, review(1), &Mapping::default()), [Obstacle::SameDefinition]);
    let (from, to) = (build(review(3)), build(review(2)));
    let refused = migrate(&from, &to, &run.snapshot, &Mapping::default(), at(0)).unwrap_err();
    let [Obstacle::OtherDefinition { expected, found }] = &refused.0[..] else { panic!("{refused}") };
    assert_eq!(*expected, format!("review {}", from.hash().short()));
    assert_eq!(*found, format!("review {}", run.definition.hash().short()));
}

#[test]
fn ended_branch_with_an_invalid_output_is_an_obstacle() {
    let ends = |version, schema: Value| {
        forked(version, join(Quorum::Any, false)).end_with("sorry", json!("text")).output_schema(schema)
    };
    let mut run = Driver::start(ends(1, json!({})));
    run.signal("STOP", Value::Null);
    migrated(&run, ends(2, json!({})), &Mapping::default());
    let found = obstacles(&run, ends(2, json!({"type": ["null", "integer"]})), &Mapping::default());
    assert!(matches!(&found[..], [Obstacle::InvalidResult { place, .. }] if *place == "sorry"), "{found:?}");
    let (renamed, _) =
        migrated(&run, renamed(&ends(2, json!({})), &[("sorry", "pity")]), &mapping(&[("sorry", "pity")]));
    assert_eq!(serde_json::to_value(&renamed.snapshot).unwrap()["lastEnd"]["place"], "pity");
    let found = obstacles(&run, ends(2, json!({})), &mapping(&[("sorry", "a")]));
    assert!(matches!(&found[..], [Obstacle::KindDiffers { .. }]), "{found:?}");
}

#[test]
fn mapping_and_obstacles_serialize_to_json() {
    let full = Mapping { context: Some(json!({"n": 1})), ..mapping(&[("a", "b")]) };
    let stored = serde_json::to_value(&full).unwrap();
    assert_eq!(stored, json!({"places": {"a": "b"}, "context": {"n": 1}}));
    assert_eq!(serde_json::from_value::<Mapping>(stored).unwrap(), full);
    assert_eq!(serde_json::from_value::<Mapping>(json!({})).unwrap(), Mapping::default());
    assert_eq!(serde_json::to_value(Mapping::default()).unwrap(), json!({}));
    assert!(serde_json::from_value::<Mapping>(json!({"place": {}})).is_err());
    let obstacle = Obstacle::PlaceRemoved { place: "a".into(), hint: String::new() };
    let told = serde_json::to_value(MigrationError(vec![Obstacle::Terminal, obstacle])).unwrap();
    assert_eq!(told, json!([{"code": "terminal"}, {"code": "placeRemoved", "place": "a", "hint": ""}]));
}

// ---- random workflows ----

/// Returns the workflow with some places renamed.
fn renamed(spec: &Spec, names: &[(&str, &str)]) -> Spec {
    let names: BTreeMap<_, _> = names.iter().map(|(from, to)| (*from, Name::from(*to))).collect();
    let name = |place: &Name| names.get(place.as_str()).unwrap_or(place).clone();
    let all = |places: &[Name]| places.iter().map(name).collect();
    fn guard(of: &Guard, name: &impl Fn(&Name) -> Name) -> Guard {
        let inner = |guards: &[Guard]| guards.iter().map(|inner| guard(inner, name)).collect();
        match of {
            Guard::Completed(place) => Guard::Completed(name(place)),
            Guard::Active(place) => Guard::Active(name(place)),
            Guard::And(guards) => Guard::And(inner(guards)),
            Guard::Or(guards) => Guard::Or(inner(guards)),
            Guard::Not(inner) => Guard::Not(Box::new(guard(inner, name))),
            Guard::Expr(_) | Guard::Named(_) => of.clone(),
        }
    }
    let place = |place: &Place| match place {
        Place::Fork(fork) => {
            Place::Fork(stepwell_core::spec::Fork { branches: all(&fork.branches), each: None })
        }
        Place::Join(join) => Place::Join(Join { of: all(&join.of), ..join.clone() }),
        Place::Wait(wait) => {
            Place::Wait(Wait { error_place: wait.error_place.as_ref().map(name), ..wait.clone() })
        }
        Place::Loop(_) | Place::Catch(_) => unreachable!("these workflows have none"),
        Place::Step {} | Place::End { .. } => place.clone(),
    };
    let retry = |retry: &Retry| Retry {
        place: retry.place.as_ref().map(name),
        target: retry.target.as_ref().map(name),
        ..retry.clone()
    };
    let transition = |t: &Transition| Transition {
        from: name(&t.from),
        to: name(&t.to),
        guard: t.guard.as_ref().map(|of| guard(of, &name)),
        retry: t.retry.as_ref().map(retry),
        error_place: t.error_place.as_ref().map(name),
        ..t.clone()
    };
    Spec {
        initial: spec.initial.as_ref().map(name),
        places: spec.places.iter().map(|(key, value)| (name(key), place(value))).collect(),
        transitions: spec.transitions.iter().map(transition).collect(),
        ..spec.clone()
    }
}

/// Renames every place. The order of the names stays the same.
fn all_renamed(spec: &Spec) -> (Spec, Mapping) {
    let names: Vec<_> = spec.places.keys().map(|name| (name.to_string(), format!("x{name}"))).collect();
    let names: Vec<_> = names.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    (renamed(spec, &names), mapping(&names))
}

/// Returns the snapshot as JSON with the new place names and without the hash of the definition.
fn as_renamed(snapshot: &Snapshot, mapping: &Mapping) -> Value {
    let mut saved = serde_json::to_value(snapshot).expect("a snapshot is plain data");
    let rename = |name: &mut Value| {
        let to = name.as_str().and_then(|name| mapping.places.get(name)).map(ToString::to_string);
        *name = to.map_or_else(|| name.clone(), Value::from);
    };
    for pointer in ["activations", "forkInstances"] {
        for part in saved.get_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten() {
            part.get_mut("place").map(rename);
            part.get_mut("fork").map(rename);
            // Error messages keep the old place names.
            part.pointer_mut("/locals/error/message").map(Value::take);
        }
    }
    saved["completed"].as_array_mut().into_iter().flatten().for_each(rename);
    for end in ["finished", "lastEnd"] {
        saved.get_mut(end).and_then(|end| end.get_mut("place")).map(rename);
    }
    saved["definitionHash"] = Value::Null;
    saved
}

proptest! {
    #[test]
    fn migration_that_renames_places_changes_no_decision(
        plan in plan(),
        past in happenings(),
        future in happenings(),
    ) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        run.live(&past);
        let (spec, mapping) = all_renamed(run.definition.spec());
        let to = spec.build_within(&limits()).expect("only the names are new");
        let change = migrate(&run.definition, &to, &run.snapshot, &mapping, run.now)
            .map_err(|refused| TestCaseError::fail(refused.to_string()))?;
        let mut taken = Run { definition: to, snapshot: change.snapshot, ..run.clone() };
        // An empty patch, so that both runs have the same version.
        let nothing = Input::Patched { patch: Patch::none() };
        let Ok(Decision::Change(same)) = run.decide(&nothing) else { panic!("it changes nothing") };
        run.snapshot = same.snapshot;
        prop_assert_eq!(as_renamed(&run.snapshot, &mapping), as_renamed(&taken.snapshot, &mapping));
        for happening in &future {
            run.go(happening);
            taken.go(happening);
            check_sound(&taken)?;
            prop_assert_eq!(as_renamed(&run.snapshot, &mapping), as_renamed(&taken.snapshot, &mapping));
        }
    }

    #[test]
    fn migration_gives_a_valid_run_or_is_refused(
        plan in plan(),
        other in plan(),
        seed in any::<u64>(),
        past in happenings(),
        future in happenings(),
    ) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        run.live(&past);
        for spec in [plan.varied(seed).spec(), other.spec()] {
            let Ok(to) = spec.build_within(&limits()) else { continue };
            let before = bytes(&run.snapshot);
            let taken = migrate(&run.definition, &to, &run.snapshot, &random_mapping(&run, &to, seed), run.now);
            prop_assert_eq!(&bytes(&run.snapshot), &before);
            let Ok(change) = taken else { continue };
            prop_assert_eq!(change.snapshot.version(), run.snapshot.version() + 1);
            for ended in &change.ended {
                prop_assert!(change.snapshot.activation(*ended).is_none());
            }
            let mut taken = Run { definition: to, snapshot: change.snapshot, ..run.clone() };
            check_sound(&taken)?;
            for happening in &future {
                let before = taken.clone();
                let Some(decision) = taken.go(happening) else { continue };
                check_decision(&before, &before.event(happening).expect("it was decided"), &decision)?;
                check_sound(&taken)?;
            }
        }
    }
}

/// Returns an empty mapping, or one of the run's places to arbitrary places.
fn random_mapping(run: &Run, to: &Definition, seed: u64) -> Mapping {
    let mut mapping = Mapping::default();
    let new: Vec<_> = to.spec().places.keys().collect();
    for (number, old) in run.snapshot.current_places().into_iter().enumerate() {
        let drawn = seed.rotate_left(number as u32 * 7) as usize;
        if !seed.is_multiple_of(3) && !drawn.is_multiple_of(4) {
            mapping.places.insert(old, new[drawn / 4 % new.len()].clone());
        }
    }
    mapping
}

#[test]
fn random_migrations_cover_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let (mut taken, mut caught_up, mut no_way, mut differs) = (0, 0, 0, 0);
    for seed in 0..400 {
        let plan = plan().new_tree(&mut runner).expect("nothing is filtered").current();
        let past = happenings().new_tree(&mut runner).expect("nothing is filtered").current();
        let Some(mut run) = begun(&plan) else { continue };
        run.live(&past);
        let Ok(to) = plan.varied(seed).spec().build_within(&limits()) else { continue };
        match migrate(&run.definition, &to, &run.snapshot, &random_mapping(&run, &to, seed), run.now) {
            Ok(change) => {
                taken += 1;
                let same_places = change.snapshot.activations().len() == run.snapshot.activations().len();
                caught_up += u32::from(!same_places);
            }
            Err(MigrationError(found)) => {
                no_way += u32::from(found.iter().any(|o| matches!(o, Obstacle::CannotContinue { .. })));
                differs += u32::from(found.iter().any(|o| matches!(o, Obstacle::KindDiffers { .. })));
            }
        }
    }
    let seen = [taken, caught_up, no_way, differs];
    assert!(taken >= 30 && caught_up >= 1 && no_way >= 3 && differs >= 10, "{seen:?}");
}
