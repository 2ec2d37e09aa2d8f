//! The server as a separate process: `stepwell dev` and `stepwell server start`, over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::STEPWELL;

/// A server process, killed when this is dropped.
pub(crate) struct Serving {
    pub(crate) child: Child,
    /// Address and port, such as `127.0.0.1:7077`.
    pub(crate) address: String,
    pub(crate) key: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response: its status, its head as text, and its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The `stepwell` command in `folder`, without the Stepwell settings of the current environment.
pub(crate) fn stepwell(folder: &Path) -> Command {
    let mut command = Command::new(STEPWELL);
    command.current_dir(folder).env_remove("DATABASE_URL").env_remove("RUST_LOG");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("STEPWELL_")) {
        command.env_remove(name);
    }
    command
}

/// Starts `stepwell dev` in a folder, on a free port.
pub(crate) fn dev(folder: &Path) -> Serving {
    dev_with(folder, &[])
}

/// Starts `stepwell dev` with additional environment variables.
pub(crate) fn dev_with(folder: &Path, settings: &[(&str, &str)]) -> Serving {
    let mut command = stepwell(folder);
    command.args(["dev", "--listen", "127.0.0.1:0"]).envs(settings.iter().copied());
    started(command, folder)
}

/// Starts a server with a prepared command, and waits until it listens.
pub(crate) fn started(mut command: Command, folder: &Path) -> Serving {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap_or_else(|| panic!("no URL: {url:?}")).to_owned();
    let key = std::fs::read_to_string(folder.join("stepwell-data/dev.key")).unwrap_or_default();
    Serving { child, address, key: key.trim().to_owned() }
}

impl Serving {
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.ask_by(&self.key, method, path, body)
    }

    /// Sends a request with another API key.
    pub(crate) fn ask_by(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send_by(key, method, path, "application/json", &body)
    }

    /// Sends a `POST` with another API key and the idempotency key `once`.
    pub(crate) fn keyed_by(&self, key: &str, once: &str, path: &str, body: &Value) -> Answer {
        let more = format!("application/json\r\nidempotency-key: {once}");
        self.send_by(key, "POST", path, &more, &body.to_string())
    }

    /// Sends a request whose body has the content type `kind`.
    pub(crate) fn send(&self, method: &str, path: &str, kind: &str, body: &str) -> Answer {
        self.send_by(&self.key, method, path, kind, body)
    }

    pub(crate) fn send_by(&self, key: &str, method: &str, path: &str, kind: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let kind = if body.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nconnection: close\r\n{kind}content-length: {}\r\n\r\n{body}",
            key,
            body.len(),
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        // The body of a stream keeps its chunk headers; all other responses have a length.
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.exit_within(Duration::from_secs(60))
    }

    fn exit_within(&mut self, time: Duration) -> Option<i32> {
        let began = Instant::now();
        while began.elapsed() < time {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not stop within {time:?}");
    }
}

/// A past bug: the server closed the connection of a refused request whose body had not arrived yet, and a client lost
/// its next request.
#[test]
fn connection_stays_usable_after_a_refused_request() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = "POST /v1/runs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sw_wrong\r\n\
                content-type: application/json\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stream.write_all(b"{}GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let statuses: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|response| &response[..3]).collect();
    assert_eq!(statuses, ["401", "200"], "{text}");
}

/// Follows the walkthrough that `stepwell dev` prints: a run waits, is signalled, fails, is retried and finishes. A
/// `kill -9` in the middle changes nothing.
#[test]
fn dev_walkthrough_works_and_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = dev(folder.path());
    let start = json!({"workflow": "tour", "input": {"visitor": "ann"}});
    let started = server.ask("POST", "/v1/runs", Some(&start));
    assert_eq!(started.status, 201, "{started:?}");
    let run = started.json()["id"].as_str().unwrap().to_owned();
    let shown = server.get(&format!("/v1/runs/{run}")).json();
    assert_eq!((&shown["status"], &shown["places"]), (&json!("waiting"), &json!(["welcome"])));
    let waits = server.get(&format!("/v1/waits?run={run}")).json();
    assert_eq!(waits["items"][0]["outcomes"], json!(["welcome"]));
    assert_eq!(server.ask("PUT", "/v1/kv/tour/visitors", Some(&json!({"value": "oops"}))).status, 201);

    let before = server.key.clone();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let server = dev(folder.path());
    assert_eq!(server.key, before);

    let unfit = server.ask("POST", &format!("/v1/runs/{run}/signals/welcome"), Some(&json!({"by": 1})));
    assert_eq!((unfit.status, &unfit.json()["code"]), (422, &json!("validationFailed")));
    let sent = server.ask("POST", &format!("/v1/runs/{run}/signals/welcome"), Some(&json!({"by": "joe"})));
    assert_eq!(sent.json(), json!({"outcome": "consumed"}));
    let failed = server.get(&format!("/v1/runs/{run}?wait=10s")).json();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap().contains("needs a number"), "{failed}");

    assert_eq!(server.ask("PUT", "/v1/kv/tour/visitors", Some(&json!({"value": 41}))).status, 200);
    assert_eq!(server.ask("POST", &format!("/v1/runs/{run}/retry"), None).status, 204);
    let done = server.get(&format!("/v1/runs/{run}?wait=10s")).json();
    assert_eq!(done["result"], json!({"text": "Welcome ann, says joe.", "visitor": 42}), "{done}");

    let followed = server.get(&format!("/v1/runs/{run}/events"));
    assert!(followed.head.contains("text/event-stream"), "{followed:?}");
    for sign in ["id: 0\n", "id: 3\n", "event: status", "\"status\":\"completed\""] {
        assert!(followed.body.contains(sign), "{sign} in {followed:?}");
    }
}

