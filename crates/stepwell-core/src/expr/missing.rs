//! Finds the part of an expression that makes it undefined, for error messages.

use std::fmt;
use std::ops::Range;

use super::ast::{Kind, Node, Path};
use super::budget::Budget;
use super::error::{ExprError, quoted};
use super::eval::{Eval, Here, collapsed};
use super::scope::Scope;
use super::value::{Val, View};
use crate::near;

/// Maximum number of list items searched for similar field names.
const ITEMS_LOOKED_AT: usize = 100;

/// The part of an expression that has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The source of the part, such as `vars.lokup`.
    pub part: Box<str>,
    /// A similar name that has a value and was probably intended.
    pub suggestion: Option<Box<str>>,
    start: u32,
}

impl Missing {
    /// Returns the byte range of the part in the expression.
    pub fn span(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.part.len()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no value", quoted(&self.part, &(0..self.part.len())))?;
        match &self.suggestion {
            Some(name) => write!(f, "; did you mean `{name}`?"),
            None => Ok(()),
        }
    }
}

pub(super) fn find<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Option<Missing> {
    let mut eval = Eval::new(root, source, scope, budget).ok()?;
    let top = eval.top();
    // An error here means that something else is wrong, which was already reported.
    eval.missing(root, &top).ok()?
}

impl<'a> Eval<'a, '_> {
    /// Returns the first undefined part of `node` that makes the node undefined.
    fn missing(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Option<Missing>, ExprError> {
        match &node.kind {
            Kind::Path(path) => self.missing_step(path, here),
            Kind::Block { nodes, .. } => {
                let Some((last, before)) = nodes.split_last() else { return Ok(None) };
                // Evaluated for the variables that they bind.
                for node in before {
                    self.node(node, here)?;
                }
                self.missing(last, here)
            }
            Kind::Conditional { test, then, otherwise } => match (self.truth(test, here)?, otherwise) {
                (true, _) => self.missing(then, here),
                (false, Some(otherwise)) => self.missing(otherwise, here),
                (false, None) => Ok(None),
            },
            Kind::Default { right, .. } => self.missing(right, here),
            Kind::Bind { value, .. } => self.missing(value, here),
            Kind::Variable(name) if self.node(node, here)?.is_none() => {
                let bound: Vec<&str> = self.bound.iter().map(|(bound, _)| *bound).collect();
                let suggestion = near::near(name, bound).map(|name| format!("${name}"));
                Ok(Some(self.part(node.span.clone(), suggestion)))
            }
            _ => {
                for child in super::roots::children(node) {
                    if self.node(child, here)?.is_none() {
                        return self.missing(child, here);
                    }
                }
                Ok(None)
            }
        }
    }

    /// Returns the first step of a path that has no result.
    fn missing_step(&mut self, path: &'a Path, here: &Here<'a>) -> Result<Option<Missing>, ExprError> {
        let start = path.steps[0].span.start;
        let mut before = None;
        for (place, step) in path.steps.iter().enumerate() {
            let found = collapsed(Some(self.steps(&path.steps[..=place], here)?), false);
            if found.is_some() {
                before = found;
                continue;
            }
            if place == 0 && !matches!(step.kind, Kind::Name(_)) {
                return Ok(self.missing(step, here)?.or(Some(self.part(step.span.clone(), None))));
            }
            let suggestion = match &step.kind {
                Kind::Name(name) if place == 0 => near::near(name, self.scope.names()).map(str::to_owned),
                Kind::Name(name) => before.as_ref().and_then(|value| near_field(name, value)),
                _ => None,
            };
            // If a predicate removed all items, the name itself is not misspelled.
            let suggestion = suggestion.filter(|_| step.stages().is_empty());
            return Ok(Some(self.part(start..step.span.end, suggestion)));
        }
        Ok(None)
    }

    fn part(&self, span: Range<usize>, suggestion: Option<String>) -> Missing {
        // Cannot fail, because the length of an expression is limited.
        let start = u32::try_from(span.start).unwrap_or(u32::MAX);
        let part = self.source.get(span).unwrap_or_default().into();
        Missing { part, suggestion: suggestion.map(String::into_boxed_str), start }
    }
}

/// Returns the most similar field of an object, or of the objects in a list.
fn near_field(name: &str, value: &Val<'_>) -> Option<String> {
    let items: Vec<Val<'_>> = match value.items() {
        Some(items) => items.iter().take(ITEMS_LOOKED_AT).collect(),
        None => vec![value.clone()],
    };
    items.iter().find_map(|item| {
        let View::Object(fields) = item.view() else { return None };
        let fields = fields.sorted();
        near::near(name, fields.iter().map(|(field, _)| *field)).map(str::to_owned)
    })
}
