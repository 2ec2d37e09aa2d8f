//! The files beside a database: how they are called, moved and taken away.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// What SQLite keeps beside a database and applies to whatever has the database's name: a log, or a journal to undo by.
pub(crate) const APPLIED: [&str; 2] = ["-wal", "-journal"];
/// What it keeps there that is of no use without the log.
pub(crate) const INDEX: &str = "-shm";

/// The file whose name is another's with an ending.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The folder that a file is in.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file itself, where the name is a link to it: what lies beside a database lies beside the file.
pub(crate) fn real(path: &Path) -> PathBuf {
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = folder(&path).join(target);
    }
    path
}

/// Makes sure that the names of a folder's files are on disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), OpenError> {
    let folder = folder(path);
    File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(|error| wrong(folder, &format!("its names cannot be brought to disk: {error}")))
}

/// Takes a file away, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    unless_missing(std::fs::remove_file(path))
}

/// Gives a file another name, if it is there.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    unless_missing(std::fs::rename(from, to))
}

fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Whether two names are of the same file.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// A file that cannot be used, and why.
pub(crate) fn wrong(path: &Path, reason: &str) -> OpenError {
    OpenError::File { path: path.display().to_string(), reason: reason.to_owned() }
}
