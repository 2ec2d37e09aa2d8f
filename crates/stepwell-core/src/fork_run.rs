//! Creates a run that continues from a state of another run. Operators call this forking a run.
//!
//! It is not called a fork here, because a fork is a kind of place.

use serde_json::Value;

use crate::decision_builder::DecisionBuilder;
use crate::definition::Definition;
use crate::dispatch::Change;
use crate::ids::{Name, RunId};
use crate::refusal::names;
use crate::snapshot::{ActivationStatus, RestoreError, Snapshot};
use crate::time::Timestamp;

/// The error for a state from which no run can branch off.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ForkError {
    /// The state is not valid for this definition.
    #[error(transparent)]
    InvalidSnapshot(#[from] RestoreError),
    /// The new run has the same id as the run it branches off from.
    #[error("a run cannot branch off from itself: give the new run a different id")]
    SameRun,
    /// The run had already ended in this state.
    #[error("the run has already ended in this state")]
    Terminal,
    /// The run waits for children, which report only to the run that started them.
    #[error(
        "the run waits for children in {}, and they report only to the run that started them: choose another state",
        names(.0)
    )]
    WaitsForChildren(Vec<Name>),
}

/// Starts `run` with the current or an earlier state of another run. Its versions continue from there.
///
/// The new run is an exact copy, including the due times of its timers. Only its id, `created_at` and `updated_at`
/// differ. The history entry `__operator:fork` lists the places in which it starts.
pub fn fork_run(
    definition: &Definition,
    snapshot: &Snapshot,
    run: RunId,
    now: Timestamp,
) -> Result<Change, ForkError> {
    snapshot.verify(definition)?;
    if snapshot.instance_id == run {
        return Err(ForkError::SameRun);
    }
    if snapshot.is_terminal {
        return Err(ForkError::Terminal);
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
        return Err(ForkError::WaitsForChildren(waiting));
    }
    let next = Snapshot { instance_id: run, created_at: now, updated_at: now, ..snapshot.clone() };
    let builder = DecisionBuilder::new(definition.compiled(), next, now);
    let mut change = builder.conclude("__operator:fork".to_owned(), &Value::Null, true);
    change.entry.entered = change.snapshot.current_places();
    Ok(change)
}
