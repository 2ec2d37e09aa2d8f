//! Proves the guarantees about workflows that are written as documents.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::figures::{at_least, at_most, exactly, measured, one, verdict};
use super::{Size, answered, judged};
use crate::process;

pub(super) const STORES: [&str; 2] = ["sqlite", "postgres"];

/// Maximum memory of a process that loops over ten thousand items, in MiB.
const MOST_MB: f64 = 100.0;
/// Maximum size of a checkpoint in the middle of the loop, in bytes. The list must not be part of it.
const MOST_STATE_BYTES: f64 = 2_048.0;
/// Minimum number of documents with mistakes.
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

/// Checks that a planted bug is found.
pub(super) fn plant(workload: &str, store: Option<&str>, size: Size) -> Result<(), String> {
    let (status, line) = answered(command(workload, store, size)?.args(["--short", "--plant"]), "", size)?;
    let found = !status.success() && line["planted"] == true;
    let place = store.unwrap_or("any store");
    if judged(found, &format!("planted bug in {workload} on {place}: found")) {
        return Ok(());
    }
    Err(format!("the planted bug was not found: {line}"))
}

/// Checks that the two task mirror workflows run from their documents.
pub(super) fn mirror(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("mirror", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["links", "told", "told_back"])?;
        let mut all_met = exactly(line, "wrong", 0)?;
        all_met &= exactly(line, "without_links_told", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
        plant("mirror", Some(store), size)?;
    }
    Ok(())
}

/// Checks that two tenants with the same names and ids do not see each other.
pub(super) fn tenant_keys(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("tenant-keys", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["pairs", "ended", "seconds"])?;
        let mut all_met = exactly(line, "wrong", 0)?;
        all_met &= exactly(line, "stalled", 0)?;
        all_met &= exactly(line, "findings", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
        plant("tenant-keys", Some(store), size)?;
    }
    super::clients::tenants(size)
}

/// Checks that an unreadable row affects only its owner.
pub(super) fn bad_row(size: Size) -> Result<(), String> {
    for store in STORES {
        let lines = sized("bad-row", Some(store), size)?;
        let line = one(&lines)?;
        measured(line, &["cases", "seconds"])?;
        let mut all_met = at_least(line, "cases", if size == Size::Full { 20.0 } else { 7.0 })?;
        all_met &= exactly(line, "wrong", 0)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
        plant("bad-row", Some(store), size)?;
    }
    Ok(())
}

/// Reference package for expressions.
const JSONATA: &str = "jsonata@2.2.2";

/// Environment variable with the folder of JSONata's own test cases.
const CASES: &str = "STEPWELL_JSONATA_CASES";
/// Mistakes that are planted in the package. The comparison must find each of them.
const FAULTS: [&str; 5] =
    ["substring-length", "fraction-as-milliseconds", "wrong-code", "lost-undefined", "half-up"];

/// Installs the package `jsonata` and returns the folder that contains its `node_modules`.
fn jsonata_package(size: Size) -> Result<PathBuf, String> {
    let modules = process::target_folder()?.join("xtask").join("jsonata");
    std::fs::create_dir_all(&modules).map_err(|error| format!("{}: {error}", modules.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix", ".", JSONATA]);
    process::run(npm.current_dir(&modules), size.limit())?;
    Ok(modules)
}

/// Returns the folder of JSONata's own test cases, or `None` if it is not there.
fn case_folder() -> Result<Option<PathBuf>, String> {
    if let Some(folder) = std::env::var_os(CASES).map(PathBuf::from) {
        let is_there = folder.join("groups").is_dir();
        return if is_there {
            Ok(Some(folder))
        } else {
            Err(format!("{CASES}: {} has no folder `groups`", folder.display()))
        };
    }
    let folder = process::root().join("../shared/conformance/jsonata");
    if folder.join("groups").is_dir() {
        return Ok(Some(folder));
    }
    eprintln!(
        "JSONata's own test cases are not run: {} does not exist; set {CASES} to their folder",
        folder.display()
    );
    Ok(None)
}

/// Checks that JSONata's own test cases and random expressions give the same results as the reference.
pub(super) fn jsonata(size: Size) -> Result<(), String> {
    let modules = jsonata_package(size)?;
    if let Some(folder) = case_folder()? {
        let mut command = Command::new(super::bench(size)?);
        // No change of the package can show that a budget is the reason, so the cases are judged by their text.
        command.arg("jsonata").arg(&folder).arg("--json");
        let lines = super::measured(&mut command, size)?;
        measured(one(&lines)?, &["cases", "passed", "refused", "deviating"])?;
    }
    let compared = |count: &str| {
        let mut command = Command::new(super::bench(size)?);
        command.args(["jsonata-random", "--json", "--count", count, "--modules"]).arg(&modules);
        Ok::<_, String>(command)
    };
    let lines = super::measured(&mut compared(if size == Size::Full { "20000" } else { "2000" })?, size)?;
    let line = one(&lines)?;
    measured(line, &["expressions", "agreed", "refused", "values", "errors"])?;
    verdict(exactly(line, "differences", 0)?)?;
    let mut all_found = true;
    for fault in FAULTS {
        let (status, line) = answered(compared("2000")?.args(["--plant", fault]), "", size)?;
        let is_found = line["differences"].as_u64().is_some_and(|count| count > 0);
        let found = !status.success() && line["planted"] == fault && is_found;
        all_found &= judged(found, &format!("planted fault `{fault}`: found"));
    }
    verdict(all_found)
}

/// Checks that documents with mistakes are refused.
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
    verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
    plant("malformed", None, size)
}

/// Checks that every item of a long loop counts once although the process is killed.
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
        // A tenth of the items again, eight at once, of which every seventh fails on purpose.
        all_met &= exactly(line, "wide_once", items / 10)?;
        all_met &= exactly(line, "wide_failed", items / 70)?;
        all_met &= exactly(line, "gaps", 0)?;
        // Each item has two actions, with one checkpoint each.
        all_met &= at_least(line, "versions", (items * 2) as f64)?;
        all_met &= at_most(line, "state_bytes", MOST_STATE_BYTES)?;
        all_met &= at_most(line, "rss_peak_mb", MOST_MB)?;
        verdict(all_met).map_err(|_| format!("the guarantee was violated: {line}"))?;
        plant("long-loop", Some(store), size)?;
    }
    Ok(())
}
