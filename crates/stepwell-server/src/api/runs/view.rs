//! Runs, checkpoints and waits as the API shows them.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepwell::core::snapshot::RunEnd;
use stepwell::core::{Failure, Name, RunId, Timestamp};
use stepwell::ledger::{Attempts, FailedAttempt};
use stepwell::shadows::RunColumns;
use stepwell::store::{BadRow, HistoryRow, RunSummary};
use stepwell::{RunLimit, RunView, TaskId};

use crate::api::conditions::{ColumnValues, column_values};
use crate::api::shapes::{Id, Instant, RunStatus};
use crate::api::workflows::limits::WaitingFor;

/// A run in a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunRow {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// Name of the run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Hash of the definition that the run is pinned to.
    definition: String,
    /// Workflow version that the run is pinned to, the author's number; absent if the definition is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition_version: Option<u32>,
    /// Current status of the run.
    status: RunStatus,
    /// Code of the error that stopped the run; absent unless it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<String>,
    /// Version of the run; every checkpoint increases it.
    version: u64,
    /// Names of the places or steps the run is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Id of the parent run; absent for a root run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    parent: Option<RunId>,
    /// Time of the next step; absent if none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    wake_at: Option<Timestamp>,
    /// Time at which the run was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Time of the last change of the run.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// Time at which the run ended; absent unless it is completed or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    ended_at: Option<Timestamp>,
    /// Values of the run's shadow columns by name; columns without a value are absent. Present only if the request has
    /// `columns=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    columns: Option<ColumnValues>,
}

impl RunRow {
    pub(super) fn with_columns(self, columns: RunColumns) -> Self {
        RunRow { columns: Some(column_values(columns)), ..self }
    }
}

impl From<RunSummary> for RunRow {
    fn from(run: RunSummary) -> Self {
        RunRow {
            ended_at: run.ended_at(),
            id: run.run,
            workflow: run.workflow,
            definition: run.definition.to_string(),
            definition_version: run.definition_version,
            status: run.status.into(),
            error_code: run.error,
            version: run.version,
            places: run.places,
            parent: run.parent.map(|parent| parent.run),
            wake_at: run.wake,
            created_at: run.created_at,
            updated_at: run.updated_at,
            columns: None,
        }
    }
}

/// The current state of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunDetails {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// Name of the run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Workflow version that the run is pinned to, the author's number.
    definition_version: u32,
    /// Hash of the definition that the run is pinned to.
    definition: String,
    /// Current status of the run.
    status: RunStatus,
    /// Version of the run; every checkpoint increases it.
    pub(super) version: u64,
    /// Names of the places or steps the run is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Data of the run, any JSON value.
    context: Value,
    /// Output of the run; present only if it has completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// Error that stopped the run; absent if it is not stopped by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure>,
    /// Transitions in progress, with the number of failed attempts.
    attempts: Vec<AttemptsView>,
    /// The most recent failed attempts, oldest first.
    failures: Vec<AttemptFailure>,
    /// Number of buffered signals, which the run has not accepted yet.
    buffered_signals: usize,
    /// Time at which the run is cancelled if it has not ended; absent without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
    /// Time of the next step; absent if none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    wake_at: Option<Timestamp>,
    /// Limit that the run waits for before it begins; absent if it waits for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<WaitingFor>,
    /// Id of the process that owns the run; absent if no process does.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// Time at which the run was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Time of the run's last version.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

/// A failure of a run or of an attempt.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct RunFailure {
    /// Stable code of the failure, for programs.
    code: String,
    /// Description of the failure, for people.
    message: String,
    /// True if a retry cannot succeed.
    #[serde(rename = "final")]
    is_final: bool,
    /// HTTP status of the response that is the failure; absent for other failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

/// A transition in progress and its attempts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AttemptsView {
    /// Name of the transition or step.
    #[schemars(with = "String")]
    transition: Name,
    /// Number of failed attempts.
    failed: u32,
    /// Time of the next attempt; absent if none is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    next_at: Option<Timestamp>,
    /// The task for a remote worker, if the action is a remote one.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<QueuedTaskView>,
}

