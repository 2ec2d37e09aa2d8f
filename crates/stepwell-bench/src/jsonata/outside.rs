//! Whether an expression uses what the dialect leaves out, found without the parser that is being tested.

/// JSONata's functions that take functions, draw randomness or evaluate text.
const OTHER_FUNCTIONS: [&str; 11] =
    ["map", "filter", "reduce", "sift", "each", "single", "eval", "match", "random", "shuffle", "clone"];

/// Functions whose pictures have forms that are not supported.
const PICTURED: [&str; 6] =
    ["formatNumber", "formatInteger", "parseInteger", "fromMillis", "toMillis", "now"];

pub(super) fn uses_what_is_outside(expr: &str) -> bool {
    let text = without_strings(expr);
    has_lambda(&text)
        || ["|", "@", "#$"].iter().any(|construct| text.contains(construct))
        || has_operand(&text, '%')
        || has_operand(&text, '/')
        || has_placeholder(&text)
        || has_function(&text, &OTHER_FUNCTIONS)
        || has_function(&text, &PICTURED)
        || has_function_value(&text)
}

/// The text with the inside of its strings and comments taken out.
fn without_strings(expr: &str) -> String {
    let mut kept = String::new();
    let mut rest = expr;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, behind)| behind);
            continue;
        }
        kept.push(c);
        rest = &rest[c.len_utf8()..];
        if matches!(c, '"' | '\'' | '`') {
            let mut inside = rest.char_indices();
            let mut end = rest.len();
            while let Some((place, inner)) = inside.next() {
                match inner {
                    '\\' if c != '`' => {
                        inside.next();
                    }
                    inner if inner == c => {
                        end = place;
                        break;
                    }
                    _ => {}
                }
            }
            rest = &rest[end..];
            if let Some(behind) = rest.strip_prefix(c) {
                kept.push(c);
                rest = behind;
            }
        }
    }
    kept
}

fn has_lambda(text: &str) -> bool {
    let calls = |name: &str| {
        text.match_indices(name).any(|(place, _)| text[place + name.len()..].trim_start().starts_with('('))
    };
    calls("function") || calls("λ")
}

/// Whether the symbol stands where a value belongs.
fn has_operand(text: &str, symbol: char) -> bool {
    text.match_indices(symbol).any(|(place, _)| {
        let before = text[..place].trim_end().chars().next_back();
        before.is_none_or(|c| "([{,;:=<>+-*/&?.!~".contains(c))
    })
}

/// `?` as an argument.
fn has_placeholder(text: &str) -> bool {
    text.match_indices('?').any(|(place, _)| {
        let before = text[..place].trim_end().chars().next_back();
        let behind = text[place + 1..].trim_start().chars().next();
        matches!(before, Some('(' | ',')) && matches!(behind, Some(')' | ','))
    })
}

/// The names behind a `$`, each with what follows it.
fn variables(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('$').map(|(place, _)| {
        let rest = &text[place + 1..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (&rest[..end], rest[end..].trim_start())
    })
}

fn has_function(text: &str, names: &[&str]) -> bool {
    variables(text).any(|(name, _)| names.contains(&name))
}

/// A function's name without arguments behind it.
fn has_function_value(text: &str) -> bool {
    let known = |name: &str| stepwell_core::expr::functions().iter().any(|info| info.name == name);
    variables(text).any(|(name, behind)| known(name) && !behind.starts_with('('))
}
