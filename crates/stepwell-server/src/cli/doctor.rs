//! `doctor`: reports what is stuck and why, for the whole server or for one run.

use std::fmt::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::client::{ApiRequest, Client};
use super::show::{Colour, Format, Shown, painted};
use super::{encoded, everywhere, ids, opened};
use crate::exit::{Code, Failure};
use crate::output;
use crate::server::runtime;

/// Options that are passed to the API unchanged: name, value name and help text.
const OPTIONS: [(&str, &str, &str); 5] = [
    ("limit", "NUMBER", "Maximum number of rows examined per kind [default: 200]"),
    ("examples", "NUMBER", "Maximum number of examples per finding [default: 5]"),
    ("late", "DURATION", "Report work that is overdue for longer than this [default: 1m]"),
    ("long", "DURATION", "Report steps that take longer than this [default: 1h]"),
    ("old", "DURATION", "Report waits that last longer than this [default: 30d]"),
];

const AFTER: &str = "Exit code 7: at least one finding has severity `error`. Otherwise the exit code is 0.

Examples:
  stepwell doctor                       report what is stuck, with the commands that repair it
  stepwell doctor 01a1e88c              explain the state of this run and its next step
  stepwell doctor --deep                read every row, and report the unreadable ones
  stepwell doctor --json | jq '.findings[] | {kind, count}'";

pub(super) fn with_verbs(command: Command) -> Command {
    let run = Arg::new("run").value_name("RUN").help("Run to explain: its id, or the beginning of it");
    let mut doctor = everywhere(Command::new("doctor"))
        .about("Report what is stuck, why, and how to repair it")
        .after_help(AFTER)
        .arg(run);
    for (name, value, about) in OPTIONS {
        doctor = doctor.arg(Arg::new(name).long(name).value_name(value).help(about));
    }
    let deep = Arg::new("deep").long("deep").action(ArgAction::SetTrue);
    let deep = deep.help("Read every row to find unreadable ones; the time grows with the amount of data");
    command.subcommand(doctor.arg(deep))
}

pub(super) fn run(noun: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    (noun == "doctor").then(|| runtime().and_then(|runtime| runtime.block_on(doctor(matches))))
}

async fn doctor(matches: &ArgMatches) -> Result<(), Failure> {
    let (client, shown) = opened(matches).await?;
    let found = asked(&client, matches).await;
    client.close().await;
    let found = found?;
    match shown.format() {
        Format::Table if found.get("state").is_some() => output::print(&one(&found))?,
        Format::Table => output::print(&all(&found))?,
        _ => shown.show(&found, &[])?,
    }
    print_report(&found, &shown)
}

async fn asked(client: &Client, matches: &ArgMatches) -> Result<Value, Failure> {
    let mut path = match matches.get_one::<String>("run") {
        Some(run) => format!("/v1/runs/{}/doctor", ids::expand(client, run).await?),
        None => "/v1/doctor".to_owned(),
    };
    let mut between = '?';
    for (name, ..) in OPTIONS {
        if let Some(value) = matches.get_one::<String>(name) {
            path.push_str(&format!("{between}{name}={}", encoded(value)));
            between = '&';
        }
    }
    if matches.get_flag("deep") {
        path.push_str(&format!("{between}deep=true"));
    }
    client.ask(ApiRequest::get(path)).await?.json()
}

