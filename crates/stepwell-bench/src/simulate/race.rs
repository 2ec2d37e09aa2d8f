//! The `race` workload: events, waits for them and timeouts of these waits come in every order, on two engines that
//! share a store and sometimes die. In every order these rules must hold:
//!
//! - A run takes only an event with its key that was accepted before the wait timed out.
//! - If such an event was stored before the timeout and had not expired when the wait opened, the run has taken one.
//! - Each run is resolved once, and each event starts its triggered run once, no matter how often it was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use stepwell::host::{BoxFuture, Host, Ids, Spawn};
use stepwell::{Engine, Event, Start};
use stepwell_core::snapshot::RunEnd;
use stepwell_core::{Definition, RunId, Snapshot, Timestamp, WorkflowSource};
use stepwell_store::{
    Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed, DueTenant,
    Heartbeat, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded, Membership, MemoryStore, Page,
    ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Status, Store, StoreError,
    TenantId, TenantScope, WaitQuery, WaitRow,
};
use uuid::Uuid;

use super::dice::{Dice, Part};
use super::tasks::{Board, Owner, Tasks};
use super::time::{ProcessClock, Time, Wall, micros};
use super::world::at_once;
use crate::sample::round;

const WAITS: &str = "
steps:
  - id: ping
    type: wait.event
    eventName: PING
    correlation: { event: event.key, run: payload.key }
    timeout: 1s
    onTimeout: [{ id: late, type: control.return, value: late }]
  - { id: done, type: control.return, value: { $expr: vars.ping.id } }
";
const STARTS: &str = "
trigger: { id: ping, type: event, eventName: PING }
steps: [{ id: done, type: control.return, value: { $expr: payload.id } }]
";
/// Timeout of a wait, in microseconds.
const TIMEOUT_US: i64 = 1_000_000;
/// Time after which nothing starts and no process dies, in microseconds.
const QUIET_US: i64 = 3_000_000;
/// Time for the remaining runs to end after that, in microseconds.
const PATIENCE_US: i64 = 60_000_000;
const LEASE_MS: u64 = 400;
const ENGINES: usize = 2;

/// Options of the `race` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of interleavings to run.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Runs the interleaving of this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Plants a bug: a wait does not find events that arrived before it. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Runs 1,000 interleavings only.
    #[arg(long)]
    short: bool,
    /// Accepted for uniformity; the output is always JSON.
    #[arg(long)]
    json: bool,
}

/// Counts over all interleavings.
#[derive(Debug, Clone, Default)]
struct Tally {
    runs: u64,
    taken: u64,
    late: u64,
    /// Events accepted before the wait opened; `during` it; `near` its timeout; `after` it.
    before: u64,
    during: u64,
    near: u64,
    after: u64,
    duplicates: u64,
    kills: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        let Tally { runs, taken, late, before, during, near, after, duplicates, kills } = other;
        self.runs += runs;
        self.taken += taken;
        self.late += late;
        self.before += before;
        self.during += during;
        self.near += near;
        self.after += after;
        self.duplicates += duplicates;
        self.kills += kills;
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let began = Instant::now();
    let seeds = if options.short { 1_000 } else { options.seeds };
    let (from, count) = options.seed.map_or((0, seeds), |seed| (seed, 1));
    let (next, found) = (AtomicU64::new(from), AtomicBool::new(false));
    let sum = Mutex::new((Tally::default(), 0_u64, None::<(u64, String)>));
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !found.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let raced = race(seed, options.plant);
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    sum.1 += 1;
                    match raced {
                        Ok(tally) => sum.0.add(&tally),
                        Err(what) => {
                            found.store(true, Ordering::Relaxed);
                            if sum.2.as_ref().is_none_or(|(first, _)| seed < *first) {
                                sum.2 = Some((seed, what));
                            }
                        }
                    }
                }
            });
        }
    });
    let (tally, done, violation) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    let seconds = began.elapsed().as_secs_f64();
    let Tally { runs, taken, late, before, during, near, after, duplicates, kills } = tally;
    let line = json!({
        "workload": "race", "seeds": done, "violations": u64::from(violation.is_some()), "runs": runs,
        "taken": taken, "late": late, "before": before, "during": during, "near": near, "after": after,
        "duplicates": duplicates, "kills": kills, "planted": options.plant, "seconds": round(seconds),
        "what": violation.as_ref().map(|(_, what)| what), "seed": violation.as_ref().map(|(seed, _)| seed),
    });
    println!("{line}");
    match violation {
        None => Ok(()),
        Some((seed, what)) => Err(format!("seed {seed}: {what}")),
    }
}

