//! Retries: the errors they cover and the attempts they count.

use serde_json::json;
use stepwell_core::Failure;
use stepwell_core::snapshot::ChildEnd;

use super::{World, fails};
use crate::driver::at;

#[test]
fn outer_retry_repeats_the_inner_retries() {
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
fn timed_out_block_is_retried() {
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
fn failed_child_workflow_is_retried() {
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
fn control_fail_is_retried_if_its_code_is_listed() {
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
fn final_failure_inside_a_block_is_not_retried() {
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
    let world = World::start(text, json!({}))
        .action("broken", |_| Err(Failure::new("broken", "for good").non_retryable()));
    let world = world.run();
    assert_eq!(world.called("broken").len(), 1);
    assert_eq!(world.stopped, Some(Failure::new("broken", "for good").non_retryable()));
}

#[test]
fn each_iteration_has_all_its_attempts() {
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
fn retry_delay_does_not_overflow() {
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
fn timed_out_loop_keeps_the_variables_it_set() {
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
    assert!(world.snapshot.fork_instances().is_empty());
}

#[test]
fn failure_reaches_on_error_unchanged() {
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
