//! A test store that wraps another store and injects network faults before, during and after calls.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stepwell_core::RunId;

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

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call works normally.
    None,
    /// The call fails before it reaches the store. Nothing is applied.
    Before,
    /// The call reaches the store, then the connection fails. The caller does not learn the result.
    After,
    /// The call reaches the store, but no answer ever arrives. The caller must time out by itself.
    LoseAnswer,
    /// The call reaches the store after this delay.
    Delay(Duration),
    /// The call reaches the store at once, and its answer arrives after this delay.
    DelayAnswer(Duration),
}

/// A store whose calls fail according to a script. After the end of the script every call works.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    script: Mutex<VecDeque<Fault>>,
}

impl<S: Store> Faulty<S> {
    /// Wraps a store. Each of the next calls takes one fault from the script, in order.
    pub fn new(inner: S, script: impl IntoIterator<Item = Fault>) -> Self {
        Faulty { inner, script: Mutex::new(script.into_iter().collect()) }
    }

    /// Appends a fault to the script.
    pub fn then(&self, fault: Fault) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// Returns the wrapped store.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn next(&self) -> Fault {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(Fault::None)
    }

    /// Makes the call with the next fault of the script. `lost` is the error for a lost answer.
    async fn call_with_fault<T, E: From<StoreError>>(
        &self,
        call: impl Future<Output = Result<T, E>> + std::marker::Send,
        lost: impl FnOnce() -> E + std::marker::Send,
    ) -> Result<T, E> {
        match self.next() {
            Fault::None => call.await,
            Fault::Before => {
                Err(StoreError::Unavailable("the call never arrived (injected)".to_owned()).into())
            }
            Fault::After => {
                // The result is lost, whether the call was applied or refused.
                let _ = call.await;
                Err(lost())
            }
            Fault::LoseAnswer => {
                let _ = call.await;
                std::future::pending().await
            }
            Fault::Delay(pause) => {
                tokio::time::sleep(pause).await;
                call.await
            }
            Fault::DelayAnswer(pause) => {
                let answer = call.await;
                tokio::time::sleep(pause).await;
                answer
            }
        }
    }

    async fn with_fault<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + std::marker::Send,
    ) -> Result<T, StoreError> {
        self.call_with_fault(call, || StoreError::Unavailable(LOST.to_owned())).await
    }
}

const LOST: &str = "the answer was lost (injected)";

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let reference = commit.reference();
        let lost = || CommitError::Unknown { reference, why: LOST.to_owned() };
        self.call_with_fault(self.inner.commit(scope, commit), lost).await
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.with_fault(self.inner.outcome(scope, commit)).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.with_fault(self.inner.load(scope, run)).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        self.with_fault(self.inner.claim(scope, claim)).await
    }
    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        self.with_fault(self.inner.due(expired)).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.with_fault(self.inner.tenants(after, limit)).await
    }
    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        self.with_fault(self.inner.heartbeat(beat)).await
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.with_fault(self.inner.cells(scope, query)).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.with_fault(self.inner.links(scope, query)).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.with_fault(self.inner.runs(scope, query)).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        self.with_fault(self.inner.waits(scope, query)).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        self.with_fault(self.inner.history(scope, query)).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        self.with_fault(self.inner.documents(scope, query)).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        self.with_fault(self.inner.records(scope, query)).await
    }
    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        self.with_fault(self.inner.cleanup(scope, cleanup)).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.inner.migrate().await
    }
}
