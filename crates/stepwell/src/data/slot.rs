//! Slots that runs share, from outside of them: a value that several write, without one overwriting another.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Cell, CellKey, CellOp, CellWrite, Expect, Initial, OpResult, Page, Space};
use tokio::sync::broadcast;

use crate::actor::Permission;
use crate::data::changes::{Amount, Changes, expected, slot_ops};
use crate::data::error::DataError;
use crate::data::kv::{Entry, List, one};
use crate::data::watch::{Watched, watch};
use crate::engine::Engine;
use crate::error::EngineError;

/// How often an update is tried unless the handle says otherwise.
pub const MAX_RETRIES: u32 = 10;

/// Events that a slow listener may be behind.
const BUFFER: usize = 64;

impl Engine {
    /// The slots that runs share. A run's own session slots are not among them: they are in its state.
    pub fn state(&self) -> State {
        State(self.clone())
    }
}

/// The slots that runs share.
#[derive(Debug, Clone)]
pub struct State(Engine);

impl State {
    /// A slot that a root run and everything below it share; it goes when the root run does.
    pub fn execution<T>(&self, root: RunId, key: impl Into<String>) -> Slot<T> {
        Slot::new(self.0.clone(), Space::Execution, root.to_string(), key.into())
    }

    /// A slot that all runs of a workflow share, until it is deleted.
    pub fn workflow<T>(&self, workflow: impl Into<Name>, key: impl Into<String>) -> Slot<T> {
        let workflow = workflow.into();
        let mut slot = Slot::new(self.0.clone(), Space::Workflow, workflow.as_str().to_owned(), key.into());
        slot.wrong = wrong_owner(&workflow);
        slot
    }

    /// The root of a run's tree, whose execution slots it shares.
    pub async fn root_of(&self, run: RunId) -> Result<RunId, DataError> {
        // Whoever may do anything with its slots may know whose they are.
        self.0.permit(Permission::Read).or_else(|_| self.0.permit(Permission::Manage))?;
        let loaded = self.0.store().load(self.0.scope(), run).await?.ok_or(EngineError::NoRun(run))?;
        match wrong_owner(&loaded.workflow) {
            Some(wrong) => Err(DataError::Invalid(wrong)),
            None => Ok(loaded.root),
        }
    }

    /// A part of the slots of a root run that have a value, in the order of their keys.
    pub async fn list_execution(&self, root: RunId, list: List) -> Result<Page<Entry>, DataError> {
        self.0.permit(Permission::Read)?;
        self.0.entries(Space::Execution, &root.to_string(), list).await
    }

    /// A part of the slots of a workflow that have a value, in the order of their keys.
    pub async fn list_workflow(
        &self,
        workflow: impl Into<Name>,
        list: List,
    ) -> Result<Page<Entry>, DataError> {
        self.0.permit(Permission::Read)?;
        let workflow = workflow.into();
        match wrong_owner(&workflow) {
            Some(wrong) => Err(DataError::Invalid(wrong)),
            None => self.0.entries(Space::Workflow, workflow.as_str(), list).await,
        }
    }
}

/// Slots of the engine's own are out of reach.
fn wrong_owner(workflow: &Name) -> Option<String> {
    workflow
        .starts_with(crate::registry::OWN)
        .then(|| format!("`{workflow}` is the engine's: its slots are not written or read so"))
}

/// What happens to a slot, as one handle of it sees it.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotEvent<T> {
    /// It has another value.
    Change {
        /// The value; `None` = there is none.
        value: Option<T>,
        /// The value that was seen before.
        previous: Option<T>,
        /// The version it has; it only rises.
        version: u64,
    },
    /// Somebody else has written it meanwhile: the update is made again.
    Conflict {
        /// Which try it was, counted from 1.
        attempt: u32,
    },
    /// Somebody else has written it every time: the update is given up.
    Exhausted {
        /// How often it was tried.
        attempts: u32,
    },
}

/// A slot that runs share.
pub struct Slot<T> {
    engine: Engine,
    key: CellKey,
    initial: Option<Value>,
    wrong: Option<String>,
    max_retries: u32,
    events: broadcast::Sender<SlotEvent<Value>>,
    /// What this handle's listeners have seen last.
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

    /// What it counts as before it was ever written. After a delete there is nothing.
    #[must_use]
    pub fn initial(mut self, initial: T) -> Self
    where
        T: Serialize,
    {
        match serde_json::to_value(initial) {
            Ok(initial) => self.initial = Some(initial),
            Err(error) => self.wrong = Some(format!("the initial value cannot be written as JSON: {error}")),
        }
        self
    }

    /// How often an update is tried.
    #[must_use]
    pub fn max_retries(mut self, tries: u32) -> Self {
        self.max_retries = tries.max(1);
        self
    }

    /// The text it is known by where it is kept.
    pub fn address(&self) -> String {
        self.key.address()
    }

