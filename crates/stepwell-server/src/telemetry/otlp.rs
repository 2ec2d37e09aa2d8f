//! Sends spans to a collector: OTLP over HTTP, as JSON.
//!
//! Spans go through a bounded queue, and adding one never blocks. If the queue is full or the collector does not accept
//! them, spans are lost and counted as lost.

use std::fmt;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, Request, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use metrics::Counter;
use serde_json::{Value, json};
use stepwell::store::Instruments;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::sampler::Sampler;
use super::spans::{Attribute, Span};
use crate::outlets::system_tls;

/// Capacity of the queue, in spans.
const WAITING: usize = 8_192;
/// Maximum number of spans per request.
const AT_ONCE: usize = 512;
/// Maximum time that a span waits for others to be sent with it.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of bytes read of a collector's response.
const MOST_ANSWERED: usize = 64 * 1024;
/// Minimum time between two log lines about a failing collector.
const SILENCE: Duration = Duration::from_secs(60);

/// Options for exporting traces.
#[derive(Clone)]
pub struct TraceOptions {
    /// Complete URL, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Headers of every request, such as credentials.
    pub headers: Vec<(String, String)>,
    /// Value of the resource attribute `service.name` (default: `stepwell`).
    pub service: String,
    /// Additional resource attributes. They cannot replace `service.name`, `service.version` and `process.pid`.
    pub resource: Vec<(String, String)>,
    /// Selects the traces that are exported.
    pub sampler: Sampler,
    /// Timeout of one request (default: 10 s).
    pub timeout: Duration,
}

