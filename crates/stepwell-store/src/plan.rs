//! What a commit comes to, decided on the rows it names: the rows to write, or why none are.
//!
//! Every backend uses this one function for commits that can be refused after their compare-and-set: it reads the rows
//! (under their locks), asks for the [`Plan`], and writes it down. So the backends agree by construction, nothing
//! has to be undone, and no engine code runs inside a transaction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::{Limits, RunId, Timestamp};
use uuid::Uuid;

use crate::bad::BadRow;
use crate::cell::{Cell, CellKey, CellWrite, OpResult, Space};
use crate::commit::{
    AuditRow, Commit, CommitId, Committed, Delivery, Fill, KeyWrite, Lives, Missing, NewRun, NextState,
    Ownership, RECORD_OPERATION, Refused, Send, Step, StoredDefinition, Whereabouts,
};
use crate::delta::{self, Stored};
use crate::document::{DocumentEnd, DocumentRow, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite};
use crate::hints::Hint;
use crate::link::{Edge, Ends, Link, LinkError, LinkWrite, deleted, upserted};
use crate::run::{Head, Message, OpenWait, ProcessId, RunRow};
use crate::scope::{RunKey, TenantId};
use crate::shadow::ShadowWrite;
use crate::store::{Recorded, StoreError};

/// The rows a commit names, as they are. A backend reads them under its locks.
pub trait Rows {
    /// What reading can fail with.
    type Error;
    /// It is that the row is there and cannot be read.
    fn is_bad(&self, _error: &Self::Error) -> bool {
        false
    }
    /// A run's row.
    fn run(&mut self, run: RunId) -> Result<Option<RunRow>, Self::Error>;
    /// Whether a message is in a run's inbox, and whether it counts against the limit.
    fn message(&mut self, run: RunId, seq: u64) -> Result<Option<bool>, Self::Error>;
    /// A handle's row.
    fn handle(&mut self, handle: &HandleHash) -> Result<Option<HandleRow>, Self::Error>;
    /// A key's record.
    fn key(&mut self, operation: &str, key: &str) -> Result<Option<KeyRow>, Self::Error>;
    /// A cell, tombstones too.
    fn cell(&mut self, key: &CellKey) -> Result<Option<Cell>, Self::Error>;
    /// Whether a commit has rows in the audit trail.
    fn is_on_record(&mut self, commit: CommitId) -> Result<bool, Self::Error>;
    /// A link.
    fn link(&mut self, edge: &Edge) -> Result<Option<Link>, Self::Error>;
    /// The edges that have these ends, in any order; no more than so many.
    fn edges(&mut self, ends: &Ends, most: usize) -> Result<Vec<Edge>, Self::Error>;
}

/// A key's record cannot be read.
pub fn bad_key(operation: &str, key: &str, why: String) -> BadRow {
    BadRow { table: "idempotency", key: format!("{operation} {key}"), run: None, why }
}

/// A key's record as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRow {
    /// The operation.
    pub operation: String,
    /// The key.
    pub key: String,
    /// The hash of what was asked.
    pub request: [u8; 32],
    /// What it is answered with.
    pub answer: Bytes,
    /// The results of the commit's operations (JSON), if it had any.
    pub results: Option<Bytes>,
    /// How long it holds.
    pub lives: Lives,
    /// The commit that wrote it.
    pub commit: CommitId,
}

impl KeyRow {
    /// What the key's commit left behind.
    pub fn recorded(&self) -> Result<Recorded, StoreError> {
        let results = decode_results(self.results.as_deref())?;
        Ok(Recorded { results, answer: Some(self.answer.clone()), request: Some(self.request) })
    }

    /// It still holds. One that lives with a run goes when the run does, so while it is there it holds.
    pub fn holds(&self, at: Timestamp) -> bool {
        match self.lives {
            Lives::Until(until) => until > at,
            Lives::WithRun(_) => true,
        }
    }
}

/// A checkpoint's row.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointRow {
    /// The run.
    pub run: RunId,
    /// The version.
    pub version: u64,
    /// The state and the history entry as stored.
    pub stored: Stored,
    /// The results of the commit's operations (JSON), if it had any.
    pub results: Option<Bytes>,
}

