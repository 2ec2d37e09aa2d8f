//! Test cases in a workflow document: their contents, their mistakes, and that they do not change the workflow.

use serde_json::json;
use stepwell_core::document::cases::{CaseOutcome, Happening, Mock, duration};
use stepwell_core::document::{self, WorkflowSource};
use stepwell_core::{Failure, Timestamp};

use super::{document, problems};
use crate::driver::at;

const ORDER: &str = "
trigger: { type: event, eventName: ORDERED, input: { order: { $expr: event.id } } }
steps:
  - { id: charge, type: action.call, action: bank.charge, input: { order: { $expr: payload.order } } }
  - { id: paid, type: wait.signal, signal: PAID, timeout: P1D, onTimeout: [] }
  - { id: ship, type: workflow.call, workflow: shipping }
";

const TESTS: &str = "
tests:
  - name: all is well
    now: 2026-03-01T08:00:00Z
    event: { name: ORDERED, data: { id: o-1 } }
    secrets: { BANK: x }
    given:
      store: [{ namespace: n, key: k, value: 1 }]
      links: [{ namespace: n, from: { type: a, id: '1' }, to: { type: b, id: '2' }, relation: r, attributes: { x: 1 } }]
    mocks:
      charge: [{ error: { code: connect } }, { output: { id: { $expr: input.order } } }]
      workflow.call: { output: null }
    happens: [{ after: PT90S }, { signal: PAID, payload: { cents: 5 } }, { event: SHIPPED, data: {} }, { cancel: true }]
    expect:
      outcome: cancelled
      result: 1
      vars: { charge: { id: o-1 } }
      calls: [{ step: charge, input: { order: o-1 } }, { action: workflow.call }]
      store: [{ namespace: n, key: k, value: 1 }]
";

#[test]
fn case_has_givens_happenings_and_expectations() {
    let read = document(&format!("{ORDER}{TESTS}"));
    let [case] = read.cases() else { panic!("{:?}", read.cases()) };
    assert_eq!((case.name.as_str(), case.at.line), ("all is well", 9));
    assert_eq!(case.now, "2026-03-01T08:00:00Z".parse::<Timestamp>().ok());
    assert_eq!(case.event.as_ref().map(|event| &event.data), Some(&json!({"id": "o-1"})));
    assert_eq!((case.given.store.len(), case.given.links.len()), (1, 1));
    let charge = [
        Mock::Error(Failure::new("connect", "connect")),
        Mock::Output(json!({"id": {"$expr": "input.order"}})),
    ];
    assert_eq!(case.mocks["charge"], charge);
    assert_eq!(case.mocks["workflow.call"], [Mock::Output(json!(null))]);
    assert_eq!(case.happens[0], Happening::After { ms: 90_000 });
    assert_eq!(case.happens[3], Happening::Cancel { cancel: true });
    assert_eq!((case.expect.outcome, case.expect.calls.len()), (CaseOutcome::Cancelled, 2));
    assert_eq!(read.input_of_event("ORDERED", &json!({"id": 7}), at(0)), Some(Ok(json!({"order": 7}))));
    assert_eq!(read.input_of_event("OTHER", &json!({}), at(0)), None);
}

#[test]
fn outcome_is_inferred_from_the_expectation() {
    for (expect, outcome) in [
        ("{}", CaseOutcome::Completed),
        ("{ error: { code: x } }", CaseOutcome::Failed),
        ("{ waits: [paid] }", CaseOutcome::Waiting),
        ("{ waits: [paid], outcome: completed }", CaseOutcome::Completed),
    ] {
        let read = document(&format!("{ORDER}tests: [{{ name: one, expect: {expect} }}]"));
        assert_eq!(read.cases()[0].expect.outcome, outcome, "{expect}");
    }
}

#[test]
fn tests_are_kept_but_do_not_change_the_hash() {
    let (with, without) = (document(&format!("{ORDER}{TESTS}")), document(ORDER));
    assert_eq!(with.definition().hash(), without.definition().hash());
    assert_eq!(with.definition().spec().document.as_deref(), Some(without.value()));
    assert!(without.cases().is_empty() && with.value()["tests"].is_array());
    let again = document(&with.to_yaml());
    assert_eq!((again.value(), again.cases().len()), (with.value(), 1));
    let of_value = WorkflowSource::of_value(with.value(), Some("test")).expect("nothing is wrong with it");
    assert_eq!(of_value.cases()[0].expect, with.cases()[0].expect);
}

#[test]
fn case_round_trips_through_yaml() {
    let read = document(&format!("{ORDER}{TESTS}"));
    let mut value = read.value().clone();
    value["tests"] = json!(read.cases());
    let again = document(&document::yaml(&value));
    assert_eq!(json!(again.cases()), json!(read.cases()));
    let told: Vec<_> = [0, 1_500, 90_000, 86_400_000].into_iter().map(duration).collect();
    assert_eq!(told, ["PT0S", "PT1.500S", "PT90S", "P1D"]);
}

