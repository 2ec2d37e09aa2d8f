//! Unreadable rows: those that the other checks encounter and, with `deep`, all of the tenant.

use std::future::Future;

use serde_json::Value;
use stepwell_core::{Definition, Name, RunId};
use stepwell_store::{
    BadRow, Cell, CellFilter, CellKey, CellQuery, CountQuery, DocumentQuery, HandleQuery, HistoryQuery,
    LinkFilter, LinkQuery, Loaded, Page, Record, RecordQuery, RunQuery, Space, StoreError, WaitQuery,
};

use super::Doctor;
use super::finding::{Example, FindingKind, Remedy, Severity, quoted};
use crate::error::EngineError;
use crate::flow::REVOKED;
use crate::inbox::InboxMessage;
use crate::{catalogue, events, schedule};

/// Page sizes: for small rows, and for rows with states and documents.
const AT_ONCE: u32 = 500;
const STATES: u32 = 20;

impl Doctor<'_> {
    /// Loads a run. `None` if it does not exist or its row is unreadable, which is reported.
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

    /// Reports the unreadable parts of a run whose row can be read.
    pub(super) fn damage(&mut self, loaded: &Loaded) {
        self.unreadable(loaded.damage.as_slice());
    }

    /// Reports unreadable rows, each of them once.
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
            let what = format!("rows of table `{}` are unreadable", row.table);
            let why = "they were changed by hand, damaged by the disk, or written by a newer version; \
                       other rows are not affected";
            self.findings.add(Severity::Error, FindingKind::RowsUnreadable, what, why, example);
        }
    }

    /// Reads all rows of the tenant.
    pub(super) async fn read_all(&mut self) -> Result<(), EngineError> {
        self.unreadable(&self.options.unreadable);
        self.all_runs().await?;
        self.all_waits().await?;
        self.all_definitions().await?;
        self.all_cells().await?;
        self.all_links().await?;
        self.all_records().await
    }

    /// Reads a listing to its end and reports unreadable rows.
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
            self.scanned(at, page.items.len() + page.bad.len(), true);
            self.unreadable(&page.bad);
            each(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Reads a listing to its end, reports unreadable rows and returns the others.
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

    /// Reads all rows that belong to a run.
    pub(super) async fn rows_of(&mut self, run: RunId) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        if let Some(loaded) = self.load(run).await? {
            let messages = loaded.inbox.iter().filter_map(|message| {
                let why = InboxMessage::read(message).err()?.to_string();
                Some(BadRow { table: "inbox", key: format!("{run}:{}", message.seq), run: Some(run), why })
            });
            self.unreadable(&messages.collect::<Vec<_>>());
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
        let shadows = |_| store.records(scope, RecordQuery::Shadows(run));
        self.read("all shadow columns", shadows, drop).await?;
        self.cells_of(Space::Execution, run.to_string(), |_, _| Ok(())).await?;
        Ok(())
    }

    /// Reads all waits, and reports those whose run does not exist.
    async fn all_waits(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page = |cursor| store.waits(scope, WaitQuery { limit: AT_ONCE, cursor, ..WaitQuery::default() });
        for row in self.all("all waits", page).await? {
            let is_there = !matches!(store.load(scope, row.run).await, Ok(None));
            if !is_there {
                let key = format!("{}:{}", row.run, row.wait.activation);
                let why = "the run of this wait does not exist".to_owned();
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

    /// Reads all definitions, the slots of each workflow, and the records of the engine and the server.
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
                Ok(definition) => Some(format!("the content has another hash: {}", definition.hash())),
                Err(error) => Some(error.to_string()),
            };
            let bad = why.map(|why| BadRow { table: "definitions", key, run: None, why });
            self.unreadable(bad.as_slice());
            workflows.push(stored.workflow);
        }
        workflows.extend(self.engine.inner.registry.names());
        workflows.extend(OWNERS.map(Name::from));
        workflows.sort_unstable();
        workflows.dedup();
        for workflow in workflows {
            let check: fn(&str, &Value) -> Result<(), String> = match workflow.as_str() {
                catalogue::OWNER => catalogue::check_cell,
                events::WORKFLOW => events::index::check_cell,
                REVOKED => |_, value| value.as_i64().map(drop).ok_or_else(|| "it is not a time".to_owned()),
                _ => |_, _| Ok(()),
            };
            self.cells_of(Space::Workflow, workflow.to_string(), check).await?;
        }
        Ok(())
    }

    /// Reads all cells of an owner. `check` returns the reason why a value is unreadable.
    async fn cells_of(
        &mut self,
        space: Space,
        owner: String,
        check: fn(&str, &Value) -> Result<(), String>,
    ) -> Result<(), EngineError> {
        let (store, scope, now) = (self.engine.store().clone(), self.engine.scope(), self.now);
        let page = |cursor| {
            let filter = CellFilter::Prefix(String::new());
            let owner = owner.clone();
            store.cells(
                scope,
                CellQuery { space, owner, filter, now, include_deleted: true, limit: AT_ONCE, cursor },
            )
        };
        let mut odd = Vec::new();
        let each = |cells: Vec<Cell>| {
            for cell in cells {
                let checked = cell.value.as_ref().map_or(Ok(()), |value| check(&cell.key.key, value));
                odd.extend(checked.err().map(|why| cell.key.bad(why)));
            }
        };
        self.read("all values", page, each).await?;
        self.unreadable(&odd);
        Ok(())
    }

    async fn all_cells(&mut self) -> Result<(), EngineError> {
        for namespace in self.names(CountQuery::Keys { now: self.now }).await? {
            self.cells_of(Space::Kv, namespace, |_, _| Ok(())).await?;
        }
        Ok(())
    }

    async fn names(&mut self, of: CountQuery) -> Result<Vec<String>, EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        let page =
            |cursor| store.records(scope, RecordQuery::Count { of: of.clone(), limit: AT_ONCE, cursor });
        let names = self.all("namespaces", page).await?.into_iter().filter_map(|record| match record {
            Record::Count { name, .. } => Some(name),
            _ => None,
        });
        Ok(names.collect())
    }

    async fn all_links(&mut self) -> Result<(), EngineError> {
        let (store, scope) = (self.engine.store().clone(), self.engine.scope());
        for namespace in self.names(CountQuery::Links).await? {
            let page = |cursor| {
                let which = LinkFilter::All { from: None, to: None };
                let (namespace, relation) = (namespace.clone(), None);
                store.links(scope, LinkQuery { namespace, which, relation, limit: AT_ONCE, cursor })
            };
            self.read("all links", page, drop).await?;
        }
        Ok(())
    }

    /// Reads all handles, idempotency keys, the audit trail and its seals.
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