/// A message's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Whose inbox.
    pub run: RunId,
    /// The message.
    pub message: Message,
    /// It counts against the limit.
    pub counts: bool,
}

/// Everything to write for one commit.
#[derive(Debug)]
pub struct Plan {
    /// The commit.
    pub commit: CommitId,
    /// Its time.
    pub at: Timestamp,
    /// Runs to insert.
    pub insert: Vec<RunRow>,
    /// Runs to update.
    pub update: Vec<RunRow>,
    /// Checkpoints to insert.
    pub checkpoints: Vec<CheckpointRow>,
    /// Messages to insert.
    pub put: Vec<MessageRow>,
    /// Messages to delete.
    pub take: Vec<(RunId, u64)>,
    /// Waits to insert.
    pub open: Vec<(RunId, OpenWait)>,
    /// Waits to delete.
    pub close: Vec<(RunId, u64)>,
    /// Flows whose shadow columns all go, before any is written.
    pub unshade: Vec<RunId>,
    /// Shadow columns to write.
    pub shadows: Vec<(RunId, ShadowWrite)>,
    /// Handles that go, before any is put.
    pub used: Vec<HandleHash>,
    /// Handles to write.
    pub handles: Vec<HandleRow>,
    /// Cells to write.
    pub cells: Vec<Cell>,
    /// Links to write.
    pub links: Vec<Link>,
    /// Links to delete.
    pub unlink: Vec<Edge>,
    /// Documents that end, before any is inserted.
    pub hide: Vec<DocumentEnd>,
    /// Documents to insert.
    pub documents: Vec<DocumentRow>,
    /// Keys to write.
    pub keys: Vec<KeyRow>,
    /// Definitions to insert unless known.
    pub definitions: Vec<StoredDefinition>,
    /// Audit rows to insert.
    pub audit: Vec<AuditRow>,
    /// The results of the operations (JSON), if the first audit row is where they are looked up.
    pub trace: Option<Bytes>,
    /// The run that somebody has moved who is not its owner, if it has one.
    pub unfenced: Option<RunId>,
    /// The answer.
    pub committed: Committed,
}

impl Plan {
    /// Nothing yet.
    fn new(commit: CommitId, at: Timestamp) -> Self {
        Plan {
            commit,
            at,
            insert: Vec::new(),
            update: Vec::new(),
            checkpoints: Vec::new(),
            put: Vec::new(),
            take: Vec::new(),
            open: Vec::new(),
            close: Vec::new(),
            unshade: Vec::new(),
            shadows: Vec::new(),
            used: Vec::new(),
            handles: Vec::new(),
            cells: Vec::new(),
            links: Vec::new(),
            unlink: Vec::new(),
            hide: Vec::new(),
            documents: Vec::new(),
            keys: Vec::new(),
            definitions: Vec::new(),
            audit: Vec::new(),
            trace: None,
            unfenced: None,
            committed: Committed { head: None, created: Vec::new(), results: Vec::new(), sent: Vec::new() },
        }
    }

    /// What others may want to look at because of it.
    pub fn hints(&self, tenant: TenantId) -> Vec<Hint> {
        let reached: BTreeSet<_> = self.put.iter().map(|row| row.run).collect();
        let told = |row: &&RunRow| {
            let unfenced = self.unfenced == Some(row.run);
            reached.contains(&row.run) || is_told(row.owner, row.wake, self.at, unfenced)
        };
        let runs = self.insert.iter().chain(&self.update).filter(told);
        let runs = runs.map(|row| Hint::Run(RunKey { tenant, run: row.run }));
        runs.chain(self.cells.iter().map(|cell| Hint::Cell(tenant, cell.key.clone()))).collect()
    }
}

/// Whether a step may be news to the run's owner: no fence is named, and it was not the step that made them the owner.
pub fn is_unfenced(step: &Step) -> bool {
    let is_first = step.head.owner.is_none() && matches!(step.owner, Ownership::Take(_));
    step.fence.is_none() && !is_first
}

