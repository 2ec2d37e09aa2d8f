//! Timestamps: microseconds since 1970 in memory, RFC 3339 in JSON.
//!
//! PostgreSQL stores microseconds, so a timestamp survives every kind of storage unchanged. There is no `now()` here:
//! the engine has the only clock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A point in time, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// The years 0000 to 9999, the range that RFC 3339 can represent, reduced so that the year stays in this range in
/// every time zone.
const MIN_MICROS: i64 = -62_167_219_200_000_000;
const MAX_MICROS: i64 = 253_402_207_200_000_000;

impl Timestamp {
    /// The earliest timestamp that can be represented.
    pub const MIN: Timestamp = Timestamp(MIN_MICROS);
    /// The latest timestamp that can be represented.
    pub const MAX: Timestamp = Timestamp(MAX_MICROS);

    /// Creates a timestamp from microseconds since the epoch, clamped to [`Timestamp::MIN`] and [`Timestamp::MAX`].
    pub const fn from_micros(micros: i64) -> Self {
        if micros < MIN_MICROS {
            return Self::MIN;
        }
        if micros > MAX_MICROS {
            return Self::MAX;
        }
        Timestamp(micros)
    }

    /// Creates a timestamp from milliseconds since the epoch, clamped to [`Timestamp::MIN`] and [`Timestamp::MAX`].
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_micros(millis.saturating_mul(1000))
    }

    /// Returns the microseconds since the epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns the timestamp `ms` milliseconds later, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        let micros = if ms > (i64::MAX as u64) / 1000 { i64::MAX } else { ms as i64 * 1000 };
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Returns the timestamp `micros` microseconds later, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        let micros = if micros > i64::MAX as u64 { i64::MAX } else { micros as i64 };
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Returns the milliseconds from `earlier` to this timestamp, or zero if `earlier` is later.
    pub const fn ms_since(self, earlier: Timestamp) -> u64 {
        let micros = self.0 - earlier.0;
        if micros < 0 { 0 } else { (micros / 1000) as u64 }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{at}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

/// The error for a text that is not an RFC 3339 timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 timestamp such as 2026-01-31T09:30:00Z")]
pub struct InvalidTimestamp(String);

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp(text.to_owned()))?;
        Ok(Self::from_micros(at.as_microsecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(32);
        match jiff::Timestamp::from_microsecond(self.0) {
            // Printed directly into the buffer, because every snapshot contains several timestamps.
            Ok(at) => jiff::fmt::temporal::DateTimePrinter::new()
                .print_timestamp(&at, &mut text)
                .map_err(serde::ser::Error::custom)?,
            Err(_) => text = self.to_string(),
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
/// Parses a duration and returns it in milliseconds.
///
/// Accepts ISO 8601 (`PT30S`), the friendly format (`30s`) and 0. Any other number is rejected, because some programs
/// count in seconds and others in milliseconds. Years and months are rejected because their length varies.
pub fn duration_ms(value: &Value) -> Option<u64> {
    let text = match value {
        Value::Number(number) => return (number.as_f64() == Some(0.0)).then_some(0),
        Value::String(text) => text,
        _ => return None,
    };
    let span: jiff::Span = text.parse().ok()?;
    let day = jiff::SpanRelativeTo::days_are_24_hours();
    whole_ms(span.total((jiff::Unit::Second, day)).ok()? * 1_000.0)
}

/// Rounds a number of milliseconds. Returns `None` if it is negative or longer than about 285,000 years.
pub(crate) fn whole_ms(ms: f64) -> Option<u64> {
    let ms = ms.round();
    (ms.is_finite() && (0.0..=9.0e15).contains(&ms)).then_some(ms as u64)
}

/// Explains that a bare number is not a duration, with both readings. Returns `None` if the value is not a number, or
/// if it is negative.
///
/// `label` is the text before the number, such as `timeout: `.
pub fn missing_unit(label: &str, value: &Value) -> Option<String> {
    let number = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        _ => return None,
    };
    let is_number = number.parse::<f64>().is_ok_and(|number| number.is_finite() && number.is_sign_positive());
    let number = number.strip_suffix(".0").unwrap_or(&number);
    is_number.then(|| format!("`{label}{number}` has no unit: write `{number}ms` or `{number}s`"))
}
