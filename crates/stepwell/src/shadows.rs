//! Shadow columns of durable runs: written with the step that changes them, runs found by them, and healed.
//!
//! What is declared holds for all runs of a workflow, whichever edition they are pinned to: the edition that new runs get
//! says it, unless their own is higher. A step writes what differs between the context before and after it; a column that
//! was declared after a run began, or whose path has changed, is filled by [`Engine::heal`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use serde_json::Value;
use stepwell_core::shadow::{Column, Seen, ShadowType, ShadowValue};
use stepwell_core::{Name, RunId, Snapshot};
use stepwell_store::{
    HandleChange, HandleKind, HandleQuery, HandleRow, HandleWrite, Loaded, Page, Record, RecordQuery, Refill,
    Refilled, Refused, RunQuery, RunSummary, ShadowWrite, StoreError, Sweep, SweepWhat, Swept, TenantScope,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::registry::{OWN, Workflow};
use crate::standing::Along;
use crate::turn::{MAX_TRIES, Turnless};

/// Rows of a listing that does not say how many.
const PAGE: u32 = 50;
/// What places among flows begin with.
const FLOWS: &str = "flows:";
/// Runs that are read at a time while columns are healed.
const READ_AT_ONCE: usize = 8;

impl Inner {
    /// What a run's shadow columns come to when its context does; without a context before, the run begins.
    pub(crate) fn shadows(
        &self,
        workflow: &Arc<Workflow>,
        before: Option<&Value>,
        after: &Value,
    ) -> Vec<ShadowWrite> {
        if before.is_some_and(|before| std::ptr::eq(before, after)) {
            return Vec::new();
        }
        let Some(declared) = self.registry.shading(workflow) else { return Vec::new() };
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

    /// Columns that were declared while a commit was on its way are not in it: they are written behind it.
    pub(crate) async fn catch_up(&self, scope: TenantScope, runs: Vec<RunId>) {
        if let Err(error) = self.refill(scope, &runs, &mut Refilling::default()).await {
            let run = runs.first();
            tracing::warn!(?run, %error, "shadow columns that were just declared are not filled; heal them");
        }
    }

    /// Makes the columns of these runs what they should be.
    async fn refill(
        &self,
        scope: TenantScope,
        runs: &[RunId],
        done: &mut Refilling,
    ) -> Result<(), EngineError> {
        if self.refill_once(scope, runs, done).await? {
            return Ok(());
        }
        // One has moved since it was read. Each by itself: one that moves all the time holds up no other.
        done.unreadable = 0;
        for run in runs {
            let mut attempt = 0;
            while !self.refill_once(scope, &[*run], done).await? {
                attempt += 1;
                if attempt == MAX_TRIES {
                    tracing::warn!(%run, "a run moved every time its shadow columns were to be healed");
                    done.missed += 1;
                    break;
                }
                self.pause_after(attempt).await;
            }
        }
        Ok(())
    }

    /// Says whether none of the runs has moved since it was read.
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
                        tracing::warn!(%row, "a run cannot be read; its columns stay");
                    }
                    one => loaded.extend(one?),
                }
            }
            let loaded = loaded.into_iter();
            // The engine's own have columns that are not read from their data.
            for loaded in loaded.filter(|loaded| !loaded.workflow.starts_with(OWN)) {
                let own = self.registry.by_hash(scope.tenant(), loaded.definition);
                let declared = own.map(|own| self.registry.declaring(&own));
                let Some(declared) = declared.or_else(|| self.registry.by_name(&loaded.workflow)) else {
                    continue;
                };
                match declared.refill(&loaded) {
                    Ok(refill) => refills.push(refill),
                    Err(error) => {
                        done.unreadable += 1;
                        tracing::warn!(run = %loaded.head.run, %error, "a run cannot be read; its columns stay");
                    }
                }
            }
        }
        let sweep = Sweep { now: self.host.now(), limit: 1, what: SweepWhat::Shadows(refills) };
        let Swept { count, more } = self.store.sweep(scope, sweep).await?;
        done.changed += count;
        Ok(!more)
    }

    /// Makes the columns of these flows what they should be; of those that were not as they were read, each by itself.
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
                // It may have been used up, or have gone on: then it has its columns.
                let read = self.store.records(scope, RecordQuery::Handle(row.handle)).await?.items.pop();
                let Some(Record::Handle(row)) = read else { break };
                if self.refill_rows(scope, &[*row], done).await? {
                    break;
                }
                attempt += 1;
                if attempt == MAX_TRIES {
                    done.missed += 1;
                    break;
                }
                self.pause_after(attempt).await;
            }
        }
        Ok(())
    }

    /// Says whether all of the flows were as they were read.
    async fn refill_rows(
        &self,
        scope: TenantScope,
        rows: &[HandleRow],
        done: &mut Refilling,
    ) -> Result<bool, EngineError> {
        let (mut handles, mut changed) = (Vec::new(), 0);
        for row in rows {
            let own = self.registry.by_hash(scope.tenant(), row.definition);
            let declared = own.map(|own| self.registry.declaring(&own));
            let Some(declared) = declared.or_else(|| self.registry.by_name(&row.workflow)) else { continue };
            let held = self.store.records(scope, RecordQuery::Shadows(row.run)).await?.items;
            match declared.differing(row, &held) {
                Ok(shadows) if shadows.is_empty() => {}
                Ok(shadows) => {
                    changed += shadows.len() as u64;
                    let then = HandleChange::Shade(shadows);
                    handles.push(HandleWrite { handle: row.handle, expected: Some(row.fence), then });
                }
                Err(error) => {
                    done.unreadable += 1;
                    tracing::warn!(flow = %row.run, %error, "a flow cannot be read; its columns stay");
                }
            }
        }
        if handles.is_empty() {
            return Ok(true);
        }
        let along = Along { handles, ..Along::default() };
        match self.apply(scope, self.commit_of(scope, along, self.host.now())).await {
            Ok(_) => {
                done.changed += changed;
                Ok(true)
            }
            Err(Turnless::Moved | Turnless::Refused(Refused::Handle { .. })) => Ok(false),
            Err(turnless) => Err(turnless.into()),
        }
    }

    /// Whether runs of a workflow have shadow columns.
    pub(crate) fn has_shadows(&self, workflow: &Arc<Workflow>) -> bool {
        self.registry.shading(workflow).is_some()
    }
}

