//! Where tasks are found: rows of the table of waits, whose topic says whether somebody has the task and what its action is.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell_core::{Name, Timestamp};
use stepwell_store::{OpenWait, Page, StoreError, TenantScope, WaitQuery, WaitRow, WaitsOf};

use super::TaskId;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::ledger::{Posted, Tries};
use crate::standing::Standing;

/// Stands before and between the parts of a topic: no name has it, and no topic of events begins with it.
const MARK: char = '\u{1f}';
/// Comes right after all that begin with the mark.
const AFTER: char = '\u{20}';
/// Comes right after a topic, and before any other that begins with it.
const NEXT: char = '\u{1}';

/// Whether somebody has a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskState {
    /// It waits for a worker.
    Waiting,
    /// A worker has it.
    Leased,
    /// Its run stands still: it is given to nobody until that goes on.
    Held,
}

impl TaskState {
    const ALL: [TaskState; 3] = [TaskState::Waiting, TaskState::Leased, TaskState::Held];

    fn of(standing: &Standing, posted: &Posted) -> Self {
        match &posted.lease {
            Some(_) => TaskState::Leased,
            None if standing.stands_still() => TaskState::Held,
            None => TaskState::Waiting,
        }
    }

    fn word(self) -> &'static str {
        match self {
            TaskState::Waiting => "waiting",
            TaskState::Leased => "leased",
            TaskState::Held => "held",
        }
    }

    /// What tasks of an action are found by that are so.
    pub(super) fn topic(self, action: &str) -> String {
        format!("{MARK}{}{MARK}{action}", self.word())
    }
}

/// What a row says of a task.
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
    /// Its id.
    pub id: TaskId,
    /// The action.
    pub action: Name,
    /// Whether somebody has it.
    pub state: TaskState,
    /// The place, or step, that the run is in.
    pub place: Name,
    /// The transition that the action completes.
    pub transition: Name,
    /// Since when it is to be done.
    pub since: Timestamp,
    /// The worker that has it.
    pub worker: Option<String>,
    /// The fence under which it has it.
    pub fence: Option<u64>,
    /// Since when it has it.
    pub leased_at: Option<Timestamp>,
}

impl TaskRow {
    /// What a row of the table of waits says of a task, if it is one.
    pub(crate) fn of(row: &WaitRow) -> Option<Self> {
        let detail: Value = serde_json::from_slice(&row.wait.detail).ok()?;
        let Detail { action, transition, state, worker, fence, leased_at } =
            Detail::deserialize(detail.get("task")?).ok()?;
        let id = TaskId { run: row.run, activation: row.wait.activation };
        let (place, since) = (row.wait.place.clone(), row.wait.since);
        Some(TaskRow { id, action, state, place, transition, since, worker, fence, leased_at })
    }
}

/// The waits of a run with its tasks among them: as long as one is under way, it stands in for the wait of its activation.
pub(crate) fn with_tasks(standing: &Standing, mut waits: Vec<OpenWait>) -> Vec<OpenWait> {
    for tries in &standing.ledger.tries {
        let Some(posted) = &tries.posted else { continue };
        let at = waits.iter().position(|wait| wait.activation == tries.activation);
        let own = at.map(|at| waits.swap_remove(at));
        waits.extend(row(standing, tries, posted, own));
    }
    waits
}

fn row(standing: &Standing, tries: &Tries, posted: &Posted, own: Option<OpenWait>) -> Option<OpenWait> {
    let activation = standing.snapshot.activation(tries.activation)?;
    let state = TaskState::of(standing, posted);
    let lease = posted.lease.as_ref();
    let task = Detail {
        action: posted.action.clone(),
        transition: tries.transition.clone(),
        state,
        worker: lease.map(|lease| lease.worker.clone()),
        fence: lease.map(|lease| lease.fence),
        leased_at: lease.map(|lease| lease.since),
    };
    let known = own.as_ref().and_then(|own| serde_json::from_slice(&own.detail).ok());
    let mut detail: Map<String, Value> = known.unwrap_or_default();
    detail.entry("activation").or_insert_with(|| json!(tries.activation));
    detail.entry("place").or_insert_with(|| json!(activation.place));
    detail.entry("signals").or_insert_with(|| json!([]));
    detail.insert("task".to_owned(), serde_json::to_value(task).expect("what a row says is plain data"));
    Some(OpenWait {
        activation: tries.activation,
        place: activation.place.clone(),
        since: posted.at,
        until: own.and_then(|own| own.until),
        detail: Value::Object(detail).to_string().into(),
        topic: Some(state.topic(&posted.action)),
    })
}

/// The actions of the tasks that wait for a worker from here on.
pub(crate) fn offered(open: &[OpenWait]) -> Vec<Name> {
    if open.is_empty() {
        return Vec::new();
    }
    let waiting = TaskState::Waiting.topic("");
    let topics = open.iter().filter_map(|wait| wait.topic.as_deref());
    topics.filter_map(|topic| topic.strip_prefix(waiting.as_str())).map(Name::from).collect()
}

impl Inner {
    /// A part of the tasks, state by state and action by action.
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
            let query = WaitQuery { of: WaitsOf::Topic(topic.clone()), limit: left, cursor };
            let page = self.store.waits(scope, query).await?;
            items.extend(page.items.iter().filter_map(TaskRow::of));
            bad.extend(page.bad);
            if let Some(next) = page.next {
                return Ok(Page { items, next: Some(write_cursor(&next, &topic)), bad });
            }
            from = format!("{topic}{NEXT}");
        }
        Ok(Page { items, next: None, bad })
    }

    /// The first topic of tasks from one on: of an action, or of any.
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
        let of = WaitsOf::FirstTopic { from: from.to_owned(), before: AFTER.to_string() };
        let query = WaitQuery { of, limit: 1, cursor: None };
        Ok(self.store.waits(scope, query).await?.items.pop().and_then(|row| row.wait.topic))
    }
}

fn write_cursor(inner: &str, topic: &str) -> String {
    format!("{inner}@{}", topic.replace(MARK, "/"))
}

fn read_cursor(cursor: &str) -> Result<(String, String), EngineError> {
    let wrong = || EngineError::Store(StoreError::Invalid(format!("`{cursor}` is not a cursor of tasks")));
    let (inner, topic) = cursor.split_once('@').ok_or_else(wrong)?;
    let mut parts = topic.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(""), Some(state), Some(action)) => {
            Ok((inner.to_owned(), format!("{MARK}{state}{MARK}{action}")))
        }
        _ => Err(wrong()),
    }
}
