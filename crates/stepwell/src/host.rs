//! What the engine takes from the machine it runs on: time, tasks and ids. Tests and simulations bring their own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stepwell_core::Timestamp;
use stepwell_store::Reading;
use uuid::Uuid;

/// A future that can be kept and sent.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The one clock: it decides timers, leases, retries, timeouts and expiry.
pub trait Clock: Send + Sync {
    /// What time it is.
    fn now(&self) -> Timestamp;
    /// Is done when that time has come.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()>;
    /// The clock of the database that several processes share shows this: a clock that can, goes by it from here on, so
    /// that they agree.
    fn follow(&self, _: Reading) {}
    /// By how many milliseconds it is ahead of the computer's own clock, because it follows another; `None` if it follows
    /// none.
    fn ahead_ms(&self) -> Option<i64> {
        None
    }
}

/// Runs tasks beside the caller.
pub trait Spawn: Send + Sync {
    /// Runs a task to its end.
    fn spawn(&self, task: BoxFuture<()>);
}

/// Makes ids that nobody else makes.
pub trait Ids: Send + Sync {
    /// A new id; ids made later sort later, nearly always.
    fn next(&self) -> Uuid;
}

/// Time, tasks and ids.
#[derive(Clone)]
pub struct Host {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The ids.
    pub ids: Arc<dyn Ids>,
}

impl Host {
    /// The computer's clock, tokio's tasks and random ids that sort by time.
    pub fn system() -> Self {
        Host {
            clock: Arc::new(SystemClock::default()),
            spawn: Arc::new(TokioSpawn),
            ids: Arc::new(TimeOrderedIds),
        }
    }

    /// The same with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// The computer's clock as it was when this was made, and from there on only forward: setting the computer's time
/// makes no timer of a running engine fire early or late. On a database that processes share it follows that one's.
#[derive(Debug)]
pub struct SystemClock {
    began: Instant,
    wall: Timestamp,
    /// By how many microseconds the clock it follows is ahead.
    ahead: AtomicI64,
    /// What it has shown, since it was first set back: it shows no earlier time.
    shown: AtomicI64,
}

impl Default for SystemClock {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        SystemClock {
            began: Instant::now(),
            wall: Timestamp::from_micros(since.as_micros() as i64),
            ahead: AtomicI64::new(0),
            shown: AtomicI64::new(i64::MIN),
        }
    }
}

impl SystemClock {
    /// What it shows at an instant, in microseconds.
    fn at(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.began).as_micros() as i64;
        self.wall.micros() + since + self.ahead.load(Ordering::Acquire)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = self.at(Instant::now());
        // It stands still where it was set back, until it has caught up.
        let shown = match self.shown.load(Ordering::Acquire) {
            i64::MIN => now,
            _ => self.shown.fetch_max(now, Ordering::AcqRel).max(now),
        };
        Timestamp::from_micros(shown)
    }

    fn follow(&self, reading: Reading) {
        let behind = reading.showed.micros() - self.at(reading.at);
        if behind.unsigned_abs() <= reading.within.as_micros() as u64 {
            return;
        }
        if behind < 0 {
            self.shown.fetch_max(self.at(Instant::now()), Ordering::AcqRel);
        }
        self.ahead.fetch_add(behind, Ordering::AcqRel);
    }

    fn ahead_ms(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Acquire) / 1_000)
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()> {
        let pause = at.micros().saturating_sub(self.now().micros());
        Box::pin(tokio::time::sleep(Duration::from_micros(pause.max(0) as u64)))
    }
}

/// Tasks of the tokio runtime the caller is in.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, task: BoxFuture<()>) {
        tokio::spawn(task);
    }
}

/// Version 7 UUIDs: when they were made, to a quarter of a microsecond, and 62 bits of the system's generator, each id from
/// its own bytes. An id says nothing about any other.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeOrderedIds;

impl Ids for TimeOrderedIds {
    fn next(&self) -> Uuid {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = since.as_millis() as u64;
        let mut random = [0; 10];
        getrandom::fill(&mut random[2..]).expect("the system has a source of randomness");
        // The first 12 bits are the fraction of the millisecond (RFC 9562, 6.2, method 3).
        let fraction = u64::from(since.subsec_nanos() % 1_000_000) * 4_096 / 1_000_000;
        random[..2].copy_from_slice(&(fraction as u16).to_be_bytes());
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use stepwell_store::Reading;

    use super::{Clock, Ids, SystemClock, TimeOrderedIds, Timestamp};

    fn shows(clock: &SystemClock, ahead_us: i64, within: Duration) {
        let at = Instant::now();
        let showed = Timestamp::from_micros(clock.now().micros() + ahead_us);
        clock.follow(Reading { at, showed, within });
    }

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn the_clock_follows_the_databases_and_never_goes_back() {
        let clock = SystemClock::default();
        let before = clock.now();
        shows(&clock, HOUR, Duration::from_millis(1));
        let ahead = clock.now();
        assert!((HOUR..HOUR + 1_000_000).contains(&(ahead.micros() - before.micros())));
        shows(&clock, -HOUR / 2, Duration::from_millis(1));
        let still = clock.now();
        assert!(
            still >= ahead && still.micros() - ahead.micros() < 1_000_000,
            "it stands until it has caught up"
        );
    }

    #[test]
    fn ids_sort_by_time_and_share_nothing_else() {
        let ids: Vec<_> = (0..2_000).map(|_| TimeOrderedIds.next()).collect();
        let unsorted = ids.windows(2).filter(|two| two[0] > two[1]).count();
        assert!(unsorted < 200, "{unsorted}");
        let random: std::collections::BTreeSet<_> = ids.iter().map(|id| id.as_u64_pair().1).collect();
        assert_eq!(random.len(), ids.len());
        // Neighbours differ in half of their bits, and not in the same ones.
        let differ = ids.windows(2).map(|two| (two[0].as_u64_pair().1 ^ two[1].as_u64_pair().1).count_ones());
        let mean = f64::from(differ.sum::<u32>()) / 1_999.0;
        assert!((29.0..33.0).contains(&mean), "{mean}");
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }

    #[test]
    fn a_difference_within_what_the_look_took_is_none() {
        let clock = SystemClock::default();
        let before = clock.now();
        shows(&clock, 50_000, Duration::from_secs(1));
        assert!(clock.now().micros() - before.micros() < 40_000);
    }
}
