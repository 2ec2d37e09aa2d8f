//! Maintenance: removes expired rows, ended runs and old history.

use std::collections::BTreeMap;
use std::convert::Infallible;

use stepwell_core::{Name, RunId};
use stepwell_store::retention::{Cut, Versions, cut};
use stepwell_store::{Cleanup, CleanupKind, CleanupResult, EndedBefore, TenantId};
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Transaction, Visibility};
use crate::rows::{self, Read};
use crate::{handles, seals, shadows, statements as sql};

/// Runs one batch of maintenance for one tenant, of at most [`Cleanup::limit`] rows.
pub(crate) async fn cleanup(on: &Connections, tenant: TenantId, cleanup: &Cleanup) -> Read<CleanupResult> {
    let count = match &cleanup.what {
        CleanupKind::Cells => expired(on, tenant, sql::cleanup_cells, cleanup).await?,
        CleanupKind::Tombstones { namespace, before } => {
            let which: [Param<'_>; 4] =
                [&tenant.uuid(), namespace, &before.micros(), &i64::from(cleanup.limit)];
            let rows =
                on.one(Visibility::Tenant(tenant), Mode::Writes, sql::cleanup_tombstones, &which).await?;
            rows.len() as u64
        }
        CleanupKind::Seal => return seals::seal(on, tenant, cleanup.now, cleanup.limit).await,
        CleanupKind::Keys => expired(on, tenant, sql::cleanup_keys, cleanup).await?,
        CleanupKind::Handles { expired_by } => {
            handles::cleanup(on, tenant, *expired_by, cleanup.limit).await?
        }
        CleanupKind::Runs(before) => purge_ended(on, tenant, before, cleanup.limit).await?,
        CleanupKind::Audit { through } => {
            let which: [Param<'_>; 3] = [&tenant.uuid(), &rows::int(*through), &i64::from(cleanup.limit)];
            let rows = on.one(Visibility::Tenant(tenant), Mode::Writes, sql::audit_cut, &which).await?;
            rows.first().map(|row| rows::unsigned(row, 0)).transpose()?.unwrap_or(0)
        }
        CleanupKind::Run(run) => {
            return Ok(CleanupResult {
                count: purge(on, tenant, PurgeTarget::Run(run.uuid())).await?,
                more: false,
            });
        }
        CleanupKind::MarkFailed(run) => {
            let which: [Param<'_>; 2] = [&tenant.uuid(), &vec![run.uuid()]];
            let rows =
                on.one(Visibility::Tenant(tenant), Mode::Writes, sql::runs_mark_failed, &which).await?;
            return Ok(CleanupResult { count: rows.len() as u64, more: false });
        }
        CleanupKind::Shadows(refills) => return shadows::refill(on, tenant, refills).await,
        CleanupKind::History { run, keep } => return bound(on, tenant, *run, *keep, cleanup.limit).await,
    };
    Ok(CleanupResult { count, more: count >= u64::from(cleanup.limit) })
}

/// Runs a statement on expired rows and returns their number.
async fn expired(
    on: &Connections,
    tenant: TenantId,
    statement: &'static str,
    cleanup: &Cleanup,
) -> Read<u64> {
    let which: [Param<'_>; 3] = [&tenant.uuid(), &cleanup.now.micros(), &i64::from(cleanup.limit)];
    let rows = on.one(Visibility::Tenant(tenant), Mode::Writes, statement, &which).await?;
    Ok(rows.len() as u64)
}

/// Deletes up to `limit` runs that ended before the time of their workflow, one workflow after the other. Returns their
/// number.
async fn purge_ended(on: &Connections, tenant: TenantId, before: &EndedBefore, limit: u32) -> Read<u64> {
    let (limit, mut count, mut after) = (u64::from(limit), 0, String::new());
    while count < limit {
        let next = match before.usual {
            None => before.next_named(&after).cloned(),
            Some(_) => {
                let which: [Param<'_>; 2] = [&tenant.uuid(), &after];
                let found =
                    on.one(Visibility::Tenant(tenant), Mode::Reads, sql::cleanup_workflows, &which).await?;
                found.first().map(|row| rows::get::<String>(row, 0)).transpose()?.map(Name::from)
            }
        };
        let Some(workflow) = next else { break };
        after = workflow.as_str().to_owned();
        if let Some(before) = before.of(&workflow) {
            let target = PurgeTarget::Ended(after.clone(), before.micros(), rows::int(limit - count));
            count += purge(on, tenant, target).await?;
        }
    }
    Ok(count)
}

/// The runs to delete.
enum PurgeTarget {
    /// Runs of a workflow that ended before a time, and their maximum number.
    Ended(String, i64, i64),
    Run(Uuid),
}

/// Deletes runs with all their data. Returns the number of runs.
async fn purge(on: &Connections, tenant: TenantId, which: PurgeTarget) -> Read<u64> {
    let id = tenant.uuid();
    let own = [
        sql::purge_runs,
        sql::purge_checkpoints,
        sql::purge_documents,
        sql::purge_inbox,
        sql::purge_waits,
        sql::purge_shadows,
        sql::purge_keys,
        sql::purge_handles,
    ];
    let connection = on.get().await?;
    let find = match which {
        PurgeTarget::Ended(..) => sql::cleanup_runs,
        PurgeTarget::Run(_) => sql::runs_wake,
    };
    let find = connection.statement(find).await?;
    let mut statements = Vec::new();
    for statement in own {
        statements.push(connection.statement(statement).await?);
    }
    let cells = connection.statement(sql::purge_cells).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let begin = on.begin(Visibility::Tenant(tenant), Mode::Writes);
    let (begun, found) = match &which {
        PurgeTarget::Ended(workflow, before, limit) => {
            let which: [Param<'_>; 4] = [&id, workflow, before, limit];
            tokio::join!(connection.begin(&begin), connection.ask(&find, &which))
        }
        PurgeTarget::Run(run) => {
            let which: [Param<'_>; 2] = [&id, &vec![*run]];
            tokio::join!(connection.begin(&begin), connection.ask(&find, &which))
        }
    };
    begun?;
    let found = found?.iter().map(|row| rows::get(row, 0)).collect::<Read<Vec<Uuid>>>()?;
    let count = found.len() as u64;
    if count == 0 && matches!(which, PurgeTarget::Ended(..)) {
        transaction.roll_back().await?;
        return Ok(0);
    }
    let ended = match which {
        PurgeTarget::Ended(..) => found,
        // Other data of the run may be left even if its row is gone.
        PurgeTarget::Run(run) => vec![run],
    };
    let trees: Vec<String> = ended.iter().map(Uuid::to_string).collect();
    let runs: [Param<'_>; 2] = [&id, &ended];
    let owners: [Param<'_>; 2] = [&id, &trees];
    let gone = statements.iter().map(|statement| connection.ask(statement, &runs));
    let gone = futures_util::future::join_all(gone);
    let (gone, shared, done) =
        tokio::join!(gone, connection.ask(&cells, &owners), connection.command("commit"));
    gone.into_iter().collect::<Read<Vec<_>>>()?;
    shared?;
    done?;
    transaction.over();
    Ok(count)
}

/// Deletes old checkpoints of a run, and the documents that were visible only in them.
async fn bound(on: &Connections, tenant: TenantId, run: RunId, keep: u64, limit: u32) -> Read<CleanupResult> {
    let nothing = CleanupResult { count: 0, more: false };
    let (id, run) = (tenant.uuid(), run.uuid());
    let visibility = Visibility::Tenant(tenant);
    let newest = on.one(visibility, Mode::Reads, sql::runs_get, &[&id, &vec![run]]).await?;
    let oldest = on.one(visibility, Mode::Reads, sql::checkpoint_oldest, &[&id, &run]).await?;
    let oldest = oldest.first().map(|row| rows::get::<Option<i64>>(row, 0)).transpose()?.flatten();
    let (Some(row), Some(oldest)) = (newest.first(), oldest) else { return Ok(nothing) };
    let versions = Versions { oldest: oldest as u64, newest: rows::run(row)?.version };
    // The base of a version never changes, so it can be looked up without a lock.
    let mut bases: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let Cut { oldest, more } = loop {
        let mut missing = None;
        let found = cut(versions, keep, limit, |version| {
            let known = bases.get(&version).copied();
            if known.is_none() {
                missing.get_or_insert(version);
            }
            Ok::<_, Infallible>(known.flatten())
        });
        let Ok(found) = found;
        let Some(version) = missing else { break found };
        let which: [Param<'_>; 3] = [&id, &run, &rows::int(version)];
        let rows = on.one(visibility, Mode::Reads, sql::checkpoint_base, &which).await?;
        let base = rows.first().map(|row| rows::unsigned(row, 0)).transpose()?;
        bases.insert(version, base);
    };
    let which: [Param<'_>; 3] = [&id, &run, &rows::int(oldest)];
    let checkpoints = on.one(visibility, Mode::Writes, sql::cleanup_checkpoints, &which).await?.len() as u64;
    let room = rows::int(u64::from(limit).saturating_sub(checkpoints));
    let which: [Param<'_>; 4] = [&id, &run, &rows::int(oldest), &room];
    let documents = on.one(visibility, Mode::Writes, sql::cleanup_documents, &which).await?.len() as u64;
    let count = checkpoints + documents;
    Ok(CleanupResult { count, more: more || count >= u64::from(limit) })
}
