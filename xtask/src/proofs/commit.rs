//! Proves that the store adds little cost to the bare database.

use std::process::Command;

use serde_json::Value;

use super::{Size, judged, measured, number};

/// Bars for throughput: number of writers, and the minimum ratio to the bare loop.
const LEAST_RATIO: &[(u64, f64)] = &[(64, 0.75), (256, 0.75)];

/// Bar for a single writer: maximum ratio of its median latency to that of the bare loop.
const MOST_P50: f64 = 1.25;

const FIGURES: &[&str] = &["per_s", "raw_per_s", "ratio", "p50_us", "p99_us", "raw_p50_us"];

pub(super) fn prove(size: Size) -> Result<(), String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["commit", "--store", "sqlite", "--json"]);
    if size == Size::Short {
        command.arg("--short");
    }
    judge(&measured(&mut command, size)?, size)
}

fn judge(lines: &[Value], size: Size) -> Result<(), String> {
    complete(lines)?;
    if size == Size::Short {
        return Ok(());
    }
    let mut all_met = true;
    for (writers, least) in LEAST_RATIO {
        for line in at(lines, *writers) {
            let ratio = number(line, "ratio")?;
            all_met &=
                judged(ratio >= *least, &format!("{writers} writers: ratio {ratio:.3}, at least {least}"));
        }
    }
    for line in at(lines, 1) {
        let (p50, raw) = (number(line, "p50_us")?, number(line, "raw_p50_us")?);
        let what = format!("1 writer: p50 {p50:.0} µs, at most {MOST_P50} times the bare {raw:.0} µs");
        all_met &= judged(p50 <= MOST_P50 * raw, &what);
    }
    if all_met { Ok(()) } else { Err("a bar was missed, see above; is the machine idle?".to_owned()) }
}

/// Checks that every line is complete, and that there is one for every bar.
fn complete(lines: &[Value]) -> Result<(), String> {
    for line in lines {
        for field in ["workload", "store"] {
            line[field].as_str().ok_or_else(|| format!("`{field}` is not a string in {line}"))?;
        }
        line["writers"].as_u64().ok_or_else(|| format!("`writers` is not a count in {line}"))?;
        for field in FIGURES {
            let figure = number(line, field)?;
            if !figure.is_finite() || figure <= 0.0 {
                return Err(format!("`{field}` is {figure}, expected a positive number, in {line}"));
            }
        }
    }
    let judged = LEAST_RATIO.iter().map(|(writers, _)| *writers).chain([1]);
    match judged.into_iter().find(|writers| at(lines, *writers).next().is_none()) {
        Some(writers) => Err(format!("no line with {writers} writers")),
        None => Ok(()),
    }
}

fn at(lines: &[Value], writers: u64) -> impl Iterator<Item = &Value> {
    lines.iter().filter(move |line| line["writers"] == writers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(ratio: f64, p50_us: f64) -> Vec<Value> {
        let line = |writers: u64| {
            json!({"workload": "commit", "store": "sqlite", "writers": writers, "per_s": 100.0 * ratio,
                "raw_per_s": 100.0, "ratio": ratio, "p50_us": p50_us, "p99_us": 900, "raw_p50_us": 100})
        };
        [1, 64, 256].map(line).into()
    }

    #[test]
    fn exactly_met_bars_pass() {
        judge(&lines(0.75, 125.0), Size::Full).unwrap();
    }

    #[test]
    fn a_missed_bar_is_an_error_at_full_size_only() {
        for slow in [lines(0.74, 100.0), lines(0.9, 126.0)] {
            assert!(judge(&slow, Size::Full).unwrap_err().contains("a bar was missed"));
            judge(&slow, Size::Short).unwrap();
        }
    }

    #[test]
    fn incomplete_lines_are_errors_at_any_size() {
        for size in [Size::Full, Size::Short] {
            let mut two = lines(0.9, 100.0);
            two.remove(1);
            assert!(judge(&two, size).unwrap_err().contains("no line with 64 writers"));
            for nothing in [json!(0), json!(-1), json!(null), json!("fast")] {
                let mut broken = lines(0.9, 100.0);
                broken[2]["p99_us"] = nothing;
                assert!(judge(&broken, size).unwrap_err().contains("`p99_us`"));
            }
        }
    }
}
