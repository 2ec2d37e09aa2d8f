//! The queries, each in its own transaction; also one small write, the claim.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::delta;
use stepwell_store::document::{DocumentRow, place_cursor, read_place};
use stepwell_store::plan::{KeyRow, bad_key, decode_results};
use stepwell_store::store::{
    after_prefix, definition_place, due_cursor, key_cursor, page_rows, read_cursor, read_definition_cursor,
    read_due_cursor, read_key_cursor,
};
use stepwell_store::{
    BadRow, Cell, CellFilter, CellKey, CellQuery, Claim, CommitId, CommitRef, CommitTrace, CountQuery,
    Document, DocumentQuery, DueTenant, HistoryQuery, HistoryRow, Listing, Loaded, Page, ProcessId, Record,
    RecordQuery, Recorded, RunRow, Seen, TenantId, WaitFilter, WaitQuery, WaitRow,
};
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use crate::connection::{Begin, Connection, Connections, Mode, Param, Transaction, Visibility};
use crate::listed::{all, named, page, read_listed};
use crate::rows::{self, Read};
use crate::{handles, listing, seals, shadows, statements as sql};

/// Returns the number of rows to query for a page. One extra row shows whether another page follows.
pub(crate) fn ask(limit: u32) -> i64 {
    page_rows(limit) as i64 + 1
}

