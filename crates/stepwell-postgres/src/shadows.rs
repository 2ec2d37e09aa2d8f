//! Shadow columns: finds runs by them and refills them. The columns that a step changes are written with its run, in
//! either lane.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stepwell_core::shadow::ShadowValue;
use stepwell_core::{Name, RunId};
use stepwell_store::shadow::{ShadowSpans, joined, split};
use stepwell_store::{
    CleanupResult, CommitId, Listing, Page, RefillColumn, ShadowFilter, ShadowRefill, ShadowRow, ShadowWrite,
    StoreError, TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::columns::{Shaded, Shadows, Trace};
use crate::connection::{Connections, Mode, Param, Transaction, Visibility};
use crate::listed::all;
use crate::query::{each, read};
use crate::rows::{self, Read};
use crate::statements as sql;

/// Returns the shadow columns of a run.
pub(crate) async fn of_run(on: &Connections, tenant: TenantId, run: RunId) -> Read<Page<ShadowRow>> {
    let found = read(on, tenant, sql::shadows_of_run, &[&tenant.uuid(), &run.uuid()]).await?;
    let of = Listing::of_run("shadows", run);
    let shadow = |row: &Row| {
        let value = joined(rows::get(row, 2)?, rows::get(row, 3)?, rows::get(row, 4)?);
        let (workflow, name) = (rows::get::<&str>(row, 0)?.into(), rows::get::<&str>(row, 1)?.into());
        let value = value.ok_or_else(|| StoreError::Corrupt("it has no value".to_owned()))?;
        Ok(ShadowRow { run, workflow, name, value })
    };
    let name = |row: &Row| Ok(rows::get::<&str>(row, 1)?.to_owned());
    Ok(Page::all(all(&found, of, name, shadow)?))
}

/// Returns the shadow columns of several runs.
pub(crate) async fn of_runs(on: &Connections, tenant: TenantId, runs: &[RunId]) -> Read<Vec<ShadowRow>> {
    let runs: Vec<Uuid> = runs.iter().map(|run| run.uuid()).collect();
    let found = read(on, tenant, sql::shadows_of_runs, &[&tenant.uuid(), &runs]).await?;
    let rows = each(&found, |row| {
        let value = joined(rows::get(row, 3)?, rows::get(row, 4)?, rows::get(row, 5)?);
        let (workflow, name) = (rows::get::<&str>(row, 1)?.into(), rows::get::<&str>(row, 2)?.into());
        let run = rows::run_id(row, 0)?;
        Ok(value.map(|value| ShadowRow { run, workflow, name, value }))
    })?;
    Ok(rows.into_iter().flatten().collect())
}

/// Returns true if a filter contains a name or value that cannot be stored, and so cannot be found.
pub(crate) fn is_unstorable(ShadowFilter { name, is }: &ShadowFilter) -> bool {
    name.contains('\0') || is.is_unstorable()
}

/// The ends of a span as parameters.
pub(crate) struct SpanParams<'s> {
    pub(crate) from: Param<'s>,
    pub(crate) after: Param<'s>,
    pub(crate) to: Param<'s>,
    pub(crate) before: Param<'s>,
}

impl<'s> SpanParams<'s> {
    pub(crate) fn of(spans: &'s ShadowSpans) -> Self {
        match spans {
            ShadowSpans::Texts(span) => SpanParams {
                from: &span.after.0,
                after: &span.after.1,
                to: &span.before.0,
                before: &span.before.1,
            },
            ShadowSpans::Numbers(span) => SpanParams {
                from: &span.after.0,
                after: &span.after.1,
                to: &span.before.0,
                before: &span.before.1,
            },
        }
    }
}

/// Reads the value of the column that orders a listing.
pub(crate) fn value_at(row: &Row, index: usize, spans: &ShadowSpans) -> Read<ShadowValue> {
    match spans {
        ShadowSpans::Texts(_) => Ok(ShadowValue::Text(rows::get(row, index)?)),
        ShadowSpans::Numbers(_) => Ok(ShadowValue::Number(rows::get(row, index)?)),
    }
}

/// Filters on shadow columns as comparisons, with one array for each parameter.
pub(crate) struct ShadowFilters {
    pub(crate) names: Vec<String>,
    pub(crate) texts: Vec<Option<String>>,
    pub(crate) numbers: Vec<Option<f64>>,
    pub(crate) booleans: Vec<Option<bool>>,
    pub(crate) operators: Vec<&'static str>,
}

