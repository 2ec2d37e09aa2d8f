//! Maps SQLite's errors to the errors of the store.

use std::sync::{Arc, OnceLock};

use rusqlite::ErrorCode;
use rusqlite::ffi;
use stepwell_store::{CommitError, StoreError};

/// The reason a database cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process has the database open.
    #[error(
        "{path} is in use by {holder}{at}: only one process can open a database; stop it, or use another file",
        at = address.iter().map(|at| format!(", which listens on {at}")).collect::<String>()
    )]
    InUse {
        path: String,
        /// The process named in the lock file, or a general description.
        holder: String,
        /// The address of that process, if it has published one ([`SqliteStore::publish_address`]).
        ///
        /// [`SqliteStore::publish_address`]: crate::SqliteStore::publish_address
        address: Option<String>,
    },
    /// SQLite did not apply a setting.
    #[error(
        "SQLite did not apply `{pragma} = {wanted}` (found `{found}`): the file system may not support it"
    )]
    Setting { pragma: String, wanted: String, found: String },
    /// The linked SQLite library has a bug that loses data.
    #[error(
        "SQLite {found} is too old: use {needed} or newer; older versions can lose commits when the WAL is reset"
    )]
    TooOld {
        found: String,
        /// The first version without the bug.
        needed: String,
    },
    /// A file or its directory cannot be used.
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
    /// A query failed, or the schema cannot be used or brought up to date.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason that [`commit_with`](crate::SqliteStore::commit_with) returned no result.
#[derive(Debug, thiserror::Error)]
pub enum WithError {
    /// The commit was refused or failed. Neither the commit nor the caller's writes are stored, except after
    /// [`CommitError::Unknown`]: then both are stored, or neither is.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The caller's function returned this error. Neither its writes nor the commit are stored.
    #[error("the commit was rolled back because the caller's function failed: {0}")]
    Own(#[source] rusqlite::Error),
    /// The caller's function tried to do something forbidden. Neither its writes nor the commit are stored.
    #[error(
        "the commit was rolled back because the caller's function tried to {what}: \
         it may only read, and write to the caller's own tables"
    )]
    Forbidden {
        /// A phrase that follows "tried to".
        what: String,
    },
    /// A statement of the caller's function rolled the transaction back. Neither its writes nor the commit are stored.
    #[error(
        "the commit was rolled back because the caller's function rolled back the transaction: \
         return an error instead of using `or rollback` or `raise(rollback, …)`"
    )]
    Ended,
    /// The caller's function panicked with this message. Neither its writes nor the commit are stored.
    #[error("the commit was rolled back because the caller's function panicked: {0}")]
    Panicked(String),
}

/// The reason the store closed itself; empty while it is open.
pub(crate) type Failed = Arc<OnceLock<String>>;

/// Maps an error on a writing connection. Closes the store if the disk cannot be trusted after it.
pub(crate) fn note(failed: &Failed, error: &rusqlite::Error) -> StoreError {
    let meaning = store_error(error);
    if let StoreError::Fatal(why) = &meaning {
        let _ = failed.set(why.clone());
    }
    meaning
}

/// Maps a SQLite error to a store error.
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

/// Returns true for a failed fsync. After one it is unknown what is on disk, and the next fsync may succeed without
/// having written it.
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
    fn failed_fsync_is_fatal_and_full_disk_is_not() {
        assert!(matches!(failure(ffi::SQLITE_IOERR_FSYNC), StoreError::Fatal(_)));
        assert!(matches!(failure(ffi::SQLITE_IOERR_DIR_FSYNC), StoreError::Fatal(_)));
        assert!(matches!(failure(ffi::SQLITE_IOERR_WRITE), StoreError::Unavailable(_)));
        assert!(matches!(failure(ffi::SQLITE_FULL), StoreError::Full(_)));
        assert!(matches!(failure(ffi::SQLITE_CORRUPT), StoreError::Corrupt(_)));
        assert!(matches!(failure(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Invalid(_)));
        assert!(matches!(failure(ffi::SQLITE_BUSY), StoreError::Unavailable(_)));
    }
}
