//! The stored task queue: rows in the table of waits. The topic of a row contains the state and the action of the task.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell_core::{Name, Timestamp};
use stepwell_store::{BadRow, Page, StoreError, StoredWait, TenantScope, WaitFilter, WaitQuery, WaitRow};

use super::TaskId;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::ledger::{Attempts, QueuedTask};
use crate::loaded_run::LoadedRun;

/// Precedes and separates the parts of a topic. No name contains it, and no topic of events begins with it.
const MARK: char = '\u{1f}';
/// Sorts after all topics that begin with [`MARK`].
const AFTER: char = '\u{20}';
/// Sorts after a topic and before all others that begin with it.
const NEXT: char = '\u{1}';

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskState {
    /// The task waits for a worker.
    Waiting,
    /// A worker has a lease on the task.
    Leased,
    /// The run is suspended or has failed: the task is not leased until the run continues.
    Blocked,
}

impl TaskState {
    const ALL: [TaskState; 3] = [TaskState::Waiting, TaskState::Leased, TaskState::Blocked];

    fn of(loaded_run: &LoadedRun, queued: &QueuedTask) -> Self {
        match &queued.lease {
            Some(_) => TaskState::Leased,
            None if loaded_run.is_stopped() => TaskState::Blocked,
            None => TaskState::Waiting,
        }
    }

    fn word(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Leased => "leased",
            TaskState::Blocked => "blocked",
        }
    }

    /// Returns the topic of tasks of an action in this state.
    pub(super) fn topic(self, action: &str) -> String {
        format!("{MARK}{}{MARK}{action}", self.word())
    }
}

/// The stored detail of a task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    action: Name,
    transition: Name,
    state: TaskState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leased_at: Option<Timestamp>,
}

/// A task in a listing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskRow {
    pub id: TaskId,
    pub action: Name,
    pub state: TaskState,
    /// The place, or step, of the run.
    pub place: Name,
    /// The transition that the run takes when the action succeeds.
    pub transition: Name,
    /// Time at which the task was queued.
    pub since: Timestamp,
    /// Name of the worker that has the lease.
    pub worker: Option<String>,
    /// Fence of the lease.
    pub fence: Option<u64>,
    /// Start of the lease.
    pub leased_at: Option<Timestamp>,
}

impl TaskRow {
    /// Reads a task from a row of the table of waits. `None` if the row is not a task.
    pub(crate) fn of(row: &WaitRow) -> Option<Self> {
        let detail: Value = serde_json::from_slice(&row.wait.detail).ok()?;
        let Detail { action, transition, state, worker, fence, leased_at } =
            Detail::deserialize(detail.get("task")?).ok()?;
        let id = TaskId { run: row.run, activation: row.wait.activation };
        let (place, since) = (row.wait.place.clone(), row.wait.since);
        Some(TaskRow { id, action, state, place, transition, since, worker, fence, leased_at })
    }
}

/// Adds the tasks of a run to its waits. While a task is in progress, it replaces the wait of its activation.
pub(crate) fn with_tasks(loaded_run: &LoadedRun, mut waits: Vec<StoredWait>) -> Vec<StoredWait> {
    for attempts in &loaded_run.ledger.attempts {
        let Some(queued) = &attempts.queued else { continue };
        let at = waits.iter().position(|wait| wait.activation == attempts.activation);
        let own = at.map(|at| waits.swap_remove(at));
        waits.extend(row(loaded_run, attempts, queued, own));
    }
    waits
}

