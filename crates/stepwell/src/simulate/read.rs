//! Reads the history of a run.

use serde_json::Value;
use stepwell_core::spec::Place;
use stepwell_core::{Definition, Failure, HistoryEntry, Name, RunId, Snapshot};
use stepwell_store::{HistoryQuery, Store, TenantScope};

use crate::error::EngineError;
use crate::ledger::Ledger;

/// Page size for reading the history.
const PAGE: u32 = 500;

/// A change of a run, and its state after it.
pub(super) struct Change {
    pub(super) entry: HistoryEntry,
    pub(super) snapshot: Snapshot,
}

/// Returns all changes of a run, oldest first.
pub(super) async fn changes(
    store: &dyn Store,
    scope: TenantScope,
    definition: &Definition,
    run: RunId,
) -> Result<Vec<Change>, EngineError> {
    let mut changes: Vec<Change> = Vec::new();
    loop {
        let from = changes.last().map_or(0, |last| last.entry.version + 1);
        let query = HistoryQuery { run, from, with_state: true, limit: PAGE };
        let page = store.history(scope, query).await?;
        for row in &page.items {
            let unreadable = |why: String| EngineError::Unreadable { run, why };
            let entry = serde_json::from_slice(&row.entry).map_err(|error| unreadable(error.to_string()))?;
            let state = row.state.as_ref().ok_or_else(|| unreadable("a state is missing".to_owned()))?;
            changes.push(Change { entry, snapshot: Snapshot::restore(definition, state)? });
        }
        if page.next.is_none() || page.items.is_empty() {
            return Ok(changes);
        }
    }
}

/// Returns the step that a place or transition belongs to. Auxiliary places and transitions of a step are named
/// `STEP.SUFFIX`.
pub(super) fn step_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns the value at a path such as `vars.order.total` in a run's data.
pub(super) fn value_at(snapshot: &Snapshot, path: &str) -> Option<Value> {
    path.split('.').try_fold(snapshot.context(), |value, part| value.get(part)).cloned()
}

/// Returns the output of an action from where its transition saves it. Parts of it may be known only at the commit.
pub(super) fn saved(definition: &Definition, transition: &Name, snapshot: &Snapshot) -> Option<Value> {
    let transitions = &definition.spec().transitions;
    let action = transitions.iter().find(|one| one.id == *transition)?.action.as_ref()?;
    value_at(snapshot, action.save_as.as_deref()?)
}

/// Returns the error of a transition that failed and whose error was handled in this change: from the ledger, or from
/// the local variable of its handler.
pub(super) fn failure_of(
    definition: &Definition,
    transition: &str,
    change: &Change,
    ledger: &Ledger,
) -> Option<Failure> {
    let is_it = |at, name: &Name| at == change.entry.at && name.as_str() == transition;
    let tried = ledger.failures.iter().rev().find(|tried| is_it(tried.at, &tried.transition));
    if let Some(tried) = tried {
        return Some(tried.error.clone());
    }
    let spec = definition.spec();
    let way = spec.transitions.iter().find(|one| one.id.as_str() == transition)?;
    let Some(Place::Catch(catch)) = spec.places.get(way.error_place.as_ref()?) else { return None };
    let handlers = change.snapshot.activations().iter().rev();
    let mut errors = handlers
        .filter(|one| catch.body.contains(&one.place))
        .filter_map(|one| serde_json::from_value(one.locals.get(&catch.local)?.clone()).ok());
    errors.next()
}
