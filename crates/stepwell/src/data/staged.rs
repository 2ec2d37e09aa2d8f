//! Data as an action sees it: what is committed, with what the action has staged on top. What it stages is committed with its
//! result.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::Timestamp;
use stepwell_store::{
    Cell, CellKey, CellOp, CellWrite, Ends, Entity, Expect, Initial, Page, Space, ValueType,
};

use crate::action::ActionError;
use crate::cx::Cx;
use crate::data::changes::{Amount, Changes, Increment, NewLink, Set, slot_ops};
use crate::data::error::DataError;
use crate::data::kv::{Entry, List, listed};
use crate::data::links::{Lookup, Match, looked_up, seen_from};

/// A key-value namespace as an action sees it.
#[derive(Debug, Clone)]
pub struct StagedKv {
    cx: Cx,
    namespace: String,
}

impl StagedKv {
    pub(crate) fn new(cx: Cx, namespace: String) -> Self {
        StagedKv { cx, namespace }
    }

    /// A key's value, with what this action has staged on top.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, ActionError> {
        self.cx.permit_read()?;
        let key = CellKey { space: Space::Kv, owner: self.namespace.clone(), key: key.to_owned() };
        let (cell, now) = (self.cx.overlaid(&key).await?, self.cx.now());
        Ok(cell.filter(|cell| cell.live(now).is_some()).and_then(Entry::of))
    }

    /// A part of the keys as they are committed; what this action has staged is not in it.
    pub async fn list(&self, list: List) -> Result<Page<Entry>, ActionError> {
        self.cx.permit_read()?;
        let query = listed(Space::Kv, &self.namespace, list, self.cx.now(), self.cx.limits())?;
        let page = self.cx.store().cells(self.cx.scope(), query).await?;
        Ok(page.filter_map(Entry::of))
    }

    /// Stages a value for a key, until it is deleted.
    pub fn set(&self, key: &str, value: impl Serialize) -> Result<(), ActionError> {
        self.set_with(key, Set::new(value))
    }

    /// Stages a value for a key.
    pub fn set_with(&self, key: &str, set: Set) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().set_with(&self.namespace, key, set)).map(drop)
    }

    /// Stages that a key has no value.
    pub fn delete(&self, key: &str) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().delete(&self.namespace, key)).map(drop)
    }

    /// Stages an addition to a key's number. What it comes to is known at the commit.
    pub fn increment(&self, key: &str, by: impl Into<Amount>) -> Result<(), ActionError> {
        let changes = Changes::new().increment(&self.namespace, key, Increment::by(by));
        self.cx.stage_changes(changes).map(drop)
    }
}

/// A namespace of links as an action sees it.
#[derive(Debug, Clone)]
pub struct StagedLinks {
    cx: Cx,
    namespace: String,
}

impl StagedLinks {
    pub(crate) fn new(cx: Cx, namespace: String) -> Self {
        StagedLinks { cx, namespace }
    }

    /// The links of a thing as they are committed; what this action has staged is not in it.
    pub async fn lookup(&self, lookup: Lookup) -> Result<Page<Match>, ActionError> {
        self.cx.permit_read()?;
        let of = lookup.of.clone();
        let query = looked_up(&self.namespace, lookup, self.cx.limits())?;
        let page = self.cx.store().links(self.cx.scope(), query).await?;
        Ok(page.map(|link| seen_from(&of, link)))
    }

    /// Stages a link, with its attributes in place of those before.
    pub fn upsert(&self, link: NewLink) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().link(&self.namespace, link)).map(drop)
    }

    /// Stages that links which begin at one thing or end at another, or both, are not there.
    pub fn delete(
        &self,
        from: Option<Entity>,
        to: Option<Entity>,
        relation: Option<String>,
    ) -> Result<(), ActionError> {
        let ends = Ends { namespace: self.namespace.clone(), from, to, relation };
        self.cx.stage_changes(Changes::new().unlink(ends)).map(drop)
    }
}

