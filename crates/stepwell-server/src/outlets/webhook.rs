//! The webhook outlet: posts the message as signed JSON to a URL.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, USER_AGENT};
use axum::http::{Request, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use rustls::ClientConfig;
use serde_json::Value;
use sha2::Sha256;
use stepwell::flow::{Message, Outlet, OutletError};
use stepwell::host::BoxFuture;
use stepwell::{Clock, SystemClock};

use super::client::{HttpClient, Unanswered, client, unanswered};
use super::target::{AllowSettings, Allowed, Forbidden, plain_host};
use super::{Links, SetupError, USUAL, checked};

/// Prefix of a secret.
const SECRET: &str = "whsec_";
/// Allowed length of a secret, in bytes.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Builder of a webhook outlet.
#[derive(Clone)]
pub struct WebhookBuilder {
    secrets: Vec<String>,
    url: Option<String>,
    links: Option<String>,
    timeout: Duration,
    allowed: Allowed,
    tls: Option<ClientConfig>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for WebhookBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookBuilder").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl WebhookBuilder {
    /// Adds a secret. Messages are signed with every secret, so that receivers can rotate to a new one.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// Sends all messages to this URL (default: the URL that each message names).
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Adds a field `link` to messages: the URL of the token's page under this base URL.
    #[must_use]
    pub fn links(mut self, links: impl Into<String>) -> Self {
        self.links = Some(links.into());
        self
    }

    /// Sets the timeout for sending one message (default: 20 s, at most 50 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Allows a host, and restricts messages to the allowed hosts.
    #[must_use]
    pub fn allow_host(mut self, host: &str) -> Self {
        self.allowed.hosts.insert(plain_host(host));
        self
    }

    /// Allows a host that is in a private network or on this machine.
    #[must_use]
    pub fn allow_private_host(mut self, host: &str) -> Self {
        self.allowed.private.insert(plain_host(host));
        self
    }

    /// Allows plain HTTP to other machines. Anyone on the network path can then read and use the tokens.
    #[must_use]
    pub fn allow_plain_http(mut self) -> Self {
        self.allowed.plain = true;
        self
    }

    /// Sets the name of the table with the outlet's settings, such as `flows.outlets.crm`. The errors of refused targets
    /// then name the setting that allows them.
    #[must_use]
    pub fn settings(mut self, table: &str) -> Self {
        self.allowed.settings = AllowSettings::of_outlet(table);
        self
    }

    /// Sets the TLS configuration (default: the certificate authorities of the system).
    #[must_use]
    pub fn tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Sets the clock for the signed timestamp.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Checks the options and builds the outlet. Sends no request.
    pub fn build(self) -> Result<Webhook, SetupError> {
        let WebhookBuilder { secrets, url, links, timeout, allowed, tls, clock } = self;
        let secrets = secrets.iter().map(|secret| read(secret)).collect::<Result<BTreeSet<_>, _>>()?;
        let wrong = |error: Forbidden| SetupError(format!("the URL of the webhook is not allowed: {error}"));
        let url = url.map(|url| allowed.target(&url).map_err(wrong)).transpose()?;
        let links = links.map(|links| Links::new(&links)).transpose()?;
        let timeout = checked(timeout)?;
        let allowed = Arc::new(allowed);
        let client = client(allowed.clone(), tls, timeout)?;
        Ok(Webhook(Arc::new(Inner { client, secrets, url, links, timeout, allowed, clock })))
    }
}

/// The webhook outlet, after the Standard Webhooks specification.
///
/// Each message is a `POST` of its JSON with the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
/// Redirects are not followed. Clones share the outlet.
#[derive(Clone)]
pub struct Webhook(Arc<Inner>);

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("allowed", &self.0.allowed).finish_non_exhaustive()
    }
}

struct Inner {
    client: HttpClient,
    secrets: BTreeSet<Vec<u8>>,
    url: Option<Uri>,
    links: Option<Links>,
    timeout: Duration,
    allowed: Arc<Allowed>,
    clock: Arc<dyn Clock>,
}

