//! What an engine does beside its calls: it beats, takes the runs that are due and listens for hints.

use std::sync::Arc;
use std::time::Duration;

use stepwell_core::{Definition, DefinitionHash, Failure, Name, Timestamp};
use stepwell_store::{
    Beat, Beaten, Claim, Due, Hint, Page, ProcessId, Record, RecordQuery, StoreError, TenantScope,
};

use crate::engine::{Deciding, Inner};
use crate::error::EngineError;
use crate::hold::hold;
use crate::ledger::Stopped;
use crate::look::Next;
use crate::room::Pass;
use crate::standing::{Flying, Move, Standing};
use crate::turn::Turnless;

/// Runs that are taken from the store in one go.
const TAKEN_AT_ONCE: usize = 256;
/// How long tenants are asked one by one in a round if the store cannot say who has work.
const BLIND_MS: u64 = 5_000;
/// How soon a process looks again whether the store has heard of it.
const UNKNOWN_MS: u64 = 50;

/// Begins to work: says that this process lives, and whose runs are free because theirs do not.
pub(crate) async fn begin(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let tenants: Vec<_> = inner.lock_tenants().iter().copied().collect();
    for tenant in tenants {
        learn_all(inner, TenantScope::vouched(tenant)).await?;
    }
    // The first answer says what time it is where the others are; what follows goes by that.
    let (process, now) = (inner.process(), inner.host.now());
    let Beaten { clock, .. } =
        inner.store.beat(Beat { process, now, lease_ms: inner.options.lease_ms }).await?;
    if let Some(reading) = clock {
        inner.host.clock.follow(reading);
    }
    beat(inner).await?;
    let spawn = |task| inner.host.spawn.spawn(task);
    spawn(Box::pin(heartbeat(inner.clone())));
    spawn(Box::pin(listen(inner.clone())));
    spawn(Box::pin(crate::flow::post::run(inner.clone())));
    if inner.options.max_runs > 0 {
        spawn(Box::pin(take(inner.clone())));
        spawn(Box::pin(crate::upkeep::upkeep(inner.clone())));
    }
    inner.look_at(Some(inner.host.now()));
    Ok(())
}

/// Says that this process lives. An answer that comes after the lease has run out is no use: others may have called it
/// dead meanwhile. It is another process from then on, and what it worked on belongs to whoever takes it.
async fn beat(inner: &Inner) -> Result<(), EngineError> {
    // One after the other: the answer to an older one must not vouch for a name that was taken since.
    let mut known = inner.beating.lock().await;
    let (now, lease_ms) = (inner.host.now(), inner.options.lease_ms);
    if *known != Timestamp::MIN && now >= *known {
        tracing::warn!("this process was silent for longer than its lease; it gives up what it worked on");
        inner.reborn();
        *known = Timestamp::MIN;
    }
    let names = inner.renamed();
    let mut beaten = Beaten::default();
    for process in &names {
        beaten = inner.store.beat(Beat { process: *process, now, lease_ms }).await?;
    }
    let Beaten { mut dead, living, clock } = beaten;
    if let Some(reading) = clock {
        inner.host.clock.follow(reading);
    }
    let until = now.plus_ms(lease_ms);
    let limit = if *known == Timestamp::MIN { until } else { until.min(*known) };
    if inner.host.now() >= limit {
        tracing::warn!("a heartbeat took longer than the lease; this process gives up what it worked on");
        inner.reborn();
        *known = Timestamp::MIN;
        return Ok(());
    }
    *known = until;
    inner.prolong(until);
    dead.retain(|other| !names.contains(other));
    inner.set_dead(dead);
    inner.set_alone(living <= names.len() as u64);
    if !inner.dead().is_empty() {
        inner.look_at(Some(now));
    }
    Ok(())
}

