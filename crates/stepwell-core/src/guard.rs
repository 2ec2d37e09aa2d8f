//! Guards: what may hold a transition back, and how the host answers the ones written as functions.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::definition::{Definition, GuardNode};
use crate::dispatch::Event;
use crate::expr::Scope;
use crate::ids::Name;
use crate::refusal::DecideError;
use crate::snapshot::{Activation, ActivationId, Snapshot};
use crate::spec::Guard;
use crate::time::Timestamp;
use crate::turn::Candidates;

/// A named guard somebody has to answer before an event can be decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The guard's name.
    pub guard: Name,
    /// The activation it is asked about.
    pub activation: ActivationId,
}

/// What the named guards said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    by_activation: BTreeMap<Question, bool>,
    by_name: BTreeMap<Name, bool>,
}

impl Answers {
    /// No named guard was asked.
    pub fn none() -> Self {
        Answers::default()
    }

    /// The same answer for every activation.
    #[must_use]
    pub fn with(mut self, guard: impl Into<Name>, says: bool) -> Self {
        self.by_name.insert(guard.into(), says);
        self
    }

    /// The answer to one question.
    pub fn put(&mut self, question: Question, says: bool) {
        self.by_activation.insert(question, says);
    }

    fn get(&self, guard: &Name, activation: ActivationId) -> Option<bool> {
        let question = Question { guard: guard.clone(), activation };
        self.by_activation.get(&question).or_else(|| self.by_name.get(guard)).copied()
    }
}

/// The named guards that deciding this event may ask, each once.
pub fn questions(definition: &Definition, snapshot: &Snapshot, event: &Event) -> Vec<Question> {
    let mut questions = Vec::new();
    for candidate in Candidates::of(definition.compiled(), snapshot, event) {
        let mut names = Vec::new();
        if let Some(guard) = &candidate.transition.guard {
            guard.named(&mut names);
        }
        let activation = candidate.activation.id;
        questions.extend(names.into_iter().map(|guard| Question { guard: guard.clone(), activation }));
    }
    questions.sort();
    questions.dedup();
    questions
}

/// What a guard function is shown.
#[derive(Debug, Clone, Copy)]
pub struct GuardView<'a> {
    /// The run's state.
    pub snapshot: &'a Snapshot,
    /// The activation that would move.
    pub activation: &'a Activation,
    /// The payload of the event.
    pub payload: &'a Value,
}

type GuardFn = dyn Fn(GuardView<'_>) -> bool + Send + Sync;

/// Guards written as Rust functions, by name. The definition keeps only the names.
#[derive(Clone, Default)]
pub struct Guards(BTreeMap<Name, Arc<GuardFn>>);

impl Guards {
    /// None.
    pub fn new() -> Self {
        Guards::default()
    }

    /// Registers a function under a name.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.inject(name, guard);
        self
    }

    /// Registers a function and gives the guard that asks it, for a transition that is being written:
    ///
    /// ```
    /// use stepwell_core::spec::Transition;
    /// use stepwell_core::{Guards, Spec};
    ///
    /// let mut guards = Guards::new();
    /// let is_small = guards.register("is_small", |view| view.payload["amount"].as_i64() < Some(100));
    /// let order = Spec::new("order")
    ///     .step("open")
    ///     .end("paid")
    ///     .signal("PAY")
    ///     .transition(Transition::new("pay", "open", "paid").on_signal("PAY").guard(is_small))
    ///     .build()?;
    /// assert_eq!(order.named_guards(), ["is_small"]);
    /// # Ok::<(), stepwell_core::Problems>(())
    /// ```
    pub fn register(
        &mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) -> Guard {
        let name = name.into();
        self.inject(name.clone(), guard);
        Guard::Named(name)
    }

    /// Registers a function under a name, replacing the one that had it.
    pub fn inject(
        &mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.0.insert(name.into(), Arc::new(guard));
    }

    /// Answers every question it can; what it does not know stays open and is an error when it is needed.
    pub fn answer(&self, definition: &Definition, snapshot: &Snapshot, event: &Event) -> Answers {
        let mut answers = Answers::none();
        if self.0.is_empty() {
            return answers;
        }
        let payload = event.payload();
        for question in questions(definition, snapshot, event) {
            let (Some(guard), Some(activation)) =
                (self.0.get(&question.guard), snapshot.activation(question.activation))
            else {
                continue;
            };
            let says = guard(GuardView { snapshot, activation, payload });
            answers.put(question, says);
        }
        answers
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What expressions can see: `context`, `event` (the payload at hand), `locals`, `session` and `meta`; any other name is
/// looked up in the locals and then in the context.
pub(crate) struct View<'a> {
    snapshot: &'a Snapshot,
    locals: &'a Map<String, Value>,
    event: &'a Value,
    now: Timestamp,
    /// Made when first asked for: most expressions read only the context or the event.
    made: [OnceCell<Value>; 4],
}

/// The variables of a run. Those that a branch of a fork over a list has made are its own, and lie over them.
pub(crate) const VARS: &str = "vars";

const ROOTS: [&str; 5] = ["context", "event", "locals", "session", "meta"];

impl<'a> View<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        locals: &'a Map<String, Value>,
        event: &'a Value,
        now: Timestamp,
    ) -> Self {
        View { snapshot, locals, event, now, made: Default::default() }
    }

    /// What the event at hand brought.
    pub(crate) fn event(&self) -> &'a Value {
        self.event
    }

    fn vars(&self, own: &Map<String, Value>) -> Value {
        let mut vars =
            self.snapshot.context.get(VARS).and_then(Value::as_object).cloned().unwrap_or_default();
        vars.extend(own.clone());
        Value::Object(vars)
    }

    fn meta(&self) -> Value {
        serde_json::json!({
            "instanceId": self.snapshot.instance_id,
            "workflow": self.snapshot.workflow,
            "definitionVersion": self.snapshot.definition_version,
            "version": self.snapshot.version,
            "createdAt": self.snapshot.created_at,
        })
    }
}

