//! Metrics of an engine, recorded through the `metrics` facade with the recorder of the embedding program.
//!
//! No label contains a tenant, a run or a key, so the number of series grows only with the number of actions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use stepwell_core::Name;
use stepwell_store::{Instruments, Status};

use crate::observe::{Attempt, NoResult, Observation, ObservedRun, Observer};
use crate::signal::Signalled;
use crate::{bulk, events, schedule};

/// Maximum number of actions with separate series. Further actions share the series `other`.
const MOST_ACTIONS: usize = 500;
const OTHERS: &str = "other";

/// Records metrics of an engine. Pass it to [`Builder::observer`](crate::Builder::observer).
pub struct Meters {
    recorder: Arc<dyn Recorder + Send + Sync>,
    started: [Counter; 4],
    ended: [Counter; 3],
    commit_cycles: Counter,
    actions: RwLock<BTreeMap<Name, Arc<ActionMeter>>>,
    consumed: Counter,
    buffered: Counter,
    refused_signals: Counter,
    accepted: Counter,
    delivered: Counter,
    late: Histogram,
    claims: Counter,
    claimed: Counter,
    commits: Histogram,
    refused: BTreeMap<&'static str, Counter>,
    crashes: Counter,
}

/// The metrics of one action.
struct ActionMeter {
    begun: Counter,
    retried: Counter,
    running: Gauge,
    done: Counter,
    failed: Counter,
    timed_out: Counter,
    dropped: Counter,
    seconds: Histogram,
}

/// The reasons why a commit is not applied, as label values.
const REFUSALS: [&str; 8] = ["moved", "fenced", "key", "cell", "too_large", "store", "unknown", "other"];
/// The final statuses and `failed`, as label values.
const ENDS: [(Status, &str); 3] =
    [(Status::Completed, "completed"), (Status::Cancelled, "cancelled"), (Status::Failed, "failed")];
/// The kinds of runs, as label values.
const KINDS: [&str; 4] = ["workflow", "event", "schedule", "bulk"];

fn kind(workflow: &Name) -> usize {
    match workflow.as_str() {
        events::WORKFLOW => 1,
        schedule::WORKFLOW => 2,
        bulk::WORKFLOW => 3,
        _ => 0,
    }
}

impl Meters {
    /// Creates metrics with this recorder. [`Global`] uses the recorder that the program has installed.
    pub fn new(recorder: Arc<dyn Recorder + Send + Sync>) -> Self {
        let with = Instruments(&*recorder);
        let counter = |name, about| with.counter(name, about, &[]);
        let signals = |outcome| {
            let about = "Signals sent to runs, by outcome.";
            with.counter("stepwell_signals_total", about, &[("outcome", outcome)])
        };
        let refused = |why| {
            let about = "Commits that were not applied, by reason. fenced = another process owns the run.";
            (why, with.counter("stepwell_commits_refused_total", about, &[("reason", why)]))
        };
        Meters {
            started: KINDS
                .map(|kind| with.counter("stepwell_runs_started_total", "Runs started.", &[("kind", kind)])),
            ended: ENDS.map(|(_, status)| {
                let about = "Runs that ended, or stopped with an error (failed).";
                with.counter("stepwell_runs_ended_total", about, &[("status", status)])
            }),
            commit_cycles: counter("stepwell_commit_cycles_total", "Commits that changed a run."),
            actions: RwLock::default(),
            consumed: signals("consumed"),
            buffered: signals("buffered"),
            refused_signals: signals("refused"),
            accepted: counter("stepwell_events_accepted_total", "Events accepted."),
            delivered: counter("stepwell_events_delivered_total", "Events delivered to all recipients."),
            late: with.histogram(
                "stepwell_run_lag_seconds",
                "Delay between the due time of a run and its claim.",
                &[],
            ),
            claims: counter("stepwell_claims_total", "Queries to the store for due runs."),
            claimed: counter("stepwell_runs_claimed_total", "Due runs claimed."),
            commits: with.histogram(
                "stepwell_commit_seconds",
                "Duration of a commit, from sending it to the store until its answer.",
                &[],
            ),
            refused: REFUSALS.into_iter().map(refused).collect(),
            crashes: counter(
                "stepwell_processes_expired_total",
                "Expired processes with runs that this process has found.",
            ),
            recorder,
        }
    }

    fn started(&self, of: &ObservedRun<'_>, status: Status) {
        let kind = kind(of.workflow);
        self.started[kind].increment(1);
        if kind == 1 {
            self.accepted.increment(1);
        }
        self.ended(of, None, status);
    }

