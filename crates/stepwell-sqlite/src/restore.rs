//! Replaces a database by a backup, and keeps the old database under another name.
//!
//! SQLite applies a log to any database with the matching name. So a database and its log belong together, but no file
//! system renames two files at once. Therefore the restored file is first written and checked next to the database,
//! under the name [`PENDING`]. That rename decides the restore. The next process that opens the database, or restores
//! again, first runs the remaining [`steps`], under the database's lock.
//!
//! Before that decision the old database is unchanged, except that its log was copied into it. At no moment is a log
//! next to a database to which it does not belong.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode};
use stepwell_core::Timestamp;
use stepwell_store::SchemaVersion;

use crate::background::Stop;
use crate::backup::{BackupError, BackupProgress, Existing};
use crate::connection;
use crate::copy::{copy, verify};
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{self, APPLIED, INDEX, file_error, is_same, real, sibling};
use crate::partial::Partial;
use crate::source::{Source, Unopened};
use crate::sum::{self, Kind};

/// Appended to the database's name: a complete file that replaces the database as soon as the restore is finished.
const PENDING: &str = ".restore-in-progress";
/// Appended to the database's name, and followed by a time: the old database.
const PREVIOUS_SUFFIX: &str = ".before-";

/// A finished restore: the old database and the restored schema version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// New path of the old database; `None` if there was none.
    pub previous: Option<PathBuf>,
    /// Schema version of the restored database.
    pub schema: SchemaVersion,
}

/// Restores a backup to the path `to`. Blocks the calling thread until the restore is finished.
///
/// The backup is checked first. Every byte is checked if this crate made the backup. Any other copy of a Stepwell
/// database is accepted too, together with the log next to it. A database that any process has open is refused. With
/// [`Existing::Replace`] the old database is kept next to the new one, under a name that contains the time.
///
/// If the process is killed, the next [`SqliteStore::open`] finds the old database or finishes the restore. All
/// processes that are recorded in the backup have expired when the database is opened. Their runs continue from their
/// state in the backup, so actions that ran after the backup run again.
///
/// [`SqliteStore::open`]: crate::SqliteStore::open
pub fn restore(
    backup: impl AsRef<Path>,
    to: impl AsRef<Path>,
    existing: Existing,
    progress: impl FnMut(BackupProgress),
) -> Result<Restored, BackupError> {
    let (backup, to) = (&real(backup.as_ref()), &real(to.as_ref()));
    if is_same(backup, to) {
        return Err(file_error(to, "this is the backup itself: choose another name for the database").into());
    }
    let _lock = Lock::take(to)?;
    finish(to)?;
    if existing == Existing::Refuse && std::fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.display().to_string() });
    }
    let partial = Partial::sibling(to)?;
    copy(&source(backup)?, &partial, progress, &Stop::default())?;
    let schema = verify(&partial, backup, "integrity_check", &Stop::default())?;
    fold(to)?;
    resemble(&partial, to).map_err(|error| {
        file_error(to, &format!("cannot set permissions or time of its replacement: {error}"))
    })?;
    partial.take_name(&sibling(to, PENDING))?;
    Ok(Restored { previous: finish(to)?, schema })
}

/// Opens the backup after a first check: its type, and its checksum if it has one.
fn source(backup: &Path) -> Result<Source, BackupError> {
    let unfit = |why: &str| BackupError::Unusable { path: backup.display().to_string(), why: why.to_owned() };
    let mut unopened = Unopened::inspect(backup)?;
    match unopened.kind {
        Kind::Other => Err(unfit("it is not a SQLite database; check the path")),
        Kind::Cut => Err(unfit("it is damaged: the file is truncated; use an older backup")),
        Kind::Database => {
            drop(unopened);
            Ok(Source::database(backup)?)
        }
        Kind::Backup => {
            let checksum_matches = sum::checksum_matches(&mut unopened.file)
                .map_err(|error| file_error(backup, &format!("cannot read the file: {error}")))?;
            if !checksum_matches {
                return Err(unfit("it is damaged: its checksum does not match; use an older backup"));
            }
            Ok(Source::backup(backup)?)
        }
    }
}

