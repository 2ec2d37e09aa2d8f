//! What tidy asks of every file, whatever its language.

use crate::tree::{File, Finding, Tree};

/// Put together here, so that this file does not find itself.
const MACHINE_PATHS: &[&str] = &[concat!("/wor", "k/"), concat!("/ro", "ot/"), concat!("/hom", "e/")];

const DRAWERS: &[&str] = &["utils.rs", "common.rs", "types.rs", "helpers.rs", "manager.rs"];

/// How Cargo.lock says where a package comes from, and the one source that is everybody's.
const LOCKED_SOURCE: &str = "source = \"";
const PUBLIC_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// What sends a package manager elsewhere: the end of the file's name, and how such a line begins. (npm leaves
/// addresses out of its lock file when told to `omit-lockfile-registry-resolved`.)
const REDIRECTIONS: &[(&str, &str)] = &[
    (".cargo/config.toml", "[source"),
    (".cargo/config.toml", "[registr"),
    (".cargo/config.toml", "replace-with"),
    (".npmrc", "registry"),
    ("package-lock.json", "\"resolved\": \"http"),
    ("pip.conf", "index-url"),
    ("requirements.txt", "--index-url"),
];

pub(super) fn sql_openings(tree: &Tree) -> Vec<Finding> {
    let silent = tree.files.iter().filter(|file| file.has_extension("sql") && !file.text.starts_with("-- "));
    silent
        .map(|file| file.finding(1, "the file must open with a `-- ` line that says what it guarantees"))
        .collect()
}

pub(super) fn drawers(tree: &Tree) -> Vec<Finding> {
    let drawers = tree.files.iter().filter(|file| DRAWERS.contains(&file.name()));
    drawers.map(|file| file.finding(1, "a file is named after its one job, not after a drawer")).collect()
}

pub(super) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            if let Some(path) = MACHINE_PATHS.iter().find(|path| has_absolute(line, path)) {
                findings.push(
                    file.finding(number, format!("`{path}` is a path of one machine: make it relative")),
                );
            }
        }
    }
    findings
}

pub(super) fn registries(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .flat_map(|file| foreign_sources(file).chain(redirections(file)).collect::<Vec<_>>())
        .collect()
}

fn foreign_sources(file: &File) -> impl Iterator<Item = Finding> {
    let lines = file.lines().filter(|_| file.name() == "Cargo.lock");
    let foreign =
        lines.filter(|(_, line)| line.starts_with(LOCKED_SOURCE) && !line.starts_with(PUBLIC_SOURCE));
    foreign.map(|(number, _)| file.finding(number, "the package is not from the public registry"))
}

fn redirections(file: &File) -> impl Iterator<Item = Finding> {
    let rules = REDIRECTIONS.iter().filter(|(name, _)| file.path.ends_with(name));
    rules.flat_map(|(_, setting)| {
        let lines = file.lines().filter(move |(_, line)| line.trim_start().starts_with(setting));
        lines.map(|(number, _)| {
            file.finding(number, "a registry is the affair of a machine, not of the project")
        })
    })
}

/// Whether `path` begins here, and is not the middle of a longer one or of an address.
fn has_absolute(line: &str, path: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '*');
    line.match_indices(path).any(|(start, _)| !line[..start].ends_with(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    #[test]
    fn statements_open_with_a_comment() {
        let files =
            tree(&[("a/good.sql", "-- Takes at most one.\nSELECT 1;\n"), ("a/bad.sql", "SELECT 1;\n")]);
        assert_eq!(places(&sql_openings(&files)), ["a/bad.sql:1"]);
    }

    #[test]
    fn drawers_are_refused() {
        let files = tree(&[("crates/a/src/utils.rs", ""), ("crates/a/src/lease.rs", "")]);
        assert_eq!(places(&drawers(&files)), ["crates/a/src/utils.rs:1"]);
    }

    #[test]
    fn paths_of_a_machine_are_found_anywhere() {
        for path in MACHINE_PATHS {
            let bad = tree(&[("README.md", &format!("first\nsee `{path}x`\n"))]);
            assert_eq!(places(&machine_paths(&bad)), ["README.md:2"], "{path}");
            let good = tree(&[("README.md", &format!("https://example.com{path}x and ..{path}x\n"))]);
            assert_eq!(machine_paths(&good), [], "{path}");
        }
    }

    #[test]
    fn locked_packages_come_from_the_public_registry() {
        let lock = format!("{PUBLIC_SOURCE}\nsource = \"registry+https://mirror.example/index\"\n");
        assert_eq!(places(&registries(&tree(&[("Cargo.lock", &lock)]))), ["Cargo.lock:2"]);
        assert_eq!(registries(&tree(&[("Cargo.lock", PUBLIC_SOURCE)])), []);
    }

    #[test]
    fn package_managers_are_not_redirected() {
        let bad = tree(&[(".cargo/config.toml", "[alias]\n[source.crates-io]\nreplace-with = \"x\"\n")]);
        assert_eq!(places(&registries(&bad)), [".cargo/config.toml:2", ".cargo/config.toml:3"]);
        let good = tree(&[(".cargo/config.toml", "[alias]\n"), ("a.rs", "registry = Registry::new();\n")]);
        assert_eq!(registries(&good), []);
    }
}
