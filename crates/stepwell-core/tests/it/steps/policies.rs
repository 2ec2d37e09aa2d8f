//! Policies of steps: forks that are complete early or tolerate failures, retries with jitter and a budget, calls made
//! at most once, heartbeats and failed waits.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::{Value, json};
use stepwell_core::spec::{Place, Quorum, Tolerance, TransitionTrigger};
use stepwell_core::{Failure, Input};

use super::{World, document, fails, picky, problems};
use crate::driver::at;

/// Runs a parallel loop over items, some of which fail, and returns `{ list }` or the error that is caught.
fn each(policy: &str, items: &Value) -> World {
    let text = format!(
        "
steps:
  - id: guarded
    type: control.try
    body:
      - id: each
        type: control.forEach
        items: {{ $expr: payload.items }}
        parallel: true
        saveAs: list
        {policy}
        body: [{{ id: work, type: action.call, action: work, input: {{ bad: {{ $expr: item }} }} }}]
    catch: [{{ id: caught, type: control.return, value: {{ $expr: error }} }}]
  - {{ id: done, type: control.return, value: {{ $expr: 'vars.list.status[] ?? []' }} }}
"
    );
    World::start(&text, json!({"items": items})).action("work", picky).run()
}

#[test]
fn items_may_fail_up_to_the_tolerance() {
    let items = json!([false, true, false, true]);
    let statuses = json!(["completed", "failed", "completed", "failed"]);
    for policy in ["tolerate: 2", "tolerate: 50%", "{ complete: all, tolerate: 3 }", "tolerate: 100%"] {
        let policy = policy.trim_matches(|c| c == '{' || c == '}').trim().replace(", ", "\n        ");
        assert_eq!(each(&policy, &items).output(), statuses, "{policy}");
    }
    for (policy, counts) in [
        ("tolerate: 1", "2 of 4 branches failed and 1 completed; at most 1 may fail"),
        ("tolerate: 49%", "2 of 4 branches failed and 1 completed; at most 49% may fail"),
        ("tolerate: 0", "1 of 4 branches failed"),
        ("complete: 3", "2 of 4 branches failed and 1 completed; 3 must complete, at most 2 can"),
    ] {
        // Items start in order, so the fourth one has not ended when the third has.
        let items = json!([false, true, true, false]);
        let error = each(policy, &items).output();
        assert_eq!(error["code"], "tooManyFailures", "{policy}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(counts) && message.starts_with("`each`"), "{policy}: {message}");
    }
}

#[test]
fn loop_over_fewer_items_than_must_complete_fails_at_once() {
    let empty = each("complete: first", &json!([]));
    assert_eq!(empty.output()["code"], "tooManyFailures");
    let few = each("complete: { successes: 3 }", &json!([false, false]));
    assert_eq!((&few.output()["code"], few.calls.len()), (&json!("tooManyFailures"), 0));
    assert_eq!(each("tolerate: 0", &json!([])).output(), json!([]));
}

/// Three branches that wait for signals.
fn race(policy: &str) -> World {
    let text = format!(
        "
steps:
  - id: both
    type: control.parallel
    saveAs: all
    {policy}
    branches:
      - [{{ id: a, type: wait.signal, signal: A }}, {{ id: fail-a, type: control.fail, condition: vars.a = 0, code: bad }}]
      - [{{ id: b, type: wait.signal, signal: B }}, {{ id: fail-b, type: control.fail, condition: vars.b = 0, code: bad }}]
      - [{{ id: c, type: wait.signal, signal: C }}, {{ id: fail-c, type: control.fail, condition: vars.c = 0, code: bad }}]
  - {{ id: done, type: control.return, value: {{ $expr: 'vars.all.status[]' }} }}
"
    );
    let mut world = World::start(&text, json!({}));
    world.settle_now();
    world
}

#[test]
fn first_success_ends_the_other_branches() {
    let mut world = race("complete: first");
    world.signal("B", json!(0)).unwrap();
    assert_eq!(world.places(), ["a", "both.join", "c"], "a failed branch does not end the step");
    world.signal("C", json!(1)).unwrap();
    assert_eq!(world.output(), json!(["ended", "failed", "completed"]));
    let mut world = race("complete: first");
    for signal in ["A", "B"] {
        world.signal(signal, json!(0)).unwrap();
    }
    world.signal("C", json!(0)).unwrap();
    let error = world.stopped.clone().unwrap();
    assert_eq!((error.code.as_str(), error.is_final), ("tooManyFailures", false));
    assert_eq!(world.places(), ["both.unhandled"], "no branch stays active");
    world.retry();
    assert_eq!(world.stopped, Some(error), "a retry only raises the error again");
}

/// A failed branch that an operator moved out of the join still counted as failed.
#[test]
fn failed_branch_that_is_moved_back_counts_once() {
    let mut world = race("tolerate: 1");
    world.signal("A", json!(0)).unwrap();
    world.move_to("both.join", "a");
    assert_eq!(world.places(), ["a", "b", "c"]);
    for (signal, payload) in [("A", 0), ("B", 1), ("C", 1)] {
        world.signal(signal, json!(payload)).unwrap();
    }
    assert_eq!(world.output(), json!(["failed", "completed", "completed"]));
}

#[test]
fn n_of_the_branches_complete_the_step() {
    let mut world = race("complete: 2");
    world.signal("C", json!(1)).unwrap();
    world.signal("A", json!(1)).unwrap();
    assert_eq!(world.output(), json!(["completed", "ended", "completed"]));
    let mut world = race("complete: 2");
    world.signal("A", json!(0)).unwrap();
    world.signal("B", json!(0)).unwrap();
    assert_eq!(world.stopped.unwrap().code, "tooManyFailures", "only one of two can complete");
    let mut world =
        race("{ complete: 1, tolerate: 0 }".trim_matches(['{', '}', ' ']).replace(", ", "\n    ").as_str());
    world.signal("A", json!(0)).unwrap();
    assert_eq!(world.stopped.unwrap().code, "tooManyFailures", "the tolerance comes before the quorum");
}

#[test]
fn policies_compile_onto_quorum_and_tolerance() {
    let join = |policy: &str| {
        let text = format!(
            "
steps:
  - id: both
    type: control.parallel
    {policy}
    branches: [[{{ type: wait.sleep, for: 1s }}], [{{ type: wait.sleep, for: 2s }}]]
"
        );
        match document(&text).definition().spec().places.get("both.join") {
            Some(Place::Join(join)) => (join.quorum, join.tolerate, join.cancel_rest),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(join("complete: all"), (Quorum::All, None, false));
    assert_eq!(join("complete: first"), (Quorum::Any, Some(Tolerance::Any), true));
    assert_eq!(join("complete: 2"), (Quorum::N(2), Some(Tolerance::Any), true));
    assert_eq!(join("tolerate: 1"), (Quorum::All, Some(Tolerance::Count(1)), true));
    assert_eq!(join("tolerate: 25%"), (Quorum::All, Some(Tolerance::Percent(25)), true));
}

#[test]
fn invalid_policies_are_reported_with_what_to_write() {
    let parallel = |policy: &str| {
        format!(
            "steps: [{{ id: both, type: control.parallel, {policy}, branches: [[{{ type: wait.sleep, for: 1s }}]] }}]"
        )
    };
    let call = |policy: &str| format!("steps: [{{ id: a, type: action.call, action: x, {policy} }}]");
    let wait = |policy: &str| format!("steps: [{{ id: a, type: wait.signal, signal: S, {policy} }}]");
    for (text, code, message) in [
        (parallel("complete: 0"), "value", "must be at least 1"),
        (parallel("complete: 2"), "value", "needs 2 branches, but there are only 1"),
        (parallel("complete: most"), "type", "`all`, `first`, a number or `{ successes: N }`"),
        (parallel("tolerate: 120%"), "value", "a percentage such as `25%` (got `120%`)"),
        (parallel("complete: first, errors: failFast"), "conflict", "remove `errors`"),
        (
            "steps: [{ id: a, type: control.forEach, items: [1], complete: first, body: [{ type: wait.sleep, for: 1s }] }]"
                .to_owned(),
            "missing",
            "need `parallel`",
        ),
        (call("retry: { attempts: 1, factor: 0.5 }"), "value", "between 1 and 100 (got 0.5)"),
        (call("retry: { attempts: 1, factor: 3, backoff: fixed }"), "noEffect", "do not grow"),
        (call("retry: { attempts: 1, jitter: some }"), "value", "`none`, `full`, `equal` or a percentage"),
        (call("retry: { attempts: 1, jitter: 0% }"), "value", "from `1%` to `100%`"),
        (call("retry: { attempts: 1, budget: { $expr: payload.x } }"), "type", "a fixed duration"),
        (call("delivery: exactlyOnce"), "value", "atLeastOnce, atMostOnce"),
        (wait("heartbeat: { $expr: payload.x }"), "type", "a fixed duration"),
    ] {
        let found = problems(&text);
        let problem = found.0.iter().find(|problem| problem.code == code);
        let problem = problem.unwrap_or_else(|| panic!("{text}: {found}"));
        assert!(problem.message.contains(message), "{text}: {found}");
    }
}

/// Returns the times of the attempts of a block in milliseconds, and the code of its error.
fn attempts(retry: &str) -> (Vec<u64>, String) {
    let text = format!(
        "steps: [{{ id: block, type: control.if, condition: true, retry: {retry}, then: [{{ id: call, type: action.call, action: work }}] }}]"
    );
    let calls = Rc::new(Cell::new(0));
    let counted = calls.clone();
    let mut world = World::start(&text, json!({})).action("work", move |_| {
        counted.set(counted.get() + 1);
        Err(Failure::new("busy", "try later"))
    });
    let mut times = Vec::new();
    while world.stopped.is_none() {
        let before = calls.get();
        world.step();
        if calls.get() > before {
            times.push(world.now.ms_since(at(0)));
        }
    }
    (times, world.stopped.map(|error| error.code).unwrap_or_default())
}

#[test]
fn blocks_retry_like_calls_with_factor_jitter_and_budget() {
    for (retry, expected) in [
        ("{ attempts: 3, delay: 1s, factor: 3 }", vec![0, 1_000, 4_000, 13_000]),
        ("{ attempts: 9, delay: 1s, factor: 1.5, budget: 5s }", vec![0, 1_000, 2_500, 4_750]),
        ("{ attempts: 9, delay: 2s, backoff: fixed, budget: 4s }", vec![0, 2_000, 4_000]),
    ] {
        let (times, code) = attempts(retry);
        assert_eq!((times, code.as_str()), (expected, "busy"), "{retry}");
    }
    let (times, _) = attempts("{ attempts: 6, delay: 1s, backoff: fixed, jitter: equal }");
    let delays: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(delays.len(), 6);
    assert!(delays.iter().all(|delay| (500..=1_000).contains(delay)), "{delays:?}");
    assert!(delays.windows(2).any(|pair| pair[0] != pair[1]), "{delays:?}");
    assert_eq!(times, attempts("{ attempts: 6, delay: 1s, backoff: fixed, jitter: equal }").0);
}

#[test]
fn budget_of_a_block_passes_the_last_error_on() {
    let text = "
steps:
  - id: block
    type: control.if
    condition: true
    retry: { attempts: 9, delay: 1s, budget: 2s }
    onError: [{ id: told, type: control.return, value: { $expr: error } }]
    then: [{ id: call, type: action.call, action: work }]
";
    let world = World::start(text, json!({})).action("work", fails(20, "busy")).run();
    assert_eq!(world.output(), json!({"code": "busy", "message": "as told", "final": false}));
    assert_eq!(world.calls.len(), 2, "the third attempt would start after 3 s");
}

#[test]
fn default_retries_compile_as_before() {
    let trigger = |retry: &str| {
        let text = format!(
            "steps: [{{ id: block, type: control.if, condition: true, retry: {retry}, then: [{{ type: wait.sleep, for: 1s }}] }}]"
        );
        let document = document(&text);
        let again = document.definition().spec().transitions.iter().find(|one| one.id == *"block.again");
        again.unwrap().on.clone()
    };
    assert!(matches!(trigger("{ attempts: 3 }"), TransitionTrigger::After(_)));
    assert!(matches!(trigger("{ attempts: 3, factor: 2, jitter: none }"), TransitionTrigger::After(_)));
    assert!(matches!(trigger("{ attempts: 3, jitter: full }"), TransitionTrigger::Backoff(_)));
}

#[test]
fn interrupted_call_is_retried_only_if_its_policy_lists_it() {
    let once = |retry: &str| {
        let text = format!(
            "steps: [{{ id: call, type: action.call, action: work, delivery: atMostOnce, retry: {retry} }}]"
        );
        World::start(&text, json!({})).action("work", fails(1, "interrupted")).run()
    };
    assert_eq!(once("3").stopped.unwrap().code, "interrupted");
    let listed = once("{ attempts: 1, retryOn: [interrupted] }");
    assert_eq!((listed.stopped, listed.calls.len()), (None, 2));
    let block = "
steps:
  - id: block
    type: control.if
    condition: true
    retry: { attempts: 3, delay: 1s }
    then: [{ id: call, type: action.call, action: work, delivery: atMostOnce }]
";
    let world = World::start(block, json!({})).action("work", fails(1, "interrupted")).run();
    assert_eq!((world.stopped.unwrap().code.as_str(), world.calls.len()), ("interrupted", 1));
}

#[test]
fn failed_wait_is_an_error_of_its_step() {
    let text = "
steps:
  - id: ask
    type: wait.signal
    signal: S
    retry: { attempts: 1, delay: 0, retryOn: [again] }
    onError: [{ id: told, type: control.return, value: { $expr: error.code } }]
  - { id: done, type: control.return, value: { $expr: vars.ask } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    world.fail_wait("ask", "again");
    assert_eq!(world.places(), ["ask"], "the step is retried");
    world.fail_wait("ask", "rejected");
    assert_eq!(world.output(), "rejected");
    let mut plain = World::start("steps: [{ id: ask, type: wait.signal, signal: S }]", json!({}));
    plain.settle_now();
    plain.fail_wait("ask", "rejected");
    assert_eq!(
        (plain.stopped.take().unwrap().code.as_str(), plain.places()),
        ("rejected", vec!["ask".to_owned()])
    );
    plain.signal("S", json!(1)).expect("the wait stays open");
}

#[test]
fn heartbeat_restarts_only_its_own_timer() {
    let text = "
steps:
  - { id: ask, type: human.task, title: Go?, heartbeat: 10s, timeout: 25s, onTimeout: [{ id: late, type: control.return, value: late }] }
  - { id: done, type: control.return, value: answered }
";
    let due = |world: &World| {
        let activation = world.snapshot.activations()[0].clone();
        world.snapshot.heartbeat_due(&world.definition, activation.id).unwrap().ms_since(at(0))
    };
    let mut world = World::start(text, json!({}));
    world.settle_now();
    assert_eq!(due(&world), 10_000);
    let id = world.snapshot.activations()[0].id;
    for ms in [9_000, 18_000, 8_000] {
        world.snapshot.restart_heartbeat(&world.definition.clone(), id, at(ms));
    }
    assert_eq!(due(&world), 28_000, "a heartbeat never shortens the time");
    world.settle();
    assert_eq!((world.output(), world.now.ms_since(at(0))), (json!("late"), 25_000));
    let mut world = World::start(text, json!({}));
    world.settle();
    let stopped = world.stopped.unwrap();
    assert_eq!((stopped.code.as_str(), world.now.ms_since(at(0))), ("heartbeatTimeout", 10_000));
    let refused = Input::WaitFailed { activation: 99, failure: Failure::new("x", "y") };
    let mut done = World::start("steps: [{ id: ask, type: wait.sleep, for: 1s }]", json!({}));
    done.settle_now();
    assert!(done.refuses(&refused));
}
