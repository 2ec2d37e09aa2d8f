//! Shadow columns of durable runs: written with the step that changes them, used to search runs, and healed.
//!
//! A declaration applies to all runs of a workflow, whatever version they are pinned to. The version for new runs
//! declares the columns, unless the run's own version is higher. The tenant's catalogue selects the version for new runs
//! if it contains the workflow. A step writes the columns whose value differs between
//! the context before and after it. [`Engine::heal`] fills a column that was declared after a run started, or whose
//! path has changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use serde_json::Value;
use stepwell_core::shadow::{Column, Seen, ShadowType, ShadowValue};
use stepwell_core::{DefinitionHash, Name, RunId, Snapshot};
use stepwell_store::{
    Cleanup, CleanupKind, CleanupResult, HandleChange, HandleKind, HandleQuery, HandleRow, HandleWrite,
    Loaded, Page, Record, RecordQuery, RefillColumn, Refused, RunCount, RunFilter, RunQuery, RunSummary,
    ShadowFilter, ShadowRefill, ShadowWrite, StoreError, TenantId, TenantScope,
};

use crate::actor::Permission;
use crate::commit_cycle::{CommitFailure, MAX_ATTEMPTS};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::registry::{OWN, Workflow};
use crate::runner;

/// Default number of rows in a listing.
const PAGE: u32 = 50;
/// Prefix of a heal position that lies within the flows.
const FLOWS: &str = "flows:";
/// Number of runs loaded concurrently during healing.
const READ_AT_ONCE: usize = 8;

impl Inner {
    /// Returns the changes of a run's shadow columns between two contexts, each with the run's version. `before` is
    /// `None` for a new run. Call [`load_columns`](Self::load_columns) first.
    pub(crate) fn shadows(
        &self,
        tenant: TenantId,
        before: Option<(&Arc<Workflow>, &Value)>,
        (own, after): (&Arc<Workflow>, &Value),
    ) -> Vec<ShadowWrite> {
        if !self.registry.has_shadows() {
            return Vec::new();
        }
        if let Some((was, _)) = before.filter(|(was, _)| was.definition.hash() != own.definition.hash()) {
            return self.declaring(tenant, own).all_shadows(&self.declaring(tenant, was), after);
        }
        let before = before.map(|(_, before)| before);
        if before.is_some_and(|before| std::ptr::eq(before, after)) {
            return Vec::new();
        }
        let declared = self.declaring(tenant, own);
        let columns = declared.definition.shadows().iter().enumerate();
        let changed = columns.filter_map(|(index, column)| {
            let seen = declared.shadow(index, column, after);
            let value = match (seen, before.map(|before| column.read(before))) {
                (Some(value), Some(Seen::Hit(was))) if value == was => return None,
                (Some(value), _) => Some(value),
                (None, None) => Some(column.default().cloned()?),
                (None, Some(Seen::Hit(_))) if column.default().is_none() => None,
                (None, Some(_)) => return None,
            };
            let (workflow, name) = (declared.definition.name().clone(), column.name().clone());
            Some(ShadowWrite { workflow, name, value })
        });
        changed.collect()
    }

    /// Returns the shadow columns of a new run.
    pub(crate) async fn new_shadows(&self, scope: TenantScope, run: &LoadedRun) -> Vec<ShadowWrite> {
        self.load_columns(scope, &run.workflow).await;
        self.shadows(scope.tenant(), None, (&run.workflow, run.snapshot.context()))
    }

    /// Returns the changes of a run's shadow columns between two states.
    pub(crate) async fn changed_shadows(
        &self,
        scope: TenantScope,
        before: &LoadedRun,
        after: &LoadedRun,
    ) -> Vec<ShadowWrite> {
        self.load_columns(scope, &after.workflow).await;
        let before = (&before.workflow, before.snapshot.context());
        self.shadows(scope.tenant(), Some(before), (&after.workflow, after.snapshot.context()))
    }

