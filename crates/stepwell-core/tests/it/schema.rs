use stepwell_core::schema::{MAX_DEPTH, MAX_MISMATCHES, Schema, SchemaProblem, SchemaViolation};

use proptest::prelude::{
    BoxedStrategy, Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest,
};
use proptest::sample::{select, subsequence};
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|problems| panic!("{schema} does not compile: {problems:?}"))
}

fn violations(schema: &Value, value: &Value) -> Vec<(String, String)> {
    let found = compiled(schema).check(value);
    assert_eq!(compiled(schema).fits(value), found.is_empty(), "{schema} and {value}");
    found.into_iter().map(|violation| (violation.pointer, violation.keyword)).collect()
}

fn message(schema: &Value, value: &Value) -> String {
    let found = compiled(schema).check(value);
    found.first().map(ToString::to_string).unwrap_or_default()
}

fn problems(schema: &Value) -> Vec<String> {
    let problems = Schema::compile(schema).expect_err("a schema with a problem");
    problems.iter().map(ToString::to_string).collect()
}

/// A schema, a valid value, an invalid value, and the pointer and keyword of its only violation.
type Case = (Value, Value, Value, &'static str, &'static str);

fn assert_cases(cases: &[Case]) {
    for (schema, fitting, other, pointer, keyword) in cases {
        assert_eq!(violations(schema, fitting), [], "{schema} and {fitting}");
        let expected = [((*pointer).to_owned(), (*keyword).to_owned())];
        assert_eq!(violations(schema, other), expected, "{schema} and {other}");
    }
}

#[test]
fn keywords_for_any_value() {
    assert_cases(&[
        (
            json!({"properties": {"a": true, "b": false}}),
            json!({"a": 1}),
            json!({"b": 1}),
            "/b",
            "properties",
        ),
        (json!({"type": "null"}), json!(null), json!(0), "", "type"),
        (json!({"type": "boolean"}), json!(false), json!(null), "", "type"),
        (json!({"type": "integer"}), json!(3), json!(3.5), "", "type"),
        (json!({"type": "integer"}), json!(1.0), json!("1"), "", "type"),
        (json!({"type": "integer"}), json!(1e300), json!([]), "", "type"),
        (json!({"type": "number"}), json!(1.5), json!("1.5"), "", "type"),
        (json!({"type": "string"}), json!(""), json!({}), "", "type"),
        (json!({"type": "array"}), json!([]), json!({}), "", "type"),
        (json!({"type": "object"}), json!({}), json!([]), "", "type"),
        (json!({"type": ["string", "null"]}), json!(null), json!(true), "", "type"),
        (json!({"enum": [1, "a", [2.0]]}), json!(1.0), json!("b"), "", "enum"),
        (json!({"enum": [1, "a", [2.0]]}), json!([2]), json!([3]), "", "enum"),
        (json!({"enum": [0]}), json!(-0.0), json!(false), "", "enum"),
        (json!({"const": {"a": 1, "b": 2}}), json!({"b": 2.0, "a": 1}), json!({"a": 1}), "", "const"),
        (json!({"const": u64::MAX}), json!(u64::MAX), json!(u64::MAX - 1), "", "const"),
        (json!({"const": null}), json!(null), json!(0), "", "const"),
    ]);
    assert_eq!(violations(&json!(true), &json!(1)), []);
    assert_eq!(violations(&json!(false), &json!(1)), [(String::new(), "false".to_owned())]);
}

