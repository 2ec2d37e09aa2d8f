//! The decision function. Only this module decides which transitions may fire.
//!
//! It is a pure function from a snapshot and an input to a [`Decision`], or to the reason why there is none
//! ([`Rejected`]). A transition with an action takes two calls. The first returns the action to run and leaves the
//! snapshot unchanged ([`Decision::Act`]). The second takes the result of the action as its input and changes the
//! run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::decision_builder::{Candidate, Candidates, DecisionBuilder, Origin, Way, check_context};
use crate::definition::{
    Compiled, Definition, LoopNode, PlaceIndex, PlaceKind, PlaceNode, RaiseNode, TransitionNode, WaitNode,
};
use crate::expr::{Budget, Scope};
use crate::guard::{Answers, View, verdict};
use crate::history::{HistoryEntry, truncate_value};
use crate::ids::{Name, RunId};
use crate::limits::{LimitExceeded, Limits, json_bytes};
use crate::near::did_you_mean;
use crate::patch::Patch;
use crate::refusal::{DecideError, Failure, GuardRejection, Refusal, Rejected};
use crate::save::Save;
use crate::schema::SchemaViolation;
use crate::snapshot::{
    Activation, ActivationId, ActivationStatus, CORRELATION, ChildEnd, EntryValue, RunEnd, Snapshot,
};
use crate::spec::{Firing, LoopStep};
use crate::template::Template;
use crate::time::Timestamp;
use crate::topic;
use crate::ways;

/// An input of a decision: something that happens to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A signal arrived for the run.
    Signalled { signal: Name, payload: Value },
    /// A signal arrived for one specific activation. A run may have several waits for the same signal, and an
    /// answer link is bound to one of them.
    Answered { activation: ActivationId, signal: Name, payload: Value },
    /// The run may advance automatically.
    Advanced {
        /// Advances only this activation. `None` advances the first one that can.
        activation: Option<ActivationId>,
    },
    /// A timer is due.
    TimerFired { activation: ActivationId },
    /// A wait is resolved directly, without a signal.
    WaitResolved { activation: ActivationId, payload: Value },
    /// A wait fails with an error instead of an answer.
    WaitFailed { activation: ActivationId, failure: Failure },
    /// An action has succeeded.
    ActionDone {
        /// The call that [`Decision::Act`] returned.
        call: ActionCall,
        outcome: ActionResult,
    },
    /// An action has failed.
    ActionFailed {
        /// The call that [`Decision::Act`] returned.
        call: ActionCall,
        failure: Failure,
        /// Number of retries already made.
        retries: u32,
        /// Start of the first attempt. `None`: the time at which the place was entered.
        first: Option<Timestamp>,
    },
    /// A failed action is tried again, because its retry is due or because an operator requested it.
    Retried {
        retry: RetryRequest,
        /// True if an operator requested the retry. The action is then retried in the current place, even if the
        /// policy has a target.
        manual: bool,
    },
    /// A child has ended.
    ChildDone {
        /// The activation that waits for the child.
        activation: ActivationId,
        /// The number of the child among those that the activation waits for.
        child: u32,
        end: ChildEnd,
    },
    /// An operator changes the context.
    Patched { patch: Patch },
    /// An operator moves the run, or one activation of it, to a place.
    Moved {
        /// Moves only this activation, which keeps its branch, loop position and locals. `None` moves the whole run:
        /// all activations end, and the run enters the place with a new one.
        activation: Option<ActivationId>,
        to: Name,
    },
    /// The run is cancelled and ends now.
    Cancelled,
}

static NOTHING: Value = Value::Null;

/// Code of the failure of an attempt that a crash interrupted.
pub const INTERRUPTED: &str = "interrupted";

/// Message of `expect` for activations whose existence was checked before.
const FOUND: &str = "the activation is in the snapshot that the decision is based on";

impl Input {
    /// Creates a signal with its payload.
    pub fn signal(name: impl Into<Name>, payload: Value) -> Self {
        Input::Signalled { signal: name.into(), payload }
    }

    /// Creates the input that lets the run advance automatically.
    pub fn advance() -> Self {
        Input::Advanced { activation: None }
    }

    /// Returns the payload of the input. Action results and retries have the payload of their trigger. Other inputs
    /// have `null`.
    pub fn payload(&self) -> &Value {
        match self {
            Input::Signalled { payload, .. }
            | Input::Answered { payload, .. }
            | Input::WaitResolved { payload, .. } => payload,
            Input::ActionDone { call, .. } | Input::ActionFailed { call, .. } => &call.payload,
            Input::Retried { retry, .. } => &retry.payload,
            Input::Advanced { .. }
            | Input::TimerFired { .. }
            | Input::ChildDone { .. }
            | Input::Patched { .. }
            | Input::Moved { .. }
            | Input::WaitFailed { .. }
            | Input::Cancelled => &NOTHING,
        }
    }
}

/// The result of [`dispatch`].
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The run changes to a new version.
    Change(Box<Change>),
    /// An action must run. The snapshot is unchanged.
    Act(ActionCall),
    /// The failed action will be tried again later. The snapshot is unchanged.
    Retry {
        /// The number of this retry, counted from 1.
        retry: u32,
        /// The earliest time of the retry.
        at: Timestamp,
    },
    /// The run stops in its current place with this error.
    Stop(Failure),
}

/// A change of a run: the next snapshot, its history entry, and the consequences for running actions.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub snapshot: Snapshot,
    /// The history entry of this change.
    pub entry: HistoryEntry,
    /// Activations that were ended by something other than their own transition. Results of actions that still run
    /// for them are fenced off.
    pub ended: Vec<ActivationId>,
    /// The error with which the run stops, if it cannot continue.
    pub stopped: Option<Failure>,
}

