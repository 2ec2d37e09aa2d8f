//! Lost connections, a killed server and ended processes. The reported outcome of a commit is always true.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stepwell_core::shadow::ShadowValue;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::{ENGINE, TestSchema};
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{
    Claim, Cleanup, CleanupKind, Commit, CommitError, CommitId, HandleQuery, HandleRow, HandleWrite, Head,
    Heartbeat, Hint, Hints, HistoryQuery, Membership, NewRun, ProcessId, Record, RecordQuery, RefillColumn,
    Refused, RunFilter, RunQuery, RunUpdate, ShadowFilter, ShadowRefill, Store, StoreError,
};
use uuid::Uuid;

use crate::raw::{client, number, soon, texts};

/// Maximum time until a hint arrives. A successful test does not wait that long.
const SOON: Duration = Duration::from_secs(60);

/// Starts a separate server, because the test disturbs it.
pub(crate) async fn own_cluster() -> (Cluster, TestSchema) {
    let cluster = tokio::task::spawn_blocking(|| Cluster::own(&[]).unwrap()).await.unwrap();
    let test_schema = TestSchema::new(&cluster).await.unwrap();
    (cluster, test_schema)
}

/// One run that one task keeps advancing despite all faults.
pub(crate) struct Mover {
    store: Arc<PostgresStore>,
    make: Arc<make::Make>,
    /// The last known head of the run.
    head: Head,
    /// The commits that made its versions.
    made: Vec<CommitId>,
    tally: Arc<CallCounts>,
}

/// The counts of all movers of a test, which can be read while they run.
#[derive(Default)]
pub(crate) struct CallCounts {
    /// Versions created, including the first ones.
    made: AtomicUsize,
    /// Commits whose outcome was unknown at first.
    unknown: AtomicUsize,
}

impl Mover {
    async fn begin(
        store: &Arc<PostgresStore>,
        make: &Arc<make::Make>,
        tally: &Arc<CallCounts>,
        number: u128,
    ) -> Mover {
        let start = make.create(make::new_run(make::run(number)));
        let first = start.id;
        let head = ask::started(&**store, start).await;
        tally.made.fetch_add(1, Ordering::Relaxed);
        Mover { store: store.clone(), make: make.clone(), head, made: vec![first], tally: tally.clone() }
    }

