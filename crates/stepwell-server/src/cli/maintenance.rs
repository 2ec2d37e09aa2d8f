//! `maintenance heal` and `maintenance cleanup`: call the API in batches until nothing is left, and show the progress.

use axum::http::Method;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use super::args::Operation;
use super::client::{ApiRequest, Client};
use super::show::Shown;
use super::{dry, everywhere, ids, opened};
use crate::exit::Failure;
use crate::output::spinner;
use crate::server::runtime;

pub(super) fn with_verbs(command: Command, contract: &Value) -> Command {
    let heal_columns = Operation::of(contract, "healColumns");
    let statuses = heal_columns.map(|operation| operation.choices("status")).unwrap_or_default();
    let heal =
        everywhere(Command::new("heal"))
            .about("Heal the shadow columns of a workflow's runs and flows")
            .arg(Arg::new("workflow").value_name("WORKFLOW").required(true).help("Name of the workflow"))
            .arg(
                Arg::new("status")
                    .long("status")
                    .value_name("STATUS")
                    .value_parser(statuses)
                    .help("Heal only runs with this status"),
            )
            .arg(Arg::new("parent").long("parent").value_name("RUN").help("Heal only children of this run"))
            .arg(Arg::new("where").long("where").value_name("CONDITION").action(ArgAction::Append).help(
                "Heal only runs and flows whose shadow column matches, such as `city=Bonn` or `total>=10`",
            ))
            .arg(
                Arg::new("batch")
                    .long("batch")
                    .value_name("NUMBER")
                    .default_value("100")
                    .help("Runs and flows per batch"),
            )
            .arg(
                Arg::new("from")
                    .long("from")
                    .value_name("CURSOR")
                    .help("Continue an interrupted heal at this cursor"),
            );
    let cleanup = everywhere(Command::new("cleanup")).about("Clean up expired data until none is left");
    let maintenance = Command::new("maintenance")
        .about("Heal shadow columns and clean up expired data")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(heal)
        .subcommand(cleanup);
    command.subcommand(maintenance)
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let is_heal = match (noun, verb) {
        ("maintenance", "heal") => true,
        ("maintenance", "cleanup") => false,
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

fn posting(path: &str, body: Option<&Value>) -> ApiRequest {
    let body = body.map(|body| ("application/json".to_owned(), body.to_string().into_bytes()));
    ApiRequest { method: Method::POST, path: path.to_owned(), body, ..ApiRequest::default() }
}

/// Adds the counts of a batch to the sums.
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
    for (field, value) in [("cursor", said("from")), ("status", said("status"))] {
        if let Some(value) = value {
            body[field] = value.into();
        }
    }
    if let Some(parent) = said("parent") {
        body["parent"] = ids::expand(client, &parent).await?.into();
    }
    if let Some(conditions) = matches.get_many::<String>("where") {
        body["where"] = conditions.cloned().collect();
    }
    if shown.dry_run {
        return dry(&posting("/v1/maintenance/heal", Some(&body))).map(|()| Value::Null);
    }
    let (mut sums, bar) = (Map::new(), spinner("runs healed"));
    loop {
        let done = client.ask(posting("/v1/maintenance/heal", Some(&body))).await?.json()?;
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
        return dry(&posting("/v1/maintenance/cleanup", None)).map(|()| Value::Null);
    }
    let (mut sums, bar) = (Map::new(), spinner("items cleaned up"));
    loop {
        let done = client.ask(posting("/v1/maintenance/cleanup", None)).await?.json()?;
        add(&mut sums, &done);
        bar.set_position(sums.values().filter_map(Value::as_u64).sum());
        if done["more"] != true {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(Value::Object(sums))
}
