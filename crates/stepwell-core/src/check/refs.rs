//! The first pass: checks that names are valid and that everything they refer to exists.

use std::collections::BTreeSet;

use super::{Location, ProblemCode, Report};
use crate::definition::PlaceIndex;
use crate::ids::Name;
use crate::limits::Limits;
use crate::retry::{Jitter, Retry};
use crate::spec::{
    ChildRule, DeliveryGuarantee, Firing, Fork, Guard, Join, Over, Place, Quorum, Spec, Tolerance,
    Transition, TransitionTrigger, Wait,
};

/// The names of the spec resolved to indices. Unresolved names are missing.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) initial: Option<PlaceIndex>,
    /// Per place: the branches of a fork, the error place, the places listed by a join, the first place of a body,
    /// the place after a loop, and all places of a body.
    pub(super) branches: Vec<Vec<PlaceIndex>>,
    pub(super) place_error: Vec<Option<PlaceIndex>>,
    pub(super) join_of: Vec<BTreeSet<PlaceIndex>>,
    pub(super) first: Vec<Option<PlaceIndex>>,
    pub(super) then: Vec<Option<PlaceIndex>>,
    /// The place of a body that fetches a page.
    pub(super) fetch: Vec<Option<PlaceIndex>>,
    pub(super) bodies: Vec<BTreeSet<PlaceIndex>>,
    /// Per transition, in the order of the spec: source and target.
    pub(super) ends: Vec<(Option<PlaceIndex>, Option<PlaceIndex>)>,
    pub(super) error_place: Vec<Option<PlaceIndex>>,
    pub(super) retry_target: Vec<Option<PlaceIndex>>,
}

pub(super) fn resolve(spec: &Spec, limits: &Limits, report: &mut Report) -> Links {
    let mut links = Links::default();
    sizes(spec, limits, report);
    name(&spec.name, &Location::Definition, limits, report);
    match &spec.initial {
        Some(initial) => {
            links.initial = report.place(initial, "the initial place", &Location::Field("initial"));
        }
        None => {
            let message = "there is no initial place: set `initial`".to_owned();
            report.add(ProblemCode::NoStart, Location::Definition, message);
        }
    }
    for signal in spec.signals.keys() {
        name(signal, &Location::Signal(signal.clone()), limits, report);
    }
    for kind in spec.documents.keys() {
        name(kind, &Location::Document(kind.clone()), limits, report);
    }
    // Transitions come first, because the check for dead ends uses their resolved sources.
    let mut seen = BTreeSet::new();
    for transition in &spec.transitions {
        let at = Location::Transition(transition.id.clone());
        name(&transition.id, &at, limits, report);
        if !seen.insert(&transition.id) {
            let message = "another transition has the same id: use a unique id".to_owned();
            report.add(ProblemCode::DuplicateTransition, at.clone(), message);
        }
        resolve_transition(spec, transition, &at, limits, &mut links, report);
    }
    let leaving = leaving(spec, &links);
    for ((place_name, place), leaving) in spec.places.iter().zip(&leaving) {
        let at = Location::Place(place_name.clone());
        name(place_name, &at, limits, report);
        resolve_place(place, leaving, &at, &mut links, report);
    }
    links
}

fn sizes(spec: &Spec, limits: &Limits, report: &mut Report) {
    let checks = [
        limits.places("the definition", spec.places.len()),
        limits.transitions("the definition", spec.transitions.len()),
    ];
    for exceeded in checks.into_iter().filter_map(Result::err) {
        report.add(ProblemCode::TooLarge, Location::Definition, exceeded.to_string());
    }
}

fn name(name: &Name, at: &Location, limits: &Limits, report: &mut Report) {
    if let Some(message) = name.invalid_reason(limits) {
        report.add(ProblemCode::BadName, at.clone(), message);
    }
}

/// Returns the transitions that leave each place.
fn leaving<'a>(spec: &'a Spec, links: &Links) -> Vec<Vec<&'a Transition>> {
    let mut leaving = vec![Vec::new(); spec.places.len()];
    for (transition, (from, _)) in spec.transitions.iter().zip(&links.ends) {
        from.iter().for_each(|from| leaving[*from].push(transition));
    }
    leaving
}

