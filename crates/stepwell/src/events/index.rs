//! The index by which waits find events: shadow columns of the runs that deliver events.
//!
//! A wait has a correlation expression and the value that it must have for a matching event. The expressions in use for
//! events of one name are stored in a list that only grows (a cell). An accepted event has a column for each expression
//! in the list, with the hash of its value, and a column with the number of expressions it has columns for.
//!
//! A process may use an outdated list, so that an event has fewer columns. A wait with one of the missing expressions
//! finds such events by their number of columns, evaluates the expression on the events themselves and completes their
//! columns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use stepwell_core::expr::{Budget, Expr, Roots};
use stepwell_core::graph::AwaitedEvent;
use stepwell_core::shadow::ShadowValue;
use stepwell_core::topic::topic;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{
    BadRow, Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Cleanup, CleanupKind, Precondition,
    Record, RecordQuery, RefillColumn, RunFilter, RunQuery, ShadowFilter, ShadowRefill, ShadowWrite, Space,
    StoreError, TenantId, TenantScope, Ttl, ValueType,
};

use super::deliver::Delivery;
use super::kinds::{Read, described};
use super::{StoredEvent, WORKFLOW};
use crate::data::Changes;
use crate::data::DataError;
use crate::data::kv::{one, whole_or_bad};
use crate::engine::Inner;
use crate::error::EngineError;

/// Time in milliseconds for which the entry of a name is cached.
const FRESH_MS: u64 = 1_000;
/// Maximum number of cached names.
const MAX_NAMES: usize = 10_000;
/// Maximum number of indexed correlation expressions for events of one name, in all workflows.
const MAX_EXPRESSIONS: usize = 100;
/// Page size for reading events.
const READ_AT_ONCE: u32 = 200;
/// Maximum number of attempts at adding to the list while other processes change it.
const TRIES: u32 = 20;
/// Column with the name of an event and the number of expressions that it has columns for.
const NAME: &str = "name";
/// Column with the event's own correlation key.
const OWN: &str = "own";

/// The type and the correlation expressions of events of one name.
#[derive(Debug)]
pub(crate) struct Known {
    /// The event type, or the row that it cannot be read from. Waits for the events do not need it.
    kind: Result<Read, BadRow>,
    /// Correlation expressions for events of this name, in the order in which they were added.
    expressions: Vec<(String, Option<Expr>)>,
    /// Revision of the cell with the list.
    revision: u64,
    /// The list is unreadable. Until it is rebuilt, events get no columns and waits read every event.
    is_lost: bool,
}

/// This process's cache of event names, each with the time it was read.
pub(crate) type Names = Mutex<CachedNames>;

type CachedNames = BTreeMap<(TenantId, Name), (Timestamp, Arc<Known>)>;

impl Known {
    /// Returns the event type. While it is unreadable, events of this name are refused: accepting one unchecked would
    /// be final, because its sender could not send it again.
    pub(crate) fn event_type(&self) -> Result<&Read, EngineError> {
        self.kind.as_ref().map_err(|row| StoreError::Bad(row.clone()).into())
    }

    /// Returns the shadow columns of an event.
    pub(crate) fn columns(&self, event: &StoredEvent) -> Vec<ShadowWrite> {
        self.shown(event).into_iter().map(|(name, value)| column(name, value)).collect()
    }

    fn shown(&self, event: &StoredEvent) -> Vec<(String, String)> {
        // No wait can take an event that is for one trigger.
        if event.only.is_some() {
            return vec![(NAME.to_owned(), format!("{}\u{1f}", event.name))];
        }
        let mut columns = vec![(NAME.to_owned(), counted(&event.name, self.expressions.len()))];
        if let Some(key) = &event.key {
            columns.push((OWN.to_owned(), topic(&event.name, None, Some(key))));
        }
        for (index, (source, expr)) in self.expressions.iter().enumerate() {
            let says = expr.as_ref().and_then(|expr| says(expr, &event.data));
            if let Some(says) = says {
                columns.push((entry(index), topic(&event.name, Some(source), Some(&says))));
            }
        }
        columns
    }

    fn position(&self, source: &str) -> Option<usize> {
        self.expressions.iter().position(|(known, _)| known == source)
    }
}

/// Evaluates a correlation expression on the payload of an event.
pub(super) fn says(expr: &Expr, data: &Value) -> Option<Value> {
    expr.eval(&Roots(&[("event", data)]), &mut Budget::default()).ok().flatten()
}

fn counted(name: &str, entries: usize) -> String {
    format!("{name}\u{1f}{entries}")
}

fn entry(index: usize) -> String {
    format!("asked{index}")
}

