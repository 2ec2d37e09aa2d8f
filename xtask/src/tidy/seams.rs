//! Checks of the boundaries between crates.

use crate::tree::{self, File, Finding, Tree};

/// Crates of the project that each crate may depend on. A crate not listed here may depend on any.
const ARROWS: &[(&str, &[&str])] = &[
    ("stepwell-core", &[]),
    ("stepwell-store", &["stepwell-core"]),
    ("stepwell-sqlite", &["stepwell-core", "stepwell-store"]),
    ("stepwell-postgres", &["stepwell-core", "stepwell-store"]),
    ("stepwell", &["stepwell-core", "stepwell-store"]),
];

const BACKENDS: &[&str] = &["crates/stepwell-sqlite/src", "crates/stepwell-postgres/src"];

/// Identifiers that a backend would need to interpret a workflow.
const WORKFLOW_WORDS: &[&str] = &["Event::", "Decision::", "dispatch(", "Snapshot"];

pub(super) fn lints(tree: &Tree) -> Vec<Finding> {
    let bare = manifests(tree).filter(|file| {
        !entries(file).any(|entry| {
            let value = entry.line.replace(' ', "");
            (entry.section == "lints" && value == "workspace=true") || value == "lints.workspace=true"
        })
    });
    bare.map(|file| file.finding(1, "add `[lints]` with `workspace = true` to use the workspace lints"))
        .collect()
}

pub(super) fn arrows(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed) in ARROWS {
        let Some(file) = tree.file(&format!("crates/{name}/Cargo.toml")) else { continue };
        for (number, dependency) in entries(file).filter_map(|entry| dependency(&entry)) {
            if dependency.starts_with("stepwell") && !allowed.contains(&dependency.as_str()) {
                let message =
                    format!("{name} must not depend on {dependency}: crates depend on lower layers only");
                findings.push(file.finding(number, message));
            }
        }
    }
    findings
}

pub(super) fn backends(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in BACKENDS.iter().flat_map(|folder| tree.rust_in(folder)) {
        for (number, line) in file.code_lines() {
            if let Some(word) = WORKFLOW_WORDS.iter().find(|word| tree::has_word(line, word)) {
                let message = format!("`{word}` in a backend: a store must not interpret workflows");
                findings.push(file.finding(number, message));
            }
        }
    }
    findings
}

fn manifests(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files.iter().filter(|file| match file.path.strip_suffix("/Cargo.toml") {
        Some(folder) => {
            folder == "xtask" || folder.strip_prefix("crates/").is_some_and(|name| !name.contains('/'))
        }
        None => false,
    })
}

/// One non-empty line of a manifest with its section. For the header of a section, `line` is empty.
struct Entry<'a> {
    number: usize,
    section: &'a str,
    line: &'a str,
}

fn entries(file: &File) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    file.lines().filter_map(move |(number, line)| {
        let line = line.split('#').next().unwrap_or(line).trim();
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(header) => {
                section = header;
                Some(Entry { number, section, line: "" })
            }
            None => (!line.is_empty()).then_some(Entry { number, section, line }),
        }
    })
}

/// Returns the dependency that this entry declares: a line in `[dependencies]`, or a header `[dependencies.name]`, for
/// all targets or one. Development dependencies are not restricted.
fn dependency(entry: &Entry<'_>) -> Option<(usize, String)> {
    let section = match entry.section.strip_prefix("target.") {
        Some(rest) => rest.rsplit_once(".dependencies").map(|(_, name)| format!("dependencies{name}"))?,
        None => entry.section.to_owned(),
    };
    let name = match section.strip_prefix("dependencies.") {
        Some(name) if entry.line.is_empty() => name,
        None if section == "dependencies" => entry.line.split(['=', '.']).next()?,
        _ => return None,
    };
    let name = name.trim().trim_matches('"');
    (!name.is_empty()).then(|| (entry.number, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    #[test]
    fn missing_workspace_lints_are_found() {
        let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
        let bad = "[package]\nname = \"a\"\n\n[dependencies.x]\nworkspace = true\n";
        let files = tree(&[("crates/a/Cargo.toml", good), ("crates/b/Cargo.toml", bad), ("Cargo.toml", bad)]);
        assert_eq!(places(&lints(&files)), ["crates/b/Cargo.toml:1"]);
        assert_eq!(places(&lints(&tree(&[("xtask/Cargo.toml", bad)]))), ["xtask/Cargo.toml:1"]);
    }

    #[test]
    fn upward_dependency_is_found() {
        let store = "[dependencies]\nstepwell-core = { workspace = true }\nserde.workspace = true\n\n\
            [dev-dependencies]\nstepwell-sqlite = { workspace = true }\n";
        assert_eq!(arrows(&tree(&[("crates/stepwell-store/Cargo.toml", store)])), []);
        let core = "[dependencies]\nstepwell-store.workspace = true\n";
        assert_eq!(
            places(&arrows(&tree(&[("crates/stepwell-core/Cargo.toml", core)]))),
            ["crates/stepwell-core/Cargo.toml:2"]
        );
    }

    #[test]
    fn dependencies_are_found_in_every_spelling() {
        let sqlite = "[dependencies.stepwell]\nworkspace = true\n\n\
            [target.'cfg(unix)'.dependencies]\n\"stepwell-server\" = \"1\"\n\n\
            [target.'cfg(unix)'.dependencies.stepwell-bench]\npath = \"x\"\n";
        let path = "crates/stepwell-sqlite/Cargo.toml";
        let findings = arrows(&tree(&[(path, sqlite)]));
        assert_eq!(places(&findings), [1, 5, 7].map(|line| format!("{path}:{line}")));
    }

    #[test]
    fn workflow_words_in_backends_are_found() {
        let path = "crates/stepwell-sqlite/src/writer.rs";
        for word in WORKFLOW_WORDS {
            let bad = tree(&[(path, &format!("//! A.\nlet x = core::{word} y;\n"))]);
            assert_eq!(places(&backends(&bad)), [format!("{path}:2")], "{word}");
        }
        let good = "//! Takes a Snapshot's bytes.\nlet snapshot_bytes = redispatch(x);\n";
        assert_eq!(backends(&tree(&[(path, good), ("crates/stepwell/src/turn.rs", "dispatch(x)")])), []);
    }
}
