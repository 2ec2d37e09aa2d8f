//! Checks that stepwell-core has no access to IO, clocks or randomness.

use crate::process;
use crate::tree::{self, Finding, Tree};

const SOURCES: &str = "crates/stepwell-core/src";

const TREE_COMMAND: &[&str] = &[
    "tree",
    "--package",
    "stepwell-core",
    "--edges",
    "normal",
    "--prefix",
    "none",
    "--locked",
    "--format",
    "{p} {f}",
];

/// A crate that must not be in the dependency tree: with any of these features, or at all if none are named. A feature
/// that ends in `*` is a prefix.
struct Ban {
    name: &'static str,
    features: &'static [&'static str],
    why: &'static str,
}

const fn ban(name: &'static str, why: &'static str) -> Ban {
    Ban { name, features: &[], why }
}

const RUNTIME: &str = "an async runtime";
const DRIVER: &str = "a database driver";
const CLOCK: &str = "a clock";
const RANDOMNESS: &str = "randomness";

const BANS: &[Ban] = &[
    ban("tokio", RUNTIME),
    ban("async-std", RUNTIME),
    ban("smol", RUNTIME),
    ban("futures-executor", RUNTIME),
    ban("mio", RUNTIME),
    ban("rusqlite", DRIVER),
    ban("libsqlite3-sys", DRIVER),
    ban("postgres", DRIVER),
    ban("tokio-postgres", DRIVER),
    ban("sqlx", DRIVER),
    ban("diesel", DRIVER),
    ban("chrono", CLOCK),
    ban("time", CLOCK),
    ban("instant", CLOCK),
    ban("web-time", CLOCK),
    Ban { name: "jiff", features: &["std", "tz-*"], why: CLOCK },
    ban("rand", RANDOMNESS),
    ban("rand_core", RANDOMNESS),
    ban("getrandom", RANDOMNESS),
    ban("fastrand", RANDOMNESS),
    Ban { name: "ahash", features: &["runtime-rng"], why: RANDOMNESS },
    Ban { name: "uuid", features: &["rng", "fast-rng", "v4", "v7"], why: RANDOMNESS },
];

/// Modules of `std` that access the outside of the process or block a thread.
const BANNED_MODULES: &[&str] = &["fs", "net", "env", "thread", "process"];

/// Types of `std::time` that read a clock; `Duration` does not.
const BANNED_CLOCKS: &[&str] = &["Instant", "SystemTime"];

const BANNED_WORDS: &[(&str, &str)] = &[
    ("RandomState", "its seed is random"),
    ("HashMap", "its order is random: use a BTreeMap"),
    ("HashSet", "its order is random: use a BTreeSet"),
    ("println!", "that is IO"),
    ("eprintln!", "that is IO"),
    ("print!", "that is IO"),
    ("eprint!", "that is IO"),
];

/// Checks the dependencies of stepwell-core and its sources.
pub(crate) fn purity() -> Result<(), String> {
    let mut command = process::cargo(TREE_COMMAND);
    let captured = process::capture(&mut command, "", process::BUILD_LIMIT, |_| ())?;
    process::succeeded(&command, captured.status)?;
    let dependencies = dependencies(&captured.stdout);
    if !dependencies.iter().any(|dependency| dependency.name == "stepwell-core") {
        return Err(format!("the output of `{}` does not contain stepwell-core", process::shown(&command)));
    }
    let tree = Tree::read()?;
    let sources = tree.rust_in(SOURCES).count();
    if sources == 0 {
        return Err(format!("{SOURCES} has no Rust files: update the path in xtask's purity.rs"));
    }
    let names: Vec<String> = dependencies.iter().map(Dependency::shown).collect();
    eprintln!("purity: {} crates in the tree of stepwell-core: {}", names.len(), names.join(", "));
    eprintln!("purity: {sources} files in {SOURCES}");

    let mut problems = impure_dependencies(&dependencies);
    problems.extend(impure_sources(&tree).iter().map(ToString::to_string));
    for problem in &problems {
        eprintln!("{problem}");
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("purity: stepwell-core is not pure, {} findings above", problems.len()))
}

