//! Implementation of the functions for objects.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::expr::call::Call;
use crate::expr::error::ExprError;
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::value::{Fields, Found, Object, Val, View};

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn object_function(&mut self, mut call: Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::Keys => self.keys(&call),
            Function::Values => self.values(&call),
            Function::Lookup => match (call.found(0), call.text(1)) {
                (Some(value), Some(name)) => self.looked_up(value, name, &call.span),
                _ => Ok(None),
            },
            Function::Spread => self.spread(&mut call),
            _ => self.merge(&call),
        }
    }

    /// Returns the objects in a value: the value itself, or the objects in its lists at any depth.
    fn objects(&mut self, call: &Call<'a>) -> Result<Vec<Val<'a>>, ExprError> {
        let mut open: Vec<Val<'a>> = call.found(0).cloned().into_iter().collect();
        let mut objects = Vec::new();
        while let Some(value) = open.pop() {
            match value.view() {
                View::List(items) => {
                    self.paid(&call.span, |budget| budget.spend_steps(items.len()))?;
                    open.extend(items.iter().rev());
                }
                View::Object(fields) => {
                    self.paid(&call.span, |budget| budget.spend_steps(fields.len()))?;
                    objects.push(value.clone());
                }
                _ => {}
            }
        }
        Ok(objects)
    }

    fn keys(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let mut seen = BTreeSet::new();
        let mut keys = Vec::new();
        for object in self.objects(call)? {
            let View::Object(fields) = object.view() else { continue };
            for (name, _) in fields.sorted() {
                if seen.insert(name.to_owned()) {
                    self.paid(&call.span, |budget| budget.spend_bytes(name.len() + 3))?;
                    keys.push(Val::text(name));
                }
            }
        }
        self.sequence(keys, call.found(0).is_some_and(Val::is_list), &call.span).map(Some)
    }

    fn values(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(value) = call.found(0) else { return Ok(None) };
        let View::Object(fields) = value.view() else {
            let message = format!("`$values` needs an object, not {}", value.kind());
            return Err(self.bad_value("T0410", message, &call.span));
        };
        self.paid(&call.span, |budget| budget.spend_steps(fields.len()))?;
        let values = fields.sorted().into_iter().map(|(_, value)| value).collect();
        self.plain(values, &call.span).map(Some)
    }

    fn spread(&mut self, call: &mut Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(value) = call.found(0) else { return Ok(None) };
        let is_list = value.is_list();
        let mut open = vec![value.clone()];
        let mut parts = Vec::new();
        while let Some(value) = open.pop() {
            match value.view() {
                View::List(items) => {
                    self.paid(&call.span, |budget| budget.spend_steps(items.len()))?;
                    open.extend(items.iter().rev());
                }
                View::Object(fields) => self.spread_object(fields, &mut parts, call)?,
                _ if is_list => parts.push(value),
                _ => return Ok(call.take(0)),
            }
        }
        // A result from several lists is not a sequence any more.
        match is_list && call.found(0).and_then(Val::items).is_some_and(|items| items.len() > 0) {
            true => self.plain(parts, &call.span).map(Some),
            false => self.sequence(parts, false, &call.span).map(Some),
        }
    }

    fn spread_object(
        &mut self,
        fields: Fields<'_, 'a>,
        parts: &mut Vec<Val<'a>>,
        call: &Call<'a>,
    ) -> Result<(), ExprError> {
        self.paid(&call.span, |budget| budget.spend_steps(fields.len()))?;
        for (name, value) in fields.sorted() {
            self.paid(&call.span, |budget| budget.spend_bytes(name.len() + 3))?;
            let fields = BTreeMap::from([(name.to_owned(), value)]);
            let object = self.paid(&call.span, |_| Object::new(fields))?;
            parts.push(Val::Object(Rc::new(object)));
        }
        Ok(())
    }

    fn merge(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(items) = call.items(0) else { return Ok(None) };
        let mut merged = BTreeMap::new();
        for item in &items {
            let View::Object(fields) = item.view() else { continue };
            for (name, value) in fields.sorted() {
                self.paid(&call.span, |budget| budget.spend_steps(1))?;
                self.paid(&call.span, |budget| budget.spend_bytes(name.len() + 3))?;
                merged.insert(name.to_owned(), value);
            }
        }
        let object = self.paid(&call.span, |_| Object::new(merged))?;
        Ok(Some(Val::Object(Rc::new(object))))
    }
}
