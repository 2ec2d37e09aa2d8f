//! Deletion of runs on request, with everything that belongs to them. Only their audit rows, and the keys and links that
//! they wrote, stay.

use std::sync::Arc;

use serde_json::{Value, json};
use stepwell_core::{Name, Refusal, RunId};
use stepwell_store::{
    Cleanup, CleanupKind, Commit, CommitError, CommitId, HandleQuery, RecordQuery, Refused, RunFilter,
    RunQuery, Status, StoreError, TenantScope,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::events;
use crate::operate::{Command, Operator};
use crate::registry::refuse_own;

/// Name of the operation in the audit trail.
const DELETE: &str = "run.delete";
/// Page size for children.
const CHILDREN: u32 = 200;
/// Maximum number of runs that one request deletes.
const MAX_RUNS: usize = 10_000;
/// Maximum number of passes that cancel runs, in case a run starts children meanwhile.
const MAX_PASSES: u32 = 20;

/// A request to delete a run.
#[derive(Debug, Clone)]
pub struct DeleteRun {
    run: RunId,
    force: bool,
    tree: bool,
    dry_run: bool,
    by: Operator,
}

impl DeleteRun {
    /// Creates a request to delete this run, which must have ended or be unreadable. Its children stay runs of their own.
    pub fn new(run: RunId) -> Self {
        DeleteRun { run, force: false, tree: false, dry_run: false, by: Operator::default() }
    }

    /// Deletes runs that have not ended too: they are cancelled first, and the parent of the run is notified. A run with a
    /// child that has not ended also needs [`tree`](Self::tree), because that child would be cancelled.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Deletes all descendants too.
    #[must_use]
    pub fn tree(mut self, tree: bool) -> Self {
        self.tree = tree;
        self
    }

    /// Only reports the runs that would be deleted.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets the author, the reason and the version that the author has seen. An idempotency key is ignored.
    #[must_use]
    pub fn by(mut self, by: Operator) -> Self {
        self.by = by;
        self
    }
}

/// A run that was deleted, as it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedRun {
    pub run: RunId,
    /// `None` if its row is unreadable or gone, as that of a flow behind a handle.
    pub workflow: Option<Name>,
    /// Status before the deletion; `None` if its row is unreadable or gone.
    pub status: Option<Status>,
}

/// The result of a deletion or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedRuns {
    /// The run of the request, and then its descendants if the whole tree is deleted. A parent comes before its
    /// children.
    pub runs: Vec<DeletedRun>,
    /// True for a dry run: nothing was changed.
    pub is_dry: bool,
}

impl DeletedRun {
    fn is_live(&self) -> bool {
        self.status.is_some_and(|status| !status.is_final())
    }
}

impl Engine {
    /// Deletes a run with all its data except the audit trail. The run must have ended or be unreadable. A waiting
    /// parent of an unreadable run is told that it was cancelled, if the run's row is readable.
    pub async fn delete_run(&self, run: RunId, by: &Operator) -> Result<(), EngineError> {
        self.delete(&DeleteRun::new(run).by(by.clone())).await.map(drop)
    }

    /// Deletes a run, or a tree of runs, with all data except the audit trail. If it is interrupted, repeat it: the run
    /// of the request is deleted last.
    pub async fn delete(&self, wanted: &DeleteRun) -> Result<DeletedRuns, EngineError> {
        self.permit(Permission::Admin)?;
        self.inner.delete(self.scope, wanted, &self.operator(&wanted.by)).await
    }
}

/// The run of a request, and the reason why it needs no cancellation by command.
struct Found {
    run: DeletedRun,
    /// The error of an unreadable state.
    unreadable: Option<EngineError>,
}

