//! A store in memory. It is the reference model: as simple as possible, and the other backends must give the same
//! answers.

mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use stepwell_core::shadow::ShadowValue;
use stepwell_core::{DefinitionHash, Limits, Name, RunId, Timestamp};

use crate::cell::{Cell, CellKey, Space};
use crate::commit::{
    AuditRow, Commit, CommitError, CommitId, CommitRef, CommitTrace, Committed, StoredDefinition,
};
use crate::delta;
use crate::document::{Document, DocumentEnd, DocumentQuery, DocumentRow, read_place};
use crate::handle::{HandleHash, HandleKind, HandleQuery, HandleRow, handle_cursor, read_handle_cursor};
use crate::hints::{HintSender, Hints};
use crate::link::{
    Link, LinkCursor, LinkEdge, LinkEnds, LinkFilter, LinkQuery, Way, edge_cursor, is_found_twice, merged,
    read_edge_cursor, read_place_cursor,
};
use crate::plan::{CheckpointRow, KeyRow, MessageRow, Plan, Rows, decode_results, plan};
use crate::retention::{Cut, Versions, cut};
use crate::run::{Loaded, ProcessId, RunRow, RunSummary, Status, StoredMessage, StoredWait};
use crate::run_query::RunQuery;
use crate::scope::{TenantId, TenantScope};
use crate::seal::{Seal, sealed};
use crate::shadow::{
    RangePlace, RefillColumn, ShadowFilter, ShadowRefill, ShadowRow, ShadowSpans, ShadowWrite, compare,
    handle_range_cursor, leading,
};
use crate::store::{
    CellFilter, CellQuery, Claim, Cleanup, CleanupKind, CleanupResult, CountQuery, DueTenant, Heartbeat,
    HistoryQuery, HistoryRow, Membership, Page, Record, RecordQuery, Recorded, SchemaVersion, Store,
    StoreError, WaitFilter, WaitQuery, WaitRow, definition_cursor, due_cursor, key_cursor, page_rows,
    read_commit_cursor, read_cursor, read_definition_cursor, read_due_cursor, read_key_cursor,
};

/// A store in memory. Its data is lost when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    limits: Limits,
    hints: HintSender,
}

#[derive(Debug, Default)]
struct State {
    tenants: BTreeMap<TenantId, Tables>,
    processes: BTreeMap<ProcessId, Timestamp>,
}

/// The rows of one tenant.
#[derive(Debug, Default)]
struct Tables {
    runs: BTreeMap<RunId, RunRow>,
    checkpoints: BTreeMap<(RunId, u64), (CheckpointRow, CommitId, Timestamp)>,
    inbox: BTreeMap<(RunId, u64), MessageRow>,
    waits: BTreeMap<(RunId, u64), StoredWait>,
    shadows: BTreeMap<(RunId, Name), ShadowRow>,
    handles: BTreeMap<HandleHash, HandleRow>,
    cells: BTreeMap<CellKey, Cell>,
    /// By run, key and first visible version.
    documents: BTreeMap<(RunId, String, u64), DocumentRow>,
    keys: BTreeMap<(String, String), KeyRow>,
    definitions: BTreeMap<DefinitionHash, StoredDefinition>,
    audit: BTreeMap<(CommitId, u64), (Timestamp, AuditRow)>,
    /// Results of commits that are looked up in the audit trail.
    traces: BTreeMap<CommitId, Option<Bytes>>,
    unsealed: BTreeSet<CommitId>,
    seals: Vec<Seal>,
    links: BTreeMap<LinkEdge, Link>,
}

impl MemoryStore {
    /// Creates an empty store with the default limits.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Creates an empty store with these limits.
    pub fn with_limits(limits: Limits) -> Self {
        MemoryStore { limits, ..MemoryStore::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in another thread leaves the tables consistent, because nothing can fail while a plan is written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, scope: TenantScope, read: impl FnOnce(&Tables) -> T) -> T {
        let state = self.state();
        match state.tenants.get(&scope.tenant()) {
            Some(tables) => read(tables),
            None => read(&Tables::default()),
        }
    }
}

impl Rows for Tables {
    type Error = Infallible;

