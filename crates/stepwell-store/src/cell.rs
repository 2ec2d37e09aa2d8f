//! Cells: one concept for scoped state and the key-value store, and the one function that applies operations to them.
//!
//! Operations are data. Every backend reads the row, calls [`CellWrite::apply`] and writes the row back, under the
//! row's lock: SQL holds no arithmetic and all backends agree.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell_core::limits::json_bytes;
use stepwell_core::{LimitExceeded, Limits, RunId, Timestamp};

use crate::bad::BadRow;

/// Which of the things that outlive a step a cell belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Space {
    /// The key-value store; the owner is a namespace.
    Kv,
    /// Shared by a root run and everything below it; the owner is the root run.
    Execution,
    /// Shared by all runs of a workflow; the owner is its name.
    Workflow,
}

impl Space {
    /// The word a store keeps.
    pub fn as_str(self) -> &'static str {
        match self {
            Space::Kv => "kv",
            Space::Execution => "execution",
            Space::Workflow => "workflow",
        }
    }
}

/// A cell's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CellKey {
    /// What it belongs to.
    pub space: Space,
    /// Whose it is there.
    pub owner: String,
    /// Its key.
    pub key: String,
}

impl CellKey {
    /// One text that names it, each part percent-encoded.
    pub fn address(&self) -> String {
        match self.space {
            Space::Kv => address("store", &[&self.owner, &self.key]),
            Space::Execution => address("state:execution", &[&self.owner, &self.key]),
            Space::Workflow => address("state:workflow-scope:default", &[&self.owner, &self.key]),
        }
    }

    /// What is kept under it cannot be read.
    pub fn bad(&self, why: String) -> BadRow {
        let run = self.owner.parse().ok().filter(|_| self.space == Space::Execution);
        BadRow { table: "cells", key: self.address(), run, why }
    }
}

/// Parts behind one another, each percent-encoded, so that no part can be taken for two.
pub(crate) fn address(kind: &str, parts: &[&str]) -> String {
    let mut text = kind.to_owned();
    for part in parts {
        text.push(':');
        text.extend(percent_encoding::utf8_percent_encode(part, UNRESERVED));
    }
    text
}

/// All but what is never encoded in an address.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` of `{}`", self.space.as_str(), self.key, self.owner)
    }
}

/// A hint for editors: what kind of value is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ValueType {
    /// Text.
    String,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// Anything.
    #[default]
    Json,
}

impl ValueType {
    /// The word a store keeps.
    pub fn as_str(self) -> &'static str {
        match self {
            ValueType::String => "string",
            ValueType::Number => "number",
            ValueType::Boolean => "boolean",
            ValueType::Json => "json",
        }
    }

    /// Reads the word a store keeps.
    pub fn from_word(word: &str) -> Option<Self> {
        let all = [ValueType::String, ValueType::Number, ValueType::Boolean, ValueType::Json];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A cell as stored. Without a value it is a tombstone: the key was deleted, its revision is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Its name.
    pub key: CellKey,
    /// Its value.
    pub value: Option<Value>,
    /// What kind of value it is.
    pub value_type: ValueType,
    /// Counts every write, deletes included; never restarts.
    pub revision: u64,
    /// From then on it counts as absent.
    pub expires_at: Option<Timestamp>,
    /// When it was first written.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// The run that first wrote it, if a run did.
    pub created_by: Option<RunId>,
    /// It has a value, and that cannot be read: this is what is wrong with it. It can be written over and deleted.
    pub damage: Option<String>,
}

impl Cell {
    /// The cell for whoever reads it: its value has to be readable.
    pub fn whole(self) -> Result<Self, BadRow> {
        match &self.damage {
            Some(why) => Err(self.key.bad(why.clone())),
            None => Ok(self),
        }
    }

    /// The value, unless it is deleted or expired.
    pub fn live(&self, at: Timestamp) -> Option<&Value> {
        self.value.as_ref().filter(|_| !self.is_expired(at))
    }

    fn is_expired(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires| expires <= at)
    }
}

