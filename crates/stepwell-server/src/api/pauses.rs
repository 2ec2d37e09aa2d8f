//! Routes that pause and resume schedules and triggers, and start a run of them now.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::{RunId, Timestamp};
use stepwell::{Operator, Paused, Permission, RunNow, Started};

use super::call::{Call, Nothing, OptionalBody};
use super::reply::Reply;
use super::route::{Describing, Route, post};
use super::schedules::SchedulePath;
use super::shapes::{Id, Instant, named};
use super::triggers::TriggerPath;
use crate::routes::problem::Problem;

/// Body of a request to pause or resume.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PauseReason {
    /// Reason, recorded in the audit trail and shown while it is paused.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// A pause of a schedule or trigger.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PauseView {
    /// Time of the pause.
    #[schemars(with = "Instant")]
    at: Timestamp,
    /// Author of the pause; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Reason that the author gave; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<Paused> for PauseView {
    fn from(paused: Paused) -> Self {
        let Paused { at, by, reason } = paused;
        PauseView { at, by, reason }
    }
}

/// Body of a request to start a run now.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunInput {
    /// Input of the run; `null` is a valid input. Default: the input of the schedule or trigger.
    #[serde(default, deserialize_with = "named")]
    input: Option<Value>,
}

/// Result of starting a run now.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunStartedNow {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// False if the same `Idempotency-Key` started the run earlier.
    created: bool,
}

pub(super) fn routes() -> Vec<Route> {
    let (manage, publish) = (Permission::Manage, Permission::Publish);
    let paused = |describing: Describing, about| {
        describing
            .notes("The pause stays until it is resumed, also after a restart and in later versions of the workflow. The audit trail records it. A repeated request changes nothing.")
            .ok::<PauseView>(about)
    };
    let starts = |describing: Describing| {
        describing
            .keyed()
            .gives::<RunStartedNow>(StatusCode::CREATED, "The run was started.")
            .gives::<RunStartedNow>(StatusCode::OK, "The same key started the run earlier.")
            .links_to("/v1/runs/{run}", "run", "/id")
    };
    vec![
        paused(
            post("/v1/schedules/{name}/pause", "pauseSchedule", publish, "Pause a schedule: its firings start nothing."),
            "The pause.",
        )
        .to(pause_schedule),
        post("/v1/schedules/{name}/resume", "resumeSchedule", publish, "Resume a paused schedule.")
            .notes("Firings that were due before are not made up for. A schedule that is not paused stays as it is.")
            .gives_nothing("The schedule is not paused.")
            .to(resume_schedule),
        starts(post("/v1/schedules/{name}/run", "runSchedule", manage, "Start a run of a schedule now."))
            .notes("Also works if the schedule is paused or off. Its firings do not change.")
            .to(run_schedule),
        paused(
            post(
                "/v1/triggers/{workflow}/{trigger}/pause",
                "pauseTrigger",
                publish,
                "Pause a trigger: it starts nothing, and its log says so.",
            ),
            "The pause.",
        )
        .to(pause_trigger),
        post("/v1/triggers/{workflow}/{trigger}/resume", "resumeTrigger", publish, "Resume a paused trigger.")
            .notes("Events that arrived meanwhile start nothing. A trigger that is not paused stays as it is.")
            .gives_nothing("The trigger is not paused.")
            .to(resume_trigger),
        starts(post("/v1/triggers/{workflow}/{trigger}/run", "runTrigger", manage, "Start a run of a trigger now."))
            .notes("Also works if the trigger is paused. A trigger that takes its input from an event needs `input`.")
            .to(run_trigger),
    ]
}

type Pausing<P> = Call<P, Nothing, OptionalBody<PauseReason>>;
type Running<P> = Call<P, Nothing, OptionalBody<RunInput>>;

fn operator<P>(call: &Pausing<P>) -> Operator {
    Operator { reason: call.body.0.reason.clone(), ..Operator::default() }
}

async fn pause_schedule(call: Pausing<SchedulePath>) -> Result<Reply, Problem> {
    let paused = call.engine().pause_schedule(&call.path.name, &operator(&call)).await?;
    Reply::ok(&PauseView::from(paused))
}

async fn resume_schedule(call: Pausing<SchedulePath>) -> Result<Reply, Problem> {
    call.engine().resume_schedule(&call.path.name, &operator(&call)).await?;
    Ok(Reply::nothing())
}

async fn run_schedule(call: Running<SchedulePath>) -> Result<Reply, Problem> {
    let now = run_now(&call).await?;
    started(&call.engine().run_schedule(&call.path.name, now).await?)
}

async fn pause_trigger(call: Pausing<TriggerPath>) -> Result<Reply, Problem> {
    let TriggerPath { workflow, trigger } = &call.path;
    let paused = call.engine().pause_trigger(workflow, trigger, &operator(&call)).await?;
    Reply::ok(&PauseView::from(paused))
}

async fn resume_trigger(call: Pausing<TriggerPath>) -> Result<Reply, Problem> {
    let TriggerPath { workflow, trigger } = &call.path;
    call.engine().resume_trigger(workflow, trigger, &operator(&call)).await?;
    Ok(Reply::nothing())
}

async fn run_trigger(call: Running<TriggerPath>) -> Result<Reply, Problem> {
    let now = run_now(&call).await?;
    let TriggerPath { workflow, trigger } = &call.path;
    started(&call.engine().run_trigger(workflow, trigger, now).await?)
}

/// Returns the request to the engine, after the check of the quota.
async fn run_now<P>(call: &Running<P>) -> Result<RunNow, Problem> {
    let key = call.key()?;
    call.server.check_run_quota(call.caller.scope(), None).await?;
    let now = call.body.0.input.clone().into_iter().fold(RunNow::new(), RunNow::input);
    Ok(key.into_iter().fold(now, RunNow::key))
}

fn started(started: &Started) -> Result<Reply, Problem> {
    let id = started.run.id();
    let status = if started.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let reply = Reply::json(status, &RunStartedNow { id, created: started.is_new })?;
    Ok(reply.at(&format!("/v1/runs/{id}")).replayed(!started.is_new))
}
