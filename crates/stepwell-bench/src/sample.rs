//! Times of single operations, and what is said about many of them.

use std::time::Duration;

/// What one slice of a measurement saw.
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

/// The value below which this part of the values lies; 0 if there are none.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_by(f64::total_cmp);
    let at = ((values.len() - 1) as f64 * part).round() as usize;
    values[at]
}

/// The middle value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::{median, quantile};

    #[test]
    fn quantiles_are_values_that_were_seen() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&mut [5.0, 1.0, 2.0, 3.0, 4.0], 0.99), 5.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }
}
