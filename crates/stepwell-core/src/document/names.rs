//! What expressions can read where, and whether they read anything else.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::fields::Report;
use super::model::{OnError, Step, StepKind, Wait};

/// What every expression can read.
const ALWAYS: [&str; 5] = ["payload", "vars", "meta", "locals", "session"];

/// What the expressions of one step can read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InScope {
    /// The step.
    pub step: String,
    /// What it can read.
    pub names: Vec<Visible>,
}

/// Something that an expression can read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Visible {
    /// How it is written.
    pub path: String,
    /// What it is, for a person.
    pub about: String,
    /// The step it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its JSON Schema, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// Reports names that nothing gives a value to.
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
        // What a trigger asks belongs to no step: it looks at the event.
        let always: &[&str] = if one.step.is_none() { &["event", "meta"] } else { &ALWAYS };
        let known = || always.iter().copied().chain(visible.iter().map(String::as_str));
        report.step.clone_from(&one.step);
        for root in one.roots.iter().filter(|root| !known().any(|name| name == root.as_str())) {
            let hint = match vars.contains(root) {
                true => format!(" (did you mean `vars.{root}`?)"),
                false => report.hint(root, known()),
            };
            report.add("unknownName", one.at, format!("there is no `{root}` here{hint}"));
        }
        for name in one.vars.iter().filter(|name| !vars.contains(*name)) {
            let hint = report.hint(name, vars.iter().map(String::as_str));
            report.add("unknownName", one.at, format!("no step writes `vars.{name}`{hint}"));
        }
    }
    report.step = None;
}

/// What the expressions of a step can read.
pub(super) fn in_scope(steps: &[Step], id: &str, input: Option<&Value>) -> Option<InScope> {
    super::find(steps, id)?;
    let mut locals = BTreeMap::new();
    collect_locals(steps, &BTreeSet::new(), &mut locals);
    let visible =
        |path: String, about: &str| Visible { path, about: about.to_owned(), from: None, schema: None };
    let mut names = vec![Visible {
        schema: input.cloned(),
        ..visible("payload".to_owned(), "what the run was started with")
    }];
    let properties = input.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    for (field, schema) in properties.into_iter().flatten() {
        let about = schema.get("description").and_then(Value::as_str).unwrap_or("a field of the input");
        names.push(Visible { schema: Some(schema.clone()), ..visible(format!("payload.{field}"), about) });
    }
    names.push(visible("vars".to_owned(), "what steps have made"));
    let mut before = Vec::new();
    written_before(steps, id, &mut before);
    for (name, from) in before {
        let about = "the result of a step before this one";
        names.push(Visible { from: Some(from), ..visible(format!("vars.{name}"), about) });
    }
    for local in locals.get(id).into_iter().flat_map(|locals| &locals.own) {
        names.push(visible(local.clone(), "seen only here: a loop's item, an error, or an event"));
    }
    names.push(visible("meta".to_owned(), "the run: `instanceId`, `workflow`, `version`, `createdAt`"));
    Some(InScope { step: id.to_owned(), names })
}

/// The locals that a step can see.
struct Locals {
    /// Those of what it is in.
    around: BTreeSet<String>,
    /// Those, and its own.
    own: BTreeSet<String>,
}

/// The locals that each step can see.
fn collect_locals(steps: &[Step], around: &BTreeSet<String>, found: &mut BTreeMap<String, Locals>) {
    for step in steps {
        let mut own = around.clone();
        let mut inner = around.clone();
        match &step.kind {
            StepKind::Each(each) => inner.extend([each.item.clone()].into_iter().chain(each.index.clone())),
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

/// The steps inside a step, but for those that deal with its errors.
fn body(step: &Step) -> Vec<&[Step]> {
    let mut inner = step.inner();
    if let OnError::Steps(_) = &step.on_error {
        inner.pop();
    }
    inner
}

/// The variables that steps write, with the step.
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

/// The variables that are written before a step is come to, on its way or beside it; whether it was come to.
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
