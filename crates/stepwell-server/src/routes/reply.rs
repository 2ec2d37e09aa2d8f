//! HTTP responses: JSON, problems and pages.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::Value;
use stepwell::flow::Answer;

use super::page;
use super::problem::{Problem, for_all};

/// Returns a response with this content type. It is not cacheable, because it may contain a token.
pub(crate) fn reply(status: StatusCode, kind: &'static str, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    reply(status, "application/json", value.to_string())
}

pub(crate) fn html(status: StatusCode, page: String) -> Response {
    reply(status, "text/html; charset=utf-8", page)
}

/// Returns a problem as JSON.
pub(crate) fn problem(problem: &Problem) -> Response {
    let response = reply(problem.status, "application/problem+json", problem.to_json().to_string());
    with_pause(response, problem)
}

/// Returns a problem as JSON with the trace id, which also is in the log.
pub(crate) fn traced_problem(problem: &Problem, trace: &str) -> Response {
    let mut body = problem.to_json();
    body["traceId"] = trace.into();
    with_pause(reply(problem.status, "application/problem+json", body.to_string()), problem)
}

/// Returns a problem as an HTML page.
pub(crate) fn problem_page(problem: &Problem) -> Response {
    with_pause(html(problem.status, page::problem(problem)), problem)
}

fn with_pause(mut response: Response, problem: &Problem) -> Response {
    if let Some(seconds) = problem.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns an answer as the caller may see it. A replay has the same body as the first response, and is marked by a
/// header only.
pub(crate) fn shown(mut answer: Answer) -> Result<Value, Problem> {
    answer.is_replayed = false;
    answer.error = answer.error.map(for_all);
    serde_json::to_value(&answer).map_err(|error| Problem::internal(&error))
}
