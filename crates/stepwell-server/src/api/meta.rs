//! Routes of the server itself: its home page, liveness, readiness, metrics, version, OpenAPI contract and the caller's identity.

use std::sync::OnceLock;
use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::openapi::openapi;
use super::page::PAGE;
use super::reply::Reply;
use super::route::{Needs, Route, get};
use crate::routes::link::takes_pages;
use crate::routes::problem::Problem;
use crate::telemetry::TEXT;

/// Content type of pages.
const HTML: &str = "text/html; charset=utf-8";

/// Maximum time for the store to answer a readiness check. After it, `/readyz` answers 503.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// Result of a health check that succeeded.
#[derive(Debug, Serialize, JsonSchema)]
struct Health {
    /// Always `ok`; a failed check is a problem instead.
    status: &'static str,
}

/// Name and version of the server.
#[derive(Debug, Serialize, JsonSchema)]
struct Version {
    /// Always the text `stepwell`.
    name: &'static str,
    /// Version of the server's package, such as `1.2.3`.
    version: &'static str,
}

/// Name and version of the server, and the paths to go on from here.
#[derive(Debug, Serialize, JsonSchema)]
struct Home {
    /// Always the text `stepwell`.
    name: &'static str,
    /// Version of the server's package, such as `1.2.3`.
    version: &'static str,
    /// Paths on this server, relative to this one.
    links: HomeLinks,
}

/// Paths of the server.
#[derive(Debug, Serialize, JsonSchema)]
struct HomeLinks {
    /// Page to read the contract and try it out.
    docs: &'static str,
    /// The OpenAPI contract of the API.
    openapi: &'static str,
    /// Check that the process is alive.
    live: &'static str,
    /// Check that the store answers.
    ready: &'static str,
}

/// Identity and permissions of the caller.
#[derive(Debug, Serialize, JsonSchema)]
struct WhoAmI {
    /// Id of the caller's tenant, a UUID.
    tenant: String,
    /// Actor id that the audit trail records for the caller's changes.
    actor: String,
    /// Names of the permissions granted to the caller, such as `workflow:view`.
    permissions: Vec<String>,
    /// Roles of the caller, which waits name as `role:NAME`.
    roles: Vec<String>,
    /// Id of the user, which waits name as `user:ID`; absent if the credential belongs to no user.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/", "home", Needs::Nothing, "Show the name and version of the server, and where to go on.")
            .notes("A browser gets a page, other clients get JSON.")
            .free()
            .ok::<Home>("Name, version and paths.")
            .gives_text(HTML, "The same as a page, for clients that accept `text/html`.")
            .to(home),
        get("/livez", "live", Needs::Nothing, "Check that the process is alive.")
            .free()
            .ok::<Health>("The process is alive.")
            .to(live),
        get(
            "/readyz",
            "ready",
            Needs::Nothing,
            "Check that the server is ready. A 503 means that the store does not answer.",
        )
        .ok::<Health>("The server is ready.")
        .to(ready),
        get("/metrics", "metrics", Needs::HostView, "Get the metrics in the Prometheus text format.")
            .gives_text(TEXT, "Current values of all metrics.")
            .to(metrics),
        get("/v1/version", "version", Needs::Nothing, "Show the name and version of the server.")
            .ok::<Version>("Name and version.")
            .to(version),
        get("/v1/openapi.json", "contract", Needs::Nothing, "Get this OpenAPI contract.")
            .ok::<serde_json::Map<String, serde_json::Value>>("The contract, in OpenAPI 3.1.")
            .to(contract),
        get("/docs", "docs", Needs::Nothing, "Show a page to read this contract and try it out.")
            .gives_text(HTML, "The page.")
            .to(docs),
        get("/v1/whoami", "whoami", Needs::Credential, "Show the caller's identity and permissions.")
            .ok::<WhoAmI>("The caller's identity.")
            .to(whoami),
    ]
}

async fn home(call: Call) -> Result<Reply, Problem> {
    let version = env!("CARGO_PKG_VERSION");
    if takes_pages(&call.headers) {
        let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
        let page = include_str!("home.html").replace("{version}", version);
        return Ok(Reply::text(HTML, page)
            .with(axum::http::header::CONTENT_SECURITY_POLICY, policy)
            .with(axum::http::header::VARY, "accept"));
    }
    let links = HomeLinks { docs: "docs", openapi: "v1/openapi.json", live: "livez", ready: "readyz" };
    Ok(Reply::ok(&Home { name: "stepwell", version, links })?.with(axum::http::header::VARY, "accept"))
}

async fn live(_: Call) -> Result<Reply, Problem> {
    Reply::ok(&Health { status: "ok" })
}

async fn ready(call: Call) -> Result<Reply, Problem> {
    let asked = call.server.engine.store().due(Vec::new());
    match tokio::time::timeout(READY_WITHIN, asked).await {
        Ok(Ok(_)) => Reply::ok(&Health { status: "ok" }),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let problem = Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "The store does not answer. Retry later.",
            );
            Err(problem.later(5))
        }
    }
}

async fn metrics(call: Call) -> Result<Reply, Problem> {
    Ok(Reply::text(TEXT, call.server.telemetry.text(&call.server.engine).await))
}

async fn version(_: Call) -> Result<Reply, Problem> {
    Reply::ok(&Version { name: "stepwell", version: env!("CARGO_PKG_VERSION") })
}

async fn contract(_: Call) -> Result<Reply, Problem> {
    static CONTRACT: OnceLock<serde_json::Value> = OnceLock::new();
    Reply::ok(CONTRACT.get_or_init(openapi))
}

async fn docs(_: Call) -> Result<Reply, Problem> {
    let policy = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    Ok(Reply::text(HTML, PAGE).with(axum::http::header::CONTENT_SECURITY_POLICY, policy))
}

async fn whoami(call: Call) -> Result<Reply, Problem> {
    let actor = call.caller.actor();
    let permissions = actor.iter().flat_map(|actor| actor.grants.words());
    Reply::ok(&WhoAmI {
        tenant: call.caller.scope().tenant().to_string(),
        actor: actor.map(|actor| actor.id.clone()).unwrap_or_default(),
        permissions: permissions.collect(),
        roles: actor.iter().flat_map(|actor| actor.roles.iter().cloned()).collect(),
        user: actor.and_then(|actor| actor.user.clone()),
    })
}
