//! `http.request`: asks a server of the web, and gives its answer to the workflow.

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
use self::input::{Asked, Input};
use crate::outlets::SetupError;
use crate::outlets::client::{HttpClient, Unanswered, client, unanswered};
use crate::outlets::target::{Allowed, Forbidden};

/// Which trace the request is part of (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// How often a server may send a request on.
const MOST_REDIRECTS: usize = 5;
/// How long it is tried to reach an address: what is not there is told before all the time of a request is gone.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Where requests may go. Without anything said, to every host that is not in a private network.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// Hosts, addresses and networks that may be asked although they are private: `db.internal`, `10.1.2.3`, `10.0.0.0/8`.
    pub allow: Vec<String>,
    /// If there are any, only these hosts are asked, and those of `allow`.
    pub only: Vec<String>,
    /// Only this computer is asked in the clear.
    pub https_only: bool,
    /// How servers are checked; without it, by the certificate authorities of the system.
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
    /// Checks everything. Nobody is asked yet.
    pub fn build(self) -> Result<Http, SetupError> {
        let HttpOptions { allow, only, https_only, tls } = self;
        let mut allowed = Allowed { plain: !https_only, ..Allowed::default() };
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

/// What requests go through. Clones are the same.
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

/// Registers `http.request`.
#[must_use]
pub fn http(builder: Builder, http: Http) -> Builder {
    let request = move |cx: Cx, input: Input| {
        let http = http.clone();
        async move { http.0.run(&cx.idempotency_key(), &cx.traceparent(), input).await }
    };
    builder.described(NAME, ABOUT, request).describe(NAME, described)
}

/// What is to be said of `http.request`.
pub(super) fn info() -> ActionInfo {
    described(ActionInfo::of::<Input, Output>(NAME, ABOUT))
}

const NAME: &str = "http.request";
const ABOUT: &str = "Asks a server of the web and gives its answer.";

fn described(info: ActionInfo) -> ActionInfo {
    let advanced = json!({ "advanced": true });
    info.group("http")
        .icon("globe")
        .permission(Permission::Manage)
        .secret_fields(["/url", "/headers", "/query", "/body"])
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

/// One request of what may be several.
#[derive(Clone)]
struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    /// The one of the headers that is there because something is changed.
    key: Option<HeaderName>,
    body: Bytes,
}

impl Inner {
    async fn run(&self, key: &str, traceparent: &str, input: Input) -> Result<Output, ActionError> {
        let began = Instant::now();
        let (asked, mut hop) = Asked::of(input, key)?;
        if let Ok(traceparent) = HeaderValue::from_str(traceparent) {
            // What the workflow's author says goes before it.
            hop.headers.entry(TRACEPARENT).or_insert(traceparent);
        }
        let deadline = began + asked.timeout;
        let mut followed = 0;
        let response = loop {
            let response = self.ask(&hop, &asked, deadline).await?;
            match next(&hop, &response).filter(|_| asked.follows) {
                None => break response,
                Some(_) if followed == MOST_REDIRECTS => {
                    let why = format!("it was sent on more than {MOST_REDIRECTS} times");
                    return Err(redirect_refused(&hop, &why));
                }
                Some(next) => hop = next.map_err(|why| redirect_refused(&hop, &why))?,
            }
            followed += 1;
        };
        let mut output = answer::read(response, host(&hop.url), &asked, deadline).await?;
        if followed > 0 {
            // What a query holds may be a secret that is spelled otherwise there, and would be found nowhere.
            hop.url.set_query(None);
            output.url = hop.url.into();
        }
        output.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(output)
    }

    /// Asks once. Each time, the address is looked at anew: a name may lead elsewhere by now.
    async fn ask(&self, hop: &Hop, asked: &Asked, deadline: Instant) -> Result<Response<Body>, ActionError> {
        let host = host(&hop.url);
        let uri: Uri = hop.url.as_str().parse().map_err(|_| super::invalid("`url` cannot be asked"))?;
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
                    ActionError::new("connect", format!("`{host}` could not be reached: {why}"))
                }
                Unanswered::Broken(why) => {
                    ActionError::new("connect", format!("the connection to `{host}` broke: {why}"))
                }
            }),
            Err(_) => Err(too_late(host, asked)),
        }
    }
}

/// Where a server sends the request on to, if it does; an error is why it is not gone there.
fn next(hop: &Hop, response: &Response<Body>) -> Option<Result<Hop, String>> {
    let status = response.status();
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|_| is_redirect)?;
    let url = std::str::from_utf8(location.as_bytes()).ok().and_then(|location| hop.url.join(location).ok());
    let Some(mut url) = url else { return Some(Err("what it names is no address".to_owned())) };
    if url.origin() != hop.url.origin() || !matches!(url.scheme(), "http" | "https") {
        let to = url.origin().ascii_serialization();
        return Some(Err(format!("`{to}` is another host, port or scheme")));
    }
    if input::has_user(&url) {
        return Some(Err("the address has a user in it".to_owned()));
    }
    url.set_fragment(None);
    let is_kept = match status {
        StatusCode::SEE_OTHER => matches!(hop.method, Method::GET | Method::HEAD),
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        _ => hop.method != Method::POST,
    };
    let mut next = Hop { url, ..hop.clone() };
    if !is_kept {
        // As browsers do it: what was posted is looked at. A deletion is not made a look that says it went well.
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
    ActionError::new("refusedAddress", forbidden.to_string()).finally()
}

fn redirect_refused(hop: &Hop, why: &str) -> ActionError {
    let host = host(&hop.url);
    ActionError::new(
        "redirectRefused",
        format!("`{host}` sends the request on, and that is not followed: {why}"),
    )
    .finally()
}

fn too_late(host: &str, asked: &Asked) -> ActionError {
    let seconds = asked.timeout.as_secs();
    ActionError::new("timeout", format!("`{host}` did not answer within {seconds} seconds"))
}
