//! Proves what is promised of workflows that are written as documents.

use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, at_most, exactly, measured, one, verdict};
use super::{Size, answered, judged};
use crate::process;

pub(super) const STORES: [&str; 2] = ["sqlite", "postgres"];

/// What a process that goes through ten thousand items may have in memory.
const MOST_MB: f64 = 100.0;
/// What a checkpoint in the middle of the loop may hold: the list is not in it.
const MOST_STATE_BYTES: f64 = 2_048.0;
/// Documents with mistakes.
const LEAST_DOCUMENTS: f64 = 300.0;

fn command(workload: &str, store: Option<&str>, size: Size) -> Result<Command, String> {
    let mut command = Command::new(super::bench(size)?);
    command.args([workload, "--json"]);
    command.args(store.into_iter().flat_map(|store| ["--store", store]));
    Ok(command)
}

pub(super) fn sized(workload: &str, store: Option<&str>, size: Size) -> Result<Vec<Value>, String> {
    let mut command = command(workload, store, size)?;
    command.args((size == Size::Short).then_some("--short"));
    super::measured(&mut command, size)
}

/// A planted bug is found, or the check shows nothing.
pub(super) fn plant(workload: &str, store: Option<&str>, size: Size) -> Result<(), String> {
    let (status, line) = answered(command(workload, store, size)?.args(["--short", "--plant"]), "", size)?;
    let found = !status.success() && line["planted"] == true;
    let place = store.unwrap_or("any store");
    if judged(found, &format!("planted bug in {workload} on {place}: found")) {
        return Ok(());
    }
    Err(format!("the planted bug was not found: {line}"))
}

/// The two workflows of the task mirror run from their text.
pub(super) fn mirror(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("mirror", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["links", "told", "told_back"])?;
        let mut all_met = exactly(line, "wrong", 0)?;
        all_met &= exactly(line, "without_links_told", 0)?;
        verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
        plant("mirror", Some(store), size)?;
    }
    Ok(())
}

/// Two tenants do not meet.
pub(super) fn tenant_keys(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("tenant-keys", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["pairs", "ended", "seconds"])?;
        let mut all_met = exactly(line, "wrong", 0)?;
        all_met &= exactly(line, "stalled", 0)?;
        all_met &= exactly(line, "findings", 0)?;
        verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
        plant("tenant-keys", Some(store), size)?;
    }
    Ok(())
}

/// A row that cannot be read is one object's trouble.
pub(super) fn bad_row(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("bad-row", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["cases", "seconds"])?;
        let mut all_met = at_least(line, "cases", if size == Size::Full { 20.0 } else { 7.0 })?;
        all_met &= exactly(line, "wrong", 0)?;
        verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
        plant("bad-row", Some(store), size)?;
    }
    Ok(())
}

/// The package that expressions are held against.
const JSONATA: &str = "jsonata@2.2.2";

/// Random expressions give what the reference gives.
pub(super) fn jsonata(size: Size) -> Result<(), String> {
    let modules = process::target_folder()?.join("xtask").join("jsonata");
    std::fs::create_dir_all(&modules).map_err(|error| format!("{}: {error}", modules.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix", ".", JSONATA]);
    process::run(npm.current_dir(&modules), size.limit())?;
    let compared = |count: &str| {
        let mut command = Command::new(super::bench(size)?);
        command.args(["jsonata-random", "--json", "--count", count, "--modules"]).arg(&modules);
        Ok::<_, String>(command)
    };
    let lines = super::measured(&mut compared(if size == Size::Full { "20000" } else { "2000" })?, size)?;
    let line = one(&lines)?;
    measured(line, &["expressions", "agreed", "values", "errors"])?;
    verdict(exactly(line, "differences", 0)?)?;
    let (status, line) = answered(compared("500")?.arg("--plant"), "", size)?;
    verdict(judged(!status.success() && line["planted"] == true, "a planted difference: found"))
}

/// Documents with mistakes are refused.
pub(super) fn malformed(size: Size) -> Result<(), String> {
    let lines = sized("malformed", None, size)?;
    let line = one(&lines)?;
    let least = if size == Size::Full { LEAST_DOCUMENTS } else { 100.0 };
    let mut all_met = at_least(line, "documents", least)?;
    for field in ["accepted", "panicked", "without_place"] {
        all_met &= exactly(line, field, 0)?;
    }
    if size == Size::Full {
        all_met &= exactly(line, "slow", 0)?;
    }
    verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
    plant("malformed", None, size)
}

/// A loop over many items, with kills in between: each counts once.
pub(super) fn long_loop(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("long-loop", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["kills", "seconds"])?;
        let items = if size == Size::Full { 10_000 } else { 210 };
        let mut all_met = exactly(line, "completed", 1)?;
        for field in ["sum", "keys", "counted_once"] {
            all_met &= exactly(line, field, items)?;
        }
        // Some of them again, eight at once, of which every seventh fails on purpose.
        all_met &= exactly(line, "wide_once", items / 10)?;
        all_met &= exactly(line, "wide_failed", items / 70)?;
        all_met &= exactly(line, "gaps", 0)?;
        // One checkpoint for each of the two actions of an item.
        all_met &= at_least(line, "versions", (items * 2) as f64)?;
        all_met &= at_most(line, "state_bytes", MOST_STATE_BYTES)?;
        all_met &= at_most(line, "rss_peak_mb", MOST_MB)?;
        verdict(all_met).map_err(|_| format!("the promise was broken: {line}"))?;
        plant("long-loop", Some(store), size)?;
    }
    Ok(())
}
