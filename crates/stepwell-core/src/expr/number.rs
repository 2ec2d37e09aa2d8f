//! Arithmetic and comparison of numbers, exact for 64-bit integers.
//!
//! JSONata computes with doubles. Ids and amounts beyond 2^53 must survive a workflow, so integers stay integers
//! here, and an overflow is an error instead of a rounded result.

use std::cmp::Ordering;

use super::ast::Op;

#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    /// Data may contain signed or unsigned 64-bit integers. Results fit in an `i64`.
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

    /// Parses a number as JSONata's `$number` does. Returns `None` if the text is not a number or does not fit.
    pub(super) fn written(text: &str) -> Option<Number> {
        if let Some((prefix, digits)) = text.split_at_checked(2)
            && let Some(base) = base(prefix)
        {
            let is_digits = digits.bytes().all(|b| char::from(b).is_digit(base));
            let written = i64::from_str_radix(digits, base).ok().filter(|_| is_digits);
            return written.map(|integer| Number::Integer(integer.into()));
        }
        if !is_number(text) {
            return None;
        }
        if text.contains(['.', 'e', 'E']) {
            return text.parse().ok().filter(|number: &f64| number.is_finite()).map(Number::Decimal);
        }
        text.parse::<i64>().ok().map(|integer| Number::Integer(integer.into()))
    }

    /// Computes `self op other`, or returns the error message.
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

    /// Compares two numbers. An integer and a decimal are compared by their exact values, because converting either
    /// could make them equal.
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

    /// Formats a number as JSONata does. Fractions are rounded to 15 digits, so that 0.1 + 0.2 gives 0.3.
    pub(super) fn text(self) -> String {
        match self {
            Number::Integer(integer) => integer.to_string(),
            Number::Decimal(decimal) => decimal_text(to_15_digits(decimal)),
        }
    }

    /// Returns true if the number has no fraction.
    pub(super) fn is_whole(self) -> bool {
        match self {
            Number::Integer(_) => true,
            Number::Decimal(decimal) => decimal.fract() == 0.0,
        }
    }

    /// Rounds down to an index into a list. A number that is out of range saturates.
    pub(super) fn floor_index(self) -> i64 {
        match self {
            Number::Integer(integer) => i64::try_from(integer).unwrap_or(i64::MAX),
            // The cast saturates.
            Number::Decimal(decimal) => decimal.floor() as i64,
        }
    }

    /// Truncates the fraction. A number that is out of range saturates.
    pub(super) fn to_integer(self) -> i128 {
        match self {
            Number::Integer(integer) => integer,
            // The cast saturates.
            Number::Decimal(decimal) => decimal as i128,
        }
    }

    /// Creates a number from a decimal without a fraction: an integer if it fits.
    pub(super) fn whole(decimal: f64) -> Number {
        const LIMIT: f64 = 9_223_372_036_854_775_808.0;
        if (-LIMIT..LIMIT).contains(&decimal) && decimal.fract() == 0.0 {
            Number::Integer((decimal as i64).into())
        } else {
            Number::Decimal(decimal)
        }
    }

    /// Applies a rounding function. An integer is returned unchanged.
    pub(super) fn to_whole(self, round: impl FnOnce(f64) -> f64) -> Number {
        match self {
            Number::Integer(_) => self,
            Number::Decimal(decimal) => Number::whole(round(decimal)),
        }
    }

    pub(super) fn is_negative(self) -> bool {
        match self {
            Number::Integer(integer) => integer < 0,
            Number::Decimal(decimal) => decimal < 0.0,
        }
    }

    /// Rounds to this number of decimal places, with ties to the even digit, as JSONata does.
    pub(super) fn rounded(self, digits: i64) -> Number {
        match self {
            Number::Integer(integer) if digits < 0 => Number::Integer(rounded_integer(integer, digits)),
            Number::Integer(_) => self,
            Number::Decimal(decimal) if digits == 0 => Number::whole(decimal.round_ties_even()),
            Number::Decimal(decimal) => rounded_decimal(decimal, digits),
        }
    }

    /// Computes a power, exactly if it fits in 64 bits. Returns `None` if the result is not a finite number.
    pub(super) fn power(self, exponent: Number) -> Option<Number> {
        if let (Number::Integer(base), Number::Integer(exponent)) = (self, exponent)
            && let Some(exact) = u32::try_from(exponent).ok().and_then(|exponent| base.checked_pow(exponent))
            && i64::try_from(exact).is_ok()
        {
            return Some(Number::Integer(exact));
        }
        let (base, exponent) = (self.as_f64(), exponent.as_f64());
        // A square is exact to the last digit, which `powf` is not.
        let power = if exponent == 2.0 { base * base } else { base.powf(exponent) };
        power.is_finite().then_some(Number::Decimal(power))
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Number::Integer(integer) => integer as f64,
            Number::Decimal(decimal) => decimal,
        }
    }
}

