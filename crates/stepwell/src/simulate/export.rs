//! Export of a recorded run as a test case.

use std::collections::BTreeMap;

use serde_json::Value;
use stepwell_core::document::cases::{
    Case, CaseOutcome, Expected, ExpectedCall, ExpectedError, Happening, Mock,
};
use stepwell_core::graph::open_waits;
use stepwell_core::retry::Retry;
use stepwell_core::snapshot::{ActivationId, ChildEnd, RunEnd};
use stepwell_core::spec::Place;
use stepwell_core::{Definition, Failure, Name, RunId, Timestamp};
use stepwell_store::Status;

use super::read::{Change, changes, failure_of, saved, step_of};
use crate::engine::Run;
use crate::error::EngineError;
use crate::ledger::Ledger;

impl Run {
    /// Exports the run as a test case: its input, the results of its calls, its external inputs and its outcome. The
    /// case passes in the simulator.
    ///
    /// Attempts that failed and were retried are left out, and an event becomes the signal that it arrived as. The
    /// export is refused if the history is incomplete or an operator has changed the run.
    pub async fn as_test_case(&self, name: impl Into<String>) -> Result<Case, EngineError> {
        let view = self.view().await?;
        let (definition, changes) = self.recorded().await?;
        let first = changes.first().filter(|first| first.entry.version == 0);
        let first = first.ok_or_else(|| gone(self.id(), "its first states have been deleted"))?;
        let context = first.snapshot.context();
        let input = if definition.spec().envelope { &context["payload"] } else { context };
        let mut export = Export {
            run: self.id(),
            definition: &definition,
            ledger: &view.ledger,
            mocks: BTreeMap::new(),
            calls: Vec::new(),
            happens: Vec::new(),
            now: first.entry.at,
            entered: BTreeMap::new(),
        };
        for (index, change) in changes.iter().enumerate() {
            export.change(index.checked_sub(1).map(|before| &changes[before]), change)?;
        }
        let error = view.ledger.stopped.as_ref().map(|stopped| &stopped.error);
        if let Some(error) = error {
            export.stopped(error);
        }
        let outcome = match view.status {
            Status::Completed => CaseOutcome::Completed,
            Status::Cancelled => CaseOutcome::Cancelled,
            Status::Failed => CaseOutcome::Failed,
            _ => CaseOutcome::Waiting,
        };
        let result = match view.snapshot.finished() {
            Some(RunEnd::Completed { output, .. }) => output.clone(),
            _ => None,
        };
        let error = error.map(|error| ExpectedError { code: Some(error.code.clone()), message: None });
        let expect = Expected { outcome, result, error, calls: export.calls, ..Expected::default() };
        Ok(Case {
            name: name.into(),
            now: Some(first.entry.at),
            input: Some(input.clone()),
            mocks: export.mocks,
            happens: export.happens,
            expect,
            ..Case::default()
        })
    }

    /// Returns the run's definition and all its changes.
    async fn recorded(&self) -> Result<(Definition, Vec<Change>), EngineError> {
        let inner = self.inner();
        let loaded_run = inner.load(self.scope(), self.id()).await?;
        let definition = loaded_run.definition().clone();
        let changes = changes(inner.store.as_ref(), self.scope(), &definition, self.id()).await;
        let changes = changes.map_err(|error| match error {
            EngineError::Restore(_) => gone(self.id(), "it was started with another version of its workflow"),
            other => other,
        })?;
        Ok((definition, changes))
    }
}

fn gone(run: RunId, why: &str) -> EngineError {
    EngineError::Invalid(format!("run {run} cannot be exported as a test case: {why}"))
}

struct Export<'a> {
    run: RunId,
    definition: &'a Definition,
    ledger: &'a Ledger,
    mocks: BTreeMap<String, Vec<Mock>>,
    calls: Vec<ExpectedCall>,
    happens: Vec<Happening>,
    /// Simulated time. Calls take no time in a simulation.
    now: Timestamp,
    /// Simulated start time of each activation.
    entered: BTreeMap<ActivationId, Timestamp>,
}

