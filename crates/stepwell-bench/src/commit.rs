//! The `commit` workload: many concurrent small commits through the store, in slices that alternate with the bare loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwell_core::{RunId, Timestamp};
use stepwell_store::{Store, TenantScope};
use tokio::runtime::Runtime;

use crate::bare::{Bare, run_of, seed};
use crate::engines;
use crate::sample::{Alternating, Pairs, Slice, gather};
use crate::script::{Script, State};
use crate::site::Site;

/// Options of the `commit` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of concurrent writers, comma-separated; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    writers: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.writers, measure, |writers, line| {
        format!("{writers} writers: {} commits/s, {} times the bare loop", line["per_s"], line["ratio"])
    })
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    writers: usize,
    slices: usize,
    slice: Duration,
) -> Result<serde_json::Value, String> {
    let bare = Bare::open(runtime, site)?;
    let place = site.place(runtime, "ours")?;
    let ours = runtime.block_on(engines::open(&place))?;
    let mut pairs = Pairs::default();
    for number in 0..slices {
        let raw = bare.slice(runtime, number, writers, slice, u64::MAX)?;
        pairs.push(ours_slice(runtime, &ours, number, writers, slice)?, raw);
    }
    bare.close(runtime)?;
    let mut line = pairs.line("commit");
    line["writers"] = writers.into();
    Ok(line)
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
