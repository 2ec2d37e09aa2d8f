//! The server of this proof, in its own folder, with the examples, an API key with every permission, and test data.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::process;

/// Time limit for the start of the server and for one command.
const LIMIT: Duration = Duration::from_secs(60);
/// Content of the settings file of schemathesis.
const SETTINGS: &str = include_str!("schemathesis.toml");
const GUARD: &str = include_str!("guard.py");

/// A workflow that accepts any input.
const GREET: &str = include_str!("greet.yaml");

/// Commands that create the test data. The ids of runs are repeated in `schemathesis.toml`.
const FILLED: &[&[&str]] = &[
    &["workflow", "publish", "greet", "greet.yaml", "--activate"],
    &["run", "start", "greet", "--id", "00000000-0000-4000-8000-000000000001"],
    &["run", "start", "greet", "--id", "00000000-0000-4000-8000-000000000002"],
    &["run", "start", "greet", "--id", "00000000-0000-4000-8000-000000000003"],
    &["run", "start", "greet", "--id", "00000000-0000-4000-8000-000000000004"],
    &[
        "run",
        "start",
        "tour",
        "--input",
        r#"{"visitor": "ann"}"#,
        "--id",
        "00000000-0000-4000-8000-000000000005",
    ],
    &["signal", "send", "00000000-0000-4000-8000-000000000001", "ask", r#"{"by": "joe"}"#],
    &["run", "suspend", "00000000-0000-4000-8000-000000000002"],
    &["kv", "set", "stock", "bolts", "7"],
    &["kv", "set", "stock", "nuts", r#"{"red": 1}"#],
    &["link", "put", "crm", r#"{"type": "person", "id": "ann"}"#, r#"{"type": "order", "id": "1"}"#],
    &["schedule", "put", "nightly", "0 3 * * *", "greet"],
    &["event", "put-type", "order.paid", "--about", "An order was paid"],
    &["tenant", "create", "another"],
    &["apikey", "create", "another", "--permission", "workflow:view"],
];

/// A server child process. Dropping it kills the process.
pub(super) struct Served {
    child: Child,
    stepwell: PathBuf,
    key: String,
    pub(super) url: String,
    pub(super) folder: PathBuf,
}

impl Served {
    /// Starts the server and waits until it listens.
    pub(super) fn start(stepwell: &Path, folder: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::write(folder.join("schemathesis.toml"), SETTINGS).map_err(failed)?;
        fs::write(folder.join("guard.py"), GUARD).map_err(failed)?;
        fs::write(folder.join("greet.yaml"), GREET).map_err(failed)?;
        let log = File::create(folder.join("server.log")).map_err(failed)?;
        let mut child = Command::new(stepwell)
            .args(["dev", "--data", "data", "--listen", "127.0.0.1:0"])
            .current_dir(folder)
            .env_remove("DATABASE_URL")
            // Keep waits short; waiting is tested elsewhere.
            .env("STEPWELL_SERVER__MAX_WAIT", "20ms")
            // Turn rate limits off: the many requests, some with wrong credentials on purpose, would be throttled.
            .env("STEPWELL_SERVER__REQUESTS_PER_SECOND", "0")
            .env("STEPWELL_SERVER__ANONYMOUS_REQUESTS_PER_SECOND", "0")
            .env("STEPWELL_SERVER__AUTH_FAILURES_PER_MINUTE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start the server: {error}"))?;
        let (say, said) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(say.send(line)));
            });
        }
        let url = said.recv_timeout(LIMIT).unwrap_or_default().trim().to_owned();
        let (stepwell, folder) = (stepwell.to_owned(), folder.to_owned());
        let mut served = Served { child, stepwell, key: String::new(), url, folder };
        if !served.url.starts_with("http://") {
            return Err(format!("the server did not print its address:\n{}", served.log()?));
        }
        let key = served.folder.join("data/dev.key");
        let text = fs::read_to_string(&key).map_err(|error| format!("{}: {error}", key.display()))?;
        served.key = text.trim().to_owned();
        Ok(served)
    }

    /// Creates the test data: runs, keys, links and names that requests can refer to.
    pub(super) fn fill(&self) -> Result<(), String> {
        FILLED.iter().try_for_each(|verb| self.verb(verb))
    }

    fn verb(&self, verb: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.stepwell);
        command.args(verb).args(["--json", "--server", &self.url]).env("STEPWELL_API_KEY", &self.key);
        command.current_dir(&self.folder);
        let captured = process::capture(&mut command, "", LIMIT, |_| ())?;
        process::succeeded(&command, captured.status)
    }

    /// Writes a contract into the folder.
    pub(super) fn keep(&self, name: &str, contract: &Value) -> Result<(), String> {
        let file = self.folder.join(name);
        fs::write(&file, contract.to_string()).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Checks that the server still answers and that nothing in it has panicked.
    pub(super) fn is_well(&self) -> Result<(), String> {
        self.verb(&["workflow", "list"])?;
        let log = self.log()?;
        match log.lines().find(|line| line.contains("panicked at")) {
            None => Ok(()),
            Some(line) => Err(format!("the server has panicked: {line}")),
        }
    }

    fn log(&self) -> Result<String, String> {
        let file = self.folder.join("server.log");
        fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Returns a schemathesis command that tests the server against a contract.
    pub(super) fn schemathesis(&self, program: &Path, contract: &str, checks: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("STEPWELL_KEY", &self.key);
        command.args(["run", contract, "--checks", checks, "--report", "ndjson", "--no-color"]);
        command.args(["--continue-on-failure", "--generation-database", "none"]);
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
