//! Reading of requests: a body within a size limit, JSON with known fields only, and the query.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::header::{CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::LengthLimitError;
use serde_json::{Map, Value};

use super::problem::Problem;

/// The type of a body according to `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The header `Content-Type` is missing.
    Unspecified,
    Json,
    /// A form in `application/x-www-form-urlencoded`.
    Form,
    Other,
}

impl Kind {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let Some(kind) = headers.get(CONTENT_TYPE) else { return Kind::Unspecified };
        let kind = kind.to_str().unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/json" => Kind::Json,
            "application/x-www-form-urlencoded" => Kind::Form,
            kind if kind.starts_with("application/") && kind.ends_with("+json") => Kind::Json,
            _ => Kind::Other,
        }
    }
}

pub(crate) fn wrong_kind(kinds: &str) -> Problem {
    let detail = format!("The body must be {kinds}, with a matching `Content-Type`.");
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupportedMediaType", detail)
}

/// Reads the body. A body above the limit is an error.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    to_bytes(body, limit).await.map_err(|error| {
        let cause = std::error::Error::source(&error);
        if cause.and_then(|cause| cause.downcast_ref::<LengthLimitError>()).is_some() {
            let detail = format!("The body is larger than the limit of {limit} bytes.");
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "bodyTooLarge", detail).param("max", limit);
        }
        Problem::bad("bodyUnreadable", "The body is incomplete: the connection ended before its end.")
    })
}

/// Maximum size and time of reading the body of a refused request.
const DISCARDED: (usize, Duration) = (64 * 1024, Duration::from_secs(1));

/// Reads the body of a refused request and drops it. A connection with an unread body is closed after the response, and
/// the next request that a client sends on it would be lost.
pub(crate) async fn discard(headers: &HeaderMap, body: Body) {
    let (bytes, time) = DISCARDED;
    // A client that waits for `100 Continue` has not sent the body.
    if !headers.contains_key(EXPECT) && body.size_hint().lower() <= bytes as u64 {
        let _ = tokio::time::timeout(time, to_bytes(body, bytes)).await;
    }
}

/// Reads a JSON object and rejects unknown fields. An empty body is an empty object.
pub(crate) fn fields(
    headers: &HeaderMap,
    body: &[u8],
    known: &[&str],
) -> Result<Map<String, Value>, Problem> {
    match Kind::of(headers) {
        Kind::Unspecified if body.is_empty() => return Ok(Map::new()),
        Kind::Json => {}
        Kind::Unspecified | Kind::Form | Kind::Other => return Err(wrong_kind("`application/json`")),
    }
    if body.is_empty() {
        return Ok(Map::new());
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Problem::bad("malformedJson", format!("The body is not valid JSON: {error}.")))?;
    let Value::Object(fields) = value else {
        return Err(Problem::bad("malformedBody", "The body must be a JSON object."));
    };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => {
            let detail = format!("The body has an unknown field `{name}`.");
            Err(Problem::bad("unknownField", detail).param("field", name.as_str()))
        }
        None => Ok(fields),
    }
}

/// Removes a string from the fields; `None` if it is missing or null.
pub(crate) fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Problem> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => {
            let detail = format!("The field `{name}` must be a string.");
            Err(Problem::bad("malformedBody", detail).param("field", name))
        }
    }
}

/// Reads the query and rejects unknown parameters.
pub(crate) fn query(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let pairs: Vec<(String, String)> =
        form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
    match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => {
            let detail = format!("The query has an unknown parameter `{name}`.");
            Err(Problem::bad("unknownParameter", detail).param("parameter", name.as_str()))
        }
        None => Ok(pairs),
    }
}
