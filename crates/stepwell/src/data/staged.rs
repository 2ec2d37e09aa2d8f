//! Data as an action sees it: the committed values, overlaid with the action's staged writes. Staged writes are
//! committed with the action's result.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::Timestamp;
use stepwell_store::{
    Cell, CellKey, CellOp, CellWrite, Entity, Initial, LinkEnds, OpResult, Page, Precondition, Space,
    ValueType,
};

use crate::action::ActionError;
use crate::cx::{Cx, Op};
use crate::data::changes::{Amount, Changes, Increment, NewLink, Set, expected, slot_ops};
use crate::data::error::DataError;
use crate::data::kv::{KeyEntry, KeyList, listed};
use crate::data::links::{Lookup, Match, looked_up, seen_from};

/// The keys of a namespace, as an action sees them.
#[derive(Debug, Clone)]
pub struct StagedKv {
    cx: Cx,
    namespace: String,
}

impl StagedKv {
    pub(crate) fn new(cx: Cx, namespace: String) -> Self {
        StagedKv { cx, namespace }
    }

    /// Returns the value of a key, overlaid with this action's staged writes.
    pub async fn get(&self, key: &str) -> Result<Option<KeyEntry>, ActionError> {
        self.cx.permit_read()?;
        let key = CellKey { space: Space::Kv, owner: self.namespace.clone(), key: key.to_owned() };
        let (cell, now) = (self.cx.overlaid(&key).await?, self.cx.now());
        Ok(cell.filter(|cell| cell.live(now).is_some()).and_then(KeyEntry::of))
    }

    /// Lists the committed keys, one page at a time. This action's staged writes are not included.
    pub async fn list(&self, list: KeyList) -> Result<Page<KeyEntry>, ActionError> {
        self.cx.permit_read()?;
        let query = listed(Space::Kv, &self.namespace, list, self.cx.now(), self.cx.limits())?;
        let page = self.cx.store().cells(self.cx.scope(), query).await?;
        Ok(page.filter_map(KeyEntry::of))
    }

    /// Stages a value for a key. The value never expires.
    pub fn set(&self, key: &str, value: impl Serialize) -> Result<(), ActionError> {
        self.set_with(key, Set::new(value))
    }

    /// Stages a value for a key, with a lifetime or a condition.
    pub fn set_with(&self, key: &str, set: Set) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().set_with(&self.namespace, key, set)).map(drop)
    }

    /// Stages the deletion of a key's value.
    pub fn delete(&self, key: &str) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().delete(&self.namespace, key)).map(drop)
    }

    /// Stages an addition to the number under a key. The sum is known at the commit.
    pub fn increment(&self, key: &str, by: impl Into<Amount>) -> Result<(), ActionError> {
        let changes = Changes::new().increment(&self.namespace, key, Increment::by(by));
        self.cx.stage_changes(changes).map(drop)
    }
}

/// The links of a namespace, as an action sees them.
#[derive(Debug, Clone)]
pub struct StagedLinks {
    cx: Cx,
    namespace: String,
}

impl StagedLinks {
    pub(crate) fn new(cx: Cx, namespace: String) -> Self {
        StagedLinks { cx, namespace }
    }

    /// Lists the committed links of an entity. This action's staged writes are not included.
    pub async fn lookup(&self, lookup: Lookup) -> Result<Page<Match>, ActionError> {
        self.cx.permit_read()?;
        let of = lookup.of.clone();
        let query = looked_up(&self.namespace, lookup, self.cx.limits())?;
        let page = self.cx.store().links(self.cx.scope(), query).await?;
        Ok(page.map(|link| seen_from(&of, link)))
    }

    /// Stages a link. Its attributes replace those of an existing link.
    pub fn upsert(&self, link: NewLink) -> Result<(), ActionError> {
        self.cx.stage_changes(Changes::new().link(&self.namespace, link)).map(drop)
    }

