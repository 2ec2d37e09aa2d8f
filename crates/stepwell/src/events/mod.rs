//! Events: something has happened that may concern many. An event is accepted once, in one commit; then it starts the workflows
//! that it is a trigger of and wakes the runs that wait for it.
//!
//! An event that was accepted is itself a durable run, of a workflow that every engine has: its data is the event, its one
//! action delivers it, a bounded number of runs in each commit. So whoever's process dies, the delivery goes on where it was,
//! and there is nothing else to keep: what it came to is in its state, and the events of a name are found by its shadow
//! columns (`index.rs`).
//!
//! A wait that opens later asks for events that have been accepted before (`ask.rs`). The wait is committed first and asks then;
//! an event is accepted first and looks for waits then. So whichever comes second finds the other.

pub(crate) mod ask;
pub mod cloud;
mod deliver;
pub mod hook;
pub(crate) mod index;
mod kinds;
mod log;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::limits::json_bytes;
use stepwell_core::{Definition, Name, RunId, Timestamp};
use stepwell_store::{CellKey, CellOp, CellWrite, Expect, Space, TenantScope};

use crate::actor::Permission;
use crate::data::Changes;
use crate::engine::{Builder, Engine, Inner};
use crate::error::EngineError;
use crate::registry::Workflow;
use crate::start::Start;

pub use cloud::{CloudError, CloudEvents};
pub use kinds::EventType;
pub use log::{EventView, Fired, Outcome, TriggerEntry, TriggerLog};

/// The workflow that events are runs of. Names that begin with `stepwell.` are the engine's.
pub const WORKFLOW: &str = "stepwell.event";

/// How long an event waits for runs that wait for it, unless it or the options say otherwise: a day.
pub const DEFAULT_EVENTS_KEPT_MS: u64 = 24 * 3_600_000;

/// So many characters a source, an id, a subject or a name has at most.
const MAX_CHARS: usize = 256;
/// Where events come from that do not say so.
const NOWHERE: &str = "stepwell";
/// How often an event has come again.
const DUPLICATES: &str = "duplicates";

/// Something that has happened.
#[derive(Debug, Clone)]
pub struct Event {
    pub(crate) name: Name,
    brings: Result<Value, String>,
    source: Option<String>,
    id: Option<String>,
    subject: Option<String>,
    time: Option<Timestamp>,
    key: Option<Value>,
    kept_ms: Option<u64>,
    only: Option<(Name, Name)>,
}

impl Event {
    /// An event of this name that brings nothing.
    pub fn new(name: impl Into<Name>) -> Self {
        Event {
            name: name.into(),
            brings: Ok(Value::Null),
            source: None,
            id: None,
            subject: None,
            time: None,
            key: None,
            kept_ms: None,
            only: None,
        }
    }

    /// What it brings.
    #[must_use]
    pub fn with<T: Serialize + ?Sized>(mut self, data: &T) -> Self {
        self.brings = serde_json::to_value(data).map_err(|error| error.to_string());
        self
    }

    /// Where it comes from. An event of the same source and id is the same event.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Its id at its source; without one it is a new event each time.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// What it is about, at its source.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// When it has happened.
    #[must_use]
    pub fn at(mut self, time: Timestamp) -> Self {
        self.time = Some(time);
        self
    }

    /// What it is about: waits that leave it to the event compare this. Without it what its type says counts.
    #[must_use]
    pub fn key<T: Serialize + ?Sized>(mut self, key: &T) -> Self {
        self.key = serde_json::to_value(key).ok();
        self
    }

    /// How long it waits for runs that come to wait for it.
    #[must_use]
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.kept_ms = Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The same, from this source and with this id if it has none of its own.
    pub(crate) fn or(mut self, source: impl FnOnce() -> String, id: impl FnOnce() -> String) -> Self {
        self.source = Some(self.source.unwrap_or_else(source));
        self.id = Some(self.id.unwrap_or_else(id));
        self
    }

    /// It concerns one trigger of one workflow and nobody else.
    pub(crate) fn only(mut self, workflow: Name, trigger: Name) -> Self {
        self.only = Some((workflow, trigger));
        self
    }
}

/// An event that was accepted, now or before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Emitted {
    /// The run that delivers it, by which it is found again.
    pub event: RunId,
    /// It was accepted just now; otherwise it had been before.
    pub is_new: bool,
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Its name.
    pub name: Name,
    /// Where it comes from.
    pub source: String,
    /// Its id there.
    pub id: String,
    /// What it is about there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// When it has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// What it is about, for waits that leave that to the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// What it brings.
    pub data: Value,
    /// When it was accepted.
    pub accepted: Timestamp,
    /// Until when it waits for runs that come to wait for it.
    pub until: Timestamp,
    /// The only trigger that it concerns: its workflow and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<(Name, Name)>,
}

