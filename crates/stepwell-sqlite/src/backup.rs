//! Backups: a complete copy of a database in one file, made while the database is in use.

use std::path::Path;

use stepwell_store::SchemaVersion;

use crate::background::Stop;
use crate::copy::{copy, verify};
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{APPLIED, file_error, is_same, real, sibling};
use crate::partial::Partial;
use crate::source::Source;
use crate::store::SqliteStore;
use crate::sum;

/// The treatment of an existing file at the target path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Keeps the file and returns an error.
    #[default]
    Refuse,
    /// Replaces the file once the new one is complete.
    Replace,
}

/// The progress of a copy, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupProgress {
    /// Pages copied so far.
    pub done: u64,
    /// Pages of the source database.
    pub total: u64,
}

/// A finished backup: its size and its schema version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// Size of the backup file in bytes.
    pub bytes: u64,
    /// Schema version of the copied database.
    pub schema: SchemaVersion,
}

/// The reason that a backup or a restore failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// A file exists at the target path.
    #[error("{path} already exists: choose another name, or allow replacing it")]
    Exists { path: String },
    /// The source is not a database that Stepwell could open afterwards. Nothing was changed.
    #[error("{path} was not copied, and nothing was changed: {why}")]
    Unusable {
        path: String,
        /// The problem with the file, and what to do about it.
        why: String,
    },
    /// A file or a database cannot be opened, read or written.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl SqliteStore {
    /// Makes a backup while the store is in use. Commits and reads continue meanwhile.
    ///
    /// The backup is the state of one instant: it has every commit that was acknowledged before the call. Of the
    /// commits that follow, it has none or the first ones.
    ///
    /// The copy is written to a temporary name next to `to`, synced and checked, and only then renamed. If anything
    /// fails before that, `to` does not exist, or is still the older file. `progress` is called for every mebibyte, on
    /// the backup's thread. Dropping the future cancels the backup.
    ///
    /// ```
    /// # use stepwell_sqlite::{BackupError, Existing, SqliteStore};
    /// # async fn example(store: &SqliteStore) -> Result<(), BackupError> {
    /// let show = |progress: stepwell_sqlite::BackupProgress| {
    ///     eprintln!("{} of {} pages", progress.done, progress.total);
    /// };
    /// let backup = store.backup("backups/monday.sqlite", Existing::Refuse, show).await?;
    /// eprintln!("{} bytes", backup.bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backup(
        &self,
        to: impl AsRef<Path>,
        existing: Existing,
        progress: impl FnMut(BackupProgress) + Send + 'static,
    ) -> Result<Backup, BackupError> {
        self.trusted().map_err(OpenError::from)?;
        let to = to.as_ref().to_owned();
        self.background.run(move |source, stop| make(source, &to, existing, progress, stop)).await
    }
}

/// Makes a backup like [`SqliteStore::backup`], without an open store.
///
/// No process needs to have the database open; a process that has it open can use it meanwhile. Blocks the calling
/// thread until the backup is finished.
pub fn backup_file(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    existing: Existing,
    progress: impl FnMut(BackupProgress),
) -> Result<Backup, BackupError> {
    let source = Source::database(&real(from.as_ref()))?;
    make(source, to.as_ref(), existing, progress, &Stop::default())
}

fn make(
    source: Source,
    to: &Path,
    existing: Existing,
    progress: impl FnMut(BackupProgress),
    stop: &Stop,
) -> Result<Backup, BackupError> {
    is_free(&source.path, to, existing)?;
    // The lock of the file to be replaced, which may have been opened as a database.
    let _lock = Lock::take_if_any(to)?;
    let mut partial = Partial::sibling(to)?;
    copy(&source, &partial, progress, stop)?;
    let from = source.path.clone();
    // This ends the long read, so that the write-ahead log can be emptied again.
    drop(source);
    let failed = |error: std::io::Error| file_error(to, &format!("cannot finish the backup: {error}"));
    sum::append(&mut partial.file).map_err(failed)?;
    partial.sync()?;
    let schema = verify(&partial, &from, "quick_check", stop)?;
    stop.check().map_err(OpenError::from)?;
    let bytes = partial.file.metadata().map_err(failed)?.len();
    // The backup gets the permissions of the database: it must not be readable by more users.
    let allowed = std::fs::metadata(&from).map_err(failed)?.permissions();
    partial.file.set_permissions(allowed).map_err(failed)?;
    is_free(&from, to, existing)?;
    partial.take_name(to)?;
    Ok(Backup { bytes, schema })
}

/// Rejects a target that is the database itself, has a log or journal next to it, or must not be replaced.
fn is_free(from: &Path, to: &Path, existing: Existing) -> Result<(), BackupError> {
    if is_same(from, to) {
        return Err(file_error(to, "this is the database itself: choose another name for the backup").into());
    }
    if let Some(ending) = APPLIED.iter().find(|ending| sibling(to, ending).exists()) {
        let why = format!(
            "there is a file with this name plus `{ending}`, which SQLite would apply to the backup: \
             choose another name, or move that file away"
        );
        return Err(file_error(to, &why).into());
    }
    if existing == Existing::Refuse && std::fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.display().to_string() });
    }
    Ok(())
}
