//! The `commit` workload: concurrent small commits, ours and the bare loop's in alternating slices.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use stepwell_core::{RunId, Timestamp};
use stepwell_sqlite::SqliteStore;
use stepwell_store::{Store, TenantScope};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::StoreKind;
use crate::bare::{Bare, Work};
use crate::sample::{Slice, median, quantile};
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, std::num::NonZero::get))
        .enable_time()
        .build()
        .map_err(|error| error.to_string())?;
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
    let (mut ours_all, mut bare_all, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..slices {
        let bare_slice = bare_slice(runtime, &bare, number, writers, slice)?;
        let ours_slice = ours_slice(runtime, &ours, number, writers, slice)?;
        ratios.push(ours_slice.per_s() / bare_slice.per_s());
        ours_all.push(ours_slice);
        bare_all.push(bare_slice);
    }
    bare.close()?;
    let times =
        |slices: &[Slice]| slices.iter().flat_map(|slice| slice.times_us.iter().copied()).collect::<Vec<_>>();
    let (mut ours_us, mut bare_us) = (times(&ours_all), times(&bare_all));
    let per_s = |slices: &[Slice]| median(slices.iter().map(Slice::per_s).collect());
    let round = |value: f64| (value * 1_000.0).round() / 1_000.0;
    Ok(json!({
        "workload": "commit",
        "store": "sqlite",
        "writers": writers,
        "per_s": per_s(&ours_all).round(),
        "raw_per_s": per_s(&bare_all).round(),
        "ratio": round(median(ratios)),
        "p50_us": round(quantile(&mut ours_us, 0.5)),
        "p99_us": round(quantile(&mut ours_us, 0.99)),
        "raw_p50_us": round(quantile(&mut bare_us, 0.5)),
        "raw_p99_us": round(quantile(&mut bare_us, 0.99)),
        "commits": ours_us.len(),
        "slices": slices,
    }))
}

fn open(path: &Path) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(SqliteStore::open(path).map_err(|error| error.to_string())?))
}

/// Which run a writer works on in a slice: new ones in each slice, near each other as the engine's ids are.
fn run_of(number: usize, writer: usize) -> Uuid {
    Uuid::from_u128(((number as u128 + 1) << 96) | ((writer as u128 + 1) << 64) | 0x5eed)
}

fn seed(number: usize, writer: usize) -> u64 {
    (number as u64) << 32 | writer as u64
}

fn bare_slice(
    runtime: &Runtime,
    bare: &Bare,
    number: usize,
    writers: usize,
    length: Duration,
) -> Result<Slice, String> {
    let sender = bare.sender().ok_or("the bare writer is gone")?;
    let tasks = (0..writers).map(|writer| {
        let sender = sender.clone();
        let run = run_of(number, writer).into_bytes();
        async move {
            let mut state = State::new(seed(number, writer));
            let mut times = Vec::new();
            let begin = Instant::now();
            while begin.elapsed() < length {
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

fn ours_slice(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    number: usize,
    writers: usize,
    length: Duration,
) -> Result<Slice, String> {
    let tasks = (0..writers).map(|writer| {
        let store = store.clone();
        let run = RunId::new(run_of(number, writer));
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

/// Runs the writers side by side and puts their times together.
fn gather<F>(runtime: &Runtime, tasks: impl Iterator<Item = F>) -> Result<Slice, String>
where
    F: Future<Output = Result<Vec<f64>, String>> + Send + 'static,
{
    let begin = Instant::now();
    let handles: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
    let mut slice = Slice::default();
    for handle in handles {
        let times = runtime.block_on(handle).map_err(|error| error.to_string())??;
        slice.times_us.extend(times);
    }
    slice.elapsed = begin.elapsed();
    Ok(slice)
}
