//! `http.request`: sends an HTTP request and returns the response to the workflow.

mod answer;
mod input;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::Full;
use rustls::ClientConfig;
use serde_json::json;
use stepwell::{ActionError, ActionInfo, Builder, Cx, Permission};
use tokio::time::{Instant, timeout_at};
use url::Url;

use self::answer::Output;
use self::input::{Input, PreparedRequest};
use crate::outlets::SetupError;
use crate::outlets::client::{HttpClient, Unanswered, client, unanswered};
use crate::outlets::target::{AllowSettings, Allowed, Forbidden};

/// Header with the trace of the request (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Maximum number of redirects that are followed.
const MOST_REDIRECTS: usize = 5;
/// Connect timeout. It is shorter than most request timeouts, so that an unreachable host is reported early.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Allowed targets of requests. The default allows every host that is not in a private network.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// Private hosts, addresses and networks that requests may go to: `db.internal`, `10.1.2.3`, `10.0.0.0/8`.
    pub allow: Vec<String>,
    /// If not empty, requests may go only to these hosts and to those of `allow`.
    pub only: Vec<String>,
    /// Allows plain HTTP to loopback addresses only.
    pub https_only: bool,
    /// TLS configuration (default: the certificate authorities of the system).
    pub tls: Option<ClientConfig>,
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("allow", &self.allow)
            .field("only", &self.only)
            .field("https_only", &self.https_only)
            .finish_non_exhaustive()
    }
}

impl HttpOptions {
    /// Checks the options and builds the client. Sends no request.
    pub fn build(self) -> Result<Http, SetupError> {
        let HttpOptions { allow, only, https_only, tls } = self;
        let settings = AllowSettings::of_requests();
        let mut allowed = Allowed { plain: !https_only, settings, ..Allowed::default() };
        for entry in &allow {
            allowed.allow(entry)?;
        }
        for host in &only {
            allowed.only(host)?;
        }
        let allowed = Arc::new(allowed);
        let client = client(allowed.clone(), tls, CONNECT_WITHIN)?;
        Ok(Http(Arc::new(Inner { client, allowed })))
    }
}

/// The configured HTTP client of `http.request`. Clones share it.
#[derive(Clone)]
pub struct Http(Arc<Inner>);

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("allowed", &self.0.allowed).finish_non_exhaustive()
    }
}

struct Inner {
    client: HttpClient,
    allowed: Arc<Allowed>,
}

/// Registers the action `http.request`, which sends through this client.
#[must_use]
pub fn http(builder: Builder, http: Http) -> Builder {
    let request = move |cx: Cx, input: Input| {
        let http = http.clone();
        async move { http.0.run(&cx.idempotency_key(), &cx.traceparent(), input).await }
    };
    builder.described(NAME, ABOUT, request).describe(NAME, described)
}

/// Returns the description of `http.request`.
pub(super) fn info() -> ActionInfo {
    described(ActionInfo::of::<Input, Output>(NAME, ABOUT))
}

const NAME: &str = "http.request";
const ABOUT: &str = "Sends an HTTP request and returns the response.";

fn described(info: ActionInfo) -> ActionInfo {
    let advanced = json!({ "advanced": true });
    info.group("http")
        .icon("globe")
        .permission(Permission::Manage)
        .secret_fields(["/url", "/headers", "/query", "/body"])
        .codes(["httpStatus", "connect", "tooLarge", "refusedAddress", "redirectRefused"])
        .hint("method", json!({ "widget": "select" }))
        .hint("url", json!({ "widget": "url" }))
        .hint("headers", json!({ "widget": "keyValue", "allowSecrets": true }))
        .hint("query", json!({ "widget": "keyValue", "allowSecrets": true }))
        .hint("body", json!({ "widget": "json", "allowSecrets": true }))
        .hint("timeout_seconds", json!({ "widget": "number", "advanced": true }))
        .hint("max_response_bytes", json!({ "widget": "number", "advanced": true }))
        .hint("expect_status", json!({ "widget": "tags", "advanced": true }))
        .hint("follow_redirects", json!({ "widget": "switch", "advanced": true }))
        .hint("idempotency_header", advanced)
}

/// One request of a chain of redirects.
#[derive(Clone)]
struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    /// Name of the idempotency header. It is removed if a redirect turns the request into a `GET`.
    key: Option<HeaderName>,
    body: Bytes,
}

