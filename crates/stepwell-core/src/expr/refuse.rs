//! The parts of JSONata that the dialect does not support.
//!
//! The meaning of a stored expression must never change, so an unsupported construct is rejected when it is parsed.
//! The error says that the construct is known but not supported, and what to write instead.

use super::function::{Function, functions};
use crate::near;

pub(super) const LAMBDA: &str = "custom functions (`function(…) {…}`) are not part of the dialect: map with \
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
    "position binding (`#`) is not part of the dialect: select items by index with `[n]` or `[[m..n]]`";
pub(super) const BEHIND_GROUP: &str = "a step after a grouping is not part of the dialect, because JSONata would \
    evaluate it before the grouping: put the grouping in parentheses";
pub(super) const BEHIND_APPLY: &str = "JSONata would ignore the part after the function of `~>`: put the chain in \
    parentheses";

/// JSONata functions that the dialect does not have, and their replacements.
const OTHER_FUNCTIONS: [(&str, &str); 12] = [
    ("map", "map with `list.(…)`"),
    ("filter", "filter with `list[…]`"),
    ("reduce", "use `sum`, `max`, `min`, `average`, `join` or `merge`"),
    ("single", "filter with `list[…]`"),
    ("sift", "build the object with `{…}`"),
    ("each", "use `keys` and `values`"),
    ("eval", "write the expression itself"),
    ("match", "use `contains`, `split` or `replace` with strings"),
    ("random", "generate the number in an action, so that it is recorded"),
    ("shuffle", "shuffle in an action, so that the order is recorded"),
    ("clone", "values never change, so copies are not needed"),
    ("typeOf", "use `type`"),
];

/// Returns the error message for an unknown function. The flag is true if the function exists in JSONata and is
/// excluded on purpose.
pub(super) fn function(name: &str) -> (bool, String) {
    if let Some((_, instead)) = OTHER_FUNCTIONS.iter().find(|(other, _)| *other == name) {
        return (true, format!("JSONata's function `${name}` is not part of the dialect: {instead}"));
    }
    let known: Vec<String> = functions().iter().map(|info| format!("${}", info.name)).collect();
    let meant = near::did_you_mean(&format!("${name}"), known.iter().map(String::as_str));
    (false, format!("unknown function `${name}`{meant}"))
}

/// Returns the error message for a function name without arguments, or `None` if it is not the name of a function.
pub(super) fn function_value(name: &str) -> Option<String> {
    let is_known = Function::named(name).is_some() || OTHER_FUNCTIONS.iter().any(|(other, _)| *other == name);
    is_known.then(|| {
        format!(
            "`${name}` is a function, but functions as values are not part of the dialect: call the function"
        )
    })
}

/// Returns the error for an operator of other languages, with its replacement.
pub(super) fn foreign(symbol: &str) -> Option<(&'static str, &'static str)> {
    match symbol {
        "==" => Some(("S0211", "`==` is not an operator: write `=`")),
        "&&" => Some(("S0211", "`&&` is not an operator: write `and`")),
        "||" => Some(("S0201", "`||` is not an operator: write `or`")),
        "!" => Some(("S0204", "`!` is not an operator: write `$not(…)`")),
        "~" => Some(("S0204", "`~` is not an operator")),
        _ => None,
    }
}
