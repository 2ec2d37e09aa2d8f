//! Judging single figures of a measurement.

use serde_json::Value;

use super::{judged, number};

/// The only line there is.
pub(super) fn one(lines: &[Value]) -> Result<&Value, String> {
    match lines {
        [line] => Ok(line),
        _ => Err(format!("expected one line of figures, got {}", lines.len())),
    }
}

/// The line whose field has this value.
pub(super) fn line_with<'a>(lines: &'a [Value], field: &str, value: u64) -> Result<&'a Value, String> {
    lines.iter().find(|line| line[field] == value).ok_or_else(|| format!("no line with {field} {value}"))
}

/// Every one of these figures is there and more than nothing.
pub(super) fn measured(line: &Value, fields: &[&str]) -> Result<(), String> {
    for field in fields {
        let figure = number(line, field)?;
        if !figure.is_finite() || figure <= 0.0 {
            return Err(format!("`{field}` is {figure}, which nothing measured can be, in {line}"));
        }
    }
    Ok(())
}

/// The figure is no more than this.
pub(super) fn at_most(line: &Value, field: &str, most: f64) -> Result<bool, String> {
    let figure = number(line, field)?;
    Ok(judged(figure <= most, &format!("{field}: {figure}, at most {most}")))
}

/// The figure is no less than this.
pub(super) fn at_least(line: &Value, field: &str, least: f64) -> Result<bool, String> {
    let figure = number(line, field)?;
    Ok(judged(figure >= least, &format!("{field}: {figure}, at least {least}")))
}

/// The count is this.
pub(super) fn exactly(line: &Value, field: &str, wanted: u64) -> Result<bool, String> {
    let count = line[field].as_u64().ok_or_else(|| format!("`{field}` is not a count in {line}"))?;
    Ok(judged(count == wanted, &format!("{field}: {count}, must be {wanted}")))
}

/// What a proof says when everything was judged.
pub(super) fn verdict(all_met: bool) -> Result<(), String> {
    if all_met { Ok(()) } else { Err("a bar was missed, see above; is the machine idle?".to_owned()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bars_are_met_up_to_the_bar_itself() {
        let line = json!({"a": 2.0, "b": 3});
        assert!(at_most(&line, "a", 2.0).unwrap() && !at_most(&line, "a", 1.9).unwrap());
        assert!(at_least(&line, "a", 2.0).unwrap() && !at_least(&line, "a", 2.1).unwrap());
        assert!(exactly(&line, "b", 3).unwrap() && !exactly(&line, "b", 2).unwrap());
        assert!(verdict(true).is_ok() && verdict(false).is_err());
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let line = json!({"a": "fast", "b": -1, "c": 0});
        assert!(at_most(&line, "a", 1.0).is_err() && at_least(&line, "d", 1.0).is_err());
        assert!(exactly(&line, "b", 0).is_err());
        for field in ["a", "b", "c", "d"] {
            assert!(measured(&line, &[field]).is_err(), "{field}");
        }
        assert!(one(&[]).is_err() && line_with(&[line], "a", 1).is_err());
    }
}
