//! The only writer: puts all queued jobs into one transaction with one fsync, and answers them after it.
//!
//! Start reading with [`Writer::batch`]. A refused commit has written nothing, so it does not affect the others in its
//! batch. A caller's own function that fails rolls back only its own part (`own.rs`). If SQLite itself reports an
//! error, the batch is rolled back and each job is retried in its own transaction, so that only the failing job fails.
//!
//! If the `commit` statement fails, no job is reported as done. If its fsync fails, the outcome is unknown and the
//! store closes itself: after a failed fsync a later success proves nothing.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use rusqlite::Connection;
use stepwell_store::{BatchMeter, HintSender, StoreError};
use tokio::sync::mpsc;

use crate::error::{Failed, OpenError, note, store_error};
use crate::guard::Guard;
use crate::jobs::{Failure, Job};
use crate::statements::Session;
use crate::store::Options;
use crate::wal::{CheckpointPolicy, Log};

/// The sending end of the writer's queue.
pub(crate) type Jobs = mpsc::Sender<Box<dyn Job>>;

/// The meter that counts batches; empty until one is registered.
pub(crate) type Meter = Arc<OnceLock<BatchMeter>>;

/// Starts the writer thread on a connection. Returns its queue and its handle.
pub(crate) fn start(
    path: &Path,
    mut connection: Connection,
    options: &Options,
    hints: HintSender,
    (policy, failed, meter): (Arc<CheckpointPolicy>, Failed, Meter),
) -> Result<(Jobs, JoinHandle<()>), OpenError> {
    let log = Log::open(path, policy, failed.clone())?;
    let guard = Guard::install(&mut connection).map_err(|error| store_error(&error))?;
    let batch = options.batch.max(1);
    let (send, receive) = mpsc::channel(options.queue.max(1));
    let thread = std::thread::Builder::new().name("stepwell-writer".to_owned()).spawn(move || {
        let session = Session::new(&connection, guard);
        match session {
            Ok(session) => Writer { session, log, hints, failed, batch, meter }.run(receive),
            Err(error) => drop(failed.set(error.to_string())),
        }
    });
    let thread = thread.map_err(|error| OpenError::File {
        path: path.display().to_string(),
        reason: format!("cannot start the writer thread: {error}"),
    })?;
    Ok((send, thread))
}

struct Writer<'c> {
    session: Session<'c>,
    log: Log,
    hints: HintSender,
    failed: Failed,
    batch: usize,
    meter: Meter,
}

impl Writer<'_> {
    fn run(mut self, mut queue: mpsc::Receiver<Box<dyn Job>>) {
        let mut waiting = Vec::with_capacity(self.batch);
        while queue.blocking_recv_many(&mut waiting, self.batch) > 0 {
            let jobs = std::mem::take(&mut waiting);
            self.batch(jobs);
            self.log.checkpoint_if_needed(self.session.connection);
        }
    }

    /// Applies all jobs in one transaction. If one of them cannot be applied, retries each in its own transaction.
    fn batch(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        if let Some(reason) = self.failed.get() {
            let failure = Failure::Store(StoreError::Fatal(reason.clone()));
            jobs.into_iter().for_each(|job| job.failed(&failure));
            return;
        }
        let began = self.meter.get().map(|_| Instant::now());
        match self.apply(&mut jobs) {
            Ok(()) => self.commit(jobs, began),
            Err(error) => {
                self.roll_back();
                let failure = Failure::Store(note(&self.failed, &error));
                self.one_by_one(jobs, &failure);
            }
        }
    }

    /// Retries each job in its own transaction, so that one failing job does not fail the others. A batch of one job
    /// has failed already.
    fn one_by_one(&mut self, jobs: Vec<Box<dyn Job>>, failure: &Failure) {
        if let [_] = jobs[..] {
            jobs.into_iter().for_each(|job| job.failed(failure));
        } else {
            jobs.into_iter().for_each(|job| self.batch(vec![job]));
        }
    }

    fn apply(&mut self, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
        self.session.cell_cache.clear();
        self.session.begin.execute([])?;
        jobs.iter_mut().try_for_each(|job| job.apply(&mut self.session))?;
        self.session.flush()
    }

    fn commit(&mut self, jobs: Vec<Box<dyn Job>>, began: Option<Instant>) {
        let applied = began.map(|_| Instant::now());
        let Err(error) = self.session.commit.execute([]) else {
            if let (Some(meter), Some(began), Some(applied)) = (self.meter.get(), began, applied) {
                meter.sync(applied.elapsed());
                meter.batch(jobs.len(), began.elapsed());
            }
            jobs.into_iter().for_each(|job| job.done(&self.hints));
            return;
        };
        self.roll_back();
        let failure = match note(&self.failed, &error) {
            StoreError::Fatal(why) => Failure::Unknown(why),
            // Only a table of the caller can have a deferred constraint, which is checked here.
            StoreError::Invalid(why) => {
                return self.one_by_one(jobs, &Failure::Store(StoreError::Invalid(why)));
            }
            other => Failure::Store(other),
        };
        jobs.into_iter().for_each(|job| job.failed(&failure));
    }

    fn roll_back(&self) {
        if self.session.connection.is_autocommit() {
            return;
        }
        if let Err(error) = self.session.connection.execute_batch("rollback") {
            let _ = self.failed.set(format!("cannot roll back a transaction: {error}"));
        }
    }
}
