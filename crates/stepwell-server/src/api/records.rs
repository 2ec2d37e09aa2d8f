//! The server's own records: cells with a reserved owner, cached briefly after a read.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwell::store::{
    BadRow, CellError, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitError, CommitId,
    Page, Precondition, Refused, Space, Store, StoreError, TenantId, TenantScope, Ttl, ValueType,
};
use stepwell::{DataError, Engine, EngineError};
use tokio::time::Instant;
use uuid::Uuid;

/// Time for which a cached record is used. Changes by other processes take effect after at most this time.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Number of records read per page.
const LISTED: u32 = 1_000;
/// Maximum number of cached records.
const KNOWN_MAX: usize = 10_000;
/// Maximum time to wait for a record if an older value is known.
const LONGEST_READ: Duration = Duration::from_millis(500);

/// A tenant and the id of one of its records.
type Place = (TenantId, String);

/// Records of one kind, for all tenants, with a cache.
pub(crate) struct Records<T> {
    engine: Engine,
    /// Owner of the cells, a reserved name such as `stepwell.tenants`.
    owner: &'static str,
    /// Name of one record in errors, such as `tenant`.
    what: &'static str,
    known: Mutex<HashMap<Place, Known<T>>>,
    /// Records whose read has taken too long and still runs.
    stuck: Mutex<HashSet<Place>>,
}

/// A cached record with the time it was read; `None` = it does not exist.
struct Known<T> {
    at: Instant,
    record: Option<Stored<T>>,
}

/// The value of a record that exists: readable, or not.
#[derive(Clone)]
pub(crate) enum Stored<T> {
    Readable(T),
    Unreadable(BadRow),
}

/// A stored record with its id and revision.
pub(crate) struct Kept<T> {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) record: T,
}

impl<T: Clone + Serialize + DeserializeOwned> Records<T> {
    pub(crate) fn new(engine: Engine, owner: &'static str, what: &'static str) -> Self {
        Records { engine, owner, what, known: Mutex::default(), stuck: Mutex::default() }
    }

    /// Reads a record from the store, without the cache. An unreadable record is an error.
    pub(crate) async fn read(&self, scope: TenantScope, id: &str) -> Result<Option<Kept<T>>, EngineError> {
        match self.stored(scope, id).await? {
            None => Ok(None),
            Some((revision, Stored::Readable(record))) => {
                Ok(Some(Kept { id: id.to_owned(), revision, record }))
            }
            Some((_, Stored::Unreadable(row))) => Err(StoreError::Bad(row).into()),
        }
    }

    /// Reads a record with its revision, which is 0 if the row is damaged.
    async fn stored(&self, scope: TenantScope, id: &str) -> Result<Option<(u64, Stored<T>)>, EngineError> {
        let query = self.query(CellFilter::Key(id.to_owned()), 1, None);
        let cell = match self.engine.store().cells(scope, query).await {
            Err(StoreError::Bad(row)) => return Ok(Some((0, self.damaged(row)))),
            page => page?.items.pop(),
        };
        let Some((cell, value)) = cell.and_then(|mut cell| cell.value.take().map(|value| (cell, value)))
        else {
            return Ok(None);
        };
        let stored = match serde_json::from_value(value) {
            Ok(record) => Stored::Readable(record),
            Err(error) => self.damaged(cell.key.bad(error.to_string())),
        };
        Ok(Some((cell.revision, stored)))
    }

    fn damaged(&self, row: BadRow) -> Stored<T> {
        tracing::error!(%row, "a stored {} is unreadable", self.what);
        Stored::Unreadable(row)
    }

    /// Returns true if the record exists but cannot be read. It can be replaced or deleted without its revision.
    pub(crate) async fn is_unreadable(&self, scope: TenantScope, id: &str) -> Result<bool, EngineError> {
        Ok(matches!(self.stored(scope, id).await?, Some((_, Stored::Unreadable(_)))))
    }

