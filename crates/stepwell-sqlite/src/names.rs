//! The files next to a database: names them, renames them and removes them.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// Endings of the write-ahead log and the rollback journal. SQLite applies these files to any file with the database's
/// name.
pub(crate) const APPLIED: [&str; 2] = ["-wal", "-journal"];
/// Ending of the index of the write-ahead log. It is useless without the log.
pub(crate) const INDEX: &str = "-shm";

/// Returns the path with an ending appended to its name.
pub(crate) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Returns the directory of a file; `.` if the path has none.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Follows symbolic links to the file itself: the log and the lock are next to the file, not next to a link.
pub(crate) fn real(path: &Path) -> PathBuf {
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = folder(&path).join(target);
    }
    path
}

/// Syncs the directory of a file, so that renames and new names in it are on disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), OpenError> {
    let folder = folder(path);
    File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(|error| file_error(folder, &format!("cannot sync the directory: {error}")))
}

/// Removes a file if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    unless_missing(std::fs::remove_file(path))
}

/// Renames a file if it exists.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    unless_missing(std::fs::rename(from, to))
}

fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns true if two paths lead to the same file.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Builds the error for a file that cannot be used.
pub(crate) fn file_error(path: &Path, reason: &str) -> OpenError {
    OpenError::File { path: path.display().to_string(), reason: reason.to_owned() }
}
