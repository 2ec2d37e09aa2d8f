//! Chance that follows from the seed: each part of the simulation throws dice of its own.

use crate::script::Random;

/// Chance that follows from the seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(Random);

/// Which part of the simulation throws.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Which task goes on next.
    Order,
    /// What goes wrong on the way to the store.
    Wire,
    /// What happens to processes and clocks, and when.
    Plot,
    /// How long actions take and how they end.
    Actions,
    /// What is asked of the engines.
    Clients,
    /// Ids.
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

    /// A number below this one.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next() % end.max(1)
    }

    /// A number from the first to the last, both included.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// Yes so many times in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.below(1_000) < per_mille
    }

    /// One of these; there must be one.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
