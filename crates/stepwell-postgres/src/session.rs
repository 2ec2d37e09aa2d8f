//! A session of this process's own, beside the pool: it holds a lock for as long as the process lives, hears and sends
//! notifications, and looks whose locks are gone.
//!
//! None of it is a promise. A process whose session is lost is taken for dead a moment later and its runs are taken
//! over, which their fences make safe; where sessions mean nothing (behind a transaction pooler) they are switched
//! off, and the lease decides alone. Notifications only make somebody look sooner, and are sent outside of every
//! transaction that writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use stepwell_core::Timestamp;
use stepwell_store::{Hint, HintSender, ProcessId, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::connection::{Connector, PATIENCE, Told, Unanswered};
use crate::error::Failure;
use crate::outbox::{Outbox, heard};
use crate::statements as sql;

/// Between two looks at who has gone.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a session that was lost and made again must have stood before it judges others: after a restart of the
/// server all of them come back.
const STANDS: Duration = Duration::from_millis(1_500);
/// How long notifications wait for others to go with.
const GATHER: Duration = Duration::from_millis(2);
/// How long a beat waits for its lock; without it the lease decides alone.
const VOUCHED: Duration = Duration::from_secs(1);
/// What is a schema's own among several in a database: channels and locks are the database's.
#[derive(Debug, Clone, Copy)]
struct Mark(u64);

impl Mark {
    fn of(schema: &str) -> Self {
        let digest = Sha256::digest(schema.as_bytes());
        Mark(u64::from_be_bytes(digest[..8].try_into().expect("a digest is longer")))
    }

    /// The channel of its processes.
    fn channel(self) -> String {
        format!("stepwell_{:016x}", self.0)
    }

    /// The lock a process is known by.
    fn lock(self, process: ProcessId) -> i64 {
        let (high, low) = process.0.as_u64_pair();
        (high ^ low ^ self.0).cast_signed()
    }
}

/// A process that this one vouches for, until its lease is over.
struct Vouched {
    process: ProcessId,
    until: Timestamp,
    locked: oneshot::Sender<()>,
}

/// The session.
pub(crate) struct Session {
    vouch: mpsc::Sender<Vouched>,
    shared: Arc<Shared>,
    mark: Mark,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// Processes whose session is gone.
    gone: Mutex<BTreeSet<ProcessId>>,
    /// The engine's time at the newest beat.
    now: AtomicI64,
    /// The server process of the session that stands.
    pid: AtomicI32,
}

impl Shared {
    fn gone(&self) -> MutexGuard<'_, BTreeSet<ProcessId>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    pub(crate) fn start(connector: Connector, schema: &str, hints: HintSender, outbox: Outbox) -> Self {
        let (vouch, vouched) = mpsc::channel(64);
        let (shared, mark) = (Arc::new(Shared::default()), Mark::of(schema));
        let held = BTreeMap::new();
        let keeper = Keeper { connector, mark, hints, outbox, shared: shared.clone(), vouched, held };
        Session { vouch, shared, mark, task: tokio::spawn(keeper.run()) }
    }

    /// Holds a process's lock; gives it if it is held.
    pub(crate) async fn vouch(&self, process: ProcessId, now: Timestamp, until: Timestamp) -> Option<i64> {
        self.shared.now.fetch_max(now.micros(), Ordering::AcqRel);
        let (locked, answer) = oneshot::channel();
        let held = async {
            self.vouch.send(Vouched { process, until, locked }).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(VOUCHED, held).await.ok().flatten().map(|()| self.mark.lock(process))
    }

    /// Whether a process's session is gone.
    pub(crate) fn has_lost(&self, process: ProcessId) -> bool {
        self.shared.gone().contains(&process)
    }

    /// Processes whose session is gone.
    pub(crate) fn gone(&self) -> BTreeSet<ProcessId> {
        self.shared.gone().clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the session up.
struct Keeper {
    connector: Connector,
    mark: Mark,
    hints: HintSender,
    outbox: Outbox,
    shared: Arc<Shared>,
    vouched: mpsc::Receiver<Vouched>,
    /// Whose locks are held, and until when their lease goes.
    held: BTreeMap<ProcessId, Timestamp>,
}

impl Keeper {
    async fn run(mut self) {
        let mut pause = Duration::from_millis(20);
        let mut stands = Duration::ZERO;
        loop {
            let (hints, shared) = (self.hints.clone(), self.shared.clone());
            let told: Told = Box::new(move |text, pid| {
                if pid != shared.pid.load(Ordering::Relaxed) {
                    heard(&hints, text);
                }
            });
            let failed = match self.connector.connect(Some(told)).await {
                Ok((client, driver)) => {
                    let driver = tokio::spawn(driver);
                    let begun = tokio::time::Instant::now();
                    let ended = self.serve(&client, begun + stands).await;
                    stands = STANDS;
                    driver.abort();
                    if begun.elapsed() > STANDS {
                        pause = Duration::from_millis(20);
                    }
                    match ended {
                        Ok(()) => return,
                        Err(failure) => StoreError::from(failure).to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(error = failed, "the session is lost");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Does what the session is for, until it is lost; without an error when the store is closed. It judges others from
    /// a time on.
    async fn serve(&mut self, client: &Client, judges: tokio::time::Instant) -> Result<(), Failure> {
        let gone = in_time(self.begin(client)).await?;
        // Who knows what was said while nobody listened.
        self.hints.send(Hint::Missed);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watch = Watch { gone, looks, suspects: BTreeSet::new(), judges };
        // There is always a look to come: a turn that takes longer is one that waits for an answer.
        while in_time(self.turn(client, &mut watch)).await? {}
        Ok(())
    }

    /// Takes its locks and listens.
    async fn begin(&self, client: &Client) -> Result<Statement, tokio_postgres::Error> {
        let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await?.get(0);
        self.shared.pid.store(pid, Ordering::Relaxed);
        for process in self.held.keys() {
            lock(client, self.mark.lock(*process)).await?;
        }
        if self.outbox.is_on() {
            client.batch_execute(&format!("listen {}", self.mark.channel())).await?;
        }
        client.prepare(sql::process_gone).await
    }

    /// Does what comes next; gives whether there is more to come.
    async fn turn(&mut self, client: &Client, watch: &mut Watch) -> Result<bool, tokio_postgres::Error> {
        tokio::select! {
            vouched = self.vouched.recv() => {
                let Some(Vouched { process, until, locked }) = vouched else { return Ok(false) };
                if self.held.insert(process, until).is_none() {
                    lock(client, self.mark.lock(process)).await?;
                }
                let _ = locked.send(());
            }
            () = self.outbox.filled() => {
                tokio::time::sleep(GATHER).await;
                let text = self.outbox.take();
                client.query_one("select pg_notify($1, $2)", &[&self.mark.channel(), &text]).await?;
            }
            _ = watch.looks.tick() => self.look(client, watch).await?,
        }
        Ok(true)
    }

    /// Looks whose locks are gone.
    async fn look(&mut self, client: &Client, watch: &mut Watch) -> Result<(), tokio_postgres::Error> {
        let now = self.shared.now.load(Ordering::Acquire);
        self.release(client, now).await?;
        if self.held.is_empty() {
            return client.check_connection().await;
        }
        let rows = client.query(&watch.gone, &[&now]).await?;
        let seen: BTreeSet<_> = rows.iter().map(|row| ProcessId(row.get::<_, Uuid>(0))).collect();
        if tokio::time::Instant::now() >= watch.judges {
            self.judge(&watch.suspects, &seen);
        }
        watch.suspects = seen;
        Ok(())
    }

    /// Whoever was gone at two looks is gone.
    fn judge(&self, before: &BTreeSet<ProcessId>, now: &BTreeSet<ProcessId>) {
        let own = |process: &ProcessId| self.held.contains_key(process);
        let found: BTreeSet<_> = before.intersection(now).filter(|process| !own(process)).copied().collect();
        let mut gone = self.shared.gone();
        let is_news = *gone != found;
        *gone = found;
        drop(gone);
        if is_news {
            self.hints.send(Hint::Processes);
        }
    }

    /// Lets go of locks whose lease is over: those are dead anyway.
    async fn release(&mut self, client: &Client, now: i64) -> Result<(), tokio_postgres::Error> {
        let over: Vec<_> =
            self.held.iter().filter(|(_, until)| until.micros() <= now).map(|(id, _)| *id).collect();
        for process in over {
            self.held.remove(&process);
            client.execute("select pg_advisory_unlock_shared($1)", &[&self.mark.lock(process)]).await?;
        }
        Ok(())
    }
}

/// What is looked at, and when.
struct Watch {
    gone: Statement,
    looks: tokio::time::Interval,
    /// Who was gone at the last look.
    suspects: BTreeSet<ProcessId>,
    judges: tokio::time::Instant,
}

async fn in_time<T>(asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Unanswered::Silence(PATIENCE).into()),
    }
}

/// Shared: a new session of the same process need not wait until the server has noticed that the old one is gone.
async fn lock(client: &Client, lock: i64) -> Result<(), tokio_postgres::Error> {
    client.execute("select pg_advisory_lock_shared($1)", &[&lock]).await?;
    Ok(())
}