/// A process with its engine. `lives` is `false` after its death.
struct Process {
    slot: usize,
    lives: bool,
    engine: Option<Engine>,
}

struct Scene {
    wire: Dice,
    ids: Dice,
    made: u64,
    processes: Vec<Process>,
    doomed: Vec<usize>,
    /// Time when the commit of an event was applied, in microseconds.
    applied: BTreeMap<RunId, i64>,
    /// Commits per 1,000 during which the process dies.
    deadly: u64,
    is_quiet: bool,
    /// Number of clients that have not finished.
    clients: usize,
    tally: Tally,
}

struct World {
    memory: Arc<MemoryStore>,
    time: Arc<Time>,
    board: Arc<Board>,
    scene: Mutex<Scene>,
    plant: bool,
}

impl World {
    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sleep(&self, us: u64) {
        self.time.sleep(us).await;
    }

    fn kill(&self, number: usize) {
        let mut scene = self.scene();
        if scene.processes[number].lives {
            scene.processes[number].lives = false;
            scene.doomed.push(number);
            scene.tally.kills += 1;
        }
    }
}

/// The store as a process sees it: calls take time, and a dead process gets no answer.
struct Wire {
    world: Arc<World>,
    process: usize,
}

impl Wire {
    async fn way(&self) {
        let us = {
            let mut scene = self.world.scene();
            if scene.wire.chance(400) { 0 } else { scene.wire.between(50, 4_000) }
        };
        if us > 0 {
            self.world.sleep(us).await;
        }
        let lives = self.world.scene().processes[self.process].lives;
        if !lives {
            pending::<()>().await;
        }
    }

    async fn call<T>(&self, work: impl Future<Output = T>) -> T {
        self.way().await;
        let answer = work.await;
        self.way().await;
        answer
    }
}

#[async_trait]
impl Store for Wire {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        self.way().await;
        let dies = {
            let mut scene = self.world.scene();
            let deadly = if scene.is_quiet { 0 } else { scene.deadly };
            scene.wire.chance(deadly).then(|| scene.wire.chance(500))
        };
        if dies == Some(true) {
            self.world.kill(self.process);
            pending::<()>().await;
        }
        let events = commit.create.iter().filter(|new| new.workflow.as_str() == stepwell::events::WORKFLOW);
        let events: Vec<_> = events.map(|new| new.run).collect();
        let answer = self.world.memory.commit(scope, commit).await;
        if answer.is_ok() {
            let now = self.world.time.now();
            self.world.scene().applied.extend(events.into_iter().map(|run| (run, now)));
        }
        if dies == Some(false) {
            self.world.kill(self.process);
        }
        self.way().await;
        answer
    }
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.call(self.world.memory.outcome(scope, commit)).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.call(self.world.memory.load(scope, run)).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        self.call(self.world.memory.claim(scope, claim)).await
    }
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        self.call(self.world.memory.due(expired)).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.call(self.world.memory.tenants(after, limit)).await
    }
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        self.call(self.world.memory.heartbeat(beat)).await
    }
    fn hints(&self) -> Hints {
        self.world.memory.hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.call(self.world.memory.cells(scope, query)).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.call(self.world.memory.links(scope, query)).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        if self.world.plant && !query.filter.shadows.is_empty() {
            return Ok(Page::of([]));
        }
        self.call(self.world.memory.runs(scope, query)).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        self.call(self.world.memory.waits(scope, query)).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        self.call(self.world.memory.history(scope, query)).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: stepwell_store::DocumentQuery,
    ) -> Result<Page<stepwell_store::Document>, StoreError> {
        self.call(self.world.memory.documents(scope, query)).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        self.call(self.world.memory.records(scope, query)).await
    }
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        self.call(self.world.memory.cleanup(scope, cleanup)).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.world.memory.migrate().await
    }
}

