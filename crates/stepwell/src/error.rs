//! What can go wrong when the engine is asked for something.

use crate::actor::Permission;
use crate::signal::FirstAnswer;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    DecideError, DefinitionHash, Failure, LimitExceeded, Name, Refusal, Rejected, RestoreError, RunId,
};
use stepwell_store::{CommitError, CommitRef, Refused, Status, StoreError};

/// Why the engine did not do what it was asked. The run is unchanged, unless the error says that nobody knows.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// There is no such run.
    #[error("there is no run {0}")]
    NoRun(RunId),
    /// No workflow of this name is registered.
    #[error("no workflow `{name}` is registered{hint}")]
    UnknownWorkflow {
        /// The name.
        name: Name,
        /// Near names, or what is registered.
        hint: String,
    },
    /// The workflow is in the tenant's catalogue, and new runs of it are not begun.
    #[error("workflow `{name}` cannot be started: {why}")]
    Inactive {
        /// The name.
        name: Name,
        /// Why, and what to do.
        why: String,
    },
    /// It belongs to the engine: schedules and events are runs of workflows that only the engine starts and moves.
    #[error("{what} belongs to the engine: {instead}")]
    Reserved {
        /// What was asked for.
        what: String,
        /// What to use instead.
        instead: &'static str,
    },
    /// The run is pinned to a definition that neither this process nor the store has.
    #[error(
        "the run is pinned to `{workflow}` {}, which is not known here: register that definition, or migrate the run",
        hash.short()
    )]
    UnknownDefinition {
        /// The workflow.
        workflow: Name,
        /// The hash.
        hash: DefinitionHash,
    },
    /// The workflow said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision could not be made.
    #[error(transparent)]
    Undecidable(#[from] DecideError),
    /// The run's state does not go with its definition.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The run is not at the version that was named.
    #[error("run {run} is at version {actual}, not at {seen} any more: look at it again")]
    VersionMoved {
        /// The run.
        run: RunId,
        /// The version that was named.
        seen: u64,
        /// The version it is at.
        actual: u64,
    },
    /// The command does not go with how the run is doing.
    #[error("run {run} is {status}: {why}")]
    NotNow {
        /// The run.
        run: RunId,
        /// How it is doing.
        status: Status,
        /// What the command needs.
        why: String,
    },
    /// Whoever works on the task has to stop: it is not theirs, or not any more.
    #[error("task {task} is not given away under fence {fence}: {why}; stop working on it")]
    TaskGone {
        /// The task.
        task: crate::remote::TaskId,
        /// The fence that was named.
        fence: u64,
        /// Why.
        why: String,
    },
    /// There is no such schedule.
    #[error("there is no schedule `{0}`")]
    NoSchedule(String),
    /// The schedule is what a trigger says, and nobody's to change by hand.
    #[error("schedule `{name}` is what trigger `{trigger}` of workflow `{workflow}` says: change it there")]
    Planned {
        /// The schedule.
        name: String,
        /// The workflow.
        workflow: Name,
        /// Its trigger.
        trigger: Name,
    },
    /// The key was used for another request.
    #[error("key `{key}` was used for another {operation}: use a new key for a new request")]
    KeyReused {
        /// The operation.
        operation: String,
        /// The key.
        key: String,
    },
    /// The run's inbox is full.
    #[error("run {run} keeps {max} signals already: it takes no more until some are used or expire")]
    InboxFull {
        /// The run.
        run: RunId,
        /// How many it keeps.
        max: u64,
    },
    /// A limit was reached.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// The run moved every time.
    #[error("run {run} moved {tries} times while a decision on it was made: try again")]
    Contended {
        /// The run.
        run: RunId,
        /// How often it was tried.
        tries: u32,
    },
    /// The wait was answered before, and takes one answer.
    #[error(
        "wait {wait} of run {run} was answered with `{}` at {}{}",
        first.signal,
        first.at,
        first.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default()
    )]
    AlreadyAnswered {
        /// The run.
        run: RunId,
        /// The wait, by its activation.
        wait: ActivationId,
        /// The answer that counts.
        first: FirstAnswer,
    },
    /// What is stored beside the snapshot cannot be read.
    #[error("what is recorded of run {run} cannot be read: {why}")]
    Unreadable {
        /// The run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// It may or may not have happened, and the store did not say.
    #[error("it is not known whether it happened ({why}): look at the run, or ask again with the same key")]
    Unknown {
        /// Where to look.
        reference: Box<CommitRef>,
        /// What happened.
        why: String,
    },
    /// The commit was refused.
    #[error(transparent)]
    Commit(Box<Refused>),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was given is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Whoever asked may not do that.
    #[error("`{actor}` may not do that: it needs the permission `{permission}`")]
    Denied {
        /// Who asked.
        actor: String,
        /// What they would have needed.
        permission: Permission,
    },
    /// Whoever asks may not work on tasks of this action.
    #[error("{actor} may not work on tasks of `{action}`: that needs `worker:{action}`")]
    NotAWorker {
        /// Who.
        actor: String,
        /// The action.
        action: Name,
    },
    /// The engine has been stopped.
    #[error("the engine has been stopped")]
    Stopped,
}

impl From<Rejected> for EngineError {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Refused(refusal) => EngineError::Refused(refusal),
            Rejected::Undecidable(error) => EngineError::Undecidable(error),
        }
    }
}

impl From<CommitError> for EngineError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(refused) => refused.into(),
            CommitError::Unknown { reference, why } => {
                EngineError::Unknown { reference: Box::new(reference), why }
            }
            CommitError::Store(error) => EngineError::Store(error),
        }
    }
}

impl From<Refused> for EngineError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NoRun { run } => EngineError::NoRun(run),
            Refused::TooLarge(limit) => EngineError::Limit(limit),
            Refused::KeyReused { operation, key } => EngineError::KeyReused { operation, key },
            Refused::InboxFull { run, max } => EngineError::InboxFull { run, max },
            other => EngineError::Commit(Box::new(other)),
        }
    }
}

/// How a run that was waited for ended, if not with a result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// It stands still with this error; it can be retried.
    #[error("run {run} has failed: {error}")]
    Failed {
        /// The run.
        run: RunId,
        /// The error.
        error: Failure,
    },
    /// It was ended by command.
    #[error("run {0} was cancelled")]
    Cancelled(RunId),
    /// The result is not what was asked for.
    #[error("the result of run {run} is not what was asked for: {why}")]
    Unfit {
        /// The run.
        run: RunId,
        /// Why.
        why: String,
    },
    /// The engine could not say.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
