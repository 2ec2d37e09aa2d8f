//! `doctor`: what is stuck and why, of everything or of one run, for somebody at 3 a.m.

use std::fmt::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::client::{Asking, Client};
use super::show::{Format, Shown, bold, coloured};
use super::{encoded, everywhere, opened, whole_id};
use crate::exit::{Code, Failure};
use crate::output;
use crate::server::runtime;

/// The options that the API takes as they are: the name, what it is, and what it does.
const OPTIONS: [(&str, &str, &str); 5] = [
    ("limit", "NUMBER", "Rows of each kind that are looked at at most [default: 200]"),
    ("examples", "NUMBER", "Examples of each finding [default: 5]"),
    ("late", "DURATION", "What is due for longer than this is late [default: 1m]"),
    ("long", "DURATION", "A step that takes longer than this takes long [default: 1h]"),
    ("old", "DURATION", "Who waits for longer than this waits for very long [default: 30d]"),
];

const AFTER: &str = "Ends with 0 if nothing is stuck, and with 7 if there is a finding of severity `error`.

Examples:
  stepwell doctor                       what is stuck, and the command that repairs each
  stepwell doctor 01a1e88c              where this run stands, and what would happen next
  stepwell doctor --deep                read everything, and name every row that cannot be read
  stepwell doctor --json | jq '.findings[] | {kind, count}'";

pub(super) fn with_verbs(command: Command) -> Command {
    let run = Arg::new("run").value_name("RUN").help("Explain this run; its id, or the beginning of it");
    let mut doctor = everywhere(Command::new("doctor"))
        .about("Explains what is stuck and why, and says what to do about it")
        .after_help(AFTER)
        .arg(run);
    for (name, value, about) in OPTIONS {
        doctor = doctor.arg(Arg::new(name).long(name).value_name(value).help(about));
    }
    let deep = Arg::new("deep").long("deep").action(ArgAction::SetTrue);
    let deep = deep.help("Read everything, to find what cannot be: that takes as long as there is much");
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
        Format::Table if found.get("stands").is_some() => output::print(&one(&found))?,
        Format::Table => output::print(&all(&found))?,
        _ => shown.show(&found, &[])?,
    }
    told(&found, &shown)
}

