//! A clock that stands still until somebody moves it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stepwell_core::Timestamp;

use crate::host::{BoxFuture, Clock};

/// A clock that stands still until somebody moves it. Clones are the same clock.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Hands>>);

struct Hands {
    now: Timestamp,
    /// Who sleeps until when; the number tells sleepers of the same instant apart.
    sleepers: BTreeMap<(Timestamp, u64), Option<Waker>>,
    count: u64,
}

impl ManualClock {
    /// A clock that shows this time.
    pub fn new(now: Timestamp) -> Self {
        ManualClock(Arc::new(Mutex::new(Hands { now, sleepers: BTreeMap::new(), count: 0 })))
    }

    /// Moves it forward to this time and wakes who slept until then; a time that has passed changes nothing.
    pub fn set(&self, to: Timestamp) {
        let mut hands = self.hands();
        hands.now = hands.now.max(to);
        let now = hands.now;
        let due = hands.sleepers.range_mut(..=(now, u64::MAX));
        let woken: Vec<_> = due.filter_map(|(_, waker)| waker.take()).collect();
        drop(hands);
        woken.into_iter().for_each(Waker::wake);
    }

    /// When the next sleeper is to be woken; `None` = nobody sleeps.
    pub fn next_sleeper(&self) -> Option<Timestamp> {
        let hands = self.hands();
        let now = hands.now;
        hands.sleepers.keys().map(|(at, _)| *at).find(|at| *at > now)
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.hands().now
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        let mut hands = self.hands();
        hands.count += 1;
        let key = (at, hands.count);
        hands.sleepers.insert(key, None);
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
        let mut hands = self.clock.hands();
        if hands.now >= self.key.0 {
            return Poll::Ready(());
        }
        hands.sleepers.insert(self.key, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.hands().sleepers.remove(&self.key);
    }
}

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ManualClock").field(&self.hands().now).finish()
    }
}
