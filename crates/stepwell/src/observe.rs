//! Observations of an engine, reported where and when they happen. Metrics and traces are built on them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Failure, Name, RunId, Timestamp};
use stepwell_store::{
    Commit, CommitError, Committed, Loaded, NewRun, Refused, Status, TenantId, TenantScope,
};

use crate::cx::Cx;
use crate::engine::Inner;
use crate::loaded_run::LoadedRun;
use crate::signal::Signalled;

/// Observes an engine. It is called in the middle of a run's work, so it must not block or do anything slow. Without an
/// observer the engine spends nothing on observations.
pub trait Observer: Send + Sync {
    /// Handles one observation. Called synchronously.
    fn observe(&self, observation: &Observation<'_>);

    /// Returns true if spans of this tree of runs are recorded. Outgoing calls carry the answer in `traceparent`.
    fn is_traced(&self, _root: RunId) -> bool {
        false
    }
}

/// The run that an observation is about.
#[derive(Debug, Clone, Copy)]
pub struct ObservedRun<'a> {
    pub tenant: TenantId,
    pub run: RunId,
    /// The root of its tree of runs. Its id is the trace id of the whole tree.
    pub root: RunId,
    /// The run that started it.
    pub parent: Option<RunId>,
    pub workflow: &'a Name,
}

/// Something that happened in this process.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A run was started.
    Started {
        of: ObservedRun<'a>,
        /// The status after the start; the run may have ended at once.
        status: Status,
        /// Time of the decision.
        began: Timestamp,
        /// Time of the commit.
        ended: Timestamp,
    },
    /// A commit cycle of a run was committed.
    Committed {
        of: ObservedRun<'a>,
        /// The status before the commit.
        before: Status,
        /// The status after the commit.
        after: Status,
        /// The revision of the run that the commit produced.
        revision: u64,
        /// The version of its snapshot.
        version: u64,
        /// Time at which the run was created.
        since: Timestamp,
        /// Time of the decision.
        began: Timestamp,
        /// Time of the commit.
        ended: Timestamp,
    },
    /// An attempt of an action begins.
    ActionBegan { of: ObservedRun<'a>, tried: Attempt<'a> },
    /// An attempt of an action is over.
    ActionEnded {
        of: ObservedRun<'a>,
        tried: Attempt<'a>,
        /// `Ok` if the action succeeded, otherwise the reason why it has no result.
        result: Result<(), NoResult<'a>>,
        began: Timestamp,
        took: Duration,
    },
    /// A signal arrived at a run.
    Signalled {
        of: ObservedRun<'a>,
        /// The outcome of the signal.
        value: Signalled,
    },
    /// A signal was refused, or could not be given to its run.
    SignalRefused,
    /// A due run was claimed.
    RunClaimed {
        /// Delay between the due time and now.
        late: Duration,
    },
    /// Runs were claimed from the store; there may be none.
    Claimed {
        /// Number of claimed runs.
        runs: usize,
    },
    /// The store answered a commit.
    StoreCommit {
        /// Time from sending the commit to the answer.
        took: Duration,
        /// The reason why it was not applied, as one word such as `moved` or `fenced`; `None` = applied.
        refused: Option<&'static str>,
    },
    /// Processes that still own runs were found expired.
    ProcessesExpired {
        /// Number of processes that were not known to be expired before.
        processes: usize,
    },
}

/// An attempt of an action.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub action: &'a Name,
    /// The transition that the action belongs to.
    pub transition: &'a Name,
    /// The activation that the transition moves.
    pub activation: ActivationId,
    /// Number of this attempt, counted from 1.
    pub attempt: u32,
    /// The span id of this attempt.
    pub span: SpanId,
}

/// The reason why an action has no result.
#[derive(Debug, Clone, Copy)]
pub enum NoResult<'a> {
    /// It failed. The message may contain user data.
    Failed(&'a Failure),
    /// It exceeded its timeout.
    TimedOut,
    /// Its result is not needed: the run continued without it, or the engine is stopping.
    Dropped,
}

