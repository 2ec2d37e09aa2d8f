//! The complete state of one run: what rests between two turns, in a row, behind a handle or in a token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition::{Compiled, Definition, PlaceKind, PlaceNode};
use crate::frame::{Frame, List, ListId, Lists};
use crate::ids::{DefinitionHash, Name, RunId};
use crate::limits::{LimitExceeded, Limits};
use crate::refusal::Failure;
use crate::schema::Misfit;
use crate::time::Timestamp;

/// One being-in-a-place has this number; it is never used again in the same run.
pub type ActivationId = u64;
/// One passing of a fork has this number.
pub type PassingId = u64;

/// The local that says what whoever answers in a place is asked. It goes with the answer.
pub const PROMPT: &str = "prompt";

/// The local that says which events are the run's, as long as it waits for one.
pub const CORRELATION: &str = "correlation";

/// The complete state of one run. Only [`dispatch`](crate::dispatch()) makes a newer one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    pub(crate) instance_id: RunId,
    pub(crate) workflow: Name,
    pub(crate) definition_version: u32,
    pub(crate) definition_hash: DefinitionHash,
    pub(crate) version: u64,
    pub(crate) activations: Vec<Activation>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) passings: Vec<Passing>,
    pub(crate) completed: Arc<BTreeSet<Name>>,
    pub(crate) context: Arc<Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) session: Arc<Map<String, Value>>,
    /// The lists that loops and forks go through.
    #[serde(default, skip_serializing_if = "Lists::has_no_short")]
    pub(crate) lists: Lists,
    /// Those of them that are too long to be written with every snapshot; see [`Snapshot::encode_apart`].
    #[serde(default, skip_serializing)]
    pub(crate) long_lists: Lists,
    pub(crate) is_terminal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finished: Option<Finished>,
    /// The end place a branch came to last, while others are still going.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_end: Option<Finished>,
    /// The number the next activation or passing gets.
    pub(crate) next_id: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// One being-in-a-place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Activation {
    /// Its number.
    pub id: ActivationId,
    /// Where it is.
    pub place: Name,
    /// Active, or waiting to be resolved or joined.
    pub status: ActivationStatus,
    /// Since when.
    pub since: Timestamp,
    /// The passing of a fork it came from, and in which branch it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// Iteration numbers of the loops it is in, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub position: Vec<u32>,
    /// The loops and error scopes it is in, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
    /// What only this activation can see: loop items, and `error` after a failure.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub locals: Map<String, Value>,
    /// How often each transition on its way was retried by going back to an earlier place, see
    /// [`Retry`](crate::retry::Retry).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retried: BTreeMap<Name, u32>,
    /// The timers that run while it is here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// What its wait was resolved with; before a place, what the event at hand brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Value>,
    /// What it brings along for the place it stands before.
    #[serde(default, skip_serializing_if = "Gave::is_nothing")]
    pub gave: Gave,
    /// The children it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Children>,
}

impl Activation {
    /// When its earliest timer is due.
    pub fn due(&self) -> Option<Timestamp> {
        self.timers.iter().map(|timer| timer.at).min()
    }
}

/// Whether an activation can be left by transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ActivationStatus {
    /// It can.
    Active,
    /// Not before its wait is resolved or its join fires.
    Waiting,
    /// It stands before its place, which could not be entered: it is tried again whenever the run goes on by itself.
    Before,
}

/// What an activation brings to the place it comes to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gave {
    /// Nothing.
    #[default]
    Nothing,
    /// A result, for a join or a loop.
    Value(Value),
    /// An error.
    Failed(Failure),
    /// Nothing, and the loop it comes to is to be left.
    Leaves,
}

impl Gave {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Gave::Nothing
    }
}

/// Which branch of which passing of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Branch {
    /// The passing.
    pub passing: PassingId,
    /// The branch, counted from 0 in the order in which the fork names them.
    pub index: u32,
}

