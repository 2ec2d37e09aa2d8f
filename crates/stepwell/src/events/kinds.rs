//! Event types: the schema and the correlation key of events of one name.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::Name;
use stepwell_core::expr::{Budget, Expr, Roots};
use stepwell_core::schema::Schema;
use stepwell_store::{
    Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Page, Precondition, Space, Ttl, ValueType,
};

use super::WORKFLOW;
use crate::actor::Permission;
use crate::data::Changes;
use crate::engine::{Builder, Engine};
use crate::error::EngineError;

/// An event type: the common schema of events with the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventType {
    /// Name of the events.
    pub name: Name,
    /// Description for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// JSON Schema of the payload. Events that do not match it are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Correlation key: an expression on `event`, the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

impl EventType {
    /// Creates a type for events of this name, without a schema.
    pub fn new(name: impl Into<Name>) -> Self {
        EventType { name: name.into(), about: String::new(), schema: None, correlation: None }
    }

    /// Sets the description for people.
    #[must_use]
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    /// Sets the JSON Schema of the payload.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Sets the correlation key: an expression on `event`, the payload.
    #[must_use]
    pub fn correlation(mut self, expr: impl Into<String>) -> Self {
        self.correlation = Some(expr.into());
        self
    }

    /// Compiles the schema and the expression.
    pub(crate) fn read(&self) -> Result<Read, EngineError> {
        let wrong = |why: String| EngineError::Invalid(format!("event type `{}`: {why}", self.name));
        if self.name.is_empty() || self.name.chars().any(char::is_control) {
            return Err(wrong("the name must not be empty or contain control characters".to_owned()));
        }
        let schema = self.schema.as_ref().map(Schema::compile).transpose().map_err(|problems| {
            let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
            wrong(format!("its schema cannot be used: {}", all.join("; ")))
        })?;
        let correlation = self.correlation.as_deref().map(Expr::parse).transpose();
        let correlation =
            correlation.map_err(|error| wrong(format!("its correlation expression is invalid: {error}")))?;
        Ok(Read { schema, correlation })
    }
}

/// An event type with its compiled schema and expression.
#[derive(Debug, Clone, Default)]
pub(crate) struct Read {
    schema: Option<Schema>,
    correlation: Option<Expr>,
}

impl Read {
    /// Checks a payload against the schema and returns the correlation key. A key that the event names itself takes
    /// precedence.
    pub(crate) fn checked(&self, data: &Value, given: Option<Value>) -> Result<Option<Value>, String> {
        if let Some(schema) = &self.schema {
            let violations = schema.check(data);
            if !violations.is_empty() {
                let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
                return Err(format!(
                    "the payload does not match the schema of the event type: {}",
                    all.join("; ")
                ));
            }
        }
        let (None, Some(expr)) = (&given, &self.correlation) else { return Ok(given) };
        let found = expr.eval(&Roots(&[("event", data)]), &mut Budget::default());
        found.map_err(|error| format!("the correlation key cannot be computed: {error}"))
    }
}

/// Returns the key of the cell with an event type.
pub(super) fn described(name: &str) -> CellKey {
    CellKey { space: Space::Workflow, owner: WORKFLOW.to_owned(), key: format!("type/{name}") }
}

impl Builder {
    /// Registers an event type in this process, for every tenant.
    #[must_use]
    pub fn event_type(mut self, kind: EventType) -> Self {
        self.registry.events.insert(kind.name.clone(), kind);
        self
    }
}

impl Engine {
    /// Stores an event type for this tenant, in every process. A type that a process has registered takes precedence
    /// there.
    pub async fn put_event_type(&self, kind: EventType) -> Result<(), EngineError> {
        self.permit(Permission::Publish)?;
        kind.read()?;
        let value = serde_json::to_value(&kind).expect("a type of events is plain data");
        let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever };
        let key = described(&kind.name);
        let write = CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None };
        self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        self.inner.forget_event_name(self.scope, &kind.name);
        Ok(())
    }

    /// Deletes a stored event type of the tenant. Returns `false` if there was none.
    pub async fn remove_event_type(&self, name: &str) -> Result<bool, EngineError> {
        self.permit(Permission::Publish)?;
        let (key, op) = (described(name), CellOp::Delete);
        let write = CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None };
        let done = self.inner.write(self.scope, Changes::new().cell(Ok(write)), self.actor_id()).await?;
        self.inner.forget_event_name(self.scope, &name.into());
        Ok(done.value.first().is_some_and(|result| result.existed))
    }

    /// Lists event types by name, one page at a time. The types that this process has registered precede the first
    /// page.
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
        let query = CellQuery { space, owner, filter, now, include_deleted: false, limit, cursor };
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

    /// Returns the event type of a name, if there is one.
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
    EngineError::Invalid(format!("event type `{name}` is unreadable: {error}"))
}
