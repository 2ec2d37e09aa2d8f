//! Templates: JSON with expressions in it, from which an input is made.
//!
//! `{"$expr": "…"}` is replaced by the expression's value. `{"$secret": "NAME"}` stays as it is: secrets are
//! resolved later and elsewhere, so that no rendered input ever holds one. For the same reason a secret can
//! only be named by the template, never by the data that flows through it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::expr::{Budget, Expr, ExprError, Missing, Scope, excerpt};

/// A compiled template; cloning it is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    compiled: Arc<Compiled>,
}

#[derive(Debug, PartialEq)]
struct Compiled {
    source: Value,
    part: Part,
}

/// A template's value, or a place in it.
#[derive(Debug, PartialEq)]
enum Part {
    /// Nothing dynamic from here down.
    Constant(Value),
    Expr(Expr),
    List(Vec<Part>),
    Object(Vec<(String, Part)>),
}

/// One thing that is wrong with a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", Place(.pointer))]
pub struct TemplateProblem {
    /// Where it is: a JSON pointer into the template.
    pub pointer: String,
    /// What is wrong.
    pub message: String,
}

/// Why a template could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {cause}", Place(.pointer))]
pub struct TemplateError {
    /// Where it happened: a JSON pointer into the template.
    pub pointer: String,
    /// What happened.
    pub cause: TemplateCause,
}

/// What can happen to an expression of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateCause {
    /// It failed.
    #[error("{0}")]
    Expr(ExprError),
    /// It has no value, at the top or in a list, where a value has to be.
    #[error(
        "`{}` is undefined, and only a field of an object can be left out{}",
        excerpt(.expr, 0),
        .missing.as_ref().map(|missing| format!(": {missing}")).unwrap_or_default()
    )]
    Undefined {
        /// The expression.
        expr: String,
        /// The part of it that is not there.
        missing: Option<Missing>,
    },
    /// Its value has a `{"$secret": …}` in it: data would choose a secret.
    #[error("the value of `{}` has a `$secret` in it, which only the template itself may have", excerpt(.expr, 0))]
    Secret {
        /// The expression.
        expr: String,
    },
}

/// The event at hand.
pub(crate) const EVENT: &str = "event";
/// What the one child of a wait gave.
pub(crate) const CHILD: &str = "event.children[0].end.output ?? null";
const COPIED: [(&str, &str); 2] = [(EVENT, ""), (CHILD, "/children/0/end/output")];

const EXPR: &str = "$expr";
const SECRET: &str = "$secret";

/// How deep a template may nest: as deep as `serde_json` reads.
const MAX_DEPTH: u32 = 128;

impl Template {
    /// Compiles a template, or reports everything that is wrong with it, each with a JSON pointer into
    /// `source`.
    pub fn compile(source: &Value) -> Result<Template, Vec<TemplateProblem>> {
        let mut compiler = Compiler::default();
        let part = compiler.part(source, 0);
        if compiler.problems.is_empty() {
            Ok(Template { compiled: Arc::new(Compiled { source: source.clone(), part }) })
        } else {
            Err(compiler.problems)
        }
    }

