//! The names that expressions can read, and the check for unknown names.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::fields::Report;
use super::model::{OnError, Step, StepKind, Wait};
use super::pages::CURSOR;

/// Names that every expression of a step can read.
const ALWAYS: [&str; 5] = ["payload", "vars", "meta", "locals", "session"];

/// The names that the expressions of one step can read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InScope {
    pub step: String,
    pub names: Vec<Visible>,
}

/// A name that an expression can read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Visible {
    /// The name or path, as written in an expression.
    pub path: String,
    /// Human-readable description of the value.
    pub about: String,
    /// The step that writes the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// JSON Schema of the value, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// Reports names that have no value.
pub(super) fn check(steps: &[Step], report: &mut Report) {
    let mut locals = BTreeMap::new();
    collect_locals(steps, &BTreeSet::new(), &mut locals);
    let vars: BTreeSet<String> = variables(steps).into_iter().map(|(name, _)| name).collect();
    let used = std::mem::take(&mut report.used);
    for one in &used {
        let none = BTreeSet::new();
        let visible = one.step.as_ref().and_then(|step| locals.get(step));
        let visible =
            visible.map_or(&none, |locals| if one.is_outside { &locals.around } else { &locals.own });
        // Expressions of triggers belong to no step; they read the event.
        let always: &[&str] = if one.step.is_none() { &["event", "meta"] } else { &ALWAYS };
        let known = || always.iter().copied().chain(visible.iter().map(String::as_str));
        report.step.clone_from(&one.step);
        for root in one.roots.iter().filter(|root| !known().any(|name| name == root.as_str())) {
            let hint = match vars.contains(root) {
                true => format!(" (did you mean `vars.{root}`?)"),
                false => report.hint(root, known()),
            };
            report.add("unknownName", one.at, format!("unknown name `{root}`{hint}"));
        }
        for name in one.vars.iter().filter(|name| !vars.contains(*name)) {
            let hint = report.hint(name, vars.iter().map(String::as_str));
            report.add("unknownName", one.at, format!("no step writes `vars.{name}`{hint}"));
        }
    }
    report.step = None;
}

/// Returns the names that the expressions of a step can read, or `None` if there is no such step.
pub(super) fn in_scope(steps: &[Step], id: &str, input: Option<&Value>) -> Option<InScope> {
    super::find(steps, id)?;
    let mut locals = BTreeMap::new();
    collect_locals(steps, &BTreeSet::new(), &mut locals);
    let visible =
        |path: String, about: &str| Visible { path, about: about.to_owned(), from: None, schema: None };
    let mut names =
        vec![Visible { schema: input.cloned(), ..visible("payload".to_owned(), "the input of the run") }];
    let properties = input.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    for (field, schema) in properties.into_iter().flatten() {
        let about = schema.get("description").and_then(Value::as_str).unwrap_or("a field of the input");
        names.push(Visible { schema: Some(schema.clone()), ..visible(format!("payload.{field}"), about) });
    }
    names.push(visible("vars".to_owned(), "the variables that steps have written"));
    let mut before = Vec::new();
    written_before(steps, id, &mut before);
    for (name, from) in before {
        let about = "the result of an earlier step";
        names.push(Visible { from: Some(from), ..visible(format!("vars.{name}"), about) });
    }
    for local in locals.get(id).into_iter().flat_map(|locals| &locals.own) {
        names.push(visible(local.clone(), "a local of this step: the item of a loop, an error, or an event"));
    }
    names.push(visible("meta".to_owned(), "the run: `instanceId`, `workflow`, `version`, `createdAt`"));
    Some(InScope { step: id.to_owned(), names })
}

/// The locals that are visible to a step.
struct Locals {
    /// The locals of the enclosing steps.
    around: BTreeSet<String>,
    /// The locals of the enclosing steps and of the step itself.
    own: BTreeSet<String>,
}

/// Collects the locals that are visible to each step.
fn collect_locals(steps: &[Step], around: &BTreeSet<String>, found: &mut BTreeMap<String, Locals>) {
    for step in steps {
        let mut own = around.clone();
        let mut inner = around.clone();
        match &step.kind {
            StepKind::Each(each) => {
                inner.extend([each.item.clone()].into_iter().chain(each.index.clone()));
                inner.extend(each.pages.as_ref().map(|_| CURSOR.to_owned()));
            }
            StepKind::While { index, .. } => inner.extend(index.clone()),
            StepKind::Wait(_) => drop(own.insert("event".to_owned())),
            _ => {}
        }
        own.extend(inner.iter().cloned());
        found.insert(step.id.clone(), Locals { around: around.clone(), own });
        match &step.kind {
            StepKind::Try { body, local, catch, .. } => {
                collect_locals(body, &inner, found);
                let mut caught = inner.clone();
                caught.insert(local.clone());
                collect_locals(catch, &caught, found);
            }
            StepKind::Wait(Wait { on_timeout: Some(steps), .. }) => collect_locals(steps, around, found),
            _ => body(step).into_iter().for_each(|steps| collect_locals(steps, &inner, found)),
        }
        if let OnError::Steps(steps) = &step.on_error {
            let mut caught = around.clone();
            caught.insert("error".to_owned());
            collect_locals(steps, &caught, found);
        }
    }
}

/// Returns the lists of steps inside a step, without its error steps.
fn body(step: &Step) -> Vec<&[Step]> {
    let mut inner = step.inner();
    if let OnError::Steps(_) = &step.on_error {
        inner.pop();
    }
    inner
}

/// Returns the variables that the steps write, each with the id of the step.
fn variables(steps: &[Step]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for step in steps {
        found.extend(own_variables(step));
        step.inner().into_iter().for_each(|inner| found.extend(variables(inner)));
    }
    found
}

fn own_variables(step: &Step) -> Vec<(String, String)> {
    let first = |path: &str| path.split('.').next().unwrap_or(path).to_owned();
    let mut names: Vec<_> = step.result_name().map(first).into_iter().collect();
    if let StepKind::Set { values } = &step.kind {
        names.extend(values.iter().map(|(name, _)| first(name)));
    }
    names.into_iter().map(|name| (name, step.id.clone())).collect()
}

/// Collects the variables that are written before a step, by the steps on the way to it and next to it. Returns true
/// if the step was found.
fn written_before(steps: &[Step], id: &str, found: &mut Vec<(String, String)>) -> bool {
    for step in steps {
        if step.id == id {
            return true;
        }
        for inner in step.inner() {
            if written_before(inner, id, found) {
                return true;
            }
        }
        found.extend(own_variables(step));
    }
    false
}
