//! Random numbers that follow from the seed. Each part of the simulation has its own generator.

use crate::script::Random;

/// A random number generator for one part of the simulation.
#[derive(Debug, Clone)]
pub(crate) struct Dice(Random);

/// A part of the simulation with its own random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// The order in which tasks continue.
    Order,
    /// Faults on the way to the store.
    Wire,
    /// Faults of processes and clocks, and their times.
    Plot,
    /// Durations and endings of actions.
    Actions,
    /// Requests to the engines.
    Clients,
    Ids,
}

impl Dice {
    pub(crate) fn new(seed: u64, part: Part) -> Self {
        let mut mixed = Random::new(seed ^ ((part as u64 + 1) << 56));
        Dice(Random::new(mixed.next()))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next() % end.max(1)
    }

    /// Returns a number from `first` to `last`, both included.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// Returns `true` with a probability of `per_mille` in 1,000.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.below(1_000) < per_mille
    }

    /// Returns one of the items. Panics if `of` is empty.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
