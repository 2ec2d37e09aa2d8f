//! The queries, each a function on a connection inside one transaction; also two small writes, the claim and the
//! heartbeat.

use std::cmp::Ordering;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::delta;
use stepwell_store::document::{DocumentRow, place_cursor, read_place};
use stepwell_store::plan::{bad_key, decode_results};
use stepwell_store::store::{
    after_prefix, definition_place, due_cursor, key_cursor, page_rows, read_cursor, read_definition_cursor,
    read_due_cursor, read_key_cursor,
};
use stepwell_store::{
    Cell, CellFilter, CellKey, CellQuery, Claim, CommitId, CommitRef, CommitTrace, CountQuery, Document,
    DocumentQuery, DueTenant, Heartbeat, HistoryQuery, HistoryRow, Listing, Loaded, Membership, Page,
    ProcessId, Record, RecordQuery, Recorded, RunRow, Seen, StoredMessage, TenantId, WaitFilter, WaitQuery,
    WaitRow,
};
use uuid::Uuid;

use crate::apply::run_row;
use crate::listed::{named, page, read_listed, unreadable_reason};
use crate::reader::ReadError;
use crate::statements as sql;
use crate::{handles, listed, listing, rows, seals, shadows};

pub(crate) type Read<T> = Result<T, ReadError>;

/// Returns the number of rows to query for a page. One extra row shows whether another page follows.
pub(crate) fn fetch_limit(limit: u32) -> i64 {
    page_rows(limit) as i64 + 1
}

pub(crate) fn load(connection: &Connection, tenant: TenantId, run: RunId) -> Read<Option<Loaded>> {
    run_row(connection, tenant, run)?.map(|row| loaded(connection, tenant, row)).transpose()
}

fn loaded(connection: &Connection, tenant: TenantId, row: RunRow) -> Read<Loaded> {
    let bad = |table, error: ReadError| match unreadable_reason(&error) {
        Some(why) => Ok(Listing::of_run(table, row.run).bad(None, why)),
        None => Err(error),
    };
    let state = match chain(connection, tenant, row.run, row.chain.base, row.version) {
        Ok(state) => state,
        Err(error) => return bad("checkpoints", error).map(|bad| row.damaged(bad)),
    };
    match inbox(connection, tenant, row.run) {
        Ok(inbox) => Ok(row.loaded(state, inbox)),
        Err(error) => bad("inbox", error).map(|bad| row.damaged(bad)),
    }
}

fn inbox(connection: &Connection, tenant: TenantId, run: RunId) -> Read<Vec<StoredMessage>> {
    let mut statement = connection.prepare_cached(sql::inbox_list)?;
    let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes()];
    Ok(statement.query_map(which, rows::message)?.collect::<rusqlite::Result<_>>()?)
}

/// Returns the state at a version, rebuilt from the full state at `base` and the deltas after it.
fn chain(connection: &Connection, tenant: TenantId, run: RunId, base: u64, version: u64) -> Read<Bytes> {
    let mut statement = connection.prepare_cached(sql::checkpoint_chain)?;
    let which =
        params![tenant.uuid().into_bytes(), run.uuid().into_bytes(), rows::int(base), rows::int(version)];
    let bodies = statement.query_map(which, |row| row.get::<_, Vec<u8>>(0))?;
    let bodies = bodies.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(delta::read(bodies.iter().map(Vec::as_slice))?)
}

