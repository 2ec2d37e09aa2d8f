//! Plans a commit: from the rows that it names, computes the rows to write or the reason to refuse it.
//!
//! Every backend uses [`plan`] for commits that can still be refused after their compare-and-set. The backend reads the
//! rows under its locks, computes the [`Plan`] and writes it. All backends therefore agree, nothing has to be rolled
//! back, and no engine code runs inside a transaction.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::{Limits, RunId, Timestamp};
use uuid::Uuid;

use crate::bad::BadRow;
use crate::cell::{Cell, CellKey, CellWrite, OpResult, Space};
use crate::commit::{
    AuditRow, Commit, CommitId, CommitTrace, Committed, Delivery, KeyLifetime, KeyWrite, NewRun, NextState,
    OnMissingRun, Ownership, RECORD_OPERATION, Refused, ResultBinding, RunUpdate, SendMessage,
    StoredDefinition,
};
use crate::delta::{self, Stored};
use crate::document::{DocumentEnd, DocumentRow, DocumentWrite};
use crate::handle::{HandleChange, HandleHash, HandleKind, HandleRow, HandleWrite};
use crate::hints::Hint;
use crate::link::{Link, LinkEdge, LinkEnds, LinkError, LinkWrite, deleted, upserted};
use crate::run::{Head, ProcessId, RunRow, Status, StoredMessage, StoredWait};
use crate::scope::{RunKey, TenantId};
use crate::shadow::ShadowWrite;
use crate::store::{Recorded, StoreError};

/// Access to the current rows that a commit names. A backend reads them under its locks.
pub trait Rows {
    /// The error of a failed read.
    type Error;
    /// Returns true if the error means that the row exists but cannot be read.
    fn is_bad(&self, _error: &Self::Error) -> bool {
        false
    }
    /// Returns a run's row.
    fn run(&mut self, run: RunId) -> Result<Option<RunRow>, Self::Error>;
    /// Returns `None` if the message is not in the run's inbox, and otherwise whether it counts against the limit.
    fn message(&mut self, run: RunId, seq: u64) -> Result<Option<bool>, Self::Error>;
    /// Returns a handle's row.
    fn handle(&mut self, handle: &HandleHash) -> Result<Option<HandleRow>, Self::Error>;
    /// Returns a key's record, expired or not.
    fn key(&mut self, operation: &str, key: &str) -> Result<Option<KeyRow>, Self::Error>;
    /// Returns a cell, expired or not. A tombstone is returned too.
    fn cell(&mut self, key: &CellKey) -> Result<Option<Cell>, Self::Error>;
    /// Returns true if the commit has rows in the audit trail.
    fn has_audit_rows(&mut self, commit: CommitId) -> Result<bool, Self::Error>;
    /// Returns the link with this edge.
    fn link(&mut self, edge: &LinkEdge) -> Result<Option<Link>, Self::Error>;
    /// Returns up to `most` edges that match, in any order.
    fn edges(&mut self, ends: &LinkEnds, most: usize) -> Result<Vec<LinkEdge>, Self::Error>;
}

/// Reports that a key's record cannot be read.
pub fn bad_key(operation: &str, key: &str, why: String) -> BadRow {
    BadRow { table: "idempotency", key: format!("{operation} {key}"), run: None, why }
}

/// The stored record of an idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRow {
    pub operation: String,
    pub key: String,
    /// A hash of the request.
    pub request: [u8; 32],
    /// The answer to a repeated request.
    pub answer: Bytes,
    /// Results of the commit's operations (JSON); `None` if it had no operations.
    pub results: Option<Bytes>,
    pub lifetime: KeyLifetime,
    /// The commit that wrote it.
    pub commit: CommitId,
}

impl KeyRow {
    /// Returns the trace of the commit that wrote the key.
    pub fn recorded(&self) -> Result<Recorded, StoreError> {
        let results = decode_results(self.results.as_deref())?;
        Ok(Recorded { results, answer: Some(self.answer.clone()), request: Some(self.request) })
    }