/// Runs one statement that reads a tenant's rows.
pub(crate) async fn read(
    on: &Connections,
    tenant: TenantId,
    sql: &'static str,
    params: &[Param<'_>],
) -> Read<Vec<Row>> {
    on.one(Visibility::Tenant(tenant), Mode::Reads, sql, params).await
}

pub(crate) fn each<T>(rows: &[Row], value: impl Fn(&Row) -> Read<T>) -> Read<Vec<T>> {
    rows.iter().map(value).collect()
}

pub(crate) fn first<T>(rows: &[Row], value: impl Fn(&Row) -> Read<T>) -> Read<Option<T>> {
    rows.first().map(value).transpose()
}

pub(crate) async fn load(on: &Connections, tenant: TenantId, run: RunId) -> Read<Option<Loaded>> {
    let rows = read(on, tenant, sql::loads, &[&tenant.uuid(), &vec![run.uuid()]]).await?;
    named(first(&rows, rows::loaded), |why| BadRow::run(run, why))
}

/// Returns true if the tenant is recorded in the table `tenants`.
pub(crate) async fn has_tenant(on: &Connections, tenant: TenantId) -> Read<bool> {
    Ok(!read(on, tenant, sql::tenant_get, &[&tenant.uuid()]).await?.is_empty())
}

pub(crate) async fn runs_by_id(
    on: &Connections,
    tenant: TenantId,
    runs: &[Uuid],
) -> Read<HashMap<RunId, RunRow>> {
    let rows = read(on, tenant, sql::runs_get, &[&tenant.uuid(), &runs]).await?;
    let row = |row: &Row| {
        let run = rows::run_id(row, 0)?;
        named(rows::run(row), |why| BadRow::run(run, why))
    };
    Ok(each(&rows, row)?.into_iter().map(|row| (row.run, row)).collect())
}

pub(crate) async fn outcome(
    on: &Connections,
    tenant: TenantId,
    commit: &CommitRef,
) -> Read<Option<Recorded>> {
    match &commit.at {
        CommitTrace::Checkpoint { run, version } => {
            let which: [Param<'_>; 3] = [&tenant.uuid(), &run.uuid(), &rows::int(*version)];
            let found = read(on, tenant, sql::checkpoint_commit, &which).await?;
            let found =
                first(&found, |row| Ok((rows::get::<Uuid>(row, 0)?, row.try_get::<_, Option<Vec<u8>>>(1)?)))?;
            let Some((_, results)) = found.filter(|(id, _)| *id == commit.id.0) else { return Ok(None) };
            Ok(Some(Recorded { results: decode_results(results.as_deref())?, answer: None, request: None }))
        }
        CommitTrace::Handle(handle) => {
            let left = handles::commit_of(on, tenant, handle).await? == Some(commit.id);
            Ok(left.then(|| Recorded { results: Vec::new(), answer: None, request: None }))
        }
        CommitTrace::Key { operation, key } => {
            let row = key_row(on, tenant, operation, key).await?;
            let Some(row) = row.filter(|row| row.commit == commit.id) else { return Ok(None) };
            let results = decode_results(row.results.as_deref())?;
            Ok(Some(Recorded { results, answer: Some(row.answer), request: None }))
        }
        CommitTrace::Audit => {
            let Some(results) = seals::trace(on, tenant, commit.id).await? else { return Ok(None) };
            Ok(Some(Recorded { results: decode_results(results.as_deref())?, answer: None, request: None }))
        }
    }
}

async fn key_row(on: &Connections, tenant: TenantId, operation: &str, key: &str) -> Read<Option<KeyRow>> {
    // PostgreSQL cannot store a NUL character, so no row can match.
    if operation.contains('\0') || key.contains('\0') {
        return Ok(None);
    }
    let found = read(on, tenant, sql::key_get, &[&tenant.uuid(), &operation, &key]).await?;
    named(first(&found, |row| rows::key(row, operation, key)), |why| bad_key(operation, key, why))
}

/// Finds or claims runs: those of expired processes by id, then due runs by their due time. Claimed runs stay locked
/// until they are read, so that their state matches the claim.
pub(crate) async fn claim(on: &Connections, tenant: TenantId, claim: &Claim) -> Read<Page<Loaded>> {
    let connection = on.get().await?;
    let by = claim.by.map(|by| by.0);
    let (orphans, due, mode) = match by {
        Some(_) => (sql::claim_orphans, sql::claim_due, Mode::Writes),
        None => (sql::find_orphans, sql::find_due, Mode::ReadsOnce),
    };
    let (orphans, due) = (connection.statement(orphans).await?, connection.statement(due).await?);
    let loads = connection.statement(sql::loads).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let mut begin = Some(on.begin(Visibility::Tenant(tenant), mode));
    let expired: Vec<Uuid> = claim.expired.iter().map(|process| process.0).collect();
    let known = claim.definitions.as_ref();
    let known: Option<Vec<&[u8]>> =
        known.map(|known| known.iter().map(|hash| &hash.as_bytes()[..]).collect());
    let (id, now, limit) = (tenant.uuid(), claim.now.micros(), i64::from(claim.limit));
    // The statements that claim have one more parameter at the end: the new owner.
    let given = if by.is_some() { 5 } else { 4 };
    let mut taken: Vec<Uuid> = Vec::new();
    if !expired.is_empty() {
        let which: [Param<'_>; 5] = [&id, &expired, &known, &limit, &by];
        taken = found(connection, begin.take(), &orphans, &which[..given]).await?;
    }
    let orphaned: HashSet<Uuid> = taken.iter().copied().collect();
    let room = limit - taken.len() as i64;
    if room > 0 {
        let which: [Param<'_>; 5] = [&id, &now, &known, &room, &by];
        taken.extend(found(connection, begin.take(), &due, &which[..given]).await?);
    }
    let which: [Param<'_>; 2] = [&id, &taken];
    let (rows, ended) = tokio::join!(connection.ask(&loads, &which), connection.command("commit"));
    let rows = rows?;
    ended?;
    transaction.over();
    let mut loaded = Page::all(all(&rows, Listing::of("runs"), run_cursor, rows::loaded)?);
    loaded.items.sort_by_key(|loaded| {
        let run = loaded.head.run;
        let wake = loaded.head.wake.filter(|_| !orphaned.contains(&run.uuid()));
        (wake, run)
    });
    Ok(loaded)
}

pub(crate) fn run_cursor(row: &Row) -> Read<String> {
    Ok(rows::run_id(row, 0)?.to_string())
}

/// Returns the ids that a statement finds. Begins the transaction first, if it has not begun.
async fn found(
    connection: &Connection,
    begin: Option<Begin>,
    statement: &Statement,
    params: &[Param<'_>],
) -> Read<Vec<Uuid>> {
    let begun = async {
        match &begin {
            Some(begin) => connection.begin(begin).await,
            None => Ok(()),
        }
    };
    let (begun, rows) = tokio::join!(begun, connection.ask(statement, params));
    begun?;
    each(&rows?, |row| rows::get(row, 0))
}

pub(crate) async fn tenants(on: &Connections, after: Option<TenantId>, limit: u32) -> Read<Vec<TenantId>> {
    let after = after.map(TenantId::uuid);
    let which: [Param<'_>; 2] = [&after, &i64::from(limit)];
    let rows = on.spanning(sql::tenants_after, &which).await?;
    each(&rows, |row| Ok(TenantId::new(rows::get(row, 0)?)))
}

/// Returns the tenants that have work, with their earliest due time. A tenant is due since [`Timestamp::MIN`] if an
/// expired process owns one of its runs. With a list of alive processes, the same holds for any owner that is not in
/// it.
pub(crate) async fn due(
    on: &Connections,
    expired: &[ProcessId],
    alive: Option<&[Uuid]>,
) -> Read<Vec<DueTenant>> {
    let expired: Vec<Uuid> = expired.iter().map(|process| process.0).collect();
    let statement = if on.has_citus() { sql::due_spread } else { sql::due };
    let which: [Param<'_>; 3] = [&expired, &alive, &Timestamp::MIN.micros()];
    let rows = on.spanning(statement, &which).await?;
    let mut found = Vec::new();
    for row in &rows {
        if let Some(at) = rows::instant(row, 1)? {
            found.push(DueTenant { tenant: TenantId::new(rows::get(row, 0)?), at });
        }
    }
    found.sort_unstable();
    Ok(found)
}

pub(crate) async fn cells(on: &Connections, tenant: TenantId, query: &CellQuery) -> Read<Page<Cell>> {
    let CellQuery { space, owner, filter, now, include_deleted, limit, cursor } = query;
    let (id, word) = (tenant.uuid(), space.as_str());
    let prefix = match filter {
        CellFilter::Key(key) => {
            let rows = read(on, tenant, sql::cell_get, &[&id, &word, owner, key]).await?;
            let cell = first(&rows, |row| rows::whole_cell(row, 0, *space, owner))?;
            let wanted = |cell: &Cell| {
                (*include_deleted || cell.live(*now).is_some())
                    && cursor.as_ref().is_none_or(|cursor| cell.key.key > *cursor)
            };
            return Ok(Page::of(cell.into_iter().filter(wanted)));
        }
        CellFilter::Prefix(prefix) => prefix,
    };
    let (end, after) = (after_prefix(prefix), cursor.as_deref().unwrap_or_default());
    let which: [Param<'_>; 9] =
        [&id, &word, owner, prefix, &end, &after, include_deleted, &now.micros(), &ask(*limit)];
    let rows = read(on, tenant, sql::cells_list, &which).await?;
    let within = CellKey { space: *space, owner: owner.clone(), key: String::new() }.address();
    let of = Listing { table: "cells", within: &within, run: None };
    page(&rows, of, *limit, |row| rows::get(row, 0), |row| rows::whole_cell(row, 0, *space, owner))
}

pub(crate) async fn waits(on: &Connections, tenant: TenantId, query: &WaitQuery) -> Read<Page<WaitRow>> {
    let WaitQuery { of, limit, cursor } = query;
    if *of == WaitFilter::Due {
        return due_waits(on, tenant.uuid(), *limit, cursor.as_deref()).await;
    }
    let (after, activation) = after(cursor.as_deref())?;
    let rows = match of {
        WaitFilter::All => {
            let which: [Param<'_>; 4] = [&tenant.uuid(), &after, &activation, &ask(*limit)];
            read(on, tenant, sql::waits_all, &which).await?
        }
        WaitFilter::Due => Vec::new(),
        WaitFilter::Topic(topic) => {
            let which: [Param<'_>; 5] = [&tenant.uuid(), topic, &after, &activation, &ask(*limit)];
            read(on, tenant, sql::waits_of_topic, &which).await?
        }
        WaitFilter::FirstTopic { from, before } => {
            let which: [Param<'_>; 3] = [&tenant.uuid(), from, before];
            read(on, tenant, sql::waits_first, &which).await?
        }
        WaitFilter::Topics { from, before } => {
            let most = stepwell_store::store::page_rows(*limit) as i64;
            let which: [Param<'_>; 4] = [&tenant.uuid(), from, before, &most];
            read(on, tenant, sql::waits_range, &which).await?
        }
        WaitFilter::Run(run) => {
            let activation = match after.cmp(&run.uuid()) {
                Ordering::Less => -1,
                Ordering::Equal => activation,
                Ordering::Greater => i64::MAX,
            };
            let which: [Param<'_>; 4] = [&tenant.uuid(), &run.uuid(), &activation, &ask(*limit)];
            read(on, tenant, sql::waits_of_run, &which).await?
        }
    };
    let cursor = |row: &Row| Ok(format!("{}:{}", rows::run_id(row, 0)?, rows::unsigned(row, 1)?));
    let mut found = page(&rows, Listing::of("waits"), *limit, cursor, rows::wait)?;
    if matches!(of, WaitFilter::FirstTopic { .. }) && !found.bad.is_empty() {
        found.next = rows.first().map(|row| rows::get::<String>(row, 6)).transpose()?;
    }
    Ok(found)
}

/// Lists waits in the order of due time, run and activation.
async fn due_waits(on: &Connections, id: Uuid, limit: u32, cursor: Option<&str>) -> Read<Page<WaitRow>> {
    let (due, run, activation) = read_due_cursor(cursor)?;
    let which: [Param<'_>; 5] = [&id, &due.micros(), &run.uuid(), &activation, &ask(limit)];
    let rows = read(on, TenantId::new(id), sql::waits_due, &which).await?;
    let cursor =
        |row: &Row| Ok(due_cursor(rows::at(row, 7)?, rows::run_id(row, 0)?, rows::unsigned(row, 1)?));
    page(&rows, Listing::of("waits"), limit, cursor, rows::wait)
}

/// Returns the position after which a listing by id and number continues; without a cursor it is before every row.
pub(crate) fn after(cursor: Option<&str>) -> Read<(Uuid, i64)> {
    Ok(match read_cursor(cursor)? {
        Some((id, number)) => (id, rows::int(number)),
        None => (Uuid::nil(), -1),
    })
}

pub(crate) async fn history(
    on: &Connections,
    tenant: TenantId,
    query: &HistoryQuery,
) -> Read<Page<HistoryRow>> {
    let HistoryQuery { run, from, with_state, limit } = query;
    let of = Listing::of_run("checkpoints", *run);
    let (id, run, from) = (tenant.uuid(), run.uuid(), rows::int(*from));
    let which: [Param<'_>; 5] = [&id, &run, &from, &ask(*limit), with_state];
    let (found, before) = if *with_state {
        history_with_base(on, tenant, &which).await?
    } else {
        (read(on, tenant, sql::history, &which).await?, Vec::new())
    };
    // A state that is built on an unreadable one is unreadable too.
    let mut before = match &before[..] {
        [] => None,
        before => delta::read(before.iter().map(Vec::as_slice)).ok(),
    };
    let mut all: Vec<Seen<HistoryRow>> = Vec::new();
    for row in &found {
        let last = before.take();
        let read = || {
            let body: Option<&[u8]> = rows::get(row, 4)?;
            Ok(HistoryRow {
                version: rows::unsigned(row, 0)?,
                at: rows::at(row, 1)?,
                commit: CommitId(rows::get(row, 2)?),
                entry: delta::read_entry(rows::get(row, 3)?)?,
                state: body.map(|body| delta::read_one(last.as_deref(), body)).transpose()?,
            })
        };
        let row = read_listed(of, Some((rows::unsigned(row, 0)? + 1).to_string()), read())?;
        before = row.1.as_ref().ok().and_then(|row| row.state.clone());
        all.push(row);
    }
    Ok(Page::sorted(all, *limit)?)
}

/// Returns a part of a history, and the stored states before it that its first state is built from.
async fn history_with_base(
    on: &Connections,
    tenant: TenantId,
    which: &[Param<'_>; 5],
) -> Read<(Vec<Row>, Vec<Vec<u8>>)> {
    let connection = on.get().await?;
    let history = connection.statement(sql::history).await?;
    let base = connection.statement(sql::history_base).await?;
    let begin = on.begin(Visibility::Tenant(tenant), Mode::ReadsOnce);
    let (begun, history, base, ended) = tokio::join!(
        connection.begin(&begin),
        connection.ask(&history, which),
        connection.ask(&base, &which[..3]),
        connection.command("commit")
    );
    begun?;
    let (history, base) = (history?, base?);
    ended?;
    Ok((history, each(&base, |row| rows::get(row, 0))?))
}

pub(crate) async fn documents(
    on: &Connections,
    tenant: TenantId,
    query: &DocumentQuery,
) -> Read<Page<Document>> {
    let DocumentQuery { run, at, key, kind, tag, limit, cursor } = query;
    let after = read_place(cursor.as_deref())?;
    let (id, run_id) = (tenant.uuid(), run.uuid());
    let document = |row: &Row| rows::document(row, *run);
    let of = Listing::of_run("documents", *run);
    if let Some(key) = key {
        let which: [Param<'_>; 4] = [&id, &run_id, key, &rows::int(at.unwrap_or(u64::MAX))];
        let found = read(on, tenant, sql::document_get, &which).await?;
        let wanted =
            |row: &DocumentRow| query.matches(&row.document) && after.is_none_or(|after| row.place() > after);
        let found = named(first(&found, document), |why| of.bad(Some(key), why))?;
        return Ok(Page::of(found.filter(wanted)).map(|row| row.document));
    }
    let (version, ordinal) =
        after.map_or((-1, -1), |(version, ordinal)| (rows::int(version), rows::int(ordinal)));
    let (kind, asked, at) = (kind.as_ref().map(Name::as_str), ask(*limit), at.map(rows::int));
    let which: [Param<'_>; 8] = [&id, &run_id, &version, &ordinal, &kind, tag, &asked, &at];
    let found = match at {
        None => read(on, tenant, sql::documents_now, &which[..7]).await?,
        Some(_) => read(on, tenant, sql::documents_at, &which).await?,
    };
    let cursor = |row: &Row| Ok(place_cursor((rows::unsigned(row, 4)?, rows::unsigned(row, 7)?)));
    Ok(page(&found, of, *limit, cursor, document)?.map(|row| row.document))
}

pub(crate) async fn records(on: &Connections, tenant: TenantId, query: &RecordQuery) -> Read<Page<Record>> {
    let one = |item: Option<Record>| Page::of(item);
    match query {
        RecordQuery::Definition(hash) => {
            let which: [Param<'_>; 2] = [&tenant.uuid(), &&hash.as_bytes()[..]];
            let rows = read(on, tenant, sql::definition_get, &which).await?;
            let bad = |why| Listing::of("definitions").bad(Some(&hash.to_string()), why);
            Ok(one(named(first(&rows, rows::definition), bad)?.map(Record::Definition)))
        }
        RecordQuery::Definitions { workflow, limit, cursor } => {
            definitions(on, tenant, workflow.as_ref(), *limit, cursor.as_deref()).await
        }
        RecordQuery::Key { operation, key, now } => {
            let row = key_row(on, tenant, operation, key).await?.filter(|row| row.holds(*now));
            Ok(one(row.map(|row| row.recorded()).transpose()?.map(Record::Key)))
        }
        RecordQuery::Keys { limit, cursor } => {
            let (operation, key) = read_key_cursor(cursor.as_deref())?;
            let which: [Param<'_>; 4] = [&tenant.uuid(), &operation, &key, &ask(*limit)];
            let rows = read(on, tenant, sql::keys_list, &which).await?;
            let cursor = |row: &Row| Ok(key_cursor(rows::get(row, 6)?, rows::get(row, 7)?));
            let record = |row: &Row| {
                Ok(rows::key(row, rows::get(row, 6)?, rows::get(row, 7)?)?.recorded().map(Record::Key)?)
            };
            page(&rows, Listing::of("idempotency"), *limit, cursor, record)
        }
        RecordQuery::Audit { limit, cursor } => {
            seals::audit(on, tenant, None, *limit, cursor.as_deref()).await
        }
        RecordQuery::AuditOfRun { run, limit, cursor } => {
            seals::audit(on, tenant, Some(*run), *limit, cursor.as_deref()).await
        }
        RecordQuery::Seals { from, limit } => seals::seals(on, tenant, *from, *limit).await,
        RecordQuery::Unsealed { limit, cursor } => {
            seals::unsealed(on, tenant, *limit, cursor.as_deref()).await
        }
        RecordQuery::Shadows(run) => Ok(shadows::of_run(on, tenant, *run).await?.map(Record::Shadow)),
        RecordQuery::ShadowsOf(runs) => {
            Ok(Page::of(shadows::of_runs(on, tenant, runs).await?).map(Record::Shadow))
        }
        RecordQuery::Handle(handle) => {
            Ok(one(handles::get(on, tenant, handle).await?.map(|row| Record::Handle(Box::new(row)))))
        }
        RecordQuery::Handles(query) => handles::list(on, tenant, query).await,
        RecordQuery::Undelivered { now, limit } => handles::undelivered(on, tenant, *now, *limit).await,
        // The store answers these itself, because it knows which sessions are lost.
        RecordQuery::AliveProcess { .. } | RecordQuery::Processes { .. } => Ok(one(None)),
        RecordQuery::RunCounts(filter) => {
            let counts = listing::counts(on, tenant, filter).await?;
            Ok(Page::of(counts.into_iter().map(Record::RunCount)))
        }
        RecordQuery::Count { of, limit, cursor } => tally(on, tenant, of, *limit, cursor.as_deref()).await,
    }
}

async fn definitions(
    on: &Connections,
    tenant: TenantId,
    workflow: Option<&Name>,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let after = read_definition_cursor(cursor)?;
    let beginning = (Name::from(""), -1, Vec::new());
    let place = |(name, version, hash): (Name, u32, DefinitionHash)| {
        (name, i64::from(version), hash.as_bytes().to_vec())
    };
    let (mut name, mut version, mut hash) = after.map_or_else(|| beginning.clone(), place);
    let mut statement = sql::definitions_all;
    if let Some(workflow) = workflow {
        statement = sql::definitions_of_workflow;
        match name.cmp(workflow) {
            Ordering::Less => (_, version, hash) = beginning,
            Ordering::Equal => {}
            Ordering::Greater => version = i64::MAX,
        }
        name = workflow.clone();
    }
    let which: [Param<'_>; 5] = [&tenant.uuid(), &name.as_str(), &version, &hash, &ask(limit)];
    let rows = read(on, tenant, statement, &which).await?;
    let cursor = |row: &Row| {
        let version = rows::get::<i64>(row, 2)? as u32;
        Ok(definition_place(rows::get(row, 1)?, version, rows::hash(row, 0)?))
    };
    Ok(page(&rows, Listing::of("definitions"), limit, cursor, rows::definition)?.map(Record::Definition))
}

async fn tally(
    on: &Connections,
    tenant: TenantId,
    of: &CountQuery,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let (id, after, asked) = (tenant.uuid(), cursor.unwrap_or_default(), ask(limit));
    let which: [Param<'_>; 3] = [&id, &after, &asked];
    let rows = match of {
        CountQuery::Keys { now } => {
            let which: [Param<'_>; 4] = [&id, &after, &asked, &now.micros()];
            read(on, tenant, sql::tally_keys, &which).await?
        }
        CountQuery::Links => read(on, tenant, sql::tally_links, &which).await?,
        CountQuery::Types { namespace } => {
            let which: [Param<'_>; 4] = [&id, &after, &asked, namespace];
            read(on, tenant, sql::tally_types, &which).await?
        }
        CountQuery::Relations { namespace } => {
            let which: [Param<'_>; 4] = [&id, &after, &asked, namespace];
            read(on, tenant, sql::tally_relations, &which).await?
        }
        CountQuery::Runs { max } => {
            let which: [Param<'_>; 4] = [&id, &after, &asked, &i64::from(*max)];
            read(on, tenant, sql::tally_runs, &which).await?
        }
    };
    let found = each(&rows, |row| Ok((rows::get::<String>(row, 0)?, rows::unsigned(row, 1)?)))?;
    Ok(Page::cut(found, limit, |(name, _)| name.clone()).map(|(name, count)| Record::Count { name, count }))
}
