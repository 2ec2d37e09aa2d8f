//! The `ten-step` workload: workflows of ten durable steps, in slices that alternate with the bare loop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::{ActionError, Cx, Engine, Start};
use tokio::runtime::Runtime;

use crate::bare::Bare;
use crate::engines;
use crate::machine::resident_mb;
use crate::sample::{Alternating, Pairs, Slice, gather, round};
use crate::script::{Random, random_text};
use crate::site::{Place, Site};
use crate::tenants;

/// Number of durable steps of one workflow. Its start is one more commit.
pub(crate) const STEPS: usize = 10;

/// Options of the `ten-step` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of concurrent workflows, comma-separated; one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "64,1")]
    in_flight: Vec<usize>,
    /// Spreads the workflows over this many tenants, with single-statement transactions as baseline (PostgreSQL only).
    #[arg(long)]
    tenants: Option<usize>,
    /// Runs this many workflows in two halves and compares the speed of the second half with the first.
    #[arg(long)]
    workflows: Option<usize>,
    #[command(flatten)]
    measured: Alternating,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    if let Some(tenants) = options.tenants {
        let measure = |runtime: &Runtime, site: &Site, in_flight, slices, slice| {
            tenants::measure(runtime, site, tenants.max(1), in_flight, slices, slice)
        };
        return options.measured.each(&options.in_flight, measure, |_, line| {
            format!(
                "{tenants} tenants: {} steps/s, {} times the server's single-statement rate",
                line["steps_per_s"], line["ratio"]
            )
        });
    }
    if let Some(workflows) = options.workflows {
        let measure = |runtime: &Runtime, site: &Site, in_flight, _, _| {
            halves(runtime, site, workflows.max(2), in_flight)
        };
        return options.measured.each(&options.in_flight, measure, |_, line| {
            format!(
                "{workflows} workflows: the second half is {} times as fast as the first",
                line["half_ratio"]
            )
        });
    }
    options.measured.each(&options.in_flight, measure, |in_flight, line| {
        format!(
            "{in_flight} concurrent: {} steps/s, {} times the bare loop",
            line["steps_per_s"], line["ratio"]
        )
    })
}

fn measure(
    runtime: &Runtime,
    site: &Site,
    in_flight: usize,
    slices: usize,
    slice: Duration,
) -> Result<Value, String> {
    let bare = Bare::open(runtime, site)?;
    let place = site.place(runtime, "ours")?;
    let bench = runtime.block_on(Bench::open(&place, in_flight))?;
    let mut pairs = Pairs::default();
    let mut finished = 0;
    for number in 0..slices {
        let raw = bare.slice(runtime, number, in_flight, slice, STEPS as u64 + 1)?;
        let ours = bench.slice(runtime, number, Until::Time(slice))?;
        finished += ours.times_us.len() / STEPS;
        pairs.push(ours, raw);
    }
    let rss_mb = resident_mb()?;
    runtime.block_on(engines::close(bench.engine));
    let bytes = runtime.block_on(place.bytes())?;
    bare.close(runtime)?;
    let mut line = pairs.line("ten-step");
    line["in_flight"] = in_flight.into();
    line["steps_per_s"] = line["per_s"].take();
    line["workflows_per_s"] = round(line["steps_per_s"].as_f64().unwrap_or_default() / STEPS as f64).into();
    line["workflows"] = finished.into();
    line["rss_mb"] = rss_mb.into();
    line["db_bytes_per_workflow"] = (bytes / finished.max(1) as u64).into();
    line.as_object_mut().map(|fields| fields.remove("per_s"));
    Ok(line)
}

