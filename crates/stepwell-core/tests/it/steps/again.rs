//! Trying again: which errors a retry covers, and what it counts.

use serde_json::json;
use stepwell_core::Failure;
use stepwell_core::snapshot::ChildEnd;

use super::{World, fails};
use crate::driver::at;

#[test]
fn a_retry_around_a_retry_tries_the_whole_again() {
    let text = "
steps:
  - id: outer
    type: control.if
    condition: true
    retry: { attempts: 1, delay: 1s }
    onError: [{ id: gave-up, type: control.return, value: { $expr: error.code } }]
    then:
      - id: inner
        type: control.if
        condition: true
        retry: { attempts: 2, delay: 1s, backoff: fixed }
        then: [{ id: call, type: action.call, action: flaky }]
  - { id: done, type: control.return, value: done }
";
    let well = World::start(text, json!({})).action("flaky", fails(5, "down")).run();
    assert_eq!((well.output(), well.called("flaky").len()), (json!("done"), 6));
    let badly = World::start(text, json!({})).action("flaky", fails(9, "down")).run();
    assert_eq!((badly.output(), badly.called("flaky").len()), (json!("down"), 6));
}

#[test]
fn a_block_that_was_too_slow_is_tried_again() {
    let text = "
steps:
  - id: wait
    type: wait.signal
    signal: GO
    timeout: 10s
    retry: { attempts: 2, delay: 1s, backoff: fixed }
    onError: [{ id: late, type: control.return, value: { $expr: error.code } }]
";
    let world = World::start(text, json!({})).run();
    assert_eq!((world.output(), world.now), (json!("timeout"), at(32_000)));
    let block = text
        .replace("type: wait.signal", "type: control.if\n    condition: true")
        .replace("    signal: GO", "    then: [{ id: inner, type: wait.signal, signal: GO }]");
    let world = World::start(&block, json!({})).run();
    assert_eq!((world.output(), world.now), (json!("timeout"), at(32_000)));
}

#[test]
fn another_workflow_that_fails_is_tried_again() {
    let text = "
steps:
  - id: child
    type: workflow.call
    workflow: other
    retry: { attempts: 1, delay: 0 }
  - { id: done, type: control.return, value: { $expr: vars.child } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    world.child_ends("child.child", ChildEnd::Failed { error: Failure::new("down", "down") });
    assert_eq!(world.called("workflow.call").len(), 2, "{:?}", world.stopped);
    world.child_ends("child.child", ChildEnd::Completed { output: json!(1) });
    assert_eq!(world.output(), json!(1));
}

#[test]
fn a_failure_of_the_workflows_own_is_tried_again_where_the_author_says_so() {
    let text = "
steps:
  - id: poll
    type: control.try
    retry: { attempts: 3, delay: 1s, backoff: fixed, retryOn: [notReady] }
    body:
      - { id: ask, type: action.call, action: ask }
      - { id: not-yet, type: control.fail, condition: { $expr: 'vars.ask < 3' }, code: notReady }
    catch: { codes: [other], steps: [] }
  - { id: done, type: control.return, value: { $expr: vars.ask } }
";
    let mut asked = 0;
    let world = World::start(text, json!({})).action("ask", move |_| {
        asked += 1;
        Ok(json!(asked))
    });
    assert_eq!(world.run().output(), json!(3));
}

#[test]
fn what_is_of_no_use_is_not_tried_again_also_when_it_comes_from_inside() {
    let text = "
steps:
  - id: outer
    type: control.if
    condition: true
    retry: { attempts: 5, delay: 0 }
    then:
      - id: inner
        type: control.try
        body: [{ id: call, type: action.call, action: broken }]
        catch: { codes: [other], steps: [] }
";
    let world =
        World::start(text, json!({})).action("broken", |_| Err(Failure::new("broken", "for good").finally()));
    let world = world.run();
    assert_eq!(world.called("broken").len(), 1);
    assert_eq!(world.stopped, Some(Failure::new("broken", "for good").finally()));
}

#[test]
fn each_round_has_all_its_tries() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2, 3]
    onItemError: collect
    saveAs: all
    body:
      - id: block
        type: control.if
        condition: true
        retry: { attempts: 1, delay: 0 }
        then: [{ id: call, type: action.call, action: flaky, input: { $expr: item } }]
  - { id: done, type: control.return, value: { $expr: vars.all.status } }
";
    let mut calls = 0;
    let world = World::start(text, json!({})).action("flaky", move |input| {
        calls += 1;
        if calls % 2 == 1 || *input == json!(2) {
            Err(Failure::new("down", "down"))
        } else {
            Ok(input.clone())
        }
    });
    let world = world.run();
    assert_eq!(world.output(), json!(["completed", "failed", "completed"]));
    assert_eq!(world.called("flaky").len(), 6);
}

#[test]
fn very_many_tries_do_not_make_the_pause_too_large_for_a_number() {
    let text = "
steps:
  - id: block
    type: control.if
    condition: true
    retry: { attempts: 1100, delay: 1s, maxDelay: 2s }
    then: [{ id: call, type: action.call, action: flaky }]
  - { id: done, type: control.return, value: done }
";
    assert_eq!(
        World::start(text, json!({})).action("flaky", fails(1_100, "down")).run().output(),
        json!("done")
    );
}

#[test]
fn a_loop_that_takes_too_long_is_ended_and_what_it_has_done_stays() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2, 3]
    timeout: 90s
    onError: [{ id: late, type: control.return, value: { code: { $expr: error.code }, last: { $expr: vars.last } } }]
    body:
      - { id: nap, type: wait.sleep, for: 40s }
      - { id: set, type: vars.set, values: { last: { $expr: item } } }
";
    let world = World::start(text, json!({})).run();
    assert_eq!(world.output(), json!({"code": "timeout", "last": 2}));
    assert_eq!(world.now, at(90_000));
    assert!(world.snapshot.passings().is_empty());
}

#[test]
fn a_retry_keeps_what_was_wrong_with_the_input() {
    let text = "
steps:
  - id: block
    type: control.try
    body: [{ id: call, type: action.call, action: strict }]
    catch: { codes: [other], steps: [] }
    onError: [{ id: done, type: control.return, value: { $expr: error } }]
";
    let failure = Failure { errors: Vec::new(), ..Failure::new("strict", "no") };
    let told = failure.clone();
    let world = World::start(text, json!({})).action("strict", move |_| Err(told.clone())).run();
    assert_eq!(world.output(), serde_json::to_value(failure).expect("it is plain data"));
}
