//! The complete state of one run, as it is stored between two changes: in a row, behind a handle or in a sealed
//! token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition::{Compiled, Definition, PlaceKind, PlaceNode};
use crate::frame::{Frame, List, ListId, Lists};
use crate::ids::{DefinitionHash, Name, RunId};
use crate::join::JoinState;
use crate::limits::{LimitExceeded, Limits};
use crate::refusal::Failure;
use crate::schema::SchemaViolation;
use crate::time::Timestamp;

/// The number of an activation. It is never reused in the same run.
pub type ActivationId = u64;
/// The number of a fork instance. It is never reused in the same run.
pub type ForkInstanceId = u64;

/// The local that holds the prompt for the person who answers in a place. It is removed when the answer arrives.
pub const PROMPT: &str = "prompt";

/// The local that holds the correlation value while the run waits for an event.
pub const CORRELATION: &str = "correlation";

/// The complete state of one run. Only [`dispatch`](crate::dispatch()) creates newer versions of it.
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
    pub(crate) fork_instances: Vec<ForkInstance>,
    pub(crate) completed: Arc<BTreeSet<Name>>,
    pub(crate) context: Arc<Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) session: Arc<Map<String, Value>>,
    /// The lists that loops and forks iterate over.
    #[serde(default, skip_serializing_if = "Lists::has_no_short")]
    pub(crate) lists: Lists,
    /// Lists that are too long to be written with every snapshot; see [`Snapshot::encode_without_long_lists`].
    #[serde(default, skip_serializing)]
    pub(crate) long_lists: Lists,
    pub(crate) is_terminal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finished: Option<RunEnd>,
    /// The end place that a branch reached last, while other branches are still active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_end: Option<RunEnd>,
    /// The number of the next activation or fork instance.
    pub(crate) next_id: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// The presence of a run in a place. A run with several branches has several activations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Activation {
    pub id: ActivationId,
    pub place: Name,
    pub status: ActivationStatus,
    /// Time at which the activation entered the place.
    pub since: Timestamp,
    /// The fork instance and the branch that the activation belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// Iteration numbers of the enclosing loops, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub position: Vec<u32>,
    /// The enclosing loops and error scopes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
    /// Values visible only to this activation: loop items, and `error` after a failure.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub locals: Map<String, Value>,
    /// Number of retries per transition that went back to an earlier place, see [`Retry`](crate::retry::Retry).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retried: BTreeMap<Name, u32>,
    /// The timers that run while the activation is in the place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// The payload that resolved the wait. If entry is blocked, the payload of the input that led here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Value>,
    /// The result that the activation brings to the place whose entry is blocked.
    #[serde(default, skip_serializing_if = "EntryValue::is_nothing")]
    pub entry_value: EntryValue,
    /// The children that the activation waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Children>,
    /// The branch reached its join because of an error, and the join tolerates failures.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_failed: bool,
}

impl Activation {
    /// Returns the time of the earliest timer.
    pub fn due(&self) -> Option<Timestamp> {
        self.timers.iter().map(|timer| timer.at).min()
    }
}

/// The status of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ActivationStatus {
    /// Transitions can leave the place.
    Active,
    /// Transitions can leave the place only after its wait is resolved or its join has fired.
    Waiting,
    /// Entry is blocked: the place could not be entered. The entry is tried again whenever the run advances
    /// automatically.
    EntryBlocked,
}

/// The result that an activation brings to the next place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryValue {
    #[default]
    Nothing,
    /// The result of a branch or round, for a join or a loop.
    Value(Value),
    /// The error that ended a branch or round.
    Failed(Failure),
    /// No result; the loop that is entered ends.
    LeaveLoop,
}

impl EntryValue {
    pub(crate) fn is_nothing(&self) -> bool {
        *self == EntryValue::Nothing
    }
}

/// A branch of a fork instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Branch {
    pub fork_instance: ForkInstanceId,
    /// The number of the branch, counted from 0 in the order in which the fork names them.
    pub index: u32,
}

/// A timer and the transition it fires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timer {
    pub transition: Name,
    /// Time at which the timer is due.
    pub at: Timestamp,
}

