//! The metrics registry of one server. It writes the text format of Prometheus.
//!
//! The registry is not a global, so that a process may have several servers. A value is an atomic number, and a
//! histogram has one atomic counter per bucket: samples are not stored, and counting never blocks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Content type of the metrics response.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of histograms whose names end in `_seconds`.
const SECONDS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 300.0,
];
/// Upper bounds of all other histograms.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// All metrics of one server, by name.
#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<String, Family>>);

/// The series of one metric name.
#[derive(Default)]
struct Family {
    about: String,
    /// Keyed by the labels in their text form.
    series: BTreeMap<String, Series>,
}

#[derive(Clone)]
enum Series {
    Counter(Arc<AtomicU64>),
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

impl Series {
    fn kind(&self, name: &str) -> &'static str {
        match self {
            Series::Counter(_) => "counter",
            // Counters of the `metrics` crate are integers, so a counter with fractions is registered as a gauge.
            Series::Gauge(_) if name.ends_with("_total") => "counter",
            Series::Gauge(_) => "gauge",
            Series::Histogram(_) => "histogram",
        }
    }
}

/// The buckets of a histogram.
struct Buckets {
    bounds: &'static [f64],
    /// One counter per bound, and one for values above the last bound.
    counts: Box<[AtomicU64]>,
    /// Sum of all values, as the bits of an `f64`.
    sum: AtomicU64,
}

impl Buckets {
    fn of(name: &str) -> Self {
        let bounds = if name.ends_with("_seconds") { SECONDS } else { SIZES };
        Buckets {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, about: &SharedString) {
        let mut families = self.lock();
        let family = families.entry(name.as_str().to_owned()).or_default();
        if family.about.is_empty() {
            family.about = about.to_string();
        }
    }

    /// Returns the series of a key. The first registration determines its type.
    fn series(&self, key: &Key, made: impl FnOnce() -> Series) -> Series {
        let mut families = self.lock();
        let family = families.entry(key.name().to_owned()).or_default();
        family.series.entry(labels(key)).or_insert_with(made).clone()
    }

    /// Returns all metrics in the text format, version 0.0.4.
    pub(crate) fn text(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        for (name, family) in self.lock().iter() {
            let Some(first) = family.series.values().next() else { continue };
            let about = family.about.replace('\\', "\\\\").replace('\n', "\\n");
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {about}\n# TYPE {name} {}\n", first.kind(name));
            for (labels, series) in &family.series {
                written(&mut text, name, labels, series);
            }
        }
        text
    }
}

fn written(text: &mut String, name: &str, labels: &str, series: &Series) {
    let braced = |more: &str| match (labels.is_empty(), more.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!("{{{labels}}}"),
        (true, false) => format!("{{{more}}}"),
        (false, false) => format!("{{{labels},{more}}}"),
    };
    let _ = match series {
        Series::Counter(count) => {
            writeln!(text, "{name}{} {}", braced(""), count.load(Ordering::Relaxed))
        }
        Series::Gauge(bits) => {
            writeln!(text, "{name}{} {}", braced(""), f64::from_bits(bits.load(Ordering::Relaxed)))
        }
        Series::Histogram(buckets) => {
            let mut total = 0;
            let bounds = buckets.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(&buckets.counts) {
                total += count.load(Ordering::Relaxed);
                let _ = writeln!(text, "{name}_bucket{} {total}", braced(&format!("le=\"{bound}\"")));
            }
            let sum = f64::from_bits(buckets.sum.load(Ordering::Relaxed));
            writeln!(text, "{name}_sum{0} {sum}\n{name}_count{0} {total}", braced(""))
        }
    };
}

/// Returns the labels in text form, sorted by name.
fn labels(key: &Key) -> String {
    let mut labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
    labels.sort_unstable();
    let label = |(name, value): (&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.into_iter().map(label).collect::<Vec<_>>().join(",")
}

impl Recorder for Registry {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, about: SharedString) {
        self.describe(&key, &about);
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, about: SharedString) {
        self.describe(&key, &about);
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, about: SharedString) {
        self.describe(&key, &about);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.series(key, || Series::Counter(Arc::default())) {
            Series::Counter(count) => Counter::from_arc(count),
            Series::Gauge(_) | Series::Histogram(_) => Counter::noop(),
        }
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.series(key, || Series::Gauge(Arc::default())) {
            Series::Gauge(bits) => Gauge::from_arc(bits),
            Series::Counter(_) | Series::Histogram(_) => Gauge::noop(),
        }
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.series(key, || Series::Histogram(Arc::new(Buckets::of(key.name())))) {
            Series::Histogram(buckets) => Histogram::from_arc(buckets),
            Series::Counter(_) | Series::Gauge(_) => Histogram::noop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use stepwell::store::Instruments;

    use super::Registry;

    #[test]
    fn metrics_are_written_with_labels_and_buckets() {
        let registry = Registry::default();
        let with = Instruments(&registry);
        let asked = || with.counter("asked_total", "Number of\nrequests.", &[("who", "a\"b\\c\nd")]);
        asked().increment(2);
        // The same name and labels are the same series.
        asked().increment(1);
        with.gauge("open", "Open.", &[]).set(2.5);
        let took = with.histogram("took_seconds", "Took.", &[("what", "x")]);
        took.record(0.0003);
        took.record(0.0005);
        took.record(1_000.0);
        let text = registry.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "# HELP asked_total Number of\\nrequests.",
                "# TYPE asked_total counter",
                "asked_total{who=\"a\\\"b\\\\c\\nd\"} 3",
            ]
        );
        assert!(lines.contains(&"open 2.5"), "{text}");
        for line in [
            "took_seconds_bucket{what=\"x\",le=\"0.00025\"} 0",
            "took_seconds_bucket{what=\"x\",le=\"0.0005\"} 2",
            "took_seconds_bucket{what=\"x\",le=\"300\"} 2",
            "took_seconds_bucket{what=\"x\",le=\"+Inf\"} 3",
            "took_seconds_sum{what=\"x\"} 1000.0008",
            "took_seconds_count{what=\"x\"} 3",
        ] {
            assert!(lines.contains(&line), "{line} in {text}");
        }
    }
}
