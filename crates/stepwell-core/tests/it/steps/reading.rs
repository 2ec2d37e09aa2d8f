//! Reading a workflow document, in YAML and in JSON.

use serde_json::json;
use stepwell_core::Definition;
use stepwell_core::document::{self, WorkflowSource};

use super::{World, document, problems};

const MIRROR: &str = r#"
trigger: { type: event, eventName: PROJECT_TASK_UPDATED }
steps:
  - id: lookup
    type: action.call
    config: { actionId: links.lookup }
    input: { namespace: "tasks",
             from: { type: "task", id: { $expr: "payload.task_id" } } }
  - id: fan-out
    type: control.forEach
    items: { $expr: "vars.lookup.matches" }
    itemVar: m
    body:
      - id: update
        type: action.call
        config: { actionId: tasks.update }
        input: { task_id: { $expr: "m.id" }, name: { $expr: "payload.changes.name" } }
"#;

#[test]
fn a_document_is_the_same_in_yaml_and_in_json() {
    let read = document(MIRROR);
    let again = document(&read.to_yaml());
    assert_eq!(read.value(), again.value());
    assert_eq!(read.definition().hash(), again.definition().hash());
    let json = serde_json::to_string(read.value()).expect("it is plain data");
    assert_eq!(document(&json).definition().hash(), read.definition().hash());
}

#[test]
fn definition_keeps_its_workflow_source() {
    let read = document(MIRROR);
    let kept = Definition::from_canonical(&read.definition().canonical()).expect("it can be read");
    assert_eq!(kept.spec().document.as_deref(), Some(read.value()));
    let value = kept.spec().document.as_deref().expect("it is kept");
    let again = WorkflowSource::of_value(value, Some("test")).expect("nothing is wrong with it");
    assert_eq!(again.definition().hash(), read.definition().hash());
}

#[test]
fn places_and_transitions_are_a_valid_document() {
    let read = document(
        "
apiVersion: stepwell/v1
kind: Workflow
metadata: { name: approval, version: 3 }
spec:
  initial: draft
  places: { draft: { kind: step }, approved: { kind: end } }
  signals: { APPROVE: {} }
  transitions: [{ id: approve, from: draft, to: approved, on: { signal: APPROVE } }]
",
    );
    assert_eq!((read.name(), read.version()), ("approval", 3));
    assert_eq!(read.definition().spec().places.len(), 2);
}

#[test]
fn names_in_scope_of_a_step_are_listed() {
    let read = document(MIRROR);
    let names = read.in_scope("update").expect("there is such a step").names;
    let paths: Vec<_> = names.iter().map(|name| name.path.as_str()).collect();
    assert_eq!(paths, ["payload", "vars", "vars.lookup", "m", "meta"]);
    assert!(read.in_scope("nobody").is_none());
}

#[test]
fn editor_schema_agrees_with_the_reader() {
    let schema = jsonschema::validator_for(&document::schema()).expect("it is a schema");
    let read = document(MIRROR);
    assert!(schema.is_valid(read.value()));
    assert!(!schema.is_valid(&json!({"steps": [{"id": "a", "type": "action.cal"}]})));
}

#[test]
fn zero_timeout_means_no_timeout() {
    let text = "
steps:
  - { id: wait, type: wait.signal, signal: GO, timeout: 0 }
  - { id: block, type: control.if, condition: true, timeout: 0s, then: [{ id: nap, type: wait.sleep, for: 1h }] }
  - { id: done, type: control.return, value: done }
";
    let mut world = World::start(text, json!({})).run();
    assert_eq!(world.places(), ["wait"]);
    world.signal("GO", json!(null)).expect("it is waited for");
    world.settle();
    assert_eq!(world.output(), json!("done"));
}

#[test]
fn output_schema_requires_a_result_on_every_path() {
    let text = |output: &str| {
        format!(
            "output: {output}\nsteps:\n  - {{ id: early, type: control.return, condition: payload.go, value: 1 }}\n  - {{ id: last, type: wait.sleep, for: 1s }}\n"
        )
    };
    let problems = problems(&text("{ type: integer }"));
    let found: Vec<_> = problems.0.iter().map(|one| (one.code.as_str(), one.at.line)).collect();
    assert_eq!(found, [("noResult", 4)], "{problems}");
    document(&text("{ type: [integer, 'null'] }"));
}

#[test]
fn conflicting_signal_payload_schemas_are_refused() {
    let text = |own: &str| {
        format!(
            "signals: {{ GO: {{ payload: {{ type: integer }} }} }}\nsteps:\n  - {{ id: a, type: wait.signal, signal: GO{own} }}\n"
        )
    };
    document(&text(""));
    document(&text(", payload: { type: integer }"));
    assert_eq!(problems(&text(", payload: { type: string }")).0[0].code, "conflict");
}

