//! The proofs: claims about the whole program, each backed by measured figures.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde_json::Value;

use crate::artifacts::Artifacts;
use crate::{needs, process};

mod bad_definition;
mod clients;
mod commit;
mod contract;
mod data;
mod documents;
mod doors;
mod events;
mod figures;
mod flows;
mod http;
mod kill;
mod kill_engine;
mod postgres;
mod recover;
mod signal;
mod simulate;
mod sleepers;
mod ten_step;

/// The extent of a proof.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    /// Full size, with all bars.
    Full,
    /// Small size, to show that the proof works. Figures that depend on the speed of the machine are not judged.
    Short,
}

/// A claim and the function that checks it.
struct Proof {
    name: &'static str,
    about: &'static str,
    run: fn(Size) -> Result<(), String>,
}

const PROOFS: &[Proof] = &[
    Proof {
        name: "commit",
        about: "a commit through the store is nearly as fast as a bare SQLite loop in the same run",
        run: commit::prove,
    },
    Proof {
        name: "ten-step",
        about: "a durable workflow step costs little more than a commit of a bare SQLite loop in the same run",
        run: ten_step::prove,
    },
    Proof {
        name: "http",
        about: "signals through the API over 64 connections reach 0.4 times the rate of signals in process",
        run: http::prove,
    },
    Proof {
        name: "contract",
        about: "the server answers valid and invalid schemathesis requests as its contract says, never with a 5xx",
        run: contract::prove,
    },
    Proof {
        name: "kill-server",
        about: "no write acknowledged over HTTP is lost or duplicated when the server is killed",
        run: http::kill_server,
    },
    Proof {
        name: "oracle",
        about: "an independent client finds every acknowledged effect exactly once while servers and database are killed",
        run: clients::oracle,
    },
    Proof {
        name: "people",
        about: "of random answers by permitted and other people, doubled and late, exactly the permitted first ones count",
        run: clients::people,
    },
    Proof {
        name: "bulk",
        about: "a bulk command retries each of many failed runs exactly once while the server is killed, on both databases",
        run: clients::bulk,
    },
    Proof {
        name: "canary",
        about: "secrets reach their recipients and appear in no answer, history, export, log, trace or file",
        run: clients::canary,
    },
    Proof {
        name: "columns",
        about: "shadow columns of published workflows are healed, migrated and filtered over HTTP as in a naive model",
        run: clients::columns,
    },
    Proof {
        name: "doors",
        about: "every promise is kept through Rust, workflow documents, HTTP and the command line, as the table says",
        run: doors::prove,
    },
    Proof {
        name: "first-hour",
        about: "a new user can paste every command of the first pages, on SQLite and on PostgreSQL with least privilege",
        run: clients::first_hour,
    },
    Proof {
        name: "slow-sockets",
        about: "two thousand silent or slow sockets are closed in time and slow down no other client",
        run: http::slow_sockets,
    },
    Proof {
        name: "signal",
        about: "a signal wakes a waiting run in less than a millisecond, and thousands of runs per second",
        run: signal::prove,
    },
    Proof {
        name: "sleepers",
        about: "a hundred thousand sleeping runs use little memory and wake in time",
        run: sleepers::prove,
    },
    Proof {
        name: "recover",
        about: "runs of a killed process continue a fifth of a second after the next process starts",
        run: recover::prove,
    },
    Proof {
        name: "kill-engine",
        about: "an engine that is killed repeatedly finishes every workflow and commits every step once",
        run: kill_engine::prove,
    },
    Proof {
        name: "kill-sqlite",
        about: "no acknowledged commit is lost, torn or duplicated when the process is killed at any moment, on SQLite",
        run: kill::prove_sqlite,
    },
    Proof {
        name: "postgres-suite",
        about: "the engine's test suite and the kill tests pass on PostgreSQL too",
        run: postgres::suite,
    },
    Proof {
        name: "three-processes",
        about: "processes sharing a server lose and duplicate nothing when they, their connections or the server are killed",
        run: postgres::three,
    },
    Proof {
        name: "fair",
        about: "a tenant with one run is served at once while another has a hundred thousand due runs",
        run: postgres::fair,
    },
    Proof {
        name: "ten-step-postgres",
        about: "a durable step on PostgreSQL costs little more than a commit of a bare loop in the same run",
        run: postgres::ten_step,
    },
    Proof {
        name: "recover-postgres",
        about: "another process continues the runs of a killed process within two seconds",
        run: recover::prove_postgres,
    },
    Proof {
        name: "no-tenantless-sql",
        about: "every SQL statement names the tenant, except those that return no tenant data",
        run: postgres::no_tenantless_sql,
    },
    Proof {
        name: "exact-counter",
        about: "the sum of increments by runs whose process is killed repeatedly is exact, on both databases",
        run: data::exact_counter,
    },
    Proof {
        name: "linearizable",
        about: "concurrent reads and writes of a few keys are linearizable",
        run: data::linearizable,
    },
    Proof {
        name: "counter",
        about: "a hot counter is many times faster than one increment per transaction, and as fast as many counters",
        run: data::counter,
    },
    Proof {
        name: "isolation",
        about: "calls with another tenant's names and ids find, change and count nothing",
        run: data::isolation,
    },
    Proof {
        name: "pages",
        about: "a listing read during inserts and deletes contains every stable key exactly once",
        run: data::pages,
    },
    Proof {
        name: "one-winner",
        about: "one of two hundred resumes of a handle runs the step, and kills in between lose and duplicate nothing",
        run: flows::one_winner,
    },
    Proof {
        name: "tamper",
        about: "an altered, expired or foreign token is refused, and the refusal does not reveal the reason",
        run: flows::tamper,
    },
    Proof {
        name: "scanner",
        about: "a mail scanner that follows every answer link with GET and HEAD changes nothing",
        run: flows::scanner,
    },
    Proof {
        name: "seal",
        about: "sealing a state and opening it again is at least half as fast as the token library alone",
        run: flows::seal,
    },
    Proof {
        name: "handle",
        about: "measures resuming a flow behind a handle against a commit of a bare loop",
        run: flows::handle,
    },
    Proof {
        name: "flows-http",
        about: "flows by documents and configuration have each effect once, across races, scanners, wrong answers and kills",
        run: clients::flows_http,
    },
    Proof {
        name: "mirror",
        about: "the two task mirror workflows run from their workflow documents, on both databases",
        run: documents::mirror,
    },
    Proof {
        name: "malformed",
        about: "hundreds of documents with mistakes are refused quickly, each with a position and a reason",
        run: documents::malformed,
    },
    Proof {
        name: "tenant-keys",
        about: "two tenants use the same ids, keys and names at once, under load, without seeing each other",
        run: documents::tenant_keys,
    },
    Proof {
        name: "bad-row",
        about: "a corrupt or deleted row affects only its owner, which the doctor names and which can be removed",
        run: documents::bad_row,
    },
    Proof {
        name: "jsonata",
        about: "twenty thousand random expressions give the same results as the package jsonata, except documented deviations",
        run: documents::jsonata,
    },
    Proof {
        name: "long-loop",
        about: "a loop over ten thousand items has a checkpoint per item, uses little memory, and counts each once across kills",
        run: documents::long_loop,
    },
    Proof {
        name: "storm",
        about: "thousands of events, many sent twice, start and wake their runs exactly once across kills",
        run: events::storm,
    },
    Proof {
        name: "race",
        about: "events before, during and just after a wait resolve it by the rules, in ten thousand interleavings",
        run: events::race,
    },
    Proof {
        name: "examples",
        about: "the example workflows pass their own tests, which cover every step",
        run: events::examples,
    },
    Proof {
        name: "simulate",
        about: "several engines that crash, freeze and lose answers keep every guarantee, seed after seed",
        run: simulate::prove,
    },
    Proof {
        name: "bad-definition",
        about: "a definition with five mistakes is refused with all five, each with its own code and position",
        run: bad_definition::prove,
    },
];

