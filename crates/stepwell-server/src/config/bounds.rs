//! The smallest and the largest value of each setting that is a number or a duration. They are part of the reference.

use serde_json::Value;
use stepwell::core::document::cases::duration;
use stepwell::core::time::duration_ms;

use super::settings::{Limits, is_endless};

/// The bounds of a setting. A setting that also accepts `unlimited` or `never` accepts it besides.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bounds {
    Count(u64, u64),
    /// Shortest and longest duration, in milliseconds.
    Time(u64, u64),
}

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;
/// The longest time that timestamps leave room for.
const CENTURY: u64 = 36_500 * DAY;

const BOUNDS: &[(&str, Bounds)] = &[
    ("server.max_connections", Bounds::Count(1, 1_000_000)),
    ("server.head_timeout", Bounds::Time(1, DAY)),
    ("server.body_timeout", Bounds::Time(1, DAY)),
    ("server.answer_timeout", Bounds::Time(1, DAY)),
    ("server.write_timeout", Bounds::Time(1, DAY)),
    ("server.shutdown_timeout", Bounds::Time(0, DAY)),
    ("server.max_wait", Bounds::Time(0, DAY)),
    ("server.body_bytes", Bounds::Count(1, 256 * 1024 * 1024)),
    ("server.burst", Bounds::Count(1, u32::MAX as u64)),
    ("database.connections", Bounds::Count(2, 1_000)),
    ("database.response_timeout", Bounds::Time(SECOND, HOUR)),
    ("database.batch", Bounds::Count(1, 4_096)),
    ("database.queue", Bounds::Count(1, 1_000_000)),
    ("engine.max_runs", Bounds::Count(0, 1_000_000)),
    ("engine.lease", Bounds::Time(100, DAY)),
    ("engine.idempotency_key_ttl", Bounds::Time(1, CENTURY)),
    ("engine.action_timeout", Bounds::Time(1, CENTURY)),
    ("engine.max_crashes", Bounds::Count(1, 1_000_000)),
    ("engine.signal_ttl", Bounds::Time(1, CENTURY)),
    ("engine.event_ttl", Bounds::Time(1, CENTURY)),
    ("engine.poll", Bounds::Time(1, HOUR)),
    ("engine.maintenance_interval", Bounds::Time(1, DAY)),
    ("mail.port", Bounds::Count(1, 65_535)),
    ("telemetry.timeout", Bounds::Time(1, HOUR)),
];

/// Returns the bounds of a setting, if it has some.
pub(crate) fn of(name: &str) -> Option<Bounds> {
    if let Some(limit) = name.strip_prefix("limits.") {
        let known = Limits::all().find(|known| known.name == limit)?;
        return Some(Bounds::Count(known.least, known.most));
    }
    BOUNDS.iter().find(|(known, _)| *known == name).map(|(_, bounds)| *bounds)
}

/// Returns the names of the settings with bounds, besides the limits.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BOUNDS.iter().map(|(name, _)| *name)
}

/// Returns the reason to refuse a value; `None` if it is within the bounds of its setting.
pub(crate) fn refuses(name: &str, value: &Value) -> Option<String> {
    let bounds = of(name)?;
    let is_within = match bounds {
        // A limit whose largest value is the largest number may be unlimited.
        Bounds::Count(_, most) if is_endless(value) => !name.starts_with("limits.") || most == u64::MAX,
        Bounds::Time(..) if is_endless(value) => true,
        Bounds::Count(least, most) => (least..=most).contains(&value.as_u64()?),
        Bounds::Time(least, most) => (least..=most).contains(&duration_ms(value)?),
    };
    (!is_within).then(|| format!("it must be {bounds}"))
}

impl std::fmt::Display for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Bounds::Count(least, u64::MAX) => write!(f, "at least {least}, or `unlimited`"),
            Bounds::Count(least, most) => write!(f, "from {least} to {most}"),
            Bounds::Time(least, CENTURY) => write!(f, "at least {}", duration(least)),
            Bounds::Time(least, most) => write!(f, "from {} to {}", duration(least), duration(most)),
        }
    }
}
