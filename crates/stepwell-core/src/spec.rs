//! The workflow as its author writes it: plain data that has not been checked yet.
//!
//! A [`Spec`] is built with the [builder](crate::builder) or read from JSON. [`Spec::build`] checks it and returns a
//! [`Definition`](crate::Definition). Expressions and schemas stay as written, so that a mistake in one of them is
//! reported together with all the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admission::{ConcurrencyLimit, RateLimit};
use crate::ids::Name;
use crate::retry::Retry;
use crate::shadow::Shadow;
pub use crate::trigger::{OnEvent, OnSchedule, OnWebhook, Signature, Trigger, TriggerKind};

/// A workflow as written, not yet checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    pub name: Name,
    /// The author's workflow version (default: 1). Runs are pinned to the content hash, not to this number.
    #[serde(default = "one")]
    pub version: u32,
    /// The place in which a run starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<Name>,
    /// If true, the context is an envelope with two fields. `payload` is the input of the run and never changes;
    /// steps write into `vars`. If false, the input of the run is its context.
    #[serde(default, skip_serializing_if = "is_default")]
    pub envelope: bool,
    /// JSON Schema of the run's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    #[serde(default)]
    pub places: BTreeMap<Name, Place>,
    /// The signals that runs of this workflow accept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signals: BTreeMap<Name, SignalSpec>,
    /// The transitions. Among transitions of equal priority, earlier ones are tried first.
    #[serde(default)]
    pub transitions: Vec<Transition>,
    /// JSON Schema of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// JSON Schema of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// JSON Schema of each kind of document that the workflow writes. If empty, the workflow may write documents of
    /// any kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub documents: BTreeMap<Name, Value>,
    /// Shadow columns: values of the context by which runs can be searched.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shadows: BTreeMap<Name, Shadow>,
    /// Triggers that start runs of the workflow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    /// Strategy that keeps the state of a flow of this workflow: `sealed`, `handle`, `durable`, or a name that the host
    /// program registers. Default: chosen by the host program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Maximum lifetime of a run in milliseconds, counted from its start (default: unlimited). A run that has not
    /// ended by then is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Limit on the number of runs that are active at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencyLimit>,
    /// Limit on the number of runs that begin within a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Time for which ended runs are kept. Default: set by the host program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// The rule for choosing among several transitions whose guards pass.
    #[serde(default, skip_serializing_if = "is_default")]
    pub firing: Firing,
    /// The rule for when a run is complete.
    #[serde(default, skip_serializing_if = "is_default")]
    pub completion: Completion,
    /// The workflow document from which the spec was compiled, without its tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Box<Value>>,
}

/// Time for which ended runs of a workflow are kept: text such as `P7D`, or `never` for runs that are never deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Runs are deleted when this time, in milliseconds, has passed since their end.
    Ms(u64),
    /// Runs are never deleted.
    Never,
}

/// The word for a retention without end.
const NEVER: &str = "never";

impl Retention {
    /// Parses a duration such as `7d` or `P7D`, or `never`. Returns `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        if text == NEVER {
            return Some(Retention::Never);
        }
        crate::time::duration_ms(&Value::String(text.to_owned())).map(Retention::Ms)
    }

    /// Returns the time in milliseconds; `None` = never deleted.
    pub fn ms(self) -> Option<u64> {
        match self {
            Retention::Ms(ms) => Some(ms),
            Retention::Never => None,
        }
    }
}

impl Serialize for Retention {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Retention::Ms(ms) => serializer.serialize_str(&crate::document::cases::duration(*ms)),
            Retention::Never => serializer.serialize_str(NEVER),
        }
    }
}

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            let message = format!("`{text}` is not a duration, such as `30d` or `P30D`, and not `{NEVER}`");
            serde::de::Error::custom(message)
        };
        Retention::parse(&text).ok_or_else(wrong)
    }
}

/// The rule for choosing among several transitions whose guards pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Firing {
    /// Only the first one fires: by priority, then by order in the spec.
    #[default]
    First,
    /// All of them fire together, in one version. Transitions with actions are not allowed.
    All,
}

