//! Proves the guarantees about events, and that the examples pass their own tests.

use std::process::Command;

use serde_json::Value;

use super::documents::{STORES, plant, sized};
use super::figures::{at_least, exactly, measured, one, verdict};
use super::{Size, answered, judged};
use crate::process;

/// Minimum number of example documents with test cases.
const LEAST_EXAMPLES: usize = 12;
/// Exit status of the command when the cases do not cover every step.
const FAILED: i32 = 7;

/// A document whose only case does not cover every step.
const UNCOVERED: &str = "
name: uncovered
steps:
  - { id: which, type: control.if, condition: payload.yes, then: [{ id: yes, type: control.return, value: 1 }] }
  - { id: no, type: control.return, value: 2 }
tests: [{ name: yes, input: { yes: true }, expect: { result: 1 } }]
";

/// Checks that events start and wake their runs exactly once while the process is killed.
pub(super) fn storm(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("storm", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["kills", "seconds"])?;
        let (sent, waiters) = if size == Size::Full { (10_000, 2_000) } else { (300, 60) };
        let mut all_met = exactly(line, "sent", sent)?;
        for field in ["accepted", "delivered"] {
            all_met &= exactly(line, field, sent * 7 / 10)?;
        }
        all_met &= exactly(line, "waiters_done", waiters)?;
        for field in ["woken", "woken_once"] {
            all_met &= exactly(line, field, waiters * 3)?;
        }
        let started = line["runs_started"].as_u64().unwrap_or_default();
        all_met &= at_least(line, "runs_started", (sent * 7 / 10) as f64)?;
        for field in ["started", "started_once"] {
            all_met &= exactly(line, field, started)?;
        }
        all_met &= exactly(line, "unwanted", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
        plant("storm", Some(store), size)?;
    }
    Ok(())
}

/// Checks events, waits and timeouts in every order.
pub(super) fn race(size: Size) -> Result<(), String> {
    let lines = sized("race", None, size)?;
    let line = one(&lines)?;
    let mut all_met = exactly(line, "violations", 0)?;
    all_met &= exactly(line, "seeds", if size == Size::Full { 10_000 } else { 1_000 })?;
    // Each of these cases must have occurred, otherwise nothing is proved.
    for field in ["taken", "late", "before", "during", "near", "after", "duplicates", "kills"] {
        all_met &= at_least(line, field, 1.0)?;
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    plant("race", None, size)
}

/// Checks that the examples pass their own tests, which cover every step.
pub(super) fn examples(size: Size) -> Result<(), String> {
    let folder = process::root().join("examples/workflows");
    let read = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = read.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.sort();
    let mut command = Command::new(super::server(size)?);
    command.args(["workflow", "test", "--full", "--json"]).args(&files);
    let lines = super::measured(&mut command, size)?;
    let mut all_met = judged(lines.len() >= LEAST_EXAMPLES, &format!("{} documents", lines.len()));
    for line in &lines {
        all_met &= judged(is_covered(line), &told(line));
    }
    verdict(all_met).map_err(|_| "an example does not pass its own tests".to_owned())?;
    let mut command = Command::new(super::server(size)?);
    command.args(["workflow", "test", "--full", "--json", "-"]);
    let (status, line) = answered(&mut command, UNCOVERED, size)?;
    let uncovered = line["coverage"]["uncovered"].as_array().cloned().unwrap_or_default();
    let found = status.code() == Some(FAILED) && uncovered.iter().any(|one| one["step"] == "no");
    if judged(found, "a step that no case covers: found") {
        return Ok(());
    }
    Err(format!("a step that no case covers was not found: {line}"))
}

fn is_covered(line: &Value) -> bool {
    let steps = &line["coverage"]["steps"];
    line["passed"] == true
        && steps["covered"] == steps["total"]
        && !line["cases"].as_array().is_none_or(Vec::is_empty)
}

fn told(line: &Value) -> String {
    let (steps, branches) = (&line["coverage"]["steps"], &line["coverage"]["branches"]);
    let cases = line["cases"].as_array().map_or(0, Vec::len);
    format!(
        "{}: {cases} cases, steps {} of {}, branches {} of {}",
        line["workflow"].as_str().unwrap_or_default(),
        steps["covered"],
        steps["total"],
        branches["covered"],
        branches["total"]
    )
}
