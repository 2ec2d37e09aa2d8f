//! Guards: conditions of transitions, and the evaluation of guards that are functions of the host program.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::decision_builder::{Candidate, Candidates};
use crate::definition::{Definition, GuardNode};
use crate::dispatch::Input;
use crate::expr::Scope;
use crate::ids::Name;
use crate::refusal::DecideError;
use crate::snapshot::{Activation, ActivationId, Snapshot};
use crate::spec::Guard;
use crate::time::Timestamp;

/// A named guard that the host must evaluate before an input can be decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    pub guard: Name,
    /// The activation for which the guard is evaluated.
    pub activation: ActivationId,
}

/// The results of named guards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    by_activation: BTreeMap<Question, bool>,
    by_name: BTreeMap<Name, bool>,
}

impl Answers {
    /// Creates an empty set of results.
    pub fn none() -> Self {
        Answers::default()
    }

    /// Adds a result that applies to every activation.
    #[must_use]
    pub fn with(mut self, guard: impl Into<Name>, passes: bool) -> Self {
        self.by_name.insert(guard.into(), passes);
        self
    }

    /// Adds the result for one question.
    pub fn put(&mut self, question: Question, passes: bool) {
        self.by_activation.insert(question, passes);
    }

    fn get(&self, guard: &Name, activation: ActivationId) -> Option<bool> {
        let question = Question { guard: guard.clone(), activation };
        self.by_activation.get(&question).or_else(|| self.by_name.get(guard)).copied()
    }
}

/// Returns the named guards that the decision of this input may need, without duplicates.
pub fn questions(definition: &Definition, snapshot: &Snapshot, event: &Input) -> Vec<Question> {
    named_guards(Candidates::of(definition.compiled(), snapshot, event))
}

/// Returns the named guards of every transition that leaves a place of the run, without duplicates:
/// [`available`](crate::available) needs their results.
pub fn questions_of_available(definition: &Definition, snapshot: &Snapshot) -> Vec<Question> {
    named_guards(Candidates::leaving(definition.compiled(), snapshot).map(|(_, candidate)| candidate))
}

fn named_guards<'a>(candidates: impl IntoIterator<Item = Candidate<'a>>) -> Vec<Question> {
    let mut questions = Vec::new();
    for candidate in candidates {
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

/// The arguments of a guard function.
#[derive(Debug, Clone, Copy)]
pub struct GuardView<'a> {
    pub snapshot: &'a Snapshot,
    /// The activation that would take the transition.
    pub activation: &'a Activation,
    /// The payload of the input.
    pub payload: &'a Value,
}

type GuardFn = dyn Fn(GuardView<'_>) -> bool + Send + Sync;

/// Guards written as Rust functions, by name. The definition keeps only the names.
#[derive(Clone, Default)]
pub struct Guards(BTreeMap<Name, Arc<GuardFn>>);

impl Guards {
    /// Creates an empty set of guards.
    pub fn new() -> Self {
        Guards::default()
    }

    /// Registers a function under a name and returns the extended set.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.inject(name, guard);
        self
    }

    /// Registers a function and returns the guard that calls it, for use in a transition:
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

    /// Registers a function under a name. Replaces the function that had this name.
    pub fn inject(
        &mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.0.insert(name.into(), Arc::new(guard));
    }

    /// Evaluates the guards that the decision of this input may need. A guard without a function has no result; that
    /// is an error if the decision needs it.
    pub fn answer(&self, definition: &Definition, snapshot: &Snapshot, event: &Input) -> Answers {
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
            let passes = guard(GuardView { snapshot, activation, payload });
            answers.put(question, passes);
        }
        answers
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The scope of expressions: `context`, `event` (the payload of the input), `locals`, `session` and `meta`. Any other
/// name is looked up in the locals and then in the context.
pub(crate) struct View<'a> {
    snapshot: &'a Snapshot,
    locals: &'a Map<String, Value>,
    event: &'a Value,
    now: Timestamp,
    /// Created on first use, because most expressions read only the context or the event.
    cache: [OnceCell<Value>; 4],
}

/// The variables of a run. A branch of a fork over a list has its own variables, which shadow those of the run.
pub(crate) const VARS: &str = "vars";

// The payload of the current input is `event` and not `payload`: in workflow documents `payload` is the input
// that the run was started with.
const ROOTS: [&str; 5] = ["context", "event", "locals", "session", "meta"];

impl<'a> View<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        locals: &'a Map<String, Value>,
        event: &'a Value,
        now: Timestamp,
    ) -> Self {
        View { snapshot, locals, event, now, cache: Default::default() }
    }

    /// Returns the payload of the input.
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
        let [locals, session, meta, vars] = &self.cache;
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

/// Evaluates a guard. Returns `None` if it is true, or else the part of it that is false.
pub(crate) fn verdict(
    guard: &GuardNode,
    transition: &Name,
    snapshot: &Snapshot,
    activation: &Activation,
    event: &Value,
    environment: (&Answers, Timestamp),
) -> Result<Option<String>, DecideError> {
    let (answers, now) = environment;
    let evaluate = |guard: &GuardNode| verdict(guard, transition, snapshot, activation, event, environment);
    let no = |passes: bool| if passes { None } else { Some(text(guard)) };
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
        GuardNode::Not(inner) => no(evaluate(inner)?.is_some()),
        GuardNode::And(inner) => {
            for guard in inner {
                if let Some(refusing) = evaluate(guard)? {
                    return Ok(Some(refusing));
                }
            }
            None
        }
        GuardNode::Or(inner) => {
            for guard in inner {
                if evaluate(guard)?.is_none() {
                    return Ok(None);
                }
            }
            Some(text(guard))
        }
    })
}

/// Returns the guard as text for messages and graphs.
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
