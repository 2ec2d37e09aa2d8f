//! Migration of a run to another definition of its workflow. An explicit mapping moves places; everything else stays
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision_builder::{DecisionBuilder, check_context};
use crate::definition::{Compiled, Definition, PlaceIndex, PlaceKind};
use crate::dispatch::Change;
use crate::frame::Frame;
use crate::ids::Name;
use crate::near::did_you_mean;
use crate::refusal::{DecideError, list, names};
use crate::schema::SchemaViolation;
use crate::snapshot::{Activation, ActivationStatus, RunEnd, Snapshot, Timer};
use crate::time::Timestamp;
use crate::ways;

/// The mapping of a run to another definition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mapping {
    /// The new place for each old place. Places that are not listed keep their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<Name, Name>,
    /// The new context. Without it, the context stays the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
}

/// The error for a run that cannot be migrated, with all obstacles. The run stays unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[serde(transparent)]
#[error("the run cannot be migrated: {}", list(.0))]
pub struct MigrationError(pub Vec<Obstacle>);

/// A reason why a run cannot be migrated.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Obstacle {
    /// The run has ended.
    #[error("the run has already ended")]
    Terminal,
    /// The run is not pinned to the old definition.
    #[error("the run is pinned to `{found}`, not to `{expected}`: use the definition that it is pinned to")]
    OtherDefinition {
        /// Name and hash of the given old definition.
        expected: String,
        /// Name and hash of the definition that the run is pinned to.
        found: String,
    },
    /// The definitions are of different workflows.
    #[error("`{from}` and `{to}` are different workflows: a run can be migrated only within its workflow")]
    OtherWorkflow { from: Name, to: Name },
    /// Both definitions are the same.
    #[error("both definitions have the same content: there is nothing to migrate")]
    SameDefinition,
    /// The mapping names a place that the old definition does not have.
    #[error("the mapping names `{place}`, which the old definition does not have{hint}")]
    UnknownSource {
        place: Name,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// The mapping names a target place that the new definition does not have.
    #[error("the mapping moves `{place}` to `{to}`, which the new definition does not have{hint}")]
    UnknownDestination {
        place: Name,
        to: Name,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// The run is in a place that the new definition does not have, and the mapping does not name a target for it.
    #[error("the run is in `{place}`, which the new definition does not have: map it to a new place{hint}")]
    PlaceRemoved {
        place: Name,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// The new place is of another kind than the place the run is in.
    #[error(
        "the run is in `{place}` ({kind}), but `{to}` is of another kind ({to_kind}): map it to a place of the same kind"
    )]
    KindDiffers { place: Name, kind: String, to: Name, to_kind: String },
    /// An open fork has different branches in the new definition.
    #[error(
        "fork `{fork}` is open with the branches {}, but `{to}` has the branches {}",
        names(branches),
        names(to_branches)
    )]
    BranchesDiffer {
        fork: Name,
        /// First places of the old branches, with the mapping applied.
        branches: Vec<Name>,
        to: Name,
        /// First places of the new branches.
        to_branches: Vec<Name>,
    },
    /// The run could not continue from the new place, because forks and joins ahead of it do not belong together.
    #[error("the run is in `{place}` and cannot continue in `{to}`: {why}")]
    CannotContinue { place: Name, to: Name, why: String },
    /// The context does not match the context schema of the new definition.
    #[error("the context does not match the new schema: {}", list(violations))]
    InvalidContext { violations: Vec<SchemaViolation> },
    /// The result of a branch that has ended does not match the output schema of the new definition.
    #[error("the result of `{place}` does not match the new output schema: {}", list(violations))]
    InvalidResult { place: Name, violations: Vec<SchemaViolation> },
    /// The migrated run would not be valid, or could not be computed.
    #[error("{why}")]
    Inconsistent { why: String },
}

