//! A store that wraps another store and opens a tracing span for every call.

use async_trait::async_trait;
use stepwell_core::RunId;
use tracing::{Instrument, Level, Span, field, span};

use crate::cell::Cell;
use crate::commit::{Commit, CommitError, CommitRef, Committed};
use crate::document::{Document, DocumentQuery};
use crate::hints::Hints;
use crate::link::{Link, LinkQuery};
use crate::run::{Loaded, ProcessId, RunSummary};
use crate::run_query::RunQuery;
use crate::scope::{TenantId, TenantScope};
use crate::store::{
    CellQuery, Claim, Cleanup, CleanupResult, DueTenant, Heartbeat, HistoryQuery, HistoryRow, Membership,
    Page, Record, RecordQuery, Recorded, SchemaVersion, Store, StoreError, WaitQuery, WaitRow,
};

/// A store that traces every call with its outcome. Spans never contain payloads.
#[derive(Debug)]
pub struct Traced<S>(S);

impl<S: Store> Traced<S> {
    /// Wraps a store whose calls are to be traced.
    pub fn new(inner: S) -> Self {
        Traced(inner)
    }
}

fn call(name: &'static str, scope: TenantScope) -> Span {
    span!(Level::DEBUG, "store", call = name, tenant = %scope.tenant(), outcome = field::Empty)
}

fn shared(name: &'static str) -> Span {
    span!(Level::DEBUG, "store", call = name, outcome = field::Empty)
}

/// Runs the call in the span and records its outcome there.
async fn noted<T, E: std::fmt::Display>(
    span: Span,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let result = call.instrument(span.clone()).await;
    match &result {
        Ok(_) => span.record("outcome", "ok"),
        Err(error) => span.record("outcome", field::display(error)),
    };
    result
}

#[async_trait]
impl<S: Store> Store for Traced<S> {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let span = span!(
            Level::DEBUG,
            "store",
            call = "commit",
            tenant = %scope.tenant(),
            commit = %commit.id.0,
            run = commit.step.as_ref().map(|step| field::display(step.head.run)),
            created = commit.create.len(),
            cells = commit.cells.len(),
            links = commit.links.len(),
            documents = commit.documents.len(),
            outcome = field::Empty,
        );
        noted(span, self.0.commit(scope, commit)).await
    }
    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        noted(call("outcome", scope), self.0.outcome(scope, commit)).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        noted(call("load", scope), self.0.load(scope, run)).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        noted(call("claim", scope), self.0.claim(scope, claim)).await
    }
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        noted(shared("due"), self.0.due(expired)).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        noted(shared("tenants"), self.0.tenants(after, limit)).await
    }
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        noted(shared("heartbeat"), self.0.heartbeat(beat)).await
    }
    fn hints(&self) -> Hints {
        self.0.hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        noted(call("cells", scope), self.0.cells(scope, query)).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        noted(call("links", scope), self.0.links(scope, query)).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        noted(call("runs", scope), self.0.runs(scope, query)).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        noted(call("waits", scope), self.0.waits(scope, query)).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        noted(call("history", scope), self.0.history(scope, query)).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        noted(call("documents", scope), self.0.documents(scope, query)).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        noted(call("records", scope), self.0.records(scope, query)).await
    }
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        noted(call("cleanup", scope), self.0.cleanup(scope, cleanup)).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        noted(shared("migrate"), self.0.migrate()).await
    }
}