/// A timer and the transition it fires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timer {
    /// The transition.
    pub transition: Name,
    /// When it is due.
    pub at: Timestamp,
}

/// The children one activation waits for, and how those that have ended did so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Children {
    /// How many were started.
    pub total: u32,
    /// The end of each child that has ended, by its number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<u32, ChildEnd>,
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum ChildEnd {
    /// With a result.
    Completed {
        /// The result.
        output: Value,
    },
    /// With an error.
    Failed {
        /// The error.
        error: Failure,
    },
    /// By command.
    Cancelled,
}

/// One passing of a fork whose branches have not all ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Passing {
    /// Its number.
    pub id: PassingId,
    /// The fork.
    pub fork: Name,
    /// How many branches it opened.
    pub branches: u32,
    /// Its join has fired; branches that come later are absorbed.
    pub fired: bool,
    /// The branch of an outer passing in which the fork was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<Branch>,
    /// The list, if it was opened over one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListId>,
    /// How many of its branches were begun, if it was opened over a list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub begun: u32,
    /// How many of them have come to the join, if it was opened over a list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub arrived: u32,
    /// What the branches gave that have come to the join, if that is collected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<u32, Value>,
    /// The loops and error scopes in which the fork was entered: the join goes on in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
    /// The loop position in which the fork was entered: the join goes on there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub position: Vec<u32>,
    /// The locals with which the fork was entered: the join goes on with them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub locals: Map<String, Value>,
    /// The retries counted when the fork was entered: the join goes on with them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retried: BTreeMap<Name, u32>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "camelCase")]
pub enum Finished {
    /// It came to an end place.
    Completed {
        /// The end place.
        place: Name,
        /// The result, if the end place gives one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
    },
    /// By command.
    Cancelled,
}

impl Finished {
    /// The end place, unless it was by command.
    pub(crate) fn place(&self) -> Option<&Name> {
        match self {
            Finished::Completed { place, .. } => Some(place),
            Finished::Cancelled => None,
        }
    }
}

/// What is going on in a place, read off the activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlaceStatus {
    /// Nothing, and nothing has.
    Idle,
    /// A run is there and can leave.
    Active,
    /// A run waits there.
    Waiting,
    /// A run has been there and left.
    Completed,
}

/// The snapshot does not go with the definition.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RestoreError {
    /// It is not the JSON of a snapshot.
    #[error("this is not a snapshot: {0}")]
    Unreadable(String),
    /// It belongs to another workflow.
    #[error("the snapshot belongs to workflow `{found}`, not to `{expected}`")]
    OtherWorkflow {
        /// This definition's name.
        expected: Name,
        /// The name in the snapshot.
        found: Name,
    },
    /// It was made by another edition of the workflow.
    #[error(
        "the snapshot was made by `{workflow}` version {found_version} ({found}), not by version {expected_version} \
         ({expected}): use that definition, or migrate the run"
    )]
    OtherDefinition {
        /// The workflow.
        workflow: Name,
        /// This definition's version.
        expected_version: u32,
        /// This definition's hash, shortened.
        expected: String,
        /// The version in the snapshot.
        found_version: u32,
        /// The hash in the snapshot, shortened.
        found: String,
    },
    /// It is in a place that the definition does not have.
    #[error("the snapshot names place `{0}`, which the definition does not have")]
    UnknownPlace(Name),
    /// Its context does not fit the schema.
    #[error("the snapshot's context does not fit the schema: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ContextUnfit(Vec<Misfit>),
    /// It contradicts itself.
    #[error("the snapshot contradicts itself: {}", .0.join("; "))]
    Contradiction(Vec<String>),
}

impl Snapshot {
    /// The run.
    pub fn instance_id(&self) -> RunId {
        self.instance_id
    }

    /// The workflow's name.
    pub fn workflow(&self) -> &Name {
        &self.workflow
    }

    /// The author's number of the definition it is pinned to.
    pub fn definition_version(&self) -> u32 {
        self.definition_version
    }