pub(crate) fn outcome(
    connection: &Connection,
    tenant: TenantId,
    commit: &CommitRef,
) -> Read<Option<Recorded>> {
    let same = |id: [u8; 16]| id == commit.id.0.into_bytes();
    match &commit.at {
        CommitTrace::Checkpoint { run, version } => {
            let mut statement = connection.prepare_cached(sql::checkpoint_commit)?;
            let which = params![tenant.uuid().into_bytes(), run.uuid().into_bytes(), rows::int(*version)];
            let found =
                statement.query_row(which, |row| Ok((row.get(0)?, row.get::<_, Option<Vec<u8>>>(1)?)));
            let Some((_, results)) = found.optional()?.filter(|(id, _)| same(*id)) else { return Ok(None) };
            Ok(Some(Recorded { results: decode_results(results.as_deref())?, answer: None, request: None }))
        }
        CommitTrace::Handle(handle) => {
            let found = handles::commit_of(connection, tenant, handle)?.filter(|id| same(*id));
            Ok(found.map(|_| Recorded { results: Vec::new(), answer: None, request: None }))
        }
        CommitTrace::Key { operation, key } => {
            let row = key_row(connection, tenant, operation, key)?;
            let Some(row) = row.filter(|row| row.commit == commit.id) else { return Ok(None) };
            let results = decode_results(row.results.as_deref())?;
            Ok(Some(Recorded { results, answer: Some(row.answer), request: None }))
        }
        CommitTrace::Audit => {
            let Some(results) = seals::trace(connection, tenant, commit.id)? else { return Ok(None) };
            Ok(Some(Recorded { results: decode_results(results.as_deref())?, answer: None, request: None }))
        }
    }
}

fn key_row(
    connection: &Connection,
    tenant: TenantId,
    operation: &str,
    key: &str,
) -> rusqlite::Result<Option<stepwell_store::plan::KeyRow>> {
    let mut statement = connection.prepare_cached(sql::key_get)?;
    let which = params![tenant.uuid().into_bytes(), operation, key];
    let found = statement.query_row(which, |row| rows::key(row, operation, key)).optional();
    named(found, |why| bad_key(operation, key, why))
}

pub(crate) fn claim(connection: &Connection, tenant: TenantId, claim: &Claim) -> Read<Page<Loaded>> {
    let id = tenant.uuid();
    let definitions =
        claim.definitions.as_ref().map(|known| rows::hex_list(known.iter().map(DefinitionHash::as_bytes)));
    let mut found: Vec<Seen<RunRow>> = Vec::new();
    let mut add = |statement: &str, which: &[&dyn ToSql]| -> Read<usize> {
        let mut statement = connection.prepare_cached(statement)?;
        found.extend(listed::all(&mut statement, which, Listing::of("runs"), run_cursor, rows::run)?);
        Ok(found.len())
    };
    let mut taken = 0;
    if !claim.expired.is_empty() {
        let expired = rows::hex_list(claim.expired.iter().map(|process| process.0.into_bytes()));
        taken = add(sql::claim_orphans, params![id.into_bytes(), expired, definitions, claim.limit])?;
    }
    let room = claim.limit.saturating_sub(taken as u32);
    if room > 0 {
        add(sql::claim_due, params![id.into_bytes(), claim.now.micros(), definitions, room])?;
    }
    let Page { items, next: _, bad } = Page::all(found);
    let mut taken = Vec::with_capacity(items.len());
    for mut row in items {
        if let Some(by) = claim.by {
            let mut statement = connection.prepare_cached(sql::claim_take)?;
            statement.execute(params![id.into_bytes(), row.run.uuid().into_bytes(), by.0.into_bytes()])?;
            row.claimed(by);
        }
        taken.push(loaded(connection, tenant, row)?);
    }
    Ok(Page { items: taken, next: None, bad })
}

pub(crate) fn run_cursor(row: &Row<'_>) -> rusqlite::Result<String> {
    Ok(rows::run_id(row, 0)?.to_string())
}

pub(crate) fn tenants(connection: &Connection, after: Option<TenantId>, limit: u32) -> Read<Vec<TenantId>> {
    let mut statement = connection.prepare_cached(sql::tenant_next)?;
    let mut last = after.map(|after| after.uuid().into_bytes().to_vec()).unwrap_or_default();
    let mut found = Vec::new();
    while found.len() < limit as usize {
        let next: Option<[u8; 16]> = statement.query_row([&last], |row| row.get(0))?;
        let Some(next) = next else { break };
        found.push(TenantId::new(Uuid::from_bytes(next)));
        last = next.to_vec();
    }
    Ok(found)
}

