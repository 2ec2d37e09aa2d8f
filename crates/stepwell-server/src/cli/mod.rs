//! The verbs that use a server or a database. Most are one API operation each, with the arguments of that operation.

mod apply;
mod args;
mod bulk;
mod choice;
pub(crate) mod client;
mod doctor;
mod emit;
mod ids;
pub(crate) mod json_argument;
mod keys;
mod maintenance;
mod show;
mod start_many;
mod table;
mod verbs;
mod views;
mod watch;

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use stepwell::core::time::{duration_ms, missing_unit};

use crate::exit::{Code, Failure};
use crate::output::print_message;
use crate::server::runtime;
use args::Operation;
use client::{ApiRequest, Client, Target};
use show::{Format, Shown};
use verbs::{NOUNS, VERBS, Verb};

/// Number of rows of a page without `--limit`.
const PAGE: usize = 50;

/// Adds the verbs of this module to the program's commands.
pub(crate) fn with_verbs(mut command: Command, contract: &Value) -> Command {
    for (noun, about) in NOUNS {
        if command.find_subcommand(noun).is_none() {
            let noun =
                Command::new(*noun).about(*about).subcommand_required(true).arg_required_else_help(true);
            command = command.subcommand(noun);
        }
    }
    for verb in VERBS {
        let operation = Operation::of(contract, verb.operation);
        let operation =
            operation.unwrap_or_else(|| unreachable!("the contract has no operation `{}`", verb.operation));
        let mut added = operation.command(everywhere(Command::new(verb.verb)));
        if is_run_show(verb) {
            added = added.arg(earlier());
        }
        command = command.mut_subcommand(verb.noun, |noun| noun.subcommand(added));
    }
    let command = apply::with_verbs(watch::with_verbs(command));
    let command = start_many::with_verbs(bulk::with_verbs(command, contract));
    doctor::with_verbs(maintenance::with_verbs(keys::with_verbs(emit::with_verbs(command)), contract))
}

/// Id of the argument `--version`, as `showRunVersion` expects it.
const VERSION: &str = "Path:version";

fn is_run_show(verb: &Verb) -> bool {
    (verb.noun, verb.verb) == ("run", "show")
}

/// Returns the argument `--version` of `run show`. With it, the verb calls `showRunVersion`.
fn earlier() -> Arg {
    Arg::new(VERSION).long("version").value_name("NUMBER").help("Show the state of the run at this version")
}

/// Adds the connection and output options, which every verb has.
fn everywhere(command: Command) -> Command {
    // The verb's own arguments must not appear under the headings of these options.
    Shown::augment_args(Target::augment_args(command)).next_help_heading(clap::builder::Resettable::Reset)
}

/// Runs the command if it is one of these verbs; otherwise returns `None`.
pub(crate) fn run(matches: &ArgMatches, contract: &Value) -> Option<Result<(), Failure>> {
    let (noun, matches) = matches.subcommand()?;
    if let Some(done) = doctor::run(noun, matches) {
        return Some(done);
    }
    let (verb, matches) = matches.subcommand()?;
    let done = watch::run(noun, verb, matches)
        .or_else(|| apply::run(noun, verb, matches))
        .or_else(|| emit::run(noun, verb, matches))
        .or_else(|| keys::run(noun, verb, matches))
        .or_else(|| maintenance::run(noun, verb, matches))
        .or_else(|| start_many::run(noun, verb, matches))
        .or_else(|| bulk::run(noun, verb, matches, contract));
    if done.is_some() {
        return done;
    }
    let verb = VERBS.iter().find(|known| known.noun == noun && known.verb == verb)?;
    let is_earlier = is_run_show(verb) && matches.contains_id(VERSION);
    let operation = if is_earlier { "showRunVersion" } else { verb.operation };
    let operation = Operation::of(contract, operation)?;
    Some(runtime().and_then(|runtime| runtime.block_on(ask(verb, &operation, matches))))
}

async fn ask(verb: &Verb, operation: &Operation, matches: &ArgMatches) -> Result<(), Failure> {
    let (client, shown) = opened(matches).await?;
    let done = asked(verb, operation, matches, &client, &shown).await;
    client.close().await;
    done
}

/// Reads the connection and output options, and opens the client.
async fn opened(matches: &ArgMatches) -> Result<(Client, Shown), Failure> {
    let target = Target::from_arg_matches(matches).map_err(Failure::unexpected)?;
    let shown = Shown::from_arg_matches(matches).map_err(Failure::unexpected)?;
    Ok((target.client().await?, shown))
}

async fn asked(
    verb: &Verb,
    operation: &Operation,
    matches: &ArgMatches,
    client: &Client,
    shown: &Shown,
) -> Result<(), Failure> {
    let whole = ids::expanded(client, operation.run_ids(matches)).await?;
    let asking = operation.asking(matches, &whole)?;
    if shown.dry_run && !operation.has_dry_run() && asking.method != axum::http::Method::GET {
        return dry(&asking);
    }
    if verb.needs_confirmation
        && !shown.yes
        && !is_sure(&format!("{} {} {}", verb.noun, verb.verb, asking.path))?
    {
        return Err(Failure::new(Code::Conflict, "not confirmed: nothing was changed"));
    }
    if operation.is_stream {
        return watch::cell(client, shown, &asking).await;
    }
    let bar = verb.is_long.then(|| crate::output::busy(verb.verb));
    let answered = client.ask(asking.clone()).await;
    bar.iter().for_each(indicatif::ProgressBar::finish_and_clear);
    let answered = answered?;
    if let Some(text) = answered.text() {
        return crate::output::print(&text);
    }
    let mut answer = answered.json()?;
    if operation.is_page && shown.all {
        answer = every_page(client, &asking, answer, None).await?;
    } else if verb.operation == "listRuns" {
        // A listing of runs may end a page early.
        answer = filled_page(client, &asking, answer).await?;
    }
    let has_waited = asking.path.contains("wait=");
    let outcome = outcome(&answer, has_waited);
    if answer.is_null() {
        talk(shown, &operation.sentence(verb.done, matches, &whole));
        return Ok(());
    }
    present(verb, operation, client, shown, answer).await?;
    outcome
}

