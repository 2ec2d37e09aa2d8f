//! What differs between two documents: steps are found again by their ids wherever they stand, everything else by where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

/// So many differences are told; the last one says how many more there are.
pub const MAX_DIFFERENCES: usize = 1_000;

/// Stands for a list of steps, which are compared each by itself.
const STEPS: &str = "(steps)";

/// What a difference is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    /// What is outside of steps, places and transitions.
    Document,
    /// A step.
    Step,
    /// A place.
    Place,
    /// A transition.
    Transition,
}

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DifferenceKind {
    /// It is only in the second document.
    Added,
    /// It is only in the first document.
    Removed,
    /// It stands in another list, or before or behind others than it did.
    Moved,
    /// It says something else.
    Changed,
    /// It is of another type.
    TypeChanged,
    /// There are more differences than are told; `to` says how many.
    More,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// How.
    pub kind: DifferenceKind,
    /// What it is about.
    pub subject: Subject,
    /// The id of the step, place or transition, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A JSON pointer: inside of the step, place or transition if that has changed, in the document otherwise.
    pub pointer: String,
    /// What was there; of something that has moved, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// What is there; of something that has moved, where it is. The steps inside of a step are told by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::Document => "document",
            Subject::Step => "step",
            Subject::Place => "place",
            Subject::Transition => "transition",
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

/// A value on one line, cut where it gets long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Everything that differs between two documents; nothing if they say the same.
///
/// Steps without an id are found again by where they stand.
pub fn diff(from: &Value, to: &Value) -> Vec<Difference> {
    let (old, new) = (Parts::of(from), Parts::of(to));
    let mut told = Told::default();
    told.compare(Some(&old.rest), Some(&new.rest), "", &|kind, pointer, from, to| {
        let subject = Subject::Document;
        Difference { kind, subject, id: None, pointer, from, to }
    });
    let gone = old.order.iter().filter(|key| !new.things.contains_key(*key));
    gone.for_each(|key| told.add(old.things[key].whole(DifferenceKind::Removed)));
    let moved = moved(&old, &new);
    for key in &new.order {
        let is = &new.things[key];
        let Some(was) = old.things.get(key) else {
            told.add(is.whole(DifferenceKind::Added));
            continue;
        };
        if moved.contains(key) {
            let (from, to) = (Some(was.pointer.clone().into()), Some(is.pointer.clone().into()));
            let (kind, pointer) = (DifferenceKind::Moved, is.pointer.clone());
            told.add(Difference { kind, subject: is.subject, id: is.id.clone(), pointer, from, to });
        }
        told.compare(Some(&was.own), Some(&is.own), "", &|kind, pointer, from, to| {
            let kind = if pointer == is.type_pointer() { DifferenceKind::TypeChanged } else { kind };
            Difference { kind, subject: is.subject, id: is.id.clone(), pointer, from, to }
        });
    }
    told.finish()
}

/// What a thing is found again by.
type Key = (Subject, String);

/// A step, a place or a transition.
struct Thing {
    subject: Subject,
    id: Option<String>,
    pointer: String,
    /// The list it is in: the step that has it, and where in that step.
    list: String,
    index: usize,
    /// What it says, without the steps inside of it.
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
            Subject::Place => "/kind",
            _ => "/type",
        }
    }
}

/// A document taken apart.
struct Parts {
    rest: Value,
    things: BTreeMap<Key, Thing>,
    /// In the order of the document.
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

    /// Takes a list of steps apart; gives what stands for it.
    fn steps(&mut self, value: &Value, list: &str, pointer: &str) -> Value {
        let Some(items) = things_in(value) else { return value.clone() };
        for (index, item) in items.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            let key = self.begin(Subject::Step, item, list, index, &pointer);
            let own = item.iter().map(|(field, value)| {
                let inner = format!("{}/{field}", key.1);
                (field.clone(), self.field(field, value, &inner, &format!("{pointer}/{}", escaped(field))))
            });
            let own = Value::Object(own.collect());
            self.end(&key, own);
        }
        STEPS.into()
    }

    /// A field of a step: steps inside of it are taken apart too.
    fn field(&mut self, name: &str, value: &Value, list: &str, pointer: &str) -> Value {
        match name {
            "then" | "else" | "body" | "steps" | "onTimeout" => self.steps(value, list, pointer),
            "catch" | "onError" => self.block(value, list, pointer),
            "branches" => match value {
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

    /// A list of steps, or an object that has one.
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
            let key = (Subject::Place, name.clone());
            let (subject, pointer) = (Subject::Place, format!("{pointer}/{}", escaped(&name)));
            // The order of places says nothing.
            let list = String::new();
            self.order.push(key.clone());
            self.things.insert(key, Thing { subject, id: Some(name), pointer, list, index: 0, own: place });
        }
    }

    fn transitions(&mut self, value: &Value, pointer: &str) -> Value {
        let Some(items) = things_in(value) else { return value.clone() };
        for (index, item) in items.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            let key = self.begin(Subject::Transition, item, "transitions", index, &pointer);
            self.end(&key, Value::Object((*item).clone()));
        }
        STEPS.into()
    }

    /// Finds a key for a thing, and its place before the things inside of it.
    fn begin(
        &mut self,
        subject: Subject,
        item: &Map<String, Value>,
        list: &str,
        index: usize,
        pointer: &str,
    ) -> Key {
        let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
        let mut key = (subject, id.clone().unwrap_or_else(|| format!("@{list}/{index}")));
        while self.things.contains_key(&key) {
            // Two of one id: a document like that is refused elsewhere.
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

/// The objects of a list that has nothing else.
fn things_in(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    items.iter().map(Value::as_object).collect()
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// What stands in another list than before, or is not in the order of most others of its list.
fn moved(old: &Parts, new: &Parts) -> BTreeSet<Key> {
    let mut moved = BTreeSet::new();
    let mut lists: BTreeMap<&str, Vec<(usize, &Key)>> = BTreeMap::new();
    for key in new.order.iter().filter(|key| key.0 != Subject::Place) {
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

/// Where the numbers of a longest rising part of a list are.
fn longest_rising(numbers: &[usize]) -> Vec<usize> {
    // For each length, where the smallest number is that ends a part of that length; and what is before each number.
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

/// Makes a difference of what differs.
type Make<'a> = dyn Fn(DifferenceKind, String, Option<Value>, Option<Value>) -> Difference + 'a;

/// What is told.
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
            let (kind, subject, pointer) = (DifferenceKind::More, Subject::Document, String::new());
            let to = Some(self.untold.into());
            self.differences.push(Difference { kind, subject, id: None, pointer, from: None, to });
        }
        self.differences
    }

    /// Compares two values, and what is in them if both are objects, or lists of one length.
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

/// A list of steps where there was none: the steps are told by themselves.
fn is_nothing_but_steps(steps: Option<&Value>, other: Option<&Value>) -> bool {
    let is_empty = other.is_none_or(|other| other.as_array().is_some_and(Vec::is_empty));
    steps.and_then(Value::as_str) == Some(STEPS) && is_empty
}
