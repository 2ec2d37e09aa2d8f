//! A case of the suite, as its files hold it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub(super) struct Case {
    /// The file, and its place in it.
    pub(super) name: String,
    pub(super) expr: String,
    pub(super) input: Input,
    pub(super) bindings: Map<String, Value>,
    pub(super) expected: Expected,
}

pub(super) enum Input {
    Nothing,
    Value(Value),
}

pub(super) enum Expected {
    Value { value: Value, is_unordered: bool },
    Undefined,
    Code(String),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Value { value, .. } => write!(f, "{value}"),
            Expected::Undefined => write!(f, "undefined"),
            Expected::Code(code) => write!(f, "error {code}"),
        }
    }
}

/// Every case below `folder`, in the order of their files' names. A case whose expression is in a file that is
/// not there is none: a folder may hold a part of the suite.
pub(super) fn read(folder: &Path) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for group in entries(&folder.join("groups"))? {
        for file in entries(&group)? {
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let rows = match json(&file)? {
                Value::Array(rows) => rows,
                one => vec![one],
            };
            for (place, row) in rows.iter().enumerate() {
                let name = format!("{}#{place}", file.display());
                let case =
                    case(folder, &group, &name, row).map_err(|problem| format!("{name}: {problem}"))?;
                if case.is_none() {
                    eprintln!("{name} has no expression");
                }
                cases.extend(case);
            }
        }
    }
    if cases.is_empty() {
        return Err(format!("there are no cases in {}", folder.display()));
    }
    Ok(cases)
}

fn case(folder: &Path, group: &Path, name: &str, row: &Value) -> Result<Option<Case>, String> {
    let text = |field: &str| row[field].as_str().map(str::to_owned);
    let expr = match (text("expr"), text("expr-file")) {
        (Some(expr), _) => expr,
        (None, Some(file)) => match fs::read_to_string(group.join(&file)) {
            Ok(expr) => expr,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{file}: {error}")),
        },
        (None, None) => return Err("it has no expression".to_owned()),
    };
    let input = match (row.get("data"), text("dataset")) {
        (Some(data), _) => Input::Value(data.clone()),
        (None, Some(dataset)) => Input::Value(json(&folder.join("datasets").join(dataset + ".json"))?),
        (None, None) => Input::Nothing,
    };
    let bindings = row["bindings"].as_object().cloned().unwrap_or_default();
    Ok(Some(Case { name: name.to_owned(), expr, input, bindings, expected: expected(row)? }))
}

fn expected(row: &Value) -> Result<Expected, String> {
    let code = row["code"].as_str().or(row["error"]["code"].as_str());
    if let Some(code) = code {
        return Ok(Expected::Code(code.to_owned()));
    }
    if row["undefinedResult"] == Value::Bool(true) {
        return Ok(Expected::Undefined);
    }
    let is_unordered = row["unordered"] == Value::Bool(true);
    let value = row.get("result").cloned().ok_or("it expects nothing")?;
    Ok(Expected::Value { value, is_unordered })
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = listed
        .map(|entry| entry.map(|entry| entry.path()).map_err(|error| error.to_string()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

fn json(file: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Whether two values are the same; 1 and 1.0 are. The items of an unordered list may come in any order.
pub(super) fn same(a: &Value, b: &Value, is_unordered: bool) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) if is_unordered && a.len() == b.len() => {
            let mut left: Vec<&Value> = b.iter().collect();
            a.iter().all(|item| {
                let found = left.iter().position(|other| same(item, other, false));
                found.map(|place| left.swap_remove(place)).is_some()
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b, false))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b, false)))
        }
        _ => a == b,
    }
}