/// The rule for when a run is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Completion {
    /// When it enters an end place. All other activations of the run end at that moment.
    #[default]
    FirstEnd,
    /// When every branch has reached an end place.
    AllBranches,
}

/// A place of the workflow graph. A run is in one or more places at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Place {
    /// Stays active until a transition leaves it.
    Step {},
    /// Waits until it is resolved, then becomes active.
    Wait(Wait),
    /// Opens one branch for each named place, or for each item of a list.
    Fork(Fork),
    /// Merges the branches of a fork.
    Join(Join),
    /// Repeats the places of its body.
    Loop(Loop),
    /// Handles an error in a scope that holds it as a local.
    Catch(Catch),
    /// Ends the run or, with [`Completion::AllBranches`], the branch.
    End {
        /// The result of the run. `{"$expr": …}` marks parts computed from the context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
        /// The place entered if the result cannot be computed or does not match the output schema. Without it, the
        /// run stops.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_place: Option<Name>,
    },
}

/// Selects the events that a wait accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventFilter {
    /// Expression on `event` that computes the correlation value of an event. Default: the event's own correlation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Expression that computes the correlation value of the run when it enters the place. The wait accepts only
    /// events with an equal value. Without it, the wait accepts every event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A place that waits for a signal, an event, an answer or children.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wait {
    /// The signal that resolves the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Name>,
    /// Condition on the payload. Only signals for which it is true resolve the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Marks the signal as an event. One event can reach many runs, each of them once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventFilter>,
    /// The rule by which children resolve the wait. They are the children that the transition into this place
    /// started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildRule>,
    /// The prompt for the person who answers. `{"$expr": …}` marks parts computed from the run. While the run is in
    /// this place, its local `prompt` holds the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Value>,
    /// JSON Schema of the form for the person who answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// The users (`user:ID`) and roles (`role:NAME`) that may answer. Without them, every caller who may signal the run
    /// may answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<String>,
    /// The place entered if the children can no longer satisfy the rule, or if the prompt or the correlation value
    /// cannot be computed. Without it, the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// A place that opens several branches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fork {
    /// The first place of each branch. A fork over a list names exactly one place, in which every branch starts.
    pub branches: Vec<Name>,
    /// Opens one branch for each item of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<Each>,
}

/// The list that a fork opens its branches for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Each {
    /// The list. `{"$expr": …}` marks parts computed from the run.
    pub items: Value,
    /// The local that holds the item of a branch.
    pub item: String,
    /// The local that holds the index of the item, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Maximum number of branches open at the same time. Default: as many as the activation limit of a run allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Maximum number of items. A longer list is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// The place entered if there is no list, or if the list is too long. Without it, the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// A place that repeats its body for each item of a list, or while a condition is true.
///
/// Entering the place from its own body starts the next round. Entering it from outside starts a new loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Loop {
    /// The list or the condition that determines the rounds.
    pub over: Over,
    /// The local that holds the number of the round, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The first place of each round.
    pub first: Name,
    /// All places of the body. A transition to any other place leaves the loop.
    pub body: Vec<Name>,
    /// The place entered after the last round.
    pub then: Name,
    /// Maximum number of rounds. More rounds are an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// Collects the results of the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect: Option<Collect>,
    /// The place entered if the next round cannot be determined, if there are too many rounds, or if the results
    /// cannot be saved. Without it, the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// The list or the condition that determines the rounds of a loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Over {
    /// One round for each item of a list, in order.
    Items {
        /// The list. `{"$expr": …}` marks parts computed from the run.
        list: Value,
        /// The local that holds the item of the round.
        item: String,
    },
    /// Repeats while this expression is true. It is evaluated before each round.
    While(String),
    /// One round for each item of a list that is fetched page by page, in order. Only the current page is kept.
    Pages(Pages),
}

