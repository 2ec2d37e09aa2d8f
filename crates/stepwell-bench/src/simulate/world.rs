//! The shared state of one simulation: the time, the store, the processes and the oracle that checks them.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stepwell::Engine;
use stepwell_store::{
    Claim, Commit, CommitError, Committed, Loaded, MemoryStore, Refused, Store, TenantScope,
};

use super::dice::{Dice, Part};
use super::faults::{Plant, Temper, Trip};
use super::oracle::{Applied, Oracle};
use super::plant;
use super::tally::Tally;
use super::tasks::Board;
use super::time::{Sleep, Time, Wall};
use super::trace::Trace;

/// The shared state of one simulation.
pub(crate) struct World {
    pub(crate) plant: Option<Plant>,
    pub(crate) board: Arc<Board>,
    pub(crate) time: Arc<Time>,
    pub(crate) memory: Arc<MemoryStore>,
    scene: Mutex<Scene>,
}

/// The mutable part of the shared state.
pub(crate) struct Scene {
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    pub(crate) oracle: Oracle,
    pub(crate) temper: Temper,
    pub(crate) settings: Settings,
    pub(crate) wire: Dice,
    pub(crate) actions: Dice,
    pub(crate) clients: Dice,
    pub(crate) ids: Dice,
    pub(crate) ids_made: u64,
    /// All processes so far, indexed by their number.
    pub(crate) processes: Vec<Process>,
    /// Processes to end as soon as the current task yields.
    pub(crate) doomed: Vec<usize>,
    /// Time since when there are no more faults.
    pub(crate) quiet_since: Option<i64>,
    /// Number of clients that have not finished.
    pub(crate) clients_left: usize,
    /// The number of the commit at which a process dies.
    pub(crate) deadly_commit: Option<u64>,
    pub(crate) commits_begun: u64,
    /// The first violation found.
    pub(crate) violation: Option<String>,
}

/// The engine options of a seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) max_runs: usize,
    pub(crate) poll_ms: u64,
    pub(crate) max_crashes: u32,
}

/// A simulated process, alive or dead.
pub(crate) struct Process {
    pub(crate) slot: usize,
    pub(crate) lives: bool,
    /// `true` once a graceful stop has begun.
    pub(crate) stops: bool,
    pub(crate) engine: Option<Engine>,
    pub(crate) frozen_until: i64,
    pub(crate) cut_until: i64,
    /// `true` if one of its tasks was paused.
    pub(crate) was_stalled: bool,
    pub(crate) wall: Wall,
}

impl World {
    pub(crate) fn new(seed: u64, plant: Option<Plant>, aloud: bool) -> Self {
        let mut plot = Dice::new(seed, Part::Plot);
        let temper = Temper::of(&mut plot);
        let settings = Settings {
            max_runs: plot.pick(&[1, 2, 256, 256, 256]),
            poll_ms: plot.pick(&[100, 250, 400]),
            max_crashes: plot.pick(&[2, 5, 1_000, 1_000]),
        };
        let deadly_commit = (!temper.is_calm() && plot.chance(500)).then(|| plot.below(80));
        World {
            plant,
            board: Arc::default(),
            time: Arc::default(),
            memory: Arc::default(),
            scene: Mutex::new(Scene {
                trace: Trace::new(aloud),
                tally: Tally { seeds: 1, ..Tally::default() },
                oracle: Oracle::new(settings, temper.is_calm()),
                temper,
                settings,
                wire: Dice::new(seed, Part::Wire),
                actions: Dice::new(seed, Part::Actions),
                clients: Dice::new(seed, Part::Clients),
                ids: Dice::new(seed, Part::Ids),
                ids_made: 0,
                processes: Vec::new(),
                doomed: Vec::new(),
                quiet_since: None,
                clients_left: 0,
                deadly_commit,
                commits_begun: 0,
                violation: None,
            }),
        }
    }

    pub(crate) fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> i64 {
        self.time.now()
    }

    pub(crate) fn sleep(&self, us: u64) -> Sleep {
        self.time.sleep(us)
    }