    fn run(&mut self, run: RunId) -> Result<Option<RunRow>, Infallible> {
        Ok(self.runs.get(&run).cloned())
    }
    fn message(&mut self, run: RunId, seq: u64) -> Result<Option<bool>, Infallible> {
        Ok(self.inbox.get(&(run, seq)).map(|row| row.counts))
    }
    fn handle(&mut self, handle: &HandleHash) -> Result<Option<HandleRow>, Infallible> {
        Ok(self.handles.get(handle).cloned())
    }
    fn key(&mut self, operation: &str, key: &str) -> Result<Option<KeyRow>, Infallible> {
        Ok(self.keys.get(&(operation.to_owned(), key.to_owned())).cloned())
    }
    fn cell(&mut self, key: &CellKey) -> Result<Option<Cell>, Infallible> {
        Ok(self.cells.get(key).cloned())
    }
    fn has_audit_rows(&mut self, commit: CommitId) -> Result<bool, Infallible> {
        Ok(self.traces.contains_key(&commit))
    }
    fn link(&mut self, edge: &LinkEdge) -> Result<Option<Link>, Infallible> {
        Ok(self.links.get(edge).cloned())
    }
    fn edges(&mut self, ends: &LinkEnds, most: usize) -> Result<Vec<LinkEdge>, Infallible> {
        Ok(self.links.keys().filter(|edge| ends.has(edge)).take(most).cloned().collect())
    }
}

impl Tables {
    fn write(&mut self, plan: Plan) -> Committed {
        let Plan {
            commit,
            at,
            insert,
            update,
            checkpoints,
            put,
            take,
            open,
            close,
            clear_shadows,
            shadows,
            used,
            handles,
            cells,
            links,
            unlink,
            hide,
            documents,
            keys,
            definitions,
            audit,
            trace,
            unfenced: _,
            committed,
        } = plan;
        self.runs.extend(insert.into_iter().chain(update).map(|row| (row.run, row)));
        let dated = |row: CheckpointRow| ((row.run, row.version), (row, commit, at));
        self.checkpoints.extend(checkpoints.into_iter().map(dated));
        take.iter().for_each(|message| drop(self.inbox.remove(message)));
        self.inbox.extend(put.into_iter().map(|row| ((row.run, row.message.seq), row)));
        close.iter().for_each(|wait| drop(self.waits.remove(wait)));
        self.waits.extend(open.into_iter().map(|(run, wait)| ((run, wait.activation), wait)));
        self.shadows.retain(|(run, _), _| !clear_shadows.contains(run));
        for (run, ShadowWrite { workflow, name, value }) in shadows {
            self.write_shadow(run, workflow, name, value);
        }
        used.iter().for_each(|handle| drop(self.handles.remove(handle)));
        self.handles.extend(handles.into_iter().map(|row| (row.handle, row)));
        self.cells.extend(cells.into_iter().map(|cell| (cell.key.clone(), cell)));
        self.links.extend(links.into_iter().map(|link| (link.edge.clone(), link)));
        unlink.iter().for_each(|edge| drop(self.links.remove(edge)));
        hide.into_iter().for_each(|end| self.hide(end));
        self.documents.extend(documents.into_iter().map(|row| {
            let Document { run, key, visible_from, .. } = &row.document;
            ((*run, key.clone(), *visible_from), row)
        }));
        self.keys.extend(keys.into_iter().map(|row| ((row.operation.clone(), row.key.clone()), row)));
        for definition in definitions {
            self.definitions.entry(definition.hash).or_insert(definition);
        }
        if !audit.is_empty() {
            self.unsealed.insert(commit);
            self.traces.insert(commit, trace);
        }
        let numbered = audit.into_iter().enumerate();
        self.audit.extend(numbered.map(|(ordinal, row)| ((commit, ordinal as u64), (at, row))));
        committed
    }

    /// Sets or removes a shadow column. Returns true if that changes it.
    fn write_shadow(&mut self, run: RunId, workflow: Name, name: Name, value: Option<ShadowValue>) -> bool {
        let place = (run, name.clone());
        let row = value.map(|value| ShadowRow { run, workflow, name, value });
        match row {
            Some(row) => self.shadows.insert(place, row.clone()).as_ref() != Some(&row),
            None => self.shadows.remove(&place).is_some(),
        }
    }

    /// Corrects the shadow columns of runs that have not changed since they were read.
    fn refill(&mut self, refills: &[ShadowRefill]) -> CleanupResult {
        let mut cleaned = CleanupResult { count: 0, more: false };
        for ShadowRefill { run, version, workflow, columns } in refills {
            match self.runs.get(run) {
                Some(row) if row.version == *version => {}
                Some(_) => {
                    cleaned.more = true;
                    continue;
                }
                None => continue,
            }
            let there = self.shadows.len();
            let wanted = |name: &Name| columns.iter().any(|(wanted, _)| wanted == name);
            self.shadows.retain(|(of, name), _| of != run || wanted(name));
            cleaned.count += (there - self.shadows.len()) as u64;
            for (name, refilled) in columns {
                let held = self.shadows.get(&(*run, name.clone())).map(|row| row.value.kind());
                let value = match refilled {
                    RefillColumn::SetIfMissing(value) if held == Some(value.kind()) => continue,
                    RefillColumn::Set(value) | RefillColumn::SetIfMissing(value) => value.clone(),
                };
                cleaned.count +=
                    u64::from(self.write_shadow(*run, workflow.clone(), name.clone(), Some(value)));
            }
        }
        cleaned
    }

    /// Ends the visibility of the newest document under a key, unless it has ended already.
    fn hide(&mut self, end: DocumentEnd) {
        let DocumentEnd { run, key, version } = end;
        let of_key = (run, key.clone(), 0)..=(run, key, u64::MAX);
        if let Some((_, row)) = self.documents.range_mut(of_key).next_back() {
            row.document.visible_to.get_or_insert(version);
        }
    }

