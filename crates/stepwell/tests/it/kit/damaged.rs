//! A store with rows that cannot be read, as if the disk had damaged them. It works on every kind of store.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use stepwell::core::{DefinitionHash, RunId};
use stepwell::store::{
    BadRow, Cell, CellError, CellFilter, CellKey, CellOp, CellQuery, Claim, Cleanup, CleanupResult, Commit,
    CommitError, CommitRef, Committed, Document, DocumentQuery, DueTenant, Heartbeat, Hints, HistoryQuery,
    HistoryRow, Link, LinkQuery, Loaded, Membership, Page, ProcessId, Record, RecordQuery, Recorded, Refused,
    RunQuery, RunSummary, SchemaVersion, Space, Store, StoreError, TenantId, TenantScope, WaitFilter,
    WaitQuery, WaitRow,
};

use super::Answer;

/// The rows that cannot be read.
#[derive(Default)]
pub(crate) struct Rows {
    /// Addresses of cells with an unreadable value.
    pub(crate) cells: BTreeSet<String>,
    /// Runs whose waits have an unreadable detail.
    pub(crate) details: BTreeSet<RunId>,
    /// Runs whose waits are unreadable rows.
    pub(crate) waits: BTreeSet<RunId>,
    /// Definitions that are unreadable rows.
    pub(crate) definitions: BTreeSet<DefinitionHash>,
    /// Runs whose state is unreadable.
    pub(crate) states: BTreeSet<RunId>,
    /// Runs that are listed but are gone when they are loaded.
    pub(crate) gone: BTreeSet<RunId>,
    /// Runs whose shadow columns are unreadable.
    pub(crate) shadows: BTreeSet<RunId>,
}

/// The store. Writing or deleting a damaged cell repairs it, as in a database.
pub(crate) struct Damaged {
    inner: Arc<dyn Store>,
    rows: Mutex<Rows>,
}

fn bad(table: &'static str, key: String, run: Option<RunId>) -> BadRow {
    BadRow { table, key, run, why: "damaged".to_owned() }
}

/// The address of a cell of the catalogue.
pub(crate) fn catalogue(key: &str) -> String {
    cell("stepwell.catalogue", key)
}

/// The address of a cell of the engine.
pub(crate) fn cell(owner: &str, key: &str) -> String {
    CellKey { space: Space::Workflow, owner: owner.to_owned(), key: key.to_owned() }.address()
}

impl Damaged {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Damaged { inner, rows: Mutex::default() })
    }

    pub(crate) fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap()
    }

    fn split(&self, row: &WaitRow) -> Result<WaitRow, BadRow> {
        let key = format!("{}:{}", row.run, row.wait.activation);
        let rows = self.rows();
        if rows.waits.contains(&row.run) {
            return Err(bad("waits", key, Some(row.run)));
        }
        let mut row = row.clone();
        if rows.details.contains(&row.run) {
            row.wait.detail = "{".into();
        }
        Ok(row)
    }
}

fn parted<T>(page: Page<T>, of: impl Fn(&T) -> Result<T, BadRow>) -> Page<T> {
    let (mut items, mut bad) = (Vec::new(), page.bad);
    for item in &page.items {
        match of(item) {
            Ok(item) => items.push(item),
            Err(row) => bad.push(row),
        }
    }
    Page { items, next: page.next, bad }
}

impl Store for Damaged {
    fn commit<'a, 'b>(
        &'a self,
        scope: TenantScope,
        commit: Commit,
    ) -> Answer<'b, Result<Committed, CommitError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            for (operation, write) in commit.cells.iter().enumerate() {
                let is_read = !matches!(write.op, CellOp::Check | CellOp::Set { .. } | CellOp::Delete);
                if is_read && self.rows().cells.contains(&write.key.address()) {
                    let (key, error) = (write.key.clone(), CellError::Unreadable("damaged".to_owned()));
                    return Err(CommitError::Refused(Refused::Cell { operation, key, error }));
                }
            }
            let cells = commit.cells.clone();
            let committed = self.inner.commit(scope, commit).await?;
            for write in cells.iter().filter(|write| write.op != CellOp::Check) {
                self.rows().cells.remove(&write.key.address());
            }
            Ok(committed)
        })
    }

    fn load<'a, 'b>(
        &'a self,
        scope: TenantScope,
        run: RunId,
    ) -> Answer<'b, Result<Option<Loaded>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            if self.rows().gone.contains(&run) {
                return Ok(None);
            }
            let loaded = self.inner.load(scope, run).await?;
            let is_bad = self.rows().states.contains(&run);
            let damage = Some(bad("checkpoints", run.to_string(), Some(run)));
            let damaged = |loaded: Loaded| Loaded { damage, ..loaded };
            Ok(if is_bad { loaded.map(damaged) } else { loaded })
        })
    }

    fn cells<'a, 'b>(
        &'a self,
        scope: TenantScope,
        query: CellQuery,
    ) -> Answer<'b, Result<Page<Cell>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let is_one = matches!(query.filter, CellFilter::Key(_));
            let page = self.inner.cells(scope, query).await?;
            let page = parted(page, |cell| match self.rows().cells.contains(&cell.key.address()) {
                true => Err(cell.key.bad("damaged".to_owned())),
                false => Ok(cell.clone()),
            });
            match page.bad.first() {
                Some(row) if is_one => Err(StoreError::Bad(row.clone())),
                _ => Ok(page),
            }
        })
    }

    fn waits<'a, 'b>(
        &'a self,
        scope: TenantScope,
        query: WaitQuery,
    ) -> Answer<'b, Result<Page<WaitRow>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let is_first = matches!(query.of, WaitFilter::FirstTopic { .. });
            let page = self.inner.waits(scope, query).await?;
            let topic = page.items.first().and_then(|row| row.wait.topic.clone());
            let mut page = parted(page, |row| self.split(row));
            if is_first && !page.bad.is_empty() {
                page.next = topic;
            }
            Ok(page)
        })
    }

    fn records<'a, 'b>(
        &'a self,
        scope: TenantScope,
        query: RecordQuery,
    ) -> Answer<'b, Result<Page<Record>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let is_one = matches!(query, RecordQuery::Definition(_));
            let page = self.inner.records(scope, query).await?;
            let page = parted(page, |record| match record {
                Record::Definition(stored) if self.rows().definitions.contains(&stored.hash) => {
                    Err(bad("definitions", format!("{} {}", stored.workflow, stored.hash), None))
                }
                Record::Shadow(row) if self.rows().shadows.contains(&row.run) => {
                    Err(bad("shadows", format!("{}:{}", row.run, row.name), Some(row.run)))
                }
                record => Ok(record.clone()),
            });
            match page.bad.first() {
                Some(row) if is_one => Err(StoreError::Bad(row.clone())),
                _ => Ok(page),
            }
        })
    }

    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    forward! {
        claim(scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;
        outcome(scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        due(expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError>;
        heartbeat(beat: Heartbeat) -> Result<Membership, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        cleanup(scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}
