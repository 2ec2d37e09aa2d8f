//! `stepwell expr …`: evaluates expressions and lists their functions.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use stepwell::core::Timestamp;
use stepwell::core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind, Scope, functions};

use crate::cli::json_argument;
use crate::exit::{Code, Failure};
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Evaluate an expression on JSON input, or a batch of expressions.
    Eval(Box<Eval>),
    /// List the functions that expressions can call.
    Functions {
        /// Print the functions as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// Expression to evaluate, such as `items[price > 10].price`.
    #[arg(required_unless_present = "batch", conflicts_with = "batch")]
    expr: Option<String>,
    /// Input: JSON, `@FILE`, or `-` for standard input (default: no input).
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    input: Option<String>,
    /// Variables, named without `$`: a JSON object, `@FILE`, or `-` for standard input.
    #[arg(long, value_name = "JSON", conflicts_with = "batch")]
    bindings: Option<String>,
    /// Return a list even for a single item; no items give an empty list.
    #[arg(long, conflicts_with = "batch")]
    list: bool,
    /// Value of `$now()` in RFC 3339 (default: the current time).
    #[arg(long)]
    now: Option<Timestamp>,
    /// Print the result or the error as a JSON object.
    #[arg(long)]
    json: bool,
    /// Read lines of `{"expr", "data", "bindings"}` from `--input @FILE` (default: standard input), and print one result
    /// per line.
    #[arg(long)]
    batch: bool,
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Eval(eval) if eval.batch => batch(eval),
        Verb::Eval(eval) => one(eval),
        Verb::Functions { json } => list(*json),
    }
}

fn one(eval: &Eval) -> Result<(), Failure> {
    let input = eval.input.as_deref().map(|text| json_argument::json("--input", text)).transpose()?;
    let bindings =
        match eval.bindings.as_deref().map(|text| json_argument::json("--bindings", text)).transpose()? {
            None => Map::new(),
            Some(Value::Object(bindings)) => bindings,
            Some(_) => return Err(Failure::new(Code::Invalid, "`--bindings` must be a JSON object")),
        };
    let data = input.as_ref().map_or_else(Data::nothing, Data::new);
    let scope = data.with_bindings(&bindings).with_now(eval.now.unwrap_or_else(now));
    let source = eval.expr.as_deref().unwrap_or_default();
    let found = evaluated(source, &scope, eval.list);
    if eval.json {
        output::line(&outcome(&found).to_string())?;
        return found.map(|_| ()).map_err(|_| Failure::new(Code::Invalid, ""));
    }
    match found {
        Ok(Some(value)) => output::line(&value.to_string()),
        Ok(None) => {
            let missing =
                Expr::parse(source).ok().and_then(|expr| expr.missing(&scope, &mut Budget::generous()));
            let why = missing.map(|missing| format!(": {missing}")).unwrap_or_default();
            output::print_message(&format!("undefined{why}"));
            Ok(())
        }
        Err(error) => Err(Failure::new(Code::Invalid, format!("{}: {error}", error.code))),
    }
}

fn evaluated(source: &str, scope: &dyn Scope, wants_list: bool) -> Result<Option<Value>, ExprError> {
    let expr = Expr::parse(source)?;
    let mut budget = Budget::generous();
    match wants_list {
        true => Ok(expr.eval_list(scope, &mut budget)?.map(Value::Array)),
        false => expr.eval(scope, &mut budget),
    }
}

/// Prints one result per non-empty input line. Lines with errors get an error result, so that results match the input.
fn batch(eval: &Eval) -> Result<(), Failure> {
    let reader: Box<dyn Read> = match eval.input.as_deref() {
        None | Some("-") => Box::new(std::io::stdin()),
        Some(input) => {
            let file = input.strip_prefix('@').ok_or_else(|| {
                let why = format!("`--batch` reads lines from `@FILE` or `-` (got `{input}`)");
                Failure::new(Code::Invalid, why)
            })?;
            Box::new(File::open(file).map_err(|error| unreadable(file, &error))?)
        }
    };
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(|error| Failure::new(Code::Invalid, error.to_string()))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        output::line(&answer(&line, eval.now).to_string())?;
    }
    Ok(())
}

fn answer(line: &[u8], at: Option<Timestamp>) -> Value {
    let bad = |message: String| json!({"error": {"code": "input", "message": message, "refused": false}});
    let row: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(row) => row,
        Err(error) => return bad(error.to_string()),
    };
    let Some(Value::String(source)) = row.get("expr") else {
        return bad("`expr` is missing or not a string".to_owned());
    };
    let none = Map::new();
    let bindings = match row.get("bindings") {
        None | Some(Value::Null) => &none,
        Some(Value::Object(bindings)) => bindings,
        Some(_) => return bad("`bindings` must be an object".to_owned()),
    };
    let data = row.get("data").map_or_else(Data::nothing, Data::new);
    let scope = data.with_bindings(bindings).with_now(at.unwrap_or_else(now));
    outcome(&evaluated(source, &scope, false))
}

/// Returns the result of an evaluation as JSON.
fn outcome(found: &Result<Option<Value>, ExprError>) -> Value {
    match found {
        Ok(Some(value)) => json!({ "result": value }),
        Ok(None) => json!({"undefined": true}),
        Err(error) => json!({"error": {
            "code": error.code,
            "message": error.to_string(),
            "refused": error.kind == ExprErrorKind::Unsupported,
        }}),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        let rows: Vec<Value> = functions()
            .iter()
            .map(|info| {
                json!({
                    "name": info.name,
                    "signature": info.signature,
                    "summary": info.summary,
                    "group": info.group.name(),
                })
            })
            .collect();
        return output::line(&Value::Array(rows).to_string());
    }
    let widest = functions().iter().map(|info| info.signature.chars().count()).max().unwrap_or(0);
    functions().iter().try_for_each(|info| {
        output::line(&format!("{:6}  {:widest$}  {}", info.group.name(), info.signature, info.summary))
    })
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn unreadable(file: &str, error: &std::io::Error) -> Failure {
    let code = if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::Unexpected };
    Failure::new(code, format!("{file}: {error}"))
}
