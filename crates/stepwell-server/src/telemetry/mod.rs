//! Telemetry of a server: metrics for Prometheus and traces for OpenTelemetry.
//!
//! A [`Telemetry`] belongs to one server and observes its engine; a process may have several. Metrics are always
//! counted. Traces are exported only if a collector is configured ([`Telemetry::traced`]).

mod http;
mod otlp;
mod process;
mod registry;
mod request;
mod sampler;
mod spans;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Gauge, Recorder};
use stepwell::core::RunId;
use stepwell::observe::Observer;
use stepwell::store::Instruments;
use stepwell::{Engine, Meters, Observation};

pub use http::Connections;
pub(crate) use http::{Requests, UNMATCHED_ROUTE};
pub use otlp::{TraceOptions, TraceSetupError};
pub(crate) use registry::TEXT;
pub(crate) use request::{CurrentRequest, trace_id};
pub use sampler::Sampler;

use process::Process;
use registry::Registry;
use spans::Tracer;

/// Timeout of the store query for due runs. When it passes, the metrics are returned without them.
const DUE_WITHIN: Duration = Duration::from_secs(2);

// The registry and the span exporter are our own. They need only the `metrics` crate and the HTTP client that
// the server has anyway, so tracing needs no cargo feature and no further dependency.

/// Metrics and traces of one server.
pub struct Telemetry {
    registry: Arc<Registry>,
    meters: Meters,
    requests: Requests,
    connections: Connections,
    process: Process,
    backlog: Backlog,
    scrape_callbacks: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    tracer: Option<Tracer>,
}

/// Gauges that show stuck work: owned runs, and due runs that no process has claimed.
struct Backlog {
    owned: Gauge,
    most: Gauge,
    is_up: Gauge,
    oldest: Gauge,
    tenants: Gauge,
}

impl Backlog {
    fn new(with: Instruments<'_>) -> Self {
        let gauge = |name, about| with.gauge(name, about, &[]);
        Backlog {
            owned: gauge("stepwell_runs_owned", "Runs owned by this process."),
            most: gauge("stepwell_runs_owned_max", "Maximum number of runs that this process owns."),
            is_up: gauge("stepwell_store_up", "1 if the store answered within 2 seconds, otherwise 0."),
            oldest: gauge(
                "stepwell_oldest_due_run_seconds",
                "Age of the oldest due run that no process has claimed, in seconds.",
            ),
            tenants: gauge("stepwell_tenants_due", "Tenants with due runs that no process has claimed."),
        }
    }

    async fn update(&self, engine: &Engine) {
        let (owned, most) = engine.run_capacity();
        self.owned.set(owned as f64);
        self.most.set(most as f64);
        let Ok(Ok(dues)) = tokio::time::timeout(DUE_WITHIN, engine.store().due(Vec::new())).await else {
            self.is_up.set(0);
            return;
        };
        self.is_up.set(1);
        let now = engine.now();
        let late = dues.iter().filter(|due| due.at <= now).map(|due| now.ms_since(due.at));
        self.tenants.set(late.clone().count() as f64);
        self.oldest.set(late.max().unwrap_or(0) as f64 / 1000.0);
    }
}

/// Returns the ids of all routes. They are cached, because building the route table is slow.
fn route_ids() -> &'static [&'static str] {
    static IDS: OnceLock<Vec<&'static str>> = OnceLock::new();
    IDS.get_or_init(|| crate::api::routes().iter().map(|route| route.id).collect())
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// Creates telemetry with metrics and without traces.
    pub fn new() -> Self {
        let registry = Arc::new(Registry::default());
        let with = Instruments(&*registry);
        Telemetry {
            meters: Meters::new(registry.clone()),
            requests: Requests::new(registry.clone(), route_ids().iter().copied()),
            connections: Connections::new(with),
            process: Process::new(with),
            backlog: Backlog::new(with),
            scrape_callbacks: Mutex::default(),
            tracer: None,
            registry,
        }
    }

    /// Creates telemetry with metrics and traces. Spans are sent by a task of the current tokio runtime.
    pub fn traced(options: TraceOptions) -> Result<Self, TraceSetupError> {
        let mut telemetry = Telemetry::new();
        telemetry.tracer = Some(Tracer::start(options, Instruments(&*telemetry.registry))?);
        Ok(telemetry)
    }

    /// Returns the recorder in which a program can register its own metrics.
    pub fn recorder(&self) -> &dyn Recorder {
        &*self.registry
    }

    /// Registers a callback that runs on every metrics request. It should only set gauges and must not block.
    pub fn on_scrape(&self, update: impl Fn() + Send + Sync + 'static) {
        self.scrape_callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(update));
    }

    /// Returns the metrics of connections, for [`ServeOptions`](crate::serve::ServeOptions).
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Returns all metrics in the text format of Prometheus.
    pub(crate) async fn text(&self, engine: &Engine) -> String {
        self.backlog.update(engine).await;
        self.process.update();
        self.scrape_callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .for_each(|update| update());
        self.registry.text()
    }

    /// Sends the queued spans. Spans that cannot be sent within this time are lost.
    pub async fn flush(&self, within: Duration) {
        if let Some(tracer) = &self.tracer {
            tracer.flush(within).await;
        }
    }
}

impl Observer for Telemetry {
    fn observe(&self, observation: &Observation<'_>) {
        self.meters.observe(observation);
        if let Some(tracer) = &self.tracer {
            tracer.observe(observation);
        }
    }

    fn is_traced(&self, root: RunId) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| tracer.samples(root.uuid()))
    }
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").field("is_traced", &self.tracer.is_some()).finish_non_exhaustive()
    }
}
