//! Proves the guarantees about data that outlives runs.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, exactly, line_with, measured, one, verdict};
use super::{Size, answered, judged, number};

const STORES: [&str; 2] = ["sqlite", "postgres"];

/// Minimum ratio of increments of one hot key to one increment per transaction on the bare database.
const LEAST_TIMES: [(&str, f64); 2] = [("sqlite", 8.0), ("postgres", 10.0)];
/// Minimum ratio of the rate with one hot key to the rate with a thousand keys.
const LEAST_HOT: f64 = 0.8;

fn command(workload: &str, store: &str, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args([workload, "--store", store, "--json"]);
    Ok(command)
}

fn sized(workload: &str, store: &str, size: Size) -> Result<Vec<Value>, String> {
    let mut command = command(workload, store, size)?;
    command.args((size == Size::Short).then_some("--short"));
    super::measured(&mut command, size)
}

/// Checks that a planted bug is found.
fn plant(workload: &str, store: &str, arguments: &[&str], size: Size) -> Result<(), String> {
    let (status, line) = answered(command(workload, store, size)?.arg("--short").args(arguments), "", size)?;
    let found = !status.success() && !line["planted"].is_null();
    let what = format!("planted bug {} on {store}: found", arguments.join(" "));
    if judged(found, &what) { Ok(()) } else { Err(format!("the planted bug was not found: {line}")) }
}

/// Checks that a counter incremented by many runs is exact although their process is killed.
pub(super) fn exact_counter(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("exact-counter", store, size)?;
        judge_counter(one(&lines)?, size)?;
        plant("exact-counter", store, &["--plant"], size)?;
    }
    Ok(())
}

fn judge_counter(line: &Value, size: Size) -> Result<(), String> {
    measured(line, &["kills", "sum"])?;
    let expected = if size == Size::Full { 50_000 } else { 2_000 };
    let mut all_met = exactly(line, "runs", 100)?;
    all_met &= exactly(line, "completed", 100)?;
    for field in ["expected", "sum", "revision", "audit_rows"] {
        all_met &= exactly(line, field, expected)?;
    }
    all_met &= judged(line["audit_sound"] == true, "the audit trail matches its seals");
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that concurrent reads and writes of a few keys are linearizable.
pub(super) fn linearizable(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("linearizable", store, size)?;
        let line = one(&lines)?;
        let least = if size == Size::Full { 200_000.0 } else { 8_000.0 };
        let mut all_met = at_least(line, "operations", least)?;
        all_met &= judged(line["contradiction"].is_null(), "one order explains all observations");
        verdict(all_met)?;
        for bug in ["lost-update", "stale-read"] {
            plant("linearizable", store, &["--plant", bug], size)?;
        }
    }
    Ok(())
}

/// Checks that a hot counter is many times faster than one increment per transaction.
pub(super) fn counter(size: Size) -> Result<(), String> {
    for (store, times) in LEAST_TIMES {
        judge_speed(&sized("counter", store, size)?, times, size)?;
    }
    Ok(())
}

fn judge_speed(lines: &[Value], times: f64, size: Size) -> Result<(), String> {
    let (hot, many) = (line_with(lines, "keys", 1)?, line_with(lines, "keys", 1_000)?);
    for line in [hot, many] {
        measured(line, &["per_s", "raw_per_s", "ratio", "p50_us", "increments"])?;
        let sums = judged(line["sum"] == line["increments"], "every increment counts once");
        verdict(sums)?;
    }
    if size == Size::Short {
        return Ok(());
    }
    let mut all_met = at_least(hot, "ratio", times)?;
    let (one_key, keys) = (number(hot, "per_s")?, number(many, "per_s")?);
    let what =
        format!("one hot key: {one_key:.0}/s, at least {LEAST_HOT} times {keys:.0}/s with a thousand keys");
    all_met &= judged(one_key >= LEAST_HOT * keys, &what);
    verdict(all_met)
}

/// Checks that a tenant finds, changes and counts nothing of another tenant.
pub(super) fn isolation(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("isolation", store, size)?;
        let line = one(&lines)?;
        let mut all_met = at_least(line, "calls", 50.0)?;
        all_met &= exactly(line, "found", 0)?;
        all_met &= exactly(line, "changed", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    }
    Ok(())
}

/// Checks that a listing contains every stable key once.
pub(super) fn pages(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("pages", store, size)?;
        let line = one(&lines)?;
        measured(line, &["rows", "others_changed", "prefixes"])?;
        let mut all_met = at_least(line, "keys", if size == Size::Full { 100_000.0 } else { 2_000.0 })?;
        for field in ["skipped", "repeated", "out_of_order", "wrong_by_prefix"] {
            all_met &= exactly(line, field, 0)?;
        }
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn speeds() -> [Value; 2] {
        let line = |keys: u64, per_s: f64| {
            json!({"keys": keys, "per_s": per_s, "raw_per_s": 100.0, "ratio": 8.0, "p50_us": 900.0,
                "increments": 5, "sum": 5})
        };
        [line(1, 800.0), line(1_000, 1_000.0)]
    }

    #[test]
    fn slower_counter_misses_its_bars() {
        judge_speed(&speeds(), 8.0, Size::Full).unwrap();
        assert!(judge_speed(&speeds(), 8.1, Size::Full).is_err());
        let mut cold = speeds();
        cold[0]["per_s"] = json!(799.0);
        assert!(judge_speed(&cold, 8.0, Size::Full).is_err());
        judge_speed(&cold, 9.0, Size::Short).unwrap();
        cold[1]["sum"] = json!(4);
        assert!(judge_speed(&cold, 8.0, Size::Short).is_err(), "a lost increment fails at any size");
    }

    #[test]
    fn inexact_sum_is_an_error_at_any_size() {
        let line = json!({"kills": 3, "runs": 100, "completed": 100, "expected": 2_000, "sum": 2_000, "revision": 2_000,
            "audit_rows": 2_000, "audit_sound": true});
        judge_counter(&line, Size::Short).unwrap();
        assert!(judge_counter(&line, Size::Full).is_err());
        for field in ["sum", "revision", "audit_rows", "completed"] {
            let mut bad = line.clone();
            bad[field] = json!(1_999);
            assert!(judge_counter(&bad, Size::Short).is_err(), "{field}");
        }
    }
}
