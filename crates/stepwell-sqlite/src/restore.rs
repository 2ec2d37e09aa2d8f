//! Puts a backup in a database's place; the database that was there stays beside it.
//!
//! SQLite applies a log to whatever has the name that goes with it. So a database and its log are one thing, and no file
//! system gives two files new names at once. What is restored therefore lies whole and checked beside the database first,
//! under a name that says that it is to take its place ([`PENDING`]). From then on it is decided: whoever opens the
//! database, or restores again, does what is left of [`steps`] before anything else, under the database's lock. Before
//! then the old one is as it was, but that its log was copied into it; at no instant is a log beside a database that is
//! not its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode};
use stepwell_core::Timestamp;
use stepwell_store::SchemaVersion;

use crate::aside::Stop;
use crate::backup::{BackupError, BackupProgress, Existing};
use crate::connection;
use crate::copy::{copy, verify};
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{self, APPLIED, INDEX, beside, is_same, real, wrong};
use crate::partial::Partial;
use crate::source::{Source, Unopened};
use crate::sum::{self, Kind};

/// After the database's name: what takes its place as soon as somebody sees to it.
const PENDING: &str = ".restore-in-progress";
/// After the database's name, and before a time: what was in its place.
const KEPT: &str = ".before-";

/// A database that was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Where the database is now that was there before, if there was one.
    pub kept: Option<PathBuf>,
    /// The schema of the restored one.
    pub schema: SchemaVersion,
}

/// Puts a backup in a database's place, or where none is yet. It blocks its thread until it is done.
///
/// The backup is checked, every byte of it if it was made by this crate; any other copy of a database of Stepwell's will do,
/// together with the log beside it if it has one. A database that any process has open is refused. With
/// [`Existing::Replace`] the one that was there is kept beside it, under a name that has the time in it.
///
/// Killed at any instant it leaves the old database, or the new one after the next [`SqliteStore::open`]. All processes
/// that the backup knows of are dead when it is opened, and their runs go on from where the backup has them: actions that
/// were run after it was made are run again.
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
        return Err(wrong(to, "it is the backup itself: choose another name for the database").into());
    }
    let _lock = Lock::take(to)?;
    finish(to)?;
    if existing == Existing::Refuse && std::fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.display().to_string() });
    }
    let partial = Partial::beside(to)?;
    copy(&source(backup)?, &partial, progress, &Stop::default())?;
    let schema = verify(&partial, backup, "integrity_check", &Stop::default())?;
    fold(to)?;
    resemble(&partial, to).map_err(|error| wrong(to, &format!("nothing like it can be made: {error}")))?;
    partial.take_name(&beside(to, PENDING))?;
    Ok(Restored { kept: finish(to)?, schema })
}

/// What is to be restored, if nothing is wrong with it at first sight.
fn source(backup: &Path) -> Result<Source, BackupError> {
    let unfit = |why: &str| BackupError::Unfit { path: backup.display().to_string(), why: why.to_owned() };
    let mut unopened = Unopened::look(backup)?;
    match unopened.kind {
        Kind::Other => Err(unfit("it is not a SQLite database; look for the right file")),
        Kind::Cut => Err(unfit("it is damaged: its end is missing; use an older backup")),
        Kind::Database => {
            drop(unopened);
            Ok(Source::database(backup)?)
        }
        Kind::Backup => {
            let fits = sum::fits(&mut unopened.file)
                .map_err(|error| wrong(backup, &format!("it cannot be read: {error}")))?;
            if !fits {
                return Err(unfit(
                    "it is damaged: it is not what was backed up, by the sum at its end; use an older backup",
                ));
            }
            Ok(Source::backup(backup)?)
        }
    }
}

/// Copies what is in the old database's log into the database, so that it can be kept as one file. A damaged database is
/// kept as it is, with its log.
fn fold(database: &Path) -> Result<(), OpenError> {
    if !database.exists() {
        return Ok(());
    }
    let connection = connection::owning(database)?;
    match folded(&connection) {
        Ok(()) => {}
        // Another program could later take away the restored database's log, because it goes by the name.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            return Err(OpenError::InUse {
                path: database.display().to_string(),
                holder: "another program, such as a shell for SQLite".to_owned(),
            });
        }
        Err(error) => tracing::warn!(%error, "the old database is kept as it is, with its log beside it"),
    }
    Ok(())
}

fn folded(connection: &Connection) -> rusqlite::Result<()> {
    // Nobody else has it open, or writes to it where it has no log.
    connection.execute_batch("begin exclusive; commit")?;
    connection.pragma_update(None, "journal_mode", "delete")
}

/// Lets the new file be used by whoever could use the old one, and notes when the old one was replaced: at a full second
/// at which no other was.
fn resemble(partial: &Partial, old: &Path) -> std::io::Result<()> {
    if let Ok(metadata) = std::fs::metadata(old) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            // Only root can, and only root has to.
            let _ = fchown(&partial.file, Some(metadata.uid()), Some(metadata.gid()));
        }
        partial.file.set_permissions(metadata.permissions())?;
    }
    let mut at = full_second(partial.file.metadata()?.modified()?);
    while [""].iter().chain(&APPLIED).any(|ending| beside(&kept_name(old, at), ending).exists()) {
        at += Duration::from_secs(1);
    }
    partial.file.set_modified(at)
}

/// Refuses to look at a database in whose place another is about to be.
pub(crate) fn refuse_unfinished(database: &Path) -> Result<(), OpenError> {
    if !beside(database, PENDING).exists() {
        return Ok(());
    }
    Err(wrong(
        database,
        "it is being restored, or a restore was interrupted: open the database, or restore again",
    ))
}

