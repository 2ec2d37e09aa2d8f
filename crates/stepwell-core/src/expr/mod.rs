//! Expressions: the small, total language of guards and inputs.
//!
//! An expression is stored inside a definition and read again years later, so it is a contract. The dialect
//! is therefore a subset of JSONata: whatever parses here means the same there, and everything else is
//! refused when it is parsed, by name. Evaluation cannot loop, do IO or grow without bound; it spends a
//! [`Budget`].
//!
//! What is ours and not JSONata's is listed with its reasons in `docs/expressions.md`: integers are exact to
//! 64 bits, overflow and division by zero are errors, the fields of an object are sorted, and a few more.

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

pub use budget::Budget;
pub(crate) use error::excerpt;
pub use error::{ExprError, ExprErrorKind};
pub use function::{FunctionGroup, FunctionInfo, functions};
pub use missing::Missing;
pub use scope::{Data, Input, Roots, Scope};

/// The version of the dialect, to be kept beside stored expressions.
pub const DIALECT: u32 = 1;

/// The longest expression that is parsed, in bytes.
pub const MAX_SOURCE_BYTES: usize = 8 * 1024;

/// How deep an expression may nest.
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
    /// Parses an expression, or says what is wrong with it and where.
    pub fn parse(source: &str) -> Result<Expr, ExprError> {
        let root = parse::parse(source)?;
        let roots = roots::of(&root);
        Ok(Expr { parsed: Arc::new(Parsed { source: source.to_owned(), root, roots }) })
    }

    /// The expression's value; `Ok(None)` is JSONata's undefined. A sequence of one is its item.
    pub fn eval(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<Value>, ExprError> {
        result::value(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// The expression's value where a list is wanted: a list that happens to have one item stays a list, and
    /// one that comes out empty is empty. A single value is a list of itself. `Ok(None)` if the expression
    /// leads nowhere.
    pub fn eval_list(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<Vec<Value>>, ExprError> {
        result::list(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// JSONata truth of the result; undefined is false.
    pub fn truth(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<bool, ExprError> {
        result::truth(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// The same; `Ok(None)` if the result is undefined.
    pub fn verdict(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<bool>, ExprError> {
        result::verdict(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// Of an expression whose value is undefined, the first part of it that is not there. `None` if there is
    /// no such part to name, or if the budget does not suffice to find it.
    pub fn missing(&self, scope: &dyn Scope, budget: &mut Budget) -> Option<Missing> {
        missing::find(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.parsed.source
    }

    /// The root names it reads (`context`, `payload`, …), sorted. A name behind a step or in a predicate is
    /// about an item and not a root.
    pub fn roots(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.parsed.roots.iter().map(|(name, _)| name.as_str()).collect();
        names.dedup();
        names
    }

    /// The fields of a root that it reads by name: of `vars` in `vars.order.id` it is `order`.
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
