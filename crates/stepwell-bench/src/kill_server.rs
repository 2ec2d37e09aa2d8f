//! The `kill-server` workload: kills the server repeatedly under load over HTTP, and checks that every acknowledged
//! write exists exactly once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::web::{Answer, Connection, Program, prepare, request};

/// Options of the `kill-server` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Path of the `stepwell` program to kill.
    #[arg(long, value_parser = crate::web::program)]
    stepwell: PathBuf,
    /// Number of times that the server is killed.
    #[arg(long, default_value_t = 100)]
    kills: u64,
    /// Number of clients that write concurrently.
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Plants a bug: expects one increment and one value more than were written. The workload must report them missing.
    #[arg(long)]
    plant: bool,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

const WORKFLOW: &str = "steps:\n  - { id: go, type: wait.signal, signal: GO }\n  - { id: done, type: control.return, value: { $expr: vars.go.n } }\n";
/// Maximum time between two kills, in addition to 20 ms.
const LIFE_MS: u64 = 250;
/// Timeout of one request, after which the client sends it again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The acknowledged writes of one client.
#[derive(Debug, Default)]
struct Acknowledged {
    /// Ids of the started runs, each with `true` if its signal was acknowledged.
    runs: Vec<(String, bool)>,
    /// Last acknowledged value of the client's own key.
    value: Option<u64>,
    /// Number of acknowledged increments of the shared counter.
    increments: u64,
}

/// State shared by all clients.
struct Shared {
    key: String,
    address: watch::Receiver<SocketAddr>,
    is_over: AtomicBool,
    /// Number of requests sent again because no usable answer came.
    again: AtomicU64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let key = prepare(&options.stepwell, folder.path(), "", ("bell", WORKFLOW), &runtime)?;
    let mut program = Program::start(&options.stepwell, folder.path())?;
    let (tell, address) = watch::channel(program.address);
    let shared = Arc::new(Shared { key, address, is_over: AtomicBool::new(false), again: AtomicU64::new(0) });
    let clients: Vec<_> =
        (0..options.clients).map(|number| runtime.spawn(client(shared.clone(), number))).collect();
    let (began, mut seed) = (Instant::now(), 7_u64);
    for _ in 0..options.kills {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(20 + (seed >> 33) % LIFE_MS));
        program.kill()?;
        program = Program::start(&options.stepwell, folder.path())?;
        tell.send_replace(program.address);
    }
    shared.is_over.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.push(runtime.block_on(client).map_err(|error| error.to_string())??);
    }
    if options.plant {
        acknowledged[0].increments += 1;
        acknowledged[1].value = acknowledged[1].value.map(|value| value + 1);
    }
    let mut line = runtime.block_on(checked(&shared, &acknowledged))?;
    line["kills"] = options.kills.into();
    line["sent_again"] = shared.again.load(Ordering::Relaxed).into();
    line["seconds"] = crate::sample::round(began.elapsed().as_secs_f64()).into();
    if !options.json {
        eprintln!(
            "{} writes acknowledged, {} of them missing, {} duplicated",
            line["acknowledged"], line["missing"], line["doubled"]
        );
    }
    println!("{line}");
    match (&line["missing"], &line["doubled"]) {
        (missing, doubled) if missing == 0 && doubled == 0 => Ok(()),
        _ => Err("acknowledged writes are missing or duplicated".to_owned()),
    }
}

