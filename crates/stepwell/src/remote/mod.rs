//! Remote actions: a worker in any language polls for a task, sends heartbeats while it works, and reports the result.
//!
//! Meanwhile no process owns the run. The task, its worker and its lease are in the run's ledger. A row in the table of
//! waits makes the task findable. Leasing a task, extending the lease and applying the result are ordinary commits of
//! the run, decided by its compare-and-set. So a worker may repeat any request, and the run applies it once.

mod claim;
mod finish;
mod queue;
mod revealed;
mod rows;
mod staging;

use std::fmt;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, Answers, Decision, Failure, Input, Name, Rejected, RunId, Timestamp, dispatch,
};
use stepwell_store::{Page, TenantScope};

use crate::actor::{Actor, Permission};
pub use crate::catalogue::RemoteAction;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::idempotent::Idempotent;
use crate::ledger::Attempts;
use crate::loaded_run::LoadedRun;
pub use finish::TaskResult;
pub(crate) use queue::TaskQueue;
pub(crate) use revealed::LeasedSecrets;
pub use rows::{TaskRow, TaskState};
pub(crate) use rows::{offered, with_tasks};
use staging::Report;
pub use staging::{MAX_WRITES, TaskWrite};

/// Default lease of a task. Without a heartbeat the task is released when it ends.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Minimum and maximum lease, in milliseconds.
const LEASES: (u64, u64) = (1_000, 3_600_000);
/// Maximum number of tasks returned by one poll.
pub const MAX_TASKS: usize = 10;
/// Maximum number of actions in one poll.
const MAX_ACTIONS: usize = 100;
/// Maximum length of a worker's name, in characters.
const MAX_WORKER: usize = 200;
/// Interval in milliseconds at which a waiting poll reads the queue again. Another process may have queued a task.
const ASKED_AGAIN_MS: u64 = 500;

/// The id of a task: an activation of a run whose action a worker runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    pub run: RunId,
    pub activation: ActivationId,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.run, self.activation)
    }
}

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('.').and_then(|(run, activation)| {
            Some(TaskId { run: run.parse().ok()?, activation: activation.parse().ok()? })
        });
        parts.ok_or_else(|| format!("`{text}` is not a task id: it must be a run id, a dot and a number"))
    }
}

impl Serialize for TaskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A worker's request for tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    worker: String,
    actions: Vec<Name>,
    lease_ms: u64,
    max: usize,
    wait_ms: u64,
    /// Id of the caller.
    by: Option<String>,
}

impl Poll {
    /// Creates a request of a worker for tasks of these actions. Tasks of the first action are preferred.
    pub fn new<N: Into<Name>>(worker: impl Into<String>, actions: impl IntoIterator<Item = N>) -> Self {
        let actions = actions.into_iter().map(Into::into).collect();
        Poll { worker: worker.into(), actions, lease_ms: ms(DEFAULT_LEASE), max: 1, wait_ms: 0, by: None }
    }

    /// Sets the lease: without a heartbeat the task is released after this time. Default: [`DEFAULT_LEASE`].
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease_ms = ms(lease);
        self
    }

    /// Sets the maximum number of tasks, 1 to [`MAX_TASKS`]. Default: 1.
    #[must_use]
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// Sets the time to wait for the first task. Default: return at once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait_ms = ms(wait);
        self
    }

    fn check(&self) -> Result<(), EngineError> {
        let wrong = |why: String| Err(EngineError::Invalid(why));
        if self.actions.is_empty() || self.actions.len() > MAX_ACTIONS {
            return wrong(format!(
                "a poll must name 1 to {MAX_ACTIONS} actions (got {})",
                self.actions.len()
            ));
        }
        if self.worker.is_empty() || self.worker.chars().count() > MAX_WORKER {
            return wrong(format!("the name of a worker must have 1 to {MAX_WORKER} characters"));
        }
        if self.max == 0 || self.max > MAX_TASKS {
            return wrong(format!("a poll can request 1 to {MAX_TASKS} tasks (got {})", self.max));
        }
        checked_lease(self.lease_ms).map(drop)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn checked_lease(lease_ms: u64) -> Result<u64, EngineError> {
    let (least, most) = LEASES;
    if (least..=most).contains(&lease_ms) {
        return Ok(lease_ms);
    }
    Err(EngineError::Invalid(format!("a lease must be {least} to {most} ms long (got {lease_ms} ms)")))
}

/// A task leased to a worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub id: TaskId,
    /// Fence of the lease. The worker must send it with every request about the task.
    pub fence: u64,
    pub action: Name,
    /// Input of the action, including secrets.
    pub input: Value,
    pub run: RunId,
    pub workflow: Name,
    /// The place, or step, of the run.
    pub place: Name,
    /// The transition that the run takes when the action succeeds.
    pub transition: Name,
    /// Number of the attempt, starting at 1.
    pub attempt: u32,
    /// Idempotency key for calls to other systems. It is the same for every attempt.
    pub idempotency_key: String,
    /// End of the lease. Without a heartbeat until then, the task goes to another worker.
    pub lease_until: Timestamp,
    /// End of the action's timeout. Heartbeats do not extend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// The task queue of a tenant's remote workers.
#[derive(Debug, Clone)]
pub struct Tasks {
    engine: Engine,
}

impl Engine {
    /// Returns the tenant's task queue for remote workers.
    pub fn tasks(&self) -> Tasks {
        Tasks { engine: self.clone() }
    }
}

/// The caller of a task operation. `None`: the engine itself.
#[derive(Clone, Copy)]
struct Asker<'a> {
    scope: TenantScope,
    actor: Option<&'a Actor>,
}

