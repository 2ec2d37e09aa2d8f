//! Parallel branches and parallel items.

use serde_json::json;

use super::{World, picky};

const EACH: &str = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.items }
    parallel: 3
    saveAs: results
    body:
      - { id: call, type: action.call, action: picky, input: { $expr: item } }
      - { id: own, type: vars.set, values: { mine: { $expr: vars.call.n * 10 } } }
      - { id: pass, type: action.call, action: echo, input: { $expr: vars.mine } }
  - { id: done, type: control.return, value: { results: { $expr: vars.results }, leaked: { $expr: '$exists(vars.mine)' } } }
";

#[test]
fn parallel_items_have_own_variables_and_ordered_results() {
    for newest_first in [false, true] {
        let items: Vec<_> = (1..=10).map(|n| json!({"n": n})).collect();
        let mut world = World::start(EACH, json!({"items": items})).action("picky", picky);
        world.newest_first = newest_first;
        let most = |world: &World| world.snapshot.activations().len();
        assert_eq!(most(&world), 3, "no more items at once than allowed");
        world.settle();
        let results: Vec<_> = (1..=10).map(|n| json!(n * 10)).collect();
        assert_eq!(world.output(), json!({"results": results, "leaked": false}));
    }
    let none = World::start(EACH, json!({"items": []})).run();
    assert_eq!(none.output(), json!({"results": [], "leaked": false}));
}

#[test]
fn failed_item_ends_the_others_if_the_error_is_handled() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.items }
    parallel: true
    onError: [{ id: caught, type: control.return, value: { $expr: error.code } }]
    body:
      - { id: call, type: action.call, action: picky, input: { $expr: item } }
      - { id: wait, type: wait.signal, signal: NEVER }
";
    let payload = json!({"items": [{"n": 1}, {"bad": true}, {"n": 3}]});
    let world = World::start(text, payload.clone()).action("picky", picky).run();
    assert_eq!(world.output(), json!("bad"));
    let collect = text.replace("parallel: true", "parallel: true\n    onItemError: continue");
    let waits = World::start(&collect, payload).action("picky", picky).run();
    assert_eq!(waits.places(), ["wait"]);
}

#[test]
fn failed_items_are_collected_or_skipped() {
    let text = |policy: &str| {
        format!(
            "
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: payload.items }}
    parallel: 2
    onItemError: {policy}
    saveAs: results
    body: [{{ id: call, type: action.call, action: picky, input: {{ $expr: item }} }}]
  - {{ id: done, type: control.return, value: {{ $expr: vars.results }} }}
"
        )
    };
    let payload = json!({"items": [{"bad": true}, {"n": 2}, {"bad": true}, {"n": 4}, {"n": 5}]});
    let collected = World::start(&text("collect"), payload.clone()).action("picky", picky).run().output();
    let status: Vec<_> =
        collected.as_array().into_iter().flatten().map(|one| one["status"].clone()).collect();
    assert_eq!(status, ["failed", "completed", "failed", "completed", "completed"]);
    let over = World::start(&text("continue"), payload).action("picky", picky).run().output();
    assert_eq!(over, json!([{"n": 2}, {"n": 4}, {"n": 5}]));
}

#[test]
fn branch_results_are_in_the_order_of_their_names() {
    let text = "
steps:
  - id: both
    type: control.parallel
    saveAs: results
    branches:
      a-slow:
        - { id: sleep, type: wait.sleep, for: 1h }
        - { id: a, type: action.call, action: echo, input: a }
      b-fast:
        - { id: b, type: action.call, action: echo, input: b }
  - { id: done, type: control.return, value: { $expr: '[vars.results, vars.a, vars.b]' } }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!(["a", "b", "a", "b"]));
}

#[test]
fn branches_nested_in_items_and_loops_are_joined() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2]
    itemVar: x
    saveAs: all
    result: { $expr: vars.inner }
    body:
      - id: each
        type: control.forEach
        items: [10, 20]
        itemVar: y
        parallel: true
        saveAs: inner
        result: { $expr: 'vars.l + vars.r' }
        body:
          - id: two
            type: control.parallel
            branches:
              - [{ id: left, type: vars.set, values: { l: { $expr: x * y } } }]
              - [{ id: right, type: vars.set, values: { r: { $expr: x } } }]
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    for newest_first in [false, true] {
        let mut world = World::start(text, json!({}));
        world.newest_first = newest_first;
        world.settle();
        assert_eq!(world.output(), json!([[11, 21], [22, 42]]));
    }
}
