//! Keeps the write-ahead log short without making a commit wait for it.
//!
//! A thread of its own copies the log into the database while the writer goes on. What came meanwhile is little; the
//! writer copies that itself between two batches, so that the log can begin again at its start. What goes wrong is tried
//! again, but for an fsync that failed: that closes the store, here as after a commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::connection;
use crate::error::{Failed, OpenError, note};

/// So many times its length the log may have before the writer does not wait for the other thread any more.
const PATIENCE: i64 = 8;
/// Batches between two looks at the log.
const LOOK_EVERY: u32 = 32;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;

/// The writer's side.
pub(crate) struct Log {
    phase: Arc<AtomicU8>,
    start: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Pages from which on the log is emptied.
    pages: i64,
    batches: u32,
    failed: Failed,
}

impl Log {
    pub(crate) fn open(path: &Path, pages: u32, failed: Failed) -> Result<Log, OpenError> {
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
        Ok(Log { phase, start: Some(start), thread: Some(thread), pages: pages.into(), batches: 0, failed })
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
        match pages(writer) {
            Ok(pages) if pages > PATIENCE * self.pages => self.finish(writer),
            Ok(pages) if pages > self.pages && phase == IDLE => {
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
