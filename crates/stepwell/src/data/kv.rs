//! The key-value store: values under a namespace and a key, each with a revision that never restarts.

use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Number, Value};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{
    BadRow, Cell, CellFilter, CellKey, CellQuery, CountQuery, OpResult, Page, Record, RecordQuery, Space,
    Store, StoreError, TenantScope, ValueType,
};

use crate::actor::Permission;
use crate::data::changes::{Amount, Changes, Increment, Set};
use crate::data::error::DataError;
use crate::data::watch::{Watched, watch};
use crate::engine::Engine;

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyEntry {
    pub key: String,
    pub value: Value,
    /// Type of the value, as a hint for editors.
    pub value_type: ValueType,
    /// Number of writes to the key, deletes included.
    pub revision: u64,
    /// Expiry time. `None`: the value never expires.
    pub expires_at: Option<Timestamp>,
    /// Time of the first write to the key.
    pub created_at: Timestamp,
    /// Time of the last write to the key.
    pub updated_at: Timestamp,
    /// The run that first wrote the key, if a run did. The run may have been deleted.
    pub created_by_run: Option<RunId>,
}

impl KeyEntry {
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
        Some(KeyEntry {
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

    /// Deserializes the value as a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, DataError> {
        T::deserialize(&self.value).map_err(|error| {
            DataError::Invalid(format!(
                "the value of `{}` does not have the expected type: {error}",
                self.key
            ))
        })
    }
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Revision of the key after the write.
    pub revision: u64,
    /// The key had no value before.
    pub created: bool,
}

/// The result of an increment.
#[derive(Debug, Clone, PartialEq)]
pub struct Incremented {
    /// Number under the key after the addition.
    pub value: Number,
    /// Revision of the key after the write.
    pub revision: u64,
}

/// Selects one page of keys. Keys are listed in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyList {
    /// Only keys that begin with this text. It has no wildcards.
    pub prefix: String,
    /// Page size, 1 to 200. Default: 50.
    pub limit: Option<u32>,
    /// Cursor that the previous page returned in `next`. Default: the first page.
    pub cursor: Option<String>,
}

/// A namespace, or another name in use, with a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub namespace: String,
    /// Number of keys that have a value, or of links.
    pub count: u64,
}

/// Default number of rows per page.
const PAGE: u32 = 50;

impl Engine {
    /// Returns a handle to the keys of a namespace. A namespace exists as soon as it has a key.
    pub fn kv(&self, namespace: impl Into<String>) -> Kv {
        Kv { engine: self.clone(), namespace: namespace.into() }
    }

    /// Lists the namespaces that have keys with a value, ordered by name.
    pub async fn kv_namespaces(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.tally(CountQuery::Keys { now: self.now() }, limit, cursor).await
    }

    /// Lists names in use with their counts.
    pub(crate) async fn tally(
        &self,
        of: CountQuery,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.permit(Permission::Read)?;
        let limit = self.page(limit)?;
        let page = self.store().records(self.scope, RecordQuery::Count { of, limit, cursor }).await?;
        let count = |record| match record {
            Record::Count { name, count } => Some(Namespace { namespace: name, count }),
            _ => None,
        };
        Ok(page.filter_map(count))
    }

    /// Lists an owner's cells that have a value, ordered by key, one page at a time.
    pub(crate) async fn entries(
        &self,
        space: Space,
        owner: &str,
        list: KeyList,
    ) -> Result<Page<KeyEntry>, DataError> {
        let query = listed(space, owner, list, self.now(), &self.inner.options.limits)?;
        let page = self.store().cells(self.scope, query).await?;
        Ok(page.filter_map(KeyEntry::of))
    }

    /// Returns the page size. Rejects 0 and sizes above the limit `page_rows`.
    pub(crate) fn page(&self, limit: Option<u32>) -> Result<u32, DataError> {
        page(&self.inner.options.limits, limit)
    }
}

