//! Commands of operators on a run. Each is one audited commit and can require the version the operator saw.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::core::{Mapping, Name, RunId};
use stepwell::{Command, DeleteRun, DeletedRun, DeletedRuns, Operator, Permission};

use super::RunPath;
use crate::api::call::{Call, Json, Nothing, OptionalBody};
use crate::api::reply::Reply;
use crate::api::route::{Describing, Route, delete, post};
use crate::api::shapes::{Id, RunStatus};
use crate::routes::problem::Problem;

/// Body of a command without further parameters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::api) struct CommandReason {
    /// Reason for the command, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    pub(in crate::api) reason: Option<String>,
}

/// Request to change a run's data.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PatchRun {
    /// JSON merge patch (RFC 7386): fields are set, and fields that are `null` are removed.
    fields: Map<String, Value>,
    /// Reason for the change, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Request to move a run to a place.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MoveRun {
    /// Name of the target place or step.
    #[schemars(length(min = 1, max = 256))]
    to: String,
    /// Activation to move. Default: all activations end, and the run continues at the target only.
    activation: Option<u64>,
    /// Reason for the move, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Request to start a new run from an earlier state of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ForkRun {
    /// Version of the run whose state the new run starts with.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    version: u64,
    /// Reason for the fork, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Request to move a run to another workflow version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MigrateRun {
    /// Number of the target workflow version.
    version: u32,
    /// Renamed places, as a map from the old to the new name.
    #[serde(default)]
    places: std::collections::BTreeMap<String, String>,
    /// New data of the run, a value with expressions on `context`. Default: the data stays unchanged.
    context: Option<Value>,
    /// True = only validate the migration and report its result. Default: false.
    #[serde(default)]
    dry_run: bool,
    /// Reason for the migration, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// Result of a migration.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunMigrated {
    /// Version of the run before the migration.
    version: u64,
    /// Places of the run before the migration.
    #[schemars(with = "Vec<String>")]
    from: Vec<Name>,
    /// Places of the run after the migration.
    #[schemars(with = "Vec<String>")]
    to: Vec<Name>,
    /// True if the migration was only validated.
    dry_run: bool,
}

/// Result of a fork.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunForked {
    /// Id of the new run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
}

/// Options of a deletion.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeleteOptions {
    /// True = cancel and delete runs that have not ended too. Default: false.
    #[serde(default)]
    force: bool,
    /// True = delete all descendants too. Default: false, children stay runs of their own.
    #[serde(default)]
    tree: bool,
    /// True = only report the runs that would be deleted. Default: false.
    #[serde(default)]
    dry_run: bool,
    /// Reason for the deletion, recorded in the audit trail.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
}

/// A deleted run, as it was before.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DeletedRunRow {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// Name of its workflow; absent if its row was unreadable or it was a flow behind a handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    workflow: Option<Name>,
    /// Status before the deletion; absent if its row was unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<RunStatus>,
}

/// Result of a deletion.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunsDeleted {
    /// The run of the request, then its deleted descendants. A parent comes before its children.
    runs: Vec<DeletedRunRow>,
    /// True if nothing was deleted.
    dry_run: bool,
}

fn removing() -> Route {
    delete("/v1/runs/{run}", "deleteRun", Permission::Admin, "Delete a run with everything that belongs to it.")
        .notes(
            "The audit trail keeps the fact, the actor and the reason. Keys and links that the run wrote stay. A run that \
             has not ended is deleted only with `force=true`: it is cancelled first, and its parent is notified. If it has a \
             child that has not ended, `tree=true` is needed too. The children of a run that has ended stay runs of their own. If the request is interrupted, repeat it.",
        )
        .checks_tag()
        .ok::<RunsDeleted>("The deleted runs; the predicted result for a dry run.")
        .to(remove)
}

