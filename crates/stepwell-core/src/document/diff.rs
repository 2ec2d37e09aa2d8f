//! Differences between two workflow documents. Steps, places and transitions are matched by their ids, even if they
//! have moved; everything else is matched by its position.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

/// Maximum number of differences to report. Beyond it, one last entry has the number of the remaining differences.
pub const MAX_DIFFERENCES: usize = 1_000;

/// Placeholder for a list of steps or transitions, which are compared separately.
const STEPS: &str = "(steps)";

/// The kind of thing that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceSubject {
    /// The parts of the document outside steps, places and transitions.
    Document,
    Step,
    Place,
    Transition,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceKind {
    /// It is only in the second document.
    Added,
    /// It is only in the first document.
    Removed,
    /// It is in another list, or in another order than before.
    Moved,
    /// Its content is different.
    Changed,
    /// It has another type.
    TypeChanged,
    /// There are more differences than reported; `to` is their number.
    More,
}

/// A difference between two workflow documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    pub kind: DifferenceKind,
    pub subject: DifferenceSubject,
    /// The id of the step, place or transition, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// JSON pointer. For a change, it points into the step, place or transition; otherwise into the document.
    pub pointer: String,
    /// The old value. For something that has moved, its old position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// The new value. For something that has moved, its new position. Nested steps are reported separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            DifferenceSubject::Document => "document",
            DifferenceSubject::Step => "step",
            DifferenceSubject::Place => "place",
            DifferenceSubject::Transition => "transition",
        };
        let what = match &self.id {
            Some(id) => format!("{subject} `{id}`"),
            None => subject.to_owned(),
        };
        let said = |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), shown);
        let (from, to, pointer) = (said(&self.from), said(&self.to), &self.pointer);
        match self.kind {
            DifferenceKind::Added => write!(f, "+ {what} at {pointer}"),
            DifferenceKind::Removed => write!(f, "- {what} at {pointer}"),
            DifferenceKind::Moved => write!(f, "> {what} from {from} to {to}"),
            DifferenceKind::Changed | DifferenceKind::TypeChanged => {
                write!(f, "~ {what} {pointer}: {from} -> {to}")
            }
            DifferenceKind::More => write!(f, "… and {to} more"),
        }
    }
}

/// Formats a value on one line, truncated if it is long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns all differences between two workflow documents, or an empty list if their content is equal.
///
/// Steps without an id are matched by their position.
pub fn diff(from: &Value, to: &Value) -> Vec<Difference> {
    let (old, new) = (Parts::of(from), Parts::of(to));
    let mut differences = Told::default();
    differences.compare(Some(&old.rest), Some(&new.rest), "", &|kind, pointer, from, to| {
        let subject = DifferenceSubject::Document;
        Difference { kind, subject, id: None, pointer, from, to }
    });
    let removed = old.order.iter().filter(|key| !new.things.contains_key(*key));
    removed.for_each(|key| differences.add(old.things[key].whole(DifferenceKind::Removed)));
    let moved = moved(&old, &new);
    for key in &new.order {
        let is = &new.things[key];
        let Some(was) = old.things.get(key) else {
            differences.add(is.whole(DifferenceKind::Added));
            continue;
        };
        if moved.contains(key) {
            let (from, to) = (Some(was.pointer.clone().into()), Some(is.pointer.clone().into()));
            let (kind, pointer) = (DifferenceKind::Moved, is.pointer.clone());
            differences.add(Difference { kind, subject: is.subject, id: is.id.clone(), pointer, from, to });
        }
        differences.compare(Some(&was.own), Some(&is.own), "", &|kind, pointer, from, to| {
            let kind = if pointer == is.type_pointer() { DifferenceKind::TypeChanged } else { kind };
            Difference { kind, subject: is.subject, id: is.id.clone(), pointer, from, to }
        });
    }
    differences.finish()
}

/// The key that identifies a thing in both documents.
type Key = (DifferenceSubject, String);

/// A step, a place or a transition.
struct Thing {
    subject: DifferenceSubject,
    id: Option<String>,
    pointer: String,
    /// The list that contains it: the containing step, and the field in that step.
    list: String,
    index: usize,
    /// Its content, without the nested steps.
    own: Value,
}

impl Thing {
    fn whole(&self, kind: DifferenceKind) -> Difference {
        let own = Some(self.own.clone());
        let (from, to) = if kind == DifferenceKind::Removed { (own, None) } else { (None, own) };
        let (id, pointer) = (self.id.clone(), self.pointer.clone());
        Difference { kind, subject: self.subject, id, pointer, from, to }
    }

