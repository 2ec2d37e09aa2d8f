//! Workflow documents: a whole workflow as YAML or JSON.
//!
//! A workflow document is parsed into a tree with positions (`tree.rs`), and then into steps (`read.rs`). The steps
//! are compiled into a definition (`compile.rs`), which keeps the document that it came from. All problems are
//! reported, with line and column.

mod admission;
mod bundle;
pub mod cases;
mod compile;
mod diff;
mod fields;
mod model;
mod names;
pub mod outline;
mod pages;
mod policy;
mod problem;
mod read;
mod schema;
mod switch;
mod tree;
mod warnings;

use serde_json::Value;

pub use bundle::Bundle;
pub use cases::Case;
pub use diff::{Difference, DifferenceKind, DifferenceSubject, MAX_DIFFERENCES, diff};
pub use fields::MAX_PROBLEMS;
pub use names::{InScope, Visible};
pub use outline::Outline;
pub use problem::{Position, SourceProblem, SourceProblems};
pub use schema::schema;
pub use tree::{BUNDLE_TIMES, MAX_BYTES, MAX_DEPTH, MAX_NAME, MAX_NODES, MAX_TEXT};
pub use warnings::ActionFacts;

use self::cases::Known;
use self::fields::Report;
use self::model::{Body, Model, Step, StepKind};
use self::tree::Node;
use crate::check::Location;
use crate::definition::Definition;
use crate::ids::Name;
use crate::limits::Limits;
use crate::spec::Spec;
use crate::time::Timestamp;
use crate::trigger::{Occurrence, TriggerMatch};

/// A workflow document that has been parsed and compiled.
#[derive(Debug, Clone)]
pub struct WorkflowSource {
    root: Node,
    value: Value,
    model: Model,
    cases: Vec<Case>,
    definition: Definition,
}

impl WorkflowSource {
    /// Parses a workflow document from YAML or JSON. `name` is the name of the workflow if the document does not
    /// contain one.
    pub fn read(text: &str, name: Option<&str>) -> Result<WorkflowSource, SourceProblems> {
        WorkflowSource::read_within(text, name, &Limits::default())
    }

    /// Does the same as [`WorkflowSource::read`], with these limits instead of the default limits.
    pub fn read_within(
        text: &str,
        name: Option<&str>,
        limits: &Limits,
    ) -> Result<WorkflowSource, SourceProblems> {
        WorkflowSource::of_tree(&tree::read(text)?, name, limits)
    }

    /// Compiles a workflow document that is a JSON value. Its problems have no line.
    pub fn of_value(value: &Value, name: Option<&str>) -> Result<WorkflowSource, SourceProblems> {
        WorkflowSource::of_tree(&Node::of_value(value)?, name, &Limits::default())
    }

    /// Returns the document with its name in it, even if the name was only given when it was read.
    pub fn named(self, limits: &Limits) -> Result<WorkflowSource, SourceProblems> {
        if self.own_name().is_some() {
            return Ok(self);
        }
        let mut root = self.root;
        let at = root.at;
        let name = Node { at, kind: tree::Kind::Text(self.model.name) };
        match root.field("spec").is_some() {
            true => {
                let mut metadata =
                    root.field("metadata").cloned().unwrap_or(Node { at, kind: tree::Kind::Null });
                metadata.put("name", name);
                root.put("metadata", metadata);
            }
            false => root.put("name", name),
        }
        WorkflowSource::of_tree(&root, None, limits)
    }

    /// Returns the name in the document, if it contains one.
    fn own_name(&self) -> Option<&Node> {
        let metadata = self.root.field("metadata").and_then(|metadata| metadata.field("name"));
        let bare = || self.root.field("name").filter(|_| self.root.field("spec").is_none());
        metadata.or_else(bare).filter(|node| node.text().is_some())
    }

    /// Returns the position of the name, or the start of the document if it contains no name.
    pub fn place_of_name(&self) -> Position {
        self.own_name().unwrap_or(&self.root).at
    }