/// A slot that runs share, as an action sees it.
#[derive(Debug)]
pub struct StagedSlot<T> {
    cx: Cx,
    key: CellKey,
    initial: Option<Value>,
    max_retries: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> StagedSlot<T> {
    pub(crate) fn new(cx: Cx, space: Space, owner: String, key: String) -> Self {
        let max_retries = crate::data::slot::MAX_RETRIES;
        StagedSlot { cx, key: CellKey { space, owner, key }, initial: None, max_retries, kind: PhantomData }
    }

    /// What it counts as before it was ever written. After a delete there is nothing.
    pub fn initial(mut self, initial: T) -> Result<Self, ActionError> {
        self.initial = Some(serde_json::to_value(initial)?);
        Ok(self)
    }

    /// How often an update that was lost to somebody else's is made again, with the whole action.
    #[must_use]
    pub fn max_retries(mut self, tries: u32) -> Self {
        self.max_retries = tries.max(1);
        self
    }

    /// Its value, with what this action has staged on top.
    pub async fn get(&self) -> Result<Option<T>, ActionError> {
        Ok(self.look().await?.0)
    }

    async fn look(&self) -> Result<(Option<T>, u64), ActionError> {
        self.cx.permit_read()?;
        let cell = self.cx.overlaid(&self.key).await?;
        let revision = cell.as_ref().map_or(0, |cell| cell.revision);
        let value = cell.and_then(|cell| cell.live(self.cx.now()).cloned());
        let value = value.or_else(|| self.initial.clone().filter(|_| revision == 0));
        Ok((value.map(|value| read(&self.key, &value)).transpose()?, revision))
    }

    /// Stages what is made of the value that is there now. If somebody else writes before the action's result is
    /// committed, the whole action is run again.
    pub async fn update(&self, change: impl FnOnce(Option<T>) -> T) -> Result<T, ActionError> {
        let (before, revision) = self.look().await?;
        let after = change(before);
        let mut write = self.write(slot_ops::set(&after))?;
        write.expect = Expect::Exactly(revision);
        self.cx.stage_update(write, self.max_retries)?;
        Ok(after)
    }

    /// Stages a value.
    pub fn set(&self, value: &T) -> Result<(), ActionError> {
        self.stage(slot_ops::set(value))
    }

    /// Stages that there is none.
    pub fn delete(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::Delete))
    }

    /// Stages an addition. What it comes to is known at the commit.
    pub fn increment(&self, by: impl Into<Amount>) -> Result<(), ActionError> {
        self.stage(slot_ops::increment(by.into()))
    }

    /// Stages a subtraction.
    pub fn decrement(&self, by: impl Into<Amount>) -> Result<(), ActionError> {
        self.increment(by.into().negated())
    }

    /// Stages fields for its object, in place of those of the same name.
    pub fn merge(&self, fields: impl Serialize) -> Result<(), ActionError> {
        self.stage(slot_ops::merge(fields))
    }

    /// Stages an item at the end of its list.
    pub fn append(&self, item: impl Serialize) -> Result<(), ActionError> {
        self.stage(slot_ops::append(item))
    }

    /// Stages that the first item of its list goes.
    pub fn remove_first(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::RemoveFirst))
    }

    /// Stages that the last item of its list goes.
    pub fn remove_last(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::RemoveLast))
    }

    fn write(&self, op: Result<CellOp, String>) -> Result<CellWrite, ActionError> {
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: true });
        let op = op.map_err(DataError::Invalid)?;
        Ok(CellWrite { key: self.key.clone(), op, expect: Expect::Anything, initial, by: None })
    }

    fn stage(&self, op: Result<CellOp, String>) -> Result<(), ActionError> {
        let write = self.write(op)?;
        self.cx.stage_changes(Changes::new().cell(Ok(write))).map(drop)
    }
}

fn read<V: DeserializeOwned>(key: &CellKey, value: &Value) -> Result<V, ActionError> {
    V::deserialize(value).map_err(|error| {
        ActionError::new("invalidState", format!("the value of {key} is something else: {error}")).finally()
    })
}

