//! The stored parts of a run: its row, its head, its inbox and its open waits.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::bad::BadRow;

/// A process that runs an engine. It owns the runs that it works on while its lease is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub Uuid);

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It starts at its wake-up time.
    Pending,
    /// It has a next step that needs no outside event.
    Running,
    /// It waits for a message, an event or a time.
    Waiting,
    /// An operator suspended it.
    Suspended,
    /// It stopped with an error.
    Failed,
    /// It reached an end place.
    Completed,
    /// A command ended it.
    Cancelled,
}

impl Status {
    /// Every status, in the order of a run's life.
    pub const ALL: [Status; 7] = [
        Status::Pending,
        Status::Running,
        Status::Waiting,
        Status::Suspended,
        Status::Failed,
        Status::Completed,
        Status::Cancelled,
    ];

    /// Returns true if the run has ended: its status cannot change any more.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Completed | Status::Cancelled)
    }

    /// Returns the stored form of this status.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Running => "running",
            Status::Waiting => "waiting",
            Status::Suspended => "suspended",
            Status::Failed => "failed",
            Status::Completed => "completed",
            Status::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is not the name of a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status of a run")]
pub struct UnknownStatus(String);

impl FromStr for Status {
    type Err = UnknownStatus;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Status::ALL.into_iter().find(|status| status.as_str() == text);
        known.ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

/// The position of a run that the next commit builds on. A load, a claim or the previous commit returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub run: RunId,
    /// Counts the commits and claims on the run's row. The next commit compares it with the stored one.
    pub revision: u64,
    /// The version of the snapshot.
    pub version: u64,
    /// Raised whenever the run gets another owner. An action's result is void if the fence has changed.
    pub fence: u64,
    /// The process that owns the run.
    pub owner: Option<ProcessId>,
    pub status: Status,
    /// The next wake-up time; `None` = only a message wakes the run.
    ///
    /// A message that arrived since may have set an earlier time in the row. A commit built on this head keeps the
    /// earlier time.
    pub wake: Option<Timestamp>,
    /// Sequence number of the newest message that the holder of this head has seen; 0 = none.
    pub inbox_seen: u64,
    /// The snapshot's bytes (JSON).
    pub state: Bytes,
    /// The chain of deltas that ends with the newest checkpoint.
    pub chain: Chain,
}

/// A full state and the deltas that build on it. See [`crate::delta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    /// The version whose full state is stored.
    pub base: u64,
    /// Total size of the deltas since then, in bytes.
    pub bytes: u64,
}

/// A run's parent, and the place of the run among its children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub run: RunId,
    /// The parent's activation that waits for the run.
    pub activation: u64,
    /// The run's number among the children of that activation, starting at 0.
    pub child: u32,
}

/// A run with everything that is needed to decide its next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub head: Head,
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    pub parent: Option<Parent>,
    /// The root of its tree; itself if it has no parent.
    pub root: RunId,
    /// Ledger of attempts: last errors and the time of the next attempt, as the engine wrote them.
    pub ledger: Option<Bytes>,
    /// Messages in order of arrival.
    pub inbox: Vec<StoredMessage>,
    pub created_at: Timestamp,
    /// The time of the last commit on this run. A message or a claim does not change it.
    pub updated_at: Timestamp,
    /// Set if the state or the inbox cannot be read. Both are empty then.
    pub damage: Option<BadRow>,
}

/// A message in the inbox of a run, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Sequence number: the order of arrival, starting at 1. A number is never used twice.
    pub seq: u64,
    /// The topic, as the engine named it.
    pub topic: String,
    /// The content, as the engine wrote it.
    pub body: Bytes,
    pub received_at: Timestamp,
    /// The message expires at this time; `None` = it never expires.
    pub expires_at: Option<Timestamp>,
}

/// An event that a run waits for. Open waits are listed over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWait {
    /// The activation that waits.
    pub activation: u64,
    /// The place where the run waits.
    pub place: Name,
    /// The time at which the wait opened.
    pub since: Timestamp,
    /// The wait times out at this time; `None` = never.
    pub until: Option<Timestamp>,
    /// The awaited event, the form and the permitted actors, as the engine wrote them (JSON).
    pub detail: Bytes,
    /// The topic by which an event finds this wait; `None` = events do not find it.
    pub topic: Option<String>,
    /// The position in the listing by due time; `None` = the wait is not in that listing.
    pub due: Option<Timestamp>,
}

impl StoredWait {
    /// Returns the values that are stored as text, each with its name for error messages.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let topic = self.topic.as_deref().map(|topic| ("topic", topic));
        std::iter::once(("place", self.place.as_str())).chain(topic)
    }
}

