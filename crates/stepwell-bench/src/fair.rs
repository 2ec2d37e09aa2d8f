//! The `fair` workload: one tenant has a hundred thousand runs due; how soon another one's first step is committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::RunId;
use stepwell::store::{Status, Store, TenantId, TenantScope};
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_postgres::PostgresStore;
use stepwell_postgres::ground::Ground;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::sample::{quantile, round};
use crate::site::{Place, Site};
use crate::ten_step::{State, definition};
use crate::watched::Watched;

/// Who has the many runs, and who starts one now and then.
const CROWDED: TenantScope = TenantScope::vouched(TenantId::new(Uuid::from_u128(1)));
const LONE: TenantScope = TenantScope::vouched(TenantId::new(Uuid::from_u128(2)));
/// Runs that are put into the store at a time.
const AT_ONCE: u64 = 256;

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs that one tenant has due.
    #[arg(long, default_value_t = 100_000)]
    runs: u64,
    /// How often another tenant starts one.
    #[arg(long, default_value_t = 100)]
    starts: u64,
    /// Without notifications: others find out by looking.
    #[arg(long)]
    no_notify: bool,
    /// A quick run that shows that everything works.
    #[arg(long)]
    short: bool,
    /// JSON only.
    #[arg(long)]
    json: bool,
}

/// Who waits for the first step of which run.
type Waiting = Arc<Mutex<BTreeMap<RunId, oneshot::Sender<Instant>>>>;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (runs, starts) =
        if options.short { (5_000, 5) } else { (options.runs.max(1), options.starts.max(1)) };
    let runtime = crate::runtime()?;
    let site = Site::new(StoreKind::Postgres)?;
    let Place::Postgres(ground) = site.place(&runtime, "fair")? else {
        return Err("there is no server".to_owned());
    };
    let line = runtime.block_on(measure(&ground, runs, starts, !options.no_notify))?;
    if !options.json {
        eprintln!("the slowest of {starts} took {} ms", line["max_ms"]);
    }
    println!("{line}");
    Ok(())
}

async fn open(ground: &Ground, notify: bool) -> Result<Arc<dyn Store>, String> {
    let options = stepwell_postgres::Options { notify, ..ground.options() };
    let store = PostgresStore::open_with(ground.engine(), options).await;
    Ok(Arc::new(store.map_err(|error| error.to_string())?))
}

async fn measure(ground: &Ground, runs: u64, starts: u64, notify: bool) -> Result<Value, String> {
    // The starts come from a process that works on no runs itself.
    let client = Engine::builder(open(ground, notify).await?).workflow(definition()?);
    let client = client.action("rewrite", |_: Cx| async { Ok::<_, ActionError>(()) });
    let client = client.tenant(LONE).with(|options| options.max_runs = 0);
    let client = client.start().await.map_err(|error| error.to_string())?;
    crowd(&client, runs).await?;
    let waiting = Waiting::default();
    let worker = worker(open(ground, notify).await?, waiting.clone()).await?;
    let mut times_ms = Vec::new();
    let mut left = Vec::new();
    for number in 0..starts {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let run = stepwell::new_run_id();
        let (committed, answer) = oneshot::channel();
        waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(run, committed);
        let wanted = Start::new("ten-step").id(run).input(&State::new(0, number));
        let begin = Instant::now();
        client.start(wanted).await.map_err(|error| error.to_string())?;
        let answer = tokio::time::timeout(Duration::from_secs(30), answer).await;
        let at = answer.map_err(|_| "a run was not begun within 30 s")?.map_err(|error| error.to_string())?;
        times_ms.push((at - begin).as_secs_f64() * 1e3);
        let dues = client.store().due(Vec::new()).await.map_err(|error| error.to_string())?;
        left.push(dues.iter().any(|due| due.tenant == CROWDED.tenant()));
    }
    engines::close(worker).await;
    engines::close(client).await;
    let crowded = left.iter().filter(|crowded| **crowded).count();
    let within = times_ms.iter().filter(|ms| **ms <= 250.0).count();
    let max = times_ms.iter().copied().fold(0.0, f64::max);
    Ok(json!({
        "workload": "fair",
        "store": "postgres",
        "notify": notify,
        "runs_due": runs,
        "starts": starts,
        "while_crowded": crowded,
        "within_250_ms": within,
        "p50_ms": round(quantile(&mut times_ms, 0.5)),
        "p99_ms": round(quantile(&mut times_ms, 0.99)),
        "max_ms": round(max),
    }))
}

/// Puts the many runs into the store: due, and nobody's.
async fn crowd(client: &Engine, runs: u64) -> Result<(), String> {
    let crowded = client.for_tenant(CROWDED);
    for first in (0..runs).step_by(AT_ONCE as usize) {
        let tasks = (first..runs.min(first + AT_ONCE)).map(|number| {
            let crowded = crowded.clone();
            tokio::spawn(async move {
                crowded.start(Start::new("ten-step").input(&State::new(0, number))).await.map(drop)
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// The process that works on everybody's runs.
async fn worker(store: Arc<dyn Store>, waiting: Waiting) -> Result<Engine, String> {
    let told = move |run: RunId, _: Status| {
        let waits = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
        if let Some(waits) = waits {
            let _ = waits.send(Instant::now());
        }
    };
    let store: Arc<dyn Store> = Arc::new(Watched { inner: store, told: Box::new(told) });
    let rewrite = |cx: Cx| async move { cx.update_state(|state: &mut State| state.rewrite()) };
    let builder = Engine::builder(store).workflow(definition()?).action("rewrite", rewrite);
    builder.start().await.map_err(|error| error.to_string())
}