pub(crate) fn due(connection: &Connection, expired: &[ProcessId]) -> Read<Vec<DueTenant>> {
    let tenant = |row: &Row<'_>| Ok(TenantId::new(Uuid::from_bytes(row.get(0)?)));
    let mut found = std::collections::BTreeMap::new();
    let mut statement = connection.prepare_cached(sql::due)?;
    let free = statement.query_map([], |row| Ok((tenant(row)?, Timestamp::from_micros(row.get(1)?))))?;
    for row in free {
        let (tenant, at) = row?;
        found.insert(tenant, at);
    }
    if !expired.is_empty() {
        let expired = rows::hex_list(expired.iter().map(|process| process.0.into_bytes()));
        let mut statement = connection.prepare_cached(sql::due_orphans)?;
        for tenant in statement.query_map([expired], tenant)? {
            found.insert(tenant?, Timestamp::MIN);
        }
    }
    Ok(found.into_iter().map(|(tenant, at)| DueTenant { tenant, at }).collect())
}

pub(crate) fn heartbeat(connection: &Connection, heartbeat: &Heartbeat) -> Read<Membership> {
    let until = heartbeat.now.plus_ms(heartbeat.lease_ms).micros();
    connection
        .prepare_cached(sql::process_heartbeat)?
        .execute(params![heartbeat.process.0.into_bytes(), until])?;
    connection.prepare_cached(sql::process_owners)?.execute([Timestamp::MIN.micros()])?;
    connection.prepare_cached(sql::process_forget)?.execute([heartbeat.now.micros()])?;
    let mut statement = connection.prepare_cached(sql::process_expired)?;
    let expired =
        statement.query_map([heartbeat.now.micros()], |row| Ok(ProcessId(Uuid::from_bytes(row.get(0)?))))?;
    let expired = expired.collect::<rusqlite::Result<_>>()?;
    let mut statement = connection.prepare_cached(sql::process_count_alive)?;
    let alive = statement.query_row([heartbeat.now.micros()], |row| row.get::<_, u32>(0))?;
    Ok(Membership { expired, alive: alive.into(), clock: None })
}

/// Expires every recorded process, because only this process has the database open.
pub(crate) fn expire_processes(connection: &Connection) -> rusqlite::Result<()> {
    let ever = [Timestamp::MIN.micros()];
    connection.execute(sql::process_expire, ever)?;
    connection.execute(sql::process_owners, ever)?;
    Ok(())
}

pub(crate) fn cells(connection: &Connection, tenant: TenantId, query: &CellQuery) -> Read<Page<Cell>> {
    let CellQuery { space, owner, filter, now, include_deleted, limit, cursor } = query;
    if let CellFilter::Key(key) = filter {
        let mut statement = connection.prepare_cached(sql::cell_get)?;
        let which = params![tenant.uuid().into_bytes(), space.as_str(), owner, key];
        let cell = statement.query_row(which, |row| rows::whole_cell(row, *space, owner)).optional()?;
        let wanted = |cell: &Cell| {
            (*include_deleted || cell.live(*now).is_some())
                && cursor.as_ref().is_none_or(|cursor| cell.key.key > *cursor)
        };
        return Ok(Page::of(cell.into_iter().filter(wanted)));
    }
    let CellFilter::Prefix(prefix) = filter else { return Ok(Page::of([])) };
    let mut statement = connection.prepare_cached(sql::cells_list)?;
    // SQLite sorts a blob after every text, so it means "no end".
    let end =
        after_prefix(prefix).map_or(rusqlite::types::Value::Blob(Vec::new()), rusqlite::types::Value::Text);
    let which = params![
        tenant.uuid().into_bytes(),
        space.as_str(),
        owner,
        prefix,
        end,
        cursor.as_deref().unwrap_or_default(),
        include_deleted,
        now.micros(),
        fetch_limit(*limit)
    ];
    let within = CellKey { space: *space, owner: owner.clone(), key: String::new() }.address();
    let of = Listing { table: "cells", within: &within, run: None };
    page(&mut statement, which, of, *limit, |row| row.get(0), |row| rows::whole_cell(row, *space, owner))
}

