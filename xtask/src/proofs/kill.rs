//! Proves that a killed process loses nothing it had acknowledged.

use std::process::Command;

use serde_json::Value;

use super::{Size, answered, judged, measured};

pub(super) fn prove_sqlite(size: Size) -> Result<(), String> {
    prove("sqlite", if size == Size::Full { 1_000 } else { 15 }, size)
}

/// On a server of its own, which is killed now and then too.
pub(super) fn prove_postgres(size: Size) -> Result<(), String> {
    prove("postgres", if size == Size::Full { 300 } else { 15 }, size)
}

fn prove(store: &str, cycles: u64, size: Size) -> Result<(), String> {
    judge(&measured(&mut kill(store, cycles, size)?, size)?, cycles)?;
    // The same with a victim that answers before it commits: a check that does not see that sees nothing.
    let (status, line) = answered(kill(store, PLANTED_CYCLES, size)?.arg("--answer-early"), "", size)?;
    judge_planted(status.success(), &line)
}

/// Enough kills for a commit that was answered early to be caught under way.
const PLANTED_CYCLES: u64 = 15;

fn kill(store: &str, cycles: u64, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["kill", "--store", store, "--cycles", &cycles.to_string(), "--json"]);
    Ok(command)
}

fn judge_planted(passed: bool, line: &Value) -> Result<(), String> {
    let lost = line["lost"].as_u64().unwrap_or_default();
    let found =
        judged(!passed && lost > 0, &format!("planted bug, answers before commits: {lost} found lost"));
    if found { Ok(()) } else { Err(format!("the planted bug was not found: {line}")) }
}

fn judge(lines: &[Value], cycles: u64) -> Result<(), String> {
    let [line] = lines else { return Err(format!("expected one line of figures, got {}", lines.len())) };
    let count =
        |field: &str| line[field].as_u64().ok_or_else(|| format!("`{field}` is not a count in {line}"));
    let mut all_met = true;
    for field in ["lost", "gaps", "duplicates", "wrong_states"] {
        let found = count(field)?;
        all_met &= judged(found == 0, &format!("{field}: {found}, must be 0"));
    }
    let done = count("cycles")?;
    all_met &= judged(done == cycles, &format!("cycles: {done} of {cycles}"));
    // Nothing can be lost where nothing was promised.
    let acknowledged = count("acknowledged")?;
    all_met &= judged(acknowledged > 0, &format!("acknowledged: {acknowledged}, must be more than 0"));
    if all_met { Ok(()) } else { Err(format!("the promise was broken: {line}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures() -> Value {
        json!({"store": "sqlite", "cycles": 15, "acknowledged": 4200, "lost": 0, "gaps": 0, "duplicates": 0,
            "wrong_states": 0})
    }

    #[test]
    fn nothing_lost_is_proved() {
        judge(&[figures()], 15).unwrap();
    }

    #[test]
    fn each_way_to_break_the_promise_is_seen() {
        for (field, value) in [
            ("lost", 1),
            ("gaps", 1),
            ("duplicates", 1),
            ("wrong_states", 1),
            ("cycles", 14),
            ("acknowledged", 0),
        ] {
            let mut broken = figures();
            broken[field] = json!(value);
            assert!(judge(&[broken], 15).unwrap_err().contains("the promise was broken"), "{field}");
        }
    }

    #[test]
    fn a_planted_bug_that_is_not_found_fails_the_proof() {
        judge_planted(false, &json!({"lost": 3})).unwrap();
        assert!(judge_planted(true, &json!({"lost": 0})).is_err());
        assert!(judge_planted(false, &json!({"lost": 0})).is_err());
        assert!(judge_planted(false, &json!({})).is_err());
    }

    #[test]
    fn figures_that_are_not_there_prove_nothing() {
        assert!(judge(&[], 15).is_err());
        assert!(judge(&[figures(), figures()], 15).is_err());
        let mut partial = figures();
        partial["lost"] = Value::Null;
        assert!(judge(&[partial], 15).unwrap_err().contains("`lost` is not a count"));
    }
}