/// A task for a remote worker.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct QueuedTaskView {
    /// Id of the task: the run's id, a dot and the activation.
    id: String,
    /// Name of the action to run.
    #[schemars(with = "String")]
    action: Name,
    /// Time at which the task was queued.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Name of the worker that holds the lease; absent while the task is not leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// Time at which the lease expires without a heartbeat. Another worker can then lease the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    lease_until: Option<Timestamp>,
    /// Progress note of the worker's last heartbeat, any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Value>,
}

impl QueuedTaskView {
    fn of(run: RunId, attempts: &Attempts) -> Option<Self> {
        let queued = attempts.queued.as_ref()?;
        let lease = queued.lease.as_ref();
        Some(QueuedTaskView {
            id: TaskId { run, activation: attempts.activation }.to_string(),
            action: queued.action.clone(),
            since: queued.at,
            worker: lease.map(|lease| lease.worker.clone()),
            lease_until: lease.map(|lease| lease.until),
            note: lease.and_then(|lease| lease.note.clone()),
        })
    }
}

/// A failed attempt of a transition.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AttemptFailure {
    /// Time at which the attempt failed.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Name of the transition or step.
    #[schemars(with = "String")]
    transition: Name,
    /// Error of the attempt.
    error: RunFailure,
}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> Self {
        let Failure { code, message, is_final, status, errors: _ } = failure;
        RunFailure { code, message, is_final, status }
    }
}

impl RunDetails {
    pub(super) fn of(view: RunView, queued: Option<RunLimit>) -> Self {
        let snapshot = &view.snapshot;
        let result = snapshot.finished().and_then(|finished| match finished {
            RunEnd::Completed { output, .. } => Some(output.clone().unwrap_or_default()),
            RunEnd::Cancelled => None,
        });
        let run = snapshot.instance_id();
        let attempts = view.ledger.attempts.into_iter().map(|attempts: Attempts| AttemptsView {
            task: QueuedTaskView::of(run, &attempts),
            transition: attempts.transition,
            failed: attempts.failed,
            next_at: attempts.next,
        });
        let failures = view.ledger.failures.into_iter().map(|tried: FailedAttempt| AttemptFailure {
            at: tried.at,
            transition: tried.transition,
            error: tried.error.into(),
        });
        RunDetails {
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
            attempts: attempts.collect(),
            failures: failures.collect(),
            buffered_signals: view.buffered_signals,
            deadline: view.ledger.deadline,
            wake_at: view.wake,
            waiting_for: queued.map(WaitingFor::from),
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
    /// Version of the run that the checkpoint created.
    pub(super) version: u64,
    /// Time at which the checkpoint was committed.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Description of the change: the signal or engine event, places left and entered, input and result.
    entry: Value,
}

impl Checkpoint {
    pub(super) fn of(run: RunId, row: &HistoryRow) -> Result<Self, BadRow> {
        let entry = read(run, row.version, &row.entry)?;
        Ok(Checkpoint { version: row.version, at: row.at, entry })
    }
}

/// A checkpoint with the state of the run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckpointState {
    /// Version, time and entry of the checkpoint.
    #[serde(flatten)]
    checkpoint: Checkpoint,
    /// Complete state of the run at this version.
    state: Value,
}

impl CheckpointState {
    pub(super) fn of(run: RunId, row: &HistoryRow) -> Result<Self, BadRow> {
        let state = row.state.as_deref().map(|state| read(run, row.version, state)).transpose()?;
        Ok(CheckpointState { checkpoint: Checkpoint::of(run, row)?, state: state.unwrap_or_default() })
    }
}

/// Parses a part of a checkpoint.
fn read(run: RunId, version: u64, bytes: &[u8]) -> Result<Value, BadRow> {
    let bad =
        |why: String| BadRow { table: "checkpoints", key: format!("{run}:{version}"), run: Some(run), why };
    serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))
}
