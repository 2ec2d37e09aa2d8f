//! Reads `concurrency` and `rateLimit` of a workflow document.

use serde_json::Value;

use super::fields::{Fields, Report, template, wrong};
use super::model::Span;
use super::tree::Kind;
use crate::admission::{ConcurrencyLimit, MAX_LIMIT, MAX_PERIOD_MS, RateLimit, WhenFull};
use crate::spec::Spec;

/// The names that a key can read. No step has run when it is computed.
const READABLE: [&str; 2] = ["payload", "meta"];

/// Reads the limits of a workflow into its spec.
pub(super) fn read(fields: &mut Fields<'_>, frame: &mut Spec, report: &mut Report) {
    let has_steps = fields.get("steps").is_some();
    frame.concurrency = concurrency(fields, has_steps, report);
    frame.rate_limit = rate_limit(fields, has_steps, report);
}

fn concurrency(fields: &mut Fields<'_>, has_steps: bool, report: &mut Report) -> Option<ConcurrencyLimit> {
    let mut fields = Fields::of(fields.get("concurrency")?, "`concurrency`", report)?;
    let key = key(&mut fields, has_steps, report);
    let limit = count(&mut fields, "limit", report);
    let when_full = fields.word("whenFull", &WhenFull::WORDS, report).and_then(WhenFull::from_word);
    fields.finish(report);
    Some(ConcurrencyLimit { key, limit: limit?, when_full: when_full.unwrap_or_default() })
}

fn rate_limit(fields: &mut Fields<'_>, has_steps: bool, report: &mut Report) -> Option<RateLimit> {
    let mut fields = Fields::of(fields.get("rateLimit")?, "`rateLimit`", report)?;
    let key = key(&mut fields, has_steps, report);
    let limit = count(&mut fields, "limit", report);
    let has_burst = fields.get("burst").is_some();
    let burst = if has_burst { count(&mut fields, "burst", report) } else { None };
    if let (Some(limit), Some(burst), Some(node)) = (limit, burst, fields.get("burst"))
        && burst > limit
    {
        report.add("value", node.at, format!("`burst` must be at most `limit` ({limit}), got {burst}"));
    }
    fields.need("per", report);
    let per_ms = period(&mut fields, report);
    fields.finish(report);
    let burst = if has_burst { Some(burst?) } else { None };
    Some(RateLimit { key, limit: limit?, per_ms: per_ms?, burst: burst.filter(|_| burst <= limit) })
}

fn period(fields: &mut Fields<'_>, report: &mut Report) -> Option<u64> {
    let node = fields.get("per")?;
    let at = node.at;
    if let Kind::Number(number) = &node.kind {
        let why = "a number alone may mean seconds or milliseconds";
        let message =
            format!("`per` must be a duration with a unit, such as `{number}s` or `{number}ms`: {why}");
        report.add("type", at, message);
        return None;
    }
    match fields.span("per", report)? {
        Span::Ms(ms) if (1..=MAX_PERIOD_MS).contains(&ms) => Some(ms),
        Span::Ms(ms) => {
            report.add(
                "value",
                at,
                format!("`per` must be longer than zero and at most 31 days (got {ms} ms)"),
            );
            None
        }
        Span::Expr(_) => {
            report.add("value", at, "`per` must be a fixed duration such as `1m`, not an expression");
            None
        }
    }
}

fn count(fields: &mut Fields<'_>, name: &'static str, report: &mut Report) -> Option<u32> {
    let node = fields.need(name, report)?;
    let count = fields.number(name, report)?;
    if (1..=MAX_LIMIT).contains(&count) {
        return Some(count);
    }
    report.add(
        "value",
        node.at,
        format!("`{name}` must be a whole number from 1 to {MAX_LIMIT} (got {count})"),
    );
    None
}

fn key(fields: &mut Fields<'_>, has_steps: bool, report: &mut Report) -> Option<Value> {
    let node = fields.get("key")?;
    let value = node.to_value();
    if !(value.is_string() || value.is_number() || value.get("$expr").is_some()) {
        return wrong(
            node,
            "key",
            "text, a number or an expression such as `{ $expr: \"payload.customer\" }`",
            report,
        );
    }
    let before = report.used.len();
    template(node, report);
    for used in report.used.split_off(before) {
        let unknown = used.roots.iter().filter(|root| has_steps && !READABLE.contains(&root.as_str()));
        for root in unknown {
            let hint = report.hint(root, READABLE);
            let why = "a key is computed before the first step and reads `payload` and `meta`";
            report.add("unknownName", used.at, format!("unknown name `{root}`{hint}: {why}"));
        }
    }
    Some(value)
}
