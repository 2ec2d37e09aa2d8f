//! Handles: rows that are found by the hash of a secret. A handle holds the state of a flow, or is an answer link to a
//! wait.
//!
//! Every write compares the handle's fence with the one that was read and raises it. Of several writers that read the
//! same fence, one succeeds. A used-up handle is deleted.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};

use crate::commit::CommitId;
use crate::run::ProcessId;
use crate::shadow::{ShadowFilter, ShadowWrite, check_filters};
use crate::store::StoreError;

/// The identifier of a handle: the SHA-256 of its secret. The secret itself is not stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HandleHash(pub [u8; 32]);

impl fmt::Display for HandleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HandleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleHash({self})")
    }
}

impl HandleHash {
    /// Parses 64 hexadecimal digits, the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut hash = [0; 32];
        // `from_str_radix` would accept a sign.
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(HandleHash(hash))
    }
}

/// The purpose of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandleKind {
    /// It holds the state of a flow.
    Flow,
    /// It is an answer link to a wait of a durable run.
    Link,
}

impl HandleKind {
    /// Returns the stored form of this kind.
    pub fn as_str(self) -> &'static str {
        match self {
            HandleKind::Flow => "flow",
            HandleKind::Link => "link",
        }
    }

    /// Parses the output of [`HandleKind::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        [HandleKind::Flow, HandleKind::Link].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The stored row of a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleRow {
    pub handle: HandleHash,
    pub kind: HandleKind,
    /// The flow whose state it holds, or the run that it links to.
    pub run: RunId,
    pub workflow: Name,
    /// The definition that the flow is pinned to.
    pub definition: DefinitionHash,
    /// The state of the flow, or the wait that the link answers, as the engine wrote it (JSON).
    pub state: Bytes,
    /// The handle expires at this time; `None` = it never expires.
    pub expires_at: Option<Timestamp>,
    /// The process that has reserved it.
    pub owner: Option<ProcessId>,
    /// Raised by every write except [`HandleChange::WriteShadows`].
    pub fence: u64,
    /// The time at which `delivery` is due.
    pub deliver_at: Option<Timestamp>,
    /// The pending delivery, sealed by the engine.
    pub delivery: Option<Bytes>,
    /// The time at which the flow was first stored in a handle.
    pub created_at: Timestamp,
    /// The actor that created the flow or link.
    pub created_by: Option<String>,
    /// The time at which it was last put.
    pub updated_at: Timestamp,
    /// The actor that last put it.
    pub updated_by: Option<String>,
    /// The commit that last put or reserved it.
    pub commit: CommitId,
}

/// A conditional write of one handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleWrite {
    pub handle: HandleHash,
    /// The fence that was read; `None` = the handle did not exist. The commit is refused if it has changed.
    pub expected: Option<u64>,
    pub then: HandleChange,
}

/// A change to a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandleChange {
    /// Replaces the row and writes shadow columns of its flow. The store sets hash, fence and commit.
    ///
    /// The columns of another flow that the handle held are deleted, as with [`HandleChange::Take`].
    Put(Box<HandleRow>, Vec<ShadowWrite>),
    /// Reserves the handle for a process; `None` releases it.
    SetOwner(Option<ProcessId>),
    /// Schedules a delivery; `None` clears it because it has been sent.
    Deliver(Option<(Timestamp, Bytes)>),
    /// Writes shadow columns of its flow. The row stays the same, and so does its fence.
    WriteShadows(Vec<ShadowWrite>),
    /// Uses up the handle: its row is deleted.
    ///
    /// The flow's shadow columns are deleted too, unless the same commit stores the flow in another handle or as a run.
    Take,
}

impl HandleWrite {
    /// Returns true if it puts a handle that has a pending delivery.
    pub fn has_delivery(&self) -> bool {
        matches!(&self.then, HandleChange::Put(row, _) if row.delivery.is_some())
    }

    /// Returns the number of rows and bytes that it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match &self.then {
            HandleChange::Put(row, shadows) => {
                (1 + shadows.len(), row.state.len() + row.delivery.as_ref().map_or(0, Bytes::len))
            }
            HandleChange::SetOwner(_) | HandleChange::Take => (1, 0),
            HandleChange::WriteShadows(shadows) => (shadows.len(), 0),
            HandleChange::Deliver(delivery) => (1, delivery.as_ref().map_or(0, |(_, body)| body.len())),
        }
    }

    /// Returns the shadow columns that it writes.
    pub(crate) fn shadows(&self) -> &[ShadowWrite] {
        match &self.then {
            HandleChange::Put(_, shadows) | HandleChange::WriteShadows(shadows) => shadows,
            HandleChange::SetOwner(_) | HandleChange::Deliver(_) | HandleChange::Take => &[],
        }
    }

    /// Returns the values that are stored as text, each with its name for error messages.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let row = match &self.then {
            HandleChange::Put(row, _) => Some(row),
            _ => None,
        };
        let own = row.into_iter().flat_map(|row| {
            let actors = row.created_by.iter().chain(&row.updated_by).map(|actor| ("actor", actor.as_str()));
            std::iter::once(("workflow", row.workflow.as_str())).chain(actors)
        });
        own.chain(self.shadows().iter().flat_map(ShadowWrite::texts))
    }
}

/// A query for handles. A handle must match every field that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandleQuery {
    pub workflow: Option<Name>,
    /// The flow in the handle, or the run that it links to.
    pub run: Option<RunId>,
    /// The actor that created the flow or link.
    pub created_by: Option<String>,
    /// Only flows whose shadow columns match these filters. Requires `workflow`.
    ///
    /// If all of them are ranges, the listing is in the order of the first filter's column, then of flow and handle.
    pub shadows: Vec<ShadowFilter>,
    /// Maximum number of handles; see [`page_rows`](crate::store::page_rows).
    pub limit: u32,
    /// [`Page::next`](crate::Page::next) of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

impl HandleQuery {
    /// Rejects a filter on shadow columns without a workflow, because a column belongs to one workflow, and invalid
    /// bounds.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.shadows.is_empty() || self.workflow.is_some() {
            return check_filters(&self.shadows);
        }
        let why = "a filter on shadow columns needs a workflow: name the workflow of the handles";
        Err(StoreError::Invalid(why.to_owned()))
    }

    /// Returns true if the row matches. Ignores `shadows`, `cursor` and `limit`.
    pub fn matches(&self, row: &HandleRow) -> bool {
        self.workflow.as_ref().is_none_or(|wanted| *wanted == row.workflow)
            && self.run.is_none_or(|wanted| wanted == row.run)
            && (self.created_by.is_none() || self.created_by == row.created_by)
    }
}

/// Returns the cursor after this handle in a listing of handles.
pub fn handle_cursor(row: &HandleRow) -> String {
    handle_place(row.run, row.handle)
}

/// Returns the same cursor from the columns that the listing is ordered by.
pub fn handle_place(run: RunId, handle: HandleHash) -> String {
    format!("{run}:{handle}")
}

/// Parses a cursor of [`handle_cursor`].
pub fn read_handle_cursor(cursor: Option<&str>) -> Result<Option<(RunId, HandleHash)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (run, handle) = cursor.split_once(':')?;
        Some((run.parse().ok()?, HandleHash::parse(handle)?))
    };
    read().map(Some).ok_or_else(|| crate::store::bad_cursor(cursor))
}