/// Says that this process lives, three times in a lease.
async fn heartbeat(inner: Arc<Inner>) {
    let pause_ms = (inner.options.lease_ms / 3).max(1);
    let mut tries = 0;
    loop {
        // A process that the store has not heard of owns nothing: it says so soon, and then less and less often.
        let is_lost = inner.lease_until() == Timestamp::MIN;
        let soon_ms = 1_u64.checked_shl(tries).unwrap_or(pause_ms).min(pause_ms);
        tries = if is_lost { tries + 1 } else { 0 };
        let next = inner.host.now().plus_ms(if is_lost { soon_ms } else { pause_ms });
        if inner.is_over_by(next).await {
            return;
        }
        // A hint is not a promise: whoever works on a run for long looks at it now and then.
        inner.tell_all_holders();
        if let Err(error) = beat(&inner).await {
            tracing::warn!(%error, "the heartbeat could not be written");
        }
    }
}

/// Hints say which runs may have something to do.
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
                if !inner.tell_holder(run) {
                    inner.look_at(Some(inner.host.now()));
                }
            }
            Hint::Missed => {
                inner.tell_all_holders();
                inner.look_at(Some(inner.host.now()));
            }
            Hint::Processes => {
                if let Err(error) = beat(&inner).await {
                    tracing::warn!(%error, "the heartbeat could not be written");
                }
            }
            Hint::Cell(..) => {}
        }
    }
}

/// Takes runs that are due, as many as there is room for.
async fn take(inner: Arc<Inner>) {
    let mut next = inner.host.now();
    let freed = inner.room.freed();
    while !inner.is_stopping() {
        let now = inner.host.now();
        let due = inner.wakes.next().min(next);
        if due > now {
            tokio::select! {
                biased;
                () = inner.wake.notified() => {}
                // Somebody found no room, and now there is some.
                () = freed.notified() => next = now,
                () = inner.host.clock.sleep_until(due) => {}
            }
            continue;
        }
        inner.beat_pulse();
        inner.wakes.forget(now);
        // Nothing is taken under a name that nobody has heard of.
        let in_doubt = inner.is_in_doubt() && beat(&inner).await.is_err();
        next = if in_doubt || !inner.may_own() {
            inner.host.now().plus_ms(inner.options.poll_ms.min(UNKNOWN_MS))
        } else {
            round(&inner, now).await
        };
    }
}

/// Looks for runs that this process owns and that nothing in it works on, although they have not moved for a lease. There
/// should be none: whatever makes this process an owner goes on with the run, or says that it is in doubt. If there are
/// some, it is in doubt now: it takes another name, and they are found under the old one.
pub(crate) async fn find_undriven(inner: &Inner) -> Result<(), EngineError> {
    let all = u32::try_from(inner.options.max_runs).unwrap_or(u32::MAX).saturating_mul(2);
    let own = vec![inner.process()];
    // What somebody dead owns has been due since ever, and for this question this process is dead.
    let dues = inner.store.due(own.clone()).await?.into_iter().filter(|due| due.at == Timestamp::MIN);
    for due in dues {
        let scope = TenantScope::vouched(due.tenant);
        let now = Timestamp::MIN;
        let claim = Claim { by: None, now, limit: all, definitions: None, dead: own.clone() };
        for loaded in inner.store.claim(scope, claim).await?.items {
            if inner.is_undriven(scope, &loaded, inner.host.now()) {
                let run = loaded.head.run;
                tracing::error!(tenant = %due.tenant, %run, "a run is owned here and nothing works on it");
                inner.in_doubt();
            }
        }
    }
    Ok(())
}