    fn type_pointer(&self) -> &'static str {
        match self.subject {
            DifferenceSubject::Place => "/kind",
            _ => "/type",
        }
    }
}

/// The parts of a workflow document.
struct Parts {
    rest: Value,
    things: BTreeMap<Key, Thing>,
    /// The keys in the order of the document.
    order: Vec<Key>,
}

impl Parts {
    fn of(document: &Value) -> Self {
        let mut parts = Parts { rest: Value::Null, things: BTreeMap::new(), order: Vec::new() };
        let mut rest = document.clone();
        let (spec, pointer) = match rest.get("spec").is_some_and(Value::is_object) {
            true => (rest.get_mut("spec"), "/spec"),
            false => (Some(&mut rest), ""),
        };
        if let Some(Value::Object(spec)) = spec {
            if let Some(steps) = spec.get_mut("steps") {
                *steps = parts.steps(steps, "steps", &format!("{pointer}/steps"));
            }
            if spec.get("places").is_some_and(Value::is_object)
                && let Some(Value::Object(places)) = spec.remove("places")
            {
                parts.places(places, &format!("{pointer}/places"));
                if let Some(transitions) = spec.get_mut("transitions") {
                    *transitions = parts.transitions(transitions, &format!("{pointer}/transitions"));
                }
            }
        }
        parts.rest = rest;
        parts
    }

    /// Extracts the steps of a list and returns a placeholder for the list.
    fn steps(&mut self, value: &Value, list: &str, pointer: &str) -> Value {
        let Some(items) = things_in(value) else { return value.clone() };
        for (index, item) in items.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            let key = self.begin(DifferenceSubject::Step, item, list, index, &pointer);
            let own = item.iter().map(|(field, value)| {
                let inner = format!("{}/{field}", key.1);
                (field.clone(), self.field(field, value, &inner, &format!("{pointer}/{}", escaped(field))))
            });
            let own = Value::Object(own.collect());
            self.end(&key, own);
        }
        STEPS.into()
    }

    /// Extracts the nested steps from a field of a step.
    fn field(&mut self, name: &str, value: &Value, list: &str, pointer: &str) -> Value {
        match name {
            "then" | "else" | "body" | "steps" | "onTimeout" | "default" => self.steps(value, list, pointer),
            "catch" | "onError" => self.block(value, list, pointer),
            "branches" | "cases" => match value {
                Value::Array(branches) => {
                    let branches = branches.iter().enumerate();
                    let each = |(index, branch): (usize, &Value)| {
                        self.block(branch, &format!("{list}/{index}"), &format!("{pointer}/{index}"))
                    };
                    Value::Array(branches.map(each).collect())
                }
                Value::Object(branches) => {
                    let each = |(name, branch): (&String, &Value)| {
                        let pointer = format!("{pointer}/{}", escaped(name));
                        (name.clone(), self.block(branch, &format!("{list}/{name}"), &pointer))
                    };
                    Value::Object(branches.iter().map(each).collect())
                }
                other => other.clone(),
            },
            _ => value.clone(),
        }
    }

    /// Extracts the steps from a list of steps, or from an object that contains one.
    fn block(&mut self, value: &Value, list: &str, pointer: &str) -> Value {
        let Value::Object(fields) = value else { return self.steps(value, list, pointer) };
        let mut fields = fields.clone();
        if let Some(steps) = fields.get_mut("steps") {
            *steps = self.steps(steps, list, &format!("{pointer}/steps"));
        }
        Value::Object(fields)
    }

    fn places(&mut self, places: Map<String, Value>, pointer: &str) {
        for (name, place) in places {
            let key = (DifferenceSubject::Place, name.clone());
            let (subject, pointer) = (DifferenceSubject::Place, format!("{pointer}/{}", escaped(&name)));
            // The order of places has no meaning.
            let list = String::new();
            self.order.push(key.clone());
            self.things.insert(key, Thing { subject, id: Some(name), pointer, list, index: 0, own: place });
        }
    }

    fn transitions(&mut self, value: &Value, pointer: &str) -> Value {
        let Some(items) = things_in(value) else { return value.clone() };
        for (index, item) in items.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            let key = self.begin(DifferenceSubject::Transition, item, "transitions", index, &pointer);
            self.end(&key, Value::Object((*item).clone()));
        }
        STEPS.into()
    }

    /// Adds an element with a unique key, before its nested elements.
    fn begin(
        &mut self,
        subject: DifferenceSubject,
        item: &Map<String, Value>,
        list: &str,
        index: usize,
        pointer: &str,
    ) -> Key {
        let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
        let mut key = (subject, id.clone().unwrap_or_else(|| format!("@{list}/{index}")));
        while self.things.contains_key(&key) {
            // Duplicate ids are reported as a problem when the document is read.
            key.1.push('\'');
        }
        let (pointer, list) = (pointer.to_owned(), list.to_owned());
        self.things.insert(key.clone(), Thing { subject, id, pointer, list, index, own: Value::Null });
        self.order.push(key.clone());
        key
    }

    fn end(&mut self, key: &Key, own: Value) {
        if let Some(thing) = self.things.get_mut(key) {
            thing.own = own;
        }
    }
}

