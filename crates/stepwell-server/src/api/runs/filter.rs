//! Filters on runs as query parameters: the same for a listing and for counts.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell::registry::OWN;
use stepwell::store::{IdPrefix, RunFilter, RunOrder, RunQuery, Status};
use stepwell::{Permission, store};

use super::view::RunRow;
use crate::api::call::{Call, Nothing};
use crate::api::conditions::condition;
use crate::api::reply::Reply;
use crate::api::route::{Route, get};
use crate::api::shapes::{Condition, Id, InstantGiven, Listing, Page, RunStatus};
use crate::routes::problem::Problem;

/// Declares the parameters of a request: those of a filter on runs, and its own.
macro_rules! with_run_filter {
    ($(#[$meta:meta])* $name:ident { $($(#[$own:meta])* $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub(in crate::api) struct $name {
            /// Selects only runs of this workflow.
            #[schemars(length(min = 1, max = 256))]
            workflow: Option<String>,
            /// Selects only runs with one of these statuses.
            #[serde(default)]
            status: Vec<RunStatus>,
            /// Selects only children of this run.
            #[schemars(with = "Option<Id>")]
            parent: Option<RunId>,
            /// Selects only this run and all its descendants.
            #[schemars(with = "Option<Id>")]
            root: Option<RunId>,
            /// Selects only runs whose id begins with these hexadecimal digits.
            #[schemars(regex(pattern = "^[0-9a-fA-F-]{1,36}$"))]
            id_prefix: Option<String>,
            /// Selects only runs of this workflow version, the author's number. Requires `workflow`.
            version: Option<u32>,
            /// Selects only runs that are pinned to the definition with this hash: 64 hexadecimal digits.
            #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
            definition: Option<String>,
            /// Selects only failed runs that stopped with this error code. `CODE*` selects all codes that begin so.
            #[schemars(length(min = 1, max = 256))]
            error: Option<String>,
            /// Selects only the run that was started with this `Idempotency-Key`.
            #[schemars(length(min = 1, max = 255))]
            idempotency_key: Option<String>,
            /// Selects only runs created at this time or later.
            #[schemars(with = "Option<InstantGiven>")]
            created_after: Option<Timestamp>,
            /// Selects only runs created before this time.
            #[schemars(with = "Option<InstantGiven>")]
            created_before: Option<Timestamp>,
            /// Selects only runs last changed at this time or later.
            #[schemars(with = "Option<InstantGiven>")]
            updated_after: Option<Timestamp>,
            /// Selects only runs last changed before this time.
            #[schemars(with = "Option<InstantGiven>")]
            updated_before: Option<Timestamp>,
            /// Selects only runs whose shadow column matches: `name=value`, `name^=prefix`, or a bound with `<`, `<=`,
            /// `>` or `>=`. Quote numbers and booleans to compare text.
            #[serde(default, rename = "where")]
            #[schemars(with = "Vec<Condition>")]
            conditions: Vec<String>,
            $($(#[$own])* $field: $kind,)*
        }

        impl $name {
            /// Returns the filter, without the engine's own workflows.
            pub(in crate::api) fn filter(&self) -> Result<RunFilter, Problem> {
                Ok(RunFilter {
                    workflow: self.workflow.as_deref().map(Name::from),
                    without_prefix: Some(OWN.to_owned()),
                    status: self.status.iter().map(|status| Status::from(*status)).collect(),
                    parent: self.parent,
                    root: self.root,
                    id_prefix: self.id_prefix.as_deref().map(id_prefix).transpose()?,
                    version: self.version,
                    definition: self.definition.as_deref().map(definition).transpose()?,
                    error: self.error.clone(),
                    start_key: self.idempotency_key.clone(),
                    created_after: self.created_after,
                    created_before: self.created_before,
                    updated_after: self.updated_after,
                    updated_before: self.updated_before,
                    shadows: self.conditions.iter().map(|text| condition(text)).collect::<Result<_, _>>()?,
                })
            }
        }
    };
}

with_run_filter! {
    /// Filter, order and page of a listing of runs.
    ListRuns {
        /// Order of the listing: `desc` = newest first, `asc` = oldest first. If all conditions on shadow columns are
        /// prefixes and bounds, it is the order of the first condition's column. Default: `desc`; by a column `asc`.
        order: Option<Order>,
        /// True = each row has the shadow columns of the run. Default: false.
        columns: Option<bool>,
        /// Maximum number of rows, 1 to 200. Default: 50.
        #[schemars(range(min = 1, max = 200))]
        limit: Option<u32>,
        /// The `nextCursor` of the previous page.
        cursor: Option<String>,
    }
}

with_run_filter! {
    /// Filter of the runs to count.
    CountRuns {}
}

with_run_filter! {
    /// Conditions that select the runs of a bulk command. A run must match all of them. Without `status`, `retry` selects
    /// failed runs, and `resume` suspended ones.
    BulkFilter {}
}

/// Order of a listing.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum Order {
    Asc,
    Desc,
}

/// Number of runs with a status.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunCount {
    /// Status of the counted runs.
    status: RunStatus,
    /// Number of runs, at most 1,000.
    #[schemars(range(max = 1000))]
    count: u32,
    /// True if there may be more runs: counting stopped at 1,000 runs, or after 5,000 rows in total.
    more: bool,
}

