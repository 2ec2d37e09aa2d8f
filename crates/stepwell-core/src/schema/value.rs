//! Values for schema validation: exact numbers, equality of differently written numbers, sizes, and short texts for
//! messages.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Number, Value};

/// A number independent of its notation: 1 and 1.0 are equal.
pub(super) enum Exact {
    Whole(i128),
    /// A number with a fraction, or outside the range of `i128`.
    Other(f64),
}

impl Exact {
    pub(super) fn of(number: &Number) -> Exact {
        let float = || number.as_f64().unwrap_or(f64::MAX);
        match number.as_i128() {
            Some(whole) => Exact::Whole(whole),
            None if float().fract() == 0.0 && float().abs() < 2f64.powi(127) => Exact::Whole(float() as i128),
            None => Exact::Other(float()),
        }
    }
}

pub(super) fn order(a: &Number, b: &Number) -> Ordering {
    // Comparing mixed pairs as floats is exact too. An `Other` is either so small that all integers near it are exact
    // floats, or so large that no `Whole` reaches it.
    let (a, b) = match (Exact::of(a), Exact::of(b)) {
        (Exact::Whole(a), Exact::Whole(b)) => return a.cmp(&b),
        (Exact::Whole(a), Exact::Other(b)) => (a as f64, b),
        (Exact::Other(a), Exact::Whole(b)) => (a, b as f64),
        (Exact::Other(a), Exact::Other(b)) => (a, b),
    };
    a.total_cmp(&b)
}

/// Replaces 1.0 by 1 everywhere in the value, so that `==` is the equality of JSON Schema.
pub(super) fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => match Exact::of(number) {
            Exact::Whole(whole) => Number::from_i128(whole).map_or_else(|| value.clone(), Value::Number),
            Exact::Other(_) => value.clone(),
        },
        Value::Array(list) => list.iter().map(plain).collect(),
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        _ => value.clone(),
    }
}

pub(super) fn plain_values(value: &Value) -> Option<Vec<Value>> {
    value.as_array().map(|list| list.iter().map(plain).collect())
}

pub(super) fn equal_items(list: &[Value]) -> Option<(usize, usize)> {
    let mut seen = BTreeMap::new();
    list.iter().enumerate().find_map(|(index, value)| {
        let mut value = plain(value);
        // Only has an effect if the host enables `preserve_order` of `serde_json`.
        value.sort_all_objects();
        seen.insert(value.to_string(), index).map(|earlier| (earlier, index))
    })
}

/// Returns true if `number` is an integer multiple of `of`.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    let ((digits, exponent), (unit, unit_exponent)) = (decimal(number), decimal(of));
    if exponent >= unit_exponent {
        // Computed digit by digit on the remainder, because 10^600 fits in no integer type.
        return (unit_exponent..exponent).fold(digits % unit, |rest, _| rest * 10 % unit) == 0;
    }
    let scale = 10u128.checked_pow(exponent.abs_diff(unit_exponent));
    scale.and_then(|scale| unit.checked_mul(scale)).map_or(digits == 0, |unit| digits % unit == 0)
}

/// Returns the shortest decimal that represents the number, without its sign: at most 20 digits, and a power of ten.
pub(super) fn decimal(number: &Number) -> (u128, i32) {
    if let Some(whole) = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs)) {
        return (whole.into(), 0);
    }
    let text = format!("{:e}", number.as_f64().unwrap_or(f64::MAX).abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}").parse().expect("a finite float prints at most 17 digits");
    let exponent: i32 = exponent.parse().expect("a float prints its exponent as an integer");
    (digits, exponent - fraction.len() as i32)
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) => match Exact::of(number) {
            Exact::Other(float) if float.fract() != 0.0 => "number",
            _ => "integer",
        },
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

pub(super) fn has_type(value: &Value, types: &[&str]) -> bool {
    let found = type_of(value);
    types.contains(&found) || (found == "integer" && types.contains(&"number"))
}

pub(super) fn number(value: &Value) -> Option<Number> {
    value.as_number().cloned()
}

pub(super) fn positive(value: &Value) -> Option<Number> {
    number(value).filter(|number| order(number, &0.into()).is_gt())
}

pub(super) fn characters(value: &Value) -> Option<Number> {
    value.as_str().map(|text| text.chars().count().into())
}

pub(super) fn items(value: &Value) -> Option<Number> {
    value.as_array().map(|list| list.len().into())
}

pub(super) fn members(value: &Value) -> Option<Number> {
    value.as_object().map(|map| map.len().into())
}

pub(super) fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
    let names = names.collect::<Option<Vec<String>>>()?;
    (names.iter().collect::<BTreeSet<_>>().len() == names.len()).then_some(names)
}

pub(super) fn names_by_name(value: &Value) -> Option<BTreeMap<String, Vec<String>>> {
    value.as_object()?.iter().map(|(name, needed)| Some((name.clone(), names(needed)?))).collect()
}

/// Returns true if the value is nested deeper than `limit`. Uses an explicit stack, because the value may be too deep
/// for recursion.
pub(super) fn deeper_than(value: &Value, limit: usize) -> bool {
    let mut waiting = vec![(value, 0)];
    while let Some((value, depth)) = waiting.pop() {
        match value {
            _ if depth > limit => return true,
            Value::Array(list) => waiting.extend(list.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => waiting.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    false
}

pub(super) fn below(pointer: &str, segment: &str) -> String {
    format!("{pointer}/{}", segment.replace('~', "~0").replace('/', "~1"))
}

pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn none_fits(reasons: &[String]) -> String {
    let numbered = reasons.iter().enumerate().take(4).map(|(i, why)| format!("{}: {}", i + 1, short(why)));
    format!("matches none of {} alternatives ({})", reasons.len(), numbered.collect::<Vec<_>>().join("; "))
}

/// Returns a value with its type for a message, shortened if it is large.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("{} {value}", type_of(value)),
        Value::String(text) => format!("string \"{}\"", short(text)),
        Value::Array(list) => format!("array of length {}", list.len()),
        Value::Object(map) => format!("object of size {}", map.len()),
    }
}

pub(super) fn listed(values: &[Value]) -> String {
    let all: Vec<String> = values.iter().take(8).map(|value| short(&value.to_string())).collect();
    format!("{}{}", all.join(", "), if values.len() > 8 { ", …" } else { "" })
}

pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
