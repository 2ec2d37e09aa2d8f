//! Drafts: texts that somebody is working on, each with a revision, so that nobody overwrites what they have not seen.

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell_core::limits::json_bytes;
use stepwell_core::near::did_you_mean;
use stepwell_core::{Name, Timestamp};
use stepwell_store::{CellOp, Expect, Page};

use super::entry::{DRAFT, Entry, WORKFLOW, Writing, draft_key};
use super::{Absent, Catalogue, CatalogueError};
use crate::actor::Permission;
use crate::data::kv::List;

/// A text that somebody is working on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draft {
    /// The workflow it is to become.
    pub name: Name,
    /// The text as it was written, sound or not.
    pub text: String,
    /// What the next change names, so that it does not overwrite another one.
    pub revision: u64,
    /// Who has written it, if it was not the embedding program itself.
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A draft in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drafted {
    /// The workflow it is to become.
    pub name: Name,
    /// Its revision.
    pub revision: u64,
    /// Who has written it, if it was not the embedding program itself.
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
    /// How long the text is.
    pub bytes: usize,
}

/// What is kept of a draft.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    text: String,
    #[serde(default)]
    by: Option<String>,
}

impl Catalogue {
    /// Keeps a text as a draft, whatever is wrong with it. `if_revision` is the revision that was read; 0 = there is none yet.
    pub async fn put_draft(
        &self,
        name: impl Into<Name>,
        text: impl Into<String>,
        if_revision: u64,
    ) -> Result<Draft, CatalogueError> {
        let (name, text, by) = (name.into(), text.into(), self.engine.actor_id());
        self.may_change(&name)?;
        let kept = Kept { text, by };
        let bytes = json_bytes(&json!(kept));
        self.engine.inner.limits().cell_bytes(&format!("the draft of `{name}`"), bytes)?;
        let mut writing = Writing::default();
        let expect = if if_revision == 0 { Expect::Absent } else { Expect::Live(if_revision) };
        writing.set(draft_key(&name), &kept, expect);
        if if_revision == 0 {
            writing.has_draft(&name, true);
        }
        writing.audit("workflow.draft", &name, &json!({"bytes": kept.text.len(), "after": if_revision}));
        let at = self.engine.now();
        let revision = self.commit(writing).await.map_err(|error| of_draft(&name, error))?;
        Ok(Draft { name, text: kept.text, revision, by: kept.by, at })
    }

    /// A draft.
    pub async fn draft(&self, name: impl Into<Name>) -> Result<Draft, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let name = name.into();
        match self.find_draft(&name).await? {
            Some(draft) => Ok(draft),
            None => Err(self.no_draft(&name).await?),
        }
    }

    /// A part of the drafts, in the order of their names; `prefix` is what those begin with.
    pub async fn drafts(&self, list: List) -> Result<Page<Drafted>, CatalogueError> {
        self.engine.permit(Permission::View)?;
        let page = self.list::<Kept>(DRAFT, list).await?;
        Ok(page.map(|(name, kept, cell)| Drafted {
            name: name.into(),
            revision: cell.revision,
            by: kept.by,
            at: cell.updated_at,
            bytes: kept.text.len(),
        }))
    }

    /// Throws a draft away.
    pub async fn delete_draft(&self, name: impl Into<Name>, if_revision: u64) -> Result<(), CatalogueError> {
        let name = name.into();
        self.may_change(&name)?;
        if self.find_draft(&name).await?.is_none() {
            return Err(self.no_draft(&name).await?);
        }
        let mut writing = Writing::default();
        writing.op(draft_key(&name), CellOp::Delete, Expect::Live(if_revision));
        writing.has_draft(&name, false);
        writing.audit("workflow.draft.delete", &name, &json!({"revision": if_revision}));
        self.commit(writing).await.map_err(|error| of_draft(&name, error))?;
        Ok(())
    }

    pub(super) async fn find_draft(&self, name: &Name) -> Result<Option<Draft>, CatalogueError> {
        let (kept, cell) = self.read::<Kept>(draft_key(name)).await?;
        let Some((kept, cell)) = kept.zip(cell) else { return Ok(None) };
        let (name, at, revision) = (name.clone(), cell.updated_at, cell.revision);
        Ok(Some(Draft { name, text: kept.text, revision, by: kept.by, at }))
    }

    /// A draft at the revision that was read.
    pub(super) async fn draft_at(&self, name: &Name, revision: u64) -> Result<Draft, CatalogueError> {
        let Some(draft) = self.find_draft(name).await? else { return Err(self.no_draft(name).await?) };
        if draft.revision != revision {
            let what = format!("the draft of `{name}`");
            return Err(CatalogueError::Conflict { what, revision: draft.revision, exists: true });
        }
        Ok(draft)
    }

    /// There is none; perhaps another one was meant.
    async fn no_draft(&self, name: &Name) -> Result<CatalogueError, CatalogueError> {
        let all = self.list::<Entry>(WORKFLOW, List { limit: Some(200), ..List::default() }).await?;
        let drafts = all.items.iter().filter(|(_, entry, _)| entry.draft);
        let hint = did_you_mean(name, drafts.map(|(name, ..)| name.as_str()));
        Ok(CatalogueError::NotFound { absent: Absent::Draft, what: format!("draft of `{name}`"), hint })
    }
}

/// A conflict names the draft as people know it.
pub(super) fn of_draft(name: &Name, error: CatalogueError) -> CatalogueError {
    match error {
        CatalogueError::Conflict { revision, exists, .. } => {
            CatalogueError::Conflict { what: format!("the draft of `{name}`"), revision, exists }
        }
        other => other,
    }
}
