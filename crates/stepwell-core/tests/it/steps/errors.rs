//! Error handling: retries, `onError`, `try`, loop policies, and errors that stop the run.

use serde_json::json;
use stepwell_core::Failure;

use super::{World, fails, picky};

#[test]
fn call_is_retried_then_continues_with_its_error() {
    let text = "
steps:
  - id: call
    type: action.call
    action: flaky
    retry: { attempts: 2, delay: 1s, backoff: fixed }
    onError: continue
    input: { a: 1 }
  - { id: done, type: control.return, value: { $expr: vars.call } }
";
    let well = World::start(text, json!({})).action("flaky", fails(2, "busy")).run();
    assert_eq!(well.output(), json!({"a": 1}));
    assert_eq!(well.now, crate::driver::at(2_000));
    let badly = World::start(text, json!({})).action("flaky", fails(9, "busy")).run();
    assert_eq!(badly.output()["error"]["code"], json!("busy"));
    assert_eq!(badly.called("flaky").len(), 3);
}

#[test]
fn error_is_visible_only_inside_its_catch() {
    let text = "
steps:
  - id: try
    type: control.try
    body:
      - { id: call, type: action.call, action: flaky }
      - { id: never, type: action.call, action: echo }
    catch:
      as: problem
      steps:
        - { id: note, type: vars.set, values: { what: { $expr: 'problem.code & \": \" & problem.message' } } }
  - { id: done, type: control.return, value: { what: { $expr: vars.what }, locals: { $expr: locals } } }
";
    let world = World::start(text, json!({})).action("flaky", fails(1, "down")).run();
    assert_eq!(world.output(), json!({"what": "down: as told", "locals": {}}));
    assert!(world.called("echo").is_empty());
}

#[test]
fn unmatched_codes_reach_the_outer_catch() {
    let text = "
steps:
  - id: outer
    type: control.try
    body:
      - id: inner
        type: control.try
        body: [{ id: call, type: action.call, action: flaky }]
        catch: { codes: [known], steps: [{ id: small, type: control.return, value: inner }] }
    catch: [{ id: big, type: control.return, value: { $expr: error.code } }]
";
    let known = World::start(text, json!({})).action("flaky", fails(1, "known")).run();
    assert_eq!(known.output(), json!("inner"));
    let other = World::start(text, json!({})).action("flaky", fails(1, "other")).run();
    assert_eq!(other.output(), json!("other"));
}

#[test]
fn expression_errors_can_be_caught() {
    let text = "
steps:
  - id: try
    type: control.try
    body: [{ id: set, type: vars.set, values: { x: { $expr: '1 + payload.text' } } }]
    catch: [{ id: caught, type: control.return, value: { $expr: error.code } }]
";
    assert_eq!(World::start(text, json!({"text": "no number"})).run().output(), json!("expression"));
    let alone = "
steps:
  - { id: set, type: vars.set, values: { x: { $expr: payload.missing } } }
";
    let stopped = World::start(alone, json!({})).run().stopped.expect("it has no value");
    assert!(stopped.message.contains("`set`") && stopped.message.contains("payload.missing"), "{stopped}");
}

#[test]
fn loop_policy_decides_about_failed_items() {
    let text = |policy: &str| {
        format!(
            "
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: payload.items }}
    onItemError: {policy}
    saveAs: results
    body:
      - {{ id: call, type: action.call, action: picky, input: {{ $expr: item }} }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.results }} }}
"
        )
    };
    let payload = json!({"items": [{"n": 1}, {"bad": true}, {"n": 3}]});
    let passed_over = World::start(&text("continue"), payload.clone()).action("picky", picky).run();
    assert_eq!(passed_over.output(), json!([{"n": 1}, {"n": 3}]));
    let collected = World::start(&text("collect"), payload.clone()).action("picky", picky).run().output();
    assert_eq!(collected[0], json!({"status": "completed", "output": {"n": 1}}));
    assert_eq!(collected[1]["status"], json!("failed"));
    assert_eq!(collected[1]["error"]["code"], json!("bad"));
    assert_eq!(collected.as_array().map(Vec::len), Some(3));
    let failed = World::start(&text("fail"), payload).action("picky", picky).run();
    assert_eq!(failed.stopped.map(|failure| failure.code), Some("bad".to_owned()));
    assert_eq!(failed.calls.len(), 2);
}

