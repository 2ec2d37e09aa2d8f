//! Shared test helpers: a process that can be killed, a watched store, and short queries.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use stepwell::core::{HistoryEntry, Limits, Name, RunId, Timestamp};
use stepwell::engine::Builder;
use stepwell::host::{BoxFuture, Spawn};
use stepwell::store::{
    AuditRow, Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitId, CommitRef,
    Committed, Document, DocumentQuery, DueTenant, Heartbeat, Hints, HistoryQuery, HistoryRow, Link,
    LinkQuery, Loaded, Membership, MemoryStore, Page, ProcessId, Record, RecordQuery, Recorded, RunFilter,
    RunQuery, RunSummary, SchemaVersion, Status, Store, StoreError, TenantId, TenantScope, WaitFilter,
    WaitQuery, WaitRow,
};
use stepwell::testing::{BEGINS, TestEngine, never_answer};
use stepwell::{Engine, EngineError, Host, ManualClock, Run};
use stepwell_postgres::test_schema::TestSchema;
use stepwell_sqlite::{Options, SqliteStore};
use tokio::sync::Notify;

/// Environment variable that selects the store of the tests.
const WHICH_STORE: &str = "STEPWELL_TEST_STORE";

/// An empty store of the selected kind.
pub(crate) async fn store() -> Arc<dyn Store> {
    store_within(Limits::default()).await
}

/// An empty store of the selected kind with these limits.
pub(crate) async fn store_within(limits: Limits) -> Arc<dyn Store> {
    let kind = std::env::var_os(WHICH_STORE).unwrap_or_else(|| "memory".into());
    match kind.to_string_lossy().as_ref() {
        "memory" => Arc::new(MemoryStore::with_limits(limits)),
        "sqlite" => {
            let folder = tempfile::tempdir().unwrap();
            let options = Options { limits, ..Options::default() };
            let inner = SqliteStore::open_with(folder.path().join("runs.db"), options).unwrap();
            Arc::new(Keeping { inner, _place: folder })
        }
        "postgres" => {
            let change = |options| stepwell_postgres::Options { limits, ..options };
            let (inner, lease) = TestSchema::open_recycled(change).await.unwrap();
            Arc::new(Keeping { inner, _place: lease })
        }
        other => panic!("{WHICH_STORE} is `{other}`; it can be `memory`, `sqlite` or `postgres`"),
    }
}

/// Scales a count for volume tests: a tenth of it on stores that write to a database.
pub(crate) fn many(count: u64) -> u64 {
    let on_memory = std::env::var_os(WHICH_STORE).is_none_or(|kind| kind == "memory");
    if on_memory { count } else { count / 10 }
}

/// An engine on an empty store of the selected kind.
pub(crate) async fn start(build: impl FnOnce(Builder) -> Builder) -> Result<TestEngine, EngineError> {
    let (store, clock) = ground().await;
    TestEngine::start_on(store, clock, build).await
}

/// The tasks of one process: a test can count them, and abort them like those of a killed process.
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: BoxFuture<()>) {
        self.0.lock().unwrap().push(tokio::spawn(task));
    }
}

impl Tasks {
    /// The number of tasks ever spawned.
    pub(crate) fn begun(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The number of tasks that have not finished.
    pub(crate) fn going(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|task| !task.is_finished()).count()
    }

