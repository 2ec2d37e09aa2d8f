//! Takes a run over to another definition of its workflow: places by an explicit mapping, the rest as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition::{Compiled, Definition, PlaceIndex, PlaceKind};
use crate::dispatch::Change;
use crate::frame::Frame;
use crate::ids::Name;
use crate::near::did_you_mean;
use crate::refusal::{DecideError, list, names};
use crate::schema::Misfit;
use crate::snapshot::{Activation, ActivationStatus, Finished, Snapshot, Timer};
use crate::time::Timestamp;
use crate::turn::{Turn, check_context};
use crate::ways;

/// How a run is taken over to another definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mapping {
    /// The new definition's place for each of the old one's; places that are not named keep their name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<Name, Name>,
    /// The context as it is to be from now on; without it, it stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
}

/// Everything that stands in the way of a migration. The run stays as it was.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[serde(transparent)]
#[error("the run cannot be migrated: {}", list(.0))]
pub struct CannotMigrate(pub Vec<Obstacle>);

/// One thing that stands in the way of a migration.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Obstacle {
    /// The run has ended.
    #[error("the run has ended; there is nothing to take over")]
    Terminal,
    /// The run is not one of the old definition's.
    #[error("the run belongs to `{found}`, not to `{expected}`: name the definition it is pinned to")]
    NotItsDefinition {
        /// Name and hash of the old definition as given.
        expected: String,
        /// Name and hash the run names.
        found: String,
    },
    /// The definitions are of different workflows.
    #[error("`{from}` and `{to}` are different workflows: a run stays with its own")]
    OtherWorkflow {
        /// The old definition's name.
        from: Name,
        /// The new definition's name.
        to: Name,
    },
    /// Both definitions are the same.
    #[error("both definitions have the same content: there is nothing to migrate")]
    SameDefinition,
    /// The mapping names a place that the old definition does not have.
    #[error("the mapping names `{place}`, which the old definition does not have{hint}")]
    UnknownSource {
        /// The place it does not have.
        place: Name,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// The mapping leads to a place that the new definition does not have.
    #[error("the mapping leads from `{place}` to `{to}`, which the new definition does not have{hint}")]
    UnknownDestination {
        /// The old place.
        place: Name,
        /// The place the new definition does not have.
        to: Name,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// The run is in a place that the new definition does not have, and the mapping does not say where it goes.
    #[error("the run is in `{place}`, which the new definition does not have: map it{hint}")]
    PlaceGone {
        /// The place.
        place: Name,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// The run is in a place, and the new one is of another kind.
    #[error(
        "the run is in `{place}` ({kind}), and `{to}` ({to_kind}) is of another kind: map it to one of its own"
    )]
    KindDiffers {
        /// The old place.
        place: Name,
        /// Its kind.
        kind: String,
        /// The new place.
        to: Name,
        /// Its kind.
        to_kind: String,
    },
    /// A fork is open that has other branches in the new definition.
    #[error(
        "the fork `{fork}` is open with branches {}, and `{to}` has {}",
        names(branches),
        names(to_branches)
    )]
    BranchesDiffer {
        /// The old fork.
        fork: Name,
        /// The first places of its branches, as the mapping leads them.
        branches: Vec<Name>,
        /// The new fork.
        to: Name,
        /// The first places of its branches.
        to_branches: Vec<Name>,
    },
    /// From the new place the run could not go on: forks and joins on its way do not belong together.
    #[error("the run cannot go on from `{place}` in `{to}`: {why}")]
    NoWayOn {
        /// The old place.
        place: Name,
        /// The new place.
        to: Name,
        /// What is on the way.
        why: String,
    },
    /// The context does not fit the new definition's schema.
    #[error("the context does not fit the new schema: {}", list(misfits))]
    ContextUnfit {
        /// What does not fit.
        misfits: Vec<Misfit>,
    },
    /// A branch has come to an end with a result that does not fit the new definition's output schema.
    #[error("the result of `{place}` does not fit the new output schema: {}", list(misfits))]
    ResultUnfit {
        /// The end place.
        place: Name,
        /// What does not fit.
        misfits: Vec<Misfit>,
    },
    /// What would come of it is not a sound run, or could not be worked out.
    #[error("{why}")]
    Unsound {
        /// What is wrong with it, for a person.
        why: String,
    },
}

