//! The proofs: claims about the whole program, each with the figures that carry it.

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

/// How much of a proof to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    /// Carries the claim.
    Full,
    /// Shows that the proof still runs; nothing that depends on the machine's speed is judged.
    Short,
}

/// A claim and how to show it.
struct Proof {
    name: &'static str,
    about: &'static str,
    run: fn(Size) -> Result<(), String>,
}

const PROOFS: &[Proof] = &[
    Proof {
        name: "commit",
        about: "a commit through the store is nearly as fast as the bare SQLite loop beside it",
        run: commit::prove,
    },
    Proof {
        name: "ten-step",
        about: "a durable step of a workflow costs little more than a commit of the bare SQLite loop beside it",
        run: ten_step::prove,
    },
    Proof {
        name: "http",
        about: "signals through the API over 64 connections reach 0.4 of the same signals in process",
        run: http::prove,
    },
    Proof {
        name: "contract",
        about: "whatever schemathesis asks, right or wrong, the server answers as its contract says, and never with a 5xx",
        run: contract::prove,
    },
    Proof {
        name: "kill-server",
        about: "of everything that a server acknowledged over HTTP nothing is lost or doubled when it is killed",
        run: http::kill_server,
    },
    Proof {
        name: "oracle",
        about: "an independent client finds every effect that was acknowledged, once, however servers and database are killed",
        run: clients::oracle,
    },
    Proof {
        name: "canary",
        about: "secrets come to whom they are for, and are found in no answer, history, export, log, trace or file",
        run: clients::canary,
    },
    Proof {
        name: "slow-sockets",
        about: "two thousand silent or slow sockets are closed in time and hold up nobody",
        run: http::slow_sockets,
    },
    Proof {
        name: "signal",
        about: "a run that waits is woken by a signal in less than a millisecond, and thousands in a second",
        run: signal::prove,
    },
    Proof {
        name: "sleepers",
        about: "a hundred thousand runs that sleep take little memory and wake in time",
        run: sleepers::prove,
    },
    Proof {
        name: "recover",
        about: "what a killed process worked on is gone on with a fifth of a second after the next one starts",
        run: recover::prove,
    },
    Proof {
        name: "kill-engine",
        about: "an engine that is killed again and again finishes every workflow and commits every step once",
        run: kill_engine::prove,
    },
    Proof {
        name: "kill-sqlite",
        about: "nothing acknowledged is lost, torn or doubled when the process is killed at any moment, on SQLite",
        run: kill::prove_sqlite,
    },
    Proof {
        name: "postgres-suite",
        about: "the engine's whole test suite and the kill tests hold on PostgreSQL too",
        run: postgres::suite,
    },
    Proof {
        name: "three-processes",
        about: "processes that share a server lose and double nothing when they, their connections or it are killed",
        run: postgres::three,
    },
    Proof {
        name: "fair",
        about: "a tenant with one run is served at once while another has a hundred thousand due",
        run: postgres::fair,
    },
    Proof {
        name: "ten-step-postgres",
        about: "a durable step on PostgreSQL costs little more than a commit of the bare loop beside it",
        run: postgres::ten_step,
    },
    Proof {
        name: "recover-postgres",
        about: "what a killed process worked on is gone on with by another within two seconds",
        run: recover::prove_postgres,
    },
    Proof {
        name: "no-tenantless-sql",
        about: "every statement names the tenant, but those that show nobody's data",
        run: postgres::no_tenantless_sql,
    },
    Proof {
        name: "exact-counter",
        about: "increments by runs whose process is killed again and again come to exactly their sum, on both databases",
        run: data::exact_counter,
    },
    Proof {
        name: "linearizable",
        about: "what many clients see of a few keys can be put into one order that contradicts no clock",
        run: data::linearizable,
    },
    Proof {
        name: "counter",
        about: "a hot counter is many times as fast as one increment per transaction, and as fast as many counters",
        run: data::counter,
    },
    Proof {
        name: "isolation",
        about: "everything called with another tenant's names and ids finds, changes and counts nothing",
        run: data::isolation,
    },
    Proof {
        name: "pages",
        about: "a listing read while others insert and delete has whatever was there throughout, once",
        run: data::pages,
    },
    Proof {
        name: "one-winner",
        about: "of two hundred resumes of one handle one runs the step, and kills in between lose and double nothing",
        run: flows::one_winner,
    },
    Proof {
        name: "tamper",
        about: "a token with a bit changed, expired or somebody else's is refused, and no refusal says why",
        run: flows::tamper,
    },
    Proof {
        name: "scanner",
        about: "a mail scanner that follows every link by GET and HEAD changes nothing",
        run: flows::scanner,
    },
    Proof {
        name: "seal",
        about: "sealing a state and opening it again is at least half as fast as the token library alone",
        run: flows::seal,
    },
    Proof {
        name: "handle",
        about: "what resuming a flow behind a handle costs, beside a commit of the bare loop",
        run: flows::handle,
    },
    Proof {
        name: "mirror",
        about: "the two workflows of the task mirror run from the text of their documents, on both databases",
        run: documents::mirror,
    },
    Proof {
        name: "malformed",
        about: "hundreds of documents with mistakes are refused, each with a place and a reason, none slowly",
        run: documents::malformed,
    },
    Proof {
        name: "tenant-keys",
        about: "two tenants use the same ids, keys and names at once, under load, and neither notices the other",
        run: documents::tenant_keys,
    },
    Proof {
        name: "bad-row",
        about: "whatever row is garbled or deleted, only what it belongs to suffers, is named, and can be removed",
        run: documents::bad_row,
    },
    Proof {
        name: "jsonata",
        about: "twenty thousand random expressions give what the package jsonata gives, but for the deviations that are listed",
        run: documents::jsonata,
    },
    Proof {
        name: "long-loop",
        about: "a loop over ten thousand items has a checkpoint per item, little memory, and counts each once across kills",
        run: documents::long_loop,
    },
    Proof {
        name: "storm",
        about: "thousands of events, many sent twice, start and wake everything they have to exactly once across kills",
        run: events::storm,
    },
    Proof {
        name: "race",
        about: "events before, during and just after a wait come to what the rule says, in ten thousand interleavings",
        run: events::race,
    },
    Proof {
        name: "examples",
        about: "the example workflows pass their own tests, which come to every step",
        run: events::examples,
    },
    Proof {
        name: "simulate",
        about: "several engines that crash, freeze and lose answers keep every promise, seed after seed",
        run: simulate::prove,
    },
    Proof {
        name: "bad-definition",
        about: "a definition with five mistakes is refused with all five, each with its own code and place",
        run: bad_definition::prove,
    },
];

