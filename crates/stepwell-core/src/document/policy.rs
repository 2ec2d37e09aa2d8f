//! Reads the policies of steps: when a fork is complete, how retries are spaced, how often a call is made.

use super::fields::{Fields, Report, whole, wrong};
use super::model::Goal;
use super::tree::{Kind, Node};
use crate::retry::{Backoff, Factor, Jitter, Retry};
use crate::spec::{DeliveryGuarantee, Quorum, Tolerance};

/// Reads `complete` and `tolerate` of a fork. `errors` is the error policy that the author wrote, and `branches` the
/// number of branches if it is known.
pub(super) fn goal(
    fields: &mut Fields<'_>,
    (policy, errors): (&str, Option<&str>),
    branches: Option<usize>,
    report: &mut Report,
) -> Option<Goal> {
    let (complete, tolerate) = (fields.get("complete"), fields.get("tolerate"));
    let at = complete.or(tolerate)?.at;
    let quorum = complete.map_or(Some(Quorum::All), |node| quorum(node, report))?;
    let tolerate = match tolerate {
        Some(node) => Some(tolerance(node, report)?),
        None => (quorum != Quorum::All).then_some(Tolerance::Any),
    }?;
    if let Some(errors) = errors.filter(|errors| *errors != "collect") {
        let message = format!(
            "`{policy}: {errors}` contradicts `complete` and `tolerate`, which say how many may fail: remove `{policy}`"
        );
        report.add("conflict", at, message);
    }
    if let (Quorum::N(needed), Some(branches)) = (quorum, branches)
        && needed as usize > branches
    {
        let message = format!("`complete` needs {needed} branches, but there are only {branches}");
        report.add("value", at, message);
    }
    Some(Goal { quorum, tolerate })
}

/// Reads `complete`: `all`, `first`, a number or `{ successes: N }`.
fn quorum(node: &Node, report: &mut Report) -> Option<Quorum> {
    let count = match &node.kind {
        Kind::Text(text) if text == "all" => return Some(Quorum::All),
        Kind::Text(text) if text == "first" => return Some(Quorum::Any),
        Kind::Number(_) => whole(node, "complete", report)?,
        Kind::Map(_) if node.field("successes").is_some() => {
            let mut fields = Fields::of(node, "`complete`", report)?;
            let count = fields.number("successes", report);
            fields.finish(report);
            count?
        }
        _ => return wrong(node, "complete", "`all`, `first`, a number or `{ successes: N }`", report),
    };
    if count == 0 {
        report.add(
            "value",
            node.at,
            "`complete` must be at least 1: a fork with 0 successes would do nothing",
        );
    }
    (count > 0).then_some(Quorum::N(count))
}

/// Reads `tolerate`: a number, or a percentage such as `25%`.
fn tolerance(node: &Node, report: &mut Report) -> Option<Tolerance> {
    match &node.kind {
        Kind::Number(_) => whole(node, "tolerate", report).map(Tolerance::Count),
        Kind::Text(text) => match percent(text) {
            Some(percent @ 0..=100) => Some(Tolerance::Percent(percent)),
            _ => {
                let message =
                    format!("`tolerate` must be a number or a percentage such as `25%` (got `{text}`)");
                report.add("value", node.at, message);
                None
            }
        },
        _ => wrong(node, "tolerate", "a number or a percentage such as `25%`", report),
    }
}

fn percent(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.trim().parse().ok()
}

/// Reads `factor`, `jitter` and `budget` of a retry policy.
pub(super) fn backoff(fields: &mut Fields<'_>, retry: &mut Retry, report: &mut Report) {
    if let Some(node) = fields.get("factor") {
        let number = match &node.kind {
            Kind::Number(number) => number.as_f64(),
            _ => wrong(node, "factor", "a number", report),
        };
        match number.map(|number| (number, Factor::new(number))) {
            Some((_, Some(factor))) => retry.factor = factor,
            Some((number, None)) => {
                report.add("value", node.at, format!("`factor` must be between 1 and 100 (got {number})"));
            }
            None => {}
        }
        if retry.backoff == Backoff::Fixed {
            report.add(
                "noEffect",
                node.at,
                "`factor` has no effect: the delays of `backoff: fixed` do not grow",
            );
        }
    }
    if let Some(node) = fields.get("jitter") {
        let jitter = match node.text() {
            Some("none") => Some(Jitter::None),
            Some("full") => Some(Jitter::Full),
            Some("equal") => Some(Jitter::Equal),
            Some(text) => percent(text).filter(|percent| (1..=100).contains(percent)).map(Jitter::Percent),
            None => None,
        };
        match jitter {
            Some(jitter) => retry.jitter = jitter,
            None => {
                let message = "`jitter` must be `none`, `full`, `equal` or a percentage from `1%` to `100%`";
                report.add("value", node.at, message);
            }
        }
    }
    retry.budget_ms = positive_span(fields, "budget", report);
}

/// Reads `delivery` of a call.
pub(super) fn delivery(fields: &mut Fields<'_>, report: &mut Report) -> DeliveryGuarantee {
    match fields.word("delivery", &["atLeastOnce", "atMostOnce"], report) {
        Some("atMostOnce") => DeliveryGuarantee::AtMostOnce,
        _ => DeliveryGuarantee::AtLeastOnce,
    }
}

/// Reads `heartbeat` of a wait, in milliseconds.
pub(super) fn heartbeat(fields: &mut Fields<'_>, report: &mut Report) -> Option<u64> {
    positive_span(fields, "heartbeat", report)
}

/// Reads a fixed duration that must be greater than zero, in milliseconds.
fn positive_span(fields: &mut Fields<'_>, name: &'static str, report: &mut Report) -> Option<u64> {
    let at = fields.position(name);
    let ms = fields.fixed_span(name, report)?;
    if ms == 0 {
        report.add("value", at, format!("`{name}` must be greater than zero"));
    }
    Some(ms.max(1))
}
