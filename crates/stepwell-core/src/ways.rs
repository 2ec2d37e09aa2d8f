//! Checks that a run can continue from a place into which an operator moves it.
//!
//! The definition check covers only runs that reach a place by transitions. An operator can move a run anywhere, for
//! example into a branch of a fork that was never entered. Such a run would be lost at the join. So every path onward
//! is followed: each join on it must belong to an open fork.

use std::collections::BTreeSet;

use crate::definition::{Compiled, PlaceIndex, PlaceKind};
use crate::ids::Name;
use crate::snapshot::{Branch, Snapshot};

/// The open forks around an activation, outermost first.
pub(crate) type Forks = Vec<PlaceIndex>;

/// Maximum number of states to visit. Beyond it, the forks and joins are too complex to check.
const MAX_STATES: usize = 100_000;

/// Returns the forks around a branch, outermost first. `index` maps the name of a fork to its place. Returns `None`
/// if a name has no place.
pub(crate) fn forks_around(
    snapshot: &Snapshot,
    branch: Option<Branch>,
    index: impl Fn(&Name) -> Option<PlaceIndex>,
) -> Option<Forks> {
    let fork_instance = |branch: &Branch| snapshot.fork_instance(branch.fork_instance);
    let first = branch.as_ref().and_then(fork_instance);
    let fork_instances = std::iter::successors(first, |inner| inner.outer.as_ref().and_then(fork_instance));
    let mut forks: Forks = fork_instances.map(|open| index(&open.fork)).collect::<Option<_>>()?;
    forks.reverse();
    Some(forks)
}

/// Follows all paths onward after entering a place inside these forks. Returns the first problem found.
pub(crate) fn enter(compiled: &Compiled, place: PlaceIndex, open: Forks) -> Result<(), String> {
    let mut walk = Walk::new(compiled);
    walk.enter(place, open)?;
    walk.run()
}

/// Follows all paths onward from a place that the run is already in, inside these forks. Returns the first problem
/// found.
pub(crate) fn check_from(compiled: &Compiled, place: PlaceIndex, open: Forks) -> Result<(), String> {
    let mut walk = Walk::new(compiled);
    walk.open.push((place, open));
    walk.run()
}

struct Walk<'a> {
    compiled: &'a Compiled,
    seen: BTreeSet<(PlaceIndex, Forks)>,
    open: Vec<(PlaceIndex, Forks)>,
}

impl<'a> Walk<'a> {
    fn new(compiled: &'a Compiled) -> Self {
        Walk { compiled, seen: BTreeSet::new(), open: Vec::new() }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some((place, forks)) = self.open.pop() {
            if self.seen.len() > MAX_STATES {
                return Err("the forks and joins after it are too complex to check".to_owned());
            }
            match &self.compiled.places[place].kind {
                PlaceKind::Fork { branches, each, .. } => {
                    let error = each.as_ref().and_then(|each| each.error_place);
                    error.map_or(Ok(()), |error| self.enter(error, forks.clone()))?;
                    let mut inside = forks;
                    inside.push(place);
                    branches.iter().try_for_each(|&first| self.enter(first, inside.clone()))?;
                }
                PlaceKind::Wait(wait) => {
                    wait.error_place.map_or(Ok(()), |error| self.enter(error, forks.clone()))?;
                    self.leave(place, &forks)?;
                }
                PlaceKind::Join(node) => {
                    node.error_place.map_or(Ok(()), |error| self.enter(error, forks.clone()))?;
                    self.leave(place, &forks)?;
                }
                PlaceKind::Loop(node) => {
                    let next = [node.fetch(), Some(node.first), Some(node.then), node.error_place];
                    next.into_iter().flatten().try_for_each(|next| self.enter(next, forks.clone()))?;
                }
                PlaceKind::Catch { first, .. } => self.enter(*first, forks)?,
                PlaceKind::Step => self.leave(place, &forks)?,
                PlaceKind::End { error_place, .. } => {
                    error_place.map_or(Ok(()), |error| self.enter(error, forks))?;
                }
            }
        }
        Ok(())
    }

    fn leave(&mut self, place: PlaceIndex, forks: &Forks) -> Result<(), String> {
        let compiled = self.compiled;
        for &index in &compiled.places[place].out {
            let transition = &compiled.transitions[index];
            let others = transition.error_place.into_iter().chain(transition.retry_target);
            for next in others.chain([transition.to]) {
                self.enter(next, forks.clone())?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, place: PlaceIndex, mut forks: Forks) -> Result<(), String> {
        let name = &self.compiled.places[place].name;
        match self.compiled.places[place].kind {
            PlaceKind::Join(_) => match forks.pop() {
                None => return Err(format!("the run would reach join `{name}` outside its fork")),
                Some(fork) if self.join_of(fork) != Some(place) => {
                    let fork = &self.compiled.places[fork].name;
                    return Err(format!("the run would reach join `{name}` from a branch of fork `{fork}`"));
                }
                Some(_) => {}
            },
            PlaceKind::Fork { .. } if forks.contains(&place) => {
                return Err(format!("the run would enter fork `{name}` inside one of its own branches"));
            }
            PlaceKind::Fork { .. } if forks.len() as u64 >= self.compiled.limits.fork_depth => {
                return Err(format!("the run would enter fork `{name}` inside too many other forks"));
            }
            _ => {}
        }
        if self.seen.insert((place, forks.clone())) {
            self.open.push((place, forks));
        }
        Ok(())
    }

    fn join_of(&self, fork: PlaceIndex) -> Option<PlaceIndex> {
        match self.compiled.places[fork].kind {
            PlaceKind::Fork { join, .. } => join,
            _ => None,
        }
    }
}
