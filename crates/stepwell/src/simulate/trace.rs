//! The trace of a simulated run, in terms of the steps of its document.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use stepwell_core::document::Outline;
use stepwell_core::document::outline::OutlinedStep;
use stepwell_core::snapshot::RunEnd;
use stepwell_core::spec::Place;
use stepwell_core::{Definition, Failure, Name, RunId, Snapshot, Timestamp};

use super::read::{Change, failure_of, saved, step_of, value_at};
use super::script::Called;
use crate::ledger::Ledger;

/// Source of the answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AnswerSource {
    /// A mock answered it.
    Mocked,
    /// The action itself ran. It affects only the in-memory store.
    Real,
    /// The call was only recorded: a start of another workflow, or a signal to another run.
    Recorded,
    /// The call has no mock.
    NotMocked,
}

/// A step that a run reached, or an attempt at its call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedStep {
    /// Id of the step.
    pub step: String,
    /// Type of the step, as written in the document.
    #[serde(rename = "type")]
    pub kind: String,
    /// Simulated time at which the step was reached.
    pub at: Timestamp,
    /// Name of the workflow, if the step belongs to one that the run called or started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// The action that the step calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Number of the attempt, starting at 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Source of the answer to the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub how: Option<AnswerSource>,
    /// Input of the call, with the names of secrets instead of their values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Output of the step: the result of a call, the payload that ended a wait, the variables that were set, or the
    /// run's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Error of the step, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The branch that was taken: `then`, `else` or `onTimeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
}

impl SimulatedStep {
    fn new(step: impl Into<String>, kind: &str, at: Timestamp) -> Self {
        SimulatedStep {
            step: step.into(),
            kind: kind.to_owned(),
            at,
            workflow: None,
            action: None,
            attempt: None,
            how: None,
            input: None,
            output: None,
            error: None,
            way: None,
        }
    }

    /// Returns `true` for calls of the run itself, not of its children.
    pub(super) fn is_call(&self) -> bool {
        self.action.is_some() && self.workflow.is_none()
    }
}

/// A step with its sort key: the version of the run before it, and whether it is a call.
type Row = ((u64, bool), SimulatedStep);

/// Returns the last row of a step.
fn last_of<'r>(rows: &'r mut [Row], step: &str) -> Option<&'r mut SimulatedStep> {
    let mut rows = rows.iter_mut().rev().map(|(_, row)| row);
    rows.find(|row| row.step == step && row.workflow.is_none())
}

/// A recorded run, from which its trace is built.
pub(super) struct Traced<'a> {
    pub(super) definition: &'a Definition,
    pub(super) outline: &'a Outline,
    pub(super) run: RunId,
    pub(super) changes: &'a [Change],
    pub(super) calls: &'a [Called],
    pub(super) ledger: &'a Ledger,
}