/// Owners of the cells of the engine and the server.
const OWNERS: [&str; 6] =
    [catalogue::OWNER, events::WORKFLOW, schedule::WORKFLOW, REVOKED, API_KEYS, TENANTS];
/// Owner of the server's API keys.
const API_KEYS: &str = "stepwell.apikeys";
/// Owner of the server's tenants.
const TENANTS: &str = "stepwell.tenants";

/// Lists remedies for an unreadable row.
fn remedies(row: &BadRow) -> Vec<Remedy> {
    let advice = match (row.table, row.run) {
        ("runs" | "waits" | "handles", Some(run)) => return vec![Remedy::Delete(run)],
        ("shadows", Some(run)) => {
            let heal = "run `stepwell maintenance heal`, which computes the columns from the run's data";
            return vec![Remedy::Advice(heal.to_owned()), Remedy::Explain(run)];
        }
        ("cells", Some(run)) => return vec![of_cell(row), Remedy::Explain(run)],
        ("cells", None) => return vec![of_cell(row)],
        (_, Some(run)) => return vec![Remedy::Explain(run), Remedy::Cancel(run), Remedy::Delete(run)],
        ("links", None) => "write the link again, or delete it",
        ("definitions", None) => {
            "publish the workflow again and activate the new version, or start a process that registers the same \
             definition; cancel the runs that are pinned to it. Only the owner of the tables can delete the row"
        }
        ("audit" | "seals", None) => {
            "do not change these rows; run `stepwell audit verify` to list all faults"
        }
        (_, None) => "no action is needed: maintenance deletes the row when it expires",
    };
    vec![Remedy::Advice(advice.to_owned())]
}

/// Returns the remedy for an unreadable cell.
fn of_cell(row: &BadRow) -> Remedy {
    let general = "set the value again, or delete it";
    let Some(CellKey { space, owner, key }) = CellKey::from_address(&row.key) else {
        return Remedy::Advice(general.to_owned());
    };
    let (kind, name) = key.split_once('/').unwrap_or((&key, ""));
    let name = quoted(name);
    let advice = match (space, owner.as_str(), kind) {
        (Space::Workflow, catalogue::OWNER, "changes") | (Space::Workflow, events::WORKFLOW, "asks") => {
            return Remedy::RunMaintenance;
        }
        (Space::Workflow, catalogue::OWNER, "workflow") => {
            format!("rebuild the entry by activating a version: `stepwell workflow activate {name} VERSION`")
        }
        (Space::Workflow, catalogue::OWNER, "version") => {
            "rebuild the record by activating the version: `stepwell workflow activate NAME VERSION`"
                .to_owned()
        }
        (Space::Workflow, catalogue::OWNER, "draft") => {
            format!("save the draft again, or delete it: `stepwell workflow delete-draft {name}`")
        }
        (Space::Workflow, catalogue::OWNER, "action") => {
            format!("register the action again, or delete it: `stepwell action delete {name}`")
        }
        (Space::Workflow, events::WORKFLOW, "type") => {
            format!("put the event type again, or delete it: `stepwell event delete-type {name}`")
        }
        (Space::Workflow, REVOKED, _) => "revoke the flow or actor again; its tokens are refused".to_owned(),
        (Space::Workflow, API_KEYS, id) => format!("revoke the key: `stepwell apikey revoke {id}`"),
        (Space::Workflow, TENANTS, id) => {
            format!("write the tenant again with its name: `stepwell tenant update {id} --name NAME`")
        }
        (Space::Kv, owner, _) => {
            let (owner, key) = (quoted(owner), quoted(&key));
            format!("{general}: `stepwell kv delete {owner} {key}`")
        }
        (Space::Workflow, owner, _) => {
            let (owner, key) = (quoted(owner), quoted(&key));
            format!("{general}: `stepwell state delete {owner} {key}`")
        }
        (Space::Execution, run, _) => {
            format!("{general}: `stepwell state delete-of-run {run} {}`", quoted(&key))
        }
    };
    Remedy::Advice(advice)
}
