//! Implementation of `$formatInteger` and `$parseInteger`.

use super::pattern::{ASCII_ZERO, Decimal, Form, Grouping, Pattern};
use super::{Fault, LONGEST, bounded, shown, words};

const ROMAN: [(u128, &str); 12] = [
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
];

/// A parsed whole number: exact if it fits in 128 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::expr) enum Whole {
    Exact(i128),
    Large(f64),
}

impl Whole {
    pub(super) fn plus(self, other: Whole) -> Whole {
        self.combined(other, i128::checked_add, |a, b| a + b)
    }

    pub(super) fn times(self, factor: u64) -> Whole {
        self.combined(Whole::Exact(factor.into()), i128::checked_mul, |a, b| a * b)
    }

    pub(super) fn is_below(self, bound: u64) -> bool {
        match self {
            Whole::Exact(exact) => exact < bound.into(),
            Whole::Large(large) => large < bound as f64,
        }
    }

    fn combined(
        self,
        other: Whole,
        exact: impl Fn(i128, i128) -> Option<i128>,
        large: impl Fn(f64, f64) -> f64,
    ) -> Whole {
        let result = match (self, other) {
            (Whole::Exact(a), Whole::Exact(b)) => exact(a, b),
            _ => None,
        };
        result.map_or_else(|| Whole::Large(large(self.as_f64(), other.as_f64())), Whole::Exact)
    }

    fn as_f64(self) -> f64 {
        match self {
            Whole::Exact(exact) => exact as f64,
            Whole::Large(large) => large,
        }
    }
}

/// Formats a whole number with a picture.
pub(in crate::expr) fn format_integer(value: i128, picture: &str) -> Result<String, Fault> {
    written(value < 0, &value.unsigned_abs().to_string(), &Pattern::read(picture)?)
}

/// Formats a decimal number, rounded down, with a picture. Uses the digits of its shortest text: 1e25 is ten trillion
/// trillion, not the exact value of the nearest double.
pub(in crate::expr) fn format_float(value: f64, picture: &str) -> Result<String, Fault> {
    let pattern = Pattern::read(picture)?;
    if !value.is_finite() {
        return Err(Fault::new("D1001", format!("{value} cannot be formatted")));
    }
    let whole = value.floor();
    written(whole < 0.0, &whole.abs().to_string(), &pattern)
}

/// Parses a whole number that was formatted with a picture.
#[cfg(test)]
pub(in crate::expr) fn parse_integer(text: &str, picture: &str) -> Result<i128, Fault> {
    match parse_whole(text, picture)? {
        Whole::Exact(exact) => Ok(exact),
        Whole::Large(_) => Err(Fault::new("D1001", format!("{} is too large for an integer", shown(text)))),
    }
}

/// Parses a whole number of any size that was formatted with a picture.
pub(in crate::expr) fn parse_whole(text: &str, picture: &str) -> Result<Whole, Fault> {
    bounded(text, "the text")?;
    let whole = read(text, &Pattern::read(picture)?)?;
    let whole = whole.filter(|whole| whole.as_f64().is_finite());
    whole.ok_or_else(|| {
        let message = format!("{} does not match the picture {}", shown(text), shown(picture));
        Fault::new("D3030", message)
    })
}

/// Formats a number given as decimal ASCII digits.
pub(super) fn written(negative: bool, digits: &str, pattern: &Pattern) -> Result<String, Fault> {
    let text = match &pattern.form {
        Form::Letters(case) => case.apply(&letters(small(digits)?)),
        Form::Roman(case) => case.apply(&roman(small(digits)?)?),
        Form::Words(case) => case.apply(&words::spelled(digits, pattern.ordinal)),
        Form::Decimal(decimal) => grouped(digits, decimal, pattern.ordinal),
        Form::Sequence(token) => return Err(no_sequence(token)),
    };
    Ok(if negative { format!("-{text}") } else { text })
}

fn no_sequence(token: &str) -> Fault {
    Fault::new("D3130", format!("unknown numbering sequence {}", shown(token)))
}

fn small(digits: &str) -> Result<u128, Fault> {
    digits.parse().map_err(|_| {
        Fault::unsupported(format!("{} is too large for letters or Roman numerals", shown(digits)))
    })
}

/// Formats a number as letters, like the columns of a spreadsheet: A, B, …, Z, AA, AB, …
fn letters(mut number: u128) -> String {
    let mut reversed = Vec::new();
    while number > 0 {
        number -= 1;
        reversed.push(char::from(b'A' + (number % 26) as u8));
        number /= 26;
    }
    reversed.into_iter().rev().collect()
}

fn roman(number: u128) -> Result<String, Fault> {
    let thousands = usize::try_from(number / 1000).ok().filter(|thousands| *thousands <= LONGEST);
    let Some(thousands) = thousands else {
        return Err(Fault::unsupported(format!("{number} is too large for Roman numerals")));
    };
    let mut text = "M".repeat(thousands);
    let mut rest = number % 1000;
    for (value, numeral) in ROMAN {
        while rest >= value {
            text.push_str(numeral);
            rest -= value;
        }
    }
    Ok(text)
}

