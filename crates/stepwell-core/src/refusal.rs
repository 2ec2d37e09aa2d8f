//! The three ways in which something does not happen: a refusal (the workflow said no), a decision that cannot be
//! made (a mistake in the definition or its data), and a failure (recorded data about work that went wrong).

use serde::{Deserialize, Serialize};

use crate::expr::{ExprError, Missing, excerpt};
use crate::ids::Name;
use crate::limits::LimitExceeded;
use crate::schema::Misfit;
use crate::snapshot::ActivationId;
use crate::template::TemplateError;
use crate::time::Timestamp;

/// Why `dispatch` gave no decision.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejected {
    /// The workflow said no; an ordinary answer.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The question could not be answered.
    #[error(transparent)]
    Undecidable(#[from] DecideError),
}

impl Rejected {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Rejected::Refused(refusal) => Some(refusal),
            Rejected::Undecidable(_) => None,
        }
    }
}

/// The workflow said no. Checked in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reason")]
pub enum Refusal {
    /// The run has ended.
    #[error("the run has ended; nothing more can happen to it")]
    Terminal,
    /// The definition does not know this signal.
    #[error("workflow `{workflow}` knows no signal `{signal}`{hint}")]
    UnknownSignal {
        /// The workflow.
        workflow: Name,
        /// The signal nobody declared.
        signal: String,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// The payload does not fit the signal's schema.
    #[error("the payload of `{signal}` does not fit: {}", list(misfits))]
    PayloadUnfit {
        /// The signal.
        signal: Name,
        /// What does not fit, each with its place in the payload.
        misfits: Vec<Misfit>,
    },
    /// Nothing that could take it is active now.
    #[error(
        "nothing takes `{what}` now: it is taken in {}, and the run is in {}",
        names(taken_in),
        names(active)
    )]
    NoActiveSource {
        /// The signal, wait or timer.
        what: String,
        /// The places in which it would be taken.
        taken_in: Vec<Name>,
        /// The places the run is in.
        active: Vec<Name>,
    },
    /// Every transition that could fire has a guard that says no.
    #[error("{}", list(verdicts))]
    GuardSaidNo {
        /// Each transition with the guard that refused it.
        verdicts: Vec<GuardNo>,
    },
    /// The timer is not due.
    #[error("the timer is due at {due}, not yet at {now}")]
    NotDue {
        /// When it is due.
        due: Timestamp,
        /// When it was asked for.
        now: Timestamp,
    },
    /// The activation this is about is gone or elsewhere: its branch ended, or it has moved on.
    #[error("activation {activation} is no longer there for `{what}`; the result is discarded")]
    Superseded {
        /// The activation.
        activation: ActivationId,
        /// The transition or wait it was about.
        what: Name,
    },
    /// The definition does not have the place somebody wants to move to.
    #[error("workflow `{workflow}` has no place `{place}`{hint}")]
    UnknownPlace {
        /// The workflow.
        workflow: Name,
        /// The place it does not have.
        place: String,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// The run has no such activation.
    #[error("the run has no activation {activation}; it is in {}", names(active))]
    NoActivation {
        /// The activation that is not there.
        activation: ActivationId,
        /// The places the run is in.
        active: Vec<Name>,
    },
    /// The place exists and cannot be moved to from where the run, or its activation, is.
    #[error("`{place}` cannot be moved to: {why}")]
    CannotEnter {
        /// The place.
        place: Name,
        /// Why not, for a person.
        why: String,
    },
    /// No automatic transition can fire: the run is at rest.
    #[error("no automatic transition can fire now")]
    AtRest,
}

/// A guard that said no, and to what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("transition `{transition}` is held back by its guard {guard}")]
pub struct GuardNo {
    /// The transition.
    pub transition: Name,
    /// The part of the guard that refused, as text.
    pub guard: String,
}