/// Takes a run over from one definition of its workflow to another, or says everything that stands in the way.
///
/// The run stays where it is, under the new names. Activations keep their numbers, so that children and the keys of
/// calls to the outside still find them; whoever runs an action for one of them meanwhile has to see to it that its
/// result is not taken. Timers whose transition still fires by a timer out of the place stay as they are; those of
/// transitions new to the place run from now on; the others go. A join that has enough branches by the new
/// definition fires, and a wait for children is judged by its new rule. Completed places that the new definition
/// does not have are forgotten: nothing can ask for them any more.
pub fn migrate(
    from: &Definition,
    to: &Definition,
    snapshot: &Snapshot,
    mapping: &Mapping,
    now: Timestamp,
) -> Result<Change, CannotMigrate> {
    let mut migration = Migration {
        from: from.compiled(),
        to: to.compiled(),
        snapshot,
        mapping,
        places: BTreeMap::new(),
        obstacles: Vec::new(),
    };
    migration.check_definitions(from, to);
    migration.check_mapping();
    let mut next = Snapshot {
        workflow: to.name().clone(),
        definition_version: to.version(),
        definition_hash: to.hash(),
        ..snapshot.clone()
    };
    let has_context = migration.take_context(&mut next);
    migration.take_places(&mut next);
    let mut turn = Turn::new(to.compiled(), next, now);
    if has_context {
        migration.take_timers(&mut turn);
    }
    if !migration.obstacles.is_empty() {
        return Err(CannotMigrate(migration.obstacles));
    }
    let unsound = |why: String| CannotMigrate(vec![Obstacle::Unsound { why }]);
    turn.catch_up().map_err(|error| unsound(error.to_string()))?;
    let mut change = turn.conclude("__operator:migrate".to_owned(), &Value::Null, false);
    change.snapshot.verify(to).map_err(|error| unsound(error.to_string()))?;
    let (exited, entered) = migration.renamed();
    change.entry.exited.splice(0..0, exited);
    change.entry.entered.splice(0..0, entered);
    Ok(change)
}

struct Migration<'a> {
    from: &'a Compiled,
    to: &'a Compiled,
    snapshot: &'a Snapshot,
    mapping: &'a Mapping,
    /// The places the run is in, and the new place for each.
    places: BTreeMap<&'a Name, Option<PlaceIndex>>,
    obstacles: Vec<Obstacle>,
}

