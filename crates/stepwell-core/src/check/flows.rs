//! The sixth pass: checks that the strategy of a flow allows everything in the spec, that messages lead to waits, and
//! that a change of the strategy has an effect.

use std::collections::BTreeSet;

use super::graph::edges;
use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::ids::Name;
use crate::needs::needs_durable_run;
use crate::spec::{Over, Place, Spec, TransitionTrigger};

/// The action that sends the answer link of the next wait.
const SEND_OUT: &str = "flow.sendOut";
/// The action that changes the strategy from the next pause on.
const USE_STRATEGY: &str = "flow.useStrategy";
/// The built-in strategies without a durable run. Other names are known only to the host program.
const NOT_DURABLE: [&str; 2] = ["sealed", "handle"];
/// Maximum length of a strategy's name, in characters.
const MAX_NAME_CHARS: usize = 64;

pub(super) fn check(spec: &Spec, links: &Links, report: &mut Report) {
    if let Some(strategy) = &spec.strategy {
        check_strategy(spec, strategy, report);
    }
    for (index, transition) in spec.transitions.iter().enumerate() {
        let message = match transition.action.as_ref().map(|action| action.name.as_str()) {
            Some(SEND_OUT) if !leads_to_wait(spec, &transition.to) => format!(
                "`{SEND_OUT}` must be directly before the wait that the message answers: `human.task` or `wait.signal`"
            ),
            Some(USE_STRATEGY) if !reaches_pause(spec, links, index) => {
                format!("`{USE_STRATEGY}` has no effect: no pause follows it")
            }
            _ => continue,
        };
        report.add(ProblemCode::NoWait, Location::Transition(transition.id.clone()), message);
    }
}

/// Returns true if the run may pause at some time after this transition. A transition to an unknown place is reported
/// by another pass.
fn reaches_pause(spec: &Spec, links: &Links, transition: usize) -> bool {
    let Some(to) = links.ends[transition].1 else { return true };
    let edges = edges(spec.places.len(), links);
    let (mut open, mut seen) = (vec![to], BTreeSet::from([to]));
    while let Some(place) = open.pop() {
        open.extend(
            edges[place].iter().chain(&links.branches[place]).copied().filter(|next| seen.insert(*next)),
        );
    }
    let is_wait = |(place, kind): (usize, &Place)| matches!(kind, Place::Wait(_)) && seen.contains(&place);
    let is_left = |place: Option<usize>| place.is_some_and(|place| seen.contains(&place));
    spec.places.values().enumerate().any(is_wait)
        || spec
            .transitions
            .iter()
            .zip(&links.ends)
            .any(|(one, (from, _))| !matches!(one.on, TransitionTrigger::Auto) && is_left(*from))
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
            Some(Place::Loop(round)) => {
                open.push(match &round.over {
                    Over::Pages(pages) => &pages.fetch,
                    Over::Items { .. } | Over::While(_) => &round.first,
                });
            }
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