impl Size {
    pub(crate) fn of(short: bool) -> Size {
        if short { Size::Short } else { Size::Full }
    }

    /// After this a proof hangs.
    pub(crate) fn limit(self) -> Duration {
        match self {
            Size::Full => Duration::from_secs(2 * 60 * 60),
            Size::Short => Duration::from_secs(15 * 60),
        }
    }
}

/// Runs one proof: figures on stdout, talk on stderr, an error unless the bar is met.
pub(crate) fn prove(name: &str, size: Size) -> Result<(), String> {
    let Some(proof) = PROOFS.iter().find(|proof| proof.name == name) else {
        return Err(format!(
            "there is no proof `{name}`; there are: {}",
            names().collect::<Vec<_>>().join(", ")
        ));
    };
    needs::ensure(needs::TESTS)?;
    eprintln!("{}: {}", proof.name, proof.about);
    (proof.run)(size).map_err(|error| format!("proof {name}: {error}"))?;
    eprintln!("{}: {}", proof.name, if size == Size::Full { "proved" } else { "runs (short form)" });
    Ok(())
}

/// Prints every proof with what it shows.
pub(crate) fn list() {
    let width = names().map(str::len).max().unwrap_or_default();
    for Proof { name, about, .. } in PROOFS {
        println!("{name:width$}  {about}");
    }
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROOFS.iter().map(|proof| proof.name)
}

/// Downloads what proofs need beyond the packages of the system. Until then a proof downloads it itself.
pub(crate) fn install_tools() -> Result<(), String> {
    contract::installed().map(drop)
}

/// The program that runs the workloads.
fn bench(size: Size) -> Result<PathBuf, String> {
    program("stepwell-bench", size)
}

/// The program that users run.
fn server(size: Size) -> Result<PathBuf, String> {
    program("stepwell", size)
}

/// Only at full size are figures of speed judged, so that only then a release build is needed.
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

/// Runs a program that prints one JSON object a line; they are passed on as they come, and kept.
fn measured(command: &mut Command, size: Size) -> Result<Vec<Value>, String> {
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, "", size.limit(), |line| println!("{line}"))?;
    process::succeeded(command, captured.status)?;
    let lines = captured.stdout.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let value = serde_json::from_str::<Value>(line).ok().filter(Value::is_object);
            value.ok_or_else(|| {
                format!("`{}` printed a line that is no JSON object: {line}", process::shown(command))
            })
        })
        .collect()
}

/// Runs a program on some input; it may end with any status, and prints one JSON value over any number of lines.
fn answered(command: &mut Command, stdin: &str, size: Size) -> Result<(ExitStatus, Value), String> {
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, stdin, size.limit(), |_| ())?;
    let value: Value = serde_json::from_str(&captured.stdout).map_err(|error| {
        let shown = process::shown(command);
        format!(
            "`{shown}` ended with {} and printed no JSON ({error}): {}",
            captured.status,
            captured.stdout.trim()
        )
    })?;
    println!("{value}");
    Ok((captured.status, value))
}

/// A number of a measurement.
fn number(line: &Value, field: &str) -> Result<f64, String> {
    line[field].as_f64().ok_or_else(|| format!("`{field}` is not a number in {line}"))
}

/// Says on stderr how a figure stands to its bar, and whether it is met.
fn judged(met: bool, what: &str) -> bool {
    eprintln!("{} {what}", if met { "met:   " } else { "MISSED:" });
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_proof_is_answered_with_those_there_are() {
        let error = prove("none", Size::Short).unwrap_err();
        assert!(names().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn measurements_are_json_objects_line_by_line() {
        let print = |text: &str| measured(Command::new("printf").arg(text), Size::Short);
        assert_eq!(print(r#"{"a":1}\n\n{"a":2}\n"#).unwrap().len(), 2);
        assert!(print("talk").unwrap_err().contains("no JSON object: talk"));
    }

    #[test]
    fn an_answer_may_come_with_any_status() {
        let mut command = Command::new("sh");
        let (status, value) =
            answered(command.args(["-c", "cat; exit 6"]), "{\n\"a\": 1}", Size::Short).unwrap();
        assert_eq!((status.code(), value["a"].as_u64()), (Some(6), Some(1)));
    }
}