    /// The hash of the definition it is pinned to.
    pub fn definition_hash(&self) -> DefinitionHash {
        self.definition_hash
    }

    /// How many changes it has seen; 0 as created.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where the run is, oldest first.
    pub fn activations(&self) -> &[Activation] {
        &self.activations
    }

    /// The activation of this number.
    pub fn activation(&self, id: ActivationId) -> Option<&Activation> {
        self.activations
            .binary_search_by_key(&id, |activation| activation.id)
            .ok()
            .map(|at| &self.activations[at])
    }

    /// The passings of forks that are open.
    pub fn passings(&self) -> &[Passing] {
        &self.passings
    }

    /// The places completed so far.
    pub fn completed(&self) -> &BTreeSet<Name> {
        &self.completed
    }

    /// The data of the run.
    pub fn context(&self) -> &Value {
        &self.context
    }

    /// The session slots.
    pub fn session(&self) -> &Map<String, Value> {
        &self.session
    }

    /// The run has ended.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// How it ended.
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// When version 0 was made.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// When this version was made.
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// The places the run is in, each once, sorted.
    pub fn current_places(&self) -> Vec<Name> {
        let mut places: Vec<_> = self.activations.iter().map(|activation| activation.place.clone()).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// What is going on in a place.
    pub fn status_of(&self, place: &str) -> PlaceStatus {
        let mut here = self.activations.iter().filter(|activation| activation.place == *place).peekable();
        if here.peek().is_none() {
            return if self.completed.contains(place) { PlaceStatus::Completed } else { PlaceStatus::Idle };
        }
        if here.all(|activation| activation.status == ActivationStatus::Waiting) {
            return PlaceStatus::Waiting;
        }
        PlaceStatus::Active
    }

    /// When the next timer is due, counting only those after `now`.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let timers = self.activations.iter().flat_map(|activation| &activation.timers);
        timers.map(|timer| timer.at).filter(|at| *at > now).min()
    }

    /// The snapshot as JSON bytes, if it is not larger than allowed.
    pub fn encode(&self, limits: &Limits) -> Result<Vec<u8>, LimitExceeded> {
        let mut bytes = self.encode_apart(limits)?;
        let long: BTreeMap<_, _> = self.lists.long().map(|(id, list)| (id, list.items())).collect();
        if !long.is_empty() {
            // Behind the last field of the object that was written.
            bytes.pop();
            bytes.extend_from_slice(b",\"longLists\":");
            serde_json::to_writer(&mut bytes, &long).expect("lists are plain data with text keys");
            bytes.push(b'}');
            limits.snapshot_bytes("the snapshot", bytes.len())?;
        }
        Ok(bytes)
    }

    /// The same without the lists that are long: they do not change, and whoever keeps many snapshots of a run keeps each
    /// of them once ([`Snapshot::long_lists`]) and puts it back ([`Snapshot::put_list`]).
    pub fn encode_apart(&self, limits: &Limits) -> Result<Vec<u8>, LimitExceeded> {
        // Most snapshots fit: growing the buffer would copy it again and again.
        let mut bytes = Vec::with_capacity(2_048);
        serde_json::to_writer(&mut bytes, self).expect("a snapshot is plain data with text keys");
        limits.snapshot_bytes("the snapshot", bytes.len())?;
        Ok(bytes)
    }

    /// Reads a snapshot and checks that it goes with the definition. Lists that were kept apart are still missing.
    pub fn restore(definition: &Definition, bytes: &[u8]) -> Result<Snapshot, RestoreError> {
        let mut snapshot: Snapshot =
            serde_json::from_slice(bytes).map_err(|error| RestoreError::Unreadable(error.to_string()))?;
        let long = std::mem::take(&mut snapshot.long_lists);
        snapshot.lists.0.extend(long.0);
        snapshot.verify(definition)?;
        Ok(snapshot)
    }

