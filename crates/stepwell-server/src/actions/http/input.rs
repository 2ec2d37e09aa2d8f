//! What a request is made of, and what is refused before anybody is asked.

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
/// The header that says which requests are one and the same, as most servers know it.
const IDEMPOTENCY: &str = "Idempotency-Key";
/// Headers that belong to the connection: whoever sets them speaks to another server, or says two things at once.
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

/// A request to a server.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// What the server is asked to do.
    #[serde(default)]
    method: Verb,
    /// The address, such as `https://api.example.com/orders`. It has no user or password in it.
    url: String,
    /// Headers by name. Those of the connection, such as `Host` and `Content-Length`, cannot be set.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// What is added to the address's query: text, numbers and booleans, or lists of them. What is null is left out.
    #[serde(default)]
    query: BTreeMap<String, Value>,
    /// What is sent: text as it is, everything else as JSON, or as a form if the header `Content-Type` says
    /// `application/x-www-form-urlencoded`. Without it, or with null, nothing.
    #[serde(default)]
    body: Value,
    /// How long all of it may take, from looking up the host to the end of the answer.
    #[serde(default = "usual_seconds")]
    #[schemars(range(min = 1, max = LONGEST_SECONDS))]
    timeout_seconds: u64,
    /// How long the body of the answer may be.
    #[serde(default = "usual_bytes")]
    #[schemars(range(min = 0, max = MOST_BYTES))]
    max_response_bytes: u64,
    /// Which statuses are a success: codes such as `200`, or `"2xx"` for all that begin so.
    #[serde(default = "usual_statuses")]
    #[schemars(length(min = 1))]
    expect_status: Vec<Expected>,
    /// Go where the server sends the request on to: at most five times, and only to the same scheme, host and port.
    #[serde(default = "yes")]
    follow_redirects: bool,
    /// The header with the key that is the same for every try of this step, sent with methods that change something.
    /// Without it `Idempotency-Key`; an empty text sends none.
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

/// What a server is asked to do.
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

/// Statuses that are a success.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Expected {
    /// One status.
    Code(#[schemars(range(min = 100, max = 599))] u16),
    /// All that begin with a digit, such as `2xx`; or one status.
    Text(#[schemars(regex(pattern = r"^[1-5]([0-9]{2}|[xX]{2})$"))] String),
}

impl Expected {
    /// The first and the last of them.
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

/// What is to be known of a request while it is under way.
pub(super) struct Asked {
    /// The address as it was given: a secret is found in it as it is spelled.
    pub(super) url: String,
    pub(super) timeout: Duration,
    pub(super) most_bytes: usize,
    pub(super) follows: bool,
    expected: Vec<(u16, u16)>,
    /// Texts that were given, each of which may be a secret.
    pub(super) given: Vec<String>,
}

impl Asked {
    /// Takes an input apart; `key` is the same for every try.
    pub(super) fn of(input: Input, key: &str) -> Result<(Self, Hop), ActionError> {
        let expected = input.expect_status.iter().map(Expected::range).collect::<Option<Vec<_>>>();
        let expected = expected
            .filter(|ranges| !ranges.is_empty())
            .ok_or_else(|| invalid("`expect_status` lists codes from 100 to 599, or texts such as `2xx`"))?;
        if !(1..=LONGEST_SECONDS).contains(&input.timeout_seconds) {
            return Err(invalid(format!("`timeout_seconds` is from 1 to {LONGEST_SECONDS}")));
        }
        if input.max_response_bytes > MOST_BYTES {
            return Err(invalid(format!("`max_response_bytes` is at most {MOST_BYTES}")));
        }
        let hop = hop(&input, key)?;
        let asked = Asked {
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
        return Err(invalid("`url` and `query` together are too long, or no address of the web"));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &input.headers {
        if headers.insert(header_name(name)?, header_value(name, value)?).is_some() {
            return Err(invalid(format!("header `{name}` is there twice")));
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

/// The header that the key goes into, if the request changes something.
fn key_header(input: &Input, method: &Method) -> Result<Option<HeaderName>, ActionError> {
    let name = input.idempotency_header.as_deref().unwrap_or(IDEMPOTENCY);
    if name.is_empty() { Ok(None) } else { Ok(Some(header_name(name)?).filter(|_| !method.is_safe())) }
}

/// The address in its one spelling: what is decided about is what is connected to.
fn address(text: &str) -> Result<Url, ActionError> {
    if text.chars().any(char::is_control) {
        return Err(invalid("`url` has a line end or another control character in it"));
    }
    let wrong =
        |why: &str| invalid(format!("`url` is no address such as `https://example.com/orders`: {why}"));
    let mut url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it begins neither with `https://` nor with `http://`"));
    }
    if has_user(&url) {
        return Err(invalid("`url` has a user or a password in it: send them in a header"));
    }
    url.set_fragment(None);
    Ok(url)
}

pub(super) fn has_user(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn header_name(name: &str) -> Result<HeaderName, ActionError> {
    let known: HeaderName =
        name.parse().map_err(|_| invalid(format!("{name:?} is not the name of a header")))?;
    if NOT_SET.contains(&known.as_str()) {
        return Err(invalid(format!("header `{name}` belongs to the connection and cannot be set")));
    }
    Ok(known)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, ActionError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        invalid(format!("the value of header `{name}` has characters in it that no header can have"))
    })?;
    // It may be a secret: it is not to be in what is logged.
    value.set_sensitive(true);
    Ok(value)
}

/// The fields of an object as names and texts.
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
                        "`{what}.{name}` is no text, number or boolean, and no list of them"
                    )));
                }
            }
        }
    }
    Ok(pairs)
}

/// The bytes of a body, and a header that says what they are, if there is none.
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

/// A media type without its parameters, in small letters.
pub(super) fn media_type(header: &str) -> String {
    header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// All texts of an input in which a secret may be.
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
