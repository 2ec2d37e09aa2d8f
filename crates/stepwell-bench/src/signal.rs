//! The `signal` workload: signals runs that wait for it and then complete, in slices that alternate with the bare loop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::{Definition, Spec};
use stepwell::{Engine, Signal, Signalled, Start};
use tokio::runtime::Runtime;

use crate::bare::Bare;
use crate::engines;
use crate::machine::resident_mb;
use crate::sample::{Alternating, Pairs, Slice, gather};
use crate::site::{Place, Site};
use crate::ten_step::{STEPS, State};

/// Options of the `signal` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of concurrent runs, comma-separated; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "64,1")]
    in_flight: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.in_flight, measure, |in_flight, line| {
        format!(
            "{in_flight} concurrent: {} completions/s, {} times the bare loop's commits; {} µs from signal to result",
            line["completions_per_s"], line["ratio"], line["p50_us"]
        )
    })
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    in_flight: usize,
    slices: usize,
    slice: Duration,
) -> Result<Value, String> {
    let bare = Bare::open(runtime, site)?;
    let place = site.place(runtime, "ours")?;
    let engine = runtime.block_on(open(&place))?;
    let mut pairs = Pairs::default();
    let mut finished = 0;
    for number in 0..slices {
        let raw = bare.slice(runtime, number, in_flight, slice, STEPS as u64 + 1)?;
        let ours = ours_slice(runtime, &engine, number, in_flight, slice)?;
        finished += ours.times_us.len();
        pairs.push(ours, raw);
    }
    let rss_mb = resident_mb()?;
    runtime.block_on(engines::close(engine));
    let bytes = runtime.block_on(place.bytes())?;
    bare.close(runtime)?;
    let mut line = pairs.line("signal");
    line["in_flight"] = in_flight.into();
    line["completions_per_s"] = line["per_s"].take();
    line["workflows"] = finished.into();
    line["rss_mb"] = rss_mb.into();
    line["db_bytes_per_workflow"] = (bytes / finished.max(1) as u64).into();
    line.as_object_mut().map(|fields| fields.remove("per_s"));
    Ok(line)
}

/// Returns a workflow that waits for a signal and then completes automatically.
fn definition() -> Result<Definition, String> {
    let spec = Spec::new("signal").wait("waiting", "GO").signal("GO").end("done");
    spec.auto("finish", "waiting", "done").build().map_err(|problems| problems.to_string())
}

async fn open(place: &Place) -> Result<Engine, String> {
    let builder = Engine::builder(engines::open(place).await?).workflow(definition()?);
    builder.start().await.map_err(|error| error.to_string())
}

/// Starts runs with 1 KB of state, signals them and waits for their results. Measures the time from signal to result.
fn ours_slice(
    runtime: &Runtime,
    engine: &Engine,
    number: usize,
    in_flight: usize,
    length: Duration,
) -> Result<Slice, String> {
    let tasks = (0..in_flight).map(|worker| {
        let engine = engine.clone();
        async move {
            let mut times = Vec::new();
            let mut seed = (number as u64) << 40 | (worker as u64) << 20;
            let begin = Instant::now();
            while begin.elapsed() < length {
                seed += 1;
                let wanted = Start::new("signal").input(&State::new(worker, seed));
                let run = engine.start(wanted).await.map_err(|error| error.to_string())?;
                let sent = Instant::now();
                let signal = Signal::new("GO").with(&json!({"by": worker}));
                let value = run.signal(signal).await.map_err(|error| error.to_string())?;
                if value != Signalled::Consumed {
                    return Err(format!("a run that waits for the signal did not consume it: {value:?}"));
                }
                run.result().await.map_err(|error| error.to_string())?;
                times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}
