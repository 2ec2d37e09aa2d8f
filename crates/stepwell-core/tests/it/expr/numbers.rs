//! Numbers: arithmetic, exact integers, conversion to text, and rounding.

use serde_json::json;
use stepwell_core::expr::ExprErrorKind;

use super::{all_fail, all_fail_with, all_give, all_undefined, failure};

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
        ("payload.name + 1", ExprErrorKind::Type, "`payload.name` is a string, but `+` needs numbers"),
        ("1 - payload.items", ExprErrorKind::Type, "`payload.items` is a list, but `-` needs numbers"),
        ("missing * null", ExprErrorKind::Type, "`null` is null, but `*` needs numbers"),
        ("-payload.ok", ExprErrorKind::Type, "`payload.ok` is a boolean, but `-` needs numbers"),
    ]);
    all_fail_with(&[("'a' + 1", "T2001"), ("1 + 'a'", "T2002"), ("-'a'", "D1002"), ("1 / 0", "D1001")]);
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
        ("$sum([9007199254740993, 1])", json!(9_007_199_254_740_994_i64)),
        ("$max([9007199254740992, 9007199254740993])", json!(9_007_199_254_740_993_i64)),
        ("$power(3, 39)", json!(4_052_555_153_018_976_267_i64)),
        ("$round(9007199254740993)", json!(9_007_199_254_740_993_i64)),
        ("$formatBase(9223372036854775807, 16)", json!("7fffffffffffffff")),
        // Unsigned data is compared exactly, although integer arithmetic is limited to `i64`.
        ("payload.big", json!(u64::MAX)),
        ("payload.big > 9223372036854775807", json!(true)),
        ("payload.big & ''", json!("18446744073709551615")),
        ("payload.big - 9223372036854775808.0 > 0", json!(true)),
        ("$max([payload.big, 1])", json!(u64::MAX)),
    ]);
    all_fail(&[
        ("9223372036854775807 + 1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-9223372036854775808 - 1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("4611686018427387904 * 2", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-9223372036854775808 / -1", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("-(-9223372036854775808)", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("$abs(-9223372036854775808)", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("$sum([9223372036854775807, 1])", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("payload.big * payload.big", ExprErrorKind::Arithmetic, "does not fit in 64 bits"),
        ("9223372036854775808", ExprErrorKind::Syntax, "does not fit in 64 bits"),
        ("-9223372036854775809", ExprErrorKind::Syntax, "does not fit in 64 bits"),
        ("$number('9223372036854775808')", ExprErrorKind::Value, "not a valid number or is out of range"),
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
        // Object keys are sorted.
        ("payload.items[0] & ''", json!(r#"{"n":1,"sku":"a"}"#)),
    ]);
    // `+` and `&` have the same precedence and are left-associative.
    assert!(failure("'it costs ' & 2 + 3").message.contains("is a string, but `+` needs numbers"));
}

#[test]
fn rounding() {
    all_give(&[
        ("$round(2.5)", json!(2)),
        ("$round(3.5)", json!(4)),
        ("$round(-2.5)", json!(-2)),
        ("$round(-0.3)", json!(0)),
        ("$round(4.515, 2)", json!(4.52)),
        ("$round(4.525, 2)", json!(4.52)),
        ("$round(12345, -2)", json!(12300)),
        ("$round(12350, -2)", json!(12400)),
        ("$round(-12350, -2)", json!(-12400)),
        ("$round(12450.0, -2)", json!(12400)),
        ("$round(5, -30)", json!(0)),
        ("$round(5, -3000000000)", json!(0)),
        ("$round(6.022e-23, 24)", json!(6e-23)),
        ("$round(1.5, 400)", json!(1.5)),
        ("$floor(-1.5)", json!(-2)),
        ("$ceil(1.2)", json!(2)),
        ("$floor(1e300)", json!(1e300)),
        ("$abs(-1.5)", json!(1.5)),
    ]);
}