pub(crate) fn waits(connection: &Connection, tenant: TenantId, query: &WaitQuery) -> Read<Page<WaitRow>> {
    let WaitQuery { of, limit, cursor } = query;
    let id = tenant.uuid();
    if *of == WaitFilter::Due {
        return due_waits(connection, id, *limit, cursor.as_deref());
    }
    let (after, activation) = after(cursor.as_deref())?;
    let listed = |statement: &str, which: &[&dyn ToSql]| {
        let mut statement = connection.prepare_cached(statement)?;
        let cursor = |row: &Row<'_>| Ok(format!("{}:{}", rows::run_id(row, 0)?, rows::unsigned(row, 1)?));
        page(&mut statement, which, Listing::of("waits"), *limit, cursor, rows::wait)
    };
    match of {
        WaitFilter::All => {
            listed(sql::waits_all, params![id.into_bytes(), after, activation, fetch_limit(*limit)])
        }
        WaitFilter::Due => Ok(Page::of([])),
        WaitFilter::Topic(topic) => listed(
            sql::waits_of_topic,
            params![id.into_bytes(), topic, after, activation, fetch_limit(*limit)],
        ),
        WaitFilter::FirstTopic { from, before } => {
            let mut found = listed(sql::waits_first, params![id.into_bytes(), from, before])?;
            if !found.bad.is_empty() {
                let mut statement = connection.prepare_cached(sql::waits_first)?;
                let topic = |row: &Row<'_>| row.get::<_, String>(6);
                found.next = Some(statement.query_row(params![id.into_bytes(), from, before], topic)?);
            }
            Ok(found)
        }
        WaitFilter::Topics { from, before } => {
            let most = stepwell_store::store::page_rows(*limit) as i64;
            listed(sql::waits_range, params![id.into_bytes(), from, before, most])
        }
        WaitFilter::Run(run) => {
            let activation = match after.as_slice().cmp(run.uuid().as_bytes()) {
                Ordering::Less => -1,
                Ordering::Equal => activation,
                Ordering::Greater => i64::MAX,
            };
            listed(
                sql::waits_of_run,
                params![id.into_bytes(), run.uuid().into_bytes(), activation, fetch_limit(*limit)],
            )
        }
    }
}

/// Lists waits in the order of due time, run and activation.
fn due_waits(connection: &Connection, tenant: Uuid, limit: u32, cursor: Option<&str>) -> Read<Page<WaitRow>> {
    let (due, run, activation) = read_due_cursor(cursor)?;
    let mut statement = connection.prepare_cached(sql::waits_due)?;
    let which =
        params![tenant.into_bytes(), due.micros(), run.uuid().into_bytes(), activation, fetch_limit(limit)];
    let cursor = |row: &Row<'_>| {
        let due = Timestamp::from_micros(row.get(7)?);
        Ok(due_cursor(due, rows::run_id(row, 0)?, rows::unsigned(row, 1)?))
    };
    page(&mut statement, which, Listing::of("waits"), limit, cursor, rows::wait)
}

/// Returns the position after which a listing by id and number continues; without a cursor it is before every row.
pub(crate) fn after(cursor: Option<&str>) -> Read<(Vec<u8>, i64)> {
    Ok(match read_cursor(cursor)? {
        Some((id, number)) => (id.as_bytes().to_vec(), rows::int(number)),
        None => (Vec::new(), -1),
    })
}

pub(crate) fn history(
    connection: &Connection,
    tenant: TenantId,
    query: &HistoryQuery,
) -> Read<Page<HistoryRow>> {
    let HistoryQuery { run, from, with_state, limit } = query;
    let mut statement = connection.prepare_cached(sql::history)?;
    let (tenant_id, run_id) = (tenant.uuid().into_bytes(), run.uuid().into_bytes());
    let which = params![tenant_id, run_id, rows::int(*from), fetch_limit(*limit), with_state];
    let mut found = statement.query(which)?;
    let mut all: Vec<Seen<HistoryRow>> = Vec::new();
    let mut before: Option<Bytes> = None;
    let of = Listing::of_run("checkpoints", *run);
    while let Some(row) = found.next()? {
        let last = before.take();
        let read = |row: &Row<'_>| -> Read<HistoryRow> {
            let version = rows::unsigned(row, 0)?;
            let state = if *with_state {
                let (body, base): (Vec<u8>, u64) = (row.get(4)?, rows::unsigned(row, 5)?);
                Some(match &last {
                    None if base < version => chain(connection, tenant, *run, base, version)?,
                    last => delta::read_one(last.as_deref(), &body)?,
                })
            } else {
                None
            };
            Ok(HistoryRow {
                version,
                at: Timestamp::from_micros(row.get(1)?),
                commit: CommitId(Uuid::from_bytes(row.get(2)?)),
                entry: delta::read_entry(&row.get::<_, Vec<u8>>(3)?)?,
                state,
            })
        };
        let cursor = |row: &Row<'_>| Ok((rows::unsigned(row, 0)? + 1).to_string());
        let row = read_listed(of, row, cursor, read)?;
        before = row.1.as_ref().ok().and_then(|row| row.state.clone());
        all.push(row);
    }
    Ok(Page::sorted(all, *limit)?)
}

