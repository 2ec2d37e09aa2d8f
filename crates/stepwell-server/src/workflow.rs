//! `stepwell workflow …`: works with documents and definitions.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use stepwell::core::document::{self, Bundle, Document, Place};
use stepwell::core::graph::Graph;
use stepwell::core::{Definition, Limits, Spec};
use stepwell::store::MemoryStore;
use stepwell::{ActionInfo, CallProblem, Engine, check_calls, check_document_triggers};

use crate::exit::{Code, Failure};
use crate::{output, simulate};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Checks workflows and says everything that is wrong with them, with line and column.
    Validate {
        /// Documents or bundles of them (YAML or JSON), or definitions (JSON); `-` reads standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Prints the result as JSON, one line per file.
        #[arg(long)]
        json: bool,
    },
    /// Draws a workflow.
    Graph {
        /// A document or a definition; `-` reads standard input.
        file: PathBuf,
        /// Prints the graph as JSON instead of Mermaid.
        #[arg(long)]
        json: bool,
    },
    /// Writes a document as YAML or JSON; comments are not kept.
    Convert {
        /// The document; `-` reads standard input.
        file: PathBuf,
        /// What to write.
        #[arg(long)]
        to: Format,
    },
    /// Says what the expressions of a step can read.
    Scope {
        /// The document; `-` reads standard input.
        file: PathBuf,
        /// The step's id.
        step: String,
        /// Prints the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Says what differs between two workflows: steps are found again by their ids.
    Diff {
        /// The first document; `-` reads standard input.
        from: PathBuf,
        /// The second document; `-` reads standard input.
        to: PathBuf,
        /// Prints the differences as JSON.
        #[arg(long)]
        json: bool,
        /// Ends with code 4 if there are any.
        #[arg(long)]
        exit_code: bool,
    },
    /// Puts documents together in one file that can be imported elsewhere.
    Bundle {
        /// Documents or bundles; `-` reads standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// What to write.
        #[arg(short = 'o', long, default_value = "yaml")]
        output: Format,
    },
    /// Runs the test cases of documents with no side effects, and says which steps and branches they do not come to.
    Test(simulate::Test),
    /// Runs a document with no side effects, and shows each step's input and output.
    Simulate(simulate::Simulate),
    /// Lists the actions that the server has, with what they take and give.
    Actions {
        /// Prints everything that is known of them as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// How a document is written.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Validate { files, json } => validate_all(files, *json),
        Verb::Graph { file, json } => draw(file, *json),
        Verb::Convert { file, to } => convert(file, *to),
        Verb::Scope { file, step, json } => scope(file, step, *json),
        Verb::Diff { from, to, json, exit_code } => differences(from, to, *json, *exit_code),
        Verb::Bundle { files, output } => bundle(files, *output),
        Verb::Test(test) => simulate::test(test),
        Verb::Simulate(options) => simulate::simulate(options),
        Verb::Actions { json } => actions(*json),
    }
}

/// Prints a value over several lines.
pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    output::line(&serde_json::to_string_pretty(value).map_err(Failure::unexpected)?)
}

/// A workflow that cannot be used: what is wrong with it, for programs and for people.
pub(crate) struct Wrong {
    pub(crate) problems: Vec<Value>,
    pub(crate) message: String,
}

fn validate_all(files: &[PathBuf], as_json: bool) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for file in files {
        let text = read(file)?;
        let found = match Bundle::is_one(&text) {
            true => load_bundle(&text).map(|bundle| valid_bundle(&bundle, as_json)),
            false => load(file, &text).map(|definition| valid(&definition, as_json)),
        };
        match found {
            Ok(lines) => output::line(&lines)?,
            Err(found) => {
                if as_json {
                    output::line(&json!({"valid": false, "problems": found.problems}).to_string())?;
                }
                wrong.push(told(files, file, &found));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false if as_json => Err(Failure::new(Code::Invalid, "")),
        false => Err(Failure::new(Code::Invalid, wrong.join("\n"))),
    }
}

/// What is wrong, with the name of the file if there are several.
fn told(files: &[PathBuf], file: &Path, wrong: &Wrong) -> String {
    let name = if files.len() > 1 { format!("{}: ", file.display()) } else { String::new() };
    format!("{name}{}", wrong.message)
}

fn valid_bundle(bundle: &Bundle, as_json: bool) -> String {
    let each = bundle.items().iter().map(|item| valid(item.definition(), as_json));
    match as_json {
        true => {
            format!("{{\"valid\":true,\"problems\":[],\"items\":[{}]}}", each.collect::<Vec<_>>().join(","))
        }
        false if bundle.items().is_empty() => "the bundle is empty".to_owned(),
        false => each.collect::<Vec<_>>().join("\n"),
    }
}

fn valid(definition: &Definition, as_json: bool) -> String {
    let (name, hash) = (definition.name(), definition.hash());
    let known = known_actions();
    let is_known = |name: &str| known.iter().any(|info| info.name.as_str() == name);
    let others: Vec<_> = definition.actions().into_iter().filter(|name| !is_known(name)).collect();
    if as_json {
        return json!({
            "valid": true, "name": name, "hash": hash, "problems": [], "ownActions": others
        })
        .to_string();
    }
    let mut line = format!("{name}: valid, hash {hash}");
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|name| format!("`{name}`")).collect();
        line = format!("{line}; calls {}, which the engine has to be given", others.join(", "));
    }
    line
}

