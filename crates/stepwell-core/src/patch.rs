//! Differences between two JSON values, which can be stored, sent, or applied to a newer value.
//!
//! An action works on the context that it was given. If another branch changes the run in the meantime, only the
//! fields that the action changed may be written. Objects are compared field by field. All other values, including
//! lists, are replaced as a whole.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A set of field changes. Applying it to the old value gives the new value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(Vec<Edit>);

/// A change of one field: the path of object keys, and the new value. `None` removes the field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Edit {
    path: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "present")]
    value: Option<Value>,
}

impl Patch {
    /// Returns a patch without changes.
    pub fn none() -> Self {
        Patch::default()
    }

    /// Returns a patch that sets one top-level field.
    pub fn set(key: impl Into<String>, value: Value) -> Self {
        Patch(vec![Edit { path: vec![key.into()], value: Some(value) }])
    }

    /// Computes the changes from `before` to `after`.
    pub fn between(before: &Value, after: &Value) -> Self {
        let mut edits = Vec::new();
        compare(before, after, &mut Vec::new(), &mut edits);
        Patch(edits)
    }

    /// Returns true if the patch has no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each change as the path of object keys and the new value. `None` removes the field.
    pub fn edits(&self) -> impl Iterator<Item = (&[String], Option<&Value>)> {
        self.0.iter().map(|edit| (edit.path.as_slice(), edit.value.as_ref()))
    }

    /// Applies the changes to `document`. A parent that is no longer an object becomes one.
    pub fn apply(&self, document: &mut Value) {
        for edit in &self.0 {
            put(document, &edit.path, edit.value.as_ref());
        }
    }
}

fn compare(before: &Value, after: &Value, path: &mut Vec<String>, edits: &mut Vec<Edit>) {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        if before != after {
            edits.push(Edit { path: path.clone(), value: Some(after.clone()) });
        }
        return;
    };
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        let mut gone = path.clone();
        gone.push(key.clone());
        edits.push(Edit { path: gone, value: None });
    }
    for (key, value) in new {
        path.push(key.clone());
        match old.get(key) {
            Some(known) => compare(known, value, path, edits),
            None => edits.push(Edit { path: path.clone(), value: Some(value.clone()) }),
        }
        path.pop();
    }
}

fn put(document: &mut Value, path: &[String], value: Option<&Value>) {
    let Some((key, rest)) = path.split_first() else {
        *document = value.cloned().unwrap_or(Value::Null);
        return;
    };
    if !document.is_object() {
        if value.is_none() {
            return;
        }
        *document = Value::Object(Map::new());
    }
    let Value::Object(fields) = document else { return };
    match (rest.is_empty(), value) {
        (true, None) => drop(fields.remove(key)),
        (true, Some(value)) => drop(fields.insert(key.clone(), value.clone())),
        (false, None) if !fields.contains_key(key) => {}
        (false, _) => put(fields.entry(key.clone()).or_insert(Value::Null), rest, value),
    }
}

/// Distinguishes "set to null" from "removed" in JSON: a value is written as a list of one item.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(value: &Option<Value>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|value| [value]).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
        Ok(Option::<[Value; 1]>::deserialize(from)?.map(|[value]| value))
    }
}
