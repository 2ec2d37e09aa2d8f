//! A store around a store in which things go wrong when told to: the network before, during and after a call.

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
use crate::scope::{TenantId, TenantScope};
use crate::store::{
    Beat, Beaten, CellQuery, Claim, Due, HistoryQuery, HistoryRow, Page, Record, RecordQuery, Recorded,
    RunQuery, SchemaVersion, Store, StoreError, Sweep, Swept, WaitQuery, WaitRow,
};

/// Something that goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing does.
    None,
    /// The call fails and nothing has happened.
    Before,
    /// The call happens, and then the connection fails: the caller cannot know.
    After,
    /// The call happens, and no answer ever comes: the caller has to give up waiting by itself.
    LoseAnswer,
    /// The call happens after a while.
    Delay(Duration),
    /// The call happens, and its answer comes after a while.
    DelayAnswer(Duration),
}

/// A store whose calls go wrong as its script says; when the script is over, they go well.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    script: Mutex<VecDeque<Fault>>,
}

impl<S: Store> Faulty<S> {
    /// A store whose next calls go wrong like this, one after the other.
    pub fn new(inner: S, script: impl IntoIterator<Item = Fault>) -> Self {
        Faulty { inner, script: Mutex::new(script.into_iter().collect()) }
    }

    /// Adds to the script.
    pub fn then(&self, fault: Fault) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn next(&self) -> Fault {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(Fault::None)
    }

    /// Makes the call as the script says; `lost` is what the caller hears when the answer does not arrive.
    async fn goes<T, E: From<StoreError>>(
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
                // Whether it was done or refused, the caller hears neither.
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

    async fn around<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + std::marker::Send,
    ) -> Result<T, StoreError> {
        self.goes(call, || StoreError::Unavailable(LOST.to_owned())).await
    }
}

const LOST: &str = "the answer was lost (injected)";

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let reference = commit.reference();
        let lost = || CommitError::Unknown { reference, why: LOST.to_owned() };
        self.goes(self.inner.commit(scope, commit), lost).await
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.around(self.inner.outcome(scope, commit)).await
    }
    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.around(self.inner.load(scope, run)).await
    }
    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        self.around(self.inner.claim(scope, claim)).await
    }
    async fn due(&self, dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError> {
        self.around(self.inner.due(dead)).await
    }
    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        self.around(self.inner.tenants(after, limit)).await
    }
    async fn beat(&self, beat: Beat) -> Result<Beaten, StoreError> {
        self.around(self.inner.beat(beat)).await
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        self.around(self.inner.cells(scope, query)).await
    }
    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.around(self.inner.links(scope, query)).await
    }
    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.around(self.inner.runs(scope, query)).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        self.around(self.inner.waits(scope, query)).await
    }
    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        self.around(self.inner.history(scope, query)).await
    }
    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        self.around(self.inner.documents(scope, query)).await
    }
    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        self.around(self.inner.records(scope, query)).await
    }
    async fn sweep(&self, scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError> {
        self.around(self.inner.sweep(scope, sweep)).await
    }
    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.inner.migrate().await
    }
}
