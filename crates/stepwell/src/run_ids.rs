//! Abbreviated run ids: the runs whose id begins with a text, and the shortest unique beginning of an id.

use stepwell_core::RunId;
use stepwell_store::{Page, RunQuery, RunSummary, StoreError};
use uuid::Uuid;

use crate::engine::Engine;
use crate::error::EngineError;

/// Minimum number of characters of an abbreviated id.
const SHORTEST: usize = 8;
/// The last of all ids. Its hyphens are where those of every id are.
const LAST: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/// Rejects a text that no id begins with, and returns it in lower case.
fn checked(prefix: &str) -> Result<String, EngineError> {
    let prefix = prefix.to_ascii_lowercase();
    let fits = |(c, last): (u8, u8)| if last == b'-' { c == b'-' } else { c.is_ascii_hexdigit() };
    if prefix.len() > LAST.len() || !prefix.bytes().zip(LAST.bytes()).all(fits) {
        let why = format!(
            "`{prefix}` is not the beginning of a run id: a run id has 32 hexadecimal digits and 4 hyphens"
        );
        return Err(StoreError::Invalid(why).into());
    }
    Ok(prefix)
}

/// Returns the cursor after which a listing continues with the newest id that has this prefix.
fn before(prefix: &str) -> Option<String> {
    let last: Uuid = format!("{prefix}{}", &LAST[prefix.len()..]).parse().ok()?;
    // The cursor is exclusive. After the last of all ids there is none, and no cursor is needed.
    last.as_u128().checked_add(1).map(|next| Uuid::from_u128(next).to_string())
}

/// Returns the number of characters after which two ids differ, including the first different one.
fn differ_after(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count() + 1
}

impl Engine {
    /// Lists the runs whose id begins with `prefix`, newest first. The engine's own runs are included. There is no
    /// further page: a longer prefix selects fewer runs.
    pub async fn runs_by_prefix(&self, prefix: &str, limit: u32) -> Result<Page<RunSummary>, EngineError> {
        let prefix = checked(prefix)?;
        let mut page = self.runs(RunQuery { limit, cursor: before(&prefix), ..RunQuery::default() }).await?;
        page.items.retain(|run| run.run.to_string().starts_with(&prefix));
        page.bad.retain(|row| row.run.is_some_and(|run| run.to_string().starts_with(&prefix)));
        page.next = None;
        Ok(page)
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
    use super::{before, checked, differ_after};

    #[test]
    fn only_beginnings_of_ids_are_prefixes() {
        assert_eq!(checked("01A1e88C-1").unwrap(), "01a1e88c-1");
        for wrong in ["x", "01a1e88c1", "01a1-", "01a1e88c-1234-7abc-8def-0123456789abc"] {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_cursor_is_after_every_id_with_the_prefix() {
        assert_eq!(before("01a1").unwrap(), "01a20000-0000-0000-0000-000000000000");
        assert_eq!(before("ffff"), None);
        assert_eq!(differ_after("01a1e88c", "01a1e99c"), 6);
    }
}
