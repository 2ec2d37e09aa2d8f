//! Runs long work on the database, such as a backup, on a thread for each task. Neither the runtime nor short reads
//! wait for it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use stepwell_store::StoreError;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::{Failed, OpenError};
use crate::source::Source;
use crate::wal::{CheckpointPolicy, LongRead};

/// A flag that cancels work whose caller no longer waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if the work is cancelled.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.is_cancelled() {
            return Err(StoreError::Unavailable("cancelled: the caller no longer waits".to_owned()));
        }
        Ok(())
    }
}

/// Cancels the work when the caller's future is dropped.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// The long work of an open store, and its threads.
#[derive(Debug)]
pub(crate) struct BackgroundJobs {
    path: PathBuf,
    policy: Arc<CheckpointPolicy>,
    failed: Failed,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl BackgroundJobs {
    pub(crate) fn new(path: &Path, policy: Arc<CheckpointPolicy>, failed: Failed) -> BackgroundJobs {
        BackgroundJobs { path: path.to_owned(), policy, failed, threads: Mutex::default() }
    }

    /// Runs `work` on a new thread with a new read-only connection. Dropping the future cancels the work.
    pub(crate) async fn run<T, E>(
        &self,
        work: impl FnOnce(Source, &Stop) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<OpenError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let stop = Stop::default();
        let _stop_on_drop = StopOnDrop(stop.clone());
        let (path, policy, failed) = (self.path.clone(), self.policy.clone(), self.failed.clone());
        let thread = std::thread::Builder::new().name("stepwell-long".to_owned()).spawn(move || {
            let source = connection::reading(&path, CACHE_KIB).map(|connection| {
                Source::in_use(connection, &path, LongRead::begin(&path, &policy, &failed))
            });
            let _ = reply.send(source.map_err(E::from).and_then(|source| work(source, &stop)));
        });
        let thread = thread.map_err(|error| OpenError::File {
            path: self.path.display().to_string(),
            reason: format!("cannot start a background thread: {error}"),
        })?;
        self.keep(thread);
        let gone = || StoreError::Unavailable("the background thread panicked".to_owned());
        answer.await.map_err(|_| E::from(gone().into()))?
    }

    fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits until all work has stopped. No future is left when the store is closed, so all work is cancelled.
    pub(crate) fn close(&mut self) {
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

/// Page cache in KiB. It is small because each page is read only once.
const CACHE_KIB: u32 = 1024;
