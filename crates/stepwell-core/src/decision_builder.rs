//! The building blocks of a decision: leaving and entering places, opening forks, firing joins, ending the run.
//!
//! A [`DecisionBuilder`] works on a copy of the snapshot and records what it did. Dispatch chooses the operations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::definition::{
    BackoffNode, Compiled, JoinNode, PlaceIndex, PlaceKind, TransitionNode, TransitionTriggerNode, WaitNode,
};
use crate::dispatch::{Change, Input};
use crate::expr::{Budget, Expr};
use crate::frame::Frame;
use crate::guard::View;
use crate::history::{HistoryEntry, truncate_value};
use crate::ids::Name;
use crate::join::JoinState;
use crate::limits::json_bytes;
use crate::patch::Patch;
use crate::refusal::{DecideError, Failure};
use crate::retry::Retry;
use crate::rounds::merge_vars;
use crate::schema::SchemaViolation;
use crate::snapshot::{
    Activation, ActivationId, ActivationStatus, Branch, CORRELATION, ChildEnd, Children, EntryValue,
    ForkInstance, ForkInstanceId, PROMPT, RunEnd, Snapshot, Timer,
};
use crate::spec::{ChildRule, Completion, LoopStep};
use crate::template::Template;
use crate::time::{Timestamp, duration_ms};

/// A transition that could fire from an activation. Its guard is not evaluated yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) transition: &'a TransitionNode,
    pub(crate) activation: &'a Activation,
}

/// The transitions that an input could fire, in the order in which they are tried.
pub(crate) struct Candidates;

impl Candidates {
    pub(crate) fn of<'a>(
        compiled: &'a Compiled,
        snapshot: &'a Snapshot,
        event: &Input,
    ) -> Vec<Candidate<'a>> {
        let leaving = Candidates::leaving(compiled, snapshot);
        let takes = |(_, found): &(usize, Candidate<'_>)| takes(found.transition, found.activation, event);
        let mut found: Vec<_> = leaving.filter(takes).collect();
        found.sort_by_key(|(index, found)| {
            (std::cmp::Reverse(found.transition.priority), *index, found.activation.id)
        });
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns every transition that leaves a place of the run, with its number in the definition.
    pub(crate) fn leaving<'a>(
        compiled: &'a Compiled,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = (usize, Candidate<'a>)> {
        snapshot.activations.iter().flat_map(move |activation| {
            let out = compiled.place(&activation.place).map_or(&[][..], |place| place.out.as_slice());
            out.iter().map(move |&index| {
                (index, Candidate { transition: &compiled.transitions[index], activation })
            })
        })
    }
}

fn takes(transition: &TransitionNode, activation: &Activation, event: &Input) -> bool {
    let active = activation.status == ActivationStatus::Active;
    match (&transition.on, event) {
        (TransitionTriggerNode::Signal(name), Input::Signalled { signal, .. }) => active && name == signal,
        (TransitionTriggerNode::Signal(name), Input::Answered { activation: only, signal, .. }) => {
            active && name == signal && *only == activation.id
        }
        (TransitionTriggerNode::Auto, Input::Advanced { activation: only }) => {
            active && only.is_none_or(|only| only == activation.id)
        }
        (on, Input::TimerFired { activation: which }) => on.is_timer() && *which == activation.id,
        _ => false,
    }
}

/// The state that an activation takes along into the next place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    pub(crate) branch: Option<Branch>,
    pub(crate) position: Vec<u32>,
    pub(crate) locals: Map<String, Value>,
    pub(crate) retried: BTreeMap<Name, u32>,
    /// The enclosing loops and error scopes, outermost first.
    pub(crate) frames: Vec<Frame>,
    /// Number of children started by the transition that leads to the next place.
    pub(crate) children: u32,
    /// The result for a join or loop.
    pub(crate) entry_value: EntryValue,
}

impl Origin {
    /// Makes the list that a nested loop or join saves the result of that loop or join, like the result of any other
    /// last step.
    pub(crate) fn set_collected_result(&mut self, results: &[Value]) {
        if self.branch.is_some() || !self.frames.is_empty() {
            self.entry_value = EntryValue::Value(Value::Array(results.to_vec()));
        }
    }

    /// Takes the state of an activation that has left its place.
    pub(crate) fn of(left: Activation) -> Self {
        Origin {
            branch: left.branch,
            position: left.position,
            locals: left.locals,
            retried: left.retried,
            frames: left.frames,
            children: 0,
            entry_value: left.entry_value,
        }
    }

    /// Removes the prompt once it is answered, so that later places do not show it.
    pub(crate) fn remove_answered_prompt(&mut self, transition: &TransitionNode, was_resolved: bool) {
        if was_resolved || transition.on.signal().is_some() {
            self.locals.remove(PROMPT);
        }
    }

