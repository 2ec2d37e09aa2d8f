//! Metrics of requests and connections.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::StatusCode;
use metrics::{Counter, Gauge, Histogram};
use stepwell::store::Instruments;

use super::registry::Registry;

/// Value of the label `route` for requests that match no route.
pub(crate) const UNMATCHED_ROUTE: &str = "none";
/// Values of the label `status`.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Metrics of requests, by route.
pub(crate) struct Requests {
    registry: Arc<Registry>,
    routes: BTreeMap<&'static str, OnceLock<RouteMeter>>,
    in_flight: Gauge,
    streams: Gauge,
    waits: Gauge,
    unauthorized: Counter,
    denied: Counter,
    too_often: Counter,
}

struct RouteMeter {
    by_class: [Counter; 5],
    seconds: Histogram,
}

impl RouteMeter {
    fn new(with: Instruments<'_>, route: &'static str) -> Self {
        let by_class = CLASSES.map(|class| {
            let labels = [("route", route), ("status", class)];
            with.counter(
                "stepwell_http_requests_total",
                "Answered requests, by route and class of status.",
                &labels,
            )
        });
        let about = "Time to produce a response, in seconds; for a stream, the time until it starts.";
        RouteMeter {
            by_class,
            seconds: with.histogram("stepwell_http_request_seconds", about, &[("route", route)]),
        }
    }
}

/// A guard that counts one in a gauge until it is dropped.
pub(crate) struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn of(gauge: &Gauge) -> Self {
        gauge.increment(1);
        GaugeGuard(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl Requests {
    pub(super) fn new(registry: Arc<Registry>, routes: impl Iterator<Item = &'static str>) -> Self {
        let with = Instruments(&*registry);
        let gauge = |name, about| with.gauge(name, about, &[]);
        let refused = |reason| {
            let about = "Requests answered with 401, 403 or 429, by reason.";
            with.counter("stepwell_http_refused_total", about, &[("reason", reason)])
        };
        Requests {
            routes: routes.chain([UNMATCHED_ROUTE]).map(|route| (route, OnceLock::new())).collect(),
            in_flight: gauge("stepwell_http_in_flight", "Requests in flight."),
            streams: gauge("stepwell_http_streams_open", "Open streams of server-sent events."),
            waits: gauge("stepwell_http_waits_open", "Requests that are waiting for a run."),
            unauthorized: refused("unauthorized"),
            denied: refused("denied"),
            too_often: refused("rate"),
            registry,
        }
    }

    /// Counts a request in flight until the guard is dropped.
    pub(crate) fn in_flight(&self) -> GaugeGuard {
        GaugeGuard::of(&self.in_flight)
    }

    /// Counts an open stream until the guard is dropped.
    pub(crate) fn stream(&self) -> GaugeGuard {
        GaugeGuard::of(&self.streams)
    }

    /// Counts a request that waits for a run until the guard is dropped.
    pub(crate) fn wait(&self) -> GaugeGuard {
        GaugeGuard::of(&self.waits)
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, route: &str, status: StatusCode, took: Duration) {
        let Some((name, meter)) = self.routes.get_key_value(route) else { return };
        let meter = meter.get_or_init(|| RouteMeter::new(Instruments(&*self.registry), name));
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        meter.by_class[class].increment(1);
        meter.seconds.record(took);
        match status {
            StatusCode::UNAUTHORIZED => self.unauthorized.increment(1),
            StatusCode::FORBIDDEN => self.denied.increment(1),
            StatusCode::TOO_MANY_REQUESTS => self.too_often.increment(1),
            _ => {}
        }
    }
}

/// Metrics of connections. The default counts nothing.
#[derive(Debug, Clone)]
pub struct Connections {
    open: Gauge,
    taken: Counter,
    turned_away: Counter,
}

impl Default for Connections {
    fn default() -> Self {
        Connections { open: Gauge::noop(), taken: Counter::noop(), turned_away: Counter::noop() }
    }
}

impl Connections {
    pub(super) fn new(with: Instruments<'_>) -> Self {
        Connections {
            open: with.gauge("stepwell_http_connections_open", "Open connections.", &[]),
            taken: with.counter("stepwell_http_connections_total", "Accepted connections.", &[]),
            turned_away: with.counter(
                "stepwell_http_connections_refused_total",
                "Connections refused because `server.max_connections` was reached.",
                &[],
            ),
        }
    }

    /// Counts an open connection until the guard is dropped.
    pub(crate) fn open(&self) -> GaugeGuard {
        self.taken.increment(1);
        GaugeGuard::of(&self.open)
    }

    /// Counts a refused connection.
    pub(crate) fn reject_connection(&self) {
        self.turned_away.increment(1);
    }
}
