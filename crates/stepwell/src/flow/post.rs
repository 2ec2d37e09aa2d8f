//! Sends what is to be sent out: right after its commit, and again if that did not come about.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use stepwell_core::Timestamp;
use stepwell_store::{
    AuditRow, HandleChange, HandleHash, HandleRow, HandleWrite, RecordQuery, Refused, TenantScope,
};

use super::flows::{Shared, handle};
use super::outlet::{MAX_SENDS, Posted, SEND_LEASE_MS, pause_ms};
use super::resume::is_worked_on;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::standing::Along;
use crate::turn::Turnless;

/// Messages that are looked for in one go.
const SENT_AT_ONCE: u32 = 100;
/// Tenants that are asked for in one go.
const TENANTS_AT_ONCE: u32 = 100;
/// How often is looked for messages that nobody has sent.
const ROUND_MS: u64 = 60_000;
/// How long a message that cannot be read here is left to others before it is looked at again.
const UNREADABLE_MS: u64 = 300_000;

/// A message as it is kept: sealed, because what resumes the flow is in it.
pub(crate) fn sealed(shared: &Shared, scope: TenantScope, handle: &HandleHash, posted: &Posted) -> Bytes {
    let text = serde_json::to_string(posted).expect("a message is plain data");
    shared.ring.seal(&text, "", &bound(scope, handle)).into()
}

fn opened(shared: &Shared, scope: TenantScope, row: &HandleRow) -> Option<Posted> {
    let text = std::str::from_utf8(row.delivery.as_ref()?).ok()?;
    let opened = shared.ring.open(text, |_| Some(bound(scope, &row.handle)))?;
    serde_json::from_str(&opened).ok()
}

fn bound(scope: TenantScope, handle: &HandleHash) -> Vec<u8> {
    format!("stepwell post\0{}\0{handle}", scope.tenant()).into_bytes()
}

impl Inner {
    /// What was committed with these handles is to be sent out.
    pub(crate) fn post(&self, scope: TenantScope, handles: Vec<HandleHash>) {
        if let Some(flows) = self.flows.get().filter(|_| !handles.is_empty()) {
            flows.post(scope, handles);
            self.posted.notify_one();
        }
    }
}

/// Sends what is put, and looks from time to time for what nobody has sent.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut next = inner.host.now();
    loop {
        let shared = inner.flows.get().cloned();
        let due = shared.as_ref().and_then(|shared| shared.next_post()).unwrap_or(Timestamp::MAX);
        tokio::select! {
            biased;
            () = inner.posted.notified() => {}
            () = inner.over(), if shared.is_none() => return,
            over = inner.is_over_by(next.min(due)), if shared.is_some() => {
                if over || inner.is_stopping() {
                    return;
                }
                shared.iter().for_each(|shared| shared.posts_until(inner.host.now()));
                if let Err(error) = round(&inner).await {
                    tracing::warn!(%error, "what is to be sent out could not be looked for");
                }
                next = inner.host.now().plus_ms(ROUND_MS);
            }
        }
        let posts = shared.map(|shared| shared.take_posts()).unwrap_or_default();
        posts.into_iter().for_each(|(scope, handle)| nudge(&inner, scope, handle));
    }
}

async fn round(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let tenants = inner.store.tenants(after, TENANTS_AT_ONCE).await?;
        let Some(last) = tenants.last().copied() else { return Ok(()) };
        for tenant in tenants {
            let scope = TenantScope::vouched(tenant);
            let query = RecordQuery::Undelivered { now: inner.host.now(), limit: SENT_AT_ONCE };
            for row in inner.store.records(scope, query).await?.items.into_iter().filter_map(handle) {
                if inner.is_stopping() {
                    return Ok(());
                }
                // Whoever uses it has it; a write would void what they do.
                if !is_worked_on(inner, scope, &row).await? {
                    retry(inner, scope, row).await;
                }
            }
        }
        after = Some(last);
    }
}

/// Sends what is kept with a handle, beside the caller. The commit that put it there has given this process time for that.
fn nudge(inner: &Arc<Inner>, scope: TenantScope, hash: HandleHash) {
    let spawn = inner.host.spawn.clone();
    let inner = inner.clone();
    spawn.spawn(Box::pin(async move {
        let row = match inner.store.records(scope, RecordQuery::Handle(hash)).await {
            Ok(page) => page.items.into_iter().find_map(handle),
            Err(error) => {
                tracing::warn!(%error, "what is to be sent out could not be read; it is tried again");
                None
            }
        };
        if let Some(row) = row {
            send(&inner, scope, row).await;
        }
    }));
}

/// Takes a message that is due and sends it, beside the others: one that hangs holds up no other.
async fn retry(inner: &Arc<Inner>, scope: TenantScope, mut row: HandleRow) {
    let Some(delivery) = row.delivery.clone() else { return };
    let leased = Some((inner.host.now().plus_ms(SEND_LEASE_MS), delivery));
    // Whoever is faster sends it.
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
        // Nobody can use it any more.
        write(inner, scope, &row, None, None).await;
        return;
    }
    let Some(mut posted) = opened(shared, scope, &row) else {
        // Another process may have the key.
        tracing::warn!(flow = %row.run, "a message was sealed under a key that is not here; it is left to others");
        let later = row.delivery.clone().map(|delivery| (now.plus_ms(UNREADABLE_MS), delivery));
        write(inner, scope, &row, later, None).await;
        return;
    };
    let sent = match shared.outlet(&posted.outlet) {
        Ok(outlet) => outlet.send(posted.message.clone()).await,
        // Another process may have it.
        Err(error) => Err(super::outlet::OutletError::new(error.to_string())),
    };
    let Err(error) = sent else {
        write(inner, scope, &row, None, None).await;
        return;
    };
    posted.tries += 1;
    let (flow, outlet, tries) = (row.run, posted.outlet.clone(), posted.tries);
    if error.is_final() || tries >= MAX_SENDS {
        tracing::error!(%flow, %outlet, %error, tries, "a message was given up");
        let audit = AuditRow {
            operation: "outlet.failed".to_owned(),
            subject: format!("handle/{}", row.handle),
            actor: None,
            run: Some(flow),
            detail: json!({"outlet": outlet, "why": error.to_string(), "tries": tries}).to_string().into(),
        };
        write(inner, scope, &row, None, Some(audit)).await;
        return;
    }
    tracing::warn!(%flow, %outlet, %error, tries, "a message was not sent; it is tried again");
    let at = inner.host.now().plus_ms(pause_ms(tries));
    let again = sealed(shared, scope, &row.handle, &posted);
    write(inner, scope, &row, Some((at, again)), None).await;
}

/// Notes what became of a message; says whether the handle was still as it was read.
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
    let along = Along { handles: vec![write], audit: audit.into_iter().collect(), ..Along::default() };
    match inner.apply(scope, inner.commit_of(scope, along, inner.host.now())).await {
        Ok(_) => {
            if let (Some(flows), Some(at)) = (inner.flows.get(), again) {
                flows.post_again(at);
                inner.posted.notify_one();
            }
            true
        }
        // It was used, or is being used: then it has arrived.
        Err(Turnless::Refused(Refused::Handle { .. }) | Turnless::Moved) => false,
        Err(turnless) => {
            let error = EngineError::from(turnless);
            tracing::warn!(flow = %row.run, %error, "it could not be noted what became of a message");
            false
        }
    }
}
