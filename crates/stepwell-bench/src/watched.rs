//! A store around a store that tells of every step that was committed, when it was: history rows only know when the
//! commit was made up.

use std::sync::Arc;

use async_trait::async_trait;
use stepwell_core::RunId;
use stepwell_store::{
    Beat, Beaten, Cell, CellQuery, Claim, Commit, CommitError, CommitRef, Committed, Document, DocumentQuery,
    Due, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded, Page, ProcessId, Record, RecordQuery,
    Recorded, RunQuery, RunSummary, SchemaVersion, Status, Store, StoreError, Sweep, Swept, TenantId,
    TenantScope, WaitQuery, WaitRow,
};

/// Who is told: which run has moved, and how it is doing now.
pub(crate) type Told = Box<dyn Fn(RunId, Status) + Send + Sync>;

/// A store that tells of the steps it has committed.
pub(crate) struct Watched {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) told: Told,
}

#[async_trait]
impl Store for Watched {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let step = commit.step.as_ref().map(|step| (step.head.run, step.status));
        let committed = self.inner.commit(scope, commit).await?;
        if let Some((run, status)) = step {
            (self.told)(run, status);
        }
        Ok(committed)
    }
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.inner.outcome(scope, commit).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.inner.load(scope, run).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        self.inner.claim(scope, claim).await
    }
    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError> {
        self.inner.due(dead).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.inner.tenants(after, limit).await
    }
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        self.inner.beat(beat).await
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.inner.cells(scope, query).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.inner.runs(scope, query).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.inner.links(scope, query).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        self.inner.waits(scope, query).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        self.inner.history(scope, query).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        self.inner.documents(scope, query).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        self.inner.records(scope, query).await
    }
    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError> {
        self.inner.sweep(scope, sweep).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.inner.migrate().await
    }
}
