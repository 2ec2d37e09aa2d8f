//! An HTTP client for one keep-alive connection, and the server as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use stepwell::Engine;
use stepwell::catalogue::Publish;
use stepwell_sqlite::SqliteStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engines;

/// An HTTP response, read completely.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body)
            .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// One keep-alive connection to the server.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Connection { stream, buffer: Vec::new() })
    }

    /// Sends a request unchanged and reads the whole response.
    pub(crate) async fn send(&mut self, request: &str) -> Result<Answer, String> {
        self.stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection was closed".to_owned());
            }
            let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end]).map_err(|error| error.to_string())?;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            let length: usize = length.parse().map_err(|_| format!("invalid content-length `{length}`"))?;
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            let status = status.ok_or_else(|| format!("not an HTTP response: {head}"))?;
            if self.buffer.len() >= end + 4 + length {
                return Ok(Answer { status, body: self.buffer[end + 4..end + 4 + length].to_vec() });
            }
        }
    }
}

/// Returns the bytes of a request as text.
pub(crate) fn request(method: &str, path: &str, key: &str, headers: &str, body: Option<&Value>) -> String {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n{headers}{kind}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the absolute path of a program, so that it works from any folder.
pub(crate) fn program(text: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(text).map_err(|error| format!("cannot find the program `{text}`: {error}"))
}

/// The server as a child process. Dropping it kills the process.
pub(crate) struct Program {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Program {
    /// Starts the server in a folder and waits until it listens.
    pub(crate) fn start(stepwell: &Path, folder: &Path) -> Result<Self, String> {
        let mut child = Command::new(stepwell)
            .args(["server", "start", "--listen", "127.0.0.1:0", "--config", "stepwell.toml"])
            .args(["--database-url", "sqlite:stepwell.sqlite"])
            .current_dir(folder)
            .env_remove("DATABASE_URL")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let mut line = String::new();
        let said = child.stdout.take().map(|output| BufReader::new(output).read_line(&mut line));
        let address = line.trim().strip_prefix("http://").and_then(|address| address.parse().ok());
        match (said, address) {
            (Some(Ok(_)), Some(address)) => Ok(Program { child, address }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the server printed `{}` instead of its address", line.trim()))
            }
        }
    }

    /// Kills the server with SIGKILL. Fails if it has exited by itself.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("the server has exited by itself with {status}"));
        }
        self.child.kill().map_err(|error| format!("cannot kill the server: {error}"))?;
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prepares a folder for a server: settings and a workflow. Returns an API key with every permission.
pub(crate) fn prepare(
    stepwell: &Path,
    folder: &Path,
    settings: &str,
    workflow: (&str, &str),
    runtime: &tokio::runtime::Runtime,
) -> Result<String, String> {
    std::fs::write(folder.join("stepwell.toml"), settings).map_err(|error| error.to_string())?;
    let file: PathBuf = folder.join("stepwell.sqlite");
    runtime.block_on(async {
        let store = SqliteStore::open(&file).map_err(|error| error.to_string())?;
        let engine = Engine::builder(Arc::new(store)).start().await.map_err(|error| error.to_string())?;
        let (name, text) = workflow;
        // The server has more actions than this engine.
        let publish = Publish::text(text).activate().allow_unknown_actions();
        let published = engine.catalogue().publish(name, publish).await;
        // An SQLite file belongs to one process at a time: close it before the program opens it.
        engines::close(engine).await;
        published.map(drop).map_err(|error| error.to_string())
    })?;
    let mut create = Command::new(stepwell);
    create.args(["apikey", "create", "bench", "--json", "--database-url", "sqlite:stepwell.sqlite"]);
    for permission in ["view", "read", "manage"] {
        create.args(["--permission", &format!("workflow:{permission}")]);
    }
    let made =
        create.current_dir(folder).env_remove("DATABASE_URL").output().map_err(|error| error.to_string())?;
    let key = serde_json::from_slice::<Value>(&made.stdout).ok();
    let key = key.and_then(|key| key["secret"].as_str().map(str::to_owned));
    key.ok_or_else(|| format!("cannot create an API key: {}", String::from_utf8_lossy(&made.stderr)))
}
