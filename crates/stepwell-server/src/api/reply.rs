//! The reply of a handler, before it becomes an HTTP response.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LOCATION};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::document::yaml;

use crate::routes::flows::REPLAYED;
use crate::routes::problem::Problem;

/// Content type of JSON.
pub(crate) const JSON: &str = "application/json";
/// Content type of YAML.
pub(crate) const YAML: &str = "application/yaml";

/// Format of a document in a response. Default: `json`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DocumentFormat")]
pub(crate) enum Format {
    #[default]
    Json,
    Yaml,
}

/// A reply of a handler: status, content and headers.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Body of a reply. `Text` and `Stream` carry their content type; `Whole` has it in its headers.
#[derive(Debug)]
pub(crate) enum Content {
    Nothing,
    Json(Vec<u8>),
    Text(&'static str, String),
    Stream(&'static str, Body),
    Whole(Body),
}

impl Reply {
    fn new(status: StatusCode, content: Content) -> Self {
        Reply { status, content, headers: Vec::new() }
    }

    /// Creates a reply with this status and the value as JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| Problem::internal(&error))?;
        Ok(Reply::new(status, Content::Json(body)))
    }

    /// Creates a reply with status 200 and the value as JSON.
    pub(crate) fn ok<T: Serialize + ?Sized>(value: &T) -> Result<Self, Problem> {
        Reply::json(StatusCode::OK, value)
    }

    /// Creates an empty reply with status 204.
    pub(crate) fn nothing() -> Self {
        Reply::new(StatusCode::NO_CONTENT, Content::Nothing)
    }

    /// Creates a reply with status 200 and a text of this content type.
    pub(crate) fn text(kind: &'static str, text: impl Into<String>) -> Self {
        Reply::new(StatusCode::OK, Content::Text(kind, text.into()))
    }

    /// Creates a reply with a document, in the requested format. Default: JSON.
    pub(crate) fn document(value: &Value, format: Option<Format>) -> Result<Self, Problem> {
        match format.unwrap_or_default() {
            Format::Json => Reply::ok(value),
            Format::Yaml => Ok(Reply::text(YAML, yaml(value))),
        }
    }

    /// Returns the content type, or `None` if the reply is empty or a complete response.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        match &self.content {
            Content::Nothing | Content::Whole(_) => None,
            Content::Json(_) => Some(JSON),
            Content::Text(kind, _) | Content::Stream(kind, _) => Some(kind),
        }
    }

    /// Creates a reply with status 200 and a streamed body.
    pub(crate) fn stream(kind: &'static str, body: Body) -> Self {
        Reply::new(StatusCode::OK, Content::Stream(kind, body))
    }

    /// Wraps a complete response, with its status, headers and body unchanged.
    pub(crate) fn whole(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let headers = head.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
        Reply { status: head.status, content: Content::Whole(body), headers: headers.collect() }
    }

    /// Sets `ETag` to the revision, in quotes.
    #[must_use]
    pub(crate) fn tagged(self, revision: u64) -> Self {
        self.with(ETAG, &format!("\"{revision}\""))
    }

    /// Sets `Location` to the path of the new resource.
    #[must_use]
    pub(crate) fn at(self, path: &str) -> Self {
        self.with(LOCATION, path)
    }

    /// Marks the reply as a replay of an earlier result, if it is one.
    #[must_use]
    pub(crate) fn replayed(self, is_replayed: bool) -> Self {
        if is_replayed { self.with(REPLAYED, "true") } else { self }
    }

    /// Adds a header. Skips a value that is not a valid header value.
    #[must_use]
    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    pub(crate) fn into_response(self) -> Response {
        let kind = self.kind();
        let body = match self.content {
            Content::Nothing => Body::empty(),
            Content::Json(body) => Body::from(body),
            Content::Text(_, text) => Body::from(text),
            Content::Stream(_, body) | Content::Whole(body) => body,
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        headers.extend(self.headers);
        response
    }
}
