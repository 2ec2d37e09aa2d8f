//! The `storm` workload: sends thousands of events, many of them more than once, while thousands of runs wait for them
//! and five workflows are triggered by them. The process that does all this is killed repeatedly. In the end every
//! event must have started its workflows and woken each run that waited for it exactly once.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use stepwell::data::kv::KeyList;
use stepwell::{ActionError, Cx, Engine, Event, Start};
use stepwell_core::{Definition, WorkflowSource};
use stepwell_store::{RunFilter, RunQuery, Status};

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::engines;
use crate::script::Random;
use crate::site::{Place, Site};

const WAITER: &str = "waiter";
/// Number of events that each run waits for, one after the other.
const ROUNDS: u64 = 3;
const WOKEN: &str = "woken";
const STARTED: &str = "started";
/// Maximum number of concurrent calls.
const AT_ONCE: usize = 64;
/// Name of the process that is not killed.
const SURVIVOR: &str = "survivor";
/// Line that a process prints when it may be killed.
const WORKS: &str = "works";
/// Line that a process with the planted bug prints after it has counted and before the run's commit.
const COUNTED: &str = "counted";
/// Time that the last process has to finish.
const PATIENCE: Duration = Duration::from_secs(300);

/// Takes three events of its key, and increments a counter for each of them.
const WAITS: &str = "
steps:
  - { id: first, type: vars.set, values: { round: 0 } }
  - id: rounds
    type: control.while
    condition: vars.round < ROUNDS
    body:
      - { id: tick, type: wait.event, eventName: TICK, correlation: { event: event.key, run: payload.key } }
      - { id: own, type: action.call, action: store.increment, input: { namespace: woken, key: { $expr: '$string(payload.key) & \"/\" & vars.tick.id' } } }
      - { id: next, type: vars.set, values: { round: { $expr: vars.round + 1 } } }
";

/// Is triggered by an event, and increments a counter for it.
const STARTS: &str = "
trigger: { id: tick, type: event, eventName: TICK, filter: 'FILTER' }
steps:
  - { id: own, type: action.call, action: COUNT, input: { namespace: started, key: { $expr: 'meta.workflow & \"/\" & payload.id' } } }
";

/// Returns `true` for the numbers of the events that trigger a workflow.
type Wants = fn(u64) -> bool;

/// The triggered workflows: name, filter, and the same filter in Rust.
const STARTERS: [(&str, &str, Wants); 5] = [
    ("all", "true", |_| true),
    ("even", "event.number % 2 = 0", |number| number.is_multiple_of(2)),
    ("fifth", "event.number % 5 = 0", |number| number.is_multiple_of(5)),
    ("large", "event.number > 1000", |number| number > 1_000),
    ("none", "event.number < 0", |_| false),
];

/// Options of the `storm` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of events sent, of which three in ten are duplicates.
    #[arg(long, default_value_t = 10_000)]
    events: u64,
    /// Number of waiting runs.
    #[arg(long, default_value_t = 2_000)]
    waiters: u64,
    /// Maximum number of kills.
    #[arg(long, default_value_t = 20)]
    kills: u64,
    /// Plants a bug: a triggered workflow increments directly instead of with its commit. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Uses 300 events, 60 runs and 5 kills only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `storm` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Number of events to send.
    #[arg(long)]
    events: u64,
    /// Number of waiting runs.
    #[arg(long)]
    waiters: u64,
    /// Index of the first event that is not known to be acknowledged.
    #[arg(long)]
    from: u64,
    /// Increments directly instead of with the commit (planted bug).
    #[arg(long)]
    plant: bool,
}

/// The numbers of events, waiting runs and kills.
#[derive(Debug, Clone, Copy)]
struct Weather {
    events: u64,
    waiters: u64,
    kills: u64,
}

impl Weather {
    /// Returns the number of different events.
    fn distinct(self) -> u64 {
        self.events * 7 / 10
    }

    /// Returns the numbers of the events in the order in which they are sent: shuffled, each at least once.
    fn order(self) -> Vec<u64> {
        let mut random = Random::new(29);
        let mut order: Vec<u64> = (0..self.distinct()).collect();
        order.extend((self.distinct()..self.events).map(|_| random.next() % self.distinct()));
        for at in (1..order.len()).rev() {
            order.swap(at, (random.next() % (at as u64 + 1)) as usize);
        }
        order
    }

