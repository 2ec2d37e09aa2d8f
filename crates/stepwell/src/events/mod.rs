//! Events that concern any number of runs. An event is accepted once, in one commit. Then it starts the workflows that
//! have a trigger for it, and wakes the runs that wait for it.
//!
//! An accepted event is itself a durable run, of a workflow that every engine has. The run's data is the event, and its
//! only action delivers it to a bounded number of runs per commit. So the delivery survives crashes and needs no other
//! storage: its results are in the run's state, and events are found by the run's shadow columns (`index.rs`).
//!
//! A wait that opens later asks for events that were accepted before (`ask.rs`). The wait is committed before it asks,
//! and an event is accepted before it looks for waits. So the later of the two always finds the other.

pub(crate) mod ask;
pub mod cloud;
mod deliver;
pub mod hook;
pub(crate) mod index;
mod kinds;
mod log;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::limits::json_bytes;
use stepwell_core::{Definition, Name, RunId, Timestamp};
use stepwell_store::{CellKey, CellOp, CellWrite, Page, Precondition, Space, TenantScope};

use crate::actor::Permission;
use crate::catalogue::ReadWorkflows;
use crate::data::Changes;
use crate::engine::{Builder, Engine, Inner};
use crate::error::EngineError;
use crate::start::Start;

pub use cloud::{CloudError, CloudEvents};
pub use kinds::EventType;
pub use log::{EventView, Fired, TriggerEntry, TriggerLog, TriggerOutcome};

/// Workflow whose runs are events. Names that begin with `stepwell.` are reserved for the engine.
pub const WORKFLOW: &str = "stepwell.event";

/// Default time in milliseconds for which an accepted event can be taken by later waits: one day.
pub const DEFAULT_EVENT_TTL_MS: u64 = 24 * 3_600_000;

/// Maximum length of the source, id, subject and name of an event, in characters.
const MAX_CHARS: usize = 256;
/// Source of events that name none.
const NOWHERE: &str = "stepwell";
/// Key of the cell that counts duplicates of an event.
const DUPLICATES: &str = "duplicates";

/// An event to be emitted.
#[derive(Debug, Clone)]
pub struct Event {
    pub(crate) name: Name,
    payload: Result<Value, String>,
    source: Option<String>,
    id: Option<String>,
    subject: Option<String>,
    time: Option<Timestamp>,
    key: Option<Value>,
    ttl_ms: Option<u64>,
    only: Option<(Name, Name)>,
}

impl Event {
    /// Creates an event with this name and the payload `null`.
    pub fn new(name: impl Into<Name>) -> Self {
        Event {
            name: name.into(),
            payload: Ok(Value::Null),
            source: None,
            id: None,
            subject: None,
            time: None,
            key: None,
            ttl_ms: None,
            only: None,
        }
    }

    /// Sets the payload.
    #[must_use]
    pub fn with<T: Serialize + ?Sized>(mut self, data: &T) -> Self {
        self.payload = serde_json::to_value(data).map_err(|error| error.to_string());
        self
    }

    /// Sets the source. Events with the same source and id are duplicates: only the first is accepted.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the id, which is unique within the source. Default: a new id, so that the event is never a duplicate.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the CloudEvents `subject`.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Sets the time at which the event happened.
    #[must_use]
    pub fn at(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the correlation key, for waits that have no correlation expression. Default: the value of the event type's
    /// `correlation`.
    #[must_use]
    pub fn key<T: Serialize + ?Sized>(mut self, key: &T) -> Self {
        self.key = serde_json::to_value(key).ok();
        self
    }

    /// Sets the time for which later waits can take the event.
    #[must_use]
    pub fn ttl(mut self, time: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the source and the id if they are not set yet.
    pub(crate) fn or(mut self, source: impl FnOnce() -> String, id: impl FnOnce() -> String) -> Self {
        self.source = Some(self.source.unwrap_or_else(source));
        self.id = Some(self.id.unwrap_or_else(id));
        self
    }

    /// Restricts the event to one trigger of one workflow.
    pub(crate) fn only(mut self, workflow: Name, trigger: Name) -> Self {
        self.only = Some((workflow, trigger));
        self
    }
}

/// The result of emitting an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Emitted {
    /// Id of the event. It is the id of the run that delivers it.
    pub event: RunId,
    /// `false` if an event with the same source and id had been accepted before.
    pub is_new: bool,
}

/// An accepted event as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredEvent {
    pub name: Name,
    pub source: String,
    /// Id of the event, unique within its source.
    pub id: String,
    /// CloudEvents `subject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Time at which the event happened, if its sender has set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Correlation key, for waits that have no correlation expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// Payload of the event.
    pub data: Value,
    pub accepted: Timestamp,
    /// Expiry time. A wait that opens later cannot take the event.
    pub until: Timestamp,
    /// Workflow and id of the only trigger that the event is for. `None`: it is for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<(Name, Name)>,
}

