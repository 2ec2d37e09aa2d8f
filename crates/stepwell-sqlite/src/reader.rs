//! A few reader threads, each with its own connection. A read sees one consistent state of the database.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use stepwell_store::StoreError;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::{OpenError, store_error};

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// The reader threads of a database, and their queue.
#[derive(Debug)]
pub(crate) struct Readers {
    send: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn open(path: &Path, count: usize, cache_kib: u32) -> Result<Readers, OpenError> {
        let (send, receive) = channel::<Job>();
        let receive = Arc::new(Mutex::new(receive));
        let mut threads = Vec::new();
        for _ in 0..count.max(1) {
            let connection = connection::reading(path, cache_kib)?;
            let receive = receive.clone();
            let thread = std::thread::Builder::new().name("stepwell-reader".to_owned());
            let thread =
                thread.spawn(move || work(&connection, &receive)).map_err(|error| OpenError::File {
                    path: path.display().to_string(),
                    reason: format!("cannot start a reader thread: {error}"),
                })?;
            threads.push(thread);
        }
        Ok(Readers { send: Some(send), threads })
    }

    /// Waits for the running reads and closes the connections.
    pub(crate) fn close(&mut self) {
        self.send = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Runs a read in one transaction on the next free reader.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("the database is closed".to_owned());
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = in_transaction(connection, read).map_err(StoreError::from);
            let _ = reply.send(result);
        });
        self.send.as_ref().ok_or_else(closed)?.send(job).map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

fn work(connection: &Connection, receive: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held only while waiting for a job, not while running it.
        let job = receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(connection),
            Err(_) => return,
        }
    }
}

fn in_transaction<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    // A deferred transaction that only reads: dropping it ends it without a commit.
    let transaction = connection.unchecked_transaction()?;
    read(&transaction)
}

/// The reason that a read has no result.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// SQLite reported an error.
    Sql(rusqlite::Error),
    /// The stored data is unreadable, or the query is invalid.
    Store(StoreError),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        ReadError::Sql(error)
    }
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        ReadError::Store(error)
    }
}

impl From<stepwell_store::delta::Unreadable> for ReadError {
    fn from(error: stepwell_store::delta::Unreadable) -> Self {
        ReadError::Store(error.into())
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Sql(error) => store_error(&error),
            ReadError::Store(error) => error,
        }
    }
}
