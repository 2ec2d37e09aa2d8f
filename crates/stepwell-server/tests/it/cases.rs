//! `stepwell workflow test` and `stepwell workflow simulate`, as authors of workflow documents use them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{run, said};

/// Runs `stepwell` with a document on standard input. Returns its exit code, standard output and standard error.
fn stepwell(arguments: &[&str], document: &str) -> (Option<i32>, String, String) {
    said(&run(arguments, document))
}

const GREET: &str = "\
name: greet
input: { type: object, required: [who] }
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: greetings, key: { $expr: payload.who } } }
  - id: first
    type: control.if
    condition: vars.count.value = 1
    then: [{ id: send, type: action.call, action: greetings.send, input: { to: { $expr: payload.who }, key: { $secret: KEY } } }]
    else: [{ id: known, type: control.return, value: known }]
  - { id: done, type: control.return, value: { $expr: vars.send.id } }
tests:
  - name: a new visitor is greeted
    input: { who: ann }
    mocks: { send: { output: { id: g-1 } } }
    expect: { result: g-1 }
";

const SECOND: &str = "  - { name: no visitor is greeted twice, input: { who: ann }, given: { store: [{ namespace: greetings, key: ann, value: 1 }] }, expect: { result: known } }\n";

#[test]
fn passing_cases_are_reported_with_their_coverage() {
    let (code, out, err) = stepwell(&["workflow", "test", "-"], GREET);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let expected = "greet (-)\n  passed  a new visitor is greeted\n  steps 4 of 5, branches 1 of 2\n  not covered: line 5: `first`, else\n  not covered: line 9: `known`";
    assert_eq!(out, expected);
    let (code, out, err) = stepwell(&["workflow", "test", "-", "--full"], GREET);
    assert!(code == Some(7) && err.contains("do not cover every step") && out == expected, "{err}");
    let (code, out, _) = stepwell(&["workflow", "test", "-", "--full"], &format!("{GREET}{SECOND}"));
    assert!(code == Some(0) && out.ends_with("steps 5 of 5, branches 2 of 2"), "{out}");
}

#[test]
fn a_failing_case_is_reported_with_line_and_reason() {
    let broken = GREET.replace("result: g-1", "result: g-2");
    let (code, out, err) = stepwell(&["workflow", "test", "-"], &broken);
    assert_eq!((code, err.as_str()), (Some(7), "stepwell: 1 of 1 test cases failed"));
    assert!(out.contains("FAILED  a new visitor is greeted (line 12)"), "{out}");
    assert!(out.contains("result: expected \"g-2\", got \"g-1\""), "{out}");
    let (code, out, err) = stepwell(&["workflow", "test", "-", "--json"], &broken);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, err.as_str(), &told["passed"]), (Some(7), "", &json!(false)));
    assert_eq!(told["cases"][0]["failures"], json!(["result: expected \"g-2\", got \"g-1\""]));
    assert_eq!(told["cases"][0]["simulated"]["steps"][1]["way"], json!("then"));
    assert_eq!(told["coverage"]["steps"], json!({"covered": 4, "total": 5}));
}

#[test]
fn an_unmocked_call_fails_the_case() {
    let unmocked = GREET.replace("mocks: { send: { output: { id: g-1 } } }", "mocks: {}");
    let (code, out, _) = stepwell(&["workflow", "test", "-"], &unmocked);
    assert!(
        code == Some(7) && out.contains("step `send` calls `greetings.send`, which has no mock"),
        "{out}"
    );
    assert!(out.contains("{\"key\":{\"$secret\":\"KEY\"},\"to\":\"ann\"}"), "{out}");
}

#[test]
fn a_single_case_is_run_by_name() {
    let two = format!("{GREET}{SECOND}");
    let (code, out, _) = stepwell(&["workflow", "test", "-", "--case", "no visitor is greeted twice"], &two);
    assert!(code == Some(0) && !out.contains("a new visitor") && !out.contains("not covered"), "{out}");
    let (code, _, err) = stepwell(&["workflow", "test", "-", "--case", "missing"], &two);
    assert!(
        code == Some(3) && err.contains("`missing`") && err.contains("`no visitor is greeted twice`"),
        "{err}"
    );
    let (code, _, _) = stepwell(&["workflow", "test", "-", "--case", "x", "--full"], &two);
    assert_eq!(code, Some(2));
}

