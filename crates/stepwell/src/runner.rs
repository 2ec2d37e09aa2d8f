//! The background tasks of an engine: heartbeats, claims of due runs, and hints from the store.

use std::sync::Arc;
use std::time::Duration;

use stepwell_core::{Definition, DefinitionHash, Failure, Name, Timestamp};
use stepwell_store::{
    Claim, Commit, CommitError, CommitId, Heartbeat, Hint, Loaded, Membership, Ownership, Page, ProcessId,
    Record, RecordQuery, Refused, RunUpdate, StoreError, TenantId, TenantScope,
};

use crate::commit_cycle::CommitFailure;
use crate::concurrency::Permit;
use crate::engine::{Deciding, Inner};
use crate::error::EngineError;
use crate::ledger::{Ledger, Stopped};
use crate::loaded_run::{InFlightActions, LoadedRun, PendingCommit};
use crate::outage::Outage;
use crate::planner::NextStep;
use crate::run_driver::spawn_driver;

/// Maximum number of runs claimed with one query.
const TAKEN_AT_ONCE: usize = 256;
/// Maximum duration, in milliseconds, of a round that queries the tenants one by one because the store cannot list due
/// tenants.
const BLIND_MS: u64 = 5_000;
/// Maximum pause, in milliseconds, before a process without a valid lease checks it again.
const UNKNOWN_MS: u64 = 50;

/// Starts the background tasks. The first heartbeats register this process and find the processes whose lease has
/// expired.
pub(crate) async fn begin(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let tenants: Vec<_> = inner.lock_tenants().iter().copied().collect();
    for tenant in tenants {
        match learn_all(inner, TenantScope::trusted(tenant)).await {
            // The tenant's database node may be down, and the other tenants need this process. The runner reads the
            // definitions when a due run needs them.
            Err(EngineError::Store(StoreError::Unavailable(why))) => {
                tracing::warn!(%tenant, why, "the workflow definitions of a tenant could not be read");
            }
            learned => learned?,
        }
    }
    // The first heartbeat returns the store's clock. Everything after it uses that time.
    let (process, now) = (inner.process(), inner.host.now());
    let Membership { clock, .. } =
        inner.store.heartbeat(Heartbeat { process, now, lease_ms: inner.options.lease_ms }).await?;
    if let Some(reading) = clock {
        inner.host.clock.follow(reading);
    }
    renew_lease(inner).await?;
    let spawn = |task| inner.host.spawn.spawn(task);
    spawn(Box::pin(heartbeat(inner.clone())));
    spawn(Box::pin(listen(inner.clone())));
    spawn(Box::pin(crate::flow::outbox::run(inner.clone())));
    if inner.options.max_runs > 0 {
        spawn(Box::pin(take(inner.clone())));
        spawn(Box::pin(crate::maintenance::maintenance(inner.clone())));
    }
    inner.wake_at(Some(inner.host.now()));
    Ok(())
}

/// Renews this process's lease. If the lease expired before the answer arrived, other processes may already have
/// claimed its runs. The process then takes a new name and gives up its runs.
async fn renew_lease(inner: &Inner) -> Result<(), EngineError> {
    // One heartbeat at a time: the answer to an older one must not confirm a name that was taken later.
    let mut known = inner.heartbeat_lock.lock().await;
    let (now, lease_ms) = (inner.host.now(), inner.options.lease_ms);
    if *known != Timestamp::MIN && now >= *known {
        tracing::warn!("the lease of this process expired without a heartbeat; it gives up its runs");
        inner.reset_after_lost_lease();
        *known = Timestamp::MIN;
    }
    let names = inner.rotate_names();
    let mut membership = Membership::default();
    for process in &names {
        membership = inner.store.heartbeat(Heartbeat { process: *process, now, lease_ms }).await?;
    }
    let Membership { mut expired, alive, clock } = membership;
    if let Some(reading) = clock {
        inner.host.clock.follow(reading);
    }
    let until = now.plus_ms(lease_ms);
    let limit = if *known == Timestamp::MIN { until } else { until.min(*known) };
    if inner.host.now() >= limit {
        tracing::warn!("a heartbeat took longer than the lease; this process gives up its runs");
        inner.reset_after_lost_lease();
        *known = Timestamp::MIN;
        return Ok(());
    }
    *known = until;
    inner.set_lease_until(until);
    expired.retain(|other| !names.contains(other));
    inner.set_expired(expired);
    inner.set_alone(alive <= names.len() as u64);
    if !inner.expired().is_empty() {
        inner.wake_at(Some(now));
    }
    Ok(())
}

