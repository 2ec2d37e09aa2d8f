//! Integration tests of the `stepwell` binary, the HTTP API and the outlets.
#![allow(clippy::unwrap_used)]

mod actions;
mod answers;
mod api;
mod audit;
mod bad_rows;
mod bulk;
mod cases;
mod catalogue;
mod cli;
mod command_line;
mod commands;
mod contract;
mod data;
mod databases;
mod deleting;
mod doctor;
mod documents;
mod email;
mod emitted;
mod events;
mod expr;
mod expressions;
mod first_hour;
mod flow_settings;
mod flows;
mod handles;
mod hardening;
mod http;
mod inputs;
mod isolation;
mod issuer;
mod keeping;
mod kit;
mod kv;
mod link;
mod links;
mod logs;
mod mails;
mod maintenance;
mod manual;
mod oidc;
mod pauses;
mod people;
mod policies;
mod previews;
mod records;
mod richer;
mod run_filters;
mod run_limits;
mod schedules;
mod serving;
mod site;
mod smtp;
mod state;
mod table;
mod tasks;
mod telemetry;
mod tenants;
mod test_server;
mod tls;
mod tokens;
mod transports;
mod triggers;
mod web;
mod webhook;
mod workers;
mod workflows;

use std::io::Write;
use std::process::{Command, Output, Stdio};

const STEPWELL: &str = env!("CARGO_BIN_EXE_stepwell");

/// Runs the program with `input` on standard input.
fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(STEPWELL);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The write fails if the program exits without reading because its arguments are wrong.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns the exit code, the standard output and the standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn validate(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(STEPWELL)
        .args(["workflow", "validate"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn valid_definition_has_a_hash() {
    let sound = r#"{"name": "one", "initial": "begin",
        "places": {"begin": {"kind": "step"}, "done": {"kind": "end"}},
        "transitions": [{"id": "go", "from": "begin", "to": "done"}]}"#;
    let output = validate(&["--json", "-"], sound);
    assert!(output.status.success());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["valid"], true);
    assert_eq!(said["hash"].as_str().unwrap().len(), 64);
}

#[test]
fn all_problems_are_reported_with_exit_code_6() {
    let broken = r#"{"name": "two", "initial": "begin",
        "places": {"begin": {"kind": "step"}, "done": {"kind": "end"}, "island": {"kind": "end"}},
        "transitions": [{"id": "go", "from": "begin", "to": "don"}]}"#;
    let output = validate(&["-"], broken);
    assert_eq!(output.status.code(), Some(6));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("transition `go`") && message.contains("did you mean `done`?"), "{message}");
    assert!(message.contains("place `island`"), "{message}");
}

#[test]
fn malformed_and_missing_files_are_reported() {
    let output = validate(&["--json", "-"], "{\"name\": \"x\",\n  \"plces\": {}}");
    assert_eq!(output.status.code(), Some(6));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["valid"], false);
    assert!(said["problems"][0]["where"].as_str().unwrap().starts_with("line 2"), "{said}");
    assert!(said["problems"][0]["message"].as_str().unwrap().contains("plces"), "{said}");
    let missing = validate(&["no-such-file.json"], "");
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("no-such-file.json"));
}

#[test]
fn unknown_command_is_a_usage_error() {
    let output = Command::new(STEPWELL).arg("wrkflow").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
