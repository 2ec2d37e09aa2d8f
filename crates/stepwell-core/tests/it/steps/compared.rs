//! Differences between two workflow documents.

use serde_json::{Value, json};
use stepwell_core::document::{Difference, DifferenceKind, MAX_DIFFERENCES, diff, to_json};

/// Returns the differences, one line each.
fn lines(from: &str, to: &str) -> Vec<String> {
    let read = |text: &str| to_json(text).expect("it is YAML");
    diff(&read(from), &read(to)).iter().map(ToString::to_string).collect()
}

const BASE: &str = "
metadata: { name: order }
spec:
  input: { type: object }
  steps:
    - { id: a, type: action.call, action: x, input: { url: one, list: [1, 2] } }
    - id: b
      type: control.if
      condition: payload.x
      then:
        - { id: c, type: vars.set, values: { n: 1 } }
        - { id: d, type: control.break }
    - { id: e, type: control.return }
";

#[test]
fn equal_documents_have_no_differences() {
    assert!(lines(BASE, BASE).is_empty());
}

#[test]
fn added_and_removed_steps_are_reported_by_id() {
    let to = BASE.replace(
        "    - { id: e, type: control.return }",
        "    - { id: f, type: wait.sleep, for: 1s }\n    - { id: e, type: control.return }",
    );
    assert_eq!(lines(BASE, &to), ["+ step `f` at /spec/steps/2"]);
    assert_eq!(lines(&to, BASE), ["- step `f` at /spec/steps/2"]);
    let without = BASE.replace("        - { id: d, type: control.break }\n", "");
    assert_eq!(lines(BASE, &without), ["- step `d` at /spec/steps/1/then/1"]);
}

#[test]
fn moved_step_is_reported_as_moved() {
    let lifted = BASE
        .replace("        - { id: d, type: control.break }\n", "")
        .replace("    - { id: e,", "    - { id: d, type: control.break }\n    - { id: e,");
    assert_eq!(lines(BASE, &lifted), ["> step `d` from \"/spec/steps/1/then/1\" to \"/spec/steps/2\""]);
    let c = "        - { id: c, type: vars.set, values: { n: 1 } }\n";
    let d = "        - { id: d, type: control.break }\n";
    let swapped = BASE.replace(&format!("{c}{d}"), &format!("{d}{c}"));
    assert_eq!(lines(BASE, &swapped).len(), 1, "one of two that have changed places has moved");
    let other = BASE.replace("      then:", "      else:");
    assert_eq!(lines(BASE, &other).len(), 2, "both steps are in another list");
}

#[test]
fn only_moved_steps_are_reported() {
    let list = |ids: &[usize]| {
        let steps: Vec<_> = ids.iter().map(|id| json!({"id": format!("s{id}"), "type": "x"})).collect();
        json!({ "steps": steps })
    };
    let ids = |differences: &[Difference]| -> Vec<String> {
        differences.iter().filter_map(|one| one.id.clone()).collect()
    };
    let found = diff(&list(&[0, 1, 2, 3, 4]), &list(&[1, 2, 3, 4, 0]));
    assert_eq!(ids(&found), ["s0"]);
    let found = diff(&list(&[0, 1, 2, 3, 4]), &list(&[0, 4, 1, 2, 9, 3]));
    assert_eq!(ids(&found), ["s4", "s9"]);
}

#[test]
fn changed_step_fields_are_reported_by_pointer() {
    let to = BASE.replace("url: one", "url: two").replace("list: [1, 2]", "list: [1, 3], more: true");
    let expected = [
        "~ step `a` /input/list/1: 2 -> 3",
        "~ step `a` /input/more: nothing -> true",
        "~ step `a` /input/url: \"one\" -> \"two\"",
    ];
    assert_eq!(lines(BASE, &to), expected);
    let longer = BASE.replace("list: [1, 2]", "list: [1, 2, 3]");
    assert_eq!(lines(BASE, &longer), ["~ step `a` /input/list: [1,2] -> [1,2,3]"]);
}

#[test]
fn changed_step_type_is_a_difference_of_its_own_kind() {
    let to = BASE.replace("{ id: e, type: control.return }", "{ id: e, type: control.fail }");
    let found = diff(&to_json(BASE).unwrap(), &to_json(&to).unwrap());
    assert_eq!((found.len(), found[0].kind), (1, DifferenceKind::TypeChanged));
    let told = serde_json::to_value(&found[0]).unwrap();
    let expected = json!({
        "kind": "typeChanged", "subject": "step", "id": "e", "pointer": "/type",
        "from": "control.return", "to": "control.fail"
    });
    assert_eq!(told, expected);
}

