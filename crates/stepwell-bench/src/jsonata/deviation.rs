//! Documented differences between the dialect and JSONata. Every kind has a section in `docs/expressions.md`.
//!
//! A difference is checked in one of two ways. With the package at hand, the package is changed as the deviations
//! describe, and must then give exactly the result of the dialect. The changes are in `oracle.mjs`, under the ids of
//! the deviations. Without the package, `explains` compares the expected result and the result of the dialect.

use serde_json::Value;
use stepwell_core::expr::{Budget, Expr, ExprErrorKind, MAX_SOURCE_BYTES, functions};

use super::case::{self, Case, Expected};
use super::reference::Reference;
use super::{Got, evaluated_within, outside};

/// The deviation that changes only the last binary digit of numbers. It is no change to the package.
const LAST_DIGIT: &str = "last-digit-of-powers";

struct Deviation {
    /// Heading of the section in `docs/expressions.md`.
    id: &'static str,
    reason: &'static str,
    /// Returns `true` if the deviation explains why the result of a case is not the expected one.
    explains: fn(&Case, &Got) -> bool,
}

const ALL: &[Deviation] = &[
    Deviation {
        id: "exact-numbers",
        reason: "integers are exact to 64 bits; a result that is no such integer or finite fraction is an error",
        explains: exact_numbers,
    },
    Deviation {
        id: LAST_DIGIT,
        reason: "the last binary digit of a power depends on the platform",
        explains: |case, got| case.expr.contains("$power(") && case.expected.is_nearly(got),
    },
    Deviation {
        id: "sorted-fields",
        reason: "the fields of an object are sorted by name",
        explains: sorted_fields,
    },
    Deviation {
        id: "membership-by-value",
        reason: "`in` compares lists and objects by value, not by identity",
        explains: |case, got| {
            case.expr.contains(" in ") && differs_at(case, got, |a, b| a == false && b == true)
        },
    },
    Deviation {
        id: "budgets",
        reason: "an expression that costs more than its budget, or is too long or too deep, is an error",
        explains: budgets,
    },
    Deviation {
        id: "unicode-strings",
        reason: "a string is Unicode text, and its bytes are UTF-8",
        explains: unicode_strings,
    },
    Deviation {
        id: "early-errors",
        reason: "a part that can never be evaluated, or that JSONata reads in an unexpected way, does not parse",
        explains: early_errors,
    },
    Deviation {
        id: "functions-without-dollar",
        reason: "a function can be called without the `$` before its name",
        explains: |case, _| {
            let plain = |name: &str| outside::calls(&case.expr, name);
            is_code(&case.expected, "T1005") && functions().iter().any(|info| plain(info.name))
        },
    },
    Deviation {
        id: "package-defects",
        reason: "where the package fails by a defect, the result follows from its other rules",
        explains: |case, got| {
            let is_division = is_code(&case.expected, "S0302") && case.expr.contains("[] /");
            got.is_ok() && (is_division || matches!(case.expected, Expected::Crash(_)))
        },
    },
    Deviation {
        id: "index-of-undefined",
        reason: "a selection from undefined is undefined; the package returns a list of undefined items",
        explains: |case, got| match (&case.expected, got) {
            (Expected::Value { value: Value::Array(items), .. }, Ok(None)) => {
                case.expr.contains('[') && !items.is_empty() && items.iter().all(Value::is_null)
            }
            _ => false,
        },
    },
    Deviation {
        id: "time-zones",
        reason: "the minutes of a negative zone are subtracted too, and a zone of another form is an error",
        explains: |case, got| {
            let has_zone = case.expr.contains("Millis(") || case.expr.contains("$now(");
            let is_refused = matches!(got, Err(error) if error.message.contains("time zone"));
            has_zone
                && matches!(case.expected, Expected::Value { .. })
                && (is_refused || has_minutes(&case.expr))
        },
    },
    Deviation {
        id: "invalid-dates",
        reason: "a date that does not exist is an error",
        explains: |case, got| {
            let is_refused =
                matches!(got, Err(error) if error.code == "D3110" || error.message.contains("out of range"));
            let is_number = matches!(&case.expected, Expected::Value { value, .. } if value.is_number() || value.is_null());
            is_refused && is_number && case.expr.contains("toMillis(")
        },
    },
    Deviation {
        id: "strict-integer-pictures",
        reason: "a text that does not match the picture is an error instead of an arbitrary number",
        explains: |case, got| {
            let is_number = matches!(&case.expected, Expected::Value { value, .. } if value.is_number() || value.is_null());
            is_number
                && matches!(got, Err(error) if error.code == "D3030" && error.message.contains("picture"))
        },
    },
    Deviation {
        id: "separators-between-digits",
        reason: "a grouping separator is written only between two digits",
        explains: |case, got| {
            differs_at(case, got, |a, b| match (a.as_str(), b.as_str()) {
                (Some(a), Some(b)) => a.strip_prefix(',') == Some(b),
                _ => false,
            })
        },
    },
    Deviation {
        id: "first-error",
        reason: "of several errors in a list or an object, the first one is reported",
        // Only the package can tell which errors there are.
        explains: |_, _| false,
    },
];

