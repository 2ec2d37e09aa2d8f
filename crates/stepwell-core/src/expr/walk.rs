//! Traversals of whole values: truth, equality, size, text, and conversion to JSON.
//!
//! Values come from outside and may be large or deep. Every traversal spends the budget, and no recursion is
//! unbounded.

use std::rc::Rc;

use serde_json::{Map, Value};

use super::budget::{Budget, Overspent};
use super::value::{Fields, MAX_HEIGHT, Val, View};

/// Returns the truth of a value by JSONata's rules. A list is true if any of its items is, at any depth.
pub(super) fn is_true(value: &Val<'_>, budget: &mut Budget) -> Result<bool, Overspent> {
    let mut open = Vec::new();
    let mut next = Some(value.clone());
    while let Some(value) = next {
        let found = match value.view() {
            View::Null => false,
            View::Bool(truth) => truth,
            View::Number(number) => !number.is_zero(),
            View::Text(text) => !text.is_empty(),
            View::Object(fields) => fields.len() > 0,
            View::List(items) => {
                budget.spend_steps(items.len())?;
                open.extend(items.iter());
                false
            }
        };
        if found {
            return Ok(true);
        }
        next = open.pop();
    }
    Ok(false)
}

/// Compares two values deeply. 1 and 1.0 are equal.
pub(super) fn is_equal(left: &Val<'_>, right: &Val<'_>, budget: &mut Budget) -> Result<bool, Overspent> {
    let mut open = Vec::new();
    let mut next = Some((left.clone(), right.clone()));
    while let Some((left, right)) = next {
        let same = match (left.view(), right.view()) {
            (View::Null, View::Null) => true,
            (View::Bool(a), View::Bool(b)) => a == b,
            (View::Number(a), View::Number(b)) => a.compare(b).is_eq(),
            (View::Text(a), View::Text(b)) => {
                budget.spend_reading(a.len().min(b.len()))?;
                a == b
            }
            (View::List(a), View::List(b)) if a.len() == b.len() => {
                budget.spend_steps(a.len())?;
                open.extend(a.iter().zip(b.iter()));
                true
            }
            (View::Object(a), View::Object(b)) if a.len() == b.len() => {
                budget.spend_steps(a.len())?;
                let pairs = a.sorted().into_iter().map(|(name, left)| b.get(name).map(|right| (left, right)));
                let pairs: Option<Vec<_>> = pairs.collect();
                let same = pairs.is_some();
                open.extend(pairs.into_iter().flatten());
                same
            }
            _ => false,
        };
        if !same {
            return Ok(false);
        }
        next = open.pop();
    }
    Ok(true)
}

/// Charges the budget for a copy of `value`: roughly the size of its JSON text, and never more.
fn spend_copy(value: &Value, budget: &mut Budget) -> Result<(), Overspent> {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Null | Value::Bool(_) => budget.spend_copied(4)?,
            Value::Number(number) => budget.spend_copied(digits(number))?,
            Value::String(text) => budget.spend_copied(text.len() + 2)?,
            Value::Array(items) => {
                budget.spend_copied(items.len().max(1) + 1)?;
                open.extend(items);
            }
            Value::Object(fields) => {
                budget.spend_copied(fields.len().max(1) + 1)?;
                for (key, value) in fields {
                    budget.spend_copied(key.len() + 3)?;
                    open.push(value);
                }
            }
        }
    }
    Ok(())
}

/// Returns the number of digits of an integer, or the length of the shortest fraction.
fn digits(number: &serde_json::Number) -> usize {
    const SHORTEST_FRACTION: usize = "0.5".len();
    let size = number.as_u64().or(number.as_i64().map(i64::unsigned_abs));
    let digits = size.map(|size| size.checked_ilog10().unwrap_or(0) + 1);
    digits.and_then(|digits| usize::try_from(digits).ok()).unwrap_or(SHORTEST_FRACTION)
}

