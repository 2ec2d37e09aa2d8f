//! `bulk retry`, `bulk cancel` and so on: commands on many runs, with a progress bar while they are executed.

use std::path::Path;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use serde_json::Value;

use super::args::Operation;
use super::client::{ApiRequest, Client};
use super::show::Shown;
use super::{duration, everywhere, ids, is_sure, opened};
use crate::exit::{Code, Failure};
use crate::output;
use crate::server::runtime;

/// A command on many runs.
struct BulkVerb {
    verb: &'static str,
    about: &'static str,
    /// The fields that only this command has.
    own: &'static [&'static str],
    /// Asks for confirmation at a terminal.
    needs_confirmation: bool,
}

const VERBS: &[BulkVerb] = &[
    BulkVerb {
        verb: "retry",
        about: "Retry failed runs: the failed transition of each runs again at once",
        own: &[],
        needs_confirmation: false,
    },
    BulkVerb {
        verb: "cancel",
        about: "Cancel runs and all their descendants",
        own: &[],
        needs_confirmation: true,
    },
    BulkVerb {
        verb: "suspend",
        about: "Suspend runs until they are resumed",
        own: &[],
        needs_confirmation: false,
    },
    BulkVerb { verb: "resume", about: "Resume suspended runs", own: &[], needs_confirmation: false },
    BulkVerb {
        verb: "migrate",
        about: "Move runs to another version of their workflow",
        own: &["toVersion", "places", "context"],
        needs_confirmation: true,
    },
    BulkVerb {
        verb: "signal",
        about: "Send a signal to runs",
        own: &["signal", "payload", "strict", "ttl"],
        needs_confirmation: false,
    },
    BulkVerb {
        verb: "delete",
        about: "Delete runs that have ended, with all their data",
        own: &[],
        needs_confirmation: true,
    },
];

/// The operation that starts every bulk command.
const START: &str = "startBulk";
/// Id of the argument with the runs.
const RUNS: &str = "runs";
/// Id of the argument `--wait`.
const WAIT: &str = "wait";
/// Duration of one waiting request without and with a progress bar.
const AT_A_TIME: Duration = Duration::from_secs(30);
const BETWEEN_UPDATES: Duration = Duration::from_millis(300);

/// Returns the operation of a verb: with the fields of the filter as arguments, and without those of other commands.
fn operation(contract: &Value, verb: &BulkVerb) -> Operation {
    let operation = Operation::of(contract, START);
    let operation = operation.unwrap_or_else(|| unreachable!("the contract has no operation `{START}`"));
    let foreign = VERBS.iter().filter(|other| other.verb != verb.verb).flat_map(|other| other.own);
    let hidden: Vec<&str> = foreign.copied().chain(["command", RUNS, WAIT]).collect();
    operation.spread(contract, START, "filter").without(&hidden)
}

pub(super) fn with_verbs(command: Command, contract: &Value) -> Command {
    let runs = || {
        let about = "Run ids, or the beginnings of them; `-` reads ids from standard input, one per line";
        Arg::new(RUNS).value_name("RUN").num_args(0..).help(about)
    };
    let wait = || {
        let about = "Wait until the bulk command ends, with a progress bar at a terminal; exit code 7 if a run failed";
        let wait = Arg::new(WAIT).long("wait").num_args(0..=1).require_equals(true);
        wait.default_missing_value("60s").value_name("DURATION").help(about)
    };
    VERBS.iter().fold(command, |command, verb| {
        let added = operation(contract, verb).command(everywhere(Command::new(verb.verb)));
        let added = added.about(verb.about).arg(runs()).arg(wait());
        command.mut_subcommand("bulk", |noun| noun.subcommand(added))
    })
}

pub(super) fn run(
    noun: &str,
    verb: &str,
    matches: &ArgMatches,
    contract: &Value,
) -> Option<Result<(), Failure>> {
    let verb = VERBS.iter().find(|known| noun == "bulk" && known.verb == verb)?;
    let operation = operation(contract, verb);
    Some(runtime().and_then(|runtime| runtime.block_on(start(verb, &operation, matches))))
}

