//! Arithmetic and order of numbers, exact for 64-bit integers.
//!
//! JSONata counts in doubles. Ids and amounts beyond 2^53 must survive a workflow, so integers stay integers
//! here and an overflow is an error instead of a rounded answer.

use std::cmp::Ordering;

use serde_json::Value;

use super::ast::Op;

#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    /// Data may hold 64-bit integers of either signedness; results fit in an `i64`.
    Integer(i128),
    Decimal(f64),
}

impl Number {
    pub(super) fn of(number: &serde_json::Number) -> Number {
        match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Number::Integer(integer.into()),
            (_, Some(integer)) => Number::Integer(integer.into()),
            _ => Number::Decimal(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    /// A number written as text, as JSONata's `$number` takes it; `None` if it is none or does not fit.
    pub(super) fn written(text: &str) -> Option<Number> {
        if !is_number(text) {
            return None;
        }
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().filter(|number: &f64| number.is_finite()).map(Number::Decimal);
        }
        text.parse::<i64>().ok().map(|integer| Number::Integer(integer.into()))
    }

    /// `self op other`, or what is wrong with it.
    pub(super) fn calculate(self, op: Op, other: Number) -> Result<Number, &'static str> {
        if matches!(op, Op::Divide | Op::Remainder) && other.is_zero() {
            return Err("division by zero");
        }
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => integers(a, op, b),
            _ => decimals(self.as_f64(), op, other.as_f64()),
        }
    }

    pub(super) fn negated(self) -> Result<Number, &'static str> {
        Number::Integer(0).calculate(Op::Subtract, self)
    }

    /// An integer and a decimal are compared by their exact values; converting either could make them equal.
    pub(super) fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => a.cmp(&b),
            (Number::Decimal(a), Number::Decimal(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Number::Integer(a), Number::Decimal(b)) => integer_with_decimal(a, b),
            (Number::Decimal(a), Number::Integer(b)) => integer_with_decimal(b, a).reverse(),
        }
    }

    pub(super) fn is_zero(self) -> bool {
        match self {
            Number::Integer(integer) => integer == 0,
            Number::Decimal(decimal) => decimal == 0.0,
        }
    }

    /// The text JSONata gives a number: a fraction is rounded to 15 digits, so that 0.1 + 0.2 reads 0.3.
    pub(super) fn text(self) -> String {
        match self {
            Number::Integer(integer) => integer.to_string(),
            Number::Decimal(decimal) => decimal_text(to_15_digits(decimal)),
        }
    }

    fn as_f64(self) -> f64 {
        match self {
            Number::Integer(integer) => integer as f64,
            Number::Decimal(decimal) => decimal,
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Value {
        match number {
            // A result fits by construction; data beyond `i64` is a `u64`.
            Number::Integer(integer) => match i64::try_from(integer) {
                Ok(integer) => Value::from(integer),
                Err(_) => Value::from(integer as u64),
            },
            Number::Decimal(decimal) => Value::from(decimal),
        }
    }
}

fn integers(a: i128, op: Op, b: i128) -> Result<Number, &'static str> {
    let result = match op {
        Op::Add => a.checked_add(b),
        Op::Subtract => a.checked_sub(b),
        Op::Multiply => a.checked_mul(b),
        Op::Divide if a % b != 0 => return decimals(a as f64, op, b as f64),
        Op::Divide => a.checked_div(b),
        _ => a.checked_rem(b),
    };
    let fits = result.and_then(|integer| i64::try_from(integer).ok());
    fits.map(|integer| Number::Integer(integer.into())).ok_or("the result does not fit in 64 bits")
}

fn decimals(a: f64, op: Op, b: f64) -> Result<Number, &'static str> {
    let result = match op {
        Op::Add => a + b,
        Op::Subtract => a - b,
        Op::Multiply => a * b,
        Op::Divide => a / b,
        _ => a % b,
    };
    match result {
        // JSON has no negative zero to speak of.
        0.0 => Ok(Number::Decimal(0.0)),
        _ if result.is_finite() => Ok(Number::Decimal(result)),
        _ => Err("the result is too large for a number"),
    }
}

fn integer_with_decimal(integer: i128, decimal: f64) -> Ordering {
    // The cast saturates, and no integer here comes near the bounds of an `i128`.
    integer
        .cmp(&(decimal.trunc() as i128))
        .then_with(|| 0.0.partial_cmp(&decimal.fract()).unwrap_or(Ordering::Equal))
}

/// `-?digits(.digits)?(e[+-]?digits)?`
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole) && fraction.is_none_or(digits) && exponent.is_none_or(digits)
}

/// ECMAScript's `toPrecision(15)`, left alone for whole numbers as JSONata does. It rounds a tie away from
/// zero where Rust's formatting rounds it to even.
fn to_15_digits(decimal: f64) -> f64 {
    if !decimal.is_finite() || decimal.fract() == 0.0 {
        return decimal;
    }
    let size = decimal.abs();
    // One digit, the point and 30 digits: the sixteenth digit is at 16.
    let digits = format!("{size:.30e}");
    let is_tie = digits[16..].starts_with('5') && digits[17..32].bytes().all(|b| b == b'0');
    let nudged = if is_tie { size.next_up() } else { size };
    let rounded = format!("{nudged:.14e}").parse().ok().filter(|rounded: &f64| rounded.is_finite());
    rounded.unwrap_or(size).copysign(decimal)
}

/// ECMAScript's text of a number.
fn decimal_text(decimal: f64) -> String {
    match decimal.abs() {
        0.0 => "0".to_owned(),
        size if (1e-6..1e21).contains(&size) => decimal.to_string(),
        size if size >= 1e21 => format!("{decimal:e}").replace('e', "e+"),
        _ => format!("{decimal:e}"),
    }
}
