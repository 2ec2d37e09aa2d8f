//! `upkeep heal` and `upkeep cleanup`: batch after batch until there is nothing left, with a word on how far it is.

use axum::http::Method;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::client::{Asking, Client};
use super::show::Shown;
use super::{dry, everywhere, opened};
use crate::exit::Failure;
use crate::output::spinner;
use crate::server::runtime;

pub(super) fn with_verbs(command: Command) -> Command {
    let heal = everywhere(Command::new("heal"))
        .about("Makes the shadow columns of a workflow what they should be, run by run")
        .arg(Arg::new("workflow").value_name("WORKFLOW").required(true).help("The workflow"))
        .arg(
            Arg::new("batch")
                .long("batch")
                .value_name("NUMBER")
                .default_value("100")
                .help("Runs and flows in a batch"),
        )
        .arg(
            Arg::new("from")
                .long("from")
                .value_name("CURSOR")
                .help("Go on where a heal that was interrupted has come to"),
        );
    let cleanup =
        everywhere(Command::new("cleanup")).about("Tidies up what has expired, until nothing is left");
    let upkeep = Command::new("upkeep")
        .about("What the server does now and then, done now")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(heal)
        .subcommand(cleanup);
    command.subcommand(upkeep)
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let is_heal = match (noun, verb) {
        ("upkeep", "heal") => true,
        ("upkeep", "cleanup") => false,
        _ => return None,
    };
    Some(runtime().and_then(|runtime| {
        runtime.block_on(async {
            let (client, shown) = opened(matches).await?;
            let done =
                if is_heal { heal(&client, &shown, matches).await } else { clean_up(&client, &shown).await };
            client.close().await;
            shown.show(&done?, &[])
        })
    }))
}

fn posting(path: &str, body: Option<&Value>) -> Asking {
    let body = body.map(|body| ("application/json".to_owned(), body.to_string().into_bytes()));
    Asking { method: Method::POST, path: path.to_owned(), body, ..Asking::default() }
}

/// Adds the counts of a batch to those before.
fn add(sums: &mut Map<String, Value>, batch: &Value) {
    for (name, count) in batch.as_object().into_iter().flatten() {
        if let Some(count) = count.as_u64() {
            let before = sums.get(name).and_then(Value::as_u64).unwrap_or(0);
            sums.insert(name.clone(), (before + count).into());
        }
    }
}

async fn heal(client: &Client, shown: &Shown, matches: &ArgMatches) -> Result<Value, Failure> {
    let said = |name: &str| matches.get_one::<String>(name).cloned();
    let batch: u32 = said("batch").and_then(|batch| batch.parse().ok()).unwrap_or(100);
    let mut body = json!({ "workflow": said("workflow"), "batch": batch });
    if let Some(from) = said("from") {
        body["cursor"] = from.into();
    }
    if shown.dry_run {
        return dry(&posting("/v1/upkeep/heal", Some(&body))).map(|()| Value::Null);
    }
    let (mut sums, bar) = (Map::new(), spinner("runs healed"));
    loop {
        let done = client.ask(posting("/v1/upkeep/heal", Some(&body))).await?.json()?;
        add(&mut sums, &done);
        bar.set_position(sums.get("runs").and_then(Value::as_u64).unwrap_or(0));
        match done["nextCursor"].as_str() {
            Some(next) => body["cursor"] = next.into(),
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(Value::Object(sums))
}

async fn clean_up(client: &Client, shown: &Shown) -> Result<Value, Failure> {
    if shown.dry_run {
        return dry(&posting("/v1/upkeep/cleanup", None)).map(|()| Value::Null);
    }
    let (mut sums, bar) = (Map::new(), spinner("rows tidied up"));
    loop {
        let done = client.ask(posting("/v1/upkeep/cleanup", None)).await?.json()?;
        add(&mut sums, &done);
        bar.set_position(sums.values().filter_map(Value::as_u64).sum());
        if done["more"] != true {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(Value::Object(sums))
}
