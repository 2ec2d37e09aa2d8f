//! When runs are due that this process knows of.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepwell_core::Timestamp;

/// Times that are remembered; what is later than all of them is found by asking the store.
const REMEMBERED: usize = 4_096;

/// When runs are due that this process knows of. The store knows all of them, but tells only the earliest of a tenant,
/// and that may be one that this process cannot serve.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<BTreeSet<i64>>);

impl Wakes {
    /// Remembers a time; says whether it is the earliest.
    pub(crate) fn add(&self, at: Timestamp) -> bool {
        let mut times = self.lock();
        times.insert(at.micros());
        if times.len() > REMEMBERED {
            times.pop_last();
        }
        times.first() == Some(&at.micros())
    }

    /// The earliest.
    pub(crate) fn next(&self) -> Timestamp {
        self.lock().first().map_or(Timestamp::MAX, |at| Timestamp::from_micros(*at))
    }

    /// Forgets those that have come.
    pub(crate) fn forget(&self, now: Timestamp) {
        let mut times = self.lock();
        *times = times.split_off(&(now.micros() + 1));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
