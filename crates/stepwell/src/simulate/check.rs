//! Comparison of a simulated run with the expectations of its case.

use serde_json::Value;
use stepwell_core::document::cases::{Case, CaseOutcome, ExpectedCall};

use super::Simulated;
use super::trace::{AnswerSource, SimulatedStep};

/// Maximum length of a value in a message, in characters.
const SHOWN: usize = 300;

/// Lists the expectations that were not met.
pub(super) fn failures(case: &Case, simulated: &Simulated) -> Vec<String> {
    let mut failures = Vec::new();
    for step in simulated.steps.iter().filter(|step| step.how == Some(AnswerSource::NotMocked)) {
        let why = step.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
        failures.push(format!("{why}; the input was {}", shown(step.input.as_ref())));
    }
    let expected = &case.expect;
    if simulated.outcome != expected.outcome {
        failures.push(format!(
            "outcome: expected {}, but the run {}",
            expected.outcome.word(),
            stands(simulated)
        ));
    }
    if let Some(result) = &expected.result {
        failures.extend(differs("result", result, simulated.result.as_ref(), false));
    }
    if let (Some(wanted), Some(error)) = (&expected.error, &simulated.error) {
        if wanted.code.as_ref().is_some_and(|code| *code != error.code) {
            let code = wanted.code.as_deref().unwrap_or_default();
            failures.push(format!(
                "error: expected the code `{code}`, but it is `{}`: {}",
                error.code, error.message
            ));
        }
        if let Some(part) = wanted.message.as_ref().filter(|part| !error.message.contains(part.as_str())) {
            failures.push(format!("error: the message does not contain `{part}`: {}", error.message));
        }
    }
    for (name, value) in &expected.vars {
        failures.extend(differs(&format!("vars.{name}"), value, simulated.vars.get(name), false));
    }
    failures.extend(calls(&expected.calls, &simulated.steps));
    if let Some(waits) = &expected.waits {
        let mut wanted = waits.clone();
        wanted.sort();
        let mut stands: Vec<_> = simulated.waits.clone();
        stands.sort();
        if wanted != stands {
            failures.push(format!(
                "waits: expected {}, but the run waits at {}",
                list(&wanted),
                list(&stands)
            ));
        }
    }
    for key in &expected.store {
        let found = simulated.store.iter().find(|one| one.namespace == key.namespace && one.key == key.key);
        let given = case.given.store.iter().find(|one| one.namespace == key.namespace && one.key == key.key);
        let value = found.or(given).map(|one| &one.value);
        failures.extend(differs(&format!("store {}/{}", key.namespace, key.key), &key.value, value, false));
    }
    failures
}

/// Describes the outcome of a run as the predicate of a sentence.
fn stands(simulated: &Simulated) -> String {
    match (simulated.outcome, &simulated.error) {
        (CaseOutcome::Completed, _) => format!("has completed with {}", shown(simulated.result.as_ref())),
        (CaseOutcome::Failed, Some(error)) => format!("has failed: {error}"),
        (CaseOutcome::Failed, None) => "has failed".to_owned(),
        (CaseOutcome::Waiting, _) => format!("waits at {}", list(&simulated.waits)),
        (CaseOutcome::Cancelled, _) => "was cancelled".to_owned(),
    }
}

fn list(names: &[String]) -> String {
    match names.is_empty() {
        true => "no step".to_owned(),
        false => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

/// Compares the expected calls with the calls that were made, in order. Calls of steps and actions that no expectation
/// names are ignored.
fn calls(expected: &[ExpectedCall], steps: &[SimulatedStep]) -> Vec<String> {
    if expected.is_empty() {
        return Vec::new();
    }
    let names = |call: &ExpectedCall, step: &SimulatedStep| {
        call.step.as_ref().is_none_or(|name| *name == step.step)
            && call.action.as_ref().is_none_or(|name| Some(name) == step.action.as_ref())
    };
    let made: Vec<_> =
        steps.iter().filter(|step| step.is_call() && expected.iter().any(|call| names(call, step))).collect();
    let mut failures = Vec::new();
    for (index, call) in expected.iter().enumerate() {
        let number = index + 1;
        let wanted = call.step.as_ref().or(call.action.as_ref()).cloned().unwrap_or_default();
        match made.get(index) {
            None => {
                failures.push(format!("calls: call {number} (`{wanted}`) was not made"));
                break;
            }
            Some(step) if !names(call, step) => {
                let action = step.action.as_deref().unwrap_or_default();
                failures.push(format!(
                    "calls: call {number} should be `{wanted}`, but step `{}` called `{action}`",
                    step.step
                ));
                break;
            }
            Some(step) => {
                let what = format!("calls: input of call {number} (`{wanted}`)");
                let differs =
                    call.input.as_ref().and_then(|input| differs(&what, input, step.input.as_ref(), true));
                failures.extend(differs);
            }
        }
    }
    for step in made.iter().skip(expected.len()) {
        let action = step.action.as_deref().unwrap_or_default();
        failures.push(format!(
            "calls: step `{}` made an unexpected additional call of `{action}` with {}",
            step.step,
            shown(step.input.as_ref())
        ));
    }
    failures
}

/// Describes the first difference between two values. With `is_subset`, fields that are not expected are ignored.
fn differs(what: &str, expected: &Value, actual: Option<&Value>, is_subset: bool) -> Option<String> {
    let (pointer, expected, actual) = difference(String::new(), Some(expected), actual, is_subset)?;
    let place = if pointer.is_empty() { String::new() } else { format!(" at {pointer}") };
    Some(format!("{what}{place}: expected {}, got {}", shown(expected), shown(actual)))
}

type Difference<'a> = (String, Option<&'a Value>, Option<&'a Value>);

fn difference<'a>(
    pointer: String,
    expected: Option<&'a Value>,
    actual: Option<&'a Value>,
    is_subset: bool,
) -> Option<Difference<'a>> {
    let below = |part: &str| format!("{pointer}/{}", part.replace('~', "~0").replace('/', "~1"));
    match (expected, actual) {
        (Some(Value::Object(wanted)), Some(Value::Object(found))) => {
            let more = found.keys().filter(|name| !is_subset && !wanted.contains_key(*name));
            wanted
                .keys()
                .chain(more)
                .find_map(|name| difference(below(name), wanted.get(name), found.get(name), is_subset))
        }
        (Some(Value::Array(wanted)), Some(Value::Array(found))) => (0..wanted.len().max(found.len()))
            .find_map(|index| {
                difference(below(&index.to_string()), wanted.get(index), found.get(index), is_subset)
            }),
        (Some(Value::Number(a)), Some(Value::Number(b))) if a.as_f64() == b.as_f64() => None,
        (expected, actual) if expected == actual => None,
        (expected, actual) => Some((pointer, expected, actual)),
    }
}

/// Formats a value for a message.
fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