    /// The lists that are kept beside the snapshot.
    pub fn long_lists(&self) -> impl Iterator<Item = (&ListId, &List)> {
        self.lists.long()
    }

    /// The lists that are named and not there: they were kept apart.
    pub fn missing_lists(&self) -> Vec<ListId> {
        let mut missing: Vec<_> =
            self.named_lists().filter(|id| !self.lists.0.contains_key(id)).cloned().collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Puts a list back that was kept apart.
    pub fn put_list(&mut self, id: ListId, list: List) {
        self.lists.0.insert(id, list);
    }

    /// Lists of loops and forks that are over are not needed any more.
    pub(crate) fn forget_lists(&mut self) {
        if self.lists.0.is_empty() {
            return;
        }
        let named: BTreeSet<_> = self.named_lists().cloned().collect();
        self.lists.0.retain(|id, _| named.contains(id));
    }

    fn named_lists(&self) -> impl Iterator<Item = &ListId> {
        let frames = self.activations.iter().flat_map(|activation| &activation.frames);
        let frames = frames.chain(self.passings.iter().flat_map(|passing| &passing.frames));
        let passings = self.passings.iter().filter_map(|passing| passing.list.as_ref());
        frames.filter_map(|frame| frame.list.as_ref()).chain(passings)
    }

    /// Checks that the snapshot goes with the definition and does not contradict itself.
    pub fn verify(&self, definition: &Definition) -> Result<(), RestoreError> {
        if self.workflow != *definition.name() {
            let (expected, found) = (definition.name().clone(), self.workflow.clone());
            return Err(RestoreError::OtherWorkflow { expected, found });
        }
        if self.definition_hash != definition.hash() {
            return Err(RestoreError::OtherDefinition {
                workflow: self.workflow.clone(),
                expected_version: definition.version(),
                expected: definition.hash().short(),
                found_version: self.definition_version,
                found: self.definition_hash.short(),
            });
        }
        let compiled = definition.compiled();
        let named = self.activations.iter().map(|activation| &activation.place);
        let ends = self.finished.iter().chain(&self.last_end).filter_map(Finished::place);
        let named = named.chain(&*self.completed).chain(self.passings.iter().map(|passing| &passing.fork));
        let named = named.chain(ends);
        for place in named {
            if compiled.place(place).is_none() {
                return Err(RestoreError::UnknownPlace(place.clone()));
            }
        }
        if let Some(schema) = &compiled.context {
            let misfits = schema.check(&self.context);
            if !misfits.is_empty() {
                return Err(RestoreError::ContextUnfit(misfits));
            }
        }
        let contradictions = self.contradictions(definition);
        if contradictions.is_empty() { Ok(()) } else { Err(RestoreError::Contradiction(contradictions)) }
    }

    /// Every way in which the snapshot contradicts itself or its definition; none in a sound one.
    pub fn contradictions(&self, definition: &Definition) -> Vec<String> {
        let compiled = definition.compiled();
        let mut found = Vec::new();
        self.check_end(compiled, &mut found);
        self.check_ids(&mut found);
        for activation in &self.activations {
            self.check_activation(compiled, activation, &mut found);
        }
        for passing in &self.passings {
            self.check_passing(compiled, passing, &mut found);
        }
        found
    }

    fn check_end(&self, compiled: &Compiled, found: &mut Vec<String>) {
        for place in self.finished.iter().chain(&self.last_end).filter_map(Finished::place) {
            if !matches!(compiled.place(place).map(|node| &node.kind), Some(PlaceKind::End { .. })) {
                found.push(format!("it came to an end in `{place}`, which is not an end"));
            }
        }
        if self.is_terminal != self.finished.is_some() {
            found.push("`isTerminal` and `finished` disagree".into());
        }
        if self.is_terminal && !(self.activations.is_empty() && self.passings.is_empty()) {
            found.push("the run has ended, and something in it has not".into());
        }
        if !self.is_terminal && self.activations.is_empty() && self.passings.is_empty() {
            found.push("the run has not ended and is nowhere".into());
        }
        if self.updated_at < self.created_at {
            found.push("it was updated before it was created".into());
        }
    }

    fn check_ids(&self, found: &mut Vec<String>) {
        let ids = || self.activations.iter().map(|a| a.id).chain(self.passings.iter().map(|p| p.id));
        if !self.activations.is_sorted_by(|a, b| a.id < b.id)
            || !self.passings.is_sorted_by(|a, b| a.id < b.id)
        {
            found.push("activations or passings are not in the order of their numbers".into());
        }
        if ids().collect::<BTreeSet<_>>().len() != ids().count() || ids().any(|id| id >= self.next_id) {
            found.push("a number is used twice or has not been given yet".into());
        }
    }

    fn check_activation(&self, compiled: &Compiled, activation: &Activation, found: &mut Vec<String>) {
        let (id, place) = (activation.id, &activation.place);
        let Some(node) = compiled.place(place) else { return };
        let waiting = activation.status == ActivationStatus::Waiting;
        let is_before = activation.status == ActivationStatus::Before;
        match node.kind {
            _ if is_before => {}
            PlaceKind::Fork { .. } | PlaceKind::End { .. } | PlaceKind::Catch { .. } => {
                found.push(format!("activation {id} rests in `{place}`, where nothing can rest"));
            }
            PlaceKind::Step | PlaceKind::Loop(_) if waiting => {
                found.push(format!("activation {id} waits in the step `{place}`"));
            }
            PlaceKind::Join(_) if waiting && !self.is_joined_in(compiled, activation) => {
                found.push(format!(
                    "activation {id} waits in the join `{place}`, which does not join its fork"
                ));
            }
            PlaceKind::Step | PlaceKind::Wait(_) | PlaceKind::Join(_) | PlaceKind::Loop(_) => {}
        }
        self.check_children(node, activation, found);
        self.check_frames(compiled, node, activation, found);
        self.check_branch(activation.branch, &format!("activation {id}"), found);
        check_retried(compiled, &activation.retried, &format!("activation {id}"), found);
        for timer in &activation.timers {
            let known = compiled.transition(&timer.transition);
            if !known.is_some_and(|t| compiled.places[t.from].name == *place && t.on.is_timer()) {
                found
                    .push(format!("activation {id} has a timer for `{}`, not its place's", timer.transition));
            }
        }
    }

    /// The frames are those of loops and scopes the place is in, and name what is there.
    fn check_frames(
        &self,
        compiled: &Compiled,
        node: &PlaceNode,
        activation: &Activation,
        found: &mut Vec<String>,
    ) {
        let (id, place) = (activation.id, &activation.place);
        for frame in &activation.frames {
            let scope = compiled.by_name.get(&frame.place);
            let itself = frame.place == *place;
            if !itself && !scope.is_some_and(|scope| node.inside.contains(scope)) {
                found.push(format!("activation {id} in `{place}` is not in `{}`", frame.place));
            }
        }
    }

    /// The place is the join of the fork the activation came from.
    fn is_joined_in(&self, compiled: &Compiled, activation: &Activation) -> bool {
        let passing = activation.branch.and_then(|branch| self.passing(branch.passing));
        let fork = passing.and_then(|passing| compiled.place(&passing.fork));
        match fork.map(|fork| &fork.kind) {
            Some(PlaceKind::Fork { join: Some(join), .. }) => compiled.places[*join].name == activation.place,
            _ => false,
        }
    }

    fn check_children(&self, node: &PlaceNode, activation: &Activation, found: &mut Vec<String>) {
        let (id, place) = (activation.id, &activation.place);
        let is_before = activation.status == ActivationStatus::Before;
        let expected = !is_before && matches!(&node.kind, PlaceKind::Wait(wait) if wait.children.is_some());
        match &activation.children {
            None if expected => {
                found.push(format!("activation {id} in `{place}` has no account of its children"));
            }
            Some(_) if !expected => found.push(format!("activation {id} in `{place}` waits for no children")),
            Some(children) if children.ended.keys().any(|child| *child >= children.total) => {
                found.push(format!("activation {id} in `{place}` has more children ended than started"));
            }
            _ => {}
        }
    }

    fn check_branch(&self, branch: Option<Branch>, whose: &str, found: &mut Vec<String>) {
        let Some(branch) = branch else { return };
        match self.passing(branch.passing) {
            None => found.push(format!("{whose} belongs to passing {}, which is not open", branch.passing)),
            Some(passing) if branch.index >= passing.branches => {
                found.push(format!("{whose} is in branch {} of {}", branch.index, passing.branches));
            }
            Some(_) => {}
        }
    }

    fn check_passing(&self, compiled: &Compiled, passing: &Passing, found: &mut Vec<String>) {
        let id = passing.id;
        self.check_branch(passing.outer, &format!("passing {id}"), found);
        check_retried(compiled, &passing.retried, &format!("passing {id}"), found);
        if passing.outer.is_some_and(|outer| outer.passing >= id) {
            found.push(format!("passing {id} is inside a later one"));
        }
        let Some(PlaceKind::Fork { branches, join, each }) =
            compiled.place(&passing.fork).map(|node| &node.kind)
        else {
            found.push(format!("passing {id} is of `{}`, which is not a fork", passing.fork));
            return;
        };
        if each.is_none() && passing.branches as usize != branches.len() {
            let (has, should) = (passing.branches, branches.len());
            found.push(format!("passing {id} has {has} branches, and `{}` has {should}", passing.fork));
        }
        let alive = self.activations.iter().any(|a| a.branch.is_some_and(|b| b.passing == id))
            || self.passings.iter().any(|inner| inner.outer.is_some_and(|b| b.passing == id));
        if !alive && (passing.fired || join.is_none()) {
            found.push(format!("passing {id} is open, and none of its branches is"));
        }
        let Some(join) = join.map(|join| &compiled.places[join]) else { return };
        let PlaceKind::Join(node) = &join.kind else { return };
        let (quorum, cancel_rest) = (node.needed(passing), node.cancel_rest);
        let arrived = self.arrived(id, &join.name).count() + passing.arrived as usize;
        let branches: BTreeSet<_> =
            self.arrived(id, &join.name).map(|activation| activation.branch).collect();
        if each.is_none() && branches.len() < arrived {
            found.push(format!("a branch of passing {id} waits twice in `{}`", join.name));
        }
        if passing.fired && each.is_none() && arrived > 0 {
            found
                .push(format!("the join of passing {id} has fired, and {arrived} branches still wait in it"));
        }
        if passing.fired && cancel_rest {
            found
                .push(format!("the join of passing {id} has fired and ended the rest, and it is still open"));
        }
        if !passing.fired && arrived >= quorum as usize {
            found
                .push(format!("{arrived} branches of passing {id} have arrived, and the join has not fired"));
        }
    }

    pub(crate) fn passing(&self, id: PassingId) -> Option<&Passing> {
        self.passings.binary_search_by_key(&id, |passing| passing.id).ok().map(|at| &self.passings[at])
    }

    /// The activations of a passing's branches that wait in its join.
    pub(crate) fn arrived<'a>(
        &'a self,
        passing: PassingId,
        join: &'a Name,
    ) -> impl Iterator<Item = &'a Activation> {
        self.activations.iter().filter(move |activation| {
            activation.status == ActivationStatus::Waiting
                && activation.place == *join
                && activation.branch.is_some_and(|branch| branch.passing == passing)
        })
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn check_retried(compiled: &Compiled, retried: &BTreeMap<Name, u32>, whose: &str, found: &mut Vec<String>) {
    for transition in retried.keys().filter(|transition| !compiled.goes_back(transition)) {
        found.push(format!("{whose} counts retries of `{transition}`, which go back nowhere"));
    }
}
