//! Who owns the file: a lock beside it that the operating system drops when the process dies, however it dies.
//!
//! SQLite's own exclusive mode would lock out our own readers.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::names::beside;

/// Held as long as the database is open.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(database: &Path) -> Result<Lock, OpenError> {
        let path = lock_path(database);
        let wrong = |error: std::io::Error| OpenError::File {
            path: path.display().to_string(),
            reason: format!("the lock file cannot be used: {error}"),
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder =
                    holder.lines().next().filter(|line| !line.is_empty()).unwrap_or("another process");
                return Err(OpenError::InUse {
                    path: database.display().to_string(),
                    holder: holder.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        // What is in it only serves the message above; the lock itself is the operating system's.
        file.set_len(0).and_then(|()| file.rewind()).map_err(wrong)?;
        writeln!(file, "process {}", std::process::id()).map_err(wrong)?;
        Ok(Lock { _file: file })
    }

    /// The same for a file that may never have been open as a database: such a one has no lock, and gets none.
    pub(crate) fn take_if_any(path: &Path) -> Result<Option<Lock>, OpenError> {
        if lock_path(path).exists() { Lock::take(path).map(Some) } else { Ok(None) }
    }
}

fn lock_path(database: &Path) -> PathBuf {
    beside(database, ".lock")
}
