//! The result of starting or resuming a flow, and the errors of both.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::graph::open_waits;
use stepwell_core::schema::SchemaViolation;
use stepwell_core::snapshot::{ActivationId, PROMPT, RunEnd};
use stepwell_core::{Definition, Failure, Name, Refusal, RunId, Snapshot, Timestamp};
use stepwell_store::Status;

use super::keys::KeyError;
use crate::error::EngineError;

/// The state of a flow after a start or a resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The flow's id. A flow that becomes a durable run keeps it as the run's id.
    pub flow: RunId,
    pub workflow: Name,
    /// Status of the flow when this answer was made.
    pub status: Status,
    /// Name of the strategy that keeps the flow's state; `None` if the flow has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Token that resumes the flow. If `watch_only` is set, it only shows that the flow waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The token cannot resume the flow, because the answer is expected from another person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watch_only: bool,
    /// Expiry of the token; `None` if it never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The waits that accept an answer from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Pause>,
    /// Validation errors of the input. The token stays valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SchemaViolation>,
    /// Name of the outlet that sends the resuming token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// Output of the workflow, if the flow has completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The failure that stopped a durable run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// This is the stored answer to an earlier request with the same idempotency key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_replayed: bool,
}

impl Answer {
    /// Describes the flow in `snapshot`, without a token.
    pub(crate) fn of(definition: &Definition, snapshot: &Snapshot, status: Status) -> Self {
        let result = match snapshot.finished() {
            Some(RunEnd::Completed { output, .. }) => Some(output.clone().unwrap_or_default()),
            Some(RunEnd::Cancelled) | None => None,
        };
        Answer {
            flow: snapshot.instance_id(),
            workflow: snapshot.workflow().clone(),
            status,
            strategy: None,
            token: None,
            watch_only: false,
            expires_at: None,
            waits: pauses(definition, snapshot),
            errors: Vec::new(),
            sent: None,
            result,
            error: None,
            is_replayed: false,
        }
    }
}

/// A wait of a flow for an answer from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The waiting activation.
    pub activation: ActivationId,
    pub place: Name,
    /// The signals that the place accepts as an answer.
    pub outcomes: Vec<Name>,
    /// JSON Schema of the form, or of the signal's payload if the place has no form and accepts one signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// The prompt of the waiting activation, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Value>,
    /// The people or roles that may answer; empty if the place names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<String>,
}

/// Lists the open waits of a flow that accept an answer from outside.
pub(crate) fn pauses(definition: &Definition, snapshot: &Snapshot) -> Vec<Pause> {
    let open = open_waits(definition, snapshot).into_iter();
    open.map(|wait| {
        let activation = snapshot.activation(wait.activation);
        let prompt = activation.and_then(|activation| activation.locals.get(PROMPT)).cloned();
        // A place without a form that accepts one signal asks for that signal's payload.
        let payload = match &wait.signals[..] {
            [only] => definition.spec().signals.get(only).and_then(|signal| signal.payload.clone()),
            _ => None,
        };
        Pause {
            activation: wait.activation,
            place: wait.place,
            outcomes: wait.signals,
            form: wait.form.or(payload),
            prompt,
            answerers: wait.answerers,
        }
    })
    .collect()
}

/// The reason why a flow was not started or resumed. The flow is unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FlowError {
    /// The token is used, expired, unknown, malformed or belongs to another tenant. The error does not reveal the
    /// reason.
    #[error("the link or token is no longer valid")]
    Gone,
    /// The token only shows that the flow waits: another person must answer.
    #[error("this token only shows the flow: the answer is expected from another person")]
    WatchOnly,
    /// The run has no open wait that accepts an answer, or not the one that the request names.
    #[error("run {run} does not wait {place}for an answer")]
    NoWait {
        run: RunId,
        /// The requested place as part of the message; empty if the request named none.
        place: String,
    },
    /// Several open waits fit the request.
    #[error("run {run} has several open waits: name one by its place, or by its `wait`: {}", waits_of(waits))]
    AmbiguousWait {
        run: RunId,
        /// The waits that fit: activation and place.
        waits: Vec<(ActivationId, Name)>,
    },
    /// Another request is resuming the flow.
    #[error("another request is resuming this flow: retry in {retry_after_ms} ms")]
    Busy {
        /// Delay before the next attempt, in milliseconds.
        retry_after_ms: u64,
    },
    /// The idempotency key belongs to a different request.
    #[error("idempotency key `{key}` was used for another request: use a new key")]
    KeyReused { key: String },
    /// This `Flows` does not start flows of the workflow.
    #[error("workflow `{0}` cannot be started here")]
    NotAllowed(Name),
    /// The given outcome is not accepted here, or none was given and several are possible.
    #[error("`{}` is not accepted here: use one of {}", given.as_deref().unwrap_or("no outcome"), list(outcomes))]
    Outcome {
        /// The requested outcome; `None` if the request named none.
        given: Option<String>,
        /// The outcomes that are accepted here.
        outcomes: Vec<Name>,
    },
    /// The workflow refuses the input.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A step has failed. The token stays valid.
    #[error("the step failed: {0}")]
    Failed(Failure),
    /// The outlet could not send the message.
    #[error("outlet `{outlet}` could not send the message: {why}")]
    NotSent { outlet: String, why: String },
    /// A sealing key is invalid, or the system gave no randomness.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The engine reported an error.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

fn waits_of(waits: &[(ActivationId, Name)]) -> String {
    waits.iter().map(|(wait, place)| format!("{wait} at `{place}`")).collect::<Vec<_>>().join(", ")
}

fn list(names: &[Name]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl From<stepwell_store::StoreError> for FlowError {
    fn from(error: stepwell_store::StoreError) -> Self {
        FlowError::Engine(error.into())
    }
}
