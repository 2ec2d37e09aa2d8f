//! Changes to the data as values: what is to be written, put together before anything is.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};
use stepwell_core::{Limits, Timestamp};
use stepwell_store::{
    CellKey, CellOp, CellWrite, Edge, Ends, Entity, Expect, Initial, KeyWrite, LinkWrite, Lives, RELATED,
    Space, Ttl, ValueType,
};
use uuid::Uuid;

use crate::data::{DataError, Slot};

/// The operation that keys of writes are for.
pub(crate) const WRITE: &str = "write";

/// How much to add.
#[derive(Debug, Clone, PartialEq)]
pub struct Amount(Option<Number>);

impl Amount {
    /// The same downwards.
    #[must_use]
    pub(crate) fn negated(self) -> Self {
        let negated = |number: &Number| match number.as_i128() {
            Some(integer) => i64::try_from(-integer)
                .map(Number::from)
                .or_else(|_| u64::try_from(-integer).map(Number::from))
                .ok(),
            None => number.as_f64().and_then(|float| Number::from_f64(-float)),
        };
        Amount(self.0.as_ref().and_then(negated))
    }

    fn number(self) -> Result<Number, String> {
        self.0.ok_or_else(|| "an amount is a number that JSON and 64 bits can hold".to_owned())
    }
}

macro_rules! amounts {
    ($($kind:ty)+) => { $(impl From<$kind> for Amount {
        fn from(amount: $kind) -> Self {
            Amount(Some(amount.into()))
        }
    })+ };
}

amounts! { i32 i64 u32 u64 }

impl From<f64> for Amount {
    fn from(amount: f64) -> Self {
        Amount(Number::from_f64(amount))
    }
}

impl From<Number> for Amount {
    fn from(amount: Number) -> Self {
        Amount(Some(amount))
    }
}

/// A value that is set, for how long and on what condition.
#[derive(Debug, Clone)]
pub struct Set {
    value: Result<Value, String>,
    value_type: ValueType,
    ttl: Ttl,
    expect: Expect,
}

impl Set {
    /// A value that holds until it is deleted, whatever was there.
    pub fn new(value: impl Serialize) -> Self {
        let value = serde_json::to_value(value)
            .map_err(|error| format!("the value cannot be written as JSON: {error}"));
        Set { value, value_type: ValueType::Json, ttl: Ttl::Forever, expect: Expect::Anything }
    }

    /// For so long; to the millisecond, and at least one.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if ms == 0 {
            self.value = Err("a value has to hold for at least a millisecond".to_owned());
        }
        self.ttl = Ttl::ForMs(ms);
        self
    }

    /// As long as the value before it.
    #[must_use]
    pub fn keep_ttl(mut self) -> Self {
        self.ttl = Ttl::Keep;
        self
    }

    /// Only if the key is at this revision; 0 = only if it has no value.
    #[must_use]
    pub fn if_revision(mut self, revision: u64) -> Self {
        self.expect = expected(revision);
        self
    }

    /// A hint for editors.
    #[must_use]
    pub fn value_type(mut self, value_type: ValueType) -> Self {
        self.value_type = value_type;
        self
    }
}

pub(crate) fn expected(revision: u64) -> Expect {
    if revision == 0 { Expect::Absent } else { Expect::Live(revision) }
}

/// How much is added, and to what if nothing is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Increment {
    by: Amount,
    initial: Amount,
}

impl Increment {
    /// Adds so much, to 0 if nothing is there.
    pub fn by(by: impl Into<Amount>) -> Self {
        Increment { by: by.into(), initial: 0.into() }
    }

    /// What counts as there if nothing is.
    #[must_use]
    pub fn initial(mut self, initial: impl Into<Amount>) -> Self {
        self.initial = initial.into();
        self
    }
}

/// A link that is to be there.
#[derive(Debug, Clone)]
pub struct NewLink {
    from: Entity,
    to: Entity,
    relation: String,
    attributes: Result<Value, String>,
}

