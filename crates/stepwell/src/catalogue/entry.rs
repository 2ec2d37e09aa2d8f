//! Storage of the catalogue: cells owned by `stepwell.catalogue`. Each change is one commit.

use std::pin::Pin;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell_core::{DefinitionHash, Name};
use stepwell_store::{
    AuditRow, Cell, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitId, Page, Precondition,
    Space, StoredDefinition, Ttl, ValueType,
};

use super::repair::is_unreadable;
use crate::actor::Permission;
use crate::catalogue::{Catalogue, CatalogueError};
use crate::data::DataError;
use crate::data::kv::{KeyList, one, page};
use crate::registry::OWN;

/// Owner of the catalogue's cells.
pub(crate) const OWNER: &str = "stepwell.catalogue";
/// Key prefix of drafts.
pub(super) const DRAFT: &str = "draft/";
/// Key prefix of published versions.
pub(super) const VERSION: &str = "version/";
/// Key prefix of workflow entries.
pub(super) const WORKFLOW: &str = "workflow/";
/// Key prefix of remote actions.
pub(super) const ACTION: &str = "action/";
/// Key of the cell whose revision counts the changes that matter to starts. Other processes compare it with their
/// cached catalogue. The value has no meaning.
pub(super) const CHANGES: &str = "changes";
/// Maximum number of attempts at a change that conflicts with concurrent changes.
const MAX_ATTEMPTS: u32 = 64;
/// Maximum length of a note, in characters.
const MAX_NOTE: usize = 1_000;

/// The stored entry of a workflow. `versions` is 0 for a workflow that has only a draft.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Entry {
    /// Number of published versions.
    pub(super) versions: u32,
    /// The version with the highest number.
    pub(super) newest: Option<Pinned>,
    /// The version that new runs use, if the workflow is not archived.
    pub(super) active: Option<Pinned>,
    /// New runs and new versions are refused.
    pub(super) archived: bool,
    pub(super) draft: bool,
}

/// A version number and the hash of its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pinned {
    pub(super) version: u32,
    pub(super) hash: DefinitionHash,
}

/// The stored record of a published version. The definition is stored separately, by its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stamp {
    #[serde(flatten)]
    pub(super) pinned: Pinned,
    /// Id of the actor who published the version. `None`: the embedding program.
    #[serde(default)]
    pub(super) by: Option<String>,
    #[serde(default)]
    pub(super) note: Option<String>,
}

/// The value of a cell and the revision it was read at. The next write expects this revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen<T> {
    pub(super) value: T,
    pub(super) revision: u64,
    /// The stored value was unreadable or missing, and this one was derived from other cells. The next change writes
    /// it.
    pub(super) is_rebuilt: bool,
}

pub(super) fn draft_key(name: &Name) -> String {
    format!("{DRAFT}{name}")
}

pub(super) fn workflow_key(name: &Name) -> String {
    format!("{WORKFLOW}{name}")
}

/// Returns the key prefix of a workflow's versions.
pub(super) fn versions_of(name: &Name) -> String {
    format!("{VERSION}{name}/")
}

/// Returns the key of a version. The number is zero-padded, so that keys sort by version.
pub(super) fn version_key(name: &Name, version: u32) -> String {
    format!("{}{version:010}", versions_of(name))
}

pub(super) fn cell_key(key: String) -> CellKey {
    CellKey { space: Space::Workflow, owner: OWNER.to_owned(), key }
}

/// Builds the write that counts a change. It sets the value instead of adding to it, so that an unreadable value
/// cannot prevent changes.
pub(super) fn changed() -> CellWrite {
    let (value, value_type, ttl) = (Value::Bool(true), ValueType::Json, Ttl::Forever);
    let (key, op) = (cell_key(CHANGES.to_owned()), CellOp::Set { value, value_type, ttl });
    CellWrite { key, op, expect: Precondition::Anything, initial: None, by: None }
}

/// Builds a query for the live catalogue cells whose keys begin with `prefix`.
pub(super) fn those(prefix: String, now: stepwell_core::Timestamp, limit: u32) -> CellQuery {
    CellQuery {
        space: Space::Workflow,
        owner: OWNER.to_owned(),
        filter: CellFilter::Prefix(prefix),
        now,
        include_deleted: false,
        limit,
        cursor: None,
    }
}

/// The future that decides on a change. It is boxed and `Send`, so that callers can await it on any thread.
pub(super) type Deciding<'a, T> =
    Pin<Box<dyn Future<Output = Result<(Writing, T), CatalogueError>> + Send + 'a>>;

/// A change of the catalogue: everything that one commit writes.
#[derive(Debug, Default)]
pub(super) struct Writing {
    cells: Vec<CellWrite>,
    definitions: Vec<StoredDefinition>,
    audit: Vec<AuditRow>,
    /// Workflows whose new runs the change affects.
    touched: Vec<Name>,
    /// The change affects remote actions.
    concerns_actions: bool,
}

impl Writing {
    pub(super) fn op(&mut self, key: String, op: CellOp, expect: Precondition) {
        self.cells.push(CellWrite { key: cell_key(key), op, expect, initial: None, by: None });
    }

    pub(super) fn set(&mut self, key: String, value: &impl Serialize, expect: Precondition) {
        let value = serde_json::to_value(value).expect("catalogue values are plain data");
        let (value_type, ttl) = (ValueType::Json, Ttl::Forever);
        self.op(key, CellOp::Set { value, value_type, ttl }, expect);
    }