#[test]
fn loop_items_cannot_use_the_loops_own_item() {
    let text = "
steps:
  - id: outer
    type: control.forEach
    items: [{ in: [1] }]
    itemVar: x
    body:
      - { id: inner, type: control.forEach, items: { $expr: x.in }, body: [{ id: a, type: action.call, action: echo }] }
      - { id: wrong, type: control.forEach, items: { $expr: item.in }, body: [{ id: b, type: action.call, action: echo }] }
";
    let problems = problems(text);
    let found: Vec<_> = problems.0.iter().map(|one| (one.code.as_str(), one.step.as_deref())).collect();
    assert_eq!(found, [("unknownName", Some("wrong"))], "{problems}");
}

#[test]
fn task_description_may_be_an_expression() {
    let text = "
steps:
  - { id: ask, type: human.task, description: { $expr: '\"About \" & payload.what' } }
";
    let mut world = World::start(text, json!({"what": "it"}));
    world.settle_now();
    assert_eq!(world.snapshot.activations()[0].locals["prompt"], json!({"description": "About it"}));
}

#[test]
fn parallel_branches_must_not_write_the_same_variable() {
    let text = "
steps:
  - id: both
    type: control.parallel
    branches:
      - [{ id: a, type: vars.set, values: { x.left: 1 } }]
      - [{ id: b, type: action.call, action: echo, saveAs: x.right }]
";
    let problems = problems(text);
    let found: Vec<_> = problems.0.iter().map(|one| (one.code.as_str(), one.at.line)).collect();
    assert_eq!(found, [("conflict", 7)], "{problems}");
}

#[test]
fn position_of_a_step_input_is_known() {
    let text = "steps:
  - id: a
    type: action.call
    action: x
    input:
      list: [1, { deep: yes }]
  - { type: action.call, action: y }
";
    let read = document(text);
    let at = |step: &str, pointer: &str| {
        read.place_of_input(step, pointer).map(|place| (place.line, place.column))
    };
    assert_eq!(at("a", "/list/1/deep"), Some((6, 25)));
    assert_eq!(at("a", "/list/7"), Some((6, 13)), "as far as it is there");
    assert_eq!(at("step1", "/x"), Some((7, 5)), "without an input the step itself");
    assert_eq!(at("nobody", ""), None);
}

#[test]
fn steps_reachable_only_after_an_error_are_accepted() {
    let text = "
steps:
  - { id: early, type: control.return, value: { $expr: payload.x.y }, onError: continue }
  - { id: late, type: control.return, value: late }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("late"));
    assert_eq!(World::start(text, json!({"x": {"y": 1}})).run().output(), json!(1));
    let text = "
steps:
  - id: each
    type: control.forEach
    items: [1, 2]
    body:
      - id: try
        type: control.try
        body: [{ id: call, type: control.fail }]
        catch: [{ id: a, type: control.continue }]
        onError: [{ id: b, type: control.continue }]
  - { id: done, type: control.return, value: done }
";
    assert_eq!(World::start(text, json!({})).run().output(), json!("done"));
}

#[test]
fn return_without_a_value_has_no_result() {
    let text = "output: { type: object }\nsteps:\n  - { id: done, type: control.return }\n";
    assert_eq!(problems(text).0[0].code, "noResult");
}

#[test]
fn condition_and_timeout_cannot_use_the_steps_own_item() {
    for field in ["condition: item > 1", "timeout: { $expr: item }"] {
        let text = format!(
            "steps:\n  - {{ id: each, type: control.forEach, items: [1], {field}, body: [{{ id: a, type: action.call, action: echo }}] }}\n"
        );
        assert_eq!(problems(&text).0[0].code, "unknownName", "{field}");
    }
}

#[test]
fn branch_error_handlers_must_not_write_the_same_variable() {
    let branch = |id: &str| {
        format!(
            "[{{ id: {id}, type: control.forEach, items: [1], parallel: 2, onError: [{{ id: {id}2, type: vars.set, values: {{ x: 1 }} }}], body: [{{ id: {id}1, type: action.call, action: echo }}] }}]"
        )
    };
    let text = format!(
        "steps:\n  - id: both\n    type: control.parallel\n    branches:\n      - {}\n      - {}\n",
        branch("a"),
        branch("b")
    );
    assert_eq!(problems(&text).0[0].code, "conflict");
}

/// Regression: only the first of these problems was reported, at the start of `places`, without its place or field.
#[test]
fn mistakes_in_places_and_transitions_have_their_line() {
    let text = "
places:
  a: { kind: step }
  b: { kind: wait, singal: X }
  c: { kin: end }
transitions:
  - { id: go, from: a, to: c }
  - id: other
    from: a
    guard: { expr: 7 }
    to: c
  - from: a
    too: c
";
    let problems = stepwell_core::WorkflowSource::read(text, Some("wrong")).unwrap_err().to_string();
    for told in [
        "line 4, column 20: place `b`: `singal`: unknown field `singal`",
        "line 5, column 3: place `c`: missing field `kind`",
        "line 10, column 5: transition `other`: `guard`: invalid type: integer `7`",
        "line 13, column 5: transition 3: `too`: unknown field `too`",
    ] {
        assert!(problems.contains(told), "{told}\n{problems}");
    }
}

