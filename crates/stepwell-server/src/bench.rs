//! `stepwell bench`: measures the fsync rate of this machine's disk and the step rate of the engine on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_sqlite::SqliteStore;

use crate::config::{Config, Sources};
use crate::exit::{Code, Failure};
use crate::facts;
use crate::output::{self, print_message, spinner};
use crate::server::runtime;
use crate::start::sqlite_path;

/// Number of steps per run.
const STEPS: u64 = 10;

const AFTER: &str = "The benchmark uses a temporary directory next to the configured database and removes it afterwards. The database itself is not touched.

Examples:
  stepwell bench
  stepwell bench --seconds 10 --in-flight 256 --json";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct Options {
    /// Configuration file (default: `stepwell.toml`, if it exists).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Database next to which the benchmark runs: `sqlite:PATH`.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Duration of each of the two measurements, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Number of concurrent runs.
    #[arg(long, value_name = "NUMBER", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=4096))]
    in_flight: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let flags = vec![("database.url", "--database-url", options.database_url.clone())];
    let url = Config::read(&Sources::of(options.config.as_deref(), flags))?.settings.database.url;
    let path = sqlite_path(&url).ok_or_else(|| {
        let why =
            "this command measures SQLite; for PostgreSQL use `pg_test_fsync` and `pgbench` on the database machine";
        Failure::new(Code::Invalid, why)
    })?;
    let folder = facts::folder(&path);
    std::fs::create_dir_all(&folder)
        .map_err(|error| Failure::unexpected(format!("{}: {error}", folder.display())))?;
    let period = Duration::from_secs(options.seconds);
    print_message(&format!("measuring in {} for about {} s", folder.display(), 2 * options.seconds));
    let rate = stepwell_sqlite::fsync_rate(&folder, period).map_err(Failure::unexpected)?;
    let own = Own::new(&folder)?;
    let steps = runtime()?.block_on(steps(&own.0.join("bench.sqlite"), period, options.in_flight))?;
    let figures = json!({
        "folder": folder.display().to_string(),
        "fsyncsPerSecond": rate.per_second.round(),
        "fsyncP50Us": rate.p50_us,
        "fsyncP99Us": rate.p99_us,
        "inFlight": options.in_flight,
        "seconds": options.seconds,
        "runs": steps.runs,
        "stepsPerSecond": steps.per_second.round(),
        "runP50Us": steps.p50_us,
        "runP99Us": steps.p99_us,
    });
    if options.json {
        return output::line(&figures.to_string());
    }
    figures.as_object().into_iter().flatten().try_for_each(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        output::line(&format!("{name:16} {value}"))
    })
}

/// A temporary directory, removed with its contents on drop.
struct Own(PathBuf);

impl Own {
    fn new(beside: &Path) -> Result<Self, Failure> {
        let folder = beside.join(format!("stepwell-bench-{}", uuid::Uuid::now_v7()));
        let made = std::fs::create_dir(&folder);
        made.map_err(|error| Failure::unexpected(format!("{}: {error}", folder.display())))?;
        Ok(Own(folder))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            print_message(&format!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

struct Steps {
    runs: u64,
    per_second: f64,
    p50_us: u64,
    p99_us: u64,
}

async fn nothing(_: Cx) -> Result<Value, ActionError> {
    Ok(Value::Null)
}

/// Executes runs of ten steps with one commit per step, `in_flight` runs at a time, for `period`.
async fn steps(path: &Path, period: Duration, in_flight: u64) -> Result<Steps, Failure> {
    let mut spec = Spec::new("bench").initial("s0");
    for step in 0..STEPS {
        let (from, to) = (format!("s{step}"), format!("s{}", step + 1));
        spec = spec.step(from.as_str());
        spec = spec
            .transition(Transition::new(format!("t{step}"), from.as_str(), to.as_str()).action("nothing"));
    }
    let spec = spec.end(format!("s{STEPS}").as_str()).build().map_err(Failure::unexpected)?;
    let store = Arc::new(SqliteStore::open(path).map_err(Failure::unexpected)?);
    let engine = Engine::builder(store)
        .workflow(spec)
        .action("nothing", nothing)
        .with(|options| options.max_runs = in_flight as usize)
        .start()
        .await?;
    let (began, count) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let bar = spinner("runs done");
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let (engine, count, bar) = (engine.clone(), count.clone(), bar.clone());
        workers.spawn(async move {
            let mut took = Vec::new();
            while began.elapsed() < period {
                let at = Instant::now();
                let run = engine.start(Start::new("bench")).await.map_err(|error| error.to_string())?;
                run.result().await.map_err(|error| error.to_string())?;
                took.push(at.elapsed());
                bar.set_position(count.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Ok::<_, String>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(done) = workers.join_next().await {
        took.extend(done.map_err(Failure::unexpected)?.map_err(Failure::unexpected)?);
    }
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    engine.stop(Duration::from_secs(5)).await;
    took.sort_unstable();
    let at = |share: f64| took.get(((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1)));
    let us = |share: f64| at(share).map_or(0, |took| took.as_micros() as u64);
    let runs = took.len() as u64;
    Ok(Steps { runs, per_second: (runs * STEPS) as f64 / seconds, p50_us: us(0.5), p99_us: us(0.99) })
}
