//! What there is: workflows, their published versions, and what differs between two of these.

use serde::Serialize;
use serde_json::Value;
use stepwell_core::document::{Difference, diff, yaml};
use stepwell_core::near::did_you_mean;
use stepwell_core::{Definition, DefinitionHash, Name, Timestamp};
use stepwell_store::{Cell, Page};

use super::entry::{Entry, Seen, Stamp, WORKFLOW, version_key, versions_of};
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::List;

/// So many versions are named to somebody who asks for one that is not there.
const VERSIONS_TOLD: u32 = 10;

/// A workflow in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// How many versions were published; 0 = it is only a draft yet.
    pub versions: u32,
    /// The highest number.
    pub newest: Option<u32>,
    /// The version that new runs get.
    pub active: Option<u32>,
    /// No new runs are begun.
    pub is_archived: bool,
    /// Somebody is working on it.
    pub has_draft: bool,
    /// When this was last changed.
    pub at: Timestamp,
}

impl Listed {
    fn of(name: &str, entry: &Entry, at: Timestamp) -> Option<Self> {
        (entry.versions > 0 || entry.draft).then(|| Listed {
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
    /// Its number.
    pub version: u32,
    /// The definition that runs of it are pinned to.
    pub hash: DefinitionHash,
    /// Who has published it, if it was not the embedding program itself.
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
    /// What is remembered with it.
    pub note: Option<String>,
    /// It is the version that new runs get.
    pub is_active: bool,
}

impl Version {
    fn of(stamp: Stamp, cell: &Cell, entry: &Entry) -> Self {
        let Stamp { pinned, by, note } = stamp;
        let is_active = entry.active() == Some(pinned);
        Version { version: pinned.version, hash: pinned.hash, by, at: cell.created_at, note, is_active }
    }
}

/// A published version, with what was published.
#[derive(Debug, Clone)]
pub struct Edition {
    /// Its number, who has published it, and when.
    pub about: Version,
    /// What runs of it are pinned to.
    pub definition: Definition,
}

impl Edition {
    /// The document.
    pub fn document(&self) -> &Value {
        const NONE: &Value = &Value::Null;
        self.definition.spec().document.as_deref().unwrap_or(NONE)
    }

    /// The document as YAML; comments are not kept.
    pub fn to_yaml(&self) -> String {
        yaml(self.document())
    }
}

impl Catalogue {
    /// A part of the workflows, in the order of their names; `prefix` is what those begin with.
    pub async fn workflows(&self, list: List) -> Result<Page<Listed>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let page = self.list::<Entry>(WORKFLOW, list).await?;
        Ok(page.filter_map(|(name, entry, cell)| Listed::of(&name, &entry, cell.updated_at)))
    }

    /// A workflow.
    pub async fn workflow(&self, name: impl Into<Name>) -> Result<Listed, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let (entry, cell) = self.read::<Entry>(super::entry::workflow_key(&name)).await?;
        let listed = entry.zip(cell).and_then(|(entry, cell)| Listed::of(&name, &entry, cell.updated_at));
        match listed {
            Some(listed) => Ok(listed),
            None => Err(self.no_workflow(&name).await?),
        }
    }

    /// A part of a workflow's versions, in their order.
    pub async fn versions(
        &self,
        name: impl Into<Name>,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Version>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let entry = self.published(&name).await?.value;
        let list = List { prefix: String::new(), limit, cursor };
        let page = self.list::<Stamp>(&versions_of(&name), list).await?;
        // Another workflow's name may begin with this one's and a slash.
        Ok(page.filter_map(|(rest, stamp, cell)| {
            let is_own = rest == format!("{:010}", stamp.pinned.version);
            is_own.then(|| Version::of(stamp, &cell, &entry))
        }))
    }

    /// A published version: what it was when it was published, and will be.
    pub async fn version(&self, name: impl Into<Name>, version: u32) -> Result<Edition, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        let entry = self.published(&name).await?.value;
        let (stamp, cell) = self.stamp(&name, version).await?;
        let pinned = stamp.pinned;
        let workflow = self.engine.inner.pinned(self.engine.scope(), &name, pinned).await?;
        let about = Version::of(stamp, &cell, &entry);
        Ok(Edition { about, definition: workflow.definition.clone() })
    }

    /// What differs between two versions.
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

    /// Every published workflow that can be started, as it is started.
    pub async fn active(&self) -> Result<Vec<Definition>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let active = self.engine.inner.active(self.engine.scope()).await?;
        Ok(active.iter().map(|workflow| workflow.definition.clone()).collect())
    }

    /// What is kept of a workflow that was published.
    pub(super) async fn published(&self, name: &Name) -> Result<Seen<Entry>, CatalogueError> {
        let seen = self.entry(name).await?;
        if seen.value.versions > 0 { Ok(seen) } else { Err(self.no_workflow(name).await?) }
    }

    /// What is kept of a version.
    pub(super) async fn stamp(&self, name: &Name, version: u32) -> Result<(Stamp, Cell), CatalogueError> {
        let (stamp, cell) = self.read::<Stamp>(version_key(name, version)).await?;
        if let Some(found) = stamp.zip(cell) {
            return Ok(found);
        }
        let some = List { limit: Some(VERSIONS_TOLD), ..List::default() };
        let some = self.list::<Stamp>(&versions_of(name), some).await?;
        let told: Vec<_> = some.items.iter().map(|(_, stamp, _)| stamp.pinned.version.to_string()).collect();
        let more = if some.next.is_some() { " and more" } else { "" };
        let hint = format!("; there are {}{more}", told.join(", "));
        let what = format!("version {version} of workflow `{name}`");
        Err(CatalogueError::NotFound { absent: Absent::Version, what, hint })
    }

    /// There is none; perhaps another one was meant.
    pub(super) async fn no_workflow(&self, name: &Name) -> Result<CatalogueError, CatalogueError> {
        let all = self.list::<Entry>(WORKFLOW, List { limit: Some(200), ..List::default() }).await?;
        let published = all.items.iter().filter(|(_, entry, _)| entry.versions > 0);
        let hint = did_you_mean(name, published.map(|(name, ..)| name.as_str()));
        let what = format!("published workflow `{name}`");
        Ok(CatalogueError::NotFound { absent: Absent::Workflow, what, hint })
    }
}
