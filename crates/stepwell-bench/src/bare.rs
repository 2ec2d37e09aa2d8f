//! The bare loop: what SQLite itself can do with the same rows, written by hand without any promise.
//!
//! As many producers, one writer thread with the same cap on its batches, held prepared statements; a narrow row updated
//! by its key and a checkpoint inserted with the full state. No compare-and-set, no history, no deltas.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::sample::{Slice, gather};
use crate::script::State;

const BATCH: usize = 256;

/// A row to be updated and a checkpoint to be inserted.
struct Work {
    run: [u8; 16],
    version: u64,
    state: Bytes,
    done: oneshot::Sender<()>,
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

    /// As many producers as asked for, each of which commits one state after the other; after `run_length` commits
    /// a producer begins another run.
    pub(crate) fn slice(
        &self,
        runtime: &Runtime,
        number: usize,
        producers: usize,
        length: Duration,
        run_length: u64,
    ) -> Result<Slice, String> {
        let sender = self.send.clone().ok_or("the bare writer is gone")?;
        let tasks = (0..producers).map(|producer| {
            let sender = sender.clone();
            async move {
                let mut runs = 0;
                let mut state = State::new(seed(number, producer));
                let mut times = Vec::new();
                let begin = Instant::now();
                while begin.elapsed() < length {
                    if state.version >= run_length {
                        runs += 1;
                        state = State::new(seed(number, producer).wrapping_add(runs << 48));
                    }
                    let run = run_of(number, producer, runs).into_bytes();
                    let (done, answer) = oneshot::channel();
                    let work = Work { run, version: state.version, state: state.bytes(), done };
                    let started = Instant::now();
                    sender.send(work).await.map_err(|_| "the bare writer is gone")?;
                    answer.await.map_err(|_| "the bare writer is gone")?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    state.step();
                }
                Ok(times)
            }
        });
        gather(runtime, tasks)
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

/// Which run a producer works on: new ones in each slice, near each other as the engine's ids are.
pub(crate) fn run_of(slice: usize, producer: usize, runs: u64) -> Uuid {
    Uuid::from_u128(
        ((slice as u128 + 1) << 96) | (u128::from(runs) << 72) | ((producer as u128 + 1) << 48) | 0x5eed,
    )
}

pub(crate) fn seed(slice: usize, producer: usize) -> u64 {
    (slice as u64) << 32 | producer as u64
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
