//! Implementation of the functions for numbers.

use serde_json::{Map, Value};

use crate::expr::ast::Op;
use crate::expr::call::Call;
use crate::expr::error::ExprError;
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::number::Number;
use crate::expr::picture::{self, integer::Whole};
use crate::expr::value::{Found, Val, View};
use crate::expr::walk;

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn number_function(&mut self, mut call: Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::Number => return self.number_of(&mut call),
            Function::Sum | Function::Max | Function::Min | Function::Average => return self.total(&call),
            Function::ParseInteger => return self.parse_integer(&call),
            _ => {}
        }
        let Some(number) = call.number(0) else { return Ok(None) };
        let result = match call.function {
            Function::Abs if number.is_negative() => number.negated(),
            Function::Abs => Ok(number),
            Function::Floor => Ok(number.to_whole(f64::floor)),
            Function::Ceil => Ok(number.to_whole(f64::ceil)),
            Function::Round => match call.number(1) {
                Some(digits) if !digits.is_whole() => Err("the number of digits must be a whole number"),
                digits => Ok(number.rounded(digits.map_or(0, Number::floor_index))),
            },
            Function::Power => return self.power(number, &call),
            Function::Sqrt => return self.root(number, &call),
            Function::FormatNumber => return self.format_number(number, &call),
            Function::FormatBase => return self.format_base(number, &call),
            _ => return self.format_integer(number, &call),
        };
        self.calculated(result, &call.span)
    }

    fn number_of(&mut self, call: &mut Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(value) = call.take(0) else { return Ok(None) };
        let number = match value.view() {
            View::Bool(truth) => Number::Integer(i128::from(truth)),
            View::Text(text) => {
                self.paid(&call.span, |budget| budget.spend_reading(text.len()))?;
                let Some(number) = Number::written(text) else {
                    let shown: String = text.chars().take(40).collect();
                    let span = call.nodes.first().map_or(&call.span, |node| &node.span);
                    let message = format!(
                        "{} is {shown:?}, which is not a valid number or is out of range",
                        self.quoted(span)
                    );
                    return Err(self.bad_value("D3030", message, span));
                };
                number
            }
            _ => return Ok(Some(value)),
        };
        Ok(Some(Val::from(number)))
    }

    /// Computes `sum`, `max`, `min` or `average`.
    fn total(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(items) = call.items(0) else { return Ok(None) };
        if items.is_empty() && call.function != Function::Sum {
            return Ok(None);
        }
        let mut best: Found<'a> = None;
        let mut sum = Ok(Number::Integer(0));
        for item in &items {
            let Some(number) = item.as_number() else { continue };
            if matches!(call.function, Function::Sum | Function::Average) {
                sum = sum.and_then(|sum| sum.calculate(Op::Add, number));
                continue;
            }
            let order = best.as_ref().and_then(Val::as_number).map(|best| number.compare(best));
            let is_better = order.is_none_or(|order| match call.function {
                Function::Max => order.is_gt(),
                _ => order.is_lt(),
            });
            if is_better {
                best = Some(item.clone());
            }
        }
        match call.function {
            Function::Sum => self.calculated(sum, &call.span),
            Function::Average => {
                let count = Number::Integer(i128::try_from(items.len()).unwrap_or(i128::MAX));
                self.calculated(sum.and_then(|sum| sum.calculate(Op::Divide, count)), &call.span)
            }
            _ => Ok(best),
        }
    }

    fn power(&self, base: Number, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.number(1).and_then(|exponent| base.power(exponent)) {
            Some(power) => Ok(Some(Val::from(power))),
            None => Err(self.bad_value("D3061", "the power is not a number or is out of range", &call.span)),
        }
    }

    fn root(&self, number: Number, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        if number.is_negative() {
            return Err(self.bad_value("D3060", "a negative number has no square root", &call.span));
        }
        let root = number.as_f64().sqrt();
        let root =
            if matches!(number, Number::Integer(_)) { Number::whole(root) } else { Number::Decimal(root) };
        Ok(Some(Val::from(root)))
    }

    fn format_base(&mut self, number: Number, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let base = call.number(1).map_or(10, |base| base.rounded(0).to_integer());
        let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
            return Err(self.bad_value("D3100", "the base must be a number from 2 to 36", &call.span));
        };
        let number = number.rounded(0).to_integer();
        let mut digits = Vec::new();
        let mut left = number.unsigned_abs();
        while left > 0 || digits.is_empty() {
            let digit = u32::try_from(left % u128::from(base)).unwrap_or(0);
            digits.push(char::from_digit(digit, base).unwrap_or('0'));
            left /= u128::from(base);
        }
        if number < 0 {
            digits.push('-');
        }
        self.made(digits.into_iter().rev().collect(), call)
    }

    fn format_number(&mut self, number: Number, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(pattern) = call.text(1) else { return Ok(None) };
        let options = match call.found(2) {
            Some(options) => Some(self.options(options, call)?),
            None => None,
        };
        let text = picture::number::format_number(number.as_f64(), pattern, options.as_ref());
        self.pictured(text, call)
    }

    /// Converts the options of `formatNumber` to JSON.
    fn options(&mut self, options: &Val<'a>, call: &Call<'a>) -> Result<Map<String, Value>, ExprError> {
        match self.paid(&call.span, |budget| walk::to_json(options.clone(), budget))? {
            Value::Object(options) => Ok(options),
            _ => Ok(Map::new()),
        }
    }

    fn format_integer(&mut self, number: Number, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(pattern) = call.text(1) else { return Ok(None) };
        let text = match number {
            Number::Integer(integer) => picture::integer::format_integer(integer, pattern),
            Number::Decimal(decimal) => picture::integer::format_float(decimal.floor(), pattern),
        };
        self.pictured(text, call)
    }

    fn parse_integer(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let (Some(text), Some(pattern)) = (call.text(0), call.text(1)) else { return Ok(None) };
        self.paid(&call.span, |budget| budget.spend_reading(text.len()))?;
        match picture::integer::parse_whole(text, pattern) {
            Ok(Whole::Exact(integer)) => Ok(Some(Val::from(Number::Integer(integer)))),
            Ok(Whole::Large(decimal)) => Ok(Some(Val::Decimal(decimal))),
            Err(fault) => Err(self.bad_value(fault.code, fault.message, &call.span)),
        }
    }

    /// Returns the text that a picture produced, or its error.
    pub(super) fn pictured(
        &mut self,
        text: Result<String, picture::Fault>,
        call: &Call<'a>,
    ) -> Result<Found<'a>, ExprError> {
        match text {
            Ok(text) => self.made(text, call),
            Err(fault) => Err(self.bad_value(fault.code, fault.message, &call.span)),
        }
    }

    /// Charges the budget for a short text and returns it.
    pub(super) fn made(&mut self, text: String, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        self.paid(&call.span, |budget| budget.spend_bytes(text.len()))?;
        Ok(Some(Val::text(text)))
    }
}
