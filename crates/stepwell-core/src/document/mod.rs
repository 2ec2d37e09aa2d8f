//! Documents: a whole workflow as YAML or JSON.
//!
//! A document is read into a tree that knows where everything stands (`tree.rs`), then into steps (`read.rs`), and those are
//! compiled to the one kind of definition there is (`compile.rs`), which keeps the document it came from. Everything that
//! is wrong is reported, with line and column.

mod bundle;
pub mod cases;
mod compile;
mod diff;
mod fields;
mod model;
mod names;
pub mod outline;
mod problem;
mod read;
mod schema;
mod tree;

use serde_json::Value;

pub use bundle::Bundle;
pub use cases::Case;
pub use diff::{Difference, DifferenceKind, MAX_DIFFERENCES, Subject, diff};
pub use fields::MAX_PROBLEMS;
pub use names::{InScope, Visible};
pub use outline::Outline;
pub use problem::{Place, Problem, Problems};
pub use schema::schema;
pub use tree::{BUNDLE_TIMES, MAX_BYTES, MAX_DEPTH, MAX_NAME, MAX_NODES, MAX_TEXT};

use self::cases::Known;
use self::fields::Report;
use self::model::{Body, Model, Step, StepKind};
use self::tree::Node;
use crate::check::Location;
use crate::definition::Definition;
use crate::limits::Limits;
use crate::spec::Spec;
use crate::starter::{Occurrence, Starting};
use crate::time::Timestamp;

/// A document that has been read and compiled.
#[derive(Debug, Clone)]
pub struct Document {
    root: Node,
    value: Value,
    model: Model,
    cases: Vec<Case>,
    definition: Definition,
}

impl Document {
    /// Reads YAML or JSON; `name` is what the workflow is called if the document does not say so itself.
    pub fn read(text: &str, name: Option<&str>) -> Result<Document, Problems> {
        Document::read_within(text, name, &Limits::default())
    }

    /// The same with limits of one's own.
    pub fn read_within(text: &str, name: Option<&str>, limits: &Limits) -> Result<Document, Problems> {
        Document::of_tree(&tree::read(text)?, name, limits)
    }

    /// The same of a document that is JSON already; what is wrong with it has no line.
    pub fn of_value(value: &Value, name: Option<&str>) -> Result<Document, Problems> {
        Document::of_tree(&Node::of_value(value)?, name, &Limits::default())
    }

    /// The same document with its name in it, also if only whoever read it has said what it is called.
    pub fn named(self, limits: &Limits) -> Result<Document, Problems> {
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
        Document::of_tree(&root, None, limits)
    }

    /// The name as it stands in the document.
    fn own_name(&self) -> Option<&Node> {
        let metadata = self.root.field("metadata").and_then(|metadata| metadata.field("name"));
        let bare = || self.root.field("name").filter(|_| self.root.field("spec").is_none());
        metadata.or_else(bare).filter(|node| node.text().is_some())
    }

    /// Where its name stands; where it begins itself, if it has none.
    pub fn place_of_name(&self) -> Place {
        self.own_name().unwrap_or(&self.root).at
    }

