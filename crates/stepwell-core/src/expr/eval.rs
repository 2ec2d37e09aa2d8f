//! Evaluates the syntax tree of an expression against a scope.
//!
//! Values are borrowed from the scope as long as they are only read. Copied or computed values are charged to the
//! budget when they are created, so that the budget bounds memory and not only the result.

use std::ops::Range;
use std::rc::Rc;

use serde_json::Value;

use super::ast::{DefaultRule, Kind, Node};
use super::budget::{Budget, Overspent};
use super::error::{ExprError, ExprErrorKind, quoted};
use super::scope::{Input, Scope};
use super::value::{Found, List, Object, Val};
use super::walk;

/// The current context of names and `$`.
#[derive(Clone)]
pub(super) enum Here<'a> {
    /// The roots of the scope.
    Roots,
    /// The whole input, which is a list. JSONata treats it as one item until a path maps over it.
    Whole(&'a Value),
    Item(Found<'a>),
}

pub(super) struct Eval<'a, 'b> {
    pub(super) source: &'a str,
    pub(super) scope: &'a dyn Scope,
    budget: &'b mut Budget,
    /// The variables bound so far, innermost last. A block removes its variables at its end.
    pub(super) bound: Vec<(&'a str, Found<'a>)>,
    /// The roots as one object, created on first use.
    roots: Found<'a>,
}

/// One side of an operator, or an argument, with its position in the source.
pub(super) struct Side<'a> {
    pub(super) found: Found<'a>,
    pub(super) span: Range<usize>,
    pub(super) is_literal: bool,
}

impl<'a, 'b> Eval<'a, 'b> {
    pub(super) fn new(
        root: &Node,
        source: &'a str,
        scope: &'a dyn Scope,
        budget: &'b mut Budget,
    ) -> Result<Self, ExprError> {
        let eval = Eval { source, scope, budget, bound: Vec::new(), roots: None };
        if root.height > eval.budget.depth {
            return Err(eval.overspent(Overspent::Depth, &root.span));
        }
        Ok(eval)
    }

