//! Proves that a signal wakes a waiting run quickly, and many runs at little cost.

use std::process::Command;

use serde_json::Value;

use super::Size;
use super::figures::{at_least, at_most, line_with, measured, verdict};

/// Minimum ratio of completions per second, with 64 concurrent runs, to the bare loop's commits. Each completion is a
/// start, a signal and an end.
const LEAST_RATIO: f64 = 0.25;
/// Maximum median time from signal to result of a single run, in microseconds.
const MOST_P50_US: f64 = 1_000.0;

const FIGURES: &[&str] =
    &["completions_per_s", "raw_per_s", "ratio", "p50_us", "p99_us", "rss_mb", "db_bytes_per_workflow"];

pub(super) fn prove(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["signal", "--store", "sqlite", "--json"]);
    command.args((size == Size::Short).then_some("--short"));
    judge(&super::measured(&mut command, size)?, size)
}

fn judge(lines: &[Value], size: Size) -> Result<(), String> {
    let (many, alone) = (line_with(lines, "in_flight", 64)?, line_with(lines, "in_flight", 1)?);
    measured(many, FIGURES)?;
    measured(alone, FIGURES)?;
    if size == Size::Short {
        return Ok(());
    }
    let met = at_least(many, "ratio", LEAST_RATIO)?;
    verdict(at_most(alone, "p50_us", MOST_P50_US)? && met)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(ratio: f64, p50_us: f64) -> [Value; 2] {
        [64, 1].map(|in_flight| {
            json!({"in_flight": in_flight, "completions_per_s": 25.0, "raw_per_s": 100.0, "ratio": ratio,
                "p50_us": p50_us, "p99_us": 2_000, "rss_mb": 30.0, "db_bytes_per_workflow": 3_000})
        })
    }

    #[test]
    fn each_bar_is_judged_at_full_size_only() {
        judge(&lines(0.25, 1_000.0), Size::Full).unwrap();
        for slow in [lines(0.24, 900.0), lines(0.3, 1_001.0)] {
            assert!(judge(&slow, Size::Full).unwrap_err().contains("a bar was missed"));
            judge(&slow, Size::Short).unwrap();
        }
    }

    #[test]
    fn a_missing_line_is_an_error_at_any_size() {
        assert!(
            judge(&lines(0.3, 900.0)[1..], Size::Short).unwrap_err().contains("no line with in_flight 64")
        );
    }
}
