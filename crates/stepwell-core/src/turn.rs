//! The moves a decision is made of: leaving and entering places, forks that open, joins that fire, the end.
//!
//! A [`Turn`] works on a copy of the snapshot and keeps account of what it did; dispatch decides which moves to make.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::definition::{Compiled, JoinNode, PlaceIndex, PlaceKind, TransitionNode, TriggerNode, WaitNode};
use crate::dispatch::{Change, Event};
use crate::expr::{Budget, Expr};
use crate::frame::Frame;
use crate::guard::View;
use crate::history::{Entry, cut};
use crate::ids::Name;
use crate::limits::json_bytes;
use crate::patch::Patch;
use crate::refusal::{DecideError, Failure};
use crate::rounds::merge_vars;
use crate::schema::Misfit;
use crate::snapshot::{
    Activation, ActivationId, ActivationStatus, Branch, CORRELATION, ChildEnd, Children, Finished, Gave,
    PROMPT, Passing, PassingId, Snapshot, Timer,
};
use crate::spec::{ChildRule, Completion, LoopStep};
use crate::template::Template;
use crate::time::{Timestamp, duration_ms};

/// A transition that could fire from an activation, its guard not yet asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) transition: &'a TransitionNode,
    pub(crate) activation: &'a Activation,
}

/// The transitions that an event could fire, in the order in which they are tried.
pub(crate) struct Candidates;

impl Candidates {
    pub(crate) fn of<'a>(
        compiled: &'a Compiled,
        snapshot: &'a Snapshot,
        event: &Event,
    ) -> Vec<Candidate<'a>> {
        let mut found = Vec::new();
        for activation in &snapshot.activations {
            let Some(place) = compiled.place(&activation.place) else { continue };
            for &index in &place.out {
                let transition = &compiled.transitions[index];
                if takes(transition, activation, event) {
                    found.push((std::cmp::Reverse(transition.priority), index, activation));
                }
            }
        }
        found.sort_by_key(|(priority, index, activation)| (*priority, *index, activation.id));
        let transition = |index| &compiled.transitions[index];
        let candidate = |(_, index, activation)| Candidate { transition: transition(index), activation };
        found.into_iter().map(candidate).collect()
    }
}

fn takes(transition: &TransitionNode, activation: &Activation, event: &Event) -> bool {
    let active = activation.status == ActivationStatus::Active;
    match (&transition.on, event) {
        (TriggerNode::Signal(name), Event::Signalled { signal, .. }) => active && name == signal,
        (TriggerNode::Signal(name), Event::Answered { activation: only, signal, .. }) => {
            active && name == signal && *only == activation.id
        }
        (TriggerNode::Auto, Event::Advanced { activation: only }) => {
            active && only.is_none_or(|only| only == activation.id)
        }
        (on, Event::TimerFired { activation: which }) => on.is_timer() && *which == activation.id,
        _ => false,
    }
}

/// Where an activation comes from: what it takes along into the next place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    pub(crate) branch: Option<Branch>,
    pub(crate) position: Vec<u32>,
    pub(crate) locals: Map<String, Value>,
    pub(crate) retried: BTreeMap<Name, u32>,
    /// The loops and error scopes it is in, outermost first.
    pub(crate) frames: Vec<Frame>,
    /// Children started by the transition that leads here.
    pub(crate) children: u32,
    /// What it brings along for a join or loop.
    pub(crate) gave: Gave,
}

impl Origin {
    /// A loop or join inside another gives the list that it saves, like any other last step.
    pub(crate) fn gives(&mut self, results: &[Value]) {
        if self.branch.is_some() || !self.frames.is_empty() {
            self.gave = Gave::Value(Value::Array(results.to_vec()));
        }
    }

    /// What an activation takes along that has left its place.
    pub(crate) fn of(left: Activation) -> Self {
        Origin {
            branch: left.branch,
            position: left.position,
            locals: left.locals,
            retried: left.retried,
            frames: left.frames,
            children: 0,
            gave: left.gave,
        }
    }

