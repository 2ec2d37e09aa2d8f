//! The routes of events: CloudEvents, and webhook calls that trigger workflows.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::post;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use stepwell::core::RunId;
use stepwell::events::hook::{HookCall, HookError};
use stepwell::events::{CloudEvents, Emitted};
use stepwell::store::{StoreError, TenantId, TenantScope};
use stepwell::{Engine, EngineError};

use super::flows::{echo_request_id, not_allowed, respond};
use super::problem::{Problem, unavailable};
use super::{body, reply};

/// Default size limit of a body, in bytes.
const BODY_BYTES: usize = 256 * 1024;
/// Path prefix of webhook calls.
const HOOKS: &str = "/hooks/";

/// Options of the event routes.
#[derive(Debug, Clone)]
pub struct EventRoutes {
    body_bytes: usize,
    has_events: bool,
    has_hooks: bool,
}

impl Default for EventRoutes {
    fn default() -> Self {
        EventRoutes { body_bytes: BODY_BYTES, has_events: true, has_hooks: true }
    }
}

impl EventRoutes {
    /// Returns the defaults: both routes, and bodies of at most 256 KiB.
    pub fn new() -> Self {
        EventRoutes::default()
    }

    /// Sets the size limit of a body, in bytes (default: 256 KiB).
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_bytes = bytes;
        self
    }

    /// Mounts only the webhook route, for programs that have no authentication in front of `/v1/events`.
    #[must_use]
    pub fn only_hooks(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Mounts only `/v1/events`, without the webhook route.
    #[must_use]
    pub fn only_events(mut self) -> Self {
        self.has_hooks = false;
        self
    }
}

/// Shared state of the handlers.
#[derive(Clone)]
struct Api {
    engine: Engine,
    options: Arc<EventRoutes>,
}

/// Returns the routes of events:
///
/// | route | effect |
/// |---|---|
/// | `POST /v1/events` | accepts CloudEvents 1.0: structured, in batches of at most 100, or binary |
/// | `POST /hooks/{tenant}/{path}` | calls the triggers of type `webhook` with that path |
///
/// Both answer 202 when everything is accepted. A repeated event is accepted again and has no further effect. Events
/// are checked before they are accepted. If an event of a batch is refused, the events before it are accepted, and the
/// response has their number. A call without the signature that its trigger requires gets 401; a call to a path without
/// a trigger gets 404.
///
/// `/v1/events` has no authentication. Put a layer in front that authenticates callers, and that puts the [`Engine`] of
/// the caller's tenant and actor into the request's extensions. Webhook calls name their tenant in the path and are
/// signed.
pub fn event_routes(engine: Engine, options: EventRoutes) -> Router {
    let mut routes = Router::new();
    if options.has_events {
        routes = routes.route("/v1/events", post(events));
    }
    if options.has_hooks {
        routes = routes.route("/hooks/{tenant}/{*path}", post(hook));
    }
    let api = Api { engine, options: Arc::new(options) };
    routes
        .method_not_allowed_fallback(async || reply::problem(&not_allowed()))
        .layer(from_fn(echo_request_id))
        .with_state(api)
}

async fn events(State(api): State<Api>, request: Request) -> Response {
    respond(async move {
        let (head, body) = request.into_parts();
        body::query(head.uri.query(), &[])?;
        let body = body::read(body, api.options.body_bytes).await?;
        let read = read(&head.headers, &body)?;
        let engine = head.extensions.get::<Engine>().unwrap_or(&api.engine);
        Ok(reply::json(StatusCode::ACCEPTED, &json!(accept(engine, read).await?)))
    })
    .await
}

/// An event that the server has stored.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventAccepted")]
pub(crate) struct Accepted {
    /// Id of the stored event.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub(crate) event: RunId,
    /// True if the event is new; false if it had been accepted before.
    created: bool,
}

impl From<Emitted> for Accepted {
    fn from(emitted: Emitted) -> Self {
        Accepted { event: emitted.event, created: emitted.is_new }
    }
}

/// The accepted events of a request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventsAccepted")]
#[serde(untagged)]
pub(crate) enum Answer {
    /// The event of a request that is not a batch.
    One(Accepted),
    /// The events of a batch, or one event per called trigger, in order.
    Many {
        /// The accepted events, in order.
        items: Vec<Accepted>,
    },
}