impl Export<'_> {
    fn change(&mut self, before: Option<&Change>, change: &Change) -> Result<(), EngineError> {
        let entry = &change.entry;
        if let Some(before) = before {
            self.happened(before, change)?;
        }
        let now = self.now;
        for activation in change.snapshot.activations() {
            self.entered.entry(activation.id).or_insert(now);
        }
        for fired in &entry.transitions {
            if let Some(action) = self.action_of(fired) {
                self.done(&action, fired, change)?;
            }
        }
        if let Some(failed) = entry.action.strip_prefix("__error:")
            && let Some(action) = self.action_of(failed)
        {
            let failure = failure_of(self.definition, failed, change, self.ledger);
            let failure =
                failure.ok_or_else(|| self.unrecorded(failed, "its error is no longer on record"))?;
            let attempts = self.failed(&action, failed, &failure, entry.input.as_ref());
            if let (true, Some(before)) = (attempts > 1, before) {
                self.now = self.now.plus_ms(entry.at.ms_since(before.entry.at));
            }
        }
        Ok(())
    }

    fn action_of(&self, transition: &str) -> Option<Name> {
        let mut transitions = self.definition.spec().transitions.iter();
        transitions
            .find(|one| one.id.as_str() == transition)?
            .action
            .as_ref()
            .map(|action| action.name.clone())
    }

    fn unrecorded(&self, step: &str, why: &str) -> EngineError {
        gone(self.run, &format!("step `{step}`: {why}"))
    }

    fn called(&mut self, action: &Name, step: &str, input: Option<&Value>) {
        let input = input.filter(|input| !is_cut(input)).cloned();
        let (step, action) = (Some(step.to_owned()), Some(action.to_string()));
        self.calls.push(ExpectedCall { step, action, input });
    }

    /// Records a successful call.
    fn done(&mut self, action: &Name, step: &Name, change: &Change) -> Result<(), EngineError> {
        self.called(action, step, change.entry.input.as_ref());
        // `log` and `transform` give the same result in the simulator, and a called workflow gives its result later.
        if matches!(action.as_str(), "log" | "transform" | "workflow.call") {
            return Ok(());
        }
        let output = saved(self.definition, step, &change.snapshot).or_else(|| change.entry.output.clone());
        let output = output.unwrap_or_default();
        if is_cut(&output) {
            return Err(self.unrecorded(step, "its result is too long for the history and was cut"));
        }
        if has_marker(&output) {
            return Err(self
                .unrecorded(step, "its result contains `$expr` or `$secret`, which a mock would evaluate"));
        }
        self.mocks.entry(step.to_string()).or_default().push(Mock::Output(output));
        Ok(())
    }

    /// Records a call that failed finally, with all its attempts. Returns the number of attempts.
    fn failed(&mut self, action: &Name, step: &str, failure: &Failure, input: Option<&Value>) -> usize {
        let mut transitions = self.definition.spec().transitions.iter();
        let retry = transitions.find(|one| one.id.as_str() == step).and_then(|one| one.retry.as_ref());
        let covers = |retry: &&Retry| retry.covers(failure);
        let attempts = 1 + retry.filter(covers).map_or(0, |retry| retry.attempts as usize);
        for _ in 0..attempts {
            self.mocks.entry(step.to_owned()).or_default().push(Mock::Error(failure.clone()));
            self.called(action, step, input);
        }
        attempts
    }

    /// Records the call that made the run fail.
    fn stopped(&mut self, error: &Failure) {
        let activation = self.ledger.stopped.as_ref().and_then(|stopped| stopped.activation);
        let tried = self.ledger.failures.iter().rev().find(|tried| Some(tried.activation) == activation);
        let Some(step) = tried.map(|tried| tried.transition.to_string()) else { return };
        if let Some(action) = self.action_of(&step) {
            self.failed(&action, &step, error, None);
        }
    }

    /// Records the cause of a change, if it was an external input or the passing of time.
    fn happened(&mut self, before: &Change, change: &Change) -> Result<(), EngineError> {
        let action = change.entry.action.as_str();
        let waited = change.entry.at.ms_since(before.entry.at);
        for one in before.snapshot.activations() {
            let due = before.snapshot.heartbeat_due(self.definition, one.id);
            if due.is_some_and(|due| due < change.entry.at) {
                return Err(self.unrecorded(&one.place, "its heartbeats are not in the history"));
            }
        }
        let takes_signals =
            open_waits(self.definition, &before.snapshot).iter().any(|wait| !wait.signals.is_empty());
        if let Some(place) = action.strip_prefix("__timer:") {
            let waiting = before.snapshot.activations().iter().filter(|one| one.place.as_str() == place);
            let due = waiting.filter_map(|one| {
                let after = one.due()?.ms_since(one.since);
                Some(self.entered.get(&one.id).copied().unwrap_or(self.now).plus_ms(after))
            });
            let due = due.min().unwrap_or(self.now).max(self.now);
            if takes_signals {
                self.pass(due.ms_since(self.now));
            }
            self.now = due;
            return Ok(());
        }
        let payload = change.entry.payload.clone().unwrap_or_default();
        let signal = match action.strip_prefix("__resolve_wait:") {
            Some(place) => match self.definition.spec().places.get(place) {
                Some(Place::Wait(wait)) if wait.children.is_some() => return self.child(place, change),
                Some(Place::Wait(wait)) => wait.signal.as_ref().map(ToString::to_string),
                _ => None,
            },
            None => Some(action.to_owned()).filter(|name| !name.starts_with("__")),
        };
        if let Some(signal) = signal {
            if is_cut(&payload) {
                return Err(gone(
                    self.run,
                    &format!("the payload of `{signal}` is too long for the history and was cut"),
                ));
            }
            self.pass(waited);
            self.happens.push(Happening::Signal { signal, payload });
        } else if action == "__operator:cancel" {
            self.pass(waited);
            self.happens.push(Happening::Cancel { cancel: true });
        } else if let Some(place) = action.strip_prefix("__fail_wait:") {
            let unreadable = |_| self.unrecorded(place, "the error of the failed wait is not on record");
            let error: Failure = serde_json::from_value(payload).map_err(unreadable)?;
            self.pass(waited);
            self.happens.push(Happening::Fail { fail: place.to_owned(), error });
        } else if action.starts_with("__operator:") || action.starts_with("__retry:") {
            return Err(gone(
                self.run,
                &format!("version {} was made by an operator (`{action}`)", change.entry.version),
            ));
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) {
        if ms > 0 {
            self.happens.push(Happening::After { ms });
            self.now = self.now.plus_ms(ms);
        }
    }

    /// Records the end of a called workflow.
    fn child(&mut self, place: &str, change: &Change) -> Result<(), EngineError> {
        let step = step_of(place).to_owned();
        let ended = change.snapshot.activations().iter().find(|one| one.place.as_str() == place);
        let end = ended.and_then(|one| one.children.as_ref()?.ended.values().next().cloned());
        let received = ended.and_then(|one| one.received.clone()).unwrap_or_default();
        let output = received.pointer("/children/0/end/output").cloned();
        let mock = match (end, output) {
            (Some(ChildEnd::Completed { output }), _) | (None, Some(output)) => Mock::Output(output),
            (Some(ChildEnd::Failed { error }), _) => Mock::Error(error),
            _ => return Err(self.unrecorded(&step, "the result of the called workflow is not on record")),
        };
        self.mocks.entry(step).or_default().push(mock);
        Ok(())
    }
}

/// Returns `true` if the history has cut the value because of its length.
fn is_cut(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.len() == 1 && fields.contains_key("$cut"))
}

/// Returns `true` if a mock would evaluate the value as a template.
fn has_marker(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_marker),
        Value::Object(fields) => {
            fields.contains_key("$expr") || fields.contains_key("$secret") || fields.values().any(has_marker)
        }
        _ => false,
    }
}
