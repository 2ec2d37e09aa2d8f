//! The expression dialect: what is accepted means what JSONata means by it, and the rest is refused by name.

use proptest::prelude::{Strategy, prop, proptest};
use serde_json::{Map, Value, json};
use stepwell_core::expr::{
    Budget, DIALECT, Expr, ExprError, ExprErrorKind, MAX_DEPTH, MAX_SOURCE_BYTES, Roots, Scope,
};

fn scope() -> Map<String, Value> {
    let scope = json!({
        "payload": {
            "amount": 120,
            "price": 2.5,
            "name": "Ann",
            "note": null,
            "ok": true,
            "text": "12",
            "empty": [],
            "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
            "nested": [[1, 2], [3]],
            "odd key": {"in": 1},
            "big": 18_446_744_073_709_551_615_u64
        },
        "context": {"limit": 100, "tags": ["x", "y"], "blank": {}},
        "in": 7
    });
    scope.as_object().cloned().expect("it is an object")
}

fn eval(source: &str) -> Result<Option<Value>, ExprError> {
    Expr::parse(source)?.eval(&scope(), &mut Budget::default())
}

fn value(source: &str) -> Option<Value> {
    eval(source).unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn failure(source: &str) -> ExprError {
    match eval(source) {
        Err(error) => error,
        Ok(found) => panic!("{source} gave {found:?}"),
    }
}

/// Each row: an expression and its value.
fn all_give(rows: &[(&str, Value)]) {
    for (source, expected) in rows {
        assert_eq!(value(source).as_ref(), Some(expected), "{source}");
    }
}

fn all_undefined(sources: &[&str]) {
    for source in sources {
        assert_eq!(value(source), None, "{source}");
    }
}

/// Each row: an expression, the sort of its error and a part of the message.
fn all_fail(rows: &[(&str, ExprErrorKind, &str)]) {
    for (source, kind, part) in rows {
        let error = failure(source);
        assert_eq!(error.kind, *kind, "{source}: {error}");
        assert!(error.message.contains(part), "{source}: {} lacks {part}", error.message);
    }
}

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
    ]);
}

#[test]
fn paths() {
    all_give(&[
        ("payload.name", json!("Ann")),
        ("`payload`.`odd key`.in", json!(1)),
        ("`in`", json!(7)),
        ("payload . amount", json!(120)),
        ("payload.items[0].sku", json!("a")),
        ("payload.items[-1].sku", json!("b")),
        ("payload.items[ - 2 ].sku", json!("a")),
        ("payload.nested[0][1]", json!(2)),
        ("(payload.items)[1].n", json!(2)),
        ("(payload).items[1].n", json!(2)),
        ("[1, 2, [3, 4]][-1]", json!([3, 4])),
        ("$coalesce(payload.note, payload).name", json!("Ann")),
        ("payload.empty", json!([])),
        // Anything that is no list is a list of itself.
        ("payload.amount[0]", json!(120)),
        ("payload.amount[-1]", json!(120)),
        ("payload.note[0]", json!(null)),
    ]);
    all_undefined(&[
        "missing",
        "missing.a.b",
        "payload.missing",
        "payload.name.length",
        "payload.note.x",
        "payload.items[2]",
        "payload.items[-3]",
        "payload.items[9223372036854775807]",
        "payload.items[-9223372036854775808]",
        "payload.amount[1]",
        "payload.missing[0]",
    ]);
}

#[test]
fn arithmetic() {
    all_give(&[
        ("1 + 2 * 3 - 4 / 2", json!(5)),
        ("(1 + 2) * 3", json!(9)),
        ("10 - 4 - 3", json!(3)),
        ("-payload.amount + 1", json!(-119)),
        ("- -5", json!(5)),
        ("-(2 + 3)", json!(-5)),
        ("2 - -3", json!(5)),
        ("7 / 2", json!(3.5)),
        ("6 / 2", json!(3)),
        ("7 % 3", json!(1)),
        ("-7 % 3", json!(-1)),
        ("7.5 % 2", json!(1.5)),
        ("1 + 0.5", json!(1.5)),
        ("0 * -1.5", json!(0.0)),
        ("payload.price * 2", json!(5.0)),
    ]);
    all_undefined(&["missing + 1", "1 * missing", "-missing", "missing / 0"]);
    all_fail(&[
        ("1 / 0", ExprErrorKind::Arithmetic, "division by zero: `1 / 0`"),
        ("1 % 0", ExprErrorKind::Arithmetic, "division by zero"),
        ("1.5 / 0.0", ExprErrorKind::Arithmetic, "division by zero"),
        ("1e308 * 10", ExprErrorKind::Arithmetic, "too large"),
        ("payload.name + 1", ExprErrorKind::Type, "`payload.name` is a string, and `+` needs numbers"),
        ("1 - payload.items", ExprErrorKind::Type, "`payload.items` is a list, and `-` needs numbers"),
        ("missing * null", ExprErrorKind::Type, "`null` is null, and `*` needs numbers"),
        ("-payload.ok", ExprErrorKind::Type, "`payload.ok` is a boolean, and `-` needs numbers"),
    ]);
}

