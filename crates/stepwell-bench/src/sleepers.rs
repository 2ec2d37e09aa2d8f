//! The `sleepers` workload: many runs sleep and wake over a period. Measures their cost while they sleep, and how late
//! they wake.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::spec::{Transition, TransitionTrigger};
use stepwell::core::{Definition, RunId, Spec, Timestamp};
use stepwell::store::Status;
use stepwell::{ActionError, Clock, Cx, Engine, Host, Start, SystemClock};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::machine::{cpu_seconds, resident_mb};
use crate::sample::{quantile, round};
use crate::site::Site;
use crate::watched::Watched;

/// Number of concurrent starts.
const STARTERS: u64 = 64;
/// Time to wait for late runs after the last one is due.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of the `sleepers` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to measure on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of sleeping runs.
    #[arg(long, default_value_t = 100_000)]
    runs: u64,
    /// Period in seconds over which the runs wake, evenly spread.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Time in seconds until the first run is due; all starts must be done by then.
    #[arg(long, default_value_t = 60)]
    start_seconds: u64,
    /// Runs an action before the wake-up is committed.
    #[arg(long)]
    with_action: bool,
    /// Uses 2,000 runs that wake within 2 seconds, to show that the workload works; the figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// The due times of all sleepers.
#[derive(Debug, Clone, Copy)]
struct Plan {
    runs: u64,
    first: Timestamp,
    spread_us: u64,
}

impl Plan {
    /// Returns the due time of a sleeper. Sleepers are not due in the order of their starts.
    fn due(self, number: u64) -> Timestamp {
        let slot = number.wrapping_mul(7_919) % self.runs;
        Timestamp::from_micros(self.first.micros() + (slot * self.spread_us / self.runs) as i64)
    }

    fn end(self) -> Timestamp {
        Timestamp::from_micros(self.first.micros() + self.spread_us as i64)
    }
}

/// Delay between the due time of each sleeper and its durable commit, in microseconds.
type Lags = Arc<Mutex<Vec<i64>>>;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (runs, seconds, start_seconds) = if options.short {
        (2_000, 2, 5)
    } else {
        (options.runs.max(1), options.seconds.max(1), options.start_seconds)
    };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "sleepers")?;
    let clock = Arc::new(SystemClock::default());
    let plan =
        Plan { runs, first: clock.now().plus_ms(start_seconds * 1_000), spread_us: seconds * 1_000_000 };
    let lags: Lags = Arc::new(Mutex::new(Vec::with_capacity(runs as usize)));
    let watched = watched(runtime.block_on(engines::open(&place))?, plan, clock.clone(), lags.clone());
    let host = Host::system().with_clock(clock.clone());
    let builder = Engine::builder(watched).host(host).workflow(definition(options.with_action)?);
    let builder = builder.action("stir", |_: Cx| async { Ok::<_, ActionError>(()) });
    let engine = runtime.block_on(builder.start()).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    start_all(&runtime, &engine, plan)?;
    let start_s = begin.elapsed().as_secs_f64();
    if !options.json {
        eprintln!("{runs} runs sleep, started in {start_s:.1} s");
    }
    let mut line = runtime.block_on(watch(plan, &clock, &lags))?;
    runtime.block_on(engines::close(engine));
    line["store"] = options.store.name().into();
    line["with_action"] = options.with_action.into();
    line["start_s"] = round(start_s).into();
    line["db_bytes_per_workflow"] = (runtime.block_on(place.bytes())? / runs).into();
    if !options.json {
        eprintln!(
            "{} MB, {} of a core, late by {} ms (p99)",
            line["rss_mb"], line["cpu"], line["lag_p99_ms"]
        );
    }
    println!("{line}");
    Ok(())
}

fn definition(with_action: bool) -> Result<Definition, String> {
    let wake =
        Transition::new("wake", "asleep", "awake").on(TransitionTrigger::Until("context.due".to_owned()));
    let wake = if with_action { wake.action("stir") } else { wake };
    let spec = Spec::new("sleeper").step("asleep").end("awake").transition(wake);
    spec.build().map_err(|problems| problems.to_string())
}

fn watched(
    inner: Arc<dyn stepwell_store::Store>,
    plan: Plan,
    clock: Arc<SystemClock>,
    lags: Lags,
) -> Arc<dyn stepwell_store::Store> {
    let told = move |run: RunId, status: Status| {
        if status == Status::Completed {
            let late = clock.now().micros() - plan.due(number_of(run)).micros();
            lags.lock().unwrap_or_else(PoisonError::into_inner).push(late);
        }
    };
    Arc::new(Watched { inner, told: Box::new(told) })
}

fn run_id(number: u64) -> RunId {
    RunId::new(Uuid::from_u128(u128::from(number + 1) << 64))
}

fn number_of(run: RunId) -> u64 {
    ((run.uuid().as_u128() >> 64) as u64).saturating_sub(1)
}

fn start_all(runtime: &Runtime, engine: &Engine, plan: Plan) -> Result<(), String> {
    let starters = (0..STARTERS).map(|starter| {
        let engine = engine.clone();
        runtime.spawn(async move {
            for number in (starter..plan.runs).step_by(STARTERS as usize) {
                let input = json!({"number": number, "due": plan.due(number)});
                let wanted = Start::new("sleeper").id(run_id(number)).input(&input);
                engine.start(wanted).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        })
    });
    let starters: Vec<_> = starters.collect();
    for starter in starters {
        runtime.block_on(starter).map_err(|error| error.to_string())??;
    }
    if engine.now() >= plan.first {
        return Err("the first run was due before all runs were started: raise --start-seconds".to_owned());
    }
    Ok(())
}

/// Measures memory, processor time and delays until all runs have woken.
async fn watch(plan: Plan, clock: &SystemClock, lags: &Lags) -> Result<Value, String> {
    let woken = || lags.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
    let rss_mb = resident_mb()?;
    clock.sleep_until(plan.first).await;
    let (cpu, begin) = (cpu_seconds()?, Instant::now());
    let mut peak = rss_mb;
    while clock.now() < plan.end() {
        clock.sleep_until(clock.now().plus_ms(500).min(plan.end())).await;
        peak = peak.max(resident_mb()?);
    }
    let cpu = (cpu_seconds()? - cpu) / begin.elapsed().as_secs_f64();
    while woken() < plan.runs && clock.now().ms_since(plan.end()) < PATIENCE.as_millis() as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lags = std::mem::take(&mut *lags.lock().unwrap_or_else(PoisonError::into_inner));
    let early = lags.iter().filter(|late| **late < 0).count();
    let mut late_ms: Vec<f64> = lags.iter().map(|late| *late as f64 / 1_000.0).collect();
    Ok(json!({
        "workload": "sleepers",
        "runs": plan.runs,
        "seconds": plan.spread_us / 1_000_000,
        "woken": lags.len(),
        "early": early,
        "rss_mb": rss_mb,
        "rss_peak_mb": peak,
        "cpu": round(cpu),
        "lag_p50_ms": round(quantile(&mut late_ms, 0.5)),
        "lag_p99_ms": round(quantile(&mut late_ms, 0.99)),
        "lag_max_ms": round(quantile(&mut late_ms, 1.0)),
    }))
}