impl Migration<'_> {
    fn check_definitions(&mut self, from: &Definition, to: &Definition) {
        if self.snapshot.is_terminal {
            self.obstacles.push(Obstacle::Terminal);
        }
        if self.snapshot.definition_hash != from.hash() {
            let expected = format!("{} {}", from.name(), from.hash().short());
            let found = format!("{} {}", self.snapshot.workflow, self.snapshot.definition_hash.short());
            self.obstacles.push(Obstacle::NotItsDefinition { expected, found });
        }
        if from.name() != to.name() {
            let (from, to) = (from.name().clone(), to.name().clone());
            self.obstacles.push(Obstacle::OtherWorkflow { from, to });
        }
        if from.hash() == to.hash() {
            self.obstacles.push(Obstacle::SameDefinition);
        }
    }

    fn check_mapping(&mut self) {
        let (old, new) = (&self.from.by_name, &self.to.by_name);
        for (place, to) in &self.mapping.places {
            if !old.contains_key(place) {
                let hint = did_you_mean(place, old.keys().map(Name::as_str));
                self.obstacles.push(Obstacle::UnknownSource { place: place.clone(), hint });
            }
            if !new.contains_key(to) {
                let hint = did_you_mean(to, new.keys().map(Name::as_str));
                let (place, to) = (place.clone(), to.clone());
                self.obstacles.push(Obstacle::UnknownDestination { place, to, hint });
            }
        }
    }

    /// Gives the run its new context; whether it fits.
    fn take_context(&mut self, next: &mut Snapshot) -> bool {
        if let Some(context) = &self.mapping.context {
            next.context = Arc::new(context.clone());
        }
        let obstacle = match check_context(self.to, &next.context) {
            Ok(()) => return true,
            Err(DecideError::ContextUnfit(misfits)) => Obstacle::ContextUnfit { misfits },
            Err(error) => Obstacle::Unsound { why: error.to_string() },
        };
        self.obstacles.push(obstacle);
        false
    }

    /// Where a place of the old definition leads, whether or not the new one has it.
    fn destination<'p>(&'p self, place: &'p Name) -> &'p Name {
        self.mapping.places.get(place).unwrap_or(place)
    }

    /// The new place for one that the run is in; nothing if it cannot be there.
    fn index(&self, place: &Name) -> Option<PlaceIndex> {
        self.places.get(place).copied().flatten()
    }

    /// Gives every place its new name, and looks at what the run does there.
    fn take_places(&mut self, next: &mut Snapshot) {
        let snapshot = self.snapshot;
        let places = snapshot.activations.iter().map(|activation| &activation.place);
        let forks = snapshot.passings.iter().map(|passing| &passing.fork);
        let frames = snapshot.activations.iter().flat_map(|activation| &activation.frames);
        let frames = frames.chain(snapshot.passings.iter().flat_map(|passing| &passing.frames));
        let named = places.chain(forks).chain(frames.map(|frame| &frame.place));
        for place in named.chain(snapshot.last_end.as_ref().and_then(Finished::place)) {
            if !self.places.contains_key(place) {
                let index = self.take_place(place);
                self.places.insert(place, index);
            }
        }
        for activation in &mut next.activations {
            activation.place = self.destination(&activation.place).clone();
            activation.retried.retain(|transition, _| self.to.goes_back(transition));
            self.take_frames(&mut activation.frames);
            self.check_frames(activation);
        }
        for passing in &mut next.passings {
            passing.fork = self.destination(&passing.fork).clone();
            passing.retried.retain(|transition, _| self.to.goes_back(transition));
            self.take_frames(&mut passing.frames);
        }
        if let Some(Finished::Completed { place, .. }) = &mut next.last_end {
            *place = self.destination(place).clone();
        }
        let completed = snapshot.completed.iter().map(|place| self.destination(place));
        let known = completed.filter(|place| self.to.by_name.contains_key(*place));
        next.completed = Arc::new(known.cloned().collect());
        self.check_branches();
        self.check_ways();
        self.check_result(next);
    }

    fn take_frames(&self, frames: &mut [Frame]) {
        frames.iter_mut().for_each(|frame| frame.place = self.destination(&frame.place).clone());
    }

    /// A run that is in a loop or error scope is in it in the new definition too.
    fn check_frames(&mut self, activation: &Activation) {
        let Some(&index) = self.to.by_name.get(&activation.place) else { return };
        let node = &self.to.places[index];
        if let Some(scope) = self.to.entered_without(index, &activation.frames) {
            let (place, to) = (activation.place.clone(), activation.place.clone());
            let why = format!("that place is in `{scope}`, and the run is not");
            self.obstacles.push(Obstacle::NoWayOn { place, to, why });
        }
        for frame in &activation.frames {
            let scope = self.to.by_name.get(&frame.place);
            if frame.place != node.name && !scope.is_some_and(|scope| node.inside.contains(scope)) {
                let (place, to) = (activation.place.clone(), activation.place.clone());
                let why = format!("it is in `{}`, and that place is not", frame.place);
                self.obstacles.push(Obstacle::NoWayOn { place, to, why });
            }
        }
    }

    fn take_place(&mut self, place: &Name) -> Option<PlaceIndex> {
        let to = self.destination(place).clone();
        let Some(&index) = self.to.by_name.get(&to) else {
            if !self.mapping.places.contains_key(place) {
                let hint = did_you_mean(place, self.to.by_name.keys().map(Name::as_str));
                self.obstacles.push(Obstacle::PlaceGone { place: place.clone(), hint });
            }
            return None;
        };
        let kind = self.from.place(place).map(|node| kind_of(&node.kind))?;
        let to_kind = kind_of(&self.to.places[index].kind);
        if kind == to_kind {
            return Some(index);
        }
        let (kind, to_kind) = (kind.to_owned(), to_kind.to_owned());
        self.obstacles.push(Obstacle::KindDiffers { place: place.clone(), kind, to, to_kind });
        None
    }

    /// A branch of an open fork is known by its number, so the fork must have the same ones in the same order.
    fn check_branches(&mut self) {
        for (&fork, &index) in &self.places {
            let old = self.from.place(fork).and_then(|node| branches(self.from, &node.kind));
            let new = index.and_then(|index| branches(self.to, &self.to.places[index].kind));
            let (Some(old), Some(new)) = (old, new) else { continue };
            let old: Vec<_> = old.iter().map(|place| self.destination(place).clone()).collect();
            if old != new {
                let (fork, to) = (fork.clone(), self.destination(fork).clone());
                let differs = Obstacle::BranchesDiffer { fork, branches: old, to, to_branches: new };
                self.obstacles.push(differs);
            }
        }
    }

    /// From every new place the run finds the joins of the forks it is in, and no fork is inside itself.
    fn check_ways(&mut self) {
        let around = |branch| ways::forks_around(self.snapshot, branch, |fork| self.index(fork));
        let mut followed = BTreeSet::new();
        let mut found = Vec::new();
        let mut note = |place: &Name, why: String| {
            found.push(Obstacle::NoWayOn { place: place.clone(), to: self.destination(place).clone(), why });
        };
        for passing in &self.snapshot.passings {
            let Some((fork, around)) = self.index(&passing.fork).zip(around(passing.outer)) else { continue };
            if around.contains(&fork) && followed.insert((&passing.fork, around, false)) {
                note(&passing.fork, "it would be open inside one of its own branches".to_owned());
            }
        }
        for activation in &self.snapshot.activations {
            let place = &activation.place;
            let Some((index, around)) = self.index(place).zip(around(activation.branch)) else { continue };
            // Many activations may be in the same place of the same forks, and then have the same ways.
            let arrives = is_in_join(self.from, activation) || activation.status == ActivationStatus::Before;
            if !followed.insert((place, around.clone(), arrives)) {
                continue;
            }
            let follow = if arrives { ways::enter } else { ways::go_on };
            if let Err(why) = follow(self.to, index, around) {
                note(place, why);
            }
        }
        self.obstacles.extend(found);
    }

    fn check_result(&mut self, next: &Snapshot) {
        let Some(Finished::Completed { place, output: Some(output) }) = &next.last_end else { return };
        let misfits = self.to.output.as_ref().map(|schema| schema.check(output)).unwrap_or_default();
        if !misfits.is_empty() {
            self.obstacles.push(Obstacle::ResultUnfit { place: place.clone(), misfits });
        }
    }

    fn take_timers(&mut self, turn: &mut Turn<'_>) {
        for (at, old) in self.snapshot.activations.iter().enumerate() {
            if self.index(&old.place).is_none() {
                continue;
            }
            let mut timers = Vec::new();
            for timer in timers_of(turn, &turn.next.activations[at]) {
                match timer {
                    Ok(timer) => timers.extend(timer),
                    Err(error) => self.obstacles.push(Obstacle::Unsound { why: error.to_string() }),
                }
            }
            turn.next.activations[at].timers = timers;
        }
    }

    /// The old and the new names of the places the run is in, where they differ.
    fn renamed(&self) -> (Vec<Name>, Vec<Name>) {
        let places = self.snapshot.current_places().into_iter();
        places
            .map(|place| (self.destination(&place).clone(), place))
            .filter(|(to, place)| to != place)
            .map(|(to, place)| (place, to))
            .unzip()
    }
}

