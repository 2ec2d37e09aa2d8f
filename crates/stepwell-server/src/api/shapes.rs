//! Types that many requests and responses share: pages, times, durations, ids, statuses and document problems.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use stepwell::core::RunId;
use stepwell::core::document;
use stepwell::core::time::{duration_ms, missing_unit};
use stepwell::store;

use crate::routes::problem::Problem;

/// Default number of rows of a page.
const PAGE: u32 = 50;
/// Maximum number of rows of a page.
const PAGE_MAX: u32 = 200;
/// Characters to percent-encode in a path segment: all except the unreserved ones.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Distinguishes a field that is `null` from an absent field.
pub(super) fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Returns the default input: an empty object.
pub(super) fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}

/// A page of a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "PageOf{T}")]
pub(crate) struct Page<T> {
    /// Rows of this page.
    pub(crate) items: Vec<T>,
    /// Value of `cursor` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
    /// Rows of this page that cannot be read and are omitted from `items`; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unreadable: Vec<UnreadableRow>,
}

/// A stored row that cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UnreadableRow {
    /// Name of the table.
    table: &'static str,
    /// Key of the row in its table.
    key: String,
    /// Id of the run that the row belongs to; absent if it belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Reason why the row cannot be read.
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

    /// Creates the only page of a complete listing.
    pub(crate) fn only(items: Vec<T>) -> Self {
        Page { items, next_cursor: None, unreadable: Vec::new() }
    }
}

/// Page of a listing.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listing {
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
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

/// An error or a warning about a workflow document.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DocumentProblem {
    /// Stable code of the problem, for programs.
    code: String,
    /// Line in the document, counted from 1; 0 = no position.
    line: usize,
    /// Column in the line, counted from 1.
    column: usize,
    /// Id of the step that the problem concerns; absent if it concerns none.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    /// Description of the problem and of the correction, for people.
    message: String,
}

impl DocumentProblem {
    pub(crate) fn all(problems: Vec<document::SourceProblem>) -> Vec<Self> {
        problems.into_iter().map(DocumentProblem::from).collect()
    }
}

impl From<document::SourceProblem> for DocumentProblem {
    fn from(problem: document::SourceProblem) -> Self {
        let document::SourceProblem { code, at, step, message } = problem;
        DocumentProblem { code, line: at.line, column: at.column, step, message }
    }
}

/// Percent-encodes a name as a path segment.
pub(crate) fn segment(name: &str) -> impl std::fmt::Display {
    utf8_percent_encode(name, SEGMENT)
}

/// Schema of a time in a response: RFC 3339.
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

/// Schema of a time in a request: RFC 3339, within the range of years that can be stored.
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

/// Schema of an id: a UUID with hyphens.
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

/// Schema of a condition on a shadow column, such as `name=value`.
pub(crate) struct Condition;

impl JsonSchema for Condition {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Condition".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[^=^<>]+(=|\\^=|<|>)" })
    }
}

/// Status of a run. `completed` and `cancelled` are final.
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

/// Schema of a duration: ISO 8601 (`PT30S`), or a number with one of the units `ms`, `s`, `m`, `h` and `d` (`30s`).
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
            "description": "Duration: ISO 8601 (`PT30S`), or a number with the unit `ms`, `s`, `m`, `h` or `d` (`30s`)",
            "pattern": "^(P[0-9]{1,6}D|P(?:[0-9]{1,6}D)?T[0-9]{1,6}[HMS]|[0-9]{1,6}(?:ms|s|m|h|d))$",
            "examples": ["PT30S", "30s"],
        })
    }
}

/// Parses a duration and rejects a number without a unit.
pub(crate) fn span(text: &str) -> Result<Duration, Problem> {
    // A string without a unit is ambiguous, so `duration_ms` does not accept it.
    let given = Value::String(text.to_owned());
    duration_ms(&given).map(Duration::from_millis).ok_or_else(|| {
        let detail = format!("`{text}` is not a duration. Write `30s`, `500ms`, `5m`, `2h` or `PT30S`.");
        let detail = missing_unit("", &given).map_or(detail, |why| format!("{why}."));
        Problem::bad("badParameter", detail)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::span;

    #[test]
    fn durations_parse_in_both_formats() {
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
