//! The package `jsonata` in a Node.js process, queried line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use stepwell_core::expr::functions;

use super::case::{Case, Expected, paired};

/// The Node.js program that evaluates with the package.
const PROGRAM: &str = include_str!("oracle.mjs");

pub(super) struct Reference {
    child: Child,
    answers: BufReader<ChildStdout>,
    /// The changes that every request makes to the package, which are planted faults.
    planted: Vec<String>,
}

impl Reference {
    /// Starts the process. The folder `node_modules` of `folder` must contain the package.
    pub(super) fn start(folder: &Path, planted: Option<&str>) -> Result<Self, String> {
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        let program = folder.join("oracle.mjs");
        std::fs::write(&program, PROGRAM).map_err(|error| format!("{}: {error}", program.display()))?;
        let mut node = Command::new("node");
        // A time without a zone is UTC in the dialect, and local time in the package.
        let arities = functions().iter().map(|info| (info.name.to_owned(), json!(info.arity())));
        let arities = Value::Object(arities.collect());
        node.arg(&program)
            .arg(&folder)
            .arg(arities.to_string())
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = node.spawn().map_err(|error| format!("cannot run `node`: {error}"))?;
        let answers = BufReader::new(child.stdout.take().ok_or("`node` has no output")?);
        Ok(Reference { child, answers, planted: planted.map(str::to_owned).into_iter().collect() })
    }

    /// Evaluates a case with the package, changed as the deviations with these ids describe.
    pub(super) fn ask(&mut self, case: &Case, deviations: &[&str]) -> Result<Expected, String> {
        let gone = || "`node` has ended: is the package `jsonata` installed?".to_owned();
        let changes: Vec<&str> =
            self.planted.iter().map(String::as_str).chain(deviations.iter().copied()).collect();
        let mut request = json!({"expr": case.expr, "bindings": case.bindings, "changes": changes});
        if let Some(data) = case.data() {
            request["data"] = data.clone();
        }
        let stdin = self.child.stdin.as_mut().ok_or_else(gone)?;
        writeln!(stdin, "{request}").map_err(|_| gone())?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
            return Err(gone());
        }
        answer(&line)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Reads an answer. A string of JavaScript can contain half a surrogate pair, which stays an escape sequence.
fn answer(line: &str) -> Result<Expected, String> {
    let mut answer: Value =
        serde_json::from_str(&paired(line)).map_err(|error| format!("{line}: {error}"))?;
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    Ok(match (text("code"), text("crash"), answer.get("value").is_some()) {
        (Some(code), ..) => Expected::Code(code),
        (_, Some(message), _) => Expected::Crash(message),
        (.., true) => Expected::Value { value: answer["value"].take(), is_unordered: false },
        (.., false) => Expected::Undefined,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_in_a_reply_is_read() {
        let read = answer(r#"{"value":["\ud83d","\ude00","\ud83d\ude00"]}"#).unwrap();
        assert_eq!(read.to_string(), r#"["\\ud83d","\\ude00","😀"]"#);
    }

    #[test]
    fn errors_of_the_package_and_of_javascript_are_distinct() {
        assert!(matches!(answer(r#"{"code":"D3086"}"#), Ok(Expected::Code(code)) if code == "D3086"));
        assert!(matches!(answer(r#"{"crash":"x is not a function"}"#), Ok(Expected::Crash(_))));
        assert!(matches!(answer("{}"), Ok(Expected::Undefined)));
        assert!(answer("").is_err());
    }
}
