//! The `slow-sockets` workload: opens many sockets that send nothing or very little. Measures how other clients are
//! served, and when the server closes the sockets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::sample::{gather, quantile, round};
use crate::web::{Connection, Program, prepare, request};

/// Options of the `slow-sockets` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Path of the `stepwell` program to test.
    #[arg(long, value_parser = crate::web::program)]
    stepwell: PathBuf,
    /// Number of slow sockets.
    #[arg(long, default_value_t = 2_000)]
    sockets: usize,
    /// Number of well-behaved clients.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Time in milliseconds for which the well-behaved clients are measured, before and during.
    #[arg(long, default_value_t = 5_000)]
    measured_ms: u64,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

/// Head and body timeout of the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time allowed for closing a socket, because the server closes many at once.
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
    // A warm-up, so that slow first requests are not measured.
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

/// Measures the requests of well-behaved clients. Returns their times in microseconds.
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
                    return Err(format!("a request got status {}", answer.status));
                }
                times.push(sent.elapsed().as_secs_f64() * 1e6);
                // Each client sends less than it could, so that its own queue of requests is not measured.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(times)
        }
    });
    Ok(gather(runtime, tasks)?.times_us)
}

/// Opens a socket that sends nothing, a head byte by byte, or a body byte by byte. Returns the time until it was
/// closed.
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
            // The server's response before it closes the socket.
            Ok(Ok(_)) => is_talking = false,
            Err(_) if is_talking => is_talking = stream.write_all(b" ").await.is_ok(),
            Err(_) => {}
        }
    }
    None
}
