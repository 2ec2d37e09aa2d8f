//! The example workers and the server, each as a separate process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serving::{Serving, dev};

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_secs(60);
/// The npm package that compiles the TypeScript worker.
const TYPESCRIPT: &str = "typescript@5.9.3";

const BOTH: &str = "
steps:
  - id: shout
    type: action.call
    action: text.shout
    input: { text: { $expr: payload.text }, seconds: { $expr: payload.seconds } }
    saveAs: shouted
  - id: count
    type: action.call
    action: text.count
    input: { text: { $expr: vars.shouted.text } }
    saveAs: counted
  - id: done
    type: control.return
    value: { text: { $expr: vars.shouted.text }, characters: { $expr: vars.counted.characters } }
";

/// A worker process, killed when this is dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Worker {
    fn start(server: &Serving, name: &str, program: &str, file: &Path) -> Worker {
        let mut command = Command::new(program);
        command.arg(file).env("STEPWELL_URL", format!("http://{}", server.address));
        command.env("STEPWELL_KEY", &server.key).env("WORKER_NAME", name).env("WORKER_LEASE_S", "6");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Worker(child.unwrap_or_else(|error| panic!("this test needs `{program}`: {error}")))
    }

    /// Sends SIGTERM and asserts that the worker exits with code 0.
    fn stops(&mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let code = until("the worker has stopped", || self.0.try_wait().unwrap());
        assert_eq!(code.code(), Some(0));
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/workers").join(name)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Type-checks and compiles the TypeScript worker. Returns the path of the JavaScript file.
fn compiled(folder: &Path) -> PathBuf {
    let install = ["install", "--no-save", "--no-audit", "--no-fund", "--prefix", ".", TYPESCRIPT];
    let installed = Command::new("npm").args(install).current_dir(folder).output();
    let installed = installed.unwrap_or_else(|error| panic!("this test needs `npm`: {error}"));
    assert!(installed.status.success(), "{}", said(&installed));
    let options = ["--target", "es2022", "--module", "commonjs", "--lib", "es2022,dom", "--strict"];
    let checked = Command::new(folder.join("node_modules/.bin/tsc"))
        .args(options)
        .args(["--outDir", "out"])
        .arg(example("worker.ts"))
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
    folder.join("out/worker.js")
}

/// A server with both actions and a workflow that calls them.
fn server(folder: &Path) -> Serving {
    let server = dev(folder);
    for action in ["text.shout", "text.count"] {
        let body = json!({"input": {"type": "object", "required": ["text"]}, "output": {"type": "object"}});
        assert_eq!(server.ask("PUT", &format!("/v1/actions/{action}"), Some(&body)).status, 200);
    }
    let published =
        server.send("POST", "/v1/workflows/both/versions?activate=true", "application/yaml", BOTH);
    assert!(published.status < 300, "{published:?}");
    server
}

fn start(server: &Serving, text: &str, seconds: u32) -> String {
    let body = json!({"workflow": "both", "input": {"text": text, "seconds": seconds}});
    let started = server.ask("POST", "/v1/runs", Some(&body));
    assert_eq!(started.status, 201, "{started:?}");
    started.json()["id"].as_str().unwrap().to_owned()
}

fn result(server: &Serving, run: &str) -> Value {
    until("the run has ended", || {
        let run = server.get(&format!("/v1/runs/{run}?wait=10s")).json();
        (run["status"] != "running").then_some(run)
    })
}

/// A run uses a worker in Python and one in TypeScript. When a worker is killed, another gets its task, and a result
/// under the old lease is refused.
#[test]
fn example_workers_complete_runs_despite_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let script = compiled(folder.path());
    let server = server(folder.path());
    let mut python = Worker::start(&server, "python", "python3", &example("worker.py"));
    let mut node = Worker::start(&server, "node", "node", &script);
    let run = result(&server, &start(&server, "hello", 0));
    assert_eq!(run["result"], json!({"text": "HELLO", "characters": 5}), "{run}");
    // Longer than the lease, which heartbeats renew.
    let run = result(&server, &start(&server, "slow", 8));
    assert_eq!((&run["result"]["text"], &run["failures"]), (&json!("SLOW"), &json!([])), "{run}");

    let killed = start(&server, "killed", 600);
    let first = until("the worker has the task", || {
        let listed = server.get("/v1/tasks?action=text.shout").json();
        listed["items"].as_array()?.iter().find(|task| task["state"] == "leased").cloned()
    });
    assert_eq!((&first["run"], &first["worker"]), (&json!(killed), &json!("python")));
    python.0.kill().unwrap();
    python.0.wait().unwrap();
    let asks = json!({"actions": ["text.shout"], "worker": "third", "lease": "30s"});
    let given = server.ask("POST", "/v1/tasks/poll?wait=20s", Some(&asks)).json();
    let second = &given["tasks"][0];
    assert_eq!((&second["id"], &second["attempt"]), (&first["id"], &json!(2)), "{given}");
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "{first} {second}");
    let path = format!("/v1/tasks/{}/complete", first["id"].as_str().unwrap());
    let late = json!({"fence": first["fence"], "output": {"text": "LATE"}});
    let late = server.ask("POST", &path, Some(&late));
    assert_eq!((late.status, &late.json()["code"]), (409, &json!("taskGone")));
    let done = json!({"fence": second["fence"], "output": {"text": "DONE"}});
    assert_eq!(server.ask("POST", &path, Some(&done)).json(), json!({"outcome": "completed"}));
    let run = result(&server, &killed);
    assert_eq!(run["result"], json!({"text": "DONE", "characters": 4}), "{run}");

    let mut python = Worker::start(&server, "python", "python3", &example("worker.py"));
    let run = result(&server, &start(&server, "again", 0));
    assert_eq!(run["result"]["text"], "AGAIN", "{run}");
    python.stops();
    node.stops();
}