/// Writes until the test is over. A request without an answer is sent again with the same idempotency key.
async fn client(shared: Arc<Shared>, number: u64) -> Result<Acknowledged, String> {
    let mut caller = Caller { shared: shared.clone(), connection: None };
    let mut acknowledged = Acknowledged::default();
    let mut round = 0_u64;
    while !shared.is_over.load(Ordering::Relaxed) {
        round += 1;
        let id = format!("{number}-{round}");
        let start = json!({"workflow": "bell"});
        let started = caller.ask("POST", "/v1/runs", &format!("start-{id}"), Some(&start)).await?;
        let run =
            started.json()?["id"].as_str().map(str::to_owned).ok_or("a run that was started has an id")?;
        acknowledged.runs.push((run.clone(), false));
        let path = format!("/v1/runs/{run}/signals/GO");
        caller.ask("POST", &path, &format!("go-{id}"), Some(&json!({"n": round}))).await?;
        if let Some((_, is_signalled)) = acknowledged.runs.last_mut() {
            *is_signalled = true;
        }
        let path = format!("/v1/kv/kill/client-{number}");
        caller.ask("PUT", &path, &format!("set-{id}"), Some(&json!({"value": round}))).await?;
        acknowledged.value = Some(round);
        caller.ask("POST", "/v1/kv/kill/counter/increment", &format!("add-{id}"), None).await?;
        acknowledged.increments += 1;
    }
    Ok(acknowledged)
}

struct Caller {
    shared: Arc<Shared>,
    connection: Option<Connection>,
}

impl Caller {
    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        key: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let request = request(method, path, &self.shared.key, &format!("idempotency-key: {key}\r\n"), body);
        let began = Instant::now();
        loop {
            let answered = tokio::time::timeout(PATIENCE, self.once(&request)).await;
            match answered {
                Ok(Ok(answer)) if answer.status < 300 => return Ok(answer),
                // 503 and 409 ask for a retry: the outcome is unknown, or the write is not possible now.
                Ok(Ok(answer)) if answer.status == 503 || answer.status == 409 => {}
                Ok(Ok(answer)) => {
                    let said = String::from_utf8_lossy(&answer.body).into_owned();
                    return Err(format!("{method} {path} got status {}: {said}", answer.status));
                }
                Ok(Err(_)) | Err(_) => self.connection = None,
            }
            if began.elapsed() > 6 * PATIENCE {
                return Err(format!("{method} {path} got no answer for a minute"));
            }
            self.shared.again.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn once(&mut self, request: &str) -> Result<Answer, String> {
        let address = *self.shared.address.borrow();
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(Connection::open(address).await?),
        };
        connection.send(request).await
    }
}

/// Checks over HTTP that everything acknowledged exists, and counts what is missing or duplicated.
async fn checked(shared: &Arc<Shared>, acknowledged: &[Acknowledged]) -> Result<Value, String> {
    let mut connection = Connection::open(*shared.address.borrow()).await?;
    let (mut count, mut missing, mut doubled, mut runs) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (number, client) in acknowledged.iter().enumerate() {
        for (run, is_signalled) in &client.runs {
            runs += 1;
            count += 1 + u64::from(*is_signalled);
            let path = format!("/v1/runs/{run}?wait=10s");
            let answer = connection.send(&request("GET", &path, &shared.key, "", None)).await?;
            let shown = answer.json().unwrap_or_default();
            let is_there = answer.status == 200 && (!is_signalled || shown["status"] == "completed");
            missing += u64::from(!is_there);
        }
        let path = format!("/v1/kv/kill/client-{number}");
        let shown = connection.send(&request("GET", &path, &shared.key, "", None)).await?.json()?;
        count += 1;
        missing += u64::from(client.value.is_some() && shown["value"].as_u64() != client.value);
    }
    let added: u64 = acknowledged.iter().map(|client| client.increments).sum();
    let counter =
        connection.send(&request("GET", "/v1/kv/kill/counter", &shared.key, "", None)).await?.json()?;
    let counter = counter["value"].as_u64().unwrap_or_default();
    count += added;
    missing += added.saturating_sub(counter);
    doubled += counter.saturating_sub(added);
    doubled += counted(&mut connection, &shared.key).await?.saturating_sub(runs);
    Ok(
        json!({"workload": "kill-server", "acknowledged": count, "missing": missing, "doubled": doubled, "runs": runs, "counter": counter}),
    )
}

/// Returns the number of runs of the workflow.
async fn counted(connection: &mut Connection, key: &str) -> Result<u64, String> {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let path = format!("/v1/runs?workflow=bell&limit=200{cursor}");
        let page = connection.send(&request("GET", &path, key, "", None)).await?.json()?;
        count += page["items"].as_array().map_or(0, Vec::len) as u64;
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(count),
        }
    }
}
