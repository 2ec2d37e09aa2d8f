//! Handles: how those that commits name are locked, how they are found, and what is over.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::handle::{handle_place, read_handle_cursor};
use stepwell_store::shadow::split;
use stepwell_store::store::page_rows;
use stepwell_store::{
    CommitId, HandleHash, HandleKind, HandleQuery, HandleRow, Listing, Page, ProcessId, Record, TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::connection::{Connections, Mode, Param, Sees, Transaction};
use crate::listed::{all, named, page};
use crate::query::{ask, first, read};
use crate::rows::{self, Read};
use crate::shadows::Held;
use crate::statements as sql;

/// Handles as they are under their locks, and as the plans made so far leave them; without a value they are gone.
#[derive(Default)]
pub(crate) struct HandleRows {
    rows: BTreeMap<HandleHash, Option<HandleRow>>,
    /// What was there when it was read.
    old: BTreeSet<HandleHash>,
    /// What is to be written.
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

    /// What a plan makes of them.
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

    /// Those to be inserted, to be updated and to be deleted.
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

/// A handle.
pub(crate) async fn get(
    on: &Connections,
    tenant: TenantId,
    handle_hash: &HandleHash,
) -> Read<Option<HandleRow>> {
    let found = read(on, tenant, sql::handle_get, &[&tenant.uuid(), &&handle_hash.0[..]]).await?;
    let bad = |why| Listing::of("handles").bad(Some(&handle_hash.to_string()), why);
    named(first(&found, handle), bad)
}

/// The commit that a handle's row names.
pub(crate) async fn commit_of(
    on: &Connections,
    tenant: TenantId,
    handle: &HandleHash,
) -> Read<Option<CommitId>> {
    let found = read(on, tenant, sql::handle_commit, &[&tenant.uuid(), &&handle.0[..]]).await?;
    first(&found, |row| Ok(CommitId(rows::get(row, 0)?)))
}

/// Handles that a query is about.
pub(crate) async fn list(on: &Connections, tenant: TenantId, query: &HandleQuery) -> Read<Page<Record>> {
    query.check()?;
    let after = read_handle_cursor(query.cursor.as_deref())?;
    // The beginning is before every handle.
    let after =
        after.map_or_else(|| (Uuid::nil(), Vec::new()), |(run, handle)| (run.uuid(), handle.0.to_vec()));
    // What cannot be written cannot be there.
    let texts = query.workflow.iter().map(Name::as_str).chain(query.created_by.as_deref());
    let mut texts = texts.chain(query.shadows.iter().map(|(name, _)| name.as_str()));
    if texts.any(|text| text.contains('\0')) || query.shadows.iter().any(|(_, value)| !value.fits()) {
        return Ok(Page::of([]));
    }
    let found = match query.shadows.split_first() {
        Some((held, others)) => by_shadow(on, tenant, query, after, held, others).await?,
        None => by_place(on, tenant, query, after).await?,
    };
    Ok(page(&found, Listing::of("handles"), query.limit, cursor, handle)?.map(record))
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
        // The workflow is the last parameter of the statements that look at it.
        (None, None) => (sql::handles_all, 5),
    };
    let (id, limited) = (tenant.uuid(), ask(query.limit));
    let which: [Param<'_>; 6] = [&id, &run, &handle, &query.created_by, &limited, &workflow];
    read(on, tenant, statement, &which[..given]).await
}

/// By the index of the first column; the others are filters.
async fn by_shadow(
    on: &Connections,
    tenant: TenantId,
    query: &HandleQuery,
    (run, handle): (Uuid, Vec<u8>),
    (name, value): &(Name, ShadowValue),
    others: &[(Name, ShadowValue)],
) -> Read<Vec<Row>> {
    let (text, number, boolean) = split(value);
    let (statement, held): (_, Param<'_>) = match value.kind() {
        ShadowType::String => (sql::handles_by_text, &text),
        ShadowType::Number => (sql::handles_by_number, &number),
        ShadowType::Boolean => (sql::handles_by_boolean, &boolean),
    };
    let Held { names, texts, numbers, booleans } = Held::of(others);
    let (id, wanted, limited, name) =
        (tenant.uuid(), query.run.map(RunId::uuid), ask(query.limit), name.as_str());
    let workflow = query.workflow.as_ref().map(Name::as_str);
    let which: [Param<'_>; 13] = [
        &id,
        &run,
        &handle,
        &workflow,
        &query.created_by,
        &wanted,
        &limited,
        &name,
        held,
        &names,
        &texts,
        &numbers,
        &booleans,
    ];
    read(on, tenant, statement, &which).await
}

/// Handles whose delivery is due.
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

/// Handles that were over by a time go, and the shadow columns of the flows that rested there; gives how many handles.
pub(crate) async fn sweep(
    on: &Connections,
    tenant: TenantId,
    expired_by: Timestamp,
    limit: u32,
) -> Read<u64> {
    let id = tenant.uuid();
    let connection = on.get().await?;
    let find = connection.statement(sql::sweep_handles).await?;
    let delete = connection.statement(sql::handles_delete).await?;
    let unshade = connection.statement(sql::purge_shadows).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let begin = on.begin(Sees::Tenant(tenant), Mode::Writes);
    let which: [Param<'_>; 3] = [&id, &expired_by.micros(), &i64::from(limit)];
    let (begun, found) = tokio::join!(connection.begin(&begin), connection.ask(&find, &which));
    begun?;
    let (mut over, mut flows): (Vec<Vec<u8>>, Vec<Uuid>) = (Vec::new(), Vec::new());
    for row in &found? {
        over.push(rows::get(row, 0)?);
        // What cannot be read goes too when it is over.
        if rows::read(row, 1, HandleKind::parse).is_ok_and(|kind| kind == HandleKind::Flow) {
            flows.push(rows::get(row, 2)?);
        }
    }
    let (over_by_hash, of_flows): ([Param<'_>; 2], [Param<'_>; 2]) = ([&id, &over], [&id, &flows]);
    let (gone, bare, ended) = tokio::join!(
        connection.ask(&delete, &over_by_hash),
        connection.ask(&unshade, &of_flows),
        connection.command("commit")
    );
    gone?;
    bare?;
    ended?;
    transaction.over();
    Ok(over.len() as u64)
}
