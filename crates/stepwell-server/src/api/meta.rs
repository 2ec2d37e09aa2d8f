//! The server itself: whether it lives and is ready, its version, its contract, and who asks.

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
use crate::routes::problem::Problem;
use crate::telemetry::TEXT;

/// How long the store may take to answer before the server counts as not ready.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The server is well.
#[derive(Debug, Serialize, JsonSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
}

/// What the server is.
#[derive(Debug, Serialize, JsonSchema)]
struct Version {
    /// `stepwell`.
    name: &'static str,
    /// Its version.
    version: &'static str,
}

/// Who asks.
#[derive(Debug, Serialize, JsonSchema)]
struct WhoAmI {
    /// The tenant.
    tenant: String,
    /// By what name things are done.
    actor: String,
    /// What may be done.
    permissions: Vec<String>,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/livez", "live", Needs::Nothing, "Says that the process lives.")
            .free()
            .ok::<Health>("It lives.")
            .to(live),
        get(
            "/readyz",
            "ready",
            Needs::Nothing,
            "Says whether the server can do its work: 503 if the store does not answer.",
        )
        .ok::<Health>("It can.")
        .to(ready),
        get("/metrics", "metrics", Needs::HostView, "What is counted, in the text format of Prometheus.")
            .gives_text(TEXT, "Everything that is counted, as it is now.")
            .to(metrics),
        get("/v1/version", "version", Needs::Nothing, "Says what the server is.")
            .ok::<Version>("What it is.")
            .to(version),
        get("/v1/openapi.json", "contract", Needs::Nothing, "This contract.")
            .ok::<serde_json::Map<String, serde_json::Value>>("OpenAPI 3.1.")
            .to(contract),
        get("/docs", "docs", Needs::Nothing, "A page to read this contract and to try it out.")
            .gives_text("text/html; charset=utf-8", "The page.")
            .to(docs),
        get("/v1/whoami", "whoami", Needs::Credential, "Says who asks, and what they may do.")
            .ok::<WhoAmI>("Who asks.")
            .to(whoami),
    ]
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
            let problem =
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The store does not answer.");
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
    Ok(Reply::text("text/html; charset=utf-8", PAGE)
        .with(axum::http::header::CONTENT_SECURITY_POLICY, policy))
}

async fn whoami(call: Call) -> Result<Reply, Problem> {
    let actor = call.caller.actor();
    let permissions = actor.iter().flat_map(|actor| actor.grants.words());
    Reply::ok(&WhoAmI {
        tenant: call.caller.scope().tenant().to_string(),
        actor: actor.map(|actor| actor.id.clone()).unwrap_or_default(),
        permissions: permissions.collect(),
    })
}
