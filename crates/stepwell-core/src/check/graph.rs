//! The third pass: every place is reachable, an end is reachable, and forks and joins belong together.
//!
//! It follows the workflow as runs do, with a stack of open forks. A fork pushes a frame for each branch; a join pops
//! the top frame. So the frames that arrive at a join show its fork and the number of branches that can arrive.

use std::collections::{BTreeMap, BTreeSet};

use super::refs::Links;
use super::{Location, ProblemCode, Report};
use crate::definition::PlaceIndex;
use crate::ids::Name;
use crate::limits::Limits;
use crate::spec::{Fork, Join, Place, Quorum, Spec};

/// The joins that belong to forks, and their quorums, as found by the walk.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) join_of_fork: BTreeMap<PlaceIndex, PlaceIndex>,
    /// The number of branches that makes each join fire.
    pub(super) quorum: BTreeMap<PlaceIndex, u32>,
}

/// An open fork and the number of the branch in it.
type Frame = (PlaceIndex, u32);

/// Maximum number of states to visit. Beyond it, the workflow is too complex to check.
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

/// Returns the places that each place leads to by a transition, after a failure or by a retry.
pub(super) fn edges(places: usize, links: &Links) -> Vec<Vec<PlaceIndex>> {
    let mut edges = vec![Vec::new(); places];
    for (index, &(from, to)) in links.ends.iter().enumerate() {
        let Some(from) = from else { continue };
        edges[from].extend(to);
        edges[from].extend(links.error_place[index]);
        edges[from].extend(links.retry_target[index]);
    }
    for (index, edges) in edges.iter_mut().enumerate() {
        let inner = [links.place_error[index], links.first[index], links.then[index], links.fetch[index]];
        edges.extend(inner.into_iter().flatten());
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

    /// Returns true if all paths were followed to the end, so that all arrivals at joins are known.
    fn is_complete(&self) -> bool {
        self.too_deep.is_empty() && self.seen.len() <= MAX_STATES
    }

    fn is_end(&self, place: PlaceIndex) -> bool {
        matches!(self.places[place].1, Place::End { .. })
    }

    /// Returns the places that are reachable from here, ignoring the open forks.
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
            let message = "unreachable: no path from the initial place leads here".to_owned();
            report.add(ProblemCode::UnreachablePlace, self.at(place), message);
        }
        if !reached.iter().any(|place| self.is_end(*place)) {
            let exists = all.iter().any(|place| self.is_end(*place));
            let message = if exists {
                "no end place is reachable from the initial place"
            } else {
                "there is no end place: add one"
            };
            report.add(ProblemCode::NoEnd, Location::Definition, message.to_owned());
        }
    }

    fn report_forks(&self, report: &mut Report) {
        if self.seen.len() > MAX_STATES {
            let message = "forks and joins are too complex to check: simplify their nesting".to_owned();
            report.add(ProblemCode::TooLarge, Location::Definition, message);
        }
        for &fork in &self.self_nested {
            let message =
                "this fork can be entered again inside one of its own branches: join the branches first";
            report.add(ProblemCode::ForkInsideItself, self.at(fork), message.to_owned());
        }
        for &fork in &self.too_deep {
            let message = format!("more than {} nested forks would be open at once", self.max_depth);
            report.add(ProblemCode::TooLarge, self.at(fork), message);
        }
    }

    fn report_joins(&self, report: &mut Report) -> Routes {
        let mut routes = Routes::default();
        for (&place, arrivals) in &self.arrivals {
            let Place::Join(join) = self.places[place].1 else { continue };
            self.report_sources(place, arrivals, report);
            let Some(fork) = self.fork_of(place, arrivals, report) else { continue };
            // With two joins on one fork it would be unclear which join the remaining branches belong to.
            // Nested forks make it explicit.
            if let Some(other) = routes.join_of_fork.insert(fork, place) {
                let (fork, other) = (self.name(fork), self.name(other));
                let message = format!(
                    "fork `{fork}` has two joins, this one and `{other}`: use a nested fork for each join"
                );
                report.add(ProblemCode::AmbiguousJoin, self.at(place), message);
            }
            let branches: BTreeSet<_> = arrivals.iter().filter_map(|(_, frame)| *frame).collect();
            let quorum = self.quorum(place, join, fork, branches.len() as u32, report);
            routes.quorum.insert(place, quorum);
        }
        routes
    }

    /// Checks that the places a join lists are exactly those from which branches arrive.
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
            let message =
                format!("the join lists `{}`, but nothing leads from there to the join", self.name(from));
            report.add(ProblemCode::JoinCannotFire, self.at(place), message);
        }
        for &from in coming.difference(named) {
            let message = format!("branches arrive from `{}`, which the join does not list", self.name(from));
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
            (1, None) => "runs reach this join outside any fork, so there are no branches to join".to_owned(),
            (_, None) => "runs can reach this join both inside a fork and outside any fork".to_owned(),
            (_, Some(_)) => {
                let names: Vec<_> =
                    forks.iter().flatten().map(|&fork| format!("`{}`", self.name(fork))).collect();
                format!(
                    "branches of several forks arrive here ({}): a join belongs to one fork",
                    names.join(", ")
                )
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
                    let message = format!("the quorum {n} is too high: only {branches} branches can arrive");
                    report.add(ProblemCode::BadQuorum, self.at(place), message);
                }
                n
            }
        }
    }
}
