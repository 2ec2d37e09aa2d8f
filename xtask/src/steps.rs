//! The steps of `cargo xtask test`: first what builds everything once, then the rest, several at a time.

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

/// The longest a run may take on a machine that does nothing else. The aim is 20 minutes.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The longest a run may take on any machine.
const HARD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// The limit of one test executable. A test that runs for more than a minute is named in the log while it runs, so a
/// test that hangs is known by its name.
const TESTS_LIMIT: Duration = Duration::from_secs(25 * 60);

/// The last lines of a step that are shown when it passes, and when it fails.
const SHOWN: (usize, usize) = (4, 400);

/// How many steps run at a time. Tests and compilers use several processors themselves, other steps mostly wait.
const BESIDE: usize = 2;

/// One command that must succeed.
struct Step {
    name: String,
    command: Command,
    limit: Duration,
}

impl Step {
    fn new(name: impl Into<String>, command: Command, limit: Duration) -> Step {
        Step { name: name.into(), command, limit }
    }

    /// What to type to run just this.
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

/// Runs everything a change has to pass; the first failure ends it.
pub(crate) fn test(skip_lints: bool) -> Result<(), String> {
    process::lint_while_building()?;
    let record = Record::begin()?;
    needs::ensure(needs::TESTS)?;
    if !skip_lints {
        first()?.into_iter().try_for_each(|step| record.shown(step))?;
    }
    // Mostly waits for the network. An error shows when the proof needs the tool.
    let tools = thread::spawn(proofs::install_tools);
    let built = record.timed("build and clippy", || Artifacts::build_and_keep(&["--all-targets"]))?;
    let _ = tools.join();
    let mut steps = checks()?;
    steps.extend(tests_of(&built));
    steps.extend(proofs_of(&built)?);
    record.beside(longest_first(steps))?;
    record.summarize()
}

/// Steps that take more than half a minute, so that none of them is left alone at the end.
const LONG: &[&str] = &[
    "docs and doctests",
    "engine on postgres",
    "store on postgres",
    "proof contract",
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

/// Seconds each; no use going on without them.
fn first() -> Result<Vec<Step>, String> {
    Ok(vec![
        Step::new("fmt", process::cargo(["fmt", "--all", "--check"]), process::BUILD_LIMIT),
        Step::new("tidy", this("tidy")?, process::BUILD_LIMIT),
        Step::new("purity", this("purity")?, process::BUILD_LIMIT),
    ])
}

/// Whatever compiles once more: one lane, since cargo does one thing at a time in a target folder.
fn checks() -> Result<Vec<Step>, String> {
    let mut docs = process::cargo(["test", "--doc"]);
    docs.args(EVERYTHING).env("RUSTDOC", documenting()?);
    Ok(vec![Step::new("docs and doctests", docs, process::BUILD_LIMIT)])
}

/// What cargo calls as rustdoc to run the doctests of a library: documents the library first. `cargo doc` would do that
/// too, but checks every dependency once more before.
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

/// Writes [`DOCUMENTING`] down and says where it is.
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

/// Every test executable; the engine's on each store.
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

/// Tests at a time in a process. Most of them wait for a disk or a server more than they compute.
const AT_ONCE: &str = "4";

/// One test executable in one process. To start a process for each test, and to find the database server in it, takes
/// longer than most tests.
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

/// The examples, each run to its end, and every proof in its short form.
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

/// Another task of this program, which only works until the program itself is built again.
fn this(task: &str) -> Result<Command, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.arg(task).current_dir(process::root());
    Ok(command)
}

/// What was run so far.
struct Record {
    begun: Instant,
    load: Load,
    /// Where the output of steps goes that run beside others.
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

    /// Runs one step, showing its output as it comes.
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

    /// Runs the steps in their order, [`BESIDE`] at a time. After the first failure no further step begins.
    fn beside(&self, steps: Vec<Step>) -> Result<(), String> {
        let steps = Mutex::new(steps.into_iter());
        let next = || {
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.next().filter(|_| !self.has_failed.load(Ordering::SeqCst))
        };
        thread::scope(|scope| {
            for _ in 0..BESIDE {
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

    /// Runs one step with its output in a file, and shows the end of that.
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
                failure.get_or_insert(format!("{text}\nits whole output: {}", path.display()));
            }
        }
    }

    fn print_times(&self) {
        eprintln!("\n=== summary");
        for (name, seconds) in &*self.times.lock().unwrap_or_else(PoisonError::into_inner) {
            eprintln!("{seconds:>8.1} s  {name}");
        }
        eprintln!("{:>8.1} s  in all", self.begun.elapsed().as_secs_f64());
    }

    /// Prints how long everything took, and fails if that was too long.
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

/// An error if a run was too slow. `others` is the part of the machine that other programs used meanwhile: their part of
/// the time is not held against the run.
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
            "the run took {:.0} s, which counts as {:.0} s; the limit is {} s ({} s on any machine): make something faster",
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

/// The last lines of a file.
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
        let mut steps: Vec<Step> = (1..BESIDE).map(|_| step("one", &wait)).collect();
        steps.extend([step("two", &fail), step("three", "true")]);
        let error = record.beside(steps).unwrap_err();
        assert!(error.contains("step `two` failed") && error.contains("two.log"), "{error}");
        assert!(error.contains("to run just this step: sh -c"), "{error}");
        let times = record.times.lock().unwrap();
        let names: Vec<&str> = times.iter().map(|(name, _)| &name[..]).collect();
        assert!(names.contains(&"one") && !names.contains(&"three"), "{names:?}");
        assert_eq!(tail(&logs.join("two.log"), 5), "it broke");
        fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn the_limit_is_for_an_idle_machine() {
        let second = Duration::from_secs(1);
        judge(LIMIT - second, 0.0).unwrap();
        assert!(judge(LIMIT + second, 0.0).unwrap_err().contains("make something faster"));
        judge(LIMIT * 2 - second, 0.5).unwrap();
        assert!(judge(LIMIT * 2 + second * 3, 0.5).is_err());
        assert!(judge(HARD_LIMIT + second, 0.9).is_err());
    }
}
