//! Shadow columns: runs found by them, and refills. What a step writes of them goes beside its run, in either lane.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{Name, RunId};
use stepwell_store::shadow::{joined, split};
use stepwell_store::{
    CommitId, Listing, Page, Refill, Refilled, RunQuery, RunRow, RunSummary, ShadowRow, ShadowWrite, Status,
    Swept, TenantId,
};
use uuid::Uuid;

use crate::columns::{Shaded, Shadows, Trace};
use crate::connection::{Connections, Mode, Param, Sees, Transaction};
use crate::listed::page;
use crate::query::{ask, before, each, read, run_cursor};
use crate::rows::{self, Read};
use crate::statements as sql;

/// What a run's columns hold.
pub(crate) async fn of_run(on: &Connections, tenant: TenantId, run: RunId) -> Read<Vec<ShadowRow>> {
    let found = read(on, tenant, sql::shadows_of_run, &[&tenant.uuid(), &run.uuid()]).await?;
    let rows = each(&found, |row| {
        let value = joined(rows::get(row, 2)?, rows::get(row, 3)?, rows::get(row, 4)?);
        let (workflow, name) = (rows::get::<&str>(row, 0)?.into(), rows::get::<&str>(row, 1)?.into());
        Ok(value.map(|value| ShadowRow { run, workflow, name, value }))
    })?;
    Ok(rows.into_iter().flatten().collect())
}

/// Runs whose columns hold what the query says: by the index of the first, the others are filters.
pub(crate) async fn runs(on: &Connections, tenant: TenantId, query: &RunQuery) -> Read<Page<RunSummary>> {
    // Columns are those of a workflow that is named, so nothing is barred.
    let RunQuery { workflow, without: _, status, parent, shadows, limit, cursor } = query;
    let before = before(cursor.as_deref())?;
    let nothing = Page::of([]);
    let Some(((name, value), others)) = shadows.split_first() else { return Ok(nothing) };
    // What cannot be written cannot be there.
    if shadows.iter().any(|(name, value)| name.contains('\0') || !value.fits()) {
        return Ok(nothing);
    }
    let (workflow, status) = (workflow.as_ref().map(Name::as_str), status.map(Status::as_str));
    let (text, number, boolean) = split(value);
    let (statement, held): (_, Param<'_>) = match value.kind() {
        ShadowType::String => (sql::runs_by_text, &text),
        ShadowType::Number => (sql::runs_by_number, &number),
        ShadowType::Boolean => (sql::runs_by_boolean, &boolean),
    };
    let Held { names, texts, numbers, booleans } = Held::of(others);
    let (id, parent, limited, name) = (tenant.uuid(), parent.map(RunId::uuid), ask(*limit), name.as_str());
    let which: [Param<'_>; 12] = [
        &id, &before, &workflow, &status, &parent, &limited, &name, held, &names, &texts, &numbers, &booleans,
    ];
    let rows = read(on, tenant, statement, &which).await?;
    page(&rows, Listing::of("runs"), *limit, run_cursor, |row| rows::run(row).map(RunRow::summary))
}

/// What columns are to hold, as filters: an array of each.
pub(crate) struct Held<'a> {
    pub(crate) names: Vec<&'a str>,
    pub(crate) texts: Vec<Option<&'a str>>,
    pub(crate) numbers: Vec<Option<f64>>,
    pub(crate) booleans: Vec<Option<bool>>,
}

impl<'a> Held<'a> {
    pub(crate) fn of(wanted: &'a [(Name, ShadowValue)]) -> Self {
        let values: Vec<_> = wanted.iter().map(|(_, value)| split(value)).collect();
        Held {
            names: wanted.iter().map(|(name, _)| name.as_str()).collect(),
            texts: values.iter().map(|(text, ..)| *text).collect(),
            numbers: values.iter().map(|(_, number, _)| *number).collect(),
            booleans: values.iter().map(|(.., boolean)| *boolean).collect(),
        }
    }
}