    /// Returns true if the key is still valid at this time.
    ///
    /// A key that lives with a run is removed together with the run, so an existing one is valid.
    pub fn holds(&self, at: Timestamp) -> bool {
        self.lifetime.until().is_none_or(|until| until > at)
    }
}

/// The stored row of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointRow {
    pub run: RunId,
    pub version: u64,
    /// The encoded state and history entry.
    pub stored: Stored,
    /// Results of the commit's operations (JSON). Only the first checkpoint of a commit stores them.
    pub results: Option<Bytes>,
}

/// The stored row of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// The run whose inbox it is in.
    pub run: RunId,
    pub message: StoredMessage,
    /// The message counts against the inbox's limit.
    pub counts: bool,
}

/// Everything to write for one commit.
#[derive(Debug)]
pub struct Plan {
    pub commit: CommitId,
    /// The engine's clock at the decision.
    pub at: Timestamp,
    /// Rows of new runs.
    pub insert: Vec<RunRow>,
    /// Rows of existing runs that change.
    pub update: Vec<RunRow>,
    /// Checkpoints to insert: those of the step, then the first ones of new runs.
    pub checkpoints: Vec<CheckpointRow>,
    pub put: Vec<MessageRow>,
    /// Messages to delete, by run and sequence number.
    pub take: Vec<(RunId, u64)>,
    /// Waits to insert or replace. Write them after `close`.
    pub open: Vec<(RunId, StoredWait)>,
    /// Waits to delete, by run and activation.
    pub close: Vec<(RunId, u64)>,
    /// Flows whose shadow columns are all deleted, before `shadows` is written.
    pub clear_shadows: Vec<RunId>,
    /// Shadow columns to write, in order.
    pub shadows: Vec<(RunId, ShadowWrite)>,
    /// Handles to delete, before `handles` is written.
    pub used: Vec<HandleHash>,
    /// Handles to insert or replace.
    pub handles: Vec<HandleRow>,
    /// Cells to insert or replace.
    pub cells: Vec<Cell>,
    /// Links to insert or replace.
    pub links: Vec<Link>,
    pub unlink: Vec<LinkEdge>,
    /// Documents whose visibility ends, before `documents` is inserted.
    pub hide: Vec<DocumentEnd>,
    pub documents: Vec<DocumentRow>,
    /// Keys to insert or replace.
    pub keys: Vec<KeyRow>,
    /// Definitions to insert if they are not stored yet.
    pub definitions: Vec<StoredDefinition>,
    /// Audit rows to insert; the index is the ordinal.
    pub audit: Vec<AuditRow>,
    /// Results of the operations (JSON), to store with the first audit row if the commit is looked up there.
    pub trace: Option<Bytes>,
    /// The run of the step, if the step may come from a process that does not own the run. See [`is_unfenced`].
    pub unfenced: Option<RunId>,
    /// The result to return once the plan is written.
    pub committed: Committed,
}

impl Plan {
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
            clear_shadows: Vec::new(),
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

    /// Returns the hints to send once the plan is written.
    pub fn hints(&self, tenant: TenantId) -> Vec<Hint> {
        let messaged: BTreeSet<_> = self.put.iter().map(|row| row.run).collect();
        let sends = |row: &&RunRow| {
            let unfenced = self.unfenced == Some(row.run);
            messaged.contains(&row.run) || sends_hint(row.owner, row.wake, self.at, unfenced)
        };
        let runs = self.insert.iter().chain(&self.update).filter(sends);
        let runs = runs.map(|row| Hint::Run(RunKey { tenant, run: row.run }));
        runs.chain(self.cells.iter().map(|cell| Hint::Cell(tenant, cell.key.clone()))).collect()
    }
}