    /// Reads a record, from the cache if it was read recently.
    pub(crate) async fn known(&self, scope: TenantScope, id: &str) -> Result<Option<Stored<T>>, EngineError> {
        let place = (scope.tenant(), id.to_owned());
        if let Some(known) = self.remembered().get(&place).filter(|known| known.at.elapsed() < KNOWN_FOR) {
            return Ok(known.record.clone());
        }
        let record = self.stored(scope, id).await?.map(|(_, stored)| stored);
        let mut known = self.remembered();
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.at.elapsed() < KNOWN_FOR);
        }
        // A full cache takes no new entries, so that it stays bounded. Those records are read from the store each
        // time.
        if known.len() < KNOWN_MAX {
            known.insert(place, Known { at: Instant::now(), record: record.clone() });
        }
        Ok(record)
    }

    /// Reads a record like [`Records::known`]. While the store is not available, returns the last known value, however
    /// old it is.
    pub(crate) async fn known_or_last(
        self: &Arc<Self>,
        scope: TenantScope,
        id: &str,
    ) -> Result<Option<Stored<T>>, EngineError>
    where
        T: Send + 'static,
    {
        let place = (scope.tenant(), id.to_owned());
        let last = self.remembered().get(&place).map(|known| (known.at, known.record.clone()));
        let Some((at, last)) = last else { return self.known(scope, id).await };
        if at.elapsed() < KNOWN_FOR || self.stuck().contains(&place) {
            return Ok(last);
        }
        // The read goes on if this request does not wait for it: a connection must not be left with half an answer.
        let (records, id) = (self.clone(), id.to_owned());
        let mut reading = tokio::spawn(async move { records.known(scope, &id).await });
        match tokio::time::timeout(LONGEST_READ, &mut reading).await {
            Ok(Ok(Err(EngineError::Store(StoreError::Unavailable(why))))) => {
                tracing::warn!(why, "a {} cannot be read; its last known value is used", self.what);
                Ok(last)
            }
            Ok(Ok(read)) => read,
            Ok(Err(panic)) => Err(EngineError::Store(StoreError::Fatal(panic.to_string()))),
            Err(_) => {
                tracing::warn!("the read of a {} takes too long; its last known value is used", self.what);
                self.stuck().insert(place.clone());
                let records = self.clone();
                tokio::spawn(async move {
                    let _ = reading.await;
                    records.stuck().remove(&place);
                });
                Ok(last)
            }
        }
    }

    /// Lists a tenant's records by id. Those that cannot be read are in the page's `bad`.
    pub(crate) async fn list(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<Kept<T>>, EngineError> {
        let query = self.query(CellFilter::Prefix(String::new()), limit, cursor);
        let Page { items: cells, next, mut bad } = self.engine.store().cells(scope, query).await?;
        let mut items = Vec::with_capacity(cells.len());
        for cell in cells {
            let (key, revision, Some(value)) = (cell.key, cell.revision, cell.value) else { continue };
            match serde_json::from_value(value) {
                Ok(record) => items.push(Kept { id: key.key, revision, record }),
                Err(error) => bad.push(key.bad(error.to_string())),
            }
        }
        Ok(Page { items, next, bad })
    }

    /// Returns the rows of a tenant's records that cannot be read.
    pub(crate) async fn unreadable(&self, scope: TenantScope) -> Result<Vec<BadRow>, EngineError> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.list(scope, LISTED, cursor).await?;
            all.extend(page.bad);
            cursor = page.next;
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// Writes a record, or deletes it if `record` is `None`. Returns the new revision. `beside` is written in the same
    /// commit.
    pub(crate) async fn write(
        &self,
        scope: TenantScope,
        id: &str,
        record: Option<&T>,
        expect: Precondition,
        by: Option<&str>,
        beside: Option<CellWrite>,
    ) -> Result<u64, DataError> {
        let op = match record {
            Some(record) => {
                let value = serde_json::to_value(record).expect("a record serializes to JSON");
                CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever }
            }
            None => CellOp::Delete,
        };
        let key = CellKey { space: Space::Workflow, owner: self.owner.to_owned(), key: id.to_owned() };
        let mut commit = Commit::new(CommitId(Uuid::now_v7()), self.engine.now());
        commit.actor = by.map(str::to_owned);
        commit.cells.push(CellWrite { key, op, expect, initial: None, by: None });
        commit.cells.extend(beside);
        let committed = self.engine.store().commit(scope, commit).await;
        self.remembered().remove(&(scope.tenant(), id.to_owned()));
        match committed {
            Ok(committed) => Ok(committed.results.first().map_or(0, |result| result.revision)),
            Err(CommitError::Refused(Refused::Cell {
                error: CellError::Conflict { revision, live, .. },
                ..
            })) => Err(DataError::Conflict { what: format!("{} `{id}`", self.what), revision, exists: live }),
            Err(error) => Err(EngineError::from(error).into()),
        }
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<Place, Known<T>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, HashSet<Place>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn query(&self, filter: CellFilter, limit: u32, cursor: Option<String>) -> CellQuery {
        let (space, owner, now) = (Space::Workflow, self.owner.to_owned(), self.engine.now());
        CellQuery { space, owner, filter, now, include_deleted: false, limit, cursor }
    }
}
