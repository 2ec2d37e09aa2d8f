//! Keeps the write-ahead log short without making a commit wait for it.
//!
//! A thread of its own copies the log into the database while the writer goes on. What came meanwhile is little; the
//! writer copies that itself between two batches, so that the log can begin again at its start. What goes wrong is tried
//! again, but for an fsync that failed: that closes the store, here as after a commit.
//!
//! While somebody reads for long (a backup), what came after it began cannot be copied. The log grows meanwhile; whoever
//! read copies it, so that the writer does not have to at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::connection;
use crate::error::{Failed, OpenError, note, store_error};

/// So many times its length the log may have before the writer does not wait for the other thread any more.
const PATIENCE: i64 = 8;
/// Batches between two looks at the log.
const LOOK_EVERY: u32 = 32;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;

/// When the log is emptied.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Pages from which on it is.
    pages: i64,
    /// How many read for long just now.
    long_reads: AtomicUsize,
}

impl Pace {
    pub(crate) fn new(pages: u32) -> Arc<Pace> {
        Arc::new(Pace { pages: pages.into(), long_reads: AtomicUsize::new(0) })
    }
}

/// Somebody who reads for long. The connection has to be closed before this value goes.
#[derive(Debug)]
pub(crate) struct LongRead {
    path: PathBuf,
    pace: Arc<Pace>,
    failed: Failed,
}

impl LongRead {
    pub(crate) fn begin(path: &Path, pace: &Arc<Pace>, failed: &Failed) -> LongRead {
        pace.long_reads.fetch_add(1, Ordering::AcqRel);
        LongRead { path: path.to_owned(), pace: pace.clone(), failed: failed.clone() }
    }

    /// Copies the log if it has grown.
    fn make_up(&self) -> Result<(), OpenError> {
        let connection = connection::checkpointing(&self.path)?;
        if pages(&connection).map_err(|error| store_error(&error))? > self.pace.pages {
            checkpoint(&connection, &self.failed);
        }
        Ok(())
    }
}

impl Drop for LongRead {
    fn drop(&mut self) {
        if let Err(error) = self.make_up() {
            tracing::warn!(%error, "the log is left to the writer");
        }
        self.pace.long_reads.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The writer's side.
pub(crate) struct Log {
    phase: Arc<AtomicU8>,
    pace: Arc<Pace>,
    start: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    batches: u32,
    failed: Failed,
}

impl Log {
    pub(crate) fn open(path: &Path, pace: Arc<Pace>, failed: Failed) -> Result<Log, OpenError> {
        let connection = connection::checkpointing(path)?;
        let (start, started) = sync_channel::<()>(1);
        let phase = Arc::new(AtomicU8::new(IDLE));
        let (shared, noted) = (phase.clone(), failed.clone());
        let thread = std::thread::Builder::new().name("stepwell-wal".to_owned()).spawn(move || {
            while started.recv().is_ok() {
                checkpoint(&connection, &noted);
                shared.store(COPIED, Ordering::Release);
            }
        });
        let thread = thread.map_err(|error| OpenError::File {
            path: path.display().to_string(),
            reason: format!("the thread for the log cannot be started: {error}"),
        })?;
        let (start, thread) = (Some(start), Some(thread));
        Ok(Log { phase, pace, start, thread, batches: 0, failed })
    }

    /// Called by the writer between two batches.
    pub(crate) fn tend(&mut self, writer: &Connection) {
        let phase = self.phase.load(Ordering::Acquire);
        if phase == COPIED {
            self.finish(writer);
            return;
        }
        self.batches += 1;
        if self.batches < LOOK_EVERY {
            return;
        }
        self.batches = 0;
        let can_hurry = self.pace.long_reads.load(Ordering::Acquire) == 0;
        match pages(writer) {
            Ok(pages) if pages > PATIENCE * self.pace.pages && can_hurry => self.finish(writer),
            Ok(pages) if pages > self.pace.pages && phase == IDLE => {
                self.phase.store(COPYING, Ordering::Release);
                if let Some(start) = &self.start {
                    let _ = start.try_send(());
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the log's length cannot be read"),
        }
    }

    /// Copies what is left; after that the next commit begins the log anew, if no reader is in it.
    fn finish(&self, writer: &Connection) {
        checkpoint(writer, &self.failed);
        self.phase.store(IDLE, Ordering::Release);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.start = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn checkpoint(connection: &Connection, failed: &Failed) {
    if let Err(error) = connection.query_row("pragma wal_checkpoint(passive)", [], |_| Ok(())) {
        let meaning = note(failed, &error);
        tracing::warn!(%meaning, "the log could not be copied into the database");
    }
}

/// Pages in the log that are not yet in the database.
fn pages(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .query_row("pragma wal_checkpoint(noop)", [], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rusqlite::Connection;

    use super::{IDLE, LOOK_EVERY, Log, LongRead, Ordering, PATIENCE, Pace, pages};
    use crate::connection;
    use crate::error::Failed;

    /// Somebody who reads, and so many commits after that began that the writer would copy the log itself.
    fn grown(path: &Path, writer: &Connection) -> Connection {
        let reader = connection::reading(path, 1024).unwrap();
        reader.execute_batch("begin; select count(*) from t").unwrap();
        for _ in 0..3 * LOOK_EVERY {
            writer.execute_batch("insert into t values (randomblob(5000))").unwrap();
        }
        assert!(pages(writer).unwrap() > PATIENCE);
        reader
    }

    fn settle(log: &mut Log, writer: &Connection) {
        let until = Instant::now() + Duration::from_secs(20);
        while log.phase.load(Ordering::Acquire) != IDLE {
            assert!(Instant::now() < until, "the thread for the log does not come to an end");
            log.tend(writer);
        }
    }

    /// The accident that this prevents: a backup ends, and the commit after it waits until the writer itself has copied
    /// everything that was committed meanwhile.
    #[test]
    fn what_a_long_read_held_up_is_copied_by_whoever_read_and_not_by_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.sqlite");
        let writer = connection::writing(&path, 1024).unwrap();
        writer.execute_batch("create table t (x blob)").unwrap();
        let (pace, failed) = (Pace::new(1), Failed::default());

        let long_read = LongRead::begin(&path, &pace, &failed);
        drop(grown(&path, &writer));
        drop(long_read);
        assert_eq!((pages(&writer).unwrap(), pace.long_reads.load(Ordering::Acquire)), (0, 0));

        let mut log = Log::open(&path, pace.clone(), failed.clone()).unwrap();
        for hurries in [false, true] {
            let long_read = (!hurries).then(|| LongRead::begin(&path, &pace, &failed));
            let reader = grown(&path, &writer);
            drop(reader);
            log.batches = LOOK_EVERY;
            log.tend(&writer);
            let left_to_the_thread = log.phase.load(Ordering::Acquire) != IDLE;
            assert_eq!(left_to_the_thread, !hurries);
            settle(&mut log, &writer);
            assert_eq!(pages(&writer).unwrap(), 0);
            drop(long_read);
        }
    }
}
