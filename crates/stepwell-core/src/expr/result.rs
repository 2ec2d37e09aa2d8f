//! The result of a whole expression, in the forms that callers need.

use serde_json::Value;

use super::ast::{Kind, Node};
use super::budget::Budget;
use super::error::ExprError;
use super::eval::{Eval, Here};
use super::scope::Scope;
use super::value::{Found, Val};
use super::walk;

pub(super) fn value<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<Option<Value>, ExprError> {
    let mut eval = Eval::new(root, source, scope, budget)?;
    let found = eval.node(root, &eval.top())?;
    found.map(|found| eval.json(found, root)).transpose()
}

pub(super) fn truth<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<bool, ExprError> {
    let mut eval = Eval::new(root, source, scope, budget)?;
    eval.truth(root, &eval.top())
}

pub(super) fn verdict<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<Option<bool>, ExprError> {
    let mut eval = Eval::new(root, source, scope, budget)?;
    let found = eval.node(root, &eval.top())?;
    if found.is_none() {
        return Ok(None);
    }
    eval.is_true(&found, &root.span).map(Some)
}

pub(super) fn list<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<Option<Vec<Value>>, ExprError> {
    let mut eval = Eval::new(root, source, scope, budget)?;
    let Some(found) = eval.uncollapsed(root, &eval.top())? else { return Ok(None) };
    if let Val::List(list) = &found
        && list.items.is_empty()
        && list.is_sequence
        && !list.is_of_list
    {
        return Ok(None);
    }
    Ok(Some(match eval.json(found, root)? {
        Value::Array(items) => items,
        single => vec![single],
    }))
}

impl<'a> Eval<'a, '_> {
    /// Evaluates a node without reducing its last sequence. Also looks through conditionals, defaults and blocks.
    fn uncollapsed(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        if node.more.is_some() {
            return self.raw(node, here);
        }
        match &node.kind {
            Kind::Conditional { test, then, otherwise } => match (self.truth(test, here)?, otherwise) {
                (true, _) => self.uncollapsed(then, here),
                (false, Some(otherwise)) => self.uncollapsed(otherwise, here),
                (false, None) => Ok(None),
            },
            Kind::Default { rule, left, right } => {
                let found = self.uncollapsed(left, here)?;
                let value = super::eval::collapsed(found.clone(), left.keeps_list());
                if self.is_taken(*rule, &value, &left.span)? {
                    Ok(found)
                } else {
                    self.uncollapsed(right, here)
                }
            }
            Kind::Block { nodes, .. } => {
                let outside = self.bound.len();
                let mut found = None;
                for (place, node) in nodes.iter().enumerate() {
                    found = match place + 1 == nodes.len() {
                        true => self.uncollapsed(node, here)?,
                        false => self.node(node, here)?,
                    };
                }
                self.bound.truncate(outside);
                Ok(found)
            }
            _ => self.raw(node, here),
        }
    }

    fn json(&mut self, found: Val<'a>, node: &Node) -> Result<Value, ExprError> {
        self.paid(&node.span, |budget| walk::to_json(found, budget))
    }
}
