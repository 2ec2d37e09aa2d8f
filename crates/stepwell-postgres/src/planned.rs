//! Planned commits: collects the rows that they name, plans them one after the other, and builds the statements that
//! write the result.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use stepwell_core::{Limits, RunId, Timestamp};
use stepwell_store::document::{DocumentEnd, DocumentRow};
use stepwell_store::plan::{self, CheckpointRow, KeyRow, MessageRow, Plan, Rows};
use stepwell_store::{
    AuditRow, BadRow, Cell, CellKey, Commit, CommitError, CommitId, CommitTrace, HandleHash, HandleRow, Link,
    LinkEdge, LinkEnds, Listing, RunRow, StoreError, StoredDefinition, StoredWait, TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::apply::{Applied, push_common_statements};
use crate::columns::{
    Audit, BoundStatement, Cells, Checkpoints, Closed, Definitions, Documents, Edges, Handles, Hashes,
    Hidden, Keys, Links, Messages, Numbers, Opened, Runs, Shadows, Trace,
};
use crate::error::Failure;
use crate::handles::HandleRows;
use crate::links::{LinkNames, LinkRows};
use crate::listed::{named, read_listed};
use crate::shadows::ShadowChanges;
use crate::{rows, statements as sql};

/// The rows that commits name, in the order of locking.
pub(crate) struct Names {
    runs: Vec<Uuid>,
    taken_from: Vec<Uuid>,
    taken: Vec<i64>,
    handles: Vec<Vec<u8>>,
    operations: Vec<String>,
    keys: Vec<String>,
    cells: Vec<CellKey>,
    spaces: Vec<&'static str>,
    owners: Vec<String>,
    cell_keys: Vec<String>,
    links: LinkNames,
    /// Commits whose outcome is looked up in the audit trail.
    traced: Vec<Uuid>,
}

impl Names {
    pub(crate) fn of(commits: &[&Commit], limits: &Limits) -> Self {
        let mut runs = BTreeSet::new();
        let mut taken = BTreeSet::new();
        let mut handles = BTreeSet::new();
        let mut keys = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for commit in commits {
            if let Some(step) = &commit.step {
                runs.insert(step.head.run.uuid());
                taken.extend(step.take.iter().map(|seq| (step.head.run.uuid(), rows::int(*seq))));
            }
            runs.extend(commit.create.iter().map(|new| new.run.uuid()));
            runs.extend(commit.send.iter().map(|send| send.to.uuid()));
            handles.extend(commit.handles.iter().map(|write| write.handle));
            let record = commit.record();
            let used = commit.keys.iter().chain(&record);
            keys.extend(used.map(|key| (key.operation.clone(), key.key.clone())));
            cells.extend(commit.cells.iter().map(|write| write.key.clone()));
        }
        let traced = commits.iter().filter(|commit| commit.reference().at == CommitTrace::Audit);
        let traced = traced.map(|commit| commit.id.0);
        let (taken_from, taken) = taken.into_iter().unzip();
        let (operations, keys) = keys.into_iter().unzip();
        let cells: Vec<CellKey> = cells.into_iter().collect();
        Names {
            runs: runs.into_iter().collect(),
            taken_from,
            taken,
            handles: handles.into_iter().map(|handle| handle.0.to_vec()).collect(),
            operations,
            keys,
            spaces: cells.iter().map(|key| key.space.as_str()).collect(),
            owners: cells.iter().map(|key| key.owner.clone()).collect(),
            cell_keys: cells.iter().map(|key| key.key.clone()).collect(),
            cells,
            links: LinkNames::of(commits, limits),
            traced: traced.collect(),
        }
    }

    /// Returns the statements that lock and read the rows. The messages of a run change only under its lock, so they
    /// are read after it is taken.
    pub(crate) fn bound<'s>(&'s self, tenant: &'s Uuid) -> Vec<BoundStatement<'s>> {
        let mut bound = Vec::with_capacity(4);
        if !self.runs.is_empty() {
            bound.push(BoundStatement { sql: sql::runs_lock, params: vec![tenant, &self.runs] });
        }
        if !self.taken.is_empty() {
            bound.push(BoundStatement {
                sql: sql::inbox_find,
                params: vec![tenant, &self.taken_from, &self.taken],
            });
        }
        if !self.handles.is_empty() {
            bound.push(BoundStatement { sql: sql::handles_lock, params: vec![tenant, &self.handles] });
        }
        if !self.keys.is_empty() {
            bound.push(BoundStatement {
                sql: sql::keys_lock,
                params: vec![tenant, &self.operations, &self.keys],
            });
        }
        if !self.cells.is_empty() {
            let params: Vec<crate::connection::Param<'_>> =
                vec![tenant, &self.spaces, &self.owners, &self.cell_keys];
            bound.push(BoundStatement { sql: sql::cells_lock, params });
        }
        if !self.traced.is_empty() {
            bound.push(BoundStatement { sql: sql::audit_find, params: vec![tenant, &self.traced] });
        }
        bound.extend(self.links.bound(tenant));
        bound
    }
}

/// The locked rows, with the changes of the plans made so far.
#[derive(Default)]
pub(crate) struct Gathered {
    runs: BTreeMap<RunId, RunRow>,
    bad_runs: BTreeMap<RunId, BadRow>,
    messages: BTreeMap<(RunId, u64), bool>,
    handles: HandleRows,
    keys: BTreeMap<(String, String), KeyRow>,
    cells: BTreeMap<CellKey, Cell>,
    links: LinkRows,
    /// Commits that have rows in the audit trail.
    on_record: BTreeSet<CommitId>,
    /// Runs that existed when they were read; the others are inserted. The next two fields are the same for keys and
    /// cells.
    old_runs: BTreeSet<RunId>,
    old_keys: BTreeSet<(String, String)>,
    old_cells: BTreeSet<CellKey>,
}

impl Rows for Gathered {
    type Error = BadRow;

    fn is_bad(&self, _error: &BadRow) -> bool {
        true
    }

    fn run(&mut self, run: RunId) -> Result<Option<RunRow>, BadRow> {
        match self.bad_runs.get(&run) {
            Some(row) => Err(row.clone()),
            None => Ok(self.runs.get(&run).cloned()),
        }
    }

    fn message(&mut self, run: RunId, seq: u64) -> Result<Option<bool>, BadRow> {
        Ok(self.messages.get(&(run, seq)).copied())
    }

    fn handle(&mut self, handle: &HandleHash) -> Result<Option<HandleRow>, BadRow> {
        Ok(self.handles.get(handle))
    }

    fn key(&mut self, operation: &str, key: &str) -> Result<Option<KeyRow>, BadRow> {
        Ok(self.keys.get(&(operation.to_owned(), key.to_owned())).cloned())
    }

    fn cell(&mut self, key: &CellKey) -> Result<Option<Cell>, BadRow> {
        Ok(self.cells.get(key).cloned())
    }

    fn has_audit_rows(&mut self, commit: CommitId) -> Result<bool, BadRow> {
        Ok(self.on_record.contains(&commit))
    }

    fn link(&mut self, edge: &LinkEdge) -> Result<Option<Link>, BadRow> {
        Ok(self.links.get(edge))
    }

    fn edges(&mut self, ends: &LinkEnds, most: usize) -> Result<Vec<LinkEdge>, BadRow> {
        Ok(self.links.edges(ends, most))
    }
}

impl Gathered {
    /// Reads the rows that the statements of [`Names::bound`] returned.
    pub(crate) fn read(names: &Names, found: &[Vec<Row>]) -> Result<Self, Failure> {
        let mut gathered = Gathered::default();
        let mut found = found.iter();
        let mut next = || found.next().into_iter().flatten();
        if !names.runs.is_empty() {
            for row in next() {
                let run = rows::run_id(row, 0)?;
                match read_listed(Listing::of("runs"), Some(run.to_string()), rows::run(row))?.1 {
                    Ok(row) => drop(gathered.runs.insert(run, row)),
                    Err(row) => drop(gathered.bad_runs.insert(run, row)),
                }
                gathered.old_runs.insert(run);
            }
        }
        if !names.taken.is_empty() {
            for row in next() {
                let seq = rows::unsigned(row, 1)?;
                gathered.messages.insert((rows::run_id(row, 0)?, seq), rows::get(row, 2)?);
            }
        }
        if !names.handles.is_empty() {
            next().try_for_each(|row| gathered.handles.read(row))?;
        }
        let nth = |row: &Row, column: usize| rows::get::<i64>(row, column).map(|number| number as usize - 1);
        if !names.keys.is_empty() {
            for row in next() {
                let index = nth(row, 6)?;
                let name = (names.operations[index].clone(), names.keys[index].clone());
                let bad = |why| plan::bad_key(&name.0, &name.1, why);
                gathered.keys.insert(name.clone(), named(rows::key(row, &name.0, &name.1), bad)?);
                gathered.old_keys.insert(name);
            }
        }
        if !names.cells.is_empty() {
            for row in next() {
                let name = &names.cells[nth(row, 0)?];
                gathered.cells.insert(name.clone(), rows::cell(row, 1, name.space, &name.owner)?);
                gathered.old_cells.insert(name.clone());
            }
        }
        if !names.traced.is_empty() {
            for row in next() {
                gathered.on_record.insert(CommitId(rows::get(row, 0)?));
            }
        }
        found.flatten().try_for_each(|row| gathered.links.read(row))?;
        Ok(gathered)
    }

    /// Plans the commits one after the other. Each plan sees the changes of the plans before it.
    pub(crate) fn plan(
        &mut self,
        tenant: TenantId,
        commits: &[&Commit],
        limits: &Limits,
    ) -> (Vec<Applied>, Written) {
        let mut written = Written::default();
        let plan_one = |commit: &&Commit| {
            let planned = plan::plan((*commit).clone(), self, limits);
            let planned = planned.map_err(|row| CommitError::from(StoreError::Bad(row)))?;
            let plan = planned.map_err(CommitError::Refused)?;
            let hints = plan.hints(tenant);
            let committed = plan.committed.clone();
            self.follow(&plan);
            written.add(plan);
            Ok((committed, hints))
        };
        let applied = commits.iter().map(plan_one).collect();
        (applied, written)
    }

    fn follow(&mut self, plan: &Plan) {
        for row in plan.insert.iter().chain(&plan.update) {
            self.runs.insert(row.run, row.clone());
        }
        for (run, seq) in &plan.take {
            self.messages.remove(&(*run, *seq));
        }
        for row in &plan.put {
            self.messages.insert((row.run, row.message.seq), row.counts);
        }
        self.handles.follow(&plan.handles, &plan.used);
        for row in &plan.keys {
            self.keys.insert((row.operation.clone(), row.key.clone()), row.clone());
        }
        for cell in &plan.cells {
            self.cells.insert(cell.key.clone(), cell.clone());
        }
        if !plan.audit.is_empty() {
            self.on_record.insert(plan.commit);
        }
        self.links.follow(&plan.links, &plan.unlink);
    }
}

/// The combined changes of a batch's plans.
#[derive(Default)]
pub(crate) struct Written {
    runs: BTreeSet<RunId>,
    keys: BTreeSet<(String, String)>,
    cells: BTreeSet<CellKey>,
    has_handles: bool,
    has_links: bool,
    put: BTreeMap<(RunId, u64), MessageRow>,
    take: Vec<(RunId, u64)>,
    checkpoints: Vec<(CommitId, Timestamp, CheckpointRow)>,
    waits: Vec<(CommitId, RunId, Vec<StoredWait>, Vec<u64>)>,
    shadows: ShadowChanges,
    hide: Vec<DocumentEnd>,
    documents: Vec<DocumentRow>,
    definitions: Vec<(CommitId, StoredDefinition)>,
    audit: Vec<(CommitId, Timestamp, Vec<AuditRow>, Option<Bytes>)>,
}

impl Written {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.keys.is_empty()
            && self.cells.is_empty()
            && !self.has_handles
            && !self.has_links
            && self.definitions.is_empty()
            && self.audit.is_empty()
    }

    fn add(&mut self, plan: Plan) {
        // Destructured without `..`, so that a new field does not compile until it is handled here.
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
            committed: _,
        } = plan;
        self.runs.extend(insert.into_iter().chain(update).map(|row| row.run));
        self.checkpoints.extend(checkpoints.into_iter().map(|row| (commit, at, row)));
        // A message that was sent in the same batch is not in the database yet: do not write it at all.
        self.take.extend(take.into_iter().filter(|name| self.put.remove(name).is_none()));
        self.put.extend(put.into_iter().map(|row| ((row.run, row.message.seq), row)));
        let mut waits: BTreeMap<RunId, (Vec<StoredWait>, Vec<u64>)> = BTreeMap::new();
        open.into_iter().for_each(|(run, wait)| waits.entry(run).or_default().0.push(wait));
        close.into_iter().for_each(|(run, activation)| waits.entry(run).or_default().1.push(activation));
        self.waits.extend(waits.into_iter().map(|(run, (open, close))| (commit, run, open, close)));
        self.shadows.add(commit, clear_shadows, shadows);
        self.has_handles |= !used.is_empty() || !handles.is_empty();
        self.cells.extend(cells.into_iter().map(|cell| cell.key));
        self.has_links |= !links.is_empty() || !unlink.is_empty();
        self.hide.extend(hide);
        self.documents.extend(documents);
        self.keys.extend(keys.into_iter().map(|row| (row.operation, row.key)));
        self.definitions.extend(definitions.into_iter().map(|definition| (commit, definition)));
        if !audit.is_empty() {
            self.audit.push((commit, at, audit, trace));
        }
    }

    /// Returns the rows to write, in their state after all plans.
    pub(crate) fn columns<'a>(&'a self, gathered: &'a Gathered) -> PlannedColumns<'a> {
        let mut columns = PlannedColumns::default();
        for row in self.runs.iter().filter_map(|run| gathered.runs.get(run)) {
            let is_old = gathered.old_runs.contains(&row.run);
            let runs = if is_old { &mut columns.update } else { &mut columns.insert };
            runs.push(row, rows::places(&row.places));
        }
        for (commit, at, row) in &self.checkpoints {
            columns.checkpoints.push(row, *commit, *at);
        }
        self.take.iter().for_each(|(run, seq)| columns.take.push(*run, *seq));
        self.put.values().for_each(|row| columns.put.push(row));
        for (commit, run, open, close) in &self.waits {
            let trace = Trace { commit: *commit, at: None };
            columns.open.push_all(*run, open, trace);
            close.iter().for_each(|activation| columns.close.push(*run, *activation, trace));
        }
        (columns.clear_shadows, columns.shadows) = (self.shadows.cleared(), self.shadows.columns());
        let (insert, update, delete) = gathered.handles.written();
        insert.into_iter().for_each(|row| columns.new_handles.push(row));
        update.into_iter().for_each(|row| columns.handles.push(row));
        delete.into_iter().for_each(|handle| columns.used.push(handle));
        for cell in self.cells.iter().filter_map(|key| gathered.cells.get(key)) {
            let is_old = gathered.old_cells.contains(&cell.key);
            (if is_old { &mut columns.cells } else { &mut columns.new_cells }).push(cell);
        }
        for (name, row) in self.keys.iter().filter_map(|name| Some((name, gathered.keys.get(name)?))) {
            let is_old = gathered.old_keys.contains(name);
            (if is_old { &mut columns.keys } else { &mut columns.new_keys }).push(row);
        }
        let (insert, update, delete) = gathered.links.written();
        insert.into_iter().for_each(|link| columns.new_links.push(link));
        update.into_iter().for_each(|link| columns.links.push(link));
        delete.into_iter().for_each(|edge| columns.unlink.push(edge));
        self.hide.iter().for_each(|end| columns.hide.push(end));
        self.documents.iter().for_each(|row| columns.documents.push(row));
        for (commit, definition) in &self.definitions {
            columns.definitions.push(definition, Trace { commit: *commit, at: None });
        }
        for (commit, at, audit, results) in &self.audit {
            columns.audit.push_all(audit, *at, results.as_deref(), Trace { commit: *commit, at: None });
        }
        columns
    }
}

