//! Parallel loops: limits, variables, simultaneous failures, and empty and very long lists.

use serde_json::{Value, json};
use stepwell_core::Failure;
use stepwell_core::snapshot::ChildEnd;

use super::{World, picky};

#[test]
fn branches_in_an_item_keep_each_others_writes() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2]
    parallel: true
    saveAs: all
    result: { $expr: '[vars.x, vars.y]' }
    body:
      - { id: old, type: vars.set, values: { x: old } }
      - id: both
        type: control.parallel
        branches:
          - [{ id: first, type: vars.set, values: { x: new } }]
          - [{ id: second, type: vars.set, values: { y: { $expr: item } } }]
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    for newest_first in [false, true] {
        let mut world = World::start(text, json!({}));
        world.newest_first = newest_first;
        world.settle();
        assert_eq!(world.output(), json!([["new", 1], ["new", 2]]));
    }
}

#[test]
fn items_with_parallel_1_run_one_after_another() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: '[1..5]' }
    parallel: 1
    saveAs: all
    body:
      - { id: call, type: action.call, action: echo, input: { $expr: item } }
      - { id: wait, type: wait.signal, signal: NEXT }
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    for n in 1..=5 {
        assert_eq!((world.calls.len(), world.places()), (n, vec!["wait".to_owned()]));
        world.signal("NEXT", json!(n * 2)).expect("it is waited for");
    }
    assert_eq!(world.output(), json!([2, 4, 6, 8, 10]));
}

#[test]
fn events_reach_their_items_in_any_order() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [a, b, c]
    itemVar: who
    parallel: true
    saveAs: all
    body: [{ id: wait, type: wait.event, eventName: SAID, correlation: { event: event.who, run: who } }]
  - { id: done, type: control.return, value: { $expr: vars.all.what } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    for (who, what) in [("c", 3), ("a", 1), ("b", 2)] {
        assert!(world.signal("SAID", json!({"who": "nobody", "what": 0})).is_err());
        world.signal("SAID", json!({"who": who, "what": what})).expect("it is waited for");
    }
    assert_eq!(world.output(), json!([1, 2, 3]));
}

#[test]
fn many_failing_items_do_not_overflow_the_stack() {
    let bodies = [
        "{ id: nap, type: wait.sleep, until: { $expr: item.missing } }",
        "{ id: inner, type: control.forEach, parallel: true, items: { $expr: item.missing }, body: [{ id: x, type: action.call, action: echo }] }",
        "{ id: inner, type: control.forEach, items: { $expr: item.missing }, body: [{ id: x, type: action.call, action: echo }] }",
        "{ id: inner, type: control.forEach, items: [], body: [{ id: x, type: action.call, action: echo }] }",
    ];
    for (body, status) in bodies.iter().zip(["failed", "failed", "failed", "completed"]) {
        let text = format!(
            "
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: '[1..3000]' }}
    parallel: 1
    onItemError: collect
    saveAs: all
    body: [{body}]
  - {{ id: done, type: control.return, value: {{ $expr: '[$count(vars.all), $distinct(vars.all.status)]' }} }}
"
        );
        let world = World::start(&text, json!({})).run();
        assert_eq!(world.output(), json!([3000, status]), "{body}");
    }
}

#[test]
fn items_beyond_the_activation_limit_wait_their_turn() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: '[1..120]' }
    parallel: true
    saveAs: all
    body: [{ id: call, type: action.call, action: echo, input: { $expr: item } }]
  - { id: done, type: control.return, value: { $expr: $sum(vars.all) } }
";
    let limits = stepwell_core::Limits { activations: 50, ..Default::default() };
    let read = stepwell_core::WorkflowSource::read_within(text, Some("test"), &limits).expect("it is sound");
    let world = World::of(read.definition().clone(), json!({}));
    assert_eq!(world.snapshot.activations().len(), 50);
    assert_eq!(world.run().output(), json!(7260));
}

#[test]
fn first_failed_item_decides_and_ends_the_others() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [1, 2]
    itemVar: x
    parallel: true
    onItemError: collect
    saveAs: all
    body:
      - id: inner
        type: control.forEach
        items: { $expr: '[{\"n\": x}, {\"bad\": x = 2}, {\"bad\": x = 2}, {\"n\": 4}]' }
        itemVar: y
        parallel: 3
        saveAs: row
        body: [{ id: call, type: action.call, action: picky, input: { $expr: y } }]
      - { id: last, type: action.call, action: echo, input: { $expr: $count(vars.row) } }
  - { id: done, type: control.return, value: { $expr: vars.all } }
";
    for newest_first in [false, true] {
        let mut world = World::start(text, json!({})).action("picky", picky);
        world.newest_first = newest_first;
        world.settle();
        let output = world.output();
        assert_eq!(output[0], json!({"status": "completed", "output": 4}));
        assert_eq!(output[1]["error"]["code"], json!("bad"));
        assert!(world.snapshot.fork_instances().is_empty());
    }
}

#[test]
fn nested_loops_over_an_empty_list_complete() {
    // A change starts only a few rounds, so a loop without work pauses. Here each pause is in another of the loops.
    let text = "
steps:
  - id: a
    type: control.forEach
    items: { $expr: '[1..40]' }
    body:
      - id: b
        type: control.forEach
        items: [1]
        body:
          - { id: c, type: control.forEach, items: [], body: [{ id: x, type: action.call, action: echo }] }
  - { id: done, type: control.return, value: done }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("done"));
}

