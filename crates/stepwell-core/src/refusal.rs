//! Refusals, decision errors and failures.
//!
//! A refusal means that the workflow does not accept the input now. A decision error means a mistake in the
//! definition or its data. A failure is a recorded error of an action.

use serde::{Deserialize, Serialize};

use crate::expr::{ExprError, Missing, excerpt};
use crate::ids::Name;
use crate::limits::LimitExceeded;
use crate::schema::SchemaViolation;
use crate::snapshot::ActivationId;
use crate::template::TemplateError;
use crate::time::{Timestamp, missing_unit};

/// The reason why `dispatch` returned no decision.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejected {
    /// The workflow does not accept the input; an ordinary result.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision could not be made.
    #[error(transparent)]
    Undecidable(#[from] DecideError),
}

impl Rejected {
    /// Returns the refusal, or `None` for a decision error.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Rejected::Refused(refusal) => Some(refusal),
            Rejected::Undecidable(_) => None,
        }
    }
}

/// The workflow does not accept the input. The reasons are checked in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reason")]
pub enum Refusal {
    /// The run has ended.
    #[error("the run has already ended")]
    Terminal,
    /// The definition does not declare this signal.
    #[error("workflow `{workflow}` has no signal `{signal}`{hint}")]
    UnknownSignal {
        workflow: Name,
        signal: String,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// The payload does not match the signal's schema.
    #[error("the payload of signal `{signal}` does not match its schema: {}", list(violations))]
    InvalidPayload {
        signal: Name,
        /// The mismatches, each with its position in the payload.
        violations: Vec<SchemaViolation>,
    },
    /// The run is in no place that accepts the input.
    #[error(
        "`{what}` is not accepted now: it is accepted in {}, and the run is in {}",
        names(accepted_in),
        names(active)
    )]
    NoActiveSource {
        /// The signal, the wait or the timer.
        what: String,
        /// The places that accept it.
        accepted_in: Vec<Name>,
        active: Vec<Name>,
    },
    /// The guards of all transitions that could fire are false.
    #[error("{}", list(verdicts))]
    GuardRejected {
        /// Each transition with the guard that is false.
        verdicts: Vec<GuardRejection>,
    },
    /// The timer is not due yet.
    #[error("the timer is not due yet: it is due at {due}, and now is {now}")]
    NotDue { due: Timestamp, now: Timestamp },
    /// The activation no longer exists or has moved on, or its branch has ended.
    #[error("the result for `{what}` is discarded: activation {activation} has ended or moved on")]
    Superseded {
        activation: ActivationId,
        /// The transition or wait that the result is for.
        what: Name,
    },
    /// The definition does not have the target place of a move.
    #[error("workflow `{workflow}` has no place `{place}`{hint}")]
    UnknownPlace {
        workflow: Name,
        place: String,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// The run has no such activation.
    #[error("the run has no activation {activation}; it is in {}", names(active))]
    NoActivation { activation: ActivationId, active: Vec<Name> },
    /// The place exists, but the run or its activation cannot be moved to it from its current place.
    #[error("cannot move to `{place}`: {why}")]
    CannotEnter { place: Name, why: String },
    /// No automatic transition can fire. The run is idle.
    #[error("no automatic transition can fire now")]
    Idle,
}

/// A guard that is false, and its transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("transition `{transition}` is blocked by its guard {guard}")]
pub struct GuardRejection {
    pub transition: Name,
    /// The part of the guard that is false, as text.
    pub guard: String,
}