/// Renews the lease three times per lease duration.
async fn heartbeat(inner: Arc<Inner>) {
    let pause_ms = (inner.options.lease_ms / 3).max(1);
    let mut attempts = 0;
    loop {
        // A process without a lease owns nothing. It tries again soon, with growing pauses.
        let is_lost = inner.lease_until() == Timestamp::MIN;
        let soon_ms = 1_u64.checked_shl(attempts).unwrap_or(pause_ms).min(pause_ms);
        attempts = if is_lost { attempts + 1 } else { 0 };
        let next = inner.host.now().plus_ms(if is_lost { soon_ms } else { pause_ms });
        if inner.abandoned_before(next).await {
            return;
        }
        // Hints can get lost, so each driver also reloads its run periodically.
        inner.notify_all_drivers();
        if let Err(error) = renew_lease(&inner).await {
            tracing::warn!(%error, "the heartbeat failed");
        }
    }
}

/// Wakes drivers and the runner when the store sends a hint about a run.
async fn listen(inner: Arc<Inner>) {
    let mut hints = inner.store.hints();
    loop {
        let hint = tokio::select! {
            biased;
            () = inner.over() => return,
            hint = hints.next() => hint,
        };
        let Some(hint) = hint else { return };
        match hint {
            Hint::Run(run) => {
                if !inner.notify_driver(run) {
                    inner.wake_at(Some(inner.host.now()));
                }
            }
            Hint::Missed => {
                inner.notify_all_drivers();
                inner.wake_at(Some(inner.host.now()));
            }
            Hint::Processes => {
                if let Err(error) = renew_lease(&inner).await {
                    tracing::warn!(%error, "the heartbeat failed");
                }
            }
            Hint::Cell(..) => {}
        }
    }
}

/// Claims due runs, up to the concurrency limit.
async fn take(inner: Arc<Inner>) {
    let mut next = inner.host.now();
    let mut outage = Outage::default();
    let freed = inner.concurrency.freed();
    while !inner.is_stopping() {
        let now = inner.host.now();
        let due = inner.wakes.next().min(next);
        if due > now {
            tokio::select! {
                biased;
                () = inner.wake.notified() => {}
                // A claim was refused for lack of a permit, and now one is free.
                () = freed.notified() => next = now,
                () = inner.host.clock.sleep_until(due) => {}
            }
            continue;
        }
        inner.record_activity();
        inner.wakes.forget(now);
        // Claim nothing under a name that the store does not know yet.
        let in_doubt = inner.is_in_doubt() && renew_lease(&inner).await.is_err();
        next = if in_doubt || !inner.has_lease() {
            inner.host.now().plus_ms(inner.options.poll_ms.min(UNKNOWN_MS))
        } else {
            round(&inner, now, &mut outage).await
        };
    }
}

/// Finds runs that this process owns but does not drive, although they have not changed for the length of a lease, and
/// releases them. There should be none: every commit or claim that makes this process the owner starts a driver or
/// marks the ownership as in doubt.
pub(crate) async fn find_undriven(inner: &Inner) {
    let all = u32::try_from(inner.options.max_runs).unwrap_or(u32::MAX).saturating_mul(2);
    // A run may be stuck under a retired name, which other runs keep in use.
    let own = inner.names_in_use();
    // Runs of expired processes are due at `Timestamp::MIN`. This query passes our own names as expired.
    let dues = inner.store.due(own.clone()).await.map(|dues| {
        let owning = dues.into_iter().filter(|due| due.at == Timestamp::MIN);
        owning.map(|due| due.tenant).collect::<Vec<_>>()
    });
    let tenants = dues.unwrap_or_else(|error| {
        tracing::warn!(%error, "tenants with runs of this process could not be listed; querying each tenant");
        inner.lock_tenants().iter().copied().collect()
    });
    for tenant in tenants {
        let scope = TenantScope::trusted(tenant);
        let now = Timestamp::MIN;
        let claim = Claim { by: None, now, limit: all, definitions: None, expired: own.clone() };
        let found = inner.store.claim(scope, claim).await.map(|page| page.items);
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%tenant, %error, "the runs that this process owns could not be read");
            Vec::new()
        });
        let undriven = |loaded: &Loaded| inner.is_undriven(scope, loaded, inner.host.now());
        // The answer to the call that made this process the owner may still be on its way. Its driver starts with it.
        if !found.iter().any(undriven) || !inner.calls_under_way_end().await {
            continue;
        }
        for loaded in found {
            if undriven(&loaded) {
                let run = loaded.head.run;
                tracing::error!(%tenant, %run, "this process owns a run but does not drive it");
                release_undriven(inner, scope, loaded).await;
            }
        }
    }
}