#[test]
fn keywords_for_objects() {
    let closed =
        json!({"properties": {"a": true}, "patternProperties": {"^x": true}, "additionalProperties": false});
    let dependent = json!({"dependentRequired": {"a": ["b"]}});
    assert_cases(&[
        (
            json!({"properties": {"a": {"type": "string"}}}),
            json!({"a": "", "b": 1}),
            json!({"a": 1}),
            "/a",
            "type",
        ),
        (
            json!({"properties": {"a/b~": {"type": "string"}}}),
            json!([]),
            json!({"a/b~": 1}),
            "/a~1b~0",
            "type",
        ),
        (json!({"required": ["a"]}), json!({"a": null}), json!({"b": 1}), "", "required"),
        (json!({"required": ["a"]}), json!("not an object"), json!({}), "", "required"),
        (closed, json!({"a": 1, "xy": 2}), json!({"yx": 1}), "/yx", "additionalProperties"),
        (
            json!({"additionalProperties": {"type": "null"}}),
            json!({"a": null}),
            json!({"a": 1}),
            "/a",
            "type",
        ),
        (
            json!({"patternProperties": {"b": {"type": "null"}}}),
            json!({"a": 1}),
            json!({"abc": 1}),
            "/abc",
            "type",
        ),
        (
            json!({"patternProperties": {"b": false}}),
            json!({"a": 1}),
            json!({"b": 1}),
            "/b",
            "patternProperties",
        ),
        (json!({"propertyNames": {"maxLength": 1}}), json!({"a": 1}), json!({"ab": 1}), "", "propertyNames"),
        (json!({"minProperties": 1}), json!({"a": 1}), json!({}), "", "minProperties"),
        (json!({"maxProperties": 1}), json!({"a": 1}), json!({"a": 1, "b": 2}), "", "maxProperties"),
        (dependent.clone(), json!({"a": 1, "b": 2}), json!({"a": 1}), "", "dependentRequired"),
        (dependent, json!({"c": 1}), json!({"a": 1, "c": 1}), "", "dependentRequired"),
    ]);
}

