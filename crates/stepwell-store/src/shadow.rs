//! Values of a run's context that are kept beside it, typed and indexed, so that runs can be found by them.
//!
//! A step writes those that it changes ([`ShadowWrite`]), in its own commit. A [`Refill`] makes a run's columns what
//! they should be, whoever wrote them, unless the run has moved since it was read.

use stepwell_core::shadow::ShadowValue;
use stepwell_core::{LimitExceeded, Name, RunId};

/// A shadow column of a run gets a value, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowWrite {
    /// The run's workflow: a column belongs to one.
    pub workflow: Name,
    /// The column.
    pub name: Name,
    /// What it holds from here on; `None` = nothing.
    pub value: Option<ShadowValue>,
}

impl ShadowWrite {
    /// A value that no index holds is no value of a column.
    pub(crate) fn check(&self) -> Result<(), LimitExceeded> {
        match &self.value {
            Some(ShadowValue::Text(text)) if text.len() > stepwell_core::shadow::MAX_TEXT_BYTES => {
                Err(LimitExceeded {
                    limit: "shadow_bytes".to_owned(),
                    what: format!("the shadow column `{}`", self.name),
                    actual: text.len() as u64,
                    max: stepwell_core::shadow::MAX_TEXT_BYTES as u64,
                })
            }
            _ => Ok(()),
        }
    }

    /// What of it is kept as text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let value = match &self.value {
            Some(ShadowValue::Text(text)) => Some(("shadow column", text.as_str())),
            _ => None,
        };
        [("workflow", self.workflow.as_str()), ("shadow column", self.name.as_str())].into_iter().chain(value)
    }
}

/// What a run's shadow columns should be. Others that it has go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refill {
    /// The run.
    pub run: RunId,
    /// The version it was read at; if it has moved since, nothing is written.
    pub version: u64,
    /// Its workflow.
    pub workflow: Name,
    /// The columns that hold something, each once.
    pub columns: Vec<(Name, Refilled)>,
}

/// What a column that holds something should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refilled {
    /// This.
    Is(ShadowValue),
    /// What it holds, and if that is nothing, this.
    Begins(ShadowValue),
}

/// A shadow column of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowRow {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: Name,
    /// The column.
    pub name: Name,
    /// What it holds.
    pub value: ShadowValue,
}

/// A value as the three columns of a database hold it.
pub fn split(value: &ShadowValue) -> (Option<&str>, Option<f64>, Option<bool>) {
    match value {
        ShadowValue::Text(text) => (Some(text), None, None),
        ShadowValue::Number(number) => (None, Some(*number), None),
        ShadowValue::Boolean(value) => (None, None, Some(*value)),
    }
}

/// Reads what [`split`] wrote; `None` if there is nothing.
pub fn joined(text: Option<String>, number: Option<f64>, boolean: Option<bool>) -> Option<ShadowValue> {
    text.map(ShadowValue::Text)
        .or_else(|| number.map(ShadowValue::Number))
        .or_else(|| boolean.map(ShadowValue::Boolean))
}
