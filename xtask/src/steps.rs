//! The steps of `cargo xtask test`: first the one that builds everything, then the others, several at a time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::artifacts::{self, Artifacts, EVERYTHING};
use crate::load::Load;
use crate::stores::{self, Choice};
use crate::{needs, process, proofs};

/// Time limit of a run on an otherwise idle machine.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Time limit of a run on any machine.
const HARD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Time limit of one test executable. The log names a test that runs for more than a minute, so a hanging test is known
/// by its name.
const TESTS_LIMIT: Duration = Duration::from_secs(25 * 60);

/// Number of the last output lines shown for a step that passes, and for one that fails.
const SHOWN: (usize, usize) = (4, 400);

/// Number of concurrent steps. Tests and compilers use several processors themselves; other steps mostly wait.
const PARALLEL_STEPS: usize = 2;

/// A command that must succeed.
struct Step {
    name: String,
    command: Command,
    limit: Duration,
}

impl Step {
    fn new(name: impl Into<String>, command: Command, limit: Duration) -> Step {
        Step { name: name.into(), command, limit }
    }

    /// Returns the shell command that runs only this step.
    fn alone(&self) -> String {
        let environment = self.command.get_envs().filter_map(|(name, value)| {
            let name = name.to_str()?;
            let is_hidden = matches!(name, artifacts::FILE | "CARGO_MANIFEST_DIR" | "CARGO_INCREMENTAL")
                || matches!(name, "RUSTC_WORKSPACE_WRAPPER" | "CLIPPY_ARGS" | "RUSTDOC");
            value.filter(|_| !is_hidden).map(|value| format!("{name}=\"{}\" ", value.to_string_lossy()))
        });
        environment.collect::<String>() + &process::shown(&self.command)
    }
}

/// Runs all checks that a change must pass, and stops at the first failure.
pub(crate) fn test(skip_lints: bool) -> Result<(), String> {
    process::lint_while_building()?;
    let record = Record::begin()?;
    needs::ensure(needs::TESTS)?;
    if !skip_lints {
        first()?.into_iter().try_for_each(|step| record.shown(step))?;
    }
    // Mostly waits for the network. If it fails, the proof that needs the tool reports the error.
    let tools = thread::spawn(proofs::install_tools);
    let built = record.timed("build and clippy", || Artifacts::build_and_keep(&["--all-targets"]))?;
    let _ = tools.join();
    let mut steps = checks()?;
    steps.extend(tests_of(&built));
    steps.extend(proofs_of(&built)?);
    record.run_parallel(longest_first(steps))?;
    record.summarize()
}

/// Steps that take more than half a minute. They start first, so that none of them runs alone at the end.
const LONG: &[&str] = &[
    "docs and doctests",
    "engine on postgres",
    "store on postgres",
    "proof contract",
    "proof doors",
    "tests of it-server",
    "proof storm",
    "engine on sqlite",
    "proof tamper",
    "proof postgres-suite",
];

fn longest_first(mut steps: Vec<Step>) -> Vec<Step> {
    steps.sort_by_key(|step| LONG.iter().position(|name| *name == step.name).unwrap_or(LONG.len()));
    steps
}

/// Returns the quick checks, which take seconds each. The other steps run only if these pass.
fn first() -> Result<Vec<Step>, String> {
    Ok(vec![
        Step::new("fmt", process::cargo(["fmt", "--all", "--check"]), process::BUILD_LIMIT),
        Step::new("tidy", this("tidy")?, process::BUILD_LIMIT),
        Step::new("purity", this("purity")?, process::BUILD_LIMIT),
    ])
}

/// Returns the steps that compile again. It is one step, because cargo locks the target folder.
fn checks() -> Result<Vec<Step>, String> {
    let mut docs = process::cargo(["test", "--doc"]);
    docs.args(EVERYTHING).env("RUSTDOC", documenting()?);
    Ok(vec![Step::new("docs and doctests", docs, process::BUILD_LIMIT)])
}

/// A script that cargo calls as rustdoc for doctests. It documents the library first. `cargo doc` would do that too,
/// but checks every dependency again before.
const DOCUMENTING: &str = r#"#!/bin/sh
set -e
out=$1
shift
case " $* " in *" --test "*) ;; *) exec rustdoc "$@" ;; esac
document() {
    skip=
    for argument do
        shift
        if [ -n "$skip" ]; then skip=; continue; fi
        case $argument in
        --test) continue ;;
        --test-*) skip=1; continue ;;
        esac
        set -- "$@" "$argument"
    done
    rustdoc "$@" --document-private-items -D warnings -o "$out"
}
document "$@"
exec rustdoc "$@"
"#;