/// The tenants whose runs a round claims.
struct Waiting {
    tenants: Vec<TenantId>,
    /// Time of the next round, unless something happens before it.
    next: Timestamp,
    /// The store could not list tenants with due runs, so these are tenants that may have some.
    is_blind: bool,
}

/// Finds the tenants with due runs. If the store cannot list them, returns the known tenants whose claims do not fail.
async fn find_waiting(
    inner: &Inner,
    expired: Vec<ProcessId>,
    now: Timestamp,
    outage: &mut Outage,
) -> Waiting {
    let next = now.plus_ms(inner.options.poll_ms);
    if outage.may_list(now) {
        match inner.store.due(expired).await {
            Ok(dues) => {
                outage.end();
                inner.lock_tenants().extend(dues.iter().map(|due| due.tenant));
                let later = dues.iter().filter(|due| due.at > now).map(|due| due.at);
                let next = later.fold(next, Timestamp::min);
                let waiting = dues.iter().filter(|due| due.at <= now).map(|due| due.tenant);
                return Waiting { tenants: waiting.collect(), next, is_blind: false };
            }
            Err(error) => {
                // A database node may be down. Query the tenants one by one to reach those on other nodes.
                tracing::warn!(%error, "due runs could not be listed; querying each tenant");
                outage.list_failed(inner.host.now());
            }
        }
    }
    let known = inner.lock_tenants();
    let waiting = known.iter().copied().filter(|tenant| outage.may_claim(*tenant, now));
    Waiting { tenants: waiting.collect(), next, is_blind: true }
}

/// Releases a run that this process owns but does not drive, so that any process can claim it. The commit names the
/// run's fence and revision: it has no effect if a driver has started meanwhile.
async fn release_undriven(inner: &Inner, scope: TenantScope, loaded: Loaded) {
    let (run, head) = (loaded.head.run, loaded.head.clone());
    let mut loaded_run = match inner.build_loaded_run(scope, loaded.clone()).await {
        Ok(loaded_run) => loaded_run,
        Err(error) => return inner.unreadable(scope, loaded, &error).await,
    };
    loaded_run.count_begun_calls();
    // The next owner gets this fence. No process has crashed.
    let ledger = Ledger { fence: head.fence + 1, ..loaded_run.ledger };
    let now = inner.host.now();
    let mut commit = Commit::new(CommitId(inner.host.ids.next()), now);
    commit.step = Some(RunUpdate {
        fence: Some(head.fence),
        in_order: false,
        status: head.status,
        error: ledger.error_code(head.status),
        wake: Some(now),
        owner: Ownership::Release,
        ledger: ledger.write(),
        head,
        next: Vec::new(),
        definition: None,
        take: Vec::new(),
        open: Vec::new(),
        close: Vec::new(),
        shadows: Vec::new(),
    });
    match inner.store.commit(scope, commit).await {
        Ok(_) | Err(CommitError::Refused(Refused::Moved { .. } | Refused::Fenced { .. })) => {
            inner.wake_at(Some(now));
        }
        // The next maintenance tries it again.
        Err(error) => tracing::warn!(%run, %error, "a run without a driver could not be released"),
    }
}

/// Claims what is due now and returns the time of the next round.
async fn round(inner: &Arc<Inner>, now: Timestamp, outage: &mut Outage) -> Timestamp {
    let expired = inner.expired();
    let Waiting { tenants: mut waiting, mut next, is_blind } =
        find_waiting(inner, expired.clone(), now, outage).await;
    // The tenant that was served last comes last, so that a busy tenant does not delay the others.
    let after = waiting.partition_point(|tenant| Some(*tenant) <= inner.last_served_tenant());
    waiting.rotate_left(after);
    for (index, tenant) in waiting.iter().enumerate() {
        let scope = TenantScope::trusted(*tenant);
        let share = inner.concurrency.free().div_ceil(waiting.len() - index);
        let claimed = claim(inner, scope, share, &expired, now).await;
        if claimed.is_ok() {
            outage.claim_succeeded(*tenant);
        }
        match claimed {
            Ok(ClaimResult { is_full: true, found: 0, .. }) => {
                if inner.concurrency.free() == 0 {
                    break;
                }
            }
            Ok(ClaimResult { found: 0, .. }) if is_blind => {}
            // The due runs need a definition that this process does not know.
            Ok(ClaimResult { found: 0, .. }) => {
                if let Err(error) = learn_all(inner, scope).await {
                    tracing::warn!(%error, "the workflow definitions of a tenant could not be read");
                }
            }
            // Decisions on these runs are in progress. Each one triggers another round when it ends.
            Ok(ClaimResult { begun: 0, .. }) => {}
            Ok(_) => {
                inner.set_last_served_tenant(*tenant);
                next = next.min(now.plus_ms(inner.options.tick_ms));
            }
            Err(error) => {
                tracing::warn!(%tenant, %error, "runs could not be claimed");
                // Let the next round begin with another tenant.
                if is_blind {
                    outage.claim_failed(*tenant, inner.host.now());
                    inner.set_last_served_tenant(*tenant);
                }
            }
        }
        if is_blind && inner.host.now() > now.plus_ms(BLIND_MS) {
            break;
        }
    }
    next
}

