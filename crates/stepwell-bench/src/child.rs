//! Child processes that tests kill. The parent checks the identity of a child before it kills it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A child of this process that prints its name and process id first. Dropping this value kills it.
pub(crate) struct Victim {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Victim {
    /// Starts this program with the command `arguments` and waits until the child has printed its name.
    pub(crate) fn start(name: &str, arguments: &[String]) -> Result<Victim, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args(arguments)
            .args(["--name", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the process under test: {error}"))?;
        let Some(output) = child.stdout.take() else {
            let _ = child.kill();
            return Err("the process under test has no output".to_owned());
        };
        let mut victim = Victim { child, lines: BufReader::new(output).lines() };
        let hello = victim.line()?.ok_or("the process under test ended without printing its name")?;
        if hello != format!("{name} {}", victim.child.id()) {
            return Err(format!("the process under test printed `{hello}` instead of its name and id"));
        }
        Ok(victim)
    }

    /// Returns the next line that the child prints, or `None` when it has ended.
    pub(crate) fn line(&mut self) -> Result<Option<String>, String> {
        self.lines.next().transpose().map_err(|error| error.to_string())
    }

    /// Returns `true` while the child has not exited.
    pub(crate) fn is_going(&mut self) -> Result<bool, String> {
        Ok(self.child.try_wait().map_err(|error| error.to_string())?.is_none())
    }

    /// Kills the child with SIGKILL and returns the lines it had printed until then.
    pub(crate) fn kill(mut self) -> Result<Vec<String>, String> {
        self.child.kill().map_err(|error| format!("cannot kill the process under test: {error}"))?;
        self.rest()
    }

    /// Waits until the child exits and returns the remaining lines. A failure status is an error.
    pub(crate) fn end(mut self) -> Result<Vec<String>, String> {
        let rest = self.rest()?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(rest) } else { Err(format!("the process under test ended with {status}")) }
    }

    fn rest(&mut self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Some(line) = self.line()? {
            lines.push(line);
        }
        Ok(lines)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side: prints name and process id, and exits when the parent process ends.
pub(crate) fn introduce(name: &str) -> Result<(), String> {
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        std::process::exit(3);
    });
    say(&format!("{name} {}", std::process::id()))
}

/// Prints one line in one write. A line shorter than a pipe's atomic size arrives complete or not at all.
pub(crate) fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let line = format!("{line}\n");
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}