/// What came of making columns what they should be.
#[derive(Debug, Clone, Copy, Default)]
struct Refilling {
    changed: u64,
    unreadable: u64,
    missed: u64,
}

impl Workflow {
    /// What a column holds by a context. A value that it cannot hold counts as none, and is told once.
    fn shadow(&self, index: usize, column: &Column, context: &Value) -> Option<ShadowValue> {
        match column.read(context) {
            Seen::Hit(value) => Some(value),
            Seen::Miss => None,
            Seen::Unfit => {
                let told = self.unfit.get(index).is_none_or(|told| told.swap(true, Ordering::Relaxed));
                if !told {
                    tracing::warn!(
                        workflow = %self.definition.name(),
                        column = %column.name(),
                        path = column.path(),
                        kind = column.kind().as_str(),
                        "what is at a shadow column's path is not what the column holds; it counts as missing"
                    );
                }
                None
            }
        }
    }

    /// What a run's columns should be.
    fn refill(&self, loaded: &Loaded) -> Result<Refill, serde_json::Error> {
        Ok(Refill {
            run: loaded.head.run,
            version: loaded.head.version,
            workflow: loaded.workflow.clone(),
            columns: self.columns(&loaded.head.state)?,
        })
    }

    /// What columns should hold by a state.
    fn columns(&self, state: &[u8]) -> Result<Vec<(Name, Refilled)>, serde_json::Error> {
        let snapshot: Snapshot = serde_json::from_slice(state)?;
        let columns = self.definition.shadows().iter().enumerate();
        let columns = columns.filter_map(|(index, column)| {
            let seen = self.shadow(index, column, snapshot.context()).map(Refilled::Is);
            let refilled = seen.or_else(|| column.default().cloned().map(Refilled::Begins))?;
            Some((column.name().clone(), refilled))
        });
        Ok(columns.collect())
    }

    /// What of a flow's columns is not what it should be.
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
            (Refilled::Is(value), Some(held)) if **held == *value => None,
            (Refilled::Begins(value), Some(held)) if held.kind() == value.kind() => None,
            (Refilled::Is(value) | Refilled::Begins(value), _) => Some((name.clone(), Some(value.clone()))),
        });
        let workflow = &row.workflow;
        let write = |(name, value)| ShadowWrite { workflow: workflow.clone(), name, value };
        Ok(gone.chain(other).map(write).collect())
    }
}