impl Traced<'_> {
    /// Returns every step, in order.
    pub(super) fn steps(&self) -> Vec<SimulatedStep> {
        let known: BTreeMap<&str, &OutlinedStep> =
            self.outline.steps.iter().map(|step| (step.id.as_str(), step)).collect();
        let mut rows: Vec<Row> = Vec::new();
        let mut before = None;
        for change in self.changes {
            let entry = &change.entry;
            let steps = entry.entered.iter().filter_map(|place| known.get(place.as_str()));
            let steps = steps.filter(|step| step.action.is_none() && !self.is_next_round(&step.id, before));
            rows.extend(steps.map(|step| {
                ((entry.version, false), SimulatedStep::new(step.id.as_str(), step.kind, entry.at))
            }));
            before = Some(&change.snapshot);
        }
        let mut version = 0;
        for called in self.calls {
            let is_own = called.run == self.run;
            if is_own {
                version = called.version;
            }
            let step = known.get(called.transition.as_str()).filter(|_| is_own);
            rows.push(((version, true), self.call(called, step.map_or("action.call", |step| step.kind))));
        }
        rows.sort_by_key(|(key, _)| *key);
        self.fill_in(&mut rows);
        rows.into_iter().map(|(_, step)| step).collect()
    }

    /// Returns `true` if entering a loop only begins its next iteration.
    fn is_next_round(&self, place: &str, before: Option<&Snapshot>) -> bool {
        let Some(Place::Loop(rounds)) = self.definition.spec().places.get(place) else { return false };
        let mut inside = before.into_iter().flat_map(Snapshot::activations);
        inside.any(|activation| activation.place.as_str() == place || rounds.body.contains(&activation.place))
    }

    /// Builds the row of a call, with the result that was committed.
    fn call(&self, called: &Called, kind: &str) -> SimulatedStep {
        let is_own = called.run == self.run;
        let mut step = SimulatedStep::new(called.transition.as_str(), kind, called.at);
        step.workflow = (!is_own).then(|| called.workflow.to_string());
        step.action = Some(called.action.to_string());
        step.attempt = Some(called.attempt);
        step.how = Some(called.how);
        step.input = Some(called.input.clone());
        match &called.result {
            Ok(output) => step.output = Some(output.clone()),
            Err(error) => step.error = Some(error.clone()),
        }
        if called.how != AnswerSource::Real || !is_own || called.result.is_err() {
            return step;
        }
        // The effect of a data store action is decided at the commit.
        let refused = self.ledger.failures.iter().find(|tried| {
            tried.activation == called.activation
                && tried.transition == called.transition
                && tried.at == called.at
        });
        if let Some(tried) = refused {
            (step.output, step.error) = (None, Some(tried.error.clone()));
            return step;
        }
        let from = self.changes.partition_point(|change| change.entry.version <= called.version);
        let is_its = |change: &&Change| change.entry.transitions.contains(&called.transition);
        let done = self.changes[from..].iter().find(is_its);
        if let Some(value) = done.and_then(|done| saved(self.definition, &called.transition, &done.snapshot))
        {
            step.output = Some(value);
        }
        step
    }

    /// Adds outputs, branches and errors to the last row of each step before the change that contains them.
    fn fill_in(&self, rows: &mut [Row]) {
        let (mut last, mut next) = (BTreeMap::new(), 0);
        for change in self.changes {
            while let Some((_, row)) =
                rows.get(next).filter(|((version, _), _)| *version < change.entry.version)
            {
                if row.workflow.is_none() {
                    last.insert(row.step.clone(), next);
                }
                next += 1;
            }
            for fired in &change.entry.transitions {
                let (id, end) = fired.split_once('.').unwrap_or((fired.as_str(), ""));
                let Some((_, row)) = last.get(id).and_then(|index| rows.get_mut(*index)) else { continue };
                match end {
                    "then" | "else" | "default" => row.way = Some(end.to_owned()),
                    case if case.starts_with("case") => row.way = Some(end.to_owned()),
                    "timeout" => row.way = Some("onTimeout".to_owned()),
                    "" | "child" if row.action.is_none() || row.how == Some(AnswerSource::Real) => {
                        let made = self.assigned(fired, &change.snapshot, row.kind == "vars.set");
                        row.output = made.or(row.output.take());
                    }
                    _ => {}
                }
            }
            if let Some(failed) = change.entry.action.strip_prefix("__error:")
                && let Some(index) = last.get(step_of(failed))
                && rows[*index].1.action.is_none()
            {
                rows[*index].1.error = failure_of(self.definition, failed, change, self.ledger);
            }
        }
        self.end(rows);
    }

    /// Adds the result to the step where the run ended, or the error to the step where it failed.
    fn end(&self, rows: &mut [Row]) {
        let Some(last) = self.changes.last() else { return };
        if let Some(RunEnd::Completed { place, output }) = last.snapshot.finished()
            && let Some(row) = last_of(rows, place)
        {
            row.output.clone_from(output);
        }
        let stopped = self.ledger.stopped.as_ref();
        if let Some(stopped) = stopped
            && let Some(stands) = stopped.activation.and_then(|id| last.snapshot.activation(id))
            && let Some(row) = last_of(rows, step_of(&stands.place))
        {
            row.error.get_or_insert_with(|| stopped.error.clone());
        }
    }

    /// Returns the values that a transition has set: all of them by name, or the only one.
    fn assigned(&self, transition: &Name, snapshot: &Snapshot, is_named: bool) -> Option<Value> {
        let transitions = &self.definition.spec().transitions;
        let set = &transitions.iter().find(|one| one.id == *transition)?.set;
        if !is_named {
            return value_at(snapshot, &set.first()?.to);
        }
        let named = set.iter().filter_map(|assign| {
            let name = assign.to.strip_prefix("vars.")?;
            Some((name.to_owned(), value_at(snapshot, &assign.to)?))
        });
        let named: Map<String, Value> = named.collect();
        (!named.is_empty()).then_some(Value::Object(named))
    }
}