    fn starts(self) -> u64 {
        let wanted = |wants: Wants| (0..self.distinct()).filter(|number| wants(*number)).count() as u64;
        STARTERS.iter().map(|(_, _, wants)| wanted(*wants)).sum()
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let weather = match (options.plant, options.short) {
        // The kill comes exactly where the bug shows, so that one is enough.
        (true, _) => Weather { events: 100, waiters: 20, kills: 1 },
        (false, true) => Weather { events: 300, waiters: 60, kills: 5 },
        (false, false) => Weather { events: options.events, waiters: options.waiters, kills: options.kills },
    };
    if weather.distinct() < weather.waiters * ROUNDS {
        return Err(format!("{} runs need three different events each: raise --events", weather.waiters));
    }
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "storm")?;
    let arguments = |from: u64| {
        let mut all = vec!["storm-part".to_owned(), "--database".to_owned(), place.to_string()];
        for (name, value) in [("--events", weather.events), ("--waiters", weather.waiters), ("--from", from)]
        {
            all.extend([name.to_owned(), value.to_string()]);
        }
        all.extend(options.plant.then(|| "--plant".to_owned()));
        all
    };
    let begin = Instant::now();
    let (mut random, mut killed, mut from) = (Random::new(31), 0, 0);
    while killed < weather.kills {
        let (sign, after) = match options.plant {
            true => (COUNTED, 0),
            false => (WORKS, 30 + random.next() % if options.short { 150 } else { 900 }),
        };
        let name = format!("victim-{killed}");
        let Some(heard) = one_kill(&arguments(from), &name, sign, Duration::from_millis(after))? else {
            break;
        };
        from = from.max(heard);
        killed += 1;
        if !options.json {
            eprintln!("{killed} kills, {from} of {} events sent", weather.events);
        }
    }
    Victim::start(SURVIVOR, &arguments(from))?.end()?;
    let mut line = runtime.block_on(look(&place, weather))?;
    line["workload"] = "storm".into();
    line["store"] = options.store.name().into();
    line["sent"] = weather.events.into();
    line["distinct"] = weather.distinct().into();
    line["waiters"] = weather.waiters.into();
    line["kills"] = killed.into();
    line["planted"] = options.plant.into();
    line["seconds"] = begin.elapsed().as_secs_f64().into();
    println!("{line}");
    judge(&line, weather, killed)
}

fn judge(line: &Value, weather: Weather, killed: u64) -> Result<(), String> {
    let wakes = weather.waiters * ROUNDS;
    let expected = [
        ("accepted", weather.distinct()),
        ("delivered", weather.distinct()),
        ("woken_once", wakes),
        ("woken", wakes),
        ("waiters_done", weather.waiters),
        ("started_once", weather.starts()),
        ("started", weather.starts()),
        ("runs_started", weather.starts()),
        ("unwanted", 0),
    ];
    for (name, count) in expected {
        if line[name] != count {
            return Err(format!("`{name}` is {}, expected {count}", line[name]));
        }
    }
    if killed == 0 {
        return Err("the work was finished before the first kill: raise --events".to_owned());
    }
    Ok(())
}

/// Starts a victim and kills it `after` it has printed `sign`. Returns the number of acknowledged events, or `None` if
/// the work was finished.
fn one_kill(arguments: &[String], name: &str, sign: &str, after: Duration) -> Result<Option<u64>, String> {
    let mut victim = Victim::start(name, arguments)?;
    while let Some(line) = victim.line()? {
        if line == sign {
            std::thread::sleep(after);
            if !victim.is_going()? {
                break;
            }
            let said = victim.kill()?;
            let heard = said.iter().rev().find_map(|line| line.strip_prefix("sent ")?.parse().ok());
            return Ok(Some(heard.unwrap_or(0)));
        }
    }
    Ok(None)
}

/// Runs the victim: starts the waiting runs, sends the events and executes what they trigger.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    crate::runtime()?.block_on(work(part))
}

fn read(name: &str, text: &str) -> Result<Definition, String> {
    let document = WorkflowSource::read(text, Some(name)).map_err(|problems| problems.to_string())?;
    Ok(document.definition().clone())
}

fn definitions(plant: bool) -> Result<Vec<Definition>, String> {
    let count = if plant { "count.badly" } else { "store.increment" };
    let mut all = vec![read(WAITER, &WAITS.replace("ROUNDS", &ROUNDS.to_string()))?];
    for (name, filter, _) in STARTERS {
        all.push(read(name, &STARTS.replace("FILTER", filter).replace("COUNT", count))?);
    }
    Ok(all)
}

async fn work(part: &Part) -> Result<(), String> {
    let weather = Weather { events: part.events, waiters: part.waiters, kills: 0 };
    let own: Arc<OnceLock<Engine>> = Arc::default();
    let engine_of = own.clone();
    let is_victim = part.name != SURVIVOR;
    let badly = move |_: Cx, input: Value| {
        let engine = engine_of.clone();
        async move {
            let engine =
                engine.get().ok_or_else(|| ActionError::new("early", "the engine has not started yet"))?;
            let key = input["key"].as_str().unwrap_or_default().to_owned();
            engine.kv(STARTED).increment(&key, 1).await?;
            if is_victim {
                say(COUNTED).map_err(|error| ActionError::new("output", error))?;
                // The kill comes between the count and the commit.
                std::future::pending::<()>().await;
            }
            Ok::<_, ActionError>(Value::Null)
        }
    };
    let mut builder =
        engines::tolerant(Engine::builder(engines::open(&part.database).await?)).action("count.badly", badly);
    for definition in definitions(part.plant)? {
        builder = builder.workflow(definition);
    }
    let builder = builder.with(|options| options.max_crashes = 10_000);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let _ = own.set(engine.clone());
    // Half of the runs wait before the first event, the others start while events are sent.
    let early = (0..weather.waiters / 2).map(|key| wait(&engine, key));
    all(early).await?;
    say(WORKS)?;
    let late = (weather.waiters / 2..weather.waiters).map(|key| wait(&engine, key));
    let (began, sent) = tokio::join!(all(late), send_all(&engine, weather, part.from));
    began?;
    sent?;
    finish(&engine, weather).await?;
    drop(own);
    engine.stop(Duration::from_secs(5)).await;
    Ok(())
}

