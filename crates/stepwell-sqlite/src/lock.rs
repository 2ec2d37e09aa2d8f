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
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let path = database.display().to_string();
                let (holder, address) = owner(&text).unwrap_or_else(|| ("another process".to_owned(), None));
                return Err(OpenError::InUse { path, holder, address });
            }
            Err(TryLockError::Error(error)) => return Err(file_error(error)),
        }
        // The content is only used for the message above. The operating system holds the lock itself.
        file.set_len(0).and_then(|()| file.rewind()).map_err(file_error)?;
        writeln!(file, "{PROCESS}{}", std::process::id()).map_err(file_error)?;
        Ok(Lock { file })
    }

    /// Writes the address of this process for those that find the lock taken.
    pub(crate) fn publish_address(&self, address: &str) -> std::io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{PROCESS}{}\n{address}\n", std::process::id()).as_bytes())
    }

    /// Takes the lock of a file if it has a lock file. A file that was never opened as a database has none, and gets
    /// none.
    pub(crate) fn take_if_any(path: &Path) -> Result<Option<Lock>, OpenError> {
        if lock_path(path).exists() { Lock::take(path).map(Some) } else { Ok(None) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The next owner must not be taken for this process.
        let _ = self.file.set_len(0);
        // A child process that another thread is just starting has a copy of this descriptor until it runs its program.
        // Closing our descriptor alone would keep the database locked until then.
        let _ = self.file.unlock();
    }
}

/// Beginning of the line with the owner's process id.
const PROCESS: &str = "process ";

/// Returns the process that a lock file names, and its address. A process that has ended was killed before it could
/// empty the file: it is not the owner.
fn owner(text: &str) -> Option<(String, Option<String>)> {
    let mut lines = text.lines();
    let process = lines.next().filter(|line| line.starts_with(PROCESS))?;
    let id = process.trim_start_matches(PROCESS);
    let processes = Path::new("/proc");
    if processes.join("self").exists() && !processes.join(id).exists() {
        return None;
    }
    Some((process.to_owned(), lines.next().map(str::to_owned)))
}

fn lock_path(database: &Path) -> PathBuf {
    sibling(database, ".lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_the_owner_is_named_and_that_of_a_killed_process_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("runs.sqlite");
        let found = || match Lock::take(&database) {
            Err(OpenError::InUse { holder, address, .. }) => (holder, address),
            other => panic!("{other:?}"),
        };
        let lock = Lock::take(&database).unwrap();
        let own = format!("process {}", std::process::id());
        assert_eq!(found(), (own.clone(), None));
        lock.publish_address("http://127.0.0.1:7077").unwrap();
        assert_eq!(found(), (own, Some("http://127.0.0.1:7077".to_owned())));
        // Text of an earlier owner that was killed.
        std::fs::write(lock_path(&database), "process 999999999\nhttp://127.0.0.1:1\n").unwrap();
        assert_eq!(found(), ("another process".to_owned(), None));
        drop(lock);
        assert_eq!(std::fs::read_to_string(lock_path(&database)).unwrap(), "");
    }

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
