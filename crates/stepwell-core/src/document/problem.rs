//! What is wrong with a document, and where.

use std::fmt;

use serde::Serialize;

/// A line and a column, both counted from 1; 0 = nowhere in particular.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A stable word for the kind of mistake.
    pub code: String,
    /// Where it stands.
    #[serde(flatten)]
    pub at: Place,
    /// The step it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What is wrong and what to do, for a person.
    pub message: String,
}

impl Problem {
    /// A problem that is no step's.
    pub fn new(code: &str, at: Place, message: impl Into<String>) -> Self {
        Problem { code: code.to_owned(), at, step: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
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

/// Everything that is wrong with a document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the document has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
