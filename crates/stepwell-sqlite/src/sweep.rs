//! Tidies up: what has expired, runs that have ended, and history that is no longer wanted.

use rusqlite::{Connection, OptionalExtension, params};
use stepwell_core::RunId;
use stepwell_store::retention::{Cut, Versions, cut};
use stepwell_store::{Sweep, SweepWhat, Swept, TenantId};

use crate::apply::run_row;
use crate::statements as sql;
use crate::{handles, rows, seals, shadows};

/// Tidies up one tenant's rows, a bounded number of them.
pub(crate) fn sweep(connection: &Connection, tenant: TenantId, sweep: &Sweep) -> rusqlite::Result<Swept> {
    let id = tenant.uuid();
    let count = match &sweep.what {
        SweepWhat::Cells => connection.prepare_cached(sql::sweep_cells)?.execute(params![
            id.into_bytes(),
            sweep.now.micros(),
            sweep.limit
        ])?,
        SweepWhat::Tombstones { namespace, before } => {
            let mut statement = connection.prepare_cached(sql::sweep_tombstones)?;
            statement.execute(params![id.into_bytes(), namespace, before.micros(), sweep.limit])?
        }
        SweepWhat::Seal => return seals::seal(connection, tenant, sweep.now, sweep.limit),
        SweepWhat::Keys => connection.prepare_cached(sql::sweep_keys)?.execute(params![
            id.into_bytes(),
            sweep.now.micros(),
            sweep.limit
        ])?,
        SweepWhat::Handles { expired_by } => handles::sweep(connection, tenant, *expired_by, sweep.limit)?,
        SweepWhat::Runs { ended_before } => {
            let mut statement = connection.prepare_cached(sql::sweep_runs)?;
            let which = params![id.into_bytes(), ended_before.micros(), sweep.limit];
            let ended = statement.query_map(which, |row| rows::run_id(row, 0))?;
            let ended = ended.collect::<rusqlite::Result<Vec<_>>>()?;
            for run in &ended {
                purge(connection, tenant, *run)?;
            }
            ended.len()
        }
        SweepWhat::Run(run) => {
            let gone = purge(connection, tenant, *run)?;
            return Ok(Swept { count: gone as u64, more: false });
        }
        SweepWhat::Aside(run) => {
            let mut statement = connection.prepare_cached(sql::run_aside)?;
            let count = statement.execute(params![id.into_bytes(), run.uuid().into_bytes()])?;
            return Ok(Swept { count: count as u64, more: false });
        }
        SweepWhat::Shadows(refills) => return shadows::refill(connection, tenant, refills),
        SweepWhat::History { run, keep } => return bound(connection, tenant, *run, *keep, sweep.limit),
    };
    Ok(Swept { count: count as u64, more: count as u64 >= u64::from(sweep.limit) })
}

/// A run goes, with everything that is its own; gives whether it was there, as a number of rows.
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

/// Old checkpoints of a run go, and the documents that only they showed.
fn bound(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    keep: u64,
    limit: u32,
) -> rusqlite::Result<Swept> {
    let nothing = Swept { count: 0, more: false };
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
    let mut statement = connection.prepare_cached(sql::sweep_checkpoints)?;
    let checkpoints = statement.execute(params![tenant_id, run_id, rows::int(oldest)])? as u64;
    let room = u64::from(limit).saturating_sub(checkpoints);
    let mut statement = connection.prepare_cached(sql::sweep_documents)?;
    let documents = statement.execute(params![tenant_id, run_id, rows::int(oldest), rows::int(room)])? as u64;
    let count = checkpoints + documents;
    Ok(Swept { count, more: more || count >= u64::from(limit) })
}