    /// Returns the context in which the whole expression is evaluated.
    pub(super) fn top(&self) -> Here<'a> {
        match self.scope.input() {
            Input::Roots => Here::Roots,
            Input::Value(Some(list @ Value::Array(_))) => Here::Whole(list),
            Input::Value(value) => Here::Item(value.map(Val::Ref)),
        }
    }

    /// Evaluates a node. A sequence of one item is reduced to the item, and an empty sequence is undefined.
    ///
    /// The recursion is bounded by the height of the tree, which the parser limits to `MAX_DEPTH`.
    pub(super) fn node(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        let found = self.raw(node, here)?;
        Ok(collapsed(found, node.keeps_list()))
    }

    /// Evaluates a node without reducing its sequence.
    pub(super) fn raw(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        self.paid(&node.span, |budget| budget.spend_steps(1))?;
        let mut found = self.kind(node, here)?;
        for predicate in node.predicates() {
            found = self.filtered(predicate, found)?;
        }
        match node.group() {
            Some(pairs) => self.grouped(pairs, &Here::Item(found), &node.span),
            None => Ok(found),
        }
    }

    fn kind(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        match &node.kind {
            Kind::Literal(value) => Ok(Some(Val::Ref(value))),
            Kind::Path(path) => self.path(path, here, &node.span),
            Kind::Name(name) => self.field(name, here, &node.span),
            Kind::Wildcard => self.wildcard(here, &node.span),
            Kind::Descendants => self.descendants(here, &node.span),
            Kind::Here => self.value_of(here, &node.span),
            Kind::Top => {
                let top = self.top();
                self.value_of(&top, &node.span)
            }
            Kind::Variable(name) => Ok(self.variable(name)),
            Kind::Block { nodes, .. } => self.block(nodes, here),
            Kind::List { items, is_written } => self.list(items, *is_written, here, &node.span),
            Kind::Object(pairs) => self.grouped(pairs, here, &node.span),
            // Always a step of a path, and the path sorts its items.
            Kind::Sort(_) => self.value_of(here, &node.span),
            Kind::Negate(inner) => self.negate(inner, here, &node.span),
            Kind::Chain { first, rest } => self.chain(first, rest, here),
            Kind::Conditional { test, then, otherwise } => match (self.truth(test, here)?, otherwise) {
                (true, _) => self.node(then, here),
                (false, Some(otherwise)) => self.node(otherwise, here),
                (false, None) => Ok(None),
            },
            Kind::Default { rule, left, right } => self.default(*rule, left, right, here),
            Kind::Bind { name, value } => {
                let found = self.node(value, here)?;
                self.bound.push((name, found.clone()));
                Ok(found)
            }
            Kind::Call { function, arguments } => self.call(*function, arguments, here, &node.span),
        }
    }

    /// Returns the value of `$`.
    pub(super) fn value_of(&mut self, here: &Here<'a>, span: &Range<usize>) -> Result<Found<'a>, ExprError> {
        match here {
            Here::Whole(list) => Ok(Some(Val::Ref(list))),
            Here::Item(found) => Ok(found.clone()),
            Here::Roots => {
                if self.roots.is_none() {
                    let scope = self.scope;
                    let names = scope.names();
                    self.paid(span, |budget| budget.spend_steps(names.len()))?;
                    let fields = names
                        .into_iter()
                        .filter_map(|name| scope.root(name).map(|value| (name.to_owned(), Val::Ref(value))));
                    let object = self.paid(span, |_| Object::new(fields.collect()))?;
                    self.roots = Some(Val::Object(Rc::new(object)));
                }
                Ok(self.roots.clone())
            }
        }
    }

    fn variable(&self, name: &str) -> Found<'a> {
        match self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            Some((_, found)) => found.clone(),
            None => self.scope.variable(name).map(Val::Ref),
        }
    }

    fn block(&mut self, nodes: &'a [Node], here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        let outside = self.bound.len();
        let mut found = None;
        for node in nodes {
            found = self.node(node, here)?;
        }
        self.bound.truncate(outside);
        Ok(found)
    }

    fn default(
        &mut self,
        rule: DefaultRule,
        left: &'a Node,
        right: &'a Node,
        here: &Here<'a>,
    ) -> Result<Found<'a>, ExprError> {
        let found = self.node(left, here)?;
        if self.is_taken(rule, &found, &left.span)? { Ok(found) } else { self.node(right, here) }
    }

    /// Returns true if the left side of `??` or `?:` is the result.
    pub(super) fn is_taken(
        &mut self,
        rule: DefaultRule,
        found: &Found<'a>,
        span: &Range<usize>,
    ) -> Result<bool, ExprError> {
        match rule {
            DefaultRule::Undefined => Ok(found.is_some()),
            DefaultRule::Falsy => self.is_true(found, span),
        }
    }

    pub(super) fn truth(&mut self, node: &'a Node, here: &Here<'a>) -> Result<bool, ExprError> {
        let found = self.node(node, here)?;
        self.is_true(&found, &node.span)
    }

    pub(super) fn is_true(&mut self, found: &Found<'a>, span: &Range<usize>) -> Result<bool, ExprError> {
        match found {
            Some(Val::Bool(truth)) => Ok(*truth),
            Some(value) => self.paid(span, |budget| walk::is_true(value, budget)),
            None => Ok(false),
        }
    }

    pub(super) fn side(&mut self, node: &'a Node, here: &Here<'a>) -> Result<Side<'a>, ExprError> {
        let is_literal = matches!(node.kind, Kind::Literal(_));
        Ok(Side { found: self.node(node, here)?, span: node.span.clone(), is_literal })
    }

    /// Creates a plain list.
    pub(super) fn plain(&mut self, items: Vec<Val<'a>>, span: &Range<usize>) -> Result<Val<'a>, ExprError> {
        self.paid(span, |_| List::plain(items).map(Val::list))
    }

    /// Creates a result sequence. `is_of_list` is true if it was made from a list of the data.
    pub(super) fn sequence(
        &mut self,
        items: Vec<Val<'a>>,
        is_of_list: bool,
        span: &Range<usize>,
    ) -> Result<Val<'a>, ExprError> {
        self.paid(span, |_| Ok(Val::list(List::sequence(items)?.of_list(is_of_list))))
    }

    /// Creates the error for a value of the wrong type for an operator or function.
    pub(super) fn mistyped(&self, code: &'static str, side: &Side<'a>, need: &str) -> ExprError {
        let is = side.found.as_ref().map_or("undefined", Val::kind);
        let message = format!("{} is {is}, but {need}", self.quoted(&side.span));
        self.error(ExprErrorKind::Type, code, message, side.span.clone())
    }

    /// Does work that spends the budget, and returns an error if the budget is exceeded.
    pub(super) fn paid<T>(
        &mut self,
        span: &Range<usize>,
        work: impl FnOnce(&mut Budget) -> Result<T, Overspent>,
    ) -> Result<T, ExprError> {
        work(self.budget).map_err(|what| self.overspent(what, span))
    }

    fn overspent(&self, what: Overspent, span: &Range<usize>) -> ExprError {
        let (code, message) = match what {
            Overspent::Steps => ("budget", "the expression takes more steps than its budget allows"),
            Overspent::Bytes => ("budget", "the expression produces more data than its budget allows"),
            Overspent::Depth => {
                ("tooDeep", "the expression, or a value that it produces, is nested too deeply")
            }
        };
        self.error(ExprErrorKind::Budget, code, message, span.clone())
    }

    pub(super) fn quoted(&self, span: &Range<usize>) -> String {
        quoted(self.source, span)
    }

    pub(super) fn error(
        &self,
        kind: ExprErrorKind,
        code: &'static str,
        message: impl Into<String>,
        span: Range<usize>,
    ) -> ExprError {
        ExprError::new(kind, code, message, span, self.source)
    }
}

/// Reduces a sequence of one item to the item, unless the list is kept. An empty sequence becomes undefined.
pub(super) fn collapsed(found: Found<'_>, keeps_list: bool) -> Found<'_> {
    match found {
        Some(Val::List(mut list)) if list.is_sequence => {
            if keeps_list && !list.is_kept {
                Rc::make_mut(&mut list).is_kept = true;
            }
            match list.items.as_slice() {
                [] => None,
                [item] if !list.is_kept => Some(item.clone()),
                _ => Some(Val::List(list)),
            }
        }
        found => found,
    }
}