impl Inner {
    async fn run(&self, key: &str, traceparent: &str, input: Input) -> Result<Output, ActionError> {
        let began = Instant::now();
        let (asked, mut hop) = PreparedRequest::of(input, key)?;
        if let Ok(traceparent) = HeaderValue::from_str(traceparent) {
            // A header set by the workflow has precedence.
            hop.headers.entry(TRACEPARENT).or_insert(traceparent);
        }
        let deadline = began + asked.timeout;
        let mut followed = 0;
        let response = loop {
            let response = self.ask(&hop, &asked, deadline).await?;
            match next(&hop, &response).filter(|_| asked.follows) {
                None => break response,
                Some(_) if followed == MOST_REDIRECTS => {
                    let why = format!("there were more than {MOST_REDIRECTS} redirects");
                    return Err(redirect_refused(&hop, &why));
                }
                Some(next) => hop = next.map_err(|why| redirect_refused(&hop, &why))?,
            }
            followed += 1;
        };
        let mut output = answer::read(response, host(&hop.url), &asked, deadline).await?;
        if followed > 0 {
            // The query may contain a secret in another encoding, which the redaction of secrets would not find.
            hop.url.set_query(None);
            output.url = hop.url.into();
        }
        output.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(output)
    }

    /// Sends one request. The address is checked each time, because a name may resolve to another address by now.
    async fn ask(
        &self,
        hop: &Hop,
        asked: &PreparedRequest,
        deadline: Instant,
    ) -> Result<Response<Body>, ActionError> {
        let host = host(&hop.url);
        let uri: Uri =
            hop.url.as_str().parse().map_err(|_| super::invalid("`url` is not a valid request target"))?;
        self.allowed.check(&uri).map_err(|forbidden| refused(&forbidden))?;
        let mut request = Request::new(Full::new(hop.body.clone()));
        *request.method_mut() = hop.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = hop.headers.clone();
        match timeout_at(deadline, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response.map(Body::new)),
            Ok(Err(error)) => Err(match unanswered(&error) {
                Unanswered::Forbidden(forbidden) => refused(&forbidden),
                Unanswered::Broken(why) if error.is_connect() => {
                    ActionError::new("connect", format!("cannot reach `{host}`: {why}"))
                }
                Unanswered::Broken(why) => {
                    ActionError::new("connect", format!("the connection to `{host}` was lost: {why}"))
                }
            }),
            Err(_) => Err(too_late(host, asked)),
        }
    }
}

/// Returns the next request if the response is a redirect. The error says why the redirect is not followed.
fn next(hop: &Hop, response: &Response<Body>) -> Option<Result<Hop, String>> {
    let status = response.status();
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|_| is_redirect)?;
    let url = std::str::from_utf8(location.as_bytes()).ok().and_then(|location| hop.url.join(location).ok());
    let Some(mut url) = url else { return Some(Err("its `Location` header is not a valid URL".to_owned())) };
    if url.origin() != hop.url.origin() || !matches!(url.scheme(), "http" | "https") {
        let to = url.origin().ascii_serialization();
        return Some(Err(format!("`{to}` has another scheme, host or port")));
    }
    if input::has_user(&url) {
        return Some(Err("the URL contains a user name or password".to_owned()));
    }
    url.set_fragment(None);
    let is_kept = match status {
        StatusCode::SEE_OTHER => matches!(hop.method, Method::GET | Method::HEAD),
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        _ => hop.method != Method::POST,
    };
    let mut next = Hop { url, ..hop.clone() };
    if !is_kept {
        // As in browsers: a redirected `POST` becomes a `GET`. A `DELETE` keeps its method on 301 and 302, because a
        // successful `GET` would look like a successful deletion.
        next.method = Method::GET;
        next.body = Bytes::new();
        for header in next.key.take().into_iter().chain([CONTENT_TYPE]) {
            next.headers.remove(header);
        }
    }
    Some(Ok(next))
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

fn refused(forbidden: &Forbidden) -> ActionError {
    ActionError::new("refusedAddress", forbidden.to_string()).non_retryable()
}

fn redirect_refused(hop: &Hop, why: &str) -> ActionError {
    let host = host(&hop.url);
    ActionError::new(
        "redirectRefused",
        format!("`{host}` answered with a redirect that is not followed: {why}"),
    )
    .non_retryable()
}

fn too_late(host: &str, asked: &PreparedRequest) -> ActionError {
    let seconds = asked.timeout.as_secs();
    ActionError::new("timeout", format!("`{host}` did not answer within {seconds} seconds"))
}
