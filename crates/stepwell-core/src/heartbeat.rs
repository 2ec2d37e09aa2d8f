//! Heartbeats of waits: they restart the timers of a place, without a new version of the run.

use crate::definition::{Definition, TransitionNode, TransitionTriggerNode};
use crate::snapshot::{Activation, ActivationId, ActivationStatus, Snapshot};
use crate::time::Timestamp;

/// Code of the failure of a wait that got no heartbeat in time.
pub const HEARTBEAT_TIMEOUT: &str = "heartbeatTimeout";

impl Snapshot {
    /// Returns the time at which a wait fails without a heartbeat. `None` if the wait needs no heartbeats.
    pub fn heartbeat_due(&self, definition: &Definition, id: ActivationId) -> Option<Timestamp> {
        let activation = self.activation(id)?;
        let due = beating(definition, activation).filter_map(|(transition, _)| {
            activation.timers.iter().find(|timer| timer.transition == transition.id).map(|timer| timer.at)
        });
        due.min()
    }

    /// Restarts the heartbeat timers of a wait as of `at`. Never moves a timer to an earlier time.
    pub fn restart_heartbeat(&mut self, definition: &Definition, id: ActivationId, at: Timestamp) {
        let Ok(index) = self.activations.binary_search_by_key(&id, |activation| activation.id) else {
            return;
        };
        let activation = &mut self.activations[index];
        let restarted: Vec<_> = beating(definition, activation)
            .map(|(transition, ms)| (transition.id.clone(), at.plus_ms(ms)))
            .collect();
        for timer in &mut activation.timers {
            let due = restarted.iter().find(|(transition, _)| *transition == timer.transition);
            timer.at = due.map_or(timer.at, |(_, due)| timer.at.max(*due));
        }
    }
}

/// Returns the transitions whose timers a heartbeat restarts, with their delays.
fn beating<'d>(
    definition: &'d Definition,
    activation: &Activation,
) -> impl Iterator<Item = (&'d TransitionNode, u64)> {
    let compiled = definition.compiled();
    let waits = activation.status == ActivationStatus::Waiting;
    let place = compiled.place(&activation.place).filter(|_| waits);
    let out = place.map(|place| place.out.as_slice()).unwrap_or_default();
    out.iter().map(|&index| &compiled.transitions[index]).filter_map(|transition| match transition.on {
        TransitionTriggerNode::AfterMs(ms) if transition.heartbeat => Some((transition, ms)),
        _ => None,
    })
}
