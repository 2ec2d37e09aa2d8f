//! Plain commits of one tenant: the statement they go in, and what came of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use stepwell_core::{RunId, Timestamp};
use stepwell_store::plan::{is_told, is_unfenced, refuse_step};
use stepwell_store::{Commit, Committed, Hint, Refused, RunKey, RunRow, StoreError, TenantId};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::apply::{Applied, Prepared, beside};
use crate::columns::{Asked, Audit, Closed, Definitions, Opened, Plain, Runs, Shadows, Trace};
use crate::error::Failure;
use crate::records::Records;
use crate::{rows, statements as sql};

/// Plain commits of one tenant.
pub(crate) struct PlainBatch<'a> {
    pub(crate) tenant: TenantId,
    id: Uuid,
    /// In the order they came.
    commits: Vec<&'a Prepared>,
    columns: PlainColumns<'a>,
    records: Option<(Records, Records)>,
    /// Nobody knows the tenant yet, as far as this process knows.
    pub(crate) is_new: bool,
}

/// What a batch has written.
pub(crate) struct PlainWritten {
    /// Runs that have moved or begun.
    pub(crate) moved: HashSet<RunId>,
    /// When runs that were given up are to be looked at.
    woken: BTreeMap<RunId, Option<Timestamp>>,
}

impl<'a> PlainBatch<'a> {
    pub(crate) fn new(tenant: TenantId, batch: &[&'a Prepared], is_new: bool, has_citus: bool) -> Self {
        let commits = batch.to_vec();
        let mut sorted = commits.clone();
        // Whoever locks several rows locks them in this order.
        sorted.sort_unstable_by_key(|prepared| prepared.run());
        let columns = PlainColumns::of(sorted.into_iter());
        let records = (!has_citus).then(|| (columns.runs.records(), columns.checkpoints.records()));
        PlainBatch { tenant, id: tenant.uuid(), commits, columns, records, is_new }
    }

    pub(crate) fn asked(&self) -> Vec<Asked<'_>> {
        self.columns.asked(&self.id, self.is_new, self.records.as_ref())
    }

    /// Reads what the statements of [`PlainBatch::asked`] gave.
    pub(crate) fn written(&self, mut rows: Vec<Vec<Row>>) -> Result<PlainWritten, Failure> {
        let woken = if self.columns.woken.is_empty() { Vec::new() } else { rows.pop().unwrap_or_default() };
        let woken = woken.iter().map(|row| Ok((rows::run_id(row, 0)?, rows::instant(row, 1)?)));
        let woken = woken.collect::<Result<_, Failure>>()?;
        let moved = rows.get(usize::from(self.is_new)).into_iter().flatten();
        let moved = match &self.records {
            // One list of them all.
            Some(_) => {
                let list =
                    moved.map(|row| rows::get::<Option<Vec<Uuid>>>(row, 0)).collect::<Result<Vec<_>, _>>()?;
                list.into_iter().flatten().flatten().map(RunId::new).collect()
            }
            None => moved.map(|row| rows::run_id(row, 0)).collect::<Result<_, Failure>>()?,
        };
        Ok(PlainWritten { moved, woken })
    }

    /// The runs of the commits that were left out.
    pub(crate) fn left_out(&self, written: &PlainWritten) -> Vec<Uuid> {
        let runs = self.commits.iter().filter_map(|prepared| prepared.run());
        runs.filter(|run| !written.moved.contains(run)).map(RunId::uuid).collect()
    }

    /// What each commit came to, given the rows of those that were left out.
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
                // Why is not known, only that it was not applied.
                Err(error) => Err(error.clone().into()),
            }
        };
        self.commits.iter().map(answer_to).collect()
    }
}

/// What plain commits write.
#[derive(Default)]
struct PlainColumns<'a> {
    runs: Runs<'a>,
    checkpoints: Plain<'a>,
    close: Closed<'a>,
    open: Opened<'a>,
    shadows: Shadows<'a>,
    definitions: Definitions<'a>,
    audit: Audit<'a>,
    /// Runs whose wake time the row has the last word on.
    woken: Vec<Uuid>,
}

impl<'a> PlainColumns<'a> {
    fn of(batch: impl Iterator<Item = &'a Prepared>) -> Self {
        let mut columns = PlainColumns::default();
        batch.for_each(|prepared| columns.push(prepared));
        columns
    }

    fn push(&mut self, prepared: &'a Prepared) {
        // Taken apart without `..`: a new field does not compile until it is written here.
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
            fills: _,
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

    /// The statements, in order; the one that says when runs wake is the last, if there is one.
    fn asked<'s>(
        &'s self,
        tenant: &'s Uuid,
        is_new: bool,
        records: Option<&'s (Records, Records)>,
    ) -> Vec<Asked<'s>> {
        let mut asked = Vec::with_capacity(4);
        if is_new {
            asked.push(Asked { sql: sql::tenant_put, params: vec![tenant] });
        }
        asked.push(match records {
            Some((runs, checkpoints)) => Asked { sql: sql::commit, params: vec![tenant, runs, checkpoints] },
            None => {
                let mut commit = self.runs.asked(sql::commit_spread, tenant);
                let checkpoints = self.checkpoints.asked(sql::commit_spread, tenant);
                commit.params.extend(checkpoints.params.into_iter().skip(1));
                commit
            }
        });
        let PlainColumns { close, open, shadows, definitions, audit, .. } = self;
        beside(&mut asked, tenant, close, open, shadows, definitions, audit);
        if !self.woken.is_empty() {
            asked.push(Asked { sql: sql::runs_wake, params: vec![tenant, &self.woken] });
        }
        asked
    }
}

fn answer(
    tenant: TenantId,
    prepared: &Prepared,
    woken: &BTreeMap<RunId, Option<Timestamp>>,
) -> (Committed, Vec<Hint>) {
    let nothing = Committed { head: None, created: Vec::new(), results: Vec::new(), sent: Vec::new() };
    let at = prepared.commit().at;
    let (committed, is_told, run) = match prepared {
        Prepared::Step { commit, head, .. } => {
            let step = commit.step.as_ref();
            let wake = step.and_then(|step| step.wake);
            let wake = woken.get(&head.run).copied().unwrap_or(wake);
            let told = is_told(head.owner, wake, at, step.is_some_and(is_unfenced));
            (Committed { head: Some((**head).clone()), ..nothing }, told, head.run)
        }
        Prepared::Create { commit, row, .. } => {
            let state = commit.create.first().map(|new| new.first.state.clone()).unwrap_or_default();
            let told = is_told(row.owner, row.wake, at, false);
            (Committed { created: vec![row.head(state)], ..nothing }, told, row.run)
        }
        Prepared::Planned { .. } => return (nothing, Vec::new()),
    };
    (committed, if is_told { vec![Hint::Run(RunKey { tenant, run })] } else { Vec::new() })
}

/// Why a commit was left out, by the row as it is.
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
