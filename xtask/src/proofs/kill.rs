//! Proves that a killed process loses no acknowledged commit.

use std::process::Command;

use serde_json::Value;

use super::{Size, answered, judged, measured};

pub(super) fn prove_sqlite(size: Size) -> Result<(), String> {
    prove("sqlite", if size == Size::Full { 1_000 } else { 15 }, size)
}

/// Proves it on a PostgreSQL server, which is sometimes killed as well.
pub(super) fn prove_postgres(size: Size) -> Result<(), String> {
    prove("postgres", if size == Size::Full { 300 } else { 15 }, size)
}

fn prove(store: &str, cycles: u64, size: Size) -> Result<(), String> {
    judge(&measured(&mut kill(store, cycles, size)?, size)?, cycles)?;
    // The same with a victim that acknowledges before it commits: the check must find lost commits.
    let (status, line) = answered(kill(store, PLANTED_CYCLES, size)?.arg("--answer-early"), "", size)?;
    judge_planted(status.success(), &line)
}

/// Number of kills that is enough to hit a commit acknowledged early.
const PLANTED_CYCLES: u64 = 15;

fn kill(store: &str, cycles: u64, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["kill", "--store", store, "--cycles", &cycles.to_string(), "--json"]);
    Ok(command)
}

fn judge_planted(passed: bool, line: &Value) -> Result<(), String> {
    let lost = line["lost"].as_u64().unwrap_or_default();
    let found = judged(
        !passed && lost > 0,
        &format!("planted bug, acknowledges before it commits: {lost} commits lost"),
    );
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
    // Without acknowledged commits nothing can be lost, and nothing is proved.
    let acknowledged = count("acknowledged")?;
    all_met &= judged(acknowledged > 0, &format!("acknowledged: {acknowledged}, must be more than 0"));
    if all_met { Ok(()) } else { Err(format!("the guarantee was violated: {line}")) }
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
    fn figures_without_loss_pass() {
        judge(&[figures()], 15).unwrap();
    }

    #[test]
    fn each_violation_is_found() {
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
            assert!(judge(&[broken], 15).unwrap_err().contains("the guarantee was violated"), "{field}");
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
    fn missing_figures_are_errors() {
        assert!(judge(&[], 15).is_err());
        assert!(judge(&[figures(), figures()], 15).is_err());
        let mut partial = figures();
        partial["lost"] = Value::Null;
        assert!(judge(&[partial], 15).unwrap_err().contains("`lost` is not a count"));
    }
}
