//! Limits on runs through the built server: published documents, HTTP and the command line, and servers that are killed.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::json as command;
use crate::databases;
use crate::said;
use crate::serving::{Serving, dev, stepwell};
use crate::test_server::TestServer;

const JOB: &str = "
name: job
concurrency: { key: { $expr: payload.customer }, limit: 2, whenFull: wait }
steps:
  - { id: go, type: wait.signal, signal: GO }
";

const ALONE: &str = "
name: alone
concurrency: { limit: 1, whenFull: refuse }
steps:
  - { id: go, type: wait.signal, signal: GO }
";

const NEWEST: &str = "
name: newest
concurrency: { limit: 1, whenFull: cancelOldest }
steps:
  - { id: go, type: wait.signal, signal: GO }
";

const SLOW: &str = "
name: slow
rateLimit: { key: { $expr: payload.customer }, limit: 2, per: 1h }
steps:
  - { id: work, type: action.call, action: transform, input: 1 }
";

fn publish(server: &Serving, name: &str, text: &str) {
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    let published = server.send("POST", &path, "application/yaml", text);
    assert_eq!(published.status, 201, "{published:?}");
}

fn start(server: &Serving, workflow: &str) -> String {
    let body = json!({"workflow": workflow, "input": {"customer": "ann"}});
    let started = server.ask("POST", "/v1/runs", Some(&body));
    started.json()["id"].as_str().unwrap_or_else(|| panic!("{started:?}")).to_owned()
}

fn statuses(server: &Serving, runs: &[String]) -> Vec<String> {
    let status = |run: &String| server.get(&format!("/v1/runs/{run}")).json()["status"].clone();
    runs.iter().map(|run| status(run).as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until the runs have these statuses.
#[track_caller]
fn until(server: &Serving, runs: &[String], expected: &[&str]) {
    let began = Instant::now();
    loop {
        let found = statuses(server, runs);
        if found == expected {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{found:?}, expected {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the expected statuses if this many runs have completed and two are active.
fn in_order(runs: &[String], completed: usize) -> Vec<&'static str> {
    let status = |index: usize| match index {
        _ if index < completed => "completed",
        _ if index < completed + 2 => "waiting",
        _ => "pending",
    };
    (0..runs.len()).map(status).collect()
}

fn go(server: &Serving, run: &str) {
    let sent = server.ask("POST", &format!("/v1/runs/{run}/signals/GO"), Some(&json!(null)));
    assert_eq!(sent.status, 200, "{sent:?}");
}

/// F2, B18: runs of a key wait in order of arrival, over HTTP and the command line.
#[test]
fn limited_runs_wait_over_http_and_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let ask = |arguments: &[&str]| command(folder.path(), &[arguments, &["--server", &url]].concat());
    std::fs::write(folder.path().join("job.yaml"), JOB).unwrap();
    ask(&["workflow", "publish", "job", "job.yaml", "--activate"]);
    assert_eq!(ask(&["workflow", "limits", "job"])["items"], json!([]), "no key is in use yet");
    let start = |_| ask(&["run", "start", "job", "--input", r#"{"customer": "ann"}"#]);
    let runs: Vec<String> = (0..4).map(start).map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    until(&server, &runs, &in_order(&runs, 0));

    let shown = ask(&["run", "show", &runs[3]]);
    assert_eq!((&shown["status"], &shown["waitingFor"]["limit"]), (&json!("pending"), &json!("concurrency")));
    assert_eq!((&shown["waitingFor"]["key"], &shown["waitingFor"]["position"]), (&json!("ann"), &json!(2)));
    assert_eq!(ask(&["run", "show", &runs[0]])["waitingFor"], json!(null));
    let show = stepwell(folder.path()).args(["run", "show", &runs[3], "--server", &url]).output().unwrap();
    let (_, text, _) = said(&show);
    assert!(text.contains("waits for  the limit `concurrency` of `ann`, position 2"), "{text}");
    let pending = server.get("/v1/runs?workflow=job&status=pending").json();
    assert_eq!(pending["items"].as_array().unwrap().len(), 2, "{pending}");
    let limits = server.get("/v1/workflows/job/limits").json();
    let row = &limits["items"][0];
    assert_eq!((&row["kind"], &row["key"]), (&json!("concurrency"), &json!("ann")), "{limits}");
    assert_eq!((&row["limit"], &row["active"], &row["waiting"]), (&json!(2), &json!(2), &json!(2)));
    assert_eq!(row["runs"][0]["run"], json!(runs[0]), "{limits}");
    let (_, table, _) = said(
        &stepwell(folder.path()).args(["workflow", "limits", "job", "--server", &url]).output().unwrap(),
    );
    assert!(table.contains("WAITING-SINCE") && table.contains("ann"), "{table}");
    assert_eq!(server.get("/v1/workflows/none/limits").status, 404);

    let cancel = ["run", "cancel", &runs[2], "--yes", "--server", &url];
    assert_eq!(said(&stepwell(folder.path()).args(cancel).output().unwrap()).0, Some(0));
    go(&server, &runs[1]);
    until(&server, &runs, &["waiting", "completed", "cancelled", "waiting"]);
}

/// F2, B18: a full limit refuses starts, or cancels the oldest run.
#[test]
fn full_limit_refuses_or_replaces_runs() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    publish(&server, "alone", ALONE);
    publish(&server, "newest", NEWEST);
    let first = start(&server, "alone");
    let refused = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "alone"})));
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("limitReached")), "{refused:?}");
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("`alone` already has 1 active runs"), "{detail}");
    let url = format!("http://{}", server.address);
    let code = stepwell(folder.path()).args(["run", "start", "alone", "--server", &url]).output().unwrap();
    assert_eq!(code.status.code(), Some(4), "{code:?}");
    until(&server, std::slice::from_ref(&first), &["waiting"]);
    go(&server, &first);
    until(&server, &[first], &["completed"]);
    let again = start(&server, "alone");
    until(&server, &[again], &["waiting"]);

    let runs: Vec<_> = (0..3).map(|_| start(&server, "newest")).collect();
    until(&server, &runs, &["cancelled", "cancelled", "waiting"]);
    let history = server.get(&format!("/v1/runs/{}/history", runs[0])).json();
    assert!(history.to_string().contains("__limit:superseded"), "{history}");
}

