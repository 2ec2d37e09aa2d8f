//! How events are found by the waits that they concern: by shadow columns of the runs that they are.
//!
//! A wait asks something of an event, by an expression, and knows what it has to come to. What is asked of events of one name
//! is on record in a list that only grows (a cell). An event that is accepted has a column for each entry of the list, with
//! the hash of what that comes to, and one that says how many entries it knew. A process may know an old list: then the event
//! knows fewer entries, and whoever asks one of the others finds it by that, looks at the event itself and completes its
//! columns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use stepwell_core::expr::{Budget, Expr, Roots};
use stepwell_core::graph::AwaitedEvent;
use stepwell_core::shadow::ShadowValue;
use stepwell_core::topic::topic;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{
    CellKey, CellOp, CellWrite, Expect, Record, RecordQuery, Refill, Refilled, RunQuery, ShadowWrite, Space,
    StoreError, Sweep, SweepWhat, TenantId, TenantScope, Ttl, ValueType,
};

use super::deliver::Delivery;
use super::kinds::{Read, described};
use super::{Kept, WORKFLOW};
use crate::data::Changes;
use crate::data::DataError;
use crate::data::kv::one;
use crate::engine::Inner;
use crate::error::EngineError;

/// How long what is known of a name is not asked for again.
const FRESH_MS: u64 = 1_000;
/// So many names are known at a time.
const MAX_NAMES: usize = 10_000;
/// So much may be asked of events of one name, in all workflows.
const MAX_ASKED: usize = 100;
/// Events that are read in one go.
const READ_AT_ONCE: u32 = 200;
/// How often the list is written again because somebody else has.
const TRIES: u32 = 20;
/// The column with the name of an event, and how many entries of the list it knows.
const NAME: &str = "name";
/// The column with what an event is about by itself.
const OWN: &str = "own";

/// What is known of a name of events.
#[derive(Debug, Default)]
pub(crate) struct Known {
    kind: Read,
    /// What is asked of events of this name, in the order in which it was first.
    asks: Vec<(String, Option<Expr>)>,
    /// The revision of that list.
    revision: u64,
}

/// What this process knows of names of events, and since when.
pub(crate) type Names = Mutex<Held>;

type Held = BTreeMap<(TenantId, Name), (Timestamp, Arc<Known>)>;

impl Known {
    /// What an event that brings this is about; refused if it brings something else.
    pub(crate) fn checked(&self, data: &Value, given: Option<Value>) -> Result<Option<Value>, String> {
        self.kind.checked(data, given)
    }

    /// The columns of an event.
    pub(crate) fn columns(&self, event: &Kept) -> Vec<ShadowWrite> {
        self.shown(event).into_iter().map(|(name, value)| column(name, value)).collect()
    }

    fn shown(&self, event: &Kept) -> Vec<(String, String)> {
        // One that concerns one trigger alone is nobody's to wait for.
        if event.only.is_some() {
            return vec![(NAME.to_owned(), format!("{}\u{1f}", event.name))];
        }
        let mut columns = vec![(NAME.to_owned(), counted(&event.name, self.asks.len()))];
        if let Some(key) = &event.key {
            columns.push((OWN.to_owned(), topic(&event.name, None, Some(key))));
        }
        for (index, (source, expr)) in self.asks.iter().enumerate() {
            let says = expr.as_ref().and_then(|expr| says(expr, &event.data));
            if let Some(says) = says {
                columns.push((entry(index), topic(&event.name, Some(source), Some(&says))));
            }
        }
        columns
    }

    fn position(&self, source: &str) -> Option<usize> {
        self.asks.iter().position(|(known, _)| known == source)
    }
}