    pub(crate) fn step_loop(&mut self, step: Option<LoopStep>) {
        match step {
            None => {}
            Some(LoopStep::Enter) => self.position.push(0),
            Some(LoopStep::Leave) => drop(self.position.pop()),
            Some(LoopStep::Next) => {
                if let Some(iteration) = self.position.last_mut() {
                    *iteration = iteration.saturating_add(1);
                }
            }
        }
    }
}

/// The way in which a run reaches its target place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It enters the place.
    In,
    /// Its entry is blocked, because the place cannot be entered now.
    EntryBlocked,
}

/// The operations of one decision, on a copy of the snapshot.
pub(crate) struct DecisionBuilder<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) next: Snapshot,
    pub(crate) now: Timestamp,
    /// Number of loop rounds that this change has started.
    pub(crate) rounds: u32,
    /// Nesting depth of places being entered, where entering one leads into the next.
    pub(crate) depth: u32,
    /// Forks over lists that start another branch as soon as the current place is entered.
    pub(crate) to_begin: VecDeque<ForkInstanceId>,
    entered: Vec<Name>,
    exited: Vec<Name>,
    pub(crate) transitions: Vec<Name>,
    ended: Vec<ActivationId>,
    /// Fork instances whose branches were ended by this decision. No place is entered in them any more.
    closed: BTreeSet<ForkInstanceId>,
    pub(crate) stopped: Option<Failure>,
}

impl<'a> DecisionBuilder<'a> {
    pub(crate) fn new(compiled: &'a Compiled, next: Snapshot, now: Timestamp) -> Self {
        DecisionBuilder {
            compiled,
            next,
            now,
            rounds: 0,
            depth: 0,
            to_begin: VecDeque::new(),
            entered: Vec::new(),
            exited: Vec::new(),
            transitions: Vec::new(),
            ended: Vec::new(),
            closed: BTreeSet::new(),
            stopped: None,
        }
    }

