//! Templates: expressions in JSON are replaced, everything else stays unchanged.

use serde_json::{Map, Value, json};
use stepwell_core::expr::{Budget, ExprErrorKind};
use stepwell_core::template::{Template, TemplateCause, TemplateError};

fn scope() -> Map<String, Value> {
    let scope = json!({
        "payload": {"name": "Ann", "amount": 5, "items": [1, 2], "note": null, "sly": [{"a": {"$secret": "KEY"}}]}
    });
    scope.as_object().cloned().expect("it is an object")
}

fn compile(source: &Value) -> Template {
    Template::compile(source).unwrap_or_else(|problems| panic!("{source}: {problems:?}"))
}

fn render(source: &Value) -> Result<Value, TemplateError> {
    compile(source).render(&scope(), &mut Budget::default())
}

/// Returns each problem as its pointer and message.
fn problems(source: &Value) -> Vec<(String, String)> {
    let problems = Template::compile(source).expect_err("it has problems");
    problems.into_iter().map(|problem| (problem.pointer, problem.message)).collect()
}

#[test]
fn expressions_are_replaced_at_any_depth() {
    let rows = [
        (json!({"$expr": "payload.name"}), json!("Ann")),
        (json!({"a": {"$expr": "payload.amount + 1"}, "b": "x"}), json!({"a": 6, "b": "x"})),
        (json!([1, {"$expr": "payload.items"}, [{"$expr": "payload.note"}]]), json!([1, [1, 2], [null]])),
        (json!({"a": {"b": [{"c": {"$expr": "'x' & payload.name"}}]}}), json!({"a": {"b": [{"c": "xAnn"}]}})),
    ];
    for (source, expected) in rows {
        assert_eq!(render(&source), Ok(expected), "{source}");
        assert!(!compile(&source).is_constant());
    }
}

#[test]
fn everything_else_stays_unchanged() {
    let rows = [
        json!(null),
        json!("payload.name"),
        json!([1, 2.5, "a", {}]),
        json!({"$secret": "KEY"}),
        json!({"headers": [{"authorization": {"$secret": "KEY"}}]}),
        json!({"$schema": "x", "type": "object"}),
        json!({"expr": "payload.name"}),
    ];
    for source in rows {
        assert_eq!(render(&source).as_ref(), Ok(&source));
        assert!(compile(&source).is_constant(), "{source}");
    }
    let mixed = json!({"key": {"$secret": "KEY"}, "name": {"$expr": "payload.name"}});
    assert_eq!(render(&mixed), Ok(json!({"key": {"$secret": "KEY"}, "name": "Ann"})));
}

#[test]
fn undefined_is_omitted_in_objects_and_an_error_elsewhere() {
    let source = json!({"a": {"$expr": "payload.missing"}, "b": {"c": {"$expr": "missing"}}, "d": 1});
    assert_eq!(render(&source), Ok(json!({"b": {}, "d": 1})));

    let error = render(&json!({"$expr": "payload.missing"})).unwrap_err();
    assert_eq!(error.pointer, "");
    assert_eq!(
        error.to_string(),
        "at the top level: `payload.missing` is undefined, but only a field of an object can be omitted: \
         `payload.missing` has no value"
    );
    let error = render(&json!({"a/b": [1, {"$expr": "missing"}]})).unwrap_err();
    assert_eq!(error.pointer, "/a~1b/1");
    let TemplateCause::Undefined { expr, missing: Some(missing) } = error.cause else { panic!("{error}") };
    assert_eq!((expr.as_str(), &*missing.part), ("missing", "missing"));
}

#[test]
fn failing_expression_is_named_with_its_pointer() {
    let error = render(&json!({"a": [{"~": {"$expr": "payload.name * 2"}}]})).unwrap_err();
    assert_eq!(error.pointer, "/a/0/~0");
    assert_eq!(
        error.to_string(),
        "/a/0/~0: `payload.name` is a string, but `*` needs numbers (at character 1 of `payload.name * 2`)"
    );
    let TemplateCause::Expr(cause) = error.cause else { panic!("it failed") };
    assert_eq!(cause.kind, ExprErrorKind::Type);
}

