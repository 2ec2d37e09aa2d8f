//! Tasks of remote workers: a worker polls for tasks, sends heartbeats while it works, and reports the outcome.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::{Failure, Name, Timestamp};
use stepwell::remote::{DEFAULT_LEASE, Poll, Task, TaskId, TaskResult, TaskRow, TaskState, TaskWrite};
use stepwell::{Idempotent, Permission};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::runs::wait_of;
use super::shapes::{Id, Instant, Listing, Page, Span, span};
use crate::routes::problem::Problem;

/// Path parameter that selects a task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TaskPath {
    /// Id of the task: the run's id, a dot and the activation.
    #[schemars(
        with = "String",
        regex(pattern = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.[0-9]{1,15}$")
    )]
    task: TaskId,
}

/// Request of a worker for tasks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PollTasks {
    /// Names of the actions that the worker runs, 1 to 100, in order of preference.
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    actions: Vec<String>,
    /// Name of the worker, for people; 1 to 200 characters.
    #[schemars(length(min = 1, max = 200))]
    worker: String,
    /// Duration of the lease without a heartbeat, `1s` to `1h`. Default: `30s`.
    #[schemars(with = "Option<Span>")]
    lease: Option<String>,
    /// Maximum number of tasks to lease, 1 to 10. Default: 1.
    #[schemars(range(min = 1, max = 10))]
    max: Option<u8>,
}

/// Query parameter for waiting until there is a task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Waiting {
    /// Maximum time to wait for a task. Limited by the server. Default: no wait.
    #[schemars(with = "Option<Span>")]
    wait: Option<String>,
}

/// Tasks that a worker has leased.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LeasedTasks {
    /// The leased tasks; empty if there were none.
    tasks: Vec<LeasedTask>,
}

/// A task that a worker has leased.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LeasedTask {
    /// Id of the task: the run's id, a dot and the activation.
    id: String,
    /// Fence of the lease. The worker sends it with every request about the task.
    fence: u64,
    /// Name of the action to run.
    #[schemars(with = "String")]
    action: Name,
    /// Input of the action, with secrets in plain text.
    input: Value,
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    run: stepwell::core::RunId,
    /// Name of the run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Name of the place or step that the task belongs to.
    #[schemars(with = "String")]
    place: Name,
    /// Name of the transition that the action completes.
    #[schemars(with = "String")]
    transition: Name,
    /// Number of the attempt, counted from 1.
    attempt: u32,
    /// Idempotency key for calls to other systems. It is the same in every attempt.
    idempotency_key: String,
    /// Time at which the lease expires without a heartbeat. Another worker can then lease the task.
    #[schemars(with = "Instant")]
    lease_until: Timestamp,
    /// Time at which the task times out, regardless of heartbeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
}

impl From<Task> for LeasedTask {
    fn from(task: Task) -> Self {
        LeasedTask {
            id: task.id.to_string(),
            fence: task.fence,
            action: task.action,
            input: task.input,
            run: task.run,
            workflow: task.workflow,
            place: task.place,
            transition: task.transition,
            attempt: task.attempt,
            idempotency_key: task.idempotency_key,
            lease_until: task.lease_until,
            deadline: task.deadline,
        }
    }
}

/// Filter and page of a listing of tasks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListTasks {
    /// Lists only tasks of this action.
    #[schemars(length(min = 1, max = 256))]
    action: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A task in a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskView {
    /// Id of the task: the run's id, a dot and the activation.
    id: String,
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    run: stepwell::core::RunId,
    /// Name of the action.
    #[schemars(with = "String")]
    action: Name,
    /// State of the task: `waiting`, `leased` or `blocked`.
    state: State,
    /// Name of the place or step that the task belongs to.
    #[schemars(with = "String")]
    place: Name,
    /// Name of the transition that the action completes.
    #[schemars(with = "String")]
    transition: Name,
    /// Time at which the task was queued.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Name of the worker that holds the lease; absent while the task is not leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// Fence of the lease; absent while the task is not leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Time at which the task was leased; absent while it is not leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    leased_at: Option<Timestamp>,
}

