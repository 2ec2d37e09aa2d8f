//! Errors of the catalogue.

use stepwell_core::document::{SourceProblem, SourceProblems};
use stepwell_core::{LimitExceeded, Name};
use stepwell_store::{CellError, CommitError, Refused, StoreError};

use crate::error::EngineError;

/// The kind of thing that was not found in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    Workflow,
    /// A published version, or an active version to export.
    Version,
    Draft,
    Action,
}

/// A failed catalogue operation. Nothing was changed, except if [`CatalogueError::Engine`] reports an unknown outcome.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CatalogueError {
    /// The catalogue has no such entry.
    #[error("there is no {what}{hint}")]
    NotFound {
        absent: Absent,
        /// Kind and name of the missing entry, for the message.
        what: String,
        /// A similar name, or a list of the entries that exist. It may be empty.
        hint: String,
    },
    /// The entry is not at the revision that the caller expected.
    #[error(
        "{what} changed: it is at revision {revision}{}. Read it again and retry",
        if *exists { "" } else { " and does not exist" }
    )]
    Conflict {
        /// Name of the entry, for the message.
        what: String,
        /// Current revision; 0 if the entry was never written.
        revision: u64,
        exists: bool,
    },
    /// Documents contain errors. The list is complete.
    #[error("{}", SourceProblems(problems.clone()))]
    Wrong { problems: Vec<SourceProblem> },
    /// The workflow is archived, so that it cannot be published or activated.
    #[error("workflow `{0}` is archived: restore it first")]
    Archived(Name),
    /// Concurrent changes won every attempt.
    #[error("{what} was changed concurrently {attempts} times in a row: try again later")]
    Exhausted {
        /// Name of the entry, for the message.
        what: String,
        /// Number of attempts, each of which conflicted.
        attempts: u32,
    },
    /// A stored value of the catalogue cannot be read. Other entries are not affected.
    #[error("the stored value of {what} is unreadable: {why}")]
    Unreadable {
        /// Key of the value, for the message.
        what: String,
        why: String,
    },
    /// The request is invalid, independent of the catalogue's content.
    #[error("{0}")]
    Invalid(String),
    /// The engine or the store failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<StoreError> for CatalogueError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(why) => CatalogueError::Invalid(why),
            other => CatalogueError::Engine(other.into()),
        }
    }
}

impl From<LimitExceeded> for CatalogueError {
    fn from(exceeded: LimitExceeded) -> Self {
        CatalogueError::Engine(EngineError::Limit(exceeded))
    }
}

impl From<SourceProblems> for CatalogueError {
    fn from(problems: SourceProblems) -> Self {
        CatalogueError::Wrong { problems: problems.0 }
    }
}

impl From<CommitError> for CatalogueError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(Refused::Cell { key, error, .. }) => match error {
                CellError::Conflict { revision, live, .. } => {
                    CatalogueError::Conflict { what: key.key, revision, exists: live }
                }
                CellError::TooLarge(limit) => (*limit).into(),
                other => CatalogueError::Invalid(format!("{}: {other}", key.key)),
            },
            CommitError::Store(error) => error.into(),
            other => CatalogueError::Engine(other.into()),
        }
    }
}
