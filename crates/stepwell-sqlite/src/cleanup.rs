//! Maintenance: removes expired rows, ended runs and old history.

use rusqlite::{Connection, OptionalExtension, params};
use stepwell_core::{Name, RunId};
use stepwell_store::retention::{Cut, Versions, cut};
use stepwell_store::{Cleanup, CleanupKind, CleanupResult, EndedBefore, TenantId};

use crate::apply::run_row;
use crate::statements as sql;
use crate::{handles, rows, seals, shadows};

/// Runs one batch of maintenance for one tenant, of at most [`Cleanup::limit`] rows.
pub(crate) fn cleanup(
    connection: &Connection,
    tenant: TenantId,
    cleanup: &Cleanup,
) -> rusqlite::Result<CleanupResult> {
    let id = tenant.uuid();
    let count = match &cleanup.what {
        CleanupKind::Cells => connection.prepare_cached(sql::cleanup_cells)?.execute(params![
            id.into_bytes(),
            cleanup.now.micros(),
            cleanup.limit
        ])?,
        CleanupKind::Tombstones { namespace, before } => {
            let mut statement = connection.prepare_cached(sql::cleanup_tombstones)?;
            statement.execute(params![id.into_bytes(), namespace, before.micros(), cleanup.limit])?
        }
        CleanupKind::Seal => return seals::seal(connection, tenant, cleanup.now, cleanup.limit),
        CleanupKind::Keys => connection.prepare_cached(sql::cleanup_keys)?.execute(params![
            id.into_bytes(),
            cleanup.now.micros(),
            cleanup.limit
        ])?,
        CleanupKind::Handles { expired_by } => {
            handles::cleanup(connection, tenant, *expired_by, cleanup.limit)?
        }
        CleanupKind::Runs(before) => purge_ended(connection, tenant, before, cleanup.limit)?,
        CleanupKind::Audit { through } => {
            return seals::cut(connection, tenant, *through, cleanup.limit.into());
        }
        CleanupKind::Run(run) => {
            let gone = purge(connection, tenant, *run)?;
            return Ok(CleanupResult { count: gone as u64, more: false });
        }
        CleanupKind::MarkFailed(run) => {
            let mut statement = connection.prepare_cached(sql::run_mark_failed)?;
            let count = statement.execute(params![id.into_bytes(), run.uuid().into_bytes()])?;
            return Ok(CleanupResult { count: count as u64, more: false });
        }
        CleanupKind::Shadows(refills) => return shadows::refill(connection, tenant, refills),
        CleanupKind::History { run, keep } => return bound(connection, tenant, *run, *keep, cleanup.limit),
    };
    Ok(CleanupResult { count: count as u64, more: count as u64 >= u64::from(cleanup.limit) })
}

/// Deletes up to `limit` runs that ended before the time of their workflow, one workflow after the other. Returns their
/// number.
fn purge_ended(
    connection: &Connection,
    tenant: TenantId,
    before: &EndedBefore,
    limit: u32,
) -> rusqlite::Result<usize> {
    let (limit, id) = (limit as usize, tenant.uuid().into_bytes());
    let (mut count, mut after) = (0, String::new());
    while count < limit {
        let next = match before.usual {
            None => before.next_named(&after).cloned(),
            Some(_) => {
                let mut statement = connection.prepare_cached(sql::cleanup_workflows)?;
                let name =
                    statement.query_row(params![id, after], |row| row.get::<_, String>(0)).optional()?;
                name.map(Name::from)
            }
        };
        let Some(workflow) = next else { break };
        if let Some(before) = before.of(&workflow) {
            let mut statement = connection.prepare_cached(sql::cleanup_runs)?;
            let which = params![id, workflow.as_str(), before.micros(), rows::int((limit - count) as u64)];
            let ended = statement.query_map(which, |row| rows::run_id(row, 0))?;
            let ended = ended.collect::<rusqlite::Result<Vec<_>>>()?;
            for run in &ended {
                purge(connection, tenant, *run)?;
            }
            count += ended.len();
        }
        after = workflow.as_str().to_owned();
    }
    Ok(count)
}

/// Deletes a run with all its data. Returns 1 if the run existed, otherwise 0.
fn purge(connection: &Connection, tenant: TenantId, run: RunId) -> rusqlite::Result<usize> {
    let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes()];
    let gone = connection.prepare_cached(sql::purge_run)?.execute(which)?;
    let own = [
        sql::purge_checkpoints,
        sql::purge_documents,
        sql::purge_inbox,
        sql::purge_waits,
        sql::purge_shadows,
        sql::purge_keys,
        sql::purge_handles,
    ];
    for statement in own {
        let mut statement = connection.prepare_cached(statement)?;
        statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes()])?;
    }
    let mut statement = connection.prepare_cached(sql::purge_cells)?;
    statement.execute(params![tenant.uuid().into_bytes(), run.to_string()])?;
    Ok(gone)
}

/// Deletes old checkpoints of a run, and the documents that were visible only in them.
fn bound(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    keep: u64,
    limit: u32,
) -> rusqlite::Result<CleanupResult> {
    let nothing = CleanupResult { count: 0, more: false };
    let (tenant_id, run_id) = (tenant.uuid().into_bytes(), run.uuid().into_bytes());
    let Some(row) = run_row(connection, tenant, run)? else { return Ok(nothing) };
    let mut statement = connection.prepare_cached(sql::checkpoint_oldest)?;
    let oldest: Option<i64> = statement.query_row(params![tenant_id, run_id], |row| row.get(0))?;
    let Some(oldest) = oldest else { return Ok(nothing) };
    let versions = Versions { oldest: oldest as u64, newest: row.version };
    let mut statement = connection.prepare_cached(sql::checkpoint_base)?;
    let Cut { oldest, more } = cut(versions, keep, limit, |version| {
        let which = params![tenant_id, run_id, rows::int(version)];
        statement.query_row(which, |row| rows::unsigned(row, 0)).optional()
    })?;
    let mut statement = connection.prepare_cached(sql::cleanup_checkpoints)?;
    let checkpoints = statement.execute(params![tenant_id, run_id, rows::int(oldest)])? as u64;
    let room = u64::from(limit).saturating_sub(checkpoints);
    let mut statement = connection.prepare_cached(sql::cleanup_documents)?;
    let documents = statement.execute(params![tenant_id, run_id, rows::int(oldest), rows::int(room)])? as u64;
    let count = checkpoints + documents;
    Ok(CleanupResult { count, more: more || count >= u64::from(limit) })
}