impl Inner {
    /// Deletes a run as a part of a bulk command, at most once.
    pub(crate) async fn delete_once(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<(), EngineError> {
        let tried = self.delete(scope, &DeleteRun::new(run), by).await.map(drop);
        self.or_recorded(scope, by.bulk_record(run).as_ref(), tried).await.map(drop)
    }

    /// Deletes a run, or a tree of runs.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &DeleteRun,
        by: &Operator,
    ) -> Result<DeletedRuns, EngineError> {
        let Found { run: first, unreadable } = self.find_deletable(scope, wanted, by).await?;
        let children = self.below(scope, wanted.run, wanted.tree).await?;
        if unreadable.is_none() {
            refuse_live(&first, &children, wanted)?;
        }
        let mut runs = vec![first];
        if wanted.tree {
            runs.extend(children);
        }
        if wanted.dry_run {
            return Ok(DeletedRuns { runs, is_dry: true });
        }
        let mut detail = json!({});
        if let Some(error) = unreadable {
            detail["unreadable"] = true.into();
            if runs[0].is_live() {
                self.end_unreadable(scope, wanted.run, by, None, error).await?;
            }
        } else if runs[0].is_live() {
            detail["cancelled"] = true.into();
            self.cancel_to_delete(scope, wanted.run, by).await?;
        }
        let plain = Operator { actor: by.actor.clone(), reason: by.reason.clone(), ..Operator::default() };
        let was_live = runs[0].is_live();
        let below = match wanted.tree {
            true => self.end_tree(scope, wanted.run, &plain).await?,
            false => Vec::new(),
        };
        if was_live && !wanted.tree {
            // A child may have started since the check.
            self.cancel_children(scope, wanted.run, &plain).await?;
        }
        // Children first: the run of the request can be found until the whole tree is deleted.
        for child in below.iter().rev() {
            let detail = json!({"tree": wanted.run});
            self.delete_rows(scope, child.run, &plain, &detail).await?;
        }
        self.delete_rows(scope, wanted.run, by, &detail).await?;
        runs.extend(
            below
                .into_iter()
                .filter(|child| !runs.iter().any(|run| run.run == child.run))
                .collect::<Vec<_>>(),
        );
        Ok(DeletedRuns { runs, is_dry: false })
    }

    /// Returns the run of a request. Fails if it does not exist or belongs to the engine.
    async fn find_deletable(
        self: &Arc<Self>,
        scope: TenantScope,
        wanted: &DeleteRun,
        by: &Operator,
    ) -> Result<Found, EngineError> {
        let run = wanted.run;
        let gone = |status| DeletedRun { run, workflow: None, status };
        let loaded = match self.store.load(scope, run).await {
            Ok(Some(loaded)) => loaded,
            // A flow has handles but no run.
            Ok(None) => {
                let status = self.leftovers(scope, run).await?.ok_or(EngineError::NoRun(run))?;
                return Ok(Found { run: gone(status), unreadable: None });
            }
            Err(StoreError::Bad(row)) => {
                let unreadable = Some(EngineError::Store(StoreError::Bad(row)));
                return Ok(Found { run: gone(None), unreadable });
            }
            Err(error) => return Err(error.into()),
        };
        let (actual, status) = (loaded.head.version, loaded.head.status);
        if let Some(seen) = by.seen.filter(|seen| *seen != actual) {
            return Err(EngineError::VersionMoved { run, seen, actual });
        }
        let found = DeletedRun { run, workflow: Some(loaded.workflow.clone()), status: Some(status) };
        let unreadable = match status.is_final() {
            true => None,
            false => self.load(scope, run).await.map(drop).err(),
        };
        if let Some(error) = unreadable {
            let is_unreadable = error.is_unreadable_state();
            return if is_unreadable {
                Ok(Found { run: found, unreadable: Some(error) })
            } else {
                Err(error)
            };
        }
        // An event that is delivered can be deleted like a run that has ended.
        if !(status.is_final() && loaded.workflow == events::WORKFLOW) {
            refuse_own(&loaded.workflow, run)?;
        }
        Ok(Found { run: found, unreadable: None })
    }

    /// Returns `None` if nothing is left of a run without a row. Otherwise returns the status of the flow behind its
    /// handles, if they are readable.
    async fn leftovers(&self, scope: TenantScope, run: RunId) -> Result<Option<Option<Status>>, EngineError> {
        let query = HandleQuery { run: Some(run), limit: 1, ..HandleQuery::default() };
        let page = self.store.records(scope, RecordQuery::Handles(query)).await?;
        if !page.items.is_empty() {
            return Ok(Some(Some(Status::Waiting)));
        }
        let is_left = !page.bad.is_empty() || !self.waits_of(scope, run).await?.is_empty();
        Ok(is_left.then_some(None))
    }

