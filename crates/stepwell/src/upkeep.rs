//! What an engine tidies up beside its work, a little at a time, and how much that was.

use std::sync::{Arc, PoisonError};

use serde::Serialize;
use stepwell_core::Timestamp;
use stepwell_store::{Sweep, SweepWhat, Swept, TenantScope};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::runner;

/// Rows that one sweep removes.
const SWEPT_AT_ONCE: u32 = 100;
/// Tenants that are asked for in one go.
const TENANTS_AT_ONCE: u32 = 100;
/// Checkpoints of a schedule that are kept.
const KEPT_FIRINGS: u64 = 500;

/// What an engine has tidied up since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Upkeep {
    /// Rounds over all tenants.
    pub rounds: u64,
    /// Tenants that could not be tidied up, each time.
    pub failures: u64,
    /// Keys and slots that had expired and became tombstones.
    pub expired_cells: u64,
    /// Tombstones that were past their horizon.
    pub tombstones: u64,
    /// Idempotency keys that had expired.
    pub expired_keys: u64,
    /// Handles that were over.
    pub handles: u64,
    /// Runs that had ended and were past their retention.
    pub runs: u64,
    /// Checkpoints and documents of runs that live for ever.
    pub history: u64,
    /// Rows of the audit trail that were sealed.
    pub sealed: u64,
}

impl Upkeep {
    fn count(&mut self, what: &SweepWhat, many: u64) {
        let counted = match what {
            SweepWhat::Cells => &mut self.expired_cells,
            SweepWhat::Tombstones { .. } => &mut self.tombstones,
            SweepWhat::Keys => &mut self.expired_keys,
            SweepWhat::Handles { .. } => &mut self.handles,
            SweepWhat::Runs { .. } => &mut self.runs,
            SweepWhat::History { .. } => &mut self.history,
            SweepWhat::Seal => &mut self.sealed,
            // When somebody asks for it, or a run cannot be read.
            SweepWhat::Shadows(_) | SweepWhat::Run(_) | SweepWhat::Aside(_) => return,
        };
        *counted += many;
    }
}

/// What one round has tidied up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tidied {
    /// What.
    pub what: Upkeep,
    /// There is more to tidy up.
    pub has_more: bool,
}

impl Engine {
    /// What this engine has tidied up since it began, of all tenants.
    pub fn upkeep(&self) -> Upkeep {
        *self.inner.tidied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tidies the tenant up, as is done now and then anyway: one batch of each kind.
    pub async fn tidy(&self) -> Result<Tidied, EngineError> {
        self.permit(Permission::Admin)?;
        runner::find_undriven(&self.inner).await?;
        let mut tidied = Tidied::default();
        for what in to_tidy(&self.inner, self.scope).await? {
            let swept = swept(&self.inner, self.scope, &what).await?;
            tidied.what.count(&what, swept.count);
            tidied.has_more |= swept.more;
        }
        Ok(tidied)
    }
}

/// Tidies up, a little at a time.
pub(crate) async fn upkeep(inner: Arc<Inner>) {
    loop {
        let next = inner.host.now().plus_ms(inner.options.upkeep_ms);
        if inner.is_over_by(next).await || inner.is_stopping() {
            return;
        }
        if let Err(error) = tidy_all(&inner).await {
            tracing::warn!(%error, "tidying up came to nothing");
        }
    }
}

async fn tidy_all(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let tenants = inner.store.tenants(after, TENANTS_AT_ONCE).await?;
        let Some(last) = tenants.last().copied() else { break };
        for tenant in tenants {
            // What is wrong with one tenant's rows is not the others' affair.
            if let Err(error) = tidy(inner, TenantScope::vouched(tenant)).await {
                tracing::warn!(%tenant, %error, "a tenant's rows could not be tidied up");
                counted(inner, |tidied| tidied.failures += 1);
            }
            if let Err(error) = inner.plan_triggers(TenantScope::vouched(tenant)).await {
                tracing::warn!(%tenant, %error, "schedules are not what triggers say");
            }
        }
        after = Some(last);
    }
    runner::find_undriven(inner).await?;
    counted(inner, |tidied| tidied.rounds += 1);
    Ok(())
}

fn counted(inner: &Inner, count: impl FnOnce(&mut Upkeep)) {
    count(&mut inner.tidied.lock().unwrap_or_else(PoisonError::into_inner));
}

async fn tidy(inner: &Inner, scope: TenantScope) -> Result<(), EngineError> {
    for what in to_tidy(inner, scope).await? {
        loop {
            let swept = swept(inner, scope, &what).await?;
            if inner.is_stopping() {
                return Ok(());
            }
            if !swept.more {
                break;
            }
        }
    }
    Ok(())
}

/// What there may be to tidy up of a tenant.
async fn to_tidy(inner: &Inner, scope: TenantScope) -> Result<Vec<SweepWhat>, EngineError> {
    let now = inner.host.now();
    let mut what = vec![SweepWhat::Keys, SweepWhat::Cells, SweepWhat::Seal];
    for (namespace, kept_ms) in &inner.options.tombstones_kept_ms {
        let before = ago(now, *kept_ms);
        what.push(SweepWhat::Tombstones { namespace: namespace.clone(), before });
    }
    if let Some(kept_ms) = inner.options.handles_kept_ms {
        what.push(SweepWhat::Handles { expired_by: ago(now, kept_ms) });
    }
    if let Some(retention_ms) = inner.options.retention_ms {
        what.push(SweepWhat::Runs { ended_before: ago(now, retention_ms) });
    }
    // A schedule lives for ever and has a checkpoint for each firing.
    let runs = crate::schedule::runs(&*inner.store, scope).await?;
    what.extend(runs.into_iter().map(|run| SweepWhat::History { run, keep: KEPT_FIRINGS }));
    Ok(what)
}

async fn swept(inner: &Inner, scope: TenantScope, what: &SweepWhat) -> Result<Swept, EngineError> {
    let sweep = Sweep { now: inner.host.now(), limit: SWEPT_AT_ONCE, what: what.clone() };
    let swept = inner.store.sweep(scope, sweep).await?;
    counted(inner, |tidied| tidied.count(what, swept.count));
    Ok(swept)
}

/// So many milliseconds before a time.
pub(crate) fn ago(now: Timestamp, ms: u64) -> Timestamp {
    let micros = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    Timestamp::from_micros(now.micros().saturating_sub(micros))
}
