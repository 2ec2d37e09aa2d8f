//! The steps of workflow documents, executed in memory from the text of a document.

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
mod policies;
mod reading;
mod richer;
mod scopes;
mod waits;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stepwell_core::document::{SourceProblems, WorkflowSource};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ActivationStatus, ChildEnd, RunEnd};
use stepwell_core::{
    ActionCall, ActionResult, Answers, DecideError, Decision, Definition, Failure, Input, Limits, Rejected,
    RetryRequest, RunId, Snapshot, Timestamp, dispatch, start,
};

use crate::driver::at;

/// Reads a valid document.
pub(crate) fn document(text: &str) -> WorkflowSource {
    WorkflowSource::read(text, Some("test")).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Returns the problems of an invalid document.
pub(crate) fn problems(text: &str) -> SourceProblems {
    match WorkflowSource::read(text, Some("test")) {
        Err(problems) => problems,
        Ok(document) => panic!("nothing is wrong with it: {:#?}", document.definition().spec()),
    }
}

type Action = Box<dyn FnMut(&Value) -> Result<Value, Failure>>;

/// A run of a document with implementations of its actions.
pub(crate) struct World {
    pub(crate) definition: Definition,
    pub(crate) snapshot: Snapshot,
    pub(crate) now: Timestamp,
    actions: BTreeMap<String, Action>,
    /// Names and inputs of the actions called so far, in order.
    pub(crate) calls: Vec<(String, Value)>,
    /// Number of retries so far, by activation.
    retries: BTreeMap<u64, u32>,
    /// The error that stopped the run.
    pub(crate) stopped: Option<Failure>,
    /// Advances the newest activation first instead of the oldest.
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

    /// Sets the implementation of an action. An action without one returns its input.
    pub(crate) fn action(
        mut self,
        name: &str,
        action: impl FnMut(&Value) -> Result<Value, Failure> + 'static,
    ) -> Self {
        self.actions.insert(name.to_owned(), Box::new(action));
        self
    }

    /// Runs until the run ends, stops, or waits without a timer. Time passes as timers require.
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
        panic!("the run does not become idle: it is in {:?}", self.snapshot.current_places());
    }

    /// Advances by one change, or lets time pass until the next timer.
    pub(crate) fn step(&mut self) {
        let has_moved = self.advance() || self.ring();
        assert!(has_moved || self.stopped.is_some() || self.snapshot.is_terminal(), "the run is idle");
    }

    /// Advances as far as possible without time passing.
    pub(crate) fn settle_now(&mut self) {
        while self.stopped.is_none() && !self.snapshot.is_terminal() && self.advance() {}
    }

    /// Fails the wait in this place.
    pub(crate) fn fail_wait(&mut self, place: &str, code: &str) {
        let waiting = self.snapshot.activations().iter().find(|one| one.place == *place);
        let activation =
            waiting.unwrap_or_else(|| panic!("nothing waits in {place}: {:?}", self.places())).id;
        let failure = Failure::new(code, "as told");
        let decided = self.decide(&Input::WaitFailed { activation, failure }).expect("the wait is open");
        self.take(decided, None);
        self.settle_now();
    }

    /// Moves the activation in one place to another place, as an operator would.
    pub(crate) fn move_to(&mut self, from: &str, to: &str) {
        let activation = self.snapshot.activations().iter().find(|one| one.place == *from).map(|one| one.id);
        let decided =
            self.decide(&Input::Moved { activation, to: to.into() }).expect("the place can be entered");
        self.take(decided, None);
        self.settle_now();
    }

    pub(crate) fn refuses(&self, event: &Input) -> bool {
        matches!(self.decide(event), Err(Rejected::Refused(_)))
    }

    pub(crate) fn output(&self) -> Value {
        match self.snapshot.finished() {
            Some(RunEnd::Completed { output, .. }) => output.clone().unwrap_or_default(),
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
        let event = Input::signal(name, payload);
        let decided = self.decide(&event)?;
        self.take(decided, None);
        self.settle_now();
        Ok(())
    }

    /// Ends child 0 of the wait in this place.
    pub(crate) fn child_ends(&mut self, place: &str, end: ChildEnd) {
        let waiting = self.snapshot.activations().iter().find(|one| one.place == *place);
        let activation =
            waiting.unwrap_or_else(|| panic!("nothing waits in {place}: {:?}", self.places())).id;
        let decided = self.decide(&Input::ChildDone { activation, child: 0, end }).expect("it is waited for");
        self.take(decided, None);
        self.settle();
    }

    /// Replaces the payload of the run, as an operator would. The run stays stopped.
    pub(crate) fn mend(&mut self, payload: Value) {
        let patch = Patch::set("payload", payload);
        let stopped = self.stopped.clone();
        let decided = self.decide(&Input::Patched { patch }).expect("the data fits");
        self.take(decided, None);
        self.stopped = stopped;
    }

    /// Retries what failed, as an operator would.
    pub(crate) fn retry(&mut self) {
        assert!(self.stopped.take().is_some(), "nothing has failed");
        self.settle();
    }

    fn decide(&self, event: &Input) -> Result<Decision, Rejected> {
        dispatch(&self.definition, &self.snapshot, event, &Answers::none(), self.now)
    }

    fn advance(&mut self) -> bool {
        let mut ids: Vec<_> = self.snapshot.activations().iter().map(|one| one.id).collect();
        if self.newest_first {
            ids.reverse();
        }
        ids.into_iter().any(|id| self.offer(&Input::Advanced { activation: Some(id) }))
    }

    /// Fires the next timer. Returns false if there is none or if it is refused.
    fn ring(&mut self) -> bool {
        let next = self.snapshot.activations().iter().filter_map(|one| Some((one.due()?, one.id))).min();
        let Some((due, activation)) = next else { return false };
        self.now = self.now.max(due);
        self.offer(&Input::TimerFired { activation })
    }

    fn offer(&mut self, event: &Input) -> bool {
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
                let call = failed.expect("only a failed action is retried");
                self.now = self.now.max(at);
                self.retries.insert(call.activation, retry);
                let event = Input::Retried { retry: RetryRequest::of(call), manual: false };
                let again = self.decide(&event).expect("it can be retried");
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
                let outcome = ActionResult { output, children, ..ActionResult::default() };
                Input::ActionDone { call: call.clone(), outcome }
            }
            Err(failure) => {
                let retries = self.retries.get(&call.activation).copied().unwrap_or(0);
                Input::ActionFailed { call: call.clone(), failure, retries, first: None }
            }
        };
        match self.decide(&event) {
            Ok(decision) => self.take(decision, Some(call)),
            Err(Rejected::Undecidable(error)) => {
                let failure = match error {
                    DecideError::Raised(failure) => failure,
                    other => Failure::new("invalidResult", other.to_string()).non_retryable(),
                };
                let event = Input::ActionFailed { call: call.clone(), failure, retries: 0, first: None };
                let decision = self.decide(&event).expect("a failure can be decided on");
                self.take(decision, Some(call));
            }
            Err(Rejected::Refused(refusal)) => panic!("the result is refused: {refusal}"),
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.snapshot.activations().iter().any(|one| one.status == ActivationStatus::Waiting)
    }
}

/// An action that fails `times` times and then returns its input.
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

/// An action that fails if its input has `bad: true`, and otherwise returns its input.
pub(crate) fn picky(input: &Value) -> Result<Value, Failure> {
    if input["bad"] == json!(true) { Err(Failure::new("bad", "the input is bad")) } else { Ok(input.clone()) }
}
