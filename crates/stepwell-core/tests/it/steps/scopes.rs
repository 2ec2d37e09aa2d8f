//! Leaving loops, error scopes and branches, and the names that are visible inside them.

use serde_json::{Value, json};

use super::{World, fails, picky};

fn inputs(world: &World) -> Vec<Value> {
    world.calls.iter().map(|(_, input)| input.clone()).collect()
}

#[test]
fn catch_may_continue_or_break_the_loop() {
    let text = |way: &str| {
        format!(
            "
steps:
  - id: each
    type: control.forEach
    items: [{{ n: 1 }}, {{ bad: true }}, {{ n: 3 }}]
    body:
      - id: try
        type: control.try
        body: [{{ id: call, type: action.call, action: picky, input: {{ $expr: item }} }}]
        catch: [{{ id: way, type: {way} }}]
      - {{ id: after, type: action.call, action: echo, input: {{ after: {{ $expr: item.n }} }} }}
  - {{ id: done, type: control.return, value: {{ $expr: locals }} }}
"
        )
    };
    let goes_on = World::start(&text("control.continue"), json!({})).action("picky", picky).run();
    assert_eq!(goes_on.called("echo"), [&json!({"after": 1}), &json!({"after": 3})]);
    assert_eq!(goes_on.output(), json!({}), "neither the item nor the error stays in scope");
    let leaves = World::start(&text("control.break"), json!({})).action("picky", picky).run();
    assert_eq!(leaves.called("echo"), [&json!({"after": 1})]);
    assert_eq!(leaves.output(), json!({}));
}

#[test]
fn on_error_may_continue_the_loop() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [{ n: 1 }, { bad: true }, { n: 3 }]
    saveAs: seen
    body:
      - { id: call, type: action.call, action: picky, input: { $expr: item }, onError: [{ id: skip, type: control.continue }] }
      - { id: after, type: action.call, action: echo, input: { $expr: item.n } }
  - { id: done, type: control.return, value: { $expr: vars.seen } }
";
    let world = World::start(text, json!({})).action("picky", picky).run();
    assert_eq!(world.output(), json!([1, null, 3]));
}

#[test]
fn loop_body_may_begin_with_break_or_continue() {
    for (way, calls) in [("control.break", 0), ("control.continue", 0)] {
        let text = format!(
            "
steps:
  - {{ id: each, type: control.forEach, items: [1, 2], body: [{{ id: out, type: {way} }}] }}
  - {{ id: done, type: control.return, value: out }}
"
        );
        let world = World::start(&text, json!({})).run();
        assert_eq!((world.output(), world.calls.len()), (json!("out"), calls), "{way}");
    }
}

#[test]
fn loop_left_by_break_keeps_its_earlier_results() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2, 3, 4]
    saveAs: all
    body:
      - { id: stop, type: control.break, condition: item = 3 }
      - { id: call, type: action.call, action: echo, input: { $expr: item * 10 } }
  - id: count
    type: control.while
    condition: true
    indexVar: i
    saveAs: counted
    result: { $expr: i }
    body:
      - { id: note, type: vars.set, values: { last: { $expr: i } } }
      - { id: enough, type: control.break, condition: i = 2 }
  - { id: done, type: control.return, value: { $expr: '[[vars.all], [vars.counted]]' } }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!([[10, 20], [0, 1]]));
}

#[test]
fn break_inside_try_and_if_affects_the_innermost_loop() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2]
    itemVar: x
    body:
      - id: inner
        type: control.forEach
        items: [1, 2, 3, 4]
        itemVar: y
        body:
          - id: try
            type: control.try
            body:
              - id: which
                type: control.if
                condition: y = 2
                then: [{ id: skip, type: control.continue }]
                else:
                  - { id: stop, type: control.break, condition: y = 4 }
              - { id: call, type: action.call, action: echo, input: { $expr: x * 10 + y } }
            catch: [{ id: never, type: control.fail }]
";
    let world = World::start(text, json!({})).run();
    assert_eq!(inputs(&world), [json!(11), json!(13), json!(21), json!(23)]);
    assert!(world.snapshot.is_terminal());
}

#[test]
fn run_may_return_from_nested_blocks() {
    let text = "
steps:
  - id: both
    type: control.parallel
    branches:
      - [{ id: wait, type: wait.signal, signal: NEVER }]
      - - id: each
          type: control.forEach
          items: [1, 2, 3]
          parallel: true
          body:
            - id: try
              type: control.try
              body: [{ id: call, type: action.call, action: flaky }]
              catch: [{ id: done, type: control.return, value: { code: { $expr: error.code }, item: { $expr: item } } }]
";
    let world = World::start(text, json!({})).action("flaky", fails(1, "down")).run();
    assert_eq!(world.output(), json!({"code": "down", "item": 1}));
    assert!(world.snapshot.activations().is_empty());
}

#[test]
fn inner_item_shadows_an_outer_one_of_the_same_name() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [{ in: [a, b] }, { in: [] }, { in: [c] }]
    indexVar: i
    body:
      - id: inner
        type: control.forEach
        items: { $expr: item.in }
        indexVar: i
        body: [{ id: one, type: action.call, action: echo, input: { at: { $expr: i }, item: { $expr: item } } }]
      - { id: after, type: action.call, action: echo, input: { at: { $expr: i }, item: { $expr: item.in } } }
  - { id: done, type: control.return, value: { $expr: locals } }