    /// Removes an activation from its place, and marks the place as completed.
    pub(crate) fn leave(&mut self, id: ActivationId) -> Option<Activation> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut activation = self.next.activations.remove(at);
        self.remove_prompt(&mut activation);
        self.complete(&activation.place);
        self.exited.push(activation.place.clone());
        Some(activation)
    }

    /// Removes the prompt and the correlation value of a wait place that is left.
    fn remove_prompt(&self, left: &mut Activation) {
        let Some(PlaceKind::Wait(wait)) = self.compiled.place(&left.place).map(|node| &node.kind) else {
            return;
        };
        if wait.prompt.is_some() {
            left.locals.remove(PROMPT);
        }
        if wait.event.is_some() {
            left.locals.remove(CORRELATION);
        }
    }

    fn complete(&mut self, place: &Name) {
        if !self.next.completed.contains(place) {
            Arc::make_mut(&mut self.next.completed).insert(place.clone());
        }
    }

    /// Removes an activation from its place by force, without marking the place as completed.
    pub(crate) fn take(&mut self, id: ActivationId) -> Option<Activation> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut activation = self.next.activations.remove(at);
        self.remove_prompt(&mut activation);
        self.end(std::slice::from_ref(&activation));
        Some(activation)
    }

    /// Enters a place of any kind, and then the places that it leads to.
    pub(crate) fn enter(
        &mut self,
        place: PlaceIndex,
        origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        self.depth += 1;
        let mut entered = self.enter_one(place, origin, event);
        if self.depth == 1 {
            entered = entered.and_then(|()| self.begin_branches(event));
        }
        self.depth -= 1;
        entered
    }

    /// Starts the queued branches of forks over lists.
    ///
    /// This is a loop and not a recursion, because very many branches may end as soon as they have started.
    fn begin_branches(&mut self, event: &Value) -> Result<(), DecideError> {
        while let Some(fork_instance) = self.to_begin.pop_front() {
            self.begin_branch(fork_instance, event)?;
        }
        Ok(())
    }

    fn enter_one(&mut self, place: PlaceIndex, mut origin: Origin, event: &Value) -> Result<(), DecideError> {
        if self.next.is_terminal
            || origin.branch.is_some_and(|branch| self.closed.contains(&branch.fork_instance))
        {
            return Ok(());
        }
        let compiled = self.compiled;
        let node = &compiled.places[place];
        if !origin.frames.is_empty() {
            self.leave_frames(place, &mut origin);
        }
        match &node.kind {
            PlaceKind::Step => {
                self.activate_or_fail(place, ActivationStatus::Active, origin, event).map(drop)
            }
            PlaceKind::Wait(wait) => self.enter_wait(place, wait, origin, event),
            PlaceKind::Fork { each: Some(each), join, .. } => {
                self.open_each(place, each, *join, origin, event)
            }
            PlaceKind::Fork { branches, .. } => self.open(&node.name, branches, &origin, event),
            PlaceKind::Join(join) => self.arrive(place, join, origin, event),
            PlaceKind::Loop(round) => self.enter_loop(place, round, origin, event),
            PlaceKind::Catch { local, first } => self.enter_catch(place, local, *first, origin, event),
            PlaceKind::End { output, error_place } => {
                let made =
                    output.as_ref().map(|output| self.render_output(&node.name, output, &origin, event));
                match made.transpose() {
                    Ok(output) => self.reach_end(&node.name, output),
                    Err(error) => return self.handle_error(*error_place, origin, error),
                }
                Ok(())
            }
        }
    }

    /// Creates an activation in a place. If the due time of a timer cannot be computed, enters the error place of
    /// that transition instead.
    fn activate_or_fail(
        &mut self,
        place: PlaceIndex,
        status: ActivationStatus,
        origin: Origin,
        event: &Value,
    ) -> Result<Option<ActivationId>, DecideError> {
        let out = self.compiled.places[place].out.iter().map(|&index| &self.compiled.transitions[index]);
        for transition in
            out.filter(|transition| transition.error_place.is_some() && transition.on.is_timer())
        {
            if let Err(error) = self.timer(transition, &origin.locals, event) {
                return self.handle_error(transition.error_place, origin, error).map(|()| None);
            }
        }
        self.activate(place, status, origin, event).map(Some)
    }

    /// Creates an activation in a place.
    pub(crate) fn activate(
        &mut self,
        place: PlaceIndex,
        status: ActivationStatus,
        origin: Origin,
        event: &Value,
    ) -> Result<ActivationId, DecideError> {
        let node = &self.compiled.places[place];
        self.compiled.limits.activations("the run", self.next.activations.len() + 1)?;
        let timers = match (&node.kind, status) {
            (PlaceKind::Join(_), ActivationStatus::Waiting) => Vec::new(),
            _ => self.timers(place, &origin.locals, event)?,
        };
        self.entered.push(node.name.clone());
        let id = self.allocate_id();
        // The result of a join is passed on to the enclosing join or loop.
        let entry_value =
            if matches!(node.kind, PlaceKind::Join(_)) { origin.entry_value } else { EntryValue::Nothing };
        self.next.activations.push(Activation {
            id,
            place: node.name.clone(),
            status,
            since: self.now,
            branch: origin.branch,
            position: origin.position,
            frames: origin.frames,
            locals: origin.locals,
            retried: origin.retried,
            timers,
            received: None,
            entry_value,
            children: None,
            has_failed: false,
        });
        Ok(id)
    }

    /// Creates an activation whose entry into the place is blocked.
    pub(crate) fn block_entry(&mut self, place: PlaceIndex, mut origin: Origin, event: &Value) {
        self.leave_frames(place, &mut origin);
        let id = self.allocate_id();
        self.next.activations.push(Activation {
            id,
            place: self.compiled.places[place].name.clone(),
            status: ActivationStatus::EntryBlocked,
            since: self.now,
            branch: origin.branch,
            position: origin.position,
            frames: origin.frames,
            locals: origin.locals,
            retried: origin.retried,
            timers: Vec::new(),
            received: (!event.is_null()).then(|| event.clone()),
            entry_value: origin.entry_value,
            children: None,
            has_failed: false,
        });
    }

    /// Removes an activation whose entry was blocked, to enter the place now.
    pub(crate) fn unblock_entry(&mut self, id: ActivationId) -> Option<(Origin, Value)> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut blocked = self.next.activations.remove(at);
        let event = blocked.received.take().unwrap_or_default();
        let entry_value = std::mem::take(&mut blocked.entry_value);
        Some((Origin { entry_value, ..Origin::of(blocked) }, event))
    }

    pub(crate) fn allocate_id(&mut self) -> u64 {
        let id = self.next.next_id;
        self.next.next_id += 1;
        id
    }

    fn timers(
        &self,
        place: PlaceIndex,
        locals: &Map<String, Value>,
        event: &Value,
    ) -> Result<Vec<Timer>, DecideError> {
        let out = self.compiled.places[place].out.iter();
        out.filter_map(|&index| self.timer(&self.compiled.transitions[index], locals, event).transpose())
            .collect()
    }

    /// Computes the timer of a transition whose place is entered now. Returns `None` if the transition has no timer.
    pub(crate) fn timer(
        &self,
        transition: &TransitionNode,
        locals: &Map<String, Value>,
        event: &Value,
    ) -> Result<Option<Timer>, DecideError> {
        let (expr, word) = match &transition.on {
            TransitionTriggerNode::AfterMs(ms) => {
                let timer = Timer { transition: transition.id.clone(), at: self.now.plus_ms(*ms) };
                return Ok(Some(timer));
            }
            TransitionTriggerNode::Until(expr) => (expr, "until"),
            TransitionTriggerNode::After(expr) => (expr, "after"),
            TransitionTriggerNode::Backoff(timer) => {
                let at = self.backoff(&transition.id, timer, locals, event)?;
                return Ok(Some(Timer { transition: transition.id.clone(), at }));
            }
            TransitionTriggerNode::Auto | TransitionTriggerNode::Signal(_) => return Ok(None),
        };
        let view = View::new(&self.next, locals, event, self.now);
        let value = expr.eval(&view, &mut Budget::default()).map_err(|error| {
            let at = format!("`{word}` of transition `{}`", transition.id);
            DecideError::Expression { at, error }
        })?;
        let at = match word {
            "until" => instant(value.as_ref()),
            _ => value.as_ref().and_then(duration_ms).map(|ms| self.now.plus_ms(ms)),
        };
        let at = at.ok_or_else(|| DecideError::InvalidTimestamp {
            transition: transition.id.clone(),
            word,
            found: value.map_or_else(|| "nothing".to_owned(), |value| value.to_string()),
        })?;
        Ok(Some(Timer { transition: transition.id.clone(), at }))
    }

    /// Computes the time of the next retry of a block. Once the budget is used up, raises the error of the last
    /// attempt again.
    fn backoff(
        &self,
        transition: &Name,
        timer: &BackoffNode,
        locals: &Map<String, Value>,
        event: &Value,
    ) -> Result<Timestamp, DecideError> {
        let view = View::new(&self.next, locals, event, self.now);
        let number = |expr: &Expr| {
            let found = expr.eval(&view, &mut Budget::default()).map_err(|error| {
                DecideError::Expression { at: format!("backoff of transition `{transition}`"), error }
            })?;
            Ok::<_, DecideError>(found.as_ref().and_then(Value::as_f64).unwrap_or_default())
        };
        // A count of retries is small and not negative.
        let tries = number(&timer.tries)? as u32;
        // The guard of the transition ends the retries, so the policy has a delay for each of them.
        let retry = Retry { attempts: u32::MAX, ..timer.retry.clone() };
        let delay = retry.jittered_delay(tries.saturating_add(1), self.next.instance_id, self.next.next_id);
        let at = self.now.plus_ms(delay.unwrap_or_default());
        let first = timer.since.as_ref().map(number).transpose()?;
        let first = first.map(|ms| Timestamp::from_millis(ms as i64)).unwrap_or(self.now);
        if retry.is_within_budget(first, at) {
            return Ok(at);
        }
        let held = locals.get("error").and_then(|held| serde_json::from_value(held.clone()).ok());
        let spent = || Failure::new("retryBudget", format!("the budget of `{transition}` is used up"));
        Err(DecideError::Raised(held.unwrap_or_else(spent)))
    }

    fn enter_wait(
        &mut self,
        place: PlaceIndex,
        wait: &WaitNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        if let Some(prompt) = &wait.prompt {
            match self.render_prompt(place, prompt, &origin, event) {
                Ok(rendered) => drop(origin.locals.insert(PROMPT.to_owned(), rendered)),
                Err(error) => return self.handle_error(wait.error_place, origin, error),
            }
        }
        if let Some(key) = wait.event.as_ref().and_then(|event| event.key.as_ref()) {
            match self.correlate(place, key, &origin, event) {
                Ok(found) => drop(origin.locals.insert(CORRELATION.to_owned(), found)),
                Err(error) => return self.handle_error(wait.error_place, origin, error),
            }
        }
        let children = origin.children;
        let Some(id) = self.activate_or_fail(place, ActivationStatus::Waiting, origin, event)? else {
            return Ok(());
        };
        if wait.children.is_none() {
            return Ok(());
        }
        if let Some(activation) = self.activation_mut(id) {
            activation.children = Some(Children { total: children, ended: Default::default() });
        }
        self.apply_child_rule(id, wait)
    }

    /// Evaluates the correlation value of the run.
    fn correlate(
        &self,
        place: PlaceIndex,
        key: &Expr,
        origin: &Origin,
        event: &Value,
    ) -> Result<Value, DecideError> {
        let view = View::new(&self.next, &origin.locals, event, self.now);
        let at = || format!("correlation of place `{}`", self.compiled.places[place].name);
        let found = key.eval(&view, &mut Budget::default());
        let found = found.map_err(|error| DecideError::Expression { at: at(), error })?;
        let found = found.ok_or_else(|| DecideError::Undefined {
            at: at(),
            expr: key.source().to_owned(),
            missing: key.missing(&view, &mut Budget::default()),
        })?;
        self.compiled.limits.nesting("the correlation", &found)?;
        Ok(found)
    }

    fn render_prompt(
        &self,
        place: PlaceIndex,
        prompt: &Template,
        origin: &Origin,
        event: &Value,
    ) -> Result<Value, DecideError> {
        let view = View::new(&self.next, &origin.locals, event, self.now);
        let rendered = prompt.render(&view, &mut Budget::default()).map_err(|error| {
            let at = format!("prompt of place `{}`", self.compiled.places[place].name);
            DecideError::Template { at, error }
        })?;
        self.compiled.limits.nesting("the prompt", &rendered)?;
        Ok(rendered)
    }

    /// Records the end of a child and applies the rule of the wait.
    pub(crate) fn child_ended(
        &mut self,
        id: ActivationId,
        wait: &WaitNode,
        child: u32,
        end: ChildEnd,
    ) -> Result<(), DecideError> {
        if let Some(children) = self.activation_mut(id).and_then(|activation| activation.children.as_mut()) {
            children.ended.insert(child, end);
        }
        self.apply_child_rule(id, wait)
    }

    /// Resolves a wait for children if its rule is satisfied. Enters the error place if the rule can no longer be
    /// satisfied.
    fn apply_child_rule(&mut self, id: ActivationId, wait: &WaitNode) -> Result<(), DecideError> {
        let Some(rule) = wait.children else { return Ok(()) };
        let Some(children) = self.next.activation(id).and_then(|activation| activation.children.as_ref())
        else {
            return Ok(());
        };
        match evaluate_child_rule(rule, children) {
            Verdict::Open => Ok(()),
            Verdict::Fulfilled => {
                let ends: Vec<_> =
                    children.ended.iter().map(|(child, end)| json!({"child": child, "end": end})).collect();
                self.resolve(id, json!({ "children": ends }));
                Ok(())
            }
            Verdict::Impossible => self.fail_child_wait(id, wait, rule),
        }
    }

    fn fail_child_wait(
        &mut self,
        id: ActivationId,
        wait: &WaitNode,
        rule: ChildRule,
    ) -> Result<(), DecideError> {
        let Some(activation) = self.next.activation(id) else { return Ok(()) };
        let place = &activation.place;
        let failed = activation.children.iter().flat_map(|children| children.ended.values());
        let failed = failed.filter_map(|end| match end {
            ChildEnd::Failed { error } => Some(format!(": {error}")),
            ChildEnd::Completed { .. } | ChildEnd::Cancelled => None,
        });
        let why = failed.into_iter().next().unwrap_or_default();
        let message =
            format!("the children that `{place}` waits for can no longer satisfy the rule {rule:?}{why}");
        let failure = Failure::new("childrenFailed", message);
        let Some(error_place) = wait.error_place else {
            self.stopped = Some(failure);
            return Ok(());
        };
        let Some(left) = self.leave(id) else { return Ok(()) };
        self.leave_to_error_place(error_place, left, &failure)
    }

    /// Enters the error place of an activation that has left its place, with the failure as the local `error`.
    pub(crate) fn leave_to_error_place(
        &mut self,
        place: PlaceIndex,
        left: Activation,
        failure: &Failure,
    ) -> Result<(), DecideError> {
        self.enter_error_place(place, Origin::of(left), failure, Way::In)
    }

    /// Enters an error place with a failure. Catch, join and loop places get the failure as the result of the
    /// activation, other places as the local `error`.
    pub(crate) fn enter_error_place(
        &mut self,
        place: PlaceIndex,
        mut origin: Origin,
        failure: &Failure,
        way: Way,
    ) -> Result<(), DecideError> {
        let error = serde_json::to_value(failure).expect("a failure is plain data");
        match self.compiled.places[place].kind {
            PlaceKind::Catch { .. } | PlaceKind::Join(_) | PlaceKind::Loop(_) => {
                origin.entry_value = EntryValue::Failed(failure.clone());
            }
            _ => {
                // An error scope that is left takes its local with it, so the error is set afterwards.
                self.leave_frames(place, &mut origin);
                origin.locals.insert("error".to_owned(), error.clone());
            }
        }
        self.enter_or_block(place, origin, &error, way)
    }

    /// Enters a place, or records that its entry is blocked.
    pub(crate) fn enter_or_block(
        &mut self,
        place: PlaceIndex,
        origin: Origin,
        event: &Value,
        way: Way,
    ) -> Result<(), DecideError> {
        match way {
            Way::In => self.enter(place, origin, event),
            Way::EntryBlocked => {
                self.block_entry(place, origin, event);
                Ok(())
            }
        }
    }

    /// Makes a waiting activation active, with the payload that it received. Its timers are cancelled.
    pub(crate) fn resolve(&mut self, id: ActivationId, received: Value) {
        if let Some(activation) = self.activation_mut(id) {
            activation.status = ActivationStatus::Active;
            activation.received = (!received.is_null()).then_some(received);
            activation.timers.clear();
        }
    }

    fn activation_mut(&mut self, id: ActivationId) -> Option<&mut Activation> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        self.next.activations.get_mut(at)
    }

    /// Enters a fork: creates a fork instance, and an activation in each branch.
    fn open(
        &mut self,
        fork: &Name,
        branches: &[PlaceIndex],
        origin: &Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let id = self.allocate_id();
        let fork_instance = ForkInstance {
            branches: branches.len() as u32,
            ..ForkInstance::opened(id, fork.clone(), origin)
        };
        let starts: Vec<_> = (0..fork_instance.branches).map(|index| fork_instance.inside(index)).collect();
        self.next.fork_instances.push(fork_instance);
        self.pass_through(fork);
        for (start, &first) in starts.into_iter().zip(branches) {
            self.enter(first, start, event)?;
        }
        Ok(())
    }

    /// Records that a place was entered, left and completed at once.
    pub(crate) fn pass_through(&mut self, place: &Name) {
        self.entered.push(place.clone());
        self.exited.push(place.clone());
        self.complete(place);
    }

    /// Handles a branch that reaches its join. The branch is counted, makes the join fire, or is absorbed.
    fn arrive(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let join = self.compiled.places[place].name.clone();
        let Some(branch) = origin.branch else { return Ok(()) };
        let Some(fork_instance) = self.next.fork_instance(branch.fork_instance) else { return Ok(()) };
        let known =
            self.next.arrived(branch.fork_instance, &join).any(|waiting| waiting.branch == Some(branch));
        if fork_instance.fired || known {
            return Ok(());
        }
        let is_each = fork_instance.list.is_some();
        let has_failed = node.tolerate.is_some() && matches!(origin.entry_value, EntryValue::Failed(_));
        let collected = match self.result_for_join(place, node, &mut origin, event) {
            Ok(collected) => collected,
            Err(error) => return self.fail_join(node.error_place, (branch, &origin.locals), error),
        };
        if is_each {
            return self.arrive_each(place, node, (branch, has_failed), collected, event);
        }
        let Some(fork_instance) = self.next.fork_instance(branch.fork_instance) else { return Ok(()) };
        // Whether the branch waits or is the last one, it counts among those that have arrived.
        let (arrived, failed) = self.next.counts_of_join(fork_instance, &join);
        let state = node.state(&join, fork_instance, (arrived + 1, failed + u32::from(has_failed)));
        if let JoinState::Fails(failure) = &state {
            if node.error_place.is_some() {
                let error = DecideError::Raised(failure.clone());
                return self.fail_join(node.error_place, (branch, &origin.locals), error);
            }
            self.stopped = Some(failure.clone());
        }
        let id = self.activate(place, ActivationStatus::Waiting, origin, event)?;
        if let Some(waiting) = self.activation_mut(id) {
            waiting.received = collected;
            waiting.has_failed = has_failed;
        }
        if state != JoinState::Fires {
            return Ok(());
        }
        // The last branch does not stay in the join, so its entry is not recorded.
        self.entered.pop();
        self.fire_with_arrived(place, node, branch.fork_instance, event)
    }

    /// Fires a join with the branches that wait in it.
    fn fire_with_arrived(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        id: ForkInstanceId,
        event: &Value,
    ) -> Result<(), DecideError> {
        let join = &self.compiled.places[place].name;
        let Some(fork_instance) = self.next.fork_instance(id) else { return Ok(()) };
        let (mut after, branches) = (fork_instance.after(), fork_instance.branches);
        let is_one = |one: &Activation| {
            one.status == ActivationStatus::Waiting && one.place == *join && is_of(one.branch, id)
        };
        let (mut arrived, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.next.activations).into_iter().partition(is_one);
        self.next.activations = going;
        arrived.sort_by_key(|one| one.branch);
        merge_vars(&mut after, arrived.iter().map(|one| &one.locals));
        let result = |one: Activation| Some((one.branch?.index, one.received.unwrap_or_default()));
        let results = node.results(branches, arrived.into_iter().filter_map(result).collect());
        if node.cancel_rest {
            self.end_branches(id);
        }
        if let Some(fork_instance) = self.fork_instance_mut(id) {
            fork_instance.fired = true;
        }
        self.fire_join(place, after, results, event)
    }

    pub(crate) fn fork_instance_mut(&mut self, id: ForkInstanceId) -> Option<&mut ForkInstance> {
        let at = self.next.fork_instances.binary_search_by_key(&id, |fork_instance| fork_instance.id).ok()?;
        self.next.fork_instances.get_mut(at)
    }

    /// Applies the rules of this definition to a run that comes from another definition.
    ///
    /// Joins that have enough branches fire, joins that end the other branches end them, and waits for children apply
    /// their rule.
    pub(crate) fn reapply_rules(&mut self) -> Result<(), DecideError> {
        let fork_instances: Vec<_> =
            self.next.fork_instances.iter().map(|fork_instance| fork_instance.id).collect();
        fork_instances.into_iter().try_for_each(|fork_instance| self.reapply_join_rule(fork_instance))?;
        let compiled = self.compiled;
        let waiting = self.next.activations.iter().filter(|a| a.status == ActivationStatus::Waiting);
        let waiting: Vec<_> = waiting.map(|a| (a.id, compiled.place(&a.place))).collect();
        for (id, place) in waiting {
            if let Some(PlaceKind::Wait(wait)) = place.map(|place| &place.kind) {
                self.apply_child_rule(id, wait)?;
            }
        }
        self.begin_branches(&Value::Null)
    }

    fn reapply_join_rule(&mut self, id: ForkInstanceId) -> Result<(), DecideError> {
        let Some(fork_instance) = self.next.fork_instance(id) else { return Ok(()) };
        let Some(join) = self.join_of(fork_instance) else { return Ok(()) };
        let Some(&place) = self.compiled.by_name.get(join) else { return Ok(()) };
        let PlaceKind::Join(node) = &self.compiled.places[place].kind else { return Ok(()) };
        if fork_instance.fired {
            if node.cancel_rest {
                self.end_branches(id);
            }
            return Ok(());
        }
        let arrived = self.next.arrived(id, join).count() as u32;
        if arrived == 0 {
            return Ok(());
        }
        match node.state(join, fork_instance, self.next.counts_of_join(fork_instance, join)) {
            JoinState::Open => Ok(()),
            JoinState::Fires => self.fire_with_arrived(place, node, id, &Value::Null),
            JoinState::Fails(failure) if node.error_place.is_none() => {
                self.stopped = Some(failure);
                Ok(())
            }
            JoinState::Fails(failure) => {
                let branch = Branch { fork_instance: id, index: 0 };
                self.fail_join(node.error_place, (branch, &Map::new()), DecideError::Raised(failure))
            }
        }
    }

    /// Ends all activations of a fork instance and of the fork instances inside it.
    pub(crate) fn end_branches(&mut self, fork_instance: ForkInstanceId) {
        let mut inside = BTreeSet::from([fork_instance]);
        for inner in &self.next.fork_instances {
            if inner.outer.is_some_and(|outer| inside.contains(&outer.fork_instance)) {
                inside.insert(inner.id);
            }
        }
        let gone =
            |branch: Option<Branch>| branch.is_some_and(|branch| inside.contains(&branch.fork_instance));
        let (ended, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.next.activations).into_iter().partition(|a| gone(a.branch));
        self.next.activations = going;
        self.next.fork_instances.retain(|open| open.id == fork_instance || !inside.contains(&open.id));
        self.closed.extend(inside);
        self.end(&ended);
    }

    /// Records activations that end without completing their places.
    fn end(&mut self, activations: &[Activation]) {
        self.ended.extend(activations.iter().map(|activation| activation.id));
        let places: BTreeSet<_> = activations.iter().map(|activation| &activation.place).collect();
        self.exited.extend(places.into_iter().cloned());
    }

    fn reach_end(&mut self, place: &Name, output: Option<Value>) {
        self.entered.push(place.clone());
        self.complete(place);
        let end = RunEnd::Completed { place: place.clone(), output };
        match self.compiled.completion() {
            Completion::FirstEnd => self.finish(end),
            Completion::AllBranches => self.next.last_end = Some(end),
        }
    }

    fn render_output(
        &self,
        place: &Name,
        template: &Template,
        origin: &Origin,
        event: &Value,
    ) -> Result<Value, DecideError> {
        let view = View::new(&self.next, &origin.locals, event, self.now);
        let output = template
            .render(&view, &mut Budget::default())
            .map_err(|error| DecideError::Template { at: format!("output of place `{place}`"), error })?;
        self.compiled.limits.nesting("the result", &output)?;
        let violations =
            self.compiled.output.as_ref().map(|schema| schema.check(&output)).unwrap_or_default();
        if violations.is_empty() {
            return Ok(output);
        }
        Err(DecideError::InvalidOutput { place: place.clone(), violations })
    }

    /// Ends the run and all of its activations.
    pub(crate) fn finish(&mut self, how: RunEnd) {
        self.end_all();
        self.next.finished = Some(how);
        self.next.is_terminal = true;
    }

    /// Ends all activations and fork instances of the run.
    pub(crate) fn end_all(&mut self) {
        let ended = std::mem::take(&mut self.next.activations);
        self.end(&ended);
        self.next.fork_instances.clear();
        self.next.last_end = None;
    }

    /// Changes the context. Returns false if there was nothing to change.
    ///
    /// The caller checks the context against its schema once all changes are applied.
    pub(crate) fn change_context(&mut self, patch: &Patch, whole: Option<&Arc<Value>>) -> bool {
        if patch.is_empty() && whole.is_none() {
            return false;
        }
        if let Some(whole) = whole {
            self.next.context = whole.clone();
        }
        if !patch.is_empty() {
            patch.apply(Arc::make_mut(&mut self.next.context));
        }
        true
    }

    /// Changes the session slots and checks their limits.
    pub(crate) fn change_session(&mut self, patch: &Patch) -> Result<(), DecideError> {
        if patch.is_empty() {
            return Ok(());
        }
        let mut session = Value::Object(Arc::unwrap_or_clone(std::mem::take(&mut self.next.session)));
        patch.apply(&mut session);
        let limits = &self.compiled.limits;
        limits.nesting("the session", &session)?;
        limits.session_bytes("the session", json_bytes(&session))?;
        let Value::Object(slots) = session else { return Err(DecideError::InvalidSession) };
        limits.session_keys("the session", slots.len())?;
        self.next.session = Arc::new(slots);
        Ok(())
    }

    /// Closes finished fork instances and builds the change: one version, one history entry.
    pub(crate) fn conclude(mut self, action: String, payload: &Value, fresh: bool) -> Change {
        self.close_fork_instances();
        if !fresh {
            self.next.version += 1;
        }
        self.next.updated_at = self.next.updated_at.max(self.now);
        self.next.remove_unused_lists();
        let entry = HistoryEntry {
            version: self.next.version,
            action,
            at: self.now,
            entered: self.entered,
            exited: self.exited,
            transitions: self.transitions,
            payload: truncate_value(payload, &self.compiled.limits),
            input: None,
            output: None,
            duration_us: None,
            actor: None,
        };
        Change { snapshot: self.next, entry, ended: self.ended, stopped: self.stopped }
    }

    /// Closes the fork instances whose branches have all ended. Ends the run if nothing is left, or stops it if a
    /// join can no longer fire.
    fn close_fork_instances(&mut self) {
        let mut index = self.next.fork_instances.len();
        while index > 0 {
            index -= 1;
            let fork_instance = &self.next.fork_instances[index];
            let id = fork_instance.id;
            let here = |branch: Option<Branch>| branch.is_some_and(|branch| branch.fork_instance == id);
            let nested = self.next.fork_instances.iter().any(|inner| here(inner.outer));
            let join = self.join_of(fork_instance);
            let waits_to_join = |a: &Activation| {
                a.status == ActivationStatus::Waiting && join.is_some_and(|join| a.place == *join)
            };
            let going = self.next.activations.iter().any(|a| here(a.branch) && !waits_to_join(a));
            if going || nested {
                continue;
            }
            match join {
                Some(join) if !fork_instance.fired => {
                    let arrived = self.next.arrived(id, join).count() + fork_instance.arrived as usize;
                    // A join that has failed has said why already.
                    if self.stopped.is_none() {
                        self.stopped = Some(self.unreached(join, fork_instance, arrived));
                    }
                }
                _ => drop(self.next.fork_instances.remove(index)),
            }
        }
        let nowhere = self.next.activations.is_empty() && self.next.fork_instances.is_empty();
        if nowhere && let Some(end) = self.next.last_end.take() {
            self.finish(end);
        }
    }

    fn join_of(&self, fork_instance: &ForkInstance) -> Option<&'a Name> {
        match &self.compiled.place(&fork_instance.fork)?.kind {
            PlaceKind::Fork { join, .. } => join.map(|join| &self.compiled.places[join].name),
            _ => None,
        }
    }

    fn unreached(&self, join: &Name, fork_instance: &ForkInstance, arrived: usize) -> Failure {
        let quorum = match self.compiled.place(join).map(|node| &node.kind) {
            Some(PlaceKind::Join(node)) => node.needed(fork_instance),
            _ => 0,
        };
        let message = format!(
            "join `{join}` needs {quorum} branches, but only {arrived} arrived and no other branch is active"
        );
        Failure::new("joinUnreached", message).non_retryable()
    }
}

