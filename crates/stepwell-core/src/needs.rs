//! What a definition needs of whoever keeps its runs: not every resting place can give it all.

use serde::Serialize;

use crate::definition::{Definition, PlaceKind};
use crate::ids::Name;

/// What a definition needs, each need with the transitions or places it comes from, in the order of the definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Needs {
    /// Transitions that a timer fires: somebody has to wake the run.
    pub timers: Vec<Name>,
    /// Places that wait for children: somebody has to run them and tell their ends.
    pub children: Vec<Name>,
    /// Transitions whose action is tried again after a pause: somebody has to remember the tries.
    pub retries: Vec<Name>,
    /// Transitions whose action is one of the data store's, `store.*` or `links.*`.
    pub store: Vec<Name>,
}

impl Needs {
    /// The definition needs nothing but its snapshots.
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.children.is_empty() && self.retries.is_empty() && self.store.is_empty()
    }
}

impl Definition {
    /// What the definition needs of whoever keeps its runs.
    pub fn needs(&self) -> Needs {
        let compiled = self.compiled();
        let waits_for_children =
            |kind: &PlaceKind| matches!(kind, PlaceKind::Wait(wait) if wait.children.is_some());
        let mut needs = Needs::default();
        needs.children.extend(
            compiled
                .places
                .iter()
                .filter(|place| waits_for_children(&place.kind))
                .map(|place| place.name.clone()),
        );
        for transition in &compiled.transitions {
            let is_stored = |name: &Name| name.starts_with("store.") || name.starts_with("links.");
            let lists = [
                (&mut needs.timers, transition.on.is_timer()),
                (&mut needs.retries, transition.retry.attempts > 0),
                (&mut needs.store, transition.action.as_ref().is_some_and(|action| is_stored(&action.name))),
            ];
            for (list, _) in lists.into_iter().filter(|(_, needed)| *needed) {
                list.push(transition.id.clone());
            }
        }
        needs
    }
}
