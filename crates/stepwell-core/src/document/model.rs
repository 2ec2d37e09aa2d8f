//! A workflow as its author has written it: steps, each with where it stands.

use serde_json::Value;

use super::problem::Place;
use crate::retry::Retry;
use crate::spec::{Awaited, Spec};

/// A document that has been read.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) version: u32,
    /// A spec with everything but its places, transitions and what steps add to it.
    pub(crate) frame: Spec,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Steps(Vec<Step>),
    /// Places and transitions, as a spec of their own.
    Places(Box<Spec>),
}

/// One step.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) at: Place,
    pub(crate) id: String,
    /// The step is done only if this is true.
    pub(crate) condition: Option<String>,
    pub(crate) retry: Option<Retry>,
    pub(crate) timeout: Option<Span>,
    pub(crate) on_error: OnError,
    /// Where in the variables its result goes, if the author says so.
    pub(crate) save_as: Option<String>,
    pub(crate) kind: StepKind,
}

/// How long.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Span {
    Ms(u64),
    /// An expression that gives a duration.
    Expr(String),
}

/// What happens when a step has failed for good.
#[derive(Debug, Clone, Default)]
pub(crate) enum OnError {
    /// It is the error of whatever the step is in.
    #[default]
    Fail,
    /// The run goes on with the next step.
    Continue,
    /// These steps, and then the next one.
    Steps(Vec<Step>),
}

/// What a step does.
#[derive(Debug, Clone)]
pub(crate) enum StepKind {
    Call {
        action: String,
        version: Option<u32>,
        input: Value,
    },
    If {
        condition: String,
        then: Vec<Step>,
        otherwise: Vec<Step>,
    },
    Each(Each),
    While {
        condition: String,
        index: Option<String>,
        most: Option<u32>,
        result: Option<Value>,
        body: Vec<Step>,
    },
    Break,
    Continue,
    Try {
        body: Vec<Step>,
        local: String,
        codes: Option<Vec<String>>,
        catch: Vec<Step>,
    },
    Parallel {
        branches: Vec<Vec<Step>>,
        settled: bool,
    },
    Return {
        value: Option<Value>,
    },
    Fail {
        code: Value,
        message: Value,
    },
    Set {
        values: Vec<(String, Value)>,
    },
    Sleep(Sleep),
    Wait(Wait),
    Workflow {
        workflow: Value,
        input: Value,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Each {
    pub(crate) items: Value,
    pub(crate) item: String,
    pub(crate) index: Option<String>,
    /// So many at once; without it one after the other.
    pub(crate) parallel: Option<u32>,
    pub(crate) errors: ItemErrors,
    pub(crate) most: Option<u32>,
    pub(crate) result: Option<Value>,
    pub(crate) body: Vec<Step>,
}

/// What an item that fails does to the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ItemErrors {
    /// The loop fails.
    #[default]
    Fail,
    /// It is passed over.
    Continue,
    /// The list of results says so.
    Collect,
}

#[derive(Debug, Clone)]
pub(crate) enum Sleep {
    For(Span),
    Until(String),
}

/// A wait for somebody or something outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wait {
    pub(crate) signal: String,
    pub(crate) payload: Option<Value>,
    pub(crate) filter: Option<String>,
    /// It waits for an event, and for which.
    pub(crate) event: Option<Awaited>,
    /// What whoever answers is asked.
    pub(crate) prompt: Option<Value>,
    pub(crate) form: Option<Value>,
    pub(crate) answerers: Vec<String>,
    pub(crate) on_timeout: Option<Vec<Step>>,
}

impl Step {
    /// The type as it is written.
    pub(crate) fn word(&self) -> &'static str {
        match &self.kind {
            StepKind::Call { .. } => "action.call",
            StepKind::If { .. } => "control.if",
            StepKind::Each(_) => "control.forEach",
            StepKind::While { .. } => "control.while",
            StepKind::Break => "control.break",
            StepKind::Continue => "control.continue",
            StepKind::Try { .. } => "control.try",
            StepKind::Parallel { .. } => "control.parallel",
            StepKind::Return { .. } => "control.return",
            StepKind::Fail { .. } => "control.fail",
            StepKind::Set { .. } => "vars.set",
            StepKind::Sleep(_) => "wait.sleep",
            StepKind::Wait(wait) if wait.form.is_some() || wait.prompt.is_some() => "human.task",
            StepKind::Wait(_) => "wait.signal",
            StepKind::Workflow { .. } => "workflow.call",
        }
    }

    /// It takes no time: it is done as soon as it begins.
    pub(crate) fn is_instant(&self) -> bool {
        use StepKind::{Break, Continue, Fail, Return, Set};
        matches!(self.kind, Break | Continue | Fail { .. } | Return { .. } | Set { .. })
    }

    /// The lists of steps inside it, those for its errors included.
    pub(crate) fn inner(&self) -> Vec<&[Step]> {
        let mut inner: Vec<&[Step]> = match &self.kind {
            StepKind::If { then, otherwise, .. } => vec![then, otherwise],
            StepKind::Each(each) => vec![&each.body],
            StepKind::While { body, .. } => vec![body],
            StepKind::Try { body, catch, .. } => vec![body, catch],
            StepKind::Parallel { branches, .. } => branches.iter().map(Vec::as_slice).collect(),
            StepKind::Wait(Wait { on_timeout: Some(steps), .. }) => vec![steps],
            _ => Vec::new(),
        };
        if let OnError::Steps(steps) = &self.on_error {
            inner.push(steps);
        }
        inner
    }

    /// The name of its result among the variables, if it has one.
    pub(crate) fn result_name(&self) -> Option<&str> {
        let by_itself =
            matches!(self.kind, StepKind::Call { .. } | StepKind::Wait(_) | StepKind::Workflow { .. });
        self.save_as.as_deref().or_else(|| by_itself.then_some(self.id.as_str()))
    }
}