/// Claims runs of one tenant, up to its share of the free permits.
async fn claim(
    inner: &Arc<Inner>,
    scope: TenantScope,
    share: usize,
    expired: &[ProcessId],
    now: Timestamp,
) -> Result<ClaimResult, EngineError> {
    let (limited, free): (Vec<_>, Vec<_>) =
        inner.servable(scope).await?.into_iter().partition(|(_, name)| inner.concurrency.limits(name));
    let all = free.iter().map(|(hash, _)| *hash).collect();
    let mut taken = claim_for(inner, scope, None, share, all, expired, now).await?;
    let mut names: Vec<Name> = limited.iter().map(|(_, name)| name.clone()).collect();
    names.dedup();
    for name in names {
        let own = limited.iter().filter(|(_, other)| *other == name).map(|(hash, _)| *hash).collect();
        let left = share.saturating_sub(taken.found);
        let more = claim_for(inner, scope, Some(&name), left, own, expired, now).await?;
        taken.found += more.found;
        taken.begun += more.begun;
        taken.is_full |= more.is_full;
    }
    Ok(taken)
}

async fn claim_for(
    inner: &Arc<Inner>,
    scope: TenantScope,
    workflow: Option<&Name>,
    share: usize,
    definitions: Vec<DefinitionHash>,
    expired: &[ProcessId],
    now: Timestamp,
) -> Result<ClaimResult, EngineError> {
    if definitions.is_empty() {
        return Ok(ClaimResult::default());
    }
    let most = share.clamp(1, TAKEN_AT_ONCE);
    let mut permits: Vec<Permit> =
        (0..most).map_while(|_| inner.concurrency.try_acquire_as(workflow)).collect();
    if permits.is_empty() {
        inner.concurrency.starve();
        // A permit may have been released before the flag was set.
        permits.extend(inner.concurrency.try_acquire_as(workflow));
    }
    if permits.is_empty() {
        return Ok(ClaimResult { is_full: true, ..ClaimResult::default() });
    }
    // While no other process is alive, runs are not claimed before the decision: no other process can decide on them
    // at the same time.
    let takes = !(inner.is_alone() && expired.is_empty());
    let claim = Claim {
        by: takes.then(|| inner.process()),
        now,
        limit: permits.len() as u32,
        definitions: Some(definitions),
        expired: expired.to_vec(),
    };
    let _under_way = inner.under_way();
    let Page { items: loaded, next: _, bad } = inner.store.claim(scope, claim).await.inspect_err(|_| {
        if takes {
            inner.in_doubt();
        }
    })?;
    inner.stop_unreadable_rows(scope, &bad).await;
    let found = loaded.len();
    inner.observe_claim(&loaded, now);
    if found == permits.len() {
        // There may be more due runs than permits.
        inner.concurrency.starve();
    }
    let mut begun = 0;
    for (loaded, permit) in loaded.into_iter().zip(permits) {
        let run = loaded.head.run;
        match inner.build_loaded_run(scope, loaded.clone()).await {
            Ok(loaded_run) if takes => spawn_driver(inner.clone(), scope, loaded_run, permit.used()),
            Ok(loaded_run) => match inner.try_begin_decision(scope.run(run)) {
                Some(guard) => decide(inner.clone(), scope, loaded_run, permit.used(), guard),
                None => continue,
            },
            Err(error) => inner.unreadable(scope, loaded, &error).await,
        }
        begun += 1;
    }
    Ok(ClaimResult { found, begun, is_full: false })
}

/// The result of a claim.
#[derive(Default)]
struct ClaimResult {
    found: usize,
    /// Number of runs on which no decision was in progress already.
    begun: usize,
    /// No permit was free for at least one workflow.
    is_full: bool,
}

