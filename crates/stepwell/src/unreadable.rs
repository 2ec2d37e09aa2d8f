//! Unreadable runs: they are stopped, can be cancelled, and do not block other runs.

use std::sync::Arc;

use serde_json::json;
use stepwell_core::snapshot::ChildEnd;
use stepwell_core::{Failure, RunId};
use stepwell_store::{
    BadRow, Cleanup, CleanupKind, Commit, CommitId, KeyWrite, Loaded, Ownership, RunFilter, RunQuery,
    RunUpdate, Status, StoreError, TenantScope, WaitFilter, WaitQuery,
};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::ledger::{Ledger, Stopped};
use crate::operate::{Command, Operator};
use crate::registry::refuse_own;

/// Page size for waits and children.
const CHILDREN: u32 = 200;

impl EngineError {
    /// Returns the unreadable row if this error is about one. Returns the error itself otherwise.
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

    /// Returns true if the state of the run is unreadable or its definition is missing.
    pub(crate) fn is_unreadable_state(&self) -> bool {
        matches!(
            self,
            EngineError::Unreadable { .. } | EngineError::Restore(_) | EngineError::UnknownDefinition { .. }
        )
    }
}

impl Inner {
    /// Marks runs with unreadable rows as failed, so that they are not claimed again and again.
    pub(crate) async fn stop_unreadable_rows(&self, scope: TenantScope, bad: &[BadRow]) {
        for row in bad {
            tracing::error!(tenant = %scope.tenant(), %row, "a run cannot be read");
            let Some(run) = row.run else { continue };
            let cleanup = Cleanup { now: self.host.now(), limit: 1, what: CleanupKind::MarkFailed(run) };
            if let Err(error) = self.store.cleanup(scope, cleanup).await {
                tracing::error!(%run, %error, "an unreadable run could not be stopped");
            }
        }
    }

    /// Stops a run whose state is unreadable, so that it is not claimed again and again.
    pub(crate) async fn unreadable(&self, scope: TenantScope, loaded: Loaded, error: &EngineError) {
        let failure = Failure::new("unreadable", error.to_string()).non_retryable();
        let stopped = Some(Stopped { at: self.host.now(), error: failure, activation: None });
        let ledger = Ledger { stopped, fence: loaded.head.fence + 1, ..Ledger::default() };
        let commit = self.ending(loaded, Status::Failed, &ledger, Vec::new());
        if let Err(error) = self.store.commit(scope, commit).await {
            tracing::error!(%error, "an unreadable run could not be stopped");
        }
    }

    /// Returns a commit that sets the status of a run without reading its state.
    fn ending(&self, loaded: Loaded, status: Status, ledger: &Ledger, close: Vec<u64>) -> Commit {
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        commit.step = Some(RunUpdate {
            fence: Some(loaded.head.fence),
            in_order: false,
            head: loaded.head,
            next: Vec::new(),
            status,
            error: ledger.error_code(status),
            wake: None,
            owner: Ownership::Release,
            ledger: ledger.write(),
            definition: None,
            take: Vec::new(),
            open: Vec::new(),
            close,
            shadows: Vec::new(),
        });
        commit
    }

    /// Cancels a run whose state is unreadable according to `error`. Returns any other error unchanged.
    pub(crate) async fn cancel_unreadable(
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
        self.end_unreadable(scope, run, by, key, error).await
    }

    /// Ends a run whose state is unreadable according to `error`, and cancels its children.
    pub(crate) async fn end_unreadable(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
        key: Option<&KeyWrite>,
        error: EngineError,
    ) -> Result<(), EngineError> {
        if !error.is_unreadable_state() {
            return Err(error);
        }
        let loaded = self.store.load(scope, run).await?.ok_or(EngineError::NoRun(run))?;
        let (version, status) = (loaded.head.version, loaded.head.status);
        if status.is_final() {
            return Err(EngineError::WrongStatus { run, status, why: "it has ended".to_owned() });
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
            MessageBody::Child { activation: parent.activation, child: parent.child, end }.to(parent.run)
        }));
        let detail = json!({"command": "cancel", "unreadable": true});
        commit.audit.push(by.audit(run, "run.cancel", &detail));
        commit.keys.extend(key.cloned());
        self.store.commit(scope, commit).await?;
        self.notify_driver(scope.run(run));
        self.cancel_children(scope, run, by).await
    }

    /// Returns the activations with recorded waits of a run.
    pub(crate) async fn waits_of(&self, scope: TenantScope, run: RunId) -> Result<Vec<u64>, EngineError> {
        let (mut open, mut cursor) = (Vec::new(), None);
        loop {
            let query = WaitQuery { of: WaitFilter::Run(run), limit: CHILDREN, cursor };
            let page = self.store.waits(scope, query).await?;
            open.extend(page.items.iter().map(|row| row.wait.activation));
            open.extend(page.bad.iter().filter_map(|row| row.key.rsplit(':').next()?.parse::<u64>().ok()));
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(open),
            }
        }
    }

    /// Cancels the children of a run that have not ended.
    pub(crate) async fn cancel_children(
        self: &Arc<Self>,
        scope: TenantScope,
        run: RunId,
        by: &Operator,
    ) -> Result<(), EngineError> {
        let mut cursor = None;
        loop {
            let query = RunQuery {
                filter: RunFilter { parent: Some(run), ..RunFilter::default() },
                limit: CHILDREN,
                cursor,
                ..RunQuery::default()
            };
            let page = self.store.runs(scope, query).await?;
            for child in page.items.iter().filter(|child| !child.status.is_final()) {
                let by =
                    Operator { actor: by.actor.clone(), reason: by.reason.clone(), ..Operator::default() };
                let cancelled = Box::pin(self.operate(scope, child.run, &Command::Cancel, &by)).await;
                match cancelled.map(drop) {
                    Ok(()) | Err(EngineError::NoRun(_) | EngineError::WrongStatus { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }
}
