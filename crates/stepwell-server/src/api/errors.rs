//! Maps errors of the engine to problems. Callers of the API are authenticated, so the problems contain the details.

use axum::http::StatusCode;
use serde_json::json;
use stepwell::catalogue::Absent;
use stepwell::core::document::{self, SourceProblems};
use stepwell::core::schema::SchemaViolation;
use stepwell::core::{DecideError, Refusal};
use stepwell::simulate::SimulationError;
use stepwell::store::{Refused, StoreError};
use stepwell::{CatalogueError, DataError, EngineError, FirstAnswer};

use crate::routes::problem::{Problem, busy, key_reused, unavailable};

/// Adds the answer that a wait already has to a problem.
fn answered(problem: Problem, wait: u64, first: &FirstAnswer) -> Problem {
    let FirstAnswer { signal, by, at } = first;
    let problem = problem.param("wait", wait).param("signal", signal.as_str()).param("at", at.to_string());
    match by {
        Some(by) => problem.param("by", by.as_str()),
        None => problem,
    }
}

/// Creates the problem of a wait that the caller cannot answer, or of a run whose status does not allow the request.
fn unanswerable(error: &EngineError, detail: String) -> Problem {
    match error {
        EngineError::AlreadyAnswered { wait, first, .. } => {
            answered(Problem::new(StatusCode::CONFLICT, "answered", detail), *wait, first)
        }
        EngineError::WrongStatus { status, .. } => {
            Problem::new(StatusCode::CONFLICT, "wrongStatus", detail).param("status", status.as_str())
        }
        EngineError::NotAnAnswerer { wait, answerers, .. } => {
            let problem = Problem::new(StatusCode::FORBIDDEN, "notAnswerer", detail);
            problem.param("wait", wait.to_string()).param("answerers", json!(answerers))
        }
        EngineError::Claimed { wait, by, until } => {
            let problem = Problem::new(StatusCode::CONFLICT, "claimed", detail);
            let problem = problem.param("wait", wait.to_string()).param("by", by.as_str());
            problem.param("until", until.to_string())
        }
        _ => Problem::new(StatusCode::NOT_FOUND, "noWait", detail),
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let detail = sentence(&error.to_string());
        let conflict = |code| Problem::new(StatusCode::CONFLICT, code, detail.clone());
        let unfit = |code| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
        match &error {
            EngineError::NoRun(_) => Problem::new(StatusCode::NOT_FOUND, "noRun", detail),
            EngineError::NoBulk(_) => Problem::new(StatusCode::NOT_FOUND, "noBulk", detail),
            EngineError::UnknownWorkflow { name, .. } => {
                Problem::new(StatusCode::NOT_FOUND, "unknownWorkflow", detail)
                    .param("workflow", name.as_str())
            }
            EngineError::Inactive { .. } => conflict("inactive"),
            EngineError::Reserved { .. } => Problem::new(StatusCode::FORBIDDEN, "reserved", detail),
            EngineError::UnknownDefinition { .. } => conflict("unknownDefinition"),
            EngineError::Refused(refusal) => refused(refusal, detail),
            EngineError::VersionMoved { actual, .. } => {
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "revisionConflict", detail);
                problem.param("revision", *actual)
            }
            EngineError::TaskGone { fence, .. } => conflict("taskGone").param("fence", *fence),
            EngineError::NoTrigger { .. } => Problem::new(StatusCode::NOT_FOUND, "noTrigger", detail),
            EngineError::NoSchedule(_) => Problem::new(StatusCode::NOT_FOUND, "noSchedule", detail),
            EngineError::ManagedByTrigger { workflow, trigger, .. } => {
                let problem = conflict("managedByTrigger").param("workflow", workflow.as_str());
                problem.param("trigger", trigger.as_str())
            }
            EngineError::AlreadyAnswered { .. }
            | EngineError::NotAnAnswerer { .. }
            | EngineError::Claimed { .. }
            | EngineError::WrongStatus { .. }
            | EngineError::NoWait(_) => unanswerable(&error, detail),
            EngineError::KeyReused { .. } => key_reused(),
            EngineError::InboxFull { .. } => conflict("inboxFull").later(5),
            EngineError::LimitReached { .. } => conflict("limitReached").later(1),
            EngineError::Limit(limit) | EngineError::Undecidable(DecideError::Limit(limit)) => {
                unfit("limit").param("limit", limit.limit.as_str()).param("max", limit.max)
            }
            EngineError::Undecidable(DecideError::InvalidContext(errors)) => {
                Problem::validation(errors.clone())
            }
            EngineError::Undecidable(_) => unfit("undecidable"),
            EngineError::Contended { .. } => busy(1),
            EngineError::Unknown { .. } => {
                let detail =
                    "The outcome of this request is unknown. Send it again with the same idempotency key.";
                Problem { code: "unknown", detail: detail.to_owned(), ..unavailable(&error) }
            }
            EngineError::Store(StoreError::Invalid(_)) => unfit("invalid"),
            EngineError::Store(StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Fatal(_))
            | EngineError::Stopped => unavailable(&error),
            EngineError::Invalid(_) => unfit("invalid"),
            EngineError::UnknownStrategy { .. }
            | EngineError::UnknownOutlet { .. }
            | EngineError::NeedsDurableRun { .. }
            | EngineError::NotARun { .. } => wrong_strategy(&error, detail),
            EngineError::Denied { permission, .. } => denied(permission.as_str()),
            EngineError::NotAWorker { action, .. } => denied(&format!("worker:{action}")),
            EngineError::Commit(refused) => match &**refused {
                Refused::RunExists { .. } => conflict("exists"),
                Refused::Nul { .. } => unfit("invalid"),
                _ => Problem::internal(&error),
            },
            // Only this row is affected, and a permitted caller can delete it. So this is a conflict, not an internal
            // error.
            EngineError::Store(StoreError::Bad(_))
            | EngineError::Restore(_)
            | EngineError::Unreadable { .. } => conflict("unreadable"),
            EngineError::Store(StoreError::Corrupt(_) | StoreError::Schema(_)) => Problem::internal(&error),
        }
    }
}