/// The host functions of an engine: tasks and ids.
struct Machine {
    world: Arc<World>,
    number: usize,
}

impl Spawn for Machine {
    fn spawn(&self, task: BoxFuture<()>) {
        self.world.board.spawn(Owner::Process(self.number), task);
    }
}

impl Ids for Machine {
    fn next(&self) -> Uuid {
        let mut scene = self.world.scene();
        scene.made += 1;
        let chance = u128::from(scene.ids.number());
        Uuid::from_u128((u128::from(scene.made) << 64) | chance)
    }
}

fn definitions() -> &'static [Definition; 2] {
    static READ: OnceLock<[Definition; 2]> = OnceLock::new();
    READ.get_or_init(|| {
        [("waits", WAITS), ("starts", STARTS)].map(|(name, text)| {
            let document = WorkflowSource::read(text, Some(name));
            document.expect("the workflows of the race are valid").definition().clone()
        })
    })
}

async fn live(world: Arc<World>, number: usize) {
    let machine = || Machine { world: world.clone(), number };
    let clock = ProcessClock { time: world.time.clone(), wall: Wall::default() };
    let host = Host { clock: Arc::new(clock), spawn: Arc::new(machine()), ids: Arc::new(machine()) };
    let mut builder = Engine::builder(Arc::new(Wire { world: world.clone(), process: number })).host(host);
    for definition in definitions() {
        builder = builder.workflow(definition.clone());
    }
    let builder = builder.with(|options| {
        (options.lease_ms, options.poll_ms, options.maintenance_interval_ms) = (LEASE_MS, 100, 600_000);
        options.max_crashes = 1_000;
    });
    if let Ok(engine) = builder.start().await
        && let Some(process) = world.scene().processes.get_mut(number)
    {
        process.engine = Some(engine);
    }
}

/// An external client that repeats its request until it succeeds.
async fn client(world: Arc<World>, at: u64, ask: impl AsyncFn(Engine) -> bool) {
    world.sleep(at).await;
    loop {
        let picked = {
            let mut scene = world.scene();
            let able: Vec<_> = (0..scene.processes.len())
                .filter(|number| scene.processes[*number].lives && scene.processes[*number].engine.is_some())
                .collect();
            let at = scene.wire.below(able.len().max(1) as u64) as usize;
            able.get(at).copied().and_then(|number| Some((number, scene.processes[number].engine.clone()?)))
        };
        let Some((number, engine)) = picked else {
            world.sleep(2_000).await;
            continue;
        };
        let died = async {
            while world.scene().processes[number].lives {
                world.sleep(3_000).await;
            }
        };
        let done = tokio::select! {
            biased;
            done = ask(engine) => done,
            () = died => false,
        };
        if done {
            break;
        }
        world.sleep(500).await;
    }
    world.scene().clients -= 1;
}

/// An event that a client sends.
#[derive(Debug, Clone)]
struct Sent {
    id: String,
    key: u64,
    kept_ms: u64,
}

/// The script of one race.
struct Plot {
    /// The key of each run and its start time in microseconds.
    runs: Vec<(u64, u64)>,
    events: Vec<(Sent, Vec<u64>)>,
    kills: Vec<(i64, usize)>,
}

impl Plot {
    fn of(dice: &mut Dice) -> Self {
        let keys = dice.between(1, 2);
        let begins = 100_000;
        let runs: Vec<_> =
            (0..dice.between(1, 4)).map(|_| (dice.below(keys), begins + dice.below(200_000))).collect();
        let mut events = Vec::new();
        for number in 0..dice.between(1, 4) {
            let (key, start) = dice.pick(&runs);
            let at = match dice.below(6) {
                0 => start - dice.below(90_000),
                1 => start + dice.below(12_000) - dice.below(6_000),
                2 => start + dice.below(900_000),
                3 | 4 => start + TIMEOUT_US as u64 + dice.below(12_000) - dice.below(12_000),
                _ => start + TIMEOUT_US as u64 + dice.below(200_000),
            };
            let key = if dice.chance(900) { key } else { dice.below(keys) };
            let kept_ms = if dice.chance(800) { 86_400_000 } else { dice.between(1, 150) };
            let mut times = vec![at];
            if dice.chance(300) {
                times.push(at + dice.below(5_000));
            }
            events.push((Sent { id: format!("e-{number}"), key, kept_ms }, times));
        }
        let kills = if dice.chance(400) { dice.between(1, 3) } else { 0 };
        let kills = (0..kills)
            .map(|_| {
                let (_, start) = dice.pick(&runs);
                let at = start as i64 + dice.pick(&[0, TIMEOUT_US]) + dice.below(30_000) as i64 - 10_000;
                (at, dice.below(ENGINES as u64) as usize)
            })
            .collect();
        Plot { runs, events, kills }
    }
}