fn row(
    loaded_run: &LoadedRun,
    attempts: &Attempts,
    queued: &QueuedTask,
    own: Option<StoredWait>,
) -> Option<StoredWait> {
    let activation = loaded_run.snapshot.activation(attempts.activation)?;
    let state = TaskState::of(loaded_run, queued);
    let lease = queued.lease.as_ref();
    let task = Detail {
        action: queued.action.clone(),
        transition: attempts.transition.clone(),
        state,
        worker: lease.map(|lease| lease.worker.clone()),
        fence: lease.map(|lease| lease.fence),
        leased_at: lease.map(|lease| lease.since),
    };
    let known = own.as_ref().and_then(|own| serde_json::from_slice(&own.detail).ok());
    let mut detail: Map<String, Value> = known.unwrap_or_default();
    detail.entry("activation").or_insert_with(|| json!(attempts.activation));
    detail.entry("place").or_insert_with(|| json!(activation.place));
    detail.entry("signals").or_insert_with(|| json!([]));
    detail.insert("task".to_owned(), serde_json::to_value(task).expect("the detail of a task is plain data"));
    Some(StoredWait {
        activation: attempts.activation,
        place: activation.place.clone(),
        since: queued.at,
        until: own.and_then(|own| own.until),
        detail: Value::Object(detail).to_string().into(),
        topic: Some(state.topic(&queued.action)),
        // People do not see the tasks of remote workers among their own.
        due: None,
    })
}

/// Returns the actions of the tasks that now wait for a worker.
pub(crate) fn offered(open: &[StoredWait]) -> Vec<Name> {
    if open.is_empty() {
        return Vec::new();
    }
    let waiting = TaskState::Waiting.topic("");
    let topics = open.iter().filter_map(|wait| wait.topic.as_deref());
    topics.filter_map(|topic| topic.strip_prefix(waiting.as_str())).map(Name::from).collect()
}

impl Inner {
    /// Lists tasks ordered by state and action, one page at a time.
    pub(super) async fn list_tasks(
        &self,
        scope: TenantScope,
        action: Option<&Name>,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<TaskRow>, EngineError> {
        let (mut inner, mut from) = match cursor.as_deref().map(read_cursor).transpose()? {
            Some((inner, topic)) => (Some(inner).filter(|inner| !inner.is_empty()), topic),
            None => (None, MARK.to_string()),
        };
        let (mut items, mut bad) = (Vec::new(), Vec::new());
        while let Some(topic) = self.topic_from(scope, action, &from).await? {
            let left = limit.saturating_sub(items.len() as u32);
            if left == 0 {
                return Ok(Page { items, next: Some(write_cursor("", &topic)), bad });
            }
            let cursor = inner.take().filter(|_| topic == from);
            let query = WaitQuery { of: WaitFilter::Topic(topic.clone()), limit: left, cursor };
            let page = self.store.waits(scope, query).await?;
            for row in &page.items {
                match TaskRow::of(row) {
                    Some(task) => items.push(task),
                    None => bad.push(unreadable_task(row)),
                }
            }
            bad.extend(page.bad);
            if let Some(next) = page.next {
                return Ok(Page { items, next: Some(write_cursor(&next, &topic)), bad });
            }
            from = format!("{topic}{NEXT}");
        }
        Ok(Page { items, next: None, bad })
    }

    /// Returns the first topic of tasks at or after `from`, of one action or of all.
    async fn topic_from(
        &self,
        scope: TenantScope,
        action: Option<&Name>,
        from: &str,
    ) -> Result<Option<String>, EngineError> {
        if let Some(action) = action {
            let mut topics = TaskState::ALL.map(|state| state.topic(action));
            topics.sort();
            return Ok(topics.into_iter().find(|topic| topic.as_str() >= from));
        }
        Ok(self.first_wait(scope, from, &AFTER.to_string()).await?.map(|first| first.topic))
    }
}

/// Reports a row of the task queue whose detail cannot be read.
fn unreadable_task(row: &WaitRow) -> BadRow {
    let key = format!("{}:{}", row.run, row.wait.activation);
    let why = "the detail of the task is unreadable".to_owned();
    BadRow { table: "waits", key, run: Some(row.run), why }
}

fn write_cursor(inner: &str, topic: &str) -> String {
    format!("{inner}@{}", topic.replace(MARK, "/"))
}

fn read_cursor(cursor: &str) -> Result<(String, String), EngineError> {
    let wrong =
        || EngineError::Store(StoreError::Invalid(format!("`{cursor}` is not a valid cursor for tasks")));
    let (inner, topic) = cursor.split_once('@').ok_or_else(wrong)?;
    let mut parts = topic.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(""), Some(state), Some(action)) => {
            Ok((inner.to_owned(), format!("{MARK}{state}{MARK}{action}")))
        }
        _ => Err(wrong()),
    }
}
