//! Pictures: patterns by which JSONata formats and parses numbers and times.
//!
//! This module is independent of expressions and has no clock. A picture comes from a stored definition and a text
//! from outside, so no function may panic or loop. Cases in which JSONata's implementation would loop endlessly,
//! truncate wrongly or return NaN are a [`Fault`] here. The codes are those of JSONata; `unsupported` is a code of
//! Stepwell.

mod calendar;
pub(super) mod integer;
mod iso;
mod marker;
pub(super) mod number;
mod pattern;
mod scan;
mod subpicture;
pub(super) mod time;
mod words;

/// Maximum length of a picture, of the padding that it requests, and of a text that it parses, in characters.
const LONGEST: usize = 1_000;

/// An error in a picture, or in a value that is formatted or parsed with a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::expr) struct Fault {
    pub(in crate::expr) code: &'static str,
    pub(in crate::expr) message: String,
}

impl Fault {
    fn new(code: &'static str, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }

    fn unsupported(message: impl Into<String>) -> Fault {
        Fault::new("unsupported", message)
    }
}

/// Returns the beginning of a text in quotes, for messages.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// Returns an error if a text is too long to be a picture or to be parsed with one.
fn bounded(text: &str, what: &str) -> Result<(), Fault> {
    match text.chars().nth(LONGEST) {
        None => Ok(()),
        Some(_) => Err(Fault::unsupported(format!("{what} is longer than {LONGEST} characters"))),
    }
}

/// Returns the interval of evenly repeated separators, or 0 if they are not at one, two, three … times the interval.
fn interval(positions: &[usize]) -> usize {
    let divisor = positions.iter().copied().reduce(greatest_divisor).unwrap_or(0);
    let is_even = (1..=positions.len()).all(|times| positions.contains(&(times * divisor)));
    if is_even { divisor } else { 0 }
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::interval;

    #[test]
    fn separators_repeat_only_at_a_constant_interval() {
        assert_eq!(interval(&[]), 0);
        assert_eq!(interval(&[4]), 4);
        assert_eq!(interval(&[6, 3]), 3);
        assert_eq!(interval(&[9, 3]), 0);
        assert_eq!(interval(&[3, 2]), 0);
        assert_eq!(interval(&[0]), 0);
    }
}