/// Creates the problem of a caller without a permission.
fn denied(permission: &str) -> Problem {
    let detail = format!("This needs the permission `{permission}`.");
    Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", permission)
}

/// Creates the problem of a strategy or an outlet that does not fit the request.
fn wrong_strategy(error: &EngineError, detail: String) -> Problem {
    let unfit = |code| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
    match error {
        EngineError::UnknownStrategy { name, .. } => {
            unfit("unknownStrategy").param("strategy", name.as_str())
        }
        EngineError::UnknownOutlet { name, .. } => unfit("unknownOutlet").param("outlet", name.as_str()),
        EngineError::NotARun { workflow, .. } => {
            Problem::new(StatusCode::CONFLICT, "notARun", detail).param("workflow", workflow.as_str())
        }
        _ => unfit("needsDurableRun"),
    }
}

fn refused(refusal: &Refusal, detail: String) -> Problem {
    let conflict = |code| Problem::new(StatusCode::CONFLICT, code, detail.clone());
    match refusal {
        Refusal::InvalidPayload { violations, .. } => Problem::validation(violations.clone()),
        Refusal::UnknownSignal { .. } => Problem::new(StatusCode::NOT_FOUND, "unknownSignal", detail),
        Refusal::Terminal => conflict("ended"),
        _ => conflict("refused"),
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<DataError> for Problem {
    fn from(error: DataError) -> Self {
        let detail = sentence(&error.to_string());
        match error {
            DataError::Conflict { revision, exists, .. } => {
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "revisionConflict", detail);
                problem.param("revision", revision).param("exists", exists)
            }
            DataError::Exhausted { .. } => Problem::new(StatusCode::CONFLICT, "contended", detail).later(1),
            DataError::Invalid(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail),
            DataError::Engine(error) => error.into(),
        }
    }
}

impl From<CatalogueError> for Problem {
    fn from(error: CatalogueError) -> Self {
        let detail = sentence(&error.to_string());
        match error {
            CatalogueError::NotFound { absent, .. } => {
                let code = match absent {
                    Absent::Workflow => "unknownWorkflow",
                    Absent::Version => "noVersion",
                    Absent::Draft => "noDraft",
                    Absent::Action => "noAction",
                };
                Problem::new(StatusCode::NOT_FOUND, code, detail)
            }
            CatalogueError::Conflict { revision, exists, .. } => {
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "revisionConflict", detail);
                problem.param("revision", revision).param("exists", exists)
            }
            CatalogueError::Wrong { problems } => wrong_document(&SourceProblems(problems)),
            CatalogueError::Archived(_) => Problem::new(StatusCode::CONFLICT, "archived", detail),
            CatalogueError::Exhausted { .. } => {
                Problem::new(StatusCode::CONFLICT, "contended", detail).later(1)
            }
            CatalogueError::Unreadable { .. } => Problem::new(StatusCode::CONFLICT, "unreadable", detail),
            CatalogueError::Invalid(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail),
            CatalogueError::Engine(error) => error.into(),
        }
    }
}

/// Creates the problem of an invalid workflow document. It contains every error with its position.
pub(super) fn wrong_document(problems: &SourceProblems) -> Problem {
    let SourceProblems(all) = problems;
    let count = all.len();
    let first = all.first().map(ToString::to_string).unwrap_or_default();
    let detail = match count {
        1 => sentence(&format!("the document has an error: {first}")),
        _ => sentence(&format!("the document has {count} errors; the first: {first}")),
    };
    let violation = |problem: &document::SourceProblem| SchemaViolation {
        pointer: match problem.at.line {
            0 => String::new(),
            line => format!("{line}:{}", problem.at.column),
        },
        keyword: problem.code.clone(),
        message: problem.message.clone(),
    };
    let errors = all.iter().map(violation).collect();
    let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalidDocument", detail);
    Problem { errors, ..problem.param("problems", json!(all)) }
}

impl From<SimulationError> for Problem {
    fn from(error: SimulationError) -> Self {
        let detail = sentence(&error.to_string());
        let unfit = |code| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
        match error {
            SimulationError::Endless { .. } => unfit("endless"),
            SimulationError::Case(_) => unfit("invalidCase"),
            SimulationError::Engine(error) => error.into(),
            SimulationError::Broken(why) => Problem::internal(&why),
        }
    }
}

/// Capitalizes a text and ends it with a period.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if text.ends_with(['.', '!', '?', '\n']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
