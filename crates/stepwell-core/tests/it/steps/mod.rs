//! Documents: what their steps do, run in memory from the text of a document.

mod again;
mod bounds;
mod bundles;
mod cases;
mod compared;
mod control;
mod entering;
mod errors;
mod events;
mod items;
mod lossless;
mod malformed;
mod parallel;
mod reading;
mod scopes;
mod waits;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stepwell_core::document::{Document, Problems};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, Finished};
use stepwell_core::{
    ActionCall, Answers, DecideError, Decision, Definition, Event, Failure, Limits, Outcome, Rejected,
    Retrial, RunId, Snapshot, Timestamp, dispatch, start,
};

use crate::driver::at;

/// The document as a workflow.
pub(crate) fn document(text: &str) -> Document {
    Document::read(text, Some("test")).unwrap_or_else(|problems| panic!("{problems}"))
}

/// What is wrong with a document.
pub(crate) fn problems(text: &str) -> Problems {
    match Document::read(text, Some("test")) {
        Err(problems) => problems,
        Ok(document) => panic!("nothing is wrong with it: {:#?}", document.definition().spec()),
    }
}

type Action = Box<dyn FnMut(&Value) -> Result<Value, Failure>>;

/// A run of a document, with the actions it calls.
pub(crate) struct World {
    pub(crate) definition: Definition,
    pub(crate) snapshot: Snapshot,
    pub(crate) now: Timestamp,
    actions: BTreeMap<String, Action>,
    /// Calls that have been made, with their inputs.
    pub(crate) calls: Vec<(String, Value)>,
    /// Retries of each activation's action.
    retries: BTreeMap<u64, u32>,
    /// The error with which the run stands still.
    pub(crate) stopped: Option<Failure>,
    /// The newest activation goes first.
    pub(crate) newest_first: bool,
}

impl World {
    pub(crate) fn start(text: &str, payload: Value) -> Self {
        World::of(document(text).definition().clone(), payload)
    }

    pub(crate) fn of(definition: Definition, payload: Value) -> Self {
        let begun =
            start(&definition, RunId::nil(), payload, at(0)).unwrap_or_else(|error| panic!("{error}"));
        World {
            definition,
            snapshot: begun.snapshot,
            now: at(0),
            actions: BTreeMap::new(),
            calls: Vec::new(),
            retries: BTreeMap::new(),
            stopped: None,
            newest_first: false,
        }
    }

    /// What an action does; one that nobody has described gives its input back.
    pub(crate) fn action(
        mut self,
        name: &str,
        action: impl FnMut(&Value) -> Result<Value, Failure> + 'static,
    ) -> Self {
        self.actions.insert(name.to_owned(), Box::new(action));
        self
    }

    /// Runs until nothing happens by itself any more; timers count as happening.
    pub(crate) fn run(mut self) -> Self {
        self.settle();
        self
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..200_000 {
            if self.stopped.is_some() || self.snapshot.is_terminal() || !(self.advance() || self.ring()) {
                return;
            }
        }
        panic!("the run does not come to rest: it is in {:?}", self.snapshot.current_places());
    }

    /// Goes on as far as it can without time passing.
    pub(crate) fn settle_now(&mut self) {
        while self.stopped.is_none() && !self.snapshot.is_terminal() && self.advance() {}
    }

    pub(crate) fn output(&self) -> Value {
        match self.snapshot.finished() {
            Some(Finished::Completed { output, .. }) => output.clone().unwrap_or_default(),
            other => panic!(
                "the run has not completed: {other:?}, in {:?}, with {:?}",
                self.snapshot.current_places(),
                self.stopped
            ),
        }
    }

    pub(crate) fn vars(&self) -> &Value {
        &self.snapshot.context()["vars"]
    }

    pub(crate) fn places(&self) -> Vec<String> {
        self.snapshot.current_places().iter().map(ToString::to_string).collect()
    }

    pub(crate) fn called(&self, name: &str) -> Vec<&Value> {
        self.calls.iter().filter(|(action, _)| action == name).map(|(_, input)| input).collect()
    }

    pub(crate) fn signal(&mut self, name: &str, payload: Value) -> Result<(), Rejected> {
        let event = Event::signal(name, payload);
        let decided = self.decide(&event)?;
        self.take(decided, None);
        self.settle_now();
        Ok(())
    }

    /// A child of the wait in this place ends.
    pub(crate) fn child_ends(&mut self, place: &str, end: ChildEnd) {
        let waiting = self.snapshot.activations().iter().find(|one| one.place == *place);
        let activation =
            waiting.unwrap_or_else(|| panic!("nothing waits in {place}: {:?}", self.places())).id;
        let decided = self.decide(&Event::ChildDone { activation, child: 0, end }).expect("it is waited for");
        self.take(decided, None);
        self.settle();
    }

