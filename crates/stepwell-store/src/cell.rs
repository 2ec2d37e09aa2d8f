//! Cells: stored values for the key-value store and for shared state, and the operations on them.
//!
//! Operations are data. Every backend reads the row, calls [`CellWrite::apply`] and writes the row back while it holds
//! the row's lock. No SQL statement computes a value, so all backends agree.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell_core::limits::json_bytes;
use stepwell_core::{LimitExceeded, Limits, RunId, Timestamp};

use crate::bad::BadRow;

/// The kind of owner that a cell belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Space {
    /// The key-value store; the owner is a namespace.
    Kv,
    /// State shared by a root run and all runs below it; the owner is the root run's id.
    Execution,
    /// State shared by all runs of a workflow; the owner is the workflow's name.
    Workflow,
}

impl Space {
    /// Returns the stored form of this space.
    pub fn as_str(self) -> &'static str {
        match self {
            Space::Kv => "kv",
            Space::Execution => "execution",
            Space::Workflow => "workflow",
        }
    }
}

/// The full name of a cell, unique within a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CellKey {
    pub space: Space,
    /// A namespace, a root run's id or a workflow's name, depending on `space`.
    pub owner: String,
    pub key: String,
}

impl CellKey {
    /// Returns one text that names the cell, with each part percent-encoded. The audit trail uses it.
    pub fn address(&self) -> String {
        match self.space {
            Space::Kv => address("store", &[&self.owner, &self.key]),
            Space::Execution => address("state:execution", &[&self.owner, &self.key]),
            Space::Workflow => address("state:workflow-scope:default", &[&self.owner, &self.key]),
        }
    }

    /// Parses the output of [`CellKey::address`].
    pub fn from_address(address: &str) -> Option<CellKey> {
        let kinds = [
            ("store:", Space::Kv),
            ("state:execution:", Space::Execution),
            ("state:workflow-scope:default:", Space::Workflow),
        ];
        let (space, parts) =
            kinds.iter().find_map(|(kind, space)| Some((*space, address.strip_prefix(kind)?)))?;
        let (owner, key) = parts.split_once(':')?;
        let decoded = |part| percent_encoding::percent_decode_str(part).decode_utf8().ok();
        Some(CellKey { space, owner: decoded(owner)?.into_owned(), key: decoded(key)?.into_owned() })
    }

    /// Reports that the value stored under this key cannot be read.
    pub fn bad(&self, why: String) -> BadRow {
        let run = self.owner.parse().ok().filter(|_| self.space == Space::Execution);
        BadRow { table: "cells", key: self.address(), run, why }
    }
}

/// Joins the parts with colons, each percent-encoded so that a part cannot be mistaken for two.
pub(crate) fn address(kind: &str, parts: &[&str]) -> String {
    let mut text = kind.to_owned();
    for part in parts {
        text.push(':');
        text.push_str(&encoded(part));
    }
    text
}

/// Percent-encodes a part of an address.
pub(crate) fn encoded(part: &str) -> String {
    percent_encoding::utf8_percent_encode(part, UNRESERVED).to_string()
}

/// Every character except those that an address never encodes.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` of `{}`", self.space.as_str(), self.key, self.owner)
    }
}

/// The type of a stored value, as a hint for editors. Operations do not enforce it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ValueType {
    String,
    Number,
    Boolean,
    #[default]
    Json,
}

impl ValueType {
    /// Returns the stored form of this type.
    pub fn as_str(self) -> &'static str {
        match self {
            ValueType::String => "string",
            ValueType::Number => "number",
            ValueType::Boolean => "boolean",
            ValueType::Json => "json",
        }
    }

    /// Parses the output of [`ValueType::as_str`].
    pub fn from_word(word: &str) -> Option<Self> {
        let all = [ValueType::String, ValueType::Number, ValueType::Boolean, ValueType::Json];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A cell as stored. Without a value it is a tombstone: the key was deleted, but its revision is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub key: CellKey,
    /// `None` = the cell is a tombstone.
    pub value: Option<Value>,
    pub value_type: ValueType,
    /// Counts every write, including deletes. It restarts only after the tombstone itself has been removed.
    pub revision: u64,
    /// The cell counts as absent from this time on; `None` = it never expires.
    pub expires_at: Option<Timestamp>,
    /// The time of the first write.
    pub created_at: Timestamp,
    /// The time of the last write.
    pub updated_at: Timestamp,
    /// The run that first wrote it, if a run did.
    pub created_by: Option<RunId>,
    /// The reason the stored value cannot be read, if it cannot. The cell can still be overwritten and deleted.
    pub damage: Option<String>,
}

