//! The bare loop: what SQLite itself can do with the same rows, written by hand without any promise.
//!
//! As many producers, one writer thread with the same cap on its batches, held prepared statements; a narrow row updated
//! by its key and a checkpoint inserted with the full state. No compare-and-set, no history, no deltas.

use std::path::Path;
use std::thread::JoinHandle;

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

const BATCH: usize = 256;

/// A row to be updated and a checkpoint to be inserted.
pub(crate) struct Work {
    pub(crate) run: [u8; 16],
    pub(crate) version: u64,
    pub(crate) state: Bytes,
    pub(crate) done: oneshot::Sender<()>,
}

/// The bare loop's database.
pub(crate) struct Bare {
    send: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Bare {
    pub(crate) fn open(path: &Path) -> Result<Bare, String> {
        let connection = Connection::open(path).and_then(prepare).map_err(|error| error.to_string())?;
        let (send, receive) = mpsc::channel(4_096);
        let thread =
            std::thread::spawn(move || write(&connection, receive).map_err(|error| error.to_string()));
        Ok(Bare { send: Some(send), thread: Some(thread) })
    }

    pub(crate) fn sender(&self) -> Option<mpsc::Sender<Work>> {
        self.send.clone()
    }

    pub(crate) fn close(mut self) -> Result<(), String> {
        self.send = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err("the bare writer panicked".to_owned()),
            None => Ok(()),
        }
    }
}

fn prepare(connection: Connection) -> rusqlite::Result<Connection> {
    connection.execute_batch(
        "pragma page_size = 4096; pragma journal_mode = wal; pragma synchronous = full;
         pragma wal_autocheckpoint = 4000; pragma cache_size = -8192;
         create table runs (id blob not null, version integer not null, updated_at integer not null);
         create unique index runs_by_id on runs (id);
         create table checkpoints (run blob not null, version integer not null, state blob not null);
         create unique index checkpoints_by_version on checkpoints (run, version);",
    )?;
    Ok(connection)
}

fn write(connection: &Connection, mut receive: mpsc::Receiver<Work>) -> rusqlite::Result<()> {
    let mut begin = connection.prepare("begin immediate")?;
    let mut commit = connection.prepare("commit")?;
    let mut create = connection.prepare("insert into runs (id, version, updated_at) values (?1, ?2, ?3)")?;
    let mut update = connection.prepare("update runs set version = ?2, updated_at = ?3 where id = ?1")?;
    let mut insert =
        connection.prepare("insert into checkpoints (run, version, state) values (?1, ?2, ?3)")?;
    let mut batch = Vec::with_capacity(BATCH);
    while receive.blocking_recv_many(&mut batch, BATCH) > 0 {
        begin.execute([])?;
        for work in &batch {
            let version = work.version as i64;
            let row = if version == 0 { &mut create } else { &mut update };
            row.execute(params![work.run, version, version])?;
            insert.execute(params![work.run, version, &work.state[..]])?;
        }
        commit.execute([])?;
        for work in batch.drain(..) {
            let _ = work.done.send(());
        }
    }
    Ok(())
}
