//! What is lost: connections, the server, other processes. Whatever somebody is told of a commit is so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stepwell_core::shadow::ShadowValue;
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::ground::{ENGINE, Ground};
use stepwell_postgres::tokio_postgres::Client;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{
    Beat, Beaten, Claim, Commit, CommitError, CommitId, HandleQuery, HandleRow, HandleWrite, Head, Hint,
    Hints, HistoryQuery, NewRun, ProcessId, Record, RecordQuery, Refill, Refilled, Refused, RunQuery, Step,
    Store, StoreError, Sweep, SweepWhat,
};
use uuid::Uuid;

use crate::raw::{client, number, soon, texts};

/// A server of the test's own: others would not like what happens to it.
pub(crate) async fn own_cluster() -> (Cluster, Ground) {
    let cluster = tokio::task::spawn_blocking(|| Cluster::own(&[]).unwrap()).await.unwrap();
    let ground = Ground::new(&cluster).await.unwrap();
    (cluster, ground)
}

/// One run, moved by one task through whatever happens.
pub(crate) struct Mover {
    store: Arc<PostgresStore>,
    make: Arc<make::Make>,
    /// Where the run is known to be.
    head: Head,
    /// The commits that made its versions.
    made: Vec<CommitId>,
    tally: Arc<Tally>,
}

/// What all movers of a test did so far, to be read while they move.
#[derive(Default)]
pub(crate) struct Tally {
    /// Versions made, the first ones included.
    made: AtomicUsize,
    /// Commits whose outcome was unknown at first.
    unknown: AtomicUsize,
}

impl Mover {
    async fn begin(
        store: &Arc<PostgresStore>,
        make: &Arc<make::Make>,
        tally: &Arc<Tally>,
        number: u128,
    ) -> Mover {
        let start = make.create(make::new_run(make::run(number)));
        let first = start.id;
        let head = ask::started(&**store, start).await;
        tally.made.fetch_add(1, Ordering::Relaxed);
        Mover { store: store.clone(), make: make.clone(), head, made: vec![first], tally: tally.clone() }
    }

