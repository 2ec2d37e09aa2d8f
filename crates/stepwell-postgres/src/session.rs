//! A session in addition to the pool. It holds a lock for as long as the process is alive, receives and sends
//! notifications, and checks whose locks are gone.
//!
//! Nothing depends on it for correctness. A process whose session is lost counts as expired a moment later, and other
//! processes claim its runs; the fences make that safe. Behind a transaction pooler sessions mean nothing; they are
//! switched off there, and only the lease decides. Notifications only make other processes look sooner. They are sent
//! outside of every transaction that writes.

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

use crate::connection::{CONNECTION_TIMEOUT, Connector, NotificationCallback, Unanswered};
use crate::error::Failure;
use crate::outbox::{Outbox, forward_hints};
use crate::statements as sql;

/// Interval between two checks for lost sessions.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Age that a reconnected session must have before it judges others. After a restart of the server all sessions
/// reconnect.
const MIN_SESSION_AGE: Duration = Duration::from_millis(1_500);
/// Time to collect further hints for one notification.
const GATHER: Duration = Duration::from_millis(2);
/// Maximum time that a heartbeat waits for its lock. Without the lock only the lease decides.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// A number that identifies a schema. Channels and locks belong to the whole database, which may have several schemas.
#[derive(Debug, Clone, Copy)]
struct Mark(u64);

impl Mark {
    fn of(schema: &str) -> Self {
        let digest = Sha256::digest(schema.as_bytes());
        Mark(u64::from_be_bytes(digest[..8].try_into().expect("a digest is longer")))
    }

    /// Returns the notification channel of the schema's processes.
    fn channel(self) -> String {
        format!("stepwell_{:016x}", self.0)
    }

    /// Returns the number of the lock that a process holds while it is alive.
    fn lock(self, process: ProcessId) -> i64 {
        let (high, low) = process.0.as_u64_pair();
        (high ^ low ^ self.0).cast_signed()
    }
}

/// A request to hold the lock of a process until its lease expires.
struct LockRequest {
    process: ProcessId,
    until: Timestamp,
    locked: oneshot::Sender<()>,
}

/// A handle on the session's task. Dropping it ends the session.
pub(crate) struct Session {
    request_lock: mpsc::Sender<LockRequest>,
    shared: Arc<Shared>,
    mark: Mark,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// Processes whose session is lost.
    lost: Mutex<BTreeSet<ProcessId>>,
    /// The engine's time at the newest heartbeat, in microseconds.
    now: AtomicI64,
    /// Id of the server process of the current session.
    pid: AtomicI32,
}