/// Whether a run whose row was written gives a hint. Nobody owns it: if it is due, anyone may take it. Somebody does:
/// the owner knows of its own steps, which name its fence, and has to look at what anyone else has done.
pub fn is_told(owner: Option<ProcessId>, wake: Option<Timestamp>, at: Timestamp, unfenced: bool) -> bool {
    match owner {
        None => wake.is_some_and(|wake| wake <= at),
        Some(_) => unfenced,
    }
}

/// Decides a commit on the rows it names: `Ok(Err(…))` is a refusal, `Err(…)` a failure to read.
pub fn plan<R: Rows>(
    commit: Commit,
    rows: &mut R,
    limits: &Limits,
) -> Result<Result<Plan, Refused>, R::Error> {
    match Planner::new(rows, limits, commit.at).run(commit) {
        Ok(plan) => Ok(Ok(plan)),
        Err(Failed::Refused(refused)) => Ok(Err(refused)),
        Err(Failed::Rows(error)) => Err(error),
    }
}

/// Why a step cannot be committed on the row as it is.
pub fn refuse_step(row: Option<&RunRow>, step: &Step) -> Option<Refused> {
    let run = step.head.run;
    let Some(row) = row else { return Some(Refused::NoRun { run }) };
    if let Some(expected) = step.fence.filter(|fence| *fence != row.fence) {
        return Some(Refused::Fenced { run, expected, actual: row.fence });
    }
    let (expected, actual) = (step.head.revision, row.revision);
    let is_late = step.in_order && row.inbox_seq > step.head.inbox_seen;
    (expected != actual || is_late).then_some(Refused::Moved { run, expected, actual })
}

/// Owner and fence after a step.
pub fn ownership(step: &Step) -> (Option<ProcessId>, u64) {
    let Head { owner, fence, .. } = step.head;
    match step.owner {
        Ownership::Keep => (owner, fence),
        Ownership::Take(process) if owner == Some(process) => (owner, fence),
        Ownership::Take(process) => (Some(process), fence.saturating_add(1)),
        Ownership::Release => (None, fence),
    }
}

/// Where a run stands after a step without fills, and its checkpoints as stored.
pub fn advance(step: &Step, next: &[NextState]) -> (Head, Vec<Stored>) {
    let head = &step.head;
    let (owner, fence) = ownership(step);
    let mut moved = Head {
        run: head.run,
        revision: head.revision.saturating_add(1),
        version: head.version,
        fence,
        owner,
        status: step.status,
        wake: step.wake,
        inbox_seen: head.inbox_seen,
        state: head.state.clone(),
        chain: head.chain,
    };
    let mut checkpoints = Vec::with_capacity(next.len());
    for next in next {
        moved.version = moved.version.saturating_add(1);
        let stored = delta::next(&moved.state, moved.chain, next, moved.version);
        moved.state = next.state.clone();
        moved.chain = stored.chain;
        checkpoints.push(stored);
    }
    (moved, checkpoints)
}

/// The row of a run that begins.
pub fn new_row(new: &NewRun, at: Timestamp) -> (RunRow, Stored) {
    let stored = delta::whole(&new.first, new.version);
    let row = RunRow {
        run: new.run,
        workflow: new.workflow.clone(),
        definition: new.definition,
        revision: 1,
        version: new.version,
        fence: u64::from(new.owner.is_some()),
        owner: new.owner,
        status: new.status,
        places: new.first.places.clone(),
        wake: new.wake,
        inbox_seq: 0,
        inbox_len: 0,
        chain: stored.chain,
        attempt: new.attempt.clone(),
        parent: new.parent.clone(),
        root: new.root,
        created_at: at,
        updated_at: at,
    };
    (row, stored)
}

/// When a run is looked at next: what the step says, or earlier if a message came that it does not know of (the
/// message has moved the row's own time). Nobody has to look at a run that has ended.
pub fn wake_after(wake: Option<Timestamp>, row: Option<Timestamp>, unseen: bool) -> Option<Timestamp> {
    if unseen { wake.into_iter().chain(row).min() } else { wake }
}

