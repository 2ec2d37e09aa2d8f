//! Shapes that many answers have: pages, instants, ids, how a run is doing, and what is wrong with a document.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use stepwell::core::RunId;
use stepwell::core::document;
use stepwell::core::time::duration_ms;
use stepwell::store;

use crate::routes::problem::Problem;

/// Rows of a page that does not say how many.
const PAGE: u32 = 50;
/// Rows of a page at most.
const PAGE_MAX: u32 = 200;
/// What is written as it is in a part of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Tells a field that is `null` from one that is not there.
pub(super) fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// What something begins with that is given nothing.
pub(super) fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// A part of a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "PageOf{T}")]
pub(crate) struct Page<T> {
    /// The rows.
    pub(crate) items: Vec<T>,
    /// What to ask for the next part with; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
    /// Rows of this part that cannot be read and are left out; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unreadable: Vec<UnreadableRow>,
}

/// A row that is there and cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UnreadableRow {
    /// The table it is in.
    table: &'static str,
    /// Which row, by its key.
    key: String,
    /// The run whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// What is wrong with it.
    why: String,
}

impl From<store::BadRow> for UnreadableRow {
    fn from(row: store::BadRow) -> Self {
        let store::BadRow { table, key, run, why } = row;
        UnreadableRow { table, key, run, why }
    }
}

impl<T> Page<T> {
    pub(crate) fn of<S>(page: store::Page<S>, shape: impl FnMut(S) -> T) -> Self {
        Page {
            items: page.items.into_iter().map(shape).collect(),
            next_cursor: page.next,
            unreadable: page.bad.into_iter().map(UnreadableRow::from).collect(),
        }
    }

    /// Everything there is.
    pub(crate) fn only(items: Vec<T>) -> Self {
        Page { items, next_cursor: None, unreadable: Vec::new() }
    }
}

/// Which part of a listing is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

impl Listing {
    pub(crate) fn of(limit: Option<u32>, cursor: Option<String>) -> Self {
        Listing { limit, cursor }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX)
    }

    pub(crate) fn cursor(&self) -> Option<String> {
        self.cursor.clone()
    }
}

/// Something that is wrong with a document, or that is lacking to run it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DocumentProblem {
    /// A stable word for the kind of mistake.
    code: String,
    /// The line, counted from 1; 0 = nowhere in particular.
    line: usize,
    /// The column, counted from 1.
    column: usize,
    /// The step it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    /// What is wrong and what to do, for a person.
    message: String,
}

impl DocumentProblem {
    pub(crate) fn all(problems: Vec<document::Problem>) -> Vec<Self> {
        problems.into_iter().map(DocumentProblem::from).collect()
    }
}

impl From<document::Problem> for DocumentProblem {
    fn from(problem: document::Problem) -> Self {
        let document::Problem { code, at, step, message } = problem;
        DocumentProblem { code, line: at.line, column: at.column, step, message }
    }
}

/// A name as a part of a path.
pub(crate) fn segment(name: &str) -> impl std::fmt::Display {
    utf8_percent_encode(name, SEGMENT)
}

/// An instant as RFC 3339, in schemas.
pub(crate) struct Instant;

impl JsonSchema for Instant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Instant".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// An instant that a request brings, in schemas: RFC 3339 as far as instants can be kept.
pub(crate) struct InstantGiven;

impl JsonSchema for InstantGiven {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "InstantGiven".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let year = "(?:[0-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])";
        let time = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?";
        let zone = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
        let pattern = format!("^{year}-[0-9]{{2}}-[0-9]{{2}}[Tt]{time}{zone}$");
        json_schema!({ "type": "string", "format": "date-time", "pattern": pattern })
    }
}

/// An id, in schemas.
pub(crate) struct Id;

impl JsonSchema for Id {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";
        json_schema!({ "type": "string", "format": "uuid", "pattern": pattern })
    }
}

/// `name=value`, in schemas.
pub(crate) struct Condition;

impl JsonSchema for Condition {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Condition".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[^=]+=" })
    }
}

/// How a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RunStatus {
    Pending,
    Running,
    Waiting,
    Suspended,
    Failed,
    Completed,
    Cancelled,
}

impl From<store::Status> for RunStatus {
    fn from(status: store::Status) -> Self {
        match status {
            store::Status::Pending => RunStatus::Pending,
            store::Status::Running => RunStatus::Running,
            store::Status::Waiting => RunStatus::Waiting,
            store::Status::Suspended => RunStatus::Suspended,
            store::Status::Failed => RunStatus::Failed,
            store::Status::Completed => RunStatus::Completed,
            store::Status::Cancelled => RunStatus::Cancelled,
        }
    }
}

impl From<RunStatus> for store::Status {
    fn from(status: RunStatus) -> Self {
        match status {
            RunStatus::Pending => store::Status::Pending,
            RunStatus::Running => store::Status::Running,
            RunStatus::Waiting => store::Status::Waiting,
            RunStatus::Suspended => store::Status::Suspended,
            RunStatus::Failed => store::Status::Failed,
            RunStatus::Completed => store::Status::Completed,
            RunStatus::Cancelled => store::Status::Cancelled,
        }
    }
}

/// A duration: ISO 8601 (`PT30S`), or a number with `ms`, `s`, `m`, `h` or `d` behind it.
pub(crate) struct Span;

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "ISO 8601 (`PT30S`), or a number with `ms`, `s`, `m`, `h` or `d` behind it",
            "pattern": "^(P[0-9]{1,6}D|P(?:[0-9]{1,6}D)?T[0-9]{1,6}[HMS]|[0-9]{1,6}(?:ms|s|m|h|d))$",
            "examples": ["PT30S", "30s"],
        })
    }
}

/// Reads a duration.
pub(crate) fn span(text: &str) -> Result<Duration, Problem> {
    // Without a unit nobody knows what is meant.
    let ms = duration_ms(&Value::String(text.to_owned()));
    ms.map(Duration::from_millis).ok_or_else(|| {
        let detail = format!("`{text}` is not a duration: `PT30S`, `30s`, `5m`, `2h`, `500ms`.");
        Problem::bad("badParameter", detail)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::span;

    #[test]
    fn durations_are_read_in_both_spellings() {
        for (text, ms) in
            [("PT30S", 30_000), ("30s", 30_000), ("5m", 300_000), ("P1D", 86_400_000), ("250ms", 250)]
        {
            assert_eq!(span(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "s", "30", "-1s", "99999999999999999999d", "P1Y"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
