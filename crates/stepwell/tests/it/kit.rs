//! What several of the tests need: a process that can be killed, a store that can be watched, and short ways to look.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use stepwell::core::{Entry, Limits, Name, RunId, Timestamp};
use stepwell::engine::Builder;
use stepwell::host::{BoxFuture, Spawn};
use stepwell::store::{
    AuditRow, Beat, Beaten, Cell, CellQuery, Claim, Commit, CommitError, CommitId, CommitRef, Committed,
    Document, DocumentQuery, Due, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded, MemoryStore,
    Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Status, Store,
    StoreError, Sweep, Swept, TenantId, TenantScope, WaitQuery, WaitRow, WaitsOf,
};
use stepwell::testing::{BEGINS, TestEngine, never_answer};
use stepwell::{Engine, EngineError, Host, ManualClock, Run};
use stepwell_postgres::ground::Ground;
use stepwell_sqlite::{Options, SqliteStore};

/// Says which store the tests run on.
const WHICH_STORE: &str = "STEPWELL_TEST_STORE";

/// An empty store of the kind that is asked for.
pub(crate) async fn store() -> Arc<dyn Store> {
    store_within(Limits::default()).await
}

/// The same with limits of its own.
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
            let (inner, lease) = Ground::open_recycled(change).await.unwrap();
            Arc::new(Keeping { inner, _place: lease })
        }
        other => panic!("{WHICH_STORE} is `{other}`; it can be `memory`, `sqlite` or `postgres`"),
    }
}

/// How many of something that only shows in numbers: a tenth of them where each is written to a database.
pub(crate) fn many(count: u64) -> u64 {
    let on_memory = std::env::var_os(WHICH_STORE).is_none_or(|kind| kind == "memory");
    if on_memory { count } else { count / 10 }
}

/// An engine on an empty store of the kind that is asked for.
pub(crate) async fn start(build: impl FnOnce(Builder) -> Builder) -> Result<TestEngine, EngineError> {
    let (store, clock) = ground().await;
    TestEngine::start_on(store, clock, build).await
}

/// The tasks of one process: they can be counted, and ended like a process that is killed.
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>);

impl Spawn for Tasks {
    fn spawn(&self, task: BoxFuture<()>) {
        self.0.lock().unwrap().push(tokio::spawn(task));
    }
}

impl Tasks {
    /// How many there ever were.
    pub(crate) fn begun(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// How many are going on.
    pub(crate) fn going(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|task| !task.is_finished()).count()
    }

    /// Ends them all where they are: nothing is let go of, nothing is said.
    pub(crate) async fn kill(&self) {
        let tasks: Vec<_> = std::mem::take(&mut *self.0.lock().unwrap());
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for task in tasks {
            let _ = task.await;
        }
    }
}

/// How long a process that can be killed counts as living without a heartbeat.
pub(crate) const LEASE_MS: u64 = 15_000;

/// An engine whose process can be killed; another one notices after [`LEASE_MS`].
pub(crate) async fn mortal(
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

/// Some time after the beginning of a test.
pub(crate) fn after_s(seconds: u64) -> Timestamp {
    BEGINS.plus_ms(seconds * 1_000)
}

/// Lets several engines do what they can do now.
pub(crate) async fn settle(engines: &[&TestEngine]) {
    for _ in 0..2 {
        for engine in engines {
            engine.settle().await;
        }
    }
}

/// What is to happen to a commit on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives.
    Arrives,
    /// It never arrives, and no answer ever comes.
    Hangs,
    /// It never arrives, and whoever sent it is told so.
    Fails,
    /// It arrives, and its answer is lost.
    AnswerLost,
}

type Rule = Box<dyn FnMut(&Commit) -> Fate + Send>;

