//! Proves the guarantees about tokens and handles.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, exactly, line_with, measured, one, verdict};
use super::{Size, answered, judged, number};

const STORES: [&str; 2] = ["sqlite", "postgres"];

/// Context sizes of the measured tokens, in bytes.
const SIZES: [u64; 3] = [200, 1_000, 8_000];
/// Minimum ratio of the rate of sealing and opening to that of the token library on the same plaintext.
const LEAST_RATIO: f64 = 0.5;
/// Absolute value of Welch's t from which two kinds of refusals count as distinguishable.
const TOLD_APART: f64 = 4.5;

fn bench(arguments: &[&str], size: Size) -> Result<Vec<Value>, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(arguments).arg("--json").args((size == Size::Short).then_some("--short"));
    super::measured(&mut command, size)
}

/// Checks that one of many resumes of a handle runs the step, and that kills in between lose and duplicate nothing.
pub(super) fn one_winner(size: Size) -> Result<(), String> {
    for store in STORES {
        judge_winners(one(&bench(&["one-winner", "--store", store], size)?)?, size)?;
    }
    Ok(())
}

fn judge_winners(line: &Value, size: Size) -> Result<(), String> {
    measured(line, &["kills", "in_the_middle", "resumes"])?;
    let rounds = if size == Size::Full { 500 } else { 10 };
    let mut all_met = exactly(line, "rounds", rounds)?;
    all_met &= exactly(line, "resumes", rounds * 200)?;
    for field in ["winners", "actions"] {
        all_met &= exactly(line, field, rounds)?;
    }
    for field in ["other", "lost", "advanced_twice"] {
        all_met &= exactly(line, field, 0)?;
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that invalid tokens are refused, and that their refusals are indistinguishable.
pub(super) fn tamper(size: Size) -> Result<(), String> {
    for store in STORES {
        judge_tampering(one(&bench(&["tamper", "--store", store], size)?)?, size)?;
    }
    let mut planted = Command::new(super::bench(size)?);
    planted.args(["tamper", "--plant", "--json", "--tokens", "1", "--timed", "6000"]);
    let (status, line) = answered(&mut planted, "", size)?;
    if judged(!status.success() && line["planted"] == true, "a planted leak of a millisecond: found") {
        return Ok(());
    }
    Err(format!("the planted leak was not found: {line}"))
}

fn judge_tampering(line: &Value, size: Size) -> Result<(), String> {
    measured(line, &["changed_bits", "bounds", "refused_p50_us"])?;
    let (tokens, timed) = if size == Size::Full { (200, 99_000.0) } else { (6, 1_400.0) };
    let mut all_met = exactly(line, "tokens", tokens)?;
    all_met &= exactly(line, "taken", 0)?;
    all_met &= exactly(line, "told_apart", 0)?;
    all_met &= at_least(line, "timed", timed)?;
    let wrong = line["wrong_bounds"].as_array().map_or(1, Vec::len);
    all_met &=
        judged(wrong == 0, "tokens are valid only for their tenant, workflow and pause, until they expire");
    if size == Size::Full {
        for field in ["welch_unknown_used", "welch_unknown_expired", "welch_used_expired"] {
            let t = number(line, field)?;
            all_met &= judged(t.abs() < TOLD_APART, &format!("{field}: {t}, within {TOLD_APART} of 0"));
        }
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that following an answer link changes nothing.
pub(super) fn scanner(size: Size) -> Result<(), String> {
    for store in STORES {
        judge_scanner(one(&bench(&["scanner", "--store", store], size)?)?, size)?;
    }
    let mut planted = Command::new(super::bench(size)?);
    planted.args(["scanner", "--plant", "--short", "--json"]);
    let (status, line) = answered(&mut planted, "", size)?;
    if judged(!status.success() && line["planted"] == true, "a scanner that submits forms: found") {
        return Ok(());
    }
    Err(format!("a scanner that submits forms was not found: {line}"))
}

fn judge_scanner(line: &Value, size: Size) -> Result<(), String> {
    measured(line, &["requests"])?;
    let links = if size == Size::Full { 600 } else { 12 };
    let mut all_met = exactly(line, "links", links)?;
    for field in ["changed", "odd_answers"] {
        all_met &= exactly(line, field, 0)?;
    }
    all_met &= exactly(line, "answered", links)?;
    all_met &= exactly(line, "gone_afterwards", links * 2 / 3)?;
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that sealing and opening costs little more than the token library alone.
pub(super) fn seal(size: Size) -> Result<(), String> {
    judge_sealing(&bench(&["seal"], size)?, size)
}

fn judge_sealing(lines: &[Value], size: Size) -> Result<(), String> {
    let (packed, plain): (Vec<Value>, Vec<Value>) =
        lines.iter().cloned().partition(|line| line["compressed"] == true);
    let mut all_met = true;
    for bytes in SIZES {
        let line = line_with(&plain, "bytes", bytes)?;
        measured(line, &["per_s", "raw_per_s", "resumes_per_s", "token_bytes"])?;
        measured(line_with(&packed, "bytes", bytes)?, &["per_s", "resumes_per_s", "token_bytes"])?;
        if size == Size::Full {
            all_met &= at_least(line, "ratio", LEAST_RATIO)?;
        }
    }
    verdict(all_met)
}

/// Measures resumes of flows behind handles. There is no bar.
pub(super) fn handle(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = bench(&["handle", "--store", store], size)?;
        for bytes in SIZES {
            let line = line_with(&lines, "bytes", bytes)?;
            measured(line, &["per_s", "raw_per_s", "ratio", "p50_us", "token_bytes"])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_wrong_count_of_winners_is_found() {
        let line = json!({"kills": 3, "in_the_middle": 2, "rounds": 10, "resumes": 2_000, "winners": 10, "actions": 10,
            "other": 0, "lost": 0, "advanced_twice": 0});
        judge_winners(&line, Size::Short).unwrap();
        assert!(judge_winners(&line, Size::Full).is_err());
        for (field, bad) in
            [("winners", 11), ("actions", 11), ("other", 1), ("lost", 1), ("advanced_twice", 1)]
        {
            let mut broken = line.clone();
            broken[field] = json!(bad);
            assert!(judge_winners(&broken, Size::Short).is_err(), "{field}");
        }
    }

    #[test]
    fn each_failed_refusal_is_found() {
        let line = json!({"changed_bits": 5, "bounds": 5, "refused_p50_us": 3_000.0, "tokens": 200, "taken": 0,
            "told_apart": 0, "timed": 100_000, "wrong_bounds": [], "welch_unknown_used": 1.0,
            "welch_unknown_expired": -4.4, "welch_used_expired": 0.1});
        judge_tampering(&line, Size::Full).unwrap();
        let bad = [("taken", json!(1)), ("told_apart", json!(1)), ("wrong_bounds", json!(["x"]))];
        for (field, bad) in bad.into_iter().chain([("welch_used_expired", json!(-4.5))]) {
            let mut broken = line.clone();
            broken[field] = bad;
            assert!(judge_tampering(&broken, Size::Full).is_err(), "{field}");
        }
    }

    #[test]
    fn sealing_exactly_at_its_bar_passes() {
        let lines = |ratio: f64| -> Vec<Value> {
            let line = |bytes: u64, compressed: bool| {
                json!({"bytes": bytes, "compressed": compressed, "per_s": 9.0, "raw_per_s": 9.0, "ratio": ratio,
                    "resumes_per_s": 9.0, "token_bytes": 9})
            };
            SIZES.iter().flat_map(|bytes| [line(*bytes, false), line(*bytes, true)]).collect()
        };
        judge_sealing(&lines(0.5), Size::Full).unwrap();
        assert!(judge_sealing(&lines(0.499), Size::Full).is_err());
        judge_sealing(&lines(0.1), Size::Short).unwrap();
    }
}