/// Writes [`DOCUMENTING`] to a file and returns its path.
fn documenting() -> Result<PathBuf, String> {
    let target = process::target_folder()?;
    let path = target.join("xtask/rustdoc");
    let out = format!("set -- \"{}\" \"$@\"\n", target.join("doc").display());
    let script = DOCUMENTING.replacen("set -e\n", &format!("set -e\n{out}"), 1);
    fs::write(&path, script)
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// Returns a step for every test executable, and for the engine's one per store.
fn tests_of(built: &Artifacts) -> Vec<Step> {
    let mut steps = Vec::new();
    for found in built.tests() {
        match found.name.as_str() {
            stores::ENGINE => {
                steps
                    .extend(Choice::All.names().into_iter().map(|store| tests(found, "engine", Some(store))));
            }
            stores::POSTGRES_STORE => steps.push(tests(found, "store", Some("postgres"))),
            name => steps.push(tests(found, name, None)),
        }
    }
    steps
}

/// Number of concurrent tests in one process. Most of them wait for a disk or a server more than they compute.
const AT_ONCE: &str = "4";

/// Returns the step that runs one test executable in one process. Starting a process for each test, and finding the
/// database server in it, would take longer than most tests.
fn tests(found: &artifacts::Executable, name: &str, store: Option<&str>) -> Step {
    let mut command = found.command();
    command.args(["-q", "--test-threads", AT_ONCE]);
    let name = match store {
        Some(store) => {
            command.env(stores::WHICH, store);
            format!("{name} on {store}")
        }
        None => format!("tests of {name}"),
    };
    if found.name == stores::ENGINE && store != Some(stores::MEMORY) {
        command.args(["--skip", stores::WITHOUT_A_STORE]);
    }
    Step::new(name, command, TESTS_LIMIT)
}

/// Returns the steps for all examples and for every proof in its short form.
fn proofs_of(built: &Artifacts) -> Result<Vec<Step>, String> {
    let example = |found: &artifacts::Executable| {
        Step::new(format!("example {}", found.name), found.command(), process::BUILD_LIMIT)
    };
    let mut steps: Vec<Step> = built.examples().into_iter().map(example).collect();
    for name in proofs::names() {
        let mut command = built.find(artifacts::Kind::Program, "xtask")?.command();
        command.args(["prove", name, "--short"]).env(artifacts::FILE, artifacts::file()?);
        steps.push(Step::new(format!("proof {name}"), command, proofs::Size::Short.limit()));
    }
    Ok(steps)
}

/// Returns a command for another task of this program. It works only until the program itself is rebuilt.
fn this(task: &str) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.arg(task).current_dir(process::root());
    Ok(command)
}

/// The results of the steps so far.
struct Record {
    begun: Instant,
    load: Load,
    /// Folder for the output of concurrent steps.
    logs: PathBuf,
    times: Mutex<Vec<(String, f64)>>,
    failure: Mutex<Option<String>>,
    has_failed: AtomicBool,
}