/// Runs many workflows in two halves, one after the other on the same store.
fn halves(runtime: &Runtime, site: &Site, workflows: usize, in_flight: usize) -> Result<Value, String> {
    let place = site.place(runtime, "ours")?;
    let bench = runtime.block_on(Bench::open(&place, in_flight))?;
    let half = workflows / 2;
    let mut per_s = [0.0; 2];
    for (number, per_s) in per_s.iter_mut().enumerate() {
        let slice = bench.slice(runtime, number, Until::Workflows(half.div_ceil(in_flight)))?;
        *per_s = slice.per_s();
    }
    runtime.block_on(engines::close(bench.engine));
    let bytes = runtime.block_on(place.bytes())?;
    Ok(json!({
        "workload": "ten-step",
        "in_flight": in_flight,
        "workflows": half.div_ceil(in_flight) * in_flight * 2,
        "first_half_steps_per_s": per_s[0].round(),
        "second_half_steps_per_s": per_s[1].round(),
        "half_ratio": round(per_s[1] / per_s[0]),
        "db_bytes_per_workflow": bytes / (half * 2) as u64,
    }))
}

/// The end condition of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Time(Duration),
    /// Ends after this many workflows per worker.
    Workflows(usize),
}

impl Until {
    pub(crate) fn goes_on(self, begin: Instant, done: usize) -> bool {
        match self {
            Until::Time(length) => begin.elapsed() < length,
            Until::Workflows(count) => done < count,
        }
    }
}

/// Returns a workflow of ten steps in a row, each with an action.
pub(crate) fn definition() -> Result<Definition, String> {
    let mut spec = Spec::new("ten-step").initial("s0");
    for step in 0..STEPS {
        let to = if step + 1 == STEPS { "done".to_owned() } else { format!("s{}", step + 1) };
        let id = format!("t{step}");
        spec = spec.step(format!("s{step}"));
        spec = spec.transition(Transition::new(id, format!("s{step}"), to).action("rewrite"));
    }
    spec.end("done").build().map_err(|problems| problems.to_string())
}

/// The state: about 1 KB, of which each step rewrites one field.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) worker: usize,
    pub(crate) step: u64,
    seed: u64,
    fields: [String; 5],
}

impl State {
    pub(crate) fn new(worker: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        State { worker, step: 0, seed, fields: std::array::from_fn(|_| random_text(&mut random)) }
    }

    pub(crate) fn rewrite(&mut self) {
        self.step += 1;
        let mut random = Random::new(self.seed.wrapping_add(self.step << 32));
        self.fields[self.step as usize % 5] = random_text(&mut random);
    }
}

/// Start times of the steps of each worker's current run.
pub(crate) type Began = Arc<Vec<Mutex<Vec<Instant>>>>;

pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) began: Began,
}

impl Bench {
    pub(crate) async fn open(place: &Place, in_flight: usize) -> Result<Self, String> {
        let store = engines::open(place).await?;
        let began: Began = Arc::new((0..in_flight).map(|_| Mutex::default()).collect());
        let seen = began.clone();
        let rewrite = move |cx: Cx| {
            let seen = seen.clone();
            async move {
                let worker = cx.update_state(|state: &mut State| {
                    state.rewrite();
                    state.worker
                })?;
                if let Some(times) = seen.get(worker) {
                    times.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                }
                Ok::<_, ActionError>(())
            }
        };
        let builder = Engine::builder(store).workflow(definition()?).action("rewrite", rewrite);
        let engine = builder.start().await.map_err(|error| error.to_string())?;
        Ok(Bench { engine, began })
    }

    fn slice(&self, runtime: &Runtime, number: usize, until: Until) -> Result<Slice, String> {
        let tasks = (0..self.began.len()).map(|worker| {
            let (engine, began) = (self.engine.clone(), self.began.clone());
            async move {
                let mut times = Vec::new();
                let mut seed = (number as u64) << 40 | (worker as u64) << 20;
                let (start, mut done) = (Instant::now(), 0);
                while until.goes_on(start, done) {
                    seed += 1;
                    done += 1;
                    let wanted = Start::new("ten-step").input(&State::new(worker, seed));
                    let run = engine.start(wanted).await.map_err(|error| error.to_string())?;
                    run.result().await.map_err(|error| error.to_string())?;
                    let ended = Instant::now();
                    let mut steps =
                        std::mem::take(&mut *began[worker].lock().unwrap_or_else(PoisonError::into_inner));
                    steps.push(ended);
                    times.extend(steps.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6));
                }
                Ok(times)
            }
        });
        gather(runtime, tasks)
    }
}
