//! Positions of errors, and names of missing parts.

use serde_json::json;
use stepwell_core::expr::{Budget, Data, Expr};

use super::{failure, scope};

#[test]
fn error_points_at_the_failing_part() {
    for (source, part) in [
        ("1 + payload.name * 2", "payload.name"),
        ("payload.amount < payload.note", "payload.note"),
        ("1 + 2 / (1 - 1)", "2 / (1 - 1)"),
        ("'é' & $lenght('a')", "$lenght"),
        ("a + b#$i", "#"),
        ("1 + + 2", "+"),
        ("(1 + 2) = ((3)", ""),
        ("payload.items[sku > 1]", "sku"),
        ("payload.items.$length(n)", "n"),
        ("payload.items^(n * sku)", "sku"),
    ] {
        let error = failure(source);
        assert_eq!(&source[error.span.clone()], part, "{source}: {error}");
        assert_eq!(&*error.expr, source);
    }
    assert_eq!(
        failure("payload.amount < 'x'").to_string(),
        "`payload.amount` is a number, but `<` needs two numbers or two strings \
         (at character 1 of `payload.amount < 'x'`)"
    );
    assert!(failure("1 +\n  !a").to_string().contains("(at line 2, character 3 of `1 +   !a`)"));
    let long = format!("{}!", "1 + ".repeat(500));
    let shown = failure(&long).to_string();
    assert!(shown.contains("at character 2001 of `…1 + ") && shown.len() < 250, "{shown}");
}

#[test]
fn missing_part_is_named_with_a_suggestion() {
    let missing = |source: &str| {
        let expr = Expr::parse(source).unwrap();
        assert_eq!(expr.eval(&scope(), &mut Budget::default()), Ok(None), "{source}");
        let missing = expr.missing(&scope(), &mut Budget::default());
        missing.map(|missing| {
            assert_eq!(&*missing.part, &source[missing.span()]);
            missing.to_string()
        })
    };
    for (source, said) in [
        ("payload.nmae", "`payload.nmae` has no value; did you mean `name`?"),
        ("payload.nmae.first", "`payload.nmae` has no value; did you mean `name`?"),
        ("paylod.name", "`paylod` has no value; did you mean `payload`?"),
        ("payload.xylophone", "`payload.xylophone` has no value"),
        ("payload.items.skus", "`payload.items.skus` has no value; did you mean `sku`?"),
        ("payload.items[9].sku", "`payload.items[9]` has no value"),
        ("payload.items[sku = 'z'].n", "`payload.items[sku = 'z']` has no value"),
        ("1 + payload.amout * 2", "`payload.amout` has no value; did you mean `amount`?"),
        ("$uppercase(payload.nam)", "`payload.nam` has no value; did you mean `name`?"),
        ("payload.ok ? payload.nam : 1", "`payload.nam` has no value; did you mean `name`?"),
        ("($a := payload; $a.nam)", "`$a.nam` has no value; did you mean `name`?"),
        ("($order := 1; $ordr)", "`$ordr` has no value; did you mean `$order`?"),
        ("missing ?? payload.nam", "`payload.nam` has no value; did you mean `name`?"),
        ("-context.limits", "`context.limits` has no value; did you mean `limit`?"),
        ("payload.note.x", "`payload.note.x` has no value"),
    ] {
        assert_eq!(missing(source).as_deref(), Some(said), "{source}");
    }
    assert_eq!(missing("false ? 1"), None);
    assert_eq!(missing("()"), None);
    let data = json!({"vars": {"lookup": {"matches": []}}});
    let expr = Expr::parse("vars.lokup.matches").unwrap();
    let missing = expr.missing(&Data::new(&data), &mut Budget::default()).unwrap();
    assert_eq!((&*missing.part, missing.suggestion.as_deref()), ("vars.lokup", Some("lookup")));
}
