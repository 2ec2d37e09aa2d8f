//! Rows that cannot be read: those that the other looks come across, and with `deep` all there are.

use std::future::Future;

use stepwell_core::{Definition, RunId};
use stepwell_store::{
    BadRow, CellFilter, CellQuery, DocumentQuery, HandleQuery, HistoryQuery, LinkFilter, LinkQuery, Loaded,
    Page, Record, RecordQuery, RunQuery, Space, StoreError, Tally, WaitQuery,
};

use super::Doctor;
use super::finding::{Example, Kind, Remedy, Severity};
use crate::error::EngineError;
use crate::post::Letter;

/// Rows that are read at a time, and those that may be large.
const AT_ONCE: u32 = 500;
const STATES: u32 = 20;

impl Doctor<'_> {
    /// A run, if it is there and its row can be read.
    pub(super) async fn load(&mut self, run: RunId) -> Result<Option<Loaded>, EngineError> {
        match self.engine.store().load(self.engine.scope(), run).await {
            Ok(loaded) => {
                loaded.iter().for_each(|loaded| self.damage(loaded));
                Ok(loaded)
            }
            Err(StoreError::Bad(row)) => {
                self.unreadable(&[row]);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A run of which only the row can be read.
    pub(super) fn damage(&mut self, loaded: &Loaded) {
        self.unreadable(loaded.damage.as_slice());
    }

    /// Rows cannot be read.
    pub(super) fn unreadable(&mut self, rows: &[BadRow]) {
        for row in rows {
            if !self.told.insert((row.table, row.key.clone())) {
                continue;
            }
            let example = Example {
                run: row.run,
                name: Some(row.key.clone()),
                workflow: None,
                since: None,
                why: row.why.clone(),
                remedies: remedies(row),
            };
            let what = format!("rows of table `{}` cannot be read", row.table);
            let why = "somebody has changed them by hand, the disk is at fault, or a newer version wrote them; \
                       everything else goes on without them";
            self.findings.add(Severity::Error, Kind::RowsUnreadable, what, why, example);
        }
    }

    /// Reads everything that the tenant has.
    pub(super) async fn read_all(&mut self) -> Result<(), EngineError> {
        self.all_runs().await?;
        self.all_waits().await?;
        self.all_definitions().await?;
        self.all_cells().await?;
        self.all_links().await?;
        self.all_records().await
    }

    /// Reads a listing to its end, and tells of what cannot be read.
    async fn read<T, F>(
        &mut self,
        at: &'static str,
        page: impl Fn(Option<String>) -> F,
        mut each: impl FnMut(Vec<T>),
    ) -> Result<(), EngineError>
    where
        F: Future<Output = Result<Page<T>, StoreError>>,
    {
        let mut cursor = None;
        loop {
            let page = page(cursor).await?;
            self.looked(at, page.items.len() + page.bad.len(), true);
            self.unreadable(&page.bad);
            each(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// The same, and gives what can be read.
    async fn all<T, F>(
        &mut self,
        at: &'static str,
        page: impl Fn(Option<String>) -> F,
    ) -> Result<Vec<T>, EngineError>
    where
        F: Future<Output = Result<Page<T>, StoreError>>,
    {
        let mut all = Vec::new();
        self.read(at, page, |items| all.extend(items)).await?;
        Ok(all)
    }

    async fn all_runs(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page = |cursor| store.runs(scope, RunQuery { limit: AT_ONCE, cursor, ..RunQuery::default() });
        for run in self.all("all runs", page).await?.into_iter().map(|summary| summary.run) {
            self.rows_of(run).await?;
        }
        Ok(())
    }

    /// Everything that is a run's own.
    pub(super) async fn rows_of(&mut self, run: RunId) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        if let Some(loaded) = self.load(run).await? {
            let letters = loaded.inbox.iter().filter_map(|message| {
                let why = Letter::read(message).err()?.to_string();
                Some(BadRow { table: "inbox", key: format!("{run}:{}", message.seq), run: Some(run), why })
            });
            self.unreadable(&letters.collect::<Vec<_>>());
            if loaded.damage.is_none()
                && let Err(error) = self.engine.inner.load(scope, run).await
                && let Ok(row) = error.bad_row(run)
            {
                self.unreadable(&[row]);
            }
        }
        let checkpoints = |cursor: Option<String>| {
            let from = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
            store.history(scope, HistoryQuery { run, from, with_state: true, limit: STATES })
        };
        self.read("all checkpoints", checkpoints, drop).await?;
        let documents = |cursor| {
            let (at, key, kind, tag) = (None, None, None, None);
            store.documents(scope, DocumentQuery { run, at, key, kind, tag, limit: STATES, cursor })
        };
        self.read("all documents", documents, drop).await?;
        self.cells_of(Space::Execution, run.to_string()).await?;
        Ok(())
    }

    /// Waits, and those whose run is not there any more.
    async fn all_waits(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page = |cursor| store.waits(scope, WaitQuery { limit: AT_ONCE, cursor, ..WaitQuery::default() });
        for row in self.all("all waits", page).await? {
            let is_there = !matches!(store.load(scope, row.run).await, Ok(None));
            if !is_there {
                let key = format!("{}:{}", row.run, row.wait.activation);
                let why = "the run that waits is not there".to_owned();
                self.unreadable(&[BadRow { table: "waits", key, run: Some(row.run), why }]);
            } else if let Err(error) = serde_json::from_slice::<serde_json::Value>(&row.wait.detail) {
                let key = format!("{}:{}", row.run, row.wait.activation);
                self.unreadable(&[BadRow {
                    table: "waits",
                    key,
                    run: Some(row.run),
                    why: error.to_string(),
                }]);
            }
        }
        Ok(())
    }

    /// Definitions, and the state that runs of each workflow share.
    async fn all_definitions(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page = |cursor| {
            let query = RecordQuery::Definitions { workflow: None, limit: AT_ONCE, cursor };
            store.records(scope, query)
        };
        let mut workflows = Vec::new();
        for record in self.all("all definitions", page).await? {
            let Record::Definition(stored) = record else { continue };
            let key = format!("{} {}", stored.workflow, stored.hash);
            let why = match Definition::from_canonical(&stored.body) {
                Ok(definition) if definition.hash() == stored.hash => None,
                Ok(definition) => Some(format!("its content has the hash {}", definition.hash())),
                Err(error) => Some(error.to_string()),
            };
            let bad = why.map(|why| BadRow { table: "definitions", key, run: None, why });
            self.unreadable(bad.as_slice());
            workflows.push(stored.workflow);
        }
        workflows.sort_unstable();
        workflows.dedup();
        for workflow in workflows {
            self.cells_of(Space::Workflow, workflow.to_string()).await?;
        }
        Ok(())
    }

    async fn cells_of(&mut self, space: Space, owner: String) -> Result<(), EngineError> {
        let (store, scope, now) = (self.engine.store().clone(), self.engine.scope(), self.now);
        let page = |cursor| {
            let filter = CellFilter::Prefix(String::new());
            let owner = owner.clone();
            store.cells(
                scope,
                CellQuery { space, owner, filter, now, with_dead: true, limit: AT_ONCE, cursor },
            )
        };
        self.read("all values", page, drop).await
    }

    async fn all_cells(&mut self) -> Result<(), EngineError> {
        for namespace in self.names(Tally::Keys { now: self.now }).await? {
            self.cells_of(Space::Kv, namespace).await?;
        }
        Ok(())
    }

    async fn names(&mut self, of: Tally) -> Result<Vec<String>, EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page =
            |cursor| store.records(scope, RecordQuery::Tally { of: of.clone(), limit: AT_ONCE, cursor });
        let names = self.all("namespaces", page).await?.into_iter().filter_map(|record| match record {
            Record::Tally { name, .. } => Some(name),
            _ => None,
        });
        Ok(names.collect())
    }

    async fn all_links(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        for namespace in self.names(Tally::Links).await? {
            let page = |cursor| {
                let which = LinkFilter::All { from: None, to: None };
                let (namespace, relation) = (namespace.clone(), None);
                store.links(scope, LinkQuery { namespace, which, relation, limit: AT_ONCE, cursor })
            };
            self.read("all links", page, drop).await?;
        }
        Ok(())
    }

    /// Handles, keys, the audit trail and its seals.
    async fn all_records(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let handles =
            |cursor| RecordQuery::Handles(HandleQuery { limit: AT_ONCE, cursor, ..HandleQuery::default() });
        self.read("all handles", |cursor| store.records(scope, handles(cursor)), drop).await?;
        let keys = |cursor| RecordQuery::Keys { limit: AT_ONCE, cursor };
        self.read("all idempotency keys", |cursor| store.records(scope, keys(cursor)), drop).await?;
        let audit = |cursor| RecordQuery::Audit { limit: AT_ONCE, cursor };
        self.read("the audit trail", |cursor| store.records(scope, audit(cursor)), drop).await?;
        let seals = |cursor: Option<String>| {
            let from = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
            RecordQuery::Seals { from, limit: AT_ONCE }
        };
        self.read("the seals", |cursor| store.records(scope, seals(cursor)), drop).await?;
        Ok(())
    }
}

/// What can be done about a row.
fn remedies(row: &BadRow) -> Vec<Remedy> {
    let advice = match (row.table, row.run) {
        ("runs" | "waits" | "handles", Some(run)) => return vec![Remedy::Delete(run)],
        (_, Some(run)) => return vec![Remedy::Explain(run), Remedy::Cancel(run), Remedy::Delete(run)],
        ("cells", None) => "set the value again, or delete it",
        ("links", None) => "put the link again, or delete it",
        ("definitions", None) => {
            "let a process bring the same definition, or cancel the runs that are pinned to it; only the owner of the \
             tables may take the row away"
        }
        ("audit" | "seals", None) => {
            "nothing may change them: `stepwell audit verify` names what does not fit"
        }
        (_, None) => "it goes when it has expired",
    };
    vec![Remedy::Advice(advice.to_owned())]
}
