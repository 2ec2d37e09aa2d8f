//! A run in memory: a definition, its guards and a snapshot. For programs that store snapshots themselves.

use serde_json::Value;

use crate::definition::Definition;
use crate::dispatch::{Decision, Input, dispatch, start};
use crate::guard::{GuardView, Guards};
use crate::history::HistoryEntry;
use crate::ids::{Name, RunId};
use crate::refusal::{DecideError, Rejected};
use crate::snapshot::{RestoreError, Snapshot};
use crate::time::Timestamp;

/// One run, owned by the caller. Save [`Instance::snapshot`] after every change; no other state exists.
#[derive(Debug, Clone)]
pub struct Instance {
    definition: Definition,
    guards: Guards,
    snapshot: Snapshot,
}

impl Instance {
    /// Starts a run in its initial place.
    pub fn start(
        definition: &Definition,
        run: RunId,
        context: Value,
        now: Timestamp,
    ) -> Result<(Instance, HistoryEntry), DecideError> {
        let created = start(definition, run, context, now)?;
        Ok((Instance::holding(definition, created.snapshot), created.entry))
    }

    /// Restores a saved run. Guards are not saved: inject them again.
    pub fn restore(definition: &Definition, saved: &[u8]) -> Result<Instance, RestoreError> {
        Ok(Instance::holding(definition, Snapshot::restore(definition, saved)?))
    }

    fn holding(definition: &Definition, snapshot: Snapshot) -> Self {
        Instance { definition: definition.clone(), guards: Guards::new(), snapshot }
    }

    /// Registers the function of a named guard.
    pub fn inject_guard(
        &mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.guards.inject(name, guard);
    }

    /// Returns the current state.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Decides an input and applies the change, if there is one. Returns the decision, whose entry belongs into the
    /// history.
    pub fn dispatch(&mut self, event: &Input, now: Timestamp) -> Result<Decision, Rejected> {
        let decision = self.preview(event, now)?;
        if let Decision::Change(change) = &decision {
            self.snapshot = change.snapshot.clone();
        }
        Ok(decision)
    }

    /// Sends a signal with a payload to the run.
    pub fn signal(
        &mut self,
        name: impl Into<Name>,
        payload: Value,
        now: Timestamp,
    ) -> Result<Decision, Rejected> {
        self.dispatch(&Input::signal(name, payload), now)
    }

    /// Decides an input without applying the change.
    pub fn preview(&self, event: &Input, now: Timestamp) -> Result<Decision, Rejected> {
        let answers = self.guards.answer(&self.definition, &self.snapshot, event);
        dispatch(&self.definition, &self.snapshot, event, &answers, now)
    }
}
