//! Builder methods for writing a [`Spec`] in Rust. Each call adds one element; [`Spec::build`] checks them all.

use serde_json::Value;

use crate::admission::{ConcurrencyLimit, RateLimit};
use crate::ids::Name;
use crate::retry::Retry;
use crate::shadow::Shadow;
use crate::spec::{
    ActionSpec, Assign, Completion, DeliveryGuarantee, Firing, Fork, Guard, Join, LoopStep, Place, Quorum,
    Raise, Retention, SignalSpec, Spec, Transition, TransitionTrigger, Trigger, Wait,
};

impl Spec {
    /// Creates an empty workflow. Runs start in the first place that is added.
    pub fn new(name: impl Into<Name>) -> Self {
        Spec {
            name: name.into(),
            version: 1,
            initial: None,
            envelope: false,
            input: None,
            places: Default::default(),
            signals: Default::default(),
            documents: Default::default(),
            shadows: Default::default(),
            transitions: Vec::new(),
            context: None,
            output: None,
            triggers: Vec::new(),
            strategy: None,
            timeout_ms: None,
            concurrency: None,
            rate_limit: None,
            retention: None,
            firing: Firing::default(),
            completion: Completion::default(),
            document: None,
        }
    }

    /// Adds a trigger that starts runs of this workflow.
    #[must_use]
    pub fn started_by(mut self, trigger: Trigger) -> Self {
        self.triggers.push(trigger);
        self
    }

    /// Limits the number of runs that are active at a time.
    #[must_use]
    pub fn concurrency(mut self, limit: ConcurrencyLimit) -> Self {
        self.concurrency = Some(limit);
        self
    }

    /// Limits the number of runs that begin within a time.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(limit);
        self
    }

    /// Sets the strategy that keeps the state of flows: `sealed`, `handle`, `durable`, or a registered name.
    #[must_use]
    pub fn strategy(mut self, strategy: impl Into<String>) -> Self {
        self.strategy = Some(strategy.into());
        self
    }

    /// Sets the maximum lifetime of a run, in milliseconds. A run that has not ended by then is cancelled.
    #[must_use]
    pub fn timeout_ms(mut self, ms: u64) -> Self {
        self.timeout_ms = Some(ms);
        self
    }

    /// Sets the time for which ended runs are kept.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Sets the author's workflow version.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the place in which runs start, instead of the first one added.
    #[must_use]
    pub fn initial(mut self, place: impl Into<Name>) -> Self {
        self.initial = Some(place.into());
        self
    }

    /// Sets the JSON Schema of the context.
    #[must_use]
    pub fn context_schema(mut self, schema: Value) -> Self {
        self.context = Some(schema);
        self
    }

    /// Sets the JSON Schema of the result.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output = Some(schema);
        self
    }

    /// Declares a kind of document that the workflow writes, with the JSON Schema of its body.
    #[must_use]
    pub fn document(mut self, kind: impl Into<Name>, schema: Value) -> Self {
        self.documents.insert(kind.into(), schema);
        self
    }

    /// Adds a shadow column: a value of the context by which runs can be searched.
    #[must_use]
    pub fn shadow(mut self, name: impl Into<Name>, shadow: Shadow) -> Self {
        self.shadows.insert(name.into(), shadow);
        self
    }

    /// Sets the rule for choosing among several transitions whose guards pass.
    #[must_use]
    pub fn firing(mut self, firing: Firing) -> Self {
        self.firing = firing;
        self
    }

    /// Sets the rule for when a run is complete.
    #[must_use]
    pub fn completion(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// Adds a place of any kind.
    #[must_use]
    pub fn place(mut self, name: impl Into<Name>, place: Place) -> Self {
        let name = name.into();
        self.initial.get_or_insert_with(|| name.clone());
        self.places.insert(name, place);
        self
    }

    /// Adds a step, a place that a run leaves by transitions.
    #[must_use]
    pub fn step(self, name: impl Into<Name>) -> Self {
        self.place(name, Place::Step {})
    }

    /// Adds an end place without a result.
    #[must_use]
    pub fn end(self, name: impl Into<Name>) -> Self {
        self.place(name, Place::End { output: None, error_place: None })
    }

    /// Adds an end place with a result.
    #[must_use]
    pub fn end_with(self, name: impl Into<Name>, output: Value) -> Self {
        self.place(name, Place::End { output: Some(output), error_place: None })
    }

    /// Adds a wait place that a signal resolves.
    #[must_use]
    pub fn wait(self, name: impl Into<Name>, signal: impl Into<Name>) -> Self {
        self.place(name, Place::Wait(Wait { signal: Some(signal.into()), ..Wait::default() }))
    }

    /// Adds a fork with the given branches.
    #[must_use]
    pub fn fork<N: Into<Name>>(self, name: impl Into<Name>, branches: impl IntoIterator<Item = N>) -> Self {
        let branches = branches.into_iter().map(Into::into).collect();
        self.place(name, Place::Fork(Fork { branches, each: None }))
    }

    /// Adds a join of the places in `of` that fires at the given quorum.
    #[must_use]
    pub fn join<N: Into<Name>>(
        self,
        name: impl Into<Name>,
        quorum: Quorum,
        of: impl IntoIterator<Item = N>,
    ) -> Self {
        let of = of.into_iter().map(Into::into).collect();
        self.place(name, Place::Join(Join { of, quorum, ..Join::default() }))
    }

    /// Declares a signal with any payload.
    #[must_use]
    pub fn signal(mut self, name: impl Into<Name>) -> Self {
        self.signals.insert(name.into(), SignalSpec::default());
        self
    }

    /// Declares a signal whose payload must match a JSON Schema.
    #[must_use]
    pub fn signal_with(mut self, name: impl Into<Name>, payload: Value) -> Self {
        self.signals.insert(name.into(), SignalSpec { payload: Some(payload) });
        self
    }

    /// Adds a transition; see [`Transition::new`] and its methods.
    #[must_use]
    pub fn transition(mut self, transition: Transition) -> Self {
        self.transitions.push(transition);
        self
    }

    /// Adds a transition that fires automatically, without a guard or an action.
    #[must_use]
    pub fn auto(self, id: impl Into<Name>, from: impl Into<Name>, to: impl Into<Name>) -> Self {
        self.transition(Transition::new(id, from, to))
    }

    /// Adds a transition that fires on a signal.
    #[must_use]
    pub fn on_signal(
        self,
        id: impl Into<Name>,
        from: impl Into<Name>,
        signal: impl Into<Name>,
        to: impl Into<Name>,
    ) -> Self {
        self.transition(Transition::new(id, from, to).on(TransitionTrigger::Signal(signal.into())))
    }
}