    fn ended(&self, of: &ObservedRun<'_>, before: Option<Status>, after: Status) {
        let is_new = |status: Status| status == after && before != Some(status);
        let Some(ended) = ENDS.iter().position(|(status, _)| is_new(*status)) else { return };
        self.ended[ended].increment(1);
        if after == Status::Completed && kind(of.workflow) == 1 {
            self.delivered.increment(1);
        }
    }

    fn action(&self, name: &Name) -> Arc<ActionMeter> {
        let known = self.actions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = known.get(name) {
            return action.clone();
        }
        let is_full = known.len() >= MOST_ACTIONS;
        drop(known);
        let name = if is_full { Name::from(OTHERS) } else { name.clone() };
        let made = || Arc::new(ActionMeter::new(Instruments(&*self.recorder), &name));
        let mut known = self.actions.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(name.clone()).or_insert_with(made).clone()
    }

    fn began(&self, tried: &Attempt<'_>) {
        let action = self.action(tried.action);
        action.begun.increment(1);
        action.running.increment(1);
        if tried.attempt > 1 {
            action.retried.increment(1);
        }
    }
}

impl ActionMeter {
    fn new(with: Instruments<'_>, name: &Name) -> Self {
        let labels = [("action", name.as_str())];
        let outcome = |outcome| {
            let labels = [("action", name.as_str()), ("outcome", outcome)];
            with.counter("stepwell_actions_ended_total", "Attempts of actions that ended.", &labels)
        };
        ActionMeter {
            begun: with.counter("stepwell_actions_started_total", "Attempts of actions started.", &labels),
            retried: with.counter(
                "stepwell_actions_retried_total",
                "Attempts of actions after the first one.",
                &labels,
            ),
            running: with.gauge("stepwell_actions_running", "Actions currently running.", &labels),
            done: outcome("done"),
            failed: outcome("failed"),
            timed_out: outcome("timeout"),
            dropped: outcome("dropped"),
            seconds: with.histogram(
                "stepwell_action_seconds",
                "Duration of an attempt of an action.",
                &labels,
            ),
        }
    }
}

impl Observer for Meters {
    fn observe(&self, observation: &Observation<'_>) {
        match observation {
            Observation::Started { of, status, .. } => self.started(of, *status),
            Observation::Committed { of, before, after, .. } => {
                self.commit_cycles.increment(1);
                self.ended(of, Some(*before), *after);
            }
            Observation::ActionBegan { tried, .. } => self.began(tried),
            Observation::ActionEnded { tried, result, took, .. } => {
                let action = self.action(tried.action);
                action.running.decrement(1);
                action.seconds.record(*took);
                let outcome = match result {
                    Ok(()) => &action.done,
                    Err(NoResult::Failed(_)) => &action.failed,
                    Err(NoResult::TimedOut) => &action.timed_out,
                    Err(NoResult::Dropped) => &action.dropped,
                };
                outcome.increment(1);
            }
            Observation::Signalled { value: Signalled::Consumed, .. } => self.consumed.increment(1),
            Observation::Signalled { value: Signalled::Buffered, .. } => self.buffered.increment(1),
            Observation::SignalRefused => self.refused_signals.increment(1),
            Observation::RunClaimed { late } => self.late.record(*late),
            Observation::Claimed { runs } => {
                self.claims.increment(1);
                self.claimed.increment(*runs as u64);
            }
            Observation::StoreCommit { took, refused } => {
                self.commits.record(*took);
                if let Some(refused) = refused.and_then(|why| self.refused.get(why)) {
                    refused.increment(1);
                }
            }
            Observation::ProcessesExpired { processes } => self.crashes.increment(*processes as u64),
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

/// The global recorder of the program (`metrics::set_global_recorder`). Install it before use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Global;

impl Recorder for Global {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, about: SharedString) {
        metrics::with_recorder(|recorder| recorder.describe_counter(key, unit, about));
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, about: SharedString) {
        metrics::with_recorder(|recorder| recorder.describe_gauge(key, unit, about));
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, about: SharedString) {
        metrics::with_recorder(|recorder| recorder.describe_histogram(key, unit, about));
    }
    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        metrics::with_recorder(|recorder| recorder.register_counter(key, metadata))
    }
    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        metrics::with_recorder(|recorder| recorder.register_gauge(key, metadata))
    }
    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        metrics::with_recorder(|recorder| recorder.register_histogram(key, metadata))
    }
}
