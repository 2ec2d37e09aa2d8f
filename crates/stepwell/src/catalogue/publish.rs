//! Publishing: a workflow document becomes an immutable version.

use serde::Serialize;
use serde_json::json;
use stepwell_core::{Definition, DefinitionHash, Name, WorkflowSource};
use stepwell_store::{CellOp, Precondition};

use super::check::known_actions_only;
use super::entry::{Entry, Pinned, Seen, Stamp, Writing, detail, draft_key, noted, version_key};
use super::{Catalogue, CatalogueError};
use crate::registry::stored_definition;

/// A request to publish a draft or a document.
#[derive(Debug, Clone)]
pub struct Publish {
    from: From,
    activate: bool,
    note: Option<String>,
    allow_unknown_actions: bool,
}

/// The source of the document.
#[derive(Debug, Clone)]
enum From {
    Draft(u64),
    Text(String),
}

impl Publish {
    /// Publishes the stored draft at this revision. The same commit deletes the draft.
    pub fn draft(revision: u64) -> Self {
        Publish::from(From::Draft(revision))
    }

    /// Publishes this workflow document, given as YAML or JSON.
    pub fn text(text: impl Into<String>) -> Self {
        Publish::from(From::Text(text.into()))
    }

    fn from(from: From) -> Self {
        Publish { from, activate: false, note: None, allow_unknown_actions: false }
    }

    /// Publishes the document even if it calls actions that this engine does not know. A run waits at such a call
    /// until a process with the action takes it.
    #[must_use]
    pub fn allow_unknown_actions(mut self) -> Self {
        self.allow_unknown_actions = true;
        self
    }

    /// Makes the version the one that new runs use.
    #[must_use]
    pub fn activate(mut self) -> Self {
        self.activate = true;
        self
    }

    /// Stores a note with the version, at most 1,000 characters.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// The result of publishing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    pub name: Name,
    /// The new version, or the newest one if its content is the same.
    pub version: u32,
    /// Hash of the definition. Runs of this version are pinned to it.
    pub hash: DefinitionHash,
    /// `false` if the newest version has the same content, so that none was added.
    pub is_new: bool,
    /// New runs use this version.
    pub is_active: bool,
    /// Actions, guards and strategies that this engine lacks to run the version. Another process may have them.
    pub warnings: Vec<stepwell_core::document::SourceProblem>,
}

impl Catalogue {
    /// Publishes a document as the next version, which never changes. A document with the same content as the newest
    /// version adds none. A call of an unknown action in a new version is an error, unless the request allows it.
    pub async fn publish(
        &self,
        name: impl Into<Name>,
        publish: Publish,
    ) -> Result<Published, CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        let publish = Publish { note: noted(publish.note)?, ..publish };
        self.refresh().await?;
        self.change(&format!("workflow `{name}`"), || Box::pin(self.publishing(&name, &publish))).await
    }

    /// Decides on the publication, given the current content of the catalogue.
    async fn publishing(
        &self,
        name: &Name,
        publish: &Publish,
    ) -> Result<(Writing, Published), CatalogueError> {
        let Publish { from, activate, note, allow_unknown_actions } = publish;
        let activate = *activate;
        let mut writing = Writing::default();
        let (text, draft) = match from {
            From::Text(text) => (text.clone(), None),
            From::Draft(revision) => {
                let draft = self.draft_at(name, *revision).await?;
                writing.op(draft_key(name), CellOp::Delete, Precondition::Live(*revision));
                (draft.text, Some(*revision))
            }
        };
        let document = self.sound(Some(name), &text)?;
        let warnings = self.warnings(&document);
        let Seen { value: mut entry, revision, is_rebuilt } = self.entry(name).await?;
        let (before, was) = (entry.clone(), entry.newest);
        let pinned = self.next(&document, name, &mut entry, note.as_deref(), &mut writing).await?;
        let is_new = was != Some(pinned);
        if is_new && !allow_unknown_actions {
            known_actions_only(&warnings)?;
        }
        if activate {
            entry.active = Some(pinned);
        }
        entry.draft &= draft.is_none();
        if entry != before || is_rebuilt {
            writing.entry(name, &entry, revision);
            let mut detail = detail(pinned);
            detail["isNew"] = is_new.into();
            detail["activated"] = activate.into();
            detail["draft"] = json!(draft);
            writing.audit("workflow.publish", name, &detail);
        }
        let is_active = entry.active == Some(pinned);
        let Pinned { version, hash } = pinned;
        let name = name.clone();
        Ok((writing, Published { name, version, hash, is_new, is_active, warnings }))
    }

    /// Returns the newest version if the document has the same content and its definition is readable. Otherwise adds
    /// the next version to `writing`.
    pub(super) async fn next(
        &self,
        document: &WorkflowSource,
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
            && self.build_version(document, pinned.version)?.hash() == pinned.hash
            && self.engine.inner.is_readable(self.engine.scope(), name, pinned).await?
        {
            return Ok(pinned);
        }
        let next = newest.checked_add(1).map(|next| next.max(document.version()));
        let version = next.ok_or_else(|| {
            CatalogueError::Invalid(format!(
                "workflow `{name}` has version {newest}, which is the highest possible number"
            ))
        })?;
        let definition = self.build_version(document, version)?;
        let pinned = Pinned { version, hash: definition.hash() };
        let stamp = Stamp { pinned, by: self.engine.actor_id(), note: note.map(str::to_owned) };
        writing.set(version_key(name, version), &stamp, Precondition::Exactly(0));
        writing.define(stored_definition(&definition, self.engine.actor()));
        entry.versions = entry.versions.saturating_add(1);
        entry.newest = Some(pinned);
        Ok(pinned)
    }

    /// Builds the definition of a document with this version number.
    fn build_version(&self, document: &WorkflowSource, version: u32) -> Result<Definition, CatalogueError> {
        let mut spec = document.definition().spec().clone();
        // The version number is part of the hash. So the same text published twice, with another version in
        // between, is two versions, each with its own publisher.
        spec.version = version;
        let built = spec.build_within(self.engine.inner.limits());
        built.map_err(|problems| CatalogueError::Invalid(problems.to_string()))
    }
}
