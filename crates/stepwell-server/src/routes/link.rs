//! Links: a page with a question, which can be loaded any number of times, and an answer that is accepted once.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use serde_json::Value;
use stepwell::flow::{Answer, FlowError};

use super::flows::{Api, key, mark_replayed, not_allowed, resume_of};
use super::form::{Errors, Form, Typed};
use super::page::{self, Again};
use super::problem::Problem;
use super::{body, reply};

const ROBOTS: HeaderName = HeaderName::from_static("x-robots-tag");
/// Content security policy: no external content, no scripts, forms only to this site, no framing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/l/{token}", get(show).post(answer))
        .method_not_allowed_fallback(async |headers: HeaderMap| {
            ResponseFormat::of(&headers).problem(&not_allowed())
        })
        .layer(map_response(guarded))
}

/// Adds headers that protect the token in the URL: no referrer, no indexing, no framing.
pub(crate) async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(ROBOTS, HeaderValue::from_static("noindex"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the media types that a client accepts, in lower case and without parameters.
fn accepted(headers: &HeaderMap) -> Vec<String> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let kinds = accept.flat_map(|kinds| kinds.split(','));
    kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()).collect()
}

/// Returns true if a client accepts HTML, as browsers do.
pub(crate) fn takes_pages(headers: &HeaderMap) -> bool {
    accepted(headers).iter().any(|kind| kind == "text/html")
}

/// The format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseFormat {
    Page,
    Json,
}

impl ResponseFormat {
    fn of(headers: &HeaderMap) -> Self {
        let accepted = accepted(headers);
        let takes_json = accepted.iter().any(|kind| kind == "application/json" || kind.ends_with("+json"));
        // A client that sends JSON and does not accept HTML gets JSON.
        let is_json = body::Kind::of(headers) == body::Kind::Json;
        if (takes_json || is_json) && !takes_pages(headers) {
            ResponseFormat::Json
        } else {
            ResponseFormat::Page
        }
    }

    fn problem(self, problem: &Problem) -> Response {
        match self {
            ResponseFormat::Page => reply::problem_page(problem),
            ResponseFormat::Json => reply::problem(problem),
        }
    }
}

/// Shows a link. Nothing changes, so that link previews and scanners do not use up the token.
async fn show(
    State(api): State<Api>,
    token: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    match token {
        Ok(Path(token)) => page_of(&api, &token, &headers).await,
        Err(_) => ResponseFormat::of(&headers).problem(&Problem::gone()),
    }
}

/// Returns the page of a link, or the same data as JSON.
pub(crate) async fn page_of(api: &Api, token: &str, headers: &HeaderMap) -> Response {
    let response_format = ResponseFormat::of(headers);
    let shown = api.flows.of_token(token).show(token).await.map_err(Problem::from);
    let shown = shown.and_then(|answer| match response_format {
        ResponseFormat::Page => Ok(reply::html(StatusCode::OK, page::ask(&answer, None))),
        ResponseFormat::Json => Ok(reply::json(StatusCode::OK, &reply::shown(answer)?)),
    });
    shown.unwrap_or_else(|problem| response_format.problem(&problem))
}

async fn answer(
    State(api): State<Api>,
    token: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let (head, content) = request.into_parts();
    let response_format = ResponseFormat::of(&head.headers);
    let Ok(Path(token)) = token else { return response_format.problem(&Problem::gone()) };
    match body::read(content, api.options.body_bytes).await {
        Ok(content) => answered(&api, &token, &head.headers, &content).await,
        Err(problem) => response_format.problem(&problem),
    }
}

/// Applies the answer to a link and returns the result as a page or as JSON.
pub(crate) async fn answered(api: &Api, token: &str, headers: &HeaderMap, content: &[u8]) -> Response {
    let response_format = ResponseFormat::of(headers);
    taken(api, token, headers, content, response_format)
        .await
        .unwrap_or_else(|problem| response_format.problem(&problem))
}

