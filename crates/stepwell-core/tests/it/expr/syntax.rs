//! Syntax: accepted expressions, unsupported features, and error messages.

use serde_json::json;
use stepwell_core::expr::ExprErrorKind;

use super::{all_fail, all_fail_with, all_give, all_undefined};

#[test]
fn literals() {
    all_give(&[
        ("null", json!(null)),
        ("true", json!(true)),
        ("false", json!(false)),
        ("42", json!(42)),
        ("-42", json!(-42)),
        ("1.5e3", json!(1500.0)),
        ("-0.0", json!(0.0)),
        (r#""double""#, json!("double")),
        ("'single'", json!("single")),
        (r#"'"' & "'""#, json!("\"'")),
        (r#""\"\\\/\b\f\n\r\t\u00e9""#, json!("\"\\/\u{8}\u{c}\n\r\té")),
        (r#""\uD83D\uDE00""#, json!("😀")),
        ("/* before */ 1 /* behind */", json!(1)),
        ("1 /* a */ + /* b */ 1", json!(2)),
        ("{}", json!({})),
        ("{'a': 1, 'b': {'c': [2]}}", json!({"a": 1, "b": {"c": [2]}})),
        ("{'a': missing, 'b': null}", json!({"b": null})),
        ("{missing: 1}", json!({})),
        ("{'k' & 1: 2}", json!({"k1": 2})),
    ]);
    all_fail_with(&[("{1: 2}", "T1003"), ("{'a': 1, 'a': 2}", "D1009"), ("{null: 2}", "T1003")]);
}

#[test]
fn variables_are_scoped_to_their_block() {
    all_give(&[
        ("(1; 2; 3)", json!(3)),
        ("(1; 2; )", json!(2)),
        ("($a := 2; $b := $a * 3; $a + $b)", json!(8)),
        ("($a := $b := 5; $a + $b)", json!(10)),
        ("($a := 1; ($a := 2; $a) + $a)", json!(3)),
        ("($a := 1; $a := $a + 1; $a)", json!(2)),
        ("($x := payload; $x.amount)", json!(120)),
        ("($sum := 5; $sum)", json!(5)),
        ("payload.items.($n := n; $n * 10)", json!([10, 20])),
        ("($limit := 1; payload.items[n > $limit].sku)", json!("b")),
        ("$a := 5", json!(5)),
    ]);
    all_undefined(&[
        "()",
        "($a := 1; ($b := 2); $b)",
        "($a := missing; $a)",
        "($a := 1; ($a := missing; $a))",
    ]);
}

#[test]
fn chain_operator_calls_functions() {
    all_give(&[
        ("payload.name ~> $uppercase()", json!("ANN")),
        ("payload.name ~> $uppercase() ~> $lowercase()", json!("ann")),
        ("payload.name ~> uppercase()", json!("ANN")),
        ("payload.name ~> $uppercase", json!("ANN")),
        ("context.tags ~> $join('-')", json!("x-y")),
        ("[1..4] ~> $sum()", json!(10)),
        ("1 + 1 ~> $string()", json!("2")),
        ("1 ~> $string() = '1' and true", json!(true)),
    ]);
    all_fail_with(&[("42 ~> 'hello'", "T2006"), ("payload ~> $nowhere()", "T1006"), ("1 ~> name", "T2006")]);
    let refused = ExprErrorKind::Unsupported;
    all_fail(&[
        ("context.tags ~> $sort()[0]", refused, "put the chain in parentheses"),
        ("context.tags ~> $sort(){'a': 1}", refused, "put the chain in parentheses"),
        ("context.tags ~> $sort().x", ExprErrorKind::Type, "put the chain in parentheses"),
        ("1 ~> $string() & 'a'", ExprErrorKind::Type, "put the chain in parentheses"),
    ]);
    all_give(&[("(context.tags ~> $sort())[0]", json!("x")), ("payload.name ~> $keys()[] ?? 1", json!(1))]);
}

#[test]
fn unsupported_jsonata_features_are_refused_by_name() {
    let refusals = [
        ("function($x) { $x }", "custom functions"),
        ("λ($x) { $x }", "custom functions"),
        ("$sort(a, function($x, $y) { $x > $y })", "custom functions"),
        ("$string", "`$string` is a function, but functions as values are not part of the dialect"),
        ("($f := $sum; $f(1))", "functions as values"),
        ("$exists($map)", "functions as values"),
        ("$map([1], $string)", "`$map` is not part of the dialect: map with `list.(…)`"),
        ("$filter([1], $boolean)", "filter with `list[…]`"),
        ("$reduce([1], $append)", "`$reduce` is not part of the dialect"),
        ("$sift(a, $boolean)", "`$sift`"),
        ("$each(a, $string)", "`$each`"),
        ("$single([1])", "`$single`"),
        ("$eval('1')", "`$eval`"),
        ("$match('a', 'b')", "`$match`"),
        ("$random()", "`$random` is not part of the dialect: generate the number in an action"),
        ("$shuffle([1])", "`$shuffle`"),
        ("$clone(a)", "`$clone`"),
        ("$contains(a, /b.*[/)", "regular expressions"),
        ("a ~> |b|{'b': 1}|", "transforms"),
        ("a.%.b", "the parent operator (`%`)"),
        ("%", "the parent operator (`%`)"),
        ("a@$b.c", "context binding (`@`)"),
        ("a#$i.c", "position binding (`#`)"),
        ("$contains(?, 'a')", "partial application"),
        ("3(?)", "partial application"),
        ("a{b: c}.d", "put the grouping in parentheses"),
        ("a{b: c}^(d)", "put the grouping in parentheses"),
    ];
    for (source, part) in refusals {
        all_fail(&[(source, ExprErrorKind::Unsupported, part)]);
        all_fail_with(&[(source, "unsupported")]);
    }
}

#[test]
fn syntax_errors_say_what_was_expected() {
    let syntax = ExprErrorKind::Syntax;
    all_fail(&[
        ("", syntax, "empty"),
        (" /* only this */ ", syntax, "empty"),
        ("1 +", syntax, "expected a value, found the end"),
        ("1 2", syntax, "expected an operator, found `2`"),
        ("a b", syntax, "expected an operator, found `b`"),
        ("not a", syntax, "expected an operator, found `a`"),
        ("(1", syntax, "expected `)` to close `(`, found the end"),
        ("[1, 2", syntax, "expected `]` to close `[`"),
        ("[1,]", syntax, "expected a value, found `]`"),
        ("$string(1", syntax, "expected `)` to close `(`"),
        ("{'a' 1}", syntax, "expected `:` and a value after the key, found `1`"),
        ("1)", syntax, "unexpected `)`"),
        ("1, 2", syntax, "unexpected `,`"),
        ("a.", syntax, "expected the name of a field, found the end"),
        ("a.1", syntax, "`1` is not the name of a field"),
        ("a.true", syntax, "`true` is not the name of a field: put the name in back-quotes"),
        ("a^b", syntax, "expected `(` after `^`, found `b`"),
        ("a && b", syntax, "write `and`"),
        ("a == b", syntax, "write `=`"),
        ("a || b", syntax, "write `or`"),
        ("!a", syntax, "write `$not(…)`"),
        ("= 1", syntax, "expected a value, found `=`"),
        ("'a", syntax, "the string is not closed"),
        ("`a", syntax, "back-quotes is not closed"),
        ("1 /* a", syntax, "the comment is not closed"),
        (r"'\x'", syntax, "escape"),
        (r"'\'", syntax, "escape"),
        (r"'\u12'", syntax, "four hexadecimal digits"),
        (r"'\uD83D'", syntax, "surrogate"),
        (r"'\uD83D\u0041'", syntax, "surrogate"),
        ("01", syntax, "start with a zero"),
        ("1e400", syntax, "too large"),
        ("a \\ b", syntax, "unexpected character"),
        ("x := 1", syntax, "only a variable"),
    ]);
}

#[test]
fn syntax_errors_have_the_codes_of_jsonata() {
    all_fail_with(&[
        ("'a", "S0101"),
        ("1e1000", "S0102"),
        (r"'\y'", "S0103"),
        (r"'\u12'", "S0104"),
        ("`a", "S0105"),
        ("/* a", "S0106"),
        ("1 2", "S0201"),
        ("a;", "S0201"),
        ("[1:2]", "S0202"),
        ("[1,2)", "S0202"),
        ("(1", "S0203"),
        ("(1 +", "S0203"),
        ("a ! b", "S0204"),
        ("", "S0207"),
        ("1 +", "S0207"),
        ("[1]{'a': $}[0]", "S0209"),
        ("a{'a': $}{'b': $}", "S0210"),
        ("a =>b", "S0211"),
        ("2 := 1", "S0212"),
        ("a == b", "S0211"),
        ("(01)", "S0202"),
        ("payload.7a", "S0201"),
        ("$.7a", "S0201"),
        ("a.2", "S0213"),
        ("f(a, ?2)", "S0202"),
        ("3(4)", "T1006"),
        ("$nowhere(4)", "T1006"),
    ]);
}

/// JSONata reports these only when it evaluates the part, so every error of the syntax comes first.
#[test]
fn early_errors_come_after_errors_of_the_syntax() {
    all_fail_with(&[
        ("[$nowhere(1)", "S0203"),
        ("$length(1, 2) +", "S0207"),
        ("($nowhere(1) ~> 7", "S0203"),
        ("$nowhere(1.a)", "S0213"),
        ("$nowhere(1).b", "T1006"),
        ("false and $nowhere($length(1, 2))", "T0410"),
    ]);
}

#[test]
fn operator_keywords_are_names_where_a_value_is_expected() {
    all_give(&[
        ("in + 1", json!(8)),
        ("in in [7]", json!(true)),
        ("in = 7 and in > 6", json!(true)),
        ("payload.`odd key`.in", json!(1)),
    ]);
    all_undefined(&["and", "payload.or"]);
}
