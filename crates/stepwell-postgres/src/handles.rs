//! Handles: locks those that commits name, lists them and cleans up expired ones.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::shadow::ShadowType;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::handle::{handle_place, read_handle_cursor};
use stepwell_store::shadow::{RangePlace, ShadowSpans, handle_range_cursor, leading, split};
use stepwell_store::store::page_rows;
use stepwell_store::{
    CommitId, HandleHash, HandleKind, HandleQuery, HandleRow, Listing, Page, ProcessId, Record,
    ShadowCondition, ShadowFilter, TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Transaction, Visibility};
use crate::listed::{all, named, page};
use crate::query::{ask, first, read};
use crate::rows::{self, Read};
use crate::shadows::{self, ShadowFilters, SpanParams};
use crate::statements as sql;

/// The locked handles, with the changes of the plans made so far. `None` marks a deleted handle.
#[derive(Default)]
pub(crate) struct HandleRows {
    rows: BTreeMap<HandleHash, Option<HandleRow>>,
    /// Handles that existed when they were read.
    old: BTreeSet<HandleHash>,
    /// Handles that the plans have changed.
    dirty: BTreeSet<HandleHash>,
}

impl HandleRows {
    pub(crate) fn read(&mut self, row: &Row) -> Read<()> {
        let row = handle(row)?;
        self.old.insert(row.handle);
        self.rows.insert(row.handle, Some(row));
        Ok(())
    }

    pub(crate) fn get(&self, handle: &HandleHash) -> Option<HandleRow> {
        self.rows.get(handle).cloned().flatten()
    }

    /// Applies the changes of a plan.
    pub(crate) fn follow(&mut self, handles: &[HandleRow], used: &[HandleHash]) {
        for handle in used {
            self.rows.insert(*handle, None);
            self.dirty.insert(*handle);
        }
        for row in handles {
            self.rows.insert(row.handle, Some(row.clone()));
            self.dirty.insert(row.handle);
        }
    }

    /// Returns the handles to insert, to update and to delete.
    pub(crate) fn written(&self) -> (Vec<&HandleRow>, Vec<&HandleRow>, Vec<&HandleHash>) {
        let (mut insert, mut update, mut delete) = (Vec::new(), Vec::new(), Vec::new());
        for (handle, row) in self.rows.iter().filter(|(handle, _)| self.dirty.contains(handle)) {
            match (row, self.old.contains(handle)) {
                (Some(row), false) => insert.push(row),
                (Some(row), true) => update.push(row),
                (None, true) => delete.push(handle),
                (None, false) => {}
            }
        }
        (insert, update, delete)
    }
}

fn handle(row: &Row) -> Read<HandleRow> {
    Ok(HandleRow {
        handle: hash(row, 0)?,
        kind: rows::read(row, 1, HandleKind::parse)?,
        run: rows::run_id(row, 2)?,
        workflow: rows::name(row, 3)?,
        definition: rows::hash(row, 4)?,
        state: rows::bytes(row, 5)?,
        expires_at: rows::instant(row, 6)?,
        owner: rows::get::<Option<Uuid>>(row, 7)?.map(ProcessId),
        fence: rows::unsigned(row, 8)?,
        deliver_at: rows::instant(row, 9)?,
        delivery: rows::optional_bytes(row, 10)?,
        created_at: rows::at(row, 11)?,
        created_by: rows::get(row, 12)?,
        updated_at: rows::at(row, 13)?,
        updated_by: rows::get(row, 14)?,
        commit: CommitId(rows::get(row, 15)?),
    })
}

fn hash(row: &Row, column: usize) -> Read<HandleHash> {
    let bytes: &[u8] = rows::get(row, column)?;
    Ok(HandleHash(bytes.try_into().map_err(|_| rows::unreadable(column))?))
}

/// Returns a handle's row. If it is unreadable, the error names the handle.
pub(crate) async fn get(
    on: &Connections,
    tenant: TenantId,
    handle_hash: &HandleHash,
) -> Read<Option<HandleRow>> {
    let found = read(on, tenant, sql::handle_get, &[&tenant.uuid(), &&handle_hash.0[..]]).await?;
    let bad = |why| Listing::of("handles").bad(Some(&handle_hash.to_string()), why);
    named(first(&found, handle), bad)
}

