//! `workflow apply`: publishes workflow documents and activates them, each as the newest version of its workflow.

use clap::{Arg, ArgAction, ArgMatches, Command};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use stepwell::core::document;

use super::client::{ApiRequest, Client};
use super::{everywhere, opened};
use crate::exit::{Code, Failure};
use crate::output::print_message;
use crate::server::runtime;
use crate::validate::described;
use crate::workflow;

/// Ids of the arguments.
const UNKNOWN: &str = "allow-unknown-actions";
const STRICT: &str = "strict";

pub(super) fn with_verbs(command: Command) -> Command {
    let files = Arg::new("files")
        .value_name("FILE")
        .required(true)
        .num_args(1..)
        .help("Workflow documents (YAML or JSON); `-` reads standard input");
    let note =
        Arg::new("note").long("note").value_name("TEXT").help("Note on the change, stored with the version");
    let unknown = Arg::new(UNKNOWN)
        .long("allow-unknown-actions")
        .action(ArgAction::SetTrue)
        .help("Publish even if steps call actions that the server does not know");
    let strict = Arg::new(STRICT)
        .long("strict")
        .action(ArgAction::SetTrue)
        .help("Publish nothing if a document has warnings (exit code 6)");
    let apply = everywhere(Command::new("apply")).about("Publish workflow documents and activate them");
    let apply = apply.arg(files).arg(note).arg(unknown).arg(strict);
    command.mut_subcommand("workflow", |noun| noun.subcommand(apply))
}

pub(super) fn run(noun: &str, verb: &str, matches: &ArgMatches) -> Option<Result<(), Failure>> {
    let is_it = (noun, verb) == ("workflow", "apply");
    is_it.then(|| runtime().and_then(|runtime| runtime.block_on(apply(matches))))
}

async fn apply(matches: &ArgMatches) -> Result<(), Failure> {
    let (client, shown) = opened(matches).await?;
    let note = matches.get_one::<String>("note").map(String::as_str);
    let unknown = matches.get_flag(UNKNOWN);
    if matches.get_flag(STRICT) {
        let files = matches.get_many::<String>("files").into_iter().flatten();
        for file in files {
            if let Err(failure) = has_no_warnings(&client, file).await {
                client.close().await;
                return Err(Failure { message: format!("{file}: {}", failure.message), ..failure });
            }
        }
    }
    let mut applied = Vec::new();
    let mut done = Ok(());
    for file in matches.get_many::<String>("files").into_iter().flatten() {
        let asking = publishing(file, note, unknown);
        if shown.dry_run {
            done = asking.and_then(|asking| super::dry(&asking));
        } else {
            done = match asking {
                Ok(asking) => one(&client, asking).await.map(|answer| {
                    if !shown.quiet {
                        warn(file, &answer["warnings"]);
                    }
                    applied.push(answer);
                }),
                Err(failure) => Err(failure),
            };
        }
        if let Err(failure) = done {
            done = Err(Failure { message: format!("{file}: {}", failure.message), ..failure });
            break;
        }
    }
    client.close().await;
    if !applied.is_empty() {
        shown.show(&json!({ "items": applied }), &["name", "version", "created", "active"])?;
    }
    done
}

async fn one(client: &Client, asking: ApiRequest) -> Result<Value, Failure> {
    client.ask(asking).await?.json()
}

/// Prints warnings to standard error, each with its file.
fn warn(file: &str, warnings: &Value) {
    for warning in warnings.as_array().into_iter().flatten() {
        print_message(&format!("{file}: warning: {}", described(warning)));
    }
}

/// Returns an error if the server has warnings about a file. Errors of the document are reported when it is published.
async fn has_no_warnings(client: &Client, file: &str) -> Result<(), Failure> {
    let publishing = publishing(file, None, true)?;
    let name = publishing.path.split('/').nth(3).unwrap_or_default().to_owned();
    let path = format!("/v1/catalogue/validate?name={name}");
    let found = client.ask(ApiRequest { path, ..publishing }).await?.json()?;
    let warnings: Vec<_> = found["warnings"].as_array().into_iter().flatten().map(described).collect();
    match warnings.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Code::Invalid, warnings.join("\n"))),
    }
}

/// Returns the request that publishes a file. The name comes from the document, or else from the file name.
fn publishing(file: &str, note: Option<&str>, allow_unknown: bool) -> Result<ApiRequest, Failure> {
    let text = workflow::read(std::path::Path::new(file))?;
    let value = document::to_json(&text).map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    let said = value.pointer("/metadata/name").or_else(|| value.get("name")).and_then(Value::as_str);
    let stem =
        std::path::Path::new(file).file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    let name = said.or(stem).ok_or_else(|| {
        Failure::new(Code::Invalid, "the workflow document has no name: set `metadata.name`")
    })?;
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let note =
        note.map(|note| format!("&note={}", utf8_percent_encode(note, NON_ALPHANUMERIC))).unwrap_or_default();
    let unknown = if allow_unknown { "&allowUnknownActions=true" } else { "" };
    let kind = if text.trim_start().starts_with('{') { "application/json" } else { "application/yaml" };
    Ok(ApiRequest {
        method: axum::http::Method::POST,
        path: format!("/v1/workflows/{name}/versions?activate=true{note}{unknown}"),
        headers: Vec::new(),
        body: Some((kind.to_owned(), text.into_bytes())),
    })
}
