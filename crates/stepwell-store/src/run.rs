//! What a store knows of a run: a narrow row, where it stands, and what waits in its inbox.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::bad::BadRow;

/// A process that works on runs; it owns them while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub Uuid);

/// How a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// Its time has not come.
    Pending,
    /// It goes on by itself.
    Running,
    /// It waits for something.
    Waiting,
    /// An operator has put it aside.
    Suspended,
    /// It has stopped with an error.
    Failed,
    /// It has come to an end place.
    Completed,
    /// It was ended by command.
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

    /// Nothing more can happen to the run.
    pub fn is_final(self) -> bool {
        matches!(self, Status::Completed | Status::Cancelled)
    }

    /// The word a store keeps.
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

/// No status has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status of a run")]
pub struct NotAStatus(String);

impl FromStr for Status {
    type Err = NotAStatus;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Status::ALL.into_iter().find(|status| status.as_str() == text);
        known.ok_or_else(|| NotAStatus(text.to_owned()))
    }
}

/// Where a run stands: what the next commit on it builds on. Made by a load, a claim or the commit before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The run.
    pub run: RunId,
    /// Counts every commit on the run's row; the compare-and-set of the next one.
    pub revision: u64,
    /// The snapshot's version.
    pub version: u64,
    /// Raised whenever the run gets another owner.
    pub fence: u64,
    /// The process that works on it.
    pub owner: Option<ProcessId>,
    /// How it is doing.
    pub status: Status,
    /// When it is to be looked at next; `None` = not by itself. A message that came since may have made that earlier
    /// in the row: a commit built on this head keeps the earlier time.
    pub wake: Option<Timestamp>,
    /// The newest inbox message that whoever holds this head knows of.
    pub inbox_seen: u64,
    /// The snapshot's bytes.
    pub state: Bytes,
    /// How the newest checkpoint is stored.
    pub chain: Chain,
}

/// The checkpoints since the last one that holds a full state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    /// The version that holds a full state.
    pub base: u64,
    /// Bytes of the deltas after it.
    pub bytes: u64,
}

/// A run's parent, and what of it waits for the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    /// The parent run.
    pub run: RunId,
    /// The activation that waits.
    pub activation: u64,
    /// The run's number among the children of that activation.
    pub child: u32,
}

/// A run as loaded for a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Where it stands.
    pub head: Head,
    /// The workflow's name.
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// Its parent.
    pub parent: Option<Parent>,
    /// The root of its tree; itself if it has no parent.
    pub root: RunId,
    /// Tries, last errors and the time of the next try, as the engine wrote them.
    pub attempt: Option<Bytes>,
    /// What waits in its inbox, in order of arrival.
    pub inbox: Vec<Message>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its row was last written by a commit of its own.
    pub updated_at: Timestamp,
    /// Its state or its inbox cannot be read, and is empty here.
    pub damage: Option<BadRow>,
}

/// A message in a run's inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its place in the order of arrival.
    pub seq: u64,
    /// What it is about, as the engine named it.
    pub topic: String,
    /// The rest, as the engine wrote it.
    pub body: Bytes,
    /// When it came.
    pub received_at: Timestamp,
    /// When it is no longer wanted.
    pub expires_at: Option<Timestamp>,
}

/// Something a run waits for from outside, as listed over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWait {
    /// The activation that waits.
    pub activation: u64,
    /// Where.
    pub place: Name,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Option<Timestamp>,
    /// What for, the form, who may answer, as the engine wrote it.
    pub detail: Bytes,
    /// What it can be found by from outside.
    pub topic: Option<String>,
}

impl OpenWait {
    /// What of it is kept as text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let topic = self.topic.as_deref().map(|topic| ("topic", topic));
        std::iter::once(("place", self.place.as_str())).chain(topic)
    }
}

/// A run in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// The snapshot's version.
    pub version: u64,
    /// How it is doing.
    pub status: Status,
    /// The places it is in.
    pub places: Vec<Name>,
    /// When it is to be looked at next.
    pub wake: Option<Timestamp>,
    /// The process that works on it.
    pub owner: Option<ProcessId>,
    /// Its parent.
    pub parent: Option<Parent>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its row was last written by a commit of its own.
    pub updated_at: Timestamp,
}

/// A run's row as every backend keeps it. The state is in the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// The run.
    pub run: RunId,
    /// The workflow's name.
    pub workflow: Name,
    /// The definition it is pinned to.
    pub definition: DefinitionHash,
    /// Counts every commit on the row.
    pub revision: u64,
    /// The snapshot's version.
    pub version: u64,
    /// Raised whenever the run gets another owner.
    pub fence: u64,
    /// The process that works on it.
    pub owner: Option<ProcessId>,
    /// How it is doing.
    pub status: Status,
    /// The places it is in.
    pub places: Vec<Name>,
    /// When it is to be looked at next.
    pub wake: Option<Timestamp>,
    /// The number of the newest message that came.
    pub inbox_seq: u64,
    /// How many messages wait that count against the limit.
    pub inbox_len: u64,
    /// How the newest checkpoint is stored.
    pub chain: Chain,
    /// Tries, as the engine wrote them.
    pub attempt: Option<Bytes>,
    /// Its parent.
    pub parent: Option<Parent>,
    /// The root of its tree.
    pub root: RunId,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its row was last written by a commit of its own.
    pub updated_at: Timestamp,
}

impl RunRow {
    /// A process takes the run: the fence and the revision rise, and the run is running, unless it stands still.
    pub fn claimed(&mut self, by: ProcessId) {
        self.owner = Some(by);
        self.fence += 1;
        self.revision += 1;
        if matches!(self.status, Status::Pending | Status::Waiting) {
            self.status = Status::Running;
        }
    }

    /// The run fails, is nobody's and is not looked at again by itself. What its row says of its places is not known.
    pub fn aside(&mut self) {
        (self.status, self.owner, self.wake) = (Status::Failed, None, None);
        self.places.clear();
        self.fence += 1;
        self.revision += 1;
    }

    /// Where the run stands, given its state.
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

    /// The run as loaded for a turn.
    pub fn loaded(self, state: Bytes, inbox: Vec<Message>) -> Loaded {
        let head = self.head(state);
        Loaded {
            head,
            workflow: self.workflow,
            definition: self.definition,
            parent: self.parent,
            root: self.root,
            attempt: self.attempt,
            inbox,
            created_at: self.created_at,
            updated_at: self.updated_at,
            damage: None,
        }
    }

    /// The run as it is loaded when something of it cannot be read.
    pub fn damaged(self, row: BadRow) -> Loaded {
        Loaded { damage: Some(row), ..self.loaded(Bytes::new(), Vec::new()) }
    }

    /// The run in a listing.
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
        }
    }
}
