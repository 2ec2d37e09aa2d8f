//! Queries of the catalogue: workflows, their published versions, and differences between versions.

use serde::Serialize;
use serde_json::Value;
use stepwell_core::document::{Difference, diff, yaml};
use stepwell_core::near::did_you_mean;
use stepwell_core::{Definition, DefinitionHash, Name, Timestamp};
use stepwell_store::{Cell, Page};

use super::entry::{Entry, Seen, Stamp, WORKFLOW, version_key, versions_of};
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::KeyList;

/// Maximum number of versions in the error for a missing version.
const VERSIONS_TOLD: u32 = 10;

/// A workflow in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowSummary {
    pub name: Name,
    /// Number of published versions; 0 for a workflow that has only a draft.
    pub versions: u32,
    /// Highest published version number.
    pub newest: Option<u32>,
    /// The version that new runs use.
    pub active: Option<u32>,
    /// New runs and new versions are refused.
    pub is_archived: bool,
    pub has_draft: bool,
    /// Time of the last change.
    pub at: Timestamp,
}

impl WorkflowSummary {
    fn of(name: &str, entry: &Entry, at: Timestamp) -> Option<Self> {
        (entry.versions > 0 || entry.draft).then(|| WorkflowSummary {
            name: name.into(),
            versions: entry.versions,
            newest: entry.newest.map(|newest| newest.version),
            active: entry.active().map(|active| active.version),
            is_archived: entry.archived,
            has_draft: entry.draft,
            at,
        })
    }
}

/// A published version in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    pub version: u32,
    /// Hash of the definition. Runs of this version are pinned to it.
    pub hash: DefinitionHash,
    /// Id of the actor who published the version. `None`: the embedding program.
    pub by: Option<String>,
    pub at: Timestamp,
    /// Note stored with the version.
    pub note: Option<String>,
    /// New runs use this version.
    pub is_active: bool,
}

impl Version {
    fn of(stamp: Stamp, cell: &Cell, entry: &Entry) -> Self {
        let Stamp { pinned, by, note } = stamp;
        let is_active = entry.active() == Some(pinned);
        Version { version: pinned.version, hash: pinned.hash, by, at: cell.created_at, note, is_active }
    }
}

/// A published version with its definition.
#[derive(Debug, Clone)]
pub struct WorkflowVersion {
    pub about: Version,
    pub definition: Definition,
}

impl WorkflowVersion {
    /// Returns the workflow document as JSON, or `null` if the version has none.
    pub fn document(&self) -> &Value {
        const NONE: &Value = &Value::Null;
        self.definition.spec().document.as_deref().unwrap_or(NONE)
    }

    /// Returns the workflow document as YAML. Comments and the order of fields are not preserved.
    pub fn to_yaml(&self) -> String {
        yaml(self.document())
    }
}

impl Catalogue {
    /// Lists workflows by name, one page at a time. `list.prefix` selects the names that begin with it.
    pub async fn workflows(&self, list: KeyList) -> Result<Page<WorkflowSummary>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let page = self.list::<Entry>(WORKFLOW, list).await?;
        Ok(page.filter_map(|(name, entry, cell)| WorkflowSummary::of(&name, &entry, cell.updated_at)))
    }

    /// Returns a workflow by name.
    pub async fn workflow(&self, name: impl Into<Name>) -> Result<WorkflowSummary, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let (entry, cell) = self.read::<Entry>(super::entry::workflow_key(&name)).await?;
        let listed =
            entry.zip(cell).and_then(|(entry, cell)| WorkflowSummary::of(&name, &entry, cell.updated_at));
        match listed {
            Some(listed) => Ok(listed),
            None => Err(self.no_workflow(&name).await?),
        }
    }

    /// Lists a workflow's versions in ascending order, one page at a time.
    pub async fn versions(
        &self,
        name: impl Into<Name>,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Version>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let entry = self.published(&name).await?.value;
        let list = KeyList { prefix: String::new(), limit, cursor };
        let page = self.list::<Stamp>(&versions_of(&name), list).await?;
        // Another workflow's name may begin with this name and a slash: leave its versions out.
        Ok(page.filter_map(|(rest, stamp, cell)| {
            let is_own = rest == format!("{:010}", stamp.pinned.version);
            is_own.then(|| Version::of(stamp, &cell, &entry))
        }))
    }

    /// Returns a published version. It never changes.
    pub async fn version(
        &self,
        name: impl Into<Name>,
        version: u32,
    ) -> Result<WorkflowVersion, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let entry = self.published(&name).await?.value;
        let (stamp, cell) = self.stamp(&name, version).await?;
        let pinned = stamp.pinned;
        let workflow = self.engine.inner.pinned(self.engine.scope(), &name, pinned).await?;
        let about = Version::of(stamp, &cell, &entry);
        Ok(WorkflowVersion { about, definition: workflow.definition.clone() })
    }

    /// Compares the documents of two versions.
    pub async fn diff(
        &self,
        name: impl Into<Name>,
        from: u32,
        to: u32,
    ) -> Result<Vec<Difference>, CatalogueError> {
        let name = name.into();
        let (from, to) = (self.version(name.clone(), from).await?, self.version(name, to).await?);
        Ok(diff(from.document(), to.document()))
    }

    /// Returns the active version of every published workflow that is not archived, as a single page. Unreadable ones
    /// are in the page's `bad`.
    pub async fn active(&self) -> Result<Page<Definition>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        Ok(self.engine.inner.active(self.engine.scope()).await?.page())
    }

    /// Returns the entry of a published workflow, or an error with a suggestion of a similar name.
    pub(super) async fn published(&self, name: &Name) -> Result<Seen<Entry>, CatalogueError> {
        let seen = self.entry(name).await?;
        if seen.value.versions > 0 { Ok(seen) } else { Err(self.no_workflow(name).await?) }
    }

    /// Returns the stored record of a version, or an error that lists existing versions.
    pub(super) async fn stamp(&self, name: &Name, version: u32) -> Result<(Stamp, Cell), CatalogueError> {
        let (stamp, cell) = self.read::<Stamp>(version_key(name, version)).await?;
        if let Some(found) = stamp.zip(cell) {
            return Ok(found);
        }
        let some = KeyList { limit: Some(VERSIONS_TOLD), ..KeyList::default() };
        let some = self.list::<Stamp>(&versions_of(name), some).await?;
        let told: Vec<_> = some.items.iter().map(|(_, stamp, _)| stamp.pinned.version.to_string()).collect();
        let more = if some.next.is_some() { " and more" } else { "" };
        let hint = format!("; existing versions: {}{more}", told.join(", "));
        let what = format!("version {version} of workflow `{name}`");
        Err(CatalogueError::NotFound { absent: Absent::Version, what, hint })
    }

    /// Builds the error for a missing workflow, with a suggestion of a similar name.
    pub(super) async fn no_workflow(&self, name: &Name) -> Result<CatalogueError, CatalogueError> {
        let all = self.list::<Entry>(WORKFLOW, KeyList { limit: Some(200), ..KeyList::default() }).await?;
        let published = all.items.iter().filter(|(_, entry, _)| entry.versions > 0);
        let hint = did_you_mean(name, published.map(|(name, ..)| name.as_str()));
        let what = format!("published workflow `{name}`");
        Ok(CatalogueError::NotFound { absent: Absent::Workflow, what, hint })
    }
}
