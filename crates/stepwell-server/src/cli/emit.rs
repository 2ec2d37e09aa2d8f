//! `event emit`, `token show` and `token resume`: verbs whose arguments are not the fields of one request.

use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::client::ApiRequest;
use super::{dry, everywhere, json_argument, opened};
use crate::exit::{Code, Failure};
use crate::server::runtime;
use crate::workflow;

/// Default source of events that are emitted from the command line.
const SOURCE: &str = "/stepwell/cli";

pub(super) fn with_verbs(command: Command) -> Command {
    let text =
        |name: &'static str, about: &'static str| Arg::new(name).long(name).value_name("TEXT").help(about);
    let data =
        |about: &'static str| Arg::new("data").value_name("JSON").allow_negative_numbers(true).help(about);
    let emit = everywhere(Command::new("emit"))
        .about("Emit an event, which triggers workflows and resolves waits")
        .arg(Arg::new("type").value_name("TYPE").help("Event type").required_unless_present("file"))
        .arg(data("Event data: JSON, `@FILE`, or `-` for standard input"))
        .arg(text("source", "Source of the event [default: /stepwell/cli]"))
        .arg(text(
            "id",
            "Id of the event; an event with the same source and id is accepted once [default: a new id]",
        ))
        .arg(text("subject", "Subject of the event, as its source names it"))
        .arg(
            Arg::new("file")
                .long("file")
                .value_name("FILE")
                .conflicts_with("type")
                .help("File with one CloudEvent or a list of them, as JSON; `-` reads standard input"),
        );
    let token = || {
        Arg::new("token-file").long("token-file").value_name("FILE").default_value("-").help(
            "File with the token, which is a secret and therefore no argument; `-` reads standard input",
        )
    };
    let show = everywhere(Command::new("show"))
        .about("Show what a flow waits for, without using up its token")
        .arg(token());
    let resume = everywhere(Command::new("resume"))
        .about("Answer the wait of a flow and use up its token")
        .arg(data("Answer: JSON, `@FILE`, or `-` for standard input"))
        .arg(text("outcome", "Outcome to choose, if the wait has several"))
        .arg(text("idempotency-key", "Idempotency key: a repeated answer gets the same response"))
        .arg(token().action(ArgAction::Set));
    command
        .mut_subcommand("event", |noun| noun.subcommand(emit))
        .mut_subcommand("token", |noun| noun.subcommand(show).subcommand(resume))
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let asking = match (noun, verb) {
        ("event", "emit") => emitting(matches),
        ("token", "show") => showing(matches),
        ("token", "resume") => resuming(matches),
        _ => return None,
    };
    Some(asking.and_then(|asking| runtime()?.block_on(asked(matches, asking))))
}

async fn asked(matches: &ArgMatches, asking: ApiRequest) -> Result<(), Failure> {
    let (client, shown) = opened(matches).await?;
    let answered = match shown.dry_run {
        true => dry(&asking).map(|()| Value::Null),
        false => match client.ask(asking).await {
            Ok(answered) => answered.json(),
            Err(failure) => Err(failure),
        },
    };
    client.close().await;
    shown.show(&answered?, &[])
}

fn option_value<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn emitting(matches: &ArgMatches) -> Result<ApiRequest, Failure> {
    let events = match option_value(matches, "file") {
        Some(file) => serde_json::from_str(&workflow::read(Path::new(file))?)
            .map_err(|error| Failure::new(Code::Invalid, format!("{file} is not valid JSON: {error}")))?,
        None => {
            let mut event = Map::new();
            let id =
                option_value(matches, "id").map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned);
            event.insert("specversion".to_owned(), "1.0".into());
            event.insert("type".to_owned(), option_value(matches, "type").unwrap_or_default().into());
            event.insert("source".to_owned(), option_value(matches, "source").unwrap_or(SOURCE).into());
            event.insert("id".to_owned(), id.into());
            if let Some(subject) = option_value(matches, "subject") {
                event.insert("subject".to_owned(), subject.into());
            }
            if let Some(data) = option_value(matches, "data") {
                event.insert("data".to_owned(), json_argument::json("JSON", data)?);
            }
            Value::Object(event)
        }
    };
    let kind =
        if events.is_array() { "application/cloudevents-batch+json" } else { "application/cloudevents+json" };
    let body = Some((kind.to_owned(), events.to_string().into_bytes()));
    Ok(ApiRequest {
        method: axum::http::Method::POST,
        path: "/v1/events".to_owned(),
        body,
        ..ApiRequest::default()
    })
}

fn token(matches: &ArgMatches) -> Result<String, Failure> {
    Ok(workflow::read(Path::new(option_value(matches, "token-file").unwrap_or("-")))?.trim().to_owned())
}

fn showing(matches: &ArgMatches) -> Result<ApiRequest, Failure> {
    let headers = vec![(axum::http::HeaderName::from_static("x-flow-token"), token(matches)?)];
    Ok(ApiRequest { headers, ..ApiRequest::get("/v1/flows/show") })
}

fn resuming(matches: &ArgMatches) -> Result<ApiRequest, Failure> {
    let mut fields = json!({ "token": token(matches)? });
    if let Some(data) = option_value(matches, "data") {
        fields["input"] = json_argument::json("JSON", data)?;
    }
    if let Some(outcome) = option_value(matches, "outcome") {
        fields["outcome"] = outcome.into();
    }
    let key = option_value(matches, "idempotency-key").map(str::to_owned);
    let key = key.map(|key| (axum::http::HeaderName::from_static("idempotency-key"), key));
    let body = Some(("application/json".to_owned(), fields.to_string().into_bytes()));
    Ok(ApiRequest {
        method: axum::http::Method::POST,
        path: "/v1/flows/resume".to_owned(),
        headers: key.into_iter().collect(),
        body,
    })
}