/// Returns the id of the deviation that explains the result of a case, without the package.
pub(super) fn of(case: &Case, got: &Got) -> Option<&'static str> {
    ALL.iter().find(|deviation| (deviation.explains)(case, got)).map(|deviation| deviation.id)
}

/// Returns the deviations that together make the package give the result of the dialect. None of them is superfluous.
/// Returns `None` if there are no such deviations.
pub(super) fn confirmed(
    reference: &mut Reference,
    case: &Case,
    got: &Got,
) -> Result<Option<Vec<&'static str>>, String> {
    let mut agrees = |ids: &[&'static str]| {
        let changes: Vec<&str> = ids.iter().copied().filter(|id| *id != LAST_DIGIT).collect();
        let expected = reference.ask(case, &changes)?;
        let is_power = ids.contains(&LAST_DIGIT) && case.expr.contains("$power(");
        Ok::<bool, String>(expected.is_met_by(got) || is_power && expected.is_nearly(got))
    };
    let mut ids: Vec<&'static str> = ALL.iter().map(|deviation| deviation.id).collect();
    if !agrees(&ids)? {
        return Ok(None);
    }
    let mut place = 0;
    while place < ids.len() {
        let id = ids.remove(place);
        if !agrees(&ids)? {
            ids.insert(place, id);
            place += 1;
        }
    }
    Ok(Some(ids))
}

pub(super) fn reason(id: &str) -> &'static str {
    ALL.iter().find(|deviation| deviation.id == id).map_or("", |deviation| deviation.reason)
}

pub(super) fn kinds() -> usize {
    ALL.len()
}

fn is_code(expected: &Expected, code: &str) -> bool {
    matches!(expected, Expected::Code(expected) if expected == code)
}

/// Returns `true` if the expected value and the result differ, and only at parts for which `is_allowed` is true.
fn differs_at(case: &Case, got: &Got, is_allowed: fn(&Value, &Value) -> bool) -> bool {
    let (Expected::Value { value, .. }, Ok(Some(got))) = (&case.expected, got) else { return false };
    let mut open = vec![(value, got)];
    while let Some((a, b)) = open.pop() {
        match (a, b) {
            _ if case::same(a, b, false) || is_allowed(a, b) => {}
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => open.extend(a.iter().zip(b)),
            (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
                open.extend(a.values().zip(b.values()));
            }
            _ => return false,
        }
    }
    true
}

/// Returns `true` if the results differ only in integers that a double cannot represent, or if a number that JSON
/// cannot represent is an error.
fn exact_numbers(case: &Case, got: &Got) -> bool {
    let is_rounded = |a: &Value, b: &Value| {
        let number = |value: &Value| match value {
            Value::String(text) => text.parse().ok(),
            other => other.as_f64(),
        };
        let (Some(a), Some(b)) = (number(a), number(b)) else { return false };
        const EXACT: f64 = 9_007_199_254_740_992.0;
        a.abs() >= EXACT && (a - b).abs() <= a.abs() * f64::EPSILON * 4.0
    };
    match (got, &case.expected) {
        (Err(error), expected) if error.kind == ExprErrorKind::Arithmetic => match expected {
            Expected::Code(code) => matches!(code.as_str(), "D1001" | "D3001" | "D3061"),
            Expected::Value { value, .. } => value.is_null() || is_rounded(value, value),
            _ => false,
        },
        (Err(error), Expected::Value { value, .. }) => {
            matches!(error.code, "S0102" | "D3030") && is_rounded(value, value)
        }
        _ => differs_at(case, got, is_rounded),
    }
}