/// The span id of a part of a run. It is derived from values that every process knows, so parent ids need not be
/// stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// Returns the id of the run's own span, the parent of the spans of its work.
    pub fn of_run(run: RunId) -> Self {
        Self::made(run, 1, 0)
    }

    /// Returns the id of the span that covers a whole ended run.
    pub fn of_whole(run: RunId) -> Self {
        Self::made(run, 2, 0)
    }

    /// Returns the id of the span of the commit with this revision.
    pub fn of_commit(run: RunId, revision: u64) -> Self {
        Self::made(run, 3, revision)
    }

    /// Returns the id of the span of an action attempt. `nonce` distinguishes attempts with the same number.
    pub(crate) fn of_attempt(run: RunId, activation: ActivationId, attempt: u32, nonce: u64) -> Self {
        Self::made(run, activation, mixed(nonce) ^ (u64::from(attempt) << 32 | 4))
    }

    fn made(run: RunId, what: u64, which: u64) -> Self {
        let (high, low) = run.uuid().as_u64_pair();
        let id = mixed(mixed(mixed(mixed(high) ^ low) ^ what) ^ which);
        // Zero is not a valid span id.
        SpanId(id.max(1))
    }

    /// Returns the id as a number, which is never 0.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Spreads a number over all 64 bits (the last step of SplitMix64).
fn mixed(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl std::fmt::Display for SpanId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns the `traceparent` header (W3C Trace Context) of a call made from a run.
pub(crate) fn traceparent(root: RunId, span: SpanId, is_traced: bool) -> String {
    format!("00-{}-{span}-{:02x}", root.uuid().simple(), u8::from(is_traced))
}

impl LoadedRun {
    fn subject(&self, tenant: TenantId) -> ObservedRun<'_> {
        let parent = self.parent.as_ref().map(|parent| parent.run);
        let (run, workflow) = (self.run(), self.definition().name());
        ObservedRun { tenant, run, root: self.root, parent, workflow }
    }
}

/// Calls an observer. A panic in it must not stop the engine: it is logged, and the default is returned.
fn watched<T: Default>(asked: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(asked)).unwrap_or_else(|_| {
        tracing::error!("the observer panicked; the observation is lost");
        T::default()
    })
}

impl Inner {
    /// Reports an observation, if there is an observer.
    fn tell<'a>(&self, observation: impl FnOnce() -> Observation<'a>) {
        if let Some(observer) = &self.observer {
            let observation = observation();
            watched(|| observer.observe(&observation));
        }
    }

    /// Returns true if spans of this tree of runs are recorded.
    pub(crate) fn is_traced(&self, root: RunId) -> bool {
        self.observer.as_ref().is_some_and(|observer| watched(|| observer.is_traced(root)))
    }

    /// Reports a committed commit cycle.
    pub(crate) fn observe_commit(
        &self,
        scope: TenantScope,
        before: &LoadedRun,
        after: &LoadedRun,
        status: Status,
        began: Timestamp,
    ) {
        self.tell(|| Observation::Committed {
            of: after.subject(scope.tenant()),
            before: before.head.status,
            after: status,
            revision: before.head.revision + 1,
            version: after.snapshot.version(),
            since: after.snapshot.created_at(),
            began,
            ended: self.host.now(),
        });
    }

    /// Reports a signal that was consumed or buffered.
    pub(crate) fn observe_signal(&self, scope: TenantScope, loaded_run: &LoadedRun, value: Signalled) {
        self.tell(|| Observation::Signalled { of: loaded_run.subject(scope.tenant()), value });
    }

    /// Reports a refused signal.
    pub(crate) fn observe_refused_signal(&self) {
        self.tell(|| Observation::SignalRefused);
    }

    /// Reports a claim and the delay of each due run in it.
    pub(crate) fn observe_claim(&self, loaded: &[Loaded], now: Timestamp) {
        self.tell(|| Observation::Claimed { runs: loaded.len() });
        if self.observer.is_some() {
            for wake in loaded.iter().filter_map(|loaded| loaded.head.wake).filter(|wake| *wake <= now) {
                self.tell(|| Observation::RunClaimed { late: Duration::from_millis(now.ms_since(wake)) });
            }
        }
    }

    /// Reports newly expired processes, if there are any.
    pub(crate) fn observe_expired_processes(&self, processes: usize) {
        if processes > 0 {
            self.tell(|| Observation::ProcessesExpired { processes });
        }
    }
}

/// A commit that is waiting for its answer. Empty if there is no observer.
pub(crate) struct Committing(Option<Underway>);

struct Underway {
    began: Instant,
    now: Timestamp,
    created: Vec<Created>,
}

struct Created {
    run: RunId,
    root: RunId,
    parent: Option<RunId>,
    workflow: Name,
    status: Status,
}

impl Created {
    fn of(new: &NewRun) -> Self {
        let parent = new.parent.as_ref().map(|parent| parent.run);
        Created { run: new.run, root: new.root, parent, workflow: new.workflow.clone(), status: new.status }
    }
}

impl Committing {
    /// Starts to time a commit.
    pub(crate) fn begin(inner: &Inner, commit: &Commit) -> Self {
        Committing(inner.observer.as_ref().map(|_| Underway {
            began: Instant::now(),
            now: commit.at,
            created: commit.create.iter().map(Created::of).collect(),
        }))
    }

