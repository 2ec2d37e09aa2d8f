//! Tests of the simulator: it finds no violation in the engine, and it finds every planted bug.

use super::faults::Plant;
use super::{simulate, simulation};

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..30 {
        let (first, second) = (simulation::run(seed, None, false), simulation::run(seed, None, false));
        assert_eq!(first.hash, second.hash, "seed {seed}");
    }
}

#[test]
fn other_seeds_give_other_traces() {
    let hashes: std::collections::BTreeSet<_> =
        (0..30).map(|seed| simulation::run(seed, None, false).hash).collect();
    assert_eq!(hashes.len(), 30);
}

#[test]
fn correct_engine_has_no_violation() {
    let report = simulate(0, 150, None, false, 2);
    assert!(report.first.is_none(), "{:?}", report.first);
    assert!(report.tally.takeovers > 0 && report.tally.fenced > 0, "{:?}", report.tally);
}

fn found(plant: Plant) {
    let report = simulate(0, 400, Some(plant), false, 2);
    assert!(report.first.is_some(), "{plant:?} was not found: {:?}", report.tally);
}

#[test]
fn missing_fence_check_is_found() {
    found(Plant::NoFence);
}

#[test]
fn early_acknowledgement_is_found() {
    found(Plant::AnswerEarly);
}

#[test]
fn missing_revision_check_is_found() {
    found(Plant::NoVersionCheck);
}

#[test]
fn wall_clock_timers_are_found() {
    found(Plant::WallClockTimers);
}
