//! Errors of data operations.

use stepwell_core::LimitExceeded;
use stepwell_store::{CellError, Refused, StoreError};

use crate::error::EngineError;

/// A failed data operation. Nothing was changed, except if [`DataError::Engine`] reports an unknown outcome.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DataError {
    /// The value is not at the revision that the caller expected.
    #[error(
        "{what} changed: it is at revision {revision}{}. Read it again and retry",
        if *exists { "" } else { " and has no value" }
    )]
    Conflict {
        /// Address of the value, for the message.
        what: String,
        /// Current revision; 0 if the key was never written.
        revision: u64,
        /// The key has a value.
        exists: bool,
    },
    /// Concurrent writes won every attempt.
    #[error("{what} was written concurrently {attempts} times in a row: try again later")]
    Exhausted {
        /// Address of the value, for the message.
        what: String,
        /// Number of attempts, each of which conflicted.
        attempts: u32,
    },
    /// The request is invalid, independent of the stored data.
    #[error("{0}")]
    Invalid(String),
    /// The engine or the store failed.
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
    /// Returns a stable error code.
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
