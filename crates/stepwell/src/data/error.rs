//! What can go wrong when data is read or written.

use stepwell_core::LimitExceeded;
use stepwell_store::{CellError, Refused, StoreError};

use crate::error::EngineError;

/// Why data was not read or written. Nothing was changed, unless the error says that nobody knows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DataError {
    /// It is not at the revision that was named.
    #[error("{what} is at revision {revision}{}: read it again", if *exists { "" } else { " and has no value" })]
    Conflict {
        /// What.
        what: String,
        /// The revision it is at; 0 = it was never written.
        revision: u64,
        /// It has a value.
        exists: bool,
    },
    /// Others have written every time.
    #[error("{what} was written by others {attempts} times in a row: try again later")]
    Exhausted {
        /// What.
        what: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// What was asked for cannot be done, whatever is there.
    #[error("{0}")]
    Invalid(String),
    /// The engine could not.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<DataError> for EngineError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Engine(error) => error,
            other => EngineError::Invalid(other.to_string()),
        }
    }
}

impl DataError {
    /// A stable word for it.
    pub fn code(&self) -> &'static str {
        match self {
            DataError::Conflict { .. } | DataError::Exhausted { .. } => "conflict",
            DataError::Invalid(_) | DataError::Engine(EngineError::Invalid(_) | EngineError::Limit(_)) => {
                "invalid"
            }
            DataError::Engine(EngineError::KeyReused { .. }) => "keyReused",
            DataError::Engine(EngineError::Denied { .. }) => "denied",
            DataError::Engine(_) => "unavailable",
        }
    }
}

impl From<StoreError> for DataError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(why) => DataError::Invalid(why),
            other => DataError::Engine(other.into()),
        }
    }
}

impl From<LimitExceeded> for DataError {
    fn from(exceeded: LimitExceeded) -> Self {
        DataError::Invalid(exceeded.to_string())
    }
}

impl From<Refused> for DataError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Cell { key, error: CellError::Conflict { revision, live, .. }, .. } => {
                DataError::Conflict { what: key.to_string(), revision, exists: live }
            }
            Refused::Cell { key, error, .. } => DataError::Invalid(format!("{key}: {error}")),
            Refused::Link { error, .. } => DataError::Invalid(error.to_string()),
            refused @ (Refused::TooLarge(_) | Refused::Nul { .. }) => DataError::Invalid(refused.to_string()),
            other => DataError::Engine(other.into()),
        }
    }
}
