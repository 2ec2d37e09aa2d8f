//! Expressions: the language of guards and inputs.
//!
//! An expression is stored inside a definition and read again years later, so its meaning must never change. The
//! dialect is therefore a subset of JSONata. Every expression that parses here has the same meaning in JSONata.
//! Everything else is rejected by name when it is parsed. Evaluation always terminates, does no I/O, and is bounded
//! by a [`Budget`].
//!
//! The differences from JSONata and their reasons are listed in `docs/expressions.md`: integers are exact to 64 bits,
//! overflow and division by zero are errors, the fields of an object are sorted, and a few more.

mod ast;
mod budget;
mod build;
mod call;
mod error;
mod eval;
mod function;
mod functions;
mod lex;
mod missing;
mod number;
mod operate;
mod parse;
mod path;
mod picture;
mod refuse;
mod result;
mod roots;
mod scope;
mod signature;
mod sort;
mod value;
mod walk;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use budget::{Budget, MAX_COPIED_BYTES};
pub(crate) use error::excerpt;
pub use error::{ExprError, ExprErrorKind};
pub use function::{FunctionGroup, FunctionInfo, functions};
pub use missing::Missing;
pub use scope::{Data, Input, Roots, Scope};

/// The version of the dialect. It is stored with expressions.
pub const DIALECT: u32 = 1;

/// The maximum length of an expression, in bytes.
pub const MAX_SOURCE_BYTES: usize = 8 * 1024;

/// The maximum nesting depth of an expression.
pub const MAX_DEPTH: u32 = 64;

/// A parsed expression; cloning it is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    parsed: Arc<Parsed>,
}

#[derive(Debug, PartialEq)]
struct Parsed {
    source: String,
    root: ast::Node,
    roots: Vec<roots::Read>,
}

impl Expr {
    /// Parses an expression, or returns the error and its position.
    pub fn parse(source: &str) -> Result<Expr, ExprError> {
        let root = parse::parse(source)?;
        let roots = roots::of(&root);
        Ok(Expr { parsed: Arc::new(Parsed { source: source.to_owned(), root, roots }) })
    }

    /// Evaluates the expression. `Ok(None)` is JSONata's undefined. A sequence of one item is reduced to the item.
    pub fn eval(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<Value>, ExprError> {
        result::value(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Evaluates the expression as a list.
    ///
    /// A list with one item stays a list, and an empty list stays empty. A single value becomes a list of one item.
    /// The result is `Ok(None)` if the expression is undefined.
    pub fn eval_list(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<Vec<Value>>, ExprError> {
        result::list(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Evaluates the expression as a condition, by JSONata's rules for truth. Undefined is false.
    pub fn truth(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<bool, ExprError> {
        result::truth(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Evaluates the expression as a condition. Returns `Ok(None)` if it is undefined.
    pub fn verdict(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<bool>, ExprError> {
        result::verdict(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Returns the first part without a value in an expression that is undefined. Returns `None` if there is no such
    /// part to name, or if the budget is too small to find it.
    pub fn missing(&self, scope: &dyn Scope, budget: &mut Budget) -> Option<Missing> {
        missing::find(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Returns the source of the expression.
    pub fn source(&self) -> &str {
        &self.parsed.source
    }

    /// Returns the root names that the expression reads (`context`, `payload`, …), sorted. A name after a step or in
    /// a predicate refers to an item and is not a root.
    pub fn roots(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.parsed.roots.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }

    /// Returns the fields of a root that the expression reads by name. For `vars` in `vars.order.id` this is `order`.
    pub fn fields_of(&self, root: &str) -> Vec<&str> {
        let read = self.parsed.roots.iter().filter(|(name, _)| name == root);
        read.filter_map(|(_, field)| field.as_deref()).collect()
    }
}

impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.source())
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expr, D::Error> {
        let source = String::deserialize(deserializer)?;
        Expr::parse(&source).map_err(serde::de::Error::custom)
    }
}
