//! Expressions: the small, total language of guards and inputs.
//!
//! An expression is stored inside a definition and read again years later, so it is a contract. The dialect
//! is therefore a strict subset of JSONata: whatever parses here means the same there, and everything else is
//! refused when it is parsed, by name. Evaluation cannot loop, do IO or grow without bound; it spends a
//! [`Budget`].
//!
//! What is ours and not JSONata's: integers are exact to 64 bits, overflow and division by zero are errors,
//! `==` is another spelling of `=`, `$coalesce` exists (it passes over null too, which `??` does not), a function
//! may be written without its `$`, and the text of an object has its keys sorted.

mod ast;
mod call;
mod eval;
mod lex;
mod number;
mod parse;
mod refuse;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

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
    roots: Vec<String>,
}

impl Expr {
    /// Parses an expression, or says what is wrong with it and where.
    pub fn parse(source: &str) -> Result<Expr, ExprError> {
        let (root, roots) = parse::parse(source)?;
        Ok(Expr { parsed: Arc::new(Parsed { source: source.to_owned(), root, roots }) })
    }

    /// The expression's value; `Ok(None)` is JSONata's undefined.
    pub fn eval(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Option<Value>, ExprError> {
        eval::value(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// JSONata truth of the result; undefined is false.
    pub fn truth(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<bool, ExprError> {
        eval::truth(&self.parsed.root, &self.parsed.source, scope, budget)
    }

    /// The text it was parsed from.
    pub fn source(&self) -> &str {
        &self.parsed.source
    }

    /// The root names it reads (`context`, `payload`, …), sorted.
    pub fn roots(&self) -> Vec<&str> {
        self.parsed.roots.iter().map(String::as_str).collect()
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

/// What an expression can see: root names to values.
pub trait Scope {
    /// The value of a root name; a name that is not there evaluates to undefined.
    fn root(&self, name: &str) -> Option<&Value>;

    /// Every root name, for suggestions.
    fn names(&self) -> Vec<&str>;
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

/// What evaluation may still spend. Evaluating takes from it, so one budget can bound many expressions
/// together.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Steps: one for each part evaluated, each value walked and each 256 bytes of text read.
    pub steps: u32,
    /// Bytes of the values made, counted roughly as their JSON text.
    pub result_bytes: usize,
    /// How deep an expression may nest; not spent.
    pub depth: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { steps: 100_000, result_bytes: 256 * 1024, depth: MAX_DEPTH }
    }
}

/// Which part of a budget is used up.
#[derive(Debug, Clone, Copy)]
enum Overspent {
    Steps,
    Bytes,
    Depth,
}

impl Budget {
    fn spend_steps(&mut self, steps: usize) -> Result<(), Overspent> {
        let left = u32::try_from(steps).ok().and_then(|steps| self.steps.checked_sub(steps));
        self.steps = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Steps)
    }

    /// Reading text is cheap, but not free.
    fn spend_reading(&mut self, bytes: usize) -> Result<(), Overspent> {
        self.spend_steps(bytes / 256)
    }

    fn spend_bytes(&mut self, bytes: usize) -> Result<(), Overspent> {
        let left = self.result_bytes.checked_sub(bytes);
        self.result_bytes = left.unwrap_or(0);
        left.map(|_| ()).ok_or(Overspent::Bytes)
    }
}

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at {} of `{}`)", position(.expr, .span.start), excerpt(.expr, .span.start))]
pub struct ExprError {
    /// What sort of problem it is.
    pub kind: ExprErrorKind,
    /// The problem, for a person.
    pub message: String,
    /// The bytes of the expression it is about.
    pub span: Range<usize>,
    /// The expression; of one that is too long to be parsed, its beginning.
    pub expr: String,
}

/// The sorts of problem an expression can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExprErrorKind {
    /// It does not parse.
    Syntax,
    /// It uses something that is not part of the dialect.
    Unsupported,
    /// A value is of a type that an operator or function cannot take.
    Type,
    /// An overflow, or a division by zero.
    Arithmetic,
    /// It costs more than its budget.
    Budget,
}

impl ExprError {
    fn new(kind: ExprErrorKind, message: impl Into<String>, span: Range<usize>, expr: &str) -> Self {
        ExprError { kind, message: message.into(), span, expr: expr.to_owned() }
    }
}

/// The part of the source at `span`, on one line and shortened, for messages.
fn quoted(source: &str, span: &Range<usize>) -> String {
    const LONGEST: usize = 60;
    let text = source.get(span.clone()).unwrap_or_default();
    let mut shown: String = text.chars().take(LONGEST).map(one_line).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

fn position(expr: &str, at: usize) -> String {
    let before = expr.get(..at).unwrap_or(expr);
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    match before.matches('\n').count() {
        0 => format!("character {column}"),
        breaks => format!("line {}, character {column}", breaks + 1),
    }
}

/// The surroundings of `at`: an expression can be 8 KiB long, a message should not be.
pub(crate) fn excerpt(expr: &str, at: usize) -> String {
    const BEFORE: usize = 40;
    const LONGEST: usize = 100;
    let total = expr.chars().count();
    let before = expr.get(..at).unwrap_or(expr).chars().count();
    let start = if total <= LONGEST { 0 } else { before.saturating_sub(BEFORE) };
    let mut shown = String::from(if start > 0 { "…" } else { "" });
    shown.extend(expr.chars().skip(start).take(LONGEST).map(one_line));
    if total > start + LONGEST {
        shown.push('…');
    }
    shown
}

fn one_line(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