/// Migrates a run from one definition of its workflow to another, or returns all obstacles.
///
/// The run stays in the same places, under their new names. Activations keep their numbers, so that children and
/// idempotency keys of external calls still match. The caller must discard the results of actions that run for these
/// activations during the migration.
///
/// Timers stay unchanged if their transition still fires by a timer and leaves the same place. Timers of transitions
/// that are new to the place start now. All other timers are removed.
///
/// A join that has enough branches by the new definition fires. A wait for children applies its new rule. Completed
/// places that the new definition does not have are removed, because no guard can refer to them.
pub fn migrate(
    from: &Definition,
    to: &Definition,
    snapshot: &Snapshot,
    mapping: &Mapping,
    now: Timestamp,
) -> Result<Change, MigrationError> {
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
    let mut builder = DecisionBuilder::new(to.compiled(), next, now);
    if has_context {
        migration.take_timers(&mut builder);
    }
    if !migration.obstacles.is_empty() {
        return Err(MigrationError(migration.obstacles));
    }
    let unsound = |why: String| MigrationError(vec![Obstacle::Inconsistent { why }]);
    builder.reapply_rules().map_err(|error| unsound(error.to_string()))?;
    let mut change = builder.conclude("__operator:migrate".to_owned(), &Value::Null, false);
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
    /// The new place for each place that the run is in.
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
            self.obstacles.push(Obstacle::OtherDefinition { expected, found });
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

    /// Sets the new context. Returns false if it does not match the schema.
    fn take_context(&mut self, next: &mut Snapshot) -> bool {
        if let Some(context) = &self.mapping.context {
            next.context = Arc::new(context.clone());
        }
        let obstacle = match check_context(self.to, &next.context) {
            Ok(()) => return true,
            Err(DecideError::InvalidContext(violations)) => Obstacle::InvalidContext { violations },
            Err(error) => Obstacle::Inconsistent { why: error.to_string() },
        };
        self.obstacles.push(obstacle);
        false
    }

    /// Returns the new name of an old place, whether or not the new definition has it.
    fn destination<'p>(&'p self, place: &'p Name) -> &'p Name {
        self.mapping.places.get(place).unwrap_or(place)
    }

    /// Returns the new place for a place that the run is in, or `None` if the run cannot be there.
    fn index(&self, place: &Name) -> Option<PlaceIndex> {
        self.places.get(place).copied().flatten()
    }

    /// Renames every place of the run and checks that the run can be there.
    fn take_places(&mut self, next: &mut Snapshot) {
        let snapshot = self.snapshot;
        let places = snapshot.activations.iter().map(|activation| &activation.place);
        let forks = snapshot.fork_instances.iter().map(|fork_instance| &fork_instance.fork);
        let frames = snapshot.activations.iter().flat_map(|activation| &activation.frames);
        let frames =
            frames.chain(snapshot.fork_instances.iter().flat_map(|fork_instance| &fork_instance.frames));
        let named = places.chain(forks).chain(frames.map(|frame| &frame.place));
        for place in named.chain(snapshot.last_end.as_ref().and_then(RunEnd::place)) {
            if !self.places.contains_key(place) {
                let index = self.take_place(place);
                self.places.insert(place, index);
            }
        }
        for activation in &mut next.activations {
            activation.place = self.destination(&activation.place).clone();
            activation.retried.retain(|transition, _| self.to.has_retry_target(transition));
            self.take_frames(&mut activation.frames);
            self.check_frames(activation);
        }
        for fork_instance in &mut next.fork_instances {
            fork_instance.fork = self.destination(&fork_instance.fork).clone();
            fork_instance.retried.retain(|transition, _| self.to.has_retry_target(transition));
            self.take_frames(&mut fork_instance.frames);
        }
        if let Some(RunEnd::Completed { place, .. }) = &mut next.last_end {
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

    /// Checks that the run is in the same loops and error scopes in the new definition.
    fn check_frames(&mut self, activation: &Activation) {
        let Some(&index) = self.to.by_name.get(&activation.place) else { return };
        let node = &self.to.places[index];
        if let Some(scope) = self.to.missing_scope(index, &activation.frames) {
            let (place, to) = (activation.place.clone(), activation.place.clone());
            let why = format!("the place is inside `{scope}`, but the run is not");
            self.obstacles.push(Obstacle::CannotContinue { place, to, why });
        }
        for frame in &activation.frames {
            let scope = self.to.by_name.get(&frame.place);
            if frame.place != node.name && !scope.is_some_and(|scope| node.inside.contains(scope)) {
                let (place, to) = (activation.place.clone(), activation.place.clone());
                let why = format!("the run is inside `{}`, but the place is not", frame.place);
                self.obstacles.push(Obstacle::CannotContinue { place, to, why });
            }
        }
    }

    fn take_place(&mut self, place: &Name) -> Option<PlaceIndex> {
        let to = self.destination(place).clone();
        let Some(&index) = self.to.by_name.get(&to) else {
            if !self.mapping.places.contains_key(place) {
                let hint = did_you_mean(place, self.to.by_name.keys().map(Name::as_str));
                self.obstacles.push(Obstacle::PlaceRemoved { place: place.clone(), hint });
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

    /// Checks that open forks have the same branches in the same order, because a branch is identified by its number.
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

    /// Checks that the run reaches the joins of its open forks from every new place, and that no fork is open inside
    /// itself.
    fn check_ways(&mut self) {
        let around = |branch| ways::forks_around(self.snapshot, branch, |fork| self.index(fork));
        let mut followed = BTreeSet::new();
        let mut found = Vec::new();
        let mut note = |place: &Name, why: String| {
            found.push(Obstacle::CannotContinue {
                place: place.clone(),
                to: self.destination(place).clone(),
                why,
            });
        };
        for fork_instance in &self.snapshot.fork_instances {
            let Some((fork, around)) = self.index(&fork_instance.fork).zip(around(fork_instance.outer))
            else {
                continue;
            };
            if around.contains(&fork) && followed.insert((&fork_instance.fork, around, false)) {
                note(&fork_instance.fork, "the fork would be open inside one of its own branches".to_owned());
            }
        }
        for activation in &self.snapshot.activations {
            let place = &activation.place;
            let Some((index, around)) = self.index(place).zip(around(activation.branch)) else { continue };
            // Activations in the same place of the same forks have the same paths onward, so they are checked once.
            let arrives =
                is_in_join(self.from, activation) || activation.status == ActivationStatus::EntryBlocked;
            if !followed.insert((place, around.clone(), arrives)) {
                continue;
            }
            let follow = if arrives { ways::enter } else { ways::check_from };
            if let Err(why) = follow(self.to, index, around) {
                note(place, why);
            }
        }
        self.obstacles.extend(found);
    }

    fn check_result(&mut self, next: &Snapshot) {
        let Some(RunEnd::Completed { place, output: Some(output) }) = &next.last_end else { return };
        let violations = self.to.output.as_ref().map(|schema| schema.check(output)).unwrap_or_default();
        if !violations.is_empty() {
            self.obstacles.push(Obstacle::InvalidResult { place: place.clone(), violations });
        }
    }

    fn take_timers(&mut self, builder: &mut DecisionBuilder<'_>) {
        for (at, old) in self.snapshot.activations.iter().enumerate() {
            if self.index(&old.place).is_none() {
                continue;
            }
            let mut timers = Vec::new();
            for timer in timers_of(builder, &builder.next.activations[at]) {
                match timer {
                    Ok(timer) => timers.extend(timer),
                    Err(error) => self.obstacles.push(Obstacle::Inconsistent { why: error.to_string() }),
                }
            }
            builder.next.activations[at].timers = timers;
        }
    }

    /// Returns the old and the new names of the places the run is in, where they differ.
    fn renamed(&self) -> (Vec<Name>, Vec<Name>) {
        let places = self.snapshot.current_places().into_iter();
        places
            .map(|place| (self.destination(&place).clone(), place))
            .filter(|(to, place)| to != place)
            .map(|(to, place)| (place, to))
            .unzip()
    }
}

/// Returns the timers that keep running, and new ones for transitions that are new to the place.
fn timers_of(
    builder: &DecisionBuilder<'_>,
    activation: &Activation,
) -> Vec<Result<Option<Timer>, DecideError>> {
    let Some(node) = builder.compiled.place(&activation.place) else { return Vec::new() };
    let is_waiting = activation.status == ActivationStatus::Waiting;
    let runs = match node.kind {
        _ if activation.status == ActivationStatus::EntryBlocked => false,
        PlaceKind::Join(_) => !is_waiting,
        // A wait's timers are cancelled once it is resolved.
        PlaceKind::Wait(_) => is_waiting,
        _ => true,
    };
    let event = activation.received.as_ref().unwrap_or(&Value::Null);
    let out = node.out.iter().map(|&index| &builder.compiled.transitions[index]);
    out.filter(|transition| runs && transition.on.is_timer())
        .map(|transition| {
            let running = activation.timers.iter().find(|timer| timer.transition == transition.id);
            running.map_or_else(
                || builder.timer(transition, &activation.locals, event),
                |timer| Ok(Some(timer.clone())),
            )
        })
        .collect()
}

fn is_in_join(compiled: &Compiled, activation: &Activation) -> bool {
    let kind = compiled.place(&activation.place).map(|node| &node.kind);
    activation.status == ActivationStatus::Waiting && matches!(kind, Some(PlaceKind::Join(_)))
}

/// Returns the kind of a place. A wait for children counts as a kind of its own.
fn kind_of(kind: &PlaceKind) -> &'static str {
    match kind {
        PlaceKind::Wait(wait) if wait.children.is_some() => "wait for children",
        other => other.word(),
    }
}

/// Returns the first places of a fork's branches.
fn branches(compiled: &Compiled, kind: &PlaceKind) -> Option<Vec<Name>> {
    match kind {
        PlaceKind::Fork { branches, .. } => {
            Some(branches.iter().map(|&index| compiled.places[index].name.clone()).collect())
        }
        _ => None,
    }
}