pub(crate) fn documents(
    connection: &Connection,
    tenant: TenantId,
    query: &DocumentQuery,
) -> Read<Page<Document>> {
    let DocumentQuery { run, at, key, kind, tag, limit, cursor } = query;
    let after = read_place(cursor.as_deref())?;
    let (tenant, id) = (tenant.uuid().into_bytes(), run.uuid().into_bytes());
    let of = Listing::of_run("documents", *run);
    let row = |row: &Row<'_>| rows::document(row, *run);
    if let Some(key) = key {
        let mut statement = connection.prepare_cached(sql::document_get)?;
        let found = statement.query_row(params![tenant, id, key, rows::int(at.unwrap_or(u64::MAX))], row);
        let wanted =
            |row: &DocumentRow| query.matches(&row.document) && after.is_none_or(|after| row.place() > after);
        let found = named(found.optional(), |why| of.bad(Some(key), why))?;
        return Ok(Page::of(found.filter(wanted)).map(|row| row.document));
    }
    let (version, ordinal) =
        after.map_or((-1, -1), |(version, ordinal)| (rows::int(version), rows::int(ordinal)));
    let kind = kind.as_ref().map(Name::as_str);
    let mut statement =
        connection.prepare_cached(if at.is_some() { sql::documents_at } else { sql::documents_now })?;
    let cursor = |row: &Row<'_>| Ok(place_cursor((rows::unsigned(row, 4)?, rows::unsigned(row, 7)?)));
    let found = match at {
        None => {
            let which = params![tenant, id, version, ordinal, kind, tag, fetch_limit(*limit)];
            page(&mut statement, which, of, *limit, cursor, row)?
        }
        Some(at) => {
            let which = params![tenant, id, version, ordinal, kind, tag, fetch_limit(*limit), rows::int(*at)];
            page(&mut statement, which, of, *limit, cursor, row)?
        }
    };
    Ok(found.map(|row| row.document))
}

