//! What is counted of requests and connections.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::StatusCode;
use metrics::{Counter, Gauge, Histogram};
use stepwell::store::Instruments;

use super::registry::Registry;

/// What requests to nothing are counted as.
pub(crate) const NOWHERE: &str = "none";
/// The classes of answers.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted of requests.
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
            with.counter("stepwell_http_requests_total", "Requests that were answered.", &labels)
        });
        let about = "How long an answer takes to be made; a stream's until it begins.";
        RouteMeter {
            by_class,
            seconds: with.histogram("stepwell_http_request_seconds", about, &[("route", route)]),
        }
    }
}

/// Something is so as long as this is there.
pub(crate) struct While(Gauge);

impl While {
    fn of(gauge: &Gauge) -> Self {
        gauge.increment(1);
        While(gauge.clone())
    }
}

impl Drop for While {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl Requests {
    pub(super) fn new(registry: Arc<Registry>, routes: impl Iterator<Item = &'static str>) -> Self {
        let with = Instruments(&*registry);
        let gauge = |name, about| with.gauge(name, about, &[]);
        let refused = |reason| {
            let about = "Requests of people who were not let in, by the reason.";
            with.counter("stepwell_http_refused_total", about, &[("reason", reason)])
        };
        Requests {
            routes: routes.chain([NOWHERE]).map(|route| (route, OnceLock::new())).collect(),
            in_flight: gauge("stepwell_http_in_flight", "Requests that are being answered."),
            streams: gauge("stepwell_http_streams_open", "Streams of server-sent events that are open."),
            waits: gauge("stepwell_http_waits_open", "Requests that wait for a run."),
            unauthorized: refused("unauthorized"),
            denied: refused("denied"),
            too_often: refused("rate"),
            registry,
        }
    }

    /// A request is being answered, as long as what this gives is there.
    pub(crate) fn in_flight(&self) -> While {
        While::of(&self.in_flight)
    }

    /// A stream is open, as long as what this gives is there.
    pub(crate) fn stream(&self) -> While {
        While::of(&self.streams)
    }

    /// Somebody waits for a run, as long as what this gives is there.
    pub(crate) fn wait(&self) -> While {
        While::of(&self.waits)
    }

    /// A request was answered.
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

/// What is counted of connections. By default nothing is.
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
            open: with.gauge("stepwell_http_connections_open", "Connections that are open.", &[]),
            taken: with.counter("stepwell_http_connections_total", "Connections that were taken in.", &[]),
            turned_away: with.counter(
                "stepwell_http_connections_refused_total",
                "Connections that were turned away because there were too many.",
                &[],
            ),
        }
    }

    /// One is open, as long as what this gives is there.
    pub(crate) fn open(&self) -> While {
        self.taken.increment(1);
        While::of(&self.open)
    }

    /// One was turned away.
    pub(crate) fn turn_away(&self) {
        self.turned_away.increment(1);
    }
}