async fn wait(engine: &Engine, key: u64) -> Result<(), String> {
    let input = json!({ "key": key });
    let start = Start::new(WAITER).input(&input).key(format!("waiter {key}"));
    engine.start(start).await.map(drop).map_err(|error| error.to_string())
}

async fn all(calls: impl Iterator<Item = impl Future<Output = Result<(), String>>>) -> Result<(), String> {
    let done: Vec<_> = stream::iter(calls).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().collect()
}

/// Sends the events in order, many concurrently, and prints up to which one all are acknowledged.
async fn send_all(engine: &Engine, weather: Weather, from: u64) -> Result<(), String> {
    let order = weather.order();
    let send = |at: usize| {
        let number = order[at];
        async move {
            let (key, id) = (number % weather.waiters, format!("e-{number}"));
            let data = json!({ "id": id, "number": number, "key": key });
            let event = Event::new("TICK").source("storm").id(id.as_str()).with(&data);
            engine.emit(event).await.map_err(|error| error.to_string())
        }
    };
    let calls = (from as usize..order.len()).map(send);
    let mut sent = stream::iter(calls).buffered(AT_ONCE);
    let mut count = from;
    while let Some(result) = sent.next().await {
        result?;
        count += 1;
        if count.is_multiple_of(50) {
            say(&format!("sent {count}"))?;
        }
    }
    say(&format!("sent {count}"))
}

/// Waits until everything expected has happened, and a while longer for unexpected results.
async fn finish(engine: &Engine, weather: Weather) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let (woken, started) = (counted(engine, WOKEN).await?.all, counted(engine, STARTED).await?.all);
        let all = woken >= weather.waiters * ROUNDS && started >= weather.starts();
        if all && runs_of(engine, WAITER).await?.1 == weather.waiters {
            break;
        }
        if Instant::now() > until {
            return Err(format!("timeout with {woken} wake-ups and {started} starts"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// Returns the final counts.
async fn look(place: &Place, weather: Weather) -> Result<Value, String> {
    let builder = Engine::builder(engines::open(place).await?).with(|options| options.max_runs = 0);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let (accepted, delivered) = runs_of(&engine, stepwell::events::WORKFLOW).await?;
    let (_, waiters_done) = runs_of(&engine, WAITER).await?;
    let mut runs_started = 0;
    for (name, _, _) in STARTERS {
        runs_started += runs_of(&engine, name).await?.0;
    }
    let (woken, started) = (counted(&engine, WOKEN).await?, counted(&engine, STARTED).await?);
    let wanted: BTreeSet<String> = STARTERS
        .iter()
        .flat_map(|(name, _, wants)| {
            (0..weather.distinct())
                .filter(|number| wants(*number))
                .map(move |number| format!("{name}/e-{number}"))
        })
        .collect();
    let unwanted = started.keys.iter().filter(|key| !wanted.contains(*key)).count();
    engines::close(engine).await;
    Ok(json!({
        "accepted": accepted,
        "delivered": delivered,
        "waiters_done": waiters_done,
        "runs_started": runs_started,
        "woken_once": woken.once,
        "woken": woken.all,
        "started_once": started.once,
        "started": started.all,
        "unwanted": unwanted,
    }))
}

/// Returns the number of runs of a workflow, and how many of them have completed.
async fn runs_of(engine: &Engine, workflow: &str) -> Result<(u64, u64), String> {
    let (mut all, mut done, mut cursor) = (0, 0, None);
    loop {
        let query = RunQuery { filter: RunFilter::of(workflow), limit: 1_000, cursor, ..RunQuery::default() };
        let page = engine.store().runs(engine.scope(), query).await.map_err(|error| error.to_string())?;
        all += page.items.len() as u64;
        done += page.items.iter().filter(|run| run.status == Status::Completed).count() as u64;
        let Some(next) = page.next else { return Ok((all, done)) };
        cursor = Some(next);
    }
}

/// The counters of a namespace.
#[derive(Default)]
struct Counted {
    keys: Vec<String>,
    /// Number of keys with the value 1.
    once: u64,
    /// Sum over all keys.
    all: u64,
}

async fn counted(engine: &Engine, namespace: &str) -> Result<Counted, String> {
    let (mut counted, mut cursor) = (Counted::default(), None);
    loop {
        let list = KeyList { limit: Some(200), cursor, ..KeyList::default() };
        let page = engine.kv(namespace).list(list).await.map_err(|error| error.to_string())?;
        for entry in page.items {
            counted.once += u64::from(entry.value == json!(1));
            counted.all += entry.value.as_u64().unwrap_or(0);
            counted.keys.push(entry.key);
        }
        let Some(next) = page.next else { return Ok(counted) };
        cursor = Some(next);
    }
}
