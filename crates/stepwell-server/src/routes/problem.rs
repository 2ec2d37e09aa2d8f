//! Problem responses. This is the only place that maps errors of flows to HTTP.

use axum::http::StatusCode;
use serde_json::{Value, json};
use stepwell::EngineError;
use stepwell::core::schema::SchemaViolation;
use stepwell::core::{DecideError, Failure, Refusal};
use stepwell::flow::FlowError;
use stepwell::store::StoreError;

use crate::telemetry::trace_id;

/// Value of `Retry-After` for a temporary failure, in seconds.
const LATER_S: u64 = 5;
/// Failure code for invalid input.
const VALIDATION_FAILED: &str = "validationFailed";
/// Failure codes of the engine, and the default code of errors without one. Their messages are for operators only.
const INNER: [&str; 25] = [
    "actionEnded",
    "cannotSend",
    "cannotStart",
    "childrenFailed",
    "crashed",
    "denied",
    "error",
    "invalid",
    "invalidDocument",
    "invalidInput",
    "invalidOutgoing",
    "invalidOutput",
    "invalidResult",
    "invalidStart",
    "invalidState",
    "joinUnreached",
    "keyReused",
    "notDurable",
    "panic",
    "refused",
    "stateless",
    "timeout",
    "undecidable",
    "unknownAction",
    "unreadable",
];

/// A problem according to RFC 9457.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// Stable error code for programs.
    pub(crate) code: &'static str,
    /// Description for people: what is wrong, and what to do.
    pub(crate) detail: String,
    /// True if the same request may succeed later.
    pub(crate) is_retryable: bool,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) params: Option<Value>,
    /// Errors of the input, each with its JSON pointer.
    pub(crate) errors: Vec<SchemaViolation>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let (params, errors) = (None, Vec::new());
        Problem { status, code, detail, is_retryable: false, retry_after_s: None, params, errors }
    }

    /// Returns a 400 for an invalid request.
    pub(crate) fn bad(code: &'static str, detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// Returns the 410 for an invalid token. It is the same for every reason.
    pub(crate) fn gone() -> Self {
        Problem::new(StatusCode::GONE, "gone", "The link or token is no longer valid.")
    }

    /// Returns the 422 for invalid input. Nothing was changed.
    pub(crate) fn validation(errors: Vec<SchemaViolation>) -> Self {
        let detail = "The input is invalid. Nothing was changed: correct the input and send it again.";
        Problem { errors, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, VALIDATION_FAILED, detail) }
    }

    /// Converts the error of a start. Here, invalid context data is the caller's input, so it is a 422.
    pub(crate) fn at_start(error: FlowError) -> Self {
        match error {
            FlowError::Engine(EngineError::Undecidable(DecideError::InvalidContext(errors))) => {
                Problem::validation(errors)
            }
            error => error.into(),
        }
    }

    /// Returns a 500 for an error that only operators can correct, and logs the error.
    pub(crate) fn internal(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(traceId = %trace_id(), %error, "request failed");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error. The log of the server has the details.",
        )
    }

    pub(crate) fn param(mut self, name: &str, value: impl Into<Value>) -> Self {
        let params = self.params.get_or_insert_with(|| json!({}));
        params[name] = value.into();
        self
    }

    pub(crate) fn later(mut self, seconds: u64) -> Self {
        self.is_retryable = true;
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    pub(crate) fn title(&self) -> &'static str {
        self.status.canonical_reason().unwrap_or("Error")
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut problem = json!({
            "type": "about:blank",
            "title": self.title(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
            "retryable": self.is_retryable,
        });
        if let Some(params) = &self.params {
            problem["params"] = params.clone();
        }
        if !self.errors.is_empty() {
            let errors = self.errors.iter().map(|violation| {
                json!({"pointer": violation.pointer, "code": violation.keyword, "message": violation.message})
            });
            problem["errors"] = errors.collect();
        }
        problem
    }
}

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Self {
        let unprocessable =
            |code, detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail);
        match error {
            FlowError::Gone => Problem::gone(),
            FlowError::WatchOnly => {
                let detail =
                    "This token only shows the flow: another person must answer. Nothing was changed.";
                Problem::new(StatusCode::FORBIDDEN, "watchOnly", detail)
            }
            FlowError::NoWait { .. } => {
                let detail = "The run does not wait there for an answer.";
                Problem::new(StatusCode::CONFLICT, "noWait", detail)
            }
            FlowError::AmbiguousWait { waits, .. } => {
                let waits: Vec<_> =
                    waits.into_iter().map(|(wait, place)| json!({ "wait": wait, "place": place })).collect();
                let detail = "The run has several open waits: name one by its `place`, or by its `wait`.";
                unprocessable("ambiguousWait", detail.to_owned()).param("waits", waits)
            }
            FlowError::Busy { retry_after_ms } => busy(retry_after_ms.div_ceil(1_000)),
            FlowError::KeyReused { .. } => key_reused(),
            FlowError::NotAllowed(workflow) => Problem::new(
                StatusCode::FORBIDDEN,
                "notAllowed",
                format!("Workflow `{workflow}` cannot be started here."),
            ),
            FlowError::Outcome { given, outcomes } => {
                unprocessable("outcome", "Choose one of the possible outcomes.".to_owned())
                    .param("given", given)
                    .param("outcomes", json!(outcomes))
            }
            FlowError::Refused(refusal) => refused(refusal),
            FlowError::Failed(failure) => failed(failure),
            FlowError::NotSent { outlet, why } => {
                tracing::warn!(traceId = %trace_id(), %outlet, %why, "the message that resumes a flow was not sent");
                let detail = "The message that resumes the flow could not be sent. The token is still valid.";
                let problem =
                    Problem::new(StatusCode::BAD_GATEWAY, "notSent", detail).param("outlet", outlet);
                Problem { is_retryable: true, ..problem }
            }
            FlowError::Key(error) => Problem::internal(&error),
            FlowError::Engine(error) => engine(error),
        }
    }
}

