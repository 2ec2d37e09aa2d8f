//! The `kill-engine` workload: an engine that runs workflows is killed repeatedly without warning. In the end every
//! workflow must have completed, every step must be committed once, and all attempts of a step must have the same key.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::{ActionError, Cx, Engine, RunError, Start};

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::effects::{self, Effects, Plant};
use crate::engines;
use crate::histories;
use crate::script::Random;
use crate::site::{Place, Site};
use crate::ten_step::{STEPS, State, definition};

/// Number of concurrent workflows. It is small so that all kills happen before the work is finished.
const IN_FLIGHT: u64 = 8;
/// Name of the file of effects in the work folder.
const EFFECTS: &str = "effects.txt";
/// Maximum number of retries, 100 ms apart, while the database is unavailable.
const PATIENCE: u32 = 600;
/// Half of the longest duration of an action, in microseconds.
const NAP_US: u64 = 10_000;

/// Options of the `kill-engine` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of workflows, of ten steps each.
    #[arg(long, default_value_t = 1_000)]
    workflows: u64,
    /// Number of times that the process is killed.
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Seed of the times at which the victim is killed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plants a bug. The workload must detect it.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Folder for the files, kept for inspection (default: a temporary folder).
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Uses 60 workflows and 10 kills only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `kill-engine` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Path of the file of effects.
    #[arg(long)]
    effects: PathBuf,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of the first workflow that is not known to have finished.
    #[arg(long)]
    first: u64,
    /// Total number of workflows.
    #[arg(long)]
    workflows: u64,
    /// Starts every n-th workflow only, so that several processes share the work.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// Plants a bug in this process.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

/// The reports of all victims, collected from their output.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) done: BTreeSet<u64>,
    /// Workflows reported as failed because their process crashed too often.
    crashed: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    /// Number of workflows that had finished and were started again under the same key.
    again: u64,
}

impl Said {
    pub(crate) fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (word, number) = (words.next().unwrap_or_default(), words.next().and_then(|n| n.parse().ok()));
        match (word, number) {
            ("works", None) => {}
            ("new", Some(number)) => self.again += u64::from(self.done.contains(&number)),
            ("done", Some(number)) => self.done.extend([number]),
            ("crashed", Some(number)) => self.crashed.extend([number]),
            ("failed", Some(number)) => self.failed.extend([number]),
            _ => {}
        }
    }

    /// Returns the first workflow in `from`, `from + stride`, … that is not known to have finished.
    pub(crate) fn first_open(&self, from: u64, stride: u64, workflows: u64) -> u64 {
        let open = |number: &u64| !self.done.contains(number);
        (from..workflows).step_by(stride as usize).find(open).unwrap_or(workflows)
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (workflows, kills) = if options.short { (60, 10) } else { (options.workflows.max(1), options.kills) };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let (place, folder) = match &options.folder {
        Some(folder) if options.store == StoreKind::Sqlite => {
            (Place::Sqlite(folder.join("runs.sqlite")), folder.clone())
        }
        Some(folder) => (site.place(&runtime, "runs")?, folder.clone()),
        None => (site.place(&runtime, "runs")?, site.folder().to_owned()),
    };
    let setting = Setting { kind: options.store, place, folder, workflows, plant: options.plant };
    let begin = Instant::now();
    let mut said = Said::default();
    let mut moments = Moments::new(options.seed);
    let mut killed = 0;
    while killed < kills {
        if !one_kill(&setting, &mut said, &format!("victim-{killed}"), moments.next())? {
            break;
        }
        killed += 1;
        if !options.json && killed % 20 == 0 {
            eprintln!("{killed} kills, {} of {workflows} workflows finished", said.done.len());
        }
    }
    // The last process is not killed and starts every workflow again.
    let survivor = Victim::start("survivor", &setting.arguments(0))?;
    survivor.end()?.iter().for_each(|line| said.hear(line));
    report(&setting, &said, killed, begin.elapsed(), kills)
}

/// The setup that all victims share.
pub(crate) struct Setting {
    pub(crate) kind: StoreKind,
    pub(crate) place: Place,
    pub(crate) folder: PathBuf,
    pub(crate) workflows: u64,
    pub(crate) plant: Option<Plant>,
}

impl Setting {
    pub(crate) fn arguments(&self, first: u64) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        let mut arguments = vec!["kill-engine-part".to_owned()];
        arguments.extend(["--database".to_owned(), self.place.to_string()]);
        arguments.extend(["--effects".to_owned(), path(self.folder.join(EFFECTS))]);
        arguments.extend(["--first".to_owned(), first.to_string()]);
        arguments.extend(["--workflows".to_owned(), self.workflows.to_string()]);
        let plant = self.plant.and_then(|plant| clap::ValueEnum::to_possible_value(&plant));
        arguments
            .extend(plant.into_iter().flat_map(|plant| ["--plant".to_owned(), plant.get_name().to_owned()]));
        arguments
    }
}

/// The times of the kills: some soon after the work began, the others late enough for the first actions to end. Two
/// early kills never follow each other, so that the runs make progress between kills.
struct Moments {
    random: Random,
    was_early: bool,
}

impl Moments {
    fn new(seed: u64) -> Self {
        Moments { random: Random::new(seed), was_early: true }
    }

    fn next(&mut self) -> Duration {
        let early = !self.was_early && self.random.next().is_multiple_of(3);
        self.was_early = early;
        let us = match early {
            true => self.random.next() % (2 * NAP_US),
            false => 3 * NAP_US + self.random.next() % (3 * NAP_US),
        };
        Duration::from_micros(us)
    }
}

