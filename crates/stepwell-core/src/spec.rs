//! What an author writes: a workflow as plain data, before anybody has checked it.
//!
//! A [`Spec`] is made with the [builder](crate::builder) or read from JSON; [`Spec::build`] checks it and gives a
//! [`Definition`](crate::Definition). Expressions and schemas are kept here as written, so that a mistake in one of
//! them is reported together with all the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::Name;
use crate::retry::Retry;
use crate::shadow::Shadow;
pub use crate::starter::{OnEvent, OnSchedule, OnWebhook, Signature, StartOn, Starter};

/// A workflow as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The workflow's name.
    pub name: Name,
    /// The author's number for this edition; runs are pinned to the content hash, not to this.
    #[serde(default = "one")]
    pub version: u32,
    /// The place a run begins in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<Name>,
    /// The run's data is an envelope: what the run was started with is its `payload`, and stays as it is; what steps
    /// make goes into its `vars`. Otherwise a run is started with its context.
    #[serde(default, skip_serializing_if = "is_default")]
    pub envelope: bool,
    /// JSON Schema of what a run is started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The places by name.
    #[serde(default)]
    pub places: BTreeMap<Name, Place>,
    /// The signals the workflow knows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signals: BTreeMap<Name, Signal>,
    /// The transitions, in the order that breaks ties of priority.
    #[serde(default)]
    pub transitions: Vec<Transition>,
    /// JSON Schema of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Value>,
    /// JSON Schema of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// JSON Schema of each kind of document the workflow writes; a workflow that names none may write any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub documents: BTreeMap<Name, Value>,
    /// Values of the context that runs can be found by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shadows: BTreeMap<Name, Shadow>,
    /// What starts it by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Starter>,
    /// Which of several passing transitions fire.
    #[serde(default, skip_serializing_if = "is_default")]
    pub firing: Firing,
    /// When the run is complete.
    #[serde(default, skip_serializing_if = "is_default")]
    pub completion: Completion,
    /// The document it was compiled from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Box<Value>>,
}

/// Which of several passing transitions fire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Firing {
    /// The first by priority, then by order.
    #[default]
    First,
    /// All of them, together, in one version; such transitions have no actions.
    All,
}

/// When a run is complete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Completion {
    /// When an end place is entered; what else is active then ends with it.
    #[default]
    FirstEnd,
    /// When every branch has come to an end place.
    AllBranches,
}

/// Somewhere a run can be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Place {
    /// Active until a transition leaves it.
    Step {},
    /// Waiting until it is resolved, then active.
    Wait(Wait),
    /// Fans out into one branch per place named, or per item of a list.
    Fork(Fork),
    /// Brings branches of a fork together again.
    Join(Join),
    /// Goes through its body again and again.
    Loop(Loop),
    /// Where an error is dealt with.
    Catch(Catch),
    /// The run, or with [`Completion::AllBranches`] the branch, ends here.
    End {
        /// The run's result, with `{"$expr": …}` in it where it depends on the context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
        /// Where the run goes if the result cannot be made or does not fit; without it the run stops.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_place: Option<Name>,
    },
}

/// Which events are a run's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Awaited {
    /// What the run's events say: an expression on `event`. Without it, their own correlation is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// What the run knows, made when it comes to the place: events that say the same are its. Without it every event is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What a wait place waits for, and who is asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wait {
    /// The signal that resolves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<Name>,
    /// Only a signal for which this is true resolves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The signal is an event: something that many runs may hear of, each once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Awaited>,
    /// Resolved by the children that the transition into this place started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<ChildRule>,
    /// What whoever answers is asked, with `{"$expr": …}` in it where it depends on the run: the local `prompt` while the run
    /// is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Value>,
    /// JSON Schema of the form that is shown to whoever answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// Who may answer: names the host gives a meaning to (users, roles, groups).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<String>,
    /// Where the run goes when the children can no longer do what the rule asks, or when the prompt or what its events have in
    /// common cannot be made; without it the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// How a run fans out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fork {
    /// The first place of each branch; of a fork over a list, the first place of every one.
    pub branches: Vec<Name>,
    /// One branch per item of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<Each>,
}

/// A list, and how many of its items are dealt with at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Each {
    /// The list, with `{"$expr": …}` in it where it depends on the run.
    pub items: Value,
    /// The local that holds a branch's item.
    pub item: String,
    /// The local that holds the item's number, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// So many branches at once at most; without it as many as a run may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// More items than this are an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// Where the run goes if there is no list, or one that is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// Goes through its body once per item of a list, or as long as a condition holds. Whoever comes to it from its own body