#[test]
fn a_document_without_cases_is_reported() {
    let (bare, _) = GREET.split_once("tests:").unwrap();
    let (code, out, _) = stepwell(&["workflow", "test", "-"], bare);
    assert!(code == Some(0) && out.contains("no test cases"), "{out}");
    assert_eq!(stepwell(&["workflow", "test", "-", "--full"], bare).0, Some(7));
}

#[test]
fn an_invalid_or_missing_document_is_reported() {
    let broken = GREET.replace("mocks: { send:", "mocks: { sned:");
    let (code, out, err) = stepwell(&["workflow", "test", "-"], &broken);
    assert_eq!((code, out.as_str()), (Some(6), ""));
    assert!(err.contains("line 14, column") && err.contains("did you mean `send`?"), "{err}");
    let (code, out, _) = stepwell(&["workflow", "test", "-", "--json"], &broken);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &told["valid"], &told["problems"][0]["code"]),
        (Some(6), &json!(false), &json!("unknownName"))
    );
    assert_eq!(stepwell(&["workflow", "test", "/nowhere/greet.yaml"], "").0, Some(3));
}

#[test]
fn a_simulation_shows_each_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greet.yaml");
    std::fs::write(&file, GREET).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = stepwell(&["workflow", "simulate", file, "--input", "-"], "{\"who\": \"bob\"}");
    assert!(code == Some(7) && err.starts_with("stepwell: the run failed: "), "{err}");
    assert!(out.contains("send  action.call greetings.send (not mocked)\n  input   {\"key\":{\"$secret\":\"KEY\"},\"to\":\"bob\"}\n  output  null"), "{out}");
    let arguments = ["workflow", "simulate", file, "--case", "a new visitor is greeted"];
    let (code, out, _) = stepwell(&arguments, "");
    assert!(code == Some(0) && out.contains("first  control.if: then"), "{out}");
    assert!(out.contains("count  action.call store.increment\n  input   {\"key\":\"ann\",\"namespace\":\"greetings\"}\n  output  {\"revision\":1,\"value\":1}"), "{out}");
    assert!(out.contains("result  \"g-1\"") && out.contains("store   greetings/ann = 1"), "{out}");
    let (code, out, _) = stepwell(&[&arguments[..], &["--json"]].concat(), "");
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told["outcome"], &told["result"]), (Some(0), &json!("completed"), &json!("g-1")));
    assert_eq!(stepwell(&["workflow", "simulate", file, "--case", "other"], "").0, Some(3));
    assert_eq!(stepwell(&["workflow", "simulate", "-", "--input", "-"], "").0, Some(6));
}

#[test]
fn an_invalid_input_is_a_failed_run() {
    let (code, out, err) = stepwell(&["workflow", "simulate", "-"], GREET);
    assert!(code == Some(7) && err.contains("who") && out.contains("greet failed"), "{out}{err}");
}

#[test]
fn called_workflows_can_be_passed_as_documents() {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child.yaml");
    std::fs::write(&child, "steps: [{ id: a, type: control.return, value: 7 }]").unwrap();
    let text = "steps: [{ id: call, type: workflow.call, workflow: child }, { id: done, type: control.return, value: { $expr: vars.call } }]\ntests: [{ name: it is called, expect: { result: 7 } }]";
    let parent = folder.path().join("parent.yaml");
    std::fs::write(&parent, text).unwrap();
    let (parent, child) = (parent.to_str().unwrap(), child.to_str().unwrap());
    let (code, out, _) = stepwell(&["workflow", "test", parent], "");
    assert!(code == Some(7) && out.contains("the workflow `child`, which has no mock"), "{out}");
    assert_eq!(stepwell(&["workflow", "test", parent, "--with", child], "").0, Some(0));
}

#[test]
fn the_examples_pass_with_full_coverage() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workflows"));
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut arguments = vec!["workflow", "test", "--full"];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let (code, out, err) = stepwell(&arguments, "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(files.len() >= 13 && !out.contains("FAILED"), "{out}");
}