impl Cell {
    /// Returns the cell, or an error if its value cannot be read.
    pub fn whole(self) -> Result<Self, BadRow> {
        match &self.damage {
            Some(why) => Err(self.key.bad(why.clone())),
            None => Ok(self),
        }
    }

    /// Returns the value, unless it is deleted or has expired at this time.
    pub fn live(&self, at: Timestamp) -> Option<&Value> {
        self.value.as_ref().filter(|_| !self.is_expired(at))
    }

    fn is_expired(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires| expires <= at)
    }
}

/// One operation on one cell. The serialized form is used only to compare requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellWrite {
    pub key: CellKey,
    pub op: CellOp,
    /// The condition that must hold before the operation.
    pub expect: Precondition,
    /// The value that the operation starts from if the cell has none.
    pub initial: Option<Initial>,
    /// The run that writes, if a run does.
    #[serde(skip)]
    pub by: Option<RunId>,
}

/// An operation on a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum CellOp {
    /// Changes nothing. Only the condition is checked.
    Check,
    /// Sets the value, its type and its expiry.
    Set { value: Value, value_type: ValueType, ttl: Ttl },
    /// Removes the value and keeps a tombstone. Has no effect if there is no value.
    Delete,
    /// Adds a number; a missing value counts as 0. Integers are exact, and their overflow is an error.
    Increment { by: Number },
    /// Sets fields of an object and keeps the others; a missing value counts as empty. The merge is shallow.
    Merge { fields: Map<String, Value> },
    /// Adds an item at the end of a list; a missing value counts as empty.
    Append { item: Value },
    /// Removes the first item of a list and returns it. An empty list stays empty.
    RemoveFirst,
    /// Removes the last item of a list and returns it. An empty list stays empty.
    RemoveLast,
}

impl CellOp {
    /// Returns the operation's name in the audit trail.
    pub fn word(&self) -> &'static str {
        match self {
            CellOp::Check => "check",
            CellOp::Set { .. } => "set",
            CellOp::Delete => "delete",
            CellOp::Increment { .. } => "increment",
            CellOp::Merge { .. } => "merge",
            CellOp::Append { .. } => "append",
            CellOp::RemoveFirst => "remove_first",
            CellOp::RemoveLast => "remove_last",
        }
    }

    /// Returns the approximate size of its payload in bytes.
    pub(crate) fn size_hint(&self) -> usize {
        match self {
            CellOp::Set { value, .. } => json_bytes(value),
            CellOp::Append { item } => json_bytes(item),
            CellOp::Merge { fields } => fields.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
            CellOp::Check
            | CellOp::Delete
            | CellOp::Increment { .. }
            | CellOp::RemoveFirst
            | CellOp::RemoveLast => 0,
        }
    }
}

/// The lifetime of a value that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Ttl {
    /// The value never expires.
    Forever,
    /// The expiry time of the previous value; none if there was no value.
    Keep,
    Until(Timestamp),
    /// This many milliseconds after the commit's time.
    ForMs(u64),
}

/// A condition on a cell before a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum Precondition {
    /// No condition: the operation always applies.
    #[default]
    Anything,
    /// The cell has no value: never written, deleted or expired.
    Absent,
    /// The cell has a value and is at this revision.
    Live(u64),
    /// The cell is at this revision, with or without a value; 0 = it was never written.
    Exactly(u64),
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precondition::Anything => f.write_str("anything"),
            Precondition::Absent => f.write_str("no value"),
            Precondition::Live(revision) => write!(f, "a value with revision {revision}"),
            Precondition::Exactly(revision) => write!(f, "revision {revision}"),
        }
    }
}

/// The value that an operation starts from if the cell has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Initial {
    pub value: Value,
    /// Applies the value only if the cell was never written. After a delete or an expiry the operation starts from
    /// nothing.
    pub only_before_first_write: bool,
}

