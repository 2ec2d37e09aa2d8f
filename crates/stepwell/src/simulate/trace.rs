//! What a simulated run did, step by step, as its author has written the steps.

use serde::Serialize;
use serde_json::{Map, Value};
use stepwell_core::document::Outline;
use stepwell_core::document::outline::OutlinedStep;
use stepwell_core::snapshot::Finished;
use stepwell_core::{Definition, Failure, Name, RunId, Snapshot, Timestamp};

use super::read::{Change, failure_of, saved, step_of, value_at};
use super::script::Called;
use crate::ledger::Ledger;

/// How a call was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// By a mock.
    Mocked,
    /// By the action itself, which touches nothing but the store in memory.
    Real,
    /// It was only noted: a start of another workflow, or a signal to another run.
    Recorded,
    /// Nobody has mocked it.
    NotMocked,
}

/// A step that a run came to, or a try of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The step.
    pub step: String,
    /// Its type as it is written.
    #[serde(rename = "type")]
    pub kind: String,
    /// When.
    pub at: Timestamp,
    /// The workflow, if it is another one that the run has called or started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// What it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Which try of the call it was, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How the call was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub how: Option<How>,
    /// What the call was given; secrets are names in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What it gave: a call's result, what has come to a wait, the variables that were set, the run's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Which way it went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
}

impl Step {
    fn new(step: impl Into<String>, kind: &str, at: Timestamp) -> Self {
        Step {
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

    /// It is a call of the run itself.
    pub(super) fn is_call(&self) -> bool {
        self.action.is_some() && self.workflow.is_none()
    }
}

/// A step, after which version of the run it came, and whether it is a call that was made there.
type Row = ((u64, bool), Step);

/// The last coming to a step before a version.
fn last<'r>(rows: &'r mut [Row], version: u64, id: &str) -> Option<&'r mut Step> {
    let is_it = |((at, _), row): &&mut Row| *at < version && row.step == id && row.workflow.is_none();
    rows.iter_mut().rev().find(is_it).map(|(_, row)| row)
}

/// What a run did, and what it is made of.
pub(super) struct Traced<'a> {
    pub(super) definition: &'a Definition,
    pub(super) outline: &'a Outline,
    pub(super) run: RunId,
    pub(super) changes: &'a [Change],
    pub(super) calls: &'a [Called],
    pub(super) ledger: &'a Ledger,
}

impl Traced<'_> {
    /// Every step, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut rows: Vec<Row> = Vec::new();
        for change in self.changes {
            for place in &change.entry.entered {
                if let Some(step) = self.outlined(place).filter(|step| step.action.is_none()) {
                    rows.push((
                        (change.entry.version, false),
                        Step::new(place.as_str(), step.kind, change.entry.at),
                    ));
                }
            }
        }
        let mut version = 0;
        for called in self.calls {
            if called.run == self.run {
                version = called.version;
            }
            rows.push(((version, true), self.call(called)));
        }
        rows.sort_by_key(|(key, _)| *key);
        self.fill_in(&mut rows);
        if let Some((_, stopped)) = self.ledger.stopped.as_ref().and_then(|stopped| {
            let place = &self.changes.last()?.snapshot.activation(stopped.activation?)?.place;
            let step = step_of(place);
            rows.iter_mut().rev().find(|(_, row)| row.step == step && row.workflow.is_none())
        }) && stopped.error.is_none()
        {
            stopped.error = self.ledger.stopped.as_ref().map(|stopped| stopped.error.clone());
        }
        rows.into_iter().map(|(_, step)| step).collect()
    }

    fn outlined(&self, id: &str) -> Option<&OutlinedStep> {
        self.outline.steps.iter().find(|step| step.id == id)
    }

    /// A call as it was made, and what came of it when it was committed.
    fn call(&self, called: &Called) -> Step {
        let is_own = called.run == self.run;
        let kind =
            self.outlined(&called.transition).filter(|_| is_own).map_or("action.call", |step| step.kind);
        let mut step = Step::new(called.transition.as_str(), kind, called.at);
        step.workflow = (!is_own).then(|| called.workflow.to_string());
        step.action = Some(called.action.to_string());
        step.attempt = Some(called.attempt);
        step.how = Some(called.how);
        step.input = Some(called.input.clone());
        match &called.result {
            Ok(output) => step.output = Some(output.clone()),
            Err(error) => step.error = Some(error.clone()),
        }
        if called.how != How::Real || !is_own || called.result.is_err() {
            return step;
        }
        // What an action of the store has done is decided when it is committed.
        let refused = self.ledger.failures.iter().find(|tried| {
            tried.activation == called.activation
                && tried.transition == called.transition
                && tried.at == called.at
        });
        if let Some(tried) = refused {
            (step.output, step.error) = (None, Some(tried.error.clone()));
            return step;
        }
        let is_its = |change: &&Change| {
            change.entry.version > called.version && change.entry.transitions.contains(&called.transition)
        };
        let done = self.changes.iter().find(is_its);
        if let Some(value) = done.and_then(|done| saved(self.definition, &called.transition, &done.snapshot))
        {
            step.output = Some(value);
        }
        step
    }

    /// Puts what became of each step where it belongs: at the last coming to it before that.
    fn fill_in(&self, rows: &mut [Row]) {
        for change in self.changes {
            let version = change.entry.version;
            for fired in &change.entry.transitions {
                let (id, end) = fired.split_once('.').unwrap_or((fired.as_str(), ""));
                let Some(row) = last(rows, version, id) else { continue };
                match end {
                    "then" | "else" => row.way = Some(end.to_owned()),
                    "timeout" => row.way = Some("onTimeout".to_owned()),
                    "" | "child" if row.action.is_none() || row.how == Some(How::Real) => {
                        let made = self.assigned(fired, &change.snapshot, row.kind == "vars.set");
                        row.output = made.or(row.output.take());
                    }
                    _ => {}
                }
            }
            if let Some(failed) = change.entry.action.strip_prefix("__error:")
                && let Some(row) = last(rows, version, step_of(failed)).filter(|row| row.action.is_none())
            {
                row.error = failure_of(self.definition, failed, change, self.ledger);
            }
            if let Some(Finished::Completed { place, output }) = change.snapshot.finished()
                && let Some((_, row)) = rows.iter_mut().rev().find(|(_, row)| row.step == place.as_str())
            {
                row.output.clone_from(output);
            }
        }
    }

    /// What a transition has set: all of it by name, or the one value.
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