/// begins the next round; whoever comes from elsewhere begins a new loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Loop {
    /// What each round is for.
    pub over: Over,
    /// The local that holds the number of the round, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The place in which a round begins.
    pub first: Name,
    /// Every place of the body. The loop is left by whatever leads to another place.
    pub body: Vec<Name>,
    /// Where the run goes after the last round.
    pub then: Name,
    /// More rounds than this are an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// What becomes of what the rounds give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect: Option<Collect>,
    /// Where the run goes if it cannot be told whether there is another round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// What the rounds of a loop are for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Over {
    /// One for each item of a list, in its order.
    Items {
        /// The list, with `{"$expr": …}` in it where it depends on the run.
        list: Value,
        /// The local that holds the item.
        item: String,
    },
    /// As long as this expression is true before a round.
    While(String),
}

/// What becomes of what the branches of a fork, or the rounds of a loop, give.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Collect {
    /// Where the list of it goes, in the order of the branches or rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// What each gives; without it, what its last transition gave: the output of its action, or the value it set last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// One that fails does not end the others: the list says of each how it ended, as for children.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settled: bool,
}

/// Where an error is dealt with: a scope in which a local holds it. It is gone when the run leads to a place outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Catch {
    /// The local that holds the error.
    #[serde(rename = "as", default = "error")]
    pub local: String,
    /// The first place.
    pub first: Name,
    /// Every place in which the local is to be seen.
    pub body: Vec<Name>,
}

/// When a wait for children is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChildRule {
    /// All have completed; the first that fails or is cancelled makes it impossible.
    All,
    /// All have ended, however.
    AllSettled,
    /// One has completed.
    Any,
    /// So many have completed.
    N(u32),
}

/// How branches come together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Join {
    /// The places from which branches arrive; none named = wherever they come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<Name>,
    /// How many branches are enough.
    #[serde(default)]
    pub quorum: Quorum,
    /// End the branches that are still going when it fires, instead of absorbing them when they come.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel_rest: bool,
    /// What becomes of what the branches give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect: Option<Collect>,
    /// A branch that comes here because of an error gives nothing, and the others go on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pass_over: bool,
    /// A branch that comes here because of an error ends the others, and the run goes there, unless such errors are passed
    /// over or collected. The run goes there too if what the branches give cannot be put together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
}

/// How many branches make a join fire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Quorum {
    /// Every branch that can come.
    #[default]
    All,
    /// One.
    Any,
    /// So many.
    N(u32),
}

/// A signal the workflow knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signal {
    /// JSON Schema of the payload; it belongs to the name, not to a transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// A way from one place to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transition {
    /// The transition's name.
    pub id: Name,
    /// The place it leaves.
    pub from: Name,
    /// The place it enters.
    pub to: Name,
    /// What makes it fire.
    #[serde(default)]
    pub on: Trigger,
    /// Must say yes for it to fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
    /// Higher goes first; ties go by order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i32,
    /// The code that runs before the transition is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// What it writes into the run's data, after the action if it has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Assign>,
    /// It does not lead to its target: it fails with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Raise>,
    /// What happens when the action fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Where the run goes when the transition fails: its guard, what it writes, or its action after its last retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_place: Option<Name>,
    /// How long the action may take; 0 = as long as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// What it does to the loop position of the activation it moves.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub loop_step: Option<LoopStep>,
}

/// What makes a transition fire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Trigger {
    /// By itself, as soon as its guard says yes.
    #[default]
    Auto,
    /// A signal of this name.
    Signal(Name),
    /// So many milliseconds after its place was entered.
    AfterMs(u64),
    /// At the instant (RFC 3339) this expression gave when its place was entered.
    Until(String),
    /// After the time this expression gave when its place was entered: an ISO 8601 duration, or a number of seconds.
    After(String),
}

/// A value and where it goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assign {
    /// A path of fields: `vars.total`; `locals.…` is the activation's own.
    pub to: String,
    /// The value, with `{"$expr": …}` in it where it depends on the run.
    pub value: Value,
}

/// A failure that the workflow itself declares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Raise {
    /// A new one.
    New {
        /// A word for the kind of failure, with `{"$expr": …}` in it where it depends on the run.
        code: Value,
        /// What happened, for a person.
        message: Value,
    },
    /// The error that this local holds, passed on as it is.
    Again(String),
}

/// Code found by name in the action registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// The action's name.
    pub name: Name,
    /// Its input, with `{"$expr": …}` in it where it depends on the state.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// Where its output goes: a field of the context, or a path of fields (`vars.total`); `locals.…` is the
    /// activation's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_as: Option<String>,
    /// The edition it has to be of; without it any will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// A condition on a transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Guard {
    /// An expression that must be true.
    Expr(String),
    /// The place has been completed before.
    Completed(Name),
    /// The place is active or waiting now.
    Active(Name),
    /// All of these.
    And(Vec<Guard>),
    /// At least one of these.
    Or(Vec<Guard>),
    /// Not this.
    Not(Box<Guard>),
    /// A function of the host's, found by name.
    Named(Name),
}

/// What a transition does to the loop position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LoopStep {
    /// A loop begins: iteration 0 of a new, inner one.
    Enter,
    /// The next iteration of the innermost loop.
    Next,
    /// The innermost loop is left; of a transition to a loop from its own body, that one, with what its rounds have given.
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
