//! The routes of flows: start, resume and show a flow, and the pages of its links.

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
use stepwell::core::Timestamp;
use stepwell::flow::{Answer, FlowError, Flows, Resume};

use super::problem::Problem;
use super::token::{Cookie, is_cookie_name, is_cookie_path, token};
use super::{body, link, reply};
use crate::outlets::{Links, SetupError};

/// Default size limit of a body, in bytes.
const BODY_BYTES: usize = 256 * 1024;
/// Maximum length of an idempotency key and of a request id, in characters.
const HEADER_CHARS: usize = 255;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Options of the flow routes.
#[derive(Debug, Clone)]
pub struct FlowRoutes(pub(crate) Options);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) cookie: Option<Cookie>,
    pub(crate) body_bytes: usize,
    pub(crate) reads_bearer: bool,
    links: Option<Links>,
    has_fallback: bool,
}

impl Default for FlowRoutes {
    fn default() -> Self {
        let (cookie, links) = (None, None);
        FlowRoutes(Options { cookie, body_bytes: BODY_BYTES, reads_bearer: true, links, has_fallback: true })
    }
}

impl FlowRoutes {
    /// Returns the defaults: tokens in response bodies, and request bodies of at most 256 KiB.
    pub fn new() -> Self {
        FlowRoutes::default()
    }

    /// Writes tokens to a cookie of this name instead of the body.
    ///
    /// The cookie is `HttpOnly; SameSite=Strict; Secure`, has the path `/v1/flows` and expires with the token.
    pub fn cookie(mut self, name: impl Into<String>) -> Result<Self, SetupError> {
        let name = name.into();
        if !is_cookie_name(&name) {
            return Err(SetupError::new(format!("`{name}` is not a valid cookie name")));
        }
        // Browsers accept a cookie with this prefix only with the path `/`.
        let path = if name.starts_with("__Host-") { "/" } else { "/v1/flows" };
        let cookie = Cookie { name, path: path.to_owned(), is_secure: true };
        self.0.cookie = Some(cookie);
        Ok(self)
    }

    /// Sets the path of the cookie, for routes that are mounted under a prefix.
    pub fn cookie_path(mut self, path: impl Into<String>) -> Result<Self, SetupError> {
        let path = path.into();
        if !is_cookie_path(&path) {
            return Err(SetupError::new(format!("`{path}` is not a valid cookie path")));
        }
        match &mut self.0.cookie {
            Some(cookie) => cookie.path = path,
            None => {
                return Err(SetupError::new("no cookie is configured: call `cookie` before `cookie_path`"));
            }
        }
        Ok(self)
    }

    /// Sends the cookie over plain HTTP too, for development without TLS.
    #[must_use]
    pub fn insecure_cookie(mut self) -> Self {
        if let Some(cookie) = &mut self.0.cookie {
            cookie.is_secure = false;
        }
        self
    }

    /// Adds a field `url` to answers: the page of the token under this base URL, such as
    /// `https://flows.example.com/l`. An answer whose token is in the cookie has none.
    pub fn links(mut self, base: &str) -> Result<Self, SetupError> {
        self.0.links = Some(Links::new(base)?);
        Ok(self)
    }

    /// Sets the size limit of a body, in bytes (default: 256 KiB).
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.0.body_bytes = bytes;
        self
    }

    /// Does not read tokens from `Authorization`, for programs that use this header themselves.
    #[must_use]
    pub fn ignore_bearer(mut self) -> Self {
        self.0.reads_bearer = false;
        self
    }

    /// Leaves unknown paths to the router that these routes are merged into.
    #[must_use]
    pub fn without_fallback(mut self) -> Self {
        self.0.has_fallback = false;
        self
    }
}

/// Shared state of the handlers.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) flows: Flows,
    pub(crate) options: Arc<Options>,
}

