//! The bare loop: the rate that the database itself reaches with the same rows, as a baseline without guarantees.
//!
//! It has the same number of producers and the same batch size as the store, and prepared statements. SQLite has one
//! writer thread, PostgreSQL two connections. Each commit updates a narrow row by its key and inserts a checkpoint with
//! the full state. There is no compare-and-set, no history and no delta encoding.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::sample::{Slice, gather};
use crate::script::State;
use crate::site::{Place, Site};

const BATCH: usize = 256;

/// One commit: a row to update and a checkpoint to insert.
struct Work {
    run: [u8; 16],
    version: u64,
    state: Bytes,
    done: oneshot::Sender<()>,
}

/// The database of the bare loop and its writers.
pub(crate) struct Bare {
    send: Option<mpsc::Sender<Work>>,
    writers: Writers,
}

enum Writers {
    Thread(JoinHandle<Result<(), String>>),
    Tasks(Vec<tokio::task::JoinHandle<Result<(), String>>>),
}

/// Number of connections that write on PostgreSQL.
const CONNECTIONS: usize = 2;

impl Bare {
    pub(crate) fn open(runtime: &Runtime, site: &Site) -> Result<Bare, String> {
        let (send, receive) = mpsc::channel(4_096);
        let writers = match site.place(runtime, "bare")? {
            Place::Sqlite(path) => Writers::Thread(thread(&path, receive)?),
            Place::Postgres(test_schema) => {
                runtime.block_on(prepare_server(test_schema.admin()))?;
                let receive = Arc::new(Mutex::new(receive));
                let task = |_| runtime.spawn(connected(test_schema.admin().to_owned(), receive.clone()));
                Writers::Tasks((0..CONNECTIONS).map(task).collect())
            }
        };
        Ok(Bare { send: Some(send), writers })
    }

    /// Runs `producers` producers for `length`, each committing one state after the other. After `run_length` commits a
    /// producer starts another run.
    pub(crate) fn slice(
        &self,
        runtime: &Runtime,
        number: usize,
        producers: usize,
        length: Duration,
        run_length: u64,
    ) -> Result<Slice, String> {
        let sender = self.send.clone().ok_or("the bare writer has ended")?;
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
                    sender.send(work).await.map_err(|_| "the bare writer has ended")?;
                    answer.await.map_err(|_| "the bare writer has ended")?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    state.step();
                }
                Ok(times)
            }
        });
        gather(runtime, tasks)
    }

    pub(crate) fn close(mut self, runtime: &Runtime) -> Result<(), String> {
        self.send = None;
        match self.writers {
            Writers::Thread(thread) => thread.join().map_err(|_| "the bare writer panicked")?,
            Writers::Tasks(tasks) => {
                for task in tasks {
                    runtime.block_on(task).map_err(|error| error.to_string())??;
                }
                Ok(())
            }
        }
    }
}

/// Returns the id of the run that a producer works on. Each slice gets new ids, close to each other like those of the
/// engine.
pub(crate) fn run_of(slice: usize, producer: usize, runs: u64) -> Uuid {
    Uuid::from_u128(
        ((slice as u128 + 1) << 96) | (u128::from(runs) << 72) | ((producer as u128 + 1) << 48) | 0x5eed,
    )
}

pub(crate) fn seed(slice: usize, producer: usize) -> u64 {
    (slice as u64) << 32 | producer as u64
}

fn thread(path: &Path, receive: mpsc::Receiver<Work>) -> Result<JoinHandle<Result<(), String>>, String> {
    let connection = Connection::open(path).and_then(prepare).map_err(|error| error.to_string())?;
    Ok(std::thread::spawn(move || write(&connection, receive).map_err(|error| error.to_string())))
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

/// Creates the tables of the bare loop on PostgreSQL and analyses them with some rows: without statistics an update
/// that joins scans the whole table.
async fn prepare_server(connection: &str) -> Result<(), String> {
    let client = connect(connection).await?;
    let tables = "create table bare_runs (id uuid not null primary key, version bigint not null, updated_at bigint not null)
            with (fillfactor = 70);
        create table bare_checkpoints (run uuid not null, version bigint not null, state bytea not null,
            primary key (run, version));
        insert into bare_runs select gen_random_uuid(), 0, 0 from generate_series(1, 20000);
        analyze bare_runs;";
    client.batch_execute(tables).await.map_err(|error| error.to_string())
}

async fn connect(connection: &str) -> Result<Client, String> {
    let (client, driver) =
        tokio_postgres::connect(connection, NoTls).await.map_err(|error| error.to_string())?;
    tokio::spawn(driver);
    Ok(client)
}

/// Runs one connection: commits everything that is queued in one transaction, pipelined in one write.
async fn connected(connection: String, receive: Arc<Mutex<mpsc::Receiver<Work>>>) -> Result<(), String> {
    let failed = |error: tokio_postgres::Error| error.to_string();
    let client = connect(&connection).await?;
    let create =
        "insert into bare_runs (id, version, updated_at) select * from unnest($1::uuid[], $2::bigint[], $2)";
    let update = "update bare_runs r set version = u.version, updated_at = u.version
                    from unnest($1::uuid[], $2::bigint[]) as u (id, version) where r.id = u.id";
    let insert = "insert into bare_checkpoints (run, version, state)
                  select * from unnest($1::uuid[], $2::bigint[], $3::bytea[])";
    let create = client.prepare(create).await.map_err(failed)?;
    let update = client.prepare(update).await.map_err(failed)?;
    let insert = client.prepare(insert).await.map_err(failed)?;
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        if receive.lock().await.recv_many(&mut batch, BATCH).await == 0 {
            return Ok(());
        }
        let columns = |of: &dyn Fn(&Work) -> bool| -> (Vec<Uuid>, Vec<i64>) {
            let chosen = batch.iter().filter(|work| of(work));
            chosen.map(|work| (Uuid::from_bytes(work.run), work.version as i64)).unzip()
        };
        let (new, zeros) = columns(&|work| work.version == 0);
        let (old, versions) = columns(&|work| work.version > 0);
        let (runs, numbers) = columns(&|_| true);
        let states: Vec<&[u8]> = batch.iter().map(|work| &work.state[..]).collect();
        let created =
            async { if new.is_empty() { Ok(0) } else { client.execute(&create, &[&new, &zeros]).await } };
        let updated =
            async { if old.is_empty() { Ok(0) } else { client.execute(&update, &[&old, &versions]).await } };
        let rows: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&runs, &numbers, &states];
        let (begun, created, updated, inserted, ended) = tokio::join!(
            client.batch_execute("begin"),
            created,
            updated,
            client.execute(&insert, &rows),
            client.batch_execute("commit")
        );
        begun
            .and(created.map(drop))
            .and(updated.map(drop))
            .and(inserted.map(drop))
            .and(ended)
            .map_err(failed)?;
        for work in batch.drain(..) {
            let _ = work.done.send(());
        }
    }
}
