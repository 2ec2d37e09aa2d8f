//! The `http` workload: signals through the API over keep-alive connections, in slices that alternate with the same
//! signals in process. Clients and server share the machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::store::TenantScope;
use stepwell::{Engine, Permission, Signal, Start};
use stepwell_server::api::{ApiOptions, NewKey, Server};
use stepwell_server::serve::{ServeOptions, serve};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::engines;
use crate::machine::resident_mb;
use crate::sample::{Alternating, Pairs, Slice, gather};
use crate::site::Site;
use crate::web::{Connection, request};

/// Options of the `http` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of clients with one connection each, comma-separated; one measurement per number.
    #[arg(long, value_delimiter = ',', default_value = "64,1")]
    clients: Vec<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    options.measured.each(&options.clients, measure, |clients, line| {
        format!(
            "{clients} clients: {} signals/s over HTTP, {} times the {} in process; {} µs each",
            line["signals_per_s"], line["ratio"], line["raw_per_s"], line["p50_us"]
        )
    })
}

/// Returns a workflow that consumes every `RING` and returns to the same place.
fn definition() -> Result<Definition, String> {
    let spec = Spec::new("bell").step("idle").end("over").signal("RING").signal("STOP");
    let spec = spec.transition(Transition::new("ring", "idle", "idle").on_signal("RING"));
    spec.transition(Transition::new("stop", "idle", "over").on_signal("STOP"))
        .build()
        .map_err(|problems| problems.to_string())
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    clients: usize,
    slices: usize,
    slice: Duration,
) -> Result<Value, String> {
    let place = site.place(runtime, "ours")?;
    let engine = runtime.block_on(async {
        let builder = Engine::builder(engines::open(&place).await?).workflow(definition()?);
        builder.start().await.map_err(|error| error.to_string())
    })?;
    let served = runtime.block_on(Served::start(&engine))?;
    let mut pairs = Pairs::default();
    for _ in 0..slices {
        let raw = in_process(runtime, &engine, clients, slice)?;
        let ours = over_http(runtime, &engine, &served, clients, slice)?;
        pairs.push(ours, raw);
    }
    let rss_mb = resident_mb()?;
    served.task.abort();
    runtime.block_on(engines::close(engine));
    let mut line = pairs.line("http");
    line["clients"] = clients.into();
    line["signals_per_s"] = line["per_s"].take();
    line["rss_mb"] = rss_mb.into();
    line.as_object_mut().map(|fields| fields.remove("per_s"));
    Ok(line)
}

/// A server in this process that listens on a free port.
struct Served {
    address: std::net::SocketAddr,
    key: String,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn start(engine: &Engine) -> Result<Served, String> {
        let server = Arc::new(Server::new(engine.clone(), ApiOptions::default()));
        let new = NewKey::new("bench", [Permission::Manage].into());
        let key = server
            .keys()
            .create(TenantScope::single(), new, None)
            .await
            .map_err(|error| error.to_string())?;
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let router = server.router();
        let task = tokio::spawn(async move {
            let _ = serve(listener, router, ServeOptions::default(), std::future::pending()).await;
        });
        Ok(Served { address, key: key.secret.unwrap_or_default(), task })
    }
}

/// Starts one run per caller, before the measured time begins.
fn runs(runtime: &Runtime, engine: &Engine, count: usize) -> Result<Vec<RunId>, String> {
    runtime.block_on(async {
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            runs.push(engine.start(Start::new("bell")).await.map_err(|error| error.to_string())?.id());
        }
        Ok(runs)
    })
}

fn in_process(runtime: &Runtime, engine: &Engine, callers: usize, length: Duration) -> Result<Slice, String> {
    let runs = runs(runtime, engine, callers)?;
    let tasks = runs.into_iter().map(|run| {
        let engine = engine.clone();
        async move {
            let (mut times, begin) = (Vec::new(), Instant::now());
            while begin.elapsed() < length {
                let sent = Instant::now();
                let signal = Signal::new("RING").with(&json!({"by": "operator"}));
                engine.signal(run, signal).await.map_err(|error| error.to_string())?;
                times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}

fn over_http(
    runtime: &Runtime,
    engine: &Engine,
    served: &Served,
    clients: usize,
    length: Duration,
) -> Result<Slice, String> {
    let runs = runs(runtime, engine, clients)?;
    let tasks = runs.into_iter().map(|run| {
        let path = format!("/v1/runs/{run}/signals/RING");
        let request = request("POST", &path, &served.key, "", Some(&json!({"by": "operator"})));
        let address = served.address;
        async move {
            let mut connection = Connection::open(address).await?;
            let (mut times, begin) = (Vec::new(), Instant::now());
            while begin.elapsed() < length {
                let sent = Instant::now();
                let answer = connection.send(&request).await?;
                if answer.status != 200 {
                    return Err(format!("a signal got status {}", answer.status));
                }
                times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        }
    });
    gather(runtime, tasks)
}