    /// Aborts all tasks where they are: no run is released and no message is sent.
    pub(crate) async fn kill(&self) {
        let tasks: Vec<_> = std::mem::take(&mut *self.0.lock().unwrap());
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// Lease of a process that can be killed, in milliseconds.
pub(crate) const LEASE_MS: u64 = 15_000;

/// An engine whose process can be killed; another one notices after [`LEASE_MS`].
pub(crate) async fn start_killable(
    store: Arc<dyn Store>,
    clock: &ManualClock,
    build: impl FnOnce(Builder) -> Builder,
) -> (TestEngine, Tasks) {
    let tasks = Tasks::default();
    let host = Host { spawn: Arc::new(tasks.clone()), ..Host::system() };
    let host = host.with_clock(Arc::new(clock.clone()));
    let build = |builder: Builder| build(builder.host(host).with(|options| options.lease_ms = LEASE_MS));
    (TestEngine::start_on(store, clock.clone(), build).await.unwrap(), tasks)
}

/// A store and a clock for several engines.
pub(crate) async fn ground() -> (Arc<dyn Store>, ManualClock) {
    (store().await, ManualClock::new(BEGINS))
}

/// The instant this many seconds after the start of a test.
pub(crate) fn after_s(seconds: u64) -> Timestamp {
    BEGINS.plus_ms(seconds * 1_000)
}

/// Lets several engines do all work that is due now.
pub(crate) async fn settle(engines: &[&TestEngine]) {
    for _ in 0..2 {
        for engine in engines {
            engine.settle().await;
        }
    }
}

/// The fate of a commit on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    /// The commit never arrives, and the call never returns.
    Hangs,
    /// The commit never arrives, and the call returns an error.
    Fails,
    /// The commit arrives, and its answer is lost.
    AnswerLost,
    /// The commit arrives, and its answer comes with the next call of [`Watched::answer_late`].
    AnswerLate,
}

type Rule = Box<dyn FnMut(&Commit) -> Fate + Send>;

/// A store wrapper that records calls and lets a test decide the fate of each commit.
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    rule: Mutex<Option<Rule>>,
    late: Notify,
    first: Mutex<Option<BoxFuture<()>>>,
    after_key: Mutex<Option<BoxFuture<()>>>,
    commits: Mutex<Vec<Commit>>,
    cleanups: Mutex<Vec<(Cleanup, CleanupResult)>>,
    unswept: Mutex<Option<TenantId>>,
    /// The tenants whose database node is down.
    down: Mutex<BTreeSet<TenantId>>,
    /// Set to make every heartbeat fail.
    has_no_heartbeats: AtomicBool,
    heartbeats: Mutex<Vec<Timestamp>>,
    spanning: AtomicUsize,
    loads: AtomicUsize,
    reads: AtomicUsize,
    /// The number of cell reads that are still to fail.
    unread: AtomicUsize,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Watched {
            inner,
            rule: Mutex::default(),
            late: Notify::new(),
            first: Mutex::default(),
            after_key: Mutex::default(),
            commits: Mutex::default(),
            cleanups: Mutex::default(),
            unswept: Mutex::default(),
            down: Mutex::default(),
            has_no_heartbeats: AtomicBool::new(false),
            heartbeats: Mutex::default(),
            spanning: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
        })
    }

    /// Sets the rule that decides the fate of every later commit.
    pub(crate) fn rule(&self, rule: impl FnMut(&Commit) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Delivers the answers that are late.
    pub(crate) fn answer_late(&self) {
        self.late.notify_waiters();
    }

    /// Runs this before the next commit arrives.
    pub(crate) fn first(&self, first: impl Future<Output = ()> + Send + 'static) {
        *self.first.lock().unwrap() = Some(Box::pin(first));
    }

    /// Runs this after the next lookup of a key's record, before its caller gets the answer.
    pub(crate) fn after_key(&self, then: impl Future<Output = ()> + Send + 'static) {
        *self.after_key.lock().unwrap() = Some(Box::pin(then));
    }

    /// The commits requested since the last call.
    pub(crate) fn commits(&self) -> Vec<Commit> {
        std::mem::take(&mut *self.commits.lock().unwrap())
    }

    /// The cleanups since the last call.
    pub(crate) fn cleanups(&self) -> Vec<(Cleanup, CleanupResult)> {
        std::mem::take(&mut *self.cleanups.lock().unwrap())
    }

    /// Makes every later cleanup of this tenant fail.
    pub(crate) fn fail_cleanups_of(&self, scope: TenantScope) {
        *self.unswept.lock().unwrap() = Some(scope.tenant());
    }

    /// Lets the database node of these tenants fail, and no other. Calls that span tenants fail while any node is down.
    pub(crate) fn nodes_down(&self, scopes: impl IntoIterator<Item = TenantScope>) {
        *self.down.lock().unwrap() = scopes.into_iter().map(|scope| scope.tenant()).collect();
    }

    /// Makes every later heartbeat fail.
    pub(crate) fn fail_heartbeats(&self) {
        self.has_no_heartbeats.store(true, Ordering::SeqCst);
    }

    /// The times of the heartbeats since the last call.
    pub(crate) fn heartbeats(&self) -> Vec<Timestamp> {
        std::mem::take(&mut *self.heartbeats.lock().unwrap())
    }

    /// The number of calls that span tenants since the last call.
    pub(crate) fn spanning(&self) -> usize {
        self.spanning.swap(0, Ordering::SeqCst)
    }

    /// Fails if the node of this tenant is down; without a tenant, if any node is.
    fn reach(&self, scope: Option<TenantScope>) -> Result<(), StoreError> {
        let down = self.down.lock().unwrap();
        let is_down = scope.map_or(!down.is_empty(), |scope| down.contains(&scope.tenant()));
        if is_down { Err(StoreError::Unavailable("simulated outage of a node".to_owned())) } else { Ok(()) }
    }

    /// The number of runs loaded or claimed since the last call.
    pub(crate) fn loads(&self) -> usize {
        self.loads.swap(0, Ordering::SeqCst)
    }

    /// Makes the next `count` cell reads fail.
    pub(crate) fn fail_reads(&self, count: usize) {
        self.unread.store(count, Ordering::SeqCst);
    }

    /// The number of cell reads that are still to fail.
    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::SeqCst)
    }

    /// The number of cell reads since the last call.
    pub(crate) fn reads(&self) -> usize {
        self.reads.swap(0, Ordering::SeqCst)
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

macro_rules! forward {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)+) => {$(
        fn $name<'a, 'b>(&'a self, $($arg: $kind),*) -> Answer<'b, $answer>
        where
            'a: 'b,
            Self: 'b,
        {
            self.inner.$name($($arg),*)
        }
    )+};
}

