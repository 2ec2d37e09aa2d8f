//! The host services of the engine: clock, tasks and ids. Tests and simulations provide their own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stepwell_core::Timestamp;
use stepwell_store::ClockReading;
use uuid::Uuid;

/// A boxed future that can be sent to another thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The engine's only clock. It determines timers, leases, retries, timeouts and expiry.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
    /// Completes at this time, or at once if it has passed.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<()>;
    /// Adjusts the clock to a reading of the shared database's clock, so that all processes agree. The default
    /// implementation ignores it.
    fn follow(&self, _: ClockReading) {}
    /// Returns the offset in milliseconds from the computer's own clock; positive = ahead. `None` if the clock never
    /// follows another.
    fn ahead_ms(&self) -> Option<i64> {
        None
    }
}

/// Spawns the engine's background tasks.
pub trait Spawn: Send + Sync {
    /// Runs a task to completion in the background.
    fn spawn(&self, task: BoxFuture<()>);
}

/// Generates ids that are globally unique.
pub trait Ids: Send + Sync {
    /// Returns a new id. Later ids sort after earlier ones, nearly always.
    fn next(&self) -> Uuid;
}

/// The clock, the task spawner and the id source of an engine.
#[derive(Clone)]
pub struct Host {
    pub clock: Arc<dyn Clock>,
    pub spawn: Arc<dyn Spawn>,
    pub ids: Arc<dyn Ids>,
}

impl Host {
    /// Returns the computer's clock, tokio's tasks and random ids that sort by time.
    pub fn system() -> Self {
        Host {
            clock: Arc::new(SystemClock::default()),
            spawn: Arc::new(TokioSpawn),
            ids: Arc::new(TimeOrderedIds),
        }
    }

    /// Returns the same host with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// A clock that starts at the computer's time and from there on only moves forward. A change of the computer's time
/// does not make the timers of a running engine fire early or late. On a shared database it follows the database's
/// clock.
#[derive(Debug)]
pub struct SystemClock {
    began: Instant,
    wall: Timestamp,
    /// Offset to the followed clock, in microseconds.
    ahead: AtomicI64,
    /// The latest time shown, in microseconds, once the clock has been set back. It never shows an earlier time.
    /// `i64::MIN` before that.
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
    /// Returns the time at an instant, in microseconds.
    fn at(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.began).as_micros() as i64;
        self.wall.micros() + since + self.ahead.load(Ordering::Acquire)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = self.at(Instant::now());
        // After it was set back, the clock pauses until the followed clock has caught up.
        let shown = match self.shown.load(Ordering::Acquire) {
            i64::MIN => now,
            _ => self.shown.fetch_max(now, Ordering::AcqRel).max(now),
        };
        Timestamp::from_micros(shown)
    }

    fn follow(&self, reading: ClockReading) {
        let behind = reading.remote_time.micros() - self.at(reading.at);
        if behind.unsigned_abs() <= reading.max_error.as_micros() as u64 {
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

/// Spawns tasks on the current tokio runtime.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, task: BoxFuture<()>) {
        tokio::spawn(task);
    }
}

/// Generates version 7 UUIDs: the time of creation to a quarter of a microsecond, and 62 random bits from the
/// operating system. The random bits of each id are independent of all others.
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
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use stepwell_store::ClockReading;
    use uuid::Uuid;

    use super::{Clock, Ids, SystemClock, TimeOrderedIds, Timestamp};

    fn shows(clock: &SystemClock, ahead_us: i64, max_error: Duration) {
        let at = Instant::now();
        let remote_time = Timestamp::from_micros(clock.now().micros() + ahead_us);
        clock.follow(ClockReading { at, remote_time, max_error });
    }

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn clock_follows_the_database_and_never_goes_back() {
        let clock = SystemClock::default();
        let before = clock.now();
        shows(&clock, HOUR, Duration::from_millis(1));
        let ahead = clock.now();
        assert!((HOUR..HOUR + 1_000_000).contains(&(ahead.micros() - before.micros())));
        shows(&clock, -HOUR / 2, Duration::from_millis(1));
        let still = clock.now();
        assert!(
            still >= ahead && still.micros() - ahead.micros() < 1_000_000,
            "it pauses until the followed clock has caught up"
        );
    }

    #[test]
    fn ids_sort_by_time_and_are_otherwise_random() {
        let ids: Vec<_> = (0..2_000).map(|_| TimeOrderedIds.next()).collect();
        let unsorted = ids.windows(2).filter(|two| two[0] > two[1]).count();
        assert!(unsorted < 200, "{unsorted}");
        let random: BTreeSet<_> = ids.iter().map(|id| id.as_u64_pair().1).collect();
        assert_eq!(random.len(), ids.len());
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
    }