#[test]
fn keywords_for_arrays() {
    let pair = json!({"prefixItems": [{"type": "string"}, true], "items": false});
    let one = json!({"contains": {"const": 1}});
    let two = json!({"contains": {"const": 1}, "minContains": 2, "maxContains": 2});
    let unique = json!({"uniqueItems": true});
    assert_cases(&[
        (json!({"items": {"type": "string"}}), json!(["a"]), json!(["a", 1]), "/1", "type"),
        (pair.clone(), json!(["a", 1]), json!([1, 1]), "/0", "type"),
        (pair, json!(["a"]), json!(["a", 1, 2]), "/2", "items"),
        (json!({"prefixItems": [false]}), json!([]), json!([1]), "/0", "prefixItems"),
        (one.clone(), json!([2, 1]), json!([2]), "", "contains"),
        (one, json!({}), json!([]), "", "contains"),
        (two.clone(), json!([1, 2, 1]), json!([1]), "", "minContains"),
        (two, json!([1, 1.0]), json!([1, 1, 1]), "", "maxContains"),
        (
            json!({"contains": true, "minContains": 0, "maxContains": 1}),
            json!([]),
            json!([1, 2]),
            "",
            "maxContains",
        ),
        (json!({"minItems": 1}), json!([1]), json!([]), "", "minItems"),
        (json!({"maxItems": 1}), json!([1]), json!([1, 2]), "", "maxItems"),
        (unique.clone(), json!([1, 2, "1", true, [1], {"a": 1}]), json!([1, 2, 1.0]), "", "uniqueItems"),
        (
            unique.clone(),
            json!([0, false, null, ""]),
            json!([{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
            "",
            "uniqueItems",
        ),
        (unique, json!([[], [[]]]), json!([[1, [2]], 0, [1, [2.0]]]), "", "uniqueItems"),
    ]);
    assert_eq!(violations(&json!({"uniqueItems": false}), &json!([1, 1])), []);
    assert_eq!(
        violations(&json!({"minContains": 2, "maxContains": 0}), &json!([1])),
        [],
        "no effect without contains"
    );
}

#[test]
fn keywords_for_numbers() {
    let (odd, even) = (9_007_199_254_740_993_u64, 9_007_199_254_740_992_u64);
    assert_cases(&[
        (json!({"minimum": 1}), json!(1.0), json!(0.5), "", "minimum"),
        (json!({"maximum": 1.5}), json!(1.5), json!(2), "", "maximum"),
        (json!({"exclusiveMinimum": 1}), json!(1.1), json!(1), "", "exclusiveMinimum"),
        (json!({"exclusiveMaximum": 1}), json!("2"), json!(1.0), "", "exclusiveMaximum"),
        (json!({"minimum": odd}), json!(odd), json!(even), "", "minimum"),
        (json!({"minimum": odd}), json!(odd + 1), json!(even as f64), "", "minimum"),
        (json!({"maximum": i64::MIN + 1}), json!(i64::MIN), json!(i64::MIN + 2), "", "maximum"),
        (json!({"exclusiveMaximum": u64::MAX}), json!(u64::MAX - 1), json!(1e20), "", "exclusiveMaximum"),
        (json!({"minimum": -0.5}), json!(0), json!(-1e300), "", "minimum"),
        (json!({"multipleOf": 2}), json!(4.0), json!(3), "", "multipleOf"),
        (json!({"multipleOf": 3}), json!(u64::MAX), json!(u64::MAX - 1), "", "multipleOf"),
        (json!({"multipleOf": 0.01}), json!(19.99), json!(0.075), "", "multipleOf"),
        (json!({"multipleOf": 0.1}), json!(0.3), json!(0.35), "", "multipleOf"),
        (json!({"multipleOf": 1e-7}), json!(-0.0), json!(1.5e-7), "", "multipleOf"),
        (json!({"multipleOf": 7}), json!(7e300), json!(1e300), "", "multipleOf"),
        (json!({"multipleOf": 1e300}), json!(0), json!(1e-300), "", "multipleOf"),
    ]);
}

#[test]
fn keywords_for_strings() {
    assert_cases(&[
        (json!({"minLength": 2}), json!("éé"), json!("é"), "", "minLength"),
        (json!({"minLength": 1}), json!(0), json!(""), "", "minLength"),
        (json!({"maxLength": 2.0}), json!("éé"), json!("abc"), "", "maxLength"),
        (json!({"pattern": "b+"}), json!("abbc"), json!("ac"), "", "pattern"),
        (json!({"pattern": "^\\d{3}$"}), json!("123"), json!("1234"), "", "pattern"),
    ]);
}

#[test]
fn keywords_that_apply_schemas() {
    let when = json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}});
    let sibling = json!({"properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}});
    let definitions = json!({"items": {"$ref": "#/definitions/no"}, "definitions": {"no": false}});
    let refs = json!({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}, "maxLength": 1});
    assert_cases(&[
        (json!({"allOf": [true, {"type": "string"}]}), json!(""), json!(1), "", "type"),
        (json!({"anyOf": [{"type": "string"}, {"minimum": 5}]}), json!(5), json!(4), "", "anyOf"),
        (json!({"oneOf": [{"type": "integer"}, {"minimum": 5}]}), json!(4), json!(4.5), "", "oneOf"),
        (json!({"oneOf": [{"type": "integer"}, {"minimum": 5}]}), json!(5.5), json!(5), "", "oneOf"),
        (json!({"not": {"type": "string"}}), json!(1), json!("a"), "", "not"),
        (when.clone(), json!({"a": 1, "b": 2}), json!({"a": 1}), "", "required"),
        (when, json!({"c": 1}), json!({"b": 1}), "", "required"),
        (json!({"if": {"const": 1}, "then": false}), json!(2), json!(1), "", "then"),
        (json!({"then": false, "else": false, "type": "null"}), json!(null), json!(1), "", "type"),
        (refs.clone(), json!("a"), json!(1), "", "type"),
        (refs, json!(""), json!("ab"), "", "maxLength"),
        (sibling, json!({"b": null}), json!({"b": 1}), "/b", "type"),
        (definitions, json!([]), json!([1]), "/0", "$ref"),
        (json!({"$ref": "#/x-shared/0", "x-shared": [{"type": "null"}]}), json!(null), json!(1), "", "type"),
    ]);
}

#[test]
fn annotations_assert_nothing() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/a",
        "$comment": "c", "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": true,
        "readOnly": true, "writeOnly": false, "format": "email", "contentMediaType": "text/plain",
        "contentEncoding": "base64", "x-order": [1], "$defs": {"unused": false}, "definitions": {},
    });
    assert_eq!(violations(&schema, &json!("anything")), []);
    assert_eq!(compiled(&schema).source(), &schema);
}

