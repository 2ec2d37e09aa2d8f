//! Routes of abbreviated run ids: the runs whose id begins with a text, and the shortest unique beginning of ids.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::Permission;
use stepwell::core::RunId;

use super::view::RunRow;
use crate::api::call::{Call, Json, Nothing};
use crate::api::reply::Reply;
use crate::api::route::{Route, get, post};
use crate::api::shapes::{Id, Listing, Page};
use crate::routes::problem::Problem;

/// Beginning of run ids.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FindRuns {
    /// Beginning of the ids, with the hyphens of a UUID or without.
    #[schemars(regex(pattern = "^[0-9a-fA-F-]{1,36}$"))]
    prefix: String,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// Request to abbreviate run ids.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShortenIds {
    /// Ids of runs, at most 200.
    #[schemars(with = "Vec<Id>", length(max = 200))]
    runs: Vec<RunId>,
}

/// Abbreviated run ids, in the order of the request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ShortIds {
    /// The shortest unique beginning of each id: at least 8 characters.
    ids: Vec<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    vec![
        get("/v1/run-ids", "findRuns", view, "Find the runs whose id begins with a text, newest first.")
            .notes("Runs of the engine's own workflows are included. There is no further page: a longer text selects fewer runs.")
            .ok::<Page<RunRow>>("Runs.")
            .links_to("/v1/runs/{run}", "run", "/items/0/id")
            .to(find),
        post("/v1/run-ids", "shortenRunIds", view, "Abbreviate run ids: return the shortest unique beginning of each.")
            .ok::<ShortIds>("The abbreviated ids.")
            .to(shorten),
    ]
}

async fn find(call: Call<Nothing, FindRuns>) -> Result<Reply, Problem> {
    let limit = Listing::of(call.query.limit, None).limit();
    let page = call.engine().runs_by_prefix(&call.query.prefix, limit).await?;
    Reply::ok(&Page::of(page, RunRow::from))
}

async fn shorten(call: Call<Nothing, Nothing, Json<ShortenIds>>) -> Result<Reply, Problem> {
    let ids = call.engine().short_run_ids(&call.body.0.runs).await?;
    Reply::ok(&ShortIds { ids })
}
