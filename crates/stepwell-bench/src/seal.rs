//! The `seal` workload: seals states into tokens and opens them again, in slices that alternate with the token library
//! on the same plaintext.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pasetors::Local;
use pasetors::keys::SymmetricKey;
use pasetors::token::UntrustedToken;
use pasetors::version4::{LocalToken, V4};
use serde_json::{Value, json};
use stepwell::core::Snapshot;
use stepwell::flow::{Flows, Resume};
use stepwell::{Host, Start};
use stepwell_store::MemoryStore;
use tokio::runtime::Runtime;

use crate::flows::{self, WORKFLOW, context};
use crate::sample::{Pairs, Slice, median, round};

/// Options of the `seal` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Context sizes in bytes, comma-separated; two measurements each, without and with compression.
    #[arg(long, value_delimiter = ',', default_value = "200,1000,8000")]
    bytes: Vec<usize>,
    /// Number of alternating slices of each kind.
    #[arg(long, default_value_t = 9)]
    slices: usize,
    /// Length of a slice in milliseconds.
    #[arg(long, default_value_t = 500)]
    slice_ms: u64,
    /// Runs one slice of 50 ms, to show that the workload works; the figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Prints the JSON lines only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (slices, length) = if options.short { (1, 50) } else { (options.slices.max(1), options.slice_ms) };
    let length = Duration::from_millis(length);
    let runtime = crate::runtime()?;
    for &bytes in &options.bytes {
        let plain = measure(&runtime, bytes, "plain", slices, length)?;
        let mut packed = measure(&runtime, bytes, "packed", slices, length)?;
        let figure = |line: &Value, name: &str| line[name].as_f64().unwrap_or_default();
        let cost = figure(&packed, "p50_us") - figure(&plain, "p50_us");
        packed["cost_us"] = round(cost).into();
        packed["gain"] = round(1.0 - figure(&packed, "token_bytes") / figure(&plain, "token_bytes")).into();
        for line in [&plain, &packed] {
            if !options.json {
                eprintln!(
                    "{bytes} bytes{}: {} sealed and opened/s, {} times the library alone; {} resumes/s, token of {} bytes",
                    if line["compressed"] == true { ", compressed" } else { "" },
                    line["per_s"],
                    line["ratio"],
                    line["resumes_per_s"],
                    line["token_bytes"]
                );
            }
            println!("{line}");
        }
    }
    Ok(())
}

fn measure(
    runtime: &Runtime,
    bytes: usize,
    strategy: &str,
    slices: usize,
    length: Duration,
) -> Result<Value, String> {
    let engine =
        runtime.block_on(flows::engine(Arc::new(MemoryStore::new()), Host::system(), |builder| builder))?;
    let flows = flows::flows(&engine, strategy)?;
    let start = Start::new(WORKFLOW).input(&context(bytes, 7));
    let begun = runtime.block_on(flows.start(start)).map_err(|error| error.to_string())?;
    let token = begun.token.ok_or("a waiting flow returned no token")?;
    let snapshot = runtime.block_on(flows.open(&token)).map_err(|error| error.to_string())?;
    let library = Library::new(&snapshot)?;
    let (mut pairs, mut resumed) = (Pairs::default(), Vec::new());
    for _ in 0..slices {
        let raw = library.slice(length)?;
        let ours = runtime.block_on(ours(&flows, strategy, &snapshot, length))?;
        pairs.push(ours, raw);
        resumed.push(runtime.block_on(resumes(&flows, &token, length))?.per_s());
    }
    let mut line = pairs.line("seal");
    line["bytes"] = bytes.into();
    line["state_bytes"] = library.text.len().into();
    line["compressed"] = (strategy == "packed").into();
    line["token_bytes"] = token.len().into();
    line["resumes_per_s"] = median(resumed).round().into();
    Ok(line)
}

/// Measures sealing a state and opening it again.
async fn ours(flows: &Flows, strategy: &str, snapshot: &Snapshot, length: Duration) -> Result<Slice, String> {
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < length {
        let started = Instant::now();
        let token = flows.seal(strategy, snapshot).map_err(|error| error.to_string())?;
        let opened = flows.open(&token).await.map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        if *opened != *snapshot {
            return Err("the opened state differs from the sealed one".to_owned());
        }
    }
    Ok(Slice { times_us: times, elapsed: begin.elapsed() })
}

/// Measures whole resumes: open the token, advance the flow, seal the new state.
async fn resumes(flows: &Flows, token: &str, length: Duration) -> Result<Slice, String> {
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < length {
        let started = Instant::now();
        let answer =
            flows.resume(Resume::new(token).outcome("GO")).await.map_err(|error| error.to_string())?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        if answer.token.is_none() {
            return Err("a waiting flow returned no token".to_owned());
        }
    }
    Ok(Slice { times_us: times, elapsed: begin.elapsed() })
}

/// The baseline: the token library on the same plaintext.
struct Library {
    key: SymmetricKey<V4>,
    text: String,
}

/// Footer and implicit assertion of the same length as ours.
const FOOTER: &[u8] = b"bench.rAAAAAAAAAAAAAAAAAAAAAA.pauses";
const BOUND: &[u8] = b"stepwell flow\0plain\0rAAAAAAAAAAAAAAAAAAAAAA.pauses";

impl Library {
    fn new(snapshot: &Snapshot) -> Result<Library, String> {
        let claims = json!({"i": 1_700_000_000_000_000_u64, "e": 1_700_000_000_000_000_u64, "c": 1_700_000_000_000_000_u64});
        let state = serde_json::to_string(snapshot).map_err(|error| error.to_string())?;
        let key = SymmetricKey::from(&[7; 32]).map_err(|error| failed(&error))?;
        Ok(Library { key, text: format!("{claims}\n{state}") })
    }

    fn slice(&self, length: Duration) -> Result<Slice, String> {
        let mut times = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < length {
            let started = Instant::now();
            let token = LocalToken::encrypt(&self.key, self.text.as_bytes(), Some(FOOTER), Some(BOUND));
            let token = token.map_err(|error| failed(&error))?;
            let sealed = UntrustedToken::<Local, V4>::try_from(&token).map_err(|error| failed(&error))?;
            let opened = LocalToken::decrypt(&self.key, &sealed, Some(FOOTER), Some(BOUND));
            let opened = opened.map_err(|error| failed(&error))?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
            if opened.payload() != self.text {
                return Err("the token library returned a different plaintext".to_owned());
            }
        }
        Ok(Slice { times_us: times, elapsed: begin.elapsed() })
    }
}

fn failed(error: &pasetors::errors::Error) -> String {
    format!("{error:?}")
}