impl Webhook {
    /// Starts a builder with the signing secret: `whsec_` and the base64 of 24 to 64 random bytes.
    pub fn builder(secret: impl Into<String>) -> WebhookBuilder {
        WebhookBuilder {
            secrets: vec![secret.into()],
            url: None,
            links: None,
            timeout: USUAL,
            allowed: Allowed::default(),
            tls: None,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

impl Outlet for Webhook {
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            let request = inner.request(&message)?;
            let host = request.uri().host().unwrap_or_default().to_owned();
            match tokio::time::timeout(inner.timeout, inner.client.request(request)).await {
                Ok(Ok(response)) => judged(&host, response.status()),
                Ok(Err(error)) => Err(not_sent(&host, &error)),
                Err(_) => {
                    let ms = inner.timeout.as_millis();
                    Err(OutletError::new(format!("`{host}` did not answer within {ms} ms")))
                }
            }
        })
    }
}

impl Inner {
    fn request(&self, message: &Message) -> Result<Request<Full<Bytes>>, OutletError> {
        let wrong = |why: &dyn fmt::Display| {
            OutletError::new(format!("cannot send the message to its URL: {why}")).non_retryable()
        };
        let url = match &self.url {
            Some(url) => url.clone(),
            None => self.allowed.target(&message.to).map_err(|error| wrong(&error))?,
        };
        let body = self.body(message).map_err(|error| wrong(&error))?;
        let at = self.clock.now().micros().div_euclid(1_000_000);
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("stepwell/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", self.signature(&message.id, at, &body));
        request.body(Full::new(body.into())).map_err(|error| wrong(&error))
    }

    fn body(&self, message: &Message) -> Result<Vec<u8>, serde_json::Error> {
        let mut body = serde_json::to_value(message)?;
        if let (Some(links), Value::Object(fields)) = (&self.links, &mut body) {
            fields.insert("link".to_owned(), links.to(&message.token).into());
        }
        serde_json::to_vec(&body)
    }

    /// Returns one signature per secret, separated by spaces. The receiver accepts the one it can verify.
    fn signature(&self, id: &str, at: i64, body: &[u8]) -> String {
        let signed = self.secrets.iter().map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC accepts keys of any length");
            mac.update(format!("{id}.{at}.").as_bytes());
            mac.update(body);
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        });
        signed.collect::<Vec<_>>().join(" ")
    }
}

/// Maps the status of a response: success, retryable error (408, 425, 429 and 5xx) or final error.
fn judged(host: &str, status: StatusCode) -> Result<(), OutletError> {
    if status.is_success() {
        return Ok(());
    }
    let failed = OutletError::new(format!("`{host}` answered with status {}", status.as_u16()));
    let again =
        matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS);
    Err(if again || status.is_server_error() { failed } else { failed.non_retryable() })
}

/// Converts a client error. A forbidden address is final; network errors are retryable.
fn not_sent(host: &str, error: &(dyn StdError + 'static)) -> OutletError {
    match unanswered(error) {
        Unanswered::Forbidden(forbidden) => OutletError::new(forbidden.to_string()).non_retryable(),
        Unanswered::Broken(why) => OutletError::new(format!("cannot reach `{host}`: {why}")),
    }
}

/// Decodes a secret and checks its length.
fn read(secret: &str) -> Result<Vec<u8>, SetupError> {
    let bytes = secret.strip_prefix(SECRET).and_then(|text| STANDARD.decode(text).ok());
    bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len())).ok_or_else(|| {
        SetupError::new(format!(
            "the secret of a webhook must be `{SECRET}` and the base64 of {} to {} random bytes",
            SECRET_BYTES.start(),
            SECRET_BYTES.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::{StatusCode, Webhook, judged, read};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn signature_matches_the_specification_example() {
        let webhook = Webhook::builder(SECRET).build().unwrap();
        let signature =
            webhook.0.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let two = Webhook::builder(SECRET).secret("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").build().unwrap();
        let signatures =
            two.0.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signatures.split(' ').count(), 2);
        assert!(signatures.contains(&signature));
    }

    #[test]
    fn secrets_are_checked_and_hidden() {
        for wrong in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAA", "whsec_!"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(!format!("{:?}", Webhook::builder(SECRET)).contains("MfKQ"));
        assert!(!format!("{:?}", Webhook::builder(SECRET).build().unwrap()).contains("MfKQ"));
    }

    #[test]
    fn status_decides_success_retry_or_failure() {
        let judge = |status: u16| judged("example.com", StatusCode::from_u16(status).unwrap());
        assert!([200, 201, 204].into_iter().all(|status| judge(status).is_ok()));
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(!judge(status).unwrap_err().is_final(), "{status}");
        }
        for status in [301, 302, 307, 400, 401, 403, 404, 410, 422] {
            assert!(judge(status).unwrap_err().is_final(), "{status}");
        }
    }
}
