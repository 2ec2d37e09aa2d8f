//! Proves that the API costs no more than the work behind it allows.

use std::process::Command;

use serde_json::Value;

use super::Size;
use super::figures::{at_least, line_with, measured, verdict};

/// Signals per second over HTTP with 64 clients, as a part of the same signals in process.
const LEAST_RATIO: f64 = 0.4;

const FIGURES: &[&str] = &["signals_per_s", "raw_per_s", "ratio", "p50_us", "p99_us", "rss_mb"];

pub(super) fn prove(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench()?);
    command.args(["http", "--store", "sqlite", "--json"]);
    command.args((size == Size::Short).then_some("--short"));
    judge(&super::measured(&mut command, size)?, size)
}

fn judge(lines: &[Value], size: Size) -> Result<(), String> {
    let many = line_with(lines, "clients", 64)?;
    measured(many, FIGURES)?;
    if size == Size::Short {
        return Ok(());
    }
    verdict(at_least(many, "ratio", LEAST_RATIO)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_bar_is_judged_at_full_size_only() {
        let line = |ratio: f64| {
            [
                json!({"clients": 64, "signals_per_s": 40.0, "raw_per_s": 100.0, "ratio": ratio, "p50_us": 900.0,
                "p99_us": 2_000, "rss_mb": 30.0}),
            ]
        };
        judge(&line(0.4), Size::Full).unwrap();
        assert!(judge(&line(0.39), Size::Full).unwrap_err().contains("a bar was missed"));
        judge(&line(0.1), Size::Short).unwrap();
        assert!(judge(&[], Size::Short).unwrap_err().contains("no line with clients 64"));
    }
}
