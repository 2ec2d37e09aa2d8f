//! Decide: the only place that knows which transitions are legal.
//!
//! Pure. The snapshot goes in, and out comes what happens ([`Decision`]) or why nothing does ([`Rejected`]). A
//! transition with an action takes two calls: the first says that the action is to run and leaves the snapshot
//! alone ([`Decision::Act`]); the second, with the action's result as its event, moves the run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::definition::{
    Compiled, Definition, LoopNode, PlaceIndex, PlaceKind, RaiseNode, TransitionNode, WaitNode,
};
use crate::expr::{Budget, Scope};
use crate::guard::{Answers, View, verdict};
use crate::history::{Entry, cut};
use crate::ids::{Name, RunId};
use crate::limits::{LimitExceeded, Limits, json_bytes};
use crate::near::did_you_mean;
use crate::patch::Patch;
use crate::refusal::{DecideError, Failure, GuardNo, Refusal, Rejected};
use crate::save::Save;
use crate::snapshot::{
    Activation, ActivationId, ActivationStatus, CORRELATION, ChildEnd, Finished, Gave, Snapshot,
};
use crate::spec::{Firing, LoopStep};
use crate::template::Template;
use crate::time::Timestamp;
use crate::topic;
use crate::turn::{Candidate, Candidates, Origin, Turn, Way, check_context};
use crate::ways;

/// Something that happens to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A signal came.
    Signalled {
        /// Its name.
        signal: Name,
        /// What it brought.
        payload: Value,
    },
    /// A signal comes for one activation and no other.
    Answered {
        /// The activation.
        activation: ActivationId,
        /// The signal's name.
        signal: Name,
        /// What it brought.
        payload: Value,
    },
    /// The run may go on by itself.
    Advanced {
        /// Only this activation; without it, the first that can.
        activation: Option<ActivationId>,
    },
    /// A timer is due.
    TimerFired {
        /// The activation it runs for.
        activation: ActivationId,
    },
    /// Somebody resolves a wait directly.
    WaitResolved {
        /// The activation that waits.
        activation: ActivationId,
        /// What it is resolved with.
        payload: Value,
    },
    /// An action has done its work.
    ActionDone {
        /// The call, as it was given out.
        call: ActionCall,
        /// What came of it.
        outcome: Outcome,
    },
    /// An action has failed.
    ActionFailed {
        /// The call, as it was given out.
        call: ActionCall,
        /// What went wrong.
        failure: Failure,
        /// Retries already made.
        retries: u32,
    },
    /// A failed action is to be tried again: its time has come, or somebody asks for it by hand.
    Retried {
        /// What failed.
        retrial: Retrial,
        /// Somebody asks for it: it is tried again where the run is, whatever the policy's target.
        by_hand: bool,
    },
    /// A child has ended.
    ChildDone {
        /// The activation that waits for it.
        activation: ActivationId,
        /// The child's number among those it waits for.
        child: u32,
        /// How it ended.
        end: ChildEnd,
    },
    /// An operator changes the context.
    Patched {
        /// The change.
        patch: Patch,
    },
    /// An operator moves the run, or one activation of it, to a place.
    Moved {
        /// Only this activation, which keeps its branch, loop position and locals. Without it the run as a whole:
        /// everything that goes on in it ends, and the place is entered afresh.
        activation: Option<ActivationId>,
        /// The place.
        to: Name,
    },
    /// The run is to end now.
    Cancelled,
}

static NOTHING: Value = Value::Null;

/// Why an activation can be left without asking again.
const FOUND: &str = "the activation was found in the snapshot the turn began with";

impl Event {
    /// A signal with its payload.
    pub fn signal(name: impl Into<Name>, payload: Value) -> Self {
        Event::Signalled { signal: name.into(), payload }
    }

    /// The run may go on by itself.
    pub fn advance() -> Self {
        Event::Advanced { activation: None }
    }

    /// What the event brings along.
    pub fn payload(&self) -> &Value {
        match self {
            Event::Signalled { payload, .. }
            | Event::Answered { payload, .. }
            | Event::WaitResolved { payload, .. } => payload,
            Event::ActionDone { call, .. } | Event::ActionFailed { call, .. } => &call.payload,
            Event::Retried { retrial, .. } => &retrial.payload,
            Event::Advanced { .. }
            | Event::TimerFired { .. }
            | Event::ChildDone { .. }
            | Event::Patched { .. }
            | Event::Moved { .. }
            | Event::Cancelled => &NOTHING,
        }
    }
}

