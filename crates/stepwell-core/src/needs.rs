//! The features that a definition needs from its host. Not every flow strategy provides all of them.

use serde::Serialize;

use crate::check::Location;
use crate::definition::{Definition, PlaceKind};
use crate::ids::Name;
use crate::spec::{ActionSpec, DeliveryGuarantee, Place, Spec, TriggerKind};

/// The features a definition needs. Each lists the transitions or places that need it, in the order of the
/// definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Requirements {
    /// Transitions that a timer fires. The host must wake the run at the right time.
    pub timers: Vec<Name>,
    /// Places that wait for children. The host must run the children and report how they end.
    pub children: Vec<Name>,
    /// Places that wait for an event. The host must find the run when the event arrives.
    pub events: Vec<Name>,
    /// Transitions whose action is retried after a pause. The host must remember the number of attempts.
    pub retries: Vec<Name>,
    /// Transitions whose action is executed at most once. The host must remember that it has begun.
    pub at_most_once: Vec<Name>,
    /// Transitions whose action is a built-in data store action, `store.*` or `links.*`.
    pub store: Vec<Name>,
}

impl Requirements {
    /// Returns true if the definition needs nothing besides its snapshots.
    pub fn is_empty(&self) -> bool {
        let Requirements { timers, children, events, retries, at_most_once, store } = self;
        [timers, children, events, retries, at_most_once, store].into_iter().all(Vec::is_empty)
    }
}

impl Definition {
    /// Returns the features that the definition needs from its host.
    pub fn needs(&self) -> Requirements {
        let compiled = self.compiled();
        let mut needs = Requirements::default();
        for place in &compiled.places {
            let PlaceKind::Wait(wait) = &place.kind else { continue };
            if wait.children.is_some() {
                needs.children.push(place.name.clone());
            }
            if wait.event.is_some() {
                needs.events.push(place.name.clone());
            }
        }
        for transition in &compiled.transitions {
            let is_stored = |name: &Name| name.starts_with("store.") || name.starts_with("links.");
            let lists = [
                (&mut needs.timers, transition.on.is_timer()),
                (&mut needs.retries, transition.retry.attempts > 0),
                (&mut needs.at_most_once, transition.is_at_most_once),
                (&mut needs.store, transition.action.as_ref().is_some_and(|action| is_stored(&action.name))),
            ];
            for (list, _) in lists.into_iter().filter(|(_, needed)| *needed) {
                list.push(transition.id.clone());
            }
        }
        needs
    }
}

/// Returns the parts of a spec that only a durable run can have, each with a noun for it.
///
/// A flow in a token has no row, and no process looks for due handles. So nothing can happen to such a flow between
/// two calls.
pub(crate) fn needs_durable_run(spec: &Spec) -> Vec<(Location, &'static str)> {
    let mut found = Vec::new();
    if spec.timeout_ms.is_some() {
        found.push((Location::Field("timeout"), "timeout of the whole run"));
    }
    for (name, place) in &spec.places {
        let Place::Wait(wait) = place else { continue };
        let what = match (&wait.children, &wait.event) {
            (Some(_), _) => "child workflows",
            (None, Some(_)) => "wait for an event",
            (None, None) => continue,
        };
        found.push((Location::Place(name.clone()), what));
    }
    for transition in &spec.transitions {
        let is_retried = transition.retry.as_ref().is_some_and(|retry| retry.attempts > 0);
        let needs = [
            transition.on.is_timer().then_some("timer or timeout"),
            is_retried.then_some("retries"),
            (transition.delivery == DeliveryGuarantee::AtMostOnce)
                .then_some("call that is made at most once"),
            transition.action.as_ref().and_then(durable_data),
        ];
        let at = || Location::Transition(transition.id.clone());
        found.extend(needs.into_iter().flatten().map(|what| (at(), what)));
    }
    if spec.concurrency.is_some() {
        found.push((Location::Field("concurrency"), "limit on active runs"));
    }
    if spec.rate_limit.is_some() {
        found.push((Location::Field("rateLimit"), "rate limit of runs"));
    }
    for trigger in &spec.triggers {
        if !matches!(trigger.on, TriggerKind::Manual {}) {
            found.push((Location::Trigger(trigger.id.clone()), "trigger, because a trigger starts runs"));
        }
    }
    found
}

/// Returns a noun for the data of a built-in action that only durable runs have.
fn durable_data(action: &ActionSpec) -> Option<&'static str> {
    if action.name.starts_with("document.") {
        return Some("documents");
    }
    let is_shared = action.name.starts_with("state.") && action.input["scope"] == "execution";
    is_shared.then_some("slot of the scope `execution`")
}

impl Definition {
    /// Returns the parts that only a durable run can have: timers, children, waits for events, retries,
    /// triggers, documents and slots that a run shares with its descendants.
    pub fn needs_durable_run(&self) -> Vec<(Location, &'static str)> {
        needs_durable_run(self.spec())
    }
}
