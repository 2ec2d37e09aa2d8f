//! Errors of calls to the engine.

use crate::actor::Permission;
use crate::signal::FirstAnswer;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    DecideError, DefinitionHash, Failure, LimitExceeded, Name, Refusal, Rejected, RestoreError, RunId,
};
use stepwell_store::{CommitError, CommitRef, Refused, Status, StoreError};

/// The error of a call to the engine. The run is unchanged, except that for [`EngineError::Unknown`] it may have
/// changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The run does not exist in this tenant.
    #[error("there is no run {0}")]
    NoRun(RunId),
    /// The run exists, but it is not a bulk command.
    #[error("there is no bulk command {0}")]
    NoBulk(RunId),
    /// No workflow of this name is registered.
    #[error("no workflow `{name}` is registered{hint}")]
    UnknownWorkflow {
        name: Name,
        /// A suggestion: near names, or the registered ones.
        hint: String,
    },
    /// The workflow is in the tenant's catalogue, but starting new runs of it is disabled.
    #[error("workflow `{name}` cannot be started: {why}")]
    Inactive {
        name: Name,
        /// The reason and the remedy.
        why: String,
    },
    /// The version of the workflow that new runs use has no such trigger.
    #[error(
        "workflow `{workflow}` has no trigger `{trigger}` in the version that new runs use: see `stepwell trigger list`"
    )]
    NoTrigger {
        workflow: Name,
        /// Id of the trigger.
        trigger: Name,
    },
    /// Reserved for the engine: schedules and events are runs of workflows that only the engine starts and moves.
    #[error("{what} is reserved for the engine: {instead}")]
    Reserved {
        /// The workflow or run that was requested.
        what: String,
        /// The API to use instead.
        instead: &'static str,
    },
    /// The run is pinned to a definition that neither this process nor the store has.
    #[error(
        "the run is pinned to `{workflow}` {}, which is unknown here: register that definition, or migrate the run",
        hash.short()
    )]
    UnknownDefinition { workflow: Name, hash: DefinitionHash },
    /// The workflow refused the input.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The decision could not be made.
    #[error(transparent)]
    Undecidable(#[from] DecideError),
    /// The run's state does not match its definition.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Optimistic concurrency conflict: the run is not at the expected version.
    #[error("run {run} changed: expected version {seen}, found {actual}. Read it again and retry")]
    VersionMoved {
        run: RunId,
        /// The version that the caller expected.
        seen: u64,
        /// The version that the run has.
        actual: u64,
    },
    /// The command is not allowed in the run's status.
    #[error("run {run} is {status}: {why}")]
    WrongStatus {
        run: RunId,
        /// The status that the run has.
        status: Status,
        /// The reason: the state that the command needs.
        why: String,
    },
    /// The worker must stop: it does not hold the task's lease, or no longer does.
    #[error("task {task}: lease {fence} is not valid: {why}; stop working on it")]
    TaskGone {
        task: crate::remote::TaskId,
        /// The fence that the worker passed.
        fence: u64,
        why: String,
    },
    /// The schedule does not exist.
    #[error("there is no schedule `{0}`")]
    NoSchedule(String),
    /// The schedule is derived from a trigger and cannot be changed by hand.
    #[error("schedule `{name}` is defined by trigger `{trigger}` of workflow `{workflow}`: change it there")]
    ManagedByTrigger { name: String, workflow: Name, trigger: Name },
    /// The idempotency key was used for a different request.
    #[error("key `{key}` was used for another {operation}: use a new key for a new request")]
    KeyReused { operation: String, key: String },
    /// The concurrency limit of the workflow is reached, and the workflow refuses further runs.
    #[error(
        "workflow `{workflow}` already has {limit} active runs{}, which is its limit: start it again when one has ended",
        key.as_ref().map(|key| format!(" for `{key}`")).unwrap_or_default()
    )]
    LimitReached {
        workflow: Name,
        /// The key of the limit.
        key: Option<String>,
        limit: u32,
    },
    /// The inbox has reached its maximum number of messages.
    #[error("the inbox of run {run} is full ({max} signals): retry after some are consumed or expire")]
    InboxFull {
        run: RunId,
        /// The limit, which is also the number of buffered signals.
        max: u64,
    },
    /// A limit was exceeded.
    #[error(transparent)]
    Limit(#[from] LimitExceeded),
    /// Another commit won every time; the retries are exhausted.
    #[error("run {run} changed during each of {attempts} decisions: retry later")]
    Contended {
        run: RunId,
        /// Number of attempts that were made.
        attempts: u32,
    },
    /// The wait accepts one answer and already has it.
    #[error(
        "wait {wait} of run {run} {} at {}{}",
        first.verb(),
        first.at,
        first.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default()
    )]
    AlreadyAnswered {
        run: RunId,
        /// The activation of the wait.
        wait: ActivationId,
        /// The answer that was recorded.
        first: FirstAnswer,
    },
    /// The stored data of the run cannot be parsed.
    #[error("the stored data of run {run} is unreadable: {why}")]
    Unreadable { run: RunId, why: String },
    /// The commit may or may not have been applied; the store did not confirm.
    #[error("the outcome is unknown ({why}): check the run, or retry with the same idempotency key")]
    Unknown {
        /// Identifies the commit, to look up its outcome.
        reference: Box<CommitRef>,
        /// The error that hid the answer.
        why: String,
    },
    /// The store refused the commit.
    #[error(transparent)]
    Commit(Box<Refused>),
    /// The store failed or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No strategy of this name is registered.
    #[error("there is no strategy `{name}`; registered strategies: {}", listed(known))]
    UnknownStrategy { name: String, known: Vec<String> },
    /// No outlet of this name is registered.
    #[error("there is no outlet `{name}`; registered outlets: {}", listed(known))]
    UnknownOutlet { name: String, known: Vec<String> },
    /// The workflow has parts that its strategy does not allow.
    #[error(
        "workflow `{workflow}` cannot use the strategy `{strategy}`: it has {}, which only a durable run can have",
        parts.join(", ")
    )]
    NeedsDurableRun { workflow: Name, strategy: String, parts: Vec<String> },
    /// The state of the workflow is kept in a token or behind a handle, so it cannot be started as a run.
    #[error(
        "workflow `{workflow}` has the strategy `{strategy}`, so it is not started as a run: start it with \
         `POST /v1/flows/{workflow}`"
    )]
    NotARun { workflow: Name, strategy: String },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The caller lacks a permission.
    #[error("`{actor}` lacks the permission `{permission}`")]
    Denied {
        actor: String,
        /// The permission that is missing.
        permission: Permission,
    },
    /// The wait names its answerers, and the caller is none of them.
    #[error(
        "`{actor}` may not answer wait {wait}: only {} may, or an administrator who gives a reason",
        answerers.join(", ")
    )]
    NotAnAnswerer {
        actor: String,
        wait: crate::waits::WaitId,
        /// The users and roles that may answer.
        answerers: Vec<String>,
    },
    /// Another person has claimed the wait.
    #[error("wait {wait} is claimed by {by} until {until}: answer it after that time")]
    Claimed {
        wait: crate::waits::WaitId,
        /// Id of the actor who has claimed it.
        by: String,
        until: stepwell_core::Timestamp,
    },
    /// The wait is not open and was never answered.
    #[error("there is no open wait {0}")]
    NoWait(crate::waits::WaitId),
    /// The caller may not work on tasks of this action.
    #[error("`{actor}` may not work on tasks of `{action}`: the permission `worker:{action}` is missing")]
    NotAWorker { actor: String, action: Name },
    /// The engine has been stopped.
    #[error("the engine has been stopped")]
    Stopped,
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
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

/// The reason why waiting for a run gave no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The run is stopped by this error; it can be retried.
    #[error("run {run} has failed: {error}")]
    Failed { run: RunId, error: Failure },
    /// The run was cancelled.
    #[error("run {0} was cancelled")]
    Cancelled(RunId),
    /// The result does not deserialize into the requested type.
    #[error("the result of run {run} does not match the requested type: {why}")]
    InvalidResult { run: RunId, why: String },
    /// The engine call failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