/// Runs one race and checks the rules.
fn race(seed: u64, plant: bool) -> Result<Tally, String> {
    let mut dice = Dice::new(seed, Part::Plot);
    let plot = Plot::of(&mut dice);
    let clients = plot.runs.len() + plot.events.iter().map(|(_, times)| times.len()).sum::<usize>();
    let scene = Scene {
        wire: Dice::new(seed, Part::Wire),
        ids: Dice::new(seed, Part::Ids),
        made: 0,
        processes: Vec::new(),
        doomed: Vec::new(),
        applied: BTreeMap::new(),
        deadly: if dice.chance(300) { 15 } else { 0 },
        is_quiet: false,
        clients,
        tally: Tally::default(),
    };
    let board = Arc::new(Board::default());
    let world = Arc::new(World {
        memory: Arc::new(MemoryStore::new()),
        time: Arc::default(),
        board: board.clone(),
        scene: Mutex::new(scene),
        plant,
    });
    let mut ring =
        Ring { world: world.clone(), tasks: Tasks::new(board), order: Dice::new(seed, Part::Order) };
    send_off(&world, &plot);
    let went = ring.go(&plot);
    ring.close();
    went?;
    verdict(&world, &plot)?;
    let mut tally = world.scene().tally.clone();
    tally.runs = plot.runs.len() as u64;
    tally.duplicates = plot.events.iter().map(|(_, times)| times.len() as u64 - 1).sum();
    Ok(tally)
}

fn send_off(world: &Arc<World>, plot: &Plot) {
    for (index, (key, at)) in plot.runs.iter().copied().enumerate() {
        let ask = async move |engine: Engine| {
            let input = json!({ "key": key });
            engine.start(Start::new("waits").input(&input).key(format!("run {index}"))).await.is_ok()
        };
        let task = client(world.clone(), at, ask);
        world.board.spawn(Owner::Outside, Box::pin(task));
    }
    for (sent, times) in &plot.events {
        for at in times {
            let sent = sent.clone();
            let ask = async move |engine: Engine| {
                let Sent { id, key, kept_ms } = sent.clone();
                let event =
                    Event::new("PING").source("race").id(id.as_str()).with(&json!({ "id": id, "key": key }));
                engine.emit(event.ttl(Duration::from_millis(kept_ms))).await.is_ok()
            };
            let task = client(world.clone(), *at, ask);
            world.board.spawn(Owner::Outside, Box::pin(task));
        }
    }
}

/// The scheduler of one race. It continues one task at a time.
struct Ring {
    world: Arc<World>,
    tasks: Tasks,
    order: Dice,
}

impl Ring {
    fn begin(&self, slot: usize) {
        let number = {
            let mut scene = self.world.scene();
            scene.processes.push(Process { slot, lives: true, engine: None });
            scene.processes.len() - 1
        };
        self.world.board.spawn(Owner::Process(number), Box::pin(live(self.world.clone(), number)));
    }

