//! Publishing: a document becomes a version that never changes again.

use serde::Serialize;
use serde_json::json;
use stepwell_core::{Definition, DefinitionHash, Document, Name};
use stepwell_store::{CellOp, Expect};

use super::entry::{Entry, Pinned, Seen, Stamp, Writing, detail, draft_key, noted, version_key};
use super::{Catalogue, CatalogueError};
use crate::registry::kept_by;

/// What is to be published, and how.
#[derive(Debug, Clone)]
pub struct Publish {
    from: From,
    activate: bool,
    note: Option<String>,
}

/// Where the document comes from.
#[derive(Debug, Clone)]
enum From {
    Draft(u64),
    Text(String),
}

impl Publish {
    /// The draft as it was read, at this revision. It is gone once it is published.
    pub fn draft(revision: u64) -> Self {
        Publish { from: From::Draft(revision), activate: false, note: None }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Publish { from: From::Text(text.into()), activate: false, note: None }
    }

    /// New runs get it from then on.
    #[must_use]
    pub fn activate(mut self) -> Self {
        self.activate = true;
        self
    }

    /// What is to be remembered with it.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// What was published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// The workflow.
    pub name: Name,
    /// Its number.
    pub version: u32,
    /// The definition that runs of it are pinned to.
    pub hash: DefinitionHash,
    /// It was made just now; otherwise the newest version says the same.
    pub is_new: bool,
    /// It is the version that new runs get.
    pub is_active: bool,
    /// What this engine lacks to run it. Another process may have it.
    pub warnings: Vec<stepwell_core::document::Problem>,
}

impl Catalogue {
    /// Publishes a document: it becomes the next version, which never changes again. One that says the same as the newest
    /// version is that version.
    pub async fn publish(
        &self,
        name: impl Into<Name>,
        publish: Publish,
    ) -> Result<Published, CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        let Publish { from, activate, note } = publish;
        let note = noted(note)?;
        self.refresh().await?;
        self.change(&format!("workflow `{name}`"), || {
            Box::pin(self.publishing(&name, &from, activate, note.as_deref()))
        })
        .await
    }

    /// What publishing comes to, on what is there now.
    async fn publishing(
        &self,
        name: &Name,
        from: &From,
        activate: bool,
        note: Option<&str>,
    ) -> Result<(Writing, Published), CatalogueError> {
        let mut writing = Writing::default();
        let (text, draft) = match from {
            From::Text(text) => (text.clone(), None),
            From::Draft(revision) => {
                let draft = self.draft_at(name, *revision).await?;
                writing.op(draft_key(name), CellOp::Delete, Expect::Live(*revision));
                (draft.text, Some(*revision))
            }
        };
        let document = self.sound(Some(name), &text)?;
        let Seen { value: mut entry, revision } = self.entry(name).await?;
        let (before, was) = (entry.clone(), entry.newest);
        let pinned = self.next(&document, name, &mut entry, note, &mut writing)?;
        let is_new = was != Some(pinned);
        if activate {
            entry.active = Some(pinned);
        }
        entry.draft &= draft.is_none();
        if entry != before {
            writing.entry(name, &entry, revision);
            let mut detail = detail(pinned);
            detail["isNew"] = is_new.into();
            detail["activated"] = activate.into();
            detail["draft"] = json!(draft);
            writing.audit("workflow.publish", name, &detail);
        }
        let (is_active, warnings) = (entry.active == Some(pinned), self.warnings(&document));
        let Pinned { version, hash } = pinned;
        let name = name.clone();
        Ok((writing, Published { name, version, hash, is_new, is_active, warnings }))
    }

    /// The version that a document is: the newest if that says the same, otherwise another one, which is written down.
    pub(super) fn next(
        &self,
        document: &Document,
        name: &Name,
        entry: &mut Entry,
        note: Option<&str>,
        writing: &mut Writing,
    ) -> Result<Pinned, CatalogueError> {
        if entry.archived {
            return Err(CatalogueError::Archived(name.clone()));
        }
        let newest = entry.newest.map_or(0, |newest| newest.version);
        if let Some(pinned) = entry.newest
            && self.edition(document, pinned.version)?.hash() == pinned.hash
        {
            return Ok(pinned);
        }
        let next = newest.checked_add(1).map(|next| next.max(document.version()));
        let version = next.ok_or_else(|| {
            CatalogueError::Invalid(format!(
                "workflow `{name}` has version {newest}, and no number is higher"
            ))
        })?;
        let definition = self.edition(document, version)?;
        let pinned = Pinned { version, hash: definition.hash() };
        let stamp = Stamp { pinned, by: self.engine.actor_id(), note: note.map(str::to_owned) };
        writing.set(version_key(name, version), &stamp, Expect::Exactly(0));
        writing.define(kept_by(&definition, self.engine.actor()));
        entry.versions = entry.versions.saturating_add(1);
        entry.newest = Some(pinned);
        Ok(pinned)
    }

    /// The workflow of a document, under this number.
    fn edition(&self, document: &Document, version: u32) -> Result<Definition, CatalogueError> {
        let mut spec = document.definition().spec().clone();
        spec.version = version;
        let built = spec.build_within(self.engine.inner.limits());
        built.map_err(|problems| CatalogueError::Invalid(problems.to_string()))
    }
}