    /// Stages the deletion of the links that begin at `from`, end at `to`, or both. At least one end is required.
    pub fn delete(
        &self,
        from: Option<Entity>,
        to: Option<Entity>,
        relation: Option<String>,
    ) -> Result<(), ActionError> {
        let ends = LinkEnds { namespace: self.namespace.clone(), from, to, relation };
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

    /// Sets the value that the slot counts as before its first write. It does not apply after a delete.
    pub fn initial(mut self, initial: T) -> Result<Self, ActionError> {
        self.initial = Some(serde_json::to_value(initial)?);
        Ok(self)
    }

    /// Sets how often the whole action runs again after its update lost against a concurrent write, at least 1.
    /// Default: [`MAX_RETRIES`](crate::data::slot::MAX_RETRIES).
    #[must_use]
    pub fn max_retries(mut self, attempts: u32) -> Self {
        self.max_retries = attempts.max(1);
        self
    }

    /// Returns the value, overlaid with this action's staged writes.
    pub async fn get(&self) -> Result<Option<T>, ActionError> {
        Ok(self.look().await?.0)
    }

    pub(super) async fn look(&self) -> Result<(Option<T>, u64), ActionError> {
        self.cx.permit_read()?;
        let cell = self.cx.overlaid(&self.key).await?;
        let revision = cell.as_ref().map_or(0, |cell| cell.revision);
        let value = cell.and_then(|cell| cell.live(self.cx.now()).cloned());
        let value = value.or_else(|| self.initial.clone().filter(|_| revision == 0));
        Ok((value.map(|value| read(&self.key, &value)).transpose()?, revision))
    }

    /// Stages a function of the current value. If a concurrent write is committed before the action's result, the whole
    /// action runs again.
    pub async fn update(&self, change: impl FnOnce(Option<T>) -> T) -> Result<T, ActionError> {
        self.try_update(|before| Ok(change(before))).await
    }

    /// Stages a function of the current value that can fail.
    pub(super) async fn try_update(
        &self,
        change: impl FnOnce(Option<T>) -> Result<T, ActionError>,
    ) -> Result<T, ActionError> {
        let (before, revision) = self.look().await?;
        let after = change(before)?;
        let mut write = self.write(slot_ops::set(&after))?;
        write.expect = Precondition::Exactly(revision);
        self.cx.stage_update(write, self.max_retries)?;
        Ok(after)
    }

    /// Stages a new value.
    pub fn set(&self, value: &T) -> Result<(), ActionError> {
        self.stage(slot_ops::set(value))
    }

    /// Stages the deletion of the value.
    pub fn delete(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::Delete))
    }

    /// Stages an addition to the number. The sum is known at the commit.
    pub fn increment(&self, by: impl Into<Amount>) -> Result<(), ActionError> {
        self.stage(slot_ops::increment(by.into()))
    }

    /// Stages a subtraction from the number. The difference is known at the commit.
    pub fn decrement(&self, by: impl Into<Amount>) -> Result<(), ActionError> {
        self.increment(by.into().negated())
    }

    /// Stages fields of the object. They replace existing fields of the same name.
    pub fn merge(&self, fields: impl Serialize) -> Result<(), ActionError> {
        self.stage(slot_ops::merge(fields))
    }

    /// Stages an item to append to the list.
    pub fn append(&self, item: impl Serialize) -> Result<(), ActionError> {
        self.stage(slot_ops::append(item))
    }

    /// Stages the removal of the list's first item.
    pub fn remove_first(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::RemoveFirst))
    }

    /// Stages the removal of the list's last item.
    pub fn remove_last(&self) -> Result<(), ActionError> {
        self.stage(Ok(CellOp::RemoveLast))
    }

    fn write(&self, op: Result<CellOp, String>) -> Result<CellWrite, ActionError> {
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: true });
        let op = op.map_err(DataError::Invalid)?;
        Ok(CellWrite { key: self.key.clone(), op, expect: Precondition::Anything, initial, by: None })
    }

    fn stage(&self, op: Result<CellOp, String>) -> Result<(), ActionError> {
        self.change(op, None).map(drop)
    }

    /// Stages an operation, on the condition that the slot is at this revision. 0: that it has no value.
    pub(super) fn change(
        &self,
        op: Result<CellOp, String>,
        if_revision: Option<u64>,
    ) -> Result<Op, ActionError> {
        let mut write = self.write(op)?;
        write.expect = if_revision.map_or(Precondition::Anything, expected);
        let staged = self.cx.stage_changes(Changes::new().cell(Ok(write)))?;
        Ok(staged.into_iter().next().expect("one change has one id"))
    }
}