";
    let world = World::start(text, json!({})).run();
    let expected = json!([
        {"at": 0, "item": "a"}, {"at": 1, "item": "b"}, {"at": 0, "item": ["a", "b"]},
        {"at": 1, "item": []},
        {"at": 0, "item": "c"}, {"at": 2, "item": ["c"]}
    ]);
    assert_eq!(json!(inputs(&world)), expected);
    assert_eq!(world.output(), json!({}));
}

#[test]
fn item_named_error_is_shadowed_by_a_caught_error() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [{ n: 1 }, { bad: true }]
    itemVar: error
    saveAs: all
    result: { $expr: error }
    body:
      - id: call
        type: action.call
        action: picky
        input: { $expr: error }
        onError: [{ id: note, type: vars.set, values: { code: { $expr: error.code } } }]
  - { id: done, type: control.return, value: { all: { $expr: vars.all }, code: { $expr: vars.code }, locals: { $expr: locals } } }
";
    let world = World::start(text, json!({})).action("picky", picky).run();
    assert_eq!(world.output(), json!({"all": [{"n": 1}, {"bad": true}], "code": "bad", "locals": {}}));
}

#[test]
fn items_may_be_any_json_value() {
    for parallel in ["false", "true", "1"] {
        let text = format!(
            "
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: payload.items }}
    parallel: {parallel}
    indexVar: i
    saveAs: all
    body: [{{ id: call, type: action.call, action: echo, input: {{ item: {{ $expr: item }}, at: {{ $expr: i }} }} }}]
  - {{ id: done, type: control.return, value: {{ $expr: vars.all }} }}
"
        );
        let items = [json!(null), json!([]), json!([[1]]), json!(false), json!({}), json!("")];
        let world = World::start(&text, json!({"items": items})).run();
        let expected: Vec<_> =
            items.iter().enumerate().map(|(at, item)| json!({"item": item, "at": at})).collect();
        assert_eq!(world.output(), json!(expected), "parallel: {parallel}");
    }
}

#[test]
fn nested_loops_may_use_equal_lists() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2]
    itemVar: x
    saveAs: all
    result: { $expr: vars.row }
    body:
      - id: inner
        type: control.forEach
        items: [1, 2]
        itemVar: y
        saveAs: row
        body:
          - { id: call, type: action.call, action: echo, input: { $expr: x * y } }
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!([[1, 2], [2, 4]]));
}

#[test]
fn every_type_of_step_can_be_skipped_by_its_condition() {
    let steps = [
        "type: action.call, action: echo",
        "type: control.forEach, items: [1], body: [{ type: action.call, action: echo }]",
        "type: control.forEach, items: [1], parallel: true, body: [{ type: action.call, action: echo }]",
        "type: control.try, body: [{ type: action.call, action: echo }], catch: []",
        "type: control.parallel, branches: [[{ type: action.call, action: echo }]]",
        "type: control.return, value: early",
        "type: control.fail, code: never",
        "type: vars.set, values: { x: 1 }",
        "type: wait.sleep, for: 1h",
        "type: wait.signal, signal: NEVER",
        "type: wait.event, eventName: NEVER",
        "type: human.task, title: never",
        "type: workflow.call, workflow: other",
        "type: workflow.start, workflow: other",
    ];
    for step in steps {
        let text = format!(
            "steps:\n  - {{ condition: {{ $expr: 'payload.go = 1' }}, {step} }}\n  - {{ type: control.return, value: {{ $expr: vars }} }}\n"
        );
        let world = World::start(&text, json!({"go": 0})).run();
        assert_eq!((world.output(), world.calls.len()), (json!({}), 0), "{step}");
        assert_eq!(world.now, crate::driver::at(0), "{step}");
    }
}

#[test]
fn while_condition_may_use_the_loop_index() {
    let text = "
steps:
  - id: count
    type: control.while
    condition: i < 3
    indexVar: i
    saveAs: seen
    body: [{ id: call, type: action.call, action: echo, input: { $expr: i } }]
  - { id: done, type: control.return, value: { seen: { $expr: vars.seen }, locals: { $expr: locals } } }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!({"seen": [0, 1, 2], "locals": {}}));
}

#[test]
fn prompt_is_dropped_when_its_task_times_out() {
    let text = "
steps:
  - { id: ask, type: human.task, title: Well?, timeout: 1h, onTimeout: [] }
  - { id: wait, type: wait.signal, signal: GO }
";
    let mut world = World::start(text, json!({})).run();
    assert_eq!(world.places(), ["wait"]);
    assert_eq!(json!(world.snapshot.activations()[0].locals), json!({}));
    world.signal("GO", json!(null)).expect("it is waited for");
    assert!(world.snapshot.is_terminal());
}

#[test]
fn item_name_must_be_usable_in_expressions() {
    for name in ["true", "null", "prompt", "vars", "1x", "a b", ""] {
        let text = format!(
            "steps: [{{ type: control.forEach, items: [1], itemVar: '{name}', body: [{{ type: action.call, action: x }}] }}]"
        );
        let problems = super::problems(&text);
        assert_eq!(problems.0[0].code, "badName", "{name}: {problems}");
    }
}
