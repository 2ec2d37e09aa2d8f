//! Changes to data as values: a set of writes that is built first and committed later.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};
use stepwell_core::{Limits, Timestamp};
use stepwell_store::{
    CellKey, CellOp, CellWrite, Entity, Initial, KeyLifetime, KeyWrite, LinkEdge, LinkEnds, LinkWrite,
    Precondition, RELATED, Space, Ttl, ValueType,
};
use uuid::Uuid;

use crate::data::{DataError, Slot};

/// Operation under which the idempotency keys of writes are recorded.
pub(crate) const WRITE: &str = "write";

/// A number to add. It must be representable in JSON with 64 bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Amount(Option<Number>);

impl Amount {
    /// Returns the amount with the opposite sign.
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
        self.0.ok_or_else(|| "the amount must be a finite number that fits in 64 bits".to_owned())
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

/// A value to set, with its lifetime and an optional condition.
#[derive(Debug, Clone)]
pub struct Set {
    value: Result<Value, String>,
    value_type: ValueType,
    ttl: Ttl,
    expect: Precondition,
}

impl Set {
    /// Creates a value that never expires and is set without a condition.
    pub fn new(value: impl Serialize) -> Self {
        let value = serde_json::to_value(value)
            .map_err(|error| format!("the value cannot be serialized as JSON: {error}"));
        Set { value, value_type: ValueType::Json, ttl: Ttl::Forever, expect: Precondition::Anything }
    }

    /// Sets the lifetime. It has a resolution of one millisecond and must be at least that long.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        if ms == 0 {
            self.value = Err("`ttl` must be at least one millisecond".to_owned());
        }
        self.ttl = Ttl::ForMs(ms);
        self
    }

    /// Keeps the expiry time of the previous value.
    #[must_use]
    pub fn keep_ttl(mut self) -> Self {
        self.ttl = Ttl::Keep;
        self
    }

    /// Writes only if the key is at this revision, otherwise it is a conflict. 0: only if the key has no value.
    #[must_use]
    pub fn if_revision(mut self, revision: u64) -> Self {
        self.expect = expected(revision);
        self
    }

    /// Sets the type of the value, as a hint for editors.
    #[must_use]
    pub fn value_type(mut self, value_type: ValueType) -> Self {
        self.value_type = value_type;
        self
    }
}

pub(crate) fn expected(revision: u64) -> Precondition {
    if revision == 0 { Precondition::Absent } else { Precondition::Live(revision) }
}

/// A number to add, and the value that a missing number counts as.
#[derive(Debug, Clone, PartialEq)]
pub struct Increment {
    by: Amount,
    initial: Amount,
}

impl Increment {
    /// Adds `by`. A missing number counts as 0.
    pub fn by(by: impl Into<Amount>) -> Self {
        Increment { by: by.into(), initial: 0.into() }
    }

    /// Sets the value that a missing number counts as.
    #[must_use]
    pub fn initial(mut self, initial: impl Into<Amount>) -> Self {
        self.initial = initial.into();
        self
    }
}

/// A link to create or update.
#[derive(Debug, Clone)]
pub struct NewLink {
    from: Entity,
    to: Entity,
    relation: String,
    attributes: Result<Value, String>,
}

impl NewLink {
    /// Creates a link from one entity to another, with the relation `related` and no attributes.
    pub fn new(from: Entity, to: Entity) -> Self {
        let attributes = Ok(Value::Object(Map::new()));
        NewLink { from, to, relation: RELATED.to_owned(), attributes }
    }

    /// Sets the relation between the two entities.
    #[must_use]
    pub fn relation(mut self, relation: impl Into<String>) -> Self {
        self.relation = relation.into();
        self
    }

    /// Sets the attributes. They replace the existing attributes.
    #[must_use]
    pub fn attributes(mut self, attributes: impl Serialize) -> Self {
        let unfit = |error| format!("the attributes cannot be serialized as JSON: {error}");
        self.attributes = serde_json::to_value(attributes).map_err(unfit);
        self
    }
}

/// A set of changes that is committed as a whole or not at all: revisions to check, and writes.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) links: Vec<LinkWrite>,
    /// Kind of each change, in the order in which the changes were added.
    pub(crate) order: Vec<Kind>,
    pub(crate) once: Option<String>,
    wrong: Option<String>,
}

/// The kind of data that a change affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Cell,
    Link,
}