    fn state_at(&self, run: RunId, version: u64) -> Result<Bytes, StoreError> {
        let missing = || StoreError::Corrupt(format!("run {run} has no checkpoint {version}"));
        let (row, ..) = self.checkpoints.get(&(run, version)).ok_or_else(missing)?;
        let chain = self.checkpoints.range((run, row.stored.chain.base)..=(run, version));
        Ok(delta::read(chain.map(|(_, (row, ..))| &row.stored.body[..]))?)
    }

    fn loaded(&self, row: RunRow) -> Result<Loaded, StoreError> {
        let state = self.state_at(row.run, row.version)?;
        let inbox = self.inbox.range((row.run, 0)..=(row.run, u64::MAX));
        let inbox: Vec<StoredMessage> = inbox.map(|(_, row)| row.message.clone()).collect();
        Ok(row.loaded(state, inbox))
    }

    /// Returns the runs that can be claimed: those of expired processes first, then by due time.
    fn claimable(&self, claim: &Claim) -> Vec<RunId> {
        let served =
            |row: &&RunRow| claim.definitions.as_ref().is_none_or(|known| known.contains(&row.definition));
        let orphaned = |row: &&RunRow| row.owner.is_some_and(|owner| claim.expired.contains(&owner));
        let due = |row: &&RunRow| row.owner.is_none() && row.wake.is_some_and(|wake| wake <= claim.now);
        let mut found: Vec<RunId> =
            self.runs.values().filter(served).filter(orphaned).map(|row| row.run).collect();
        let mut waiting: Vec<_> = self.runs.values().filter(served).filter(due).collect();
        waiting.sort_by_key(|row| (row.wake, row.run));
        found.extend(waiting.into_iter().map(|row| row.run));
        found.truncate(claim.limit as usize);
        found
    }

    /// Removes a run and everything it owns. Returns the number of removed runs, 0 or 1.
    fn purge(&mut self, run: RunId) -> u64 {
        let gone = self.runs.remove(&run);
        self.checkpoints.retain(|(of, _), _| *of != run);
        self.inbox.retain(|(of, _), _| *of != run);
        self.waits.retain(|(of, _), _| *of != run);
        self.shadows.retain(|(of, _), _| *of != run);
        self.documents.retain(|(of, ..), _| *of != run);
        self.keys.retain(|_, row| row.lifetime.run() != Some(run));
        self.handles.retain(|_, row| row.run != run);
        let owner = run.to_string();
        self.cells.retain(|key, _| key.space != Space::Execution || key.owner != owner);
        u64::from(gone.is_some())
    }

    /// Removes old checkpoints of a run, and the documents that only those versions showed.
    fn bound(&mut self, run: RunId, keep: u64, limit: u32) -> CleanupResult {
        let oldest = self.checkpoints.range((run, 0)..=(run, u64::MAX)).next();
        let (Some(row), Some(((_, oldest), _))) = (self.runs.get(&run), oldest) else {
            return CleanupResult { count: 0, more: false };
        };
        let versions = Versions { oldest: *oldest, newest: row.version };
        let base_of = |version| self.checkpoints.get(&(run, version)).map(|(row, ..)| row.stored.chain.base);
        let Ok(Cut { oldest, more }) = cut(versions, keep, limit, |v| Ok::<_, Infallible>(base_of(v)));
        let before = self.checkpoints.len();
        self.checkpoints.retain(|(of, version), _| *of != run || *version >= oldest);
        let checkpoints = before - self.checkpoints.len();
        let over = |row: &&DocumentRow| {
            row.document.run == run && row.document.visible_to.is_some_and(|to| to <= oldest)
        };
        let mut over: Vec<_> = self.documents.values().filter(over).cloned().collect();
        over.sort_by_key(|row| (row.document.visible_to, row.place()));
        over.truncate((limit as usize).saturating_sub(checkpoints));
        for DocumentRow { document, .. } in &over {
            self.documents.remove(&(run, document.key.clone(), document.visible_from));
        }
        let count = (checkpoints + over.len()) as u64;
        CleanupResult { count, more: more || count >= u64::from(limit) }
    }

    /// Removes the audit rows of the oldest seals, up to a seal that stays.
    fn cut_audit(&mut self, through: u64, limit: u64) -> CleanupResult {
        let mut count = 0;
        while self.seals.len() > 1 && self.seals[0].number <= through {
            for row in &self.seals[0].rows {
                count += u64::from(self.audit.remove(&(row.commit, row.ordinal)).is_some());
            }
            if self.seals[0].number == through {
                break;
            }
            self.seals.remove(0);
            if count >= limit {
                return CleanupResult { count, more: true };
            }
        }
        CleanupResult { count, more: false }
    }

    /// Writes one seal over audit rows that are not sealed yet.
    fn seal(&mut self, tenant: TenantId, now: Timestamp, limit: usize) -> CleanupResult {
        let taken: Vec<CommitId> = self.unsealed.iter().take(limit).copied().collect();
        let of_commit = |commit: &CommitId| self.audit.range((*commit, 0)..=(*commit, u64::MAX));
        let rows = taken.iter().flat_map(of_commit);
        let rows: Vec<_> =
            rows.map(|((commit, ordinal), (at, row))| sealed(tenant, *commit, *ordinal, *at, row)).collect();
        let cleaned = CleanupResult { count: rows.len() as u64, more: self.unsealed.len() > taken.len() };
        if !rows.is_empty() {
            let last = self.seals.last().map(|seal| (seal.number, seal.hash));
            self.seals.push(Seal::after(tenant, last, now, rows));
        }
        self.unsealed.retain(|commit| !taken.contains(commit));
        cleaned
    }