pub(crate) fn busy(seconds: u64) -> Problem {
    let detail = "Another request is changing this right now. Try again in a moment.";
    Problem::new(StatusCode::CONFLICT, "busy", detail).later(seconds)
}

pub(crate) fn key_reused() -> Problem {
    let detail = "The idempotency key was used for another request. Use a new key for a new request.";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "keyReused", detail)
}

pub(crate) fn unavailable(error: &dyn std::fmt::Display) -> Problem {
    tracing::warn!(traceId = %trace_id(), %error, "request failed temporarily");
    let detail = "The server cannot do this now. Try again later.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).later(LATER_S)
}

fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::InvalidPayload { violations, .. } => Problem::validation(violations),
        refusal => {
            tracing::debug!(%refusal, "flow refused a request");
            let detail = "The flow does not accept this in its current state.";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", detail)
        }
    }
}

/// Converts the failure of a step. A non-retryable failure with the author's own code is shown to the caller.
fn failed(failure: Failure) -> Problem {
    if failure.code == VALIDATION_FAILED {
        return Problem::validation(failure.errors);
    }
    if is_for_all(&failure) {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "stepFailed", failure.message);
        return problem.param("code", failure.code);
    }
    tracing::error!(traceId = %trace_id(), code = %failure.code, message = %failure.message, "step of a flow failed");
    let detail = "A step of the flow failed. The token is still valid.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "stepFailed", detail);
    Problem { is_retryable: !failure.is_final, ..problem.param("code", failure.code) }
}

/// Returns true if the failure's message was written for callers.
fn is_for_all(failure: &Failure) -> bool {
    failure.is_final && !INNER.contains(&failure.code.as_str())
}

/// Returns the failure as callers may see it.
pub(crate) fn for_all(failure: Failure) -> Failure {
    if is_for_all(&failure) {
        return failure;
    }
    Failure { message: "a step of the flow failed".to_owned(), errors: Vec::new(), ..failure }
}

