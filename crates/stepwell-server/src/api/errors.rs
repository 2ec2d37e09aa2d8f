//! What the engine says no with, as whoever asked over the API is told: they are known, and may know why.

use axum::http::StatusCode;
use serde_json::json;
use stepwell::catalogue::Absent;
use stepwell::core::document::{self, Problems};
use stepwell::core::schema::Misfit;
use stepwell::core::{DecideError, Refusal};
use stepwell::simulate::SimulationError;
use stepwell::store::{Refused, StoreError};
use stepwell::{CatalogueError, DataError, EngineError, FirstAnswer};

use crate::routes::problem::{Problem, busy, key_reused, unavailable};

/// Which answer a wait has.
fn answered(problem: Problem, wait: u64, first: &FirstAnswer) -> Problem {
    let FirstAnswer { signal, by, at } = first;
    let problem = problem.param("wait", wait).param("signal", signal.as_str()).param("at", at.to_string());
    match by {
        Some(by) => problem.param("by", by.as_str()),
        None => problem,
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let detail = sentence(&error.to_string());
        let conflict = |code| Problem::new(StatusCode::CONFLICT, code, detail.clone());
        let unfit = |code| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.clone());
        match &error {
            EngineError::NoRun(_) => Problem::new(StatusCode::NOT_FOUND, "noRun", detail),
            EngineError::UnknownWorkflow { name, .. } => {
                Problem::new(StatusCode::NOT_FOUND, "unknownWorkflow", detail)
                    .param("workflow", name.as_str())
            }
            EngineError::Inactive { .. } => conflict("inactive"),
            EngineError::Reserved { .. } => Problem::new(StatusCode::FORBIDDEN, "reserved", detail),
            EngineError::UnknownDefinition { .. } => conflict("unknownDefinition"),
            EngineError::Refused(refusal) => refused(refusal, detail),
            EngineError::VersionMoved { actual, .. } => {
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "moved", detail);
                problem.param("revision", *actual)
            }
            EngineError::TaskGone { fence, .. } => conflict("taskGone").param("fence", *fence),
            EngineError::NoSchedule(_) => Problem::new(StatusCode::NOT_FOUND, "noSchedule", detail),
            EngineError::Planned { workflow, trigger, .. } => {
                let problem = conflict("planned").param("workflow", workflow.as_str());
                problem.param("trigger", trigger.as_str())
            }
            EngineError::AlreadyAnswered { wait, first, .. } => answered(conflict("answered"), *wait, first),
            EngineError::NotNow { status, .. } => conflict("notNow").param("status", status.as_str()),
            EngineError::KeyReused { .. } => key_reused(),
            EngineError::InboxFull { .. } => conflict("inboxFull").later(5),
            EngineError::Limit(limit) | EngineError::Undecidable(DecideError::Limit(limit)) => {
                unfit("limit").param("limit", limit.limit.as_str()).param("max", limit.max)
            }
            EngineError::Undecidable(DecideError::ContextUnfit(errors)) => Problem::unfit(errors.clone()),
            EngineError::Undecidable(_) => unfit("undecidable"),
            EngineError::Contended { .. } => busy(1),
            EngineError::Unknown { .. } => {
                let detail =
                    "It is not known whether this was done. Send it again with the same idempotency key.";
                Problem { code: "unknown", detail: detail.to_owned(), ..unavailable(&error) }
            }
            EngineError::Store(StoreError::Invalid(_)) => unfit("invalid"),
            EngineError::Store(StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Fatal(_))
            | EngineError::Stopped => unavailable(&error),
            EngineError::Invalid(_) => unfit("invalid"),
            EngineError::Denied { permission, .. } => {
                let detail = format!("This needs the permission `{permission}`.");
                Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", permission.as_str())
            }
            EngineError::NotAWorker { action, .. } => {
                let needed = format!("worker:{action}");
                let detail = format!("This needs the permission `{needed}`.");
                Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", needed)
            }
            EngineError::Commit(refused) => match &**refused {
                Refused::RunExists { .. } => conflict("exists"),
                Refused::Nul { .. } => unfit("invalid"),
                _ => Problem::internal(&error),
            },
            // Nothing else suffers from it, and whoever may can take it away.
            EngineError::Store(StoreError::Bad(_))
            | EngineError::Restore(_)
            | EngineError::Unreadable { .. } => conflict("unreadable"),
            EngineError::Store(StoreError::Corrupt(_) | StoreError::Schema(_)) => Problem::internal(&error),
        }
    }
}

fn refused(refusal: &Refusal, detail: String) -> Problem {
    let conflict = |code| Problem::new(StatusCode::CONFLICT, code, detail.clone());
    match refusal {
        Refusal::PayloadUnfit { misfits, .. } => Problem::unfit(misfits.clone()),
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
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "moved", detail);
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
                let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "moved", detail);
                problem.param("revision", revision).param("exists", exists)
            }
            CatalogueError::Wrong { problems } => wrong_document(&Problems(problems)),
            CatalogueError::Archived(_) => Problem::new(StatusCode::CONFLICT, "archived", detail),
            CatalogueError::Exhausted { .. } => {
                Problem::new(StatusCode::CONFLICT, "contended", detail).later(1)
            }
            CatalogueError::Invalid(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail),
            CatalogueError::Engine(error) => error.into(),
        }
    }
}

/// A document has mistakes in it: all of them are told, each with where it stands.
pub(super) fn wrong_document(problems: &Problems) -> Problem {
    let Problems(all) = problems;
    let count = all.len();
    let first = all.first().map(ToString::to_string).unwrap_or_default();
    let detail = match count {
        1 => sentence(&format!("the document has a mistake in it: {first}")),
        _ => sentence(&format!("the document has {count} mistakes in it; the first: {first}")),
    };
    let misfit = |problem: &document::Problem| Misfit {
        pointer: match problem.at.line {
            0 => String::new(),
            line => format!("{line}:{}", problem.at.column),
        },
        keyword: problem.code.clone(),
        message: problem.message.clone(),
    };
    let errors = all.iter().map(misfit).collect();
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

/// The text as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if text.ends_with(['.', '!', '?', '\n']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
