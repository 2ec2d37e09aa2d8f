//! The `handle` workload: resumes flows whose state is kept behind handles, in slices that alternate with the bare
//! loop. Each resume is one commit that consumes one handle and creates another.

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

/// Number of flows resumed concurrently.
const IN_FLIGHT: usize = 64;
/// Number of resumes of one flow before a new flow starts.
const RESUMES: u64 = 10;

/// Options of the `handle` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Context sizes in bytes, comma-separated; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "200,1000,8000")]
    bytes: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.bytes, measure, |bytes, line| {
        format!(
            "{bytes} bytes: {} resumes/s, {} times the bare loop's commits; token of {} bytes",
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
    let token = begun.map_err(|error| error.to_string())?.token.ok_or("a waiting flow returned no token")?;
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
                let mut token = begun.token.ok_or("a waiting flow returned no token")?;
                for _ in 0..RESUMES {
                    let started = Instant::now();
                    let answer = flows.resume(Resume::new(&token).outcome("GO")).await;
                    let answer = answer.map_err(|error| error.to_string())?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    token = answer.token.ok_or("a waiting flow returned no token")?;
                }
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}