impl From<store::RunCount> for RunCount {
    fn from(count: store::RunCount) -> Self {
        let store::RunCount { status, count, more } = count;
        RunCount { status: status.into(), count, more }
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/runs", "listRuns", Permission::View, "List runs, newest first by default.")
            .notes("All filters can be combined. A page reads at most 5,000 rows: a page that has read so many ends early, so that it may be short or empty and still have a `nextCursor`. If all conditions on shadow columns are prefixes and bounds, the runs are in the order of the first condition's column instead. Runs of the engine's own workflows (`stepwell.…`: schedules, events) are listed only if `workflow` names that workflow.")
            .ok::<Page<RunRow>>("Runs.")
            .links_to("/v1/runs/{run}", "run", "/items/0/id")
            .to(list),
        get("/v1/runs/counts", "countRuns", Permission::View, "Count runs by status, up to 1,000 each.")
            .notes("The filters are those of `listRuns`. A status without runs has the count 0. Counting reads at most 5,000 rows, newest first: `pending`, `suspended` and `failed` runs are found by an index, and the other statuses are counted among the newest runs. `more` says that a count may be greater.")
            .ok::<Page<RunCount>>("Counts in the order of a run's life.")
            .to(count),
    ]
}

async fn list(call: Call<Nothing, ListRuns>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let (filter, columns) = (call.query.filter()?, call.query.columns);
    let listing = Listing::of(call.query.limit, call.query.cursor.clone());
    let order = call.query.order.map(|order| match order {
        Order::Asc => RunOrder::Asc,
        Order::Desc => RunOrder::Desc,
    });
    let query = RunQuery { filter, order, limit: listing.limit(), cursor: listing.cursor() };
    let page = engine.runs(query).await?;
    if columns != Some(true) {
        return Reply::ok(&Page::of(page, RunRow::from));
    }
    let mut columns = engine.columns(page.items.iter().map(|run| run.run).collect()).await?;
    Reply::ok(&Page::of(page, |run| {
        let columns = columns.remove(&run.run).unwrap_or_default();
        RunRow::from(run).with_columns(columns)
    }))
}

async fn count(call: Call<Nothing, CountRuns>) -> Result<Reply, Problem> {
    let counts = call.engine().count_runs(call.query.filter()?).await?;
    Reply::ok(&Page::only(counts.into_iter().map(RunCount::from).collect()))
}

/// Returns a problem with a parameter: its name, and what is wrong with its value.
fn wrong(parameter: &str, detail: &str) -> Problem {
    let detail = format!("The parameter `{parameter}` is invalid: {detail}.");
    Problem::new(StatusCode::BAD_REQUEST, "badParameter", detail).param("parameter", parameter)
}

fn id_prefix(text: &str) -> Result<IdPrefix, Problem> {
    let detail = |error: store::BadIdPrefix| format!("The parameter `idPrefix` is invalid: {error}.");
    text.parse().map_err(|error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail(error)))
}

fn definition(text: &str) -> Result<DefinitionHash, Problem> {
    let detail = || format!("`{text}` is not the hash of a definition, which has 64 hexadecimal digits");
    text.parse().map_err(|_| wrong("definition", &detail()))
}
