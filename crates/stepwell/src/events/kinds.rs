//! Names of events that somebody has described: what they bring, and what they are about.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::Name;
use stepwell_core::expr::{Budget, Expr, Roots};
use stepwell_core::schema::Schema;
use stepwell_store::{
    Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Expect, Page, Space, Ttl, ValueType,
};

use super::WORKFLOW;
use crate::actor::Permission;
use crate::data::Changes;
use crate::engine::{Builder, Engine};
use crate::error::EngineError;

/// A name of events that somebody has described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventType {
    /// The name.
    pub name: Name,
    /// What has happened, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// JSON Schema of what such an event brings: one that does not fit is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// What such an event is about: an expression on `event`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

impl EventType {
    /// Events of this name.
    pub fn new(name: impl Into<Name>) -> Self {
        EventType { name: name.into(), about: String::new(), schema: None, correlation: None }
    }

    /// What has happened, for people.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// JSON Schema of what such an event brings.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    /// What such an event is about: an expression on `event`.
    #[must_use]
    pub fn correlation(mut self, expr: impl Into<String>) -> Self {
        self.correlation = Some(expr.into());
        self
    }

    /// The same, ready to be asked.
    pub(crate) fn read(&self) -> Result<Read, EngineError> {
        let wrong = |why: String| EngineError::Invalid(format!("event type `{}`: {why}", self.name));
        if self.name.is_empty() || self.name.chars().any(char::is_control) {
            return Err(wrong("a name is not empty and has no control characters".to_owned()));
        }
        let schema = self.schema.as_ref().map(Schema::compile).transpose().map_err(|problems| {
            let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
            wrong(format!("its schema cannot be used: {}", all.join("; ")))
        })?;
        let correlation = self.correlation.as_deref().map(Expr::parse).transpose();
        let correlation = correlation.map_err(|error| wrong(format!("its correlation: {error}")))?;
        Ok(Read { schema, correlation })
    }
}

/// A type of events, ready to be asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Read {
    schema: Option<Schema>,
    correlation: Option<Expr>,
}

impl Read {
    /// What an event that brings this is about; refused if it brings something else.
    pub(crate) fn checked(&self, data: &Value, given: Option<Value>) -> Result<Option<Value>, String> {
        if let Some(schema) = &self.schema {
            let misfits = schema.check(data);
            if !misfits.is_empty() {
                let all: Vec<_> = misfits.iter().map(ToString::to_string).collect();
                return Err(format!("what it brings does not fit its type: {}", all.join("; ")));
            }
        }
        let (None, Some(expr)) = (&given, &self.correlation) else { return Ok(given) };
        let found = expr.eval(&Roots(&[("event", data)]), &mut Budget::default());
        found.map_err(|error| format!("what it is about cannot be told: {error}"))
    }
}

/// Where a name of events is described.
pub(super) fn described(name: &str) -> CellKey {
    CellKey { space: Space::Workflow, owner: WORKFLOW.to_owned(), key: format!("type/{name}") }
}

impl Builder {
    /// Describes a name of events, in this process and for every tenant.
    #[must_use]
    pub fn event_type(mut self, kind: EventType) -> Self {
        self.registry.events.insert(kind.name.clone(), kind);
        self
    }
}

impl Engine {
    /// Describes a name of events, for this tenant and for every process; what a process has described itself goes before.
    pub async fn put_event_type(&self, kind: EventType) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        kind.read()?;
        let value = serde_json::to_value(&kind).expect("a type of events is plain data");
        let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever };
        let key = described(&kind.name);
        let write = CellWrite { key, op, expect: Expect::Anything, initial: None, by: None };
        self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        self.inner.forget_event_name(self.scope, &kind.name);
        Ok(())
    }

    /// Takes a tenant's description of a name of events away; says whether there was one.
    pub async fn remove_event_type(&self, name: &str) -> Result<bool, EngineError> {
        self.permit(Permission::Publish)?;
        let (key, op) = (described(name), CellOp::Delete);
        let write = CellWrite { key, op, expect: Expect::Anything, initial: None, by: None };
        let done = self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        self.inner.forget_event_name(self.scope, &name.into());
        Ok(done.came_to.first().is_some_and(|result| result.existed))
    }

    /// A part of the names of events that are described, in their order; those that this process describes itself are in
    /// front of the first part.
    pub async fn event_types(
        &self,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<EventType>, EngineError> {
        self.permit(Permission::View)?;
        let own = &self.inner.registry.events;
        let mut items: Vec<_> = own.values().filter(|_| cursor.is_none()).cloned().collect();
        let CellKey { space, owner, key } = described("");
        let (filter, now) = (CellFilter::Prefix(key), self.now());
        let query = CellQuery { space, owner, filter, now, with_dead: false, limit, cursor };
        let mut page = self.store().cells(self.scope, query).await?;
        for cell in std::mem::take(&mut page.items) {
            let key = cell.key;
            match cell.value.map(serde_json::from_value::<EventType>).transpose() {
                Ok(read) => items.extend(read.filter(|kind| !own.contains_key(&kind.name))),
                Err(error) => page.bad.push(key.bad(error.to_string())),
            }
        }
        Ok(page.over(|_: Vec<Cell>| items))
    }

    /// How a name of events is described, if it is.
    pub async fn event_type(&self, name: &str) -> Result<Option<EventType>, EngineError> {
        self.permit(Permission::View)?;
        if let Some(kind) = self.inner.registry.events.get(name) {
            return Ok(Some(kind.clone()));
        }
        let query = crate::data::kv::one(described(name), self.now(), false);
        let cell = self.store().cells(self.scope, query).await?.items.pop();
        let kind = cell.and_then(|cell| cell.value).map(serde_json::from_value).transpose();
        kind.map_err(|error| unreadable(name, &error))
    }
}

fn unreadable(name: &str, error: &serde_json::Error) -> EngineError {
    EngineError::Invalid(format!("event type `{name}` cannot be read: {error}"))
}