/// Returns the id of the commit that wrote a handle's row.
pub(crate) async fn commit_of(
    on: &Connections,
    tenant: TenantId,
    handle: &HandleHash,
) -> Read<Option<CommitId>> {
    let found = read(on, tenant, sql::handle_commit, &[&tenant.uuid(), &&handle.0[..]]).await?;
    first(&found, |row| Ok(CommitId(rows::get(row, 0)?)))
}

/// Lists the handles that match a query.
pub(crate) async fn list(on: &Connections, tenant: TenantId, query: &HandleQuery) -> Read<Page<Record>> {
    query.check()?;
    // A value that cannot be stored cannot be found.
    let mut texts = query.workflow.iter().map(Name::as_str).chain(query.created_by.as_deref());
    let is_unstorable =
        texts.any(|text| text.contains('\0')) || query.shadows.iter().any(shadows::is_unstorable);
    if let Some((lead, others)) = leading(&query.shadows) {
        return Ok(by_shadow(on, tenant, query, &lead, &others, is_unstorable).await?.map(record));
    }
    let after = place(read_handle_cursor(query.cursor.as_deref())?);
    if is_unstorable {
        return Ok(Page::of([]));
    }
    let found = by_place(on, tenant, query, after).await?;
    Ok(page(&found, Listing::of("handles"), query.limit, cursor, handle)?.map(record))
}

/// Returns the position after which a listing continues. Without a cursor it is before every handle.
fn place(after: Option<(RunId, HandleHash)>) -> (Uuid, Vec<u8>) {
    after.map_or_else(|| (Uuid::nil(), Vec::new()), |(run, handle)| (run.uuid(), handle.0.to_vec()))
}

fn cursor(row: &Row) -> Read<String> {
    Ok(handle_place(rows::run_id(row, 2)?, hash(row, 0)?))
}

fn record(row: HandleRow) -> Record {
    Record::Handle(Box::new(row))
}

