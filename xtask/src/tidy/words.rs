//! Checks of files in any language.

use crate::tree::{File, Finding, Tree};

/// Assembled from parts, so that the check does not find this file.
const MACHINE_PATHS: &[&str] = &[concat!("/wor", "k/"), concat!("/ro", "ot/"), concat!("/hom", "e/")];

const DRAWERS: &[&str] = &["utils.rs", "common.rs", "types.rs", "helpers.rs", "manager.rs"];

/// Start of the line in Cargo.lock that names the source of a package, and the only public source.
const LOCKED_SOURCE: &str = "source = \"";
const PUBLIC_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// Settings that redirect a package manager: end of the file's path, and start of the line. (npm omits addresses from
/// its lock file with `omit-lockfile-registry-resolved`.)
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
        .map(|file| file.finding(1, "the file must start with a `-- ` line that states its guarantee"))
        .collect()
}

pub(super) fn drawers(tree: &Tree) -> Vec<Finding> {
    let drawers = tree.files.iter().filter(|file| DRAWERS.contains(&file.name()));
    drawers.map(|file| file.finding(1, "name the file after its purpose; this name is a catch-all")).collect()
}

pub(super) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            if let Some(path) = MACHINE_PATHS.iter().find(|path| has_absolute(line, path)) {
                findings.push(
                    file.finding(number, format!("`{path}` is a machine-specific path: make it relative")),
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
            file.finding(number, "configure a registry on the machine, not in the project")
        })
    })
}

/// Returns `true` if `path` occurs in the line and is not part of a longer path or of a URL.
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
    fn catch_all_names_are_refused() {
        let files = tree(&[("crates/a/src/utils.rs", ""), ("crates/a/src/lease.rs", "")]);
        assert_eq!(places(&drawers(&files)), ["crates/a/src/utils.rs:1"]);
    }

    #[test]
    fn machine_paths_are_found_in_any_file() {
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