#[test]
fn messages_say_what_was_expected_and_found() {
    let alternatives = json!({"anyOf": [{"type": "integer"}, {"properties": {"b": {"minLength": 2}}}]});
    let many: Vec<usize> = (0..9).collect();
    let cases = [
        (json!({"properties": {"amount": {"type": "integer"}}}), json!({"amount": "x"})),
        (json!({"type": ["integer", "null"]}), json!("x".repeat(100))),
        (json!({"required": ["amount"]}), json!({})),
        (json!({"properties": {"amount": true}, "additionalProperties": false}), json!({"amont": 1})),
        (json!({"enum": many}), json!([1, 2])),
        (json!({"const": "a"}), json!({})),
        (json!({"minLength": 1}), json!("")),
        (json!({"exclusiveMaximum": 1.5}), json!(2)),
        (json!({"items": alternatives}), json!([{"b": ""}])),
        (json!({"oneOf": [true, false, {}]}), json!(null)),
        (json!({"propertyNames": {"pattern": "^a"}}), json!({"b": 1})),
        (json!({"uniqueItems": true}), json!([1, 2, 1.0])),
        (json!({"items": false}), json!([true])),
        (json!({"not": {"type": "null"}}), json!(null)),
        (json!({"contains": false}), json!([1])),
        (json!({"dependentRequired": {"a": ["b"]}}), json!({"a": 1})),
    ];
    let found: Vec<String> = cases.iter().map(|(schema, value)| message(schema, value)).collect();
    let expected = [
        "/amount: expected integer, found string \"x\"",
        &format!("expected integer or null, found string \"{}…\"", "x".repeat(60)),
        "\"amount\" is missing",
        "/amont: unknown property \"amont\" (did you mean `amount`?)",
        "expected one of 0, 1, 2, 3, 4, 5, 6, 7, …, found array of length 2",
        "expected \"a\", found object of size 0",
        "expected 1 or more characters, found 0",
        "expected less than 1.5, found 2",
        "/0: matches none of 2 alternatives (1: expected integer, found object of size 1; \
         2: /b: expected 2 or more characters, found 0)",
        "expected exactly one matching alternative, found alternatives 1 and 3",
        "the property name \"b\": expected a match of \"^a\", found string \"b\"",
        "items 0 and 2 are equal",
        "/0: no value is allowed here, found boolean true",
        "null matches the schema of \"not\"",
        "expected 1 or more matching items, found 0",
        "\"b\" is missing, but \"a\" requires it",
    ];
    assert_eq!(found, expected);
}

#[test]
fn violations_are_reported_up_to_a_limit() {
    let schema =
        json!({"required": ["a", "b"], "properties": {"c": {"items": {"type": "null"}}}, "maxProperties": 0});
    let expected =
        [("", "required"), ("", "required"), ("/c/0", "type"), ("/c/2", "type"), ("", "maxProperties")];
    let expected = expected.map(|(pointer, keyword)| (pointer.to_owned(), keyword.to_owned()));
    assert_eq!(violations(&schema, &json!({"c": [1, null, 2]})), expected);
    let many = json!({"items": {"type": "null"}});
    assert_eq!(violations(&many, &json!(vec![1; 1000])).len(), MAX_MISMATCHES);
}

