//! Policies of steps through the server, from a published document: forks that are complete early, backoff of retries,
//! calls made at most once, callbacks that fail or extend a wait.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::{ActionError, Cx};

use crate::said;
use crate::serving::{Serving, dev, dev_with, stepwell};
use crate::test_server::TestServer;

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fails with the code of its input, or returns the input.
async fn probe(_: Cx, input: Value) -> Result<Value, ActionError> {
    match input["fail"].as_str() {
        Some(code) => Err(ActionError::new(code, "as told")),
        None => Ok(input),
    }
}

/// Publishes `steps`, runs them with `input`, and returns the run.
async fn run(server: &TestServer, name: &str, steps: &str, input: Value) -> Value {
    server.publish(name, steps).await;
    server.run(name, input).await
}

/// F2: branches and items complete by the first success, by a number of successes, or with tolerated failures.
#[tokio::test]
async fn parallel_steps_complete_early_or_tolerate_failures() {
    let server = TestServer::with(|engine| engine.action("probe", probe)).await;
    let first = "steps:
  - id: mirrors
    type: control.parallel
    complete: first
    saveAs: tried
    branches:
      - [{ id: broken, type: action.call, action: probe, input: { fail: down } }]
      - [{ id: never, type: wait.signal, signal: NEVER }]
      - [{ id: good, type: action.call, action: probe, input: { from: good } }]
  - { id: done, type: control.return, value: { $expr: vars.tried } }
";
    let won = run(&server, "first", first, json!({})).await;
    let list = won["result"].as_array().unwrap();
    let statuses: Vec<_> = list.iter().map(|one| one["status"].as_str().unwrap()).collect();
    assert_eq!(
        (&won["status"], statuses),
        (&json!("completed"), vec!["failed", "ended", "completed"]),
        "{won}"
    );
    assert_eq!(won["result"][2]["output"], json!({"from": "good"}));

    let items = |policy: &str| {
        format!(
            "steps:
  - id: each
    type: control.forEach
    items: {{ $expr: payload }}
    parallel: 2
    {policy}
    saveAs: all
    body: [{{ id: one, type: action.call, action: probe, input: {{ fail: {{ $expr: item }} }} }}]
  - {{ id: done, type: control.return, value: {{ $expr: 'vars.all.status[]' }} }}
"
        )
    };
    let list = json!([null, "bad", null, null]);
    let tolerated = run(&server, "tolerate", &items("tolerate: 25%"), list.clone()).await;
    assert_eq!(tolerated["result"], json!(["completed", "failed", "completed", "completed"]), "{tolerated}");
    let two = run(&server, "two", &items("complete: { successes: 2 }"), list.clone()).await;
    assert_eq!(two["result"], json!(["completed", "failed", "completed", "ended"]), "{two}");
    for (name, policy, counts) in [
        ("strict", "tolerate: 0", "`each`: 1 of 4 branches failed"),
        ("four", "complete: 4", "4 must complete, at most 3 can"),
    ] {
        let failed = run(&server, name, &items(policy), list.clone()).await;
        assert_eq!(
            (&failed["status"], &failed["error"]["code"]),
            (&json!("failed"), &json!("tooManyFailures"))
        );
        assert!(failed["error"]["message"].as_str().unwrap().contains(counts), "{failed}");
    }
    let wrong = server.post_yaml("/v1/workflows/wrong/versions", &items("complete: none")).await;
    let problem = wrong.is(422, "invalidDocument");
    assert!(problem.to_string().contains("`complete` must be `all`, `first`, a number"), "{problem}");
}