    fn of_tree(root: &Node, name: Option<&str>, limits: &Limits) -> Result<WorkflowSource, SourceProblems> {
        let mut report = Report::default();
        let model = read::model(root, name, &mut report);
        if let Some(Model { body: Body::Steps(steps), .. }) = &model {
            names::check(steps, &mut report);
        }
        let spec = model.as_ref().map(|model| {
            let mut spec = match &model.body {
                Body::Steps(steps) => compile::steps(model.frame.clone(), steps, &mut report),
                Body::Places(spec) => spec.as_ref().clone(),
            };
            spec.document = Some(Box::new(without_tests(root)));
            spec
        });
        let mut cases = Vec::new();
        if let (Some(model), Some(spec), Some(tests)) = (&model, &spec, root.field("tests")) {
            cases = cases::read(tests, &known(model, spec), &mut report);
        }
        let (Some(model), Some(spec), true) = (model, spec, report.problems.is_empty()) else {
            return Err(report.finish());
        };
        match spec.build_within(limits) {
            Ok(definition) => {
                Ok(WorkflowSource { root: root.clone(), value: root.to_value(), model, cases, definition })
            }
            Err(problems) => {
                for problem in &problems.0 {
                    located(problem, &model, root, &mut report);
                }
                Err(report.finish())
            }
        }
    }

    /// Returns the compiled definition.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the name of the workflow.
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Returns the author's workflow version.
    pub fn version(&self) -> u32 {
        self.model.version
    }

    /// Returns the test cases of the document.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Returns the steps and the decision branches, with the marks that show that a run reached them.
    pub fn outline(&self) -> Outline {
        match &self.model.body {
            Body::Steps(steps) => outline::of_steps(steps),
            Body::Places(spec) => {
                outline::of_places(spec, |name| place_of(&self.root, name).unwrap_or_default())
            }
        }
    }

    /// Returns the input of a run that an event starts at this time.
    ///
    /// The error is the reason why the trigger starts no run. The result is `None` if no trigger has this event.
    pub fn input_of_event(&self, event: &str, data: &Value, now: Timestamp) -> Option<Result<Value, String>> {
        let triggers = self.definition.triggers().iter().enumerate();
        let meant =
            triggers.filter(|(_, trigger)| trigger.on.event().is_some_and(|name| name.as_str() == event));
        let meta = serde_json::json!({ "name": event, "source": "test", "id": "test", "accepted": now });
        let mut last = None;
        for (index, trigger) in meant {
            let made = self.definition.match_trigger(index, Occurrence { data, meta: &meta, now });
            last = Some(match made {
                Ok(TriggerMatch::Starts { input, .. }) => return Some(Ok(input)),
                Ok(TriggerMatch::Filtered(filtered)) => {
                    Err(format!("the filter of trigger `{}` is false: `{}`", trigger.id, filtered.filter))
                }
                Err(error) => Err(error.to_string()),
            });
        }
        last
    }

    /// Returns the document as JSON.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the document as YAML, without its comments.
    pub fn to_yaml(&self) -> String {
        yaml(&self.value)
    }

    /// Returns the position of a step's input, or of the part of it that `pointer` (a JSON pointer) names.
    ///
    /// If there is no such part, returns the position of the step. Returns `None` if there is no such step.
    pub fn place_of_input(&self, step: &str, pointer: &str) -> Option<Position> {
        let Body::Steps(steps) = &self.model.body else { return place_of(&self.root, step) };
        let step = find(steps, step.split('.').next().unwrap_or(step))?;
        let node = self.root.at(step.at);
        let input = node.and_then(|node| node.field("pages").unwrap_or(node).field("input"));
        Some(input.map_or(step.at, |input| input.below(pointer).at))
    }

    /// Returns the position of the strategy, or of the name if the document names no strategy.
    pub fn place_of_strategy(&self) -> Position {
        let spec = self.root.field("spec").unwrap_or(&self.root);
        spec.field("strategy").map_or_else(|| self.place_of_name(), |strategy| strategy.at)
    }

    /// Returns the position of a trigger.
    pub fn place_of_trigger(&self, id: &str) -> Option<Position> {
        let index = self.definition.triggers().iter().position(|trigger| trigger.id.as_str() == id)?;
        let spec = self.root.field("spec").unwrap_or(&self.root);
        match (spec.field("trigger"), spec.field("triggers").map(|node| &node.kind)) {
            (Some(one), _) => Some(one.at),
            (None, Some(tree::Kind::List(items))) => items.get(index).map(|node| node.at),
            (None, _) => None,
        }
    }

    /// Returns the names that expressions of a step can read, or `None` if there is no such step.
    pub fn in_scope(&self, step: &str) -> Option<InScope> {
        match &self.model.body {
            Body::Steps(steps) => names::in_scope(steps, step, self.model.frame.input.as_ref()),
            Body::Places(_) => None,
        }
    }
}

