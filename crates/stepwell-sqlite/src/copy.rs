//! Copies a database, page by page, into a file that is to become another one.
//!
//! It is SQLite's own backup, within one transaction that reads: so the copy is of one instant, however much is committed
//! meanwhile. Without that transaction every commit would make it begin anew, and a busy writer would starve it; the
//! writer itself never waits for a reader. `vacuum into` would also be of one instant, but it builds every table and
//! index anew, which takes the processor many times as long, says nothing of how far it is, and cannot be given up.

use std::ffi::c_int;
use std::path::Path;

use rusqlite::backup::{Backup, StepResult};
use stepwell_store::{SchemaVersion, StoreError};

use crate::aside::Stop;
use crate::backup::{BackupError, BackupProgress};
use crate::error::{OpenError, store_error};
use crate::partial::Partial;
use crate::source::Source;
use crate::{check, connection, migrate};

/// Pages in one step: a mebibyte.
const STEP: c_int = 256;
/// Steps after which what was copied is brought to disk: if it were all left to the end, an fsync of a commit would have
/// to wait for it on some file systems.
const SYNC_EVERY: usize = 16;

/// Copies everything. What the file has is not on disk then, nor looked at.
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
    // The transaction begins with the first thing that it reads.
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
    // A file of its own: one that says it has a log cannot be read where none can be made.
    connection::set(&filled, "journal_mode", "delete")
}

fn count(pages: c_int) -> u64 {
    u64::try_from(pages).unwrap_or(0)
}

/// Looks at a copy: whether it hangs together, by the check of that name, and what schema it has. What is wrong is wrong with
/// the original.
pub(crate) fn verify(
    partial: &Partial,
    original: &Path,
    by: &str,
    stop: &Stop,
) -> Result<SchemaVersion, BackupError> {
    let mut copy = connection::sealed(partial.path())?;
    check::stop_when_said(&mut copy, stop).map_err(|error| OpenError::Store(store_error(&error)))?;
    let damage = check::damage(&copy, by).map_err(|error| meaning(store_error(&error), original))?;
    if let Some(first) = damage.into_iter().next() {
        return Err(meaning(StoreError::Corrupt(first), original));
    }
    migrate::found(&copy).map_err(|error| meaning(error, original))
}

/// What cannot be read in a copy was not there to be read in the original.
fn meaning(error: StoreError, original: &Path) -> BackupError {
    let unfit = |why| BackupError::Unfit { path: original.display().to_string(), why };
    match error {
        StoreError::Corrupt(how) => unfit(format!("it is damaged ({how}); use an older backup")),
        StoreError::Schema(why) => unfit(why),
        other => BackupError::Open(other.into()),
    }
}