enum Failed<E> {
    Refused(Refused),
    Rows(E),
}

impl<E> From<Refused> for Failed<E> {
    fn from(refused: Refused) -> Self {
        Failed::Refused(refused)
    }
}

struct Planner<'a, R: Rows> {
    rows: &'a mut R,
    limits: &'a Limits,
    at: Timestamp,
    /// Rows looked at so far; the flag says that the commit inserts it.
    runs: BTreeMap<RunId, (RunRow, bool)>,
    dirty: Vec<RunId>,
    /// Handles written so far; without a value they are used up.
    handles: BTreeMap<HandleHash, Option<HandleRow>>,
    cells: BTreeMap<CellKey, Cell>,
    /// Links written so far; without a value they are deleted.
    links: BTreeMap<Edge, Option<Link>>,
    audit: Vec<AuditRow>,
    actor: Option<String>,
}

impl<'a, R: Rows> Planner<'a, R> {
    fn new(rows: &'a mut R, limits: &'a Limits, at: Timestamp) -> Self {
        Planner {
            rows,
            limits,
            at,
            runs: BTreeMap::new(),
            dirty: Vec::new(),
            handles: BTreeMap::new(),
            cells: BTreeMap::new(),
            links: BTreeMap::new(),
            audit: Vec::new(),
            actor: None,
        }
    }

    fn run(mut self, commit: Commit) -> Result<Plan, Failed<R::Error>> {
        commit.check(self.limits)?;
        let record = commit.record();
        let is_traced = commit.reference().at == Whereabouts::Audit;
        let Commit {
            id,
            at,
            step,
            create,
            send,
            handles,
            cells,
            links,
            actor,
            fills,
            documents,
            keys,
            definitions,
            audit,
        } = commit;
        (self.actor, self.audit) = (actor, audit);
        let keys: Vec<_> = keys.into_iter().chain(record).collect();
        self.check_keys(&keys)?;
        if is_traced && self.rows.is_on_record(id).map_err(Failed::Rows)? {
            let (operation, key) = (RECORD_OPERATION.to_owned(), id.0.to_string());
            return Err(Refused::Done { operation, key, answer: Bytes::new() }.into());
        }
        if let Some(step) = &step {
            self.check_step(step)?;
        }
        self.check_new(&create)?;
        let unfenced = step.as_ref().filter(|step| is_unfenced(step)).map(|step| step.head.run);
        let mut plan = Plan { definitions, unfenced, ..Plan::new(id, at) };
        self.handle(handles, id, &create, &mut plan)?;
        let mut results = self.operate(&cells)?;
        self.link(links, &mut results)?;
        let stored_results = encode_results(&results);
        if let Some(step) = step {
            self.step(step, &fills, &results, stored_results.clone(), &mut plan)?;
        } else if let Some(fill) = fills.first() {
            return Err(no_place(fill, "the commit has no next state").into());
        }
        self.create(create, stored_results.as_ref(), &mut plan);
        self.show(documents, &mut plan)?;
        for send in send {
            let delivery = self.send(send, &mut plan)?;
            plan.committed.sent.push(delivery);
        }
        plan.keys = keys.into_iter().map(|key| key_row(key, id, stored_results.clone())).collect();
        plan.committed.results = results;
        plan.trace = stored_results.filter(|_| is_traced);
        self.finish(&mut plan);
        Ok(plan)
    }

    fn check_keys(&mut self, keys: &[KeyWrite]) -> Result<(), Failed<R::Error>> {
        for (index, KeyWrite { operation, key, request, .. }) in keys.iter().enumerate() {
            if keys[..index].iter().any(|other| other.operation == *operation && other.key == *key) {
                return Err(Refused::KeyReused { operation: operation.clone(), key: key.clone() }.into());
            }
            let Some(row) = self.rows.key(operation, key).map_err(Failed::Rows)? else { continue };
            if !row.holds(self.at) {
                continue;
            }
            let (operation, key) = (operation.clone(), key.clone());
            return Err(Failed::Refused(if row.request == *request {
                Refused::Done { operation, key, answer: row.answer }
            } else {
                Refused::KeyReused { operation, key }
            }));
        }
        Ok(())
    }

