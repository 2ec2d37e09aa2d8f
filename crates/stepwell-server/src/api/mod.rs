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
mod guesses;
mod handles;
mod json;
mod keys;
mod kv;
mod links;
mod meta;
mod oidc;
mod openapi;
mod pace;
mod page;
mod patience;
mod quota;
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
mod underway;
mod upkeep;
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
pub use doctor::{StoreFacts, StoreFactsOf};
pub use oidc::{Algorithm, IssuerOptions, KeySource, TenantOf};
pub use openapi::openapi;
pub use quota::Quota;
pub use route::{Needs, Route};

use crate::outlets::SetupError;
use crate::routes::flows::{not_allowed, not_found};
use crate::routes::problem::Problem;
use crate::routes::{body, reply as answers};
use crate::serve::Peer;
use crate::telemetry::{Asking, NOWHERE, Telemetry};
use call::Asked;
use guesses::Guesses;
use oidc::{Issuers, NotTaken, TenantSaid, Vouched};
use pace::{OpenPace, Pace};
use patience::Pass;
use quota::Rooms;
use tenants::Tenants;
pub(crate) use trace::Trace;
use underway::Underway;

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
    /// Requests per second that may come from one address, or name one tenant, on average without a credential; 0 = any number.
    pub open_per_second: u32,
    /// Credentials that are not good which may come from one address within a minute; 0 = any number.
    pub guesses_per_minute: u32,
    /// Proxies that say truly from which address a request comes, in `X-Forwarded-For`.
    pub proxies: Vec<IpAddr>,
    /// How much a tenant may have that has no quota of its own.
    pub quota: Quota,
    /// Everybody who can connect may read the metrics.
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
            open_per_second: 200,
            guesses_per_minute: 60,
            proxies: Vec::new(),
            quota: Quota::default(),
            metrics_are_public: false,
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
    issuers: Issuers,
    tenants: Tenants,
    pace: Pace,
    open_pace: OpenPace,
    guesses: Guesses,
    underway: Underway,
    rooms: Rooms,
    stopping: watch::Sender<bool>,
    pub(crate) telemetry: Arc<Telemetry>,
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
            Needs::Credential => return if self.actor.is_some() { Ok(()) } else { Err(auth::unknown()) },
            Needs::Permission(permission) => (!has(permission)).then_some(permission),
            Needs::Worker if self.actor.as_ref().is_some_and(|actor| actor.grants.is_worker()) => None,
            Needs::Worker => {
                let detail = "This needs the permission `worker:ACTION` for the action that the task is of.";
                return Err(
                    Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", "worker:*")
                );
            }
            Needs::Host if self.scope.tenant() != TenantScope::single().tenant() => {
                let detail = "Only administrators of the server's own tenant may do this.";
                return Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail));
            }
            Needs::HostView if self.scope.tenant() != TenantScope::single().tenant() => {
                let detail = "Only somebody of the server's own tenant may see this.";
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
    all.extend(tasks::routes());
    all.extend(tenants::routes());
    all.extend(upkeep::routes());
    all
}

impl Server {
    /// A server of an engine.
    pub fn new(engine: Engine, options: ApiOptions) -> Self {
        Server {
            keys: ApiKeys::new(engine.clone()),
            tenants: Tenants::new(engine.clone()),
            pace: Pace::new(options.requests_per_second, options.burst),
            open_pace: OpenPace::new(options.open_per_second),
            guesses: Guesses::new(options.guesses_per_minute),
            flows: None,
            store_facts: None,
            issuers: Issuers::default(),
            underway: Underway::default(),
            rooms: Rooms::default(),
            stopping: watch::Sender::new(false),
            telemetry: Arc::new(Telemetry::new()),
            engine,
            options,
        }
    }

    /// It takes tokens of these issuers too.
    pub fn with_issuers(mut self, issuers: Vec<IssuerOptions>) -> Result<Self, SetupError> {
        self.issuers = Issuers::new(issuers)?;
        Ok(self)
    }

