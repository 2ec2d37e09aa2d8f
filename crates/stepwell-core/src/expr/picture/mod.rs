//! Pictures: how JSONata writes numbers and times by a pattern, and reads them back.
//!
//! Nothing here knows of expressions or has a clock. A picture comes from a stored definition and a text from
//! outside, so every function is total: what JSONata's own implementation would loop over, cut wrongly or
//! answer with NaN is a [`Fault`] here. The codes are JSONata's; `unsupported` is ours, for what is refused.

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

/// The longest picture, the widest padding one may ask for and the longest text read by one, in characters.
const LONGEST: usize = 1_000;

/// Why a picture, or a value by a picture, cannot be written or read.
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

/// The beginning of a text, quoted, for messages.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// Refuses a text that is too long to be a picture, or to be read by one.
fn bounded(text: &str, what: &str) -> Result<(), Fault> {
    match text.chars().nth(LONGEST) {
        None => Ok(()),
        Some(_) => Err(Fault::unsupported(format!("{what} is longer than {LONGEST} characters"))),
    }
}

/// The interval that evenly repeated separators have; 0 if they are not at one, two, three … times it.
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
    fn separators_repeat_only_if_none_is_missing() {
        assert_eq!(interval(&[]), 0);
        assert_eq!(interval(&[4]), 4);
        assert_eq!(interval(&[6, 3]), 3);
        assert_eq!(interval(&[9, 3]), 0);
        assert_eq!(interval(&[3, 2]), 0);
        assert_eq!(interval(&[0]), 0);
    }
}