/// Returns true if the run's owner may not know of this step.
///
/// That is so if the step names no fence, unless it gives an unowned run its owner.
pub fn is_unfenced(step: &RunUpdate) -> bool {
    let is_first = step.head.owner.is_none() && matches!(step.owner, Ownership::Take(_));
    step.fence.is_none() && !is_first
}

/// Returns true if writing a run's row sends a hint.
///
/// A run without an owner sends one if it is due, so that any process can claim it. An owned run sends one only if
/// `unfenced` is set: the owner knows of its own steps, which name its fence, and must learn of steps by others.
pub fn sends_hint(owner: Option<ProcessId>, wake: Option<Timestamp>, at: Timestamp, unfenced: bool) -> bool {
    match owner {
        None => wake.is_some_and(|wake| wake <= at),
        Some(_) => unfenced,
    }
}

/// Plans a commit on the rows it names. `Ok(Err(…))` is a refusal, and `Err(…)` a failed read.
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

/// Returns the reason to refuse a step on this row, or `None` if the step can be applied.
///
/// The fence is compared before the revision.
pub fn refuse_step(row: Option<&RunRow>, step: &RunUpdate) -> Option<Refused> {
    let run = step.head.run;
    let Some(row) = row else { return Some(Refused::NoRun { run }) };
    if let Some(expected) = step.fence.filter(|fence| *fence != row.fence) {
        return Some(Refused::Fenced { run, expected, actual: row.fence });
    }
    let (expected, actual) = (step.head.revision, row.revision);
    let is_late = step.in_order && row.inbox_seq > step.head.inbox_seen;
    (expected != actual || is_late).then_some(Refused::Moved { run, expected, actual })
}

/// Returns the owner and the fence after a step.
pub fn ownership(step: &RunUpdate) -> (Option<ProcessId>, u64) {
    let Head { owner, fence, .. } = step.head;
    match step.owner {
        Ownership::Keep => (owner, fence),
        Ownership::Take(process) if owner == Some(process) => (owner, fence),
        Ownership::Take(process) => (Some(process), fence.saturating_add(1)),
        Ownership::Release => (None, fence),
    }
}

/// Returns the head after a step without result bindings, and the encoded checkpoints.
pub fn advance(step: &RunUpdate, next: &[NextState]) -> (Head, Vec<Stored>) {
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

/// Returns the row and the encoded first checkpoint of a new run.
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
        ledger: new.ledger.clone(),
        parent: new.parent.clone(),
        root: new.root,
        created_at: at,
        updated_at: at,
        error: new.error.clone().filter(|_| new.status == Status::Failed),
    };
    (row, stored)
}