/// A store around a store that keeps what was asked of it, and lets a test say what becomes of a commit.
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    rule: Mutex<Option<Rule>>,
    first: Mutex<Option<BoxFuture<()>>>,
    after_key: Mutex<Option<BoxFuture<()>>>,
    commits: Mutex<Vec<Commit>>,
    sweeps: Mutex<Vec<(Sweep, Swept)>>,
    unswept: Mutex<Option<TenantId>>,
    loads: AtomicUsize,
    reads: AtomicUsize,
    /// So many reads of cells are still to fail.
    unread: AtomicUsize,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Watched {
            inner,
            rule: Mutex::default(),
            first: Mutex::default(),
            after_key: Mutex::default(),
            commits: Mutex::default(),
            sweeps: Mutex::default(),
            unswept: Mutex::default(),
            loads: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
        })
    }

    /// From now on this says what becomes of a commit.
    pub(crate) fn rule(&self, rule: impl FnMut(&Commit) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Before the next commit arrives, this happens.
    pub(crate) fn first(&self, first: impl Future<Output = ()> + Send + 'static) {
        *self.first.lock().unwrap() = Some(Box::pin(first));
    }

    /// After the next look for the record of a key, and before whoever looks is told, this happens.
    pub(crate) fn after_key(&self, then: impl Future<Output = ()> + Send + 'static) {
        *self.after_key.lock().unwrap() = Some(Box::pin(then));
    }

    /// The commits that were asked for since this was last called.
    pub(crate) fn commits(&self) -> Vec<Commit> {
        std::mem::take(&mut *self.commits.lock().unwrap())
    }

    /// The sweeps since this was last called.
    pub(crate) fn sweeps(&self) -> Vec<(Sweep, Swept)> {
        std::mem::take(&mut *self.sweeps.lock().unwrap())
    }

    /// From now on nothing of this tenant's can be swept.
    pub(crate) fn never_sweep(&self, scope: TenantScope) {
        *self.unswept.lock().unwrap() = Some(scope.tenant());
    }

    /// How many runs were loaded or taken since this was last called.
    pub(crate) fn loads(&self) -> usize {
        self.loads.swap(0, Ordering::SeqCst)
    }

    /// The next reads of cells fail.
    pub(crate) fn fail_reads(&self, count: usize) {
        self.unread.store(count, Ordering::SeqCst);
    }

    /// How many reads of cells are still to fail.
    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Ordering::SeqCst)
    }

    /// How often cells were read since this was last called.
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
            match fate {
                Fate::Arrives => self.inner.commit(scope, commit).await,
                Fate::Hangs => never_answer().await,
                Fate::Fails => {
                    let why = "it is out of reach".to_owned();
                    Err(CommitError::Store(StoreError::Unavailable(why)))
                }
                Fate::AnswerLost => {
                    let _ = self.inner.commit(scope, commit).await;
                    Err(CommitError::Unknown { reference, why: "the answer was lost".to_owned() })
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
        self.inner.load(scope, run)
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
            let why = "it is out of reach".to_owned();
            return Box::pin(async { Err(StoreError::Unavailable(why)) });
        }
        self.inner.cells(scope, query)
    }

    fn sweep<'a, 'b>(&'a self, scope: TenantScope, sweep: Sweep) -> Answer<'b, Result<Swept, StoreError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            if *self.unswept.lock().unwrap() == Some(scope.tenant()) {
                return Err(StoreError::Unavailable("its rows are out of reach".to_owned()));
            }
            let swept = self.inner.sweep(scope, sweep.clone()).await?;
            self.sweeps.lock().unwrap().push((sweep, swept));
            Ok(swept)
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

    forward! {
        outcome(scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError>;
        due(dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError>;
        beat(beat: Beat) -> Result<Beaten, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}

/// A store, and the folder or schema that is its own while it is open.
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
        due(dead: Vec<ProcessId>) -> Result<Vec<Due>, StoreError>;
        beat(beat: Beat) -> Result<Beaten, StoreError>;
        cells(scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError>;
        runs(scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError>;
        links(scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError>;
        waits(scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError>;
        history(scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError>;
        documents(scope: TenantScope, query: DocumentQuery) -> Result<Page<Document>, StoreError>;
        records(scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError>;
        sweep(scope: TenantScope, sweep: Sweep) -> Result<Swept, StoreError>;
        tenants(after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError>;
        migrate() -> Result<SchemaVersion, StoreError>;
    }
}

/// A run's history: each change and the commit that made it.
pub(crate) async fn history(engine: &Engine, run: RunId) -> Vec<(Entry, CommitId)> {
    let query = HistoryQuery { run, from: 0, with_state: false, limit: 1_000 };
    let page = engine.store().history(engine.scope(), query).await.unwrap();
    assert_eq!(page.next, None, "the history is longer than the test thinks");
    let read = |row: &HistoryRow| serde_json::from_slice(&row.entry).unwrap();
    page.items.iter().map(|row| (read(row), row.commit)).collect()
}

/// What a run's history calls its changes.
pub(crate) async fn words(engine: &Engine, run: RunId) -> Vec<String> {
    history(engine, run).await.into_iter().map(|(entry, _)| entry.action).collect()
}

/// The audit trail.
pub(crate) async fn audit(engine: &Engine) -> Vec<(CommitId, AuditRow)> {
    let query = RecordQuery::Audit { limit: 1_000, cursor: None };
    let page = engine.store().records(engine.scope(), query).await.unwrap();
    let row = |record| match record {
        Record::Audit { commit, row, .. } => (commit, row),
        other => panic!("{other:?} is no row of the audit trail"),
    };
    page.items.into_iter().map(row).collect()
}

/// Every run of a tenant, in the order in which they were made.
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
    runs(engine, RunQuery { workflow: Some(workflow.into()), ..RunQuery::default() }).await
}

/// A run's children, by their numbers.
pub(crate) async fn children_of(engine: &Engine, run: RunId) -> Vec<RunSummary> {
    let mut found = runs(engine, RunQuery { parent: Some(run), ..RunQuery::default() }).await;
    found.sort_by_key(|child| child.parent.as_ref().map(|parent| parent.child));
    found
}

/// The open waits of a run.
pub(crate) async fn waits_of(engine: &Engine, run: RunId) -> Vec<WaitRow> {
    let query = WaitQuery { of: WaitsOf::Run(run), limit: 100, cursor: None };
    engine.store().waits(engine.scope(), query).await.unwrap().items
}

/// How a run is doing.
pub(crate) async fn status(run: &Run) -> Status {
    run.view().await.unwrap().status
}

/// The version a run is at.
pub(crate) async fn version(run: &Run) -> u64 {
    run.view().await.unwrap().snapshot.version()
}

/// The places a run is in.
pub(crate) async fn places(run: &Run) -> Vec<Name> {
    run.view().await.unwrap().snapshot.current_places()
}

/// A run's data.
pub(crate) async fn context(run: &Run) -> Value {
    run.view().await.unwrap().snapshot.context().clone()
}

/// The code of the error with which a run stands still.
pub(crate) async fn error_code(run: &Run) -> Option<String> {
    run.view().await.unwrap().ledger.stopped.map(|stopped| stopped.error.code)
}

/// Another tenant than the one of programs that have none.
pub(crate) fn other_tenant() -> TenantScope {
    TenantScope::vouched(TenantId::new(uuid::Uuid::from_u128(2)))
}

/// Is true before long, without any time passing for the engines.
pub(crate) async fn eventually(what: impl AsyncFn() -> bool) {
    soon(async {
        while !what().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Is done soon, or the test fails instead of hanging.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes too long")
}