/// Returns the base of a number prefix, or `None` for other texts.
fn base(prefix: &str) -> Option<u32> {
    match prefix {
        "0x" | "0X" => Some(16),
        "0o" | "0O" => Some(8),
        "0b" | "0B" => Some(2),
        _ => None,
    }
}

fn rounded_integer(integer: i128, digits: i64) -> i128 {
    let places = u32::try_from(digits.unsigned_abs()).unwrap_or(u32::MAX);
    // If more places are removed than the integer has, the result is 0.
    let Some(unit) = 10i128.checked_pow(places.min(30)) else { return 0 };
    let (whole, rest) = (integer.div_euclid(unit), integer.rem_euclid(unit));
    let is_up = match (rest * 2).cmp(&unit) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => whole % 2 != 0,
    };
    (whole + i128::from(is_up)) * unit
}

/// Rounds a decimal. The decimal point is moved in the text of the number, because multiplying by a power of ten
/// would add rounding errors.
fn rounded_decimal(decimal: f64, digits: i64) -> Number {
    let shifted = shifted(decimal, digits);
    if !shifted.is_finite() {
        return Number::Decimal(decimal);
    }
    let rounded = self::shifted(shifted.round_ties_even(), -digits);
    if digits < 0 { Number::whole(rounded) } else { Number::Decimal(rounded + 0.0) }
}

/// Moves the decimal point `places` to the right.
fn shifted(decimal: f64, places: i64) -> f64 {
    let text = format!("{decimal:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent = exponent.parse::<i64>().unwrap_or(0).saturating_add(places);
    format!("{mantissa}e{exponent}").parse().unwrap_or(f64::NAN)
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
        // Turns negative zero into zero.
        0.0 => Ok(Number::Decimal(0.0)),
        _ if result.is_finite() => Ok(Number::Decimal(result)),
        _ => Err("the result is too large for a number"),
    }
}

fn integer_with_decimal(integer: i128, decimal: f64) -> Ordering {
    // The cast saturates, and all integers here are far from the limits of an `i128`.
    integer
        .cmp(&(decimal.trunc() as i128))
        .then_with(|| 0.0.partial_cmp(&decimal.fract()).unwrap_or(Ordering::Equal))
}

/// Returns true if the text matches `-?digits(.digits)?(e[+-]?digits)?`.
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

/// Rounds to 15 digits like ECMAScript's `toPrecision(15)`, except whole numbers, as JSONata does. Ties are rounded
/// away from zero, while Rust's formatting rounds them to even.
fn to_15_digits(decimal: f64) -> f64 {
    if !decimal.is_finite() || decimal.fract() == 0.0 {
        return decimal;
    }
    let size = decimal.abs();
    // One digit, the decimal point and 30 digits: the sixteenth digit is at index 16.
    let digits = format!("{size:.30e}");
    let is_tie = digits[16..].starts_with('5') && digits[17..32].bytes().all(|b| b == b'0');
    let nudged = if is_tie { size.next_up() } else { size };
    let rounded = format!("{nudged:.14e}").parse().ok().filter(|rounded: &f64| rounded.is_finite());
    rounded.unwrap_or(size).copysign(decimal)
}

/// Formats a number like ECMAScript.
fn decimal_text(decimal: f64) -> String {
    match decimal.abs() {
        0.0 => "0".to_owned(),
        size if (1e-6..1e21).contains(&size) => decimal.to_string(),
        size if size >= 1e21 => format!("{decimal:e}").replace('e', "e+"),
        _ => format!("{decimal:e}"),
    }
}
