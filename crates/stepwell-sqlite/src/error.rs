//! What SQLite's errors mean to whoever asked.

use std::sync::{Arc, OnceLock};

use rusqlite::ErrorCode;
use rusqlite::ffi;
use stepwell_store::{CommitError, StoreError};

/// The database cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{path} is in use by {holder}: one process at a time owns a database; stop it, or use another file"
    )]
    InUse {
        /// The database.
        path: String,
        /// Who has it, as far as the lock file says.
        holder: String,
    },
    /// A setting was not taken.
    #[error(
        "SQLite did not take `{pragma} = {wanted}` (it says `{found}`): the file system may not support it"
    )]
    Setting {
        /// The setting.
        pragma: String,
        /// What was asked for.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// The SQLite library has a bug that loses data.
    #[error(
        "SQLite {found} is too old: {needed} or newer is needed, older ones can lose commits when the log is reset"
    )]
    TooOld {
        /// The version linked.
        found: String,
        /// The first good one.
        needed: String,
    },
    /// The file or its folder cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The schema cannot be used or brought up to date.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a commit with writes of the caller's own gave no result.
#[derive(Debug, thiserror::Error)]
pub enum WithError {
    /// The commit was refused or failed. Neither it nor the caller's writes are there, unless it says that nobody knows.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The caller's function gave this error: neither its writes nor the commit are there.
    #[error("the commit was taken back, because the function that writes beside it failed: {0}")]
    Own(#[source] rusqlite::Error),
    /// The caller's function tried what it may not do: neither its writes nor the commit are there.
    #[error(
        "the commit was taken back, because the function that writes beside it tried to {what}: \
         let it read, and write to tables of its own, and nothing else"
    )]
    Forbidden {
        /// What it tried to do.
        what: String,
    },
    /// A statement of the caller's function rolled the transaction back: neither its writes nor the commit are there.
    #[error(
        "the commit was taken back, because the function that writes beside it rolled back the transaction: \
         leave out `or rollback` and `raise(rollback, …)`, and give the error back instead"
    )]
    Ended,
    /// The caller's function panicked, saying this: neither its writes nor the commit are there.
    #[error("the commit was taken back, because the function that writes beside it panicked: {0}")]
    Panicked(String),
}

/// Why the store closed itself; empty while it is open.
pub(crate) type Failed = Arc<OnceLock<String>>;

/// What an error on a writing connection means; one after which the disk cannot be trusted closes the store.
pub(crate) fn note(failed: &Failed, error: &rusqlite::Error) -> StoreError {
    let meaning = store_error(error);
    if let StoreError::Fatal(why) = &meaning {
        let _ = failed.set(why.clone());
    }
    meaning
}

/// A mistake of SQLite's as a store error.
pub(crate) fn store_error(error: &rusqlite::Error) -> StoreError {
    let text = error.to_string();
    if let Some(row) = crate::listed::named_in(error) {
        return StoreError::Bad(row);
    }
    let Some(failure) = error.sqlite_error() else { return StoreError::Corrupt(text) };
    match failure.code {
        ErrorCode::DiskFull => StoreError::Full(text),
        ErrorCode::SystemIoFailure if loses_trust(failure.extended_code) => StoreError::Fatal(text),
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt(text),
        ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig => {
            StoreError::Invalid(text)
        }
        _ => StoreError::Unavailable(text),
    }
}

/// After a failed fsync nobody knows what is on disk, and the next fsync may succeed without having written it.
fn loses_trust(extended: i32) -> bool {
    matches!(extended, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
}

#[cfg(test)]
mod tests {
    use super::{StoreError, ffi, store_error};

    fn failure(extended: i32) -> StoreError {
        store_error(&rusqlite::Error::SqliteFailure(ffi::Error::new(extended), None))
    }

    #[test]
    fn an_fsync_that_failed_is_fatal_and_a_full_disk_is_not() {
        assert!(matches!(failure(ffi::SQLITE_IOERR_FSYNC), StoreError::Fatal(_)));
        assert!(matches!(failure(ffi::SQLITE_IOERR_DIR_FSYNC), StoreError::Fatal(_)));
        assert!(matches!(failure(ffi::SQLITE_IOERR_WRITE), StoreError::Unavailable(_)));
        assert!(matches!(failure(ffi::SQLITE_FULL), StoreError::Full(_)));
        assert!(matches!(failure(ffi::SQLITE_CORRUPT), StoreError::Corrupt(_)));
        assert!(matches!(failure(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Invalid(_)));
        assert!(matches!(failure(ffi::SQLITE_BUSY), StoreError::Unavailable(_)));
    }
}
