//! Periodic maintenance: removes expired rows in small batches and counts them.

use std::sync::{Arc, PoisonError};

use serde::Serialize;
use serde_json::json;
use stepwell_core::Timestamp;
use stepwell_store::seal::Seal;
use stepwell_store::{
    AuditRow, Cleanup, CleanupKind, CleanupResult, Commit, CommitId, EndedBefore, Record, RecordQuery,
    TenantScope,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::runner;

/// Maximum number of rows that one cleanup query removes.
const SWEPT_AT_ONCE: u32 = 100;
/// Number of tenants per page.
const TENANTS_AT_ONCE: u32 = 100;
/// Name of the operation that records a cut of the audit trail.
pub(crate) const AUDIT_CUT: &str = "audit.cut";
/// Number of checkpoints kept per schedule.
const KEPT_FIRINGS: u64 = 500;

/// Totals of maintenance since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceTotals {
    /// Completed passes over all tenants.
    pub rounds: u64,
    /// Failed attempts to clean up a tenant.
    pub failures: u64,
    /// Keys and slots that expired and became tombstones.
    pub expired_cells: u64,
    /// Tombstones removed after their retention.
    pub tombstones: u64,
    /// Idempotency keys removed after they expired.
    pub expired_keys: u64,
    /// Handles removed after they were over.
    pub handles: u64,
    /// Runs removed after their retention.
    pub runs: u64,
    /// Checkpoints and documents removed from runs that never end.
    pub history: u64,
    /// Rows of the audit trail that were sealed.
    pub sealed: u64,
    /// Rows of the audit trail removed after their retention.
    pub audit: u64,
}

impl MaintenanceTotals {
    fn count(&mut self, what: &CleanupKind, many: u64) {
        let counted = match what {
            CleanupKind::Cells => &mut self.expired_cells,
            CleanupKind::Tombstones { .. } => &mut self.tombstones,
            CleanupKind::Keys => &mut self.expired_keys,
            CleanupKind::Handles { .. } => &mut self.handles,
            CleanupKind::Runs(_) => &mut self.runs,
            CleanupKind::Audit { .. } => &mut self.audit,
            CleanupKind::History { .. } => &mut self.history,
            CleanupKind::Seal => &mut self.sealed,
            // Not part of periodic maintenance: requested by a caller, or caused by an unreadable run.
            CleanupKind::Shadows(_) | CleanupKind::Run(_) | CleanupKind::MarkFailed(_) => return,
        };
        *counted += many;
    }
}

/// The result of one maintenance pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceRound {
    /// The rows removed in this pass.
    pub what: MaintenanceTotals,
    /// At least one kind has more rows to remove.
    pub has_more: bool,
}