/// Returns the wake-up time after a write.
///
/// With `unseen` it is the earlier of the step's time and the row's time. A message that the step did not see has set
/// the row's time. The caller passes `false` for a run that has ended.
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
    /// Rows read so far. The flag is true for a run that this commit inserts.
    runs: BTreeMap<RunId, (RunRow, bool)>,
    dirty: Vec<RunId>,
    /// Handles written so far; `None` = deleted.
    handles: BTreeMap<HandleHash, Option<HandleRow>>,
    cells: BTreeMap<CellKey, Cell>,
    /// Links written so far; `None` = deleted.
    links: BTreeMap<LinkEdge, Option<Link>>,
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
        let is_traced = commit.reference().at == CommitTrace::Audit;
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
            bindings,
            documents,
            keys,
            definitions,
            audit,
        } = commit;
        (self.actor, self.audit) = (actor, audit);
        let keys: Vec<_> = keys.into_iter().chain(record).collect();
        self.check_keys(&keys)?;
        if is_traced && self.rows.has_audit_rows(id).map_err(Failed::Rows)? {
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
        let mut results = self.apply_cells(&cells)?;
        self.link(links, &mut results)?;
        let stored_results = encode_results(&results);
        if let Some(step) = step {
            self.step(step, &bindings, &results, stored_results.clone(), &mut plan)?;
        } else if let Some(binding) = bindings.first() {
            return Err(binding_error(binding, "the commit has no next state").into());
        }
        self.create(create, stored_results.as_ref(), &mut plan);
        self.plan_documents(documents, &mut plan)?;
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

    fn check_step(&mut self, step: &RunUpdate) -> Result<(), Failed<R::Error>> {
        let run = step.head.run;
        if let Some(refused) = refuse_step(self.row(run)?.as_ref(), step) {
            return Err(refused.into());
        }
        for (index, &seq) in step.take.iter().enumerate() {
            // A message can be taken once: for the second time in the same commit it is no longer there.
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

    /// Applies the handle writes in order. Each one sees the result of the previous ones.
    fn handle(
        &mut self,
        writes: Vec<HandleWrite>,
        commit: CommitId,
        create: &[NewRun],
        plan: &mut Plan,
    ) -> Result<(), Failed<R::Error>> {
        // Flows whose state was in a handle that this commit writes.
        let mut handle_flows = BTreeSet::new();
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
            handle_flows.extend(known.as_ref().filter(|row| is_flow(row)).map(|row| row.run));
            let after = match (then, known) {
                (HandleChange::Put(row, shadows), _) => {
                    plan.shadows.extend(shadows.into_iter().map(|shadow| (row.run, shadow)));
                    Some(HandleRow { handle, fence, commit, ..*row })
                }
                (_, None) => return Err(refused.into()),
                (HandleChange::SetOwner(owner), Some(row)) => Some(HandleRow { owner, fence, commit, ..row }),
                (HandleChange::Deliver(delivery), Some(row)) => {
                    let (deliver_at, delivery) = delivery.unzip();
                    Some(HandleRow { deliver_at, delivery, fence, ..row })
                }
                (HandleChange::WriteShadows(shadows), Some(row)) => {
                    // An answer link holds no flow, so there are no shadow columns to write.
                    let shadows = shadows.into_iter().filter(|_| is_flow(&row));
                    plan.shadows.extend(shadows.map(|shadow| (row.run, shadow)));
                    Some(row)
                }
                (HandleChange::Take, Some(_)) => None,
            };
            self.handles.insert(handle, after);
        }
        // A flow keeps its columns if it continues as a run or in another handle.
        let continues = |run: &RunId| {
            let holds_flow = |row: &HandleRow| is_flow(row) && row.run == *run;
            create.iter().any(|new| new.run == *run) || self.handles.values().flatten().any(holds_flow)
        };
        plan.clear_shadows.extend(handle_flows.into_iter().filter(|run| !continues(run)));
        // A handle that was put and used up in this commit leaves no columns either.
        plan.shadows.retain(|(run, _)| !plan.clear_shadows.contains(run));
        Ok(())
    }

    /// Applies the cell operations in order. Each one sees the result of the previous ones.
    fn apply_cells(&mut self, writes: &[CellWrite]) -> Result<Vec<OpResult>, Failed<R::Error>> {
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
                self.add_audit_row(operation, write.key.address(), write.by, detail);
                self.cells.insert(write.key.clone(), cell);
            }
            results.push(result);
        }
        Ok(results)
    }

    /// Adds an audit row. Every change to data passes through here, so that no caller can omit it.
    fn add_audit_row(&mut self, operation: String, subject: String, run: Option<RunId>, detail: String) {
        let actor = self.actor.clone();
        self.audit.push(AuditRow { operation, subject, actor, run, detail: detail.into() });
    }

    /// Applies the link operations in order. Each one sees the result of the previous ones.
    fn link(&mut self, writes: Vec<LinkWrite>, results: &mut Vec<OpResult>) -> Result<(), Failed<R::Error>> {
        for write in writes {
            let operation = results.len();
            let refused = |error: LinkError| Refused::Link { operation, error };
            write.check(self.limits).map_err(refused)?;
            results.push(match write {
                LinkWrite::Upsert { edge, id, attributes, by } => self.upsert(edge, id, attributes, by)?,
                LinkWrite::Delete { ends, by } => {
                    let removed = self.matching_edges(&ends)?;
                    let limits = self.limits;
                    limits
                        .commit_rows("the deletion", removed.len())
                        .map_err(|error| refused(error.into()))?;
                    let result = deleted(removed.len());
                    for edge in removed {
                        self.add_audit_row("links.delete".to_owned(), edge.address(), by, "{}".to_owned());
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
        edge: LinkEdge,
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
        self.add_audit_row("links.upsert".to_owned(), edge.address(), by, detail);
        let result = upserted(&link, created);
        self.links.insert(edge, Some(link));
        Ok(result)
    }

    /// Returns the edges that a deletion matches, in order, including those written earlier in this commit.
    fn matching_edges(&mut self, ends: &LinkEnds) -> Result<BTreeSet<LinkEdge>, Failed<R::Error>> {
        let most = usize::try_from(self.limits.commit_rows).unwrap_or(usize::MAX).saturating_add(1);
        let found = self.rows.edges(ends, most).map_err(Failed::Rows)?;
        let mut edges: BTreeSet<LinkEdge> = found.into_iter().collect();
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
        step: RunUpdate,
        bindings: &[ResultBinding],
        results: &[OpResult],
        mut stored_results: Option<Bytes>,
        plan: &mut Plan,
    ) -> Result<(), Failed<R::Error>> {
        let run = step.head.run;
        let next = self.with_results(step.next.clone(), bindings, results)?;
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
        row.ledger = step.ledger;
        row.error = step.error.filter(|_| step.status == Status::Failed);
        row.definition = step.definition.unwrap_or(row.definition);
        row.updated_at = self.at;
        if let Some(last) = next.into_iter().next_back() {
            row.places = last.places;
        }
        for (version, stored) in (step.head.version.saturating_add(1)..).zip(stored) {
            // The reference of the commit points to its first checkpoint.
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

    /// Returns the next states with the results of the operations in them.
    fn with_results(
        &self,
        mut next: Vec<NextState>,
        bindings: &[ResultBinding],
        results: &[OpResult],
    ) -> Result<Vec<NextState>, Refused> {
        let Some(first) = bindings.first() else { return Ok(next) };
        match &mut next[..] {
            [] => return Err(binding_error(first, "the commit has no next state")),
            [next] => {
                *next = bind_results(next, bindings, results)?;
                self.limits.snapshot_bytes("the snapshot", next.state.len())?;
            }
            [..] => return Err(binding_error(first, "the commit has several next states")),
        }
        Ok(next)
    }

    fn create(&mut self, create: Vec<NewRun>, results: Option<&Bytes>, plan: &mut Plan) {
        let first = plan.checkpoints.is_empty();
        for (index, new) in create.into_iter().enumerate() {
            // The reference of the commit points to its first checkpoint.
            let results = results.filter(|_| first && index == 0).cloned();
            let head = self.insert(new, results, plan);
            plan.committed.created.push(head);
        }
    }

    fn insert(&mut self, new: NewRun, results: Option<Bytes>, plan: &mut Plan) -> Head {
        let (row, stored) = new_row(&new, self.at);
        let head = row.head(new.first.state);
        plan.checkpoints.push(CheckpointRow { run: new.run, version: new.version, stored, results });
        plan.open.extend(new.open.into_iter().map(|wait| (new.run, wait)));
        plan.shadows.extend(new.shadows.into_iter().map(|shadow| (new.run, shadow)));
        self.runs.insert(new.run, (row, true));
        self.dirty.push(new.run);
        head
    }

    /// Makes sure that the run of a message exists and accepts it: inserts it, or opens it again if it has ended.
    fn ensure(&mut self, new: NewRun, plan: &mut Plan) -> Result<(), Failed<R::Error>> {
        if self.row(new.run)?.is_none() {
            self.insert(new, None, plan);
        } else if let Some((row, _)) = self.runs.get_mut(&new.run).filter(|(row, _)| row.status.is_final()) {
            (row.status, row.wake, row.updated_at) = (new.status, new.wake, self.at);
            // A decision on the ended run is refused, so that it is read again.
            row.revision += 1;
        }
        Ok(())
    }

    /// Plans the documents. They are visible from the version that this commit creates. The last write to a key wins.
    fn plan_documents(&self, writes: Vec<DocumentWrite>, plan: &mut Plan) -> Result<(), Refused> {
        if writes.is_empty() {
            return Ok(());
        }
        // If a run gets several versions, the first one shows the documents.
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

    fn send(&mut self, send: SendMessage, plan: &mut Plan) -> Result<Delivery, Failed<R::Error>> {
        let SendMessage { to: run, message, missing } = send;
        if let OnMissingRun::Create(new) = &missing {
            self.ensure(new.as_ref().clone(), plan)?;
        }
        let row = match self.row(run) {
            // An unreadable target must not block the messages to others.
            Err(Failed::Rows(error)) if missing == OnMissingRun::Drop && self.rows.is_bad(&error) => None,
            row => row?,
        };
        let alive = row.is_some_and(|row| !row.status.is_final());
        let Some((row, _)) = self.runs.get_mut(&run).filter(|_| alive) else {
            return match missing {
                OnMissingRun::Drop => Ok(Delivery::Dropped),
                OnMissingRun::Refuse | OnMissingRun::Create(_) => Err(Refused::NoTarget { run }.into()),
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
            message: StoredMessage {
                seq,
                topic: message.topic,
                body: message.body,
                received_at: self.at,
                expires_at: message.expires_at,
            },
        });
        Ok(Delivery::Enqueued(seq))
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
    let KeyWrite { operation, key, request, answer, lifetime } = key;
    KeyRow { operation, key, request, answer, results, lifetime, commit }
}

/// Encodes the results of operations for storage; `None` if there are none.
pub fn encode_results(results: &[OpResult]) -> Option<Bytes> {
    if results.is_empty() {
        return None;
    }
    Some(serde_json::to_vec(results).expect("results are plain data").into())
}

/// Decodes the output of [`encode_results`]. `None` gives no results.
pub fn decode_results(bytes: Option<&[u8]>) -> Result<Vec<OpResult>, crate::store::StoreError> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    serde_json::from_slice(bytes).map_err(|error| crate::store::StoreError::Corrupt(error.to_string()))
}

fn bind_results(
    next: &NextState,
    bindings: &[ResultBinding],
    results: &[OpResult],
) -> Result<NextState, Refused> {
    let mut state: Value = serde_json::from_slice(&next.state)
        .map_err(|error| binding_error(&bindings[0], &format!("the state is not JSON: {error}")))?;
    for binding in bindings {
        let result = results
            .get(binding.operation)
            .ok_or_else(|| binding_error(binding, "there is no such operation"))?;
        put(&mut state, binding, binding.part.of(result))?;
    }
    let state = serde_json::to_vec(&state).expect("a JSON value is writable").into();
    Ok(NextState { state, entry: next.entry.clone(), places: next.places.clone() })
}

fn put(state: &mut Value, binding: &ResultBinding, value: Value) -> Result<(), Refused> {
    let (parent, field) =
        binding.pointer.rsplit_once('/').ok_or_else(|| binding_error(binding, "it is not a JSON pointer"))?;
    let field = field.replace("~1", "/").replace("~0", "~");
    match state.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(field, value);
            Ok(())
        }
        _ => Err(binding_error(binding, "its parent is not an object in the state")),
    }
}

fn binding_error(binding: &ResultBinding, reason: &str) -> Refused {
    Refused::ResultBinding {
        operation: binding.operation,
        pointer: binding.pointer.clone(),
        reason: reason.to_owned(),
    }
}
