//! What of a document runs came to: its steps, and the ways out of its decisions.

use serde::Serialize;
use stepwell_core::document::Outline;
use stepwell_core::document::outline::Mark;

use super::Seen;

/// What of a document runs came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Coverage {
    /// Steps.
    pub steps: Tally,
    /// Ways out of decisions.
    pub branches: Tally,
    /// What no run came to, in the order of the lines.
    pub uncovered: Vec<Uncovered>,
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// So many were come to.
    pub covered: usize,
    /// So many there are.
    pub total: usize,
}

/// A step, or a way out of one, that no run came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Uncovered {
    /// The step.
    pub step: String,
    /// The way out of it; without it, it is the step itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// The line that the step begins in; 0 if it is not known.
    pub line: usize,
}

impl Coverage {
    /// What of an outline was come to.
    pub(super) fn of(outline: &Outline, seen: &Seen) -> Self {
        let is_seen = |marks: &[Mark]| marks.iter().any(|mark| mark.is_in(&seen.entered, &seen.fired));
        let steps = outline.steps.iter().map(|step| {
            (is_seen(&step.marks), Uncovered { step: step.id.clone(), way: None, line: step.at.line })
        });
        let ways = outline.ways.iter().map(|way| {
            let uncovered =
                Uncovered { step: way.step.clone(), way: Some(way.way.clone()), line: way.at.line };
            (is_seen(&way.marks), uncovered)
        });
        let mut coverage = Coverage::default();
        for (is_covered, one) in steps.chain(ways) {
            let tally = if one.way.is_none() { &mut coverage.steps } else { &mut coverage.branches };
            tally.total += 1;
            match is_covered {
                true => tally.covered += 1,
                false => coverage.uncovered.push(one),
            }
        }
        coverage.uncovered.sort_by_key(|one| one.line);
        coverage
    }

    /// Runs came to every step.
    pub fn has_every_step(&self) -> bool {
        self.steps.covered == self.steps.total
    }
}
