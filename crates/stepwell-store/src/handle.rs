//! Handles: rows that are found by the hash of a secret. In one rests the state of a flow, or it leads to a wait of a run.
//!
//! A handle is written by compare-and-set on its fence, which every write of its row raises: whoever reserves it, sends it out
//! or uses it up names the fence it was read under. What is used up is gone.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};

use crate::commit::CommitId;
use crate::run::ProcessId;
use crate::shadow::ShadowWrite;
use crate::store::StoreError;

/// What a handle is found by: the SHA-256 of its secret, which is kept nowhere.
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
    /// Reads what [`HandleHash`] shows itself as.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut hash = [0; 32];
        // A sign would be read as part of a number.
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(HandleHash(hash))
    }
}

/// What a handle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandleKind {
    /// A flow rests there.
    Flow,
    /// It leads to a wait of a durable run.
    Link,
}

impl HandleKind {
    /// The word a store keeps.
    pub fn as_str(self) -> &'static str {
        match self {
            HandleKind::Flow => "flow",
            HandleKind::Link => "link",
        }
    }

    /// Reads what [`HandleKind::as_str`] gave.
    pub fn parse(word: &str) -> Option<Self> {
        [HandleKind::Flow, HandleKind::Link].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A handle's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleRow {
    /// What it is found by.
    pub handle: HandleHash,
    /// What it is for.
    pub kind: HandleKind,
    /// The flow that rests there, or the run it leads to.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: Name,
    /// The definition the flow is pinned to.
    pub definition: DefinitionHash,
    /// The state that rests there, or what of the run it leads to, as the engine wrote it (JSON).
    pub state: Bytes,
    /// When it is over; `None` = never.
    pub expires_at: Option<Timestamp>,
    /// The process that works on it.
    pub owner: Option<ProcessId>,
    /// Raised by every write.
    pub fence: u64,
    /// When what is to be sent out is to be sent.
    pub deliver_at: Option<Timestamp>,
    /// What is to be sent out, as the engine sealed it.
    pub delivery: Option<Bytes>,
    /// When the flow got its first row.
    pub created_at: Timestamp,
    /// Who began it.
    pub created_by: Option<String>,
    /// When it was last put.
    pub updated_at: Timestamp,
    /// Who put it last.
    pub updated_by: Option<String>,
    /// The commit that put it there or gave it to its owner.
    pub commit: CommitId,
}

/// A handle is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleWrite {
    /// The handle.
    pub handle: HandleHash,
    /// The fence it was read under; `None` = it is not there. If that has changed, the commit is refused.
    pub expected: Option<u64>,
    /// What becomes of it.
    pub then: HandleChange,
}

/// What becomes of a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandleChange {
    /// It is this from here on; its fence and its commit are the store's to say. With the shadow columns of its flow that
    /// change. The columns of another flow that rested there go, as with [`HandleChange::Take`].
    Put(Box<HandleRow>, Vec<ShadowWrite>),
    /// This process works on it, or nobody any more.
    Own(Option<ProcessId>),
    /// What is to be sent out has been sent, or is to be sent then.
    Deliver(Option<(Timestamp, Bytes)>),
    /// These shadow columns of its flow change, and nothing else: its fence stays.
    Shade(Vec<ShadowWrite>),
    /// It is used up. The flow's shadow columns go with it, unless the same commit puts the flow elsewhere.
    Take,
}

impl HandleWrite {
    /// It puts a handle with something that is to be sent out.
    pub fn is_posted(&self) -> bool {
        matches!(&self.then, HandleChange::Put(row, _) if row.delivery.is_some())
    }

    /// Rows and bytes that it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match &self.then {
            HandleChange::Put(row, shadows) => {
                (1 + shadows.len(), row.state.len() + row.delivery.as_ref().map_or(0, Bytes::len))
            }
            HandleChange::Own(_) | HandleChange::Take => (1, 0),
            HandleChange::Shade(shadows) => (shadows.len(), 0),
            HandleChange::Deliver(delivery) => (1, delivery.as_ref().map_or(0, |(_, body)| body.len())),
        }
    }

    /// The shadow columns it writes.
    pub(crate) fn shadows(&self) -> &[ShadowWrite] {
        match &self.then {
            HandleChange::Put(_, shadows) | HandleChange::Shade(shadows) => shadows,
            HandleChange::Own(_) | HandleChange::Deliver(_) | HandleChange::Take => &[],
        }
    }

    /// What of it is kept as text.
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

/// Which handles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandleQuery {
    /// Of this workflow.
    pub workflow: Option<Name>,
    /// Of this flow, or leading to this run.
    pub run: Option<RunId>,
    /// Begun by them.
    pub created_by: Option<String>,
    /// Whose shadow columns hold these values; the workflow has to be named with them.
    pub shadows: Vec<(Name, ShadowValue)>,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

impl HandleQuery {
    /// A column belongs to a workflow: without one, what it is called says nothing.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.shadows.is_empty() || self.workflow.is_some() {
            return Ok(());
        }
        let why = "handles are found by shadow columns of one workflow: name it";
        Err(StoreError::Invalid(why.to_owned()))
    }

    /// A row is one of those, as far as the row says.
    pub fn wants(&self, row: &HandleRow) -> bool {
        self.workflow.as_ref().is_none_or(|wanted| *wanted == row.workflow)
            && self.run.is_none_or(|wanted| wanted == row.run)
            && (self.created_by.is_none() || self.created_by == row.created_by)
    }
}

/// The cursor of a listing of handles that has come to this one.
pub fn handle_cursor(row: &HandleRow) -> String {
    handle_place(row.run, row.handle)
}

/// The same by what the listing is ordered by.
pub fn handle_place(run: RunId, handle: HandleHash) -> String {
    format!("{run}:{handle}")
}

/// Reads what [`handle_cursor`] wrote.
pub fn read_handle_cursor(cursor: Option<&str>) -> Result<Option<(RunId, HandleHash)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (run, handle) = cursor.split_once(':')?;
        Some((run.parse().ok()?, HandleHash::parse(handle)?))
    };
    read().map(Some).ok_or_else(|| crate::store::bad_cursor(cursor))
}
