//! The `recover` workload: kills a process with thousands of active runs, and measures how soon the next process
//! continues them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::RunId;
use stepwell::store::{Status, Store};
use stepwell::{ActionError, Cx, Engine, Start};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::engines;
use crate::histories;
use crate::machine::resident_mb;
use crate::sample::{median, round};
use crate::script::Random;
use crate::site::{Place, Site};
use crate::ten_step::{State, definition};
use crate::watched::Watched;

/// Capacity of the engine beyond the number of runs.
const SPARE: usize = 64;

/// Options of the `recover` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to measure on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of active runs when the process is killed.
    #[arg(long, default_value_t = 3_000)]
    runs: u64,
    /// Number of kills and restarts, each with a new database.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Uses 300 runs and one round, to show that the workload works; the figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the two processes of `recover`.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of runs to work on.
    #[arg(long)]
    runs: u64,
    /// Continues the runs that the killed process has left.
    #[arg(long)]
    resume: bool,
}

/// The figures of one kill and restart. Times are in milliseconds from the kill, `engine_first_resumed` from the start
/// of the engine.
#[derive(Debug, Default)]
struct Round {
    in_flight: u64,
    first_resumed: f64,
    engine_first_resumed: f64,
    first_commit: f64,
    all_resumed: f64,
    all_finished: f64,
    rss_mb: f64,
    lost: u64,
    duplicates: u64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let runtime = crate::runtime()?;
    let (runs, rounds) = if options.short { (300, 1) } else { (options.runs.max(1), options.rounds.max(1)) };
    let mut random = Random::new(1);
    let mut done = Vec::new();
    for number in 0..rounds {
        let after = Duration::from_millis(500 + random.next() % 1_500);
        let round = one_round(&runtime, options.store, runs, after)?;
        if !options.json {
            eprintln!(
                "{}: first resumed after {:.0} ms, all after {:.0} ms",
                number + 1,
                round.first_resumed,
                round.all_resumed
            );
        }
        done.push(round);
    }
    let mut line = line(runs, &done);
    line["store"] = options.store.name().into();
    println!("{line}");
    let clean = done.iter().all(|round| round.lost + round.duplicates == 0);
    if clean { Ok(()) } else { Err("runs were lost, or steps were committed twice".to_owned()) }
}

fn line(runs: u64, rounds: &[Round]) -> Value {
    let middle = |of: fn(&Round) -> f64| round(median(rounds.iter().map(of).collect()));
    let worst = |of: fn(&Round) -> f64| round(rounds.iter().map(of).fold(0.0, f64::max));
    json!({
        "workload": "recover",
        "runs": runs,
        "rounds": rounds.len(),
        "in_flight": rounds.iter().map(|round| round.in_flight).min(),
        "first_resumed_ms": middle(|round| round.first_resumed),
        "first_resumed_max_ms": worst(|round| round.first_resumed),
        "engine_first_resumed_ms": middle(|round| round.engine_first_resumed),
        "first_commit_ms": middle(|round| round.first_commit),
        "all_resumed_ms": middle(|round| round.all_resumed),
        "all_finished_ms": middle(|round| round.all_finished),
        "rss_mb": worst(|round| round.rss_mb),
        "runs_lost": rounds.iter().map(|round| round.lost).sum::<u64>(),
        "duplicates": rounds.iter().map(|round| round.duplicates).sum::<u64>(),
    })
}

fn one_round(runtime: &Runtime, kind: StoreKind, runs: u64, after: Duration) -> Result<Round, String> {
    let site = Site::new(kind)?;
    let place = site.place(runtime, "runs")?;
    // On PostgreSQL the second process is already running. An SQLite file has one owner, so there it starts after the
    // kill.
    let other = match kind {
        StoreKind::Sqlite => None,
        StoreKind::Postgres => Some(second(&place, runs)?),
    };
    let in_flight = work_and_die(&place, runs, after)?;
    let begin = Instant::now();
    let other = match other {
        Some(other) => other,
        None => second(&place, runs)?,
    };
    let mut round = resumed(other, begin)?;
    round.in_flight = in_flight;
    let found = runtime.block_on(histories::read(&place))?;
    round.lost = runs.saturating_sub(found.finished) + found.gaps;
    round.duplicates = found.duplicates + found.runs.saturating_sub(runs);
    Ok(round)
}

fn arguments(database: &Place, runs: u64, resume: bool) -> Vec<String> {
    let mut arguments = vec!["recover-part".to_owned(), "--database".to_owned(), database.to_string()];
    arguments.extend(["--runs".to_owned(), runs.to_string()]);
    arguments.extend(resume.then(|| "--resume".to_owned()));
    arguments
}

/// Lets a process work on all runs at once, kills it `after` that, and returns the number of active runs.
fn work_and_die(database: &Place, runs: u64, after: Duration) -> Result<u64, String> {
    let mut victim = Victim::start("first", &arguments(database, runs, false))?;
    loop {
        let line = victim.line()?.ok_or("the first process ended before it was killed")?;
        let in_flight = number_after(&line, "working")?;
        if in_flight == runs {
            std::thread::sleep(after);
            victim.kill()?;
            return Ok(in_flight);
        }
    }
}