/// Prints a response: for people in the form that fits the operation, for programs as it is.
async fn present(
    verb: &Verb,
    operation: &Operation,
    client: &Client,
    shown: &Shown,
    mut answer: Value,
) -> Result<(), Failure> {
    let is_table = shown.format() == Format::Table;
    if let Some(text) = views::of(&operation.id, &answer).filter(|_| is_table) {
        return crate::output::print(&text);
    }
    let items = answer.get_mut("items").and_then(Value::as_array_mut);
    if let Some(items) = items.filter(|_| is_table && crate::output::is_terminal()) {
        ids::shorten(client, verb.noun, items).await;
    }
    shown.show(&answer, verb.columns)?;
    if is_table && answer["items"].as_array().is_some_and(Vec::is_empty) && answer["nextCursor"].is_null() {
        talk(shown, &format!("No {}.", verb.rows));
    }
    if let Some(next) = answer["nextCursor"].as_str().filter(|_| operation.is_page) {
        talk(
            shown,
            &format!(
                "more results follow (cursor {next}): use `--all` for all pages, or `--limit` for a larger page"
            ),
        );
    }
    Ok(())
}

/// Prints a message, unless the caller wants only data.
fn talk(shown: &Shown, text: &str) {
    if !shown.quiet {
        print_message(text);
    }
}

/// Maps the status of a run that was waited for to the exit code.
fn outcome(answer: &Value, has_waited: bool) -> Result<(), Failure> {
    let run = answer.get("run").filter(|run| run.is_object()).unwrap_or(answer);
    if !has_waited {
        return Ok(());
    }
    match run["status"].as_str() {
        Some("failed") => {
            let why = run.pointer("/error/message").and_then(Value::as_str).unwrap_or("no error message");
            Err(Failure::new(Code::Failed, format!("the run failed: {why}")))
        }
        Some("cancelled") => Err(Failure::new(Code::Failed, "the run was cancelled")),
        Some("completed") | None => Ok(()),
        Some(status) => {
            Err(Failure::new(Code::TimedOut, format!("the wait timed out; the run is still {status}")))
        }
    }
}

/// Reads further pages until there are as many rows as the first page may have.
async fn filled_page(client: &Client, asking: &ApiRequest, first: Value) -> Result<Value, Failure> {
    let query = asking.path.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let limit = pairs.find(|(name, _)| name == "limit").and_then(|(_, limit)| limit.parse().ok());
    every_page(client, asking, first, Some(limit.unwrap_or(PAGE))).await
}

/// Reads all further pages, or as many as are needed for so many rows.
async fn every_page(
    client: &Client,
    asking: &ApiRequest,
    first: Value,
    most: Option<usize>,
) -> Result<Value, Failure> {
    let mut all = first;
    while let Some(next) = all["nextCursor"].as_str().map(str::to_owned) {
        let rows = all["items"].as_array().map_or(0, Vec::len);
        let missing = most.map(|most| most.saturating_sub(rows));
        if missing == Some(0) {
            return Ok(all);
        }
        let more = ApiRequest::get(next_page(&asking.path, &next, missing));
        let mut page = client.ask(more).await?.json()?;
        if let (Some(items), Some(more)) = (all["items"].as_array_mut(), page["items"].as_array_mut()) {
            items.append(more);
        }
        if let Some(more) = page["unreadable"].as_array_mut() {
            match all["unreadable"].as_array_mut() {
                Some(rows) => rows.append(more),
                None => all["unreadable"] = page["unreadable"].take(),
            }
        }
        all["nextCursor"] = page["nextCursor"].take();
    }
    if let Some(fields) = all.as_object_mut() {
        fields.remove("nextCursor");
    }
    Ok(all)
}

/// Encodes text for a query string.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Returns the path of the page at a cursor, with at most so many rows.
fn next_page(path: &str, cursor: &str, most: Option<usize>) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut next = form_urlencoded::Serializer::new(String::new());
    next.extend_pairs(
        form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name != "limit" || most.is_none()),
    );
    if let Some(most) = most {
        next.append_pair("limit", &most.to_string());
    }
    next.append_pair("cursor", cursor);
    format!("{path}?{}", next.finish())
}

/// Prints the request that would be sent.
fn dry(asking: &ApiRequest) -> Result<(), Failure> {
    let body =
        asking.body.as_ref().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
    crate::output::line(format!("{} {} {body}", asking.method, asking.path).trim_end())
}

/// Asks for confirmation at a terminal. Without a terminal the answer is yes, so that scripts do not hang.
fn is_sure(what: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    let _ = write!(std::io::stderr(), "{what}: are you sure? [y/N] ");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::unexpected)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Parses a duration such as `30s` or `PT30S`.
pub(crate) fn duration(text: &str) -> Result<Duration, Failure> {
    let given = Value::String(text.to_owned());
    let ms = duration_ms(&given);
    let wrong = || {
        let why = format!("`{text}` is not a duration, such as `30s` or `PT30S`");
        Failure::new(Code::Invalid, missing_unit("", &given).unwrap_or(why))
    };
    ms.map(Duration::from_millis).ok_or_else(wrong)
}
