//! The key-value store: values under a namespace and a key, each with a revision that never restarts.

use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{
    Cell, CellFilter, CellKey, CellQuery, OpResult, Page, Record, RecordQuery, Space, Tally, ValueType,
};

use crate::actor::Permission;
use crate::data::changes::{Amount, Changes, Increment, Set};
use crate::data::error::DataError;
use crate::data::watch::{Watched, watch};
use crate::engine::Engine;

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// What kind of value it is.
    pub value_type: ValueType,
    /// Counts every write to the key, deletes included.
    pub revision: u64,
    /// When the value ends, if it does.
    pub expires_at: Option<Timestamp>,
    /// When the key was first written.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// The run that first wrote it, if a run did. It may be gone.
    pub created_by_run: Option<RunId>,
}

impl Entry {
    pub(crate) fn of(cell: Cell) -> Option<Self> {
        let Cell {
            key,
            value,
            value_type,
            revision,
            expires_at,
            created_at,
            updated_at,
            created_by,
            damage: _,
        } = cell;
        let (key, value) = (key.key, value?);
        Some(Entry {
            key,
            value,
            value_type,
            revision,
            expires_at,
            created_at,
            updated_at,
            created_by_run: created_by,
        })
    }

    /// The value as one of a type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, DataError> {
        T::deserialize(&self.value).map_err(|error| {
            DataError::Invalid(format!("the value of `{}` is something else: {error}", self.key))
        })
    }
}

/// What a write has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The key's revision now.
    pub revision: u64,
    /// It had no value before.
    pub created: bool,
}

/// What an increment has come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Incremented {
    /// The value now.
    pub value: Number,
    /// The key's revision now.
    pub revision: u64,
}

/// A part of a namespace's keys, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// Those that begin with this, taken literally.
    pub prefix: String,
    /// How many at most, up to 200; without it 50.
    pub limit: Option<u32>,
    /// Where to begin: what the part before gave.
    pub cursor: Option<String>,
}

/// A namespace and how much is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub namespace: String,
    /// How many keys with a value, or how many links.
    pub count: u64,
}

/// Rows of a listing that does not say how many.
const PAGE: u32 = 50;

impl Engine {
    /// The keys of a namespace; it need not be there yet.
    pub fn kv(&self, namespace: impl Into<String>) -> Kv {
        Kv { engine: self.clone(), namespace: namespace.into() }
    }

    /// The namespaces that have keys with a value, in their order.
    pub async fn kv_namespaces(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.tally(Tally::Keys { now: self.now() }, limit, cursor).await
    }

    /// Names that are in use, and how often.
    pub(crate) async fn tally(
        &self,
        of: Tally,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.permit(Permission::Read)?;
        let limit = self.page(limit)?;
        let page = self.store().records(self.scope, RecordQuery::Tally { of, limit, cursor }).await?;
        let count = |record| match record {
            Record::Tally { name, count } => Some(Namespace { namespace: name, count }),
            _ => None,
        };
        Ok(page.filter_map(count))
    }

    /// A part of an owner's cells that have a value, in the order of their keys.
    pub(crate) async fn entries(
        &self,
        space: Space,
        owner: &str,
        list: List,
    ) -> Result<Page<Entry>, DataError> {
        let query = listed(space, owner, list, self.now(), &self.inner.options.limits)?;
        let page = self.store().cells(self.scope, query).await?;
        Ok(page.filter_map(Entry::of))
    }

    /// How many rows a listing has.
    pub(crate) fn page(&self, limit: Option<u32>) -> Result<u32, DataError> {
        page(&self.inner.options.limits, limit)
    }
}

/// How many rows a listing has.
pub(crate) fn page(limits: &stepwell_core::Limits, limit: Option<u32>) -> Result<u32, DataError> {
    let limit = limit.unwrap_or(PAGE);
    if limit == 0 {
        return Err(DataError::Invalid("a listing of no rows says nothing: ask for 1 to 200".to_owned()));
    }
    limits.page_rows("the page", limit as usize)?;
    Ok(limit)
}

