//! Proves that sleeping runs cost only their rows, and wake in time.

use std::process::Command;

use serde_json::Value;

use super::Size;
use super::figures::{at_most, exactly, measured, one, verdict};

/// Number of sleeping runs.
const RUNS: u64 = 100_000;
/// Maximum resident memory of the process, from when all runs sleep until all have woken, in MiB.
const MOST_MB: f64 = 100.0;
/// Maximum p99 of the time from due to committed, in milliseconds.
const MOST_LAG_MS: f64 = 100.0;
/// Maximum share of one core while the runs wake.
const MOST_CPU: f64 = 0.25;
/// The same if each run then executes an action, which needs an owner and so a second commit.
const MOST_CPU_ACTING: f64 = 0.4;

const FIGURES: &[&str] = &["rss_mb", "rss_peak_mb", "cpu", "lag_p50_ms", "lag_p99_ms"];

pub(super) fn prove(size: Size) -> Result<(), String> {
    for with_action in [false, true] {
        let mut command = Command::new(super::bench(size)?);
        command.args(["sleepers", "--store", "sqlite", "--json", "--runs", &RUNS.to_string()]);
        command.args(with_action.then_some("--with-action"));
        command.args((size == Size::Short).then_some("--short"));
        let most_cpu = if with_action { MOST_CPU_ACTING } else { MOST_CPU };
        judge(&super::measured(&mut command, size)?, size, most_cpu)?;
    }
    Ok(())
}

fn judge(lines: &[Value], size: Size, most_cpu: f64) -> Result<(), String> {
    let line = one(lines)?;
    measured(line, FIGURES)?;
    let runs = if size == Size::Full { RUNS } else { line["runs"].as_u64().unwrap_or(RUNS) };
    let mut all_met = exactly(line, "woken", runs)?;
    all_met &= exactly(line, "early", 0)?;
    if size == Size::Full {
        all_met &= at_most(line, "rss_peak_mb", MOST_MB)?;
        all_met &= at_most(line, "lag_p99_ms", MOST_LAG_MS)?;
        all_met &= at_most(line, "cpu", most_cpu)?;
    }
    verdict(all_met)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(runs: u64) -> Value {
        json!({"runs": runs, "woken": runs, "early": 0, "rss_mb": 80.0, "rss_peak_mb": 100.0, "cpu": 0.25,
            "lag_p50_ms": 9.0, "lag_p99_ms": 100.0})
    }

    #[test]
    fn exactly_met_bars_pass() {
        judge(&[figures(100_000)], Size::Full, MOST_CPU).unwrap();
        judge(&[figures(2_000)], Size::Short, MOST_CPU).unwrap();
        assert!(judge(&[figures(2_000)], Size::Full, MOST_CPU).is_err());
    }

    #[test]
    fn each_bar_is_judged_at_full_size_only() {
        for (field, value) in [("rss_peak_mb", 100.1), ("cpu", 0.26), ("lag_p99_ms", 101.0)] {
            let mut slow = figures(100_000);
            slow[field] = json!(value);
            assert!(judge(&[slow.clone()], Size::Full, MOST_CPU).is_err(), "{field}");
            judge(&[slow], Size::Short, MOST_CPU).unwrap();
        }
    }

    #[test]
    fn sleeper_that_wakes_early_or_never_fails_at_any_size() {
        for (field, value) in [("woken", 1_999), ("early", 1)] {
            let mut broken = figures(2_000);
            broken[field] = json!(value);
            assert!(judge(&[broken], Size::Short, MOST_CPU).is_err(), "{field}");
        }
    }
}
