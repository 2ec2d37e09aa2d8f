//! Builds a request from the action's input, and rejects invalid input before anything is sent.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::ActionError;
use url::Url;

use super::super::invalid;
use super::Hop;

const LONGEST_SECONDS: u64 = 300;
const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// Default name of the header with the idempotency key.
const IDEMPOTENCY: &str = "Idempotency-Key";
/// Headers of the connection, which a workflow must not set: they could redirect the request or contradict its body.
const NOT_SET: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Input of the action `http.request`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// HTTP method (default: `GET`).
    #[serde(default)]
    method: Verb,
    /// URL, such as `https://api.example.com/orders`, without user name and password.
    url: String,
    /// Headers by name. Headers of the connection, such as `Host` and `Content-Length`, cannot be set.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Query parameters to add to the URL: strings, numbers and booleans, or lists of them. Null values are left out.
    #[serde(default)]
    query: BTreeMap<String, Value>,
    /// Request body: a string is sent unchanged, other values as JSON. If the header `Content-Type` is
    /// `application/x-www-form-urlencoded`, an object is sent as a form. Null sends no body.
    #[serde(default)]
    body: Value,
    /// Timeout in seconds for the whole request, from the name lookup to the end of the response.
    #[serde(default = "usual_seconds")]
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    timeout_seconds: u64,
    /// Maximum size of the response body in bytes.
    #[serde(default = "usual_bytes")]
    #[schemars(range(min = 0, max = MOST_BYTES))]
    max_response_bytes: u64,
    /// Statuses that count as success: codes such as `200`, or classes such as `"2xx"`.
    #[serde(default = "usual_statuses")]
    #[schemars(length(min = 1))]
    expect_status: Vec<Expected>,
    /// Follow redirects: at most five, and only to the same scheme, host and port.
    #[serde(default = "yes")]
    follow_redirects: bool,
    /// Header for the idempotency key, which is the same for every attempt of this step (default: `Idempotency-Key`).
    /// It is sent with methods that change something. An empty string sends none.
    #[serde(default)]
    idempotency_header: Option<String>,
}

fn usual_seconds() -> u64 {
    30
}

fn usual_bytes() -> u64 {
    1024 * 1024
}

fn usual_statuses() -> Vec<Expected> {
    vec![Expected::Text("2xx".to_owned())]
}

fn yes() -> bool {
    true
}

/// The HTTP methods that a workflow can use.
#[derive(Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Verb {
    #[default]
    Get,
    Head,
    Options,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Verb::Get => Method::GET,
            Verb::Head => Method::HEAD,
            Verb::Options => Method::OPTIONS,
            Verb::Post => Method::POST,
            Verb::Put => Method::PUT,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        }
    }
}

