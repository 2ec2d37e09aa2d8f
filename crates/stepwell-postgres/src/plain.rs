//! Plain commits of one tenant: builds their statements, and the answer to each commit.

use std::collections::{BTreeMap, HashMap, HashSet};

use stepwell_core::{RunId, Timestamp};
use stepwell_store::plan::{is_unfenced, refuse_step, sends_hint};
use stepwell_store::{Commit, Committed, Hint, Refused, RunKey, RunRow, StoreError, TenantId};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::apply::{Applied, Prepared, push_common_statements};
use crate::columns::{Audit, BoundStatement, Closed, Definitions, Opened, Plain, Runs, Shadows, Trace};
use crate::error::Failure;
use crate::records::Records;
use crate::{rows, statements as sql};

/// A batch of plain commits of one tenant.
pub(crate) struct PlainBatch<'a> {
    pub(crate) tenant: TenantId,
    id: Uuid,
    /// The commits in the order of arrival.
    commits: Vec<&'a Prepared>,
    columns: PlainColumns<'a>,
    records: Option<(Records, Records)>,
    /// The tenant may not be recorded in the table `tenants` yet.
    pub(crate) is_new: bool,
}

/// The result of writing a batch.
pub(crate) struct PlainWritten {
    /// Runs that were advanced or created.
    pub(crate) moved: HashSet<RunId>,
    /// Wake times of runs that were released, as stored in their rows.
    woken: BTreeMap<RunId, Option<Timestamp>>,
}

impl<'a> PlainBatch<'a> {
    pub(crate) fn new(tenant: TenantId, batch: &[&'a Prepared], is_new: bool, has_citus: bool) -> Self {
        let commits = batch.to_vec();
        let mut sorted = commits.clone();
        // Every transaction locks several rows in this order, which prevents deadlocks.
        sorted.sort_unstable_by_key(|prepared| prepared.run());
        let columns = PlainColumns::of(sorted.into_iter());
        let records = (!has_citus).then(|| (columns.runs.records(), columns.checkpoints.records()));
        PlainBatch { tenant, id: tenant.uuid(), commits, columns, records, is_new }
    }

    pub(crate) fn bound(&self) -> Vec<BoundStatement<'_>> {
        self.columns.bound(&self.id, self.is_new, self.records.as_ref())
    }

    /// Reads the rows that the statements of [`PlainBatch::bound`] returned.
    pub(crate) fn written(&self, mut rows: Vec<Vec<Row>>) -> Result<PlainWritten, Failure> {
        let woken = if self.columns.woken.is_empty() { Vec::new() } else { rows.pop().unwrap_or_default() };
        let woken = woken.iter().map(|row| Ok((rows::run_id(row, 0)?, rows::instant(row, 1)?)));
        let woken = woken.collect::<Result<_, Failure>>()?;
        let moved = rows.get(usize::from(self.is_new)).into_iter().flatten();
        let moved = match &self.records {
            // `commit_runs` returns one array of all runs.
            Some(_) => {
                let list =
                    moved.map(|row| rows::get::<Option<Vec<Uuid>>>(row, 0)).collect::<Result<Vec<_>, _>>()?;
                list.into_iter().flatten().flatten().map(RunId::new).collect()
            }
            None => moved.map(|row| rows::run_id(row, 0)).collect::<Result<_, Failure>>()?,
        };
        Ok(PlainWritten { moved, woken })
    }

    /// Returns the runs of the commits that were refused.
    pub(crate) fn left_out(&self, written: &PlainWritten) -> Vec<Uuid> {
        let runs = self.commits.iter().filter_map(|prepared| prepared.run());
        runs.filter(|run| !written.moved.contains(run)).map(RunId::uuid).collect()
    }

    /// Returns true if a commit was refused although the current row of its run gives no reason.
    pub(crate) fn has_unexplained_refusal(&self, found: &Result<HashMap<RunId, RunRow>, StoreError>) -> bool {
        let Ok(found) = found else { return false };
        self.commits.iter().any(|prepared| {
            let row = prepared.run().and_then(|run| found.get(&run));
            match (prepared, &prepared.commit().step) {
                (Prepared::Step { .. }, Some(step)) => refuse_step(row, step).is_none(),
                _ => row.is_none(),
            }
        })
    }

    /// Returns the answer to each commit. `found` has the current rows of the runs whose commits were refused.
    pub(crate) fn answers(
        &self,
        written: &PlainWritten,
        found: &Result<HashMap<RunId, RunRow>, StoreError>,
    ) -> Vec<Applied> {
        let answer_to = |prepared: &&Prepared| {
            let run = prepared.run();
            if run.is_some_and(|run| written.moved.contains(&run)) {
                return Ok(answer(self.tenant, prepared, &written.woken));
            }
            match found {
                Ok(found) => Err(refusal(prepared, run.and_then(|run| found.get(&run))).into()),
                // The commit was not applied, but the reason could not be looked up.
                Err(error) => Err(error.clone().into()),
            }
        };
        self.commits.iter().map(answer_to).collect()
    }
}

/// The rows that plain commits write.
#[derive(Default)]
struct PlainColumns<'a> {
    runs: Runs<'a>,
    checkpoints: Plain<'a>,
    close: Closed<'a>,
    open: Opened<'a>,
    shadows: Shadows<'a>,
    definitions: Definitions<'a>,
    audit: Audit<'a>,
    /// Runs that are released. An unseen message may have set an earlier wake time in their rows, so it is read back.
    woken: Vec<Uuid>,
}