/// Shadow columns of a workflow's runs, and then of its flows that rest behind handles, are made what they should be, batch by
/// batch.
///
/// [`Engine::heal`] does one batch, and this says how far it has come. It may be begun again where it was, also by
/// another process; a run that is up to date costs a read and no write.
#[derive(Debug, Clone)]
pub struct Heal {
    /// Which runs; the workflow has to be named.
    filter: RunQuery,
    batch: u32,
    place: Option<String>,
    runs: u64,
    done: Refilling,
    is_over: bool,
}

impl Heal {
    /// All runs of a workflow, the newest first, and then all of its flows that rest behind handles.
    pub fn of(workflow: impl Into<Name>) -> Self {
        Heal::those(RunQuery { workflow: Some(workflow.into()), ..RunQuery::default() })
    }

    /// The runs that a query finds. If it asks for nothing that only runs have, flows that rest behind handles too.
    pub fn those(filter: RunQuery) -> Self {
        let place = filter.cursor.clone();
        Heal { filter, batch: 100, place, runs: 0, done: Refilling::default(), is_over: false }
    }

    /// So many runs in a batch; 100 unless something else is said.
    #[must_use]
    pub fn batch(mut self, runs: u32) -> Self {
        self.batch = runs.max(1);
        self
    }

    /// Goes on from a place that another one had come to.
    #[must_use]
    pub fn from(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// How far it has come: what is before this is healed. Nothing yet, or everything, has no place.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Runs and flows that were looked at.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Columns that were written or emptied.
    pub fn changed(&self) -> u64 {
        self.done.changed
    }

    /// Runs whose state cannot be read: their columns stay as they are.
    pub fn unreadable(&self) -> u64 {
        self.done.unreadable
    }

    /// Runs that moved every time they were to be healed: heal them again when they rest.
    pub fn missed(&self) -> u64 {
        self.done.missed
    }

    /// Every run was looked at.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Engine {
    /// Runs, newest first: of a workflow, doing so, children of a run, with these values in their shadow columns. A query that
    /// does not say how many gives 50.
    pub async fn runs(&self, mut query: RunQuery) -> Result<Page<RunSummary>, EngineError> {
        self.permit(Permission::View)?;
        if let (Some(workflow), false) = (&query.workflow, query.shadows.is_empty()) {
            let workflow = self.inner.edition_of_name(self.scope, workflow).await?;
            query.shadows.iter().try_for_each(|(name, value)| declared(&workflow, name, value.kind()))?;
        }
        if query.limit == 0 {
            query.limit = PAGE;
        }
        Ok(self.store().runs(self.scope(), query).await?)
    }

    /// Heals the shadow columns of one batch of runs; says whether there is more to do.
    ///
    /// If it fails nothing is lost: the batch is done again by the next call.
    pub async fn heal(&self, heal: &mut Heal) -> Result<bool, EngineError> {
        self.permit(Permission::Admin)?;
        let Some(workflow) = &heal.filter.workflow else {
            let why = "shadow columns are those of a workflow: name it in the filter";
            return Err(EngineError::Invalid(why.to_owned()));
        };
        self.inner.edition_of_name(self.scope, workflow).await?;
        if heal.is_over {
            return Ok(false);
        }
        let mut done = Refilling::default();
        let healed = match heal.place.as_deref().and_then(|place| place.strip_prefix(FLOWS)) {
            None => self.heal_runs(heal, &mut done).await,
            Some(cursor) => self.heal_flows(heal, cursor, &mut done).await,
        };
        // What was written is written, also when the rest was not.
        heal.done.changed += done.changed;
        let (count, place) = healed?;
        heal.runs += count;
        heal.done.unreadable += done.unreadable;
        heal.done.missed += done.missed;
        heal.is_over = place.is_none();
        heal.place = place;
        Ok(!heal.is_over)
    }

    /// One batch of runs: how many, and where it goes on.
    async fn heal_runs(
        &self,
        heal: &Heal,
        done: &mut Refilling,
    ) -> Result<(u64, Option<String>), EngineError> {
        let query = RunQuery { limit: heal.batch, cursor: heal.place.clone(), ..heal.filter.clone() };
        let has_flows = query.status.is_none() && query.parent.is_none();
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

    /// One batch of flows that rest behind handles.
    async fn heal_flows(
        &self,
        heal: &Heal,
        cursor: &str,
        done: &mut Refilling,
    ) -> Result<(u64, Option<String>), EngineError> {
        let RunQuery { workflow, shadows, .. } = heal.filter.clone();
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

/// A column that is asked for is declared, with this type.
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
