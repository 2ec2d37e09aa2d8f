//! Evaluation of paths: steps, predicates, `*` and `**`.
//!
//! A step is evaluated for each item of the previous step's result, and lists among its results are flattened into
//! one. The rules for keeping a list are those of JSONata.

use std::ops::Range;
use std::rc::Rc;

use serde_json::Value;

use super::ast::{Kind, Node, Path};
use super::error::ExprError;
use super::eval::{Eval, Here, collapsed};
use super::value::{Found, Items, List, Val, View};

/// The input of a step.
enum Stream<'a> {
    One(Here<'a>),
    /// The step is evaluated for every item of this list.
    Many(Val<'a>),
}

impl<'a> Stream<'a> {
    /// Returns the input of a path. A path that starts with a variable is not relative to the current item, so it is
    /// not mapped over it.
    fn of(here: &Here<'a>, first: &Node) -> Self {
        let is_relative = !matches!(first.kind, Kind::Here | Kind::Top | Kind::Variable(_));
        match here {
            Here::Whole(list) => Stream::One(Here::Item(Some(Val::Ref(list)))),
            Here::Item(Some(value)) if is_relative && value.is_list() => Stream::Many(value.clone()),
            _ => Stream::One(here.clone()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Stream::One(_) => 1,
            Stream::Many(list) => list.items().map_or(0, Items::len),
        }
    }

    fn get(&self, place: usize) -> Here<'a> {
        match self {
            Stream::One(here) => here.clone(),
            Stream::Many(list) => Here::Item(list.items().and_then(|items| items.get(place))),
        }
    }
}

impl<'a> Eval<'a, '_> {
    pub(super) fn path(
        &mut self,
        path: &'a Path,
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        if path.is_plain
            && let Some(found) = self.plain_path(&path.steps, here)
        {
            self.paid(span, |budget| budget.spend_steps(path.steps.len() - 1))?;
            return Ok(found);
        }
        let mut list = self.steps(&path.steps, here)?;
        if path.keeps_list
            && let Val::List(kept) = &list
        {
            // A list literal is the only item of the kept list.
            if kept.is_written && !kept.is_sequence {
                list = self.sequence(vec![list], true, span)?;
            }
            list = kept_list(list);
        }
        Ok(Some(list))
    }

    /// Follows a path of names through objects, without creating values. Returns `None` if there is a list or a
    /// computed value on the way.
    fn plain_path(&self, steps: &'a [Node], here: &Here<'a>) -> Option<Found<'a>> {
        let mut steps = steps.iter();
        let mut value = match here {
            Here::Roots => {
                let Kind::Name(name) = &steps.next()?.kind else { return None };
                let Some(value) = self.scope.root(name) else { return Some(None) };
                value
            }
            Here::Item(Some(Val::Ref(value))) => value,
            _ => return None,
        };
        for step in steps {
            let Kind::Name(name) = &step.kind else { return None };
            value = match value {
                Value::Object(fields) => match fields.get(name) {
                    Some(field) => field,
                    None => return Some(None),
                },
                Value::Array(_) => return None,
                _ => return Some(None),
            };
        }
        Some(Some(Val::Ref(value)))
    }

    /// Evaluates the steps one after the other. The result is always a list.
    pub(super) fn steps(&mut self, steps: &'a [Node], here: &Here<'a>) -> Result<Val<'a>, ExprError> {
        let mut stream = Stream::of(here, &steps[0]);
        let mut is_of_list = false;
        let mut found = Val::list(List::default());
        for (place, step) in steps.iter().enumerate() {
            let is_last = place + 1 == steps.len();
            found = match &step.kind {
                _ if place == 0 && step.is_written_list() => self.written(step, here)?,
                Kind::Sort(terms) => self.sorted(terms, step, &found)?,
                _ => self.mapped(step, &stream, is_last)?,
            };
            is_of_list |= comes_of_list(&found);
            if found.items().is_none_or(|items| items.len() == 0) {
                break;
            }
            stream = Stream::Many(found.clone());
        }
        if is_of_list
            && let Val::List(list) = &mut found
            && list.items.is_empty()
        {
            Rc::make_mut(list).is_of_list = true;
        }
        Ok(found)
    }

    /// Evaluates a list literal that starts a path. It is not mapped over the current item.
    fn written(&mut self, step: &'a Node, here: &Here<'a>) -> Result<Val<'a>, ExprError> {
        match self.node(step, here)? {
            Some(value) if value.is_list() => Ok(value),
            found => self.sequence(found.into_iter().collect(), true, &step.span),
        }
    }

    /// Evaluates a step for every item of its input.
    fn mapped(&mut self, step: &'a Node, stream: &Stream<'a>, is_last: bool) -> Result<Val<'a>, ExprError> {
        let mut is_of_list = stream.len() != 1;
        let mut results = Vec::new();
        for place in 0..stream.len() {
            let raw = self.raw(step, &stream.get(place))?;
            is_of_list |= raw.as_ref().is_some_and(comes_of_list);
            let mut found = collapsed(raw, step.keeps_list());
            for stage in step.stages() {
                found = self.filtered(stage, found)?;
                is_of_list |= found.as_ref().is_some_and(comes_of_list);
            }
            results.extend(found);
        }
        if is_last && results.len() == 1 && results[0].is_list() && !results[0].is_sequence() {
            return Ok(results.swap_remove(0));
        }
        self.flattened(results, is_of_list, &step.span)
    }

    /// Creates one sequence of all results. Lists are flattened, unless they are list literals.
    fn flattened(
        &mut self,
        results: Vec<Val<'a>>,
        mut is_of_list: bool,
        span: &Range<usize>,
    ) -> Result<Val<'a>, ExprError> {
        if !results.iter().any(Val::is_list) {
            return self.sequence(results, is_of_list, span);
        }
        let mut flat = Vec::new();
        for result in results {
            match result.items() {
                Some(items) if !result.is_written() => {
                    is_of_list |= !result.is_sequence();
                    self.paid(span, |budget| budget.spend_steps(items.len()))?;
                    flat.extend(items.iter());
                }
                _ => flat.push(result),
            }
        }
        self.sequence(flat, is_of_list, span)
    }

    /// Returns a field of the current value.
    pub(super) fn field(
        &mut self,
        name: &str,
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        match here {
            Here::Roots => Ok(self.scope.root(name).map(Val::Ref)),
            Here::Whole(list) => self.looked_up(&Val::Ref(list), name, span),
            Here::Item(Some(value)) => self.looked_up(value, name, span),
            Here::Item(None) => Ok(None),
        }
    }

    /// Returns a field of an object, or of every object in a list.
    pub(super) fn looked_up(
        &mut self,
        value: &Val<'a>,
        name: &str,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        match value.view() {
            View::Object(fields) => return Ok(fields.get(name)),
            View::List(_) => {}
            _ => return Ok(None),
        }
        let mut found = Vec::new();
        let mut open = vec![value.clone()];
        while let Some(value) = open.pop() {
            match value.view() {
                View::List(items) => {
                    self.paid(span, |budget| budget.spend_steps(items.len()))?;
                    open.extend(items.iter().rev());
                }
                View::Object(fields) => {
                    let field = fields.get(name);
                    self.spread_into(&mut found, field, span)?;
                }
                _ => {}
            }
        }
        self.sequence(found, true, span).map(Some)
    }

    /// Evaluates `*`: the value of every field, or every item. Lists among them are flattened; JSONata then no longer
    /// treats the result as a sequence.
    pub(super) fn wildcard(&mut self, here: &Here<'a>, span: &Range<usize>) -> Result<Found<'a>, ExprError> {
        let Some(value) = self.value_of(here, span)? else { return Ok(None) };
        let members: Vec<Val<'a>> = match value.view() {
            View::Object(fields) => fields.sorted().into_iter().map(|(_, field)| field).collect(),
            View::List(items) => items.iter().collect(),
            _ => Vec::new(),
        };
        self.paid(span, |budget| budget.spend_steps(members.len()))?;
        let is_plain = members.iter().any(Val::is_list);
        let mut found = Vec::new();
        let mut open: Vec<Val<'a>> = members.into_iter().rev().collect();
        while let Some(member) = open.pop() {
            match member.items() {
                Some(items) => {
                    self.paid(span, |budget| budget.spend_steps(items.len()))?;
                    open.extend(items.iter().rev());
                }
                None => found.push(member),
            }
        }
        if is_plain { self.plain(found, span).map(Some) } else { self.sequence(found, false, span).map(Some) }
    }

    /// Evaluates `**`: the value itself and all values in it, except lists.
    pub(super) fn descendants(
        &mut self,
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let Some(value) = self.value_of(here, span)? else { return Ok(None) };
        let mut found = Vec::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            self.paid(span, |budget| budget.spend_steps(1))?;
            match value.view() {
                View::List(items) => open.extend(items.iter().rev()),
                View::Object(fields) => {
                    found.push(value.clone());
                    open.extend(fields.sorted().into_iter().rev().map(|(_, field)| field));
                }
                _ => found.push(value),
            }
        }
        self.sequence(found, true, span).map(Some)
    }

    /// Evaluates `found[predicate]`: an item by its index, items by their indexes, or the items for which the
    /// predicate is true.
    pub(super) fn filtered(&mut self, predicate: &'a Node, found: Found<'a>) -> Result<Found<'a>, ExprError> {
        let span = &predicate.span;
        let Some(value) = found else {
            // As in JSONata, an error in the predicate is reported even if there is nothing to filter.
            self.node(predicate, &Here::Item(None))?;
            return self.sequence(Vec::new(), false, span).map(Some);
        };
        let is_of_list = value.is_list();
        let single;
        let items = match value.items() {
            Some(items) => items,
            None => {
                single = [value];
                Items::Made(&single)
            }
        };
        if let Kind::Literal(Value::Number(_)) = &predicate.kind
            && predicate.more.is_none()
        {
            let index = self.node(predicate, &Here::Item(None))?.and_then(|index| index.as_number());
            let place = index.and_then(|index| place(index.floor_index(), items.len()));
            return match place.and_then(|place| items.get(place)) {
                Some(item) if item.is_list() => Ok(Some(item)),
                item => self.sequence(item.into_iter().collect(), is_of_list, span).map(Some),
            };
        }
        let mut kept = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let chosen = self.node(predicate, &Here::Item(Some(item.clone())))?;
            for _ in 0..self.times_chosen(&chosen, at, items.len(), span)? {
                kept.push(item.clone());
            }
        }
        self.sequence(kept, is_of_list, span).map(Some)
    }

    /// Returns how often a predicate selects the item at `at`. Numbers are indexes; any other value is a condition.
    fn times_chosen(
        &mut self,
        chosen: &Found<'a>,
        at: usize,
        length: usize,
        span: &Range<usize>,
    ) -> Result<usize, ExprError> {
        let is_here = |value: &Val<'a>| {
            value.as_number().and_then(|index| place(index.floor_index(), length)) == Some(at)
        };
        match chosen {
            Some(value) if value.as_number().is_some() => Ok(usize::from(is_here(value))),
            Some(value) => {
                let items = value.items().filter(|items| items.iter().all(|item| item.as_number().is_some()));
                if let Some(items) = items {
                    self.paid(span, |budget| budget.spend_steps(items.len()))?;
                    return Ok(items.iter().filter(is_here).count());
                }
                Ok(usize::from(self.is_true(chosen, span)?))
            }
            None => Ok(0),
        }
    }
}

/// Converts an index to a position in a list. Negative indexes count from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let distance = usize::try_from(index.unsigned_abs()).ok()?;
    if index < 0 { length.checked_sub(distance) } else { Some(distance).filter(|place| *place < length) }
}

/// Returns true if the value was made from a list of the data.
fn comes_of_list(value: &Val<'_>) -> bool {
    match value {
        Val::Ref(value) => value.is_array(),
        Val::List(list) => list.is_of_list || !list.is_sequence,
        _ => false,
    }
}

fn kept_list(value: Val<'_>) -> Val<'_> {
    match value {
        Val::List(mut list) if list.is_sequence => {
            Rc::make_mut(&mut list).is_kept = true;
            Val::List(list)
        }
        value => value,
    }
}