    fn of_tree(root: &Node, name: Option<&str>, limits: &Limits) -> Result<Document, Problems> {
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
                Ok(Document { root: root.clone(), value: root.to_value(), model, cases, definition })
            }
            Err(problems) => {
                for problem in &problems.0 {
                    located(problem, &model, root, &mut report);
                }
                Err(report.finish())
            }
        }
    }

    /// The workflow it is.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The workflow's name.
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// The author's number for this edition.
    pub fn version(&self) -> u32 {
        self.model.version
    }

    /// Its test cases.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Its steps and the ways out of its decisions, with what shows that a run came there.
    pub fn outline(&self) -> Outline {
        match &self.model.body {
            Body::Steps(steps) => outline::of_steps(steps),
            Body::Places(spec) => {
                outline::of_places(spec, |name| place_of(&self.root, name).unwrap_or_default())
            }
        }
    }

    /// What a run is started with by an event that comes at this time: what the trigger says, or why it says no. `None` if no
    /// trigger is for that event.
    pub fn input_of_event(&self, event: &str, data: &Value, now: Timestamp) -> Option<Result<Value, String>> {
        let starters = self.definition.starters().iter().enumerate();
        let meant =
            starters.filter(|(_, starter)| starter.on.event().is_some_and(|name| name.as_str() == event));
        let meta = serde_json::json!({ "name": event, "source": "test", "id": "test", "accepted": now });
        let mut last = None;
        for (index, starter) in meant {
            let made = self.definition.starting(index, Occurrence { data, meta: &meta, now });
            last = Some(match made {
                Ok(Starting::Begins { input, .. }) => return Some(Ok(input)),
                Ok(Starting::Filtered(filtered)) => {
                    Err(format!("the filter of trigger `{}` says no: `{}`", starter.id, filtered.filter))
                }
                Err(error) => Err(error.to_string()),
            });
        }
        last
    }

    /// The document as JSON.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The document as YAML; comments are not kept.
    pub fn to_yaml(&self) -> String {
        yaml(&self.value)
    }

    /// Where the input of a step stands, or what `pointer` (a JSON pointer) names in it; the step itself, if that is not
    /// there. `None` if there is no such step.
    pub fn place_of_input(&self, step: &str, pointer: &str) -> Option<Place> {
        let Body::Steps(steps) = &self.model.body else { return place_of(&self.root, step) };
        let step = find(steps, step.split('.').next().unwrap_or(step))?;
        let input = self.root.at(step.at).and_then(|node| node.field("input"));
        Some(input.map_or(step.at, |input| input.below(pointer).at))
    }

    /// Where a trigger stands, by its id.
    pub fn place_of_trigger(&self, id: &str) -> Option<Place> {
        let index = self.definition.starters().iter().position(|starter| starter.id.as_str() == id)?;
        let spec = self.root.field("spec").unwrap_or(&self.root);
        match (spec.field("trigger"), spec.field("triggers").map(|node| &node.kind)) {
            (Some(one), _) => Some(one.at),
            (None, Some(tree::Kind::List(items))) => items.get(index).map(|node| node.at),
            (None, _) => None,
        }
    }

    /// What expressions of a step can read; `None` if there is no such step.
    pub fn in_scope(&self, step: &str) -> Option<InScope> {
        match &self.model.body {
            Body::Steps(steps) => names::in_scope(steps, step, self.model.frame.input.as_ref()),
            Body::Places(_) => None,
        }
    }
}

/// What a definition keeps of a document: tests change nothing about a workflow.
fn without_tests(root: &Node) -> Value {
    let mut value = root.to_value();
    if let Value::Object(fields) = &mut value {
        fields.remove("tests");
    }
    value
}

/// The names that test cases may use.
fn known(model: &Model, spec: &Spec) -> Known {
    let mut known = Known::default();
    let events = spec.triggers.iter().filter_map(|starter| starter.on.event());
    known.events = events.map(ToString::to_string).collect();
    known.signals = spec.signals.keys().map(ToString::to_string).collect();
    for action in spec.transitions.iter().filter_map(|transition| transition.action.as_ref()) {
        known.actions.insert(action.name.to_string());
    }
    match &model.body {
        Body::Steps(steps) => {
            let mut open: Vec<&Step> = steps.iter().collect();
            while let Some(step) = open.pop() {
                let calls = matches!(step.kind, StepKind::Call { .. } | StepKind::Workflow { .. });
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

/// Reads YAML or JSON as JSON, whatever it is; the problem says where it cannot be read.
pub fn to_json(text: &str) -> Result<Value, Problems> {
    Ok(tree::read(text)?.to_value())
}

/// JSON as YAML.
pub fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("JSON is plain data with text keys")
}

/// A problem of the definition, where the step stands that it comes from.
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
            let at = name.and_then(|name| place_of(root, name)).unwrap_or(root.at);
            report.add(&code, at, problem.to_string());
        }
    }
}

/// Where a place or transition stands in a document that is made of them.
fn place_of(root: &Node, name: &str) -> Option<Place> {
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

fn find<'a>(steps: &'a [Step], id: &str) -> Option<&'a Step> {
    steps.iter().find_map(|step| {
        if step.id == id {
            return Some(step);
        }
        step.inner().into_iter().find_map(|inner| find(inner, id))
    })
}
