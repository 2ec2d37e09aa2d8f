//! What an engine tells whoever listens: facts, each where and when it has happened. Metrics and traces are listeners.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use stepwell_core::snapshot::ActivationId;
use stepwell_core::{Failure, Name, RunId, Timestamp};
use stepwell_store::{
    Commit, CommitError, Committed, Loaded, NewRun, Refused, Status, TenantId, TenantScope,
};

use crate::cx::Cx;
use crate::engine::Inner;
use crate::signal::Signalled;
use crate::standing::Standing;

/// Listens to an engine. It is told in the middle of a run's work: it neither waits nor does anything slow. Without one
/// the engine does nothing for it.
pub trait Observer: Send + Sync {
    /// Something has happened.
    fn observe(&self, fact: &Fact<'_>);

    /// Whether spans of this tree of runs are written down: what is called from it is told so.
    fn is_traced(&self, _root: RunId) -> bool {
        false
    }
}

/// Which run a fact is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Whose it is.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// The root of its tree, whose id is the id of the trace of all of them.
    pub root: RunId,
    /// The run that has started it.
    pub parent: Option<RunId>,
    /// The workflow's name.
    pub workflow: &'a Name,
}

/// Something that has happened in this process.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Fact<'a> {
    /// A run has begun.
    Started {
        /// The run.
        of: Subject<'a>,
        /// How it is doing: it may have ended at once.
        status: Status,
        /// When that was decided.
        began: Timestamp,
        /// When it was committed.
        ended: Timestamp,
    },
    /// A turn of a run is committed.
    Turned {
        /// The run.
        of: Subject<'a>,
        /// How it was doing.
        before: Status,
        /// How it is doing.
        after: Status,
        /// Which commit on its row this is.
        revision: u64,
        /// The version of its snapshot.
        version: u64,
        /// When the run began.
        since: Timestamp,
        /// When this was decided.
        began: Timestamp,
        /// When it was committed.
        ended: Timestamp,
    },
    /// An action begins.
    ActionBegan {
        /// The run.
        of: Subject<'a>,
        /// Which try of what.
        tried: Trial<'a>,
    },
    /// An action is over.
    ActionEnded {
        /// The run.
        of: Subject<'a>,
        /// Which try of what.
        tried: Trial<'a>,
        /// How it went.
        result: Result<(), Missed<'a>>,
        /// When it began.
        began: Timestamp,
        /// How long it took.
        took: Duration,
    },
    /// A signal has come to a run.
    Signalled {
        /// The run.
        of: Subject<'a>,
        /// What became of it.
        came_to: Signalled,
    },
    /// A signal was refused, or could not be given to its run.
    SignalRefused,
    /// A run that was due is looked at.
    Found {
        /// How late.
        late: Duration,
    },
    /// Runs were taken from the store, or looked for in vain.
    Claimed {
        /// How many.
        runs: usize,
    },
    /// A commit has been answered.
    Committed {
        /// How long that took.
        took: Duration,
        /// Why it was not applied; a word.
        refused: Option<&'static str>,
    },
    /// Processes were found dead that still own runs.
    Died {
        /// How many that were not known before.
        processes: usize,
    },
}

/// A try of an action.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The action.
    pub action: &'a Name,
    /// The transition that it is for.
    pub transition: &'a Name,
    /// The activation that the transition moves.
    pub activation: ActivationId,
    /// Which try this is, counted from 1.
    pub attempt: u32,
    /// By what a trace knows it.
    pub span: SpanId,
}

/// Why an action has no result.
#[derive(Debug, Clone, Copy)]
pub enum Missed<'a> {
    /// It failed. The text may have data in it.
    Failed(&'a Failure),
    /// It took longer than it may.
    TimedOut,
    /// It is no longer wanted: the run went on without it, or the engine stops.
    Dropped,
}

