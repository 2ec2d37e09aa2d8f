//! An engine for tests: it stores runs in memory, and its clock moves only when the test advances it.

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

/// Start time of a test engine: 1 January 2026, 00:00 UTC.
pub const BEGINS: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// Number of consecutive rounds without activity after which the engine counts as settled.
const QUIET_ROUNDS: u32 = 4;

/// Maximum time to wait for a store that does not answer. It is long, because a database on a busy machine may take
/// seconds. A test with a store that never answers uses [`never_answer`].
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// An engine for tests: it stores runs in memory, and its clock moves only when the test advances it.
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

/// Enables a deliberate bug, to prove that the tests of tenant isolation detect it: engines of this process then track
/// their runs by id alone, without the tenant.
#[doc(hidden)]
pub fn ignore_tenant_in_run_keys(is_planted: bool) {
    crate::engine::IGNORE_TENANT_IN_RUN_KEYS.store(is_planted, std::sync::atomic::Ordering::Relaxed);
}

/// Never completes. Stands for a store that does not answer; test engines in the same runtime do not wait for it.
pub async fn never_answer<T>() -> T {
    Calls::here().never().await
}

impl TestEngine {
    /// Builds an engine in memory and starts it.
    pub async fn start(build: impl FnOnce(Builder) -> Builder) -> Result<Self, EngineError> {
        TestEngine::start_on(Arc::new(MemoryStore::new()), ManualClock::new(BEGINS), build).await
    }

    /// Starts an engine on the test's own store and clock, so that several engines can share them.
    pub async fn start_on(
        store: Arc<dyn Store>,
        clock: ManualClock,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, EngineError> {
        TestEngine::start_metered(store, clock, None, build).await
    }

    /// Starts an engine with a limit on its number of steps.
    pub(crate) async fn start_metered(
        store: Arc<dyn Store>,
        clock: ManualClock,
        meter: Option<Arc<Meter>>,
        build: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, EngineError> {
        // Long intervals: the engine knows all due times, and there is no other process, so no background activity
        // disturbs the test.
        let day = 24 * 3_600_000;
        let options = Options {
            lease_ms: 3_650 * day,
            poll_ms: 30 * day,
            tick_ms: 0,
            maintenance_interval_ms: day,
            ..Options::default()
        };
        let host = Host::system().with_clock(Arc::new(clock.clone()));
        let calls = Calls::here();
        let store = Arc::new(Counted::new(store, calls.clone(), meter));
        let engine = build(Engine::builder(store).host(host).options(options)).start().await?;
        Ok(TestEngine { engine, clock, calls })
    }

    /// Returns the test's clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Returns the engine under test.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Lets the engine do everything that is due now. Waits for a slow store, and briefly for actions that wait for
    /// real time or input.
    pub async fn settle(&self) {
        self.settle_while(|| true).await;
    }

    /// Settles while `goes_on` returns true. Returns true if the engine has settled.
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
            } else if is_waiting && moved.elapsed() >= STORE_TIMEOUT {
                self.calls.give_up();
            } else if is_waiting || self.calls.may_hint() {
                quiet = 0;
            } else {
                quiet += 1;
            }
        }
        true
    }

    /// Sleeps briefly, so that work outside the runtime can proceed.
    async fn pause(&self) {
        if self.calls.are_under_way() || self.calls.may_hint() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        } else if self.engine.inner.has_active_runs() {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Returns a value that changes with every activity.
    fn mark(&self) -> (u64, (u64, usize)) {
        (self.engine.inner.activity_count(), self.calls.mark())
    }

    /// Advances the clock. Everything that becomes due happens at its time, in order.
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
