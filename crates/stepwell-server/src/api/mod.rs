//! The HTTP API: a table of [routes](Route). Each route declares its permission, its parameters and its responses.
//!
//! The router, the OpenAPI contract and the permission test are generated from this table. Every request passes
//! through `Server::answer`. It checks the credential, the permission, the rate limit and the input before the
//! handler runs.

mod actions;
mod admission;
mod answer_links;
mod apikeys;
mod audit;
mod auth;
mod auth_throttle;
mod bulk;
mod call;
mod catalogue;
mod conditions;
mod data;
mod doctor;
mod errors;
mod events;
mod expressions;
mod flows;
mod graph;
mod handles;
mod in_progress;
mod json;
mod keys;
mod kv;
mod links;
mod maintenance;
mod meta;
mod oidc;
mod openapi;
mod page;
mod pauses;
mod quota;
mod rate_limit;
mod records;
mod reply;
mod route;
mod runs;
mod schedules;
mod shapes;
mod sse;
mod state;
mod tasks;
mod tenants;
mod trace;
mod triggers;
mod waits;
mod workflows;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::header::{HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use futures_util::FutureExt;
use stepwell::flow::Flows;
use stepwell::store::{TenantId, TenantScope};
use stepwell::{Actor, Engine, EngineError, Permission};
use tokio::sync::watch;

pub use apikeys::{ApiKey, ApiKeys, NewKey};
pub use doctor::{StoreInfo, StoreInfoSource};
pub use oidc::{Algorithm, IssuerOptions, KeySource, TenantOf};
pub use openapi::openapi;
pub use quota::Quota;
pub use route::{Needs, Route};

use crate::outlets::SetupError;
use crate::routes::flows::{FlowRoutes, not_allowed, not_found};
use crate::routes::problem::Problem;
use crate::routes::{body, reply as answers};
use crate::serve::Peer;
use crate::telemetry::{CurrentRequest, Telemetry, UNMATCHED_ROUTE};
use admission::Admitted;
use auth_throttle::AuthThrottle;
use call::RequestContext;
use in_progress::RequestsInProgress;
use oidc::{Issuers, TenantClaim, TokenError, VerifiedToken};
use quota::BelowLimitCache;
use rate_limit::{AnonymousRateLimiter, TenantRateLimiter};
use tenants::Tenants;
pub(crate) use trace::Trace;

/// Options of the HTTP API. Every field has a default.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// Maximum size of a request body, in bytes. Default: 1 MiB.
    pub body_bytes: usize,
    /// Maximum time for a request body to arrive. Default: 30 s.
    pub body_timeout: Duration,
    /// Maximum time to produce a response, not counting a requested wait. Default: 60 s.
    pub answer_timeout: Duration,
    /// Longest wait that a request can ask for; longer ones are shortened to this. Default: 60 s.
    pub max_wait: Duration,
    /// Average requests per second allowed for each tenant. 0 = unlimited, which is the default.
    pub requests_per_second: u32,
    /// Requests that a tenant may send in one burst. Default: 1,000.
    pub burst: u32,
    /// Average requests per second without a credential, for each address and for each tenant they name. 0 =
    /// unlimited. Default: 200.
    pub anonymous_requests_per_second: u32,
    /// Failed authentication attempts allowed from one address per minute. 0 = unlimited. Default: 60.
    pub auth_failures_per_minute: u32,
    /// Trusted proxies: `X-Forwarded-For` is read only if the request comes from one of these addresses.
    pub proxies: Vec<IpAddr>,
    /// Quota of tenants that have no quota of their own. Default: unlimited.
    pub quota: Quota,
    /// Allows access to the metrics without a credential. Default: false.
    pub metrics_are_public: bool,
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
            anonymous_requests_per_second: 200,
            auth_failures_per_minute: 60,
            proxies: Vec::new(),
            quota: Quota::default(),
            metrics_are_public: false,
        }
    }
}

/// The HTTP server: the engine, the credentials, the limits and the telemetry behind all routes.
pub struct Server {
    pub(crate) engine: Engine,
    pub(crate) flows: Option<Flows>,
    pub(crate) flow_routes: FlowRoutes,
    pub(crate) store_info: Option<StoreInfoSource>,
    pub(crate) keys: ApiKeys,
    pub(crate) options: ApiOptions,
    issuers: Issuers,
    tenants: Tenants,
    rate_limit: TenantRateLimiter,
    anonymous_rate_limit: AnonymousRateLimiter,
    auth_throttle: AuthThrottle,
    underway: RequestsInProgress,
    below_limit: BelowLimitCache,
    stopping: watch::Sender<bool>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The authenticated caller of a request: a tenant and an actor.
#[derive(Debug, Clone)]
pub struct Caller {
    scope: TenantScope,
    actor: Option<Actor>,
}

impl Caller {
    /// Creates the caller for an actor of a tenant. A program with its own authentication puts it into the request's
    /// extensions.
    pub fn new(scope: TenantScope, actor: Actor) -> Self {
        Caller { scope, actor: Some(actor) }
    }

