//! The keys that seal tokens: which there are. They are put there and rotated by configuration.

use schemars::JsonSchema;
use serde::Serialize;
use stepwell::Permission;

use super::call::Call;
use super::reply::Reply;
use super::route::{Route, get};
use super::shapes::Page;
use crate::routes::problem::Problem;

/// A key that seals tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SealingKey {
    /// Its id.
    id: String,
    /// New tokens are sealed under it; under the others they are only opened.
    seals: bool,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/keys", "listSealingKeys", Permission::Admin, "Lists the keys that seal tokens.")
            .notes("A key is put there, rotated and taken away by configuration.")
            .ok::<Page<SealingKey>>("The keys' ids, the one that seals first.")
            .to(list),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let ids = call.server.flows()?.keys().ids().into_iter().enumerate();
    let items = ids.map(|(place, id)| SealingKey { id, seals: place == 0 }).collect();
    Reply::ok(&Page::only(items))
}
