//! Topics: the index keys by which the waits for an event are found.
//!
//! A topic is a text of three parts: the name of the event, the hash of an expression on the event, and the hash of
//! the value of that expression. In sort order, waits for the same event name are adjacent, and among them waits with
//! the same expression. So a delivery can step through the distinct expressions of an event name, and find the waits
//! of each with one lookup.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The separator between the parts. Names cannot contain it.
const BETWEEN: char = '\u{1f}';
/// The character that sorts directly after the separator, for range ends.
const AFTER: char = '\u{20}';

/// Returns the topic of a wait for events named `name` for which the expression `of` has the value `value_key`.
///
/// Without an expression, the value is compared with the event's own correlation. Without a value, the wait accepts
/// every event of this name.
pub fn topic(name: &str, of: Option<&str>, value_key: Option<&Value>) -> String {
    let expression_key = expression_key(of, value_key.is_some());
    let value_key = value_key.map(|value| digest(plain(value).to_string().as_bytes())).unwrap_or_default();
    format!("{name}{BETWEEN}{expression_key}{BETWEEN}{value_key}")
}

/// Returns the middle part of a topic, which identifies the expression that is evaluated on the event.
pub fn expression_key(of: Option<&str>, has_value: bool) -> String {
    match of {
        Some(of) => digest(of.as_bytes()),
        None if has_value => "own".to_owned(),
        None => "any".to_owned(),
    }
}

/// Returns the range of topics of all waits for an event name: the inclusive start and the exclusive end.
pub fn name_range(name: &str) -> (String, String) {
    (format!("{name}{BETWEEN}"), format!("{name}{AFTER}"))
}

/// Returns the first topic after all topics with the same name and expression as `topic`.
pub fn after(topic: &str) -> Option<String> {
    let (head, _) = topic.rsplit_once(BETWEEN)?;
    Some(format!("{head}{AFTER}"))
}

/// Returns the first half of a SHA-256 hash in hex digits. This is short enough for an index and long enough to avoid
/// collisions.
pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(16).fold(String::with_capacity(32), |mut out, byte| {
        use std::fmt::Write as _;
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Normalizes numbers for comparison, so that 1 and 1.0 are equal.
pub fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float)
                if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < 9e15 =>
            {
                Value::from(float as i64)
            }
            _ => value.clone(),
        },
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
