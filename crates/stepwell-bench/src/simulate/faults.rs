//! The faults of a simulation: how many a seed has, and what happens to a single call.

use clap::ValueEnum;

use super::dice::Dice;

/// A planted bug. The simulation must find it, otherwise it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// The store accepts results from processes that no longer own the run.
    NoFence,
    /// A commit is acknowledged before it is applied, and lost if the process dies in between.
    AnswerEarly,
    /// The store does not compare the revision that a commit was decided on.
    NoVersionCheck,
    /// The engine uses the wall clock, which jumps forward and back.
    WallClockTimers,
}

/// The fault profile of a simulation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Temper {
    pub(crate) name: &'static str,
    /// Calls per 1,000 that take long.
    pub(crate) slow: u64,
    /// Calls per 1,000 that never arrive.
    pub(crate) unavailable: u64,
    /// Calls per 1,000 whose answer is lost.
    pub(crate) lost: u64,
    /// Commits per 1,000 during which the process dies.
    pub(crate) deadly: u64,
    /// Attempts per 1,000 that fail.
    pub(crate) fails: u64,
    /// Maximum number of process crashes at any moment.
    pub(crate) kills: u64,
    /// Maximum number of processes frozen for longer than their lease.
    pub(crate) freezes: u64,
    /// Maximum number of single tasks that are paused.
    pub(crate) stalls: u64,
    /// Maximum number of processes disconnected from the store.
    pub(crate) cuts: u64,
    /// Maximum number of processes that are stopped gracefully.
    pub(crate) stops: u64,
}

impl Temper {
    /// Chooses the profile of a seed.
    pub(crate) fn of(dice: &mut Dice) -> Self {
        let base = Temper { name: "calm", fails: 150, ..Temper::default() };
        match dice.below(10) {
            0 => base,
            1 => Temper { name: "slow", slow: 150, ..base },
            2 => Temper { name: "crashing", deadly: 25, kills: 4, ..base },
            3 => Temper { name: "frozen", freezes: 4, stalls: 6, slow: 20, ..base },
            4 => Temper { name: "lossy", lost: 80, unavailable: 60, ..base },
            5 => Temper { name: "cut off", cuts: 4, unavailable: 20, ..base },
            6 => Temper { name: "orderly", stops: 5, stalls: 3, ..base },
            _ => Temper {
                name: "wild",
                slow: 30,
                unavailable: 30,
                lost: 30,
                deadly: 10,
                kills: 2,
                freezes: 2,
                stalls: 4,
                cuts: 1,
                stops: 1,
                fails: 250,
            },
        }
    }

    /// Returns `true` for the profile without faults.
    pub(crate) fn is_calm(&self) -> bool {
        self.name == "calm"
    }
}

/// The outcome of a call to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Executed and answered normally.
    Done,
    /// Lost on the way; the caller gets an error.
    Missed,
    /// Executed, but the answer is lost.
    Unanswered,
    /// Not executed, and the caller cannot know.
    MissedUnanswered,
    /// The process dies right before the call is executed.
    DeathBefore,
    /// Executed, but the process dies before it gets the answer.
    DeathAfter,
}

/// The delays and the outcome of a call to the store and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trip {
    pub(crate) there_us: u64,
    pub(crate) back_us: u64,
    pub(crate) fate: Fate,
    /// The call is independent of its process: it is executed even if the process dies.
    pub(crate) by_itself: bool,
}

impl Trip {
    /// Chooses the trip of one call. With `deadly` the process dies during it.
    pub(crate) fn of(dice: &mut Dice, temper: &Temper, quiet: bool, commits: bool, deadly: bool) -> Self {
        let calm = Temper::default();
        let temper = if quiet { &calm } else { temper };
        let way = |dice: &mut Dice| match dice.below(1_000) {
            at if at < temper.slow / 6 => dice.between(1_500_000, 4_000_000),
            at if at < temper.slow => dice.between(50_000, 700_000),
            at if at < 400 => 0,
            _ => dice.between(50, 8_000),
        };
        let (there_us, back_us, by_itself) = (way(dice), way(dice), dice.chance(500));
        let dies = !quiet && commits && (deadly || dice.chance(temper.deadly));
        let fate = if dies {
            dice.pick(&[Fate::DeathBefore, Fate::DeathAfter])
        } else if dice.chance(temper.unavailable) {
            Fate::Missed
        } else if dice.chance(temper.lost) {
            dice.pick(&[Fate::Unanswered, Fate::Unanswered, Fate::MissedUnanswered])
        } else {
            Fate::Done
        };
        Trip { there_us, back_us, fate, by_itself }
    }
}
