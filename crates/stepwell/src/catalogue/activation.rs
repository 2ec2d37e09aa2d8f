//! Activation: the version that new runs of a workflow use. Existing runs keep the version they were started with.

use serde::Serialize;
use serde_json::{Value, json};
use stepwell_core::Name;
use stepwell_store::Precondition;

use super::entry::{Entry, Seen, Stamp, Writing, detail, version_key};
use super::repair::is_unreadable;
use super::{Catalogue, CatalogueError};

/// The active version of a workflow after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Activated {
    pub name: Name,
    /// The version that new runs use. `None`: the workflow cannot be started.
    pub active: Option<u32>,
    /// The call changed the active version.
    pub is_changed: bool,
}

impl Catalogue {
    /// Makes this version the one that new runs use.
    pub async fn activate(&self, name: impl Into<Name>, version: u32) -> Result<Activated, CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        let entry = self.published(&name).await?.value;
        let (stamp, lost) = match self.stamp(&name, version).await {
            Err(error) if is_unreadable(&error) => {
                // Activating a version repairs its record.
                let known = [entry.newest, entry.active].into_iter().flatten();
                let hash = known.into_iter().find(|known| known.version == version).map(|known| known.hash);
                let stamp = self.stamp_of_definition(&name, version, hash).await?.ok_or(error)?;
                (stamp.clone(), Some(stamp))
            }
            found => (found?.0, None),
        };
        let pinned = stamp.pinned;
        self.switch(name.clone(), "workflow.activate", detail(pinned), lost.as_ref(), |entry| {
            if entry.archived {
                return Err(CatalogueError::Archived(name.clone()));
            }
            entry.active = Some(pinned);
            Ok(())
        })
        .await
    }

    /// Refuses new runs of a workflow until a version is activated again.
    pub async fn deactivate(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let none = |entry: &mut Entry| {
            entry.active = None;
            Ok(())
        };
        self.switch(name.into(), "workflow.deactivate", json!({}), None, none).await
    }

    /// Archives a workflow: new runs and new versions are refused until it is restored.
    pub async fn archive(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let away = |entry: &mut Entry| {
            entry.archived = true;
            Ok(())
        };
        self.switch(name.into(), "workflow.archive", json!({}), None, away).await
    }

    /// Restores an archived workflow. The version that was active before becomes active again.
    pub async fn restore(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let back = |entry: &mut Entry| {
            entry.archived = false;
            Ok(())
        };
        self.switch(name.into(), "workflow.restore", json!({}), None, back).await
    }

    /// Applies a change to a published workflow's entry, with an audit row. Writes nothing if the entry stays the same.
    /// An entry and a version record (`lost`) that were unreadable are written again.
    async fn switch(
        &self,
        name: Name,
        operation: &str,
        detail: Value,
        lost: Option<&Stamp>,
        change: impl Fn(&mut Entry) -> Result<(), CatalogueError> + Sync,
    ) -> Result<Activated, CatalogueError> {
        self.may_change(&name)?;
        let (name, detail, change) = (&name, &detail, &change);
        self.change(&format!("workflow `{name}`"), || {
            Box::pin(async move {
                let Seen { value: before, revision, is_rebuilt } = self.published(name).await?;
                let (mut after, mut writing) = (before.clone(), Writing::default());
                change(&mut after)?;
                if after != before || is_rebuilt || lost.is_some() {
                    writing.entry(name, &after, revision);
                    writing.audit(operation, name, detail);
                }
                if let Some(stamp) = lost {
                    writing.set(version_key(name, stamp.pinned.version), stamp, Precondition::Anything);
                }
                let active = after.active().map(|active| active.version);
                let is_changed = after.active() != before.active();
                Ok((writing, Activated { name: name.clone(), active, is_changed }))
            })
        })
        .await
    }
}
