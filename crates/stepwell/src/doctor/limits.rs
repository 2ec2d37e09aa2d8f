//! Checks of limits: keys whose runs have waited for a long time.

use stepwell_store::{RunFilter, RunQuery};

use super::Doctor;
use super::finding::{Example, FindingKind, Remedy, Severity, span};
use crate::admission::GateRow;
use crate::admission::gate::{self, GateState};
use crate::error::EngineError;

impl Doctor<'_> {
    /// Reports limits with runs that have waited for longer than `long_ms`.
    pub(super) async fn limits(&mut self) -> Result<(), EngineError> {
        let filter = RunFilter::of(gate::WORKFLOW);
        let query = RunQuery { filter, limit: self.options.limit, ..RunQuery::default() };
        let page = self.engine.store().runs(self.engine.scope(), query).await?;
        self.scanned("limits", page.items.len(), page.next.is_none());
        self.unreadable(&page.bad);
        for summary in page.items.iter().filter(|summary| !summary.status.is_final()) {
            let (inner, scope) = (&self.engine.inner, self.engine.scope());
            let state = match inner.load(scope, summary.run).await {
                Ok(loaded_run) => loaded_run.ledger.gate,
                Err(EngineError::NoRun(_)) => None,
                Err(error) => {
                    self.unreadable(&[error.bad_row(summary.run)?]);
                    None
                }
            };
            let is_long = |gate: &GateState| {
                gate.full_since.is_some_and(|since| self.now.ms_since(since) > self.options.long_ms)
            };
            if let Some(gate) = state.filter(|gate| is_long(gate)) {
                let row = inner.gate_row(scope, summary.run, &gate).await?;
                self.full(&gate, row);
            }
        }
        Ok(())
    }

    fn full(&mut self, gate: &GateState, row: GateRow) {
        let Some(since) = row.waiting_since else { return };
        let waited = span(self.now.ms_since(since));
        let oldest = row.runs.first().map(|active| active.run);
        let holder = oldest.map(|run| format!("; the oldest active run is {run}")).unwrap_or_default();
        let example = Example {
            run: oldest,
            name: row.key,
            workflow: Some(gate.workflow.clone()),
            since: Some(since),
            why: format!("{} active, {} waiting, full for {waited}{holder}", row.active, row.waiting),
            remedies: oldest.map(Remedy::Explain).into_iter().collect(),
        };
        let what = format!("runs of `{}` wait for its {} limit", gate.workflow, gate.limit.kind.as_str());
        let why = "the active runs take long or the limit is too low: end an active run, or raise the limit";
        self.findings.add(Severity::Info, FindingKind::LimitsFull, what, why, example);
    }
}