async fn by_place(
    on: &Connections,
    tenant: TenantId,
    query: &HandleQuery,
    (mut run, mut handle): (Uuid, Vec<u8>),
) -> Read<Vec<Row>> {
    let workflow = query.workflow.as_ref().map(Name::as_str);
    let (statement, given) = match (query.run.map(RunId::uuid), workflow) {
        (Some(wanted), _) => {
            match run.cmp(&wanted) {
                Ordering::Less => handle = Vec::new(),
                Ordering::Equal => {}
                Ordering::Greater => return Ok(Vec::new()),
            }
            run = wanted;
            (sql::handles_of_run, 6)
        }
        (None, Some(_)) => (sql::handles_of_workflow, 6),
        // The workflow is the last parameter, of the other statements only.
        (None, None) => (sql::handles_all, 5),
    };
    let (id, limited) = (tenant.uuid(), ask(query.limit));
    let which: [Param<'_>; 6] = [&id, &run, &handle, &query.created_by, &limited, &workflow];
    read(on, tenant, statement, &which[..given]).await
}

/// Finds flows by the index of one shadow column; the others are filters.
async fn by_shadow(
    on: &Connections,
    tenant: TenantId,
    query: &HandleQuery,
    lead: &ShadowFilter,
    others: &[&ShadowFilter],
    is_unstorable: bool,
) -> Read<Page<HandleRow>> {
    let ShadowFilters { names, texts, numbers, booleans, operators } = &ShadowFilters::of(others);
    let (id, wanted, limited, name) =
        (tenant.uuid(), query.run.map(RunId::uuid), ask(query.limit), lead.name.as_str());
    let (workflow, by) = (query.workflow.as_ref().map(Name::as_str), &query.created_by);
    if let ShadowCondition::Equals(value) = &lead.is {
        let (run, after) = place(read_handle_cursor(query.cursor.as_deref())?);
        if is_unstorable {
            return Ok(Page::of([]));
        }
        let (text, number, boolean) = split(value);
        let (statement, held): (_, Param<'_>) = match value.kind() {
            ShadowType::String => (sql::handles_by_text, &text),
            ShadowType::Number => (sql::handles_by_number, &number),
            ShadowType::Boolean => (sql::handles_by_boolean, &boolean),
        };
        let which: [Param<'_>; 14] = [
            &id, &run, &after, &workflow, by, &wanted, &limited, &name, held, names, texts, numbers,
            booleans, operators,
        ];
        let found = read(on, tenant, statement, &which).await?;
        return page(&found, Listing::of("handles"), query.limit, cursor, handle);
    }
    let place = RangePlace::of_handle(query.cursor.as_deref())?;
    let spans = ShadowSpans::of(&lead.is, place.as_ref(), false)?.filter(|_| !is_unstorable);
    let Some(spans) = spans else { return Ok(Page::of([])) };
    let statement = match &spans {
        ShadowSpans::Texts(_) => sql::handles_by_text_range,
        ShadowSpans::Numbers(_) => sql::handles_by_number_range,
    };
    let last = place.and_then(|place| place.handle).map(|handle| handle.0.to_vec()).unwrap_or_default();
    let SpanParams { from, after, to, before } = SpanParams::of(&spans);
    let which: [Param<'_>; 16] = [
        &id, after, &last, &workflow, by, &wanted, &limited, &name, from, names, texts, numbers, booleans,
        operators, to, before,
    ];
    let found = read(on, tenant, statement, &which).await?;
    let cursor = |row: &Row| {
        let (run, handle) = (rows::run_id(row, 2)?, hash(row, 0)?);
        Ok(handle_range_cursor(run, handle, &shadows::value_at(row, 16, &spans)?))
    };
    page(&found, Listing::of("handles"), query.limit, cursor, handle)
}

/// Lists handles whose delivery is due.
pub(crate) async fn undelivered(
    on: &Connections,
    tenant: TenantId,
    now: Timestamp,
    limit: u32,
) -> Read<Page<Record>> {
    let which: [Param<'_>; 3] = [&tenant.uuid(), &now.micros(), &(page_rows(limit) as i64)];
    let found = read(on, tenant, sql::handles_undelivered, &which).await?;
    Ok(Page::all(all(&found, Listing::of("handles"), cursor, handle)?).map(record))
}

/// Deletes handles that had expired by a time, with the shadow columns of their flows. Returns the number of handles.
pub(crate) async fn cleanup(
    on: &Connections,
    tenant: TenantId,
    expired_by: Timestamp,
    limit: u32,
) -> Read<u64> {
    let id = tenant.uuid();
    let connection = on.get().await?;
    let find = connection.statement(sql::cleanup_handles).await?;
    let delete = connection.statement(sql::handles_delete).await?;
    let clear_shadows = connection.statement(sql::purge_shadows).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let begin = on.begin(Visibility::Tenant(tenant), Mode::Writes);
    let which: [Param<'_>; 3] = [&id, &expired_by.micros(), &i64::from(limit)];
    let (begun, found) = tokio::join!(connection.begin(&begin), connection.ask(&find, &which));
    begun?;
    let (mut over, mut flows): (Vec<Vec<u8>>, Vec<Uuid>) = (Vec::new(), Vec::new());
    for row in &found? {
        over.push(rows::get(row, 0)?);
        // An expired handle is deleted even if the rest of its row is unreadable.
        if rows::read(row, 1, HandleKind::parse).is_ok_and(|kind| kind == HandleKind::Flow) {
            flows.push(rows::get(row, 2)?);
        }
    }
    let (over_by_hash, of_flows): ([Param<'_>; 2], [Param<'_>; 2]) = ([&id, &over], [&id, &flows]);
    let (gone, bare, ended) = tokio::join!(
        connection.ask(&delete, &over_by_hash),
        connection.ask(&clear_shadows, &of_flows),
        connection.command("commit")
    );
    gone?;
    bare?;
    ended?;
    transaction.over();
    Ok(over.len() as u64)
}