/// An error because of which no decision can be made. The snapshot is unchanged, and the definition, the data or the
/// host needs a correction.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecideError {
    /// A named guard has no result.
    #[error("guard `{guard}` of transition `{transition}` is not registered: register it first")]
    UnresolvedGuard { guard: Name, transition: Name },
    /// A named guard failed.
    #[error("guard `{guard}` failed: {why}")]
    GuardFailed { guard: Name, why: String },
    /// The evaluation of an expression failed.
    #[error("{at}: {error}")]
    Expression {
        /// Human-readable location, such as ``guard of transition `pay` ``.
        at: String,
        error: ExprError,
    },
    /// An expression that needs a value is undefined.
    #[error(
        "{at}: `{}` is undefined{}; give it a default, such as `… ?? false`",
        excerpt(expr, 0),
        missing.as_ref().map(|missing| format!(": {missing}")).unwrap_or_default()
    )]
    Undefined {
        /// Human-readable location, such as ``guard of transition `pay` ``.
        at: String,
        expr: String,
        /// The part of the expression that has no value.
        missing: Option<Missing>,
    },
    /// A template could not be rendered.
    #[error("{at}: {error}")]
    Template {
        /// Human-readable location, such as ``guard of transition `pay` ``.
        at: String,
        error: TemplateError,
    },
    /// The expression of a timer gave no valid time.
    #[error(
        "transition `{transition}`: `{word}` gave {found}; expected {}",
        match *word {
            "until" => "an RFC 3339 timestamp".to_owned(),
            _ => found.parse().ok().and_then(|found| missing_unit("", &found)).map_or_else(
                || "a duration with a unit, such as `30s` or `PT5M`".to_owned(),
                |why| format!("a duration with a unit: {why}"),
            ),
        }
    )]
    InvalidTimestamp {
        transition: Name,
        /// The field with the expression: `until` or `after`.
        word: &'static str,
        /// The value of the expression as text.
        found: String,
    },
    /// The key of a concurrency or rate limit is not text or a number, or has a wrong length.
    #[error(
        "{at} must give text or a number of 1 to {} characters, not {found}",
        crate::admission::MAX_KEY_CHARS
    )]
    InvalidLimitKey {
        /// Human-readable location, such as `` `concurrency.key` ``.
        at: String,
        /// Description of the value.
        found: String,
    },
    /// The context would no longer match its schema.
    #[error("the context would not match its schema: {}", list(.0))]
    InvalidContext(Vec<SchemaViolation>),
    /// The workflow does not declare this kind of document.
    #[error("the workflow does not declare documents of kind `{kind}`{hint}")]
    UnknownDocument {
        kind: Name,
        /// ` (did you mean …?)`, or an empty string.
        hint: String,
    },
    /// A document does not match the schema of its kind.
    #[error("the document does not match the schema of kind `{kind}`: {}", list(violations))]
    InvalidDocument { kind: Name, violations: Vec<SchemaViolation> },
    /// The session slots would no longer be an object.
    #[error("the session slots must stay an object of names and values")]
    InvalidSession,
    /// The result does not match the output schema.
    #[error("the result of `{place}` does not match the output schema: {}", list(violations))]
    InvalidOutput { place: Name, violations: Vec<SchemaViolation> },
    /// The snapshot belongs to another definition.
    #[error(
        "the snapshot belongs to `{found}`, not to `{expected}`: use the definition that it is pinned to"
    )]
    OtherDefinition {
        /// Name and hash of this definition.
        expected: String,
        /// Name and hash of the definition that the snapshot is pinned to.
        found: String,
    },
    /// The input of the run does not match its schema.
    #[error("the input does not match its schema: {}", list(.0))]
    InvalidInput(Vec<SchemaViolation>),
    /// The workflow raises a failure.
    #[error(transparent)]
    Raised(Failure),
    /// The list of a loop or fork was stored separately and has not been put back.
    #[error("the list of `{place}` is missing from the snapshot: put it back first")]
    ListMissing { place: Name },
    /// A limit would be exceeded.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
}

impl DecideError {
    /// Converts the error to a failure that can be recorded.
    pub fn failure(&self) -> Failure {
        let code = match self {
            DecideError::Raised(failure) => return failure.clone(),
            DecideError::Expression { .. }
            | DecideError::Undefined { .. }
            | DecideError::Template { .. }
            | DecideError::InvalidTimestamp { .. }
            | DecideError::InvalidLimitKey { .. } => "expression",
            DecideError::InvalidOutput { .. } | DecideError::InvalidContext(_) => "validationFailed",
            DecideError::Limit(_) => "limit",
            _ => "undecidable",
        };
        Failure::new(code, self.to_string()).non_retryable()
    }

    /// Returns true if the workflow can handle the error, because it comes from the workflow's data and not from the
    /// host.
    pub(crate) fn can_be_caught(&self) -> bool {
        matches!(
            self,
            DecideError::Raised(_)
                | DecideError::Expression { .. }
                | DecideError::Undefined { .. }
                | DecideError::Template { .. }
                | DecideError::InvalidTimestamp { .. }
                | DecideError::InvalidContext(_)
                | DecideError::InvalidOutput { .. }
                | DecideError::Limit(_)
        )
    }
}

/// The recorded error of an action or of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{code}: {message}")]
pub struct Failure {
    /// Stable code for the kind of failure, for `retryOn` and for programs.
    pub code: String,
    /// Human-readable description of the failure.
    pub message: String,
    /// True if a retry cannot succeed.
    #[serde(default, rename = "final")]
    pub is_final: bool,
    /// Mismatches of an invalid input, each with its position in the input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SchemaViolation>,
    /// HTTP status of the response that is the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl Failure {
    /// Creates a failure that may be retried.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Failure {
            code: code.into(),
            message: message.into(),
            is_final: false,
            errors: Vec::new(),
            status: None,
        }
    }

    /// Sets the HTTP status of the response that is the failure.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Marks the failure as final: it is not retried.
    #[must_use]
    pub fn non_retryable(mut self) -> Self {
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