impl Shared {
    fn lost(&self) -> MutexGuard<'_, BTreeSet<ProcessId>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    pub(crate) fn start(connector: Connector, schema: &str, hints: HintSender, outbox: Outbox) -> Self {
        let (request_lock, requested) = mpsc::channel(64);
        let (shared, mark) = (Arc::new(Shared::default()), Mark::of(schema));
        let locks = BTreeMap::new();
        let keeper = SessionTask { connector, mark, hints, outbox, shared: shared.clone(), requested, locks };
        Session { request_lock, shared, mark, task: tokio::spawn(keeper.run()) }
    }

    /// Takes the lock of a process. Returns its number, or `None` if it was not taken in time.
    pub(crate) async fn request_lock(
        &self,
        process: ProcessId,
        now: Timestamp,
        until: Timestamp,
    ) -> Option<i64> {
        self.shared.now.fetch_max(now.micros(), Ordering::AcqRel);
        let (locked, answer) = oneshot::channel();
        let locks = async {
            self.request_lock.send(LockRequest { process, until, locked }).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(LOCK_TIMEOUT, locks).await.ok().flatten().map(|()| self.mark.lock(process))
    }

    /// Returns true if the session of a process is lost.
    pub(crate) fn is_lost(&self, process: ProcessId) -> bool {
        self.shared.lost().contains(&process)
    }

    /// Returns the processes whose session is lost.
    pub(crate) fn lost(&self) -> BTreeSet<ProcessId> {
        self.shared.lost().clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of the session. It reconnects when the session is lost.
struct SessionTask {
    connector: Connector,
    mark: Mark,
    hints: HintSender,
    outbox: Outbox,
    shared: Arc<Shared>,
    requested: mpsc::Receiver<LockRequest>,
    /// Processes whose locks are held, with the end of their leases.
    locks: BTreeMap<ProcessId, Timestamp>,
}

impl SessionTask {
    async fn run(mut self) {
        let mut pause = Duration::from_millis(20);
        let mut stands = Duration::ZERO;
        loop {
            let (hints, shared) = (self.hints.clone(), self.shared.clone());
            let on_notification: NotificationCallback = Box::new(move |text, pid| {
                if pid != shared.pid.load(Ordering::Relaxed) {
                    forward_hints(&hints, text);
                }
            });
            let failed = match self.connector.connect(Some(on_notification)).await {
                Ok((client, driver)) => {
                    let driver = tokio::spawn(driver);
                    let begun = tokio::time::Instant::now();
                    let ended = self.serve(&client, begun + stands).await;
                    stands = MIN_SESSION_AGE;
                    driver.abort();
                    if begun.elapsed() > MIN_SESSION_AGE {
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

    /// Runs the session until it is lost. Returns without an error when the store is closed. Judges other processes
    /// from the given time on.
    async fn serve(&mut self, client: &Client, judges: tokio::time::Instant) -> Result<(), Failure> {
        let lost = in_time(self.begin(client)).await?;
        // Notifications may have been missed while there was no session.
        self.hints.send(Hint::Missed);
        let mut looks = tokio::time::interval(CHECK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watch = Watch { lost, looks, suspects: BTreeSet::new(), judges };
        // A check comes at every interval, so a longer turn is one that waits for an answer of the server.
        while in_time(self.handle_next(client, &mut watch)).await? {}
        Ok(())
    }

    /// Takes all locks and starts to listen. Returns the prepared statement that finds lost sessions.
    async fn begin(&self, client: &Client) -> Result<Statement, tokio_postgres::Error> {
        let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await?.get(0);
        self.shared.pid.store(pid, Ordering::Relaxed);
        for process in self.locks.keys() {
            lock(client, self.mark.lock(*process)).await?;
        }
        if self.outbox.is_on() {
            client.batch_execute(&format!("listen {}", self.mark.channel())).await?;
        }
        client.prepare(sql::process_disconnected).await
    }

    /// Waits for the next request, hint or check and handles it. Returns false when the store is closed.
    async fn handle_next(
        &mut self,
        client: &Client,
        watch: &mut Watch,
    ) -> Result<bool, tokio_postgres::Error> {
        tokio::select! {
            requested = self.requested.recv() => {
                let Some(LockRequest { process, until, locked }) = requested else { return Ok(false) };
                if self.locks.insert(process, until).is_none() {
                    lock(client, self.mark.lock(process)).await?;
                }
                let _ = locked.send(());
            }
            () = self.outbox.until_ready() => {
                tokio::time::sleep(GATHER).await;
                let text = self.outbox.take();
                client.query_one("select pg_notify($1, $2)", &[&self.mark.channel(), &text]).await?;
            }
            _ = watch.looks.tick() => self.check_locks(client, watch).await?,
        }
        Ok(true)
    }

    /// Checks whose locks are gone.
    async fn check_locks(&mut self, client: &Client, watch: &mut Watch) -> Result<(), tokio_postgres::Error> {
        let now = self.shared.now.load(Ordering::Acquire);
        self.release(client, now).await?;
        if self.locks.is_empty() {
            return client.check_connection().await;
        }
        let rows = client.query(&watch.lost, &[&now]).await?;
        let seen: BTreeSet<_> = rows.iter().map(|row| ProcessId(row.get::<_, Uuid>(0))).collect();
        if tokio::time::Instant::now() >= watch.judges {
            self.judge(&watch.suspects, &seen);
        }
        watch.suspects = seen;
        Ok(())
    }

    /// Counts a process as lost if its lock was missing at two checks in a row.
    fn judge(&self, before: &BTreeSet<ProcessId>, now: &BTreeSet<ProcessId>) {
        let own = |process: &ProcessId| self.locks.contains_key(process);
        let found: BTreeSet<_> = before.intersection(now).filter(|process| !own(process)).copied().collect();
        let mut lost = self.shared.lost();
        let is_news = *lost != found;
        *lost = found;
        drop(lost);
        if is_news {
            self.hints.send(Hint::Processes);
        }
    }

    /// Releases the locks of processes whose lease has expired; they count as expired anyway.
    async fn release(&mut self, client: &Client, now: i64) -> Result<(), tokio_postgres::Error> {
        let over: Vec<_> =
            self.locks.iter().filter(|(_, until)| until.micros() <= now).map(|(id, _)| *id).collect();
        for process in over {
            self.locks.remove(&process);
            client.execute("select pg_advisory_unlock_shared($1)", &[&self.mark.lock(process)]).await?;
        }
        Ok(())
    }
}

/// The checks of other processes' sessions.
struct Watch {
    lost: Statement,
    looks: tokio::time::Interval,
    /// Processes whose lock was missing at the last check.
    suspects: BTreeSet<ProcessId>,
    judges: tokio::time::Instant,
}

async fn in_time<T>(asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(CONNECTION_TIMEOUT, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Unanswered::Silence(CONNECTION_TIMEOUT).into()),
    }
}

/// Takes a shared lock, so that a new session of the process need not wait until the server has noticed the end of the
/// old one.
async fn lock(client: &Client, lock: i64) -> Result<(), tokio_postgres::Error> {
    client.execute("select pg_advisory_lock_shared($1)", &[&lock]).await?;
    Ok(())
}
