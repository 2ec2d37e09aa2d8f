//! Comparison, membership, truth, conditions and defaults.

use serde_json::json;
use stepwell_core::expr::{Budget, Expr, ExprErrorKind};

use super::{all_fail, all_fail_with, all_give, all_undefined, failure, scope};

#[test]
fn equality() {
    all_give(&[
        ("1 = 1.0", json!(true)),
        ("1 != 1", json!(false)),
        ("'1' = 1", json!(false)),
        ("null = null", json!(true)),
        ("[1, [2]] = [1.0, [2]]", json!(true)),
        ("[1, 2] = [1]", json!(false)),
        ("[] = payload.empty", json!(true)),
        ("[] = context.blank", json!(false)),
        ("{} = context.blank", json!(true)),
        ("{'n': 1, 'sku': 'a'} = payload.items[0]", json!(true)),
        ("payload.items[0] = payload.items[0]", json!(true)),
        ("payload.items[0] != payload.items[1]", json!(true)),
        ("1 = 1 = true", json!(true)),
        // As in JSONata, both `=` and `!=` are false if an operand is undefined.
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
        // Strings are ordered by UTF-16 code units, as in JSONata. U+1F600 begins with a surrogate.
        (r#""\uD83D\uDE00" < "\uFF5E""#, json!(true)),
    ]);
    all_undefined(&["missing < 1", "1 >= missing", "missing > missing", "missing <= 'a'"]);
    let need = ", but `<` needs two numbers or two strings";
    for (source, is, code) in [
        ("payload.name < 5", "`payload.name` is a string", "T2009"),
        ("5 < payload.name", "`payload.name` is a string", "T2009"),
        ("payload.name < payload.amount", "`payload.name` is a string", "T2009"),
        ("payload.note < 5", "`payload.note` is null", "T2010"),
        ("missing < payload.ok", "`payload.ok` is a boolean", "T2010"),
        ("payload.items < payload.note", "`payload.items` is a list", "T2010"),
        ("1 + 1 < context", "`context` is an object", "T2010"),
    ] {
        all_fail(&[(source, ExprErrorKind::Type, &format!("{is}{need}"))]);
        all_fail_with(&[(source, code)]);
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
        // The first operand decides, and the second is not evaluated.
        ("false and 1 / 0", json!(false)),
        ("true or 1 / 0", json!(true)),
    ]);
    assert_eq!(failure("true and 1 / 0").kind, ExprErrorKind::Arithmetic);
}

#[test]
fn membership_is_by_value() {
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
        ("{'n': 1, 'sku': 'a'} in payload.items", json!(true)),
        ("[3] in payload.nested", json!(true)),
    ]);
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
        ("($a := missing ?? 2; $a)", json!(2)),
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
        all_fail(&[(source, ExprErrorKind::Syntax, &format!("next to {beside} is ambiguous"))]);
    }
}

#[test]
fn truthiness_matches_jsonata() {
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
        ("payload.items[sku = 'z']", false),
    ] {
        let expr = Expr::parse(source).unwrap();
        assert_eq!(expr.truth(&scope(), &mut Budget::default()), Ok(truth), "{source}");
    }
}