pub(super) fn routes() -> Vec<Route> {
    let (manage, admin) = (Permission::Manage, Permission::Admin);
    let plain = |describing: Describing, command: Command| {
        describing
            .keyed()
            .checks_tag()
            .gives_nothing("The command was executed.")
            .to(move |call| plain(call, command.clone()))
    };
    vec![
        plain(
            post("/v1/runs/{run}/retry", "retryRun", manage, "Retry the failed transition at once."),
            Command::Retry,
        ),
        plain(
            post("/v1/runs/{run}/dismiss", "dismissRun", manage, "Drop the signal whose transition failed."),
            Command::Dismiss,
        ),
        plain(
            post("/v1/runs/{run}/cancel", "cancelRun", manage, "Cancel a run and all its descendants."),
            Command::Cancel,
        ),
        plain(
            post("/v1/runs/{run}/suspend", "suspendRun", manage, "Suspend a run until it is resumed."),
            Command::Suspend,
        ),
        plain(post("/v1/runs/{run}/resume", "resumeRun", manage, "Resume a suspended run."), Command::Resume),
        removing(),
        post("/v1/runs/{run}/patch", "patchRun", admin, "Change the data of a run.")
            .keyed()
            .checks_tag()
            .gives_nothing("The data is changed.")
            .to(patch),
        post("/v1/runs/{run}/move", "moveRun", admin, "Move a run to a place.")
            .keyed()
            .checks_tag()
            .gives_nothing("The run is moved.")
            .to(move_to),
        post(
            "/v1/runs/{run}/fork",
            "forkRun",
            admin,
            "Start a new run from the state of a run at a version.",
        )
        .keyed()
        .checks_tag()
        .gives::<RunForked>(StatusCode::CREATED, "The new run.")
        .links_to("/v1/runs/{run}", "run", "/id")
        .to(fork),
        post("/v1/runs/{run}/migrate", "migrateRun", admin, "Move a run to another version of its workflow.")
            .keyed()
            .checks_tag()
            .ok::<RunMigrated>("Result of the migration; the predicted result for a dry run.")
            .to(migrate),
    ]
}

fn operator<P, Q, B>(call: &Call<P, Q, B>, reason: Option<String>) -> Result<Operator, Problem> {
    Ok(Operator { seen: call.seen()?, reason, key: call.key()?, ..Operator::default() })
}

async fn plain(
    call: Call<RunPath, Nothing, OptionalBody<CommandReason>>,
    command: Command,
) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn remove(call: Call<RunPath, DeleteOptions>) -> Result<Reply, Problem> {
    let DeleteOptions { force, tree, dry_run, reason } = &call.query;
    let by = operator(&call, reason.clone())?;
    let wanted = DeleteRun::new(call.path.run).force(*force).tree(*tree).dry_run(*dry_run).by(by);
    let DeletedRuns { runs, is_dry } = call.engine().delete(&wanted).await?;
    let row = |run: DeletedRun| {
        let DeletedRun { run: id, workflow, status } = run;
        DeletedRunRow { id, workflow, status: status.map(Into::into) }
    };
    Reply::ok(&RunsDeleted { runs: runs.into_iter().map(row).collect(), dry_run: is_dry })
}

async fn patch(call: Call<RunPath, Nothing, Json<PatchRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let command = Command::Patch { fields: Value::Object(call.body.0.fields.clone()) };
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn move_to(call: Call<RunPath, Nothing, Json<MoveRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let command = Command::Move { activation: call.body.0.activation, to: call.body.0.to.as_str().into() };
    let done = call.engine().operate_once(call.path.run, command, &by).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn fork(call: Call<RunPath, Nothing, Json<ForkRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let done = call.engine().fork_once(call.path.run, call.body.0.version, &by).await?;
    let id = done.value.id();
    let reply = Reply::json(StatusCode::CREATED, &RunForked { id })?;
    Ok(reply.at(&format!("/v1/runs/{id}")).replayed(!done.is_new))
}

async fn migrate(call: Call<RunPath, Nothing, Json<MigrateRun>>) -> Result<Reply, Problem> {
    let by = operator(&call, call.body.0.reason.clone())?;
    let Json(MigrateRun { version, places, context, dry_run, .. }) = &call.body;
    let places = places.iter().map(|(from, to)| (from.as_str().into(), to.as_str().into())).collect();
    let mapping = Mapping { places, context: context.clone() };
    let done = call.engine().migrate_once(call.path.run, *version, &mapping, &by, *dry_run).await?;
    let stepwell::operate::Migrated { version, from, to, is_dry } = done.value;
    Ok(Reply::ok(&RunMigrated { version, from, to, dry_run: is_dry })?.replayed(!done.is_new))
}