    pub(crate) fn trace(&self, what: fmt::Arguments<'_>) {
        let now = self.now();
        self.scene().trace.line(now, what);
    }

    /// Records a violation; only the first one counts.
    pub(crate) fn judge(&self, verdict: Result<(), String>) {
        self.scene().judge(verdict);
    }

    /// Kills a process. Its tasks end when the current task yields.
    pub(crate) fn kill(&self, process: usize, why: &str) {
        let now = self.now();
        self.scene().kill(now, process, why);
    }

    /// Chooses the trip of the next call of a process. Returns `None` while the process is disconnected.
    pub(crate) fn trip(&self, process: usize, commits: bool) -> Option<Trip> {
        let now = self.now();
        let mut scene = self.scene();
        let scene = &mut *scene;
        scene.commits_begun += u64::from(commits);
        let quiet = scene.quiet_since.is_some();
        let deadly = commits && scene.deadly_commit == Some(scene.commits_begun);
        let trip = Trip::of(&mut scene.wire, &scene.temper, quiet, commits, deadly);
        let process = scene.processes.get(process)?;
        (process.cut_until <= now).then_some(trip)
    }

    /// Records that the answer to a commit was lost.
    pub(crate) fn lost_answer(&self, process: usize, issued: i64) {
        let now = self.now();
        let mut scene = self.scene();
        scene.tally.lost_answers += 1;
        scene.trace.line(now, format_args!("p{process} gets no answer to the commit issued {issued}"));
    }

    /// Applies a commit that has arrived at the store, and lets the oracle check it.
    pub(crate) fn apply(
        &self,
        process: usize,
        issued: i64,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<Committed, CommitError> {
        // The oracle gets the commit as the process sent it, before the planted bug changes it.
        let seen = commit.clone();
        let commit = plant::twist(self.plant, &self.memory, scope, commit);
        let answer = at_once(self.memory.commit(scope, commit));
        let now = self.now();
        let mut scene = self.scene();
        let scene = &mut *scene;
        match &answer {
            Ok(_) => {
                scene.tally.commits += 1;
                let applied = Applied { memory: &self.memory, commit: &seen, process, issued, now };
                let verdict = scene.oracle.applied(&applied, &mut scene.trace, &mut scene.tally);
                scene.judge(verdict);
            }
            Err(CommitError::Refused(refused)) => {
                scene.tally.refused += 1;
                scene.tally.fenced += u64::from(matches!(refused, Refused::Fenced { .. }));
                let name = scene.oracle.name_of_commit(&seen);
                scene.trace.line(now, format_args!("p{process} refused {name}: {refused}"));
            }
            Err(error) => {
                scene.judge(Err(format!("the memory store failed: {error}")));
            }
        }
        answer
    }

    /// Lets the oracle check the runs that a process has claimed.
    pub(crate) fn claimed(&self, process: usize, claim: &Claim, taken: &[Loaded]) {
        let now = self.now();
        let mut scene = self.scene();
        let scene = &mut *scene;
        let verdict = scene.oracle.claimed(now, process, claim, taken, &mut scene.trace, &mut scene.tally);
        scene.judge(verdict);
    }
}

impl Scene {
    pub(crate) fn judge(&mut self, verdict: Result<(), String>) {
        if let Err(wrong) = verdict {
            self.violation.get_or_insert(wrong);
        }
    }

    pub(crate) fn kill(&mut self, now: i64, process: usize, why: &str) {
        let Some(victim) = self.processes.get_mut(process).filter(|victim| victim.lives) else { return };
        victim.lives = false;
        self.doomed.push(process);
        self.tally.crashes += 1;
        self.oracle.died(process);
        self.trace.line(now, format_args!("p{process} dies {why}"));
    }

    /// Returns the processes that accept requests.
    pub(crate) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.lives && !process.stops && process.engine.is_some();
        (0..self.processes.len()).filter(|number| serves(&self.processes[*number])).collect()
    }
}

/// Returns the result of a future that never waits.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}