/// What a trace knows a part of a run by. It is made from what every process knows, so that parents need not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// The run itself: what is done for it is below this.
    pub fn of_run(run: RunId) -> Self {
        Self::made(run, 1, 0)
    }

    /// The whole of a run that has ended.
    pub fn of_whole(run: RunId) -> Self {
        Self::made(run, 2, 0)
    }

    /// A commit on a run, by its number.
    pub fn of_turn(run: RunId, revision: u64) -> Self {
        Self::made(run, 3, revision)
    }

    /// A try of an action: `nonce` tells those apart that count as the same try.
    pub(crate) fn of_try(run: RunId, activation: ActivationId, attempt: u32, nonce: u64) -> Self {
        Self::made(run, activation, mixed(nonce) ^ (u64::from(attempt) << 32 | 4))
    }

    fn made(run: RunId, what: u64, which: u64) -> Self {
        let (high, low) = run.uuid().as_u64_pair();
        let id = mixed(mixed(mixed(mixed(high) ^ low) ^ what) ^ which);
        // No span has the number 0.
        SpanId(id.max(1))
    }

    /// The number.
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

/// The `traceparent` (W3C Trace Context) of something that is called from a run.
pub(crate) fn traceparent(root: RunId, span: SpanId, is_traced: bool) -> String {
    format!("00-{}-{span}-{:02x}", root.uuid().simple(), u8::from(is_traced))
}

impl Standing {
    fn subject(&self, tenant: TenantId) -> Subject<'_> {
        let parent = self.parent.as_ref().map(|parent| parent.run);
        let (run, workflow) = (self.run(), self.definition().name());
        Subject { tenant, run, root: self.root, parent, workflow }
    }
}

/// Asks an observer. Who only watches must not bring down what they watch: a panic is logged and gives the default.
fn watched<T: Default>(asked: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(asked)).unwrap_or_else(|_| {
        tracing::error!("the observer panicked; the engine goes on");
        T::default()
    })
}

