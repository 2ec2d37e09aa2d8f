//! The `long-loop` workload: a workflow document loops over 10,000 items, each of which increments its own key and a
//! sum. Then it loops over a tenth of them, eight at once. Its process is killed repeatedly. In the end every item must
//! count once, and memory must not grow with the list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::data::kv::KeyList;
use stepwell::{ActionError, Cx, Engine, Run, Start};
use stepwell_core::{Definition, WorkflowSource};
use stepwell_store::{HistoryQuery, RunFilter, RunQuery, Status};

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::engines;
use crate::machine::resident_mb;
use crate::script::Random;
use crate::site::{Place, Site};

const WORKFLOW: &str = "long-loop";
const SUMS: &str = "sums";
const ITEMS: &str = "items";
const WIDE: &str = "wide";

/// A workflow with one action per item and one checkpoint per action.
const DOCUMENT: &str = "
input: { type: object, required: [count] }
steps:
  - id: each
    type: control.forEach
    items: { $expr: '[1..payload.count]' }
    body:
      - { id: own, type: action.call, action: store.increment, input: { namespace: items, key: { $expr: '\"item \" & item' } } }
      - { id: sum, type: action.call, action: COUNT, input: { namespace: sums, key: all } }
  - id: wide
    type: control.forEach
    items: { $expr: '[1..payload.wide]' }
    parallel: 8
    onItemError: collect
    saveAs: wide
    body:
      - { id: once, type: action.call, action: store.increment, input: { namespace: wide, key: { $expr: '\"item \" & item' } } }
      - { id: seventh, type: control.fail, condition: 'item % 7 = 0', code: seventh }
  - { id: done, type: control.return, value: { $expr: '$count(vars.wide[status = \"failed\"])' } }
";

/// Returns the number of items processed eight at once, and how many of them fail on purpose.
fn wide(items: u64) -> (u64, u64) {
    let wide = items / 10;
    (wide, wide / 7)
}

/// Options of the `long-loop` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of items in the list.
    #[arg(long, default_value_t = 10_000)]
    items: u64,
    /// Maximum number of kills.
    #[arg(long, default_value_t = 20)]
    kills: u64,
    /// Plants a bug: the action increments the sum directly instead of with its commit. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Uses 210 items and 4 kills only (400 and 12 with `--plant`).
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `long-loop` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of items in the list.
    #[arg(long)]
    items: u64,
    /// Increments the sum directly instead of with the commit (planted bug).
    #[arg(long)]
    plant: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (items, kills) = match (options.short, options.plant) {
        // Enough kills for some to come between the increment and the commit.
        (true, true) => (400, 12),
        (true, false) => (210, 4),
        (false, _) => (options.items, options.kills),
    };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "loop")?;
    let mut arguments = vec!["long-loop-part".to_owned(), "--database".to_owned(), place.to_string()];
    arguments.extend(["--items".to_owned(), items.to_string()]);
    arguments.extend(options.plant.then(|| "--plant".to_owned()));
    let begin = Instant::now();
    let (mut random, mut killed) = (Random::new(11), 0);
    while killed < kills {
        let after = Duration::from_millis(20 + random.next() % if options.short { 60 } else { 500 });
        if !one_kill(&arguments, &format!("victim-{killed}"), after)? {
            break;
        }
        killed += 1;
        if !options.json {
            eprintln!("{killed} kills");
        }
    }
    let said = Victim::start("survivor", &arguments)?.end()?;
    let rss = said.iter().find_map(|line| line.strip_prefix("rss ")?.parse::<f64>().ok());
    let mut line = runtime.block_on(look(&place, items))?;
    line["workload"] = "long-loop".into();
    line["store"] = options.store.name().into();
    line["items"] = items.into();
    line["kills"] = killed.into();
    line["rss_peak_mb"] = json!(rss);
    let failed = said.iter().find_map(|line| line.strip_prefix("failed ")?.parse::<u64>().ok());
    line["wide_failed"] = json!(failed);
    line["planted"] = options.plant.into();
    line["seconds"] = begin.elapsed().as_secs_f64().into();
    println!("{line}");
    let (at_once, failing) = wide(items);
    let is_wide_exact = line["wide_once"] == at_once && line["wide_failed"] == failing;
    let is_exact = line["sum"] == items && line["counted_once"] == items && line["completed"] == 1;
    let is_exact = is_exact && is_wide_exact;
    match (is_exact, killed) {
        (true, 0) => Err("the work was finished before the first kill: raise --items".to_owned()),
        (true, _) => Ok(()),
        (false, _) => Err(format!("{items} items expected, the sum is {}", line["sum"])),
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

/// Returns the final figures: the sum, the items that counted once, and the versions of the run's history.
async fn look(place: &Place, items: u64) -> Result<Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let store = engines::open(place).await?;
    let builder = Engine::builder(store).with(|options| options.max_runs = 0);
    let engine = builder.start().await.map_err(|error| text(&error))?;
    let sum = engine.kv(SUMS).get("all").await.map_err(|error| text(&error))?;
    let (keys, once) = counted(&engine, ITEMS).await?;
    let (_, wide_once) = counted(&engine, WIDE).await?;
    let query = RunQuery { filter: RunFilter::of(WORKFLOW), limit: 10, ..RunQuery::default() };
    let runs = engine.store().runs(engine.scope(), query).await.map_err(|error| text(&error))?.items;
    let completed = runs.iter().filter(|run| run.status == Status::Completed).count();
    let (mut versions, mut gaps, mut from, mut state_bytes) = (0_u64, 0_u64, 0, 0_u64);
    while let Some(run) = runs.first() {
        let query = HistoryQuery { run: run.run, from, with_state: false, limit: 1_000 };
        let rows = engine.store().history(engine.scope(), query).await.map_err(|error| text(&error))?.items;
        let Some(last) = rows.last() else { break };
        gaps += rows.iter().zip(from..).filter(|(row, version)| row.version != *version).count() as u64;
        versions += rows.len() as u64;
        from = last.version + 1;
    }
    if let (Some(run), true) = (runs.first(), versions > 0) {
        let query = HistoryQuery { run: run.run, from: versions / 2, with_state: true, limit: 1 };
        let rows = engine.store().history(engine.scope(), query).await.map_err(|error| text(&error))?.items;
        state_bytes = rows.first().and_then(|row| row.state.as_ref()).map_or(0, |state| state.len() as u64);
    }
    engines::close(engine).await;
    Ok(json!({
        "sum": sum.map_or(Value::Null, |entry| entry.value),
        "keys": keys,
        "counted_once": once,
        "wide_once": wide_once,
        "completed": completed,
        "versions": versions,
        "least_versions": items * 2,
        "gaps": gaps,
        "state_bytes": state_bytes,
    }))
}

