//! Abbreviated run ids: the runs whose id begins with a text, and the shortest unique beginning of an id.

use stepwell_core::RunId;
use stepwell_store::{BadIdPrefix, Page, RunFilter, RunQuery, RunSummary, StoreError};

use crate::engine::Engine;
use crate::error::EngineError;

/// Minimum number of characters of an abbreviated id.
const SHORTEST: usize = 8;
/// Returns the number of characters after which two ids differ, including the first different one.
fn differ_after(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count() + 1
}

impl Engine {
    /// Lists the runs whose id begins with `prefix`, newest first. The engine's own runs are included. There is no
    /// further page: a longer prefix selects fewer runs.
    pub async fn runs_by_prefix(&self, prefix: &str, limit: u32) -> Result<Page<RunSummary>, EngineError> {
        let prefix = prefix.parse().map_err(|error: BadIdPrefix| StoreError::Invalid(error.to_string()))?;
        let filter = RunFilter { id_prefix: Some(prefix), ..RunFilter::default() };
        let page = self.runs(RunQuery { filter, limit, ..RunQuery::default() }).await?;
        Ok(Page { next: None, ..page })
    }

    /// Returns the shortest beginning of each id that no other run of the tenant has: at least eight characters.
    pub async fn short_run_ids(&self, ids: &[RunId]) -> Result<Vec<String>, EngineError> {
        let mut sorted: Vec<String> = ids.iter().map(RunId::to_string).collect();
        sorted.sort();
        sorted.dedup();
        let mut short = Vec::with_capacity(ids.len());
        for id in ids {
            let id = id.to_string();
            // The ids of one listing are often neighbours, which saves most of the reads.
            let at = sorted.partition_point(|other| *other < id);
            let neighbours = [at.checked_sub(1), at.checked_add(1)].into_iter().flatten();
            let near = neighbours.filter_map(|at| sorted.get(at)).map(|other| differ_after(&id, other)).max();
            short.push(self.shortened(&id, near.unwrap_or(0).max(SHORTEST)).await?);
        }
        Ok(short)
    }

    /// Makes the beginning of an id longer until only this run has it.
    async fn shortened(&self, id: &str, from: usize) -> Result<String, EngineError> {
        let mut length = from;
        loop {
            // A prefix that ends with a hyphen looks cut off.
            length += usize::from(id.as_bytes().get(length - 1) == Some(&b'-'));
            let Some(prefix) = id.get(..length).filter(|prefix| prefix.len() < id.len()) else {
                return Ok(id.to_owned());
            };
            let page = self.runs_by_prefix(prefix, 2).await?;
            let rows = page.items.iter().map(|run| run.run).chain(page.bad.iter().filter_map(|row| row.run));
            let others = rows.map(|run| run.to_string()).filter(|other| other != id);
            match others.map(|other| differ_after(id, &other)).max() {
                Some(longer) => length = longer.max(length + 1),
                None => return Ok(prefix.to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::differ_after;

    #[test]
    fn ids_differ_after_their_common_beginning() {
        assert_eq!(differ_after("01a1e88c", "01a1e99c"), 6);
    }
}
