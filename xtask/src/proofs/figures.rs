//! Checks of single figures of a measurement.

use serde_json::Value;

use super::{judged, number};

/// Returns the only line, or an error if there is not exactly one.
pub(super) fn one(lines: &[Value]) -> Result<&Value, String> {
    match lines {
        [line] => Ok(line),
        _ => Err(format!("expected one line of figures, got {}", lines.len())),
    }
}

/// Returns the line whose field has this value.
pub(super) fn line_with<'a>(lines: &'a [Value], field: &str, value: u64) -> Result<&'a Value, String> {
    lines.iter().find(|line| line[field] == value).ok_or_else(|| format!("no line with {field} {value}"))
}

/// Checks that each of these figures exists and is greater than zero.
pub(super) fn measured(line: &Value, fields: &[&str]) -> Result<(), String> {
    for field in fields {
        let figure = number(line, field)?;
        if !figure.is_finite() || figure <= 0.0 {
            return Err(format!("`{field}` is {figure}, expected a positive number, in {line}"));
        }
    }
    Ok(())
}

/// Returns `true` if the figure is at most `most`.
pub(super) fn at_most(line: &Value, field: &str, most: f64) -> Result<bool, String> {
    let figure = number(line, field)?;
    Ok(judged(figure <= most, &format!("{field}: {figure}, at most {most}")))
}

/// Returns `true` if the figure is at least `least`.
pub(super) fn at_least(line: &Value, field: &str, least: f64) -> Result<bool, String> {
    let figure = number(line, field)?;
    Ok(judged(figure >= least, &format!("{field}: {figure}, at least {least}")))
}

/// Returns `true` if the count equals `wanted`.
pub(super) fn exactly(line: &Value, field: &str, wanted: u64) -> Result<bool, String> {
    let count = line[field].as_u64().ok_or_else(|| format!("`{field}` is not a count in {line}"))?;
    Ok(judged(count == wanted, &format!("{field}: {count}, must be {wanted}")))
}

/// Returns an error unless all bars of a proof were met.
pub(super) fn verdict(all_met: bool) -> Result<(), String> {
    if all_met { Ok(()) } else { Err("a bar was missed, see above; is the machine idle?".to_owned()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figure_equal_to_the_bar_passes() {
        let line = json!({"a": 2.0, "b": 3});
        assert!(at_most(&line, "a", 2.0).unwrap() && !at_most(&line, "a", 1.9).unwrap());
        assert!(at_least(&line, "a", 2.0).unwrap() && !at_least(&line, "a", 2.1).unwrap());
        assert!(exactly(&line, "b", 3).unwrap() && !exactly(&line, "b", 2).unwrap());
        assert!(verdict(true).is_ok() && verdict(false).is_err());
    }

    #[test]
    fn missing_figure_is_an_error() {
        let line = json!({"a": "fast", "b": -1, "c": 0});
        assert!(at_most(&line, "a", 1.0).is_err() && at_least(&line, "d", 1.0).is_err());
        assert!(exactly(&line, "b", 0).is_err());
        for field in ["a", "b", "c", "d"] {
            assert!(measured(&line, &[field]).is_err(), "{field}");
        }
        assert!(one(&[]).is_err() && line_with(&[line], "a", 1).is_err());
    }
}
