//! The binary, as a person uses it; routes and outlets, as programs and people do.
#![allow(clippy::unwrap_used)]

mod api;
mod audit;
mod cases;
mod commands;
mod data;
mod documents;
mod email;
mod events;
mod expr;
mod flows;
mod handles;
mod http;
mod kit;
mod kv;
mod link;
mod links;
mod mails;
mod site;
mod smtp;
mod state;
mod table;
mod tenants;
mod tokens;
mod transports;
mod upkeep;
mod web;
mod webhook;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const STEPWELL: &str = env!("CARGO_BIN_EXE_stepwell");

/// Runs the program with `input` on standard input.
fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(STEPWELL);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading, if its arguments are wrong.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// The exit code, and what was said on standard output and standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn dev(data: &Path, pause_ms: u32) -> Command {
    let mut command = Command::new(STEPWELL);
    command.arg("dev").arg("--json").args(["--pause-ms", &pause_ms.to_string(), "--data"]).arg(data);
    command
}

fn versions(lines: &[String]) -> Vec<(String, u64)> {
    let parsed = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    parsed
        .map(|line| {
            let run = line["run"].as_str().unwrap().to_owned();
            (run, line["checkpoint"]["version"].as_u64().unwrap())
        })
        .collect()
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8(output.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_run_that_is_killed_continues_from_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = dev(folder.path(), 20).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let before: Vec<_> = said.by_ref().take(3).map(Result::unwrap).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    let before = versions(&[before, rest].concat());

    let again = dev(folder.path(), 0).output().unwrap();
    assert!(again.status.success());
    let after = versions(&lines(&again));
    let (run, last) = before.last().unwrap();
    assert!(after.iter().all(|(other, _)| other == run), "the same run goes on");
    // A checkpoint may have been committed and not printed when the kill came.
    assert!((last + 1..=last + 2).contains(&after[0].1), "{before:?} then {after:?}");
    assert_eq!(after.last().unwrap().1, 6, "it comes to its end");
    let contiguous = after.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1);
    assert!(contiguous, "{after:?}");
}

#[test]
fn a_second_process_on_the_same_folder_is_told_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = dev(folder.path(), 60_000).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let second = dev(folder.path(), 0).output().unwrap();
    let pid = first.id();
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.status.code(), Some(4));
    let message = String::from_utf8(second.stderr).unwrap();
    assert!(message.contains(&format!("in use by process {pid}")), "{message}");
}

#[test]
fn a_reader_that_goes_away_is_not_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = dev(folder.path(), 5).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !message.contains("panicked"), "{message}");
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
fn a_sound_definition_is_valid_and_has_a_hash() {
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
fn everything_wrong_is_said_at_once_with_exit_code_6() {
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
fn what_is_not_json_or_not_there_gets_its_own_error() {
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
fn a_wrong_word_is_a_usage_error() {
    let output = Command::new(STEPWELL).arg("wrkflow").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
