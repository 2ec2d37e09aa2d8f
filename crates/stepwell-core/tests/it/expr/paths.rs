//! Paths: fields, indexes, mapping over lists, and flattening.

use serde_json::json;

use super::{all_fail_with, all_give, all_give_on, all_undefined, on};

#[test]
fn fields_and_indexes() {
    all_give(&[
        ("payload.name", json!("Ann")),
        ("`payload`.`odd key`.in", json!(1)),
        ("payload.'odd key'.in", json!(1)),
        ("'payload'.name", json!("Ann")),
        ("`in`", json!(7)),
        ("payload . amount", json!(120)),
        ("payload.items[0].sku", json!("a")),
        ("payload.items[-1].sku", json!("b")),
        ("payload.items[ - 2 ].sku", json!("a")),
        ("payload.items[1.9].sku", json!("b")),
        ("payload.nested[0][1]", json!(2)),
        ("(payload.items)[1].n", json!(2)),
        ("(payload).items[1].n", json!(2)),
        ("[1, 2, [3, 4]][-1]", json!([3, 4])),
        ("$coalesce(payload.note, payload).name", json!("Ann")),
        ("payload.empty", json!([])),
        ("{'a': {'b': 1}}.a.b", json!(1)),
        // Any value other than a list counts as a list of one.
        ("payload.amount[0]", json!(120)),
        ("payload.amount[-1]", json!(120)),
        ("payload.note[0]", json!(null)),
        ("'abc'[0]", json!("abc")),
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
        "'a'.b",
    ]);
    all_fail_with(&[("1.a", "S0213"), ("true.a", "S0213"), ("a.null", "S0213")]);
}

#[test]
fn a_step_is_mapped_over_a_list() {
    all_give(&[
        ("payload.items.sku", json!(["a", "b"])),
        ("payload.items.missing ?? 'none'", json!("none")),
        ("payload.items.(sku & n)", json!(["a1", "b2"])),
        ("payload.items.{sku: n}", json!([{"a": 1}, {"b": 2}])),
        ("payload.items.[n, n]", json!([[1, 1], [2, 2]])),
        ("payload.items.$string()", json!(["{\"n\":1,\"sku\":\"a\"}", "{\"n\":2,\"sku\":\"b\"}"])),
        ("payload.items.sku.$uppercase()", json!(["A", "B"])),
        ("payload.items.sku.uppercase()", json!(["A", "B"])),
        ("payload.items.$", json!([{"sku": "a", "n": 1}, {"sku": "b", "n": 2}])),
        ("payload.items.$$.in", json!([7, 7])),
        ("payload.nested.$", json!([1, 2, 3])),
        ("[1..3].($ * 2)", json!([2, 4, 6])),
        ("payload.items.sku = 'a'", json!(false)),
        ("'a' in payload.items.sku", json!(true)),
        ("$count(payload.items.missing)", json!(0)),
    ]);
}

#[test]
fn lists_are_flattened_like_in_jsonata() {
    let deep = json!({"a": [{"b": [{"c": [1]}, {"c": [2]}]}, {"b": [{"c": [3]}, {"c": [4, 5]}]}]});
    all_give_on(
        &deep,
        &[
            ("a.b.c", json!([1, 2, 3, 4, 5])),
            ("a.[b.c]", json!([[1, 2], [3, 4, 5]])),
            ("a.b.[c]", json!([[1], [2], [3], [4, 5]])),
            ("a.[b.[c]]", json!([[[1], [2]], [[3], [4, 5]]])),
            ("a.b[0].c", json!([1, 3])),
            ("(a.b)[0].c", json!([1])),
            ("a[0].b[0].c", json!([1])),
            ("a[0].b[0].c[0]", json!(1)),
            ("a.b.c[0]", json!([1, 2, 3, 4])),
            ("(a.b.c)[-1]", json!(5)),
        ],
    );
    all_give_on(&json!({"a": [[1]]}), &[("a", json!([[1]])), ("a[0]", json!([1])), ("a.$", json!([1]))]);
}

#[test]
fn list_input_is_one_value_until_it_is_mapped() {
    let data = json!([{"a": [1, 2]}, {"a": [3]}]);
    all_give_on(
        &data,
        &[
            ("a", json!([1, 2, 3])),
            ("a[0]", json!(1)),
            ("$.a[0]", json!([1, 3])),
            ("$[0].a", json!([1, 2])),
            ("$count($)", json!(2)),
            ("{'n': $count($)}", json!({"n": 2})),
            ("$string()", json!("[{\"a\":[1,2]},{\"a\":[3]}]")),
            ("*", json!([{"a": [1, 2]}, {"a": [3]}])),
            ("$$[1].a", json!([3])),
        ],
    );
    assert_eq!(on(&json!([]), "$.a"), Ok(None));
    assert_eq!(on(&json!(null), "$"), Ok(Some(json!(null))));
    assert_eq!(on(&json!([]), "{'a': 1}"), Ok(Some(json!({"a": 1}))));
}

#[test]
fn wildcards_and_descendants() {
    let data = json!({"a": {"x": 1, "y": [2, [3]]}, "b": [{"x": 4}], "c": null});
    all_give_on(
        &data,
        &[
            ("a.*", json!([1, 2, 3])),
            ("*.x", json!([1, 4])),
            ("**.x", json!([1, 4])),
            ("$count(**)", json!(8)),
            ("b.**", json!([{"x": 4}, 4])),
            ("a.**[$ = 3]", json!(3)),
            ("b.*", json!(4)),
        ],
    );
    all_give(&[("*.limit", json!(100)), ("**.sku", json!(["a", "b"])), ("$count(*)", json!(3))]);
    all_undefined(&["missing.*", "missing.**", "payload.name.*"]);
}

#[test]
fn data_of_any_depth_can_be_walked() {
    let mut deep = json!({"leaf": 1});
    for _ in 0..500 {
        deep = json!([{ "a": deep }]);
    }
    // Only the innermost object has the field `leaf`.
    assert_eq!(on(&deep, "$count(**.leaf)"), Ok(Some(json!(1))));
    assert_eq!(on(&deep, "$count(**)"), Ok(Some(json!(502))));
    assert_eq!(on(&deep, "$count(*) + $count(a)"), Ok(Some(json!(2))));
}