#[test]
fn invalid_schemas_are_reported_as_problems() {
    let cases = [
        (json!({"foo": 1}), "#/foo: keyword \"foo\" is not supported"),
        (
            json!({"requird": []}),
            "#/requird: keyword \"requird\" is not supported (did you mean `required`?)",
        ),
        (
            json!({"items": {"minlenght": 1}}),
            "#/items/minlenght: keyword \"minlenght\" is not supported (did you mean `minLength`?)",
        ),
        (
            json!({"minlength": 1}),
            "#/minlength: keyword \"minlength\" is not supported (did you mean `minLength`?)",
        ),
        (
            json!({"unevaluatedProperties": false}),
            "#/unevaluatedProperties: keyword \"unevaluatedProperties\" is not supported",
        ),
        (
            json!({"$defs": {"a/b": {"$anchor": "x"}}}),
            "#/$defs/a~1b/$anchor: keyword \"$anchor\" is not supported",
        ),
        (json!(3), "#: expected a schema (an object or a boolean), found integer 3"),
        (
            json!({"items": [true]}),
            "#/items: expected a schema (an object or a boolean), found array of length 1",
        ),
        (
            json!({"properties": {"a": null}}),
            "#/properties/a: expected a schema (an object or a boolean), found null",
        ),
        (json!({"properties": []}), "#/properties: expected an object of schemas, found array of length 0"),
        (json!({"$defs": 1}), "#/$defs: expected an object of schemas, found integer 1"),
        (json!({"allOf": []}), "#/allOf: expected a non-empty array of schemas, found array of length 0"),
        (json!({"oneOf": {}}), "#/oneOf: expected a non-empty array of schemas, found object of size 0"),
        (
            json!({"prefixItems": true}),
            "#/prefixItems: expected a non-empty array of schemas, found boolean true",
        ),
        (json!({"type": "strng"}), "#/type: unknown type \"strng\" (did you mean `string`?)"),
        (
            json!({"type": []}),
            "#/type: expected a type or a non-empty array of different types, found array of length 0",
        ),
        (
            json!({"type": ["null", "null"]}),
            "#/type: expected a type or a non-empty array of different types, found array of length 2",
        ),
        (json!({"enum": "a"}), "#/enum: expected an array, found string \"a\""),
        (json!({"required": "a"}), "#/required: expected an array of different strings, found string \"a\""),
        (
            json!({"required": ["a", "a"]}),
            "#/required: expected an array of different strings, found array of length 2",
        ),
        (
            json!({"dependentRequired": {"a": [1]}}),
            "#/dependentRequired: expected an object of arrays of different strings, found object of size 1",
        ),
        (json!({"minimum": "1"}), "#/minimum: expected a number, found string \"1\""),
        (json!({"multipleOf": 0}), "#/multipleOf: expected a number above 0, found integer 0"),
        (json!({"minLength": -1}), "#/minLength: expected a whole number, 0 or more, found integer -1"),
        (json!({"maxItems": 1.5}), "#/maxItems: expected a whole number, 0 or more, found number 1.5"),
        (json!({"minContains": null}), "#/minContains: expected a whole number, 0 or more, found null"),
        (json!({"uniqueItems": 1}), "#/uniqueItems: expected a boolean, found integer 1"),
        (json!({"pattern": 1}), "#/pattern: expected a string, found integer 1"),
        (json!({"pattern": "a("}), "#/pattern: \"a(\" is not a valid pattern: "),
        (json!({"pattern": "(?=a)"}), "#/pattern: \"(?=a)\" is not a valid pattern: "),
        (
            json!({"patternProperties": {"[/": {}}}),
            "#/patternProperties/[~1: \"[/\" is not a valid pattern: ",
        ),
        (json!({"$ref": 1}), "#/$ref: expected a string, found integer 1"),
        (
            json!({"$ref": "https://example.com/a"}),
            "#/$ref: \"https://example.com/a\" is outside this schema: remote references are not supported",
        ),
        (json!({"$ref": "#a"}), "#/$ref: \"#a\" is not a JSON pointer: anchors are not supported"),
        (json!({"$ref": "#/$defs/a"}), "#/$ref: \"#/$defs/a\" does not exist in this schema"),
        (json!({"$ref": "#/%zz"}), "#/$ref: \"#/%zz\" does not exist in this schema"),
        (json!({"$ref": "#/required", "required": []}), "#/$ref: \"#/required\" is not a schema"),
        (
            json!({"$ref": "#/default", "default": {"foo": 1}}),
            "#/default/foo: keyword \"foo\" is not supported",
        ),
    ];
    for (schema, expected) in cases {
        let found = problems(&schema);
        assert_eq!(found.len(), 1, "{schema}: {found:?}");
        let same =
            if expected.ends_with(' ') { found[0].starts_with(expected) } else { found[0] == expected };
        assert!(same, "{schema}: {} is not {expected}", found[0]);
    }
}

