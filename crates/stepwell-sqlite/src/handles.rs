//! Handles: looked up by the hash of their secret, listed, written and cleaned up.

use rusqlite::{Connection, OptionalExtension, Row, Rows, params};
use stepwell_core::shadow::ShadowType;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::handle::{handle_place, read_handle_cursor};
use stepwell_store::shadow::{RangePlace, ShadowSpans, handle_range_cursor, leading};
use stepwell_store::store::page_rows;
use stepwell_store::{
    CommitId, HandleHash, HandleKind, HandleQuery, HandleRow, Listing, Page, ProcessId, Record,
    ShadowCondition, ShadowFilter, TenantId,
};
use uuid::Uuid;

use crate::listed::{all, named, page, read_listed};
use crate::query::{Read, fetch_limit};
use crate::shadows::SpanParams;
use crate::statements as sql;
use crate::{rows, shadows};

/// Returns a handle's row. If it is unreadable, the error names the handle.
pub(crate) fn get(
    connection: &Connection,
    tenant: TenantId,
    handle: &HandleHash,
) -> rusqlite::Result<Option<HandleRow>> {
    let mut statement = connection.prepare_cached(sql::handle_get)?;
    let found = statement.query_row(params![tenant.uuid().into_bytes(), handle.0], read).optional();
    named(found, |why| Listing::of("handles").bad(Some(&handle.to_string()), why))
}

/// Inserts or replaces a handle's row.
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

pub(crate) fn delete(connection: &Connection, tenant: TenantId, handle: &HandleHash) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::handle_delete)?;
    statement.execute(params![tenant.uuid().into_bytes(), handle.0])?;
    Ok(())
}

/// Deletes all shadow columns of a flow.
pub(crate) fn clear_shadows(connection: &Connection, tenant: TenantId, run: RunId) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql::purge_shadows)?;
    statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes()])?;
    Ok(())
}

/// Returns the id of the commit that wrote a handle's row.
pub(crate) fn commit_of(
    connection: &Connection,
    tenant: TenantId,
    handle: &HandleHash,
) -> rusqlite::Result<Option<[u8; 16]>> {
    let mut statement = connection.prepare_cached(sql::handle_commit)?;
    statement.query_row(params![tenant.uuid().into_bytes(), handle.0], |row| row.get(0)).optional()
}

/// Lists the handles that match a query.
pub(crate) fn list(connection: &Connection, tenant: TenantId, query: &HandleQuery) -> Read<Page<Record>> {
    query.check()?;
    let found = match leading(&query.shadows) {
        Some((lead, others)) => by_shadow(connection, tenant, query, &lead, &others)?,
        None => by_place(connection, tenant, query, read_handle_cursor(query.cursor.as_deref())?)?,
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
            let which = params![tenant, run, handle, query.created_by, fetch_limit(query.limit)];
            return page(&mut statement, which, Listing::of("handles"), query.limit, cursor, read);
        }
    };
    let mut statement = connection.prepare_cached(statement)?;
    let which = params![tenant, run, handle, query.created_by, fetch_limit(query.limit), workflow];
    page(&mut statement, which, Listing::of("handles"), query.limit, cursor, read)
}

fn cursor(row: &Row<'_>) -> rusqlite::Result<String> {
    Ok(handle_place(rows::run_id(row, 2)?, HandleHash(row.get(0)?)))
}