/// Reads the CloudEvents of a request.
pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<CloudEvents, Problem> {
    let headers = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    CloudEvents::read(headers, body).map_err(|error| {
        let problem =
            Problem::bad("malformedEvent", format!("The request is not a valid CloudEvent: {error}."));
        error.index.into_iter().fold(problem, |problem, index| problem.param("index", index))
    })
}

/// Accepts events in order and stops at the first that is refused. Its problem has the number of accepted events.
pub(crate) async fn accept(engine: &Engine, read: CloudEvents) -> Result<Answer, Problem> {
    let mut accepted: Vec<Accepted> = Vec::new();
    for event in read.events {
        match engine.emit(event).await {
            Ok(emitted) => accepted.push(emitted.into()),
            Err(EngineError::Store(StoreError::Bad(_))) => {
                let detail = "The event is refused: the stored type of its name is unreadable. \
                              Put the event type again, or delete it, and then send the event again.";
                let problem = Problem::new(StatusCode::CONFLICT, "unreadable", detail);
                return Err(problem.param("accepted", accepted.len()));
            }
            Err(error) => return Err(refused(error).param("accepted", accepted.len())),
        }
    }
    Ok(match (read.is_batch, accepted.len()) {
        (false, 1) => Answer::One(accepted.remove(0)),
        _ => Answer::Many { items: accepted },
    })
}

/// Converts the error of a refused event.
fn refused(error: EngineError) -> Problem {
    match error {
        EngineError::Invalid(why) => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "eventRefused",
            format!("The event is refused: {why}."),
        ),
        EngineError::Limit(limit) => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "eventRefused",
            format!("The event is refused: {limit}."),
        ),
        other => stepwell::flow::FlowError::from(other).into(),
    }
}

async fn hook(State(api): State<Api>, request: Request) -> Response {
    respond(async move {
        let (head, body) = request.into_parts();
        let rest = head.uri.path().split_once(HOOKS).map(|(_, rest)| rest).ok_or_else(nothing)?;
        let (tenant, path) = rest.split_once('/').ok_or_else(nothing)?;
        let body = body::read(body, api.options.body_bytes).await?;
        let query: Vec<(String, String)> =
            form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let answer = called(&api.engine, tenant, path, (&head.method, &query, &head.headers, &body)).await?;
        Ok(reply::json(StatusCode::ACCEPTED, &json!(answer)))
    })
    .await
}

/// Returns the 404 for unknown tenants and paths.
fn nothing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "notFound", "There is nothing at this path.")
}

/// Handles a webhook call to a path of a tenant, given by method, query, headers and body.
pub(crate) async fn called(
    engine: &Engine,
    tenant: &str,
    path: &str,
    (method, query, headers, body): (&Method, &[(String, String)], &HeaderMap, &[u8]),
) -> Result<Answer, Problem> {
    let tenant = tenant.parse().map(TenantId::new).map_err(|_| nothing())?;
    let headers = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    let headers: Vec<_> = headers.collect();
    let call = HookCall { path, method: method.as_str(), query, headers: &headers, body };
    // The signature under the tenant's secret is the authorization, so the scope needs no other check.
    let scope = TenantScope::trusted(tenant);
    let accepted = engine.hook(scope, call).await.map_err(|error| match error {
        HookError::Unknown(_) => nothing(),
        HookError::Unsigned => {
            let detail = "The signature of the call is missing or invalid.";
            Problem::new(StatusCode::UNAUTHORIZED, "unsigned", detail)
        }
        HookError::Body(why) => {
            Problem::bad("malformedBody", format!("The body does not match `Content-Type`: {why}."))
        }
        HookError::Engine(EngineError::Invalid(why)) if why.starts_with("secret ") => Problem::internal(&why),
        // The caller can only try again.
        HookError::Engine(error @ EngineError::Store(StoreError::Bad(_))) => unavailable(&error),
        HookError::Engine(error) => refused(error),
    })?;
    Ok(Answer::Many { items: accepted.into_iter().map(Accepted::from).collect() })
}
