//! Which version new runs get, if any. Runs that are going keep the version they were begun with.

use serde::Serialize;
use serde_json::{Value, json};
use stepwell_core::Name;

use super::entry::{Entry, Seen, Writing, detail};
use super::{Catalogue, CatalogueError};

/// What new runs of a workflow get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Activated {
    /// The workflow.
    pub name: Name,
    /// The version that new runs get; none if it cannot be started.
    pub active: Option<u32>,
    /// It was another before.
    pub is_changed: bool,
}

impl Catalogue {
    /// New runs get this version from now on.
    pub async fn activate(&self, name: impl Into<Name>, version: u32) -> Result<Activated, CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        self.published(&name).await?;
        let pinned = self.stamp(&name, version).await?.0.pinned;
        self.switch(name.clone(), "workflow.activate", detail(pinned), |entry| {
            if entry.archived {
                return Err(CatalogueError::Archived(name.clone()));
            }
            entry.active = Some(pinned);
            Ok(())
        })
        .await
    }

    /// No new runs are begun until a version is activated again.
    pub async fn deactivate(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let none = |entry: &mut Entry| {
            entry.active = None;
            Ok(())
        };
        self.switch(name.into(), "workflow.deactivate", json!({}), none).await
    }

    /// Puts a workflow away: no new runs are begun and nothing is published until it is restored.
    pub async fn archive(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let away = |entry: &mut Entry| {
            entry.archived = true;
            Ok(())
        };
        self.switch(name.into(), "workflow.archive", json!({}), away).await
    }

    /// Takes a workflow out of the archive; the version that was active is active again.
    pub async fn restore(&self, name: impl Into<Name>) -> Result<Activated, CatalogueError> {
        let back = |entry: &mut Entry| {
            entry.archived = false;
            Ok(())
        };
        self.switch(name.into(), "workflow.restore", json!({}), back).await
    }

    /// Changes what new runs get.
    async fn switch(
        &self,
        name: Name,
        operation: &str,
        detail: Value,
        change: impl Fn(&mut Entry) -> Result<(), CatalogueError> + Sync,
    ) -> Result<Activated, CatalogueError> {
        self.may_change(&name)?;
        let (name, detail, change) = (&name, &detail, &change);
        self.change(&format!("workflow `{name}`"), || {
            Box::pin(async move {
                let Seen { value: before, revision } = self.published(name).await?;
                let (mut after, mut writing) = (before.clone(), Writing::default());
                change(&mut after)?;
                if after != before {
                    writing.entry(name, &after, revision);
                    writing.audit(operation, name, detail);
                }
                let active = after.active().map(|active| active.version);
                let is_changed = after.active() != before.active();
                Ok((writing, Activated { name: name.clone(), active, is_changed }))
            })
        })
        .await
    }
}