#[test]
fn error_of_a_too_long_list_can_be_caught() {
    for parallel in ["false", "true"] {
        let text = format!(
            "
steps:
  - id: each
    type: control.forEach
    items: {{ $expr: '[1..200000].{{ \"a\": \"some text that is repeated\" }}' }}
    parallel: {parallel}
    onError: [{{ id: caught, type: control.return, value: {{ $expr: error.message }} }}]
    body: [{{ id: call, type: action.call, action: echo }}]
"
        );
        let output = World::start(&text, json!({})).run().output();
        assert!(output.as_str().is_some_and(|text| text.contains("`each`")), "{output}");
    }
}

#[test]
fn failed_child_workflow_ends_the_other_branches() {
    let text = "
steps:
  - id: both
    type: control.parallel
    onError: [{ id: caught, type: control.return, value: { $expr: error.code } }]
    branches:
      - [{ id: child, type: workflow.call, workflow: other }]
      - [{ id: wait, type: human.task, title: Well? }]
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    assert_eq!(world.places(), ["child.child", "wait"]);
    world.child_ends("child.child", ChildEnd::Failed { error: Failure::new("down", "down") });
    assert_eq!(world.output(), json!("childrenFailed"));
}

#[test]
fn tasks_in_a_loop_use_their_own_item() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [a, b]
    saveAs: answers
    body: [{ id: ask, type: human.task, title: { $expr: '\"About \" & item' } }]
  - { id: done, type: control.return, value: { $expr: vars.answers } }
";
    let mut world = World::start(text, json!({}));
    world.settle_now();
    for name in ["a", "b"] {
        let asked = &world.snapshot.activations()[0].locals["prompt"];
        assert_eq!(asked, &json!({"title": format!("About {name}")}));
        world.signal("ask", json!(name)).expect("it is waited for");
    }
    assert_eq!(world.output(), json!(["a", "b"]));
}

#[test]
fn named_branches_keep_their_order_in_json() {
    let text = "
steps:
  - id: both
    type: control.parallel
    saveAs: results
    branches:
      slow: [{ id: a, type: action.call, action: echo, input: a }]
      fast: [{ id: b, type: action.call, action: echo, input: b }]
  - { id: done, type: control.return, value: { $expr: vars.results } }
";
    let read = super::document(text);
    let again = stepwell_core::WorkflowSource::of_value(read.value(), Some("test"))
        .expect("nothing is wrong with it");
    assert_eq!(again.definition().hash(), read.definition().hash());
    let outputs: Vec<Value> = [read, again]
        .iter()
        .map(|document| World::of(document.definition().clone(), json!({})).run().output())
        .collect();
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn item_writing_to_a_shared_object_keeps_its_other_fields() {
    let text = "
steps:
  - { id: shared, type: vars.set, values: { order: { id: 7 }, plain: text } }
  - id: each
    type: control.forEach
    items: [1, 2]
    parallel: true
    saveAs: all
    result: { $expr: vars.order }
    body:
      - { id: total, type: vars.set, values: { order.total: { $expr: item } } }
      - { id: wrong, type: vars.set, values: { plain.x: 1 }, onError: continue }
  - { id: done, type: control.return, value: { $expr: '[vars.all, vars.order]' } }
";
    let expected = json!([{"id": 7, "total": 1}, {"id": 7, "total": 2}, {"id": 7}]);
    assert_eq!(World::start(text, json!({})).run().output(), expected);
}

#[test]
fn writes_of_an_item_survive_a_failed_block() {
    for block in ["timeout: 1m", "retry: { attempts: 1, delay: 0 }, timeout: 1m", "retry: 0"] {
        let text = format!(
            "
steps:
  - id: each
    type: control.forEach
    items: [1]
    parallel: 2
    saveAs: all
    result: {{ $expr: vars.seen }}
    body:
      - id: block
        type: control.if
        condition: true
        {}
        onError: continue
        then:
          - {{ id: note, type: vars.set, values: {{ seen: {{ $expr: (vars.seen ?? 0) + 1 }} }} }}
          - {{ id: fail, type: control.fail }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.all }} }}
",
            block.replace("}, ", "}\n        ")
        );
        let times = if block.contains("attempts") { 2 } else { 1 };
        assert_eq!(World::start(&text, json!({})).run().output(), json!([times]), "{block}");
    }
}

#[test]
fn items_with_inner_blocks_respect_the_activation_limit() {
    let text = "
steps:
  - id: each
    type: control.forEach
    items: { $expr: '[1..60]' }
    parallel: true
    saveAs: all
    body:
      - { id: block, type: control.if, condition: true, timeout: 1m, then: [{ id: call, type: action.call, action: echo, input: { $expr: item } }] }
  - { id: done, type: control.return, value: { $expr: $count(vars.all) } }
";
    let limits = stepwell_core::Limits { activations: 50, ..Default::default() };
    let read = stepwell_core::WorkflowSource::read_within(text, Some("test"), &limits).expect("it is sound");
    assert_eq!(World::of(read.definition().clone(), json!({})).run().output(), json!(60));
}