/// The result of an operation on a cell or on links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpResult {
    /// The revision after the operation; 0 for links and for a cell that was never written.
    pub revision: u64,
    /// True if there was no value before and there is one now.
    #[serde(default)]
    pub created: bool,
    /// True if there was a value before.
    #[serde(default)]
    pub existed: bool,
    /// The sum of an increment or the item of a removal; a link's id, or the number of deleted links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// The reason an operation on a cell failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CellError {
    /// The cell does not meet the condition of the write.
    #[error("expected {expected}, found revision {revision}{}", if *live { "" } else { " without a value" })]
    Conflict {
        expected: Precondition,
        /// The cell's current revision.
        revision: u64,
        /// True if the cell has a value now.
        live: bool,
    },
    /// The value has the wrong JSON type for the operation.
    #[error("the value is {found}, but the operation needs {needs}")]
    WrongKind {
        /// The JSON type of the value.
        found: &'static str,
        /// The JSON type that the operation needs.
        needs: &'static str,
    },
    /// The sum does not fit a 64-bit integer, or is not finite.
    #[error("{value} + {by} does not fit a 64-bit integer")]
    Overflow {
        value: Number,
        /// The number to be added.
        by: Number,
    },
    /// The value, key or owner is too large.
    #[error(transparent)]
    TooLarge(Box<LimitExceeded>),
    /// The key or owner is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// The stored value cannot be read. Only `Check`, `Set` and `Delete` work on it.
    #[error("the stored value cannot be read: {0}; set or delete it")]
    Unreadable(String),
}

impl From<LimitExceeded> for CellError {
    fn from(exceeded: LimitExceeded) -> Self {
        CellError::TooLarge(Box::new(exceeded))
    }
}

impl CellWrite {
    /// Applies the operation to the current cell. Returns the row to write (`None` = nothing to write) and the result.
    pub fn apply(
        &self,
        current: Option<Cell>,
        at: Timestamp,
        limits: &Limits,
    ) -> Result<(Option<Cell>, OpResult), CellError> {
        self.check_key(limits)?;
        let live = current.as_ref().and_then(|cell| cell.live(at)).cloned();
        let revision = current.as_ref().map_or(0, |cell| cell.revision);
        self.check_expectation(revision, live.is_some())?;
        let existed = live.is_some();
        let is_read = !matches!(self.op, CellOp::Check | CellOp::Set { .. } | CellOp::Delete);
        let damage = current.as_ref().and_then(|cell| cell.damage.as_ref());
        if let Some(why) = damage.filter(|_| existed && is_read) {
            return Err(CellError::Unreadable(why.clone()));
        }
        let unchanged = OpResult { revision, created: false, existed, value: None };
        let Done { value, result } = match &self.op {
            CellOp::Check => return Ok((None, unchanged)),
            // A slot that was never written gets a tombstone, so that it no longer counts as its initial value.
            CellOp::Delete if !existed && (revision > 0 || self.key.space == Space::Kv) => {
                return Ok((None, unchanged));
            }
            CellOp::Delete => Done { value: None, result: None },
            op => op.run(self.start(live, revision))?,
        };
        if let Some(value) = &value {
            limits.cell_bytes("the value", json_bytes(value))?;
        }
        let created = value.is_some() && !existed;
        let cell = self.write(current.filter(|_| existed || revision > 0), value, existed, revision, at);
        Ok((Some(cell), OpResult { revision: revision + 1, created, existed, value: result }))
    }

    fn check_key(&self, limits: &Limits) -> Result<(), CellError> {
        for (what, text) in [("key", &self.key.key), ("owner", &self.key.owner)] {
            if text.is_empty() {
                return Err(CellError::Empty(what));
            }
            limits.key_chars(what, text.chars().count())?;
        }
        Ok(())
    }

    fn check_expectation(&self, revision: u64, live: bool) -> Result<(), CellError> {
        let met = match self.expect {
            Precondition::Anything => true,
            Precondition::Absent => !live,
            Precondition::Live(expected) => live && revision == expected,
            Precondition::Exactly(expected) => revision == expected,
        };
        if met { Ok(()) } else { Err(CellError::Conflict { expected: self.expect, revision, live }) }
    }

