//! Routes of handles, which are stored flow states and answer links: list, revoke and clean them up.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use stepwell::Permission;
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::flow::Revoke;
use stepwell::store::{HandleKind, HandleQuery, HandleRow};

use super::call::{Call, Json, Nothing, OptionalBody};
use super::conditions::{ColumnValues, column_values, condition};
use super::flows::flow_problem;
use super::reply::Reply;
use super::route::{Route, get, post};
use super::shapes::{Condition, Id, Instant, Listing, Page, Span, span};
use crate::routes::problem::Problem;

/// Filter and page of a listing of handles.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListHandles {
    /// Lists only handles of this workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: Option<String>,
    /// Lists only handles of this flow, and answer links to this run.
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Lists only handles of flows that this actor started.
    #[schemars(length(min = 1, max = 256))]
    created_by: Option<String>,
    /// Lists only flows whose shadow column matches: `name=value`, `name^=prefix`, or a bound with `<`, `<=`, `>` or `>=`.
    /// Quote numbers and booleans to compare text.
    #[serde(default, rename = "where")]
    #[schemars(with = "Vec<Condition>")]
    conditions: Vec<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A handle. Its secret is not stored.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct HandleView {
    /// Hash of the handle's secret.
    handle: String,
    /// `flow` = the state of a flow is stored; `link` = an answer link to a wait of a run.
    kind: HandlePurpose,
    /// Id of the flow or the run, a UUID.
    #[schemars(with = "Id")]
    run: RunId,
    /// Name of the workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Time at which the handle expires; absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
    /// True while a request answers it.
    reserved: bool,
    /// Time at which the pending message is sent; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deliver_at: Option<Timestamp>,
    /// Time at which the flow got its first handle.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Actor that started the flow; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
    /// Time at which the handle was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// Actor that last wrote the handle; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_by: Option<String>,
    /// Values of the shadow columns of the flow or run by name; columns without a value are absent.
    columns: ColumnValues,
}

/// Kind of a handle.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum HandlePurpose {
    Flow,
    Link,
}

/// Request to revoke tokens.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum RevokeHandles {
    /// Id of a flow or run: its tokens and its answer links are revoked.
    Flow(#[schemars(with = "Id")] RunId),
    /// Actor: the tokens of the flows that it started are revoked.
    Actor(#[schemars(length(min = 1, max = 256))] String),
}

/// Number of deleted handles.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct HandlesRemoved {
    /// Number of handles that were deleted.
    count: u64,
}

/// Options of a cleanup of handles.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CleanUpHandles {
    /// Time for which handles are kept after they expire; `never` deletes none. Default: `0s`.
    #[schemars(with = "Option<Retention>")]
    retention: Option<String>,
}

/// Schema of a duration or `never`.
struct Retention;

impl JsonSchema for Retention {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Retention".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [Span::json_schema(schemas), { "const": "never" }] })
    }
}

impl From<HandleRow> for HandleView {
    fn from(row: HandleRow) -> Self {
        HandleView {
            handle: row.handle.to_string(),
            kind: match row.kind {
                HandleKind::Flow => HandlePurpose::Flow,
                HandleKind::Link => HandlePurpose::Link,
            },
            run: row.run,
            workflow: row.workflow,
            expires_at: row.expires_at,
            reserved: row.owner.is_some(),
            deliver_at: row.deliver_at,
            created_at: row.created_at,
            created_by: row.created_by,
            updated_at: row.updated_at,
            updated_by: row.updated_by,
            columns: ColumnValues::new(),
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/handles", "listHandles", Permission::View, "List handles: stored flow states and answer links to runs.")
            .notes("The handles are in the order of their flows. If all conditions on shadow columns are prefixes and bounds, they are in the order of the first condition's column instead.")
            .ok::<Page<HandleView>>("Handles, without their secrets.")
            .to(list),
        post("/v1/handles/revoke", "revokeHandles", admin, "Revoke the tokens of a flow or run, or of all flows that an actor started.")
            .notes("Deletes the matching handles. Sealed tokens of single-use strategies are refused too. Other sealed tokens stay valid until they expire or their key is removed.")
            .ok::<HandlesRemoved>("Number of deleted handles.")
            .to(revoke),
        post("/v1/handles/cleanup", "cleanUpHandles", admin, "Delete expired handles.")
            .ok::<HandlesRemoved>("Number of deleted handles.")
            .to(clean_up),
    ]
}

async fn list(call: Call<Nothing, ListHandles>) -> Result<Reply, Problem> {
    let (flows, engine) = (call.server.flows_of(&call.caller)?, call.engine());
    let ListHandles { workflow, run, created_by, conditions, limit, cursor } = call.query;
    let shadows = conditions.iter().map(|text| condition(text)).collect::<Result<_, _>>()?;
    let listing = Listing::of(limit, cursor);
    let (limit, cursor) = (listing.limit(), listing.cursor());
    let query = HandleQuery { workflow: workflow.map(Name::from), run, created_by, shadows, limit, cursor };
    let page = flows.handles(query).await.map_err(flow_problem)?;
    let columns = engine.columns(page.items.iter().map(|row| row.run).collect()).await?;
    Reply::ok(&Page::of(page, |row| {
        let columns = columns.get(&row.run).cloned().unwrap_or_default();
        HandleView { columns: column_values(columns), ..HandleView::from(row) }
    }))
}

async fn revoke(call: Call<Nothing, Nothing, Json<RevokeHandles>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let which = match call.body.0 {
        RevokeHandles::Flow(flow) => Revoke::Flow(flow),
        RevokeHandles::Actor(actor) => Revoke::Actor(actor),
    };
    Reply::ok(&HandlesRemoved { count: flows.revoke(which).await.map_err(flow_problem)? })
}

async fn clean_up(call: Call<Nothing, Nothing, OptionalBody<CleanUpHandles>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let retention_ms = match call.body.0.retention.as_deref() {
        None => Some(0),
        Some("never") => None,
        Some(text) => Some(u64::try_from(span(text)?.as_millis()).unwrap_or(u64::MAX)),
    };
    Reply::ok(&HandlesRemoved { count: flows.cleanup(retention_ms).await.map_err(flow_problem)? })
}
