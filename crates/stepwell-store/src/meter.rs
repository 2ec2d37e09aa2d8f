//! What is counted of a store's writes, and how anything counted gets its name: through the `metrics` facade.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};

/// Names what is counted with a recorder. Each name is given once with what it says; the handle is kept, so that
/// counting is an addition.
#[derive(Clone, Copy)]
pub struct Instruments<'a>(pub &'a dyn Recorder);

const OURS: Metadata<'static> = Metadata::new("stepwell", Level::INFO, None);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<_> = labels.iter().map(|(key, value)| Label::new(*key, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

impl Instruments<'_> {
    /// Something that only grows.
    pub fn counter(
        &self,
        name: &'static str,
        about: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        self.0.describe_counter(KeyName::from_const_str(name), None, about.into());
        self.0.register_counter(&key(name, labels), &OURS)
    }

    /// Something that goes up and down.
    pub fn gauge(&self, name: &'static str, about: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.0.describe_gauge(KeyName::from_const_str(name), None, about.into());
        self.0.register_gauge(&key(name, labels), &OURS)
    }

    /// How values are spread.
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

/// What a writer counts of its batches: once per batch, whatever their number.
#[derive(Debug)]
pub struct BatchMeter {
    writes: Counter,
    size: Histogram,
    batch: Histogram,
    sync: Histogram,
}

impl BatchMeter {
    /// Counts with this recorder.
    pub fn new(recorder: &dyn Recorder) -> Self {
        let with = Instruments(recorder);
        BatchMeter {
            writes: with.counter(
                "stepwell_store_writes_total",
                "Commits and other writes that were in transactions, refused ones among them.",
                &[],
            ),
            size: with.histogram("stepwell_store_batch_writes", "How many writes share a transaction.", &[]),
            batch: with.histogram(
                "stepwell_store_batch_seconds",
                "How long a transaction takes, from its first statement until it is on disk.",
                &[],
            ),
            sync: with.histogram(
                "stepwell_store_sync_seconds",
                "How long it takes to bring a transaction to disk, its statements not counted (SQLite).",
                &[],
            ),
        }
    }

    /// So many writes are on disk, after so long.
    pub fn batch(&self, writes: usize, took: Duration) {
        self.writes.increment(writes as u64);
        self.size.record(writes as f64);
        self.batch.record(took);
    }

    /// Bringing a transaction to disk took so long.
    pub fn sync(&self, took: Duration) {
        self.sync.record(took);
    }
}
