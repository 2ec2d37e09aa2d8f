//! The `scanner` workload: a simulated mail scanner follows every answer link repeatedly with all methods that must
//! change nothing. Then each link is answered once with a form.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::flow::{Durable, Flows, Handle, Sealed};
use stepwell::{Engine, Start};
use stepwell_server::routes::{FlowRoutes, flow_routes};
use stepwell_store::{HandleQuery, HandleRow, Record, RecordQuery, RunQuery, RunSummary};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::StoreKind;
use crate::engines;
use crate::flows::ring;
use crate::site::{Place, Site};

const WORKFLOW: &str = "confirm";
/// User agents of scanners and link previews.
const SCANNERS: [&str; 4] = ["Mozilla/5.0 (link check)", "preview/1.0", "mail-gateway/7", ""];

/// Options of the `scanner` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of links of each strategy.
    #[arg(long, default_value_t = 200)]
    links: usize,
    /// Number of times that each link is followed.
    #[arg(long, default_value_t = 5)]
    times: usize,
    /// Plants a bug: the scanner also submits forms. The workload must detect the changes.
    #[arg(long)]
    plant: bool,
    /// Uses 4 links, followed twice, only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

fn definition() -> Result<Definition, String> {
    let confirm = Transition::new("confirm", "asked", "confirmed").on_signal("CONFIRM");
    let spec = Spec::new(WORKFLOW).initial("asked").step("asked").end("confirmed").signal("CONFIRM");
    spec.transition(confirm).build().map_err(|problems| problems.to_string())
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (links, times) = if options.short { (4, 2) } else { (options.links, options.times) };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let begin = Instant::now();
    let mut total = Seen::default();
    for strategy in ["sealed", "handle", "durable"] {
        let place = site.place(&runtime, strategy)?;
        let seen = runtime.block_on(scan(&place, strategy, links, times, options.plant))?;
        if !options.json {
            eprintln!("{strategy}: {} requests, {} changes", seen.requests, seen.changed);
        }
        total.add(&seen);
    }
    let line = json!({
        "workload": "scanner",
        "store": options.store.name(),
        "links": 3 * links,
        "requests": total.requests,
        "odd_answers": total.odd,
        "changed": total.changed,
        "answered": total.answered,
        "gone_afterwards": total.gone,
        "planted": options.plant,
        "seconds": begin.elapsed().as_secs(),
    });
    println!("{line}");
    // A sealed token stays valid until it expires; handles and durable runs accept one answer.
    let (all, used) = (3 * links as u64, 2 * links as u64);
    match total.changed == 0 && total.odd == 0 && total.answered == all && total.gone == used {
        true => Ok(()),
        false => Err("following a link changed something, or a link was not answered as expected".to_owned()),
    }
}

/// Counts of the scanner's requests and of the answers after them.
#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    odd: u64,
    changed: u64,
    answered: u64,
    gone: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.requests += other.requests;
        self.odd += other.odd;
        self.changed += other.changed;
        self.answered += other.answered;
        self.gone += other.gone;
    }
}

/// All rows that following a link could change.
#[derive(Debug, PartialEq)]
struct Rows {
    handles: Vec<HandleRow>,
    runs: Vec<RunSummary>,
    audit: usize,
}

async fn scan(
    place: &Place,
    strategy: &str,
    links: usize,
    times: usize,
    plant: bool,
) -> Result<Seen, String> {
    let builder = Engine::builder(engines::open(place).await?).workflow(definition()?);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let flows = Flows::builder(&engine, ring()?)
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new())
        .default_strategy(strategy)
        .build()
        .map_err(|error| error.to_string())?;
    let mut paths = Vec::new();
    for _ in 0..links {
        let begun =
            flows.start(Start::new(WORKFLOW).input(&json!({}))).await.map_err(|error| error.to_string())?;
        paths.push(format!("/l/{}", begun.token.ok_or("a waiting flow returned no token")?));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?.to_string();
    let server = tokio::spawn(axum::serve(listener, flow_routes(flows, FlowRoutes::new())).into_future());
    let address = Arc::new(address);
    let before = rows(&engine).await?;
    let mut seen = follow(&address, &paths, times, plant).await?;
    seen.changed += u64::from(rows(&engine).await? != before);
    for path in &paths {
        seen.answered += u64::from(ask(&address, "POST", path, "").await?.starts_with("HTTP/1.1 200"));
        seen.gone += u64::from(ask(&address, "POST", path, "").await?.starts_with("HTTP/1.1 410"));
    }
    server.abort();
    let _ = server.await;
    engines::close(engine).await;
    Ok(seen)
}

/// Follows every link `times` times with each method; the requests of one link are concurrent.
async fn follow(address: &Arc<String>, paths: &[String], times: usize, plant: bool) -> Result<Seen, String> {
    let mut seen = Seen::default();
    for path in paths {
        let mut asked = Vec::new();
        for number in 0..times {
            let agent = SCANNERS[number % SCANNERS.len()];
            for method in ["HEAD", "GET", "OPTIONS", "GET"] {
                let (address, path) = (address.clone(), path.clone());
                asked.push(tokio::spawn(async move { ask(&address, method, &path, agent).await }));
            }
            if plant {
                asked.push(tokio::spawn({
                    let (address, path) = (address.clone(), path.clone());
                    async move { ask(&address, "POST", &path, agent).await }
                }));
            }
        }
        for (number, answer) in asked.into_iter().enumerate() {
            let answer = answer.await.map_err(|error| error.to_string())??;
            seen.requests += 1;
            let is_page = answer.starts_with("HTTP/1.1 200");
            let is_look = plant || number % 4 != 2;
            seen.odd += u64::from(!plant && is_look && !is_page);
        }
    }
    Ok(seen)
}

/// Sends one request on its own connection and returns the whole response.
async fn ask(address: &str, method: &str, path: &str, agent: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{method} {address}: {error}");
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    let body = if method == "POST" {
        "content-type: application/x-www-form-urlencoded\r\ncontent-length: 0\r\n"
    } else {
        ""
    };
    let agent = if agent.is_empty() { String::new() } else { format!("user-agent: {agent}\r\n") };
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{agent}{body}\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(failed)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

async fn rows(engine: &Engine) -> Result<Rows, String> {
    let failed = |error: stepwell_store::StoreError| error.to_string();
    let (store, scope) = (engine.store(), engine.scope());
    let mut all = Rows { handles: Vec::new(), runs: Vec::new(), audit: 0 };
    let mut query = HandleQuery { limit: 1_000, ..HandleQuery::default() };
    loop {
        let page = store.records(scope, RecordQuery::Handles(query.clone())).await.map_err(failed)?;
        all.handles.extend(page.items.into_iter().filter_map(|record| match record {
            Record::Handle(row) => Some(*row),
            _ => None,
        }));
        query.cursor = page.next;
        if query.cursor.is_none() {
            break;
        }
    }
    let query = RunQuery { limit: 1_000, ..RunQuery::default() };
    all.runs = store.runs(scope, query).await.map_err(failed)?.items;
    let query = RecordQuery::Audit { limit: 1_000, cursor: None };
    all.audit = store.records(scope, query).await.map_err(failed)?.items.len();
    Ok(all)
}