#[test]
fn integers_are_exact_to_64_bits() {
    all_give(&[
        ("9223372036854775807", json!(i64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("9223372036854775806 + 1", json!(i64::MAX)),
        ("-9223372036854775807 - 1", json!(i64::MIN)),
        ("-4611686018427387904 * 2", json!(i64::MIN)),
        ("9223372036854775807 / 7", json!(i64::MAX / 7)),
        ("-9223372036854775808 % -1", json!(0)),
        ("9007199254740993 + 0", json!(9_007_199_254_740_993_i64)),
        ("9007199254740993 = 9007199254740992.0", json!(false)),
        ("9007199254740993 > 9007199254740992.0", json!(true)),
        ("9223372036854775807 < 9223372036854775808.0", json!(true)),
        ("1 < 1.5 and 2 > 1.5 and -1 > -1.5 and -2 < -1.5", json!(true)),
        ("9223372036854775807 & ''", json!("9223372036854775807")),
        ("$number('-9223372036854775808')", json!(i64::MIN)),
        // Unsigned data is looked at exactly, though nothing larger than an i64 is calculated.
        ("payload.big", json!(u64::MAX)),
        ("payload.big > 9223372036854775807", json!(true)),
        ("payload.big & ''", json!("18446744073709551615")),
        ("payload.big - 9223372036854775808.0 > 0", json!(true)),
    ]);
    all_fail(&[
        ("9223372036854775807 + 1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-9223372036854775808 - 1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("4611686018427387904 * 2", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-9223372036854775808 / -1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-(-9223372036854775808)", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("payload.big * payload.big", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("9223372036854775808", ExprErrorKind::Syntax, "does not fit in 64 bits"),
        ("-9223372036854775809", ExprErrorKind::Syntax, "does not fit in 64 bits"),
        ("$number('9223372036854775808')", ExprErrorKind::Type, "not a number that fits"),
    ]);
}

#[test]
fn concatenation() {
    all_give(&[
        ("'a' & 'b' & 'c'", json!("abc")),
        ("payload.name & ': ' & payload.amount", json!("Ann: 120")),
        ("'<' & missing & '>'", json!("<>")),
        ("missing & missing", json!("")),
        ("null & true & false", json!("nulltruefalse")),
        ("1.0 & ''", json!("1")),
        ("0.1 + 0.2 & ''", json!("0.3")),
        (
            "1e21 & ' ' & 1e20 & ' ' & 1e-6 & ' ' & 1.5e-7",
            json!("1e+21 100000000000000000000 0.000001 1.5e-7"),
        ),
        ("[1, 'a', [null]] & ''", json!(r#"[1,"a",[null]]"#)),
        // The keys of an object are sorted.
        ("payload.items[0] & ''", json!(r#"{"n":1,"sku":"a"}"#)),
    ]);
    // `+` and `&` bind equally strongly, from the left.
    assert!(failure("'it costs ' & 2 + 3").message.contains("is a string, and `+` needs numbers"));
}

#[test]
fn equality() {
    all_give(&[
        ("1 = 1.0", json!(true)),
        ("1 == 1", json!(true)),
        ("1 != 1", json!(false)),
        ("'1' = 1", json!(false)),
        ("null = null", json!(true)),
        ("[1, [2]] = [1.0, [2]]", json!(true)),
        ("[1, 2] = [1]", json!(false)),
        ("[] = payload.empty", json!(true)),
        ("[] = context.blank", json!(false)),
        ("payload.items[0] = payload.items[0]", json!(true)),
        ("payload.items[0] != payload.items[1]", json!(true)),
        ("1 = 1 = true", json!(true)),
        // As in JSONata, nothing equals or differs from what is undefined.
        ("missing = 1", json!(false)),
        ("missing != 1", json!(false)),
        ("missing = missing", json!(false)),
        ("null != missing", json!(false)),
    ]);
}

#[test]
fn order() {
    all_give(&[
        ("1 < 2", json!(true)),
        ("2 <= 2.0", json!(true)),
        ("3 > 4", json!(false)),
        ("payload.amount >= context.limit", json!(true)),
        ("'a' < 'b'", json!(true)),
        ("'B' < 'a'", json!(true)),
        ("'a' <= 'a'", json!(true)),
        // By UTF-16 code units, as JSONata: U+1F600 begins with a surrogate.
        (r#""\uD83D\uDE00" < "\uFF5E""#, json!(true)),
    ]);
    all_undefined(&["missing < 1", "1 >= missing", "missing > missing", "missing <= 'a'"]);
    let need = ", and `<` needs two numbers or two strings";
    for (source, is) in [
        ("payload.name < 5", "`payload.name` is a string"),
        ("5 < payload.name", "`payload.name` is a string"),
        ("payload.name < payload.amount", "`payload.name` is a string"),
        ("payload.note < 5", "`payload.note` is null"),
        ("missing < payload.ok", "`payload.ok` is a boolean"),
        ("payload.items < payload.note", "`payload.items` is a list"),
        ("1 + 1 < context", "`context` is an object"),
    ] {
        all_fail(&[(source, ExprErrorKind::Type, &format!("{is}{need}"))]);
    }
}

#[test]
fn logic() {
    all_give(&[
        ("true and 1 and 'a'", json!(true)),
        ("1 and 0", json!(false)),
        ("0 or '' or null or missing", json!(false)),
        ("0 or 'a'", json!(true)),
        ("true or false and false", json!(true)),
        ("[] or context.blank", json!(false)),
        ("[0, ''] or false", json!(false)),
        ("[0, 'a'] and true", json!(true)),
        ("[[], [0, [1]]] and true", json!(true)),
        ("payload.items and context", json!(true)),
        // What decides comes first, and the rest is not looked at.
        ("false and 1 / 0", json!(false)),
        ("true or 1 / 0", json!(true)),
    ]);
    assert_eq!(failure("true and 1 / 0").kind, ExprErrorKind::Arithmetic);
}

#[test]
fn membership() {
    all_give(&[
        ("1 in [1, 2]", json!(true)),
        ("1.0 in [1, 2]", json!(true)),
        ("'x' in context.tags", json!(true)),
        ("'z' in context.tags", json!(false)),
        ("3 in [[3], 4]", json!(false)),
        ("null in [null]", json!(true)),
        ("'Ann' in payload.name", json!(true)),
        ("missing in [1]", json!(false)),
        ("1 in missing", json!(false)),
    ]);
    all_fail(&[("payload.nested in [1]", ExprErrorKind::Type, "`payload.nested` is a list")]);
}

#[test]
fn conditionals_and_defaults() {
    all_give(&[
        ("payload.ok ? 'yes' : 'no'", json!("yes")),
        ("missing ? 1 : 2", json!(2)),
        ("false ? 1 : false ? 2 : 3", json!(3)),
        ("true ? false ? 1 : 2 : 3", json!(2)),
        ("payload.amount > 100 ? 'large' : 'small'", json!("large")),
        ("true ? 1 : 1 / 0", json!(1)),
        ("missing ?? 1", json!(1)),
        ("payload.note ?? 1", json!(null)),
        ("0 ?? 1", json!(0)),
        ("missing ?? null ?? 3", json!(null)),
        ("missing ?? 1 + 1", json!(2)),
        ("payload.name ?? 1 / 0", json!("Ann")),
        ("0 ?: 'zero'", json!("zero")),
        ("payload.name ?: 'x'", json!("Ann")),
        ("payload.empty ?: missing ?: 'none'", json!("none")),
        ("(missing ?? 1) = 1", json!(true)),
        ("true ? missing ?? 1 : 2", json!(1)),
    ]);
    all_undefined(&["false ? 1", "missing ?? missing", "true ? missing : 1"]);
    for (source, beside) in [
        ("a ?? b = c", "`=`"),
        ("a = b ?? c", "`=`"),
        ("a and b ?? c", "`and`"),
        ("a ?: b or c", "`or`"),
        ("a ?? b ? c : d", "a conditional"),
        ("a ?? b ?: c", "`?:`"),
    ] {
        all_fail(&[(source, ExprErrorKind::Syntax, &format!("beside {beside} needs parentheses"))]);
    }
}

#[test]
fn lists_are_spread_unless_written_as_lists() {
    all_give(&[
        ("[]", json!([])),
        ("[1, missing, 'a', null]", json!([1, "a", null])),
        ("[[1], [2, [3]]]", json!([[1], [2, [3]]])),
        ("[context.tags, 'z']", json!(["x", "y", "z"])),
        ("[([1, 2]), 3]", json!([1, 2, 3])),
        ("[true ? [1, 2] : 0]", json!([1, 2])),
        ("[[0, [1, 2]][1]]", json!([[1, 2]])),
        ("[payload.nested[0]]", json!([1, 2])),
    ]);
}

#[test]
fn functions() {
    all_give(&[
        ("$not(payload.ok)", json!(false)),
        ("not(0)", json!(true)),
        ("$exists(payload.note)", json!(true)),
        ("exists(missing)", json!(false)),
        ("$count(payload.items)", json!(2)),
        ("$count(missing)", json!(0)),
        ("count('a')", json!(1)),
        ("$length('né😀')", json!(3)),
        ("$string(5) & $string('a')", json!("5a")),
        ("$string([1, 'a'])", json!(r#"[1,"a"]"#)),
        ("$string(null)", json!("null")),
        ("$number(payload.text) + 1", json!(13)),
        ("$number('-1.5e1')", json!(-15.0)),
        ("$number('007')", json!(7)),
        ("$number(true)", json!(1)),
        ("$number(2.5)", json!(2.5)),
        ("$boolean('a')", json!(true)),
        ("$boolean([0])", json!(false)),
        ("$lowercase('ÄB')", json!("äb")),
        ("uppercase('straße')", json!("STRASSE")),
        ("$contains('abc', 'bc')", json!(true)),
        ("contains (payload.name, 'x')", json!(false)),
        ("$coalesce(missing, null, 0, 1 / 0)", json!(0)),
        ("$coalesce(missing, null)", json!(null)),
    ]);
    all_undefined(&[
        "$not(missing)",
        "$length(missing)",
        "$string(missing)",
        "$number(missing)",
        "$boolean(missing)",
        "$lowercase(missing)",
        "$uppercase(missing)",
        "$contains(missing, 'a')",
        "$contains('a', missing)",
        "$coalesce(missing)",
    ]);
    all_fail(&[
        (
            "$length(payload.amount)",
            ExprErrorKind::Type,
            "`payload.amount` is a number, and `$length` needs a string",
        ),
        (
            "lowercase(payload.items)",
            ExprErrorKind::Type,
            "`payload.items` is a list, and `$lowercase` needs",
        ),
        (
            "$contains('a', payload.note)",
            ExprErrorKind::Type,
            "`payload.note` is null, and `$contains` needs",
        ),
        ("$number(payload.name)", ExprErrorKind::Type, "`payload.name` is \"Ann\", which is not a number"),
        ("$number('1.')", ExprErrorKind::Type, "not a number"),
        ("$number('+1')", ExprErrorKind::Type, "not a number"),
        ("$number('')", ExprErrorKind::Type, "not a number"),
        ("$number('1e999')", ExprErrorKind::Type, "not a number that fits"),
        ("$number(payload)", ExprErrorKind::Type, "`payload` is an object, and `$number` needs"),
        ("$not()", ExprErrorKind::Syntax, "`$not` takes one argument, not 0"),
        ("$string(1, true)", ExprErrorKind::Syntax, "`$string` takes one argument, not 2"),
        ("$contains('a')", ExprErrorKind::Syntax, "`$contains` takes 2 arguments, not 1"),
        ("$coalesce()", ExprErrorKind::Syntax, "`$coalesce` takes at least one argument, not 0"),
        (
            "$lowerCase('a')",
            ExprErrorKind::Unsupported,
            "no function `$lowerCase` (did you mean `$lowercase`?)",
        ),
        ("lenght('a')", ExprErrorKind::Unsupported, "(did you mean `$length`?)"),
        ("$frobnicate(1)", ExprErrorKind::Unsupported, "there is no function `$frobnicate`"),
        ("$sum(payload.items)", ExprErrorKind::Unsupported, "JSONata's function `$sum` is not supported"),
    ]);
}

#[test]
fn a_field_of_a_list_is_an_error_that_says_what_to_do() {
    let error = failure("payload.items.sku = 'a'");
    assert_eq!(error.kind, ExprErrorKind::Type);
    assert_eq!(
        error.message,
        "`payload.items` is a list, and a field (`sku`) is taken of one item: pick it with [n]"
    );
    assert_eq!(&error.expr[error.span], "payload.items.sku");
    all_fail(&[("[1, 2].a", ExprErrorKind::Type, "`[1, 2]` is a list")]);
}

#[test]
fn what_the_dialect_leaves_out_is_refused_by_name() {
    let refusals = [
        ("function($x) { $x }", "lambda functions are not part of the dialect"),
        ("λ($x) { $x }", "lambda functions are not part of the dialect"),
        ("$x := 5", "variable binding (`:=`)"),
        ("($x := 5; $x)", "variable binding (`:=`)"),
        ("$x + 1", "variables (`$x`)"),
        ("$string", "variables (`$string`)"),
        ("$", "`$` and `$$`"),
        ("$$.a", "`$` and `$$`"),
        ("$contains(a, /b.*[/)", "regular expressions"),
        ("|a|{'b': 1}|", "transforms"),
        ("*", "wildcards (`*`)"),
        ("a.*", "wildcards (`*`)"),
        ("a.*.b", "wildcards (`*`)"),
        ("**", "descendant wildcards (`**`)"),
        ("a.**.b", "descendant wildcards (`**`)"),
        ("a.%.b", "the parent operator (`%`)"),
        ("%", "the parent operator (`%`)"),
        ("a^(b)", "sorting"),
        ("a[b = 1]", "predicates"),
        ("a[b]", "predicates"),
        ("a['b']", "predicates"),
        ("a[1.5]", "predicates"),
        ("a[-b]", "predicates"),
        ("a[0..2]", "predicates"),
        ("a[0, 1]", "predicates"),
        ("a[]", "keep it a list"),
        ("{'a': 1}", "object constructors"),
        ("a{b: c}", "grouping"),
        ("[1..5]", "ranges (`..`)"),
        ("a ~> $string", "function chains (`~>`)"),
        ("a@$b.c", "context binding (`@`)"),
        ("a#$i.c", "position binding (`#`)"),
        ("(a; b)", "blocks"),
        ("$contains(?, 'a')", "partial application"),
        ("a.(b + 1)", "an expression as a step"),
        ("a.[b]", "an expression as a step"),
        ("a.$string()", "an expression as a step"),
        ("a.{'b': c}", "an expression as a step"),
        ("a.count(b)", "a function as a step"),
        ("a.'b'", "a string as a step"),
        ("'a'.b", "a part of a literal"),
        ("'abc'[0]", "a part of a literal"),
        ("(a)(b)", "calling a value"),
    ];
    for (source, part) in refusals {
        all_fail(&[(source, ExprErrorKind::Unsupported, part)]);
    }
}

#[test]
fn what_does_not_parse_says_what_was_expected() {
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
        ("1)", syntax, "`)` is not expected here"),
        ("1, 2", syntax, "`,` is not expected here"),
        ("()", syntax, "nothing between the parentheses"),
        ("a.", syntax, "expected a field's name, found the end"),
        ("a.1", syntax, "expected a field's name, found `1`"),
        ("a.true", syntax, "`true` is not a field's name: use back-quotes"),
        ("and 1", syntax, "`and` has nothing on its left"),
        ("a && b", syntax, "write `and`"),
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
        ("01", syntax, "begin with a zero"),
        ("1e400", syntax, "too large"),
        ("a \\ b", syntax, "has no meaning here"),
    ]);
}

#[test]
fn an_error_knows_its_place() {
    for (source, part) in [
        ("1 + payload.name * 2", "payload.name"),
        ("payload.amount < payload.note", "payload.note"),
        ("1 + 2 / (1 - 1)", "2 / (1 - 1)"),
        ("'é' & $lenght('a')", "$lenght"),
        ("a + b[c = 1]", "[c"),
        ("1 + + 2", "+"),
        ("(1 + 2) = ((3)", ""),
    ] {
        let error = failure(source);
        assert_eq!(&source[error.span.clone()], part, "{source}: {error}");
        assert_eq!(error.expr, source);
    }
    assert_eq!(
        failure("payload.amount < 'x'").to_string(),
        "`payload.amount` is a number, and `<` needs two numbers or two strings \
         (at character 1 of `payload.amount < 'x'`)"
    );
    assert!(failure("1 +\n  !a").to_string().contains("(at line 2, character 3 of `1 +   !a`)"));
    let long = format!("{}!", "1 + ".repeat(500));
    let shown = failure(&long).to_string();
    assert!(shown.contains("at character 2001 of `…1 + ") && shown.len() < 250, "{shown}");
}

#[test]
fn size_and_depth_are_bounded() {
    let longest = format!("'{}'", "a".repeat(MAX_SOURCE_BYTES - 2));
    assert!(Expr::parse(&longest).is_ok());
    let error = Expr::parse(&format!("{longest} ")).unwrap_err();
    assert!(error.message.contains("longer than 8192 bytes") && error.expr.len() <= 100, "{error}");

    let deepest = usize::try_from(MAX_DEPTH).unwrap() - 1;
    let nest = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    for (open, close) in [("(", ")"), ("[", "]"), ("$not(", ")"), ("1 + (", ")")] {
        let deep = nest(open, close, deepest / 2);
        assert!(eval(&deep).is_ok(), "{deep}");
        let error = Expr::parse(&nest(open, close, 500)).unwrap_err();
        assert!(error.message.contains("nested deeper than 64 levels"), "{error}");
    }
    assert!(eval(&nest("(", ")", deepest)).is_ok());
    for deep in ["-".repeat(8000) + "a", "a ? ".repeat(2000), "a ?? ".repeat(1600), "(".repeat(8000)] {
        assert_eq!(Expr::parse(&deep).unwrap_err().kind, ExprErrorKind::Syntax);
    }
    // Long is not deep.
    assert_eq!(value(&format!("1{}", " + 1".repeat(2000))), Some(json!(2001)));
    assert_eq!(value(&format!("missing{}", ".a".repeat(4000))), None);
}

#[test]
fn a_budget_is_spent_and_runs_out() {
    let parse = |source: &str| Expr::parse(source).unwrap();
    let scope = scope();

    let mut budget = Budget { steps: 2, ..Budget::default() };
    let error = parse("1 + 1").eval(&scope, &mut budget).unwrap_err();
    assert_eq!((error.kind, &error.expr[error.span.clone()]), (ExprErrorKind::Budget, "1"));
    assert_eq!(budget.steps, 0);

    let mut budget = Budget { steps: 7, ..Budget::default() };
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_err(), "one budget bounds all three");

    let mut budget = Budget { depth: 2, ..Budget::default() };
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    let error = parse("1 + (1)").truth(&scope, &mut budget).unwrap_err();
    assert_eq!(error.kind, ExprErrorKind::Budget);
}

#[test]
fn the_budget_counts_what_is_made_and_not_what_is_looked_at() {
    let text = "x".repeat(200_000);
    let big = json!({"text": text, "list": vec![0; 60_000]});
    let roots = [("big", &big)];
    let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default());
    let kind = |source: &str| run(source).map_err(|error| error.kind);

    assert_eq!(kind("$length(big.text) > 5 and big.text = big.text"), Ok(Some(json!(true))));
    assert_eq!(run("big.text & ''").unwrap().unwrap().as_str().map(str::len), Some(200_000));
    // A chain of `&` pays for its text once.
    assert!(run("big.text & 'a' & 'b' & 'c' & 'd'").is_ok());
    for source in [
        "big.text & big.text",
        "[big.text, big.text]",
        "big",
        "big.list",
        "big & ''",
        "$string(big)",
        "$uppercase(big.text) & $lowercase(big.text)",
    ] {
        assert_eq!(kind(source), Err(ExprErrorKind::Budget), "{source}");
    }
    for source in [
        "big.list or big.list",
        "1 in big.list or 2 in big.list",
        "big.list = big.list and big.list = big.list",
    ] {
        assert_eq!(kind(source), Err(ExprErrorKind::Budget), "{source}");
    }
    let scans = vec!["$length(big.text) = 0"; 200].join(" or ");
    assert_eq!(kind(&scans), Err(ExprErrorKind::Budget));
}

#[test]
fn text_of_a_bottomless_value_is_an_error() {
    let mut deep = json!(1);
    for _ in 0..500 {
        deep = json!([deep]);
    }
    let roots = [("deep", &deep)];
    let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default());
    assert_eq!(run("deep & ''").unwrap_err().kind, ExprErrorKind::Budget);
    assert_eq!(run("deep = deep and deep"), Ok(Some(json!(true))));
}

#[test]
fn truth_is_jsonatas() {
    for (source, truth) in [
        ("payload.ok", true),
        ("payload.note", false),
        ("missing", false),
        ("payload.empty", false),
        ("context.blank", false),
        ("payload.nested", true),
        ("'false'", true),
        ("0.0", false),
        ("missing < 1", false),
        ("$not(missing)", false),
    ] {
        let expr = Expr::parse(source).unwrap();
        assert_eq!(expr.truth(&scope(), &mut Budget::default()), Ok(truth), "{source}");
    }
}

#[test]
fn roots_are_named_once_and_sorted() {
    let expr = Expr::parse("payload.a = context.b and `odd one`[0] in [payload, $count(meta.x)]").unwrap();
    assert_eq!(expr.roots(), ["context", "meta", "odd one", "payload"]);
    assert_eq!(Expr::parse("1 + 1").unwrap().roots(), Vec::<&str>::new());
    let value = json!(1);
    let roots = [("a", &value), ("b", &value)];
    assert_eq!(Roots(&roots).names(), ["a", "b"]);
    assert_eq!(scope().names().len(), 3);
}

#[test]
fn an_expression_is_stored_as_its_source() {
    let expr = Expr::parse("payload.amount  > 5").unwrap();
    let stored = serde_json::to_value(&expr).unwrap();
    assert_eq!(stored, json!("payload.amount  > 5"));
    assert_eq!(serde_json::from_value::<Expr>(stored).unwrap(), expr);
    assert_eq!(expr.clone().source(), "payload.amount  > 5");
    let error = serde_json::from_value::<Expr>(json!("a[b]")).unwrap_err();
    assert!(error.to_string().contains("predicates are not supported"), "{error}");
    assert_eq!(DIALECT, 1);
}

/// Expressions of at most 200 characters, from pieces that make the parser go far.
fn tokens() -> impl Strategy<Value = String> {
    const PIECES: &str = "a¦payload¦.¦.amount¦.items¦[0]¦[-1]¦[¦]¦(¦)¦{¦}¦,¦;¦:¦?¦??¦?:¦+¦-¦*¦/¦%¦&¦=¦==¦!=¦<¦<=¦>¦>=¦and\
        ¦or¦in¦$not(¦$string(¦count(¦$coalesce(¦$x¦$¦1¦0¦2.5¦1e308¦9223372036854775807¦'s'¦\"t\"¦'¦\"¦`¦\\¦\\u¦null\
        ¦true¦ ¦\n¦/*¦*/¦é¦😀¦λ¦..¦~>¦:=¦|¦^¦@¦#¦!¦**";
    let pieces: Vec<&str> = PIECES.split('¦').collect();
    let between = prop::sample::select(vec!["", " "]);
    (prop::collection::vec(prop::sample::select(pieces), 0..60), between)
        .prop_map(|(pieces, between)| pieces.join(between).chars().take(200).collect())
}

proptest! {
    #[test]
    fn nothing_panics(source in tokens()) {
        if let Err(error) = eval(&source) {
            assert!(error.expr.get(error.span.clone()).is_some(), "{source:?}: {:?}", error.span);
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn integer_arithmetic_is_exact_or_refused(a: i64, b: i64) {
        let roots = [("a", &json!(a)), ("b", &json!(b))];
        let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default()).ok();
        assert_eq!(run("a + b"), a.checked_add(b).map(|n| Some(json!(n))));
        assert_eq!(run("a - b"), a.checked_sub(b).map(|n| Some(json!(n))));
        assert_eq!(run("a * b"), a.checked_mul(b).map(|n| Some(json!(n))));
        assert_eq!(run("a < b"), Some(Some(json!(a < b))));
        assert_eq!(run("a = b"), Some(Some(json!(a == b))));
    }
}