    /// Returns the anonymous caller of routes that need no credential. It has no permissions.
    fn anonymous() -> Self {
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
            Needs::Credential => return if self.actor.is_some() { Ok(()) } else { Err(auth::unknown()) },
            Needs::Permission(permission) => (!has(permission)).then_some(permission),
            Needs::Any(all) => all.first().copied().filter(|_| !all.iter().any(|one| has(*one))),
            Needs::Worker if self.actor.as_ref().is_some_and(|actor| actor.grants.is_worker()) => None,
            Needs::Worker => {
                let detail = "This needs the permission `worker:ACTION` for the task's action.";
                return Err(
                    Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", "worker:*")
                );
            }
            Needs::Host if self.scope.tenant() != TenantScope::single().tenant() => {
                let detail = "Only administrators of the server's own tenant may do this.";
                return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
            }
            Needs::HostView if self.scope.tenant() != TenantScope::single().tenant() => {
                let detail = "Only callers of the server's own tenant may see this.";
                return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
            }
            Needs::Host => (!has(Permission::Admin)).then_some(Permission::Admin),
            Needs::HostView => (!has(Permission::View)).then_some(Permission::View),
        };
        let Some(permission) = lacks else { return Ok(()) };
        let detail = format!("This needs the permission `{permission}`.");
        Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", permission.as_str()))
    }
}

/// Returns all routes of the API.
pub fn routes() -> Vec<Route> {
    let mut all = meta::routes();
    all.extend(runs::routes());
    all.extend(bulk::routes());
    all.extend(answer_links::routes());
    all.extend(kv::routes());
    all.extend(apikeys::routes());
    all.extend(actions::routes());
    all.extend(catalogue::routes());
    all.extend(events::routes());
    all.extend(expressions::routes());
    all.extend(schedules::routes());
    all.extend(triggers::routes());
    all.extend(pauses::routes());
    all.extend(workflows::routes());
    all.extend(audit::routes());
    all.extend(data::routes());
    all.extend(doctor::routes());
    all.extend(flows::routes());
    all.extend(handles::routes());
    all.extend(keys::routes());
    all.extend(links::routes());
    all.extend(state::routes());
    all.extend(tasks::routes());
    all.extend(tenants::routes());
    all.extend(waits::routes());
    all.extend(maintenance::routes());
    all
}

impl Server {
    /// Creates a server for an engine, without flows and without token issuers.
    pub fn new(engine: Engine, options: ApiOptions) -> Self {
        Server {
            keys: ApiKeys::new(engine.clone()),
            tenants: Tenants::new(engine.clone()),
            rate_limit: TenantRateLimiter::new(options.requests_per_second, options.burst),
            anonymous_rate_limit: AnonymousRateLimiter::new(options.anonymous_requests_per_second),
            auth_throttle: AuthThrottle::new(options.auth_failures_per_minute),
            flows: None,
            flow_routes: FlowRoutes::new().ignore_bearer(),
            store_info: None,
            issuers: Issuers::default(),
            underway: RequestsInProgress::default(),
            below_limit: BelowLimitCache::default(),
            stopping: watch::Sender::new(false),
            telemetry: Arc::new(Telemetry::new()),
            engine,
            options,
        }
    }

    /// Accepts tokens of these issuers, in addition to API keys.
    pub fn with_issuers(mut self, issuers: Vec<IssuerOptions>) -> Result<Self, SetupError> {
        self.issuers = Issuers::new(issuers)?;
        Ok(self)
    }