/// The children that one activation waits for, and the ends of those that have ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Children {
    /// Number of children that were started.
    pub total: u32,
    /// The ends of the children that have ended, by the number of the child.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ended: BTreeMap<u32, ChildEnd>,
}

/// The end of a child run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum ChildEnd {
    Completed { output: Value },
    Failed { error: Failure },
    Cancelled,
}

/// One instance of an open fork: a run entered the fork, and not all branches have ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForkInstance {
    pub id: ForkInstanceId,
    pub fork: Name,
    /// Number of branches that the fork opened.
    pub branches: u32,
    /// True if the join has fired. Branches that arrive later are absorbed.
    pub fired: bool,
    /// The branch of an outer fork instance in which the fork was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<Branch>,
    /// The list that the fork iterates over, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListId>,
    /// Number of branches started so far, for a fork over a list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub started: u32,
    /// Number of branches that have reached the join, for a fork over a list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub arrived: u32,
    /// Number of branches that reached the join because of an error, for a fork over a list whose join tolerates
    /// failures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
    /// Results of the branches that have reached the join, if results are collected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub results: BTreeMap<u32, Value>,
    /// The loops and error scopes in which the fork was entered. The run continues in them after the join.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
    /// The loop position in which the fork was entered. The run continues there after the join.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub position: Vec<u32>,
    /// The locals with which the fork was entered. The run continues with them after the join.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub locals: Map<String, Value>,
    /// The retry counts with which the fork was entered. The run continues with them after the join.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retried: BTreeMap<Name, u32>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase")]
pub enum RunEnd {
    /// The run reached an end place.
    Completed {
        place: Name,
        /// The result, if the end place has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
    },
    Cancelled,
}

impl RunEnd {
    /// Returns the end place, or `None` if the run was cancelled.
    pub(crate) fn place(&self) -> Option<&Name> {
        match self {
            RunEnd::Completed { place, .. } => Some(place),
            RunEnd::Cancelled => None,
        }
    }
}

/// The status of a place, derived from the activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlaceStatus {
    /// The run has never completed the place and is not in it.
    Idle,
    /// The run is in the place and can leave it.
    Active,
    /// The run waits in the place.
    Waiting,
    /// The run has completed the place and is not in it now.
    Completed,
}

/// The error for a snapshot that is not valid for the definition.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RestoreError {
    /// It is not the JSON of a snapshot.
    #[error("not a valid snapshot: {0}")]
    Unreadable(String),
    /// It belongs to another workflow.
    #[error("the snapshot belongs to workflow `{found}`, not to `{expected}`")]
    OtherWorkflow { expected: Name, found: Name },
    /// It was made by another version of the workflow.
    #[error(
        "the snapshot was made by `{workflow}` version {found_version} ({found}), not by version {expected_version} \
         ({expected}): use that definition, or migrate the run"
    )]
    OtherDefinition {
        workflow: Name,
        expected_version: u32,
        /// First twelve hex digits of this definition's hash.
        expected: String,
        found_version: u32,
        /// First twelve hex digits of the hash in the snapshot.
        found: String,
    },
    /// It names a place that the definition does not have.
    #[error("the snapshot names place `{0}`, which the definition does not have")]
    UnknownPlace(Name),
    /// Its context does not match the schema.
    #[error("the snapshot's context does not match the schema: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidContext(Vec<SchemaViolation>),
    /// Parts of it contradict each other or the definition.
    #[error("the snapshot is inconsistent: {}", .0.join("; "))]
    Contradiction(Vec<String>),
}

impl Snapshot {
    /// Returns the id of the run.
    pub fn instance_id(&self) -> RunId {
        self.instance_id
    }

    /// Returns the name of the workflow.
    pub fn workflow(&self) -> &Name {
        &self.workflow
    }

    /// Returns the author's workflow version of the definition that the run is pinned to.
    pub fn definition_version(&self) -> u32 {
        self.definition_version
    }

    /// Returns the hash of the definition that the run is pinned to.
    pub fn definition_hash(&self) -> DefinitionHash {
        self.definition_hash
    }

