//! The command line as people use it: tables, drawings, words, arguments and errors.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use stepwell_server::api::openapi;

use crate::said;
use crate::serving::{Serving, dev, stepwell};

/// A development server with the folder that commands run in.
struct Desk {
    folder: tempfile::TempDir,
    server: Serving,
}

impl Desk {
    fn open() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let server = dev(folder.path());
        Desk { folder, server }
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = stepwell(self.folder.path());
        command.args(arguments).env("STEPWELL_SERVER", format!("http://{}", self.server.address));
        command
    }

    /// Runs a command. Returns the exit code, the standard output and the standard error.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        said(&self.command(arguments).output().unwrap())
    }

    #[track_caller]
    fn out(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {out} {err}");
        out
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.out(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs a command whose standard output is a terminal. Returns its output and its standard error.
    #[track_caller]
    fn on_terminal(&self, columns: u16, arguments: &[&str]) -> (String, String) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(terminal).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command holds the terminal open too.
        drop(command);
        let (mut out, mut controller) = (Vec::new(), File::from(controller));
        // Reading ends with an error when the program has closed the terminal.
        let _ = controller.read_to_end(&mut out);
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        let out = String::from_utf8(out).unwrap().replace('\r', "");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}: {out} {err}");
        (out, err)
    }

    /// Starts the run of a workflow and returns its id.
    fn start(&self, workflow: &str, input: &str) -> String {
        self.json(&["run", "start", workflow, "--input", input])["id"].as_str().unwrap().to_owned()
    }
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Returns text without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[test]
fn a_run_its_graph_its_diff_and_its_export_are_readable() {
    let desk = Desk::open();
    let run = desk.start("tour", r#"{"visitor": "ann"}"#);
    let shown = desk.out(&["run", "show", &run]);
    assert!(shown.starts_with("id ") && shown.contains("tour, version 1"), "{shown}");
    assert!(shown.contains("\ndata\n") && shown.contains("    visitor: ann"), "{shown}");

    let graph = desk.out(&["run", "graph", &run]);
    assert!(graph.contains("▶ welcome") && graph.contains("· done"), "{graph}");
    assert!(graph.contains("└──▶ count") && graph.contains("└─ store.increment ──▶ done"), "{graph}");
    let mermaid = desk.out(&["run", "graph", &run, "--format", "mermaid"]);
    assert!(mermaid.starts_with("flowchart TD"), "{mermaid}");
    let workflow = desk.out(&["workflow", "view", "tour"]);
    assert!(workflow.contains("○ welcome") && !workflow.contains("▶ welcome"), "{workflow}");

    desk.out(&["signal", "send", &run, "welcome", r#"{"by": "joe"}"#]);
    desk.out(&["run", "wait", &run, "--for", "60s"]);
    let diff = desk.out(&["run", "diff", &run, "0"]);
    assert!(diff.starts_with("version 0 → version") && diff.contains("\n+ /vars/"), "{diff}");
    assert_eq!(desk.out(&["run", "diff", &run, "0", "--to", "0"]), "version 0 → version 0\nno changes");
    let (coloured, _) = desk.on_terminal(80, &["run", "diff", &run, "0"]);
    assert!(coloured.contains("\u{1b}[32m+ /vars/"), "{coloured:?}");

    let export = desk.out(&["run", "export", &run]);
    for part in
        ["recorded calls\n  `count`: 1 result", "signal welcome {\"by\":\"joe\"}", "outcome completed"]
    {
        assert!(export.contains(part), "{part} in {export}");
    }
    assert_eq!(desk.json(&["run", "export", &run])["expect"]["outcome"], "completed");
    assert!(desk.out(&["run", "export", &run, "--format", "yaml"]).contains("outcome: completed"));
}

#[test]
fn tables_have_every_column_and_fit_the_terminal() {
    let desk = Desk::open();
    // The first key has no expiry, so only the second row has that field.
    desk.out(&["kv", "set", "story", "a", &json!("x".repeat(300)).to_string()]);
    desk.out(&["kv", "set", "story", "b", r#""two\nlines \u001b[31m""#, "--ttl-seconds", "600"]);
    let table = desk.out(&["kv", "list", "story"]);
    assert!(table.contains(&"x".repeat(300)), "nothing is cut without a terminal: {table}");
    assert!(table.contains(r"two\nlines \u{1b}[31m"), "control characters are escaped: {table}");
    desk.out(&["schedule", "put", "nightly", "0 3 * * *", "tour", "--input", r#"{"visitor": "moon"}"#]);
    desk.out(&["schedule", "put", "weekly", "0 3 * * 1", "tour", "--time-zone", "Europe/Vienna"]);
    desk.out(&["schedule", "delete", "nightly", "--yes"]);
    let rows = desk.json(&["schedule", "list"])["items"].clone();
    let table = desk.out(&["schedule", "list"]);
    for name in rows.as_array().unwrap().iter().flat_map(|row| row.as_object().unwrap().keys()) {
        let heading = name.chars().fold(String::new(), |heading, c| match c.is_ascii_uppercase() {
            true => format!("{heading}-{c}"),
            false => format!("{heading}{}", c.to_ascii_uppercase()),
        });
        assert!(table.lines().next().unwrap().contains(&heading), "{heading} in {table}");
    }

    desk.start("tour", r#"{"visitor": "ann"}"#);
    let shadows = desk.out(&["run", "list", "--columns"]);
    assert!(shadows.contains("VISITOR") && shadows.trim_end().ends_with("ann"), "{shadows}");

    let (wide, err) = desk.on_terminal(400, &["kv", "list", "story"]);
    assert!(widest(&wide) > 300 && err.is_empty(), "{wide} {err}");
    let (narrow, _) = desk.on_terminal(80, &["kv", "list", "story"]);
    assert!(widest(&narrow) <= 80 && narrow.contains("xx…"), "{narrow}");
    let (tiny, err2) = desk.on_terminal(30, &["kv", "list", "story"]);
    assert!(widest(&tiny) <= 30 && tiny.contains("KEY"), "{tiny}");
    assert!(err2.contains("hidden columns:") && err2.contains("UPDATED-AT"), "{err2}");
    assert_eq!(err2.matches("hidden columns").count(), 1, "{err2}");
    assert_eq!(desk.on_terminal(30, &["kv", "list", "story", "--quiet"]).1, "");
}

#[test]
fn commands_and_empty_lists_answer_with_a_word() {
    let desk = Desk::open();
    let run = desk.start("tour", r#"{"visitor": "ann"}"#);
    let talk = |arguments: &[&str]| {
        let (code, out, err) = desk.run(arguments);
        assert_eq!((code, out.as_str()), (Some(0), ""), "{arguments:?}: {err}");
        err
    };
    assert_eq!(talk(&["run", "suspend", &run]), format!("Run {run} is suspended."));
    assert_eq!(talk(&["run", "resume", &run[..18]]), format!("Run {run} is resumed."), "the whole id");
    assert_eq!(talk(&["run", "patch", &run, r#"{"n": 1}"#]), format!("The data of run {run} is changed."));
    assert_eq!(talk(&["run", "cancel", &run, "--yes", "--quiet"]), "");
    desk.out(&["kv", "set", "story", "a", "1"]);
    assert_eq!(talk(&["kv", "delete", "story", "a", "--yes"]), "Key `a` of `story` is deleted.");
    for (list, word) in [
        (&["run", "list", "--status", "failed"][..], "No runs."),
        (&["wait", "list"], "No open waits."),
        (&["kv", "list", "nothing"], "No keys."),
        (&["task", "list"], "No tasks."),
        (&["handle", "list"], "No handles."),
    ] {
        assert_eq!(talk(list), word);
        let (_, out, err) = desk.run(&[list, &["--json"]].concat());
        assert_eq!((out.as_str(), err.as_str()), (r#"{"items":[]}"#, ""), "{list:?}");
        assert_eq!(talk(&[list, &["--quiet"]].concat()), "");
    }
}

/// Follows the references of a schema.
fn resolved<'a>(contract: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.map_or(schema, |pointer| resolved(contract, contract.pointer(pointer).unwrap()))
}

/// Returns true if a schema allows only certain texts.
fn is_choice(contract: &Value, schema: &Value) -> bool {
    let schema = resolved(contract, schema);
    let several = ["anyOf", "oneOf"].iter().find_map(|several| schema[several].as_array());
    match several {
        Some(options) => {
            let mut options = options.iter().filter(|option| option["type"] != "null").peekable();
            options.peek().is_some() && options.all(|option| is_choice(contract, option))
        }
        None => schema["enum"].is_array() || schema["const"].is_string(),
    }
}

#[test]
fn unknown_values_are_answered_with_the_allowed_ones() {
    let folder = tempfile::tempdir().unwrap();
    // No server is running: the values are checked before a request is sent.
    let run = |arguments: &[&str]| said(&stepwell(folder.path()).args(arguments).output().unwrap());
    let output = stepwell(folder.path()).args(["run", "list", "--status", "faild"]).output().unwrap();
    assert!(output.stderr.ends_with(b"\n"), "{output:?}");
    let (code, _, err) = said(&output);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("unknown status `faild`; did you mean `failed`? Allowed: pending, running"),
        "{err}"
    );
    let (code, _, err) = run(&["maintenance", "heal", "tour", "--status", "42"]);
    assert!(code == Some(2) && err.contains("unknown status `42`. Allowed: pending"), "{err}");

    let contract = openapi();
    let reference = std::fs::read_to_string(crate::manual::project().join("docs/reference/cli.md")).unwrap();
    let mut checked = 0;
    for (path, methods) in contract["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let request = format!("Request: {} {path}\n", method.to_uppercase());
            let Some((before, _)) = reference.split_once(&request) else { continue };
            let usage = before.rsplit("```text\nstepwell ").next().unwrap().lines().next().unwrap();
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let fields = resolved(&contract, body)["properties"].as_object().cloned().unwrap_or_default();
            let parameters = operation["parameters"].as_array().unwrap().iter();
            let parameters = parameters.filter(|one| one["in"] != "header");
            let named =
                parameters.map(|one| (one["name"].as_str().unwrap().to_owned(), one["schema"].clone()));
            for (name, schema) in named.chain(fields) {
                // The command of a bulk command is its verb.
                let is_verb = path == "/v1/bulk" && name == "command";
                if is_verb || !is_choice(&contract, &schema) {
                    continue;
                }
                let flag = name.chars().fold("--".to_owned(), |flag, c| match c.is_ascii_uppercase() {
                    true => format!("{flag}-{}", c.to_ascii_lowercase()),
                    false => format!("{flag}{c}"),
                });
                let words = usage.split(' ').filter(|word| *word != "[OPTIONS]");
                let words = words.map(|word| if word.starts_with(['<', '[']) { "1" } else { word });
                let words: Vec<_> = words.chain([flag.as_str(), "no-such-value"]).collect();
                let (code, _, err) = run(&words);
                assert!(code == Some(2) && err.contains("Allowed: "), "{words:?}: {err}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 6, "{checked}");
}

#[test]
fn json_arguments_mean_the_same_everywhere() {
    let desk = Desk::open();
    let file = |name: &str, text: &str| std::fs::write(desk.folder.path().join(name), text).unwrap();
    file("input.json", r#"{"visitor": "file"}"#);
    file("input.yaml", "visitor: yaml\n");
    file("flow.yaml", "name: echo\nsteps: [{ id: done, type: control.return, value: { $expr: payload } }]\n");
    desk.out(&["workflow", "publish", "echo", "flow.yaml", "--activate"]);
    let started = |input: &str| {
        let run = desk.json(&["run", "start", "echo", "--input", input, "--wait=60s"]);
        run["run"]["result"].clone()
    };
    assert_eq!(started("@input.json"), json!({"visitor": "file"}));
    assert_eq!(started("@input.yaml"), json!({"visitor": "yaml"}));
    assert_eq!(started("-7"), json!(-7));
    assert_eq!(desk.out(&["expr", "eval", "visitor", "--input", "@input.json"]), r#""file""#);
    let simulated = desk.json(&["workflow", "simulate", "flow.yaml", "--input", r#"{"a": 1}"#]);
    assert_eq!(simulated["result"], json!({"a": 1}));

    let piped = desk.command(&["kv", "set", "story", "a", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut piped.stdin.as_ref().unwrap(), b"[1, 2]").unwrap();
    assert!(piped.wait_with_output().unwrap().status.success());
    let got = desk.json(&["kv", "get", "story", "a"]);
    assert_eq!((&got["value"], got.get("items")), (&json!([1, 2]), None), "the response as it is");
    desk.out(&["kv", "set", "story", "a", "-2"]);

    let refused = |arguments: &[&str], parts: &[&str]| {
        let (code, _, err) = desk.run(arguments);
        assert_eq!(code, Some(6), "{arguments:?}: {err}");
        parts.iter().for_each(|part| assert!(err.contains(part), "{part} in {err}"));
    };
    refused(&["run", "start", "echo", "--input", "hello"], &["`--input` must be JSON", r#"`'"hello"'`"#]);
    refused(&["run", "start", "echo", "--input", r#"{"a": }"#], &["column", "`@FILE` reads a file"]);
    refused(&["run", "start", "echo", "--input", "input.json"], &["write `@input.json`"]);
    refused(&["kv", "set", "story", "a", "hello"], &["`VALUE` must be JSON", r#"`'"hello"'`"#]);
    refused(&["signal", "send", "00000000-0000-4000-8000-000000000001", "s", "hello"], &["`JSON` must be"]);
    refused(&["event", "emit", "E", "hello"], &["`JSON` must be JSON"]);
    refused(&["expr", "eval", "a", "--input", "input.json"], &["write `@input.json`"]);
    refused(&["workflow", "simulate", "flow.yaml", "--input", "hello"], &["`--input` must be JSON"]);
    let (code, _, err) = desk.run(&["run", "start", "echo", "--input", "@missing.json"]);
    assert!(code == Some(3) && err.contains("missing.json"), "{err}");
    assert_eq!(desk.json(&["kv", "get", "story", "a"])["value"], -2, "nothing was written");
}

#[test]
fn short_ids_are_unique_and_accepted_by_every_command() {
    let desk = Desk::open();
    // Runs of the same second share the first characters of their ids.
    let runs: Vec<_> = (0..6).map(|_| desk.start("tour", r#"{"visitor": "ann"}"#)).collect();
    let (table, _) = desk.on_terminal(200, &["run", "list", "--limit", "3"]);
    let shown = plain(&table);
    let ids: Vec<_> = shown.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ids.len(), 3, "{shown}");
    for (short, run) in ids.iter().zip(runs.iter().rev()) {
        assert!(run.starts_with(short) && (8..36).contains(&short.len()), "{short} {run}");
        assert!(runs.iter().filter(|run| run.starts_with(short)).count() == 1, "{short} of {runs:?}");
        assert_eq!(desk.json(&["run", "show", short])["id"], run.as_str());
    }
    let short = ids[0];
    let run = runs.last().unwrap();
    assert_eq!(desk.json(&["run", "history", short])["items"][0]["version"], 0);
    assert_eq!(desk.json(&["wait", "list", "--run", short])["items"].as_array().unwrap().len(), 1);
    let (waits, _) = desk.on_terminal(200, &["wait", "list", "--run", short]);
    let wait = plain(&waits).lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(wait.starts_with(&format!("{short}.")) && wait.len() < 36, "{wait}");
    assert_eq!(desk.json(&["wait", "show", &wait])["run"], run.as_str());
    assert_eq!(desk.json(&["run", "list", "--parent", short])["items"], json!([]));
    assert_eq!(desk.json(&["state", "list-of-run", short])["items"], json!([]));
    assert!(desk.out(&["doctor", short]).contains(run.as_str()));
    assert!(desk.out(&["run", "list"]).contains(run.as_str()), "without a terminal ids are complete");

    let (code, _, err) = desk.run(&["run", "show", &run[..4]]);
    assert_eq!(code, Some(6), "{err}");
    assert!(
        err.contains("matches several runs") && runs.iter().all(|run| err.contains(run.as_str())),
        "{err}"
    );
    assert!(err.contains("tour waiting"), "{err}");
    for unknown in ["ffffffff", "x", "01a1-01"] {
        let (code, _, err) = desk.run(&["run", "show", unknown]);
        assert!(code == Some(3) && err.contains(&format!("no run id starts with `{unknown}`")), "{err}");
    }
}

#[test]
fn schedule_show_takes_the_name_as_it_is() {
    let desk = Desk::open();
    let help = desk.out(&["schedule", "show", "--help"]);
    assert!(help.contains("WORKFLOW/TRIGGER") && !help.contains("%2F"), "{help}");
    let timed = "name: timed\ntrigger: { id: night, type: schedule, cron: '0 1 * * *' }\nsteps: [{ id: done, type: control.return }]\n";
    std::fs::write(desk.folder.path().join("timed.yaml"), timed).unwrap();
    desk.out(&["workflow", "publish", "timed", "timed.yaml", "--activate"]);
    let shown = (0..600).find_map(|_| {
        let (code, out, _) = desk.run(&["schedule", "show", "timed/night", "--firings", "2", "--json"]);
        (code == Some(0)).then_some(out)
    });
    let shown: Value = serde_json::from_str(&shown.unwrap()).unwrap();
    assert_eq!(shown["nextFirings"].as_array().unwrap().len(), 2, "{shown}");
}

#[test]
fn the_last_page_has_no_cursor_at_any_door() {
    let desk = Desk::open();
    let pages = "name: pages\nsteps:\n  - { id: page, type: action.call, action: store.list, input: { namespace: story, limit: { $expr: payload.limit } } }\n  - { id: done, type: control.return, value: { $expr: vars.page } }\n";
    std::fs::write(desk.folder.path().join("pages.yaml"), pages).unwrap();
    desk.out(&["workflow", "publish", "pages", "pages.yaml", "--activate"]);
    for key in ["a", "b"] {
        desk.out(&["kv", "set", "story", key, "1"]);
    }
    // The last page is full with a limit of 2, and another one follows with a limit of 1.
    for (limit, has_more) in [(1, true), (2, false), (3, false)] {
        let input = json!({ "limit": limit }).to_string();
        let run = desk.json(&["run", "start", "pages", "--input", &input, "--wait=60s"]);
        let action = &run["run"]["result"];
        assert_eq!(action["items"].as_array().unwrap().len(), limit.min(2), "{run}");
        let path = format!("/v1/kv/story?limit={limit}");
        let http = desk.server.ask("GET", &path, None).json();
        let cli = desk.json(&["kv", "list", "story", "--limit", &limit.to_string()]);
        let cursors = [action.get("next_cursor"), http.get("nextCursor"), cli.get("nextCursor")];
        for cursor in cursors {
            assert_eq!(cursor.is_some_and(Value::is_string), has_more, "{limit}: {cursors:?}");
            assert!(cursor.is_some() == has_more, "absent, not null: {limit}: {cursors:?}");
        }
    }
    assert!(desk.json(&["kv", "list", "story", "--limit", "1", "--all"]).get("nextCursor").is_none());
}

#[test]
fn errors_are_problem_json_with_json() {
    let desk = Desk::open();
    let problem = |arguments: &[&str]| {
        let (code, out, err) = desk.run(arguments);
        assert_eq!(out, "", "{arguments:?}");
        let problem: Value = serde_json::from_str(&err).unwrap_or_else(|error| panic!("{error}: {err}"));
        assert_eq!(problem["exitCode"], code.unwrap(), "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        problem
    };
    let missing = problem(&["run", "show", "00000000-0000-4000-8000-000000000001", "--json"]);
    assert_eq!((&missing["code"], &missing["status"]), (&json!("noRun"), &json!(404)));
    assert_eq!(problem(&["run", "list", "--status", "faild", "--json"])["code"], "usage");
    assert_eq!(problem(&["run", "lst", "-o", "json"])["exitCode"], 2);
    let input = problem(&["kv", "set", "a", "b", "hello", "--output=ndjson"]);
    assert_eq!((&input["code"], &input["exitCode"]), (&json!("invalid"), &json!(6)));
    let nowhere = problem(&["run", "list", "--server", "http://127.0.0.1:1", "--json"]);
    assert_eq!((&nowhere["code"], &nowhere["retryable"]), (&json!("unreachable"), &json!(true)));
}
