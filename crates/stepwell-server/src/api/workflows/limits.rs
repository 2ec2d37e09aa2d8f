//! Route that lists the keys of a workflow's concurrency and rate limits.

use schemars::JsonSchema;
use serde::Serialize;
use stepwell::admission::{GateRow, GateRun};
use stepwell::core::admission::LimitKind;
use stepwell::core::{RunId, Timestamp};
use stepwell::{Permission, RunLimit};

use super::WorkflowPath;
use crate::api::call::Call;
use crate::api::reply::Reply;
use crate::api::route::{Route, get};
use crate::api::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Kind of a limit.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) enum LimitKindShape {
    /// Limit on the number of runs that are active at a time.
    Concurrency,
    /// Limit on the number of runs that begin within a time.
    Rate,
}

impl From<LimitKind> for LimitKindShape {
    fn from(kind: LimitKind) -> Self {
        match kind {
            LimitKind::Concurrency => LimitKindShape::Concurrency,
            LimitKind::Rate => LimitKindShape::Rate,
        }
    }
}

/// A key of a limit that is in use.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LimitKey {
    /// Kind of the limit.
    kind: LimitKindShape,
    /// Key of the limit; absent if one limit applies to the workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Maximum number of runs; absent if the active version has no such limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    /// Concurrency limit: number of active runs. Rate limit: number of runs that began within the period.
    active: u64,
    /// Oldest active runs, at most 10; empty for a rate limit.
    runs: Vec<ActiveRun>,
    /// Number of waiting runs, at most 1,000.
    waiting: u64,
    /// Time since which runs wait without a pause; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    waiting_since: Option<Timestamp>,
    /// Rate limit: time at which the next run may begin; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    next_at: Option<Timestamp>,
}

/// An active run that counts for a limit.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ActiveRun {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    run: RunId,
    /// Time at which the run was admitted.
    #[schemars(with = "Instant")]
    since: Timestamp,
}

impl From<GateRow> for LimitKey {
    fn from(row: GateRow) -> Self {
        let GateRow { kind, key, limit, active, runs, waiting, waiting_since, next_at } = row;
        let runs = runs.into_iter().map(|GateRun { run, since }| ActiveRun { run, since }).collect();
        LimitKey { kind: kind.into(), key, limit, active, runs, waiting, waiting_since, next_at }
    }
}

/// The limit that a run waits for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(in crate::api) struct WaitingFor {
    /// Kind of the limit.
    limit: LimitKindShape,
    /// Key of the limit; absent if one limit applies to the workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Time at which the run joined the queue.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Position in the queue, from 1; 1,001 stands for all later positions.
    position: u64,
}

impl From<RunLimit> for WaitingFor {
    fn from(queued: RunLimit) -> Self {
        let RunLimit { kind, key, since, position } = queued;
        WaitingFor { limit: kind.into(), key, since, position }
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/workflows/{name}/limits", "listLimits", Permission::View, "List the keys of a workflow's limits that are in use.")
            .notes("A key is in use while runs count for it or wait. All versions of a workflow share its limits; the numbers of the active version apply.")
            .ok::<Page<LimitKey>>("Keys of the concurrency limit and of the rate limit, with active and waiting runs.")
            .links_to("/v1/runs/{run}", "run", "/items/0/runs/0/run")
            .to(list),
    ]
}

async fn list(call: Call<WorkflowPath, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (call.query.limit(), call.query.cursor());
    let page = call.engine().limits_of(&call.path.name.as_str().into(), limit, cursor).await?;
    Reply::ok(&Page::of(page, LimitKey::from))
}