impl<'a> PlainColumns<'a> {
    fn of(batch: impl Iterator<Item = &'a Prepared>) -> Self {
        let mut columns = PlainColumns::default();
        batch.for_each(|prepared| columns.push(prepared));
        columns
    }

    fn push(&mut self, prepared: &'a Prepared) {
        // Destructured without `..`, so that a new field does not compile until it is handled here.
        let Commit {
            id,
            at,
            step,
            create,
            send: _,
            handles: _,
            cells: _,
            links: _,
            actor: _,
            bindings: _,
            documents: _,
            keys: _,
            definitions,
            audit,
        } = prepared.commit();
        let trace = match prepared {
            Prepared::Step { head, stored, places, .. } => {
                let Some(step) = step else { return };
                let first = step.head.version.saturating_add(1);
                let trace = Trace { commit: *id, at: Some((head.run, first)) };
                self.runs.propose(step, head, places.clone(), *at);
                for (version, stored) in (first..).zip(stored) {
                    self.checkpoints.push(head.run, version, stored, *id, *at);
                }
                step.close.iter().for_each(|activation| self.close.push(head.run, *activation, trace));
                self.open.push_all(head.run, &step.open, trace);
                self.shadows.push_all(head.run, &step.shadows, trace);
                let due = step.wake.is_some_and(|wake| wake <= *at);
                let is_given_up = head.owner.is_none() && step.head.owner.is_some();
                if is_given_up && !due && !step.status.is_final() {
                    self.woken.push(head.run.uuid());
                }
                trace
            }
            Prepared::Create { row, stored, .. } => {
                let Some(new) = create.first() else { return };
                let trace = Trace { commit: *id, at: Some((row.run, row.version)) };
                self.runs.push(row, rows::places(&row.places));
                self.checkpoints.push(row.run, row.version, stored, *id, *at);
                self.open.push_all(row.run, &new.open, trace);
                self.shadows.push_all(row.run, &new.shadows, trace);
                trace
            }
            Prepared::Planned { .. } => return,
        };
        definitions.iter().for_each(|definition| self.definitions.push(definition, trace));
        self.audit.push_all(audit, *at, None, trace);
    }

    /// Returns the statements in order. If wake times are read back, that is the last statement.
    fn bound<'s>(
        &'s self,
        tenant: &'s Uuid,
        is_new: bool,
        records: Option<&'s (Records, Records)>,
    ) -> Vec<BoundStatement<'s>> {
        let mut bound = Vec::with_capacity(4);
        if is_new {
            bound.push(BoundStatement { sql: sql::tenant_put, params: vec![tenant] });
        }
        bound.push(match records {
            Some((runs, checkpoints)) => {
                BoundStatement { sql: sql::commit, params: vec![tenant, runs, checkpoints] }
            }
            None => {
                let mut commit = self.runs.bound(sql::commit_spread, tenant);
                let checkpoints = self.checkpoints.bound(sql::commit_spread, tenant);
                commit.params.extend(checkpoints.params.into_iter().skip(1));
                commit
            }
        });
        let PlainColumns { close, open, shadows, definitions, audit, .. } = self;
        push_common_statements(&mut bound, tenant, close, open, shadows, definitions, audit);
        if !self.woken.is_empty() {
            bound.push(BoundStatement { sql: sql::runs_wake, params: vec![tenant, &self.woken] });
        }
        bound
    }
}

fn answer(
    tenant: TenantId,
    prepared: &Prepared,
    woken: &BTreeMap<RunId, Option<Timestamp>>,
) -> (Committed, Vec<Hint>) {
    let nothing = Committed { head: None, created: Vec::new(), results: Vec::new(), sent: Vec::new() };
    let at = prepared.commit().at;
    let (committed, sends_hint, run) = match prepared {
        Prepared::Step { commit, head, .. } => {
            let step = commit.step.as_ref();
            let wake = step.and_then(|step| step.wake);
            let wake = woken.get(&head.run).copied().unwrap_or(wake);
            let told = sends_hint(head.owner, wake, at, step.is_some_and(is_unfenced));
            (Committed { head: Some((**head).clone()), ..nothing }, told, head.run)
        }
        Prepared::Create { commit, row, .. } => {
            let state = commit.create.first().map(|new| new.first.state.clone()).unwrap_or_default();
            let told = sends_hint(row.owner, row.wake, at, false);
            (Committed { created: vec![row.head(state)], ..nothing }, told, row.run)
        }
        Prepared::Planned { .. } => return (nothing, Vec::new()),
    };
    (committed, if sends_hint { vec![Hint::Run(RunKey { tenant, run })] } else { Vec::new() })
}

/// Returns the reason that a commit was refused, from the current row of its run.
pub(crate) fn refusal(prepared: &Prepared, row: Option<&RunRow>) -> Refused {
    match prepared {
        Prepared::Create { row, .. } => Refused::RunExists { run: row.run },
        _ => {
            let Some(step) = &prepared.commit().step else { return Refused::NoRun { run: RunId::nil() } };
            let (run, revision) = (step.head.run, step.head.revision);
            let moved = Refused::Moved { run, expected: revision, actual: revision };
            refuse_step(row, step).unwrap_or(moved)
        }
    }
}
