//! Results of operations that belong into the state: the commit puts them there, or they are foreseen.

use serde_json::Value;
use stepwell_core::spec::Trigger;
use stepwell_core::{Decision, Event, Limits, Timestamp};
use stepwell_store::{
    Cell, CellKey, CellWrite, Expect, Fill, FillPart, LinkQuery, LinkWrite, OpResult, Refused, StoreError,
    TenantScope,
};

use crate::cx::{Op, Staged};
use crate::data::kv::one;
use crate::engine::Inner;
use crate::hold::Landed;
use crate::landing::{Landing, Unfit};

impl Landing<'_> {
    /// Where the results of an action's operations go: into what its transition saves of its output.
    pub(crate) fn fills(&self, staged: &Staged, landed: &Landed) -> Vec<Fill> {
        let Some(saved) = self.saves(landed) else { return Vec::new() };
        let fill = |(op, part, pointer): &(Op, FillPart, String)| {
            let operation = number(*op, staged);
            Fill { operation, part: *part, pointer: format!("/context{saved}{pointer}") }
        };
        staged.fills.iter().map(fill).collect()
    }

    /// Where in the context the action's output goes.
    fn saves(&self, landed: &Landed) -> Option<String> {
        self.standing.definition().saves(&landed.call.transition)
    }

    /// What comes of the change is made of the results, or they have to fit: they have to be known before. That is so if
    /// the run ends with it, if its data has a schema or shadow columns, if a timer may read them, if a loop or join takes them
    /// or a branch keeps them for itself, and if it has no commit of its own.
    pub(crate) fn is_foreseen(&self, event: &Event, staged: &Staged, landed: &Landed) -> bool {
        if staged.fills.is_empty() {
            return false;
        }
        let definition = self.standing.definition();
        if self.saves(landed).is_none() && !definition.needs_output(&landed.call.transition) {
            return false;
        }
        let spec = definition.spec();
        let is_timed = |on: &Trigger| matches!(on, Trigger::Until(_) | Trigger::After(_));
        let has_timers = || spec.transitions.iter().any(|one| is_timed(&one.on));
        let decided = || self.decide(event);
        self.before.is_some()
            || definition.needs_output(&landed.call.transition)
            || spec.context.is_some()
            || self.inner.has_shadows(&self.standing.workflow)
            || has_timers()
            || matches!(decided(), Ok(Decision::Change(change)) if change.snapshot.is_terminal())
    }
}

impl Inner {
    /// The output with the results as they would be now, and the writes to cells on the condition that they are. Links have
    /// no revisions: if one comes or goes meanwhile, `created` or a count may be what it was a moment before.
    pub(crate) async fn foresee(
        &self,
        scope: TenantScope,
        output: &Value,
        staged: &Staged,
        before: &[CellWrite],
    ) -> Result<(Value, Vec<CellWrite>), Unfit> {
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
            let refused = |error| Unfit::Refused(Refused::Cell { operation, key: write.key.clone(), error });
            let (after, result) = write.apply(cell, now, &self.options.limits).map_err(refused)?;
            let expect = if is_live { Expect::Live(revision) } else { Expect::Exactly(revision) };
            cells.push(CellWrite { expect, ..write.clone() });
            results.push(result);
            if after.is_some() {
                known[index].1 = after;
            }
        }
        for write in &staged.links {
            results.push(self.foreseen_link(scope, write).await?);
        }
        let mut output = output.clone();
        for (op, part, pointer) in &staged.fills {
            let Some(result) = results.get(number(*op, staged)) else { continue };
            put(&mut output, pointer, part.of(result));
        }
        Ok((output, cells))
    }

    async fn foreseen_link(&self, scope: TenantScope, write: &LinkWrite) -> Result<OpResult, StoreError> {
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

/// A cell with what is about to be written to it; what cannot be is refused with its commit.
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

/// The number of an operation in its commit: those on cells come first.
pub(crate) fn number(op: Op, staged: &Staged) -> usize {
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