async fn taken(
    api: &Api,
    token: &str,
    headers: &HeaderMap,
    content: &[u8],
    response_format: ResponseFormat,
) -> Result<Response, Problem> {
    let flows = api.flows.of_token(token);
    let key = key(headers)?;
    let said = match body::Kind::of(headers) {
        body::Kind::Json => LinkAnswer::json(headers, content)?,
        body::Kind::Other => {
            return Err(body::wrong_kind("`application/x-www-form-urlencoded` or `application/json`"));
        }
        body::Kind::Unspecified if !content.is_empty() => {
            return Err(body::wrong_kind("`application/x-www-form-urlencoded` or `application/json`"));
        }
        body::Kind::Unspecified | body::Kind::Form => {
            LinkAnswer::form(&flows.show(token).await?, Typed::read(content))
        }
    };
    let resume = resume_of(token, said.outcome.as_deref(), Some(&said.input), key);
    let answer = match flows.resume(resume).await {
        Err(error @ FlowError::Outcome { .. }) if response_format == ResponseFormat::Page => {
            let Ok(shown) = flows.show(token).await else { return Err(Problem::gone()) };
            let message = Problem::from(error).detail;
            return Ok(said.again(&shown, Errors { others: vec![message], ..Errors::default() }));
        }
        answer => answer?,
    };
    if !answer.errors.is_empty() {
        return match response_format {
            ResponseFormat::Page => Ok(said.refused(&answer)),
            ResponseFormat::Json => Err(Problem::validation(answer.errors)),
        };
    }
    let is_replayed = answer.is_replayed;
    let mut response = match response_format {
        ResponseFormat::Page => reply::html(StatusCode::OK, page::answered(&answer)),
        ResponseFormat::Json => reply::json(StatusCode::OK, &reply::shown(answer)?),
    };
    mark_replayed(&mut response, is_replayed);
    Ok(response)
}

/// An answer to a link.
struct LinkAnswer {
    outcome: Option<String>,
    input: Value,
    typed: Typed,
}

impl LinkAnswer {
    fn json(headers: &HeaderMap, content: &[u8]) -> Result<Self, Problem> {
        let mut fields = body::fields(headers, content, &["outcome", "input"])?;
        let outcome = body::text(&mut fields, "outcome")?;
        Ok(LinkAnswer { outcome, input: fields.remove("input").unwrap_or_default(), typed: Typed::default() })
    }

    /// Reads the form of the pause that the outcome belongs to.
    fn form(shown: &Answer, typed: Typed) -> Self {
        let outcome = typed.outcome().map(str::to_owned);
        let form = form_of(shown, outcome.as_deref());
        LinkAnswer { outcome, input: form.value(&typed), typed }
    }

    /// Returns the page again, with the typed values and their errors.
    fn refused(&self, answer: &Answer) -> Response {
        let form = form_of(answer, self.outcome.as_deref());
        self.again(answer, form.errors(&answer.errors, &self.input))
    }

    fn again(&self, answer: &Answer, errors: Errors) -> Response {
        let pause = pause_of(answer, self.outcome.as_deref());
        let page = page::ask(answer, Some(&Again { pause, typed: &self.typed, errors }));
        reply::html(StatusCode::UNPROCESSABLE_ENTITY, page)
    }
}

/// Returns the index of the pause that has the outcome, among those that can be answered.
fn pause_of(answer: &Answer, outcome: Option<&str>) -> usize {
    let mut pauses = answer.waits.iter().filter(|pause| !pause.outcomes.is_empty());
    let taken =
        |outcome: &str| pauses.position(|pause| pause.outcomes.iter().any(|name| name.as_str() == outcome));
    outcome.and_then(taken).unwrap_or_default()
}

fn form_of(answer: &Answer, outcome: Option<&str>) -> Form {
    let mut pauses = answer.waits.iter().filter(|pause| !pause.outcomes.is_empty());
    Form::of(pauses.nth(pause_of(answer, outcome)).and_then(|pause| pause.form.as_ref()))
}
