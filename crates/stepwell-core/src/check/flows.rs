//! The sixth pass: checks that the strategy of a flow allows everything in the spec, and that messages lead to waits.

use std::collections::BTreeSet;

use super::{Location, ProblemCode, Report};
use crate::ids::Name;
use crate::needs::needs_durable_run;
use crate::spec::{Place, Spec, TransitionTrigger};

/// The action that sends the answer link of the next wait.
const SEND_OUT: &str = "flow.sendOut";
/// The built-in strategies without a durable run. Other names are known only to the host program.
const NOT_DURABLE: [&str; 2] = ["sealed", "handle"];
/// Maximum length of a strategy's name, in characters.
const MAX_NAME_CHARS: usize = 64;

pub(super) fn check(spec: &Spec, report: &mut Report) {
    if let Some(strategy) = &spec.strategy {
        check_strategy(spec, strategy, report);
    }
    for transition in &spec.transitions {
        let sends = transition.action.as_ref().is_some_and(|action| action.name.as_str() == SEND_OUT);
        if sends && !leads_to_wait(spec, &transition.to) {
            let message = format!(
                "`{SEND_OUT}` must be directly before the wait that the message answers: `human.task` or `wait.signal`"
            );
            report.add(ProblemCode::NoWait, Location::Transition(transition.id.clone()), message);
        }
    }
}

fn check_strategy(spec: &Spec, strategy: &str, report: &mut Report) {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !(1..=MAX_NAME_CHARS).contains(&strategy.len()) || !strategy.chars().all(fits) {
        let message = format!(
            "`{strategy}` is not a strategy: use `sealed`, `handle`, `durable` or a name of 1 to {MAX_NAME_CHARS} letters, digits, `_` and `-`"
        );
        report.add(ProblemCode::BadName, Location::Definition, message);
    }
    if !NOT_DURABLE.contains(&strategy) {
        return;
    }
    for (at, what) in needs_durable_run(spec) {
        let message = format!("the strategy `{strategy}` allows no {what}: use the strategy `durable`");
        report.add(ProblemCode::NeedsDurableRun, at, message);
    }
}

/// Returns true if entering this place may open a wait for an answer.
fn leads_to_wait(spec: &Spec, to: &Name) -> bool {
    let (mut open, mut seen) = (vec![to], BTreeSet::new());
    while let Some(name) = open.pop() {
        if !seen.insert(name) {
            continue;
        }
        match spec.places.get(name) {
            Some(Place::Wait(wait)) if wait.children.is_none() => return true,
            Some(Place::Loop(round)) => open.push(&round.first),
            Some(Place::Catch(catch)) => open.push(&catch.first),
            Some(Place::Fork(fork)) => open.extend(&fork.branches),
            // A misspelled place is reported by another pass.
            None => return true,
            _ => {}
        }
        let answers = |on: &TransitionTrigger| matches!(on, TransitionTrigger::Signal(_));
        if spec.transitions.iter().any(|one| one.from == *name && answers(&one.on)) {
            return true;
        }
    }
    false
}