/// Returns the problems of a place graph with `fields` from line 6 on.
fn graph_problems(fields: &str) -> String {
    let text = format!(
        "apiVersion: stepwell/v1
kind: Workflow
metadata: {{ name: wrong }}
spec:
  places: {{ a: {{ kind: step }}, c: {{ kind: end }} }}
{fields}
"
    );
    stepwell_core::WorkflowSource::read(&text, None).expect_err("the document has problems").to_string()
}

/// Regression: these were reported at the line of `places`, without the field.
#[test]
fn graph_fields_of_the_wrong_type_have_their_line() {
    let wrong = [
        ("  initial: [a]", "line 6, column 3: `initial`: invalid type: sequence"),
        ("  firing: some", "line 6, column 3: `firing`: unknown variant `some`"),
        ("  completion: never", "line 6, column 3: `completion`: unknown variant `never`"),
        (
            "  initial: a\n  transitions: { go: 1 }",
            "line 7, column 3: `transitions` must be a list, not an object",
        ),
        ("  initial: a\n  signals: [GO]", "line 7, column 3: `signals` must be an object, not a list"),
        (
            "  signals:\n    GO: {}\n    STOP: { payloda: {} }",
            "line 8, column 13: signal `STOP`: `payloda`: unknown field",
        ),
        (
            "  shadows:\n    total: { path: total, type: money }",
            "line 7, column 27: shadow column `total`: `type`: unknown variant `money`",
        ),
        ("  documents: 7", "line 6, column 3: `documents` must be an object, not a number"),
    ];
    for (fields, told) in wrong {
        let problems = graph_problems(fields);
        assert!(problems.contains(told), "{told}\n{problems}");
    }
}

/// Regression: these were reported at the first line of the document.
#[test]
fn graph_fields_with_a_wrong_value_have_their_line() {
    let rest = "  transitions: [{ id: go, from: a, to: c }]\n";
    let wrong = [
        ("  initial: b", "line 7, column 3: `initial`: the initial place `b` does not exist"),
        ("  initial: a\n  context: { type: 7 }", "line 8, column 3: `context`: the context schema"),
        (
            "  initial: a\n  documents:\n    note: { type: 7 }",
            "line 9, column 5: document `note`: the schema",
        ),
        (
            "  initial: a\n  signals:\n    GO: { payload: { type: 7 } }",
            "line 9, column 5: signal `GO`: the payload schema",
        ),
        (
            "  initial: a\n  shadows:\n    'a b': { path: x, type: string }",
            "line 9, column 5: shadow column `a b`: ",
        ),
    ];
    for (fields, told) in wrong {
        let problems = graph_problems(&format!("{rest}{fields}"));
        assert!(problems.contains(told), "{told}\n{problems}");
    }
}

#[test]
fn signals_of_steps_have_their_line() {
    let text = "signals:\n  GO: { payloda: {} }\nsteps: []\n";
    let problems = stepwell_core::WorkflowSource::read(text, Some("wrong")).unwrap_err().to_string();
    assert!(problems.contains("line 2, column 9: signal `GO`: `payloda`: unknown field"), "{problems}");
}

/// Regression: in a result, a variable or a prompt, the marker of a secret was taken as data.
#[test]
fn secrets_are_allowed_only_in_action_inputs() {
    let marker = "{ $secret: TOKEN }";
    for step in [
        "{ id: a, type: control.return, value: [MARKER] }",
        "{ id: a, type: vars.set, values: { x: MARKER } }",
        "{ id: a, type: human.task, title: ok, data: { x: MARKER } }",
        "{ id: a, type: control.fail, code: x, message: MARKER }",
        "{ id: a, type: control.forEach, items: [MARKER], body: [{ id: b, type: vars.set, values: { x: 1 } }] }",
    ] {
        let text = format!("steps:\n  - {}\n", step.replace("MARKER", marker));
        let problems = stepwell_core::WorkflowSource::read(&text, Some("wrong")).unwrap_err().to_string();
        assert!(
            problems.contains("a secret is allowed only in the input of an action"),
            "{step}\n{problems}"
        );
    }
    let text = "steps:\n  - { id: a, type: action.call, action: http.request, input: { url: { $secret: TOKEN } } }\n";
    assert!(stepwell_core::WorkflowSource::read(text, Some("right")).is_ok());
}

/// Regression: an expression without `$expr` was taken as a list of one string.
#[test]
fn items_must_be_a_list_or_an_expression() {
    let body = "body: [{ id: b, type: vars.set, values: { x: 1 } }]";
    for (items, is_right) in [
        ("payload.names", false),
        ("7", false),
        ("{ $expr: payload.names }", true),
        ("[payload.names]", true),
    ] {
        let text = format!("steps:\n  - {{ id: a, type: control.forEach, items: {items}, {body} }}\n");
        let read = stepwell_core::WorkflowSource::read(&text, Some("loop"));
        assert_eq!(read.is_ok(), is_right, "{items}");
        if let Err(problems) = read {
            let told = problems.to_string();
            assert!(
                told.contains("line 2, column 44: ") && told.contains("write a list, or `{ $expr: … }`"),
                "{told}"
            );
        }
    }
}
