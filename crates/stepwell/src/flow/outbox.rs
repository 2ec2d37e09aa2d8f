//! Sends queued messages right after their commit, and retries those that were not sent.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use stepwell_core::Timestamp;
use stepwell_store::{
    AuditRow, HandleChange, HandleHash, HandleRow, HandleWrite, RecordQuery, Refused, TenantScope,
};

use super::flows::{Shared, handle};
use super::outlet::{MAX_SENDS, QueuedMessage, SEND_LEASE_MS, pause_ms};
use super::resume::is_worked_on;
use crate::commit_cycle::CommitFailure;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::loaded_run::CommitExtras;

/// Maximum number of unsent messages per query.
const SENT_AT_ONCE: u32 = 100;
/// Maximum number of tenants per query.
const TENANTS_AT_ONCE: u32 = 100;
/// Interval between two searches for unsent messages, in milliseconds.
const ROUND_MS: u64 = 60_000;
/// Time for which a process leaves a due message that it cannot send to the others, in milliseconds.
const YIELDED_MS: u64 = 2 * ROUND_MS;
/// Delay before a message that this process cannot open or send is read again, in milliseconds.
const UNREADABLE_MS: u64 = 300_000;

/// Seals a message for storage. It contains the token that resumes the flow.
pub(crate) fn sealed(
    shared: &Shared,
    scope: TenantScope,
    handle: &HandleHash,
    queued: &QueuedMessage,
) -> Bytes {
    let text = serde_json::to_string(queued).expect("a message is plain data");
    shared.ring.seal(&text, "", &bound(scope, handle)).into()
}

fn opened(shared: &Shared, scope: TenantScope, row: &HandleRow) -> Option<QueuedMessage> {
    let text = std::str::from_utf8(row.delivery.as_ref()?).ok()?;
    let opened = shared.ring.open(text, |_| Some(bound(scope, &row.handle)))?;
    serde_json::from_str(&opened).ok()
}

fn bound(scope: TenantScope, handle: &HandleHash) -> Vec<u8> {
    format!("stepwell post\0{}\0{handle}", scope.tenant()).into_bytes()
}

impl Inner {
    /// Queues the messages of these handles, which have just been committed.
    pub(crate) fn send_queued(&self, scope: TenantScope, handles: Vec<HandleHash>) {
        if let Some(flows) = self.flows.get().filter(|flows| flows.delivers && !handles.is_empty()) {
            flows.post(scope, handles);
            self.queued.notify_one();
        }
    }
}

/// Sends queued messages, and searches periodically for messages that were not sent.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut next = inner.host.now();
    loop {
        let shared = inner.flows.get().filter(|shared| shared.delivers).cloned();
        let due = shared.as_ref().and_then(|shared| shared.next_retry()).unwrap_or(Timestamp::MAX);
        tokio::select! {
            biased;
            () = inner.queued.notified() => {}
            () = inner.over(), if shared.is_none() => return,
            over = inner.abandoned_before(next.min(due)), if shared.is_some() => {
                if over || inner.is_stopping() {
                    return;
                }
                shared.iter().for_each(|shared| shared.drop_past_retries(inner.host.now()));
                if let Err(error) = round(&inner).await {
                    tracing::warn!(%error, "the search for unsent messages failed");
                }
                next = inner.host.now().plus_ms(ROUND_MS);
            }
        }
        let queued = shared.map(|shared| shared.take_queued()).unwrap_or_default();
        queued.into_iter().for_each(|(scope, handle)| wake(&inner, scope, handle));
    }
}

async fn round(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let tenants = inner.store.tenants(after, TENANTS_AT_ONCE).await?;
        let Some(last) = tenants.last().copied() else { return Ok(()) };
        for tenant in tenants {
            let scope = TenantScope::trusted(tenant);
            let query = RecordQuery::Undelivered { now: inner.host.now(), limit: SENT_AT_ONCE };
            for row in inner.store.records(scope, query).await?.items.into_iter().filter_map(handle) {
                if inner.is_stopping() {
                    return Ok(());
                }
                // The handle is in use. A write would change its fence and void that resume.
                if !is_worked_on(inner, scope, &row).await? {
                    retry(inner, scope, row).await;
                }
            }
        }
        after = Some(last);
    }
}

/// Sends the message of a handle in a separate task.
///
/// The commit that stored it gave this process a lease on it.
fn wake(inner: &Arc<Inner>, scope: TenantScope, hash: HandleHash) {
    let spawn = inner.host.spawn.clone();
    let inner = inner.clone();
    spawn.spawn(Box::pin(async move {
        let row = match inner.store.records(scope, RecordQuery::Handle(hash)).await {
            Ok(page) => page.items.into_iter().find_map(handle),
            Err(error) => {
                tracing::warn!(%error, "a queued message could not be read; sending is retried later");
                None
            }
        };
        if let Some(row) = row {
            send(&inner, scope, row).await;
        }
    }));
}