pub(super) fn column(name: String, value: String) -> ShadowWrite {
    ShadowWrite { workflow: WORKFLOW.into(), name: name.into(), value: Some(ShadowValue::Text(value)) }
}

fn list_of(name: &str) -> CellKey {
    CellKey { space: Space::Workflow, owner: WORKFLOW.to_owned(), key: format!("asks/{name}") }
}

impl Inner {
    fn lock_names(&self) -> MutexGuard<'_, CachedNames> {
        self.event_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_event_name(&self, scope: TenantScope, name: &Name) {
        self.lock_names().remove(&(scope.tenant(), name.clone()));
    }

    /// Returns the entry of an event name, at most a second old.
    pub(crate) async fn event_name(
        &self,
        scope: TenantScope,
        name: &Name,
    ) -> Result<Arc<Known>, EngineError> {
        let now = self.host.now();
        let at = (scope.tenant(), name.clone());
        if let Some((since, known)) = self.lock_names().get(&at)
            && now.ms_since(*since) < FRESH_MS
        {
            return Ok(known.clone());
        }
        let kind = match self.registry.events.get(name) {
            Some(kind) => Ok(kind.read()?),
            None => {
                let cell = whole_or_bad(&*self.store, scope, one(described(name), now, false)).await?;
                cell.and_then(stored_type)
            }
        };
        let list = whole_or_bad(&*self.store, scope, one(list_of(name), now, true)).await?;
        let revision = list.as_ref().ok().and_then(Option::as_ref).map_or(0, |cell| cell.revision);
        let expressions = list.and_then(|cell| match cell {
            Some(cell) => entries(cell.value.as_ref()).map_err(|why| cell.key.bad(why)),
            None => Ok(Vec::new()),
        });
        for row in [kind.as_ref().err(), expressions.as_ref().err()].into_iter().flatten() {
            tracing::error!(tenant = %scope.tenant(), %row, "stored data of an event name is unreadable");
        }
        let is_lost = expressions.is_err();
        let known = Arc::new(Known { kind, expressions: expressions.unwrap_or_default(), revision, is_lost });
        let mut names = self.lock_names();
        // Senders choose the names, so the size of the cache must be bounded.
        if names.len() >= MAX_NAMES {
            names.retain(|_, (since, _)| now.ms_since(*since) < FRESH_MS);
        }
        names.insert(at, (now, known.clone()));
        drop(names);
        Ok(known)
    }

