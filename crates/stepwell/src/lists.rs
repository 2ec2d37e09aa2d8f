//! Lists that loops iterate over. A long list is stored once, as a document of its run, and not in every checkpoint.

use std::sync::Arc;

use stepwell_core::frame::List;
use stepwell_core::{RunId, Snapshot};
use stepwell_store::{
    Document, DocumentOp, DocumentQuery, DocumentWrite, Loaded, Page, StoreError, TenantScope,
};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::loaded_run::LoadedRun;

/// The kind of the documents that store such lists. They are internal and hidden from document queries.
const KIND: &str = "stepwell.list";

/// Returns document writes for the lists that a change has added.
pub(crate) fn kept(run: RunId, before: Option<&Snapshot>, after: &Snapshot) -> Vec<DocumentWrite> {
    let known = |id| before.is_some_and(|before| before.long_lists().any(|(known, _)| known == id));
    let new = after.long_lists().filter(|(id, _)| !known(*id));
    new.map(|(id, list)| DocumentWrite {
        run,
        key: format!("{KIND}:{}", id.as_str()),
        op: DocumentOp::Put { kind: KIND.into(), body: list.to_json().into(), tags: Vec::new() },
    })
    .collect()
}

/// Removes the engine's internal documents from a page.
pub(crate) fn shown(mut page: Page<Document>) -> Page<Document> {
    page.items.retain(|document| document.kind.as_str() != KIND);
    page
}

impl Inner {
    /// Builds a loaded run, including the lists that its loops iterate over.
    pub(crate) async fn build_loaded_run(
        &self,
        scope: TenantScope,
        loaded: Loaded,
    ) -> Result<LoadedRun, EngineError> {
        let mut loaded_run = LoadedRun::new(&self.registry, scope.tenant(), loaded)?;
        if !loaded_run.snapshot.missing_lists().is_empty() {
            let mut snapshot = Arc::unwrap_or_clone(loaded_run.snapshot);
            self.put_lists(scope, loaded_run.head.run, &mut snapshot).await?;
            loaded_run.snapshot = Arc::new(snapshot);
        }
        Ok(loaded_run)
    }

    /// Loads the lists that are stored outside the checkpoints into a snapshot.
    pub(crate) async fn put_lists(
        &self,
        scope: TenantScope,
        run: RunId,
        snapshot: &mut Snapshot,
    ) -> Result<(), EngineError> {
        for id in snapshot.missing_lists() {
            let key = Some(format!("{KIND}:{}", id.as_str()));
            let query = DocumentQuery { run, at: None, key, kind: None, tag: None, limit: 1, cursor: None };
            let found = self.store.documents(scope, query).await?.items.into_iter().next();
            let gone =
                || StoreError::Corrupt(format!("list {} of a loop in run {run} is missing", id.as_str()));
            let document = found.ok_or_else(gone)?;
            let unreadable =
                |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
            let list = List::from_json(&document.body).map_err(unreadable)?;
            snapshot.restore_list(id, list);
        }
        Ok(())
    }
}