/// One crate of the dependency tree with its enabled features.
struct Dependency {
    name: String,
    features: Vec<String>,
}

impl Dependency {
    fn shown(&self) -> String {
        if self.features.is_empty() {
            return self.name.clone();
        }
        format!("{} [{}]", self.name, self.features.join(" "))
    }
}

/// Reads lines such as `jiff v0.2.0 (proc-macro) alloc,std (*)`, each crate once.
fn dependencies(text: &str) -> Vec<Dependency> {
    let mut lines: Vec<&str> =
        text.lines().map(|line| line.trim_end().trim_end_matches("(*)").trim_end()).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.into_iter().filter_map(dependency).collect()
}

fn dependency(line: &str) -> Option<Dependency> {
    let (name, rest) = line.split_once(' ')?;
    // The text in parentheses is a path or a kind. A path may contain spaces, and the features follow it.
    let rest = rest.rsplit_once(')').map_or_else(|| rest.split_once(' ').map_or("", |(_, f)| f), |(_, f)| f);
    let features = rest.trim().split(',').filter(|feature| !feature.is_empty()).map(str::to_owned).collect();
    Some(Dependency { name: name.to_owned(), features })
}

fn impure_dependencies(dependencies: &[Dependency]) -> Vec<String> {
    let mut problems = Vec::new();
    for dependency in dependencies {
        let bans = BANS.iter().filter(|ban| ban.name == dependency.name);
        problems.extend(bans.filter_map(|ban| problem(ban, dependency)));
    }
    problems
}

fn problem(ban: &Ban, dependency: &Dependency) -> Option<String> {
    let Ban { name, why, .. } = ban;
    if ban.features.is_empty() {
        return Some(format!(
            "stepwell-core depends on `{name}`, {why}: `cargo tree -p stepwell-core -i {name}`"
        ));
    }
    let feature =
        dependency.features.iter().find(|feature| ban.features.iter().any(|ban| matches(ban, feature)))?;
    Some(format!(
        "stepwell-core depends on `{name}` with feature `{feature}`, {why}: \
         `cargo tree -p stepwell-core -e features -i {name}`"
    ))
}

fn matches(pattern: &str, feature: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => feature.starts_with(beginning),
        None => feature == pattern,
    }
}

fn impure_sources(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_in(SOURCES) {
        let lines: Vec<(usize, &str)> = file.code_lines().collect();
        for (number, statement) in statements(&lines) {
            if let Some(reason) = impurity(&statement) {
                findings.push(file.finding(number, format!("{reason}; stepwell-core is pure")));
            }
        }
    }
    findings
}

/// Returns the lines, with a multi-line `use` joined into one.
fn statements(lines: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    let mut in_use = false;
    for (number, line) in lines {
        match statements.last_mut() {
            Some((_, whole)) if in_use => whole.push_str(line.trim()),
            _ => statements.push((*number, (*line).to_owned())),
        }
        let begins = line.trim_start().starts_with("use ") || tree::has_word(line, "pub use");
        in_use = (in_use || begins) && !line.contains(';');
    }
    statements
}

