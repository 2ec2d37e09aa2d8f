//! The values during evaluation: borrowed from the scope, or computed.
//!
//! A computed list refers to its items without copying them, so a path that maps, filters and sorts only moves
//! pointers. Cloning any value here is cheap. Only the final result is converted to JSON.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::budget::Overspent;
use super::number::Number;

/// Maximum nesting depth of computed lists and objects, which is also that of `serde_json`. Because of it, recursion
/// over computed values is safe.
pub(super) const MAX_HEIGHT: u32 = 128;

/// A value. Borrowed data of any type is a `Ref`.
#[derive(Debug, Clone)]
pub(super) enum Val<'a> {
    Ref(&'a Value),
    Bool(bool),
    Integer(i64),
    Decimal(f64),
    /// A computed text, already charged to the budget.
    Text(Rc<String>),
    List(Rc<List<'a>>),
    Object(Rc<Object<'a>>),
}

/// The result of evaluating a node; `None` is undefined.
pub(super) type Found<'a> = Option<Val<'a>>;

/// A computed list, with the properties that JSONata tracks.
#[derive(Debug, Clone, Default)]
pub(super) struct List<'a> {
    pub(super) items: Vec<Val<'a>>,
    /// True for a result sequence, which is undefined if empty, and is reduced to its item if it has only one.
    pub(super) is_sequence: bool,
    /// True for a sequence that stays a list because of `[]`.
    pub(super) is_kept: bool,
    /// True for a list literal in a path, which is not flattened.
    pub(super) is_written: bool,
    /// True if the list was made by mapping or filtering a list of the data. If it is empty, it counts as an empty
    /// list where a list is needed.
    pub(super) is_of_list: bool,
    height: u32,
}

/// An object that the expression computed.
#[derive(Debug, Clone, Default)]
pub(super) struct Object<'a> {
    pub(super) fields: BTreeMap<String, Val<'a>>,
    height: u32,
}

impl<'a> List<'a> {
    /// Creates a plain list.
    pub(super) fn plain(items: Vec<Val<'a>>) -> Result<Self, Overspent> {
        let height = height(items.iter())?;
        Ok(List { items, height, ..List::default() })
    }

    pub(super) fn sequence(items: Vec<Val<'a>>) -> Result<Self, Overspent> {
        Ok(List { is_sequence: true, ..List::plain(items)? })
    }

    /// Sets whether the list was made from a list of the data.
    pub(super) fn of_list(self, is_of_list: bool) -> Self {
        List { is_of_list, ..self }
    }
}

impl<'a> Object<'a> {
    pub(super) fn new(fields: BTreeMap<String, Val<'a>>) -> Result<Self, Overspent> {
        let height = height(fields.values())?;
        Ok(Object { fields, height })
    }
}

fn height<'v, 'a: 'v>(values: impl Iterator<Item = &'v Val<'a>>) -> Result<u32, Overspent> {
    let below = values.map(|value| match value {
        Val::List(list) => list.height,
        Val::Object(object) => object.height,
        _ => 0,
    });
    let height = below.max().unwrap_or(0) + 1;
    if height > MAX_HEIGHT { Err(Overspent::Depth) } else { Ok(height) }
}

/// A view of a value by its type, for borrowed and computed values.
pub(super) enum View<'v, 'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(&'v str),
    List(Items<'v, 'a>),
    Object(Fields<'v, 'a>),
}

/// The items of a list.
#[derive(Clone, Copy)]
pub(super) enum Items<'v, 'a> {
    Data(&'a [Value]),
    Made(&'v [Val<'a>]),
}

/// The fields of an object.
#[derive(Clone, Copy)]
pub(super) enum Fields<'v, 'a> {
    Data(&'a Map<String, Value>),
    Made(&'v BTreeMap<String, Val<'a>>),
}

impl<'a> Val<'a> {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Val::Text(Rc::new(text.into()))
    }

    pub(super) fn list(list: List<'a>) -> Self {
        Val::List(Rc::new(list))
    }

