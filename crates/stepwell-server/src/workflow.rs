//! `stepwell workflow …`: works with definitions.

use std::io::Read;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use stepwell::core::{Problems, Spec, graph::Graph};

use crate::exit::{Code, Failure};
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Checks a definition and says everything that is wrong with it.
    Validate {
        /// The definition as JSON; `-` reads standard input.
        file: PathBuf,
        /// Prints the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Draws a definition.
    Graph {
        /// The definition as JSON; `-` reads standard input.
        file: PathBuf,
        /// Prints the graph as JSON instead of Mermaid.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Validate { file, json } => validate(file, *json),
        Verb::Graph { file, json } => draw(file, *json),
    }
}

fn validate(file: &PathBuf, as_json: bool) -> Result<(), Failure> {
    let spec = match parse(&read(file)?) {
        Ok(spec) => spec,
        Err(problem) => return invalid(as_json, &[problem], "it is not a definition"),
    };
    let name = spec.name.clone();
    match spec.build() {
        Ok(definition) => {
            let hash = definition.hash();
            output::line(&if as_json {
                json!({"valid": true, "name": name, "hash": hash, "problems": []}).to_string()
            } else {
                format!("{name}: valid, hash {hash}")
            })
        }
        Err(problems) => {
            let rows: Vec<_> = problems.0.iter().map(|problem| json!(problem)).collect();
            invalid(as_json, &rows, &problems.to_string())
        }
    }
}

fn invalid(as_json: bool, problems: &[Value], message: &str) -> Result<(), Failure> {
    if as_json {
        output::line(&json!({"valid": false, "problems": problems}).to_string())?;
        return Err(Failure::new(Code::Invalid, ""));
    }
    let detail =
        problems.first().and_then(|problem| problem["message"].as_str()).filter(|_| problems.len() == 1);
    Err(Failure::new(
        Code::Invalid,
        detail.map_or_else(|| message.to_owned(), |one| format!("{message}: {one}")),
    ))
}

fn draw(file: &PathBuf, as_json: bool) -> Result<(), Failure> {
    let spec = parse(&read(file)?)
        .map_err(|problem| Failure::new(Code::Invalid, problem["message"].as_str().unwrap_or_default()))?;
    let definition =
        spec.build().map_err(|problems: Problems| Failure::new(Code::Invalid, problems.to_string()))?;
    let graph = Graph::of(&definition);
    if as_json { output::line(&json!(graph).to_string()) } else { output::print(&graph.to_mermaid()) }
}

fn read(file: &PathBuf) -> Result<String, Failure> {
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

/// Reads JSON; what is not a definition is a problem with its line and column.
fn parse(text: &str) -> Result<Spec, Value> {
    serde_json::from_str(text).map_err(|error| {
        json!({
            "code": "unreadable",
            "where": format!("line {}, column {}", error.line(), error.column()),
            "message": error.to_string(),
        })
    })
}
