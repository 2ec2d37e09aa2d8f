//! Work on the database that takes long: a thread for each piece, so that neither the runtime nor a short read waits.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use stepwell_store::StoreError;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::{Failed, OpenError};
use crate::source::Source;
use crate::wal::{LongRead, Pace};

/// Said to work that nobody waits for any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_said(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error for whoever was told.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.is_said() {
            return Err(StoreError::Unavailable("nobody waits for the answer any more".to_owned()));
        }
        Ok(())
    }
}

/// Says it when whoever waits goes away.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Where such work is done on an open store.
#[derive(Debug)]
pub(crate) struct Aside {
    path: PathBuf,
    pace: Arc<Pace>,
    failed: Failed,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Aside {
    pub(crate) fn new(path: &Path, pace: Arc<Pace>, failed: Failed) -> Aside {
        Aside { path: path.to_owned(), pace, failed, threads: Mutex::default() }
    }

    /// Runs a piece of work on a thread and a connection of its own.
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
        let (path, pace, failed) = (self.path.clone(), self.pace.clone(), self.failed.clone());
        let thread = std::thread::Builder::new().name("stepwell-aside".to_owned()).spawn(move || {
            let source = connection::reading(&path, CACHE_KIB)
                .map(|connection| Source::in_use(connection, &path, LongRead::begin(&path, &pace, &failed)));
            let _ = reply.send(source.map_err(E::from).and_then(|source| work(source, &stop)));
        });
        let thread = thread.map_err(|error| OpenError::File {
            path: self.path.display().to_string(),
            reason: format!("a thread for it cannot be started: {error}"),
        })?;
        self.keep(thread);
        let gone = || StoreError::Unavailable("the thread that worked on it has panicked".to_owned());
        answer.await.map_err(|_| E::from(gone().into()))?
    }

    fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits for what is under way: nobody waits for its answer any more, so that it stops.
    pub(crate) fn close(&mut self) {
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

/// Every page is read once.
const CACHE_KIB: u32 = 1024;
