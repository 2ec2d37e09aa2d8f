//! Turns a spec into a definition, or says everything that is wrong with it.
//!
//! Five passes, each in its own file: names and references ([`refs`]), texts that must parse ([`parse`]), shadow
//! columns ([`crate::shadow`]), the graph, with forks and joins ([`graph`]), and the bodies of loops ([`bodies`]). All of them run always. A name with a slip in it is reported once and
//! then read as the name that was meant, so that one mistake does not show up as five.

mod bodies;
mod graph;
mod parse;
mod refs;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::definition::{Compiled, PlaceIndex, canonical};
use crate::ids::{DefinitionHash, Name};
use crate::limits::Limits;
use crate::near::{did_you_mean, near};
use crate::shadow;
use crate::spec::Spec;

/// Everything that is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

/// One thing that is wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Which kind of mistake.
    pub code: ProblemCode,
    /// Where it is.
    #[serde(rename = "where")]
    pub at: Location,
    /// What is wrong, for a person.
    pub message: String,
}

/// The kinds of mistakes a definition can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProblemCode {
    /// A name is empty, too long or has characters that names cannot have.
    BadName,
    /// Two transitions have the same id.
    DuplicateTransition,
    /// A place is named that does not exist.
    UnknownPlace,
    /// A signal is named that is not declared.
    UnknownSignal,
    /// No place to begin in.
    NoStart,
    /// No end place, or none that can be reached.
    NoEnd,
    /// A place that no run can come to.
    UnreachablePlace,
    /// A place that is not an end and that nothing leaves.
    DeadEnd,
    /// A transition leaves a fork or an end.
    BadSource,
    /// A loop or error scope whose body is not one, or that cannot be gone through.
    BadLoop,
    /// A path for a result that cannot be used.
    BadPath,
    /// A fork with no branches.
    EmptyFork,
    /// A fork that can be entered again inside one of its own branches.
    ForkInsideItself,
    /// A join that can never fire.
    JoinCannotFire,
    /// A quorum of 0, or above the number of branches that can come.
    BadQuorum,
    /// A join that belongs to no fork, or to several, or a fork with several joins.
    AmbiguousJoin,
    /// A wait that nobody can resolve.
    UnresolvableWait,
    /// A schema that cannot be used.
    BadSchema,
    /// An expression that cannot be used.
    BadExpression,
    /// An action where `firing: all` allows none.
    ActionWithFiringAll,
    /// A setting without an action it could apply to.
    NoAction,
    /// A retry that goes back to a place which cannot be entered that way, or that never happens.
    BadRetryTarget,
    /// A timer of zero.
    BadTimer,
    /// A shadow column whose name, path or default cannot be used.
    BadShadow,
    /// A trigger that cannot start anything.
    BadTrigger,
    /// More of something than the limits allow.
    TooLarge,
}

/// Where in a definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// The definition as a whole.
    Definition,
    /// A place.
    Place(Name),
    /// A transition.
    Transition(Name),
    /// A signal.
    Signal(Name),
    /// A kind of document.
    Document(Name),
    /// A shadow column.
    Shadow(Name),
    /// A trigger.
    Trigger(Name),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Definition => f.write_str("definition"),
            Location::Place(name) => write!(f, "place `{name}`"),
            Location::Transition(name) => write!(f, "transition `{name}`"),
            Location::Signal(name) => write!(f, "signal `{name}`"),
            Location::Document(kind) => write!(f, "document `{kind}`"),
            Location::Shadow(name) => write!(f, "shadow column `{name}`"),
            Location::Trigger(name) => write!(f, "trigger `{name}`"),
        }
    }
}

impl Serialize for Location {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the definition has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// The spec as a definition, or every problem it has.
pub(crate) fn compile(spec: Spec, limits: &Limits) -> Result<Compiled, Problems> {
    let mut report = Report::new(&spec);
    let links = refs::resolve(&spec, limits, &mut report);
    let parts = parse::parse(&spec, &mut report);
    let shadows = shadow::columns(&spec, &mut report);
    let routes = graph::explore(&spec, &links, limits, &mut report);
    let inside = bodies::nest(&spec, &links, &mut report);
    if !report.problems.is_empty() {
        let key = |problem: &Problem| (problem.at.clone(), problem.code, problem.message.clone());
        report.problems.sort_by_cached_key(key);
        report.problems.dedup();
        return Err(Problems(report.problems));
    }
    let hash = DefinitionHash::of(&canonical(&spec));
    let mut compiled = parse::assemble(spec, hash, &links, parts, &routes, inside);
    compiled.limits = limits.clone();
    compiled.shadows = shadows;
    Ok(compiled)
}

/// Collects problems, and knows the places by name.
pub(crate) struct Report {
    problems: Vec<Problem>,
    by_name: BTreeMap<Name, PlaceIndex>,
    signals: Vec<Name>,
}

impl Report {
    fn new(spec: &Spec) -> Self {
        let by_name = spec.places.keys().cloned().enumerate().map(|(index, name)| (name, index)).collect();
        Report { problems: Vec::new(), by_name, signals: spec.signals.keys().cloned().collect() }
    }

    pub(crate) fn add(&mut self, code: ProblemCode, at: Location, message: String) {
        self.problems.push(Problem { code, at, message });
    }

    /// The place of this name; an unknown one is reported and read as the near miss.
    pub(super) fn place(&mut self, name: &Name, role: &str, at: &Location) -> Option<PlaceIndex> {
        if let Some(&index) = self.by_name.get(name) {
            return Some(index);
        }
        let known = || self.by_name.keys().map(Name::as_str);
        let hint = did_you_mean(name, known());
        let meant = near(name, known()).and_then(|meant| self.by_name.get(meant).copied());
        self.add(ProblemCode::UnknownPlace, at.clone(), format!("{role} `{name}` is not a place{hint}"));
        meant
    }

    /// Reports a signal that is not declared.
    pub(super) fn signal(&mut self, name: &Name, at: &Location) {
        if self.signals.binary_search(name).is_ok() {
            return;
        }
        let hint = did_you_mean(name, self.signals.iter().map(Name::as_str));
        self.add(ProblemCode::UnknownSignal, at.clone(), format!("signal `{name}` is not declared{hint}"));
    }
}
