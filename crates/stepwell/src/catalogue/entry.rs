//! How the catalogue is kept: cells of the engine's own, changed in one commit each.

use std::pin::Pin;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use stepwell_core::{DefinitionHash, Name};
use stepwell_store::{
    AuditRow, Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitId, Expect, Page, Space,
    StoredDefinition, Ttl, ValueType,
};

use crate::actor::Permission;
use crate::catalogue::{Catalogue, CatalogueError};
use crate::data::DataError;
use crate::data::kv::{List, one, page};
use crate::registry::OWN;

/// Whose the cells are.
const OWNER: &str = "stepwell.catalogue";
/// What the keys of drafts begin with.
pub(super) const DRAFT: &str = "draft/";
/// What the keys of workflows begin with.
pub(super) const WORKFLOW: &str = "workflow/";
/// What the keys of actions begin with that workers elsewhere do.
pub(super) const ACTION: &str = "action/";
/// The key that counts the changes that matter to starts.
pub(super) const CHANGES: &str = "changes";
/// How often a change is decided again because somebody else was faster.
const MAX_TRIES: u32 = 64;
/// The longest note, in characters.
const MAX_NOTE: usize = 1_000;

/// What is kept of a workflow. One that has only a draft has no versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Entry {
    /// How many versions were published.
    pub(super) versions: u32,
    /// The one with the highest number.
    pub(super) newest: Option<Pinned>,
    /// The one that starts get.
    pub(super) active: Option<Pinned>,
    /// No new runs are begun.
    pub(super) archived: bool,
    /// There is a draft.
    pub(super) draft: bool,
}

/// A version, and the definition it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pinned {
    pub(super) version: u32,
    pub(super) hash: DefinitionHash,
}

/// What is kept of a published version, beside its definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stamp {
    #[serde(flatten)]
    pub(super) pinned: Pinned,
    /// Who has published it, if it was not the embedding program itself.
    #[serde(default)]
    pub(super) by: Option<String>,
    #[serde(default)]
    pub(super) note: Option<String>,
}

/// A cell as it was read: its value, and the revision on which the next write is decided.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen<T> {
    pub(super) value: T,
    pub(super) revision: u64,
}

pub(super) fn draft_key(name: &Name) -> String {
    format!("{DRAFT}{name}")
}

pub(super) fn workflow_key(name: &Name) -> String {
    format!("{WORKFLOW}{name}")
}

/// What the keys of a workflow's versions begin with.
pub(super) fn versions_of(name: &Name) -> String {
    format!("version/{name}/")
}

/// The digits keep versions in their order.
pub(super) fn version_key(name: &Name, version: u32) -> String {
    format!("{}{version:010}", versions_of(name))
}

pub(super) fn cell_key(key: String) -> CellKey {
    CellKey { space: Space::Workflow, owner: OWNER.to_owned(), key }
}

/// Asks for the cells whose keys begin so.
pub(super) fn those(prefix: String, now: stepwell_core::Timestamp, limit: u32) -> CellQuery {
    CellQuery {
        space: Space::Workflow,
        owner: OWNER.to_owned(),
        filter: CellFilter::Prefix(prefix),
        now,
        with_dead: false,
        limit,
        cursor: None,
    }
}

/// A decision on a change that is being made. It is boxed so that whoever asks for the change may do so on any thread.
pub(super) type Deciding<'a, T> =
    Pin<Box<dyn Future<Output = Result<(Writing, T), CatalogueError>> + Send + 'a>>;

/// A change of the catalogue: what one commit writes.
#[derive(Debug, Default)]
pub(super) struct Writing {
    cells: Vec<CellWrite>,
    definitions: Vec<StoredDefinition>,
    audit: Vec<AuditRow>,
    /// Workflows whose starts it changes.
    touched: Vec<Name>,
    /// It changes what workers elsewhere do.
    concerns_actions: bool,
}

impl Writing {
    pub(super) fn op(&mut self, key: String, op: CellOp, expect: Expect) {
        self.cells.push(CellWrite { key: cell_key(key), op, expect, initial: None, by: None });
    }

    pub(super) fn set(&mut self, key: String, value: &impl Serialize, expect: Expect) {
        let value = serde_json::to_value(value).expect("what the catalogue keeps is plain data");
        let (value_type, ttl) = (ValueType::Json, Ttl::Forever);
        self.op(key, CellOp::Set { value, value_type, ttl }, expect);
    }

    /// Writes a workflow down; new runs of it may be something else from then on.
    pub(super) fn entry(&mut self, name: &Name, entry: &Entry, revision: u64) {
        self.set(workflow_key(name), entry, Expect::Exactly(revision));
        self.touched.push(name.clone());
    }

    /// Notes at a workflow whether it has a draft.
    pub(super) fn has_draft(&mut self, name: &Name, has: bool) {
        let fields = Map::from_iter([("draft".to_owned(), Value::Bool(has))]);
        self.op(workflow_key(name), CellOp::Merge { fields }, Expect::Anything);
    }

    /// Writes down an action that workers elsewhere do, or takes it away.
    pub(super) fn action(&mut self, name: &Name, action: Option<&impl Serialize>) {
        let key = format!("{ACTION}{name}");
        match action {
            Some(action) => self.set(key, action, Expect::Anything),
            None => self.op(key, CellOp::Delete, Expect::Anything),
        }
        self.concerns_actions = true;
    }

    pub(super) fn define(&mut self, definition: StoredDefinition) {
        self.definitions.push(definition);
    }

