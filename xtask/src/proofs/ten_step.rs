//! Proves that a durable workflow step costs little more than the bare database.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, at_most, line_with, measured, verdict};
use super::{Size, judged, number};

/// Minimum ratio of steps per second, with 64 concurrent workflows, to the bare loop's commits.
const LEAST_RATIO: f64 = 0.7;
/// Maximum database size of a finished workflow, in bytes.
const MOST_BYTES: f64 = 8_192.0;
/// Maximum ratio of the median step of a single workflow to the bare loop's commit.
const MOST_P50: f64 = 1.25;

const FIGURES: &[&str] = &[
    "steps_per_s",
    "raw_per_s",
    "ratio",
    "p50_us",
    "p99_us",
    "raw_p50_us",
    "rss_mb",
    "db_bytes_per_workflow",
];

pub(super) fn prove(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench(size)?);
    // Single pairs vary by a fifth on a shared machine; the median of many does not.
    command.args(["ten-step", "--store", "sqlite", "--json", "--slices", "15"]);
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
    let mut all_met = at_least(many, "ratio", LEAST_RATIO)?;
    all_met &= at_most(many, "db_bytes_per_workflow", MOST_BYTES)?;
    let (p50, raw) = (number(alone, "p50_us")?, number(alone, "raw_p50_us")?);
    let what = format!("alone: p50 {p50:.0} µs, at most {MOST_P50} times the bare {raw:.0} µs");
    all_met &= judged(p50 <= MOST_P50 * raw, &what);
    verdict(all_met)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines() -> [Value; 2] {
        let line = |in_flight: u64| {
            json!({"in_flight": in_flight, "steps_per_s": 70.0, "raw_per_s": 100.0, "ratio": 0.7,
                "p50_us": 125.0, "p99_us": 900, "raw_p50_us": 100.0, "rss_mb": 30.0,
                "db_bytes_per_workflow": 8_192})
        };
        [line(64), line(1)]
    }

    #[test]
    fn exactly_met_bars_pass() {
        judge(&lines(), Size::Full).unwrap();
    }

    #[test]
    fn a_missed_bar_is_an_error_at_full_size_only() {
        for (line, field, value) in
            [(0, "ratio", 0.69), (0, "db_bytes_per_workflow", 8_193.0), (1, "p50_us", 126.0)]
        {
            let mut slow = lines();
            slow[line][field] = json!(value);
            assert!(judge(&slow, Size::Full).unwrap_err().contains("a bar was missed"), "{field}");
            judge(&slow, Size::Short).unwrap();
        }
    }

    #[test]
    fn a_missing_line_or_figure_is_an_error_at_any_size() {
        for size in [Size::Full, Size::Short] {
            assert!(judge(&lines()[..1], size).unwrap_err().contains("no line with in_flight 1"));
            let mut empty = lines();
            empty[1]["p99_us"] = json!(0);
            assert!(judge(&empty, size).unwrap_err().contains("`p99_us`"));
        }
    }
}
