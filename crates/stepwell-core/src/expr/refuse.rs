//! What the dialect leaves out of JSONata, by name.
//!
//! A stored expression must never change its meaning, so a construct that is not evaluated yet is refused
//! when it is parsed; and whoever wrote it should read that it is known and left out, not that a character
//! was unexpected.

use super::ExprErrorKind;
use super::ast::Function;
use crate::near;

/// JSONata's own functions that the dialect does not have.
const OTHER_FUNCTIONS: &str = "abs append assert average base64decode base64encode ceil clone decodeUrl \
    decodeUrlComponent distinct each encodeUrl encodeUrlComponent error eval filter floor formatBase formatInteger \
    formatNumber fromMillis join keys lookup map match max merge millis min now pad parseInteger power random reduce \
    replace reverse round shuffle sift single sort split spread sqrt substring substringAfter substringBefore sum \
    toMillis trim type typeOf zip";

pub(super) const LAMBDA: &str = "lambda functions are not part of the dialect";
pub(super) const BINDING: &str = "variable binding (`:=`) is not supported";
pub(super) const CONTEXT: &str = "`$` and `$$` are not supported: begin with the name of a root";
pub(super) const KEEP_LIST: &str = "`[]` behind a value (keep it a list) is not supported";
pub(super) const PREDICATE: &str =
    "predicates are not supported: only a whole number can be between `[` and `]` behind a value";
pub(super) const STRING_STEP: &str = "a string as a step is not supported: use back-quotes";
pub(super) const EXPRESSION_STEP: &str = "an expression as a step is not supported: only names";
pub(super) const FUNCTION_STEP: &str = "a function as a step is not supported";

/// Why a symbol cannot begin a value; `None` if it is merely in the wrong place.
pub(super) fn as_operand(symbol: &str) -> Option<(ExprErrorKind, &'static str)> {
    let message = match symbol {
        "*" => "wildcards (`*`) are not supported",
        "%" => "the parent operator (`%`) is not supported",
        "/" => "regular expressions (`/…/`) are not supported",
        "{" => "object constructors (`{…}`) are not supported",
        "?" => "partial application (`?` as an argument) is not supported",
        _ => return anywhere(symbol),
    };
    Some((ExprErrorKind::Unsupported, message))
}

/// Why a symbol cannot follow a value; `None` if it is merely in the wrong place.
pub(super) fn as_operator(symbol: &str) -> Option<(ExprErrorKind, &'static str)> {
    let message = match symbol {
        "{" => "grouping (`{…}` behind a value) is not supported",
        "(" => "calling a value is not supported: only named functions can be called",
        "." | "[" => "taking a part of a literal is not supported",
        _ => return anywhere(symbol),
    };
    Some((ExprErrorKind::Unsupported, message))
}

/// Why there is no function of this name, with the one that was probably meant.
pub(super) fn function(name: &str) -> String {
    if OTHER_FUNCTIONS.split_whitespace().any(|other| other == name) {
        return format!("JSONata's function `${name}` is not supported");
    }
    let known: Vec<String> = Function::ALL.iter().map(|function| format!("${}", function.name())).collect();
    let meant = near::did_you_mean(&format!("${name}"), known.iter().map(String::as_str));
    format!("there is no function `${name}`{meant}")
}

fn anywhere(symbol: &str) -> Option<(ExprErrorKind, &'static str)> {
    let message = match symbol {
        "**" => "descendant wildcards (`**`) are not supported",
        ".." => "ranges (`..`) are not supported",
        ":=" => BINDING,
        "~>" => "function chains (`~>`) are not supported",
        "|" => "transforms (`|…|`) are not supported",
        "^" => "sorting (`^(…)`) is not supported",
        "@" => "context binding (`@`) is not supported",
        "#" => "position binding (`#`) is not supported",
        ";" => "blocks of several expressions (`;`) are not supported",
        "&&" => return Some((ExprErrorKind::Syntax, "`&&` is not an operator: write `and`")),
        "||" => return Some((ExprErrorKind::Syntax, "`||` is not an operator: write `or`")),
        "!" => return Some((ExprErrorKind::Syntax, "`!` is not an operator: write `$not(…)`")),
        _ => return None,
    };
    Some((ExprErrorKind::Unsupported, message))
}