impl Engine {
    /// Returns the totals of maintenance since the engine started, over all tenants.
    pub fn maintenance(&self) -> MaintenanceTotals {
        *self.inner.maintenance_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs maintenance for the tenant now: one batch of each kind.
    pub async fn maintain(&self) -> Result<MaintenanceRound, EngineError> {
        self.permit(Permission::Admin)?;
        runner::find_undriven(&self.inner).await;
        repair(&self.inner, self.scope).await?;
        let mut round = MaintenanceRound::default();
        for what in cleanup_kinds(&self.inner, self.scope).await? {
            let cleaned_up = cleaned_up(&self.inner, self.scope, &what).await?;
            round.what.count(&what, cleaned_up.count);
            round.has_more |= cleaned_up.more;
        }
        Ok(round)
    }
}

/// Runs maintenance every [`Options::maintenance_interval_ms`](crate::Options::maintenance_interval_ms).
pub(crate) async fn maintenance(inner: Arc<Inner>) {
    loop {
        let next = inner.host.now().plus_ms(inner.options.maintenance_interval_ms);
        if inner.abandoned_before(next).await || inner.is_stopping() {
            return;
        }
        maintain_all(&inner).await;
    }
}

async fn maintain_all(inner: &Arc<Inner>) {
    let (mut after, mut is_complete) = (None, true);
    loop {
        let tenants = match inner.store.tenants(after, TENANTS_AT_ONCE).await {
            Ok(tenants) => tenants,
            Err(error) => {
                // A database node may be down. Maintain the known tenants, to reach those on other nodes.
                tracing::warn!(%error, "the tenants could not be listed; maintenance continues with known tenants");
                is_complete = false;
                let known = inner.lock_tenants();
                known.iter().copied().filter(|tenant| after.is_none_or(|after| *tenant > after)).collect()
            }
        };
        let Some(last) = tenants.last().copied() else { break };
        for tenant in tenants {
            // A problem with one tenant's rows must not affect the others.
            if let Err(error) = maintain(inner, TenantScope::trusted(tenant)).await {
                tracing::warn!(%tenant, %error, "maintenance of a tenant failed");
                counted(inner, |maintenance_counts| maintenance_counts.failures += 1);
            }
            if let Err(error) = inner.plan_triggers(TenantScope::trusted(tenant)).await {
                tracing::warn!(%tenant, %error, "schedules could not be updated from triggers");
            }
        }
        if !is_complete {
            break;
        }
        after = Some(last);
    }
    runner::find_undriven(inner).await;
    if is_complete {
        counted(inner, |maintenance_counts| maintenance_counts.rounds += 1);
    }
}

fn counted(inner: &Inner, count: impl FnOnce(&mut MaintenanceTotals)) {
    count(&mut inner.maintenance_counts.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Rebuilds unreadable cells whose content can be derived.
async fn repair(inner: &Inner, scope: TenantScope) -> Result<(), EngineError> {
    inner.repair_catalogue(scope).await?;
    inner.repair_event_index(scope).await
}

async fn maintain(inner: &Inner, scope: TenantScope) -> Result<(), EngineError> {
    repair(inner, scope).await?;
    for what in cleanup_kinds(inner, scope).await? {
        loop {
            let cleaned_up = cleaned_up(inner, scope, &what).await?;
            if inner.is_stopping() {
                return Ok(());
            }
            if !cleaned_up.more {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the kinds of rows that may need cleanup for a tenant.
async fn cleanup_kinds(inner: &Inner, scope: TenantScope) -> Result<Vec<CleanupKind>, EngineError> {
    let now = inner.host.now();
    let mut what = vec![CleanupKind::Keys, CleanupKind::Cells, CleanupKind::Seal];
    for (namespace, retention_ms) in &inner.options.tombstone_retention_ms {
        let before = ago(now, *retention_ms);
        what.push(CleanupKind::Tombstones { namespace: namespace.clone(), before });
    }
    if let Some(retention_ms) = inner.options.handle_retention_ms {
        what.push(CleanupKind::Handles { expired_by: ago(now, retention_ms) });
    }
    let ended = ended_before(inner, scope, now).await?;
    if !ended.is_empty() {
        what.push(CleanupKind::Runs(ended));
    }
    if let Some(retention_ms) = inner.options.audit_retention_ms {
        what.extend(audit_cut(inner, scope, retention_ms).await?);
    }
    // A schedule never ends and writes a checkpoint for each firing.
    let runs = crate::schedule::runs(&*inner.store, scope).await?;
    what.extend(runs.into_iter().map(|run| CleanupKind::History { run, keep: KEPT_FIRINGS }));
    Ok(what)
}

/// Returns the times by which ended runs are removed: by the options for the workflow, by the workflow itself, or else by
/// the options for all.
async fn ended_before(inner: &Inner, scope: TenantScope, now: Timestamp) -> Result<EndedBefore, EngineError> {
    let mut retentions = inner.own_retentions(scope).await?;
    retentions.extend(inner.options.workflow_retention_ms.clone());
    let before = |retention_ms: Option<u64>| retention_ms.map(|retention_ms| ago(now, retention_ms));
    let workflows = retentions.into_iter().map(|(name, retention_ms)| (name, before(retention_ms))).collect();
    Ok(EndedBefore { usual: before(inner.options.retention_ms), workflows })
}

/// Number of seals that one cut removes at most.
const CUT_AT_ONCE: u32 = 100;
/// Maximum time by which a cut may be late, so that an idle trail is not cut, and each cut sealed, all the time.
const CUT_LATE_MS: u64 = 24 * 3_600_000;

/// Returns the cut of the audit trail that is due, and records it in the trail.
async fn audit_cut(
    inner: &Inner,
    scope: TenantScope,
    retention_ms: u64,
) -> Result<Option<CleanupKind>, EngineError> {
    let now = inner.host.now();
    let page = inner.store.records(scope, RecordQuery::Seals { from: 1, limit: CUT_AT_ONCE }).await?;
    let seals = page.items.into_iter().filter_map(|record| match record {
        Record::Seal(seal) => Some(seal),
        _ => None,
    });
    let seals: Vec<Seal> = seals.collect();
    // The rows of a seal at which the trail was cut are gone already.
    let oldest = seals.iter().find(|seal| seal.number == 1 || seal.number > seals[0].number);
    let late_ms = CUT_LATE_MS.min(retention_ms / 10);
    let Some(oldest) = oldest.filter(|seal| seal.at < ago(now, retention_ms.saturating_add(late_ms))) else {
        return Ok(None);
    };
    // The newest seal stays. A trail must not begin with seal 1, which would mean that nothing was cut.
    let newest = seals.last().map_or(0, |seal| seal.number);
    let is_cut = |seal: &&Seal| {
        let is_old = seal.at < ago(now, retention_ms) && seal.number >= oldest.number;
        is_old && (page.next.is_some() || seal.number < newest)
    };
    let cut = seals.iter().rfind(is_cut);
    let Some(cut) = cut.filter(|seal| seal.number > 1) else { return Ok(None) };
    let hash: String = cut.hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut commit = Commit::new(CommitId(inner.host.ids.next()), now);
    commit.audit.push(AuditRow {
        operation: AUDIT_CUT.to_owned(),
        subject: format!("seal/{}", cut.number),
        actor: None,
        run: None,
        detail: json!({"hash": hash, "at": cut.at}).to_string().into(),
    });
    inner.store.commit(scope, commit).await?;
    Ok(Some(CleanupKind::Audit { through: cut.number }))
}

async fn cleaned_up(
    inner: &Inner,
    scope: TenantScope,
    what: &CleanupKind,
) -> Result<CleanupResult, EngineError> {
    let cleanup = Cleanup { now: inner.host.now(), limit: SWEPT_AT_ONCE, what: what.clone() };
    let cleaned_up = inner.store.cleanup(scope, cleanup).await?;
    counted(inner, |maintenance_counts| maintenance_counts.count(what, cleaned_up.count));
    Ok(cleaned_up)
}

/// Returns the time `ms` milliseconds before `now`.
pub(crate) fn ago(now: Timestamp, ms: u64) -> Timestamp {
    let micros = i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    Timestamp::from_micros(now.micros().saturating_sub(micros))
}
