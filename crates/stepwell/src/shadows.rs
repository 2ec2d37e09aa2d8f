//! Shadow columns of durable runs: written with the step that changes them, runs found by them, and healed.
//!
//! What is declared holds for all runs of a workflow, whichever edition they are pinned to: the edition that new runs get
//! says it, unless their own is higher. A step writes what differs between the context before and after it; a column that
//! was declared after a run began, or whose path has changed, is filled by [`Engine::heal`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::try_join_all;
use serde_json::Value;
use stepwell_core::shadow::{Column, Seen, ShadowType, ShadowValue};
use stepwell_core::{Name, RunId, Snapshot};
use stepwell_store::{
    Loaded, Page, Refill, Refilled, RunQuery, RunSummary, ShadowWrite, Sweep, SweepWhat, Swept, TenantScope,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::registry::Workflow;
use crate::turn::MAX_TRIES;

/// Rows of a listing that does not say how many.
const PAGE: u32 = 50;
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
            for loaded in try_join_all(loads).await?.into_iter().flatten() {
                let own = self.registry.by_hash(loaded.definition);
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
        let snapshot: Snapshot = serde_json::from_slice(&loaded.head.state)?;
        let columns = self.definition.shadows().iter().enumerate();
        let columns = columns.filter_map(|(index, column)| {
            let seen = self.shadow(index, column, snapshot.context()).map(Refilled::Is);
            let refilled = seen.or_else(|| column.default().cloned().map(Refilled::Begins))?;
            Some((column.name().clone(), refilled))
        });
        Ok(Refill {
            run: loaded.head.run,
            version: loaded.head.version,
            workflow: loaded.workflow.clone(),
            columns: columns.collect(),
        })
    }
}

/// Shadow columns of a workflow's runs are made what they should be, batch by batch.
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
    /// All runs of a workflow, the newest first.
    pub fn of(workflow: impl Into<Name>) -> Self {
        Heal::those(RunQuery { workflow: Some(workflow.into()), ..RunQuery::default() })
    }

    /// The runs that a query finds.
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

    /// Runs that were looked at.
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
            let workflow = self.inner.workflow(workflow)?;
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
        self.inner.workflow(workflow)?;
        if heal.is_over {
            return Ok(false);
        }
        let query = RunQuery { limit: heal.batch, cursor: heal.place.clone(), ..heal.filter.clone() };
        let page = self.store().runs(self.scope(), query).await?;
        let runs: Vec<RunId> = page.items.iter().map(|row| row.run).collect();
        let mut done = Refilling::default();
        let refilled = self.inner.refill(self.scope(), &runs, &mut done).await;
        // What was written is written, also when the rest was not.
        heal.done.changed += done.changed;
        refilled?;
        heal.runs += runs.len() as u64;
        heal.done.unreadable += done.unreadable;
        heal.done.missed += done.missed;
        heal.is_over = page.next.is_none();
        heal.place = page.next;
        Ok(!heal.is_over)
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
