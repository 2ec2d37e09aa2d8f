//! The log: its lines are JSON, name the trace of the request or run, and contain no secrets.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::Engine;
use stepwell::store::{Fault, Faulty, MemoryStore};
use stepwell_server::api::{ApiOptions, Server};
use tracing_subscriber::fmt::MakeWriter;

use crate::kit::get;
use crate::serving::{Serving, stepwell};

const SECRET: &str = "the-password-of-the-shop";

/// A workflow that logs a message and then calls a web server with a secret in a header.
fn calls() -> Value {
    let url = r#""http://127.0.0.1:" & $string(payload.port) & "/""#;
    json!({
        "apiVersion": "stepwell/v1",
        "kind": "Workflow",
        "metadata": {"name": "calls", "version": 1},
        "spec": {
            "input": {"type": "object", "required": ["port"]},
            "steps": [
                {"id": "say", "type": "action.call", "action": "log", "input": {"message": "it is about to call"}},
                {
                    "id": "call",
                    "type": "action.call",
                    "action": "http.request",
                    "input": {"url": {"$expr": url}, "headers": {"authorization": {"$secret": "SHOP"}}},
                    "saveAs": "answer",
                },
                {"id": "done", "type": "control.return", "value": {"$expr": "vars.answer.status"}},
            ],
        },
    })
}

/// Starts a web server that answers one request. Returns its port and a thread that returns the request.
fn shop() -> (u16, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answered = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut asked, mut part) = (String::new(), [0; 4096]);
        while !asked.contains("\r\n\r\n") {
            let read = stream.read(&mut part).unwrap();
            asked.push_str(std::str::from_utf8(&part[..read]).unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").unwrap();
        asked
    });
    (port, answered)
}

#[test]
fn trace_log_is_json_and_contains_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = stepwell(folder.path());
    command
        .args(["dev", "--listen", "127.0.0.1:0"])
        .env("RUST_LOG", "debug,stepwell=trace,stepwell_server=trace");
    command.env("STEPWELL_LOG__FORMAT", "json").env("STEPWELL_HTTP__ALLOW", "127.0.0.1");
    command.env("STEPWELL_SECRET_SHOP", SECRET);
    let mut child = command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().to_owned();
    let key = std::fs::read_to_string(folder.path().join("stepwell-data/dev.key")).unwrap().trim().to_owned();
    let server = Serving { child, address, key: key.clone() };
    let (port, asked) = shop();
    let published = server.ask("POST", "/v1/workflows/calls/versions?activate=true", Some(&calls()));
    assert_eq!(published.status, 201, "{published:?}");
    let start = json!({"workflow": "calls", "input": {"port": port}});
    let ended = server.ask("POST", "/v1/runs?wait=20s", Some(&start)).json();
    assert_eq!(ended["run"]["result"], 200, "{ended}");
    let run = ended["id"].as_str().unwrap().replace('-', "");
    let asked = asked.join().unwrap();
    assert!(asked.contains(SECRET), "{asked}");
    let parent = asked.lines().find_map(|line| line.strip_prefix("traceparent: ")).unwrap();
    assert!(parent.starts_with(&format!("00-{run}-")), "the call is part of the run's trace: {parent}");
    let new = json!({"name": "ci", "permissions": ["workflow:view"]});
    let other = server.ask("POST", "/v1/apikeys", Some(&new)).json()["secret"].as_str().unwrap().to_owned();
    let flow = server.ask("POST", "/v1/flows/tour", Some(&json!({"input": {"visitor": "ann"}})));
    let token = flow.json()["token"].as_str().map(str::to_owned);
    drop(server);
    let text = std::fs::read_to_string(&log).unwrap();
    // `dev` prints its own key once, in its text for the terminal and not in the log.
    let (story, log): (Vec<_>, Vec<_>) = text.lines().partition(|line| !line.starts_with('{'));
    assert!(story.iter().filter(|line| line.contains(&key)).count() == 1, "{text}");
    let lines: Vec<Value> = log.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 10, "{text}");
    for secret in [Some(key), Some(other), token, Some(SECRET.to_owned())].into_iter().flatten() {
        let end = &secret[secret.len().saturating_sub(24)..];
        let told = log.iter().find(|line| line.contains(end));
        assert_eq!(told, None, "{secret}");
    }
    let said = lines.iter().find(|line| line["message"] == "it is about to call").unwrap();
    assert_eq!(
        (said["traceId"].as_str(), said["run"].as_str().map(|id| id.replace('-', ""))),
        (Some(run.as_str()), Some(run.clone()))
    );
    let started = lines.iter().find(|line| line["route"] == "startRun" && line["status"] == 201).unwrap();
    assert_eq!(started["traceId"].as_str().map(str::len), Some(32), "{started}");
}

/// A buffer for the log lines of the current thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;
    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

#[tokio::test]
async fn server_error_is_found_in_the_log_by_its_trace_id() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(lines.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let store = Arc::new(Faulty::new(MemoryStore::new(), []));
    let engine = Engine::builder(store.clone()).with(|options| options.max_runs = 0).start().await.unwrap();
    let router = Arc::new(Server::new(engine, ApiOptions::default())).router();
    assert_eq!(get("/readyz").to(&router).await.status, 200);
    store.then(Fault::Before);
    let problem = get("/readyz").to(&router).await;
    problem.is(503, "unavailable");
    assert!(!problem.body.contains("injected"), "{problem:?}");
    let trace = problem.json()["traceId"].as_str().unwrap().to_owned();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["traceId"] == trace.as_str())
        .collect();
    assert!(
        found.iter().any(|line| line["error"].as_str().is_some_and(|error| error.contains("injected"))),
        "{text}"
    );
    let answered = found.iter().find(|line| line["message"] == "answered").unwrap();
    assert_eq!((&answered["level"], &answered["route"]), (&json!("ERROR"), &json!("ready")));
}
