//! Outlines: the steps and decision branches of a workflow document, with the history marks that show that a run
//! reached them.

use std::collections::BTreeSet;

use serde::Serialize;

use super::model::{OnError, Step, StepKind, Wait};
use super::problem::Position;
use crate::ids::Name;
use crate::spec::Spec;

/// The steps and decision branches of a workflow document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outline {
    /// The steps, in the order of the document.
    pub steps: Vec<OutlinedStep>,
    /// The decision branches, in the order of their steps.
    pub ways: Vec<OutlinedWay>,
}

/// A step of a workflow document.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlinedStep {
    pub id: String,
    /// The type of the step as written, or `place`.
    pub kind: &'static str,
    pub at: Position,
    /// The action that the step calls.
    pub action: Option<String>,
    /// Marks in the history. Any of them shows that a run reached the step.
    pub marks: Vec<Mark>,
}

/// A branch of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlinedWay {
    /// The step that makes the decision.
    pub step: String,
    /// The name of the branch: `then`, `else`, `case1`, `default`, `done`, `skipped`, `body`, `catch`, `onError` or
    /// `onTimeout`. In a place graph, the id of the transition.
    pub way: String,
    /// Position of the step.
    pub at: Position,
    /// Marks in the history. Any of them shows that a run took the branch.
    pub marks: Vec<Mark>,
}

/// A mark in the history of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Mark {
    /// The run entered this place.
    Entered(Name),
    /// The run fired this transition.
    Fired(Name),
}

impl Mark {
    /// Returns true if the mark is among the entered places or the fired transitions.
    pub fn is_in(&self, entered: &BTreeSet<Name>, fired: &BTreeSet<Name>) -> bool {
        match self {
            Mark::Entered(place) => entered.contains(place),
            Mark::Fired(transition) => fired.contains(transition),
        }
    }
}

/// Builds the outline of a list of steps.
pub(super) fn of_steps(steps: &[Step]) -> Outline {
    let mut outline = Outline::default();
    add(steps, &mut outline);
    outline.steps.sort_by_key(|step| step.at);
    outline.ways.sort_by_key(|way| way.at);
    outline
}

/// Builds the outline of a place graph: its places, and its transitions as branches.
pub(super) fn of_places(spec: &Spec, place_of: impl Fn(&str) -> Position) -> Outline {
    let called = |name: &Name| {
        let mut leaving = spec.transitions.iter().filter(|transition| transition.from == *name);
        leaving.find_map(|transition| transition.action.as_ref()).map(|action| action.name.to_string())
    };
    let step = |name: &Name| OutlinedStep {
        id: name.to_string(),
        kind: "place",
        at: place_of(name),
        action: called(name),
        marks: vec![Mark::Entered(name.clone())],
    };
    let way = |transition: &crate::spec::Transition| OutlinedWay {
        step: transition.from.to_string(),
        way: transition.id.to_string(),
        at: place_of(&transition.id),
        marks: vec![Mark::Fired(transition.id.clone())],
    };
    Outline {
        steps: spec.places.keys().map(step).collect(),
        ways: spec.transitions.iter().map(way).collect(),
    }
}

fn add(steps: &[Step], outline: &mut Outline) {
    for step in steps {
        let action = match &step.kind {
            StepKind::Call { action, .. } => Some(action.clone()),
            StepKind::Workflow { .. } => Some("workflow.call".to_owned()),
            _ => None,
        };
        let marks = match &step.kind {
            StepKind::Try { .. } => reached_marks(step),
            _ => vec![entered(&step.id, "")],
        };
        let (id, at) = (step.id.clone(), step.at);
        outline.steps.push(OutlinedStep { id, kind: step.word(), at, action, marks });
        for (way, marks) in ways(step) {
            outline.ways.push(OutlinedWay { step: step.id.clone(), way, at, marks });
        }
        step.inner().into_iter().for_each(|inner| add(inner, outline));
    }
}

/// Returns the marks that show that a run reached a step, even if the step was skipped.
fn reached_marks(step: &Step) -> Vec<Mark> {
    let mut marks: Vec<_> = ["", ".when", ".try", ".race"].iter().map(|end| entered(&step.id, end)).collect();
    if let StepKind::Try { body, .. } = &step.kind {
        marks.extend(body.first().map(reached_marks).unwrap_or_default());
    }
    marks
}

/// Returns the branches of a step with their marks.
fn ways(step: &Step) -> Vec<(String, Vec<Mark>)> {
    if let StepKind::Switch(switch) = &step.kind {
        let fired = |way: String| {
            let mark = Mark::Fired(Name::from(format!("{}.{way}", step.id)));
            (way, vec![mark])
        };
        let cases = (1..=switch.cases.len()).map(|number| fired(format!("case{number}")));
        return named(common_ways(step)).chain(cases).chain([fired("default".to_owned())]).collect();
    }
    named(common_ways(step)).collect()
}

fn named<'w>(ways: Vec<(&'w str, Vec<Mark>)>) -> impl Iterator<Item = (String, Vec<Mark>)> + use<'w> {
    ways.into_iter().map(|(way, marks)| (way.to_owned(), marks))
}

fn common_ways(step: &Step) -> Vec<(&'static str, Vec<Mark>)> {
    let fired = |end: &str| vec![Mark::Fired(Name::from(format!("{}.{end}", step.id)))];
    let first = |steps: &[Step]| steps.first().map(reached_marks).unwrap_or_default();
    let mut ways = Vec::new();
    if step.condition.is_some() {
        ways.extend([("done", fired("when")), ("skipped", fired("skip"))]);
    }
    match &step.kind {
        StepKind::If { .. } => ways.extend([("then", fired("then")), ("else", fired("else"))]),
        StepKind::Each(each) => ways.push(("body", first(&each.body))),
        StepKind::While { body, .. } => ways.push(("body", first(body))),
        StepKind::Try { codes: Some(_), .. } => ways.push(("catch", fired("match"))),
        StepKind::Try { catch, .. } if catch.is_empty() => {
            ways.push(("catch", vec![entered(&step.id, ".caught")]));
        }
        StepKind::Try { catch, .. } => ways.push(("catch", first(catch))),
        StepKind::Wait(Wait { on_timeout: Some(_), .. }) => ways.push(("onTimeout", fired("timeout"))),
        _ => {}
    }
    match &step.on_error {
        OnError::Steps(steps) if !steps.is_empty() => ways.push(("onError", first(steps))),
        OnError::Continue | OnError::Steps(_) => ways.push(("onError", fired("failed"))),
        OnError::Fail => {}
    }
    ways
}

fn entered(step: &str, end: &str) -> Mark {
    Mark::Entered(Name::from(format!("{step}{end}")))
}