#[test]
fn second_server_on_a_folder_names_the_first_process() {
    let folder = tempfile::tempdir().unwrap();
    let server = dev(folder.path());
    let second = stepwell(folder.path()).args(["dev", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(second.status.code(), Some(4));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains(&format!("in use by process {}", server.child.id())), "{said}");
}

#[test]
fn stopping_server_answers_waiting_requests() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = dev(folder.path());
    let start = json!({"workflow": "tour", "input": {"visitor": "ann"}});
    let run = server.ask("POST", "/v1/runs", Some(&start)).json()["id"].as_str().unwrap().to_owned();
    let mut waiting = TcpStream::connect(&server.address).unwrap();
    waiting.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!(
        "GET /v1/runs/{run}?wait=60s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        server.key
    );
    waiting.write_all(request.as_bytes()).unwrap();
    let waits = || server.get("/metrics").body.contains("stepwell_http_waits_open 1");
    let began = Instant::now();
    while !waits() {
        assert!(began.elapsed() < Duration::from_secs(60), "the request does not wait");
    }
    let began = Instant::now();
    assert_eq!(server.terminate(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let mut text = String::new();
    waiting.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"status\":\"waiting\""), "{text}");
}

/// Starts `stepwell server start` with these settings and an API key that is created first.
fn configured(folder: &Path, settings: &str) -> Serving {
    std::fs::write(folder.join("stepwell.toml"), settings).unwrap();
    let made = stepwell(folder)
        .args([
            "apikey",
            "create",
            "test",
            "--permission",
            "workflow:view",
            "--permission",
            "workflow:manage",
            "--json",
        ])
        .args(["--database-url", "sqlite:stepwell-data/stepwell.sqlite"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    std::fs::write(folder.join("stepwell-data/dev.key"), made["secret"].as_str().unwrap()).unwrap();
    let mut command = stepwell(folder);
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    started(command, folder)
}

#[test]
fn silent_and_slow_connections_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "[server]\nhead_timeout = \"1s\"\nbody_timeout = \"1s\"\n";
    let server = configured(folder.path(), settings);
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let mut dripping = TcpStream::connect(&server.address).unwrap();
    dripping.write_all(b"GET /livez HTTP/1.1\r\nx-a: ").unwrap();
    let mut half = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        server.key
    );
    half.write_all(head.as_bytes()).unwrap();
    let mut idle = TcpStream::connect(&server.address).unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let began = Instant::now();
    for mut stream in silent.into_iter().chain([dripping, half, idle]) {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut text = Vec::new();
        // The server has closed the connection: reading ends or fails, but does not time out.
        let _ = stream
            .read_to_end(&mut text)
            .inspect_err(|error| assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock));
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(server.get("/livez").status, 200);
}

#[test]
fn connections_over_the_limit_get_503() {
    let folder = tempfile::tempdir().unwrap();
    let server = configured(folder.path(), "[server]\nmax_connections = 2\n");
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            stream
        })
        .collect();
    let mut third = TcpStream::connect(&server.address).unwrap();
    let mut text = String::new();
    third.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("Retry-After"), "{text}");
    drop(held);
    let began = Instant::now();
    loop {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        if text.starts_with("HTTP/1.1 200") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{text}");
    }
}

#[test]
fn oversized_and_non_http_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = configured(folder.path(), "[server]\nbody_bytes = 1000\n");
    let large = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "x".repeat(2_000)})));
    assert_eq!((large.status, &large.json()["code"]), (413, &json!("bodyTooLarge")));
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may close the connection before everything is sent.
    let _ = stream
        .write_all(format!("GET /livez HTTP/1.1\r\nx-long: {}\r\n\r\n", "y".repeat(100_000)).as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n").unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    assert_eq!(server.get("/livez").status, 200);
}

#[test]
fn listening_publicly_requires_a_credential() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        stepwell(folder.path()).args(["server", "start", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(6));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("Create an API key first") && said.contains("0.0.0.0"), "{said}");
}

#[test]
fn invalid_or_used_listen_address_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = stepwell(folder.path()).args(["server", "start", "--listen", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is in use"));
    let output = stepwell(folder.path()).args(["server", "start", "--listen", "nowhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    let output =
        stepwell(folder.path()).args(["server", "start", "--database-url", "mysql://x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8(output.stderr).unwrap().contains("sqlite:PATH"));
}