    /// It counts and traces with this, which is to listen to the engine too
    /// ([`Builder::observer`](stepwell::Builder::observer)).
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: Arc<Telemetry>) -> Self {
        self.telemetry = telemetry;
        self
    }

    /// What it counts and traces with.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
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
        Ok(!self.issuers.is_empty()
            || !self.keys.list(TenantScope::single(), 1, None).await?.items.is_empty())
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
        let lost = self.clone();
        router
            .method_not_allowed_fallback(async move |request: Request| self.lost(&request, not_allowed()))
            .fallback(async move |request: Request| lost.lost(&request, not_found()))
    }

    /// Answers a request to something that is no route.
    fn lost(&self, request: &Request, problem: Problem) -> Response {
        let (asking, began) = (self.asking(request.headers()), std::time::Instant::now());
        let response = finished(Err(problem), &asking.trace);
        self.answered_with(&asking, None, request.method().as_str(), response.status(), began.elapsed());
        response
    }

    /// What the request is known by, and whether its trace is written down.
    fn asking(&self, headers: &HeaderMap) -> Arc<Asking> {
        let trace = Trace::of(headers);
        let Some(tracer) = self.telemetry.tracer() else { return Asking::new(trace, false) };
        let caller = trace.is_sampled_by_caller();
        let is_traced = trace.uuid().is_some_and(|id| tracer.samples_of(id, caller));
        Asking::new(trace.sampled(is_traced), is_traced)
    }

    /// Counts, traces and logs what was answered.
    fn answered_with(
        &self,
        asking: &Asking,
        route: Option<&Route>,
        method: &str,
        status: StatusCode,
        took: Duration,
    ) {
        let id = route.map_or(NOWHERE, |route| route.id);
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

    /// Answers a request to a route, whatever happens.
    async fn answer(self: &Arc<Self>, route: &Arc<Route>, request: Request) -> Response {
        let (asking, began) = (self.asking(request.headers()), std::time::Instant::now());
        let _in_flight = self.telemetry.requests().in_flight();
        let answer = AssertUnwindSafe(self.answered(route, request)).catch_unwind();
        let answer = answer.map(|answered| {
            answered.unwrap_or_else(|panic| {
                let why = panic.downcast_ref::<String>().map(String::as_str);
                let why = why.or_else(|| panic.downcast_ref::<&str>().copied());
                let why = why.unwrap_or("a panic without a text");
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
        let path = path.map_err(|_| Problem::bad("badParameter", "The path is not UTF-8."))?;
        let path: Vec<_> = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let pass = self.admitted(route, &mut head, &path).await?;
        let body = match route.takes.has_body {
            true => self.body(route, body).await?,
            false => axum::body::Bytes::new(),
        };
        let query = head.uri.query().map(str::to_owned);
        let wait = patience::wait_of(query.as_deref(), &head.headers, self.options.max_wait);
        let (server, caller, headers) = (self.clone(), pass.caller.clone(), head.headers);
        let asked = Asked { server, caller, path, query, headers, body };
        let (begun, route) = (self.underway.begin(route, &asked)?, route.clone());
        let of = route.clone();
        let work = async move {
            let _begun = begun;
            of.answer(asked).await
        };
        Ok(self.patiently(&route, &pass, wait, Box::pin(work)).await?.into_response())
    }

    /// Lets somebody in who may ask for this, now.
    async fn admitted(
        &self,
        route: &Route,
        head: &mut Parts,
        path: &[(String, String)],
    ) -> Result<Pass, Problem> {
        let peer = head.extensions.get::<Peer>().map(|Peer(address)| *address);
        let from = guesses::origin(peer, &head.headers, &self.options.proxies);
        let needs = self.needs(route);
        if needs == Needs::Nothing {
            if !route.is_free {
                let tenant = path.iter().find(|(name, _)| name == "tenant");
                let tenant = tenant.and_then(|(_, text)| text.parse().ok()).map(TenantId::new);
                self.open_pace.admit(from, tenant)?;
            }
            return Ok(Pass { caller: Caller::nobody(), credential: None, needs });
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
        self.pace.admit(tenant, rate)?;
        Ok(Pass { caller, credential, needs })
    }

    /// What whoever asks needs, as it is set up here.
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
            let detail = "The body took too long to arrive.";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "bodyTimeout", detail))
        })
    }

    /// Who asks from somewhere, if their credential is good. Guesses are counted, and too many of them are not looked at.
    async fn caller(&self, header: &HeaderValue, from: Option<IpAddr>) -> Result<Caller, Problem> {
        let Some(credential) = auth::credential(header) else { return Err(auth::unknown()) };
        self.guesses.admit(from, credential)?;
        let known = self.known(credential).await;
        match &known {
            Ok(_) => self.guesses.remember(from, credential),
            Err(problem) if auth::is_guess(problem) => self.guesses.count(from),
            Err(_) => {}
        }
        known
    }

    /// Whose a credential is, if it is good.
    async fn known(&self, credential: &str) -> Result<Caller, Problem> {
        if self.issuers.is_empty() || credential.matches('.').count() != 2 {
            return self.keys.caller(credential).await?.ok_or_else(auth::invalid);
        }
        let vouched = self.issuers.vouched(credential, self.engine.now()).await;
        let Vouched { tenant, actor } = vouched.map_err(|why| match why {
            NotTaken::Expired => auth::expired(),
            NotTaken::Bad(_) => auth::invalid(),
            NotTaken::Away => crate::routes::problem::unavailable(&"an issuer does not answer"),
        })?;
        let tenant = match tenant {
            TenantSaid::Fixed(tenant) => self.tenants.known(tenant).await?.then_some(tenant),
            TenantSaid::Claimed(said) => self.tenants.called(&said).await?,
        };
        let tenant = tenant.ok_or_else(|| {
            tracing::debug!("a token was not taken: there is no tenant that it leads to");
            auth::invalid()
        })?;
        Ok(Caller::new(TenantScope::vouched(tenant), actor))
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