impl Scope for View<'_> {
    fn root(&self, name: &str) -> Option<&Value> {
        let [locals, session, meta, vars] = &self.made;
        if let (VARS, Some(Value::Object(own))) = (name, self.locals.get(VARS)) {
            return Some(vars.get_or_init(|| self.vars(own)));
        }
        match name {
            "context" => Some(&self.snapshot.context),
            "event" => Some(self.event),
            "locals" => Some(locals.get_or_init(|| Value::Object(self.locals.clone()))),
            "session" => Some(session.get_or_init(|| Value::Object(self.snapshot.session().clone()))),
            "meta" => Some(meta.get_or_init(|| self.meta())),
            other => self.locals.get(other).or_else(|| self.snapshot.context.get(other)),
        }
    }

    fn names(&self) -> Vec<&str> {
        let locals = self.locals.keys().map(String::as_str);
        let context = self.snapshot.context.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        ROOTS.into_iter().chain(locals).chain(context).collect()
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.now)
    }
}

/// A guard's verdict: yes, or the part of it that said no.
pub(crate) fn verdict(
    guard: &GuardNode,
    transition: &Name,
    snapshot: &Snapshot,
    activation: &Activation,
    event: &Value,
    asked: (&Answers, Timestamp),
) -> Result<Option<String>, DecideError> {
    let (answers, now) = asked;
    let ask = |guard: &GuardNode| verdict(guard, transition, snapshot, activation, event, asked);
    let no = |says: bool| if says { None } else { Some(text(guard)) };
    Ok(match guard {
        GuardNode::Expr(condition) => {
            let view = View::new(snapshot, &activation.locals, event, now);
            no(condition.holds(&view, || format!("guard of transition `{transition}`"))?)
        }
        GuardNode::Completed(place) => no(snapshot.completed.contains(place)),
        GuardNode::Active(place) => no(snapshot.activations.iter().any(|other| other.place == *place)),
        GuardNode::Named(name) => no(answers.get(name, activation.id).ok_or_else(|| {
            DecideError::UnresolvedGuard { guard: name.clone(), transition: transition.clone() }
        })?),
        GuardNode::Not(inner) => no(ask(inner)?.is_some()),
        GuardNode::And(inner) => {
            for guard in inner {
                if let Some(refusing) = ask(guard)? {
                    return Ok(Some(refusing));
                }
            }
            None
        }
        GuardNode::Or(inner) => {
            for guard in inner {
                if ask(guard)?.is_none() {
                    return Ok(None);
                }
            }
            Some(text(guard))
        }
    })
}

/// A guard as a person reads it.
pub(crate) fn text(guard: &GuardNode) -> String {
    let all = |guards: &[GuardNode], word: &str| {
        let inner: Vec<_> = guards.iter().map(text).collect();
        format!("({})", inner.join(word))
    };
    match guard {
        GuardNode::Expr(condition) => format!("`{}`", condition.expr.source()),
        GuardNode::Completed(place) => format!("completed(`{place}`)"),
        GuardNode::Active(place) => format!("active(`{place}`)"),
        GuardNode::Named(name) => format!("`{name}`"),
        GuardNode::Not(inner) => format!("not {}", text(inner)),
        GuardNode::And(inner) => all(inner, " and "),
        GuardNode::Or(inner) => all(inner, " or "),
    }
}
