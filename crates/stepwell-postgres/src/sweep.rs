//! Tidies up: what has expired, runs that have ended, and history that is no longer wanted.

use std::collections::BTreeMap;
use std::convert::Infallible;

use stepwell_core::RunId;
use stepwell_store::retention::{Cut, Versions, cut};
use stepwell_store::{Sweep, SweepWhat, Swept, TenantId};
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Sees, Transaction};
use crate::rows::{self, Read};
use crate::{handles, seals, shadows, statements as sql};

/// Tidies up one tenant's rows, a bounded number of them.
pub(crate) async fn sweep(on: &Connections, tenant: TenantId, sweep: &Sweep) -> Read<Swept> {
    let count = match &sweep.what {
        SweepWhat::Cells => expired(on, tenant, sql::sweep_cells, sweep).await?,
        SweepWhat::Tombstones { namespace, before } => {
            let which: [Param<'_>; 4] =
                [&tenant.uuid(), namespace, &before.micros(), &i64::from(sweep.limit)];
            let rows = on.one(Sees::Tenant(tenant), Mode::Writes, sql::sweep_tombstones, &which).await?;
            rows.len() as u64
        }
        SweepWhat::Seal => return seals::seal(on, tenant, sweep.now, sweep.limit).await,
        SweepWhat::Keys => expired(on, tenant, sql::sweep_keys, sweep).await?,
        SweepWhat::Handles { expired_by } => handles::sweep(on, tenant, *expired_by, sweep.limit).await?,
        SweepWhat::Runs { ended_before } => {
            purge(on, tenant, Gone::Ended(ended_before.micros(), i64::from(sweep.limit))).await?
        }
        SweepWhat::Run(run) => {
            return Ok(Swept { count: purge(on, tenant, Gone::Run(run.uuid())).await?, more: false });
        }
        SweepWhat::Aside(run) => {
            let which: [Param<'_>; 2] = [&tenant.uuid(), &vec![run.uuid()]];
            let rows = on.one(Sees::Tenant(tenant), Mode::Writes, sql::runs_aside, &which).await?;
            return Ok(Swept { count: rows.len() as u64, more: false });
        }
        SweepWhat::Shadows(refills) => return shadows::refill(on, tenant, refills).await,
        SweepWhat::History { run, keep } => return bound(on, tenant, *run, *keep, sweep.limit).await,
    };
    Ok(Swept { count, more: count >= u64::from(sweep.limit) })
}

/// What has expired; gives how many rows that was.
async fn expired(on: &Connections, tenant: TenantId, statement: &'static str, sweep: &Sweep) -> Read<u64> {
    let which: [Param<'_>; 3] = [&tenant.uuid(), &sweep.now.micros(), &i64::from(sweep.limit)];
    let rows = on.one(Sees::Tenant(tenant), Mode::Writes, statement, &which).await?;
    Ok(rows.len() as u64)
}

/// Which runs go.
enum Gone {
    /// Those that ended before a time; so many at most.
    Ended(i64, i64),
    /// This one.
    Run(Uuid),
}

/// Runs go, with everything that is their own; gives how many.
async fn purge(on: &Connections, tenant: TenantId, which: Gone) -> Read<u64> {
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
        Gone::Ended(..) => sql::sweep_runs,
        Gone::Run(_) => sql::runs_wake,
    };
    let find = connection.statement(find).await?;
    let mut statements = Vec::new();
    for statement in own {
        statements.push(connection.statement(statement).await?);
    }
    let cells = connection.statement(sql::purge_cells).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let begin = on.begin(Sees::Tenant(tenant), Mode::Writes);
    let (begun, found) = match which {
        Gone::Ended(before, limit) => {
            let which: [Param<'_>; 3] = [&id, &before, &limit];
            tokio::join!(connection.begin(&begin), connection.ask(&find, &which))
        }
        Gone::Run(run) => {
            let which: [Param<'_>; 2] = [&id, &vec![run]];
            tokio::join!(connection.begin(&begin), connection.ask(&find, &which))
        }
    };
    begun?;
    let found = found?.iter().map(|row| rows::get(row, 0)).collect::<Read<Vec<Uuid>>>()?;
    let count = found.len() as u64;
    let ended = match which {
        Gone::Ended(..) => found,
        // Something of it may be left even if it is not there.
        Gone::Run(run) => vec![run],
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

/// Old checkpoints of a run go, and the documents that only they showed.
async fn bound(on: &Connections, tenant: TenantId, run: RunId, keep: u64, limit: u32) -> Read<Swept> {
    let nothing = Swept { count: 0, more: false };
    let (id, run) = (tenant.uuid(), run.uuid());
    let sees = Sees::Tenant(tenant);
    let newest = on.one(sees, Mode::Reads, sql::runs_get, &[&id, &vec![run]]).await?;
    let oldest = on.one(sees, Mode::Reads, sql::checkpoint_oldest, &[&id, &run]).await?;
    let oldest = oldest.first().map(|row| rows::get::<Option<i64>>(row, 0)).transpose()?.flatten();
    let (Some(row), Some(oldest)) = (newest.first(), oldest) else { return Ok(nothing) };
    let versions = Versions { oldest: oldest as u64, newest: rows::run(row)?.version };
    // Which whole state a version is built on never changes: what is looked up is as good as under a lock.
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
        let rows = on.one(sees, Mode::Reads, sql::checkpoint_base, &which).await?;
        let base = rows.first().map(|row| rows::unsigned(row, 0)).transpose()?;
        bases.insert(version, base);
    };
    let which: [Param<'_>; 3] = [&id, &run, &rows::int(oldest)];
    let checkpoints = on.one(sees, Mode::Writes, sql::sweep_checkpoints, &which).await?.len() as u64;
    let room = rows::int(u64::from(limit).saturating_sub(checkpoints));
    let which: [Param<'_>; 4] = [&id, &run, &rows::int(oldest), &room];
    let documents = on.one(sees, Mode::Writes, sql::sweep_documents, &which).await?.len() as u64;
    let count = checkpoints + documents;
    Ok(Swept { count, more: more || count >= u64::from(limit) })
}
