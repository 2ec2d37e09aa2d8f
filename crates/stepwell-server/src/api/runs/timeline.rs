//! An item of a run's timeline as the API shows it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepwell::TimelineItem;
use stepwell::core::{Name, Timestamp};

use super::view::RunFailure;
use crate::api::shapes::Instant;
use crate::routes::problem::Problem;

/// Kind of an item of a timeline.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TimelineKind {
    /// A checkpoint: a change of the run.
    Entry,
    /// A failed attempt of a transition.
    Attempt,
    /// A command on the run.
    Command,
}

/// Something that happened to a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TimelineRow {
    /// Kind of the item, which says which of the other fields are present.
    #[serde(rename = "type")]
    kind: TimelineKind,
    /// Time at which it happened.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Id of the actor; absent if the run did it by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// The signal or engine event of an entry, the transition of an attempt, or the operation of a command.
    action: String,
    /// Version that the checkpoint created; only for entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// Description of the change; only for entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Value>,
    /// Error of the attempt; only for attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure>,
    /// Arguments and reason of the command; only for commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Value>,
}

impl TimelineRow {
    pub(super) fn of(item: &TimelineItem) -> Result<Self, Problem> {
        let (kind, action, version) = match item {
            TimelineItem::Entry { version, entry, .. } => {
                (TimelineKind::Entry, entry.action.clone(), Some(*version))
            }
            TimelineItem::Attempt(attempt) => {
                (TimelineKind::Attempt, Name::to_string(&attempt.transition), None)
            }
            TimelineItem::Command { row, .. } => (TimelineKind::Command, row.operation.clone(), None),
        };
        let entry = match item {
            TimelineItem::Entry { entry, .. } => {
                Some(serde_json::to_value(entry).map_err(|error| Problem::internal(&error))?)
            }
            TimelineItem::Attempt(_) | TimelineItem::Command { .. } => None,
        };
        let error = match item {
            TimelineItem::Attempt(attempt) => Some(attempt.error.clone().into()),
            TimelineItem::Entry { .. } | TimelineItem::Command { .. } => None,
        };
        let (at, actor, detail) = (item.at(), item.actor().map(str::to_owned), item.detail());
        Ok(TimelineRow { kind, at, actor, action, version, entry, error, detail })
    }
}
