//! Runs the tests whose path contains a text, building only the targets that have such tests.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use crate::artifacts::EVERYTHING;
use crate::process;
use crate::stores::{self, Choice};
use crate::tree::{File, Tree};

const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The folder of the conformance suite, whose functions are tests in these targets.
const SUITE: (&str, [&str; 3]) =
    ("crates/stepwell-store/src/suite/", ["it-store", "it-sqlite", "it-postgres"]);

/// A target with tests, as cargo's options name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Integration(String),
    /// The unit tests of all libraries: cargo cannot select one without changing the features of its dependencies.
    Libraries,
    Program(String),
}

/// Runs the matching tests; those of the engine on every chosen store.
pub(crate) fn run(filter: &str, store: Choice) -> Result<(), String> {
    let targets = targets(&Tree::read()?, filter);
    if targets.is_empty() {
        return Err(format!("no test has `{filter}` in its path (module and name)"));
    }
    let engine = Target::Integration(stores::ENGINE.to_owned());
    if store != Choice::Memory && !targets.contains(&engine) {
        return Err(format!(
            "no engine test has `{filter}` in its path; only engine tests run on several stores"
        ));
    }
    for (index, store) in store.names().into_iter().enumerate() {
        // Only the engine's tests differ from store to store.
        let chosen: Vec<&Target> = targets.iter().filter(|target| index == 0 || **target == engine).collect();
        eprintln!("xtask: `{filter}` on {store}");
        process::run(command(&chosen, filter).env(stores::WHICH, store), LIMIT)?;
    }
    Ok(())
}

fn command(targets: &[&Target], filter: &str) -> Command {
    let mut command = process::cargo(["test"]);
    command.args(EVERYTHING);
    for target in targets {
        match target {
            Target::Integration(name) => command.args(["--test", name]),
            Target::Program(name) => command.args(["--bin", name]),
            Target::Libraries => command.arg("--lib"),
        };
    }
    command.args(["--", filter]);
    command
}

/// Returns the targets with a test whose path contains the text.
fn targets(tree: &Tree, filter: &str) -> BTreeSet<Target> {
    let mut found = BTreeSet::new();
    for file in tree.rust().filter(|file| has_test(file, filter)) {
        if file.path.starts_with(SUITE.0) {
            found.extend(SUITE.1.map(|name| Target::Integration(name.to_owned())));
        } else {
            found.extend(target(&file.path));
        }
    }
    found
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["crates", package, "tests", "it", ..] => {
            let short = package.strip_prefix("stepwell-").unwrap_or("engine");
            Some(Target::Integration(format!("it-{short}")))
        }
        ["crates", "stepwell-bench", "src", ..] => Some(Target::Program("stepwell-bench".to_owned())),
        ["crates", _, "src", ..] => Some(Target::Libraries),
        ["xtask", "src", ..] => Some(Target::Program("xtask".to_owned())),
        _ => None,
    }
}

/// Returns `true` if the file has a function that may be a test and whose path contains the text.
fn has_test(file: &File, filter: &str) -> bool {
    let is_suite = file.path.starts_with(SUITE.0);
    let module = module(&file.path);
    let has_tests = is_suite || file.text.contains("#[test]") || file.text.contains("::test");
    let names = file.text.lines().filter_map(|line| {
        let (before, name) = line.split_once("fn ")?;
        let is_function = before.trim().is_empty() || before.trim_start().starts_with(['p', 'a']);
        is_function.then(|| name.split(['(', '<']).next().unwrap_or(name))
    });
    let inner = if file.path.contains("/src/") && !is_suite { "tests::" } else { "" };
    has_tests && names.into_iter().any(|name| format!("{module}{inner}{name}").contains(filter))
}

/// Returns the module of a file, with a final `::`.
fn module(path: &str) -> String {
    let inside =
        path.split_once("/tests/it/").or_else(|| path.split_once("/src/")).map_or(path, |(_, inside)| inside);
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    let parts = inside.split('/').filter(|part| !matches!(*part, "main" | "lib" | "mod" | "suite"));
    parts.map(|part| format!("{part}::")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const TEST: &str = "#[tokio::test]\nasync fn a_signal_arrives() {}\nfn helper() {}\n";

    fn found(filter: &str) -> Vec<Target> {
        let files = [
            ("crates/stepwell/tests/it/signals.rs", TEST),
            ("crates/stepwell-server/tests/it/data/kv.rs", "#[test]\nfn keys() {}\n"),
            (
                "crates/stepwell-core/src/expr/mod.rs",
                "#[cfg(test)]\nmod tests {\n    #[test]\n    fn sums() {}\n}\n",
            ),
            ("crates/stepwell-store/src/suite/cells.rs", "pub async fn a_hot_counter() {}\n"),
            ("crates/stepwell/src/engine.rs", "fn a_signal_arrives() {}\n"),
        ];
        targets(&tree(&files), filter).into_iter().collect()
    }

    #[test]
    fn only_targets_with_matching_tests_are_built() {
        let it = |name: &str| Target::Integration(name.to_owned());
        assert_eq!(found("signals::"), [it("it-engine")]);
        assert_eq!(found("signals::a_signal"), [it("it-engine")]);
        assert_eq!(found("data::kv"), [it("it-server")]);
        assert_eq!(found("expr::tests::sums"), [Target::Libraries]);
        assert_eq!(
            found("cells::a_hot"),
            SUITE.1.map(it).into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        );
        assert_eq!(found("no_such_test"), []);
    }

    #[test]
    fn every_build_has_the_same_features() {
        let shown = process::shown(&command(&[&Target::Integration("it-engine".to_owned())], "timer"));
        assert_eq!(shown, "cargo test --workspace --all-features --locked --test it-engine -- timer");
        let shown = process::shown(&command(&[&Target::Libraries], "timer"));
        assert_eq!(shown, "cargo test --workspace --all-features --locked --lib -- timer");
    }
}
