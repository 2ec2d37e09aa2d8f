//! What PostgreSQL's errors mean to whoever asked.

use stepwell_store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// The database cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The connection's description cannot be read.
    #[error("the connection string cannot be used: {0}")]
    Config(String),
    /// The server cannot be reached, or lets nobody in.
    #[error("PostgreSQL cannot be reached: {0}")]
    Unreachable(String),
    /// The server is too old.
    #[error("PostgreSQL {found} is too old: {needed} or newer is needed")]
    TooOld {
        /// The version found.
        found: String,
        /// The first good one.
        needed: String,
    },
    /// The role sees every tenant's rows, whatever the policies say.
    #[error(
        "role `{role}` {why}, so that row-level security does not hold for it: connect as a role that is neither \
         superuser nor owner of the tables, and migrate as the owner"
    )]
    SeesAll {
        /// The role.
        role: String,
        /// Why it does.
        why: &'static str,
    },
    /// The schema cannot be used or brought up to date.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why something that was asked of the database has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was not done.
    Store(StoreError),
    /// It was not done because of somebody else, and may be if it is tried again at once.
    Again(StoreError),
    /// The connection was lost on the way: nobody knows.
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
            // What a row holds or a parameter is cannot be read or written; all else is the connection.
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

/// Two that wanted the same rows in another order, or a row that came into being between a look and a write.
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

/// The server's own words, which tokio-postgres keeps behind "db error".
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

/// The constraint that was violated, if one was.
pub(crate) fn constraint(error: &Error, code: &SqlState) -> Option<String> {
    let failure = error.as_db_error().filter(|failure| failure.code() == code)?;
    Some(failure.constraint().unwrap_or_default().to_owned())
}
