//! Links: a page that asks, as often as it is asked for, and an answer that is taken once.

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
/// Nothing is loaded, nothing is run, forms go nowhere else, and nobody shows the page inside theirs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/l/{token}", get(show).post(answer))
        .method_not_allowed_fallback(async |headers: HeaderMap| Asks::of(&headers).problem(&not_allowed()))
        .layer(map_response(guarded))
}

/// The secret is in the address: it is neither kept, nor sent on, nor listed anywhere.
pub(crate) async fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(ROBOTS, HeaderValue::from_static("noindex"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// What whoever asks wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Page,
    Json,
}

impl Asks {
    fn of(headers: &HeaderMap) -> Self {
        let accept: Vec<&str> =
            headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let accept = accept.join(",").to_ascii_lowercase();
        let kinds = || accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
        let takes_json = kinds().any(|kind| kind == "application/json" || kind.ends_with("+json"));
        // Who sends JSON and does not say what they want, wants it.
        let is_json = body::Kind::of(headers) == body::Kind::Json;
        let takes_pages = kinds().any(|kind| kind == "text/html");
        if (takes_json || is_json) && !takes_pages { Asks::Json } else { Asks::Page }
    }

    fn problem(self, problem: &Problem) -> Response {
        match self {
            Asks::Page => reply::problem_page(problem),
            Asks::Json => reply::problem(problem),
        }
    }
}

/// A link is shown. Nothing changes: what fetches links without asking uses none up.
async fn show(
    State(api): State<Api>,
    token: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    match token {
        Ok(Path(token)) => page_of(&api, &token, &headers).await,
        Err(_) => Asks::of(&headers).problem(&Problem::gone()),
    }
}

/// The page of a link, or the same as JSON.
pub(crate) async fn page_of(api: &Api, token: &str, headers: &HeaderMap) -> Response {
    let asks = Asks::of(headers);
    let shown = api.flows.of_token(token).show(token).await.map_err(Problem::from);
    let shown = shown.and_then(|answer| match asks {
        Asks::Page => Ok(reply::html(StatusCode::OK, page::ask(&answer, None))),
        Asks::Json => Ok(reply::json(StatusCode::OK, &reply::shown(answer)?)),
    });
    shown.unwrap_or_else(|problem| asks.problem(&problem))
}

/// A link is answered.
async fn answer(
    State(api): State<Api>,
    token: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let (head, content) = request.into_parts();
    let asks = Asks::of(&head.headers);
    let Ok(Path(token)) = token else { return asks.problem(&Problem::gone()) };
    match body::read(content, api.options.body_bytes).await {
        Ok(content) => answered(&api, &token, &head.headers, &content).await,
        Err(problem) => asks.problem(&problem),
    }
}

/// What came of the answer to a link, as a page or as JSON.
pub(crate) async fn answered(api: &Api, token: &str, headers: &HeaderMap, content: &[u8]) -> Response {
    let asks = Asks::of(headers);
    taken(api, token, headers, content, asks).await.unwrap_or_else(|problem| asks.problem(&problem))
}

async fn taken(
    api: &Api,
    token: &str,
    headers: &HeaderMap,
    content: &[u8],
    asks: Asks,
) -> Result<Response, Problem> {
    let flows = api.flows.of_token(token);
    let key = key(headers)?;
    let said = match body::Kind::of(headers) {
        body::Kind::Json => Said::json(headers, content)?,
        body::Kind::Other => {
            return Err(body::wrong_kind("`application/x-www-form-urlencoded` or `application/json`"));
        }
        body::Kind::Unsaid if !content.is_empty() => {
            return Err(body::wrong_kind("`application/x-www-form-urlencoded` or `application/json`"));
        }
        body::Kind::Unsaid | body::Kind::Form => Said::form(&flows.show(token).await?, Typed::read(content)),
    };
    let resume = resume_of(token, said.outcome.as_deref(), Some(&said.input), key);
    let answer = match flows.resume(resume).await {
        Err(error @ FlowError::Outcome { .. }) if asks == Asks::Page => {
            let Ok(shown) = flows.show(token).await else { return Err(Problem::gone()) };
            let message = Problem::from(error).detail;
            return Ok(said.again(&shown, Errors { others: vec![message], ..Errors::default() }));
        }
        answer => answer?,
    };
    if !answer.errors.is_empty() {
        return match asks {
            Asks::Page => Ok(said.refused(&answer)),
            Asks::Json => Err(Problem::unfit(answer.errors)),
        };
    }
    let is_replayed = answer.is_replayed;
    let mut response = match asks {
        Asks::Page => reply::html(StatusCode::OK, page::answered(&answer)),
        Asks::Json => reply::json(StatusCode::OK, &reply::shown(answer)?),
    };
    mark_replayed(&mut response, is_replayed);
    Ok(response)
}

/// What somebody answers.
struct Said {
    outcome: Option<String>,
    input: Value,
    typed: Typed,
}

impl Said {
    fn json(headers: &HeaderMap, content: &[u8]) -> Result<Self, Problem> {
        let mut fields = body::fields(headers, content, &["outcome", "input"])?;
        let outcome = body::text(&mut fields, "outcome")?;
        Ok(Said { outcome, input: fields.remove("input").unwrap_or_default(), typed: Typed::default() })
    }

    /// The fields of the pause that takes the outcome.
    fn form(shown: &Answer, typed: Typed) -> Self {
        let outcome = typed.outcome().map(str::to_owned);
        let form = form_of(shown, outcome.as_deref());
        Said { outcome, input: form.value(&typed), typed }
    }

    /// The page once more, with what is wrong beside what was typed.
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

/// Which of the pauses that can be answered takes the outcome.
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
