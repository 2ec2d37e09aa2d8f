//! What went wrong, as whoever asked over HTTP is told: every error of a flow is mapped here, and nowhere else.

use axum::http::StatusCode;
use serde_json::{Value, json};
use stepwell::EngineError;
use stepwell::core::schema::Misfit;
use stepwell::core::{DecideError, Failure, Refusal};
use stepwell::flow::FlowError;
use stepwell::store::StoreError;

use crate::telemetry::trace_id;

/// After how many seconds is tried again what cannot be done now.
const LATER_S: u64 = 5;
/// The code of a failure that says that the input was wrong.
const UNFIT: &str = "unfit";
/// Codes that the engine gives, and errors that nobody gave a code: their texts are for those who run the server.
const INNER: [&str; 25] = [
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
    "over",
    "panic",
    "refused",
    "stateless",
    "timeout",
    "undecidable",
    "unknownAction",
    "unreadable",
];

/// A problem after RFC 9457.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// A stable word for programs.
    pub(crate) code: &'static str,
    /// What happened, for a person.
    pub(crate) detail: String,
    /// The same request may succeed later.
    pub(crate) is_retryable: bool,
    pub(crate) retry_after_s: Option<u64>,
    pub(crate) params: Option<Value>,
    /// What of the input is wrong, each with its place there.
    pub(crate) errors: Vec<Misfit>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let (params, errors) = (None, Vec::new());
        Problem { status, code, detail, is_retryable: false, retry_after_s: None, params, errors }
    }

    /// The request itself is wrong.
    pub(crate) fn bad(code: &'static str, detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// A token that is not good, whatever is wrong with it.
    pub(crate) fn gone() -> Self {
        Problem::new(StatusCode::GONE, "gone", "The link or token is no longer valid.")
    }

    /// The input is wrong; what it was for is as it was.
    pub(crate) fn unfit(errors: Vec<Misfit>) -> Self {
        let detail = "The input does not fit. Nothing has changed: correct it and send it again.";
        Problem { errors, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, UNFIT, detail) }
    }

    /// Why a flow was not started: an input that cannot be a flow's data is the caller's to mend.
    pub(crate) fn at_start(error: FlowError) -> Self {
        match error {
            FlowError::Engine(EngineError::Undecidable(DecideError::ContextUnfit(errors))) => {
                Problem::unfit(errors)
            }
            error => error.into(),
        }
    }

    /// Something that only those can mend who run the server; they find it in the log.
    pub(crate) fn internal(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(traceId = %trace_id(), %error, "a request failed");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong in the server.")
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
            let errors = self.errors.iter().map(|misfit| {
                json!({"pointer": misfit.pointer, "code": misfit.keyword, "message": misfit.message})
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
            FlowError::Busy { retry_after_ms } => busy(retry_after_ms.div_ceil(1_000)),
            FlowError::KeyReused { .. } => key_reused(),
            FlowError::NotAllowed(workflow) => Problem::new(
                StatusCode::FORBIDDEN,
                "notAllowed",
                format!("Workflow `{workflow}` cannot be started here."),
            ),
            FlowError::Outcome { given, outcomes } => {
                unprocessable("outcome", "Say which of the outcomes is meant.".to_owned())
                    .param("given", given)
                    .param("outcomes", json!(outcomes))
            }
            FlowError::Refused(refusal) => refused(refusal),
            FlowError::Failed(failure) => failed(failure),
            FlowError::NotSent { outlet, why } => {
                tracing::warn!(traceId = %trace_id(), %outlet, %why, "what resumes a flow was not sent");
                let detail = "What resumes the flow could not be sent. The token is still good.";
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
    let detail = "It is being answered right now. Try again in a moment.";
    Problem::new(StatusCode::CONFLICT, "busy", detail).later(seconds)
}

pub(crate) fn key_reused() -> Problem {
    let detail = "The idempotency key was used for another request. Use a new key for a new request.";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "keyReused", detail)
}

pub(crate) fn unavailable(error: &dyn std::fmt::Display) -> Problem {
    tracing::warn!(traceId = %trace_id(), %error, "a request could not be answered now");
    let detail = "This cannot be done now. Try again later.";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).later(LATER_S)
}

fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::PayloadUnfit { misfits, .. } => Problem::unfit(misfits),
        refusal => {
            tracing::debug!(%refusal, "a flow refused a request");
            let detail = "The flow does not take this now.";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", detail)
        }
    }
}

