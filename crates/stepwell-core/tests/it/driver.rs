//! Drives a run input by input. The other test modules use it.
//!
//! Every call checks the general invariants: deciding twice gives the same decision, a change is exactly one version
//! and leaves a valid snapshot, and anything else leaves the snapshot unchanged byte for byte.

use serde_json::{Value, json};
use stepwell_core::snapshot::{ActivationId, ChildEnd};
use stepwell_core::{
    ActionCall, ActionResult, Activation, Answers, Change, DecideError, Decision, Definition, Failure, Input,
    Limits, Name, Refusal, Rejected, RunId, Snapshot, Spec, Timestamp, dispatch, start,
};

/// Returns the time this many milliseconds after the start of the run.
pub(crate) fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000).plus_ms(ms)
}

pub(crate) fn build(spec: Spec) -> Definition {
    spec.build().unwrap_or_else(|problems| panic!("{problems}"))
}

pub(crate) fn bytes(snapshot: &Snapshot) -> Vec<u8> {
    snapshot.encode(&Limits::default()).expect("the snapshot is not too large")
}

pub(crate) fn texts(names: &[Name]) -> Vec<&str> {
    names.iter().map(Name::as_str).collect()
}

pub(crate) struct Driver {
    pub(crate) definition: Definition,
    pub(crate) snapshot: Snapshot,
    pub(crate) answers: Answers,
    pub(crate) now: Timestamp,
}

impl Driver {
    /// Starts a run with an empty context.
    pub(crate) fn start(spec: Spec) -> Self {
        Driver::start_with(spec, json!({}))
    }

    pub(crate) fn start_with(spec: Spec, context: Value) -> Self {
        let definition = build(spec);
        let created = start(&definition, RunId::nil(), context, at(0)).expect("the run starts");
        assert_eq!(created.stopped, None);
        Driver::from_snapshot(&definition, created.snapshot)
    }

    pub(crate) fn from_snapshot(definition: &Definition, snapshot: Snapshot) -> Self {
        assert_eq!(snapshot.contradictions(definition), [""; 0]);
        Driver { definition: definition.clone(), snapshot, answers: Answers::none(), now: at(0) }
    }

    pub(crate) fn decide(&self, event: &Input) -> Result<Decision, Rejected> {
        let before = bytes(&self.snapshot);
        let decision = dispatch(&self.definition, &self.snapshot, event, &self.answers, self.now);
        let again = dispatch(&self.definition, &self.snapshot, event, &self.answers, self.now);
        assert_eq!(decision, again, "the same input gives the same decision");
        assert_eq!(bytes(&self.snapshot), before, "deciding does not change the snapshot");
        decision
    }

    /// Applies an input that must change the run.
    pub(crate) fn go(&mut self, event: &Input) -> Change {
        let change = match self.decide(event) {
            Ok(Decision::Change(change)) => *change,
            other => panic!("{event:?} does not change the run: {other:?}"),
        };
        assert_eq!(change.snapshot.version(), self.snapshot.version() + 1);
        assert_eq!(change.entry.version, change.snapshot.version());
        assert_eq!(change.snapshot.contradictions(&self.definition), [""; 0]);
        self.snapshot = change.snapshot.clone();
        change
    }

    pub(crate) fn signal(&mut self, name: &str, payload: Value) -> Change {
        self.go(&Input::signal(name, payload))
    }

    pub(crate) fn advance(&mut self) -> Change {
        self.go(&Input::advance())
    }

    /// Advances until the run is idle. Returns the number of changes.
    pub(crate) fn run_until_idle(&mut self) -> usize {
        for changes in 0..100 {
            match self.decide(&Input::advance()) {
                Ok(Decision::Change(_)) => drop(self.advance()),
                _ => return changes,
            }
        }
        panic!("the run does not become idle");
    }

    /// Fires the due timers of a place at this time.
    pub(crate) fn timer(&mut self, place: &str, now: Timestamp) -> Change {
        self.now = now;
        self.go(&Input::TimerFired { activation: self.id_in(place) })
    }

    /// Returns the action call that the input must request.
    pub(crate) fn act(&self, event: &Input) -> ActionCall {
        match self.decide(event) {
            Ok(Decision::Act(call)) => call,
            other => panic!("{event:?} requests no action: {other:?}"),
        }
    }

    pub(crate) fn done(&mut self, call: &ActionCall, outcome: ActionResult) -> Change {
        self.go(&Input::ActionDone { call: call.clone(), outcome })
    }

    pub(crate) fn failed(
        &self,
        call: &ActionCall,
        failure: Failure,
        retries: u32,
    ) -> Result<Decision, Rejected> {
        self.decide(&Input::ActionFailed { call: call.clone(), failure, retries, first: None })
    }

    pub(crate) fn child(&mut self, place: &str, child: u32, end: ChildEnd) -> Change {
        self.go(&Input::ChildDone { activation: self.id_in(place), child, end })
    }

    /// Returns the refusal of an input that must be refused.
    pub(crate) fn refused(&self, event: &Input) -> Refusal {
        match self.decide(event) {
            Err(Rejected::Refused(refusal)) => refusal,
            other => panic!("{event:?} is not refused: {other:?}"),
        }
    }

    pub(crate) fn undecidable(&self, event: &Input) -> DecideError {
        match self.decide(event) {
            Err(Rejected::Undecidable(error)) => error,
            other => panic!("{event:?} can be decided: {other:?}"),
        }
    }

    pub(crate) fn places(&self) -> Vec<String> {
        self.snapshot.current_places().iter().map(ToString::to_string).collect()
    }

    /// Returns the oldest activation in a place.
    pub(crate) fn activation_in(&self, place: &str) -> Activation {
        self.snapshot.activation(self.id_in(place)).cloned().expect("it was found in the place")
    }

    /// Returns the id of the oldest activation in a place.
    pub(crate) fn id_in(&self, place: &str) -> ActivationId {
        let activation_in = self.snapshot.activations().iter().find(|activation| activation.place == *place);
        activation_in.unwrap_or_else(|| panic!("the run is not in `{place}` but in {:?}", self.places())).id
    }
}