impl NewLink {
    /// From one thing to another, without attributes.
    pub fn new(from: Entity, to: Entity) -> Self {
        let attributes = Ok(Value::Object(Map::new()));
        NewLink { from, to, relation: RELATED.to_owned(), attributes }
    }

    /// What the one is to the other.
    #[must_use]
    pub fn relation(mut self, relation: impl Into<String>) -> Self {
        self.relation = relation.into();
        self
    }

    /// What else is to be said of it.
    #[must_use]
    pub fn attributes(mut self, attributes: impl Serialize) -> Self {
        let unfit = |error| format!("the attributes cannot be written as JSON: {error}");
        self.attributes = serde_json::to_value(attributes).map_err(unfit);
        self
    }
}

/// Changes that are made together or not at all: revisions that must be right, and what to write if they are.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Which of the two each of them is, in the order they were asked for.
    pub(crate) order: Vec<Kind>,
    pub(crate) once: Option<String>,
    wrong: Option<String>,
}

/// What a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Cell,
    Link,
}

impl Changes {
    /// None yet.
    pub fn new() -> Self {
        Changes::default()
    }

    /// They happen once: whoever asks for the same changes under the same key gets the same results, also from another
    /// run, for as long as keys are kept. The same key with other changes is an error.
    #[must_use]
    pub fn once(mut self, key: impl Into<String>) -> Self {
        self.once = Some(key.into());
        self
    }

    /// The key must be at this revision; 0 = it must have no value.
    #[must_use]
    pub fn check(self, namespace: impl Into<String>, key: impl Into<String>, revision: u64) -> Self {
        let write = CellWrite { expect: expected(revision), ..kv(namespace, key, CellOp::Check) };
        self.cell(Ok(write))
    }

    /// Gives a key a value, until it is deleted.
    #[must_use]
    pub fn set(self, namespace: impl Into<String>, key: impl Into<String>, value: impl Serialize) -> Self {
        self.set_with(namespace, key, Set::new(value))
    }

    /// Gives a key a value.
    #[must_use]
    pub fn set_with(self, namespace: impl Into<String>, key: impl Into<String>, set: Set) -> Self {
        let Set { value, value_type, ttl, expect } = set;
        let op = value.map(|value| CellOp::Set { value, value_type, ttl });
        self.cell(op.map(|op| CellWrite { expect, ..kv(namespace, key, op) }))
    }

    /// Takes a key's value away.
    #[must_use]
    pub fn delete(self, namespace: impl Into<String>, key: impl Into<String>) -> Self {
        self.cell(Ok(kv(namespace, key, CellOp::Delete)))
    }

    /// Adds to a key's number.
    #[must_use]
    pub fn increment(
        self,
        namespace: impl Into<String>,
        key: impl Into<String>,
        increment: Increment,
    ) -> Self {
        let write = || {
            let initial =
                Initial { value: increment.initial.number()?.into(), only_before_first_write: false };
            let op = CellOp::Increment { by: increment.by.number()? };
            Ok(CellWrite { initial: Some(initial), ..kv(namespace, key, op) })
        };
        self.cell(write())
    }

    /// Does something to a slot that runs share, if it has this version; 0 = if it has no value.
    #[must_use]
    pub fn slot<T>(self, slot: &Slot<T>, op: CellOp, if_version: Option<u64>) -> Self {
        self.cell(slot.change(op, if_version))
    }

    /// A link is there, with these attributes in place of those before.
    #[must_use]
    pub fn link(mut self, namespace: impl AsRef<str>, link: NewLink) -> Self {
        let NewLink { from, to, relation, attributes } = link;
        match attributes {
            Ok(attributes) => {
                let edge = Edge::new(namespace, from, to, relation);
                self.push_link(LinkWrite::Upsert { edge, id: Uuid::nil(), attributes, by: None });
            }
            Err(wrong) => drop(self.wrong.get_or_insert(wrong)),
        }
        self
    }