impl Tasks {
    fn asker(&self) -> Asker<'_> {
        Asker { scope: self.engine.scope(), actor: self.engine.actor() }
    }

    /// Leases queued tasks to a worker. With a time to wait, returns as soon as there is a task.
    pub async fn poll(&self, poll: Poll) -> Result<Vec<Task>, EngineError> {
        self.poll_until(poll, std::future::pending()).await
    }

    /// Leases queued tasks like [`Tasks::poll`], but stops waiting when `stop` completes. If the caller goes away, its
    /// tasks are released.
    pub async fn poll_until(
        &self,
        poll: Poll,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Task>, EngineError> {
        poll.check()?;
        poll.actions.iter().try_for_each(|action| self.engine.permit_work(action))?;
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        let waiter = inner.queue.wait(scope.tenant(), &poll.actions);
        let until = inner.host.now().plus_ms(poll.wait_ms);
        let poll = Arc::new(Poll { by: self.engine.actor_id(), ..poll });
        let mut stop = pin!(stop);
        loop {
            let tasks = claim::leased_tasks(inner, scope, &poll).await?;
            let now = inner.host.now();
            if !tasks.is_empty() || now >= until || inner.is_stopping() {
                return Ok(tasks);
            }
            let again = now.plus_ms(inner.options.poll_ms.min(ASKED_AGAIN_MS)).min(until);
            tokio::select! {
                biased;
                () = &mut stop => return Ok(Vec::new()),
                () = inner.over() => return Ok(Vec::new()),
                () = waiter.notification() => {}
                () = inner.host.clock.sleep_until(again) => {}
            }
        }
    }

    /// Extends the lease of a task and returns its new end.
    pub async fn heartbeat(
        &self,
        task: TaskId,
        fence: u64,
        lease: Duration,
        note: Option<Value>,
    ) -> Result<Timestamp, EngineError> {
        let lease_ms = checked_lease(ms(lease))?;
        self.engine.inner.renew_lease(self.asker(), task, fence, lease_ms, note).await
    }

    /// Completes a task with its output. A repeated request has no effect and returns the first result.
    pub async fn complete(
        &self,
        task: TaskId,
        fence: u64,
        output: Value,
    ) -> Result<Idempotent<TaskResult>, EngineError> {
        self.complete_with(task, fence, output, Vec::new()).await
    }

    /// Completes a task with its output and changes that are committed together with it. A change that cannot be made,
    /// for example because of a conflict, fails the attempt and nothing of it is written.
    pub async fn complete_with(
        &self,
        task: TaskId,
        fence: u64,
        output: Value,
        writes: Vec<TaskWrite>,
    ) -> Result<Idempotent<TaskResult>, EngineError> {
        let report = Report { output, writes };
        self.engine.inner.check_report(&report)?;
        self.engine.inner.finish_task(self.asker(), task, fence, Ok(report)).await
    }

    /// Fails a task. It is retried according to the step's retry policy. A repeated request counts as one failure.
    pub async fn fail(
        &self,
        task: TaskId,
        fence: u64,
        failure: Failure,
    ) -> Result<Idempotent<TaskResult>, EngineError> {
        self.engine.inner.finish_task(self.asker(), task, fence, Err(failure)).await
    }

    /// Releases a task. Another worker can get it at once, and it does not count as a failed attempt.
    pub async fn release(&self, task: TaskId, fence: u64) -> Result<(), EngineError> {
        self.engine.inner.release_task(self.asker(), task, fence).await
    }

    /// Lists tasks of one action or of all, one page at a time.
    pub async fn list(
        &self,
        action: Option<Name>,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<TaskRow>, EngineError> {
        self.engine.permit(Permission::View)?;
        self.engine.inner.list_tasks(self.engine.scope(), action.as_ref(), limit, cursor).await
    }
}

/// Returns the action call of a task. If the input can no longer be evaluated, it is `null`.
pub(crate) fn call_of(loaded_run: &LoadedRun, attempts: &Attempts, now: Timestamp) -> ActionCall {
    evaluated(loaded_run, attempts, now).unwrap_or_else(|_| {
        let retry = loaded_run.retry(attempts);
        let action = attempts.queued.as_ref().map_or(&retry.transition, |queued| &queued.action).clone();
        ActionCall {
            activation: retry.activation,
            transition: retry.transition,
            action,
            input: Value::Null,
            payload: retry.payload,
            cause: retry.cause,
            timeout_ms: Some(0),
        }
    })
}

/// Evaluates the action call of a task with its input. `Err(None)`: the run no longer needs the call. `Err(Some)`: the
/// input cannot be evaluated.
fn evaluated(
    loaded_run: &LoadedRun,
    attempts: &Attempts,
    now: Timestamp,
) -> Result<ActionCall, Option<Failure>> {
    let event = Input::Retried { retry: loaded_run.retry(attempts), manual: true };
    match dispatch(loaded_run.definition(), &loaded_run.snapshot, &event, &Answers::none(), now) {
        Ok(Decision::Act(call)) => Ok(call),
        Err(Rejected::Undecidable(error)) => Err(Some(error.failure())),
        Ok(_) | Err(Rejected::Refused(_)) => Err(None),
    }
}
