//! Evaluates the tree of an expression against a scope.
//!
//! Values are borrowed from the scope as long as they are only looked at. What is copied or built is paid for
//! when it is made, so that the budget bounds memory and not only the result.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use serde_json::Value;

use super::ast::{DefaultRule, Kind, Node, Op, Step, StepKind};
use super::number::Number;
use super::{Budget, ExprError, ExprErrorKind, Overspent, Scope, quoted, walk};

/// What a part evaluates to; `None` is undefined. Owned values are already paid for.
pub(super) type Found<'a> = Option<Cow<'a, Value>>;

/// The value of a whole expression.
pub(super) fn value<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<Option<Value>, ExprError> {
    let mut eval = Eval::new(root, source, scope, budget)?;
    let found = eval.node(root)?;
    found.map(|found| eval.owned(found, &root.span)).transpose()
}

/// The truth of a whole expression.
pub(super) fn truth<'a>(
    root: &'a Node,
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &mut Budget,
) -> Result<bool, ExprError> {
    Eval::new(root, source, scope, budget)?.truth(root)
}

pub(super) struct Eval<'a, 'b> {
    source: &'a str,
    scope: &'a dyn Scope,
    budget: &'b mut Budget,
}

/// One side of an operator, or an argument, and the part of the source it came from.
pub(super) struct Side<'a> {
    pub(super) found: Found<'a>,
    pub(super) span: Range<usize>,
    is_literal: bool,
}

impl<'a, 'b> Eval<'a, 'b> {
    fn new(
        root: &Node,
        source: &'a str,
        scope: &'a dyn Scope,
        budget: &'b mut Budget,
    ) -> Result<Self, ExprError> {
        let eval = Eval { source, scope, budget };
        if root.height > eval.budget.depth {
            return Err(eval.overspent(Overspent::Depth, &root.span));
        }
        Ok(eval)
    }

    /// Recursion is bounded by the height of the tree, which the parser keeps within `MAX_DEPTH`.
    pub(super) fn node(&mut self, node: &'a Node) -> Result<Found<'a>, ExprError> {
        self.paid(&node.span, |budget| budget.spend_steps(1))?;
        match &node.kind {
            Kind::Literal(value) => Ok(Some(Cow::Borrowed(value))),
            Kind::Name(name) => Ok(self.scope.root(name).map(Cow::Borrowed)),
            Kind::Group(inner) => self.node(inner),
            Kind::Path { head, steps } => self.path(head, steps),
            Kind::List(items) => self.list(items),
            Kind::Negate(inner) => self.negate(inner, &node.span),
            Kind::Chain { first, rest } => self.chain(first, rest),
            Kind::Conditional { test, then, otherwise } => match (self.truth(test)?, otherwise) {
                (true, _) => self.node(then),
                (false, Some(otherwise)) => self.node(otherwise),
                (false, None) => Ok(None),
            },
            Kind::Default { rule, left, right } => self.default(*rule, left, right),
            Kind::Call { function, arguments } => self.call(*function, arguments, &node.span),
        }
    }

    pub(super) fn truth(&mut self, node: &'a Node) -> Result<bool, ExprError> {
        let found = self.node(node)?;
        self.is_true(&found, &node.span)
    }

    pub(super) fn is_true(&mut self, found: &Found<'a>, span: &Range<usize>) -> Result<bool, ExprError> {
        match found {
            Some(value) => self.paid(span, |budget| walk::is_true(value, budget)),
            None => Ok(false),
        }
    }

    pub(super) fn side(&mut self, node: &'a Node) -> Result<Side<'a>, ExprError> {
        let is_literal = matches!(node.kind, Kind::Literal(_));
        Ok(Side { found: self.node(node)?, span: node.span.clone(), is_literal })
    }

    fn path(&mut self, head: &'a Node, steps: &'a [Step]) -> Result<Found<'a>, ExprError> {
        let mut found = self.node(head)?;
        let mut whole = head.span.clone();
        for step in steps {
            self.paid(&step.span, |budget| budget.spend_steps(1))?;
            let Some(value) = found else { return Ok(None) };
            found = match &step.kind {
                StepKind::Index(index) => item(value, *index),
                StepKind::Field(name) if value.is_array() => {
                    let list = self.quoted(&whole);
                    let message = format!(
                        "{list} is a list, and a field (`{name}`) is taken of one item: pick it with [n]"
                    );
                    return Err(self.error(ExprErrorKind::Type, message, whole.start..step.span.end));
                }
                StepKind::Field(name) => field(value, name),
            };
            whole.end = step.span.end;
        }
        Ok(found)
    }

    /// As in JSONata, an undefined item is left out and a list is spread, unless it is itself written as a
    /// list.
    fn list(&mut self, nodes: &'a [Node]) -> Result<Found<'a>, ExprError> {
        let mut items = Vec::new();
        for node in nodes {
            let Some(found) = self.node(node)? else { continue };
            let value = self.owned(found, &node.span)?;
            self.paid(&node.span, |budget| budget.spend_bytes(1))?;
            match value {
                Value::Array(more) if !is_written_as_list(node) => items.extend(more),
                value => items.push(value),
            }
        }
        Ok(Some(Cow::Owned(Value::Array(items))))
    }

    fn negate(&mut self, inner: &'a Node, span: &Range<usize>) -> Result<Found<'a>, ExprError> {
        let side = self.side(inner)?;
        let Some(number) = self.number(&side, Op::Subtract.text())? else { return Ok(None) };
        self.calculated(number.negated(), span)
    }

    fn default(
        &mut self,
        rule: DefaultRule,
        left: &'a Node,
        right: &'a Node,
    ) -> Result<Found<'a>, ExprError> {
        let found = self.node(left)?;
        let is_taken = match rule {
            DefaultRule::Undefined => found.is_some(),
            DefaultRule::Falsy => self.is_true(&found, &left.span)?,
        };
        if is_taken { Ok(found) } else { self.node(right) }
    }

    fn chain(&mut self, first: &'a Node, rest: &'a [(Op, Node)]) -> Result<Found<'a>, ExprError> {
        if let [(op @ (Op::And | Op::Or), _), ..] = rest {
            return self.logic(first, rest, *op == Op::Or);
        }
        let mut left = self.side(first)?;
        for (op, node) in rest {
            let right = self.side(node)?;
            let span = left.span.start..right.span.end;
            let found = self.apply(left, *op, &right)?;
            left = Side { found, span, is_literal: false };
        }
        Ok(left.found)
    }

    /// A chain of `and` or of `or`: it is over at the first part whose truth is `stop`.
    fn logic(&mut self, first: &'a Node, rest: &'a [(Op, Node)], stop: bool) -> Result<Found<'a>, ExprError> {
        for node in std::iter::once(first).chain(rest.iter().map(|(_, node)| node)) {
            if self.truth(node)? == stop {
                return Ok(truth_value(stop));
            }
        }
        Ok(truth_value(!stop))
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
        let numbers = (self.number(left, op.text())?, self.number(right, op.text())?);
        let (Some(a), Some(b)) = numbers else { return Ok(None) };
        self.calculated(a.calculate(op, b), &(left.span.start..right.span.end))
    }

