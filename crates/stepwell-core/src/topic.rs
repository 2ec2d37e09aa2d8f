//! What an event and the waits for it are found by: the event's name, what is asked of it, and what it says.
//!
//! A topic is a text, in three parts: the event's name, the hash of an expression on the event, and the hash of what that comes
//! to. Waits for one name lie side by side, those that ask the same expression too; so all that are asked of an event are
//! found by going from one to the next, and the waits that it concerns by one look for each.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Stands between the parts; no name has it.
const BETWEEN: char = '\u{1f}';
/// Comes right after what stands between the parts.
const AFTER: char = '\u{20}';

/// The topic of a wait for events of a name of which `of` is `says`; without an expression, their own correlation is, and with
/// nothing to say every event is meant.
pub fn topic(name: &str, of: Option<&str>, says: Option<&Value>) -> String {
    let asked = asked(of, says.is_some());
    let says = says.map(|value| digest(plain(value).to_string().as_bytes())).unwrap_or_default();
    format!("{name}{BETWEEN}{asked}{BETWEEN}{says}")
}

/// The middle part of a topic: what is asked of the event.
pub fn asked(of: Option<&str>, is_asked: bool) -> String {
    match of {
        Some(of) => digest(of.as_bytes()),
        None if is_asked => "own".to_owned(),
        None => "any".to_owned(),
    }
}

/// The topics of waits for a name: from the first, and before the second.
pub fn of_name(name: &str) -> (String, String) {
    (format!("{name}{BETWEEN}"), format!("{name}{AFTER}"))
}

/// The topics of waits for a name that come after those which ask the same as one of them.
pub fn after(topic: &str) -> Option<String> {
    let (head, _) = topic.rsplit_once(BETWEEN)?;
    Some(format!("{head}{AFTER}"))
}

/// Half of a SHA-256, in hexadecimal digits: short enough for an index, long enough to be the only one.
pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(16).fold(String::with_capacity(32), |mut out, byte| {
        use std::fmt::Write as _;
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The value as it is compared: a number is the same however it is written.
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
