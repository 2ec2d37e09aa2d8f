//! The simulator is tested by what it finds: nothing in the engine, and every planted bug.

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
fn nothing_is_found_where_nothing_is_planted() {
    let report = simulate(0, 150, None, false, 2);
    assert!(report.first.is_none(), "{:?}", report.first);
    assert!(report.tally.takeovers > 0 && report.tally.fenced > 0, "{:?}", report.tally);
}

fn found(plant: Plant) {
    let report = simulate(0, 400, Some(plant), false, 2);
    assert!(report.first.is_some(), "{plant:?} was not found: {:?}", report.tally);
}

#[test]
fn a_store_without_fences_is_found() {
    found(Plant::NoFence);
}

#[test]
fn a_store_that_answers_early_is_found() {
    found(Plant::AnswerEarly);
}

#[test]
fn a_store_that_compares_no_versions_is_found() {
    found(Plant::NoVersionCheck);
}

#[test]
fn an_engine_that_follows_the_wall_clock_is_found() {
    found(Plant::WallClockTimers);
}
