//! What can go wrong when the catalogue is asked for something.

use stepwell_core::document::{Problem, Problems};
use stepwell_core::{LimitExceeded, Name};
use stepwell_store::{CellError, CommitError, Refused, StoreError};

use crate::error::EngineError;

/// What is not in a catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// A workflow that was published.
    Workflow,
    /// A version of a workflow.
    Version,
    /// A draft.
    Draft,
    /// An action that workers elsewhere do.
    Action,
}

/// Why the catalogue did not do what it was asked. Nothing was changed, unless the error says that nobody knows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CatalogueError {
    /// It is not there.
    #[error("there is no {what}{hint}")]
    NotFound {
        /// What sort of thing it is.
        absent: Absent,
        /// What was asked for.
        what: String,
        /// A near name, or what there is.
        hint: String,
    },
    /// It is not at the revision that was named.
    #[error(
        "{what} is at revision {revision}{}: read it again",
        if *exists { "" } else { " and is not there" }
    )]
    Conflict {
        /// What.
        what: String,
        /// The revision it is at; 0 = it was never there.
        revision: u64,
        /// It is there.
        exists: bool,
    },
    /// Documents have mistakes in them: all of them are named.
    #[error("{}", Problems(problems.clone()))]
    Wrong {
        /// What is wrong, and where.
        problems: Vec<Problem>,
    },
    /// The workflow is archived.
    #[error("workflow `{0}` is archived: restore it first")]
    Archived(Name),
    /// Others have changed it every time.
    #[error("{what} was changed by others {tries} times in a row: try again later")]
    Exhausted {
        /// What.
        what: String,
        /// How often it was tried.
        tries: u32,
    },
    /// What was asked for cannot be done, whatever is there.
    #[error("{0}")]
    Invalid(String),
    /// The engine could not.
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

impl From<Problems> for CatalogueError {
    fn from(problems: Problems) -> Self {
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