impl StoredEvent {
    /// Returns the metadata that expressions of triggers see in addition to the payload.
    pub(crate) fn meta(&self) -> Value {
        let StoredEvent { name, source, id, subject, time, key, accepted, .. } = self;
        json!({
            "name": name, "source": source, "id": id, "subject": subject, "time": time, "key": key,
            "accepted": accepted,
        })
    }
}

impl Engine {
    /// Accepts an event, once per source and id. It is delivered afterwards, also if this process crashes.
    pub async fn emit(&self, event: Event) -> Result<Emitted, EngineError> {
        self.permit(Permission::Manage)?;
        let start = self.inner.prepare_start(self.scope, &event).await?;
        let started = self.inner.start(self.scope, &start, None).await?;
        let emitted = Emitted { event: started.run.id(), is_new: started.is_new };
        if !emitted.is_new
            && let Err(error) = self.count_duplicate(emitted.event).await
        {
            // The event is already accepted. A failed count is no reason for the sender to retry.
            tracing::warn!(event = %emitted.event, %error, "a duplicate of an event could not be counted");
        }
        Ok(emitted)
    }

    /// Returns the workflows that have triggers, in the version that new runs use, as a single page. See
    /// [`Definition::triggers`]. The page's `bad` names the workflows that cannot be read.
    pub async fn triggered(&self) -> Result<Page<Definition>, EngineError> {
        self.permit(Permission::View)?;
        Ok(self.inner.triggered(self.scope).await?.page())
    }

    /// Counts a duplicate of an event.
    async fn count_duplicate(&self, event: RunId) -> Result<(), EngineError> {
        let key = duplicates(event);
        let by = CellOp::Increment { by: 1.into() };
        let write = CellWrite { key, op: by, expect: Precondition::Anything, initial: None, by: None };
        self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        Ok(())
    }
}

/// Returns the key of the cell that counts duplicates of an event. It is deleted with the event.
pub(crate) fn duplicates(event: RunId) -> CellKey {
    CellKey { space: Space::Execution, owner: event.to_string(), key: DUPLICATES.to_owned() }
}

impl Inner {
    /// Returns the workflows that have triggers: active versions of the tenant's catalogue, and registered workflows
    /// that the catalogue does not have.
    pub(crate) async fn triggered(&self, scope: TenantScope) -> Result<ReadWorkflows, EngineError> {
        let mut found = self.active(scope).await?;
        for brought in self.registry.triggered() {
            if !self.is_listed(scope, brought.definition.name()).await? {
                found.items.push(brought);
            }
        }
        found.items.retain(|workflow| !workflow.definition.triggers().is_empty());
        Ok(found)
    }

    /// Validates an event and builds the start of the run that delivers it. It writes nothing.
    pub(crate) async fn prepare_start(
        &self,
        scope: TenantScope,
        event: &Event,
    ) -> Result<Start, EngineError> {
        let wrong = |why: String| EngineError::Invalid(format!("event `{}`: {why}", event.name));
        let data = event
            .payload
            .clone()
            .map_err(|why| wrong(format!("the payload cannot be serialized as JSON: {why}")))?;
        self.limits().payload_bytes("the event", json_bytes(&data))?;
        self.limits().nesting("the event", &data)?;
        self.limits().name_chars("the event's name", event.name.chars().count())?;
        let id = event.id.clone().unwrap_or_else(|| self.host.ids.next().to_string());
        let source = event.source.clone().unwrap_or_else(|| NOWHERE.to_owned());
        let texts = [("name", event.name.as_str()), ("source", &source), ("id", &id)];
        for (what, text) in texts.into_iter().chain(event.subject.as_deref().map(|text| ("subject", text))) {
            if text.is_empty() || text.chars().count() > MAX_CHARS || text.chars().any(char::is_control) {
                let why =
                    format!("its {what} must have 1 to {MAX_CHARS} characters and no control characters");
                return Err(wrong(why));
            }
        }
        let known = self.event_name(scope, &event.name).await?;
        let key = known.event_type()?.checked(&data, event.key.clone()).map_err(wrong)?;
        let now = self.host.now();
        let lifetime = event.ttl_ms.unwrap_or(self.options.event_ttl_ms);
        let kept = StoredEvent {
            name: event.name.clone(),
            source,
            id,
            subject: event.subject.clone(),
            time: event.time,
            key,
            data,
            accepted: now,
            until: now.plus_ms(lifetime),
            only: event.only.clone(),
        };
        let columns = known.columns(&kept);
        let once = format!("{WORKFLOW}:{}\u{1f}{}", kept.source, kept.id);
        let state = deliver::Delivery::new(kept);
        Ok(Start::own(WORKFLOW, once).input(&state).ignore_input().shadow_columns(columns))
    }
}

/// Registers the workflow and the action that deliver events.
pub(crate) fn equip(builder: Builder) -> Builder {
    deliver::equip(builder)
}