fn resolve_place(
    place: &Place,
    leaving: &[&Transition],
    at: &Location,
    links: &mut Links,
    report: &mut Report,
) {
    let (mut branches, mut of, mut first, mut then) = (Vec::new(), BTreeSet::new(), None, None);
    let mut fetch = None;
    let (mut body, mut error_place): (&[Name], _) = (&[], None);
    match place {
        Place::Step {} => {}
        Place::End { error_place: error, .. } => error_place = error.as_ref(),
        Place::Wait(wait) => {
            error_place = wait.error_place.as_ref();
            resolve_wait(wait, leaving, at, report);
        }
        Place::Fork(fork) => {
            error_place = fork.each.as_ref().and_then(|each| each.error_place.as_ref());
            branches = resolve_fork(fork, at, report);
        }
        Place::Join(join) => {
            error_place = join.error_place.as_ref();
            of = resolve_join(join, at, report);
        }
        Place::Loop(round) => {
            error_place = round.error_place.as_ref();
            first = report.place(&round.first, "the first place", at);
            then = report.place(&round.then, "the place after the loop", at);
            if let Over::Pages(pages) = &round.over {
                fetch = report.place(&pages.fetch, "the place that fetches a page", at);
            }
            body = &round.body;
        }
        Place::Catch(catch) => {
            first = report.place(&catch.first, "the first place", at);
            body = &catch.body;
        }
    }
    let is_left_by_itself =
        matches!(place, Place::End { .. } | Place::Fork(_) | Place::Loop(_) | Place::Catch(_));
    if !is_left_by_itself && leaving.is_empty() {
        let message = "no transition leaves this place: add one, or make the place an end".to_owned();
        report.add(ProblemCode::DeadEnd, at.clone(), message);
    }
    links.branches.push(branches);
    links.join_of.push(of);
    links.place_error.push(error_place.and_then(|name| report.place(name, "the error place", at)));
    links.first.push(first);
    links.then.push(then);
    links.fetch.push(fetch);
    links.bodies.push(body.iter().filter_map(|name| report.place(name, "the body's place", at)).collect());
}

fn resolve_fork(fork: &Fork, at: &Location, report: &mut Report) -> Vec<PlaceIndex> {
    let message = match (&fork.each, fork.branches.len()) {
        (None, 0) => Some("the fork has no branches: add at least one"),
        (Some(_), count) if count != 1 => {
            Some("a fork over a list must name exactly one place, in which every branch starts")
        }
        _ => None,
    };
    if let Some(message) = message {
        report.add(ProblemCode::EmptyFork, at.clone(), message.to_owned());
    }
    if fork.each.as_ref().is_some_and(|each| each.limit == Some(0)) {
        report.add(
            ProblemCode::BadLoop,
            at.clone(),
            "`limit` must be at least 1: with 0 no branch can start".to_owned(),
        );
    }
    fork.branches.iter().filter_map(|name| report.place(name, "branch", at)).collect()
}

fn resolve_join(join: &Join, at: &Location, report: &mut Report) -> BTreeSet<PlaceIndex> {
    if join.quorum == Quorum::N(0) {
        let message = "the quorum must be at least 1, because a join fires when a branch arrives".to_owned();
        report.add(ProblemCode::BadQuorum, at.clone(), message);
    }
    if let Some(Tolerance::Percent(percent @ 101..)) = join.tolerate {
        let message = format!("the percentage of `tolerate` must be between 0 and 100 (got {percent})");
        report.add(ProblemCode::BadQuorum, at.clone(), message);
    }
    if join.tolerate.is_some() && join.ignore_failures {
        let message = "`tolerate` and `ignoreFailures` contradict each other: write only one of them";
        report.add(ProblemCode::BadQuorum, at.clone(), message.to_owned());
    }
    join.of.iter().filter_map(|name| report.place(name, "the joined place", at)).collect()
}

fn resolve_wait(wait: &Wait, leaving: &[&Transition], at: &Location, report: &mut Report) {
    if let Some(signal) = &wait.signal {
        report.signal(signal, at);
    }
    if wait.children == Some(ChildRule::N(0)) {
        let message = "the number of children to wait for must be at least 1".to_owned();
        report.add(ProblemCode::BadQuorum, at.clone(), message);
    }
    let timed = leaving.iter().any(|t| t.on.is_timer());
    if wait.signal.is_none() && wait.children.is_none() && !timed {
        let message = "nothing can resolve this wait: name a signal, wait for children, or add a timer";
        report.add(ProblemCode::UnresolvableWait, at.clone(), message.to_owned());
    }
}

fn resolve_transition(
    spec: &Spec,
    t: &Transition,
    at: &Location,
    limits: &Limits,
    links: &mut Links,
    report: &mut Report,
) {
    let from = report.place(&t.from, "the source", at);
    let to = report.place(&t.to, "the target", at);
    links.ends.push((from, to));
    let error = t.error_place.as_ref().or_else(|| t.retry.as_ref().and_then(|retry| retry.place.as_ref()));
    links.error_place.push(error.and_then(|name| report.place(name, "the error place", at)));
    links.retry_target.push(retry_target(spec, t, at, report));
    match spec.places.get(&t.from) {
        Some(Place::Fork(_)) => {
            let message =
                format!("`{}` is a fork: it leads to its branches and cannot have transitions", t.from);
            report.add(ProblemCode::BadSource, at.clone(), message);
        }
        Some(Place::Loop(_) | Place::Catch(_)) => {
            let message = format!(
                "`{}` is a loop or an error scope: it leads to its body and cannot have transitions",
                t.from
            );
            report.add(ProblemCode::BadSource, at.clone(), message);
        }
        Some(Place::End { .. }) => {
            let message = format!("`{}` is an end and cannot have transitions", t.from);
            report.add(ProblemCode::BadSource, at.clone(), message);
        }
        _ => {}
    }
    match &t.on {
        TransitionTrigger::Signal(signal) => report.signal(signal, at),
        TransitionTrigger::AfterMs(0) => {
            let message = "the delay of a timer must be at least 1 ms: omit `on` for an automatic transition"
                .to_owned();
            report.add(ProblemCode::BadTimer, at.clone(), message);
        }
        TransitionTrigger::Backoff(timer) => {
            policy(&timer.retry, at, report);
            if timer.retry.budget_ms.is_some() && timer.since.is_none() {
                let message = "a backoff timer with a budget needs `since`, the time of the first attempt";
                report.add(ProblemCode::BadTimer, at.clone(), message.to_owned());
            }
        }
        TransitionTrigger::Auto
        | TransitionTrigger::AfterMs(_)
        | TransitionTrigger::Until(_)
        | TransitionTrigger::After(_) => {}
    }
    if let Some(action) = &t.action {
        name(&action.name, at, limits, report);
    }
    if let Some(guard) = &t.guard {
        guard_names(guard, at, limits, report);
    }
    settings(spec, t, at, report);
}