/// What is to happen.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The run changes: a new version.
    Change(Box<Change>),
    /// An action is to run; nothing has changed yet.
    Act(ActionCall),
    /// The failed action is to be tried again later; the snapshot stays.
    Retry {
        /// Which retry it is, counted from 1.
        retry: u32,
        /// Not before then.
        at: Timestamp,
    },
    /// The run stays where it is, with this error.
    Stop(Failure),
}

/// A change of a run: the next snapshot, its history entry, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The next state.
    pub snapshot: Snapshot,
    /// What happened.
    pub entry: Entry,
    /// Activations that were ended from outside: whatever runs for them is fenced off.
    pub ended: Vec<ActivationId>,
    /// The run cannot go on: it stops with this error.
    pub stopped: Option<Failure>,
}

/// An action to run, and what to hand back with its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionCall {
    /// The activation it runs for.
    pub activation: ActivationId,
    /// The transition that is completed by it.
    pub transition: Name,
    /// The action's name.
    pub action: Name,
    /// Its input; secrets are still names in it.
    pub input: Value,
    /// What the trigger brought.
    pub payload: Value,
    /// What triggered the transition.
    pub cause: Cause,
    /// How long it may take; 0 = as long as it likes.
    pub timeout_ms: u64,
}

/// A failed action that is to be tried again: what to remember of its call until then. The input is made afresh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retrial {
    /// The activation it ran for.
    pub activation: ActivationId,
    /// The transition that is completed by it.
    pub transition: Name,
    /// What triggered the transition.
    pub cause: Cause,
    /// What the trigger brought.
    pub payload: Value,
}

impl Retrial {
    /// What is needed to try this call again.
    pub fn of(call: &ActionCall) -> Self {
        Retrial {
            activation: call.activation,
            transition: call.transition.clone(),
            cause: call.cause.clone(),
            payload: call.payload.clone(),
        }
    }
}

/// What triggered a transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Nothing outside: it is automatic.
    Auto,
    /// A signal of this name.
    Signal(Name),
    /// A timer.
    Timer,
}

/// What came of an action.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// What it changed in the context.
    pub context: Patch,
    /// The context as the action left it, in place of what it changed: only for a run that is still where it was when
    /// the action read it.
    pub whole: Option<Arc<Value>>,
    /// What it changed in the session slots.
    pub session: Patch,
    /// Locals for the activation in the next place.
    pub locals: Map<String, Value>,
    /// What it gave back; goes where the transition's `saveAs` says, and into the history.
    pub output: Value,
    /// How many children it started.
    pub children: u32,
    /// How long it took.
    pub duration_us: u64,
}

impl Outcome {
    fn check(&self, limits: &Limits) -> Result<(), LimitExceeded> {
        limits.children("the action", self.children as usize)?;
        limits.nesting("the output", &self.output)?;
        self.locals.values().try_for_each(|value| limits.nesting("a local", value))
    }
}

/// Begins a run: the snapshot at version 0, in its initial place.
pub fn start(
    definition: &Definition,
    run: RunId,
    context: Value,
    now: Timestamp,
) -> Result<Change, DecideError> {
    let compiled = definition.compiled();
    // A context is an object; the payload of a document is whatever it is started with.
    let is_nothing = context.is_null() && !compiled.spec.envelope;
    let context = if is_nothing { Value::Object(Map::new()) } else { context };
    let misfits = compiled.input.as_ref().map(|schema| schema.check(&context)).unwrap_or_default();
    if !misfits.is_empty() {
        return Err(DecideError::InputUnfit(misfits));
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
        passings: Vec::new(),
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
    let mut turn = Turn::new(compiled, snapshot, now);
    turn.enter(compiled.initial, Origin::default(), &context)?;
    // What it was started with is its first context; the history does not keep it twice.
    Ok(turn.conclude("__start".to_owned(), &NOTHING, true))
}

/// Decides what an event does to a run. `answers` holds what the named guards said, see
/// [`questions`](crate::questions).
pub fn dispatch(
    definition: &Definition,
    snapshot: &Snapshot,
    event: &Event,
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
        Event::Signalled { signal, payload } => decider.signalled(event, signal, payload, None),
        Event::Answered { activation, signal, payload } => {
            decider.signalled(event, signal, payload, Some(*activation))
        }
        Event::Advanced { .. } => decider.advanced(event),
        Event::TimerFired { activation } => decider.timer_fired(event, *activation),
        Event::WaitResolved { activation, payload } => decider.wait_resolved(*activation, payload),
        Event::ActionDone { call, outcome } => decider.action_done(call, outcome),
        Event::ActionFailed { call, failure, retries } => decider.action_failed(call, failure, *retries),
        Event::Retried { retrial, by_hand } => decider.retried(retrial, *by_hand),
        Event::ChildDone { activation, child, end } => decider.child_done(*activation, *child, end),
        Event::Patched { patch } => decider.patched(patch),
        Event::Moved { activation, to } => decider.moved(*activation, to),
        Event::Cancelled => Ok(decider.cancelled()),
    }
}

