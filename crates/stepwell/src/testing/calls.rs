//! A store wrapper that tracks unanswered calls, so that a test can wait for a database.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::poll_immediate;
use stepwell_core::RunId;
use stepwell_store::{
    Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, DueTenant, Heartbeat, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded,
    Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Store,
    StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::runtime::{Handle, Id};

/// Time after a commit during which its hints may still arrive.
const HINTS_TAKE: Duration = Duration::from_millis(20);

/// The unanswered store calls of all test engines in one runtime.
#[derive(Default)]
pub(super) struct Calls(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    begun: u64,
    unanswered: BTreeSet<u64>,
    /// Number of unanswered calls that the test has declared to stay so.
    hanging: usize,
    committed: Option<Instant>,
}

impl Calls {
    /// Returns the tracker of the current runtime. Engines share it, because a commit of one affects the others.
    pub(super) fn here() -> Arc<Self> {
        static KNOWN: Mutex<Vec<(Option<Id>, Weak<Calls>)>> = Mutex::new(Vec::new());
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, calls)| calls.strong_count() > 0);
        let found = known.iter().find(|(runtime, _)| *runtime == here);
        found.and_then(|(_, calls)| calls.upgrade()).unwrap_or_else(|| {
            let calls = Arc::new(Calls::default());
            known.push((here, Arc::downgrade(&calls)));
            calls
        })
    }

    /// Returns a value that changes with each call that begins or ends.
    pub(super) fn mark(&self) -> (u64, usize) {
        let counts = self.counts();
        (counts.begun, counts.unanswered.len())
    }

    /// Returns true if there are calls that may still be answered.
    pub(super) fn are_under_way(&self) -> bool {
        let counts = self.counts();
        counts.unanswered.len() > counts.hanging
    }

    /// Never completes. The call that awaits this is not waited for.
    pub(super) async fn never<T>(self: Arc<Self>) -> T {
        struct Hanging(Arc<Calls>);
        impl Drop for Hanging {
            fn drop(&mut self) {
                self.0.counts().hanging -= 1;
            }
        }
        self.counts().hanging += 1;
        let _hanging = Hanging(self);
        std::future::pending().await
    }

    /// Stops waiting for the calls that are unanswered now.
    pub(super) fn give_up(&self) {
        self.counts().unanswered.clear();
    }

    /// Returns true if hints may still arrive.
    pub(super) fn may_hint(&self) -> bool {
        self.counts().committed.is_some_and(|at| at.elapsed() < HINTS_TAKE)
    }

    async fn counted<T>(&self, is_commit: bool, mut call: Answer<'_, T>) -> T {
        if let Some(answer) = poll_immediate(&mut call).await {
            return answer;
        }
        let under_way = self.begin(is_commit);
        let answer = call.await;
        drop(under_way);
        answer
    }

    fn begin(&self, is_commit: bool) -> UnderWay<'_> {
        let mut counts = self.counts();
        counts.begun += 1;
        let number = counts.begun;
        counts.unanswered.insert(number);
        UnderWay { calls: self, number, is_commit }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a call as unanswered until it is dropped, also if the caller is cancelled.
struct UnderWay<'a> {
    calls: &'a Calls,
    number: u64,
    is_commit: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut counts = self.calls.counts();
        counts.unanswered.remove(&self.number);
        if self.is_commit {
            counts.committed = Some(Instant::now());
        }
    }
}

/// Limits the number of steps: the first commit beyond the limit is never answered.
pub(crate) struct Meter {
    most: u64,
    steps: AtomicU64,
}

impl Meter {
    /// Creates a limit of `most` steps.
    pub(crate) fn new(most: u64) -> Self {
        Meter { most, steps: AtomicU64::new(0) }
    }

    /// Returns the number of steps so far: versions of runs, and commits without a version.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Returns true if the limit is exceeded.
    pub(crate) fn is_over(&self) -> bool {
        self.steps() > self.most
    }

    /// Counts a commit, and first lets other tasks run.
    async fn commit(&self, commit: &Commit) {
        let versions = commit.step.as_ref().map_or(1, |step| step.next.len().max(1));
        self.steps.fetch_add(versions as u64, Ordering::Relaxed);
        tokio::task::yield_now().await;
        if self.is_over() {
            Calls::here().never::<()>().await;
        }
    }
}

/// A store wrapper that counts calls.
pub(super) struct Counted {
    inner: Arc<dyn Store>,
    calls: Arc<Calls>,
    meter: Option<Arc<Meter>>,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn Store>, calls: Arc<Calls>, meter: Option<Arc<Meter>>) -> Self {
        Counted { inner, calls, meter }
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

macro_rules! counted {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)+) => {$(
        fn $name<'a, 'b>(&'a self, $($arg: $kind),*) -> Answer<'b, $answer>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(self.calls.counted(false, self.inner.$name($($arg),*)))
        }
    )+};
}

impl Store for Counted {
    fn hints(&self) -> Hints {
        self.inner.hints()
    }

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
            if let Some(meter) = &self.meter {
                meter.commit(&commit).await;
            }
            self.calls.counted(true, self.inner.commit(scope, commit)).await
        })
    }

    counted! {
        outcome(scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        load(scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError>;
        claim(scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;
        due(expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        heartbeat(beat: Heartbeat) -> Result<Membership, StoreError>;
        cells(scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        records(scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;
        cleanup(scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}
