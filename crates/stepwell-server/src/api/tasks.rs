//! Tasks: what workers elsewhere are to do. A worker asks, is heard of while it works, and says what came of it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::{Failure, Name, Timestamp};
use stepwell::remote::{DEFAULT_LEASE, Finished, Poll, Task, TaskId, TaskRow, TaskState};
use stepwell::{Done, Permission};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::runs::wait_of;
use super::shapes::{Id, Instant, Listing, Page, Span, span};
use crate::routes::problem::Problem;

/// Which task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfTask {
    /// Its id: a run's id, a dot and a number.
    #[schemars(
        with = "String",
        regex(pattern = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.[0-9]{1,15}$")
    )]
    task: TaskId,
}

/// What a worker asks for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PollTasks {
    /// The actions it does, the ones it prefers first.
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    actions: Vec<String>,
    /// What it calls itself, for people.
    #[schemars(length(min = 1, max = 200))]
    worker: String,
    /// How long a task is its own without a heartbeat: from `1s` to `1h`, and `30s` unless this says otherwise.
    #[schemars(with = "Option<Span>")]
    lease: Option<String>,
    /// How many tasks it takes at most; 1 unless this says otherwise.
    #[schemars(range(min = 1, max = 10))]
    max: Option<u8>,
}

/// How long to wait for something to do.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Waiting {
    /// Wait for a task for at most so long; not at all without this.
    #[schemars(with = "Option<Span>")]
    wait: Option<String>,
}

/// What a worker is given.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TasksGiven {
    /// The tasks; none if there was nothing to do.
    tasks: Vec<TaskGiven>,
}

/// Something that a worker is to do.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskGiven {
    /// Its id.
    id: String,
    /// What proves that it is the worker's: it goes with everything that is said of the task.
    fence: u64,
    /// The action.
    #[schemars(with = "String")]
    action: Name,
    /// The action's input, with its secrets.
    input: Value,
    /// The run.
    #[schemars(with = "Id")]
    run: stepwell::core::RunId,
    /// The run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// The place, or step, that the run is in.
    #[schemars(with = "String")]
    place: Name,
    /// The transition that the action completes.
    #[schemars(with = "String")]
    transition: Name,
    /// Which try this is, counted from 1.
    attempt: u32,
    /// A key for calls to the outside: every try has the same one.
    idempotency_key: String,
    /// When it is given to somebody else unless the worker is heard of.
    #[schemars(with = "Instant")]
    lease_until: Timestamp,
    /// When it has taken too long, however often the worker is heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deadline: Option<Timestamp>,
}

