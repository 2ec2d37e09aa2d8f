//! Whether a run that is put into a place by hand can go on from there: on every way the joins must find their forks.
//!
//! A definition is checked for runs that come to a place by its transitions. An operator can put a run anywhere, for
//! instance into a branch of a fork that was never entered; at the join it would be lost.

use std::collections::BTreeSet;

use crate::definition::{Compiled, PlaceIndex, PlaceKind};
use crate::ids::Name;
use crate::snapshot::{Branch, Snapshot};

/// The forks in whose branches something is, outermost first.
pub(crate) type Forks = Vec<PlaceIndex>;

/// States walked before a way is called too entangled to follow.
const MAX_STATES: usize = 100_000;

/// The forks around a branch, outermost first, by what their names stand for; nothing if one stands for none.
pub(crate) fn forks_around(
    snapshot: &Snapshot,
    branch: Option<Branch>,
    index: impl Fn(&Name) -> Option<PlaceIndex>,
) -> Option<Forks> {
    let passing = |branch: &Branch| snapshot.passing(branch.passing);
    let first = branch.as_ref().and_then(passing);
    let passings = std::iter::successors(first, |inner| inner.outer.as_ref().and_then(passing));
    let mut forks: Forks = passings.map(|open| index(&open.fork)).collect::<Option<_>>()?;
    forks.reverse();
    Some(forks)
}

/// Follows every way that leads on after a place is entered inside these forks; what is wrong with one of them.
pub(crate) fn enter(compiled: &Compiled, place: PlaceIndex, open: Forks) -> Result<(), String> {
    let mut walk = Walk::new(compiled);
    walk.enter(place, open)?;
    walk.run()
}

/// Follows every way that leads on from a place that was entered before and is inside these forks now.
pub(crate) fn go_on(compiled: &Compiled, place: PlaceIndex, open: Forks) -> Result<(), String> {
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
                return Err("the forks and joins after it are too entangled to be followed".to_owned());
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
                    let next = [Some(node.first), Some(node.then), node.error_place];
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
                None => return Err(format!("it would come to the join `{name}` outside its fork")),
                Some(fork) if self.join_of(fork) != Some(place) => {
                    let fork = &self.compiled.places[fork].name;
                    return Err(format!("it would come to the join `{name}` from a branch of `{fork}`"));
                }
                Some(_) => {}
            },
            PlaceKind::Fork { .. } if forks.contains(&place) => {
                return Err(format!("it would enter the fork `{name}` inside one of its own branches"));
            }
            PlaceKind::Fork { .. } if forks.len() as u64 >= self.compiled.limits.fork_depth => {
                return Err(format!("it would enter the fork `{name}` inside too many others"));
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