/// Checks that the context is an object and matches its schema.
pub(crate) fn check_context(compiled: &Compiled, context: &Value) -> Result<(), DecideError> {
    compiled.limits.nesting("the context", context)?;
    let violations = match &compiled.context {
        Some(schema) => schema.check(context),
        None if context.is_object() => Vec::new(),
        None => {
            let message = "the context must be an object: wrap the value in one".to_owned();
            vec![SchemaViolation { pointer: String::new(), keyword: "type".to_owned(), message }]
        }
    };
    if violations.is_empty() { Ok(()) } else { Err(DecideError::InvalidContext(violations)) }
}

enum Verdict {
    Open,
    Fulfilled,
    Impossible,
}

fn evaluate_child_rule(rule: ChildRule, children: &Children) -> Verdict {
    let total = children.total;
    let ended = children.ended.len() as u32;
    let completed =
        children.ended.values().filter(|end| matches!(end, ChildEnd::Completed { .. })).count() as u32;
    let needed = match rule {
        ChildRule::AllSettled => {
            return if ended == total { Verdict::Fulfilled } else { Verdict::Open };
        }
        ChildRule::All => total,
        ChildRule::Any => 1,
        ChildRule::N(n) => n,
    };
    if completed >= needed {
        Verdict::Fulfilled
    } else if completed + (total - ended) < needed {
        Verdict::Impossible
    } else {
        Verdict::Open
    }
}

fn is_of(branch: Option<Branch>, fork_instance: ForkInstanceId) -> bool {
    branch.is_some_and(|branch| branch.fork_instance == fork_instance)
}

fn instant(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}
