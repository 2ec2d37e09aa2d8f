//! Credentials: what `Authorization` brings.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

/// The credential of a request, if it brings exactly one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (first, None) = (all.next()?, all.next()) else { return None };
    let (scheme, credential) = first.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim())
}
