//! Waiting for signals, events, tasks, sleeps and child workflows.

use serde_json::json;
use stepwell_core::Failure;
use stepwell_core::snapshot::ChildEnd;

use super::World;
use crate::driver::at;

#[test]
fn wait_takes_its_signal_or_times_out() {
    let text = "
steps:
  - id: wait
    type: wait.signal
    signal: ANSWER
    payload: { type: object, required: [ok] }
    timeout: PT1H
    onTimeout: [{ id: late, type: control.return, value: late }]
  - { id: done, type: control.return, value: { $expr: vars.wait.ok } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    assert!(world.signal("ANSWER", json!({})).is_err(), "it does not fit");
    world.signal("ANSWER", json!({"ok": true})).expect("it is waited for");
    assert_eq!(world.output(), json!(true));
    let late = World::start(text, json!({})).run();
    assert_eq!((late.output(), late.now), (json!("late"), at(3_600_000)));
}

#[test]
fn timeout_without_a_handler_is_an_error() {
    let text = "
steps:
  - { id: wait, type: wait.signal, signal: ANSWER, timeout: { $expr: '$string(payload.minutes) & \"m\"' } }
";
    let world = World::start(text, json!({"minutes": 2})).run();
    assert_eq!(world.stopped.map(|failure| failure.code), Some("timeout".to_owned()));
    assert_eq!(world.now, at(120_000));
}

#[test]
fn event_for_another_run_is_refused() {
    let text = "
steps:
  - id: wait
    type: wait.event
    eventName: PAID
    correlation: { event: event.order, run: payload.order }
    filter: { $expr: 'event.cents >= 100' }
  - { id: done, type: control.return, value: { $expr: vars.wait.cents } }
";
    let mut world = World::start(text, json!({"order": "o1"}));
    world.settle_now();
    assert!(world.signal("PAID", json!({"order": "o2", "cents": 500})).is_err());
    assert!(world.signal("PAID", json!({"order": "o1", "cents": 5})).is_err());
    world.signal("PAID", json!({"order": "o1", "cents": 500})).expect("it is this run's");
    assert_eq!(world.output(), json!(500));
}

#[test]
fn task_shows_its_prompt_and_checks_the_answer() {
    let text = "
steps:
  - id: review
    type: human.task
    title: { $expr: '\"Review \" & payload.name' }
    form: { type: object, required: [approved], properties: { approved: { type: boolean } } }
    answerers: [role:manager]
  - { id: done, type: control.return, value: { $expr: vars.review.approved } }
";
    let mut world = World::start(text, json!({"name": "the draft"}));
    world.settle_now();
    assert!(world.is_waiting());
    let asked = &world.snapshot.activations()[0].locals["prompt"];
    assert_eq!(asked, &json!({"title": "Review the draft"}));
    assert!(world.signal("review", json!({"approved": "yes"})).is_err());
    world.signal("review", json!({"approved": true})).expect("it fits");
    assert_eq!(world.output(), json!(true));
}

#[test]
fn sleep_ends_after_a_duration_or_at_a_time() {
    let text = |how: &str| format!("steps: [{{ id: nap, type: wait.sleep, {how} }}]");
    assert_eq!(World::start(&text("for: 90s"), json!({})).run().now, at(90_000));
    assert_eq!(
        World::start(&text("for: { $expr: payload.wait }"), json!({"wait": "PT2M"})).run().now,
        at(120_000)
    );
    let until =
        World::start(&text("until: { $expr: payload.at }"), json!({"at": at(5_000).to_string()})).run();
    assert_eq!(until.now, at(5_000));
}

#[test]
fn child_workflow_gives_its_result_or_error() {
    let text = "
steps:
  - id: child
    type: workflow.call
    workflow: other
    input: { $expr: payload }
    onError: continue
  - { id: done, type: control.return, value: { $expr: vars.child } }
";
    let mut world = World::start(text, json!({"a": 1}));
    world.settle_now();
    assert_eq!(world.called("workflow.call"), [&json!({"workflow": "other", "input": {"a": 1}})]);
    world.child_ends("child.child", ChildEnd::Completed { output: json!({"b": 2}) });
    assert_eq!(world.output(), json!({"b": 2}));
    let mut failed = World::start(text, json!({"a": 1}));
    failed.settle_now();
    failed.child_ends("child.child", ChildEnd::Failed { error: Failure::new("down", "down") });
    assert_eq!(failed.output()["error"]["code"], json!("childrenFailed"));
}
