//! What evaluation may cost.

use super::MAX_DEPTH;

/// What evaluation may still spend. Evaluating takes from it, so one budget can bound many expressions
/// together.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Steps: one for each part evaluated, each value walked or put into a list and each 256 bytes of text
    /// read.
    pub steps: u32,
    /// Bytes of the values made, counted roughly as their JSON text.
    pub result_bytes: usize,
    /// Bytes of values that are there already and are given back as they are, alone or within others.
    pub copied_bytes: usize,
    /// How deep an expression may nest; not spent.
    pub depth: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { steps: 100_000, result_bytes: 256 * 1024, copied_bytes: 16 * 1024 * 1024, depth: MAX_DEPTH }
    }
}

/// Which part of a budget is used up.
#[derive(Debug, Clone, Copy)]
pub(super) enum Overspent {
    Steps,
    Bytes,
    Depth,
}

impl Budget {
    /// For a person at a terminal, who can stop what takes too long: room for whole documents.
    pub fn roomy() -> Budget {
        let bytes = 64 * 1024 * 1024;
        Budget { steps: 100_000_000, result_bytes: bytes, copied_bytes: bytes, depth: MAX_DEPTH }
    }

    pub(super) fn spend_steps(&mut self, steps: usize) -> Result<(), Overspent> {
        let left = u32::try_from(steps).ok().and_then(|steps| self.steps.checked_sub(steps));
        self.steps = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Steps)
    }

    /// Reading text is cheap, but not free.
    pub(super) fn spend_reading(&mut self, bytes: usize) -> Result<(), Overspent> {
        self.spend_steps(bytes / 256)
    }

    pub(super) fn spend_copied(&mut self, bytes: usize) -> Result<(), Overspent> {
        let left = self.copied_bytes.checked_sub(bytes);
        self.copied_bytes = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Bytes)
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Overspent> {
        let left = self.result_bytes.checked_sub(bytes);
        self.result_bytes = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Bytes)
    }
}