/// A step has failed. What the author of the step says for good, with a code of their own, is for whoever asked.
fn failed(failure: Failure) -> Problem {
    if failure.code == UNFIT {
        return Problem::unfit(failure.errors);
    }
    if is_for_all(&failure) {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "stepFailed", failure.message);
        return problem.param("code", failure.code);
    }
    tracing::error!(traceId = %trace_id(), code = %failure.code, message = %failure.message, "a step of a flow failed");
    let detail = "A step of the flow failed. The token is still good.";
    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "stepFailed", detail);
    Problem { is_retryable: !failure.is_final, ..problem.param("code", failure.code) }
}

/// The failure's text was written for whoever asked.
fn is_for_all(failure: &Failure) -> bool {
    failure.is_final && !INNER.contains(&failure.code.as_str())
}

/// The failure as whoever asked may see it.
pub(crate) fn for_all(failure: Failure) -> Failure {
    if is_for_all(&failure) {
        return failure;
    }
    Failure { message: "a step of the flow failed".to_owned(), errors: Vec::new(), ..failure }
}

fn engine(error: EngineError) -> Problem {
    match error {
        EngineError::NoRun(_) => Problem::gone(),
        EngineError::UnknownWorkflow { name, .. } => {
            let detail = format!("There is no workflow `{name}`.");
            Problem::new(StatusCode::NOT_FOUND, "unknownWorkflow", detail)
        }
        EngineError::Inactive { name, .. } => {
            let detail = format!("New runs of workflow `{name}` are not begun at present.");
            Problem::new(StatusCode::CONFLICT, "inactive", detail)
        }
        EngineError::Reserved { .. } => {
            let detail = "Workflows whose names begin with `stepwell.` are the engine's own.";
            Problem::new(StatusCode::FORBIDDEN, "reserved", detail)
        }
        EngineError::Refused(refusal) => refused(refusal),
        EngineError::KeyReused { .. } => key_reused(),
        EngineError::Contended { .. } | EngineError::VersionMoved { .. } | EngineError::NotNow { .. } => {
            busy(1)
        }
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
                "It is not known whether this was done. Send it again with the same idempotency key.";
            Problem { code: "unknown", detail: detail.to_owned(), ..problem }
        }
        EngineError::Store(StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Fatal(_))
        | EngineError::InboxFull { .. }
        | EngineError::UnknownDefinition { .. }
        | EngineError::Stopped => unavailable(&error),
        EngineError::Store(
            StoreError::Corrupt(_) | StoreError::Bad(_) | StoreError::Schema(_) | StoreError::Invalid(_),
        )
        | EngineError::Undecidable(_)
        | EngineError::NoSchedule(_)
        | EngineError::AlreadyAnswered { .. }
        | EngineError::TaskGone { .. }
        | EngineError::NotAWorker { .. }
        | EngineError::Planned { .. }
        | EngineError::Restore(_)
        | EngineError::Unreadable { .. }
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
    fn what_is_for_those_who_run_the_server_is_not_told_to_others() {
        let secret = "SELECT password FROM accounts";
        for failure in [
            Failure::new("error", secret).finally(),
            Failure::new("panic", secret).finally(),
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
    fn what_an_author_says_for_good_is_told() {
        let failure = Failure::new("accountLocked", "The account is locked.").finally();
        let problem = of(FlowError::Failed(failure.clone()));
        assert_eq!((problem.status.as_u16(), problem.detail.as_str()), (422, "The account is locked."));
        assert_eq!(problem.params.unwrap()["code"], "accountLocked");
        assert_eq!(for_all(failure.clone()), failure);
    }

    #[test]
    fn what_may_succeed_later_says_when() {
        let store = of(StoreError::Unavailable("down".to_owned()));
        assert_eq!((store.status.as_u16(), store.retry_after_s, store.is_retryable), (503, Some(5), true));
        let busy = of(FlowError::Busy { retry_after_ms: 1_200 });
        assert_eq!((busy.status.as_u16(), busy.retry_after_s, busy.is_retryable), (409, Some(2), true));
        assert_eq!(of(EngineError::Stopped).status.as_u16(), 503);
        assert_eq!(of(FlowError::KeyReused { key: "k".to_owned() }).status.as_u16(), 422);
        assert_eq!(of(FlowError::NotAllowed("w".into())).status.as_u16(), 403);
    }
}