    fn number(&self, side: &Side<'a>, operator: &str) -> Result<Option<Number>, ExprError> {
        match side.found.as_deref() {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(Number::of(number))),
            Some(_) => Err(self.mistyped(side, &format!("`{operator}` needs numbers"))),
        }
    }

    fn calculated(
        &self,
        result: Result<Number, &'static str>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let number = result.map_err(|problem| {
            let message = format!("{problem}: {}", self.quoted(span));
            self.error(ExprErrorKind::Arithmetic, message, span.clone())
        })?;
        Ok(Some(Cow::Owned(Value::from(number))))
    }

    /// Text already built on the left is extended, so that a long chain of `&` pays for its text once.
    fn concat(&mut self, left: Side<'a>, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let span = left.span.start..right.span.end;
        self.paid(&span, |budget| {
            let mut text = match left.found {
                Some(Cow::Owned(Value::String(text))) => text,
                Some(value) => walk::text(&value, budget)?,
                None => String::new(),
            };
            if let Some(value) = &right.found {
                walk::append_text(value, &mut text, budget)?;
            }
            Ok(Some(Cow::Owned(Value::String(text))))
        })
    }

    /// As in JSONata, nothing equals or differs from what is undefined.
    fn equal(&mut self, left: &Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let (Some(a), Some(b)) = (&left.found, &right.found) else { return Ok(truth_value(false)) };
        let same = self.paid(&(left.span.start..right.span.end), |budget| walk::is_equal(a, b, budget))?;
        Ok(truth_value(same == (op == Op::Equal)))
    }

    /// `in`. JSONata compares members by identity, which for lists and objects means nothing here.
    fn member(&mut self, left: &Side<'a>, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        let (Some(sought), Some(list)) = (&left.found, &right.found) else { return Ok(truth_value(false)) };
        if sought.is_array() || sought.is_object() {
            return Err(self.mistyped(left, "the left side of `in` needs to be a single value"));
        }
        let members = match &**list {
            Value::Array(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        self.paid(&(left.span.start..right.span.end), |budget| {
            for member in members {
                budget.spend_steps(1)?;
                if walk::is_equal(sought, member, budget)? {
                    return Ok(truth_value(true));
                }
            }
            Ok(truth_value(false))
        })
    }

    fn order(&mut self, left: &Side<'a>, op: Op, right: &Side<'a>) -> Result<Found<'a>, ExprError> {
        for side in [left, right] {
            if !matches!(side.found.as_deref(), None | Some(Value::Number(_) | Value::String(_))) {
                return Err(self.unordered(side, op));
            }
        }
        let ordering = match (left.found.as_deref(), right.found.as_deref()) {
            (None, _) | (_, None) => return Ok(None),
            (Some(Value::Number(a)), Some(Value::Number(b))) => Number::of(a).compare(Number::of(b)),
            (Some(Value::String(a)), Some(Value::String(b))) => {
                let span = left.span.start..right.span.end;
                self.paid(&span, |budget| budget.spend_reading(a.len().min(b.len())))?;
                // JSONata's order of strings is that of their UTF-16 code units.
                a.encode_utf16().cmp(b.encode_utf16())
            }
            // The side that is written out is what its author meant.
            _ => return Err(self.unordered(if left.is_literal { right } else { left }, op)),
        };
        Ok(truth_value(match op {
            Op::Less => ordering == Ordering::Less,
            Op::LessOrEqual => ordering != Ordering::Greater,
            Op::Greater => ordering == Ordering::Greater,
            _ => ordering != Ordering::Less,
        }))
    }

    fn unordered(&self, side: &Side<'a>, op: Op) -> ExprError {
        self.mistyped(side, &format!("`{}` needs two numbers or two strings", op.text()))
    }

    /// The error about a part that is not what an operator or function needs.
    pub(super) fn mistyped(&self, side: &Side<'a>, need: &str) -> ExprError {
        let is = match side.found.as_deref() {
            None => "undefined",
            Some(Value::Null) => "null",
            Some(Value::Bool(_)) => "a boolean",
            Some(Value::Number(_)) => "a number",
            Some(Value::String(_)) => "a string",
            Some(Value::Array(_)) => "a list",
            Some(Value::Object(_)) => "an object",
        };
        let message = format!("{} is {is}, and {need}", self.quoted(&side.span));
        self.error(ExprErrorKind::Type, message, side.span.clone())
    }

    fn owned(&mut self, found: Cow<'a, Value>, span: &Range<usize>) -> Result<Value, ExprError> {
        if let Cow::Borrowed(value) = found {
            self.paid(span, |budget| walk::spend_copy(value, budget))?;
        }
        Ok(found.into_owned())
    }

    /// Does what costs something, and makes an error of running out.
    pub(super) fn paid<T>(
        &mut self,
        span: &Range<usize>,
        work: impl FnOnce(&mut Budget) -> Result<T, Overspent>,
    ) -> Result<T, ExprError> {
        work(self.budget).map_err(|what| self.overspent(what, span))
    }

    fn overspent(&self, what: Overspent, span: &Range<usize>) -> ExprError {
        let message = match what {
            Overspent::Steps => "the expression takes more steps than its budget allows",
            Overspent::Bytes => "the expression makes more data than its budget allows",
            Overspent::Depth => "the expression, or a value it makes text of, is nested deeper than allowed",
        };
        self.error(ExprErrorKind::Budget, message, span.clone())
    }

    pub(super) fn quoted(&self, span: &Range<usize>) -> String {
        quoted(self.source, span)
    }

    pub(super) fn error(
        &self,
        kind: ExprErrorKind,
        message: impl Into<String>,
        span: Range<usize>,
    ) -> ExprError {
        ExprError::new(kind, message, span, self.source)
    }
}

