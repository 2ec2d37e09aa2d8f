//! Shadow columns: writes them with their run, finds runs by them, and refills them.

use rusqlite::types::{ToSql, Type, ValueRef};
use rusqlite::{Connection, Error, Row, params};
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{Name, RunId};
use stepwell_store::shadow::{ShadowSpans, joined, split};
use stepwell_store::{
    CleanupResult, Listing, Page, RefillColumn, ShadowFilter, ShadowRefill, ShadowRow, ShadowWrite, TenantId,
};

use crate::apply::run_row;
use crate::listed::all;
use crate::query::Read;
use crate::statements as sql;

/// Sets or clears a shadow column of a run.
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

/// Writes a value and returns the number of changed rows.
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

/// Sets the columns of runs to the given values. Skips runs that have advanced since they were read.
pub(crate) fn refill(
    connection: &Connection,
    tenant: TenantId,
    refills: &[ShadowRefill],
) -> rusqlite::Result<CleanupResult> {
    let (mut count, mut more) = (0, false);
    for ShadowRefill { run, version, workflow, columns } in refills {
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
                RefillColumn::Set(value) => (sql::shadow_put, value),
                RefillColumn::SetIfMissing(value) => (sql::shadow_begin, value),
            };
            count += put(connection, statement, tenant, (*run, workflow, name), value)?;
        }
    }
    Ok(CleanupResult { count: count as u64, more })
}

/// Returns the shadow columns of a run.
pub(crate) fn of_run(connection: &Connection, tenant: TenantId, run: RunId) -> Read<Page<ShadowRow>> {
    let mut statement = connection.prepare_cached(sql::shadows_of_run)?;
    let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes()];
    let of = Listing::of_run("shadows", run);
    let shadow = |row: &Row<'_>| {
        let value = joined(row.get(2)?, row.get(3)?, row.get(4)?);
        let (workflow, name) = (row.get::<_, String>(0)?.into(), row.get::<_, String>(1)?.into());
        let value = value.ok_or_else(|| Error::InvalidColumnType(2, "value".to_owned(), Type::Null))?;
        Ok(ShadowRow { run, workflow, name, value })
    };
    Ok(Page::all(all(&mut statement, which, of, |row| row.get(1), shadow)?))
}

/// Returns the shadow columns of several runs.
pub(crate) fn of_runs(connection: &Connection, tenant: TenantId, runs: &[RunId]) -> Read<Vec<ShadowRow>> {
    let mut runs = runs.to_vec();
    runs.sort_unstable();
    runs.dedup();
    let mut found = Vec::new();
    for run in runs {
        found.extend(of_run(connection, tenant, run)?.items);
    }
    Ok(found)
}

/// The ends of a span as parameters.
pub(crate) struct SpanParams<'s> {
    pub(crate) from: &'s dyn ToSql,
    pub(crate) after: [u8; 16],
    pub(crate) to: &'s dyn ToSql,
    pub(crate) before: [u8; 16],
}

impl<'s> SpanParams<'s> {
    pub(crate) fn of(spans: &'s ShadowSpans) -> Self {
        match spans {
            ShadowSpans::Texts(span) => SpanParams {
                from: &span.after.0,
                after: span.after.1.into_bytes(),
                to: &span.before.0,
                before: span.before.1.into_bytes(),
            },
            ShadowSpans::Numbers(span) => SpanParams {
                from: &span.after.0,
                after: span.after.1.into_bytes(),
                to: &span.before.0,
                before: span.before.1.into_bytes(),
            },
        }
    }
}

/// Reads the value of the column that orders a listing.
pub(crate) fn value_at(row: &Row<'_>, index: usize) -> rusqlite::Result<ShadowValue> {
    match row.get_ref(index)? {
        ValueRef::Real(number) => Ok(ShadowValue::Number(number)),
        _ => row.get(index).map(ShadowValue::Text),
    }
}

/// Returns a value as a parameter of its own SQL type.
pub(crate) fn held(value: &ShadowValue) -> &dyn rusqlite::ToSql {
    match value {
        ShadowValue::Text(text) => text,
        ShadowValue::Number(number) => number,
        ShadowValue::Boolean(value) => value,
    }
}

/// Returns true if the shadow columns of a run match all of these filters.
pub(crate) fn has_columns(
    connection: &Connection,
    tenant: TenantId,
    run: RunId,
    workflow: &Name,
    wanted: &[&ShadowFilter],
) -> Read<bool> {
    if wanted.is_empty() {
        return Ok(true);
    }
    let held = of_run(connection, tenant, run)?.items;
    let is_held = |filter: &&ShadowFilter| {
        held.iter()
            .any(|row| row.name == filter.name && filter.is.has(&row.value) && row.workflow == *workflow)
    };
    Ok(wanted.iter().all(is_held))
}