/// A status or class of statuses that counts as success.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Expected {
    /// One status code, from 100 to 599.
    Code(#[schemars(range(min = 100, max = 599))] u16),
    /// A class such as `2xx`, or one status code as text.
    Text(#[schemars(regex(pattern = r"^[1-5]([0-9]{2}|[xX]{2})$"))] String),
}

impl Expected {
    /// Returns the first and the last status; `None` if the text is invalid.
    fn range(&self) -> Option<(u16, u16)> {
        let code = |code: u16| (100..=599).contains(&code).then_some((code, code));
        match self {
            Expected::Code(number) => code(*number),
            Expected::Text(text) => match text.to_ascii_lowercase().strip_suffix("xx") {
                Some(digit) if digit.len() == 1 => {
                    let first = digit.parse::<u16>().ok()? * 100;
                    (100..=500).contains(&first).then_some((first, first + 99))
                }
                _ if text.len() == 3 => code(text.parse().ok()?),
                _ => None,
            },
        }
    }
}

/// Options of a request that apply while it is in flight.
pub(super) struct PreparedRequest {
    /// The URL exactly as given, so that the redaction finds secrets in it.
    pub(super) url: String,
    pub(super) timeout: Duration,
    pub(super) most_bytes: usize,
    pub(super) follows: bool,
    expected: Vec<(u16, u16)>,
    /// All strings of the input. Each of them may be a secret.
    pub(super) given: Vec<String>,
}

impl PreparedRequest {
    /// Validates the input and builds the first request. `key` is the idempotency key of the step.
    pub(super) fn of(input: Input, key: &str) -> Result<(Self, Hop), ActionError> {
        let expected = input.expect_status.iter().map(Expected::range).collect::<Option<Vec<_>>>();
        let expected = expected.filter(|ranges| !ranges.is_empty()).ok_or_else(|| {
            invalid("`expect_status` must list codes from 100 to 599 or classes such as `2xx`")
        })?;
        if !(1..=LONGEST_SECONDS).contains(&input.timeout_seconds) {
            return Err(invalid(format!("`timeout_seconds` must be from 1 to {LONGEST_SECONDS}")));
        }
        if input.max_response_bytes > MOST_BYTES {
            return Err(invalid(format!("`max_response_bytes` must be at most {MOST_BYTES}")));
        }
        let hop = hop(&input, key)?;
        let asked = PreparedRequest {
            timeout: Duration::from_secs(input.timeout_seconds),
            most_bytes: usize::try_from(input.max_response_bytes).unwrap_or(usize::MAX),
            follows: input.follow_redirects,
            expected,
            given: given(&input),
            url: input.url,
        };
        Ok((asked, hop))
    }

    pub(super) fn expects(&self, status: StatusCode) -> bool {
        let status = status.as_u16();
        self.expected.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

fn hop(input: &Input, idempotency_key: &str) -> Result<Hop, ActionError> {
    let mut url = address(&input.url)?;
    let query = pairs(&input.query, "query")?;
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    if url.as_str().parse::<Uri>().is_err() {
        return Err(invalid("`url` and `query` together are too long or not a valid URL"));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &input.headers {
        if headers.insert(header_name(name)?, header_value(name, value)?).is_some() {
            return Err(invalid(format!("header `{name}` is given twice")));
        }
    }
    let method = input.method.method();
    let key = key_header(input, &method)?.filter(|name| !headers.contains_key(name));
    if let Some(name) = &key {
        headers.insert(name, header_value(name.as_str(), idempotency_key)?);
    }
    let body = body(&input.body, &mut headers)?;
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    let agent = HeaderValue::from_static(concat!("stepwell/", env!("CARGO_PKG_VERSION")));
    headers.entry(USER_AGENT).or_insert(agent);
    Ok(Hop { method, url, headers, key, body })
}

/// Returns the header for the idempotency key, if the method changes something.
fn key_header(input: &Input, method: &Method) -> Result<Option<HeaderName>, ActionError> {
    let name = input.idempotency_header.as_deref().unwrap_or(IDEMPOTENCY);
    if name.is_empty() { Ok(None) } else { Ok(Some(header_name(name)?).filter(|_| !method.is_safe())) }
}

/// Parses and normalises the URL, so that the checks see the same target as the connection.
fn address(text: &str) -> Result<Url, ActionError> {
    if text.chars().any(char::is_control) {
        return Err(invalid("`url` contains a line break or another control character"));
    }
    let wrong =
        |why: &str| invalid(format!("`url` is not a URL such as `https://example.com/orders`: {why}"));
    let mut url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it must start with `https://` or `http://`"));
    }
    if has_user(&url) {
        return Err(invalid("`url` contains a user name or password: send them in a header"));
    }
    url.set_fragment(None);
    Ok(url)
}

pub(super) fn has_user(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn header_name(name: &str) -> Result<HeaderName, ActionError> {
    let known: HeaderName =
        name.parse().map_err(|_| invalid(format!("{name:?} is not a valid header name")))?;
    if NOT_SET.contains(&known.as_str()) {
        return Err(invalid(format!("header `{name}` belongs to the connection and cannot be set")));
    }
    Ok(known)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, ActionError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        invalid(format!("the value of header `{name}` contains characters that are not allowed in headers"))
    })?;
    // The value may be a secret, so it must not appear in logs.
    value.set_sensitive(true);
    Ok(value)
}

/// Converts fields to pairs of name and text, with one pair per list item. Nulls are left out.
fn pairs<'a>(
    fields: impl IntoIterator<Item = (&'a String, &'a Value)>,
    what: &str,
) -> Result<Vec<(&'a str, String)>, ActionError> {
    let mut pairs = Vec::new();
    for (name, value) in fields {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            other => std::slice::from_ref(other),
        };
        for item in items {
            match item {
                Value::Null => {}
                Value::String(text) => pairs.push((name.as_str(), text.clone())),
                Value::Bool(_) | Value::Number(_) => pairs.push((name.as_str(), item.to_string())),
                Value::Array(_) | Value::Object(_) => {
                    return Err(invalid(format!(
                        "`{what}.{name}` must be a string, number or boolean, or a list of them"
                    )));
                }
            }
        }
    }
    Ok(pairs)
}

/// Returns the bytes of the body, and sets `Content-Type` if the input does not.
fn body(body: &Value, headers: &mut HeaderMap) -> Result<Bytes, ActionError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = media_type(kind) == "application/x-www-form-urlencoded";
    let (bytes, kind) = match body {
        Value::Null => return Ok(Bytes::new()),
        Value::String(text) => (text.clone(), "text/plain; charset=utf-8"),
        Value::Object(fields) if is_form => {
            let form =
                form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs(fields, "body")?).finish();
            return Ok(form.into());
        }
        other => (other.to_string(), "application/json"),
    };
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
    Ok(bytes.into())
}

/// Returns a media type in lower case, without its parameters.
pub(super) fn media_type(header: &str) -> String {
    header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns all strings of the input that may be secrets.
fn given(input: &Input) -> Vec<String> {
    let mut given: Vec<String> = vec![input.url.clone()];
    given.extend(input.headers.values().cloned());
    let mut open: Vec<&Value> = input.query.values().collect();
    open.push(&input.body);
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => given.push(text.clone()),
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    given.retain(|text| !text.is_empty());
    given
}