    pub(super) fn view<'v>(&'v self) -> View<'v, 'a> {
        match self {
            Val::Ref(value) => match value {
                Value::Null => View::Null,
                Value::Bool(truth) => View::Bool(*truth),
                Value::Number(number) => View::Number(Number::of(number)),
                Value::String(text) => View::Text(text),
                Value::Array(items) => View::List(Items::Data(items)),
                Value::Object(fields) => View::Object(Fields::Data(fields)),
            },
            Val::Bool(truth) => View::Bool(*truth),
            Val::Integer(integer) => View::Number(Number::Integer((*integer).into())),
            Val::Decimal(decimal) => View::Number(Number::Decimal(*decimal)),
            Val::Text(text) => View::Text(text),
            Val::List(list) => View::List(Items::Made(&list.items)),
            Val::Object(object) => View::Object(Fields::Made(&object.fields)),
        }
    }

    /// Returns the items if the value is a list.
    pub(super) fn items(&self) -> Option<Items<'_, 'a>> {
        match self {
            Val::Ref(Value::Array(items)) => Some(Items::Data(items)),
            Val::List(list) => Some(Items::Made(&list.items)),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Val::Ref(Value::String(text)) => Some(text),
            Val::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_number(&self) -> Option<Number> {
        match self.view() {
            View::Number(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self, Val::List(_) | Val::Ref(Value::Array(_)))
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Val::Ref(Value::Null))
    }

    pub(super) fn is_sequence(&self) -> bool {
        matches!(self, Val::List(list) if list.is_sequence)
    }

    pub(super) fn is_written(&self) -> bool {
        matches!(self, Val::List(list) if list.is_written)
    }

    /// Returns the type of the value for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.view() {
            View::Null => "null",
            View::Bool(_) => "a boolean",
            View::Number(_) => "a number",
            View::Text(_) => "a string",
            View::List(_) => "a list",
            View::Object(_) => "an object",
        }
    }
}

impl From<bool> for Val<'_> {
    fn from(truth: bool) -> Self {
        Val::Bool(truth)
    }
}

impl From<Number> for Val<'_> {
    /// Converts a number. A result fits in an `i64` by construction.
    fn from(number: Number) -> Self {
        match number {
            Number::Integer(integer) => match i64::try_from(integer) {
                Ok(integer) => Val::Integer(integer),
                Err(_) => Val::Decimal(integer as f64),
            },
            Number::Decimal(decimal) => Val::Decimal(decimal),
        }
    }
}

impl From<usize> for Val<'_> {
    fn from(count: usize) -> Self {
        Val::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl<'v, 'a: 'v> Items<'v, 'a> {
    pub(super) fn len(self) -> usize {
        match self {
            Items::Data(items) => items.len(),
            Items::Made(items) => items.len(),
        }
    }

    pub(super) fn get(self, index: usize) -> Found<'a> {
        match self {
            Items::Data(items) => items.get(index).map(Val::Ref),
            Items::Made(items) => items.get(index).cloned(),
        }
    }

    pub(super) fn iter(self) -> impl DoubleEndedIterator<Item = Val<'a>> + 'v {
        let (data, made) = match self {
            Items::Data(items) => (items, [].as_slice()),
            Items::Made(items) => ([].as_slice(), items),
        };
        data.iter().map(Val::Ref).chain(made.iter().cloned())
    }
}

impl<'v, 'a: 'v> Fields<'v, 'a> {
    pub(super) fn len(self) -> usize {
        match self {
            Fields::Data(fields) => fields.len(),
            Fields::Made(fields) => fields.len(),
        }
    }

    pub(super) fn get(self, name: &str) -> Found<'a> {
        match self {
            Fields::Data(fields) => fields.get(name).map(Val::Ref),
            Fields::Made(fields) => fields.get(name).cloned(),
        }
    }

    /// Returns the fields sorted by name, even if a host enables `preserve_order` of `serde_json`.
    pub(super) fn sorted(self) -> Vec<(&'v str, Val<'a>)> {
        let mut fields: Vec<(&'v str, Val<'a>)> = match self {
            Fields::Data(fields) => {
                fields.iter().map(|(name, value)| (name.as_str(), Val::Ref(value))).collect()
            }
            Fields::Made(fields) => {
                fields.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
            }
        };
        fields.sort_unstable_by_key(|(name, _)| *name);
        fields
    }
}