/// A list that a loop fetches page by page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pages {
    /// The place of the body that fetches a page and leads back to the loop, with the page as its result.
    pub fetch: Name,
    /// The items of a page. Expressions read the page as `page`.
    pub list: Value,
    /// Expression that computes the cursor of the next page from `page`. The last page has none, null or an empty
    /// text.
    pub cursor: String,
    /// The local that holds the cursor of the next page. It is undefined before the first page and in the last one.
    pub next: String,
    /// The local that holds the item of the round.
    pub item: String,
}

/// Collects the results of a fork's branches or of a loop's rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Collect {
    /// The path at which the list of results is saved, in the order of the branches or rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// The result of each branch or round. Default: the result of its last transition, which is the output of the
    /// action or the value set last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// If true, a failure does not end the other branches or rounds. Each item of the list then describes how it
    /// ended, as for children.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settled: bool,
}

/// A scope that handles an error. A local holds the error until the run leaves the scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Catch {
    /// The local that holds the error (default: `error`).
    #[serde(rename = "as", default = "error")]
    pub local: String,
    /// The first place of the scope.
    pub first: Name,
    /// All places of the scope, in which the local is visible.
    pub body: Vec<Name>,
}

/// The rule for when a wait for children is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChildRule {
    /// All children must complete. The first child that fails or is cancelled makes that impossible.
    All,
    /// All children must end, no matter how.
    AllSettled,
    /// One child must complete.
    Any,
    /// This number of children must complete.
    N(u32),
}

/// A place that merges the branches of a fork.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Join {
    /// The places from which branches arrive. If empty, branches may arrive from any place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Name>,
    /// The number of branches that makes the join fire.
    #[serde(default)]
    pub quorum: Quorum,
    /// If true, the branches that are still active end when the join fires. If false, they continue and are absorbed
    /// when they arrive.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel_rest: bool,
    /// Collects the results of the branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect: Option<Collect>,
    /// If true, a branch that arrives because of an error has no result, and the other branches continue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignore_failures: bool,
    /// The number of branches that may fail. With it, the quorum counts only branches that completed; with
    /// [`Quorum::All`], the join fires when every branch has ended. If more branches fail, or if the quorum can no
    /// longer be reached, the join fails at once with `tooManyFailures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerate: Option<Tolerance>,
    /// The place entered when a branch arrives because of an error, or when more fail than are tolerated; the other
    /// branches end. Errors that are collected, passed over or tolerated do not lead there. The place is also entered if the results of the branches cannot be combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// The number of branches that makes a join fire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Quorum {
    /// All branches that can arrive.
    #[default]
    All,
    /// One branch is enough.
    Any,
    /// This number of branches.
    N(u32),
}

/// The number of branches of a join that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tolerance {
    /// Any number, as long as the quorum can be reached.
    Any,
    /// At most this number.
    Count(u32),
    /// At most this percentage of the branches, 0 to 100.
    Percent(u32),
}

/// A signal that a workflow accepts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignalSpec {
    /// JSON Schema of the payload. It applies to the signal, whichever transition or wait receives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// A transition from one place to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transition {
    /// The name of the transition, unique in the workflow.
    pub id: Name,
    pub from: Name,
    pub to: Name,
    /// The trigger that fires the transition (default: automatic).
    #[serde(default)]
    pub on: TransitionTrigger,
    /// The condition that must be true for the transition to fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// Transitions with a higher priority are tried first; among equals, the order of the spec decides.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The action that runs before the transition is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ActionSpec>,
    /// Values that the transition writes into the run's data, after the action if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Assign>,
    /// Makes the transition fail with this error instead of entering its target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Raise>,
    /// The retry policy of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// The place entered when the transition fails: its guard, its assignments, or its action after the last retry.
    /// Without it, the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
    /// Timeout of the action in milliseconds (default: that of the engine, 5 minutes); 0 means unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The effect on the loop position of the activation that takes the transition.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub loop_step: Option<LoopStep>,
    /// The guarantee for an attempt of the action that a crash interrupts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub delivery: DeliveryGuarantee,
    /// If true, a heartbeat restarts the timer of the transition.
    #[serde(default, skip_serializing_if = "is_default")]
    pub heartbeat: bool,
}

