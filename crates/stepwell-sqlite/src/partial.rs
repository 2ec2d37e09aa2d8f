//! A file that is being made beside the one it is to become: locked while it is made, whole when it gets its name.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::OpenError;
use crate::names::{self, APPLIED, INDEX, beside, folder, wrong};

/// What its name has after the name of the file that it is to become.
const ENDING: &str = ".partial-";

/// A file with a name of its own; gone when this value is, unless it has got another.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    /// Holds the lock that tells this file from one that a killed process has left.
    pub(crate) file: File,
}

impl Partial {
    /// An empty file beside another, which nobody else can read. Those that killed processes have left there go.
    pub(crate) fn beside(path: &Path) -> Result<Partial, OpenError> {
        let Some(name) = path.file_name() else {
            return Err(wrong(path, "it is a folder and not the name of a file: add one"));
        };
        let unusable = |error: io::Error| wrong(folder(path), &format!("no file can be made in it: {error}"));
        clear(folder(path), name).map_err(unusable)?;
        loop {
            static MADE: AtomicU32 = AtomicU32::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = beside(path, &format!("{ENDING}{}-{number}", std::process::id()));
            match options().open(&path) {
                Ok(file) => {
                    file.try_lock().map_err(|error| unusable(error.into()))?;
                    return Ok(Partial { path, file });
                }
                // In another container a process may have the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unusable(error)),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until what was written is on disk.
    pub(crate) fn sync(&self) -> Result<(), OpenError> {
        let failed = |error| wrong(&self.path, &format!("it cannot be brought to disk: {error}"));
        self.file.sync_all().map_err(failed)
    }

    /// Gets the name it is made for, in the place of a file that has it; whoever looks finds one of them, and whole.
    pub(crate) fn take_name(self, name: &Path) -> Result<(), OpenError> {
        self.sync()?;
        let failed = |error| wrong(name, &format!("the file cannot get this name: {error}"));
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

/// Takes away what nobody has locked: whoever was making it is dead.
fn clear(folder: &Path, name: &OsStr) -> io::Result<()> {
    let start = [name.as_encoded_bytes(), ENDING.as_bytes()].concat();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_left = entry.file_name().as_encoded_bytes().starts_with(&start);
        if !is_left {
            continue;
        }
        // It may be gone by now, or somebody else's, who may not be locked out: then it stays.
        let Ok(file) = File::open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => discard(&entry.path()),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
    Ok(())
}

/// What cannot be taken away is never taken for anything else, because of its name.
fn discard(path: &Path) {
    for ending in APPLIED.iter().chain([&INDEX]) {
        let _ = names::remove(&beside(path, ending));
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
    fn it_goes_unless_it_gets_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole");
        drop(Partial::beside(&path).unwrap());
        assert_eq!(names(folder.path()), Vec::<String>::new());
        Partial::beside(&path).unwrap().take_name(&path).unwrap();
        assert_eq!(names(folder.path()), ["whole"]);
    }

    #[test]
    fn what_a_killed_process_has_left_goes_and_what_is_being_made_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("whole");
        for left in ["whole.partial-1-7", "whole.partial-1-7-journal", "whole.old", "other.partial-1-7"] {
            std::fs::write(folder.path().join(left), "left").unwrap();
        }
        let made = Partial::beside(&path).unwrap();
        let second = Partial::beside(&path).unwrap();
        assert!(made.path().exists() && second.path().exists());
        drop((made, second));
        assert_eq!(names(folder.path()), ["other.partial-1-7", "whole.old"]);
    }
}