/// Starts a victim and kills it `after` it has begun to work. Returns `false` if no work was left.
fn one_kill(setting: &Setting, said: &mut Said, name: &str, after: Duration) -> Result<bool, String> {
    let mut victim = Victim::start(name, &setting.arguments(said.first_open(0, 1, setting.workflows)))?;
    loop {
        let Some(line) = victim.line()? else {
            victim.end()?;
            return Ok(false);
        };
        said.hear(&line);
        if line == "works" {
            break;
        }
    }
    std::thread::sleep(after);
    victim.kill()?.iter().for_each(|line| said.hear(line));
    Ok(true)
}

fn report(setting: &Setting, said: &Said, killed: u64, took: Duration, kills: u64) -> Result<(), String> {
    let (mut line, is_clean) = figures(setting, said)?;
    line["workload"] = "kill-engine".into();
    line["kills"] = killed.into();
    line["seconds"] = took.as_secs().into();
    let is_clean = is_clean && line["uncounted_tries"] == 0;
    println!("{line}");
    match (is_clean, killed == kills) {
        (true, true) => Ok(()),
        (true, false) => {
            Err(format!("the work was finished after {killed} of {kills} kills: raise --workflows"))
        }
        (false, _) => Err("workflows, steps or effects are missing or duplicated".to_owned()),
    }
}

/// Returns the figures of the finished work, and `true` if nothing is missing, duplicated or wrong.
pub(crate) fn figures(setting: &Setting, said: &Said) -> Result<(Value, bool), String> {
    let found = crate::runtime()?.block_on(histories::read(&setting.place))?;
    let path = setting.folder.join(EFFECTS);
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let seen = effects::check(&text, &found.by_run);
    let duplicates = found.duplicates + said.again + found.runs.saturating_sub(setting.workflows);
    let planted = setting.plant.and_then(|plant| clap::ValueEnum::to_possible_value(&plant));
    let line = json!({
        "store": setting.kind.name(),
        "workflows": setting.workflows,
        "finished": found.finished,
        "steps_committed": found.steps,
        "gaps": found.gaps,
        "duplicates": duplicates,
        "missing_effects": seen.missing,
        "wrong_keys": seen.wrong_keys,
        "uncounted_tries": seen.uncounted,
        "effects": seen.effects,
        "repeated_effects": seen.repeated,
        "torn_effects": seen.torn,
        "crashed": said.crashed.len(),
        "failed": said.failed.len(),
        "planted": planted.map(|plant| plant.get_name().to_owned()),
    });
    let wrong = duplicates + found.gaps + seen.missing + seen.wrong_keys;
    let whole = found.finished == setting.workflows
        && said.done.len() as u64 == setting.workflows
        && found.steps == setting.workflows * STEPS as u64;
    Ok((line, wrong == 0 && whole))
}

/// Runs the victim: starts every workflow not known to have finished under its key, and waits for them.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    crate::runtime()?.block_on(work(part))
}

async fn work(part: &Part) -> Result<(), String> {
    let mut tries = 0;
    let engine = loop {
        match open(part, &part.database).await {
            Ok(engine) => break engine,
            // The database is unavailable: retry, as a process supervisor would.
            Err(error) if tries >= PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        tries += 1;
    };
    let next = Arc::new(AtomicU64::new(part.first));
    let workers = (0..IN_FLIGHT).map(|_| {
        let (engine, next, workflows) = (engine.clone(), next.clone(), part.workflows);
        let (plant, stride) = (part.plant, part.stride.max(1));
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(stride, Ordering::Relaxed);
                if number >= workflows {
                    return Ok::<_, String>(());
                }
                one_workflow(&engine, number, plant).await?;
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    for worker in workers {
        worker.await.map_err(|error| error.to_string())??;
    }
    engines::close(engine).await;
    Ok(())
}

async fn one_workflow(engine: &Engine, number: u64, plant: Option<Plant>) -> Result<(), String> {
    let wanted = Start::new("ten-step").input(&State::new(0, number));
    let keyed = if plant == Some(Plant::NoKeys) { wanted } else { wanted.key(format!("workflow-{number}")) };
    let mut tries = 0;
    loop {
        let failed = match engine.start_once(keyed.clone()).await {
            Ok(started) => {
                if started.is_new && plant != Some(Plant::NoKeys) {
                    say(&format!("new {number}"))?;
                }
                match started.run.result().await {
                    Ok(_) => return say(&format!("done {number}")),
                    Err(RunError::Failed { error, .. }) if error.code == "crashed" => {
                        return say(&format!("crashed {number}"));
                    }
                    Err(RunError::Failed { error, .. }) => return say(&format!("failed {number} {error}")),
                    Err(error) => error.to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        // The database is unavailable: retry, as a program would. The key prevents a second run.
        tries += 1;
        if tries > PATIENCE || plant == Some(Plant::NoKeys) {
            return Err(failed);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Opens the engine. Its only action sleeps, appends its effect, and sleeps again.
async fn open(part: &Part, database: &Place) -> Result<Engine, String> {
    let effects = Arc::new(Effects::open(&part.effects, part.plant)?);
    let silent = Arc::new(AtomicBool::new(true));
    let rewrite = move |cx: Cx| {
        let (effects, silent) = (effects.clone(), silent.clone());
        async move {
            if silent.swap(false, Ordering::Relaxed) {
                say("works").map_err(|why| ActionError::new("pipe", why))?;
            }
            let nap = Duration::from_micros(stepwell::new_run_id().uuid().as_u128() as u64 % NAP_US);
            tokio::time::sleep(nap).await;
            effects.have(&cx)?;
            tokio::time::sleep(nap).await;
            cx.update_state(|state: &mut State| state.rewrite())
        }
    };
    let store = engines::open(database).await?;
    let builder =
        engines::tolerant(Engine::builder(store)).workflow(definition()?).action("rewrite", rewrite);
    builder.start().await.map_err(|error| error.to_string())
}
