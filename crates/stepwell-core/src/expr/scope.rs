//! What an expression can see.

use serde_json::{Map, Value};

use crate::time::Timestamp;

/// What an expression can see: root names to values, and if its owner has them, variables and a clock.
pub trait Scope {
    /// The value of a root name; a name that is not there evaluates to undefined.
    fn root(&self, name: &str) -> Option<&Value>;

    /// Every root name, for suggestions and for `$`.
    fn names(&self) -> Vec<&str>;

    /// What `$now()` and its like read: the recorded instant of the run, never the system's clock.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// The value of `$name`, unless the expression itself has bound it.
    fn variable(&self, name: &str) -> Option<&Value> {
        let _ = name;
        None
    }

    /// What the expression is evaluated on.
    fn input(&self) -> Input<'_> {
        Input::Roots
    }
}

/// What an expression is evaluated on.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Names at the top are the roots of the scope.
    Roots,
    /// Names at the top are fields of this value, or of its items if it is a list; `None` is undefined.
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

/// A scope over borrowed values; the first of two equal names wins.
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

/// A scope that is one JSON value, as JSONata itself has it: names at the top are its fields.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    input: Option<&'a Value>,
    bindings: Option<&'a Map<String, Value>>,
    now: Option<Timestamp>,
}

impl<'a> Data<'a> {
    /// On this value.
    pub fn new(input: &'a Value) -> Self {
        Data { input: Some(input), bindings: None, now: None }
    }

    /// On nothing: every name is undefined.
    pub fn nothing() -> Self {
        Data { input: None, bindings: None, now: None }
    }

    /// With these variables, named without their `$`.
    #[must_use]
    pub fn with_bindings(self, bindings: &'a Map<String, Value>) -> Self {
        Data { bindings: Some(bindings), ..self }
    }

    /// With this instant as `$now()`.
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