/// F2, B18: a rate limit holds runs back, and a restart does not reset it.
#[test]
fn rate_limit_survives_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = dev(folder.path());
    publish(&server, "slow", SLOW);
    let runs: Vec<_> = (0..4).map(|_| start(&server, "slow")).collect();
    let expected = ["completed", "completed", "pending", "pending"];
    until(&server, &runs, &expected);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = dev(folder.path());
    let more = start(&server, "slow");
    let row = server.get("/v1/workflows/slow/limits").json()["items"][0].clone();
    assert_eq!(
        (&row["kind"], &row["active"], &row["waiting"]),
        (&json!("rate"), &json!(2), &json!(3)),
        "{row}"
    );
    assert!(row["nextAt"].is_string(), "{row}");
    let shown = server.get(&format!("/v1/runs/{more}")).json();
    assert_eq!(shown["waitingFor"]["position"], 3, "{shown}");
    until(&server, &runs, &expected);
}

/// F5, F9: mistakes in limits are reported with their position when a document is published.
#[tokio::test]
async fn wrong_limits_of_a_document_are_reported() {
    let server = TestServer::open().await;
    for (text, message) in [
        ("concurrency: { limit: 0 }", "`limit` must be a whole number from 1 to 10000 (got 0)"),
        ("concurrency: { key: a }", "`concurrency` needs `limit`"),
        ("concurrency: { limit: 1, whenFull: drop }", "`whenFull` must be one of wait, refuse, cancelOldest"),
        ("concurrency: { limit: 1, key: [a] }", "`key` must be text, a number or an expression"),
        ("concurrency: { limit: 1, key: { $expr: vars.a } }", "unknown name `vars`"),
        ("concurrency: { limit: 1, most: 2 }", "has no field `most`"),
        ("rateLimit: { limit: 1 }", "`rateLimit` needs `per`"),
        ("rateLimit: { limit: 1, per: 60 }", "`per` must be a duration with a unit, such as `60s` or `60ms`"),
        ("rateLimit: { limit: 1, per: 0s }", "`per` must be longer than zero"),
        ("rateLimit: { limit: 1, per: 1m, burst: 2 }", "`burst` must be at most `limit` (1), got 2"),
        (
            "strategy: sealed\nconcurrency: { limit: 1 }",
            "the strategy `sealed` allows no limit on active runs",
        ),
    ] {
        let text = format!("name: wrong\n{text}\nsteps: [{{ id: a, type: control.return }}]");
        let found = server.post_yaml("/v1/workflows/wrong/versions", &text).await;
        assert_eq!(found.status, 422, "{text}: {found:?}");
        assert!(found.json().to_string().contains(message), "{text}: {}", found.json());
    }
    let refused = {
        server.publish("job", JOB).await;
        server.post("/v1/runs", &json!({"workflow": "job", "input": {"customer": ["ann"]}})).await
    };
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.json()["detail"].as_str().unwrap().contains("`concurrency.key`"), "{refused:?}");
}