    /// Returns the children of a run, or all its descendants, parents before their children.
    async fn below(
        &self,
        scope: TenantScope,
        run: RunId,
        tree: bool,
    ) -> Result<Vec<DeletedRun>, EngineError> {
        let mut found: Vec<DeletedRun> = Vec::new();
        let (mut parents, mut next) = (vec![run], 0);
        while let Some(parent) = parents.get(next).copied() {
            next += 1;
            let (before, mut cursor) = (found.len(), None);
            loop {
                let filter = RunFilter { parent: Some(parent), ..RunFilter::default() };
                let query = RunQuery { filter, limit: CHILDREN, cursor, ..RunQuery::default() };
                let page = self.store.runs(scope, query).await?;
                found.extend(page.items.into_iter().map(|child| DeletedRun {
                    run: child.run,
                    workflow: Some(child.workflow),
                    status: Some(child.status),
                }));
                let bad = page.bad.iter().filter_map(|row| row.run);
                found.extend(bad.map(|run| DeletedRun { run, workflow: None, status: None }));
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => break,
                }
            }
            if found.len() >= MAX_RUNS {
                let why = format!(
                    "run {run} has more than {MAX_RUNS} descendants: delete smaller trees below it first"
                );
                return Err(EngineError::Invalid(why));
            }
            if tree {
                parents.extend(found[before..].iter().map(|child| child.run));
            }
        }
        Ok(found)
    }

    /// Cancels all descendants of a run and returns them. When none is left that has not ended, none can start another
    /// run.
    async fn end_tree(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<Vec<DeletedRun>, EngineError> {
        for _ in 0..MAX_PASSES {
            let below = self.below(scope, run, true).await?;
            let live: Vec<RunId> =
                below.iter().filter(|child| child.is_live()).map(|child| child.run).collect();
            if live.is_empty() {
                return Ok(below);
            }
            for child in live {
                self.cancel_to_delete(scope, child, by).await?;
            }
        }
        Err(EngineError::Contended { run, attempts: MAX_PASSES })
    }

    /// Cancels a run. Succeeds if it has ended or is gone meanwhile.
    async fn cancel_to_delete(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<(), EngineError> {
        let by = Operator { key: None, bulk: None, ..by.clone() };
        match Box::pin(self.operate(scope, run, &Command::Cancel, &by)).await.map(drop) {
            Err(
                EngineError::NoRun(_)
                | EngineError::WrongStatus { .. }
                | EngineError::Refused(Refusal::Terminal),
            ) => Ok(()),
            done => done,
        }
    }

    /// Deletes a run that is unreadable or missing according to `error`, also one of the engine's own. Returns any
    /// other error unchanged.
    pub(crate) async fn delete_unreadable(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
        error: EngineError,
    ) -> Result<(), EngineError> {
        match error {
            EngineError::NoRun(_) | EngineError::Store(StoreError::Bad(_)) => {}
            error => match self.end_unreadable(scope, run, by, None, error).await {
                // Another request has ended or deleted it.
                Ok(()) | Err(EngineError::WrongStatus { .. } | EngineError::NoRun(_)) => {}
                Err(error) => return Err(error),
            },
        }
        self.delete_rows(scope, run, by, &json!({"unreadable": true})).await
    }

    /// Deletes all rows of a run except its audit trail, in one transaction. The audit row is written before: after a
    /// crash in between, the run is still there and can be deleted again.
    async fn delete_rows(
        &self,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
        detail: &Value,
    ) -> Result<(), EngineError> {
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        commit.audit.push(by.audit(run, DELETE, detail));
        commit.keys.extend(by.bulk_record(run));
        match self.store.commit(scope, commit).await {
            // An earlier attempt of a bulk command has recorded the deletion and did not finish it.
            Ok(_) | Err(CommitError::Refused(Refused::Done { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        let cleanup = Cleanup { now: self.host.now(), limit: 1, what: CleanupKind::Run(run) };
        self.store.cleanup(scope, cleanup).await?;
        self.recent.take(scope.run(run));
        self.notify_driver(scope.run(run));
        Ok(())
    }
}

/// Refuses to delete runs that have not ended, unless the request says so.
fn refuse_live(run: &DeletedRun, children: &[DeletedRun], wanted: &DeleteRun) -> Result<(), EngineError> {
    let live = children.iter().find(|child| child.is_live());
    let child = live.and_then(|child| Some((child.run, child.status?)));
    let why = match child {
        Some((child, status)) if !wanted.tree && run.is_live() => format!(
            "its child {child} is {status} and would be cancelled with it; delete the whole tree with `tree=true` and `force=true` (`--tree --force`), \
             or wait until the child has ended"
        ),
        Some((child, status)) if wanted.tree && !wanted.force => format!(
            "its descendant {child} is {status}; add `force=true` (`--force`) to cancel and delete it, or wait until it \
             has ended"
        ),
        _ if run.is_live() && !wanted.force => {
            "only a run that has ended can be deleted; add `force=true` (`--force`) to cancel and delete it"
                .to_owned()
        }
        _ => return Ok(()),
    };
    let status = run.status.or(child.map(|(_, status)| status)).unwrap_or(Status::Failed);
    Err(EngineError::WrongStatus { run: run.run, status, why })
}