/// Returns the number of keys in a namespace, and how many of them have the value 1.
async fn counted(engine: &Engine, namespace: &str) -> Result<(u64, u64), String> {
    let (mut keys, mut once, mut cursor) = (0, 0, None);
    loop {
        let list = KeyList { limit: Some(200), cursor, ..KeyList::default() };
        let page = engine.kv(namespace).list(list).await.map_err(|error| error.to_string())?;
        keys += page.items.len() as u64;
        once += page.items.iter().filter(|entry| entry.value == json!(1)).count() as u64;
        let Some(next) = page.next else { return Ok((keys, once)) };
        cursor = Some(next);
    }
}

fn definition(plant: bool) -> Result<Definition, String> {
    let action = if plant { "add.badly" } else { "store.increment" };
    let document = WorkflowSource::read(&DOCUMENT.replace("COUNT", action), Some(WORKFLOW));
    Ok(document.map_err(|problems| problems.to_string())?.definition().clone())
}

/// Runs the victim: starts the run under its key, and waits for it.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    crate::runtime()?.block_on(work(part))
}

/// Waits until the run has advanced in this process: before that a kill would interrupt nothing.
async fn has_moved(run: &Run) -> Result<(), String> {
    let version = async || {
        let view = run.view().await.map_err(|error| error.to_string())?;
        Ok::<_, String>((view.snapshot.version(), view.snapshot.is_terminal()))
    };
    let (before, mut is_over) = version().await?;
    let mut now = before;
    while now == before && !is_over {
        tokio::time::sleep(Duration::from_millis(2)).await;
        (now, is_over) = version().await?;
    }
    Ok(())
}

async fn work(part: &Part) -> Result<(), String> {
    let own: Arc<OnceLock<Engine>> = Arc::default();
    let engine_of = own.clone();
    let badly = move |_: Cx, _: Value| {
        let engine = engine_of.clone();
        async move {
            let engine =
                engine.get().ok_or_else(|| ActionError::new("early", "the engine has not started yet"))?;
            let sum = engine.kv(SUMS).increment("all", 1).await?;
            // Long enough for a kill to come between the increment and the commit.
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, ActionError>(json!({ "value": sum.value }))
        }
    };
    let store = engines::open(&part.database).await?;
    let builder = engines::tolerant(Engine::builder(store))
        .workflow(definition(part.plant)?)
        .action("add.badly", badly);
    let builder = builder.with(|options| options.max_crashes = 10_000);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let _ = own.set(engine.clone());
    let (at_once, _) = wide(part.items);
    let input = json!({ "count": part.items, "wide": at_once });
    let start = Start::new(WORKFLOW).input(&input).key("one");
    let run = engine.start(start).await.map_err(|error| error.to_string())?;
    has_moved(&run).await?;
    say("works")?;
    let is_over = Arc::new(AtomicBool::new(false));
    let watched = is_over.clone();
    let peak = tokio::spawn(async move {
        let mut peak = 0.0_f64;
        while !watched.load(Ordering::Relaxed) {
            peak = peak.max(resident_mb().unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        peak
    });
    let failed = run.result().await.map_err(|error| error.to_string())?;
    is_over.store(true, Ordering::Relaxed);
    let peak = peak.await.map_err(|error| error.to_string())?;
    say(&format!("rss {peak}"))?;
    say(&format!("failed {failed}"))?;
    drop(own);
    engine.stop(Duration::from_secs(5)).await;
    Ok(())
}
