//! Evaluation of `^(…)`, which sorts items by computed keys.

use std::cmp::Ordering;
use std::ops::Range;

use super::ast::{Node, Term};
use super::error::{ExprError, ExprErrorKind};
use super::eval::{Eval, Here};
use super::value::{Found, Items, Val, View};

/// The sort keys computed so far. A key is computed once per item, and only if a comparison needs it. A key that is
/// never compared need not be comparable.
struct Keys<'a> {
    terms: usize,
    known: Vec<Option<Found<'a>>>,
}

impl<'a> Eval<'a, '_> {
    pub(super) fn sorted(
        &mut self,
        terms: &'a [Term],
        step: &'a Node,
        list: &Val<'a>,
    ) -> Result<Val<'a>, ExprError> {
        let items: Vec<Val<'a>> = list.items().into_iter().flat_map(Items::iter).collect();
        let mut sorted = list.clone();
        if items.len() > 1 {
            let mut keys = Keys { terms: terms.len(), known: vec![None; terms.len() * items.len()] };
            self.paid(&step.span, |budget| budget.spend_steps(keys.known.len()))?;
            let places = self.merge_sorted(items.len(), &mut |eval, left, right| {
                eval.is_behind(terms, &items, &mut keys, left, right)
            })?;
            let items = places.into_iter().map(|place| items[place].clone()).collect();
            sorted = self.plain(items, &step.span)?;
        }
        for stage in step.stages() {
            let found = self.filtered(stage, Some(sorted))?;
            sorted = match found {
                Some(found) => found,
                None => self.sequence(Vec::new(), true, &stage.span)?,
            };
        }
        Ok(sorted)
    }

    /// Sorts the indexes `0..length` with a stable merge sort whose comparison may fail. The sort of the standard
    /// library might treat a failed comparison as an inconsistent order and panic.
    pub(super) fn merge_sorted(
        &mut self,
        length: usize,
        is_behind: &mut impl FnMut(&mut Self, usize, usize) -> Result<bool, ExprError>,
    ) -> Result<Vec<usize>, ExprError> {
        self.merge_sorted_range(0..length, is_behind)
    }

    /// Sorts a range of indexes. Each half is sorted before they are merged, in the order of JSONata, so that of several
    /// failing comparisons the same one comes first. The recursion is as deep as the length has bits.
    fn merge_sorted_range(
        &mut self,
        range: Range<usize>,
        is_behind: &mut impl FnMut(&mut Self, usize, usize) -> Result<bool, ExprError>,
    ) -> Result<Vec<usize>, ExprError> {
        if range.len() < 2 {
            return Ok(range.collect());
        }
        let middle = range.start + range.len() / 2;
        let left = self.merge_sorted_range(range.start..middle, is_behind)?;
        let right = self.merge_sorted_range(middle..range.end, is_behind)?;
        let mut merged = Vec::with_capacity(range.len());
        let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let next = if is_behind(self, **a, **b)? { &mut right } else { &mut left };
            merged.extend(next.next());
        }
        merged.extend(left);
        merged.extend(right);
        Ok(merged)
    }

    /// Returns true if `left` belongs after `right`.
    fn is_behind(
        &mut self,
        terms: &'a [Term],
        items: &[Val<'a>],
        keys: &mut Keys<'a>,
        left: usize,
        right: usize,
    ) -> Result<bool, ExprError> {
        for (index, term) in terms.iter().enumerate() {
            let a = self.key(term, items, keys, index, left)?;
            let b = self.key(term, items, keys, index, right)?;
            let order = match (&a, &b) {
                // Undefined keys come last, in either direction.
                (None, None) => Ordering::Equal,
                (None, _) => return Ok(true),
                (_, None) => return Ok(false),
                (Some(a), Some(b)) => self.compared(a, b, &term.node.span)?,
            };
            let order = if term.is_descending { order.reverse() } else { order };
            if order.is_ne() {
                return Ok(order.is_gt());
            }
        }
        Ok(false)
    }

    fn key(
        &mut self,
        term: &'a Term,
        items: &[Val<'a>],
        keys: &mut Keys<'a>,
        index: usize,
        item: usize,
    ) -> Result<Found<'a>, ExprError> {
        self.paid(&term.node.span, |budget| budget.spend_steps(1))?;
        let place = item * keys.terms + index;
        if let Some(key) = &keys.known[place] {
            return Ok(key.clone());
        }
        let key = self.node(&term.node, &Here::Item(Some(items[item].clone())))?;
        keys.known[place] = Some(key.clone());
        Ok(key)
    }

    fn compared(&mut self, a: &Val<'a>, b: &Val<'a>, span: &Range<usize>) -> Result<Ordering, ExprError> {
        match (a.view(), b.view()) {
            (View::Number(a), View::Number(b)) => Ok(a.compare(b)),
            (View::Text(a), View::Text(b)) => self.compared_texts(a, b, span),
            (View::Number(_) | View::Text(_), View::Number(_) | View::Text(_)) => {
                let message = "the sort key is a number for one item and a string for another";
                Err(self.error(ExprErrorKind::Type, "T2007", message, span.clone()))
            }
            (View::Number(_) | View::Text(_), _) => Err(self.unsortable(b, span)),
            _ => Err(self.unsortable(a, span)),
        }
    }

    /// Compares two strings by their UTF-16 code units, as JSONata does.
    pub(super) fn compared_texts(
        &mut self,
        a: &str,
        b: &str,
        span: &Range<usize>,
    ) -> Result<Ordering, ExprError> {
        self.paid(span, |budget| budget.spend_reading(a.len().min(b.len())))?;
        Ok(a.encode_utf16().cmp(b.encode_utf16()))
    }

    fn unsortable(&self, value: &Val<'a>, span: &Range<usize>) -> ExprError {
        let message = format!(
            "{} is {} for an item, but only numbers and strings can be sorted",
            self.quoted(span),
            value.kind()
        );
        self.error(ExprErrorKind::Type, "T2008", message, span.clone())
    }
}
