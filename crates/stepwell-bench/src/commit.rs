//! The `commit` workload: concurrent small commits, ours and the bare loop's in alternating slices.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwell_core::{RunId, Timestamp};
use stepwell_sqlite::SqliteStore;
use stepwell_store::{Store, TenantScope};
use tokio::runtime::Runtime;

use crate::StoreKind;
use crate::bare::{Bare, run_of, seed};
use crate::sample::{Pairs, Slice, gather};
use crate::script::{Script, State};

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to measure.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Concurrent writers; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    writers: Vec<usize>,
    /// Alternating slices of each kind; at least five, because a single pair lies by up to 40 %.
    #[arg(long, default_value_t = 7)]
    slices: usize,
    /// Length of a slice in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    slice_ms: u64,
    /// A quick run that shows that everything works, not how fast it is.
    #[arg(long)]
    short: bool,
    /// JSON lines only; without it a sentence for each measurement is written to standard error too.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let StoreKind::Sqlite = options.store;
    let (slices, slice) = if options.short {
        (1, Duration::from_millis(150))
    } else {
        (options.slices.max(1), Duration::from_millis(options.slice_ms))
    };
    let runtime = crate::runtime()?;
    for &writers in &options.writers {
        let line = measure(&runtime, writers, slices, slice)?;
        if !options.json {
            eprintln!("{writers} writers: {} commits/s, {} of the bare loop", line["per_s"], line["ratio"]);
        }
        println!("{line}");
    }
    Ok(())
}

fn measure(
    runtime: &Runtime,
    writers: usize,
    slices: usize,
    slice: Duration,
) -> Result<serde_json::Value, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let bare = Bare::open(&folder.path().join("bare.sqlite"))?;
    let ours = open(&folder.path().join("ours.sqlite"))?;
    let mut pairs = Pairs::default();
    for number in 0..slices {
        let raw = bare.slice(runtime, number, writers, slice, u64::MAX)?;
        pairs.push(ours_slice(runtime, &ours, number, writers, slice)?, raw);
    }
    bare.close()?;
    let mut line = pairs.line("commit");
    line["writers"] = writers.into();
    Ok(line)
}

fn open(path: &Path) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(SqliteStore::open(path).map_err(|error| error.to_string())?))
}

fn ours_slice(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    number: usize,
    writers: usize,
    length: Duration,
) -> Result<Slice, String> {
    let tasks = (0..writers).map(|writer| {
        let store = store.clone();
        let run = RunId::new(run_of(number, writer, 0));
        async move {
            let scope = TenantScope::single();
            let now = Timestamp::from_millis(1_700_000_000_000);
            let (mut script, mut state) =
                (Script::new(seed(number, writer)), State::new(seed(number, writer)));
            let mut times = Vec::new();
            let mut head = None;
            let begin = Instant::now();
            while begin.elapsed() < length {
                let commit = match head.take() {
                    None => script.create(run, &state, now),
                    Some(head) => script.step(head, &state, now),
                };
                let started = Instant::now();
                let committed = store.commit(scope, commit).await.map_err(|error| error.to_string())?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
                head = committed.head.or_else(|| committed.created.into_iter().next());
                state.step();
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}
