//! The timeline of a run: its history entries, its failed attempts and the commands on it, merged by time.

use serde_json::Value;
use stepwell_core::{HistoryEntry, RunId, Timestamp};
use stepwell_store::{AuditRow, CommitId, HistoryQuery, HistoryRow, Page, Record, RecordQuery};
use uuid::Uuid;

use crate::actor::Permission;
use crate::answering::{SIGNAL, STARTED};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ledger::FailedAttempt;

/// Number of audit rows per read.
const READ_AT_ONCE: u32 = 500;
/// Maximum difference between the clocks of two processes that write to one run, in milliseconds. The audit trail is
/// ordered by commit ids, which contain the time of the writing process.
const CLOCK_SKEW_MS: u64 = 60_000;

/// An item of a run's timeline.
#[derive(Debug, Clone, PartialEq)]
pub enum TimelineItem {
    /// A checkpoint: a change of the run.
    Entry { version: u64, at: Timestamp, entry: Box<HistoryEntry> },
    /// A failed attempt of a transition. Only the last ten stay readable.
    Attempt(Box<FailedAttempt>),
    /// A command on the run, with its author.
    Command { at: Timestamp, row: Box<AuditRow> },
}

impl TimelineItem {
    /// Returns the time of the item.
    pub fn at(&self) -> Timestamp {
        match self {
            TimelineItem::Entry { at, .. } | TimelineItem::Command { at, .. } => *at,
            TimelineItem::Attempt(attempt) => attempt.at,
        }
    }

    /// Returns the id of the actor, if known.
    pub fn actor(&self) -> Option<&str> {
        match self {
            TimelineItem::Entry { entry, .. } => entry.actor.as_deref(),
            TimelineItem::Attempt(_) => None,
            TimelineItem::Command { row, .. } => row.actor.as_deref(),
        }
    }

    /// Returns the detail of a command.
    pub fn detail(&self) -> Option<Value> {
        match self {
            TimelineItem::Command { row, .. } => serde_json::from_slice(&row.detail).ok(),
            TimelineItem::Entry { .. } | TimelineItem::Attempt(_) => None,
        }
    }
}

/// A page of a run's timeline. The page size counts checkpoints.
pub type TimelinePage = Page<TimelineItem>;

/// The times that a page covers: from the first, inclusive, to the second, exclusive.
#[derive(Clone, Copy)]
struct Covered {
    from: Timestamp,
    before: Option<Timestamp>,
}

impl Covered {
    fn has(self, at: Timestamp) -> bool {
        at >= self.from && self.before.is_none_or(|before| at < before)
    }
}

impl Engine {
    /// Lists the timeline of a run, oldest first, beginning with checkpoint `from`. [`Page::next`] is the version at
    /// which the next page begins.
    pub async fn timeline(&self, run: RunId, from: u64, limit: u32) -> Result<TimelinePage, EngineError> {
        self.permit(Permission::View)?;
        let limit = u32::try_from(stepwell_store::store::page_rows(limit)).unwrap_or(u32::MAX);
        // One row more gives the time at which the next page begins.
        let query = HistoryQuery { run, from, with_state: false, limit: limit.saturating_add(1) };
        let Page { mut items, bad, .. } = self.store().history(self.scope(), query).await?;
        let ledger = self.run(run).view().await?.ledger;
        let next = (items.len() > limit as usize).then(|| items.split_off(limit as usize));
        let next = next.and_then(|rest| rest.into_iter().next());
        let first = items.first().filter(|_| from > 0).map(|row| (row.at, row.commit));
        let covered = Covered {
            from: first.map_or(Timestamp::MIN, |(at, _)| at),
            before: next.as_ref().map(|row| row.at),
        };
        let mut all = items.iter().map(|row| entry(run, row)).collect::<Result<Vec<_>, _>>()?;
        all.extend(self.commands(run, first.map(|(_, commit)| commit), covered).await?);
        let failures = ledger.failures.into_iter().filter(|failure| covered.has(failure.at));
        all.extend(failures.map(|failure| TimelineItem::Attempt(Box::new(failure))));
        // Stable: at the same time, entries come first in the order of their versions.
        all.sort_by_key(TimelineItem::at);
        Ok(Page { items: all, next: next.map(|row| row.version.to_string()), bad })
    }

    /// Reads the commands on a run within these times.
    async fn commands(
        &self,
        run: RunId,
        from: Option<CommitId>,
        covered: Covered,
    ) -> Result<Vec<TimelineItem>, EngineError> {
        let mut found = Vec::new();
        let mut cursor = from.and_then(before).map(|id| format!("{id}:0"));
        loop {
            let query = RecordQuery::AuditOfRun { run, limit: READ_AT_ONCE, cursor };
            let page = self.store().records(self.scope(), query).await?;
            for record in page.items {
                let Record::Audit { at, row, .. } = record else { continue };
                if covered.before.is_some_and(|before| at > before.plus_ms(CLOCK_SKEW_MS)) {
                    return Ok(found);
                }
                if covered.has(at) && is_command(&row) {
                    found.push(TimelineItem::Command { at, row: Box::new(row) });
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(found);
            }
        }
    }
}

fn entry(run: RunId, row: &HistoryRow) -> Result<TimelineItem, EngineError> {
    let entry = serde_json::from_slice(&row.entry)
        .map_err(|error| EngineError::Unreadable { run, why: error.to_string() })?;
    Ok(TimelineItem::Entry { version: row.version, at: row.at, entry: Box::new(entry) })
}

/// Returns true for rows that the entries do not show: everything but starts, signals and writes of data.
fn is_command(row: &AuditRow) -> bool {
    let is_of_run = ["run.", "wait.", "signal.", "task.", "handle.", "answerLink.create"];
    is_of_run.iter().any(|prefix| row.operation.starts_with(prefix))
        && row.operation != STARTED
        && row.operation != SIGNAL
}

/// Returns an id that is smaller than those of all commits after this one, whichever process writes them. `None` if the
/// ids are not ordered by time.
fn before(commit: CommitId) -> Option<Uuid> {
    if commit.0.get_version_num() != 7 {
        return None;
    }
    let ms = commit.0.as_u128() >> 80;
    let ms = ms.saturating_sub(u128::from(CLOCK_SKEW_MS));
    Some(Uuid::from_u128(ms << 80))
}
