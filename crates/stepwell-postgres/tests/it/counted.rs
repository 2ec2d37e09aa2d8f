//! The metrics of a store: its writes, and the use of its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use stepwell_postgres::PostgresStore;
use stepwell_store::suite::{bounded, make};
use stepwell_store::{BatchMeter, Store};

/// Adds up all counters and all batch sizes.
#[derive(Default)]
struct Sums {
    counted: Arc<AtomicU64>,
    sizes: Arc<Total>,
}

/// The sum of the recorded values, as whole numbers.
#[derive(Default)]
struct Total(AtomicU64);

impl HistogramFn for Total {
    fn record(&self, value: f64) {
        self.0.fetch_add(value as u64, Ordering::Relaxed);
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.counted.clone())
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "stepwell_store_batch_writes" => Histogram::from_arc(self.sizes.clone()),
            _ => Histogram::noop(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_commit_is_counted_once() {
    let test_schema = crate::test_schema().await;
    bounded(async {
        let store: Arc<PostgresStore> = Arc::new(test_schema.open().await.unwrap());
        let sums = Sums::default();
        store.set_meter(BatchMeter::new(&sums));
        let make = make::Make::new();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let (store, commit) = (store.clone(), make.write([make::increment("count", 1)]));
            tasks.spawn(async move { store.commit(make::ME, commit).await.is_ok() });
        }
        assert!(tasks.join_all().await.into_iter().all(|applied| applied));
        assert_eq!(sums.counted.load(Ordering::Relaxed), 40);
        assert_eq!(sums.sizes.0.load(Ordering::Relaxed), 40);
        let used = store.pool();
        assert!((1..=used.most).contains(&used.open) && used.busy <= used.open, "{used:?}");
        assert_eq!(used.waiting, 0, "{used:?}");
    })
    .await;
}
