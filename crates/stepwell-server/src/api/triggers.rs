//! Routes of triggers: list them, and list the events that each one received with their outcome.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::Permission;
use stepwell::core::spec::{OnEvent, OnSchedule, OnWebhook, Trigger, TriggerKind};
use stepwell::core::{Definition, Name, RunId, Timestamp};
use stepwell::events::{Fired, TriggerEntry, TriggerLog};
use stepwell::{PauseOf, Pauses};

use super::call::Call;
use super::pauses::PauseView;
use super::reply::Reply;
use super::route::{Route, get};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Path parameters that select a trigger.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerPath {
    /// Name of the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub(super) workflow: String,
    /// Name of the trigger within the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub(super) trigger: String,
}

/// Filter and page of a trigger's log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListLog {
    /// Lists only events with this outcome.
    outcome: Option<TriggerResult>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Outcome of an event at a trigger.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TriggerResult {
    /// The event started a run.
    Started,
    /// Another event with the same correlation key had started a run.
    Deduplicated,
    /// The trigger's filter rejected the event.
    Filtered,
    /// The start of a run failed.
    Refused,
    /// The trigger was paused.
    Paused,
}

impl TriggerResult {
    fn as_str(self) -> &'static str {
        match self {
            TriggerResult::Started => "started",
            TriggerResult::Deduplicated => "deduplicated",
            TriggerResult::Filtered => "filtered",
            TriggerResult::Refused => "refused",
            TriggerResult::Paused => "paused",
        }
    }
}

/// Outcome of an event at a trigger, with the reason.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FiringOutcome {
    /// Outcome of the event: `started`, `deduplicated`, `filtered`, `refused` or `paused`.
    outcome: TriggerResult,
    /// Id of the run that this event or an earlier one started; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Filter expression that rejected the event; absent for other outcomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// Values that the filter read, by expression; absent for other outcomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Map<String, Value>>,
    /// Error of the start or of the filter; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The pause of the trigger, with its author and reason; absent for other outcomes.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseView>,
}

impl From<Fired> for FiringOutcome {
    fn from(fired: Fired) -> Self {
        let plain = |outcome| FiringOutcome {
            outcome,
            run: None,
            filter: None,
            values: None,
            error: None,
            paused: None,
        };
        match fired {
            Fired::Started { run } => FiringOutcome { run: Some(run), ..plain(TriggerResult::Started) },
            Fired::Deduplicated { run } => {
                FiringOutcome { run: Some(run), ..plain(TriggerResult::Deduplicated) }
            }
            Fired::Filtered(why) => {
                let (filter, values) = (Some(why.filter), Some(why.values));
                FiringOutcome { filter, values, error: why.error, ..plain(TriggerResult::Filtered) }
            }
            Fired::Paused(paused) => {
                FiringOutcome { paused: Some(paused.into()), ..plain(TriggerResult::Paused) }
            }
            Fired::Refused { error } => FiringOutcome { error: Some(error), ..plain(TriggerResult::Refused) },
        }
    }
}

/// An event that a trigger received, with its outcome.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerLogEntry {
    /// Id of the event, a UUID.
    #[schemars(with = "Id")]
    event: RunId,
    /// Source of the event.
    source: String,
    /// Id of the event at its source.
    id: String,
    /// Name of the event.
    #[schemars(with = "String")]
    name: Name,
    /// Time at which the event was accepted.
    #[schemars(with = "Instant")]
    accepted_at: Timestamp,
    /// Number of duplicates that were received and ignored.
    duplicates: u64,
    /// Outcome of the event at the trigger.
    #[serde(flatten)]
    result: FiringOutcome,
}

impl From<TriggerEntry> for TriggerLogEntry {
    fn from(entry: TriggerEntry) -> Self {
        let TriggerEntry { event, source, id, name, accepted, duplicates, result } = entry;
        TriggerLogEntry { event, source, id, name, accepted_at: accepted, duplicates, result: result.into() }
    }
}