/// Returns the items of a list if all of them are objects.
fn things_in(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    items.iter().map(Value::as_object).collect()
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Returns the elements that are in another list than before, or out of order with most others of their list.
fn moved(old: &Parts, new: &Parts) -> BTreeSet<Key> {
    let mut moved = BTreeSet::new();
    let mut lists: BTreeMap<&str, Vec<(usize, &Key)>> = BTreeMap::new();
    for key in new.order.iter().filter(|key| key.0 != DifferenceSubject::Place) {
        let (is, Some(was)) = (&new.things[key], old.things.get(key)) else { continue };
        match is.list == was.list {
            true => lists.entry(&is.list).or_default().push((was.index, key)),
            false => drop(moved.insert(key.clone())),
        }
    }
    for list in lists.into_values() {
        let mut in_order = longest_rising(&list.iter().map(|(index, _)| *index).collect::<Vec<_>>());
        in_order.reverse();
        for (place, (_, key)) in list.iter().enumerate() {
            match in_order.last() == Some(&place) {
                true => drop(in_order.pop()),
                false => drop(moved.insert((*key).clone())),
            }
        }
    }
    moved
}

/// Returns the indexes of a longest increasing subsequence.
fn longest_rising(numbers: &[usize]) -> Vec<usize> {
    // For each length, the index of the smallest number that ends a subsequence of this length; and the predecessor
    // of each number.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    for (place, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|end| numbers[*end] < *number);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = place,
            None => ends.push(place),
        }
    }
    let mut part = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(place) = next {
        part.push(place);
        next = before[place];
    }
    part.reverse();
    part
}

/// Creates a difference from its kind, pointer, old value and new value.
type Make<'a> = dyn Fn(DifferenceKind, String, Option<Value>, Option<Value>) -> Difference + 'a;

/// The differences found so far, at most [`MAX_DIFFERENCES`].
#[derive(Default)]
struct Told {
    differences: Vec<Difference>,
    untold: usize,
}

impl Told {
    fn add(&mut self, difference: Difference) {
        match self.differences.len() < MAX_DIFFERENCES {
            true => self.differences.push(difference),
            false => self.untold += 1,
        }
    }

    fn finish(mut self) -> Vec<Difference> {
        if self.untold > 0 {
            let (kind, subject, pointer) = (DifferenceKind::More, DifferenceSubject::Document, String::new());
            let to = Some(self.untold.into());
            self.differences.push(Difference { kind, subject, id: None, pointer, from: None, to });
        }
        self.differences
    }

    /// Compares two values, and their parts if both are objects, or lists of the same length.
    fn compare(&mut self, from: Option<&Value>, to: Option<&Value>, pointer: &str, make: &Make<'_>) {
        if from == to || is_nothing_but_steps(from, to) || is_nothing_but_steps(to, from) {
            return;
        }
        match (from, to) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
                for name in names {
                    let pointer = format!("{pointer}/{}", escaped(name));
                    self.compare(old.get(name), new.get(name), &pointer, make);
                }
            }
            (Some(Value::Array(old)), Some(Value::Array(new))) if old.len() == new.len() => {
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    self.compare(Some(old), Some(new), &format!("{pointer}/{index}"), make);
                }
            }
            _ => {
                let (from, to) = (from.cloned(), to.cloned());
                self.add(make(DifferenceKind::Changed, pointer.to_owned(), from, to));
            }
        }
    }
}

/// Returns true if a list of steps was added or removed as a whole. Its steps are reported separately.
fn is_nothing_but_steps(steps: Option<&Value>, other: Option<&Value>) -> bool {
    let is_empty = other.is_none_or(|other| other.as_array().is_some_and(Vec::is_empty));
    steps.and_then(Value::as_str) == Some(STEPS) && is_empty
}
