//! Counters of a simulation.

use serde_json::{Value, json};

/// Counters of one or several simulations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) seeds: u64,
    pub(crate) runs: u64,
    pub(crate) commits: u64,
    pub(crate) refused: u64,
    pub(crate) fenced: u64,
    pub(crate) crashes: u64,
    pub(crate) stops: u64,
    pub(crate) freezes: u64,
    pub(crate) lost_answers: u64,
    pub(crate) takeovers: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) timers: u64,
    pub(crate) signals: u64,
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) children: u64,
    pub(crate) cancelled: u64,
    pub(crate) crash_limits: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        let mine = self.fields();
        for (mine, theirs) in mine.into_iter().zip(other.clone().fields()) {
            *mine.1 += *theirs.1;
        }
    }

    fn fields(&mut self) -> [(&'static str, &mut u64); 18] {
        [
            ("seeds", &mut self.seeds),
            ("runs", &mut self.runs),
            ("commits", &mut self.commits),
            ("refused", &mut self.refused),
            ("fenced", &mut self.fenced),
            ("crashes", &mut self.crashes),
            ("stops", &mut self.stops),
            ("freezes", &mut self.freezes),
            ("lost_answers", &mut self.lost_answers),
            ("takeovers", &mut self.takeovers),
            ("clock_jumps", &mut self.clock_jumps),
            ("timers", &mut self.timers),
            ("signals", &mut self.signals),
            ("attempts", &mut self.attempts),
            ("retries", &mut self.retries),
            ("children", &mut self.children),
            ("cancelled", &mut self.cancelled),
            ("crash_limits", &mut self.crash_limits),
        ]
    }

    /// Returns the counters as a JSON object.
    pub(crate) fn line(&self) -> Value {
        let mut line = json!({});
        for (name, count) in self.clone().fields() {
            line[name] = (*count).into();
        }
        line
    }
}