/// B6: the delays of a call and of a block follow factor, jitter and budget of the document.
#[tokio::test]
async fn retries_follow_factor_jitter_and_budget() {
    let server = TestServer::with(|engine| engine.action("probe", probe)).await;
    let text = "steps:
  - id: block
    type: control.try
    body:
      - id: call
        type: action.call
        action: probe
        input: { fail: busy }
        retry: { attempts: 3, delay: 20ms, factor: 1.5, maxDelay: 1s, jitter: 10%, budget: 1m }
    catch: [{ id: caught, type: vars.set, values: { code: { $expr: error.code } } }]
  - id: over
    type: control.if
    condition: true
    retry: { attempts: 99, delay: 10ms, backoff: fixed, budget: 100ms }
    onError: [{ id: late, type: control.return, value: { $expr: '[vars.code, error.code]' } }]
    then: [{ id: again, type: action.call, action: probe, input: { fail: still } }]
";
    let done = run(&server, "retries", text, json!({})).await;
    assert_eq!(
        (&done["status"], &done["result"]),
        (&json!("completed"), &json!(["busy", "still"])),
        "{done}"
    );
    let timeline = server.get(&format!("/v1/runs/{}/timeline", done["id"].as_str().unwrap())).await.json();
    let tries = timeline["items"].as_array().unwrap().iter().filter(|item| item["type"] == "attempt").count();
    assert!(tries >= 4, "the first attempt and three retries are on record: {timeline}");
    let stored = server.get("/v1/workflows/retries/versions/1").await.json();
    assert!(stored.to_string().contains("\"factor\":1.5"), "{stored}");
}

/// A server that accepts requests and never answers. Tells when a request has arrived.
fn silent() -> (String, mpsc::Receiver<TcpStream>, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tell, told) = mpsc::channel();
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 1];
            if stream.read(&mut head).is_ok_and(|read| read > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
                if tell.send(stream).is_err() {
                    return;
                }
            }
        }
    });
    (address, told, count)
}

fn published(server: &Serving, name: &str, text: &str) {
    let path = format!("/v1/workflows/{name}/versions?activate=true");
    let published = server.send("POST", &path, "application/yaml", text);
    assert!(published.status < 300, "{published:?}");
}

fn started(server: &Serving, workflow: &str) -> String {
    let started = server.ask("POST", "/v1/runs", Some(&json!({"workflow": workflow})));
    assert_eq!(started.status, 201, "{started:?}");
    started.json()["id"].as_str().unwrap().to_owned()
}

fn ended(server: &Serving, run: &str) -> Value {
    server.get(&format!("/v1/runs/{run}?wait=60s")).json()
}

/// B21: after a `kill -9` in the middle of a call, the call is not made again, unless the policy lists `interrupted`.
#[test]
fn call_at_most_once_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (address, arrived, count) = silent();
    let settings = [("STEPWELL_HTTP__ALLOW", "127.0.0.1")];
    let mut server = dev_with(folder.path(), &settings);
    let text = |retry: &str| {
        format!(
            "steps:
  - id: pay
    type: action.call
    action: http.request
    delivery: atMostOnce
    input: {{ url: 'http://{address}/pay', method: POST }}
    retry: {retry}
    onError: [{{ id: unknown, type: control.return, value: {{ $expr: error }} }}]
"
        )
    };
    published(&server, "once", &text("5"));
    published(&server, "twice", &text("{ attempts: 1, delay: 10ms, retryOn: [interrupted] }"));
    let (once, twice) = (started(&server, "once"), started(&server, "twice"));
    let open: Vec<_> = (0..2).map(|_| arrived.recv_timeout(PATIENCE).unwrap()).collect();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(open);
    let server = dev_with(folder.path(), &settings);
    let run = ended(&server, &once);
    assert_eq!(
        (&run["status"], &run["result"]["code"]),
        (&json!("completed"), &json!("interrupted")),
        "{run}"
    );
    assert!(run["result"]["message"].as_str().unwrap().contains("at most once"), "{run}");
    let mut again = arrived.recv_timeout(PATIENCE).unwrap();
    again.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    drop(again);
    let run = ended(&server, &twice);
    assert_eq!((&run["status"], &run["result"]), (&json!("completed"), &Value::Null), "{run}");
    assert_eq!(count.load(Ordering::SeqCst), 3, "one call of `once`, two of `twice`");
}

fn cli(folder: &Path, server: &Serving, arguments: &[&str]) -> (Option<i32>, String, String) {
    let url = format!("http://{}", server.address);
    said(&stepwell(folder).args(arguments).args(["--server", &url]).output().unwrap())
}

fn wait_of(server: &Serving, run: &str) -> String {
    let waits = server.get(&format!("/v1/waits?run={run}")).json();
    waits["items"][0]["id"].as_str().unwrap_or_else(|| panic!("{waits}")).to_owned()
}

