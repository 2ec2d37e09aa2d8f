//! The third pass: every place can be reached, an end can be reached, and forks and joins belong together.
//!
//! It walks the workflow the way runs do, carrying the stack of forks that are open: a fork pushes a frame for
//! each branch, a join takes the top one off. What arrives at a join then says which fork it belongs to and how
//! many branches can come.

use std::collections::{BTreeMap, BTreeSet};

use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::definition::PlaceIndex;
use crate::ids::Name;
use crate::limits::Limits;
use crate::spec::{Fork, Join, Place, Quorum, Spec};

/// What the walk found out about forks and joins.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) join_of_fork: BTreeMap<PlaceIndex, PlaceIndex>,
    /// How many branches make a join fire.
    pub(super) quorum: BTreeMap<PlaceIndex, u32>,
}

/// One open fork: which, and in which of its branches we are.
type Frame = (PlaceIndex, u32);

/// States walked before the workflow is called too entangled to check.
const MAX_STATES: usize = 100_000;

struct Walk<'a> {
    places: Vec<(&'a Name, &'a Place)>,
    links: &'a Links,
    edges: Vec<Vec<PlaceIndex>>,
    max_depth: usize,
    seen: BTreeSet<(PlaceIndex, Vec<Frame>)>,
    open: Vec<(PlaceIndex, Vec<Frame>)>,
    arrivals: BTreeMap<PlaceIndex, BTreeSet<(PlaceIndex, Option<Frame>)>>,
    self_nested: BTreeSet<PlaceIndex>,
    too_deep: BTreeSet<PlaceIndex>,
}

pub(super) fn explore(spec: &Spec, links: &Links, limits: &Limits, report: &mut Report) -> Routes {
    let places: Vec<_> = spec.places.iter().collect();
    let mut walk = Walk {
        edges: edges(places.len(), links),
        places,
        links,
        max_depth: limits.fork_depth as usize,
        seen: BTreeSet::new(),
        open: Vec::new(),
        arrivals: BTreeMap::new(),
        self_nested: BTreeSet::new(),
        too_deep: BTreeSet::new(),
    };
    walk.report_places(report);
    let Some(initial) = links.initial else { return Routes::default() };
    walk.enter(None, initial, Vec::new());
    walk.run();
    walk.report_forks(report);
    if walk.is_complete() { walk.report_joins(report) } else { Routes::default() }
}

/// Where one can get from each place by a transition, after a failure or by a retry.
pub(super) fn edges(places: usize, links: &Links) -> Vec<Vec<PlaceIndex>> {
    let mut edges = vec![Vec::new(); places];
    for (index, &(from, to)) in links.ends.iter().enumerate() {
        let Some(from) = from else { continue };
        edges[from].extend(to);
        edges[from].extend(links.error_place[index]);
        edges[from].extend(links.retry_target[index]);
    }
    for (index, edges) in edges.iter_mut().enumerate() {
        edges.extend(links.place_error[index].into_iter().chain(links.first[index]).chain(links.then[index]));
    }
    edges
}