    /// An operator gives the run another payload.
    pub(crate) fn mend(&mut self, payload: Value) {
        let patch = Patch::set("payload", payload);
        let stopped = self.stopped.clone();
        let decided = self.decide(&Event::Patched { patch }).expect("the data fits");
        self.take(decided, None);
        self.stopped = stopped;
    }

    /// An operator lets the run try again what has failed.
    pub(crate) fn retry(&mut self) {
        assert!(self.stopped.take().is_some(), "nothing has failed");
        self.settle();
    }

    fn decide(&self, event: &Event) -> Result<Decision, Rejected> {
        dispatch(&self.definition, &self.snapshot, event, &Answers::none(), self.now)
    }

    fn advance(&mut self) -> bool {
        let mut ids: Vec<_> = self.snapshot.activations().iter().map(|one| one.id).collect();
        if self.newest_first {
            ids.reverse();
        }
        ids.into_iter().any(|id| self.offer(&Event::Advanced { activation: Some(id) }))
    }

    /// The next timer rings.
    fn ring(&mut self) -> bool {
        let next = self.snapshot.activations().iter().filter_map(|one| Some((one.due()?, one.id))).min();
        let Some((due, activation)) = next else { return false };
        self.now = self.now.max(due);
        self.offer(&Event::TimerFired { activation })
    }

    fn offer(&mut self, event: &Event) -> bool {
        match self.decide(event) {
            Ok(decision) => {
                self.take(decision, None);
                true
            }
            Err(Rejected::Refused(_)) => false,
            Err(Rejected::Undecidable(error)) => {
                self.stopped = Some(error.failure());
                true
            }
        }
    }

    fn take(&mut self, decision: Decision, failed: Option<&ActionCall>) {
        match decision {
            Decision::Change(change) => {
                assert_eq!(change.snapshot.version(), self.snapshot.version() + 1);
                assert_eq!(change.snapshot.contradictions(&self.definition), [""; 0]);
                let bytes = change.snapshot.encode(&Limits::default()).expect("it is not too large");
                let restored = Snapshot::restore(&self.definition, &bytes).expect("it can be read again");
                assert_eq!(restored, change.snapshot);
                self.snapshot = restored;
                self.stopped = change.stopped;
            }
            Decision::Act(call) => self.act(&call),
            Decision::Retry { retry, at } => {
                let call = failed.expect("only a failed action is tried again");
                self.now = self.now.max(at);
                self.retries.insert(call.activation, retry);
                let event = Event::Retried { retrial: Retrial::of(call), by_hand: false };
                let again = self.decide(&event).expect("it can be tried again");
                self.take(again, None);
            }
            Decision::Stop(failure) => self.stopped = Some(failure),
        }
    }

    fn act(&mut self, call: &ActionCall) {
        self.calls.push((call.action.to_string(), call.input.clone()));
        let result = match self.actions.get_mut(call.action.as_str()) {
            Some(action) => action(&call.input),
            None => Ok(call.input.clone()),
        };
        let event = match result {
            Ok(output) => {
                let children = u32::from(call.action == "workflow.call");
                let outcome = Outcome { output, children, ..Outcome::default() };
                Event::ActionDone { call: call.clone(), outcome }
            }
            Err(failure) => {
                let retries = self.retries.get(&call.activation).copied().unwrap_or(0);
                Event::ActionFailed { call: call.clone(), failure, retries }
            }
        };
        match self.decide(&event) {
            Ok(decision) => self.take(decision, Some(call)),
            Err(Rejected::Undecidable(error)) => {
                let failure = match error {
                    DecideError::Raised(failure) => failure,
                    other => Failure::new("invalidResult", other.to_string()).finally(),
                };
                let event = Event::ActionFailed { call: call.clone(), failure, retries: 0 };
                let decision = self.decide(&event).expect("a failure can be decided on");
                self.take(decision, Some(call));
            }
            Err(Rejected::Refused(refusal)) => panic!("the result is not wanted: {refusal}"),
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.snapshot.activations().iter().any(|one| one.status == ActivationStatus::Waiting)
    }
}

/// Fails so often, and then gives its input back.
pub(crate) fn fails(times: u32, code: &'static str) -> impl FnMut(&Value) -> Result<Value, Failure> {
    let mut left = times;
    move |input| {
        if left == 0 {
            return Ok(input.clone());
        }
        left -= 1;
        Err(Failure::new(code, "as told"))
    }
}

/// Fails when its input says so.
pub(crate) fn picky(input: &Value) -> Result<Value, Failure> {
    if input["bad"] == json!(true) { Err(Failure::new("bad", "the input is bad")) } else { Ok(input.clone()) }
}
