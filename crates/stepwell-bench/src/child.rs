//! Processes that are there to be killed: always our own children, checked to be themselves before the kill.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A child of this process that says its name first. It does not outlive this value.
pub(crate) struct Victim {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Victim {
    /// Starts this same program with another command, `arguments`, and waits until it has said who it is.
    pub(crate) fn start(name: &str, arguments: &[String]) -> Result<Victim, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args(arguments)
            .args(["--name", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the process under test cannot be started: {error}"))?;
        let Some(output) = child.stdout.take() else {
            let _ = child.kill();
            return Err("the process under test has no output".to_owned());
        };
        let mut victim = Victim { child, lines: BufReader::new(output).lines() };
        let hello = victim.line()?.ok_or("the process under test said nothing")?;
        if hello != format!("{name} {}", victim.child.id()) {
            return Err(format!("the process under test said `{hello}`, not its own name"));
        }
        Ok(victim)
    }

    /// The next line it says; `None` when it has ended.
    pub(crate) fn line(&mut self) -> Result<Option<String>, String> {
        self.lines.next().transpose().map_err(|error| error.to_string())
    }

    /// Whether it has not ended by itself.
    pub(crate) fn is_going(&mut self) -> Result<bool, String> {
        Ok(self.child.try_wait().map_err(|error| error.to_string())?.is_none())
    }

    /// Kills it without warning; gives what it had said until then.
    pub(crate) fn kill(mut self) -> Result<Vec<String>, String> {
        self.child.kill().map_err(|error| format!("the process under test cannot be killed: {error}"))?;
        self.rest()
    }

    /// Waits until it ends by itself; gives what it still said.
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

/// The victim's side: says who it is, and ends when the process that started it does.
pub(crate) fn introduce(name: &str) -> Result<(), String> {
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        std::process::exit(3);
    });
    say(&format!("{name} {}", std::process::id()))
}

/// One line, in one write: shorter than a pipe's atomic size.
pub(crate) fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let line = format!("{line}\n");
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}
