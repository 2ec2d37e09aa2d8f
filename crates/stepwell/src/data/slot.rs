//! Shared slots, accessed from outside of runs: values with several writers that do not overwrite each other's changes.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Cell, CellKey, CellOp, CellWrite, Initial, OpResult, Page, Precondition, Space};
use tokio::sync::broadcast;

use crate::actor::Permission;
use crate::data::changes::{Amount, Changes, expected, slot_ops};
use crate::data::error::DataError;
use crate::data::kv::{KeyEntry, KeyList, one};
use crate::data::watch::{Watched, watch};
use crate::engine::Engine;
use crate::error::EngineError;

/// Default maximum number of attempts at an update.
pub const MAX_RETRIES: u32 = 10;

/// Events that are buffered for a slow listener. Older ones are dropped.
const BUFFER: usize = 64;

impl Engine {
    /// Returns a handle to the slots that runs share. Session slots are not among them: they are part of a run's state.
    pub fn state(&self) -> State {
        State(self.clone())
    }
}

/// A handle to the slots that runs share.
#[derive(Debug, Clone)]
pub struct State(Engine);

impl State {
    /// Returns a slot that a root run shares with all its descendants. It is deleted with the root run.
    pub fn execution<T>(&self, root: RunId, key: impl Into<String>) -> Slot<T> {
        Slot::new(self.0.clone(), Space::Execution, root.to_string(), key.into())
    }

    /// Returns a slot that all runs of a workflow share. It stays until it is deleted.
    pub fn workflow<T>(&self, workflow: impl Into<Name>, key: impl Into<String>) -> Slot<T> {
        let workflow = workflow.into();
        let mut slot = Slot::new(self.0.clone(), Space::Workflow, workflow.as_str().to_owned(), key.into());
        slot.wrong = wrong_owner(&workflow);
        slot
    }

    /// Returns the root run of a run. A run shares the execution slots of its root.
    pub async fn root_of(&self, run: RunId) -> Result<RunId, DataError> {
        // Each permission that gives access to slots is sufficient.
        self.0.permit(Permission::Read).or_else(|_| self.0.permit(Permission::Manage))?;
        let loaded = self.0.store().load(self.0.scope(), run).await?.ok_or(EngineError::NoRun(run))?;
        match wrong_owner(&loaded.workflow) {
            Some(wrong) => Err(DataError::Invalid(wrong)),
            None => Ok(loaded.root),
        }
    }

    /// Lists the execution slots of a root run that have a value, ordered by key, one page at a time.
    pub async fn list_execution(&self, root: RunId, list: KeyList) -> Result<Page<KeyEntry>, DataError> {
        self.0.permit(Permission::Read)?;
        self.0.entries(Space::Execution, &root.to_string(), list).await
    }

    /// Lists the slots of a workflow that have a value, ordered by key, one page at a time.
    pub async fn list_workflow(
        &self,
        workflow: impl Into<Name>,
        list: KeyList,
    ) -> Result<Page<KeyEntry>, DataError> {
        self.0.permit(Permission::Read)?;
        let workflow = workflow.into();
        match wrong_owner(&workflow) {
            Some(wrong) => Err(DataError::Invalid(wrong)),
            None => self.0.entries(Space::Workflow, workflow.as_str(), list).await,
        }
    }
}

/// Returns an error text for the engine's own workflows, whose slots are not accessible.
fn wrong_owner(workflow: &Name) -> Option<String> {
    workflow
        .starts_with(crate::registry::OWN)
        .then(|| format!("`{workflow}` is reserved for the engine: its slots cannot be read or written"))
}

/// An event of a slot, seen by one handle.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotEvent<T> {
    /// The slot has another value, or none.
    Change {
        /// The new value. `None`: it was deleted.
        value: Option<T>,
        /// The value that the handle saw before.
        previous: Option<T>,
        /// The new version. Versions only increase.
        version: u64,
    },
    /// A concurrent write was committed first. The update is attempted again.
    Conflict {
        /// Number of the failed attempt, starting at 1.
        attempt: u32,
    },
    /// Concurrent writes won every attempt. The update failed.
    Exhausted {
        /// Number of attempts, each of which conflicted.
        attempts: u32,
    },
}

/// A handle to a slot that runs share.
pub struct Slot<T> {
    engine: Engine,
    key: CellKey,
    initial: Option<Value>,
    wrong: Option<String>,
    max_retries: u32,
    events: broadcast::Sender<SlotEvent<Value>>,
    /// Version and value that the listeners of this handle saw last.
    seen: Arc<Mutex<(u64, Option<Value>)>>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Slot {
            engine: self.engine.clone(),
            key: self.key.clone(),
            initial: self.initial.clone(),
            wrong: self.wrong.clone(),
            max_retries: self.max_retries,
            events: self.events.clone(),
            seen: self.seen.clone(),
            kind: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slot").field(&self.key).finish()
    }
}

