//! The steps of a document and the ways out of its decisions, as their author sees them, and by what a run's history shows
//! that it came there.

use std::collections::BTreeSet;

use serde::Serialize;

use super::model::{OnError, Step, StepKind, Wait};
use super::problem::Place;
use crate::ids::Name;
use crate::spec::Spec;

/// The steps of a document and the ways out of its decisions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outline {
    /// The steps, in the order in which they are written.
    pub steps: Vec<OutlinedStep>,
    /// The ways, in the order of their steps.
    pub ways: Vec<OutlinedWay>,
}

/// A step of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlinedStep {
    /// Its id.
    pub id: String,
    /// Its type as it is written.
    pub kind: &'static str,
    /// Where it stands.
    pub at: Place,
    /// What it calls.
    pub action: Option<String>,
    /// Any of these shows that a run came there.
    pub marks: Vec<Mark>,
}

/// A way out of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlinedWay {
    /// The step that decides.
    pub step: String,
    /// What its author calls the way: `then`, `else`, `done`, `skipped`, `body`, `catch`, `onError`, `onTimeout`.
    pub way: String,
    /// Where the step stands.
    pub at: Place,
    /// Any of these shows that a run went there.
    pub marks: Vec<Mark>,
}

/// What shows in a history that a run came somewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Mark {
    /// It entered this place.
    Entered(Name),
    /// It went by this transition.
    Fired(Name),
}

impl Mark {
    /// It is among what runs entered and went by.
    pub fn is_in(&self, entered: &BTreeSet<Name>, fired: &BTreeSet<Name>) -> bool {
        match self {
            Mark::Entered(place) => entered.contains(place),
            Mark::Fired(transition) => fired.contains(transition),
        }
    }
}

/// The outline of a list of steps.
pub(super) fn of_steps(steps: &[Step]) -> Outline {
    let mut outline = Outline::default();
    add(steps, &mut outline);
    outline.steps.sort_by_key(|step| step.at);
    outline.ways.sort_by_key(|way| way.at);
    outline
}

/// The outline of a place graph: its places, and its transitions as ways out of them.
pub(super) fn of_places(spec: &Spec, place_of: impl Fn(&str) -> Place) -> Outline {
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
            StepKind::Try { .. } => come_to(step),
            _ => vec![entered(&step.id, "")],
        };
        let (id, at) = (step.id.clone(), step.at);
        outline.steps.push(OutlinedStep { id, kind: step.word(), at, action, marks });
        for (way, marks) in ways(step) {
            outline.ways.push(OutlinedWay { step: step.id.clone(), way: way.to_owned(), at, marks });
        }
        step.inner().into_iter().for_each(|inner| add(inner, outline));
    }
}

/// What shows that a run came to a step, also if it was then skipped.
fn come_to(step: &Step) -> Vec<Mark> {
    let mut marks: Vec<_> = ["", ".when", ".try", ".race"].iter().map(|end| entered(&step.id, end)).collect();
    if let StepKind::Try { body, .. } = &step.kind {
        marks.extend(body.first().map(come_to).unwrap_or_default());
    }
    marks
}

fn ways(step: &Step) -> Vec<(&'static str, Vec<Mark>)> {
    let fired = |end: &str| vec![Mark::Fired(Name::from(format!("{}.{end}", step.id)))];
    let first = |steps: &[Step]| steps.first().map(come_to).unwrap_or_default();
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