    /// Reports the store's answer.
    pub(crate) fn answered(
        &self,
        inner: &Inner,
        scope: TenantScope,
        answer: &Result<Committed, CommitError>,
    ) {
        let Some(commit) = &self.0 else { return };
        let refused = answer.as_ref().err().map(word);
        inner.tell(|| Observation::StoreCommit { took: commit.began.elapsed(), refused });
        if refused.is_none() {
            self.applied(inner, scope);
        }
    }

    /// Reports the runs that the commit started, once it is known to be applied.
    pub(crate) fn applied(&self, inner: &Inner, scope: TenantScope) {
        let Some(commit) = &self.0 else { return };
        for Created { run, root, parent, workflow, status } in &commit.created {
            let of =
                ObservedRun { tenant: scope.tenant(), run: *run, root: *root, parent: *parent, workflow };
            let (began, ended) = (commit.now, inner.host.now());
            inner.tell(|| Observation::Started { of, status: *status, began, ended });
        }
    }
}

/// Returns the reason why a commit was not applied, as one word.
fn word(error: &CommitError) -> &'static str {
    match error {
        CommitError::Unknown { .. } => "unknown",
        CommitError::Store(_) => "store",
        CommitError::Refused(Refused::Moved { .. }) => "moved",
        CommitError::Refused(Refused::Fenced { .. }) => "fenced",
        CommitError::Refused(Refused::Done { .. } | Refused::KeyReused { .. }) => "key",
        CommitError::Refused(Refused::Cell { .. }) => "cell",
        CommitError::Refused(Refused::TooLarge(_)) => "too_large",
        CommitError::Refused(_) => "other",
    }
}

/// An in-flight action. Empty if there is no observer. Dropping it reports the action as dropped.
pub(crate) struct ObservedAction(Option<(Cx, Timestamp)>);

impl ObservedAction {
    /// Reports that the action begins.
    pub(crate) fn begin(cx: &Cx, began: Timestamp) -> Self {
        let inner = cx.inner();
        inner.tell(|| Observation::ActionBegan { of: cx.subject(), tried: cx.tried() });
        ObservedAction(inner.observer.as_ref().map(|_| (cx.clone(), began)))
    }

    /// Reports the result of the action. `us` is its duration in microseconds.
    pub(crate) fn end<T>(mut self, result: &Result<T, Failure>, us: u64) {
        let result = match result {
            Ok(_) => Ok(()),
            Err(failure) if failure.code == TIMEOUT => Err(NoResult::TimedOut),
            Err(failure) => Err(NoResult::Failed(failure)),
        };
        self.tell(result, Duration::from_micros(us));
    }

    fn tell(&mut self, result: Result<(), NoResult<'_>>, took: Duration) {
        let Some((cx, began)) = self.0.take() else { return };
        let (of, tried) = (cx.subject(), cx.tried());
        cx.inner().tell(|| Observation::ActionEnded { of, tried, result, began, took });
    }
}

impl Drop for ObservedAction {
    fn drop(&mut self) {
        let took = self.0.as_ref().map(|(cx, began)| cx.now().ms_since(*began));
        self.tell(Err(NoResult::Dropped), Duration::from_millis(took.unwrap_or_default()));
    }
}

/// The failure code of an action that exceeded its timeout.
pub(crate) const TIMEOUT: &str = "timeout";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stepwell_core::RunId;
    use uuid::Uuid;

    use super::{SpanId, traceparent};

    #[test]
    fn span_ids_are_distinct_and_never_zero() {
        let mut seen = BTreeSet::new();
        for run in (1..=20).map(|number| RunId::new(Uuid::from_u128(number))) {
            assert!(seen.insert(SpanId::of_run(run).number()) && seen.insert(SpanId::of_whole(run).number()));
            for number in 0..20 {
                assert!(seen.insert(SpanId::of_commit(run, number).number()));
                for nonce in 0..3 {
                    assert!(seen.insert(SpanId::of_attempt(run, number, 1, nonce).number()));
                    assert!(seen.insert(SpanId::of_attempt(run, number, 2, nonce).number()));
                }
            }
        }
        assert!(!seen.contains(&0));
    }

    #[test]
    fn outgoing_call_joins_the_trace_of_the_root() {
        let run = RunId::new(Uuid::from_u128(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736));
        let span = SpanId(0x00f0_67aa_0ba9_02b7);
        let text = traceparent(run, span, true);
        assert_eq!(text, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(traceparent(run, span, false).ends_with("-00"));
    }
}