/// What an expression comes to for what an event brings.
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
    fn lock_names(&self) -> MutexGuard<'_, Held> {
        self.event_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget_event_name(&self, scope: TenantScope, name: &Name) {
        self.lock_names().remove(&(scope.tenant(), name.clone()));
    }

    /// What is known of a name of events, not older than a second.
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
            Some(kind) => kind.read()?,
            None => {
                let cell = self.store.cells(scope, one(described(name), now, false)).await?.items.pop();
                let kind =
                    cell.and_then(|cell| cell.value).and_then(|value| serde_json::from_value(value).ok());
                kind.map(|kind: super::EventType| kind.read()).transpose()?.unwrap_or_default()
            }
        };
        let cell = self.store.cells(scope, one(list_of(name), now, true)).await?.items.pop();
        let (asks, revision) = cell.map_or((Vec::new(), 0), |cell| (entries(cell.value), cell.revision));
        let known = Arc::new(Known { kind, asks, revision });
        let mut names = self.lock_names();
        // Whoever sends events may make names up.
        if names.len() >= MAX_NAMES {
            names.retain(|_, (since, _)| now.ms_since(*since) < FRESH_MS);
        }
        names.insert(at, (now, known.clone()));
        drop(names);
        Ok(known)
    }

    /// The place of an expression in the list of what is asked of events of a name; it is put there if it is not.
    async fn asked_at(
        &self,
        scope: TenantScope,
        name: &Name,
        source: &str,
    ) -> Result<Option<(usize, Arc<Known>)>, EngineError> {
        for _ in 0..TRIES {
            let known = self.event_name(scope, name).await?;
            if let Some(index) = known.position(source) {
                return Ok(Some((index, known)));
            }
            if known.asks.len() >= MAX_ASKED {
                return Ok(None);
            }
            let mut list: Vec<_> = known.asks.iter().map(|(source, _)| source.as_str()).collect();
            list.push(source);
            let op = CellOp::Set { value: json!(list), value_type: ValueType::Json, ttl: Ttl::Forever };
            let expect = Expect::Exactly(known.revision);
            let write = CellWrite { key: list_of(name), op, expect, initial: None, by: None };
            let written = self.write(scope, Changes::new().cell(Ok(write)), None).await;
            self.forget_event_name(scope, name);
            match written {
                Ok(_) | Err(DataError::Conflict { .. }) => {}
                // The list has no room for it: every event is looked at.
                Err(DataError::Invalid(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Err(EngineError::Invalid(format!("what is asked of `{name}` was written by others {TRIES} times")))
    }

    /// Events that were accepted before and that a wait may be for, in the order in which they were. Whether its filter takes
    /// them is not asked here.
    pub(super) async fn early(
        &self,
        scope: TenantScope,
        wait: &AwaitedEvent,
        since: Timestamp,
    ) -> Result<Vec<(RunId, Kept)>, EngineError> {
        let mut found = match (&wait.of, &wait.key) {
            (Some(of), Some(key)) => self.early_saying(scope, &wait.name, of, key, since).await?,
            (None, Some(key)) => {
                let value = topic(&wait.name, None, Some(key));
                self.events_with(scope, OWN, &value, since).await?
            }
            (_, None) => {
                // An event that is there knows no longer list than there is now.
                self.forget_event_name(scope, &wait.name);
                let known = self.event_name(scope, &wait.name).await?;
                let mut found = Vec::new();
                for entries in 0..=known.asks.len() {
                    found.extend(self.events_with(scope, NAME, &counted(&wait.name, entries), since).await?);
                }
                found
            }
        };
        found.sort_by_key(|(run, event)| (event.accepted, *run));
        found.dedup_by_key(|(run, _)| *run);
        Ok(found)
    }

    async fn early_saying(
        &self,
        scope: TenantScope,
        name: &Name,
        of: &str,
        key: &Value,
        since: Timestamp,
    ) -> Result<Vec<(RunId, Kept)>, EngineError> {
        let Some((index, known)) = self.asked_at(scope, name, of).await? else {
            // More is asked than there are columns: every event is looked at.
            let mut found = Vec::new();
            for entries in 0..=MAX_ASKED {
                found.extend(self.events_with(scope, NAME, &counted(name, entries), since).await?);
            }
            return Ok(of_those(found, name, of, key));
        };
        let mut found = Vec::new();
        for entries in 0..=index {
            let older = self.events_with(scope, NAME, &counted(name, entries), since).await?;
            if let Err(error) = self.complete(scope, &known, &older).await {
                tracing::warn!(event = %name, %error, "columns of events could not be completed");
            }
            found.extend(of_those(older, name, of, key));
        }
        found.extend(self.events_with(scope, &entry(index), &topic(name, Some(of), Some(key)), since).await?);
        Ok(found)
    }

    /// The events that have something in a column and lived at a time.
    async fn events_with(
        &self,
        scope: TenantScope,
        column: &str,
        value: &str,
        since: Timestamp,
    ) -> Result<Vec<(RunId, Kept)>, EngineError> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let shadows = vec![(Name::from(column), ShadowValue::Text(value.to_owned()))];
            let workflow = Some(WORKFLOW.into());
            let query = RunQuery { workflow, shadows, limit: READ_AT_ONCE, cursor, ..RunQuery::default() };
            let page = self.store.runs(scope, query).await?;
            for summary in &page.items {
                match self.event_of(scope, summary.run).await {
                    Ok(Some(Delivery { event, .. })) if event.until > since && event.only.is_none() => {
                        found.push((summary.run, event));
                    }
                    Ok(_) => {}
                    Err(EngineError::Store(error)) if !matches!(error, StoreError::Bad(_)) => {
                        return Err(error.into());
                    }
                    // Nobody is to wait for ever because of it.
                    Err(error) => tracing::error!(event = %summary.run, %error, "an event cannot be read"),
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// An event as its run has it.
    pub(crate) async fn event_of(
        &self,
        scope: TenantScope,
        run: RunId,
    ) -> Result<Option<Delivery>, EngineError> {
        let standing = match self.load(scope, run).await {
            Ok(standing) => standing,
            Err(EngineError::NoRun(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if standing.definition().name().as_str() != WORKFLOW {
            return Ok(None);
        }
        Delivery::read(&standing.snapshot).map(Some)
    }

    /// Gives events the columns that they do not have, because they were accepted before somebody asked for them.
    async fn complete(
        &self,
        scope: TenantScope,
        known: &Known,
        events: &[(RunId, Kept)],
    ) -> Result<(), EngineError> {
        let mut refills = Vec::new();
        for (run, event) in events {
            let Some(loaded) = self.store.load(scope, *run).await? else { continue };
            let shown: BTreeMap<String, String> = known.shown(event).into_iter().collect();
            let held = self.store.records(scope, RecordQuery::Shadows(*run)).await?.items;
            let held = held.into_iter().filter_map(|record| match record {
                Record::Shadow(row) => Some((row.name, Refilled::Is(row.value))),
                _ => None,
            });
            let mut columns: Vec<_> = held.filter(|(name, _)| !shown.contains_key(name.as_str())).collect();
            let new = shown.into_iter();
            columns.extend(new.map(|(name, value)| (name.into(), Refilled::Is(ShadowValue::Text(value)))));
            refills.push(Refill {
                run: *run,
                version: loaded.head.version,
                workflow: WORKFLOW.into(),
                columns,
            });
        }
        if !refills.is_empty() {
            let sweep = Sweep { now: self.host.now(), limit: 1, what: SweepWhat::Shadows(refills) };
            self.store.sweep(scope, sweep).await?;
        }
        Ok(())
    }
}

/// Those of which an expression comes to this.
fn of_those(events: Vec<(RunId, Kept)>, name: &Name, of: &str, key: &Value) -> Vec<(RunId, Kept)> {
    let Ok(expr) = Expr::parse(of) else { return Vec::new() };
    let wanted = topic(name, Some(of), Some(key));
    let is_it = |event: &Kept| {
        says(&expr, &event.data).is_some_and(|says| topic(name, Some(of), Some(&says)) == wanted)
    };
    events.into_iter().filter(|(_, event)| is_it(event)).collect()
}

/// The entries of a list; one that is no expression any more keeps its place.
fn entries(value: Option<Value>) -> Vec<(String, Option<Expr>)> {
    let list: Vec<String> = value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default();
    let entry = |source: String| {
        let expr = Expr::parse(&source).ok();
        (source, expr)
    };
    list.into_iter().map(entry).collect()
}
