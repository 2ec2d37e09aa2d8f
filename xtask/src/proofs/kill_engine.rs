//! Proves that a killed engine loses no workflow, commits no step twice, and uses the same idempotency key for every
//! attempt.

use std::process::Command;

use serde_json::Value;

use super::figures::{exactly, measured, one, verdict};
use super::{Size, answered, judged};

/// Planted bugs, each with the field in which it must show.
const PLANTED: &[(&str, &str)] =
    &[("fresh-keys", "wrong_keys"), ("lost-effects", "missing_effects"), ("no-keys", "duplicates")];

/// Fields that must be zero.
const WRONG: &[&str] =
    &["gaps", "duplicates", "missing_effects", "wrong_keys", "uncounted_tries", "crashed", "failed"];

pub(super) fn prove(size: Size) -> Result<(), String> {
    prove_on("sqlite", if size == Size::Full { (1_000, 200) } else { (60, 10) }, size)
}

/// Proves it on a PostgreSQL server, where the next process must first detect that the previous one is dead.
pub(super) fn prove_postgres(size: Size) -> Result<(), String> {
    prove_on("postgres", if size == Size::Full { (1_000, 200) } else { (60, 10) }, size)
}

fn prove_on(store: &str, (workflows, kills): (u64, u64), size: Size) -> Result<(), String> {
    let mut command = kill(store, size)?;
    command.args(["--workflows", &workflows.to_string(), "--kills", &kills.to_string()]);
    judge(&super::measured(&mut command, size)?, workflows, kills)?;
    // The same with planted bugs, which the checks must find.
    for (plant, field) in PLANTED {
        let (status, line) = answered(kill(store, size)?.args(["--short", "--plant", plant]), "", size)?;
        judge_planted(plant, field, status.success(), &line)?;
    }
    Ok(())
}

fn kill(store: &str, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["kill-engine", "--store", store, "--json"]);
    Ok(command)
}

fn judge_planted(plant: &str, field: &str, passed: bool, line: &Value) -> Result<(), String> {
    let found = line[field].as_u64().unwrap_or_default();
    let seen =
        judged(!passed && found > 0, &format!("planted bug {plant}: {field} {found}, must be more than 0"));
    if seen { Ok(()) } else { Err(format!("the planted bug was not found: {line}")) }
}

fn judge(lines: &[Value], workflows: u64, kills: u64) -> Result<(), String> {
    let line = one(lines)?;
    // Kills must have interrupted running actions, otherwise nothing is proved.
    measured(line, &["effects", "repeated_effects"])?;
    let mut all_met = exactly(line, "kills", kills)?;
    all_met &= exactly(line, "finished", workflows)?;
    all_met &= exactly(line, "steps_committed", workflows * 10)?;
    for field in WRONG {
        all_met &= exactly(line, field, 0)?;
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures() -> Value {
        json!({"kills": 10, "workflows": 60, "finished": 60, "steps_committed": 600, "gaps": 0, "duplicates": 0,
            "missing_effects": 0, "wrong_keys": 0, "uncounted_tries": 0, "crashed": 0, "failed": 0,
            "effects": 660, "repeated_effects": 60})
    }

    #[test]
    fn figures_without_violation_pass() {
        judge(&[figures()], 60, 10).unwrap();
    }

    #[test]
    fn each_violation_is_found() {
        let counted = [("kills", 9), ("finished", 59), ("steps_committed", 601), ("repeated_effects", 0)];
        for (field, value) in WRONG.iter().map(|field| (*field, 1)).chain(counted) {
            let mut broken = figures();
            broken[field] = json!(value);
            assert!(judge(&[broken], 60, 10).is_err(), "{field}");
        }
    }

    #[test]
    fn a_planted_bug_that_is_not_found_fails_the_proof() {
        judge_planted("fresh-keys", "wrong_keys", false, &json!({"wrong_keys": 3})).unwrap();
        assert!(judge_planted("fresh-keys", "wrong_keys", true, &json!({"wrong_keys": 3})).is_err());
        assert!(judge_planted("fresh-keys", "wrong_keys", false, &json!({"wrong_keys": 0})).is_err());
        assert!(judge_planted("fresh-keys", "wrong_keys", false, &json!({})).is_err());
    }
}
