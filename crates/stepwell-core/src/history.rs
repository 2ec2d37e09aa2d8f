//! The history of a run: its entries, and the reconstruction of earlier states.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::Name;
use crate::limits::{Limits, json_bytes};
use crate::patch::Patch;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

/// The record of one change of a run. Refused inputs are not recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HistoryEntry {
    /// The version that the change created.
    pub version: u64,
    /// The name of the signal, or a name of the engine: `__start`, `__resolve_wait:<place>`, `__auto:<transition>`,
    /// `__timer:<place>`, `__child:<place>`, `__loop:<place>`, `__enter:<place>`, `__error:<transition>`,
    /// `__retry:<transition>`, `__operator:<command>`.
    pub action: String,
    pub at: Timestamp,
    /// The places entered, in order.
    pub entered: Vec<Name>,
    /// The places left, in order.
    pub exited: Vec<Name>,
    /// The transitions that fired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Name>,
    /// Payload of the input. Truncated if it exceeds the limit `history_value_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// Input of the action, truncated like `payload`. Secrets in it are not resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Output of the action, truncated like `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Duration of the action in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Id of the actor who caused the change: a caller, an answer link, a schedule, an event or another run. Core never
    /// sets it; the program that commits the change does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
}

/// Returns the value for the history. A value that is too large is replaced by its size and the beginning of its
/// JSON.
pub(crate) fn truncate_value(value: &Value, limits: &Limits) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let max = limits.history_value_bytes as usize;
    // Counted first: most values are small enough, so building their text would be wasted work.
    if json_bytes(value) <= max {
        return Some(value.clone());
    }
    let text = value.to_string();
    let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    Some(json!({ "$cut": { "bytes": text.len(), "head": &text[..end] } }))
}

/// The history of a run, for programs that store snapshots themselves: the oldest state and every change since.
///
/// It is append-only. Durable runs keep the same data in their checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "Stored")]
pub struct History {
    base: Snapshot,
    changes: Vec<Recorded>,
    #[serde(skip)]
    newest: Option<Value>,
}

/// A history as it was read, before its changes are checked for continuity.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    base: Snapshot,
    changes: Vec<Recorded>,
}

impl TryFrom<Stored> for History {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let mut document = to_value(&stored.base);
        let mut version = stored.base.version();
        for change in &stored.changes {
            change.patch.apply(&mut document);
            version = version.saturating_add(1);
            let next = Snapshot::deserialize(&document).map_err(|error| {
                format!("the change to version {version} does not give a valid snapshot: {error}")
            })?;
            if change.entry.version != version || next.version() != version {
                let (entry, next) = (change.entry.version, next.version());
                return Err(format!(
                    "expected version {version} next, found entry {entry} with state {next}"
                ));
            }
        }
        Ok(History { base: stored.base, changes: stored.changes, newest: Some(document) })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Recorded {
    entry: HistoryEntry,
    patch: Patch,
}

/// The error for a version that is not in the history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("version {requested} is not in this history, which has versions {oldest} to {newest}")]
pub struct NoSuchVersion {
    requested: u64,
    oldest: u64,
    newest: u64,
}

/// The error for an entry that does not follow the newest one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the newest version of the history is {newest}; version {pushed} does not follow it")]
pub struct OutOfOrder {
    newest: u64,
    pushed: u64,
}

impl History {
    /// Creates a history that starts with this state.
    pub fn new(base: Snapshot) -> Self {
        History { base, changes: Vec::new(), newest: None }
    }

    /// Adds the change that led to `next`, which must be the version after the newest one.
    pub fn push(&mut self, entry: HistoryEntry, next: &Snapshot) -> Result<(), OutOfOrder> {
        let newest = self.newest_version();
        if next.version() != newest + 1 || entry.version != next.version() {
            return Err(OutOfOrder { newest, pushed: next.version() });
        }
        let after = to_value(next);
        let before = self.newest.take().unwrap_or_else(|| self.document_at(newest));
        self.changes.push(Recorded { entry, patch: Patch::between(&before, &after) });
        self.newest = Some(after);
        Ok(())
    }

    /// Returns the entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.changes.iter().map(|change| &change.entry)
    }

    /// Reconstructs the state at a version. Does not change the history.
    pub fn rewind(&self, version: u64) -> Result<Snapshot, NoSuchVersion> {
        let (oldest, newest) = (self.base.version(), self.newest_version());
        if version < oldest || version > newest {
            return Err(NoSuchVersion { requested: version, oldest, newest });
        }
        let document = self.document_at(version);
        Ok(serde_json::from_value(document).expect("patches between snapshots lead to a snapshot"))
    }

    /// Removes all but the newest `keep` changes. The oldest state moves up accordingly.
    pub fn bound(&mut self, keep: usize) {
        let drop = self.changes.len().saturating_sub(keep);
        if drop == 0 {
            return;
        }
        let oldest = self.base.version() + drop as u64;
        self.base = self.rewind(oldest).expect("the version is between oldest and newest");
        self.changes.drain(..drop);
    }

    fn newest_version(&self) -> u64 {
        self.base.version() + self.changes.len() as u64
    }

    fn document_at(&self, version: u64) -> Value {
        let mut document = to_value(&self.base);
        for change in self.changes.iter().take_while(|change| change.entry.version <= version) {
            change.patch.apply(&mut document);
        }
        document
    }
}

fn to_value(snapshot: &Snapshot) -> Value {
    serde_json::to_value(snapshot).expect("a snapshot is plain data with text keys")
}
