//! The short way to write a [`Spec`] in Rust: every call adds one thing, `build` checks them all.

use serde_json::Value;

use crate::ids::Name;
use crate::retry::Retry;
use crate::shadow::Shadow;
use crate::spec::{
    Action, Assign, Completion, Firing, Fork, Guard, Join, LoopStep, Place, Quorum, Raise, Signal, Spec,
    Starter, Transition, Trigger, Wait,
};

impl Spec {
    /// An empty workflow; the first place added is where it begins.
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
            firing: Firing::default(),
            completion: Completion::default(),
            document: None,
        }
    }

    /// Something that starts it by itself.
    #[must_use]
    pub fn started_by(mut self, starter: Starter) -> Self {
        self.triggers.push(starter);
        self
    }

    /// The author's number for this edition.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Begins in this place instead of the first one added.
    #[must_use]
    pub fn initial(mut self, place: impl Into<Name>) -> Self {
        self.initial = Some(place.into());
        self
    }

    /// JSON Schema of the context.
    #[must_use]
    pub fn context_schema(mut self, schema: Value) -> Self {
        self.context = Some(schema);
        self
    }

    /// JSON Schema of the result.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output = Some(schema);
        self
    }

    /// A kind of document the workflow writes, with the JSON Schema of its body.
    #[must_use]
    pub fn document(mut self, kind: impl Into<Name>, schema: Value) -> Self {
        self.documents.insert(kind.into(), schema);
        self
    }

    /// A value of the context that runs can be found by, under the name of a column.
    #[must_use]
    pub fn shadow(mut self, name: impl Into<Name>, shadow: Shadow) -> Self {
        self.shadows.insert(name.into(), shadow);
        self
    }

    /// Which of several passing transitions fire.
    #[must_use]
    pub fn firing(mut self, firing: Firing) -> Self {
        self.firing = firing;
        self
    }

    /// When the run is complete.
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

    /// Adds a step place.
    #[must_use]
    pub fn step(self, name: impl Into<Name>) -> Self {
        self.place(name, Place::Step {})
    }

    /// Adds an end place.
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

    /// Adds a fork.
    #[must_use]
    pub fn fork<N: Into<Name>>(self, name: impl Into<Name>, branches: impl IntoIterator<Item = N>) -> Self {
        let branches = branches.into_iter().map(Into::into).collect();
        self.place(name, Place::Fork(Fork { branches, each: None }))
    }

    /// Adds a join.
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
        self.signals.insert(name.into(), Signal::default());
        self
    }

    /// Declares a signal whose payload must fit a JSON Schema.
    #[must_use]
    pub fn signal_with(mut self, name: impl Into<Name>, payload: Value) -> Self {
        self.signals.insert(name.into(), Signal { payload: Some(payload) });
        self
    }

    /// Adds a transition; see [`Transition::new`] and its methods.
    #[must_use]
    pub fn transition(mut self, transition: Transition) -> Self {
        self.transitions.push(transition);
        self
    }

    /// Adds an automatic transition.
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
        self.transition(Transition::new(id, from, to).on(Trigger::Signal(signal.into())))
    }
}

impl Transition {
    /// An automatic transition without guard or action.
    pub fn new(id: impl Into<Name>, from: impl Into<Name>, to: impl Into<Name>) -> Self {
        Transition {
            id: id.into(),
            from: from.into(),
            to: to.into(),
            on: Trigger::Auto,
            guard: None,
            priority: 0,
            action: None,
            set: Vec::new(),
            fail: None,
            retry: None,
            error_place: None,
            timeout_ms: None,
            loop_step: None,
        }
    }

    /// What makes it fire.
    #[must_use]
    pub fn on(mut self, trigger: Trigger) -> Self {
        self.on = trigger;
        self
    }

    /// Fires on a signal.
    #[must_use]
    pub fn on_signal(self, signal: impl Into<Name>) -> Self {
        self.on(Trigger::Signal(signal.into()))
    }

    /// Fires so many milliseconds after its place was entered.
    #[must_use]
    pub fn after_ms(self, ms: u64) -> Self {
        self.on(Trigger::AfterMs(ms))
    }

    /// Must say yes for it to fire.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// An expression must be true for it to fire.
    #[must_use]
    pub fn when(self, expression: impl Into<String>) -> Self {
        self.guard(Guard::Expr(expression.into()))
    }

    /// Higher goes first.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The code that runs before the transition is committed.
    #[must_use]
    pub fn action(mut self, name: impl Into<Name>) -> Self {
        self.action = Some(Action { name: name.into(), input: Value::Null, save_as: None, version: None });
        self
    }

    /// What its action is given, with `{"$expr": …}` in it where that depends on the state.
    #[must_use]
    pub fn input(mut self, input: Value) -> Self {
        if let Some(action) = &mut self.action {
            action.input = input;
        }
        self
    }

    /// The context field that its action's output is put into.
    #[must_use]
    pub fn save_as(mut self, field: impl Into<String>) -> Self {
        if let Some(action) = &mut self.action {
            action.save_as = Some(field.into());
        }
        self
    }

    /// The code that runs before the transition is committed, with its input and where its output goes.
    #[must_use]
    pub fn action_with(mut self, action: Action) -> Self {
        self.action = Some(action);
        self
    }

    /// What happens when the action fails.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Where the run goes when the transition has failed for good.
    #[must_use]
    pub fn error_place(mut self, place: impl Into<Name>) -> Self {
        self.error_place = Some(place.into());
        self
    }

    /// Writes a value into the run's data, with `{"$expr": …}` in it where it depends on the run.
    #[must_use]
    pub fn set(mut self, to: impl Into<String>, value: Value) -> Self {
        self.set.push(Assign { to: to.into(), value });
        self
    }

    /// It fails with this instead of leading to its target.
    #[must_use]
    pub fn fail(mut self, code: impl Into<Value>, message: impl Into<Value>) -> Self {
        self.fail = Some(Raise::New { code: code.into(), message: message.into() });
        self
    }

    /// The step or wait from which a retry begins again.
    #[must_use]
    pub fn retry_target(mut self, place: impl Into<Name>) -> Self {
        self.retry.get_or_insert_with(Retry::default).target = Some(place.into());
        self
    }

    /// How long the action may take; 0 = as long as it likes.
    #[must_use]
    pub fn timeout_ms(mut self, ms: u64) -> Self {
        self.timeout_ms = Some(ms);
        self
    }

    /// What it does to the loop position.
    #[must_use]
    pub fn loop_step(mut self, step: LoopStep) -> Self {
        self.loop_step = Some(step);
        self
    }
}

impl Guard {
    /// A function of the host's, found by name.
    pub fn named(name: impl Into<Name>) -> Self {
        Guard::Named(name.into())
    }

    /// An expression that must be true.
    pub fn expr(expression: impl Into<String>) -> Self {
        Guard::Expr(expression.into())
    }
}