    /// Whoever was asked there has answered: what they were asked is not asked again further on.
    pub(crate) fn answered(&mut self, transition: &TransitionNode, was_resolved: bool) {
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

/// How far a run comes that leads to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into it.
    In,
    /// Before it: it cannot be entered now.
    Before,
}

/// The moves of one decision, on a copy of the snapshot.
pub(crate) struct Turn<'a> {
    pub(crate) compiled: &'a Compiled,
    pub(crate) next: Snapshot,
    pub(crate) now: Timestamp,
    /// Rounds of loops that this change has begun.
    pub(crate) rounds: u32,
    /// Places that are being entered, one because of the other.
    pub(crate) depth: u32,
    /// Forks over lists of which another branch is to begin, as soon as the place that is being entered is.
    pub(crate) to_begin: VecDeque<PassingId>,
    entered: Vec<Name>,
    exited: Vec<Name>,
    pub(crate) transitions: Vec<Name>,
    ended: Vec<ActivationId>,
    /// Passings whose branches were ended by this turn: nothing enters a place in them any more.
    closed: BTreeSet<PassingId>,
    stopped: Option<Failure>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(compiled: &'a Compiled, next: Snapshot, now: Timestamp) -> Self {
        Turn {
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

    /// Takes an activation out of its place, which is thereby completed.
    pub(crate) fn leave(&mut self, id: ActivationId) -> Option<Activation> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut activation = self.next.activations.remove(at);
        self.forget_prompt(&mut activation);
        self.complete(&activation.place);
        self.exited.push(activation.place.clone());
        Some(activation)
    }

    /// What whoever answers in a place is asked there is not asked further on, nor are its events waited for.
    fn forget_prompt(&self, left: &mut Activation) {
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

    /// Takes an activation out of its place by force: the place is not completed.
    pub(crate) fn take(&mut self, id: ActivationId) -> Option<Activation> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut activation = self.next.activations.remove(at);
        self.forget_prompt(&mut activation);
        self.end(std::slice::from_ref(&activation));
        Some(activation)
    }

    /// Enters a place, whatever its kind, and whatever that leads to.
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

    /// Begins the branches that are to begin. One after the other, not one inside the other: there may be very many that
    /// are over as soon as they have begun.
    fn begin_branches(&mut self, event: &Value) -> Result<(), DecideError> {
        while let Some(passing) = self.to_begin.pop_front() {
            self.begin_branch(passing, event)?;
        }
        Ok(())
    }

    fn enter_one(&mut self, place: PlaceIndex, mut origin: Origin, event: &Value) -> Result<(), DecideError> {
        if self.next.is_terminal || origin.branch.is_some_and(|branch| self.closed.contains(&branch.passing))
        {
            return Ok(());
        }
        let compiled = self.compiled;
        let node = &compiled.places[place];
        if !origin.frames.is_empty() {
            self.leave_frames(place, &mut origin);
        }
        match &node.kind {
            PlaceKind::Step => self.rest(place, ActivationStatus::Active, origin, event).map(drop),
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
                    Ok(output) => self.come_to_end(&node.name, output),
                    Err(error) => return self.fail_in(*error_place, origin, error),
                }
                Ok(())
            }
        }
    }

    /// A new activation in a place, or where its errors lead if it cannot be told when its timers are due.
    fn rest(
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
                return self.fail_in(transition.error_place, origin, error).map(|()| None);
            }
        }
        self.stay(place, status, origin, event).map(Some)
    }

    /// A new activation in a place where one can rest.
    pub(crate) fn stay(
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
        let id = self.number();
        // What a join gives it gives to what is around it.
        let gave = if matches!(node.kind, PlaceKind::Join(_)) { origin.gave } else { Gave::Nothing };
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
            gave,
            children: None,
        });
        Ok(id)
    }

    /// Stands before a place that cannot be entered now.
    pub(crate) fn stand_before(&mut self, place: PlaceIndex, mut origin: Origin, event: &Value) {
        self.leave_frames(place, &mut origin);
        let id = self.number();
        self.next.activations.push(Activation {
            id,
            place: self.compiled.places[place].name.clone(),
            status: ActivationStatus::Before,
            since: self.now,
            branch: origin.branch,
            position: origin.position,
            frames: origin.frames,
            locals: origin.locals,
            retried: origin.retried,
            timers: Vec::new(),
            received: (!event.is_null()).then(|| event.clone()),
            gave: origin.gave,
            children: None,
        });
    }

    /// Takes an activation that stands before its place away from there: it is going in.
    pub(crate) fn go_in(&mut self, id: ActivationId) -> Option<(Origin, Value)> {
        let at = self.next.activations.binary_search_by_key(&id, |activation| activation.id).ok()?;
        let mut standing = self.next.activations.remove(at);
        let event = standing.received.take().unwrap_or_default();
        let gave = std::mem::take(&mut standing.gave);
        Some((Origin { gave, ..Origin::of(standing) }, event))
    }

    pub(crate) fn number(&mut self) -> u64 {
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

    /// The timer of a transition whose place is entered now, if it has one.
    pub(crate) fn timer(
        &self,
        transition: &TransitionNode,
        locals: &Map<String, Value>,
        event: &Value,
    ) -> Result<Option<Timer>, DecideError> {
        let (expr, word) = match &transition.on {
            TriggerNode::AfterMs(ms) => {
                let timer = Timer { transition: transition.id.clone(), at: self.now.plus_ms(*ms) };
                return Ok(Some(timer));
            }
            TriggerNode::Until(expr) => (expr, "until"),
            TriggerNode::After(expr) => (expr, "after"),
            TriggerNode::Auto | TriggerNode::Signal(_) => return Ok(None),
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
        let at = at.ok_or_else(|| DecideError::NotAnInstant {
            transition: transition.id.clone(),
            word,
            found: value.map_or_else(|| "nothing".to_owned(), |value| value.to_string()),
        })?;
        Ok(Some(Timer { transition: transition.id.clone(), at }))
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
                Ok(asked) => drop(origin.locals.insert(PROMPT.to_owned(), asked)),
                Err(error) => return self.fail_in(wait.error_place, origin, error),
            }
        }
        if let Some(key) = wait.event.as_ref().and_then(|event| event.key.as_ref()) {
            match self.correlate(place, key, &origin, event) {
                Ok(found) => drop(origin.locals.insert(CORRELATION.to_owned(), found)),
                Err(error) => return self.fail_in(wait.error_place, origin, error),
            }
        }
        let children = origin.children;
        let Some(id) = self.rest(place, ActivationStatus::Waiting, origin, event)? else { return Ok(()) };
        if wait.children.is_none() {
            return Ok(());
        }
        if let Some(activation) = self.activation_mut(id) {
            activation.children = Some(Children { total: children, ended: Default::default() });
        }
        self.weigh_children(id, wait)
    }

    /// What the run's events have in common.
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
        let asked = prompt.render(&view, &mut Budget::default()).map_err(|error| {
            let at = format!("prompt of place `{}`", self.compiled.places[place].name);
            DecideError::Template { at, error }
        })?;
        self.compiled.limits.nesting("the prompt", &asked)?;
        Ok(asked)
    }

    /// Counts a child's end.
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
        self.weigh_children(id, wait)
    }

    /// Resolves a wait for children when its rule is fulfilled; goes to the error place when it no longer can be.
    fn weigh_children(&mut self, id: ActivationId, wait: &WaitNode) -> Result<(), DecideError> {
        let Some(rule) = wait.children else { return Ok(()) };
        let Some(children) = self.next.activation(id).and_then(|activation| activation.children.as_ref())
        else {
            return Ok(());
        };
        match weigh(rule, children) {
            Verdict::Open => Ok(()),
            Verdict::Fulfilled => {
                let ends: Vec<_> =
                    children.ended.iter().map(|(child, end)| json!({"child": child, "end": end})).collect();
                self.resolve(id, json!({ "children": ends }));
                Ok(())
            }
            Verdict::Impossible => self.give_up_children(id, wait, rule),
        }
    }

    fn give_up_children(
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
        let message = format!("the children that `{place}` waits for can no longer fulfil {rule:?}{why}");
        let failure = Failure::new("childrenFailed", message);
        let Some(error_place) = wait.error_place else {
            self.stopped = Some(failure);
            return Ok(());
        };
        let Some(left) = self.leave(id) else { return Ok(()) };
        self.fail_to(error_place, left, &failure)
    }

    /// Enters the place for failures, with the failure as the local `error`.
    pub(crate) fn fail_to(
        &mut self,
        place: PlaceIndex,
        left: Activation,
        failure: &Failure,
    ) -> Result<(), DecideError> {
        self.fail_with(place, Origin::of(left), failure, Way::In)
    }

    /// The same for whoever has no place any more.
    pub(crate) fn fail_with(
        &mut self,
        place: PlaceIndex,
        mut origin: Origin,
        failure: &Failure,
        way: Way,
    ) -> Result<(), DecideError> {
        let error = serde_json::to_value(failure).expect("a failure is plain data");
        match self.compiled.places[place].kind {
            PlaceKind::Catch { .. } | PlaceKind::Join(_) | PlaceKind::Loop(_) => {
                origin.gave = Gave::Failed(failure.clone());
            }
            _ => drop(origin.locals.insert("error".to_owned(), error.clone())),
        }
        self.come_to(place, origin, &error, way)
    }

    /// Enters a place, or stands before it.
    pub(crate) fn come_to(
        &mut self,
        place: PlaceIndex,
        origin: Origin,
        event: &Value,
        way: Way,
    ) -> Result<(), DecideError> {
        match way {
            Way::In => self.enter(place, origin, event),
            Way::Before => {
                self.stand_before(place, origin, event);
                Ok(())
            }
        }
    }

    /// A waiting activation becomes active, with what it was given; its time limits are over.
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

    /// A fork is entered: a new passing, and an activation in each branch.
    fn open(
        &mut self,
        fork: &Name,
        branches: &[PlaceIndex],
        origin: &Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let id = self.number();
        let passing =
            Passing { branches: branches.len() as u32, ..Passing::opened(id, fork.clone(), origin) };
        let starts: Vec<_> = (0..passing.branches).map(|index| passing.inside(index)).collect();
        self.next.passings.push(passing);
        self.pass_through(fork);
        for (start, &first) in starts.into_iter().zip(branches) {
            self.enter(first, start, event)?;
        }
        Ok(())
    }

    /// Entered, left and completed in one move.
    pub(crate) fn pass_through(&mut self, place: &Name) {
        self.entered.push(place.clone());
        self.exited.push(place.clone());
        self.complete(place);
    }

    /// A branch comes to its join: it is counted, makes the join fire, or is absorbed.
    fn arrive(
        &mut self,
        place: PlaceIndex,
        node: &JoinNode,
        mut origin: Origin,
        event: &Value,
    ) -> Result<(), DecideError> {
        let join = self.compiled.places[place].name.clone();
        let Some(branch) = origin.branch else { return Ok(()) };
        let Some(passing) = self.next.passing(branch.passing) else { return Ok(()) };
        let known = self.next.arrived(branch.passing, &join).any(|waiting| waiting.branch == Some(branch));
        if passing.fired || known {
            return Ok(());
        }
        let (is_each, mut after) = (passing.list.is_some(), passing.after());
        let given = match self.given_to_join(place, node, &mut origin, event) {
            Ok(given) => given,
            Err(error) => return self.fail_join(node.error_place, (branch, &origin.locals), error),
        };
        if is_each {
            return self.arrive_each(place, node, branch, given, event);
        }
        // It waits with the others, or is the last of them: either way it is one of those that have arrived.
        let arrived = self.next.arrived(branch.passing, &join).count() as u32;
        let id = self.stay(place, ActivationStatus::Waiting, origin, event)?;
        if let Some(waiting) = self.activation_mut(id) {
            waiting.received = given;
        }
        if arrived + 1 < node.quorum {
            return Ok(());
        }
        let is_one = |one: &Activation| {
            one.status == ActivationStatus::Waiting && one.place == join && is_of(one.branch, branch.passing)
        };
        let (mut arrived, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.next.activations).into_iter().partition(is_one);
        self.next.activations = going;
        arrived.sort_by_key(|one| one.branch);
        merge_vars(&mut after, arrived.iter().map(|one| &one.locals));
        let results = arrived.into_iter().map(|one| one.received.unwrap_or_default()).collect();
        if node.cancel_rest {
            self.end_branches(branch.passing);
        }
        if let Some(passing) = self.next.passings.iter_mut().find(|passing| passing.id == branch.passing) {
            passing.fired = true;
        }
        // The last to come was only passing through.
        self.entered.pop();
        self.fire_join(place, after, results, event)
    }

    /// Does what by this definition would have been done already: joins that have their number fire, those that end
    /// the rest have ended it, and waits for children are judged. For a run that comes from another definition.
    pub(crate) fn catch_up(&mut self) -> Result<(), DecideError> {
        let passings: Vec<_> = self.next.passings.iter().map(|passing| passing.id).collect();
        passings.into_iter().try_for_each(|passing| self.catch_up_join(passing))?;
        let compiled = self.compiled;
        let waiting = self.next.activations.iter().filter(|a| a.status == ActivationStatus::Waiting);
        let waiting: Vec<_> = waiting.map(|a| (a.id, compiled.place(&a.place))).collect();
        for (id, place) in waiting {
            if let Some(PlaceKind::Wait(wait)) = place.map(|place| &place.kind) {
                self.weigh_children(id, wait)?;
            }
        }
        self.begin_branches(&Value::Null)
    }

    fn catch_up_join(&mut self, id: PassingId) -> Result<(), DecideError> {
        let Some(passing) = self.next.passing(id) else { return Ok(()) };
        let Some(join) = self.join_of(passing) else { return Ok(()) };
        let Some(&place) = self.compiled.by_name.get(join) else { return Ok(()) };
        let PlaceKind::Join(node) = &self.compiled.places[place].kind else { return Ok(()) };
        if passing.fired {
            if node.cancel_rest {
                self.end_branches(id);
            }
            return Ok(());
        }
        let arrived: Vec<_> = self.next.arrived(id, join).map(|waiting| waiting.id).collect();
        let Some(last) = arrived.last().filter(|_| arrived.len() >= node.needed(passing) as usize) else {
            return Ok(());
        };
        // The last one comes once more, and now it is enough.
        let Ok(at) = self.next.activations.binary_search_by_key(last, |activation| activation.id) else {
            return Ok(());
        };
        let last = self.next.activations.remove(at);
        self.arrive(place, node, Origin::of(last), &Value::Null)
    }

    /// Ends everything that goes on inside a passing, also in the passings inside it.
    pub(crate) fn end_branches(&mut self, passing: PassingId) {
        let mut inside = BTreeSet::from([passing]);
        for inner in &self.next.passings {
            if inner.outer.is_some_and(|outer| inside.contains(&outer.passing)) {
                inside.insert(inner.id);
            }
        }
        let gone = |branch: Option<Branch>| branch.is_some_and(|branch| inside.contains(&branch.passing));
        let (ended, going): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.next.activations).into_iter().partition(|a| gone(a.branch));
        self.next.activations = going;
        self.next.passings.retain(|open| open.id == passing || !inside.contains(&open.id));
        self.closed.extend(inside);
        self.end(&ended);
    }

    /// Activations that are ended from outside leave their places without completing them.
    fn end(&mut self, activations: &[Activation]) {
        self.ended.extend(activations.iter().map(|activation| activation.id));
        let places: BTreeSet<_> = activations.iter().map(|activation| &activation.place).collect();
        self.exited.extend(places.into_iter().cloned());
    }

    fn come_to_end(&mut self, place: &Name, output: Option<Value>) {
        self.entered.push(place.clone());
        self.complete(place);
        let end = Finished::Completed { place: place.clone(), output };
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
        let misfits = self.compiled.output.as_ref().map(|schema| schema.check(&output)).unwrap_or_default();
        if misfits.is_empty() {
            return Ok(output);
        }
        Err(DecideError::OutputUnfit { place: place.clone(), misfits })
    }

    /// The run is over; whatever else is going on ends with it.
    pub(crate) fn finish(&mut self, how: Finished) {
        self.end_all();
        self.next.finished = Some(how);
        self.next.is_terminal = true;
    }

    /// Ends everything that goes on in the run.
    pub(crate) fn end_all(&mut self) {
        let ended = std::mem::take(&mut self.next.activations);
        self.end(&ended);
        self.next.passings.clear();
        self.next.last_end = None;
    }

    /// Changes the context, and says whether there was anything to change. Whether it still fits its schema is asked when
    /// everything is in it.
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

    /// Changes the session slots, within their limits.
    pub(crate) fn change_session(&mut self, patch: &Patch) -> Result<(), DecideError> {
        if patch.is_empty() {
            return Ok(());
        }
        let mut session = Value::Object(Arc::unwrap_or_clone(std::mem::take(&mut self.next.session)));
        patch.apply(&mut session);
        let limits = &self.compiled.limits;
        limits.nesting("the session", &session)?;
        limits.session_bytes("the session", json_bytes(&session))?;
        let Value::Object(slots) = session else { return Err(DecideError::SessionUnfit) };
        limits.session_keys("the session", slots.len())?;
        self.next.session = Arc::new(slots);
        Ok(())
    }

    /// Closes what has come to an end by itself and makes the change: one version, one history entry.
    pub(crate) fn conclude(mut self, action: String, payload: &Value, fresh: bool) -> Change {
        self.settle();
        if !fresh {
            self.next.version += 1;
        }
        self.next.updated_at = self.next.updated_at.max(self.now);
        self.next.forget_lists();
        let entry = Entry {
            version: self.next.version,
            action,
            at: self.now,
            entered: self.entered,
            exited: self.exited,
            transitions: self.transitions,
            payload: cut(payload, &self.compiled.limits),
            input: None,
            output: None,
            duration_us: None,
        };
        Change { snapshot: self.next, entry, ended: self.ended, stopped: self.stopped }
    }

    /// Closes passings whose branches have all ended, and sees whether that was the end or a dead end.
    fn settle(&mut self) {
        let mut index = self.next.passings.len();
        while index > 0 {
            index -= 1;
            let passing = &self.next.passings[index];
            let id = passing.id;
            let here = |branch: Option<Branch>| branch.is_some_and(|branch| branch.passing == id);
            let nested = self.next.passings.iter().any(|inner| here(inner.outer));
            let join = self.join_of(passing);
            let waits_to_join = |a: &Activation| {
                a.status == ActivationStatus::Waiting && join.is_some_and(|join| a.place == *join)
            };
            let going = self.next.activations.iter().any(|a| here(a.branch) && !waits_to_join(a));
            if going || nested {
                continue;
            }
            match join {
                Some(join) if !passing.fired => {
                    let arrived = self.next.arrived(id, join).count() + passing.arrived as usize;
                    self.stopped = Some(self.unreached(join, passing, arrived));
                }
                _ => drop(self.next.passings.remove(index)),
            }
        }
        let nowhere = self.next.activations.is_empty() && self.next.passings.is_empty();
        if nowhere && let Some(end) = self.next.last_end.take() {
            self.finish(end);
        }
    }

    fn join_of(&self, passing: &Passing) -> Option<&'a Name> {
        match &self.compiled.place(&passing.fork)?.kind {
            PlaceKind::Fork { join, .. } => join.map(|join| &self.compiled.places[join].name),
            _ => None,
        }
    }

    fn unreached(&self, join: &Name, passing: &Passing, arrived: usize) -> Failure {
        let quorum = match self.compiled.place(join).map(|node| &node.kind) {
            Some(PlaceKind::Join(node)) => node.needed(passing),
            _ => 0,
        };
        let message =
            format!("join `{join}` needs {quorum} branches; {arrived} came, and no other is still going");
        Failure::new("joinUnreached", message).finally()
    }
}

/// The context is an object that fits its schema.
pub(crate) fn check_context(compiled: &Compiled, context: &Value) -> Result<(), DecideError> {
    compiled.limits.nesting("the context", context)?;
    let misfits = match &compiled.context {
        Some(schema) => schema.check(context),
        None if context.is_object() => Vec::new(),
        None => {
            let message = "a context is an object: wrap the value in one".to_owned();
            vec![Misfit { pointer: String::new(), keyword: "type".to_owned(), message }]
        }
    };
    if misfits.is_empty() { Ok(()) } else { Err(DecideError::ContextUnfit(misfits)) }
}

enum Verdict {
    Open,
    Fulfilled,
    Impossible,
}

fn weigh(rule: ChildRule, children: &Children) -> Verdict {
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

fn is_of(branch: Option<Branch>, passing: PassingId) -> bool {
    branch.is_some_and(|branch| branch.passing == passing)
}

fn instant(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}
