//! Functions for time. The only clock is that of the scope.

use crate::expr::call::Call;
use crate::expr::error::{ExprError, ExprErrorKind};
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::picture;
use crate::expr::value::{Found, Val};

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn date_function(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::Millis => Ok(Some(Val::Integer(self.now(call)?))),
            Function::Now | Function::NowIso => {
                let now = self.now(call)? as f64;
                self.pictured(picture::time::from_millis(now, call.text(0), call.text(1)), call)
            }
            Function::FromMillis => {
                let Some(millis) = call.number(0) else { return Ok(None) };
                self.pictured(picture::time::from_millis(millis.as_f64(), call.text(1), call.text(2)), call)
            }
            _ => {
                let Some(text) = call.text(0) else { return Ok(None) };
                self.paid(&call.span, |budget| budget.spend_reading(text.len()))?;
                let now = self.scope.now().map(|now| now.micros().div_euclid(1000));
                let millis = picture::time::to_millis(text, call.text(1), now);
                let millis = millis.map_err(|fault| self.bad_value(fault.code, fault.message, &call.span))?;
                Ok(millis.map(Val::Integer))
            }
        }
    }

    /// Returns the current time of the scope in milliseconds since 1970.
    fn now(&self, call: &Call<'a>) -> Result<i64, ExprError> {
        match self.scope.now() {
            Some(now) => Ok(now.micros().div_euclid(1000)),
            None => {
                let message = format!("`${}` cannot be used here: there is no clock", call.function.name());
                Err(self.error(ExprErrorKind::Value, "noClock", message, call.span.clone()))
            }
        }
    }
}
