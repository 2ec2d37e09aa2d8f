//! The last pass: bodies of loops and error scopes are nested properly, and are entered only through their loop or
//! scope.

use std::collections::BTreeSet;

use super::graph::edges;
use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::definition::PlaceIndex;
use crate::spec::{Place, Spec};

/// Returns for each place the loops and scopes that contain it, outermost first.
pub(super) fn nest(spec: &Spec, links: &Links, report: &mut Report) -> Vec<Vec<PlaceIndex>> {
    let bodies = &links.bodies;
    let mut inside: Vec<Vec<PlaceIndex>> = vec![Vec::new(); bodies.len()];
    for (scope, body) in bodies.iter().enumerate() {
        body.iter().for_each(|&place| inside[place].push(scope));
    }
    // A scope that is contained in more scopes is deeper.
    let depths: Vec<_> = inside.iter().map(Vec::len).collect();
    inside.iter_mut().for_each(|scopes| scopes.sort_by_key(|&scope| depths[scope]));
    let names: Vec<_> = spec.places.keys().collect();
    let mut wrong = |scope: PlaceIndex, message: String| {
        report.add(ProblemCode::BadLoop, Location::Place(names[scope].clone()), message);
    };
    for (scope, place) in spec.places.values().enumerate() {
        if !matches!(place, Place::Loop(_) | Place::Catch(_)) {
            continue;
        }
        if links.first[scope].is_some_and(|first| !bodies[scope].contains(&first)) {
            wrong(scope, "the first place must be one of the places of the body".to_owned());
        }
        if links.fetch[scope].is_some_and(|fetch| !bodies[scope].contains(&fetch)) {
            wrong(scope, "the place that fetches a page must be one of the places of the body".to_owned());
        }
        if links.then[scope].is_some_and(|then| bodies[scope].contains(&then)) {
            wrong(scope, "the place after the loop must not be in its body".to_owned());
        }
        if bodies[scope].contains(&scope) {
            wrong(scope, "the body must not contain the loop or scope itself".to_owned());
        }
    }
    for scopes in inside.iter().collect::<BTreeSet<_>>() {
        for pair in scopes.windows(2) {
            if !bodies[pair[0]].contains(&pair[1]) {
                let message = format!(
                    "its body and the body of `{}` overlap: one must contain the other",
                    names[pair[0]]
                );
                wrong(pair[1], message);
            }
        }
    }
    let branches = |from: PlaceIndex| links.branches[from].iter().copied();
    for (from, to) in edges(names.len(), links).into_iter().enumerate() {
        for to in to.into_iter().chain(branches(from)).collect::<BTreeSet<_>>() {
            let entered = inside[to].iter().find(|scope| **scope != from && !inside[from].contains(scope));
            if let Some(&scope) = entered {
                let (from, to) = (names[from], names[to]);
                wrong(
                    scope,
                    format!(
                        "`{from}` leads to `{to}`, which is inside the body: enter the loop or scope itself instead"
                    ),
                );
            }
        }
    }
    inside
}