/// Decides on a due run without an owner, in a new task. If there is more to do, the commit makes this process the
/// owner.
fn decide(inner: Arc<Inner>, scope: TenantScope, loaded_run: LoadedRun, permit: Permit, guard: Deciding) {
    let spawn = inner.host.spawn.clone();
    spawn.spawn(Box::pin(async move {
        let next = match inner.plan(&loaded_run, &InFlightActions::new(), inner.host.now()).await {
            NextStep::Commit(next) => *next,
            NextStep::FetchEarlierEvents(wait) => match inner.fetch_earlier_events(scope, &loaded_run, wait).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(run = %loaded_run.run(), %error, "the earlier events of a wait could not be fetched");
                    PendingCommit::note(loaded_run.ledger.clone())
                }
            },
            NextStep::Admit => match inner.admit(scope, &loaded_run).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(run = %loaded_run.run(), %error, "the queue of a limit could not be read");
                    PendingCommit::note(loaded_run.ledger.clone())
                }
            },
            NextStep::RunAction(_) | NextStep::CancelChildren | NextStep::Sleep(_) => PendingCommit::note(loaded_run.ledger.clone()),
        };
        inner.record_activity();
        let decided = inner.commit_with_permit(scope, &loaded_run, next, Some(&permit)).await;
        let decided = decided.map(|cycle| inner.try_adopt(scope, cycle, Some(permit)));
        drop(guard);
        match decided {
            Ok(Some((hold, next))) => hold.run(Some(next)).await,
            Ok(None) => {}
            Err(CommitFailure::Moved | CommitFailure::Fenced) => inner.wake_at(Some(inner.host.now())),
            Err(failure) => match failure.failure() {
                Some(failure) => stop(&inner, scope, &loaded_run, failure).await,
                None => {
                    let error = EngineError::from(failure);
                    tracing::warn!(run = %loaded_run.run(), %error, "a decision on a due run could not be committed");
                }
            },
        }
    }));
}

/// Stops a run with an error, because a decision on it can never be written.
async fn stop(inner: &Arc<Inner>, scope: TenantScope, loaded_run: &LoadedRun, error: Failure) {
    tracing::error!(run = %loaded_run.run(), %error, "a decision on a run cannot be written; the run stops");
    let mut ledger = loaded_run.ledger.clone();
    ledger.stopped = Some(Stopped { at: inner.host.now(), error, activation: None });
    if let Err(failure) = inner.commit_with_permit(scope, loaded_run, PendingCommit::note(ledger), None).await
    {
        let error = EngineError::from(failure);
        tracing::error!(run = %loaded_run.run(), %error, "a run could not be stopped");
    }
}

/// Loads a definition from the store, for the runs that are pinned to it.
pub(crate) async fn learn(
    inner: &Inner,
    scope: TenantScope,
    hash: DefinitionHash,
) -> Result<(), EngineError> {
    let page = match inner.store.records(scope, RecordQuery::Definition(hash)).await {
        Err(StoreError::Bad(row)) => {
            tracing::error!(%row, "a stored definition cannot be read");
            return Ok(());
        }
        page => page?,
    };
    page.items.iter().for_each(|record| learn_one(inner, scope, record));
    Ok(())
}

/// Loads every definition that a tenant's runs may be pinned to.
async fn learn_all(inner: &Inner, scope: TenantScope) -> Result<(), EngineError> {
    let mut cursor = None;
    loop {
        let query = RecordQuery::Definitions { workflow: None, limit: 200, cursor };
        let page = inner.store.records(scope, query).await?;
        page.items.iter().for_each(|record| learn_one(inner, scope, record));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

fn learn_one(inner: &Inner, scope: TenantScope, record: &Record) {
    let Record::Definition(stored) = record else { return };
    let tenant = scope.tenant();
    if inner.registry.by_hash(tenant, stored.hash).is_none() {
        let built = inner.registry.built(stored.hash).map(Ok);
        let read = || Definition::from_canonical_within(&stored.body, &inner.options.limits);
        match built.unwrap_or_else(read) {
            Ok(definition) => {
                let workflow = inner.registry.learn(tenant, definition);
                workflow.set_stored_publisher(stored.publisher.as_deref());
            }
            Err(error) => {
                tracing::error!(workflow = %stored.workflow, %error, "a stored definition cannot be read");
                return;
            }
        }
    }
    inner.stored(scope, &[stored.hash]);
}

/// Waits until every run is released, at most 5 seconds.
pub(crate) async fn release(inner: &Inner) {
    let until = inner.host.now().plus_ms(Duration::from_secs(5).as_millis() as u64);
    tokio::select! {
        biased;
        () = inner.wait_until_idle() => {}
        () = inner.host.clock.sleep_until(until) => {}
    }
}
