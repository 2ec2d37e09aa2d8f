//! Proofs by clients that are not ours: they are written in Python and know the server by its API alone.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, exactly, measured, one, verdict};
use super::{Size, judged};
use crate::process;

const FOLDER: &str = "xtask/src/proofs/clients";
/// Kinds of lies that have to be found.
const LEAST_LIES: f64 = 10.0;

/// How often something is hurt; together at least two hundred times.
fn kills(store: &str, size: Size) -> u64 {
    match (store, size) {
        (_, Size::Full) => 150,
        ("postgres", Size::Short) => 5,
        (_, Size::Short) => 3,
    }
}

/// Of what the server acknowledges nothing is lost, doubled or changed.
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
        verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
    }
    // Lies are told between the client and the server, whatever the store.
    let line = asked("sqlite", 2, true, size)?;
    let missed = line["missed"].as_array().ok_or("`missed` is no list")?;
    let mut all_met = at_least(&line, "lies", LEAST_LIES)?;
    all_met &= judged(missed.is_empty(), &format!("lies that were not found: {missed:?}"));
    verdict(all_met)
}

/// Secrets are where they have to be, and nowhere else. The short form is the whole.
pub(super) fn canary(size: Size) -> Result<(), String> {
    let line = one(&super::measured(&mut client("canary.py", size)?, size)?).cloned()?;
    measured(&line, &["runs", "looked", "spans"])?;
    let mut all_met = exactly(&line, "leaks", 0)?;
    all_met &= exactly(&line, "published", 0)?;
    all_met &= at_least(&line, "refused", 8.0)?;
    all_met &= judged(line["heard"] == line["secrets"], "every secret has come to whom it is for");
    verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
    let line = one(&super::measured(client("canary.py", size)?.arg("--plant"), size)?).cloned()?;
    let missed = line["missed"].as_array().ok_or("`missed` is no list")?;
    let mut all_met = at_least(&line, "places", 8.0)?;
    all_met &= judged(missed.is_empty(), &format!("places where a leak is not found: {missed:?}"));
    verdict(all_met)
}

/// A client, told where the server's program is.
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