/// Returns true if this process can open and send the message.
fn has_outlet(shared: &Shared, scope: TenantScope, row: &HandleRow) -> bool {
    opened(shared, scope, row).is_some_and(|queued| shared.outlet(&queued.outlet).is_ok())
}

/// Leases a due message and sends it in a separate task, so that a slow outlet delays no other message.
async fn retry(inner: &Arc<Inner>, scope: TenantScope, mut row: HandleRow) {
    let Some(delivery) = row.delivery.clone() else { return };
    let now = inner.host.now();
    let is_fresh = row.deliver_at.is_some_and(|at| at.plus_ms(YIELDED_MS) > now);
    if is_fresh && !inner.flows.get().is_some_and(|shared| has_outlet(shared, scope, &row)) {
        // Another process may have the key and the outlet. It finds the message only if this one does not postpone it.
        return;
    }
    let leased = Some((now.plus_ms(SEND_LEASE_MS), delivery));
    // If another process leased it first, that process sends it.
    if write(inner, scope, &row, leased, None).await {
        row.fence += 1;
        let (spawn, inner) = (inner.host.spawn.clone(), inner.clone());
        spawn.spawn(Box::pin(async move { send(&inner, scope, row).await }));
    }
}

async fn send(inner: &Arc<Inner>, scope: TenantScope, row: HandleRow) {
    let Some(shared) = inner.flows.get() else { return };
    let now = inner.host.now();
    let is_over = row.expires_at.is_some_and(|expires| expires <= now);
    if is_over {
        // The token has expired, so the message is useless.
        write(inner, scope, &row, None, None).await;
        return;
    }
    let Some(mut queued) = opened(shared, scope, &row) else {
        // Another process may have the key.
        tracing::warn!(flow = %row.run, "a message is sealed under a key that this process lacks; another may send it");
        let later = row.delivery.clone().map(|delivery| (now.plus_ms(UNREADABLE_MS), delivery));
        write(inner, scope, &row, later, None).await;
        return;
    };
    let Ok(outlet) = shared.outlet(&queued.outlet) else {
        // Another process may have the outlet. No attempt was made, so none is counted.
        tracing::warn!(flow = %row.run, outlet = %queued.outlet, "a message is for an outlet that this process lacks; another may send it");
        let later = row.delivery.clone().map(|delivery| (now.plus_ms(UNREADABLE_MS), delivery));
        write(inner, scope, &row, later, None).await;
        return;
    };
    let Err(error) = outlet.send(queued.message.clone()).await else {
        write(inner, scope, &row, None, None).await;
        return;
    };
    queued.attempts += 1;
    let (flow, outlet, attempts) = (row.run, queued.outlet.clone(), queued.attempts);
    if error.is_final() || attempts >= MAX_SENDS {
        tracing::error!(%flow, %outlet, %error, attempts, "a message could not be sent and was given up");
        // Servers repeat the address in their replies. The audit trail outlives the flow, so it must not contain it.
        let address = queued.message.to.as_str();
        let mut why = error.to_string();
        if !address.is_empty() {
            why = why.replace(address, "(recipient)");
        }
        let audit = AuditRow {
            operation: "outlet.failed".to_owned(),
            subject: format!("handle/{}", row.handle),
            actor: None,
            run: Some(flow),
            detail: json!({"outlet": outlet, "why": why, "attempts": attempts}).to_string().into(),
        };
        write(inner, scope, &row, None, Some(audit)).await;
        return;
    }
    tracing::warn!(%flow, %outlet, %error, attempts, "a message could not be sent; it is retried");
    let at = inner.host.now().plus_ms(pause_ms(attempts));
    let again = sealed(shared, scope, &row.handle, &queued);
    write(inner, scope, &row, Some((at, again)), None).await;
}

/// Records the outcome of sending. Returns false if the handle has changed since it was read.
async fn write(
    inner: &Arc<Inner>,
    scope: TenantScope,
    row: &HandleRow,
    delivery: Option<(Timestamp, Bytes)>,
    audit: Option<AuditRow>,
) -> bool {
    let again = delivery.as_ref().map(|(at, _)| *at);
    let then = HandleChange::Deliver(delivery);
    let write = HandleWrite { handle: row.handle, expected: Some(row.fence), then };
    let extras =
        CommitExtras { handles: vec![write], audit: audit.into_iter().collect(), ..CommitExtras::default() };
    match inner.apply(scope, inner.commit_of(scope, extras, inner.host.now())).await {
        Ok(_) => {
            if let (Some(flows), Some(at)) = (inner.flows.get().filter(|flows| flows.delivers), again) {
                flows.schedule_retry(at);
                inner.queued.notify_one();
            }
            true
        }
        // The handle was used or is in use, so the message has arrived.
        Err(CommitFailure::Refused(Refused::Handle { .. }) | CommitFailure::Moved) => false,
        Err(failure) => {
            let error = EngineError::from(failure);
            tracing::warn!(flow = %row.run, %error, "the outcome of sending a message could not be recorded");
            false
        }
    }
}
