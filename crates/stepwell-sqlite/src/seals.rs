//! The audit trail and its seals.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::seal::{Seal, SealedRow, sealed};
use stepwell_store::store::read_commit_cursor;
use stepwell_store::{AuditRow, CleanupResult, CommitId, Listing, Page, Record, TenantId};
use uuid::Uuid;

use crate::listed::{page, read_listed};
use crate::query::{Read, after, fetch_limit};
use crate::rows;
use crate::statements as sql;

/// A row of the audit trail with its position.
struct Found {
    commit: CommitId,
    ordinal: u64,
    at: Timestamp,
    row: AuditRow,
}

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let run: Option<[u8; 16]> = row.get(6)?;
    let audit = AuditRow {
        operation: row.get(3)?,
        subject: row.get(4)?,
        actor: row.get(5)?,
        run: run.map(|run| RunId::new(Uuid::from_bytes(run))),
        detail: rows::bytes(row, 7)?,
    };
    let (commit, at) = (commit(row)?, Timestamp::from_micros(row.get(2)?));
    Ok(Found { commit, ordinal: rows::unsigned(row, 1)?, at, row: audit })
}

fn commit(row: &Row<'_>) -> rusqlite::Result<CommitId> {
    Ok(CommitId(Uuid::from_bytes(row.get(0)?)))
}

pub(crate) fn audit(
    connection: &Connection,
    tenant: TenantId,
    run: Option<RunId>,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let (commit, ordinal) = after(cursor)?;
    let (id, most) = (tenant.uuid().into_bytes(), fetch_limit(limit));
    let cursor = |row: &Row<'_>| Ok(format!("{}:{}", self::commit(row)?.0, rows::unsigned(row, 1)?));
    let listed = |statement: &str, which: &[&dyn ToSql]| {
        let mut statement = connection.prepare_cached(statement)?;
        page(&mut statement, which, Listing::of("audit"), limit, cursor, found)
    };
    let found = match run {
        None => listed(sql::audit_list, params![id, commit, ordinal, most])?,
        Some(run) => listed(sql::audit_of_run, params![id, run.uuid().into_bytes(), commit, ordinal, most])?,
    };
    let record = |Found { commit, ordinal, at, row }| Record::Audit { commit, ordinal, at, row };
    Ok(found.map(record))
}

/// Returns the stored results of a commit that is looked up in the audit trail; `None` if it has no row there.
pub(crate) fn trace(
    connection: &Connection,
    tenant: TenantId,
    commit: CommitId,
) -> rusqlite::Result<Option<Option<Vec<u8>>>> {
    let which = params![tenant.uuid().into_bytes(), commit.0.into_bytes()];
    connection.prepare_cached(sql::audit_trace)?.query_row(which, |row| row.get(0)).optional()
}

pub(crate) fn unsealed(
    connection: &Connection,
    tenant: TenantId,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let after = read_commit_cursor(cursor)?.map(|commit| commit.0.into_bytes().to_vec()).unwrap_or_default();
    let found = waiting(connection, tenant, &after, fetch_limit(limit))?;
    Ok(Page::cut(found, limit, |commit| commit.0.to_string()).map(Record::Unsealed))
}

fn waiting(
    connection: &Connection,
    tenant: TenantId,
    after: &[u8],
    limit: i64,
) -> rusqlite::Result<Vec<CommitId>> {
    let mut statement = connection.prepare_cached(sql::unsealed_list)?;
    statement.query_map(params![tenant.uuid().into_bytes(), after, limit], commit)?.collect()
}

pub(crate) fn seals(connection: &Connection, tenant: TenantId, from: u64, limit: u32) -> Read<Page<Record>> {
    let mut statement = connection.prepare_cached(sql::seals_list)?;
    let which = params![tenant.uuid().into_bytes(), rows::int(from), fetch_limit(limit)];
    let mut found = statement.query(which)?;
    let mut all = Vec::new();
    let cursor = |row: &Row<'_>| Ok((rows::unsigned(row, 0)? + 1).to_string());
    while let Some(row) = found.next()? {
        all.push(read_listed(Listing::of("seals"), row, cursor, |row| {
            Ok(Seal {
                number: rows::unsigned(row, 0)?,
                at: Timestamp::from_micros(row.get(1)?),
                before: row.get(2)?,
                rows: Seal::decode_rows(&row.get::<_, Vec<u8>>(3)?)?,
                hash: row.get(4)?,
            })
        })?);
    }
    Ok(Page::sorted(all, limit)?.map(Record::Seal))
}

/// Writes one seal over the audit rows of up to `limit` unsealed commits.
pub(crate) fn seal(
    connection: &Connection,
    tenant: TenantId,
    now: Timestamp,
    limit: u32,
) -> rusqlite::Result<CleanupResult> {
    let id = tenant.uuid().into_bytes();
    let mut taken = waiting(connection, tenant, &[], i64::from(limit) + 1)?;
    let more = taken.len() > limit as usize;
    taken.truncate(limit as usize);
    let mut rows: Vec<SealedRow> = Vec::new();
    for commit in &taken {
        let mut statement = connection.prepare_cached(sql::audit_of_commit)?;
        for row in statement.query_map(params![id, commit.0.into_bytes()], found)? {
            let Found { commit, ordinal, at, row } = row?;
            rows.push(sealed(tenant, commit, ordinal, at, &row));
        }
        connection.prepare_cached(sql::unsealed_delete)?.execute(params![id, commit.0.into_bytes()])?;
    }
    let cleaned = CleanupResult { count: rows.len() as u64, more };
    if rows.is_empty() {
        return Ok(cleaned);
    }
    let mut statement = connection.prepare_cached(sql::seal_last)?;
    let last = statement.query_row([id], |row| Ok((rows::unsigned(row, 0)?, row.get(1)?))).optional()?;
    let seal = Seal::after(tenant, last, now, rows);
    connection.prepare_cached(sql::seal_insert)?.execute(params![
        id,
        rows::int(seal.number),
        seal.at.micros(),
        seal.before,
        seal.encoded_rows(),
        seal.hash,
    ])?;
    Ok(cleaned)
}

/// Deletes the audit rows of the oldest seals, up to a seal that stays.
pub(crate) fn cut(
    connection: &Connection,
    tenant: TenantId,
    through: u64,
    limit: u64,
) -> rusqlite::Result<CleanupResult> {
    let id = tenant.uuid().into_bytes();
    let mut count = 0;
    loop {
        let mut first = connection.prepare_cached(sql::seal_first)?;
        let first = first.query_row(params![id, rows::int(through)], |row| {
            Ok((rows::unsigned(row, 0)?, row.get::<_, Vec<u8>>(1)?))
        });
        let Some((number, sealed)) = first.optional()? else {
            return Ok(CleanupResult { count, more: false });
        };
        // An unreadable seal names no rows. Its rows stay, and the verification of the trail reports them.
        for row in Seal::decode_rows(&sealed).unwrap_or_default() {
            let mut statement = connection.prepare_cached(sql::audit_cut)?;
            let which = params![id, row.commit.0.into_bytes(), rows::int(row.ordinal)];
            count += statement.execute(which)? as u64;
        }
        if number == through {
            return Ok(CleanupResult { count, more: false });
        }
        connection.prepare_cached(sql::seal_cut)?.execute(params![id, rows::int(number)])?;
        if count >= limit {
            return Ok(CleanupResult { count, more: true });
        }
    }
}
