//! A deterministic simulation of several engines on one store, with all faults that can happen.
//!
//! One seed is one simulation. It is single-threaded, and its clock advances only when no task can continue. Engines
//! die at commits and at any await, freeze past their lease, lose answers and see clocks jump. An [oracle] that shares
//! no code with the engine checks the store and the log of the actions.

mod actions;
mod clients;
mod dice;
mod faults;
mod model;
mod oracle;
mod plan;
mod plant;
mod process;
pub(crate) mod race;
mod simulation;
mod tally;
mod tasks;
mod time;
mod trace;
mod wire;
mod workflows;
mod world;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::ValueEnum;
use serde_json::Value;

use self::faults::Plant;
use self::simulation::{Outcome, Violation};
use self::tally::Tally;
use crate::sample::round;

/// Options of the `simulate` workload. It exits with 1 when a guarantee was violated. With `--plant` it exits with 0
/// when the planted bug was found within the seeds, and with 1 when it was not.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of seeds to simulate.
    #[arg(long, default_value_t = 5_000)]
    seeds: u64,
    /// First seed to simulate.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Simulates this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Plants a bug, which must be found.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Prints every event of the simulation; needs `--seed`.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Prints the JSON line only, not the trace of a planted bug.
    #[arg(long)]
    json: bool,
}

/// The combined result of all seeds.
struct Report {
    tally: Tally,
    /// Combined hash of all traces. The same seeds give the same hash.
    hash: u64,
    violations: u64,
    /// The violation of the lowest seed.
    first: Option<Violation>,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let began = Instant::now();
    let (from, count) = options.seed.map_or((options.from, options.seeds), |seed| (seed, 1));
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let report = simulate(from, count, options.plant, options.trace, threads);
    let mut line = report.tally.line();
    line["workload"] = "simulate".into();
    line["violations"] = report.violations.into();
    line["traces"] = format!("{:016x}", report.hash).into();
    let seconds = began.elapsed().as_secs_f64();
    line["seconds"] = round(seconds).into();
    line["seeds_per_s"] = round(report.tally.seeds as f64 / seconds.max(1e-9)).into();
    if let Some(first) = &report.first {
        line["seed"] = first.seed.into();
        line["what"] = first.what.clone().into();
    }
    match options.plant {
        Some(plant) => planted(&mut line, plant, report.first.as_ref(), options.json),
        None => judge(&line, report.first.as_ref()),
    }
}

fn judge(line: &Value, first: Option<&Violation>) -> Result<(), String> {
    println!("{line}");
    let Some(violation) = first else { return Ok(()) };
    show(violation);
    eprintln!("reproduce: stepwell-bench simulate --seed {}", violation.seed);
    Err(format!("seed {}: {}", violation.seed, violation.what))
}

fn planted(line: &mut Value, plant: Plant, found: Option<&Violation>, json: bool) -> Result<(), String> {
    let name = plant.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    line["plant"] = name.clone().into();
    line["found"] = found.is_some().into();
    println!("{line}");
    let seeds = line["seeds"].clone();
    let violation =
        found.ok_or_else(|| format!("the planted bug `{name}` was not found in {seeds} seeds"))?;
    if !json {
        show(violation);
        eprintln!("reproduce: stepwell-bench simulate --plant {name} --seed {}", violation.seed);
    }
    Ok(())
}

fn show(violation: &Violation) {
    violation.trace.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("seed {} ({}): {}", violation.seed, violation.temper, violation.what);
}

/// Runs the seeds on several threads, each simulation on one. Stops early after a violation.
fn simulate(from: u64, count: u64, plant: Option<Plant>, aloud: bool, threads: usize) -> Report {
    let next = AtomicU64::new(from);
    let found = AtomicBool::new(false);
    let report = Mutex::new(Report { tally: Tally::default(), hash: 0, violations: 0, first: None });
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1) as usize) {
            scope.spawn(|| {
                while !found.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let outcome = simulation::run(seed, plant, aloud);
                    found.fetch_or(outcome.violation.is_some(), Ordering::Relaxed);
                    report.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
                }
            });
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Report {
    fn add(&mut self, outcome: Outcome) {
        self.tally.add(&outcome.tally);
        self.hash ^= outcome.hash;
        let Some(violation) = outcome.violation else { return };
        self.violations += 1;
        if self.first.as_ref().is_none_or(|first| violation.seed < first.seed) {
            self.first = Some(violation);
        }
    }
}
