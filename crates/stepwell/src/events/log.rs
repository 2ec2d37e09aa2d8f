//! What became of events: of one, and at one trigger.

use serde::Serialize;
use stepwell_core::shadow::ShadowValue;
use stepwell_core::topic::digest;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Page, RunQuery, Status};

use super::deliver::Delivery;
use super::{Kept, WORKFLOW, duplicates};
use crate::actor::Permission;
use crate::data::kv::one;
use crate::engine::Engine;
use crate::error::EngineError;

pub use super::deliver::{CameTo as Fired, Outcome};

/// So many entries a page has at most.
const MAX_ENTRIES: u32 = 200;
/// What can come of an event at a trigger.
const WORDS: [&str; 4] = ["started", "deduplicated", "filtered", "refused"];

/// The column of an event that says what came of it at a trigger.
pub(super) fn trigger_column(workflow: &Name, trigger: &Name) -> String {
    format!("at{}", digest(format!("{workflow}\u{1f}{trigger}").as_bytes()))
}

/// An event and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// By which it is found.
    pub event: RunId,
    /// The event.
    #[serde(flatten)]
    pub kept: Kept,
    /// It has been delivered to everybody who waited; who comes to wait later asks for it.
    pub is_delivered: bool,
    /// What triggers have made of it.
    pub triggers: Vec<Outcome>,
    /// Runs it was sent to because they waited for it.
    pub sent: u64,
    /// Runs that waited for its name and whose filter did not take it.
    pub passed_over: u64,
    /// How often it came again, and was not accepted.
    pub duplicates: u64,
}

/// Which entries of a trigger's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerLog {
    /// Only with this outcome: `started`, `deduplicated`, `filtered` or `refused`.
    pub outcome: Option<String>,
    /// How many at most; at most 200.
    pub limit: u32,
    /// Where to begin: what the page before gave.
    pub cursor: Option<String>,
}

/// An event that a trigger has heard of.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerEntry {
    /// The event.
    pub event: RunId,
    /// Its source.
    pub source: String,
    /// Its id there.
    pub id: String,
    /// Its name.
    pub name: Name,
    /// When it was accepted.
    pub accepted: Timestamp,
    /// How often it came again, and was not accepted.
    pub duplicates: u64,
    /// What came of it.
    #[serde(flatten)]
    pub came_to: Fired,
}

impl Engine {
    /// An event, and what became of it.
    pub async fn event(&self, event: RunId) -> Result<Option<EventView>, EngineError> {
        self.permit(Permission::View)?;
        let Some(delivery) = self.inner.event_of(self.scope, event).await? else { return Ok(None) };
        let status = self.store().load(self.scope, event).await?.map(|loaded| loaded.head.status);
        let Delivery { event: kept, triggers, sent, passed_over, .. } = delivery;
        let is_delivered = status == Some(Status::Completed);
        let duplicates = self.duplicates(event).await?;
        Ok(Some(EventView { event, kept, is_delivered, triggers, sent, passed_over, duplicates }))
    }

    async fn duplicates(&self, event: RunId) -> Result<u64, EngineError> {
        let cell =
            self.store().cells(self.scope, one(duplicates(event), self.now(), false)).await?.items.pop();
        Ok(cell.and_then(|cell| cell.value).and_then(|value| value.as_u64()).unwrap_or(0))
    }

    /// What a trigger of a workflow has heard of and made of it, newest first.
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
                    let why = format!("there is no outcome `{word}`: it is one of {}", WORDS.join(", "));
                    return Err(EngineError::Invalid(why));
                }
            },
        };
        let limit = query.limit.clamp(1, MAX_ENTRIES);
        let mut runs: Vec<RunId> = Vec::new();
        for word in words {
            let column = trigger_column(&workflow, &trigger);
            let shadows = vec![(column.into(), ShadowValue::Text(word.to_owned()))];
            let (of, cursor) = (Some(WORKFLOW.into()), query.cursor.clone());
            let asked = RunQuery { workflow: of, shadows, limit: limit + 1, cursor, ..RunQuery::default() };
            let page = self.store().runs(self.scope, asked).await?;
            runs.extend(page.items.iter().map(|summary| summary.run));
        }
        runs.sort_unstable_by(|a, b| b.cmp(a));
        runs.truncate(limit as usize + 1);
        let page = Page::cut(runs, limit, ToString::to_string);
        let mut items = Vec::new();
        for run in page.items.iter().copied() {
            let Some(delivery) = self.inner.event_of(self.scope, run).await? else { continue };
            let heard = |outcome: &&Outcome| outcome.workflow == workflow && outcome.trigger == trigger;
            let Some(outcome) = delivery.triggers.iter().rev().find(heard) else { continue };
            items.push(TriggerEntry {
                event: run,
                source: delivery.event.source.clone(),
                id: delivery.event.id.clone(),
                name: delivery.event.name.clone(),
                accepted: delivery.event.accepted,
                duplicates: self.duplicates(run).await?,
                came_to: outcome.came_to.clone(),
            });
        }
        Ok(page.over(|_| items))
    }
}