/// G3: a callback fails a wait or extends it, over HTTP, on the command line and through an answer link.
#[test]
fn callback_fails_or_extends_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let text = "steps:
  - id: ship
    type: wait.signal
    signal: SHIPPED
    heartbeat: 1h
    timeout: P2D
    onError: [{ id: lost, type: control.return, value: { $expr: error } }]
";
    published(&server, "ship", text);
    published(&server, "plain", "steps: [{ id: ask, type: wait.signal, signal: GO }]");
    published(&server, "short", &text.replace("1h", "30ms"));

    let run = started(&server, "ship");
    let wait = wait_of(&server, &run);
    let shown = || server.get(&format!("/v1/waits/{wait}")).json()["due"].as_str().unwrap().to_owned();
    let before = shown();
    let beat = server.ask("POST", &format!("/v1/waits/{wait}/heartbeat"), None);
    let due = beat.json()["due"].as_str().unwrap().to_owned();
    assert!(beat.status == 200 && due > before && due == shown(), "{beat:?}, due before: {before}");
    let (code, out, err) = cli(folder.path(), &server, &["wait", "heartbeat", &wait, "--json"]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(serde_json::from_str::<Value>(&out).unwrap()["due"].as_str().unwrap() >= due.as_str(), "{out}");
    let failing = json!({"code": "lost", "message": "the parcel is lost", "final": true});
    let path = format!("/v1/waits/{wait}/fail");
    let unknown = server.ask("POST", &path, Some(&json!({"message": "no code"})));
    assert_eq!(unknown.status, 400, "{unknown:?}");
    assert_eq!(server.keyed_by(&server.key, "f-1", &path, &failing).status, 204);
    let repeated = server.keyed_by(&server.key, "f-1", &path, &failing);
    assert!(repeated.status == 204 && repeated.head.contains("idempotency-replayed: true"), "{repeated:?}");
    let done = ended(&server, &run);
    assert_eq!(
        done["result"],
        json!({"code": "lost", "message": "the parcel is lost", "final": true}),
        "{done}"
    );
    let late = server.ask("POST", &format!("/v1/waits/{wait}/answer"), Some(&json!({})));
    assert_eq!((late.status, &late.json()["code"]), (409, &json!("answered")));

    let run = started(&server, "ship");
    let wait = wait_of(&server, &run);
    let (code, out, err) =
        cli(folder.path(), &server, &["wait", "fail", &wait, "lost", "--message", "by hand"]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert_eq!(ended(&server, &run)["result"]["message"], "by hand");

    let run = started(&server, "ship");
    let link = server.ask("POST", &format!("/v1/runs/{run}/answer-links"), Some(&json!({})));
    let token = link.json()["token"].as_str().unwrap_or_else(|| panic!("{link:?}")).to_owned();
    assert_eq!(server.ask_by("", "POST", &format!("/l/{token}/heartbeat"), None).status, 200);
    let failed = server.ask_by("", "POST", &format!("/l/{token}/fail"), Some(&json!({"code": "refused"})));
    assert_eq!(failed.status, 204, "{failed:?}");
    assert_eq!(ended(&server, &run)["result"]["code"], "refused");
    let gone = server.ask_by("", "POST", &format!("/l/{token}/fail"), Some(&json!({"code": "refused"})));
    assert_eq!(gone.status, 410, "{gone:?}");

    let run = started(&server, "plain");
    let wait = wait_of(&server, &run);
    let none = server.ask("POST", &format!("/v1/waits/{wait}/heartbeat"), None);
    assert!(none.status == 422 && none.body.contains("takes no heartbeats"), "{none:?}");
    assert_eq!(
        server.ask("POST", &format!("/v1/waits/{wait}/fail"), Some(&json!({"code": "x"}))).status,
        204
    );
    let stopped = server.get(&format!("/v1/runs/{run}")).json();
    assert_eq!((&stopped["status"], &stopped["error"]["code"]), (&json!("failed"), &json!("x")), "{stopped}");

    let silent = ended(&server, &started(&server, "short"));
    assert_eq!(silent["result"]["code"], "heartbeatTimeout", "{silent}");
}