/// The keys of a namespace.
#[derive(Clone)]
pub struct Kv {
    engine: Engine,
    namespace: String,
}

impl Kv {
    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A key's value, unless it is deleted or expired.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, DataError> {
        self.engine.permit(Permission::Read)?;
        let query = one(self.cell(key), self.engine.now(), false);
        Ok(self.engine.store().cells(self.engine.scope, query).await?.items.pop().and_then(Entry::of))
    }

    /// Gives a key a value, until it is deleted.
    pub async fn set(&self, key: &str, value: impl Serialize) -> Result<Written, DataError> {
        self.set_with(key, Set::new(value)).await
    }

    /// Gives a key a value.
    pub async fn set_with(&self, key: &str, set: Set) -> Result<Written, DataError> {
        let result = self.one(Changes::new().set_with(&self.namespace, key, set)).await?;
        Ok(Written { revision: result.revision, created: result.created })
    }

    /// Takes a key's value away; says whether it had one.
    pub async fn delete(&self, key: &str) -> Result<bool, DataError> {
        Ok(self.one(Changes::new().delete(&self.namespace, key)).await?.existed)
    }

    /// Adds to a key's number, or to 0.
    pub async fn increment(&self, key: &str, by: impl Into<Amount>) -> Result<Incremented, DataError> {
        self.increment_with(key, Increment::by(by)).await
    }

    /// Adds to a key's number.
    pub async fn increment_with(&self, key: &str, increment: Increment) -> Result<Incremented, DataError> {
        let result = self.one(Changes::new().increment(&self.namespace, key, increment)).await?;
        match result.value {
            Some(Value::Number(value)) => Ok(Incremented { value, revision: result.revision }),
            other => Err(DataError::Invalid(format!("an increment gave {other:?}"))),
        }
    }

    /// A part of its keys that have a value, in their order.
    pub async fn list(&self, list: List) -> Result<Page<Entry>, DataError> {
        self.engine.permit(Permission::Read)?;
        self.engine.entries(Space::Kv, &self.namespace, list).await
    }

    /// A key's value as it is now, and whenever it has changed, here or elsewhere. Values in between may be skipped.
    pub fn watch(
        &self,
        key: &str,
    ) -> Result<impl Stream<Item = Result<Watched, DataError>> + use<>, DataError> {
        self.engine.permit(Permission::Read)?;
        Ok(watch(self.engine.clone(), self.cell(key)))
    }

    fn cell(&self, key: &str) -> CellKey {
        CellKey { space: Space::Kv, owner: self.namespace.clone(), key: key.to_owned() }
    }

    async fn one(&self, changes: Changes) -> Result<OpResult, DataError> {
        let results = self.engine.write(changes).await?;
        results.into_iter().next().ok_or_else(|| DataError::Invalid("a write gave no result".to_owned()))
    }
}

impl std::fmt::Debug for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kv").field(&self.namespace).finish()
    }
}

/// Asks for one cell.
pub(crate) fn one(key: CellKey, now: Timestamp, with_dead: bool) -> CellQuery {
    let CellKey { space, owner, key } = key;
    CellQuery { space, owner, filter: CellFilter::Key(key), now, with_dead, limit: 1, cursor: None }
}

/// Asks for a part of an owner's cells.
pub(crate) fn listed(
    space: Space,
    owner: &str,
    list: List,
    now: Timestamp,
    limits: &stepwell_core::Limits,
) -> Result<CellQuery, DataError> {
    let List { prefix, limit, cursor } = list;
    let (limit, filter) = (page(limits, limit)?, CellFilter::Prefix(prefix));
    Ok(CellQuery { space, owner: owner.to_owned(), filter, now, with_dead: false, limit, cursor })
}
