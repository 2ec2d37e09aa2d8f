//! Begins a run that goes on from a state of another one: what an operator calls forking a run.
//!
//! It is not called a fork here, because a fork is a kind of place.

use serde_json::Value;

use crate::definition::Definition;
use crate::dispatch::Change;
use crate::ids::{Name, RunId};
use crate::refusal::names;
use crate::snapshot::{ActivationStatus, RestoreError, Snapshot};
use crate::time::Timestamp;
use crate::turn::Turn;

/// Why no run can branch off from this state.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CannotBranchOff {
    /// The state is not one of this definition's.
    #[error(transparent)]
    Unfit(#[from] RestoreError),
    /// The run it would branch off from has the same id.
    #[error("a run cannot branch off from itself: give the new one an id of its own")]
    SameRun,
    /// The run had ended then.
    #[error("the run has ended in this state: nothing would go on from it")]
    Terminal,
    /// It waits for children, and they answer to the run that started them.
    #[error(
        "it waits for children in {}, and they answer only to the run that started them: take another state",
        names(.0)
    )]
    WaitsForChildren(Vec<Name>),
}

/// Begins `run` with the state that another run has, or had at an earlier version; its versions count on from there.
///
/// Everything is as it was there, also the time at which its timers are due; only the run's id and `created_at` are
/// its own. The history entry `__operator:fork` names the places in which it begins.
pub fn branch_off(
    definition: &Definition,
    snapshot: &Snapshot,
    run: RunId,
    now: Timestamp,
) -> Result<Change, CannotBranchOff> {
    snapshot.verify(definition)?;
    if snapshot.instance_id == run {
        return Err(CannotBranchOff::SameRun);
    }
    if snapshot.is_terminal {
        return Err(CannotBranchOff::Terminal);
    }
    let mut waiting: Vec<_> = snapshot
        .activations
        .iter()
        .filter(|activation| activation.status == ActivationStatus::Waiting && activation.children.is_some())
        .map(|activation| activation.place.clone())
        .collect();
    waiting.sort();
    waiting.dedup();
    if !waiting.is_empty() {
        return Err(CannotBranchOff::WaitsForChildren(waiting));
    }
    let next = Snapshot { instance_id: run, created_at: now, updated_at: now, ..snapshot.clone() };
    let turn = Turn::new(definition.compiled(), next, now);
    let mut change = turn.conclude("__operator:fork".to_owned(), &Value::Null, true);
    change.entry.entered = change.snapshot.current_places();
    Ok(change)
}
