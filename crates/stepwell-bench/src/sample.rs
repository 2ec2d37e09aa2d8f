//! Measured times of single operations, and statistics over them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::StoreKind;
use crate::site::Site;

/// Options of workloads that measure ours and the baseline in alternating slices.
#[derive(Debug, clap::Args)]
pub(crate) struct Alternating {
    /// Database to measure on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of alternating slices of each kind. Use at least five: a single pair can be wrong by up to 40 %.
    #[arg(long, default_value_t = 7)]
    slices: usize,
    /// Length of a slice in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    slice_ms: u64,
    /// Runs one slice of 200 ms, to show that the workload works; the figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Prints the JSON lines only, no summary of each measurement on standard error.
    #[arg(long)]
    json: bool,
}

impl Alternating {
    /// Measures once for each number in `callers`, and prints one line each.
    pub(crate) fn each(
        &self,
        callers: &[usize],
        measure: impl Fn(&Runtime, &Site, usize, usize, Duration) -> Result<Value, String>,
        says: impl Fn(usize, &Value) -> String,
    ) -> Result<(), String> {
        let (slices, slice) = if self.short {
            (1, Duration::from_millis(200))
        } else {
            (self.slices.max(1), Duration::from_millis(self.slice_ms))
        };
        let runtime = crate::runtime()?;
        for &callers in callers {
            let site = Site::new(self.store)?;
            let mut line = measure(&runtime, &site, callers, slices, slice)?;
            line["store"] = self.store.name().into();
            if !self.json {
                eprintln!("{}", says(callers, &line));
            }
            println!("{line}");
        }
        Ok(())
    }
}

/// The measurements of one slice. `times_us` has one entry per operation, in microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slice {
    pub(crate) times_us: Vec<f64>,
    pub(crate) elapsed: Duration,
}

impl Slice {
    pub(crate) fn per_s(&self) -> f64 {
        self.times_us.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Returns the value below which the fraction `part` of the values lies, or 0 without values.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let at = ((values.len() - 1) as f64 * part).round() as usize;
    values[at]
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// Slices of ours and of the baseline, in pairs.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    ours: Vec<Slice>,
    raw: Vec<Slice>,
}

impl Pairs {
    pub(crate) fn push(&mut self, ours: Slice, raw: Slice) {
        self.ours.push(ours);
        self.raw.push(raw);
    }

    /// Returns the statistics as JSON. The ratio is the median of the ratios of the pairs.
    pub(crate) fn line(&self, workload: &str) -> Value {
        let times = |slices: &[Slice]| {
            slices.iter().flat_map(|slice| slice.times_us.iter().copied()).collect::<Vec<_>>()
        };
        let (mut ours_us, mut raw_us) = (times(&self.ours), times(&self.raw));
        let per_s = |slices: &[Slice]| median(slices.iter().map(Slice::per_s).collect());
        let ratios = self.ours.iter().zip(&self.raw).map(|(ours, raw)| ours.per_s() / raw.per_s());
        json!({
            "workload": workload,
            "per_s": per_s(&self.ours).round(),
            "raw_per_s": per_s(&self.raw).round(),
            "ratio": round(median(ratios.collect())),
            "p50_us": round(quantile(&mut ours_us, 0.5)),
            "p99_us": round(quantile(&mut ours_us, 0.99)),
            "raw_p50_us": round(quantile(&mut raw_us, 0.5)),
            "raw_p99_us": round(quantile(&mut raw_us, 0.99)),
            "samples": ours_us.len(),
            "slices": self.ours.len(),
        })
    }
}

/// Rounds to three decimal places.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Runs tasks concurrently and merges their times.
pub(crate) fn gather<F>(runtime: &Runtime, tasks: impl Iterator<Item = F>) -> Result<Slice, String>
where
    F: Future<Output = Result<Vec<f64>, String>> + Send + 'static,
{
    let begin = Instant::now();
    let handles: Vec<_> = tasks.map(|task| runtime.spawn(task)).collect();
    let mut slice = Slice::default();
    for handle in handles {
        let times = runtime.block_on(handle).map_err(|error| error.to_string())??;
        slice.times_us.extend(times);
    }
    slice.elapsed = begin.elapsed();
    Ok(slice)
}

#[cfg(test)]
mod tests {
    use super::{median, quantile};

    #[test]
    fn quantile_is_one_of_the_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&mut [5.0, 1.0, 2.0, 3.0, 4.0], 0.99), 5.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }
}
