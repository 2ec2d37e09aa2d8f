//! Parses the suffixes of a value: path steps, predicates, sorting and grouping.

use super::Parser;
use crate::expr::MAX_DEPTH;
use crate::expr::ast::{Kind, Node, Path, Term};
use crate::expr::error::{ExprError, ExprErrorKind};
use crate::expr::lex::Token;
use crate::expr::refuse;

/// The binding power of a path step.
const STEP: u8 = 75;

impl Parser<'_> {
    /// Parses `left.right`. Both become steps of one path.
    pub(super) fn step(&mut self, left: Node) -> Result<Node, ExprError> {
        if left.group().is_some() {
            return Err(self.unsupported(refuse::BEHIND_GROUP, self.span.clone()));
        }
        self.advance()?;
        if self.token == Token::End && self.open == 0 {
            return Err(self.misplaced("S0207", "the name of a field"));
        }
        let right = self.expression(STEP)?;
        let (start, keeps) = (left.span.start, left.keeps_list());
        let mut path = self.as_path(left)?;
        match right.kind {
            Kind::Path(more) => path.steps.extend(more.steps),
            _ => path.steps.push(self.as_step(right)?),
        }
        path.keeps_list |= path.steps.iter().any(Node::keeps_list);
        let last = path.steps.len() - 1;
        for place in [0, last] {
            if let Kind::List { is_written, .. } = &mut path.steps[place].kind {
                *is_written = true;
            }
        }
        let mut node = self.path(path, start)?;
        if keeps {
            node.more().keeps_list = true;
        }
        Ok(node)
    }

    fn path(&self, mut path: Path, start: usize) -> Result<Node, ExprError> {
        path.is_plain =
            path.steps.iter().all(|step| matches!(step.kind, Kind::Name(_)) && step.more.is_none());
        let height = path.steps.iter().map(|step| step.height).max();
        self.node(Kind::Path(path), start..self.end, height)
    }

    /// Returns the path of `node`, or a path that starts with it.
    fn as_path(&mut self, node: Node) -> Result<Path, ExprError> {
        if let Kind::Path(path) = node.kind {
            return Ok(path);
        }
        Ok(Path { steps: vec![self.as_first(node)?], keeps_list: false, is_plain: false })
    }

    /// Converts the first step of a path. A string is the name of a field; other literals are errors.
    fn as_first(&mut self, mut node: Node) -> Result<Node, ExprError> {
        match node.kind {
            Kind::Literal(serde_json::Value::String(name)) => node.kind = Kind::Name(name),
            Kind::Literal(_) => self.wrong_step(self.no_step(&node)),
            _ => {}
        }
        Ok(node)
    }

    /// Converts a node to a step. Its predicates apply to the result of the step for each item.
    fn as_step(&mut self, node: Node) -> Result<Node, ExprError> {
        let mut node = self.as_first(node)?;
        if let Some(more) = &mut node.more {
            more.stages = std::mem::take(&mut more.predicates);
        }
        Ok(node)
    }

    /// Parses `left[…]`, or `left[]` to keep a list.
    pub(super) fn predicate(&mut self, mut left: Node) -> Result<Node, ExprError> {
        let start = self.span.start;
        self.advance()?;
        if self.take("]")? {
            keep_list(&mut left);
            left.span.end = self.end;
            return Ok(left);
        }
        let span = start..self.span.end;
        let predicate = self.inside(|parser| parser.expression(0))?;
        self.expect("]", start)?;
        if left.group().is_some() {
            let message = "a predicate cannot follow a grouping: put the grouping in parentheses";
            self.wrong_step(self.error(ExprErrorKind::Syntax, "S0209", message, span));
            return Ok(left);
        }
        let height = predicate.height + 1;
        match &mut left.kind {
            Kind::Path(path) => {
                let last = path.steps.len() - 1;
                let step = &mut path.steps[last];
                step.more().stages.push(predicate);
                step.span.end = self.end;
                step.height = step.height.max(height);
                path.is_plain = false;
                left.height = left.height.max(height + 1);
            }
            _ => {
                left.more().predicates.push(predicate);
                left.height = left.height.max(height);
            }
        }
        self.suffixes(left)
    }

    /// Parses `left{key: value, …}`.
    pub(super) fn group(&mut self, mut left: Node) -> Result<Node, ExprError> {
        let span = self.span.clone();
        let pairs = self.pairs()?;
        if left.group().is_some() {
            let message = "there can be only one grouping: put the first in parentheses";
            self.wrong_step(self.error(ExprErrorKind::Syntax, "S0210", message, span));
            return Ok(left);
        }
        let below = pairs.iter().map(|(key, value)| key.height.max(value.height)).max().unwrap_or(0);
        left.height = left.height.max(below + 1);
        left.more().group = Some(pairs);
        self.suffixes(left)
    }

    /// Parses `left^(term, >term, …)`.
    pub(super) fn sort(&mut self, left: Node) -> Result<Node, ExprError> {
        let at = self.span.start;
        if left.group().is_some() {
            return Err(self.unsupported(refuse::BEHIND_GROUP, self.span.clone()));
        }
        self.advance()?;
        let open = self.span.start;
        if !self.take("(")? {
            if self.token == Token::Symbol("/") {
                return Err(self.unsupported(refuse::REGEX, self.span.clone()));
            }
            let code = if self.token == Token::End { "S0203" } else { "S0202" };
            return Err(self.misplaced(code, "`(` after `^`"));
        }
        let terms = self.comma_separated(")", open, |parser| {
            let is_descending = parser.take(">")?;
            if !is_descending {
                parser.take("<")?;
            }
            Ok(Term { node: parser.expression(0)?, is_descending })
        })?;
        if terms.is_empty() {
            let message = "the sort key in the parentheses is missing";
            return Err(self.error(ExprErrorKind::Syntax, "S0211", message, open..self.end));
        }
        let height = terms.iter().map(|term| term.node.height).max();
        let step = self.node(Kind::Sort(terms), at..self.end, height)?;
        let (start, keeps) = (left.span.start, left.keeps_list());
        let mut path = self.as_path(left)?;
        path.steps.push(step);
        let mut node = self.path(path, start)?;
        if keeps {
            node.more().keeps_list = true;
        }
        Ok(node)
    }

    /// Extends the span of `left` to its new suffix, and checks the height.
    fn suffixes(&self, mut left: Node) -> Result<Node, ExprError> {
        left.span.end = self.end;
        if left.height > MAX_DEPTH { Err(self.too_deep(left.span)) } else { Ok(left) }
    }
}

/// Marks a node with `[]`. On a name it also marks the path, so that it applies to the other steps of the path.
fn keep_list(node: &mut Node) {
    let is_named = node.group().is_none();
    if let Kind::Path(path) = &mut node.kind
        && let [step] = path.steps.as_mut_slice()
        && is_named
    {
        step.more().keeps_list = true;
        path.keeps_list = true;
        path.is_plain = false;
    }
    node.more().keeps_list = true;
}
