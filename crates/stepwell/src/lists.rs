//! The lists that loops go through: a long one is kept once, as a document of its run, and not in every checkpoint.

use std::sync::Arc;

use stepwell_core::frame::List;
use stepwell_core::{RunId, Snapshot};
use stepwell_store::{
    Document, DocumentOp, DocumentQuery, DocumentWrite, Loaded, Page, StoreError, TenantScope,
};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::standing::Standing;

/// The kind of document that holds such a list. It is the engine's own, and is not shown.
const KIND: &str = "stepwell.list";

/// Writes the lists that a change has brought.
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

/// A listing without the engine's own documents.
pub(crate) fn shown(mut page: Page<Document>) -> Page<Document> {
    page.items.retain(|document| document.kind.as_str() != KIND);
    page
}

impl Inner {
    /// A run as it was loaded, with the lists that its loops go through.
    pub(crate) async fn stand(&self, scope: TenantScope, loaded: Loaded) -> Result<Standing, EngineError> {
        let mut standing = Standing::new(&self.registry, scope.tenant(), loaded)?;
        if !standing.snapshot.missing_lists().is_empty() {
            let mut snapshot = Arc::unwrap_or_clone(standing.snapshot);
            self.put_lists(scope, standing.head.run, &mut snapshot).await?;
            standing.snapshot = Arc::new(snapshot);
        }
        Ok(standing)
    }

    /// Puts back the lists that are kept beside a run's checkpoints.
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
                || StoreError::Corrupt(format!("the list {} of a loop of run {run} is gone", id.as_str()));
            let document = found.ok_or_else(gone)?;
            let unreadable =
                |error: serde_json::Error| EngineError::Unreadable { run, why: error.to_string() };
            let list = List::from_json(&document.body).map_err(unreadable)?;
            snapshot.put_list(id, list);
        }
        Ok(())
    }
}