    /// Returns true if a column of a run or flow matches.
    fn has_column(&self, run: RunId, workflow: &Name, ShadowFilter { name, is }: &ShadowFilter) -> bool {
        let held = self.shadows.get(&(run, name.clone()));
        held.is_some_and(|held| is.has(&held.value) && held.workflow == *workflow)
    }

    fn shadows_of(&self, runs: &[RunId]) -> Page<Record> {
        let rows = self.shadows.values().filter(|row| runs.contains(&row.run));
        Page::of(rows.cloned().map(Record::Shadow))
    }

    fn handles(&self, query: &HandleQuery) -> Result<Page<Record>, StoreError> {
        query.check()?;
        let matching = |row: &&HandleRow| {
            let is_flow = query.shadows.is_empty() || row.kind == HandleKind::Flow;
            let has = |filter| self.has_column(row.run, &row.workflow, filter);
            query.matches(row) && is_flow && query.shadows.iter().all(has)
        };
        if let Some((lead, _)) = leading(&query.shadows)
            && ShadowSpans::of(&lead.is, None, false)?.is_some()
        {
            let place = RangePlace::of_handle(query.cursor.as_deref())?;
            // The handle of a position decides between handles of the same flow.
            let whole = ShadowSpans::of(&lead.is, None, false)?;
            let rest = ShadowSpans::of(&lead.is, place.as_ref(), false)?;
            let value =
                |row: &HandleRow| self.shadows.get(&(row.run, lead.name.clone())).map(|held| &held.value);
            let is_after = |row: &&HandleRow| {
                let in_span = |span: &Option<ShadowSpans>| {
                    value(row).zip(span.as_ref()).is_some_and(|(value, span)| span.has(value, row.run))
                };
                let is_next = |place: &RangePlace| {
                    place.run == row.run
                        && place.handle.is_some_and(|handle| row.handle > handle)
                        && value(row).is_some_and(|value| place.is_at(value))
                };
                in_span(&rest) || (place.as_ref().is_some_and(is_next) && in_span(&whole))
            };
            let rows = self.handles.values().filter(matching).filter(is_after);
            let mut rows: Vec<_> = rows.filter_map(|row| Some((value(row)?.clone(), row.clone()))).collect();
            rows.sort_by(|(a, one), (b, other)| {
                compare(a, b).then_with(|| (one.run, one.handle).cmp(&(other.run, other.handle)))
            });
            let cursor = |(value, row): &(_, HandleRow)| handle_range_cursor(row.run, row.handle, value);
            return Ok(Page::cut(rows, query.limit, cursor).map(|(_, row)| Record::Handle(Box::new(row))));
        }
        let after = read_handle_cursor(query.cursor.as_deref())?;
        let is_after = |row: &&HandleRow| after.is_none_or(|after| (row.run, row.handle) > after);
        let mut rows: Vec<_> = self.handles.values().filter(matching).filter(is_after).cloned().collect();
        rows.sort_by_key(|row| (row.run, row.handle));
        rows.truncate(page_rows(query.limit) + 1);
        Ok(Page::cut(rows, query.limit, handle_cursor).map(|row| Record::Handle(Box::new(row))))
    }

    /// Returns the handles whose delivery is due, earliest first.
    fn undelivered(&self, now: Timestamp, limit: u32) -> Page<Record> {
        let due = |row: &&HandleRow| row.deliver_at.is_some_and(|at| at <= now);
        let mut rows: Vec<_> = self.handles.values().filter(due).cloned().collect();
        rows.sort_by_key(|row| (row.deliver_at, row.handle));
        rows.truncate(page_rows(limit));
        Page::of(rows.into_iter().map(|row| Record::Handle(Box::new(row))))
    }

    /// Lists waits in the order of due time, run and activation.
    fn due_waits(&self, limit: u32, cursor: Option<&str>) -> Result<Page<WaitRow>, StoreError> {
        let after = read_due_cursor(cursor)?;
        let place =
            |run: RunId, activation: u64, due| (due, run, i64::try_from(activation).unwrap_or(i64::MAX));
        let mut due: Vec<_> = self
            .waits
            .iter()
            .filter_map(|((run, activation), wait)| Some((place(*run, *activation, wait.due?), wait)))
            .filter(|(place, _)| *place > after)
            .collect();
        due.sort_by_key(|(place, _)| *place);
        let row =
            |((_, run, _), wait): ((Timestamp, RunId, i64), &StoredWait)| WaitRow { run, wait: wait.clone() };
        let items = due.into_iter().take(page_rows(limit) + 1).map(row).collect();
        let cursor =
            |row: &WaitRow| due_cursor(row.wait.due.unwrap_or(Timestamp::MAX), row.run, row.wait.activation);
        Ok(Page::cut(items, limit, cursor))
    }

