//! A temporary file next to its target: locked while it is written, and renamed to the target when it is complete.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::OpenError;
use crate::names::{self, APPLIED, INDEX, file_error, folder, sibling};

/// Appended to the name of the target, followed by the process id and a number.
const ENDING: &str = ".partial-";

/// A temporary file. It is removed when this value is dropped, unless it was renamed to its target.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    /// Holds a lock, which distinguishes this file from one that a killed process left behind.
    pub(crate) file: File,
}

impl Partial {
    /// Creates an empty file next to the target, readable only by its owner. Removes files that killed processes left
    /// there.
    pub(crate) fn sibling(path: &Path) -> Result<Partial, OpenError> {
        let Some(name) = path.file_name() else {
            return Err(file_error(path, "this path has no file name: add one"));
        };
        let unusable =
            |error: io::Error| file_error(folder(path), &format!("cannot create a file in it: {error}"));
        clear(folder(path), name).map_err(unusable)?;
        loop {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = sibling(path, &format!("{ENDING}{}-{number}", std::process::id()));
            match options().open(&path) {
                Ok(file) => {
                    file.try_lock().map_err(|error| unusable(error.into()))?;
                    return Ok(Partial { path, file });
                }
                // A process in another container may have the same id and have taken this name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unusable(error)),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn sync(&self) -> Result<(), OpenError> {
        let failed = |error| file_error(&self.path, &format!("cannot sync the file: {error}"));
        self.file.sync_all().map_err(failed)
    }

    /// Syncs the file and renames it to its target, replacing an existing file. At every moment the target is the old
    /// file or the new one, and complete.
    pub(crate) fn take_name(self, name: &Path) -> Result<(), OpenError> {
        self.sync()?;
        let failed = |error| file_error(name, &format!("cannot rename the new file to this name: {error}"));
        std::fs::rename(&self.path, name).map_err(failed)?;
        names::sync_folder(name)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        discard(&self.path);
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Removes temporary files that are not locked: the processes that wrote them have ended.
fn clear(folder: &Path, name: &OsStr) -> io::Result<()> {
    let start = [name.as_encoded_bytes(), ENDING.as_bytes()].concat();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_left = entry.file_name().as_encoded_bytes().starts_with(&start);
        if !is_left {
            continue;
        }
        // The file may be gone by now, or belong to another user; then leave it alone.
        let Ok(file) = File::open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => discard(&entry.path()),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
    Ok(())
}

/// Removes a temporary file with its log and journal. Failures are ignored: its name shows that it is temporary.
fn discard(path: &Path) {
    for ending in APPLIED.iter().chain([&INDEX]) {
        let _ = names::remove(&sibling(path, ending));
    }
    let _ = names::remove(path);
}

#[cfg(test)]
mod tests {
    use super::Partial;

    fn names(folder: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn temporary_file_is_removed_unless_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole");
        drop(Partial::sibling(&path).unwrap());
        assert_eq!(names(folder.path()), Vec::<String>::new());
        Partial::sibling(&path).unwrap().take_name(&path).unwrap();
        assert_eq!(names(folder.path()), ["whole"]);
    }

    #[test]
    fn only_unlocked_temporary_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole");
        for left in ["whole.partial-1-7", "whole.partial-1-7-journal", "whole.old", "other.partial-1-7"] {
            std::fs::write(folder.path().join(left), "left").unwrap();
        }
        let made = Partial::sibling(&path).unwrap();
        let second = Partial::sibling(&path).unwrap();
        assert!(made.path().exists() && second.path().exists());
        drop((made, second));
        assert_eq!(names(folder.path()), ["other.partial-1-7", "whole.old"]);
    }
}
