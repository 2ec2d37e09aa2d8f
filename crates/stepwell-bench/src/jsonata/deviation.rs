//! How the dialect differs from JSONata on purpose. Every kind has a section in `docs/expressions.md`.

use serde_json::Value;
use stepwell_core::expr::ExprErrorKind;

use super::Got;
use super::case::{Case, Expected};

struct Deviation {
    /// The heading of its section in the document.
    id: &'static str,
    reason: &'static str,
    explains: fn(&Case, &Got) -> bool,
}

const ALL: &[Deviation] = &[
    Deviation {
        id: "exact-integers",
        reason: "integers are exact to 64 bits, and one that does not fit is an error",
        explains: exact_integers,
    },
    Deviation {
        id: "no-infinities",
        reason: "dividing by zero, or a result too large for a number, is an error at once",
        explains: |_, got| matches!(got, Err(error) if error.kind == ExprErrorKind::Arithmetic),
    },
    Deviation {
        id: "sorted-fields",
        reason: "the fields of an object are sorted by name",
        explains: sorted_fields,
    },
    Deviation {
        id: "membership-by-value",
        reason: "`in` finds a list or an object that is equal, and need not be the same one",
        explains: |case, got| case.expr.contains(" in ") && matches!(got, Ok(Some(Value::Bool(true)))),
    },
    Deviation {
        id: "budgets",
        reason: "an expression that costs more than its budget, or is too long or too deep, is an error",
        explains: |_, got| matches!(got, Err(error) if error.kind == ExprErrorKind::Budget || error.code.starts_with("too")),
    },
    Deviation {
        id: "unicode-strings",
        reason: "a string is Unicode text, so half of a surrogate pair is an error",
        explains: |case, got| matches!(got, Err(error) if error.code == "S0104") && has_surrogate(&case.expr),
    },
    Deviation {
        id: "base64-of-utf8",
        reason: "base 64 is that of the UTF-8 bytes of a text, and not of its lowest bytes",
        explains: |case, _| case.expr.contains("base64") && !case.expr.is_ascii(),
    },
    Deviation {
        id: "early-errors",
        reason: "a function that is not there and a wrong number of arguments are errors when parsed",
        explains: |case, got| {
            matches!(got, Err(error) if matches!(error.code, "T1006" | "T0410" | "T2006"))
                && !matches!(case.expected, Expected::Code(_))
        },
    },
    Deviation {
        id: "plain-names-of-functions",
        reason: "a function can be called without the `$` before its name",
        explains: |case, _| matches!(&case.expected, Expected::Code(code) if code == "T1005"),
    },
    Deviation {
        id: "defaults-need-parentheses",
        reason: "`??` and `?:` beside a comparison or a conditional need parentheses",
        explains: |_, got| matches!(got, Err(error) if error.message.contains("needs parentheses")),
    },
    Deviation {
        id: "no-crashes",
        reason: "where the package itself breaks, with an error of JavaScript's, the result follows from its other rules",
        explains: |case, _| matches!(&case.expected, Expected::Code(code) if code.contains(' ')),
    },
    Deviation {
        id: "nothing-has-no-items",
        reason: "nothing is selected from what is undefined; the package gives a list of undefined items",
        explains: |case, got| match (&case.expected, got) {
            (Expected::Value { value: Value::Array(items), .. }, Ok(None)) => {
                case.expr.contains('[') && !items.is_empty() && items.iter().all(Value::is_null)
            }
            _ => false,
        },
    },
    Deviation {
        id: "division-after-brackets",
        reason: "a `/` after `[]` divides; the package reads it as the beginning of a regular expression",
        explains: |case, _| {
            matches!(&case.expected, Expected::Code(code) if code == "S0302") && case.expr.contains("[] /")
        },
    },
    Deviation {
        id: "zones-with-minutes",
        reason: "the minutes of a zone behind Greenwich count against it too",
        explains: |case, _| case.expr.contains("Millis(") && has_zone_with_minutes(&case.expr),
    },
    Deviation {
        id: "dates-that-exist",
        reason: "a day that no calendar has is an error",
        explains: |case, got| {
            matches!(got, Err(error) if error.code == "D3110") && case.expr.contains("toMillis(")
        },
    },
    Deviation {
        id: "numbers-that-are-written-so",
        reason: "a text that is not a number by its picture is an error, and no made-up number",
        explains: |case, got| {
            matches!(got, Err(error) if error.code == "D3030") && case.expr.contains("parseInteger(")
        },
    },
    Deviation {
        id: "no-separator-first",
        reason: "a number begins with a digit, however its picture is grouped",
        explains: |case, got| match (&case.expected, got) {
            (Expected::Value { value: Value::String(text), .. }, Ok(Some(Value::String(got)))) => {
                text.strip_prefix(',') == Some(got)
            }
            _ => false,
        },
    },
    Deviation {
        id: "two-equals-signs",
        reason: "`==` is another spelling of `=`",
        explains: |case, got| got.is_ok() && case.expr.contains("=="),
    },
];

