//! Scopes: the values that an expression can read.

use serde_json::{Map, Value};

use crate::time::Timestamp;

/// The values that an expression can read: root values by name, and optionally variables and a clock.
pub trait Scope {
    /// Returns the value of a root name. A name without a value evaluates to undefined.
    fn root(&self, name: &str) -> Option<&Value>;

    /// Returns all root names, for suggestions and for `$`.
    fn names(&self) -> Vec<&str>;

    /// Returns the time for `$now()` and similar functions: the recorded time of the run, never the system clock.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// Returns the value of the variable `$name`. Variables that the expression binds itself take precedence.
    fn variable(&self, name: &str) -> Option<&Value> {
        let _ = name;
        None
    }

    /// Returns the input on which the expression is evaluated.
    fn input(&self) -> Input<'_> {
        Input::Roots
    }
}

/// The input on which an expression is evaluated.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Names at the top level are the roots of the scope.
    Roots,
    /// Names at the top level are fields of this value, or of its items if it is a list. `None` is undefined.
    Value(Option<&'a Value>),
}

impl Scope for Map<String, Value> {
    fn root(&self, name: &str) -> Option<&Value> {
        self.get(name)
    }

    fn names(&self) -> Vec<&str> {
        self.keys().map(String::as_str).collect()
    }
}

/// A scope over borrowed values. If a name occurs twice, the first one wins.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'a>(pub &'a [(&'a str, &'a Value)]);

impl Scope for Roots<'_> {
    fn root(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// A scope that is one JSON value, as in JSONata: names at the top level are its fields.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    input: Option<&'a Value>,
    bindings: Option<&'a Map<String, Value>>,
    now: Option<Timestamp>,
}

impl<'a> Data<'a> {
    /// Creates a scope with this value as the input.
    pub fn new(input: &'a Value) -> Self {
        Data { input: Some(input), bindings: None, now: None }
    }

    /// Creates a scope without an input, in which every name is undefined.
    pub fn nothing() -> Self {
        Data { input: None, bindings: None, now: None }
    }

    /// Adds variables, with names without `$`.
    #[must_use]
    pub fn with_bindings(self, bindings: &'a Map<String, Value>) -> Self {
        Data { bindings: Some(bindings), ..self }
    }

    /// Sets the time that `$now()` returns.
    #[must_use]
    pub fn with_now(self, now: Timestamp) -> Self {
        Data { now: Some(now), ..self }
    }
}

impl Scope for Data<'_> {
    fn root(&self, name: &str) -> Option<&Value> {
        self.input?.get(name)
    }

    fn names(&self) -> Vec<&str> {
        let fields = self.input.and_then(Value::as_object);
        fields.into_iter().flat_map(Map::keys).map(String::as_str).collect()
    }

    fn now(&self) -> Option<Timestamp> {
        self.now
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        self.bindings?.get(name)
    }

    fn input(&self) -> Input<'_> {
        Input::Value(self.input)
    }
}