impl Kept {
    /// What expressions of triggers see of it besides what it brings.
    pub(crate) fn meta(&self) -> Value {
        let Kept { name, source, id, subject, time, key, accepted, .. } = self;
        json!({
            "name": name, "source": source, "id": id, "subject": subject, "time": time, "key": key,
            "accepted": accepted,
        })
    }
}

impl Engine {
    /// Accepts an event: once for each source and id. What comes of it happens afterwards, also if this process dies.
    pub async fn emit(&self, event: Event) -> Result<Emitted, EngineError> {
        self.permit(Permission::Manage)?;
        let start = self.inner.accepting(self.scope, &event).await?;
        let started = self.inner.start(self.scope, &start, None).await?;
        let emitted = Emitted { event: started.run.id(), is_new: started.is_new };
        if !emitted.is_new
            && let Err(error) = self.came_again(emitted.event).await
        {
            // It was accepted before: that it is not counted is no reason to send it once more.
            tracing::warn!(event = %emitted.event, %error, "an event that came again was not counted");
        }
        Ok(emitted)
    }

    /// Workflows that something starts by itself, as they are started: `Definition::starters` says what does.
    pub async fn triggered(&self) -> Result<Vec<Definition>, EngineError> {
        self.permit(Permission::View)?;
        let triggered = self.inner.triggered(self.scope).await?;
        Ok(triggered.iter().map(|workflow| workflow.definition.clone()).collect())
    }

    /// Counts an event that has come again, with the event.
    async fn came_again(&self, event: RunId) -> Result<(), EngineError> {
        let key = duplicates(event);
        let by = CellOp::Increment { by: 1.into() };
        let write = CellWrite { key, op: by, expect: Expect::Anything, initial: None, by: None };
        self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        Ok(())
    }
}

/// The cell that says how often an event has come again; it goes with the event.
pub(crate) fn duplicates(event: RunId) -> CellKey {
    CellKey { space: Space::Execution, owner: event.to_string(), key: DUPLICATES.to_owned() }
}

impl Inner {
    /// Workflows that something starts by itself: the active versions of the tenant's catalogue, and those that this program
    /// brings along and of which the catalogue says nothing.
    pub(crate) async fn triggered(&self, scope: TenantScope) -> Result<Vec<Arc<Workflow>>, EngineError> {
        let mut found = self.active(scope).await?;
        for brought in self.registry.triggered() {
            if !self.is_listed(scope, brought.definition.name()).await? {
                found.push(brought);
            }
        }
        found.retain(|workflow| !workflow.definition.starters().is_empty());
        Ok(found)
    }

    /// The start of the run that delivers an event: nothing of it is written yet.
    pub(crate) async fn accepting(&self, scope: TenantScope, event: &Event) -> Result<Start, EngineError> {
        let wrong = |why: String| EngineError::Invalid(format!("event `{}`: {why}", event.name));
        let data =
            event.brings.clone().map_err(|why| wrong(format!("it cannot be written as JSON: {why}")))?;
        self.limits().payload_bytes("the event", json_bytes(&data))?;
        self.limits().nesting("the event", &data)?;
        self.limits().name_chars("the event's name", event.name.chars().count())?;
        let id = event.id.clone().unwrap_or_else(|| self.host.ids.next().to_string());
        let source = event.source.clone().unwrap_or_else(|| NOWHERE.to_owned());
        let texts = [("name", event.name.as_str()), ("source", &source), ("id", &id)];
        for (what, text) in texts.into_iter().chain(event.subject.as_deref().map(|text| ("subject", text))) {
            if text.is_empty() || text.chars().count() > MAX_CHARS || text.chars().any(char::is_control) {
                let why =
                    format!("its {what} has 1 to {MAX_CHARS} characters, none of them a control character");
                return Err(wrong(why));
            }
        }
        let known = self.event_name(scope, &event.name).await?;
        let key = known.checked(&data, event.key.clone()).map_err(wrong)?;
        let now = self.host.now();
        let lifetime = event.kept_ms.unwrap_or(self.options.events_kept_ms);
        let kept = Kept {
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
        Ok(Start::own(WORKFLOW, once).input(&state).whatever().shaded(columns))
    }
}

/// Every engine delivers events.
pub(crate) fn equip(builder: Builder) -> Builder {
    deliver::equip(builder)
}
