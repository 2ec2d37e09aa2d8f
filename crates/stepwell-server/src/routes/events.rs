//! The routes of events: CloudEvents come in, and calls from outside start workflows.

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
use stepwell::store::{TenantId, TenantScope};
use stepwell::{Engine, EngineError};

use super::flows::{echo_request_id, not_allowed, told};
use super::problem::Problem;
use super::{body, reply};

/// Bytes that a body has at most, unless that is set.
const BODY_BYTES: usize = 256 * 1024;
/// Where calls from outside are taken.
const HOOKS: &str = "/hooks/";

/// How the routes of events work.
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
    /// Both kinds; bodies have at most 256 KiB.
    pub fn new() -> Self {
        EventRoutes::default()
    }

    /// Bytes that a body has at most.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_bytes = bytes;
        self
    }

    /// Only calls from outside: events need somebody in front who says who may send them.
    #[must_use]
    pub fn only_hooks(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Only events.
    #[must_use]
    pub fn only_events(mut self) -> Self {
        self.has_hooks = false;
        self
    }
}

/// What the handlers have.
#[derive(Clone)]
struct Api {
    engine: Engine,
    options: Arc<EventRoutes>,
}

/// The routes of events:
///
/// | route | what it does |
/// |---|---|
/// | `POST /v1/events` | accepts CloudEvents 1.0: structured, in batches of at most 100, or binary |
/// | `POST /hooks/{tenant}/{path}` | a call from outside, for the triggers of type `webhook` with that path |
///
/// Both answer 202 when everything is accepted; sent again, the same events are accepted again without another effect. An event
/// is checked before it is accepted; of a batch those before the one that is refused are accepted, and the answer says how many.
/// A call that is not signed as its trigger asks gets 401, one for a path that nothing is called at 404.
///
/// `/v1/events` has no authentication of its own: put a layer in front that knows who asks, and the [`Engine`] of their tenant,
/// acting as them, into the request's extensions. Calls from outside carry their tenant in their path and are signed.
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
    told(async move {
        let (head, body) = request.into_parts();
        body::query(head.uri.query(), &[])?;
        let body = body::read(body, api.options.body_bytes).await?;
        let read = read(&head.headers, &body)?;
        let engine = head.extensions.get::<Engine>().unwrap_or(&api.engine);
        Ok(reply::json(StatusCode::ACCEPTED, &json!(accept(engine, read).await?)))
    })
    .await
}

/// An event that was accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventAccepted")]
pub(crate) struct Accepted {
    /// By which it is found again.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub(crate) event: RunId,
    /// It was accepted just now; otherwise it had been before.
    created: bool,
}

impl From<Emitted> for Accepted {
    fn from(emitted: Emitted) -> Self {
        Accepted { event: emitted.event, created: emitted.is_new }
    }
}

/// The events of a message, accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventsAccepted")]
#[serde(untagged)]
pub(crate) enum Answer {
    /// The one event that it was.
    One(Accepted),
    /// All of a batch, or for every trigger that was called, in their order.
    Many {
        /// Each by itself.
        items: Vec<Accepted>,
    },
}

/// The events of a message.
pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<CloudEvents, Problem> {
    let headers = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    CloudEvents::read(headers, body).map_err(|error| {
        let problem = Problem::bad("malformedEvent", format!("This is no CloudEvent: {error}."));
        error.index.into_iter().fold(problem, |problem, index| problem.param("index", index))
    })
}

/// Accepts events one after the other; those before one that is refused are accepted.
pub(crate) async fn accept(engine: &Engine, read: CloudEvents) -> Result<Answer, Problem> {
    let mut accepted: Vec<Accepted> = Vec::new();
    for event in read.events {
        match engine.emit(event).await {
            Ok(emitted) => accepted.push(emitted.into()),
            Err(error) => return Err(refused(error).param("accepted", accepted.len())),
        }
    }
    Ok(match (read.is_batch, accepted.len()) {
        (false, 1) => Answer::One(accepted.remove(0)),
        _ => Answer::Many { items: accepted },
    })
}

/// Why an event was not accepted.
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
    told(async move {
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

/// There is nothing, or nothing for whoever asks.
fn nothing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "notFound", "There is nothing at this path.")
}

/// Takes a call from outside, to a path of a tenant: its method, query, headers and body.
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
    // The secret with which the call is signed is the tenant's: whoever has it may call.
    let scope = TenantScope::vouched(tenant);
    let accepted = engine.hook(scope, call).await.map_err(|error| match error {
        HookError::Unknown(_) => nothing(),
        HookError::Unsigned => {
            let detail = "The call is not signed as it has to be.";
            Problem::new(StatusCode::UNAUTHORIZED, "unsigned", detail)
        }
        HookError::Body(why) => {
            Problem::bad("malformedBody", format!("The body is not what `Content-Type` says: {why}."))
        }
        HookError::Engine(EngineError::Invalid(why)) if why.starts_with("the secret ") => {
            Problem::internal(&why)
        }
        HookError::Engine(error) => refused(error),
    })?;
    Ok(Answer::Many { items: accepted.into_iter().map(Accepted::from).collect() })
}