impl TraceOptions {
    /// Returns options for this URL, with defaults for everything else.
    pub fn new(url: impl Into<String>) -> Self {
        TraceOptions {
            url: url.into(),
            headers: Vec::new(),
            service: "stepwell".to_owned(),
            resource: Vec::new(),
            sampler: Sampler::default(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl fmt::Debug for TraceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URL and headers may contain credentials.
        f.debug_struct("TraceOptions")
            .field("service", &self.service)
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

/// The trace options are invalid. The text says which value and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TraceSetupError(String);

/// The sending side of the span queue.
pub(super) struct Exporter {
    queue: mpsc::Sender<Message>,
    lost: Counter,
}

enum Message {
    Span(Box<Span>),
    /// Requests an acknowledgement once all earlier spans are sent or lost.
    Flush(oneshot::Sender<()>),
}

impl Exporter {
    /// Starts the task that sends spans, in the current runtime.
    pub(super) fn start(options: TraceOptions, with: Instruments<'_>) -> Result<Self, TraceSetupError> {
        let (queue, waiting) = mpsc::channel(WAITING);
        let about = "Spans lost because the queue was full or the collector did not accept them.";
        let lost = with.counter("stepwell_spans_dropped_total", about, &[]);
        let sent = with.counter("stepwell_spans_sent_total", "Spans accepted by the collector.", &[]);
        let sender = Sender::new(options, sent, lost.clone())?;
        tokio::spawn(sender.run(waiting));
        Ok(Exporter { queue, lost })
    }

    pub(super) fn send(&self, span: Span) {
        if self.queue.try_send(Message::Span(Box::new(span))).is_err() {
            self.lost.increment(1);
        }
    }

    pub(super) async fn flush(&self, within: Duration) {
        let (asked, done) = oneshot::channel();
        let flushed = async {
            if self.queue.send(Message::Flush(asked)).await.is_ok() {
                let _ = done.await;
            }
        };
        if timeout(within, flushed).await.is_err() {
            tracing::warn!("spans were lost at shutdown because the collector did not accept them in time");
        }
    }
}

type Https = hyper_rustls::HttpsConnector<HttpConnector>;

/// Sends spans in batches.
struct Sender {
    client: Client<Https, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    resource: Value,
    timeout: Duration,
    sent: Counter,
    lost: Counter,
    /// Time of the last log line about a failing collector.
    said: Option<Instant>,
}

impl Sender {
    fn new(options: TraceOptions, sent: Counter, lost: Counter) -> Result<Self, TraceSetupError> {
        let TraceOptions { url, headers: given, service, resource, timeout, .. } = options;
        let wrong = |why: &str| TraceSetupError(format!("cannot send traces to `{url}`: {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("this is not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(wrong("write `http://HOST:PORT/…` or `https://…`"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in given {
            let parsed = (HeaderName::try_from(&name), HeaderValue::try_from(&value));
            let (Ok(name), Ok(mut value)) = parsed else {
                return Err(wrong(&format!("header `{name}` has an invalid name or value")));
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let tls = system_tls().map_err(|error| wrong(&error.to_string()))?;
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(https);
        let known = [
            ("service.name", service),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("process.pid", std::process::id().to_string()),
        ];
        let more = resource.iter().filter(|(name, _)| known.iter().all(|(known, _)| known != name));
        let all = known.iter().map(|(name, value)| (*name, value.as_str()));
        let all = all.chain(more.map(|(name, value)| (name.as_str(), value.as_str())));
        let resource: Value =
            all.map(|(name, value)| json!({"key": name, "value": {"stringValue": value}})).collect();
        Ok(Sender { client, uri, headers, resource, timeout, sent, lost, said: None })
    }

    async fn run(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut spans = Vec::new();
        while let Some(first) = waiting.recv().await {
            let mut asked = taken(first, &mut spans);
            let until = Instant::now() + PAUSE;
            while asked.is_none() && spans.len() < AT_ONCE {
                let Ok(Some(next)) = timeout_at(until, waiting.recv()).await else { break };
                asked = taken(next, &mut spans);
            }
            self.send(std::mem::take(&mut spans)).await;
            if let Some(asked) = asked {
                let _ = asked.send(());
            }
        }
    }

    async fn send(&mut self, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len() as u64;
        match timeout(self.timeout, self.post(body(&self.resource, &spans))).await {
            Ok(Ok(())) => self.sent.increment(count),
            Ok(Err(why)) => self.lose(count, &why),
            Err(_) => self.lose(count, "the collector did not answer in time"),
        }
    }

    async fn post(&self, body: Value) -> Result<(), String> {
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.client.request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        // Read to the end, so that the connection can be reused. The content does not matter.
        let _ = Limited::new(response.into_body(), MOST_ANSWERED).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("the collector answered with status {status}")) }
    }

    fn lose(&mut self, count: u64, why: &str) {
        self.lost.increment(count);
        if self.said.is_none_or(|said| said.elapsed() >= SILENCE) {
            self.said = Some(Instant::now());
            tracing::warn!(spans = count, %why, "the collector did not accept spans; they are lost");
        }
    }
}

fn taken(message: Message, spans: &mut Vec<Span>) -> Option<oneshot::Sender<()>> {
    match message {
        Message::Span(span) => {
            spans.push(*span);
            None
        }
        Message::Flush(asked) => Some(asked),
    }
}

/// Returns the request body in the JSON encoding of OTLP: ids are hexadecimal, and 64-bit numbers are strings.
fn body(resource: &Value, spans: &[Span]) -> Value {
    let scope = json!({"name": "stepwell", "version": env!("CARGO_PKG_VERSION")});
    let spans: Vec<_> = spans.iter().map(shown).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
}

fn shown(span: &Span) -> Value {
    let trace = |id: &Uuid| id.simple().to_string();
    let attributes: Value = span
        .attributes
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Attribute::Text(text) => json!({"stringValue": text}),
                Attribute::Number(number) => json!({"intValue": number.to_string()}),
            };
            json!({"key": name, "value": value})
        })
        .collect();
    let links: Value = span
        .links
        .iter()
        .map(|(of, id)| json!({"traceId": trace(of), "spanId": format!("{id:016x}")}))
        .collect();
    let mut shown = json!({
        "traceId": trace(&span.trace),
        "spanId": format!("{:016x}", span.id),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": span.began_ns.to_string(),
        "endTimeUnixNano": span.ended_ns.to_string(),
        "attributes": attributes,
        "links": links,
        "status": match &span.error {
            Some(error) => json!({"code": 2, "message": error}),
            None => json!({}),
        },
    });
    if let Some(parent) = span.parent {
        shown["parentSpanId"] = format!("{parent:016x}").into();
    }
    shown
}
