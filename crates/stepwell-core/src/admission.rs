//! Admission limits of a workflow: how many runs may be active at a time, and how many may begin within a time.
//!
//! The definition declares the limits and computes the key of a run. The engine queues the runs and admits them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::check::{Location, ProblemCode, Report};
use crate::definition::Definition;
use crate::expr::Budget;
use crate::guard::View;
use crate::refusal::DecideError;
use crate::snapshot::Snapshot;
use crate::spec::Spec;
use crate::template::Template;
use crate::time::Timestamp;

/// Highest value of `limit`. The engine keeps one entry per admitted run in one row.
pub const MAX_LIMIT: u32 = 10_000;
/// Maximum length of a key in characters.
pub const MAX_KEY_CHARS: usize = 256;
/// Longest period of a rate limit, in milliseconds: 31 days.
pub const MAX_PERIOD_MS: u64 = 31 * 24 * 3_600_000;

/// A limit on the number of runs of a workflow that are active at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConcurrencyLimit {
    /// Template of the key: each key has its own limit. Without it, one limit applies to the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// Maximum number of active runs per key.
    pub limit: u32,
    /// The effect on a new run when the limit is reached.
    #[serde(default, skip_serializing_if = "WhenFull::is_wait")]
    pub when_full: WhenFull,
}

/// The effect on a new run when a concurrency limit is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WhenFull {
    /// The run waits until another run ends.
    #[default]
    Wait,
    /// The run is refused.
    Refuse,
    /// The oldest run of the key is cancelled, and the new one takes its turn when that run has ended.
    CancelOldest,
}

impl WhenFull {
    /// The values as written in a document.
    pub const WORDS: [&'static str; 3] = ["wait", "refuse", "cancelOldest"];

    fn is_wait(&self) -> bool {
        *self == WhenFull::Wait
    }

    /// Returns the value as written in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            WhenFull::Wait => "wait",
            WhenFull::Refuse => "refuse",
            WhenFull::CancelOldest => "cancelOldest",
        }
    }

    /// Parses the output of [`WhenFull::as_str`].
    pub fn from_word(word: &str) -> Option<Self> {
        [WhenFull::Wait, WhenFull::Refuse, WhenFull::CancelOldest]
            .into_iter()
            .find(|one| one.as_str() == word)
    }
}

/// A limit on the number of runs of a workflow that begin within a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Template of the key: each key has its own limit. Without it, one limit applies to the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// Maximum number of runs that begin within any period of `per_ms`.
    pub limit: u32,
    /// The period in milliseconds.
    pub per_ms: u64,
    /// Maximum number of runs that begin at once. Default: `limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl RateLimit {
    /// Returns the rule as one window: at most this many runs begin within any period of this many milliseconds.
    ///
    /// A burst below the limit shortens the period in proportion, so the limit holds for the whole period too.
    pub fn window(&self) -> (u32, u64) {
        let burst = self.burst.unwrap_or(self.limit).clamp(1, self.limit.max(1));
        let per_ms = u128::from(self.per_ms) * u128::from(burst);
        let per_ms = per_ms.div_ceil(u128::from(self.limit.max(1)));
        (burst, u64::try_from(per_ms).unwrap_or(u64::MAX))
    }
}

/// The kind of an admission limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitKind {
    Concurrency,
    Rate,
}

impl LimitKind {
    /// Returns the kind as shown in texts and stored in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            LimitKind::Concurrency => "concurrency",
            LimitKind::Rate => "rate",
        }
    }
}

/// The compiled keys of a definition's limits.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    concurrency: Option<Template>,
    rate: Option<Template>,
}