    pub(super) fn audit(&mut self, operation: &str, name: &Name, detail: &Value) {
        let (operation, subject) = (operation.to_owned(), name.as_str().to_owned());
        let detail = detail.to_string().into();
        self.audit.push(AuditRow { operation, subject, actor: None, run: None, detail });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

impl Catalogue {
    /// A cell's value and revision; nothing if it was never written or is deleted.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        key: String,
    ) -> Result<(Option<T>, Option<Cell>), CatalogueError> {
        let engine = &self.engine;
        let query = one(cell_key(key), engine.now(), true);
        let cell = engine.store().cells(engine.scope(), query).await?.items.pop();
        let value = cell.as_ref().and_then(|cell| cell.value.as_ref().map(|value| parsed(cell, value)));
        Ok((value.transpose()?, cell))
    }

    /// What is kept of a workflow.
    pub(super) async fn entry(&self, name: &Name) -> Result<Seen<Entry>, CatalogueError> {
        let (value, cell) = self.read(workflow_key(name)).await?;
        let revision = cell.map_or(0, |cell| cell.revision);
        Ok(Seen { value: value.unwrap_or_default(), revision })
    }

    /// A part of the cells whose keys begin so, with what follows in the key.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        prefix: &str,
        list: List,
    ) -> Result<Page<(String, T, Cell)>, CatalogueError> {
        let engine = &self.engine;
        let List { prefix: begins, limit, cursor } = list;
        let limit = page(&engine.inner.options.limits, limit).map_err(invalid)?;
        let query = CellQuery { cursor, ..those(format!("{prefix}{begins}"), engine.now(), limit) };
        let mut page = engine.store().cells(engine.scope(), query).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for cell in std::mem::take(&mut page.items) {
            let Some(value) = &cell.value else { continue };
            let rest = cell.key.key.strip_prefix(prefix).unwrap_or_default().to_owned();
            match parsed(&cell, value) {
                Ok(read) => items.push((rest, read, cell)),
                Err(error) => page.bad.push(cell.key.bad(error.to_string())),
            }
        }
        Ok(page.over(|_: Vec<Cell>| items))
    }

    /// Decides on a change and makes it; decides again if somebody else was faster.
    pub(super) async fn change<'a, T>(
        &self,
        what: &str,
        decide: impl Fn() -> Deciding<'a, T>,
    ) -> Result<T, CatalogueError> {
        for _ in 0..MAX_TRIES {
            let (writing, decided) = decide().await?;
            if writing.is_empty() {
                return Ok(decided);
            }
            match self.commit(writing).await {
                Ok(_) => return Ok(decided),
                Err(CatalogueError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CatalogueError::Exhausted { what: what.to_owned(), tries: MAX_TRIES })
    }

    /// Makes a change, in one commit; gives the revision that the first cell has then.
    pub(super) async fn commit(&self, writing: Writing) -> Result<u64, CatalogueError> {
        let Writing { cells, definitions, audit, touched, concerns_actions } = writing;
        let is_counted = concerns_actions || !touched.is_empty();
        let (inner, scope, actor) = (&self.engine.inner, self.engine.scope(), self.engine.actor_id());
        let mut commit = Commit::new(CommitId(inner.host.ids.next()), inner.host.now());
        commit.cells = cells;
        if is_counted {
            let (key, op) = (cell_key(CHANGES.to_owned()), CellOp::Increment { by: Number::from(1) });
            commit.cells.push(CellWrite { key, op, expect: Expect::Anything, initial: None, by: None });
        }
        commit.definitions = definitions;
        commit.audit = audit.into_iter().map(|row| AuditRow { actor: actor.clone(), ..row }).collect();
        commit.actor = actor;
        let results = inner.write_down(scope, &commit).await?;
        if is_counted {
            let changes = results.last().map_or(u64::MAX, |result| result.revision);
            inner.catalogues.changed(scope.tenant(), changes);
            inner.wake.notify_one();
        }
        if !touched.is_empty() {
            Box::pin(self.after_change(&touched)).await;
        }
        Ok(results.first().map_or(0, |result| result.revision))
    }

    /// Whoever asks may change the catalogue, and the name may be in it.
    pub(super) fn may_change(&self, name: &Name) -> Result<(), CatalogueError> {
        self.engine.permit(Permission::Publish)?;
        self.may_be_called(name)
    }

    /// The name may be in the catalogue.
    pub(super) fn may_be_called(&self, name: &Name) -> Result<(), CatalogueError> {
        if let Some(fault) = name.fault(self.engine.inner.limits()) {
            return Err(CatalogueError::Invalid(fault));
        }
        if name.starts_with(OWN) {
            let why = format!("`{name}` cannot be published: names that begin with `{OWN}` are the engine's");
            return Err(CatalogueError::Invalid(why));
        }
        Ok(())
    }
}

/// A note that is not too long to be kept.
pub(super) fn noted(note: Option<String>) -> Result<Option<String>, CatalogueError> {
    match note.as_ref().map_or(0, |note| note.chars().count()) {
        0..=MAX_NOTE => Ok(note),
        long => {
            Err(CatalogueError::Invalid(format!("the note has {long} characters; it has at most {MAX_NOTE}")))
        }
    }
}

fn parsed<T: DeserializeOwned>(cell: &Cell, value: &Value) -> Result<T, CatalogueError> {
    T::deserialize(value).map_err(|error| {
        CatalogueError::Invalid(format!("what is kept of {} cannot be read: {error}", cell.key))
    })
}

fn invalid(error: DataError) -> CatalogueError {
    match error {
        DataError::Engine(error) => error.into(),
        other => CatalogueError::Invalid(other.to_string()),
    }
}

/// What a version is, for the audit trail.
pub(super) fn detail(pinned: Pinned) -> Value {
    json!({"version": pinned.version, "hash": pinned.hash})
}
