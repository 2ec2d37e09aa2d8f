//! The delivery of events: of one event, and at one trigger.

use serde::Serialize;
use stepwell_core::topic::digest;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{BadRow, Page, RunFilter, RunQuery, ShadowFilter, Status};

use super::deliver::Delivery;
use super::{StoredEvent, WORKFLOW, duplicates};
use crate::actor::Permission;
use crate::data::kv::{one, whole_or_bad};
use crate::engine::Engine;
use crate::error::EngineError;

pub use super::deliver::{TriggerOutcome, TriggerResult as Fired};

/// Maximum number of entries per page.
const MAX_ENTRIES: u32 = 200;
/// Possible outcomes of an event at a trigger.
const WORDS: [&str; 5] = ["started", "deduplicated", "filtered", "refused", "paused"];

/// Returns the shadow column that stores the outcome of an event at a trigger.
pub(super) fn trigger_column(workflow: &Name, trigger: &Name) -> String {
    format!("at{}", digest(format!("{workflow}\u{1f}{trigger}").as_bytes()))
}

/// An event and its delivery.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Id of the event.
    pub event: RunId,
    #[serde(flatten)]
    pub kept: StoredEvent,
    /// The delivery is complete. Waits that open later query the event.
    pub is_delivered: bool,
    /// Outcome at each trigger.
    pub triggers: Vec<TriggerOutcome>,
    /// Number of waiting runs that the event was sent to.
    pub sent: u64,
    /// Number of runs that waited for events of this name, but whose filter did not match.
    pub filtered_out: u64,
    /// Number of duplicates that were not accepted.
    pub duplicates: u64,
}

/// Selects entries of a trigger's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerLog {
    /// Only entries with this outcome: `started`, `deduplicated`, `filtered`, `refused` or `paused`.
    pub outcome: Option<String>,
    /// Page size, 1 to 200. Values outside are clamped.
    pub limit: u32,
    /// Cursor that the previous page returned in `next`. Default: the first page.
    pub cursor: Option<String>,
}

/// An event that reached a trigger.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerEntry {
    /// Id of the event.
    pub event: RunId,
    pub source: String,
    /// Id of the event, unique within its source.
    pub id: String,
    pub name: Name,
    pub accepted: Timestamp,
    /// Number of duplicates that were not accepted.
    pub duplicates: u64,
    /// Outcome at this trigger.
    #[serde(flatten)]
    pub result: Fired,
}

impl Engine {
    /// Returns an event and its delivery. `None` if there is no such event.
    pub async fn event(&self, event: RunId) -> Result<Option<EventView>, EngineError> {
        self.permit(Permission::View)?;
        let Some(delivery) = self.inner.event_of(self.scope, event).await? else { return Ok(None) };
        let status = self.store().load(self.scope, event).await?.map(|loaded| loaded.head.status);
        let Delivery { event: kept, triggers, sent, filtered_out, .. } = delivery;
        let is_delivered = status == Some(Status::Completed);
        let duplicates = self.duplicates(event).await?;
        Ok(Some(EventView { event, kept, is_delivered, triggers, sent, filtered_out, duplicates }))
    }

    /// Returns the number of duplicates. An unreadable counter counts as 0; the doctor names it.
    async fn duplicates(&self, event: RunId) -> Result<u64, EngineError> {
        let query = one(duplicates(event), self.now(), false);
        let cell = whole_or_bad(&**self.store(), self.scope, query).await?.ok().flatten();
        Ok(cell.and_then(|cell| cell.value).and_then(|value| value.as_u64()).unwrap_or(0))
    }

    /// Lists the events that reached a trigger with their outcomes, newest first, one page at a time.
    pub async fn trigger_log(
        &self,
        workflow: &str,
        trigger: &str,
        query: TriggerLog,
    ) -> Result<Page<TriggerEntry>, EngineError> {
        self.permit(Permission::View)?;
        let (workflow, trigger) = (Name::from(workflow), Name::from(trigger));
        let words: Vec<&str> = match &query.outcome {
            None => WORDS.to_vec(),
            Some(word) => match WORDS.iter().find(|known| *known == word) {
                Some(known) => vec![*known],
                None => {
                    let why = format!("unknown outcome `{word}`: use one of {}", WORDS.join(", "));
                    return Err(EngineError::Invalid(why));
                }
            },
        };
        let limit = query.limit.clamp(1, MAX_ENTRIES);
        let (mut runs, mut bad): (Vec<RunId>, Vec<BadRow>) = Default::default();
        for word in words {
            let column = trigger_column(&workflow, &trigger);
            let shadows = vec![ShadowFilter::equals(column, word)];
            let (of, cursor) = (Some(WORKFLOW.into()), query.cursor.clone());
            let asked = RunQuery {
                filter: RunFilter { workflow: of, shadows, ..RunFilter::default() },
                limit: limit + 1,
                cursor,
                ..RunQuery::default()
            };
            let page = self.store().runs(self.scope, asked).await?;
            runs.extend(page.items.iter().map(|summary| summary.run));
            bad.extend(page.bad);
        }
        runs.sort_unstable_by(|a, b| b.cmp(a));
        runs.truncate(limit as usize + 1);
        let mut page = Page { bad, ..Page::cut(runs, limit, ToString::to_string) };
        let mut items = Vec::new();
        for run in page.items.clone() {
            let delivery = match self.inner.event_of(self.scope, run).await {
                Ok(Some(delivery)) => delivery,
                Ok(None) => continue,
                Err(error) => {
                    page.bad.push(error.bad_row(run)?);
                    continue;
                }
            };
            let heard =
                |outcome: &&TriggerOutcome| outcome.workflow == workflow && outcome.trigger == trigger;
            let Some(outcome) = delivery.triggers.iter().rev().find(heard) else { continue };
            items.push(TriggerEntry {
                event: run,
                source: delivery.event.source.clone(),
                id: delivery.event.id.clone(),
                name: delivery.event.name.clone(),
                accepted: delivery.event.accepted,
                duplicates: self.duplicates(run).await?,
                result: outcome.result.clone(),
            });
        }
        Ok(page.over(|_| items))
    }
}
