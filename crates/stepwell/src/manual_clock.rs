//! A clock that moves only when a test sets it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stepwell_core::Timestamp;

use crate::host::{BoxFuture, Clock};

/// A clock that moves only when a test sets it. Clones share the same time.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<ClockState>>);

struct ClockState {
    now: Timestamp,
    /// Sleeping tasks by wake-up time. The number distinguishes tasks with the same time.
    sleepers: BTreeMap<(Timestamp, u64), Option<Waker>>,
    count: u64,
}

impl ManualClock {
    /// Creates a clock that shows this time.
    pub fn new(now: Timestamp) -> Self {
        ManualClock(Arc::new(Mutex::new(ClockState { now, sleepers: BTreeMap::new(), count: 0 })))
    }

    /// Moves the clock forward to this time and wakes the tasks that are due. An earlier time has no effect.
    pub fn set(&self, to: Timestamp) {
        let mut state = self.state();
        state.now = state.now.max(to);
        let now = state.now;
        let due = state.sleepers.range_mut(..=(now, u64::MAX));
        let woken: Vec<_> = due.filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the wake-up time of the next sleeping task; `None` if no task sleeps.
    pub fn next_sleeper(&self) -> Option<Timestamp> {
        let state = self.state();
        let now = state.now;
        state.sleepers.keys().map(|(at, _)| *at).find(|at| *at > now)
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.state().now
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        let mut state = self.state();
        state.count += 1;
        let key = (at, state.count);
        state.sleepers.insert(key, None);
        Box::pin(Sleep { clock: self.clone(), key })
    }
}

struct Sleep {
    clock: ManualClock,
    key: (Timestamp, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state();
        if state.now >= self.key.0 {
            return Poll::Ready(());
        }
        state.sleepers.insert(self.key, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.state().sleepers.remove(&self.key);
    }
}

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ManualClock").field(&self.state().now).finish()
    }
}
