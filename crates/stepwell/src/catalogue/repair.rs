//! Repair of unreadable catalogue cells. What can be derived is rebuilt: a workflow's entry from its versions, the
//! record of a version from its definition, and the counter of changes from nothing.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::{DefinitionHash, Name};
use stepwell_store::{
    BadRow, CellKey, CellOp, CellWrite, Commit, CommitId, Precondition, Record, RecordQuery, StoreError,
    TenantScope,
};

use super::actions::RemoteAction;
use super::drafts::StoredDraft;
use super::entry::{
    ACTION, CHANGES, DRAFT, Entry, Pinned, Seen, Stamp, VERSION, WORKFLOW, cell_key, changed, draft_key,
    versions_of, workflow_key,
};
use super::{Catalogue, CatalogueError};
use crate::actor::Actor;
use crate::data::kv::{KeyList, one, whole_or_bad};
use crate::engine::Inner;
use crate::error::EngineError;

/// Page size when versions and definitions are read.
const READ_AT_ONCE: u32 = 200;

/// Checks the value of a catalogue cell. Returns the reason if it is unreadable.
pub(crate) fn check_cell(key: &str, value: &Value) -> Result<(), String> {
    fn is<T: DeserializeOwned>(value: &Value) -> Result<(), String> {
        T::deserialize(value).map(drop).map_err(|error| error.to_string())
    }
    match key {
        key if key.starts_with(WORKFLOW) => is::<Entry>(value),
        key if key.starts_with(VERSION) => is::<Stamp>(value),
        key if key.starts_with(DRAFT) => is::<StoredDraft>(value),
        key if key.starts_with(ACTION) => is::<RemoteAction>(value),
        _ => Ok(()),
    }
}

impl Catalogue {
    /// Returns the row of a cell if its value cannot be read as a `T`.
    pub(super) async fn damage<T: DeserializeOwned>(
        &self,
        key: String,
    ) -> Result<Option<BadRow>, CatalogueError> {
        let engine = &self.engine;
        let query = one(cell_key(key), engine.now(), false);
        match whole_or_bad(&**engine.store(), engine.scope(), query).await? {
            Err(row) => Ok(Some(row)),
            Ok(Some(cell)) => {
                let read = cell.value.as_ref().map(T::deserialize).transpose();
                Ok(read.err().map(|error| cell.key.bad(error.to_string())))
            }
            Ok(None) => Ok(None),
        }
    }

    /// Returns the revision of a cell whose value may be unreadable.
    async fn revision_of(&self, key: String) -> Result<u64, CatalogueError> {
        let (inner, scope) = (&self.engine.inner, self.engine.scope());
        let mut commit = Commit::new(CommitId(inner.host.ids.next()), inner.host.now());
        let (op, expect) = (CellOp::Check, Precondition::Anything);
        commit.cells.push(CellWrite { key: cell_key(key), op, expect, initial: None, by: None });
        let results = inner.write_down(scope, &commit).await?;
        Ok(results.first().map_or(0, |result| result.revision))
    }

    /// Rebuilds an unreadable entry from the versions and the draft of the workflow. No version is active, because the
    /// entry may have said otherwise.
    pub(super) async fn rebuilt(&self, name: &Name) -> Result<Seen<Entry>, CatalogueError> {
        let revision = self.revision_of(workflow_key(name)).await?;
        let mut entry = self.entry_of_versions(name).await?;
        let engine = &self.engine;
        let query = one(cell_key(draft_key(name)), engine.now(), false);
        let draft = whole_or_bad(&**engine.store(), engine.scope(), query).await?;
        entry.draft = !matches!(draft, Ok(None));
        Ok(Seen { value: entry, revision, is_rebuilt: true })
    }

    /// Derives the numbers of an entry from the stored versions of the workflow.
    pub(super) async fn entry_of_versions(&self, name: &Name) -> Result<Entry, CatalogueError> {
        let (mut found, mut cursor): (BTreeMap<u32, Pinned>, _) = (BTreeMap::new(), None);
        loop {
            let list = KeyList { prefix: String::new(), limit: Some(READ_AT_ONCE), cursor };
            let page = self.list::<Stamp>(&versions_of(name), list).await?;
            // Another workflow's name may begin with this name and a slash.
            let own =
                page.items.iter().filter(|(rest, stamp, _)| *rest == format!("{:010}", stamp.pinned.version));
            found.extend(own.map(|(_, stamp, _)| (stamp.pinned.version, stamp.pinned)));
            for row in &page.bad {
                let key = CellKey::from_address(&row.key).map(|cell| cell.key).unwrap_or_default();
                let number = key.strip_prefix(&versions_of(name)).and_then(|rest| rest.parse().ok());
                if let Some(version) = number {
                    let stamp = self.stamp_of_definition(name, version, None).await?;
                    found.extend(stamp.map(|stamp| (version, stamp.pinned)));
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let newest = found.values().next_back().copied();
        Ok(Entry { versions: found.len() as u32, newest, ..Entry::default() })
    }

    /// Rebuilds the record of a version from its stored definition. `None` if no definition or more than one has this
    /// name and version number. `known` is the hash, if another record names it.
    pub(super) async fn stamp_of_definition(
        &self,
        name: &Name,
        version: u32,
        known: Option<DefinitionHash>,
    ) -> Result<Option<Stamp>, CatalogueError> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let query =
                RecordQuery::Definitions { workflow: Some(name.clone()), limit: READ_AT_ONCE, cursor };
            let page = self.engine.store().records(self.engine.scope(), query).await?;
            for record in page.items {
                let Record::Definition(stored) = record else { continue };
                let is_it = stored.version == version && known.is_none_or(|hash| hash == stored.hash);
                found.extend(is_it.then_some(stored));
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let [stored] = &found[..] else { return Ok(None) };
        let by = stored.publisher.as_deref().and_then(|text| serde_json::from_str::<Actor>(text).ok());
        let pinned = Pinned { version, hash: stored.hash };
        Ok(Some(Stamp { pinned, by: by.map(|actor| actor.id), note: None }))
    }
}

impl Inner {
    /// Rewrites the tenant's counter of catalogue changes if it is unreadable.
    pub(crate) async fn repair_catalogue(&self, scope: TenantScope) -> Result<(), EngineError> {
        let query = one(cell_key(CHANGES.to_owned()), self.host.now(), true);
        if whole_or_bad(&*self.store, scope, query).await?.is_ok() {
            return Ok(());
        }
        let mut commit = Commit::new(CommitId(self.host.ids.next()), self.host.now());
        commit.cells.push(changed());
        self.write_down(scope, &commit).await?;
        self.catalogues.read_again(scope.tenant());
        tracing::warn!(tenant = %scope.tenant(), "the unreadable counter of catalogue changes was rebuilt");
        Ok(())
    }
}

/// Returns `true` for an error that says that a stored value is unreadable.
pub(super) fn is_unreadable(error: &CatalogueError) -> bool {
    matches!(
        error,
        CatalogueError::Unreadable { .. } | CatalogueError::Engine(EngineError::Store(StoreError::Bad(_)))
    )
}