    /// Lists the audit trail, or the rows that name one run.
    fn audit(
        &self,
        run: Option<RunId>,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<Record>, StoreError> {
        let after = read_cursor(cursor)?.map(|(id, ordinal)| (CommitId(id), ordinal));
        let rows = self.audit.iter().filter(|(id, (_, row))| {
            after.is_none_or(|after| **id > after) && (run.is_none() || row.run == run)
        });
        let items: Vec<_> =
            rows.take(page_rows(limit) + 1).map(|(id, (at, row))| (*id, *at, row.clone())).collect();
        let page = Page::cut(items, limit, |((commit, ordinal), ..)| format!("{}:{ordinal}", commit.0));
        let record = |((commit, ordinal), at, row)| Record::Audit { commit, ordinal, at, row };
        Ok(page.map(record))
    }

    fn tally(&self, of: &CountQuery, limit: u32, cursor: Option<&str>) -> Page<Record> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut count = |name| *counts.entry(name).or_default() += 1;
        match of {
            CountQuery::Keys { now } => {
                let live = self
                    .cells
                    .values()
                    .filter(|cell| cell.key.space == Space::Kv && cell.live(*now).is_some());
                live.for_each(|cell| count(&cell.key.owner));
            }
            CountQuery::Links => self.links.keys().for_each(|edge| count(edge.namespace())),
            CountQuery::Types { namespace } => {
                let edges = self.links.keys().filter(|edge| edge.namespace() == namespace);
                edges.flat_map(|edge| [edge.from().kind(), edge.to().kind()]).for_each(count);
            }
            CountQuery::Relations { namespace } => {
                let edges = self.links.keys().filter(|edge| edge.namespace() == namespace);
                edges.for_each(|edge| count(edge.relation()));
            }
            CountQuery::Runs { max } => {
                let is_live = |row: &&RunRow| {
                    let in_need = matches!(row.status, Status::Pending | Status::Suspended | Status::Failed);
                    let waits = || self.waits.range((row.run, 0)..=(row.run, u64::MAX)).next().is_some();
                    row.owner.is_some() || row.wake.is_some() || in_need || waits()
                };
                self.runs.values().filter(is_live).take(*max as usize).for_each(|_| count("live"));
            }
        }
        let after = counts.into_iter().filter(|(name, _)| cursor.is_none_or(|cursor| *name > cursor));
        let found: Vec<_> =
            after.take(page_rows(limit) + 1).map(|(name, count)| (name.to_owned(), count)).collect();
        Page::cut(found, limit, |(name, _)| name.clone()).map(|(name, count)| Record::Count { name, count })
    }

    fn links(&self, query: &LinkQuery) -> Result<Page<Link>, StoreError> {
        let LinkQuery { namespace, which, relation, limit, cursor } = query;
        let is_of = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|wanted| wanted == is);
        let wanted =
            |link: &&Link| link.edge.namespace() == namespace && is_of(relation, link.edge.relation());
        let links = self.links.values().filter(wanted);
        match which {
            LinkFilter::All { from, to } => {
                let after = read_edge_cursor(namespace, cursor.as_deref())?;
                let found = links
                    .filter(|link| is_of(from, link.edge.from().kind()) && is_of(to, link.edge.to().kind()))
                    .filter(|link| after.as_ref().is_none_or(|after| link.edge > *after));
                Ok(Page::cut(found.take(page_rows(*limit) + 1).cloned().collect(), *limit, |link: &Link| {
                    edge_cursor(&link.edge)
                }))
            }
            LinkFilter::Of { end, direction, far } => {
                let after = read_place_cursor(cursor.as_deref())?;
                let links: Vec<&Link> = links.collect();
                let each_way = |way: &Way| {
                    let way = *way;
                    let wanted = |link: &&&Link| {
                        let edge = &link.edge;
                        let near = if way == Way::Forward { edge.from() } else { edge.to() };
                        near == end
                            && is_of(far, way.far(edge).kind())
                            && !is_found_twice(edge, way, *direction)
                            && after.as_ref().is_none_or(|after| LinkCursor::of(edge, way) > *after)
                    };
                    (way, links.iter().filter(wanted).map(|link| (*link).clone()).collect())
                };
                Ok(merged(direction.ways().iter().map(each_way).collect(), *limit))
            }
        }
    }