    /// Returns the current head of the run. Retries until the store answers.
    async fn look(&self) -> Head {
        loop {
            match self.store.load(make::ME, self.head.run).await {
                Ok(loaded) => return loaded.unwrap().head,
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Returns true if a commit whose answer was lost is stored.
    async fn resolved(&self, commit: &Commit) -> bool {
        loop {
            match self.store.outcome(make::ME, commit.reference()).await {
                Ok(found) => return found.is_some(),
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Commits one step, and checks that the reported outcome is true.
    async fn step(&mut self) {
        let commit = self.make.step(make::step(&self.head, &format!("at {}", self.made.len())));
        let is_made = match self.store.commit(make::ME, commit.clone()).await {
            Ok(committed) => {
                assert_eq!(committed.head.unwrap().version, self.head.version + 1);
                true
            }
            Err(CommitError::Unknown { reference, .. }) => {
                assert_eq!(reference, commit.reference());
                self.tally.unknown.fetch_add(1, Ordering::Relaxed);
                self.resolved(&commit).await
            }
            Err(CommitError::Store(StoreError::Unavailable(_))) => false,
            Err(other) => panic!("no other task advances this run: {other}"),
        };
        let now = self.look().await;
        assert_eq!(
            now.version,
            self.head.version + u64::from(is_made),
            "the reported outcome is the stored one"
        );
        self.head = now;
        if is_made {
            self.made.push(commit.id);
            self.tally.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Commits a step on a head that never existed. It must be refused, or its outcome be unknown.
    async fn stale(&self) {
        let nowhere = Head { revision: self.head.revision + 7, ..self.head.clone() };
        match self.store.commit(make::ME, self.make.step(make::step(&nowhere, "never"))).await {
            Err(CommitError::Refused(Refused::Moved { .. }) | CommitError::Unknown { .. }) => {}
            Err(CommitError::Store(StoreError::Unavailable(_))) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Checks that each version exists once, and was created by the expected commit.
    async fn check(&self) {
        let all = HistoryQuery { run: self.head.run, from: 0, with_state: false, limit: 10_000 };
        let found = self.store.history(make::ME, all).await.unwrap().items;
        let commits: Vec<_> = found.iter().map(|row| row.commit).collect();
        assert_eq!(commits, self.made);
        assert!(found.iter().map(|row| row.version).eq(0..self.made.len() as u64), "{found:?}");
    }

    async fn go(mut self, stop: Arc<AtomicBool>, with_stale: bool) -> Mover {
        while !stop.load(Ordering::Relaxed) {
            self.step().await;
            if with_stale {
                self.stale().await;
            }
        }
        self
    }
}

/// Movers that run at the same time until they are stopped.
pub(crate) struct Movers {
    tasks: Vec<tokio::task::JoinHandle<Mover>>,
    stop: Arc<AtomicBool>,
    tally: Arc<CallCounts>,
}

impl Movers {
    /// Starts `count` runs and advances each in its own task. With `with_stale` each also tries steps that must be
    /// refused.
    pub(crate) async fn start(
        store: &Arc<PostgresStore>,
        make: &Arc<make::Make>,
        count: u128,
        with_stale: bool,
    ) -> Movers {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(CallCounts::default()));
        let mut all = Vec::new();
        for number in 1..=count {
            all.push(Mover::begin(store, make, &tally, number).await);
        }
        let tasks = all.into_iter().map(|mover| tokio::spawn(mover.go(stop.clone(), with_stale))).collect();
        Movers { tasks, stop, tally }
    }

    pub(crate) fn made(&self) -> usize {
        self.tally.made.load(Ordering::Relaxed)
    }

    /// Returns true if the outcome of a commit was unknown at first, and more than `made` versions exist. The time
    /// until then depends on the machine, so tests poll this instead of waiting for a fixed time.
    pub(crate) fn have_shown(&self, made: usize) -> bool {
        self.made() > made && self.tally.unknown.load(Ordering::Relaxed) > 0
    }

    /// Stops all and checks the history of each.
    pub(crate) async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let mut mover = soon(task).await.unwrap();
            soon(mover.step()).await;
            soon(mover.check()).await;
        }
    }
}

/// Cuts every connection of the engine's role again and again while many commit.
async fn cut(with_stale: bool) {
    let (_cluster, test_schema) = own_cluster().await;
    let store = Arc::new(test_schema.open().await.unwrap());
    let make = Arc::new(make::Make::new());
    let movers = Movers::start(&store, &make, 32, with_stale).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    let all = format!("from pg_stat_activity where usename = '{ENGINE}'");
    let (mut ended, mut rounds) = (0, 0);
    let has_shown = |ended, rounds| rounds >= 24 && ended >= 24 && movers.have_shown(80);
    while !has_shown(ended, rounds) && rounds < 600 {
        tokio::time::sleep(Duration::from_millis(50 + rounds * 17 % 80)).await;
        ended += number(&admin, &format!("select count(pg_terminate_backend(pid)) {all}")).await;
        rounds += 1;
    }
    assert!(
        has_shown(ended, rounds),
        "{ended} connections cut, {} steps made in {rounds} rounds",
        movers.made()
    );
    movers.finish().await;
    // The store works again without help, and at once.
    ask::started(&*store, make.create(make::new_run(make::run(1_000)))).await;
}

/// When a connection is lost in the middle of a commit, the caller must not get a wrong outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_never_misreport_a_commit() {
    cut(false).await;
}

/// The reason for a refusal is looked up after the batch is stored. If the connection is lost then, the other commits
/// of the batch must not be reported as failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_commit_on_a_cut_connection_does_not_fail_others() {
    cut(true).await;
}

/// The store must work again when a killed server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_recovers_after_the_server_is_killed() {
    let (mut cluster, test_schema) = own_cluster().await;
    let store = Arc::new(test_schema.open().await.unwrap());
    let make = Arc::new(make::Make::new());
    let movers = Movers::start(&store, &make, 8, false).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut cluster = tokio::task::spawn_blocking(move || {
        cluster.kill().unwrap();
        cluster
    })
    .await
    .unwrap();
    // A query waits for a while now, or fails.
    let early = tokio::time::timeout(Duration::from_secs(1), store.load(make::ME, make::run(1))).await;
    assert!(!matches!(early, Ok(Ok(_))), "there is no server to answer: {early:?}");
    let _cluster = tokio::task::spawn_blocking(move || {
        cluster.restart().unwrap();
        cluster
    })
    .await
    .unwrap();
    let back = Instant::now();
    soon(async {
        while store.load(make::ME, make::run(1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(back.elapsed() < Duration::from_secs(60), "{:?}", back.elapsed());
    let before = movers.made();
    soon(async {
        while movers.made() < before.max(16) + 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    movers.finish().await;
    soon(store.heartbeat(beat(process(), 0))).await.unwrap();
}

/// Returns a process id that no other test uses, because locks belong to the whole database.
fn process() -> ProcessId {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) as u128;
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    ProcessId(Uuid::from_u128(time.as_nanos() << 32 | count << 24 | u128::from(std::process::id())))
}

/// Returns a heartbeat with a lease of one hour.
fn beat(process: ProcessId, seconds: i64) -> Heartbeat {
    Heartbeat { process, now: make::at(seconds), lease_ms: 3_600_000 }
}

async fn membership(store: &PostgresStore, process: ProcessId, seconds: i64) -> Membership {
    soon(store.heartbeat(beat(process, seconds))).await.unwrap()
}

/// Waits for a wanted hint and skips others.
async fn heard(hints: &mut Hints, within: Duration, wanted: impl Fn(&Hint) -> bool) -> Option<Hint> {
    let hears = async {
        loop {
            let hint = hints.next().await.expect("the store is open");
            if wanted(&hint) {
                return hint;
            }
        }
    };
    tokio::time::timeout(within, hears).await.ok()
}

/// Returns true if a store counts a process as alive.
async fn is_alive(store: &PostgresStore, process: ProcessId, seconds: i64) -> bool {
    let query = RecordQuery::AliveProcess { process, now: make::at(seconds) };
    let found = soon(store.records(make::ME, query)).await.unwrap().items;
    assert!(found.iter().all(|found| *found == Record::AliveProcess(process)), "{found:?}");
    !found.is_empty()
}

/// Two stores on one schema, with one process each.
struct Two {
    test_schema: TestSchema,
    a: PostgresStore,
    b: PostgresStore,
    at_a: ProcessId,
    at_b: ProcessId,
}

impl Two {
    async fn open(change: impl Fn(Options) -> Options) -> Two {
        let test_schema = crate::test_schema().await;
        let options = change(test_schema.options());
        let config = format!("{} application_name={}", test_schema.engine(), test_schema.schema());
        let a = PostgresStore::open_with(&config, options.clone()).await.unwrap();
        let b = PostgresStore::open_with(&config, options).await.unwrap();
        let (at_a, at_b) = (process(), process());
        membership(&b, at_b, 0).await;
        assert_eq!(membership(&a, at_a, 0).await.alive, 2);
        assert_eq!(membership(&b, at_b, 0).await.alive, 2);
        Two { test_schema, a, b, at_a, at_b }
    }

    /// Creates a run that the process of the first store owns.
    async fn own(&self) {
        let new = NewRun { owner: Some(self.at_a), ..make::due_run(make::run(1), 0) };
        ask::started(&self.a, make::Make::new().create(new)).await;
    }
}

#[tokio::test]
async fn ended_session_expires_a_process_before_its_lease() {
    let two = Two::open(|options| options).await;
    two.own().await;
    let Two { a, b, at_a, at_b, .. } = two;
    // A new session judges no other process for a while.
    let mut hints = b.hints();
    let early = heard(&mut hints, Duration::from_secs(2), |hint| *hint == Hint::Processes).await;
    assert_eq!(early, None, "both live");
    let before = membership(&b, at_b, 1).await;
    assert_eq!((before.alive, before.expired), (2, Vec::new()));
    assert!(is_alive(&b, at_a, 1).await && is_alive(&a, at_b, 1).await && !is_alive(&b, process(), 1).await);
    drop(a);
    let noticed = heard(&mut hints, SOON, |hint| *hint == Hint::Processes).await;
    assert_eq!(noticed, Some(Hint::Processes));
    let after = membership(&b, at_b, 2).await;
    assert_eq!((after.alive, after.expired), (1, vec![at_a]));
    assert!(!is_alive(&b, at_a, 2).await && is_alive(&b, at_b, 2).await);
    let claim = Claim { expired: vec![at_a], ..ask::claim(at_b, 2) };
    assert_eq!(ask::taken(&b, claim).await, [make::run(1)]);
    assert_eq!(membership(&b, at_b, 3).await.expired, Vec::new());
}

#[tokio::test]
async fn without_sessions_only_the_lease_decides() {
    let two = Two::open(|options| Options { session: false, ..options }).await;
    two.own().await;
    let Two { a, b, at_a, at_b, .. } = two;
    let mut hints = b.hints();
    drop(a);
    let noticed = heard(&mut hints, Duration::from_millis(2_500), |hint| *hint == Hint::Processes).await;
    assert_eq!(noticed, None);
    let before = membership(&b, at_b, 3_000).await;
    assert_eq!((before.alive, before.expired), (2, Vec::new()));
    assert!(is_alive(&b, at_a, 3_000).await);
    let after = membership(&b, at_b, 3_601).await;
    assert!(!is_alive(&b, at_a, 3_601).await && is_alive(&b, at_b, 3_601).await);
    assert_eq!((after.alive, after.expired), (1, vec![at_a]));
}

/// A reconnected session must take its locks again. Otherwise its processes would count as expired.
#[tokio::test]
async fn cut_session_recovers_its_locks_and_notifications() {
    let two = Two::open(|options| options).await;
    let admin = client(&two.test_schema, two.test_schema.admin()).await;
    let Two { a, b, at_b, test_schema, .. } = two;
    let (mut at_a, mut hints) = (a.hints(), b.hints());
    let mine = format!("from pg_stat_activity where application_name = '{}'", test_schema.schema());
    let ended = number(&admin, &format!("select count(pg_terminate_backend(pid)) {mine}")).await;
    assert!(ended >= 4, "each store has a session and another connection, and {ended} were cut");
    for hints in [&mut at_a, &mut hints] {
        let back = heard(hints, SOON, |hint| *hint == Hint::Missed).await;
        assert_eq!(back, Some(Hint::Missed), "notifications may have been missed meanwhile");
    }
    // Longer than the minimum age of a session, and without another heartbeat of the other process.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(membership(&b, at_b, 1).await.alive, 2);
    ask::started(&a, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    let told = heard(&mut hints, SOON, |hint| matches!(hint, Hint::Run(..))).await;
    assert_eq!(told, Some(Hint::Run(make::ME.run(make::run(1)))));
}

#[tokio::test]
async fn due_runs_are_notified_to_other_processes() {
    let Two { a, b, .. } = Two::open(|options| options).await;
    let mut hints = b.hints();
    let make = make::Make::new();
    let start = make.create(make::due_run(make::run(1), 0));
    ask::started(&a, start).await;
    let wanted = Hint::Run(make::ME.run(make::run(1)));
    let told = heard(&mut hints, SOON, |hint| *hint == wanted).await;
    assert_eq!(told.as_ref(), Some(&wanted));
    // The sender itself does not get the hint twice.
    let mut own = a.hints();
    ask::started(&a, make.create(make::due_run(make::run(2), 0))).await;
    let wanted = Hint::Run(make::ME.run(make::run(2)));
    assert!(heard(&mut own, SOON, |hint| *hint == wanted).await.is_some());
    assert_eq!(heard(&mut own, Duration::from_millis(300), |hint| *hint == wanted).await, None);
}

#[tokio::test]
async fn without_notifications_others_find_due_runs_by_polling() {
    let Two { a, b, .. } = Two::open(|options| Options { notify: false, ..options }).await;
    let mut hints = b.hints();
    ask::started(&a, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    let told = heard(&mut hints, Duration::from_secs(1), |hint| matches!(hint, Hint::Run(..))).await;
    assert_eq!(told, None);
    let due = b.due(Vec::new()).await.unwrap();
    assert_eq!((due.len(), due[0].tenant, due[0].at), (1, make::ME.tenant(), make::at(0)));
}

/// Returns the number of rows that were read in a schema. Waits until the connections of this name have ended, because
/// they report it then.
async fn walked(admin: &Client, name: &str) -> i64 {
    let open = format!("select count(*) from pg_stat_activity where application_name = '{name}'");
    soon(async {
        while number(admin, &open).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let read = "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
                  from pg_stat_user_tables where schemaname = current_schema()";
    number(admin, read).await
}

/// Switches off autovacuum, so that the server has no statistics of the tables.
async fn uncounted(test_schema: &TestSchema) {
    let admin = client(test_schema, test_schema.admin()).await;
    let tables = "select tablename::text from pg_tables where schemaname = current_schema()";
    for table in texts(&admin, tables).await {
        let quiet = format!("alter table {table} set (autovacuum_enabled = false)");
        admin.batch_execute(&quiet).await.unwrap();
    }
}

/// Copies a tenant's rows many times, without updating the statistics.
async fn multiply(raw: &Client, many: i64) {
    let tables = [
        ("runs", "id"),
        ("checkpoints", "run"),
        ("audit", "commit_id"),
        ("unsealed", "commit_id"),
        ("links", "from_id"),
        ("shadows", "run"),
    ];
    for (table, id) in tables {
        let copy = format!(
            "insert into {table}
             select (json_populate_record(t, json_build_object('{id}', gen_random_uuid()))).*
               from {table} t, generate_series(1, {many}) where t.ctid = (select min(ctid) from {table})"
        );
        assert_eq!(raw.execute(&copy, &[]).await.unwrap(), many as u64);
    }
    let copy = format!(
        "insert into handles
         select (json_populate_record(h, json_build_object(
                     'run', n.run, 'handle', '\\x' || encode(sha256(n.run::text::bytea), 'hex')))).*
           from handles h, (select gen_random_uuid() as run from generate_series(1, {many})) n
          where h.ctid = (select min(ctid) from handles)"
    );
    assert_eq!(raw.execute(&copy, &[]).await.unwrap(), many as u64);
}

/// Returns a handle that is delivered and expires much later.
fn resting() -> HandleRow {
    let later = Some(make::at(9_000));
    HandleRow { expires_at: later, deliver_at: later, delivery: Some(make::bytes("sealed")), ..make::flow(1) }
}

/// Keeps a flow behind a handle, then behind another one, which expires.
async fn rested(store: &PostgresStore, make: &make::Make, number: u8) {
    let flow = HandleRow { run: make::run(1_000 + u128::from(number)), ..make::flow(number) };
    let put = make.handle([make::put_handle(flow.clone())]);
    ask::apply(store, put.clone()).await;
    assert!(store.outcome(make::ME, put.reference()).await.unwrap().is_some());
    ask::apply(store, make.handle([make::own(number, 1, make::process(1))])).await;
    ask::apply(store, make.handle([make::deliver(number, 2, 0)])).await;
    let due = RecordQuery::Undelivered { now: make::at(1), limit: 10 };
    assert_eq!(store.records(make::ME, due).await.unwrap().items.len(), 1);
    let over = HandleRow { handle: make::hash(number + 1), expires_at: Some(make::at(0)), ..flow.clone() };
    ask::apply(store, make.handle([make::delete_handle(number, 3), make::put_handle(over)])).await;
    let all = HandleQuery { limit: 10, ..HandleQuery::default() };
    let of_workflow = HandleQuery { workflow: Some("orders".into()), ..all.clone() };
    let of_run = HandleQuery { run: Some(flow.run), ..of_workflow.clone() };
    for (query, least) in [(all, 1), (of_workflow, 1), (of_run, 1)] {
        let found = store.records(make::ME, RecordQuery::Handles(query)).await.unwrap().items;
        assert!(found.len() >= least, "{found:?}");
    }
    assert!(ask::handle(store, number + 1).await.is_some());
    let what = CleanupKind::Handles { expired_by: make::at(1) };
    assert_eq!(
        store.cleanup(make::ME, Cleanup { now: make::at(1), limit: 10, what }).await.unwrap().count,
        1
    );
}

/// Finds runs and flows by their shadow columns, and refills columns.
async fn found(store: &PostgresStore, make: &make::Make) {
    let paid = || ShadowFilter::equals("paid", true);
    let email = |value: ShadowValue| vec![ShadowFilter::equals("email", value), paid()];
    let prefix =
        |prefix: &str| vec![ShadowFilter::prefix("email", prefix), ShadowFilter::prefix("email", "")];
    let numbers = || vec![ShadowFilter::numbers("email", Bound::Included(1.0), Bound::Unbounded)];
    let of = |shadows: Vec<ShadowFilter>| RunQuery {
        filter: RunFilter { workflow: Some("orders".into()), shadows, ..RunFilter::default() },
        limit: 10,
        ..RunQuery::default()
    };
    let columns = vec![
        ("email".into(), RefillColumn::Set("eve".into())),
        ("paid".into(), RefillColumn::Set(true.into())),
    ];
    let refill = ShadowRefill { run: make::run(41), version: 0, workflow: "orders".into(), columns };
    let what = CleanupKind::Shadows(vec![refill]);
    assert_eq!(store.cleanup(make::ME, Cleanup { now: make::at(1), limit: 1, what }).await.unwrap().count, 2);
    let cases = [
        (email("eve".into()), 1),
        (email(1.into()), 0),
        (email(true.into()), 0),
        (prefix("ev"), 1),
        (numbers(), 0),
    ];
    for (shadows, many) in cases {
        assert_eq!(store.runs(make::ME, of(shadows)).await.unwrap().items.len(), many);
    }
    let shadows = vec![make::set_shadow("email", "zoe"), make::set_shadow("paid", true)];
    let flow = make::put_handle_on(0, HandleRow { run: make::run(1_999), ..make::flow(99) }, shadows);
    ask::apply(store, make.handle([HandleWrite { expected: None, ..flow }])).await;
    let cases = [
        (email("zoe".into()), 1),
        (email(1.into()), 0),
        (email("ann".into()), 0),
        (prefix("zo"), 1),
        (numbers(), 0),
    ];
    for (shadows, many) in cases {
        let RunQuery { filter: RunFilter { workflow, shadows, .. }, limit, .. } = of(shadows);
        let query = HandleQuery { workflow, shadows, limit, ..HandleQuery::default() };
        let found = store.records(make::ME, RecordQuery::Handles(query)).await.unwrap().items;
        assert_eq!(found.len(), many, "{found:?}");
    }
}

/// Runs a bit of every operation on a new run.
async fn work(store: &PostgresStore, make: &make::Make, number: u128) {
    let (run, other) = (make::run(number), make::run(number + 1));
    let shadows = vec![make::set_shadow("email", "ann")];
    let head = ask::started(store, make.create(NewRun { shadows, ..make::new_run(run) })).await;
    let changes = RunUpdate { open: vec![make::wait(1)], close: vec![2], ..make::step(&head, "on") };
    let changes =
        RunUpdate { shadows: vec![make::set_shadow("total", 1), make::unset_shadow("email")], ..changes };
    let on_record = Commit { definitions: vec![make::stored("orders")], ..make.step(changes) };
    let head = ask::moved(store, Commit { audit: vec![make::audit("on")], ..on_record }).await;
    ask::started(store, make.create(make::due_run(other, 0))).await;
    let key = format!("stock {number}");
    let planned = Commit { cells: vec![make::set(&key, 7)], ..make.step(make::step(&head, "on")) };
    let sent = Commit { send: vec![make::to(run, "hello")], keys: vec![make::key(&key, 1)], ..planned };
    ask::moved(store, sent).await;
    let data = Commit { cells: vec![make::increment(&key, 1)], ..make.commit() };
    store.commit(make::ME, data.clone()).await.unwrap();
    assert!(store.outcome(make::ME, data.reference()).await.unwrap().is_some());
    let (from, to) = (format!("a/{number}"), format!("b/{number}"));
    let upsert = make::upsert(number as u32, make::edge(&from, "r", &to));
    store.commit(make::ME, make.link([upsert])).await.unwrap();
    store.commit(make::ME, make.link([make::unlink(Some(&from), None, None)])).await.unwrap();
    assert!(ask::taken(store, ask::claim(make::process(1), 0)).await.contains(&other));
    rested(store, make, number as u8).await;
    ask::load(store, run).await;
    let history = HistoryQuery { run, from: 0, with_state: true, limit: 10 };
    assert_eq!(ask::all_history(store, make::ME, history).await.len(), 3);
    assert!(store.due(Vec::new()).await.unwrap().is_empty());
}

/// A new table has no statistics. No statement may scan all its rows because of that.
#[tokio::test]
async fn no_statement_scans_a_table_without_statistics() {
    const RUNS: i64 = 20_000;
    let test_schema = crate::test_schema().await;
    let name = test_schema.schema();
    let named = |config: &str| format!("{config} application_name={name}");
    let open = PostgresStore::open_with(&named(test_schema.engine()), test_schema.options()).await;
    let (store, make) = (open.unwrap(), make::Make::new());
    uncounted(&test_schema).await;
    let shadows = vec![make::set_shadow("email", "ann")];
    let shaded = NewRun { shadows, ..make::new_run(make::run(1)) };
    ask::started(&store, make.create(shaded)).await;
    ask::apply(&store, make.handle([make::put_handle(resting())])).await;
    let linked = make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))]);
    store.commit(make::ME, linked).await.unwrap();
    drop(store);
    let admin = client(&test_schema, test_schema.admin()).await;
    let raw = client(&test_schema, &named(test_schema.admin())).await;
    multiply(&raw, RUNS).await;
    // Only the choice between shadow columns is left to the server, which needs their statistics for it.
    raw.batch_execute("update shadows set as_text = run::text; analyze shadows").await.unwrap();
    drop(raw);
    let before = walked(&admin, name).await;

    let store = PostgresStore::open_with(&named(test_schema.engine()), test_schema.options()).await.unwrap();
    work(&store, &make, 40).await;
    found(&store, &make).await;
    let seal = Cleanup { now: make::at(1), limit: 10, what: CleanupKind::Seal };
    assert!(store.cleanup(make::ME, seal).await.unwrap().more, "there are many");
    drop(store);
    let after = walked(&admin, name).await;
    assert!((1..1_000).contains(&(after - before)), "{} rows were walked", after - before);

    // A scan would show in these numbers.
    let raw = client(&test_schema, &named(test_schema.admin())).await;
    assert!(number(&raw, "select count(*) from runs where places <> ''").await > RUNS);
    drop(raw);
    assert!(walked(&admin, name).await - after > RUNS);
}

/// A connection must not keep the plans that it made while the tables were empty.
#[tokio::test]
async fn plans_made_for_empty_tables_do_not_scan_full_ones() {
    const RUNS: i64 = 20_000;
    let test_schema = crate::test_schema().await;
    let name = test_schema.schema();
    let named = |config: &str| format!("{config} application_name={name}");
    let options = Options { connections: 2, committers: 1, ..test_schema.options() };
    let store = PostgresStore::open_with(&named(test_schema.engine()), options).await.unwrap();
    uncounted(&test_schema).await;
    let make = make::Make::new();
    for number in [10, 20, 30] {
        work(&store, &make, number).await;
    }
    let admin = client(&test_schema, test_schema.admin()).await;
    let linked = make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))]);
    store.commit(make::ME, linked).await.unwrap();
    ask::apply(&store, make.handle([make::put_handle(resting())])).await;
    multiply(&admin, RUNS).await;
    let read = "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
                  from pg_stat_user_tables where schemaname = current_schema()";
    let before = number(&admin, read).await;
    // The plans are a second old by now, and are made again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    work(&store, &make, 40).await;
    drop(store);
    let after = walked(&admin, name).await;
    assert!((1..1_000).contains(&(after - before)), "{} rows were walked", after - before);
}

/// A past bug: an index on a column that changes with the value made every write to a hot key write all indexes.
#[tokio::test]
async fn no_index_of_cells_or_runs_has_a_column_of_every_write() {
    let test_schema = crate::test_schema().await;
    let _store = test_schema.open().await.unwrap();
    let admin = client(&test_schema, test_schema.admin()).await;
    let holding = "select indexname::text from pg_indexes where schemaname = current_schema()
                      and (tablename = 'cells' and indexdef ~ '\\m(value|revision|updated_at)\\M'
                           or tablename = 'runs' and indexdef ~ '\\m(revision|version|places|ledger|updated_at)\\M')";
    assert_eq!(texts(&admin, holding).await, Vec::<String>::new());
}

/// A process that opens a handle reserves it before it writes anything else.
#[tokio::test]
async fn no_index_of_handles_has_a_column_that_a_reservation_changes() {
    let test_schema = crate::test_schema().await;
    let _store = test_schema.open().await.unwrap();
    let admin = client(&test_schema, test_schema.admin()).await;
    let of_handles = "select indexname::text from pg_indexes where schemaname = current_schema() and tablename = 'handles'";
    assert_eq!(texts(&admin, of_handles).await.len(), 5);
    let holding =
        format!("{of_handles} and indexdef ~ '\\m(state|owner|fence|updated_at|updated_by|commit_id)\\M'");
    assert_eq!(texts(&admin, &holding).await, Vec::<String>::new());
}
