//! A run in the hand: a definition, its guards and a snapshot together, for programs that keep snapshots themselves.

use serde_json::Value;

use crate::definition::Definition;
use crate::dispatch::{Decision, Event, dispatch, start};
use crate::guard::{GuardView, Guards};
use crate::history::Entry;
use crate::ids::{Name, RunId};
use crate::refusal::{DecideError, Rejected};
use crate::snapshot::{RestoreError, Snapshot};
use crate::time::Timestamp;

/// One run, held by the caller. Save [`Instance::snapshot`] after every change; nothing else has to be remembered.
#[derive(Debug, Clone)]
pub struct Instance {
    definition: Definition,
    guards: Guards,
    snapshot: Snapshot,
}

impl Instance {
    /// Begins a run.
    pub fn start(
        definition: &Definition,
        run: RunId,
        context: Value,
        now: Timestamp,
    ) -> Result<(Instance, Entry), DecideError> {
        let created = start(definition, run, context, now)?;
        Ok((Instance::holding(definition, created.snapshot), created.entry))
    }

    /// Takes a saved run up again. Guards are not saved: inject them again.
    pub fn restore(definition: &Definition, saved: &[u8]) -> Result<Instance, RestoreError> {
        Ok(Instance::holding(definition, Snapshot::restore(definition, saved)?))
    }

    fn holding(definition: &Definition, snapshot: Snapshot) -> Self {
        Instance { definition: definition.clone(), guards: Guards::new(), snapshot }
    }

    /// Gives the name of a guard its function.
    pub fn inject_guard(
        &mut self,
        name: impl Into<Name>,
        guard: impl Fn(GuardView<'_>) -> bool + Send + Sync + 'static,
    ) {
        self.guards.inject(name, guard);
    }

    /// The state.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Decides an event and, if the run changes, takes the change over. Gives the decision back; its entry is for
    /// whoever keeps the history.
    pub fn dispatch(&mut self, event: &Event, now: Timestamp) -> Result<Decision, Rejected> {
        let decision = self.preview(event, now)?;
        if let Decision::Change(change) = &decision {
            self.snapshot = change.snapshot.clone();
        }
        Ok(decision)
    }

    /// Sends a signal.
    pub fn signal(
        &mut self,
        name: impl Into<Name>,
        payload: Value,
        now: Timestamp,
    ) -> Result<Decision, Rejected> {
        self.dispatch(&Event::signal(name, payload), now)
    }

    /// What an event would do, without doing it.
    pub fn preview(&self, event: &Event, now: Timestamp) -> Result<Decision, Rejected> {
        let answers = self.guards.answer(&self.definition, &self.snapshot, event);
        dispatch(&self.definition, &self.snapshot, event, &answers, now)
    }
}