    fn check_step(&mut self, step: &Step) -> Result<(), Failed<R::Error>> {
        let run = step.head.run;
        if let Some(refused) = refuse_step(self.row(run)?.as_ref(), step) {
            return Err(refused.into());
        }
        for (index, &seq) in step.take.iter().enumerate() {
            // The first to take a message takes it; a second time in the same commit it is no longer there.
            let twice = step.take[..index].contains(&seq);
            match self.rows.message(run, seq).map_err(Failed::Rows)?.filter(|_| !twice) {
                None => return Err(Refused::NoMessage { run, seq }.into()),
                Some(counts) => {
                    if let Some((row, _)) = self.runs.get_mut(&run) {
                        row.inbox_len = row.inbox_len.saturating_sub(u64::from(counts));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_new(&mut self, create: &[NewRun]) -> Result<(), Failed<R::Error>> {
        for (index, new) in create.iter().enumerate() {
            let twice = create[..index].iter().any(|other| other.run == new.run);
            if twice || self.row(new.run)?.is_some() {
                return Err(Refused::RunExists { run: new.run }.into());
            }
        }
        Ok(())
    }

    fn row(&mut self, run: RunId) -> Result<Option<RunRow>, Failed<R::Error>> {
        if let Some((row, _)) = self.runs.get(&run) {
            return Ok(Some(row.clone()));
        }
        let row = self.rows.run(run).map_err(Failed::Rows)?;
        if let Some(row) = &row {
            self.runs.insert(run, (row.clone(), false));
        }
        Ok(row)
    }

    /// Writes handles one after the other, each on what the one before left.
    fn handle(
        &mut self,
        writes: Vec<HandleWrite>,
        commit: CommitId,
        create: &[NewRun],
        plan: &mut Plan,
    ) -> Result<(), Failed<R::Error>> {
        // Flows that rested where something was written.
        let mut rested = BTreeSet::new();
        let is_flow = |row: &HandleRow| row.kind == HandleKind::Flow;
        for HandleWrite { handle, expected, then } in writes {
            let known = match self.handles.get(&handle) {
                Some(known) => known.clone(),
                None => self.rows.handle(&handle).map_err(Failed::Rows)?,
            };
            let actual = known.as_ref().map(|row| row.fence);
            let refused = Refused::Handle { handle, expected, actual };
            if actual != expected {
                return Err(refused.into());
            }
            let fence = actual.unwrap_or(0).saturating_add(1);
            rested.extend(known.as_ref().filter(|row| is_flow(row)).map(|row| row.run));
            let after = match (then, known) {
                (HandleChange::Put(row, shadows), _) => {
                    plan.shadows.extend(shadows.into_iter().map(|shadow| (row.run, shadow)));
                    Some(HandleRow { handle, fence, commit, ..*row })
                }
                (_, None) => return Err(refused.into()),
                (HandleChange::Own(owner), Some(row)) => Some(HandleRow { owner, fence, commit, ..row }),
                (HandleChange::Deliver(delivery), Some(row)) => {
                    let (deliver_at, delivery) = delivery.unzip();
                    Some(HandleRow { deliver_at, delivery, fence, ..row })
                }
                (HandleChange::Shade(shadows), Some(row)) => {
                    // No flow rests behind a link, so there are no columns of one.
                    let shadows = shadows.into_iter().filter(|_| is_flow(&row));
                    plan.shadows.extend(shadows.map(|shadow| (row.run, shadow)));
                    Some(row)
                }
                (HandleChange::Take, Some(_)) => None,
            };
            self.handles.insert(handle, after);
        }
        // A flow that goes on, here or elsewhere, keeps its columns.
        let goes_on = |run: &RunId| {
            let rests = |row: &HandleRow| is_flow(row) && row.run == *run;
            create.iter().any(|new| new.run == *run) || self.handles.values().flatten().any(rests)
        };
        plan.unshade.extend(rested.into_iter().filter(|run| !goes_on(run)));
        // Nor does one that came and went in this commit leave any.
        plan.shadows.retain(|(run, _)| !plan.unshade.contains(run));
        Ok(())
    }

    /// Applies the operations one after the other, each on what the one before left.
    fn operate(&mut self, writes: &[CellWrite]) -> Result<Vec<OpResult>, Failed<R::Error>> {
        let mut results = Vec::with_capacity(writes.len());
        for (operation, write) in writes.iter().enumerate() {
            let current = match self.cells.get(&write.key) {
                Some(cell) => Some(cell.clone()),
                None => self.rows.cell(&write.key).map_err(Failed::Rows)?,
            };
            let applied = write.apply(current, self.at, self.limits);
            let (cell, result) =
                applied.map_err(|error| Refused::Cell { operation, key: write.key.clone(), error })?;
            if let Some(cell) = cell {
                let space = if write.key.space == Space::Kv { "store" } else { "state" };
                let detail = format!("{{\"revision\":{}}}", cell.revision);
                let operation = format!("{space}.{}", write.op.word());
                self.on_record(operation, write.key.address(), write.by, detail);
                self.cells.insert(write.key.clone(), cell);
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Every write to the data is on record: nobody who writes can forget it.
    fn on_record(&mut self, operation: String, subject: String, run: Option<RunId>, detail: String) {
        let actor = self.actor.clone();
        self.audit.push(AuditRow { operation, subject, actor, run, detail: detail.into() });
    }

    /// Applies the operations on links one after the other, each on what the one before left.
    fn link(&mut self, writes: Vec<LinkWrite>, results: &mut Vec<OpResult>) -> Result<(), Failed<R::Error>> {
        for write in writes {
            let operation = results.len();
            let refused = |error: LinkError| Refused::Link { operation, error };
            write.check(self.limits).map_err(refused)?;
            results.push(match write {
                LinkWrite::Upsert { edge, id, attributes, by } => self.upsert(edge, id, attributes, by)?,
                LinkWrite::Delete { ends, by } => {
                    let gone = self.ending(&ends)?;
                    let limits = self.limits;
                    limits.commit_rows("the deletion", gone.len()).map_err(|error| refused(error.into()))?;
                    let result = deleted(gone.len());
                    for edge in gone {
                        self.on_record("links.delete".to_owned(), edge.address(), by, "{}".to_owned());
                        self.links.insert(edge, None);
                    }
                    result
                }
            });
        }
        Ok(())
    }

    fn upsert(
        &mut self,
        edge: Edge,
        id: Uuid,
        attributes: Value,
        by: Option<RunId>,
    ) -> Result<OpResult, Failed<R::Error>> {
        let known = match self.links.get(&edge) {
            Some(known) => known.clone(),
            None => self.rows.link(&edge).map_err(Failed::Rows)?,
        };
        let created = known.is_none();
        let link = match known {
            Some(link) => Link { attributes, updated_at: self.at, ..link },
            None => {
                let (created_at, updated_at) = (self.at, self.at);
                Link { edge: edge.clone(), id, attributes, created_at, updated_at, created_by: by }
            }
        };
        let detail = format!("{{\"created\":{created}}}");
        self.on_record("links.upsert".to_owned(), edge.address(), by, detail);
        let result = upserted(&link, created);
        self.links.insert(edge, Some(link));
        Ok(result)
    }

    /// The edges that a deletion is about, in their order.
    fn ending(&mut self, ends: &Ends) -> Result<BTreeSet<Edge>, Failed<R::Error>> {
        let most = usize::try_from(self.limits.commit_rows).unwrap_or(usize::MAX).saturating_add(1);
        let found = self.rows.edges(ends, most).map_err(Failed::Rows)?;
        let mut edges: BTreeSet<Edge> = found.into_iter().collect();
        for (edge, link) in self.links.iter().filter(|(edge, _)| ends.has(edge)) {
            match link {
                Some(_) => edges.insert(edge.clone()),
                None => edges.remove(edge),
            };
        }
        Ok(edges)
    }

    fn step(
        &mut self,
        step: Step,
        fills: &[Fill],
        results: &[OpResult],
        mut stored_results: Option<Bytes>,
        plan: &mut Plan,
    ) -> Result<(), Failed<R::Error>> {
        let run = step.head.run;
        let next = self.filled(step.next.clone(), fills, results)?;
        let (head, stored) = advance(&step, &next);
        let (row, _) = self.runs.get_mut(&run).expect("the step's row was read when it was checked");
        row.revision = head.revision;
        row.version = head.version;
        row.fence = head.fence;
        row.owner = head.owner;
        row.status = step.status;
        let unseen = row.inbox_seq > step.head.inbox_seen && !step.status.is_final();
        row.wake = wake_after(step.wake, row.wake, unseen);
        row.chain = head.chain;
        row.attempt = step.attempt;
        row.definition = step.definition.unwrap_or(row.definition);
        row.updated_at = self.at;
        if let Some(last) = next.into_iter().next_back() {
            row.places = last.places;
        }
        for (version, stored) in (step.head.version.saturating_add(1)..).zip(stored) {
            // Where the commit's reference points to.
            let results = stored_results.take();
            plan.checkpoints.push(CheckpointRow { run, version, stored, results });
        }
        self.dirty.push(run);
        plan.committed.head = Some(head);
        plan.take.extend(step.take.into_iter().map(|seq| (run, seq)));
        plan.open.extend(step.open.into_iter().map(|wait| (run, wait)));
        plan.close.extend(step.close.into_iter().map(|activation| (run, activation)));
        plan.shadows.extend(step.shadows.into_iter().map(|shadow| (run, shadow)));
        Ok(())
    }

    /// The next states with the results of the operations in them.
    fn filled(
        &self,
        mut next: Vec<NextState>,
        fills: &[Fill],
        results: &[OpResult],
    ) -> Result<Vec<NextState>, Refused> {
        let Some(first) = fills.first() else { return Ok(next) };
        match &mut next[..] {
            [] => return Err(no_place(first, "the commit has no next state")),
            [next] => {
                *next = fill(next, fills, results)?;
                self.limits.snapshot_bytes("the snapshot", next.state.len())?;
            }
            [..] => return Err(no_place(first, "the commit has several next states")),
        }
        Ok(next)
    }

    fn create(&mut self, create: Vec<NewRun>, results: Option<&Bytes>, plan: &mut Plan) {
        let first = plan.checkpoints.is_empty();
        for (index, new) in create.into_iter().enumerate() {
            let (row, stored) = new_row(&new, self.at);
            plan.committed.created.push(row.head(new.first.state));
            plan.checkpoints.push(CheckpointRow {
                run: new.run,
                version: new.version,
                stored,
                // Where the commit's reference points to.
                results: results.filter(|_| first && index == 0).cloned(),
            });
            plan.open.extend(new.open.into_iter().map(|wait| (new.run, wait)));
            plan.shadows.extend(new.shadows.into_iter().map(|shadow| (new.run, shadow)));
            self.runs.insert(new.run, (row, true));
            self.dirty.push(new.run);
        }
    }

    /// What a run shows from the version on that the commit gives it. Of several writes under one key the last counts.
    fn show(&self, writes: Vec<DocumentWrite>, plan: &mut Plan) -> Result<(), Refused> {
        if writes.is_empty() {
            return Ok(());
        }
        // Of several versions the first shows them.
        let versions: BTreeMap<_, _> =
            plan.checkpoints.iter().rev().map(|row| (row.run, row.version)).collect();
        let mut last = BTreeMap::new();
        for (ordinal, write) in (0..).zip(writes) {
            let (run, key) = (write.run, write.key.clone());
            if let Err(error) = write.check_key(self.limits) {
                return Err(Refused::Document { run, key, error });
            }
            let Some(&version) = versions.get(&run) else { return Err(Refused::NoCheckpoint { run, key }) };
            last.insert((run, key), (version, write.row(version, ordinal, self.at)));
        }
        for ((run, key), (version, row)) in last {
            plan.hide.push(DocumentEnd { run, key, version });
            plan.documents.extend(row);
        }
        Ok(())
    }

    fn send(&mut self, send: Send, plan: &mut Plan) -> Result<Delivery, Failed<R::Error>> {
        let Send { to: run, message, missing } = send;
        let row = match self.row(run) {
            // Whoever cannot be read is not to hold up what goes to others too.
            Err(Failed::Rows(error)) if missing == Missing::Drop && self.rows.is_bad(&error) => None,
            row => row?,
        };
        let alive = row.is_some_and(|row| !row.status.is_final());
        let Some((row, _)) = self.runs.get_mut(&run).filter(|_| alive) else {
            return match missing {
                Missing::Drop => Ok(Delivery::Dropped),
                Missing::Refuse => Err(Refused::NoTarget { run }.into()),
            };
        };
        if message.counts && row.inbox_len >= self.limits.inbox {
            return Err(Refused::InboxFull { run, max: self.limits.inbox }.into());
        }
        row.inbox_seq += 1;
        row.inbox_len += u64::from(message.counts);
        row.wake = wake_after(row.wake, Some(self.at), true);
        let seq = row.inbox_seq;
        self.dirty.push(run);
        plan.put.push(MessageRow {
            run,
            counts: message.counts,
            message: Message {
                seq,
                topic: message.topic,
                body: message.body,
                received_at: self.at,
                expires_at: message.expires_at,
            },
        });
        Ok(Delivery::Kept(seq))
    }

    fn finish(mut self, plan: &mut Plan) {
        self.dirty.sort();
        self.dirty.dedup();
        for run in self.dirty {
            match self.runs.remove(&run) {
                Some((row, true)) => plan.insert.push(row),
                Some((row, false)) => plan.update.push(row),
                None => {}
            }
        }
        for (handle, row) in self.handles {
            match row {
                Some(row) => plan.handles.push(row),
                None => plan.used.push(handle),
            }
        }
        plan.cells = self.cells.into_values().collect();
        for (edge, link) in self.links {
            match link {
                Some(link) => plan.links.push(link),
                None => plan.unlink.push(edge),
            }
        }
        plan.audit = self.audit;
    }
}

fn key_row(key: KeyWrite, commit: CommitId, results: Option<Bytes>) -> KeyRow {
    let KeyWrite { operation, key, request, answer, lives } = key;
    KeyRow { operation, key, request, answer, results, lives, commit }
}

/// Results as they are kept; none if there were no operations.
pub fn encode_results(results: &[OpResult]) -> Option<Bytes> {
    if results.is_empty() {
        return None;
    }
    Some(serde_json::to_vec(results).expect("results are plain data").into())
}

/// Reads what [`encode_results`] wrote.
pub fn decode_results(bytes: Option<&[u8]>) -> Result<Vec<OpResult>, crate::store::StoreError> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    serde_json::from_slice(bytes).map_err(|error| crate::store::StoreError::Corrupt(error.to_string()))
}

fn fill(next: &NextState, fills: &[Fill], results: &[OpResult]) -> Result<NextState, Refused> {
    let mut state: Value = serde_json::from_slice(&next.state)
        .map_err(|error| no_place(&fills[0], &format!("the state is not JSON: {error}")))?;
    for fill in fills {
        let result =
            results.get(fill.operation).ok_or_else(|| no_place(fill, "there is no such operation"))?;
        put(&mut state, fill, fill.part.of(result))?;
    }
    let state = serde_json::to_vec(&state).expect("a JSON value is writable").into();
    Ok(NextState { state, entry: next.entry.clone(), places: next.places.clone() })
}

fn put(state: &mut Value, fill: &Fill, value: Value) -> Result<(), Refused> {
    let (parent, field) =
        fill.pointer.rsplit_once('/').ok_or_else(|| no_place(fill, "it is not a JSON pointer"))?;
    let field = field.replace("~1", "/").replace("~0", "~");
    match state.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(field, value);
            Ok(())
        }
        _ => Err(no_place(fill, "its parent is not an object in the state")),
    }
}

fn no_place(fill: &Fill, reason: &str) -> Refused {
    Refused::Fill { operation: fill.operation, pointer: fill.pointer.clone(), reason: reason.to_owned() }
}