impl<T> Slot<T> {
    fn new(engine: Engine, space: Space, owner: String, key: String) -> Self {
        let (events, _) = broadcast::channel(BUFFER);
        Slot {
            engine,
            key: CellKey { space, owner, key },
            initial: None,
            wrong: None,
            max_retries: MAX_RETRIES,
            events,
            seen: Arc::default(),
            kind: PhantomData,
        }
    }

    /// Sets the value that the slot counts as before its first write. It does not apply after a delete.
    #[must_use]
    pub fn initial(mut self, initial: T) -> Self
    where
        T: Serialize,
    {
        match serde_json::to_value(initial) {
            Ok(initial) => self.initial = Some(initial),
            Err(error) => {
                self.wrong = Some(format!("the initial value cannot be serialized as JSON: {error}"));
            }
        }
        self
    }

    /// Sets the maximum number of attempts at an update, at least 1. Default: [`MAX_RETRIES`].
    #[must_use]
    pub fn max_retries(mut self, attempts: u32) -> Self {
        self.max_retries = attempts.max(1);
        self
    }

    /// Returns the slot's address in the store, as text.
    pub fn address(&self) -> String {
        self.key.address()
    }

    fn write(&self, op: CellOp, expect: Precondition) -> CellWrite {
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: true });
        CellWrite { key: self.key.clone(), op, expect, initial, by: None }
    }

    /// Builds a write to the slot, on the condition that it is at this version. 0: that it has no value.
    pub(crate) fn change(&self, op: CellOp, if_version: Option<u64>) -> Result<CellWrite, String> {
        let expect = if_version.map_or(Precondition::Anything, expected);
        self.wrong.clone().map_or_else(|| Ok(self.write(op, expect)), Err)
    }

    /// Returns the error of an invalid handle, if there is one.
    fn check(&self) -> Result<(), DataError> {
        self.wrong.as_ref().map_or(Ok(()), |wrong| Err(DataError::Invalid(wrong.clone())))
    }

    async fn apply(&self, op: Result<CellOp, String>) -> Result<OpResult, DataError> {
        self.check()?;
        let write = op.map(|op| self.write(op, Precondition::Anything));
        let result = self.engine.write(Changes::new().cell(write)).await?.pop();
        let result = result.ok_or_else(|| DataError::Invalid("a write gave no result".to_owned()))?;
        self.tell().await;
        Ok(result)
    }

    /// Returns the stored value with its version and times. `None` before the first write and after a delete.
    pub async fn entry(&self) -> Result<Option<KeyEntry>, DataError> {
        Ok(self.cell(self.engine.now(), false).await?.and_then(KeyEntry::of))
    }

    async fn cell(&self, now: Timestamp, include_deleted: bool) -> Result<Option<Cell>, DataError> {
        self.engine.permit(Permission::Read)?;
        self.check()?;
        let query = one(self.key.clone(), now, include_deleted);
        Ok(self.engine.store().cells(self.engine.scope(), query).await?.items.pop())
    }

    /// Returns the value, or the initial value before the first write, with the revision.
    async fn look(&self) -> Result<(Option<Value>, u64), DataError> {
        let now = self.engine.now();
        let cell = self.cell(now, true).await?;
        let revision = cell.as_ref().map_or(0, |cell| cell.revision);
        let value = cell.and_then(|cell| cell.live(now).cloned());
        Ok((value.or_else(|| self.initial.clone().filter(|_| revision == 0)), revision))
    }

    /// Sends the newest value to the listeners of this handle. If it cannot be read now, they get the next one.
    async fn tell(&self) {
        if self.events.receiver_count() == 0 {
            return;
        }
        let Ok((value, version)) = self.look().await else { return };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if version <= seen.0 {
            return;
        }
        let previous = std::mem::replace(&mut *seen, (version, value.clone())).1;
        let _ = self.events.send(SlotEvent::Change { value, previous, version });
    }
}

impl<T: Serialize + DeserializeOwned> Slot<T> {
    /// Returns the value. Before the first write it is the initial value, if one is set.
    pub async fn get(&self) -> Result<Option<T>, DataError> {
        self.look().await?.0.map(|value| self.read(&value)).transpose()
    }