    /// Returns the position of an expression in the list of a name, and adds it if necessary. `None` if the list is
    /// full.
    async fn expression_position(
        &self,
        scope: TenantScope,
        name: &Name,
        source: &str,
    ) -> Result<Option<(usize, Arc<Known>)>, EngineError> {
        for _ in 0..TRIES {
            let known = self.event_name(scope, name).await?;
            if known.is_lost {
                self.rebuild_list(scope, name).await?;
                continue;
            }
            if let Some(index) = known.position(source) {
                return Ok(Some((index, known)));
            }
            if known.expressions.len() >= MAX_EXPRESSIONS {
                return Ok(None);
            }
            let mut list: Vec<_> = known.expressions.iter().map(|(source, _)| source.as_str()).collect();
            list.push(source);
            let op = CellOp::Set { value: json!(list), value_type: ValueType::Json, ttl: Ttl::Forever };
            let expect = Precondition::Exactly(known.revision);
            let write = CellWrite { key: list_of(name), op, expect, initial: None, by: None };
            let written = self.write(scope, Changes::new().cell(Ok(write)), None).await;
            self.forget_event_name(scope, name);
            match written {
                Ok(_) | Err(DataError::Conflict { .. }) => {}
                // The cell has reached its maximum size, so the expression cannot be indexed: all events are read.
                Err(DataError::Invalid(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Err(EngineError::Invalid(format!(
            "the correlation expressions of event `{name}` were changed concurrently {TRIES} times: try again later"
        )))
    }

    /// Replaces an unreadable list of expressions. The new list has empty entries at the positions for which accepted
    /// events may have columns. So each expression gets a new position, and finds these events by their number of
    /// columns.
    async fn rebuild_list(&self, scope: TenantScope, name: &Name) -> Result<(), EngineError> {
        let mut positions = 0;
        for entries in (1..=MAX_EXPRESSIONS).rev() {
            let shadows = vec![ShadowFilter::equals(NAME, ShadowValue::Text(counted(name, entries)))];
            let query = RunQuery {
                filter: RunFilter { workflow: Some(WORKFLOW.into()), shadows, ..RunFilter::default() },
                limit: 1,
                ..RunQuery::default()
            };
            let page = self.store.runs(scope, query).await?;
            if !page.items.is_empty() || !page.bad.is_empty() {
                positions = entries;
                break;
            }
        }
        let value = json!(vec![""; positions]);
        let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever };
        let expect = Precondition::Anything;
        let write = CellWrite { key: list_of(name), op, expect, initial: None, by: None };
        self.write(scope, Changes::new().cell(Ok(write)), None).await?;
        self.forget_event_name(scope, name);
        tracing::warn!(event = %name, "the unreadable list of correlation expressions was rebuilt");
        Ok(())
    }

    /// Rebuilds all unreadable lists of expressions of a tenant.
    pub(crate) async fn repair_event_index(&self, scope: TenantScope) -> Result<(), EngineError> {
        let CellKey { space, owner, key: prefix } = list_of("");
        let (filter, now) = (CellFilter::Prefix(prefix.clone()), self.host.now());
        let mut cursor = None;
        loop {
            let (owner, filter) = (owner.clone(), filter.clone());
            let query =
                CellQuery { space, owner, filter, now, include_deleted: false, limit: READ_AT_ONCE, cursor };
            let page = self.store.cells(scope, query).await?;
            let lost = page.items.iter().filter(|cell| entries(cell.value.as_ref()).is_err());
            let lost = lost.map(|cell| cell.key.key.clone());
            let bad = page.bad.iter().filter_map(|row| Some(CellKey::from_address(&row.key)?.key));
            for key in lost.chain(bad).collect::<Vec<_>>() {
                if let Some(name) = key.strip_prefix(&prefix) {
                    self.rebuild_list(scope, &name.into()).await?;
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Returns accepted events that match the wait, oldest first. The wait's filter is not evaluated here.
    pub(super) async fn earlier_events(
        &self,
        scope: TenantScope,
        wait: &AwaitedEvent,
        since: Timestamp,
    ) -> Result<Vec<(RunId, StoredEvent)>, EngineError> {
        let mut found = match (&wait.of, &wait.key) {
            (Some(of), Some(key)) => self.earlier_events_by_key(scope, &wait.name, of, key, since).await?,
            (None, Some(key)) => {
                let value = topic(&wait.name, None, Some(key));
                self.events_with(scope, OWN, &value, since).await?
            }
            (_, None) => {
                // No event can have more columns than the current list has entries.
                self.forget_event_name(scope, &wait.name);
                let known = self.event_name(scope, &wait.name).await?;
                let mut found = Vec::new();
                for entries in 0..=known.expressions.len() {
                    found.extend(self.events_with(scope, NAME, &counted(&wait.name, entries), since).await?);
                }
                found
            }
        };
        found.sort_by_key(|(run, event)| (event.accepted, *run));
        found.dedup_by_key(|(run, _)| *run);
        Ok(found)
    }

    async fn earlier_events_by_key(
        &self,
        scope: TenantScope,
        name: &Name,
        of: &str,
        key: &Value,
        since: Timestamp,
    ) -> Result<Vec<(RunId, StoredEvent)>, EngineError> {
        let Some((index, known)) = self.expression_position(scope, name, of).await? else {
            // The expression is not indexed, so read every event.
            let mut found = Vec::new();
            for entries in 0..=MAX_EXPRESSIONS {
                found.extend(self.events_with(scope, NAME, &counted(name, entries), since).await?);
            }
            return Ok(filter_by_correlation(found, name, of, key));
        };
        let mut found = Vec::new();
        for entries in 0..=index {
            let older = self.events_with(scope, NAME, &counted(name, entries), since).await?;
            if let Err(error) = self.complete(scope, &known, &older).await {
                tracing::warn!(event = %name, %error, "the index columns of events could not be completed");
            }
            found.extend(filter_by_correlation(older, name, of, key));
        }
        found.extend(self.events_with(scope, &entry(index), &topic(name, Some(of), Some(key)), since).await?);
        Ok(found)
    }

    /// Returns the events with this value in a column that had not expired at `since`.
    async fn events_with(
        &self,
        scope: TenantScope,
        column: &str,
        value: &str,
        since: Timestamp,
    ) -> Result<Vec<(RunId, StoredEvent)>, EngineError> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let shadows = vec![ShadowFilter::equals(column, value)];
            let workflow = Some(WORKFLOW.into());
            let query = RunQuery {
                filter: RunFilter { workflow, shadows, ..RunFilter::default() },
                limit: READ_AT_ONCE,
                cursor,
                ..RunQuery::default()
            };
            let page = self.store.runs(scope, query).await?;
            for row in &page.bad {
                tracing::error!(tenant = %scope.tenant(), %row, "an event is unreadable");
            }
            for summary in &page.items {
                match self.event_of(scope, summary.run).await {
                    Ok(Some(Delivery { event, .. })) if event.until > since && event.only.is_none() => {
                        found.push((summary.run, event));
                    }
                    Ok(_) => {}
                    Err(EngineError::Store(error)) if !matches!(error, StoreError::Bad(_)) => {
                        return Err(error.into());
                    }
                    // Skip an unreadable event, so that it does not block the wait.
                    Err(error) => tracing::error!(event = %summary.run, %error, "an event is unreadable"),
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Loads an event from its run. `None` if the run does not exist or is not an event.
    pub(crate) async fn event_of(
        &self,
        scope: TenantScope,
        run: RunId,
    ) -> Result<Option<Delivery>, EngineError> {
        let loaded_run = match self.load(scope, run).await {
            Ok(loaded_run) => loaded_run,
            Err(EngineError::NoRun(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if loaded_run.definition().name().as_str() != WORKFLOW {
            return Ok(None);
        }
        Delivery::read(&loaded_run.snapshot).map(Some)
    }

    /// Adds missing columns to events that were accepted before an expression was added to the list.
    async fn complete(
        &self,
        scope: TenantScope,
        known: &Known,
        events: &[(RunId, StoredEvent)],
    ) -> Result<(), EngineError> {
        let mut refills = Vec::new();
        for (run, event) in events {
            let Some(loaded) = self.store.load(scope, *run).await? else { continue };
            let shown: BTreeMap<String, String> = known.shown(event).into_iter().collect();
            let held = self.store.records(scope, RecordQuery::Shadows(*run)).await?.items;
            let held = held.into_iter().filter_map(|record| match record {
                Record::Shadow(row) => Some((row.name, RefillColumn::Set(row.value))),
                _ => None,
            });
            let mut columns: Vec<_> = held.filter(|(name, _)| !shown.contains_key(name.as_str())).collect();
            let new = shown.into_iter();
            columns
                .extend(new.map(|(name, value)| (name.into(), RefillColumn::Set(ShadowValue::Text(value)))));
            refills.push(ShadowRefill {
                run: *run,
                version: loaded.head.version,
                workflow: WORKFLOW.into(),
                columns,
            });
        }
        if !refills.is_empty() {
            let cleanup = Cleanup { now: self.host.now(), limit: 1, what: CleanupKind::Shadows(refills) };
            self.store.cleanup(scope, cleanup).await?;
        }
        Ok(())
    }
}

/// Filters events by the value of a correlation expression.
fn filter_by_correlation(
    events: Vec<(RunId, StoredEvent)>,
    name: &Name,
    of: &str,
    key: &Value,
) -> Vec<(RunId, StoredEvent)> {
    let Ok(expr) = Expr::parse(of) else { return Vec::new() };
    let wanted = topic(name, Some(of), Some(key));
    let is_it = |event: &StoredEvent| {
        says(&expr, &event.data).is_some_and(|says| topic(name, Some(of), Some(&says)) == wanted)
    };
    events.into_iter().filter(|(_, event)| is_it(event)).collect()
}

/// Parses the list of expressions. An invalid entry keeps its position.
fn entries(value: Option<&Value>) -> Result<Vec<(String, Option<Expr>)>, String> {
    let list = value.map(Vec::<String>::deserialize).transpose();
    let entry = |source: String| {
        let expr = Expr::parse(&source).ok();
        (source, expr)
    };
    Ok(list.map_err(|error| error.to_string())?.unwrap_or_default().into_iter().map(entry).collect())
}

/// Compiles the stored type of an event name. Without one, everything is accepted.
fn stored_type(cell: Option<Cell>) -> Result<Read, BadRow> {
    let Some((key, value)) = cell.and_then(|cell| Some((cell.key, cell.value?))) else {
        return Ok(Read::default());
    };
    let kind = super::EventType::deserialize(&value).map_err(|error| key.bad(error.to_string()))?;
    kind.read().map_err(|error| key.bad(error.to_string()))
}

/// Checks the value of a cell with a list of expressions or an event type. Returns the reason if it is unreadable.
pub(crate) fn check_cell(key: &str, value: &Value) -> Result<(), String> {
    match key {
        key if key.starts_with("asks/") => entries(Some(value)).map(drop),
        key if key.starts_with("type/") => {
            super::EventType::deserialize(value).map(drop).map_err(|error| error.to_string())
        }
        _ => Ok(()),
    }
}