pub(super) fn truth_value<'a>(truth: bool) -> Found<'a> {
    Some(Cow::Owned(Value::Bool(truth)))
}

/// What `$coalesce` passes over.
pub(super) fn is_absent(found: &Found<'_>) -> bool {
    matches!(found.as_deref(), None | Some(Value::Null))
}

fn is_written_as_list(node: &Node) -> bool {
    match &node.kind {
        Kind::List(_) => true,
        Kind::Path { head, steps } => {
            matches!(head.kind, Kind::List(_))
                && steps.iter().all(|step| matches!(step.kind, StepKind::Index(_)))
        }
        _ => false,
    }
}

/// A field; of anything but an object it is undefined.
fn field<'a>(value: Cow<'a, Value>, name: &str) -> Found<'a> {
    match value {
        Cow::Borrowed(value) => value.get(name).map(Cow::Borrowed),
        Cow::Owned(mut value) => value.get_mut(name).map(|field| Cow::Owned(field.take())),
    }
}

/// An item of a list. As in JSONata, anything else is a list of itself.
fn item(value: Cow<'_, Value>, index: i64) -> Found<'_> {
    let length = value.as_array().map_or(1, Vec::len);
    let distance = usize::try_from(index.unsigned_abs()).ok()?;
    let place = if index < 0 { length.checked_sub(distance)? } else { distance };
    if place >= length {
        return None;
    }
    match value {
        Cow::Borrowed(Value::Array(items)) => items.get(place).map(Cow::Borrowed),
        Cow::Owned(Value::Array(mut items)) => Some(Cow::Owned(items.swap_remove(place))),
        single => Some(single),
    }
}
