//! Metrics of a store's writes, and a helper that registers metrics with the `metrics` facade.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};

/// Registers metrics with a recorder. Each name is described once. The caller keeps the returned handle, so that
/// counting costs one addition.
#[derive(Clone, Copy)]
pub struct Instruments<'a>(pub &'a dyn Recorder);

const OURS: Metadata<'static> = Metadata::new("stepwell", Level::INFO, None);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<_> = labels.iter().map(|(key, value)| Label::new(*key, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

impl Instruments<'_> {
    /// Registers a counter: a value that only grows.
    pub fn counter(
        &self,
        name: &'static str,
        about: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.0.describe_counter(KeyName::from_const_str(name), None, about.into());
        self.0.register_counter(&key(name, labels), &OURS)
    }

    /// Registers a gauge: a value that goes up and down.
    pub fn gauge(&self, name: &'static str, about: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.0.describe_gauge(KeyName::from_const_str(name), None, about.into());
        self.0.register_gauge(&key(name, labels), &OURS)
    }

    /// Registers a histogram. Names that end with `_seconds` get the unit seconds.
    pub fn histogram(
        &self,
        name: &'static str,
        about: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Histogram {
        let unit = name.ends_with("_seconds").then_some(Unit::Seconds);
        self.0.describe_histogram(KeyName::from_const_str(name), unit, about.into());
        self.0.register_histogram(&key(name, labels), &OURS)
    }
}

/// Metrics of a writer's batches. They are recorded once per batch, regardless of its size.
#[derive(Debug)]
pub struct BatchMeter {
    writes: Counter,
    size: Histogram,
    batch: Histogram,
    sync: Histogram,
}

impl BatchMeter {
    /// Registers the metrics with this recorder.
    pub fn new(recorder: &dyn Recorder) -> Self {
        let with = Instruments(recorder);
        BatchMeter {
            writes: with.counter(
                "stepwell_store_writes_total",
                "Commits and other writes in transactions, including refused ones.",
                &[],
            ),
            size: with.histogram("stepwell_store_batch_writes", "Number of writes per transaction.", &[]),
            batch: with.histogram(
                "stepwell_store_batch_seconds",
                "Duration of a transaction, from its first statement until it is durable.",
                &[],
            ),
            sync: with.histogram(
                "stepwell_store_sync_seconds",
                "Time to make a transaction durable, without its statements (SQLite).",
                &[],
            ),
        }
    }

    /// Records a durable batch with its number of writes and its duration.
    pub fn batch(&self, writes: usize, took: Duration) {
        self.writes.increment(writes as u64);
        self.size.record(writes as f64);
        self.batch.record(took);
    }

    /// Records the time to make a transaction durable.
    pub fn sync(&self, took: Duration) {
        self.sync.record(took);
    }
}
