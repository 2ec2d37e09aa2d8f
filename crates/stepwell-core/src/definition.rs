//! Checked workflows: indexed for dispatch, immutable, and identified by the hash of their content.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::check::{self, Problems};
use crate::expr::{self, Budget, Expr};
use crate::frame::Frame;
use crate::guard::View;
use crate::ids::{DefinitionHash, Name};
use crate::limits::Limits;
use crate::near::did_you_mean;
use crate::refusal::DecideError;
use crate::retry::Retry;
use crate::save::Save;
use crate::schema::Schema;
use crate::shadow::Column;
use crate::spec::{ActionSpec, ChildRule, Completion, Firing, LoopStep, Spec, Tolerance, TransitionTrigger};
use crate::template::Template;
use crate::trigger::TriggerNode;

/// A checked, immutable workflow. Cloning only increments a reference count.
#[derive(Debug, Clone)]
pub struct Definition(Arc<Compiled>);

/// The compiled form of a spec that has passed [`check`].
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) spec: Spec,
    pub(crate) limits: Limits,
    pub(crate) hash: DefinitionHash,
    pub(crate) initial: PlaceIndex,
    pub(crate) places: Vec<PlaceNode>,
    pub(crate) by_name: BTreeMap<Name, PlaceIndex>,
    pub(crate) transitions: Vec<TransitionNode>,
    pub(crate) transition_by_id: BTreeMap<Name, usize>,
    pub(crate) signals: BTreeMap<Name, Option<Schema>>,
    pub(crate) documents: BTreeMap<Name, Schema>,
    pub(crate) context: Option<Schema>,
    pub(crate) input: Option<Schema>,
    pub(crate) output: Option<Schema>,
    pub(crate) shadows: Vec<Column>,
    pub(crate) admission: crate::admission::Keys,
    pub(crate) triggers: Vec<TriggerNode>,
}

pub(crate) type PlaceIndex = usize;

/// A place as dispatch uses it.
#[derive(Debug)]
pub(crate) struct PlaceNode {
    pub(crate) name: Name,
    pub(crate) kind: PlaceKind,
    /// Transitions that leave the place, in the order in which they are tried.
    pub(crate) out: Vec<usize>,
    /// The loops and error scopes whose bodies contain the place, outermost first.
    pub(crate) inside: Vec<PlaceIndex>,
}

#[derive(Debug)]
pub(crate) enum PlaceKind {
    Step,
    Wait(WaitNode),
    Fork { branches: Vec<PlaceIndex>, join: Option<PlaceIndex>, each: Option<EachNode> },
    Join(JoinNode),
    Loop(LoopNode),
    Catch { local: String, first: PlaceIndex },
    End { output: Option<Template>, error_place: Option<PlaceIndex> },
}

#[derive(Debug)]
pub(crate) struct EachNode {
    pub(crate) items: Template,
    pub(crate) item: String,
    pub(crate) index: Option<String>,
    pub(crate) limit: u32,
    pub(crate) most: Option<u32>,
    pub(crate) error_place: Option<PlaceIndex>,
}

#[derive(Debug)]
pub(crate) struct JoinNode {
    /// The number of branches that makes the join fire, if the fork names its branches.
    pub(crate) quorum: u32,
    /// True if the join needs every branch, no matter how many there are.
    pub(crate) is_all: bool,
    pub(crate) cancel_rest: bool,
    pub(crate) collect: Option<CollectNode>,
    pub(crate) ignore_failures: bool,
    pub(crate) tolerate: Option<Tolerance>,
    pub(crate) error_place: Option<PlaceIndex>,
}

#[derive(Debug)]
pub(crate) struct LoopNode {
    pub(crate) over: OverNode,
    pub(crate) index: Option<String>,
    pub(crate) first: PlaceIndex,
    pub(crate) then: PlaceIndex,
    pub(crate) most: Option<u32>,
    pub(crate) collect: Option<CollectNode>,
    pub(crate) error_place: Option<PlaceIndex>,
}

