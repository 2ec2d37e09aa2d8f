//! What goes wrong in a simulation: how much of it a seed wants, and what happens to one call.

use clap::ValueEnum;

use super::dice::Dice;

/// A mistake that is built in on purpose: a simulation that does not find it finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Plant {
    /// The store takes results from processes that no longer own the run.
    NoFence,
    /// A commit is answered before it is applied, and lost if the process dies in between.
    AnswerEarly,
    /// The store does not compare the revision a commit was decided on.
    NoVersionCheck,
    /// The engine's clock is the wall clock, which is set forward and back.
    WallClockTimers,
}

/// How much goes wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Temper {
    pub(crate) name: &'static str,
    /// In a thousand calls: those that take long.
    pub(crate) slow: u64,
    /// In a thousand calls: those that never arrive.
    pub(crate) unavailable: u64,
    /// In a thousand calls: those whose answer is lost.
    pub(crate) lost: u64,
    /// In a thousand commits: those at which the process dies.
    pub(crate) deadly: u64,
    /// In a thousand tries: those that fail.
    pub(crate) fails: u64,
    /// Deaths at any moment.
    pub(crate) kills: u64,
    /// Processes that stand still for longer than their lease.
    pub(crate) freezes: u64,
    /// Single tasks that stand still.
    pub(crate) stalls: u64,
    /// Processes that are cut off from the store.
    pub(crate) cuts: u64,
    /// Processes that are stopped in an orderly way.
    pub(crate) stops: u64,
}

impl Temper {
    /// What a seed wants.
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

    /// Nothing goes wrong.
    pub(crate) fn is_calm(&self) -> bool {
        self.name == "calm"
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is done and answered.
    Done,
    /// It never arrives.
    Missed,
    /// It is done, and the answer is lost.
    Unanswered,
    /// It is not done, and the caller cannot know.
    MissedUnanswered,
    /// The process dies right before it is done.
    DeathBefore,
    /// It is done, and the process dies before it hears so.
    DeathAfter,
}

/// The way of a call to the store and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trip {
    pub(crate) there_us: u64,
    pub(crate) back_us: u64,
    pub(crate) fate: Fate,
    /// It is on its way by itself: what happens to its process does not stop it.
    pub(crate) by_itself: bool,
}

impl Trip {
    /// The way of one call. `deadly` = the process dies at it.
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
