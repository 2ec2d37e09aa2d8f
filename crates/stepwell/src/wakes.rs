//! Due times of runs that this process knows.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_core::Timestamp;

/// Maximum number of due times in memory. Later ones are found by polling the store.
const REMEMBERED: usize = 4_096;

/// Due times of runs that this process knows. The store knows all of them but returns only the earliest per tenant,
/// and this process may be unable to serve that run.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<BTreeSet<i64>>);

impl Wakes {
    /// Adds a time. Returns true if it is now the earliest.
    pub(crate) fn add(&self, at: Timestamp) -> bool {
        let mut times = self.lock();
        times.insert(at.micros());
        if times.len() > REMEMBERED {
            times.pop_last();
        }
        times.first() == Some(&at.micros())
    }

    /// Returns the earliest due time, or `Timestamp::MAX` if there is none.
    pub(crate) fn next(&self) -> Timestamp {
        self.lock().first().map_or(Timestamp::MAX, |at| Timestamp::from_micros(*at))
    }

    /// Removes all times up to `now`.
    pub(crate) fn forget(&self, now: Timestamp) {
        let mut times = self.lock();
        *times = times.split_off(&(now.micros() + 1));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
