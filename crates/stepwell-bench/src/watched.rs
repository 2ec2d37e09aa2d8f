//! A store wrapper that reports every committed step at the time of its acknowledgement. History rows contain only the
//! time of the decision.

use std::sync::Arc;

use async_trait::async_trait;
use stepwell_core::RunId;
use stepwell_store::{
    Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, DueTenant, Heartbeat, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded,
    Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Status,
    Store, StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};

/// An observer of commits, called with the run and its new status.
pub(crate) type Told = Box<dyn Fn(RunId, Status) + Send + Sync>;

/// A store that calls an observer after each committed step.
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
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        self.inner.due(expired).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.inner.tenants(after, limit).await
    }
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        self.inner.heartbeat(beat).await
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
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        self.inner.cleanup(scope, cleanup).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.inner.migrate().await
    }
}