    /// Loads the version that declares the shadow columns of a run, at most a second old. If that fails, the version
    /// that this process knows declares them.
    pub(crate) async fn load_columns(&self, scope: TenantScope, own: &Workflow) {
        if let Err(error) = self.load_declaring(scope, own).await {
            let workflow = own.definition.name();
            tracing::warn!(%workflow, %error, "the current shadow columns cannot be loaded: run heal");
        }
    }

    /// Returns a counter that changes whenever the declared shadow columns may have changed.
    pub(crate) fn shadow_revision(&self) -> u64 {
        // Neither counter decreases, so the sum changes with each of them.
        self.registry.shadow_revision() + self.catalogues.revision()
    }

    /// Returns the version that declares the columns of a run or flow, given the hash of its own version. `None` if no
    /// version can be read.
    async fn declaring_of(
        &self,
        scope: TenantScope,
        own: DefinitionHash,
        workflow: &Name,
    ) -> Result<Option<Arc<Workflow>>, EngineError> {
        let tenant = scope.tenant();
        if self.registry.by_hash(tenant, own).is_none() {
            runner::learn(self, scope, own).await?;
        }
        let Some(own) = self.registry.by_hash(tenant, own) else {
            return Ok(self.registry.by_name(workflow));
        };
        self.load_declaring(scope, &own).await?;
        Ok(Some(self.declaring(tenant, &own)))
    }

    /// Fills columns that were declared while a commit was in progress. The commit did not contain them.
    pub(crate) async fn catch_up(&self, scope: TenantScope, runs: Vec<RunId>) {
        if let Err(error) = self.refill(scope, &runs, &mut Refilling::default()).await {
            let run = runs.first();
            tracing::warn!(?run, %error, "newly declared shadow columns are not filled: run heal");
        }
    }

    /// Heals the columns of these runs.
    async fn refill(
        &self,
        scope: TenantScope,
        runs: &[RunId],
        done: &mut Refilling,
    ) -> Result<(), EngineError> {
        if self.refill_once(scope, runs, done).await? {
            return Ok(());
        }
        // A run has changed since it was read. Heal each separately, so that a busy run does not delay the others.
        done.unreadable = 0;
        for run in runs {
            let mut attempt = 0;
            while !self.refill_once(scope, &[*run], done).await? {
                attempt += 1;
                if attempt == MAX_ATTEMPTS {
                    tracing::warn!(%run, "a run changed on every attempt to heal its shadow columns");
                    done.missed += 1;
                    break;
                }
                self.pause_after(attempt).await;
            }
        }
        Ok(())
    }

    /// Heals the columns of these runs once. Returns false if a run has changed since it was read.
    async fn refill_once(
        &self,
        scope: TenantScope,
        runs: &[RunId],
        done: &mut Refilling,
    ) -> Result<bool, EngineError> {
        let mut refills = Vec::with_capacity(runs.len());
        for some in runs.chunks(READ_AT_ONCE) {
            let loads: Vec<_> = some.iter().map(|run| self.store.load(scope, *run)).collect();
            let mut loaded = Vec::new();
            for one in join_all(loads).await {
                match one {
                    Err(StoreError::Bad(row)) => {
                        done.unreadable += 1;
                        tracing::warn!(%row, "an unreadable run keeps its shadow columns");
                    }
                    one => loaded.extend(one?),
                }
            }
            let loaded = loaded.into_iter();
            // The columns of the engine's own runs are not derived from their data.
            for loaded in loaded.filter(|loaded| !loaded.workflow.starts_with(OWN)) {
                let declared = self.declaring_of(scope, loaded.definition, &loaded.workflow).await?;
                let Some(declared) = declared else {
                    done.unreadable += 1;
                    tracing::warn!(run = %loaded.head.run, "a run without a readable definition keeps its shadow columns");
                    continue;
                };
                match declared.refill(&loaded) {
                    Ok(refill) => refills.push(refill),
                    Err(error) => {
                        done.unreadable += 1;
                        tracing::warn!(run = %loaded.head.run, %error, "an unreadable run keeps its shadow columns");
                    }
                }
            }
        }
        let cleanup = Cleanup { now: self.host.now(), limit: 1, what: CleanupKind::Shadows(refills) };
        let CleanupResult { count, more } = self.store.cleanup(scope, cleanup).await?;
        done.changed += count;
        Ok(!more)
    }