/// The rows that a batch of plans writes.
#[derive(Default)]
pub(crate) struct PlannedColumns<'a> {
    insert: Runs<'a>,
    update: Runs<'a>,
    checkpoints: Checkpoints<'a>,
    take: Numbers<'a>,
    put: Messages<'a>,
    close: Closed<'a>,
    open: Opened<'a>,
    clear_shadows: Vec<Uuid>,
    shadows: Shadows<'a>,
    used: Hashes<'a>,
    new_handles: Handles<'a>,
    handles: Handles<'a>,
    new_cells: Cells<'a>,
    cells: Cells<'a>,
    unlink: Edges<'a>,
    new_links: Links<'a>,
    links: Links<'a>,
    hide: Hidden<'a>,
    documents: Documents<'a>,
    new_keys: Keys<'a>,
    keys: Keys<'a>,
    definitions: Definitions<'a>,
    audit: Audit<'a>,
}

impl PlannedColumns<'_> {
    /// Returns the statements in order. `is_new` also records the tenant. The last one fails if the tenant is not
    /// recorded, because the inserts before it have written nothing then.
    pub(crate) fn bound<'s>(&'s self, tenant: &'s Uuid, is_new: bool) -> Vec<BoundStatement<'s>> {
        let mut bound = Vec::with_capacity(8);
        if is_new {
            bound.push(BoundStatement { sql: sql::tenant_put, params: vec![tenant] });
        }
        let filled = [
            (!self.new_keys.is_empty()).then(|| self.new_keys.bound(sql::keys_insert, tenant)),
            (!self.keys.is_empty()).then(|| self.keys.bound(sql::keys_put, tenant)),
            (!self.insert.is_empty()).then(|| self.insert.bound(sql::runs_insert, tenant)),
            (!self.update.is_empty()).then(|| self.update.bound(sql::runs_write, tenant)),
            (!self.checkpoints.is_empty()).then(|| self.checkpoints.bound(sql::checkpoints_insert, tenant)),
            (!self.take.is_empty()).then(|| self.take.bound(sql::inbox_delete, tenant)),
            (!self.put.is_empty()).then(|| self.put.bound(sql::inbox_insert, tenant)),
            (!self.used.is_empty()).then(|| self.used.bound(sql::handles_delete, tenant)),
            (!self.new_handles.is_empty()).then(|| self.new_handles.bound(sql::handles_insert, tenant)),
            (!self.handles.is_empty()).then(|| self.handles.bound(sql::handles_put, tenant)),
            (!self.clear_shadows.is_empty()).then(|| BoundStatement {
                sql: sql::purge_shadows,
                params: vec![tenant, &self.clear_shadows],
            }),
            (!self.new_cells.is_empty()).then(|| self.new_cells.bound(sql::cells_insert, tenant)),
            (!self.cells.is_empty()).then(|| self.cells.bound(sql::cells_put, tenant)),
            (!self.unlink.is_empty()).then(|| self.unlink.bound(sql::links_delete, tenant)),
            (!self.new_links.is_empty()).then(|| self.new_links.bound(sql::links_insert, tenant)),
            (!self.links.is_empty()).then(|| self.links.bound(sql::links_put, tenant)),
            (!self.hide.is_empty()).then(|| self.hide.bound(sql::documents_hide, tenant)),
            (!self.documents.is_empty()).then(|| self.documents.bound(sql::documents_insert, tenant)),
        ];
        bound.extend(filled.into_iter().flatten());
        let PlannedColumns { close, open, shadows, definitions, audit, .. } = self;
        push_common_statements(&mut bound, tenant, close, open, shadows, definitions, audit);
        bound.push(BoundStatement { sql: sql::tenant_check, params: vec![tenant] });
        bound
    }
}