/// Calls about one tenant, which fail if its node is down.
macro_rules! reach_and_forward {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)+) => {$(
        fn $name<'a, 'b>(&'a self, scope: TenantScope, $($arg: $kind),*) -> Answer<'b, $answer>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async move {
                self.reach(Some(scope))?;
                self.inner.$name(scope, $($arg),*).await
            })
        }
    )+};
}

pub(crate) mod damaged;

impl Store for Watched {
    fn commit<'a, 'b>(
        &'a self,
        scope: TenantScope,
        commit: Commit,
    ) -> Answer<'b, Result<Committed, CommitError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let fate = self.rule.lock().unwrap().as_mut().map_or(Fate::Arrives, |rule| rule(&commit));
        self.commits.lock().unwrap().push(commit.clone());
        let first = self.first.lock().unwrap().take();
        Box::pin(async move {
            if let Some(first) = first {
                first.await;
            }
            let reference = commit.reference();
            self.reach(Some(scope))?;
            match fate {
                Fate::Arrives => self.inner.commit(scope, commit).await,
                Fate::Hangs => never_answer().await,
                Fate::Fails => {
                    let why = "simulated outage".to_owned();
                    Err(CommitError::Store(StoreError::Unavailable(why)))
                }
                Fate::AnswerLost => {
                    let _ = self.inner.commit(scope, commit).await;
                    Err(CommitError::Unknown { reference, why: "the answer was lost".to_owned() })
                }
                Fate::AnswerLate => {
                    let answer = self.inner.commit(scope, commit).await;
                    tokio::select! {
                        () = self.late.notified() => answer,
                        answer = never_answer() => answer,
                    }
                }
            }
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
        self.loads.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.reach(Some(scope))?;
            self.inner.load(scope, run).await
        })
    }

    fn claim<'a, 'b>(
        &'a self,
        scope: TenantScope,
        claim: Claim,
    ) -> Answer<'b, Result<Page<Loaded>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            self.reach(Some(scope))?;
            let taken = self.inner.claim(scope, claim).await?;
            self.loads.fetch_add(taken.items.len(), Ordering::SeqCst);
            Ok(taken)
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
        self.reads.fetch_add(1, Ordering::SeqCst);
        let less = |left: usize| left.checked_sub(1);
        if self.unread.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            let why = "simulated outage".to_owned();
            return Box::pin(async { Err(StoreError::Unavailable(why)) });
        }
        Box::pin(async move {
            self.reach(Some(scope))?;
            self.inner.cells(scope, query).await
        })
    }

    fn cleanup<'a, 'b>(
        &'a self,
        scope: TenantScope,
        cleanup: Cleanup,
    ) -> Answer<'b, Result<CleanupResult, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            if *self.unswept.lock().unwrap() == Some(scope.tenant()) {
                return Err(StoreError::Unavailable("simulated outage of one tenant".to_owned()));
            }
            self.reach(Some(scope))?;
            let cleaned = self.inner.cleanup(scope, cleanup.clone()).await?;
            self.cleanups.lock().unwrap().push((cleanup, cleaned));
            Ok(cleaned)
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
        let is_key = matches!(query, RecordQuery::Key { .. });
        let then = if is_key { self.after_key.lock().unwrap().take() } else { None };
        Box::pin(async move {
            self.reach(Some(scope))?;
            let found = self.inner.records(scope, query).await;
            if let Some(then) = then {
                then.await;
            }
            found
        })
    }

    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    fn due<'a, 'b>(&'a self, expired: Vec<ProcessId>) -> Answer<'b, Result<Vec<DueTenant>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.spanning.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.reach(None)?;
            self.inner.due(expired).await
        })
    }

    fn tenants<'a, 'b>(
        &'a self,
        after: Option<TenantId>,
        limit: u32,
    ) -> Answer<'b, Result<Vec<TenantId>, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.spanning.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.reach(None)?;
            self.inner.tenants(after, limit).await
        })
    }

    fn heartbeat<'a, 'b>(&'a self, beat: Heartbeat) -> Answer<'b, Result<Membership, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.heartbeats.lock().unwrap().push(beat.now);
        Box::pin(async move {
            if self.has_no_heartbeats.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable("simulated outage".to_owned()));
            }
            self.inner.heartbeat(beat).await
        })
    }

    reach_and_forward! {
        outcome(commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        runs(query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(query: DocumentQuery) -> Result<Page<Document>, StoreError>;
    }

    forward! {
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}

/// A store, and the folder or schema that exists while it is open.
struct Keeping<S, P> {
    inner: S,
    _place: P,
}

impl<S: Store, P: Send + Sync + 'static> Store for Keeping<S, P> {
    fn hints(&self) -> Hints {
        self.inner.hints()
    }

    forward! {
        commit(scope: TenantScope, commit: Commit) -> Result<Committed, CommitError>;
        outcome(scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        load(scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError>;
        claim(scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError>;
        due(expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError>;
        heartbeat(beat: Heartbeat) -> Result<Membership, StoreError>;
        cells(scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        records(scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;
        cleanup(scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}

/// The history of a run: each entry and the commit that made it.
pub(crate) async fn history(engine: &Engine, run: RunId) -> Vec<(HistoryEntry, CommitId)> {
    let query = HistoryQuery { run, from: 0, with_state: false, limit: 1_000 };
    let page = engine.store().history(engine.scope(), query).await.unwrap();
    assert_eq!(page.next, None, "the history has more than 1,000 entries");
    let read = |row: &HistoryRow| serde_json::from_slice(&row.entry).unwrap();
    page.items.iter().map(|row| (read(row), row.commit)).collect()
}

/// The action names in a run's history.
pub(crate) async fn history_actions(engine: &Engine, run: RunId) -> Vec<String> {
    history(engine, run).await.into_iter().map(|(entry, _)| entry.action).collect()
}

/// The audit trail with the commit of each row.
pub(crate) async fn audit(engine: &Engine) -> Vec<(CommitId, AuditRow)> {
    let query = RecordQuery::Audit { limit: 1_000, cursor: None };
    let page = engine.store().records(engine.scope(), query).await.unwrap();
    let row = |record| match record {
        Record::Audit { commit, row, .. } => (commit, row),
        other => panic!("{other:?} is not an audit row"),
    };
    page.items.into_iter().map(row).collect()
}

/// Every run of a tenant that matches the query, in order of creation.
pub(crate) async fn runs(engine: &Engine, query: RunQuery) -> Vec<RunSummary> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let query = RunQuery { limit: 1_000, cursor, ..query.clone() };
        let page = engine.store().runs(engine.scope(), query).await.unwrap();
        found.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            found.reverse();
            return found;
        }
    }
}

/// The runs of a workflow.
pub(crate) async fn runs_of(engine: &Engine, workflow: &str) -> Vec<RunSummary> {
    runs(engine, RunQuery { filter: RunFilter::of(workflow), ..RunQuery::default() }).await
}

/// The children of a run, ordered by their numbers.
pub(crate) async fn children_of(engine: &Engine, run: RunId) -> Vec<RunSummary> {
    let mut found = runs(
        engine,
        RunQuery { filter: RunFilter { parent: Some(run), ..RunFilter::default() }, ..RunQuery::default() },
    )
    .await;
    found.sort_by_key(|child| child.parent.as_ref().map(|parent| parent.child));
    found
}

/// The open waits of a run.
pub(crate) async fn waits_of(engine: &Engine, run: RunId) -> Vec<WaitRow> {
    let query = WaitQuery { of: WaitFilter::Run(run), limit: 100, cursor: None };
    engine.store().waits(engine.scope(), query).await.unwrap().items
}

/// The status of a run.
pub(crate) async fn status(run: &Run) -> Status {
    run.view().await.unwrap().status
}

/// The version of a run.
pub(crate) async fn version(run: &Run) -> u64 {
    run.view().await.unwrap().snapshot.version()
}

/// The active places of a run.
pub(crate) async fn places(run: &Run) -> Vec<Name> {
    run.view().await.unwrap().snapshot.current_places()
}

/// The context of a run.
pub(crate) async fn context(run: &Run) -> Value {
    run.view().await.unwrap().snapshot.context().clone()
}

/// The code of the error with which a run failed.
pub(crate) async fn error_code(run: &Run) -> Option<String> {
    run.view().await.unwrap().ledger.stopped.map(|stopped| stopped.error.code)
}

/// A tenant other than the default one.
pub(crate) fn other_tenant() -> TenantScope {
    TenantScope::trusted(TenantId::new(uuid::Uuid::from_u128(2)))
}

/// Waits until the condition is true, without advancing the engines' clock.
pub(crate) async fn eventually(what: impl AsyncFn() -> bool) {
    soon(async {
        while !what().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Waits for a future, and fails the test instead of hanging.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}
