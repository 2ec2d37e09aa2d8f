//! Proofs by independent clients, written in Python. They know the server by its API alone.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, exactly, measured, one, verdict};
use super::{Size, judged};
use crate::process;

const FOLDER: &str = "xtask/src/proofs/clients";
/// Minimum number of kinds of planted lies.
const LEAST_LIES: f64 = 10.0;

/// Returns the number of disturbances: at full size at least two hundred over both stores.
fn kills(store: &str, size: Size) -> u64 {
    match (store, size) {
        (_, Size::Full) => 150,
        ("postgres", Size::Short) => 5,
        (_, Size::Short) => 3,
    }
}

/// Checks that nothing the server acknowledges is lost, duplicated or changed.
pub(super) fn oracle(size: Size) -> Result<(), String> {
    for store in ["sqlite", "postgres"] {
        let line = asked(store, kills(store, size), false, size)?;
        let mut kinds = vec!["kills", "killed", "stopped", "checked", "seconds"];
        if store == "postgres" {
            kinds.extend(["sessions", "databases"]);
        }
        measured(&line, &kinds)?;
        let mut all_met = exactly(&line, "kills", kills(store, size))?;
        all_met &= exactly(&line, "findings", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    }
    // Lies are planted between client and server, so the store does not matter.
    let line = asked("sqlite", 2, true, size)?;
    let missed = line["missed"].as_array().ok_or("`missed` is not a list")?;
    let mut all_met = at_least(&line, "lies", LEAST_LIES)?;
    all_met &= judged(missed.is_empty(), &format!("planted lies that were not found: {missed:?}"));
    verdict(all_met)
}

/// Checks that secrets reach their recipients and appear nowhere else. Both sizes run the same.
pub(super) fn canary(size: Size) -> Result<(), String> {
    let line = one(&super::measured(&mut client("canary.py", size)?, size)?).cloned()?;
    measured(&line, &["runs", "looked", "spans"])?;
    let mut all_met = exactly(&line, "leaks", 0)?;
    all_met &= exactly(&line, "published", 0)?;
    all_met &= at_least(&line, "refused", 8.0)?;
    all_met &= judged(line["heard"] == line["secrets"], "every secret has reached its recipient");
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    let line = one(&super::measured(client("canary.py", size)?.arg("--plant"), size)?).cloned()?;
    let missed = line["missed"].as_array().ok_or("`missed` is not a list")?;
    let mut all_met = at_least(&line, "places", 8.0)?;
    all_met &= judged(missed.is_empty(), &format!("places where a leak is not found: {missed:?}"));
    verdict(all_met)
}

/// Checks that of many random answers exactly the permitted first ones count, and that every record names them.
pub(super) fn people(size: Size) -> Result<(), String> {
    let mut command = client("people.py", size)?;
    command.arg("--plant");
    if size == Size::Short {
        command.args(["--answers", "80", "--cli", "0.05"]);
    }
    let line = one(&super::measured(&mut command, size)?).cloned()?;
    measured(&line, &["permitted", "others", "late", "doubled", "waits", "seconds"])?;
    let mut all_met = exactly(&line, "findings", 0)?;
    all_met &= at_least(&line, "answers", if size == Size::Full { 1_000.0 } else { 80.0 })?;
    all_met &= at_least(&line, "lies", LEAST_LIES)?;
    let missed = line["missed"].as_array().ok_or("`missed` is not a list")?;
    all_met &= judged(missed.is_empty(), &format!("planted lies that were not found: {missed:?}"));
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that a bulk command executes each command exactly once across kills, and stops when it is cancelled.
pub(super) fn bulk(size: Size) -> Result<(), String> {
    let (runs, kills) = if size == Size::Full { (5_000, 5) } else { (300, 2) };
    let mut command = client("bulk.py", size)?;
    command.arg("--plant").arg("--bench").arg(super::bench(size)?);
    command.args(["--runs", &runs.to_string(), "--kills", &kills.to_string()]);
    let lines = super::measured(&mut command, size)?;
    let [sqlite, postgres, plant] = &lines[..] else {
        return Err(format!("expected three lines: {lines:?}"));
    };
    let mut all_met =
        judged(plant["found"] == true, "commands without a record are found to be executed twice");
    for line in [sqlite, postgres] {
        measured(line, &["retry_s", "seconds"])?;
        all_met &= exactly(line, "findings", 0)?;
        all_met &= exactly(line, "runs", runs)?;
        all_met &= exactly(line, "kills", kills)?;
        all_met &= at_least(line, "left", 1.0)?;
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {lines:?}"))
}

/// Checks that flows work from documents and configuration alone, and that each has its effects once.
pub(super) fn flows_http(size: Size) -> Result<(), String> {
    let rounds = if size == Size::Full { 20 } else { 1 };
    let mut command = client("flows.py", size)?;
    let line = one(&super::measured(command.args(["--rounds", &rounds.to_string()]), size)?).cloned()?;
    measured(&line, &["flows", "resumes", "gets", "wrong", "seconds"])?;
    let mut all_met = exactly(&line, "findings", 0)?;
    all_met &= exactly(&line, "accepted", 6 * rounds)?;
    all_met &= at_least(&line, "kills", 3.0 * rounds as f64)?;
    all_met &= at_least(&line, "unanswered", 1.0)?;
    all_met &= at_least(&line, "mails", 3.0 * rounds as f64)?;
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that the shadow columns of published workflows are those of a naive model, on both databases.
pub(super) fn columns(size: Size) -> Result<(), String> {
    let mut command = client("columns.py", size)?;
    command.arg("--bench").arg(super::bench(size)?);
    if size == Size::Short {
        command.args(["--runs", "24", "--queries", "8"]);
    }
    let lines = super::measured(&mut command, size)?;
    let mut all_met = judged(lines.len() == 2, "both databases were compared");
    for line in &lines {
        measured(line, &["runs", "healed", "migrated", "queries", "seconds"])?;
        all_met &= exactly(line, "findings", 0)?;
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {lines:?}"))
}

/// Checks that two tenants who send the same requests at once get the answers that a single tenant gets, through every
/// operation of the contract.
pub(super) fn tenants(size: Size) -> Result<(), String> {
    let (lanes, plants) = if size == Size::Full { (8, 40) } else { (1, 4) };
    let mut command = client("tenants.py", size)?;
    command.arg("--bench").arg(super::bench(size)?);
    command.arg("--contract").arg(process::root().join("docs/openapi.json"));
    command.args(["--lanes", &lanes.to_string(), "--plants", &plants.to_string()]);
    if size == Size::Short {
        command.args(["--store", "sqlite"]);
    }
    let line = one(&super::measured(&mut command, size)?).cloned()?;
    measured(&line, &["requests", "compared", "seconds"])?;
    let mut all_met = exactly(&line, "findings", 0)?;
    all_met &= exactly(&line, "plants", plants)?;
    for (list, what) in
        [("uncalled", "operations that were not called"), ("missed", "plants that were not found")]
    {
        let names = line[list].as_array().ok_or_else(|| format!("`{list}` is not a list"))?;
        all_met &= judged(names.is_empty(), &format!("{what}: {names:?}"));
    }
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Checks that a new user can paste the commands of the first pages, on SQLite and on PostgreSQL. Both sizes run the
/// same.
pub(super) fn first_hour(size: Size) -> Result<(), String> {
    let mut command = client("first_hour.py", size)?;
    command.arg("--root").arg(process::root());
    let line = one(&super::measured(&mut command, size)?).cloned()?;
    measured(&line, &["seconds"])?;
    let mut all_met = exactly(&line, "findings", 0)?;
    all_met &= exactly(&line, "pages", 3)?;
    all_met &= at_least(&line, "commands", 30.0)?;
    all_met &= at_least(&line, "plants", 4.0)?;
    let missed = line["missed"].as_array().ok_or("`missed` is not a list")?;
    all_met &= judged(missed.is_empty(), &format!("planted mistakes that were not noticed: {missed:?}"));
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))
}

/// Returns the command that shows the promises through each door.
pub(super) fn doors(store: &str, size: Size) -> Result<Command, String> {
    let mut command = client("doors.py", size)?;
    command.args(["--store", store]).arg("--bench").arg(super::bench(size)?);
    command.arg("--contract").arg(process::root().join("docs/openapi.json"));
    command.arg("--reference").arg(process::root().join("docs/reference/cli.md"));
    Ok(command)
}

/// Returns the command of a client, with the path of the server program.
fn client(name: &str, size: Size) -> Result<Command, String> {
    let mut command = Command::new("python3");
    command.arg("-B").arg(process::root().join(FOLDER).join(name)).arg("--json");
    command.arg("--stepwell").arg(super::server(size)?);
    Ok(command)
}

fn asked(store: &str, kills: u64, is_planted: bool, size: Size) -> Result<Value, String> {
    let mut command = client("oracle.py", size)?;
    command.args(["--store", store]).arg("--bench").arg(super::bench(size)?);
    command.args(["--kills", &kills.to_string()]).args(is_planted.then_some("--plant"));
    one(&super::measured(&mut command, size)?).cloned()
}
