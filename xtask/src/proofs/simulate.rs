//! Proves that several engines on one store keep their guarantees under all simulated faults, seed after seed.

use std::process::Command;

use serde_json::Value;

use super::{Size, judged, measured};

/// Planted bugs that the simulation must find.
const PLANTS: &[&str] = &["no-fence", "answer-early", "no-version-check", "wall-clock-timers"];
/// Number of seeds within which a planted bug must be found.
const PLANTED_SEEDS: u64 = 1_000;

pub(super) fn prove(size: Size) -> Result<(), String> {
    let seeds = match size {
        Size::Full => 50_000,
        Size::Short => 400,
    };
    judge(&measured(&mut simulate(seeds, None, size)?, size)?, seeds)?;
    // The simulation must find planted bugs, otherwise it proves nothing.
    for plant in PLANTS {
        judge_planted(plant, &measured(&mut simulate(PLANTED_SEEDS, Some(plant), size)?, size)?)?;
    }
    Ok(())
}

fn simulate(seeds: u64, plant: Option<&str>, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args(["simulate", "--seeds", &seeds.to_string(), "--json"]);
    if let Some(plant) = plant {
        command.args(["--plant", plant]);
    }
    Ok(command)
}

fn judge(lines: &[Value], seeds: u64) -> Result<(), String> {
    let [line] = lines else { return Err(format!("expected one line of figures, got {}", lines.len())) };
    let count =
        |field: &str| line[field].as_u64().ok_or_else(|| format!("`{field}` is not a count in {line}"));
    let violations = count("violations")?;
    let mut all_met = judged(violations == 0, &format!("violations: {violations}, must be 0"));
    let done = count("seeds")?;
    all_met &= judged(done == seeds, &format!("seeds: {done} of {seeds}"));
    // Each of these must have happened, otherwise nothing is proved.
    for field in HAPPENS {
        let found = count(field)?;
        all_met &= judged(found > 0, &format!("{field}: {found}, must be more than 0"));
    }
    if all_met {
        Ok(())
    } else {
        Err(format!("a guarantee was violated, or some faults did not happen: {line}"))
    }
}

/// Counters that must be greater than zero.
const HAPPENS: &[&str] = &[
    "runs",
    "commits",
    "crashes",
    "freezes",
    "lost_answers",
    "takeovers",
    "fenced",
    "clock_jumps",
    "timers",
    "signals",
    "retries",
    "children",
    "cancelled",
];

fn judge_planted(plant: &str, lines: &[Value]) -> Result<(), String> {
    let [line] = lines else { return Err(format!("expected one line of figures, got {}", lines.len())) };
    let found = line["found"] == true && line["plant"] == plant;
    let (seed, what) = (&line["seed"], &line["what"]);
    if judged(found, &format!("planted bug {plant}: found by seed {seed}: {what}")) {
        return Ok(());
    }
    Err(format!("the planted bug {plant} was not found: {line}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures() -> Value {
        let mut line = json!({"seeds": 5000, "violations": 0});
        HAPPENS.iter().for_each(|field| line[field] = 7.into());
        line
    }

    #[test]
    fn seeds_without_violation_pass() {
        judge(&[figures()], 5_000).unwrap();
    }

    #[test]
    fn violation_and_missing_faults_fail() {
        for (field, value) in [("violations", 1), ("seeds", 4_999), ("takeovers", 0), ("lost_answers", 0)] {
            let mut broken = figures();
            broken[field] = json!(value);
            assert!(judge(&[broken], 5_000).is_err(), "{field}");
        }
        assert!(judge(&[], 5_000).is_err());
        assert!(judge(&[json!({})], 5_000).unwrap_err().contains("is not a count"));
    }

    #[test]
    fn a_planted_bug_that_is_not_found_fails_the_proof() {
        judge_planted("no-fence", &[json!({"plant": "no-fence", "found": true, "seed": 3})]).unwrap();
        assert!(judge_planted("no-fence", &[json!({"plant": "no-fence", "found": false})]).is_err());
        assert!(judge_planted("no-fence", &[json!({"plant": "answer-early", "found": true})]).is_err());
        assert!(judge_planted("no-fence", &[]).is_err());
    }
}