/// Copies the log of the old database into the database, so that it can be kept as one file. A damaged database is kept
/// unchanged, with its log.
fn fold(database: &Path) -> Result<(), OpenError> {
    if !database.exists() {
        return Ok(());
    }
    let connection = connection::owning(database)?;
    match folded(&connection) {
        Ok(()) => {}
        // The other program could later remove the log of the restored database, because the names are the same.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            return Err(OpenError::InUse {
                path: database.display().to_string(),
                holder: "another program, such as a SQLite shell".to_owned(),
                address: None,
            });
        }
        Err(error) => tracing::warn!(%error, "the old database is kept unchanged, with its log"),
    }
    Ok(())
}

fn folded(connection: &Connection) -> rusqlite::Result<()> {
    // Fails if another connection has the database open in WAL mode, or writes to it in another mode.
    connection.execute_batch("begin exclusive; commit")?;
    connection.pragma_update(None, "journal_mode", "delete")
}

/// Gives the new file the owner and permissions of the old one, and stores the time of the replacement as its
/// modification time. That is a full second that no kept database has in its name.
fn resemble(partial: &Partial, old: &Path) -> std::io::Result<()> {
    if let Ok(metadata) = std::fs::metadata(old) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            // Only root can change the owner, and only root needs to: other users own their files already.
            let _ = fchown(&partial.file, Some(metadata.uid()), Some(metadata.gid()));
        }
        partial.file.set_permissions(metadata.permissions())?;
    }
    let mut at = full_second(partial.file.metadata()?.modified()?);
    while [""].iter().chain(&APPLIED).any(|ending| sibling(&previous_path(old, at), ending).exists()) {
        at += Duration::from_secs(1);
    }
    partial.file.set_modified(at)
}

/// Rejects a database that is about to be replaced by an unfinished restore.
pub(crate) fn refuse_unfinished(database: &Path) -> Result<(), OpenError> {
    if !sibling(database, PENDING).exists() {
        return Ok(());
    }
    Err(file_error(
        database,
        "a restore is running or was interrupted: open the database, or restore again, to finish it",
    ))
}

/// Runs the remaining steps of a decided restore. Returns the new path of the old database. The caller must hold the
/// lock.
pub(crate) fn finish(database: &Path) -> Result<Option<PathBuf>, OpenError> {
    let pending = sibling(database, PENDING);
    let at = match std::fs::metadata(&pending).and_then(|metadata| metadata.modified()) {
        Ok(at) => at,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error(&pending, &format!("cannot read its metadata: {error}"))),
    };
    // The time comes from the file, so that a process that continues after a kill uses the same name.
    let previous = previous_path(database, full_second(at));
    for step in steps(database, &previous) {
        step.take().map_err(|error| {
            file_error(
                database,
                &format!("cannot finish the restore: {error}; fix that and open the database again"),
            )
        })?;
    }
    Ok(previous.exists().then_some(previous))
}

/// An atomic and idempotent step of a restore.
#[derive(Debug)]
enum Step {
    Move(PathBuf, PathBuf),
    Remove(PathBuf),
    Sync(PathBuf),
}

impl Step {
    fn take(&self) -> Result<(), String> {
        match self {
            Step::Move(from, to) => names::rename(from, to).map_err(|error| error.to_string()),
            Step::Remove(path) => names::remove(path).map_err(|error| error.to_string()),
            Step::Sync(path) => names::sync_folder(path).map_err(|error| error.to_string()),
        }
    }
}

/// Returns the steps that make the pending file the database. All files of the old database are moved away first.
fn steps(database: &Path, previous: &Path) -> Vec<Step> {
    let mut steps: Vec<_> = APPLIED
        .iter()
        .map(|ending| Step::Move(sibling(database, ending), sibling(previous, ending)))
        .collect();
    steps.push(Step::Remove(sibling(database, INDEX)));
    steps.push(Step::Move(database.to_owned(), previous.to_owned()));
    steps.push(Step::Sync(database.to_owned()));
    steps.push(Step::Move(sibling(database, PENDING), database.to_owned()));
    steps.push(Step::Sync(database.to_owned()));
    steps
}

/// Rounds a time down to the second, because some file systems store no fractions.
fn full_second(at: SystemTime) -> SystemTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