/// The timers that run on, and those that begin because their transition is new to the place.
fn timers_of(turn: &Turn<'_>, activation: &Activation) -> Vec<Result<Option<Timer>, DecideError>> {
    let Some(node) = turn.compiled.place(&activation.place) else { return Vec::new() };
    let is_waiting = activation.status == ActivationStatus::Waiting;
    let runs = match node.kind {
        _ if activation.status == ActivationStatus::Before => false,
        PlaceKind::Join(_) => !is_waiting,
        // The time limits of a wait are over once it is resolved.
        PlaceKind::Wait(_) => is_waiting,
        _ => true,
    };
    let event = activation.received.as_ref().unwrap_or(&Value::Null);
    let out = node.out.iter().map(|&index| &turn.compiled.transitions[index]);
    out.filter(|transition| runs && transition.on.is_timer())
        .map(|transition| {
            let running = activation.timers.iter().find(|timer| timer.transition == transition.id);
            running.map_or_else(
                || turn.timer(transition, &activation.locals, event),
                |timer| Ok(Some(timer.clone())),
            )
        })
        .collect()
}

fn is_in_join(compiled: &Compiled, activation: &Activation) -> bool {
    let kind = compiled.place(&activation.place).map(|node| &node.kind);
    activation.status == ActivationStatus::Waiting && matches!(kind, Some(PlaceKind::Join(_)))
}

/// A wait that has children to account for is not the same as one that has none.
fn kind_of(kind: &PlaceKind) -> &'static str {
    match kind {
        PlaceKind::Wait(wait) if wait.children.is_some() => "wait for children",
        other => other.word(),
    }
}

/// The first places of a fork's branches.
fn branches(compiled: &Compiled, kind: &PlaceKind) -> Option<Vec<Name>> {
    match kind {
        PlaceKind::Fork { branches, .. } => {
            Some(branches.iter().map(|&index| compiled.places[index].name.clone()).collect())
        }
        _ => None,
    }
}