    /// Links that have an end in common are not there.
    #[must_use]
    pub fn unlink(mut self, ends: Ends) -> Self {
        self.push_link(LinkWrite::Delete { ends: trimmed(ends), by: None });
        self
    }

    fn push_link(&mut self, write: LinkWrite) {
        self.links.push(write);
        self.order.push(Kind::Link);
    }

    pub(crate) fn cell(mut self, write: Result<CellWrite, String>) -> Self {
        match write {
            Ok(write) => {
                self.cells.push(write);
                self.order.push(Kind::Cell);
            }
            Err(wrong) => drop(self.wrong.get_or_insert(wrong)),
        }
        self
    }

    /// There is nothing in them.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Refuses what cannot be written, whatever is there.
    pub(crate) fn check_all(&self, limits: &Limits) -> Result<(), DataError> {
        if let Some(wrong) = &self.wrong {
            return Err(DataError::Invalid(wrong.clone()));
        }
        if self.once.as_ref().is_some_and(String::is_empty) {
            return Err(DataError::Invalid("the idempotency key is empty".to_owned()));
        }
        for write in &self.cells {
            match &write.op {
                CellOp::Set { value, .. } => limits.nesting("the value", value)?,
                CellOp::Append { item } => limits.nesting("the item", item)?,
                CellOp::Merge { fields } => {
                    fields.values().try_for_each(|field| limits.nesting("the field", field))?;
                }
                _ => {}
            }
        }
        for write in &self.links {
            if let LinkWrite::Upsert { attributes, .. } = write {
                limits.nesting("the attributes", attributes)?;
            }
        }
        Ok(())
    }

    /// The record that makes them happen once.
    pub(crate) fn key(&self, until: Timestamp) -> Option<KeyWrite> {
        let key = self.once.clone()?;
        let asked = serde_json::to_vec(&(&self.cells, &self.links)).expect("operations are plain data");
        Some(KeyWrite {
            operation: WRITE.to_owned(),
            key,
            request: Sha256::digest(&asked).into(),
            answer: bytes::Bytes::new(),
            lives: Lives::Until(until),
        })
    }
}

fn kv(namespace: impl Into<String>, key: impl Into<String>, op: CellOp) -> CellWrite {
    let key = CellKey { space: Space::Kv, owner: namespace.into(), key: key.into() };
    CellWrite { key, op, expect: Expect::Anything, initial: None, by: None }
}

/// Spaces around names are not part of them.
pub(crate) fn trimmed(ends: Ends) -> Ends {
    let Ends { namespace, from, to, relation } = ends;
    let trim = |text: String| text.trim().to_owned();
    Ends { namespace: trim(namespace), from, to, relation: relation.map(trim) }
}

/// An operation on a slot, as the handles of all scopes make it.
pub(crate) mod slot_ops {
    use super::{Amount, CellOp, Serialize, Ttl, Value, ValueType};

    fn json(value: impl Serialize) -> Result<Value, String> {
        serde_json::to_value(value).map_err(|error| format!("this cannot be written as JSON: {error}"))
    }

    pub(crate) fn set(value: impl Serialize) -> Result<CellOp, String> {
        Ok(CellOp::Set { value: json(value)?, value_type: ValueType::Json, ttl: Ttl::Keep })
    }

    pub(crate) fn increment(by: Amount) -> Result<CellOp, String> {
        Ok(CellOp::Increment { by: by.number()? })
    }

    pub(crate) fn merge(fields: impl Serialize) -> Result<CellOp, String> {
        match json(fields)? {
            Value::Object(fields) => Ok(CellOp::Merge { fields }),
            other => Err(format!("only an object can be merged, not {other}")),
        }
    }

    pub(crate) fn append(item: impl Serialize) -> Result<CellOp, String> {
        Ok(CellOp::Append { item: json(item)? })
    }
}
