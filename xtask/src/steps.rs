//! The steps of `cargo xtask test`, in order.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::{needs, process, proofs, purity, tidy};

/// Covers the tests of the whole workspace; each single test has its own limit in `.config/nextest.toml`.
const TESTS_LIMIT: Duration = Duration::from_secs(40 * 60);

const LINTS: &[&str] = &["fmt", "clippy", "docs", "tidy", "purity"];

/// One thing that must succeed.
struct Step {
    name: String,
    /// What to type to run just this.
    alone: String,
    work: Work,
}

enum Work {
    Cargo { command: Command, limit: Duration },
    Own(Box<dyn Fn() -> Result<(), String>>),
}

/// Runs everything a change has to pass; the first failure ends it.
pub(crate) fn test(skip_lints: bool) -> Result<(), String> {
    needs::ensure()?;
    let mut steps = all(has_nextest());
    if skip_lints {
        steps.retain(|step| !LINTS.contains(&step.name.as_str()));
    }
    run(&mut steps)
}

fn all(nextest: bool) -> Vec<Step> {
    let mut steps = lints();
    steps.extend(tests(nextest));
    steps.push(differential());
    steps.extend(examples());
    steps.push(own(
        "release binaries",
        "cargo build --release -p stepwell-bench -p stepwell-server",
        proofs::build,
    ));
    for name in proofs::names() {
        let alone = format!("cargo xtask prove {name} --short");
        steps.push(own(&format!("proof {name}"), &alone, move || proofs::prove(name, proofs::Size::Short)));
    }
    steps
}

fn lints() -> Vec<Step> {
    let mut docs =
        process::cargo(["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
    vec![
        cargo("fmt", process::cargo(["fmt", "--all", "--check"]), process::BUILD_LIMIT),
        cargo("clippy", process::cargo(clippy), process::BUILD_LIMIT),
        cargo("docs", docs, process::BUILD_LIMIT),
        own("tidy", "cargo xtask tidy", tidy::tidy),
        own("purity", "cargo xtask purity", purity::purity),
    ]
}

/// With nextest, which bounds each test; it cannot run doctests, so they follow. `cargo test` does both at once.
fn tests(nextest: bool) -> Vec<Step> {
    let workspace = ["--workspace", "--all-features", "--locked"];
    if !nextest {
        let mut command = process::cargo(["test", "--no-fail-fast"]);
        command.args(workspace);
        return vec![cargo("tests", command, TESTS_LIMIT)];
    }
    let mut command = process::cargo(["nextest", "run"]);
    command.args(workspace);
    let mut doctests = process::cargo(["test", "--doc"]);
    doctests.args(workspace);
    vec![cargo("tests", command, TESTS_LIMIT), cargo("doctests", doctests, process::BUILD_LIMIT)]
}

/// Our expressions against another JSONata. A workspace of its own, because of what that one depends on; its lock
/// file follows the project's dependencies by itself.
fn differential() -> Step {
    let command = process::cargo(["test", "--manifest-path", "fuzz/differential/Cargo.toml"]);
    cargo("differential", command, process::BUILD_LIMIT)
}

/// The stories, each run to its end.
fn examples() -> Vec<Step> {
    let folder = process::root().join("crates/stepwell/examples");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<_> = files.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    let story = |name: String| {
        let command = process::cargo(["run", "--locked", "-p", "stepwell", "--example", &name]);
        cargo(&format!("story {name}"), command, process::BUILD_LIMIT)
    };
    names.into_iter().map(story).collect()
}

fn cargo(name: &str, command: Command, limit: Duration) -> Step {
    let environment = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}=\"{}\" ", name.to_string_lossy(), value.to_string_lossy()))
    });
    let alone = environment.collect::<String>() + &process::shown(&command);
    Step { name: name.to_owned(), alone, work: Work::Cargo { command, limit } }
}

fn own(name: &str, alone: &str, work: impl Fn() -> Result<(), String> + 'static) -> Step {
    Step { name: name.to_owned(), alone: alone.to_owned(), work: Work::Own(Box::new(work)) }
}

fn has_nextest() -> bool {
    process::cargo(["nextest", "--version"]).output().is_ok_and(|output| output.status.success())
}

fn run(steps: &mut [Step]) -> Result<(), String> {
    let begun = Instant::now();
    let count = steps.len();
    let mut times = Vec::new();
    for (index, step) in steps.iter_mut().enumerate() {
        eprintln!("\n=== {}/{count} {} (at {}): {}", index + 1, step.name, seconds(begun), step.alone);
        let step_begun = Instant::now();
        let result = match &mut step.work {
            Work::Cargo { command, limit } => process::run(command, *limit),
            Work::Own(work) => work(),
        };
        let time = seconds(step_begun);
        if let Err(error) = result {
            summarize(&times, begun);
            return Err(format!(
                "step `{}` failed after {time}: {error}\nto run just this step: {}",
                step.name, step.alone
            ));
        }
        times.push((step.name.clone(), time));
    }
    summarize(&times, begun);
    eprintln!("all {count} steps passed");
    Ok(())
}

fn summarize(times: &[(String, String)], begun: Instant) {
    eprintln!("\n=== summary");
    for (name, time) in times {
        eprintln!("{time:>10}  {name}");
    }
    eprintln!("{:>10}  in all", seconds(begun));
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn names(steps: &[Step]) -> Vec<&str> {
        steps.iter().map(|step| step.name.as_str()).collect()
    }

    #[test]
    fn lints_come_first_and_every_proof_last() {
        let steps = all(true);
        assert_eq!(names(&steps)[..7], ["fmt", "clippy", "docs", "tidy", "purity", "tests", "doctests"]);
        assert_eq!(names(&lints()), LINTS);
        for name in proofs::names() {
            assert!(steps.iter().any(|step| step.alone == format!("cargo xtask prove {name} --short")));
        }
    }

    #[test]
    fn a_step_says_how_to_run_it_alone() {
        let docs = &lints()[2];
        assert!(
            docs.alone.starts_with("RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace"),
            "{}",
            docs.alone
        );
    }

    #[test]
    fn without_nextest_one_step_runs_tests_and_doctests() {
        assert_eq!(names(&super::tests(false)), ["tests"]);
    }

    #[test]
    fn the_first_failure_ends_the_run_and_is_explained() {
        let ran = Rc::new(Cell::new(0));
        let counted = |result: Result<(), String>| {
            let ran = Rc::clone(&ran);
            move || {
                ran.set(ran.get() + 1);
                result.clone()
            }
        };
        let mut steps = vec![
            own("one", "run one", counted(Ok(()))),
            own("two", "run two", counted(Err("it broke".to_owned()))),
            own("three", "run three", counted(Ok(()))),
        ];
        let error = run(&mut steps).unwrap_err();
        assert_eq!(ran.get(), 2);
        assert!(error.contains("step `two` failed") && error.contains("it broke"), "{error}");
        assert!(error.ends_with("to run just this step: run two"), "{error}");
    }
}