fn read<V: DeserializeOwned>(key: &CellKey, value: &Value) -> Result<V, ActionError> {
    V::deserialize(value).map_err(|error| {
        ActionError::new(
            "invalidState",
            format!("the value of {key} does not have the expected type: {error}"),
        )
        .non_retryable()
    })
}

/// A session slot, which belongs to one run. It is part of the run's state: reading it needs no query, and it is
/// committed with the step.
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

    /// Sets the value that the slot counts as when it has none, also after a delete.
    pub fn initial(mut self, initial: T) -> Result<Self, ActionError> {
        self.initial = Some(serde_json::to_value(initial)?);
        Ok(self)
    }

    /// Returns the value, or the initial one.
    pub fn get(&self) -> Result<Option<T>, ActionError> {
        let value = self.cx.session_value(&self.key).or_else(|| self.initial.clone());
        value.map(|value| self.read(&value)).transpose()
    }

    /// Stages a new value.
    pub fn set(&self, value: &T) -> Result<(), ActionError> {
        self.apply(slot_ops::set(value)).map(drop)
    }

    /// Stages a function of the value and returns the new value.
    pub fn update(&self, change: impl FnOnce(Option<T>) -> T) -> Result<T, ActionError> {
        let after = change(self.get()?);
        self.set(&after)?;
        Ok(after)
    }

    /// Stages the deletion of the value. Afterwards the slot counts as its initial value.
    pub fn delete(&self) -> Result<(), ActionError> {
        self.apply(Ok(CellOp::Delete)).map(drop)
    }

    /// Adds to the number and returns the sum.
    pub fn increment(&self, by: impl Into<Amount>) -> Result<T, ActionError> {
        let sum = self.apply(slot_ops::increment(by.into()))?.value;
        self.read(&sum.unwrap_or_default())
    }

    /// Subtracts from the number and returns the difference.
    pub fn decrement(&self, by: impl Into<Amount>) -> Result<T, ActionError> {
        self.increment(by.into().negated())
    }

    /// Sets fields of the object and replaces those that exist.
    pub fn merge(&self, fields: impl Serialize) -> Result<(), ActionError> {
        self.apply(slot_ops::merge(fields)).map(drop)
    }

    /// Appends an item to the list.
    pub fn append(&self, item: impl Serialize) -> Result<(), ActionError> {
        self.apply(slot_ops::append(item)).map(drop)
    }

    /// Removes the first item of the list and returns it.
    pub fn remove_first<I: DeserializeOwned>(&self) -> Result<Option<I>, ActionError> {
        self.removed(CellOp::RemoveFirst)
    }

    /// Removes the last item of the list and returns it.
    pub fn remove_last<I: DeserializeOwned>(&self) -> Result<Option<I>, ActionError> {
        self.removed(CellOp::RemoveLast)
    }

    fn removed<I: DeserializeOwned>(&self, op: CellOp) -> Result<Option<I>, ActionError> {
        self.apply(Ok(op))?.value.map(|item| read(&self.cell_key(), &item)).transpose()
    }

    fn cell_key(&self) -> CellKey {
        CellKey { space: Space::Execution, owner: self.cx.run().to_string(), key: self.key.clone() }
    }

    /// Applies an operation with the function that stores use, so that session slots behave like stored ones.
    pub(super) fn apply(&self, op: Result<CellOp, String>) -> Result<OpResult, ActionError> {
        let op = op.map_err(DataError::Invalid)?;
        let initial = self.initial.clone().map(|value| Initial { value, only_before_first_write: false });
        let key = self.cell_key();
        let write = CellWrite { key: key.clone(), op, expect: Precondition::Anything, initial, by: None };
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
            ActionError::new("invalid", format!("session slot `{}`: {error}", self.key)).non_retryable()
        };
        let (after, result) = write.apply(cell, at, self.cx.limits()).map_err(unfit)?;
        if let Some(after) = after {
            self.cx.set_session_value(&self.key, after.value)?;
        }
        Ok(result)
    }

    fn read(&self, value: &Value) -> Result<T, ActionError> {
        read(&self.cell_key(), value)
    }
}