    fn cleanup(&mut self, tenant: TenantId, cleanup: &Cleanup) -> CleanupResult {
        let limit = cleanup.limit as usize;
        let count = match cleanup.what.clone() {
            CleanupKind::Cells => self.cleanup_cells(cleanup.now, limit),
            CleanupKind::Tombstones { namespace, before } => {
                let old = |cell: &&Cell| {
                    let key = &cell.key;
                    let is_there = key.space == Space::Kv && key.owner == *namespace;
                    is_there && cell.value.is_none() && cell.updated_at < before
                };
                let old = self.cells.values().filter(old);
                let mut old: Vec<_> = old.map(|cell| (cell.updated_at, cell.key.clone())).collect();
                old.sort();
                old.truncate(limit);
                old.iter().for_each(|(_, key)| drop(self.cells.remove(key)));
                old.len() as u64
            }
            CleanupKind::Seal => return self.seal(tenant, cleanup.now, limit),
            CleanupKind::Keys => {
                let mut gone: Vec<_> =
                    self.keys.values().filter(|row| !row.holds(cleanup.now)).cloned().collect();
                gone.sort_by_key(|row| row.lifetime.until());
                gone.truncate(limit);
                gone.iter().for_each(|row| drop(self.keys.remove(&(row.operation.clone(), row.key.clone()))));
                gone.len() as u64
            }
            CleanupKind::Handles { expired_by } => {
                let over = |row: &&HandleRow| row.expires_at.is_some_and(|expires| expires <= expired_by);
                let mut over: Vec<_> = self.handles.values().filter(over).cloned().collect();
                over.sort_by_key(|row| (row.expires_at, row.handle));
                over.truncate(limit);
                for row in &over {
                    self.handles.remove(&row.handle);
                    self.shadows.retain(|(run, _), _| row.kind != HandleKind::Flow || *run != row.run);
                }
                over.len() as u64
            }
            CleanupKind::Runs(before) => {
                let over = |row: &&RunRow| {
                    let is_old = before.of(&row.workflow).is_some_and(|before| row.updated_at < before);
                    row.status.is_final() && row.wake.is_none() && is_old
                };
                let ended = self.runs.values().filter(over);
                let mut ended: Vec<_> =
                    ended.map(|row| (row.workflow.clone(), row.updated_at, row.run)).collect();
                ended.sort();
                ended.truncate(limit);
                ended.iter().map(|(_, _, run)| self.purge(*run)).sum()
            }
            CleanupKind::Audit { through } => return self.cut_audit(through, cleanup.limit.into()),
            CleanupKind::Run(run) => return CleanupResult { count: self.purge(run), more: false },
            CleanupKind::MarkFailed(run) => {
                let row = self.runs.get_mut(&run).filter(|row| !row.status.is_final());
                return CleanupResult {
                    count: row.into_iter().map(RunRow::mark_failed).count() as u64,
                    more: false,
                };
            }
            CleanupKind::History { run, keep } => return self.bound(run, keep, cleanup.limit),
            CleanupKind::Shadows(ref refills) => return self.refill(refills),
        };
        CleanupResult { count, more: count >= u64::from(cleanup.limit) }
    }

    /// Turns up to `limit` expired cells into tombstones, the earliest expiry first, and returns their number.
    fn cleanup_cells(&mut self, now: Timestamp, limit: usize) -> u64 {
        let expired = |cell: &&mut Cell| cell.value.is_some() && cell.live(now).is_none();
        let mut cells: Vec<_> = self.cells.values_mut().filter(expired).collect();
        let order = |cell: &&mut Cell| {
            let CellKey { space, owner, key } = cell.key.clone();
            (cell.expires_at, space.as_str(), owner, key)
        };
        cells.sort_by_key(order);
        let cleaned = cells.into_iter().take(limit);
        cleaned.map(|cell| (cell.value, cell.expires_at) = (None, None)).count() as u64
    }

    fn definitions(
        &self,
        workflow: Option<&Name>,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<Record>, StoreError> {
        let place = |definition: &StoredDefinition| {
            (definition.workflow.clone(), definition.version, definition.hash)
        };
        let after = read_definition_cursor(cursor)?;
        let mut found: Vec<_> = self
            .definitions
            .values()
            .filter(|definition| workflow.is_none_or(|name| definition.workflow == *name))
            .filter(|definition| after.as_ref().is_none_or(|after| place(definition) > *after))
            .cloned()
            .collect();
        found.sort_by_key(place);
        Ok(Page::cut(found, limit, definition_cursor).map(Record::Definition))
    }
}

impl MemoryStore {
    /// Returns the process if its lease is valid.
    fn alive(&self, process: ProcessId, now: Timestamp) -> Page<Record> {
        let is_alive = self.state().processes.get(&process).is_some_and(|until| *until > now);
        Page::of(is_alive.then_some(Record::AliveProcess(process)))
    }

