//! Errors that occur when a step is entered. They belong to that step, not to the step before it.

use serde_json::json;
use stepwell_core::snapshot::ChildEnd;

use super::{World, fails};

#[test]
fn error_in_a_return_value_can_be_caught() {
    let text = "
steps:
  - id: try
    type: control.try
    body: [{ id: done, type: control.return, value: { $expr: payload.missing } }]
    catch: [{ id: caught, type: control.return, value: { $expr: error.code } }]
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("expression"));
    assert_eq!(World::start(text, json!({"missing": 5})).run().output(), json!(5));
}

/// A call followed by a step that cannot be entered. The `onError` of the call must not see the error of that step.
fn after_a_call(step: &str) -> String {
    // A step after a return would be unreachable.
    let done = match step.contains("control.return") {
        true => "",
        false => "  - { id: done, type: control.return, value: { $expr: vars.call } }",
    };
    format!(
        "
steps:
  - {{ id: call, type: action.call, action: echo, input: fine, onError: continue }}
  - {{ id: next, {step} }}
{done}
"
    )
}

const CANNOT_BEGIN: [&str; 7] = [
    "type: control.forEach, items: { $expr: payload.list }, body: [{ id: x, type: action.call, action: echo }]",
    "type: control.forEach, items: { $expr: payload.list }, parallel: 2, body: [{ id: x, type: action.call, action: echo }]",
    "type: control.while, condition: { $expr: 'payload.list + 1 = 0' }, body: [{ id: x, type: action.call, action: echo }]",
    "type: wait.sleep, for: { $expr: payload.list }",
    "type: wait.sleep, until: { $expr: payload.list }",
    "type: wait.signal, signal: GO, timeout: { $expr: payload.list }, onTimeout: []",
    "type: control.return, value: { $expr: payload.list.x }",
];

#[test]
fn error_entering_a_step_does_not_fail_the_previous_call() {
    for step in CANNOT_BEGIN {
        let world = World::start(&after_a_call(step), json!({"list": "text"})).run();
        if world.snapshot.is_terminal() {
            continue;
        }
        let stopped = world.stopped.clone().unwrap_or_else(|| panic!("{step}: {:?}", world.places()));
        assert_eq!(stopped.code, "expression", "{step}: {stopped}");
        assert_eq!(world.vars()["call"], json!("fine"), "{step}");
        assert_eq!(world.called("echo").len(), 1, "{step}");
    }
}

#[test]
fn run_blocked_at_a_step_continues_after_its_data_is_fixed() {
    let lists = [json!([1]), json!([1]), json!(1), json!("1s"), json!("2023-01-01T00:00:00Z"), json!("1s")];
    for (step, list) in CANNOT_BEGIN.iter().zip(lists) {
        let bad = if step.contains("while") { json!({"list": "text"}) } else { json!({}) };
        let mut world = World::start(&after_a_call(step), bad).run();
        let stopped = world.stopped.clone().unwrap_or_else(|| panic!("{step}: {:?}", world.places()));
        assert!(stopped.message.contains("next"), "{step}: {stopped}");
        let before = world.places();
        world.retry();
        assert_eq!(world.places(), before, "{step}: it fails in the same way, and stays");
        assert!(world.stopped.is_some(), "{step}");
        world.mend(json!({"list": list}));
        world.retry();
        assert_eq!(world.output(), json!("fine"), "{step}");
    }
}

#[test]
fn unsavable_value_can_be_caught() {
    let text = "
steps:
  - { id: scalar, type: vars.set, values: { a: 1 } }
  - id: try
    type: control.try
    body: [{ id: below, type: vars.set, values: { a.b: 2 } }]
    catch: [{ id: caught, type: control.return, value: { $expr: error.code } }]
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("cannotSave"));
}

#[test]
fn unsavable_loop_results_can_be_caught() {
    for parallel in ["false", "true"] {
        let text = format!(
            "
steps:
  - {{ id: scalar, type: vars.set, values: {{ a: 1 }} }}
  - id: each
    type: control.forEach
    items: [1, 2]
    parallel: {parallel}
    saveAs: a.b
    onError: [{{ id: caught, type: control.return, value: {{ $expr: error.code }} }}]
    body: [{{ id: call, type: action.call, action: echo }}]
"
        );
        assert_eq!(World::start(&text, json!({})).run().output(), json!("cannotSave"), "{parallel}");
    }
}

#[test]
fn error_in_an_iteration_result_belongs_to_the_loop() {
    for parallel in ["false", "true"] {
        let text = format!(
            "
steps:
  - id: each
    type: control.forEach
    items: [1, 2]
    parallel: {parallel}
    saveAs: all
    result: {{ $expr: item.missing }}
    onError: [{{ id: caught, type: control.return, value: {{ $expr: error.message }} }}]
    body: [{{ id: call, type: action.call, action: echo, onError: [{{ id: wrong, type: control.return, value: wrong }}] }}]
"
        );
        let output = World::start(&text, json!({})).run().output();
        assert!(output.as_str().is_some_and(|text| text.contains("item.missing")), "{parallel}: {output}");
    }
}

