//! The HTTP API: a table of [routes](Route), each with what it needs, takes and gives, and nothing beside it.
//!
//! The table is all there is: the router, the contract (OpenAPI) and the test of who may ask what are made from it. A
//! request comes to its handler only through `Server::answer`: who asks, whether they may, how often, and whether what they bring fits.

mod actions;
mod apikeys;
mod audit;
mod auth;
mod call;
mod catalogue;
mod data;
mod doctor;
mod errors;
mod events;
mod expressions;
mod flows;
mod graph;
mod handles;
mod json;
mod keys;
mod kv;
mod links;
mod meta;
mod openapi;
mod pace;
mod page;
mod records;
mod reply;
mod route;
mod runs;
mod schedules;
mod shapes;
mod sse;
mod state;
mod tenants;
mod trace;
mod triggers;
mod upkeep;
mod workflows;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{HeaderName, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use futures_util::FutureExt;
use stepwell::flow::Flows;
use stepwell::store::TenantScope;
use stepwell::{Actor, Engine, EngineError, Permission};
use tokio::sync::watch;

pub use apikeys::{ApiKey, ApiKeys, NewKey};
pub use doctor::{StoreFacts, StoreFactsOf};
pub use openapi::openapi;
pub use route::{Needs, Route};

use crate::routes::flows::{not_allowed, not_found};
use crate::routes::problem::Problem;
use crate::routes::{body, reply as answers};
use call::Asked;
use pace::Pace;
use tenants::Tenants;
use trace::Trace;

/// How the API works. Every field has a default.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// Bytes that a body has at most.
    pub body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How long an answer may take to be made, waiting that was asked for not counted.
    pub answer_timeout: Duration,
    /// The longest that a request may ask to wait.
    pub max_wait: Duration,
    /// Requests per second that a tenant may make on average; 0 = any number.
    pub requests_per_second: u32,
    /// Requests that a tenant may make at once.
    pub burst: u32,
}

impl Default for ApiOptions {
    fn default() -> Self {
        ApiOptions {
            body_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            max_wait: Duration::from_secs(60),
            requests_per_second: 0,
            burst: 1_000,
        }
    }
}

/// Everything that answers requests.
pub struct Server {
    pub(crate) engine: Engine,
    pub(crate) flows: Option<Flows>,
    pub(crate) store_facts: Option<StoreFactsOf>,
    pub(crate) keys: ApiKeys,
    pub(crate) options: ApiOptions,
    tenants: Tenants,
    pace: Pace,
    stopping: watch::Sender<bool>,
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    scope: TenantScope,
    actor: Option<Actor>,
}

impl Caller {
    /// Somebody of a tenant. A program that knows its callers by itself puts this into the request's extensions.
    pub fn new(scope: TenantScope, actor: Actor) -> Self {
        Caller { scope, actor: Some(actor) }
    }

    /// Nobody in particular.
    fn nobody() -> Self {
        Caller { scope: TenantScope::single(), actor: None }
    }

    pub(crate) fn scope(&self) -> TenantScope {
        self.scope
    }

    pub(crate) fn actor(&self) -> Option<&Actor> {
        self.actor.as_ref()
    }

    fn may(&self, needs: Needs) -> Result<(), Problem> {
        let has = |permission| self.actor.as_ref().is_some_and(|actor| actor.may(permission));
        let lacks = match needs {
            Needs::Nothing => None,
            Needs::Credential => return if self.actor.is_some() { Ok(()) } else { Err(unknown()) },
            Needs::Permission(permission) => (!has(permission)).then_some(permission),
            Needs::Host if self.scope.tenant() != TenantScope::single().tenant() => {
                let detail = "Only administrators of the server's own tenant may do this.";
                return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
            }
            Needs::Host => (!has(Permission::Admin)).then_some(Permission::Admin),
        };
        let Some(permission) = lacks else { return Ok(()) };
        let detail = format!("This needs the permission `{permission}`.");
        Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", permission.as_str()))
    }
}

