//! What whoever started or resumed a flow is told.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::graph::open_waits;
use stepwell_core::schema::Misfit;
use stepwell_core::snapshot::{ActivationId, Finished, PROMPT};
use stepwell_core::{Definition, Failure, Name, Refusal, RunId, Snapshot, Timestamp};
use stepwell_store::Status;

use super::keys::KeyError;
use crate::error::EngineError;

/// How a flow stands after a start or a resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The flow's own id; a durable run that it becomes has the same.
    pub flow: RunId,
    /// The workflow.
    pub workflow: Name,
    /// How it is doing.
    pub status: Status,
    /// Where it rests: a strategy's name; `None` if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests: Option<String>,
    /// What resumes it, or only shows that it waits if that was sent to somebody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The token only shows that it waits: somebody else is to answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_shows: bool,
    /// When the token is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Pause>,
    /// What of the input was wrong: the token is still good.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Misfit>,
    /// The outlet through which what resumes it was sent out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// Its result, if it has completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why a durable run stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The same request was answered before: this is that answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_replayed: bool,
}

impl Answer {
    /// A flow that is there.
    pub(crate) fn of(definition: &Definition, snapshot: &Snapshot, status: Status) -> Self {
        let result = match snapshot.finished() {
            Some(Finished::Completed { output, .. }) => Some(output.clone().unwrap_or_default()),
            Some(Finished::Cancelled) | None => None,
        };
        Answer {
            flow: snapshot.instance_id(),
            workflow: snapshot.workflow().clone(),
            status,
            rests: None,
            token: None,
            only_shows: false,
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

/// Something a flow waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The activation that waits.
    pub activation: ActivationId,
    /// Where.
    pub place: Name,
    /// The signals that are taken there: what may be answered.
    pub outcomes: Vec<Name>,
    /// JSON Schema of the form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// What is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Value>,
    /// Who may answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<String>,
}

/// What a flow waits for from outside.
pub(crate) fn pauses(definition: &Definition, snapshot: &Snapshot) -> Vec<Pause> {
    let open = open_waits(definition, snapshot).into_iter();
    open.map(|wait| {
        let activation = snapshot.activation(wait.activation);
        let prompt = activation.and_then(|activation| activation.locals.get(PROMPT)).cloned();
        // A place that takes one signal asks for what that brings, if it has no form of its own.
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

/// Why a flow was not started or resumed. It is as it was.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FlowError {
    /// The token is used, expired, unknown, somebody else's or no token at all: which of these is not said.
    #[error("the link or token is no longer valid")]
    Gone,
    /// Somebody else is resuming it right now.
    #[error("it is being answered right now: try again in {retry_after_ms} ms")]
    Busy {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The key was used for another request.
    #[error("key `{key}` was used for another request: use a new key for a new request")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// Flows of this workflow are not started here.
    #[error("workflow `{0}` cannot be started here")]
    NotAllowed(Name),
    /// It has to be said which of several outcomes is meant, or that one cannot be meant.
    #[error("`{}` cannot be answered here: it is one of {}", given.as_deref().unwrap_or("no outcome"), list(outcomes))]
    Outcome {
        /// What was given.
        given: Option<String>,
        /// What can be.
        outcomes: Vec<Name>,
    },
    /// The flow says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A step has failed; the token is still good.
    #[error("the step failed: {0}")]
    Failed(Failure),
    /// What was to be sent out could not be; the token is still good.
    #[error("`{outlet}` could not send: {why}")]
    NotSent {
        /// The outlet.
        outlet: String,
        /// Why.
        why: String,
    },
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The engine could not.
    #[error(transparent)]
    Engine(#[from] EngineError),
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
