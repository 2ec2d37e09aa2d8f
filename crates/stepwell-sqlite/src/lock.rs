//! The lock file that gives one process the database. The operating system releases the lock when the process ends,
//! however it ends.
//!
//! SQLite's exclusive mode is not used for this, because it would lock out our own readers.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::names::sibling;

/// The lock on a database, held until this value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    pub(crate) fn take(database: &Path) -> Result<Lock, OpenError> {
        let path = lock_path(database);
        let file_error = |error: std::io::Error| OpenError::File {
            path: path.display().to_string(),
            reason: format!("cannot use the lock file: {error}"),
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(file_error)?;
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
            Err(TryLockError::Error(error)) => return Err(file_error(error)),
        }
        // The content is only used for the message above. The operating system holds the lock itself.
        file.set_len(0).and_then(|()| file.rewind()).map_err(file_error)?;
        writeln!(file, "process {}", std::process::id()).map_err(file_error)?;
        Ok(Lock { file })
    }

    /// Takes the lock of a file if it has a lock file. A file that was never opened as a database has none, and gets
    /// none.
    pub(crate) fn take_if_any(path: &Path) -> Result<Option<Lock>, OpenError> {
        if lock_path(path).exists() { Lock::take(path).map(Some) } else { Ok(None) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child process that another thread is just starting has a copy of this descriptor until it runs its program.
        // Closing our descriptor alone would keep the database locked until then.
        let _ = self.file.unlock();
    }
}

fn lock_path(database: &Path) -> PathBuf {
    sibling(database, ".lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was being started while a database was closed kept it locked: opening it again failed.
    #[test]
    fn copy_of_the_descriptor_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("runs.sqlite");
        let lock = Lock::take(&database).unwrap();
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        Lock::take(&database).unwrap();
        drop(copy);
    }
}