/// What a signal would do now, without doing it.
pub fn can_execute(
    definition: &Definition,
    snapshot: &Snapshot,
    signal: impl Into<Name>,
    payload: Value,
    answers: &Answers,
    now: Timestamp,
) -> Result<Decision, Rejected> {
    dispatch(definition, snapshot, &Event::signal(signal, payload), answers, now)
}

/// A transition that leaves a place the run is in.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Available {
    /// The activation it would move.
    pub activation: ActivationId,
    /// The transition.
    pub transition: Name,
    /// The place it is in.
    pub from: Name,
    /// The place it leads to.
    pub to: Name,
    /// The signal it needs, if it needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<Name>,
    /// Why it cannot fire now: a wait to be resolved, a timer not due, or the guard that says no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<String>,
}

/// Every transition out of the places the run is in, and what holds it back.
pub fn available(
    definition: &Definition,
    snapshot: &Snapshot,
    answers: &Answers,
    now: Timestamp,
) -> Result<Vec<Available>, DecideError> {
    let compiled = definition.compiled();
    let decider = Decider { compiled, snapshot, answers, now };
    let mut found = Vec::new();
    for activation in &snapshot.activations {
        let Some(place) = compiled.place(&activation.place) else { continue };
        for &index in &place.out {
            let transition = &compiled.transitions[index];
            found.push(Available {
                activation: activation.id,
                transition: transition.id.clone(),
                from: activation.place.clone(),
                to: compiled.places[transition.to].name.clone(),
                signal: transition.on.signal().cloned(),
                held_back_by: decider.held_back_by(Candidate { transition, activation })?,
            });
        }
    }
    Ok(found)
}

/// Everything a decision looks at.
struct Decider<'a> {
    compiled: &'a Compiled,
    snapshot: &'a Snapshot,
    answers: &'a Answers,
    now: Timestamp,
}

