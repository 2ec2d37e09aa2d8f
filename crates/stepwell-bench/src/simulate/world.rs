//! What all parts of one simulation share: the time, the store, the processes and the oracle that watches them.

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

/// What all parts of one simulation share.
pub(crate) struct World {
    pub(crate) plant: Option<Plant>,
    pub(crate) board: Arc<Board>,
    pub(crate) time: Arc<Time>,
    pub(crate) memory: Arc<MemoryStore>,
    scene: Mutex<Scene>,
}

/// What changes while it goes on.
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
    /// Every process there has been, by its number.
    pub(crate) processes: Vec<Process>,
    /// Processes that die as soon as the task at hand lets go.
    pub(crate) doomed: Vec<usize>,
    /// From when on nothing goes wrong any more.
    pub(crate) quiet_since: Option<i64>,
    /// Clients that still want something.
    pub(crate) clients_left: usize,
    /// The commit at which a process dies, and the commits so far.
    pub(crate) deadly_commit: Option<u64>,
    pub(crate) commits_begun: u64,
    /// What was found to be wrong first.
    pub(crate) violation: Option<String>,
}

/// How the engines of a seed are set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) max_runs: usize,
    pub(crate) poll_ms: u64,
    pub(crate) max_crashes: u32,
}

/// A simulated process, from its birth to its death.
pub(crate) struct Process {
    pub(crate) slot: usize,
    pub(crate) lives: bool,
    /// It has begun to stop.
    pub(crate) stops: bool,
    pub(crate) engine: Option<Engine>,
    pub(crate) frozen_until: i64,
    pub(crate) cut_until: i64,
    /// One of its tasks was held up.
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

    /// Something is wrong; the first thing counts.
    pub(crate) fn judge(&self, verdict: Result<(), String>) {
        self.scene().judge(verdict);
    }

    /// A process dies; its tasks end when the one at hand lets go.
    pub(crate) fn kill(&self, process: usize, why: &str) {
        let now = self.now();
        self.scene().kill(now, process, why);
    }

    /// What becomes of the next call of a process.
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

    /// The answer to a commit was lost.
    pub(crate) fn lost_answer(&self, process: usize, issued: i64) {
        let now = self.now();
        let mut scene = self.scene();
        scene.tally.lost_answers += 1;
        scene.trace.line(now, format_args!("p{process} hears nothing of what was issued {issued}"));
    }

    /// A commit has come to the store.
    pub(crate) fn apply(
        &self,
        process: usize,
        issued: i64,
        scope: TenantScope,
        commit: Commit,
    ) -> Result<Committed, CommitError> {
        // The oracle sees what the process sent, whatever the store makes of it.
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
                scene.judge(Err(format!("the store in memory failed: {error}")));
            }
        }
        answer
    }

    /// Runs were taken.
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

    /// Processes that can be asked for something.
    pub(crate) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.lives && !process.stops && process.engine.is_some();
        (0..self.processes.len()).filter(|number| serves(&self.processes[*number])).collect()
    }
}

/// The answer of something that does not wait.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the store in memory answers at once"),
    }
}