/// A call of an action. It is returned with the result of the action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionCall {
    pub activation: ActivationId,
    /// The transition that the action completes.
    pub transition: Name,
    pub action: Name,
    /// The input. Secrets in it are not resolved yet.
    pub input: Value,
    /// Payload of the trigger.
    pub payload: Value,
    pub cause: Cause,
    /// Timeout in milliseconds; 0 means unlimited, and `None` the default of the engine.
    pub timeout_ms: Option<u64>,
}

/// The parts of a failed call that are kept until its retry. The input is computed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryRequest {
    pub activation: ActivationId,
    /// The transition that the action completes.
    pub transition: Name,
    pub cause: Cause,
    /// Payload of the trigger.
    pub payload: Value,
}

impl RetryRequest {
    /// Keeps the parts of a call that a retry needs.
    pub fn of(call: &ActionCall) -> Self {
        RetryRequest {
            activation: call.activation,
            transition: call.transition.clone(),
            cause: call.cause.clone(),
            payload: call.payload.clone(),
        }
    }
}

/// The cause of a transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The transition is automatic.
    Auto,
    /// A signal with this name arrived.
    Signal(Name),
    Timer,
}

/// The result of a successful action.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ActionResult {
    /// Changes to the context.
    pub context: Patch,
    /// The complete context after the action, instead of the changes in `context`. Only valid if the run has not
    /// changed since the action read it.
    pub whole: Option<Arc<Value>>,
    /// Changes to the session slots.
    pub session: Patch,
    /// Locals to set for the activation in the next place.
    pub locals: Map<String, Value>,
    /// The output of the action. It is saved at the transition's `saveAs` path and in the history.
    pub output: Value,
    /// Number of children the action started.
    pub children: u32,
    /// Duration of the action, in microseconds.
    pub duration_us: u64,
}

impl ActionResult {
    fn check(&self, limits: &Limits) -> Result<(), LimitExceeded> {
        limits.children("the action", self.children as usize)?;
        limits.nesting("the output", &self.output)?;
        self.locals.values().try_for_each(|value| limits.nesting("a local", value))
    }
}

/// Starts a run: returns the snapshot at version 0, in the initial place.
pub fn start(
    definition: &Definition,
    run: RunId,
    context: Value,
    now: Timestamp,
) -> Result<Change, DecideError> {
    let compiled = definition.compiled();
    // Without an envelope the context must be an object. With an envelope the payload may be any value.
    let is_nothing = context.is_null() && !compiled.spec.envelope;
    let context = if is_nothing { Value::Object(Map::new()) } else { context };
    let violations = compiled.input.as_ref().map(|schema| schema.check(&context)).unwrap_or_default();
    if !violations.is_empty() {
        return Err(DecideError::InvalidInput(violations));
    }
    let context = match compiled.spec.envelope {
        true => json!({ "payload": context, "vars": {} }),
        false => context,
    };
    check_context(compiled, &context)?;
    let snapshot = Snapshot {
        instance_id: run,
        workflow: definition.name().clone(),
        definition_version: definition.version(),
        definition_hash: definition.hash(),
        version: 0,
        activations: Vec::new(),
        fork_instances: Vec::new(),
        completed: Default::default(),
        context: Arc::new(context),
        session: Default::default(),
        lists: Default::default(),
        long_lists: Default::default(),
        is_terminal: false,
        finished: None,
        last_end: None,
        next_id: 1,
        created_at: now,
        updated_at: now,
    };
    let context = snapshot.context.clone();
    let mut builder = DecisionBuilder::new(compiled, snapshot, now);
    // If the first place cannot be entered, the start is refused. No work has been done that could be lost,
    // and the caller gets the error.
    builder.enter(compiled.initial, Origin::default(), &context)?;
    // The input is the first context, so the history entry does not repeat it.
    Ok(builder.conclude("__start".to_owned(), &NOTHING, true))
}

/// Decides the effect of an input on a run. `answers` holds the results of the named guards, see
/// [`questions`](crate::questions).
pub fn dispatch(
    definition: &Definition,
    snapshot: &Snapshot,
    event: &Input,
    answers: &Answers,
    now: Timestamp,
) -> Result<Decision, Rejected> {
    if snapshot.definition_hash != definition.hash() {
        let named = |name: &Name, hash: String| format!("{name} {hash}");
        let expected = named(definition.name(), definition.hash().short());
        let found = named(&snapshot.workflow, snapshot.definition_hash.short());
        return Err(DecideError::OtherDefinition { expected, found }.into());
    }
    if snapshot.is_terminal {
        return Err(Refusal::Terminal.into());
    }
    let decider = Decider { compiled: definition.compiled(), snapshot, answers, now };
    match event {
        Input::Signalled { signal, payload } => decider.signalled(event, signal, payload, None),
        Input::Answered { activation, signal, payload } => {
            decider.signalled(event, signal, payload, Some(*activation))
        }
        Input::Advanced { .. } => decider.advanced(event),
        Input::TimerFired { activation } => decider.timer_fired(event, *activation),
        Input::WaitResolved { activation, payload } => decider.wait_resolved(*activation, payload),
        Input::ActionDone { call, outcome } => decider.action_done(call, outcome),
        Input::ActionFailed { call, failure, retries, first } => {
            decider.action_failed(call, failure, *retries, *first)
        }
        Input::WaitFailed { activation, failure } => decider.wait_failed(*activation, failure),
        Input::Retried { retry, manual } => decider.retried(retry, *manual),
        Input::ChildDone { activation, child, end } => decider.child_done(*activation, *child, end),
        Input::Patched { patch } => decider.patched(patch),
        Input::Moved { activation, to } => decider.moved(*activation, to),
        Input::Cancelled => Ok(decider.cancelled()),
    }
}