#[test]
fn too_many_items_stop_the_run_before_the_first() {
    for policy in ["fail", "continue", "collect"] {
        let text = format!(
            "
steps:
  - {{ id: before, type: vars.set, values: {{ x: 1 }} }}
  - id: each
    type: control.forEach
    items: [1, 2, 3]
    maxItems: 2
    onItemError: {policy}
    body: [{{ id: call, type: action.call, action: echo, input: {{ $expr: item }} }}]
"
        );
        let world = World::start(&text, json!({})).run();
        assert_eq!(world.stopped.map(|stopped| stopped.code), Some("tooManyRounds".to_owned()), "{policy}");
        assert_eq!(world.calls.len(), 0, "{policy}");
    }
}

#[test]
fn too_many_iterations_stop_the_run_in_its_loop() {
    let text = "
steps:
  - { id: again, type: control.while, condition: true, maxIterations: 2, body: [{ id: call, type: action.call, action: echo }] }
";
    let world = World::start(text, json!({})).run();
    assert_eq!(world.stopped.map(|stopped| stopped.code), Some("tooManyRounds".to_owned()));
    assert_eq!(world.calls.len(), 2);
}

#[test]
fn too_many_parallel_items_are_refused_before_the_first() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2, 3]
    maxItems: 2
    parallel: true
    onError: [{ id: caught, type: control.return, value: { $expr: error.code } }]
    body: [{ id: call, type: action.call, action: echo, input: { $expr: item } }]
";
    let world = World::start(text, json!({})).run();
    assert_eq!((world.output(), world.calls.len()), (json!("tooManyRounds"), 0));
}

#[test]
fn error_in_a_handler_goes_to_the_enclosing_handler() {
    let text = "
steps:
  - id: outer
    type: control.try
    body:
      - id: inner
        type: control.try
        body:
          - id: call
            type: action.call
            action: flaky
            onError: [{ id: again, type: action.call, action: flaky }]
        catch: [{ id: third, type: action.call, action: flaky }]
    catch: [{ id: done, type: control.return, value: { code: { $expr: error.code }, locals: { $expr: $keys(locals) } } }]
";
    let world = World::start(text, json!({})).action("flaky", fails(9, "down")).run();
    assert_eq!(world.called("flaky").len(), 3);
    assert_eq!(world.output()["code"], json!("down"));
}

#[test]
fn event_is_refused_when_its_filter_cannot_be_evaluated() {
    let text = "
steps:
  - { id: wait, type: wait.event, eventName: PAID, filter: 'event.cents >= 100' }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    let refused = world.signal("PAID", json!({"cents": "many"})).expect_err("cents are no number");
    assert!(refused.refusal().is_some(), "it is refused, and the run goes on: {refused}");
    world.signal("PAID", json!({"cents": 100})).expect("it is waited for");
    assert!(world.snapshot.is_terminal());
}

#[test]
fn circular_error_places_stop_the_run() {
    let text = "
initial: s
envelope: true
signals: { GO: {} }
places: { s: { kind: wait, signal: GO }, w: { kind: step }, v: { kind: step }, e: { kind: end } }
transitions:
  - { id: go, from: s, to: w }
  - { id: ring, from: w, to: e, on: { until: vars.at }, errorPlace: v }
  - { id: again, from: v, to: e, on: { until: vars.at }, errorPlace: w }
";
    let mut world = World::start(text, json!({}));
    world.signal("GO", json!(null)).expect("it is waited for");
    assert_eq!(world.stopped.map(|stopped| stopped.code), Some("expression".to_owned()));
}

#[test]
fn join_outside_a_loop_leaves_the_loop() {
    let text = "
initial: l
envelope: true
signals: { GO: {} }
places:
  l: { kind: loop, over: { items: { list: [1, 2], item: i } }, first: f, body: [f, b1, b2], then: e }
  f: { kind: fork, branches: [b1, b2] }
  b1: { kind: step }
  b2: { kind: step }
  j: { kind: join }
  e: { kind: end, output: { $expr: locals } }
transitions:
  - { id: t1, from: b1, to: j }
  - { id: t2, from: b2, to: j }
  - { id: t3, from: j, to: e, on: { signal: GO } }
";
    let mut world = World::start(text, json!({})).run();
    assert_eq!(world.places(), ["j"]);
    world.signal("GO", json!(null)).expect("it is waited for");
    assert_eq!(world.output(), json!({}));
}

#[test]
fn unsavable_call_result_has_its_own_error_code() {
    let text = "
steps:
  - { id: scalar, type: vars.set, values: { a: text } }
  - id: try
    type: control.try
    body: [{ id: call, type: action.call, action: echo, input: { x: 1 }, saveAs: a.b }]
    catch: { codes: [cannotSave], steps: [{ id: caught, type: control.return, value: caught }] }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("caught"));
}

#[test]
fn accepted_payloads_are_kept_whole() {
    let text = "
steps:
  - { id: wait, type: wait.signal, signal: GO }
  - { id: child, type: workflow.call, workflow: other }
  - { id: rest, type: wait.signal, signal: NEVER }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    world.signal("GO", json!(vec![1; 40_000])).expect("it is not too large");
    world.child_ends("child.child", ChildEnd::Completed { output: json!(vec![1; 60_000]) });
    assert_eq!(world.places(), ["rest"]);
    let length = |name: &str| world.vars()[name].as_array().map(Vec::len);
    assert_eq!((length("wait"), length("child")), (Some(40_000), Some(60_000)));
}