    /// It is nothing but the event at hand, or a part of it: a JSON pointer to that.
    pub(crate) fn copied(&self) -> Option<&'static str> {
        let Part::Expr(expr) = &self.compiled.part else { return None };
        COPIED.iter().find(|(source, _)| *source == expr.source()).map(|(_, pointer)| *pointer)
    }

    /// Replaces every expression by its value. One that is undefined leaves its object field out; at the top
    /// or in a list that is an error.
    pub fn render(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Value, TemplateError> {
        let mut renderer = Renderer { scope, budget, pointer: String::new() };
        renderer.required(&self.compiled.part)
    }

    /// The same where a list is wanted: a sequence of one is a list of one.
    pub fn render_list(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Vec<Value>, TemplateError> {
        let mut renderer = Renderer { scope, budget, pointer: String::new() };
        let Part::Expr(expr) = &self.compiled.part else {
            let value = renderer.required(&self.compiled.part)?;
            return Ok(match value {
                Value::Array(items) => items,
                single => vec![single],
            });
        };
        let found = expr.eval_list(renderer.scope, renderer.budget);
        let items = found.map_err(|error| renderer.error(TemplateCause::Expr(error)))?;
        let items = items.ok_or_else(|| renderer.undefined(expr))?;
        if items.iter().any(has_secret) {
            return Err(renderer.error(TemplateCause::Secret { expr: expr.source().to_owned() }));
        }
        Ok(items)
    }

    /// The JSON it was compiled from.
    pub fn source(&self) -> &Value {
        &self.compiled.source
    }

    /// Whether it holds no expression, so that it always renders to its source.
    pub fn is_constant(&self) -> bool {
        matches!(self.compiled.part, Part::Constant(_))
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
        let source = Value::deserialize(deserializer)?;
        Template::compile(&source).map_err(|problems| {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            serde::de::Error::custom(lines.join("; "))
        })
    }
}

/// Finds the markers and collects every problem on the way.
#[derive(Default)]
struct Compiler {
    pointer: String,
    problems: Vec<TemplateProblem>,
}

impl Compiler {
    /// After a problem, what is returned does not matter.
    fn part(&mut self, source: &Value, depth: u32) -> Part {
        if depth > MAX_DEPTH {
            self.problem(format!("the template is nested deeper than {MAX_DEPTH} levels"));
            return Part::Constant(Value::Null);
        }
        match source {
            Value::Array(items) => self.list(items, depth),
            Value::Object(fields) => self.object(fields, depth),
            scalar => Part::Constant(scalar.clone()),
        }
    }

    fn list(&mut self, items: &[Value], depth: u32) -> Part {
        let mut parts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let outer = enter(&mut self.pointer, &index.to_string());
            parts.push(self.part(item, depth + 1));
            self.pointer.truncate(outer);
        }
        let is_constant = parts.iter().all(|part| matches!(part, Part::Constant(_)));
        if is_constant { Part::Constant(Value::Array(items.to_vec())) } else { Part::List(parts) }
    }

    fn object(&mut self, fields: &Map<String, Value>, depth: u32) -> Part {
        if let Some(marker) = self.marker(fields) {
            return marker;
        }
        let mut parts = Vec::with_capacity(fields.len());
        for (key, field) in fields {
            let outer = enter(&mut self.pointer, key);
            parts.push((key.clone(), self.part(field, depth + 1)));
            self.pointer.truncate(outer);
        }
        let is_constant = parts.iter().all(|(_, part)| matches!(part, Part::Constant(_)));
        if is_constant { Part::Constant(Value::Object(fields.clone())) } else { Part::Object(parts) }
    }

    /// The object as a marker; `None` if it is plain data.
    fn marker(&mut self, fields: &Map<String, Value>) -> Option<Part> {
        let reserved = [EXPR, SECRET].into_iter().find(|key| fields.contains_key(*key));
        let only = if fields.len() == 1 { fields.keys().next() } else { None };
        match (reserved, only) {
            (Some(EXPR), Some(key)) => Some(self.expr(&fields[key])),
            (Some(_), Some(key)) => Some(self.secret(&fields[key], fields)),
            (Some(marker), None) => {
                self.problem(format!("an object with `{marker}` has no other keys"));
                None
            }
            (None, Some(key)) if key.starts_with('$') => {
                self.problem(format!("`{key}` is not a marker: only `{EXPR}` and `{SECRET}` are"));
                None
            }
            _ => None,
        }
    }

    fn expr(&mut self, source: &Value) -> Part {
        let Value::String(source) = source else {
            self.problem(format!("`{EXPR}` takes an expression as a string"));
            return Part::Constant(Value::Null);
        };
        match Expr::parse(source) {
            Ok(expr) => Part::Expr(expr),
            Err(error) => {
                self.problem(error.to_string());
                Part::Constant(Value::Null)
            }
        }
    }

    fn secret(&mut self, name: &Value, marker: &Map<String, Value>) -> Part {
        if name.as_str().is_none_or(str::is_empty) {
            self.problem(format!("`{SECRET}` takes the name of a secret as a string"));
        }
        Part::Constant(Value::Object(marker.clone()))
    }

    fn problem(&mut self, message: String) {
        self.problems.push(TemplateProblem { pointer: self.pointer.clone(), message });
    }
}

/// Makes the value; its recursion is bounded by the compiler's.
struct Renderer<'a> {
    scope: &'a dyn Scope,
    budget: &'a mut Budget,
    pointer: String,
}

impl Renderer<'_> {
    /// A part where a value has to be.
    fn required(&mut self, part: &Part) -> Result<Value, TemplateError> {
        match part {
            Part::Constant(value) => Ok(value.clone()),
            Part::List(parts) => self.list(parts),
            Part::Object(parts) => self.object(parts),
            Part::Expr(expr) => self.expr(expr)?.ok_or_else(|| self.undefined(expr)),
        }
    }

    fn undefined(&self, expr: &Expr) -> TemplateError {
        let missing = expr.missing(self.scope, &mut Budget::default());
        self.error(TemplateCause::Undefined { expr: expr.source().to_owned(), missing })
    }

    /// A part that may be left out.
    fn optional(&mut self, part: &Part) -> Result<Option<Value>, TemplateError> {
        match part {
            Part::Expr(expr) => self.expr(expr),
            other => self.required(other).map(Some),
        }
    }

    fn list(&mut self, parts: &[Part]) -> Result<Value, TemplateError> {
        let mut items = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let outer = enter(&mut self.pointer, &index.to_string());
            items.push(self.required(part)?);
            self.pointer.truncate(outer);
        }
        Ok(Value::Array(items))
    }

    fn object(&mut self, parts: &[(String, Part)]) -> Result<Value, TemplateError> {
        let mut fields = Map::new();
        for (key, part) in parts {
            let outer = enter(&mut self.pointer, key);
            if let Some(value) = self.optional(part)? {
                fields.insert(key.clone(), value);
            }
            self.pointer.truncate(outer);
        }
        Ok(Value::Object(fields))
    }

    fn expr(&mut self, expr: &Expr) -> Result<Option<Value>, TemplateError> {
        let value =
            expr.eval(self.scope, self.budget).map_err(|error| self.error(TemplateCause::Expr(error)))?;
        if value.as_ref().is_some_and(has_secret) {
            return Err(self.error(TemplateCause::Secret { expr: expr.source().to_owned() }));
        }
        Ok(value)
    }

    fn error(&self, cause: TemplateCause) -> TemplateError {
        TemplateError { pointer: self.pointer.clone(), cause }
    }
}

/// Whether there is a marker of a secret anywhere in a value.
pub(crate) fn has_secret(value: &Value) -> bool {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) if fields.contains_key(SECRET) => return true,
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    false
}

/// Adds a step to a JSON pointer, and returns the length to cut it back to.
fn enter(pointer: &mut String, step: &str) -> usize {
    let outer = pointer.len();
    pointer.push('/');
    pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
    outer
}

/// A JSON pointer in a message; that of the whole template is empty and would not be seen.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "at the top" } else { self.0 })
    }
}
