//! Maps PostgreSQL's errors to the errors of the store.

use stepwell_store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The reason a database cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The connection string is invalid.
    #[error("the connection string cannot be used: {0}")]
    Config(String),
    /// The server cannot be reached, or refuses the connection.
    #[error("PostgreSQL cannot be reached: {0}")]
    Unreachable(String),
    /// The server is too old.
    #[error("PostgreSQL {found} is too old: {needed} or newer is needed")]
    TooOld {
        found: String,
        /// The first supported version.
        needed: String,
    },
    /// Row-level security does not apply to the role: it sees the rows of every tenant.
    #[error(
        "role `{role}` {why}, so row-level security does not apply to it: connect as a role that is neither \
         superuser nor owner of the tables, and migrate as the owner"
    )]
    SeesAll {
        role: String,
        /// A phrase that follows the role's name.
        why: &'static str,
    },
    /// A query failed, or the schema cannot be used or brought up to date.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason that a statement has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The statement had no effect.
    Store(StoreError),
    /// The statement had no effect because of another transaction. It may succeed if it is retried at once.
    Again(StoreError),
    /// The connection was lost, so the outcome is unknown.
    Unknown(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error)
    }
}

impl From<stepwell_store::delta::Unreadable> for Failure {
    fn from(error: stepwell_store::delta::Unreadable) -> Self {
        Failure::Store(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = described(&error);
        let Some(failure) = error.as_db_error() else {
            // Either a value cannot be decoded or encoded, or the connection failed.
            let source = std::error::Error::source(&error);
            let is_io =
                error.is_closed() || source.is_some_and(<dyn std::error::Error>::is::<std::io::Error>);
            return if is_io { Failure::Unknown(text) } else { Failure::Store(StoreError::Corrupt(text)) };
        };
        match failure.parsed_severity() {
            Some(Severity::Fatal | Severity::Panic) => Failure::Unknown(text),
            _ if is_passing(failure.code()) => Failure::Again(StoreError::Unavailable(text)),
            _ => Failure::Store(meaning(failure, text)),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) | Failure::Again(error) => error,
            Failure::Unknown(why) => StoreError::Unavailable(why),
        }
    }
}

/// Returns true for conflicts that disappear on a retry: deadlocks and serialization failures.
fn is_passing(code: &SqlState) -> bool {
    *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
}

fn meaning(failure: &DbError, text: String) -> StoreError {
    let code = failure.code();
    match &code.code()[..2] {
        "53" if *code == SqlState::DISK_FULL => StoreError::Full(text),
        "08" | "53" | "55" | "57" | "25" => StoreError::Unavailable(text),
        "XX" | "F0" => StoreError::Corrupt(text),
        "42" | "3D" | "3F" | "28" => StoreError::Schema(text),
        _ => StoreError::Invalid(text),
    }
}

/// Returns the server's message, which tokio-postgres hides behind "db error".
pub(crate) fn described(error: &Error) -> String {
    match error.as_db_error() {
        Some(failure) => {
            let detail = failure.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            format!("{}{detail} [{}]", failure.message(), failure.code().code())
        }
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// Returns the name of the violated constraint if the error has this code.
pub(crate) fn constraint(error: &Error, code: &SqlState) -> Option<String> {
    let failure = error.as_db_error().filter(|failure| failure.code() == code)?;
    Some(failure.constraint().unwrap_or_default().to_owned())
}
