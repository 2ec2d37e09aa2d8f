//! Copies a database, page by page, into a file that becomes a backup or a restored database.
//!
//! Uses SQLite's backup API inside one read transaction, so the copy is the state of one instant, however much is
//! committed meanwhile. Without that transaction every commit would restart the copy, and a busy writer would starve
//! it. The writer never waits for a reader. `vacuum into` would also copy one instant, but it rebuilds every table and
//! index. That takes many times the processor time, reports no progress and cannot be cancelled.

use std::ffi::c_int;
use std::path::Path;

use rusqlite::backup::{Backup, StepResult};
use stepwell_store::{SchemaVersion, StoreError};

use crate::background::Stop;
use crate::backup::{BackupError, BackupProgress};
use crate::error::{OpenError, store_error};
use crate::partial::Partial;
use crate::source::Source;
use crate::{check, connection, migrate};

/// Pages copied in one step: one mebibyte.
const STEP: c_int = 256;
/// Steps between two syncs of the copy. If everything were synced at the end, the fsync of a commit would have to wait
/// for it on some file systems.
const SYNC_EVERY: usize = 16;

/// Copies the whole database. The result is neither synced nor checked.
pub(crate) fn copy(
    source: &Source,
    partial: &Partial,
    progress: impl FnMut(BackupProgress),
    stop: &Stop,
) -> Result<(), BackupError> {
    fill(source, partial, progress, stop).map_err(|error| match error {
        OpenError::Store(error) => meaning(error, &source.path),
        other => other.into(),
    })
}

fn fill(
    source: &Source,
    partial: &Partial,
    mut progress: impl FnMut(BackupProgress),
    stop: &Stop,
) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| OpenError::Store(store_error(&error));
    let mut filled = connection::filling(partial.path())?;
    let reading = source.connection.unchecked_transaction().map_err(failed)?;
    // A deferred transaction begins with its first read.
    reading.query_row("select count(*) from sqlite_schema", [], |_| Ok(())).map_err(failed)?;
    let backup = Backup::new(&reading, &mut filled).map_err(failed)?;
    for step in 1.. {
        stop.check()?;
        let result = backup.step(STEP).map_err(failed)?;
        let pages = backup.progress();
        let (total, left) = (count(pages.pagecount), count(pages.remaining));
        progress(BackupProgress { done: total - left, total });
        match result {
            StepResult::Done => break,
            StepResult::More if step % SYNC_EVERY == 0 => partial.sync()?,
            StepResult::More => {}
            other => {
                let what = format!("{} cannot be copied ({other:?})", source.path.display());
                return Err(StoreError::Unavailable(what).into());
            }
        }
    }
    drop(backup);
    drop(reading);
    // In WAL mode the file could not be read in a directory where no log can be created.
    connection::set(&filled, "journal_mode", "delete")
}

fn count(pages: c_int) -> u64 {
    u64::try_from(pages).unwrap_or(0)
}

/// Checks a copy with one of SQLite's own checks and returns its schema version. Damage is reported for the original.
pub(crate) fn verify(
    partial: &Partial,
    original: &Path,
    by: &str,
    stop: &Stop,
) -> Result<SchemaVersion, BackupError> {
    let mut copy = connection::sealed(partial.path())?;
    check::interrupt_when_cancelled(&mut copy, stop)
        .map_err(|error| OpenError::Store(store_error(&error)))?;
    let damage = check::damage(&copy, by).map_err(|error| meaning(store_error(&error), original))?;
    if let Some(first) = damage.into_iter().next() {
        return Err(meaning(StoreError::Corrupt(first), original));
    }
    migrate::found(&copy).map_err(|error| meaning(error, original))
}

/// Reports damage in a copy as damage of the original.
fn meaning(error: StoreError, original: &Path) -> BackupError {
    let unfit = |why| BackupError::Unusable { path: original.display().to_string(), why };
    match error {
        StoreError::Corrupt(how) => unfit(format!("the database is damaged ({how}); use an older backup")),
        StoreError::Schema(why) => unfit(why),
        other => BackupError::Open(other.into()),
    }
}
