//! Handles: rows by the hash of a secret, in listings, and what is over.

use rusqlite::{Connection, OptionalExtension, Row, params};
use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::handle::{handle_place, read_handle_cursor};
use stepwell_store::store::page_rows;
use stepwell_store::{
    CommitId, HandleHash, HandleKind, HandleQuery, HandleRow, Listing, Page, ProcessId, Record, TenantId,
};
use uuid::Uuid;

use crate::listed::{all, named, page, seen};
use crate::query::{Read, ask};
use crate::statements as sql;
use crate::{rows, shadows};

/// A handle.
pub(crate) fn get(
    connection: &Connection,
    tenant: TenantId,
    handle: &HandleHash,
) -> rusqlite::Result<Option<HandleRow>> {
    let mut statement = connection.prepare_cached(sql::handle_get)?;
    let found = statement.query_row(params![tenant.uuid().into_bytes(), handle.0], read).optional();
    named(found, |why| Listing::of("handles").bad(Some(&handle.to_string()), why))
}

/// A handle is this from here on.
pub(crate) fn put(connection: &Connection, tenant: TenantId, row: &HandleRow) -> rusqlite::Result<()> {
    let HandleRow {
        handle,
        kind,
        run,
        workflow,
        definition,
        state,
        expires_at,
        owner,
        fence,
        deliver_at,
        delivery,
        created_at,
        created_by,
        updated_at,
        updated_by,
        commit,
    } = row;
    connection.prepare_cached(sql::handle_put)?.execute(params![
        tenant.uuid().into_bytes(),
        handle.0,
        kind.as_str(),
        run.uuid().into_bytes(),
        workflow.as_str(),
        definition.as_bytes(),
        &state[..],
        rows::time(*expires_at),
        rows::id(owner.map(|owner| owner.0)),
        rows::int(*fence),
        rows::time(*deliver_at),
        rows::blob(delivery.as_ref()),
        created_at.micros(),
        created_by,
        updated_at.micros(),
        updated_by,
        commit.0.into_bytes(),
    ])?;
    Ok(())
}

/// A handle goes.
pub(crate) fn delete(connection: &Connection, tenant: TenantId, handle: &HandleHash) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::handle_delete)?;
    statement.execute(params![tenant.uuid().into_bytes(), handle.0])?;
    Ok(())
}

/// A flow's shadow columns go.
pub(crate) fn unshade(connection: &Connection, tenant: TenantId, run: RunId) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::purge_shadows)?;
    statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes()])?;
    Ok(())
}

/// The commit that a handle's row names.
pub(crate) fn commit_of(
    connection: &Connection,
    tenant: TenantId,
    handle: &HandleHash,
) -> rusqlite::Result<Option<[u8; 16]>> {
    let mut statement = connection.prepare_cached(sql::handle_commit)?;
    statement.query_row(params![tenant.uuid().into_bytes(), handle.0], |row| row.get(0)).optional()
}

/// Handles that a query is about.
pub(crate) fn list(connection: &Connection, tenant: TenantId, query: &HandleQuery) -> Read<Page<Record>> {
    query.check()?;
    let after = read_handle_cursor(query.cursor.as_deref())?;
    let found = match query.shadows.split_first() {
        Some((first, others)) => by_shadow(connection, tenant, query, after, first, others)?,
        None => by_place(connection, tenant, query, after)?,
    };
    Ok(found.map(record))
}

fn record(row: HandleRow) -> Record {
    Record::Handle(Box::new(row))
}

type After = Option<(RunId, HandleHash)>;

fn by_place(
    connection: &Connection,
    tenant: TenantId,
    query: &HandleQuery,
    after: After,
) -> Read<Page<HandleRow>> {
    let tenant = tenant.uuid().into_bytes();
    let workflow = query.workflow.as_ref().map(Name::as_str);
    let (mut run, mut handle) = place(after);
    let statement = match (query.run, workflow) {
        (Some(wanted), _) => {
            let wanted = wanted.uuid().into_bytes().to_vec();
            if run > wanted {
                return Ok(Page::of([]));
            }
            if run < wanted {
                handle = Vec::new();
            }
            run = wanted;
            sql::handles_of_run
        }
        (None, Some(_)) => sql::handles_of_workflow,
        (None, None) => {
            let mut statement = connection.prepare_cached(sql::handles_all)?;
            let which = params![tenant, run, handle, query.created_by, ask(query.limit)];
            return page(&mut statement, which, Listing::of("handles"), query.limit, cursor, read);
        }
    };
    let mut statement = connection.prepare_cached(statement)?;
    let which = params![tenant, run, handle, query.created_by, ask(query.limit), workflow];
    page(&mut statement, which, Listing::of("handles"), query.limit, cursor, read)
}

fn cursor(row: &Row<'_>) -> rusqlite::Result<String> {
    Ok(handle_place(rows::run_id(row, 2)?, HandleHash(row.get(0)?)))
}