/// A slot of the run's own. It is in the run's state: reading it asks nobody, and it is committed with the step.
#[derive(Debug)]
pub struct Session<T> {
    cx: Cx,
    key: String,
    initial: Option<Value>,
    kind: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned> Session<T> {
    pub(crate) fn new(cx: Cx, key: String) -> Self {
        Session { cx, key, initial: None, kind: PhantomData }
    }

    /// What it counts as when it has no value.
    pub fn initial(mut self, initial: T) -> Result<Self, ActionError> {
        self.initial = Some(serde_json::to_value(initial)?);
        Ok(self)
    }

    /// Its value, or the initial one.
    pub fn get(&self) -> Result<Option<T>, ActionError> {
        let value = self.cx.session_value(&self.key).or_else(|| self.initial.clone());
        value.map(|value| self.read(&value)).transpose()
    }

    /// Stages a value.
    pub fn set(&self, value: &T) -> Result<(), ActionError> {
        self.apply(slot_ops::set(value)).map(drop)
    }

    /// Stages what is made of the value that is there.
    pub fn update(&self, change: impl FnOnce(Option<T>) -> T) -> Result<T, ActionError> {
        let after = change(self.get()?);
        self.set(&after)?;
        Ok(after)
    }

    /// Stages that it has no value: then it counts as the initial one again.
    pub fn delete(&self) -> Result<(), ActionError> {
        self.apply(Ok(CellOp::Delete)).map(drop)
    }

    /// Adds to its number; gives the sum.
    pub fn increment(&self, by: impl Into<Amount>) -> Result<T, ActionError> {
        let sum = self.apply(slot_ops::increment(by.into()))?;
        self.read(&sum.unwrap_or_default())
    }

    /// Takes from its number; gives what is left.
    pub fn decrement(&self, by: impl Into<Amount>) -> Result<T, ActionError> {
        self.increment(by.into().negated())
    }

    /// Puts fields into its object, in place of those of the same name.
    pub fn merge(&self, fields: impl Serialize) -> Result<(), ActionError> {
        self.apply(slot_ops::merge(fields)).map(drop)
    }

    /// Puts an item at the end of its list.
    pub fn append(&self, item: impl Serialize) -> Result<(), ActionError> {
        self.apply(slot_ops::append(item)).map(drop)
    }

    /// Takes the first item of its list.
    pub fn remove_first<I: DeserializeOwned>(&self) -> Result<Option<I>, ActionError> {
        self.apply(Ok(CellOp::RemoveFirst))?.map(|item| read(&self.cell_key(), &item)).transpose()
    }

    /// Takes the last item of its list.
    pub fn remove_last<I: DeserializeOwned>(&self) -> Result<Option<I>, ActionError> {
        self.apply(Ok(CellOp::RemoveLast))?.map(|item| read(&self.cell_key(), &item)).transpose()
    }

    fn cell_key(&self) -> CellKey {
        CellKey { space: Space::Execution, owner: self.cx.run().to_string(), key: self.key.clone() }
    }

    /// The same function that applies operations to what is kept elsewhere applies them here.
    fn apply(&self, op: Result<CellOp, String>) -> Result<Option<Value>, ActionError> {
        let op = op.map_err(DataError::Invalid)?;
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: false });
        let key = self.cell_key();
        let write = CellWrite { key: key.clone(), op, expect: Expect::Anything, initial, by: None };
        let (at, value) = (Timestamp::MIN, self.cx.session_value(&self.key));
        let cell = value.map(|value| Cell {
            key,
            value: Some(value),
            value_type: ValueType::Json,
            revision: 1,
            expires_at: None,
            created_at: at,
            updated_at: at,
            created_by: None,
            damage: None,
        });
        let unfit = |error: stepwell_store::CellError| {
            ActionError::new("invalid", format!("session slot `{}`: {error}", self.key)).finally()
        };
        let (after, result) = write.apply(cell, at, self.cx.limits()).map_err(unfit)?;
        if let Some(after) = after {
            self.cx.set_session_value(&self.key, after.value)?;
        }
        Ok(result.value)
    }

    fn read(&self, value: &Value) -> Result<T, ActionError> {
        read(&self.cell_key(), value)
    }
}
