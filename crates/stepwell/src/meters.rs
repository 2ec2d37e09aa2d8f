//! Counts what happens in an engine, with the recorder of the program that it is part of (the `metrics` facade).
//!
//! Nothing that is counted is named after a tenant, a run or a key: there are as many series as there are actions.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use stepwell_core::Name;
use stepwell_store::{Instruments, Status};

use crate::observe::{Fact, Missed, Observer, Subject, Trial};
use crate::signal::Signalled;
use crate::{events, schedule};

/// Actions that are counted by name; those that come after them are counted together.
const MOST_ACTIONS: usize = 500;
/// What those are called.
const OTHERS: &str = "other";

/// Counts what happens in an engine: [`Builder::observer`](crate::Builder::observer) takes it.
pub struct Meters {
    recorder: Arc<dyn Recorder + Send + Sync>,
    started: [Counter; 3],
    ended: [Counter; 3],
    turns: Counter,
    actions: RwLock<BTreeMap<Name, Arc<ActionMeter>>>,
    taken: Counter,
    kept: Counter,
    refused_signals: Counter,
    accepted: Counter,
    delivered: Counter,
    late: Histogram,
    claims: Counter,
    claimed: Counter,
    commits: Histogram,
    refused: BTreeMap<&'static str, Counter>,
    deaths: Counter,
}

/// What is counted of one action.
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

/// Why commits are not applied.
const REFUSALS: [&str; 8] = ["moved", "fenced", "key", "cell", "too_large", "store", "unknown", "other"];
/// How runs end, or stand still.
const ENDS: [(Status, &str); 3] =
    [(Status::Completed, "completed"), (Status::Cancelled, "cancelled"), (Status::Failed, "failed")];
/// What runs are for.
const KINDS: [&str; 3] = ["workflow", "event", "schedule"];

fn kind(workflow: &Name) -> usize {
    match workflow.as_str() {
        events::WORKFLOW => 1,
        schedule::WORKFLOW => 2,
        _ => 0,
    }
}

impl Meters {
    /// Counts with this recorder; [`Global`] is the one that the program has installed.
    pub fn new(recorder: Arc<dyn Recorder + Send + Sync>) -> Self {
        let with = Instruments(&*recorder);
        let counter = |name, about| with.counter(name, about, &[]);
        let signals = |outcome| {
            let about = "Signals that came to runs, by what became of them.";
            with.counter("stepwell_signals_total", about, &[("outcome", outcome)])
        };
        let refused = |why| {
            let about =
                "Commits that were not applied, by the reason; fenced = the run had another owner by then.";
            (why, with.counter("stepwell_commits_refused_total", about, &[("reason", why)]))
        };
        Meters {
            started: KINDS.map(|kind| {
                with.counter("stepwell_runs_started_total", "Runs that have begun.", &[("kind", kind)])
            }),
            ended: ENDS.map(|(_, status)| {
                let about = "Runs that have ended, or come to stand still with an error (failed).";
                with.counter("stepwell_runs_ended_total", about, &[("status", status)])
            }),
            turns: counter("stepwell_turns_total", "Turns of runs that were committed."),
            actions: RwLock::default(),
            taken: signals("taken"),
            kept: signals("kept"),
            refused_signals: signals("refused"),
            accepted: counter("stepwell_events_accepted_total", "Events that were accepted."),
            delivered: counter("stepwell_events_delivered_total", "Events that are delivered to everybody."),
            late: with.histogram(
                "stepwell_run_lag_seconds",
                "How late runs that were due are looked at.",
                &[],
            ),
            claims: counter("stepwell_claims_total", "How often the store was asked for runs that are due."),
            claimed: counter("stepwell_runs_claimed_total", "Runs that were taken up because they were due."),
            commits: with.histogram(
                "stepwell_commit_seconds",
                "How long a commit takes, from being handed to the store until it is answered.",
                &[],
            ),
            refused: REFUSALS.into_iter().map(refused).collect(),
            deaths: counter(
                "stepwell_processes_died_total",
                "Processes that this one has found dead while they owned runs.",
            ),
            recorder,
        }
    }

    fn started(&self, of: &Subject<'_>, status: Status) {
        let kind = kind(of.workflow);
        self.started[kind].increment(1);
        if kind == 1 {
            self.accepted.increment(1);
        }
        self.ended(of, None, status);
    }

    fn ended(&self, of: &Subject<'_>, before: Option<Status>, after: Status) {
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

    fn began(&self, tried: &Trial<'_>) {
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
            with.counter("stepwell_actions_ended_total", "Tries of actions that are over.", &labels)
        };
        ActionMeter {
            begun: with.counter(
                "stepwell_actions_started_total",
                "Tries of actions that have begun.",
                &labels,
            ),
            retried: with.counter(
                "stepwell_actions_retried_total",
                "Tries that were not the first for their step.",
                &labels,
            ),
            running: with.gauge("stepwell_actions_running", "Actions that run now.", &labels),
            done: outcome("done"),
            failed: outcome("failed"),
            timed_out: outcome("timeout"),
            dropped: outcome("dropped"),
            seconds: with.histogram("stepwell_action_seconds", "How long tries of actions take.", &labels),
        }
    }
}

impl Observer for Meters {
    fn observe(&self, fact: &Fact<'_>) {
        match fact {
            Fact::Started { of, status, .. } => self.started(of, *status),
            Fact::Turned { of, before, after, .. } => {
                self.turns.increment(1);
                self.ended(of, Some(*before), *after);
            }
            Fact::ActionBegan { tried, .. } => self.began(tried),
            Fact::ActionEnded { tried, result, took, .. } => {
                let action = self.action(tried.action);
                action.running.decrement(1);
                action.seconds.record(*took);
                let outcome = match result {
                    Ok(()) => &action.done,
                    Err(Missed::Failed(_)) => &action.failed,
                    Err(Missed::TimedOut) => &action.timed_out,
                    Err(Missed::Dropped) => &action.dropped,
                };
                outcome.increment(1);
            }
            Fact::Signalled { came_to: Signalled::Taken, .. } => self.taken.increment(1),
            Fact::Signalled { came_to: Signalled::Kept, .. } => self.kept.increment(1),
            Fact::SignalRefused => self.refused_signals.increment(1),
            Fact::Found { late } => self.late.record(*late),
            Fact::Claimed { runs } => {
                self.claims.increment(1);
                self.claimed.increment(*runs as u64);
            }
            Fact::Committed { took, refused } => {
                self.commits.record(*took);
                if let Some(refused) = refused.and_then(|why| self.refused.get(why)) {
                    refused.increment(1);
                }
            }
            Fact::Died { processes } => self.deaths.increment(*processes as u64),
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

/// The recorder that the program has installed (`metrics::set_global_recorder`); install it first.
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
