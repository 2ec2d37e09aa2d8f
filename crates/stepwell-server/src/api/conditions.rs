//! Conditions on shadow columns as text: `name=value`, `name^=prefix` and the bounds `<`, `<=`, `>` and `>=`.

use std::collections::BTreeMap;
use std::ops::Bound;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Number, Value};
use stepwell::core::shadow::ShadowValue;
use stepwell::shadows::RunColumns;
use stepwell::store::ShadowFilter;

use crate::routes::problem::Problem;

/// Operators of a condition. An operator precedes those that it begins with.
const OPERATORS: [&str; 6] = ["<=", ">=", "^=", "<", ">", "="];

/// Parses a condition on a shadow column. The value is a JSON number, boolean or string, or else plain text. A prefix is
/// always text.
pub(super) fn condition(text: &str) -> Result<ShadowFilter, Problem> {
    let wrong = || {
        let usage = "write `name=value`, `name^=prefix`, or a bound such as `name>=10`";
        Problem::bad("badParameter", format!("`{text}` is not a condition: {usage}."))
    };
    let at = text.find(['=', '^', '<', '>']).filter(|at| *at > 0).ok_or_else(wrong)?;
    let (name, rest) = text.split_at(at);
    let known = OPERATORS.iter().find_map(|known| Some((*known, rest.strip_prefix(known)?)));
    let (operator, value) = known.ok_or_else(wrong)?;
    let quoted = match serde_json::from_str(value) {
        Ok(Value::String(text)) => text,
        _ => value.to_owned(),
    };
    if operator == "^=" {
        return Ok(ShadowFilter::prefix(name, &quoted));
    }
    let value = match serde_json::from_str(value) {
        Ok(Value::Number(number)) => number.as_f64().map(ShadowValue::from),
        // A boolean has no order, so that a bound is text.
        Ok(Value::Bool(is)) if operator == "=" => Some(ShadowValue::Boolean(is)),
        _ => None,
    };
    let value = value.filter(ShadowValue::fits).unwrap_or(ShadowValue::Text(quoted));
    if operator == "=" {
        return Ok(ShadowFilter::equals(name, value));
    }
    Ok(match value {
        ShadowValue::Number(number) => {
            let (from, to) = bounds(operator, number);
            ShadowFilter::numbers(name, from, to)
        }
        ShadowValue::Text(text) => {
            let (from, to) = bounds(operator, text);
            ShadowFilter::texts(name, from, to)
        }
        ShadowValue::Boolean(is) => ShadowFilter::equals(name, is),
    })
}

fn bounds<T>(operator: &str, value: T) -> (Bound<T>, Bound<T>) {
    match operator {
        "<" => (Bound::Unbounded, Bound::Excluded(value)),
        "<=" => (Bound::Unbounded, Bound::Included(value)),
        ">" => (Bound::Excluded(value), Bound::Unbounded),
        _ => (Bound::Included(value), Bound::Unbounded),
    }
}

/// The value of a shadow column.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ColumnValue {
    Text(String),
    Number(Number),
    Boolean(bool),
}

/// Values of shadow columns by name.
pub(super) type ColumnValues = BTreeMap<String, ColumnValue>;

/// Converts shadow columns for a response. A whole number is written without a fraction.
pub(super) fn column_values(columns: RunColumns) -> ColumnValues {
    let value = |value| match value {
        ShadowValue::Text(text) => ColumnValue::Text(text),
        ShadowValue::Boolean(value) => ColumnValue::Boolean(value),
        ShadowValue::Number(number) => ColumnValue::Number(whole(number)),
    };
    columns.into_iter().map(|(name, held)| (name.to_string(), value(held))).collect()
}

fn whole(number: f64) -> Number {
    // 2^53: every whole number below it is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Number::from(number as i64);
    }
    Number::from_f64(number).expect("a shadow column holds finite numbers")
}