/// Takes what is due now; gives the time of the next look.
async fn round(inner: &Arc<Inner>, now: Timestamp) -> Timestamp {
    let dead = inner.dead();
    let poll = now.plus_ms(inner.options.poll_ms);
    let dues = inner.store.due(dead.clone()).await;
    let is_blind = dues.is_err();
    let dues = dues.unwrap_or_else(|error| {
        // A node of the database may be away: tenants that live elsewhere are asked one by one.
        tracing::warn!(%error, "the store could not say what is due");
        inner.lock_tenants().iter().map(|tenant| Due { tenant: *tenant, at: now }).collect()
    });
    inner.lock_tenants().extend(dues.iter().map(|due| due.tenant));
    let mut next = dues.iter().filter(|due| due.at > now).map(|due| due.at).fold(poll, Timestamp::min);
    let mut waiting: Vec<_> = dues.into_iter().filter(|due| due.at <= now).map(|due| due.tenant).collect();
    // Whoever was served last comes last, so that a tenant with much to do holds nobody up.
    let after = waiting.partition_point(|tenant| Some(*tenant) <= inner.served());
    waiting.rotate_left(after);
    for (index, tenant) in waiting.iter().enumerate() {
        let scope = TenantScope::vouched(*tenant);
        let share = inner.room.free().div_ceil(waiting.len() - index);
        match claim(inner, scope, share, &dead, now).await {
            Ok(Taken { is_full: true, found: 0, .. }) => {
                if inner.room.free() == 0 {
                    break;
                }
            }
            Ok(Taken { found: 0, .. }) if is_blind => {}
            // What is due there is not for this process.
            Ok(Taken { found: 0, .. }) => {
                if let Err(error) = learn_all(inner, scope).await {
                    tracing::warn!(%error, "the definitions of a tenant could not be read");
                }
            }
            // Whoever decides looks again when that is done.
            Ok(Taken { begun: 0, .. }) => {}
            Ok(_) => {
                inner.serve(*tenant);
                next = next.min(now.plus_ms(inner.options.tick_ms));
            }
            Err(error) => {
                tracing::warn!(%tenant, %error, "runs could not be taken");
                // The next round begins with another tenant.
                if is_blind {
                    inner.serve(*tenant);
                }
            }
        }
        if is_blind && inner.host.now() > now.plus_ms(BLIND_MS) {
            break;
        }
    }
    next
}

