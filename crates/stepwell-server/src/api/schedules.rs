//! Schedules: when workflows are started by themselves, and when they will be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::schema::Misfit;
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::cron::{Cron, CronError, Missed, Overlap};
use stepwell::schedule::Scheduled;
use stepwell::{Permission, Schedule};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::{Id, Instant, Listing, Page, nothing};
use crate::routes::problem::Problem;

/// Firings that are shown of one schedule, unless that is said.
const FIRINGS: usize = 10;

/// A schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfSchedule {
    /// Its name; that of a trigger's is `workflow/trigger`, with the slash as `%2F`.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// How much is shown of a schedule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShowSchedule {
    /// How many of the next firings.
    #[schemars(range(max = 100))]
    firings: Option<usize>,
}

/// A schedule as it is to be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutSchedule {
    /// Five fields, or six with seconds in front.
    #[schemars(length(min = 1, max = 256))]
    cron: String,
    /// The time zone in which the fields are read; UTC unless this says otherwise.
    #[schemars(length(min = 1, max = 256))]
    time_zone: Option<String>,
    /// The workflow it starts.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// What each run begins with; an empty object unless this says otherwise.
    #[serde(default = "nothing")]
    input: Value,
    /// What happens to firings that nobody was there for; `once` unless this says otherwise.
    missed: Option<MissedFirings>,
    /// What happens to a firing while the run of the one before is still going; `start` unless this says otherwise.
    overlap: Option<OverlappingRuns>,
}

/// What happens to firings that nobody was there for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum MissedFirings {
    /// They are dropped.
    Skip,
    /// One stands for all of them.
    Once,
    /// Each is made up for.
    All,
}

impl From<Missed> for MissedFirings {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Skip => MissedFirings::Skip,
            Missed::Once => MissedFirings::Once,
            Missed::All => MissedFirings::All,
        }
    }
}

impl From<MissedFirings> for Missed {
    fn from(missed: MissedFirings) -> Self {
        match missed {
            MissedFirings::Skip => Missed::Skip,
            MissedFirings::Once => Missed::Once,
            MissedFirings::All => Missed::All,
        }
    }
}

/// What happens to a firing while the run of the one before is still going.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OverlappingRuns {
    /// It starts another run beside the first.
    Start,
    /// It is dropped.
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

/// A schedule as it stands.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScheduleShown {
    /// Its name.
    name: String,
    /// When it fires.
    cron: String,
    /// The time zone in which that is read.
    time_zone: String,
    /// The workflow it starts.
    #[schemars(with = "String")]
    workflow: Name,
    /// What each run begins with.
    input: Value,
    /// What happens to firings that nobody was there for.
    missed: MissedFirings,
    /// What happens to a firing while the run of the one before is still going.
    overlap: OverlappingRuns,
    /// The trigger of the workflow that it comes from, if nobody has put it by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    trigger: Option<Name>,
    /// It does not fire until it is put again.
    off: bool,
    /// When it fires next, as far as that was asked for.
    #[schemars(with = "Vec<Instant>")]
    next_firings: Vec<Timestamp>,
    /// How often it has fired.
    fired: u64,
    /// Firings that did not start a run, because the last one was still going or none could be started.
    skipped: u64,
    /// The run it started last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    last_run: Option<RunId>,
    /// Why the last firing could not start a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

impl ScheduleShown {
    fn of(scheduled: Scheduled, count: usize) -> Self {
        let Scheduled { schedule, next, is_off, fired, skipped, last_run, last_error } = scheduled;
        let cron = Cron::parse(&schedule.cron, &schedule.time_zone).ok();
        let next = Some(next).filter(|next| !is_off && *next < Timestamp::MAX);
        ScheduleShown {
            name: schedule.name,
            cron: schedule.cron,
            time_zone: schedule.time_zone,
            workflow: schedule.workflow,
            input: schedule.input,
            missed: schedule.missed.into(),
            overlap: schedule.overlap.into(),
            trigger: schedule.by.map(|by| by.trigger),
            off: is_off,
            next_firings: firings(cron.as_ref(), next, count),
            fired,
            skipped,
            last_run,
            last_error,
        }
    }
}

