//! Functions of instants. The only clock is the one the scope brings.

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
                let now = self.now(call)?;
                self.pictured(picture::time::from_millis(now, call.text(0), call.text(1)), call)
            }
            Function::FromMillis => {
                let Some(millis) = call.number(0) else { return Ok(None) };
                let Ok(millis) = i64::try_from(millis.to_integer()) else {
                    return Err(self.bad_value("D3110", "there is no such instant", &call.span));
                };
                self.pictured(picture::time::from_millis(millis, call.text(1), call.text(2)), call)
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

    /// Milliseconds since 1970.
    fn now(&self, call: &Call<'a>) -> Result<i64, ExprError> {
        match self.scope.now() {
            Some(now) => Ok(now.micros().div_euclid(1000)),
            None => {
                let message = format!("`${}` has no clock here", call.function.name());
                Err(self.error(ExprErrorKind::Value, "noClock", message, call.span.clone()))
            }
        }
    }
}
