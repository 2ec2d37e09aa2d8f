//! Routes of schedules, which start runs at the times of a cron pattern: list, show, put and switch off.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::schema::SchemaViolation;
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::cron::{Cron, CronError, MissedFirings, Overlap};
use stepwell::schedule::Scheduled;
use stepwell::{Permission, Schedule};

use super::call::{Call, Json, Nothing};
use super::pauses::PauseView;
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::{Id, Instant, Listing, Page, nothing};
use crate::routes::problem::Problem;

/// Default number of next firings in a response.
const FIRINGS: usize = 10;

/// Path parameter that selects a schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulePath {
    /// Name of the schedule. A schedule of a trigger is named `WORKFLOW/TRIGGER`.
    #[schemars(length(min = 1, max = 256))]
    pub(super) name: String,
}

/// Query parameter for showing a schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowSchedule {
    /// Number of next firings to list, at most 100. Default: 10.
    #[schemars(range(max = 100))]
    firings: Option<usize>,
}

/// Request to create or replace a schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutSchedule {
    /// Cron pattern: five fields, or six with seconds in front.
    #[schemars(length(min = 1, max = 256))]
    cron: String,
    /// Time zone of the cron pattern, such as `Europe/Berlin`. Default: `UTC`.
    #[schemars(length(min = 1, max = 256))]
    time_zone: Option<String>,
    /// Name of the workflow to start.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// Input of each run, any JSON value. Default: an empty object.
    #[serde(default = "nothing")]
    input: Value,
    /// Handling of missed firings, which are those more than a minute late. Default: `once`.
    missed: Option<MissedFiringsShape>,
    /// Handling of a firing while the previous run has not ended. Default: `start`.
    overlap: Option<OverlappingRuns>,
}

/// Handling of missed firings, which are those more than a minute late.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum MissedFiringsShape {
    /// Drop all missed firings.
    Skip,
    /// Fire once for all missed firings.
    Once,
    /// Fire once for each missed firing, oldest first.
    All,
}

impl From<MissedFirings> for MissedFiringsShape {
    fn from(missed: MissedFirings) -> Self {
        match missed {
            MissedFirings::Skip => MissedFiringsShape::Skip,
            MissedFirings::Once => MissedFiringsShape::Once,
            MissedFirings::All => MissedFiringsShape::All,
        }
    }
}

impl From<MissedFiringsShape> for MissedFirings {
    fn from(missed: MissedFiringsShape) -> Self {
        match missed {
            MissedFiringsShape::Skip => MissedFirings::Skip,
            MissedFiringsShape::Once => MissedFirings::Once,
            MissedFiringsShape::All => MissedFirings::All,
        }
    }
}

/// Handling of a firing while the previous run has not ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OverlappingRuns {
    /// Start another run in parallel.
    Start,
    /// Drop the new firing.
    Skip,
}

impl From<Overlap> for OverlappingRuns {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::Start => OverlappingRuns::Start,
            Overlap::Skip => OverlappingRuns::Skip,
        }
    }
}

impl From<OverlappingRuns> for Overlap {
    fn from(overlap: OverlappingRuns) -> Self {
        match overlap {
            OverlappingRuns::Start => Overlap::Start,
            OverlappingRuns::Skip => Overlap::Skip,
        }
    }
}

/// A schedule with its next firings and its history.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScheduleView {
    /// Name of the schedule.
    name: String,
    /// Cron pattern: five fields, or six with seconds in front.
    cron: String,
    /// Time zone of the cron pattern.
    time_zone: String,
    /// Name of the workflow that the schedule starts.
    #[schemars(with = "String")]
    workflow: Name,
    /// Input of each run, any JSON value.
    input: Value,
    /// Handling of missed firings, which are those more than a minute late.
    missed: MissedFiringsShape,
    /// Handling of a firing while the previous run has not ended.
    overlap: OverlappingRuns,
    /// Name of the workflow's trigger that created the schedule; absent if it was put by a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    trigger: Option<Name>,
    /// True if the schedule is switched off: it fires only after it is put again.
    off: bool,
    /// The pause of the schedule; absent if it is not paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseView>,
    /// Times of the next firings, as many as requested; empty if the schedule is off or paused.
    #[schemars(with = "Vec<Instant>")]
    next_firings: Vec<Timestamp>,
    /// Number of runs that the schedule has started.
    fired: u64,
    /// Number of firings without a run, because the previous run had not ended, the start failed or the schedule was
    /// paused.
    skipped: u64,
    /// Id of the run that the schedule started last; absent if it has started none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    last_run: Option<RunId>,
    /// Error of the last firing; absent if it started a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

