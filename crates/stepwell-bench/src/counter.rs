//! The `counter` workload: 64 clients increment one hot key, or a thousand keys. The baseline in the same run is the
//! database itself with one increment per transaction. Ours also writes an audit row for each increment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use stepwell::Engine;
use stepwell::data::KeyList;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use crate::engines;
use crate::sample::{Alternating, Pairs, Slice, gather};
use crate::script::Random;
use crate::site::{Place, Site};

/// Number of concurrent clients.
const CLIENTS: usize = 64;
const NAMESPACE: &str = "counters";

/// Options of the `counter` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of keys to increment, comma-separated; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,1000")]
    keys: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.keys, measure, |keys, line| {
        let ratio = &line["ratio"];
        format!("{keys} keys: {} increments/s, {ratio} times one per transaction", line["per_s"])
    })
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    keys: usize,
    slices: usize,
    slice: Duration,
) -> Result<serde_json::Value, String> {
    let mut raw = Raw::open(runtime, site, keys)?;
    let place = site.place(runtime, "ours")?;
    let engine = runtime.block_on(async {
        let store = engines::open(&place).await?;
        let builder = Engine::builder(store).with(|options| options.max_runs = 0);
        builder.start().await.map_err(|error| error.to_string())
    })?;
    let mut pairs = Pairs::default();
    let mut count = 0;
    for number in 0..slices {
        let bare = raw.slice(runtime, number, slice)?;
        let ours = ours(runtime, &engine, keys, number, slice)?;
        count += ours.times_us.len() as u64;
        pairs.push(ours, bare);
    }
    let sum = runtime.block_on(sum(&engine))?;
    runtime.block_on(engines::close(engine));
    let mut line = pairs.line("counter");
    line["keys"] = keys.into();
    line["clients"] = CLIENTS.into();
    line["increments"] = count.into();
    line["sum"] = sum.into();
    if sum != count {
        return Err(format!("the sum is {sum} after {count} increments"));
    }
    Ok(line)
}

fn key(number: u64, keys: usize) -> String {
    format!("key-{:04}", number % keys as u64)
}

fn ours(
    runtime: &Runtime,
    engine: &Engine,
    keys: usize,
    number: usize,
    length: Duration,
) -> Result<Slice, String> {
    let kv = Arc::new(engine.kv(NAMESPACE));
    let tasks = (0..CLIENTS).map(|client| {
        let kv = kv.clone();
        async move {
            let mut random = Random::new((number * CLIENTS + client) as u64 + 1);
            let mut times = Vec::new();
            let begin = Instant::now();
            while begin.elapsed() < length {
                let key = key(random.next(), keys);
                let started = Instant::now();
                kv.increment(&key, 1).await.map_err(|error| error.to_string())?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}

/// Returns the sum of all counters.
async fn sum(engine: &Engine) -> Result<u64, String> {
    let (mut sum, mut cursor) = (0, None);
    loop {
        let list = KeyList { limit: Some(200), cursor, ..KeyList::default() };
        let page = engine.kv(NAMESPACE).list(list).await.map_err(|error| error.to_string())?;
        sum += page.items.iter().filter_map(|entry| entry.value.as_u64()).sum::<u64>();
        let Some(next) = page.next else { return Ok(sum) };
        cursor = Some(next);
    }
}

/// The baseline: one increment per transaction. SQLite has one connection, PostgreSQL one for each client.
enum Raw {
    Sqlite { connection: Connection, keys: usize },
    Postgres { clients: Vec<Arc<tokio_postgres::Client>>, keys: usize },
}

const ADD: &str = "update bare_cells set value = value + 1, revision = revision + 1 where key = ";

impl Raw {
    fn open(runtime: &Runtime, site: &Site, keys: usize) -> Result<Raw, String> {
        match site.place(runtime, "bare")? {
            Place::Sqlite(path) => {
                let open = || -> rusqlite::Result<Connection> {
                    let connection = Connection::open(&path)?;
                    connection.execute_batch(
                        "pragma page_size = 4096; pragma journal_mode = wal; pragma synchronous = full;
                         pragma wal_autocheckpoint = 4000; pragma cache_size = -8192;
                         create table bare_cells (key text not null primary key, value integer not null,
                                                  revision integer not null);",
                    )?;
                    let mut insert = connection.prepare("insert into bare_cells values (?1, 0, 0)")?;
                    (0..keys as u64).try_for_each(|number| insert.execute([key(number, keys)]).map(drop))?;
                    drop(insert);
                    Ok(connection)
                };
                Ok(Raw::Sqlite { connection: open().map_err(|error| error.to_string())?, keys })
            }
            Place::Postgres(test_schema) => {
                let clients = runtime.block_on(connected(test_schema.admin(), keys))?;
                Ok(Raw::Postgres { clients, keys })
            }
        }
    }

    fn slice(&mut self, runtime: &Runtime, number: usize, length: Duration) -> Result<Slice, String> {
        match self {
            Raw::Sqlite { connection, keys } => {
                alone(connection, *keys, number, length).map_err(|error| error.to_string())
            }
            Raw::Postgres { clients, keys } => {
                let keys = *keys;
                let tasks = clients.clone().into_iter().enumerate().map(|(index, client)| async move {
                    let add = client.prepare(&format!("{ADD}$1")).await.map_err(|error| error.to_string())?;
                    let mut random = Random::new((number * CLIENTS + index) as u64 + 1);
                    let mut times = Vec::new();
                    let begin = Instant::now();
                    while begin.elapsed() < length {
                        let key = key(random.next(), keys);
                        let started = Instant::now();
                        client.execute(&add, &[&key]).await.map_err(|error| error.to_string())?;
                        times.push(started.elapsed().as_secs_f64() * 1e6);
                    }
                    Ok(times)
                });
                gather(runtime, tasks)
            }
        }
    }
}

fn alone(connection: &Connection, keys: usize, number: usize, length: Duration) -> rusqlite::Result<Slice> {
    let mut begin_it = connection.prepare("begin immediate")?;
    let mut commit = connection.prepare("commit")?;
    let mut add = connection.prepare(&format!("{ADD}?1"))?;
    let mut random = Random::new(number as u64 + 1);
    let mut slice = Slice::default();
    let begin = Instant::now();
    while begin.elapsed() < length {
        let key = key(random.next(), keys);
        let started = Instant::now();
        begin_it.execute([])?;
        add.execute([key])?;
        commit.execute([])?;
        slice.times_us.push(started.elapsed().as_secs_f64() * 1e6);
    }
    slice.elapsed = begin.elapsed();
    Ok(slice)
}

async fn connected(config: &str, keys: usize) -> Result<Vec<Arc<tokio_postgres::Client>>, String> {
    let failed = |error: tokio_postgres::Error| error.to_string();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (client, driver) = tokio_postgres::connect(config, NoTls).await.map_err(failed)?;
        tokio::spawn(driver);
        clients.push(Arc::new(client));
    }
    let table = "create table bare_cells (key text not null primary key, value bigint not null, revision bigint not null)
                 with (fillfactor = 70)";
    clients[0].batch_execute(table).await.map_err(failed)?;
    let names: Vec<String> = (0..keys as u64).map(|number| key(number, keys)).collect();
    let fill = "insert into bare_cells select key, 0, 0 from unnest($1::text[]) as u (key)";
    clients[0].execute(fill, &[&names]).await.map_err(failed)?;
    Ok(clients)
}