/// A run in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    pub run: RunId,
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// The version of the snapshot.
    pub version: u64,
    pub status: Status,
    /// The places the run is in.
    pub places: Vec<Name>,
    /// The next wake-up time; `None` = only a message wakes the run.
    pub wake: Option<Timestamp>,
    /// The process that owns the run.
    pub owner: Option<ProcessId>,
    pub parent: Option<Parent>,
    pub created_at: Timestamp,
    /// The time of the last commit on this run. A message or a claim does not change it.
    pub updated_at: Timestamp,
    /// The code of the error that stopped the run; `None` unless it has failed.
    pub error: Option<String>,
    /// The workflow version that the run is pinned to, the author's number; `None` if its definition is not stored.
    pub definition_version: Option<u32>,
}

impl RunSummary {
    /// Returns the time at which the run ended; `None` while it has not.
    pub fn ended_at(&self) -> Option<Timestamp> {
        // The last commit on an ended run is the one that ended it.
        self.status.is_final().then_some(self.updated_at)
    }
}

/// A run's row as every backend stores it. The state is in the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    pub run: RunId,
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// Counts the commits and claims on the row.
    pub revision: u64,
    /// The version of the newest checkpoint.
    pub version: u64,
    /// Raised whenever the run gets another owner.
    pub fence: u64,
    /// The process that owns the run.
    pub owner: Option<ProcessId>,
    pub status: Status,
    /// The places the run is in.
    pub places: Vec<Name>,
    /// The next wake-up time; `None` = only a message wakes the run.
    pub wake: Option<Timestamp>,
    /// Sequence number of the newest message that arrived, whether or not it is still in the inbox.
    pub inbox_seq: u64,
    /// Number of messages in the inbox that count against the limit.
    pub inbox_len: u64,
    /// The chain of deltas that ends with the newest checkpoint.
    pub chain: Chain,
    /// Ledger, as in [`Loaded::ledger`].
    pub ledger: Option<Bytes>,
    pub parent: Option<Parent>,
    /// The root of its tree; itself if it has no parent.
    pub root: RunId,
    pub created_at: Timestamp,
    /// The time of the last commit on this run. A message or a claim does not change it.
    pub updated_at: Timestamp,
    /// The code of the error that stopped the run; `None` unless it has failed.
    pub error: Option<String>,
}

/// The error code of a run whose row or state cannot be read.
pub const UNREADABLE: &str = "unreadable";
/// Maximum length of a stored error code in bytes. A longer code is cut.
pub const MAX_ERROR_BYTES: usize = 255;

/// Returns an error code as it is stored: without NUL characters and of limited length.
pub fn stored_error(code: &str) -> String {
    let mut stored: String = code.chars().filter(|c| *c != '\0').collect();
    let end = (0..=MAX_ERROR_BYTES).rev().find(|end| stored.is_char_boundary(*end)).unwrap_or(0);
    stored.truncate(end);
    stored
}

impl RunRow {
    /// Makes a process the owner and raises the fence and the revision. A pending or waiting run becomes running.
    pub fn claimed(&mut self, by: ProcessId) {
        self.owner = Some(by);
        self.fence += 1;
        self.revision += 1;
        if matches!(self.status, Status::Pending | Status::Waiting) {
            self.status = Status::Running;
        }
    }

    /// Marks the run as failed, without an owner and a wake-up time. Clears the places, because they are unknown.
    pub fn mark_failed(&mut self) {
        (self.status, self.owner, self.wake) = (Status::Failed, None, None);
        self.places.clear();
        self.error = Some(UNREADABLE.to_owned());
        self.fence += 1;
        self.revision += 1;
    }

    /// Returns the head of the run, given its state.
    pub fn head(&self, state: Bytes) -> Head {
        Head {
            run: self.run,
            revision: self.revision,
            version: self.version,
            fence: self.fence,
            owner: self.owner,
            status: self.status,
            wake: self.wake,
            inbox_seen: self.inbox_seq,
            state,
            chain: self.chain,
        }
    }

    /// Combines the row with its state and inbox.
    pub fn loaded(self, state: Bytes, inbox: Vec<StoredMessage>) -> Loaded {
        let head = self.head(state);
        Loaded {
            head,
            workflow: self.workflow,
            definition: self.definition,
            parent: self.parent,
            root: self.root,
            ledger: self.ledger,
            inbox,
            created_at: self.created_at,
            updated_at: self.updated_at,
            damage: None,
        }
    }

    /// Returns the run without state and inbox because `row` cannot be read.
    pub fn damaged(self, row: BadRow) -> Loaded {
        Loaded { damage: Some(row), ..self.loaded(Bytes::new(), Vec::new()) }
    }

    /// Returns the run as a listing shows it.
    pub fn summary(self) -> RunSummary {
        RunSummary {
            run: self.run,
            workflow: self.workflow,
            definition: self.definition,
            version: self.version,
            status: self.status,
            places: self.places,
            wake: self.wake,
            owner: self.owner,
            parent: self.parent,
            created_at: self.created_at,
            updated_at: self.updated_at,
            error: self.error,
            definition_version: None,
        }
    }
}
