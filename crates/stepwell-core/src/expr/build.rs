//! Evaluation of list, range and object constructors.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::ast::{Item, Kind, Node, Pair};
use super::error::{ExprError, ExprErrorKind};
use super::eval::{Eval, Here};
use super::number::Number;
use super::value::{Found, List, Object, Val};

/// The maximum length of a range in JSONata.
const LONGEST_RANGE: i128 = 10_000_000;

/// The items that share a key, and the pair that computed the key.
struct Group<'a> {
    pair: usize,
    first: Here<'a>,
    /// All items of the group; empty while there is only one.
    all: Vec<Val<'a>>,
}

impl<'a> Eval<'a, '_> {
    /// Builds a list. As in JSONata, undefined items are omitted, and lists are flattened unless they are list
    /// literals.
    pub(super) fn list(
        &mut self,
        items: &'a [Item],
        is_written: bool,
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let mut made = Vec::new();
        for item in items {
            match item {
                Item::Range(from, to) => self.range(from, to, here, &mut made)?,
                Item::One(node) => {
                    let Some(value) = self.node(node, here)? else { continue };
                    match node.kind {
                        Kind::List { .. } => made.push(value),
                        _ => self.spread_into(&mut made, Some(value), span)?,
                    }
                }
            }
        }
        let mut list = self.paid(span, |_| List::plain(made))?;
        list.is_written = is_written;
        Ok(Some(Val::list(list)))
    }

    /// Appends the numbers `from..to`, including both ends. Appends nothing if an end is undefined or `from` is
    /// greater than `to`.
    fn range(
        &mut self,
        from: &'a Node,
        to: &'a Node,
        here: &Here<'a>,
        made: &mut Vec<Val<'a>>,
    ) -> Result<(), ExprError> {
        let (from, to) = (self.side(from, here)?, self.side(to, here)?);
        let whole = |found: &Found<'a>| match found.as_ref().map(Val::as_number) {
            None => Some(None),
            Some(Some(number)) if number.is_whole() => Some(Some(number)),
            Some(_) => None,
        };
        let need = "`..` needs whole numbers";
        let Some(first) = whole(&from.found) else { return Err(self.mistyped("T2003", &from, need)) };
        let Some(last) = whole(&to.found) else { return Err(self.mistyped("T2004", &to, need)) };
        let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
        let (first, last) = (first.to_integer(), last.to_integer());
        if first > last {
            return Ok(());
        }
        let span = from.span.start..to.span.end;
        let length = last.saturating_sub(first).saturating_add(1);
        if length > LONGEST_RANGE {
            let message = format!(
                "the range {} has more than {LONGEST_RANGE} numbers, the maximum",
                self.quoted(&span)
            );
            return Err(self.error(ExprErrorKind::Value, "D2014", message, span));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.paid(&span, |budget| budget.spend_steps(length))?;
        self.paid(&span, |budget| budget.spend_bytes(length.saturating_mul(8)))?;
        made.extend((first..=last).map(|number| Val::from(Number::Integer(number))));
        Ok(())
    }

    /// Evaluates `{…}`, alone or after a path. Items with the same key form a group, and the value is evaluated for
    /// each group.
    pub(super) fn grouped(
        &mut self,
        pairs: &'a [Pair],
        here: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let mut groups: BTreeMap<String, Group<'a>> = BTreeMap::new();
        for item in group_items(here) {
            for (place, (key, _)) in pairs.iter().enumerate() {
                let side = self.side(key, &item)?;
                let Some(value) = &side.found else { continue };
                let Some(name) = value.as_text() else {
                    return Err(self.mistyped("T1003", &side, "the key of an object must be a string"));
                };
                self.paid(span, |budget| budget.spend_bytes(name.len() + 4))?;
                match groups.get_mut(name) {
                    None => {
                        let group = Group { pair: place, first: item.clone(), all: Vec::new() };
                        groups.insert(name.to_owned(), group);
                    }
                    Some(group) if group.pair == place => self.gather(group, &item, span)?,
                    Some(_) => {
                        let message = format!("two keys of the object have the same value {name:?}");
                        return Err(self.error(ExprErrorKind::Value, "D1009", message, key.span.clone()));
                    }
                }
            }
        }
        let mut fields = BTreeMap::new();
        for (name, group) in groups {
            let data = match group.all.is_empty() {
                true => group.first,
                false => Here::Item(Some(self.plain(group.all, span)?)),
            };
            if let Some(value) = self.node(&pairs[group.pair].1, &data)? {
                fields.insert(name, value);
            }
        }
        let object = self.paid(span, |_| Object::new(fields))?;
        Ok(Some(Val::Object(Rc::new(object))))
    }

    /// Adds an item to a group. Lists are flattened.
    fn gather(
        &mut self,
        group: &mut Group<'a>,
        item: &Here<'a>,
        span: &Range<usize>,
    ) -> Result<(), ExprError> {
        if group.all.is_empty() {
            let first = self.value_of(&group.first, span)?;
            self.spread_into(&mut group.all, first, span)?;
        }
        let item = self.value_of(item, span)?;
        self.spread_into(&mut group.all, item, span)
    }

    /// Appends a value, or all items of a list, to `all`.
    pub(super) fn spread_into(
        &mut self,
        all: &mut Vec<Val<'a>>,
        found: Found<'a>,
        span: &Range<usize>,
    ) -> Result<(), ExprError> {
        let Some(value) = found else { return Ok(()) };
        match value.items() {
            Some(items) => {
                self.paid(span, |budget| budget.spend_steps(items.len()))?;
                all.extend(items.iter());
            }
            None => all.push(value),
        }
        Ok(())
    }

    /// Concatenates two lists. A value that is not a list counts as a list of one item.
    pub(super) fn appended(
        &mut self,
        first: Found<'a>,
        second: Found<'a>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let (first, second) = match (first, second) {
            (Some(first), Some(second)) => (first, second),
            (first, second) => return Ok(first.or(second)),
        };
        let mut items = Vec::new();
        self.spread_into(&mut items, Some(first), span)?;
        self.spread_into(&mut items, Some(second), span)?;
        self.plain(items, span).map(Some)
    }
}

/// Returns the items to group: the items of a list, or the single current value. An empty list gives one undefined
/// item, so that an object with only literals can be built.
fn group_items<'a>(here: &Here<'a>) -> Vec<Here<'a>> {
    match here {
        Here::Whole(list) => vec![Here::Item(Some(Val::Ref(list)))],
        Here::Item(Some(value)) => match value.items() {
            Some(items) if items.len() == 0 => vec![Here::Item(None)],
            Some(items) => items.iter().map(|item| Here::Item(Some(item))).collect(),
            None => vec![here.clone()],
        },
        _ => vec![here.clone()],
    }
}
