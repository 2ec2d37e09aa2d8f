//! The simulated time, and the clocks through which processes see it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stepwell::host::{BoxFuture, Clock};
use stepwell_core::Timestamp;

/// Start time of every simulation: 1 January 2026, in microseconds since the Unix epoch.
const BEGINS: i64 = 1_767_225_600_000_000;

/// The true time, in microseconds since the simulation began. It advances only when no task can continue.
#[derive(Default)]
pub(crate) struct Time(Mutex<Hands>);

#[derive(Default)]
struct Hands {
    now: i64,
    sleepers: BTreeMap<(i64, u64), Waker>,
    count: u64,
}

impl Time {
    pub(crate) fn now(&self) -> i64 {
        self.hands().now
    }

    /// Advances to this time and wakes the sleepers that are due.
    pub(crate) fn set(&self, to: i64) {
        let mut hands = self.hands();
        hands.now = hands.now.max(to);
        let due = (hands.now + 1, 0);
        let later = hands.sleepers.split_off(&due);
        let woken = std::mem::replace(&mut hands.sleepers, later);
        drop(hands);
        woken.into_values().for_each(Waker::wake);
    }

    /// Returns the time at which the next sleeper is due.
    pub(crate) fn next_sleeper(&self) -> Option<i64> {
        self.hands().sleepers.keys().next().map(|(at, _)| *at)
    }

    /// Wakes all sleepers so that they read their clock again, after a clock has jumped.
    pub(crate) fn wake_all(&self) {
        let woken = std::mem::take(&mut self.hands().sleepers);
        woken.into_values().for_each(Waker::wake);
    }

    /// Returns a future that completes after `us` microseconds of true time.
    pub(crate) fn sleep(self: &Arc<Self>, us: u64) -> Sleep {
        let at = self.now() + us as i64;
        Sleep { time: self.clone(), wall: Wall::default(), at, key: None }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The offset of a process's wall clock from the true time, in microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wall(Arc<AtomicI64>);

impl Wall {
    pub(crate) fn jump(&self, us: i64) {
        self.0.fetch_add(us, Ordering::Relaxed);
    }

    fn ahead(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The clock of an engine: the true time or, with the planted bug, a wall clock that jumps.
pub(crate) struct ProcessClock {
    pub(crate) time: Arc<Time>,
    /// Stays at zero unless the engine uses the wall clock.
    pub(crate) wall: Wall,
}

impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        timestamp(self.time.now() + self.wall.ahead())
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        let at = micros(at);
        Box::pin(Sleep { time: self.time.clone(), wall: self.wall.clone(), at, key: None })
    }
}

/// Converts a time of the simulation to a timestamp.
pub(crate) fn timestamp(us: i64) -> Timestamp {
    Timestamp::from_micros(BEGINS + us)
}

/// Converts a timestamp to microseconds since the simulation began.
pub(crate) fn micros(at: Timestamp) -> i64 {
    at.micros() - BEGINS
}

/// A future that completes when a clock shows the time `at`.
pub(crate) struct Sleep {
    time: Arc<Time>,
    wall: Wall,
    at: i64,
    key: Option<(i64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let sleep = &mut *self;
        let mut hands = sleep.time.hands();
        if let Some(key) = sleep.key.take() {
            hands.sleepers.remove(&key);
        }
        let truly = sleep.at - sleep.wall.ahead();
        if hands.now >= truly {
            return Poll::Ready(());
        }
        hands.count += 1;
        let key = (truly, hands.count);
        hands.sleepers.insert(key, context.waker().clone());
        sleep.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let waker = self.time.hands().sleepers.remove(&key);
            drop(waker);
        }
    }
}