/// State of a task: waiting for a worker, leased by a worker, or blocked because its run cannot continue.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskState")]
enum State {
    Waiting,
    Leased,
    Blocked,
}

impl From<TaskRow> for TaskView {
    fn from(row: TaskRow) -> Self {
        let state = match row.state {
            TaskState::Waiting => State::Waiting,
            TaskState::Leased => State::Leased,
            TaskState::Blocked => State::Blocked,
        };
        TaskView {
            id: row.id.to_string(),
            run: row.id.run,
            action: row.action,
            state,
            place: row.place,
            transition: row.transition,
            since: row.since,
            worker: row.worker,
            fence: row.fence,
            leased_at: row.leased_at,
        }
    }
}

/// Heartbeat of a worker for a leased task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatTask {
    /// Fence of the worker's lease, from the poll.
    fence: u64,
    /// Duration of the renewed lease from now on, `1s` to `1h`. Default: `30s`.
    #[schemars(with = "Option<Span>")]
    lease: Option<String>,
    /// Progress note for people, any JSON value.
    note: Option<Value>,
}

/// Result of a heartbeat.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LeaseExtended {
    /// Time at which the lease expires without another heartbeat.
    #[schemars(with = "Instant")]
    lease_until: Timestamp,
}

/// Report that a task is completed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteTask {
    /// Fence of the worker's lease, from the poll.
    fence: u64,
    /// Output of the action, any JSON value. Default: `null`.
    #[serde(default)]
    output: Value,
    /// Changes that are committed together with the output, in this order. Default: none.
    #[serde(default)]
    #[schemars(length(max = 100))]
    writes: Vec<WriteOfTask>,
}

/// Change that is committed together with the output of a task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "TaskWrite")]
struct WriteOfTask {
    /// Name of a built-in action that only makes changes, such as `store.set`, `links.upsert`, `state.append`,
    /// `document.put`, `workflow.start`, `workflow.signal` or `event.emit`. `GET /v1/actions` marks them `stageable`.
    #[schemars(length(min = 1, max = 256))]
    action: String,
    /// Input of the action.
    input: Value,
    /// Field of the output that gets the result of the change, such as the new revision. Default: none.
    #[schemars(length(min = 1, max = 256))]
    save_as: Option<String>,
}

impl From<WriteOfTask> for TaskWrite {
    fn from(write: WriteOfTask) -> Self {
        TaskWrite { action: write.action.into(), input: write.input, save_as: write.save_as }
    }
}

/// Report that a task has failed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailTask {
    /// Fence of the worker's lease, from the poll.
    fence: u64,
    /// Error of the attempt.
    error: TaskError,
    /// True = a retry cannot succeed. Default: false.
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// Error of a failed task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaskError {
    /// Stable code of the failure, for `retryOn` and for programs; 1 to 100 characters.
    #[schemars(length(min = 1, max = 100))]
    code: String,
    /// Description of the failure, for people; at most 4,000 characters.
    #[schemars(length(max = 4000))]
    message: String,
}

/// Request to release a task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseTask {
    /// Fence of the worker's lease, from the poll.
    fence: u64,
}