impl From<Task> for TaskGiven {
    fn from(task: Task) -> Self {
        TaskGiven {
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

/// Which tasks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListTasks {
    /// Of this action.
    #[schemars(length(min = 1, max = 256))]
    action: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A task in a listing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskShown {
    /// Its id.
    id: String,
    /// The run.
    #[schemars(with = "Id")]
    run: stepwell::core::RunId,
    /// The action.
    #[schemars(with = "String")]
    action: Name,
    /// Whether somebody has it.
    state: State,
    /// The place, or step, that the run is in.
    #[schemars(with = "String")]
    place: Name,
    /// The transition that the action completes.
    #[schemars(with = "String")]
    transition: Name,
    /// Since when it is to be done.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// The worker that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// The fence under which it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Since when it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    leased_at: Option<Timestamp>,
}

/// Whether somebody has a task: it waits for a worker, a worker has it, or its run stands still.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskState")]
enum State {
    Waiting,
    Leased,
    Held,
}

impl From<TaskRow> for TaskShown {
    fn from(row: TaskRow) -> Self {
        let state = match row.state {
            TaskState::Waiting => State::Waiting,
            TaskState::Leased => State::Leased,
            TaskState::Held => State::Held,
        };
        TaskShown {
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

/// A worker is heard of.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatTask {
    /// The fence that it was given the task with.
    fence: u64,
    /// How long the task is its own from now on; `30s` unless this says otherwise.
    #[schemars(with = "Option<Span>")]
    lease: Option<String>,
    /// How far it has come, for people.
    note: Option<Value>,
}

/// The task stays the worker's.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskKept {
    /// Until when, unless it is heard of again.
    #[schemars(with = "Instant")]
    lease_until: Timestamp,
}

/// A task is done.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CompleteTask {
    /// The fence that the worker was given the task with.
    fence: u64,
    /// What the action gives.
    #[serde(default)]
    output: Value,
}

/// A task has failed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailTask {
    /// The fence that the worker was given the task with.
    fence: u64,
    /// Why.
    error: TaskError,
    /// Trying again is of no use.
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// Why a task has failed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaskError {
    /// A stable word for the kind of failure, for `retryOn` and for programs.
    #[schemars(length(min = 1, max = 100))]
    code: String,
    /// What happened, for a person.
    #[schemars(length(max = 4000))]
    message: String,
}

/// A worker gives its task back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseTask {
    /// The fence that it was given the task with.
    fence: u64,
}

/// What a task has come to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TaskFinished {
    /// Whether the run goes on with its result, or the try has failed.
    outcome: TaskOutcome,
    /// Why it has failed: what the worker said, or what is wrong with its result.
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
        post("/v1/tasks/poll", "pollTasks", worker, "Gives a worker what there is for it to do.")
            .notes("With `wait` it is answered as soon as there is something. A task is the worker's until its lease is over; heartbeats prolong it. Secrets are in its input as they are.")
            .ok::<TasksGiven>("Tasks, or none.")
            .to(poll),
        get("/v1/tasks", "listTasks", view, "Lists what workers elsewhere are to do, and who has it.")
            .ok::<Page<TaskShown>>("Tasks.")
            .to(list),
        post("/v1/tasks/{task}/heartbeat", "heartbeatTask", worker, "Says that a worker is still at a task.")
            .notes("409 `taskGone` = it is not the worker's any more: stop working on it.")
            .ok::<TaskKept>("It stays the worker's.")
            .to(heartbeat),
        post("/v1/tasks/{task}/complete", "completeTask", worker, "Says that a task is done.")
            .notes("The same said twice is done once and answered as before. 409 `taskGone` = it is not the worker's any more, and nothing was changed.")
            .ok::<TaskFinished>("The run goes on, or the result does not fit and the try has failed.")
            .to(complete),
        post("/v1/tasks/{task}/fail", "failTask", worker, "Says that a task has failed; it is tried again as its step says.")
            .notes("409 `taskGone` = it is not the worker's any more, and nothing was changed.")
            .ok::<TaskFinished>("The try has failed.")
            .to(fail),
        post("/v1/tasks/{task}/release", "releaseTask", worker, "Gives a task back, for another worker to do at once.")
            .gives_nothing("It waits for a worker.")
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
    Reply::ok(&TasksGiven { tasks: tasks.into_iter().map(TaskGiven::from).collect() })
}

fn lease_of(text: Option<&str>) -> Result<Duration, Problem> {
    text.map_or(Ok(DEFAULT_LEASE), span)
}

async fn list(call: Call<Nothing, ListTasks>) -> Result<Reply, Problem> {
    let ListTasks { action, limit, cursor } = &call.query;
    let listing = Listing::of(*limit, cursor.clone());
    let action = action.as_deref().map(Name::from);
    let page = call.engine().tasks().list(action, listing.limit(), listing.cursor()).await?;
    Reply::ok(&Page::of(page, TaskShown::from))
}

async fn heartbeat(call: Call<OfTask, Nothing, Json<HeartbeatTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(HeartbeatTask { fence, lease, note }) = call.body;
    let lease = lease_of(lease.as_deref())?;
    let lease_until = engine.tasks().heartbeat(task, fence, lease, note).await?;
    Reply::ok(&TaskKept { lease_until })
}

async fn complete(call: Call<OfTask, Nothing, Json<CompleteTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(CompleteTask { fence, output }) = call.body;
    finished(engine.tasks().complete(task, fence, output).await?)
}

async fn fail(call: Call<OfTask, Nothing, Json<FailTask>>) -> Result<Reply, Problem> {
    let (engine, task) = (call.engine(), call.path.task);
    let Json(FailTask { fence, error, is_final }) = call.body;
    let failure = Failure { is_final, ..Failure::new(error.code, error.message) };
    finished(engine.tasks().fail(task, fence, failure).await?)
}

fn finished(done: Done<Finished>) -> Result<Reply, Problem> {
    let outcome = if done.came_to.error.is_none() { TaskOutcome::Completed } else { TaskOutcome::Failed };
    let error = done.came_to.error.map(serde_json::to_value).transpose();
    let error = error.map_err(|error| Problem::internal(&error))?;
    Ok(Reply::ok(&TaskFinished { outcome, error })?.replayed(!done.is_new))
}

async fn release(call: Call<OfTask, Nothing, Json<ReleaseTask>>) -> Result<Reply, Problem> {
    let task = call.path.task;
    call.engine().tasks().release(task, call.body.0.fence).await?;
    Ok(Reply::nothing())
}
