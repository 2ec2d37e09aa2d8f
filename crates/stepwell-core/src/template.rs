//! Templates: JSON that contains expressions.
//!
//! Rendering replaces `{"$expr": "…"}` by the value of the expression. `{"$secret": "NAME"}` is not replaced: secrets
//! are resolved later, so that no rendered input ever contains one. For the same reason only the template can name a
//! secret, never the data that flows through it.

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

/// A compiled template or a part of it.
#[derive(Debug, PartialEq)]
enum Part {
    /// A value without any expression in it.
    Constant(Value),
    Expr(Expr),
    List(Vec<Part>),
    Object(Vec<(String, Part)>),
}

/// A problem in the source of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", Place(.pointer))]
pub struct TemplateProblem {
    /// JSON pointer into the template.
    pub pointer: String,
    /// Human-readable description of the problem.
    pub message: String,
}

/// The error for a template that could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {cause}", Place(.pointer))]
pub struct TemplateError {
    /// JSON pointer into the template.
    pub pointer: String,
    pub cause: TemplateCause,
}

/// The cause of a rendering error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateCause {
    /// The evaluation of an expression failed.
    #[error("{0}")]
    Expr(ExprError),
    /// The expression is undefined at the top level or in a list, where a value is required.
    #[error(
        "`{}` is undefined, but only a field of an object can be omitted{}",
        excerpt(.expr, 0),
        .missing.as_ref().map(|missing| format!(": {missing}")).unwrap_or_default()
    )]
    Undefined {
        expr: String,
        /// The part of the expression that has no value.
        missing: Option<Missing>,
    },
    /// The value contains `{"$secret": …}`, so that data would choose a secret.
    #[error("the value of `{}` contains a `$secret` marker: only the template itself may name a secret", excerpt(.expr, 0))]
    Secret { expr: String },
}

/// The expression for the whole payload of the input.
pub(crate) const EVENT: &str = "event";
/// The expression for the output of the only child of a wait.
pub(crate) const CHILD: &str = "event.children[0].end.output ?? null";
const COPIED: [(&str, &str); 2] = [(EVENT, ""), (CHILD, "/children/0/end/output")];

const EXPR: &str = "$expr";
const SECRET: &str = "$secret";

/// The maximum nesting depth of a template, which is also that of `serde_json`.
const MAX_DEPTH: u32 = 128;

impl Template {
    /// Compiles a template, or returns all problems, each with a JSON pointer into `source`.
    pub fn compile(source: &Value) -> Result<Template, Vec<TemplateProblem>> {
        let mut compiler = Compiler::default();
        let part = compiler.part(source, 0);
        if compiler.problems.is_empty() {
            Ok(Template { compiled: Arc::new(Compiled { source: source.clone(), part }) })
        } else {
            Err(compiler.problems)
        }
    }

    /// Returns a JSON pointer into the payload if the template only copies the payload or a part of it.
    pub(crate) fn copied(&self) -> Option<&'static str> {
        let Part::Expr(expr) = &self.compiled.part else { return None };
        COPIED.iter().find(|(source, _)| *source == expr.source()).map(|(_, pointer)| *pointer)
    }

    /// Replaces every expression by its value.
    ///
    /// An undefined expression omits its object field. At the top level or in a list it is an error.
    pub fn render(&self, scope: &dyn Scope, budget: &mut Budget) -> Result<Value, TemplateError> {
        let mut renderer = Renderer { scope, budget, pointer: String::new() };
        renderer.required(&self.compiled.part)
    }

    /// Renders the template as a list. A single value becomes a list of one item.
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

    /// Returns the JSON that the template was compiled from.
    pub fn source(&self) -> &Value {
        &self.compiled.source
    }

    /// Returns true if the template has no expressions, so that it always renders to its source.
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

/// Finds the markers and collects all problems.
#[derive(Default)]
struct Compiler {
    pointer: String,
    problems: Vec<TemplateProblem>,
}

impl Compiler {
    /// Compiles a part. After a problem, the returned part is a placeholder that is not used.
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

    /// Compiles the object as a marker. Returns `None` if it is plain data.
    fn marker(&mut self, fields: &Map<String, Value>) -> Option<Part> {
        let reserved = [EXPR, SECRET].into_iter().find(|key| fields.contains_key(*key));
        let only = if fields.len() == 1 { fields.keys().next() } else { None };
        match (reserved, only) {
            (Some(EXPR), Some(key)) => Some(self.expr(&fields[key])),
            (Some(_), Some(key)) => Some(self.secret(&fields[key], fields)),
            (Some(marker), None) => {
                self.problem(format!("an object with `{marker}` must not have other keys"));
                None
            }
            (None, Some(key)) if key.starts_with('$') => {
                self.problem(format!("`{key}` is not a marker: use `{EXPR}` or `{SECRET}`"));
                None
            }
            _ => None,
        }
    }

    fn expr(&mut self, source: &Value) -> Part {
        let Value::String(source) = source else {
            self.problem(format!("`{EXPR}` must be a string with an expression"));
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
            self.problem(format!("`{SECRET}` must be a string with the name of a secret"));
        }
        Part::Constant(Value::Object(marker.clone()))
    }

    fn problem(&mut self, message: String) {
        self.problems.push(TemplateProblem { pointer: self.pointer.clone(), message });
    }
}

/// Renders a template. The depth of the recursion is bounded by the compiler.
struct Renderer<'a> {
    scope: &'a dyn Scope,
    budget: &'a mut Budget,
    pointer: String,
}

impl Renderer<'_> {
    /// Renders a part that must have a value.
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

    /// Renders a part that may be undefined.
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

/// Returns true if the value contains a secret marker anywhere.
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

/// Appends a segment to a JSON pointer, and returns the previous length for truncation.
fn enter(pointer: &mut String, step: &str) -> usize {
    let outer = pointer.len();
    pointer.push('/');
    pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
    outer
}

/// A JSON pointer in a message. The pointer to the whole template is empty, so it needs words.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "at the top level" } else { self.0 })
    }
}
