//! A database or a backup as somebody finds it who only reads it.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::connection;
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{APPLIED, beside, wrong};
use crate::restore;
use crate::sum::{self, Kind};
use crate::wal::LongRead;

/// What is read, and through which connection.
pub(crate) struct Source {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    /// After the connection, which it outlives.
    _long_read: Option<LongRead>,
}

impl Source {
    /// A database that this process has open.
    pub(crate) fn in_use(connection: Connection, path: &Path, long_read: LongRead) -> Source {
        Source { connection, path: path.to_owned(), _long_read: Some(long_read) }
    }

    /// A database that nobody has open, or somebody: SQLite's own locks are kept while it is read, and its log is read
    /// with it.
    pub(crate) fn database(path: &Path) -> Result<Source, OpenError> {
        restore::refuse_unfinished(path)?;
        Ok(Source { connection: connection::looking(path)?, path: path.to_owned(), _long_read: None })
    }

    /// A backup with its sum: what lies beside it is not its own.
    pub(crate) fn backup(path: &Path) -> Result<Source, OpenError> {
        Ok(Source { connection: connection::sealed(path)?, path: path.to_owned(), _long_read: None })
    }
}

/// A file that no store has open.
///
/// A process that closes a file loses the locks that SQLite holds on it for the same process. So a database that may be
/// open here is never opened by other means; a store that is open is told by its lock, which is let go of last.
pub(crate) struct Unopened {
    pub(crate) kind: Kind,
    pub(crate) file: File,
    _lock: Option<Lock>,
}

impl Unopened {
    pub(crate) fn look(path: &Path) -> Result<Unopened, OpenError> {
        let lock = Lock::take_if_any(path)?;
        let unreadable = |error: std::io::Error| wrong(path, &format!("it cannot be read: {error}"));
        let mut file = File::open(path).map_err(unreadable)?;
        let kind = match sum::kind(&mut file).map_err(unreadable)? {
            // A database that is killed while it grows; SQLite knows from its log how it goes on.
            Kind::Cut if APPLIED.iter().any(|ending| beside(path, ending).exists()) => Kind::Database,
            other => other,
        };
        Ok(Unopened { kind, file, _lock: lock })
    }
}