/// Decides the effect that a signal would have now, without changing the run.
pub fn can_execute(
    definition: &Definition,
    snapshot: &Snapshot,
    signal: impl Into<Name>,
    payload: Value,
    answers: &Answers,
    now: Timestamp,
) -> Result<Decision, Rejected> {
    dispatch(definition, snapshot, &Input::signal(signal, payload), answers, now)
}

/// A transition that leaves a place of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Available {
    /// The activation that would take the transition.
    pub activation: ActivationId,
    pub transition: Name,
    pub from: Name,
    pub to: Name,
    /// The signal that fires the transition, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Name>,
    /// The reason why the transition cannot fire now: an unresolved wait, a blocked entry, a timer that is not due,
    /// or the guard that is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

/// Returns every transition that leaves a place of the run, and the reason why it cannot fire now.
pub fn available(
    definition: &Definition,
    snapshot: &Snapshot,
    answers: &Answers,
    now: Timestamp,
) -> Result<Vec<Available>, DecideError> {
    let compiled = definition.compiled();
    let decider = Decider { compiled, snapshot, answers, now };
    let each = |(_, candidate): (usize, Candidate<'_>)| {
        let Candidate { transition, activation } = candidate;
        Ok(Available {
            activation: activation.id,
            transition: transition.id.clone(),
            from: activation.place.clone(),
            to: compiled.places[transition.to].name.clone(),
            signal: transition.on.signal().cloned(),
            blocked_by: decider.blocked_by(candidate)?,
        })
    };
    Candidates::leaving(compiled, snapshot).map(each).collect()
}

/// The inputs of a decision.
struct Decider<'a> {
    compiled: &'a Compiled,
    snapshot: &'a Snapshot,
    answers: &'a Answers,
    now: Timestamp,
}

impl<'a> Decider<'a> {
    fn signalled(
        &self,
        event: &Input,
        signal: &Name,
        payload: &Value,
        only: Option<ActivationId>,
    ) -> Result<Decision, Rejected> {
        self.check_payload(signal, payload)?;
        let is_meant = |activation: &&Activation| only.is_none_or(|only| only == activation.id);
        let (mut waits, mut verdicts) = (Vec::new(), Vec::new());
        for wait in self.waits_for(signal).filter(is_meant) {
            match self.filtered(wait, payload) {
                None => waits.push(wait),
                Some(no) => verdicts.push(no),
            }
        }
        let candidates = Candidates::of(self.compiled, self.snapshot, event);
        if waits.is_empty() && candidates.is_empty() {
            let refusal = if verdicts.is_empty() {
                self.no_source(signal)
            } else {
                Refusal::GuardRejected { verdicts }
            };
            return Err(refusal.into());
        }
        let cause = Cause::Signal(signal.clone());
        if self.compiled.firing() == Firing::First {
            return match waits.first() {
                Some(wait) => Ok(self.resolve(&[*wait], payload)),
                None => self.fire_first(candidates, &cause, payload),
            };
        }
        let passing_candidates = match self.passing_candidates(candidates, payload) {
            Err(Rejected::Refused(Refusal::GuardRejected { .. })) if !waits.is_empty() => Vec::new(),
            other => other?,
        };
        if passing_candidates.is_empty() {
            return Ok(self.resolve(&waits, payload));
        }
        let mut builder = self.builder();
        waits.iter().for_each(|wait| builder.resolve(wait.id, payload.clone()));
        self.fire(builder, self.all_writes(passing_candidates, payload)?, &cause, payload)
    }

    fn check_payload(&self, signal: &Name, payload: &Value) -> Result<(), Rejected> {
        let Some(schema) = self.compiled.signals.get(signal) else {
            let hint = did_you_mean(signal, self.compiled.signals.keys().map(Name::as_str));
            let workflow = self.snapshot.workflow.clone();
            return Err(Refusal::UnknownSignal { workflow, signal: signal.to_string(), hint }.into());
        };
        self.check_size(payload)?;
        let violations = schema.as_ref().map(|schema| schema.check(payload)).unwrap_or_default();
        if violations.is_empty() {
            return Ok(());
        }
        Err(Refusal::InvalidPayload { signal: signal.clone(), violations }.into())
    }

    /// Returns the filter of a wait that rejects this signal, or `None` if the wait accepts it.
    fn filtered(&self, wait: &Activation, payload: &Value) -> Option<GuardRejection> {
        let node = self.waiting_in(wait)?;
        let view = View::new(self.snapshot, &wait.locals, payload, self.now);
        let no = |why: String| Some(GuardRejection { transition: wait.place.clone(), guard: why });
        if let Some(of) = node.event.as_ref().and_then(|event| event.of.as_ref()) {
            let actual = of.eval(&view, &mut Budget::default()).ok().flatten();
            let awaited = wait.locals.get(CORRELATION);
            if actual.is_none() || actual.as_ref().map(topic::plain) != awaited.map(topic::plain) {
                return no(format!("correlation `{}`", of.source()));
            }
        }
        let filter = node.filter.as_ref()?;
        match filter.truth(&view, &mut Budget::default()) {
            Ok(true) => None,
            Ok(false) => no(format!("`{}`", filter.source())),
            // The filter cannot be evaluated for this signal, so the signal is not for this wait.
            Err(error) => no(format!("`{}` ({error})", filter.source())),
        }
    }

    fn check_size(&self, payload: &Value) -> Result<(), DecideError> {
        let limits = &self.compiled.limits;
        limits.payload_bytes("the payload", json_bytes(payload))?;
        Ok(limits.nesting("the payload", payload)?)
    }

