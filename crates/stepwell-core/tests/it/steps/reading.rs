//! A document keeps what it says, in YAML and in JSON.

use serde_json::json;
use stepwell_core::Definition;
use stepwell_core::document::{self, Document};

use super::document;

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
fn a_definition_keeps_the_document_it_came_from() {
    let read = document(MIRROR);
    let kept = Definition::from_canonical(&read.definition().canonical()).expect("it can be read");
    assert_eq!(kept.spec().document.as_deref(), Some(read.value()));
    let value = kept.spec().document.as_deref().expect("it is kept");
    let again = Document::of_value(value, Some("test")).expect("nothing is wrong with it");
    assert_eq!(again.definition().hash(), read.definition().hash());
}

#[test]
fn places_and_transitions_are_a_document_too() {
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
fn an_editor_is_told_what_a_step_can_read() {
    let read = document(MIRROR);
    let names = read.in_scope("update").expect("there is such a step").names;
    let paths: Vec<_> = names.iter().map(|name| name.path.as_str()).collect();
    assert_eq!(paths, ["payload", "vars", "vars.lookup", "m", "meta"]);
    assert!(read.in_scope("nobody").is_none());
}

#[test]
fn the_schema_for_editors_takes_what_the_reader_takes() {
    let schema = jsonschema::validator_for(&document::schema()).expect("it is a schema");
    let read = document(MIRROR);
    assert!(schema.is_valid(read.value()));
    assert!(!schema.is_valid(&json!({"steps": [{"id": "a", "type": "action.cal"}]})));
}
