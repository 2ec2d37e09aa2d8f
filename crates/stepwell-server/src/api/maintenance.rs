//! Maintenance on request: heals shadow columns and cleans up expired data, one bounded batch at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::core::RunId;
use stepwell::store::RunFilter;
use stepwell::{Heal, MaintenanceRound, Permission};

use super::call::{Call, Json, Nothing};
use super::conditions::condition;
use super::reply::Reply;
use super::route::{Route, post};
use super::shapes::{Condition, Id, RunStatus};
use crate::routes::problem::Problem;

/// Request to heal the shadow columns of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HealColumns {
    /// Name of the workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// Heals only runs with this status, and no flows.
    status: Option<RunStatus>,
    /// Heals only children of this run, and no flows.
    #[schemars(with = "Option<Id>")]
    parent: Option<RunId>,
    /// Heals only runs and flows whose shadow column matches before the heal, with the conditions of `listRuns`.
    #[serde(default, rename = "where")]
    #[schemars(with = "Vec<Condition>")]
    conditions: Vec<String>,
    /// Maximum number of runs and flows per batch, 1 to 1,000. Default: 100.
    #[schemars(range(min = 1, max = 1000))]
    batch: Option<u32>,
    /// The `nextCursor` of the previous batch.
    cursor: Option<String>,
}

/// Result of a healing batch.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ColumnsHealed {
    /// Number of runs and flows that were checked.
    runs: u64,
    /// Number of columns that were written or cleared.
    changed: u64,
    /// Number of runs that cannot be read. Their columns stay unchanged.
    unreadable: u64,
    /// Number of runs that changed during every attempt. Heal them again when they are idle.
    missed: u64,
    /// Value of `cursor` for the next batch; absent after the last batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Number of items that one cleanup removed or sealed, by kind.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CleanedUp {
    /// Keys and slots that had expired and became tombstones.
    expired_cells: u64,
    /// Tombstones that were past their horizon.
    tombstones: u64,
    /// Idempotency keys that had expired.
    expired_keys: u64,
    /// Handles that had expired.
    handles: u64,
    /// Runs that had ended and were past their retention.
    runs: u64,
    /// Checkpoints and documents removed from the history of runs.
    history: u64,
    /// Rows of the audit trail that were sealed.
    sealed: u64,
    /// Rows of the audit trail that were past their retention.
    audit: u64,
    /// True if more can be cleaned up: send the request again.
    more: bool,
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        post("/v1/maintenance/heal", "healColumns", admin, "Heal the shadow columns of one batch of a workflow's runs, newest first, and then of its flows.")
            .notes("Repeat the request with `nextCursor` until it is absent. Any process of the cluster can continue from a cursor.")
            .ok::<ColumnsHealed>("Result of the batch.")
            .to(heal),
        post("/v1/maintenance/cleanup", "cleanUp", admin, "Clean up expired data, one batch of each kind.")
            .notes("The server also does this automatically from time to time.")
            .ok::<CleanedUp>("Number of items removed or sealed, by kind.")
            .to(clean_up),
    ]
}

async fn heal(call: Call<Nothing, Nothing, Json<HealColumns>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Json(HealColumns { workflow, status, parent, conditions, batch, cursor }) = call.body;
    let shadows = conditions.iter().map(|text| condition(text)).collect::<Result<_, _>>()?;
    let (workflow, status) = (Some(workflow.into()), status.map(Into::into).into_iter().collect());
    let filter = RunFilter { workflow, status, parent, shadows, ..RunFilter::default() };
    let heal = batch.into_iter().fold(Heal::those(filter), Heal::batch);
    let mut heal = cursor.into_iter().fold(heal, Heal::from);
    engine.heal(&mut heal).await?;
    Reply::ok(&ColumnsHealed {
        runs: heal.runs(),
        changed: heal.changed(),
        unreadable: heal.unreadable(),
        missed: heal.missed(),
        next_cursor: heal.place().map(str::to_owned),
    })
}

async fn clean_up(call: Call) -> Result<Reply, Problem> {
    let MaintenanceRound { what, has_more } = call.engine().maintain().await?;
    Reply::ok(&CleanedUp {
        expired_cells: what.expired_cells,
        tombstones: what.tombstones,
        expired_keys: what.expired_keys,
        handles: what.handles,
        runs: what.runs,
        history: what.history,
        sealed: what.sealed,
        audit: what.audit,
        more: has_more,
    })
}
