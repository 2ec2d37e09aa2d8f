//! Records of the server's own: cells of an owner that nobody writes by other ways, known for a moment after they were read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwell::store::{
    CellError, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitError, CommitId, Expect,
    Page, Refused, Space, Store, TenantId, TenantScope, Ttl, ValueType,
};
use stepwell::{DataError, Engine, EngineError};
use uuid::Uuid;

/// How long what is known of a record holds: so long what was changed in another process may not be heard of here.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Records that are remembered at a time.
const KNOWN_MAX: usize = 10_000;

/// Records of one kind, of all tenants.
pub(crate) struct Records<T> {
    engine: Engine,
    /// Whose cells they are: the engine's own.
    owner: &'static str,
    /// What one of them is called.
    what: &'static str,
    known: Mutex<HashMap<(TenantId, String), Known<T>>>,
}

/// What is known of a record at a moment; it may not be there.
struct Known<T> {
    at: Instant,
    record: Option<T>,
}

/// A record as it is kept.
pub(crate) struct Kept<T> {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) record: T,
}

impl<T: Clone + Serialize + DeserializeOwned> Records<T> {
    pub(crate) fn new(engine: Engine, owner: &'static str, what: &'static str) -> Self {
        Records { engine, owner, what, known: Mutex::default() }
    }

    /// A record as it is.
    pub(crate) async fn read(&self, scope: TenantScope, id: &str) -> Result<Option<Kept<T>>, EngineError> {
        let query = self.query(CellFilter::Key(id.to_owned()), 1, None);
        let Some(cell) = self.engine.store().cells(scope, query).await?.items.pop() else { return Ok(None) };
        let record =
            cell.value.map(serde_json::from_value).transpose().map_err(|error| {
                EngineError::Invalid(format!("{} `{id}` cannot be read: {error}", self.what))
            })?;
        Ok(record.map(|record| Kept { id: id.to_owned(), revision: cell.revision, record }))
    }

    /// A record as it was a moment ago.
    pub(crate) async fn known(&self, scope: TenantScope, id: &str) -> Result<Option<T>, EngineError> {
        let place = (scope.tenant(), id.to_owned());
        if let Some(known) = self.remembered().get(&place).filter(|known| known.at.elapsed() < KNOWN_FOR) {
            return Ok(known.record.clone());
        }
        let record = self.read(scope, id).await?.map(|kept| kept.record);
        let mut known = self.remembered();
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.at.elapsed() < KNOWN_FOR);
        }
        // Somebody who asks for very many does not fill the memory; the store is asked each time.
        if known.len() < KNOWN_MAX {
            known.insert(place, Known { at: Instant::now(), record: record.clone() });
        }
        Ok(record)
    }

    /// A tenant's records, in the order of their ids.
    pub(crate) async fn list(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<Kept<T>>, EngineError> {
        let query = self.query(CellFilter::Prefix(String::new()), limit, cursor);
        let page = self.engine.store().cells(scope, query).await?;
        let kept = |cell: stepwell::store::Cell| {
            let record = serde_json::from_value(cell.value?).ok()?;
            Some(Kept { id: cell.key.key, revision: cell.revision, record })
        };
        Ok(page.filter_map(kept))
    }

    /// Puts a record there, or takes it away; gives its revision.
    pub(crate) async fn write(
        &self,
        scope: TenantScope,
        id: &str,
        record: Option<&T>,
        expect: Expect,
        by: Option<&str>,
    ) -> Result<u64, DataError> {
        let op = match record {
            Some(record) => {
                let value = serde_json::to_value(record).expect("a record is plain data");
                CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever }
            }
            None => CellOp::Delete,
        };
        let key = CellKey { space: Space::Workflow, owner: self.owner.to_owned(), key: id.to_owned() };
        let mut commit = Commit::new(CommitId(Uuid::now_v7()), self.engine.now());
        commit.actor = by.map(str::to_owned);
        commit.cells.push(CellWrite { key, op, expect, initial: None, by: None });
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

    fn remembered(&self) -> MutexGuard<'_, HashMap<(TenantId, String), Known<T>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn query(&self, filter: CellFilter, limit: u32, cursor: Option<String>) -> CellQuery {
        let (space, owner, now) = (Space::Workflow, self.owner.to_owned(), self.engine.now());
        CellQuery { space, owner, filter, now, with_dead: false, limit, cursor }
    }
}
