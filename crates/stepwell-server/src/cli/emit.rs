//! `event emit`, `token show` and `token resume`: what is put together from more than the fields of one request.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::client::Asking;
use super::{args, dry, everywhere, opened};
use crate::exit::{Code, Failure};
use crate::server::runtime;

/// What the source of an event is that somebody types.
const SOURCE: &str = "/stepwell/cli";

pub(super) fn with_verbs(command: Command) -> Command {
    let text =
        |name: &'static str, about: &'static str| Arg::new(name).long(name).value_name("TEXT").help(about);
    let data = |about: &'static str| Arg::new("data").value_name("JSON").help(about);
    let emit = everywhere(Command::new("emit"))
        .about("Emits an event: it starts workflows and wakes runs, once")
        .arg(Arg::new("type").value_name("TYPE").help("The event's name").required_unless_present("file"))
        .arg(data("What it brings: JSON, `@FILE`, or `-` for standard input"))
        .arg(text("source", "Where it comes from [default: /stepwell/cli]"))
        .arg(text(
            "id",
            "Its id at its source; the same source and id are the same event [default: a new one]",
        ))
        .arg(text("subject", "What it is about, at its source"))
        .arg(
            Arg::new("file")
                .long("file")
                .value_name("FILE")
                .conflicts_with("type")
                .help("CloudEvents as JSON, one or a list of them, instead; `-` reads standard input"),
        );
    let token = || {
        Arg::new("token-file")
            .long("token-file")
            .value_name("FILE")
            .default_value("-")
            .help("The file with the token; a token is a secret, and no argument")
    };
    let show = everywhere(Command::new("show"))
        .about("Says what a flow waits for, without using its token up")
        .arg(token());
    let resume = everywhere(Command::new("resume"))
        .about("Answers what a flow waits for; the token is used up")
        .arg(data("What is answered: JSON, `@FILE`, or `-` for standard input"))
        .arg(text("outcome", "Which of several outcomes is meant"))
        .arg(token().action(ArgAction::Set));
    let tokens = Command::new("token")
        .about("Tokens of flows: what they wait for, and their answers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(show)
        .subcommand(resume);
    command.mut_subcommand("event", |noun| noun.subcommand(emit)).subcommand(tokens)
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

async fn asked(matches: &ArgMatches, asking: Asking) -> Result<(), Failure> {
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

fn said<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

fn emitting(matches: &ArgMatches) -> Result<Asking, Failure> {
    let events = match said(matches, "file") {
        Some(file) => serde_json::from_str(&args::read(file)?)
            .map_err(|error| Failure::new(Code::Invalid, format!("{file} is not JSON: {error}")))?,
        None => {
            let mut event = Map::new();
            let id = said(matches, "id").map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned);
            event.insert("specversion".to_owned(), "1.0".into());
            event.insert("type".to_owned(), said(matches, "type").unwrap_or_default().into());
            event.insert("source".to_owned(), said(matches, "source").unwrap_or(SOURCE).into());
            event.insert("id".to_owned(), id.into());
            if let Some(subject) = said(matches, "subject") {
                event.insert("subject".to_owned(), subject.into());
            }
            if let Some(data) = said(matches, "data") {
                event.insert("data".to_owned(), args::any(data)?);
            }
            Value::Object(event)
        }
    };
    let kind =
        if events.is_array() { "application/cloudevents-batch+json" } else { "application/cloudevents+json" };
    let body = Some((kind.to_owned(), events.to_string().into_bytes()));
    Ok(Asking { method: axum::http::Method::POST, path: "/v1/events".to_owned(), body, ..Asking::default() })
}

fn token(matches: &ArgMatches) -> Result<String, Failure> {
    Ok(args::read(said(matches, "token-file").unwrap_or("-"))?.trim().to_owned())
}

fn showing(matches: &ArgMatches) -> Result<Asking, Failure> {
    let headers = vec![(axum::http::HeaderName::from_static("x-flow-token"), token(matches)?)];
    Ok(Asking { headers, ..Asking::get("/v1/flows/show") })
}

fn resuming(matches: &ArgMatches) -> Result<Asking, Failure> {
    let mut fields = json!({ "token": token(matches)? });
    if let Some(data) = said(matches, "data") {
        fields["input"] = args::any(data)?;
    }
    if let Some(outcome) = said(matches, "outcome") {
        fields["outcome"] = outcome.into();
    }
    let body = Some(("application/json".to_owned(), fields.to_string().into_bytes()));
    Ok(Asking {
        method: axum::http::Method::POST,
        path: "/v1/flows/resume".to_owned(),
        body,
        ..Asking::default()
    })
}
