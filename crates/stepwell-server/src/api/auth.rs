//! Credentials in the `Authorization` header, and the problems and challenges for invalid ones.

use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::{HeaderMap, StatusCode};

use crate::routes::problem::Problem;

/// Parameter of a problem with the error code of RFC 6750, for an invalid credential.
const ERROR: &str = "error";
/// Parameter of a problem that marks a credential which was valid and has expired.
const EXPIRED: &str = "expired";

/// Returns the `Authorization` header. Returns `None` if the request has none or several.
pub(super) fn header(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    match (all.next(), all.next()) {
        (Some(first), None) => Some(first),
        _ => None,
    }
}

/// Returns the bearer credential in a header.
pub(super) fn credential(header: &HeaderValue) -> Option<&str> {
    let (scheme, credential) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim())
}

/// Creates the problem of a request without a usable credential.
pub(super) fn unknown() -> Problem {
    let detail = "This needs a valid credential: `Authorization: Bearer …` with an API key or a token.";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// Creates the problem of an invalid credential. It does not reveal the reason.
pub(super) fn invalid() -> Problem {
    unknown().param(ERROR, "invalid_token")
}

/// Creates the problem of a credential that was valid and has expired.
pub(super) fn expired() -> Problem {
    let detail = "The token has expired. Get a new token and retry.";
    Problem { detail: detail.to_owned(), ..invalid() }.param(EXPIRED, true)
}

/// Returns true if the failed attempt may be a guess. An expired token is not one, because it was valid.
pub(super) fn is_guess(problem: &Problem) -> bool {
    problem.status == StatusCode::UNAUTHORIZED && !has_param(problem, EXPIRED)
}

fn has_param(problem: &Problem, name: &str) -> bool {
    problem.params.as_ref().is_some_and(|params| params.get(name).is_some())
}

/// Returns the `WWW-Authenticate` challenge for a problem with status 401.
pub(super) fn challenge(problem: &Problem) -> Option<HeaderValue> {
    let challenge = match (problem.code, has_param(problem, ERROR), has_param(problem, EXPIRED)) {
        ("unauthorized", true, true) => {
            r#"Bearer error="invalid_token", error_description="The token has expired""#
        }
        ("unauthorized", true, false) => r#"Bearer error="invalid_token""#,
        _ if problem.status == StatusCode::UNAUTHORIZED => "Bearer",
        _ => return None,
    };
    Some(HeaderValue::from_static(challenge))
}
