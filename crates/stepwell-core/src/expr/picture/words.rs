//! Numbers in English words.
//!
//! The input is decimal digits, because the words of a number do not depend on the size of an integer type.

use super::integer::Whole;

const UNITS: [&str; 20] = [
    "Zero",
    "One",
    "Two",
    "Three",
    "Four",
    "Five",
    "Six",
    "Seven",
    "Eight",
    "Nine",
    "Ten",
    "Eleven",
    "Twelve",
    "Thirteen",
    "Fourteen",
    "Fifteen",
    "Sixteen",
    "Seventeen",
    "Eighteen",
    "Nineteen",
];

const ORDINAL_UNITS: [&str; 20] = [
    "Zeroth",
    "First",
    "Second",
    "Third",
    "Fourth",
    "Fifth",
    "Sixth",
    "Seventh",
    "Eighth",
    "Ninth",
    "Tenth",
    "Eleventh",
    "Twelfth",
    "Thirteenth",
    "Fourteenth",
    "Fifteenth",
    "Sixteenth",
    "Seventeenth",
    "Eighteenth",
    "Nineteenth",
];

/// The tens from twenty on, without the `y`, which becomes `ieth` in ordinals.
const TENS: [&str; 8] = ["Twent", "Thirt", "Fort", "Fift", "Sixt", "Sevent", "Eight", "Ninet"];

/// The powers of 1000, in increasing order.
const MAGNITUDES: [&str; 4] = ["Thousand", "Million", "Billion", "Trillion"];

/// Returns the words of a number in title case.
pub(super) fn spelled(digits: &str, ordinal: bool) -> String {
    let mut out = String::new();
    push(&mut out, digits.trim_start_matches('0'), false, ordinal);
    out
}

/// Appends the words of a number. `follows` is true if more significant words precede it.
fn push(out: &mut String, digits: &str, follows: bool, ordinal: bool) {
    if digits.len() <= 3 {
        return push_small(out, digits.parse().unwrap_or(0), follows, ordinal);
    }
    // There is no word above trillion, so larger numbers are a number of trillions.
    let magnitude = ((digits.len() - 1) / 3).min(MAGNITUDES.len());
    let (high, low) = digits.split_at(digits.len() - 3 * magnitude);
    if follows {
        out.push_str(", ");
    }
    push(out, high, false, false);
    out.push(' ');
    out.push_str(MAGNITUDES[magnitude - 1]);
    match low.trim_start_matches('0') {
        "" if ordinal => out.push_str("th"),
        "" => {}
        low => push(out, low, true, ordinal),
    }
}

/// Appends the words of a number below 1000.
fn push_small(out: &mut String, number: usize, follows: bool, ordinal: bool) {
    let units = |number: usize| if ordinal { ORDINAL_UNITS[number] } else { UNITS[number] };
    match number {
        0..100 => {
            out.push_str(if follows { " and " } else { "" });
            match (number, number % 10) {
                (0..20, _) => out.push_str(units(number)),
                (_, 0) => {
                    out.push_str(TENS[number / 10 - 2]);
                    out.push_str(if ordinal { "ieth" } else { "y" });
                }
                (_, rest) => {
                    out.push_str(TENS[number / 10 - 2]);
                    out.push_str("y-");
                    out.push_str(units(rest));
                }
            }
        }
        _ => {
            out.push_str(if follows { ", " } else { "" });
            out.push_str(UNITS[number / 100 % 10]);
            out.push_str(" Hundred");
            match number % 100 {
                0 if ordinal => out.push_str("th"),
                0 => {}
                rest => push_small(out, rest, true, ordinal),
            }
        }
    }
}