/// Finds flows by the index of one shadow column; everything else is a filter.
fn by_shadow(
    connection: &Connection,
    tenant: TenantId,
    query: &HandleQuery,
    lead: &ShadowFilter,
    others: &[&ShadowFilter],
) -> Read<Page<HandleRow>> {
    let (id, name) = (tenant.uuid().into_bytes(), lead.name.as_str());
    let workflow = query.workflow.as_ref().map(Name::as_str);
    if let ShadowCondition::Equals(value) = &lead.is {
        let statement = match value.kind() {
            ShadowType::String => sql::handles_by_text,
            ShadowType::Number => sql::handles_by_number,
            ShadowType::Boolean => sql::handles_by_boolean,
        };
        let (run, handle) = place(read_handle_cursor(query.cursor.as_deref())?);
        let mut statement = connection.prepare_cached(statement)?;
        let found = statement.query(params![id, run, handle, workflow, name, shadows::held(value)])?;
        return matching(connection, tenant, query, others, found, cursor);
    }
    let place = RangePlace::of_handle(query.cursor.as_deref())?;
    let Some(spans) = ShadowSpans::of(&lead.is, place.as_ref(), false)? else { return Ok(Page::of([])) };
    let statement = match &spans {
        ShadowSpans::Texts(_) => sql::handles_by_text_range,
        ShadowSpans::Numbers(_) => sql::handles_by_number_range,
    };
    let SpanParams { from, after, to, before } = SpanParams::of(&spans);
    let handle = place.and_then(|place| place.handle).map(|handle| handle.0.to_vec()).unwrap_or_default();
    let mut statement = connection.prepare_cached(statement)?;
    let found = statement.query(params![id, workflow, name, from, after, handle, to, before])?;
    let cursor = |row: &Row<'_>| {
        let (run, handle) = (rows::run_id(row, 2)?, HandleHash(row.get(0)?));
        Ok(handle_range_cursor(run, handle, &shadows::value_at(row, 16)?))
    };
    matching(connection, tenant, query, others, found, cursor)
}

/// Reads handles one by one, and no more than the page needs.
fn matching(
    connection: &Connection,
    tenant: TenantId,
    query: &HandleQuery,
    others: &[&ShadowFilter],
    mut rows: Rows<'_>,
    cursor: impl Fn(&Row<'_>) -> rusqlite::Result<String>,
) -> Read<Page<HandleRow>> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let row = read_listed(Listing::of("handles"), row, &cursor, |row| Ok(read(row)?))?;
        let is_wanted = match &row.1 {
            Ok(row) => {
                query.matches(row)
                    && shadows::has_columns(connection, tenant, row.run, &row.workflow, others)?
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

/// Returns the position after which a listing continues. Without a cursor it is before every handle.
fn place(after: After) -> (Vec<u8>, Vec<u8>) {
    after.map_or_else(Default::default, |(run, handle)| (run.uuid().into_bytes().to_vec(), handle.0.to_vec()))
}

/// Lists handles whose delivery is due.
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

/// Deletes handles that had expired by a time, with the shadow columns of their flows. Returns the number of handles.
pub(crate) fn cleanup(
    connection: &Connection,
    tenant: TenantId,
    expired_by: Timestamp,
    limit: u32,
) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached(sql::cleanup_handles)?;
    let which = params![tenant.uuid().into_bytes(), expired_by.micros(), limit];
    // An expired handle is deleted even if the rest of its row is unreadable.
    let over = statement.query_map(which, |row| {
        Ok((HandleHash(row.get(0)?), kind(row, 1).ok(), rows::run_id(row, 2).ok()))
    })?;
    let over = over.collect::<rusqlite::Result<Vec<_>>>()?;
    for (handle, kind, run) in &over {
        delete(connection, tenant, handle)?;
        if let (Some(HandleKind::Flow), Some(run)) = (kind, run) {
            clear_shadows(connection, tenant, *run)?;
        }
    }
    Ok(over.len())
}

/// Returns true if the lease of a process is still valid.
pub(crate) fn is_alive(
    connection: &Connection,
    process: ProcessId,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(sql::process_is_alive)?;
    statement.exists(params![process.0.into_bytes(), now.micros()])
}

/// Lists the recorded processes with the end of their leases.
pub(crate) fn processes(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<Record>> {
    let mut statement = connection.prepare_cached(sql::process_list)?;
    let found = statement.query_map(params![page_rows(limit) as i64], |row| {
        let lease_until = Timestamp::from_micros(row.get(1)?);
        Ok(Record::Process { process: ProcessId(Uuid::from_bytes(row.get(0)?)), lease_until })
    })?;
    found.collect()
}

fn kind(row: &Row<'_>, column: usize) -> rusqlite::Result<HandleKind> {
    let word: String = row.get(column)?;
    HandleKind::parse(&word).ok_or_else(|| {
        let why = format!("`{word}` is not a handle kind").into();
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
