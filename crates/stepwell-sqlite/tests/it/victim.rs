//! Another process that does something with a database and is killed: this same program, running the same test.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const FOLDER: &str = "STEPWELL_TEST_VICTIM";
/// What it says when it has come to where it is to be killed.
const HERE: &str = "here, to be killed";

/// The folder to work in, for the process that is to be killed; nothing for the test itself.
pub(crate) fn is_me() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Says that it is there, and waits for its end; also that of the test, which would leave it behind otherwise.
pub(crate) fn wait_to_be_killed() -> ! {
    let mut out = std::io::stdout();
    writeln!(out, "\n{HERE}").unwrap();
    out.flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(1);
}

/// A process that has come to where it is to be killed.
pub(crate) struct Victim(Child);

impl Victim {
    /// Runs a test, given by its whole name, in a process of its own, and waits until it says that it is there.
    pub(crate) fn start(test: &str, folder: &std::path::Path) -> Victim {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line == HERE), "the process has ended before it came there");
        Victim(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