/// Maps an unhealthy report to exit code 7.
fn print_report(found: &Value, shown: &Shown) -> Result<(), Failure> {
    if found["healthy"] != false {
        return Ok(());
    }
    let errors = found["findings"].as_array().into_iter().flatten();
    let errors = errors.filter(|finding| finding["severity"] == "error").count();
    let message = if shown.quiet { String::new() } else { format!("findings of severity `error`: {errors}") };
    Err(Failure::new(Code::Failed, message))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// Formats the report about the whole server.
fn all(found: &Value) -> String {
    let mut out = String::new();
    findings(&mut out, found, true);
    if list(found, "findings").next().is_none() {
        let _ = writeln!(out, "{}", painted("Nothing is stuck.", Some(Colour::Green)));
    }
    let _ = writeln!(out, "\n{}", painted("Processes", Some(Colour::Bold)));
    for process in list(found, "processes") {
        let lease_state = if process["alive"] == true { "is alive" } else { "has expired" };
        let this = if process["this"] == true { " (this one)" } else { "" };
        let until = process["leaseUntil"].as_str().map(|until| format!(", lease until {until}"));
        let _ = writeln!(out, "  {} {lease_state}{this}{}", text(process, "id"), until.unwrap_or_default());
    }
    match (found["maxRuns"].as_u64(), found["freeSlots"].as_u64()) {
        (Some(0), _) | (None, _) => {
            let _ = writeln!(out, "  the responding process executes no runs");
        }
        (Some(most), free) => {
            let _ = writeln!(
                out,
                "  the responding process has capacity for {} of {most} runs",
                free.unwrap_or(0)
            );
        }
    }
    if let Some(ahead) = found["clockAheadMs"].as_i64() {
        let _ = writeln!(out, "  its clock is {ahead} ms ahead of the system clock");
    }
    if let Some(store) = found["store"].as_object() {
        let _ = writeln!(out, "\n{}", painted("Store", Some(Colour::Bold)));
        for (name, value) in store {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = writeln!(out, "  {name:18} {value}");
        }
    }
    let _ = writeln!(out, "\n{}", painted("Examined", Some(Colour::Bold)));
    for scanned in list(found, "scanned") {
        let rest = if scanned["all"] == true { "" } else { ", more exist: raise `--limit`" };
        let _ = writeln!(out, "  {:>6} {}{rest}", scanned["rows"].to_string(), text(scanned, "kind"));
    }
    out
}

fn findings(out: &mut String, found: &Value, with_next: bool) {
    for finding in list(found, "findings") {
        let severity = text(finding, "severity");
        let colour = match severity {
            "error" => Colour::Red,
            "warning" => Colour::Yellow,
            _ => Colour::Cyan,
        };
        let _ = writeln!(
            out,
            "{} {} ({}, {})",
            painted(&severity.to_uppercase(), Some(colour)),
            painted(text(finding, "what"), Some(Colour::Bold)),
            finding["count"],
            text(finding, "kind")
        );
        let since = finding["since"].as_str().map(|since| format!(" Since {since}."));
        let _ = writeln!(out, "  {}.{}", text(finding, "why"), since.unwrap_or_default());
        for example in list(finding, "examples") {
            let name = example["run"].as_str().or_else(|| example["name"].as_str()).unwrap_or("this server");
            let _ = writeln!(out, "  - {name}: {}", text(example, "why"));
            if with_next {
                next(out, example, "next", "      ");
            }
        }
    }
}

fn next(out: &mut String, of: &Value, field: &str, indent: &str) {
    for step in list(of, field) {
        let advice = text(step, "advice");
        let _ = match step["command"].as_str() {
            Some(command) => writeln!(out, "{indent}{advice}: {}", painted(command, Some(Colour::Cyan))),
            None => writeln!(out, "{indent}{advice}"),
        };
    }
}

/// Formats the report about one run.
fn one(run: &Value) -> String {
    let mut out = String::new();
    let places: Vec<_> = list(run, "places").filter_map(Value::as_str).collect();
    let _ = writeln!(
        out,
        "{} of `{}` is {}, at version {} in {}",
        painted(text(run, "id"), Some(Colour::Bold)),
        text(run, "workflow"),
        text(run, "status"),
        run["version"],
        if places.is_empty() { "no place".to_owned() } else { places.join(", ") }
    );
    let _ = writeln!(out, "State: {}.", text(run, "state"));
    let _ = writeln!(out, "Next step: {}.", text(run, "next"));
    for (field, what) in [("nextAt", "The run is planned again"), ("deadline", "The run is cancelled")] {
        if let Some(at) = run[field].as_str() {
            let _ = writeln!(out, "{what} at {at}.");
        }
    }
    if let Some(owner) = run["owner"].as_object() {
        let lease_state = if owner["alive"] == true { "is alive" } else { "has expired" };
        let _ = writeln!(out, "Owner: process {}, which {lease_state}.", text(&run["owner"], "id"));
    }
    parts(&mut out, run);
    findings(&mut out, run, false);
    if list(run, "remedies").next().is_some() {
        let _ = writeln!(out, "{}", painted("Possible actions", Some(Colour::Bold)));
        next(&mut out, run, "remedies", "  ");
    }
    out
}

fn parts(out: &mut String, run: &Value) {
    for wait in list(run, "waits") {
        let signals: Vec<_> = list(wait, "signals").filter_map(Value::as_str).collect();
        let event = wait["event"].as_str().map(|event| format!("event `{event}`"));
        let children = wait["children"].as_u64().map(|many| format!("{many} children"));
        let signals = (!signals.is_empty()).then(|| format!("signal {}", signals.join(" or ")));
        let what: Vec<_> = [event, children, signals].into_iter().flatten().collect();
        let until = wait["until"].as_str().map(|until| format!(", until {until}")).unwrap_or_default();
        let (place, since) = (text(wait, "place"), text(wait, "since"));
        let _ = writeln!(out, "Waits at `{place}` for {} since {since}{until}.", what.join(", "));
    }
    for attempts in list(run, "attempts") {
        let at = attempts["at"].as_str().map(|at| format!(", next attempt at {at}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "Step `{}` has failed {} times{at}.",
            text(attempts, "transition"),
            attempts["failed"]
        );
    }
    for tried in list(run, "failures") {
        let (at, step) = (text(tried, "at"), text(tried, "transition"));
        let _ = writeln!(out, "  {at} `{step}`: {}", text(tried, "error"));
    }
    if let Some(crashes) = run["crashes"].as_u64().filter(|crashes| *crashes > 0) {
        let _ = writeln!(out, "{crashes} processes crashed while they executed the current step.");
    }
    let inbox: Vec<_> = list(run, "inbox").map(|message| text(message, "topic")).collect();
    if !inbox.is_empty() {
        let _ = writeln!(out, "Buffered inbox messages: {} ({}).", inbox.len(), inbox.join(", "));
    }
    let missing: Vec<_> = list(run, "missing").filter_map(Value::as_str).collect();
    if !missing.is_empty() {
        let _ = writeln!(out, "Missing in the responding process: {}.", missing.join(", "));
    }
}