fn impurity(line: &str) -> Option<String> {
    if let Some((word, why)) = BANNED_WORDS.iter().find(|(word, _)| tree::has_word(line, word)) {
        return Some(format!("`{word}`: {why}"));
    }
    // In `std::{a, b}` and `std::time::{A, B}` a name may be anywhere in the group.
    let among = |prefix: &str, names: &[&'static str]| {
        let group = line.split_once(&format!("{prefix}::{{")).map(|(_, group)| group);
        names.iter().copied().find(|name| {
            tree::has_word(line, &format!("{prefix}::{name}"))
                || group.is_some_and(|group| tree::has_word(group, name))
        })
    };
    if let Some(name) = among("std", BANNED_MODULES) {
        return Some(format!("`std::{name}` accesses the outside of the process"));
    }
    let clock = among("std::time", BANNED_CLOCKS).or_else(|| {
        let in_group = line.contains("std::{") && tree::has_word(line, "time");
        BANNED_CLOCKS.iter().copied().find(|name| in_group && tree::has_word(line, name))
    });
    clock.map(|name| format!("`std::time::{name}` is a clock: pass the time as an argument"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    const CLEAN: &str = "stepwell-core v0.1.0 (/some where/crates/stepwell-core) \n\
        jiff v0.2.39 alloc\n\
        serde_derive v1.0.0 (proc-macro) default\n\
        sha2 v0.11.1 alloc,default (*)\n\
        sha2 v0.11.1 alloc,default\n\
        uuid v1.29.0 serde\n\
        ahash v0.8.0 \n";

    fn problems(text: &str) -> Vec<String> {
        impure_dependencies(&dependencies(text))
    }

    #[test]
    fn clean_tree_passes() {
        let shown: Vec<String> = dependencies(CLEAN).iter().map(Dependency::shown).collect();
        let expected = [
            "ahash",
            "jiff [alloc]",
            "serde_derive [default]",
            "sha2 [alloc default]",
            "stepwell-core",
            "uuid [serde]",
        ];
        assert_eq!(shown, expected);
        assert_eq!(problems(CLEAN), [""; 0]);
    }

    #[test]
    fn every_banned_crate_is_found() {
        for ban in BANS {
            let feature = ban.features.first().copied().unwrap_or_default();
            let text = format!("{CLEAN}{} v1.0.0 default,{}\n", ban.name, feature.replace('*', "system"));
            assert_eq!(problems(&text).len(), 1, "{}", ban.name);
        }
    }

    #[test]
    fn banned_feature_is_found_after_a_path() {
        let found = problems("uuid v1.0.0 (/a (b)/uuid) serde,v7 (*)\n");
        assert!(found[0].contains("`uuid` with feature `v7`"), "{found:?}");
    }

    #[test]
    fn impure_sources_are_found() {
        let bad = [
            "use std::time::Instant;",
            "use std::time::{Duration, SystemTime};",
            "use std::{fmt, fs};",
            "use std::{time::Instant, fmt};",
            "let x = std::env::var(a);",
            "std::thread::spawn(x);",
            "use std::net::TcpStream;",
            "use std::collections::{BTreeMap, HashMap};",
            "let s = RandomState::new();",
            "    println!(a);",
        ];
        for line in bad {
            let sources = tree(&[("crates/stepwell-core/src/a.rs", &format!("//! A.\n{line}\n"))]);
            assert_eq!(places(&impure_sources(&sources)), ["crates/stepwell-core/src/a.rs:2"], "{line}");
        }
    }

    #[test]
    fn a_use_over_several_lines_is_read_as_one() {
        let sources =
            tree(&[("crates/stepwell-core/src/a.rs", "use std::{\n    fmt,\n    fs,\n};\nfn a() {}\n")]);
        assert_eq!(places(&impure_sources(&sources)), ["crates/stepwell-core/src/a.rs:1"]);
    }

    #[test]
    fn pure_sources_tests_and_other_crates_pass() {
        let pure = "//! No HashMap.\nuse std::time::Duration;\nuse std::{fmt, mem};\nlet v = env!(\"CARGO_PKG_VERSION\");\nlet fs = Instants(1);\n\
            #[cfg(test)]\nmod tests {\n    use std::collections::HashSet;\n}\n";
        let sources = tree(&[
            ("crates/stepwell-core/src/a.rs", pure),
            ("crates/stepwell-core/tests/it/main.rs", "use std::fs;\n"),
            ("crates/stepwell/src/clock.rs", "use std::time::SystemTime;\n"),
        ]);
        assert_eq!(impure_sources(&sources), []);
    }
}