impl Inner {
    /// Tells whoever listens, if somebody does.
    fn tell<'a>(&self, fact: impl FnOnce() -> Fact<'a>) {
        if let Some(observer) = &self.observer {
            let fact = fact();
            watched(|| observer.observe(&fact));
        }
    }

    /// Whether spans of this tree of runs are written down.
    pub(crate) fn is_traced(&self, root: RunId) -> bool {
        self.observer.as_ref().is_some_and(|observer| watched(|| observer.is_traced(root)))
    }

    /// A turn is committed.
    pub(crate) fn saw_turn(
        &self,
        scope: TenantScope,
        before: &Standing,
        after: &Standing,
        status: Status,
        began: Timestamp,
    ) {
        self.tell(|| Fact::Turned {
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

    /// A signal has been taken or is kept.
    pub(crate) fn saw_signal(&self, scope: TenantScope, standing: &Standing, came_to: Signalled) {
        self.tell(|| Fact::Signalled { of: standing.subject(scope.tenant()), came_to });
    }

    /// A signal was refused.
    pub(crate) fn saw_refusal(&self) {
        self.tell(|| Fact::SignalRefused);
    }

    /// Runs were taken that are due.
    pub(crate) fn saw_claim(&self, loaded: &[Loaded], now: Timestamp) {
        self.tell(|| Fact::Claimed { runs: loaded.len() });
        if self.observer.is_some() {
            for wake in loaded.iter().filter_map(|loaded| loaded.head.wake).filter(|wake| *wake <= now) {
                self.tell(|| Fact::Found { late: Duration::from_millis(now.ms_since(wake)) });
            }
        }
    }

    /// Other processes have died.
    pub(crate) fn saw_deaths(&self, processes: usize) {
        if processes > 0 {
            self.tell(|| Fact::Died { processes });
        }
    }
}

/// A commit that is under way, if somebody wants to hear of it.
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
    /// A commit goes to the store.
    pub(crate) fn begin(inner: &Inner, commit: &Commit) -> Self {
        Committing(inner.observer.as_ref().map(|_| Underway {
            began: Instant::now(),
            now: commit.at,
            created: commit.create.iter().map(Created::of).collect(),
        }))
    }

    /// The store has answered.
    pub(crate) fn answered(
        &self,
        inner: &Inner,
        scope: TenantScope,
        answer: &Result<Committed, CommitError>,
    ) {
        let Some(commit) = &self.0 else { return };
        let refused = answer.as_ref().err().map(word);
        inner.tell(|| Fact::Committed { took: commit.began.elapsed(), refused });
        if refused.is_none() {
            self.applied(inner, scope);
        }
    }

    /// It is applied, whether the store has said so or it was looked up.
    pub(crate) fn applied(&self, inner: &Inner, scope: TenantScope) {
        let Some(commit) = &self.0 else { return };
        for Created { run, root, parent, workflow, status } in &commit.created {
            let of = Subject { tenant: scope.tenant(), run: *run, root: *root, parent: *parent, workflow };
            let (began, ended) = (commit.now, inner.host.now());
            inner.tell(|| Fact::Started { of, status: *status, began, ended });
        }
    }
}

/// Why a commit was not applied, in one word.
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

/// An action that runs, if somebody wants to hear of it. One that is dropped is over too.
pub(crate) struct Flight(Option<(Cx, Timestamp)>);

impl Flight {
    /// The action begins.
    pub(crate) fn begin(cx: &Cx, began: Timestamp) -> Self {
        let inner = cx.inner();
        inner.tell(|| Fact::ActionBegan { of: cx.subject(), tried: cx.tried() });
        Flight(inner.observer.as_ref().map(|_| (cx.clone(), began)))
    }

    /// The action is over.
    pub(crate) fn end<T>(mut self, result: &Result<T, Failure>, us: u64) {
        let result = match result {
            Ok(_) => Ok(()),
            Err(failure) if failure.code == TIMEOUT => Err(Missed::TimedOut),
            Err(failure) => Err(Missed::Failed(failure)),
        };
        self.tell(result, Duration::from_micros(us));
    }

    fn tell(&mut self, result: Result<(), Missed<'_>>, took: Duration) {
        let Some((cx, began)) = self.0.take() else { return };
        let (of, tried) = (cx.subject(), cx.tried());
        cx.inner().tell(|| Fact::ActionEnded { of, tried, result, began, took });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let took = self.0.as_ref().map(|(cx, began)| cx.now().ms_since(*began));
        self.tell(Err(Missed::Dropped), Duration::from_millis(took.unwrap_or_default()));
    }
}

/// The code of a failure that says that an action took too long.
pub(crate) const TIMEOUT: &str = "timeout";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stepwell_core::RunId;
    use uuid::Uuid;

    use super::{SpanId, traceparent};

    #[test]
    fn what_is_not_the_same_has_another_id_and_none_has_the_number_zero() {
        let mut seen = BTreeSet::new();
        for run in (1..=20).map(|number| RunId::new(Uuid::from_u128(number))) {
            assert!(seen.insert(SpanId::of_run(run).number()) && seen.insert(SpanId::of_whole(run).number()));
            for number in 0..20 {
                assert!(seen.insert(SpanId::of_turn(run, number).number()));
                for nonce in 0..3 {
                    assert!(seen.insert(SpanId::of_try(run, number, 1, nonce).number()));
                    assert!(seen.insert(SpanId::of_try(run, number, 2, nonce).number()));
                }
            }
        }
        assert!(!seen.contains(&0));
    }

    #[test]
    fn a_call_to_the_outside_is_part_of_the_roots_trace() {
        let run = RunId::new(Uuid::from_u128(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736));
        let span = SpanId(0x00f0_67aa_0ba9_02b7);
        let text = traceparent(run, span, true);
        assert_eq!(text, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(traceparent(run, span, false).ends_with("-00"));
    }
}