fn grouped(digits: &str, decimal: &Decimal, ordinal: bool) -> String {
    let digits = format!("{digits:0>width$}", width = decimal.mandatory);
    let mut text = String::new();
    for (at, digit) in digits.bytes().enumerate() {
        if at > 0 {
            push_separators(&mut text, digits.len() - at, &decimal.grouping);
        }
        let value = u32::from(digit.wrapping_sub(b'0'));
        text.extend(char::from_u32(decimal.zero.wrapping_add(value)));
    }
    if let Grouping::At(_) = decimal.grouping {
        push_separators(&mut text, 0, &decimal.grouping);
    }
    if ordinal {
        text.push_str(suffix(&text));
    }
    text
}

/// Appends the separators that have `right` digits to their right.
fn push_separators(text: &mut String, right: usize, grouping: &Grouping) {
    match grouping {
        Grouping::Every(every, sign) if right.is_multiple_of(*every) => text.push(*sign),
        Grouping::Every(..) => {}
        Grouping::At(separators) => {
            text.extend(separators.iter().rev().filter(|(at, _)| *at == right).map(|(_, sign)| *sign));
        }
    }
}

/// Returns the suffix of an ordinal. Digits that are not ASCII always have the same suffix.
fn suffix(text: &str) -> &'static str {
    let mut back = text.chars().rev();
    match (back.next(), back.next()) {
        (_, Some('1')) => "th",
        (Some('1'), _) => "st",
        (Some('2'), _) => "nd",
        (Some('3'), _) => "rd",
        _ => "th",
    }
}

/// Parses a text by a pattern. Returns `None` if it does not match.
pub(super) fn read(text: &str, pattern: &Pattern) -> Result<Option<Whole>, Fault> {
    match &pattern.form {
        Form::Letters(_) => Ok(letters_value(text)),
        Form::Roman(_) => Ok(roman_value(text)),
        Form::Words(_) => Ok(words::value(text)),
        Form::Decimal(decimal) => Ok(decimal_value(text, decimal, pattern.ordinal)),
        Form::Sequence(token) => Err(no_sequence(token)),
    }
}

fn letters_value(text: &str) -> Option<Whole> {
    text.chars().try_fold(Whole::Exact(0), |sum, c| {
        let letter = u8::try_from(c.to_ascii_uppercase()).ok().filter(u8::is_ascii_uppercase)?;
        Some(sum.times(26).plus(Whole::Exact(i128::from(letter - b'A') + 1)))
    })
}

/// Parses Roman numerals. A smaller numeral before a larger one is subtracted, at any position.
fn roman_value(text: &str) -> Option<Whole> {
    let (mut sum, mut largest) = (0, 1);
    for c in text.chars().rev() {
        let value = match c.to_ascii_uppercase() {
            'M' => 1000,
            numeral => ROMAN
                .into_iter()
                .find(|(_, known)| known.chars().eq([numeral]))
                .map(|(value, _)| value as i128)?,
        };
        if value < largest {
            sum -= value;
        } else {
            largest = value;
            sum += value;
        }
    }
    Some(Whole::Exact(sum))
}

fn decimal_value(text: &str, decimal: &Decimal, ordinal: bool) -> Option<Whole> {
    let text = if ordinal { without_suffix(text)? } else { text };
    let is_separator = |c: char| match &decimal.grouping {
        Grouping::Every(_, sign) => c == *sign || c == ',',
        Grouping::At(separators) => separators.iter().any(|(_, sign)| *sign == c),
    };
    let plain: String = text.chars().filter(|c| !is_separator(*c)).collect();
    let plain = plain.trim_start();
    let (negative, plain) = match plain.strip_prefix('-') {
        Some(size) => (true, size),
        None => (false, plain.strip_prefix('+').unwrap_or(plain)),
    };
    // As in JSONata, the text after the digits is ignored.
    let digits: String = plain.chars().map_while(|c| decimal.value(c)).collect();
    let sign = if negative { "-" } else { "" };
    let written = format!("{sign}{digits}");
    match written.parse() {
        Ok(exact) => Some(Whole::Exact(exact)),
        Err(_) if digits.is_empty() => None,
        Err(_) => written.parse().ok().map(Whole::Large),
    }
}

fn without_suffix(text: &str) -> Option<&str> {
    let (at, _) = text.char_indices().rev().nth(1)?;
    let (number, suffix) = text.split_at(at);
    ["st", "nd", "rd", "th"].into_iter().any(|known| suffix.eq_ignore_ascii_case(known)).then_some(number)
}