async fn start(verb: &BulkVerb, operation: &Operation, matches: &ArgMatches) -> Result<(), Failure> {
    let wait = matches.get_one::<String>(WAIT).map(|text| duration(text)).transpose()?;
    let (client, shown) = opened(matches).await?;
    // The result of a dry run is of use only at its end.
    let wait = wait.or(shown.dry_run.then_some(Duration::from_secs(60)));
    let done = async {
        let request = request(verb, operation, matches, &client).await?;
        if verb.needs_confirmation && !shown.yes && !shown.dry_run {
            let what = format!("bulk {} {}", verb.verb, body_of(&request));
            if !is_sure(&what)? {
                return Err(Failure::new(Code::Conflict, "not confirmed: nothing was changed"));
            }
        }
        let started = client.ask(request).await?.json()?;
        let Some(wait) = wait else { return shown.show(&started, &[]) };
        let ended = follow(&client, &shown, started, wait).await?;
        shown.show(&ended, &[])?;
        outcome(&ended)
    };
    let done = done.await;
    client.close().await;
    done
}

/// Builds the request from the arguments.
async fn request(
    verb: &BulkVerb,
    operation: &Operation,
    matches: &ArgMatches,
    client: &Client,
) -> Result<ApiRequest, Failure> {
    let whole = ids::expanded(client, operation.run_ids(matches)).await?;
    let mut request = operation.asking(matches, &whole)?;
    let mut body: Value = serde_json::from_str(&body_of(&request)).unwrap_or_else(|_| serde_json::json!({}));
    body["command"] = verb.verb.into();
    let mut runs = Vec::new();
    for given in matches.get_many::<String>(RUNS).into_iter().flatten() {
        if given == "-" {
            runs.extend(crate::workflow::read(Path::new("-"))?.split_whitespace().map(str::to_owned));
        } else {
            runs.push(ids::expand(client, given).await?);
        }
    }
    if !runs.is_empty() || matches.contains_id(RUNS) {
        body[RUNS] = runs.into();
    }
    request.body = Some(("application/json".to_owned(), body.to_string().into_bytes()));
    Ok(request)
}

fn body_of(request: &ApiRequest) -> String {
    request.body.as_ref().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).unwrap_or_default()
}

/// Waits until a bulk command ends or fails, or the time is over. Returns its last state.
async fn follow(client: &Client, shown: &Shown, started: Value, limit: Duration) -> Result<Value, Failure> {
    let id = started["id"].as_str().unwrap_or_default().to_owned();
    let bar = (!shown.quiet).then(output::progress);
    let is_visible = bar.as_ref().is_some_and(|bar| !bar.is_hidden());
    let (began, mut state) = (tokio::time::Instant::now(), started);
    while !is_over(&state) {
        let left = limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        let pause = left.min(if is_visible { BETWEEN_UPDATES } else { AT_A_TIME });
        let path = format!("/v1/bulk/{id}?wait={}ms", pause.as_millis().max(1));
        state = client.ask(ApiRequest::get(path)).await?.json()?;
        if let Some(bar) = &bar {
            let count = |field: &str| state[field].as_u64().unwrap_or(0);
            bar.set_length(count("total"));
            bar.set_position(count("done") + count("failed") + count("skipped"));
            bar.set_message(format!("{} failed, {} skipped", count("failed"), count("skipped")));
        }
    }
    bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    Ok(state)
}

fn is_over(state: &Value) -> bool {
    matches!(state["status"].as_str(), Some("completed" | "cancelled" | "failed"))
}

/// Maps the last state of a bulk command to the exit code.
fn outcome(state: &Value) -> Result<(), Failure> {
    let id = state["id"].as_str().unwrap_or_default();
    let failed = state["failed"].as_u64().unwrap_or(0);
    match state["status"].as_str() {
        Some("completed") if failed == 0 => Ok(()),
        Some("completed") => {
            let why = format!("{failed} runs failed: see `stepwell bulk results {id} --outcome failed`");
            Err(Failure::new(Code::Failed, why))
        }
        Some("cancelled") => Err(Failure::new(Code::Failed, "the bulk command was cancelled")),
        Some("failed") => {
            let why = state.pointer("/error/message").and_then(Value::as_str).unwrap_or("no error message");
            let how = format!("`stepwell run retry {id}` continues it");
            Err(Failure::new(Code::Failed, format!("the bulk command is stopped by an error: {why}; {how}")))
        }
        _ => {
            let why =
                format!("the wait timed out; the bulk command continues: `stepwell bulk show {id} --wait`");
            Err(Failure::new(Code::TimedOut, why))
        }
    }
}
