//! The routes of flows: they are started, resumed and looked at, and links to them have pages.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{HeaderName, HeaderValue, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::Value;
use stepwell::Start;
use stepwell::flow::{Answer, FlowError, Flows, Resume};

use super::problem::Problem;
use super::token::{Cookie, is_cookie_name, is_cookie_path, token};
use super::{body, link, reply};
use crate::outlets::SetupError;

/// Bytes that a body has at most, unless that is set.
const BODY_BYTES: usize = 256 * 1024;
/// Characters that an idempotency key and a request's id have at most.
const HEADER_CHARS: usize = 255;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How the routes of flows work.
#[derive(Debug, Clone)]
pub struct FlowRoutes(pub(crate) Options);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) cookie: Option<Cookie>,
    pub(crate) body_bytes: usize,
    pub(crate) reads_bearer: bool,
    has_fallback: bool,
}

impl Default for FlowRoutes {
    fn default() -> Self {
        FlowRoutes(Options { cookie: None, body_bytes: BODY_BYTES, reads_bearer: true, has_fallback: true })
    }
}

impl FlowRoutes {
    /// Tokens are in bodies; bodies have at most 256 KiB.
    pub fn new() -> Self {
        FlowRoutes::default()
    }

    /// Tokens are written to a cookie of this name, and then not to the body: `HttpOnly; SameSite=Strict; Secure`, for the path
    /// `/v1/flows`, for as long as the token is good.
    pub fn cookie(mut self, name: impl Into<String>) -> Result<Self, SetupError> {
        let name = name.into();
        if !is_cookie_name(&name) {
            return Err(SetupError::new(format!("`{name}` cannot be the name of a cookie")));
        }
        // Browsers take a cookie with this prefix only for the whole site.
        let path = if name.starts_with("__Host-") { "/" } else { "/v1/flows" };
        let cookie = Cookie { name, path: path.to_owned(), is_secure: true };
        self.0.cookie = Some(cookie);
        Ok(self)
    }

    /// The path of the cookie, if the routes are mounted elsewhere.
    pub fn cookie_path(mut self, path: impl Into<String>) -> Result<Self, SetupError> {
        let path = path.into();
        if !is_cookie_path(&path) {
            return Err(SetupError::new(format!("`{path}` cannot be the path of a cookie")));
        }
        match &mut self.0.cookie {
            Some(cookie) => cookie.path = path,
            None => return Err(SetupError::new("there is no cookie whose path could be set")),
        }
        Ok(self)
    }

    /// The cookie is also sent in the clear: for development without TLS.
    #[must_use]
    pub fn insecure_cookie(mut self) -> Self {
        if let Some(cookie) = &mut self.0.cookie {
            cookie.is_secure = false;
        }
        self
    }

    /// Bytes that a body has at most.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.0.body_bytes = bytes;
        self
    }

    /// `Authorization` is somebody else's: it is not read for a token.
    #[must_use]
    pub fn ignore_bearer(mut self) -> Self {
        self.0.reads_bearer = false;
        self
    }

    /// Paths that are not known are left to the router that these routes are merged into.
    #[must_use]
    pub fn without_fallback(mut self) -> Self {
        self.0.has_fallback = false;
        self
    }
}

/// What the handlers have.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) flows: Flows,
    pub(crate) options: Arc<Options>,
}

/// The routes of flows:
///
/// | route | what it does |
/// |---|---|
/// | `POST /v1/flows/{workflow}` | starts a flow: `{"input": …}` |
/// | `POST /v1/flows/resume` | resumes one: `{"token": …, "outcome": …, "input": …}` |
/// | `GET /v1/flows/show` | shows what a token is for; nothing changes |
/// | `GET /l/{token}` | a page that asks; nothing changes, however often it is asked for |
/// | `POST /l/{token}` | answers: the fields of a form, or `{"outcome": …, "input": …}` |
///
/// A token is read from the body's field `token`, the query's `token`, the header `X-Flow-Token`, `Authorization: Bearer` or
/// the cookie, in this order; several that differ are refused. With an `Idempotency-Key`, the same request gets the same
/// answer, with `Idempotency-Replayed: true`. Workflows called `resume` and `show` cannot be started here.
///
/// Errors are `application/problem+json`, and pages under `/l/` unless JSON is asked for. A token that is not good is always
/// the very same 410.
///
/// The flows given are those of one tenant. A layer that knows who asks may put the [`Flows`] of their tenant, acting as
/// them, into the request's extensions: `/v1/flows` then works on those. Whoever follows a link under `/l/` has its
/// secret and needs no more: the tenant is the one that the token names.
///
/// ```no_run
/// # use stepwell::flow::Flows;
/// # use stepwell_server::routes::{FlowRoutes, flow_routes};
/// # fn mount(flows: Flows) -> Result<axum::Router, Box<dyn std::error::Error>> {
/// let app = axum::Router::new().merge(flow_routes(flows, FlowRoutes::new().cookie("flow")?));
/// # Ok(app)
/// # }
/// ```
pub fn flow_routes(flows: Flows, options: FlowRoutes) -> Router {
    let has_fallback = options.0.has_fallback;
    let api = Api { flows, options: Arc::new(options.0) };
    let routes = Router::new()
        .route("/v1/flows/{workflow}", post(start))
        .route("/v1/flows/resume", post(resume))
        .route("/v1/flows/show", get(show))
        .method_not_allowed_fallback(async || reply::problem(&not_allowed()))
        .merge(link::routes());
    let routes = if has_fallback { routes.fallback(async || reply::problem(&not_found())) } else { routes };
    routes.layer(from_fn(echo_request_id)).with_state(api)
}

