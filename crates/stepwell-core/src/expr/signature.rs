//! Function parameters, and the assignment of arguments to them.
//!
//! JSONata assigns arguments by their types, from the left. If the first argument has another type than the first
//! parameter, that parameter was omitted, and the current item takes its place.

use serde_json::Value;

use super::value::{Found, Val, View};

pub(super) const STRING: u8 = 1;
pub(super) const NUMBER: u8 = 2;
pub(super) const BOOLEAN: u8 = 4;
pub(super) const NULL: u8 = 8;
pub(super) const LIST: u8 = 16;
pub(super) const OBJECT: u8 = 32;
/// The type of undefined, which every parameter accepts.
const UNDEFINED: u8 = 64;
pub(super) const ANY: u8 = STRING | NUMBER | BOOLEAN | NULL | LIST | OBJECT;

/// One parameter of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Param {
    /// The accepted types, as bits.
    takes: u8,
    /// True if the parameter is a list. A single value becomes a list of one item.
    pub(super) is_list: bool,
    /// The type of the list's items; zero means any type.
    items: u8,
    is_optional: bool,
    /// True if the parameter defaults to the current item.
    is_here: bool,
    /// True if the parameter takes all remaining arguments, at least one.
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

    /// Returns the accepted type for messages.
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

/// The reason why arguments do not match the parameters.
pub(super) enum SchemaViolation {
    /// The argument at this index, counted from zero, has a type that the parameter does not accept.
    Argument(usize, Param),
    /// The current item, which replaces an omitted argument, has the wrong type.
    Here(Param),
    /// The argument at this index is a list with items of the wrong type.
    Items(usize, Param),
}

/// Assigns the arguments to the parameters. A parameter that takes many arguments has all of them.
pub(super) fn fit<'a>(
    params: &[Param],
    arguments: Vec<Found<'a>>,
    here: impl FnOnce() -> Found<'a>,
) -> Result<Vec<Found<'a>>, SchemaViolation> {
    let Some(counts) = counts(params, &arguments) else { return Err(first_mismatch(params, &arguments)) };
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
                return Err(SchemaViolation::Here(*param));
            }
            fitted.push(value);
        }
        for (place, value) in arguments.by_ref().take(count) {
            fitted.push(if param.is_list { as_list(*param, value, place)? } else { value });
        }
    }
    Ok(fitted)
}

/// Returns the number of arguments of each parameter, or `None` if they do not match. The assignment is greedy from
/// the left, like JSONata's regular expression for it.
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

/// Returns the first argument that does not match any parameter.
fn first_mismatch(params: &[Param], arguments: &[Found<'_>]) -> SchemaViolation {
    let mut place = 0;
    for param in params {
        match arguments.get(place) {
            Some(value) if param.fits(value) => place += 1,
            _ if param.can_be_left_out() => {}
            _ => return SchemaViolation::Argument(place, *param),
        }
    }
    SchemaViolation::Argument(place, params.last().copied().unwrap_or(one(ANY)))
}

/// Converts an argument for a list parameter.
fn as_list<'a>(param: Param, value: Found<'a>, place: usize) -> Result<Found<'a>, SchemaViolation> {
    let Some(value) = value else { return Ok(None) };
    let fits = |item: &Val<'a>| param.items == 0 || param.items & type_of(&Some(item.clone())) != 0;
    match value.items() {
        Some(items) if items.iter().all(|item| fits(&item)) => Ok(Some(value)),
        None if fits(&value) => {
            let list = super::value::List::plain(vec![value]);
            list.map(|list| Some(Val::list(list))).map_err(|_| SchemaViolation::Items(place, param))
        }
        _ => Err(SchemaViolation::Items(place, param)),
    }
}