/// Checks the limits of a spec and compiles their keys.
pub(crate) fn check(spec: &Spec, report: &mut Report) -> Keys {
    let mut keys = Keys::default();
    if let Some(concurrency) = &spec.concurrency {
        keys.concurrency = key("concurrency", concurrency.key.as_ref(), report);
        count("concurrency", "limit", concurrency.limit, MAX_LIMIT, report);
    }
    if let Some(rate) = &spec.rate_limit {
        keys.rate = key("rateLimit", rate.key.as_ref(), report);
        count("rateLimit", "limit", rate.limit, MAX_LIMIT, report);
        if let Some(burst) = rate.burst {
            count("rateLimit", "burst", burst, rate.limit.clamp(1, MAX_LIMIT), report);
        }
        if !(1..=MAX_PERIOD_MS).contains(&rate.per_ms) {
            let message = format!(
                "`rateLimit.per` must be longer than zero and at most 31 days (got {} ms)",
                rate.per_ms
            );
            report.add(ProblemCode::BadLimit, Location::Field("rateLimit"), message);
        }
    }
    keys
}

fn count(of: &'static str, field: &str, value: u32, most: u32, report: &mut Report) {
    if !(1..=most).contains(&value) {
        let message = format!("`{of}.{field}` must be a whole number from 1 to {most} (got {value})");
        report.add(ProblemCode::BadLimit, Location::Field(of), message);
    }
}

fn key(of: &'static str, source: Option<&Value>, report: &mut Report) -> Option<Template> {
    let source = source?;
    match Template::compile(source) {
        Ok(template) if template.is_constant() && !matches!(source, Value::String(_) | Value::Number(_)) => {
            let message = format!(
                "`{of}.key` must be text, a number or an expression such as {{ $expr: \"payload.customer\" }}"
            );
            report.add(ProblemCode::BadLimit, Location::Field(of), message);
            None
        }
        Ok(template) => Some(template),
        Err(problems) => {
            for problem in problems {
                let message = format!("`{of}.key`: {}", problem.message);
                report.add(ProblemCode::BadExpression, Location::Field(of), message);
            }
            None
        }
    }
}

impl Definition {
    /// Returns true if the workflow limits its runs.
    pub fn has_limits(&self) -> bool {
        self.spec().concurrency.is_some() || self.spec().rate_limit.is_some()
    }

    /// Returns the limits that a run must pass before it begins, in order, each with the run's key.
    pub fn limit_keys(
        &self,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Result<Vec<(LimitKind, Option<String>)>, DecideError> {
        let (spec, keys) = (self.spec(), &self.compiled().admission);
        let mut found = Vec::new();
        if spec.concurrency.is_some() {
            found.push((
                LimitKind::Concurrency,
                rendered("concurrency", keys.concurrency.as_ref(), snapshot, now)?,
            ));
        }
        if spec.rate_limit.is_some() {
            found.push((LimitKind::Rate, rendered("rateLimit", keys.rate.as_ref(), snapshot, now)?));
        }
        Ok(found)
    }
}

/// Computes the key of a run: text or a number, of 1 to [`MAX_KEY_CHARS`] characters.
fn rendered(
    of: &str,
    key: Option<&Template>,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Option<String>, DecideError> {
    let Some(key) = key else { return Ok(None) };
    let (locals, event) = (Map::new(), Value::Null);
    let at = || format!("`{of}.key`");
    let view = View::new(snapshot, &locals, &event, now);
    let value = key
        .render(&view, &mut Budget::default())
        .map_err(|error| DecideError::Template { at: at(), error })?;
    let wrong = |found: String| DecideError::InvalidLimitKey { at: at(), found };
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        Value::Null => return Err(wrong("null".to_owned())),
        Value::Bool(truth) => return Err(wrong(truth.to_string())),
        Value::Array(_) => return Err(wrong("a list".to_owned())),
        Value::Object(_) => return Err(wrong("an object".to_owned())),
    };
    let chars = text.chars().count();
    if text.contains('\0') {
        return Err(wrong("text with a NUL character".to_owned()));
    }
    if !(1..=MAX_KEY_CHARS).contains(&chars) {
        return Err(wrong(format!("text of {chars} characters")));
    }
    Ok(Some(text))
}