    fn waits_for<'s>(&'s self, signal: &'s Name) -> impl Iterator<Item = &'a Activation> + 's {
        self.snapshot.activations.iter().filter(move |activation| {
            self.waiting_in(activation).is_some_and(|wait| wait.signal.as_ref() == Some(signal))
        })
    }

    /// Returns the wait place that an activation waits in.
    fn waiting_in(&self, activation: &Activation) -> Option<&'a WaitNode> {
        if activation.status != ActivationStatus::Waiting {
            return None;
        }
        match &self.compiled.place(&activation.place)?.kind {
            PlaceKind::Wait(wait) => Some(wait),
            _ => None,
        }
    }

    fn no_source(&self, signal: &Name) -> Refusal {
        let by_transition = self.compiled.transitions.iter().filter(|t| t.on.signal() == Some(signal));
        let mut accepted_in: Vec<_> =
            by_transition.map(|t| self.compiled.places[t.from].name.clone()).collect();
        for place in &self.compiled.places {
            if matches!(&place.kind, PlaceKind::Wait(wait) if wait.signal.as_ref() == Some(signal)) {
                accepted_in.push(place.name.clone());
            }
        }
        accepted_in.sort();
        accepted_in.dedup();
        Refusal::NoActiveSource {
            what: signal.to_string(),
            accepted_in,
            active: self.snapshot.current_places(),
        }
    }

    fn advanced(&self, event: &Input) -> Result<Decision, Rejected> {
        let candidates = Candidates::of(self.compiled, self.snapshot, event);
        let has_no_candidates = candidates.is_empty();
        let fired = if has_no_candidates {
            None
        } else {
            Some(self.fire_by_mode(candidates, &Cause::Auto, &NOTHING))
        };
        match fired {
            Some(Err(Rejected::Refused(refusal))) => {
                self.advance_without_transition(event).unwrap_or(Err(refusal.into()))
            }
            Some(decided) => decided,
            None => self.advance_without_transition(event).unwrap_or(Err(Refusal::Idle.into())),
        }
    }

    /// Advances an activation without a transition: the next round of a loop, or entry into a blocked place.
    fn advance_without_transition(&self, event: &Input) -> Option<Result<Decision, Rejected>> {
        let Input::Advanced { activation: only } = event else { return None };
        let is_meant = |one: &&Activation| only.is_none_or(|only| only == one.id);
        self.snapshot.activations.iter().filter(is_meant).find_map(|activation| {
            let place = *self.compiled.by_name.get(&activation.place)?;
            match &self.compiled.places[place].kind {
                _ if activation.status == ActivationStatus::EntryBlocked => {
                    Some(self.unblock_entry(activation, place))
                }
                PlaceKind::Loop(node) => Some(self.next_round(activation, place, node)),
                _ => None,
            }
        })
    }

    fn next_round(
        &self,
        activation: &Activation,
        place: PlaceIndex,
        node: &LoopNode,
    ) -> Result<Decision, Rejected> {
        let mut builder = self.builder();
        let origin = Origin::of(builder.leave(activation.id).expect(FOUND));
        builder.start_round(place, node, origin, &NOTHING)?;
        Ok(change(builder.conclude(format!("__loop:{}", activation.place), &NOTHING, false)))
    }

    /// Enters the place whose entry was blocked.
    fn unblock_entry(&self, blocked: &Activation, place: PlaceIndex) -> Result<Decision, Rejected> {
        let mut builder = self.builder();
        let (origin, event) = builder.unblock_entry(blocked.id).expect(FOUND);
        builder.enter(place, origin, &event)?;
        Ok(change(builder.conclude(format!("__enter:{}", blocked.place), &NOTHING, false)))
    }

    fn timer_fired(&self, event: &Input, id: ActivationId) -> Result<Decision, Rejected> {
        let Some(activation) =
            self.snapshot.activation(id).filter(|activation| !activation.timers.is_empty())
        else {
            let active = self.snapshot.current_places();
            let what = format!("timer of activation {id}");
            return Err(Refusal::NoActiveSource { what, accepted_in: Vec::new(), active }.into());
        };
        let due = |transition: &TransitionNode| {
            activation.timers.iter().find(|timer| timer.transition == transition.id).map(|timer| timer.at)
        };
        let mut candidates = Candidates::of(self.compiled, self.snapshot, event);
        candidates.retain(|candidate| due(candidate.transition).is_some_and(|at| at <= self.now));
        candidates.sort_by_key(|candidate| due(candidate.transition));
        if candidates.is_empty() {
            let due = activation.due().unwrap_or(Timestamp::MAX);
            return Err(Refusal::NotDue { due, now: self.now }.into());
        }
        self.fire_by_mode(candidates, &Cause::Timer, &NOTHING)
    }

    fn fire_by_mode(
        &self,
        candidates: Vec<Candidate<'a>>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        match self.compiled.firing() {
            Firing::First => self.fire_first(candidates, cause, payload),
            Firing::All => {
                let passing_candidates = self.passing_candidates(candidates, payload)?;
                self.fire(self.builder(), self.all_writes(passing_candidates, payload)?, cause, payload)
            }
        }
    }

    fn all_writes(
        &self,
        passing_candidates: Vec<Candidate<'a>>,
        payload: &Value,
    ) -> Result<Vec<(Candidate<'a>, Writes<'a>)>, DecideError> {
        passing_candidates
            .into_iter()
            .map(|candidate| Ok((candidate, self.writes(candidate, payload)?)))
            .collect()
    }

    /// Fires the first candidate whose guard is true, or returns its action.
    fn fire_first(
        &self,
        candidates: Vec<Candidate<'a>>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        let mut verdicts = Vec::new();
        for candidate in candidates {
            let decided = match self.guard(candidate, payload) {
                Ok(Some(no)) => {
                    verdicts.push(no);
                    continue;
                }
                Ok(None) if candidate.transition.action.is_some() => {
                    self.call(candidate, cause, payload).map(Decision::Act)
                }
                Ok(None) => match self.writes(candidate, payload) {
                    Ok(writes) => {
                        return self.fire(self.builder(), vec![(candidate, writes)], cause, payload);
                    }
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            return decided.or_else(|error| self.handle_failed_transition(candidate, error, payload));
        }
        Err(Refusal::GuardRejected { verdicts }.into())
    }

    /// Computes the values a transition without an action writes. Returns the failure that the transition declares,
    /// if any.
    fn writes(&self, candidate: Candidate<'a>, payload: &Value) -> Result<Writes<'a>, DecideError> {
        let Candidate { transition, activation } = candidate;
        let event = effective_payload(activation, payload);
        let view = View::new(self.snapshot, &activation.locals, event, self.now);
        writes(transition, &view)
    }

    /// Handles a transition that failed before it changed anything: the run enters the error place, if there is one.
    fn handle_failed_transition(
        &self,
        candidate: Candidate<'a>,
        error: DecideError,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        let Candidate { transition, activation } = candidate;
        let Some(place) = transition.error_place.filter(|_| error.can_be_caught()) else {
            return Err(error.into());
        };
        let mut builder = self.builder();
        let mut left = builder.leave(activation.id).expect(FOUND);
        left.retried.remove(&transition.id);
        builder.leave_to_error_place(place, left, &error.failure())?;
        Ok(change(builder.conclude(format!("__error:{}", transition.id), payload, false)))
    }

    /// Returns the candidates whose guards are true. It is a refusal if there are none.
    fn passing_candidates(
        &self,
        candidates: Vec<Candidate<'a>>,
        payload: &Value,
    ) -> Result<Vec<Candidate<'a>>, Rejected> {
        let (mut passing_candidates, mut verdicts) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.guard(candidate, payload)? {
                Some(no) => verdicts.push(no),
                None => passing_candidates.push(candidate),
            }
        }
        if passing_candidates.is_empty() {
            return Err(Refusal::GuardRejected { verdicts }.into());
        }
        Ok(passing_candidates)
    }

    fn guard(
        &self,
        candidate: Candidate<'_>,
        payload: &Value,
    ) -> Result<Option<GuardRejection>, DecideError> {
        let Candidate { transition, activation } = candidate;
        let Some(guard) = &transition.guard else { return Ok(None) };
        let event = effective_payload(activation, payload);
        let environment = (self.answers, self.now);
        let no = verdict(guard, &transition.id, self.snapshot, activation, event, environment)?;
        Ok(no.map(|guard| GuardRejection { transition: transition.id.clone(), guard }))
    }

    fn call(
        &self,
        candidate: Candidate<'_>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<ActionCall, DecideError> {
        let Candidate { transition, activation } = candidate;
        let action = transition.action.as_ref().expect("called only for transitions with an action");
        let event = effective_payload(activation, payload);
        let view = View::new(self.snapshot, &activation.locals, event, self.now);
        let input = action.input.render(&view, &mut Budget::default()).map_err(|error| {
            DecideError::Template { at: format!("input of transition `{}`", transition.id), error }
        })?;
        self.compiled.limits.nesting("the input", &input)?;
        Ok(ActionCall {
            activation: activation.id,
            transition: transition.id.clone(),
            action: action.name.clone(),
            input,
            payload: event.clone(),
            cause: cause.clone(),
            timeout_ms: transition.timeout_ms,
        })
    }

    /// Fires transitions without actions together, in one version.
    fn fire(
        &self,
        mut builder: DecisionBuilder<'a>,
        chosen: Vec<(Candidate<'a>, Writes<'a>)>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        let mut moved: Vec<ActivationId> = Vec::new();
        let first = chosen.first().map(|(first, _)| named(cause, first.transition, first.activation));
        let several = chosen.len() > 1;
        for (Candidate { transition, activation }, writes) in chosen {
            let mut origin = match builder.leave(activation.id) {
                Some(left) => Origin::of(left),
                None if moved.contains(&activation.id) => Origin::of(activation.clone()),
                // Another of the transitions has ended the branch.
                None => continue,
            };
            if several {
                moved.push(activation.id);
            }
            origin.step_loop(transition.loop_step);
            origin.remove_answered_prompt(transition, activation.received.is_some());
            builder.transitions.push(transition.id.clone());
            if let Err(error) = write(&mut builder, &mut origin, writes) {
                return match several {
                    true => Err(error.into()),
                    false => {
                        self.handle_failed_transition(Candidate { transition, activation }, error, payload)
                    }
                };
            }
            let is_loop = matches!(self.compiled.places[transition.to].kind, PlaceKind::Loop(_));
            if is_loop && transition.loop_step == Some(LoopStep::Leave) {
                origin.entry_value = EntryValue::LeaveLoop;
            }
            builder.enter(transition.to, origin, effective_payload(activation, payload))?;
        }
        Ok(change(builder.conclude(first.unwrap_or_default(), payload, false)))
    }

    fn resolve(&self, waits: &[&Activation], payload: &Value) -> Decision {
        let mut builder = self.builder();
        waits.iter().for_each(|wait| builder.resolve(wait.id, payload.clone()));
        let place = waits.first().map(|wait| wait.place.as_str()).unwrap_or_default();
        change(builder.conclude(format!("__resolve_wait:{place}"), payload, false))
    }

    fn wait_resolved(&self, id: ActivationId, payload: &Value) -> Result<Decision, Rejected> {
        let waiting =
            self.snapshot.activation(id).and_then(|waiting| Some((waiting, self.waiting_in(waiting)?)));
        let Some((activation, wait)) = waiting else {
            let active = self.snapshot.current_places();
            let what = format!("wait of activation {id}");
            return Err(Refusal::NoActiveSource { what, accepted_in: Vec::new(), active }.into());
        };
        match &wait.signal {
            // A direct answer must fit the same payload schema as the signal.
            Some(signal) => self.check_payload(signal, payload)?,
            None => self.check_size(payload)?,
        }
        Ok(self.resolve(&[activation], payload))
    }

    /// Fails a wait for an answer: enters the error place of the wait or of a transition that leaves it.
    fn wait_failed(&self, id: ActivationId, failure: &Failure) -> Result<Decision, Rejected> {
        let place_of = |activation: &Activation| self.compiled.place(&activation.place);
        let found =
            self.snapshot.activation(id).and_then(|activation| Some((activation, place_of(activation)?)));
        let leaving = |place: &'a PlaceNode| place.out.iter().map(|&index| &self.compiled.transitions[index]);
        let accepts = |(activation, place): &(&Activation, &'a PlaceNode)| match &place.kind {
            PlaceKind::Wait(wait) => activation.status == ActivationStatus::Waiting && wait.signal.is_some(),
            _ => {
                activation.status == ActivationStatus::Active
                    && leaving(place).any(|transition| transition.on.signal().is_some())
            }
        };
        let Some((activation, place)) = found.filter(accepts) else {
            let active = self.snapshot.current_places();
            let what = format!("wait of activation {id}");
            return Err(Refusal::NoActiveSource { what, accepted_in: Vec::new(), active }.into());
        };
        let own = match &place.kind {
            PlaceKind::Wait(wait) => wait.error_place,
            _ => None,
        };
        let Some(error_place) = own.or_else(|| leaving(place).find_map(|transition| transition.error_place))
        else {
            return Ok(Decision::Stop(failure.clone()));
        };
        let mut builder = self.builder();
        let left = builder.leave(id).expect(FOUND);
        builder.leave_to_error_place(error_place, left, failure)?;
        let payload = serde_json::to_value(failure).expect("a failure is plain data");
        Ok(change(builder.conclude(format!("__fail_wait:{}", activation.place), &payload, false)))
    }

    /// Returns the activation and the transition of a result, if the activation can still take the transition.
    fn current_candidate(&self, id: ActivationId, transition: &Name) -> Result<Candidate<'a>, Refusal> {
        let superseded = || Refusal::Superseded { activation: id, what: transition.clone() };
        let activation = self.snapshot.activation(id).ok_or_else(superseded)?;
        let transition = self.compiled.transition(transition).ok_or_else(superseded)?;
        let can_leave = if transition.on.is_timer() {
            activation.timers.iter().any(|timer| timer.transition == transition.id)
        } else {
            activation.status == ActivationStatus::Active
        };
        let is_here = self.compiled.places[transition.from].name == activation.place;
        if is_here && can_leave && transition.action.is_some() {
            return Ok(Candidate { transition, activation });
        }
        Err(superseded())
    }

    fn action_done(&self, call: &ActionCall, outcome: &ActionResult) -> Result<Decision, Rejected> {
        let candidate = self.current_candidate(call.activation, &call.transition)?;
        outcome.check(&self.compiled.limits).map_err(DecideError::from)?;
        let done = self.done(candidate, call, outcome, Way::In)?;
        // If the action started children, they are waited for in the target place. A blocked entry could not wait for
        // them.
        self.or_block_entry(done, outcome.children == 0, || {
            self.done(candidate, call, outcome, Way::EntryBlocked)
        })
    }

    /// Keeps the result of an action even if the target place cannot be entered.
    ///
    /// A failed entry is not the action's fault. The activation then stays blocked before that place.
    fn or_block_entry(
        &self,
        entered: Entered,
        can_block: bool,
        block: impl FnOnce() -> Result<Entered, Rejected>,
    ) -> Result<Decision, Rejected> {
        match entered {
            Err(error) if can_block && error.can_be_caught() => Ok(block()??),
            entered => Ok(entered?),
        }
    }

    /// Applies the result of an action and enters the target place.
    fn done(
        &self,
        Candidate { transition, activation }: Candidate<'_>,
        call: &ActionCall,
        outcome: &ActionResult,
        way: Way,
    ) -> Result<Entered, Rejected> {
        let limits = &self.compiled.limits;
        let mut builder = self.builder();
        let has_changed = builder.change_context(&outcome.context, outcome.whole.as_ref());
        builder.change_session(&outcome.session)?;
        let mut origin = Origin::of(builder.leave(activation.id).expect(FOUND));
        origin.step_loop(transition.loop_step);
        origin.retried.remove(&transition.id);
        origin.remove_answered_prompt(transition, activation.received.is_some());
        origin.locals.extend(outcome.locals.clone());
        origin.children = outcome.children;
        match transition.action.as_ref().and_then(|action| action.save_as.as_ref()) {
            Some(save) => builder.save(save, &mut origin.locals, outcome.output.clone())?,
            None if has_changed => check_context(self.compiled, &builder.next.context)?,
            None => {}
        }
        if !transition.set.is_empty() {
            let view = View::new(&builder.next, &origin.locals, &call.payload, self.now);
            let writes = writes(transition, &view)?;
            write(&mut builder, &mut origin, writes)?;
        }
        if matches!(self.compiled.places[transition.to].kind, PlaceKind::Join(_) | PlaceKind::Loop(_)) {
            origin.entry_value = EntryValue::Value(outcome.output.clone());
        }
        builder.transitions.push(transition.id.clone());
        if let Err(error) = builder.enter_or_block(transition.to, origin, &call.payload, way) {
            return Ok(Err(error));
        }
        let mut done = builder.conclude(named(&call.cause, transition, activation), &call.payload, false);
        done.entry.input = truncate_value(&call.input, limits);
        done.entry.output = truncate_value(&outcome.output, limits);
        done.entry.duration_us = Some(outcome.duration_us);
        Ok(Ok(change(done)))
    }

    fn action_failed(
        &self,
        call: &ActionCall,
        failure: &Failure,
        retries: u32,
        first: Option<Timestamp>,
    ) -> Result<Decision, Rejected> {
        let Candidate { transition, activation } =
            self.current_candidate(call.activation, &call.transition)?;
        let retry = &transition.retry;
        // A call that was interrupted may have had its effect, so only its author can allow another attempt.
        let is_allowed =
            !transition.is_at_most_once || failure.code != INTERRUPTED || retry.retry_on.is_some();
        if is_allowed && retry.covers(failure) {
            let earlier = activation.retried.get(&transition.id).copied().unwrap_or_default();
            let number = retries.saturating_add(earlier).saturating_add(1);
            let delay = retry.jittered_delay(number, self.snapshot.instance_id, activation.id);
            if let Some(at) = delay.map(|ms| self.now.plus_ms(ms))
                && retry.is_within_budget(first.unwrap_or(activation.since), at)
            {
                return Ok(Decision::Retry { retry: number, at });
            }
        }
        let Some(place) = transition.error_place else {
            return Ok(Decision::Stop(failure.clone()));
        };
        let lead = |way: Way| -> Entered {
            let mut builder = self.builder();
            let mut left = builder.leave(activation.id).expect(FOUND);
            left.retried.remove(&transition.id);
            builder.enter_error_place(place, Origin::of(left), failure, way)?;
            let mut failed = builder.conclude(format!("__error:{}", transition.id), &call.payload, false);
            failed.entry.input = truncate_value(&call.input, &self.compiled.limits);
            Ok(change(failed))
        };
        self.or_block_entry(lead(Way::In), true, || Ok(lead(Way::EntryBlocked)))
    }

    /// Tries a failed action again. Its guard was true at the first attempt and is not evaluated again.
    fn retried(&self, retry: &RetryRequest, manual: bool) -> Result<Decision, Rejected> {
        let candidate = self.current_candidate(retry.activation, &retry.transition)?;
        let Candidate { transition, activation } = candidate;
        let target = match transition.retry_target {
            Some(target) if !manual => target,
            _ => return Ok(Decision::Act(self.call(candidate, &retry.cause, &retry.payload)?)),
        };
        let mut builder = self.builder();
        let mut origin = Origin::of(builder.leave(activation.id).expect(FOUND));
        // This retry is a separate change that leads back to an earlier place. The number of such retries
        // moves with the activation, because the host's ledger forgets an activation that has left its place.
        let count = origin.retried.entry(transition.id.clone()).or_default();
        *count = count.saturating_add(1);
        builder.enter(target, origin, &retry.payload)?;
        Ok(change(builder.conclude(format!("__retry:{}", transition.id), &retry.payload, false)))
    }

    fn child_done(&self, id: ActivationId, child: u32, end: &ChildEnd) -> Result<Decision, Rejected> {
        let waits = self.snapshot.activation(id).and_then(|activation| {
            let wait = self.waiting_in(activation)?;
            let children = activation.children.as_ref()?;
            (child < children.total && !children.ended.contains_key(&child)).then_some((activation, wait))
        });
        let Some((activation, wait)) = waits else {
            let what =
                self.snapshot.activation(id).map_or_else(|| Name::from("a child"), |a| a.place.clone());
            return Err(Refusal::Superseded { activation: id, what }.into());
        };
        if let ChildEnd::Completed { output } = end {
            self.compiled.limits.nesting("the child's result", output).map_err(DecideError::from)?;
        }
        let mut builder = self.builder();
        builder.child_ended(id, wait, child, end.clone())?;
        let resolved = builder.next.activation(id).is_some_and(|now| now.status == ActivationStatus::Active);
        // The child may have ended without resolving the wait: then the history has `__child:<place>`.
        let word = if resolved { "__resolve_wait" } else { "__child" };
        Ok(change(builder.conclude(format!("{word}:{}", activation.place), &NOTHING, false)))
    }

    fn patched(&self, patch: &Patch) -> Result<Decision, Rejected> {
        let mut builder = self.builder();
        builder.change_context(patch, None);
        check_context(self.compiled, &builder.next.context)?;
        Ok(change(builder.conclude("__operator:patch".to_owned(), &NOTHING, false)))
    }

    fn moved(&self, which: Option<ActivationId>, to: &Name) -> Result<Decision, Rejected> {
        let Some(&place) = self.compiled.by_name.get(to) else {
            let hint = did_you_mean(to, self.compiled.by_name.keys().map(Name::as_str));
            let workflow = self.snapshot.workflow.clone();
            return Err(Refusal::UnknownPlace { workflow, place: to.to_string(), hint }.into());
        };
        let not_there =
            |activation| Refusal::NoActivation { activation, active: self.snapshot.current_places() };
        let only = which.map(|id| self.snapshot.activation(id).ok_or_else(|| not_there(id))).transpose()?;
        self.can_be_moved_to(place, only).map_err(|why| Refusal::CannotEnter { place: to.clone(), why })?;
        let mut builder = self.builder();
        let origin = match only.and_then(|activation| builder.take(activation.id)) {
            // A manual move resets the retry counts.
            Some(taken) => Origin { retried: Default::default(), ..Origin::of(taken) },
            None => {
                builder.end_all();
                Origin::default()
            }
        };
        builder.enter(place, origin, &NOTHING)?;
        Ok(change(builder.conclude("__operator:move".to_owned(), &NOTHING, false)))
    }

    fn can_be_moved_to(&self, place: PlaceIndex, only: Option<&Activation>) -> Result<(), String> {
        if matches!(&self.compiled.places[place].kind, PlaceKind::Wait(wait) if wait.children.is_some()) {
            return Err("it waits for children, and a move does not start any".to_owned());
        }
        let frames = only.map(|activation| activation.frames.as_slice()).unwrap_or_default();
        if let Some(scope) = self.compiled.missing_scope(place, frames) {
            return Err(format!(
                "it is inside `{scope}`, which can be entered only through `{scope}` itself"
            ));
        }
        let branch = only.and_then(|activation| activation.branch);
        let index = |fork: &Name| self.compiled.by_name.get(fork).copied();
        let around = ways::forks_around(self.snapshot, branch, index);
        ways::enter(self.compiled, place, around.unwrap_or_default())
    }

    fn cancelled(&self) -> Decision {
        let mut builder = self.builder();
        builder.finish(RunEnd::Cancelled);
        change(builder.conclude("__operator:cancel".to_owned(), &NOTHING, false))
    }

    fn builder(&self) -> DecisionBuilder<'a> {
        DecisionBuilder::new(self.compiled, self.snapshot.clone(), self.now)
    }

    fn blocked_by(&self, candidate: Candidate<'_>) -> Result<Option<String>, DecideError> {
        let Candidate { transition, activation } = candidate;
        if transition.on.is_timer() {
            let timer = activation.timers.iter().find(|timer| timer.transition == transition.id);
            match timer {
                None => return Ok(Some("the wait was resolved before the timer was due".to_owned())),
                Some(timer) if timer.at > self.now => return Ok(Some(format!("timer, due {}", timer.at))),
                Some(_) => {}
            }
        } else {
            match activation.status {
                ActivationStatus::Waiting => return Ok(Some(format!("`{}` is waiting", activation.place))),
                ActivationStatus::EntryBlocked => {
                    return Ok(Some(format!("`{}` could not be entered", activation.place)));
                }
                ActivationStatus::Active => {}
            }
        }
        Ok(self.guard(candidate, &NOTHING)?.map(|no| format!("guard {}", no.guard)))
    }
}

