//! Reads tokens from requests, and writes them to cookies.

use axum::http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use stepwell::core::Timestamp;

use super::flows::Options;
use super::problem::Problem;

/// Request header with a token.
const TOKEN: HeaderName = HeaderName::from_static("x-flow-token");

/// Returns the token of a request, from the body, the query, `X-Flow-Token`, `Authorization: Bearer` or the cookie.
/// Different tokens in one request are an error.
pub(crate) fn token(
    options: &Options,
    body: Option<String>,
    query: Vec<(String, String)>,
    headers: &HeaderMap,
) -> Result<String, Problem> {
    let query = query.into_iter().filter(|(name, _)| name == "token").map(|(_, token)| token);
    let header = headers.get_all(TOKEN).iter().map(text);
    let bearer = headers
        .get_all(AUTHORIZATION)
        .iter()
        .filter(|_| options.reads_bearer)
        .map(text)
        .filter_map(|value| bearer(&value));
    let cookies = headers.get_all(COOKIE).iter().map(text);
    let cookies = cookies.filter_map(|cookies| {
        let name = &options.cookie.as_ref()?.name;
        cookie(&cookies, name)
    });
    let mut found = body.into_iter().chain(query).chain(header).chain(bearer).chain(cookies);
    let Some(first) = found.next() else {
        let detail = "The request has no token. Send it in the body, the query, `X-Flow-Token`, `Authorization` or a cookie.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "tokenMissing", detail));
    };
    if found.any(|other| other != first) {
        let detail = "The request has several different tokens. Send one.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "tokensDiffer", detail));
    }
    Ok(first)
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).trim().to_owned()
}

fn bearer(authorization: &str) -> Option<String> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

fn cookie(cookies: &str, name: &str) -> Option<String> {
    let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'));
    values.next().filter(|value| !value.is_empty()).map(str::to_owned)
}

/// The cookie for tokens.
#[derive(Debug, Clone)]
pub(crate) struct Cookie {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) is_secure: bool,
}

impl Cookie {
    /// Returns the header that sets the cookie until the token expires.
    pub(crate) fn set(
        &self,
        token: &str,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<HeaderValue> {
        let age = expires_at.map(|at| format!("; Max-Age={}", at.ms_since(now) / 1_000)).unwrap_or_default();
        self.written(token, &age)
    }

    /// Returns the header that deletes the cookie.
    pub(crate) fn clear(&self) -> Option<HeaderValue> {
        self.written("", "; Max-Age=0")
    }

    fn written(&self, value: &str, age: &str) -> Option<HeaderValue> {
        let Cookie { name, path, is_secure } = self;
        let secure = if *is_secure { "; Secure" } else { "" };
        let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict; Path={path}{age}{secure}");
        HeaderValue::from_str(&cookie).ok()
    }
}

/// Returns true if the text is a valid cookie name.
pub(crate) fn is_cookie_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.chars().all(fits)
}

/// Returns true if the text is a valid cookie path.
pub(crate) fn is_cookie_path(path: &str) -> bool {
    path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic() && c != ';')
}
