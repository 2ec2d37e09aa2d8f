//! What a request brings: its body within a limit, as JSON with known fields only, and its query.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use http_body_util::LengthLimitError;
use serde_json::{Map, Value};

use super::problem::Problem;

/// What a body is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing is said.
    Unsaid,
    /// JSON.
    Json,
    /// The fields of a form.
    Form,
    /// Something else.
    Other,
}

impl Kind {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let Some(kind) = headers.get(CONTENT_TYPE) else { return Kind::Unsaid };
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
    let detail = format!("The body has to be {kinds}, and `Content-Type` has to say so.");
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupportedMediaType", detail)
}

/// The body, if it is no longer than allowed.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    to_bytes(body, limit).await.map_err(|error| {
        let cause = std::error::Error::source(&error);
        if cause.and_then(|cause| cause.downcast_ref::<LengthLimitError>()).is_some() {
            let detail = format!("The body has more than the {limit} bytes that are allowed.");
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "bodyTooLarge", detail).param("max", limit);
        }
        Problem::bad("bodyUnreadable", "The body did not arrive whole.")
    })
}

/// The fields of a JSON object, all of which are known. No body at all is an empty object.
pub(crate) fn fields(
    headers: &HeaderMap,
    body: &[u8],
    known: &[&str],
) -> Result<Map<String, Value>, Problem> {
    match Kind::of(headers) {
        Kind::Unsaid if body.is_empty() => return Ok(Map::new()),
        Kind::Json => {}
        Kind::Unsaid | Kind::Form | Kind::Other => return Err(wrong_kind("`application/json`")),
    }
    if body.is_empty() {
        return Ok(Map::new());
    }
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Problem::bad("malformedJson", format!("The body is not JSON: {error}.")))?;
    let Value::Object(fields) = value else {
        return Err(Problem::bad("malformedBody", "The body has to be a JSON object."));
    };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => {
            let detail = format!("The body has a field `{name}` that is not known here.");
            Err(Problem::bad("unknownField", detail).param("field", name.as_str()))
        }
        None => Ok(fields),
    }
}

/// Takes a text out of the fields.
pub(crate) fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Problem> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => {
            let detail = format!("The field `{name}` has to be a text.");
            Err(Problem::bad("malformedBody", detail).param("field", name))
        }
    }
}

/// The values of a query whose parameters are all known.
pub(crate) fn query(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let pairs: Vec<(String, String)> =
        form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
    match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => {
            let detail = format!("The query has a parameter `{name}` that is not known here.");
            Err(Problem::bad("unknownParameter", detail).param("parameter", name.as_str()))
        }
        None => Ok(pairs),
    }
}
