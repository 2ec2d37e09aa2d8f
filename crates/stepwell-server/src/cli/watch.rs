//! `run wait` and `run watch`: wait until a run has ended, without output or with one line per checkpoint.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use http_body_util::BodyExt;
use serde_json::Value;

use super::client::{ApiRequest, Client};
use super::show::{Format, Shown};
use super::{everywhere, ids, opened, outcome, views};
use crate::exit::{Code, Failure};
use crate::output;
use crate::server::runtime;

/// Duration of one waiting request. Longer waits are several requests.
const AT_A_TIME: Duration = Duration::from_secs(30);

pub(super) fn with_verbs(command: Command) -> Command {
    let run = || Arg::new("run").value_name("RUN").required(true).help("Run id, or the beginning of it");
    let wait = Arg::new("for")
        .long("for")
        .value_name("DURATION")
        .help("Maximum time to wait, then exit code 8 [default: unlimited]");
    let waits =
        everywhere(Command::new("wait")).about("Wait until a run has completed, failed or been cancelled");
    let watches = everywhere(Command::new("watch"))
        .about("Show the checkpoints of a run as they are committed, until it has ended");
    command.mut_subcommand("run", |noun| {
        noun.subcommand(waits.arg(run()).arg(wait)).subcommand(watches.arg(run()))
    })
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    match (noun, verb) {
        ("run", "wait") => Some(runtime().and_then(|runtime| runtime.block_on(wait(matches)))),
        ("run", "watch") => Some(runtime().and_then(|runtime| runtime.block_on(watch(matches)))),
        _ => None,
    }
}

fn run_of(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("run").map_or("", String::as_str)
}

async fn wait(matches: &ArgMatches) -> Result<(), Failure> {
    let limit = matches.get_one::<String>("for").map(|text| super::duration(text)).transpose()?;
    let (client, shown) = opened(matches).await?;
    let waited = async {
        let run = ids::expand(&client, run_of(matches)).await?;
        let began = tokio::time::Instant::now();
        loop {
            let left = limit.map_or(AT_A_TIME, |limit| limit.saturating_sub(began.elapsed()).min(AT_A_TIME));
            let path = format!("/v1/runs/{run}?wait={}ms", left.as_millis());
            let answer = client.ask(ApiRequest::get(path)).await?.json()?;
            let is_over = matches!(answer["status"].as_str(), Some("completed" | "cancelled" | "failed"));
            if is_over || left.is_zero() {
                match views::of("showRun", &answer).filter(|_| shown.format() == Format::Table) {
                    Some(text) => output::print(&text)?,
                    None => shown.show(&answer, &[])?,
                }
                return outcome(&answer, true);
            }
        }
    };
    let waited = waited.await;
    client.close().await;
    waited
}

async fn watch(matches: &ArgMatches) -> Result<(), Failure> {
    let (client, shown) = opened(matches).await?;
    let watched = async {
        let run = ids::expand(&client, run_of(matches)).await?;
        follow(&client, &shown, &run).await
    };
    let watched = watched.await;
    client.close().await;
    watched
}

/// Follows a run. A lost connection is opened again after the last checkpoint seen.
async fn follow(client: &Client, shown: &Shown, run: &str) -> Result<(), Failure> {
    let mut last: Option<String> = None;
    loop {
        let mut asking = ApiRequest::get(format!("/v1/runs/{run}/events"));
        if let Some(last) = &last {
            asking.headers.push((axum::http::HeaderName::from_static("last-event-id"), last.clone()));
        }
        let mut body = client.stream(asking).await?;
        let mut text = String::new();
        while let Some(Ok(frame)) = body.frame().await {
            text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| data)));
            while let Some(end) = text.find("\n\n") {
                let event: String = text.drain(..end + 2).collect();
                if let Some(id) = line(&event, "id: ") {
                    last = Some(id.to_owned());
                }
                if let Some(done) = print_event(shown, &event)? {
                    return done;
                }
            }
        }
    }
}

/// Shows a value whenever it changes, until Ctrl-C or the end of the stream.
pub(super) async fn cell(client: &Client, shown: &Shown, asking: &ApiRequest) -> Result<(), Failure> {
    let mut body = client.stream(asking.clone()).await?;
    let mut text = String::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| data)));
        while let Some(end) = text.find("\n\n") {
            let event: String = text.drain(..end + 2).collect();
            let Some(data) = line(&event, "data: ") else { continue };
            match (shown.format(), line(&event, "id: ")) {
                (Format::Table, Some(revision)) => output::line(&format!("revision {revision:<6} {data}"))?,
                _ => output::line(data)?,
            }
        }
    }
    Err(Failure::new(Code::Unreachable, "the server closed the stream: run the command again"))
}

fn line<'a>(event: &'a str, name: &str) -> Option<&'a str> {
    event.lines().find_map(|line| line.strip_prefix(name))
}

/// Shows an event. Returns the program's result if the run has ended.
fn print_event(shown: &Shown, event: &str) -> Result<Option<Result<(), Failure>>, Failure> {
    let Some(data) = line(event, "data: ") else { return Ok(None) };
    let data: Value = serde_json::from_str(data).map_err(Failure::unexpected)?;
    match line(event, "event: ") {
        Some("checkpoint") if shown.format() == Format::Table => {
            let entry = &data["entry"];
            let entered: Vec<_> =
                entry["entered"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let into =
                if entered.is_empty() { String::new() } else { format!("into {}", entered.join(", ")) };
            let action = entry["action"].as_str().unwrap_or_default();
            output::line(format!("version {:<4} {action:<32} {into}", data["version"]).trim_end())?;
        }
        Some("checkpoint") => output::line(&data.to_string())?,
        Some("gone") => return Err(Failure::new(Code::NotFound, "the run no longer exists")),
        Some("status") => {
            let is_final = matches!(data["status"].as_str(), Some("completed" | "cancelled" | "failed"));
            if shown.format() == Format::Table {
                output::line(&format!("status {}", data["status"].as_str().unwrap_or_default()))?;
            }
            return Ok(is_final.then(|| outcome(&data, true)));
        }
        _ => {}
    }
    Ok(None)
}