    /// Returns the version of the snapshot: the number of changes since the run was created.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the activations, oldest first.
    pub fn activations(&self) -> &[Activation] {
        &self.activations
    }

    /// Looks up an activation by its number.
    pub fn activation(&self, id: ActivationId) -> Option<&Activation> {
        self.activations
            .binary_search_by_key(&id, |activation| activation.id)
            .ok()
            .map(|at| &self.activations[at])
    }

    /// Returns the open fork instances.
    pub fn fork_instances(&self) -> &[ForkInstance] {
        &self.fork_instances
    }

    /// Returns the places that the run has completed so far.
    pub fn completed(&self) -> &BTreeSet<Name> {
        &self.completed
    }

    /// Returns the context, which is the data of the run.
    pub fn context(&self) -> &Value {
        &self.context
    }

    /// Returns the session slots of the run.
    pub fn session(&self) -> &Map<String, Value> {
        &self.session
    }

    /// Returns true if the run has ended.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Returns how the run ended, if it has ended.
    pub fn finished(&self) -> Option<&RunEnd> {
        self.finished.as_ref()
    }

    /// Returns the time at which version 0 was created.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// Returns the time at which this version was created.
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// Returns the places that the run is in, sorted and without duplicates.
    pub fn current_places(&self) -> Vec<Name> {
        let mut places: Vec<_> = self.activations.iter().map(|activation| activation.place.clone()).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Returns the status of a place.
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

    /// Returns the time of the next timer after `now`.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let timers = self.activations.iter().flat_map(|activation| &activation.timers);
        timers.map(|timer| timer.at).filter(|at| *at > now).min()
    }

    /// Serializes the snapshot as JSON. Returns an error if it is too large.
    pub fn encode(&self, limits: &Limits) -> Result<Vec<u8>, LimitExceeded> {
        let mut bytes = self.encode_without_long_lists(limits)?;
        let long: BTreeMap<_, _> = self.lists.long().map(|(id, list)| (id, list.items())).collect();
        if !long.is_empty() {
            // Inserts the field at the end of the object that was written.
            bytes.pop();
            bytes.extend_from_slice(b",\"longLists\":");
            serde_json::to_writer(&mut bytes, &long).expect("lists are plain data with text keys");
            bytes.push(b'}');
            limits.snapshot_bytes("the snapshot", bytes.len())?;
        }
        Ok(bytes)
    }

    /// Serializes the snapshot without its long lists.
    ///
    /// Long lists do not change. A program that stores many snapshots of a run stores each list once
    /// ([`Snapshot::long_lists`]) and puts it back after reading ([`Snapshot::restore_list`]).
    pub fn encode_without_long_lists(&self, limits: &Limits) -> Result<Vec<u8>, LimitExceeded> {
        // Large enough for most snapshots, because growing the buffer copies it.
        let mut bytes = Vec::with_capacity(2_048);
        serde_json::to_writer(&mut bytes, self).expect("a snapshot is plain data with text keys");
        limits.snapshot_bytes("the snapshot", bytes.len())?;
        Ok(bytes)
    }

    /// Parses a snapshot and checks it against the definition. Lists that were stored separately are still missing.
    pub fn restore(definition: &Definition, bytes: &[u8]) -> Result<Snapshot, RestoreError> {
        let snapshot = Snapshot::parse(bytes)?;
        snapshot.verify(definition)?;
        Ok(snapshot)
    }

    /// Parses a snapshot with the lists that it contains. [`Snapshot::verify`] checks it against its definition.
    pub fn parse(bytes: &[u8]) -> Result<Snapshot, RestoreError> {
        let mut snapshot: Snapshot =
            serde_json::from_slice(bytes).map_err(|error| RestoreError::Unreadable(error.to_string()))?;
        let long = std::mem::take(&mut snapshot.long_lists);
        snapshot.lists.0.extend(long.0);
        Ok(snapshot)
    }

    /// Returns the lists that are stored separately from the snapshot.
    pub fn long_lists(&self) -> impl Iterator<Item = (&ListId, &List)> {
        self.lists.long()
    }

