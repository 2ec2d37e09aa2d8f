//! Limits on the cost of evaluation.

use super::MAX_DEPTH;

/// The remaining budget of an evaluation. Evaluation reduces it, so one budget can bound several expressions
/// together.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Number of steps. One step is spent for each evaluated part, for each value visited or added to a list, and for
    /// each 256 bytes of text read.
    pub steps: u32,
    /// Size of the computed values in bytes, roughly that of their JSON text.
    pub result_bytes: usize,
    /// Size in bytes of existing values that are copied into the result. A value costs at most the size of its JSON
    /// text.
    pub copied_bytes: usize,
    /// Maximum nesting depth of an expression. It is not reduced.
    pub depth: u32,
}

/// The default of [`Budget::copied_bytes`]. Every stored value must fit in it, so that an expression can return it: see
/// [`Limits::check`](crate::limits::Limits::check).
pub const MAX_COPIED_BYTES: usize = 16 * 1024 * 1024;

impl Default for Budget {
    fn default() -> Self {
        Budget { steps: 100_000, result_bytes: 256 * 1024, copied_bytes: MAX_COPIED_BYTES, depth: MAX_DEPTH }
    }
}

/// The part of a budget that is used up.
#[derive(Debug, Clone, Copy)]
pub(super) enum Overspent {
    Steps,
    Bytes,
    Depth,
}

impl Budget {
    /// Returns a large budget for interactive use, where a person can stop a long evaluation. It is enough for whole
    /// documents.
    pub fn generous() -> Budget {
        let bytes = 64 * 1024 * 1024;
        Budget { steps: 100_000_000, result_bytes: bytes, copied_bytes: bytes, depth: MAX_DEPTH }
    }

    pub(super) fn spend_steps(&mut self, steps: usize) -> Result<(), Overspent> {
        let left = u32::try_from(steps).ok().and_then(|steps| self.steps.checked_sub(steps));
        self.steps = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Steps)
    }

    /// Spends steps for reading text: one per 256 bytes.
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