/// By the index of the first column; everything else is a filter.
fn by_shadow(
    connection: &Connection,
    tenant: TenantId,
    query: &HandleQuery,
    after: After,
    (name, value): &(Name, ShadowValue),
    others: &[(Name, ShadowValue)],
) -> Read<Page<HandleRow>> {
    let statement = match value.kind() {
        ShadowType::String => sql::handles_by_text,
        ShadowType::Number => sql::handles_by_number,
        ShadowType::Boolean => sql::handles_by_boolean,
    };
    let (run, handle) = place(after);
    let workflow = query.workflow.as_ref().map(Name::as_str);
    let mut statement = connection.prepare_cached(statement)?;
    let held = shadows::held(value);
    let which = params![tenant.uuid().into_bytes(), run, handle, workflow, name.as_str(), held];
    let mut rows = statement.query(which)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = seen(Listing::of("handles"), row, cursor, |row| Ok(read(row)?))?;
        let is_wanted = match &row.1 {
            Ok(row) => {
                query.wants(row) && shadows::holds(connection, tenant, row.run, &row.workflow, others)?
            }
            Err(_) => true,
        };
        found.extend(is_wanted.then_some(row));
        if found.len() > page_rows(query.limit) {
            break;
        }
    }
    Ok(Page::sorted(found, query.limit)?)
}

/// Where a listing goes on; the beginning is before every run.
fn place(after: After) -> (Vec<u8>, Vec<u8>) {
    after.map_or_else(Default::default, |(run, handle)| (run.uuid().into_bytes().to_vec(), handle.0.to_vec()))
}

/// Handles whose delivery is due.
pub(crate) fn undelivered(
    connection: &Connection,
    tenant: TenantId,
    now: Timestamp,
    limit: u32,
) -> Read<Page<Record>> {
    let mut statement = connection.prepare_cached(sql::handles_undelivered)?;
    let which = params![tenant.uuid().into_bytes(), now.micros(), page_rows(limit) as i64];
    Ok(Page::all(all(&mut statement, which, Listing::of("handles"), cursor, read)?).map(record))
}

/// Handles that were over by a time go; gives how many.
pub(crate) fn sweep(
    connection: &Connection,
    tenant: TenantId,
    expired_by: Timestamp,
    limit: u32,
) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(sql::sweep_handles)?;
    let which = params![tenant.uuid().into_bytes(), expired_by.micros(), limit];
    // What cannot be read goes too when it is over.
    let over = statement.query_map(which, |row| {
        Ok((HandleHash(row.get(0)?), kind(row, 1).ok(), rows::run_id(row, 2).ok()))
    })?;
    let over = over.collect::<rusqlite::Result<Vec<_>>>()?;
    for (handle, kind, run) in &over {
        delete(connection, tenant, handle)?;
        if let (Some(HandleKind::Flow), Some(run)) = (kind, run) {
            unshade(connection, tenant, *run)?;
        }
    }
    Ok(over.len())
}

/// Whether a process lives.
pub(crate) fn lives(connection: &Connection, process: ProcessId, now: Timestamp) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(sql::process_lives)?;
    statement.exists(params![process.0.into_bytes(), now.micros()])
}

/// The processes that are known.
pub(crate) fn processes(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<Record>> {
    let mut statement = connection.prepare_cached(sql::process_list)?;
    let found = statement.query_map(params![page_rows(limit) as i64], |row| {
        let lives_until = Timestamp::from_micros(row.get(1)?);
        Ok(Record::Process { process: ProcessId(Uuid::from_bytes(row.get(0)?)), lives_until })
    })?;
    found.collect()
}

fn kind(row: &Row<'_>, column: usize) -> rusqlite::Result<HandleKind> {
    let word: String = row.get(column)?;
    HandleKind::parse(&word).ok_or_else(|| {
        let why = format!("`{word}` is not a kind of handle").into();
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, why)
    })
}

fn read(row: &Row<'_>) -> rusqlite::Result<HandleRow> {
    let delivery: Option<Vec<u8>> = row.get(10)?;
    Ok(HandleRow {
        handle: HandleHash(row.get(0)?),
        kind: kind(row, 1)?,
        run: rows::run_id(row, 2)?,
        workflow: row.get::<_, String>(3)?.into(),
        definition: DefinitionHash::from_bytes(row.get(4)?),
        state: rows::bytes(row, 5)?,
        expires_at: rows::instant(row, 6)?,
        owner: row.get::<_, Option<[u8; 16]>>(7)?.map(|id| ProcessId(Uuid::from_bytes(id))),
        fence: rows::unsigned(row, 8)?,
        deliver_at: rows::instant(row, 9)?,
        delivery: delivery.map(Into::into),
        created_at: Timestamp::from_micros(row.get(11)?),
        created_by: row.get(12)?,
        updated_at: Timestamp::from_micros(row.get(13)?),
        updated_by: row.get(14)?,
        commit: CommitId(Uuid::from_bytes(row.get(15)?)),
    })
}