/// One operation on one cell. It is written as JSON only to be compared with another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellWrite {
    /// Which cell.
    pub key: CellKey,
    /// What to do.
    pub op: CellOp,
    /// What must be true before.
    pub expect: Expect,
    /// What an absent cell counts as.
    pub initial: Option<Initial>,
    /// The run that writes.
    #[serde(skip)]
    pub by: Option<RunId>,
}

/// What to do with a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum CellOp {
    /// Nothing: only the expectation is checked.
    Check,
    /// Gives it a value.
    Set {
        /// The value.
        value: Value,
        /// What kind it is.
        value_type: ValueType,
        /// How long it holds.
        ttl: Ttl,
    },
    /// Takes the value away and keeps a tombstone.
    Delete,
    /// Adds a number; integers are exact, and their overflow is an error.
    Increment {
        /// How much.
        by: Number,
    },
    /// Puts fields into an object, replacing those of the same name.
    Merge {
        /// The fields.
        fields: Map<String, Value>,
    },
    /// Puts an item at the end of a list.
    Append {
        /// The item.
        item: Value,
    },
    /// Takes the first item of a list.
    RemoveFirst,
    /// Takes the last item of a list.
    RemoveLast,
}

impl CellOp {
    /// What it is called in the audit trail.
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

    /// About how many bytes it carries.
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

/// How long a value that is set holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Ttl {
    /// Until it is deleted.
    Forever,
    /// As long as the value before it.
    Keep,
    /// Until then.
    Until(Timestamp),
    /// So many milliseconds from the commit on.
    ForMs(u64),
}

/// What must be true of a cell before a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum Expect {
    /// Nothing in particular.
    #[default]
    Anything,
    /// It has no value now.
    Absent,
    /// It has a value, at this revision.
    Live(u64),
    /// It is at this revision, with or without a value; 0 = it was never written.
    Exactly(u64),
}

/// What an absent cell counts as for an operation that needs a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Initial {
    /// The value.
    pub value: Value,
    /// Only if the cell was never written: after a delete the operation starts from nothing.
    pub only_before_first_write: bool,
}

/// What an operation gives back, on a cell or on links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpResult {
    /// The revision after it; 0 for a cell that was never written.
    pub revision: u64,
    /// There was no value before, and there is one now.
    #[serde(default)]
    pub created: bool,
    /// There was a value before.
    #[serde(default)]
    pub existed: bool,
    /// The number an increment gave, or the item a removal took; a link's id, or how many links were deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// Why an operation cannot be done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CellError {
    /// It is not as expected.
    #[error("expected {expected:?}, it is at revision {revision}{}", if *live { "" } else { " and has no value" })]
    Conflict {
        /// What was expected.
        expected: Expect,
        /// The revision it is at.
        revision: u64,
        /// It has a value.
        live: bool,
    },
    /// The value is of the wrong kind.
    #[error("the value is {found}, and the operation needs {needs}")]
    WrongKind {
        /// What it is.
        found: &'static str,
        /// What was needed.
        needs: &'static str,
    },
    /// The result would not be an exact number.
    #[error("{value} + {by} does not fit a 64-bit integer")]
    Overflow {
        /// The value.
        value: Number,
        /// What was to be added.
        by: Number,
    },
    /// The value, key or owner is too large.
    #[error(transparent)]
    TooLarge(Box<LimitExceeded>),
    /// The key or owner is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// The value that is there cannot be read.
    #[error("its value cannot be read: {0}; set or delete it")]
    Unreadable(String),
}

impl From<LimitExceeded> for CellError {
    fn from(exceeded: LimitExceeded) -> Self {
        CellError::TooLarge(Box::new(exceeded))
    }
}

impl CellWrite {
    /// Does the operation on the cell as it is: the row to write (`None` = nothing to write) and its result.
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
            CellOp::Delete if !existed => return Ok((None, unchanged)),
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
            Expect::Anything => true,
            Expect::Absent => !live,
            Expect::Live(expected) => live && revision == expected,
            Expect::Exactly(expected) => revision == expected,
        };
        if met { Ok(()) } else { Err(CellError::Conflict { expected: self.expect, revision, live }) }
    }

    /// The value the operation starts from.
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

/// The value after an operation, and what it gives back.
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

/// Exact for 64-bit integers, floating point as soon as one side is.
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