/// Returns the document without its tests, which are not part of a definition.
fn without_tests(root: &Node) -> Value {
    let mut value = root.to_value();
    if let Value::Object(fields) = &mut value {
        fields.remove("tests");
    }
    value
}

/// Returns the names that test cases may use.
fn known(model: &Model, spec: &Spec) -> Known {
    let mut known = Known::default();
    let events = spec.triggers.iter().filter_map(|trigger| trigger.on.event());
    known.events = events.map(ToString::to_string).collect();
    known.signals = spec.signals.keys().map(ToString::to_string).collect();
    for action in spec.transitions.iter().filter_map(|transition| transition.action.as_ref()) {
        known.actions.insert(action.name.to_string());
    }
    match &model.body {
        Body::Steps(steps) => {
            let mut open: Vec<&Step> = steps.iter().collect();
            while let Some(step) = open.pop() {
                let calls = match &step.kind {
                    StepKind::Call { .. } | StepKind::Workflow { .. } => true,
                    StepKind::Each(each) => each.pages.is_some(),
                    _ => false,
                };
                known.steps.insert(step.id.clone(), calls);
                open.extend(step.inner().into_iter().flatten());
            }
        }
        Body::Places(spec) => {
            known.steps.extend(spec.places.keys().map(|name| (name.to_string(), false)));
            let calls = |one: &crate::spec::Transition| (one.id.to_string(), one.action.is_some());
            known.steps.extend(spec.transitions.iter().map(calls));
        }
    }
    known
}

/// Converts any YAML or JSON text to a JSON value. A problem contains the position of the error.
pub fn to_json(text: &str) -> Result<Value, SourceProblems> {
    Ok(tree::read(text)?.to_value())
}

/// Converts JSON to YAML.
pub fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("JSON is plain data with text keys")
}

/// Reports a problem of the definition at the position of the step that it comes from.
fn located(problem: &crate::check::Problem, model: &Model, root: &Node, report: &mut Report) {
    let name = match &problem.at {
        Location::Place(name) | Location::Transition(name) => Some(name.as_str()),
        _ => None,
    };
    let code = serde_json::to_value(problem.code).ok();
    let code = code.as_ref().and_then(Value::as_str).unwrap_or("invalid").to_owned();
    let step = match &model.body {
        Body::Steps(steps) => name.and_then(|name| find(steps, name.split('.').next().unwrap_or(name))),
        Body::Places(_) => None,
    };
    match step {
        Some(step) => {
            report.step = Some(step.id.clone());
            report.add(&code, step.at, problem.message.clone());
        }
        None => {
            report.step = None;
            let at = name.and_then(|name| place_of(root, name)).or_else(|| field_of(root, &problem.at));
            report.add(&code, at.unwrap_or(root.at), problem.to_string());
        }
    }
}

/// Returns the position of a place or transition, for a document that consists of places and transitions.
fn place_of(root: &Node, name: &str) -> Option<Position> {
    let spec = root.field("spec").unwrap_or(root);
    let places = spec.field("places").and_then(Node::fields).unwrap_or_default();
    let place = places.iter().find(|(key, _)| key.text == name).map(|(key, _)| key.at);
    place.or_else(|| match &spec.field("transitions")?.kind {
        tree::Kind::List(items) => {
            let is_it = |node: &&Node| node.field("id").and_then(Node::text) == Some(name);
            items.iter().find(is_it).map(|node| node.at)
        }
        _ => None,
    })
}

/// Returns the position of a field of the spec, or of an entry in it.
fn field_of(root: &Node, location: &Location) -> Option<Position> {
    let spec = root.field("spec").unwrap_or(root);
    let key_of = |node: &Node, name: &str| {
        node.fields()?.iter().find(|(key, _)| key.text == name).map(|(key, _)| key.at)
    };
    let entry = |field: &str, name: &Name| key_of(spec.field(field)?, name.as_str());
    match location {
        Location::Field(name) => key_of(spec, name),
        Location::Signal(name) => entry("signals", name),
        Location::Document(kind) => entry("documents", kind),
        Location::Shadow(name) => entry("shadows", name),
        _ => None,
    }
}

fn find<'a>(steps: &'a [Step], id: &str) -> Option<&'a Step> {
    steps.iter().find_map(|step| {
        if step.id == id {
            return Some(step);
        }
        step.inner().into_iter().find_map(|inner| find(inner, id))
    })
}