    /// Heals the columns of these flows. If one has changed since it was read, heals each separately.
    async fn refill_flows(
        &self,
        scope: TenantScope,
        rows: Vec<HandleRow>,
        done: &mut Refilling,
    ) -> Result<(), EngineError> {
        if self.refill_rows(scope, &rows, done).await? {
            return Ok(());
        }
        for row in rows {
            let mut attempt = 0;
            loop {
                // It may have been used or have moved on: then its columns are current.
                let read = self.store.records(scope, RecordQuery::Handle(row.handle)).await?.items.pop();
                let Some(Record::Handle(row)) = read else { break };
                if self.refill_rows(scope, &[*row], done).await? {
                    break;
                }
                attempt += 1;
                if attempt == MAX_ATTEMPTS {
                    done.missed += 1;
                    break;
                }
                self.pause_after(attempt).await;
            }
        }
        Ok(())
    }

    /// Heals the columns of these flows once. Returns false if a flow has changed since it was read.
    async fn refill_rows(
        &self,
        scope: TenantScope,
        rows: &[HandleRow],
        done: &mut Refilling,
    ) -> Result<bool, EngineError> {
        let (mut handles, mut changed) = (Vec::new(), 0);
        for row in rows {
            let Some(declared) = self.declaring_of(scope, row.definition, &row.workflow).await? else {
                done.unreadable += 1;
                tracing::warn!(flow = %row.run, "a flow without a readable definition keeps its shadow columns");
                continue;
            };
            let held = self.store.records(scope, RecordQuery::Shadows(row.run)).await?.items;
            match declared.differing(row, &held) {
                Ok(shadows) if shadows.is_empty() => {}
                Ok(shadows) => {
                    changed += shadows.len() as u64;
                    let then = HandleChange::WriteShadows(shadows);
                    handles.push(HandleWrite { handle: row.handle, expected: Some(row.fence), then });
                }
                Err(error) => {
                    done.unreadable += 1;
                    tracing::warn!(flow = %row.run, %error, "an unreadable flow keeps its shadow columns");
                }
            }
        }
        if handles.is_empty() {
            return Ok(true);
        }
        let extras = CommitExtras { handles, ..CommitExtras::default() };
        match self.apply(scope, self.commit_of(scope, extras, self.host.now())).await {
            Ok(_) => {
                done.changed += changed;
                Ok(true)
            }
            Err(CommitFailure::Moved | CommitFailure::Refused(Refused::Handle { .. })) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Returns true if runs of a workflow have shadow columns.
    pub(crate) fn has_shadows(&self, tenant: TenantId, workflow: &Arc<Workflow>) -> bool {
        self.registry.has_shadows() && !self.declaring(tenant, workflow).definition.shadows().is_empty()
    }
}

/// The values of a run's shadow columns by name.
pub type RunColumns = BTreeMap<Name, ShadowValue>;

/// The result of healing.
#[derive(Debug, Clone, Copy, Default)]
struct Refilling {
    changed: u64,
    unreadable: u64,
    missed: u64,
}

impl Workflow {
    /// Returns the value of a column in a context. A value of the wrong type counts as missing, and is logged once per
    /// column.
    fn shadow(&self, index: usize, column: &Column, context: &Value) -> Option<ShadowValue> {
        match column.read(context) {
            Seen::Hit(value) => Some(value),
            Seen::Miss => None,
            Seen::WrongType => {
                let warned = self.warned.get(index).is_none_or(|warned| warned.swap(true, Ordering::Relaxed));
                if !warned {
                    tracing::warn!(
                        workflow = %self.definition.name(),
                        column = %column.name(),
                        path = column.path(),
                        kind = column.kind().as_str(),
                        "the value at a shadow column's path has the wrong type; it counts as missing"
                    );
                }
                None
            }
        }
    }

    /// Returns the writes of all columns for a run that was moved here from another version. `was` declared its columns
    /// before.
    fn all_shadows(&self, was: &Workflow, context: &Value) -> Vec<ShadowWrite> {
        let (before, now) = (was.definition.shadows(), self.definition.shadows());
        let names = |columns: &[Column], column: &Column| {
            columns.iter().any(|other| other.name() == column.name() && other.kind() == column.kind())
        };
        let own = now.iter().enumerate().filter_map(|(index, column)| {
            let value = match (self.shadow(index, column, context), column.default()) {
                (Some(value), _) => Some(value),
                (None, Some(default)) if !names(before, column) => Some(default.clone()),
                // A column with a default keeps its value.
                (None, Some(_)) => return None,
                (None, None) => None,
            };
            Some((column.name(), value))
        });
        let gone = before.iter().filter(|column| !now.iter().any(|other| other.name() == column.name()));
        let workflow = self.definition.name();
        let write =
            |(name, value): (&Name, _)| ShadowWrite { workflow: workflow.clone(), name: name.clone(), value };
        own.chain(gone.map(|column| (column.name(), None))).map(write).collect()
    }

    /// Returns the correct columns of a run.
    fn refill(&self, loaded: &Loaded) -> Result<ShadowRefill, serde_json::Error> {
        Ok(ShadowRefill {
            run: loaded.head.run,
            version: loaded.head.version,
            workflow: loaded.workflow.clone(),
            columns: self.columns(&loaded.head.state)?,
        })
    }

    /// Returns the correct columns for a state.
    fn columns(&self, state: &[u8]) -> Result<Vec<(Name, RefillColumn)>, serde_json::Error> {
        let snapshot: Snapshot = serde_json::from_slice(state)?;
        let columns = self.definition.shadows().iter().enumerate();
        let columns = columns.filter_map(|(index, column)| {
            let seen = self.shadow(index, column, snapshot.context()).map(RefillColumn::Set);
            let refilled = seen.or_else(|| column.default().cloned().map(RefillColumn::SetIfMissing))?;
            Some((column.name().clone(), refilled))
        });
        Ok(columns.collect())
    }

    /// Returns the changes that make a flow's columns correct.
    fn differing(&self, row: &HandleRow, held: &[Record]) -> Result<Vec<ShadowWrite>, serde_json::Error> {
        let held = held.iter().filter_map(|record| match record {
            Record::Shadow(row) => Some((&row.name, &row.value)),
            _ => None,
        });
        let held: BTreeMap<&Name, &ShadowValue> = held.collect();
        let wanted = self.columns(&row.state)?;
        let gone = held.keys().filter(|name| !wanted.iter().any(|(wanted, _)| wanted == **name));
        let gone = gone.map(|name| ((*name).clone(), None));
        let other = wanted.iter().filter_map(|(name, refilled)| match (refilled, held.get(name)) {
            (RefillColumn::Set(value), Some(held)) if **held == *value => None,
            (RefillColumn::SetIfMissing(value), Some(held)) if held.kind() == value.kind() => None,
            (RefillColumn::Set(value) | RefillColumn::SetIfMissing(value), _) => {
                Some((name.clone(), Some(value.clone())))
            }
        });
        let workflow = &row.workflow;
        let write = |(name, value)| ShadowWrite { workflow: workflow.clone(), name, value };
        Ok(gone.chain(other).map(write).collect())
    }
}

/// Progress of healing the shadow columns of a workflow's runs, and then of its flows behind handles.
///
/// [`Engine::heal`] heals one batch and advances this. Healing can continue from the same position later, also in
/// another process. A run with correct columns costs a read and no write.
#[derive(Debug, Clone)]
pub struct Heal {
    /// The runs to heal. `workflow` must be set.
    filter: RunFilter,
    batch: u32,
    place: Option<String>,
    runs: u64,
    done: Refilling,
    is_over: bool,
}

impl Heal {
    /// Selects all runs of a workflow, newest first, and then all its flows behind handles.
    pub fn of(workflow: impl Into<Name>) -> Self {
        Heal::those(RunFilter::of(workflow))
    }

    /// Selects the runs that match a filter. Includes flows behind handles if the filter has only a workflow and
    /// conditions on shadow columns.
    pub fn those(filter: RunFilter) -> Self {
        Heal { filter, batch: 100, place: None, runs: 0, done: Refilling::default(), is_over: false }
    }

    /// Sets the number of runs per batch. Default: 100; minimum: 1.
    #[must_use]
    pub fn batch(mut self, runs: u32) -> Self {
        self.batch = runs.max(1);
        self
    }

    /// Continues from the position of an earlier call.
    #[must_use]
    pub fn from(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// Returns the position: everything before it is healed. `None` before the first batch and after the last.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Returns the number of runs and flows checked.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns the number of columns written or cleared.
    pub fn changed(&self) -> u64 {
        self.done.changed
    }

    /// Returns the number of unreadable runs. Their columns are unchanged.
    pub fn unreadable(&self) -> u64 {
        self.done.unreadable
    }

    /// Returns the number of runs that changed on every attempt. Heal them again when they are idle.
    pub fn missed(&self) -> u64 {
        self.done.missed
    }

    /// Returns true if every run was checked.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Engine {
    /// Lists runs, newest first by default. If all filters on shadow columns are ranges, the runs are in the order of the
    /// first of them. Default limit: 50.
    ///
    /// A page that has read [`MAX_ROWS_READ`](stepwell_store::MAX_ROWS_READ) rows ends early, so that a short or empty page
    /// can have a cursor. The listing is over when a page has none.
    pub async fn runs(&self, mut query: RunQuery) -> Result<Page<RunSummary>, EngineError> {
        self.permit(Permission::View)?;
        if let (Some(workflow), false) = (&query.filter.workflow, query.filter.shadows.is_empty()) {
            self.check_filters(workflow, &query.filter.shadows).await?;
        }
        if query.limit == 0 {
            query.limit = PAGE;
        }
        Ok(self.store().runs(self.scope(), query).await?)
    }

    /// Counts runs by status, each up to [`MAX_RUN_COUNT`](stepwell_store::MAX_RUN_COUNT), in the order of a run's life.
    pub async fn count_runs(&self, filter: RunFilter) -> Result<Vec<RunCount>, EngineError> {
        self.permit(Permission::View)?;
        if let (Some(workflow), false) = (&filter.workflow, filter.shadows.is_empty()) {
            self.check_filters(workflow, &filter.shadows).await?;
        }
        let found = self.store().records(self.scope(), RecordQuery::RunCounts(Box::new(filter))).await?;
        let count = |record| match record {
            Record::RunCount(count) => Some(count),
            _ => None,
        };
        Ok(found.items.into_iter().filter_map(count).collect())
    }

    /// Rejects filters on columns that the workflow does not declare, and an unknown workflow.
    pub(crate) async fn check_filters(
        &self,
        workflow: &Name,
        filters: &[ShadowFilter],
    ) -> Result<(), EngineError> {
        let check = |known: &Workflow| {
            filters.iter().try_for_each(|filter| declared(known, &filter.name, filter.is.kind()))
        };
        let known = self.inner.active_or_newest_version(self.scope, workflow).await?;
        if check(known.as_ref()).is_ok() {
            return Ok(());
        }
        // The cached catalogue may be a second old. Reload it before refusing.
        self.inner.catalogues.read_again(self.scope.tenant());
        let known = self.inner.active_or_newest_version(self.scope, workflow).await?;
        check(known.as_ref())
    }

    /// Returns the shadow columns of runs or flows that have a value, by run and name. One read returns all of them.
    pub async fn columns(&self, runs: Vec<RunId>) -> Result<BTreeMap<RunId, RunColumns>, EngineError> {
        self.permit(Permission::View)?;
        let mut columns = BTreeMap::<RunId, RunColumns>::new();
        if runs.is_empty() {
            return Ok(columns);
        }
        let found = self.store().records(self.scope(), RecordQuery::ShadowsOf(runs)).await?;
        for record in found.items {
            if let Record::Shadow(row) = record {
                columns.entry(row.run).or_default().insert(row.name, row.value);
            }
        }
        Ok(columns)
    }

    /// Heals the shadow columns of one batch of runs. Returns true if there are more.
    ///
    /// A failed call loses nothing: the next call repeats the batch.
    pub async fn heal(&self, heal: &mut Heal) -> Result<bool, EngineError> {
        self.permit(Permission::Admin)?;
        let Some(workflow) = &heal.filter.workflow else {
            let why = "set `workflow` in the filter: shadow columns belong to a workflow";
            return Err(EngineError::Invalid(why.to_owned()));
        };
        self.check_filters(workflow, &heal.filter.shadows).await?;
        if heal.is_over {
            return Ok(false);
        }
        if heal.place.is_none() {
            self.inner.await_known(self.scope, workflow).await?;
        }
        let mut done = Refilling::default();
        let healed = match heal.place.as_deref().and_then(|place| place.strip_prefix(FLOWS)) {
            None => self.heal_runs(heal, &mut done).await,
            Some(cursor) => self.heal_flows(heal, cursor, &mut done).await,
        };
        // Count the columns that were written, even if the rest of the batch failed.
        heal.done.changed += done.changed;
        let (count, place) = healed?;
        heal.runs += count;
        heal.done.unreadable += done.unreadable;
        heal.done.missed += done.missed;
        heal.is_over = place.is_none();
        heal.place = place;
        Ok(!heal.is_over)
    }

    /// Heals one batch of runs. Returns its size and the next position.
    async fn heal_runs(
        &self,
        heal: &Heal,
        done: &mut Refilling,
    ) -> Result<(u64, Option<String>), EngineError> {
        let filter = heal.filter.clone();
        // A flow behind a handle has no row of a run, so that only conditions on columns can select it.
        let RunFilter { workflow, shadows, .. } = filter.clone();
        let has_flows = filter == RunFilter { workflow, shadows, ..RunFilter::default() };
        let query = RunQuery { filter, limit: heal.batch, cursor: heal.place.clone(), order: None };
        let page = self.store().runs(self.scope(), query).await?;
        let runs: Vec<RunId> = page.items.iter().map(|row| row.run).collect();
        self.inner.refill(self.scope(), &runs, done).await?;
        let count = runs.len() as u64;
        if page.next.is_some() || !has_flows {
            return Ok((count, page.next));
        }
        let (flows, place) = self.heal_flows(heal, "", done).await?;
        Ok((count + flows, place))
    }

    /// Heals one batch of flows behind handles. Returns its size and the next position.
    async fn heal_flows(
        &self,
        heal: &Heal,
        cursor: &str,
        done: &mut Refilling,
    ) -> Result<(u64, Option<String>), EngineError> {
        let RunFilter { workflow, shadows, .. } = heal.filter.clone();
        let cursor = (!cursor.is_empty()).then(|| cursor.to_owned());
        let query = HandleQuery { workflow, shadows, limit: heal.batch, cursor, ..HandleQuery::default() };
        let page = self.store().records(self.scope(), RecordQuery::Handles(query)).await?;
        let rows = page.items.into_iter().filter_map(|record| match record {
            Record::Handle(row) if row.kind == HandleKind::Flow => Some(*row),
            _ => None,
        });
        let rows: Vec<HandleRow> = rows.collect();
        let count = rows.len() as u64;
        self.inner.refill_flows(self.scope(), rows, done).await?;
        Ok((count, page.next.map(|next| format!("{FLOWS}{next}"))))
    }
}

/// Rejects a column that is not declared, or is declared with another type.
fn declared(workflow: &Workflow, name: &Name, kind: ShadowType) -> Result<(), EngineError> {
    let columns = workflow.definition.shadows();
    let of = workflow.definition.name();
    match columns.iter().find(|column| column.name() == name) {
        Some(column) if column.kind() == kind => Ok(()),
        Some(column) => Err(EngineError::Invalid(format!(
            "shadow column `{name}` of workflow `{of}` holds a {}, not a {}",
            column.kind().as_str(),
            kind.as_str()
        ))),
        None => {
            let known: Vec<_> = columns.iter().map(|column| format!("`{}`", column.name())).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(EngineError::Invalid(format!(
                "workflow `{of}` has no shadow column `{name}`; it has {known}"
            )))
        }
    }
}