    fn processes(&self, limit: u32) -> Page<Record> {
        let state = self.state();
        let known = state.processes.iter().take(page_rows(limit));
        let shown = known.map(|(process, until)| Record::Process { process: *process, lease_until: *until });
        Page::of(shown)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let mut state = self.state();
        let tables = state.tenants.entry(scope.tenant()).or_default();
        let Ok(decided) = plan(commit, tables, &self.limits);
        let plan = decided?;
        let hints = plan.hints(scope.tenant());
        let committed = tables.write(plan);
        drop(state);
        hints.into_iter().for_each(|hint| self.hints.send(hint));
        Ok(committed)
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        self.read(scope, |tables| {
            let (results, answer) = match commit.at {
                CommitTrace::Checkpoint { run, version } => match tables.checkpoints.get(&(run, version)) {
                    Some((row, id, _)) if *id == commit.id => (row.results.clone(), None),
                    _ => return Ok(None),
                },
                CommitTrace::Handle(handle) => match tables.handles.get(&handle) {
                    Some(row) if row.commit == commit.id => (None, None),
                    _ => return Ok(None),
                },
                CommitTrace::Key { operation, key } => match tables.keys.get(&(operation, key)) {
                    Some(row) if row.commit == commit.id => (row.results.clone(), Some(row.answer.clone())),
                    _ => return Ok(None),
                },
                CommitTrace::Audit => match tables.traces.get(&commit.id) {
                    Some(results) => (results.clone(), None),
                    None => return Ok(None),
                },
            };
            Ok(Some(Recorded { results: decode_results(results.as_deref())?, answer, request: None }))
        })
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        self.read(scope, |tables| tables.runs.get(&run).cloned().map(|row| tables.loaded(row)).transpose())
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        let mut state = self.state();
        let tables = state.tenants.entry(scope.tenant()).or_default();
        let mut taken = Vec::new();
        for run in tables.claimable(&claim) {
            let Some(row) = tables.runs.get_mut(&run) else { continue };
            claim.by.into_iter().for_each(|by| row.claimed(by));
            let row = row.clone();
            taken.push(tables.loaded(row)?);
        }
        Ok(Page::of(taken))
    }

    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        let state = self.state();
        let at = |row: &RunRow| match row.owner {
            None => row.wake,
            Some(owner) => expired.contains(&owner).then_some(Timestamp::MIN),
        };
        let earliest = |tables: &Tables| tables.runs.values().filter_map(at).min();
        let due = state.tenants.iter().filter_map(|(tenant, tables)| Some((*tenant, earliest(tables)?)));
        Ok(due.map(|(tenant, at)| DueTenant { tenant, at }).collect())
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        let state = self.state();
        let has = |tables: &Tables| {
            let is_empty = tables.runs.is_empty() && tables.cells.is_empty() && tables.keys.is_empty();
            !(is_empty && tables.links.is_empty() && tables.audit.is_empty() && tables.handles.is_empty())
        };
        let known = state
            .tenants
            .iter()
            .filter(|(tenant, tables)| after.is_none_or(|after| **tenant > after) && has(tables));
        Ok(known.map(|(tenant, _)| *tenant).take(limit as usize).collect())
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        let mut state = self.state();
        let State { tenants, processes } = &mut *state;
        processes.insert(beat.process, beat.now.plus_ms(beat.lease_ms));
        let owners: BTreeSet<_> =
            tenants.values().flat_map(|tables| tables.runs.values()).filter_map(|row| row.owner).collect();
        // An owner that never sent a heartbeat, or was removed while it owned nothing, counts as expired.
        for owner in &owners {
            processes.entry(*owner).or_insert(Timestamp::MIN);
        }
        // An expired process stays in the list while it owns runs, so that another process takes them over.
        processes.retain(|process, until| *until > beat.now || owners.contains(process));
        let (expired, alive): (Vec<_>, Vec<_>) = processes.iter().partition(|(_, until)| **until <= beat.now);
        let expired = expired.into_iter().map(|(process, _)| *process).collect();
        Ok(Membership { expired, alive: alive.len() as u64, clock: None })
    }

