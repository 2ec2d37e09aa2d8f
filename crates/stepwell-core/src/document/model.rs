//! The model of a workflow document: its steps and their positions.

use serde_json::Value;

use super::problem::Position;
use crate::retry::Retry;
use crate::spec::{DeliveryGuarantee, EventFilter, Quorum, Spec, Tolerance};

/// A parsed workflow document.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) version: u32,
    /// A spec without the places, transitions and signals that the steps add.
    pub(crate) frame: Spec,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Steps(Vec<Step>),
    /// Places and transitions, as a complete spec.
    Places(Box<Spec>),
}

/// A step as its author wrote it.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) at: Position,
    pub(crate) id: String,
    /// The step is skipped if this expression is false.
    pub(crate) condition: Option<String>,
    pub(crate) retry: Option<Retry>,
    pub(crate) timeout: Option<Span>,
    pub(crate) on_error: OnError,
    /// The path in the variables at which the result is saved, if the author sets one.
    pub(crate) save_as: Option<String>,
    pub(crate) kind: StepKind,
}

/// A duration, fixed or computed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Span {
    Ms(u64),
    /// An expression that evaluates to a duration.
    Expr(String),
}

/// The reaction to a step that has failed permanently.
#[derive(Debug, Clone, Default)]
pub(crate) enum OnError {
    /// The error goes to the enclosing handler.
    #[default]
    Fail,
    /// The run continues with the next step.
    Continue,
    /// The run executes these steps and continues with the next step.
    Steps(Vec<Step>),
}

/// The type of a step and its settings.
#[derive(Debug, Clone)]
pub(crate) enum StepKind {
    Call {
        action: String,
        version: Option<u32>,
        input: Value,
        delivery: DeliveryGuarantee,
    },
    If {
        condition: String,
        then: Vec<Step>,
        otherwise: Vec<Step>,
    },
    Switch(Switch),
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
        goal: Option<Goal>,
    },
    Return {
        value: Option<Value>,
    },
    Fail {
        code: Value,
        message: Value,
        is_final: Option<bool>,
        errors: Option<Value>,
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

/// The cases of a `control.switch`. The first case whose condition is true is executed.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    pub(crate) cases: Vec<SwitchCase>,
    pub(crate) default: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(crate) struct SwitchCase {
    pub(crate) at: Position,
    /// The condition, as an expression on the run.
    pub(crate) condition: String,
    /// The values that the case is for. Empty if the author wrote a condition.
    pub(crate) values: Vec<Value>,
    pub(crate) steps: Vec<Step>,
}

/// The calls that fetch the items of a loop page by page.
#[derive(Debug, Clone)]
pub(crate) struct PageCall {
    pub(crate) at: Position,
    pub(crate) action: String,
    pub(crate) version: Option<u32>,
    pub(crate) input: Value,
    pub(crate) delivery: DeliveryGuarantee,
    pub(crate) retry: Option<Retry>,
    pub(crate) timeout: Option<Span>,
    /// The path of the items in the output.
    pub(crate) items: String,
    /// The path of the next page's cursor in the output.
    pub(crate) cursor: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Each {
    /// The items. Null if they are fetched page by page.
    pub(crate) items: Value,
    pub(crate) pages: Option<PageCall>,
    pub(crate) item: String,
    pub(crate) index: Option<String>,
    /// Maximum number of items processed in parallel. Without it, items are processed one after the other.
    pub(crate) parallel: Option<u32>,
    pub(crate) errors: ItemErrors,
    pub(crate) goal: Option<Goal>,
    pub(crate) most: Option<u32>,
    pub(crate) result: Option<Value>,
    pub(crate) body: Vec<Step>,
}

/// The number of branches or items that must complete, and that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Goal {
    pub(crate) quorum: Quorum,
    pub(crate) tolerate: Tolerance,
}

/// The effect of a failed item on the other items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ItemErrors {
    /// The loop fails with the error of the item.
    #[default]
    Fail,
    /// The item has no result, and the loop continues.
    Continue,
    /// The error becomes the item's entry in the list of results.
    Collect,
}

#[derive(Debug, Clone)]
pub(crate) enum Sleep {
    For(Span),
    Until(String),
}

/// A wait for a signal or an event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wait {
    pub(crate) signal: String,
    pub(crate) payload: Option<Value>,
    pub(crate) filter: Option<String>,
    /// Set if the step waits for an event: selects the events.
    pub(crate) event: Option<EventFilter>,
    /// The prompt for the person who answers.
    pub(crate) prompt: Option<Value>,
    pub(crate) form: Option<Value>,
    pub(crate) answerers: Vec<String>,
    pub(crate) on_timeout: Option<Vec<Step>>,
    /// Time without a heartbeat after which the wait fails, in milliseconds.
    pub(crate) heartbeat_ms: Option<u64>,
}

impl Step {
    /// Returns the type of the step as it is written.
    pub(crate) fn word(&self) -> &'static str {
        match &self.kind {
            StepKind::Call { .. } => "action.call",
            StepKind::If { .. } => "control.if",
            StepKind::Switch(_) => "control.switch",
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

    /// Returns true if the step takes no time.
    pub(crate) fn is_instant(&self) -> bool {
        use StepKind::{Break, Continue, Fail, Return, Set};
        matches!(self.kind, Break | Continue | Fail { .. } | Return { .. } | Set { .. })
    }

    /// Returns the lists of steps inside this step, including its error steps.
    pub(crate) fn inner(&self) -> Vec<&[Step]> {
        let mut inner: Vec<&[Step]> = match &self.kind {
            StepKind::If { then, otherwise, .. } => vec![then, otherwise],
            StepKind::Switch(switch) => {
                let cases = switch.cases.iter().map(|case| case.steps.as_slice());
                cases.chain([switch.default.as_slice()]).collect()
            }
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

    /// Returns true if the step is or contains a call that is made at most once.
    pub(crate) fn has_call_at_most_once(&self) -> bool {
        let delivery = match &self.kind {
            StepKind::Call { delivery, .. } => *delivery,
            StepKind::Each(each) => each.pages.as_ref().map(|call| call.delivery).unwrap_or_default(),
            _ => DeliveryGuarantee::default(),
        };
        delivery == DeliveryGuarantee::AtMostOnce
            || self.inner().into_iter().flatten().any(Step::has_call_at_most_once)
    }

    /// Returns the name of the variable that holds the result, if the step has a result.
    pub(crate) fn result_name(&self) -> Option<&str> {
        let by_itself =
            matches!(self.kind, StepKind::Call { .. } | StepKind::Wait(_) | StepKind::Workflow { .. });
        self.save_as.as_deref().or_else(|| by_itself.then_some(self.id.as_str()))
    }
}
