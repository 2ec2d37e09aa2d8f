//! `stepwell workflow validate`: the problems and warnings of workflow documents, found here or by a server.

use std::path::{Path, PathBuf};

use axum::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use stepwell::ActionInfo;
use stepwell::core::Definition;
use stepwell::core::document::{Bundle, SourceProblem, WorkflowSource};
use stepwell::core::near::did_you_mean;

use crate::cli::client::{ApiRequest, Client, Target};
use crate::exit::{Code, Failure};
use crate::output::{self, print_message};
use crate::server::runtime;
use crate::workflow::{
    Wrong, is_document, known_actions, load_bundle, load_definition, load_document, problem_text, read,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Validate {
    /// Workflow documents or bundles (YAML or JSON), or definitions (JSON); `-` reads standard input.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print the result as JSON, one line per file.
    #[arg(long)]
    json: bool,
    /// Treat warnings as errors (exit code 6).
    #[arg(long)]
    strict: bool,
    /// Let this server validate the documents: it knows the actions of its workers. Default: validate here, with the
    /// built-in actions.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with the API key for `--server`; `STEPWELL_API_KEY` can hold the key itself.
    #[arg(long, value_name = "FILE", env = "STEPWELL_API_KEY_FILE", requires = "server")]
    api_key_file: Option<PathBuf>,
}

/// The result for a file without errors.
struct Valid {
    /// The line for people, one per document.
    lines: Vec<String>,
    /// The result for programs.
    row: Value,
    /// The warnings, in the form of the API.
    warnings: Vec<Value>,
}

pub(crate) fn run(options: &Validate) -> Result<(), Failure> {
    let Some(server) = &options.server else {
        return report(options, here);
    };
    let runtime = runtime()?;
    let target = Target::at(server.clone(), options.api_key_file.clone());
    let client = runtime.block_on(target.client())?;
    let done = report(options, |file, text| runtime.block_on(there(&client, file, text)));
    runtime.block_on(client.close());
    done
}

/// Checks all files and reports what was found. A file that cannot be read ends the command.
fn report(
    options: &Validate,
    check: impl Fn(&Path, &str) -> Result<Result<Valid, Wrong>, Failure>,
) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for file in &options.files {
        let found = check(file, &read(file)?)?;
        let found = found.and_then(|valid| match options.strict && !valid.warnings.is_empty() {
            true => Err(strictly(valid)),
            false => Ok(valid),
        });
        match found {
            Ok(Valid { lines, mut row, warnings }) => {
                warnings.iter().for_each(|warning| {
                    print_message(&format!("{}: warning: {}", file.display(), described(warning)));
                });
                row["warnings"] = warnings.into();
                match options.json {
                    true => output::line(&row.to_string())?,
                    false => output::line(&lines.join("\n"))?,
                }
            }
            Err(found) => {
                if options.json {
                    let row = json!({ "valid": false, "problems": found.problems, "warnings": [] });
                    output::line(&row.to_string())?;
                }
                wrong.push(problem_text(&options.files, file, &found));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false if options.json => Err(Failure::new(Code::Invalid, "")),
        false => Err(Failure::new(Code::Invalid, wrong.join("\n"))),
    }
}

/// Returns the warnings of a valid file as its errors.
fn strictly(valid: Valid) -> Wrong {
    let lines: String = valid.warnings.iter().map(|warning| format!("\n  {}", described(warning))).collect();
    let (count, plural) = (valid.warnings.len(), if valid.warnings.len() == 1 { "" } else { "s" });
    Wrong { problems: valid.warnings, message: format!("the workflow has {count} warning{plural}{lines}") }
}

/// Formats a problem or warning of the API as one line.
pub(crate) fn described(problem: &Value) -> String {
    let place = match (problem["line"].as_u64(), problem["column"].as_u64()) {
        (Some(line), Some(column)) if line > 0 => format!("line {line}, column {column}: "),
        _ => String::new(),
    };
    let step = problem["step"].as_str().map(|step| format!("step `{step}`: ")).unwrap_or_default();
    format!("{place}{step}{}", problem["message"].as_str().unwrap_or_default())
}

/// Checks a file with the built-in actions.
fn here(file: &Path, text: &str) -> Result<Result<Valid, Wrong>, Failure> {
    let known = known_actions();
    if Bundle::is_one(text) {
        return Ok(load_bundle(text).map(|bundle| of_bundle(&bundle, &known)));
    }
    Ok(match is_document(text) {
        true => load_document(file, text).map(|document| of_document(&document, &known)),
        false => load_definition(text).map(|definition| of_definition(&definition, &[], &known)),
    })
}

fn of_bundle(bundle: &Bundle, known: &[ActionInfo]) -> Valid {
    let mut all = Valid { lines: Vec::new(), row: Value::Null, warnings: Vec::new() };
    let mut rows = Vec::new();
    for item in bundle.items() {
        let Valid { lines, row, warnings } = of_document(item, known);
        all.lines.extend(lines);
        all.warnings.extend(warnings);
        rows.push(row);
    }
    if rows.is_empty() {
        all.lines.push("the bundle is empty".to_owned());
    }
    all.row = json!({ "valid": true, "problems": [], "items": rows });
    all
}

fn of_document(document: &WorkflowSource, known: &[ActionInfo]) -> Valid {
    let facts = |action: &str| known.iter().find(|info| info.name.as_str() == action).map(ActionInfo::facts);
    let mut warnings = document.warnings_with(&facts);
    for transition in &document.definition().spec().transitions {
        let Some(call) = &transition.action else { continue };
        if facts(&call.name).is_some() {
            continue;
        }
        let hint = did_you_mean(&call.name, known.iter().map(|info| info.name.as_str()));
        let message = format!("action `{}` is not built in{hint}", call.name);
        let at = document.place_of_input(&transition.id, "").unwrap_or_default();
        let step = transition.id.split('.').next().map(str::to_owned);
        warnings.push(SourceProblem { step, ..SourceProblem::new("unknownAction", at, message) });
    }
    warnings.sort_by_key(|warning| warning.at);
    of_definition(document.definition(), &warnings, known)
}

fn of_definition(definition: &Definition, warnings: &[SourceProblem], known: &[ActionInfo]) -> Valid {
    let (name, hash) = (definition.name(), definition.hash());
    let is_known = |name: &str| known.iter().any(|info| info.name.as_str() == name);
    let others: Vec<_> = definition.actions().into_iter().filter(|name| !is_known(name)).collect();
    let mut line = format!("{name}: valid, hash {hash}");
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|name| format!("`{name}`")).collect();
        line = format!("{line}; calls actions that are not built in: {}", others.join(", "));
    }
    let warnings = warnings.iter().map(|warning| json!(warning)).collect();
    let row = json!({ "valid": true, "name": name, "hash": hash, "problems": [], "ownActions": others });
    Valid { lines: vec![line], row, warnings }
}