/// Starts the process that continues the runs, and waits until it is ready.
fn second(database: &Place, runs: u64) -> Result<Victim, String> {
    let mut process = Victim::start("second", &arguments(database, runs, true))?;
    let line = process.line()?.ok_or("the second process ended before it was ready")?;
    if line == "ready" {
        Ok(process)
    } else {
        Err(format!("unexpected output of the second process: `{line}`"))
    }
}

/// Records the times of the reports of the second process.
fn resumed(mut process: Victim, begin: Instant) -> Result<Round, String> {
    let mut round = Round::default();
    let ms = || begin.elapsed().as_secs_f64() * 1e3;
    while let Some(line) = process.line()? {
        let (word, value) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "action" => {
                round.first_resumed = ms();
                round.engine_first_resumed = number_after(&line, "action")? as f64 / 1e3;
            }
            "commit" => round.first_commit = ms(),
            "all" => round.all_resumed = ms(),
            "rss" => {
                round.all_finished = ms();
                round.rss_mb = value.parse().map_err(|_| format!("not a number: {line}"))?;
            }
            _ => return Err(format!("unexpected output of the second process: `{line}`")),
        }
    }
    process.end()?;
    Ok(round)
}

fn number_after(line: &str, word: &str) -> Result<u64, String> {
    let number = line.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
    number.ok_or_else(|| format!("the process under test printed `{line}`, expected `{word}` and a number"))
}

/// Runs one of the two processes: the first until it is killed, the second until all runs have ended.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    let runtime = crate::runtime()?;
    if part.resume { runtime.block_on(go_on(part)) } else { runtime.block_on(work(part)) }
}

/// Keeps all runs active: every action takes a while, and the last action of a run never ends.
async fn work(part: &Part) -> Result<(), String> {
    let working = Arc::new(AtomicU64::new(0));
    let counted = working.clone();
    let rewrite = move |cx: Cx| {
        match cx.transition().as_str() {
            "t0" => counted.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        async move {
            if cx.transition().as_str() == "t9" {
                std::future::pending::<()>().await;
            }
            let nap = 400 + cx.run().uuid().as_u128() as u64 % 1_200;
            tokio::time::sleep(Duration::from_millis(nap)).await;
            cx.update_state(|state: &mut State| state.rewrite())
        }
    };
    let builder = Engine::builder(engines::open(&part.database).await?).workflow(definition()?);
    let builder =
        builder.action("rewrite", rewrite).with(|options| options.max_runs = part.runs as usize + SPARE);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let starts = (0..part.runs).map(|number| {
        let engine = engine.clone();
        tokio::spawn(async move {
            engine.start(Start::new("ten-step").input(&State::new(0, number))).await.map(drop)
        })
    });
    let starts: Vec<_> = starts.collect();
    for start in starts {
        start.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    }
    loop {
        say(&format!("working {}", working.load(Ordering::Relaxed)))?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The progress that the second process has observed.
#[derive(Default)]
struct Seen {
    resumed: Mutex<HashSet<RunId>>,
    commits: AtomicU64,
    finished: AtomicU64,
    end: Notify,
}

/// Continues the runs, reports the progress, and exits when all runs have completed.
async fn go_on(part: &Part) -> Result<(), String> {
    let seen = Arc::new(Seen::default());
    let (runs, counted) = (part.runs, seen.clone());
    let store = watched(engines::open(&part.database).await?, runs, seen.clone());
    let begin = Instant::now();
    let rewrite = move |cx: Cx| {
        let fresh = {
            let mut resumed = counted.resumed.lock().unwrap_or_else(PoisonError::into_inner);
            resumed.insert(cx.run()).then(|| resumed.len() as u64)
        };
        let since = begin.elapsed().as_micros();
        async move {
            if fresh == Some(1) {
                say(&format!("action {since}")).map_err(|why| ActionError::new("pipe", why))?;
            }
            if fresh == Some(runs) {
                say("all").map_err(|why| ActionError::new("pipe", why))?;
            }
            cx.update_state(|state: &mut State| state.rewrite())
        }
    };
    let builder = Engine::builder(store).workflow(definition()?).action("rewrite", rewrite);
    let builder = builder.with(|options| options.max_runs = runs as usize + SPARE);
    say("ready")?;
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    seen.end.notified().await;
    say(&format!("rss {}", resident_mb()?))?;
    engines::close(engine).await;
    Ok(())
}

fn watched(inner: Arc<dyn Store>, runs: u64, seen: Arc<Seen>) -> Arc<dyn Store> {
    let told = move |_: RunId, status: Status| {
        if seen.commits.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = say("commit");
        }
        let ended = status == Status::Completed && seen.finished.fetch_add(1, Ordering::Relaxed) + 1 == runs;
        if ended {
            seen.end.notify_one();
        }
    };
    Arc::new(Watched { inner, told: Box::new(told) })
}