    /// Sets the value and returns the new version.
    pub async fn set(&self, value: &T) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::set(value)).await?.revision)
    }

    /// Deletes the value. Returns `false` if there was none.
    pub async fn delete(&self) -> Result<bool, DataError> {
        Ok(self.apply(Ok(CellOp::Delete)).await?.existed)
    }

    /// Replaces the value by a function of it. If a concurrent write is committed first, the value is read and the
    /// function called again.
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<T, DataError> {
        for attempt in 1..=self.max_retries {
            let (value, revision) = self.look().await?;
            let before = value.map(|value| self.read(&value)).transpose()?;
            let after = change(before);
            let op = slot_ops::set(&after);
            let write = op.map(|op| self.write(op, Precondition::Exactly(revision)));
            match self.engine.write(Changes::new().cell(write)).await {
                Ok(_) => {
                    self.tell().await;
                    return Ok(after);
                }
                Err(DataError::Conflict { .. }) => {
                    let _ = self.events.send(SlotEvent::Conflict { attempt });
                    if attempt < self.max_retries {
                        self.engine.inner.pause_after(attempt).await;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let attempts = self.max_retries;
        let _ = self.events.send(SlotEvent::Exhausted { attempts });
        Err(DataError::Exhausted { what: self.key.to_string(), attempts })
    }

    /// Adds to the number and returns the sum.
    pub async fn increment(&self, by: impl Into<Amount>) -> Result<T, DataError> {
        let result = self.apply(slot_ops::increment(by.into())).await?;
        self.read(&result.value.unwrap_or_default())
    }

    /// Subtracts from the number and returns the difference.
    pub async fn decrement(&self, by: impl Into<Amount>) -> Result<T, DataError> {
        self.increment(by.into().negated()).await
    }

    /// Sets fields of the object, replaces those that exist, and returns the new version.
    pub async fn merge(&self, fields: impl Serialize) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::merge(fields)).await?.revision)
    }

    /// Appends an item to the list and returns the new version.
    pub async fn append(&self, item: impl Serialize) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::append(item)).await?.revision)
    }

    /// Removes the first item of the list and returns it.
    pub async fn remove_first<I: DeserializeOwned>(&self) -> Result<Option<I>, DataError> {
        self.removed(CellOp::RemoveFirst).await
    }

    /// Removes the last item of the list and returns it.
    pub async fn remove_last<I: DeserializeOwned>(&self) -> Result<Option<I>, DataError> {
        self.removed(CellOp::RemoveLast).await
    }

    async fn removed<I: DeserializeOwned>(&self, op: CellOp) -> Result<Option<I>, DataError> {
        let result = self.apply(Ok(op)).await?;
        result.value.map(|item| self.read(&item)).transpose()
    }

    /// Streams the events of this handle and its clones, from now on.
    pub fn events(&self) -> impl Stream<Item = SlotEvent<T>> + use<T> {
        let (events, slot) = (self.events.subscribe(), self.clone());
        unfold((events, slot), |(mut events, slot)| async move {
            loop {
                let event = match events.recv().await {
                    Ok(SlotEvent::Change { value, previous, version }) => {
                        let read = |value: Option<Value>| value.and_then(|value| slot.read(&value).ok());
                        SlotEvent::Change { value: read(value), previous: read(previous), version }
                    }
                    Ok(SlotEvent::Conflict { attempt }) => SlotEvent::Conflict { attempt },
                    Ok(SlotEvent::Exhausted { attempts }) => SlotEvent::Exhausted { attempts },
                    Err(broadcast::error::RecvError::Lagged(_)) => continue,
                    Err(broadcast::error::RecvError::Closed) => return None,
                };
                return Some((event, (events, slot)));
            }
        })
    }

    /// Streams the value: the current one, and a new one after changes by any process. Intermediate values may be
    /// skipped.
    pub fn watch(&self) -> Result<impl Stream<Item = Result<SlotEvent<T>, DataError>> + use<T>, DataError> {
        self.engine.permit(Permission::Read)?;
        self.check()?;
        let slot = self.clone();
        Ok(watch(self.engine.clone(), self.key.clone()).map(move |watched| {
            let Watched { value, previous, version } = watched?;
            let read = |value: Option<Value>| value.map(|value| slot.read(&value)).transpose();
            Ok(SlotEvent::Change { value: read(value)?, previous: read(previous)?, version })
        }))
    }

    fn read<V: DeserializeOwned>(&self, value: &Value) -> Result<V, DataError> {
        V::deserialize(value).map_err(|error| {
            DataError::Invalid(format!("the value of {} does not have the expected type: {error}", self.key))
        })
    }
}

impl crate::engine::Inner {
    /// Sleeps for a random time with a bound that doubles with each attempt, so that competing writers do not collide
    /// again.
    pub(crate) async fn pause_after(&self, attempt: u32) {
        let most = 1_u64 << attempt.min(6);
        let random = self.host.ids.next().as_u64_pair().1;
        let until = self.host.now().plus_micros(1 + random % (most * 1_000));
        self.host.clock.sleep_until(until).await;
    }
}
