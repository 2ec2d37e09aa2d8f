//! Keeps the write-ahead log short without making a commit wait for it.
//!
//! A separate thread copies the log into the database while the writer continues. Only a few pages are written
//! meanwhile. The writer copies them itself between two batches, so that the log can restart at its beginning. A failed
//! copy is retried later. A failed fsync closes the store, as it does after a commit.
//!
//! During a long read, such as a backup, the pages written after its start cannot be copied, and the log grows. The
//! reader copies the log at its end, so that the writer does not have to do it at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::connection;
use crate::error::{Failed, OpenError, note, store_error};

/// The writer copies the log itself when it is this many times longer than the configured length.
const MAX_GROWTH_FACTOR: i64 = 8;
/// Batches between two checks of the log's length.
const CHECK_EVERY_BATCHES: u32 = 32;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;

/// Determines when the log is copied.
#[derive(Debug)]
pub(crate) struct CheckpointPolicy {
    /// Length of the log, in pages, above which it is copied.
    pages: i64,
    /// Number of long reads in progress.
    long_reads: AtomicUsize,
}

impl CheckpointPolicy {
    pub(crate) fn new(pages: u32) -> Arc<CheckpointPolicy> {
        Arc::new(CheckpointPolicy { pages: pages.into(), long_reads: AtomicUsize::new(0) })
    }
}

/// A long read in progress. Its connection must be closed before this value is dropped.
#[derive(Debug)]
pub(crate) struct LongRead {
    path: PathBuf,
    policy: Arc<CheckpointPolicy>,
    failed: Failed,
}

impl LongRead {
    pub(crate) fn begin(path: &Path, policy: &Arc<CheckpointPolicy>, failed: &Failed) -> LongRead {
        policy.long_reads.fetch_add(1, Ordering::AcqRel);
        LongRead { path: path.to_owned(), policy: policy.clone(), failed: failed.clone() }
    }

    /// Copies the log if it is longer than the configured length.
    fn make_up(&self) -> Result<(), OpenError> {
        let connection = connection::checkpointing(&self.path)?;
        if pages(&connection).map_err(|error| store_error(&error))? > self.policy.pages {
            checkpoint(&connection, &self.failed);
        }
        Ok(())
    }
}

impl Drop for LongRead {
    fn drop(&mut self) {
        if let Err(error) = self.make_up() {
            tracing::warn!(%error, "the write-ahead log was not copied after a long read; the writer will copy it");
        }
        self.policy.long_reads.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The write-ahead log as the writer sees it, and the thread that copies it.
pub(crate) struct Log {
    phase: Arc<AtomicU8>,
    policy: Arc<CheckpointPolicy>,
    start: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    batches: u32,
    failed: Failed,
}

impl Log {
    pub(crate) fn open(path: &Path, policy: Arc<CheckpointPolicy>, failed: Failed) -> Result<Log, OpenError> {
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
            reason: format!("cannot start the thread that copies the write-ahead log: {error}"),
        })?;
        let (start, thread) = (Some(start), Some(thread));
        Ok(Log { phase, policy, start, thread, batches: 0, failed })
    }

    /// Starts or finishes a copy if needed. The writer calls this between two batches.
    pub(crate) fn checkpoint_if_needed(&mut self, writer: &Connection) {
        let phase = self.phase.load(Ordering::Acquire);
        if phase == COPIED {
            self.finish(writer);
            return;
        }
        self.batches += 1;
        if self.batches < CHECK_EVERY_BATCHES {
            return;
        }
        self.batches = 0;
        let can_hurry = self.policy.long_reads.load(Ordering::Acquire) == 0;
        match pages(writer) {
            Ok(pages) if pages > MAX_GROWTH_FACTOR * self.policy.pages && can_hurry => self.finish(writer),
            Ok(pages) if pages > self.policy.pages && phase == IDLE => {
                self.phase.store(COPYING, Ordering::Release);
                if let Some(start) = &self.start {
                    let _ = start.try_send(());
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot read the length of the write-ahead log"),
        }
    }

    /// Copies the remaining pages. The next commit then restarts the log, if no reader uses it.
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
        tracing::warn!(%meaning, "cannot copy the write-ahead log into the database");
    }
}

/// Returns the number of pages in the log that are not in the database yet.
fn pages(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .query_row("pragma wal_checkpoint(noop)", [], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rusqlite::Connection;

    use super::{
        CHECK_EVERY_BATCHES, CheckpointPolicy, IDLE, Log, LongRead, MAX_GROWTH_FACTOR, Ordering, pages,
    };
    use crate::connection;
    use crate::error::Failed;

    /// Starts a reader, then commits until the log is so long that the writer would copy it itself.
    fn grown(path: &Path, writer: &Connection) -> Connection {
        let reader = connection::reading(path, 1024).unwrap();
        reader.execute_batch("begin; select count(*) from t").unwrap();
        for _ in 0..3 * CHECK_EVERY_BATCHES {
            writer.execute_batch("insert into t values (randomblob(5000))").unwrap();
        }
        assert!(pages(writer).unwrap() > MAX_GROWTH_FACTOR);
        reader
    }

    fn settle(log: &mut Log, writer: &Connection) {
        let until = Instant::now() + Duration::from_secs(20);
        while log.phase.load(Ordering::Acquire) != IDLE {
            assert!(Instant::now() < until, "the thread does not finish copying the log");
            log.checkpoint_if_needed(writer);
        }
    }

    /// Otherwise the first commit after a backup would wait until the writer itself has copied everything that was
    /// committed meanwhile.
    #[test]
    fn long_reader_copies_the_log_instead_of_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.sqlite");
        let writer = connection::writing(&path, 1024).unwrap();
        writer.execute_batch("create table t (x blob)").unwrap();
        let (policy, failed) = (CheckpointPolicy::new(1), Failed::default());

        let long_read = LongRead::begin(&path, &policy, &failed);
        drop(grown(&path, &writer));
        drop(long_read);
        assert_eq!((pages(&writer).unwrap(), policy.long_reads.load(Ordering::Acquire)), (0, 0));

        let mut log = Log::open(&path, policy.clone(), failed.clone()).unwrap();
        for hurries in [false, true] {
            let long_read = (!hurries).then(|| LongRead::begin(&path, &policy, &failed));
            let reader = grown(&path, &writer);
            drop(reader);
            log.batches = CHECK_EVERY_BATCHES;
            log.checkpoint_if_needed(&writer);
            let left_to_the_thread = log.phase.load(Ordering::Acquire) != IDLE;
            assert_eq!(left_to_the_thread, !hurries);
            settle(&mut log, &writer);
            assert_eq!(pages(&writer).unwrap(), 0);
            drop(long_read);
        }
    }
}
