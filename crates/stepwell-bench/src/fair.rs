//! The `fair` workload: one tenant has 100,000 due runs; measures how soon another tenant's first step is committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::RunId;
use stepwell::store::{Status, Store, TenantId, TenantScope};
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_postgres::PostgresStore;
use stepwell_postgres::test_schema::TestSchema;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::sample::{quantile, round};
use crate::site::{Place, Site};
use crate::ten_step::{State, definition};
use crate::watched::Watched;

/// The tenant with the many runs.
const CROWDED: TenantScope = TenantScope::trusted(TenantId::new(Uuid::from_u128(1)));
/// The tenant that starts a single run from time to time.
const LONE: TenantScope = TenantScope::trusted(TenantId::new(Uuid::from_u128(2)));
/// Number of runs that are started concurrently.
const AT_ONCE: u64 = 256;

/// Options of the `fair` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of due runs of the crowded tenant.
    #[arg(long, default_value_t = 100_000)]
    runs: u64,
    /// Number of runs that the other tenant starts.
    #[arg(long, default_value_t = 100)]
    starts: u64,
    /// Turns database notifications off: processes find due runs by polling.
    #[arg(long)]
    no_notify: bool,
    /// Runs quickly with 5,000 runs and 5 starts, to show that the workload works.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

/// Senders that report when the first step of a run is committed, by run.
type Waiting = Arc<Mutex<BTreeMap<RunId, oneshot::Sender<Instant>>>>;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (runs, starts) =
        if options.short { (5_000, 5) } else { (options.runs.max(1), options.starts.max(1)) };
    let runtime = crate::runtime()?;
    let site = Site::new(StoreKind::Postgres)?;
    let Place::Postgres(test_schema) = site.place(&runtime, "fair")? else {
        return Err("`fair` needs PostgreSQL".to_owned());
    };
    let line = runtime.block_on(measure(&test_schema, runs, starts, !options.no_notify))?;
    if !options.json {
        eprintln!("the slowest of {starts} starts took {} ms", line["max_ms"]);
    }
    println!("{line}");
    Ok(())
}

async fn open(test_schema: &TestSchema, notify: bool) -> Result<Arc<dyn Store>, String> {
    let options = stepwell_postgres::Options { notify, ..test_schema.options() };
    let store = PostgresStore::open_with(test_schema.engine(), options).await;
    Ok(Arc::new(store.map_err(|error| error.to_string())?))
}

async fn measure(test_schema: &TestSchema, runs: u64, starts: u64, notify: bool) -> Result<Value, String> {
    // A process that executes no runs itself issues the starts.
    let client = Engine::builder(open(test_schema, notify).await?).workflow(definition()?);
    let client = client.action("rewrite", |_: Cx| async { Ok::<_, ActionError>(()) });
    let client = client.tenant(LONE).with(|options| options.max_runs = 0);
    let client = client.start().await.map_err(|error| error.to_string())?;
    crowd(&client, runs).await?;
    let waiting = Waiting::default();
    let worker = worker(open(test_schema, notify).await?, waiting.clone()).await?;
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
        let at = answer.map_err(|_| "a run did not begin within 30 s")?.map_err(|error| error.to_string())?;
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

/// Puts the due runs of the crowded tenant into the store. No process owns them.
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

/// Starts the engine that executes the runs of all tenants and reports the commits of `waiting` runs.
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
