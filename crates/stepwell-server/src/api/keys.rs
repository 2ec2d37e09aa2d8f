//! Route that lists the keys that seal tokens. The server's configuration adds, rotates and removes them.

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
    /// Id of the key, from the server's configuration.
    id: String,
    /// True if new tokens are sealed with this key; the other keys only open tokens.
    seals: bool,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/keys", "listSealingKeys", Permission::Admin, "List the keys that seal tokens.")
            .notes("The server's configuration adds, rotates and removes keys.")
            .ok::<Page<SealingKey>>("Ids of the keys; the key that seals comes first.")
            .to(list),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let ids = call.server.flows()?.keys().ids().into_iter().enumerate();
    let items = ids.map(|(place, id)| SealingKey { id, seals: place == 0 }).collect();
    Reply::ok(&Page::only(items))
}
