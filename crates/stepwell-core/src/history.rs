//! What happened to a run, entry by entry, and the way back to any earlier state.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::Name;
use crate::limits::{Limits, json_bytes};
use crate::patch::Patch;
use crate::snapshot::Snapshot;
use crate::time::Timestamp;

/// One change of a run. Refused attempts leave none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    /// The version this change made.
    pub version: u64,
    /// The signal, or the engine's own word: `__start`, `__resolve_wait:<place>`, `__auto:<transition>`,
    /// `__timer:<place>`, `__child:<place>`, `__error:<transition>`, `__retry:<transition>`, `__operator:<command>`.
    pub action: String,
    /// When.
    pub at: Timestamp,
    /// The places entered, in order.
    pub entered: Vec<Name>,
    /// The places left, in order.
    pub exited: Vec<Name>,
    /// The transitions that fired.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Name>,
    /// What the event brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What the action was given; secrets are still names in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What the action gave back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How long the action took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
}

/// The value, or what it was if it is too large to keep.
pub(crate) fn cut(value: &Value, limits: &Limits) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let max = limits.history_value_bytes as usize;
    // Counted first: most values are kept, and a text of each would be made for nothing.
    if json_bytes(value) <= max {
        return Some(value.clone());
    }
    let text = value.to_string();
    let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    Some(json!({ "$cut": { "bytes": text.len(), "head": &text[..end] } }))
}

/// A run's history for whoever keeps snapshots themselves: the oldest state, and every change since.
///
/// Append-only. Durable runs keep the same in their checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "Stored")]
pub struct History {
    base: Snapshot,
    changes: Vec<Recorded>,
    #[serde(skip)]
    newest: Option<Value>,
}

/// A history as it was read; nobody has checked yet that its changes follow each other.
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
            let next = Snapshot::deserialize(&document)
                .map_err(|error| format!("the change to version {version} leads to no snapshot: {error}"))?;
            if change.entry.version != version || next.version() != version {
                let (entry, next) = (change.entry.version, next.version());
                return Err(format!(
                    "version {version} must follow, and the history has entry {entry} and state {next}"
                ));
            }
        }
        Ok(History { base: stored.base, changes: stored.changes, newest: Some(document) })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Recorded {
    entry: Entry,
    patch: Patch,
}

/// There is no such version in this history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("version {asked} is not in this history, which holds {oldest} to {newest}")]
pub struct NoSuchVersion {
    asked: u64,
    oldest: u64,
    newest: u64,
}

/// An entry that does not follow the newest one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the history stands at version {newest}; version {pushed} does not follow it")]
pub struct OutOfOrder {
    newest: u64,
    pushed: u64,
}

impl History {
    /// A history that begins with this state.
    pub fn new(base: Snapshot) -> Self {
        History { base, changes: Vec::new(), newest: None }
    }

    /// Adds the change that led to `next`; it must be the version after the newest.
    pub fn push(&mut self, entry: Entry, next: &Snapshot) -> Result<(), OutOfOrder> {
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

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.changes.iter().map(|change| &change.entry)
    }

    /// The state as it was at a version. Only reads.
    pub fn rewind(&self, version: u64) -> Result<Snapshot, NoSuchVersion> {
        let (oldest, newest) = (self.base.version(), self.newest_version());
        if version < oldest || version > newest {
            return Err(NoSuchVersion { asked: version, oldest, newest });
        }
        let document = self.document_at(version);
        Ok(serde_json::from_value(document).expect("patches between snapshots lead to a snapshot"))
    }

    /// Forgets all but the newest `keep` changes; the oldest state moves up.
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
