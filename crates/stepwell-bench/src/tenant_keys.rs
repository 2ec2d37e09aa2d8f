//! The `tenant-keys` workload: two tenants on one engine use the same run ids, keys, names and other ids at once, and
//! neither may see the other.
//!
//! While a run of one tenant is active, the other tenant's run with the same id waits, is signalled and must end. Every
//! result names its tenant. With the planted bug a process identifies runs by their id alone, and runs stall.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::store::{RunFilter, RunQuery, Status, TenantId, TenantScope};
use stepwell::{
    ActionError, Cx, Diagnose, Engine, Event, Operator, Poll, RemoteAction, Schedule, Signal, Start,
};
use stepwell_core::{RunId, WorkflowSource};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::site::Site;

/// Waits for a signal, runs an action, and returns its tenant and the sender of the signal.
const BELL: &str = "
steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: work, type: action.call, action: pause, input: { ms: 1 } }
  - { id: done, type: control.return, value: { whose: { $expr: payload.whose }, by: { $expr: vars.go.by } } }
";
/// Has more versions than the other run, and then runs an action for a while.
const BUSY: &str = "
steps:
  - { id: one, type: wait.signal, signal: WARM }
  - { id: two, type: wait.signal, signal: WARM }
  - { id: work, type: action.call, action: pause, input: { ms: 150 } }
  - { id: done, type: control.return, value: { whose: { $expr: payload.whose }, by: { $expr: payload.whose } } }
";
/// Starts with the event `PAID`.
const PAID: &str = "
triggers: [{ id: paid, type: event, eventName: PAID }]
steps:
  - { id: done, type: control.return, value: { $expr: payload } }
";
/// Calls an action on a remote worker.
const TASK: &str = "
steps:
  - { id: shout, type: action.call, action: shout, input: { $expr: payload } }
  - { id: done, type: control.return, value: { $expr: vars.shout } }
";

/// Timeout of a run that has nothing to wait for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options of the `tenant-keys` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of pairs of runs with the same id.
    #[arg(long, default_value_t = 2_000)]
    pairs: u64,
    /// Plants a bug: runs are identified by their id alone. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Uses 100 pairs only.
    #[arg(long)]
    short: bool,
    /// Accepted for uniformity; the output is always JSON.
    #[arg(long)]
    json: bool,
}

/// Counts of runs that ended, of wrong results and of stalled runs.
#[derive(Default)]
struct Seen {
    ended: AtomicU64,
    wrong: AtomicU64,
    stalled: AtomicU64,
}