    /// Returns the ids of lists that were stored separately and have not been put back.
    pub fn missing_lists(&self) -> Vec<ListId> {
        let mut missing: Vec<_> =
            self.referenced_lists().filter(|id| !self.lists.0.contains_key(id)).cloned().collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Puts back a list that was stored separately.
    pub fn restore_list(&mut self, id: ListId, list: List) {
        self.lists.0.insert(id, list);
    }

    /// Removes the lists that no loop or fork needs any more.
    pub(crate) fn remove_unused_lists(&mut self) {
        if self.lists.0.is_empty() {
            return;
        }
        let named: BTreeSet<_> = self.referenced_lists().cloned().collect();
        self.lists.0.retain(|id, _| named.contains(id));
    }

    fn referenced_lists(&self) -> impl Iterator<Item = &ListId> {
        let frames = self.activations.iter().flat_map(|activation| &activation.frames);
        let frames = frames.chain(self.fork_instances.iter().flat_map(|fork_instance| &fork_instance.frames));
        let fork_instances =
            self.fork_instances.iter().filter_map(|fork_instance| fork_instance.list.as_ref());
        frames.filter_map(|frame| frame.list.as_ref()).chain(fork_instances)
    }

    /// Checks that the snapshot is valid for the definition and consistent in itself.
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
        let ends = self.finished.iter().chain(&self.last_end).filter_map(RunEnd::place);
        let named = named
            .chain(&*self.completed)
            .chain(self.fork_instances.iter().map(|fork_instance| &fork_instance.fork));
        let named = named.chain(ends);
        for place in named {
            if compiled.place(place).is_none() {
                return Err(RestoreError::UnknownPlace(place.clone()));
            }
        }
        if let Some(schema) = &compiled.context {
            let violations = schema.check(&self.context);
            if !violations.is_empty() {
                return Err(RestoreError::InvalidContext(violations));
            }
        }
        let contradictions = self.contradictions(definition);
        if contradictions.is_empty() { Ok(()) } else { Err(RestoreError::Contradiction(contradictions)) }
    }

    /// Returns all inconsistencies within the snapshot or with its definition. A valid snapshot has none.
    pub fn contradictions(&self, definition: &Definition) -> Vec<String> {
        let compiled = definition.compiled();
        let mut found = Vec::new();
        self.check_end(compiled, &mut found);
        self.check_ids(&mut found);
        for activation in &self.activations {
            self.check_activation(compiled, activation, &mut found);
        }
        for fork_instance in &self.fork_instances {
            self.check_fork_instance(compiled, fork_instance, &mut found);
        }
        found
    }

    fn check_end(&self, compiled: &Compiled, found: &mut Vec<String>) {
        for place in self.finished.iter().chain(&self.last_end).filter_map(RunEnd::place) {
            if !matches!(compiled.place(place).map(|node| &node.kind), Some(PlaceKind::End { .. })) {
                found.push(format!("the run ended in `{place}`, which is not an end place"));
            }
        }
        if self.is_terminal != self.finished.is_some() {
            found.push("`isTerminal` and `finished` contradict each other".into());
        }
        if self.is_terminal && !(self.activations.is_empty() && self.fork_instances.is_empty()) {
            found.push("the run has ended, but it still has activations or open forks".into());
        }
        if !self.is_terminal && self.activations.is_empty() && self.fork_instances.is_empty() {
            found.push("the run has not ended, but it is in no place".into());
        }
        if self.updated_at < self.created_at {
            found.push("`updatedAt` is earlier than `createdAt`".into());
        }
    }

    fn check_ids(&self, found: &mut Vec<String>) {
        let ids = || self.activations.iter().map(|a| a.id).chain(self.fork_instances.iter().map(|p| p.id));
        if !self.activations.is_sorted_by(|a, b| a.id < b.id)
            || !self.fork_instances.is_sorted_by(|a, b| a.id < b.id)
        {
            found.push("activations or fork instances are not sorted by number".into());
        }
        if ids().collect::<BTreeSet<_>>().len() != ids().count() || ids().any(|id| id >= self.next_id) {
            found.push(
                "the number of an activation or fork instance is used twice, or is not below `nextId`".into(),
            );
        }
    }