/// Reads a workflow, whatever it is written as.
fn load(file: &Path, text: &str) -> Result<Definition, Wrong> {
    if is_document(text) {
        return Ok(load_document(file, text)?.definition().clone());
    }
    let definition = build(text)?;
    let placed = check_calls(&definition, &known_actions()).into_iter().map(|problem| (None, problem));
    miscalled(placed.collect())?;
    Ok(definition)
}

/// Reads a document whose calls fit.
pub(crate) fn load_document(file: &Path, text: &str) -> Result<Document, Wrong> {
    let document = read_document(file, text)?;
    mistimed(std::slice::from_ref(&document))?;
    miscalled(miscalls(&document, &known_actions()))?;
    Ok(document)
}

/// Reads a bundle of documents whose calls fit.
fn load_bundle(text: &str) -> Result<Bundle, Wrong> {
    let bundle = Bundle::read(text).map_err(|found| problems(&found))?;
    mistimed(bundle.items())?;
    let known = known_actions();
    miscalled(bundle.items().iter().flat_map(|item| miscalls(item, &known)).collect())?;
    Ok(bundle)
}

/// What is wrong with triggers, if anything is.
fn mistimed(documents: &[Document]) -> Result<(), Wrong> {
    let wrong: Vec<_> = documents.iter().flat_map(check_document_triggers).collect();
    if wrong.is_empty() { Ok(()) } else { Err(problems(&document::Problems(wrong))) }
}

/// Something that is wrong with a call, and where it stands.
type Miscall = (Option<Place>, CallProblem);

fn miscalls(document: &Document, known: &[ActionInfo]) -> Vec<Miscall> {
    let wrong = check_calls(document.definition(), known).into_iter();
    wrong.map(|one| (document.place_of_input(&one.transition, &one.pointer), one)).collect()
}

/// What is wrong with calls, if anything is.
fn miscalled(mut placed: Vec<Miscall>) -> Result<(), Wrong> {
    if placed.is_empty() {
        return Ok(());
    }
    placed.sort_by_key(|(place, _)| *place);
    let (mut problems, mut lines) = (Vec::new(), String::new());
    for (place, problem) in &placed {
        let mut row = json!(problem);
        row["code"] = "badCall".into();
        let place = place.map_or_else(String::new, |place| {
            (row["line"], row["column"]) = (place.line.into(), place.column.into());
            format!("line {}, column {}: ", place.line, place.column)
        });
        problems.push(row);
        lines.push_str(&format!("\n  {place}{problem}"));
    }
    let (count, plural) = (placed.len(), if placed.len() == 1 { "" } else { "s" });
    Err(Wrong { problems, message: format!("the workflow has {count} problem{plural}{lines}") })
}

fn problems(problems: &document::Problems) -> Wrong {
    Wrong {
        problems: problems.0.iter().map(|problem| json!(problem)).collect(),
        message: problems.to_string(),
    }
}

/// A document has steps, or says that it is one, or is YAML; anything else is a definition.
fn is_document(text: &str) -> bool {
    let is_yaml = !text.trim_start().starts_with('{');
    let says_so =
        |value: Value| ["steps", "spec", "apiVersion"].iter().any(|field| value.get(field).is_some());
    is_yaml || document::to_json(text).is_ok_and(says_so)
}

fn read_document(file: &Path, text: &str) -> Result<Document, Wrong> {
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    Document::read(text, name).map_err(|found| problems(&found))
}