    fn hints(&self) -> Hints {
        self.hints.subscribe()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        let CellQuery { space, owner, filter, now, include_deleted, limit, cursor } = query;
        let wanted = |cell: &&Cell| {
            let key = &cell.key;
            let named = match &filter {
                CellFilter::Key(name) => key.key == *name,
                CellFilter::Prefix(prefix) => key.key.starts_with(prefix),
            };
            let after = cursor.as_ref().is_none_or(|cursor| key.key > *cursor);
            key.space == space
                && key.owner == owner
                && named
                && after
                && (include_deleted || cell.live(now).is_some())
        };
        let items = self.read(scope, |tables| {
            tables.cells.values().filter(wanted).take(page_rows(limit) + 1).cloned().collect()
        });
        Ok(Page::cut(items, limit, |cell: &Cell| cell.key.key.clone()))
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        self.read(scope, |tables| tables.links(&query))
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        self.read(scope, |tables| tables.runs(&query))
    }

    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        let WaitQuery { of, limit, cursor } = query;
        if of == WaitFilter::Due {
            return self.read(scope, |tables| tables.due_waits(limit, cursor.as_deref()));
        }
        let after = read_cursor(cursor.as_deref())?.map(|(run, activation)| (RunId::new(run), activation));
        let items = self.read(scope, |tables| {
            let open = tables.waits.iter().filter(|((run, activation), wait)| {
                of.has(*run, wait) && after.is_none_or(|after| (*run, *activation) > after)
            });
            let row =
                |((run, _), wait): (&(RunId, u64), &StoredWait)| WaitRow { run: *run, wait: wait.clone() };
            if matches!(of, WaitFilter::FirstTopic { .. }) {
                let first = open.min_by(|(a, one), (b, other)| (&one.topic, a).cmp(&(&other.topic, b)));
                return first.map(row).into_iter().collect();
            }
            if matches!(of, WaitFilter::Topics { .. }) {
                let mut rows: Vec<_> = open.map(row).collect();
                rows.sort_by(|a, b| (&a.wait.topic, a.run).cmp(&(&b.wait.topic, b.run)));
                rows.truncate(page_rows(limit));
                return rows;
            }
            open.take(page_rows(limit) + 1).map(row).collect()
        });
        Ok(Page::cut(items, limit, |row: &WaitRow| format!("{}:{}", row.run, row.wait.activation)))
    }

    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        let HistoryQuery { run, from, with_state, limit } = query;
        self.read(scope, |tables| {
            let mut items = Vec::new();
            let rows = tables.checkpoints.range((run, from)..=(run, u64::MAX)).take(page_rows(limit) + 1);
            for ((_, version), (row, commit, at)) in rows {
                let state = with_state.then(|| tables.state_at(run, *version)).transpose()?;
                let (entry, commit) = (delta::read_entry(&row.stored.entry)?, *commit);
                items.push(HistoryRow { version: *version, at: *at, commit, entry, state });
            }
            Ok(Page::cut(items, limit, |row| (row.version + 1).to_string()))
        })
    }

    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        let after = read_place(query.cursor.as_deref())?;
        let wanted = |row: &&DocumentRow| {
            query.matches(&row.document) && after.is_none_or(|after| row.place() > after)
        };
        let mut rows: Vec<_> =
            self.read(scope, |tables| tables.documents.values().filter(wanted).cloned().collect());
        rows.sort_by_key(DocumentRow::place);
        Ok(Page::cut(rows, query.limit, DocumentRow::cursor).map(|row| row.document))
    }

    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        match query {
            RecordQuery::AliveProcess { process, now } => return Ok(self.alive(process, now)),
            RecordQuery::Processes { limit } => return Ok(self.processes(limit)),
            _ => {}
        }
        self.read(scope, |tables| match query {
            RecordQuery::AliveProcess { .. } | RecordQuery::Processes { .. } => Ok(Page::of([])),
            RecordQuery::Definition(hash) => {
                let items = tables.definitions.get(&hash).cloned().map(Record::Definition);
                Ok(Page::of(items))
            }
            RecordQuery::Definitions { workflow, limit, cursor } => {
                tables.definitions(workflow.as_ref(), limit, cursor.as_deref())
            }
            RecordQuery::Key { operation, key, now } => {
                let row = tables.keys.get(&(operation, key)).filter(|row| row.holds(now));
                let item = row.map(|row| {
                    let results = decode_results(row.results.as_deref())?;
                    let (answer, request) = (Some(row.answer.clone()), Some(row.request));
                    Ok::<_, StoreError>(Record::Key(Recorded { results, answer, request }))
                });
                Ok(Page::of(item.transpose()?))
            }
            RecordQuery::Keys { limit, cursor } => {
                let after = read_key_cursor(cursor.as_deref())?;
                let rows = tables.keys.iter().filter(|(name, _)| **name > after).take(page_rows(limit) + 1);
                let rows: Vec<KeyRow> = rows.map(|(_, row)| row.clone()).collect();
                let page = Page::cut(rows, limit, |row| key_cursor(&row.operation, &row.key));
                let items = page.items.iter().map(KeyRow::recorded).collect::<Result<Vec<_>, _>>()?;
                Ok(page.over(|_| items).map(Record::Key))
            }
            RecordQuery::Audit { limit, cursor } => tables.audit(None, limit, cursor.as_deref()),
            RecordQuery::AuditOfRun { run, limit, cursor } => {
                tables.audit(Some(run), limit, cursor.as_deref())
            }
            RecordQuery::Seals { from, limit } => {
                let seals = tables.seals.iter().filter(|seal| seal.number >= from).take(page_rows(limit) + 1);
                let seals =
                    Page::cut(seals.cloned().collect(), limit, |seal: &Seal| (seal.number + 1).to_string());
                Ok(seals.map(Record::Seal))
            }
            RecordQuery::Unsealed { limit, cursor } => {
                let after = read_commit_cursor(cursor.as_deref())?;
                let rows = tables.unsealed.iter().filter(|id| after.is_none_or(|after| **id > after));
                let rows = rows.take(page_rows(limit) + 1).copied().collect();
                let page = Page::cut(rows, limit, |id: &CommitId| id.0.to_string());
                Ok(page.map(Record::Unsealed))
            }
            RecordQuery::Shadows(run) => Ok(tables.shadows_of(&[run])),
            RecordQuery::ShadowsOf(runs) => Ok(tables.shadows_of(&runs)),
            RecordQuery::Handle(handle) => {
                let row = tables.handles.get(&handle).cloned().map(Box::new);
                Ok(Page::of(row.map(Record::Handle)))
            }
            RecordQuery::Handles(query) => tables.handles(&query),
            RecordQuery::Undelivered { now, limit } => Ok(tables.undelivered(now, limit)),
            RecordQuery::RunCounts(filter) => {
                Ok(Page::of(tables.run_counts(&filter)?.into_iter().map(Record::RunCount)))
            }
            RecordQuery::Count { of, limit, cursor } => Ok(tables.tally(&of, limit, cursor.as_deref())),
        })
    }

    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        let mut state = self.state();
        Ok(state.tenants.entry(scope.tenant()).or_default().cleanup(scope.tenant(), &cleanup))
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        Ok(SchemaVersion(1))
    }
}
