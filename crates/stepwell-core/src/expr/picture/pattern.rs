//! Parses the pictures of whole numbers: `#,##0`, `I`, `Ww;o` and others.

use super::{Fault, bounded, interval, shown};

/// The code point of the zero of each family of decimal digits.
const ZEROS: [u32; 37] = [
    0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50,
    0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40,
    0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
];

pub(super) const ASCII_ZERO: u32 = ZEROS[0];

#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) form: Form,
    /// True for "third" or "3rd" instead of "three" or "3".
    pub(super) ordinal: bool,
}

#[derive(Debug)]
pub(super) enum Form {
    Letters(Case),
    Roman(Case),
    Words(Case),
    Decimal(Decimal),
    /// Another numbering sequence. JSONata supports none.
    Sequence(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Upper,
    Lower,
    Title,
}

impl Case {
    /// Converts a text from title case to this case.
    pub(super) fn apply(self, text: &str) -> String {
        match self {
            Case::Upper => text.to_ascii_uppercase(),
            Case::Lower => text.to_ascii_lowercase(),
            Case::Title => text.to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Decimal {
    /// The code point of the family's zero.
    pub(super) zero: u32,
    pub(super) mandatory: usize,
    pub(super) optional: usize,
    pub(super) grouping: Grouping,
    /// Number of digits to parse. Set if digits of another number follow directly.
    pub(super) width: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Grouping {
    Every(usize, char),
    /// Separators, each with the number of digits to its right, from right to left.
    At(Vec<(usize, char)>),
}

impl Pattern {
    pub(super) fn read(picture: &str) -> Result<Pattern, Fault> {
        bounded(picture, "the picture")?;
        let (primary, modifier) = picture.rsplit_once(';').unwrap_or((picture, ""));
        let form = match primary {
            "A" => Form::Letters(Case::Upper),
            "a" => Form::Letters(Case::Lower),
            "I" => Form::Roman(Case::Upper),
            "i" => Form::Roman(Case::Lower),
            "W" => Form::Words(Case::Upper),
            "w" => Form::Words(Case::Lower),
            "Ww" => Form::Words(Case::Title),
            _ => Decimal::read(primary)?.map_or_else(|| Form::Sequence(primary.to_owned()), Form::Decimal),
        };
        Ok(Pattern { form, ordinal: modifier.starts_with('o') })
    }

    /// Returns the decimal form, if the pattern has one.
    pub(super) fn decimal(&mut self) -> Option<&mut Decimal> {
        match &mut self.form {
            Form::Decimal(decimal) => Some(decimal),
            _ => None,
        }
    }
}

impl Decimal {
    /// Parses a decimal picture. Returns `None` if it has no digit.
    fn read(picture: &str) -> Result<Option<Decimal>, Fault> {
        let mut zero = None;
        let (mut mandatory, mut optional) = (0, 0);
        let mut separators = Vec::new();
        for c in picture.chars().rev() {
            match family(c) {
                Some(family) if zero.is_some_and(|zero| zero != family) => {
                    let message = format!("the picture {} mixes digits of two families", shown(picture));
                    return Err(Fault::new("D3131", message));
                }
                Some(family) => {
                    zero = Some(family);
                    mandatory += 1;
                }
                None if c == '#' => optional += 1,
                None => separators.push((mandatory + optional, c)),
            }
        }
        let grouping = grouping(separators);
        Ok(zero.map(|zero| Decimal { zero, mandatory, optional, grouping, width: None }))
    }

    /// Returns the value of a digit of the family.
    pub(super) fn value(&self, digit: char) -> Option<char> {
        let value = u32::from(digit).checked_sub(self.zero)?;
        char::from_digit(value, 10)
    }
}

fn grouping(separators: Vec<(usize, char)>) -> Grouping {
    let positions: Vec<usize> = separators.iter().map(|(position, _)| *position).collect();
    match (separators.first(), interval(&positions)) {
        (Some(&(_, sign)), every) if every > 0 && separators.iter().all(|(_, other)| *other == sign) => {
            Grouping::Every(every, sign)
        }
        _ => Grouping::At(separators),
    }
}

fn family(c: char) -> Option<u32> {
    ZEROS.into_iter().find(|zero| u32::from(c).wrapping_sub(*zero) < 10)
}
