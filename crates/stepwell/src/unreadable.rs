//! Runs of which something cannot be read: they are put aside, can be cancelled and deleted, and hold nobody else up.

use std::sync::Arc;

use serde_json::json;
use stepwell_core::snapshot::ChildEnd;
use stepwell_core::{Failure, RunId};
use stepwell_store::{
    BadRow, Commit, CommitId, HandleQuery, KeyWrite, Loaded, Ownership, RecordQuery, RunQuery, Status, Step,
    StoreError, Sweep, SweepWhat, TenantScope, WaitQuery, WaitsOf,
};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::ledger::{Ledger, Stopped};
use crate::operate::{Command, Operator};
use crate::post::Says;
use crate::registry::refuse_own;

/// What it is called in the audit trail.
const DELETE: &str = "run.delete";
/// Children that are cancelled at a time.
const CHILDREN: u32 = 200;

impl EngineError {
    /// The row that cannot be read, if that is what is wrong with a run.
    pub(crate) fn bad_row(self, run: RunId) -> Result<BadRow, EngineError> {
        let row = |table, why: String| BadRow { table, key: run.to_string(), run: Some(run), why };
        match self {
            EngineError::Store(StoreError::Bad(row)) => Ok(row),
            EngineError::Unreadable { why, .. } => Ok(row("checkpoints", why)),
            EngineError::Restore(error) => Ok(row("checkpoints", error.to_string())),
            EngineError::UnknownDefinition { .. } => Ok(row("definitions", self.to_string())),
            error => Err(error),
        }
    }

    /// Of the run itself something cannot be read, or its definition is not there.
    fn is_of_its_state(&self) -> bool {
        matches!(
            self,
            EngineError::Unreadable { .. } | EngineError::Restore(_) | EngineError::UnknownDefinition { .. }
        )
    }
}

impl Engine {
    /// Removes a run with everything that is its own but the audit trail: one that has ended, or one of which something
    /// cannot be read. Whoever waits for one that has not ended is told that it was cancelled, if its row can be read.
    pub async fn delete_run(&self, run: RunId, by: &Operator) -> Result<(), EngineError> {
        self.permit(Permission::Admin)?;
        self.inner.delete(self.scope, run, &self.operator(by)).await
    }
}

impl Inner {
    /// Runs whose rows cannot be read fail, so that they are not found again and again.
    pub(crate) async fn put_aside(&self, scope: TenantScope, bad: &[BadRow]) {
        for row in bad {
            tracing::error!(tenant = %scope.tenant(), %row, "a run cannot be read");
            let Some(run) = row.run else { continue };
            let sweep = Sweep { now: self.host.now(), limit: 1, what: SweepWhat::Aside(run) };
            if let Err(error) = self.store.sweep(scope, sweep).await {
                tracing::error!(%run, %error, "a run that cannot be read could not be put aside");
            }
        }
    }

    /// A run whose state cannot be read stands still with that as its error, instead of being taken again and again.
    pub(crate) async fn unreadable(&self, scope: TenantScope, loaded: Loaded, error: &EngineError) {
        let failure = Failure::new("unreadable", error.to_string()).finally();
        let stopped = Some(Stopped { at: self.host.now(), error: failure, activation: None });
        let ledger = Ledger { stopped, fence: loaded.head.fence + 1, ..Ledger::default() };
        let commit = self.ending(loaded, Status::Failed, &ledger, Vec::new());
        if let Err(error) = self.store.commit(scope, commit).await {
            tracing::error!(%error, "a run that cannot be read could not be put aside");
        }
    }

    /// A run gets a status without anybody having read its state.
    fn ending(&self, loaded: Loaded, status: Status, ledger: &Ledger, close: Vec<u64>) -> Commit {
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        commit.step = Some(Step {
            fence: Some(loaded.head.fence),
            in_order: false,
            head: loaded.head,
            next: Vec::new(),
            status,
            wake: None,
            owner: Ownership::Release,
            attempt: ledger.write(),
            definition: None,
            take: Vec::new(),
            open: Vec::new(),
            close,
            shadows: Vec::new(),
        });
        commit
    }

    /// Cancels a run whose state cannot be read, which is what `error` says; any other error stays what it is.
    pub(crate) async fn cancel_unread(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
        key: Option<&KeyWrite>,
        error: EngineError,
    ) -> Result<(), EngineError> {
        if let Some(loaded) = self.store.load(scope, run).await? {
            refuse_own(&loaded.workflow, run)?;
        }
        self.end_unread(scope, run, by, key, error).await
    }

