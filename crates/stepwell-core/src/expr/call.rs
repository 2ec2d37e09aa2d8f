//! The functions an expression can call.
//!
//! Undefined arguments follow JSONata 2: every function but `$exists` and `$count` gives undefined for them,
//! `$not` too.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use super::ast::{Function, Node};
use super::eval::{Eval, Found, Side, is_absent, truth_value};
use super::number::Number;
use super::{ExprError, ExprErrorKind, walk};

impl<'a> Eval<'a, '_> {
    /// Calls a function; that it has enough arguments, the parser has seen to.
    pub(super) fn call(
        &mut self,
        function: Function,
        arguments: &'a [Node],
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        if function == Function::Coalesce {
            return self.coalesce(arguments);
        }
        let side = self.side(&arguments[0])?;
        match function {
            Function::Exists => Ok(truth_value(side.found.is_some())),
            Function::Count => Ok(Some(Cow::Owned(Value::from(count(&side.found))))),
            Function::Contains => self.contains(&side, &arguments[1], span),
            _ if side.found.is_none() => Ok(None),
            Function::Not => Ok(truth_value(!self.is_true(&side.found, &side.span)?)),
            Function::Boolean => Ok(truth_value(self.is_true(&side.found, &side.span)?)),
            Function::Number => self.number_of(side),
            Function::String => self.string_of(side, span),
            _ => self.of_text(function, &side, span),
        }
    }

    /// The first argument that is neither undefined nor null; those behind it are not evaluated.
    fn coalesce(&mut self, arguments: &'a [Node]) -> Result<Found<'a>, ExprError> {
        let mut found = None;
        for argument in arguments {
            found = self.node(argument)?;
            if !is_absent(&found) {
                break;
            }
        }
        Ok(found)
    }

    fn contains(
        &mut self,
        side: &Side<'a>,
        part: &'a Node,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let part = self.side(part)?;
        let text = self.text(side, Function::Contains)?;
        let sought = self.text(&part, Function::Contains)?;
        let (Some(text), Some(sought)) = (text, sought) else { return Ok(None) };
        self.paid(span, |budget| budget.spend_reading(text.len()))?;
        Ok(truth_value(text.contains(sought)))
    }

    fn number_of(&mut self, side: Side<'a>) -> Result<Found<'a>, ExprError> {
        let number = match side.found.as_deref() {
            Some(Value::Number(_)) => return Ok(side.found),
            Some(Value::Bool(truth)) => Number::Integer(i128::from(*truth)),
            Some(Value::String(text)) => {
                self.paid(&side.span, |budget| budget.spend_reading(text.len()))?;
                match Number::written(text) {
                    Some(number) => number,
                    None => return Err(self.no_number(&side, text)),
                }
            }
            _ => return Err(self.mistyped(&side, "`$number` needs a string, a number or a boolean")),
        };
        Ok(Some(Cow::Owned(Value::from(number))))
    }

    fn no_number(&self, side: &Side<'a>, text: &str) -> ExprError {
        let shown: String = text.chars().take(40).collect();
        let message = format!("{} is {shown:?}, which is not a number that fits", self.quoted(&side.span));
        self.error(ExprErrorKind::Type, message, side.span.clone())
    }

    fn string_of(&mut self, side: Side<'a>, span: &Range<usize>) -> Result<Found<'a>, ExprError> {
        match side.found {
            Some(value) if !value.is_string() => {
                let text = self.paid(span, |budget| walk::text(&value, budget))?;
                Ok(Some(Cow::Owned(Value::String(text))))
            }
            found => Ok(found),
        }
    }

    /// `$length`, `$lowercase` and `$uppercase`.
    fn of_text(
        &mut self,
        function: Function,
        side: &Side<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let Some(text) = self.text(side, function)? else { return Ok(None) };
        self.paid(span, |budget| budget.spend_reading(text.len()))?;
        if function == Function::Length {
            return Ok(Some(Cow::Owned(Value::from(text.chars().count()))));
        }
        self.paid(span, |budget| budget.spend_bytes(text.len()))?;
        let made = if function == Function::Lowercase { text.to_lowercase() } else { text.to_uppercase() };
        // `ß` and its like grow.
        self.paid(span, |budget| budget.spend_bytes(made.len().saturating_sub(text.len())))?;
        Ok(Some(Cow::Owned(Value::String(made))))
    }

    fn text<'s>(&self, side: &'s Side<'a>, function: Function) -> Result<Option<&'s str>, ExprError> {
        match side.found.as_deref() {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.mistyped(side, &format!("`${}` needs a string", function.name()))),
        }
    }
}

/// The length of a list; as in JSONata, anything else is a list of itself.
fn count(found: &Found<'_>) -> usize {
    match found.as_deref() {
        None => 0,
        Some(Value::Array(items)) => items.len(),
        Some(_) => 1,
    }
}
