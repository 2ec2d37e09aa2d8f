//! Actions that workers elsewhere do, in whatever language: a worker asks for a task, is heard of while it works, and says what
//! came of it.
//!
//! A run rests meanwhile: nobody owns it. That an action is to be done, who has it and until when is in the run's ledger; a row of
//! the table of waits says where it is found. Giving a task away, hearing of its worker and taking its result are turns on
//! the run like any other, decided by its compare-and-set; so whatever a worker may do twice, the run takes once.

mod claim;
mod desk;
mod finish;
mod rows;

use std::fmt;
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, Answers, Decision, Event, Failure, Name, Rejected, RunId, Timestamp, dispatch,
};
use stepwell_store::{Page, TenantScope};

use crate::actor::{Actor, Permission};
pub use crate::catalogue::RemoteAction;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ledger::Tries;
use crate::once::Done;
use crate::standing::Standing;
pub(crate) use desk::Desk;
pub use finish::Finished;
pub use rows::{TaskRow, TaskState};
pub(crate) use rows::{offered, with_tasks};

/// A task is the worker's for so long without a heartbeat unless it asks for another time.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The shortest and the longest lease.
const LEASES: (u64, u64) = (1_000, 3_600_000);
/// Tasks that are given to a worker at once, at most.
pub const MAX_TASKS: usize = 10;
/// Actions that a worker asks for at once, at most.
const MAX_ACTIONS: usize = 100;
/// The longest name of a worker, in characters.
const MAX_WORKER: usize = 200;
/// How often a worker's question is asked again if nothing says that there is news: another process may have posted something.
const ASKED_AGAIN_MS: u64 = 500;

/// Names a task: an activation of a run, whose action is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The run.
    pub run: RunId,
    /// The activation.
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
        parts.ok_or_else(|| format!("`{text}` names no task: it is a run's id, a dot and a number"))
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

/// What a worker asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poll {
    worker: String,
    actions: Vec<Name>,
    lease_ms: u64,
    max: usize,
    wait_ms: u64,
}

impl Poll {
    /// A worker that does these actions, preferably the first.
    pub fn new<N: Into<Name>>(worker: impl Into<String>, actions: impl IntoIterator<Item = N>) -> Self {
        let actions = actions.into_iter().map(Into::into).collect();
        Poll { worker: worker.into(), actions, lease_ms: ms(DEFAULT_LEASE), max: 1, wait_ms: 0 }
    }

    /// How long a task is the worker's without a heartbeat.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease_ms = ms(lease);
        self
    }

    /// How many tasks it takes at most.
    #[must_use]
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// How long it waits for the first.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait_ms = ms(wait);
        self
    }

    fn check(&self) -> Result<(), EngineError> {
        let wrong = |why: String| Err(EngineError::Invalid(why));
        if self.actions.is_empty() || self.actions.len() > MAX_ACTIONS {
            return wrong(format!("a worker asks for 1 to {MAX_ACTIONS} actions"));
        }
        if self.worker.is_empty() || self.worker.chars().count() > MAX_WORKER {
            return wrong(format!("a worker has a name of 1 to {MAX_WORKER} characters"));
        }
        if self.max == 0 || self.max > MAX_TASKS {
            return wrong(format!("a worker takes 1 to {MAX_TASKS} tasks at once"));
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
    Err(EngineError::Invalid(format!("a lease is {least} to {most} ms long, and not {lease_ms}")))
}

/// Something that a worker is to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What proves that it is the worker's: it goes with everything that is said of the task.
    pub fence: u64,
    /// The action.
    pub action: Name,
    /// The action's input, with its secrets.
    pub input: Value,
    /// The run.
    pub run: RunId,
    /// The run's workflow.
    pub workflow: Name,
    /// The place, or step, that the run is in.
    pub place: Name,
    /// The transition that the action completes.
    pub transition: Name,
    /// Which try this is, counted from 1.
    pub attempt: u32,
    /// A key for calls to the outside: every try has the same one.
    pub idempotency_key: String,
    /// When it is given to somebody else unless the worker is heard of.
    pub lease_until: Timestamp,
    /// When it has taken too long, however often the worker is heard of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// What workers elsewhere are to do, for a tenant.
#[derive(Debug, Clone)]
pub struct Tasks {
    engine: Engine,
}

impl Engine {
    /// What workers elsewhere are to do.
    pub fn tasks(&self) -> Tasks {
        Tasks { engine: self.clone() }
    }
}

/// Who says something of a task: somebody, or the engine itself.
#[derive(Clone, Copy)]
struct Asker<'a> {
    scope: TenantScope,
    actor: Option<&'a Actor>,
}

