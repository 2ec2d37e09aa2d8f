//! Runs, checkpoints and waits as the API shows them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepwell::core::snapshot::Finished;
use stepwell::core::{Failure, Name, RunId, Timestamp};
use stepwell::ledger::{Tried, Tries};
use stepwell::store::{HistoryRow, RunSummary, WaitRow};
use stepwell::{RunView, TaskId};

use crate::api::shapes::{Id, Instant, RunStatus};
use crate::routes::problem::Problem;

/// A run in a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunRow {
    /// The run.
    #[schemars(with = "Id")]
    id: RunId,
    /// The workflow's name.
    #[schemars(with = "String")]
    workflow: Name,
    /// The hash of the definition it is pinned to.
    definition: String,
    /// How it is doing.
    status: RunStatus,
    /// Its version.
    version: u64,
    /// The places it is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// The run whose child it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    parent: Option<RunId>,
    /// When it is looked at next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    wake_at: Option<Timestamp>,
    /// When it was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// When it last changed.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

impl From<RunSummary> for RunRow {
    fn from(run: RunSummary) -> Self {
        RunRow {
            id: run.run,
            workflow: run.workflow,
            definition: run.definition.to_string(),
            status: run.status.into(),
            version: run.version,
            places: run.places,
            parent: run.parent.map(|parent| parent.run),
            wake_at: run.wake,
            created_at: run.created_at,
            updated_at: run.updated_at,
        }
    }
}

/// A run as it stands.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunShown {
    /// The run.
    #[schemars(with = "Id")]
    id: RunId,
    /// The workflow's name.
    #[schemars(with = "String")]
    workflow: Name,
    /// The author's number of the definition it is pinned to.
    definition_version: u32,
    /// The hash of that definition.
    definition: String,
    /// How it is doing.
    status: RunStatus,
    /// Its version.
    pub(super) version: u64,
    /// The places it is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Its data.
    context: Value,
    /// What it came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// Why it stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure>,
    /// What is being tried, and has failed before.
    tries: Vec<TriesShown>,
    /// The last tries that failed, oldest first.
    failures: Vec<FailureShown>,
    /// Signals that nothing has taken yet.
    kept_signals: usize,
    /// When it is cancelled if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
    /// When it is looked at next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    wake_at: Option<Timestamp>,
    /// The process that works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// When it was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// When it last got a version.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

/// Why something failed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunFailure {
    /// A stable word for the kind of failure.
    code: String,
    /// What happened, for a person.
    message: String,
    /// Trying again is of no use.
    #[serde(rename = "final")]
    is_final: bool,
}

/// What is being tried.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriesShown {
    /// The transition, or step.
    #[schemars(with = "String")]
    transition: Name,
    /// Tries that have failed.
    failed: u32,
    /// When it is tried again; absent = not by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    next_at: Option<Timestamp>,
    /// A worker elsewhere is to do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskHeld>,
}

/// What a worker elsewhere is to do.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskHeld {
    /// The task's id.
    id: String,
    /// The action.
    #[schemars(with = "String")]
    action: Name,
    /// Since when it is to be done.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// The worker that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// When it is given to somebody else unless the worker is heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    lease_until: Option<Timestamp>,
    /// How far it has come, in the worker's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Value>,
}

impl TaskHeld {
    fn of(run: RunId, tries: &Tries) -> Option<Self> {
        let posted = tries.posted.as_ref()?;
        let lease = posted.lease.as_ref();
        Some(TaskHeld {
            id: TaskId { run, activation: tries.activation }.to_string(),
            action: posted.action.clone(),
            since: posted.at,
            worker: lease.map(|lease| lease.worker.clone()),
            lease_until: lease.map(|lease| lease.until),
            note: lease.and_then(|lease| lease.note.clone()),
        })
    }
}

/// A try that failed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FailureShown {
    /// When.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// The transition, or step.
    #[schemars(with = "String")]
    transition: Name,
    /// Why.
    error: RunFailure,
}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> Self {
        let Failure { code, message, is_final, .. } = failure;
        RunFailure { code, message, is_final }
    }
}

impl RunShown {
    pub(super) fn of(view: RunView) -> Self {
        let snapshot = &view.snapshot;
        let result = snapshot.finished().and_then(|finished| match finished {
            Finished::Completed { output, .. } => Some(output.clone().unwrap_or_default()),
            Finished::Cancelled => None,
        });
        let run = snapshot.instance_id();
        let tries = view.ledger.tries.into_iter().map(|tries: Tries| TriesShown {
            task: TaskHeld::of(run, &tries),
            transition: tries.transition,
            failed: tries.failed,
            next_at: tries.next,
        });
        let failures = view.ledger.failures.into_iter().map(|tried: Tried| FailureShown {
            at: tried.at,
            transition: tried.transition,
            error: tried.error.into(),
        });
        RunShown {
            id: snapshot.instance_id(),
            workflow: snapshot.workflow().clone(),
            definition_version: snapshot.definition_version(),
            definition: snapshot.definition_hash().to_string(),
            status: view.status.into(),
            version: snapshot.version(),
            places: snapshot.current_places(),
            context: snapshot.context().clone(),
            result,
            error: view.ledger.stopped.map(|stopped| stopped.error.into()),
            tries: tries.collect(),
            failures: failures.collect(),
            kept_signals: view.kept_signals,
            deadline: view.ledger.deadline,
            wake_at: view.wake,
            owner: view.owner.map(|owner| owner.0.to_string()),
            created_at: snapshot.created_at(),
            updated_at: snapshot.updated_at(),
        }
    }
}

/// A checkpoint: one entry of a run's history.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checkpoint {
    /// The version that it made.
    pub(super) version: u64,
    /// When it was committed.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// What happened: the signal, or the engine's own word; places left and entered; what came in and what came of it.
    entry: Value,
}

impl Checkpoint {
    pub(super) fn of(row: &HistoryRow) -> Result<Self, Problem> {
        Ok(Checkpoint { version: row.version, at: row.at, entry: read(&row.entry)? })
    }
}

/// A checkpoint with the state of the run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointState {
    /// The checkpoint.
    #[serde(flatten)]
    checkpoint: Checkpoint,
    /// The state as it was.
    state: Value,
}

impl CheckpointState {
    pub(super) fn of(row: &HistoryRow) -> Result<Self, Problem> {
        let state = row.state.as_deref().map(read).transpose()?.unwrap_or_default();
        Ok(CheckpointState { checkpoint: Checkpoint::of(row)?, state })
    }
}

fn read(bytes: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(bytes).map_err(|error| Problem::internal(&error))
}

/// Something that a run waits for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wait {
    /// The run.
    #[schemars(with = "Id")]
    run: RunId,
    /// Which wait of the run: what an answer names with `forWait`.
    activation: u64,
    /// The place, or step, where it waits.
    #[schemars(with = "String")]
    place: Name,
    /// Since when.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    until: Option<Timestamp>,
    /// What for, the form, and who may answer.
    detail: Value,
}

impl Wait {
    pub(super) fn of(row: WaitRow) -> Self {
        let WaitRow { run, wait } = row;
        let detail = serde_json::from_slice(&wait.detail).unwrap_or_default();
        Wait {
            run,
            activation: wait.activation,
            place: wait.place,
            since: wait.since,
            until: wait.until,
            detail,
        }
    }
}
