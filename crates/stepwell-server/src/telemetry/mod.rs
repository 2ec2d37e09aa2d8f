//! What a server tells those who run it: metrics for Prometheus, and traces for OpenTelemetry.
//!
//! A [`Telemetry`] belongs to one server and listens to its engine; there may be several in a process. Metrics are always
//! counted, traces are written once it is said where to ([`Telemetry::traced`]).

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
use stepwell::{Engine, Fact, Meters};

pub use http::Connections;
pub(crate) use http::{NOWHERE, Requests};
pub use otlp::{SetupError, TraceOptions};
pub(crate) use registry::TEXT;
pub(crate) use request::{Asking, trace_id};
pub use sampler::Sampler;

use process::Process;
use registry::Registry;
use spans::Tracer;

/// How long the store may take to say what is due before the answer goes without it.
const DUE_WITHIN: Duration = Duration::from_secs(2);

/// What a server tells those who run it.
pub struct Telemetry {
    registry: Arc<Registry>,
    meters: Meters,
    requests: Requests,
    connections: Connections,
    process: Process,
    backlog: Backlog,
    looks: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    tracer: Option<Tracer>,
}

/// What shows that something is stuck.
struct Backlog {
    held: Gauge,
    most: Gauge,
    is_up: Gauge,
    oldest: Gauge,
    tenants: Gauge,
}

impl Backlog {
    fn new(with: Instruments<'_>) -> Self {
        let gauge = |name, about| with.gauge(name, about, &[]);
        Backlog {
            held: gauge("stepwell_runs_held", "Runs that this process works on."),
            most: gauge("stepwell_runs_held_max", "Runs that this process works on at most."),
            is_up: gauge("stepwell_store_up", "1 if the store answers."),
            oldest: gauge(
                "stepwell_oldest_due_seconds",
                "For how long the run has been due that nobody has taken up for longest.",
            ),
            tenants: gauge(
                "stepwell_tenants_due",
                "Tenants with runs that are due and that nobody has taken up.",
            ),
        }
    }

    async fn look(&self, engine: &Engine) {
        let (held, most) = engine.room();
        self.held.set(held as f64);
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

/// The ids of all routes; putting the table together takes a while.
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
    /// Metrics, and no traces.
    pub fn new() -> Self {
        let registry = Arc::new(Registry::default());
        let with = Instruments(&*registry);
        Telemetry {
            meters: Meters::new(registry.clone()),
            requests: Requests::new(registry.clone(), route_ids().iter().copied()),
            connections: Connections::new(with),
            process: Process::new(with),
            backlog: Backlog::new(with),
            looks: Mutex::default(),
            tracer: None,
            registry,
        }
    }

    /// Metrics and traces. Spans are sent in the background of the runtime that this is called in.
    pub fn traced(options: TraceOptions) -> Result<Self, SetupError> {
        let mut telemetry = Telemetry::new();
        telemetry.tracer = Some(Tracer::start(options, Instruments(&*telemetry.registry))?);
        Ok(telemetry)
    }

    /// Where more can be counted.
    pub fn recorder(&self) -> &dyn Recorder {
        &*self.registry
    }

    /// What is to be looked at whenever somebody asks for the metrics; it sets gauges and does nothing slow.
    pub fn at_each_look(&self, look: impl Fn() + Send + Sync + 'static) {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(look));
    }

    /// What is counted of connections.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Everything that is counted, in the text format of Prometheus.
    pub(crate) async fn text(&self, engine: &Engine) -> String {
        self.backlog.look(engine).await;
        self.process.look();
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|look| look());
        self.registry.text()
    }

    /// Sends the spans that have not been sent, within this time; what is left then is lost.
    pub async fn flush(&self, within: Duration) {
        if let Some(tracer) = &self.tracer {
            tracer.flush(within).await;
        }
    }
}

impl Observer for Telemetry {
    fn observe(&self, fact: &Fact<'_>) {
        self.meters.observe(fact);
        if let Some(tracer) = &self.tracer {
            tracer.observe(fact);
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
