//! Calls, conditions, loops and variables.

use serde_json::json;

use super::World;

#[test]
fn steps_run_in_order_and_save_their_results() {
    let world = World::start(
        "
steps:
  - { id: first, type: action.call, action: echo, input: { n: { $expr: payload.n } } }
  - { id: second, type: action.call, action: echo, input: { twice: { $expr: 'vars.first.n * 2' } }, saveAs: doubled.value }
  - { id: set, type: vars.set, values: { sum: { $expr: 'vars.first.n + vars.doubled.value.twice' } } }
  - { id: done, type: control.return, value: { $expr: vars } }
",
        json!({"n": 4}),
    )
    .run();
    assert_eq!(world.output(), json!({"first": {"n": 4}, "doubled": {"value": {"twice": 8}}, "sum": 12}));
    assert_eq!(world.snapshot.context()["payload"], json!({"n": 4}));
}

#[test]
fn condition_skips_a_step_and_if_picks_a_branch() {
    let text = "
steps:
  - { id: skip, type: action.call, action: echo, condition: { $expr: 'payload.n > 10' }, input: { a: 1 } }
  - id: which
    type: control.if
    condition: 'payload.n > 2'
    then: [{ id: big, type: vars.set, values: { size: big } }]
    else: [{ id: small, type: vars.set, values: { size: small } }]
  - { id: end-of-it, type: control.return, value: { $expr: vars } }
";
    assert_eq!(World::start(text, json!({"n": 3})).run().output(), json!({"size": "big"}));
    assert_eq!(World::start(text, json!({"n": 1})).run().output(), json!({"size": "small"}));
    let all = World::start(text, json!({"n": 11})).run();
    assert_eq!(all.output(), json!({"skip": {"a": 1}, "size": "big"}));
}

#[test]
fn loop_runs_in_order_and_drops_its_item_at_the_end() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.list }
    itemVar: m
    indexVar: i
    saveAs: results
    body:
      - { id: call, type: action.call, action: echo, input: { item: { $expr: m.id }, at: { $expr: i } } }
  - { id: done, type: control.return, value: { results: { $expr: vars.results }, locals: { $expr: locals } } }
";
    let world = World::start(text, json!({"list": [{"id": "a"}, {"id": "b"}, {"id": "c"}]})).run();
    let results = json!([{"item": "a", "at": 0}, {"item": "b", "at": 1}, {"item": "c", "at": 2}]);
    assert_eq!(world.output(), json!({"results": results, "locals": {}}));
    let empty = World::start(text, json!({"list": []})).run();
    assert_eq!(empty.output(), json!({"results": [], "locals": {}}));
    assert!(empty.calls.is_empty());
    let one = World::start(text, json!({"list": {"id": "alone"}})).run();
    assert_eq!(one.output()["results"], json!([{"item": "alone", "at": 0}]));
}

#[test]
fn break_and_continue_affect_the_innermost_loop() {
    let world = World::start(
        "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2, 3]
    itemVar: x
    body:
      - { id: skip, type: control.continue, condition: { $expr: x = 2 } }
      - id: inner
        type: control.forEach
        items: [10, 20, 30]
        itemVar: y
        body:
          - { id: stop, type: control.break, condition: { $expr: 'y > 20' } }
          - { id: call, type: action.call, action: echo, input: { sum: { $expr: x + y } } }
      - { id: after, type: action.call, action: echo, input: { x: { $expr: x } } }
",
        json!({}),
    )
    .run();
    let sums: Vec<_> = world.calls.iter().map(|(_, input)| input.clone()).collect();
    let expected = [
        json!({"sum": 11}),
        json!({"sum": 21}),
        json!({"x": 1}),
        json!({"sum": 13}),
        json!({"sum": 23}),
        json!({"x": 3}),
    ];
    assert_eq!(sums, expected);
    assert!(world.snapshot.is_terminal());
}

#[test]
fn while_loop_stops_at_its_condition_or_limit() {
    let text = |most: u32| {
        format!(
            "
steps:
  - {{ id: begin, type: vars.set, values: {{ n: 0 }} }}
  - id: count
    type: control.while
    condition: {{ $expr: 'vars.n < 5' }}
    maxIterations: {most}
    body:
      - {{ id: more, type: vars.set, values: {{ n: {{ $expr: vars.n + 1 }} }} }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.n }} }}
"
        )
    };
    assert_eq!(World::start(&text(5), json!({})).run().output(), json!(5));
    let stopped = World::start(&text(4), json!({})).run().stopped.expect("there are too many rounds");
    assert_eq!(stopped.code, "tooManyRounds");
}

#[test]
fn empty_iterations_do_not_overflow_the_stack() {
    let world = World::start(
        "
steps:
  - id: outer
    type: control.forEach
    items: { $expr: '[1..4000]' }
    body:
      - id: inner
        type: control.forEach
        items: []
        body: [{ id: never, type: action.call, action: echo }]
  - { id: done, type: control.return, value: done }
",
        json!({}),
    )
    .run();
    assert_eq!(world.output(), json!("done"));
    assert!(world.calls.is_empty());
}

#[test]
fn long_list_is_stored_separately_and_restored() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: '[1..2000]' }
    body:
      - { id: wait, type: wait.signal, signal: NEXT }
      - { id: stop, type: control.break }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    let limits = stepwell_core::Limits::default();
    let apart = world.snapshot.encode_without_long_lists(&limits).expect("it is short");
    assert!(apart.len() < 1_500, "{} bytes", apart.len());
    assert!(world.snapshot.encode(&limits).expect("it is short enough").len() > 8_000);
    let mut restored = stepwell_core::Snapshot::restore(&world.definition, &apart).expect("it can be read");
    let missing = restored.missing_lists();
    assert_eq!(missing.len(), 1);
    let lists: Vec<_> = world.snapshot.long_lists().map(|(id, list)| (id.clone(), list.to_json())).collect();
    for (id, json) in lists {
        assert_eq!(stepwell_core::frame::ListId::of_json(&json), id);
        restored.restore_list(id, stepwell_core::frame::List::from_json(&json).expect("it is a list"));
    }
    assert_eq!(restored, world.snapshot);
    world.signal("NEXT", json!(null)).expect("it is waited for");
    assert!(world.snapshot.is_terminal());
    assert_eq!(world.snapshot.long_lists().count(), 0);
}