impl Changes {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Changes::default()
    }

    /// Sets an idempotency key. A repeated write with this key and the same changes writes nothing and returns the
    /// first results, also from another run, until the key expires. The same key with other changes is an error.
    #[must_use]
    pub fn once(mut self, key: impl Into<String>) -> Self {
        self.once = Some(key.into());
        self
    }

    /// Checks that the key is at this revision. 0: that it has no value.
    #[must_use]
    pub fn check(self, namespace: impl Into<String>, key: impl Into<String>, revision: u64) -> Self {
        let write = CellWrite { expect: expected(revision), ..kv(namespace, key, CellOp::Check) };
        self.cell(Ok(write))
    }

    /// Sets the value of a key. The value never expires.
    #[must_use]
    pub fn set(self, namespace: impl Into<String>, key: impl Into<String>, value: impl Serialize) -> Self {
        self.set_with(namespace, key, Set::new(value))
    }

    /// Sets the value of a key, with a lifetime or a condition.
    #[must_use]
    pub fn set_with(self, namespace: impl Into<String>, key: impl Into<String>, set: Set) -> Self {
        let Set { value, value_type, ttl, expect } = set;
        let op = value.map(|value| CellOp::Set { value, value_type, ttl });
        self.cell(op.map(|op| CellWrite { expect, ..kv(namespace, key, op) }))
    }

    /// Deletes the value of a key.
    #[must_use]
    pub fn delete(self, namespace: impl Into<String>, key: impl Into<String>) -> Self {
        self.cell(Ok(kv(namespace, key, CellOp::Delete)))
    }

    /// Adds to the number under a key.
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

    /// Applies an operation to a shared slot, if it is at this version. 0: if it has no value. `None`: without a
    /// condition.
    #[must_use]
    pub fn slot<T>(self, slot: &Slot<T>, op: CellOp, if_version: Option<u64>) -> Self {
        self.cell(slot.change(op, if_version))
    }

    /// Creates a link, or replaces the attributes of the existing one.
    #[must_use]
    pub fn link(mut self, namespace: impl AsRef<str>, link: NewLink) -> Self {
        let NewLink { from, to, relation, attributes } = link;
        match attributes {
            Ok(attributes) => {
                let edge = LinkEdge::new(namespace, from, to, relation);
                self.push_link(LinkWrite::Upsert { edge, id: Uuid::nil(), attributes, by: None });
            }
            Err(wrong) => drop(self.wrong.get_or_insert(wrong)),
        }
        self
    }

    /// Deletes the links with these ends.
    #[must_use]
    pub fn unlink(mut self, ends: LinkEnds) -> Self {
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

    /// Returns `true` if the set has no changes.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Rejects changes that are invalid independent of the stored data.
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

    /// Builds the record of the idempotency key, if one is set.
    pub(crate) fn key(&self, until: Timestamp) -> Option<KeyWrite> {
        let key = self.once.clone()?;
        let asked = serde_json::to_vec(&(&self.cells, &self.links)).expect("operations are plain data");
        Some(KeyWrite {
            operation: WRITE.to_owned(),
            key,
            request: Sha256::digest(&asked).into(),
            answer: bytes::Bytes::new(),
            lifetime: KeyLifetime::Until(until),
        })
    }
}

fn kv(namespace: impl Into<String>, key: impl Into<String>, op: CellOp) -> CellWrite {
    let key = CellKey { space: Space::Kv, owner: namespace.into(), key: key.into() };
    CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None }
}

/// Trims the namespace and the relation.
pub(crate) fn trimmed(ends: LinkEnds) -> LinkEnds {
    let LinkEnds { namespace, from, to, relation } = ends;
    let trim = |text: String| text.trim().to_owned();
    LinkEnds { namespace: trim(namespace), from, to, relation: relation.map(trim) }
}

/// Builders of slot operations, shared by the handles of all scopes.
pub(crate) mod slot_ops {
    use super::{Amount, CellOp, Serialize, Ttl, Value, ValueType};

    fn json(value: impl Serialize) -> Result<Value, String> {
        serde_json::to_value(value)
            .map_err(|error| format!("the value cannot be serialized as JSON: {error}"))
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
            other => Err(format!("only an object can be merged (got {other})")),
        }
    }

    pub(crate) fn append(item: impl Serialize) -> Result<CellOp, String> {
        Ok(CellOp::Append { item: json(item)? })
    }
}
