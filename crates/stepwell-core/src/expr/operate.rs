//! The operators: arithmetic, text, comparison and logic.

use std::cmp::Ordering;
use std::ops::Range;
use std::rc::Rc;

use super::ast::{Node, Op};
use super::error::{ExprError, ExprErrorKind};
use super::eval::{Eval, Here, Side};
use super::number::Number;
use super::value::{Found, Items, Val, View};
use super::walk;

impl<'a> Eval<'a, '_> {
    pub(super) fn negate(
        &mut self,
        inner: &'a Node,
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let side = self.side(inner, here)?;
        let Some(number) = self.number("D1002", &side, Op::Subtract.text())? else { return Ok(None) };
        self.calculated(number.negated(), span)
    }

    pub(super) fn chain(
        &mut self,
        first: &'a Node,
        rest: &'a [(Op, Node)],
        here: &Here<'a>,
    ) -> Result<Found<'a>, ExprError> {
        if let [(op @ (Op::And | Op::Or), _), ..] = rest {
            return self.logic(first, rest, *op == Op::Or, here);
        }
        let mut left = self.side(first, here)?;
        for (op, node) in rest {
            let right = self.side(node, here)?;
            let span = left.span.start..right.span.end;
            let found = self.apply(left, *op, &right)?;
            left = Side { found, span, is_literal: false };
        }
        Ok(left.found)
    }

    /// Evaluates a chain of `and` or `or`. It ends at the first part whose truth value is `stop`.
    fn logic(
        &mut self,
        first: &'a Node,
        rest: &'a [(Op, Node)],
        stop: bool,
        here: &Here<'a>,
    ) -> Result<Found<'a>, ExprError> {
        for node in std::iter::once(first).chain(rest.iter().map(|(_, node)| node)) {
            if self.truth(node, here)? == stop {
                return Ok(Some(Val::Bool(stop)));
            }
        }
        Ok(Some(Val::Bool(!stop)))
    }

    fn apply(&mut self, left: Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        match op {
            Op::Concat => self.concat(left, right),
            Op::Equal | Op::NotEqual => self.equal(&left, op, right),
            Op::In => self.member(&left, right),
            Op::Less | Op::LessOrEqual | Op::Greater | Op::GreaterOrEqual => self.order(&left, op, right),
            _ => self.arithmetic(&left, op, right),
        }
    }

    fn arithmetic(&mut self, left: &Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let numbers = (self.number("T2001", left, op.text())?, self.number("T2002", right, op.text())?);
        let (Some(a), Some(b)) = numbers else { return Ok(None) };
        self.calculated(a.calculate(op, b), &(left.span.start..right.span.end))
    }

    fn number(
        &self,
        code: &'static str,
        side: &Side<'a>,
        operator: &str,
    ) -> Result<Option<Number>, ExprError> {
        match side.found.as_ref().map(Val::as_number) {
            None => Ok(None),
            Some(Some(number)) => Ok(Some(number)),
            Some(None) => Err(self.mistyped(code, side, &format!("`{operator}` needs numbers"))),
        }
    }

    pub(super) fn calculated(
        &self,
        result: Result<Number, &'static str>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let number = result.map_err(|problem| {
            let message = format!("{problem}: {}", self.quoted(span));
            self.error(ExprErrorKind::Arithmetic, "D1001", message, span.clone())
        })?;
        Ok(Some(Val::from(number)))
    }

    /// Concatenates texts. A text that was already built on the left is extended, so that a long chain of `&` pays
    /// for its text once.
    fn concat(&mut self, left: Side<'a>, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let span = left.span.start..right.span.end;
        self.paid(&span, |budget| {
            let mut text = match left.found {
                Some(Val::Text(text)) => match Rc::try_unwrap(text) {
                    Ok(text) => text,
                    Err(shared) => walk::text(&Val::Text(shared), budget)?,
                },
                Some(value) => walk::text(&value, budget)?,
                None => String::new(),
            };
            if let Some(value) = &right.found {
                walk::append_text(value, &mut text, budget)?;
            }
            Ok(Some(Val::text(text)))
        })
    }

    /// Compares for equality. As in JSONata, the result is false for both `=` and `!=` if a side is undefined.
    fn equal(&mut self, left: &Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let (Some(a), Some(b)) = (&left.found, &right.found) else { return Ok(Some(Val::Bool(false))) };
        let same = self.paid(&(left.span.start..right.span.end), |budget| walk::is_equal(a, b, budget))?;
        Ok(Some(Val::Bool(same == (op == Op::Equal))))
    }

    /// Evaluates `in`. A right side that is not a list counts as a list of one item.
    fn member(&mut self, left: &Side<'a>, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let (Some(sought), Some(list)) = (&left.found, &right.found) else {
            return Ok(Some(Val::Bool(false)));
        };
        let single = std::slice::from_ref(list);
        let members = list.items().unwrap_or(Items::Made(single));
        let found = self.paid(&(left.span.start..right.span.end), |budget| {
            for member in members.iter() {
                budget.spend_steps(1)?;
                if walk::is_equal(sought, &member, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })?;
        Ok(Some(Val::Bool(found)))
    }

    fn order(&mut self, left: &Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let is_ordered = |found: &Found<'a>| {
            found.as_ref().is_none_or(|value| matches!(value.view(), View::Number(_) | View::Text(_)))
        };
        for side in [left, right] {
            if !is_ordered(&side.found) {
                return Err(self.unordered("T2010", side, op));
            }
        }
        let (Some(a), Some(b)) = (&left.found, &right.found) else { return Ok(None) };
        let ordering = match (a.view(), b.view()) {
            (View::Number(a), View::Number(b)) => a.compare(b),
            (View::Text(a), View::Text(b)) => {
                self.compared_texts(a, b, &(left.span.start..right.span.end))?
            }
            // The literal side is assumed to be intended, so the error names the other side.
            _ => return Err(self.unordered("T2009", if left.is_literal { right } else { left }, op)),
        };
        Ok(Some(Val::Bool(match op {
            Op::Less => ordering == Ordering::Less,
            Op::LessOrEqual => ordering != Ordering::Greater,
            Op::Greater => ordering == Ordering::Greater,
            _ => ordering != Ordering::Less,
        })))
    }

    fn unordered(&self, code: &'static str, side: &Side<'a>, op: Op) -> ExprError {
        self.mistyped(code, side, &format!("`{}` needs two numbers or two strings", op.text()))
    }
}
