//! Functions for truth and types, and the two functions that end an evaluation.

use crate::expr::call::Call;
use crate::expr::error::ExprError;
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::value::{Found, Val, View};

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn logic_function(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::Exists => Ok(Some(Val::Bool(call.found(0).is_some()))),
            Function::Type => Ok(call.found(0).map(|value| Val::text(type_name(value)))),
            Function::Error => {
                let message = call.text(0).unwrap_or("$error() function evaluated");
                Err(self.bad_value("D3137", message, &call.span))
            }
            Function::Assert => match call.found(0).map(Val::view) {
                Some(View::Bool(true)) => Ok(None),
                _ => {
                    let message = call.text(1).unwrap_or("$assert() statement failed");
                    Err(self.bad_value("D3141", message, &call.span))
                }
            },
            _ => {
                let Some(value) = call.found(0).cloned() else { return Ok(None) };
                let truth = self.is_true(&Some(value), &call.span)?;
                Ok(Some(Val::Bool(truth == (call.function == Function::Boolean))))
            }
        }
    }
}

fn type_name(value: &Val<'_>) -> &'static str {
    match value.view() {
        View::Null => "null",
        View::Bool(_) => "boolean",
        View::Number(_) => "number",
        View::Text(_) => "string",
        View::List(_) => "array",
        View::Object(_) => "object",
    }
}
