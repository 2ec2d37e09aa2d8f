//! The `exact-counter` workload: many runs increment one counter step by step while their process is killed repeatedly.
//! In the end the sum must be exact.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Name, Spec};
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_store::{Cleanup, CleanupKind, Record, RecordQuery, RunFilter, RunQuery, Status};

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::engines;
use crate::script::Random;
use crate::site::{Place, Site};

const NAMESPACE: &str = "exact";
const KEY: &str = "sum";
const WORKFLOW: &str = "count";

/// Options of the `exact-counter` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of concurrent runs.
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// Number of increments of all runs together.
    #[arg(long, default_value_t = 50_000)]
    increments: u64,
    /// Maximum number of kills.
    #[arg(long, default_value_t = 20)]
    kills: u64,
    /// Plants a bug: the action increments directly instead of staging the change. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Uses 2,000 increments and 3 kills only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `exact-counter` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of concurrent runs.
    #[arg(long)]
    runs: u64,
    /// Number of increments of each run.
    #[arg(long)]
    each: u64,
    /// Increments directly instead of staging the change (planted bug).
    #[arg(long)]
    plant: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Count {
    n: u64,
    goal: u64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (increments, kills) = if options.short { (2_000, 3) } else { (options.increments, options.kills) };
    let runs = options.runs.clamp(1, increments);
    let each = increments / runs;
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "exact")?;
    let mut arguments = vec!["exact-counter-part".to_owned(), "--database".to_owned(), place.to_string()];
    arguments.extend(["--runs".to_owned(), runs.to_string(), "--each".to_owned(), each.to_string()]);
    arguments.extend(options.plant.then(|| "--plant".to_owned()));
    let begin = Instant::now();
    let (mut random, mut killed) = (Random::new(7), 0);
    while killed < kills {
        let after = Duration::from_millis(30 + random.next() % 400);
        if !one_kill(&arguments, &format!("victim-{killed}"), after)? {
            break;
        }
        killed += 1;
        if !options.json {
            eprintln!("{killed} kills");
        }
    }
    Victim::start("survivor", &arguments)?.end()?;
    let found = runtime.block_on(look(&place))?;
    let expected = runs * each;
    let mut line = found.line();
    line["workload"] = "exact-counter".into();
    line["store"] = options.store.name().into();
    line["expected"] = expected.into();
    line["runs"] = runs.into();
    line["kills"] = killed.into();
    line["planted"] = options.plant.into();
    line["seconds"] = begin.elapsed().as_secs().into();
    println!("{line}");
    let is_exact = found.sum == expected && found.revision == expected && found.audited == expected;
    match is_exact && found.completed == runs && found.is_sound {
        true if killed == 0 => {
            Err("the work was finished before the first kill: raise --increments".to_owned())
        }
        true => Ok(()),
        false => Err(format!("{expected} increments expected, the sum is {}", found.sum)),
    }
}

/// Starts a victim and kills it `after` it has begun to work. Returns `false` if no work was left.
fn one_kill(arguments: &[String], name: &str, after: Duration) -> Result<bool, String> {
    let mut victim = Victim::start(name, arguments)?;
    while let Some(line) = victim.line()? {
        if line == "works" {
            std::thread::sleep(after);
            victim.kill()?;
            return Ok(true);
        }
    }
    victim.end()?;
    Ok(false)
}

/// The state of the database after the last kill.
#[derive(Debug, Default)]
struct Found {
    sum: u64,
    revision: u64,
    /// Audit rows with the operation `store.increment`.
    audited: u64,
    completed: u64,
    is_sound: bool,
    unsealed: u64,
}

impl Found {
    fn line(&self) -> serde_json::Value {
        json!({
            "sum": self.sum,
            "revision": self.revision,
            "audit_rows": self.audited,
            "completed": self.completed,
            "audit_sound": self.is_sound,
            "unsealed": self.unsealed,
        })
    }
}

async fn look(place: &Place) -> Result<Found, String> {
    let store = engines::open(place).await?;
    let builder = Engine::builder(store).with(|options| options.max_runs = 0);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let mut found = Found::default();
    let entry = engine.kv(NAMESPACE).get(KEY).await.map_err(|error| error.to_string())?;
    if let Some(entry) = entry {
        (found.sum, found.revision) = (entry.value.as_u64().unwrap_or_default(), entry.revision);
    }
    let mut cursor = None;
    loop {
        let query = RecordQuery::Audit { limit: 1_000, cursor };
        let page = engine.store().records(engine.scope(), query).await.map_err(|error| error.to_string())?;
        let is_it = |record: &&Record| matches!(record, Record::Audit { row, .. } if row.operation == "store.increment");
        found.audited += page.items.iter().filter(is_it).count() as u64;
        let Some(next) = page.next else { break };
        cursor = Some(next);
    }
    let query = RunQuery {
        filter: RunFilter { workflow: Some(Name::from(WORKFLOW)), ..RunFilter::default() },
        limit: 1_000,
        ..RunQuery::default()
    };
    let runs = engine.store().runs(engine.scope(), query).await.map_err(|error| error.to_string())?;
    found.completed = runs.items.iter().filter(|run| run.status == Status::Completed).count() as u64;
    let seal = || Cleanup { now: engine.now(), limit: 1_000, what: CleanupKind::Seal };
    while engine.store().cleanup(engine.scope(), seal()).await.map_err(|error| error.to_string())?.more {}
    let verified = engine.verify_audit().await.map_err(|error| error.to_string())?;
    (found.is_sound, found.unsealed) = (verified.is_sound(), verified.unsealed);
    engines::close(engine).await;
    Ok(found)
}

fn definition() -> Result<Definition, String> {
    let add = Transition::new("add", "go", "go").when("context.n < context.goal").action("add").priority(1);
    let stop = Transition::new("stop", "go", "done").when("context.n >= context.goal");
    let spec = Spec::new(WORKFLOW).initial("go").step("go").end("done").transition(add).transition(stop);
    spec.build().map_err(|problems| problems.to_string())
}

/// Runs the victim: starts every run under its idempotency key and waits for all of them.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    crate::runtime()?.block_on(work(part))
}

async fn work(part: &Part) -> Result<(), String> {
    let silent = Arc::new(AtomicBool::new(true));
    let own: Arc<OnceLock<Engine>> = Arc::default();
    let (plant, engine_of) = (part.plant, own.clone());
    let add = move |cx: Cx| {
        let (silent, engine) = (silent.clone(), engine_of.clone());
        async move {
            if silent.swap(false, Ordering::Relaxed) {
                say("works").map_err(|why| ActionError::new("pipe", why))?;
            }
            if let (true, Some(engine)) = (plant, engine.get()) {
                engine.kv(NAMESPACE).increment(KEY, 1).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                cx.kv(NAMESPACE).increment(KEY, 1)?;
            }
            cx.update_state(|count: &mut Count| count.n += 1)
        }
    };
    let store = engines::open(&part.database).await?;
    let builder = engines::tolerant(Engine::builder(store)).workflow(definition()?).action("add", add);
    let builder =
        builder.with(|options| (options.max_crashes, options.maintenance_interval_ms) = (10_000, 500));
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let _ = own.set(engine.clone());
    let mut runs = Vec::new();
    for number in 0..part.runs {
        let start =
            Start::new(WORKFLOW).input(&Count { n: 0, goal: part.each }).key(format!("count-{number}"));
        runs.push(engine.start(start).await.map_err(|error| error.to_string())?);
    }
    for run in runs {
        run.result().await.map_err(|error| error.to_string())?;
    }
    drop(own);
    engine.stop(Duration::from_secs(5)).await;
    Ok(())
}