/// Nobody knows who asks.
fn unknown() -> Problem {
    let detail = "This needs a valid credential: `Authorization: Bearer …` with an API key or a token.";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// Every route there is.
pub fn routes() -> Vec<Route> {
    let mut all = meta::routes();
    all.extend(runs::routes());
    all.extend(kv::routes());
    all.extend(apikeys::routes());
    all.extend(actions::routes());
    all.extend(catalogue::routes());
    all.extend(events::routes());
    all.extend(expressions::routes());
    all.extend(schedules::routes());
    all.extend(triggers::routes());
    all.extend(workflows::routes());
    all.extend(audit::routes());
    all.extend(data::routes());
    all.extend(doctor::routes());
    all.extend(flows::routes());
    all.extend(handles::routes());
    all.extend(keys::routes());
    all.extend(links::routes());
    all.extend(state::routes());
    all.extend(tenants::routes());
    all.extend(upkeep::routes());
    all
}

impl Server {
    /// A server of an engine.
    pub fn new(engine: Engine, options: ApiOptions) -> Self {
        let pace = Pace::new(options.requests_per_second, options.burst);
        let (keys, tenants) = (ApiKeys::new(engine.clone()), Tenants::new(engine.clone()));
        Server {
            engine,
            flows: None,
            store_facts: None,
            keys,
            options,
            tenants,
            pace,
            stopping: watch::Sender::new(false),
        }
    }

    /// Whoever waits for something is answered with how it stands, and streams end: the server is about to stop.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when the server is about to stop.
    pub(crate) async fn stopping(&self) {
        // It cannot go away while somebody holds the server.
        let _ = self.stopping.subscribe().wait_for(|is_stopping| *is_stopping).await;
    }

    /// Somebody has a credential with which the server lets them in.
    pub async fn has_credentials(&self) -> Result<bool, EngineError> {
        Ok(!self.keys.list(TenantScope::single(), 1, None).await?.items.is_empty())
    }

    /// It has flows too.
    #[must_use]
    pub fn with_flows(mut self, flows: Flows) -> Self {
        self.flows = Some(flows);
        self
    }

    /// It can say how its store is doing.
    #[must_use]
    pub fn with_store_facts(mut self, facts: StoreFactsOf) -> Self {
        self.store_facts = Some(facts);
        self
    }

    /// Its API keys.
    pub fn keys(&self) -> &ApiKeys {
        &self.keys
    }

    /// The engine of whoever asks, acting as them.
    pub(crate) fn engine_of(&self, caller: &Caller) -> Engine {
        let engine = self.engine.for_tenant(caller.scope);
        match &caller.actor {
            Some(actor) => engine.acting(actor.clone()),
            // Nobody may do nothing.
            None => engine.acting(Actor::new("nobody", [])),
        }
    }

    /// The router: all routes, and a problem for whatever is none.
    pub fn router(self: Arc<Self>) -> Router {
        let mut paths: Vec<(&'static str, MethodRouter)> = Vec::new();
        for route in routes() {
            let filter = MethodFilter::try_from(route.method.clone())
                .unwrap_or_else(|_| unreachable!("routes have the usual methods"));
            let (server, route) = (self.clone(), Arc::new(route));
            let path = route.path;
            let handler = move |request: Request| {
                let (server, route) = (server.clone(), route.clone());
                async move { server.answer(&route, request).await }
            };
            match paths.iter_mut().find(|(known, _)| *known == path) {
                Some((_, methods)) => *methods = std::mem::take(methods).on(filter, handler),
                None => paths.push((path, on(filter, handler))),
            }
        }
        let router = paths.into_iter().fold(Router::new(), |router, (path, on)| router.route(path, on));
        router
            .method_not_allowed_fallback(async |request: Request| {
                finished(Err(not_allowed()), &Trace::of(request.headers()))
            })
            .fallback(async |request: Request| finished(Err(not_found()), &Trace::of(request.headers())))
    }

    /// Answers a request to a route, whatever happens.
    async fn answer(self: &Arc<Self>, route: &Route, request: Request) -> Response {
        let (trace, began) = (Trace::of(request.headers()), std::time::Instant::now());
        let answered = AssertUnwindSafe(self.answered(route, request)).catch_unwind().await;
        let answered = answered.unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why =
                why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text");
            Err(Problem::internal(&format!("{}: {why}", route.id)))
        });
        let response = finished(answered, &trace);
        let (status, us) = (response.status().as_u16(), began.elapsed().as_micros());
        tracing::debug!(route = route.id, status, us, request = %trace.request(), "answered");
        response
    }

    async fn answered(self: &Arc<Self>, route: &Route, request: Request) -> Result<Response, Problem> {
        let (mut head, body) = request.into_parts();
        let caller = match route.needs {
            Needs::Nothing => Caller::nobody(),
            _ => match head.extensions.remove::<Caller>() {
                Some(caller) => caller,
                None => self.caller(&head.headers).await?.ok_or_else(unknown)?,
            },
        };
        let tenant = caller.scope.tenant();
        let rate = match route.needs {
            Needs::Nothing => None,
            _ => self.tenants.admit(tenant).await?,
        };
        caller.may(route.needs)?;
        if route.needs != Needs::Nothing {
            self.pace.admit(tenant, rate)?;
        }
        let path = RawPathParams::from_request_parts(&mut head, &()).await;
        let path = path.map_err(|_| Problem::bad("badParameter", "The path is not UTF-8."))?;
        let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let body = match route.takes.has_body {
            true => self.body(route, body).await?,
            false => axum::body::Bytes::new(),
        };
        let query = head.uri.query().map(str::to_owned);
        let asked = Asked { server: self.clone(), caller, path, query, headers: head.headers, body };
        Ok(route.answer(asked).await?.into_response())
    }

    async fn body(&self, route: &Route, body: axum::body::Body) -> Result<axum::body::Bytes, Problem> {
        let limit = route.body_bytes.unwrap_or(self.options.body_bytes);
        let read = tokio::time::timeout(self.options.body_timeout, body::read(body, limit)).await;
        read.unwrap_or_else(|_| {
            let detail = "The body took too long to arrive.";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "bodyTimeout", detail))
        })
    }

    /// Who asks, if their credential is good.
    async fn caller(&self, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        let Some(credential) = auth::bearer(headers) else { return Ok(None) };
        self.keys.caller(credential).await
    }
}

/// Headers that every answer has: nobody keeps it, sniffs in it, frames it, or learns from it where somebody was.
const GUARDS: [(HeaderName, &str); 5] = [
    (axum::http::header::CACHE_CONTROL, "no-store"),
    (axum::http::header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (axum::http::header::X_FRAME_OPTIONS, "DENY"),
    (axum::http::header::REFERRER_POLICY, "no-referrer"),
    (axum::http::header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
];

fn finished(answered: Result<Response, Problem>, trace: &Trace) -> Response {
    let mut response = answered.unwrap_or_else(|problem| {
        let mut response = answers::traced_problem(&problem, trace.id());
        if problem.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    });
    let headers = response.headers_mut();
    for (name, value) in GUARDS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    trace.mark(headers);
    response
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}
