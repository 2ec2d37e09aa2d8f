//! What a function takes, and how the arguments of a call are fitted to it.
//!
//! JSONata fits arguments by their types, from the left: a first argument of another type than the function
//! wants was left out, and the item at hand takes its place.

use serde_json::Value;

use super::value::{Found, Val, View};

pub(super) const STRING: u8 = 1;
pub(super) const NUMBER: u8 = 2;
pub(super) const BOOLEAN: u8 = 4;
pub(super) const NULL: u8 = 8;
pub(super) const LIST: u8 = 16;
pub(super) const OBJECT: u8 = 32;
/// Fits every parameter.
const UNDEFINED: u8 = 64;
pub(super) const ANY: u8 = STRING | NUMBER | BOOLEAN | NULL | LIST | OBJECT;

/// One parameter of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Param {
    /// The types it takes, as bits.
    takes: u8,
    /// It is a list; anything else is made one.
    pub(super) is_list: bool,
    /// The type of the list's items; zero is any.
    items: u8,
    is_optional: bool,
    /// Left out, it is the item at hand.
    is_here: bool,
    /// It takes every argument that is left, and at least one.
    pub(super) is_many: bool,
}

pub(super) const fn one(takes: u8) -> Param {
    Param { takes, is_list: false, items: 0, is_optional: false, is_here: false, is_many: false }
}

pub(super) const fn list(items: u8) -> Param {
    Param { is_list: true, items, ..one(ANY) }
}

impl Param {
    pub(super) const fn optional(self) -> Self {
        Param { is_optional: true, ..self }
    }

    pub(super) const fn or_here(self) -> Self {
        Param { is_here: true, ..self }
    }

    pub(super) const fn many(self) -> Self {
        Param { is_many: true, ..self }
    }

    pub(super) const fn can_be_left_out(self) -> bool {
        self.is_optional || self.is_here
    }

    fn fits(self, value: &Found<'_>) -> bool {
        type_of(value) & (self.takes | UNDEFINED) != 0
    }

    /// What it takes, for messages.
    pub(super) fn wants(self) -> &'static str {
        match if self.is_list { self.items } else { self.takes } {
            STRING if self.is_list => "a list of strings",
            NUMBER if self.is_list => "a list of numbers",
            OBJECT if self.is_list => "a list of objects",
            STRING => "a string",
            NUMBER => "a number",
            BOOLEAN => "a boolean",
            OBJECT => "an object",
            _ => "a string, a number or a boolean",
        }
    }
}

fn type_of(value: &Found<'_>) -> u8 {
    let Some(value) = value else { return UNDEFINED };
    match value {
        Val::Ref(Value::Null) => NULL,
        _ => match value.view() {
            View::Null => NULL,
            View::Bool(_) => BOOLEAN,
            View::Number(_) => NUMBER,
            View::Text(_) => STRING,
            View::List(_) => LIST,
            View::Object(_) => OBJECT,
        },
    }
}

/// Why arguments do not fit.
pub(super) enum Misfit {
    /// The argument at this place, counted from zero, is of a type that is not taken there.
    Argument(usize, Param),
    /// The item at hand, which takes the place of an argument that was left out, is of the wrong type.
    Here(Param),
    /// The argument at this place is a list of the wrong things.
    Items(usize, Param),
}

/// The arguments in the places of their parameters. Those of a parameter that takes many are all there.
pub(super) fn fit<'a>(
    params: &[Param],
    arguments: Vec<Found<'a>>,
    here: impl FnOnce() -> Found<'a>,
) -> Result<Vec<Found<'a>>, Misfit> {
    let Some(counts) = counts(params, &arguments) else { return Err(first_misfit(params, &arguments)) };
    let mut here = Some(here);
    let mut arguments = arguments.into_iter().enumerate();
    let mut fitted = Vec::with_capacity(params.len());
    for (param, count) in params.iter().zip(counts) {
        if count == 0 {
            let value = match here.take() {
                Some(here) if param.is_here => here(),
                _ => None,
            };
            if param.is_here && !param.fits(&value) {
                return Err(Misfit::Here(*param));
            }
            fitted.push(value);
        }
        for (place, value) in arguments.by_ref().take(count) {
            fitted.push(if param.is_list { as_list(*param, value, place)? } else { value });
        }
    }
    Ok(fitted)
}

/// How many arguments each parameter takes; `None` if they cannot be fitted. Greedy from the left, as JSONata
/// does it with a regular expression.
fn counts(params: &[Param], arguments: &[Found<'_>]) -> Option<Vec<usize>> {
    let Some((param, rest)) = params.split_first() else {
        return arguments.is_empty().then(Vec::new);
    };
    let fitting = arguments.iter().take_while(|value| param.fits(value)).count();
    let most = if param.is_many { fitting } else { fitting.min(1) };
    let fewest = usize::from(!param.can_be_left_out());
    (fewest..=most).rev().find_map(|count| {
        let mut counts = counts(rest, &arguments[count..])?;
        counts.insert(0, count);
        Some(counts)
    })
}

/// The argument that broke the fit: the first that no prefix of the parameters can take.
fn first_misfit(params: &[Param], arguments: &[Found<'_>]) -> Misfit {
    let mut place = 0;
    for param in params {
        match arguments.get(place) {
            Some(value) if param.fits(value) => place += 1,
            _ if param.can_be_left_out() => {}
            _ => return Misfit::Argument(place, *param),
        }
    }
    Misfit::Argument(place, params.last().copied().unwrap_or(one(ANY)))
}

/// A list for a parameter that is one.
fn as_list<'a>(param: Param, value: Found<'a>, place: usize) -> Result<Found<'a>, Misfit> {
    let Some(value) = value else { return Ok(None) };
    let fits = |item: &Val<'a>| param.items == 0 || param.items & type_of(&Some(item.clone())) != 0;
    match value.items() {
        Some(items) if items.iter().all(|item| fits(&item)) => Ok(Some(value)),
        None if fits(&value) => {
            let list = super::value::List::plain(vec![value]);
            list.map(|list| Some(Val::list(list))).map_err(|_| Misfit::Items(place, param))
        }
        _ => Err(Misfit::Items(place, param)),
    }
}