/// What the plans of a batch come to: of several writes to one column the last counts.
#[derive(Default)]
pub(crate) struct Shading {
    /// Flows whose columns all go, before any is written.
    all: BTreeSet<RunId>,
    writes: BTreeMap<RunId, BTreeMap<Name, (CommitId, ShadowWrite)>>,
}

impl Shading {
    /// What a plan writes, after those before it.
    pub(crate) fn add(&mut self, commit: CommitId, unshade: Vec<RunId>, shadows: Vec<(RunId, ShadowWrite)>) {
        for run in unshade {
            // What was written before would be written after.
            self.writes.remove(&run);
            self.all.insert(run);
        }
        for (run, write) in shadows {
            self.writes.entry(run).or_default().insert(write.name.clone(), (commit, write));
        }
    }

    /// The flows whose columns all go.
    pub(crate) fn bare(&self) -> Vec<Uuid> {
        self.all.iter().map(|run| run.uuid()).collect()
    }

    /// The columns that change after that.
    pub(crate) fn columns(&self) -> Shadows<'_> {
        let mut columns = Shadows::default();
        for (run, writes) in &self.writes {
            for (commit, write) in writes.values() {
                let trace = Trace { commit: *commit, at: None };
                columns.push_all(*run, std::slice::from_ref(write), trace);
            }
        }
        columns
    }
}

/// Columns become what they should be, of runs that have not moved since they were read: they cannot until it is done.
pub(crate) async fn refill(on: &Connections, tenant: TenantId, refills: &[Refill]) -> Read<Swept> {
    let id = tenant.uuid();
    let connection = on.get().await?;
    let still = connection.statement(sql::runs_still).await?;
    let keep = connection.statement(sql::shadows_keep).await?;
    let put = connection.statement(sql::shadows_put).await?;
    let begin = connection.statement(sql::shadows_begin).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let asked: Vec<Uuid> = refills.iter().map(|refill| refill.run.uuid()).collect();
    let which: [Param<'_>; 2] = [&id, &asked];
    let opened = on.begin(Sees::Tenant(tenant), Mode::Writes);
    let (begun, found) = tokio::join!(connection.begin(&opened), connection.ask(&still, &which));
    begun?;
    let versions = each(&found?, |row| Ok((rows::run_id(row, 0)?, rows::unsigned(row, 1)?)))?;
    let versions: HashMap<RunId, u64> = versions.into_iter().collect();
    let mut wanted = Wanted::default();
    let mut more = false;
    for refill in refills {
        match versions.get(&refill.run) {
            Some(version) if *version == refill.version => wanted.push(refill),
            Some(_) => more = true,
            None => {}
        }
    }
    let (is, begins) = (wanted.is.asked(sql::shadows_put, &id), wanted.begins.asked(sql::shadows_begin, &id));
    let kept: [Param<'_>; 4] = [&id, &wanted.runs, &wanted.of, &wanted.names];
    let (gone, put, begun, ended) = tokio::join!(
        connection.ask(&keep, &kept),
        connection.ask(&put, &is.params),
        connection.ask(&begin, &begins.params),
        connection.command("commit")
    );
    let count = gone?.len() + put?.len() + begun?.len();
    ended?;
    transaction.over();
    Ok(Swept { count: count as u64, more })
}

/// What the columns of some runs should be.
#[derive(Default)]
struct Wanted<'a> {
    runs: Vec<Uuid>,
    of: Vec<Uuid>,
    names: Vec<&'a str>,
    is: Shaded<'a>,
    begins: Shaded<'a>,
}

impl<'a> Wanted<'a> {
    fn push(&mut self, refill: &'a Refill) {
        let Refill { run, version: _, workflow, columns } = refill;
        let trace = Trace { commit: CommitId(Uuid::nil()), at: None };
        self.runs.push(run.uuid());
        for (name, refilled) in columns {
            self.of.push(run.uuid());
            self.names.push(name);
            match refilled {
                Refilled::Is(value) => self.is.push(*run, (workflow, name), value, trace),
                Refilled::Begins(value) => self.begins.push(*run, (workflow, name), value, trace),
            }
        }
    }
}