pub(crate) fn records(connection: &Connection, tenant: TenantId, query: &RecordQuery) -> Read<Page<Record>> {
    let one = |item: Option<Record>| Page::of(item);
    match query {
        RecordQuery::Definition(hash) => {
            let mut statement = connection.prepare_cached(sql::definition_get)?;
            let which = params![tenant.uuid().into_bytes(), hash.as_bytes()];
            let found = statement.query_row(which, rows::definition).optional();
            let found = named(found, |why| Listing::of("definitions").bad(Some(&hash.to_string()), why))?;
            Ok(one(found.map(Record::Definition)))
        }
        RecordQuery::Definitions { workflow, limit, cursor } => {
            definitions(connection, tenant, workflow.as_ref(), *limit, cursor.as_deref())
        }
        RecordQuery::Key { operation, key, now } => {
            let row = key_row(connection, tenant, operation, key)?.filter(|row| row.holds(*now));
            Ok(one(row.map(|row| row.recorded()).transpose()?.map(Record::Key)))
        }
        RecordQuery::Keys { limit, cursor } => {
            let (operation, key) = read_key_cursor(cursor.as_deref())?;
            let mut statement = connection.prepare_cached(sql::keys_list)?;
            let mut found =
                statement.query(params![tenant.uuid().into_bytes(), operation, key, fetch_limit(*limit)])?;
            let mut all = Vec::new();
            while let Some(row) = found.next()? {
                let name = |row: &Row<'_>| Ok((row.get::<_, String>(6)?, row.get::<_, String>(7)?));
                let cursor = |row: &Row<'_>| name(row).map(|(operation, key)| key_cursor(&operation, &key));
                all.push(read_listed(Listing::of("idempotency"), row, cursor, |row| {
                    let (operation, key) = name(row)?;
                    Ok(rows::key(row, &operation, &key)?.recorded()?)
                })?);
            }
            Ok(Page::sorted(all, *limit)?.map(Record::Key))
        }
        RecordQuery::Audit { limit, cursor } => {
            seals::audit(connection, tenant, None, *limit, cursor.as_deref())
        }
        RecordQuery::AuditOfRun { run, limit, cursor } => {
            seals::audit(connection, tenant, Some(*run), *limit, cursor.as_deref())
        }
        RecordQuery::Seals { from, limit } => seals::seals(connection, tenant, *from, *limit),
        RecordQuery::Unsealed { limit, cursor } => {
            seals::unsealed(connection, tenant, *limit, cursor.as_deref())
        }
        RecordQuery::Shadows(run) => Ok(shadows::of_run(connection, tenant, *run)?.map(Record::Shadow)),
        RecordQuery::ShadowsOf(runs) => {
            Ok(Page::of(shadows::of_runs(connection, tenant, runs)?).map(Record::Shadow))
        }
        RecordQuery::Handle(handle) => {
            let row = handles::get(connection, tenant, handle)?;
            Ok(one(row.map(|row| Record::Handle(Box::new(row)))))
        }
        RecordQuery::Handles(query) => handles::list(connection, tenant, query),
        RecordQuery::Undelivered { now, limit } => handles::undelivered(connection, tenant, *now, *limit),
        RecordQuery::AliveProcess { process, now } => {
            Ok(one(handles::is_alive(connection, *process, *now)?.then_some(Record::AliveProcess(*process))))
        }
        RecordQuery::Processes { limit } => Ok(Page::of(handles::processes(connection, *limit)?)),
        RecordQuery::RunCounts(filter) => {
            Ok(Page::of(listing::counts(connection, tenant, filter)?.into_iter().map(Record::RunCount)))
        }
        RecordQuery::Count { of, limit, cursor } => tally(connection, tenant, of, *limit, cursor.as_deref()),
    }
}

fn definitions(
    connection: &Connection,
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
    let mut statement = connection.prepare_cached(statement)?;
    let which = params![tenant.uuid().into_bytes(), name.as_str(), version, hash, fetch_limit(limit)];
    let cursor = |row: &Row<'_>| {
        let (hash, name) = (DefinitionHash::from_bytes(row.get(0)?), row.get::<_, String>(1)?);
        Ok(definition_place(&name, row.get(2)?, hash))
    };
    let of = Listing::of("definitions");
    Ok(page(&mut statement, which, of, limit, cursor, rows::definition)?.map(Record::Definition))
}

fn tally(
    connection: &Connection,
    tenant: TenantId,
    of: &CountQuery,
    limit: u32,
    cursor: Option<&str>,
) -> Read<Page<Record>> {
    let (id, after, limit_rows) =
        (tenant.uuid().into_bytes(), cursor.unwrap_or_default(), fetch_limit(limit));
    let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, rows::unsigned(row, 1)?));
    let found: rusqlite::Result<Vec<_>> = match of {
        CountQuery::Keys { now } => {
            let mut statement = connection.prepare_cached(sql::tally_keys)?;
            statement.query_map(params![id, after, limit_rows, now.micros()], row)?.collect()
        }
        CountQuery::Links => {
            let mut statement = connection.prepare_cached(sql::tally_links)?;
            statement.query_map(params![id, after, limit_rows], row)?.collect()
        }
        CountQuery::Runs { max } => {
            let mut statement = connection.prepare_cached(sql::tally_runs)?;
            statement.query_map(params![id, after, limit_rows, max], row)?.collect()
        }
        CountQuery::Types { namespace } | CountQuery::Relations { namespace } => {
            let is_type = matches!(of, CountQuery::Types { .. });
            let statement = if is_type { sql::tally_types } else { sql::tally_relations };
            let mut statement = connection.prepare_cached(statement)?;
            statement.query_map(params![id, after, limit_rows, namespace], row)?.collect()
        }
    };
    Ok(Page::cut(found?, limit, |(name, _)| name.clone()).map(|(name, count)| Record::Count { name, count }))
}