/// Takes runs of one tenant, no more than its share.
async fn claim(
    inner: &Arc<Inner>,
    scope: TenantScope,
    share: usize,
    dead: &[ProcessId],
    now: Timestamp,
) -> Result<Taken, EngineError> {
    let (limited, free): (Vec<_>, Vec<_>) =
        inner.servable(scope).await?.into_iter().partition(|(_, name)| inner.room.limits(name));
    let all = free.iter().map(|(hash, _)| *hash).collect();
    let mut taken = claim_for(inner, scope, None, share, all, dead, now).await?;
    let mut names: Vec<Name> = limited.iter().map(|(_, name)| name.clone()).collect();
    names.dedup();
    for name in names {
        let own = limited.iter().filter(|(_, other)| *other == name).map(|(hash, _)| *hash).collect();
        let left = share.saturating_sub(taken.found);
        let more = claim_for(inner, scope, Some(&name), left, own, dead, now).await?;
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
    dead: &[ProcessId],
    now: Timestamp,
) -> Result<Taken, EngineError> {
    if definitions.is_empty() {
        return Ok(Taken::default());
    }
    let most = share.clamp(1, TAKEN_AT_ONCE);
    let mut passes: Vec<Pass> = (0..most).map_while(|_| inner.room.enter_as(workflow)).collect();
    if passes.is_empty() {
        inner.room.starve();
        // Room that was freed before the word went out is found here.
        passes.extend(inner.room.enter_as(workflow));
    }
    if passes.is_empty() {
        return Ok(Taken { is_full: true, ..Taken::default() });
    }
    // Alone, a process need not take what is due before it decides: nobody else decides the same in vain.
    let takes = !(inner.is_alone() && dead.is_empty());
    let claim = Claim {
        by: takes.then(|| inner.process()),
        now,
        limit: passes.len() as u32,
        definitions: Some(definitions),
        dead: dead.to_vec(),
    };
    let _under_way = inner.under_way();
    let Page { items: loaded, next: _, bad } = inner.store.claim(scope, claim).await.inspect_err(|_| {
        if takes {
            inner.in_doubt();
        }
    })?;
    inner.put_aside(scope, &bad).await;
    let found = loaded.len();
    inner.saw_claim(&loaded, now);
    if found == passes.len() {
        // There may be more than there was room for.
        inner.room.starve();
    }
    let mut begun = 0;
    for (loaded, pass) in loaded.into_iter().zip(passes) {
        let run = loaded.head.run;
        match inner.stand(scope, loaded.clone()).await {
            Ok(standing) if takes => hold(inner.clone(), scope, standing, pass.used()),
            Ok(standing) => match inner.decides(scope.run(run)) {
                Some(turn) => decide(inner.clone(), scope, standing, pass.used(), turn),
                None => continue,
            },
            Err(error) => inner.unreadable(scope, loaded, &error).await,
        }
        begun += 1;
    }
    Ok(Taken { found, begun, is_full: false })
}

/// What came of looking for runs that are due.
#[derive(Default)]
struct Taken {
    found: usize,
    /// Those that were not being decided on already.
    begun: usize,
    /// There was no room for some.
    is_full: bool,
}

/// Decides on a run that is due and that nobody owns, beside the caller. If there is something to do, the commit makes
/// this process the owner.
fn decide(inner: Arc<Inner>, scope: TenantScope, standing: Standing, pass: Pass, turn: Deciding) {
    let spawn = inner.host.spawn.clone();
    spawn.spawn(Box::pin(async move {
        let next = match inner.look(&standing, &Flying::new(), inner.host.now()).await {
            Next::Move(next) => *next,
            Next::Ask(wait) => match inner.ask(scope, &standing, wait).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(run = %standing.run(), %error, "a wait could not ask for its events");
                    Move::note(standing.ledger.clone())
                }
            },
            Next::Act(_) | Next::TellChildren | Next::Rest(_) => Move::note(standing.ledger.clone()),
        };
        inner.beat_pulse();
        let decided = inner.turn_with(scope, &standing, next, Some(&pass)).await;
        let decided = decided.map(|turned| inner.taken_up(scope, turned, Some(pass)));
        drop(turn);
        match decided {
            Ok(Some((hold, next))) => hold.run(Some(next)).await,
            Ok(None) => {}
            Err(Turnless::Moved | Turnless::Fenced) => inner.look_at(Some(inner.host.now())),
            Err(turnless) => match turnless.failure() {
                Some(failure) => stop(&inner, scope, &standing, failure).await,
                None => {
                    let error = EngineError::from(turnless);
                    tracing::warn!(run = %standing.run(), %error, "a run that is due could not be moved");
                }
            },
        }
    }));
}

/// What was decided on a run cannot be written: it stands still with that as its error.
async fn stop(inner: &Arc<Inner>, scope: TenantScope, standing: &Standing, error: Failure) {
    tracing::error!(run = %standing.run(), %error, "what was decided on a run cannot be written");
    let mut ledger = standing.ledger.clone();
    ledger.stopped = Some(Stopped { at: inner.host.now(), error, activation: None });
    if let Err(turnless) = inner.turn_with(scope, standing, Move::note(ledger), None).await {
        let error = EngineError::from(turnless);
        tracing::error!(run = %standing.run(), %error, "a run could not be put aside");
    }
}

/// Learns a definition from the store, for the runs that are pinned to it.
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

/// Learns every definition that a tenant's runs may be pinned to.
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
                workflow.published_elsewhere(stored.publisher.as_deref());
            }
            Err(error) => {
                tracing::error!(workflow = %stored.workflow, %error, "a stored definition cannot be read");
                return;
            }
        }
    }
    inner.stored(scope, &[stored.hash]);
}

/// Waits until every run is let go of, for a bounded time.
pub(crate) async fn release(inner: &Inner) {
    let until = inner.host.now().plus_ms(Duration::from_secs(5).as_millis() as u64);
    tokio::select! {
        biased;
        () = inner.all_let_go() => {}
        () = inner.host.clock.sleep_until(until) => {}
    }
}