/// Converts a value to JSON. Computed text was charged when it was created.
pub(super) fn to_json(value: Val<'_>, budget: &mut Budget) -> Result<Value, Overspent> {
    Ok(match value {
        Val::Ref(value) => {
            spend_copy(value, budget)?;
            value.clone()
        }
        Val::Bool(truth) => Value::Bool(truth),
        Val::Integer(integer) => Value::from(integer),
        Val::Decimal(decimal) => Value::from(decimal),
        Val::Text(text) => match Rc::try_unwrap(text) {
            Ok(text) => Value::String(text),
            Err(shared) => {
                budget.spend_bytes(shared.len())?;
                Value::String(String::clone(&shared))
            }
        },
        Val::List(list) => {
            budget.spend_bytes(list.items.len() * 4 + 2)?;
            let items = match Rc::try_unwrap(list) {
                Ok(list) => list.items,
                Err(shared) => shared.items.clone(),
            };
            Value::Array(items.into_iter().map(|item| to_json(item, budget)).collect::<Result<_, _>>()?)
        }
        Val::Object(object) => {
            let fields = match Rc::try_unwrap(object) {
                Ok(object) => object.fields,
                Err(shared) => shared.fields.clone(),
            };
            let mut map = Map::new();
            for (name, field) in fields {
                budget.spend_bytes(name.len() + 5)?;
                map.insert(name, to_json(field, budget)?);
            }
            Value::Object(map)
        }
    })
}

/// Converts a value to text, as `&` and `$string` do.
pub(super) fn text(value: &Val<'_>, budget: &mut Budget) -> Result<String, Overspent> {
    let mut text = String::new();
    append_text(value, &mut text, budget)?;
    Ok(text)
}

/// Appends a value as text, as `&` and `$string` do: a string unchanged, anything else as JSON.
pub(super) fn append_text(value: &Val<'_>, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    match value.as_text() {
        Some(string) => append(string, text, budget),
        None => Writer { text, budget, is_pretty: false }.value(value, 0),
    }
}

/// Formats a value as indented JSON, two spaces per level.
pub(super) fn pretty(value: &Val<'_>, budget: &mut Budget) -> Result<String, Overspent> {
    let mut text = String::new();
    match value.as_text() {
        Some(string) => append(string, &mut text, budget)?,
        None => Writer { text: &mut text, budget, is_pretty: true }.value(value, 0)?,
    }
    Ok(text)
}

/// Appends text and charges the budget.
fn append(more: &str, text: &mut String, budget: &mut Budget) -> Result<(), Overspent> {
    budget.spend_bytes(more.len())?;
    text.push_str(more);
    Ok(())
}

struct Writer<'t, 'b> {
    text: &'t mut String,
    budget: &'b mut Budget,
    is_pretty: bool,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Val<'_>, depth: u32) -> Result<(), Overspent> {
        if depth > MAX_HEIGHT {
            return Err(Overspent::Depth);
        }
        match value.view() {
            View::Null => self.put("null"),
            View::Bool(truth) => self.put(if truth { "true" } else { "false" }),
            View::Number(number) => self.put(&number.text()),
            View::Text(text) => self.quoted(text),
            View::List(items) => {
                self.put("[")?;
                for (index, item) in items.iter().enumerate() {
                    self.next(index, depth)?;
                    self.value(&item, depth + 1)?;
                }
                self.end(items.len(), depth)?;
                self.put("]")
            }
            View::Object(fields) => self.object(fields, depth),
        }
    }

    fn object(&mut self, fields: Fields<'_, '_>, depth: u32) -> Result<(), Overspent> {
        self.put("{")?;
        for (index, (name, field)) in fields.sorted().into_iter().enumerate() {
            self.next(index, depth)?;
            self.quoted(name)?;
            self.put(if self.is_pretty { ": " } else { ":" })?;
            self.value(&field, depth + 1)?;
        }
        self.end(fields.len(), depth)?;
        self.put("}")
    }

    /// Writes the separator before a member.
    fn next(&mut self, index: usize, depth: u32) -> Result<(), Overspent> {
        self.put(if index > 0 { "," } else { "" })?;
        if self.is_pretty { self.line(depth + 1) } else { Ok(()) }
    }

    /// Writes the line break after the last of `count` members.
    fn end(&mut self, count: usize, depth: u32) -> Result<(), Overspent> {
        if self.is_pretty && count > 0 { self.line(depth) } else { Ok(()) }
    }

    fn line(&mut self, depth: u32) -> Result<(), Overspent> {
        self.put("\n")?;
        (0..depth).try_for_each(|_| self.put("  "))
    }

    fn put(&mut self, more: &str) -> Result<(), Overspent> {
        append(more, self.text, self.budget)
    }

    /// Writes a string as JSON. The length is checked first, to avoid a large copy that would exceed the budget.
    fn quoted(&mut self, string: &str) -> Result<(), Overspent> {
        if string.len() > self.budget.result_bytes {
            return Err(Overspent::Bytes);
        }
        let quoted = serde_json::to_string(string).expect("a string always has a JSON text");
        self.put(&quoted)
    }
}
