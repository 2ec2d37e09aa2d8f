//! Opens a database or a backup for reading only.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::connection;
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{APPLIED, file_error, sibling};
use crate::restore;
use crate::sum::{self, Kind};
use crate::wal::LongRead;

/// A file to read and the connection to it.
pub(crate) struct Source {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    /// Declared after the connection, because it must be dropped after it.
    _long_read: Option<LongRead>,
}

impl Source {
    /// Wraps a connection to a database that this process has open as a store.
    pub(crate) fn in_use(connection: Connection, path: &Path, long_read: LongRead) -> Source {
        Source { connection, path: path.to_owned(), _long_read: Some(long_read) }
    }

    /// Opens a database, whether or not a process has it open. SQLite's locks are respected, and its log is read too.
    pub(crate) fn database(path: &Path) -> Result<Source, OpenError> {
        restore::refuse_unfinished(path)?;
        Ok(Source { connection: connection::read_only(path)?, path: path.to_owned(), _long_read: None })
    }

    /// Opens a backup that ends with a checksum. Files next to it, such as a log, do not belong to it and are ignored.
    pub(crate) fn backup(path: &Path) -> Result<Source, OpenError> {
        Ok(Source { connection: connection::sealed(path)?, path: path.to_owned(), _long_read: None })
    }
}

/// A file that no store has open.
///
/// A process that closes a file loses all locks that SQLite holds on it for the same process. So a database that may be
/// open as a store must not be opened as a plain file. The lock shows whether it is open; it is released last.
pub(crate) struct Unopened {
    pub(crate) kind: Kind,
    pub(crate) file: File,
    _lock: Option<Lock>,
}

impl Unopened {
    pub(crate) fn inspect(path: &Path) -> Result<Unopened, OpenError> {
        let lock = Lock::take_if_any(path)?;
        let unreadable = |error: std::io::Error| file_error(path, &format!("cannot read the file: {error}"));
        let mut file = File::open(path).map_err(unreadable)?;
        let kind = match sum::kind(&mut file).map_err(unreadable)? {
            // The process was killed while the database grew. SQLite repairs the end of the file from the log.
            Kind::Cut if APPLIED.iter().any(|ending| sibling(path, ending).exists()) => Kind::Database,
            other => other,
        };
        Ok(Unopened { kind, file, _lock: lock })
    }
}
