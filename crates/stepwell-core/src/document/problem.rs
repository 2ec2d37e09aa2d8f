//! Problems of workflow documents and their positions.

use std::fmt;

use serde::Serialize;

/// A position in a text. Line and column are counted from 1; 0 means that there is no position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// A problem of a workflow document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceProblem {
    /// Stable code for the kind of problem.
    pub code: String,
    #[serde(flatten)]
    pub at: Position,
    /// The step that has the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Human-readable description of the problem and its fix.
    pub message: String,
}

impl SourceProblem {
    /// Creates a problem that belongs to no step.
    pub fn new(code: &str, at: Position, message: impl Into<String>) -> Self {
        SourceProblem { code: code.to_owned(), at, step: None, message: message.into() }
    }
}

impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.line > 0 {
            write!(f, "line {}, column {}: ", self.at.line, self.at.column)?;
        }
        if let Some(step) = &self.step {
            write!(f, "step `{step}`: ")?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a workflow document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct SourceProblems(pub Vec<SourceProblem>);

impl fmt::Display for SourceProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the workflow document has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
