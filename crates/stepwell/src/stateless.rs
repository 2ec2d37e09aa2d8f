//! A workflow in one pass and without a database: to its end, or to the first wait or timer.

use std::sync::Arc;

use serde_json::Value;
use stepwell_core::snapshot::Finished;
use stepwell_core::{Failure, RunId, Snapshot};
use stepwell_store::{Document, DocumentQuery, HistoryQuery, MemoryStore, Status, Store};

use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::hold;
use crate::lists;
use crate::standing::{Along, Standing};
use crate::start::{Fresh, Start};

/// What a pass came to.
#[derive(Debug, Clone)]
pub struct Pass {
    /// How the run is doing: completed, waiting or failed.
    pub status: Status,
    /// Its state.
    pub snapshot: Arc<Snapshot>,
    /// Its result, if it has one.
    pub result: Option<Value>,
    /// Why it stopped, if it did.
    pub error: Option<Failure>,
    /// Its documents.
    pub documents: Vec<Document>,
    /// What happened, oldest first.
    pub history: Vec<stepwell_core::Entry>,
}

impl Engine {
    /// Runs a workflow in one pass and writes nothing down: to its end, or to the first wait or timer, where the
    /// snapshot is given back. Refused before it starts if the definition needs children or the data store.
    pub async fn run_stateless(&self, start: Start) -> Result<Pass, EngineError> {
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
        let inner = self.inner.in_memory(Arc::new(MemoryStore::new()));
        let run = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let process = inner.process();
        let Fresh { new, standing, next, shadings: _ } =
            inner.fresh_of(workflow, &start, run, None, Some(process)).await?;
        let documents = lists::kept(run, None, &standing.snapshot);
        let along = Along { create: vec![new], documents, ..Along::default() };
        let committed =
            inner.store.commit(self.scope, inner.commit_of(self.scope, along, inner.host.now())).await?;
        let head = committed.created.into_iter().next().unwrap_or_else(|| standing.head.clone());
        let mut standing = Standing { head, ..standing };
        let mut next = Some(next);
        loop {
            if standing.head.owner == Some(process) {
                hold::inline(&inner, self.scope, standing, next.take()).await;
            }
            standing = inner.load(self.scope, run).await?;
            let retry = standing.ledger.tries.iter().filter_map(|tries| tries.next).min();
            let Some(retry) = retry.filter(|_| standing.ledger.stopped.is_none()) else { break };
            inner.host.clock.sleep_until(retry).await;
            standing = inner.taken(self.scope, run).await?;
        }
        inner.passed(self, run, standing).await
    }
}

impl Inner {
    /// Takes a run of a store that nobody else uses.
    async fn taken(
        self: &Arc<Self>,
        scope: stepwell_store::TenantScope,
        run: RunId,
    ) -> Result<Standing, EngineError> {
        let claim = stepwell_store::Claim {
            by: Some(self.process()),
            now: self.host.now(),
            limit: 1,
            definitions: None,
            dead: Vec::new(),
        };
        let loaded =
            self.store.claim(scope, claim).await?.items.into_iter().next().ok_or(EngineError::NoRun(run))?;
        self.stand(scope, loaded).await
    }

    async fn passed(&self, engine: &Engine, run: RunId, standing: Standing) -> Result<Pass, EngineError> {
        let query =
            DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 1_000, cursor: None };
        let documents = lists::shown(self.store.documents(engine.scope, query).await?).items;
        let query = HistoryQuery { run, from: 0, with_state: false, limit: 1_000 };
        let rows = self.store.history(engine.scope, query).await?.items;
        let history = rows.iter().map(|row| serde_json::from_slice(&row.entry)).collect::<Result<_, _>>();
        let history = history.map_err(|error| EngineError::Unreadable { run, why: error.to_string() })?;
        let result = match standing.snapshot.finished() {
            Some(Finished::Completed { output, .. }) => output.clone(),
            _ => None,
        };
        Ok(Pass {
            status: standing.head.status,
            result,
            error: standing.ledger.stopped.map(|stopped| stopped.error),
            snapshot: standing.snapshot,
            documents,
            history,
        })
    }
}
