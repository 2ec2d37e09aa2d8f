//! Shadow columns: writes beside a run, runs found by them, and refills.

use rusqlite::{Connection, params};
use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{Name, RunId};
use stepwell_store::shadow::{joined, split};
use stepwell_store::store::page_rows;
use stepwell_store::{
    Listing, Page, Refill, Refilled, RunQuery, RunRow, RunSummary, ShadowRow, ShadowWrite, Status, Swept,
    TenantId,
};

use crate::apply::run_row;
use crate::listed::seen;
use crate::query::{Read, before, run_cursor};
use crate::rows;
use crate::statements as sql;

/// A column holds what the write says from here on.
pub(crate) fn write(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    shadow: &ShadowWrite,
) -> rusqlite::Result<()> {
    let ShadowWrite { workflow, name, value } = shadow;
    match value {
        Some(value) => put(connection, sql::shadow_put, tenant, (run, workflow, name), value)?,
        None => connection.prepare_cached(sql::shadow_clear)?.execute(params![
            tenant.uuid().into_bytes(),
            run.uuid().into_bytes(),
            name.as_str()
        ])?,
    };
    Ok(())
}

/// Writes a value; gives how many rows that changed.
fn put(
    connection: &Connection,
    statement: &str,
    tenant: TenantId,
    (run, workflow, name): (RunId, &Name, &Name),
    value: &ShadowValue,
) -> rusqlite::Result<usize> {
    let (text, number, boolean) = split(value);
    connection.prepare_cached(statement)?.execute(params![
        tenant.uuid().into_bytes(),
        run.uuid().into_bytes(),
        name.as_str(),
        workflow.as_str(),
        text,
        number,
        boolean
    ])
}

/// Columns become what they should be, of runs that have not moved since they were read.
pub(crate) fn refill(
    connection: &Connection,
    tenant: TenantId,
    refills: &[Refill],
) -> rusqlite::Result<Swept> {
    let (mut count, mut more) = (0, false);
    for Refill { run, version, workflow, columns } in refills {
        let Some(row) = run_row(connection, tenant, *run)? else { continue };
        if row.version != *version {
            more = true;
            continue;
        }
        let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
        let names = serde_json::to_string(&names).expect("names are plain text");
        let mut statement = connection.prepare_cached(sql::shadows_keep)?;
        count += statement.execute(params![tenant.uuid().into_bytes(), run.uuid().into_bytes(), names])?;
        for (name, refilled) in columns {
            let (statement, value) = match refilled {
                Refilled::Is(value) => (sql::shadow_put, value),
                Refilled::Begins(value) => (sql::shadow_begin, value),
            };
            count += put(connection, statement, tenant, (*run, workflow, name), value)?;
        }
    }
    Ok(Swept { count: count as u64, more })
}

/// What a run's columns hold.
pub(crate) fn of_run(connection: &Connection, tenant: TenantId, run: RunId) -> Read<Vec<ShadowRow>> {
    let mut statement = connection.prepare_cached(sql::shadows_of_run)?;
    let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes()];
    let found = statement.query_map(which, |row| {
        let value = joined(row.get(2)?, row.get(3)?, row.get(4)?);
        let (workflow, name) = (row.get::<_, String>(0)?.into(), row.get::<_, String>(1)?.into());
        Ok(value.map(|value| ShadowRow { run, workflow, name, value }))
    })?;
    Ok(found.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Runs whose columns hold what the query says: by the index of the first, the others are filters.
pub(crate) fn runs(connection: &Connection, tenant: TenantId, query: &RunQuery) -> Read<Page<RunSummary>> {
    // Columns are those of a workflow that is named, so nothing is barred.
    let RunQuery { workflow, without: _, status, parent, shadows, limit, cursor } = query;
    let before = before(cursor.as_deref())?;
    let Some(((name, value), others)) = shadows.split_first() else {
        return Ok(Page::of([]));
    };
    let statement = match value.kind() {
        ShadowType::String => sql::runs_by_text,
        ShadowType::Number => sql::runs_by_number,
        ShadowType::Boolean => sql::runs_by_boolean,
    };
    let mut statement = connection.prepare_cached(statement)?;
    let mut found = statement.query(params![
        tenant.uuid().into_bytes(),
        before,
        workflow.as_ref().map(Name::as_str),
        status.map(Status::as_str),
        rows::id(parent.map(RunId::uuid)),
        name.as_str(),
        held(value)
    ])?;
    // The rows come one by one: no more are read than the page needs.
    let mut all = Vec::new();
    while let Some(row) = found.next()? {
        let row = seen(Listing::of("runs"), row, run_cursor, |row| Ok(rows::run(row).map(RunRow::summary)?))?;
        let is_wanted = match &row.1 {
            Ok(row) => holds(connection, tenant, row.run, &row.workflow, others)?,
            Err(_) => true,
        };
        all.extend(is_wanted.then_some(row));
        if all.len() > page_rows(*limit) {
            break;
        }
    }
    Ok(Page::sorted(all, *limit)?)
}

/// A value as a parameter.
pub(crate) fn held(value: &ShadowValue) -> &dyn rusqlite::ToSql {
    match value {
        ShadowValue::Text(text) => text,
        ShadowValue::Number(number) => number,
        ShadowValue::Boolean(value) => value,
    }
}

/// Whether a run's columns hold all of these.
pub(crate) fn holds(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    workflow: &Name,
    wanted: &[(Name, ShadowValue)],
) -> Read<bool> {
    if wanted.is_empty() {
        return Ok(true);
    }
    let held = of_run(connection, tenant, run)?;
    let is_held = |(name, value): &(Name, ShadowValue)| {
        held.iter().any(|row| row.name == *name && row.value == *value && row.workflow == *workflow)
    };
    Ok(wanted.iter().all(is_held))
}