#[test]
fn every_problem_is_reported() {
    let schema = json!({
        "type": ["string", "nul", "flot"], "requird": [], "minLength": -1,
        "properties": {"a": {"$ref": "#/nowhere", "foo": 1}, "b": 1}, "then": {"pattern": "("},
    });
    let found = Schema::compile(&schema).expect_err("a schema with many problems");
    let pointers: Vec<&str> = found.iter().map(|problem: &SchemaProblem| problem.pointer.as_str()).collect();
    let expected = [
        "/minLength",
        "/properties/a/$ref",
        "/properties/a/foo",
        "/properties/b",
        "/requird",
        "/then/pattern",
    ];
    assert_eq!(pointers, [&expected[..], &["/type", "/type"]].concat());
}

#[test]
fn recursive_references_must_descend_into_the_value() {
    let looping = "the reference leads back here without descending into the value";
    let one = json!({"$ref": "#"});
    assert_eq!(problems(&one), [format!("#/$ref: {looping}")]);
    let back = json!({"anyOf": [true, {"$ref": "#/$defs/a"}]});
    let two = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": back}});
    assert_eq!(
        problems(&two),
        [format!("#/$defs/a/$ref: {looping}"), format!("#/$defs/b/anyOf/1/$ref: {looping}")]
    );
    for keyword in ["not", "if"] {
        assert_eq!(problems(&json!({keyword: {"$ref": "#"}})), [format!("#/{keyword}/$ref: {looping}")]);
    }
    for schema in [
        json!({"allOf": [{"items": {"$ref": "#"}}]}),
        json!({"then": {"$ref": "#"}}),
        json!({"propertyNames": {"$ref": "#"}}),
    ] {
        assert_eq!(violations(&schema, &json!({"a": [[]]})), []);
    }
}