/// The kind that explains what a case gave.
pub(super) fn of(case: &Case, got: &Got) -> Option<&'static str> {
    ALL.iter().find(|deviation| (deviation.explains)(case, got)).map(|deviation| deviation.id)
}

pub(super) fn reason(id: &str) -> &'static str {
    ALL.iter().find(|deviation| deviation.id == id).map_or("", |deviation| deviation.reason)
}

pub(super) fn kinds() -> usize {
    ALL.len()
}

/// It names a zone behind Greenwich by hours and minutes.
fn has_zone_with_minutes(expr: &str) -> bool {
    let digits = |text: &str| text.bytes().take(2).filter(u8::is_ascii_digit).count() == 2;
    expr.match_indices('-').any(|(at, _)| {
        let (hours, rest) = expr[at + 1..].split_at_checked(2).unwrap_or_default();
        let minutes = rest.strip_prefix(':').unwrap_or(rest);
        digits(hours) && digits(minutes) && !minutes.starts_with("00")
    })
}

/// The result holds, or would hold, an integer that no double has exactly.
fn exact_integers(case: &Case, got: &Got) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    fn is_large(value: &Value) -> bool {
        match value {
            Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() >= EXACT),
            Value::String(text) => text.parse().is_ok_and(|number: f64| number.abs() >= EXACT),
            Value::Array(items) => items.iter().any(is_large),
            Value::Object(fields) => fields.values().any(is_large),
            _ => false,
        }
    }
    match (got, &case.expected) {
        (Err(error), _) => error.message.contains("64 bits"),
        (Ok(Some(got)), Expected::Value { value, .. }) => is_large(got) && is_large(value),
        _ => false,
    }
}

/// The same but for the order in which the fields of an object come, or what was picked by its place in it.
fn sorted_fields(case: &Case, got: &Got) -> bool {
    let (Ok(Some(got)), Expected::Value { value, .. }) = (got, &case.expected) else { return false };
    let is_picked = walks_fields(&case.expr) && case.expr.contains('[');
    match (value, got) {
        (Value::String(expected), Value::String(got)) => {
            let sorted = |text: &str| {
                let mut letters: Vec<char> = text.chars().collect();
                letters.sort_unstable();
                letters
            };
            is_picked || expected.contains('{') && sorted(expected) == sorted(got)
        }
        (Value::Array(_), Value::Array(_)) => is_picked || super::case::same(value, got, true),
        _ => is_picked,
    }
}

/// Whether an expression goes through the fields of an object without naming them.
fn walks_fields(expr: &str) -> bool {
    let wildcard = expr.match_indices('*').any(|(place, _)| {
        let before = expr[..place].trim_end().chars().next_back();
        before.is_none_or(|c| "([{,;:=.*".contains(c))
    });
    wildcard || ["$keys", "$spread", "$values"].iter().any(|function| expr.contains(function))
}

/// Whether an escape is half of a surrogate pair.
fn has_surrogate(expr: &str) -> bool {
    let lower = expr.to_ascii_lowercase();
    ["\\ud8", "\\ud9", "\\uda", "\\udb", "\\udc", "\\udd", "\\ude", "\\udf"]
        .iter()
        .any(|half| lower.contains(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deviation_has_its_section_in_the_document() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/expressions.md");
        let document = std::fs::read_to_string(path).unwrap();
        for deviation in ALL {
            assert!(document.contains(&format!("### {}\n", deviation.id)), "{}", deviation.id);
        }
    }
}