    fn go(&mut self, plot: &Plot) -> Result<(), String> {
        (0..ENGINES).for_each(|slot| self.begin(slot));
        let mut kills: BTreeSet<(i64, usize)> = plot.kills.iter().copied().collect();
        let mut begins: BTreeSet<(i64, usize, u64)> = BTreeSet::new();
        let mut count = 0;
        loop {
            let now = self.world.time.now();
            self.bury(&mut begins, now, &mut count);
            if let Some((_, slot)) = kills.first().copied().filter(|(at, _)| *at <= now) {
                kills.pop_first();
                let living = self.living(slot);
                living.into_iter().for_each(|number| self.world.kill(number));
                continue;
            }
            if let Some((_, slot, _)) = begins.first().copied().filter(|(at, ..)| *at <= now) {
                begins.pop_first();
                self.begin(slot);
                continue;
            }
            let scene = self.world.clone();
            let lives = |owner: Owner| match owner {
                Owner::Outside => true,
                Owner::Process(number) => scene.scene().processes[number].lives,
            };
            self.tasks.adopt(lives);
            if self.tasks.step(&mut self.order, |_, owner| lives(owner)).is_some() {
                continue;
            }
            if now >= QUIET_US {
                self.world.scene().is_quiet = true;
                if self.is_over() {
                    return Ok(());
                }
            }
            if now > QUIET_US + PATIENCE_US {
                return Err(format!("the race did not end within a minute: {}", self.stuck()));
            }
            let next = [kills.first().map(|(at, _)| *at), begins.first().map(|(at, ..)| *at)];
            let quiet = (now < QUIET_US).then_some(QUIET_US);
            let next = next.into_iter().chain([self.world.time.next_sleeper(), quiet]).flatten().min();
            self.world.time.set(next.ok_or("deadlock: no task can continue")?);
        }
    }

    fn living(&self, slot: usize) -> Option<usize> {
        let scene = self.world.scene();
        (0..scene.processes.len())
            .find(|number| scene.processes[*number].slot == slot && scene.processes[*number].lives)
    }

    /// Ends the tasks of dead processes and schedules their replacements.
    fn bury(&mut self, begins: &mut BTreeSet<(i64, usize, u64)>, now: i64, count: &mut u64) {
        loop {
            let (number, slot, engine) = {
                let mut scene = self.world.scene();
                let Some(number) = scene.doomed.pop() else { return };
                let process = &mut scene.processes[number];
                (number, process.slot, process.engine.take())
            };
            self.tasks.end_of(Owner::Process(number));
            drop(engine);
            *count += 1;
            let pause = self.order.between(2_000, 80_000) as i64;
            begins.insert((now + pause, slot, *count));
        }
    }

    fn is_over(&self) -> bool {
        self.world.scene().clients == 0 && runs(&self.world).iter().all(|run| run.status.is_final())
    }

    fn stuck(&self) -> String {
        let open: Vec<_> = runs(&self.world).into_iter().filter(|run| !run.status.is_final()).collect();
        format!("{} clients, {open:?}", self.world.scene().clients)
    }

    fn close(&mut self) {
        let numbers = 0..self.world.scene().processes.len();
        for number in numbers {
            let engine = self.world.scene().processes[number].engine.take();
            self.tasks.end_of(Owner::Process(number));
            drop(engine);
        }
        self.tasks.end_of(Owner::Outside);
        self.tasks.adopt(|_| false);
    }
}

fn runs(world: &World) -> Vec<RunSummary> {
    let query = RunQuery { limit: 1_000, ..RunQuery::default() };
    at_once(world.memory.runs(TenantScope::single(), query)).map(|page| page.items).unwrap_or_default()
}

/// An event as it is stored.
struct Accepted {
    id: String,
    key: u64,
    accepted: i64,
    until: i64,
    applied: i64,
}

/// Checks the result of a race against the rules.
fn verdict(world: &World, plot: &Plot) -> Result<(), String> {
    let scope = TenantScope::single();
    let (mut events, mut waits, mut starts) = (Vec::new(), Vec::new(), BTreeMap::<String, u64>::new());
    for run in runs(world) {
        if run.status != Status::Completed {
            return Err(format!("run {} of `{}` ended as {}", run.run, run.workflow, run.status));
        }
        let loaded =
            at_once(world.memory.load(scope, run.run)).ok().flatten().ok_or("a run no longer exists")?;
        let state: Value = serde_json::from_slice(&loaded.head.state).map_err(|error| error.to_string())?;
        match run.workflow.as_str() {
            "waits" => waits.push(wait(world, run.run, &loaded)?),
            "starts" => {
                let id = state["context"]["payload"]["id"].as_str().unwrap_or_default().to_owned();
                *starts.entry(id).or_default() += 1;
            }
            _ => events.push(event(world, run.run, &state)?),
        }
    }
    if waits.len() != plot.runs.len() || events.len() != plot.events.len() {
        return Err(format!("found {} runs and {} events", waits.len(), events.len()));
    }
    for event in &events {
        match starts.get(&event.id) {
            Some(1) => {}
            other => return Err(format!("{} started {other:?} runs", event.id)),
        }
    }
    let mut tally = Tally::default();
    for wait in &waits {
        wait.judge(&events, &mut tally)?;
    }
    let mut scene = world.scene();
    let kills = scene.tally.kills;
    scene.tally = Tally { kills, ..tally };
    Ok(())
}