/// Outcome of a task.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskFinished {
    /// `completed` = the run continues with the output; `failed` = the attempt failed.
    outcome: TaskOutcome,
    /// Error of the attempt, from the worker or from the validation of the output; absent if completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TaskOutcome {
    Completed,
    Failed,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, worker) = (Permission::View, Needs::Worker);
    vec![
        post("/v1/tasks/poll", "pollTasks", worker, "Poll for tasks as a worker.")
            .notes("With `wait`, the response is sent as soon as there is a task. The worker owns a task until its lease expires; heartbeats renew the lease. The input contains secrets in plain text.")
            .ok::<LeasedTasks>("Leased tasks; empty if there are none.")
            .to(poll),
        get("/v1/tasks", "listTasks", view, "List the tasks of remote workers.")
            .ok::<Page<TaskView>>("Tasks.")
            .to(list),
        post("/v1/tasks/{task}/heartbeat", "heartbeatTask", worker, "Renew the lease of a task.")
            .notes("A 409 `taskGone` means that the lease is no longer valid: stop working on the task.")
            .ok::<LeaseExtended>("The lease is renewed.")
            .to(heartbeat),
        post("/v1/tasks/{task}/complete", "completeTask", worker, "Complete a task.")
            .notes("A repeated request has no further effect and gets the same response. A 409 `taskGone` means that the lease is no longer valid and nothing was changed. `writes` are made in the commit of the step, or not at all.")
            .ok::<TaskFinished>("The run continues, or the attempt has failed because the output is invalid or a change cannot be made.")
            .to(complete),
        post("/v1/tasks/{task}/fail", "failTask", worker, "Fail a task. The retry policy of its step applies.")
            .notes("A 409 `taskGone` means that the lease is no longer valid and nothing was changed.")
            .ok::<TaskFinished>("The attempt has failed.")
            .to(fail),
        post("/v1/tasks/{task}/release", "releaseTask", worker, "Release a task, so that another worker can lease it at once.")
            .gives_nothing("The task waits for a worker.")
            .to(release),
    ]
}

async fn poll(call: Call<Nothing, Waiting, Json<PollTasks>>) -> Result<Reply, Problem> {
    let wait = wait_of(&call, call.query.wait.as_deref())?;
    let (engine, server) = (call.engine(), call.server);
    let Json(PollTasks { actions, worker, lease, max }) = call.body;
    let mut poll = Poll::new(worker, actions.iter().map(String::as_str)).lease(lease_of(lease.as_deref())?);
    if let Some(max) = max {
        poll = poll.max(usize::from(max));
    }
    poll = wait.into_iter().fold(poll, Poll::wait);
    let _waits = wait.map(|_| server.telemetry.requests().wait());
    let tasks = engine.tasks().poll_until(poll, server.stopping()).await?;
    Reply::ok(&LeasedTasks { tasks: tasks.into_iter().map(LeasedTask::from).collect() })
}

fn lease_of(text: Option<&str>) -> Result<Duration, Problem> {
    text.map_or(Ok(DEFAULT_LEASE), span)
}

async fn list(call: Call<Nothing, ListTasks>) -> Result<Reply, Problem> {
    let ListTasks { action, limit, cursor } = &call.query;
    let listing = Listing::of(*limit, cursor.clone());
    let action = action.as_deref().map(Name::from);
    let page = call.engine().tasks().list(action, listing.limit(), listing.cursor()).await?;
    Reply::ok(&Page::of(page, TaskView::from))
}

async fn heartbeat(call: Call<TaskPath, Nothing, Json<HeartbeatTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(HeartbeatTask { fence, lease, note }) = call.body;
    let lease = lease_of(lease.as_deref())?;
    let lease_until = engine.tasks().heartbeat(task, fence, lease, note).await?;
    Reply::ok(&LeaseExtended { lease_until })
}

async fn complete(call: Call<TaskPath, Nothing, Json<CompleteTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(CompleteTask { fence, output, writes }) = call.body;
    let writes = writes.into_iter().map(TaskWrite::from).collect();
    finished(engine.tasks().complete_with(task, fence, output, writes).await?)
}

async fn fail(call: Call<TaskPath, Nothing, Json<FailTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(FailTask { fence, error, is_final }) = call.body;
    let failure = Failure { is_final, ..Failure::new(error.code, error.message) };
    finished(engine.tasks().fail(task, fence, failure).await?)
}

fn finished(done: Idempotent<TaskResult>) -> Result<Reply, Problem> {
    let outcome = if done.value.error.is_none() { TaskOutcome::Completed } else { TaskOutcome::Failed };
    let error = done.value.error.map(serde_json::to_value).transpose();
    let error = error.map_err(|error| Problem::internal(&error))?;
    Ok(Reply::ok(&TaskFinished { outcome, error })?.replayed(!done.is_new))
}

async fn release(call: Call<TaskPath, Nothing, Json<ReleaseTask>>) -> Result<Reply, Problem> {
    let task = call.path.task;
    call.engine().tasks().release(task, call.body.0.fence).await?;
    Ok(Reply::nothing())
}
