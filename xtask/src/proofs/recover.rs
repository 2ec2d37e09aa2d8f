//! Proves that the runs of a killed process continue at once, and that none is lost.

use std::process::Command;

use serde_json::Value;

use super::Size;
use super::figures::{at_most, exactly, measured, one, verdict};

/// Number of active runs when the process is killed.
const RUNS: u64 = 3_000;
/// Maximum time from the start of the next process to its first action, as median of the rounds, in milliseconds.
const MOST_MS: f64 = 200.0;

const FIGURES: &[&str] =
    &["first_resumed_ms", "engine_first_resumed_ms", "first_commit_ms", "all_resumed_ms", "rss_mb"];

/// The same on PostgreSQL, from the death of one of two processes to the first action of the other.
const MOST_MS_ON_A_SERVER: f64 = 2_000.0;

pub(super) fn prove(size: Size) -> Result<(), String> {
    judge(&recover("sqlite", size)?, size, MOST_MS, "first_resumed_ms")
}

pub(super) fn prove_postgres(size: Size) -> Result<(), String> {
    let lines = recover("postgres", size)?;
    judge(&lines, size, MOST_MS_ON_A_SERVER, "first_resumed_max_ms")?;
    judge(&lines, size, MOST_MS_ON_A_SERVER, "all_resumed_ms")
}

fn recover(store: &str, size: Size) -> Result<Vec<Value>, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["recover", "--store", store, "--json", "--runs", &RUNS.to_string()]);
    command.args((size == Size::Short).then_some("--short"));
    super::measured(&mut command, size)
}

fn judge(lines: &[Value], size: Size, most_ms: f64, field: &str) -> Result<(), String> {
    let line = one(lines)?;
    measured(line, FIGURES)?;
    let runs = if size == Size::Full { RUNS } else { line["runs"].as_u64().unwrap_or(RUNS) };
    let mut all_met = exactly(line, "in_flight", runs)?;
    all_met &= exactly(line, "runs_lost", 0)?;
    all_met &= exactly(line, "duplicates", 0)?;
    if size == Size::Full {
        all_met &= at_most(line, field, most_ms)?;
    }
    verdict(all_met)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(runs: u64, first_resumed_ms: f64) -> Value {
        json!({"runs": runs, "in_flight": runs, "first_resumed_ms": first_resumed_ms,
            "engine_first_resumed_ms": 20.0, "first_commit_ms": 70.0, "all_resumed_ms": 400.0, "rss_mb": 30.0,
            "runs_lost": 0, "duplicates": 0})
    }

    #[test]
    fn quick_recovery_of_all_runs_passes() {
        judge(&[figures(3_000, 200.0)], Size::Full, MOST_MS, "first_resumed_ms").unwrap();
        judge(&[figures(300, 500.0)], Size::Short, MOST_MS, "first_resumed_ms").unwrap();
    }

    #[test]
    fn slow_or_small_recovery_fails() {
        assert!(judge(&[figures(3_000, 201.0)], Size::Full, MOST_MS, "first_resumed_ms").is_err());
        assert!(judge(&[figures(300, 100.0)], Size::Full, MOST_MS, "first_resumed_ms").is_err());
    }

    #[test]
    fn lost_and_duplicated_runs_fail_at_any_size() {
        for field in ["runs_lost", "duplicates"] {
            let mut broken = figures(300, 100.0);
            broken[field] = json!(1);
            assert!(judge(&[broken], Size::Short, MOST_MS, "first_resumed_ms").is_err(), "{field}");
        }
    }
}
