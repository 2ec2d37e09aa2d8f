//! An engine for tests: it keeps runs in memory, and its clock stands still until the test moves it.

mod calls;

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwell_core::Timestamp;
use stepwell_store::{MemoryStore, Store};

use crate::engine::{Builder, Engine, Options};
use crate::error::EngineError;
use crate::host::{Clock, Host};
use crate::manual_clock::ManualClock;
pub(crate) use calls::Meter;
use calls::{Calls, Counted};

/// The time a test engine begins at: 1 January 2026, in UTC.
pub const BEGINS: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// How often nothing may happen in a row before the engine counts as settled.
const QUIET_ROUNDS: u32 = 4;

/// How long a store that does not answer is waited for. Long, because a database on a busy machine may take seconds; a
/// test whose store is not to answer says so with [`never_answer`].
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine for tests: it keeps runs in memory, and its clock stands still until the test moves it.
///
/// ```
/// use std::time::Duration;
/// use stepwell::core::spec::Transition;
/// use stepwell::core::Spec;
/// use stepwell::store::Status;
/// use stepwell::testing::TestEngine;
/// use stepwell::Start;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let reminder = Spec::new("reminder")
///     .step("asleep")
///     .end("awake")
///     .transition(Transition::new("wake", "asleep", "awake").after_ms(90 * 24 * 3_600_000))
///     .build()?;
/// let engine = TestEngine::start(|engine| engine.workflow(reminder)).await?;
/// let run = engine.start(Start::new("reminder")).await?;
/// engine.advance(Duration::from_secs(89 * 24 * 3_600)).await;
/// assert_eq!(run.view().await?.status, Status::Waiting);
/// engine.advance(Duration::from_secs(24 * 3_600)).await;
/// assert_eq!(run.view().await?.status, Status::Completed);
/// # Ok(())
/// # }
/// ```
pub struct TestEngine {
    engine: Engine,
    clock: ManualClock,
    calls: Arc<Calls>,
}

/// A planted bug for the proof that tenants do not meet in a process: from here on engines of this process know the runs that
/// they work on by their id alone.
#[doc(hidden)]
pub fn know_runs_by_id_alone(is_planted: bool) {
    crate::engine::BY_ID_ALONE.store(is_planted, std::sync::atomic::Ordering::Relaxed);
}

/// The answer of a store that never comes: test engines in the same runtime do not wait for it.
pub async fn never_answer<T>() -> T {
    Calls::here().never().await
}

impl TestEngine {
    /// Puts an engine together in memory and starts it.
    pub async fn start(build: impl FnOnce(Builder) -> Builder) -> Result<Self, EngineError> {
        TestEngine::start_on(Arc::new(MemoryStore::new()), ManualClock::new(BEGINS), build).await
    }

    /// The same on a store and a clock that the test has, so that several engines can share them.
    pub async fn start_on(
        store: Arc<dyn Store>,
        clock: ManualClock,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, EngineError> {
        TestEngine::start_metered(store, clock, None, build).await
    }

    /// The same with a meter that says how much may happen.
    pub(crate) async fn start_metered(
        store: Arc<dyn Store>,
        clock: ManualClock,
        meter: Option<Arc<Meter>>,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, EngineError> {
        // Nothing happens behind its back: what is due is known, and no other process is there to be waited for.
        let day = 24 * 3_600_000;
        let options = Options {
            lease_ms: 3_650 * day,
            poll_ms: 30 * day,
            tick_ms: 0,
            upkeep_ms: day,
            ..Options::default()
        };
        let host = Host::system().with_clock(Arc::new(clock.clone()));
        let calls = Calls::here();
        let store = Arc::new(Counted::new(store, calls.clone(), meter));
        let engine = build(Engine::builder(store).host(host).options(options)).start().await?;
        Ok(TestEngine { engine, clock, calls })
    }

    /// The clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// The engine itself.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Lets the engine do what it can do now. A store that takes its time is waited for; actions that wait for
    /// something real are waited for a little.
    pub async fn settle(&self) {
        self.settle_while(|| true).await;
    }

    /// The same as long as somebody says so; gives whether the engine has settled.
    pub(crate) async fn settle_while(&self, mut goes_on: impl FnMut() -> bool) -> bool {
        let (mut quiet, mut moved) = (0, Instant::now());
        while quiet < QUIET_ROUNDS {
            if !goes_on() {
                return false;
            }
            let before = self.mark();
            for _ in 0..32 {
                tokio::task::yield_now().await;
            }
            if self.mark() == before {
                self.pause().await;
            }
            let is_waiting = self.calls.are_under_way();
            if self.mark() != before {
                (quiet, moved) = (0, Instant::now());
            } else if is_waiting && moved.elapsed() >= PATIENCE {
                self.calls.give_up();
            } else if is_waiting || self.calls.may_hint() {
                quiet = 0;
            } else {
                quiet += 1;
            }
        }
        true
    }

    /// Gives what happens outside of the runtime the time to happen.
    async fn pause(&self) {
        if self.calls.are_under_way() || self.calls.may_hint() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        } else if self.engine.inner.is_at_work() {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Is another one after whatever happens.
    fn mark(&self) -> (u64, (u64, usize)) {
        (self.engine.inner.pulse(), self.calls.mark())
    }

    /// Lets time pass: whatever falls due in it happens at its time, one after the other.
    pub async fn advance(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let until = self.clock.now().plus_ms(ms);
        loop {
            self.settle().await;
            match self.clock.next_sleeper().filter(|at| *at <= until) {
                Some(at) => self.clock.set(at),
                None => break,
            }
        }
        self.clock.set(until);
        self.settle().await;
    }
}

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}
