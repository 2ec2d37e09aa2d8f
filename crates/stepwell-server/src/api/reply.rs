//! What a route answers with, before it is an HTTP response.

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

/// What JSON is sent as.
pub(crate) const JSON: &str = "application/json";
/// What YAML is sent as.
pub(crate) const YAML: &str = "application/yaml";

/// How a document is given.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DocumentFormat")]
pub(crate) enum Format {
    #[default]
    Json,
    Yaml,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// What is in an answer.
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

    /// This, as JSON.
    pub(crate) fn json<T: Serialize + ?Sized>(status: StatusCode, value: &T) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| Problem::internal(&error))?;
        Ok(Reply::new(status, Content::Json(body)))
    }

    /// This, as JSON.
    pub(crate) fn ok<T: Serialize + ?Sized>(value: &T) -> Result<Self, Problem> {
        Reply::json(StatusCode::OK, value)
    }

    /// It is done, and there is nothing to say.
    pub(crate) fn nothing() -> Self {
        Reply::new(StatusCode::NO_CONTENT, Content::Nothing)
    }

    /// A text of a kind.
    pub(crate) fn text(kind: &'static str, text: impl Into<String>) -> Self {
        Reply::new(StatusCode::OK, Content::Text(kind, text.into()))
    }

    /// A document: JSON, or YAML if that is asked for.
    pub(crate) fn document(value: &Value, format: Option<Format>) -> Result<Self, Problem> {
        match format.unwrap_or_default() {
            Format::Json => Reply::ok(value),
            Format::Yaml => Ok(Reply::text(YAML, yaml(value))),
        }
    }

    /// What it is sent as.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        match &self.content {
            Content::Nothing | Content::Whole(_) => None,
            Content::Json(_) => Some(JSON),
            Content::Text(kind, _) | Content::Stream(kind, _) => Some(kind),
        }
    }

    /// What goes on coming.
    pub(crate) fn stream(kind: &'static str, body: Body) -> Self {
        Reply::new(StatusCode::OK, Content::Stream(kind, body))
    }

    /// A response that was made elsewhere, as it is.
    pub(crate) fn whole(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let headers = head.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
        Reply { status: head.status, content: Content::Whole(body), headers: headers.collect() }
    }

    /// It is at this revision.
    #[must_use]
    pub(crate) fn tagged(self, revision: u64) -> Self {
        self.with(ETAG, &format!("\"{revision}\""))
    }

    /// It is found there.
    #[must_use]
    pub(crate) fn at(self, path: &str) -> Self {
        self.with(LOCATION, path)
    }

    /// It is what was answered before.
    #[must_use]
    pub(crate) fn replayed(self, is_replayed: bool) -> Self {
        if is_replayed { self.with(REPLAYED, "true") } else { self }
    }

    /// With this header, if it can be one.
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
