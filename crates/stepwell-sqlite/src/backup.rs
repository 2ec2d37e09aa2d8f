//! Backups: a whole copy of a database under a name of its own, made while the database is in use.

use std::path::Path;

use stepwell_store::SchemaVersion;

use crate::aside::Stop;
use crate::copy::{copy, verify};
use crate::error::OpenError;
use crate::lock::Lock;
use crate::names::{APPLIED, beside, is_same, real, wrong};
use crate::partial::Partial;
use crate::source::Source;
use crate::store::SqliteStore;
use crate::sum;

/// What becomes of a file that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It stays, and nothing is done.
    #[default]
    Refuse,
    /// Another takes its place, once that is whole.
    Replace,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupProgress {
    /// Pages copied.
    pub done: u64,
    /// Pages there are.
    pub total: u64,
}

/// A backup that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// The size of its file.
    pub bytes: u64,
    /// Its schema.
    pub schema: SchemaVersion,
}

/// Why a backup was not made, or not restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// There is a file of that name.
    #[error("{path} is there already: choose another name, or say that it is to be replaced")]
    Exists {
        /// The file.
        path: String,
    },
    /// What was to be copied is nothing that could be opened afterwards.
    #[error("{path} was not copied, and nothing was changed: {why}")]
    Unfit {
        /// The file.
        path: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A file or a database cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl SqliteStore {
    /// Makes a backup while the store is in use: everything that was committed before the call is in it, and of what comes
    /// meanwhile nothing or the beginning. Commits and reads go on.
    ///
    /// It is made under another name beside `to`, brought to disk and checked; only then does it get its name. Whatever goes
    /// wrong before that leaves no file of that name, and an older one as it was. `progress` is called on a thread of the
    /// backup's own, at every mebibyte. Whoever drops the future gives the backup up.
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
        self.aside.run(move |source, stop| make(source, &to, existing, progress, stop)).await
    }
}

/// The same as [`SqliteStore::backup`] from outside: no process need have the database open, and one that has goes on
/// meanwhile. It blocks its thread until it is done.
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
    // Of what is to be replaced, if it has been a database itself.
    let _lock = Lock::take_if_any(to)?;
    let mut partial = Partial::beside(to)?;
    copy(&source, &partial, progress, stop)?;
    let from = source.path.clone();
    // The log can be emptied again.
    drop(source);
    let failed = |error: std::io::Error| wrong(to, &format!("the backup cannot be finished: {error}"));
    sum::append(&mut partial.file).map_err(failed)?;
    partial.sync()?;
    let schema = verify(&partial, &from, "quick_check", stop)?;
    stop.check().map_err(OpenError::from)?;
    let bytes = partial.file.metadata().map_err(failed)?.len();
    // Whoever may not read the database may not read its backup.
    let allowed = std::fs::metadata(&from).map_err(failed)?.permissions();
    partial.file.set_permissions(allowed).map_err(failed)?;
    is_free(&from, to, existing)?;
    partial.take_name(to)?;
    Ok(Backup { bytes, schema })
}

/// Refuses a name that is somebody else's.
fn is_free(from: &Path, to: &Path, existing: Existing) -> Result<(), BackupError> {
    if is_same(from, to) {
        return Err(wrong(to, "it is the database itself: choose another name for the backup").into());
    }
    if let Some(ending) = APPLIED.iter().find(|ending| beside(to, ending).exists()) {
        let why = format!(
            "there is a file of this name with `{ending}` after it, which SQLite would apply to the backup: \
             choose another name, or move it away if nobody needs it"
        );
        return Err(wrong(to, &why).into());
    }
    if existing == Existing::Refuse && std::fs::symlink_metadata(to).is_ok() {
        return Err(BackupError::Exists { path: to.display().to_string() });
    }
    Ok(())
}