/// Type of a trigger.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TriggerType {
    Manual,
    Event,
    Schedule,
    Webhook,
}

/// A trigger of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerView {
    /// Name of the workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Number of the workflow version.
    version: u32,
    /// Name of the trigger within the workflow.
    #[schemars(with = "String")]
    trigger: Name,
    /// Type of the trigger: `manual`, `event`, `schedule` or `webhook`.
    #[serde(rename = "type")]
    kind: TriggerType,
    /// Name of the event; only for type `event`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    event_name: Option<Name>,
    /// Expression that an event or a call must satisfy; absent = all do.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// Expression for the correlation key. Events or calls with the same key start one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<String>,
    /// Cron pattern; only for type `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    /// Time zone of the cron pattern; only for type `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    /// Path of the webhook below `/hooks/{tenant}/`; only for type `webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// True if calls must be signed; only for type `webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed: Option<bool>,
    /// The pause of the trigger; absent if it is not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseView>,
}

impl TriggerView {
    fn of(definition: &Definition, trigger: &Trigger, pauses: &Pauses) -> Self {
        let paused = pauses.of(&PauseOf::trigger(definition.name(), trigger)).cloned();
        let plain = |kind| TriggerView {
            workflow: definition.name().clone(),
            version: definition.version(),
            trigger: trigger.id.clone(),
            kind,
            event_name: None,
            filter: None,
            correlation: None,
            cron: None,
            time_zone: None,
            path: None,
            signed: None,
            paused: paused.clone().map(PauseView::from),
        };
        match trigger.on.clone() {
            TriggerKind::Manual {} => plain(TriggerType::Manual),
            TriggerKind::Event(OnEvent { event_name, filter, correlation }) => {
                let event_name = Some(event_name);
                TriggerView { event_name, filter, correlation, ..plain(TriggerType::Event) }
            }
            TriggerKind::Schedule(OnSchedule { cron, timezone, .. }) => {
                let time_zone = timezone.or_else(|| Some("UTC".to_owned()));
                TriggerView { cron: Some(cron), time_zone, ..plain(TriggerType::Schedule) }
            }
            TriggerKind::Webhook(OnWebhook { path, secret, filter, correlation, .. }) => {
                let (path, signed) = (Some(path), Some(secret.is_some()));
                TriggerView { path, signed, filter, correlation, ..plain(TriggerType::Webhook) }
            }
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    vec![
        get("/v1/triggers", "listTriggers", view, "List the triggers of workflows.")
            .ok::<Page<TriggerView>>("The triggers of all workflows that can be started.")
            .to(list),
        get(
            "/v1/triggers/{workflow}/{trigger}/log",
            "listTriggerLog",
            view,
            "List the events that a trigger received, newest first, with their outcome.",
        )
        .ok::<Page<TriggerLogEntry>>("Events, each with the reason why it started a run or not.")
        .to(log),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let triggered = call.engine().triggered().await?;
    let pauses = call.engine().pauses().await?;
    let shown = |definition: &Definition| {
        let view = |trigger: &Trigger| TriggerView::of(definition, trigger, &pauses);
        definition.triggers().iter().map(view).collect::<Vec<_>>()
    };
    let page = triggered.over(|definitions| definitions.iter().flat_map(shown).collect());
    Reply::ok(&Page::of(page, |view| view))
}

async fn log(call: Call<TriggerPath, ListLog>) -> Result<Reply, Problem> {
    let TriggerPath { workflow, trigger } = &call.path;
    let listing = Listing::of(call.query.limit, call.query.cursor.clone());
    let outcome = call.query.outcome.map(|outcome| outcome.as_str().to_owned());
    let query = TriggerLog { outcome, limit: listing.limit(), cursor: listing.cursor() };
    let page = call.engine().trigger_log(workflow, trigger, query).await?;
    Reply::ok(&Page::of(page, TriggerLogEntry::from))
}
