//! Heartbeats: records the lease of a process, and finds the processes whose lease has expired.
//!
//! A heartbeat must not wait for the tables of tenants. With Citus one node that does not answer would expire every
//! process, and stop the tenants of all other nodes with them. So the table of processes is on one node and has its own
//! connection, and the search for owners of runs is a separate task, which a heartbeat waits for only briefly.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stepwell_core::Timestamp;
use stepwell_store::{ClockReading, Heartbeat, Membership, ProcessId, StoreError, TenantId};
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Visibility};
use crate::rows::{self, Read};
use crate::session::Session;
use crate::{query, statements as sql};

/// Time after which an expired process is deleted. No commit of such a process can still be running then.
const PROCESS_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum time that a heartbeat waits for the search for owners.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The heartbeats of the processes that use a store.
pub(crate) struct Heartbeats {
    /// The connection for the table of processes.
    alone: Connections,
    /// The connections for the search for owners.
    pool: Connections,
    /// A search has taken too long and still runs. Until it ends, heartbeats do not wait for another.
    is_stuck: Arc<AtomicBool>,
    /// The processes that the last complete search found.
    last: Mutex<BTreeSet<ProcessId>>,
}

/// The recorded processes at one time.
struct RecordedProcesses {
    alive: Vec<Uuid>,
    expired: BTreeSet<ProcessId>,
    clock: Option<ClockReading>,
}

/// The owners of runs that are not alive.
#[derive(Default)]
struct Owners {
    found: BTreeSet<ProcessId>,
    /// False if the runs of some tenants could not be searched.
    is_complete: bool,
}

impl Heartbeats {
    pub(crate) fn new(alone: Connections, pool: Connections) -> Self {
        Heartbeats { alone, pool, is_stuck: Arc::default(), last: Mutex::default() }
    }

    /// Renews a lease. Returns the processes whose lease has expired, and whether other processes are alive.
    pub(crate) async fn beat(
        &self,
        session: Option<&Session>,
        heartbeat: &Heartbeat,
    ) -> Read<(Membership, bool)> {
        let until = heartbeat.now.plus_ms(heartbeat.lease_ms);
        let lock = match session {
            Some(session) => session.request_lock(heartbeat.process, heartbeat.now, until).await,
            None => None,
        };
        let id = heartbeat.process.0;
        let which: [Param<'_>; 3] = [&id, &until.micros(), &lock];
        self.write(sql::process_heartbeat, &which).await?;
        let RecordedProcesses { alive, expired: recorded, clock } =
            self.recorded(session, heartbeat.now).await?;
        let wait = longest_wait(heartbeat.lease_ms);
        let owners = self.owners(alive.clone(), wait).await;
        let mut expired = match owners.is_complete {
            true => owners.found,
            // More processes than those that own runs. That is right too: claiming the runs of such a process
            // finds nothing.
            false => &(&owners.found | &recorded) | &self.last(),
        };
        if !expired.is_empty() {
            // A process that started meanwhile may own a run already. Read the list again: it is alive.
            let RecordedProcesses { alive, .. } = self.recorded(session, heartbeat.now).await?;
            expired.retain(|process| !alive.contains(&process.0));
        }
        if owners.is_complete {
            self.forget(heartbeat.now, &expired).await?;
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = expired.clone();
        }
        let membership =
            Membership { expired: expired.into_iter().collect(), alive: alive.len() as u64, clock };
        Ok((membership, alive.len() > 1))
    }

    fn last(&self) -> BTreeSet<ProcessId> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn write(&self, sql: &'static str, params: &[Param<'_>]) -> Read<()> {
        self.alone.one(Visibility::None, Mode::Writes, sql, params).await.map(drop)
    }

    /// Deletes processes that expired long ago, except for owners of runs.
    async fn forget(&self, now: Timestamp, owners: &BTreeSet<ProcessId>) -> Read<()> {
        let before = now.micros().saturating_sub(PROCESS_RETENTION.as_micros() as i64);
        let owners: Vec<Uuid> = owners.iter().map(|process| process.0).collect();
        self.write(sql::process_forget, &[&before, &owners]).await
    }

    /// Returns the recorded processes, and a reading of the server's clock. A process whose session is lost counts as
    /// expired.
    async fn recorded(&self, session: Option<&Session>, now: Timestamp) -> Read<RecordedProcesses> {
        let lost = session.map(Session::lost).unwrap_or_default();
        let asked = Instant::now();
        let rows = self.alone.one(Visibility::None, Mode::Reads, sql::process_list, &[]).await?;
        let max_error = asked.elapsed() / 2;
        let mut recorded = RecordedProcesses { alive: Vec::new(), expired: BTreeSet::new(), clock: None };
        for row in &rows {
            recorded.clock =
                Some(ClockReading { at: asked + max_error, remote_time: rows::at(row, 2)?, max_error });
            let (id, until): (Uuid, Timestamp) = (rows::get(row, 0)?, rows::at(row, 1)?);
            if until > now && !lost.contains(&ProcessId(id)) {
                recorded.alive.push(id);
            } else {
                recorded.expired.insert(ProcessId(id));
            }
        }
        Ok(recorded)
    }

    /// Searches for owners of runs that are not alive, for at most this time.
    async fn owners(&self, alive: Vec<Uuid>, wait: Duration) -> Owners {
        if self.is_stuck.load(Ordering::Acquire) {
            return Owners::default();
        }
        let pool = self.pool.clone();
        let mut searching = tokio::spawn(async move { search(&pool, &alive).await });
        if let Ok(found) = tokio::time::timeout(wait, &mut searching).await {
            return found.unwrap_or_default();
        }
        tracing::warn!(
            "the search for the runs of expired processes takes too long; the heartbeat does not wait"
        );
        self.is_stuck.store(true, Ordering::Release);
        let is_stuck = self.is_stuck.clone();
        tokio::spawn(async move {
            let _ = searching.await;
            is_stuck.store(false, Ordering::Release);
        });
        Owners::default()
    }
}

/// Returns the maximum time that a heartbeat with this lease waits for the search for owners. A lease of zero has expired
/// before any search could end, so it does not shorten the search.
fn longest_wait(lease_ms: u64) -> Duration {
    match lease_ms / 4 {
        0 => LONGEST_WAIT,
        ms => Duration::from_millis(ms).min(LONGEST_WAIT),
    }
}

async fn search(on: &Connections, alive: &[Uuid]) -> Owners {
    let dues = match query::due(on, &[], Some(alive)).await {
        Ok(dues) => dues,
        Err(failure) => {
            let error = StoreError::from(failure);
            tracing::warn!(%error, "cannot find the runs of expired processes");
            return Owners::default();
        }
    };
    let mut owners = Owners { found: BTreeSet::new(), is_complete: true };
    for due in dues.iter().filter(|due| due.at == Timestamp::MIN) {
        match owners_of(on, due.tenant, alive).await {
            Ok(found) => owners.found.extend(found),
            Err(failure) => {
                let (tenant, error) = (due.tenant, StoreError::from(failure));
                tracing::warn!(%tenant, %error, "cannot read which expired processes own runs of a tenant");
                owners.is_complete = false;
            }
        }
    }
    owners
}

async fn owners_of(on: &Connections, tenant: TenantId, alive: &[Uuid]) -> Read<Vec<ProcessId>> {
    let which: [Param<'_>; 2] = [&tenant.uuid(), &alive];
    let rows = query::read(on, tenant, sql::owners, &which).await?;
    query::each(&rows, |row| Ok(ProcessId(rows::get(row, 0)?)))
}
