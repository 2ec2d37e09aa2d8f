//! Mistakes in a document are reported with their line and with advice.

use super::problems;

/// Returns each problem as its code and line.
fn found(text: &str) -> Vec<(String, usize)> {
    problems(text).0.into_iter().map(|problem| (problem.code, problem.at.line)).collect()
}

fn only(text: &str, code: &str, line: usize) {
    assert_eq!(found(text), [(code.to_owned(), line)], "{}", problems(text));
}

#[test]
fn every_mistake_is_reported_with_its_line() {
    let text = "apiVersion: stepwell/v1
kind: Workflow
metadata: { name: x }
spec:
  steps:
    - { id: a, type: action.cal }
    - { id: a, type: control.break }
    - { id: b, type: action.call, action: x, input: { y: { $expr: '1 +' } } }
    - { id: c, type: vars.set, value: { x: 1 } }
    - { id: d, type: wait.sleep, for: soon }
";
    let codes = [
        ("unknownType", 6),
        ("duplicateId", 7),
        ("noLoop", 7),
        ("unreachable", 8),
        ("badExpression", 8),
        ("missing", 9),
        ("type", 10),
        ("missing", 10),
    ];
    let found = found(text);
    for (code, line) in codes {
        assert!(found.contains(&(code.to_owned(), line)), "{code} in line {line}: {}", problems(text));
    }
}

#[test]
fn unknown_name_is_reported_with_a_suggestion() {
    let text = "steps:\n  - { id: a, type: action.call, action: x, input: { $expr: payloda.x } }\n";
    only(text, "unknownName", 2);
    assert!(problems(text).to_string().contains("did you mean `payload`"), "{}", problems(text));
}

#[test]
fn unwritten_variable_is_reported_with_a_suggestion() {
    let text = "steps:
  - { id: lookup, type: action.call, action: x }
  - { id: b, type: vars.set, values: { y: { $expr: 'vars.lokup.id' } } }
";
    only(text, "unknownName", 3);
    assert!(problems(text).to_string().contains("did you mean `lookup`"), "{}", problems(text));
}

#[test]
fn yaml_without_a_json_equivalent_is_refused() {
    only("a: 1\na: 2\n", "unreadable", 2);
    only("steps: [*x]\n", "unreadable", 1);
    only("steps: !!set {}\n", "unreadable", 1);
    only("steps:\n  - {id: a\n", "unreadable", 2);
    only("---\na: 1\n---\nb: 2\n", "unreadable", 3);
    only("steps: .nan\n", "unreadable", 1);
    only("x: 99999999999999999999\n", "unreadable", 1);
    only("", "unreadable", 1);
}
