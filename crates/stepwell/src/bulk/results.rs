//! The results of a bulk command, one per run. Each batch is a document of the run that executes the command.

use serde::{Deserialize, Serialize};
use stepwell_core::RunId;
use stepwell_store::{DocumentQuery, Page};

use super::work::State;
use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;

/// The kind of the documents with results.
pub(super) const KIND: &str = "stepwell.bulk.results";
/// Maximum number of batches that one page of results reads.
const BATCHES_PER_PAGE: u64 = 20;

/// The outcome of a bulk command on one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BulkOutcome {
    /// The command was executed, or would have been in a dry run.
    Done,
    /// The command was refused for another reason than the state of the run.
    Failed,
    /// The command does not apply to the run any more.
    Skipped,
}

/// The result of a bulk command on one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkResult {
    pub run: RunId,
    pub outcome: BulkOutcome,
    /// The reason, if the command was not executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A page of the results of a bulk command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkResultQuery {
    /// Only results with this outcome.
    pub outcome: Option<BulkOutcome>,
    /// Maximum number of results.
    pub limit: u32,
    /// [`Page::next`] of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

/// Returns the key of the document with the results of a batch.
pub(super) fn document_key(batch: u64) -> String {
    format!("{batch:010}")
}

/// The position in the results: number of the batch, and the results of it that precede.
struct Position {
    batch: u64,
    offset: usize,
}

impl Position {
    fn parse(cursor: Option<&str>) -> Result<Self, EngineError> {
        let Some(cursor) = cursor else { return Ok(Position { batch: 0, offset: 0 }) };
        let parsed = cursor.split_once('.').and_then(|(batch, offset)| {
            Some(Position { batch: batch.parse().ok()?, offset: offset.parse().ok()? })
        });
        let wrong = || EngineError::Invalid(format!("the cursor `{cursor}` is not one of these results"));
        parsed.ok_or_else(wrong)
    }
}

impl Engine {
    /// Returns the results of a bulk command so far, in the order of execution. A page that has read 20 batches ends
    /// early, so it may be short or empty although more results follow.
    pub async fn bulk_results(
        &self,
        id: RunId,
        query: BulkResultQuery,
    ) -> Result<Page<BulkResult>, EngineError> {
        self.permit(Permission::View)?;
        let batches = State::read(&self.loaded_bulk(id).await?.snapshot)?.batches;
        let Position { mut batch, mut offset } = Position::parse(query.cursor.as_deref())?;
        let limit = query.limit.max(1) as usize;
        let (mut items, until) = (Vec::new(), batches.min(batch.saturating_add(BATCHES_PER_PAGE)));
        while batch < until && items.len() < limit {
            let results = self.results_of(id, batch).await?;
            let mut at = offset;
            for result in results.iter().skip(offset) {
                if items.len() == limit {
                    break;
                }
                at += 1;
                if query.outcome.is_none_or(|outcome| outcome == result.outcome) {
                    items.push(result.clone());
                }
            }
            (batch, offset) = if at < results.len() { (batch, at) } else { (batch + 1, 0) };
        }
        let next = (batch < batches).then(|| format!("{batch}.{offset}"));
        Ok(Page { items, next, bad: Vec::new() })
    }

    async fn results_of(&self, id: RunId, batch: u64) -> Result<Vec<BulkResult>, EngineError> {
        let key = Some(document_key(batch));
        let query = DocumentQuery { run: id, at: None, key, kind: None, tag: None, limit: 1, cursor: None };
        let found = self.inner.store.documents(self.scope, query).await?.items.pop();
        let Some(document) = found else { return Ok(Vec::new()) };
        serde_json::from_slice(&document.body)
            .map_err(|error| EngineError::Unreadable { run: id, why: error.to_string() })
    }
}