    /// Writes the entry of a workflow. New runs of the workflow may use another version afterwards.
    pub(super) fn entry(&mut self, name: &Name, entry: &Entry, revision: u64) {
        self.set(workflow_key(name), entry, Precondition::Exactly(revision));
        self.touched.push(name.clone());
    }

    /// Stores in the workflow's entry whether it has a draft.
    pub(super) fn has_draft(&mut self, name: &Name, has: bool) {
        let fields = Map::from_iter([("draft".to_owned(), Value::Bool(has))]);
        self.op(workflow_key(name), CellOp::Merge { fields }, Precondition::Anything);
    }

    /// Writes a remote action. `None` deletes it.
    pub(super) fn action(&mut self, name: &Name, action: Option<&impl Serialize>) {
        let key = format!("{ACTION}{name}");
        match action {
            Some(action) => self.set(key, action, Precondition::Anything),
            None => self.op(key, CellOp::Delete, Precondition::Anything),
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
    /// Reads a cell. The value is `None` if the cell was never written or is deleted.
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

    /// Reads the entry of a workflow. A missing entry is empty, at revision 0. An entry that is unreadable or was lost
    /// is rebuilt from the workflow's versions.
    pub(super) async fn entry(&self, name: &Name) -> Result<Seen<Entry>, CatalogueError> {
        let (value, cell) = match self.read::<Entry>(workflow_key(name)).await {
            Err(error) if is_unreadable(&error) => return self.rebuilt(name).await,
            read => read?,
        };
        let (revision, value) = (cell.map_or(0, |cell| cell.revision), value.unwrap_or_default());
        if value.versions > 0 {
            return Ok(Seen { value, revision, is_rebuilt: false });
        }
        // Usually there are no versions, and this reads one empty page.
        let derived = self.entry_of_versions(name).await?;
        let is_rebuilt = derived.versions > 0;
        Ok(Seen { value: Entry { draft: value.draft, ..derived }, revision, is_rebuilt })
    }

    /// Lists cells whose keys begin with `prefix`, one page at a time. Each item has the rest of the key. Unreadable
    /// cells are reported in the page's `bad`.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        prefix: &str,
        list: KeyList,
    ) -> Result<Page<(String, T, Cell)>, CatalogueError> {
        let engine = &self.engine;
        let KeyList { prefix: begins, limit, cursor } = list;
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

    /// Decides on a change and commits it. Decides again if a concurrent change was committed first, at most
    /// [`MAX_ATTEMPTS`] times.
    pub(super) async fn change<'a, T>(
        &self,
        what: &str,
        decide: impl Fn() -> Deciding<'a, T>,
    ) -> Result<T, CatalogueError> {
        for _ in 0..MAX_ATTEMPTS {
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
        Err(CatalogueError::Exhausted { what: what.to_owned(), attempts: MAX_ATTEMPTS })
    }

    /// Commits a change and returns the new revision of its first cell.
    pub(super) async fn commit(&self, writing: Writing) -> Result<u64, CatalogueError> {
        let Writing { cells, definitions, audit, touched, concerns_actions } = writing;
        let is_counted = concerns_actions || !touched.is_empty();
        let (inner, scope, actor) = (&self.engine.inner, self.engine.scope(), self.engine.actor_id());
        let mut commit = Commit::new(CommitId(inner.host.ids.next()), inner.host.now());
        commit.cells = cells;
        if is_counted {
            commit.cells.push(changed());
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

    /// Checks that the caller may change the catalogue and that the name is allowed in it.
    pub(super) fn may_change(&self, name: &Name) -> Result<(), CatalogueError> {
        self.engine.permit(Permission::Publish)?;
        self.may_be_called(name)
    }

    /// Checks that the name is allowed in the catalogue.
    pub(super) fn may_be_called(&self, name: &Name) -> Result<(), CatalogueError> {
        if let Some(invalid_reason) = name.invalid_reason(self.engine.inner.limits()) {
            return Err(CatalogueError::Invalid(invalid_reason));
        }
        if name.starts_with(OWN) {
            let why = format!(
                "`{name}` cannot be published: names that begin with `{OWN}` are reserved for the engine"
            );
            return Err(CatalogueError::Invalid(why));
        }
        Ok(())
    }
}

/// Rejects a note that is longer than [`MAX_NOTE`].
pub(super) fn noted(note: Option<String>) -> Result<Option<String>, CatalogueError> {
    match note.as_ref().map_or(0, |note| note.chars().count()) {
        0..=MAX_NOTE => Ok(note),
        long => Err(CatalogueError::Invalid(format!(
            "the note has {long} characters; at most {MAX_NOTE} are allowed"
        ))),
    }
}

fn parsed<T: DeserializeOwned>(cell: &Cell, value: &Value) -> Result<T, CatalogueError> {
    T::deserialize(value)
        .map_err(|error| CatalogueError::Unreadable { what: cell.key.to_string(), why: error.to_string() })
}

fn invalid(error: DataError) -> CatalogueError {
    match error {
        DataError::Engine(error) => error.into(),
        other => CatalogueError::Invalid(other.to_string()),
    }
}

/// Describes a version for the audit trail.
pub(super) fn detail(pinned: Pinned) -> Value {
    json!({"version": pinned.version, "hash": pinned.hash})
}
