//! Triggers: what starts workflows by itself, and why something did not start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::Permission;
use stepwell::core::spec::{OnEvent, OnSchedule, OnWebhook, StartOn, Starter};
use stepwell::core::{Definition, Name, RunId, Timestamp};
use stepwell::events::{Fired, TriggerEntry, TriggerLog};

use super::call::Call;
use super::reply::Reply;
use super::route::{Route, get};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// A trigger.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfTrigger {
    /// The workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// Its trigger.
    #[schemars(length(min = 1, max = 256))]
    trigger: String,
}

/// Which entries of a trigger's log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListLog {
    /// Only with this outcome.
    outcome: Option<TriggerResult>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// What can come of an event at a trigger.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TriggerResult {
    /// A run was started.
    Started,
    /// A run that another event has started is there for the same key.
    Deduplicated,
    /// Its filter said no.
    Filtered,
    /// No run could be started.
    Refused,
}

impl TriggerResult {
    fn as_str(self) -> &'static str {
        match self {
            TriggerResult::Started => "started",
            TriggerResult::Deduplicated => "deduplicated",
            TriggerResult::Filtered => "filtered",
            TriggerResult::Refused => "refused",
        }
    }
}

/// What came of an event at a trigger.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CameTo {
    /// What.
    outcome: TriggerResult,
    /// The run that was started, now or before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// The filter that said no.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// What the filter read of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Map<String, Value>>,
    /// Why no run could be started, or what the filter could not be told for.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Fired> for CameTo {
    fn from(fired: Fired) -> Self {
        let plain = |outcome| CameTo { outcome, run: None, filter: None, values: None, error: None };
        match fired {
            Fired::Started { run } => CameTo { run: Some(run), ..plain(TriggerResult::Started) },
            Fired::Deduplicated { run } => CameTo { run: Some(run), ..plain(TriggerResult::Deduplicated) },
            Fired::Filtered(why) => {
                let (filter, values) = (Some(why.filter), Some(why.values));
                CameTo { filter, values, error: why.error, ..plain(TriggerResult::Filtered) }
            }
            Fired::Refused { error } => CameTo { error: Some(error), ..plain(TriggerResult::Refused) },
        }
    }
}

/// An event that a trigger has heard of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerLogEntry {
    /// The event.
    #[schemars(with = "Id")]
    event: RunId,
    /// Its source.
    source: String,
    /// Its id there.
    id: String,
    /// Its name.
    #[schemars(with = "String")]
    name: Name,
    /// When it was accepted.
    #[schemars(with = "Instant")]
    accepted_at: Timestamp,
    /// How often it came again, and was not accepted.
    duplicates: u64,
    /// What came of it.
    #[serde(flatten)]
    came_to: CameTo,
}

impl From<TriggerEntry> for TriggerLogEntry {
    fn from(entry: TriggerEntry) -> Self {
        let TriggerEntry { event, source, id, name, accepted, duplicates, came_to } = entry;
        TriggerLogEntry {
            event,
            source,
            id,
            name,
            accepted_at: accepted,
            duplicates,
            came_to: came_to.into(),
        }
    }
}

/// What starts a workflow.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum TriggerType {
    Manual,
    Event,
    Schedule,
    Webhook,
}

/// One way in which a workflow is started.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerShown {
    /// The workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// The version of the workflow.
    version: u32,
    /// Its name among those of the workflow.
    #[schemars(with = "String")]
    trigger: Name,
    /// What starts it.
    #[serde(rename = "type")]
    kind: TriggerType,
    /// The event's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    event_name: Option<Name>,
    /// Only an event or a call for which this is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// Events or calls for which this is the same start one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<String>,
    /// When, as a cron pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    /// The time zone of the pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    /// Where it is called, below `/hooks/{tenant}/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Calls have to be signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed: Option<bool>,
}

impl TriggerShown {
    fn of(definition: &Definition, starter: &Starter) -> Self {
        let plain = |kind| TriggerShown {
            workflow: definition.name().clone(),
            version: definition.version(),
            trigger: starter.id.clone(),
            kind,
            event_name: None,
            filter: None,
            correlation: None,
            cron: None,
            time_zone: None,
            path: None,
            signed: None,
        };
        match starter.on.clone() {
            StartOn::Manual {} => plain(TriggerType::Manual),
            StartOn::Event(OnEvent { event_name, filter, correlation }) => {
                let event_name = Some(event_name);
                TriggerShown { event_name, filter, correlation, ..plain(TriggerType::Event) }
            }
            StartOn::Schedule(OnSchedule { cron, timezone, .. }) => {
                let time_zone = timezone.or_else(|| Some("UTC".to_owned()));
                TriggerShown { cron: Some(cron), time_zone, ..plain(TriggerType::Schedule) }
            }
            StartOn::Webhook(OnWebhook { path, secret, filter, correlation, .. }) => {
                let (path, signed) = (Some(path), Some(secret.is_some()));
                TriggerShown { path, signed, filter, correlation, ..plain(TriggerType::Webhook) }
            }
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    vec![
        get("/v1/triggers", "listTriggers", view, "Lists what starts workflows by itself.")
            .ok::<Page<TriggerShown>>("The triggers of all workflows that can be started.")
            .to(list),
        get(
            "/v1/triggers/{workflow}/{trigger}/log",
            "listTriggerLog",
            view,
            "Lists the events that a trigger has heard of, newest first, with what came of each.",
        )
        .ok::<Page<TriggerLogEntry>>("Events, and why they did or did not start a run.")
        .to(log),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let mut items = Vec::new();
    for definition in call.engine().triggered().await? {
        let shown = |starter: &Starter| TriggerShown::of(&definition, starter);
        items.extend(definition.starters().iter().map(shown));
    }
    Reply::ok(&Page::only(items))
}

async fn log(call: Call<OfTrigger, ListLog>) -> Result<Reply, Problem> {
    let OfTrigger { workflow, trigger } = &call.path;
    let listing = Listing::of(call.query.limit, call.query.cursor.clone());
    let outcome = call.query.outcome.map(|outcome| outcome.as_str().to_owned());
    let query = TriggerLog { outcome, limit: listing.limit(), cursor: listing.cursor() };
    let page = call.engine().trigger_log(workflow, trigger, query).await?;
    Reply::ok(&Page::of(page, TriggerLogEntry::from))
}
