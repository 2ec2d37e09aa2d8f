//! Handles: where flows rest and links to runs, listed without their secrets, revoked and cleaned up.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use stepwell::Permission;
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::flow::Revoke;
use stepwell::store::{HandleKind, HandleQuery, HandleRow};

use super::call::{Call, Json, Nothing, Perhaps};
use super::flows::told;
use super::reply::Reply;
use super::route::{Route, get, post};
use super::runs::condition;
use super::shapes::{Condition, Id, Instant, Listing, Page, Span, span};
use crate::routes::problem::Problem;

/// Which handles.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListHandles {
    /// Of this workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: Option<String>,
    /// Of this flow, or leading to this run.
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Begun by them.
    #[schemars(length(min = 1, max = 256))]
    created_by: Option<String>,
    /// Whose shadow column holds this: `name=value`. Numbers, `true` and `false` are meant as such, and as texts in quotes.
    #[serde(default, rename = "where")]
    #[schemars(with = "Vec<Condition>")]
    columns: Vec<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A handle; its secret is nowhere.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct HandleShown {
    /// The hash of its secret.
    handle: String,
    /// A flow rests there, or it leads to a wait of a run.
    kind: HandleFor,
    /// The flow, or the run.
    #[schemars(with = "Id")]
    run: RunId,
    /// The workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// When it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
    /// It is being answered right now.
    reserved: bool,
    /// When what is to be sent out is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    deliver_at: Option<Timestamp>,
    /// When the flow got its first handle.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Who began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
    /// When it was last put.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// Who put it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_by: Option<String>,
}

/// What a handle is for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum HandleFor {
    Flow,
    Link,
}

/// Which tokens are to be good no longer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum RevokeHandles {
    /// Those of a flow, and those that lead to a run.
    Flow(#[schemars(with = "Id")] RunId),
    /// Those of flows that somebody began.
    Actor(#[schemars(length(min = 1, max = 256))] String),
}

/// Handles that are gone.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct HandlesGone {
    /// How many.
    count: u64,
}

/// What is cleaned up.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CleanUpHandles {
    /// For how long handles are kept after they are over; not at all unless this says otherwise. `never` deletes none.
    #[schemars(with = "Option<Retention>")]
    retention: Option<String>,
}

/// A duration or `never`, in schemas.
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

impl From<HandleRow> for HandleShown {
    fn from(row: HandleRow) -> Self {
        HandleShown {
            handle: row.handle.to_string(),
            kind: match row.kind {
                HandleKind::Flow => HandleFor::Flow,
                HandleKind::Link => HandleFor::Link,
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
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/handles", "listHandles", Permission::View, "Lists where flows rest, and links to runs.")
            .ok::<Page<HandleShown>>("Handles, without their secrets.")
            .to(list),
        post("/v1/handles/revoke", "revokeHandles", admin, "Makes tokens good no longer: those of a flow or run, or of all flows that somebody began.")
            .notes("Sealed tokens of strategies whose tokens are used once are refused too; others are good until they expire or their key is gone.")
            .ok::<HandlesGone>("How many handles there were.")
            .to(revoke),
        post("/v1/handles/cleanup", "cleanUpHandles", admin, "Deletes handles that are over.")
            .ok::<HandlesGone>("How many there were.")
            .to(clean_up),
    ]
}

async fn list(call: Call<Nothing, ListHandles>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let ListHandles { workflow, run, created_by, columns, limit, cursor } = call.query;
    let shadows = columns.iter().map(|column| condition(column)).collect::<Result<_, _>>()?;
    let listing = Listing::of(limit, cursor);
    let (limit, cursor) = (listing.limit(), listing.cursor());
    let query = HandleQuery { workflow: workflow.map(Name::from), run, created_by, shadows, limit, cursor };
    Reply::ok(&Page::of(flows.handles(query).await.map_err(told)?, HandleShown::from))
}

async fn revoke(call: Call<Nothing, Nothing, Json<RevokeHandles>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let which = match call.body.0 {
        RevokeHandles::Flow(flow) => Revoke::Flow(flow),
        RevokeHandles::Actor(actor) => Revoke::Actor(actor),
    };
    Reply::ok(&HandlesGone { count: flows.revoke(which).await.map_err(told)? })
}

async fn clean_up(call: Call<Nothing, Nothing, Perhaps<CleanUpHandles>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let retention_ms = match call.body.0.retention.as_deref() {
        None => Some(0),
        Some("never") => None,
        Some(text) => Some(u64::try_from(span(text)?.as_millis()).unwrap_or(u64::MAX)),
    };
    Reply::ok(&HandlesGone { count: flows.cleanup(retention_ms).await.map_err(told)? })
}