/// Lets a server check a file.
async fn there(client: &Client, file: &Path, text: &str) -> Result<Result<Valid, Wrong>, Failure> {
    if Bundle::is_one(text) {
        let why = "a server checks a bundle with `stepwell workflow import --dry-run`";
        return Err(Failure::new(Code::Invalid, format!("{}: {why}", file.display())));
    }
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    let name = name.map(|name| format!("?name={}", utf8_percent_encode(name, NON_ALPHANUMERIC)));
    let asking = ApiRequest {
        method: Method::POST,
        path: format!("/v1/catalogue/validate{}", name.unwrap_or_default()),
        headers: Vec::new(),
        body: Some(("application/yaml".to_owned(), text.as_bytes().to_vec())),
    };
    let mut row = client.ask(asking).await?.json()?;
    let list = |value: &mut Value| value.take().as_array().cloned().unwrap_or_default();
    let (problems, warnings) = (list(&mut row["problems"]), list(&mut row["warnings"]));
    row["problems"] = json!([]);
    if row["valid"] == true {
        let line = format!("{}: valid", file.display());
        return Ok(Ok(Valid { lines: vec![line], row, warnings }));
    }
    let lines: String = problems.iter().map(|problem| format!("\n  {}", described(problem))).collect();
    let (count, plural) = (problems.len(), if problems.len() == 1 { "" } else { "s" });
    let message = format!("the workflow document has {count} problem{plural}{lines}");
    Ok(Err(Wrong { problems, message }))
}
