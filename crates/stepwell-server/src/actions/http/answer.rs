//! Converts a response to the action's output, or to an error that is retryable or not.

use std::collections::BTreeMap;

use axum::body::{Body, HttpBody};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepwell::ActionError;
use tokio::time::{Instant, timeout_at};

use super::input::{PreparedRequest, media_type};
use super::too_late;

/// Maximum number of bytes read of an error response. It is more than the part that is shown, so that a secret at the
/// end of that part is recognised as a whole.
const READ: usize = 64 * 1024;
/// Maximum number of characters of an error response that are shown.
const SHOWN: usize = 500;

/// The response of the server.
#[derive(Serialize, JsonSchema)]
pub(super) struct Output {
    /// HTTP status code of the last response.
    status: u16,
    /// Headers by lower-case name. Several values of one header are joined with commas.
    headers: BTreeMap<String, String>,
    /// Body: JSON if `Content-Type` says so, otherwise text. Null if the body is empty JSON or not UTF-8.
    body: Value,
    /// Body in base64, if it is not UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// URL that answered: the requested URL, or the target of the last redirect without its query.
    pub(super) url: String,
    /// Duration of the request including redirects, in milliseconds.
    pub(super) duration_ms: u64,
}

/// Reads a response. A status that is not expected is an error.
pub(super) async fn read(
    response: Response<Body>,
    host: &str,
    asked: &PreparedRequest,
    deadline: Instant,
) -> Result<Output, ActionError> {
    let (head, body) = response.into_parts();
    if !asked.expects(head.status) {
        let begins = beginning(body, deadline).await;
        return Err(failure(host, head.status, &head.headers, &begins, asked));
    }
    let bytes = whole(body, host, asked, deadline).await?;
    let (body, body_base64) = value(&head.headers, bytes);
    let headers = texts(&head.headers);
    Ok(Output {
        status: head.status.as_u16(),
        headers,
        body,
        body_base64,
        url: asked.url.clone(),
        duration_ms: 0,
    })
}

/// Reads the whole body. If it is too long, reading stops and the connection is closed.
async fn whole(
    mut body: Body,
    host: &str,
    asked: &PreparedRequest,
    deadline: Instant,
) -> Result<Vec<u8>, ActionError> {
    let most = asked.most_bytes;
    let too_large = || {
        let why = format!("the response of `{host}` is longer than {most} bytes (`max_response_bytes`)");
        ActionError::new("tooLarge", why).non_retryable()
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| too_late(host, asked))?;
        let Some(frame) = frame else { return Ok(bytes) };
        let frame = frame.map_err(|error| {
            ActionError::new(
                "connect",
                format!("the connection to `{host}` was lost within the response: {error}"),
            )
        })?;
        let Some(data) = frame.data_ref() else { continue };
        if data.len() > most - bytes.len() {
            return Err(too_large());
        }
        bytes.extend_from_slice(data);
    }
}

/// Reads the beginning of an error response. A timeout is not an error here, because the status is already known.
async fn beginning(mut body: Body, deadline: Instant) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < READ {
        let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await else { break };
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    bytes.truncate(READ);
    bytes
}

/// Returns the body as a value for the workflow, and as base64 if it is not UTF-8.
fn value(headers: &HeaderMap, bytes: Vec<u8>) -> (Value, Option<String>) {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return (Value::Null, Some(STANDARD.encode(error.as_bytes()))),
    };
    let kind =
        headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(media_type).unwrap_or_default();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if is_json && text.is_empty() {
        return (Value::Null, None);
    }
    let json = is_json.then(|| serde_json::from_str(text.trim_start_matches('\u{feff}')).ok()).flatten();
    (json.unwrap_or(Value::String(text)), None)
}

fn texts(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        texts
            .entry(name.as_str().to_owned())
            .and_modify(|text| text.extend([", ", &value]))
            .or_insert_with(|| value.clone().into_owned());
    }
    texts
}

/// Returns the error for a status. Client errors other than 408, 425 and 429 are not retryable.
fn failure(
    host: &str,
    status: StatusCode,
    headers: &HeaderMap,
    begins: &[u8],
    asked: &PreparedRequest,
) -> ActionError {
    let code = status.as_u16();
    let mut message = format!("`{host}` answered with status {code}");
    if let Some(later) = headers.get(RETRY_AFTER).filter(|_| matches!(code, 429 | 503)) {
        let later: String = String::from_utf8_lossy(later.as_bytes()).chars().take(40).collect();
        let is_seconds = later.bytes().all(|byte| byte.is_ascii_digit());
        let unit = if is_seconds { " seconds" } else { "" };
        message = format!("{message} and asks for a retry after {later}{unit} (Retry-After)");
    }
    let begins = shown(begins, &asked.given);
    if !begins.is_empty() {
        message = format!("{message}: {begins}");
    }
    let failed = ActionError::new("httpStatus", message).status(code);
    let may_pass = matches!(code, 408 | 425 | 429);
    if status.is_client_error() && !may_pass { failed.non_retryable() } else { failed }
}

/// Returns the beginning of an error response. It never ends inside a text that was sent, because the redaction of
/// secrets would not find half a secret.
fn shown(bytes: &[u8], given: &[String]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // The last character may be incomplete.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return format!("({} bytes of binary data)", bytes.len()),
    };
    let end = text.char_indices().nth(SHOWN).map_or(text.len(), |(at, _)| at);
    let is_cut = end < text.len() || bytes.len() >= READ;
    let cuts = |given: &String, cut: usize| {
        let mut found = text.match_indices(given.as_str());
        found.find(|(at, _)| *at < cut && at + given.len() > cut).map(|(at, _)| at)
    };
    let mut cut = end;
    while let Some(before) = given.iter().filter(|_| is_cut).find_map(|given| cuts(given, cut)) {
        cut = before;
    }
    let ellipsis = if is_cut { "…" } else { "" };
    format!("{}{ellipsis}", &text[..cut])
}