impl<'a> Decider<'a> {
    fn signalled(
        &self,
        event: &Event,
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
            let refusal =
                if verdicts.is_empty() { self.no_source(signal) } else { Refusal::GuardSaidNo { verdicts } };
            return Err(refusal.into());
        }
        let cause = Cause::Signal(signal.clone());
        if self.compiled.firing() == Firing::First {
            return match waits.first() {
                Some(wait) => Ok(self.resolve(&[*wait], payload)),
                None => self.fire_first(candidates, &cause, payload),
            };
        }
        let passing = match self.passing(candidates, payload) {
            Err(Rejected::Refused(Refusal::GuardSaidNo { .. })) if !waits.is_empty() => Vec::new(),
            other => other?,
        };
        if passing.is_empty() {
            return Ok(self.resolve(&waits, payload));
        }
        let mut turn = self.turn();
        waits.iter().for_each(|wait| turn.resolve(wait.id, payload.clone()));
        self.fire(turn, self.all_made(passing, payload)?, &cause, payload)
    }

    fn check_payload(&self, signal: &Name, payload: &Value) -> Result<(), Rejected> {
        let Some(schema) = self.compiled.signals.get(signal) else {
            let hint = did_you_mean(signal, self.compiled.signals.keys().map(Name::as_str));
            let workflow = self.snapshot.workflow.clone();
            return Err(Refusal::UnknownSignal { workflow, signal: signal.to_string(), hint }.into());
        };
        self.check_size(payload)?;
        let misfits = schema.as_ref().map(|schema| schema.check(payload)).unwrap_or_default();
        if misfits.is_empty() {
            return Ok(());
        }
        Err(Refusal::PayloadUnfit { signal: signal.clone(), misfits }.into())
    }

    /// The filter of a wait that does not want this signal.
    fn filtered(&self, wait: &Activation, payload: &Value) -> Option<GuardNo> {
        let node = self.waiting_in(wait)?;
        let view = View::new(self.snapshot, &wait.locals, payload, self.now);
        let no = |why: String| Some(GuardNo { transition: wait.place.clone(), guard: why });
        if let Some(of) = node.event.as_ref().and_then(|event| event.of.as_ref()) {
            let says = of.eval(&view, &mut Budget::default()).ok().flatten();
            let knows = wait.locals.get(CORRELATION);
            if says.is_none() || says.as_ref().map(topic::plain) != knows.map(topic::plain) {
                return no(format!("correlation `{}`", of.source()));
            }
        }
        let filter = node.filter.as_ref()?;
        match filter.truth(&view, &mut Budget::default()) {
            Ok(true) => None,
            Ok(false) => no(format!("`{}`", filter.source())),
            // What it asks cannot be told of this one: it is somebody else's.
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

    /// The wait place an activation waits in.
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
        let mut taken_in: Vec<_> = by_transition.map(|t| self.compiled.places[t.from].name.clone()).collect();
        for place in &self.compiled.places {
            if matches!(&place.kind, PlaceKind::Wait(wait) if wait.signal.as_ref() == Some(signal)) {
                taken_in.push(place.name.clone());
            }
        }
        taken_in.sort();
        taken_in.dedup();
        Refusal::NoActiveSource { what: signal.to_string(), taken_in, active: self.snapshot.current_places() }
    }

    fn advanced(&self, event: &Event) -> Result<Decision, Rejected> {
        let candidates = Candidates::of(self.compiled, self.snapshot, event);
        let at_rest = candidates.is_empty();
        let fired = if at_rest { None } else { Some(self.fire_by_mode(candidates, &Cause::Auto, &NOTHING)) };
        match fired {
            Some(Err(Rejected::Refused(refusal))) => self.go_on(event).unwrap_or(Err(refusal.into())),
            Some(decided) => decided,
            None => self.go_on(event).unwrap_or(Err(Refusal::AtRest.into())),
        }
    }

    /// What goes on without a transition: a run that rests in a loop, or stands before a place.
    fn go_on(&self, event: &Event) -> Option<Result<Decision, Rejected>> {
        let Event::Advanced { activation: only } = event else { return None };
        let is_meant = |one: &&Activation| only.is_none_or(|only| only == one.id);
        self.snapshot.activations.iter().filter(is_meant).find_map(|activation| {
            let place = *self.compiled.by_name.get(&activation.place)?;
            match &self.compiled.places[place].kind {
                _ if activation.status == ActivationStatus::Before => Some(self.go_in(activation, place)),
                PlaceKind::Loop(node) => Some(self.next_round(activation, place, node)),
                _ => None,
            }
        })
    }

    fn next_round(
        &self,
        resting: &Activation,
        place: PlaceIndex,
        node: &LoopNode,
    ) -> Result<Decision, Rejected> {
        let mut turn = self.turn();
        let origin = Origin::of(turn.leave(resting.id).expect(FOUND));
        turn.go_round(place, node, origin, &NOTHING)?;
        Ok(change(turn.conclude(format!("__loop:{}", resting.place), &NOTHING, false)))
    }

    /// The place it stands before is entered.
    fn go_in(&self, standing: &Activation, place: PlaceIndex) -> Result<Decision, Rejected> {
        let mut turn = self.turn();
        let (origin, event) = turn.go_in(standing.id).expect(FOUND);
        turn.enter(place, origin, &event)?;
        Ok(change(turn.conclude(format!("__enter:{}", standing.place), &NOTHING, false)))
    }

    fn timer_fired(&self, event: &Event, id: ActivationId) -> Result<Decision, Rejected> {
        let Some(activation) =
            self.snapshot.activation(id).filter(|activation| !activation.timers.is_empty())
        else {
            let active = self.snapshot.current_places();
            let what = format!("timer of activation {id}");
            return Err(Refusal::NoActiveSource { what, taken_in: Vec::new(), active }.into());
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
                let passing = self.passing(candidates, payload)?;
                self.fire(self.turn(), self.all_made(passing, payload)?, cause, payload)
            }
        }
    }

    fn all_made(
        &self,
        passing: Vec<Candidate<'a>>,
        payload: &Value,
    ) -> Result<Vec<(Candidate<'a>, Made<'a>)>, DecideError> {
        passing.into_iter().map(|candidate| Ok((candidate, self.made(candidate, payload)?))).collect()
    }

    /// Fires the first candidate whose guard says yes, or gives out its action.
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
                Ok(None) => match self.made(candidate, payload) {
                    Ok(made) => return self.fire(self.turn(), vec![(candidate, made)], cause, payload),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            return decided.or_else(|error| self.caught(candidate, error, payload));
        }
        Err(Refusal::GuardSaidNo { verdicts }.into())
    }

    /// What a transition without an action writes; the failure it declares, if it does.
    fn made(&self, candidate: Candidate<'a>, payload: &Value) -> Result<Made<'a>, DecideError> {
        let Candidate { transition, activation } = candidate;
        let event = at_hand(activation, payload);
        let view = View::new(self.snapshot, &activation.locals, event, self.now);
        made(transition, &view)
    }

    /// A transition has failed before it moved anything: the run goes where its errors lead.
    fn caught(
        &self,
        candidate: Candidate<'a>,
        error: DecideError,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        let Candidate { transition, activation } = candidate;
        let Some(place) = transition.error_place.filter(|_| error.can_be_caught()) else {
            return Err(error.into());
        };
        let mut turn = self.turn();
        let mut left = turn.leave(activation.id).expect(FOUND);
        left.retried.remove(&transition.id);
        turn.fail_to(place, left, &error.failure())?;
        Ok(change(turn.conclude(format!("__error:{}", transition.id), payload, false)))
    }

    /// The candidates whose guards say yes; none is a refusal.
    fn passing(
        &self,
        candidates: Vec<Candidate<'a>>,
        payload: &Value,
    ) -> Result<Vec<Candidate<'a>>, Rejected> {
        let (mut passing, mut verdicts) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match self.guard(candidate, payload)? {
                Some(no) => verdicts.push(no),
                None => passing.push(candidate),
            }
        }
        if passing.is_empty() {
            return Err(Refusal::GuardSaidNo { verdicts }.into());
        }
        Ok(passing)
    }

    fn guard(&self, candidate: Candidate<'_>, payload: &Value) -> Result<Option<GuardNo>, DecideError> {
        let Candidate { transition, activation } = candidate;
        let Some(guard) = &transition.guard else { return Ok(None) };
        let event = at_hand(activation, payload);
        let asked = (self.answers, self.now);
        let no = verdict(guard, &transition.id, self.snapshot, activation, event, asked)?;
        Ok(no.map(|guard| GuardNo { transition: transition.id.clone(), guard }))
    }

    fn call(
        &self,
        candidate: Candidate<'_>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<ActionCall, DecideError> {
        let Candidate { transition, activation } = candidate;
        let action = transition.action.as_ref().expect("only asked for a transition with an action");
        let event = at_hand(activation, payload);
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

    /// Fires transitions without actions, together, in one version.
    fn fire(
        &self,
        mut turn: Turn<'a>,
        chosen: Vec<(Candidate<'a>, Made<'a>)>,
        cause: &Cause,
        payload: &Value,
    ) -> Result<Decision, Rejected> {
        let mut moved: Vec<ActivationId> = Vec::new();
        let first = chosen.first().map(|(first, _)| named(cause, first.transition, first.activation));
        let several = chosen.len() > 1;
        for (Candidate { transition, activation }, made) in chosen {
            let mut origin = match turn.leave(activation.id) {
                Some(left) => Origin::of(left),
                None if moved.contains(&activation.id) => Origin::of(activation.clone()),
                // Another of them has ended its branch.
                None => continue,
            };
            if several {
                moved.push(activation.id);
            }
            origin.step_loop(transition.loop_step);
            origin.answered(transition, activation.received.is_some());
            turn.transitions.push(transition.id.clone());
            if let Err(error) = write(&mut turn, &mut origin, made) {
                return match several {
                    true => Err(error.into()),
                    false => self.caught(Candidate { transition, activation }, error, payload),
                };
            }
            let is_loop = matches!(self.compiled.places[transition.to].kind, PlaceKind::Loop(_));
            if is_loop && transition.loop_step == Some(LoopStep::Leave) {
                origin.gave = Gave::Leaves;
            }
            turn.enter(transition.to, origin, at_hand(activation, payload))?;
        }
        Ok(change(turn.conclude(first.unwrap_or_default(), payload, false)))
    }

    fn resolve(&self, waits: &[&Activation], payload: &Value) -> Decision {
        let mut turn = self.turn();
        waits.iter().for_each(|wait| turn.resolve(wait.id, payload.clone()));
        let place = waits.first().map(|wait| wait.place.as_str()).unwrap_or_default();
        change(turn.conclude(format!("__resolve_wait:{place}"), payload, false))
    }

    fn wait_resolved(&self, id: ActivationId, payload: &Value) -> Result<Decision, Rejected> {
        let waiting =
            self.snapshot.activation(id).and_then(|waiting| Some((waiting, self.waiting_in(waiting)?)));
        let Some((activation, wait)) = waiting else {
            let active = self.snapshot.current_places();
            let what = format!("wait of activation {id}");
            return Err(Refusal::NoActiveSource { what, taken_in: Vec::new(), active }.into());
        };
        match &wait.signal {
            // Whoever answers directly answers what the signal would have.
            Some(signal) => self.check_payload(signal, payload)?,
            None => self.check_size(payload)?,
        }
        Ok(self.resolve(&[activation], payload))
    }

    /// The activation and transition a result is about, if the run is still there.
    fn still_there(&self, id: ActivationId, transition: &Name) -> Result<Candidate<'a>, Refusal> {
        let gone = || Refusal::Superseded { activation: id, what: transition.clone() };
        let activation = self.snapshot.activation(id).ok_or_else(gone)?;
        let transition = self.compiled.transition(transition).ok_or_else(gone)?;
        let can_leave = if transition.on.is_timer() {
            activation.timers.iter().any(|timer| timer.transition == transition.id)
        } else {
            activation.status == ActivationStatus::Active
        };
        let is_here = self.compiled.places[transition.from].name == activation.place;
        if is_here && can_leave && transition.action.is_some() {
            return Ok(Candidate { transition, activation });
        }
        Err(gone())
    }

    fn action_done(&self, call: &ActionCall, outcome: &Outcome) -> Result<Decision, Rejected> {
        let candidate = self.still_there(call.activation, &call.transition)?;
        outcome.check(&self.compiled.limits).map_err(DecideError::from)?;
        let done = self.done(candidate, call, outcome, Way::In)?;
        // Children that were started are waited for where the run goes on, and nowhere before it.
        self.or_before(done, outcome.children == 0, || self.done(candidate, call, outcome, Way::Before))
    }

    /// What an action has come to is kept also if the place it leads to cannot be entered: that is not the action's mistake.
    /// The run then stands before that place.
    fn or_before(
        &self,
        entered: Entered,
        may_stand: bool,
        stand: impl FnOnce() -> Result<Entered, Rejected>,
    ) -> Result<Decision, Rejected> {
        match entered {
            Err(error) if may_stand && error.can_be_caught() => Ok(stand()??),
            entered => Ok(entered?),
        }
    }

    /// An action's result, and the place it leads to.
    fn done(
        &self,
        Candidate { transition, activation }: Candidate<'_>,
        call: &ActionCall,
        outcome: &Outcome,
        way: Way,
    ) -> Result<Entered, Rejected> {
        let limits = &self.compiled.limits;
        let mut turn = self.turn();
        let has_changed = turn.change_context(&outcome.context, outcome.whole.as_ref());
        turn.change_session(&outcome.session)?;
        let mut origin = Origin::of(turn.leave(activation.id).expect(FOUND));
        origin.step_loop(transition.loop_step);
        origin.retried.remove(&transition.id);
        origin.answered(transition, activation.received.is_some());
        origin.locals.extend(outcome.locals.clone());
        origin.children = outcome.children;
        match transition.action.as_ref().and_then(|action| action.save_as.as_ref()) {
            Some(save) => turn.save(save, &mut origin.locals, outcome.output.clone())?,
            None if has_changed => check_context(self.compiled, &turn.next.context)?,
            None => {}
        }
        if !transition.set.is_empty() {
            let view = View::new(&turn.next, &origin.locals, &call.payload, self.now);
            let made = made(transition, &view)?;
            write(&mut turn, &mut origin, made)?;
        }
        if matches!(self.compiled.places[transition.to].kind, PlaceKind::Join(_) | PlaceKind::Loop(_)) {
            origin.gave = Gave::Value(outcome.output.clone());
        }
        turn.transitions.push(transition.id.clone());
        if let Err(error) = turn.come_to(transition.to, origin, &call.payload, way) {
            return Ok(Err(error));
        }
        let mut done = turn.conclude(named(&call.cause, transition, activation), &call.payload, false);
        done.entry.input = cut(&call.input, limits);
        done.entry.output = cut(&outcome.output, limits);
        done.entry.duration_us = Some(outcome.duration_us);
        Ok(Ok(change(done)))
    }

    fn action_failed(
        &self,
        call: &ActionCall,
        failure: &Failure,
        retries: u32,
    ) -> Result<Decision, Rejected> {
        let Candidate { transition, activation } = self.still_there(call.activation, &call.transition)?;
        let retry = &transition.retry;
        if retry.covers(&failure.code, failure.is_final) {
            let earlier = activation.retried.get(&transition.id).copied().unwrap_or_default();
            let number = retries.saturating_add(earlier).saturating_add(1);
            if let Some(ms) = retry.delay_before(number) {
                return Ok(Decision::Retry { retry: number, at: self.now.plus_ms(ms) });
            }
        }
        let Some(place) = transition.error_place else {
            return Ok(Decision::Stop(failure.clone()));
        };
        let lead = |way: Way| -> Entered {
            let mut turn = self.turn();
            let mut left = turn.leave(activation.id).expect(FOUND);
            left.retried.remove(&transition.id);
            turn.fail_with(place, Origin::of(left), failure, way)?;
            let mut failed = turn.conclude(format!("__error:{}", transition.id), &call.payload, false);
            failed.entry.input = cut(&call.input, &self.compiled.limits);
            Ok(change(failed))
        };
        self.or_before(lead(Way::In), true, || Ok(lead(Way::Before)))
    }

    /// Tries a failed action again. Its guard said yes when it was first tried, and is not asked again.
    fn retried(&self, retrial: &Retrial, by_hand: bool) -> Result<Decision, Rejected> {
        let candidate = self.still_there(retrial.activation, &retrial.transition)?;
        let Candidate { transition, activation } = candidate;
        let target = match transition.retry_target {
            Some(target) if !by_hand => target,
            _ => return Ok(Decision::Act(self.call(candidate, &retrial.cause, &retrial.payload)?)),
        };
        let mut turn = self.turn();
        let mut origin = Origin::of(turn.leave(activation.id).expect(FOUND));
        let count = origin.retried.entry(transition.id.clone()).or_default();
        *count = count.saturating_add(1);
        turn.enter(target, origin, &retrial.payload)?;
        Ok(change(turn.conclude(format!("__retry:{}", transition.id), &retrial.payload, false)))
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
        let mut turn = self.turn();
        turn.child_ended(id, wait, child, end.clone())?;
        let resolved = turn.next.activation(id).is_some_and(|now| now.status == ActivationStatus::Active);
        let word = if resolved { "__resolve_wait" } else { "__child" };
        Ok(change(turn.conclude(format!("{word}:{}", activation.place), &NOTHING, false)))
    }

    fn patched(&self, patch: &Patch) -> Result<Decision, Rejected> {
        let mut turn = self.turn();
        turn.change_context(patch, None);
        check_context(self.compiled, &turn.next.context)?;
        Ok(change(turn.conclude("__operator:patch".to_owned(), &NOTHING, false)))
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
        let mut turn = self.turn();
        let origin = match only.and_then(|activation| turn.take(activation.id)) {
            // Whoever moves it by hand gives it all its retries again.
            Some(taken) => Origin { retried: Default::default(), ..Origin::of(taken) },
            None => {
                turn.end_all();
                Origin::default()
            }
        };
        turn.enter(place, origin, &NOTHING)?;
        Ok(change(turn.conclude("__operator:move".to_owned(), &NOTHING, false)))
    }

    fn can_be_moved_to(&self, place: PlaceIndex, only: Option<&Activation>) -> Result<(), String> {
        if matches!(&self.compiled.places[place].kind, PlaceKind::Wait(wait) if wait.children.is_some()) {
            return Err("it waits for children, and a move starts none".to_owned());
        }
        let frames = only.map(|activation| activation.frames.as_slice()).unwrap_or_default();
        if let Some(scope) = self.compiled.entered_without(place, frames) {
            return Err(format!("it is in the middle of `{scope}`, which is entered only through itself"));
        }
        let branch = only.and_then(|activation| activation.branch);
        let index = |fork: &Name| self.compiled.by_name.get(fork).copied();
        let around = ways::forks_around(self.snapshot, branch, index);
        ways::enter(self.compiled, place, around.unwrap_or_default())
    }

    fn cancelled(&self) -> Decision {
        let mut turn = self.turn();
        turn.finish(Finished::Cancelled);
        change(turn.conclude("__operator:cancel".to_owned(), &NOTHING, false))
    }

    fn turn(&self) -> Turn<'a> {
        Turn::new(self.compiled, self.snapshot.clone(), self.now)
    }

    fn held_back_by(&self, candidate: Candidate<'_>) -> Result<Option<String>, DecideError> {
        let Candidate { transition, activation } = candidate;
        if transition.on.is_timer() {
            let timer = activation.timers.iter().find(|timer| timer.transition == transition.id);
            match timer {
                None => return Ok(Some("its wait was resolved before the timer".to_owned())),
                Some(timer) if timer.at > self.now => return Ok(Some(format!("timer, due {}", timer.at))),
                Some(_) => {}
            }
        } else {
            match activation.status {
                ActivationStatus::Waiting => return Ok(Some(format!("`{}` is waiting", activation.place))),
                ActivationStatus::Before => {
                    return Ok(Some(format!("`{}` could not be entered", activation.place)));
                }
                ActivationStatus::Active => {}
            }
        }
        Ok(self.guard(candidate, &NOTHING)?.map(|no| format!("guard {}", no.guard)))
    }
}

