//! Previews of a run: its transitions, the effect of a signal, and runs without a database.

use serde_json::json;

use crate::cli::json as command;
use crate::serving::dev;
use crate::test_server::TestServer;

const APPROVAL: &str = "
name: approval
steps:
  - { id: ask, type: human.task, title: Approve? }
  - { id: told, type: action.call, action: store.set, input: { namespace: told, key: last, value: 1 } }
";

const SIGNALS: &str = "
name: signals
initial: here
places: { here: { kind: step }, done: { kind: end } }
signals:
  GO: { payload: { type: object, required: [n] } }
  STOP: {}
transitions:
  - { id: go, from: here, to: here, on: { signal: GO }, guard: { expr: event.n > 1 } }
  - id: count
    from: here
    to: done
    on: { signal: STOP }
    action: { name: store.increment, input: { namespace: stops, key: count } }
";

const LETTER: &str = "
name: letter
steps:
  - { id: n, type: action.call, action: state.increment, input: { scope: session, key: n, by: 2 } }
  - id: keep
    type: action.call
    action: document.put
    input: { key: draft, kind: letter, body: { to: Ada } }
  - { id: nap, type: wait.sleep, for: 1h }
";

async fn signals() -> (TestServer, String) {
    let server = TestServer::open().await;
    server.publish("signals", SIGNALS).await;
    let started = server.post("/v1/runs", &json!({"workflow": "signals"})).await;
    let path = started.header("location").to_owned();
    (server, path)
}

/// A10: the transitions of a run, and the reason why each cannot fire now.
#[tokio::test]
async fn transitions_of_a_run_say_what_blocks_them() {
    let (server, path) = signals().await;
    let listed = server.get(&format!("{path}/transitions")).await.json();
    let [go, count] = &listed["items"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!((&go["transition"], &go["signal"], &go["to"]), (&json!("go"), &json!("GO"), &json!("here")));
    assert!(go["blockedBy"].as_str().unwrap().contains("event.n > 1"), "{go}");
    assert_eq!((&count["from"], &count["blockedBy"]), (&json!("here"), &json!(null)));
    let other = server.as_other_tenant(axum::http::Method::GET, &format!("{path}/transitions"), None).await;
    other.is(404, "noRun");
}

/// A10: a dry run reports the effect of a signal, or its refusal, and changes nothing.
#[tokio::test]
async fn dry_run_of_a_signal_changes_nothing() {
    let (server, path) = signals().await;
    let signal = async |name: &str, query: &str, body: serde_json::Value| {
        server.post(&format!("{path}/signals/{name}?{query}"), &body).await
    };
    let moved = signal("GO", "dryRun=true", json!({"n": 2})).await.json();
    assert_eq!((&moved["outcome"], &moved["dryRun"]), (&json!("consumed"), &json!(true)), "{moved}");
    assert_eq!(moved["effect"]["change"]["transitions"], json!(["go"]), "{moved}");
    let calling = signal("STOP", "dryRun=true", json!(null)).await.json();
    let call = &calling["effect"]["action"];
    assert_eq!((&call["action"], &call["transition"]), (&json!("store.increment"), &json!("count")));
    assert_eq!(call["input"]["key"], "count", "{calling}");
    signal("GO", "dryRun=true", json!({"n": 1})).await.is(409, "refused");
    signal("GO", "dryRun=true", json!({})).await.is(422, "validationFailed");
    signal("NONE", "dryRun=true", json!(null)).await.is(404, "unknownSignal");
    assert_eq!(server.get(&path).await.json()["version"], 0);
    server.get("/v1/kv/stops/count").await.is(404, "noKey");

    let sent = signal("GO", "dryRun=false", json!({"n": 2})).await.json();
    assert_eq!(sent, json!({"outcome": "consumed"}));
    assert_eq!(server.get(&path).await.json()["version"], 1);
}

/// A10, B10: a dry run of a signal that was sent before reports the recorded outcome.
#[tokio::test]
async fn dry_run_of_a_repeated_signal_reports_its_outcome() {
    let (server, path) = signals().await;
    let send = async |query: &str| {
        let path = format!("{path}/signals/GO?{query}");
        let ask = server.ask(axum::http::Method::POST, &path).header("idempotency-key", "k");
        ask.json(&json!({"n": 2})).to(&server.router).await
    };
    assert_eq!(send("dryRun=true").await.header("idempotency-replayed"), "");
    send("dryRun=false").await;
    let again = send("dryRun=true").await;
    assert_eq!(again.header("idempotency-replayed"), "true", "{again:?}");
    assert_eq!(again.json(), json!({"outcome": "consumed", "dryRun": true}));
    assert_eq!(server.get(&path).await.json()["version"], 1);
}

/// B14: a run without a database returns its state and documents, and stores nothing.
#[tokio::test]
async fn stateless_run_returns_its_state_and_stores_nothing() {
    let server = TestServer::open().await;
    server.publish("letter", LETTER).await;
    let done = server.post("/v1/stateless-runs", &json!({"workflow": "letter"})).await;
    let done = done.json();
    assert_eq!(
        (&done["status"], &done["documents"][0]["key"]),
        (&json!("waiting"), &json!("draft")),
        "{done}"
    );
    assert_eq!(done["snapshot"]["session"]["n"], 2, "{done}");
    assert_eq!(
        done["history"].as_array().unwrap().len() as u64,
        done["snapshot"]["version"].as_u64().unwrap() + 1
    );
    assert_eq!(server.get("/v1/runs").await.json()["items"], json!([]));
    server.publish("approval", APPROVAL).await;
    let refused =
        server.post("/v1/stateless-runs", &json!({"workflow": "approval"})).await.is(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("cannot run without a database"), "{refused}");
    server.post("/v1/stateless-runs", &json!({"workflow": "none"})).await.is(404, "unknownWorkflow");
}

/// A10, B14: the same over the command line.
#[test]
fn previews_work_over_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let url = format!("http://{}", server.address);
    let ask = |arguments: &[&str]| command(folder.path(), &[arguments, &["--server", &url]].concat());
    for (name, text) in [("signals", SIGNALS), ("letter", LETTER)] {
        let file = format!("{name}.yaml");
        std::fs::write(folder.path().join(&file), text).unwrap();
        ask(&["workflow", "publish", name, &file, "--activate"]);
    }
    let run = ask(&["run", "start", "signals"])["id"].as_str().unwrap().to_owned();
    let listed = ask(&["run", "transitions", &run]);
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "{listed}");
    let sent = ask(&["signal", "send", &run, "GO", r#"{"n": 2}"#, "--dry-run"]);
    assert_eq!(sent["effect"]["change"]["transitions"], json!(["go"]));
    assert_eq!(ask(&["run", "show", &run])["version"], 0);
    let done = ask(&["run", "stateless", "letter"]);
    assert_eq!(
        (&done["status"], &done["snapshot"]["session"]["n"]),
        (&json!("waiting"), &json!(2)),
        "{done}"
    );
}
