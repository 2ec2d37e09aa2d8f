//! `stepwell workflow test` and `simulate`, as authors of documents use them.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{run, said};

/// Runs `stepwell` with a document on standard input: its exit code, and what it says.
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
  - name: whoever is new is greeted
    input: { who: ann }
    mocks: { send: { output: { id: g-1 } } }
    expect: { result: g-1 }
";

const SECOND: &str = "  - { name: nobody is greeted twice, input: { who: ann }, given: { store: [{ namespace: greetings, key: ann, value: 1 }] }, expect: { result: known } }\n";

#[test]
fn cases_that_pass_are_told_with_what_they_do_not_come_to() {
    let (code, out, err) = stepwell(&["workflow", "test", "-"], GREET);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let expected = "greet (-)\n  passed  whoever is new is greeted\n  steps 4 of 5, branches 1 of 2\n  not covered: line 5: `first`, else\n  not covered: line 9: `known`";
    assert_eq!(out, expected);
    let (code, out, err) = stepwell(&["workflow", "test", "-", "--full"], GREET);
    assert!(code == Some(7) && err.contains("do not come to every step") && out == expected, "{err}");
    let (code, out, _) = stepwell(&["workflow", "test", "-", "--full"], &format!("{GREET}{SECOND}"));
    assert!(code == Some(0) && out.ends_with("steps 5 of 5, branches 2 of 2"), "{out}");
}

#[test]
fn a_case_that_fails_is_told_with_its_line_and_why() {
    let broken = GREET.replace("result: g-1", "result: g-2");
    let (code, out, err) = stepwell(&["workflow", "test", "-"], &broken);
    assert_eq!((code, err.as_str()), (Some(7), "stepwell: 1 of 1 cases failed"));
    assert!(out.contains("FAILED  whoever is new is greeted (line 12)"), "{out}");
    assert!(out.contains("result: expected \"g-2\", got \"g-1\""), "{out}");
    let (code, out, err) = stepwell(&["workflow", "test", "-", "--json"], &broken);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, err.as_str(), &told["passed"]), (Some(7), "", &json!(false)));
    assert_eq!(told["cases"][0]["failures"], json!(["result: expected \"g-2\", got \"g-1\""]));
    assert_eq!(told["cases"][0]["simulated"]["steps"][1]["way"], json!("then"));
    assert_eq!(told["coverage"]["steps"], json!({"covered": 4, "total": 5}));
}

#[test]
fn a_call_that_is_not_mocked_fails_the_case() {
    let unmocked = GREET.replace("mocks: { send: { output: { id: g-1 } } }", "mocks: {}");
    let (code, out, _) = stepwell(&["workflow", "test", "-"], &unmocked);
    assert!(
        code == Some(7) && out.contains("step `send` calls `greetings.send`, which is not mocked"),
        "{out}"
    );
    assert!(out.contains("{\"key\":{\"$secret\":\"KEY\"},\"to\":\"ann\"}"), "{out}");
}

#[test]
fn one_case_is_run_by_its_name() {
    let two = format!("{GREET}{SECOND}");
    let (code, out, _) = stepwell(&["workflow", "test", "-", "--case", "nobody is greeted twice"], &two);
    assert!(code == Some(0) && !out.contains("whoever is new") && !out.contains("not covered"), "{out}");
    let (code, _, err) = stepwell(&["workflow", "test", "-", "--case", "somebody"], &two);
    assert!(
        code == Some(3) && err.contains("`somebody`") && err.contains("`nobody is greeted twice`"),
        "{err}"
    );
    let (code, _, _) = stepwell(&["workflow", "test", "-", "--case", "x", "--full"], &two);
    assert_eq!(code, Some(2));
}

#[test]
fn a_document_without_cases_says_so() {
    let (bare, _) = GREET.split_once("tests:").unwrap();
    let (code, out, _) = stepwell(&["workflow", "test", "-"], bare);
    assert!(code == Some(0) && out.contains("there are no test cases"), "{out}");
    assert_eq!(stepwell(&["workflow", "test", "-", "--full"], bare).0, Some(7));
}

#[test]
fn a_document_that_is_wrong_is_told_and_one_that_is_not_there_too() {
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
    assert!(code == Some(7) && err.starts_with("stepwell: the run has failed: "), "{err}");
    assert!(out.contains("send  action.call greetings.send (not mocked)\n  input   {\"key\":{\"$secret\":\"KEY\"},\"to\":\"bob\"}\n  output  null"), "{out}");
    let arguments = ["workflow", "simulate", file, "--case", "whoever is new is greeted"];
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
fn an_input_that_does_not_fit_is_a_run_that_failed() {
    let (code, out, err) = stepwell(&["workflow", "simulate", "-"], GREET);
    assert!(code == Some(7) && err.contains("who") && out.contains("greet failed"), "{out}{err}");
}

#[test]
fn another_document_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child.yaml");
    std::fs::write(&child, "steps: [{ id: a, type: control.return, value: 7 }]").unwrap();
    let text = "steps: [{ id: call, type: workflow.call, workflow: child }, { id: done, type: control.return, value: { $expr: vars.call } }]\ntests: [{ name: it is called, expect: { result: 7 } }]";
    let parent = folder.path().join("parent.yaml");
    std::fs::write(&parent, text).unwrap();
    let (parent, child) = (parent.to_str().unwrap(), child.to_str().unwrap());
    let (code, out, _) = stepwell(&["workflow", "test", parent], "");
    assert!(code == Some(7) && out.contains("the workflow `child`, which is not mocked"), "{out}");
    assert_eq!(stepwell(&["workflow", "test", parent, "--with", child], "").0, Some(0));
}

#[test]
fn the_examples_pass_and_come_to_every_step() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/workflows"));
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut arguments = vec!["workflow", "test", "--full"];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let (code, out, err) = stepwell(&arguments, "");
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(files.len() >= 13 && !out.contains("FAILED"), "{out}");
}