async fn asked(client: &Client, matches: &ArgMatches) -> Result<Value, Failure> {
    let mut path = match matches.get_one::<String>("run") {
        Some(run) => format!("/v1/runs/{}/doctor", whole_id(client, run).await?),
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
    client.ask(Asking::get(path)).await?.json()
}

/// Something that does not go on by itself is how the program ends.
fn told(found: &Value, shown: &Shown) -> Result<(), Failure> {
    if found["healthy"] != false {
        return Ok(());
    }
    let errors = found["findings"].as_array().into_iter().flatten();
    let errors = errors.filter(|finding| finding["severity"] == "error").count();
    let message = if shown.quiet {
        String::new()
    } else {
        format!("findings that do not go away by themselves: {errors}")
    };
    Err(Failure::new(Code::Failed, message))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// What is stuck, in sections.
fn all(found: &Value) -> String {
    let mut out = String::new();
    findings(&mut out, found, true);
    if list(found, "findings").next().is_none() {
        let _ = writeln!(out, "{}", coloured("Nothing is stuck.", 32));
    }
    let _ = writeln!(out, "\n{}", bold("Processes"));
    for process in list(found, "processes") {
        let lives = if process["lives"] == true { "lives" } else { "is dead" };
        let this = if process["this"] == true { " (this one)" } else { "" };
        let until =
            process["livesUntil"].as_str().map(|until| format!(", by its last heartbeat until {until}"));
        let _ = writeln!(out, "  {} {lives}{this}{}", text(process, "id"), until.unwrap_or_default());
    }
    match (found["maxRuns"].as_u64(), found["room"].as_u64()) {
        (Some(0), _) | (None, _) => {
            let _ = writeln!(out, "  whoever answers works on no runs itself");
        }
        (Some(most), room) => {
            let _ = writeln!(out, "  whoever answers has room for {} of {most} runs", room.unwrap_or(0));
        }
    }
    if let Some(ahead) = found["clockAheadMs"].as_i64() {
        let _ = writeln!(out, "  its clock is {ahead} ms ahead of its computer's");
    }
    if let Some(store) = found["store"].as_object() {
        let _ = writeln!(out, "\n{}", bold("Store"));
        for (name, value) in store {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = writeln!(out, "  {name:18} {value}");
        }
    }
    let _ = writeln!(out, "\n{}", bold("Looked at"));
    for looked in list(found, "looked") {
        let rest = if looked["all"] == true { "" } else { ", and there are more: `--limit`" };
        let _ = writeln!(out, "  {:>6} {}{rest}", looked["rows"].to_string(), text(looked, "at"));
    }
    out
}

fn findings(out: &mut String, found: &Value, with_next: bool) {
    for finding in list(found, "findings") {
        let severity = text(finding, "severity");
        let code = match severity {
            "error" => 31,
            "warning" => 33,
            _ => 36,
        };
        let _ = writeln!(
            out,
            "{} {} ({}, {})",
            coloured(&severity.to_uppercase(), code),
            bold(text(finding, "what")),
            finding["count"],
            text(finding, "kind")
        );
        let since = finding["since"].as_str().map(|since| format!(" Since {since}."));
        let _ = writeln!(out, "  {}.{}", text(finding, "why"), since.unwrap_or_default());
        for example in list(finding, "examples") {
            let name = example["run"].as_str().or_else(|| example["name"].as_str()).unwrap_or("here");
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
            Some(command) => writeln!(out, "{indent}{advice}: {}", coloured(command, 36)),
            None => writeln!(out, "{indent}{advice}"),
        };
    }
}

/// One run, as a story.
fn one(run: &Value) -> String {
    let mut out = String::new();
    let places: Vec<_> = list(run, "places").filter_map(Value::as_str).collect();
    let _ = writeln!(
        out,
        "{} of `{}` is {}, at version {} in {}",
        bold(text(run, "id")),
        text(run, "workflow"),
        text(run, "status"),
        run["version"],
        if places.is_empty() { "no place".to_owned() } else { places.join(", ") }
    );
    let _ = writeln!(out, "Where it stands: {}.", text(run, "stands"));
    let _ = writeln!(out, "What comes next: {}.", text(run, "next"));
    for (field, what) in [("nextAt", "It is looked at"), ("deadline", "It is cancelled")] {
        if let Some(at) = run[field].as_str() {
            let _ = writeln!(out, "{what} at {at}.");
        }
    }
    if let Some(owner) = run["owner"].as_object() {
        let lives = if owner["lives"] == true { "lives" } else { "is dead" };
        let _ = writeln!(out, "Process {} works on it, which {lives}.", text(&run["owner"], "id"));
    }
    parts(&mut out, run);
    findings(&mut out, run, false);
    if list(run, "remedies").next().is_some() {
        let _ = writeln!(out, "{}", bold("What can be done"));
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
        let _ = writeln!(out, "It waits at `{place}` for {} since {since}{until}.", what.join(", "));
    }
    for tries in list(run, "tries") {
        let at = tries["at"].as_str().map(|at| format!(", tried again at {at}")).unwrap_or_default();
        let _ =
            writeln!(out, "Step `{}` has failed {} times{at}.", text(tries, "transition"), tries["failed"]);
    }
    for tried in list(run, "failures") {
        let (at, step) = (text(tried, "at"), text(tried, "transition"));
        let _ = writeln!(out, "  {at} `{step}`: {}", text(tried, "error"));
    }
    if let Some(deaths) = run["deaths"].as_u64().filter(|deaths| *deaths > 0) {
        let _ = writeln!(out, "{deaths} processes died under the step that is tried.");
    }
    let kept: Vec<_> = list(run, "kept").map(|kept| text(kept, "topic")).collect();
    if !kept.is_empty() {
        let _ = writeln!(out, "Its inbox keeps {}: {}.", kept.len(), kept.join(", "));
    }
    let missing: Vec<_> = list(run, "missing").filter_map(Value::as_str).collect();
    if !missing.is_empty() {
        let _ = writeln!(out, "Whoever answers lacks {}.", missing.join(", "));
    }
}