#[test]
fn a_tree_is_checked_through_its_references() {
    let schema = json!({"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/tree"}}},
    }}});
    let fitting = json!({"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]});
    assert_eq!(violations(&schema, &fitting), []);
    let child = json!({"name": "b", "children": [{"name": "c"}, {"name": 1}]});
    let other = json!({"name": "a", "children": [child, {"size": 1}]});
    let expected = [
        ("/children/0/children/1/name", "type"),
        ("/children/1", "required"),
        ("/children/1/size", "additionalProperties"),
    ];
    assert_eq!(
        violations(&schema, &other),
        expected.map(|(pointer, keyword)| (pointer.to_owned(), keyword.to_owned()))
    );
}

fn nested(depth: usize, inner: Value) -> Value {
    (0..depth).fold(inner, |value, _| Value::Array(vec![value]))
}

#[test]
fn depth_is_bounded() {
    let depth = |pointer: &str| [(pointer.to_owned(), "depth".to_owned())];
    assert_eq!(violations(&json!(true), &nested(MAX_DEPTH, json!(1))), []);
    assert_eq!(violations(&json!({"not": true}), &nested(MAX_DEPTH + 1, json!(1))), depth(""));
    let lists = json!({"items": {"$ref": "#"}, "type": "array"});
    assert_eq!(violations(&lists, &nested(MAX_DEPTH / 2 - 1, json!([]))), []);
    assert_eq!(violations(&lists, &nested(MAX_DEPTH / 2, json!([]))), depth(&"/0".repeat(MAX_DEPTH / 2)));
    let turned =
        json!({"not": {"$ref": "#/$defs/list"}, "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}});
    let found = compiled(&turned).check(&nested(100, json!(1)));
    assert_eq!(found[0].keyword, "depth", "exceeding a limit never fits, even under not");
}

#[test]
fn deep_values_and_schemas_do_not_overflow_the_stack() {
    let value = nested(100_000, json!(1));
    for schema in
        [json!(true), json!({"not": {"const": 1}}), json!({"uniqueItems": true}), json!({"items": {}})]
    {
        assert_eq!(compiled(&schema).check(&value)[0].keyword, "depth");
    }
    let schema = (0..100_000)
        .fold(json!(true), |schema, _| Value::Object(Map::from_iter([("not".to_owned(), schema)])));
    assert_eq!(problems(&schema), ["#: the schema is nested deeper than 128 levels"]);
    // serde_json drops values recursively, which would overflow the stack here.
    std::mem::forget((value, schema));

    let chain = defined(10_000, |next| json!({"$ref": next}));
    let long = "the reference leads through more than 128 schemas without descending into the value";
    assert_eq!(problems(&chain)[0], format!("#/$defs/0/$ref: {long}"));
}

/// A schema with `count` definitions, each of which refers to the next.
fn defined(count: usize, definition: impl Fn(&str) -> Value) -> Value {
    let one = |i: usize| (i.to_string(), definition(&format!("#/$defs/{}", i + 1)));
    let mut definitions: Map<String, Value> = (0..count).map(one).collect();
    definitions.insert(count.to_string(), json!(true));
    json!({"$ref": "#/$defs/0", "$defs": definitions})
}

#[test]
fn work_is_bounded() {
    let doubling = defined(40, |next| json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
    assert_eq!(violations(&doubling, &json!(1)), [(String::new(), "steps".to_owned())]);
    let many: Vec<usize> = (0..100_000).collect();
    assert_eq!(violations(&json!({"uniqueItems": true, "items": {"minimum": 0}}), &json!(many)), []);
}

#[test]
fn violations_and_problems_round_trip_through_json() {
    let violation = compiled(&json!({"items": false})).check(&json!([1])).remove(0);
    let text = serde_json::to_string(&violation).unwrap();
    assert_eq!(
        text,
        r#"{"pointer":"/0","keyword":"items","message":"no value is allowed here, found integer 1"}"#
    );
    assert_eq!(serde_json::from_str::<SchemaViolation>(&text).unwrap(), violation);
    let problem = Schema::compile(&json!({"foo": 1})).unwrap_err().remove(0);
    let text = serde_json::to_string(&problem).unwrap();
    assert_eq!(serde_json::from_str::<SchemaProblem>(&text).unwrap(), problem);
}

fn number() -> impl Strategy<Value = Value> {
    let small = vec![
        json!(0),
        json!(1),
        json!(1.0),
        json!(2),
        json!(-1),
        json!(1.5),
        json!(0.3),
        json!(3),
        json!(-0.0),
    ];
    let large = vec![json!(u64::MAX), json!(i64::MIN), json!(1e20), json!(9_007_199_254_740_993_u64)];
    prop_oneof![4 => select(small), 1 => select(large)]
}

fn scalar() -> impl Strategy<Value = Value> {
    let strings = select(vec!["", "a", "b", "ab", "ba", "aé"]);
    let others = select(vec![json!(null), json!(true), json!(false)]);
    prop_oneof![3 => number(), 3 => strings.prop_map(Value::from), 1 => others]
}

fn named<S: Strategy<Value = Value>>(values: S) -> impl Strategy<Value = Value> {
    proptest::collection::btree_map(select(vec!["a", "b", "ab"]).prop_map(str::to_owned), values, 0..=3)
        .prop_map(|map| Value::Object(map.into_iter().collect()))
}

fn list<S: Strategy<Value = Value>>(values: S, least: usize) -> impl Strategy<Value = Value> {
    proptest::collection::vec(values, least..=3).prop_map(Value::Array)
}

fn value() -> BoxedStrategy<Value> {
    let small = prop_oneof![4 => scalar(), 1 => list(scalar(), 0), 1 => named(scalar())].boxed();
    prop_oneof![2 => scalar(), 2 => list(small.clone(), 0), 3 => named(small)].boxed()
}

/// Generates combinations of keywords that have an effect only together. Random choice alone seldom combines them.
fn together(schema: BoxedStrategy<Value>, here: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let conditional = (here.clone(), here.clone(), here)
        .prop_map(|(test, then, otherwise)| json!([{"if": test, "then": then, "else": otherwise}]));
    let counted = (schema.clone(), 0..=2, 1..=2).prop_map(
        |(schema, least, most)| json!([{"contains": schema, "minContains": least, "maxContains": most}]),
    );
    let items = (list(schema.clone(), 1), schema.clone())
        .prop_map(|(prefix, rest)| json!([{"prefixItems": prefix, "items": rest}]));
    let members = (named(schema.clone()), schema.clone(), schema).prop_map(|(named, pattern, rest)| {
        json!([{"properties": named, "patternProperties": {"b": pattern}, "additionalProperties": rest}])
    });
    prop_oneof![conditional, counted, items, members].boxed()
}

/// Generates one keyword with a value. `schema` generates subschemas for parts of the value, `here` those for the
/// value itself.
fn keyword(schema: BoxedStrategy<Value>, here: BoxedStrategy<Value>) -> BoxedStrategy<(String, Value)> {
    let keyed = |names: &[&'static str], values: BoxedStrategy<Value>| {
        (select(names.to_vec()), values).prop_map(|(name, value)| (name.to_owned(), value)).boxed()
    };
    let names = || subsequence(vec!["a", "b", "ab"], 0..=2).prop_map(|names| json!(names));
    let types = vec!["null", "boolean", "integer", "number", "string", "array", "object"];
    let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    let sizes = [
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minContains",
        "maxContains",
    ];
    let steps = select(vec![json!(1), json!(2), json!(0.5), json!(0.1), json!(3), json!(1.0)]);
    let patterns = || select(vec!["a", "^b", "^$", "a|b$", ".b", "[^a]"]);
    let patterned = (patterns(), schema.clone()).prop_map(|(pattern, schema)| json!({pattern: schema}));
    let types = prop_oneof![
        select(types.clone()).prop_map(Value::from),
        subsequence(types, 1..=4).prop_map(|types| json!(types)),
    ];
    prop_oneof![
        1 => keyed(&["type"], types.boxed()),
        1 => keyed(&["enum"], list(value(), 1).boxed()),
        1 => keyed(&["const"], value()),
        3 => keyed(&bounds, number().boxed()),
        3 => keyed(&["multipleOf"], steps.boxed()),
        3 => keyed(&sizes, select(vec![json!(0), json!(1), json!(2), json!(2.0)]).boxed()),
        3 => keyed(&["pattern"], patterns().prop_map(Value::from).boxed()),
        3 => keyed(&["uniqueItems"], any::<bool>().prop_map(Value::from).boxed()),
        3 => keyed(&["required"], names().boxed()),
        3 => keyed(&["dependentRequired"], named(names()).boxed()),
        3 => keyed(&["properties"], named(schema.clone()).boxed()),
        3 => keyed(&["patternProperties"], patterned.boxed()),
        3 => keyed(&["prefixItems"], list(schema.clone(), 1).boxed()),
        3 => keyed(&["allOf", "anyOf", "oneOf"], list(here.clone(), 1).boxed()),
        3 => keyed(&["allOf"], together(schema.clone(), here.clone())),
        3 => keyed(&["items", "contains", "additionalProperties", "propertyNames"], schema),
        3 => keyed(&["not", "if", "then", "else"], here),
    ]
    .boxed()
}

fn keywords(schema: BoxedStrategy<Value>, here: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let keywords = proptest::collection::vec(keyword(schema, here), 1..=4);
    keywords.prop_map(|pairs| Value::Object(pairs.into_iter().collect())).boxed()
}

/// Generates a schema with a definition `t`. Both may refer to `t`, but `t` only from a subschema for a part of the
/// value, because other recursion is refused.
fn schema() -> BoxedStrategy<Value> {
    let plain = keywords(Just(json!(true)).boxed(), Just(json!(false)).boxed());
    let leaf = prop_oneof![1 => any::<bool>().prop_map(Value::from), 4 => plain].boxed();
    let reference = Just(json!({"$ref": "#/$defs/t"}));
    let part = prop_oneof![3 => leaf.clone(), 2 => reference].boxed();
    let definition = keywords(part.clone(), leaf);
    let inner = keywords(part.clone(), part.clone());
    let deeper = prop_oneof![2 => inner, 1 => part].boxed();
    let root = keywords(deeper.clone(), deeper);
    (root, definition)
        .prop_map(|(mut root, definition)| {
            root["$defs"] = json!({"t": definition});
            root
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(0x5bd1_e995), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn results_agree_with_another_validator(
        schema in schema(), values in proptest::collection::vec(value(), 16),
    ) {
        let ours = compiled(&schema);
        let theirs = jsonschema::draft202012::new(&schema).expect("a valid schema");
        for value in values {
            prop_assert_eq!(ours.fits(&value), theirs.is_valid(&value), "{} and {}", schema, value);
            prop_assert_eq!(ours.fits(&value), ours.check(&value).is_empty(), "{} and {}", schema, value);
        }
    }
}
