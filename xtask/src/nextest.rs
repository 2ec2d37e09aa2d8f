//! Runs tests with cargo-nextest, which bounds the time of each, and without it with the harness that Rust has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifacts::EVERYTHING;
use crate::process;

pub(crate) fn is_there() -> bool {
    process::cargo(["nextest", "--version"]).output().is_ok_and(|output| output.status.success())
}

/// Writes down what was built, so that tests can be run while cargo does something else; no folder without nextest.
pub(crate) fn prepare() -> Result<Option<PathBuf>, String> {
    if !is_there() {
        return Ok(None);
    }
    let folder = process::target_folder()?.join("xtask");
    let mut list =
        process::cargo(["nextest", "list", "--list-type", "binaries-only", "--message-format", "json"]);
    list.args(EVERYTHING);
    let mut metadata = process::cargo(["metadata", "--format-version", "1", "--all-features", "--locked"]);
    for (name, command) in [(BINARIES, &mut list), (METADATA, &mut metadata)] {
        let captured = process::capture(command, "", process::BUILD_LIMIT, |_| ())?;
        process::succeeded(command, captured.status)?;
        let path = folder.join(name);
        fs::write(&path, captured.stdout)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(Some(folder))
}

const BINARIES: &str = "binaries.json";
const METADATA: &str = "metadata.json";

/// Runs what [`prepare`] has written down.
pub(crate) fn reusing(folder: &Path) -> Command {
    let mut command = process::cargo(["nextest", "run", "--no-fail-fast", "--status-level", "pass"]);
    command.arg("--binaries-metadata").arg(folder.join(BINARIES));
    command.arg("--cargo-metadata").arg(folder.join(METADATA));
    command
}