/// A decision, or the error why the target place cannot be entered.
type Entered = Result<Decision, DecideError>;

/// The values a transition writes into the run's data.
type Writes<'a> = Vec<(&'a Save, Value)>;

/// Computes the values that a transition writes. Returns an error if the transition raises a failure.
fn writes<'t>(transition: &'t TransitionNode, view: &View<'_>) -> Result<Writes<'t>, DecideError> {
    let mut budget = Budget::default();
    let mut render = |template: &Template, what: &str| {
        let at = || format!("{what} of transition `{}`", transition.id);
        template.render(view, &mut budget).map_err(|error| DecideError::Template { at: at(), error })
    };
    match &transition.fail {
        Some(RaiseNode::New { code, message, is_final, errors }) => {
            let (code, message) = (render(code, "code")?, render(message, "message")?);
            let errors = errors.as_ref().map(|errors| render(errors, "errors")).transpose()?;
            let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let failure = Failure { is_final: *is_final, ..Failure::new(text(code), text(message)) };
            return Err(DecideError::Raised(match field_errors(errors.as_ref()) {
                Ok(errors) => Failure { errors, ..failure },
                Err(wrong) => wrong,
            }));
        }
        Some(RaiseNode::Again(local)) => {
            let held = view.root(local).and_then(|held| serde_json::from_value(held.clone()).ok());
            let lost = || Failure::new("failed", format!("local `{local}` holds no error to raise again"));
            return Err(DecideError::Raised(held.unwrap_or_else(lost)));
        }
        None => {}
    }
    let write = |(save, value): &'t (Save, Template)| match value.copied() {
        // An accepted payload is copied without spending the budget of an expression, which limits the size of
        // values.
        Some(pointer) => Ok((save, view.event().pointer(pointer).cloned().unwrap_or_default())),
        None => Ok((save, render(value, "`set`")?)),
    };
    transition.set.iter().map(write).collect()
}