#[test]
fn envelope_has_tests_next_to_its_spec() {
    let text =
        "metadata: { name: a }\nspec: { steps: [{ id: x, type: control.return }] }\ntests: [{ name: one }]";
    assert_eq!(document(text).cases().len(), 1);
    let inside = "metadata: { name: a }\nspec: { steps: [{ id: x, type: control.return }], tests: [] }";
    assert_eq!(problems(inside).0[0].code, "unknownField");
}

#[test]
fn place_graphs_can_have_tests() {
    let text = "
signals: { GO: {} }
initial: shut
places: { shut: { kind: wait, signal: GO }, open: { kind: end } }
transitions: [{ id: go, from: shut, to: open, action: { name: bell.ring } }]
tests: [{ name: one, mocks: { go: {} }, happens: [{ signal: GO }], expect: { calls: [{ step: go }] } }]
";
    let read = document(text);
    let outline = read.outline();
    let steps: Vec<_> = outline.steps.iter().map(|step| (step.id.as_str(), step.at.line)).collect();
    assert_eq!(steps, [("open", 4), ("shut", 4)]);
    assert_eq!(outline.ways[0].way, "go");
    assert_eq!(problems(&text.replace("mocks: { go:", "mocks: { og:")).0[0].code, "unknownName");
}

#[test]
fn mistakes_in_a_test_are_reported_at_their_line() {
    let told = |test: &str| {
        let problems = problems(&format!("{ORDER}tests:\n  - name: one\n    {test}\n"));
        let [problem] = problems.0.as_slice() else { panic!("{test}: {problems}") };
        assert_eq!(problem.at.line, 9, "{problem}");
        (problem.code.clone(), problem.message.clone())
    };
    for (test, code, part) in [
        ("mocks: { chrage: {} }", "unknownName", "did you mean `charge`?"),
        ("mocks: { bank.charg: {} }", "unknownName", "did you mean `bank.charge`?"),
        ("mocks: { paid: {} }", "noEffect", "calls no action"),
        ("mocks: { charge: [] }", "empty", "`charge`"),
        ("mocks: { charge: { output: 1, error: { code: x } } }", "conflict", "not both"),
        ("mocks: { charge: { outptu: 1 } }", "unknownField", "did you mean `output`?"),
        ("mocks: { charge: { output: { $expr: inptu.x } } }", "unknownName", "did you mean `input`?"),
        ("mocks: { charge: { output: { $expr: '1 +' } } }", "badExpression", ""),
        ("mocks: { charge: { error: {} } }", "missing", "`code`"),
        ("happens: [{ signal: PAYD }]", "unknownName", "did you mean `PAID`?"),
        ("happens: [{ after: soon }]", "type", "duration"),
        ("happens: [{}]", "missing", "`after`"),
        ("happens: [{ after: 1s, signal: PAID }]", "missing", "one of"),
        ("event: { name: ORDRED }", "unknownName", "did you mean `ORDERED`?"),
        ("now: yesterday", "value", "timestamp"),
        ("given: { store: [{ namespace: n }] }", "missing", "`key`"),
        ("expect: { outcome: complete }", "value", "did you mean `completed`?"),
        ("expect: { calls: [{ step: chrage }] }", "unknownName", "did you mean `charge`?"),
        ("expect: { calls: [{ action: bank.chrge }] }", "unknownName", "did you mean `bank.charge`?"),
        ("expect: { calls: [{}] }", "missing", "`step` or `action`"),
        ("expect: { waits: [payd] }", "unknownName", "did you mean `paid`?"),
        ("expects: {}", "unknownField", "did you mean `expect`?"),
    ] {
        let (found, message) = told(test);
        assert!(found == code && message.contains(part), "{test}: {found}: {message}");
    }
    let twice = problems(&format!(
        "{ORDER}tests: [{{ name: one }}, {{ name: one }}, {{ input: 1, event: {{ name: ORDERED }} }}]"
    ));
    let codes: Vec<_> = twice.0.iter().map(|problem| problem.code.as_str()).collect();
    assert_eq!(codes, ["conflict", "missing", "conflict"]);
}

#[test]
fn json_schema_covers_tests() {
    let validator = jsonschema::validator_for(&document::schema()).expect("it is a schema");
    let value = document(&format!("{ORDER}{TESTS}")).value().clone();
    assert!(validator.is_valid(&value));
    let mut broken = value.clone();
    broken["tests"][0]["expect"]["outcome"] = json!("complete");
    assert!(!validator.is_valid(&broken));
    let mut broken = value;
    broken["tests"][0]["happens"][0] = json!({"befor": "PT1S"});
    assert!(!validator.is_valid(&broken));
}

#[test]
fn continue_step_has_a_place_but_no_branch_in_the_outline() {
    let read = document(
        "
steps:
  - id: each
    type: control.forEach
    items: [1]
    body: [{ id: skip, type: control.continue }]
",
    );
    assert!(read.definition().spec().places.contains_key("skip"), "a step has a place of its name");
    let ways: Vec<_> = read.outline().ways.iter().map(|way| (way.step.clone(), way.way.clone())).collect();
    assert_eq!(ways, [("each".to_owned(), "body".to_owned())]);
}