/// Returns all words in lower case with their values.
fn vocabulary() -> impl Iterator<Item = (String, u64)> {
    let units = UNITS.into_iter().zip(0..).map(|(word, value)| (word.to_ascii_lowercase(), value));
    let ordinals = ORDINAL_UNITS.into_iter().zip(0..).map(|(word, value)| (word.to_ascii_lowercase(), value));
    let tens = TENS.into_iter().zip(2..).flat_map(|(stem, tens)| {
        ["y", "ieth"].map(|ending| (format!("{stem}{ending}").to_ascii_lowercase(), tens * 10))
    });
    let powers = ["Hundred"].into_iter().chain(MAGNITUDES).zip([2, 3, 6, 9, 12]);
    let powers = powers.flat_map(|(word, zeros)| {
        ["", "th"].map(|ending| (format!("{word}{ending}").to_ascii_lowercase(), 10_u64.pow(zeros)))
    });
    units.chain(ordinals).chain(tens).chain(powers)
}

/// Returns a regular expression for numbers in words.
pub(super) fn expression() -> String {
    let words: Vec<String> = vocabulary().map(|(word, _)| word).collect();
    format!("(?:{}|and|[-, ])+", words.join("|"))
}

/// Parses a cardinal or ordinal number in words, in any case. Returns `None` for other words.
pub(super) fn value(text: &str) -> Option<Whole> {
    let text = text.to_lowercase();
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c == '-' || c == '\\').collect();
    // Partial sums: "two million, three hundred" is [2000000, 300].
    let mut sums = vec![Whole::Exact(0)];
    for (at, word) in words.iter().enumerate() {
        let is_last = at + 1 == words.len();
        if *word == "and" && at > 0 && !is_last {
            continue;
        }
        let word = if is_last { word } else { word.strip_suffix(',').unwrap_or(word) };
        let (_, value) = vocabulary().find(|(known, _)| known == word)?;
        let mut sum = sums.pop()?;
        if value < 100 {
            if !sum.is_below(1000) {
                sums.push(sum);
                sum = Whole::Exact(0);
            }
            sums.push(sum.plus(Whole::Exact(value.into())));
        } else {
            // "One thousand, two hundred trillion" is a number of trillions in two partial sums.
            while let Some(higher) = sums.pop_if(|higher| higher.is_below(value)) {
                sum = higher.plus(sum);
            }
            sums.push(sum.times(value));
        }
    }
    sums.into_iter().reduce(Whole::plus)
}

#[cfg(test)]
mod tests {
    use super::{Whole, spelled, value};

    #[test]
    fn words_are_written() {
        assert_eq!(spelled("0", false), "Zero");
        assert_eq!(spelled("0", true), "Zeroth");
        assert_eq!(spelled("40", true), "Fortieth");
        assert_eq!(spelled("88", false), "Eighty-Eight");
        assert_eq!(spelled("600", true), "Six Hundredth");
        assert_eq!(spelled("7013", false), "Seven Thousand and Thirteen");
        assert_eq!(spelled("2500000", true), "Two Million, Five Hundred Thousandth");
        assert_eq!(spelled(&format!("3{}", "0".repeat(24)), false), "Three Trillion Trillion");
    }

    #[test]
    fn words_are_read_back() {
        for number in [
            0,
            7,
            20,
            81,
            100,
            305,
            999,
            1000,
            1_021,
            70_700,
            5_000_006,
            8_123_456_789_012,
            4_321 * 10_i128.pow(12),
        ] {
            for ordinal in [false, true] {
                let words = spelled(&number.to_string(), ordinal);
                assert_eq!(value(&words), Some(Whole::Exact(number)), "{words}");
                assert_eq!(value(&words.to_uppercase()), Some(Whole::Exact(number)), "{words}");
            }
        }
    }

    #[test]
    fn numbers_beyond_integers_become_decimals() {
        assert_eq!(value("one trillion trillion trillion trillion"), Some(Whole::Large(1e48)));
        assert_eq!(value(&vec!["trillion"; 200].join(" ")), Some(Whole::Exact(0)));
    }

    #[test]
    fn other_words_are_not_numbers() {
        for text in ["", "some", "and", "one  two", "one,", "and one", "eleventy"] {
            assert_eq!(value(text), None, "{text}");
        }
    }
}