/// Resolves the retry target, which must be a step, or a wait that does not need children.
fn retry_target(spec: &Spec, t: &Transition, at: &Location, report: &mut Report) -> Option<PlaceIndex> {
    let retry = t.retry.as_ref()?;
    let target = retry.target.as_ref()?;
    let index = report.place(target, "the retry target", at);
    let wrong = match spec.places.get(target) {
        Some(Place::Fork(_)) => Some("is a fork: go back to the place before it"),
        Some(Place::Loop(_)) => Some("is a loop: go back to the place before it"),
        Some(Place::Catch(_)) => Some("is an error scope, which only an error can enter"),
        Some(Place::Join(_)) => Some("is a join, which only the branches of its fork can enter"),
        Some(Place::End { .. }) => Some("is an end, from which nothing can be retried"),
        Some(Place::Wait(wait)) if wait.children.is_some() => {
            Some("waits for children, which a retry does not start: go back to the place that starts them")
        }
        Some(Place::Step {} | Place::Wait(_)) | None => None,
    };
    if retry.attempts == 0 {
        let message = format!("the retry target `{target}` has no effect without retries: set `attempts`");
        report.add(ProblemCode::BadRetryTarget, at.clone(), message);
    }
    let Some(wrong) = wrong else { return index };
    report.add(ProblemCode::BadRetryTarget, at.clone(), format!("the retry target `{target}` {wrong}"));
    // An invalid target is not followed, so that it does not cause further problems.
    None
}

fn settings(spec: &Spec, t: &Transition, at: &Location, report: &mut Report) {
    if t.action.is_some() && spec.firing == Firing::All {
        let message = "with `firing: all` transitions fire together and cannot have actions".to_owned();
        report.add(ProblemCode::ActionWithFiringAll, at.clone(), message);
    }
    let is_delivered = t.delivery != DeliveryGuarantee::default();
    if t.action.is_none() && (t.retry.is_some() || t.timeout_ms.is_some() || is_delivered) {
        let message = "`retry`, `timeoutMs` and `delivery` have no effect without an action".to_owned();
        report.add(ProblemCode::NoAction, at.clone(), message);
    }
    if let Some(retry) = &t.retry {
        policy(retry, at, report);
        if retry.budget_ms.is_some() && retry.target.is_some() {
            let message = "`budgetMs` cannot be combined with `target`: bound such retries by `attempts`";
            report.add(ProblemCode::BadRetryTarget, at.clone(), message.to_owned());
        }
    }
    let can_beat = matches!(spec.places.get(&t.from), Some(Place::Wait(_)));
    if t.heartbeat && !(can_beat && matches!(t.on, TransitionTrigger::AfterMs(_))) {
        let message = "`heartbeat` needs a timer with a fixed delay (`afterMs`) that leaves a wait";
        report.add(ProblemCode::BadTimer, at.clone(), message.to_owned());
    }
}

/// Checks the jitter of a retry policy.
fn policy(retry: &Retry, at: &Location, report: &mut Report) {
    if let Jitter::Percent(percent @ (0 | 101..)) = retry.jitter {
        let message = format!("the percentage of `jitter` must be between 1 and 100 (got {percent})");
        report.add(ProblemCode::BadTimer, at.clone(), message);
    }
}

fn guard_names(guard: &Guard, at: &Location, limits: &Limits, report: &mut Report) {
    match guard {
        Guard::Completed(place) | Guard::Active(place) => drop(report.place(place, "the guard's place", at)),
        Guard::And(inner) | Guard::Or(inner) => {
            inner.iter().for_each(|guard| guard_names(guard, at, limits, report));
        }
        Guard::Not(inner) => guard_names(inner, at, limits, report),
        Guard::Named(guard) => name(guard, at, limits, report),
        Guard::Expr(_) => {}
    }
}