/// A decision that cannot be made. The snapshot is unchanged; somebody has to mend something.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecideError {
    /// A named guard has no answer.
    #[error(
        "transition `{transition}` asks the guard `{guard}`, and nobody has registered it: inject it first"
    )]
    UnresolvedGuard {
        /// The guard.
        guard: Name,
        /// The transition that asks it.
        transition: Name,
    },
    /// A named guard did not answer.
    #[error("the guard `{guard}` did not answer: {why}")]
    GuardFailed {
        /// The guard.
        guard: Name,
        /// Why.
        why: String,
    },
    /// An expression failed.
    #[error("{at}: {error}")]
    Expression {
        /// Where it is written.
        at: String,
        /// What went wrong.
        error: ExprError,
    },
    /// A condition is neither true nor false.
    #[error(
        "{at}: `{}` is undefined{}; give it a default, such as `… ?? false`",
        excerpt(expr, 0),
        missing.as_ref().map(|missing| format!(": {missing}")).unwrap_or_default()
    )]
    Undefined {
        /// Where it is written.
        at: String,
        /// The expression.
        expr: String,
        /// The part of it that is not there.
        missing: Option<Missing>,
    },
    /// An input or output could not be made.
    #[error("{at}: {error}")]
    Template {
        /// Where it is written.
        at: String,
        /// What went wrong.
        error: TemplateError,
    },
    /// A timer's expression gave no instant.
    #[error(
        "transition `{transition}`: `{word}` gave {found}, not {}",
        if *word == "until" { "an RFC 3339 instant" } else { "an ISO 8601 duration or a number of seconds" }
    )]
    NotAnInstant {
        /// The transition.
        transition: Name,
        /// Whether it says until when, or after what time.
        word: &'static str,
        /// What it gave.
        found: String,
    },
    /// The context would no longer fit its schema.
    #[error("the context would not fit its schema: {}", list(.0))]
    ContextUnfit(Vec<Misfit>),
    /// The workflow writes no documents of this kind.
    #[error("the workflow writes no documents of kind `{kind}`{hint}")]
    UnknownDocument {
        /// The kind.
        kind: Name,
        /// ` (did you mean …?)`, or nothing.
        hint: String,
    },
    /// A document does not fit the schema of its kind.
    #[error("the document does not fit its kind `{kind}`: {}", list(misfits))]
    DocumentUnfit {
        /// The kind.
        kind: Name,
        /// What does not fit.
        misfits: Vec<Misfit>,
    },
    /// The session slots would no longer be slots.
    #[error(
        "session slots are an object of names and values, and this change would make them something else"
    )]
    SessionUnfit,
    /// The result does not fit the output schema.
    #[error("the result of `{place}` does not fit the output schema: {}", list(misfits))]
    OutputUnfit {
        /// The end place.
        place: Name,
        /// What does not fit.
        misfits: Vec<Misfit>,
    },
    /// The snapshot belongs to another definition.
    #[error("the snapshot belongs to `{found}`, not to `{expected}`: restore it with its own definition")]
    OtherDefinition {
        /// Name and hash of this definition.
        expected: String,
        /// Name and hash the snapshot names.
        found: String,
    },
    /// What the run is started with does not fit its schema.
    #[error("the input does not fit its schema: {}", list(.0))]
    InputUnfit(Vec<Misfit>),
    /// The workflow itself declares a failure.
    #[error(transparent)]
    Raised(Failure),
    /// The list that a loop or fork goes through was kept apart, and has not been put back.
    #[error("the list that `{place}` goes through is not with the snapshot: put it back first")]
    ListMissing {
        /// The loop or fork.
        place: Name,
    },
    /// Something would be larger than allowed.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
}

impl DecideError {
    /// It as a failure that is recorded.
    pub fn failure(&self) -> Failure {
        let code = match self {
            DecideError::Raised(failure) => return failure.clone(),
            DecideError::Expression { .. }
            | DecideError::Undefined { .. }
            | DecideError::Template { .. }
            | DecideError::NotAnInstant { .. } => "expression",
            DecideError::OutputUnfit { .. } | DecideError::ContextUnfit(_) => "unfit",
            DecideError::Limit(_) => "limit",
            _ => "undecidable",
        };
        Failure::new(code, self.to_string()).finally()
    }

    /// The workflow can deal with it: it comes from its data, not from whoever runs it.
    pub(crate) fn can_be_caught(&self) -> bool {
        matches!(
            self,
            DecideError::Raised(_)
                | DecideError::Expression { .. }
                | DecideError::Undefined { .. }
                | DecideError::Template { .. }
                | DecideError::NotAnInstant { .. }
                | DecideError::ContextUnfit(_)
                | DecideError::OutputUnfit { .. }
                | DecideError::Limit(_)
        )
    }
}

/// Work that went wrong, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{code}: {message}")]
pub struct Failure {
    /// A stable word for the kind of failure, for `retryOn` and for programs.
    pub code: String,
    /// What happened, for a person.
    pub message: String,
    /// Trying again is of no use.
    #[serde(default, rename = "final")]
    pub is_final: bool,
    /// What of the input was wrong, each with its place there, if that was it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Misfit>,
}

impl Failure {
    /// A failure that may be tried again.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Failure { code: code.into(), message: message.into(), is_final: false, errors: Vec::new() }
    }

    /// The same, not to be tried again.
    #[must_use]
    pub fn finally(mut self) -> Self {
        self.is_final = true;
        self
    }
}

pub(crate) fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

pub(crate) fn names(names: &[Name]) -> String {
    if names.is_empty() {
        return "no place".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