/// The guarantee for an attempt of an action that a crash interrupts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeliveryGuarantee {
    /// The action is executed again.
    #[default]
    AtLeastOnce,
    /// The action is not executed again. The attempt fails with `interrupted`, which is retried only if `retryOn`
    /// lists it.
    AtMostOnce,
}

/// The trigger that fires a transition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TransitionTrigger {
    /// Fires automatically as soon as its guard is true.
    #[default]
    Auto,
    /// Fires on a signal of this name.
    Signal(Name),
    /// Fires this number of milliseconds after the place was entered.
    AfterMs(u64),
    /// Fires at the time that this expression gives when the place is entered, as an RFC 3339 text.
    Until(String),
    /// Fires after the duration that this expression gives when the place is entered, as a text with a unit (`PT30S`,
    /// `30s`) or 0.
    After(String),
    /// Fires after the delay of a retry policy.
    Backoff(Box<BackoffTimer>),
}

impl TransitionTrigger {
    /// Returns true if the trigger is a timer.
    pub fn is_timer(&self) -> bool {
        match self {
            TransitionTrigger::Auto | TransitionTrigger::Signal(_) => false,
            TransitionTrigger::AfterMs(_)
            | TransitionTrigger::Until(_)
            | TransitionTrigger::After(_)
            | TransitionTrigger::Backoff(_) => true,
        }
    }
}

/// A timer that fires after the delay of a retry policy. Once the budget of the policy is used up, its place cannot be
/// entered, and the error that the local `error` holds is raised again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackoffTimer {
    pub retry: Retry,
    /// Expression that gives the number of retries made so far.
    pub tries: String,
    /// Expression that gives the time of the first attempt, in milliseconds since 1970. Needed with a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// An assignment of a value to a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assign {
    /// The target path, such as `vars.total`. A path that starts with `locals.` leads into the locals of the
    /// activation.
    pub to: String,
    /// The value. `{"$expr": …}` marks parts computed from the run.
    pub value: Value,
}

/// A failure that the workflow raises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Raise {
    /// Raises a new failure.
    New {
        /// Code of the failure. `{"$expr": …}` marks parts computed from the run.
        code: Value,
        /// Human-readable description. `{"$expr": …}` marks parts computed from the run.
        message: Value,
        /// If true, a retry cannot succeed, and callers of a flow see the message. Default: true if `errors` is set.
        #[serde(default, rename = "final", skip_serializing_if = "Option::is_none")]
        is_final: Option<bool>,
        /// Errors of the answer that led here: a list of `{pointer, message}`, with `{"$expr": …}` for computed parts.
        /// A flow in a token or behind a handle pauses again with them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errors: Option<Value>,
    },
    /// Raises the error in this local again, unchanged.
    Again(String),
}

/// A call of an action that is found by name in the action registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionSpec {
    pub name: Name,
    /// The input of the action. `{"$expr": …}` marks parts computed from the state.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// The path at which the output is saved: a field of the context or a path of fields (`vars.total`). A path that
    /// starts with `locals.` leads into the locals of the activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// The required version of the action. Default: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// A condition that must be true for a transition to fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Guard {
    /// This expression is true.
    Expr(String),
    /// The run has completed this place before.
    Completed(Name),
    /// The run is in this place now, active or waiting.
    Active(Name),
    /// All of these guards are true.
    And(Vec<Guard>),
    /// At least one of these guards is true.
    Or(Vec<Guard>),
    /// This guard is false.
    Not(Box<Guard>),
    /// The host program's function of this name returns true.
    Named(Name),
}

/// The effect of a transition on the loop position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LoopStep {
    /// Enters a new inner loop at iteration 0.
    Enter,
    /// Starts the next iteration of the innermost loop.
    Next,
    /// Leaves the innermost loop. On a transition from a loop's body to the loop place, ends that loop and keeps the
    /// results of its rounds.
    Leave,
}

fn one() -> u32 {
    1
}

fn error() -> String {
    "error".to_owned()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