impl ScheduleView {
    fn of(scheduled: Scheduled, count: usize) -> Self {
        let Scheduled { schedule, next, is_off, fired, skipped, last_run, last_error, paused } = scheduled;
        let cron = Cron::parse(&schedule.cron, &schedule.time_zone).ok();
        let next = Some(next).filter(|next| !is_off && paused.is_none() && *next < Timestamp::MAX);
        ScheduleView {
            name: schedule.name,
            cron: schedule.cron,
            time_zone: schedule.time_zone,
            workflow: schedule.workflow,
            input: schedule.input,
            missed: schedule.missed.into(),
            overlap: schedule.overlap.into(),
            trigger: schedule.by.map(|by| by.trigger),
            off: is_off,
            paused: paused.map(PauseView::from),
            next_firings: firings(cron.as_ref(), next, count),
            fired,
            skipped,
            last_run,
            last_error,
        }
    }
}

/// Result of putting a schedule.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScheduleAccepted {
    /// Name of the schedule.
    name: String,
    /// Times of the next firings, at most 10.
    #[schemars(with = "Vec<Instant>")]
    next_firings: Vec<Timestamp>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        get(
            "/v1/schedules",
            "listSchedules",
            view,
            "List schedules, newest first, each with its next firing.",
        )
        .ok::<Page<ScheduleView>>("Schedules, including those that are switched off.")
        .to(list),
        get("/v1/schedules/{name}", "showSchedule", view, "Show a schedule with its next firings.")
            .notes("In the path, the slash of a trigger's schedule `WORKFLOW/TRIGGER` is percent-encoded as `%2F`.")
            .ok::<ScheduleView>("The schedule.")
            .to(show),
        put(
            "/v1/schedules/{name}",
            "putSchedule",
            publish,
            "Create a schedule, or replace the schedule of this name.",
        )
        .notes("A schedule that a workflow's trigger created is a 409 `managedByTrigger`: change the trigger instead.")
        .ok::<ScheduleAccepted>("The schedule is active.")
        .to(put_one),
        delete(
            "/v1/schedules/{name}",
            "deleteSchedule",
            publish,
            "Switch a schedule off. It fires again only after it is put again.",
        )
        .notes("A schedule that a workflow's trigger created is a 409 `managedByTrigger`: change the trigger instead.")
        .gives_nothing("The schedule is switched off.")
        .to(remove),
    ]
}

/// Returns up to `count` firings, starting with `first`.
fn firings(cron: Option<&Cron>, first: Option<Timestamp>, count: usize) -> Vec<Timestamp> {
    std::iter::successors(first, |at| cron?.next_after(*at)).take(count).collect()
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().schedules_page(call.query.limit(), call.query.cursor()).await?;
    Reply::ok(&Page::of(page, |scheduled| ScheduleView::of(scheduled, 1)))
}

async fn show(call: Call<SchedulePath, ShowSchedule>) -> Result<Reply, Problem> {
    let SchedulePath { name } = &call.path;
    let scheduled = call.engine().schedule(name).await?;
    let scheduled = scheduled.ok_or_else(|| stepwell::EngineError::NoSchedule(name.clone()))?;
    Reply::ok(&ScheduleView::of(scheduled, call.query.firings.unwrap_or(FIRINGS)))
}

async fn put_one(call: Call<SchedulePath, Nothing, Json<PutSchedule>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let (name, Json(body)) = (call.path.name, call.body);
    let mut schedule = Schedule::new(name.as_str(), body.cron, body.workflow).input(body.input);
    schedule = body.time_zone.into_iter().fold(schedule, Schedule::time_zone);
    schedule = body.missed.into_iter().fold(schedule, |schedule, missed| schedule.missed(missed.into()));
    schedule = body.overlap.into_iter().fold(schedule, |schedule, overlap| schedule.overlap(overlap.into()));
    let cron = Cron::parse(&schedule.cron, &schedule.time_zone).map_err(|error| never(&error))?;
    call.server.check_schedule_quota(call.caller.scope(), &name).await?;
    let next = Some(engine.put_schedule(schedule).await?.next).filter(|next| *next < Timestamp::MAX);
    let next_firings = firings(Some(&cron), next, FIRINGS);
    Reply::ok(&ScheduleAccepted { name, next_firings })
}

/// Creates the problem of an invalid cron pattern or time zone.
fn never(error: &CronError) -> Problem {
    let (pointer, keyword) = match error {
        CronError::Expression { .. } => ("/cron", "cron"),
        CronError::TimeZone { .. } => ("/timeZone", "timeZone"),
    };
    let violation = SchemaViolation {
        pointer: pointer.to_owned(),
        keyword: keyword.to_owned(),
        message: error.to_string(),
    };
    Problem::validation(vec![violation])
}

async fn remove(call: Call<SchedulePath>) -> Result<Reply, Problem> {
    call.engine().remove_schedule(&call.path.name).await?;
    Ok(Reply::nothing())
}