impl Record {
    fn begin() -> Result<Record, String> {
        let logs = process::target_folder()?.join("xtask");
        fs::create_dir_all(&logs).map_err(|error| format!("cannot create {}: {error}", logs.display()))?;
        Ok(Record {
            begun: Instant::now(),
            load: Load::now(),
            logs,
            times: Mutex::default(),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Runs one step and shows its output as it arrives.
    fn shown(&self, mut step: Step) -> Result<(), String> {
        let alone = step.alone();
        eprintln!("\n=== {} (at {:.0} s): {alone}", step.name, self.begun.elapsed().as_secs_f64());
        self.timed(&step.name.clone(), || process::run(&mut step.command, step.limit))
            .map_err(|error| failed(&step.name, &error, &alone))
    }

    fn timed<T>(&self, name: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let begun = Instant::now();
        let done = work()?;
        self.passed(name, begun.elapsed());
        Ok(done)
    }

    fn passed(&self, name: &str, time: Duration) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.push((name.to_owned(), time.as_secs_f64()));
    }

    /// Runs the steps in order, [`PARALLEL_STEPS`] at a time. Starts no further step after the first failure.
    fn run_parallel(&self, steps: Vec<Step>) -> Result<(), String> {
        let steps = Mutex::new(steps.into_iter());
        let next = || {
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.next().filter(|_| !self.has_failed.load(Ordering::SeqCst))
        };
        thread::scope(|scope| {
            for _ in 0..PARALLEL_STEPS {
                scope.spawn(|| {
                    while let Some(step) = next() {
                        self.logged(step);
                    }
                });
            }
        });
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => {
                self.print_times();
                Err(failure)
            }
            None => Ok(()),
        }
    }

    /// Runs one step with its output in a file, and shows the end of that file.
    fn logged(&self, mut step: Step) {
        let path = self.logs.join(step.name.replace(' ', "-")).with_extension("log");
        let begun = Instant::now();
        let result = File::create(&path)
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
            .and_then(|(out, err)| process::run(step.command.stdout(out).stderr(err), step.limit));
        let time = begun.elapsed();
        let lines = if result.is_ok() { SHOWN.0 } else { SHOWN.1 };
        let word = if result.is_ok() { "passed" } else { "FAILED" };
        let at = self.begun.elapsed().as_secs_f64();
        eprintln!(
            "\n=== {} {word} in {:.1} s (at {at:.0} s)\n{}",
            step.name,
            time.as_secs_f64(),
            tail(&path, lines)
        );
        match result {
            Ok(()) => self.passed(&step.name, time),
            Err(error) => {
                self.has_failed.store(true, Ordering::SeqCst);
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                let text = failed(&step.name, &error, &step.alone());
                failure.get_or_insert(format!("{text}\nfull output: {}", path.display()));
            }
        }
    }

    fn print_times(&self) {
        eprintln!("\n=== summary");
        for (name, seconds) in &*self.times.lock().unwrap_or_else(PoisonError::into_inner) {
            eprintln!("{seconds:>8.1} s  {name}");
        }
        eprintln!("{:>8.1} s  total", self.begun.elapsed().as_secs_f64());
    }

    /// Prints the time of every step, and fails if the run took too long.
    fn summarize(&self) -> Result<(), String> {
        self.print_times();
        let taken = self.begun.elapsed();
        let others = self.load.taken_by_others();
        let count = self.times.lock().map_or(0, |times| times.len());
        judge(taken, others)?;
        eprintln!("all {count} steps passed");
        Ok(())
    }
}

/// Returns an error if a run was too slow. `others` is the share of the machine that other programs used; that share of
/// the time does not count.
fn judge(taken: Duration, others: f64) -> Result<(), String> {
    let own = taken.mul_f64(1.0 - others);
    eprintln!(
        "limit: {} s on an idle machine; other programs used {:.0} % of this one: counts as {:.0} s",
        LIMIT.as_secs(),
        others * 100.0,
        own.as_secs_f64()
    );
    if own > LIMIT || taken > HARD_LIMIT {
        return Err(format!(
            "the run took {:.0} s, which counts as {:.0} s; the limit is {} s ({} s on any machine): make some step faster",
            taken.as_secs_f64(),
            own.as_secs_f64(),
            LIMIT.as_secs(),
            HARD_LIMIT.as_secs()
        ));
    }
    Ok(())
}

fn failed(name: &str, error: &str, alone: &str) -> String {
    format!("step `{name}` failed: {error}\nto run just this step: {alone}")
}

/// Returns the last lines of a file, without empty ones.
fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, script: &str) -> Step {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Step::new(name, command, Duration::from_secs(30))
    }

    fn record(name: &str) -> (Record, PathBuf) {
        let logs = env::temp_dir().join(format!("stepwell-steps-{name}-{}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let record = Record {
            begun: Instant::now(),
            load: Load::now(),
            logs: logs.clone(),
            times: Mutex::default(),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
        };
        (record, logs)
    }

    #[test]
    fn a_step_says_how_to_run_it_alone() {
        let mut step = step("docs", "true");
        step.command.env("RUSTDOCFLAGS", "-D warnings").env("CARGO_INCREMENTAL", "0");
        assert_eq!(step.alone(), "RUSTDOCFLAGS=\"-D warnings\" sh -c true");
    }

    #[test]
    fn after_a_failure_no_further_step_begins() {
        let (record, logs) = record("failure");
        let marker = logs.join("marker");
        let wait = format!("while [ ! -e {0} ]; do sleep 0.01; done; sleep 1", marker.display());
        let fail = format!("echo it broke; touch {}; exit 3", marker.display());
        let mut steps: Vec<Step> = (1..PARALLEL_STEPS).map(|_| step("one", &wait)).collect();
        steps.extend([step("two", &fail), step("three", "true")]);
        let error = record.run_parallel(steps).unwrap_err();
        assert!(error.contains("step `two` failed") && error.contains("two.log"), "{error}");
        assert!(error.contains("to run just this step: sh -c"), "{error}");
        let times = record.times.lock().unwrap();
        let names: Vec<&str> = times.iter().map(|(name, _)| &name[..]).collect();
        assert!(names.contains(&"one") && !names.contains(&"three"), "{names:?}");
        assert_eq!(tail(&logs.join("two.log"), 5), "it broke");
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn limit_applies_to_an_idle_machine() {
        let second = Duration::from_secs(1);
        judge(LIMIT - second, 0.0).unwrap();
        assert!(judge(LIMIT + second, 0.0).unwrap_err().contains("make some step faster"));
        judge(LIMIT * 2 - second, 0.5).unwrap();
        assert!(judge(LIMIT * 2 + second * 3, 0.5).is_err());
        assert!(judge(HARD_LIMIT + second, 0.9).is_err());
    }
}
