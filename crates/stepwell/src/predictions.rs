//! Result bindings: results of operations that belong into the state. The commit fills them in, or they are predicted
//! before it.

use serde_json::Value;
use stepwell_core::spec::TransitionTrigger;
use stepwell_core::{Decision, Input, Limits, Timestamp};
use stepwell_store::{
    Cell, CellKey, CellWrite, LinkQuery, LinkWrite, OpResult, Precondition, Refused, ResultBinding,
    ResultPart, StoreError, TenantScope,
};

use crate::apply_outcome::{InvalidOutcome, OutcomeApplier};
use crate::cx::{Op, Staged};
use crate::data::kv::one;
use crate::engine::Inner;
use crate::run_driver::ActionOutcome;

impl OutcomeApplier<'_> {
    /// Returns the fields of the state that receive results of the action's operations: those in the saved part of its
    /// output.
    pub(crate) fn bindings(&self, staged: &Staged, outcome: &ActionOutcome) -> Vec<ResultBinding> {
        let Some(saved) = self.output_pointer(outcome) else { return Vec::new() };
        let fill = |(op, part, pointer): &(Op, ResultPart, String)| {
            let operation = number(*op, staged);
            ResultBinding { operation, part: *part, pointer: format!("/context{saved}{pointer}") }
        };
        staged.bindings.iter().map(fill).collect()
    }

    /// Returns the location in the context where the action's output is saved.
    fn output_pointer(&self, outcome: &ActionOutcome) -> Option<String> {
        self.loaded_run.definition().output_pointer(&outcome.call.transition)
    }

    /// Returns true if the results must be predicted before the commit, because the decision depends on them or they
    /// must match a schema. This is the case if the run ends with the change, if its data has a schema or shadow
    /// columns, or if a timer may read them. It is also the case if a loop, a join or a branch uses the output, and if
    /// the result shares its commit with earlier steps.
    pub(crate) fn is_predicted(&self, event: &Input, staged: &Staged, outcome: &ActionOutcome) -> bool {
        if staged.bindings.is_empty() {
            return false;
        }
        let definition = self.loaded_run.definition();
        if self.output_pointer(outcome).is_none() && !definition.needs_output(&outcome.call.transition) {
            return false;
        }
        let spec = definition.spec();
        let is_timed = |on: &TransitionTrigger| {
            matches!(
                on,
                TransitionTrigger::Until(_) | TransitionTrigger::After(_) | TransitionTrigger::Backoff(_)
            )
        };
        let has_timers = || spec.transitions.iter().any(|one| is_timed(&one.on));
        let decided = || self.decide(event);
        self.before.is_some()
            || definition.needs_output(&outcome.call.transition)
            || spec.context.is_some()
            || self.inner.has_shadows(self.scope.tenant(), &self.loaded_run.workflow)
            || has_timers()
            || matches!(decided(), Ok(Decision::Change(change)) if change.snapshot.is_terminal())
    }
}

impl Inner {
    /// Predicts the results. Returns the output with the results as they would be now, and the cell writes on the
    /// condition that these results are still correct at the commit. Links have no revisions: if a link is created or
    /// deleted meanwhile, `created` or a count may be outdated.
    pub(crate) async fn predict(
        &self,
        scope: TenantScope,
        output: &Value,
        staged: &Staged,
        before: &[CellWrite],
    ) -> Result<(Value, Vec<CellWrite>), InvalidOutcome> {
        // Predictions are optimistic: on a hot key the commit can conflict, and they are made again. So
        // results are predicted only if `is_predicted` finds that they are needed.
        let (mut results, mut cells) = (Vec::new(), Vec::new());
        let mut known: Vec<(CellKey, Option<Cell>)> = Vec::new();
        let now = self.host.now();
        for (operation, write) in staged.cells.iter().enumerate() {
            let index = match known.iter().position(|(key, _)| *key == write.key) {
                Some(index) => index,
                None => {
                    let query = one(write.key.clone(), now, true);
                    let page = self.store.cells(scope, query).await?;
                    let cell =
                        overlaid(page.items.into_iter().next(), before, &write.key, now, self.limits());
                    known.push((write.key.clone(), cell));
                    known.len() - 1
                }
            };
            let cell = known[index].1.clone();
            let revision = cell.as_ref().map_or(0, |cell| cell.revision);
            let is_live = cell.as_ref().is_some_and(|cell| cell.live(now).is_some());
            let refused =
                |error| InvalidOutcome::Refused(Refused::Cell { operation, key: write.key.clone(), error });
            let (after, result) = write.apply(cell, now, &self.options.limits).map_err(refused)?;
            let expect = if is_live { Precondition::Live(revision) } else { Precondition::Exactly(revision) };
            cells.push(CellWrite { expect, ..write.clone() });
            results.push(result);
            if after.is_some() {
                known[index].1 = after;
            }
        }
        for write in &staged.links {
            results.push(self.predicted_link(scope, write).await?);
        }
        let mut output = output.clone();
        for (op, part, pointer) in &staged.bindings {
            let Some(result) = results.get(number(*op, staged)) else { continue };
            put(&mut output, pointer, part.of(result));
        }
        Ok((output, cells))
    }

    async fn predicted_link(&self, scope: TenantScope, write: &LinkWrite) -> Result<OpResult, StoreError> {
        let store = &self.store;
        match write {
            LinkWrite::Upsert { edge, id, .. } => {
                let known = store.links(scope, LinkQuery::beginning_at(edge)).await?;
                let known = known.items.into_iter().find(|link| link.edge == *edge);
                let (created, id) = (known.is_none(), known.map_or(*id, |link| link.id));
                let value = Some(id.to_string().into());
                Ok(OpResult { revision: 0, created, existed: !created, value })
            }
            LinkWrite::Delete { ends, .. } => {
                let (mut count, mut query) = (0_u64, LinkQuery::with_ends(ends));
                loop {
                    let page = store.links(scope, query.clone()).await?;
                    count += page.items.iter().filter(|link| ends.has(&link.edge)).count() as u64;
                    let Some(next) = page.next else { break };
                    query.cursor = Some(next);
                }
                Ok(OpResult { revision: 0, created: false, existed: count > 0, value: Some(count.into()) })
            }
        }
    }
}

/// Returns a cell with pending writes applied. An invalid write is ignored here, because the store refuses its commit.
pub(crate) fn overlaid(
    cell: Option<Cell>,
    writes: &[CellWrite],
    key: &CellKey,
    now: Timestamp,
    limits: &Limits,
) -> Option<Cell> {
    writes.iter().filter(|write| write.key == *key).fold(cell, |cell, write| {
        match write.apply(cell.clone(), now, limits) {
            Ok((Some(after), _)) => Some(after),
            Ok((None, _)) | Err(_) => cell,
        }
    })
}

/// Returns the index of an operation in its commit. Operations on cells come first.
pub(crate) fn number(op: Op, staged: &Staged) -> usize {
    // One list holds all results, so that bindings and lookups treat cells and links alike.
    match op {
        Op::Cell(number) => number,
        Op::Link(number) => staged.cells.len() + number,
    }
}

fn put(output: &mut Value, pointer: &str, value: Value) {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return };
    if let Some(Value::Object(fields)) = output.pointer_mut(parent) {
        fields.insert(field.replace("~1", "/").replace("~0", "~"), value);
    }
}