impl Tasks {
    fn asker(&self) -> Asker<'_> {
        Asker { scope: self.engine.scope(), actor: self.engine.actor() }
    }

    /// Gives a worker what there is for it to do; with a time to wait, as soon as there is something.
    pub async fn poll(&self, poll: Poll) -> Result<Vec<Task>, EngineError> {
        self.poll_until(poll, std::future::pending()).await
    }

    /// The same, and waits no longer once something else has happened. Tasks that whoever asked is no longer there for are
    /// given to others.
    pub async fn poll_until(
        &self,
        poll: Poll,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Task>, EngineError> {
        poll.check()?;
        poll.actions.iter().try_for_each(|action| self.engine.permit_work(action))?;
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        let waiter = inner.desk.wait(scope.tenant(), &poll.actions);
        let until = inner.host.now().plus_ms(poll.wait_ms);
        let poll = Arc::new(poll);
        let mut stop = pin!(stop);
        loop {
            let tasks = claim::given(inner, scope, &poll).await?;
            let now = inner.host.now();
            if !tasks.is_empty() || now >= until || inner.is_stopping() {
                return Ok(tasks);
            }
            let again = now.plus_ms(inner.options.poll_ms.min(ASKED_AGAIN_MS)).min(until);
            tokio::select! {
                biased;
                () = &mut stop => return Ok(Vec::new()),
                () = inner.over() => return Ok(Vec::new()),
                () = waiter.told() => {}
                () = inner.host.clock.sleep_until(again) => {}
            }
        }
    }

    /// The worker is heard of: the task stays its own for another while. Gives until when.
    pub async fn heartbeat(
        &self,
        task: TaskId,
        fence: u64,
        lease: Duration,
        note: Option<Value>,
    ) -> Result<Timestamp, EngineError> {
        let lease_ms = checked_lease(ms(lease))?;
        self.engine.inner.heard_of(self.asker(), task, fence, lease_ms, note).await
    }

    /// The task is done. The same said twice is done once.
    pub async fn complete(
        &self,
        task: TaskId,
        fence: u64,
        output: Value,
    ) -> Result<Done<Finished>, EngineError> {
        self.engine.inner.finish_task(self.asker(), task, fence, Ok(output)).await
    }

    /// The task has failed: it is tried again as the step says. The same said twice is one failure.
    pub async fn fail(
        &self,
        task: TaskId,
        fence: u64,
        failure: Failure,
    ) -> Result<Done<Finished>, EngineError> {
        self.engine.inner.finish_task(self.asker(), task, fence, Err(failure)).await
    }

    /// The worker gives the task back: another gets it at once, and nothing is counted.
    pub async fn release(&self, task: TaskId, fence: u64) -> Result<(), EngineError> {
        self.engine.inner.give_back(self.asker(), task, fence).await
    }

    /// A part of the tasks there are, of one action or of all.
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

/// What is called for a task, as far as that can be told now: its input may be made of what is no longer there.
pub(crate) fn call_of(standing: &Standing, tries: &Tries, now: Timestamp) -> ActionCall {
    evaluated(standing, tries, now).unwrap_or_else(|_| {
        let retrial = standing.retrial(tries);
        let action = tries.posted.as_ref().map_or(&retrial.transition, |posted| &posted.action).clone();
        ActionCall {
            activation: retrial.activation,
            transition: retrial.transition,
            action,
            input: Value::Null,
            payload: retrial.payload,
            cause: retrial.cause,
            timeout_ms: 0,
        }
    })
}

/// What is called for a task, with its input; `None` = it is not wanted any more, or cannot be told.
fn evaluated(standing: &Standing, tries: &Tries, now: Timestamp) -> Result<ActionCall, Option<Failure>> {
    let event = Event::Retried { retrial: standing.retrial(tries), by_hand: true };
    match dispatch(standing.definition(), &standing.snapshot, &event, &Answers::none(), now) {
        Ok(Decision::Act(call)) => Ok(call),
        Err(Rejected::Undecidable(error)) => Err(Some(error.failure())),
        Ok(_) | Err(Rejected::Refused(_)) => Err(None),
    }
}
