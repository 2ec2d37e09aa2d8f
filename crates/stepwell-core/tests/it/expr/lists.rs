//! List literals, and expressions evaluated where a list is expected.

use serde_json::{Value, json};
use stepwell_core::expr::{Budget, Data, Expr};

use super::all_give;

fn list_on(data: &Value, source: &str) -> Option<Value> {
    let list = Expr::parse(source).and_then(|expr| expr.eval_list(&Data::new(data), &mut Budget::default()));
    list.unwrap_or_else(|error| panic!("{source}: {error}")).map(Value::Array)
}

#[test]
fn nested_lists_are_flattened_unless_written_as_literals() {
    all_give(&[
        ("[]", json!([])),
        ("[1, missing, 'a', null]", json!([1, "a", null])),
        ("[[1], [2, [3]]]", json!([[1], [2, [3]]])),
        ("[context.tags, 'z']", json!(["x", "y", "z"])),
        ("[([1, 2]), 3]", json!([1, 2, 3])),
        ("[true ? [1, 2] : 0]", json!([1, 2])),
        ("[[0, [1, 2]][1]]", json!([[1, 2]])),
        ("[payload.nested[0]]", json!([1, 2])),
        ("[[]]", json!([[]])),
        ("[[[]]]", json!([[[]]])),
    ]);
}

#[test]
fn list_of_one_stays_a_list_where_a_list_is_expected() {
    let data = json!({
        "one": [{"n": 1}],
        "two": [{"n": 1}, {"n": 2}],
        "none": [],
        "single": {"n": 1},
        "null": null,
        "nested": [[1, 2]]
    });
    for (source, expected) in [
        ("two.n", json!([1, 2])),
        ("one.n", json!([1])),
        ("two[n = 2].n", json!([2])),
        ("two[n = 2]", json!([{"n": 2}])),
        ("two[0]", json!([{"n": 1}])),
        // A mapped or filtered list without a result is an empty list.
        ("two[n = 3]", json!([])),
        ("two[n = 3].n", json!([])),
        ("two[9]", json!([])),
        ("two.missing", json!([])),
        ("one.missing", json!([])),
        ("none.n", json!([])),
        ("none[n = 1]", json!([])),
        ("none", json!([])),
        ("two^(n)[n = 3]", json!([])),
        // Any other value becomes a list of one.
        ("single.n", json!([1])),
        ("single", json!([{"n": 1}])),
        ("null", json!([null])),
        ("`null`", json!([null])),
        ("5", json!([5])),
        ("[5]", json!([5])),
        ("nested[0]", json!([1, 2])),
        // Conditionals, blocks and defaults keep the list of the part they choose.
        ("true ? two[n = 3] : 1", json!([])),
        ("false ? 1 : one.n", json!([1])),
        ("(1; one.n)", json!([1])),
        ("($x := 2; two[n = $x].n)", json!([2])),
        ("missing ?? one.n", json!([1])),
        ("one.n ?? 5", json!([1])),
        ("two[n = 3] ?? 5", json!([5])),
        ("$keys(single)", json!(["n"])),
    ] {
        assert_eq!(list_on(&data, source), Some(expected), "{source}");
    }
    for source in
        ["missing", "missing.n", "single.missing", "single.missing.n", "`null`.n", "single[1].n ? 1", "()"]
    {
        assert_eq!(list_on(&data, source), None, "{source}");
    }
    // A list as the input is mapped too.
    assert_eq!(list_on(&json!([{"n": 1}]), "n"), Some(json!([1])));
    assert_eq!(list_on(&json!([{"n": 1}]), "m"), Some(json!([])));
}
