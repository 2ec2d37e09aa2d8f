//! What the dialect leaves out of JSONata, by name.
//!
//! A stored expression must never change its meaning, so a construct that is not evaluated is refused when it
//! is parsed; and whoever wrote it should read that it is known and left out and what to write instead, not
//! that a character was unexpected.

use super::function::{Function, functions};
use crate::near;

pub(super) const LAMBDA: &str = "functions of one's own (`function(…) {…}`) are not part of the dialect: map with \
    `list.(…)`, filter with `list[…]`, sort with `list^(…)`";
pub(super) const PARTIAL: &str =
    "partial application (`?` as an argument) is not part of the dialect: write every argument";
pub(super) const REGEX: &str = "regular expressions (`/…/`) are not part of the dialect: use `contains`, \
    `startsWith`, `endsWith`, `split` or `replace` with strings";
pub(super) const TRANSFORM: &str = "transforms (`|…|…|`) are not part of the dialect: build the object with `{…}` or \
    with `merge([object, {…}])`";
pub(super) const PARENT: &str = "the parent operator (`%`) is not part of the dialect: bind what you need to a \
    variable before the step (`($a := …; …)`)";
pub(super) const FOCUS: &str =
    "context binding (`@`) is not part of the dialect: bind a variable in a block (`.($a := $; …)`)";
pub(super) const POSITION: &str =
    "position binding (`#`) is not part of the dialect: pick items by their place with `[n]` or `[[m..n]]`";
pub(super) const BEHIND_GROUP: &str = "a step behind a grouping is not part of the dialect, because JSONata would \
    take it before grouping: put the grouping in parentheses";
pub(super) const BEHIND_APPLY: &str = "what stands behind the function of `~>` would be left out by JSONata: put \
    the chain in parentheses";

/// JSONata's own functions that the dialect does not have, and what to do instead.
const OTHER_FUNCTIONS: [(&str, &str); 12] = [
    ("map", "map with `list.(…)`"),
    ("filter", "filter with `list[…]`"),
    ("reduce", "use `sum`, `max`, `min`, `average`, `join` or `merge`"),
    ("single", "filter with `list[…]`"),
    ("sift", "build the object with `{…}`"),
    ("each", "use `keys` and `values`"),
    ("eval", "write the expression itself"),
    ("match", "use `contains`, `split` or `replace` with strings"),
    ("random", "draw it in an action, so that it is recorded"),
    ("shuffle", "shuffle in an action, so that the order is recorded"),
    ("clone", "values never change, so there is nothing to copy"),
    ("typeOf", "use `type`"),
];

/// Why there is no such function, and whether that is on purpose.
pub(super) fn function(name: &str) -> (bool, String) {
    if let Some((_, instead)) = OTHER_FUNCTIONS.iter().find(|(other, _)| *other == name) {
        return (true, format!("JSONata's function `${name}` is not part of the dialect: {instead}"));
    }
    let known: Vec<String> = functions().iter().map(|info| format!("${}", info.name)).collect();
    let meant = near::did_you_mean(&format!("${name}"), known.iter().map(String::as_str));
    (false, format!("there is no function `${name}`{meant}"))
}

/// Why a function's name cannot stand without its arguments; `None` if it is no function's name.
pub(super) fn function_value(name: &str) -> Option<String> {
    let is_known = Function::named(name).is_some() || OTHER_FUNCTIONS.iter().any(|(other, _)| *other == name);
    is_known.then(|| {
        format!("`${name}` is a function, and functions as values are not part of the dialect: call it")
    })
}

/// What belongs in the place of a symbol that other languages have.
pub(super) fn foreign(symbol: &str) -> Option<(&'static str, &'static str)> {
    match symbol {
        "&&" => Some(("S0211", "`&&` is not an operator: write `and`")),
        "||" => Some(("S0201", "`||` is not an operator: write `or`")),
        "!" => Some(("S0204", "`!` is not an operator: write `$not(…)`")),
        "~" => Some(("S0204", "`~` is not an operator")),
        _ => None,
    }
}
