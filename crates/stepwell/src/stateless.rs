//! Stateless execution: runs a workflow in memory, to its end or to the first wait or timer.

use std::sync::Arc;

use serde_json::Value;
use stepwell_core::snapshot::RunEnd;
use stepwell_core::{Failure, RunId, Snapshot};
use stepwell_store::{Document, DocumentQuery, HistoryQuery, MemoryStore, Status, Store, StoreError};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::lists;
use crate::loaded_run::{CommitExtras, LoadedRun};
use crate::run_driver;
use crate::start::{Fresh, Start};

/// Number of documents or history entries that are read at a time.
const PAGE: u32 = 200;

/// The result of a stateless execution.
#[derive(Debug, Clone)]
pub struct StatelessResult {
    /// Status of the run: completed, waiting or failed.
    pub status: Status,
    pub snapshot: Arc<Snapshot>,
    /// The output, if the run has completed.
    pub result: Option<Value>,
    /// The error that stopped the run.
    pub error: Option<Failure>,
    pub documents: Vec<Document>,
    /// History of the run, oldest first.
    pub history: Vec<stepwell_core::HistoryEntry>,
}

impl Engine {
    /// Runs a workflow in memory, to its end or to the first wait or timer, and returns its snapshot. Nothing is
    /// stored. Fails before the start if the definition needs children or the data store, or if this process drives
    /// [`Options::max_runs`](crate::Options::max_runs) runs already.
    pub async fn run_stateless(&self, start: Start) -> Result<StatelessResult, EngineError> {
        self.permit(Permission::Manage)?;
        let workflow = self.inner.workflow(self.scope, &start.workflow).await?;
        let needs = workflow.definition.needs();
        let (children, store) = (needs.children, needs.store);
        if !children.is_empty() || !store.is_empty() {
            let named = |what: &str, names: &[stepwell_core::Name]| {
                names.iter().map(|name| format!("{what} `{name}`")).collect::<Vec<_>>()
            };
            let all = [named("children at place", &children), named("the data store at transition", &store)];
            let needs = all.concat().join(", ");
            return Err(EngineError::Invalid(format!(
                "workflow `{}` cannot run without a database: it needs {needs}",
                start.workflow
            )));
        }
        let Some(_permit) = self.inner.concurrency.try_acquire(&start.workflow) else {
            let why = "this process drives its maximum number of runs (`max_runs`); try again later";
            return Err(StoreError::Unavailable(why.to_owned()).into());
        };
        let inner = self.inner.in_memory(Arc::new(MemoryStore::new()));
        let run = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let process = inner.process();
        let Fresh { new, joins: _, loaded_run, next, shadow_revision: _ } =
            inner.fresh_of(self.scope, workflow, &start, run, None, Some(process)).await?;
        let documents = lists::kept(run, None, &loaded_run.snapshot);
        let extras = CommitExtras { create: vec![new], documents, ..CommitExtras::default() };
        let committed =
            inner.store.commit(self.scope, inner.commit_of(self.scope, extras, inner.host.now())).await?;
        let head = committed.created.into_iter().next().unwrap_or_else(|| loaded_run.head.clone());
        let mut loaded_run = LoadedRun { head, ..loaded_run };
        let mut next = Some(next);
        loop {
            if loaded_run.head.owner == Some(process) {
                run_driver::inline(&inner, self.scope, loaded_run, next.take()).await;
            }
            loaded_run = inner.load(self.scope, run).await?;
            let retry = loaded_run.ledger.attempts.iter().filter_map(|attempts| attempts.next).min();
            let Some(retry) = retry.filter(|_| loaded_run.ledger.stopped.is_none()) else { break };
            inner.host.clock.sleep_until(retry).await;
            loaded_run = inner.taken(self.scope, run).await?;
        }
        inner.passed(self, run, loaded_run).await
    }
}

impl Inner {
    /// Claims the run in the private memory store.
    async fn taken(
        self: &Arc<Self>,
        scope: stepwell_store::TenantScope,
        run: RunId,
    ) -> Result<LoadedRun, EngineError> {
        let claim = stepwell_store::Claim {
            by: Some(self.process()),
            now: self.host.now(),
            limit: 1,
            definitions: None,
            expired: Vec::new(),
        };
        let loaded =
            self.store.claim(scope, claim).await?.items.into_iter().next().ok_or(EngineError::NoRun(run))?;
        self.build_loaded_run(scope, loaded).await
    }

    async fn passed(
        &self,
        engine: &Engine,
        run: RunId,
        loaded_run: LoadedRun,
    ) -> Result<StatelessResult, EngineError> {
        let (mut documents, mut cursor) = (Vec::new(), None);
        loop {
            let any = DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: PAGE, cursor };
            let page = lists::shown(self.store.documents(engine.scope, any).await?);
            documents.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let (mut history, mut more) = (Vec::new(), Some(0));
        while let Some(from) = more {
            let query = HistoryQuery { run, from, with_state: false, limit: PAGE };
            let rows = self.store.history(engine.scope, query).await?.items;
            more = rows.last().filter(|_| rows.len() == PAGE as usize).map(|row| row.version + 1);
            for row in rows {
                let entry = serde_json::from_slice(&row.entry);
                history.push(entry.map_err(|error| EngineError::Unreadable { run, why: error.to_string() })?);
            }
        }
        let result = match loaded_run.snapshot.finished() {
            Some(RunEnd::Completed { output, .. }) => output.clone(),
            _ => None,
        };
        Ok(StatelessResult {
            status: loaded_run.head.status,
            result,
            error: loaded_run.ledger.stopped.map(|stopped| stopped.error),
            snapshot: loaded_run.snapshot,
            documents,
            history,
        })
    }
}
