//! Drafts: workflow documents that are being edited. Each has a revision, so that a change cannot overwrite a newer
//! one.

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell_core::limits::json_bytes;
use stepwell_core::near::did_you_mean;
use stepwell_core::{Name, Timestamp};
use stepwell_store::{CellOp, Page, Precondition};

use super::entry::{DRAFT, Entry, Seen, WORKFLOW, Writing, draft_key, workflow_key};
use super::repair::is_unreadable;
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::KeyList;

/// A workflow document that is being edited. It may contain errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draft {
    pub name: Name,
    /// The document as it was saved. It may contain errors.
    pub text: String,
    /// Revision that the next change must name as `if_revision`.
    pub revision: u64,
    /// Id of the actor who saved the draft. `None`: the embedding program.
    pub by: Option<String>,
    /// Time of the last change.
    pub at: Timestamp,
}

/// A draft in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drafted {
    pub name: Name,
    /// Revision that the next change must name as `if_revision`.
    pub revision: u64,
    /// Id of the actor who saved the draft. `None`: the embedding program.
    pub by: Option<String>,
    /// Time of the last change.
    pub at: Timestamp,
    /// Size of the document in bytes.
    pub bytes: usize,
}

/// The stored value of a draft.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredDraft {
    text: String,
    #[serde(default)]
    by: Option<String>,
}

impl Catalogue {
    /// Saves a draft without checking it. `if_revision` is the revision the caller has read; 0 means that no draft
    /// exists yet. Another revision in the store is a conflict.
    pub async fn put_draft(
        &self,
        name: impl Into<Name>,
        text: impl Into<String>,
        if_revision: u64,
    ) -> Result<Draft, CatalogueError> {
        let (name, text, by) = (name.into(), text.into(), self.engine.actor_id());
        self.may_change(&name)?;
        let kept = StoredDraft { text, by };
        let bytes = json_bytes(&json!(kept));
        self.engine.inner.limits().cell_bytes(&format!("the draft of `{name}`"), bytes)?;
        let mut writing = Writing::default();
        let expect = if if_revision == 0 { Precondition::Absent } else { Precondition::Live(if_revision) };
        writing.set(draft_key(&name), &kept, expect);
        if if_revision == 0 {
            self.note_draft(&name, true, &mut writing).await?;
        }
        writing.audit("workflow.draft", &name, &json!({"bytes": kept.text.len(), "after": if_revision}));
        let at = self.engine.now();
        let revision = self.commit(writing).await.map_err(|error| of_draft(&name, error))?;
        Ok(Draft { name, text: kept.text, revision, by: kept.by, at })
    }

    /// Returns a draft by the name of its workflow.
    pub async fn draft(&self, name: impl Into<Name>) -> Result<Draft, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        match self.find_draft(&name).await? {
            Some(draft) => Ok(draft),
            None => Err(self.no_draft(&name).await?),
        }
    }

    /// Lists drafts by name, one page at a time. `list.prefix` selects the names that begin with it.
    pub async fn drafts(&self, list: KeyList) -> Result<Page<Drafted>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let page = self.list::<StoredDraft>(DRAFT, list).await?;
        Ok(page.map(|(name, kept, cell)| Drafted {
            name: name.into(),
            revision: cell.revision,
            by: kept.by,
            at: cell.updated_at,
            bytes: kept.text.len(),
        }))
    }

    /// Deletes a draft. Another revision in the store than `if_revision` is a conflict.
    pub async fn delete_draft(&self, name: impl Into<Name>, if_revision: u64) -> Result<(), CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        // An unreadable draft can be deleted. The error for a wrong revision names the current one.
        let is_there = match self.find_draft(&name).await {
            Err(error) if is_unreadable(&error) => true,
            found => found?.is_some(),
        };
        if !is_there {
            return Err(self.no_draft(&name).await?);
        }
        let mut writing = Writing::default();
        writing.op(draft_key(&name), CellOp::Delete, Precondition::Live(if_revision));
        self.note_draft(&name, false, &mut writing).await?;
        writing.audit("workflow.draft.delete", &name, &json!({"revision": if_revision}));
        self.commit(writing).await.map_err(|error| of_draft(&name, error))?;
        Ok(())
    }

    /// Writes into the workflow's entry whether it has a draft. Rebuilds an unreadable entry.
    async fn note_draft(&self, name: &Name, has: bool, writing: &mut Writing) -> Result<(), CatalogueError> {
        match self.damage::<Entry>(workflow_key(name)).await? {
            None => writing.has_draft(name, has),
            Some(_) => {
                let Seen { value, revision, .. } = self.rebuilt(name).await?;
                writing.entry(name, &Entry { draft: has, ..value }, revision);
            }
        }
        Ok(())
    }

    pub(super) async fn find_draft(&self, name: &Name) -> Result<Option<Draft>, CatalogueError> {
        let (kept, cell) = self.read::<StoredDraft>(draft_key(name)).await?;
        let Some((kept, cell)) = kept.zip(cell) else { return Ok(None) };
        let (name, at, revision) = (name.clone(), cell.updated_at, cell.revision);
        Ok(Some(Draft { name, text: kept.text, revision, by: kept.by, at }))
    }

    /// Returns a draft, or a conflict if it is not at this revision.
    pub(super) async fn draft_at(&self, name: &Name, revision: u64) -> Result<Draft, CatalogueError> {
        let Some(draft) = self.find_draft(name).await? else { return Err(self.no_draft(name).await?) };
        if draft.revision != revision {
            let what = format!("the draft of `{name}`");
            return Err(CatalogueError::Conflict { what, revision: draft.revision, exists: true });
        }
        Ok(draft)
    }

    /// Builds the error for a missing draft, with a suggestion of a similar name.
    async fn no_draft(&self, name: &Name) -> Result<CatalogueError, CatalogueError> {
        let all = self.list::<Entry>(WORKFLOW, KeyList { limit: Some(200), ..KeyList::default() }).await?;
        let drafts = all.items.iter().filter(|(_, entry, _)| entry.draft);
        let hint = did_you_mean(name, drafts.map(|(name, ..)| name.as_str()));
        Ok(CatalogueError::NotFound { absent: Absent::Draft, what: format!("draft of `{name}`"), hint })
    }
}

/// Replaces the cell key in a conflict by the name of the draft.
pub(super) fn of_draft(name: &Name, error: CatalogueError) -> CatalogueError {
    match error {
        CatalogueError::Conflict { revision, exists, .. } => {
            CatalogueError::Conflict { what: format!("the draft of `{name}`"), revision, exists }
        }
        other => other,
    }
}
