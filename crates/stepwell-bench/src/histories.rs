//! Checks the histories of ten-step runs. Reads them through the store after the processes that wrote them have ended.

use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::{HistoryEntry, Name, RunId};
use stepwell_store::{HistoryQuery, RunFilter, RunQuery, RunSummary, Status, Store, TenantScope};

use crate::engines;
use crate::site::Place;
use crate::ten_step::STEPS;

/// Counts over all ten-step runs of a database.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) runs: u64,
    /// Runs with the status `completed`.
    pub(crate) finished: u64,
    /// Committed steps of all runs.
    pub(crate) steps: u64,
    /// Versions or transitions that occur more than once in a run.
    pub(crate) duplicates: u64,
    /// Versions or transitions missing from a completed run.
    pub(crate) gaps: u64,
    /// The committed transitions of each run.
    pub(crate) by_run: BTreeMap<RunId, BTreeSet<Name>>,
}

/// Reads every ten-step run of a database.
pub(crate) async fn read(place: &Place) -> Result<Found, String> {
    let store = engines::open(place).await?;
    let scope = TenantScope::single();
    let mut found = Found::default();
    let mut cursor = None;
    loop {
        let query = RunQuery {
            filter: RunFilter { workflow: Some(Name::from("ten-step")), ..RunFilter::default() },
            limit: 200,
            cursor,
            ..RunQuery::default()
        };
        let page = store.runs(scope, query).await.map_err(|error| error.to_string())?;
        for run in &page.items {
            let entries = entries(&*store, scope, run.run).await?;
            count(&mut found, run, &entries);
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}

async fn entries(
    store: &dyn Store,
    scope: TenantScope,
    run: RunId,
) -> Result<Vec<(u64, HistoryEntry)>, String> {
    let mut entries = Vec::new();
    let mut from = 0;
    loop {
        let query = HistoryQuery { run, from, with_state: false, limit: 200 };
        let page = store.history(scope, query).await.map_err(|error| error.to_string())?;
        for row in &page.items {
            let entry: HistoryEntry =
                serde_json::from_slice(&row.entry).map_err(|error| error.to_string())?;
            entries.push((row.version, entry));
        }
        match page.next.and_then(|next| next.parse().ok()) {
            Some(next) => from = next,
            None => return Ok(entries),
        }
    }
}

fn count(found: &mut Found, run: &RunSummary, entries: &[(u64, HistoryEntry)]) {
    let steps: Vec<&Name> = entries.iter().flat_map(|(_, entry)| &entry.transitions).collect();
    let versions: BTreeSet<u64> = entries.iter().map(|(version, _)| *version).collect();
    let different: BTreeSet<Name> = steps.iter().map(|step| (*step).clone()).collect();
    found.runs += 1;
    found.steps += steps.len() as u64;
    found.duplicates += (entries.len() - versions.len()) as u64 + (steps.len() - different.len()) as u64;
    if run.status == Status::Completed {
        found.finished += 1;
        let there = (0..=STEPS as u64).filter(|version| versions.contains(version)).count();
        let fired = (0..STEPS).filter(|step| different.contains(format!("t{step}").as_str())).count();
        found.gaps += (STEPS + 1 - there) as u64 + (STEPS - fired) as u64;
        // A version beyond those of a ten-step run is a step committed once too often.
        found.duplicates += (versions.len() - there) as u64;
    }
    found.by_run.insert(run.run, different);
}

#[cfg(test)]
mod tests {
    use stepwell_core::Timestamp;

    use super::*;

    fn entry(version: u64, transition: Option<&str>) -> (u64, HistoryEntry) {
        let entry = HistoryEntry {
            version,
            action: "__auto".to_owned(),
            at: Timestamp::from_millis(0),
            entered: Vec::new(),
            exited: Vec::new(),
            transitions: transition.map(Name::from).into_iter().collect(),
            payload: None,
            input: None,
            output: None,
            duration_us: None,
            actor: None,
        };
        (version, entry)
    }

    fn whole() -> Vec<(u64, HistoryEntry)> {
        let steps = (0..STEPS).map(|step| entry(step as u64 + 1, Some(&format!("t{step}"))));
        std::iter::once(entry(0, None)).chain(steps).collect()
    }

    fn counted(entries: &[(u64, HistoryEntry)]) -> (u64, u64) {
        let summary = RunSummary {
            run: RunId::nil(),
            workflow: Name::from("ten-step"),
            definition: stepwell_core::DefinitionHash::of(b""),
            version: 10,
            status: Status::Completed,
            places: Vec::new(),
            wake: None,
            owner: None,
            parent: None,
            created_at: Timestamp::from_millis(0),
            updated_at: Timestamp::from_millis(0),
            error: None,
            definition_version: None,
        };
        let mut found = Found::default();
        count(&mut found, &summary, entries);
        (found.duplicates, found.gaps)
    }

    #[test]
    fn damage_in_a_history_is_counted() {
        assert_eq!(counted(&whole()), (0, 0));
        let mut twice = whole();
        twice.push(entry(11, Some("t4")));
        assert_eq!(counted(&twice), (2, 0));
        let mut torn = whole();
        torn.remove(3);
        assert_eq!(counted(&torn), (0, 2));
    }
}