/// Returns the routes of flows:
///
/// | route | effect |
/// |---|---|
/// | `POST /v1/flows/{workflow}` | starts a flow: `{"input": …}` |
/// | `POST /v1/flows/resume` | resumes one: `{"token": …, "outcome": …, "input": …}` |
/// | `GET /v1/flows/show` | shows the wait of a token; changes nothing |
/// | `GET /l/{token}` | shows a page with the question; changes nothing |
/// | `POST /l/{token}` | answers: the fields of a form, or `{"outcome": …, "input": …}` |
///
/// The token is read from the body field `token`, the query parameter `token`, `X-Flow-Token`, `Authorization: Bearer`
/// or the cookie. Different tokens in one request are refused. A request that repeats an `Idempotency-Key` gets the
/// same answer, with `Idempotency-Replayed: true`. Workflows named `resume` and `show` cannot be started here.
///
/// Errors are `application/problem+json`. Under `/l/` they are HTML pages, unless the client asks for JSON. Every
/// invalid token gets the same 410, so that the response does not reveal the reason.
///
/// `flows` belongs to one tenant. A layer that authenticates callers may put the [`Flows`] of the caller's tenant and
/// actor into the request's extensions; `/v1/flows` then uses those. A link under `/l/` needs no credential besides its
/// token, which also determines the tenant.
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
    let detail = "This path does not support the method.";
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
    respond(async move {
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

/// Starts a flow. The status is 201 if the flow continues, and 200 if it has already ended.
pub(crate) async fn started(
    flows: &Flows,
    workflow: &str,
    input: Option<&Value>,
    key: Option<String>,
) -> Result<(Answer, StatusCode), FlowError> {
    let start = input.into_iter().fold(Start::new(workflow), Start::input);
    let start = key.into_iter().fold(start, Start::key);
    let answer = flows.start(start).await?;
    let status = if answer.strategy.is_some() { StatusCode::CREATED } else { StatusCode::OK };
    Ok((answer, status))
}

async fn resume(State(api): State<Api>, request: Request) -> Response {
    respond(async move {
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

/// Builds the request that resumes a flow.
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

/// Resumes a flow. Invalid input is a problem, and the token stays valid.
pub(crate) async fn resumed(flows: &Flows, resume: Resume) -> Result<Answer, Problem> {
    let answer = flows.resume(resume).await?;
    if answer.errors.is_empty() { Ok(answer) } else { Err(Problem::validation(answer.errors)) }
}

async fn show(State(api): State<Api>, request: Request) -> Response {
    respond(async move {
        let (head, _) = request.into_parts();
        let query = body::query(head.uri.query(), &["token"])?;
        let token = token(&api.options, None, query, &head.headers)?;
        let flows = head.extensions.get::<Flows>().unwrap_or(&api.flows);
        api.answered(flows.show(&token).await?, StatusCode::OK, false)
    })
    .await
}

pub(crate) async fn respond(answer: impl Future<Output = Result<Response, Problem>>) -> Response {
    answer.await.unwrap_or_else(|problem| reply::problem(&problem))
}

/// Returns the idempotency key of a request.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=HEADER_CHARS).contains(&key.len()));
    let key = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    match (key, keys.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => {
            let detail =
                format!("`Idempotency-Key` must be one key of 1 to {HEADER_CHARS} visible ASCII characters.");
            Err(Problem::bad("malformedKey", detail))
        }
    }
}

pub(crate) fn mark_replayed(response: &mut Response, is_replayed: bool) {
    if is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
}

impl Options {
    /// Returns the URL of a token's page, if the base of links is known.
    pub(crate) fn url(&self, token: &str) -> Option<String> {
        self.links.as_ref().map(|links| links.to(token))
    }

    /// Returns an answer as JSON, and the header that sets or deletes the cookie. The token is in one of them.
    /// `has_moved` is false if the request has only shown the flow.
    pub(crate) fn written(
        &self,
        answer: Answer,
        has_moved: bool,
        now: Timestamp,
    ) -> Result<(Value, Option<HeaderValue>), Problem> {
        let is_over = answer.status.is_final();
        let (token, expires_at) = (answer.token.clone(), answer.expires_at);
        let mut shown = reply::shown(answer)?;
        let Some(cookie) = &self.cookie else {
            if let Some(url) = token.and_then(|token| self.url(&token)) {
                shown["url"] = url.into();
            }
            return Ok((shown, None));
        };
        if let Some(fields) = shown.as_object_mut() {
            fields.remove("token");
        }
        let set = match token {
            Some(token) => Some(cookie.set(&token, expires_at, now)),
            None => is_over.then(|| cookie.clear()),
        };
        let set = set.filter(|_| has_moved).map(|set| {
            set.ok_or_else(|| Problem::internal(&"the token contains characters that a cookie cannot hold"))
        });
        Ok((shown, set.transpose()?))
    }
}

impl Api {
    /// Returns the answer as JSON, with the token in the body or in the cookie.
    fn answered(&self, answer: Answer, status: StatusCode, has_moved: bool) -> Result<Response, Problem> {
        let is_replayed = answer.is_replayed;
        let (shown, cookie) = self.options.written(answer, has_moved, self.flows.engine().now())?;
        let mut response = reply::json(status, &shown);
        mark_replayed(&mut response, is_replayed);
        if let Some(cookie) = cookie {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        Ok(response)
    }
}