impl ShadowFilters {
    pub(crate) fn of(wanted: &[&ShadowFilter]) -> Self {
        let mut filters = ShadowFilters {
            names: Vec::new(),
            texts: Vec::new(),
            numbers: Vec::new(),
            booleans: Vec::new(),
            operators: Vec::new(),
        };
        for filter in wanted {
            for (operator, value) in filter.is.comparisons() {
                let (text, number, boolean) = split(&value);
                filters.names.push(filter.name.as_str().to_owned());
                filters.texts.push(text.map(str::to_owned));
                filters.numbers.push(number);
                filters.booleans.push(boolean);
                filters.operators.push(operator);
            }
        }
        filters
    }
}

/// The combined changes of shadow columns by a batch's plans. Of several writes to one column, only the last is kept.
#[derive(Default)]
pub(crate) struct ShadowChanges {
    /// Flows whose columns are all deleted before new ones are written.
    all: BTreeSet<RunId>,
    writes: BTreeMap<RunId, BTreeMap<Name, (CommitId, ShadowWrite)>>,
}

impl ShadowChanges {
    /// Adds the changes of the next plan.
    pub(crate) fn add(
        &mut self,
        commit: CommitId,
        clear_shadows: Vec<RunId>,
        shadows: Vec<(RunId, ShadowWrite)>,
    ) {
        for run in clear_shadows {
            // Earlier writes must be dropped, because all writes come after the deletion.
            self.writes.remove(&run);
            self.all.insert(run);
        }
        for (run, write) in shadows {
            self.writes.entry(run).or_default().insert(write.name.clone(), (commit, write));
        }
    }

    /// Returns the flows whose columns are all deleted.
    pub(crate) fn cleared(&self) -> Vec<Uuid> {
        self.all.iter().map(|run| run.uuid()).collect()
    }

    /// Returns the columns that are written after that.
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

/// Sets the columns of runs to the given values. Skips runs that have advanced since they were read. The runs are
/// locked, so that they cannot advance meanwhile.
pub(crate) async fn refill(
    on: &Connections,
    tenant: TenantId,
    refills: &[ShadowRefill],
) -> Read<CleanupResult> {
    let id = tenant.uuid();
    let connection = on.get().await?;
    let still = connection.statement(sql::runs_active).await?;
    let keep = connection.statement(sql::shadows_keep).await?;
    let put = connection.statement(sql::shadows_put).await?;
    let begin = connection.statement(sql::shadows_begin).await?;
    let record = connection.statement(sql::tenant_put).await?;
    let transaction = Transaction::new(connection);
    let connection = transaction.on();
    let bound: Vec<Uuid> = refills.iter().map(|refill| refill.run.uuid()).collect();
    let which: [Param<'_>; 2] = [&id, &bound];
    let opened = on.begin(Visibility::Tenant(tenant), Mode::Writes);
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
    let (is, begins) = (wanted.is.bound(sql::shadows_put, &id), wanted.begins.bound(sql::shadows_begin, &id));
    let kept: [Param<'_>; 4] = [&id, &wanted.runs, &wanted.of, &wanted.names];
    let tenant: [Param<'_>; 1] = [&id];
    let (recorded, gone, put, begun, ended) = tokio::join!(
        // The inserts take the tenant from this row.
        connection.ask(&record, &tenant),
        connection.ask(&keep, &kept),
        connection.ask(&put, &is.params),
        connection.ask(&begin, &begins.params),
        connection.command("commit")
    );
    recorded?;
    let count = gone?.len() + put?.len() + begun?.len();
    ended?;
    transaction.over();
    Ok(CleanupResult { count: count as u64, more })
}

/// The wanted columns of some runs.
#[derive(Default)]
struct Wanted<'a> {
    runs: Vec<Uuid>,
    of: Vec<Uuid>,
    names: Vec<&'a str>,
    is: Shaded<'a>,
    begins: Shaded<'a>,
}

impl<'a> Wanted<'a> {
    fn push(&mut self, refill: &'a ShadowRefill) {
        let ShadowRefill { run, version: _, workflow, columns } = refill;
        let trace = Trace { commit: CommitId(Uuid::nil()), at: None };
        self.runs.push(run.uuid());
        for (name, refilled) in columns {
            self.of.push(run.uuid());
            self.names.push(name);
            match refilled {
                RefillColumn::Set(value) => self.is.push(*run, (workflow, name), value, trace),
                RefillColumn::SetIfMissing(value) => self.begins.push(*run, (workflow, name), value, trace),
            }
        }
    }
}
