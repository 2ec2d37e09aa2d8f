//! The expression dialect: accepted expressions mean the same as in JSONata. Unsupported features are refused by name.

mod budgets;
mod errors;
mod functions;
mod lists;
mod logic;
mod numbers;
mod paths;
mod predicates;
mod properties;
mod syntax;

use serde_json::{Map, Value, json};
use stepwell_core::Timestamp;
use stepwell_core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind, Scope};

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

/// Evaluates with `data` as the input, as JSONata does. The clock shows noon on 1 January 2026.
fn on(data: &Value, source: &str) -> Result<Option<Value>, ExprError> {
    let now: Timestamp = "2026-01-01T12:00:00.123Z".parse().expect("it is an instant");
    Expr::parse(source)?.eval(&Data::new(data).with_now(now), &mut Budget::default())
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

/// Checks each row: an expression and its value.
fn all_give(rows: &[(&str, Value)]) {
    for (source, expected) in rows {
        assert_eq!(value(source).as_ref(), Some(expected), "{source}");
    }
}

/// Checks each row: an expression and its value with `data` as the input.
fn all_give_on(data: &Value, rows: &[(&str, Value)]) {
    for (source, expected) in rows {
        let found = on(data, source).unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(found.as_ref(), Some(expected), "{source}");
    }
}

fn all_undefined(sources: &[&str]) {
    for source in sources {
        assert_eq!(value(source), None, "{source}");
    }
}

/// Checks each row: an expression, the kind of its error and a part of the message.
fn all_fail(rows: &[(&str, ExprErrorKind, &str)]) {
    for (source, kind, part) in rows {
        let error = failure(source);
        assert_eq!(error.kind, *kind, "{source}: {error}");
        assert!(error.message.contains(part), "{source}: {} lacks {part}", error.message);
    }
}

/// Checks each row: an expression and the code of its error.
fn all_fail_with(rows: &[(&str, &str)]) {
    for (source, code) in rows {
        let error = failure(source);
        assert_eq!(error.code, *code, "{source}: {error}");
    }
}

#[test]
fn scope_may_provide_variables_and_a_clock() {
    struct Run {
        input: Value,
        limit: Value,
    }
    impl Scope for Run {
        fn root(&self, name: &str) -> Option<&Value> {
            (name == "input").then_some(&self.input)
        }
        fn names(&self) -> Vec<&str> {
            vec!["input"]
        }
        fn now(&self) -> Option<Timestamp> {
            Some(Timestamp::from_millis(1_767_268_800_123))
        }
        fn variable(&self, name: &str) -> Option<&Value> {
            (name == "limit").then_some(&self.limit)
        }
    }
    let run = Run { input: json!({"n": 2}), limit: json!(3) };
    let eval = |source: &str| Expr::parse(source).unwrap().eval(&run, &mut Budget::default()).unwrap();
    assert_eq!(eval("input.n < $limit"), Some(json!(true)));
    assert_eq!(eval("($limit := 1; input.n < $limit)"), Some(json!(false)));
    assert_eq!(eval("$now()"), Some(json!("2026-01-01T12:00:00.123Z")));
    assert_eq!(eval("$"), Some(json!({"input": {"n": 2}})));
    assert_eq!(eval("$$.input.n"), Some(json!(2)));
    assert_eq!(eval("$other"), None);
    assert_eq!(failure("$now()").code, "noClock");
    assert_eq!(value("$other"), None);
}

#[test]
fn an_expression_is_stored_as_its_source() {
    let expr = Expr::parse("payload.amount  > 5").unwrap();
    let stored = serde_json::to_value(&expr).unwrap();
    assert_eq!(stored, json!("payload.amount  > 5"));
    assert_eq!(serde_json::from_value::<Expr>(stored).unwrap(), expr);
    assert_eq!(expr.clone().source(), "payload.amount  > 5");
    let error = serde_json::from_value::<Expr>(json!("a#$i")).unwrap_err();
    assert!(error.to_string().contains("position binding"), "{error}");
    assert_eq!(stepwell_core::expr::DIALECT, 1);
}

#[test]
fn roots_are_named_once_and_sorted() {
    for (source, roots) in [
        (
            "payload.a = context.b and `odd one`[0] in [payload, $count(meta.x)]",
            "context meta odd one payload",
        ),
        ("1 + 1", ""),
        // A name after a step, in a predicate or in a grouping refers to an item, not to a root.
        ("payload.items[sku = limit].(n * factor)", "payload"),
        ("payload.items^(n){sku: price}", "payload"),
        ("payload.items[sku = $$.context.sku]", "context payload"),
        ("$.payload.a & $$.context", "context payload"),
        ("{'a': payload.x, 'b': [context.y..3]}", "context payload"),
        ("($a := payload.x; $a.b ?? context.c)", "context payload"),
        ("payload.x ~> $join(context.y)", "context payload"),
        ("payload.(context)", "payload"),
    ] {
        assert_eq!(Expr::parse(source).unwrap().roots().join(" "), roots, "{source}");
    }
}