/// Kills the servers while runs end and others are admitted. Never more than two runs are active, and none is lost.
fn survives_kills(folder: &Path, start_server: impl Fn(&Path) -> Serving, servers: usize) {
    let mut serving: Vec<_> = (0..servers).map(|_| start_server(folder)).collect();
    publish(&serving[0], "job", JOB);
    let runs: Vec<_> = (0..8).map(|_| start(&serving[0], "job")).collect();
    until(&serving[0], &runs, &in_order(&runs, 0));
    for completed in 1..=6 {
        let killed = completed % servers;
        go(&serving[killed], &runs[completed - 1]);
        // The next run may be admitted before, during or after this.
        serving[killed].child.kill().unwrap();
        serving[killed].child.wait().unwrap();
        let is_over = |status: &String| status == "completed" || status == "pending";
        if let Some(other) = serving.get((killed + 1) % servers).filter(|_| servers > 1) {
            let found = statuses(other, &runs);
            assert!(found.iter().filter(|status| !is_over(status)).count() <= 2, "{found:?}");
        }
        serving[killed] = start_server(folder);
        until(&serving[killed], &runs, &in_order(&runs, completed));
    }
}

/// B4, B18: `kill -9` of a server on SQLite loses no turn.
#[test]
fn limits_survive_kills_of_a_server_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    survives_kills(folder.path(), dev, 1);
}

/// B4, B18: the same for two servers on one PostgreSQL database.
#[test]
fn limits_survive_kills_of_servers_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    databases::prepare(folder.path(), "limits");
    survives_kills(folder.path(), databases::start, 2);
}

/// Every kind of value that the API shows for a key is text.
#[tokio::test]
async fn numbers_and_meta_can_be_keys() {
    let server = TestServer::open().await;
    let text = JOB.replace("payload.customer", "payload.customer & '/' & meta.workflow");
    server.publish("job", &text).await;
    let started = server.post("/v1/runs", &json!({"workflow": "job", "input": {"customer": 7}})).await;
    assert_eq!(started.status, 201, "{started:?}");
    let found = crate::kit::until("a key", async || {
        let limits = server.get("/v1/workflows/job/limits").await.json();
        limits["items"][0]["key"].as_str().map(str::to_owned)
    });
    assert_eq!(found.await, "7/job");
    let none: Value = server.get("/v1/workflows/job/limits?limit=1").await.json();
    assert_eq!(none["items"].as_array().unwrap().len(), 1);
}
