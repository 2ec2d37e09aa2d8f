//! Detects expressions that use constructs outside the dialect. Works on the text, without the parser under test.

/// JSONata functions that take functions, use randomness or evaluate text.
const OTHER_FUNCTIONS: [&str; 11] =
    ["map", "filter", "reduce", "sift", "each", "single", "eval", "match", "random", "shuffle", "clone"];

/// Functions with picture strings, of which some forms are not supported.
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

/// Returns the text without comments and without the content of its strings.
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

/// Returns `true` if the expression calls a function by its name without `$`.
pub(super) fn calls(expr: &str, name: &str) -> bool {
    let text = without_strings(expr);
    text.match_indices(name).any(|(place, _)| {
        let before = text[..place].chars().next_back();
        let is_whole = before.is_none_or(|c| !c.is_alphanumeric() && !"$_`".contains(c));
        is_whole && text[place + name.len()..].trim_start().starts_with('(')
    })
}

/// Returns `true` if the symbol is at a position where an operand is expected.
fn has_operand(text: &str, symbol: char) -> bool {
    text.match_indices(symbol).any(|(place, _)| {
        let before = text[..place].trim_end();
        let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let last = before.chars().next_back();
        matches!(word, "and" | "or" | "in") || last.is_none_or(|c| "([{,;:=<>+-*/&?.!~^".contains(c))
    })
}

/// Returns `true` if `?` is an argument of a call (partial application).
fn has_placeholder(text: &str) -> bool {
    text.match_indices('?').any(|(place, _)| {
        let before = text[..place].trim_end().chars().next_back();
        let behind = text[place + 1..].trim_start().chars().next();
        matches!(before, Some('(' | ',')) && matches!(behind, Some(')' | ','))
    })
}

/// Returns the names after each `$`, with the text that follows the name.
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

/// Returns `true` if the name of a function appears without a call.
fn has_function_value(text: &str) -> bool {
    let known = |name: &str| stepwell_core::expr::functions().iter().any(|info| info.name == name);
    variables(text).any(|(name, behind)| known(name) && !behind.starts_with('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a case with a join by `@` failed, although the dialect refuses it.
    #[test]
    fn constructs_outside_the_dialect_are_found() {
        for expr in [
            "library.loans@$l.books@$b[$l.isbn = $b.isbn]",
            "a#$i[$i > 1]",
            "a.b.%.c",
            "/x/i",
            "$contains(a, /x/)",
            "a ~> |b|{'c': 1}|",
            "$map(a, b)",
            "function($x) { $x }",
            "λ($x) { $x }",
            "$substring(?, 1)",
            "a ~> $f ~> $sum",
        ] {
            assert!(uses_what_is_outside(expr), "{expr}");
        }
    }

    #[test]
    fn constructs_in_strings_and_comments_do_not_count() {
        for expr in
            ["'a@b#c|d'", "`x@y`.z", "/* a@$b */ c", "a / b % c", "a ? b : c", "$sum(a)", "a = \"'@\""]
        {
            assert!(!uses_what_is_outside(expr), "{expr}");
        }
    }

    #[test]
    fn calls_without_a_dollar_are_found() {
        assert!(calls("a.length()", "length") && calls("1 + sum (a)", "sum"));
        assert!(
            !calls("$length(a)", "length")
                && !calls("'length(a)'", "length")
                && !calls("mylength(a)", "length")
        );
    }
}