    /// Inverts `x ^ (x >> shift)`.
    fn unshift(mixed: u64, shift: u32) -> u64 {
        (1..64 / shift + 1).fold(mixed, |x, _| mixed ^ (x >> shift))
    }

    /// Returns the number by which an odd number must be multiplied to give 1.
    fn inverse(odd: u64) -> u64 {
        (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
    }

    /// Inverts a mixer of the form: shift, multiply, shift, multiply, shift.
    fn unmix(mixed: u64, [(a, by_a), (b, by_b)]: [(u32, u64); 2], last: u32) -> u64 {
        let x = unshift(mixed, last).wrapping_mul(inverse(by_b));
        unshift(unshift(x, b).wrapping_mul(inverse(by_a)), a)
    }

    const SPLIT_MIX: [(u32, u64); 2] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
    const MURMUR: [(u32, u64); 2] = [(33, 0xff51_afd7_ed55_8ccd), (33, 0xc4ce_b9fe_1a85_ec53)];

    /// A place of 64 bits in an id: the first byte, and the bits that the version and the variant hide.
    const PLACES: [(usize, u64); 2] = [(6, 0xf000_c000_0000_0000), (8, 0xc000_0000_0000_0000)];

    /// Returns the outputs of a generator that may have made the bits of an id at this place.
    fn outputs(id: &Uuid, (first, hidden): (usize, u64)) -> Vec<u64> {
        let bits = id.as_bytes()[first..first + 8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let mut all = vec![bits & !hidden];
        for bit in (0..64).filter(|bit| hidden >> bit & 1 == 1) {
            let more: Vec<_> = all.iter().map(|output| output | 1 << bit).collect();
            all.extend(more);
        }
        all
    }

    /// Returns true if the ids come from a counter with a constant step behind an invertible mixer. Then everybody who
    /// sees two ids knows the others.
    fn has_constant_step(ids: &[Uuid]) -> bool {
        let mixers: [fn(u64) -> u64; 3] = [|x| x, |x| unmix(x, SPLIT_MIX, 31), |x| unmix(x, MURMUR, 33)];
        let cases = PLACES.iter().flat_map(|place| mixers.iter().map(move |unmixed| (*place, unmixed)));
        cases.into_iter().any(|(place, unmixed)| {
            let states = |id: &Uuid| outputs(id, place).into_iter().map(unmixed).collect::<Vec<_>>();
            let steps = |two: &[Uuid]| -> BTreeSet<u64> {
                let (first, second) = (states(&two[0]), states(&two[1]));
                let from = |a: &u64| second.iter().map(|b| b.wrapping_sub(*a)).collect::<Vec<_>>();
                first.iter().flat_map(from).collect()
            };
            let mut pairs = ids.windows(2).map(steps);
            let first = pairs.next().unwrap_or_default();
            !pairs.fold(first, |common, steps| &common & &steps).is_empty()
        })
    }

    /// Ids whose bits at a place are the output of a mixer on a counter.
    fn counted(mix: impl Fn(u64) -> u64, (first, _): (usize, u64)) -> Vec<Uuid> {
        let id = |number: u64| {
            let state =
                0x1234_5678_9abc_def0_u64.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number));
            let mut random = [7; 10];
            random[first - 6..first + 2].copy_from_slice(&mix(state).to_be_bytes());
            uuid::Builder::from_unix_timestamp_millis(1, &random).into_uuid()
        };
        (0..6).map(id).collect()
    }

    /// Regression: ids came from SplitMix64, whose state is known from one output.
    #[test]
    fn ids_are_not_an_invertible_function_of_a_counter() {
        let mix = |x: u64, [(a, by_a), (b, by_b)]: [(u32, u64); 2], last: u32| {
            let x = (x ^ (x >> a)).wrapping_mul(by_a);
            let x = (x ^ (x >> b)).wrapping_mul(by_b);
            x ^ (x >> last)
        };
        assert_eq!(unmix(mix(7, SPLIT_MIX, 31), SPLIT_MIX, 31), 7);
        for place in PLACES {
            for planted in [
                counted(|x| x, place),
                counted(|x| mix(x, SPLIT_MIX, 31), place),
                counted(|x| mix(x, MURMUR, 33), place),
            ] {
                assert!(has_constant_step(&planted), "the planted generator is found: {planted:?}");
            }
        }
        let ids: Vec<_> = (0..20).map(|_| TimeOrderedIds.next()).collect();
        // Several threads may share a counter, so that other ids lie between two of these.
        for apart in 1..=3 {
            let some: Vec<_> = ids.iter().step_by(apart).take(6).copied().collect();
            assert!(!has_constant_step(&some), "{some:?}");
        }
    }

    #[test]
    fn clock_ignores_offset_within_reading_precision() {
        let clock = SystemClock::default();
        let before = clock.now();
        shows(&clock, 50_000, Duration::from_secs(1));
        assert!(clock.now().micros() - before.micros() < 40_000);
    }
}