/// Does what is left of a restore that was decided; gives where the old database is. The lock has to be held.
pub(crate) fn finish(database: &Path) -> Result<Option<PathBuf>, OpenError> {
    let pending = beside(database, PENDING);
    let at = match std::fs::metadata(&pending).and_then(|metadata| metadata.modified()) {
        Ok(at) => at,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(&pending, &format!("it cannot be looked at: {error}"))),
    };
    // The time is that of the file, so that whoever goes on after a kill gives the old one the same name.
    let kept = kept_name(database, full_second(at));
    for step in steps(database, &kept) {
        step.take().map_err(|error| {
            wrong(
                database,
                &format!("the restore cannot be finished: {error}; open it again when that is mended"),
            )
        })?;
    }
    Ok(kept.exists().then_some(kept))
}

/// One thing that happens whole or not at all, and does no harm when it is done again.
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

/// What makes the pending file the database: everything of the old one goes away before it comes.
fn steps(database: &Path, kept: &Path) -> Vec<Step> {
    let mut steps: Vec<_> =
        APPLIED.iter().map(|ending| Step::Move(beside(database, ending), beside(kept, ending))).collect();
    steps.push(Step::Remove(beside(database, INDEX)));
    steps.push(Step::Move(database.to_owned(), kept.to_owned()));
    steps.push(Step::Sync(database.to_owned()));
    steps.push(Step::Move(beside(database, PENDING), database.to_owned()));
    steps.push(Step::Sync(database.to_owned()));
    steps
}

/// Not every file system keeps more of a time than its seconds.
fn full_second(at: SystemTime) -> SystemTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

fn kept_name(database: &Path, at: SystemTime) -> PathBuf {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at = Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)).to_string();
    beside(database, &format!("{KEPT}{}", at.replace(['-', ':'], "")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;
    use stepwell_store::SchemaVersion;

    use super::{KEPT, PENDING, beside, finish, full_second, kept_name, refuse_unfinished, restore, steps};
    use crate::{Existing, SqliteStore, backup_file};

    /// A database whose one row says who it is.
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

    /// A folder with a database `old` whose newest row is only in its log, as a killed process leaves it, and beside it
    /// the whole file that is to take its place.
    fn decided() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("runs.sqlite"), folder.path().join("new.sqlite"));
        database(&path, "old");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("insert into who values ('older')").unwrap();
        for ending in ["", "-wal", "-shm"] {
            std::fs::copy(beside(&path, ending), folder.path().join(format!("copied{ending}"))).unwrap();
        }
        drop(connection);
        for ending in ["", "-wal", "-shm"] {
            std::fs::rename(folder.path().join(format!("copied{ending}")), beside(&path, ending)).unwrap();
        }
        database(&new, "new");
        backup_file(&new, beside(&path, PENDING), Existing::Refuse, |_| ()).unwrap();
        (folder, path)
    }

    /// A log that is left beside another database than its own would be applied to it, and nobody would be told.
    #[test]
    fn killed_between_any_two_steps_it_is_finished_by_whoever_opens_it_and_the_old_one_is_whole() {
        for killed_after in 0..=10 {
            let (_folder, path) = decided();
            let at = std::fs::metadata(beside(&path, PENDING)).unwrap().modified().unwrap();
            let kept = kept_name(&path, full_second(at));
            let steps = steps(&path, &kept);
            for step in steps.iter().take(killed_after) {
                step.take().unwrap();
                // Before the last file has its name, nobody is to take what lies there for a database.
                assert_eq!(refuse_unfinished(&path).is_ok(), who_is_there(&path) == Some("new"), "{step:?}");
            }
            drop(SqliteStore::open(&path).unwrap());
            assert_eq!(who(&path), "new", "killed after {killed_after}");
            assert_eq!(who(&kept), "old,older", "killed after {killed_after}");
            assert!(!beside(&path, PENDING).exists());
            assert!(steps.len() < 10);
        }
    }

    /// Without opening it, which would change it.
    fn who_is_there(path: &Path) -> Option<&'static str> {
        let pages = std::fs::read(path).ok()?;
        let is = |name: &str| pages.windows(name.len()).any(|window| window == name.as_bytes());
        Some(if is("new") { "new" } else { "old" })
    }

    #[test]
    fn a_journal_of_the_old_database_goes_away_with_it() {
        let (_folder, path) = decided();
        std::fs::write(beside(&path, "-journal"), "to undo by").unwrap();
        let kept = finish(&path).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(beside(&kept, "-journal")).unwrap(), "to undo by");
        assert!(!beside(&path, "-journal").exists());
    }

    #[test]
    fn two_restores_within_a_second_keep_two_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.sqlite");
        let backups = ["one", "two", "three"].map(|name| {
            let (file, backup) = (folder.path().join(name), folder.path().join(format!("{name}.backup")));
            database(&file, name);
            backup_file(&file, &backup, Existing::Refuse, |_| ()).unwrap();
            backup
        });
        let mut kept = Vec::new();
        for backup in &backups {
            let restored = restore(backup, &path, Existing::Replace, |_| ()).unwrap();
            assert_eq!(restored.schema, SchemaVersion(1));
            kept.extend(restored.kept);
        }
        assert_eq!(who(&path), "three");
        assert_eq!(kept.iter().map(|kept| who(kept)).collect::<Vec<_>>(), ["one", "two"]);
        let name = kept[0].file_name().unwrap().to_str().unwrap();
        let time = name.strip_prefix(&format!("runs.sqlite{KEPT}")).unwrap();
        assert!(time.len() == 16 && time.ends_with('Z') && time.contains('T'), "{time}");
    }
}