    /// Uses this telemetry for metrics and traces. Register it as an observer of the engine too
    /// ([`Builder::observer`](stepwell::Builder::observer)).
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Arc<Telemetry>) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// Returns the telemetry that collects metrics and traces.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Announces shutdown: requests that wait are answered with the current state, and streams end.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when the server is about to stop.
    pub(crate) async fn stopping(&self) {
        // `wait_for` fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.stopping.subscribe().wait_for(|is_stopping| *is_stopping).await;
    }

    /// Returns true if a token issuer is configured or the server's own tenant has an API key.
    pub async fn has_credentials(&self) -> Result<bool, EngineError> {
        Ok(!self.issuers.is_empty()
            || !self.keys.list(TenantScope::single(), 1, None).await?.items.is_empty())
    }

    /// Enables the routes of flows.
    #[must_use]
    pub fn with_flows(mut self, flows: Flows) -> Self {
        self.flows = Some(flows);
        self
    }

    /// Sets the transport of tokens and the base of links. `Authorization` contains API credentials, so it is never read
    /// as a token.
    #[must_use]
    pub fn with_flow_routes(mut self, routes: FlowRoutes) -> Self {
        self.flow_routes = routes.ignore_bearer();
        self
    }

    /// Adds a source of data about the store, for the doctor.
    #[must_use]
    pub fn with_store_info(mut self, source: StoreInfoSource) -> Self {
        self.store_info = Some(source);
        self
    }

    /// Returns the store of API keys.
    pub fn keys(&self) -> &ApiKeys {
        &self.keys
    }

    /// Returns the engine for the caller's tenant, acting as the caller.
    pub(crate) fn engine_of(&self, caller: &Caller) -> Engine {
        let engine = self.engine.for_tenant(caller.scope);
        match &caller.actor {
            Some(actor) => engine.acting(actor.clone()),
            // `None` would have every permission, so an anonymous caller gets an actor without permissions.
            None => engine.acting(Actor::new("nobody", [])),
        }
    }

    /// Builds the router of all routes. Unknown paths and methods are answered with a problem.
    pub fn router(self: Arc<Self>) -> Router {
        let mut paths: Vec<(&'static str, MethodRouter)> = Vec::new();
        for route in routes() {
            let filter = MethodFilter::try_from(route.method.clone())
                .unwrap_or_else(|_| unreachable!("every route has a standard HTTP method"));
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
        let lost = self.clone();
        router
            .method_not_allowed_fallback(async move |request: Request| self.lost(&request, not_allowed()))
            .fallback(async move |request: Request| lost.lost(&request, not_found()))
    }

    /// Answers a request that matches no route.
    fn lost(&self, request: &Request, problem: Problem) -> Response {
        let (asking, began) = (self.asking(request.headers()), std::time::Instant::now());
        let response = finished(Err(problem), &asking.trace);
        self.answered_with(&asking, None, request.method().as_str(), response.status(), began.elapsed());
        response
    }

    /// Reads the request's id and trace from its headers and decides if the trace is sampled.
    fn asking(&self, headers: &HeaderMap) -> Arc<CurrentRequest> {
        let trace = Trace::of(headers);
        let Some(tracer) = self.telemetry.tracer() else { return CurrentRequest::new(trace, false) };
        let caller = trace.is_sampled_by_caller();
        let is_traced = trace.uuid().is_some_and(|id| tracer.samples_of(id, caller));
        CurrentRequest::new(trace.sampled(is_traced), is_traced)
    }

    /// Records a response in metrics, traces and the log.
    fn answered_with(
        &self,
        asking: &CurrentRequest,
        route: Option<&Route>,
        method: &str,
        status: StatusCode,
        took: Duration,
    ) {
        let id = route.map_or(UNMATCHED_ROUTE, |route| route.id);
        self.telemetry.requests().answered(id, status, took);
        if let Some(tracer) = self.telemetry.tracer() {
            tracer.answered(asking, route, method, status, took);
        }
        let (trace, us) = (&asking.trace, took.as_micros());
        if status.is_server_error() {
            tracing::error!(route = id, status = status.as_u16(), us, request = %trace.request(), traceId = %trace.id(), "answered");
        } else {
            tracing::debug!(route = id, status = status.as_u16(), us, request = %trace.request(), traceId = %trace.id(), "answered");
        }
    }

    /// Answers a request to a route. A panic in the handler becomes an internal problem.
    async fn answer(self: &Arc<Self>, route: &Arc<Route>, request: Request) -> Response {
        let (asking, began) = (self.asking(request.headers()), std::time::Instant::now());
        let _in_flight = self.telemetry.requests().in_flight();
        let answer = AssertUnwindSafe(self.answered(route, request)).catch_unwind();
        let answer = answer.map(|answered| {
            answered.unwrap_or_else(|panic| {
                let why = panic.downcast_ref::<String>().map(String::as_str);
                let why = why.or_else(|| panic.downcast_ref::<&str>().copied());
                let why = why.unwrap_or("a panic without a message");
                Err(Problem::internal(&format!("{}: {why}", route.id)))
            })
        });
        let answered = asking.answer(answer).await;
        let response = finished(answered, &asking.trace);
        let method = route.method.as_str();
        self.answered_with(&asking, Some(route), method, response.status(), began.elapsed());
        response
    }

    async fn answered(self: &Arc<Self>, route: &Arc<Route>, request: Request) -> Result<Response, Problem> {
        let (mut head, body) = request.into_parts();
        let path = RawPathParams::from_request_parts(&mut head, &()).await;
        let path = path.map_err(|_| Problem::bad("badParameter", "The path is not valid UTF-8."))?;
        let path: Vec<_> = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let admitted = match self.admitted(route, &mut head, &path).await {
            Ok(admitted) => admitted,
            Err(problem) => {
                body::discard(&head.headers, body).await;
                return Err(problem);
            }
        };
        let body = match route.input.has_body {
            true => self.body(route, body).await?,
            false => {
                body::discard(&head.headers, body).await;
                axum::body::Bytes::new()
            }
        };
        let query = head.uri.query().map(str::to_owned);
        let wait = admission::wait_of(query.as_deref(), &head.headers, self.options.max_wait);
        let (server, caller, headers) = (self.clone(), admitted.caller.clone(), head.headers);
        let asked = RequestContext { server, caller, path, query, headers, body };
        let (begun, route) = (self.underway.begin(route, &asked)?, route.clone());
        let of = route.clone();
        let work = async move {
            let _begun = begun;
            of.answer(asked).await
        };
        Ok(self.answer_in_time(&route, &admitted, wait, Box::pin(work)).await?.into_response())
    }

    /// Authenticates the caller, then checks the tenant, the permission and the rate limit.
    async fn admitted(
        &self,
        route: &Route,
        head: &mut Parts,
        path: &[(String, String)],
    ) -> Result<Admitted, Problem> {
        let peer = head.extensions.get::<Peer>().map(|Peer(address)| *address);
        let from = auth_throttle::origin(peer, &head.headers, &self.options.proxies);
        let needs = self.needs(route);
        if needs == Needs::Nothing {
            if !route.is_free {
                let tenant = path.iter().find(|(name, _)| name == "tenant");
                let tenant = tenant.and_then(|(_, text)| text.parse().ok()).map(TenantId::new);
                self.anonymous_rate_limit.admit(from, tenant)?;
            }
            return Ok(Admitted { caller: Caller::anonymous(), credential: None, needs });
        }
        let (caller, credential) = match head.extensions.remove::<Caller>() {
            Some(caller) => (caller, None),
            None => {
                let header = auth::header(&head.headers).ok_or_else(auth::unknown)?;
                (self.caller(header, from).await?, Some(header.clone()))
            }
        };
        let tenant = caller.scope.tenant();
        let rate = self.tenants.admit(tenant).await?;
        caller.may(needs)?;
        self.rate_limit.admit(tenant, rate)?;
        Ok(Admitted { caller, credential, needs })
    }

    /// Returns the access that a route needs. Public metrics need none.
    fn needs(&self, route: &Route) -> Needs {
        match route.needs {
            Needs::HostView if self.options.metrics_are_public => Needs::Nothing,
            needs => needs,
        }
    }

    async fn body(&self, route: &Route, body: axum::body::Body) -> Result<axum::body::Bytes, Problem> {
        let limit = route.body_bytes.unwrap_or(self.options.body_bytes);
        let read = tokio::time::timeout(self.options.body_timeout, body::read(body, limit)).await;
        read.unwrap_or_else(|_| {
            let detail = "The body did not arrive in time. Send the request again.";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "bodyTimeout", detail))
        })
    }

    /// Authenticates the caller by the credential. Failed attempts count toward the throttle of the address.
    async fn caller(&self, header: &HeaderValue, from: Option<IpAddr>) -> Result<Caller, Problem> {
        let Some(credential) = auth::credential(header) else { return Err(auth::unknown()) };
        self.auth_throttle.admit(from, credential)?;
        let known = self.known(credential).await;
        match &known {
            Ok(_) => self.auth_throttle.remember(from, credential),
            Err(problem) if auth::is_guess(problem) => self.auth_throttle.count(from),
            Err(_) => {}
        }
        known
    }

    /// Looks up the caller of a credential: an API key, or a token if issuers are configured.
    async fn known(&self, credential: &str) -> Result<Caller, Problem> {
        if self.issuers.is_empty() || credential.matches('.').count() != 2 {
            return self.keys.caller(credential).await?.ok_or_else(auth::invalid);
        }
        let trusted = self.issuers.trusted(credential, self.engine.now()).await;
        let VerifiedToken { tenant, actor } = trusted.map_err(|why| match why {
            TokenError::Expired => auth::expired(),
            TokenError::Bad(_) => auth::invalid(),
            TokenError::IssuerUnavailable => {
                crate::routes::problem::unavailable(&"the issuer of a token does not answer")
            }
        })?;
        let tenant = match tenant {
            TenantClaim::Fixed(tenant) => self.tenants.known(tenant).await?.then_some(tenant),
            TenantClaim::Claimed(said) => self.tenants.called(&said).await?,
        };
        let tenant = tenant.ok_or_else(|| {
            tracing::debug!("token rejected: its tenant does not exist");
            auth::invalid()
        })?;
        Ok(Caller::new(TenantScope::trusted(tenant), actor))
    }
}

/// Default headers of every response. They forbid caching, content sniffing, framing and sending a referrer.
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
        if let Some(challenge) = auth::challenge(&problem) {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    });
    let is_later =
        matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    if is_later {
        headers.entry(RETRY_AFTER).or_insert(HeaderValue::from_static("5"));
    }
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