/// Returns `true` if the results differ only in the order of object fields.
fn sorted_fields(case: &Case, got: &Got) -> bool {
    let (Ok(Some(got)), Expected::Value { value, .. }) = (got, &case.expected) else { return false };
    match (value, got) {
        (Value::String(expected), Value::String(got)) => {
            let object = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
            // Other orders of the same fields have the same length.
            expected.len() == got.len() && object(expected).is_some() && object(expected) == object(got)
        }
        _ => walks_fields(&case.expr) && case::same(value, got, true),
    }
}

/// Returns `true` if an expression iterates over the fields of an object without naming them.
fn walks_fields(expr: &str) -> bool {
    let wildcard = expr.match_indices('*').any(|(place, _)| {
        let before = expr[..place].trim_end().chars().next_back();
        before.is_none_or(|c| "([{,;:=.*".contains(c))
    });
    wildcard || ["$keys", "$spread", "$values"].iter().any(|function| expr.contains(function))
}

/// Returns `true` if the expression is really too long, or gives the expected result with a larger budget.
fn budgets(case: &Case, got: &Got) -> bool {
    let larger = || {
        let bytes = 2 * 1024 * 1024 * 1024;
        let budget =
            Budget { steps: 1_000_000_000, result_bytes: bytes, copied_bytes: bytes, ..Budget::default() };
        let got = evaluated_within(case, budget);
        // A case may write a whole number with a fraction of zero.
        case.expected.is_met_by(&got) || case.expected.is_nearly(&got)
    };
    let depth = || {
        let open = |c: char| "([{".contains(c);
        let close = |c: char| ")]}".contains(c);
        let depths = case.expr.chars().scan(0_i32, |depth, c| {
            *depth += i32::from(open(c)) - i32::from(close(c));
            Some(*depth)
        });
        depths.max().unwrap_or(0)
    };
    match got {
        Err(error) if error.code == "tooLong" => case.expr.len() > MAX_SOURCE_BYTES,
        Err(error) if error.code == "tooDeep" => depth() > 32,
        Err(error) => error.kind == ExprErrorKind::Budget && larger(),
        Ok(_) => false,
    }
}

fn unicode_strings(case: &Case, got: &Got) -> bool {
    let is_ascii = case.expr.is_ascii() && case.data().is_none_or(|data| data.to_string().is_ascii());
    match (got, &case.expected) {
        (Err(error), _) if error.code == "S0104" => has_surrogate(&case.expr),
        (Ok(Some(_)), Expected::Value { value: Value::String(_), .. }) => {
            case.expr.contains("base64") && (!is_ascii || has_surrogate(&case.expr))
        }
        (Ok(Some(_)), Expected::Value { value, .. }) => has_surrogate(&value.to_string()),
        _ => false,
    }
}

/// Returns `true` if a text contains an escape of half a surrogate pair.
fn has_surrogate(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let is_half = |digits: &str| digits.starts_with('d') && "89abcdef".contains(&digits[1..2]);
    lower.match_indices("\\u").any(|(place, _)| lower.get(place + 2..place + 4).is_some_and(is_half))
}

/// Returns `true` if the expression does not parse because of a part that JSONata finds wrong only when it evaluates it,
/// or reads in an unexpected way.
fn early_errors(case: &Case, got: &Got) -> bool {
    let (Err(parsed), Err(error)) = (Expr::parse(&case.expr), got) else { return false };
    let is_late =
        matches!(parsed.code, "T1006" | "T0410" | "T2006") || parsed.message.contains("is ambiguous");
    is_late && parsed == *error
}