/// A decision, or why the place it leads to cannot be entered.
type Entered = Result<Decision, DecideError>;

/// What a transition writes into the run's data.
type Made<'a> = Vec<(&'a Save, Value)>;

/// Makes what a transition writes, or the failure that it declares.
fn made<'t>(transition: &'t TransitionNode, view: &View<'_>) -> Result<Made<'t>, DecideError> {
    let mut budget = Budget::default();
    let mut render = |template: &Template, what: &str| {
        let at = || format!("{what} of transition `{}`", transition.id);
        template.render(view, &mut budget).map_err(|error| DecideError::Template { at: at(), error })
    };
    match &transition.fail {
        Some(RaiseNode::New(code, message)) => {
            let (code, message) = (render(code, "code")?, render(message, "message")?);
            let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return Err(DecideError::Raised(Failure::new(text(code), text(message))));
        }
        Some(RaiseNode::Again(local)) => {
            let held = view.root(local).and_then(|held| serde_json::from_value(held.clone()).ok());
            let lost = || Failure::new("failed", format!("`{local}` holds no error"));
            return Err(DecideError::Raised(held.unwrap_or_else(lost)));
        }
        None => {}
    }
    let write = |(save, value): &'t (Save, Template)| match value.copied() {
        // What was accepted is kept whole, however much an expression may make.
        Some(pointer) => Ok((save, view.event().pointer(pointer).cloned().unwrap_or_default())),
        None => Ok((save, render(value, "`set`")?)),
    };
    transition.set.iter().map(write).collect()
}

/// Writes it; the last of it is what the transition gives to a join or loop.
fn write(turn: &mut Turn<'_>, origin: &mut Origin, made: Made<'_>) -> Result<(), DecideError> {
    let is_shared = made.iter().any(|(save, _)| !save.is_local);
    for (save, value) in made {
        turn.put(save, &mut origin.locals, value.clone())?;
        origin.gave = Gave::Value(value);
    }
    if is_shared { check_context(turn.compiled, &turn.next.context) } else { Ok(()) }
}

/// The payload of the event, or else what the activation's wait was resolved with.
fn at_hand<'v>(activation: &'v Activation, payload: &'v Value) -> &'v Value {
    if payload.is_null() { activation.received.as_ref().unwrap_or(payload) } else { payload }
}

/// What the history calls it.
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