#[test]
fn nearest_error_handler_wins() {
    // The order is: the `onError` of the step, the enclosing catch, the policy of the loop.
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2, 3]
    onItemError: collect
    saveAs: results
    result: { $expr: vars.how }
    body:
      - { id: fresh, type: vars.set, values: { how: none } }
      - id: try
        type: control.try
        condition: { $expr: 'item < 3' }
        body:
          - id: call
            type: action.call
            action: flaky
            onError: { steps: [{ id: own, type: vars.set, values: { how: own } }, { id: fail, type: control.fail, condition: { $expr: item = 2 }, code: again, message: once more }] }
        catch: [{ id: caught, type: vars.set, values: { how: caught } }]
      - { id: last, type: action.call, action: flaky, condition: { $expr: item = 3 } }
  - { id: done, type: control.return, value: { $expr: vars.results } }
";
    let world = World::start(text, json!({})).action("flaky", |_| Err(Failure::new("down", "down"))).run();
    let output = world.output();
    assert_eq!(output[0]["output"], json!("own"));
    assert_eq!(output[1]["output"], json!("caught"));
    assert_eq!(output[2]["error"]["code"], json!("down"));
}

#[test]
fn block_is_retried_then_its_error_is_handled() {
    let text = "
steps:
  - id: block
    type: control.parallel
    retry: { attempts: 2, delay: 2s }
    onError: [{ id: gave-up, type: control.return, value: { $expr: error.code } }]
    branches:
      - [{ id: a, type: action.call, action: flaky }]
      - [{ id: b, type: action.call, action: echo, input: { b: 1 } }]
  - { id: done, type: control.return, value: { $expr: vars.b } }
";
    let well = World::start(text, json!({})).action("flaky", fails(2, "down")).run();
    assert_eq!(well.output(), json!({"b": 1}));
    assert_eq!(well.now, crate::driver::at(6_000), "two seconds and then four");
    let badly = World::start(text, json!({})).action("flaky", fails(9, "down")).run();
    assert_eq!(badly.output(), json!("down"));
    assert_eq!(badly.called("flaky").len(), 3);
}

#[test]
fn timed_out_block_is_ended() {
    let text = "
steps:
  - id: block
    type: control.if
    condition: true
    timeout: 10s
    onError: [{ id: late, type: control.return, value: { $expr: error.code } }]
    then: [{ id: wait, type: wait.signal, signal: GO }]
  - { id: done, type: control.return, value: in time }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("timeout"));
    let mut world = World::start(text, json!({}));
    world.settle_now();
    world.signal("GO", json!({})).expect("it is waited for");
    assert_eq!(world.output(), json!("in time"));
}

#[test]
fn control_fail_stops_the_run_with_its_code() {
    let text = "
steps:
  - { id: fail, type: control.fail, code: tooDear, message: { $expr: '\"costs \" & payload.cents' } }
";
    let stopped = World::start(text, json!({"cents": 5})).run().stopped.expect("it fails");
    assert_eq!((stopped.code.as_str(), stopped.message.as_str()), ("tooDear", "costs 5"));
}

#[test]
fn undefined_condition_is_an_error() {
    let steps = [
        "type: action.call, action: echo, condition: payload.go.now",
        "type: control.if, condition: payload.go.now, then: [{ type: action.call, action: echo }]",
        "type: control.while, condition: payload.go.now, body: [{ type: action.call, action: echo }]",
    ];
    for step in steps {
        let text = |step: &str| {
            format!(
                "steps:\n  - {{ id: first, type: vars.set, values: {{ x: 1 }} }}\n  - {{ id: which, {step} }}\n"
            )
        };
        let stopped = World::start(&text(step), json!({"go": {}})).run().stopped.expect("it cannot be told");
        assert_eq!(stopped.code, "expression", "{step}");
        for part in ["which", "`payload.go.now` is undefined", "?? false"] {
            assert!(stopped.message.contains(part), "{step}: {stopped}");
        }
        let given = step.replace("payload.go.now", "payload.go.now ?? false");
        let world = World::start(&text(&given), json!({"go": {}})).run();
        assert!(world.snapshot.is_terminal() && world.calls.is_empty(), "{given}");
    }
}