    /// Returns the value that the operation starts from.
    fn start(&self, live: Option<Value>, revision: u64) -> Option<Value> {
        live.or_else(|| {
            let initial = self.initial.as_ref()?;
            (!initial.only_before_first_write || revision == 0).then(|| initial.value.clone())
        })
    }

    fn write(
        &self,
        current: Option<Cell>,
        value: Option<Value>,
        existed: bool,
        revision: u64,
        at: Timestamp,
    ) -> Cell {
        let kept_ttl = current.as_ref().filter(|_| existed).and_then(|cell| cell.expires_at);
        let kept_type = current.as_ref().map(|cell| cell.value_type).unwrap_or_default();
        let (value_type, expires_at) = match &self.op {
            CellOp::Set { value_type, ttl, .. } => {
                let expires_at = match ttl {
                    Ttl::Forever => None,
                    Ttl::Keep => kept_ttl,
                    Ttl::Until(at) => Some(*at),
                    Ttl::ForMs(ms) => Some(at.plus_ms(*ms)),
                };
                (*value_type, expires_at)
            }
            CellOp::Delete => (kept_type, None),
            CellOp::Increment { .. } => (ValueType::Number, kept_ttl),
            _ => (kept_type, kept_ttl),
        };
        let (created_at, created_by) =
            current.map_or((at, self.by), |cell| (cell.created_at, cell.created_by));
        Cell {
            key: self.key.clone(),
            value,
            value_type,
            revision: revision + 1,
            expires_at,
            created_at,
            updated_at: at,
            created_by,
            damage: None,
        }
    }
}

/// The value after an operation, and the operation's result.
struct Done {
    value: Option<Value>,
    result: Option<Value>,
}

impl CellOp {
    fn run(&self, start: Option<Value>) -> Result<Done, CellError> {
        Ok(match self {
            CellOp::Set { value, .. } => Done { value: Some(value.clone()), result: None },
            CellOp::Increment { by } => {
                let sum = add(&number(start)?, by)?;
                Done { value: Some(Value::Number(sum.clone())), result: Some(Value::Number(sum)) }
            }
            CellOp::Merge { fields } => {
                let mut object = object(start)?;
                object.extend(fields.clone());
                Done { value: Some(Value::Object(object)), result: None }
            }
            CellOp::Append { item } => {
                let mut list = list(start)?;
                list.push(item.clone());
                Done { value: Some(Value::Array(list)), result: None }
            }
            CellOp::RemoveFirst => {
                let mut list = list(start)?;
                let taken = (!list.is_empty()).then(|| list.remove(0));
                Done { value: Some(Value::Array(list)), result: taken }
            }
            CellOp::RemoveLast => {
                let mut list = list(start)?;
                let taken = list.pop();
                Done { value: Some(Value::Array(list)), result: taken }
            }
            CellOp::Check | CellOp::Delete => Done { value: start, result: None },
        })
    }
}

fn number(start: Option<Value>) -> Result<Number, CellError> {
    match start {
        None => Ok(Number::from(0)),
        Some(Value::Number(number)) => Ok(number),
        Some(other) => Err(CellError::WrongKind { found: kind(&other), needs: "a number" }),
    }
}

fn object(start: Option<Value>) -> Result<Map<String, Value>, CellError> {
    match start {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object),
        Some(other) => Err(CellError::WrongKind { found: kind(&other), needs: "an object" }),
    }
}

fn list(start: Option<Value>) -> Result<Vec<Value>, CellError> {
    match start {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(CellError::WrongKind { found: kind(&other), needs: "a list" }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Adds two numbers: exactly for 64-bit integers, in floating point if either side is a float.
fn add(value: &Number, by: &Number) -> Result<Number, CellError> {
    let overflow = || CellError::Overflow { value: value.clone(), by: by.clone() };
    let integer = |n: &Number| n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
    if let (Some(a), Some(b)) = (integer(value), integer(by)) {
        let sum = a + b;
        return i64::try_from(sum)
            .map(Number::from)
            .or_else(|_| u64::try_from(sum).map(Number::from))
            .map_err(|_| overflow());
    }
    let (a, b) = (value.as_f64().ok_or_else(overflow)?, by.as_f64().ok_or_else(overflow)?);
    Number::from_f64(a + b).ok_or_else(overflow)
}