/// The rule that the errors of a raised failure violate, unless they name one.
const REJECTED: &str = "rejected";

/// Reads the errors of a raised failure: a list of `{pointer, message, code?}`.
fn field_errors(errors: Option<&Value>) -> Result<Vec<SchemaViolation>, Failure> {
    let wrong = |found: &Value| {
        let message = format!("`errors` must be a list of `{{pointer, message}}` (got {found})");
        Failure::new("invalidErrors", message).non_retryable()
    };
    let items = match errors {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong(other)),
    };
    let item = |item: &Value| {
        let text = |field: &str| item.get(field).and_then(Value::as_str);
        let pointer = text("pointer").filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let (pointer, message) = pointer.zip(text("message")).ok_or_else(|| wrong(item))?;
        let keyword = text("code").unwrap_or(REJECTED).to_owned();
        Ok(SchemaViolation { pointer: pointer.to_owned(), keyword, message: message.to_owned() })
    };
    items.iter().map(item).collect()
}

/// Writes the values. The last one is the result that the transition gives to a join or loop.
fn write(
    builder: &mut DecisionBuilder<'_>,
    origin: &mut Origin,
    writes: Writes<'_>,
) -> Result<(), DecideError> {
    let is_shared = writes.iter().any(|(save, _)| !save.is_local);
    for (save, value) in writes {
        builder.put(save, &mut origin.locals, value.clone())?;
        origin.entry_value = EntryValue::Value(value);
    }
    if is_shared { check_context(builder.compiled, &builder.next.context) } else { Ok(()) }
}

/// Returns the payload of the input, or else the payload that resolved the activation's wait.
fn effective_payload<'v>(activation: &'v Activation, payload: &'v Value) -> &'v Value {
    if payload.is_null() { activation.received.as_ref().unwrap_or(payload) } else { payload }
}

/// Returns the action name for the history entry.
fn named(cause: &Cause, transition: &TransitionNode, activation: &Activation) -> String {
    match cause {
        Cause::Auto => format!("__auto:{}", transition.id),
        Cause::Signal(name) => name.to_string(),
        Cause::Timer => format!("__timer:{}", activation.place),
    }
}

fn change(change: Change) -> Decision {
    Decision::Change(Box::new(change))
}
