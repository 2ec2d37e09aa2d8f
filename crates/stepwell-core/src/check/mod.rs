//! Compiles a spec into a definition, or reports everything that is wrong with it.
//!
//! There are six passes: names and references ([`refs`]), texts that must parse ([`parse`]), shadow columns
//! ([`crate::shadow`]), the graph with its forks and joins ([`graph`]), the bodies of loops ([`bodies`]), and what the
//! strategy of a flow allows ([`flows`]). All passes always run. A misspelled name is reported once and then treated as the intended name, so that one mistake
//! is not reported five times.

mod bodies;
mod flows;
mod graph;
mod parse;
mod refs;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::admission;
use crate::definition::{Compiled, PlaceIndex, canonical};
use crate::ids::{DefinitionHash, Name};
use crate::limits::Limits;
use crate::near::{did_you_mean, near};
use crate::shadow;
use crate::spec::Spec;

/// All problems of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

/// A problem of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub code: ProblemCode,
    /// The part of the definition that has the problem; serialized as `where`.
    #[serde(rename = "where")]
    pub at: Location,
    /// Human-readable description of the problem and its fix.
    pub message: String,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ProblemCode {
    /// A name is empty, too long, reserved, or contains invalid characters.
    BadName,
    /// Two transitions have the same id.
    DuplicateTransition,
    /// A reference to a place that does not exist.
    UnknownPlace,
    /// A reference to a signal that is not declared.
    UnknownSignal,
    /// There is no initial place.
    NoStart,
    /// There is no end place, or none is reachable.
    NoEnd,
    /// A place is not reachable.
    UnreachablePlace,
    /// A place is not an end, but no transition leaves it.
    DeadEnd,
    /// A transition leaves a fork, a loop, an error scope or an end.
    BadSource,
    /// The body of a loop or error scope is not valid, or the limit of a fork is 0.
    BadLoop,
    /// A path for a result is not valid.
    BadPath,
    /// A fork has no branches, or a fork over a list does not have exactly one first place.
    EmptyFork,
    /// A fork can be entered again inside one of its own branches.
    ForkInsideItself,
    /// The places that a join lists are not those from which branches arrive.
    JoinCannotFire,
    /// A quorum is 0 or higher than the number of branches that can arrive, or a tolerance is not valid.
    BadQuorum,
    /// A join belongs to no fork or to several forks, or a fork has several joins.
    AmbiguousJoin,
    /// Nothing can resolve a wait.
    UnresolvableWait,
    /// An answerer of a wait is neither a user nor a role.
    BadAnswerer,
    /// A schema is not valid.
    BadSchema,
    /// An expression or a template is not valid.
    BadExpression,
    /// A transition has an action, which `firing: all` does not allow.
    ActionWithFiringAll,
    /// A transition has settings for an action, but no action.
    NoAction,
    /// A retry target cannot be entered by a retry, or there are no retries.
    BadRetryTarget,
    /// The delay of a timer is zero, or its policy or heartbeat is not valid.
    BadTimer,
    /// The name, path or default of a shadow column is not valid.
    BadShadow,
    /// A concurrency or rate limit is not valid.
    BadLimit,
    /// A trigger is not valid.
    BadTrigger,
    /// The workflow keeps its state in a token or behind a handle, but this part needs a durable run.
    NeedsDurableRun,
    /// A step that sends a message leads to no wait, or no pause follows a change of the strategy.
    NoWait,
    /// A limit is exceeded.
    TooLarge,
}

/// A location in a definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// The definition as a whole.
    Definition,
    /// A field of the definition, such as `initial`.
    Field(&'static str),
    Place(Name),
    Transition(Name),
    Signal(Name),
    /// A kind of document.
    Document(Name),
    Shadow(Name),
    Trigger(Name),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Definition => f.write_str("definition"),
            Location::Field(name) => write!(f, "`{name}`"),
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

/// Compiles a spec, or returns all its problems.
pub(crate) fn compile(spec: Spec, limits: &Limits) -> Result<Compiled, Problems> {
    let mut report = Report::new(&spec);
    let links = refs::resolve(&spec, limits, &mut report);
    let parts = parse::parse(&spec, &mut report);
    let shadows = shadow::columns(&spec, &mut report);
    let admission = admission::check(&spec, &mut report);
    let routes = graph::explore(&spec, &links, limits, &mut report);
    let inside = bodies::nest(&spec, &links, &mut report);
    flows::check(&spec, &links, &mut report);
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
    compiled.admission = admission;
    Ok(compiled)
}

/// Collects problems and resolves the names of places and signals.
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

    /// Resolves the name of a place. An unknown name is reported, and resolved to the most similar place.
    pub(super) fn place(&mut self, name: &Name, role: &str, at: &Location) -> Option<PlaceIndex> {
        if let Some(&index) = self.by_name.get(name) {
            return Some(index);
        }
        let known = || self.by_name.keys().map(Name::as_str);
        let hint = did_you_mean(name, known());
        let meant = near(name, known()).and_then(|meant| self.by_name.get(meant).copied());
        self.add(ProblemCode::UnknownPlace, at.clone(), format!("{role} `{name}` does not exist{hint}"));
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
