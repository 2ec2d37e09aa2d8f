//! The built-in functions, by group.

use serde_json::json;
use stepwell_core::expr::{ExprErrorKind, functions};

use super::{all_fail, all_fail_with, all_give, all_give_on, all_undefined, on, value};

#[test]
fn strings() {
    all_give(&[
        ("$length('né😀')", json!(3)),
        ("$string(5) & $string('a')", json!("5a")),
        ("$string([1, 'a'])", json!(r#"[1,"a"]"#)),
        ("$string(null)", json!("null")),
        ("$toString(true)", json!("true")),
        (
            "$string({'a': [1, {}], 'b': []}, true)",
            json!("{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"),
        ),
        ("$lowercase('ÄB')", json!("äb")),
        ("uppercase('straße')", json!("STRASSE")),
        ("$contains('abc', 'bc')", json!(true)),
        ("contains (payload.name, 'x')", json!(false)),
        ("$startsWith('abc', 'ab') and endsWith('abc', 'bc')", json!(true)),
        ("$startsWith('abc', 'b') or $endsWith('abc', 'b')", json!(false)),
        ("$substring('hello', 1)", json!("ello")),
        ("$substring('hello', 1, 2)", json!("el")),
        ("$substring('hello', -3, 2)", json!("ll")),
        ("$substring('hello', -30, 2)", json!("he")),
        ("$substring('hello', 30)", json!("")),
        ("$substring('hello', 1.5, 2.5)", json!("ell")),
        ("$substring('hello', 1, -2)", json!("")),
        ("$substring('a😀b', 1, 1)", json!("😀")),
        ("$substring('hello', 0, 1e300)", json!("hello")),
        ("$substring('Hello World', -1.5)", json!("d")),
        ("$substring('Hello World', -4.5, 2)", json!("o")),
        ("$substringBefore('a@b@c', '@')", json!("a")),
        ("$substringAfter('a@b@c', '@')", json!("b@c")),
        ("$substringBefore('abc', '@') & $substringAfter('abc', '@')", json!("abcabc")),
        ("$trim('  a \\n\\t b ')", json!("a b")),
        ("$pad('x', 4, 'ab')", json!("xaba")),
        ("$pad('x', -4)", json!("   x")),
        ("$pad('long', 2)", json!("long")),
        ("$split('a,b,,c', ',')", json!(["a", "b", "", "c"])),
        ("$split('a,b,c', ',', 2)", json!(["a", "b"])),
        ("$split('a,b', ',', 0)", json!([])),
        ("$split('aé', '')", json!(["a", "é"])),
        ("$join(['a', 'b'], '-')", json!("a-b")),
        ("$join('a')", json!("a")),
        ("$replace('a.a.a', '.', '$1', 1)", json!("a$1a.a")),
        ("$replace('aaa', 'a', 'bb')", json!("bbbbbb")),
        ("$replace('aaa', 'a', 'b', 0)", json!("aaa")),
        ("$base64encode('héllo')", json!("aMOpbGxv")),
        ("$base64decode('aMOpbGxv')", json!("héllo")),
        ("$base64decode($base64encode('a')) & $base64encode('ab')", json!("aYWI=")),
        ("$encodeUrlComponent('a b/ü')", json!("a%20b%2F%C3%BC")),
        ("$encodeUrl('http://a/b c?d=ü')", json!("http://a/b%20c?d=%C3%BC")),
        ("$decodeUrlComponent('a%20b%2F')", json!("a b/")),
        ("$decodeUrl('a%20b%2F')", json!("a b%2F")),
    ]);
    all_fail_with(&[
        ("$replace('a', '', 'b')", "D3010"),
        ("$replace('a', 'a', 'b', -1)", "D3011"),
        ("$split('a', 'a', -1)", "D3020"),
        ("$decodeUrl('%E0%A4%A')", "D3140"),
        ("$decodeUrlComponent('%')", "D3140"),
        ("$join([1, 2])", "T0412"),
        ("$join(['a'], 2)", "T0410"),
    ]);
}

/// Regression: `pad`, `split` and `replace` treated an undefined argument in another way than `substring`.
#[test]
fn undefined_later_arguments_of_text_functions() {
    all_give(&[
        ("$substring('Hello', missing)", json!("Hello")),
        ("$substring('Hello', missing, 2)", json!("")),
        ("$substring('Hello', 1, missing)", json!("ello")),
        ("$pad('x', missing)", json!("x")),
        ("$pad('x', missing, '-')", json!("x")),
        ("$pad('x', 3, missing)", json!("x  ")),
        ("$split('a,b', ',', missing)", json!(["a", "b"])),
        ("$split('a,b', missing, 0)", json!([])),
        ("$replace('abc', 'b', 'x', missing)", json!("axc")),
        ("$replace('abc', missing, 'x', 0)", json!("abc")),
    ]);
    all_undefined(&[
        "$split('a,b', missing)",
        "$replace('abc', missing, 'x')",
        "$replace('abc', 'b', missing)",
    ]);
}

#[test]
fn wrong_pictures_have_the_codes_of_jsonata() {
    all_fail_with(&[
        ("$formatNumber(1, '%%')", "D3086"),
        ("$formatNumber(1, '‰‰')", "D3086"),
        ("$formatNumber(1, '%‰')", "D3086"),
        ("$formatNumber(1, '---')", "D3086"),
        ("$parseInteger('-XII', 'I')", "D3030"),
        ("$parseInteger('minus twelve', 'w')", "D3030"),
    ]);
}

#[test]
fn numbers() {
    all_give(&[
        ("$number(payload.text) + 1", json!(13)),
        ("$number('-1.5e1')", json!(-15.0)),
        ("$number('007')", json!(7)),
        ("$number('0x1F') + $number('0b11') + $number('0o17')", json!(49)),
        ("$number(true)", json!(1)),
        ("$number(2.5)", json!(2.5)),
        ("$sum([1, 2.5])", json!(3.5)),
        ("$sum([])", json!(0)),
        ("$sum(payload.items.n)", json!(3)),
        ("$max([1, 3, 2]) + $min([1, 3, 2])", json!(4)),
        ("$max(5)", json!(5)),
        ("$average([1, 2])", json!(1.5)),
        ("$average([1, 3])", json!(2)),
        ("$power(2, 10)", json!(1024)),
        ("$power(2, -1)", json!(0.5)),
        ("$power(0.00012, 2)", json!(1.44e-8)),
        ("$power(10, 20)", json!(1e20)),
        ("$sqrt(16)", json!(4)),
        ("$sqrt(2)", json!(std::f64::consts::SQRT_2)),
        ("$formatBase(255, 16) & $formatBase(-5, 2) & $formatBase(7)", json!("ff-1017")),
        ("$formatNumber(1234.5, '#,##0.00')", json!("1,234.50")),
        ("$formatNumber(1234567, '#,###,##0,0')", json!("123,456,7")),
        ("$formatInteger(12, 'w')", json!("twelve")),
        ("$parseInteger('twelve', 'w')", json!(12)),
    ]);
    all_undefined(&["$max([])", "$average([])", "$min(missing)", "$sum(missing)", "$power(missing, 2)"]);
    all_fail_with(&[
        ("$number('1.')", "D3030"),
        ("$number('0x')", "D3030"),
        ("$number('0x+1')", "D3030"),
        ("$number('+1')", "D3030"),
        ("$number('')", "D3030"),
        ("$number('1e999')", "D3030"),
        ("$number(payload)", "T0410"),
        ("$number(null)", "T0410"),
        ("$sqrt(-1)", "D3060"),
        ("$power(10, 1000)", "D3061"),
        ("$formatBase(1, 37)", "D3100"),
        ("$sum(['a'])", "T0412"),
        ("$sum([1, 'a'])", "T0412"),
        ("$round(1.5, 0.5)", "D1001"),
    ]);
}

#[test]
fn lists_and_objects() {
    all_give(&[
        ("$count(payload.items)", json!(2)),
        ("$count(missing)", json!(0)),
        ("count('a')", json!(1)),
        ("$len('né😀') + $len([1, 2]) + $len({'a': 1}) + $len(missing)", json!(6)),
        ("$append([1], [2, [3]])", json!([1, 2, [3]])),
        ("$append(1, 2)", json!([1, 2])),
        ("$append(missing, 2)", json!(2)),
        ("$sort([3, 1.5, 2])", json!([1.5, 2, 3])),
        ("$sort(['b', 'a'])", json!(["a", "b"])),
        ("$sort(1)", json!([1])),
        ("$reverse([1, 2, 3])", json!([3, 2, 1])),
        ("$distinct([1, 1.0, 'a', 'a', {'x': 1}, {'x': 1}])", json!([1, "a", {"x": 1}])),
        ("$distinct(1)", json!(1)),
        ("$zip([1, 2], ['a', 'b', 'c'])", json!([[1, "a"], [2, "b"]])),
        ("$zip(1, 2)", json!([[1, 2]])),
        ("$zip([1], missing)", json!([])),
        ("$keys({'b': 1, 'a': 2})", json!(["a", "b"])),
        ("$keys({'a': 2})", json!("a")),
        ("$keys(payload.items)", json!(["n", "sku"])),
        ("$values({'b': 1, 'a': 2})", json!([2, 1])),
        ("$values({})", json!([])),
        ("$lookup({'a b': 1}, 'a b')", json!(1)),
        ("$lookup(payload.items, 'n')", json!([1, 2])),
        ("$spread({'a': 1, 'b': 2})", json!([{"a": 1}, {"b": 2}])),
        ("$spread(5)", json!(5)),
        ("$merge([{'a': 1, 'b': 1}, {'b': 2}])", json!({"a": 1, "b": 2})),
        ("$merge({'a': 1})", json!({"a": 1})),
        ("payload.items.$keys()", json!(["n", "sku", "n", "sku"])),
    ]);
    all_undefined(&[
        "$keys({})",
        "$keys(1)",
        "$spread([])",
        "$merge(missing)",
        "$sort(missing)",
        "$lookup(missing, 'a')",
    ]);
    all_fail_with(&[("$merge([1])", "T0412"), ("$values(1)", "T0410"), ("$len(true)", "T0410")]);
}

#[test]
fn truth_types_and_errors() {
    all_give(&[
        ("$not(payload.ok)", json!(false)),
        ("not(0)", json!(true)),
        ("$exists(payload.note)", json!(true)),
        ("exists(missing)", json!(false)),
        ("$boolean('a')", json!(true)),
        ("$boolean([0])", json!(false)),
        ("$coalesce(missing, null, 0, 1 / 0)", json!(0)),
        ("$coalesce(missing, null)", json!(null)),
        (
            "[$type(null), $type(1), $type('a'), $type(true), $type([]), $type({})]",
            json!(["null", "number", "string", "boolean", "array", "object"]),
        ),
        ("($assert(1 < 2); 'fine')", json!("fine")),
        ("[1, 2].$not($ = 1)", json!([false, true])),
    ]);
    all_undefined(&["$assert(true)", "$type(missing)"]);
    all_fail(&[
        ("$error('too expensive')", ExprErrorKind::Value, "too expensive"),
        ("$assert(1 > 2, 'too small')", ExprErrorKind::Value, "too small"),
    ]);
    all_fail_with(&[("$error()", "D3137"), ("$assert(false)", "D3141"), ("$assert(5)", "T0410")]);
}

#[test]
fn current_time_comes_from_the_scope() {
    all_give_on(
        &json!({"at": "2026-01-01T00:00:00Z"}),
        &[
            ("$now()", json!("2026-01-01T12:00:00.123Z")),
            ("$nowIso() = now()", json!(true)),
            ("$millis()", json!(1_767_268_800_123_i64)),
            ("$now('[Y0001]-[M01]-[D01]')", json!("2026-01-01")),
            ("$toMillis(at)", json!(1_767_225_600_000_i64)),
            ("$fromMillis(0)", json!("1970-01-01T00:00:00.000Z")),
            ("$fromMillis($toMillis(at), '[D].[M].[Y]')", json!("1.1.2026")),
            ("$millis() - $toMillis(at) > 0", json!(true)),
        ],
    );
    assert_eq!(on(&json!(null), "$toMillis('soon')").unwrap_err().code, "D3110");
}

#[test]
fn undefined_arguments_give_undefined() {
    let kept =
        ["exists", "count", "coalesce", "len", "zip", "error", "assert", "millis", "now", "nowIso", "append"];
    for info in functions().iter().filter(|info| !kept.contains(&info.name)) {
        let arguments = vec!["missing"; info.signature.matches(',').count() + 1].join(", ");
        assert_eq!(value(&format!("${}({arguments})", info.name)), None, "{}", info.name);
    }
    assert_eq!(value("$contains('a', missing)"), None);
    assert_eq!(value("$count(missing) + $len(missing)"), Some(json!(0)));
}

#[test]
fn omitted_argument_is_the_current_item() {
    all_give(&[
        ("payload.name.$length()", json!(3)),
        ("payload.name.$contains('n')", json!(true)),
        ("payload.name.$substringBefore('n')", json!("A")),
        ("payload.amount.$string()", json!("120")),
        ("payload.(amount.$power(2))", json!(14400)),
    ]);
    all_fail_with(&[("payload.amount.$length()", "T0411"), ("payload.$substringBefore('n')", "T0411")]);
}

#[test]
fn invalid_arguments_are_named() {
    all_fail(&[
        (
            "$length(payload.amount)",
            ExprErrorKind::Type,
            "`payload.amount` is a number, but `$length` needs a string",
        ),
        (
            "lowercase(payload.items)",
            ExprErrorKind::Type,
            "`payload.items` is a list, but `$lowercase` needs",
        ),
        (
            "$contains('a', payload.note)",
            ExprErrorKind::Type,
            "`payload.note` is null, but `$contains` needs",
        ),
        (
            "$number(payload.name)",
            ExprErrorKind::Value,
            "`payload.name` is \"Ann\", which is not a valid number",
        ),
        ("$sum(payload.name)", ExprErrorKind::Type, "is a string, but `$sum` needs a list of numbers"),
        (
            "$sum(context.tags)",
            ExprErrorKind::Type,
            "has items of another type, but `$sum` needs a list of numbers",
        ),
        ("$string(1, true, 2)", ExprErrorKind::Type, "`$string` takes 0 to 2 arguments, not 3"),
        ("$exists()", ExprErrorKind::Type, "`$exists` takes one argument, not 0"),
        ("$coalesce()", ExprErrorKind::Type, "`$coalesce` takes at least one argument, not 0"),
        ("$millis(1)", ExprErrorKind::Type, "`$millis` takes no argument, not 1"),
        (
            "$lowerCase('a')",
            ExprErrorKind::Syntax,
            "unknown function `$lowerCase` (did you mean `$lowercase`?)",
        ),
        ("lenght('a')", ExprErrorKind::Syntax, "(did you mean `$length`?)"),
        ("$frobnicate(1)", ExprErrorKind::Syntax, "unknown function `$frobnicate`"),
    ]);
    all_fail_with(&[("$exists(1, 2)", "T0410"), ("$length(1)", "T0410"), ("$replace('a')", "T0410")]);
}

/// Editors show these descriptions, and docs/expressions.md must have one row for each.
#[test]
fn every_function_is_described_and_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/expressions.md");
    let document = std::fs::read_to_string(path).unwrap();
    for info in functions() {
        assert!(info.signature.starts_with(&format!("{}(", info.name)), "{}", info.signature);
        let row = format!("| `{}` | {} | {} |", info.signature, info.group.name(), info.summary);
        assert!(document.contains(&row), "docs/expressions.md lacks the row\n{row}");
    }
    let groups: Vec<&str> = functions().iter().map(|info| info.group.name()).collect();
    let is_row = |line: &&str| line.split(" | ").nth(1).is_some_and(|group| groups.contains(&group));
    assert_eq!(
        document.lines().filter(is_row).count(),
        functions().len(),
        "docs/expressions.md has a row too many"
    );
}