#[derive(Debug)]
pub(crate) enum OverNode {
    Items { list: Template, item: String },
    While(Condition),
    Pages(PagesNode),
}

#[derive(Debug)]
pub(crate) struct PagesNode {
    pub(crate) fetch: PlaceIndex,
    pub(crate) list: Template,
    pub(crate) cursor: Expr,
    pub(crate) next: String,
    pub(crate) item: String,
}

impl LoopNode {
    /// Returns the place that fetches a page, if the loop is over pages.
    pub(crate) fn fetch(&self) -> Option<PlaceIndex> {
        match &self.over {
            OverNode::Pages(pages) => Some(pages.fetch),
            OverNode::Items { .. } | OverNode::While(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct CollectNode {
    pub(crate) save: Option<Save>,
    pub(crate) result: Option<Template>,
    pub(crate) settled: bool,
}

impl PlaceKind {
    /// Returns the name of the kind, as shown in graphs and messages.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            PlaceKind::Step => "step",
            PlaceKind::Wait(_) => "wait",
            PlaceKind::Fork { .. } => "fork",
            PlaceKind::Join(_) => "join",
            PlaceKind::Loop(_) => "loop",
            PlaceKind::Catch { .. } => "catch",
            PlaceKind::End { .. } => "end",
        }
    }
}

#[derive(Debug)]
pub(crate) struct WaitNode {
    pub(crate) signal: Option<Name>,
    pub(crate) filter: Option<Expr>,
    pub(crate) children: Option<ChildRule>,
    pub(crate) prompt: Option<Template>,
    pub(crate) event: Option<AwaitedNode>,
    pub(crate) error_place: Option<PlaceIndex>,
}

/// Expressions that select the events a wait accepts.
#[derive(Debug, Default)]
pub(crate) struct AwaitedNode {
    pub(crate) of: Option<Expr>,
    pub(crate) key: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct TransitionNode {
    pub(crate) id: Name,
    pub(crate) from: PlaceIndex,
    pub(crate) to: PlaceIndex,
    pub(crate) on: TransitionTriggerNode,
    pub(crate) guard: Option<GuardNode>,
    pub(crate) priority: i32,
    pub(crate) action: Option<ActionNode>,
    pub(crate) set: Vec<(Save, Template)>,
    pub(crate) fail: Option<RaiseNode>,
    pub(crate) retry: Retry,
    pub(crate) error_place: Option<PlaceIndex>,
    pub(crate) retry_target: Option<PlaceIndex>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) loop_step: Option<LoopStep>,
    pub(crate) is_at_most_once: bool,
    pub(crate) heartbeat: bool,
}

#[derive(Debug)]
pub(crate) enum RaiseNode {
    New {
        code: Template,
        message: Template,
        is_final: bool,
        errors: Option<Template>,
    },
    /// Raises the error that this local holds.
    Again(String),
}

#[derive(Debug)]
pub(crate) enum TransitionTriggerNode {
    Auto,
    Signal(Name),
    AfterMs(u64),
    Until(Expr),
    After(Expr),
    Backoff(Box<BackoffNode>),
}

/// A timer that fires after the delay of a retry policy.
#[derive(Debug)]
pub(crate) struct BackoffNode {
    pub(crate) retry: Retry,
    pub(crate) tries: Expr,
    pub(crate) since: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct ActionNode {
    pub(crate) name: Name,
    pub(crate) input: Template,
    pub(crate) save_as: Option<Save>,
}

#[derive(Debug)]
pub(crate) enum GuardNode {
    Expr(Condition),
    Completed(Name),
    Active(Name),
    And(Vec<GuardNode>),
    Or(Vec<GuardNode>),
    Not(Box<GuardNode>),
    Named(Name),
}

/// An expression used as a condition.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) expr: Expr,
    /// If true, an undefined result is an error. If false, it counts as false. Workflows with an envelope are strict.
    pub(crate) is_strict: bool,
}

impl Condition {
    /// Evaluates the condition. `at` describes its location for errors.
    pub(crate) fn holds(&self, view: &View<'_>, at: impl Fn() -> String) -> Result<bool, DecideError> {
        let found = self.expr.verdict(view, &mut Budget::default());
        match found.map_err(|error| DecideError::Expression { at: at(), error })? {
            Some(holds) => Ok(holds),
            // Templates have the same rule: undefined is an error, except in an object's field. Definitions
            // without an envelope keep the older rule.
            None if self.is_strict => {
                let missing = self.expr.missing(view, &mut Budget::default());
                Err(DecideError::Undefined { at: at(), expr: self.expr.source().to_owned(), missing })
            }
            None => Ok(false),
        }
    }
}

impl Spec {
    /// Checks the workflow and returns its definition, or all problems found.
    pub fn build(self) -> Result<Definition, Problems> {
        self.build_within(&Limits::default())
    }

    /// Does the same as [`Spec::build`], with these limits instead of the default limits.
    pub fn build_within(self, limits: &Limits) -> Result<Definition, Problems> {
        check::compile(self, limits).map(|compiled| Definition(Arc::new(compiled)))
    }
}

impl Definition {
    /// Returns the name of the workflow.
    pub fn name(&self) -> &Name {
        &self.0.spec.name
    }

    /// Returns the author's workflow version.
    pub fn version(&self) -> u32 {
        self.0.spec.version
    }

    /// Returns the SHA-256 hash of the canonical form. The same content always has the same hash.
    pub fn hash(&self) -> DefinitionHash {
        self.0.hash
    }

    /// Returns a JSON pointer to the context field in which a transition saves the output of its action.
    pub fn output_pointer(&self, transition: &str) -> Option<String> {
        let action = self.0.transition(transition)?.action.as_ref()?;
        action.save_as.as_ref().filter(|save| !save.is_local).map(Save::pointer)
    }

    /// Returns true if the output of the transition's action is needed when the transition is decided.
    ///
    /// This is so if the output goes into a local, the transition sets data, or the target place reads the context.
    pub fn needs_output(&self, transition: &str) -> bool {
        let Some(node) = self.0.transition(transition) else { return false };
        let is_local =
            node.action.as_ref().and_then(|action| action.save_as.as_ref()).is_some_and(|save| save.is_local);
        // Entering these places, or passing through them, reads the context.
        let is_read = match &self.0.places[node.to].kind {
            PlaceKind::Join(_) | PlaceKind::Loop(_) | PlaceKind::Fork { .. } | PlaceKind::Catch { .. } => {
                true
            }
            PlaceKind::End { output, .. } => output.is_some(),
            PlaceKind::Wait(wait) => {
                wait.prompt.is_some() || wait.event.as_ref().is_some_and(|event| event.key.is_some())
            }
            PlaceKind::Step => false,
        };
        is_local || is_read || !node.set.is_empty()
    }

    /// Returns true if a crash ends an attempt of the transition's action, instead of making another one.
    pub fn is_at_most_once(&self, transition: &str) -> bool {
        self.0.transition(transition).is_some_and(|transition| transition.is_at_most_once)
    }

    /// Returns true if the retries of the transition's action have a budget.
    pub fn has_retry_budget(&self, transition: &str) -> bool {
        self.0.transition(transition).is_some_and(|transition| transition.retry.budget_ms.is_some())
    }

    /// Returns the maximum lifetime of a run in milliseconds, if it has one.
    pub fn timeout_ms(&self) -> Option<u64> {
        self.spec().timeout_ms
    }

    /// Returns the spec that the definition was built from.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// Returns the bytes that the hash covers. A store keeps them, and [`Definition::from_canonical`] reads them.
    pub fn canonical(&self) -> Vec<u8> {
        canonical(&self.0.spec)
    }

    /// Parses the output of [`Definition::canonical`].
    pub fn from_canonical(bytes: &[u8]) -> Result<Self, UnreadableDefinition> {
        Definition::from_canonical_within(bytes, &Limits::default())
    }

    /// Does the same as [`Definition::from_canonical`], with the limits that the definition was built with.
    pub fn from_canonical_within(bytes: &[u8], limits: &Limits) -> Result<Self, UnreadableDefinition> {
        let stored: Value =
            serde_json::from_slice(bytes).map_err(|error| UnreadableDefinition::Json(error.to_string()))?;
        match stored.get("dialect").and_then(Value::as_u64) {
            Some(dialect) if dialect == u64::from(expr::DIALECT) => {}
            other => return Err(UnreadableDefinition::Dialect(other)),
        }
        let spec = stored.get("spec").cloned().unwrap_or_default();
        let spec: Spec =
            serde_json::from_value(spec).map_err(|error| UnreadableDefinition::Json(error.to_string()))?;
        Ok(spec.build_within(limits)?)
    }

    /// Returns the sorted names of the actions that the workflow calls. A process needs all of them to serve its
    /// runs.
    pub fn actions(&self) -> Vec<&Name> {
        let mut names: Vec<_> =
            self.0.transitions.iter().filter_map(|t| Some(&t.action.as_ref()?.name)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the sorted names of the workflow's named guards. A process needs all of them to serve its runs.
    pub fn named_guards(&self) -> Vec<&Name> {
        let mut names = Vec::new();
        for guard in self.0.transitions.iter().filter_map(|t| t.guard.as_ref()) {
            guard.named(&mut names);
        }
        names.sort();
        names.dedup();
        names
    }

    /// Checks that the workflow declares this kind of document and that the body matches its schema.
    pub fn check_document(&self, kind: &Name, body: &Value) -> Result<(), DecideError> {
        let known = &self.0.documents;
        self.0.limits.nesting("the document", body)?;
        if known.is_empty() {
            return Ok(());
        }
        let Some(schema) = known.get(kind) else {
            let hint = did_you_mean(kind, known.keys().map(Name::as_str));
            return Err(DecideError::UnknownDocument { kind: kind.clone(), hint });
        };
        let violations = schema.check(body);
        if violations.is_empty() {
            return Ok(());
        }
        Err(DecideError::InvalidDocument { kind: kind.clone(), violations })
    }

    /// Returns the shadow columns, sorted by name.
    pub fn shadows(&self) -> &[Column] {
        &self.0.shadows
    }

    pub(crate) fn compiled(&self) -> &Compiled {
        &self.0
    }
}

/// Compares the content of two definitions, by hash.
impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        self.hash() == other.hash()
    }
}

/// The error for a stored definition that this version cannot read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UnreadableDefinition {
    /// It is not the JSON of a definition.
    #[error("the stored definition cannot be read: {0}")]
    Json(String),
    /// It was written for another expression dialect.
    #[error("the stored definition uses expression dialect {found}; this version reads only dialect {known}", found = .0.map_or_else(|| "unknown".to_owned(), |dialect| dialect.to_string()), known = expr::DIALECT)]
    Dialect(Option<u64>),
    /// It no longer passes the checks.
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl Compiled {
    pub(crate) fn place(&self, name: &str) -> Option<&PlaceNode> {
        self.by_name.get(name).map(|&index| &self.places[index])
    }

    pub(crate) fn transition(&self, id: &str) -> Option<&TransitionNode> {
        self.transition_by_id.get(id).map(|&index| &self.transitions[index])
    }

    /// Returns a loop or error scope that contains the place but is not among the frames.
    pub(crate) fn missing_scope(&self, place: PlaceIndex, frames: &[Frame]) -> Option<&Name> {
        let scopes = self.places[place].inside.iter().map(|&scope| &self.places[scope].name);
        scopes.into_iter().find(|scope| !frames.iter().any(|frame| frame.place == **scope))
    }

    /// Returns true if retries of this transition go back to another place. The activation counts such retries.
    pub(crate) fn has_retry_target(&self, transition: &str) -> bool {
        self.transition(transition).is_some_and(|transition| transition.retry_target.is_some())
    }

    pub(crate) fn firing(&self) -> Firing {
        self.spec.firing
    }

    pub(crate) fn completion(&self) -> Completion {
        self.spec.completion
    }
}

impl GuardNode {
    /// Adds the names of all named guards in this guard to `into`.
    pub(crate) fn named<'a>(&'a self, into: &mut Vec<&'a Name>) {
        match self {
            GuardNode::Named(name) => into.push(name),
            GuardNode::And(inner) | GuardNode::Or(inner) => inner.iter().for_each(|guard| guard.named(into)),
            GuardNode::Not(inner) => inner.named(into),
            GuardNode::Expr(_) | GuardNode::Completed(_) | GuardNode::Active(_) => {}
        }
    }
}

impl TransitionTriggerNode {
    pub(crate) fn signal(&self) -> Option<&Name> {
        match self {
            TransitionTriggerNode::Signal(name) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn is_timer(&self) -> bool {
        match self {
            TransitionTriggerNode::Auto | TransitionTriggerNode::Signal(_) => false,
            TransitionTriggerNode::AfterMs(_)
            | TransitionTriggerNode::Until(_)
            | TransitionTriggerNode::After(_)
            | TransitionTriggerNode::Backoff(_) => true,
        }
    }
}

/// Returns the bytes that the hash covers: the spec and the dialect of its expressions, as JSON with sorted keys and
/// no white space.
pub(crate) fn canonical(spec: &Spec) -> Vec<u8> {
    let spec = serde_json::to_value(spec).expect("a spec is plain data with text keys");
    let mut out = Vec::new();
    let wrapped = serde_json::json!({ "dialect": expr::DIALECT, "spec": spec });
    write_sorted(&wrapped, &mut out);
    out
}

/// Writes JSON with sorted keys. The map type itself may keep another order, because a host can enable
/// `preserve_order` of `serde_json`.
fn write_sorted(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<_, _> = fields.iter().collect();
            out.push(b'{');
            for (index, (key, value)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_plain(&Value::String(key.clone()), out);
                out.push(b':');
                write_sorted(value, out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_sorted(item, out);
            }
            out.push(b']');
        }
        plain => write_plain(plain, out),
    }
}

fn write_plain(value: &Value, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("writing JSON into memory does not fail");
}

/// Compiles a trigger for dispatch.
pub(crate) fn trigger(on: &TransitionTrigger) -> Result<TransitionTriggerNode, expr::ExprError> {
    Ok(match on {
        TransitionTrigger::Auto => TransitionTriggerNode::Auto,
        TransitionTrigger::Signal(name) => TransitionTriggerNode::Signal(name.clone()),
        TransitionTrigger::AfterMs(ms) => TransitionTriggerNode::AfterMs(*ms),
        TransitionTrigger::Until(source) => TransitionTriggerNode::Until(Expr::parse(source)?),
        TransitionTrigger::After(source) => TransitionTriggerNode::After(Expr::parse(source)?),
        TransitionTrigger::Backoff(timer) => TransitionTriggerNode::Backoff(Box::new(BackoffNode {
            retry: timer.retry.clone(),
            tries: Expr::parse(&timer.tries)?,
            since: timer.since.as_deref().map(Expr::parse).transpose()?,
        })),
    })
}

/// Compiles an action for dispatch.
pub(crate) fn action(action: &ActionSpec, input: Template, save_as: Option<Save>) -> ActionNode {
    ActionNode { name: action.name.clone(), input, save_as }
}