/// Returns the page size. Rejects 0 and sizes above the limit `page_rows`.
pub(crate) fn page(limits: &stepwell_core::Limits, limit: Option<u32>) -> Result<u32, DataError> {
    let limit = limit.unwrap_or(PAGE);
    if limit == 0 {
        return Err(DataError::Invalid("`limit` must be between 1 and 200 (got 0)".to_owned()));
    }
    limits.page_rows("the page", limit as usize)?;
    Ok(limit)
}

/// A handle to the keys of a namespace.
#[derive(Clone)]
pub struct Kv {
    engine: Engine,
    namespace: String,
}

impl Kv {
    /// Returns the name of the namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the value of a key. `None` if it was never written, is deleted or has expired.
    pub async fn get(&self, key: &str) -> Result<Option<KeyEntry>, DataError> {
        self.engine.permit(Permission::Read)?;
        let query = one(self.cell(key), self.engine.now(), false);
        Ok(self.engine.store().cells(self.engine.scope, query).await?.items.pop().and_then(KeyEntry::of))
    }

    /// Sets the value of a key. The value never expires.
    pub async fn set(&self, key: &str, value: impl Serialize) -> Result<Written, DataError> {
        self.set_with(key, Set::new(value)).await
    }

    /// Sets the value of a key, with a lifetime or a condition.
    pub async fn set_with(&self, key: &str, set: Set) -> Result<Written, DataError> {
        let result = self.one(Changes::new().set_with(&self.namespace, key, set)).await?;
        Ok(Written { revision: result.revision, created: result.created })
    }

    /// Deletes the value of a key. Returns `false` if it had none.
    pub async fn delete(&self, key: &str) -> Result<bool, DataError> {
        Ok(self.one(Changes::new().delete(&self.namespace, key)).await?.existed)
    }

    /// Adds to the number under a key. A missing value counts as 0.
    pub async fn increment(&self, key: &str, by: impl Into<Amount>) -> Result<Incremented, DataError> {
        self.increment_with(key, Increment::by(by)).await
    }

    /// Adds to the number under a key, with another initial value than 0.
    pub async fn increment_with(&self, key: &str, increment: Increment) -> Result<Incremented, DataError> {
        let result = self.one(Changes::new().increment(&self.namespace, key, increment)).await?;
        match result.value {
            Some(Value::Number(value)) => Ok(Incremented { value, revision: result.revision }),
            other => Err(DataError::Invalid(format!("an increment gave {other:?}"))),
        }
    }

    /// Lists the keys that have a value, in ascending order, one page at a time.
    pub async fn list(&self, list: KeyList) -> Result<Page<KeyEntry>, DataError> {
        self.engine.permit(Permission::Read)?;
        self.engine.entries(Space::Kv, &self.namespace, list).await
    }

    /// Streams the value of a key: the current one, and a new one after changes by any process. Intermediate values may
    /// be skipped.
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

/// Builds a query for one cell.
pub(crate) fn one(key: CellKey, now: Timestamp, include_deleted: bool) -> CellQuery {
    let CellKey { space, owner, key } = key;
    CellQuery { space, owner, filter: CellFilter::Key(key), now, include_deleted, limit: 1, cursor: None }
}

/// Reads one cell. An unreadable value is returned as the row that it is in.
pub(crate) async fn whole_or_bad(
    store: &dyn Store,
    scope: TenantScope,
    query: CellQuery,
) -> Result<Result<Option<Cell>, BadRow>, StoreError> {
    match store.cells(scope, query).await {
        Ok(mut page) => Ok(Ok(page.items.pop())),
        Err(StoreError::Bad(row)) => Ok(Err(row)),
        Err(error) => Err(error),
    }
}

/// Builds a query for one page of an owner's cells that have a value.
pub(crate) fn listed(
    space: Space,
    owner: &str,
    list: KeyList,
    now: Timestamp,
    limits: &stepwell_core::Limits,
) -> Result<CellQuery, DataError> {
    let KeyList { prefix, limit, cursor } = list;
    let (limit, filter) = (page(limits, limit)?, CellFilter::Prefix(prefix));
    Ok(CellQuery { space, owner: owner.to_owned(), filter, now, include_deleted: false, limit, cursor })
}