/// Returns `true` if the expression contains a negative zone with minutes other than 00.
fn has_minutes(expr: &str) -> bool {
    let digits = |text: &str| text.bytes().take(2).filter(u8::is_ascii_digit).count() == 2;
    expr.match_indices('-').any(|(at, _)| {
        let (hours, rest) = expr[at + 1..].split_at_checked(2).unwrap_or_default();
        let minutes = rest.strip_prefix(':').unwrap_or(rest);
        digits(hours) && digits(minutes) && !minutes.starts_with("00")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::case::Input;
    use super::super::{MOST_KINDS, evaluated};
    use super::*;

    /// Returns the deviation for an expression whose expected result is `expected`.
    fn found(expr: &str, expected: Expected) -> Option<&'static str> {
        let case = Case {
            name: String::new(),
            expr: expr.to_owned(),
            input: Input::Nothing,
            bindings: serde_json::Map::new(),
            expected,
        };
        of(&case, &evaluated(&case))
    }

    fn value(value: Value) -> Expected {
        Expected::Value { value, is_unordered: false }
    }

    #[test]
    fn every_deviation_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/expressions.md");
        let document = std::fs::read_to_string(path).unwrap();
        for deviation in ALL {
            assert!(document.contains(&format!("### {}\n", deviation.id)), "{}", deviation.id);
        }
        assert_eq!(document.split("## Deviations").nth(1).unwrap().matches("### ").count(), ALL.len());
    }

    #[test]
    fn every_deviation_is_a_change_to_the_package() {
        let changes = include_str!("oracle.mjs").split("const CHANGES").nth(1).unwrap();
        for deviation in ALL.iter().filter(|deviation| deviation.id != LAST_DIGIT) {
            let is_known = [format!("\"{}\": [", deviation.id), format!("  {}: [", deviation.id)];
            assert!(is_known.iter().any(|text| changes.contains(text)), "{}", deviation.id);
        }
    }

    /// Regression: there were more kinds than the run of the cases allows, so that it could never succeed.
    #[test]
    fn there_are_not_too_many_kinds() {
        assert!(kinds() <= MOST_KINDS, "{} kinds", kinds());
    }

    #[test]
    fn deviations_explain_their_examples() {
        let cases = [
            ("$string(1/0)", Expected::Code("D3001".to_owned()), "exact-numbers"),
            ("9007199254740993 + 0", value(json!(9_007_199_254_740_992.0)), "exact-numbers"),
            ("$string({'b': 1, 'a': 2})", value(json!("{\"b\":1,\"a\":2}")), "sorted-fields"),
            ("$keys({'b': 1, 'a': 2})", value(json!(["b", "a"])), "sorted-fields"),
            ("[1] in [[1]]", value(json!(false)), "membership-by-value"),
            ("'\\ud83d'", value(json!("\\ud83d")), "unicode-strings"),
            ("$base64encode('é')", value(json!("6Q==")), "unicode-strings"),
            ("false and $nowhere()", value(json!(false)), "early-errors"),
            ("length('a')", Expected::Code("T1005".to_owned()), "functions-without-dollar"),
            ("missing[[0, 0]]", value(json!([null, null])), "index-of-undefined"),
            ("$fromMillis(0, '[Z]', '-0530')", value(json!("-06:30")), "time-zones"),
            ("$toMillis('2018-02-30')", value(json!(1_519_948_800_000_i64)), "invalid-dates"),
            ("$parseInteger('-XII', 'I')", value(json!(null)), "strict-integer-pictures"),
            (
                "$formatNumber(1234567, '#,###,##0,0')",
                value(json!(",123,456,7")),
                "separators-between-digits",
            ),
        ];
        for (expr, expected, id) in cases {
            assert_eq!(found(expr, expected), Some(id), "{expr}");
        }
    }

    /// Regression: an expression with a wildcard and `[` excused any difference, and so did any `true` with ` in `.
    #[test]
    fn deviations_do_not_explain_other_differences() {
        let cases = [
            ("[1, 2][*]", value(json!(3))),
            ("$keys({'a': 1})[0]", value(json!("b"))),
            ("1 in [1] and true", value(json!(1))),
            ("$string('{}')", value(json!("{ }"))),
            ("1 + 1", Expected::Code("T2001 is not a code".to_owned())),
            ("$parseInteger('12', '0')", value(json!(13))),
            ("1 / 0", value(json!(1))),
            ("$error('x')", Expected::Code("D3141".to_owned())),
        ];
        for (expr, expected) in cases {
            assert_eq!(found(expr, expected), None, "{expr}");
        }
    }
}
