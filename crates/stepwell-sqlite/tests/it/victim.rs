//! A second process that works on a database and is killed: the same program, running the same test.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const FOLDER: &str = "STEPWELL_TEST_VICTIM";
/// The line that the process prints when it is ready to be killed.
const HERE: &str = "here, to be killed";

/// Returns the working directory in the process to be killed; `None` in the test itself.
pub(crate) fn victim_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Reports that it is ready and waits to be killed. Also exits when the test ends, so that it is never left behind.
pub(crate) fn wait_to_be_killed() -> ! {
    let mut out = std::io::stdout();
    writeln!(out, "\n{HERE}").unwrap();
    out.flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(1);
}

/// A process that is ready to be killed.
pub(crate) struct Victim(Child);

impl Victim {
    /// Runs a test, given by its full name, in a new process, and waits until that reports that it is ready.
    pub(crate) fn start(test: &str, folder: &std::path::Path) -> Victim {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line == HERE), "the process has ended before it was ready");
        Victim(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process like `kill -9`.
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
