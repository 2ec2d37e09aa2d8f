//! The queue of a gate: rows in the table of waits. The topic of a row contains the gate and the time of arrival.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{StoreError, StoredWait, TenantScope, WaitFilter, WaitQuery, WaitRow};

use super::gate::{self, GateEntry};
use crate::engine::Inner;
use crate::loaded_run::LoadedRun;

/// Precedes and separates the parts of a topic. No name contains it. Topics of events and tasks do not begin with it.
const MARK: char = '\u{1e}';
/// Sorts after all topics of a gate.
const AFTER: char = '\u{1f}';
/// Sorts after a topic and before all later ones.
const NEXT: char = '\u{1}';
/// The activation of the row. Activations of a run begin at 1.
const ACTIVATION: u64 = 0;
/// Maximum number of rows per read.
const MOST_ROWS: u32 = 200;

/// A run in the queue of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedRun {
    pub(crate) run: RunId,
    pub(crate) request: u32,
    pub(crate) since: Timestamp,
}

/// The stored detail of a row.
#[derive(Debug, Serialize, Deserialize)]
struct Detail {
    request: u32,
}

impl QueuedRun {
    /// Reads a row of the table of waits. `None` if it is not in a queue.
    pub(crate) fn of(row: &WaitRow) -> Option<Self> {
        let detail: serde_json::Value = serde_json::from_slice(&row.wait.detail).ok()?;
        let Detail { request } = Detail::deserialize(detail.get("admission")?).ok()?;
        Some(QueuedRun { run: row.run, request, since: row.wait.since })
    }
}

/// Adds the row of a run that is in a queue to its waits.
pub(crate) fn with_queue(loaded_run: &LoadedRun, mut waits: Vec<StoredWait>) -> Vec<StoredWait> {
    waits.extend(row(loaded_run));
    waits
}

fn row(loaded_run: &LoadedRun) -> Option<StoredWait> {
    let admission = loaded_run.ledger.admission.as_ref()?;
    let (limit, since) = admission.queued()?;
    let gate = gate::id(loaded_run.definition().name(), limit);
    let place = loaded_run.snapshot.current_places().into_iter().next();
    Some(StoredWait {
        activation: ACTIVATION,
        place: place.unwrap_or_else(|| Name::from("start")),
        since,
        until: None,
        detail: json!({"admission": Detail { request: admission.request }}).to_string().into(),
        topic: Some(topic(gate, since, loaded_run.run())),
        // People do not see queued runs among their waits.
        due: None,
    })
}

fn begin(gate: RunId) -> String {
    format!("{MARK}{gate}{MARK}")
}

/// The topic of a run: in the order of arrival, by the engine's clock.
fn topic(gate: RunId, since: Timestamp, run: RunId) -> String {
    format!("{}{:020}{MARK}{run}", begin(gate), since.micros().max(0))
}

impl Inner {
    /// Returns the first runs in the queue of a gate that it does not know yet, up to `most`, and whether there are more.
    /// The order is that of arrival. `known` are the runs that the gate has answered; their rows may still be there.
    pub(crate) async fn queued_runs(
        &self,
        scope: TenantScope,
        gate: RunId,
        most: usize,
        known: &[GateEntry],
    ) -> Result<(Vec<QueuedRun>, bool), StoreError> {
        let before = format!("{MARK}{gate}{AFTER}");
        self.queued_before(scope, begin(gate), before, most, known).await
    }

    async fn queued_before(
        &self,
        scope: TenantScope,
        mut from: String,
        before: String,
        most: usize,
        known: &[GateEntry],
    ) -> Result<(Vec<QueuedRun>, bool), StoreError> {
        let known: BTreeSet<_> = known.iter().map(|entry| (entry.run, entry.request)).collect();
        let limit = u32::try_from(most + known.len() + 1).unwrap_or(MOST_ROWS).clamp(1, MOST_ROWS);
        let mut found = Vec::new();
        loop {
            let of = WaitFilter::Topics { from: from.clone(), before: before.clone() };
            let page = self.store.waits(scope, WaitQuery { of, limit, cursor: None }).await?;
            let is_last = page.items.len() + page.bad.len() < limit as usize;
            for row in &page.items {
                let Some(queued) = QueuedRun::of(row) else { continue };
                if known.contains(&(queued.run, queued.request)) {
                    continue;
                }
                if found.len() == most {
                    return Ok((found, true));
                }
                found.push(queued);
            }
            let last = page.items.last().and_then(|row| row.wait.topic.clone());
            match last.filter(|_| !is_last) {
                Some(last) => from = format!("{last}{NEXT}"),
                None => return Ok((found, false)),
            }
        }
    }

    /// Counts the runs in the queue of a gate before this run, up to `most`.
    pub(crate) async fn count_queued(
        &self,
        scope: TenantScope,
        gate: RunId,
        own: (Timestamp, RunId),
        most: usize,
    ) -> Result<usize, StoreError> {
        let before = topic(gate, own.0, own.1);
        Ok(self.queued_before(scope, begin(gate), before, most, &[]).await?.0.len())
    }
}
