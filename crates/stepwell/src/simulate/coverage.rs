//! Coverage of a document by runs: its steps, and the branches of its decisions.

use serde::Serialize;
use stepwell_core::document::Outline;
use stepwell_core::document::outline::Mark;

use super::Seen;

/// Coverage of a document by runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Coverage {
    pub steps: CoverageCount,
    /// Branches of decisions, such as `then` and `else`.
    pub branches: CoverageCount,
    /// Steps and branches that no run reached, ordered by line.
    pub uncovered: Vec<Uncovered>,
}

/// A number of covered elements and their total number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CoverageCount {
    /// Number of elements that at least one run reached.
    pub covered: usize,
    /// Number of elements in the document.
    pub total: usize,
}

/// A step, or a branch of a step, that no run reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Uncovered {
    /// Id of the step.
    pub step: String,
    /// Name of the branch. `None`: no run reached the step itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// Line in which the step begins; 0 if it is not known.
    pub line: usize,
}

impl Coverage {
    /// Computes the coverage of a document.
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

    /// Returns `true` if every step was reached.
    pub fn has_every_step(&self) -> bool {
        self.steps.covered == self.steps.total
    }
}
