//! Credentials: what `Authorization` brings, and what is said of one that is not good.

use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::{HeaderMap, StatusCode};

use crate::routes::problem::Problem;

/// Where it is said in a problem what is wrong with a credential, in the words of RFC 6750.
const ERROR: &str = "error";
/// Where it is said in a problem that a credential was good.
const EXPIRED: &str = "expired";

/// The header with a request's credential, if there is exactly one.
pub(super) fn header(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    match (all.next(), all.next()) {
        (Some(first), None) => Some(first),
        _ => None,
    }
}

/// The credential in a header.
pub(super) fn credential(header: &HeaderValue) -> Option<&str> {
    let (scheme, credential) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim())
}

/// Nobody knows who asks.
pub(super) fn unknown() -> Problem {
    let detail = "This needs a valid credential: `Authorization: Bearer …` with an API key or a token.";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// The credential is not good, whatever is wrong with it.
pub(super) fn invalid() -> Problem {
    unknown().param(ERROR, "invalid_token")
}

/// The credential was good, and its time is over.
pub(super) fn expired() -> Problem {
    let detail = "The token has expired: get another one, and ask with that.";
    Problem { detail: detail.to_owned(), ..invalid() }.param(EXPIRED, true)
}

/// Somebody may have guessed: a token that has expired was a good one.
pub(super) fn is_guess(problem: &Problem) -> bool {
    problem.status == StatusCode::UNAUTHORIZED && !is_said(problem, EXPIRED)
}

fn is_said(problem: &Problem, name: &str) -> bool {
    problem.params.as_ref().is_some_and(|params| params.get(name).is_some())
}

/// How whoever is not let in could be.
pub(super) fn challenge(problem: &Problem) -> Option<HeaderValue> {
    let challenge = match (problem.code, is_said(problem, ERROR), is_said(problem, EXPIRED)) {
        ("unauthorized", true, true) => {
            r#"Bearer error="invalid_token", error_description="The token has expired""#
        }
        ("unauthorized", true, false) => r#"Bearer error="invalid_token""#,
        _ if problem.status == StatusCode::UNAUTHORIZED => "Bearer",
        _ => return None,
    };
    Some(HeaderValue::from_static(challenge))
}