impl Size {
    pub(crate) fn of(short: bool) -> Size {
        if short { Size::Short } else { Size::Full }
    }

    /// Returns the time limit, after which a proof counts as hanging.
    pub(crate) fn limit(self) -> Duration {
        match self {
            Size::Full => Duration::from_secs(2 * 60 * 60),
            Size::Short => Duration::from_secs(15 * 60),
        }
    }
}

/// Runs one proof. Prints figures on stdout and progress on stderr. Returns an error unless all bars are met.
pub(crate) fn prove(name: &str, size: Size) -> Result<(), String> {
    let Some(proof) = PROOFS.iter().find(|proof| proof.name == name) else {
        return Err(format!("unknown proof `{name}`; available: {}", names().collect::<Vec<_>>().join(", ")));
    };
    needs::ensure(needs::TESTS)?;
    eprintln!("{}: {}", proof.name, proof.about);
    (proof.run)(size).map_err(|error| format!("proof {name}: {error}"))?;
    eprintln!("{}: {}", proof.name, if size == Size::Full { "proved" } else { "runs (short form)" });
    Ok(())
}

/// Prints every proof with its claim.
pub(crate) fn list() {
    let width = names().map(str::len).max().unwrap_or_default();
    for Proof { name, about, .. } in PROOFS {
        println!("{name:width$}  {about}");
    }
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROOFS.iter().map(|proof| proof.name)
}