/// Returns a regular expression for the numbers of a pattern.
pub(super) fn expression(pattern: &Pattern) -> Result<String, Fault> {
    match &pattern.form {
        Form::Letters(_) => Ok("[a-z]+".to_owned()),
        Form::Roman(_) => Ok("[mdclxvi]+".to_owned()),
        Form::Words(_) => Ok(words::expression()),
        Form::Decimal(decimal) => {
            let digits = match decimal.zero {
                ASCII_ZERO => "[0-9]".to_owned(),
                zero => format!("[\\x{{{zero:X}}}-\\x{{{:X}}}]", zero + 9),
            };
            let times = decimal.width.map_or_else(|| "+".to_owned(), |width| format!("{{{width}}}"));
            Ok(format!("{digits}{times}{}", if pattern.ordinal { "(?:th|st|nd|rd)" } else { "" }))
        }
        Form::Sequence(token) => Err(no_sequence(token)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Whole, format_float, format_integer, parse_integer, parse_whole};

    fn by(value: i128, picture: &str) -> String {
        format_integer(value, picture).unwrap_or_else(|fault| fault.code.to_owned())
    }

    #[test]
    fn digits_are_written() {
        assert_eq!(by(71, "0000"), "0071");
        assert_eq!(by(-71, "#0"), "-71");
        assert_eq!(by(7_654_321, "#,##0"), "7,654,321");
        assert_eq!(by(7_654_321, "#-##,##0"), "76-54,321");
        assert_eq!(by(21, "#-##,##0"), "21");
        assert_eq!(by(41, "0:"), "41:");
        assert_eq!(by(305, "\u{966}"), "\u{969}\u{966}\u{96b}");
        assert_eq!(by(i128::MIN, "0"), i128::MIN.to_string());
    }

    #[test]
    fn ordinals_have_english_suffixes() {
        let written: Vec<String> = [0, 1, 2, 3, 4, 11, 12, 13, 21, 111, 1_002].map(|n| by(n, "0;o")).into();
        let expected = ["0th", "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th", "1002nd"];
        assert_eq!(written, expected);
    }

    #[test]
    fn letters_roman_numerals_and_words() {
        assert_eq!(by(2_949, "I"), "MMCMXLIX");
        assert_eq!(by(-14, "i"), "-xiv");
        assert_eq!(by(703, "A"), "AAA");
        assert_eq!(by(0, "a"), "");
        assert_eq!(by(215, "Ww"), "Two Hundred and Fifteen");
        assert_eq!(by(215, "W;o"), "TWO HUNDRED AND FIFTEENTH");
        assert_eq!(by(215, "w;c"), "two hundred and fifteen");
        assert_eq!(by(5, "#"), "D3130");
        assert_eq!(by(5, ""), "D3130");
        assert_eq!(by(5, "0\u{660}"), "D3131");
    }

    #[test]
    fn output_size_is_bounded() {
        assert_eq!(by(5, &"0".repeat(1001)), "unsupported");
        assert_eq!(by(5, &"0".repeat(1000)).len(), 1000);
        assert_eq!(by(i128::MAX, "I"), "unsupported");
        assert_eq!(format_float(1e300, "A").map_err(|fault| fault.code), Err("unsupported"));
        assert_eq!(format_float(f64::NAN, "0").map_err(|fault| fault.code), Err("D1001"));
    }

    #[test]
    fn decimals_are_rounded_down() {
        assert_eq!(format_float(-2.5, "0").as_deref(), Ok("-3"));
        assert_eq!(format_float(3e22, "#,##0").as_deref(), Ok("30,000,000,000,000,000,000,000"));
        assert_eq!(format_float(2e25, "w").as_deref(), Ok("twenty trillion trillion"));
    }

    #[test]
    fn formatted_numbers_are_parsed_back() {
        let pictures =
            ["0", "#,##0", "#.##0", "0:00,00", "0;o", "\u{ff10}", "A", "a", "I", "i", "w", "W", "Ww;o"];
        for picture in pictures {
            for number in [1, 9, 14, 26, 27, 101, 1_999, 40_404] {
                let text = by(number, picture);
                assert_eq!(parse_integer(&text, picture), Ok(number), "{text} by {picture}");
            }
        }
        assert_eq!(parse_integer("-12", "0"), Ok(-12));
        assert_eq!(parse_integer(" 12 pieces", "0"), Ok(12));
    }

    #[test]
    fn other_text_is_refused() {
        for (text, picture) in
            [("", "0"), ("x", "0"), ("12", "0;o"), ("\u{e9}", "0;o"), ("J", "I"), ("a1", "A")]
        {
            let code = parse_integer(text, picture).map_err(|fault| fault.code);
            assert_eq!(code, Err("D3030"), "{text} by {picture}");
        }
        assert_eq!(parse_whole(&"9".repeat(50), "0"), Ok(Whole::Large(1e50)));
        assert_eq!(parse_integer(&"9".repeat(50), "0").map_err(|fault| fault.code), Err("D1001"));
        assert_eq!(parse_whole(&"9".repeat(500), "0").map_err(|fault| fault.code), Err("D3030"));
    }
}
