//! `run start-many`: starts a run for each line of a file.

use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::client::{ApiRequest, Client};
use super::show::{Format, Shown};
use super::{everywhere, opened};
use crate::exit::{Code, Failure};
use crate::output;
use crate::server::runtime;

/// Maximum number of starts, and approximate maximum number of bytes, in one request.
const STARTS: usize = 1_000;
const BYTES: usize = 8 * 1024 * 1024;
/// Number of refused starts that are printed.
const SHOWN: usize = 10;

pub(super) fn with_verbs(command: Command) -> Command {
    let verb = everywhere(Command::new("start-many"))
        .about("Start a run for each line of a file")
        .after_help("Request: POST /v1/runs/batch, with up to 1,000 starts each")
        .arg(Arg::new("workflow").value_name("WORKFLOW").required(true).help("Name of the workflow to start"))
        .arg(Arg::new("input").long("input").value_name("FILE").default_value("-").help(
            "Inputs of the runs as NDJSON, one JSON value per line: `@FILE`, or `-` for standard input",
        ))
        .arg(Arg::new("key-field").long("key-field").value_name("NAME").help(
            "Field of each input that is the idempotency key of its start: a repeated command starts only what is missing",
        ));
    command.mut_subcommand("run", |noun| noun.subcommand(verb))
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    ((noun, verb) == ("run", "start-many"))
        .then(|| runtime().and_then(|runtime| runtime.block_on(start(matches))))
}

async fn start(matches: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let file = text("input").unwrap_or("-");
    let lines = crate::workflow::read(Path::new(file.strip_prefix('@').unwrap_or(file)))?;
    let starts = starts(text("workflow").unwrap_or_default(), &lines, text("key-field"))?;
    let (client, shown) = opened(matches).await?;
    let done = send(&client, &shown, starts).await;
    client.close().await;
    done
}

/// Converts the lines to starts.
fn starts(workflow: &str, lines: &str, key_field: Option<&str>) -> Result<Vec<Value>, Failure> {
    let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let starts = lines.map(|(number, line)| {
        let wrong = |why: String| Failure::new(Code::Invalid, format!("line {}: {why}", number + 1));
        let input: Value = serde_json::from_str(line).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let mut start = json!({"workflow": workflow, "input": input});
        if let Some(field) = key_field {
            start["key"] = match &start["input"][field] {
                Value::String(key) if !key.is_empty() => key.as_str().into(),
                Value::Number(key) => key.to_string().into(),
                other => {
                    let why =
                        format!("`{field}` must be a text or a number, because it is the key (got {other})");
                    return Err(wrong(why));
                }
            };
        }
        Ok(start)
    });
    starts.collect()
}

async fn send(client: &Client, shown: &Shown, starts: Vec<Value>) -> Result<(), Failure> {
    if shown.dry_run {
        return output::line(&format!("POST /v1/runs/batch, {} starts", starts.len()));
    }
    let (mut items, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for start in starts {
        let size = start.to_string().len();
        if batch.len() == STARTS || (bytes + size > BYTES && !batch.is_empty()) {
            items.extend(ask(client, std::mem::take(&mut batch), items.len()).await?);
            bytes = 0;
        }
        bytes += size;
        batch.push(start);
    }
    if !batch.is_empty() {
        items.extend(ask(client, batch, items.len()).await?);
    }
    let failed: Vec<_> = items.iter().enumerate().filter(|(_, item)| item.get("problem").is_some()).collect();
    let created = items.iter().filter(|item| item["created"] == true).count();
    let existing = items.len() - created - failed.len();
    for (number, item) in failed.iter().take(SHOWN) {
        let why = item.pointer("/problem/detail").and_then(Value::as_str).unwrap_or_default();
        output::print_message(&format!("start {} was refused: {why}", number + 1));
    }
    let failed = failed.len();
    let mut result = json!({"created": created, "existing": existing, "failed": failed});
    if shown.format() != Format::Table {
        result["items"] = items.into();
    }
    shown.show(&result, &[])?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::new(Code::Failed, format!("{failed} starts were refused"))),
    }
}

/// Sends a batch of starts. An error names how many starts have been answered before.
async fn ask(client: &Client, starts: Vec<Value>, answered: usize) -> Result<Vec<Value>, Failure> {
    let body = json!({"starts": starts}).to_string().into_bytes();
    let request = ApiRequest {
        method: axum::http::Method::POST,
        path: "/v1/runs/batch".to_owned(),
        body: Some(("application/json".to_owned(), body)),
        ..ApiRequest::default()
    };
    let answer = client.ask(request).await;
    if answer.is_err() && answered > 0 {
        output::print_message(&format!("{answered} starts were answered before this error"));
    }
    let mut answer = answer?.json()?;
    Ok(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}
