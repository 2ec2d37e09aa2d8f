//! Reads the cases of the JSONata test suite from their files.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub(super) struct Case {
    /// File name and index within the file, as `file#index`.
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
    Value {
        value: Value,
        is_unordered: bool,
    },
    Undefined,
    Code(String),
    /// A JavaScript error of the package, with its message. A case from a file has none.
    Crash(String),
}

impl Case {
    pub(super) fn data(&self) -> Option<&Value> {
        match &self.input {
            Input::Nothing => None,
            Input::Value(value) => Some(value),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Value { value, .. } => write!(f, "{value}"),
            Expected::Undefined => write!(f, "undefined"),
            Expected::Code(code) => write!(f, "error {code}"),
            Expected::Crash(message) => write!(f, "JavaScript error: {message}"),
        }
    }
}

/// Reads every case below `folder`, ordered by file name. Skips a case whose expression file does not exist, because a
/// folder may contain a part of the suite.
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
                    eprintln!("{name} is skipped: its expression file does not exist");
                }
                cases.extend(case);
            }
        }
    }
    if cases.is_empty() {
        return Err(format!("found no cases in {}", folder.display()));
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
        (None, None) => return Err("it has neither `expr` nor `expr-file`".to_owned()),
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
    let value = row.get("result").cloned().ok_or("it has no expected result")?;
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
    serde_json::from_str(&paired(&text)).map_err(|error| format!("{}: {error}", file.display()))
}

/// Escapes every unpaired half of a surrogate pair once more. JavaScript strings can contain unpaired halves and ours
/// cannot, so the expression receives the escape sequence itself.
pub(super) fn paired(text: &str) -> String {
    let half = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok().filter(|unit| (0xD800..0xE000).contains(unit))
    };
    let (mut made, mut at) = (String::with_capacity(text.len()), 0);
    while let Some(c) = text[at..].chars().next() {
        let is_pair =
            half(at).is_some_and(|unit| unit < 0xDC00) && half(at + 6).is_some_and(|unit| unit >= 0xDC00);
        let taken = match (c, half(at)) {
            ('\\', Some(_)) if is_pair => 12,
            ('\\', Some(_)) => {
                made.push('\\');
                6
            }
            ('\\', None) => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            (c, _) => c.len_utf8(),
        };
        made.push_str(&text[at..at + taken]);
        at += taken;
    }
    made
}

/// Compares two values; 1 equals 1.0. The order of the items is ignored if `is_unordered`.
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

/// Compares two values; numbers that are neighbours are the same.
pub(super) fn nearly_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a == b || a.next_up() == b || a.next_down() == b,
            _ => false,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| nearly_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| nearly_same(a, b)))
        }
        (Value::String(a), Value::String(b)) => nearly_same_text(a, b),
        _ => a == b,
    }
}

/// Compares two texts; numbers in them may differ by the rounding to 15 digits.
fn nearly_same_text(a: &str, b: &str) -> bool {
    let split = |c: char| !c.is_ascii_digit() && !".e+-".contains(c);
    let numbers = |text: &str| text.split(split).map(str::parse::<f64>).collect::<Vec<_>>();
    let others = |text: &str| text.chars().filter(|c| split(*c)).collect::<String>();
    let is_same = |(a, b): (&Result<f64, _>, &Result<f64, _>)| match (a, b) {
        (Ok(a), Ok(b)) => (a - b).abs() <= a.abs() * 1e-14,
        (a, b) => a.is_err() && b.is_err(),
    };
    let (left, right) = (numbers(a), numbers(b));
    a == b || others(a) == others(b) && left.len() == right.len() && left.iter().zip(&right).all(is_same)
}

#[cfg(test)]
mod tests {
    use super::paired;

    #[test]
    fn unpaired_surrogates_are_escaped_again() {
        let cases = [
            (r#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""a\ud83d""#, r#""a\\ud83d""#),
            (r#""\ude00\ud83d\u0041""#, r#""\\ude00\\ud83d\u0041""#),
            (r#""\\ud83d \" \u00e4ä""#, r#""\\ud83d \" \u00e4ä""#),
        ];
        for (text, expected) in cases {
            assert_eq!(paired(text), expected);
            assert!(serde_json::from_str::<serde_json::Value>(&paired(text)).is_ok());
        }
    }
}