#[test]
fn every_problem_is_reported_with_its_pointer() {
    let found = problems(&json!({
        "a": {"$expr": 5},
        "b": {"$expr": "payload.name", "else": 1},
        "c": [{"$expr": "1 +"}, {"$expr": "a#$i"}],
        "d": {"$secret": ["KEY"]},
        "e": {"$secret": "KEY", "x": 1},
        "f": {"$exp": "payload.name"},
        "g": {"$secret": ""},
        "h": {"$expr": "a", "$secret": "b"},
        "i": {"$expr": "1", "deeper": {"$expr": false}},
        "ok": {"$expr": "payload.name"}
    }));
    let expected = [
        ("/a", "`$expr` must be a string with an expression"),
        ("/b", "an object with `$expr` must not have other keys"),
        ("/c/0", "expected a value, found the end"),
        ("/c/1", "position binding (`#`) is not part of the dialect"),
        ("/d", "`$secret` must be a string with the name of a secret"),
        ("/e", "an object with `$secret` must not have other keys"),
        ("/f", "`$exp` is not a marker: use `$expr` or `$secret`"),
        ("/g", "`$secret` must be a string with the name of a secret"),
        ("/h", "an object with `$expr` must not have other keys"),
        ("/i", "an object with `$expr` must not have other keys"),
        ("/i/deeper", "`$expr` must be a string with an expression"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for ((pointer, message), (at, part)) in found.iter().zip(expected) {
        assert_eq!(pointer, at);
        assert!(message.contains(part), "{pointer}: {message}");
    }
    let top = Template::compile(&json!({"$expr": null})).unwrap_err();
    assert_eq!(top[0].to_string(), "at the top level: `$expr` must be a string with an expression");
}

/// The sender of a payload must not be able to have a secret resolved into an action input.
#[test]
fn data_cannot_name_a_secret() {
    for source in ["payload.sly", "payload.sly[0].a", "[1, payload]"] {
        let error = render(&json!({"x": {"$expr": source}})).unwrap_err();
        assert_eq!(
            (error.pointer.as_str(), &error.cause),
            ("/x", &TemplateCause::Secret { expr: source.into() })
        );
        assert!(error.to_string().contains("only the template itself may name a secret"), "{error}");
    }
    assert_eq!(render(&json!({"$expr": "$string(payload.sly[0].a)"})), Ok(json!(r#"{"$secret":"KEY"}"#)));
}

#[test]
fn one_budget_bounds_the_whole_template() {
    let template = compile(&json!(vec![json!({"$expr": "payload.name & '!'"}); 10]));
    let mut budget = Budget { result_bytes: 39, ..Budget::default() };
    let error = template.render(&scope(), &mut budget).unwrap_err();
    assert_eq!(error.pointer, "/9");
    assert!(template.render(&scope(), &mut Budget { result_bytes: 40, ..Budget::default() }).is_ok());
}

#[test]
fn depth_is_bounded() {
    let nest = |levels| (0..levels).fold(json!({"$expr": "payload.name"}), |inner, _| json!([inner]));
    assert!(render(&nest(128)).is_ok());
    let problems = problems(&nest(129));
    assert!(problems[0].1.contains("nested deeper than 128 levels"), "{problems:?}");
}

#[test]
fn a_template_is_stored_as_its_source() {
    let source = json!({"a": {"$expr": "payload.name"}});
    let template = compile(&source);
    assert_eq!(template.source(), &source);
    let stored = serde_json::to_value(&template).unwrap();
    assert_eq!(stored, source);
    assert_eq!(serde_json::from_value::<Template>(stored).unwrap(), template);
    let error = serde_json::from_value::<Template>(json!([{"$expr": "1 +"}, {"$expr": 2}])).unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.contains("/0: expected a value") && shown.contains("; /1: `$expr` must be a string"),
        "{shown}"
    );
}
