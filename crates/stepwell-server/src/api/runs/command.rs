//! What an operator does to a run: each is one audited commit, with the version they saw as its precondition.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::core::{Mapping, Name, RunId};
use stepwell::{Command, Operator, Permission};

use super::OfRun;
use crate::api::call::{Call, Json, Nothing, Perhaps};
use crate::api::reply::Reply;
use crate::api::route::{Describing, Route, delete, post};
use crate::api::shapes::Id;
use crate::routes::problem::Problem;

/// Why, for the audit trail.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Why {
    /// Why, for the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// What is changed of a run's data.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PatchRun {
    /// Fields are put in, those that are null are taken out (RFC 7386).
    fields: Map<String, Value>,
    /// Why, for the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Where a run is moved to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MoveRun {
    /// The place, or step.
    #[schemars(length(min = 1, max = 256))]
    to: String,
    /// Only this activation; without it everything that is going on ends.
    activation: Option<u64>,
    /// Why, for the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Where a run branches off.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForkRun {
    /// The version whose state the new run begins with.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    version: u64,
    /// Why, for the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// How a run moves to another edition of its workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MigrateRun {
    /// The author's number of the edition.
    version: u32,
    /// Places whose name has changed, from the old to the new.
    #[serde(default)]
    places: std::collections::BTreeMap<String, String>,
    /// The run's data as it is to be, a value with expressions on `context`; without this it stays as it is.
    context: Option<Value>,
    /// Only try it out.
    #[serde(default)]
    dry_run: bool,
    /// Why, for the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// What a migration came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunMigrated {
    /// The run's version before.
    version: u64,
    /// The places it was in.
    #[schemars(with = "Vec<String>")]
    from: Vec<Name>,
    /// The places it is in.
    #[schemars(with = "Vec<String>")]
    to: Vec<Name>,
    /// It was only tried out.
    dry_run: bool,
}

/// A run that branched off.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunForked {
    /// The new run.
    #[schemars(with = "Id")]
    id: RunId,
}

fn removing() -> Route {
    delete("/v1/runs/{run}", "deleteRun", Permission::Admin, "Removes a run with everything that is its own.")
        .notes(
            "One that has ended, or of which something cannot be read. The audit trail stays. Whoever waits for one that \
             has not ended is told that it was cancelled, if its row can be read.",
        )
        .gives_nothing("It is gone.")
        .to(remove)
}

pub(super) fn routes() -> Vec<Route> {
    let (manage, admin) = (Permission::Manage, Permission::Admin);
    let plain = |describing: Describing, command: Command| {
        describing
            .keyed()
            .checks_tag()
            .gives_nothing("It is done.")
            .to(move |call| plain(call, command.clone()))
    };
    vec![
        plain(
            post("/v1/runs/{run}/retry", "retryRun", manage, "Runs the failed transition again at once."),
            Command::Retry,
        ),
        plain(
            post(
                "/v1/runs/{run}/dismiss",
                "dismissRun",
                manage,
                "Gives the signal up whose transition failed.",
            ),
            Command::Dismiss,
        ),
        plain(
            post("/v1/runs/{run}/cancel", "cancelRun", manage, "Ends a run and everything below it."),
            Command::Cancel,
        ),
        plain(
            post("/v1/runs/{run}/suspend", "suspendRun", manage, "Puts a run aside until it is resumed."),
            Command::Suspend,
        ),
        plain(post("/v1/runs/{run}/resume", "resumeRun", manage, "Takes a run up again."), Command::Resume),
        removing(),
        post("/v1/runs/{run}/patch", "patchRun", admin, "Changes a run's data.")
            .keyed()
            .checks_tag()
            .gives_nothing("It is done.")
            .to(patch),
        post("/v1/runs/{run}/move", "moveRun", admin, "Moves a run to a place.")
            .keyed()
            .checks_tag()
            .gives_nothing("It is done.")
            .to(move_to),
        post(
            "/v1/runs/{run}/fork",
            "forkRun",
            admin,
            "Begins a new run with the state that a run had at a version.",
        )
        .keyed()
        .checks_tag()
        .gives::<RunForked>(StatusCode::CREATED, "The new run.")
        .leads("/v1/runs/{run}", "run", "/id")
        .to(fork),
        post(
            "/v1/runs/{run}/migrate",
            "migrateRun",
            admin,
            "Moves a run to another edition of its workflow.",
        )
        .keyed()
        .checks_tag()
        .ok::<RunMigrated>("What it came to, or would.")
        .to(migrate),
    ]
}

fn operator<P, Q, B>(call: &Call<P, Q, B>, reason: Option<String>) -> Result<Operator, Problem> {
    Ok(Operator { actor: None, seen: call.seen()?, reason, key: call.key()? })
}

async fn plain(call: Call<OfRun, Nothing, Perhaps<Why>>, command: Command) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn remove(call: Call<OfRun>) -> Result<Reply, Problem> {
    call.engine().delete_run(call.path.run, &Operator::default()).await?;
    Ok(Reply::nothing())
}

async fn patch(call: Call<OfRun, Nothing, Json<PatchRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let command = Command::Patch { fields: Value::Object(call.body.0.fields.clone()) };
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn move_to(call: Call<OfRun, Nothing, Json<MoveRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let command = Command::Move { activation: call.body.0.activation, to: call.body.0.to.as_str().into() };
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn fork(call: Call<OfRun, Nothing, Json<ForkRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let done = call.engine().fork_once(call.path.run, call.body.0.version, &by).await?;
    let id = done.came_to.id();
    let reply = Reply::json(StatusCode::CREATED, &RunForked { id })?;
    Ok(reply.at(&format!("/v1/runs/{id}")).replayed(!done.is_new))
}

async fn migrate(call: Call<OfRun, Nothing, Json<MigrateRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let Json(MigrateRun { version, places, context, dry_run, .. }) = &call.body;
    let places = places.iter().map(|(from, to)| (from.as_str().into(), to.as_str().into())).collect();
    let mapping = Mapping { places, context: context.clone() };
    let done = call.engine().migrate_once(call.path.run, *version, &mapping, &by, *dry_run).await?;
    let stepwell::operate::Migrated { version, from, to, is_dry } = done.came_to;
    Ok(Reply::ok(&RunMigrated { version, from, to, dry_run: is_dry })?.replayed(!done.is_new))
}