    /// Where the run is, however often one has to ask.
    async fn look(&self) -> Head {
        loop {
            match self.store.load(make::ME, self.head.run).await {
                Ok(loaded) => return loaded.unwrap().head,
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// What became of a commit whose answer was lost.
    async fn resolved(&self, commit: &Commit) -> bool {
        loop {
            match self.store.outcome(make::ME, commit.reference()).await {
                Ok(found) => return found.is_some(),
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// One step; it is made or it is not, and this one knows which.
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
            Err(other) => panic!("nobody else moves this run: {other}"),
        };
        let now = self.look().await;
        assert_eq!(now.version, self.head.version + u64::from(is_made), "what is told is what is there");
        self.head = now;
        if is_made {
            self.made.push(commit.id);
            self.tally.made.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A step on a head that the run was never at is refused, or nobody knows.
    async fn stale(&self) {
        let nowhere = Head { revision: self.head.revision + 7, ..self.head.clone() };
        match self.store.commit(make::ME, self.make.step(make::step(&nowhere, "never"))).await {
            Err(CommitError::Refused(Refused::Moved { .. }) | CommitError::Unknown { .. }) => {}
            Err(CommitError::Store(StoreError::Unavailable(_))) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Each version is there once, and by the commit that is known to have made it.
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

/// Movers that step at the same time until they are told to stop.
pub(crate) struct Movers {
    tasks: Vec<tokio::task::JoinHandle<Mover>>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

impl Movers {
    /// Starts `count` runs and moves each in a task of its own. With `with_stale` each also tries, between its
    /// steps, one that must be refused.
    pub(crate) async fn start(
        store: &Arc<PostgresStore>,
        make: &Arc<make::Make>,
        count: u128,
        with_stale: bool,
    ) -> Movers {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
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

    /// Whether some commit's outcome was unknown at first and `made` versions exist. How long that takes
    /// depends on the machine, so tests ask for it instead of waiting a fixed time.
    pub(crate) fn have_shown(&self, made: usize) -> bool {
        self.made() > made && self.tally.unknown.load(Ordering::Relaxed) > 0
    }

    /// Stops all and checks the history of each.
    pub(crate) async fn rest(self) {
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
    let (_cluster, ground) = own_cluster().await;
    let store = Arc::new(ground.open().await.unwrap());
    let make = Arc::new(make::Make::new());
    let movers = Movers::start(&store, &make, 32, with_stale).await;
    let admin = client(&ground, ground.admin()).await;
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
    movers.rest().await;
    // By itself, and at once.
    ask::started(&*store, make.create(make::new_run(make::run(1_000)))).await;
}

/// The accident: a connection is lost in the middle of a commit, and somebody is told what is not so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_connections_are_cut_whoever_commits_is_told_what_is_so() {
    cut(false).await;
}

/// The accident: why a commit was refused is looked up after its batch is in the database. The connection is
/// lost just then, and the others of the batch are told that they failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_connections_are_cut_a_commit_that_is_refused_does_not_make_others_wrong() {
    cut(true).await;
}

/// The accident: the server is killed, and the store is of no use when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_server_is_killed_the_store_goes_on_once_it_is_back() {
    let (mut cluster, ground) = own_cluster().await;
    let store = Arc::new(ground.open().await.unwrap());
    let make = Arc::new(make::Make::new());
    let movers = Movers::start(&store, &make, 8, false).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut cluster = tokio::task::spawn_blocking(move || {
        cluster.kill().unwrap();
        cluster
    })
    .await
    .unwrap();
    // Whoever asks now waits a while, or is told that it is not possible.
    let early = tokio::time::timeout(Duration::from_secs(1), store.load(make::ME, make::run(1))).await;
    assert!(!matches!(early, Ok(Ok(_))), "nobody is there to answer: {early:?}");
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
    movers.rest().await;
    soon(store.beat(beat(process(), 0))).await.unwrap();
}

/// A process that no other test knows of: locks are the whole database's.
fn process() -> ProcessId {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) as u128;
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    ProcessId(Uuid::from_u128(time.as_nanos() << 32 | count << 24 | u128::from(std::process::id())))
}

/// A beat whose lease is an hour.
fn beat(process: ProcessId, seconds: i64) -> Beat {
    Beat { process, now: make::at(seconds), lease_ms: 3_600_000 }
}

async fn beaten(store: &PostgresStore, process: ProcessId, seconds: i64) -> Beaten {
    soon(store.beat(beat(process, seconds))).await.unwrap()
}

/// Waits for a hint of a kind, and passes over others.
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

/// Whether a process lives, as a store has it.
async fn lives(store: &PostgresStore, process: ProcessId, seconds: i64) -> bool {
    let query = RecordQuery::Living { process, now: make::at(seconds) };
    let found = soon(store.records(make::ME, query)).await.unwrap().items;
    assert!(found.iter().all(|found| *found == Record::Living(process)), "{found:?}");
    !found.is_empty()
}

/// Two stores on one schema, and a process at each.
struct Two {
    ground: Ground,
    a: PostgresStore,
    b: PostgresStore,
    at_a: ProcessId,
    at_b: ProcessId,
}

impl Two {
    async fn open(change: impl Fn(Options) -> Options) -> Two {
        let ground = crate::ground().await;
        let options = change(ground.options());
        let config = format!("{} application_name={}", ground.engine(), ground.schema());
        let a = PostgresStore::open_with(&config, options.clone()).await.unwrap();
        let b = PostgresStore::open_with(&config, options).await.unwrap();
        let (at_a, at_b) = (process(), process());
        beaten(&b, at_b, 0).await;
        assert_eq!(beaten(&a, at_a, 0).await.living, 2);
        assert_eq!(beaten(&b, at_b, 0).await.living, 2);
        Two { ground, a, b, at_a, at_b }
    }

    /// A run that the process at the first store owns.
    async fn own(&self) {
        let new = NewRun { owner: Some(self.at_a), ..make::due_run(make::run(1), 0) };
        ask::started(&self.a, make::Make::new().create(new)).await;
    }
}

#[tokio::test]
async fn a_process_whose_session_ends_is_known_to_be_dead_long_before_its_lease_is_over() {
    let two = Two::open(|options| options).await;
    two.own().await;
    let Two { a, b, at_a, at_b, .. } = two;
    // A session judges nobody until it has stood for a while.
    let mut hints = b.hints();
    let early = heard(&mut hints, Duration::from_secs(2), |hint| *hint == Hint::Processes).await;
    assert_eq!(early, None, "both live");
    let before = beaten(&b, at_b, 1).await;
    assert_eq!((before.living, before.dead), (2, Vec::new()));
    assert!(lives(&b, at_a, 1).await && lives(&a, at_b, 1).await && !lives(&b, process(), 1).await);
    drop(a);
    let noticed = heard(&mut hints, Duration::from_secs(5), |hint| *hint == Hint::Processes).await;
    assert_eq!(noticed, Some(Hint::Processes));
    let after = beaten(&b, at_b, 2).await;
    assert_eq!((after.living, after.dead), (1, vec![at_a]));
    assert!(!lives(&b, at_a, 2).await && lives(&b, at_b, 2).await);
    let claim = Claim { dead: vec![at_a], ..ask::claim(at_b, 2) };
    assert_eq!(ask::taken(&b, claim).await, [make::run(1)]);
    assert_eq!(beaten(&b, at_b, 3).await.dead, Vec::new());
}

#[tokio::test]
async fn without_sessions_the_lease_decides_alone() {
    let two = Two::open(|options| Options { session: false, ..options }).await;
    two.own().await;
    let Two { a, b, at_a, at_b, .. } = two;
    let mut hints = b.hints();
    drop(a);
    let noticed = heard(&mut hints, Duration::from_millis(2_500), |hint| *hint == Hint::Processes).await;
    assert_eq!(noticed, None);
    let before = beaten(&b, at_b, 3_000).await;
    assert_eq!((before.living, before.dead), (2, Vec::new()));
    assert!(lives(&b, at_a, 3_000).await);
    let after = beaten(&b, at_b, 3_601).await;
    assert!(!lives(&b, at_a, 3_601).await && lives(&b, at_b, 3_601).await);
    assert_eq!((after.living, after.dead), (1, vec![at_a]));
}

/// The accident: a session comes back without the locks it held, and its processes are dead for ever.
#[tokio::test]
async fn a_session_that_is_cut_comes_back_with_its_locks_and_hears_and_tells_again() {
    let two = Two::open(|options| options).await;
    let admin = client(&two.ground, two.ground.admin()).await;
    let Two { a, b, at_b, ground, .. } = two;
    let (mut at_a, mut hints) = (a.hints(), b.hints());
    let mine = format!("from pg_stat_activity where application_name = '{}'", ground.schema());
    let ended = number(&admin, &format!("select count(pg_terminate_backend(pid)) {mine}")).await;
    assert!(ended >= 4, "each store has a session and another connection, and {ended} were cut");
    for hints in [&mut at_a, &mut hints] {
        let back = heard(hints, Duration::from_secs(5), |hint| *hint == Hint::Missed).await;
        assert_eq!(back, Some(Hint::Missed), "who knows what was said meanwhile");
    }
    // Longer than a session must have stood, and without another beat of the other process.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(beaten(&b, at_b, 1).await.living, 2);
    ask::started(&a, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    let told = heard(&mut hints, Duration::from_secs(2), |hint| matches!(hint, Hint::Run(..))).await;
    assert_eq!(told, Some(Hint::Run(make::ME.run(make::run(1)))));
}

#[tokio::test]
async fn what_becomes_due_is_told_to_other_processes() {
    let Two { a, b, .. } = Two::open(|options| options).await;
    let mut hints = b.hints();
    let make = make::Make::new();
    let start = make.create(make::due_run(make::run(1), 0));
    ask::started(&a, start).await;
    let wanted = Hint::Run(make::ME.run(make::run(1)));
    let told = heard(&mut hints, Duration::from_secs(2), |hint| *hint == wanted).await;
    assert_eq!(told.as_ref(), Some(&wanted));
    // Whoever tells it does not hear it twice.
    let mut own = a.hints();
    ask::started(&a, make.create(make::due_run(make::run(2), 0))).await;
    let wanted = Hint::Run(make::ME.run(make::run(2)));
    assert!(heard(&mut own, Duration::from_secs(2), |hint| *hint == wanted).await.is_some());
    assert_eq!(heard(&mut own, Duration::from_millis(300), |hint| *hint == wanted).await, None);
}

#[tokio::test]
async fn without_notifications_others_find_out_by_looking() {
    let Two { a, b, .. } = Two::open(|options| Options { notify: false, ..options }).await;
    let mut hints = b.hints();
    ask::started(&a, make::Make::new().create(make::due_run(make::run(1), 0))).await;
    let told = heard(&mut hints, Duration::from_secs(1), |hint| matches!(hint, Hint::Run(..))).await;
    assert_eq!(told, None);
    let due = b.due(Vec::new()).await.unwrap();
    assert_eq!((due.len(), due[0].tenant, due[0].at), (1, make::ME.tenant(), make::at(0)));
}

/// How many rows of a schema were read, once the connections of this name have ended: then they say so.
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

/// Nobody counts the rows of these tables.
async fn uncounted(ground: &Ground) {
    let admin = client(ground, ground.admin()).await;
    let tables = "select tablename::text from pg_tables where schemaname = current_schema()";
    for table in texts(&admin, tables).await {
        let quiet = format!("alter table {table} set (autovacuum_enabled = false)");
        admin.batch_execute(&quiet).await.unwrap();
    }
}

/// Makes a tenant's only run one of many, without a word to those who count rows.
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

/// A handle that waits and expires much later.
fn resting() -> HandleRow {
    let later = Some(make::at(9_000));
    HandleRow { expires_at: later, deliver_at: later, delivery: Some(make::bytes("sealed")), ..make::flow(1) }
}

/// A flow rests behind a handle, then behind another one, and is over.
async fn rested(store: &PostgresStore, make: &make::Make, number: u8) {
    let flow = HandleRow { run: make::run(1_000 + u128::from(number)), ..make::flow(number) };
    let put = make.handle([make::rest(flow.clone())]);
    ask::apply(store, put.clone()).await;
    assert!(store.outcome(make::ME, put.reference()).await.unwrap().is_some());
    ask::apply(store, make.handle([make::own(number, 1, make::process(1))])).await;
    ask::apply(store, make.handle([make::deliver(number, 2, 0)])).await;
    let due = RecordQuery::Undelivered { now: make::at(1), limit: 10 };
    assert_eq!(store.records(make::ME, due).await.unwrap().items.len(), 1);
    let over = HandleRow { handle: make::hash(number + 1), expires_at: Some(make::at(0)), ..flow.clone() };
    ask::apply(store, make.handle([make::use_up(number, 3), make::rest(over)])).await;
    let all = HandleQuery { limit: 10, ..HandleQuery::default() };
    let of_workflow = HandleQuery { workflow: Some("orders".into()), ..all.clone() };
    let of_run = HandleQuery { run: Some(flow.run), ..of_workflow.clone() };
    for (query, least) in [(all, 1), (of_workflow, 1), (of_run, 1)] {
        let found = store.records(make::ME, RecordQuery::Handles(query)).await.unwrap().items;
        assert!(found.len() >= least, "{found:?}");
    }
    assert!(ask::handle(store, number + 1).await.is_some());
    let what = SweepWhat::Handles { expired_by: make::at(1) };
    assert_eq!(store.sweep(make::ME, Sweep { now: make::at(1), limit: 10, what }).await.unwrap().count, 1);
}

/// Runs and flows are looked for by what their columns hold, and columns are refilled.
async fn found(store: &PostgresStore, make: &make::Make) {
    let of = |value: ShadowValue| RunQuery {
        workflow: Some("orders".into()),
        shadows: vec![("email".into(), value), ("paid".into(), true.into())],
        limit: 10,
        ..RunQuery::default()
    };
    let columns =
        vec![("email".into(), Refilled::Is("eve".into())), ("paid".into(), Refilled::Is(true.into()))];
    let refill = Refill { run: make::run(41), version: 0, workflow: "orders".into(), columns };
    let what = SweepWhat::Shadows(vec![refill]);
    assert_eq!(store.sweep(make::ME, Sweep { now: make::at(1), limit: 1, what }).await.unwrap().count, 2);
    for (value, many) in [(ShadowValue::from("eve"), 1), (1.into(), 0), (true.into(), 0)] {
        assert_eq!(store.runs(make::ME, of(value)).await.unwrap().items.len(), many);
    }
    let shadows = vec![make::shade("email", "zoe"), make::shade("paid", true)];
    let flow = make::rest_on(0, HandleRow { run: make::run(1_999), ..make::flow(99) }, shadows);
    ask::apply(store, make.handle([HandleWrite { expected: None, ..flow }])).await;
    for (value, many) in [(ShadowValue::from("zoe"), 1), (1.into(), 0), ("ann".into(), 0)] {
        let RunQuery { workflow, shadows, limit, .. } = of(value);
        let query = HandleQuery { workflow, shadows, limit, ..HandleQuery::default() };
        let found = store.records(make::ME, RecordQuery::Handles(query)).await.unwrap().items;
        assert_eq!(found.len(), many, "{found:?}");
    }
}

/// Something of everything on a run of its own.
async fn work(store: &PostgresStore, make: &make::Make, number: u128) {
    let (run, other) = (make::run(number), make::run(number + 1));
    let shadows = vec![make::shade("email", "ann")];
    let head = ask::started(store, make.create(NewRun { shadows, ..make::new_run(run) })).await;
    let beside = Step { open: vec![make::wait(1)], close: vec![2], ..make::step(&head, "on") };
    let beside = Step { shadows: vec![make::shade("total", 1), make::unshade("email")], ..beside };
    let on_record = Commit { definitions: vec![make::stored("orders")], ..make.step(beside) };
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

/// The accident: a table is new, nobody has counted its rows, and every statement walks all of them.
#[tokio::test]
async fn no_statement_walks_a_table_whose_rows_nobody_has_counted() {
    const RUNS: i64 = 20_000;
    let ground = crate::ground().await;
    let name = ground.schema();
    let named = |config: &str| format!("{config} application_name={name}");
    let open = PostgresStore::open_with(&named(ground.engine()), ground.options()).await;
    let (store, make) = (open.unwrap(), make::Make::new());
    uncounted(&ground).await;
    let shadows = vec![make::shade("email", "ann")];
    let shaded = NewRun { shadows, ..make::new_run(make::run(1)) };
    ask::started(&store, make.create(shaded)).await;
    ask::apply(&store, make.handle([make::rest(resting())])).await;
    let linked = make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))]);
    store.commit(make::ME, linked).await.unwrap();
    drop(store);
    let admin = client(&ground, ground.admin()).await;
    let raw = client(&ground, &named(ground.admin())).await;
    multiply(&raw, RUNS).await;
    // Only which way is the shorter one to a run by its columns is the server's to find out.
    raw.batch_execute("update shadows set as_text = run::text; analyze shadows").await.unwrap();
    drop(raw);
    let before = walked(&admin, name).await;

    let store = PostgresStore::open_with(&named(ground.engine()), ground.options()).await.unwrap();
    work(&store, &make, 40).await;
    found(&store, &make).await;
    let seal = Sweep { now: make::at(1), limit: 10, what: SweepWhat::Seal };
    assert!(store.sweep(make::ME, seal).await.unwrap().more, "there are many");
    drop(store);
    let after = walked(&admin, name).await;
    assert!((1..1_000).contains(&(after - before)), "{} rows were walked", after - before);

    // That walking would show.
    let raw = client(&ground, &named(ground.admin())).await;
    assert!(number(&raw, "select count(*) from runs where places <> ''").await > RUNS);
    drop(raw);
    assert!(walked(&admin, name).await - after > RUNS);
}

/// The accident: a connection goes on with the plans it made while the tables were empty.
#[tokio::test]
async fn plans_made_for_empty_tables_do_not_walk_full_ones() {
    const RUNS: i64 = 20_000;
    let ground = crate::ground().await;
    let name = ground.schema();
    let named = |config: &str| format!("{config} application_name={name}");
    let options = Options { connections: 2, committers: 1, ..ground.options() };
    let store = PostgresStore::open_with(&named(ground.engine()), options).await.unwrap();
    uncounted(&ground).await;
    let make = make::Make::new();
    for number in [10, 20, 30] {
        work(&store, &make, number).await;
    }
    let admin = client(&ground, ground.admin()).await;
    let linked = make.link([make::upsert(1, make::edge("a/1", "r", "b/1"))]);
    store.commit(make::ME, linked).await.unwrap();
    ask::apply(&store, make.handle([make::rest(resting())])).await;
    multiply(&admin, RUNS).await;
    let read = "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
                  from pg_stat_user_tables where schemaname = current_schema()";
    let before = number(&admin, read).await;
    // The plans are a second old by now, and made anew.
    tokio::time::sleep(Duration::from_secs(1)).await;
    work(&store, &make, 40).await;
    drop(store);
    let after = walked(&admin, name).await;
    assert!((1..1_000).contains(&(after - before)), "{} rows were walked", after - before);
}

/// The accident: an index on a column that changes with the value made every write to a hot key write all indexes.
#[tokio::test]
async fn no_index_of_cells_or_runs_holds_what_changes_at_every_write() {
    let ground = crate::ground().await;
    let _store = ground.open().await.unwrap();
    let admin = client(&ground, ground.admin()).await;
    let holding = "select indexname::text from pg_indexes where schemaname = current_schema()
                      and (tablename = 'cells' and indexdef ~ '\\m(value|revision|updated_at)\\M'
                           or tablename = 'runs' and indexdef ~ '\\m(revision|version|places|attempt|updated_at)\\M')";
    assert_eq!(texts(&admin, holding).await, Vec::<String>::new());
}

/// A handle is reserved by whoever opens it, before anything else is written.
#[tokio::test]
async fn no_index_of_handles_holds_what_changes_when_one_is_reserved() {
    let ground = crate::ground().await;
    let _store = ground.open().await.unwrap();
    let admin = client(&ground, ground.admin()).await;
    let of_handles = "select indexname::text from pg_indexes where schemaname = current_schema() and tablename = 'handles'";
    assert_eq!(texts(&admin, of_handles).await.len(), 5);
    let holding =
        format!("{of_handles} and indexdef ~ '\\m(state|owner|fence|updated_at|updated_by|commit_id)\\M'");
    assert_eq!(texts(&admin, &holding).await, Vec::<String>::new());
}