impl Seen {
    fn check(&self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right && self.wrong.fetch_add(1, Ordering::Relaxed) < 5 {
            eprintln!("FAILED {}", what());
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let pairs = match (options.plant, options.short) {
        (true, _) => 8,
        (false, true) => 100,
        (false, false) => options.pairs,
    };
    stepwell::testing::ignore_tenant_in_run_keys(options.plant);
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "tenant-keys")?;
    let begin = Instant::now();
    let seen: Arc<Seen> = Arc::default();
    let found = runtime.block_on(async {
        let engine = open(engines::open(&place).await?).await?;
        let found = pass(&engine, pairs, options.plant, &seen).await;
        engines::close(engine).await;
        found
    });
    stepwell::testing::ignore_tenant_in_run_keys(false);
    let findings = found?;
    let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
    let line = json!({
        "workload": "tenant-keys", "store": options.store.name(), "pairs": pairs, "planted": options.plant,
        "ended": count(&seen.ended), "wrong": count(&seen.wrong), "stalled": count(&seen.stalled),
        "findings": findings, "seconds": begin.elapsed().as_secs_f64(),
    });
    println!("{line}");
    let is_right = line["wrong"] == 0 && line["stalled"] == 0 && findings == 0;
    if is_right { Ok(()) } else { Err("a tenant has seen or blocked another".to_owned()) }
}

async fn open(store: Arc<dyn stepwell_store::Store>) -> Result<Engine, String> {
    let mut builder = Engine::builder(store);
    for (name, text) in [("bell", BELL), ("busy", BUSY), ("paid", PAID)] {
        let document = WorkflowSource::read(text, Some(name)).map_err(|problems| problems.to_string())?;
        builder = builder.workflow(document.definition().clone());
    }
    let pause = |_: Cx, input: Value| async move {
        tokio::time::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
        Ok::<_, ActionError>(Value::Null)
    };
    builder.action("pause", pause).start().await.map_err(|error| error.to_string())
}

/// Runs everything for both tenants concurrently. Returns the number of findings of the doctor at the end.
async fn pass(engine: &Engine, pairs: u64, is_planted: bool, seen: &Arc<Seen>) -> Result<usize, String> {
    let wrong = |error: stepwell::EngineError| error.to_string();
    let both = [2, 3].map(|id| engine.for_tenant(TenantScope::trusted(TenantId::new(Uuid::from_u128(id)))));
    let task = WorkflowSource::read(TASK, Some("task")).map_err(|problems| problems.to_string())?;
    for tenant in &both {
        tenant.catalogue().put_action(RemoteAction::new("shout")).await.map_err(|error| error.to_string())?;
    }
    engine.for_tenant(both[0].scope()).register(task.definition().clone()).map_err(wrong)?;
    let mut working = JoinSet::new();
    for (index, tenant) in both.iter().enumerate() {
        working.spawn(worker(tenant.clone(), index));
    }
    let mut going = JoinSet::new();
    for number in 0..pairs {
        for (index, tenant) in both.iter().enumerate() {
            going.spawn(one(tenant.clone(), index, number, is_planted, seen.clone()));
        }
        while going.len() >= 64 {
            going.join_next().await;
        }
    }
    while going.join_next().await.is_some() {}
    working.abort_all();
    let mut findings = 0;
    for (index, tenant) in both.iter().enumerate() {
        let query = RunQuery { filter: RunFilter::of("paid"), limit: 1, ..RunQuery::default() };
        let some = tenant.store().runs(tenant.scope(), query).await.map_err(|error| error.to_string())?;
        seen.check(some.items.len() == 1, || format!("tenant {index} has no run started by an event"));
        // Thousands of commits in seconds leave a long unsealed audit trail, which the doctor reports by right.
        while tenant.maintain().await.map_err(wrong)?.has_more {}
        for finding in tenant.diagnose(&Diagnose::default()).await.map_err(wrong)?.findings {
            eprintln!("tenant {index}: {finding:?}");
            findings += 1;
        }
    }
    Ok(findings)
}

/// Completes the tenant's remote tasks; each result names the tenant.
async fn worker(tenant: Engine, index: usize) {
    loop {
        let poll = Poll::new(format!("worker-{index}"), ["shout"]).max(10).wait(Duration::from_secs(1));
        for task in tenant.tasks().poll(poll).await.unwrap_or_default() {
            let said = json!({"whose": task.input["whose"], "done_by": index});
            let _ = tenant.tasks().complete(task.id, task.fence, said).await;
        }
    }
}

/// Runs one case of every kind, under names that the other tenant uses concurrently.
async fn one(tenant: Engine, index: usize, number: u64, is_planted: bool, seen: Arc<Seen>) {
    let done = everything(&tenant, index, number, is_planted, &seen).await;
    seen.check(done.is_ok(), || format!("tenant {index}, number {number}: {done:?}"));
}

type Tried = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Returns an id that both tenants use.
fn id(kind: u128, number: u64) -> RunId {
    RunId::new(Uuid::from_u128(kind << 64 | u128::from(number)))
}

async fn everything(tenant: &Engine, index: usize, number: u64, is_planted: bool, seen: &Seen) -> Tried {
    let patience = if is_planted { PATIENCE / 10 } else { PATIENCE };
    pair(tenant, index, number, patience, seen).await?;
    ended_by_one(tenant, index, number, patience, seen).await?;
    names(tenant, index, number, seen).await?;
    let (run, whose) = (id(3, number), json!({"whose": index}));
    let task = tenant.start(Start::new("task").id(run).input(&whose)).await?;
    match tokio::time::timeout(patience, task.result()).await {
        Err(_) => drop(seen.stalled.fetch_add(1, Ordering::Relaxed)),
        Ok(result) => {
            let (result, expected) = (result?, json!({"whose": index, "done_by": index}));
            seen.check(result == expected, || format!("task: got {result}, expected {expected}"));
        }
    }
    Ok(())
}

/// Runs one run per tenant under the same id: one waits while the other is active.
async fn pair(tenant: &Engine, index: usize, number: u64, patience: Duration, seen: &Seen) -> Tried {
    let (run, whose) = (id(1, number), json!({"whose": index}));
    let waits = (number as usize + index).is_multiple_of(2);
    let start = Start::new(if waits { "bell" } else { "busy" }).id(run).input(&whose);
    let key = format!("key-{number}");
    let run = tenant.start(start.clone().key(key.as_str())).await?;
    if waits {
        tokio::time::sleep(Duration::from_millis(60)).await;
        run.signal(Signal::new("GO").with(&json!({"by": index})).id(format!("go-{number}"))).await?;
    } else {
        run.signal(Signal::new("WARM").id("one")).await?;
        run.signal(Signal::new("WARM").id("two")).await?;
    }
    match tokio::time::timeout(patience, run.result()).await {
        Err(_) => {
            seen.stalled.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        Ok(result) => {
            let result = result?;
            seen.ended.fetch_add(1, Ordering::Relaxed);
            let expected = json!({"whose": index, "by": index});
            seen.check(result == expected, || format!("run {}: got {result}, expected {expected}", run.id()));
        }
    }
    let again = tenant.start_once(start.key(key)).await?;
    seen.check(!again.is_new && again.run.id() == run.id(), || "a key returned another run".to_owned());
    Ok(())
}

/// Cancels the run of one tenant; the other tenant's run with the same id must keep waiting.
async fn ended_by_one(tenant: &Engine, index: usize, number: u64, patience: Duration, seen: &Seen) -> Tried {
    let (run, whose) = (id(2, number), json!({"whose": index}));
    let waiting = tenant.start(Start::new("bell").id(run).input(&whose)).await?;
    if index == 0 {
        tenant.operate(run, stepwell::Command::Cancel, &Operator::default()).await?;
        let view = waiting.view().await?;
        seen.check(view.status == Status::Cancelled, || {
            format!("cancelled, but its status is {}", view.status)
        });
    } else {
        let view = waiting.view().await?;
        seen.check(view.status == Status::Waiting, || {
            format!("should be waiting, but its status is {}", view.status)
        });
        waiting.signal(Signal::new("GO").with(&json!({"by": index}))).await?;
        let result = tokio::time::timeout(patience, waiting.result()).await??;
        seen.check(result["by"] == index, || format!("{result}"));
    }
    Ok(())
}

/// Writes keys, events and schedules under the same names.
async fn names(tenant: &Engine, index: usize, number: u64, seen: &Seen) -> Tried {
    let whose = json!({"whose": index});
    let kv = tenant.kv("shared");
    kv.set("same", index).await?;
    kv.set(&format!("n-{number}"), index).await?;
    for name in ["same".to_owned(), format!("n-{number}")] {
        let value = kv.get(&name).await?.map(|entry| entry.value);
        seen.check(value == Some(json!(index)), || format!("`{name}` is {value:?}"));
    }

    let paid = Event::new("PAID").source("shop").id(number.to_string()).with(&whose);
    let emitted = tenant.emit(paid.clone()).await?;
    let again = tenant.emit(paid).await?;
    let is_once = emitted.is_new && !again.is_new && emitted.event == again.event;
    seen.check(is_once, || "an event was not accepted exactly once".to_owned());

    let name = format!("nightly-{}", number % 10);
    tenant.put_schedule(Schedule::new(name.as_str(), "0 3 * * *", "bell").input(whose.clone())).await?;
    let schedule = tenant.schedule(&name).await?;
    seen.check(schedule.is_some_and(|known| known.schedule.input == whose), || format!("schedule `{name}`"));
    Ok(())
}
