//! Implementation of the functions for lists.

use crate::expr::call::Call;
use crate::expr::error::ExprError;
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::value::{Found, Items, Val, View};
use crate::expr::walk;

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn list_function(&mut self, mut call: Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::Count => {
                let count = call.found(0).and_then(Val::items).map_or(0, Items::len);
                Ok(Some(Val::from(count)))
            }
            Function::Len => self.len(&call).map(|len| Some(Val::from(len))),
            Function::Append => {
                let (first, second) = (call.take(0), call.take(1));
                self.appended(first, second, &call.span)
            }
            Function::Sort => self.sort(&call),
            Function::Reverse => match call.items(0) {
                Some(items) if items.len() > 1 => {
                    self.plain(items.into_iter().rev().collect(), &call.span).map(Some)
                }
                _ => Ok(call.take(0)),
            },
            Function::Distinct => self.distinct(&mut call),
            _ => self.zip(&call),
        }
    }

    fn len(&mut self, call: &Call<'a>) -> Result<usize, ExprError> {
        let Some(value) = call.found(0) else { return Ok(0) };
        match value.view() {
            View::Text(text) => {
                self.paid(&call.span, |budget| budget.spend_reading(text.len()))?;
                Ok(text.chars().count())
            }
            View::List(items) => Ok(items.len()),
            View::Object(fields) => Ok(fields.len()),
            _ => {
                let message = format!("`$len` needs a string, a list or an object, not {}", value.kind());
                Err(self.bad_value("T0410", message, &call.span))
            }
        }
    }

    fn sort(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(items) = call.items(0) else { return Ok(None) };
        if items.len() < 2 {
            return Ok(call.found(0).cloned());
        }
        let is_one_kind = items.iter().all(|item| item.as_number().is_some())
            || items.iter().all(|item| item.as_text().is_some());
        if !is_one_kind {
            let message = "`$sort` needs a list of numbers or of strings: sort anything else with `list^(…)`";
            return Err(self.bad_value("D3070", message, &call.span));
        }
        let places = self.merge_sorted(items.len(), &mut |eval, left, right| {
            eval.paid(&call.span, |budget| budget.spend_steps(1))?;
            match (items[left].view(), items[right].view()) {
                (View::Number(a), View::Number(b)) => Ok(a.compare(b).is_gt()),
                (View::Text(a), View::Text(b)) => Ok(eval.compared_texts(a, b, &call.span)?.is_gt()),
                _ => Ok(false),
            }
        })?;
        let sorted = places.into_iter().map(|place| items[place].clone()).collect();
        self.plain(sorted, &call.span).map(Some)
    }

    fn distinct(&mut self, call: &mut Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(items) = call.items(0).filter(|items| items.len() > 1) else { return Ok(call.take(0)) };
        let mut kept: Vec<Val<'a>> = Vec::new();
        for item in items {
            let mut is_new = true;
            for known in &kept {
                is_new = is_new
                    && !self.paid(&call.span, |budget| {
                        budget.spend_steps(1)?;
                        walk::is_equal(known, &item, budget)
                    })?;
                if !is_new {
                    break;
                }
            }
            if is_new {
                kept.push(item);
            }
        }
        match call.found(0).is_some_and(Val::is_sequence) {
            true => self.sequence(kept, true, &call.span).map(Some),
            false => self.plain(kept, &call.span).map(Some),
        }
    }

    fn zip(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let lists: Vec<Option<Items<'_, 'a>>> =
            call.arguments.iter().map(|list| list.as_ref().and_then(Val::items)).collect();
        let shortest = lists.iter().map(|list| list.map_or(0, Items::len)).min().unwrap_or(0);
        self.paid(&call.span, |budget| budget.spend_steps(shortest.saturating_mul(lists.len() + 1)))?;
        let mut tuples = Vec::with_capacity(shortest);
        for place in 0..shortest {
            let tuple = lists.iter().filter_map(|list| list.and_then(|list| list.get(place))).collect();
            tuples.push(self.plain(tuple, &call.span)?);
        }
        self.plain(tuples, &call.span).map(Some)
    }
}