    fn write(&self, op: CellOp, expect: Expect) -> CellWrite {
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: true });
        CellWrite { key: self.key.clone(), op, expect, initial, by: None }
    }

    /// Something that is done to it, if it has this version; 0 = if it has no value.
    pub(crate) fn change(&self, op: CellOp, if_version: Option<u64>) -> Result<CellWrite, String> {
        let expect = if_version.map_or(Expect::Anything, expected);
        self.wrong.clone().map_or_else(|| Ok(self.write(op, expect)), Err)
    }

    /// Refuses what is wrong with the handle itself.
    fn check(&self) -> Result<(), DataError> {
        self.wrong.as_ref().map_or(Ok(()), |wrong| Err(DataError::Invalid(wrong.clone())))
    }

    async fn apply(&self, op: Result<CellOp, String>) -> Result<OpResult, DataError> {
        self.check()?;
        let write = op.map(|op| self.write(op, Expect::Anything));
        let result = self.engine.write(Changes::new().cell(write)).await?.pop();
        let result = result.ok_or_else(|| DataError::Invalid("a write gave no result".to_owned()))?;
        self.tell().await;
        Ok(result)
    }

    /// Its value as it is kept, with its version and times; nothing before it was ever written, and after a delete.
    pub async fn entry(&self) -> Result<Option<Entry>, DataError> {
        Ok(self.cell(self.engine.now(), false).await?.and_then(Entry::of))
    }

    async fn cell(&self, now: Timestamp, with_dead: bool) -> Result<Option<Cell>, DataError> {
        self.engine.permit(Permission::Read)?;
        self.check()?;
        let query = one(self.key.clone(), now, with_dead);
        Ok(self.engine.store().cells(self.engine.scope(), query).await?.items.pop())
    }

    /// The value as it is, or as it counts, and its revision.
    async fn look(&self) -> Result<(Option<Value>, u64), DataError> {
        let now = self.engine.now();
        let cell = self.cell(now, true).await?;
        let revision = cell.as_ref().map_or(0, |cell| cell.revision);
        let value = cell.and_then(|cell| cell.live(now).cloned());
        Ok((value.or_else(|| self.initial.clone().filter(|_| revision == 0)), revision))
    }

    /// Shows those who listen to this handle the newest value. Whoever cannot see it now sees the next one.
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
    /// Its value; before it was ever written the initial one, if the handle has one.
    pub async fn get(&self) -> Result<Option<T>, DataError> {
        self.look().await?.0.map(|value| self.read(&value)).transpose()
    }

    /// Gives it a value; gives its version.
    pub async fn set(&self, value: &T) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::set(value)).await?.revision)
    }

    /// Takes its value away; says whether it had one.
    pub async fn delete(&self) -> Result<bool, DataError> {
        Ok(self.apply(Ok(CellOp::Delete)).await?.existed)
    }

    /// Makes a new value of the one that is there. If somebody else writes meanwhile, it is read and made again.
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<T, DataError> {
        for attempt in 1..=self.max_retries {
            let (value, revision) = self.look().await?;
            let before = value.map(|value| self.read(&value)).transpose()?;
            let after = change(before);
            let op = slot_ops::set(&after);
            let write = op.map(|op| self.write(op, Expect::Exactly(revision)));
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

    /// Adds to its number; gives the sum.
    pub async fn increment(&self, by: impl Into<Amount>) -> Result<T, DataError> {
        let result = self.apply(slot_ops::increment(by.into())).await?;
        self.read(&result.value.unwrap_or_default())
    }

    /// Takes from its number; gives what is left.
    pub async fn decrement(&self, by: impl Into<Amount>) -> Result<T, DataError> {
        self.increment(by.into().negated()).await
    }

    /// Puts fields into its object, in place of those of the same name; gives its version.
    pub async fn merge(&self, fields: impl Serialize) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::merge(fields)).await?.revision)
    }

    /// Puts an item at the end of its list; gives its version.
    pub async fn append(&self, item: impl Serialize) -> Result<u64, DataError> {
        Ok(self.apply(slot_ops::append(item)).await?.revision)
    }

    /// Takes the first item of its list.
    pub async fn remove_first<I: DeserializeOwned>(&self) -> Result<Option<I>, DataError> {
        self.removed(CellOp::RemoveFirst).await
    }

    /// Takes the last item of its list.
    pub async fn remove_last<I: DeserializeOwned>(&self) -> Result<Option<I>, DataError> {
        self.removed(CellOp::RemoveLast).await
    }

    async fn removed<I: DeserializeOwned>(&self, op: CellOp) -> Result<Option<I>, DataError> {
        let result = self.apply(Ok(op)).await?;
        result.value.map(|item| self.read(&item)).transpose()
    }

    /// What happens to it through this handle and its clones, from now on.
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

    /// Its value as it is now, and whenever it has changed, here or elsewhere. Values in between may be skipped.
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
            DataError::Invalid(format!("the value of {} is something else: {error}", self.key))
        })
    }
}

impl crate::engine::Inner {
    /// Lets others go first, for longer each time, and not all for the same time.
    pub(crate) async fn pause_after(&self, attempt: u32) {
        let most = 1_u64 << attempt.min(6);
        let random = self.host.ids.next().as_u64_pair().1;
        let until = self.host.now().plus_micros(1 + random % (most * 1_000));
        self.host.clock.sleep_until(until).await;
    }
}
