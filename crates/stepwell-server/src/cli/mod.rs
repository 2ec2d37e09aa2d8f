//! The verbs that ask a server, or work on a store: each is an operation of the API, and its arguments are the operation's.

mod apply;
mod args;
mod client;
mod doctor;
mod emit;
mod show;
mod upkeep;
mod verbs;
mod watch;

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use stepwell::core::time::duration_ms;

use crate::exit::{Code, Failure};
use crate::output::talk;
use crate::server::runtime;
use args::Operation;
use client::{Asking, Client, Target};
use show::Shown;
use verbs::{NOUNS, VERBS, Verb};

/// Pages of runs that are looked through for one whose id was cut short.
const PAGES: usize = 10;

/// The program's commands, with these added.
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
        let operation = operation.unwrap_or_else(|| unreachable!("`{}` is an operation", verb.operation));
        let mut added = operation.command(everywhere(Command::new(verb.verb)));
        if is_run_show(verb) {
            added = added.arg(earlier());
        }
        command = command.mut_subcommand(verb.noun, |noun| noun.subcommand(added));
    }
    doctor::with_verbs(upkeep::with_verbs(emit::with_verbs(apply::with_verbs(watch::with_verbs(command)))))
}

/// The argument of the operation that shows an earlier state.
const VERSION: &str = "Path:version";

fn is_run_show(verb: &Verb) -> bool {
    (verb.noun, verb.verb) == ("run", "show")
}

/// `run show --version N` is another operation.
fn earlier() -> Arg {
    Arg::new(VERSION).long("version").value_name("NUMBER").help("Show the state that it had at this version")
}

/// The verb with the arguments that every verb has: who is asked, and how the answer is shown.
fn everywhere(command: Command) -> Command {
    // What a verb itself takes is not under their headings.
    Shown::augment_args(Target::augment_args(command)).next_help_heading(clap::builder::Resettable::Reset)
}

/// Does what the command line says, if it is one of these verbs.
pub(crate) fn run(matches: &ArgMatches, contract: &Value) -> Option<Result<(), Failure>> {
    let (noun, matches) = matches.subcommand()?;
    if let Some(done) = doctor::run(noun, matches) {
        return Some(done);
    }
    let (verb, matches) = matches.subcommand()?;
    let done = watch::run(noun, verb, matches)
        .or_else(|| apply::run(noun, verb, matches))
        .or_else(|| emit::run(noun, verb, matches))
        .or_else(|| upkeep::run(noun, verb, matches));
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

/// Who is asked, and how the answer is shown.
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
    let mut whole = Vec::new();
    for (id, given) in operation.runs(matches) {
        whole.push((id, whole_id(client, given).await?));
    }
    let asking = operation.asking(matches, &whole)?;
    if shown.dry_run && !operation.has_dry_run() && asking.method != axum::http::Method::GET {
        return dry(&asking);
    }
    if verb.asks && !shown.yes && !is_sure(&format!("{} {} {}", verb.noun, verb.verb, asking.path))? {
        return Err(Failure::new(Code::Conflict, "nothing was done"));
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
        answer = every_page(client, &asking, answer).await?;
    }
    shown.show(&answer, verb.columns)?;
    if let Some(next) = answer["nextCursor"].as_str().filter(|_| operation.is_page && !shown.quiet) {
        talk(&format!("there are more (from {next} on): `--all` shows them, `--limit` more of them"));
    }
    outcome(&answer, asking.path.contains("wait="))
}

/// What a run that was waited for came to is how the program ends.
fn outcome(answer: &Value, has_waited: bool) -> Result<(), Failure> {
    let run = answer.get("run").filter(|run| run.is_object()).unwrap_or(answer);
    if !has_waited {
        return Ok(());
    }
    match run["status"].as_str() {
        Some("failed") => {
            let why = run.pointer("/error/message").and_then(Value::as_str).unwrap_or("it stands still");
            Err(Failure::new(Code::Failed, format!("the run has failed: {why}")))
        }
        Some("cancelled") => Err(Failure::new(Code::Failed, "the run was cancelled")),
        Some("completed") | None => Ok(()),
        Some(status) => Err(Failure::new(Code::TimedOut, format!("the run is still {status}"))),
    }
}

/// The whole id of a run that was named by its beginning.
async fn whole_id(client: &Client, given: &str) -> Result<String, Failure> {
    if given.len() >= 32 {
        return Ok(given.to_owned());
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..PAGES {
        let page = client.ask(Asking::get(format!("/v1/runs?limit=200{cursor}"))).await?.json()?;
        let ids = page["items"].as_array().into_iter().flatten().filter_map(|run| run["id"].as_str());
        found.extend(ids.filter(|id| id.starts_with(given)).map(str::to_owned));
        match page["nextCursor"].as_str() {
            Some(next) => {
                cursor = format!("&cursor={}", encoded(next));
            }
            None => break,
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::new(Code::NotFound, format!("no run's id begins with `{given}`"))),
        [first, second, ..] => {
            let why = format!("`{given}` begins several runs' ids ({first}, {second}, …): write more of it");
            Err(Failure::new(Code::Invalid, why))
        }
    }
}

async fn every_page(client: &Client, asking: &Asking, first: Value) -> Result<Value, Failure> {
    let mut all = first;
    while let Some(next) = all["nextCursor"].as_str().map(str::to_owned) {
        let between = if asking.path.contains('?') { '&' } else { '?' };
        let cursor = encoded(&next);
        let more = Asking::get(format!("{}{between}cursor={cursor}", asking.path));
        let mut page = client.ask(more).await?.json()?;
        if let (Some(items), Some(more)) = (all["items"].as_array_mut(), page["items"].as_array_mut()) {
            items.append(more);
        }
        all["nextCursor"] = page["nextCursor"].take();
    }
    if let Some(fields) = all.as_object_mut() {
        fields.remove("nextCursor");
    }
    Ok(all)
}

/// A text as a query takes it.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Shows what would be sent.
fn dry(asking: &Asking) -> Result<(), Failure> {
    let body =
        asking.body.as_ref().map(|(_, body)| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
    crate::output::line(format!("{} {} {body}", asking.method, asking.path).trim_end())
}

/// Somebody at a terminal says yes; programs are not asked.
fn is_sure(what: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    let _ = write!(std::io::stderr(), "{what}: are you sure? [y/N] ");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::unexpected)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Reads a duration.
pub(crate) fn duration(text: &str) -> Result<Duration, Failure> {
    let ms = duration_ms(&Value::String(text.to_owned()));
    let wrong =
        || Failure::new(Code::Invalid, format!("`{text}` is not a duration, such as `30s` or `PT30S`"));
    ms.map(Duration::from_millis).ok_or_else(wrong)
}
