//! Function calls: evaluates the arguments, matches them with the parameters, and reports arguments of the wrong
//! type.
//!
//! Undefined arguments follow JSONata 2: every function except `$exists` and `$count` returns undefined for them,
//! including `$not`.

use std::ops::Range;

use super::ast::Node;
use super::error::{ExprError, ExprErrorKind};
use super::eval::{Eval, Here, Side};
use super::function::{Function, FunctionGroup};
use super::number::Number;
use super::signature::{SchemaViolation, fit};
use super::value::{Found, Val};

/// A call with checked arguments: each is undefined or of a type that its parameter accepts.
pub(super) struct Call<'a> {
    pub(super) function: Function,
    pub(super) arguments: Vec<Found<'a>>,
    pub(super) span: Range<usize>,
    /// The arguments in the source. Omitted arguments are not among them.
    pub(super) nodes: &'a [Node],
}

impl<'a> Call<'a> {
    pub(super) fn found(&self, place: usize) -> Option<&Val<'a>> {
        self.arguments.get(place)?.as_ref()
    }

    pub(super) fn take(&mut self, place: usize) -> Found<'a> {
        self.arguments.get_mut(place)?.take()
    }

    pub(super) fn text(&self, place: usize) -> Option<&str> {
        self.found(place)?.as_text()
    }

    pub(super) fn number(&self, place: usize) -> Option<Number> {
        self.found(place)?.as_number()
    }

    /// Returns a copy of the items of a list. Copying an item is cheap.
    pub(super) fn items(&self, place: usize) -> Option<Vec<Val<'a>>> {
        Some(self.found(place)?.items()?.iter().collect())
    }
}

impl<'a> Eval<'a, '_> {
    pub(super) fn call(
        &mut self,
        function: Function,
        arguments: &'a [Node],
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        match function {
            // The arguments after the chosen one are not evaluated.
            Function::Coalesce => return self.coalesce(arguments, here),
            Function::Not | Function::Boolean if arguments.len() == 1 => {
                let found = self.node(&arguments[0], here)?;
                let Some(_) = found else { return Ok(None) };
                let truth = self.is_true(&found, &arguments[0].span)?;
                return Ok(Some(Val::Bool(truth == (function == Function::Boolean))));
            }
            _ => {}
        }
        let sides = arguments.iter().map(|node| self.side(node, here)).collect::<Result<Vec<_>, _>>()?;
        let fitted = self.fitted(function, &sides, here, span)?;
        let call = Call { function, arguments: fitted, span: span.clone(), nodes: arguments };
        match function.info().group {
            FunctionGroup::String => self.text_function(call),
            FunctionGroup::Number => self.number_function(call),
            FunctionGroup::List => self.list_function(call),
            FunctionGroup::Object => self.object_function(call),
            FunctionGroup::Date => self.date_function(&call),
            FunctionGroup::Logic => self.logic_function(&call),
        }
    }

    /// Returns the first argument that is neither undefined nor null.
    fn coalesce(&mut self, arguments: &'a [Node], here: &Here<'a>) -> Result<Found<'a>, ExprError> {
        let mut found = None;
        for argument in arguments {
            found = self.node(argument, here)?;
            if found.as_ref().is_some_and(|value| !value.is_null()) {
                break;
            }
        }
        Ok(found)
    }

    /// Assigns the arguments to the parameters.
    fn fitted(
        &mut self,
        function: Function,
        sides: &[Side<'a>],
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Vec<Found<'a>>, ExprError> {
        let params = function.info().params;
        let found: Vec<Found<'a>> = sides.iter().map(|side| side.found.clone()).collect();
        // Checking the types of all items visits each of them.
        let items: usize = match params.iter().any(|param| param.is_list) {
            true => found.iter().flatten().filter_map(Val::items).map(super::value::Items::len).sum(),
            false => 0,
        };
        self.paid(span, |budget| budget.spend_steps(items))?;
        let this = match sides.len() < params.len() {
            true => self.value_of(here, span)?,
            false => None,
        };
        fit(params, found, || this.clone())
            .map_err(|violation| self.violation(function, &violation, sides, span, &this))
    }

    fn violation(
        &self,
        function: Function,
        violation: &SchemaViolation,
        sides: &[Side<'a>],
        span: &Range<usize>,
        here: &Found<'a>,
    ) -> ExprError {
        let name = function.name();
        let needs = |param: &super::signature::Param| format!("`${name}` needs {}", param.wants());
        match violation {
            SchemaViolation::Argument(place, param) => match sides.get(*place) {
                Some(side) => self.mistyped("T0410", side, &needs(param)),
                None => {
                    let message = format!("an argument is missing: {}", needs(param));
                    self.error(ExprErrorKind::Type, "T0410", message, span.clone())
                }
            },
            SchemaViolation::Items(place, param) => match sides.get(*place) {
                Some(side) if side.found.as_ref().is_some_and(Val::is_list) => {
                    let message = format!(
                        "{} has items of another type, but {}",
                        self.quoted(&side.span),
                        needs(param)
                    );
                    self.error(ExprErrorKind::Type, "T0412", message, side.span.clone())
                }
                Some(side) => self.mistyped("T0412", side, &needs(param)),
                None => self.error(ExprErrorKind::Type, "T0412", needs(param), span.clone()),
            },
            SchemaViolation::Here(param) => {
                let is = here.as_ref().map_or("undefined", Val::kind);
                let message = format!(
                    "an argument is omitted, and the current item that replaces it is {is}, but {}",
                    needs(param)
                );
                self.error(ExprErrorKind::Type, "T0411", message, span.clone())
            }
        }
    }

    /// Creates the error for a value that a function cannot process.
    pub(super) fn bad_value(
        &self,
        code: &'static str,
        message: impl Into<String>,
        span: &Range<usize>,
    ) -> ExprError {
        let kind = if code == "unsupported" { ExprErrorKind::Unsupported } else { ExprErrorKind::Value };
        self.error(kind, code, message, span.clone())
    }
}