impl Walk<'_> {
    fn run(&mut self) {
        while let Some((place, stack)) = self.open.pop() {
            if self.seen.len() > MAX_STATES {
                return;
            }
            for next in self.edges[place].clone() {
                self.enter(Some(place), next, stack.clone());
            }
            if let Place::Fork(_) = self.places[place].1 {
                for (branch, &first) in self.links.branches[place].iter().enumerate() {
                    let mut inside = stack.clone();
                    inside.push((place, branch as u32));
                    self.enter(Some(place), first, inside);
                }
            }
        }
    }

    fn enter(&mut self, from: Option<PlaceIndex>, place: PlaceIndex, mut stack: Vec<Frame>) {
        match self.places[place].1 {
            Place::Join(_) => {
                let frame = stack.pop();
                self.arrivals.entry(place).or_default().insert((from.unwrap_or(place), frame));
            }
            Place::Fork(_) if stack.iter().any(|&(fork, _)| fork == place) => {
                self.self_nested.insert(place);
                return;
            }
            Place::Fork(_) if stack.len() >= self.max_depth => {
                self.too_deep.insert(place);
                return;
            }
            _ => {}
        }
        if self.seen.insert((place, stack.clone())) {
            self.open.push((place, stack));
        }
    }

    fn at(&self, place: PlaceIndex) -> Location {
        Location::Place(self.places[place].0.clone())
    }

    fn name(&self, place: PlaceIndex) -> &Name {
        self.places[place].0
    }

    /// Every way was walked to its end, so what has not come to a join never will.
    fn is_complete(&self) -> bool {
        self.too_deep.is_empty() && self.seen.len() <= MAX_STATES
    }

    fn is_end(&self, place: PlaceIndex) -> bool {
        matches!(self.places[place].1, Place::End { .. })
    }

    /// The places one can come to from here, whatever forks are open.
    fn reached(&self, initial: PlaceIndex) -> BTreeSet<PlaceIndex> {
        let (mut reached, mut open) = (BTreeSet::from([initial]), vec![initial]);
        while let Some(place) = open.pop() {
            let next = self.edges[place].iter().chain(&self.links.branches[place]);
            open.extend(next.copied().filter(|place| reached.insert(*place)));
        }
        reached
    }

    fn report_places(&self, report: &mut Report) {
        let all: BTreeSet<_> = (0..self.places.len()).collect();
        let reached = self.links.initial.map_or_else(|| all.clone(), |initial| self.reached(initial));
        for &place in all.difference(&reached) {
            let message = "no run can come here: nothing that is reachable leads to it".to_owned();
            report.add(ProblemCode::UnreachablePlace, self.at(place), message);
        }
        if !reached.iter().any(|place| self.is_end(*place)) {
            let exists = all.iter().any(|place| self.is_end(*place));
            let message = if exists { "no end place can be reached" } else { "there is no end place" };
            report.add(ProblemCode::NoEnd, Location::Definition, message.to_owned());
        }
    }

    fn report_forks(&self, report: &mut Report) {
        if self.seen.len() > MAX_STATES {
            let message = "forks and joins are too entangled to be checked: nest them more simply".to_owned();
            report.add(ProblemCode::TooLarge, Location::Definition, message);
        }
        for &fork in &self.self_nested {
            let message = "this fork can be entered again inside one of its own branches: join them before";
            report.add(ProblemCode::ForkInsideItself, self.at(fork), message.to_owned());
        }
        for &fork in &self.too_deep {
            let message = format!("more than {} forks would be open at once", self.max_depth);
            report.add(ProblemCode::TooLarge, self.at(fork), message);
        }
    }

    fn report_joins(&self, report: &mut Report) -> Routes {
        let mut routes = Routes::default();
        for (&place, arrivals) in &self.arrivals {
            let Place::Join(join) = self.places[place].1 else { continue };
            self.report_sources(place, arrivals, report);
            let Some(fork) = self.fork_of(place, arrivals, report) else { continue };
            if let Some(other) = routes.join_of_fork.insert(fork, place) {
                let (fork, other) = (self.name(fork), self.name(other));
                let message = format!(
                    "fork `{fork}` is joined here and in `{other}`: nest a fork for each join instead"
                );
                report.add(ProblemCode::AmbiguousJoin, self.at(place), message);
            }
            let branches: BTreeSet<_> = arrivals.iter().filter_map(|(_, frame)| *frame).collect();
            let quorum = self.quorum(place, join, fork, branches.len() as u32, report);
            routes.quorum.insert(place, quorum);
        }
        routes
    }

    /// The places a join names and the places from which branches really come are the same.
    fn report_sources(
        &self,
        place: PlaceIndex,
        arrivals: &BTreeSet<(PlaceIndex, Option<Frame>)>,
        report: &mut Report,
    ) {
        let named = &self.links.join_of[place];
        if named.is_empty() {
            return;
        }
        let coming: BTreeSet<_> =
            arrivals.iter().map(|(from, _)| *from).filter(|from| *from != place).collect();
        for &from in named.difference(&coming) {
            let message = format!("it waits for `{}`, from which nothing leads here", self.name(from));
            report.add(ProblemCode::JoinCannotFire, self.at(place), message);
        }
        for &from in coming.difference(named) {
            let message =
                format!("branches come here from `{}`, which the join does not name", self.name(from));
            report.add(ProblemCode::JoinCannotFire, self.at(place), message);
        }
    }

    fn fork_of(
        &self,
        place: PlaceIndex,
        arrivals: &BTreeSet<(PlaceIndex, Option<Frame>)>,
        report: &mut Report,
    ) -> Option<PlaceIndex> {
        let forks: BTreeSet<_> = arrivals.iter().map(|(_, frame)| frame.map(|(fork, _)| fork)).collect();
        let message = match (forks.len(), forks.first().copied().flatten()) {
            (1, Some(fork)) => return Some(fork),
            (1, None) => "a run comes here outside any fork, so there are no branches to join".to_owned(),
            (_, None) => "a run can come here both inside a fork and outside any".to_owned(),
            (_, Some(_)) => {
                let names: Vec<_> =
                    forks.iter().flatten().map(|&fork| format!("`{}`", self.name(fork))).collect();
                format!("branches of several forks come here ({}): one join joins one fork", names.join(", "))
            }
        };
        report.add(ProblemCode::AmbiguousJoin, self.at(place), message);
        None
    }

    fn quorum(
        &self,
        place: PlaceIndex,
        join: &Join,
        fork: PlaceIndex,
        branches: u32,
        report: &mut Report,
    ) -> u32 {
        let is_each = |fork: &Fork| fork.each.is_some();
        let over_a_list = matches!(self.places[fork].1, Place::Fork(fork) if is_each(fork));
        match join.quorum {
            Quorum::All => branches,
            Quorum::Any => 1,
            Quorum::N(n) => {
                if n > branches && !over_a_list {
                    let message = format!("a quorum of {n} cannot be: {branches} branches can come here");
                    report.add(ProblemCode::BadQuorum, self.at(place), message);
                }
                n
            }
        }
    }
}
