//! Holds many sockets that say nothing, or a little now and then, and looks how everybody else fares and when they are closed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::sample::{gather, quantile, round};
use crate::web::{Connection, Program, prepare, request};

/// How hard it is tried.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The program to try.
    #[arg(long, value_parser = crate::web::program)]
    stepwell: PathBuf,
    /// Sockets that are held.
    #[arg(long, default_value_t = 2_000)]
    sockets: usize,
    /// Clients that behave.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Milliseconds for which those are measured, before and meanwhile.
    #[arg(long, default_value_t = 5_000)]
    measured_ms: u64,
    /// JSON only.
    #[arg(long)]
    json: bool,
}

/// How long the server lets anybody take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer it may take to close a socket: it has many to close at once.
const SLACK: Duration = Duration::from_secs(5);

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let seconds = TIMEOUT.as_secs();
    let settings = format!("[server]\nhead_timeout = \"{seconds}s\"\nbody_timeout = \"{seconds}s\"\n");
    let workflow = ("nothing", "steps: [{ id: done, type: control.return, value: 1 }]");
    let key = prepare(&options.stepwell, folder.path(), &settings, workflow, &runtime)?;
    let program = Program::start(&options.stepwell, folder.path())?;
    let length = Duration::from_millis(options.measured_ms);
    // Once for nothing: what is slow the first time is not measured.
    requests(&runtime, program.address, &key, options.clients, length / 5)?;
    let before = requests(&runtime, program.address, &key, options.clients, length)?;
    let began = Instant::now();
    let held: Vec<_> = (0..options.sockets)
        .map(|number| runtime.spawn(slow(program.address, key.clone(), number)))
        .collect();
    let meanwhile = requests(&runtime, program.address, &key, options.clients, length)?;
    let mut closed = 0;
    for socket in held {
        let took = runtime.block_on(socket).map_err(|error| error.to_string())?;
        closed += u64::from(took.is_some_and(|took| took < TIMEOUT + SLACK));
    }
    let p99 = |mut times: Vec<f64>| round(quantile(&mut times, 0.99));
    let (count_before, count_meanwhile) = (before.len(), meanwhile.len());
    let (p99_before, p99_meanwhile) = (p99(before), p99(meanwhile));
    let line = json!({
        "workload": "slow-sockets", "sockets": options.sockets, "closed": closed, "p99_before_us": p99_before,
        "p99_meanwhile_us": p99_meanwhile, "ratio": round(p99_meanwhile / p99_before.max(1.0)),
        "requests_before": count_before, "requests_meanwhile": count_meanwhile,
        "seconds": round(began.elapsed().as_secs_f64()),
    });
    if !options.json {
        eprintln!(
            "{closed} of {} sockets were closed in time; p99 went from {p99_before} to {p99_meanwhile} µs",
            options.sockets
        );
    }
    println!("{line}");
    Ok(())
}

/// How long requests of clients that behave take.
fn requests(
    runtime: &Runtime,
    address: SocketAddr,
    key: &str,
    clients: usize,
    length: Duration,
) -> Result<Vec<f64>, String> {
    let tasks = (0..clients).map(|_| {
        let request = request("GET", "/v1/runs?limit=1", key, "", None);
        async move {
            let mut connection = Connection::open(address).await?;
            let (mut times, begin) = (Vec::new(), Instant::now());
            while begin.elapsed() < length {
                let sent = Instant::now();
                let answer = connection.send(&request).await?;
                if answer.status != 200 {
                    return Err(format!("a request was answered with {}", answer.status));
                }
                times.push(sent.elapsed().as_secs_f64() * 1e6);
                // Everybody is asked for less than they can do: what is measured is not the queue of one's own requests.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(times)
        }
    });
    Ok(gather(runtime, tasks)?.times_us)
}

/// A socket that says nothing, drips a head, or drips a body; gives when it was closed.
async fn slow(address: SocketAddr, key: String, number: usize) -> Option<Duration> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let began = Instant::now();
    let begin = match number % 3 {
        0 => String::new(),
        1 => "GET /v1/runs HTTP/1.1\r\nhost: bench\r\nx-slow: ".to_owned(),
        _ => format!(
            "POST /v1/runs HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{{"
        ),
    };
    stream.write_all(begin.as_bytes()).await.ok()?;
    let (mut buffer, mut is_talking) = ([0; 1_024], !number.is_multiple_of(3));
    while began.elapsed() < TIMEOUT + 2 * SLACK {
        match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => return Some(began.elapsed()),
            // What it is told before it is closed.
            Ok(Ok(_)) => is_talking = false,
            Err(_) if is_talking => is_talking = stream.write_all(b" ").await.is_ok(),
            Err(_) => {}
        }
    }
    None
}
