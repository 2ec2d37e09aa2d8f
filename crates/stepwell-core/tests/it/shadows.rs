//! E11: shadow columns are declared with the workflow and read only from the context.

use serde_json::{Value, json};
use stepwell_core::shadow::{MAX_COLUMNS, MAX_TEXT_BYTES, Seen, Shadow, ShadowType, ShadowValue};
use stepwell_core::{Definition, Spec};

fn invite() -> Spec {
    Spec::new("invite").step("sent").end("done").auto("finish", "sent", "done")
}

fn built(shadow: Shadow) -> Definition {
    invite().shadow("it", shadow).build().expect("it is sound")
}

#[track_caller]
fn seen(shadow: Shadow, context: &Value) -> Seen {
    built(shadow).shadows()[0].read(context)
}

#[track_caller]
fn refused(spec: Spec, at: &str, with: &str) {
    let problems = spec.build().expect_err("it is refused").to_string();
    assert!(problems.contains(at) && problems.contains(with), "{problems}");
    assert!(problems.contains("1 problem\n"), "{problems}");
}

#[test]
fn falsy_values_are_copied_too() {
    let context = json!({"a": {"text": "", "zero": 0, "no": false}});
    assert_eq!(seen(Shadow::string("a.text"), &context), Seen::Hit("".into()));
    assert_eq!(seen(Shadow::number("a.zero"), &context), Seen::Hit(0.into()));
    assert_eq!(seen(Shadow::boolean("a.no"), &context), Seen::Hit(false.into()));
}

#[test]
fn missing_or_null_is_a_miss_and_other_types_are_wrong() {
    let context = json!({"a": {"null": null, "list": [1], "object": {}, "text": "1", "number": 1}});
    for path in ["b", "a.b", "a.null", "a.text.more", "a.list.0", "a.object.x"] {
        assert_eq!(seen(Shadow::string(path), &context), Seen::Miss, "{path}");
    }
    for path in ["a.list", "a.object", "a.number", "a"] {
        assert_eq!(seen(Shadow::string(path), &context), Seen::WrongType, "{path}");
    }
    assert_eq!(seen(Shadow::number("a.text"), &context), Seen::WrongType);
    assert_eq!(seen(Shadow::boolean("a.number"), &context), Seen::WrongType);
    assert_eq!(seen(Shadow::string("a"), &json!("not an object")), Seen::Miss);
}

/// A column has exactly the value of the context, or none: values that it cannot hold exactly are left out.
#[test]
fn values_a_column_cannot_hold_are_not_copied() {
    let number = |value: Value| seen(Shadow::number("n"), &json!({ "n": value }));
    assert_eq!(number(json!(9_007_199_254_740_992_i64)), Seen::Hit(9_007_199_254_740_992_f64.into()));
    assert_eq!(number(json!(9_007_199_254_740_993_i64)), Seen::WrongType);
    assert_eq!(number(json!(u64::MAX)), Seen::WrongType);
    assert_eq!(number(json!(i64::MIN)), Seen::Hit((i64::MIN as f64).into()));
    assert_eq!(number(json!(0.1)), Seen::Hit(0.1.into()));
    let Seen::Hit(ShadowValue::Number(zero)) = number(json!(-0.0)) else { panic!("it is a number") };
    assert!(zero.is_sign_positive());
    let text = |value: String| seen(Shadow::string("t"), &json!({ "t": value }));
    assert!(matches!(text("x".repeat(MAX_TEXT_BYTES)), Seen::Hit(_)));
    assert_eq!(text("x".repeat(MAX_TEXT_BYTES + 1)), Seen::WrongType);
    assert_eq!(text("ü".repeat(MAX_TEXT_BYTES / 2 + 1)), Seen::WrongType);
    assert_eq!(text("a\0b".to_owned()), Seen::WrongType);
}

#[test]
fn bad_names_paths_and_defaults_are_refused() {
    let long = "x".repeat(64);
    for name in
        ["", "1st", "_own", "first-name", "first name", "größe", "status", "Created_At", long.as_str()]
    {
        refused(invite().shadow(name, Shadow::string("a")), &format!("shadow column `{name}`"), "column");
    }
    for path in ["", ".", "a.", ".a", "a..b", "a[0]", "a.*", "$.a b", "a\"b"] {
        refused(invite().shadow("it", Shadow::string(path)), "shadow column `it`", "is not a valid path");
    }
    for shadow in [
        Shadow::string("a").or(1),
        Shadow::number("a").or("1"),
        Shadow::boolean("a").or(0),
        Shadow::number("a").or(u64::MAX),
        Shadow::string("a").or(json!([])),
    ] {
        refused(invite().shadow("it", shadow), "shadow column `it`", "default");
    }
    let twice = invite().shadow("email", Shadow::string("a")).shadow("eMail", Shadow::string("b"));
    refused(twice, "shadow column `email`", "only in case");
    let many = (0..=MAX_COLUMNS)
        .fold(invite(), |spec, number| spec.shadow(format!("c{number}"), Shadow::string("a")));
    refused(many, "definition", "at most 64");
}

#[test]
fn json_spec_declares_shadow_columns() {
    let document = |shadow: Value| {
        json!({
            "name": "invite", "initial": "sent", "shadows": {"email": shadow},
            "places": {"sent": {"kind": "step"}, "done": {"kind": "end"}},
            "transitions": [{"id": "finish", "from": "sent", "to": "done"}],
        })
    };
    let read = |shadow: Value| serde_json::from_value::<Spec>(document(shadow));
    let spec = read(json!({"path": "to.email", "type": "string", "default": "nobody"})).unwrap();
    let definition = spec.build().unwrap();
    let column = &definition.shadows()[0];
    assert_eq!(
        (column.name().as_str(), column.kind(), column.path()),
        ("email", ShadowType::String, "to.email".to_owned())
    );
    assert_eq!(column.default(), Some(&"nobody".into()));
    let again = Definition::from_canonical(&definition.canonical()).unwrap();
    assert_eq!(again.shadows(), definition.shadows());
    assert_ne!(definition.hash(), invite().build().unwrap().hash());
    let error = read(json!({"path": "to.email", "type": "date"})).unwrap_err().to_string();
    assert!(error.contains("`date`") && error.contains("`boolean`"), "{error}");
    assert!(read(json!({"path": "to.email"})).unwrap_err().to_string().contains("type"));
    assert!(read(json!({"path": "a", "type": "string", "index": true})).is_err());
}