fn previous_path(database: &Path, at: SystemTime) -> PathBuf {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at = Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)).to_string();
    sibling(database, &format!("{PREVIOUS_SUFFIX}{}", at.replace(['-', ':'], "")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;
    use stepwell_store::SchemaVersion;

    use super::{
        PENDING, PREVIOUS_SUFFIX, finish, full_second, previous_path, refuse_unfinished, restore, sibling,
        steps,
    };
    use crate::{Existing, SqliteStore, backup_file};

    /// Creates a database with one row, which identifies it.
    fn database(path: &Path, is: &str) {
        drop(SqliteStore::open(path).unwrap());
        let connection = Connection::open(path).unwrap();
        connection.execute_batch("pragma journal_mode = wal; create table who (name text)").unwrap();
        connection.execute("insert into who values (?1)", [is]).unwrap();
    }

    fn who(path: &Path) -> String {
        let connection = Connection::open(path).unwrap();
        connection.query_row("select group_concat(name) from who", [], |row| row.get(0)).unwrap()
    }

    /// Creates a directory with a decided restore. The newest row of the database `old` is only in its log, as after a
    /// kill; the complete pending file is next to it.
    fn decided() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("runs.sqlite"), folder.path().join("new.sqlite"));
        database(&path, "old");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("insert into who values ('older')").unwrap();
        for ending in ["", "-wal", "-shm"] {
            std::fs::copy(sibling(&path, ending), folder.path().join(format!("copied{ending}"))).unwrap();
        }
        drop(connection);
        for ending in ["", "-wal", "-shm"] {
            std::fs::rename(folder.path().join(format!("copied{ending}")), sibling(&path, ending)).unwrap();
        }
        database(&new, "new");
        backup_file(&new, sibling(&path, PENDING), Existing::Refuse, |_| ()).unwrap();
        (folder, path)
    }

    /// SQLite would silently apply a log that is left next to the wrong database.
    #[test]
    fn restore_killed_between_steps_is_finished_by_the_next_open() {
        for killed_after in 0..=10 {
            let (_folder, path) = decided();
            let at = std::fs::metadata(sibling(&path, PENDING)).unwrap().modified().unwrap();
            let previous = previous_path(&path, full_second(at));
            let steps = steps(&path, &previous);
            for step in steps.iter().take(killed_after) {
                step.take().unwrap();
                // Until the last rename, the files must not be opened as a database.
                assert_eq!(refuse_unfinished(&path).is_ok(), who_is_there(&path) == Some("new"), "{step:?}");
            }
            drop(SqliteStore::open(&path).unwrap());
            assert_eq!(who(&path), "new", "killed after {killed_after}");
            assert_eq!(who(&previous), "old,older", "killed after {killed_after}");
            assert!(!sibling(&path, PENDING).exists());
            assert!(steps.len() < 10);
        }
    }

    /// Reads the identifying row without opening the database, which would change it.
    fn who_is_there(path: &Path) -> Option<&'static str> {
        let pages = std::fs::read(path).ok()?;
        let is = |name: &str| pages.windows(name.len()).any(|window| window == name.as_bytes());
        Some(if is("new") { "new" } else { "old" })
    }

    #[test]
    fn journal_of_the_old_database_is_moved_with_it() {
        let (_folder, path) = decided();
        std::fs::write(sibling(&path, "-journal"), "to undo by").unwrap();
        let previous = finish(&path).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(sibling(&previous, "-journal")).unwrap(), "to undo by");
        assert!(!sibling(&path, "-journal").exists());
    }

    #[test]
    fn two_restores_within_a_second_keep_both_old_databases() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.sqlite");
        let backups = ["one", "two", "three"].map(|name| {
            let (file, backup) = (folder.path().join(name), folder.path().join(format!("{name}.backup")));
            database(&file, name);
            backup_file(&file, &backup, Existing::Refuse, |_| ()).unwrap();
            backup
        });
        let mut previous = Vec::new();
        for backup in &backups {
            let restored = restore(backup, &path, Existing::Replace, |_| ()).unwrap();
            assert_eq!(restored.schema, SchemaVersion(1));
            previous.extend(restored.previous);
        }
        assert_eq!(who(&path), "three");
        assert_eq!(previous.iter().map(|previous| who(previous)).collect::<Vec<_>>(), ["one", "two"]);
        let name = previous[0].file_name().unwrap().to_str().unwrap();
        let time = name.strip_prefix(&format!("runs.sqlite{PREVIOUS_SUFFIX}")).unwrap();
        assert!(time.len() == 16 && time.ends_with('Z') && time.contains('T'), "{time}");
    }
}
