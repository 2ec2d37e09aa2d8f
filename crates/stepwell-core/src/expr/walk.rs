//! Walks over whole values: their truth, equality, size and text.
//!
//! Values come from outside and may be large or deep. Every walk pays for what it touches, and none recurses
//! without a bound.

use serde_json::{Map, Value};

use super::number::Number;
use super::{Budget, Overspent};

/// The deepest value that is turned into text: what `serde_json` itself would read.
const MAX_VALUE_DEPTH: u32 = 128;

/// JSONata's truth. A list is true if any member is, however deep.
pub(super) fn is_true(value: &Value, budget: &mut Budget) -> Result<bool, Overspent> {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        let found = match value {
            Value::Null => false,
            Value::Bool(truth) => *truth,
            Value::Number(number) => !Number::of(number).is_zero(),
            Value::String(text) => !text.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Array(items) => {
                budget.spend_steps(items.len())?;
                open.extend(items);
                false
            }
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deep equality, in which 1 and 1.0 are equal.
pub(super) fn is_equal(left: &Value, right: &Value, budget: &mut Budget) -> Result<bool, Overspent> {
    let mut open = vec![(left, right)];
    while let Some((left, right)) = open.pop() {
        let same = match (left, right) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => Number::of(a).compare(Number::of(b)).is_eq(),
            (Value::String(a), Value::String(b)) => {
                budget.spend_reading(a.len().min(b.len()))?;
                a == b
            }
            (Value::Array(a), Value::Array(b)) => {
                budget.spend_steps(a.len().min(b.len()))?;
                open.extend(a.iter().zip(b));
                a.len() == b.len()
            }
            (Value::Object(a), Value::Object(b)) => {
                budget.spend_steps(a.len().min(b.len()))?;
                a.len() == b.len() && same_keys(a, b, &mut open)
            }
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Pays for a copy of `value`, by roughly the size of its JSON text.
pub(super) fn spend_copy(value: &Value, budget: &mut Budget) -> Result<(), Overspent> {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Null | Value::Bool(_) => budget.spend_bytes(4)?,
            Value::Number(_) => budget.spend_bytes(8)?,
            Value::String(text) => budget.spend_bytes(text.len() + 2)?,
            Value::Array(items) => {
                budget.spend_bytes(items.len() + 2)?;
                open.extend(items);
            }
            Value::Object(fields) => {
                budget.spend_bytes(fields.len() + 2)?;
                for (key, value) in fields {
                    budget.spend_bytes(key.len() + 3)?;
                    open.push(value);
                }
            }
        }
    }
    Ok(())
}

/// A value as `&` and `$string` see it.
pub(super) fn text(value: &Value, budget: &mut Budget) -> Result<String, Overspent> {
    let mut text = String::new();
    append_text(value, &mut text, budget)?;
    Ok(text)
}

/// Appends a value as `&` and `$string` see it: a string as it is, anything else as its JSON text.
pub(super) fn append_text(value: &Value, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    match value {
        Value::String(string) => append(string, text, budget),
        _ => append_json(value, 0, text, budget),
    }
}

/// Appends and pays.
fn append(more: &str, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    budget.spend_bytes(more.len())?;
    text.push_str(more);
    Ok(())
}

fn append_json(value: &Value, depth: u32, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    if depth > MAX_VALUE_DEPTH {
        return Err(Overspent::Depth);
    }
    match value {
        Value::Null => append("null", text, budget),
        Value::Bool(truth) => append(if *truth { "true" } else { "false" }, text, budget),
        Value::Number(number) => append(&Number::of(number).text(), text, budget),
        Value::String(string) => append_quoted(string, text, budget),
        Value::Array(items) => {
            append("[", text, budget)?;
            for (index, item) in items.iter().enumerate() {
                append(if index > 0 { "," } else { "" }, text, budget)?;
                append_json(item, depth + 1, text, budget)?;
            }
            append("]", text, budget)
        }
        Value::Object(fields) => {
            append("{", text, budget)?;
            // Sorted here too, so that the text is the same if a host builds `serde_json` with
            // `preserve_order`.
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(key, _)| *key);
            for (index, (key, field)) in sorted.into_iter().enumerate() {
                append(if index > 0 { "," } else { "" }, text, budget)?;
                append_quoted(key, text, budget)?;
                append(":", text, budget)?;
                append_json(field, depth + 1, text, budget)?;
            }
            append("}", text, budget)
        }
    }
}

/// A string as JSON writes it. The plain length is looked at first, so that no huge copy is made for nothing.
fn append_quoted(string: &str, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    if string.len() > budget.result_bytes {
        return Err(Overspent::Bytes);
    }
    let quoted = serde_json::to_string(string).expect("a string always has a JSON text");
    append(&quoted, text, budget)
}

/// Whether `b` has every key of `a`; their values are left for later.
fn same_keys<'a>(
    a: &'a Map<String, Value>,
    b: &'a Map<String, Value>,
    open: &mut Vec<(&'a Value, &'a Value)>,
) -> bool {
    a.iter().all(|(key, left)| {
        let right = b.get(key);
        open.extend(right.map(|right| (left, right)));
        right.is_some()
    })
}
