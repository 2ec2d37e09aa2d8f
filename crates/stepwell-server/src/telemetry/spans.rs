//! Creates spans from observations and requests.
//!
//! The spans of a run belong to the trace of the root of its tree; the span of a request belongs to the caller's trace.
//! The ids of a run's spans are derived from data that every process has ([`SpanId`]). So any process that executes the
//! run can create them, and no trace context is stored.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use stepwell::Observation;
use stepwell::core::{RunId, Timestamp};
use stepwell::observe::{NoResult, ObservedRun, SpanId};
use stepwell::store::Instruments;
use uuid::Uuid;

use super::otlp::{Exporter, TraceOptions, TraceSetupError};
use super::request::CurrentRequest;
use super::sampler::Sampler;
use crate::api::Route;

/// A finished span, ready for export.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) trace: Uuid,
    pub(super) id: u64,
    pub(super) parent: Option<u64>,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) began_ns: u128,
    pub(super) ended_ns: u128,
    pub(super) attributes: Vec<(&'static str, Attribute)>,
    pub(super) links: Vec<(Uuid, u64)>,
    /// Error code or HTTP status. Messages are left out, because they may contain data.
    pub(super) error: Option<String>,
}

/// The span kind, with the numbers of OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Internal = 1,
    Server = 2,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attribute {
    Text(String),
    Number(u64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Attribute::Text(text.to_owned())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Attribute::Number(number)
    }
}

/// Creates spans and queues them for export.
pub(crate) struct Tracer {
    sampler: Sampler,
    exporter: Exporter,
}

impl Tracer {
    pub(super) fn start(options: TraceOptions, with: Instruments<'_>) -> Result<Self, TraceSetupError> {
        Ok(Tracer { sampler: options.sampler, exporter: Exporter::start(options, with)? })
    }

    /// Returns true if a trace that started here is sampled.
    pub(crate) fn samples(&self, trace: Uuid) -> bool {
        self.sampler.samples(trace, None)
    }

    /// Returns true if a trace is sampled. `caller` is the caller's sampling decision, if the caller started the trace.
    pub(crate) fn samples_of(&self, trace: Uuid, caller: Option<bool>) -> bool {
        self.sampler.samples(trace, caller)
    }

    pub(super) async fn flush(&self, within: Duration) {
        self.exporter.flush(within).await;
    }

    pub(super) fn observe(&self, observation: &Observation<'_>) {
        let (Observation::Started { of, .. }
        | Observation::Committed { of, .. }
        | Observation::ActionEnded { of, .. }
        | Observation::Signalled { of, .. }) = observation
        else {
            return;
        };
        if self.samples(of.root.uuid()) {
            self.write(of, observation);
        }
    }

    fn write(&self, of: &ObservedRun<'_>, observation: &Observation<'_>) {
        match observation {
            Observation::Started { status, began, ended, .. } => {
                let mut span =
                    span_of(of, SpanId::of_run(of.run), format!("start {}", of.workflow), *began, *ended);
                span.parent = of.parent.map(|parent| SpanId::of_run(parent).number());
                span.attributes.push(("stepwell.status", status.as_str().into()));
                self.send(linked(span));
                if status.is_final() {
                    self.send(whole(of, status.as_str(), *began, *ended));
                }
            }
            Observation::Committed { before, after, revision, version, since, began, ended, .. } => {
                let id = SpanId::of_commit(of.run, *revision);
                let mut span = span_of(of, id, "commit".to_owned(), *began, *ended);
                span.attributes.push(("stepwell.version", (*version).into()));
                span.attributes.push(("stepwell.status", after.as_str().into()));
                self.send(linked(span));
                if after.is_final() && !before.is_final() {
                    self.send(whole(of, after.as_str(), *since, *ended));
                }
            }
            Observation::ActionEnded { tried, result, began, took, .. } => {
                let ended = Timestamp::from_micros(began.micros() + took.as_micros() as i64);
                let mut span = span_of(of, tried.span, tried.action.to_string(), *began, ended);
                span.attributes.push(("stepwell.action", tried.action.as_str().into()));
                span.attributes.push(("stepwell.transition", tried.transition.as_str().into()));
                span.attributes.push(("stepwell.attempt", u64::from(tried.attempt).into()));
                let outcome = match result {
                    Ok(()) => "done",
                    Err(NoResult::Failed(_)) => "failed",
                    Err(NoResult::TimedOut) => "timeout",
                    Err(NoResult::Dropped) => "dropped",
                };
                span.attributes.push(("stepwell.outcome", outcome.into()));
                span.error = result.as_ref().err().map(|missed| match missed {
                    // Only the code: the message may contain data.
                    NoResult::Failed(failure) => failure.code.clone(),
                    NoResult::TimedOut | NoResult::Dropped => outcome.to_owned(),
                });
                self.send(span);
            }
            Observation::Signalled { .. } => {
                // An applied signal is linked through its commit. A buffered signal has no commit yet, so link the run.
                CurrentRequest::link(of.root.uuid(), SpanId::of_run(of.run).number());
            }
            _ => {}
        }
    }

    /// Writes the span of an answered request.
    pub(crate) fn answered(
        &self,
        asking: &CurrentRequest,
        route: Option<&Route>,
        method: &str,
        status: StatusCode,
        took: Duration,
    ) {
        let (true, Some(trace), Some(id)) =
            (asking.is_traced, asking.trace.uuid(), asking.trace.span_number())
        else {
            return;
        };
        let ended_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let mut attributes = vec![
            ("http.request.method", method.into()),
            ("http.response.status_code", u64::from(status.as_u16()).into()),
            ("stepwell.request", asking.trace.request().into()),
        ];
        if let Some(route) = route {
            attributes.push(("http.route", route.path().into()));
            attributes.push(("stepwell.route", route.id.into()));
        }
        self.send(Span {
            trace,
            id,
            parent: asking.trace.parent_number(),
            name: route.map_or_else(|| method.to_owned(), |route| format!("{method} {}", route.path())),
            kind: Kind::Server,
            began_ns: ended_ns.saturating_sub(took.as_nanos()),
            ended_ns,
            attributes,
            links: asking.links(),
            error: status.is_server_error().then(|| status.as_u16().to_string()),
        });
    }

    fn send(&self, span: Span) {
        self.exporter.send(span);
    }
}

/// Returns a span of a run, with the run's own span as its parent.
fn span_of(of: &ObservedRun<'_>, id: SpanId, name: String, began: Timestamp, ended: Timestamp) -> Span {
    Span {
        trace: of.root.uuid(),
        id: id.number(),
        parent: Some(SpanId::of_run(of.run).number()),
        name,
        kind: Kind::Internal,
        began_ns: ns(began),
        ended_ns: ns(ended.max(began)),
        attributes: vec![("stepwell.run", text(of.run)), ("stepwell.workflow", of.workflow.as_str().into())],
        links: Vec::new(),
        error: None,
    }
}

/// Returns the span of a whole run, from its start to its end.
fn whole(of: &ObservedRun<'_>, status: &str, began: Timestamp, ended: Timestamp) -> Span {
    let mut span = span_of(of, SpanId::of_whole(of.run), format!("run {}", of.workflow), began, ended);
    span.attributes.push(("stepwell.status", status.into()));
    span
}

/// Links the span with the current request, in both directions.
fn linked(mut span: Span) -> Span {
    span.links.extend(CurrentRequest::link(span.trace, span.id));
    span
}

fn text(run: RunId) -> Attribute {
    Attribute::Text(run.to_string())
}

fn ns(at: Timestamp) -> u128 {
    u128::try_from(at.micros()).unwrap_or_default() * 1000
}