impl Transition {
    /// Creates an automatic transition without a guard or an action.
    pub fn new(id: impl Into<Name>, from: impl Into<Name>, to: impl Into<Name>) -> Self {
        Transition {
            id: id.into(),
            from: from.into(),
            to: to.into(),
            on: TransitionTrigger::Auto,
            guard: None,
            priority: 0,
            action: None,
            set: Vec::new(),
            fail: None,
            retry: None,
            error_place: None,
            timeout_ms: None,
            loop_step: None,
            delivery: DeliveryGuarantee::default(),
            heartbeat: false,
        }
    }

    /// Sets the trigger that fires this transition.
    #[must_use]
    pub fn on(mut self, trigger: TransitionTrigger) -> Self {
        self.on = trigger;
        self
    }

    /// Makes the transition fire on this signal.
    #[must_use]
    pub fn on_signal(self, signal: impl Into<Name>) -> Self {
        self.on(TransitionTrigger::Signal(signal.into()))
    }

    /// Makes the transition fire this number of milliseconds after its place was entered.
    #[must_use]
    pub fn after_ms(self, ms: u64) -> Self {
        self.on(TransitionTrigger::AfterMs(ms))
    }

    /// Sets the guard that must pass before the transition fires.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Sets an expression as the guard. The transition fires only if it is true.
    #[must_use]
    pub fn when(self, expression: impl Into<String>) -> Self {
        self.guard(Guard::Expr(expression.into()))
    }

    /// Sets the priority. Transitions with a higher priority are tried first.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the action that runs before the transition is committed.
    #[must_use]
    pub fn action(mut self, name: impl Into<Name>) -> Self {
        self.action =
            Some(ActionSpec { name: name.into(), input: Value::Null, save_as: None, version: None });
        self
    }

    /// Sets the input of the action. `{"$expr": …}` marks parts computed from the state. Has no effect without an
    /// action.
    #[must_use]
    pub fn input(mut self, input: Value) -> Self {
        if let Some(action) = &mut self.action {
            action.input = input;
        }
        self
    }

    /// Sets the path at which the output of the action is saved. Has no effect without an action.
    #[must_use]
    pub fn save_as(mut self, field: impl Into<String>) -> Self {
        if let Some(action) = &mut self.action {
            action.save_as = Some(field.into());
        }
        self
    }

    /// Sets the action that runs before the transition is committed, with its input and the path of its output.
    #[must_use]
    pub fn action_with(mut self, action: ActionSpec) -> Self {
        self.action = Some(action);
        self
    }

    /// Sets the retry policy of the action.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the place entered when the transition has failed and is not retried any more.
    #[must_use]
    pub fn error_place(mut self, place: impl Into<Name>) -> Self {
        self.error_place = Some(place.into());
        self
    }

    /// Adds a value that the transition writes into the run's data. `{"$expr": …}` marks parts computed from the run.
    #[must_use]
    pub fn set(mut self, to: impl Into<String>, value: Value) -> Self {
        self.set.push(Assign { to: to.into(), value });
        self
    }

    /// Makes the transition fail with this error instead of entering its target.
    #[must_use]
    pub fn fail(mut self, code: impl Into<Value>, message: impl Into<Value>) -> Self {
        let (is_final, errors) = (None, None);
        self.fail = Some(Raise::New { code: code.into(), message: message.into(), is_final, errors });
        self
    }

    /// Sets the step or wait that a retry goes back to.
    #[must_use]
    pub fn retry_target(mut self, place: impl Into<Name>) -> Self {
        self.retry.get_or_insert_with(Retry::default).target = Some(place.into());
        self
    }

    /// Sets the timeout of the action in milliseconds; 0 means unlimited.
    #[must_use]
    pub fn timeout_ms(mut self, ms: u64) -> Self {
        self.timeout_ms = Some(ms);
        self
    }

    /// Makes a crash end the attempt of the action with `interrupted`, instead of executing the action again.
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        self.delivery = DeliveryGuarantee::AtMostOnce;
        self
    }

    /// Makes a heartbeat restart the timer of this transition.
    #[must_use]
    pub fn restarted_by_heartbeat(mut self) -> Self {
        self.heartbeat = true;
        self
    }

    /// Sets the effect of this transition on the loop position.
    #[must_use]
    pub fn loop_step(mut self, step: LoopStep) -> Self {
        self.loop_step = Some(step);
        self
    }
}

impl Guard {
    /// Creates a guard that calls the host program's function of this name.
    pub fn named(name: impl Into<Name>) -> Self {
        Guard::Named(name.into())
    }

    /// Creates a guard that requires this expression to be true.
    pub fn expr(expression: impl Into<String>) -> Self {
        Guard::Expr(expression.into())
    }
}