pub(crate) fn not_allowed() -> Problem {
    let detail = "This path has no such method.";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "methodNotAllowed", detail)
}

pub(crate) fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "notFound", "There is nothing at this path.")
}

pub(crate) async fn echo_request_id(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID).filter(|id| id.len() <= HEADER_CHARS).cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn start(
    State(api): State<Api>,
    workflow: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    told(async move {
        let Ok(Path(workflow)) = workflow else {
            return Err(Problem::new(StatusCode::NOT_FOUND, "unknownWorkflow", "There is no such workflow."));
        };
        let (head, body) = request.into_parts();
        body::query(head.uri.query(), &[])?;
        let body = body::read(body, api.options.body_bytes).await?;
        let mut fields = body::fields(&head.headers, &body, &["input"])?;
        let flows = head.extensions.get::<Flows>().unwrap_or(&api.flows);
        let key = key(&head.headers)?;
        let started = started(flows, &workflow, fields.remove("input").as_ref(), key).await;
        let (answer, status) = started.map_err(Problem::at_start)?;
        api.answered(answer, status, true)
    })
    .await
}

/// Starts a flow; with the status that says whether it goes on.
pub(crate) async fn started(
    flows: &Flows,
    workflow: &str,
    input: Option<&Value>,
    key: Option<String>,
) -> Result<(Answer, StatusCode), FlowError> {
    let start = input.into_iter().fold(Start::new(workflow), Start::input);
    let start = key.into_iter().fold(start, Start::key);
    let answer = flows.start(start).await?;
    let status = if answer.rests.is_some() { StatusCode::CREATED } else { StatusCode::OK };
    Ok((answer, status))
}

async fn resume(State(api): State<Api>, request: Request) -> Response {
    told(async move {
        let (head, body) = request.into_parts();
        let query = body::query(head.uri.query(), &["token"])?;
        let body = body::read(body, api.options.body_bytes).await?;
        let mut fields = body::fields(&head.headers, &body, &["token", "outcome", "input"])?;
        let token = token(&api.options, body::text(&mut fields, "token")?, query, &head.headers)?;
        let outcome = body::text(&mut fields, "outcome")?;
        let input = fields.remove("input");
        let resume = resume_of(&token, outcome.as_deref(), input.as_ref(), key(&head.headers)?);
        let flows = head.extensions.get::<Flows>().unwrap_or(&api.flows);
        api.answered(resumed(flows, resume).await?, StatusCode::OK, true)
    })
    .await
}

/// A flow is to be resumed.
pub(crate) fn resume_of(
    token: &str,
    outcome: Option<&str>,
    input: Option<&Value>,
    key: Option<String>,
) -> Resume {
    let resume = outcome.into_iter().fold(Resume::new(token), Resume::outcome);
    let resume = input.into_iter().fold(resume, Resume::input);
    key.into_iter().fold(resume, Resume::key)
}

/// Resumes a flow; an input that does not fit is a problem.
pub(crate) async fn resumed(flows: &Flows, resume: Resume) -> Result<Answer, Problem> {
    let answer = flows.resume(resume).await?;
    if answer.errors.is_empty() { Ok(answer) } else { Err(Problem::unfit(answer.errors)) }
}

async fn show(State(api): State<Api>, request: Request) -> Response {
    told(async move {
        let (head, _) = request.into_parts();
        let query = body::query(head.uri.query(), &["token"])?;
        let token = token(&api.options, None, query, &head.headers)?;
        let flows = head.extensions.get::<Flows>().unwrap_or(&api.flows);
        api.answered(flows.show(&token).await?, StatusCode::OK, false)
    })
    .await
}

pub(crate) async fn told(answer: impl Future<Output = Result<Response, Problem>>) -> Response {
    answer.await.unwrap_or_else(|problem| reply::problem(&problem))
}

/// The key of a request.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=HEADER_CHARS).contains(&key.len()));
    let key = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    match (key, keys.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => {
            let detail = format!("`Idempotency-Key` is one key of 1 to {HEADER_CHARS} visible characters.");
            Err(Problem::bad("malformedKey", detail))
        }
    }
}

pub(crate) fn mark_replayed(response: &mut Response, is_replayed: bool) {
    if is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
}

impl Api {
    /// The answer as JSON, its token in the body or in the cookie.
    fn answered(&self, answer: Answer, status: StatusCode, has_moved: bool) -> Result<Response, Problem> {
        let (is_replayed, is_over) = (answer.is_replayed, answer.status.is_final());
        let (token, expires_at) = (answer.token.clone(), answer.expires_at);
        let mut shown = reply::shown(answer)?;
        let Some(cookie) = &self.options.cookie else {
            let mut response = reply::json(status, &shown);
            mark_replayed(&mut response, is_replayed);
            return Ok(response);
        };
        if let Some(fields) = shown.as_object_mut() {
            fields.remove("token");
        }
        let mut response = reply::json(status, &shown);
        mark_replayed(&mut response, is_replayed);
        let set = match token {
            Some(token) => Some(cookie.set(&token, expires_at, self.flows.engine().now())),
            None => is_over.then(|| cookie.clear()),
        };
        if let Some(set) = set.filter(|_| has_moved) {
            let set = set.ok_or_else(|| Problem::internal(&"a token cannot be written to a cookie"))?;
            response.headers_mut().insert(SET_COOKIE, set);
        }
        Ok(response)
    }
}
