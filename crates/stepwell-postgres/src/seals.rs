//! The audit trail and its seals.

use stepwell_core::{RunId, Timestamp};
use stepwell_store::seal::{Seal, sealed};
use stepwell_store::store::read_commit_cursor;
use stepwell_store::{AuditRow, CleanupResult, CommitId, Listing, Page, Record, StoreError, TenantId};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Transaction, Unanswered, Visibility};
use crate::error::constraint;
use crate::listed::page;
use crate::query::{after, ask, each, read};
use crate::rows::{self, Read};
use crate::statements as sql;

/// A row of the audit trail with its position.
struct Found {
    commit: CommitId,
    ordinal: u64,
    at: Timestamp,
    row: AuditRow,
}

fn found(row: &Row) -> Read<Found> {
    let audit = AuditRow {
        operation: rows::get(row, 3)?,
        subject: rows::get(row, 4)?,
        actor: rows::get(row, 5)?,
        run: rows::get::<Option<Uuid>>(row, 6)?.map(RunId::new),
        detail: rows::bytes(row, 7)?,
    };
    let (ordinal, at) = (rows::unsigned(row, 1)?, rows::at(row, 2)?);
    Ok(Found { commit: CommitId(rows::get(row, 0)?), ordinal, at, row: audit })
}

pub(crate) async fn audit(
    on: &Connections,
    tenant: TenantId,
    run: Option<RunId>,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let (commit, ordinal) = after(cursor)?;
    let (id, most) = (tenant.uuid(), ask(limit));
    let rows = match run.map(RunId::uuid) {
        None => read(on, tenant, sql::audit_list, &[&id, &commit, &ordinal, &most]).await?,
        Some(run) => read(on, tenant, sql::audit_of_run, &[&id, &run, &commit, &ordinal, &most]).await?,
    };
    let cursor = |row: &Row| Ok(format!("{}:{}", rows::get::<Uuid>(row, 0)?, rows::unsigned(row, 1)?));
    let found = page(&rows, Listing::of("audit"), limit, cursor, found)?;
    let record = |Found { commit, ordinal, at, row }| Record::Audit { commit, ordinal, at, row };
    Ok(found.map(record))
}

/// Returns the stored results of a commit that is looked up in the audit trail; `None` if it has no row there.
pub(crate) async fn trace(
    on: &Connections,
    tenant: TenantId,
    commit: CommitId,
) -> Read<Option<Option<Vec<u8>>>> {
    let rows = read(on, tenant, sql::audit_trace, &[&tenant.uuid(), &commit.0]).await?;
    rows.first().map(|row| rows::get(row, 0)).transpose()
}

pub(crate) async fn unsealed(
    on: &Connections,
    tenant: TenantId,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let after = read_commit_cursor(cursor)?.map_or(Uuid::nil(), |commit| commit.0);
    let which: [Param<'_>; 3] = [&tenant.uuid(), &after, &ask(limit)];
    let rows = read(on, tenant, sql::unsealed_list, &which).await?;
    let found = each(&rows, |row| rows::get(row, 0).map(CommitId))?;
    Ok(Page::cut(found, limit, |commit| commit.0.to_string()).map(Record::Unsealed))
}

pub(crate) async fn seals(on: &Connections, tenant: TenantId, from: u64, limit: u32) -> Read<Page<Record>> {
    let which: [Param<'_>; 3] = [&tenant.uuid(), &rows::int(from), &ask(limit)];
    let rows = read(on, tenant, sql::seals_list, &which).await?;
    let seal = |row: &Row| {
        Ok(Seal {
            number: rows::unsigned(row, 0)?,
            at: rows::at(row, 1)?,
            before: hash(row, 2)?,
            rows: Seal::decode_rows(&rows::get::<Vec<u8>>(row, 3)?)?,
            hash: hash(row, 4)?,
        })
    };
    let cursor = |row: &Row| Ok((rows::unsigned(row, 0)? + 1).to_string());
    Ok(page(&rows, Listing::of("seals"), limit, cursor, seal)?.map(Record::Seal))
}

fn hash(row: &Row, column: usize) -> Read<[u8; 32]> {
    let bytes: Vec<u8> = rows::get(row, column)?;
    Ok(bytes
        .try_into()
        .map_err(|_| StoreError::Corrupt("a seal's hash does not have 32 bytes".to_owned()))?)
}

/// Writes one seal over the audit rows of up to `limit` unsealed commits. If two processes seal at the same time, one
/// of them does nothing.
pub(crate) async fn seal(
    on: &Connections,
    tenant: TenantId,
    now: Timestamp,
    limit: u32,
) -> Read<CleanupResult> {
    let id = tenant.uuid();
    let connection = on.get().await?;
    let list = connection.statement(sql::unsealed_list).await?;
    let last = connection.statement(sql::seal_last).await?;
    let audit = connection.statement(sql::audit_of_commits).await?;
    let delete = connection.statement(sql::unsealed_delete).await?;
    let insert = connection.statement(sql::seal_insert).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let begin = on.begin(Visibility::Tenant(tenant), Mode::Writes);
    let which: [Param<'_>; 3] = [&id, &Uuid::nil(), &(i64::from(limit) + 1)];
    // Read the last seal before the unsealed commits. If another process seals in between, either the commits are no
    // longer listed, or this seal's number is already taken.
    let (begun, last, waiting) = tokio::join!(
        connection.begin(&begin),
        connection.ask(&last, &which[..1]),
        connection.ask(&list, &which)
    );
    begun?;
    let last =
        last?.first().map(|row| Ok::<_, crate::error::Failure>((rows::unsigned(row, 0)?, hash(row, 1)?)));
    let mut taken: Vec<Uuid> = each(&waiting?, |row| rows::get(row, 0))?;
    let more = taken.len() > limit as usize;
    taken.truncate(limit as usize);
    if taken.is_empty() {
        transaction.roll_back().await?;
        return Ok(CleanupResult { count: 0, more: false });
    }
    let which: [Param<'_>; 3] = [&id, &taken, &i64::MAX];
    let audit = connection.ask(&audit, &which).await?;
    let audit = each(&audit, found)?.into_iter();
    let rows: Vec<_> = audit.map(|row| sealed(tenant, row.commit, row.ordinal, row.at, &row.row)).collect();
    let count = rows.len() as u64;
    let seal = Seal::after(tenant, last.transpose()?, now, rows);
    let (number, at, sealed_rows) = (rows::int(seal.number), seal.at.micros(), seal.encoded_rows());
    let row: [Param<'_>; 6] = [&id, &number, &at, &&seal.before[..], &sealed_rows, &&seal.hash[..]];
    // The commits are listed in order, so the first and the last bound the range.
    let sealed: [Param<'_>; 4] = [&id, &taken, &taken[0], &taken[taken.len() - 1]];
    let (put, gone, done) = tokio::join!(
        connection.try_ask(&insert, &row),
        connection.ask(&delete, &sealed),
        connection.command("commit")
    );
    match put {
        Err(Unanswered::Error(error)) if constraint(&error, &SqlState::UNIQUE_VIOLATION).is_some() => {
            transaction.roll_back().await?;
            return Ok(CleanupResult { count: 0, more: true });
        }
        put => put?,
    };
    gone?;
    done?;
    transaction.over();
    Ok(CleanupResult { count, more })
}
