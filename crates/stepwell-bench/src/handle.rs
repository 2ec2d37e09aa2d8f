//! The `handle` workload: flows that rest behind handles are resumed, each resume one commit that uses one handle up and puts
//! another, and the bare loop, in alternating slices.

use std::time::{Duration, Instant};

use serde_json::Value;
use stepwell::flow::{Flows, Resume};
use stepwell::{Host, Start};
use tokio::runtime::Runtime;

use crate::bare::Bare;
use crate::engines;
use crate::flows::{self, WORKFLOW, context};
use crate::sample::{Alternating, Pairs, Slice, gather};
use crate::site::Site;

/// Flows that are resumed at a time.
const IN_FLIGHT: usize = 64;
/// Resumes of one flow before another begins.
const RESUMES: u64 = 10;

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Bytes of context; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "200,1000,8000")]
    bytes: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.bytes, measure, |bytes, line| {
        format!(
            "{bytes} bytes: {} resumes/s, {} of the bare loop's commits; token of {} bytes",
            line["per_s"], line["ratio"], line["token_bytes"]
        )
    })
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    bytes: usize,
    slices: usize,
    slice: Duration,
) -> Result<Value, String> {
    let bare = Bare::open(runtime, site)?;
    let place = site.place(runtime, "ours")?;
    let engine = runtime.block_on(async {
        flows::engine(engines::open(&place).await?, Host::system(), |builder| builder).await
    })?;
    let flows = flows::flows(&engine, "handle")?;
    let mut pairs = Pairs::default();
    for number in 0..slices {
        let raw = bare.slice(runtime, number, IN_FLIGHT, slice, RESUMES)?;
        let ours = ours(runtime, &flows, bytes, number, slice)?;
        pairs.push(ours, raw);
    }
    let begun = runtime.block_on(flows.start(Start::new(WORKFLOW).input(&context(bytes, 1))));
    let token = begun.map_err(|error| error.to_string())?.token.ok_or("a flow that waits has no token")?;
    drop(flows);
    runtime.block_on(engines::close(engine));
    bare.close(runtime)?;
    let mut line = pairs.line("handle");
    line["bytes"] = bytes.into();
    line["in_flight"] = IN_FLIGHT.into();
    line["token_bytes"] = token.len().into();
    Ok(line)
}

fn ours(
    runtime: &Runtime,
    flows: &Flows,
    bytes: usize,
    number: usize,
    length: Duration,
) -> Result<Slice, String> {
    let tasks = (0..IN_FLIGHT).map(|worker| {
        let flows = flows.clone();
        async move {
            let mut times = Vec::new();
            let input = context(bytes, (number as u64) << 20 | worker as u64);
            let begin = Instant::now();
            while begin.elapsed() < length {
                let start = Start::new(WORKFLOW).input(&input);
                let begun = flows.start(start).await.map_err(|error| error.to_string())?;
                let mut token = begun.token.ok_or("a flow that waits has no token")?;
                for _ in 0..RESUMES {
                    let started = Instant::now();
                    let answer = flows.resume(Resume::new(&token).outcome("GO")).await;
                    let answer = answer.map_err(|error| error.to_string())?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    token = answer.token.ok_or("a flow that waits has no token")?;
                }
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}
