//! `stepwell workflow …`: the verbs that work on files, without a server.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use stepwell::core::document::{self, Bundle, Position, WorkflowSource};
use stepwell::core::graph::Graph;
use stepwell::core::{Definition, Limits, Spec};
use stepwell::store::MemoryStore;
use stepwell::{ActionInfo, CallProblem, Engine, check_calls, check_document_triggers};

use crate::exit::{Code, Failure};
use crate::{output, simulate, validate};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Validate workflows and report all problems and warnings with line and column.
    Validate(validate::Validate),
    /// Draw a workflow as a Mermaid diagram.
    Graph {
        /// Workflow document or definition; `-` reads standard input.
        file: PathBuf,
        /// Print the graph as JSON instead of Mermaid.
        #[arg(long)]
        json: bool,
    },
    /// Convert a workflow document to YAML or JSON; comments are lost.
    Convert {
        /// Workflow document; `-` reads standard input.
        file: PathBuf,
        /// Format of the output: `yaml` or `json`.
        #[arg(long)]
        to: Format,
    },
    /// List the names that the expressions of a step can read.
    Scope {
        /// Workflow document; `-` reads standard input.
        file: PathBuf,
        /// Id of the step.
        step: String,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compare two workflow documents; steps are matched by id.
    Diff {
        /// First workflow document; `-` reads standard input.
        from: PathBuf,
        /// Second workflow document; `-` reads standard input.
        to: PathBuf,
        /// Print the differences as JSON.
        #[arg(long)]
        json: bool,
        /// End with exit code 4 if there are differences.
        #[arg(long)]
        exit_code: bool,
    },
    /// Combine workflow documents into one file for `workflow import`.
    Bundle {
        /// Workflow documents or bundles; `-` reads standard input.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Format of the bundle: `yaml` or `json`.
        #[arg(short = 'o', long, default_value = "yaml")]
        output: Format,
    },
    /// Run the test cases of workflow documents without side effects, and report the steps and branches not covered.
    Test(simulate::Test),
    /// Simulate a run of a workflow document without side effects, and show input and output of each step.
    Simulate(simulate::Simulate),
    /// List the built-in actions of the server.
    Actions {
        /// Print the actions with their schemas as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// A text format of workflow documents.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Yaml,
    Json,
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Validate(options) => validate::run(options),
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

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    output::line(&serde_json::to_string_pretty(value).map_err(Failure::unexpected)?)
}

/// The problems of an invalid workflow: as JSON for programs, and as a message for people.
pub(crate) struct Wrong {
    pub(crate) problems: Vec<Value>,
    pub(crate) message: String,
}

/// Returns the message, with the file name in front if several files are checked.
pub(crate) fn problem_text(files: &[PathBuf], file: &Path, wrong: &Wrong) -> String {
    let name = if files.len() > 1 { format!("{}: ", file.display()) } else { String::new() };
    format!("{name}{}", wrong.message)
}

/// Reads a workflow document or a definition, and checks its action calls.
fn load(file: &Path, text: &str) -> Result<Definition, Wrong> {
    Ok(match is_document(text) {
        true => load_document(file, text)?.definition().clone(),
        false => load_definition(text)?,
    })
}

/// Reads a definition, and checks its action calls.
pub(crate) fn load_definition(text: &str) -> Result<Definition, Wrong> {
    let definition = build(text)?;
    let placed = check_calls(&definition, &known_actions()).into_iter().map(|problem| (None, problem));
    reject_invalid_calls(placed.collect())?;
    Ok(definition)
}

/// Reads a workflow document, and checks its triggers and action calls.
pub(crate) fn load_document(file: &Path, text: &str) -> Result<WorkflowSource, Wrong> {
    let document = read_document(file, text)?;
    check_triggers(std::slice::from_ref(&document))?;
    reject_invalid_calls(miscalls(&document, &known_actions()))?;
    Ok(document)
}

/// Reads a bundle, and checks the triggers and action calls of its documents.
pub(crate) fn load_bundle(text: &str) -> Result<Bundle, Wrong> {
    let bundle = Bundle::read(text).map_err(|found| problems(&found))?;
    check_triggers(bundle.items())?;
    let known = known_actions();
    reject_invalid_calls(bundle.items().iter().flat_map(|item| miscalls(item, &known)).collect())?;
    Ok(bundle)
}

/// Checks the triggers of documents.
fn check_triggers(documents: &[WorkflowSource]) -> Result<(), Wrong> {
    let wrong: Vec<_> = documents.iter().flat_map(check_document_triggers).collect();
    if wrong.is_empty() { Ok(()) } else { Err(problems(&document::SourceProblems(wrong))) }
}

/// A problem of an action call, with its place in the document if it is known.
type Miscall = (Option<Position>, CallProblem);

fn miscalls(document: &WorkflowSource, known: &[ActionInfo]) -> Vec<Miscall> {
    let wrong = check_calls(document.definition(), known).into_iter();
    wrong.map(|one| (document.place_of_input(&one.transition, &one.pointer), one)).collect()
}

/// Returns an error if there are problems with action calls. They are sorted by place.
fn reject_invalid_calls(mut placed: Vec<Miscall>) -> Result<(), Wrong> {
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

fn problems(problems: &document::SourceProblems) -> Wrong {
    Wrong {
        problems: problems.0.iter().map(|problem| json!(problem)).collect(),
        message: problems.to_string(),
    }
}

/// Returns true for a workflow document: YAML, or JSON with `steps`, `spec` or `apiVersion`. Other JSON is a
/// definition.
pub(crate) fn is_document(text: &str) -> bool {
    let is_yaml = !text.trim_start().starts_with('{');
    let says_so =
        |value: Value| ["steps", "spec", "apiVersion"].iter().any(|field| value.get(field).is_some());
    is_yaml || document::to_json(text).is_ok_and(says_so)
}

fn read_document(file: &Path, text: &str) -> Result<WorkflowSource, Wrong> {
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    WorkflowSource::read(text, name).map_err(|found| problems(&found))
}

/// Reads a definition. A syntax error is a problem with line and column.
fn build(text: &str) -> Result<Definition, Wrong> {
    let spec: Spec = serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let problem = json!({"code": "unreadable", "where": place, "message": error.to_string()});
        Wrong { problems: vec![problem], message: format!("this is not a valid definition: {error}") }
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

pub(crate) fn known_actions() -> Vec<ActionInfo> {
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

/// Converts a document without validating it, so that unfinished workflows can be converted too.
fn convert(file: &Path, to: Format) -> Result<(), Failure> {
    let value =
        document::to_json(&read(file)?).map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
    write(&value, to)
}

/// Compares two documents without validating them.
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
            Err(found) => wrong.push(problem_text(files, file, &found)),
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