/// Reads a definition; what is not one is a problem with its line and column.
fn build(text: &str) -> Result<Definition, Wrong> {
    let spec: Spec = serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let problem = json!({"code": "unreadable", "where": place, "message": error.to_string()});
        Wrong { problems: vec![problem], message: format!("it is not a definition: {error}") }
    })?;
    spec.build().map_err(|problems| {
        let rows: Vec<_> = problems.0.iter().map(|problem| json!(problem)).collect();
        let mut message = problems.to_string();
        if let [one] = problems.0.as_slice() {
            message = format!("{message}: {}", one.message);
        }
        Wrong { problems: rows, message }
    })
}

fn known_actions() -> Vec<ActionInfo> {
    let mut known = Engine::builder(Arc::new(MemoryStore::new())).actions();
    known.extend(stepwell_server::actions::infos());
    known.sort_by(|a, b| a.name.cmp(&b.name));
    known
}

fn draw(file: &Path, as_json: bool) -> Result<(), Failure> {
    let graph = Graph::of(&load(file, &read(file)?).map_err(invalid)?);
    if as_json { output::line(&json!(graph).to_string()) } else { output::print(&graph.to_mermaid()) }
}

pub(crate) fn invalid(wrong: Wrong) -> Failure {
    Failure::new(Code::Invalid, wrong.message)
}

/// What cannot be used as a workflow is converted all the same: somebody may be in the middle of writing it.
fn convert(file: &Path, to: Format) -> Result<(), Failure> {
    let value =
        document::to_json(&read(file)?).map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    write(&value, to)
}

/// What cannot be used as a workflow is compared all the same.
fn differences(from: &Path, to: &Path, as_json: bool, exit_code: bool) -> Result<(), Failure> {
    let value = |file: &Path| {
        let read = document::to_json(&read(file)?);
        read.map_err(|error| Failure::new(Code::Invalid, format!("{}: {error}", file.display())))
    };
    let found = document::diff(&value(from)?, &value(to)?);
    match as_json {
        true => output::line(&json!(found).to_string())?,
        false => found.iter().try_for_each(|difference| output::line(&difference.to_string()))?,
    }
    if exit_code && !found.is_empty() { Err(Failure::new(Code::Conflict, "")) } else { Ok(()) }
}

fn bundle(files: &[PathBuf], to: Format) -> Result<(), Failure> {
    let (mut documents, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        let text = read(file)?;
        let loaded = match Bundle::is_one(&text) {
            true => load_bundle(&text).map(|bundle| bundle.items().to_vec()),
            false => load_document(file, &text).map(|document| vec![document]),
        };
        match loaded {
            Ok(loaded) => documents.extend(loaded),
            Err(found) => wrong.push(told(files, file, &found)),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::new(Code::Invalid, wrong.join("\n")));
    }
    let bundle = Bundle::of(documents, &Limits::default());
    let bundle = bundle.map_err(|problems| Failure::new(Code::Invalid, problems.to_string()))?;
    write(&bundle.to_value(), to)
}

fn write(value: &Value, to: Format) -> Result<(), Failure> {
    match to {
        Format::Yaml => output::print(&document::yaml(value)),
        Format::Json => output::line(&serde_json::to_string_pretty(value).map_err(Failure::unexpected)?),
    }
}

fn scope(file: &Path, step: &str, as_json: bool) -> Result<(), Failure> {
    let document = read_document(file, &read(file)?).map_err(invalid)?;
    let scope = document.in_scope(step);
    let scope = scope.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no step `{step}`")))?;
    if as_json {
        return output::line(&json!(scope).to_string());
    }
    let width = scope.names.iter().map(|name| name.path.chars().count()).max().unwrap_or(0);
    scope.names.iter().try_for_each(|name| output::line(&format!("{:width$}  {}", name.path, name.about)))
}

fn actions(as_json: bool) -> Result<(), Failure> {
    let actions = known_actions();
    if as_json {
        return output::line(&json!(actions).to_string());
    }
    let width = actions.iter().map(|info| info.name.len()).max().unwrap_or(0);
    actions
        .iter()
        .try_for_each(|info| output::line(&format!("{:width$}  {}", info.name.as_str(), info.about)))
}

pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    if file.as_os_str() == "-" {
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
        return Ok(text);
    }
    std::fs::read_to_string(file).map_err(|error| {
        let code =
            if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Unexpected };
        Failure::new(code, format!("{}: {error}", file.display()))
    })
}
