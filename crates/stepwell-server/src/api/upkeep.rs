//! Upkeep that somebody asks for: shadow columns are healed, and what has expired is tidied up, a bounded batch at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::{Heal, Permission, Tidied};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Route, post};
use crate::routes::problem::Problem;

/// What is healed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HealColumns {
    /// The workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// How many runs and flows at most; 100 unless this says otherwise.
    #[schemars(range(min = 1, max = 1000))]
    batch: Option<u32>,
    /// Where the batch before ended.
    cursor: Option<String>,
}

/// What a batch came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ColumnsHealed {
    /// Runs and flows that were looked at.
    runs: u64,
    /// Columns that were written or emptied.
    changed: u64,
    /// Runs that cannot be read: their columns stay as they are.
    unreadable: u64,
    /// Runs that moved every time: heal them again when they rest.
    missed: u64,
    /// What to ask for the next batch with; absent when all is healed.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// What was tidied up.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CleanedUp {
    /// Keys and slots that had expired and became tombstones.
    expired_cells: u64,
    /// Tombstones that were past their horizon.
    tombstones: u64,
    /// Idempotency keys that had expired.
    expired_keys: u64,
    /// Handles that were over.
    handles: u64,
    /// Runs that had ended and were past their retention.
    runs: u64,
    /// Checkpoints and documents of runs that live for ever.
    history: u64,
    /// Rows of the audit trail that were sealed.
    sealed: u64,
    /// There is more to tidy up: ask again.
    more: bool,
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        post("/v1/upkeep/heal", "healColumns", admin, "Makes shadow columns what they should be: one batch of a workflow's runs, newest first, and then of its flows.")
            .notes("Ask again with `nextCursor` until there is none; it may be taken up where it was, also elsewhere.")
            .ok::<ColumnsHealed>("What the batch came to.")
            .to(heal),
        post("/v1/upkeep/cleanup", "cleanUp", admin, "Tidies up what has expired: one batch of each kind.")
            .notes("The server does this by itself now and then.")
            .ok::<CleanedUp>("What that was.")
            .to(clean_up),
    ]
}

async fn heal(call: Call<Nothing, Nothing, Json<HealColumns>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Json(HealColumns { workflow, batch, cursor }) = call.body;
    let heal = batch.into_iter().fold(Heal::of(workflow.as_str()), Heal::batch);
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
    let Tidied { what, has_more } = call.engine().tidy().await?;
    Reply::ok(&CleanedUp {
        expired_cells: what.expired_cells,
        tombstones: what.tombstones,
        expired_keys: what.expired_keys,
        handles: what.handles,
        runs: what.runs,
        history: what.history,
        sealed: what.sealed,
        more: has_more,
    })
}