    async fn end_unread(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
        key: Option<&KeyWrite>,
        error: EngineError,
    ) -> Result<(), EngineError> {
        if !error.is_of_its_state() {
            return Err(error);
        }
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        let (version, status) = (loaded.head.version, loaded.head.status);
        if status.is_final() {
            return Err(EngineError::NotNow { run, status, why: "it has ended".to_owned() });
        }
        if let Some(seen) = by.seen.filter(|seen| *seen != version) {
            return Err(EngineError::VersionMoved { run, seen, actual: version });
        }
        let parent = loaded.parent.clone().filter(|parent| parent.activation != 0);
        let close = self.waits_of(scope, run).await?;
        let ledger = Ledger { fence: loaded.head.fence + 1, ..Ledger::default() };
        let mut commit = self.ending(loaded, Status::Cancelled, &ledger, close);
        commit.send.extend(parent.map(|parent| {
            let end = ChildEnd::Cancelled;
            Says::Child { activation: parent.activation, child: parent.child, end }.to(parent.run)
        }));
        let detail = json!({"command": "cancel", "unreadable": error.to_string()});
        commit.audit.push(by.audit(run, "run.cancel", &detail));
        commit.keys.extend(key.cloned());
        self.store.commit(scope, commit).await?;
        self.tell_holder(scope.run(run));
        self.cancel_children(scope, run, by).await
    }

    /// The activations for which a run has waits on record.
    async fn waits_of(&self, scope: TenantScope, run: RunId) -> Result<Vec<u64>, EngineError> {
        let (mut open, mut cursor) = (Vec::new(), None);
        loop {
            let query = WaitQuery { of: WaitsOf::Run(run), limit: CHILDREN, cursor };
            let page = self.store.waits(scope, query).await?;
            open.extend(page.items.iter().map(|row| row.wait.activation));
            open.extend(page.bad.iter().filter_map(|row| row.key.rsplit(':').next()?.parse::<u64>().ok()));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(open),
            }
        }
    }

    /// There are waits or handles of a run that is not there.
    async fn has_left(&self, scope: TenantScope, run: RunId) -> Result<bool, EngineError> {
        if !self.waits_of(scope, run).await?.is_empty() {
            return Ok(true);
        }
        let query = HandleQuery { run: Some(run), limit: 1, ..HandleQuery::default() };
        let page = self.store.records(scope, RecordQuery::Handles(query)).await?;
        Ok(!page.bad.is_empty())
    }

    async fn cancel_children(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<(), EngineError> {
        let mut cursor = None;
        loop {
            let query = RunQuery { parent: Some(run), limit: CHILDREN, cursor, ..RunQuery::default() };
            let page = self.store.runs(scope, query).await?;
            for child in page.items.iter().filter(|child| !child.status.is_final()) {
                let by =
                    Operator { actor: by.actor.clone(), reason: by.reason.clone(), ..Operator::default() };
                let cancelled = Box::pin(self.operate(scope, child.run, &Command::Cancel, &by)).await;
                match cancelled.map(drop) {
                    Ok(()) | Err(EngineError::NoRun(_) | EngineError::NotNow { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn delete(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<(), EngineError> {
        let mut detail = json!({});
        match self.store.load(scope, run).await {
            // Something of it may be left, and a flow has handles and no run.
            Ok(None) if !self.has_left(scope, run).await? => return Err(EngineError::NoRun(run)),
            Ok(None) => {}
            Ok(Some(loaded)) if loaded.head.status.is_final() => refuse_own(&loaded.workflow, run)?,
            Ok(Some(loaded)) => match self.load(scope, run).await {
                Err(error) if error.is_of_its_state() => {
                    detail = json!({"unreadable": error.to_string()});
                    self.end_unread(scope, run, by, None, error).await?;
                }
                Err(error) => return Err(error),
                Ok(_) => {
                    refuse_own(&loaded.workflow, run)?;
                    let why = "only a run that has ended can be deleted: cancel it first".to_owned();
                    return Err(EngineError::NotNow { run, status: loaded.head.status, why });
                }
            },
            Err(StoreError::Bad(row)) => detail = json!({"unreadable": row.to_string()}),
            Err(error) => return Err(error.into()),
        }
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        commit.audit.push(by.audit(run, DELETE, &detail));
        self.store.commit(scope, commit).await?;
        let sweep = Sweep { now: self.host.now(), limit: 1, what: SweepWhat::Run(run) };
        self.store.sweep(scope, sweep).await?;
        self.tell_holder(scope.run(run));
        Ok(())
    }
}