/// A schedule that was put.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ScheduleAccepted {
    /// Its name.
    name: String,
    /// When it fires next.
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
            "Lists schedules, newest first, each with its next firing.",
        )
        .ok::<Page<ScheduleShown>>("Schedules, those that are off too.")
        .to(list),
        get("/v1/schedules/{name}", "showSchedule", view, "Shows a schedule, with its next firings.")
            .ok::<ScheduleShown>("The schedule.")
            .to(show),
        put(
            "/v1/schedules/{name}",
            "putSchedule",
            publish,
            "Puts a schedule: a new one, or another edition of the one of this name.",
        )
        .notes("One that a trigger of a workflow has made is 409 `planned`: it is changed there.")
        .ok::<ScheduleAccepted>("It will fire.")
        .to(put_one),
        delete(
            "/v1/schedules/{name}",
            "deleteSchedule",
            publish,
            "Switches a schedule off: it does not fire until it is put again.",
        )
        .notes("One that a trigger of a workflow has made is 409 `planned`: it is changed there.")
        .gives_nothing("It is off.")
        .to(remove),
    ]
}

/// The next firings, from one on.
fn firings(cron: Option<&Cron>, first: Option<Timestamp>, count: usize) -> Vec<Timestamp> {
    std::iter::successors(first, |at| cron?.next_after(*at)).take(count).collect()
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().schedules_page(call.query.limit(), call.query.cursor()).await?;
    Reply::ok(&Page::of(page, |scheduled| ScheduleShown::of(scheduled, 1)))
}

async fn show(call: Call<OfSchedule, ShowSchedule>) -> Result<Reply, Problem> {
    let OfSchedule { name } = &call.path;
    let scheduled = call.engine().schedule(name).await?;
    let scheduled = scheduled.ok_or_else(|| stepwell::EngineError::NoSchedule(name.clone()))?;
    Reply::ok(&ScheduleShown::of(scheduled, call.query.firings.unwrap_or(FIRINGS)))
}

async fn put_one(call: Call<OfSchedule, Nothing, Json<PutSchedule>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let (name, Json(body)) = (call.path.name, call.body);
    let mut schedule = Schedule::new(name.as_str(), body.cron, body.workflow).input(body.input);
    schedule = body.time_zone.into_iter().fold(schedule, Schedule::time_zone);
    schedule = body.missed.into_iter().fold(schedule, |schedule, missed| schedule.missed(missed.into()));
    schedule = body.overlap.into_iter().fold(schedule, |schedule, overlap| schedule.overlap(overlap.into()));
    let cron = Cron::parse(&schedule.cron, &schedule.time_zone).map_err(|error| never(&error))?;
    call.server.room_for_schedule(call.caller.scope(), &name).await?;
    let next = Some(engine.put_schedule(schedule).await?.next).filter(|next| *next < Timestamp::MAX);
    let next_firings = firings(Some(&cron), next, FIRINGS);
    Reply::ok(&ScheduleAccepted { name, next_firings })
}

/// Why there are no such times.
fn never(error: &CronError) -> Problem {
    let (pointer, keyword) = match error {
        CronError::Expression { .. } => ("/cron", "cron"),
        CronError::TimeZone { .. } => ("/timeZone", "timeZone"),
    };
    let misfit =
        Misfit { pointer: pointer.to_owned(), keyword: keyword.to_owned(), message: error.to_string() };
    Problem::unfit(vec![misfit])
}

async fn remove(call: Call<OfSchedule>) -> Result<Reply, Problem> {
    call.engine().remove_schedule(&call.path.name).await?;
    Ok(Reply::nothing())
}