fn engine(error: EngineError) -> Problem {
    match error {
        EngineError::NoRun(_) | EngineError::NoBulk(_) | EngineError::NoWait(_) => Problem::gone(),
        EngineError::NotAnAnswerer { .. } => {
            let detail = "Only the people that the wait names may answer.";
            Problem::new(StatusCode::FORBIDDEN, "notAnswerer", detail)
        }
        EngineError::UnknownWorkflow { name, .. } => {
            let detail = format!("There is no workflow `{name}`.");
            Problem::new(StatusCode::NOT_FOUND, "unknownWorkflow", detail)
        }
        EngineError::Inactive { name, .. } => {
            let detail = format!("Workflow `{name}` is inactive: no new runs can be started.");
            Problem::new(StatusCode::CONFLICT, "inactive", detail)
        }
        EngineError::Reserved { .. } => {
            let detail = "Workflow names that start with `stepwell.` are reserved for the engine.";
            Problem::new(StatusCode::FORBIDDEN, "reserved", detail)
        }
        EngineError::NeedsDurableRun { .. } => {
            let detail = "The workflow has parts that its strategy does not allow: it needs a durable run.";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "needsDurableRun", detail)
        }
        EngineError::NotARun { workflow, .. } => {
            let detail = format!("Workflow `{workflow}` is not started as a run: start it as a flow.");
            Problem::new(StatusCode::CONFLICT, "notARun", detail)
        }
        EngineError::Refused(refusal) => refused(refusal),
        EngineError::KeyReused { .. } => key_reused(),
        EngineError::Contended { .. }
        | EngineError::VersionMoved { .. }
        | EngineError::Claimed { .. }
        | EngineError::WrongStatus { .. } => busy(1),
        EngineError::Limit(limit) | EngineError::Undecidable(DecideError::Limit(limit)) => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", format!("{limit}."));
            problem.param("limit", limit.limit).param("max", limit.max)
        }
        EngineError::Denied { permission, .. } => {
            let detail = format!("This needs the permission `{permission}`.");
            Problem::new(StatusCode::FORBIDDEN, "denied", detail)
        }
        EngineError::Unknown { .. } => {
            let problem = unavailable(&error);
            let detail =
                "It is unknown whether the request succeeded. Send it again with the same idempotency key.";
            Problem { code: "unknown", detail: detail.to_owned(), ..problem }
        }
        EngineError::Store(StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Fatal(_))
        | EngineError::InboxFull { .. }
        | EngineError::LimitReached { .. }
        | EngineError::UnknownDefinition { .. }
        | EngineError::Stopped => unavailable(&error),
        EngineError::Store(
            StoreError::Corrupt(_) | StoreError::Bad(_) | StoreError::Schema(_) | StoreError::Invalid(_),
        )
        | EngineError::Undecidable(_)
        | EngineError::NoTrigger { .. }
        | EngineError::NoSchedule(_)
        | EngineError::AlreadyAnswered { .. }
        | EngineError::TaskGone { .. }
        | EngineError::NotAWorker { .. }
        | EngineError::ManagedByTrigger { .. }
        | EngineError::Restore(_)
        | EngineError::Unreadable { .. }
        | EngineError::UnknownStrategy { .. }
        | EngineError::UnknownOutlet { .. }
        | EngineError::Commit(_)
        | EngineError::Invalid(_) => Problem::internal(&error),
    }
}

#[cfg(test)]
mod tests {
    use stepwell::EngineError;
    use stepwell::core::Failure;
    use stepwell::flow::FlowError;
    use stepwell::store::StoreError;

    use super::{Problem, for_all};

    fn of(error: impl Into<FlowError>) -> Problem {
        Problem::from(error.into())
    }

    #[test]
    fn internal_messages_are_not_exposed() {
        let secret = "SELECT password FROM accounts";
        for failure in [
            Failure::new("error", secret).non_retryable(),
            Failure::new("panic", secret).non_retryable(),
            Failure::new("mine", secret),
        ] {
            let problem = of(FlowError::Failed(failure.clone()));
            assert_eq!(problem.status.as_u16(), 500);
            assert!(!problem.to_json().to_string().contains("SELECT"), "{problem:?}");
            assert!(!for_all(failure).message.contains("SELECT"));
        }
        let invalid = of(EngineError::Invalid(secret.to_owned()));
        assert!(invalid.status.as_u16() == 500 && !invalid.to_json().to_string().contains("SELECT"));
        let store = of(EngineError::Store(StoreError::Unavailable(secret.to_owned())));
        assert!(!store.to_json().to_string().contains("SELECT"));
        let not_sent = FlowError::NotSent { outlet: "mail".to_owned(), why: secret.to_owned() };
        assert!(!of(not_sent).to_json().to_string().contains("SELECT"));
    }

    #[test]
    fn errors_of_the_author_are_shown_to_callers() {
        let failure = Failure::new("accountLocked", "The account is locked.").non_retryable();
        let problem = of(FlowError::Failed(failure.clone()));
        assert_eq!((problem.status.as_u16(), problem.detail.as_str()), (422, "The account is locked."));
        assert_eq!(problem.params.unwrap()["code"], "accountLocked");
        assert_eq!(for_all(failure.clone()), failure);
    }

    #[test]
    fn retryable_problems_have_a_retry_time() {
        let store = of(StoreError::Unavailable("down".to_owned()));
        assert_eq!((store.status.as_u16(), store.retry_after_s, store.is_retryable), (503, Some(5), true));
        let busy = of(FlowError::Busy { retry_after_ms: 1_200 });
        assert_eq!((busy.status.as_u16(), busy.retry_after_s, busy.is_retryable), (409, Some(2), true));
        assert_eq!(of(EngineError::Stopped).status.as_u16(), 503);
        assert_eq!(of(FlowError::KeyReused { key: "k".to_owned() }).status.as_u16(), 422);
        assert_eq!(of(FlowError::NotAllowed("w".into())).status.as_u16(), 403);
    }
}