fn event(world: &World, run: RunId, state: &Value) -> Result<Accepted, String> {
    let kept = &state["context"]["event"];
    let time = |field: &str| -> Result<i64, String> {
        let at: Timestamp = serde_json::from_value(kept[field].clone()).map_err(|error| error.to_string())?;
        Ok(micros(at))
    };
    Ok(Accepted {
        id: kept["id"].as_str().unwrap_or_default().to_owned(),
        key: kept["data"]["key"].as_u64().unwrap_or(u64::MAX),
        accepted: time("accepted")?,
        until: time("until")?,
        applied: world.scene().applied.get(&run).copied().ok_or("an event was never committed")?,
    })
}

/// A run that has finished its wait.
struct Waited {
    key: u64,
    opened: i64,
    /// Id of the event it has taken, or `late` after a timeout.
    took: String,
}

fn wait(world: &World, run: RunId, loaded: &Loaded) -> Result<Waited, String> {
    let snapshot =
        Snapshot::restore(&definitions()[0], &loaded.head.state).map_err(|error| error.to_string())?;
    let query = HistoryQuery { run, from: 0, with_state: false, limit: 100 };
    let rows =
        at_once(world.memory.history(TenantScope::single(), query)).map_err(|error| error.to_string())?;
    let entries: Vec<Value> =
        rows.items.iter().filter_map(|row| serde_json::from_slice(&row.entry).ok()).collect();
    let is_end = |entry: &&Value| {
        let action = entry["action"].as_str().unwrap_or_default();
        action.starts_with("__resolve_wait:") || action.starts_with("__timer:")
    };
    let ends = entries.iter().filter(is_end).count();
    if ends != 1 {
        return Err(format!("run {run} was resolved {ends} times"));
    }
    let took = match snapshot.finished() {
        Some(RunEnd::Completed { output: Some(Value::String(took)), .. }) => took.clone(),
        other => return Err(format!("run {run} ended with {other:?}")),
    };
    let key = snapshot.context()["payload"]["key"].as_u64().unwrap_or(u64::MAX);
    Ok(Waited { key, opened: micros(snapshot.created_at()), took })
}

impl Waited {
    fn judge(&self, events: &[Accepted], tally: &mut Tally) -> Result<(), String> {
        let due = self.opened + TIMEOUT_US;
        let own = || events.iter().filter(|event| event.key == self.key);
        let may = |event: &&Accepted| {
            event.accepted < due && (event.accepted >= self.opened || event.until > self.opened)
        };
        let must = |event: &&Accepted| may(event) && event.applied < due;
        for event in own() {
            match event.accepted {
                at if (at - due).abs() < 5_000 => tally.near += 1,
                at if at < self.opened => tally.before += 1,
                at if at < due => tally.during += 1,
                _ => tally.after += 1,
            }
        }
        let told = |event: &Accepted| format!("{} accepted {}", event.id, event.accepted - self.opened);
        if self.took == "late" {
            tally.late += 1;
            return match own().find(must) {
                Some(event) => Err(format!("a run timed out although it could have taken {}", told(event))),
                None => Ok(()),
            };
        }
        tally.taken += 1;
        match own().find(|event| event.id == self.took) {
            Some(event) if may(&event) => Ok(()),
            Some(event) => Err(format!("a run took {}, outside its wait", told(event))),
            None => Err(format!("a run took {}, which has another key", self.took)),
        }
    }
}