#[test]
fn changes_outside_steps_are_reported_by_pointer() {
    let to = BASE
        .replace("name: order", "name: orders")
        .replace("input: { type: object }", "trigger: { type: manual }");
    let expected = [
        "~ document /metadata/name: \"order\" -> \"orders\"",
        "~ document /spec/input: {\"type\":\"object\"} -> nothing",
        "~ document /spec/trigger: nothing -> {\"type\":\"manual\"}",
    ];
    assert_eq!(lines(BASE, &to), expected);
}

#[test]
fn steps_are_compared_in_every_nested_list() {
    let text = "
steps:
  - { id: t, type: control.try, body: [{ id: b1, type: x }], catch: { as: e, steps: [{ id: c1, type: x }] } }
  - { id: p, type: control.parallel, branches: { one: [{ id: p1, type: x }], two: { steps: [{ id: p2, type: x }] } } }
  - { id: q, type: control.parallel, branches: [[{ id: q1, type: x }], { name: n, steps: [{ id: q2, type: x }] }] }
  - { id: w, type: wait.signal, onTimeout: [{ id: w1, type: x }], onError: [{ id: w2, type: x }] }
";
    let to = text.replace("type: x }", "type: x, n: 1 }");
    let found = lines(text, &to);
    let expected: Vec<_> = ["b1", "c1", "p1", "p2", "q1", "q2", "w1", "w2"]
        .iter()
        .map(|id| format!("~ step `{id}` /n: nothing -> 1"))
        .collect();
    let (mut found, mut sorted) = (found, expected);
    found.sort();
    sorted.sort();
    assert_eq!(found, sorted);
    let fewer = text.replace("one: [{ id: p1, type: x }], ", "");
    assert_eq!(lines(text, &fewer), ["- step `p1` at /steps/1/branches/one/0"]);
    let handled = lines(
        "steps: [{ id: a, type: x, onError: continue }]",
        "steps: [{ id: a, type: x, onError: [{ id: b, type: x }] }]",
    );
    assert_eq!(
        handled,
        ["~ step `a` /onError: \"continue\" -> \"(steps)\"", "+ step `b` at /steps/0/onError/0"]
    );
}

#[test]
fn changed_places_and_transitions_are_reported_by_name() {
    let text = "
initial: a
places: { a: { kind: step }, b: { kind: step }, z: { kind: end } }
transitions: [{ id: go, from: a, to: b }, { id: end, from: b, to: z }]
";
    let to = text
        .replace("b: { kind: step }", "b: { kind: wait, signal: S }, c: { kind: step }")
        .replace("{ id: go, from: a, to: b }, ", "")
        .replace("{ id: end, from: b, to: z }", "{ id: end, from: c, to: z }, { id: go, from: a, to: b }");
    let mut found = lines(text, &to);
    found.sort();
    let expected = [
        "+ place `c` at /places/c",
        "> transition `end` from \"/transitions/1\" to \"/transitions/0\"",
        "~ place `b` /kind: \"step\" -> \"wait\"",
        "~ place `b` /signal: nothing -> \"S\"",
        "~ transition `end` /from: \"b\" -> \"c\"",
    ];
    assert_eq!(found, expected);
}

#[test]
fn excess_differences_are_only_counted() {
    let fields = |by: usize| -> Value {
        let fields = (0..5_000).map(|n| (format!("f{n}"), json!(n + by)));
        json!({"steps": [{"id": "a", "type": "x", "input": Value::Object(fields.collect())}]})
    };
    let found = diff(&fields(0), &fields(1));
    assert_eq!(found.len(), MAX_DIFFERENCES + 1);
    let last = found.last().unwrap();
    assert_eq!((last.kind, last.to.clone()), (DifferenceKind::More, Some(json!(4_000))));
}

#[test]
fn only_equal_values_have_no_differences() {
    let odd = [
        json!(null),
        json!([]),
        json!({"steps": 1}),
        json!({"steps": []}),
        json!({"steps": [1, {"id": "a"}]}),
        json!({"steps": [{"id": "a"}, {"id": "a", "n": 1}]}),
        json!({"steps": [{}, {}]}),
        json!({"spec": null}),
        json!({"spec": {"steps": [{"id": "a", "then": [], "branches": 3, "catch": "x"}]}}),
        json!({"spec": {"steps": [{"id": "a", "then": [{"id": "b"}], "branches": {"x": []}}]}}),
        json!({"places": [], "transitions": {}}),
        json!({"places": {"a/b": {}}, "transitions": [{"id": "~"}]}),
    ];
    for from in &odd {
        for to in &odd {
            assert_eq!(diff(from, to).is_empty(), from == to, "{from} and {to}");
        }
    }
}