    fn check_activation(&self, compiled: &Compiled, activation: &Activation, found: &mut Vec<String>) {
        let (id, place) = (activation.id, &activation.place);
        let Some(node) = compiled.place(place) else { return };
        let waiting = activation.status == ActivationStatus::Waiting;
        let is_entry_blocked = activation.status == ActivationStatus::EntryBlocked;
        match node.kind {
            _ if is_entry_blocked => {}
            PlaceKind::Fork { .. } | PlaceKind::End { .. } | PlaceKind::Catch { .. } => {
                found.push(format!("activation {id} is in `{place}`, where no activation can stay"));
            }
            PlaceKind::Step | PlaceKind::Loop(_) if waiting => {
                found.push(format!("activation {id} waits in `{place}`, which is not a wait or a join"));
            }
            PlaceKind::Join(_) if waiting && !self.is_in_join_of_its_fork(compiled, activation) => {
                found.push(format!(
                    "activation {id} waits in join `{place}`, which does not belong to its fork"
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
                found.push(format!(
                    "activation {id} has a timer for `{}`, which is not a timer of its place",
                    timer.transition
                ));
            }
        }
    }

    /// Checks that the frames of an activation are loops and scopes that contain its place.
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
                found.push(format!(
                    "activation {id} has a frame of `{}`, which does not contain its place `{place}`",
                    frame.place
                ));
            }
        }
    }

    /// Returns true if the activation is in the join of its fork.
    fn is_in_join_of_its_fork(&self, compiled: &Compiled, activation: &Activation) -> bool {
        let fork_instance = activation.branch.and_then(|branch| self.fork_instance(branch.fork_instance));
        let fork = fork_instance.and_then(|fork_instance| compiled.place(&fork_instance.fork));
        match fork.map(|fork| &fork.kind) {
            Some(PlaceKind::Fork { join: Some(join), .. }) => compiled.places[*join].name == activation.place,
            _ => false,
        }
    }

    fn check_children(&self, node: &PlaceNode, activation: &Activation, found: &mut Vec<String>) {
        let (id, place) = (activation.id, &activation.place);
        let is_entry_blocked = activation.status == ActivationStatus::EntryBlocked;
        let expected =
            !is_entry_blocked && matches!(&node.kind, PlaceKind::Wait(wait) if wait.children.is_some());
        match &activation.children {
            None if expected => {
                found.push(format!("activation {id} in `{place}` has no record of its children"));
            }
            Some(_) if !expected => {
                found.push(format!("activation {id} has children, but `{place}` does not wait for children"));
            }
            Some(children) if children.ended.keys().any(|child| *child >= children.total) => {
                found.push(format!("activation {id} in `{place}` has an ended child that was never started"));
            }
            _ => {}
        }
    }

    fn check_branch(&self, branch: Option<Branch>, subject: &str, found: &mut Vec<String>) {
        let Some(branch) = branch else { return };
        match self.fork_instance(branch.fork_instance) {
            None => found.push(format!(
                "{subject} belongs to fork instance {}, which is not open",
                branch.fork_instance
            )),
            Some(fork_instance) if branch.index >= fork_instance.branches => {
                found.push(format!(
                    "{subject} is in branch {}, but the fork has only {} branches",
                    branch.index, fork_instance.branches
                ));
            }
            Some(_) => {}
        }
    }

    fn check_fork_instance(
        &self,
        compiled: &Compiled,
        fork_instance: &ForkInstance,
        found: &mut Vec<String>,
    ) {
        let id = fork_instance.id;
        self.check_branch(fork_instance.outer, &format!("fork instance {id}"), found);
        check_retried(compiled, &fork_instance.retried, &format!("fork instance {id}"), found);
        if fork_instance.outer.is_some_and(|outer| outer.fork_instance >= id) {
            found.push(format!("fork instance {id} is inside a later one"));
        }
        let Some(PlaceKind::Fork { branches, join, each }) =
            compiled.place(&fork_instance.fork).map(|node| &node.kind)
        else {
            found.push(format!("fork instance {id} is of `{}`, which is not a fork", fork_instance.fork));
            return;
        };
        if each.is_none() && fork_instance.branches as usize != branches.len() {
            let (has, should) = (fork_instance.branches, branches.len());
            found.push(format!(
                "fork instance {id} has {has} branches, but `{}` has {should}",
                fork_instance.fork
            ));
        }
        let alive = self.activations.iter().any(|a| a.branch.is_some_and(|b| b.fork_instance == id))
            || self.fork_instances.iter().any(|inner| inner.outer.is_some_and(|b| b.fork_instance == id));
        if !alive && (fork_instance.fired || join.is_none()) {
            found.push(format!("fork instance {id} is open, but none of its branches is active"));
        }
        let Some(join) = join.map(|join| &compiled.places[join]) else { return };
        let PlaceKind::Join(node) = &join.kind else { return };
        let cancel_rest = node.cancel_rest;
        let arrived = self.arrived(id, &join.name).count() + fork_instance.arrived as usize;
        let branches: BTreeSet<_> =
            self.arrived(id, &join.name).map(|activation| activation.branch).collect();
        if each.is_none() && branches.len() < arrived {
            found.push(format!("a branch of fork instance {id} waits twice in `{}`", join.name));
        }
        if fork_instance.fired && each.is_none() && arrived > 0 {
            found.push(format!(
                "the join of fork instance {id} has fired, but {arrived} branches still wait in it"
            ));
        }
        if fork_instance.fired && cancel_rest {
            found
                .push(format!("the join of fork instance {id} has fired and ended the other branches, but the instance is still open"));
        }
        let counts = self.counts_of_join(fork_instance, &join.name);
        if !fork_instance.fired && node.state(&join.name, fork_instance, counts) == JoinState::Fires {
            found.push(format!(
                "{arrived} branches of fork instance {id} have arrived, but the join has not fired"
            ));
        }
        if !fork_instance.fired && fork_instance.failed > fork_instance.arrived {
            let (failed, arrived) = (fork_instance.failed, fork_instance.arrived);
            found.push(format!(
                "{failed} branches of fork instance {id} have failed, but only {arrived} have arrived"
            ));
        }
    }

    pub(crate) fn fork_instance(&self, id: ForkInstanceId) -> Option<&ForkInstance> {
        self.fork_instances
            .binary_search_by_key(&id, |fork_instance| fork_instance.id)
            .ok()
            .map(|at| &self.fork_instances[at])
    }

    /// Returns the activations of a fork instance that wait in its join.
    /// Returns the number of branches of a fork instance that have arrived in its join, and of those that have failed.
    pub(crate) fn counts_of_join(&self, fork_instance: &ForkInstance, join: &Name) -> (u32, u32) {
        let (mut arrived, mut failed) = (fork_instance.arrived, fork_instance.failed);
        for activation in self.arrived(fork_instance.id, join) {
            arrived = arrived.saturating_add(1);
            failed = failed.saturating_add(u32::from(activation.has_failed));
        }
        (arrived, failed)
    }

    pub(crate) fn arrived<'a>(
        &'a self,
        fork_instance: ForkInstanceId,
        join: &'a Name,
    ) -> impl Iterator<Item = &'a Activation> {
        self.activations.iter().filter(move |activation| {
            activation.status == ActivationStatus::Waiting
                && activation.place == *join
                && activation.branch.is_some_and(|branch| branch.fork_instance == fork_instance)
        })
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn check_retried(compiled: &Compiled, retried: &BTreeMap<Name, u32>, subject: &str, found: &mut Vec<String>) {
    for transition in retried.keys().filter(|transition| !compiled.has_retry_target(transition)) {
        found.push(format!("{subject} counts retries of `{transition}`, which has no retry target"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FORMAT: &str = include_str!("../tests/formats/snapshot.json");

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    /// Returns an activation in a loop that waits for three children.
    fn waiting(list: &ListId, at: Timestamp) -> Activation {
        let failure = Failure::new("outOfStock", "there is none left").non_retryable();
        let ended = [
            (0, ChildEnd::Completed { output: json!("shipped") }),
            (1, ChildEnd::Failed { error: failure }),
            (2, ChildEnd::Cancelled),
        ];
        Activation {
            id: 4,
            place: "parcels".into(),
            status: ActivationStatus::Waiting,
            since: at,
            branch: Some(Branch { fork_instance: 2, index: 1 }),
            position: vec![1, 0],
            frames: vec![Frame {
                place: "lines".into(),
                round: 1,
                before_page: 0,
                list: Some(list.clone()),
                results: vec![json!({"id": "r-1"}), Value::Null],
                hidden: object(&json!({"line": "outer"})),
            }],
            locals: object(&json!({"line": {"sku": "b"}, "prompt": {"title": "Ship?"}})),
            retried: [("charge".into(), 2)].into(),
            timers: vec![Timer { transition: "late".into(), at: at.plus_ms(60_000) }],
            received: Some(json!({"by": "ann"})),
            entry_value: EntryValue::Nothing,
            children: Some(Children { total: 4, ended: ended.into() }),
            has_failed: false,
        }
    }

    /// Returns an activation whose entry is blocked and that brings this value.
    fn blocked(id: ActivationId, entry_value: EntryValue, at: Timestamp) -> Activation {
        Activation {
            id,
            place: "lines".into(),
            status: ActivationStatus::EntryBlocked,
            since: at,
            branch: None,
            position: Vec::new(),
            frames: Vec::new(),
            locals: Map::new(),
            retried: BTreeMap::new(),
            timers: Vec::new(),
            received: None,
            entry_value,
            children: None,
            has_failed: false,
        }
    }

    fn fork_instance(list: &ListId) -> ForkInstance {
        ForkInstance {
            id: 2,
            fork: "each".into(),
            branches: 3,
            fired: true,
            outer: Some(Branch { fork_instance: 1, index: 0 }),
            list: Some(list.clone()),
            started: 3,
            arrived: 1,
            failed: 1,
            results: [(0, json!(7))].into(),
            frames: vec![Frame {
                place: "attempt".into(),
                round: 0,
                before_page: 0,
                list: None,
                results: Vec::new(),
                hidden: Map::new(),
            }],
            position: vec![1],
            locals: object(&json!({"region": "south"})),
            retried: [("ask".into(), 1)].into(),
        }
    }

    /// Databases and tokens contain this format. It has every field, and every variant of the values in it.
    #[test]
    fn every_field_of_the_format_is_fixed() {
        let at = Timestamp::from_millis(1_700_000_000_000);
        let (id, list) = List::new(vec![json!("a"), json!({"sku": "b"})]);
        let violation = SchemaViolation {
            pointer: "/sku".to_owned(),
            keyword: "type".to_owned(),
            message: "must be a string".to_owned(),
        };
        let failed = Failure { errors: vec![violation], ..Failure::new("invalidInput", "not valid") };
        let snapshot = Snapshot {
            instance_id: RunId::nil(),
            workflow: "order".into(),
            definition_version: 3,
            definition_hash: serde_json::from_value(json!("0123456789abcdef".repeat(4))).expect("a hash"),
            version: 9,
            activations: vec![
                waiting(&id, at),
                blocked(5, EntryValue::Value(json!(12.5)), at),
                blocked(6, EntryValue::Failed(failed), at),
                blocked(7, EntryValue::LeaveLoop, at),
            ],
            fork_instances: vec![fork_instance(&id)],
            completed: Arc::new(["begin".into()].into()),
            context: Arc::new(json!({"amount": 12.5, "note": "§"})),
            session: Arc::new(object(&json!({"cart": ["a"]}))),
            lists: Lists([(id, list)].into()),
            long_lists: Lists::default(),
            is_terminal: true,
            finished: Some(RunEnd::Completed { place: "done".into(), output: Some(json!({"paid": true})) }),
            last_end: Some(RunEnd::Cancelled),
            next_id: 8,
            created_at: at,
            updated_at: at.plus_ms(1_500),
        };
        let written = serde_json::to_value(&snapshot).expect("a snapshot is plain data");
        let fixed: Value = serde_json::from_str(FORMAT).expect("the file is JSON");
        let shown = serde_json::to_string_pretty(&written).expect("plain data");
        assert_eq!(written, fixed, "{shown}");
        assert_eq!(serde_json::from_str::<Snapshot>(FORMAT).expect("the file is a snapshot"), snapshot);
    }
}