/// Downloads the tools that proofs need beyond system packages. Without this a proof downloads them itself.
pub(crate) fn install_tools() -> Result<(), String> {
    contract::installed().map(drop)
}

/// Returns the path of the program that runs the workloads.
fn bench(size: Size) -> Result<PathBuf, String> {
    program("stepwell-bench", size)
}

/// Returns the path of the `stepwell` program.
fn server(size: Size) -> Result<PathBuf, String> {
    program("stepwell", size)
}

/// Builds a program and returns its path. Speed is judged at full size only, so only that needs a release build.
fn program(name: &str, size: Size) -> Result<PathBuf, String> {
    match size {
        Size::Full => process::release_binary(&["stepwell-bench", "stepwell-server"], name),
        Size::Short => Artifacts::of(&["--bin", "stepwell", "--bin", "stepwell-bench"])?.program(name),
    }
}

/// Runs JSONata's own test cases against the expression dialect.
pub(crate) fn jsonata(folder: &Path, json: bool) -> Result<(), String> {
    let mut command = Command::new(bench(Size::Short)?);
    command.arg("jsonata").arg(folder).args(json.then_some("--json"));
    process::run(&mut command, Size::Short.limit())
}

/// Runs a program that prints one JSON object per line. Prints each line as it arrives and returns all of them.
fn measured(command: &mut Command, size: Size) -> Result<Vec<Value>, String> {
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, "", size.limit(), |line| println!("{line}"))?;
    process::succeeded(command, captured.status)?;
    let lines = captured.stdout.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let value = serde_json::from_str::<Value>(line).ok().filter(Value::is_object);
            value.ok_or_else(|| {
                format!("`{}` printed a line that is not a JSON object: {line}", process::shown(command))
            })
        })
        .collect()
}

/// Runs a program on some input. The program may exit with any status and prints one JSON value.
fn answered(command: &mut Command, stdin: &str, size: Size) -> Result<(ExitStatus, Value), String> {
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, stdin, size.limit(), |_| ())?;
    let value: Value = serde_json::from_str(&captured.stdout).map_err(|error| {
        let shown = process::shown(command);
        format!(
            "`{shown}` ended with {} and did not print JSON ({error}): {}",
            captured.status,
            captured.stdout.trim()
        )
    })?;
    println!("{value}");
    Ok((captured.status, value))
}

/// Returns a numeric field of a measurement.
fn number(line: &Value, field: &str) -> Result<f64, String> {
    line[field].as_f64().ok_or_else(|| format!("`{field}` is not a number in {line}"))
}

/// Prints on stderr if a bar is met, and returns `met`.
fn judged(met: bool, what: &str) -> bool {
    eprintln!("{} {what}", if met { "met:   " } else { "MISSED:" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_proof_lists_the_available_ones() {
        let error = prove("none", Size::Short).unwrap_err();
        assert!(names().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn measurements_are_json_objects_line_by_line() {
        let print = |text: &str| measured(Command::new("printf").arg(text), Size::Short);
        assert_eq!(print(r#"{"a":1}\n\n{"a":2}\n"#).unwrap().len(), 2);
        assert!(print("talk").unwrap_err().contains("not a JSON object: talk"));
    }

    #[test]
    fn an_answer_may_come_with_any_status() {
        let mut command = Command::new("sh");
        let (status, value) =
            answered(command.args(["-c", "cat; exit 6"]), "{\n\"a\": 1}", Size::Short).unwrap();
        assert_eq!((status.code(), value["a"].as_u64()), (Some(6), Some(1)));
    }
}
